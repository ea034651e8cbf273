"""Host time of a launch, on one GPU: inside the FFI handler, and of a whole jitted call beside an XLA op.

    PYTHONPATH=jax_plugin:. python benchmarks/host_time.py [--calls 20000]

The handler's time is counted by the handler itself, from XLA's call to its return, decoding of the call frame included. The median
of many calls; beside it the mean, and what a launch costs with no XLA around it.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.experimental.pallas.mosaic_gpu as plgpu
import jax.numpy as jnp
import numpy as np

import smalt
from benchmarks.common import describe_machine, standalone
from smalt import _native


def add_one(x: Any) -> Any:
    def body(x_ref: Any, o_ref: Any) -> None:
        o_ref[...] = x_ref[...] + 1

    return plgpu.kernel(body, out_type=jax.ShapeDtypeStruct(x.shape, x.dtype))(x)


def sum_of_many(*xs: Any) -> Any:
    def body(*refs: Any) -> None:
        total = refs[0][...]
        for ref in refs[1:-1]:
            total += ref[...]
        refs[-1][...] = total

    return plgpu.kernel(body, out_type=jax.ShapeDtypeStruct(xs[0].shape, xs[0].dtype))(*xs)


def copies(*xs: Any) -> Any:
    """Each operand through a tensor map of its own."""

    def body(*refs: Any) -> None:
        *sources, out, smem, barrier = refs
        for source in sources:
            plgpu.copy_gmem_to_smem(source, smem, barrier)
            plgpu.barrier_wait(barrier)
        plgpu.copy_smem_to_gmem(smem, out)
        plgpu.wait_smem_to_gmem(0)

    shape = jax.ShapeDtypeStruct(xs[0].shape, xs[0].dtype)
    tiled = (plgpu.TilingTransform((8, 32)), plgpu.SwizzleTransform(128))
    scratch = [plgpu.SMEM(shape.shape, shape.dtype, transforms=tiled), plgpu.Barrier()]
    return plgpu.kernel(body, out_type=shape, scratch_types=scratch)(*xs)


def per_call(f: Callable[..., Any], args: list[Any], calls: int) -> float:
    """Microseconds of a call, queued back to back."""
    times = []
    for _ in range(10):
        out = f(*args)
        jax.block_until_ready(out)
        start = time.perf_counter()
        for _ in range(calls // 10):
            out = f(*args)
        times.append((time.perf_counter() - start) / (calls // 10) * 1e6)
        jax.block_until_ready(out)
    return statistics.median(times)


def driver(f: Callable[..., Any], args: list[Any]) -> float:
    """Microseconds of a launch without XLA: parameters, tensor maps and the driver's own call, back to back."""
    artifact, buffers = standalone(f, args)
    return float(artifact.measure(buffers)["host_us"])


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--calls", type=int, default=20_000)
    options = parser.parse_args()
    print(describe_machine())
    x = jnp.arange(128, dtype=jnp.float32)
    tile = jnp.ones((64, 64), jnp.float32)
    cases: list[tuple[str, Callable[..., Any], list[Any]]] = [
        ("add-one", add_one, [x]),
        ("12 operands", sum_of_many, [x] * 12),
        ("copies of 4 tensor maps", copies, [tile] * 4),
    ]
    print(f"{'kernel':26} {'handler us':>10} {'mean':>8} {'driver us':>10} {'jitted call us':>15} {'XLA op us':>10}")
    worst = 0.0
    for name, f, args in cases:
        with smalt.enabled(True):
            ours = jax.jit(f)
            got = np.asarray(ours(*args))
            _native.cache_stats()
            call = per_call(ours, args, options.calls)
            after = _native.cache_stats()
        stock = per_call(jax.jit(lambda *xs: sum(xs) + 1), args, options.calls)
        calls = after["handler_calls"]
        assert calls >= options.calls, (calls, options.calls)
        assert np.isfinite(got).all()
        micros = after["handler_median_nanos"] / 1e3
        worst = max(worst, micros)
        mean = after["handler_nanos"] / calls / 1e3
        print(f"{name:26} {micros:10.2f} {mean:8.2f} {driver(f, args):10.2f} {call:15.2f} {stock:10.2f}")
    print(f"worst handler: {worst:.2f} us")
    return 0


if __name__ == "__main__":
    sys.exit(main())
