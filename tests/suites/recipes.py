"""Kernels with products of arrays as users write them, each with its reference."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.experimental.pallas as pl
import jax.experimental.pallas.mosaic_gpu as plgpu
import jax.numpy as jnp
import numpy as np
from jax import lax

import smalt
from tests.corpus.case import Arg, Case, kernel, like

F16, BF16, F32, I8 = jnp.float16, jnp.bfloat16, jnp.float32, jnp.int8


def _f64(*xs: Any) -> list[Any]:
    return [np.asarray(x).astype(np.float64) for x in xs]


# ------------------------------------------------------------------------------------------ matmuls in pl.pallas_call


def matmul_kernel(x_ref: Any, y_ref: Any, o_ref: Any, *, activation: Any, block_k: int) -> None:
    """Matmul with fused activation."""
    acc = jnp.zeros((x_ref.shape[0], y_ref.shape[1]), jnp.float32)

    # Reduction over K dimension
    for k in range(x_ref.shape[1] // block_k):
        x = x_ref[:, k * block_k : (k + 1) * block_k]
        y = y_ref[k * block_k : (k + 1) * block_k, :]
        acc += x @ y

    o_ref[:, :] = activation(acc).astype(o_ref.dtype)


def matmul_fused(
    x: Any, y: Any, activation: Any = jax.nn.relu, block_shape: tuple[int, int, int] = (128, 128, 64), approx_math: bool = True
) -> Any:
    """`approx_math`: what is added to a product becomes its accumulator; else each product is rounded first, as the author wrote it."""
    block_m, block_n, block_k = block_shape

    return pl.pallas_call(
        partial(matmul_kernel, activation=activation, block_k=block_k),
        out_shape=jax.ShapeDtypeStruct((x.shape[0], y.shape[1]), x.dtype),
        grid=(x.shape[0] // block_m, y.shape[1] // block_n),
        in_specs=[
            pl.BlockSpec((block_m, x.shape[1]), lambda i, j: (i, 0)),
            pl.BlockSpec((y.shape[0], block_n), lambda i, j: (0, j)),
        ],
        out_specs=pl.BlockSpec((block_m, block_n), lambda i, j: (i, j)),
        compiler_params=smalt.CompilerParams(approx_math=approx_math),
    )(x, y)


matmul_of_64 = partial(matmul_fused, block_shape=(64, 64, 32))


def relu_product(x: Any, y: Any) -> Any:
    x, y = _f64(x, y)
    return np.maximum(x @ y, 0)


def matmul_over_grid(x: Any, y: Any) -> Any:
    """K is a dimension of the grid, the output's block the accumulator."""

    def body(x_ref: Any, y_ref: Any, o_ref: Any) -> None:
        @pl.when(pl.program_id(2) == 0)
        def _() -> None:
            o_ref[...] = jnp.zeros_like(o_ref)

        o_ref[...] += jnp.dot(x_ref[...], y_ref[...], preferred_element_type=o_ref.dtype)

    m, n, k = 64, 64, 32
    return pl.pallas_call(
        body,
        out_shape=jax.ShapeDtypeStruct((x.shape[0], y.shape[1]), jnp.float32),
        grid=(x.shape[0] // m, y.shape[1] // n, x.shape[1] // k),
        in_specs=[pl.BlockSpec((m, k), lambda i, j, k: (i, k)), pl.BlockSpec((k, n), lambda i, j, k: (k, j))],
        out_specs=pl.BlockSpec((m, n), lambda i, j, k: (i, j)),
        compiler_params=plgpu.CompilerParams(dimension_semantics=["parallel", "parallel", "sequential"]),
    )(x, y)


# ------------------------------------------------------------------------------------------ attention


def flash_decode(q: Any, k: Any, v: Any) -> Any:
    """A few queries, keys and values block by block, with an online softmax."""
    block = 64

    def body(q_ref: Any, k_ref: Any, v_ref: Any, o_ref: Any) -> None:
        q = q_ref[...]

        def step(i: Any, carry: Any) -> Any:
            acc, m, l = carry  # noqa: E741
            k = k_ref[pl.ds(i * block, block), :]
            v = v_ref[pl.ds(i * block, block), :]
            s = jnp.dot(q, k.T, preferred_element_type=jnp.float32) / np.sqrt(q.shape[1])
            m_new = jnp.maximum(m, s.max(axis=1))
            alpha = jnp.exp(m - m_new)
            p = jnp.exp(s - m_new[:, None])
            acc = acc * alpha[:, None] + jnp.dot(p.astype(v.dtype), v, preferred_element_type=jnp.float32)
            return acc, m_new, l * alpha + p.sum(axis=1)

        rows, depth = q.shape
        start = (jnp.zeros((rows, depth), jnp.float32), jnp.full((rows,), -jnp.inf, jnp.float32), jnp.zeros((rows,), jnp.float32))
        acc, _, l = lax.fori_loop(0, k_ref.shape[0] // block, step, start)  # noqa: E741
        o_ref[...] = (acc / l[:, None]).astype(o_ref.dtype)

    return kernel(body, like(q.shape, jnp.float32))(q, k, v)


def whole_attention(q: Any, k: Any, v: Any) -> Any:
    def body(q_ref: Any, k_ref: Any, v_ref: Any, o_ref: Any) -> None:
        scores = jnp.einsum("hqd,hkd->hqk", q_ref[...], k_ref[...], preferred_element_type=jnp.float32)
        p = jax.nn.softmax(scores / np.sqrt(q_ref.shape[-1]), axis=-1).astype(v_ref.dtype)
        o_ref[...] = jnp.einsum("hqk,hkd->hqd", p, v_ref[...], preferred_element_type=jnp.float32)

    return kernel(body, like(q.shape, jnp.float32))(q, k, v)


def attention(q: Any, k: Any, v: Any) -> Any:
    q, k, v = _f64(q, k, v)
    s = q @ np.swapaxes(k, -1, -2) / np.sqrt(q.shape[-1])
    p = np.exp(s - s.max(-1, keepdims=True))
    return p / p.sum(-1, keepdims=True) @ v


# ------------------------------------------------------------------------------------------ others


def int8_matmul(x: Any, y: Any, scale: Any) -> Any:
    def body(x_ref: Any, y_ref: Any, scale_ref: Any, o_ref: Any) -> None:
        sums = lax.dot_general(x_ref[...], y_ref[...], (((1,), (1,)), ((), ())), preferred_element_type=jnp.int32)
        o_ref[...] = sums.astype(jnp.float32) * scale_ref[...]

    return kernel(body, like((x.shape[0], y.shape[0]), jnp.float32))(x, y, scale)


def batched_in_loop(x: Any, y: Any) -> Any:
    """y ← tanh(x y), a few times."""

    def body(x_ref: Any, y_ref: Any, o_ref: Any) -> None:
        o_ref[...] = lax.fori_loop(0, 3, lambda _, y: jnp.tanh(x_ref[...] @ y * 0.1), y_ref[...])

    return kernel(body, like(y.shape, y.dtype))(x, y)


def batched_in_loop_reference(x: Any, y: Any) -> Any:
    x, y = _f64(x, y)
    for _ in range(3):
        y = np.tanh(x @ y * 0.1)
    return y


def in_branches(x: Any, y: Any) -> Any:
    """One product in a branch that warpgroups take or leave, one behind it that uses its result twice."""

    def body(x_ref: Any, y_ref: Any, o_ref: Any) -> None:
        own = lax.axis_index("wg")
        x, y = x_ref[own], y_ref[own]
        z = lax.cond(own > 0, lambda: jnp.matmul(x, y, precision="highest"), lambda: y)
        o_ref[own] = jnp.matmul(z, z, precision="highest") + z.T

    return kernel(body, like(y.shape, jnp.float32), num_threads=2, thread_name="wg")(x, y)


def in_branches_reference(x: Any, y: Any) -> Any:
    x, y = _f64(x, y)
    z = np.stack([y[0], x[1] @ y[1]])
    return z @ z + np.swapaxes(z, -1, -2)


def many_scratches(x: Any) -> Any:
    """Products, transposes, sums and sorts of orders that pass through one scratch, one after the other."""

    def body(x_ref: Any, o_ref: Any) -> None:
        x = x_ref[...]
        y = jnp.matmul(x, x.T, precision="highest")
        y = jnp.roll(y, 1, axis=0) + y.T.reshape(y.shape[::-1]).T
        y = jnp.matmul(y, x, precision="highest") / x.size
        o_ref[...] = jnp.matmul(y.T, y, precision="highest") + y.sum(axis=0)[None, :]

    return kernel(body, like((x.shape[1], x.shape[1]), jnp.float32))(x)


def many_scratches_reference(x: Any) -> Any:
    (x,) = _f64(x)
    y = x @ x.T
    y = np.roll(y, 1, axis=0) + y.T.reshape(y.shape[::-1]).T
    y = y @ x / x.size
    return y.T @ y + y.sum(axis=0)[None, :]


def product(x: Any, y: Any) -> Any:
    def body(x_ref: Any, y_ref: Any, o_ref: Any) -> None:
        o_ref[...] = x_ref[...] @ y_ref[...]

    return kernel(body, like((x.shape[0], y.shape[1]), x.dtype))(x, y)


def exact_product(x: Any, y: Any) -> Any:
    """Through shared memory, swizzled and not."""

    def body(x_ref: Any, y_ref: Any, o_ref: Any, x_smem: Any, y_smem: Any, barrier: Any) -> None:
        plgpu.copy_gmem_to_smem(x_ref, x_smem, barrier)
        plgpu.copy_gmem_to_smem(y_ref, y_smem, barrier)
        plgpu.barrier_wait(barrier)
        o_ref[...] = jnp.dot(x_smem[...], y_smem[...], precision="highest")

    transforms = (plgpu.TilingTransform((8, 8)), plgpu.SwizzleTransform(32))
    scratch = plgpu.SMEM(x.shape, x.dtype, transforms=transforms), plgpu.SMEM(y.shape, y.dtype), plgpu.Barrier(num_arrivals=2)
    return kernel(body, like((x.shape[0], y.shape[1]), x.dtype), *scratch)(x, y)


def mma(a: Any, b: Any, c: Any, m_warps: int | None = None) -> Any:
    """`plgpu.mma` on arrays as they come, or in the layouts that Mosaic asks for."""

    def cast(x: Any, name: str, dtype: Any) -> Any:
        return x if m_warps is None else plgpu.layout_cast(x, getattr(plgpu.Layout, name)(dtype, m_warps=m_warps))

    def body(a_ref: Any, b_ref: Any, c_ref: Any, o_ref: Any) -> None:
        acc = cast(c_ref[...], "MMA_ACC", a.dtype)
        for k in range(0, a.shape[1], 32):
            step = pl.ds(k, 32)
            acc = plgpu.mma(acc, cast(a_ref[:, step], "MMA_LHS", a.dtype), cast(b_ref[step, :], "MMA_RHS", a.dtype))
        o_ref[...] = acc

    return kernel(body, like(c.shape, c.dtype))(a, b, c)


def added(a: Any, b: Any, c: Any) -> Any:
    a, b, c = _f64(a, b, c)
    return a @ b + c


def _case(name: str, fn: Any, args: tuple[Arg, ...], reference: Any, tolerance: float | None = None, dtype: Any = jnp.float32) -> Case:
    """With a reference in whatever type."""
    return Case(name, fn, args, lambda *xs: np.asarray(reference(*xs)).astype(dtype), tolerance)


CASES = [
    _case("pallas_matmul_f16", matmul_fused, (Arg((256, 128), F16), Arg((128, 128), F16)), relu_product, 2e-3, F16),
    _case("pallas_matmul_f16_rounded", partial(matmul_fused, approx_math=False), (Arg((256, 128), F16), Arg((128, 128), F16)), relu_product, 2e-2, F16),
    _case("pallas_matmul_bf16", matmul_of_64, (Arg((64, 64), BF16), Arg((64, 128), BF16)), relu_product, 8e-3, BF16),
    _case("pallas_matmul_f32", matmul_of_64, (Arg((64, 64), F32), Arg((64, 64), F32)), relu_product, 1e-2),
    _case("matmul_over_grid", matmul_over_grid, (Arg((128, 96), BF16), Arg((96, 64), BF16)), lambda x, y: np.matmul(*_f64(x, y)), 1e-5),
    _case("flash_decode", flash_decode, (Arg((16, 64), BF16), Arg((256, 64), BF16), Arg((256, 64), BF16)), attention, 4e-3),
    _case("flash_decode_odd", flash_decode, (Arg((5, 40), F16), Arg((128, 40), F16), Arg((128, 40), F16)), attention, 1e-3),
    _case("whole_attention", whole_attention, (Arg((2, 32, 16), F16), Arg((2, 48, 16), F16), Arg((2, 48, 16), F16)), attention, 1e-3),
    _case(
        "int8_matmul", int8_matmul, (Arg((64, 96), I8), Arg((40, 96), I8), Arg((40,), F32)),
        lambda x, y, s: (x.astype(np.int32) @ y.astype(np.int32).T).astype(np.float32) * s,
    ),
    _case("tall_skinny", product, (Arg((1000, 8), F32), Arg((8, 3), F32)), lambda x, y: np.matmul(*_f64(x, y)), 5e-3),
    _case("long_sum", product, (Arg((4, 4096), F16), Arg((4096, 8), F16)), lambda x, y: np.matmul(*_f64(x, y)), 1e-3, F16),
    _case("long_sum_square", product, (Arg((64, 1000), F16), Arg((1000, 64), F16)), lambda x, y: np.matmul(*_f64(x, y)), 1e-3, F16),
    _case("long_sum_exact", exact_product, (Arg((40, 520), F32), Arg((520, 40), F32)), lambda x, y: np.matmul(*_f64(x, y)), 1e-4),
    _case("batched_in_loop", batched_in_loop, (Arg((3, 16, 16), F32), Arg((3, 16, 24), F32)), batched_in_loop_reference, 2e-3),
    _case("in_branches", in_branches, (Arg((2, 33, 33), F32), Arg((2, 33, 33), F32)), in_branches_reference, 1e-4),
    _case("many_scratches", many_scratches, (Arg((40, 24), F32),), many_scratches_reference, 1e-5),
]  # fmt: skip
if hasattr(plgpu, "mma"):
    for m_warps in (None, 4, 2):
        of = partial(mma, m_warps=m_warps)
        CASES += [
            _case(f"mma_f16_{m_warps}", of, (Arg((64, 64), F16), Arg((64, 16), F16), Arg((64, 16), F32)), added, 1e-5),
            _case(f"mma_tf32_{m_warps}", of, (Arg((64, 32), F32), Arg((32, 16), F32), Arg((64, 16), F32)), added, 1e-2),
            _case(
                f"mma_i8_{m_warps}", of, (Arg((64, 64), I8), Arg((64, 16), I8), Arg((64, 16), jnp.int32, -1000, 1000)),
                lambda a, b, c: a.astype(np.int32) @ b.astype(np.int32) + c, dtype=np.int32,
            ),
        ]  # fmt: skip
