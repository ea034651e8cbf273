"""Functions of whole blocks inside of kernels: device time of smalt, of XLA's own for the same and of kernels for Triton, in one process.

    PYTHONPATH=jax_plugin:. python benchmarks/functions.py [--select sort,top_k] [--rounds 3] [--peers xla] [--json out.json]

N(0,1) data, CUPTI medians of interleaved runs; results are compared with XLA's (random bits: a kernel's stream is another one). The
kernels are `pl.pallas_call`s as one writes them first: nothing in them is about layouts. Triton's (`triton_peers.py`) are written for
speed, and each runs in the best of its configurations; what it cannot do is said in the table. `speed` is the better peer's time over
smalt's. The table is last.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import json
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.experimental.pallas as pl
import jax.experimental.pallas.mosaic_gpu as plgpu
import jax.numpy as jnp
import numpy as np

import smalt
from benchmarks.common import describe_machine, device_times, geometric_mean, interleaved, median

Pair = tuple[Callable[..., Any], Callable[..., Any], Sequence[Any]]
PARAMS = plgpu.CompilerParams()


def normal(*shape: int, dtype: Any = jnp.float32, seed: int = 0) -> jax.Array:
    return jax.random.normal(jax.random.key(seed), shape, dtype)


def of_rows(f: Callable[..., Any], rows: int, *arrays: Any, out: Any = None) -> Callable[..., Any]:
    """A kernel over blocks of so many rows of each array; `out` is like the first unless given."""
    out = jax.eval_shape(f, *arrays) if out is None else out
    outs = jax.tree.leaves(out)

    def kernel(*refs: Any) -> None:
        results = jax.tree.leaves(f(*(ref[...] for ref in refs[: len(arrays)])))
        for ref, x in zip(refs[len(arrays) :], results):
            ref[...] = x

    def spec(shape: Sequence[int]) -> pl.BlockSpec:
        return pl.BlockSpec((rows, *shape[1:]), lambda i, n=len(shape): (i,) + (0,) * (n - 1))

    call = pl.pallas_call(
        kernel,
        grid=(arrays[0].shape[0] // rows,),
        in_specs=[spec(a.shape) for a in arrays],
        out_specs=[spec(o.shape) for o in outs],
        out_shape=outs,
        compiler_params=PARAMS,
    )
    return lambda *a: call(*a) if len(outs) > 1 else call(*a)[0]


def softmax() -> Pair:
    x = normal(8192, 4096)

    def f(x: Any) -> Any:
        return jax.nn.softmax(x, axis=-1)

    return of_rows(f, 4, x), f, (x,)


def layernorm() -> Pair:
    x = normal(8192, 4096)

    def f(x: Any) -> Any:
        centred = x - jnp.mean(x, axis=-1, keepdims=True)
        return centred * jax.lax.rsqrt(jnp.mean(centred * centred, axis=-1, keepdims=True) + 1e-5)

    return of_rows(f, 4, x), f, (x,)


def rope() -> Pair:
    x, angle = normal(65536, 256), normal(65536, 128, seed=1)

    def f(x: Any, angle: Any) -> Any:
        c, s, a, b = jnp.cos(angle), jnp.sin(angle), x[:, :128], x[:, 128:]
        return jnp.concatenate([a * c - b * s, a * s + b * c], axis=1)

    return of_rows(f, 16, x, angle), f, (x, angle)


def top_k() -> Pair:
    x = normal(1024, 4096)
    return of_rows(lambda x: jax.lax.top_k(x, 8), 1, x), lambda x: jax.lax.top_k(x, 8), (x,)


def sort() -> Pair:
    x = normal(1024, 1024)
    return of_rows(lambda x: jnp.sort(x, axis=1), 4, x), lambda x: jnp.sort(x, axis=1), (x,)


def argsort() -> Pair:
    x = normal(1024, 1024)

    def f(x: Any) -> Any:
        return jnp.argsort(x, axis=1).astype(jnp.int32)

    return of_rows(f, 1, x), f, (x,)


def gather() -> Pair:
    table = normal(65536, 1024)
    ids = jax.random.randint(jax.random.key(1), (4096,), 0, 65536, jnp.int32)

    def kernel(ids_ref: Any, table_ref: Any, o_ref: Any) -> None:
        o_ref[...] = table_ref[ids_ref[...]]

    call = pl.pallas_call(
        kernel,
        grid=(1024,),
        in_specs=[pl.BlockSpec((4,), lambda i: (i,)), plgpu.BlockSpec(memory_space=plgpu.GMEM)],
        out_specs=pl.BlockSpec((4, 1024), lambda i: (i, 0)),
        out_shape=jax.ShapeDtypeStruct((4096, 1024), jnp.float32),
        compiler_params=PARAMS,
    )
    return call, lambda ids, table: table[ids], (ids, table)


def cumsum_rows() -> Pair:
    x = jax.random.randint(jax.random.key(0), (4096, 4096), -9, 9, jnp.int32)
    return of_rows(lambda x: jnp.cumsum(x, axis=1), 4, x), lambda x: jnp.cumsum(x, axis=1), (x,)


def prefix_sum() -> Pair:
    """2²⁴ elements: sums of parts, a scan of the sums, and scans of the parts that begin there."""
    x = jax.random.randint(jax.random.key(0), (1 << 24,), -9, 9, jnp.int32)
    parts = x.reshape(4096, 4096)
    sums = of_rows(lambda x: x.sum(axis=1, keepdims=True), 4, parts)
    before = of_rows(lambda s: jnp.cumsum(s, axis=1) - s, 1, parts[:1])
    scans = of_rows(lambda x, before: jnp.cumsum(x, axis=1) + before, 4, parts, parts[:, :1])

    def mine(x: Any) -> Any:
        x = x.reshape(4096, 4096)
        return scans(x, before(sums(x).reshape(1, -1)).reshape(-1, 1)).reshape(-1)

    return mine, jnp.cumsum, (x,)


def random_bits() -> Pair:
    key = jnp.array([0, 7], jnp.uint32)

    def kernel(key_ref: Any, o_ref: Any) -> None:
        own = jax.random.fold_in(jax.random.wrap_key_data(key_ref[...]), pl.program_id(0))
        o_ref[...] = jax.random.bits(own, (4096,), jnp.uint32)

    call = pl.pallas_call(
        kernel,
        grid=(1 << 14,),
        in_specs=[pl.BlockSpec((2,), lambda i: (0,))],
        out_specs=pl.BlockSpec((4096,), lambda i: (i,)),
        out_shape=jax.ShapeDtypeStruct((1 << 26,), jnp.uint32),
        compiler_params=PARAMS,
    )
    return call, lambda key: jax.random.bits(jax.random.wrap_key_data(key), (1 << 26,), jnp.uint32), (key,)


def product(m: int, n: int, k: int, dtype: Any) -> Callable[[], Pair]:
    def make() -> Pair:
        tiles = 2048
        a, b = normal(tiles, m, k, dtype=dtype), normal(tiles, k, n, dtype=dtype, seed=1)

        def kernel(a_ref: Any, b_ref: Any, o_ref: Any) -> None:
            o_ref[...] = jnp.dot(a_ref[...], b_ref[...], preferred_element_type=jnp.float32)

        def spec(*shape: int) -> pl.BlockSpec:
            return pl.BlockSpec((None, *shape), lambda i: (i, 0, 0))

        call = pl.pallas_call(
            kernel,
            grid=(tiles,),
            in_specs=[spec(m, k), spec(k, n)],
            out_specs=spec(m, n),
            out_shape=jax.ShapeDtypeStruct((tiles, m, n), jnp.float32),
            compiler_params=PARAMS,
        )
        return call, lambda a, b: jnp.einsum("tmk,tkn->tmn", a, b, preferred_element_type=jnp.float32), (a, b)

    make.__name__ = f"product {m}x{n}x{k} {jnp.dtype(dtype).name}"
    return make


CASES: tuple[Callable[[], Pair], ...] = (
    softmax,
    layernorm,
    rope,
    top_k,
    sort,
    argsort,
    gather,
    cumsum_rows,
    prefix_sum,
    random_bits,
    product(64, 64, 64, jnp.float16),
    product(128, 256, 128, jnp.float16),
    product(128, 128, 128, jnp.float16),
    product(64, 64, 64, jnp.float32),
    product(128, 128, 128, jnp.float32),
)


def error(mine: Any, theirs: Any) -> float:
    """Over the largest number."""
    worst = 0.0
    for a, b in zip(jax.tree.leaves(mine), jax.tree.leaves(theirs)):
        x, y = np.asarray(a, np.float64), np.asarray(b, np.float64)
        worst = max(worst, float(np.max(np.abs(x - y)) / max(1e-30, float(np.max(np.abs(y))))))
    return worst


@dataclasses.dataclass(frozen=True)
class Rival:
    """A kernel for Triton: how it is written, the best configuration, and the candidate to measure."""

    how: str
    configuration: str
    candidate: Callable[..., Any]
    error: float


def rival(name: str, arguments: Sequence[Any], expected: Any) -> Rival | str:
    """The fastest right configuration of a case's kernel for Triton; a text: why there is none."""
    try:
        peers = importlib.import_module("benchmarks.triton_peers").PEERS
        make = peers.get(name.split()[0])
        if make is None:
            return "none"
        peer = make(*arguments)
    except Exception as e:  # not installed, or not as we know it: the other peer counts alone
        return brief(e)
    best: tuple[float, Rival] | None = None
    says = "no configuration"
    for variant in peer.variants:
        try:
            with smalt.enabled(False):
                candidate = peer.prepare(variant.call, arguments)
                off = error(candidate(*arguments), expected)
                if not off <= TOLERANCE:
                    says = f"wrong ({variant.name}): {off:.1e}"
                    continue
                time = median(device_times(candidate, arguments, 3))
        except Exception as e:  # a configuration that does not compile or fit
            says = brief(e)
            continue
        if best is None or time < best[0]:
            best = time, Rival(peer.how, variant.name, candidate, off)
    return says if best is None else best[1]


def brief(e: Exception) -> str:
    text = str(e).strip() or "no text"
    return f"{type(e).__name__}: {text.splitlines()[0][:100]}"


HEADER = f"{'function':30} {'XLA us':>10} {'Triton us':>10} {'smalt us':>10} {'speed':>7} {'error':>9} {'regs':>9} {'spill':>6}  Triton's kernel"
#: Of an element, over the largest number: TF32 products differ by this much in the order of their sums.
TOLERANCE = 2e-3


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--select", default="", help="names, by commas")
    parser.add_argument("--peers", default="xla,triton", help="xla, or xla,triton")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--iterations", type=int, default=5)
    parser.add_argument("--json", type=pathlib.Path)
    options = parser.parse_args()
    print(describe_machine())
    lines, speeds, wrong = [], [], 0
    records = []
    for case in CASES:
        name = case.__name__
        if options.select and not any(w in name for w in options.select.split(",")):
            continue
        mine_of, theirs_of, arguments = case()
        with smalt.enabled(False):
            theirs = jax.jit(theirs_of).lower(*arguments).compile()
        with smalt.enabled(True):
            reports = smalt.inspect(mine_of, *arguments)
            mine = jax.jit(mine_of).lower(*arguments).compile()
        expected = theirs(*arguments)
        off = error(mine(*arguments), expected) if case is not random_bits else 0.0
        triton = rival(name, arguments, expected) if "triton" in options.peers.split(",") else "not asked for"
        candidates = [theirs, mine] + ([] if isinstance(triton, str) else [triton.candidate])
        xla, ours, *others = (median(t) for t in interleaved(candidates, arguments, options.rounds, options.iterations))
        registers = "/".join(str(r.registers) for r in reports)
        spills = sum(r.spill_bytes or 0 for r in reports)
        wrong += off > TOLERANCE
        speeds.append(min(xla, *others) / ours if others else xla / ours)
        said = triton if isinstance(triton, str) else f"{triton.how}, {triton.configuration}"
        records.append(
            {
                "case": name,
                "xla_us": xla,
                "triton_us": others[0] if others else None,
                "triton": said,
                "smalt_us": ours,
                "speed": speeds[-1],
                "error": off,
                "registers": registers,
                "spill_bytes": spills,
            }
        )
        third = f"{others[0]:10.1f}" if others else f"{'-':>10}"
        lines.append(f"{name:30} {xla:10.1f} {third} {ours:10.1f} {speeds[-1]:7.3f} {off:9.1e} {registers:>9} {spills:6}  {said}")
        print(lines[-1], flush=True)
    print(f"\n{HEADER}")
    print("\n".join(lines))
    print(f"geometric mean of speeds {geometric_mean(speeds):.3f}; below 0.9: {sum(s < 0.9 for s in speeds)} of {len(speeds)}")
    if options.json:
        options.json.write_text(json.dumps(records))
    return int(wrong > 0)


if __name__ == "__main__":
    raise SystemExit(main())
