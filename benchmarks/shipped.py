"""The kernels that JAX ships for Hopper beside its matmul, unmodified: device time of smalt and of stock Mosaic GPU in one process.

    PYTHONPATH=jax_plugin:. python benchmarks/shipped.py [--only attention] [--json out.json]

N(0,1) inputs, CUPTI medians of interleaved runs; `bits`: whether both give the same, else the largest difference over the largest
number. The table is last. A kernel that one of them refuses is told with its reason.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import pathlib
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.pallas.ops.gpu import (
    attention_mgpu,
    hopper_mixed_type_matmul_mgpu,
    ragged_dot_mgpu,
    transposed_ragged_dot_mgpu,
)

import smalt
from benchmarks.common import describe_machine, geometric_mean, interleaved, median


@dataclasses.dataclass(frozen=True)
class Kernel:
    name: str
    fn: Callable[..., Any]
    args: Callable[[], tuple[Any, ...]]


def normal(*shapes: tuple[int, ...], dtype: Any = jnp.float16) -> tuple[Any, ...]:
    keys = jax.random.split(jax.random.key(0), len(shapes))
    return tuple(jax.random.normal(key, shape, dtype) for key, shape in zip(keys, shapes))


def attention(kind: str, length: int, dim: int, block_kv: int, **options: Any) -> Kernel:
    config = attention_mgpu.TuningConfig(block_q=64, block_kv=block_kv, max_concurrent_steps=2, **options)
    forward = attention_mgpu.attention_with_pipeline_emitter if kind == "emitter" else attention_mgpu.attention

    def fn(q: Any, k: Any, v: Any) -> Any:
        if kind != "backward":
            return forward(q, k, v, config)
        return jax.vjp(lambda *qkv: forward(*qkv, config), q, k, v)[1](q)

    shape = (1, length, 16, dim)
    return Kernel(f"attention {kind} S{length} D{dim} kv {block_kv}", fn, lambda: normal(shape, shape, shape))


def ragged(tile: tuple[int, int, int], steps: int, transposed: bool) -> Kernel:
    groups, m, k, n = 16, 16384, 2048, 16384
    bm, bn, bk = tile
    blocks = dict(block_m=bm, block_n=bn, block_k=bk, max_concurrent_steps=steps, grid_block_n=2)

    def fn(a: Any, b: Any, sizes: Any) -> Any:
        if transposed:
            return transposed_ragged_dot_mgpu.transposed_ragged_dot(a, b, group_sizes=sizes, **blocks)
        return ragged_dot_mgpu.ragged_dot(a, b, group_sizes=sizes, **blocks)

    def args() -> tuple[Any, ...]:
        cuts = np.sort(np.random.default_rng(0).integers(0, m, groups - 1))
        sizes = jnp.asarray(np.diff(np.concatenate([[0], cuts, [m]])), jnp.int32)
        shapes = ((m, k), (m, 4096)) if transposed else ((m, k), (groups, k, n))
        return (*normal(*shapes), sizes)

    kind = "transposed ragged" if transposed else "ragged"
    return Kernel(f"{kind} {bm}x{bn}x{bk} s{steps}", fn, args)


def mixed(tile: tuple[int, int]) -> Kernel:
    config = hopper_mixed_type_matmul_mgpu.TuningConfig(
        tile_m=tile[0], tile_n=tile[1], tile_k=64, max_concurrent_steps=4, grid_tile_width=8
    )

    def fn(a: Any, b: Any) -> Any:
        return hopper_mixed_type_matmul_mgpu.mixed_matmul_kernel(a, b, out_dtype=jnp.bfloat16, config=config)

    def args() -> tuple[Any, ...]:
        (b,) = normal((8192, 4096), dtype=jnp.bfloat16)
        return jax.random.randint(jax.random.key(1), (4096, 8192), -128, 128, jnp.int8), b

    return Kernel(f"mixed {tile[0]}x{tile[1]}", fn, args)


def kernels() -> Iterator[Kernel]:
    for dim, block_kv in ((64, 256), (64, 128), (64, 64), (128, 128), (128, 64), (256, 64)):
        yield attention("forward", 4096, dim, block_kv)
    for dim, block_kv in ((64, 256), (64, 128), (64, 64), (128, 128), (128, 64)):
        yield attention("causal", 4096, dim, block_kv, causal=True)
    for block_kv in (128, 64):
        yield attention("forward", 16384, 128, block_kv)
        yield attention("emitter", 4096, 128, block_kv)
    for dim in (64, 128):
        blocks = dict(block_q_dkv=64, block_kv_dkv=64, block_q_dq=64, block_kv_dq=64)
        yield attention("backward", 4096, dim, 64, **blocks)
    for tile, steps in (((128, 128, 64), 4), ((64, 128, 64), 4), ((64, 64, 64), 6)):
        yield ragged(tile, steps, False)
    for tile, steps in (((128, 128, 64), 4), ((128, 128, 64), 2), ((64, 128, 64), 4), ((128, 128, 128), 2)):
        yield ragged(tile, steps, True)
    for pair in ((128, 128), (256, 128), (64, 128)):
        yield mixed(pair)


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
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--iterations", type=int, default=6)
    parser.add_argument("--json", type=pathlib.Path)
    options = parser.parse_args()
    print(describe_machine(), flush=True)
    rows: list[dict[str, Any]] = []
    for kernel in kernels():
        if options.only not in kernel.name:
            continue
        row: dict[str, Any] = {"kernel": kernel.name}
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
    ratios = [row["ratio"] for row in rows if "ratio" in row]
    if ratios:
        print(f"{len(ratios)} kernels, geometric mean {geometric_mean(ratios):.4f}, worst {max(ratios):.4f}")
    if options.json:
        options.json.write_text(json.dumps(rows))


if __name__ == "__main__":
    main()
