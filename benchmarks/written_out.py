"""A persistent matmul as people write it by hand, through smalt and through stock Mosaic GPU, in one process on one GPU.

    PYTHONPATH=jax_plugin:. python benchmarks/written_out.py [--json out.json]

Each block computes tile after tile: one warpgroup fills a ring of slots, waits at a tile's end until all are released, and begins the next tile; two
multiply, and store a tile before they go on. The loops over slots are loops; or they are written out, with slots that are numbers; or slots and
barriers are each their own; and operands are released together or each for itself. smalt lets the producer run into the next tile, and stores a tile
beside the next one's products (`passes/loops/defer_drains.rs`, `defer_epilogue.rs`); the shorter a tile, the more that is worth.
"""

from __future__ import annotations

import argparse
import json
import pathlib
from collections.abc import Callable
from typing import Any

import jax
import jax.experimental.pallas as pl
import jax.experimental.pallas.mosaic_gpu as plgpu
import jax.numpy as jnp
from jax import lax

import smalt
from benchmarks.common import describe_machine, geometric_mean, interleaved, median

TILE, K, SLOTS, WORKERS = 128, 64, 4, 2
HALF = TILE // WORKERS
#: Tiles of a stripe that blocks compute side by side.
STRIPE = 16
SWIZZLED = (plgpu.TilingTransform((8, 64)), plgpu.SwizzleTransform(128))
FORMS = ("loops", "written out", "own")
SHAPES = ((8192, 8192, 8192), (8192, 8192, 1024), (8192, 8192, 512), (16384, 16384, 256))


def aligned(x: Any, to: int) -> Any:
    """As the peer wants to be told."""
    return x if isinstance(x, int) else pl.multiple_of(x, to)


def matmul(a: jax.Array, b: jax.Array, blocks: int, form: str, separate: bool) -> jax.Array:
    (m, k), n = a.shape, b.shape[1]
    steps, across = k // K, n // TILE
    tiles = (m // TILE) * across
    at: Callable[[Any, Any], Any] = lambda ref, s: ref[s] if isinstance(ref, (list, tuple)) else ref.at[s]  # noqa: E731

    def body(a_gmem: Any, b_gmem: Any, out: Any, a_buf: Any, b_buf: Any, out_buf: Any, full: Any, free_a: Any, free_b: Any) -> None:
        wg, block = lax.axis_index("wg"), lax.axis_index("block")
        count = (tiles - block + blocks - 1) // blocks
        loop: Callable[[Any, Any], Callable[[Callable[[Any], None]], Any]] = pl.loop
        when: Callable[[Any], Callable[[Callable[[], None]], Any]] = pl.when

        def corner(i: Any) -> tuple[Any, Any]:
            tile = block + i * blocks
            stripe = m // TILE * STRIPE
            inside = lax.rem(tile, stripe)
            column = lax.div(tile, stripe) * STRIPE + lax.rem(inside, STRIPE)
            return aligned(lax.div(inside, STRIPE) * TILE, TILE), aligned(column * TILE, TILE)

        def over(begin: int, step: Callable[[Any, Any], None]) -> None:
            if form == "loops":
                loop(begin, steps)(lambda k: step(k, lax.rem(k, SLOTS)))
            else:

                @loop(begin // SLOTS, steps // SLOTS)
                def _(r: Any) -> None:
                    for s in range(SLOTS):
                        step(r * SLOTS + s, s)

        def slots(each: Callable[[Any], None]) -> None:
            if form == "loops":
                loop(0, SLOTS)(each)
            else:
                for s in range(SLOTS):
                    each(s)

        @when(wg == WORKERS)
        def _() -> None:
            plgpu.set_max_registers(40, action="decrease")

            @loop(0, count)
            def _(i: Any) -> None:
                row, column = corner(i)

                def fill(step: Any, s: Any) -> None:
                    ks = pl.ds(aligned(step * K, K), K)
                    plgpu.copy_gmem_to_smem(a_gmem.at[pl.ds(row, TILE), ks], at(a_buf, s), at(full, s))
                    plgpu.copy_gmem_to_smem(b_gmem.at[ks, pl.ds(column, TILE)], at(b_buf, s), at(full, s))

                def wait(s: Any) -> None:
                    plgpu.barrier_wait(at(free_a, s))
                    if separate:
                        plgpu.barrier_wait(at(free_b, s))

                def refill(step: Any, s: Any) -> None:
                    wait(s)
                    fill(step, s)

                slots(lambda s: fill(s, s))
                over(SLOTS, refill)
                slots(wait)

        @when(wg < WORKERS)
        def _() -> None:
            plgpu.set_max_registers(232, action="increase")
            rows = pl.ds(aligned(wg * HALF, HALF), HALF)

            @loop(0, count)
            def _(i: Any) -> None:
                row, column = corner(i)

                def compute(acc: Any) -> Any:
                    def multiply(_: Any, s: Any) -> None:
                        plgpu.barrier_wait(at(full, s))
                        plgpu.wgmma(acc, at(a_buf, s).at[rows], at(b_buf, s))
                        plgpu.wgmma_wait(0)
                        plgpu.barrier_arrive(at(free_a, s))
                        if separate:
                            plgpu.barrier_arrive(at(free_b, s))

                    over(0, multiply)
                    return acc[...].astype(out.dtype)

                x = pl.run_scoped(compute, plgpu.ACC((HALF, TILE), jnp.float32))
                plgpu.wait_smem_to_gmem(0, wait_read_only=True)
                out_buf.at[rows][...] = x
                plgpu.commit_smem()
                here = pl.ds(aligned(row + wg * HALF, HALF), HALF)
                plgpu.copy_smem_to_gmem(out_buf.at[rows], out.at[here, pl.ds(column, TILE)])

            plgpu.wait_smem_to_gmem(0)

    def array(make: Callable[..., Any]) -> Any:
        return [make(None) for _ in range(SLOTS)] if form == "own" else make(SLOTS)

    def buffer(*shape: int) -> Any:
        return array(lambda n: plgpu.SMEM(shape if n is None else (n, *shape), a.dtype, transforms=SWIZZLED))

    def barrier(arrivals: int) -> Any:
        return array(lambda n: plgpu.Barrier(num_arrivals=arrivals, **({} if n is None else {"num_barriers": n})))

    scratch = [
        buffer(TILE, K),
        buffer(K, TILE),
        plgpu.SMEM((TILE, TILE), a.dtype, transforms=SWIZZLED),
        barrier(2),
        barrier(WORKERS),
        barrier(WORKERS),
    ]
    result: jax.Array = plgpu.kernel(
        body,
        out_type=jax.ShapeDtypeStruct((m, n), a.dtype),
        scratch_types=scratch,
        grid=(blocks,),
        grid_names=("block",),
        num_threads=WORKERS + 1,
        thread_name="wg",
    )(a, b)
    return result


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--json")
    options = parser.parse_args()
    print(describe_machine(), flush=True)
    blocks = jax.devices()[0].core_count
    rows: list[dict[str, Any]] = []
    for m, n, k in SHAPES:
        keys = jax.random.split(jax.random.key(0))
        args = jax.random.normal(keys[0], (m, k), jnp.bfloat16), jax.random.normal(keys[1], (k, n), jnp.bfloat16)
        for form in FORMS:
            for separate in (False, True):
                programs = []
                for ours in (False, True):
                    with smalt.enabled(ours):
                        call = jax.jit(lambda a, b, form=form, separate=separate: matmul(a, b, blocks, form, separate))
                        programs.append(call.lower(*args).compile())
                equal = bool(jnp.all(programs[0](*args) == programs[1](*args)))
                stock, mine = (median(times) for times in interleaved(programs, args))
                name = f"{m}x{n}x{k} {form}" + (", released separately" if separate else "")
                rows.append({"name": name, "mosaic us": stock, "smalt us": mine, "ratio": mine / stock, "equal bits": equal})
                print(f"{name}: mosaic {stock:.1f} us, smalt {mine:.1f} us, ratio {mine / stock:.4f}, equal bits {equal}", flush=True)
    for form in FORMS:
        ratios = [row["ratio"] for row in rows if row["name"].split(" ", 1)[1].startswith(form)]
        print(f"{form:12} worst {max(ratios):.4f}, geometric mean {geometric_mean(ratios):.4f}")
    if options.json:
        pathlib.Path(options.json).write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
