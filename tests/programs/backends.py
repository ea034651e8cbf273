"""The operations that random programs are made of, in lax (traced into a kernel) and in NumPy (computed at once).

Both have the same methods. Control flow takes functions: lax traces each once, NumPy calls it as often as it runs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax.experimental.pallas as pl
import jax.experimental.pallas.mosaic_gpu as plgpu
import jax.numpy as jnp
import numpy as np
from jax import lax

from tests.oracles import semantics
from tests.oracles.semantics import Array

#: An odd number, so that nothing is lost.
MIX = np.uint32(0x01000193)

Body = Callable[..., Sequence[Array]]


class Numpy:
    """`tables`: vectors of numbers that are looked up one by one."""

    def __init__(self, tables: Sequence[Array] = ()) -> None:
        self.tables = tables

    def lookup(self, table: int, index: Array) -> Array:
        return self.tables[table][int(index)]

    def full(self, value: Any, shape: tuple[int, ...]) -> Array:
        return np.full(shape, value, value.dtype)

    def apply(self, name: str, *xs: Array) -> Array:
        return semantics.apply(name, *xs)

    def mix(self, x: Array, y: Array) -> Array:
        """Of u32 arrays; y may be a scalar."""
        return (x ^ y) * MIX

    def compare(self, name: str, x: Array, y: Array) -> Array:
        return semantics.compare(name, x, y)

    def select(self, which: Array, *cases: Array) -> Array:
        return np.choose(np.asarray(which).astype(np.int32), [np.broadcast_to(c, np.shape(cases[0])) for c in cases])

    def clamp(self, low: Array, x: Array, high: Array) -> Array:
        return semantics.apply("min", semantics.apply("max", x, low), high)

    def convert(self, x: Array, to: np.dtype[Any]) -> Array:
        with np.errstate(all="ignore"):
            return semantics.convert(x, to)

    def bitcast(self, x: Array, to: np.dtype[Any]) -> Array:
        return np.asarray(x).view(to)

    def copysign(self, x: Array, y: Array) -> Array:
        return semantics.copysign(x, y)

    def nextafter(self, x: Array, y: Array) -> Array:
        return semantics.nextafter(x, y)

    def is_finite(self, x: Array) -> Array:
        return np.isfinite(x)

    def reduce(self, name: str, x: Array, axes: tuple[int, ...]) -> Array:
        return semantics.reduce(name, x, axes)

    def broadcast(self, x: Array, shape: tuple[int, ...], dims: tuple[int, ...]) -> Array:
        wide = np.expand_dims(x, tuple(i for i in range(len(shape)) if i not in dims))
        return np.broadcast_to(wide, shape).copy()

    def reverse(self, x: Array, axis: int) -> Array:
        return np.flip(x, axis)

    def roll(self, x: Array, by: int, axis: int) -> Array:
        return np.roll(x, by, axis)

    def through_transpose(self, x: Array, f: Callable[[Array], Array]) -> Array:
        return f(x.T).T

    def reshape(self, x: Array, shape: tuple[int, ...]) -> Array:
        return x.reshape(shape)

    def row(self, x: Array, index: Array) -> Array:
        """A slice of the first dimension, its number clamped."""
        return x[min(max(int(index), 0), len(x) - 1)]

    def with_row(self, x: Array, index: Array, row: Array) -> Array:
        out = x.copy()
        out[min(max(int(index), 0), len(x) - 1)] = row
        return out

    def running(self, name: str, x: Array, axis: int, reverse: bool) -> Array:
        """Results of `name` over ever more elements."""
        parts = list(np.moveaxis(x, axis, 0))[:: -1 if reverse else 1]
        out = parts[:1]
        for part in parts[1:]:
            out.append(semantics.apply(name, out[-1], part))
        return np.moveaxis(np.stack(out[:: -1 if reverse else 1]), 0, axis)

    def loop(self, count: Any, carries: Sequence[Array], body: Body) -> Sequence[Array]:
        for i in range(int(count)):
            carries = body(np.int32(i), *carries)
        return carries

    def while_loop(self, carries: Sequence[Array], cond: Callable[..., Array], body: Body) -> Sequence[Array]:
        while cond(*carries):
            carries = body(*carries)
        return carries

    def branch(self, index: Array, arms: Sequence[Callable[[], Sequence[Array]]]) -> Sequence[Array]:
        return arms[int(index)]()

    def scan(self, xs: Sequence[Array], carries: Sequence[Array], reverse: bool, body: Body) -> tuple[Sequence[Array], list[Array]]:
        """`body` returns carries and slices of what is stacked."""
        n = len(xs[0])
        rows: list[Any] = [None] * n
        for i in reversed(range(n)) if reverse else range(n):
            out = body(*carries, *(x[i] for x in xs))
            carries, rows[i] = out[: len(carries)], out[len(carries) :]
        return carries, [np.stack(column) for column in zip(*rows)]

    def through_smem(self, x: Array, body: Callable[[Array], Sequence[Array]]) -> Sequence[Array]:
        return body(x)


class Jax:
    """`warpgroups` and `warpgroup` (an index) are of the kernel that is traced; `tables` are refs of vectors."""

    def __init__(self, warpgroups: int = 1, warpgroup: Any = None, tables: Sequence[Any] = ()) -> None:
        self.warpgroups = warpgroups
        self.warpgroup = warpgroup
        self.tables = tables

    def lookup(self, table: int, index: Array) -> Array:
        return self.tables[table][index]

    def full(self, value: Any, shape: tuple[int, ...]) -> Array:
        return lax.full(shape, value, value.dtype)

    _NAMES = {
        "round_to_even": lambda x: lax.round(x, lax.RoundingMethod.TO_NEAREST_EVEN),
        "round_away": lambda x: lax.round(x, lax.RoundingMethod.AWAY_FROM_ZERO),
        "cube": lambda x: lax.integer_pow(x, 3),
        "and": lax.bitwise_and,
        "or": lax.bitwise_or,
        "xor": lax.bitwise_xor,
        "not": lax.bitwise_not,
    }

    def _function(self, name: str) -> Any:
        return self._NAMES.get(name) or getattr(lax, name)

    def apply(self, name: str, *xs: Array) -> Array:
        return self._function(name)(*self._alike(xs))

    def mix(self, x: Array, y: Array) -> Array:
        return (x ^ y) * MIX  # rank-0 operands as they are

    def compare(self, name: str, x: Array, y: Array) -> Array:
        return getattr(lax, name)(*self._alike((x, y)))

    def _alike(self, xs: Sequence[Array]) -> list[Array]:
        shape = np.broadcast_shapes(*(x.shape for x in xs))
        return [x if x.shape == shape else lax.broadcast(x, shape) for x in xs]

    def select(self, which: Array, *cases: Array) -> Array:
        return lax.select_n(which, *cases)

    def clamp(self, low: Array, x: Array, high: Array) -> Array:
        return lax.clamp(low, x, high)

    def convert(self, x: Array, to: np.dtype[Any]) -> Array:
        return lax.convert_element_type(x, to)

    def bitcast(self, x: Array, to: np.dtype[Any]) -> Array:
        return lax.bitcast_convert_type(x, to)

    def copysign(self, x: Array, y: Array) -> Array:
        return jnp.copysign(x, y)

    def nextafter(self, x: Array, y: Array) -> Array:
        return lax.nextafter(x, y)

    def is_finite(self, x: Array) -> Array:
        return lax.is_finite(x)

    def reduce(self, name: str, x: Array, axes: tuple[int, ...]) -> Array:
        dtype = np.dtype(x.dtype)
        least: Any
        most: Any
        ones: Any
        if semantics.is_float(dtype):
            least, most, ones = -np.inf, np.inf, 0
        elif dtype == semantics.BOOL:
            least, most, ones = False, True, True
        else:
            least, most, ones = np.iinfo(dtype).min, np.iinfo(dtype).max, ~dtype.type(0)
        start = {"max": least, "min": most, "add": 0, "and": ones, "or": 0, "xor": 0}[name]
        return lax.reduce(x, np.array(start, dtype), self._function(name), axes)

    def broadcast(self, x: Array, shape: tuple[int, ...], dims: tuple[int, ...]) -> Array:
        return lax.broadcast_in_dim(x, shape, dims)

    def reverse(self, x: Array, axis: int) -> Array:
        return lax.rev(x, (axis,))

    def roll(self, x: Array, by: int, axis: int) -> Array:
        by %= x.shape[axis]
        left, right = (lax.slice_in_dim(x, a, b, axis=axis) for a, b in ((x.shape[axis] - by, None), (0, x.shape[axis] - by)))
        return lax.concatenate([left, right], axis)

    def through_transpose(self, x: Array, f: Callable[[Array], Array]) -> Array:
        return f(x.T).T

    def reshape(self, x: Array, shape: tuple[int, ...]) -> Array:
        return lax.reshape(x, shape)

    def row(self, x: Array, index: Array) -> Array:
        return lax.dynamic_index_in_dim(x, index, 0, keepdims=False)

    def with_row(self, x: Array, index: Array, row: Array) -> Array:
        return lax.dynamic_update_index_in_dim(x, row, index, 0)

    def running(self, name: str, x: Array, axis: int, reverse: bool) -> Array:
        return {"add": lax.cumsum, "max": lax.cummax, "min": lax.cummin}[name](x, axis, reverse)

    def loop(self, count: Any, carries: Sequence[Array], body: Body) -> Sequence[Array]:
        def step(i: Any, carried: Any) -> Any:
            return tuple(body(lax.convert_element_type(i, np.int32), *carried))

        return lax.fori_loop(0, count, step, tuple(carries))

    def while_loop(self, carries: Sequence[Array], cond: Callable[..., Array], body: Body) -> Sequence[Array]:
        return lax.while_loop(lambda c: cond(*c), lambda c: tuple(body(*c)), tuple(carries))

    def branch(self, index: Array, arms: Sequence[Callable[[], Sequence[Array]]]) -> Sequence[Array]:
        whole = [lambda arm=arm: tuple(arm()) for arm in arms]
        if index.dtype == np.bool_:
            return lax.cond(index, whole[1], whole[0])
        return lax.switch(index, whole)

    def scan(self, xs: Sequence[Array], carries: Sequence[Array], reverse: bool, body: Body) -> tuple[Sequence[Array], list[Array]]:
        def step(carried: Any, rows: Any) -> Any:
            out = body(*carried, *rows)
            return tuple(out[: len(carries)]), tuple(out[len(carries) :])

        return lax.scan(step, tuple(carries), tuple(xs), reverse=reverse)

    def through_smem(self, x: Array, body: Callable[[Array], Sequence[Array]]) -> Sequence[Array]:
        """Stores `x` to a buffer of a scope, loads it, and goes on inside of the scope."""
        shared = self.warpgroups > 1

        def scope(buffer: Any) -> Any:
            buffer = buffer.at[self.warpgroup] if shared else buffer
            buffer[...] = x
            return tuple(body(buffer[...]))

        shape = (self.warpgroups, *x.shape) if shared else x.shape
        axes = {"collective_axes": "wg"} if shared else {}
        return pl.run_scoped(scope, plgpu.SMEM(shape, x.dtype), **axes)


