"""Functions over arrays of symbolic shapes, as loops of calls over static ones.

Along each symbolic axis a call takes so many equal parts of the arrays. How many is decided when the program runs, or is compiled for a shape: the most of a
few numbers that the axis has. Forwards the last call begins earlier where they do not divide the axis, and computes some parts again.
Backwards each part is taken once, for what parts share is added up: fewer parts at a time for those that are left.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from smalt import _versions

#: So many parts a call takes.
SIZES = (1, 8, 64, 512)
#: Parts that fill a GPU, so that there is nothing to gain from more of them.
FULL = 4096


def is_symbolic(avals: Sequence[Any]) -> bool:
    """Whether some of them have symbolic dimensions."""
    return any(not isinstance(n, (int, np.integer)) for aval in avals for n in getattr(aval, "shape", ()))


@dataclasses.dataclass(frozen=True)
class Axis:
    """Parts that arrays have together along symbolic dimensions."""

    number: int
    count: Any  # symbolic
    #: By operand (results behind them): the dimension that moves with it, and a part's extent there.
    dims: dict[int, tuple[int, int]]


class Function(Protocol):
    """What is called."""

    @property
    def axes(self) -> Sequence[Axis]: ...

    @property
    def inputs(self) -> int:
        """Operands that may have parts."""

    def bind(self, taken: dict[int, int], begins: dict[int, Any], arrays: list[Any]) -> list[Any]:
        """A call over so many parts along each axis, by its number, that begin there."""

    def others(self, taken: dict[int, int]) -> int:
        """Parts of a call, but for those of the last axis."""


def at_once(function: Function, taken: dict[int, int]) -> list[int]:
    """So many parts a call may take along the last axis, where it takes so many along the others."""
    return [n for n in SIZES if n == 1 or n * function.others(taken) <= FULL]


def forward(function: Function, arrays: Sequence[Any]) -> list[Any]:
    return _Forward(function).along(function.axes, {}, {}, list(arrays))


def backward(function: Function, arrays: Sequence[Any], wanted: Sequence[int], cotangents: Mapping[int, Any]) -> list[Any]:
    """The cotangents of some of the arrays, given those of some results. What is added up is in f32 at least."""
    made = _Backward(function, list(wanted), list(cotangents)).along(function.axes, {}, {}, [*arrays, *cotangents.values()])
    return [x.astype(arrays[i].dtype) for i, x in zip(wanted, made)]


@dataclasses.dataclass(frozen=True)
class _Forward:
    function: Function

    def along(self, axes: Sequence[Axis], taken: dict[int, int], begins: dict[int, Any], xs: list[Any]) -> list[Any]:
        """The results along `axes`, of so many parts along others, from these on."""
        if not axes:
            return self.leaf(taken, begins, xs)
        axis, *rest = axes
        sizes = [1] if rest else at_once(self.function, taken)

        def of_size(size: int, start: Any, parts: list[Any]) -> list[Any]:
            return self.along(rest, taken | {axis.number: size}, begins | {axis.number: start}, parts)

        count = _versions.dimension_value(axis.count)
        which = sum((count >= n).astype(jnp.int32) for n in sizes[1:])
        ways = [functools.partial(self.loop, axis, sizes[: k + 1], of_size) for k in range(len(sizes))]
        return list(lax.switch(which, ways, *xs)) if len(ways) > 1 else ways[0](*xs)

    def leaf(self, taken: dict[int, int], begins: dict[int, Any], xs: list[Any]) -> list[Any]:
        return self.function.bind(taken, begins, xs)

    def loop(self, axis: Axis, sizes: Sequence[int], call: Callable[[int, Any, list[Any]], list[Any]], *xs: Any) -> list[Any]:
        """The most parts at a time. Arrays of fewer have the last one again."""
        size, inputs, dims = sizes[-1], self.function.inputs, axis.dims
        total = jax.core.max_dim(axis.count, size)
        padded = [_padded(x, dims.get(i), axis.count, total) for i, x in enumerate(xs)]
        last = _versions.dimension_value(total) - size
        shapes = jax.eval_shape(lambda *xs: call(size, 0, list(xs)), *[_part(x, dims.get(i), 0, size) for i, x in enumerate(padded)])
        results = [jnp.zeros(_extended(x.shape, dims.get(inputs + r), total), x.dtype) for r, x in enumerate(shapes)]

        def turn(i: Any, made: list[Any]) -> list[Any]:
            start = jnp.minimum(i * size, last)
            found = call(size, start, [_part(x, dims.get(n), start, size) for n, x in enumerate(padded)])
            return [_put(to, x, dims.get(inputs + r), start) for r, (to, x) in enumerate(zip(made, found))]

        made = lax.fori_loop(0, (_versions.dimension_value(total) + size - 1) // size, turn, results)
        return [_first(x, dims.get(inputs + r), axis.count) for r, x in enumerate(made)]


@dataclasses.dataclass(frozen=True)
class _Backward(_Forward):
    wanted: list[int]
    given: list[int]

    def leaf(self, taken: dict[int, int], begins: dict[int, Any], xs: list[Any]) -> list[Any]:
        arrays, given = xs[: len(xs) - len(self.given)], xs[len(xs) - len(self.given) :]

        def some(*floats: Any) -> list[Any]:
            now = list(arrays)
            for i, x in zip(self.wanted, floats):
                now[i] = x
            found = self.function.bind(taken, begins, now)
            return [found[o] for o in self.given]

        return list(jax.vjp(some, *(arrays[i] for i in self.wanted))[1](given))

    def loop(self, axis: Axis, sizes: Sequence[int], call: Callable[[int, Any, list[Any]], list[Any]], *xs: Any) -> list[Any]:
        first, total = len(xs) - len(self.given), jax.core.max_dim(axis.count, sizes[-1])
        dims = [axis.dims.get(n) for n in (*range(first), *(self.function.inputs + o for o in self.given))]
        padded = [_padded(x, at, axis.count, total) for x, at in zip(xs, dims)]
        results = []
        for i in self.wanted:
            dtype = padded[i].dtype if dims[i] else jnp.promote_types(padded[i].dtype, jnp.float32)
            results.append(jnp.zeros(padded[i].shape, dtype))
        done, count = jnp.int32(0), _versions.dimension_value(axis.count)
        for size in reversed(sizes):

            def turn(i: Any, made: list[Any], size: int = size, done: Any = done) -> list[Any]:
                start = done + i * size
                found = call(size, start, [_part(x, at, start, size) for x, at in zip(padded, dims)])
                return [_put(to, x, at, start) if (at := dims[n]) else to + x.astype(to.dtype) for n, to, x in zip(self.wanted, made, found)]

            turns = (count - done) // size
            results = lax.fori_loop(0, turns, turn, results)
            done = done + turns * size
        return [_first(x, dims[i], axis.count) for i, x in zip(self.wanted, results)]


#: The dimension of an array that has parts, and a part's extent there; None: it is whole.
_At = tuple[int, int] | None


def _padded(x: Any, at: _At, count: Any, total: Any) -> Any:
    if at is None or total is count:
        return x
    k, block = at
    last = lax.slice_in_dim(x, (count - 1) * block, count * block, axis=k)
    shape = (*x.shape[:k], total - count, block, *x.shape[k + 1 :])
    more = jnp.broadcast_to(jnp.expand_dims(last, k), shape).reshape(*x.shape[:k], (total - count) * block, *x.shape[k + 1 :])
    return jnp.concatenate([x, more], axis=k)


def _extended(shape: Sequence[Any], at: _At, total: Any) -> tuple[Any, ...]:
    return tuple(total * at[1] if at is not None and d == at[0] else n for d, n in enumerate(shape))


def _part(x: Any, at: _At, start: Any, size: int) -> Any:
    return x if at is None else lax.dynamic_slice_in_dim(x, start * at[1], size * at[1], axis=at[0])


def _put(to: Any, x: Any, at: _At, start: Any) -> Any:
    """What all parts have in common each of them gives."""
    return x if at is None else lax.dynamic_update_slice_in_dim(to, x.astype(to.dtype), start * at[1], at[0])


def _first(x: Any, at: _At, count: Any) -> Any:
    return x if at is None else lax.slice_in_dim(x, 0, count * at[1], axis=at[0])
