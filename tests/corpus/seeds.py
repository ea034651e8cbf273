"""Recipes of the Pallas:MGPU guides, made into kernels."""

from __future__ import annotations

import math

import jax
import jax.experimental.pallas as pl
import jax.experimental.pallas.mosaic_gpu as plgpu
import jax.numpy as jnp
import numpy as np
from jax import lax

from tests.corpus.case import case, f16, f32, kernel, like, load

SMEM, Barrier, ACC = plgpu.SMEM, plgpu.Barrier, plgpu.ACC


def mma_transforms(shape, dtype):
    """The guide's choice of transforms: the widest swizzle whose width divides the minor dimension."""
    if shape[0] % 8:
        raise ValueError("Number of rows must be divisible by 8")
    for swizzle in (128, 64, 32):
        elements = swizzle // jnp.dtype(dtype).itemsize
        if shape[-1] % elements == 0:
            return (plgpu.TilingTransform((8, elements)), plgpu.SwizzleTransform(swizzle))
    raise ValueError("Failed to find transforms for the specified window type")


def mma_smem(shape, dtype=jnp.float16):
    return SMEM(shape, dtype, transforms=mma_transforms(shape[-2:], dtype))


def _mul(a, b):
    return np.asarray(a, np.float32) @ np.asarray(b, np.float32)


@case(f16(64, 512), f16(512, 64), reference=_mul, tolerance=2e-3)
def three_buffers_no_wait(a, b):
    """The guide's pipeline: each step refills the previous step's slot, and nothing waits for the wgmma."""
    m, n, k, buffers = 64, 64, 64, 3
    steps = 512 // k

    def body(a, b, o, a_buf, b_buf, a_loaded, b_loaded):
        def fetch(i, slot):
            ks = pl.ds(i * k, k)
            plgpu.copy_gmem_to_smem(a.at[:, ks], a_buf.at[slot], a_loaded.at[slot])
            plgpu.copy_gmem_to_smem(b.at[ks], b_buf.at[slot], b_loaded.at[slot])

        def compute(acc):
            def step(i, _):
                slot = lax.rem(i, buffers)
                plgpu.barrier_wait(a_loaded.at[slot])
                plgpu.barrier_wait(b_loaded.at[slot])
                plgpu.wgmma(acc, a_buf.at[slot], b_buf.at[slot])
                next_i = i + buffers - 1
                next_slot = lax.rem(next_i, buffers)

                @pl.when(jnp.logical_and(next_i >= buffers, next_i < steps))
                def _():
                    fetch(next_i, next_slot)

            for slot in range(buffers):
                fetch(slot, slot)
            lax.fori_loop(0, steps, step, None)
            return acc[...]

        o[...] = pl.run_scoped(compute, ACC((m, n), jnp.float32))

    scratch = (
        mma_smem((buffers, m, k)),
        mma_smem((buffers, k, n)),
        Barrier(num_barriers=buffers),
        Barrier(num_barriers=buffers),
    )
    return kernel(body, like((m, n)), *scratch)(a, b)


@case(f16(8, 64, 64), reference=lambda x: x + np.float16(1))
def queue_of_copies(x):
    """The guide's queue, option 2: the producer's items are asynchronous copies."""

    def body(x, o, queue, produced, consumed):
        thread = lax.axis_index("thread")

        def produce(i, _):
            slot = lax.rem(i, 2)

            @pl.when(i >= 2)
            def _():
                plgpu.barrier_wait(consumed.at[slot])

            plgpu.copy_gmem_to_smem(x.at[i], queue.at[slot], produced.at[slot])

        def consume(i, _):
            slot = lax.rem(i, 2)
            plgpu.barrier_wait(produced.at[slot])
            o[i] = queue[slot] + 1
            plgpu.barrier_arrive(consumed.at[slot])

        pl.when(thread == 0)(lambda: lax.fori_loop(0, 8, produce, None))
        pl.when(thread == 1)(lambda: lax.fori_loop(0, 8, consume, None))

    scratch = (SMEM((2, 64, 64), jnp.float16), Barrier(num_barriers=2), Barrier(num_barriers=2))
    run = kernel(body, like((8, 64, 64), jnp.float16), *scratch, num_threads=2, thread_name="thread")
    return run(x)


@case(f16(128, 128), f16(128, 128), reference=lambda a, b: _mul(a.T, b).astype(np.float16), tolerance=2e-2)
def transposed_operand_and_state(a, b):
    """`transpose_ref` on the left operand; the accumulator given and taken by `run_state`."""

    def body(a, b, o, a_buf, b_buf, o_buf, bar):
        for src, dst in ((a, a_buf), (b, b_buf)):
            plgpu.copy_gmem_to_smem(src, dst, bar)
            plgpu.barrier_wait(bar)
        start = plgpu.layout_cast(jnp.full((128, 128), 0, jnp.float32), plgpu.Layout.WGMMA)

        def compute(acc):
            plgpu.wgmma(acc, plgpu.transpose_ref(a_buf, (1, 0)), b_buf)

        result = pl.run_state(compute)(ACC.init(start))
        o_buf[...] = result.astype(jnp.float16)
        plgpu.commit_smem()
        plgpu.copy_smem_to_gmem(o_buf, o)
        plgpu.wait_smem_to_gmem(0)

    buf = mma_smem((128, 128))
    return kernel(body, like((128, 128), jnp.float16), buf, buf, buf, Barrier())(a, b)


@case(f16(256, 256), f16(256, 128), reference=lambda a, b: _mul(a, b).astype(np.float16), tolerance=2e-2)
def matmul_with_emit_pipeline(a, b):
    """A tile per block; the k loop is `emit_pipeline` with the release delayed by the wgmma in flight."""

    def body(a, b, o, o_buf):
        rows = lax.axis_index("m")
        cols = lax.axis_index("n")

        def compute(acc):
            def step(_, a_buf, b_buf):
                plgpu.wgmma(acc, a_buf, b_buf)
                plgpu.wgmma_wait(1)

            plgpu.emit_pipeline(
                step,
                grid=(4,),
                in_specs=[
                    plgpu.BlockSpec(
                        (64, 64), lambda k: (rows, k), transforms=mma_transforms((64, 64), jnp.float16), delay_release=1
                    ),
                    plgpu.BlockSpec(
                        (64, 64), lambda k: (k, cols), transforms=mma_transforms((64, 64), jnp.float16), delay_release=1
                    ),
                ],
                max_concurrent_steps=3,
            )(a, b)
            return acc[...]

        o_buf[...] = pl.run_scoped(compute, ACC((64, 64), jnp.float32)).astype(jnp.float16)
        plgpu.commit_smem()
        plgpu.copy_smem_to_gmem(o_buf, o.at[pl.ds(rows * 64, 64), pl.ds(cols * 64, 64)])
        plgpu.wait_smem_to_gmem(0)

    return kernel(body, like((256, 128), jnp.float16), mma_smem((64, 64)), grid=(4, 2), grid_names=("m", "n"))(a, b)


@case(f16(256, 256), f16(256, 128), reference=lambda a, b: _mul(a, b).astype(np.float16), tolerance=2e-2)
def warp_specialized_with_carry(a, b):
    """The recipe with `compute_context`: the accumulator is a carry that `run_state` updates each step."""

    def body(a, b, o, o_buf):
        wg = lax.axis_index("wg")
        rows = lax.axis_index("m")
        half = pl.ds(wg * 64, 64)

        def compute_context(pipeline):
            acc = plgpu.layout_cast(jnp.full((64, 64), 0, jnp.float32), plgpu.Layout.WGMMA)
            o_buf[:, half] = pipeline(acc).astype(jnp.float16)
            plgpu.commit_smem()
            plgpu.copy_smem_to_gmem(o_buf.at[:, half], o.at[pl.ds(rows * 64, 64), half])
            plgpu.wait_smem_to_gmem(0)

        def step(_, a_buf, b_buf, carry):
            def compute(acc):
                plgpu.wgmma(acc, a_buf, b_buf.at[:, half])

            return pl.run_state(compute)(ACC.init(carry))

        plgpu.emit_pipeline_warp_specialized(
            step,
            grid=(4,),
            in_specs=[
                plgpu.BlockSpec((64, 64), lambda k: (rows, k), transforms=mma_transforms((64, 64), jnp.float16)),
                plgpu.BlockSpec((64, 128), lambda k: (k, 0), transforms=mma_transforms((64, 128), jnp.float16)),
            ],
            compute_context=compute_context,
            max_concurrent_steps=2,
            num_compute_wgs=2,
            memory_registers=40,
            wg_axis="wg",
        )(a, b)

    run = kernel(
        body,
        like((256, 128), jnp.float16),
        mma_smem((64, 128)),
        grid=(4,),
        grid_names=("m",),
        num_threads=3,
        thread_name="wg",
    )
    return run(a, b)


@case(f32(256, 128), reference=lambda x: np.maximum(x * 2, 0))
def triple_buffering(x):
    """Buffers reused round a ring while later copies are in flight."""
    steps, buffering = 8, 3

    def body(x, o, buffers, barriers):
        def fetch(i, slot):
            plgpu.copy_gmem_to_smem(x.at[pl.ds(i * 32, 32)], buffers.at[slot], barriers.at[slot])

        for slot in range(buffering):
            fetch(slot, slot)

        def step(i, _):
            slot = lax.rem(i, buffering)
            plgpu.barrier_wait(barriers.at[slot])
            o[pl.ds(i * 32, 32)] = jax.nn.relu(buffers[slot] * 2)

            @pl.when(i + buffering < steps)
            def _():
                fetch(i + buffering, slot)

        lax.fori_loop(0, steps, step, None)

    scratch = (SMEM((buffering, 32, 128), jnp.float32), Barrier(num_barriers=buffering))
    return kernel(body, like((256, 128)), *scratch)(x)


def _softmax_rows(q, k):
    logits = _mul(q, k.T)
    weights = np.exp(logits - logits.max(1, keepdims=True))
    return weights / weights.sum(1, keepdims=True)


@case(
    f16(64, 64),
    f16(64, 64),
    f16(64, 64),
    reference=lambda q, k, v: (_softmax_rows(q, k) @ v.astype(np.float32)).astype(np.float16),
    tolerance=5e-3,
)
def attention_step(q, k, v):
    """The heart of FlashAttention 3: two products with a base-2 softmax between them, in registers."""
    log2e = math.log2(math.e)

    def body(q, k, v, o, q_buf, k_buf, v_buf, o_buf, bar):
        for src, dst in ((q, q_buf), (k, k_buf), (v, v_buf)):
            plgpu.copy_gmem_to_smem(src, dst, bar)
            plgpu.barrier_wait(bar)

        def logits(acc):
            plgpu.wgmma(acc, q_buf, plgpu.transpose_ref(k_buf, (1, 0)))
            return acc[...]

        qk = pl.run_scoped(logits, ACC((64, 64), jnp.float32))
        m = qk.max(axis=1) * log2e
        p = jnp.exp2(qk * log2e - lax.broadcast_in_dim(m, qk.shape, [0]))
        total = p.sum(axis=1)
        p16 = p.astype(jnp.float16)
        total, p16 = lax.optimization_barrier((total, p16))

        def weighted(acc):
            plgpu.wgmma(acc, p16, v_buf)

        start = plgpu.layout_cast(jnp.full((64, 64), 0, jnp.float32), plgpu.Layout.WGMMA)
        acc = pl.run_state(weighted)(ACC.init(start))
        out = acc / lax.broadcast_in_dim(total, acc.shape, [0])
        o_buf[...] = out.astype(jnp.float16)
        plgpu.commit_smem()
        plgpu.copy_smem_to_gmem(o_buf, o)
        plgpu.wait_smem_to_gmem(0)

    buf = mma_smem((64, 64))
    return kernel(body, like((64, 64), jnp.float16), buf, buf, buf, buf, Barrier())(q, k, v)


@case(f32(64), f32(64), reference=lambda x, y: np.maximum(x + y, 0))
def fused_add_relu(x, y):
    def body(x, y, o):
        o[:] = jax.nn.relu(x[:] + y[:])

    return kernel(body, like((64,)))(x, y)


@case(f16(64, 128), reference=lambda x: (x.astype(np.float32).sum(1), x))
def layout_of_rows(x):
    """A row vector loaded in WGMMA_ROW and broadcast along the columns."""

    def body(x, o, p, buf, row, bar):
        plgpu.copy_gmem_to_smem(x, buf, bar)
        plgpu.barrier_wait(bar)
        v = load(buf, layout=plgpu.Layout.WGMMA).astype(jnp.float32)
        row[...] = v.sum(axis=1)
        again = load(row, layout=plgpu.Layout.WGMMA.reduce(1))
        o[...] = again
        p[...] = (v + lax.broadcast_in_dim(again * 0, v.shape, [0])).astype(jnp.float16)

    scratch = (mma_smem((64, 128)), SMEM((64,), jnp.float32), Barrier())
    return kernel(body, [like((64,)), like((64, 128), jnp.float16)], *scratch)(x)
