"""JAX's own hopper_matmul kernel, unmodified, through smalt and through stock Mosaic GPU, in one process on one GPU.

    PYTHONPATH=jax_plugin:. python benchmarks/hopper_matmul.py [--size 8192] [--quick] [--json out.json]

For every legal configuration of the tuning space: device time of both (CUPTI, medians of interleaved runs on the same N(0,1)
inputs), their ratio, and the results of both against float32. The table is last.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import functools
import itertools
import json
import os
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.pallas.ops.gpu import hopper_matmul_mgpu as hm

import smalt
from benchmarks.common import describe_machine, geometric_mean, interleaved, median

M, N = hm.MatmulDimension.M, hm.MatmulDimension.N
SIZES: dict[str, tuple[int, int, int, Any]] = {
    "4096x8192x4096 f16": (4096, 8192, 4096, jnp.float16),
    "8192^3 bf16": (8192, 8192, 8192, jnp.bfloat16),
    "4096^3 bf16": (4096, 4096, 4096, jnp.bfloat16),
}


def configs(quick: bool) -> list[hm.TuningConfig]:
    """The tuning space of the kernel's own `main`, and clusters."""
    space = itertools.product(
        (128,) if quick else (128, 256),
        (128,) if quick else (64, 128),
        (64,),
        (4,),
        (M, N),
        (8,) if quick else (4, 8, 16),
        (M, N),
        (None, M, N),
    )
    return [
        hm.TuningConfig(
            tile_m=tm, tile_n=tn, tile_k=tk, max_concurrent_steps=steps, epi_tile_n=64, epi_tile_m=64,
            grid_minor_dim=minor, grid_tile_width=width, wg_dimension=wg, cluster_dimension=cluster,
        )
        for tm, tn, tk, steps, minor, width, wg, cluster in space
    ]


def name(c: hm.TuningConfig) -> str:
    cluster = "-" if c.cluster_dimension is None else str(c.cluster_dimension)
    return f"{c.tile_m}x{c.tile_n}x{c.tile_k} s{c.max_concurrent_steps} minor {c.grid_minor_dim} w{c.grid_tile_width} wg {c.wg_dimension} cl {cluster}"


def compiled(enabled: bool, config: hm.TuningConfig, args: Any) -> Any:
    with smalt.enabled(enabled):
        f = jax.jit(functools.partial(hm.matmul, config=config))
        return f.lower(*args, None).compile()


def error(out: Any, reference: Any) -> float:
    difference = jnp.linalg.norm(out.astype(jnp.float32) - reference)
    return float(difference / jnp.linalg.norm(reference))


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--size", help="only sizes whose name contains this")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--iterations", type=int, default=6)
    parser.add_argument("--json")
    parser.add_argument("--config", type=int, action="append", help="only these positions of the tuning space")
    options = parser.parse_args()
    print(describe_machine(), flush=True)
    rows: list[dict[str, Any]] = []
    for size, (m, n, k, dtype) in SIZES.items():
        if options.size and options.size not in size:
            continue
        ka, kb = jax.random.split(jax.random.key(0))
        a = jax.random.normal(ka, (m, k), dtype)
        b = jax.random.normal(kb, (k, n), dtype)
        reference = jnp.dot(a, b, preferred_element_type=jnp.float32)
        chosen = [(i, c) for i, c in enumerate(configs(options.quick)) if not options.config or i in options.config]
        # Compiled side by side, and measured one after the other.
        pool = concurrent.futures.ThreadPoolExecutor(os.cpu_count())
        programs = [[pool.submit(compiled, smalts, config, (a, b)) for smalts in (False, True)] for _, config in chosen]
        pool.shutdown(wait=True)
        for (position, config), (stock_program, our_program) in zip(chosen, programs):
            row: dict[str, Any] = {"size": size, "config": name(config), "position": position}
            try:
                stock = stock_program.result()
            except Exception as e:  # Illegal for the peer (registers, shared memory): not part of the space.
                print(f"{size}: {name(config)}: stock: {str(e).splitlines()[0][:100]}", flush=True)
                continue
            try:
                ours = our_program.result()
                out = ours(a, b, None)
                row["error"] = error(out, reference)
                row["stock error"] = error(stock(a, b, None), reference)
                mosaic, mine = interleaved([stock, ours], (a, b, None), options.rounds, options.iterations)
                row |= {"mosaic us": median(mosaic), "smalt us": median(mine), "ratio": median(mine) / median(mosaic)}
                row["equal bits"] = bool(jnp.all(out == stock(a, b, None)))
                print(
                    f"{size}: {name(config)}: mosaic {row['mosaic us']:.1f} us, smalt {row['smalt us']:.1f} us, "
                    f"ratio {row['ratio']:.4f}, error {row['error']:.2e} ({row['stock error']:.2e})",
                    flush=True,
                )
            except Exception as e:
                row["failed"] = str(e)[:2000]
                print(f"{size}: {name(config)}: FAILED {str(e)[:400]}", flush=True)
            rows.append(row)
    if options.json:
        with open(options.json, "w") as f:
            json.dump(rows, f, indent=1)
    ok = [r for r in rows if "ratio" in r]
    print(f"\n{'size':22} configs  worst  geometric mean  best smalt us  best mosaic us  max error")
    for size in SIZES:
        these = [r for r in ok if r["size"] == size]
        if these:
            ratios = [r["ratio"] for r in these]
            print(
                f"{size:22} {len(these):7} {max(ratios):6.4f} {geometric_mean(ratios):15.4f} "
                f"{min(r['smalt us'] for r in these):14.1f} {min(r['mosaic us'] for r in these):15.1f} "
                f"{max(r['error'] for r in these):10.2e}"
            )
    failed = len(rows) - len(ok)
    wrong = [r for r in ok if not np.isfinite(r["error"]) or r["error"] > 2 * r["stock error"] + 1e-6]
    print(f"failed: {failed}, wrong: {len(wrong)}")
    return 1 if failed or wrong else 0


if __name__ == "__main__":
    sys.exit(main())
