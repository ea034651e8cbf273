"""One rule per primitive that is not an array operation: JAX's equation -> `docs/descriptor.md`.

Array operations, and everything unknown, are written generically from their parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from smalt import _expand, _messages, _mlir, _primitives, _registry, _versions, _walk
from smalt._errors import InvalidKernel, Unsupported
from smalt._messages import Message, message
from smalt._rules import dma, prints, triton
from smalt._walk import ABSENT, Emit, OpParts, Walker

Rule = Callable[[Walker, Any], OpParts]
_RULES: dict[str, Rule] = {}


def apply(w: Walker, name: str, eqn: Any) -> OpParts:
    if name in _versions.CALLS:
        return _call(w, eqn)
    if (rule := _RULES.get(name)) is not None and not (rule in _OF_ARRAYS and any(_messages.is_complex(a.aval) for a in eqn.invars)):
        return rule(w, eqn)
    if (function := _expand.definition(name, eqn)) is not None:
        return _expand.call(w, eqn, function)
    return _generic(w, eqn)


_rule = _registry.into(_RULES)


def _split(items: Sequence[Any], *counts: int) -> list[list[Any]]:
    out, at = [], 0
    for count in counts:
        out.append(list(items[at : at + count]))
        at += count
    out.append(list(items[at:]))
    return out


def _leaves(tree: Any) -> int:
    return 0 if tree is None else int(tree.num_leaves)


def _refs(w: Walker, refs: Sequence[Any], trees: Sequence[Any], leaves: Sequence[Any]) -> list[Message]:
    """Refs with their transforms, all of whose leaves come in one list, ref after ref. A None ref is absent."""
    parts = _split(leaves, *(_leaves(t) for t in trees))
    if parts[-1]:
        raise Unsupported(
            f"{len(parts[-1])} operands more than its parameters account for"
            "\n  remedy: use a JAX version that smalt knows (0.10.2, 0.11.2, 0.12.0.1), or report it"
        )
    return [
        ABSENT if ref is None else w.ref(ref, () if tree is None else w.leaves(tree, part))
        for ref, tree, part in zip(refs, trees, parts)
    ]


def _predicate(w: Walker, eqn: Any, args: list[Any]) -> Message:
    """Takes the user's predicate off the end of `args`."""
    return w.operand(args.pop()) if eqn.params.get("has_user_predicate", False) else ABSENT


def _unless(value: Any, default: Any) -> Any:
    return None if value == default else value


def _text(value: Any) -> str | None:
    """A text or an enum member in lower case; None stays."""
    if value is None:
        return None
    return str(getattr(value, "value", value) if isinstance(getattr(value, "value", value), str) else value.name).lower()


# ------------------------------------------------------------------------------------------ scopes and control


@_rule("run_scoped")
def _run_scoped(w: Walker, eqn: Any) -> OpParts:
    params = eqn.params
    jaxpr, _ = _versions.open_jaxpr(params["jaxpr"])
    attrs: dict[str, Any] = {"collective_axes": w.axes(params["collective_axes"])}
    lists = params.get("ref_transforms") or ()
    if any(lists):
        chains = [message("TransformList", transforms=[w.transform(t) for t in chain]) for chain in lists]
        attrs["ref_transforms"] = message("TransformLists", lists=chains)
    body = w.region(params["jaxpr"], w.bind(jaxpr.constvars, eqn.invars), jaxpr.invars)
    return OpParts(attrs=_messages.attributes(attrs), regions=[body])


@_rule("run_state")
def _run_state(w: Walker, eqn: Any) -> OpParts:
    jaxpr, _ = _versions.open_jaxpr(eqn.params["jaxpr"])
    if not all(eqn.params["is_initialized"]):
        raise Unsupported("run_state with uninitialised refs\n  remedy: pass an array for each reference, or allocate scratch by pl.run_scoped")
    if jaxpr.outvars:
        # Stock returns them in place of the references' values.
        raise InvalidKernel(
            "run_state of a function that returns values"
            "\n  expected: one that returns nothing: what run_state returns is what its references hold in the end"
            f"\n  got: {len(jaxpr.outvars)} value{'s' * (len(jaxpr.outvars) != 1)}"
            "\n  remedy: store them in the references (ref[...] = value), or use pl.run_scoped, which returns what its function does"
        )
    outer = [_versions.is_ref_aval(atom.aval) for atom in eqn.invars]
    bound, params, results = {}, [], []
    for is_outer, atom, var, out in zip(outer, eqn.invars, jaxpr.invars, eqn.outvars):
        if is_outer:
            bound[var] = w.binding(atom)
            if not _versions.is_dropped(out):
                w.alias(out, atom)
        else:
            params.append(var)
            results.append(out)
    body = w.region(eqn.params["jaxpr"], bound, params, default_space="REGS")
    return OpParts(operands=w.operands(eqn.invars), regions=[body], results=results)


@_rule("get_global")
def _get_global(w: Walker, eqn: Any) -> OpParts:
    what = _messages.type_of(eqn.params["what"], w.axis_id)
    return OpParts(attrs=_messages.attributes({"what": what}))


@_rule("warp_map")
def _warp_map(w: Walker, eqn: Any) -> OpParts:
    found = _versions.warp_map(eqn)
    if found is None:
        raise Unsupported(
            "a nested kernel that is not a warp region"
            "\n  remedy: call the function that it runs, or nest pl.core_map(plgpu.WarpMesh(...)); kernels follow each other outside of kernels"
        )
    axis, jaxpr, variables = found
    number = w.intern_axis(axis)
    body = w.region(jaxpr, w.bind(variables, eqn.invars))
    return OpParts(attrs=_messages.attributes({"axis": _messages.Axes((number,)), "size": 4}), regions=[body])


def _call(w: Walker, eqn: Any) -> OpParts:
    prim = str(eqn.primitive.name)
    closed = eqn.params.get(_versions.CALLS.get(prim, ""))
    if closed is None:
        (closed,) = (p for p in eqn.params.values() if _versions.is_jaxpr(p))
    jaxpr, _ = _versions.open_jaxpr(closed)
    variables = list(jaxpr.invars)
    if len(variables) != len(eqn.invars):  # an open jaxpr may take its captures as constvars
        variables = [*jaxpr.constvars, *jaxpr.invars]
    body = w.region(closed, w.bind(variables, eqn.invars))
    prim = {"pjit": "jit", "remat2": "remat", "checkpoint": "remat"}.get(prim, prim)
    function = eqn.params.get("name")
    name = f"{prim}:{function}" if isinstance(function, str) and function else prim
    return OpParts(attrs=_messages.attributes({"name": name}), regions=[body], primitive="call")


@_rule("pallas_block")
def _pallas_block(w: Walker, eqn: Any) -> OpParts:
    """The body of a `pl.pallas_call` (`_blocks/pallas_call.py`): a call whose refs are slots and views of arrays."""
    body = eqn.params["body"]
    indices, rest = _split(eqn.invars, body.grid_rank)
    sizes, rest = _split(rest, len(body.sizes))
    bindings = []
    for ref in body.refs:
        (base, *leaves), rest = _split(rest, 1 + ref.operands)
        is_window = ref.treedef is None
        bindings.append(w.windowed(base, leaves, ref.window) if is_window else w.view(base, w.leaves(ref.treedef, leaves), ref.strip))
    bindings += [w.binding(ref) for ref in rest]
    outer = w.grid_indices, w.grid_sizes, w.grid_names
    w.grid_indices, w.grid_names = [w.binding(i) for i in indices], body.axes
    w.grid_sizes = {a: w.binding(n) for a, n in zip(body.sizes, sizes)}
    region = w.region(body.jaxpr, dict(zip(body.jaxpr.invars, bindings, strict=True)))
    w.grid_indices, w.grid_sizes, w.grid_names = outer
    return OpParts(attrs=_messages.attributes({"name": body.name}), regions=[region], primitive="call")


@_rule("window_load")
def _window_load(w: Walker, eqn: Any) -> OpParts:
    ref, *starts = eqn.invars
    return OpParts([w.window(ref, starts, [p.size for p in eqn.params["parts"]])], primitive="load")


@_rule("window_store")
def _window_store(w: Walker, eqn: Any) -> OpParts:
    ref, value, *starts = eqn.invars
    operands = [w.window(ref, starts, [p.size for p in eqn.params["parts"]]), w.operand(value)]
    return OpParts(operands, primitive="store")


@_rule("scan")
def _scan(w: Walker, eqn: Any) -> OpParts:
    params = eqn.params
    consts, carries = _versions.scan_counts(params)
    jaxpr, _ = _versions.open_jaxpr(params["jaxpr"])
    bound = w.bind(jaxpr.invars[:consts], eqn.invars[:consts])
    counters = _walk.natural_counters(w, jaxpr, bound, jaxpr.invars[consts : consts + carries], eqn.invars[consts:])
    body = w.region(params["jaxpr"], bound, jaxpr.invars[consts:], naturals=counters)
    attrs = {
        "length": int(params["length"]),
        "num_carry": sum(len(_messages.physical(v.aval)) for v in jaxpr.invars[consts : consts + carries]),
        "reverse": _unless(bool(params["reverse"]), False),
        "unroll": _unless(int(params["unroll"]), 1),
    }
    return OpParts(w.operands(eqn.invars[consts:]), _messages.attributes(attrs), [body])


@_rule("while")
def _while(w: Walker, eqn: Any) -> OpParts:
    params = eqn.params
    cond, _ = _versions.open_jaxpr(params["cond_jaxpr"])
    if cond.outvars[0].aval.shape:
        return _while_of_arrays(w, eqn)
    in_cond, in_body, carries = _split(eqn.invars, params["cond_nconsts"], params["body_nconsts"])
    regions = []
    for key, consts in (("cond_jaxpr", in_cond), ("body_jaxpr", in_body)):
        jaxpr, _ = _versions.open_jaxpr(params[key])
        bound = w.bind(jaxpr.invars[: len(consts)], consts)
        # A loop's condition is analysed as a whole, for its trip count.
        is_body = key == "body_jaxpr"
        carried = jaxpr.invars[len(consts) :]
        counters = _walk.natural_counters(w, jaxpr, bound, carried, carries) if is_body else ()
        regions.append(w.region(params[key], bound, carried, ranges=is_body, naturals=counters))
    return OpParts(w.operands(carries), regions=regions)


def _while_of_arrays(w: Walker, eqn: Any) -> OpParts:
    """A loop under `vmap`: each element runs until its own condition is false (as JAX lowers it)."""
    return _expand.call_logically(w, eqn, _expand.batched_while(eqn))


@_rule("cond")
def _cond(w: Walker, eqn: Any) -> OpParts:
    index, *captured = eqn.invars
    regions = []
    for branch in eqn.params["branches"]:
        jaxpr, _ = _versions.open_jaxpr(branch)
        regions.append(w.region(branch, w.bind(jaxpr.invars, captured)))
    return OpParts([w.operand(index)], regions=regions)


# ------------------------------------------------------------------------------------------ ids, hints, debugging


@_rule("axis_index")
def _axis_index(w: Walker, eqn: Any) -> OpParts:
    return OpParts(attrs=_messages.attributes({"axis": w.axes(eqn.params["axis_name"])}))


@_rule("multiple_of")
def _multiple_of(w: Walker, eqn: Any) -> OpParts:
    values = eqn.params["values"]
    values = tuple(values) if isinstance(values, (tuple, list)) else (values,)
    if any(isinstance(n, bool) or not isinstance(n, (int, np.integer)) for n in values):
        raise InvalidKernel(f"a hint that is no number\n  expected: whole numbers\n  got: {values}\n  remedy: name the steps of the index")
    return OpParts([w.operand(eqn.invars[0])], _messages.attributes({"values": values}))


@_rule("layout_cast")
def _layout_cast(w: Walker, eqn: Any) -> OpParts:
    x, *leaves = eqn.invars
    tree = eqn.params.get("transforms_tree")
    operand = _refs(w, [x], [tree], leaves)
    return OpParts(operand, _messages.attributes({"new_layout": _messages.layout(eqn.params["new_layout"])}))


@_rule("print_layout")
def _print_layout(w: Walker, eqn: Any) -> OpParts:
    x, *leaves = eqn.invars
    operands = _refs(w, [x], [eqn.params["transforms_tree"]], leaves)
    return OpParts(operands, _messages.attributes({"fmt": eqn.params["fmt"]}))


@_rule("debug_print")
def _debug_print(w: Walker, eqn: Any) -> OpParts:
    params = eqn.params
    for aval in (atom.aval for atom in eqn.invars):
        if _versions.is_ref_aval(aval):
            raise InvalidKernel(
                "a reference as an argument of a print\n  expected: scalars and arrays"
                f"\n  got: {aval}\n  remedy: load it first: ref[...]"
            )
    fmt, has_fields, args = prints.text(params, eqn.invars)
    attrs = {
        "fmt": fmt,
        "has_placeholders": has_fields,
        "ordered": _unless(bool(params.get("ordered", False)), False),
        "partitioned": _unless(bool(params.get("partitioned", False)), False),
    }
    return OpParts([w.operand(arg) for arg in args], _messages.attributes(attrs))


@_rule("check")
def _check(w: Walker, eqn: Any) -> OpParts:
    messages = _check_messages(eqn)
    if eqn.params.get("debug", False) and not _versions.debug_checks_are_enabled():
        return OpParts(w.operands(eqn.invars), _messages.attributes({"messages": messages}))
    failed, fmt, args = prints.check(eqn.params["err_tree"].unflatten(eqn.invars))
    return OpParts([w.operand(arg) for arg in (failed, *args)], _messages.attributes({"enabled": True, "fmt": fmt, "messages": messages}))


def _check_messages(eqn: Any) -> Message | None:
    """The texts of a checkify error: one for each code in its tree."""
    error = eqn.params["err_tree"].unflatten(list(range(len(eqn.invars))))
    metadata = getattr(error, "_metadata", None)
    if not metadata:
        return None
    texts = []
    for _, tree in sorted(metadata.items()):
        exception = tree.unflatten([0] * tree.num_leaves)
        texts.append(str(getattr(exception, "fmt_string", "") or exception))
    return _messages.numbered_attributes(texts)


@_rule("inline_ptx")
def _inline_ptx(w: Walker, eqn: Any) -> OpParts:
    params = eqn.params
    args, leaves = _split(eqn.invars, params["num_args"])
    chains = w.leaves(params["transforms_tree"], leaves)
    operands = [w.operand(arg) if chain is None else w.ref(arg, chain) for arg, chain in zip(args, chains)]
    attrs = {
        "text": params["text"],
        "pack": _unless(params["pack"], 1),
        "once": _unless(params["once"], False),
        "barriers": params["barriers"],
        "called": params["called"],
        "unchecked": _unless(params["unchecked"], 0),
    }
    if params["layouts"] is not None:
        of_args, of_results = params["layouts"]
        values = [(v.aval, layout, f"operand {i}") for i, (v, layout, chain) in enumerate(zip(args, of_args, chains)) if chain is None]
        values += [(v.aval, layout, f"result {i}") for i, (v, layout) in enumerate(zip(eqn.outvars, of_results))]
        arrays = [_mlir.array(aval.shape, aval.dtype, layout, what) for aval, layout, what in values]
        attrs |= {"whole": True, "words": True, "arrays": _mlir.arrays(arrays)}
    return OpParts(operands, _messages.attributes(attrs))


@_rule("access")
def _access(w: Walker, eqn: Any) -> OpParts:
    params = eqn.params
    access = params["access"]
    (ref,), leaves, operands = _split(eqn.invars, 1, _leaves(params["tree"]))
    chain = w.leaves(params["tree"], leaves)
    space, strides = w.place(ref, chain)
    if params["along"]:
        _primitives.check_array(access.called, params["shape"], space.lower())
        if strides is None:
            raise InvalidKernel(
                f"{access.called} of a view that is no slice\n  expected: a reference to GMEM, indexed by integers, slices and arrays of integers"
                "\n  remedy: index the reference itself"
            )
    far = "shared::cluster" if _versions.is_cluster_ref(chain) else "shared"
    text = access.text("global" if space == "GMEM" else far, [strides[d] for d in params["along"]] if strides else ())
    attrs = {"text": text, "once": _unless(not params["shape"], False), "called": access.called}
    return OpParts([w.ref(ref, chain), *w.operands(operands)], _messages.attributes(attrs), primitive="inline_ptx")


@_rule("inline_mgpu")
def _inline_mgpu_rule(w: Walker, eqn: Any) -> OpParts:
    params = eqn.params
    types, function = params["flat_arg_types"], params["mgpu_fn"]
    if _versions.is_inline_ptx_helper(function):
        closure = dict(zip(function.__code__.co_freevars, (cell.cell_contents for cell in function.__closure__ or ())))
        return OpParts(attrs=_messages.attributes({"function": function.__qualname__, "constants": _messages.named_attributes({"asm": closure["asm"]})}))
    atoms, leaves = _split(eqn.invars, len(types))
    chains = w.leaves(params["pytree_ref_transforms"], leaves)
    args: list[_mlir.Array | _mlir.Reference | _mlir.Barrier] = []
    operands = []
    for i, (atom, chain, ty) in enumerate(zip(atoms, chains, types)):
        if hasattr(ty, "to_mgpu"):
            args.append(_mlir.array(atom.aval.shape, atom.aval.dtype, ty, f"argument {i}"))
            operands.append(w.operand(atom))
        else:
            args.append(_reference_of(w, atom, chain or (), ty))
            operands.append(w.ref(atom, chain or ()))
    results = [_mlir.array(ty.shape, ty.dtype, ty.layout, f"result {i}") for i, ty in enumerate(params["flat_ret_ty"])]
    x, y, z = (*reversed(w.cluster), 1, 1, 1)[:3]
    text, maps = _mlir.translate(function, args, params["pytree_args"], results, params["pytree_ret_ty"], (x, y, z))
    return OpParts(operands, _mlir.attributes(args, results, text, maps), primitive="inline_ptx")


def _reference_of(w: Walker, atom: Any, chain: Sequence[Any], ty: Any) -> _mlir.Reference | _mlir.Barrier:
    if not w.is_whole(atom):
        raise Unsupported(
            "a block of pl.pallas_call as a reference\n  expected: a plgpu.kernel, whose references are buffers"
            "\n  got: a block that smalt moves\n  remedy: pass the block's elements (ref[...]) as an array, with a layout in arg_types"
        )
    if type(atom.aval.inner_aval.dtype).__name__ in ("BarrierType", "ClusterBarrierType"):
        return _mlir.Barrier(_versions.is_cluster_ref(chain))
    kind = _messages.memory_space(atom.aval)
    if kind not in ("SMEM", "GMEM") or not _messages.is_dtype(atom.aval.inner_aval.dtype):
        raise Unsupported(
            f"a reference to {atom.aval}\n  expected: references to numbers in SMEM or GMEM, and barriers\n  got: {atom.aval}"
            "\n  remedy: accumulators and semaphores are for plgpu's operations, outside of the function"
        )
    inner, shared = atom.aval.inner_aval, kind == "SMEM"
    if shared and w.chooses_transforms:
        chain = _mlir.chosen(inner.shape, chain, ty.transforms)
    return _mlir.reference(inner.shape, inner.dtype, shared, chain, ty.transforms)


# ------------------------------------------------------------------------------------------ memory


def _complex_access(w: Walker, eqn: Any, ref: Any, transforms: Sequence[Any], value: Any = None) -> OpParts:
    """A load or store of complex numbers: of the real parts, and of the imaginary ones."""
    if value is not None and eqn.outvars and w.is_used(eqn.outvars[0]):
        raise Unsupported(
            "not supported yet: a swap of complex numbers whose old value is used\n  remedy: load the old value before the store"
        )
    views = [w.part(ref, transforms, i) for i in range(2)]
    if value is None:
        part = _messages.physical(eqn.outvars[0].aval)[0]
        region = w.written(lambda emit: [emit("load", [view], part) for view in views])
    else:
        stored = w.operands([value])

        def write(emit: Emit) -> list[Message]:
            for view, x in zip(views, stored, strict=True):
                emit("store", [view, x])
            return []

        region = w.written(write)
    results = None if value is None else ()
    return OpParts(attrs=_messages.attributes({"name": eqn.primitive.name}), regions=[region], primitive="call", results=results)


def _access_in_window(w: Walker, eqn: Any, transforms: Sequence[Any], value: Any = None, mask: Any = None, other: Any = None) -> OpParts:
    """A load or a store of part of a block that may reach outside of its array; `mask`, `other`: of a load."""
    ref = eqn.invars[0]
    uses_old = value is not None and bool(eqn.outvars) and w.is_used(eqn.outvars[0])

    def write(emit: Emit) -> list[Message]:
        operand, shape = w.in_window(ref, transforms, emit)
        dtype = ref.aval.inner_aval.dtype
        results = []
        if value is None or uses_old:
            loaded = emit("load", [operand], _versions.array_aval(shape, dtype))
            new = tuple(eqn.outvars[0].aval.shape)
            loaded = _reshaped(emit, loaded, shape, new, dtype)
            if mask is not None and other is not None:
                cases = [_broadcast(w, emit, other, new, dtype), loaded]
                loaded = emit("select_n", [_broadcast(w, emit, mask, new, np.dtype(bool)), *cases], _versions.array_aval(new, dtype))
            results.append(loaded)
        if value is not None:
            emit("store", [operand, _reshaped(emit, w.operand(value), value.aval.shape, shape, dtype)])
        return results

    results = None if value is None or uses_old else ()
    return OpParts(attrs=_messages.attributes({"name": eqn.primitive.name}), regions=[w.written(write)], primitive="call", results=results)


def _reshaped(emit: Emit, x: Message, shape: Sequence[int], new: Sequence[int], dtype: Any) -> Message:
    if tuple(shape) == tuple(new):
        return x
    name = "reshape" if shape else "broadcast_in_dim"
    attrs = {"new_sizes": tuple(new)} if shape else {"broadcast_dimensions": (), "shape": tuple(new)}
    return emit(name, [x], _versions.array_aval(tuple(new), dtype), _messages.attributes(attrs))


def _broadcast(w: Walker, emit: Emit, leaf: Any, shape: tuple[int, ...], dtype: Any) -> Message:
    """An operand of an access as an array of its elements."""
    x, aval = w.dynamic(leaf), leaf.atom.aval
    if aval.dtype != dtype:
        x = emit("convert_element_type", [x], _versions.array_aval(aval.shape, dtype), _messages.attributes({"new_dtype": dtype}))
    if tuple(aval.shape) == shape:
        return x
    dims = tuple(range(len(shape) - len(aval.shape), len(shape)))
    return emit("broadcast_in_dim", [x], _versions.array_aval(shape, dtype), _messages.attributes({"broadcast_dimensions": dims, "shape": shape}))


def _optimized(eqn: Any) -> bool | None:
    return None if eqn.params.get("optimized", True) else False


def _view_of(w: Walker, eqn: Any, leaves: Sequence[Any]) -> Any:
    tree = eqn.params["tree"]
    return () if tree is None else w.leaves(tree, leaves)


@_rule("load")
def _load(w: Walker, eqn: Any) -> OpParts:
    ref, *leaves = eqn.invars
    return _loaded(w, eqn, ref, _view_of(w, eqn, leaves))


def _loaded(w: Walker, eqn: Any, ref: Any, transforms: Sequence[Any]) -> OpParts:
    if _messages.is_complex_ref(ref.aval):
        return _complex_access(w, eqn, ref, transforms)
    if w.is_window(ref):
        return _access_in_window(w, eqn, transforms)
    attrs, shaped = _messages.attributes({"optimized": _optimized(eqn)}), eqn.outvars[0].aval
    load = _walk.strided_load(transforms, shaped.dtype, tuple(shaped.shape))
    if load is None:
        return OpParts([w.ref(ref, transforms)], attrs, primitive="load")

    def write(emit: Emit) -> list[Message]:
        loaded = emit("load", [w.ref(ref, load.transforms)], _versions.array_aval(load.shape, shaped.dtype), attrs)
        return [emit(load.primitive, [loaded], shaped, _messages.attributes(load.params))]

    return OpParts(attrs=_messages.attributes({"name": "load"}), regions=[w.written(write)], primitive="call")


@_rule("store")
def _store(w: Walker, eqn: Any) -> OpParts:
    ref, value, *leaves = eqn.invars
    if _messages.is_complex_ref(ref.aval):
        return _complex_access(w, eqn, ref, _view_of(w, eqn, leaves), value)
    operands = [*_refs(w, [ref], [eqn.params["tree"]], leaves), w.operand(value)]
    return OpParts(operands, _messages.attributes({"optimized": _optimized(eqn)}))


@_rule("swap")
def _swap(w: Walker, eqn: Any) -> OpParts:
    ref, value, *leaves = eqn.invars
    return _swapped(w, eqn, ref, _view_of(w, eqn, leaves), value)


def _swapped(w: Walker, eqn: Any, ref: Any, transforms: Sequence[Any], value: Any) -> OpParts:
    """A store: a swap whose result is not used."""
    if _messages.is_complex_ref(ref.aval):
        return _complex_access(w, eqn, ref, transforms, value)
    if w.is_window(ref):
        return _access_in_window(w, eqn, transforms, value)
    operands = [w.ref(ref, transforms), w.operand(value)]
    if w.is_used(eqn.outvars[0]):
        return OpParts(operands, primitive="swap")
    return OpParts(operands, primitive="store", results=())


@_rule("addupdate")
def _addupdate(w: Walker, eqn: Any) -> OpParts:
    ref, value, *leaves = eqn.invars
    return OpParts([*_refs(w, [ref], [eqn.params["tree"]], leaves), w.operand(value)])


@_rule("masked_load", "masked_swap")
def _masked(w: Walker, eqn: Any) -> OpParts:
    """Hints (`eviction_policy`, `cache_modifier`) change nothing."""
    if eqn.params.get("is_volatile", False):
        return _expand.call(w, eqn, triton.volatile_load(eqn))
    leaf, transforms, *rest = w.leaves(eqn.params["args_tree"], eqn.invars)
    ref, is_load = leaf.atom, eqn.primitive.name == "masked_load"
    if rest[0 if is_load else 1] is None:
        return _loaded(w, eqn, ref, transforms) if is_load else _swapped(w, eqn, ref, transforms, rest[0].atom)
    if _messages.is_complex_ref(ref.aval):
        raise Unsupported(
            "not supported yet: masked accesses to complex numbers"
            "\n  remedy: keep real and imaginary parts in arrays of their own, or choose with jnp.where"
        )
    if w.is_window(ref):
        return _access_in_window(w, eqn, transforms, None, *rest)
    if (function := triton.beyond(eqn)) is not None:
        return _expand.call(w, eqn, function)
    if not is_load and w.is_used(eqn.outvars[0]):
        return _expand.call(w, eqn, triton.exchange(eqn))
    operands = [w.ref(ref, transforms), *(ABSENT if x is None else w.dynamic(x) for x in rest)]
    return OpParts(operands) if is_load else OpParts(operands, results=())


@_rule("atomic_store")
def _atomic_store(w: Walker, eqn: Any) -> OpParts:
    ref, transforms, value, *_ = w.leaves(eqn.params["args_tree"], eqn.invars)
    attrs = {"atomic": _text(eqn.params["atomic_type"]), "optimized": _optimized(eqn)}
    return OpParts([w.ref(ref.atom, transforms or ()), w.dynamic(value)], _messages.attributes(attrs))


def _leader_tracked(params: dict[str, Any]) -> dict[str, Any]:
    tracked = params.get("leader_tracked")
    if tracked is None:
        return {}
    if hasattr(tracked, "axis"):
        return {"leader_tracked": "partitioned", "partition_axis": int(tracked.axis)}
    return {"leader_tracked": "replicated"}


@_rule("copy_gmem_to_smem")
def _copy_gmem_to_smem(w: Walker, eqn: Any) -> OpParts:
    params = eqn.params
    args = list(eqn.invars)
    predicate = _predicate(w, eqn, args)
    has_barrier = params.get("has_barrier", True)
    refs, leaves = _split(args, 3 if has_barrier else 2)
    if not has_barrier:
        refs.append(None)
    trees = [params[f"{which}_transforms_treedef"] for which in ("src", "dst", "barrier")]
    operands = [*_refs(w, refs, trees, leaves), predicate]
    oob = _text(params.get("oob_mode"))
    attrs = {
        "collective_axes": w.axes(params["collective_axes"]),
        "oob_mode": _unless(oob, "zeros"),
        **_leader_tracked(params),
    }
    return OpParts(operands, _messages.attributes(attrs))


@_rule("copy_smem_to_gmem")
def _copy_smem_to_gmem(w: Walker, eqn: Any) -> OpParts:
    params = eqn.params
    args = list(eqn.invars)
    predicate = _predicate(w, eqn, args)
    refs, leaves = _split(args, 2)
    trees = [params["src_transforms_treedef"], params["dst_transforms_treedef"]]
    attrs = {"commit_group": _unless(params["commit_group"], True), "reduction_op": _text(params["reduction_op"])}
    return OpParts([*_refs(w, refs, trees, leaves), predicate], _messages.attributes(attrs))


@_rule("wait_smem_to_gmem")
def _wait_smem_to_gmem(w: Walker, eqn: Any) -> OpParts:
    read_only = _unless(bool(eqn.params["wait_read_only"]), False)
    return OpParts(attrs=_messages.attributes({"n": _versions.count_param(eqn), "wait_read_only": read_only}))


@_rule("wait_gmem_to_smem", "wgmma_wait")
def _counted_wait(w: Walker, eqn: Any) -> OpParts:
    return OpParts(attrs=_messages.attributes({"n": _versions.count_param(eqn)}))


@_rule("async_prefetch")
def _async_prefetch(w: Walker, eqn: Any) -> OpParts:
    args = list(eqn.invars)
    predicate = _predicate(w, eqn, args)
    ref, *leaves = args
    attrs = {"collective_axes": w.axes(eqn.params["collective_axes"]), **_leader_tracked(eqn.params)}
    return OpParts([*_refs(w, [ref], [eqn.params["ref_transforms_treedef"]], leaves), predicate], _messages.attributes(attrs))


@_rule("async_store_smem")
def _async_store_smem(w: Walker, eqn: Any) -> OpParts:
    params = eqn.params
    value, ref, barrier, cluster_index, *leaves = eqn.invars
    trees = [params["ref_transforms_treedef"], params["barrier_transforms_treedef"]]
    operands = [w.operand(value), *_refs(w, [ref, barrier], trees, leaves), w.operand(cluster_index)]
    attrs = {
        "cluster_axis": w.axes(params["cluster_dim"]),
        "atomic": _text(params["atomic"]),
        "optimized": _optimized(eqn),
    }
    return OpParts(operands, _messages.attributes(attrs))


@_rule("multimem_store")
def _multimem_store(w: Walker, eqn: Any) -> OpParts:
    value, ref, *leaves = eqn.invars
    operands = [w.operand(value), *_refs(w, [ref], [eqn.params["transforms_tree"]], leaves)]
    return OpParts(operands, _messages.attributes({"collective_axes": w.mesh_axes_of(eqn.params["collective_axes"])}))


@_rule("multimem_load_reduce")
def _multimem_load_reduce(w: Walker, eqn: Any) -> OpParts:
    ref, *leaves = eqn.invars
    attrs = {
        "collective_axes": w.mesh_axes_of(eqn.params["collective_axes"]),
        "reduction_op": _text(eqn.params["reduction_op"]),
    }
    return OpParts(_refs(w, [ref], [eqn.params["tree"]], leaves), _messages.attributes(attrs))


# ------------------------------------------------------------------------------------------ barriers, semaphores, launch


@_rule("barrier_arrive")
def _barrier_arrive(w: Walker, eqn: Any) -> OpParts:
    args = list(eqn.invars)
    predicate = _predicate(w, eqn, args)
    barrier, *leaves = args
    return OpParts([*_refs(w, [barrier], [eqn.params["transforms_treedef"]], leaves), predicate])


@_rule("barrier_wait", "barrier_arrive_and_wait", "barrier_test")
def _barrier(w: Walker, eqn: Any) -> OpParts:
    barrier, *leaves = eqn.invars
    return OpParts(_refs(w, [barrier], [eqn.params["transforms_treedef"]], leaves))


@_rule("mbarrier_arrive", "mbarrier_expect", "mbarrier_wait")
def _mbarrier(w: Walker, eqn: Any) -> OpParts:
    barrier, number, *leaves = eqn.invars
    names = {"mbarrier_arrive": ("by", "relaxed", "scope"), "mbarrier_expect": ("arrives",), "mbarrier_wait": ("relaxed", "scope")}
    attrs = {name: eqn.params[name] for name in names[_versions.primitive_name(eqn)]}
    operands = [*_refs(w, [barrier], [eqn.params["transforms_tree"]], leaves), w.operand(number)]
    return OpParts(operands, _messages.attributes(attrs))


def _device(w: Walker, device_id: Any, kind: str = "MESH") -> Message:
    return ABSENT if device_id is None else message("Operand", device=w.device_id(device_id, kind))


def _dynamic(w: Walker, x: Any) -> Message:
    return ABSENT if x is None else w.dynamic(x)


@_rule("semaphore_signal")
def _semaphore_signal(w: Walker, eqn: Any) -> OpParts:
    ref, transforms, value, device_id, core_index = w.leaves(eqn.params["args_tree"], eqn.invars)
    device = _device(w, device_id, eqn.params["device_id_type"].name)
    operands = [w.ref(ref.atom, transforms), w.dynamic(value), device, _dynamic(w, core_index)]
    attrs = {
        "device_id_type": None if device_id is None else _text(eqn.params["device_id_type"]),
        "memory_scope": _unless(eqn.params.get("memory_scope", "sys"), "sys"),
    }
    return OpParts(operands, _messages.attributes(attrs))


@_rule("semaphore_wait")
def _semaphore_wait(w: Walker, eqn: Any) -> OpParts:
    ref, transforms, value, decrement = w.leaves(eqn.params["args_tree"], eqn.invars)
    operands = [w.ref(ref.atom, transforms), w.dynamic(value), w.dynamic(decrement)]
    scope = _unless(eqn.params.get("memory_scope", "sys"), "sys")
    return OpParts(operands, _messages.attributes({"memory_scope": scope}))


@_rule("semaphore_read")
def _semaphore_read(w: Walker, eqn: Any) -> OpParts:
    ref, transforms = w.leaves(eqn.params["args_tree"], eqn.invars)
    if _messages.is_semaphore_of_copies(ref.atom.aval):
        raise Unsupported(
            "not supported yet: the count of a semaphore of a TPU's copies\n  expected: start() and wait() of pltpu.make_async_copy(...), which are"
            " all that is done with it: a copy is over when it has begun\n  remedy: leave it out, or count in scratch (pltpu.SMEM)"
        )
    return OpParts([w.ref(ref.atom, transforms)])


@_rule("semaphore_signal_parallel")
def _semaphore_signal_parallel(w: Walker, eqn: Any) -> OpParts:
    refs, transforms, values, device_ids = w.leaves(eqn.params["args_tree"], eqn.invars)
    signals = []
    for ref, chain, value, device_id in zip(refs, transforms, values, device_ids):
        group = [w.ref(ref.atom, chain), w.dynamic(value), _device(w, device_id)]
        signals.append(message("Operand", list=message("OperandList", operands=group)))
    return OpParts(signals)


@_rule("semaphore_signal_multicast")
def _semaphore_signal_multicast(w: Walker, eqn: Any) -> OpParts:
    ref, transforms, value = w.leaves(eqn.params["args_tree"], eqn.invars)
    axes = w.mesh_axes_of(eqn.params["collective_axes"])
    return OpParts([w.ref(ref.atom, transforms), w.dynamic(value)], _messages.attributes({"collective_axes": axes}))


@_rule("set_max_registers")
def _set_max_registers(w: Walker, eqn: Any) -> OpParts:
    return OpParts(attrs=_messages.attributes({"n": _versions.count_param(eqn), "action": eqn.params["action"]}))


@_rule("try_cluster_cancel")
def _try_cluster_cancel(w: Walker, eqn: Any) -> OpParts:
    result, barrier, *leaves = eqn.invars
    trees = [eqn.params["result_transforms_tree"], eqn.params["barrier_transforms_tree"]]
    axes = w.axes(eqn.params.get("collective_axes"))
    return OpParts(_refs(w, [result, barrier], trees, leaves), _messages.attributes({"collective_axes": axes}))


@_rule("query_cluster_cancel")
def _query_cluster_cancel(w: Walker, eqn: Any) -> OpParts:
    result, *leaves = eqn.invars
    axes = w.axes(tuple(eqn.params["grid_names"]))
    return OpParts(_refs(w, [result], [eqn.params["transforms_tree"]], leaves), _messages.attributes({"grid_axes": axes}))


# ------------------------------------------------------------------------------------------ tensor cores


@_rule("wgmma")
def _wgmma(w: Walker, eqn: Any) -> OpParts:
    args, leaves = _split(eqn.invars, 3)
    trees = [eqn.params[f"{which}_transforms_tree"] for which in ("acc", "a", "b")]
    return OpParts(_refs(w, args, trees, leaves))


@_rule("wgmma_accumulator_deref")
def _wgmma_accumulator_deref(w: Walker, eqn: Any) -> OpParts:
    wait_n = eqn.params["wait_n"]
    attrs = {"wait": False} if wait_n is None else {"wait_n": int(wait_n)}
    return OpParts(w.operands(eqn.invars), _messages.attributes(attrs))


@_rule("tcgen05_mma")
def _tcgen05_mma(w: Walker, eqn: Any) -> OpParts:
    params = eqn.params
    (acc, a, b, accumulate), rest = _split(eqn.invars, 4)
    names = ["barrier", "a_scale", "b_scale", "a_sparse_metadata"]
    present = [params["arrive"], params["scaled"], params["scaled"], params["sparse"]]
    refs = [rest.pop(0) if there else None for there in present]
    trees = [params[f"{name}_transforms_tree"] for name in ["acc", "a", "b", *names]]
    acc_op, a_op, b_op, *optional = _refs(w, [acc, a, b, *refs], trees, rest)
    attrs = {
        "arrive": _unless(bool(params["arrive"]), False),
        "collective_axis": w.axes(params["collective_axis"]),
    }
    return OpParts([acc_op, a_op, b_op, w.operand(accumulate), *optional], _messages.attributes(attrs))


@_rule("tcgen05_commit_arrive")
def _tcgen05_commit_arrive(w: Walker, eqn: Any) -> OpParts:
    args = list(eqn.invars)
    predicate = _predicate(w, eqn, args)
    barrier, *leaves = args
    operands = [*_refs(w, [barrier], [eqn.params["barrier_transforms_tree"]], leaves), predicate]
    return OpParts(operands, _messages.attributes({"collective_axis": w.axes(eqn.params["collective_axis"])}))


@_rule("async_load_tmem")
def _async_load_tmem(w: Walker, eqn: Any) -> OpParts:
    ref, *leaves = eqn.invars
    reduce = _text(eqn.params.get("reduce"))
    return OpParts(_refs(w, [ref], [eqn.params["tree"]], leaves), _messages.attributes({"reduce": reduce}))


@_rule("async_store_tmem")
def _async_store_tmem(w: Walker, eqn: Any) -> OpParts:
    ref, value, *leaves = eqn.invars
    return OpParts([*_refs(w, [ref], [eqn.params["tree"]], leaves), w.operand(value)])


@_rule("async_copy_smem_to_tmem", "async_copy_scales_to_tmem", "async_copy_sparse_metadata_to_tmem")
def _async_copy_to_tmem(w: Walker, eqn: Any) -> OpParts:
    refs, leaves = _split(eqn.invars, 2)
    operands = _refs(w, refs, [eqn.params["smem_tree"], eqn.params["tmem_tree"]], leaves)
    return OpParts(operands, _messages.attributes({"collective_axis": w.axes(eqn.params.get("collective_axis"))}))


# ------------------------------------------------------------------------------------------ arrays

# They mean nothing inside a kernel.
_DROPPED = frozenset({"sharding", "out_sharding", "weak_type", "mesh", "name", "ctx_mesh", "mode_name"})


def _precision(precision: Any) -> str | None:
    """Of each operand its `Precision`, or the algorithm: a preset's name, which one that is written out has, too."""
    if hasattr(precision, "lhs_component_count"):
        counts = (precision.lhs_component_count, precision.rhs_component_count, precision.num_primitive_operations)
        of = (precision.lhs_precision_type, precision.rhs_precision_type, precision.accumulation_type)
        short = [np.dtype(t).name.replace("bfloat", "bf").replace("float", "f") for t in of]
        return "_".join(short) if counts == (1, 1, 1) else "_".join([*short, *map(str, counts)])
    if isinstance(precision, tuple):
        return "+".join(_text(p) or "none" for p in precision)
    return _text(precision)


@_rule("dot_general")
def _dot_general(w: Walker, eqn: Any) -> OpParts:
    params = eqn.params
    (lhs_contracting, rhs_contracting), (lhs_batch, rhs_batch) = params["dimension_numbers"]
    attrs = {
        "lhs_contracting": tuple(lhs_contracting),
        "rhs_contracting": tuple(rhs_contracting),
        "lhs_batch": tuple(lhs_batch),
        "rhs_batch": tuple(rhs_batch),
        "preferred_element_type": params["preferred_element_type"],
        "precision": _precision(params["precision"]),
    }
    return OpParts(w.operands(eqn.invars), _messages.attributes(attrs))


@_rule("conv_general_dilated")
def _conv_general_dilated(w: Walker, eqn: Any) -> OpParts:
    return _expand.call_logically(w, eqn, _expand.convolution(eqn.params, eqn.outvars[0].aval))


@_rule("pad")
def _pad(w: Walker, eqn: Any) -> OpParts:
    flat = tuple(n for dim in eqn.params["padding_config"] for n in dim)
    return OpParts(w.operands(eqn.invars), _messages.attributes({"padding_config": flat}))


_OF_ARRAYS = (_dot_general, _pad)


def _generic_attrs(params: dict[str, Any]) -> list[Message]:
    attrs, opaque = {}, []
    for name, value in params.items():
        if name in _DROPPED or value is None or _versions.is_jaxpr(value):
            continue
        try:
            attrs[name] = _messages.attr(name, value)
        except _messages.Opaque:
            opaque.append(name)
    if opaque:
        attrs["opaque"] = _messages.attr("opaque", _messages.numbered_attributes(sorted(opaque)))
    return [attrs[name] for name in sorted(attrs)]


def _generic(w: Walker, eqn: Any) -> OpParts:
    jaxprs = {name: p for name, p in sorted(eqn.params.items()) if _versions.is_jaxpr(p)}
    if len(jaxprs) == 1 and _is_call(eqn, next(iter(jaxprs.values()))):
        return _call(w, eqn)
    operands = w.operands(eqn.invars)
    regions = [w.region(p, params=_versions.open_jaxpr(p)[0].invars) for p in jaxprs.values()]
    return OpParts(operands, _generic_attrs(eqn.params), regions)


def _is_call(eqn: Any, closed: Any) -> bool:
    jaxpr, _ = _versions.open_jaxpr(closed)
    same = [
        len(jaxpr.invars) == len(eqn.invars),
        len(jaxpr.outvars) == len(eqn.outvars),
        all(_signature(v) == _signature(a) for v, a in zip(jaxpr.invars, eqn.invars)),
        all(_signature(v) == _signature(a) for v, a in zip(jaxpr.outvars, eqn.outvars)),
    ]
    return all(same)


def _signature(atom: Any) -> tuple[Any, Any]:
    aval = atom.aval
    return getattr(aval, "shape", None), getattr(aval, "dtype", None)


_RULES.update(_expand.RULES | triton.RULES | dma.RULES)
