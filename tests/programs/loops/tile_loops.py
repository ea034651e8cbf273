"""Random kernels of one warpgroup that multiplies tile after tile and loads its operands itself: what may be stored late, what must not.

Tiles begin with copies, or with nothing where there are no steps; they end with stores to shared memory, in scopes or not, copied out
whole, in rows, to one result or two, or with something that must stay where it is. Each kernel has a NumPy reference that does one tile after the
other. Numbers are small and whole, so sums are exact.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax.experimental.pallas as pl
import jax.experimental.pallas.mosaic_gpu as plgpu
import jax.numpy as jnp
import numpy as np
from jax import lax

from tests.corpus.case import kernel, like
from tests.programs.loops.loops import Loops, grammar
from tests.programs.views import tiled

Array = np.ndarray[Any, Any]

#: Tiles along one side, and steps of 64 of a tile at most.
SIDE, STEPS = 3, 4
#: How a tile ends.
ENDS = ("whole", "whole", "rows", "two results", "addend", "in place", "twice")
#: What it is computed with before.
BIASES = (None, None, "counter", "loaded")


@dataclasses.dataclass(frozen=True)
class Tiles(Loops):
    """`tiles` are `SIDE` along n; `loaded`: their number is loaded by the kernel. `ragged`: so are the steps of each, 0 among them."""

    seed: int
    m: int
    n: int
    slots: int
    delay: int
    tiles: int
    steps: int
    loaded: bool
    ragged: bool
    transformed: bool
    #: Shared memory of the epilogue: of a scope of its own, or the kernel's.
    scoped: bool
    #: All groups are waited for before a store, not behind the copies.
    waits_first: bool
    complete: bool
    end: str
    bias: str | None

    @classmethod
    def of(cls, seed: int) -> Tiles:
        rng = np.random.default_rng([seed, 10])
        pick = lambda of: of[int(rng.integers(len(of)))]  # noqa: E731
        flag = lambda: bool(rng.integers(2))  # noqa: E731
        slots = pick((2, 3, 4))
        return cls(
            seed, pick((64, 128)), pick((64, 128)), slots, pick((0, 1)), pick((0, 1, 2, 4, 5)), pick((1, 2, STEPS)), flag(), flag(), flag(),
            flag(), flag(), flag(), pick(ENDS), pick(BIASES),
        )  # fmt: skip

    @property
    def rows(self) -> int:
        return -(-max(self.tiles, 1) // SIDE) * self.m

    @property
    def results(self) -> int:
        return 2 if self.end in ("two results", "twice") else 1

    # ------------------------------------------------------------ as a kernel

    def function(self) -> Any:
        transforms = {"transforms": tiled(jnp.float16, 128)} if self.transformed else {}
        out_buffer = plgpu.SMEM((self.m, self.n), jnp.float16, **transforms)

        def body(counts: Any, a: Any, b: Any, addend: Any, *rest: Any) -> None:
            outs, buffer = rest[: self.results], rest[self.results :]

            def tile(t: Any, _: Any) -> None:
                mi, ni = lax.div(t, SIDE), lax.rem(t, SIDE)
                place = (pl.ds(mi * self.m, self.m), pl.ds(ni * self.n, self.n))

                def multiply(acc: Any) -> Any:
                    def steps(n: Any) -> None:
                        plgpu.emit_pipeline(
                            lambda _, x, y: self.step(acc, x, y),
                            grid=(n,),
                            in_specs=[
                                plgpu.BlockSpec((self.m, 64), lambda k: (mi, k), delay_release=self.delay, **transforms),
                                plgpu.BlockSpec((64, self.n), lambda k: (k, ni), delay_release=self.delay, **transforms),
                            ],
                            max_concurrent_steps=self.slots,
                        )(a, b)

                    if self.ragged:
                        n = counts[1 + t]
                        pl.when(n > 0)(lambda: steps(n))
                    else:
                        steps(self.steps)
                    return acc[...]

                x = pl.run_scoped(multiply, plgpu.ACC((self.m, self.n)))
                if self.bias == "counter":
                    x = x + t.astype(jnp.float32)
                elif self.bias is not None:
                    x = x + counts[0].astype(jnp.float32)
                finish = functools.partial(self.finish, x, t, place, addend, outs)
                if self.scoped:
                    pl.run_scoped(finish, out_buffer)
                else:
                    finish(*buffer)

            lax.fori_loop(0, counts[0] if self.loaded else self.tiles, tile, None)
            plgpu.wait_smem_to_gmem(0)

        shape = (self.rows, SIDE * self.n)
        scratch = () if self.scoped else (out_buffer,)
        return kernel(body, [like(shape, jnp.float16)] * self.results, *scratch)

    def step(self, acc: Any, x: Any, y: Any) -> None:
        plgpu.wgmma(acc, x, y)
        if self.delay == 0:
            plgpu.wgmma_wait(0)

    def finish(self, x: Any, t: Any, place: Any, addend: Any, outs: Any, buffer: Any) -> None:
        """The end of a tile."""
        if self.waits_first:
            plgpu.wait_smem_to_gmem(0)
        if self.end == "addend":
            x = x + addend[0].astype(jnp.float32)
        buffer[...] = x.astype(jnp.float16)
        plgpu.commit_smem()
        if self.end == "rows":
            half = self.m // 2
            rows, columns = place

            @pl.when(lax.rem(t, 2) == 0)
            def _() -> None:
                plgpu.copy_smem_to_gmem(buffer.at[pl.ds(0, half)], outs[0].at[pl.ds(rows.start, half), columns])

            @pl.when(t >= 1)
            def _() -> None:
                plgpu.copy_smem_to_gmem(buffer.at[pl.ds(half, half)], outs[0].at[pl.ds(rows.start + half, half), columns])
        else:
            plgpu.copy_smem_to_gmem(buffer, outs[0].at[place])
        if self.end == "two results":
            plgpu.copy_smem_to_gmem(buffer, outs[1].at[place])
        elif self.end == "in place":
            plgpu.wait_smem_to_gmem(0)
            buffer[...] = buffer[...] + jnp.float16(1)
            plgpu.commit_smem()
            plgpu.copy_smem_to_gmem(buffer, outs[0].at[place])
        elif self.end == "twice":
            plgpu.wait_smem_to_gmem(0, wait_read_only=True)
            buffer[...] = (x * 2).astype(jnp.float16)
            plgpu.commit_smem()
            plgpu.copy_smem_to_gmem(buffer, outs[1].at[place])
        if not self.waits_first or self.scoped:
            plgpu.wait_smem_to_gmem(0, wait_read_only=not self.complete)

    def inputs(self) -> list[Array]:
        rng = np.random.default_rng([self.seed, 11])
        counts = np.concatenate([[self.tiles], rng.integers(0, self.steps + 1, 15)]).astype(np.int32)
        a = rng.integers(-2, 3, (self.rows, 64 * self.steps)).astype(np.float16)
        b = rng.integers(-1, 2, (64 * self.steps, SIDE * self.n)).astype(np.float16)
        return [counts, a, b, rng.integers(-3, 4, 8).astype(np.float32)]

    # ------------------------------------------------------------ in NumPy

    def written(self) -> list[Array]:
        return [~np.isnan(x) for x in self.reference()]

    def reference(self) -> list[Array]:
        """What nobody stores is NaN."""
        counts, a, b, addend = self.inputs()
        outs = [np.full((self.rows, SIDE * self.n), np.nan, np.float16) for _ in range(self.results)]
        for t in range(self.tiles):
            mi, ni = divmod(t, SIDE)
            k = 64 * (int(counts[1 + t]) if self.ragged else self.steps)
            rows, columns = slice(mi * self.m, (mi + 1) * self.m), slice(ni * self.n, (ni + 1) * self.n)
            x = a[rows, :k].astype(np.float32) @ b[:k, columns].astype(np.float32)
            if self.bias == "counter":
                x = x + t
            elif self.bias is not None:
                x = x + self.tiles
            if self.end == "addend":
                x = x + addend[0]
            half = self.m // 2
            if self.end == "rows":
                if t % 2 == 0:
                    outs[0][rows, columns][:half] = x[:half]
                if t >= 1:
                    outs[0][rows, columns][half:] = x[half:]
            else:
                outs[0][rows, columns] = x + 1 if self.end == "in place" else x
            if self.results == 2:
                outs[1][rows, columns] = 2 * x if self.end == "twice" else x
        return outs


TILE_LOOPS = grammar("tile loops", Tiles.of)
