"""`pl.pallas_call`s over blocks that follow one another, which `suite_partition` splits over devices and `suite_symbolic` exports for all sizes."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.experimental.pallas as pl
import jax.experimental.pallas.mosaic_gpu as plgpu
import jax.numpy as jnp
import numpy as np


def normal(*shape: int, seed: int = 0) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def like(x: Any, *shape: Any, dtype: Any = None) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape or x.shape, dtype or x.dtype)


def rows(width: int, n: int = 8) -> pl.BlockSpec:
    return pl.BlockSpec((n, width), lambda i: (i, 0))


def copied(x: Any, o: Any) -> None:
    o[...] = x[...]


def carried(x: Any, o: Any, s: Any) -> None:
    """Each step needs what the one before it left in scratch."""

    @pl.when(pl.program_id(0) == 0)
    def _() -> None:
        s[...] = jnp.zeros_like(s)

    s[...] += x[...]
    o[...] = s[...]


def numbered_within_a_rule(x: Any, o: Any) -> None:
    """A function with a derivative of its own asks which step it is."""
    f = jax.custom_jvp(lambda v: v * pl.program_id(0))
    f.defjvp(lambda primals, tangents: (f(*primals), f(*tangents)))
    o[...] = f(x[...])


def matmul(x: Any, y: Any) -> Any:
    def body(x: Any, y: Any, o: Any, acc: Any) -> None:
        @pl.when(pl.program_id(2) == 0)
        def _() -> None:
            acc[...] = jnp.zeros_like(acc)

        acc[...] += jnp.dot(x[...], y[...], precision="highest")

        @pl.when(pl.program_id(2) == pl.num_programs(2) - 1)
        def _() -> None:
            o[...] = acc[...]

    (m, k), n = x.shape, y.shape[1]
    return pl.pallas_call(
        body,
        out_shape=like(x, m, n),
        grid=(m // 32, n // 32, k // 32),
        in_specs=[pl.BlockSpec((32, 32), lambda i, j, k: (i, k)), pl.BlockSpec((32, 32), lambda i, j, k: (k, j))],
        out_specs=pl.BlockSpec((32, 32), lambda i, j, k: (i, j)),
        scratch_shapes=[plgpu.SMEM((32, 32), jnp.float32)],
    )(x, y)


@dataclasses.dataclass(frozen=True)
class Array:
    """Of each dimension the axis of the grid (None: whole), the block's extent (0: squeezed), and how the block moves."""

    dims: tuple[tuple[int | None, int, str], ...]

    def shape(self, grid: Sequence[Any]) -> tuple[Any, ...]:
        return tuple(n if a is None else grid[a] * max(n, 1) for a, n, _ in self.dims)

    def spec(self, grid: Sequence[Any]) -> pl.BlockSpec:
        def index_map(*at: Any) -> tuple[Any, ...]:
            return tuple(0 if a is None else grid[a] - 1 - at[a] if how == "flip" else at[a] // 2 if how == "half" else at[a] for a, _, how in self.dims)

        return pl.BlockSpec(tuple(n or None for _, n, _ in self.dims), index_map)


def random_call(seed: int) -> tuple[Callable[[Sequence[Any]], Any], list[Array], tuple[int, ...], list[bool]]:
    """A call over a grid that adds up its inputs' blocks, each summed over what the output has not; its arrays, the output last; a grid; which axes can
    be split, and have any size."""
    rng = random.Random(seed)
    grid = tuple(rng.choice([1, 2, 4, 8]) for _ in range(rng.randint(1, 3)))
    carried = rng.randrange(len(grid)) if rng.random() < 0.3 else None
    asked = rng.randrange(len(grid)) if rng.random() < 0.2 else None
    block = [rng.choice([0, 2, 3, 8]) for _ in grid]

    def array(is_output: bool) -> Array:
        axes = [a for a in range(len(grid)) if a != carried and (is_output or rng.random() < 0.7) or a == carried and not is_output]
        how = {a: rng.choices(["", "flip", "half"], [8, 1, 0 if is_output else 1])[0] for a in axes}
        dims = [(a, block[a], how[a]) for a in axes]
        dims += [] if is_output else [(None, rng.choice([1, 4]), "")] * rng.randint(0, 1)
        rng.shuffle(dims)
        return Array(tuple(dims))

    arrays = [*(array(False) for _ in range(rng.randint(1, 3))), array(True)]
    out = arrays[-1]
    own = [a for a, n, _ in out.dims if n]

    def body(*refs: Any) -> None:
        *ins, o = refs
        total = jnp.zeros(o.shape, jnp.int32) + (0 if asked is None else pl.program_id(asked))
        for x, ref in zip(arrays, ins):
            kept = [a for a, n, _ in x.dims if n != 0]
            v = jnp.sum(ref[...], axis=tuple(k for k, a in enumerate(kept) if a not in own))
            kept = [a for a in kept if a in own]
            v = jnp.transpose(v, [kept.index(a) for a in own if a in kept])
            total = total + v.reshape([block[a] if a in kept else 1 for a in own])
        if carried is None:
            o[...] = total
            return

        @pl.when(pl.program_id(carried) == 0)
        def _() -> None:
            o[...] = jnp.zeros_like(o)

        o[...] += total

    def make(grid: Sequence[Any]) -> Any:
        specs = [x.spec(grid) for x in arrays]
        shape = jax.ShapeDtypeStruct(out.shape(grid), jnp.int32)
        return pl.pallas_call(body, out_shape=shape, grid=tuple(grid), in_specs=specs[:-1], out_specs=specs[-1])

    moves = {a for x in arrays for a, _, how in x.dims if how and grid[a] > 1}
    return make, arrays, grid, [a in {d for d, _, _ in out.dims} and a not in moves and a != carried for a in range(len(grid))]
