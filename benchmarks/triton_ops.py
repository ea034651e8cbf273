"""The kernels that JAX ships for Pallas:Triton, by smalt and by stock Triton, in one process: `python benchmarks/triton_ops.py`.

Unmodified, with the parameters that they choose. Device times by CUPTI, medians of calls in turn, normal random data; the largest
difference of either from the reference that JAX has for the kernel, in f32, stands beside them.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.pallas.ops.gpu import attention, decode_attention, layer_norm, paged_attention, rms_norm, softmax

import smalt
from benchmarks import common

Case = tuple[str, Callable[..., Any], Callable[..., Any], list[Any]]


def normal(shape: tuple[int, ...], dtype: Any, seed: int = 0) -> jax.Array:
    return jnp.asarray(np.random.default_rng(seed).standard_normal(shape), dtype)


def gradients(f: Callable[..., Any], argnums: tuple[int, ...]) -> Callable[..., Any]:
    """Of a sum of the results with weights that differ."""

    def weighted(*args: Any) -> Any:
        out = f(*args).astype(jnp.float32)
        return jnp.sum(out * jnp.cos(jnp.arange(out.size, dtype=jnp.float32)).reshape(out.shape))

    return jax.grad(weighted, argnums)


def cases() -> Iterator[Case]:
    for dtype, heads, dim, causal in (
        (jnp.float16, 8, 64, False),
        (jnp.float16, 8, 64, True),
        (jnp.bfloat16, 8, 128, False),
        (jnp.bfloat16, 8, 128, True),
    ):
        q, k, v = (normal((4, 2048, heads, dim), dtype, i) for i in range(3))

        def mha(q: Any, k: Any, v: Any, causal: bool = causal, dim: int = dim) -> Any:
            return attention.mha(q, k, v, segment_ids=None, sm_scale=dim**-0.5, causal=causal)

        def reference(q: Any, k: Any, v: Any, causal: bool = causal, dim: int = dim) -> Any:
            return attention.mha_reference(q, k, v, segment_ids=None, sm_scale=dim**-0.5, causal=causal)

        name = f"attention {jnp.dtype(dtype).name} D{dim}{' causal' if causal else ''}"
        yield name, mha, reference, [q, k, v]
        if causal:
            yield name + ", gradients", gradients(mha, (0, 1, 2)), gradients(reference, (0, 1, 2)), [q, k, v]

    q, k, v = (normal(s, jnp.float16, i) for i, s in enumerate([(8, 16, 128), (8, 8192, 128), (8, 8192, 128)]))
    yield "decoding, one head of keys", decode_attention.mqa, decode_attention.mqa_reference, [q, k, v]
    q, k, v = (normal(s, jnp.float16, i) for i, s in enumerate([(8, 32, 128), (8, 4096, 4, 128), (8, 4096, 4, 128)]))
    yield "decoding, groups of heads", decode_attention.gqa, decode_attention.gqa_reference, [q, k, v]

    pages, size, length = 1024, 16, 2048
    q = normal((8, 32, 128), jnp.float16)
    k, v = (normal((4, pages, size, 128), jnp.float16, i) for i in (1, 2))
    table = jnp.asarray(np.random.default_rng(3).permutation(pages)[: 8 * length // size].reshape(8, -1), jnp.int32)
    lengths = jnp.full(8, length, jnp.int32)

    def paged_reference(q: Any, k: Any, v: Any, table: Any, lengths: Any) -> Any:
        rows = [jnp.transpose(pages[:, table], (1, 2, 3, 0, 4)).reshape(len(table), -1, *pages.shape[::3]) for pages in (k, v)]
        return paged_attention.paged_attention_reference(q, *rows, lengths)

    def paged(q: Any, k: Any, v: Any, table: Any, lengths: Any) -> Any:
        return paged_attention.paged_attention(q, k, v, table, lengths)

    yield "paged attention", paged, paged_reference, [q, k, v, table, lengths]

    for dtype in (jnp.float16, jnp.float32):
        x, scale, shift = normal((4, 2048, 4096), dtype), normal((4096,), dtype, 1), normal((4096,), dtype, 2)
        kind = jnp.dtype(dtype).name
        yield f"layer_norm {kind}", layer_norm.layer_norm, layer_norm.layer_norm_reference, [x, scale, shift]
        yield f"rms_norm {kind}", rms_norm.rms_norm, rms_norm.rms_norm_reference, [x, scale, shift]
        rows = normal((8192, 4096), dtype)
        yield f"softmax {kind}", softmax.softmax, lambda x: jax.nn.softmax(x.astype(jnp.float32)), [rows]
    x, scale, shift = normal((4, 1024, 2048), jnp.float16), normal((2048,), jnp.float16, 1), normal((2048,), jnp.float16, 2)
    for name, f, g in (
        ("layer_norm", layer_norm.layer_norm, layer_norm.layer_norm_reference),
        ("rms_norm", rms_norm.rms_norm, rms_norm.rms_norm_reference),
    ):
        yield f"{name} float16, gradients", gradients(f, (0, 1, 2)), gradients(g, (0, 1, 2)), [x, scale, shift]


def difference(got: Any, want: Any) -> float:
    """The largest, of all results, beside the largest number."""
    worst = 0.0
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want)):
        a, b = (np.asarray(x, np.float64) for x in (a, b))
        worst = max(worst, float(np.abs(a - b).max() / max(1e-30, np.abs(b).max())))
    return worst


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-k", help="only these cases")
    parser.add_argument("--rounds", type=int, default=6)
    options = parser.parse_args()
    print(common.describe_machine())
    print(f"{'':44} {'smalt µs':>9} {'Triton µs':>9} {'ratio':>6}   error: smalt, Triton")
    ratios = []
    for name, f, reference, args in cases():
        if options.k and options.k not in name:
            continue
        try:
            with smalt.enabled(False):
                stock = jax.jit(lambda *a, f=f: f(*a)).lower(*args).compile()
            with smalt.enabled():
                ours = jax.jit(lambda *a, f=f: f(*a)).lower(*args).compile()
            times = common.medians({"smalt": ours, "stock": stock}, args, options.rounds, 6)
            want = jax.jit(reference)(*[a.astype(jnp.float32) if a.dtype.kind == "f" or a.dtype == jnp.bfloat16 else a for a in args])
            errors = [difference(g(*args), want) for g in (ours, stock)]
        except Exception as error:
            print(f"{name:44} ERROR {type(error).__name__}: {str(error)[:600]}", flush=True)
            continue
        ratio = times["smalt"] / times["stock"]
        ratios.append(ratio)
        row = f"{name:44} {times['smalt']:9.1f} {times['stock']:9.1f} {ratio:6.3f}   {errors[0]:.2e}, {errors[1]:.2e}"
        print(row, flush=True)
    if ratios:
        print(f"{len(ratios)} cases: geometric mean {common.geometric_mean(ratios):.3f}, worst {max(ratios):.3f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
