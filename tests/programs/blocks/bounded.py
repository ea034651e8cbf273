"""Random calls with `pl.BoundedSlice` dimensions, against NumPy: JAX's interpreter has none.

Rows fall into groups of different sizes, none included; a step of the grid takes one group (and a block of columns). Where they begin
is in a prefetched table, or a function of the grid's indices.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.experimental.pallas as pl
import jax.experimental.pallas.mosaic_gpu as plgpu
import jax.experimental.pallas.tpu as pltpu
import jax.numpy as jnp
import numpy as np

from tests.fuzz.bits import keep
from tests.fuzz.grammar import Grammar


@dataclasses.dataclass(frozen=True)
class Bounded:
    seed: int

    def check(self) -> None:
        rng = np.random.default_rng([self.seed, 11])
        dtype = [np.float32, np.int32, jnp.bfloat16, np.int8, np.float16][int(rng.integers(5))]
        groups, bound = int(rng.integers(1, 6)), int(rng.integers(1, 40))
        width, blocks = int(rng.integers(1, 50)), int(rng.integers(1, 4))
        in_table = bool(rng.integers(2))
        # Slices of an affine map have one length, and lie apart or overlap.
        step, first, size = int(rng.integers(0, 20)), int(rng.integers(0, 5)), int(rng.integers(1, bound + 1))
        lengths = rng.integers(0, bound + 1, groups) if in_table else np.full(groups, size)
        begins = np.cumsum([0, *lengths[:-1]]) if in_table else first + step * np.arange(groups)
        rows = int(max(begins[-1] + lengths[-1], 1)) + int(rng.integers(0, 3))
        turned = bool(rng.integers(2))  # groups are columns
        to_groups = bool(rng.integers(2))  # the output has the groups apart
        x = rng.integers(-10, 10, (rows, width * blocks)).astype(dtype)
        table = np.stack([begins, lengths]).astype(np.int32)

        def part(i: Any, t: Any) -> Any:
            return pl.ds(t[0, i], t[1, i]) if in_table else pl.ds(i * step + first, size)

        def spec(where: Any) -> pl.BlockSpec:
            row = (pl.BoundedSlice(bound) if where is part else bound, width)
            shape = row[::-1] if turned else row
            return pl.BlockSpec(shape, lambda i, j, t: (j, where(i, t)) if turned else (where(i, t), j))

        def body(t: Any, x: Any, o: Any) -> None:
            o[...] = x[...] * 2 + (pl.program_id(0) + 1).astype(o.dtype)

        out_rows = groups * bound if to_groups else rows
        shape = (width * blocks, out_rows) if turned else (out_rows, width * blocks)
        given = x.T if turned else x
        call = pl.pallas_call(
            body,
            out_shape=jax.ShapeDtypeStruct(shape, dtype),
            grid_spec=pltpu.PrefetchScalarGridSpec(
                num_scalar_prefetch=1,
                grid=(groups, blocks),
                in_specs=[spec(part)],
                out_specs=spec((lambda i, t: i) if to_groups else part),
            ),
            compiler_params=plgpu.CompilerParams(max_concurrent_steps=int(rng.integers(1, 3))),
        )
        got = np.asarray(jax.jit(call)(table, np.ascontiguousarray(given)))
        got = got.T if turned else got
        wanted, known = np.zeros((out_rows, width * blocks), dtype), np.zeros(out_rows, bool)
        for i, (begin, length) in enumerate(zip(begins, lengths)):
            to = slice(i * bound, i * bound + length) if to_groups else slice(begin, begin + length)
            wanted[to] = (x[begin : begin + length] * np.asarray(2, dtype) + np.asarray(i + 1, dtype)).astype(dtype)
            known[to] = True
        where = f"seed {self.seed}: {np.dtype(dtype)} {x.shape} {begins} {lengths} of {bound}"
        np.testing.assert_array_equal(keep(got[known]), wanted[known], err_msg=where)


BOUNDED = Grammar("pallas calls, bounded", Bounded, Bounded.check)
