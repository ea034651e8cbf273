"""Kernels as people write them first: `jax.numpy` on whole blocks, no layouts, no barriers, no copies.

    PYTHONPATH=jax_plugin python examples/as_first_written.py [NAME ...]

Each is held against the same thing outside of a kernel. `tests/unit/test_examples.py` and `tests/gpu/suites/test_examples.py` run them all.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.experimental.pallas as pl
import jax.experimental.pallas.mosaic_gpu as plgpu
import jax.numpy as jnp
import numpy as np

import smalt


@dataclasses.dataclass(frozen=True)
class Example:
    """A function around a kernel, its arguments, and what it should give."""

    run: Callable[..., Any]
    arguments: Sequence[Any]
    reference: Callable[..., Any]
    tolerance: float  # of the largest element; 0: bit for bit


EXAMPLES: dict[str, Example] = {}
RNG = np.random.default_rng(0)


def example(*arguments: Any, reference: Callable[..., Any], tolerance: float = 0.0) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def register(f: Callable[..., Any]) -> Callable[..., Any]:
        EXAMPLES[f.__name__] = Example(f, arguments, reference, tolerance)
        return f

    return register


def normal(*shape: int, dtype: Any = np.float32) -> Any:
    return RNG.normal(size=shape).astype(dtype)


def like(shape: Sequence[int], dtype: Any = jnp.float32) -> Any:
    return jax.ShapeDtypeStruct(tuple(shape), dtype)


def rows(n: int, *rest: int) -> pl.BlockSpec:
    """Blocks of n rows."""
    return pl.BlockSpec((n, *rest), lambda i: (i,) + (0,) * len(rest))


def whole(*shape: int) -> pl.BlockSpec:
    """All of an array in every step."""
    return pl.BlockSpec(shape, lambda *_: (0,) * len(shape))


# ------------------------------------------------------------------------------------------ rows


@example(normal(64, 1000), reference=lambda x: jax.nn.softmax(x, axis=-1), tolerance=2e-6)
def softmax(x):
    def kernel(x_ref, o_ref):
        x = x_ref[...]
        e = jnp.exp(x - x.max(axis=-1, keepdims=True))
        o_ref[...] = e / e.sum(axis=-1, keepdims=True)

    return pl.pallas_call(kernel, out_shape=like(x.shape), grid=(16,), in_specs=[rows(4, 1000)], out_specs=rows(4, 1000))(x)


def _layernorm(x, gain, bias):
    centred = x - x.mean(axis=-1, keepdims=True)
    return centred * jax.lax.rsqrt((centred * centred).mean(axis=-1, keepdims=True) + 1e-5) * gain + bias


@example(normal(40, 768), normal(768), normal(768), reference=_layernorm, tolerance=5e-6)
def layernorm(x, gain, bias):
    def kernel(x_ref, gain_ref, bias_ref, o_ref):
        o_ref[...] = _layernorm(x_ref[...], gain_ref[...], bias_ref[...])

    specs = [rows(8, 768), whole(768), whole(768)]
    return pl.pallas_call(kernel, out_shape=like(x.shape), grid=(5,), in_specs=specs, out_specs=rows(8, 768))(x, gain, bias)


def _rope(x, position):
    half = x.shape[-1] // 2
    angle = position[:, None] * 10000.0 ** (-jnp.arange(half, dtype=jnp.float32) / half)
    a, b = x[:, :half], x[:, half:]
    return jnp.concatenate([a * jnp.cos(angle) - b * jnp.sin(angle), a * jnp.sin(angle) + b * jnp.cos(angle)], axis=1)


@example(normal(48, 128), np.arange(48, dtype=np.float32), reference=_rope, tolerance=3e-5)
def rope(x, position):
    def kernel(x_ref, position_ref, o_ref):
        o_ref[...] = _rope(x_ref[...], position_ref[...])

    specs = [rows(16, 128), pl.BlockSpec((16,), lambda i: (i,))]
    return pl.pallas_call(kernel, out_shape=like(x.shape), grid=(3,), in_specs=specs, out_specs=rows(16, 128))(x, position)


@example(normal(30, 500), reference=lambda x: jax.lax.top_k(x, 8))
def top_k(x):
    def kernel(x_ref, values_ref, indices_ref):
        values_ref[...], indices_ref[...] = jax.lax.top_k(x_ref[...], 8)

    out = [like((30, 8)), like((30, 8), jnp.int32)]
    return pl.pallas_call(kernel, out_shape=out, grid=(10,), in_specs=[rows(3, 500)], out_specs=[rows(3, 8)] * 2)(x)


@example(RNG.integers(0, 50, 700).astype(np.int32), reference=lambda x: jnp.argsort(x).astype(jnp.int32))
def argsort(x):
    def kernel(x_ref, o_ref):
        o_ref[...] = jnp.argsort(x_ref[...]).astype(jnp.int32)

    return pl.pallas_call(kernel, out_shape=like(x.shape, jnp.int32))(x)


@example(RNG.integers(0, 37, 3000).astype(np.int32), reference=lambda x: jnp.bincount(x, length=37).astype(jnp.int32))
def histogram(x):
    """Blocks that count into one output: that axis runs in turn."""

    def kernel(x_ref, o_ref):
        @pl.when(pl.program_id(0) == 0)
        def _():
            o_ref[...] = jnp.zeros_like(o_ref)

        o_ref[...] = o_ref[...].at[x_ref[...]].add(1)

    spec = pl.BlockSpec((500,), lambda i: (i,))
    return pl.pallas_call(kernel, out_shape=like((37,), jnp.int32), grid=(6,), in_specs=[spec], out_specs=whole(37))(x)


@example(RNG.integers(-9, 9, 4096).astype(np.int32), reference=lambda x: jnp.cumsum(x))
def prefix_sum(x):
    def kernel(x_ref, o_ref):
        o_ref[...] = jnp.cumsum(x_ref[...])

    return pl.pallas_call(kernel, out_shape=like(x.shape, jnp.int32))(x)


def _stencil(x, w):
    padded = jnp.pad(x, 1)
    h, n = x.shape
    return sum(w[i, j] * padded[i : i + h, j : j + n] for i in range(3) for j in range(3))


@example(normal(40, 50), normal(3, 3), reference=_stencil, tolerance=2e-6)
def stencil(x, w):
    def kernel(x_ref, w_ref, o_ref):
        o_ref[...] = _stencil(x_ref[...], w_ref)

    return pl.pallas_call(kernel, out_shape=like(x.shape))(x, w)


def _conv1d(x, w):
    return jax.lax.conv_general_dilated(x[None], w, (1,), "SAME", dimension_numbers=("NCH", "OIH", "NCH"), precision="highest")[0]


@example(normal(8, 90), normal(16, 8, 5), reference=_conv1d, tolerance=5e-6)
def conv1d(x, w):
    def kernel(x_ref, w_ref, o_ref):
        o_ref[...] = _conv1d(x_ref[...], w_ref[...])

    return pl.pallas_call(kernel, out_shape=like((16, 90)))(x, w)


# ------------------------------------------------------------------------------------------ indices


@example(normal(1000, 96), RNG.integers(0, 1000, 60).astype(np.int32), reference=lambda table, ids: table[ids])
def embedding(table, ids):
    def kernel(ids_ref, table_ref, o_ref):
        o_ref[...] = table_ref[ids_ref[...]]

    specs = [pl.BlockSpec((12,), lambda i: (i,)), plgpu.BlockSpec(memory_space=plgpu.GMEM)]
    return pl.pallas_call(kernel, out_shape=like((60, 96)), grid=(5,), in_specs=specs, out_specs=rows(12, 96))(ids, table)


@example(normal(50, 16), RNG.integers(0, 20, 50).astype(np.int32), reference=lambda x, at: jnp.zeros((20, 16)).at[at].add(x), tolerance=2e-6)
def scatter_add(x, at):
    def kernel(x_ref, at_ref, o_ref):
        o_ref[...] = jnp.zeros((20, 16)).at[at_ref[...]].add(x_ref[...])

    return pl.pallas_call(kernel, out_shape=like((20, 16)))(x, at)


def _cross_entropy(logits, labels):
    top = logits.max(axis=-1, keepdims=True)
    log_z = jnp.log(jnp.exp(logits - top).sum(axis=-1)) + top[:, 0]
    return log_z - jnp.take_along_axis(logits, labels[:, None], axis=-1)[:, 0]


@example(normal(32, 321), RNG.integers(0, 321, 32).astype(np.int32), reference=_cross_entropy, tolerance=2e-6)
def cross_entropy(logits, labels):
    def kernel(logits_ref, labels_ref, o_ref):
        o_ref[...] = _cross_entropy(logits_ref[...], labels_ref[...])

    one = pl.BlockSpec((8,), lambda i: (i,))
    return pl.pallas_call(kernel, out_shape=like((32,)), grid=(4,), in_specs=[rows(8, 321), one], out_specs=one)(logits, labels)


@example(RNG.integers(-5, 5, (200, 7)).astype(np.int32), np.sort(RNG.integers(0, 12, 200)).astype(np.int32), reference=lambda x, s: jax.ops.segment_sum(x, s, 12))
def segment_sum(x, segments):
    def kernel(x_ref, segments_ref, o_ref):
        o_ref[...] = jax.ops.segment_sum(x_ref[...], segments_ref[...], 12)

    return pl.pallas_call(kernel, out_shape=like((12, 7), jnp.int32))(x, segments)


# ------------------------------------------------------------------------------------------ products


def _int8_matmul(a, b):
    return np.asarray(a, np.int32) @ np.asarray(b, np.int32)


@example(RNG.integers(-99, 99, (96, 128)).astype(np.int8), RNG.integers(-99, 99, (128, 64)).astype(np.int8), reference=_int8_matmul)
def int8_matmul(a, b):
    def kernel(a_ref, b_ref, o_ref):
        o_ref[...] = jnp.dot(a_ref[...], b_ref[...], preferred_element_type=jnp.int32)

    specs = [pl.BlockSpec((32, 128), lambda i, j: (i, 0)), pl.BlockSpec((128, 32), lambda i, j: (0, j))]
    out = pl.BlockSpec((32, 32), lambda i, j: (i, j))
    return pl.pallas_call(kernel, out_shape=like((96, 64), jnp.int32), grid=(3, 2), in_specs=specs, out_specs=out)(a, b)


@example(normal(1000, 24), normal(24, 3), reference=lambda a, b: np.asarray(a, np.float64) @ np.asarray(b, np.float64), tolerance=2e-6)
def tall_skinny_dot(a, b):
    def kernel(a_ref, b_ref, o_ref):
        o_ref[...] = jnp.dot(a_ref[...], b_ref[...], precision="highest")

    return pl.pallas_call(kernel, out_shape=like((1000, 3)), grid=(8,), in_specs=[rows(125, 24), whole(24, 3)], out_specs=rows(125, 3))(a, b)


@example(normal(128, 64, dtype=np.float16), normal(64, 96, dtype=np.float16), reference=lambda a, b: jax.nn.gelu(np.asarray(a, np.float32) @ np.asarray(b, np.float32)), tolerance=2e-3)
def matmul_gelu(a, b):
    def kernel(a_ref, b_ref, o_ref):
        acc = jnp.zeros((64, 96), jnp.float32)
        for k in range(2):
            acc += jnp.dot(a_ref[:, k * 32 : (k + 1) * 32], b_ref[k * 32 : (k + 1) * 32, :], preferred_element_type=jnp.float32)
        o_ref[...] = jax.nn.gelu(acc)

    return pl.pallas_call(kernel, out_shape=like((128, 96)), grid=(2,), in_specs=[rows(64, 64), whole(64, 96)], out_specs=rows(64, 96))(a, b)


def _attend(q, k, v, scores_mask=None):
    scores = jnp.dot(q, k.T, preferred_element_type=jnp.float32) * q.shape[-1] ** -0.5
    if scores_mask is not None:
        scores = jnp.where(scores_mask, scores, -jnp.inf)
    e = jnp.exp(scores - scores.max(axis=-1, keepdims=True))
    return jnp.dot((e / e.sum(axis=-1, keepdims=True)).astype(v.dtype), v, preferred_element_type=jnp.float32)


def _decode_reference(q, k, v):
    return jnp.stack([_attend(*(jnp.asarray(x, jnp.float32) for x in (q[h], k[h], v[h]))) for h in range(q.shape[0])])


@example(normal(2, 4, 64, dtype=np.float16), normal(2, 256, 64, dtype=np.float16), normal(2, 256, 64, dtype=np.float16), reference=_decode_reference, tolerance=5e-3)
def flash_decode_gqa(q, k, v):
    """(kv heads, query heads of each, d) against (kv heads, sequence, d), block after block of the sequence."""
    d, block = 64, 64

    def kernel(q_ref, k_ref, v_ref, o_ref):
        q = q_ref[...]

        def step(i, carry):
            m, l, acc = carry
            at = pl.ds(i * block, block)
            s = jnp.dot(q, k_ref[at].T, preferred_element_type=jnp.float32) * d**-0.5
            m_new = jnp.maximum(m, s.max(axis=-1))
            p, scale = jnp.exp(s - m_new[:, None]), jnp.exp(m - m_new)
            acc = acc * scale[:, None] + jnp.dot(p.astype(v_ref.dtype), v_ref[at], preferred_element_type=jnp.float32)
            return m_new, l * scale + p.sum(axis=-1), acc

        start = jnp.full((4,), -jnp.inf), jnp.zeros((4,)), jnp.zeros((4, d))
        _, l, acc = jax.lax.fori_loop(0, 256 // block, step, start)
        o_ref[...] = acc / l[:, None]

    head = [pl.BlockSpec((None, n, d), lambda h: (h, 0, 0)) for n in (4, 256, 256)]
    return pl.pallas_call(kernel, out_shape=like((2, 4, d)), grid=(2,), in_specs=head, out_specs=head[0])(q, k, v)


def _paged_reference(q, pages_k, pages_v, table):
    k, v = (jnp.asarray(p, jnp.float32)[table].reshape(table.shape[0], -1, p.shape[-1]) for p in (pages_k, pages_v))
    return jnp.stack([_attend(jnp.asarray(q[b], jnp.float32), k[b], v[b]) for b in range(q.shape[0])])


@example(
    normal(3, 8, 32, dtype=np.float16), normal(10, 16, 32, dtype=np.float16), normal(10, 16, 32, dtype=np.float16),
    np.array([[3, 1, 7, 0], [9, 9, 2, 4], [5, 6, 8, 1]], np.int32), reference=_paged_reference, tolerance=5e-3,
)  # fmt: skip
def paged_attention(q, pages_k, pages_v, table):
    """Pages of 16 positions in device memory, found through a table."""

    def kernel(q_ref, k_ref, v_ref, table_ref, o_ref):
        q, b = q_ref[...], pl.program_id(0)
        m, l, acc = jnp.full((8,), -jnp.inf), jnp.zeros((8,)), jnp.zeros((8, 32))
        for i in range(4):
            page = table_ref[b, i]
            s = jnp.dot(q, k_ref[page].T, preferred_element_type=jnp.float32) * 32**-0.5
            m_new = jnp.maximum(m, s.max(axis=-1))
            p, scale = jnp.exp(s - m_new[:, None]), jnp.exp(m - m_new)
            acc = acc * scale[:, None] + jnp.dot(p.astype(v_ref.dtype), v_ref[page], preferred_element_type=jnp.float32)
            m, l = m_new, l * scale + p.sum(axis=-1)
        o_ref[...] = acc / l[:, None]

    here = pl.BlockSpec((None, 8, 32), lambda b: (b, 0, 0))
    gmem = plgpu.BlockSpec(memory_space=plgpu.GMEM)
    return pl.pallas_call(kernel, out_shape=like((3, 8, 32)), grid=(3,), in_specs=[here, gmem, gmem, gmem], out_specs=here)(q, pages_k, pages_v, table)


# ------------------------------------------------------------------------------------------ others


def _dropout(x, key):
    return jnp.where(jax.random.bernoulli(key, 0.8, x.shape), x / 0.8, 0)


@example(normal(24, 100), np.array([3, 7], np.uint32), reference=lambda x, key: _dropout(x, jax.random.wrap_key_data(key)), tolerance=2e-7)
def dropout(x, key):
    """JAX's own bits."""

    def kernel(x_ref, key_ref, o_ref):
        o_ref[...] = _dropout(x_ref[...], jax.random.wrap_key_data(key_ref[...]))

    return pl.pallas_call(kernel, out_shape=like(x.shape))(x, key)


def _well_conditioned(n: int) -> Any:
    return (np.tril(RNG.normal(size=(n, n))) * 0.2 + 2 * np.eye(n)).astype(np.float32)


@example(_well_conditioned(24), normal(24, 5), reference=lambda a, b: np.linalg.solve(np.asarray(a, np.float64), np.asarray(b, np.float64)), tolerance=2e-6)
def triangular_solve(a, b):
    def kernel(a_ref, b_ref, o_ref):
        o_ref[...] = jax.scipy.linalg.solve_triangular(a_ref[...], b_ref[...], lower=True)

    return pl.pallas_call(kernel, out_shape=like(b.shape))(a, b)


def _unpack(x):
    return jnp.asarray(x, jnp.int4).astype(jnp.float32)


@example(RNG.integers(-8, 8, (32, 128)).astype(np.int8), normal(128), reference=lambda x, s: _unpack(x) * s)
def int4_dequantize(x, scale):
    x = x.astype(jnp.int4)

    def kernel(x_ref, scale_ref, o_ref):
        o_ref[...] = x_ref[...].astype(jnp.float32) * scale_ref[...]

    return pl.pallas_call(kernel, out_shape=like(x.shape), grid=(4,), in_specs=[rows(8, 128), whole(128)], out_specs=rows(8, 128))(x, scale)


@example(normal(16, 60), normal(16, 60), reference=lambda a, b: np.abs((np.asarray(a) + 1j * np.asarray(b)) ** 2), tolerance=2e-6)
def complex_magnitude(a, b):
    def kernel(a_ref, b_ref, o_ref):
        z = jax.lax.complex(a_ref[...], b_ref[...])
        o_ref[...] = jnp.abs(z * z)

    return pl.pallas_call(kernel, out_shape=like(a.shape))(a, b)


@example(normal(100, 70), reference=lambda x: x.T)
def transpose(x):
    def kernel(x_ref, o_ref):
        o_ref[...] = x_ref[...].T

    spec, turned = pl.BlockSpec((32, 32), lambda i, j: (i, j)), pl.BlockSpec((32, 32), lambda i, j: (j, i))
    return pl.pallas_call(kernel, out_shape=like((70, 100)), grid=(4, 3), in_specs=[spec], out_specs=turned)(x)


@example(normal(6, 257), reference=lambda x: jnp.mean(x.astype(jnp.float32), axis=0), tolerance=1e-6)
def mean_over_blocks(x):
    """A sum over a grid axis: the output's index map ignores it."""

    def kernel(x_ref, o_ref):
        @pl.when(pl.program_id(0) == 0)
        def _():
            o_ref[...] = jnp.zeros_like(o_ref)

        o_ref[...] += x_ref[...] / 6

    return pl.pallas_call(kernel, out_shape=like((257,)), grid=(6,), in_specs=[pl.BlockSpec((None, 257), lambda i: (i, 0))], out_specs=whole(257))(x)


# ------------------------------------------------------------------------------------------ running them


def check(name: str) -> None:
    """Runs one; raises AssertionError where the result is not the reference's."""
    e = EXAMPLES[name]
    with smalt.enabled(False):
        want = jax.tree.map(np.asarray, e.reference(*e.arguments))
    with smalt.enabled(True, pallas_call=True):
        got = jax.tree.map(np.asarray, jax.jit(e.run)(*(jnp.asarray(a) for a in e.arguments)))
    for mine, theirs in zip(jax.tree.leaves(got), jax.tree.leaves(want)):
        assert mine.shape == theirs.shape, (mine.shape, theirs.shape)
        if e.tolerance == 0:
            np.testing.assert_array_equal(mine, theirs)
        else:
            error = np.abs(mine.astype(np.float64) - theirs).max() / max(1.0, np.abs(theirs).max())
            assert error <= e.tolerance, f"{name}: error {error:.2e}, at most {e.tolerance:.0e}"


def main(names: Sequence[str]) -> int:
    failed = 0
    for name in names or EXAMPLES:
        try:
            check(name)
            print(f"{name:20} right")
        except (smalt.Error, AssertionError) as e:
            failed += 1
            print(f"{name:20} {type(e).__name__}: {str(e)[:600]}")
    return int(failed > 0)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
