"""Primitives that are written as others: JAX's own definitions, traced and walked as a `call`.

A rule is a function of an equation that returns a function of the equation's operands, or None where the primitive is to be written
as it is. Operands and results are *physical*: a complex number is two real ones, a key array the `u32[..., 2]` of its data.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from smalt import _messages, _registry, _versions
from smalt._errors import Unsupported
from smalt._expand import complex, linalg, special
from smalt._walk import OpParts, Walker

Function = Callable[..., Any]
Rule = Callable[[Any], Function | None]
_RULES: dict[str, Rule] = {}


_rule = _registry.into(_RULES)


def definition(name: str, eqn: Any) -> Function | None:
    """A function of physical operands that computes the equation; None: write it as it is."""
    avals = [a.aval for a in (*eqn.invars, *eqn.outvars)]
    if any(_messages.is_complex(a) for a in avals):
        return complex.expansion(name, eqn)
    if name in _RULES:
        return _RULES[name](eqn)
    if any(_messages.is_key(a) for a in avals):
        return _on_keys(name, eqn)
    return _versions.defined_by_jax(eqn) if _versions.has_definition(name) else None


def call(w: Walker, eqn: Any, function: Function) -> OpParts:
    """An equation as a call of a function of its physical operands."""
    name = _versions.primitive_name(eqn)
    operands, results = [a.aval for a in eqn.invars], [a.aval for a in eqn.outvars]
    wide = name in (*special.FUNCTIONS, "mulhi") or any(_is_wide(a) for a in (*operands, *results))
    body = w.expansion(trace(function, operands, results, wide), eqn.invars)
    return OpParts(attrs=_messages.attributes({"name": name}), regions=[body], primitive="call")


def call_logically(w: Walker, eqn: Any, function: Function) -> OpParts:
    """The same of a function of the equation's own operands."""
    return call(w, eqn, logically(function, [a.aval for a in eqn.invars]))


def _is_wide(aval: Any) -> bool:
    return any(isinstance(p.dtype, np.dtype) and p.dtype.itemsize == 8 for p in _messages.physical(aval) if hasattr(p, "dtype"))


def trace(function: Function, operands: Sequence[Any], results: Sequence[Any], wide: bool = False) -> Any:
    """The jaxpr of a function of physical operands, whose results have these types; `wide`: with 64-bit types."""
    avals = [p for aval in operands for p in _messages.physical(aval)]
    wanted = [p for aval in results for p in _messages.physical(aval)]

    def typed(*args: Any) -> list[Any]:
        out = jax.tree.leaves(function(*args))
        return [_as(x, aval) for x, aval in zip(out, wanted, strict=True)]

    with _versions.tracing_mode(wide):
        return jax.make_jaxpr(typed)(*[a if _versions.is_ref_aval(a) else jax.ShapeDtypeStruct(a.shape, a.dtype) for a in avals])


def _as(x: Any, aval: Any) -> Any:
    x = lax.convert_element_type(x, aval.dtype)
    return jnp.broadcast_to(x, aval.shape) if x.shape != aval.shape else x


def logically(function: Function | None, avals: Sequence[Any]) -> Function:
    """A function of keys and complex numbers as one of what stands for them."""
    assert function is not None

    def physical(*args: Any) -> Any:
        rest = iter(args)
        wrapped = []
        for aval in avals:
            x = next(rest)
            if _messages.is_key(aval):
                x = jax.random.wrap_key_data(x, impl=aval.dtype._impl.name)
            elif _messages.is_complex(aval):
                x = lax.complex(x, next(rest))
            wrapped.append(x)
        out = []
        for x in jax.tree.leaves(function(*wrapped)):
            if _messages.is_key(x):
                out.append(jax.random.key_data(x))
            else:
                out += [lax.real(x), lax.imag(x)] if _messages.is_complex(x) else [x]
        return out

    return physical


def batched_while(eqn: Any) -> Function:
    """A `while` whose condition is an array: it runs until no element's is true, and keeps elements that are done."""
    params = eqn.params
    cond, body = params["cond_jaxpr"], params["body_jaxpr"]
    c, b = params["cond_nconsts"], params["body_nconsts"]

    def loop(*args: Any) -> Any:
        in_cond, in_body, carries = args[:c], args[c : c + b], args[c + b :]

        def holds(xs: Any) -> Any:
            return _versions.eval_jaxpr(cond, [*in_cond, *xs])[0]

        def step(xs: Any) -> Any:
            going = holds(xs)
            new = _versions.eval_jaxpr(body, [*in_body, *xs])
            return tuple(
                jnp.where(lax.broadcast_in_dim(going, x.shape, range(going.ndim)), y, x) for x, y in zip(xs, new, strict=True)
            )

        return lax.while_loop(lambda xs: jnp.any(holds(xs)), step, tuple(carries))

    return loop


# ------------------------------------------------------------------------------------------ nothing to do


@_rule(
    "copy_p", "name", "pin", "unpin", "reshard", "sharding_constraint", "layout_constraint", "relayout", "pvary", "reduced_vary_cast",
    "random_clone", "with_memory_space_constraint", "device_put",
)  # fmt: skip
def _identity(eqn: Any) -> Function:
    return lambda *xs: list(xs)[: len(eqn.outvars)]


@_rule("empty", "empty2")
def _empty(eqn: Any) -> Function:
    return lambda *_: [jnp.zeros(p.shape, p.dtype) for v in eqn.outvars for p in _messages.physical(v.aval)]


@_rule("platform_index")
def _platform_index(eqn: Any) -> Function:
    """Kernels are for CUDA wherever they run; else for whatever is the default."""
    groups = [tuple(p or ()) if isinstance(p, (tuple, list)) or p is None else (p,) for p in eqn.params["platforms"]]
    index = next((i for i, group in enumerate(groups) if "cuda" in group or "gpu" in group or not group), None)
    if index is None:
        raise Unsupported(
            f"not supported yet: platform_dependent without a branch for a GPU\n  got: {', '.join(str(g) for g in groups)}"
            "\n  remedy: give lax.platform_dependent a cuda= or a default= branch"
        )
    return lambda: jnp.int32(index)


# ------------------------------------------------------------------------------------------ random numbers


def _keys(eqn: Any) -> Any:
    """The implementation of an equation's keys."""
    impl = eqn.params.get("impl")
    for atom in (*eqn.invars, *eqn.outvars):
        if impl is None and _messages.is_key(atom.aval):
            impl = atom.aval.dtype._impl
    if impl is None or "rbg" in impl.tag:
        name = getattr(impl, "name", "unknown")
        raise Unsupported(
            f"not supported yet: random numbers of the implementation {name!r}, whose bits are those of XLA's own generator"
            "\n  remedy: use threefry keys: jax.random.key(seed, impl='threefry2x32')"
        )
    return impl


def _over(rank: int, f: Function) -> Function:
    for _ in range(rank):
        f = jax.vmap(f)
    return f


@_rule("random_wrap", "random_unwrap")
def _random_data(eqn: Any) -> Function:
    _keys(eqn)
    return lambda x: x


@_rule("random_seed")
def _random_seed(eqn: Any) -> Function:
    return _over(eqn.invars[0].aval.ndim, _keys(eqn).seed)


@_rule("random_split")
def _random_split(eqn: Any) -> Function:
    impl, shape = _keys(eqn), eqn.params["shape"]
    return _over(eqn.invars[0].aval.ndim, lambda k: impl.split(k, shape))


@_rule("random_bits")
def _random_bits(eqn: Any) -> Function:
    impl, width, shape = _keys(eqn), eqn.params["bit_width"], eqn.params["shape"]
    return _over(eqn.invars[0].aval.ndim, lambda k: impl.random_bits(k, width, shape))


@_rule("random_fold_in")
def _random_fold_in(eqn: Any) -> Function:
    impl = _keys(eqn)
    shape = eqn.outvars[0].aval.shape

    def fold_in(keys: Any, data: Any) -> Any:
        width = keys.shape[-len(impl.key_shape) :]
        keys = jnp.broadcast_to(keys, (*shape, *width))
        return _over(len(shape), impl.fold_in)(keys, jnp.broadcast_to(data, shape))

    return fold_in


@_rule("iota_2x32_shape")
def _iota_2x32(eqn: Any) -> Function:
    """The high and low halves of a 64-bit row-major iota; the high ones are zero in arrays that a kernel can hold."""
    shape = eqn.params["shape"]

    def iota() -> Any:
        low = lax.iota(np.uint32, math.prod(shape)).reshape(shape) if math.prod(shape) else jnp.zeros(shape, np.uint32)
        return jnp.zeros(shape, np.uint32), low

    return iota


@_rule("reshape")
def _reshape(eqn: Any) -> Function | None:
    """With its dimensions in another order first, as `vmap` of a reshape writes it."""
    order = eqn.params.get("dimensions")
    if _messages.is_key(eqn.invars[0].aval):
        return _on_keys("reshape", eqn)
    return None if order is None else lambda x, *_: lax.reshape(lax.transpose(x, order), eqn.outvars[0].aval.shape)


def _on_keys(name: str, eqn: Any) -> Function:
    """Array operations on whole keys: the same on their data, whose last dimension stays."""
    params = eqn.params
    width = next(a.aval.dtype._impl.key_shape for a in (*eqn.outvars, *eqn.invars) if _messages.is_key(a.aval))
    rank, out = eqn.invars[0].aval.ndim, eqn.outvars[0].aval
    n = len(width)
    whole = tuple(0 for _ in width)
    match name:
        case "reshape":
            order = (*(params.get("dimensions") or range(rank)), *range(rank, rank + n))
            return lambda x: lax.reshape(lax.transpose(x, order), (*out.shape, *width))
        case "squeeze" | "expand_dims":
            return lambda x: lax.reshape(x, (*out.shape, *width))
        case "broadcast_in_dim":
            dims = (*params["broadcast_dimensions"], *range(out.ndim, out.ndim + n))
            return lambda x, *_: lax.broadcast_in_dim(x, (*out.shape, *width), dims)
        case "transpose":
            return lambda x: lax.transpose(x, (*params["permutation"], *range(rank, rank + n)))
        case "slice":
            strides = params["strides"]
            return lambda x: lax.slice(
                x,
                (*params["start_indices"], *whole),
                (*params["limit_indices"], *width),
                None if strides is None else (*strides, *(1 for _ in width)),
            )
        case "dynamic_slice":
            return lambda x, *starts: lax.dynamic_slice(
                x, (*starts, *(jnp.zeros((), s.dtype) for s in starts[:1] for _ in width)), (*params["slice_sizes"], *width)
            )
        case "dynamic_update_slice":
            return lambda x, u, *starts: lax.dynamic_update_slice(
                x, u, (*starts, *(jnp.zeros((), s.dtype) for s in starts[:1] for _ in width))
            )
        case "concatenate":
            return lambda *xs: lax.concatenate(xs, params["dimension"])
        case "rev":
            return lambda x: lax.rev(x, params["dimensions"])
        case "stack":
            return lambda *xs: jnp.stack(xs, params["axis"])
        case "select_n":
            return lambda which, *cases: lax.select_n(
                which if which.ndim == 0 else jnp.broadcast_to(which[(..., *(None,) * n)], cases[0].shape), *cases
            )
        case "copy" | "stop_gradient" | "optimization_barrier":
            return lambda *xs: list(xs)
        case "gather":
            return lambda x, i: _gather_keys(x, i, params, n)
        case _ if _versions.has_definition(name):
            return logically(_versions.defined_by_jax(eqn), [a.aval for a in eqn.invars])
        case _:
            raise Unsupported(
                f"not supported yet: `{name}` of keys"
                "\n  remedy: take it of jax.random.key_data(keys), and wrap the result with jax.random.wrap_key_data"
            )


def _gather_keys(x: Any, indices: Any, params: dict[str, Any], n: int) -> Any:
    numbers = params["dimension_numbers"]
    rank = indices.ndim - 1 + len(numbers.offset_dims)
    numbers = numbers._replace(offset_dims=(*numbers.offset_dims, *range(rank, rank + n)))
    sizes = (*params["slice_sizes"], *x.shape[x.ndim - n :])
    mode = params["mode"]
    return lax.gather(x, indices, numbers, sizes, mode=mode, fill_value=None)


# ------------------------------------------------------------------------------------------ functions


@_rule("unstack")
def _unstack(eqn: Any) -> Function:
    axis = eqn.params["axis"]
    return lambda x: [lax.index_in_dim(x, i, axis, keepdims=False) for i in range(len(eqn.outvars))]


@_rule("mulhi")
def _mulhi(eqn: Any) -> Function:
    return special.multiply_high


@_rule("roll")
def _roll(eqn: Any) -> Function:
    """`pltpu.roll`: with a stride, each slice along `stride_axis` is rolled by so much more than the one before it."""
    axis, stride, stride_axis = (eqn.params[name] for name in ("axis", "stride", "stride_axis"))

    def roll(x: Any, shift: Any) -> Any:
        if stride is None:
            return jnp.roll(x, shift, axis)
        at = lax.broadcasted_iota(jnp.int32, x.shape, axis) - stride * lax.broadcasted_iota(jnp.int32, x.shape, stride_axis)
        return jnp.take_along_axis(x, (at - jnp.asarray(shift, jnp.int32)) % x.shape[axis], axis)

    return roll


@_rule("bitcast")
def _bitcast(eqn: Any) -> Function:
    """`pltpu.bitcast`: rows share the bits of one wider element, or one becomes several rows."""
    ((operand,), (result,)) = ([v.aval for v in vs] for vs in (eqn.invars, eqn.outvars))
    *leading, rows, columns = operand.shape

    def bitcast(x: Any) -> Any:
        if operand.shape[-2] > result.shape[-2]:
            packed = x.reshape(*leading, result.shape[-2], rows // result.shape[-2], columns)
            return lax.bitcast_convert_type(jnp.swapaxes(packed, -1, -2), result.dtype)
        made = lax.bitcast_convert_type(x, result.dtype)
        return made if made.shape == result.shape else jnp.swapaxes(made, -1, -2).reshape(result.shape)

    return bitcast


@_rule("eq_to", "le_to", "lt_to")
def _total_order(eqn: Any) -> Function:
    compare = {"eq_to": lax.eq, "le_to": lax.le, "lt_to": lax.lt}[str(eqn.primitive.name)]
    return lambda x, y: compare(special.ordered(x), special.ordered(y))


@_rule(*special.FUNCTIONS)
def _function(eqn: Any) -> Function | None:
    return special.function(str(eqn.primitive.name), [a.aval for a in eqn.invars], eqn.params)


@_rule(*linalg.FUNCTIONS)
def _algebra(eqn: Any) -> Function:
    return linalg.function(str(eqn.primitive.name), [a.aval for a in eqn.invars], eqn.params)


@_rule("custom_linear_solve")
def _custom_linear_solve(eqn: Any) -> Function:
    """The solver alone, as JAX lowers it."""
    lengths, jaxprs = eqn.params["const_lengths"], eqn.params["jaxprs"]
    before = lengths.matvec + lengths.vecmat

    def solve(*args: Any) -> Any:
        constants = args[before : before + lengths.solve]
        return _versions.eval_jaxpr(jaxprs.solve, [*constants, *args[sum(lengths) :]])

    return solve
