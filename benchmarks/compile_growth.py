"""Compile time against the number of operations in a kernel; needs no GPU.

    PYTHONPATH=jax_plugin:. python benchmarks/compile_growth.py [--svg docs/compile_growth.svg] [--ptxas]

Three families of kernels: a chain of element-wise operations, a sequence of loops and branches, a sequence of asynchronous copies and
their waits. From 10 to 10,000 operations each: smalt's own time from descriptor to PTX (best of three, a new kernel each time), and
with --ptxas the assembler's (the cache of cubins on disk is off). Prints the table with microseconds per operation and the growth exponent, least squares over the larger half.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable
from typing import Any

os.environ["SMALT_CACHE_DIR"] = ""  # Before smalt is loaded: it reads its variables once.

import jax
import jax.experimental.pallas as pl
import jax.experimental.pallas.mosaic_gpu as plgpu
import jax.numpy as jnp
import numpy as np

import smalt
from smalt import _native

SIZES = (10, 30, 100, 300, 1000, 3000, 10000)
VECTOR = jax.ShapeDtypeStruct((128,), jnp.float32)


def elementwise(n: int, salt: int) -> tuple[Callable[..., Any], list[Any]]:
    def body(x: Any, o: Any) -> None:
        v = x[...] + float(salt)
        for i in range(n // 2):
            v = jnp.abs(v) * (1.0 + i / n)
        o[...] = v

    return plgpu.kernel(body, out_type=VECTOR), [VECTOR]


def control(n: int, salt: int) -> tuple[Callable[..., Any], list[Any]]:
    """Eight operations a round: a loop with an addition and a branch with a store."""

    def body(x: Any, o: Any) -> None:
        o[...] = x[...] + float(salt)
        for i in range(max(1, n // 8)):
            v = jax.lax.fori_loop(0, 3, lambda j, v: v + j.astype(jnp.float32), o[...])

            @pl.when(jax.lax.axis_index("g") == i)
            def _store(v: Any = v) -> None:
                o[...] = v * 2

    return plgpu.kernel(body, out_type=VECTOR, grid=(2,), grid_names=("g",)), [VECTOR]


def copies(n: int, salt: int) -> tuple[Callable[..., Any], list[Any]]:
    """Four operations a round: a copy in, its wait, a copy out, its wait."""
    shape = jax.ShapeDtypeStruct((256, 64), jnp.float32)

    def body(x: Any, o: Any, smem: Any, barrier: Any) -> None:
        for i in range(max(1, n // 4)):
            rows = pl.ds((i + salt) % 4 * 64, 64)
            plgpu.copy_gmem_to_smem(x.at[rows], smem, barrier)
            plgpu.barrier_wait(barrier)
            plgpu.copy_smem_to_gmem(smem, o.at[rows])
            plgpu.wait_smem_to_gmem(0)

    scratch = [plgpu.SMEM((64, 64), jnp.float32), plgpu.Barrier()]
    return plgpu.kernel(body, out_type=shape, scratch_types=scratch), [shape]


FAMILIES = {"element-wise": elementwise, "loops and branches": control, "copies": copies}


def measure(family: Callable[[int, int], tuple[Callable[..., Any], list[Any]]], n: int, assemble: bool) -> dict[str, float]:
    best: dict[str, float] = {}
    for salt in range(3):
        f, args = family(n, salt)
        start = time.perf_counter()
        ((_, descriptor, debug),) = smalt.descriptor(f, *args)
        traced = time.perf_counter() - start
        start = time.perf_counter()
        artifact = _native.compile(descriptor, debug, "sm_90a")
        own = time.perf_counter() - start
        got = {"trace": traced, "own": own}
        if assemble and salt == 0:
            start = time.perf_counter()
            artifact.assemble()
            got["assemble"] = time.perf_counter() - start
        best |= {k: min(v, best.get(k, v)) for k, v in got.items()}
    return best


def exponent(sizes: tuple[int, ...], seconds: list[float]) -> float:
    half = len(sizes) // 2
    slope, _ = np.polyfit(np.log(sizes[half:]), np.log(seconds[half:]), 1)
    return float(slope)


def svg(results: dict[str, list[dict[str, float]]]) -> str:
    """A log-log plot: operations across, milliseconds up."""
    width, height, left, bottom = 640, 420, 60, 50
    low, high = 1e-2, max(r["own"] for rows in results.values() for r in rows) * 2e3

    def x(n: float) -> float:
        return left + (width - left - 150) * np.log10(n / SIZES[0]) / np.log10(SIZES[-1] / SIZES[0])

    def y(ms: float) -> float:
        return height - bottom - (height - bottom - 20) * np.log10(ms / low) / np.log10(high / low)

    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-family="sans-serif" font-size="12">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
    ]
    for n in (10, 100, 1000, 10000):
        out.append(f'<path d="M{x(n):.0f} 20V{height - bottom}" stroke="#ddd"/>')
        out.append(f'<text x="{x(n):.0f}" y="{height - bottom + 18}" text-anchor="middle">{n}</text>')
    ms = low
    while ms <= high:
        out.append(f'<path d="M{left} {y(ms):.0f}H{width - 150}" stroke="#ddd"/>')
        out.append(f'<text x="{left - 6}" y="{y(ms) + 4:.0f}" text-anchor="end">{ms:g}</text>')
        ms *= 10
    out.append(f'<text x="{(width + left - 150) / 2:.0f}" y="{height - 10}" text-anchor="middle">operations in the kernel</text>')
    out.append(f'<text x="{left}" y="14" text-anchor="middle">ms</text>')
    for (name, rows), colour in zip(results.items(), ("#1b6ca8", "#c0392b", "#2e8b57")):
        points = " ".join(f"{x(n):.1f},{y(r['own'] * 1e3):.1f}" for n, r in zip(SIZES, rows))
        out.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>')
        end = y(rows[-1]["own"] * 1e3)
        out.append(f'<text x="{width - 144}" y="{end + 4:.0f}" fill="{colour}">{name}</text>')
    return "\n".join([*out, "</svg>", ""])


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--svg")
    parser.add_argument("--ptxas", action="store_true")
    options = parser.parse_args()
    results: dict[str, list[dict[str, float]]] = {}
    sys.setrecursionlimit(100_000)
    with smalt.emulated("H100"):
        for name, family in FAMILIES.items():
            results[name] = []
            for n in SIZES:
                results[name].append(measure(family, n, options.ptxas))
                print(f"{name}: {n}: {({k: round(v * 1e3, 2) for k, v in results[name][-1].items()})} ms", flush=True)
    print(f"\n{'family':20} {'operations':>10} {'smalt ms':>9} {'us/op':>7} {'trace ms':>9} {'ptxas ms':>9}")
    for name, rows in results.items():
        for n, r in zip(SIZES, rows):
            assembled = f"{r['assemble'] * 1e3:9.1f}" if "assemble" in r else f"{'-':>9}"
            print(f"{name:20} {n:10} {r['own'] * 1e3:9.2f} {r['own'] * 1e6 / n:7.2f} {r['trace'] * 1e3:9.1f} {assembled}")
        print(f"{name:20} growth exponent {exponent(SIZES, [r['own'] for r in rows]):.2f}")
    if options.svg:
        with open(options.svg, "w") as file:
            file.write(svg(results))
    return 0


if __name__ == "__main__":
    sys.exit(main())
