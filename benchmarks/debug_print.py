"""What a print costs that is never reached: a persistent matmul with one, against the same kernel without, in one process on one GPU.

    PYTHONPATH=jax_plugin:. python benchmarks/debug_print.py [--json out.json]

One warpgroup fills a ring of slots, two multiply and store tiles. A flag in device memory, which the compiler cannot know and which is 0, would have
the workers print: a scalar at their end, a scalar and their part of a tile behind each tile's products, or a scalar in each step. The last two keep smalt
from storing a tile beside the next one's products (`passes/loops/defer_epilogue.rs`), which costs more than the print. Of each kernel the device time (CUPTI),
and the time of a launch among many (the host's call behind a launch included), each a median of many, the two kernels in turn.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.experimental.pallas as pl
import jax.experimental.pallas.mosaic_gpu as plgpu
import jax.numpy as jnp
import numpy as np
from jax import lax

import smalt
from benchmarks.common import describe_machine, interleaved, median

TILE, K, SLOTS, WORKERS = 128, 64, 4, 2
HALF = TILE // WORKERS
#: Tiles of a stripe that blocks compute side by side.
STRIPE = 16
SWIZZLED = (plgpu.TilingTransform((8, 64)), plgpu.SwizzleTransform(128))
SHAPES = ((8192, 8192, 8192), (4096, 4096, 4096))
PLACES = ("end", "tile", "step")


def matmul(a: jax.Array, b: jax.Array, flag: jax.Array, blocks: int, place: str | None) -> jax.Array:
    """`place`: where it prints if the flag says so; None: nowhere."""
    (m, k), n = a.shape, b.shape[1]
    steps, across = k // K, n // TILE
    tiles = (m // TILE) * across

    def body(a_gmem: Any, b_gmem: Any, flag: Any, out: Any, a_buf: Any, b_buf: Any, out_buf: Any, full: Any, free: Any) -> None:
        wg, block = lax.axis_index("wg"), lax.axis_index("block")
        count = (tiles - block + blocks - 1) // blocks
        loop: Callable[[Any, Any], Callable[[Callable[[Any], None]], Any]] = pl.loop
        when: Callable[[Any], Callable[[Callable[[], None]], Any]] = pl.when

        def corner(i: Any) -> tuple[Any, Any]:
            tile = block + i * blocks
            stripe = m // TILE * STRIPE
            inside = lax.rem(tile, stripe)
            column = lax.div(tile, stripe) * STRIPE + lax.rem(inside, STRIPE)
            return lax.div(inside, STRIPE) * TILE, column * TILE

        @when(wg == WORKERS)
        def _load() -> None:
            @loop(0, count)
            def _(i: Any) -> None:
                row, column = corner(i)

                @loop(0, steps)
                def _(step: Any) -> None:
                    s = lax.rem(step, SLOTS)
                    at = i * steps + step

                    @when(at >= SLOTS)
                    def _() -> None:
                        plgpu.barrier_wait(free.at[s])

                    plgpu.copy_gmem_to_smem(a_gmem.at[pl.ds(row, TILE), pl.ds(step * K, K)], a_buf.at[s], full.at[s])
                    plgpu.copy_gmem_to_smem(b_gmem.at[pl.ds(step * K, K), pl.ds(column, TILE)], b_buf.at[s], full.at[s])

        @when(wg < WORKERS)
        def _multiply() -> None:
            rows = pl.ds(wg * HALF, HALF)
            wanted = flag[0] != 0

            @loop(0, count)
            def _(i: Any) -> None:
                row, column = corner(i)

                def compute(acc: Any) -> Any:
                    @loop(0, steps)
                    def _(step: Any) -> None:
                        s = lax.rem(step, SLOTS)
                        plgpu.barrier_wait(full.at[s])
                        plgpu.wgmma(acc, a_buf.at[s, rows], b_buf.at[s])
                        plgpu.wgmma_wait(0)
                        plgpu.barrier_arrive(free.at[s])
                        if place == "step":
                            when(wanted)(lambda: pl.debug_print("step {} of tile ({}, {})", step, row, column))

                    return acc[...]

                x = pl.run_scoped(compute, plgpu.ACC((HALF, TILE), jnp.float32))
                if place == "tile":

                    @when(wanted)
                    def _() -> None:
                        pl.debug_print("tile ({}, {})", row, column)
                        pl.debug_print("{}", x)

                plgpu.wait_smem_to_gmem(0, wait_read_only=True)
                out_buf.at[rows][...] = x.astype(out.dtype)
                plgpu.commit_smem()
                here = pl.ds(row + wg * HALF, HALF)
                plgpu.copy_smem_to_gmem(out_buf.at[rows], out.at[here, pl.ds(column, TILE)])

            plgpu.wait_smem_to_gmem(0)
            if place == "end":
                when(wanted)(lambda: pl.debug_print("{} tiles", count))

    result: jax.Array = plgpu.kernel(
        body,
        out_type=jax.ShapeDtypeStruct((m, n), a.dtype),
        scratch_types=[
            plgpu.SMEM((SLOTS, TILE, K), a.dtype, transforms=SWIZZLED),
            plgpu.SMEM((SLOTS, K, TILE), a.dtype, transforms=SWIZZLED),
            plgpu.SMEM((TILE, TILE), a.dtype, transforms=SWIZZLED),
            plgpu.Barrier(num_barriers=SLOTS, num_arrivals=2),
            plgpu.Barrier(num_barriers=SLOTS, num_arrivals=WORKERS),
        ],
        grid=(blocks,),
        grid_names=("block",),
        num_threads=WORKERS + 1,
        thread_name="wg",
    )(a, b, flag)
    return result


def launches(programs: Sequence[Callable[..., Any]], args: Sequence[Any], rounds: int = 20, batch: int = 20) -> list[list[float]]:
    """Microseconds of one launch among `batch`, of each program in turn."""
    times: list[list[float]] = [[] for _ in programs]
    for _ in range(rounds):
        for program, taken in zip(programs, times):
            jax.block_until_ready(program(*args))
            start = time.perf_counter()
            for _ in range(batch):
                out = program(*args)
            jax.block_until_ready(out)
            taken.append((time.perf_counter() - start) * 1e6 / batch)
    return times


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--json")
    options = parser.parse_args()
    print(describe_machine(), flush=True)
    blocks = jax.devices()[0].core_count
    rows: list[dict[str, Any]] = []
    for m, n, k in SHAPES:
        keys = jax.random.split(jax.random.key(0))
        args = (
            jax.random.normal(keys[0], (m, k), jnp.bfloat16),
            jax.random.normal(keys[1], (k, n), jnp.bfloat16),
            jnp.zeros(1, jnp.int32),
        )
        for place in PLACES:
            programs = []
            for where in (None, place):
                with smalt.enabled(True):
                    call = jax.jit(lambda a, b, flag, where=where: matmul(a, b, flag, blocks, where))
                    programs.append(call.lower(*args).compile())
            equal = bool(np.array_equal(*(np.asarray(program(*args)).view(np.uint16) for program in programs)))
            without, with_it = (median(times) for times in interleaved(programs, args, rounds=8, iterations=10))
            launch, launch_with = (median(times) for times in launches(programs, args))
            name = f"{m}x{n}x{k}, " + ("at the end" if place == "end" else f"in each {place}")
            rows.append({"name": name, "kernel us": without, "printing us": with_it, "ratio": with_it / without, "equal bits": equal})
            rows[-1] |= {"launch us": launch, "printing launch us": launch_with, "launch ratio": launch_with / launch}
            print(
                f"{name}: kernel {without:.1f} us, with an unreached print {with_it:.1f} us, ratio {with_it / without:.4f}; "
                f"launches {launch:.1f} us, {launch_with:.1f} us, ratio {launch_with / launch:.4f}; equal bits {equal}",
                flush=True,
            )
    if options.json:
        pathlib.Path(options.json).write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
