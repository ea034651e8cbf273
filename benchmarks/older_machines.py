"""Kernels compiled for a GPU before Hopper, run on a Hopper: device time of smalt and of Triton compiled for the same, in one process.

    PYTHONPATH=jax_plugin:. python benchmarks/older_machines.py [--target sm_80] [--select matmul,sort] [--rounds 3]

N(0,1) data, CUPTI medians of interleaved runs, results compared with XLA's. Kernels and peers of rows are those of `functions.py` (Pallas:Triton's
are compiled for the GPU itself, since XLA knows no other; of Triton proper, and of `triton_products.py`, for the target). Each side runs in the
best of its configurations. `speed` is Triton's time over smalt's. The table is last.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.experimental.pallas as pl
import jax.experimental.pallas.triton as plt
import jax.numpy as jnp
from jax.experimental.pallas import tpu as pltpu

import smalt
from benchmarks import functions
from benchmarks.common import Launch, describe_machine, device_times, geometric_mean, interleaved, median

Case = tuple[list[tuple[str, Callable[..., Any]]], Callable[..., Any], Sequence[Any]]


def matmul() -> Case:
    size = 4096
    a, b = functions.normal(size, size, dtype=jnp.float16), functions.normal(size, size, dtype=jnp.float16, seed=1)

    def of(bm: int, bn: int, bk: int, steps: int) -> Callable[..., Any]:
        def kernel(a_ref: Any, b_ref: Any, o_ref: Any) -> None:
            def add(i: Any, acc: Any) -> Any:
                part = pl.ds(i * bk, bk)
                return acc + jnp.dot(a_ref[:, part], b_ref[part, :], preferred_element_type=jnp.float32)

            o_ref[...] = jax.lax.fori_loop(0, size // bk, add, jnp.zeros((bm, bn), jnp.float32)).astype(o_ref.dtype)

        return pl.pallas_call(
            kernel,
            grid=(size // bm, size // bn),
            in_specs=[pl.BlockSpec((bm, size), lambda i, j: (i, 0)), pl.BlockSpec((size, bn), lambda i, j: (0, j))],
            out_specs=pl.BlockSpec((bm, bn), lambda i, j: (i, j)),
            out_shape=jax.ShapeDtypeStruct((size, size), jnp.float16),
            compiler_params=plt.CompilerParams(num_stages=steps),
        )

    tiles = ((128, 128, 32, 4), (128, 128, 64, 3), (128, 64, 64, 3), (64, 128, 32, 4), (128, 256, 32, 3), (256, 128, 32, 3), (128, 256, 64, 2))
    variants = [(f"{m}x{n}x{k}, {s} stages", of(m, n, k, s)) for m, n, k, s in tiles]
    turns = [(f"grid of {m}x{n}x{k}", _by_turns(size, m, n, k)) for m, n, k in ((128, 128, 32), (128, 128, 64), (64, 128, 64), (64, 64, 64))]
    return variants + turns, lambda a, b: jnp.dot(a, b, preferred_element_type=jnp.float32).astype(jnp.float16), (a, b)


def _by_turns(size: int, bm: int, bn: int, bk: int) -> Callable[..., Any]:
    def kernel(a_ref: Any, b_ref: Any, o_ref: Any, acc: Any) -> None:
        @pl.when(pl.program_id(2) == 0)
        def first() -> None:
            acc[...] = jnp.zeros_like(acc)

        acc[...] += jnp.dot(a_ref[...], b_ref[...], preferred_element_type=jnp.float32)

        @pl.when(pl.program_id(2) == size // bk - 1)
        def last() -> None:
            o_ref[...] = acc[...].astype(o_ref.dtype)

    return pl.pallas_call(
        kernel,
        grid=(size // bm, size // bn, size // bk),
        in_specs=[pl.BlockSpec((bm, bk), lambda i, j, k: (i, k)), pl.BlockSpec((bk, bn), lambda i, j, k: (k, j))],
        out_specs=pl.BlockSpec((bm, bn), lambda i, j, k: (i, j)),
        out_shape=jax.ShapeDtypeStruct((size, size), jnp.float16),
        scratch_shapes=[pltpu.VMEM((bm, bn), jnp.float32)],
    )


def attention() -> Case:
    heads, length, d = 32, 4096, 64
    q, k, v = (functions.normal(heads, length, d, dtype=jnp.float16, seed=i) for i in range(3))

    def of(bm: int, bn: int, stages: int) -> Callable[..., Any]:
        def kernel(q_ref: Any, k_ref: Any, v_ref: Any, o_ref: Any) -> None:
            q = q_ref[...]

            def step(i: Any, carry: Any) -> Any:
                acc, most, total = carry
                part = pl.ds(i * bn, bn)
                s = jnp.dot(q, k_ref[part, :].T, preferred_element_type=jnp.float32) * (d**-0.5 * 1.4426950408889634)
                now = jnp.maximum(most, s.max(axis=1))
                p = jnp.exp2(s - now[:, None])
                kept = jnp.exp2(most - now)
                total = total * kept + p.sum(axis=1)
                acc = acc * kept[:, None] + jnp.dot(p.astype(jnp.float16), v_ref[part, :], preferred_element_type=jnp.float32)
                return acc, now, total

            begin = jnp.zeros((bm, d), jnp.float32), jnp.full((bm,), -jnp.inf, jnp.float32), jnp.zeros((bm,), jnp.float32)
            acc, _, total = jax.lax.fori_loop(0, length // bn, step, begin)
            o_ref[...] = (acc / total[:, None]).astype(o_ref.dtype)

        return pl.pallas_call(
            kernel,
            grid=(heads, length // bm),
            in_specs=[pl.BlockSpec((None, bm, d), lambda h, i: (h, i, 0)), *[pl.BlockSpec((None, length, d), lambda h, i: (h, 0, 0))] * 2],
            out_specs=pl.BlockSpec((None, bm, d), lambda h, i: (h, i, 0)),
            out_shape=jax.ShapeDtypeStruct(q.shape, q.dtype),
            compiler_params=plt.CompilerParams(num_stages=stages),
        )

    def reference(q: Any, k: Any, v: Any) -> Any:
        s = jnp.einsum("hmd,hnd->hmn", q, k, preferred_element_type=jnp.float32) * d**-0.5
        return jnp.einsum("hmn,hnd->hmd", jax.nn.softmax(s, axis=-1).astype(jnp.float16), v, preferred_element_type=jnp.float32).astype(jnp.float16)

    return [(f"{m}x{n}, {s} stages", of(m, n, s)) for m, n, s in ((64, 64, 3), (64, 128, 2), (128, 64, 2), (128, 64, 3), (128, 128, 2), (192, 64, 2))], reference, (q, k, v)


def of_function(make: Callable[[], functions.Pair]) -> Callable[[], Case]:
    def case() -> Case:
        mine, theirs, arguments = make()
        return [("", mine)], theirs, arguments

    case.__name__ = make.__name__
    return case


CASES: tuple[Callable[[], Case], ...] = (
    *map(of_function, (functions.softmax, functions.layernorm, functions.rope, functions.top_k, functions.sort)),
    matmul,
    attention,
)


def peers(name: str, arguments: Sequence[Any]) -> Iterator[tuple[str, Callable[..., Any]]]:
    import torch

    from benchmarks import triton_products

    tensors = [torch.from_dlpack(x) for x in arguments]
    for configuration in triton_products.CONFIGURATIONS[name]:
        launch = getattr(triton_products, name)(*tensors, **configuration)
        yield str(configuration), Launch(launch, torch.cuda.synchronize, lambda out: out.cpu().numpy())


def best(candidates: Sequence[tuple[str, Callable[..., Any]]], arguments: Sequence[Any], expected: Any, tolerance: float) -> tuple[str, Any, float]:
    """The fastest that is right."""
    found: list[tuple[float, str, Any, float]] = []
    said = "none"
    for name, candidate in candidates:
        try:
            off = functions.error(candidate(*arguments), expected)
            if not off <= tolerance:
                said = f"wrong ({name}): {off:.1e}"
                continue
            found.append((median(device_times(candidate, arguments, 3)), name, candidate, off))
        except Exception as e:  # does not compile, or fit
            said = functions.brief(e)
    if not found:
        return said, None, 0.0
    _, name, candidate, off = min(found, key=lambda one: one[0])
    return name, candidate, off


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", default="sm_80")
    parser.add_argument("--select", default="")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--iterations", type=int, default=5)
    options = parser.parse_args()
    os.environ["SMALT_TARGET"] = options.target
    print(describe_machine())
    from benchmarks import triton_products

    triton_products.compile_for(int(options.target.removeprefix("sm_")))
    lines, speeds = [], []
    for case in CASES:
        name = case.__name__
        if options.select and name not in options.select.split(","):
            continue
        variants, theirs_of, arguments = case()
        with smalt.enabled(False):
            expected = jax.jit(theirs_of).lower(*arguments).compile()(*arguments)
        mine = []
        with smalt.enabled(True, pallas_call=True, triton=True):
            for label, f in variants:
                try:
                    mine.append((label, jax.jit(f).lower(*arguments).compile()))
                except Exception as e:
                    print(f"  {name} {label}: {functions.brief(e)}")
        ours, candidate, off = best(mine, arguments, expected, 5e-3)
        if name in ("matmul", "attention"):
            how, rival, _ = best(list(peers(name, arguments)), arguments, expected, 5e-3)
        else:
            found = functions.rival(name, arguments, expected)
            how, rival = (found, None) if isinstance(found, str) else (f"{found.how}, {found.configuration}", found.candidate)
        if candidate is None or rival is None:
            lines.append(f"{name:12} smalt: {ours}; Triton: {how}")
            print(lines[-1], flush=True)
            continue
        own, other = (median(t) for t in interleaved([candidate, rival], arguments, options.rounds, options.iterations))
        speeds.append(other / own)
        lines.append(f"{name:12} {other:10.1f} {own:10.1f} {speeds[-1]:7.3f} {off:9.1e}  smalt: {ours or 'as it is'}; Triton: {how}")
        print(lines[-1], flush=True)
    print(f"\n{options.target} on this GPU\n{'':12} {'Triton us':>10} {'smalt us':>10} {'speed':>7} {'error':>9}")
    print("\n".join(lines))
    if speeds:
        print(f"geometric mean of speeds {geometric_mean(speeds):.3f}; below 0.9: {sum(s < 0.9 for s in speeds)} of {len(speeds)}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
