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

import numpy as np

from benchmarks.common import compiled, describe_machine, medians, normal_f16, xla_dot
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
        a, b = normal_f16((m, k), (k, n))
        functions = {how: functools.partial(split_k, how=how) for how in WAYS} | {"one block": warp_specialized}
        calls = compiled(functions, (a, b))
        results = [np.asarray(calls[how](a, b)) for how in WAYS]
        assert all((results[0] == other).all() for other in results[1:])
        times = medians(calls | {"jnp.dot": xla_dot(a, b)}, (a, b), iterations=10)
        report[f"{m}x{n}x{k}"] = times
        for name, us in times.items():
            print(f"{m}x{n}x{k}: {name:16} {us:8.1f} us, {2 * m * n * k / us / 1e6:6.0f} TFLOP/s, {us / times['one block']:.3f} of one block")
    if json_path:
        json_path.write_text(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
