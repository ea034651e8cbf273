"""`examples/matmul.py` (explicit transforms, ring, roles; without and with a 2-CTA cluster) through smalt and through stock Mosaic GPU.

    PYTHONPATH=jax_plugin:. python benchmarks/annotated_matmul.py

One process, N(0,1) data, CUPTI medians of interleaved runs; both compilers' bits are compared.
"""

from __future__ import annotations

import argparse
import functools
import sys

import jax
import jax.numpy as jnp

import smalt
from benchmarks.common import describe_machine, interleaved, median
from examples.matmul import matmul


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--iterations", type=int, default=10)
    options = parser.parse_args()
    print(describe_machine())
    print(f"{'size':>6} {'type':>9} {'cluster':>8} {'mosaic us':>10} {'smalt us':>10} {'ratio':>7} {'speed':>7}  equal bits")
    right = True
    for size in (4096, 8192):
        for dtype in (jnp.float16, jnp.bfloat16):
            a, b = (jax.random.normal(key, (size, size), dtype) for key in jax.random.split(jax.random.key(0)))
            for cluster in (1, 2):
                programs = []
                for ours in (False, True):
                    with smalt.enabled(ours):
                        f = jax.jit(functools.partial(matmul, cluster=cluster))
                        programs.append(f.lower(a, b).compile())
                times = interleaved(programs, (a, b), options.rounds, options.iterations)
                theirs, mine = (median(t) for t in times)
                equal = bool(jnp.all(programs[0](a, b) == programs[1](a, b)))
                right &= equal
                print(
                    f"{size:6} {jnp.dtype(dtype).name:>9} {cluster:8} {theirs:10.1f} {mine:10.1f} {mine / theirs:7.4f} "
                    f"{theirs / mine:7.4f}  {equal}",
                    flush=True,
                )
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
