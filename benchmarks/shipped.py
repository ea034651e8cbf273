"""The kernels that JAX ships for Hopper, unmodified: device time of smalt and of stock Mosaic GPU in one process.

    PYTHONPATH=jax_plugin:. python benchmarks/shipped.py [--full] [--only attention] [--json out.json]

N(0,1) inputs, CUPTI medians of interleaved runs; `bits`: whether both give the same, else the largest difference over the largest
number. The tables are last: every kernel, then worst and geometric mean of each family. A kernel that one of them refuses is told
with its reason. `--full` adds lengths, heads, groups and blocks; the matmul's tuning space has a benchmark of its own
(`hopper_matmul.py`), here are shapes that it was not tuned on. The mixed matmul takes no 4-bit operands (its own check).
`--json` writes what `benchmarks/chart.py` draws.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import pathlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.pallas.ops.gpu import (
    attention_mgpu,
    hopper_matmul_mgpu,
    hopper_mixed_type_matmul_mgpu,
    ragged_dot_mgpu,
    transposed_ragged_dot_mgpu,
)

import smalt
from benchmarks.common import describe_machine, geometric_mean, interleaved, median


@dataclasses.dataclass(frozen=True)
class Kernel:
    family: str
    name: str
    fn: Callable[..., Any]
    args: Callable[[], tuple[Any, ...]]


def normal(*shapes: tuple[int, ...], dtype: Any = jnp.float16) -> tuple[Any, ...]:
    keys = jax.random.split(jax.random.key(0), len(shapes))
    return tuple(jax.random.normal(key, shape, dtype) for key, shape in zip(keys, shapes))


def attention(
    kind: str, length: int, dim: int, block_kv: int, heads: int = 16, kv_heads: int | None = None, **options: Any
) -> Kernel:
    config = attention_mgpu.TuningConfig(block_q=64, block_kv=block_kv, max_concurrent_steps=2, **options)
    forward = attention_mgpu.attention_with_pipeline_emitter if kind == "emitter" else attention_mgpu.attention

    def fn(q: Any, k: Any, v: Any) -> Any:
        if kind != "backward":
            return forward(q, k, v, config)
        return jax.vjp(lambda *qkv: forward(*qkv, config), q, k, v)[1](q)

    q_shape, kv_shape = (1, length, heads, dim), (1, length, kv_heads or heads, dim)
    name = f"attention {kind} S{length} D{dim} kv {block_kv}"
    if (heads, kv_heads) != (16, None):
        name += f" H{heads}" + (f"/{kv_heads}" if kv_heads else "")
    if wgs := options.get("compute_wgs_bwd"):
        name += f" wgs {wgs}"
    family = {"emitter": "emitter", "backward": "attention backward"}.get(kind, "attention forward")
    return Kernel(family, name, fn, lambda: normal(q_shape, kv_shape, kv_shape))


def backward(length: int, dim: int, wgs: int = 1, block: int = 64) -> Kernel:
    blocks = dict(block_q_dkv=block, block_kv_dkv=block, block_q_dq=block, block_kv_dq=block)
    more = {"compute_wgs_bwd": wgs} if wgs > 1 else {}
    return attention("backward", length, dim, 64, **blocks, **more)


def group_sizes(kind: str, groups: int, m: int) -> np.ndarray[Any, Any]:
    """How rows are cut: at random places; most groups empty; most groups of one to three rows; all alike."""
    rng = np.random.default_rng(0)
    if kind == "even":
        return np.full(groups, m // groups, np.int32)
    if kind == "random":
        cuts = np.sort(rng.integers(0, m, groups - 1))
        return np.diff(np.concatenate([[0], cuts, [m]])).astype(np.int32)
    sizes = np.zeros(groups, np.int32) if kind == "empty" else rng.integers(1, 4, groups).astype(np.int32)
    sizes[groups // 2] += m - sizes.sum()
    return sizes


def ragged(
    tile: tuple[int, int, int], steps: int, transposed: bool, sizes: str = "random", rhs_transposed: bool = False
) -> Kernel:
    groups, m, k, n = 16, 16384, 2048, 16384
    bm, bn, bk = tile
    blocks = dict(block_m=bm, block_n=bn, block_k=bk, max_concurrent_steps=steps, grid_block_n=2)

    def fn(a: Any, b: Any, sizes: Any) -> Any:
        if transposed:
            return transposed_ragged_dot_mgpu.transposed_ragged_dot(a, b, group_sizes=sizes, **blocks)
        return ragged_dot_mgpu.ragged_dot(a, b, group_sizes=sizes, transpose_rhs=rhs_transposed, **blocks)

    def args() -> tuple[Any, ...]:
        rhs = (groups, n, k) if rhs_transposed else (groups, k, n)
        shapes = ((m, k), (m, 4096)) if transposed else ((m, k), rhs)
        return (*normal(*shapes), jnp.asarray(group_sizes(sizes, groups, m)))

    family = "transposed ragged" if transposed else "ragged"
    name = f"{family} {bm}x{bn}x{bk} s{steps}" + (" rhs^T" if rhs_transposed else "")
    return Kernel(family, name + ("" if sizes == "random" else f" {sizes}"), fn, args)


def mixed(tile: tuple[int, int], wg: str) -> Kernel:
    """`tile` is a warpgroup's; the two of a block lie side by side along `wg`."""
    config = hopper_mixed_type_matmul_mgpu.TuningConfig(
        tile_m=tile[0], tile_n=tile[1], tile_k=64, max_concurrent_steps=4, grid_tile_width=8,
        wg_dimension=hopper_mixed_type_matmul_mgpu.MatmulDimension[wg],
    )  # fmt: skip

    def fn(a: Any, b: Any) -> Any:
        return hopper_mixed_type_matmul_mgpu.mixed_matmul_kernel(a, b, out_dtype=jnp.bfloat16, config=config)

    def args() -> tuple[Any, ...]:
        (b,) = normal((8192, 4096), dtype=jnp.bfloat16)
        return jax.random.randint(jax.random.key(1), (4096, 8192), -128, 128, jnp.int8), b

    return Kernel("mixed", f"mixed {tile[0]}x{tile[1]} along {wg}", fn, args)


def matmul(m: int, n: int, k: int, tile: tuple[int, int], wg: str) -> Kernel:
    config = hopper_matmul_mgpu.TuningConfig(
        tile_m=tile[0], tile_n=tile[1], tile_k=64, max_concurrent_steps=4, epi_tile_n=64, epi_tile_m=64, grid_tile_width=8,
        wg_dimension=hopper_matmul_mgpu.MatmulDimension[wg],
    )  # fmt: skip

    def fn(a: Any, b: Any) -> Any:
        return hopper_matmul_mgpu.matmul(a, b, None, config)

    return Kernel("matmul", f"matmul {m}x{n}x{k} {tile[0]}x{tile[1]} along {wg}", fn, lambda: normal((m, k), (k, n)))


def kernels(full: bool = False) -> Iterator[Kernel]:
    for dim, block_kv in ((64, 256), (64, 128), (64, 64), (128, 128), (128, 64), (256, 64)):
        yield attention("forward", 4096, dim, block_kv)
    for dim, block_kv in ((64, 256), (64, 128), (64, 64), (128, 128), (128, 64)):
        yield attention("causal", 4096, dim, block_kv, causal=True)
    for block_kv in (128, 64):
        yield attention("forward", 16384, 128, block_kv)
        yield attention("emitter", 4096, 128, block_kv)
    for dim in (64, 128):
        yield backward(4096, dim)
    for tile, steps in (((128, 128, 64), 4), ((64, 128, 64), 4), ((64, 64, 64), 6)):
        yield ragged(tile, steps, False)
    for tile, steps in (((128, 128, 64), 4), ((128, 128, 64), 2), ((64, 128, 64), 4), ((128, 128, 128), 2)):
        yield ragged(tile, steps, True)
    for pair, wg in (((128, 128), "N"), ((64, 128), "N"), ((128, 128), "M"), ((64, 128), "M")):
        yield mixed(pair, wg)
    if not full:
        return
    for length, heads, kv_heads in ((1024, 1, None), (1024, 16, None), (4096, 1, None), (4096, 16, 4), (4096, 16, 1), (32768, 4, None)):
        for dim, block_kv in ((64, 128), (128, 128)):
            yield attention("forward", length, dim, block_kv, heads, kv_heads)
            yield attention("causal", length, dim, block_kv, heads, kv_heads, causal=True)
    yield attention("causal", 4096, 256, 64, causal=True)
    for length in (1024, 16384):
        yield attention("emitter", length, 128, 128)
    for length, dim, wgs in ((4096, 64, 2), (4096, 128, 2), (4096, 256, 1), (1024, 64, 1), (16384, 128, 1)):
        yield backward(length, dim, wgs)
    for tile, steps in (((128, 128, 64), 4), ((64, 128, 64), 4), ((64, 64, 64), 6)):
        yield ragged(tile, steps, False, rhs_transposed=True)
    for sizes in ("even", "empty", "tiny"):
        yield ragged((128, 128, 64), 4, False, sizes)
        yield ragged((64, 64, 64), 6, False, sizes)
        yield ragged((128, 128, 64), 4, True, sizes)
    for m, n, k in ((16384, 256, 4096), (256, 16384, 4096), (4096, 4096, 512), (2048, 2048, 16384), (8192, 1024, 1024)):
        for pair, wg in (((128, 128), "N"), ((128, 128), "M"), ((128, 64), "N")):
            yield matmul(m, n, k, pair, wg)


def difference(ours: Any, stock: Any) -> float:
    worst = 0.0
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(stock), strict=True):
        x, y = np.asarray(a, np.float32), np.asarray(b, np.float32)
        if not np.array_equal(x, y, equal_nan=True):
            worst = max(worst, float(np.nanmax(np.abs(x - y)) / max(np.nanmax(np.abs(y)), 1e-30)), 1e-30)
    return worst


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="kernels with this in their name")
    parser.add_argument("--full", action="store_true", help="more lengths, heads, groups, blocks and shapes")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--iterations", type=int, default=6)
    parser.add_argument("--json", type=pathlib.Path)
    options = parser.parse_args()
    machine = describe_machine()
    print(machine, flush=True)
    rows: list[dict[str, Any]] = []
    chosen = [kernel for kernel in kernels(options.full) if options.only in kernel.name]
    if not chosen:
        parser.error(f"--only {options.only}: no kernel has this in its name")
    for kernel in chosen:
        row: dict[str, Any] = {"family": kernel.family, "kernel": kernel.name}
        try:
            args = kernel.args()
            programs = []
            for enabled in (False, True):
                with smalt.enabled(enabled):
                    programs.append(jax.jit(kernel.fn).lower(*args).compile())
            row["difference"] = difference(programs[1](*args), programs[0](*args))
            stock, ours = interleaved(programs, args, options.rounds, options.iterations)
            row |= {"stock us": median(stock), "smalt us": median(ours), "ratio": median(ours) / median(stock)}
        except Exception as e:  # One of them refuses.
            row["refused"] = str(e).splitlines()[0][:200]
        rows.append(row)
        print(row, flush=True)
    print(f"\n{'kernel':44} {'stock us':>9} {'smalt us':>9} {'ratio':>7}  bits")
    for row in rows:
        if "refused" in row:
            print(f"{row['kernel']:44} {row['refused']}")
        else:
            bits = "equal" if row["difference"] == 0 else f"{row['difference']:.1e}"
            print(f"{row['kernel']:44} {row['stock us']:9.1f} {row['smalt us']:9.1f} {row['ratio']:7.4f}  {bits}")
    print(f"\n{'family':44} {'kernels':>9} {'worst':>9} {'mean':>7}")
    families = list(dict.fromkeys(row["family"] for row in rows))
    for family in [*families, "all"]:
        ratios = [row["ratio"] for row in rows if "ratio" in row and family in ("all", row["family"])]
        if ratios:
            print(f"{family:44} {len(ratios):9} {max(ratios):9.4f} {geometric_mean(ratios):7.4f}")
    if options.json:
        command = " ".join(["python", *sys.argv])
        options.json.write_text(json.dumps({"machine": machine, "command": command, "kernels": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
