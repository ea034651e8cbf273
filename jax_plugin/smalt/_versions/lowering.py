"""Rules of lowering, and what they emit."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
from jax._src import config as _jax_config
from jax._src import core as jax_core
from jax._src.interpreters import batching as _batching
from jax._src.interpreters import mlir as _mlir
from jax.interpreters import mlir

#: `rule(before, ctx, *operands, **params)`: `before` is the rule that answered until now.
ChainedRule: TypeAlias = Callable[..., Any]


def chain_rule(primitive: Any, rule: ChainedRule, platforms: Sequence[str]) -> list[Callable[[], None]]:
    """Registers a rule before JAX's for a primitive on these platforms; returns the steps that remove it, the last one first.

    Where it is already the first one, nothing is done. A rule that another plugin registers later stays there.
    """
    undo: list[Callable[[], None]] = []
    made: dict[Any, Any] = {}  # one rule for the platforms that had one rule: they share one lowering
    for platform in platforms:
        table = _mlir._platform_specific_lowerings[platform]
        there = table.get(primitive)
        if isinstance(getattr(there, "rule", None), _Chained) and there.rule.rule is rule:
            continue
        key = None if there is None else there.rule
        if key not in made:
            made[key] = _Chained(rule, primitive, there)
        mlir.register_lowering(primitive, made[key], platform=platform)
        undo.append(functools.partial(take_away, table, primitive, table[primitive], there))
    return undo


@dataclasses.dataclass(frozen=True, eq=False)
class _Chained:
    rule: ChainedRule
    primitive: Any
    there: Any  # the platform's entry, if it had one

    def before(self, ctx: Any, *args: Any, **params: Any) -> Any:
        entry = self.there or _mlir._lowerings[self.primitive]
        return entry.rule(ctx, *args, **params)

    def __call__(self, ctx: Any, *args: Any, **params: Any) -> Any:
        return self.rule(self.before, ctx, *args, **params)


def take_away(table: dict[Any, Any], primitive: Any, ours: Any, there: Any) -> None:
    if table.get(primitive) is not ours:
        return
    if there is None:
        del table[primitive]
    else:
        table[primitive] = there


def platforms(ctx: Any) -> tuple[str, ...]:
    """The platforms that a lowering is for: "cpu", "cuda", …"""
    return tuple(ctx.platforms or ctx.module_context.platforms)


def lowering_devices(ctx: Any) -> Sequence[Any]:
    """The devices that a lowering is for, if they are known."""
    try:
        backend = ctx.module_context.get_backend(optional=True)
    except Exception:
        return ()
    return () if backend is None else backend.local_devices()


def custom_call(
    ctx: Any,
    target: str,
    operands: Sequence[Any],
    results: Sequence[Any],
    attributes: dict[str, Any],
    aliases: dict[int, int],
    has_side_effect: bool,
) -> Sequence[Any]:
    """Emits a typed-FFI custom call with row-major layouts; `operands` are (value, aval), `results` avals."""
    op = _mlir.custom_call(
        target,
        result_types=[_mlir.aval_to_ir_type(ctx.module_context, a) for a in results],
        operands=[value for value, _ in operands],
        backend_config={name: _mlir.ir_attribute(value) for name, value in attributes.items()},
        api_version=4,
        operand_output_aliases=aliases,
        operand_layouts=[_row_major(a) for _, a in operands],
        result_layouts=[_row_major(a) for a in results],
        has_side_effect=has_side_effect,
    )
    return list(op.results)


def tokens_in(ctx: Any) -> list[tuple[Any, Any]]:
    """Tokens of the ordered effects so far: (value, aval)."""
    return [(ctx.tokens_in.get(effect), jax_core.abstract_token) for effect in ctx.tokens_in.effects()]


def set_tokens_out(ctx: Any, tokens: Sequence[Any]) -> None:
    """Those of the ordered effects once the equation's are over, in the order of `tokens_in`."""
    if tokens:
        made = _mlir.TokenSet(dict(zip(ctx.tokens_in.effects(), tokens)))
        ctx.set_tokens_out(ctx.tokens_in.update_tokens(made))


def _row_major(aval: Any) -> tuple[int, ...]:
    if aval is jax_core.abstract_token:
        return ()
    rank = len(jax_core.physical_aval(aval).shape)  # of keys: with the dimension of their data
    return tuple(range(rank - 1, -1, -1))


def zeros(ctx: Any, size: int) -> tuple[Any, Any]:
    """A zero-filled `u8[size]`: (value, aval)."""
    aval = jax_core.ShapedArray((size,), np.dtype(np.uint8))
    return _mlir.full_like_aval(ctx, 0, aval), aval


def device_position(ctx: Any, within: Any | None = None) -> tuple[Any, Any]:
    """The executing device's position in the mesh that the lowering runs under, or in what its host has of it (`_devices.Within`), a `u32[]`: (value,
    aval)."""
    aval = jax_core.ShapedArray((), np.dtype(np.uint32))
    whole, hlo = _mlir.hlo.partition_id(), _mlir.hlo
    if within is None:
        return whole, aval

    def sum_of(terms: Sequence[tuple[Any, int]]) -> Any:
        return functools.reduce(hlo.add, [hlo.multiply(x, _number(n)) for x, n in terms])

    return within.position(whole, _divide, _remainder, sum_of), aval


def device_index(ctx: Any, within: Any, axis: Any) -> tuple[Any, Any]:
    """Its index along an axis of that mesh, an `i32[]`: (value, aval)."""
    aval = jax_core.ShapedArray((), np.dtype(np.int32))
    found = within.index(axis, _mlir.hlo.partition_id(), _divide, _remainder)
    return _mlir.hlo.convert(_mlir.aval_to_ir_type(ctx.module_context, aval), found), aval


def _number(n: int) -> Any:
    return _mlir.ir_constant(np.uint32(n))


def _divide(x: Any, n: int) -> Any:
    return _mlir.hlo.divide(x, _number(n))


def _remainder(x: Any, n: int) -> Any:
    return _mlir.hlo.remainder(x, _number(n))


def lower_function(ctx: Any, f: Callable[..., Any], *operands: Any) -> Any:
    """Traces `f` on the rule's operands and lowers it in the rule's place.

    Over which axes of a mesh values vary was checked when the equation was traced; what stands in its place is of one device.
    """
    plain = [a.update_manual_axis_type(jax_core.empty_mat) if isinstance(a, jax_core.ShapedArray) else a for a in ctx.avals_in]
    with _jax_config._check_vma(False):
        ctx = ctx.replace(avals_in=plain)
        return _mlir.lower_fun(f, multiple_results=True)(ctx, *operands)


def make_primitive(name: str, abstract_eval: Callable[..., Any], one_result: bool = False) -> Any:
    """A primitive whose results and effects the rule gives."""
    primitive = jax_core.Primitive(name)
    primitive.multiple_results = not one_result
    primitive.def_effectful_abstract_eval(abstract_eval)
    return primitive


def new_primitive(name: str) -> Any:
    primitive = jax_core.Primitive(name)
    primitive.multiple_results = True
    return primitive


def register_lowering(primitive: Any, rule: Callable[..., Any]) -> None:
    mlir.register_lowering(primitive, rule)


def register_batching(primitive: Any, rule: Callable[..., Any]) -> None:
    """`rule(size, operands, dims, **params)`, where some operand is mapped, gives the results and their axes of the batch."""

    def batch(axis: Any, operands: Sequence[Any], dims: Sequence[Any], **params: Any) -> Any:
        if all(dim is None for dim in dims):
            results = primitive.bind(*operands, **params)
            return results, [None] * len(results)
        return rule(axis.size, operands, dims, **params)

    _batching.fancy_primitive_batchers[primitive] = batch
