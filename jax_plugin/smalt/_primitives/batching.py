"""`jax.vmap` inside of a kernel, over smalt's own primitives.

A text of PTX that computes, element by element, gets one axis more. What is done once for a warpgroup (barriers, accesses to
memory, texts that look at lanes) has no batch: that is one error.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from smalt import _versions
from smalt._errors import InvalidKernel

_LOOP = "call it for one element after the other, in a loop (jax.lax.fori_loop, or Python's) in place of jax.vmap"

#: Opcodes whose results are a function of the operands in the same lane.
_COMPUTES = frozenset(
    "abs add addc and bfe bfi bfind bmsk bra brev clz cnot copysign cos cvt div dp2a dp4a ex2 fma fns lg2 lop3 mad mad24 madc max min mov mul"
    " mul24 neg not or popc prmt rcp rem rsqrt sad selp set setp shf shl shr sin slct sqrt sub subc szext tanh testp xor .reg".split()
)
# Scopes and labels that open a statement, its guard, its opcode.
_OPCODE = re.compile(r"(?:[{}\s]+|[A-Za-z_$%][\w$]*\s*:(?!:))*+(?:@!?\s*\S+\s+)?+(\.?\w+)")
_OF_LANES = re.compile(r"%(?:tid|laneid|lanemask_\w+|warpid|clock\w*|globaltimer\w*)\b")


def register(primitive: Any, name: str, rule: Any = None) -> None:
    """Registers `rule`, or the error that a primitive has no batch."""

    def refuse(_: int, args: Sequence[Any], dims: Sequence[Any], **params: Any) -> Any:
        raise _error(f"smalt.{name}", "a call whose operands are the same for the whole batch", "operands that jax.vmap maps", _LOOP)

    _versions.register_batching(primitive, rule or refuse)


def register_access(primitive: Any) -> None:
    """The error that an access to memory has no batch, with the name of the function that made it."""

    def refuse(_: int, args: Sequence[Any], dims: Sequence[Any], *, access: Any, **__: Any) -> Any:
        raise _error(access.called, "an access that is the same for the whole batch", "an access to memory with operands that jax.vmap maps", _LOOP)

    _versions.register_batching(primitive, refuse)


def inline_ptx(primitive: Any, size: int, args: Sequence[Any], dims: Sequence[Any], params: dict[str, Any]) -> tuple[Any, Any]:
    """The rule of `inline_ptx`: arrays get an axis; scalars that are mapped become arrays."""
    flat, out_types = list(args[: params["num_args"]]), params["out_types"]
    _check(flat, dims, params)
    shapes = {shape for shape, _ in out_types} | {_shape(x, d) for x, d in zip(flat, dims)}
    if len(shapes - {()}) > 1:
        raise _error(_name(params), "arrays of one shape", " and ".join(sorted(str(list(s)) for s in shapes if s)), "jnp.broadcast_to")
    shape = max(shapes, key=len, default=())
    if shape and any(not s for s, _ in out_types):
        raise _error(
            _name(params), "results that are arrays like the operands", "a scalar result of a text over arrays", "leave out jax.vmap and call it on the whole arrays"
        )
    axis = _axis(flat, dims, shape)
    batched = [_operand(x, d, shape, axis, size) for x, d in zip(flat, dims)]
    types = tuple((_with_axis(shape, axis, size), dtype) for _, dtype in out_types)
    results = primitive.bind(*batched, *args[len(flat) :], **{**params, "out_types": types})
    return results, [axis] * len(results)


def _check(flat: Sequence[Any], dims: Sequence[Any], params: dict[str, Any]) -> None:
    name = _name(params)
    if params["laid_out"]:
        raise _error(
            name, "results whose layout the compiler chooses", "a layout in `out_types`", "pass jax.ShapeDtypeStruct(shape, dtype), or leave out jax.vmap and call it on the whole arrays"
        )
    if params["layouts"] is not None:
        raise _error(name, "a text that runs for each element", "whole=True", "leave out jax.vmap and call it on the whole arrays")
    does = None
    if any(_versions.is_ref(x) for x in flat) or any(d is not None for d in dims[len(flat) :]):
        does = "an access to memory"
    elif params["once"]:
        does = "once=True, or what one thread does for all"
    elif params["unchecked"]:
        does = "unchecked=True: a text with unknown effects"
    elif params["barriers"] is not None:
        does = "a barrier"
    else:
        does = _more_than_computing(params["text"])
    if does is not None:
        raise _error(name, "a text that computes each element from its operands, of arrays and scalars", does, _LOOP)
    if params["pack"] != 1:  # which elements are neighbours is the layout's matter
        raise _error(name, "one element in a register", f"pack={params['pack']}", "leave out jax.vmap and call it on the whole arrays")


def _more_than_computing(text: str) -> str | None:
    """What a text does besides computing: the first such instruction, or register."""
    plain = re.sub(r"\{(\d+)\}", r"_smalt\1", re.sub(r"//[^\n]*|/\*.*?\*/", " ", text, flags=re.S))
    for statement in plain.split(";"):
        found = _OPCODE.match(statement)
        if found and found[1] not in _COMPUTES:
            return "`" + re.sub(r"_smalt(\d+)", r"{\1}", " ".join(statement[found.start(1) :].split())) + "`"
    special = _OF_LANES.search(plain)
    return f"`{special[0]}`, which differs between lanes" if special else None


def _shape(x: Any, dim: int | None) -> tuple[int, ...]:
    """The shape of one of the batch."""
    return tuple(n for i, n in enumerate(jnp.shape(x)) if i != dim)


def _with_axis(shape: tuple[int, ...], axis: int, size: int) -> tuple[int, ...]:
    return (*shape[:axis], size, *shape[axis:])


def _axis(flat: Sequence[Any], dims: Sequence[Any], shape: tuple[int, ...]) -> int:
    """Where the batch's axis goes: where all have it; in front where they differ."""
    found = {d for x, d in zip(flat, dims) if d is not None and _shape(x, d) == shape}
    return int(found.pop()) if len(found) == 1 else 0


def _operand(x: Any, dim: int | None, shape: tuple[int, ...], axis: int, size: int) -> Any:
    if dim is None:
        return x if not shape or not jnp.shape(x) else jnp.broadcast_to(jnp.expand_dims(x, axis), _with_axis(shape, axis, size))
    if _shape(x, dim) == shape:
        return jnp.moveaxis(x, dim, axis)
    return jax.lax.broadcast_in_dim(x, _with_axis(shape, axis, size), (axis,))


def _name(params: dict[str, Any]) -> str:
    return str(params["called"] or "smalt.inline_ptx")


def _error(name: str, expected: str, got: str, remedy: str) -> InvalidKernel:
    return InvalidKernel(f"smalt: {name} under jax.vmap\n  expected: {expected}\n  got: {got}\n  remedy: {remedy}{_versions.here()}")
