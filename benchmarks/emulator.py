"""Speed of the emulator on this machine's CPU, in one process; needs no GPU.

    PYTHONPATH=jax_plugin:. python benchmarks/emulator.py [--size 512] [--no-peer]

Lane-instructions per second at full mask (the machine's own count of warp instructions, times 32), multiply-accumulates per second
of a whole warp-specialised matmul (wgmma, copies and barriers of the real instruction stream), and JAX's own hopper_matmul
beside JAX's interpreter for Mosaic GPU kernels (`InterpretGPUParams`) on the same kernel. `taskset -c 0` measures one core.
Data is N(0, 1). The table is last.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.experimental.pallas.mosaic_gpu as plgpu
import jax.numpy as jnp
import numpy as np
from jax.experimental.pallas.ops.gpu import hopper_matmul_mgpu as hm

import smalt
from benchmarks.common import standalone
from examples.matmul import matmul as specialised_matmul


def arithmetic(x: Any, steps: int = 2000) -> Any:
    """Rounds of a multiplication, an addition, a maximum and an integer exclusive or over 8 registers a thread."""

    def body(x_ref: Any, o_ref: Any) -> None:
        def step(i: Any, carry: Any) -> Any:
            a, b = carry
            a = jnp.maximum(a * 0.5 + 1.25, b)
            b = b * 0.75 - 0.5
            return a, b

        a, b = jax.lax.fori_loop(0, steps, step, (x_ref[...], x_ref[...]))
        o_ref[...] = a + b

    return plgpu.kernel(body, out_type=jax.ShapeDtypeStruct(x.shape, x.dtype))(x)


def run(f: Callable[..., Any], args: list[np.ndarray[Any, Any]], rounds: int) -> tuple[float, int]:
    """Median seconds of the kernel in `f(*args)` in the emulator, and its number of warp instructions."""
    artifact, buffers = standalone(f, args)
    reports = [artifact.run(buffers) for _ in range(rounds)]
    return statistics.median(r["wall_us"] for r in reports) * 1e-6, reports[0]["warp_instructions"]


@contextlib.contextmanager
def interpreted() -> Iterator[None]:
    """JAX's own interpreter for every `plgpu.kernel` of the scope."""
    stock = plgpu.kernel
    plgpu.kernel = functools.partial(stock, interpret=plgpu.InterpretGPUParams())
    try:
        yield
    finally:
        plgpu.kernel = stock


def seconds(f: Callable[..., Any], args: list[Any], rounds: int) -> tuple[float, Any]:
    compiled = jax.jit(f).lower(*args).compile()
    out = jax.block_until_ready(compiled(*args))
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        jax.block_until_ready(compiled(*args))
        times.append(time.perf_counter() - start)
    return statistics.median(times), np.asarray(out, np.float32)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--size", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--no-peer", action="store_true", help="leave JAX's interpreter out")
    options = parser.parse_args()
    rng = np.random.default_rng(0)
    rows: list[tuple[str, str]] = []
    with smalt.emulated("H100"):
        x = rng.standard_normal(1024, np.float32)
        spent, count = run(arithmetic, [x], options.rounds)
        rows.append(("lane-instructions/s, full mask", f"{32 * count / spent / 1e9:.2f}e9 ({count} warp instructions)"))
        a, b = (rng.standard_normal((512, 512)).astype(np.float16) for _ in range(2))
        spent, _ = run(specialised_matmul, [a, b], options.rounds)
        rows.append(("warp-specialised matmul 512^3 f16", f"{512**3 / spent / 1e9:.2f} GMAC/s ({spent * 1e3:.1f} ms)"))

    n = options.size
    a, b = (rng.standard_normal((n, n)).astype(np.float16) for _ in range(2))
    reference = a.astype(np.float32) @ b.astype(np.float32)
    config = hm.TuningConfig(
        tile_m=128, tile_n=128, tile_k=64, max_concurrent_steps=4, epi_tile_n=64, epi_tile_m=64,
        grid_minor_dim=hm.MatmulDimension.N, grid_tile_width=8,
        wg_dimension=hm.MatmulDimension.M, cluster_dimension=None,
    )

    def matmul(x: Any, y: Any) -> Any:
        return hm.matmul(x, y, None, config)

    def error(out: Any) -> float:
        return float(np.linalg.norm(out - reference) / np.linalg.norm(reference))

    with smalt.emulated("H100"):
        ours, out = seconds(matmul, [a, b], options.rounds)
    rows.append((f"hopper_matmul {n}^3 f16, smalt", f"{ours * 1e3:.1f} ms (error {error(out):.1e})"))
    ok = error(out) < 1e-3
    if not options.no_peer:
        with smalt.emulated("H100"), smalt.enabled(False), interpreted():
            theirs, out = seconds(matmul, [a, b], 1)
        rows.append((f"hopper_matmul {n}^3 f16, InterpretGPUParams", f"{theirs * 1e3:.0f} ms (error {error(out):.1e})"))
        rows.append(("ratio", f"{theirs / ours:.1f}x"))
    print(f"jax {jax.__version__}, {os.cpu_count()} cores, {len(os.sched_getaffinity(0))} used")
    for name, value in rows:
        print(f"{name:46} {value}")
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
