"""A matmul whose operands may be transposed and whose result goes through an epilogue before it leaves the registers."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.experimental.pallas as pl
import jax.experimental.pallas.mosaic_gpu as plgpu
import jax.numpy as jnp
from jax import lax

Epilogue = Callable[..., tuple[jax.Array, ...]]

#: Columns that the epilogue takes at a time, and depth of a step of the pipeline.
PART = STEP = 64
#: Shared memory for rings and the epilogue's buffers; a block has at most 227 KiB.
SMEM_BYTES = 220 << 10
#: An H100's multiprocessors, with which `block_shape` reckons.
MULTIPROCESSORS = 132


def swizzled(dtype: Any) -> tuple[Any, ...]:
    """Rows of 128 bytes as the copy engine writes and the tensor core reads them."""
    return plgpu.TilingTransform((8, 128 // jnp.dtype(dtype).itemsize)), plgpu.SwizzleTransform(128)


def block_shape(m: int, n: int) -> tuple[int, int]:
    """The largest blocks of the result that still keep all multiprocessors busy; else the smallest ones."""
    fitting = [(bm, bn) for bm, bn in ((128, 256), (256, 128), (128, 128), (128, 64)) if m % bm == 0 and n % bn == 0]
    if not fitting:
        raise ValueError(f"matmul: expected m % 128 == n % 64 == 0, got {m} and {n}")
    busy = [(bm, bn) for bm, bn in fitting if (m // bm) * (n // bn) >= MULTIPROCESSORS]
    return busy[0] if busy else fitting[-1]


def matmul(
    a: jax.Array,
    b: jax.Array,
    *,
    transpose_a: bool = False,
    transpose_b: bool = False,
    columns: Sequence[jax.Array] = (),
    tiles: Sequence[jax.Array] = (),
    epilogue: Epilogue = lambda acc: (acc,),
    out_dtypes: Sequence[Any] = (jnp.bfloat16,),
) -> tuple[jax.Array, ...]:
    """`epilogue(a @ b, *columns, *tiles)` of 16-bit `a` and `b`, all in f32.

    `a` is (m, k), or (k, m) with `transpose_a`; `b` is (k, n), or (n, k) with `transpose_b`. `columns` are (n,) arrays of f32,
    the same for every row; `tiles` are (m, n) arrays of 16 bits. The epilogue sees (rows, 64) parts of all of them, and returns
    one such part of each result.

    A third warpgroup copies steps of `a` and `b` to shared memory; two multiply, each half of the block's rows.
    """
    (k, m) = a.shape if transpose_a else a.shape[::-1]
    n = b.shape[0 if transpose_b else 1]
    if b.shape[1 if transpose_b else 0] != k or k % STEP:
        raise ValueError(f"matmul: expected one depth, a multiple of {STEP}, got {a.shape} and {b.shape}")
    block_m, block_n = block_shape(m, n)
    half_m = block_m // 2
    part_bytes = [half_m * PART * jnp.dtype(dtype).itemsize for dtype in (*out_dtypes, *(t.dtype for t in tiles))]
    steps = min(4, (SMEM_BYTES - 4 * sum(part_bytes)) // ((block_m + block_n) * STEP * 2))
    parts = block_n // PART

    def matmul_kernel(a: Any, b: Any, *refs: Any) -> None:
        refs_of = iter(refs)
        columns_gmem = [next(refs_of) for _ in columns]
        tiles_gmem = [next(refs_of) for _ in tiles]
        outs_gmem = [next(refs_of) for _ in out_dtypes]
        columns_smem, tiles_smem, outs_smem, columns_ready, tiles_ready = refs_of
        wg = lax.axis_index("wg")
        first_row, first_column = lax.axis_index("m") * block_m, lax.axis_index("n") * block_n

        def load_tiles(j: int) -> None:
            """Part `j` of all tiles, into the slot that part `j - 2` has left."""
            for gmem, smem in zip(tiles_gmem, tiles_smem):
                part = gmem.at[pl.ds(first_row + wg * half_m, half_m), pl.ds(first_column + j * PART, PART)]
                plgpu.copy_gmem_to_smem(part, smem.at[wg, j % 2], tiles_ready.at[wg * 2 + j % 2])

        def compute(pipeline: Callable[[Any], Any]) -> None:
            for gmem, smem in zip(columns_gmem, columns_smem):
                plgpu.copy_gmem_to_smem(gmem.at[pl.ds(first_column, block_n)], smem.at[wg], columns_ready.at[wg])
            for j in range(min(2, parts)):
                load_tiles(j)

            @functools.partial(pl.run_scoped, acc_ref=plgpu.ACC((half_m, block_n), jnp.float32))
            def _(acc_ref: Any) -> None:
                pipeline(acc_ref)
                acc = acc_ref[...]
                if columns:
                    plgpu.barrier_wait(columns_ready.at[wg])
                for j in range(parts):
                    window = slice(j * PART, (j + 1) * PART)
                    if tiles:
                        plgpu.barrier_wait(tiles_ready.at[wg * 2 + j % 2])
                    rows = [lax.broadcast_in_dim(c[wg, window], (half_m, PART), (1,)) for c in columns_smem]
                    results = epilogue(acc[:, window], *rows, *(t[wg, j % 2].astype(jnp.float32) for t in tiles_smem))
                    # This slot's copies of two parts ago have been read; those of the last part may go on.
                    plgpu.wait_smem_to_gmem(len(out_dtypes), wait_read_only=True)
                    for smem, result in zip(outs_smem, results, strict=True):
                        smem[wg, j % 2] = result.astype(smem.dtype)
                    if j + 2 < parts:
                        load_tiles(j + 2)
                    plgpu.commit_smem()
                    for gmem, smem in zip(outs_gmem, outs_smem):
                        part = gmem.at[pl.ds(first_row + wg * half_m, half_m), pl.ds(first_column + j * PART, PART)]
                        plgpu.copy_smem_to_gmem(smem.at[wg, j % 2], part)
                plgpu.wait_smem_to_gmem(0)

        def multiply(_: Any, a_smem: Any, b_smem: Any, acc: Any) -> Any:
            mine = pl.ds(wg * half_m, half_m)
            left = a_smem.at[:, mine].T if transpose_a else a_smem.at[mine]
            plgpu.wgmma(acc, left, b_smem.T if transpose_b else b_smem)
            plgpu.wgmma_wait(0)
            return acc

        def spec(transposed: bool, size: int) -> plgpu.BlockSpec:
            shape, index = ((STEP, size), lambda i: (i, 0)) if transposed else ((size, STEP), lambda i: (0, i))
            return plgpu.BlockSpec(shape, index, transforms=swizzled(a.dtype))

        rows, cols = pl.ds(first_row, block_m), pl.ds(first_column, block_n)
        plgpu.emit_pipeline_warp_specialized(
            multiply,
            grid=(k // STEP,),
            in_specs=[spec(transpose_a, block_m), spec(not transpose_b, block_n)],
            max_concurrent_steps=steps,
            num_compute_wgs=2,
            memory_registers=40,
            wg_axis="wg",
            compute_context=compute,
        )(a.at[:, rows] if transpose_a else a.at[rows], b.at[cols] if transpose_b else b.at[:, cols])

    def slots(dtype: Any) -> plgpu.SMEM:
        return plgpu.SMEM((2, 2, half_m, PART), dtype, transforms=swizzled(dtype))

    return tuple(
        plgpu.kernel(
            matmul_kernel,
            out_type=[jax.ShapeDtypeStruct((m, n), dtype) for dtype in out_dtypes],
            scratch_types=[
                [plgpu.SMEM((2, block_n), jnp.float32) for _ in columns],
                [slots(t.dtype) for t in tiles],
                [slots(dtype) for dtype in out_dtypes],
                plgpu.Barrier(num_arrivals=max(1, len(columns)), num_barriers=2),
                plgpu.Barrier(num_arrivals=max(1, len(tiles)), num_barriers=4),
            ],
            grid=(m // block_m, n // block_n),
            grid_names=("m", "n"),
            num_threads=3,
            thread_name="wg",
            compiler_params=plgpu.CompilerParams(
                lowering_semantics=plgpu.LoweringSemantics.Warpgroup, approx_math=True
            ),
        )(a, b, *columns, *tiles)
    )


# ------------------------------------------------------------------------------------- layers made of matmuls


def gelu(y: jax.Array) -> jax.Array:
    return 0.5 * y * (1 + jnp.tanh(math.sqrt(2 / math.pi) * (y + 0.044715 * y * y * y)))


def gelu_slope(y: jax.Array) -> jax.Array:
    c = math.sqrt(2 / math.pi)
    t = jnp.tanh(c * (y + 0.044715 * y * y * y))
    return 0.5 * (1 + t) + 0.5 * y * (1 - t * t) * c * (1 + 3 * 0.044715 * y * y)


def weight_gradient(x: jax.Array, dz: jax.Array) -> jax.Array:
    """`x.T @ dz`, in f32 as the tensor core has it."""
    return matmul(x, dz, transpose_a=True, out_dtypes=[jnp.float32])[0]


@jax.custom_vjp
def linear(x: jax.Array, w: jax.Array) -> jax.Array:
    """`x @ w` of (tokens, n) in bf16 by f32 weights, of which a copy in bf16 is multiplied."""
    return matmul(x, w.astype(x.dtype))[0]


def _linear_forward(x: jax.Array, w: jax.Array) -> Any:
    w16 = w.astype(x.dtype)
    return matmul(x, w16)[0], (x, w16)


def _linear_backward(saved: Any, dz: jax.Array) -> Any:
    x, w = saved
    return matmul(dz, w, transpose_b=True)[0], weight_gradient(x, dz)


linear.defvjp(_linear_forward, _linear_backward)


@jax.custom_vjp
def linear_onto(x: jax.Array, w: jax.Array, residual: jax.Array) -> jax.Array:
    """`residual + x @ w`, added in f32."""
    return _linear_onto_forward(x, w, residual)[0]


def _linear_onto_forward(x: jax.Array, w: jax.Array, residual: jax.Array) -> Any:
    w16 = w.astype(x.dtype)
    return matmul(x, w16, tiles=[residual], epilogue=lambda acc, r: (r + acc,))[0], (x, w16)


def _linear_onto_backward(saved: Any, dz: jax.Array) -> Any:
    return *_linear_backward(saved, dz), dz


linear_onto.defvjp(_linear_onto_forward, _linear_onto_backward)


@jax.custom_vjp
def logits(x: jax.Array, embedding: jax.Array) -> jax.Array:
    """`x @ embedding.T`, in f32."""
    return _logits_forward(x, embedding)[0]


def _logits_forward(x: jax.Array, embedding: jax.Array) -> Any:
    e16 = embedding.astype(x.dtype)
    return matmul(x, e16, transpose_b=True, out_dtypes=[jnp.float32])[0], (x, e16)


def _logits_backward(saved: Any, dz: jax.Array) -> Any:
    x, e16 = saved
    dz = dz.astype(x.dtype)
    return matmul(dz, e16)[0], weight_gradient(dz, x)


logits.defvjp(_logits_forward, _logits_backward)


@jax.custom_vjp
def mlp_onto(x: jax.Array, w1: jax.Array, b1: jax.Array, w2: jax.Array, b2: jax.Array, residual: jax.Array) -> jax.Array:
    """`residual + gelu(x @ w1 + b1) @ w2 + b2`: bias, gelu and addition in the epilogues of two matmuls."""
    return _mlp_forward(x, w1, b1, w2, b2, residual)[0]


def _mlp_forward(x: jax.Array, w1: jax.Array, b1: jax.Array, w2: jax.Array, b2: jax.Array, residual: jax.Array) -> Any:
    w1, w2 = w1.astype(x.dtype), w2.astype(x.dtype)

    def bias_gelu(acc: jax.Array, bias: jax.Array) -> tuple[jax.Array, ...]:
        return acc + bias, gelu(acc + bias)

    y, h = matmul(x, w1, columns=[b1], epilogue=bias_gelu, out_dtypes=[x.dtype, x.dtype])
    (z,) = matmul(h, w2, columns=[b2], tiles=[residual], epilogue=lambda acc, bias, r: (r + (acc + bias),))
    return z, (x, w1, w2, y, h)


def _mlp_backward(saved: Any, dz: jax.Array) -> Any:
    x, w1, w2, y, h = saved
    (dy,) = matmul(dz, w2, transpose_b=True, tiles=[y], epilogue=lambda acc, y: (acc * gelu_slope(y),))
    db1, db2 = (jnp.sum(d, axis=0, dtype=jnp.float32) for d in (dy, dz))
    (dx,) = matmul(dy, w1, transpose_b=True)
    return dx, weight_gradient(x, dy), db1, weight_gradient(h, dz), db2, dz


mlp_onto.defvjp(_mlp_forward, _mlp_backward)
