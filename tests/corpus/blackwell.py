"""Tensor memory, tcgen05, dynamic scheduling."""

from __future__ import annotations

import functools

import jax.experimental.pallas as pl
import jax.experimental.pallas.mosaic_gpu as plgpu
import jax.numpy as jnp
import numpy as np
from jax import lax

from tests.corpus.case import Arg, case, f16, f32, kernel, like

SMEM, TMEM, Barrier = plgpu.SMEM, plgpu.TMEM, plgpu.Barrier
HAS_REDUCE = hasattr(plgpu, "mma")  # came with tcgen05.ld reductions
case = functools.partial(case, target="blackwell", device="B200")


def tiled(dtype, swizzle=128):
    return (plgpu.TilingTransform((8, 8 * swizzle // jnp.finfo(dtype).bits)), plgpu.SwizzleTransform(swizzle))


def _mul(a, b):
    return np.asarray(a, np.float32) @ np.asarray(b, np.float32)


def _fetch(pairs, bar):
    for src, dst in pairs:
        plgpu.copy_gmem_to_smem(src, dst, bar)
        plgpu.barrier_wait(bar)


@case(f16(128, 64), f16(64, 128), reference=_mul, tolerance=1e-3)
def tcgen05_mma(a, b):
    def body(a, b, o, a_buf, b_buf, acc, bar, done):
        _fetch([(a, a_buf), (b, b_buf)], bar)
        plgpu.tcgen05_mma(acc, a_buf, b_buf, done, accumulate=False)
        plgpu.barrier_wait(done)
        o[...] = plgpu.async_load_tmem(acc)

    scratch = (
        SMEM((128, 64), jnp.float16, transforms=tiled(jnp.float16)),
        SMEM((64, 128), jnp.float16, transforms=tiled(jnp.float16)),
        TMEM((128, 128), jnp.float32),
        Barrier(),
        Barrier(orders_tensor_core=True),
    )
    return kernel(body, like((128, 128)), *scratch)(a, b)


@case(f16(128, 64), f16(64, 128), reference=lambda a, b: _mul(a, b) * 2, tolerance=1e-3)
def tcgen05_accumulate_and_commit(a, b):
    def body(a, b, o, a_buf, b_buf, acc, bar, done):
        _fetch([(a, a_buf), (b, b_buf)], bar)

        @pl.loop(0, 2)
        def _(i):
            plgpu.tcgen05_mma(acc, a_buf, b_buf, accumulate=i > 0)

        plgpu.tcgen05_commit_arrive(done)
        plgpu.barrier_wait(done)
        o[...] = plgpu.async_load_tmem(acc, layout=plgpu.Layout.TCGEN05)
        plgpu.wait_load_tmem()

    scratch = (
        SMEM((128, 64), jnp.float16, transforms=tiled(jnp.float16)),
        SMEM((64, 128), jnp.float16, transforms=tiled(jnp.float16)),
        TMEM((128, 128), jnp.float32),
        Barrier(),
        Barrier(orders_tensor_core=True),
    )
    return kernel(body, like((128, 128)), *scratch)(a, b)


@case(f16(128, 64), f16(64, 128), reference=_mul, tolerance=1e-3)
def tcgen05_a_in_tmem(a, b):
    def body(a, b, o, a_buf, b_buf, a_tmem, acc, bar, done):
        _fetch([(a, a_buf), (b, b_buf)], bar)
        plgpu.async_store_tmem(a_tmem, plgpu.layout_cast(a_buf[...], plgpu.Layout.TCGEN05))
        plgpu.commit_tmem()
        plgpu.tcgen05_mma(acc, a_tmem, b_buf, done, accumulate=False)
        plgpu.barrier_wait(done)
        o[...] = plgpu.async_load_tmem(acc)

    scratch = (
        SMEM((128, 64), jnp.float16, transforms=tiled(jnp.float16)),
        SMEM((64, 128), jnp.float16, transforms=tiled(jnp.float16)),
        TMEM((128, 64), jnp.float16, packed=True),
        TMEM((128, 128), jnp.float32),
        Barrier(),
        Barrier(orders_tensor_core=True),
    )
    return kernel(body, like((128, 128)), *scratch)(a, b)


@case(f32(128, 128), reference=lambda x: x + 1)
def tmem_roundtrip_in_slices(x):
    def body(x, o, tmem):
        for i in range(2):
            at = pl.ds(i * 64, 64)
            plgpu.async_store_tmem(tmem.at[:, at], plgpu.layout_cast(x[:, at], plgpu.Layout.TCGEN05))
        plgpu.commit_tmem()
        for i in range(2):
            at = pl.ds(i * 64, 64)
            o[:, at] = plgpu.async_load_tmem(tmem.at[:, at]) + 1

    return kernel(body, like((128, 128)), TMEM((128, 128), jnp.float32))(x)


@case(f32(128, 64), when=HAS_REDUCE, reference=lambda x: (x, x.max(1)))
def tmem_load_with_reduction(x):
    def body(x, o, m, tmem):
        plgpu.async_store_tmem(tmem, plgpu.layout_cast(x[...], plgpu.Layout.TCGEN05_TMEM_NATIVE))
        plgpu.commit_tmem()
        v, reduced = plgpu.async_load_tmem(tmem, layout=plgpu.Layout.TCGEN05_TMEM_NATIVE, reduce="max")
        o[...] = v
        m[...] = reduced

    return kernel(body, [like((128, 64)), like((128,))], TMEM((128, 64), jnp.float32))(x)


@case(
    Arg((128, 128), jnp.float8_e4m3fn),
    Arg((128, 128), jnp.float8_e4m3fn),
    Arg((1, 1, 32, 16), jnp.float8_e8m0fnu),
    Arg((1, 1, 32, 16), jnp.float8_e8m0fnu),
    why="block-scaled products come later",
)
def tcgen05_block_scaled(a, b, a_scale, b_scale):
    def body(a, b, sa, sb, o, a_buf, b_buf, sa_buf, sb_buf, acc, sa_tmem, sb_tmem, bar, done):
        _fetch([(a, a_buf), (b, b_buf), (sa, sa_buf), (sb, sb_buf)], bar)
        plgpu.async_copy_scales_to_tmem(sa_buf, sa_tmem)
        plgpu.async_copy_scales_to_tmem(sb_buf, sb_tmem)
        plgpu.tcgen05_mma(acc, a_buf, b_buf.T, done, a_scale=sa_tmem, b_scale=sb_tmem, accumulate=False)
        plgpu.barrier_wait(done)
        o[...] = plgpu.async_load_tmem(acc)

    e4m3, e8m0 = jnp.float8_e4m3fn, jnp.float8_e8m0fnu
    scratch = (
        SMEM((128, 128), e4m3, transforms=tiled(e4m3)),
        SMEM((128, 128), e4m3, transforms=tiled(e4m3)),
        SMEM((1, 1, 32, 16), e8m0),
        SMEM((1, 1, 32, 16), e8m0),
        TMEM((128, 128), jnp.float32),
        TMEM((128, 4), e8m0, layout=plgpu.TMEMLayout.SCALES_LAYOUT),
        TMEM((128, 4), e8m0, layout=plgpu.TMEMLayout.SCALES_LAYOUT),
        Barrier(),
        Barrier(orders_tensor_core=True),
    )
    return kernel(body, like((128, 128)), *scratch)(a, b, a_scale, b_scale)


@case(f16(128, 64), f16(128, 128), Arg((1, 1, 128, 64), jnp.uint2), why="sparse products come later")
def tcgen05_sparse(a, b, meta):
    def body(a, b, meta, o, a_buf, b_buf, meta_buf, acc, meta_tmem, bar, done):
        _fetch([(a, a_buf), (b, b_buf), (meta, meta_buf)], bar)
        plgpu.async_copy_sparse_metadata_to_tmem(meta_buf, meta_tmem)
        plgpu.tcgen05_mma(acc, a_buf, b_buf, done, a_sparse_metadata=meta_tmem, accumulate=False)
        plgpu.barrier_wait(done)
        o[...] = plgpu.async_load_tmem(acc)

    scratch = (
        SMEM((128, 64), jnp.float16, transforms=tiled(jnp.float16)),
        SMEM((128, 128), jnp.float16, transforms=tiled(jnp.float16)),
        SMEM((1, 1, 128, 64), jnp.uint2),
        TMEM((128, 128), jnp.float32),
        TMEM((128, 64), jnp.uint2, layout=plgpu.TMEMLayout.SPARSE_METADATA_LAYOUT),
        Barrier(),
        Barrier(orders_tensor_core=True),
    )
    return kernel(body, like((128, 128)), *scratch)(a, b, meta)


@case(f16(256, 64), f16(64, 256), reference=_mul, tolerance=1e-3)
def tcgen05_collective(a, b):
    """Two CTAs, one product."""

    def body(a, b, o, a_buf, b_buf, acc, bar, done, ready):
        i = lax.axis_index("c")
        plgpu.copy_gmem_to_smem(a.at[pl.ds(i * 128, 128)], a_buf, bar)
        plgpu.barrier_wait(bar)
        plgpu.copy_gmem_to_smem(b.at[:, pl.ds(i * 128, 128)], b_buf, bar)
        plgpu.barrier_wait(bar)
        plgpu.barrier_arrive(ready)
        plgpu.barrier_wait(ready)
        plgpu.tcgen05_mma(acc, a_buf, b_buf, done, accumulate=False, collective_axis="c")
        plgpu.barrier_wait(done)
        o[pl.ds(i * 128, 128)] = plgpu.async_load_tmem(acc)

    scratch = (
        SMEM((128, 64), jnp.float16, transforms=tiled(jnp.float16)),
        SMEM((64, 128), jnp.float16, transforms=tiled(jnp.float16)),
        TMEM((128, 256), jnp.float32, collective=True),
        Barrier(),
        Barrier(orders_tensor_core=True),
        plgpu.ClusterBarrier(collective_axes=("c",), orders_tensor_core=True),
    )
    return kernel(body, like((256, 256)), *scratch, cluster=(2,), cluster_names=("c",))(a, b)


@case(f32(128, 64), reference=lambda x: (x, x * 2))
def tmem_union(x):
    def body(x, a, b, union):
        first, second = union
        for dst, scale, out in ((first, 1, a), (second, 2, b)):
            plgpu.async_store_tmem(dst, plgpu.layout_cast(x[...] * scale, plgpu.Layout.TCGEN05))
            plgpu.commit_tmem()
            out[...] = plgpu.async_load_tmem(dst)
            plgpu.wait_load_tmem()

    union = plgpu.RefUnion(TMEM((128, 64), jnp.float32), TMEM((128, 64), jnp.float32))
    return kernel(body, [like((128, 64)), like((128, 64))], union)(x)


@case(f16(128, 64), reference=lambda x: x)
def smem_to_tmem_copy(x):
    def body(x, o, buf, tmem, bar, done):
        _fetch([(x, buf)], bar)
        plgpu.async_copy_smem_to_tmem(buf, tmem)
        plgpu.tcgen05_commit_arrive(done)
        plgpu.barrier_wait(done)
        o[...] = plgpu.async_load_tmem(tmem)

    scratch = (
        SMEM((128, 64), jnp.float16, transforms=tiled(jnp.float16)),
        TMEM((128, 64), jnp.float16, packed=True),
        Barrier(),
        Barrier(orders_tensor_core=True),
    )
    return kernel(body, like((128, 64), jnp.float16), *scratch)(x)


@case(reference=lambda: np.arange(12, dtype=np.int32).reshape(3, 4))
def dynamic_scheduling():
    def body(o):
        @plgpu.dynamic_scheduling_loop(("a", "b"))
        def _(info):
            i, j = info.index
            o[i, j] = i * 4 + j

    return kernel(body, like((3, 4), jnp.int32), grid=(3, 4), grid_names=("a", "b"))()
