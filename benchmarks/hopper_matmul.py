"""JAX's own hopper_matmul kernel, unmodified, through smalt and through stock Mosaic GPU, in one process on one GPU.

    PYTHONPATH=jax_plugin:. python benchmarks/hopper_matmul.py [--size 8192] [--quick] [--json out.json]

For every legal configuration of the tuning space: device time of both (CUPTI, medians of interleaved runs on the same N(0,1)
inputs), their ratio, and the results of both against float32. The table is last. Where the L2 cache limits (tiles of 256x64), times
depend on where a process's arrays lie, for both compilers: `--processes 5` takes each configuration's medians over as many. `--itself`
compiles the peer's kernel twice and measures it against itself, too: what a ratio is worth. `--added`: the kernel adds a third array,
which its epilogue copies in.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import functools
import itertools
import json
import os
import pathlib
import subprocess
import sys
import tempfile
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.pallas.ops.gpu import hopper_matmul_mgpu as hm

import smalt
from benchmarks.common import describe_machine, geometric_mean, interleaved, median

Row = dict[str, Any]

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
        return f.lower(*args).compile()


def error(out: Any, reference: Any) -> float:
    difference = jnp.linalg.norm(out.astype(jnp.float32) - reference)
    return float(difference / jnp.linalg.norm(reference))


def measure(options: argparse.Namespace) -> list[Row]:
    """A row for each configuration that is legal for the peer."""
    print(describe_machine(), flush=True)
    rows: list[Row] = []
    for size, (m, n, k, dtype) in SIZES.items():
        if options.size and options.size not in size:
            continue
        ka, kb, kc = jax.random.split(jax.random.key(0), 3)
        a = jax.random.normal(ka, (m, k), dtype)
        b = jax.random.normal(kb, (k, n), dtype)
        added = jax.random.normal(kc, (m, n), dtype) if options.added else None
        args = (a, b, added)
        reference = jnp.dot(a, b, preferred_element_type=jnp.float32)
        if added is not None:
            reference = reference + added.astype(jnp.float32)
        chosen = [(i, c) for i, c in enumerate(configs(options.quick)) if not options.config or i in options.config]
        # Compiled side by side, and measured one after the other.
        pool = concurrent.futures.ThreadPoolExecutor(os.cpu_count())
        backends = (False, True, False) if options.itself else (False, True)
        programs = [[pool.submit(compiled, smalts, config, args) for smalts in backends] for _, config in chosen]
        pool.shutdown(wait=True)
        for (position, config), (stock_program, our_program, *again) in zip(chosen, programs):
            row: Row = {"size": size, "config": name(config), "position": position}
            try:
                stock = stock_program.result()
            except Exception as e:  # Illegal for the peer (registers, shared memory): not part of the space.
                print(f"{size}: {name(config)}: stock: {str(e).splitlines()[0][:100]}", flush=True)
                continue
            try:
                ours = our_program.result()
                out = ours(*args)
                row["error"] = error(out, reference)
                row["stock error"] = error(stock(*args), reference)
                candidates = [stock, ours, *(program.result() for program in again)]
                mosaic, mine, *itself = interleaved(candidates, args, options.rounds, options.iterations)
                row |= {"mosaic us": median(mosaic), "smalt us": median(mine), "ratio": median(mine) / median(mosaic)}
                row |= {"itself": median(times) / median(mosaic) for times in itself}
                row["equal bits"] = bool(jnp.all(out == stock(*args)))
                print(
                    f"{size}: {name(config)}: mosaic {row['mosaic us']:.1f} us, smalt {row['smalt us']:.1f} us, "
                    f"ratio {row['ratio']:.4f}, "
                    + (f"mosaic itself {row['itself']:.4f}, " if itself else "")
                    + f"error {row['error']:.2e} ({row['stock error']:.2e})",
                    flush=True,
                )
            except Exception as e:
                row["failed"] = str(e)[:2000]
                print(f"{size}: {name(config)}: FAILED {str(e)[:400]}", flush=True)
            rows.append(row)
    return rows


def in_processes(count: int) -> list[Row]:
    """The same measurement in `count` processes, one after the other: the medians of their ratios and times."""
    runs: list[list[Row]] = []
    with tempfile.TemporaryDirectory() as folder:
        for i in range(count):
            path = pathlib.Path(folder, f"{i}.json")
            subprocess.run([sys.executable, *sys.argv, "--processes", "1", "--json", str(path)], check=False)
            runs.append(json.loads(path.read_text()))
    rows: list[Row] = []
    for same in zip(*runs, strict=True):
        assert len({(r["size"], r["config"]) for r in same}) == 1
        failed = [r for r in same if "failed" in r]
        row = dict(failed[0] if failed else same[0])
        if not failed:
            for key in {"mosaic us", "smalt us", "ratio", "itself"} & row.keys():
                row[key] = median([r[key] for r in same])
            row["ratios"] = [r["ratio"] for r in same]
            row["equal bits"] = all(r["equal bits"] for r in same)
            row["error"] = max(r["error"] for r in same)
        rows.append(row)
    return rows


def report(rows: list[Row]) -> int:
    """Prints the table; 1 if something is wrong."""
    ok = [r for r in rows if "ratio" in r]
    print("\nslowest beside the peer:")
    for r in sorted(ok, key=lambda r: -r["ratio"])[:5]:
        runs = ", ".join(f"{x:.4f}" for x in r.get("ratios", []))
        print(f"  {r['size']}: {r['config']}: {r['ratio']:.4f}" + (f" (of {runs})" if runs else ""))
    print(f"\n{'size':22} configs  worst  geometric mean  best smalt us  best mosaic us  max error  equal bits")
    for size in SIZES:
        these = [r for r in ok if r["size"] == size]
        if these:
            ratios = [r["ratio"] for r in these]
            print(
                f"{size:22} {len(these):7} {max(ratios):6.4f} {geometric_mean(ratios):15.4f} "
                f"{min(r['smalt us'] for r in these):14.1f} {min(r['mosaic us'] for r in these):15.1f} "
                f"{max(r['error'] for r in these):10.2e} {sum(r['equal bits'] for r in these):11}"
            )
            itself = [r["itself"] for r in these if "itself" in r]
            if itself:
                print(f"{'  Mosaic against itself':22} {len(itself):7} {max(itself):6.4f} {geometric_mean(itself):15.4f}   least {min(itself):.4f}")
    failed = len(rows) - len(ok)
    wrong = [r for r in ok if not np.isfinite(r["error"]) or r["error"] > 2 * r["stock error"] + 1e-6]
    print(f"failed: {failed}, wrong: {len(wrong)}")
    return 1 if failed or wrong else 0


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--size", help="only sizes whose name contains this")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--iterations", type=int, default=6)
    parser.add_argument("--processes", type=int, default=1, help="measure in so many processes, and take medians")
    parser.add_argument("--itself", action="store_true", help="also the peer against itself")
    parser.add_argument("--added", action="store_true", help="a third array is added to the product")
    parser.add_argument("--json")
    parser.add_argument("--config", type=int, action="append", help="only these positions of the tuning space")
    options = parser.parse_args()
    if options.size and not any(options.size in size for size in SIZES):
        parser.error(f"--size {options.size}: expected a part of {', '.join(SIZES)}")
    last = len(configs(options.quick)) - 1
    for position in options.config or []:
        if not 0 <= position <= last:
            parser.error(f"--config {position}: expected a position of the tuning space, 0 to {last}")
    rows = measure(options) if options.processes == 1 else in_processes(options.processes)
    if options.json:
        pathlib.Path(options.json).write_text(json.dumps(rows, indent=1))
    return report(rows)


if __name__ == "__main__":
    sys.exit(main())
