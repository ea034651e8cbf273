"""Kernels that XLA splits over the devices of a mesh by itself, without `jax.shard_map`.

XLA sees one operation, and a rule of which dimensions of its operands and results are split together (their *factors*). It decides how they
are split, from what is around it, and calls for the function of one device's shares: the same kernel, over fewer blocks. Nothing is
gathered for dimensions that have a factor; others are whole on each device.

The rule is read off the block specs of a `pl.pallas_call`; of other functions their author gives it.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.experimental.custom_partitioning import ArrayMapping, SdyShardingRule, custom_partitioning

from smalt import _config, _versions
from smalt._errors import Error, InvalidArgument, InvalidKernel
from smalt._partition import blocks, given_rules, loops
from smalt._partition.blocks import Dims, Split

Parts = Mapping[str, int]
#: A function of one device's shares, given into how many parts each factor is split, and which of them the device has.
Share = Callable[[Parts, Mapping[str, Any]], Callable[..., Sequence[Any]]]


def partition(fn: Callable[..., Any], rule: str | None = None) -> Callable[..., Any]:
    """Lets XLA split calls of kernels over devices along dimensions of which the parts have nothing to do with each other.

    Under `jax.jit` with operands that are sharded along such dimensions each device computes its shards' results, and no operand is gathered. The function
    can be differentiated backwards (what a kernel's derivative needs is computed again), and mapped (`jax.vmap`: another such dimension).

    In `jax.export` a function with a rule is exported for symbolic dimensions that have factors, as a loop over parts: `16*b` has parts of 16.

    Args:
        fn: A function of arrays, or of PyTrees of them: a `pl.pallas_call`, or any function whose shapes follow from those of its arguments.
        rule: The factors of all operands' dimensions and of the results', `_` for those that are whole: `"rows _, _ _ -> rows _"`. None: those of the
            grid's axes along which the blocks of a `pl.pallas_call` move, one after the other.

    Returns:
        The same function; its `rule(*args)` is the rule for such arguments.
    """

    prepared: dict[Any, _Prepared] = {}

    def prepare(leaves: Sequence[Any], tree: Any) -> _Prepared:
        key = tree, tuple((np.shape(x), np.dtype(jax.dtypes.result_type(x))) for x in leaves), _config.settings()
        made = prepared.get(key) or _prepare(fn, rule, leaves, tree)
        if not any(isinstance(at, _Constant) and isinstance(at.value, jax.core.Tracer) for at in made.taken):
            prepared[key] = made
        return made

    @functools.wraps(fn)
    def call(*args: Any) -> Any:
        leaves, tree = jax.tree.flatten(args)
        if loops.is_symbolic(leaves):
            return fn(*args) if rule is None else _of_symbolic_shapes(fn, rule, leaves, tree)
        made = prepare(leaves, tree)
        found = made.function(*[leaves[at] if isinstance(at, int) else at.value for at in made.taken])
        return jax.tree.unflatten(made.tree, [found[r] for r in made.results])

    def show(*args: Any) -> str:
        leaves, tree = jax.tree.flatten(args)
        made = prepare(leaves, tree)
        operands = [next((d for d, at in zip(made.rule.operands, made.taken) if at == i), (None,) * np.ndim(x)) for i, x in enumerate(leaves)]
        return f"{_text(operands)} -> {_text([made.rule.results[r] for r in made.results])}"

    call.rule = show  # type: ignore[attr-defined]
    return call


@dataclasses.dataclass(frozen=True)
class Rule:
    """The factors of operands and results, into how many parts each may be split, and by operand (results behind them) and dimension why it is
    whole."""

    operands: tuple[Dims, ...]
    results: tuple[Dims, ...]
    sizes: Mapping[str, int]
    reasons: Mapping[tuple[int, int], str] = dataclasses.field(default_factory=dict)

    def at(self, factor: str) -> list[tuple[int, int]]:
        """The dimensions that have a factor."""
        return [(n, k) for n, dims in enumerate((*self.operands, *self.results)) for k, f in enumerate(dims) if f == factor]


@dataclasses.dataclass(frozen=True)
class _Constant:
    """An operand of a call that is no argument of the function."""

    value: Any


@dataclasses.dataclass(frozen=True)
class _Prepared:
    """A function as an operation, for arguments of these types."""

    rule: Rule
    function: Callable[..., Sequence[Any]]
    taken: Sequence[int | _Constant]  # its operands: arguments by number
    results: Sequence[int]  # which of its results the function has
    tree: Any


def _prepare(fn: Callable[..., Any], text: str | None, leaves: Sequence[Any], tree: Any) -> _Prepared:
    flat, out = _flat(fn, tree)
    name = getattr(fn, "__name__", "f")
    try:
        closed = jax.make_jaxpr(flat)(*leaves)
    except ValueError as e:
        if "to be Manual" not in str(e):
            raise
        raise InvalidKernel(
            f"smalt: smalt.partition({name}) where shardings are part of types\n  expected: axes of the mesh that XLA splits (jax.sharding.AxisType.Auto)"
            f"\n  got: {e}\n  remedy: jax.sharding.auto_axes({name}, out_sharding=...), or a mesh of Auto axes{_versions.here()}"
        ) from None
    given = None if text is None else _read(text, name, closed.in_avals, closed.out_avals)
    call = _only_call(closed)
    if call is not None:
        name = call.params["name"] or call.params["jaxpr"].debug_info.func_name
    if call is None and given is None:
        raise InvalidArgument(
            f"smalt: smalt.partition({name}) without a rule"
            "\n  expected: a function of one pl.pallas_call and nothing else: its block specs are the rule"
            f"\n  got: {_summary(closed)}\n  remedy: say which dimensions are split together: smalt.partition({name}, \"rows _ -> rows _\"){_versions.here()}"
        )
    if call is not None:
        split = blocks.split(call.params, [np.ndim(leaves[at] if isinstance(at, int) else at.value) for at in call.operands])
        rule = Rule(split.operands, split.results, split.sizes, split.reasons)
        if given is not None:
            rule, split = _agreed(given, rule, split, call.operands, call.results, name)
        elif not rule.sizes or not call.operands:
            raise InvalidKernel(
                f"smalt: smalt.partition({name}): nothing of it can be split"
                "\n  expected: an axis of the grid with independent steps, whose blocks follow one another"
                f"\n  got: {'; '.join(sorted(set(rule.reasons.values()))) if call.operands else 'a call without operands, which XLA does not split'}"
                f"\n  remedy: call it as it is: each device computes all of it{_versions.here()}"
            )
        if not call.has_own_derivative:
            return _Prepared(rule, _differentiable(rule, split.share, name), call.operands, call.results, out[0])
        given = given or _of_arguments(rule, call, leaves, name)
    if any(isinstance(c, jax.core.Tracer) for c in _versions.open_jaxpr(closed)[1]):
        raise InvalidArgument(
            f"smalt: smalt.partition({name})\n  expected: a function of its arguments alone\n  got: one that closes over values that are being traced"
            f"\n  remedy: pass them as arguments{_versions.here()}"
        )
    assert given is not None
    _check_shapes(flat, given, name, closed)
    return _Prepared(given, _differentiable(given, lambda *_: flat, name), range(len(leaves)), range(len(closed.out_avals)), out[0])


def _of_symbolic_shapes(fn: Callable[..., Any], text: str, leaves: Sequence[Any], tree: Any) -> Any:
    """A call in a program that is exported; its rule is the user's."""
    name = getattr(fn, "__name__", "f")
    flat, out = _flat(fn, tree)
    closed = jax.make_jaxpr(flat)(*given_rules.sample(leaves))
    rule = _read(text, name, closed.in_avals, closed.out_avals)
    _check_shapes(flat, rule, name, closed)
    made = given_rules.function(flat, rule.operands, rule.results, leaves, f"the rule of smalt.partition({name}): {text!r}")(*leaves)
    return jax.tree.unflatten(out[0], made)


def _flat(fn: Callable[..., Any], tree: Any) -> tuple[Callable[..., list[Any]], list[Any]]:
    """The function of flat arguments and results; how its results are assembled, once it was called."""
    out: list[Any] = []

    def flat(*some: Any) -> list[Any]:
        found, shape = jax.tree.flatten(fn(*jax.tree.unflatten(tree, some)))
        out[:] = [shape]
        return list(found)

    return flat, out


def _of_arguments(rule: Rule, call: _Only, leaves: Sequence[Any], name: str) -> Rule:
    """The rule of a call's operands as one of a function's arguments and results."""
    place = {n: at for n, at in enumerate(call.operands) if isinstance(at, int)}
    found: dict[int, Dims] = {}
    for n, dims in enumerate(rule.operands):
        if place.get(n) is None and any(dims) or found.setdefault(place.get(n, -1), dims) != dims:
            raise InvalidArgument(
                f"smalt: smalt.partition({name}) without a rule\n  expected: blocks of arguments, each with one block spec\n  got: {_text(rule.operands)}"
                f"\n  remedy: say which dimensions are split together: smalt.partition({name}, \"rows _ -> rows _\"){_versions.here()}"
            )
    operands = tuple(found.get(i, (None,) * np.ndim(x)) for i, x in enumerate(leaves))
    reasons = {(place[n], k): why for (n, k), why in rule.reasons.items() if n in place}
    return Rule(operands, tuple(rule.results[r] for r in call.results), rule.sizes, reasons)


@dataclasses.dataclass(frozen=True)
class _Only:
    """A function's only equation, a `pl.pallas_call`."""

    params: dict[str, Any]
    operands: list[int | _Constant]
    results: list[int]  # which of its results the function has
    has_own_derivative: bool  # by `jax.custom_vjp` or `jax.custom_jvp`


def _only_call(closed: Any) -> _Only | None:
    jaxpr, consts = _versions.open_jaxpr(closed)
    env: dict[Any, Any] = dict(zip(jaxpr.invars, range(len(jaxpr.invars)))) | {v: _Constant(c) for v, c in zip(jaxpr.constvars, consts)}
    found = _calls(jaxpr, env)
    results = [None if _versions.is_literal(v) else env[v] for v in jaxpr.outvars] if found else []
    if found is None or len(found) != 1 or not all(isinstance(r, _Result) for r in results):
        return None
    ((eqn, operands, is_custom),) = found
    return _Only(eqn.params, operands, [r.number for r in results if isinstance(r, _Result)], is_custom)


@dataclasses.dataclass(frozen=True)
class _Result:
    number: int


def _calls(jaxpr: Any, env: dict[Any, Any]) -> list[tuple[Any, list[Any], bool]] | None:
    """The calls in a jaxpr that has nothing else, with their operands, and whether they have a derivative of their own; `env` has what its variables
    are."""

    def read(atom: Any) -> Any:
        return _Constant(np.asarray(atom.val, atom.aval.dtype)) if _versions.is_literal(atom) else env[atom]

    found = []
    for eqn in jaxpr.eqns:
        operands = [read(a) for a in eqn.invars]
        if callee := _versions.CALLS.get(eqn.primitive.name):
            inner, consts = _versions.open_jaxpr(eqn.params[callee])
            own = dict(zip(inner.invars, operands)) | {v: _Constant(c) for v, c in zip(inner.constvars, consts)}
            more = _calls(inner, own)
            if more is None:
                return None
            found += [(one, given, is_custom or eqn.primitive.name.startswith(("custom_vjp", "custom_jvp"))) for one, given, is_custom in more]
            env.update({v: _Constant(a.val) if _versions.is_literal(a) else own[a] for v, a in zip(eqn.outvars, inner.outvars)})
        elif eqn.primitive is _versions.pallas_call_p and not any(isinstance(x, _Result) for x in operands):
            found.append((eqn, operands, False))
            env.update({v: _Result(r) for r, v in enumerate(eqn.outvars)})
        else:
            return None
    return found


def _summary(closed: Any) -> str:
    names = [str(eqn.primitive.name) for eqn in _versions.open_jaxpr(closed)[0].eqns]
    return ", ".join(names[:5]) + (", …" if len(names) > 5 else "") if names else "no call at all"


# ------------------------------------------------------------------------------------------ rules that the user gives


def _read(text: str, name: str, operands: Sequence[Any], results: Sequence[Any]) -> Rule:
    sides = [[tuple(None if f == "_" else f for f in part.split()) for part in side.split(",")] for side in text.split("->")]
    if len(sides) != 2 or not all(f is None or f.isidentifier() for side in sides for dims in side for f in dims):
        raise _wrong_rule(name, text, "operands, an arrow, results: names of factors, or _ for a whole dimension: \"rows _, _ _ -> rows _\"", "something else")
    for what, dims, avals in zip(("operand", "result"), sides, (operands, results)):
        if len(dims) != len(avals):
            raise _wrong_rule(name, text, f"{len(avals)} {what}s", f"{len(dims)}")
        for i, (some, aval) in enumerate(zip(dims, avals)):
            if len(some) != len(aval.shape):
                wanted = f"{len(aval.shape)} dimensions of {what} {i} ({aval.dtype.name}{list(aval.shape)})"
                raise _wrong_rule(name, text, wanted, f"{len(some)}: {_text([some])}")
            if len({f for f in some if f}) != len([f for f in some if f]):
                raise _wrong_rule(name, text, f"a factor in one dimension of {what} {i}", f"twice the same: {_text([some])}")
    sizes: dict[str, int] = {}
    for dims, avals in zip(sides, (operands, results)):
        for some, aval in zip(dims, avals):
            for f, n in zip(some, aval.shape):
                if f and sizes.setdefault(f, n) != n:
                    raise _wrong_rule(name, text, f"dimensions of one size for factor {f}", f"{sizes[f]} and {n}")
    given, made = ({f for some in side for f in some if f} for side in sides)
    if contracted := sorted(given - made):
        raise _wrong_rule(
            name, text, f"a result of which each part belongs to a part of {contracted[0]}",
            f"{contracted[0]} in operands only: it is contracted, and results of parts would have to be added",
            f"write _ for {contracted[0]}: it is whole on each device",
        )  # fmt: skip
    if missing := sorted(made - given):
        wanted = f"an operand that is split along {missing[0]}, too"
        raise _wrong_rule(name, text, wanted, "none: each device would compute the same part", f"write _ for {missing[0]}")
    if not sizes:
        raise _wrong_rule(name, text, "a factor", "dimensions that are all whole", "call the function as it is")
    return Rule(tuple(sides[0]), tuple(sides[1]), sizes)


def _wrong_rule(name: str, text: str, expected: str, got: str, remedy: str = "write the rule for these arguments") -> InvalidArgument:
    what = f"smalt: the rule of smalt.partition({name}): {text!r}"
    return InvalidArgument(f"{what}\n  expected: {expected}\n  got: {got}\n  remedy: {remedy}{_versions.here()}")


def _check_shapes(fn: Callable[..., Any], rule: Rule, name: str, closed: Any) -> None:
    """A share's results are shares of the results."""
    for factor, size in rule.sizes.items():
        parts = next((n for n in range(2, 17) if size % n == 0), None)
        if parts is None:
            continue
        given = [_share_of(a, dims, factor, parts) for a, dims in zip(closed.in_avals, rule.operands)]
        expected = [(_share_of(a, dims, factor, parts).shape, a.dtype) for a, dims in zip(closed.out_avals, rule.results)]
        try:
            found = [(tuple(a.shape), a.dtype) for a in jax.eval_shape(fn, *given)]
            got = _shapes(found)
        except (TypeError, ValueError) as e:
            if isinstance(e, Error):
                raise
            found, got = [], str(e).split("\n", 1)[0]
        if found != expected:
            raise InvalidKernel(
                f"smalt: smalt.partition({name}): the function of a share, 1/{parts} of {factor}"
                f"\n  expected: results {_shapes(expected)} of {_shapes([(a.shape, a.dtype) for a in given])}\n  got: {got}"
                f"\n  remedy: let the grid and out_shape follow from the arguments' shapes, or write _ for {factor}{_versions.here()}"
            )


def _share_of(aval: Any, dims: Dims, factor: str, parts: int) -> Any:
    return jax.ShapeDtypeStruct(tuple(n // parts if f == factor else n for n, f in zip(aval.shape, dims)), aval.dtype)


def _shapes(types: Sequence[Any]) -> str:
    return ", ".join(f"{dtype.name}{list(shape)}" for shape, dtype in types)


def _agreed(given: Rule, found: Rule, split: Split, taken: Sequence[Any], results: Sequence[int], name: str) -> tuple[Rule, Split]:
    """The user's rule for arguments and results, compared with what follows from the call's blocks."""
    own = len(found.operands)
    place: dict[int, int] = {n: at for n, at in enumerate(taken) if isinstance(at, int)}
    place |= {own + r: len(given.operands) + k for k, r in enumerate(results)}
    names: dict[str, str] = {}
    for factor in given.sizes:
        wanted = set(given.at(factor))
        for f in found.sizes:
            if {(place[n], k) for n, k in found.at(f) if n in place} == wanted:
                names[f] = factor
        if factor not in names.values():
            n, k = min(wanted)
            at = next((m for m, p in place.items() if p == n), None)
            why = found.reasons.get((at, k)) if at is not None else "the call does not use it"
            other = f"its blocks move with those of other dimensions: {_text(found.operands)} -> {_text(found.results)}"
            raise InvalidKernel(
                f"smalt: the rule of smalt.partition({name}): {factor}, dimension {k} of {'argument' if n < len(given.operands) else 'result'} "
                f"{n if n < len(given.operands) else n - len(given.operands)}\n  expected: a dimension whose blocks are independent of each other"
                f"\n  got: {why or other}"
                f"\n  remedy: {'write _ for it: it is whole on each device' if why else 'name together what moves together'}{_versions.here()}"
            )

    def renamed(many: Sequence[Dims]) -> tuple[Dims, ...]:
        return tuple(tuple(names.get(f) if f else None for f in dims) for dims in many)

    unnamed = {at: "the rule says so" for f in found.sizes if f not in names for at in found.at(f)}
    sizes = {names[f]: n for f, n in found.sizes.items() if f in names}
    rule = Rule(renamed(found.operands), renamed(found.results), sizes, {**found.reasons, **unnamed})
    axes = {names[f]: axis for f, axis in split.axes.items() if f in names}
    return rule, dataclasses.replace(split, operands=rule.operands, results=rule.results, sizes=rule.sizes, axes=axes)


def _text(many: Sequence[Dims]) -> str:
    return ", ".join(" ".join(f or "_" for f in dims) for dims in many)


# ------------------------------------------------------------------------------------------ the operation


def _differentiable(rule: Rule, share: Share, name: str) -> Callable[..., Any]:
    """The operation, with a derivative: what that needs is computed again from the operands' shares. Where an operand is whole, each device has
    the cotangent that its share makes; they are added."""
    forward = _mapped(rule, share, name)

    @jax.custom_vjp  # type: ignore[untyped-decorator]
    def function(*operands: Any) -> Any:
        return forward(*operands)

    def keep(*operands: Any) -> Any:
        return forward(*operands), operands

    def backward(operands: Sequence[Any], cotangents: Sequence[Any]) -> Any:
        wanted = [i for i, x in enumerate(operands) if _versions.is_float(x)]
        given = [i for i, ct in enumerate(cotangents) if ct.dtype != jax.dtypes.float0]

        def share_of_pull(parts: Parts, places: Mapping[str, Any]) -> Callable[..., Sequence[Any]]:
            def pull(*values: Any) -> Sequence[Any]:
                own = list(values[: len(operands)])

                def some(*floats: Any) -> list[Any]:
                    now = list(own)
                    for i, x in zip(wanted, floats):
                        now[i] = x
                    made = share(parts, places)(*now)
                    return [made[i] for i in given]

                return list(jax.vjp(some, *(own[i] for i in wanted))[1](list(values[len(operands) :])))

            return pull

        dims = [rule.operands[i] for i in wanted]
        backwards = Rule((*rule.operands, *(rule.results[i] for i in given)), tuple(dims), rule.sizes)
        found = dict(zip(wanted, _mapped(backwards, share_of_pull, f"{name}_backward")(*operands, *(cotangents[i] for i in given))))
        return tuple(found.get(i) for i in range(len(operands)))

    function.defvjp(keep, backward)
    return jax.jit(function)  # type: ignore[no-any-return]


def _mapped(rule: Rule, share: Share, name: str) -> Callable[..., Any]:
    """The operation, with a rule for `jax.vmap`: the batch is one more factor."""
    function = jax.custom_batching.custom_vmap(_operation(rule, share, name))

    @function.def_vmap  # type: ignore[untyped-decorator]
    def batch(size: int, is_mapped: Sequence[bool], *operands: Any) -> Any:
        factor = next(f for f in (f"batch{i}" for i in range(len(rule.sizes) + 1)) if f not in rule.sizes)
        dims = [(factor, *d) if m else d for d, m in zip(rule.operands, is_mapped)]
        axes = [0 if m else None for m in is_mapped]
        reasons = {(n, k + (n >= len(is_mapped) or is_mapped[n])): why for (n, k), why in rule.reasons.items()}
        wider = Rule(tuple(dims), tuple((factor, *d) for d in rule.results), {**rule.sizes, factor: size}, reasons)
        made = _mapped(wider, lambda *where: jax.vmap(share(*where), in_axes=axes), name)(*operands)
        return made, [True] * len(rule.results)

    return function  # type: ignore[no-any-return]


def _operation(rule: Rule, share: Share, name: str) -> Callable[..., Any]:
    def whole(*operands: Any) -> list[Any]:
        return list(share({}, {})(*operands))

    settings = _config.settings()

    def split(mesh: Any, operands: Any, results: Any) -> Any:
        chosen = _Chosen(rule, mesh, [*operands, *results], name)

        def of_device(*values: Any) -> Sequence[Any]:
            places = dict(zip(chosen.parts, values))
            return share(chosen.parts, places)(*values[len(places) :])

        def local(*values: Any) -> Any:
            places = [jax.lax.axis_index(chosen.axes[f]) for f in chosen.parts]
            found = _versions.lowered_under(functools.partial(_config.scoped, settings), of_device, [*places, *values])
            return [jax.lax.psum(x, axes) if (axes := chosen.summed(dims)) else x for x, dims in zip(found, rule.results)]

        return mesh, local, [chosen.sharding(d) for d in rule.results], tuple(chosen.sharding(d) for d in rule.operands)

    def infer(mesh: Any, operands: Any, results: Any) -> Any:
        chosen = _Chosen(rule, mesh, operands, name)
        return [chosen.sharding(d) for d in rule.results]

    made = custom_partitioning(whole)
    made.def_partition(partition=split, infer_sharding_from_operands=infer, sharding_rule=_for_shardy(rule))
    return lambda *operands: made(*_versions.called_from_python(operands))


def _for_shardy(rule: Rule) -> Any:
    """Whole dimensions are factors of their own that are to be whole."""
    count = 0

    def mapping(dims: Dims) -> Any:
        nonlocal count
        names = []
        for f in dims:
            names.append(f or f"whole{count}")
            count += f is None
        return ArrayMapping(*names)

    operands, results = [mapping(d) for d in rule.operands], [mapping(d) for d in rule.results]
    alone = tuple(f"whole{i}" for i in range(count))
    added = {f for d in rule.operands for f in d if f} - {f for d in rule.results for f in d if f}
    order = [f for f in dict.fromkeys(f for m in (*operands, *results) for f in m) if f in added]
    return SdyShardingRule(tuple(operands), tuple(results), need_replication_factors=alone, reduction_factors=tuple(order))


class _Chosen:
    """How XLA splits what there is: the axes of the mesh for each factor."""

    def __init__(self, rule: Rule, mesh: Any, values: Sequence[Any], name: str) -> None:
        self._mesh = mesh
        self.axes: dict[str, tuple[str, ...]] = {}
        for n, (dims, value) in enumerate(zip((*rule.operands, *rule.results), values)):
            spec = tuple(getattr(value.sharding, "spec", ()))
            for k, (f, axes) in enumerate(zip(dims, (*spec, *[None] * (len(dims) - len(spec))))):
                axes = (axes,) if isinstance(axes, str) else tuple(axes or ())
                if f is None and axes and n < len(rule.operands):
                    why = rule.reasons.get((n, k), "its rule says so")
                    warnings.warn(
                        f"smalt: smalt.partition({name}) gathers dimension {k} of operand {n}, which is sharded over {', '.join(axes)}"
                        f"\n  expected: that dimension whole on each device: {why}\n  got: a shard of it"
                        f"\n  remedy: shard another dimension: {_text(rule.operands)}",
                        stacklevel=2,
                    )
                if f and axes and f not in self.axes:
                    self.axes[f] = axes
        taken: set[str] = set()
        for f, axes in self.axes.items():  # an axis of the mesh splits one factor, into equal parts
            kept: list[str] = []
            for axis in axes:
                if axis not in taken and rule.sizes[f] % math.prod(mesh.shape[a] for a in (*kept, axis)) == 0:
                    kept.append(axis)
            taken.update(kept)
            if len(kept) < len(axes):
                warnings.warn(
                    f"smalt: smalt.partition({name}) gathers what is sharded over {', '.join(a for a in axes if a not in kept)}"
                    f"\n  expected: a number of devices that divides {rule.sizes[f]} parts of {f}\n  got: {math.prod(mesh.shape[a] for a in axes)}"
                    "\n  remedy: smaller blocks, or fewer devices along that dimension",
                    stacklevel=2,
                )
            self.axes[f] = tuple(kept)
        self.parts = {f: math.prod(mesh.shape[a] for a in axes) for f, axes in self.axes.items() if axes}

    def sharding(self, dims: Dims) -> Any:
        return jax.sharding.NamedSharding(self._mesh, jax.sharding.PartitionSpec(*((self.axes.get(f) or None) if f else None for f in dims)))

    def summed(self, dims: Dims) -> tuple[str, ...]:
        """The axes over which a result's parts are added: those of factors that it does not have."""
        return tuple(a for f, axes in self.axes.items() if f not in dims for a in axes)
