"""Kernels of two GPUs that talk to each other, against the same kernels by stock Mosaic GPU and against XLA's collectives (NCCL).

    PYTHONPATH=jax_plugin:. python benchmarks/multi_gpu.py [launch] [matmul] [gather] [--json out.json]

`launch`: what a kernel costs that begins with the exchange of addresses, over the same one without, back to back in one program.
`matmul`: JAX's `all_gather_lhs_matmul`. `gather`: JAX's `all_gather` and copies by TMA, against `jax.lax.all_gather`.

Wall times of whole programs that do what is measured several times, on other inputs each, medians of many runs in turn, N(0,1) inputs. The table is last.
"""

from __future__ import annotations

import argparse
import functools
import json
import pathlib
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.experimental.pallas as pl
import jax.experimental.pallas.mosaic_gpu as plgpu
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental.pallas.ops.gpu import all_gather_mgpu, collective_matmul_mgpu, hopper_matmul_mgpu
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import smalt
from benchmarks.common import describe_machine

Row = tuple[str, dict[str, float]]


def the_mesh() -> Any:
    return jax.sharding.Mesh(np.array(jax.devices()), ("x",))


def sharded(f: Callable[..., Any], in_specs: Any, out_specs: Any) -> Callable[..., Any]:
    return jax.shard_map(f, mesh=the_mesh(), in_specs=in_specs, out_specs=out_specs, check_vma=False)


def normal(shape: Sequence[int], spec: Any, dtype: Any, seed: int = 0) -> jax.Array:
    x = np.random.default_rng(seed).standard_normal(shape, np.float32)
    return jax.device_put(jnp.asarray(x, dtype), NamedSharding(the_mesh(), spec))


def in_turn(f: Callable[..., Any], count: int) -> Callable[..., Any]:
    """A program that calls `f` on each of so many first arguments (then the others), each call behind the one before."""

    def run(*args: Any) -> Any:
        firsts, others = list(args[:count]), args[count:]
        results = []
        for i in range(count):
            results.append(f(firsts[i], *others))
            if i + 1 < count:
                firsts[i + 1], results[i] = lax.optimization_barrier((firsts[i + 1], results[i]))
        return results

    return run


def wall(programs: Sequence[Callable[..., Any]], args: Sequence[Any], per: int, rounds: int = 15, runs: int = 5) -> list[float]:
    """Microseconds per call of each program, of `per` calls a run: medians over runs in turn."""
    for program in programs:
        for _ in range(3):
            jax.block_until_ready(program(*args))
    times: list[list[float]] = [[] for _ in programs]
    for r in range(rounds):
        order = range(len(programs)) if r % 2 == 0 else reversed(range(len(programs)))
        for i in order:
            for _ in range(runs):
                start = time.perf_counter()
                jax.block_until_ready(programs[i](*args))
                times[i].append((time.perf_counter() - start) / per * 1e6)
    return [statistics.median(t) for t in times]


def by_smalt(f: Callable[..., Any], args: Sequence[Any]) -> Callable[..., Any]:
    with smalt.enabled(True):
        return jax.jit(f).lower(*args).compile()


def by_stock(f: Callable[..., Any], args: Sequence[Any]) -> Callable[..., Any]:
    with smalt.enabled(False):
        return jax.jit(f).lower(*args).compile()


# ------------------------------------------------------------------------------------------ the price of a launch

SMALL = (8, 128)


def plain(x: Any, o: Any) -> None:
    o[...] = x[...] + 1


def talking(x: Any, o: Any) -> None:
    """Its neighbour's output is written by nobody else, and read behind the neighbour's next exchange."""
    there = lax.rem(lax.axis_index("x") + 1, lax.axis_size("x"))
    plgpu.remote_ref(o, there)[...] = x[...] + 1


def signalling(x: Any, o: Any, done: Any) -> None:
    there = lax.rem(lax.axis_index("x") + 1, lax.axis_size("x"))
    plgpu.remote_ref(o, there)[...] = x[...] + 1
    pl.semaphore_signal(done, 1, device_id=there)
    pl.semaphore_wait(done)


def launches() -> Iterator[Row]:
    n, count = len(jax.devices()), 200
    x = normal((n * SMALL[0], SMALL[1]), P("x"), jnp.float32)
    out = jax.ShapeDtypeStruct(SMALL, jnp.float32)

    def chain(body: Callable[..., None], *scratch: Any) -> Callable[..., Any]:
        kernel = plgpu.kernel(body, out_type=out, scratch_types=scratch)

        def program(x: Any) -> Any:
            for _ in range(count):
                x = kernel(x)
            return x

        return sharded(program, P("x"), P("x"))

    chains = [chain(plain), chain(talking), chain(signalling, plgpu.SemaphoreType.REGULAR)]
    programs = [by_smalt(f, [x]) for f in chains]
    names = ["plain", "exchange", "exchange, signal and wait"]
    try:
        programs.append(by_stock(chains[2], [x]))
        jax.block_until_ready(programs[-1](x))
        names.append("stock, signal and wait")
    except Exception as e:  # noqa: BLE001  whatever stock has against it
        programs = programs[:3]
        print(f"stock: {type(e).__name__}: {str(e).splitlines()[0]}")
    times = wall(programs, [x], count)
    yield "launch, us", dict(zip(names, times))


# ------------------------------------------------------------------------------------------ collective matmul


def matmuls() -> Iterator[Row]:
    n = len(jax.devices())
    m_shard, k, n_shard = 1024, 4096, 4096
    minor = hopper_matmul_mgpu.MatmulDimension
    for dtype in (jnp.float16, jnp.bfloat16):
        count = 10
        a = [normal((n * m_shard, k), P("x", None), dtype, seed) for seed in range(count)]
        b = normal((k, n * n_shard), P(None, "x"), dtype)
        specs = ((P("x", None),) * count + (P(None, "x"),), P(None, "x"))

        def through_xla(x: Any, y: Any) -> Any:
            return lax.all_gather(x, "x", axis=0, tiled=True) @ y

        reference = by_stock(sharded(in_turn(through_xla, count), *specs), [*a, b])
        for tile_m, tile_n, width, wg in [(128, 128, 8, minor.M), (128, 128, 16, minor.M), (128, 128, 8, minor.N)]:
            config = hopper_matmul_mgpu.TuningConfig(
                tile_m=tile_m,
                tile_n=tile_n,
                tile_k=64,
                max_concurrent_steps=4,
                grid_minor_dim=minor.N,
                grid_tile_width=width,
                wg_dimension=wg,
            )
            kernel = functools.partial(collective_matmul_mgpu.all_gather_lhs_matmul, axis_name="x", config=config, dtype=dtype)
            f = sharded(in_turn(kernel, count), *specs)
            ours, stock = by_smalt(f, [*a, b]), by_stock(f, [*a, b])
            same = all(bool((x == y).all()) for x, y in zip(ours(*a, b), stock(*a, b)))
            mine, theirs, xla = wall([ours, stock, reference], [*a, b], count)
            name = f"matmul {jnp.dtype(dtype).name} {tile_m}x{tile_n} width {width} wg {wg.name}"
            yield name, {"smalt us": mine, "stock us": theirs, "ratio": mine / theirs, "XLA us": xla, "same bits": same}


# ------------------------------------------------------------------------------------------ all-gather


def gather_by_tma(x: jax.Array, blocks: int = 32, tile: int = 16384, depth: int = 4) -> jax.Array:
    """An all-gather of rows by bulk copies: each block takes tiles through its shared memory and stores them to every device."""
    n, flat = lax.axis_size("x"), x.reshape(-1)
    steps = flat.size // tile

    def body(x_ref: Any, y_ref: Any, buffers: Any, loaded: Any, done: Any) -> None:
        me, block = lax.axis_index("x"), lax.axis_index("blocks")
        mine = (steps - block + blocks - 1) // blocks

        def load(i: Any) -> None:
            at = pl.ds((block + i * blocks) * tile, tile)
            plgpu.copy_gmem_to_smem(x_ref.at[at], buffers.at[lax.rem(i, depth)], loaded.at[lax.rem(i, depth)])

        for i in range(depth - 1):
            pl.when(i < mine)(functools.partial(load, i))

        @pl.loop(0, mine)
        def _(i: Any) -> None:
            slot = lax.rem(i, depth)
            plgpu.barrier_wait(loaded.at[slot])
            at = pl.ds(me * flat.size + (block + i * blocks) * tile, tile)
            for device in range(n):
                there = plgpu.remote_ref(y_ref, lax.rem(me + device, n))
                plgpu.copy_smem_to_gmem(buffers.at[slot], there.at[at], commit_group=device == n - 1)
            plgpu.wait_smem_to_gmem(1, wait_read_only=True)
            pl.when(i + depth - 1 < mine)(lambda: load(i + depth - 1))

        plgpu.wait_smem_to_gmem(0)
        for device in range(n):
            pl.semaphore_signal(done, 1, device_id=device)
        pl.semaphore_wait(done, n)

    kernel = plgpu.kernel(
        body,
        out_type=jax.ShapeDtypeStruct((n * flat.size,), x.dtype),
        grid=(blocks,),
        grid_names=("blocks",),
        scratch_types=[
            plgpu.SMEM((depth, tile), x.dtype),
            plgpu.Barrier(num_barriers=depth),
            plgpu.SemaphoreType.REGULAR,
        ],
    )
    return kernel(flat).reshape(n * x.shape[0], *x.shape[1:])


def gathers() -> Iterator[Row]:
    n = len(jax.devices())
    for mib in (1, 4, 16, 64, 256):
        rows = mib * 2**20 // 2 // 4096 // n
        count = max(3, min(20, 256 // mib))
        xs = [normal((rows * n, 4096), P("x", None), jnp.bfloat16, seed) for seed in range(count)]
        candidates: dict[str, Callable[..., Any]] = {
            "shipped": lambda x: all_gather_mgpu.all_gather(x, axis_name="x", num_blocks=64, tile_size=8192),
            "bulk copies": gather_by_tma,
        }
        programs = {"NCCL": by_stock(sharded(in_turn(lambda x: lax.all_gather(x, "x", tiled=True), count), P("x"), P()), xs)}
        for name, f in candidates.items():
            programs[name] = by_smalt(sharded(in_turn(f, count), P("x"), P()), xs)
            if not all(bool((np.asarray(y) == np.asarray(x)).all()) for x, y in zip(xs, programs[name](*xs))):
                raise RuntimeError(f"{name} of {mib} MiB is wrong")
        took = dict(zip(programs, wall(list(programs.values()), xs, count)))
        received = mib * 2**20 * (n - 1) / n
        rates = {f"{name} GB/s": received / us / 1e3 for name, us in took.items()}
        yield f"all-gather {mib} MiB", {**{f"{name} us": us for name, us in took.items()}, **rates}


PARTS = {"launch": launches, "matmul": matmuls, "gather": gathers}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", help=", ".join(PARTS))
    parser.add_argument("--json", type=pathlib.Path)
    options = parser.parse_args()
    rows = []
    for part in options.parts or PARTS:
        for row in PARTS[part]():
            rows.append(row)
            print("...", row[0], flush=True)
    print(describe_machine(), len(jax.devices()), "devices")
    for name, figures in rows:
        print(f"{name:44}", "  ".join(f"{key} {value:.4g}" for key, value in figures.items()))
    if options.json:
        options.json.write_text(json.dumps(dict(rows)))


if __name__ == "__main__":
    main()
