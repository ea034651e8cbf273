"""Causal flash attention, forward and backward: scores never leave the multiprocessor.

Everything takes and gives `qkv`, (batch, seq, 3, heads, D) as one matmul makes it: no copies apart. Exponentials are those of 2.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.experimental.pallas as pl
import jax.experimental.pallas.mosaic_gpu as plgpu
import jax.numpy as jnp
from jax import lax

from examples.gpt.matmul import swizzled

#: Rows of each of the two computing warpgroups, and of what they walk along.
ROWS, STEP = 64, 64
BLOCK = 2 * ROWS


@jax.custom_vjp
def attention(qkv: jax.Array) -> jax.Array:
    """`softmax(q @ k.T / sqrt(D)) @ v` for each head, of the past only: (batch, seq, heads, D)."""
    return _forward(qkv)[0]


def _attention_forward(qkv: jax.Array) -> Any:
    out, lse = _forward(qkv)
    return out, (qkv, out, lse)


def _attention_backward(saved: Any, dout: jax.Array) -> Any:
    qkv, out, lse = saved
    delta = jnp.einsum("bshd,bshd->bhs", out, dout, preferred_element_type=jnp.float32)
    dq = _backward_q(qkv, dout, lse, delta)
    dk, dv = _backward_kv(qkv, dout, lse, delta)
    return (jnp.stack([dq, dk, dv], axis=2),)


attention.defvjp(_attention_forward, _attention_backward)


def _product(a: Any, b: Any) -> jax.Array:
    """`a @ b` of shared memory, in registers."""

    def multiply(acc: Any) -> jax.Array:
        plgpu.wgmma(acc, a, b)
        return acc[...]

    return pl.run_scoped(multiply, plgpu.ACC((a.shape[0], b.shape[1]), jnp.float32))


def _add_product(total: jax.Array, a: Any, b: Any) -> jax.Array:
    """`total + a @ b`, `a` in registers."""
    return pl.run_state(lambda acc: plgpu.wgmma(acc, a, b))(plgpu.ACC.init(total))


def _rows_of(x: jax.Array, like: jax.Array) -> jax.Array:
    return lax.broadcast_in_dim(x, like.shape, (0,))


def _columns_of(x: jax.Array, like: jax.Array) -> jax.Array:
    return lax.broadcast_in_dim(x, like.shape, (1,))


def _masked(x: jax.Array, past: Callable[[jax.Array, jax.Array], jax.Array], otherwise: float) -> jax.Array:
    row, column = (plgpu.broadcasted_iota(jnp.int32, x.shape, i, layout=plgpu.Layout.WGMMA) for i in range(2))
    return jnp.where(past(row, column), x, otherwise)


def _kernel(qkv: jax.Array, body: Any, outs: Any, scratch: Any) -> Any:
    batch, seq, _, heads, depth = qkv.shape
    if seq % BLOCK or depth % 64:
        raise ValueError(f"attention: expected seq % {BLOCK} == D % 64 == 0, got {qkv.shape}")
    return plgpu.kernel(
        body,
        out_type=outs,
        scratch_types=scratch,
        grid=(seq // BLOCK, heads, batch),
        grid_names=("block", "head", "batch"),
        num_threads=3,
        thread_name="wg",
        compiler_params=plgpu.CompilerParams(lowering_semantics=plgpu.LoweringSemantics.Warpgroup, approx_math=True),
    )


_pipeline = functools.partial(
    plgpu.emit_pipeline_warp_specialized, max_concurrent_steps=4, num_compute_wgs=2, memory_registers=40, wg_axis="wg"
)


def _forward(qkv: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The output, and of each row log2 of the sum of 2^score."""
    batch, seq, _, heads, depth = qkv.shape
    scale = math.log2(math.e) / math.sqrt(depth)

    def forward_kernel(qkv: Any, out: Any, lse: Any, q_smem: Any, lse_smem: Any, loaded: Any) -> None:
        wg, head, b = (lax.axis_index(name) for name in ("wg", "head", "batch"))
        # The last rows have most to do: they come first.
        block = seq // BLOCK - 1 - lax.axis_index("block")
        first = block * BLOCK + wg * ROWS
        rows = pl.ds(first, ROWS)

        def step(index: Any, k: Any, v: Any, carry: Any) -> Any:
            acc, high, total = carry
            s = _product(q_smem.at[wg], k.T) * scale
            s = _masked(s, lambda row, column: row + first >= column + index[0] * STEP, -jnp.inf)
            above = jnp.maximum(high, jnp.max(s, axis=1))
            shrink = jnp.exp2(high - above)
            p = jnp.exp2(s - _rows_of(above, s))
            acc = _add_product(acc * _rows_of(shrink, acc), p.astype(qkv.dtype), v)
            return acc, above, total * shrink + jnp.sum(p, axis=1)

        def compute(pipeline: Callable[[Any], Any]) -> None:
            plgpu.copy_gmem_to_smem(qkv.at[b, rows, 0, head], q_smem.at[wg], loaded.at[wg])
            plgpu.barrier_wait(loaded.at[wg])
            acc = plgpu.layout_cast(jnp.zeros((ROWS, depth), jnp.float32), plgpu.Layout.WGMMA)
            none = plgpu.layout_cast(jnp.zeros((ROWS,), jnp.float32), plgpu.Layout.WGMMA.reduce(1))
            acc, high, total = pipeline((acc, none - jnp.inf, none))
            q_smem[wg] = (acc / _rows_of(total, acc)).astype(qkv.dtype)
            lse_smem[wg] = high + jnp.log2(total)
            plgpu.commit_smem()
            plgpu.copy_smem_to_gmem(q_smem.at[wg], out.at[b, rows, head])
            plgpu.copy_smem_to_gmem(lse_smem.at[wg], lse.at[b, head, rows])
            plgpu.wait_smem_to_gmem(0)

        along = plgpu.BlockSpec((STEP, depth), lambda i: (i, 0), transforms=swizzled(qkv.dtype))
        steps = (block + 1) * (BLOCK // STEP)
        run = _pipeline(step, grid=(steps,), in_specs=[along, along], compute_context=compute)
        run(qkv.at[b, :, 1, head], qkv.at[b, :, 2, head])

    out = jax.ShapeDtypeStruct((batch, seq, heads, depth), qkv.dtype)
    lse = jax.ShapeDtypeStruct((batch, heads, seq), jnp.float32)
    scratch = [
        plgpu.SMEM((2, ROWS, depth), qkv.dtype, transforms=swizzled(qkv.dtype)),
        plgpu.SMEM((2, ROWS), jnp.float32),
        plgpu.Barrier(num_barriers=2),
    ]
    return tuple(_kernel(qkv, forward_kernel, [out, lse], scratch)(qkv))


def _backward_q(qkv: jax.Array, dout: jax.Array, lse: jax.Array, delta: jax.Array) -> jax.Array:
    """Rows of dq, along the keys of their past."""
    batch, seq, _, heads, depth = qkv.shape
    scale = 1 / math.sqrt(depth)

    def backward_q_kernel(qkv: Any, dout: Any, lse: Any, delta: Any, dq: Any, q_smem: Any, do_smem: Any, sums: Any, loaded: Any) -> None:
        wg, head, b = (lax.axis_index(name) for name in ("wg", "head", "batch"))
        block = seq // BLOCK - 1 - lax.axis_index("block")
        first = block * BLOCK + wg * ROWS
        rows = pl.ds(first, ROWS)

        def step(index: Any, k: Any, v: Any, carry: Any) -> Any:
            total, row_lse, row_delta = carry
            s = _product(q_smem.at[wg], k.T) * (scale * math.log2(math.e))
            p = jnp.exp2(s - _rows_of(row_lse, s))
            p = _masked(p, lambda row, column: row + first >= column + index[0] * STEP, 0.0)
            dp = _product(do_smem.at[wg], v.T)
            ds = p * (dp - _rows_of(row_delta, dp))
            return _add_product(total, ds.astype(qkv.dtype), k), row_lse, row_delta

        def compute(pipeline: Callable[[Any], Any]) -> None:
            for source, target in (
                (qkv.at[b, rows, 0, head], q_smem.at[wg]),
                (dout.at[b, rows, head], do_smem.at[wg]),
                (lse.at[b, head, rows], sums.at[wg, 0]),
                (delta.at[b, head, rows], sums.at[wg, 1]),
            ):
                plgpu.copy_gmem_to_smem(source, target, loaded.at[wg])
            plgpu.barrier_wait(loaded.at[wg])
            total = plgpu.layout_cast(jnp.zeros((ROWS, depth), jnp.float32), plgpu.Layout.WGMMA)
            of_row = [plgpu.layout_cast(sums[wg, i], plgpu.Layout.WGMMA.reduce(1)) for i in range(2)]
            total, _, _ = pipeline((total, *of_row))
            q_smem[wg] = (total * scale).astype(qkv.dtype)
            plgpu.commit_smem()
            plgpu.copy_smem_to_gmem(q_smem.at[wg], dq.at[b, rows, head])
            plgpu.wait_smem_to_gmem(0)

        along = plgpu.BlockSpec((STEP, depth), lambda i: (i, 0), transforms=swizzled(qkv.dtype))
        steps = (block + 1) * (BLOCK // STEP)
        run = _pipeline(step, grid=(steps,), in_specs=[along, along], compute_context=compute)
        run(qkv.at[b, :, 1, head], qkv.at[b, :, 2, head])

    tile = plgpu.SMEM((2, ROWS, depth), qkv.dtype, transforms=swizzled(qkv.dtype))
    scratch = [tile, tile, plgpu.SMEM((2, 2, ROWS), jnp.float32), plgpu.Barrier(num_arrivals=4, num_barriers=2)]
    out = jax.ShapeDtypeStruct((batch, seq, heads, depth), qkv.dtype)
    return _kernel(qkv, backward_q_kernel, out, scratch)(qkv, dout, lse, delta)


def _backward_kv(qkv: jax.Array, dout: jax.Array, lse: jax.Array, delta: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Rows of dk and dv, along the queries of their future; scores are transposed."""
    batch, seq, _, heads, depth = qkv.shape
    scale = 1 / math.sqrt(depth)

    def backward_kv_kernel(qkv: Any, dout: Any, lse: Any, delta: Any, dk: Any, dv: Any, k_smem: Any, v_smem: Any, loaded: Any) -> None:
        wg, head, b, block = (lax.axis_index(name) for name in ("wg", "head", "batch", "block"))
        first = block * BLOCK + wg * ROWS
        rows = pl.ds(first, ROWS)
        start = block * (BLOCK // STEP)

        def step(index: Any, q: Any, do: Any, lse: Any, delta: Any, carry: Any) -> Any:
            dk_sum, dv_sum = carry
            s = _product(k_smem.at[wg], q.T) * (scale * math.log2(math.e))
            p = jnp.exp2(s - _columns_of(lse[...], s))
            p = _masked(p, lambda row, column: column + (index[0] + start) * STEP >= row + first, 0.0)
            dv_sum = _add_product(dv_sum, p.astype(qkv.dtype), do)
            dp = _product(v_smem.at[wg], do.T)
            ds = p * (dp - _columns_of(delta[...], dp))
            return _add_product(dk_sum, ds.astype(qkv.dtype), q), dv_sum

        def compute(pipeline: Callable[[Any], Any]) -> None:
            plgpu.copy_gmem_to_smem(qkv.at[b, rows, 1, head], k_smem.at[wg], loaded.at[wg])
            plgpu.copy_gmem_to_smem(qkv.at[b, rows, 2, head], v_smem.at[wg], loaded.at[wg])
            plgpu.barrier_wait(loaded.at[wg])
            zeros = plgpu.layout_cast(jnp.zeros((ROWS, depth), jnp.float32), plgpu.Layout.WGMMA)
            dk_sum, dv_sum = pipeline((zeros, zeros))
            k_smem[wg] = (dk_sum * scale).astype(qkv.dtype)
            v_smem[wg] = dv_sum.astype(qkv.dtype)
            plgpu.commit_smem()
            plgpu.copy_smem_to_gmem(k_smem.at[wg], dk.at[b, rows, head])
            plgpu.copy_smem_to_gmem(v_smem.at[wg], dv.at[b, rows, head])
            plgpu.wait_smem_to_gmem(0)

        along = plgpu.BlockSpec((STEP, depth), lambda i: (i + start, 0), transforms=swizzled(qkv.dtype))
        sums = plgpu.BlockSpec((STEP,), lambda i: (i + start,))
        steps = seq // STEP - start
        run = _pipeline(step, grid=(steps,), in_specs=[along, along, sums, sums], compute_context=compute)
        run(qkv.at[b, :, 0, head], dout.at[b, :, head], lse.at[b, head], delta.at[b, head])

    tile = plgpu.SMEM((2, ROWS, depth), qkv.dtype, transforms=swizzled(qkv.dtype))
    out = jax.ShapeDtypeStruct((batch, seq, heads, depth), qkv.dtype)
    scratch = [tile, tile, plgpu.Barrier(num_arrivals=2, num_barriers=2)]
    return tuple(_kernel(qkv, backward_kv_kernel, [out, out], scratch)(qkv, dout, lse, delta))
