"""Turns of two warpgroups by named barriers and by mbarriers, in the same matmul, in one process on one GPU.

    PYTHONPATH=jax_plugin:. python benchmarks/pingpong.py [--json out.json]

The kernels of `examples/pingpong_matmul.py`; beside them the one whose two consumers share each tile, and `jnp.dot` (cuBLAS). Of each the device time
(CUPTI), a median of many, all kernels in turn. Before that every result is held against the others: all add in one order.
"""

from __future__ import annotations

import argparse
import functools
import json
import pathlib
from typing import Any

import numpy as np

from benchmarks.common import compiled, describe_machine, medians, normal_f16, xla_dot
from examples.pingpong_matmul import ping_pong, warp_specialized

SIZES = (4096, 8192)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=pathlib.Path)
    json_path = parser.parse_args().json
    print(describe_machine())
    report: dict[str, Any] = {}
    for n in SIZES:
        a, b = normal_f16((n, n), (n, n))
        functions = {
            "named": functools.partial(ping_pong, turns="named"),
            "mbarriers": functools.partial(ping_pong, turns="mbarriers"),
            "shared tile": warp_specialized,
        }
        calls = compiled(functions, (a, b))
        results = {name: np.asarray(call(a, b)) for name, call in calls.items()}
        first = next(iter(results.values()))
        assert all((first == other).all() for other in results.values())
        times = medians(calls | {"jnp.dot": xla_dot(a, b)}, (a, b))
        report[str(n)] = times
        for name, us in times.items():
            print(f"{n}: {name:12} {us:8.1f} us, {2 * n**3 / us / 1e6:6.0f} TFLOP/s, {us / times['mbarriers']:.3f} of mbarriers")
    if json_path:
        json_path.write_text(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
