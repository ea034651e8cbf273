"""The launch context of `plgpu.inline_mgpu`, and blocks' places in the launch, for the machine that there is: the emulator, or a GPU."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.experimental.pallas as pl
import jax.experimental.pallas.mosaic_gpu as plgpu
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import smalt
from jax.experimental.mosaic import gpu as mgpu
from jax.experimental.mosaic.gpu import launch_context, utils
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import arith, gpu, nvvm

from tests.suites.suite_inline_mgpu import FA, L, SMEM, i32, out, run, sds
from tests.suites.suite_inline_ptx import random

DTYPES = [np.float32, np.float16, ml_dtypes.bfloat16, np.int8, np.uint16, np.int32, ml_dtypes.float8_e4m3fn]


def names(dtype: Any) -> str:
    return np.dtype(dtype).name


def tiled(dtype: Any, swizzle: int) -> tuple[tuple[int, int], tuple[Any, ...]]:
    tile = (8, swizzle // np.dtype(dtype).itemsize)
    return tile, (plgpu.TilingTransform(tile), plgpu.SwizzleTransform(swizzle))


# ------------------------------------------------------------------------------------------ copies


@pytest.mark.parametrize("swizzle", [32, 64, 128])
@pytest.mark.parametrize("dtype", DTYPES, ids=names)
def test_tiles_are_stored(dtype: Any, swizzle: int) -> None:
    tile, transforms = tiled(dtype, swizzle)
    x = random((64, 256), dtype)

    def body(x: Any, o: Any, buffer: Any) -> None:
        @plgpu.inline_mgpu(arg_types=(plgpu.RefType(transforms), plgpu.RefType()))
        def store(ctx: Any, buffer: Any, o: Any) -> None:
            mgpu.commit_shared()
            ctx.async_copy(src_ref=buffer, dst_ref=o, swizzle=swizzle, gmem_transform=mgpu.TileTransform(tile))
            ctx.await_async_copy(0)

        buffer[...] = x[...]
        store(buffer, o)

    np.testing.assert_array_equal(run(body, out(x.shape, dtype), x, scratch=(SMEM(x.shape, dtype, transforms=transforms),)), x)


@pytest.mark.parametrize("dtype", DTYPES, ids=names)
def test_tiles_are_loaded_on_a_barrier_of_the_kernel(dtype: Any) -> None:
    """The kernel waits for it, and the text for the next one."""
    tile, transforms = tiled(dtype, 128)
    x = random((64, 256), dtype)

    def body(x: Any, o: Any, p: Any, buffer: Any, other: Any, barrier: Any) -> None:
        @plgpu.inline_mgpu(arg_types=(plgpu.RefType(), plgpu.RefType(transforms), plgpu.RefType()))
        def load(ctx: Any, x: Any, buffer: Any, barrier: Any) -> None:
            ctx.async_copy(src_ref=x, dst_ref=buffer, swizzle=128, gmem_transform=mgpu.TileTransform(tile), barrier=barrier)

        @plgpu.inline_mgpu(arg_types=(plgpu.RefType(), plgpu.RefType(transforms), plgpu.RefType()))
        def load_and_wait(ctx: Any, x: Any, buffer: Any, barrier: Any) -> None:
            ctx.async_copy(src_ref=x, dst_ref=buffer, swizzle=128, gmem_transform=mgpu.TileTransform(tile), barrier=barrier)
            barrier.wait_parity(utils.c(1, ir.IntegerType.get_signless(1)))

        load(x, buffer, barrier)
        smalt.mbarrier_wait(barrier, 0)
        o[...] = buffer[...]
        load_and_wait(x, other, barrier)
        p[...] = other[...]

    memory = SMEM(x.shape, dtype, transforms=transforms)
    got = run(body, (out(x.shape, dtype),) * 2, x, scratch=(memory, memory, plgpu.Barrier()))
    for y in got:
        np.testing.assert_array_equal(y, x)


def test_slices_of_device_memory() -> None:
    """By integers, whole dimensions, and starts that are computed."""
    tile, transforms = tiled(np.float32, 128)
    x = random((3, 64, 128), np.float32)

    def body(x: Any, n: Any, o: Any, buffer: Any, barrier: Any) -> None:
        @plgpu.inline_mgpu(arg_types=(plgpu.RefType(), plgpu.RefType(transforms), plgpu.RefType(), L.WG_SPLAT(())))
        def load(ctx: Any, x: Any, buffer: Any, barrier: Any, n: Any) -> None:
            start = arith.index_cast(ir.IndexType.get(), n.registers.item())
            where = (2, mgpu.ds(start, 16), mgpu.ds(32, 64))
            ctx.async_copy(
                src_ref=x, dst_ref=buffer, swizzle=128, gmem_slice=where, gmem_transform=mgpu.TileTransform(tile), barrier=barrier
            )

        load(x, buffer, barrier, n[...])
        plgpu.barrier_wait(barrier)
        o[...] = buffer[...]

    got = run(body, out((16, 64), np.float32), x, np.int32(24), scratch=(SMEM((16, 64), np.float32, transforms=transforms), plgpu.Barrier()))
    np.testing.assert_array_equal(got, x[2, 24:40, 32:96])


@pytest.mark.parametrize("shape, box", [((40, 64), (16, 32)), ((2, 3, 8, 64), (1, 2, 8, 64)), ((96,), (64,))], ids=str)
def test_rows_without_tiles(shape: Any, box: Any) -> None:
    x = random(shape, np.int32)
    where = tuple(slice(0, n) for n in box)

    def body(x: Any, o: Any, buffer: Any, barrier: Any) -> None:
        refs = (plgpu.RefType(),)

        @plgpu.inline_mgpu(arg_types=refs * 4)
        def through(ctx: Any, x: Any, o: Any, buffer: Any, barrier: Any) -> None:
            slices = tuple(mgpu.ds(0, n) for n in box)
            ctx.async_prefetch(gmem_ref=x, gmem_slice=slices)
            ctx.async_copy(src_ref=x, dst_ref=buffer, gmem_slice=slices, barrier=barrier)
            barrier.wait_parity(utils.c(0, ir.IntegerType.get_signless(1)))
            ctx.async_copy(src_ref=buffer, dst_ref=o, gmem_slice=slices)
            ctx.await_async_copy(0)

        o[...] = jnp.zeros(shape, jnp.int32)
        plgpu.commit_smem()
        through(x, o, buffer, barrier)

    got = run(body, out(shape, np.int32), x, scratch=(SMEM(box, np.int32), plgpu.Barrier()))
    expected = np.zeros_like(x)
    expected[where] = x[where]
    np.testing.assert_array_equal(got, expected)


REDUCTIONS = {
    "add": (np.float32, np.add),
    "smin": (np.int32, np.minimum),
    "umax": (np.int32, lambda a, b: np.maximum(a.view(np.uint32), b.view(np.uint32)).view(np.int32)),
    "xor": (np.int32, np.bitwise_xor),
}


@pytest.mark.parametrize("name", REDUCTIONS)
def test_reductions(name: str) -> None:
    dtype, function = REDUCTIONS[name]
    tile, transforms = tiled(dtype, 128)
    x, y = random((16, 64), dtype), random((16, 64), dtype, 1)

    def body(x: Any, y: Any, o: Any, buffer: Any) -> None:
        @plgpu.inline_mgpu(arg_types=(plgpu.RefType(transforms), plgpu.RefType()))
        def reduce(ctx: Any, buffer: Any, o: Any) -> None:
            mgpu.commit_shared()
            ctx.async_copy(src_ref=buffer, dst_ref=o, swizzle=128, gmem_transform=mgpu.TileTransform(tile))
            ctx.await_async_copy(0)

        @plgpu.inline_mgpu(arg_types=(plgpu.RefType(transforms), plgpu.RefType()))
        def again(ctx: Any, buffer: Any, o: Any) -> None:
            mgpu.commit_shared()
            ctx.async_copy(src_ref=buffer, dst_ref=o, swizzle=128, gmem_transform=mgpu.TileTransform(tile), reduction_op=name)
            ctx.await_async_copy(0)

        buffer[...] = x[...]
        reduce(buffer, o)
        buffer[...] = y[...]
        again(buffer, o)

    got = run(body, out((16, 64), dtype), x, y, scratch=(SMEM((16, 64), dtype, transforms=transforms),))
    np.testing.assert_array_equal(got, function(x, y))


@pytest.mark.parametrize("swizzle", [None, 128])
def test_copies_by_all_threads(swizzle: int | None) -> None:
    """`CP_ASYNC`."""
    dtype = np.dtype(np.float16)
    tile, transforms = tiled(dtype, swizzle) if swizzle else ((), ())
    x = random((64, 128), dtype)

    def body(x: Any, o: Any, buffer: Any) -> None:
        @plgpu.inline_mgpu(arg_types=(plgpu.RefType(), plgpu.RefType(transforms)))
        def load(ctx: Any, x: Any, buffer: Any) -> None:
            ctx.async_copy(
                src_ref=x,
                dst_ref=buffer,
                swizzle=swizzle,
                gmem_transform=mgpu.TileTransform(tile) if swizzle else (),
                implementation=launch_context.AsyncCopyImplementation.CP_ASYNC,
            )
            nvvm.cp_async_commit_group()
            ctx.await_cp_async_copy(0)

        load(x, buffer)
        o[...] = buffer[...]

    got = run(body, out(x.shape, dtype), x, scratch=(SMEM(x.shape, dtype, transforms=transforms),))
    np.testing.assert_array_equal(got, x)


def test_copies_that_the_blocks_of_a_cluster_share() -> None:
    """Each loads half of the rows, for both."""
    tile, transforms = tiled(np.float32, 128)
    x = random((2, 32, 64), np.float32)

    def body(x: Any, o: Any, buffer: Any, barrier: Any) -> None:
        grid, block = jax.lax.axis_index("g"), jax.lax.axis_index("c")

        @plgpu.inline_mgpu(arg_types=(plgpu.RefType(), plgpu.RefType(transforms), plgpu.RefType(), L.WG_SPLAT(())))
        def load(ctx: Any, x: Any, buffer: Any, barrier: Any, at: Any) -> None:
            assert ctx.cluster_size == (2, 1, 1)
            number = arith.index_cast(ir.IndexType.get(), at.registers.item())
            ctx.async_copy(
                src_ref=x, dst_ref=buffer, swizzle=128, gmem_slice=(number,), gmem_transform=mgpu.TileTransform(tile),
                barrier=barrier, collective=gpu.Dimension.x,
            )  # fmt: skip

        load(x, buffer, barrier, grid)
        plgpu.barrier_wait(barrier)
        o[grid, block] = buffer[...]

    got = run(
        body, out((2, 2, 32, 64), np.float32), x, scratch=(SMEM((32, 64), np.float32, transforms=transforms), plgpu.Barrier()),
        grid=(2,), grid_names=("g",), cluster=(2,), cluster_names=("c",),
    )  # fmt: skip
    np.testing.assert_array_equal(got, np.stack([x, x], axis=1))


def test_barriers_of_a_function() -> None:
    """A barrier in memory of the kernel's, which a function initialises; its phases are counted in a register."""
    tile, transforms = tiled(np.float32, 128)
    x = random((2, 16, 64), np.float32)

    def body(x: Any, o: Any, buffer: Any, words: Any) -> None:
        @plgpu.inline_mgpu(arg_types=(plgpu.RefType(), plgpu.RefType(), plgpu.RefType(transforms), plgpu.RefType()))
        def f(ctx: Any, x: Any, o: Any, buffer: Any, words: Any) -> None:
            barrier = utils.BarrierRef.initialize(words, 1)
            utils.commit_shared()
            for i in range(2):
                here = {"swizzle": 128, "gmem_slice": (i,), "gmem_transform": mgpu.TileTransform(tile)}
                ctx.async_copy(src_ref=x, dst_ref=buffer, barrier=barrier, **here)
                barrier.wait()
                utils.warpgroup_barrier()
                ctx.async_copy(src_ref=buffer, dst_ref=o, **here)
                ctx.await_async_copy(0)

        f(x, o, buffer, words)

    memory = SMEM((16, 64), np.float32, transforms=transforms)
    with jax.enable_x64(True):
        got = run(body, out(x.shape, np.float32), x, scratch=(memory, SMEM((1,), np.int64)))
    np.testing.assert_array_equal(got, x)


def test_copies_of_warps() -> None:
    """Each warp of a warp region loads a slice, and stores it."""
    x = random((4, 32, 32), np.float32)

    def body(x: Any, o: Any, buffer: Any, barrier: Any) -> None:
        @pl.core_map(plgpu.WarpMesh(axis_name="warp"))
        def load() -> None:
            @plgpu.inline_mgpu(arg_types=(plgpu.RefType(),) * 3 + (L.WG_SPLAT(()),))
            def f(ctx: Any, x: Any, buffer: Any, barrier: Any, n: Any) -> None:
                at = arith.index_cast(ir.IndexType.get(), n.registers.item())
                one = utils.single_thread_predicate(utils.ThreadSubset.WARP)
                here = utils.memref_slice(buffer, (at,))
                ctx.async_copy(src_ref=x, dst_ref=here, gmem_slice=(at,), barrier=barrier, predicate=one)

            f(x, buffer, barrier, jax.lax.axis_index("warp"))

        plgpu.barrier_wait(barrier)

        @pl.core_map(plgpu.WarpMesh(axis_name="warp"))
        def store() -> None:
            @plgpu.inline_mgpu(arg_types=(plgpu.RefType(),) * 2 + (L.WG_SPLAT(()),))
            def f(ctx: Any, o: Any, buffer: Any, n: Any) -> None:
                at = arith.index_cast(ir.IndexType.get(), n.registers.item())
                one = utils.single_thread_predicate(utils.ThreadSubset.WARP)
                ctx.async_copy(src_ref=utils.memref_slice(buffer, (at,)), dst_ref=o, gmem_slice=(at,), predicate=one)
                ctx.await_async_copy(0, scope=utils.ThreadSubset.WARP)

            f(o, buffer, jax.lax.axis_index("warp"))

    got = run(body, out(x.shape, np.float32), x, scratch=(SMEM(x.shape, np.float32), plgpu.Barrier(num_arrivals=4)))
    np.testing.assert_array_equal(got, x)


def test_arrivals_and_looks() -> None:
    """All threads arrive on the kernel's barrier: before that its phase is not over, behind it it is."""

    def body(o: Any, barrier: Any) -> None:
        @plgpu.inline_mgpu(arg_types=(plgpu.RefType(),), return_type=sds((), np.int32))
        def f(ctx: Any, barrier: Any) -> Any:
            phase = utils.c(0, ir.IntegerType.get_signless(1))
            before = arith.extui(i32(), barrier.test_parity(phase))
            utils.warpgroup_barrier()
            barrier.arrive()
            barrier.wait_parity(phase)
            after = arith.extui(i32(), barrier.test_parity(phase))
            return FA.splat(arith.addi(before, arith.muli(after, utils.c(2, i32()))), (), is_signed=True)

        o[...] = f(barrier)

    assert int(run(body, out((), np.int32), scratch=(plgpu.Barrier(num_arrivals=128),))) == 2


# ------------------------------------------------------------------------------------------ blocks

GRIDS: list[tuple[tuple[int, ...], tuple[int, ...]]] = [((5,), ()), ((2, 3), ()), ((2, 3, 4), ()), ((2, 3, 2, 5), ()), ((2, 3), (2,)), ((2, 3, 4), (2, 3))]


@pytest.mark.parametrize("grid, cluster", GRIDS, ids=str)
def test_places_of_blocks(grid: Any, cluster: Any) -> None:
    """As CUDA has them: x is the last axis, a cluster's blocks are neighbours."""
    axes, inner = tuple("abcd"[: len(grid)]), tuple("xy"[: len(cluster)])

    def body(o: Any) -> None:
        @plgpu.inline_mgpu(return_type=tuple(sds((), np.int32) for _ in range(12)))
        def places(ctx: Any) -> Any:
            dims = (gpu.Dimension.x, gpu.Dimension.y, gpu.Dimension.z)
            made = [op(d) for op in (gpu.block_id, gpu.grid_dim, gpu.cluster_block_id, gpu.cluster_dim_blocks) for d in dims]
            return tuple(FA.splat(arith.index_cast(i32(), v), (), is_signed=True) for v in made)

        at = tuple(jax.lax.axis_index(n) for n in (*inner, *axes))
        for i, place in enumerate(places()):
            o[(*at, i)] = place

    got = run(
        body, out((*cluster, *grid, 12), np.int32), grid=grid, grid_names=axes,
        **({"cluster": cluster, "cluster_names": inner} if cluster else {}),
    )  # fmt: skip
    z, y, x = (math.prod(grid[:-2]), *(1, *grid)[-2:])
    cz, cy, cx = (1, 1, 1, *cluster)[-3:]
    for index in np.ndindex(*cluster, *grid):
        c, g = (0, 0, 0, *index[: len(cluster)])[-3:], index[len(cluster) :]
        flat = np.ravel_multi_index(g[:-2], grid[:-2]) if len(grid) > 2 else 0
        gz, gy, gx = (int(flat), *(0, *g)[-2:])
        expected = [gx * cx + c[2], gy * cy + c[1], gz * cz + c[0], x * cx, y * cy, z * cz, c[2], c[1], c[0], cx, cy, cz]
        assert got[index].tolist() == expected, index


__all__ = [name for name in dir() if name.startswith("test_")]
