"""Matmuls of few tiles and long sums: the blocks of a cluster share a tile's K, against one block for a tile, in one process on one GPU.

    PYTHONPATH=jax_plugin:. python benchmarks/split_k.py [--json out.json]

The kernels of `examples/cluster_split_k.py`, by what orders the parts that blocks send each other; beside them `examples/pingpong_matmul.py`'s with one
block for a tile, and `jnp.dot` (cuBLAS). Of each the device time (CUPTI), a median of many, all kernels in turn.
"""

from __future__ import annotations

import argparse
import functools
import json
import pathlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import smalt
from benchmarks.common import describe_machine, interleaved, median
from examples.cluster_split_k import WAYS, split_k
from examples.pingpong_matmul import warp_specialized

SHAPES = ((512, 512, 16384), (256, 1024, 8192), (128, 128, 32768))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=pathlib.Path)
    json_path = parser.parse_args().json
    print(describe_machine())
    report: dict[str, Any] = {}
    for m, n, k in SHAPES:
        rng = np.random.default_rng(0)
        a, b = jnp.asarray(rng.standard_normal((m, k)), jnp.float16), jnp.asarray(rng.standard_normal((k, n)), jnp.float16)
        functions = {how: functools.partial(split_k, how=how) for how in WAYS} | {"one block": warp_specialized}
        calls = {}
        for name, f in functions.items():
            with smalt.enabled():
                calls[name] = jax.jit(f).lower(a, b).compile()
        results = [np.asarray(calls[how](a, b)) for how in WAYS]
        assert all((results[0] == other).all() for other in results[1:])
        calls["jnp.dot"] = jax.jit(lambda a, b: jnp.dot(a, b, preferred_element_type=jnp.float16)).lower(a, b).compile()
        times = interleaved(list(calls.values()), (a, b), rounds=8, iterations=10)
        medians = {name: median(t) for name, t in zip(calls, times)}
        report[f"{m}x{n}x{k}"] = medians
        for name, us in medians.items():
            print(f"{m}x{n}x{k}: {name:16} {us:8.1f} us, {2 * m * n * k / us / 1e6:6.0f} TFLOP/s, {us / medians['one block']:.3f} of one block")
    if json_path:
        json_path.write_text(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
