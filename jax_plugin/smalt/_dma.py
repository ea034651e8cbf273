"""A TPU's copies (`pltpu.make_async_copy`, `pltpu.sync_copy`, and what `pltpu.emit_pipeline` makes of blocks) as loads and stores.

A copy may be over as soon as it has begun. Here it is: what stands between `start` and `wait` finds it done, semaphores of copies count
nothing, and a wait for one does nothing. Copies to other devices are refused.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax.experimental.pallas as pl
import jax.numpy as jnp
from jax import lax

from smalt import _attrs, _expand, _registry, _versions
from smalt._errors import InvalidKernel, Unsupported
from smalt._walk import OpParts, Walker

#: Elements that are in registers at once: 32 a thread.
CHUNK = 4096
#: What a TPU's arrays are padded to, at most: along the last dimension, and others.
MINOR_TILE, TILE = 128, 32

RULES: dict[str, Callable[[Walker, Any], OpParts]] = {}

_rule = _registry.into(RULES)


@_rule("dma_start")
def _dma_start(w: Walker, eqn: Any) -> OpParts:
    copy = _versions.dma_of(eqn)
    if copy.device_id is not None:
        raise Unsupported(
            "not supported yet: a copy to another device by pltpu.make_async_remote_copy\n  expected: a copy on one device"
            "\n  remedy: plgpu.kernel with plgpu.remote_ref(ref, device_id) and plgpu.SemaphoreType.REGULAR"
        )

    def function(*operands: Any) -> tuple[()]:
        _bounded(*_versions.dma_views(eqn, operands), copy_pieces)
        return ()

    def copy_pieces(source: Any, target: Any) -> None:
        if (wanted := _describe(source)) != (given := _describe(target)):
            raise InvalidKernel(
                f"a copy between references that differ\n  expected: a target of {wanted}, as its source\n  got: {given}"
                "\n  remedy: take equal parts of both (ref.at[...]), and convert where arrays are in registers: ref[...] = other[...].astype(dtype)"
            )
        _move(source, target, eqn.params.get("add", False))

    return _call(w, eqn, function, eqn.invars[: copy.operands])


@_rule("dma_wait")
def _dma_wait(w: Walker, eqn: Any) -> OpParts:
    return _call(w, eqn, lambda: (), [])


def _call(w: Walker, eqn: Any, function: Callable[..., Any], atoms: Sequence[Any]) -> OpParts:
    body = w.expansion(_expand.trace(function, [a.aval for a in atoms], []), atoms)
    return OpParts(attrs=_attrs.encode({"name": _versions.primitive_name(eqn)}), regions=[body], primitive="call")


def _bounded(source: Any, target: Any, copy: Callable[[Any, Any], None]) -> None:
    """Slices of traced sizes, as those of a pipeline whose blocks do not divide their arrays, go position by position along these dimensions."""
    ends, extents = [], []
    for ref in (source, target):
        base, transforms = _versions.ref_and_transforms(ref)
        indices = _versions.indices_of(transforms)
        ends.append((_versions.seen_through(base, transforms[:-1] if indices else transforms), list(indices)))
        extents.append(tuple(transforms[-1].shape) if indices else ())
    slices = [[d for d, i in enumerate(indices) if _versions.is_slice(i)] for _, indices in ends]
    if len(slices[0]) != len(slices[1]):
        copy(source, target)
        return
    pairs = [at for at in zip(*slices) if not all(isinstance(indices[d].size, int) for d, (_, indices) in zip(at, ends))]

    def go(rest: Sequence[tuple[int, ...]]) -> None:
        if not rest:
            copy(*(base.at[tuple(_as_slice(i) for i in indices)] if indices else base for base, indices in ends))
            return
        own = [indices[d] for d, (_, indices) in zip(rest[0], ends)]

        def one(i: Any) -> None:
            for d, (_, indices), index in zip(rest[0], ends, own):
                indices[d] = index.start + i * index.stride
            go(rest[1:])

        turns = own[0].size
        for d, shape, index in zip(rest[0], extents, own):
            turns = _within(turns, index, shape[d], MINOR_TILE if d == len(shape) - 1 else TILE)
        _loop(turns, one)
        for d, (_, indices), index in zip(rest[0], ends, own):
            indices[d] = index

    if pairs:
        go(pairs)
    else:
        copy(source, target)


def _within(size: Any, index: Any, extent: int, tile: int) -> Any:
    """How much of a slice is in the array, if what is not is less than a tile: that is padding, on a TPU. More is left, and is an error."""
    room = extent - index.start
    return jnp.where((size > room) & (size - room < tile), room, size) if index.stride == 1 else size


def _as_slice(index: Any) -> Any:
    return pl.ds(index.start, index.size, index.stride) if _versions.is_slice(index) else index


def _describe(ref: Any) -> str:
    return f"{jnp.dtype(ref.dtype).name}{list(ref.shape)}"


def _move(source: Any, target: Any, adds: bool) -> None:
    """In pieces that fit into registers."""

    def piece(index: tuple[Any, ...]) -> None:
        target[index] = target[index] + source[index] if adds else source[index]

    def go(outer: tuple[Any, ...], dims: tuple[int, ...]) -> None:
        whole = (slice(None),) * len(dims)
        if math.prod(dims) <= CHUNK:
            piece((*outer, *whole) or (...,))
            return
        n, inner = dims[0], math.prod(dims[1:])
        if inner > CHUNK:
            _loop(n, lambda i: go((*outer, i), dims[1:]))
            return
        most = CHUNK // inner
        if adds:  # each element once
            most = max(k for k in range(1, most + 1) if n % k == 0)

        def some(i: Any) -> None:
            piece((*outer, pl.ds(jnp.minimum(i * most, n - most), most), *whole[1:]))

        _loop(-(-n // most), some)

    go((), tuple(target.shape))


def _loop(turns: Any, do: Callable[[Any], None]) -> None:
    def turn(i: Any, carry: None) -> None:
        do(i)

    lax.fori_loop(jnp.int32(0), jnp.asarray(turns, jnp.int32), turn, None)
