"""Products with narrow weights, as one writes them from arrays: smalt, XLA, and Triton, in one process.

    PYTHONPATH=jax_plugin:. python -m benchmarks.narrow [-k w4a16] [--rows 4096,16] [--forms grid,loop] [--json out.json]

Five kinds of products, each in two forms: a grid whose last axis walks along K, with the sums in scratch, as for a TPU ("grid"), and a loop over K
in each program, as for Triton ("loop"). Some block sizes are tried for each; the best one counts, and so does the best of Triton's. XLA is given
the same in `jax.numpy`. Device times by CUPTI, medians of launches in turn, normal random data. The error is the largest difference from
the product in f32, beside the largest element. The table is last.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import json
import pathlib
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.experimental.pallas as pl
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental.pallas import tpu as pltpu

import smalt
from benchmarks import common

with warnings.catch_warnings():  # JAX is about to remove it
    warnings.simplefilter("ignore", DeprecationWarning)
    import jax.experimental.pallas.triton as plt

GROUP = 128
Blocks = tuple[int, int, int]


@dataclasses.dataclass(frozen=True)
class Operand:
    """An array of a product. `block`: of each dimension how many positions of the block's M, N or K one of its is ("m", "n" or "k", and a
    divisor); "": it has one."""

    array: Any
    dims: tuple[tuple[str, int], ...]


@dataclasses.dataclass(frozen=True)
class Product:
    """`step`: the operands' parts of one step of K and the sum so far, to the sum; `finish`: the sum to the result."""

    name: str
    operands: tuple[Operand, ...]
    sizes: Blocks
    step: Callable[..., Any]
    sums: Any = jnp.float32
    finish: Callable[..., Any] = lambda acc, *_: acc
    #: Operands that only `finish` has.
    last: tuple[Operand, ...] = ()

    #: The same of whole arrays, as `jax.numpy`.
    plain: Callable[..., Any] = lambda *_: None


def part(o: Operand, blocks: Blocks, at: tuple[Any, Any, Any], whole_k: bool, k: int) -> tuple[tuple[int, ...], tuple[Any, ...]]:
    """The block of an operand, and its number in each dimension, where a program has all of K or a step of it."""
    sizes, index = [], []
    for axis, divisor in o.dims:
        if not axis:
            sizes.append(1)
            index.append(0)
            continue
        i = "mnk".index(axis)
        if axis == "k" and whole_k:
            sizes.append(k // divisor)
            index.append(0)
            continue
        sizes.append(max(1, blocks[i] // divisor))
        # Steps that are shorter than what a position stands for share it.
        index.append(at[i] if blocks[i] >= divisor else at[i] * blocks[i] // divisor)
    return tuple(sizes), tuple(index)


def grid_form(p: Product, blocks: Blocks) -> Callable[..., Any]:
    (m, n, k), (bm, bn, bk) = p.sizes, blocks

    def body(*refs: Any) -> None:
        *ins, out, acc = refs
        step, last = ins[: len(p.operands)], ins[len(p.operands) :]

        @pl.when(pl.program_id(2) == 0)
        def _() -> None:
            acc[...] = jnp.zeros_like(acc)

        acc[...] = p.step(acc[...], *[r[...] for r in step])

        @pl.when(pl.program_id(2) == pl.num_programs(2) - 1)
        def _() -> None:
            out[...] = p.finish(acc[...], *[r[...] for r in last]).astype(out.dtype)

    def spec(o: Operand) -> pl.BlockSpec:
        shape, _ = part(o, blocks, (0, 0, 0), False, k)
        return pl.BlockSpec(shape, lambda i, j, l, o=o: part(o, blocks, (i, j, l), False, k)[1])

    return pl.pallas_call(
        body,
        grid=(m // bm, n // bn, k // bk),
        in_specs=[spec(o) for o in (*p.operands, *p.last)],
        out_specs=pl.BlockSpec((bm, bn), lambda i, j, l: (i, j)),
        out_shape=jax.ShapeDtypeStruct((m, n), jnp.bfloat16),
        scratch_shapes=[pltpu.VMEM((bm, bn), p.sums)],
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "parallel", "arbitrary")),
    )


def loop_form(p: Product, blocks: Blocks) -> Callable[..., Any]:
    (m, n, k), (bm, bn, bk) = p.sizes, blocks

    def body(*refs: Any) -> None:
        *ins, out = refs
        step, last = ins[: len(p.operands)], ins[len(p.operands) :]

        def turn(l: Any, acc: Any) -> Any:
            loaded = []
            for o, r in zip(p.operands, step):
                shape, index = part(o, blocks, (0, 0, l), False, k)
                at = [pl.ds(i * s, s) if axis == "k" else slice(None) for (axis, _), i, s in zip(o.dims, index, shape)]
                loaded.append(r[tuple(at)])
            return p.step(acc, *loaded)

        acc = lax.fori_loop(0, k // bk, turn, jnp.zeros((bm, bn), p.sums))
        out[...] = p.finish(acc, *[r[...] for r in last]).astype(out.dtype)

    def spec(o: Operand) -> pl.BlockSpec:
        shape, _ = part(o, blocks, (0, 0, 0), True, k)
        return pl.BlockSpec(shape, lambda i, j, o=o: part(o, blocks, (i, j, 0), True, k)[1])

    return pl.pallas_call(
        body,
        grid=(m // bm, n // bn),
        in_specs=[spec(o) for o in (*p.operands, *p.last)],
        out_specs=pl.BlockSpec((bm, bn), lambda i, j: (i, j)),
        out_shape=jax.ShapeDtypeStruct((m, n), jnp.bfloat16),
        compiler_params=plt.CompilerParams(num_warps=8, num_stages=4),
    )


FORMS = {"grid": grid_form, "loop": loop_form}


# ------------------------------------------------------------------------------------------ the products


def dot(x: Any, y: Any, sums: Any = jnp.float32) -> Any:
    return jnp.dot(x, y, preferred_element_type=sums)


def dot_t(x: Any, y: Any, sums: Any = jnp.float32) -> Any:
    """With the contracted dimension last in both."""
    return lax.dot_general(x, y, (((1,), (1,)), ((), ())), preferred_element_type=sums)


def rows_of(s: Any, rows: int) -> Any:
    """Each row of scales as often as it takes to have so many."""
    return s if s.shape[0] in (1, rows) else jnp.repeat(s, rows // s.shape[0], axis=0)


def products(m: int, n: int, k: int) -> Iterator[Product]:
    rng = np.random.default_rng(0)
    normal = lambda *shape: rng.standard_normal(shape, np.float32)  # noqa: E731
    x = Operand(jnp.asarray(normal(m, k), jnp.bfloat16), (("m", 1), ("k", 1)))

    y = Operand(jnp.asarray(normal(k, n), jnp.bfloat16), (("k", 1), ("n", 1)))
    yield Product("bf16", (x, y), (m, n, k), lambda acc, x, y: acc + dot(x, y), plain=lambda x, y: dot(x, y, jnp.bfloat16))

    w = Operand(jnp.asarray(rng.integers(-8, 8, (k, n)), jnp.int4), (("k", 1), ("n", 1)))
    s = Operand(jnp.asarray(rng.uniform(0.5, 1, (k // GROUP, n)) / 8, jnp.bfloat16), (("k", GROUP), ("n", 1)))

    def dequantised(acc: Any, x: Any, w: Any, s: Any) -> Any:
        return acc + dot(x, w.astype(jnp.bfloat16) * rows_of(s, w.shape[0]))

    def plain(x: Any, w: Any, s: Any) -> Any:
        return dot(x, w.astype(jnp.bfloat16) * rows_of(s, w.shape[0]), jnp.bfloat16)

    yield Product("w4a16", (x, w, s), (m, n, k), dequantised, plain=plain)

    wk = Operand(jnp.asarray(rng.integers(-8, 8, (n, k)), jnp.int4), (("n", 1), ("k", 1)))

    def dequantised_k(acc: Any, x: Any, w: Any, s: Any) -> Any:
        return acc + dot_t(x, w.astype(jnp.bfloat16) * rows_of(s, w.shape[1]).T)

    def plain_k(x: Any, w: Any, s: Any) -> Any:
        return dot_t(x, w.astype(jnp.bfloat16) * rows_of(s, w.shape[1]).T, jnp.bfloat16)

    yield Product("w4a16 along K", (x, wk, s), (m, n, k), dequantised_k, plain=plain_k)

    x8 = Operand(jnp.asarray(rng.integers(-127, 128, (m, k)), jnp.int8), (("m", 1), ("k", 1)))
    w8 = Operand(jnp.asarray(rng.integers(-127, 128, (n, k)), jnp.int8), (("n", 1), ("k", 1)))
    sx = Operand(jnp.asarray(rng.uniform(0.5, 1, (m, 1)) / 4096, jnp.float32), (("m", 1), ("", 1)))
    sw = Operand(jnp.asarray(rng.uniform(0.5, 1, (1, n)), jnp.float32), (("", 1), ("n", 1)))

    def scaled(acc: Any, sx: Any, sw: Any) -> Any:
        return acc.astype(jnp.float32) * sx * sw

    yield Product(
        "w8a8",
        (x8, w8),
        (m, n, k),
        lambda acc, x, w: acc + dot_t(x, w, jnp.int32),
        jnp.int32,
        scaled,
        (sx, sw),
        plain=lambda x, w, sx, sw: scaled(dot_t(x, w, jnp.int32), sx, sw).astype(jnp.bfloat16),
    )

    f8 = jnp.float8_e4m3fn
    xf = Operand(jnp.asarray(normal(m, k), f8), (("m", 1), ("k", 1)))
    w4 = Operand(jnp.asarray(rng.integers(-8, 8, (n, k)), jnp.int4), (("n", 1), ("k", 1)))
    sn = Operand(jnp.asarray(rng.uniform(0.5, 1, (1, n)) / 8, jnp.float32), (("", 1), ("n", 1)))
    yield Product(
        "fp8 x int4",
        (xf, w4),
        (m, n, k),
        lambda acc, x, w: acc + dot_t(x, w.astype(f8)),
        finish=lambda acc, s: acc * s,
        last=(sn,),
        plain=lambda x, w, s: (dot_t(x, w.astype(f8)) * s).astype(jnp.bfloat16),
    )

    wf = Operand(jnp.asarray(normal(n, k), f8), (("n", 1), ("k", 1)))
    sx = Operand(jnp.asarray(rng.uniform(0.5, 1, (k // GROUP, m)), jnp.float32), (("k", GROUP), ("m", 1)))
    sw = Operand(jnp.asarray(rng.uniform(0.5, 1, (k // GROUP, n // GROUP)), jnp.float32), (("k", GROUP), ("n", GROUP)))

    def promoted(acc: Any, x: Any, w: Any, sx: Any, sw: Any) -> Any:
        sw = jnp.repeat(sw, w.shape[0] // sw.shape[1], axis=1) if sw.shape[1] != 1 else sw
        return acc + dot_t(x, w) * sx.reshape(-1, 1) * sw

    def plain_blocks(x: Any, w: Any, sx: Any, sw: Any) -> Any:
        x = x.astype(jnp.bfloat16) * jnp.repeat(sx.T, GROUP, axis=1).astype(jnp.bfloat16)
        w = w.astype(jnp.bfloat16) * jnp.repeat(jnp.repeat(sw.T, GROUP, axis=0), GROUP, axis=1).astype(jnp.bfloat16)
        return dot_t(x, w, jnp.bfloat16)

    yield Product("fp8, 128 x 128 scales", (xf, wf, sx, sw), (m, n, k), promoted, plain=plain_blocks)

    f4 = jnp.float4_e2m1fn
    wm = Operand(jnp.asarray(normal(k, n)).astype(f4), (("k", 1), ("n", 1)))
    e8 = Operand(jnp.asarray(2.0 ** rng.integers(-6, 1, (k // 32, n)), jnp.float8_e8m0fnu), (("k", 32), ("n", 1)))

    def micro(acc: Any, x: Any, w: Any, s: Any) -> Any:
        return acc + dot(x, w.astype(jnp.bfloat16) * rows_of(s.astype(jnp.bfloat16), w.shape[0]))

    yield Product(
        "mxfp4",
        (x, wm, e8),
        (m, n, k),
        micro,
        plain=lambda x, w, s: dot(x, w.astype(jnp.bfloat16) * rows_of(s.astype(jnp.bfloat16), w.shape[0]), jnp.bfloat16),
    )


def block_sizes(p: Product) -> list[Blocks]:
    m, _, _ = p.sizes
    eight_bits = p.operands[0].array.dtype.itemsize == 1
    if p.name.startswith("fp8, 128"):
        return [(min(m, 128), 128, 128), (min(m, 64), 128, 128)] if m > 64 else [(m, 128, 128)]
    ks = (128,) if eight_bits else (64, 128)
    if m <= 64:
        return [(m, n, k) for n in (32, 64, 128) for k in (*ks, 256)]
    return [(bm, bn, k) for bm, bn in ((128, 128), (128, 256), (256, 128)) for k in ks]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-k", default="", help="only these")
    parser.add_argument("--rows", default="4096,16", help="M")
    parser.add_argument("--forms", default="grid,loop")
    parser.add_argument("--peers", default="XLA,Pallas:Triton,Triton")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--json", type=pathlib.Path)
    options = parser.parse_args()
    peers = options.peers.split(",")
    try:
        from benchmarks import narrow_peers
    except ImportError as error:
        narrow_peers = None  # type: ignore[assignment]
        print(f"without Triton: {error}")
    print(common.describe_machine())
    table, found = [], {}
    for m in map(int, options.rows.split(",")):
        for p in products(m, 4096, 4096):
            if options.k not in p.name:
                continue
            args = [o.array for o in (*p.operands, *p.last)]
            candidates: dict[str, Callable[..., Any]] = {}

            def add(name: str, make: Callable[[], Any], candidates: dict[str, Callable[..., Any]] = candidates) -> None:
                try:
                    candidates[name] = make()
                except Exception as error:
                    print(f"  {p.name}, {m} rows: {name}: {type(error).__name__}: {str(error)[:300]}", flush=True)

            for form in options.forms.split(","):
                for blocks in block_sizes(p):
                    f = FORMS[form](p, blocks)
                    add(f"smalt {form} {blocks}", functools.partial(_compile, f, args))
            with smalt.enabled(False):
                add("XLA", lambda p=p, args=args: jax.jit(p.plain).lower(*args).compile())
                for blocks in block_sizes(p) if "Pallas:Triton" in peers else ():  # where it can
                    add(f"Pallas:Triton {blocks}", lambda p=p, b=blocks, args=args: jax.jit(loop_form(p, b)).lower(*args).compile())
            if narrow_peers is not None and "Triton" in peers:
                for name, launch in narrow_peers.launches(p.name, args):
                    add(f"Triton {name}", lambda launch=launch: launch)
            row = measure(p, m, candidates, args, options.rounds)
            found[f"{p.name}, {m}"] = row
            best = {peer: min((t for name, (t, _) in row.items() if name.startswith(peer)), default=None) for peer in ("smalt grid", "smalt loop", "XLA", "Pallas:Triton", "Triton")}
            others = [t for peer, t in best.items() if t is not None and not peer.startswith("smalt")]
            ours = [t for peer, t in best.items() if t is not None and peer.startswith("smalt")]
            speed = f"{min(others) / min(ours):.3f}" if others and ours else "-"
            cells = " ".join(f"{'-' if t is None else f'{t:.1f}':>10}" for t in best.values())
            table.append(f"{p.name:24} {m:5} {cells} {speed:>7}")
    print(f"{'':24} {'rows':>5} {'grid µs':>10} {'loop µs':>10} {'XLA':>10} {'P:Triton':>10} {'Triton':>10} {'speed':>7}")
    print("\n".join(table))
    if options.json:
        options.json.write_text(json.dumps(found, indent=1))
    return 0


def _compile(f: Callable[..., Any], args: Sequence[Any]) -> Any:
    with smalt.enabled():
        return jax.jit(f).lower(*args).compile()


def measure(p: Product, m: int, candidates: dict[str, Callable[..., Any]], args: Sequence[Any], rounds: int) -> dict[str, tuple[float, float]]:
    """Of each candidate the median time in microseconds, and its error; what is wrong does not count."""
    want = np.asarray(jax.jit(p.plain)(*args), np.float64)
    right: dict[str, Callable[..., Any]] = {}
    errors = {}
    for name, f in candidates.items():
        try:
            got = np.asarray(f(*args), np.float64)
            errors[name] = float(np.abs(got - want).max() / np.abs(want).max())
        except Exception as error:
            print(f"  {p.name}, {m} rows: {name}: {type(error).__name__}: {str(error)[:300]}", flush=True)
            continue
        if errors[name] < 0.02:
            right[name] = f
        else:
            print(f"  {p.name}, {m} rows: {name}: WRONG by {errors[name]:.3g}", flush=True)
    # Each alone first: a tenth of the time tells which ones are worth more.
    quick = common.medians(right, args, 1, 3)
    for family in ("smalt grid", "smalt loop", "Pallas:Triton", "Triton"):
        names = sorted((n for n in right if n.startswith(family)), key=quick.__getitem__)
        for name in names[1:]:
            print(f"  {p.name}, {m} rows: {name}: {quick[name]:.1f} µs")
            del right[name]
    times = common.medians(right, args, rounds, 6)
    for name, t in times.items():
        print(f"  {p.name}, {m} rows: {name}: {t:.1f} µs, error {errors[name]:.2g}", flush=True)
    return {name: (t, errors[name]) for name, t in times.items()}


if __name__ == "__main__":
    sys.exit(main())
