"""What a profile costs: a matmul with named scopes that records them (`profile_space`), against the same kernel that does not, on one GPU.

    PYTHONPATH=jax_plugin:. python benchmarks/profiling.py [--json out.json]

One warpgroup fills a ring of slots, two multiply. Scopes are around the body ("tile": one for each role, and the epilogue's), or in each step as well
("step": the copies, the wait, the products). Of each kernel the device time (CUPTI), a median of many, the kernels in turn; JAX's own backend on the same
kernels, if it compiles them.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import pathlib
import tempfile
from collections.abc import Callable
from typing import Any

import jax
import jax.experimental.pallas as pl
import jax.experimental.pallas.mosaic_gpu as plgpu
import jax.numpy as jnp
import numpy as np
from jax import lax

import smalt
from benchmarks.common import describe_machine, interleaved, median

#: Three slots, for what JAX's own backend records lies in shared memory, too.
TILE_M, TILE_N, K, SLOTS, WORKERS = 128, 128, 64, 3, 2
SWIZZLED = (plgpu.TilingTransform((8, 64)), plgpu.SwizzleTransform(128))
SHAPES = ((4096, 4096, 4096), (8192, 8192, 8192))
PLACES = ("tile", "step")


def matmul(a: jax.Array, b: jax.Array, place: str, space: int, folder: str) -> jax.Array:
    """`space`: ranges that each warpgroup can record; 0: no profile."""
    (m, k), n = a.shape, b.shape[1]
    steps = k // K

    def in_step(name: str) -> Any:
        return jax.named_scope(name) if place == "step" else contextlib.nullcontext()

    def body(a_gmem: Any, b_gmem: Any, out: Any, a_buf: Any, b_buf: Any, out_buf: Any, full: Any, free: Any) -> None:
        wg = lax.axis_index("wg")
        row, column = lax.axis_index("m") * WORKERS * TILE_M, lax.axis_index("n") * TILE_N
        when: Callable[[Any], Callable[[Callable[[], None]], Any]] = pl.when

        @when(wg == WORKERS)
        def _load() -> None:
            plgpu.set_max_registers(40, action="decrease")

            def step(i: Any, _: None) -> None:
                slot = lax.rem(i, SLOTS)

                @when(i >= SLOTS)
                def _() -> None:
                    plgpu.barrier_wait(free.at[slot])

                with in_step("copy"):
                    ks = pl.ds(i * K, K)
                    plgpu.copy_gmem_to_smem(a_gmem.at[pl.ds(row, WORKERS * TILE_M), ks], a_buf.at[slot], full.at[slot])
                    plgpu.copy_gmem_to_smem(b_gmem.at[ks, pl.ds(column, TILE_N)], b_buf.at[slot], full.at[slot])

            with jax.named_scope("load"):
                lax.fori_loop(0, steps, step, None)

        @when(wg < WORKERS)
        def _multiply() -> None:
            plgpu.set_max_registers(232, action="increase")
            mine = pl.ds(wg * TILE_M, TILE_M)

            def accumulate(acc: Any) -> Any:
                def step(i: Any, _: None) -> None:
                    slot = lax.rem(i, SLOTS)
                    with in_step("wait"):
                        plgpu.barrier_wait(full.at[slot])
                    with in_step("products"):
                        plgpu.wgmma(acc, a_buf.at[slot, mine], b_buf.at[slot])
                        plgpu.wgmma_wait(0)
                    plgpu.barrier_arrive(free.at[slot])

                lax.fori_loop(0, steps, step, None)
                return acc[...].astype(out.dtype)

            with jax.named_scope("multiply"):
                x = pl.run_scoped(accumulate, plgpu.ACC((TILE_M, TILE_N), jnp.float32))
            with jax.named_scope("store"):
                out_buf[wg] = x
                plgpu.commit_smem()
                plgpu.copy_smem_to_gmem(out_buf.at[wg], out.at[pl.ds(row + wg * TILE_M, TILE_M), pl.ds(column, TILE_N)])
                plgpu.wait_smem_to_gmem(0)

    params = plgpu.CompilerParams(
        lowering_semantics=plgpu.LoweringSemantics.Warpgroup, profile_space=space, profile_dir=folder if space else ""
    )
    result: jax.Array = plgpu.kernel(
        body,
        out_type=jax.ShapeDtypeStruct((m, n), a.dtype),
        scratch_types=[
            plgpu.SMEM((SLOTS, WORKERS * TILE_M, K), a.dtype, transforms=SWIZZLED),
            plgpu.SMEM((SLOTS, K, TILE_N), a.dtype, transforms=SWIZZLED),
            plgpu.SMEM((WORKERS, TILE_M, TILE_N), a.dtype, transforms=SWIZZLED),
            plgpu.Barrier(num_barriers=SLOTS, num_arrivals=2),
            plgpu.Barrier(num_barriers=SLOTS, num_arrivals=WORKERS),
        ],
        grid=(m // (WORKERS * TILE_M), n // TILE_N),
        grid_names=("m", "n"),
        num_threads=WORKERS + 1,
        thread_name="wg",
        compiler_params=params,
    )(a, b)
    return result


def ranges(place: str, steps: int) -> int:
    """Of the warpgroup that records most, and some that JAX's own backend takes for its header."""
    return 4 + (2 * steps if place == "step" else 0)


def compiled(enabled: bool, args: tuple[jax.Array, ...], place: str, space: int, folder: str) -> Any:
    with smalt.enabled(enabled):
        return jax.jit(lambda a, b: matmul(a, b, place, space, folder)).lower(*args).compile()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--json")
    options = parser.parse_args()
    print(describe_machine(), flush=True)
    rows: list[dict[str, Any]] = []
    for m, n, k in SHAPES:
        keys = jax.random.split(jax.random.key(0))
        args = (jax.random.normal(keys[0], (m, k), jnp.bfloat16), jax.random.normal(keys[1], (k, n), jnp.bfloat16))
        for place in PLACES:
            for backend in ("smalt", "stock"):
                space = ranges(place, k // K)
                with tempfile.TemporaryDirectory() as folder:
                    try:
                        programs = [compiled(backend == "smalt", args, place, n_ranges, folder) for n_ranges in (0, space)]
                        equal = bool(np.array_equal(*(np.asarray(program(*args)).view(np.uint16) for program in programs)))
                        without, with_it = (median(times) for times in interleaved(programs, args, rounds=4, iterations=6))
                        jax.effects_barrier()
                    except Exception as error:
                        if backend == "smalt":
                            raise
                        print(f"stock does not run it: {str(error).splitlines()[0]}", flush=True)
                        continue
                    files = len(list(pathlib.Path(folder).iterdir()))
                name = f"{backend}, {m}x{n}x{k}, scopes in each {place}"
                rows.append({"name": name, "plain us": without, "profiled us": with_it, "ratio": with_it / without, "equal bits": equal})
                print(
                    f"{name}: {without:.1f} us, with a profile {with_it:.1f} us, ratio {with_it / without:.4f}; equal bits {equal}; {files} files",
                    flush=True,
                )
    if options.json:
        pathlib.Path(options.json).write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
