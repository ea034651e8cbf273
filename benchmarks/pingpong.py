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

import jax
import jax.numpy as jnp
import numpy as np

import smalt
from benchmarks.common import describe_machine, interleaved, median
from examples.pingpong_matmul import ping_pong, warp_specialized

SIZES = (4096, 8192)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=pathlib.Path)
    json_path = parser.parse_args().json
    print(describe_machine())
    report: dict[str, Any] = {}
    for n in SIZES:
        rng = np.random.default_rng(0)
        a, b = (jnp.asarray(rng.standard_normal((n, n)), jnp.float16) for _ in range(2))
        functions = {
            "named": functools.partial(ping_pong, turns="named"),
            "mbarriers": functools.partial(ping_pong, turns="mbarriers"),
            "shared tile": warp_specialized,
        }
        calls = {}
        for name, f in functions.items():
            with smalt.enabled():
                calls[name] = jax.jit(f).lower(a, b).compile()
        results = {name: np.asarray(call(a, b)) for name, call in calls.items()}
        first = next(iter(results.values()))
        assert all((first == other).all() for other in results.values())
        calls["jnp.dot"] = jax.jit(lambda a, b: jnp.dot(a, b, preferred_element_type=jnp.float16)).lower(a, b).compile()
        times = interleaved(list(calls.values()), (a, b), rounds=8, iterations=8)
        medians = {name: median(t) for name, t in zip(calls, times)}
        report[str(n)] = medians
        for name, us in medians.items():
            print(f"{n}: {name:12} {us:8.1f} us, {2 * n**3 / us / 1e6:6.0f} TFLOP/s, {us / medians['mbarriers']:.3f} of mbarriers")
    if json_path:
        json_path.write_text(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
