"""wgmma and mma."""

from __future__ import annotations

import jax.experimental.pallas as pl
import jax.experimental.pallas.mosaic_gpu as plgpu
import jax.numpy as jnp
import numpy as np
from jax import lax

from tests.corpus.case import Arg, bf16, case, f16, f32, kernel, like, load

SMEM, Barrier, ACC = plgpu.SMEM, plgpu.Barrier, plgpu.ACC
HAS_MMA = hasattr(plgpu, "mma")


def tiled(dtype, swizzle=128):
    size = jnp.dtype(dtype).itemsize
    return (plgpu.TilingTransform((8, swizzle // size)), plgpu.SwizzleTransform(swizzle))


def _mul(a, b):
    return np.asarray(a, np.float32) @ np.asarray(b, np.float32)


def _fetch(a, b, a_buf, b_buf, bars):
    plgpu.copy_gmem_to_smem(a, a_buf, bars.at[0])
    plgpu.copy_gmem_to_smem(b, b_buf, bars.at[1])
    plgpu.barrier_wait(bars.at[0])
    plgpu.barrier_wait(bars.at[1])


def _matmul(dtype, m, n, k, transform_b=lambda b: b, b_shape=None, swizzle=128):
    b_shape = b_shape or (k, n)

    def body(a, b, o, a_buf, b_buf, bars):
        _fetch(a, b, a_buf, b_buf, bars)

        def compute(acc):
            plgpu.wgmma(acc, a_buf, transform_b(b_buf))
            plgpu.wgmma_wait(0)
            return acc[...]

        o[...] = pl.run_scoped(compute, ACC((m, n), jnp.float32))

    scratch = (
        SMEM((m, k), dtype, transforms=tiled(dtype, swizzle)),
        SMEM(b_shape, dtype, transforms=tiled(dtype, swizzle)),
        Barrier(num_barriers=2),
    )
    return kernel(body, like((m, n)), *scratch)


@case(f16(64, 64), f16(64, 128), reference=_mul, tolerance=1e-3)
def wgmma_f16(a, b):
    return _matmul(jnp.float16, 64, 128, 64)(a, b)


@case(bf16(128, 64), bf16(64, 64), reference=_mul, tolerance=1e-3)
def wgmma_bf16(a, b):
    return _matmul(jnp.bfloat16, 128, 64, 64)(a, b)


@case(f16(64, 64), f16(128, 64), reference=lambda a, b: _mul(a, b.T), tolerance=1e-3)
def wgmma_b_transposed(a, b):
    return _matmul(jnp.float16, 64, 128, 64, lambda b: b.T, (128, 64))(a, b)


@case(f16(64, 32), f16(32, 32), reference=_mul, tolerance=1e-3)
def wgmma_swizzle_64(a, b):
    return _matmul(jnp.float16, 64, 32, 32, swizzle=64)(a, b)


@case(f16(64, 64), f16(64, 64), reference=lambda a, b: _mul(a.T, b), tolerance=1e-3)
def wgmma_a_transposed(a, b):
    def body(a, b, o, a_buf, b_buf, bars):
        _fetch(a, b, a_buf, b_buf, bars)

        def compute(acc):
            plgpu.wgmma(acc, plgpu.transpose_ref(a_buf, (1, 0)), b_buf)
            return acc[...]

        o[...] = pl.run_scoped(compute, ACC((64, 64), jnp.float32))

    buf = SMEM((64, 64), jnp.float16, transforms=tiled(jnp.float16))
    return kernel(body, like((64, 64)), buf, buf, Barrier(num_barriers=2))(a, b)


@case(f16(64, 64), f16(64, 128), f32(64, 128), reference=lambda a, b, c: _mul(a, b) + c, tolerance=1e-3)
def wgmma_initialised(a, b, c):
    def body(a, b, c, o, a_buf, b_buf, bars):
        _fetch(a, b, a_buf, b_buf, bars)

        def compute(acc):
            plgpu.wgmma(acc, a_buf, b_buf)

        start = plgpu.layout_cast(c[...], plgpu.Layout.WGMMA)
        o[...] = pl.run_state(compute)(ACC.init(start))

    scratch = (
        SMEM((64, 64), jnp.float16, transforms=tiled(jnp.float16)),
        SMEM((64, 128), jnp.float16, transforms=tiled(jnp.float16)),
        Barrier(num_barriers=2),
    )
    return kernel(body, like((64, 128)), *scratch)(a, b, c)


@case(f16(64, 64), f16(64, 64), reference=lambda a, b: _mul(a, b), tolerance=1e-3)
def wgmma_a_in_registers(a, b):
    def body(a, b, o, a_buf, b_buf, bars):
        _fetch(a, b, a_buf, b_buf, bars)
        left = load(a_buf, layout=plgpu.Layout.WGMMA)

        def compute(acc):
            plgpu.wgmma(acc, left, b_buf)
            return acc[...]

        o[...] = pl.run_scoped(compute, ACC((64, 64), jnp.float32))

    buf = SMEM((64, 64), jnp.float16, transforms=tiled(jnp.float16))
    return kernel(body, like((64, 64)), buf, buf, Barrier(num_barriers=2))(a, b)


@case(
    Arg((64, 128), jnp.int8, low=-8, high=8),
    Arg((64, 128), jnp.int8, low=-8, high=8),
    reference=lambda a, b: a.astype(np.int32) @ b.astype(np.int32).T,
)
def wgmma_int8(a, b):
    def body(a, b, o, a_buf, b_buf, bars):
        _fetch(a, b, a_buf, b_buf, bars)

        def compute(acc):
            plgpu.wgmma(acc, a_buf, b_buf.T)
            return acc[...]

        o[...] = pl.run_scoped(compute, ACC((64, 64), jnp.int32))

    buf = SMEM((64, 128), jnp.int8, transforms=tiled(jnp.int8))
    return kernel(body, like((64, 64), jnp.int32), buf, buf, Barrier(num_barriers=2))(a, b)


@case(
    Arg((64, 128), jnp.float8_e4m3fn),
    Arg((64, 128), jnp.float8_e4m3fn),
    reference=lambda a, b: _mul(a, np.asarray(b, np.float32).T),
    tolerance=2e-2,
)
def wgmma_fp8(a, b):
    def body(a, b, o, a_buf, b_buf, bars):
        _fetch(a, b, a_buf, b_buf, bars)

        def compute(acc):
            plgpu.wgmma(acc, a_buf, b_buf.T)
            return acc[...]

        o[...] = pl.run_scoped(compute, ACC((64, 64), jnp.float32))

    buf = SMEM((64, 128), jnp.float8_e4m3fn, transforms=tiled(jnp.float8_e4m3fn))
    return kernel(body, like((64, 64)), buf, buf, Barrier(num_barriers=2))(a, b)


def _fetch_step(a, b, a_buf, b_buf, bars, k, slot):
    at = pl.ds(k * 64, 64)
    plgpu.copy_gmem_to_smem(a.at[:, at], a_buf.at[slot], bars.at[0, slot])
    plgpu.copy_gmem_to_smem(b.at[at], b_buf.at[slot], bars.at[1, slot])


def _ring(slots):
    return (
        SMEM((slots, 64, 64), jnp.float16, transforms=tiled(jnp.float16)),
        SMEM((slots, 64, 64), jnp.float16, transforms=tiled(jnp.float16)),
        Barrier(num_barriers=(2, slots)),
    )


@case(f16(64, 512), f16(512, 64), reference=_mul, tolerance=2e-3)
def wgmma_loop_two_slots(a, b):
    """The accumulator carried through a loop; the naive pipeline that waits each step."""

    def body(a, b, o, a_buf, b_buf, bars):
        for slot in range(2):
            _fetch_step(a, b, a_buf, b_buf, bars, slot, slot)

        def compute(acc):
            @pl.loop(0, 8)
            def _(i):
                slot = lax.rem(i, 2)
                plgpu.barrier_wait(bars.at[0, slot])
                plgpu.barrier_wait(bars.at[1, slot])
                plgpu.wgmma(acc, a_buf.at[slot], b_buf.at[slot])
                plgpu.wgmma_wait(0)

                @pl.when(i + 2 < 8)
                def _():
                    _fetch_step(a, b, a_buf, b_buf, bars, i + 2, slot)

            return acc[...]

        o[...] = pl.run_scoped(compute, ACC((64, 64), jnp.float32))

    return kernel(body, like((64, 64)), *_ring(2))(a, b)


@case(f16(64, 256), f16(256, 64), reference=lambda a, b: (_mul(b.T, a.T).T, _mul(a, b) * 0 + _mul(a[:, :64], b[:64])), tolerance=2e-3)
def two_accumulators(a, b):
    def body(a, b, o, p, a_buf, b_buf, bars):
        for slot in range(4):
            _fetch_step(a, b, a_buf, b_buf, bars, slot, slot)

        def compute(total, first):
            for slot in range(4):
                plgpu.barrier_wait(bars.at[0, slot])
                plgpu.barrier_wait(bars.at[1, slot])
                plgpu.wgmma(total, a_buf.at[slot], b_buf.at[slot])
                if slot == 0:
                    plgpu.wgmma(first, a_buf.at[slot], b_buf.at[slot])
            plgpu.wgmma_wait(0)
            return total[...], first[...]

        o[...], p[...] = pl.run_scoped(compute, ACC((64, 64), jnp.float32), ACC((64, 64), jnp.float32))

    return kernel(body, [like((64, 64)), like((64, 64))], *_ring(4))(a, b)


@case(f16(64, 64), f16(64, 64), reference=lambda a, b: _mul(a, b) * 2 + _mul(a, b), tolerance=2e-3)
def accumulator_read_and_rewritten(a, b):
    def body(a, b, o, a_buf, b_buf, bars):
        _fetch(a, b, a_buf, b_buf, bars)

        def compute(acc):
            plgpu.wgmma(acc, a_buf, b_buf)
            acc[...] = acc[...] * 2
            plgpu.wgmma(acc, a_buf, b_buf)
            plgpu.wgmma_wait(0)
            return plgpu.wgmma_accumulator_load(acc, wait_n=None)

        o[...] = pl.run_scoped(compute, ACC((64, 64), jnp.float32))

    buf = SMEM((64, 64), jnp.float16, transforms=tiled(jnp.float16))
    return kernel(body, like((64, 64)), buf, buf, Barrier(num_barriers=2))(a, b)


@case(f16(64, 256), f16(256, 64), Arg((1,), jnp.int32, low=2, high=4), reference=lambda a, b, n: _mul(a[:, : 64 * n[0]], b[: 64 * n[0]]), tolerance=2e-3)
def accumulator_through_while(a, b, n):
    def body(a, b, n, o, a_buf, b_buf, bars):
        for slot in range(4):
            _fetch_step(a, b, a_buf, b_buf, bars, slot, slot)

        def compute(acc):
            def step(i):
                plgpu.barrier_wait(bars.at[0, i])
                plgpu.barrier_wait(bars.at[1, i])
                plgpu.wgmma(acc, a_buf.at[i], b_buf.at[i])
                plgpu.wgmma_wait(0)
                return i + 1

            lax.while_loop(lambda i: i < n[0], step, jnp.int32(0))
            return acc[...]

        o[...] = pl.run_scoped(compute, ACC((64, 64), jnp.float32))

        @pl.loop(n[0], 4)
        def _(i):  # copies that nobody needed: shared memory must outlive them
            plgpu.barrier_wait(bars.at[0, i])
            plgpu.barrier_wait(bars.at[1, i])

    return kernel(body, like((64, 64)), *_ring(4))(a, b, n)


@case(f16(64, 64), f16(64, 128), reference=lambda a, b: _mul(a, b).astype(np.float16), tolerance=1e-2)
def wgmma_f16_accumulator(a, b):
    def body(a, b, o, a_buf, b_buf, bars):
        _fetch(a, b, a_buf, b_buf, bars)

        def compute(acc):
            plgpu.wgmma(acc, a_buf, b_buf)
            return acc[...]

        o[...] = pl.run_scoped(compute, ACC((64, 128), jnp.float16))

    scratch = (
        SMEM((64, 64), jnp.float16, transforms=tiled(jnp.float16)),
        SMEM((64, 128), jnp.float16, transforms=tiled(jnp.float16)),
        Barrier(num_barriers=2),
    )
    return kernel(body, like((64, 128), jnp.float16), *scratch)(a, b)


@case(f16(64, 64), f16(64, 64), f32(64, 64), when=HAS_MMA, reference=lambda a, b, c: _mul(a, b) + c, tolerance=2e-3)
def mma_in_registers(a, b, c):
    def body(a, b, c, o):
        layout = plgpu.Layout
        left = plgpu.layout_cast(a[...], layout.MMA_LHS(jnp.dtype(jnp.float16)))
        right = plgpu.layout_cast(b[...], layout.MMA_RHS(jnp.dtype(jnp.float16)))
        acc = plgpu.layout_cast(c[...], layout.MMA_ACC(jnp.dtype(jnp.float16)))
        o[...] = plgpu.mma(acc, left, right)

    return kernel(body, like((64, 64)))(a, b, c)


@case(f16(256, 256), f16(256, 256), reference=lambda a, b: _mul(a, b).astype(np.float16), tolerance=3e-3)
def matmul_warp_specialized(a, b):
    """A producer and two consumers, a four-deep ring, the accumulator carried, a swizzled store."""
    m = n = k = 256
    tile_m, tile_n, tile_k, slots = 128, 128, 64, 4
    steps = k // tile_k

    def body(a, b, o, a_buf, b_buf, o_buf, loaded, free):
        wg = lax.axis_index("wg")
        rows = pl.ds(lax.axis_index("m") * tile_m, tile_m)
        cols = pl.ds(lax.axis_index("n") * tile_n, tile_n)

        @pl.when(wg == 2)
        def _():
            plgpu.set_max_registers(40, action="decrease")

            @pl.loop(0, steps)
            def _(i):
                slot = lax.rem(i, slots)

                @pl.when(i >= slots)
                def _():
                    plgpu.barrier_wait(free.at[slot])

                ks = pl.ds(i * tile_k, tile_k)
                plgpu.copy_gmem_to_smem(a.at[rows, ks], a_buf.at[slot], loaded.at[slot])
                plgpu.copy_gmem_to_smem(b.at[ks, cols], b_buf.at[slot], loaded.at[slot])

        @pl.when(wg < 2)
        def _():
            plgpu.set_max_registers(232, action="increase")
            half = pl.ds(wg * 64, 64)

            def compute(acc):
                @pl.loop(0, steps)
                def _(i):
                    slot = lax.rem(i, slots)
                    plgpu.barrier_wait(loaded.at[slot])
                    plgpu.wgmma(acc, a_buf.at[slot, half], b_buf.at[slot])
                    plgpu.wgmma_wait(0)
                    plgpu.barrier_arrive(free.at[slot])

                return acc[...]

            acc = pl.run_scoped(compute, ACC((64, tile_n), jnp.float32))
            o_buf[half] = acc.astype(jnp.float16)
            plgpu.commit_smem()
            plgpu.copy_smem_to_gmem(o_buf.at[half], o.at[rows, cols].at[half])
            plgpu.wait_smem_to_gmem(0)

    scratch = (
        SMEM((slots, tile_m, tile_k), jnp.float16, transforms=tiled(jnp.float16)),
        SMEM((slots, tile_k, tile_n), jnp.float16, transforms=tiled(jnp.float16)),
        SMEM((tile_m, tile_n), jnp.float16, transforms=tiled(jnp.float16)),
        Barrier(num_arrivals=2, num_barriers=slots),
        Barrier(num_arrivals=2, num_barriers=slots),
    )
    run = kernel(
        body,
        like((m, n), jnp.float16),
        *scratch,
        grid=(m // tile_m, n // tile_n),
        grid_names=("m", "n"),
        num_threads=3,
        thread_name="wg",
    )
    return run(a, b)
