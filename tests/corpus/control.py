"""Grids, loops, branches, calls, ids, hints and debugging."""

from __future__ import annotations

import jax
import jax.experimental.pallas as pl
import jax.experimental.pallas.mosaic_gpu as plgpu
import jax.numpy as jnp
import numpy as np
import smalt
from jax import lax

from tests.corpus.case import Arg, case, f32, i32, kernel, like


@case(f32(512), reference=lambda x: x * 2)
def grid_1d(x):
    def body(x, o):
        at = pl.ds(lax.axis_index("i") * 128, 128)
        o[at] = x[at] * 2

    return kernel(body, like((512,)), grid=(4,), grid_names=("i",))(x)


def _ids(grid, names):
    def body(o):
        at = tuple(lax.axis_index(n) for n in names)
        number = jnp.int32(0)
        for index, size in zip(at, grid):
            number = number * size + index
        o[at] = number

    return kernel(body, like(grid, jnp.int32), grid=grid, grid_names=names)


@case(reference=lambda: np.arange(3 * 4 * 5, dtype=np.int32).reshape(3, 4, 5))
def grid_3d():
    return _ids((3, 4, 5), ("a", "b", "c"))()


@case(reference=lambda: np.arange(2 * 3 * 2 * 2 * 3, dtype=np.int32).reshape(2, 3, 2, 2, 3))
def grid_5d():
    return _ids((2, 3, 2, 2, 3), ("a", "b", "c", "d", "e"))()


@case(reference=lambda: np.arange(70000 * 2, dtype=np.int32).reshape(70000, 2))
def grid_wide_y():
    return _ids((70000, 2), ("a", "b"))()


@case(reference=lambda: np.arange(70000 * 2, dtype=np.int32).reshape(2, 70000))
def grid_wide_x():
    return _ids((2, 70000), ("a", "b"))()


@case(f32(4, 128), reference=lambda x: x + np.arange(4, dtype=np.float32)[:, None])
def program_ids(x):
    def body(x, o):
        i = pl.program_id(0)
        o[i] = x[i] + i.astype(jnp.float32) + (pl.num_programs(0) - 4)

    return kernel(body, like((4, 128)), grid=(4,), grid_names=("i",))(x)


@case(f32(5, 3, 4, 128), f32(128), reference=lambda x, y: x + y)
def vmap_of_vmap(x, y):
    def body(x, y, o):
        i = lax.axis_index("i")
        o[i] = x[i] + y[...]

    k = kernel(body, like((4, 128)), grid=(4,), grid_names=("i",))
    return jax.vmap(jax.vmap(k, (0, None)), (0, None))(x, y)


@case(f32(4, 128, 2), f32(), reference=lambda x, s: np.moveaxis(x, 2, 0) * s)
def vmap_moved_axis_with_scalar(x, s):
    def one(v):
        def body(x, o):
            o[...] = x[...] * s

        return kernel(body, like((4, 128)))(v)

    return jax.vmap(one, in_axes=2)(x)


@case(f32(128), reference=lambda x: x * 2**10)
def static_loop(x):
    def body(x, o):
        o[...] = lax.fori_loop(0, 10, lambda i, v: v * 2, x[...])

    return kernel(body, like((128,)))(x)


@case(f32(128), i32(1, low=3, high=9), reference=lambda x, n: x * np.float32(2.0 ** n[0]))
def dynamic_loop(x, n):
    def body(x, n, o):
        o[...] = lax.fori_loop(0, n[0], lambda i, v: v * 2, x[...])

    return kernel(body, like((128,)))(x, n)


def _collatz(n):
    steps = 0
    while n != 1:
        n = 3 * n + 1 if n % 2 else n // 2
        steps += 1
    return steps


@case(i32(8, low=1, high=30), reference=lambda x: np.array([_collatz(int(v)) for v in x], np.int32))
def scalar_while(x):
    def body(x, o):
        @pl.loop(0, 8)
        def _(i):
            def step(c):
                v, n = c
                return jnp.where(v % 2 == 1, 3 * v + 1, v // 2), n + 1

            o[i] = lax.while_loop(lambda c: c[0] != 1, step, (x[i], jnp.int32(0)))[1]

    return kernel(body, like((8,), jnp.int32))(x)


@case(f32(128), reference=lambda x: np.float32(np.abs(x).sum()) >= 0)
def while_that_reads(x):
    """The condition loads from a scratch buffer and reduces."""

    def body(x, o, scratch):
        scratch[...] = jnp.abs(x[...])

        def step(i):
            scratch[...] = scratch[...] * 0.5
            return i + 1

        n = lax.while_loop(lambda i: scratch[...].max() > 0.1, step, jnp.int32(0))
        o[...] = n >= 0

    return kernel(body, like((), jnp.bool_), plgpu.SMEM((128,), jnp.float32))(x)


@case(f32(16, 128), reference=lambda x: (np.cumsum(x, 0)[-1], np.cumsum(x, 0)), tolerance=1e-5)
def scan_with_xs_and_ys(x):
    def body(x, o, ys):
        def step(carry, row):
            carry = carry + row
            return carry, carry

        o[...], ys[...] = lax.scan(step, jnp.zeros((128,), jnp.float32), x[...])

    return kernel(body, [like((128,)), like((16, 128))])(x)


@case(f32(16, 64), reference=lambda x: np.cumsum(x[::-1], 0)[::-1], tolerance=1e-5)
def scan_reverse(x):
    def body(x, ys):
        step = lambda c, row: (c + row, c + row)
        ys[...] = lax.scan(step, jnp.zeros((64,), jnp.float32), x[...], reverse=True)[1]

    return kernel(body, like((16, 64)))(x)


@case(f32(8, 64), reference=lambda x: x * 2 + 1)
def map_in_body(x):
    def body(x, o):
        o[...] = lax.map(lambda row: row * 2 + 1, x[...])

    return kernel(body, like((8, 64)))(x)


@case(f32(64), reference=lambda x: x + np.float32(sum(i * j for i in range(4) for j in range(3))), tolerance=1e-5)
def nested_loops_unrolled(x):
    def body(x, o):
        def outer(i, v):
            def inner(j, v):
                return v + (i * j).astype(jnp.float32)

            return lax.fori_loop(0, 3, inner, v, unroll=3)

        o[...] = lax.fori_loop(0, 4, outer, x[...], unroll=2)

    return kernel(body, like((64,)))(x)


@case(f32(2, 64), reference=lambda x: (x[1], x[0]))
def carries_swapped(x):
    def body(x, a, b):
        a[...], b[...] = lax.fori_loop(0, 7, lambda i, c: (c[1], c[0]), (x[0], x[1]))

    return kernel(body, [like((64,)), like((64,))])(x)


@case(f32(4, 64), reference=lambda x: np.stack([x[0] + 1, x[1] * 2, -x[2], x[3] + 1]))
def switch(x):
    def body(x, o):
        i = lax.axis_index("i")
        v = x[i]
        branches = [lambda v: v + 1, lambda v: v * 2, lambda v: -v]
        o[i] = lax.switch(lax.rem(i, 3), branches, v)

    return kernel(body, like((4, 64)), grid=(4,), grid_names=("i",))(x)


@case(f32(4, 64), reference=lambda x: np.where(np.arange(4)[:, None] % 2 == 0, x * 3, x))
def when(x):
    def body(x, o):
        i = lax.axis_index("i")
        o[i] = x[i]

        @pl.when(i % 2 == 0)
        def _():
            o[i] = x[i] * 3

    return kernel(body, like((4, 64)), grid=(4,), grid_names=("i",))(x)


@case(
    i32(2, low=0, high=50),
    reference=lambda n: np.array([sum(range(int(n[0]))), sum(range(int(n[1])))], np.int32),
    x64=True,
)
def loops_in_x64(n):
    def body(n, o):
        for at in range(2):
            bound = n[at]
            o[at] = lax.fori_loop(0, 50, lambda i, s: s + jnp.where(i < bound, i, 0).astype(jnp.int32), jnp.int32(0))

    return kernel(body, like((2,), jnp.int32))(n)


@case(
    reference=lambda: np.arange(12, dtype=np.int32).reshape(3, 4) + 1,
)
def nd_loop():
    def body(o):
        @plgpu.nd_loop((3, 4), collective_axes="sm")
        def _(info):
            i, j = info.index
            o[i, j] = i * 4 + j + 1

    return kernel(body, like((3, 4), jnp.int32), grid=(5,), grid_names=("sm",))()


@case(reference=lambda: np.array([0, 4, 8, 9, 5, 1, 2, 6, 10, 11, 7, 3], np.int32).size * np.ones(1, np.int32))
def planar_snake():
    def body(o):
        def step(i, seen):
            r, c = plgpu.planar_snake(i, (3, 4), 0, 2)
            return seen | (jnp.int32(1) << (r * 4 + c))

        seen = lax.fori_loop(0, 12, step, jnp.int32(0))
        o[0] = lax.population_count(seen)

    return kernel(body, like((1,), jnp.int32))()


@case(f32(128), i32(1, low=0, high=1), reference=lambda x, i: x)
def hints(x, i):
    def body(x, i, o):
        at = pl.multiple_of(i[0] * 64, 64)
        v = lax.optimization_barrier(x[pl.ds(at, 128)])
        a, b = lax.optimization_barrier((v, v * 0))
        pl.delay(100)
        o[...] = a + b

    return kernel(body, like((128,)))(x, i)


@case(f32(128), reference=lambda x: x)
def printing(x):
    def body(x, o):
        v = x[...]
        pl.debug_print("scalars {} {}", v.sum(), lax.axis_index("i"))
        pl.debug_print("array: {}", v)
        pl.debug_print("no arguments")
        plgpu.print_layout("layout: {}", v)
        o[...] = v

    return kernel(body, like((128,)), grid=(1,), grid_names=("i",))(x)


@case(f32(4, 128), reference=lambda x: np.stack([x[1], x[1] + x[2], x[2] * 2, x[3] * 2]))
def inline_ptx(x):
    def body(x, o, buffer):
        buffer[...] = x[...]
        o[...] = smalt.inline_ptx("add.rn.f32 {0}, {1}, {1};", x, x[...])
        text = "{ .reg .b32 t; mov.u32 t, %tid.x; shl.b32 t, t, 2; add.u32 t, t, {2}; ld.shared.b32 {0}, [t]; add.rn.f32 {1}, {0}, {3}; }"
        row = like((128,))
        o[0], o[1] = smalt.inline_ptx(text, (row, row), buffer.at[1], x[2])
        smalt.named_barrier_sync(15, 128)

    return kernel(body, like((4, 128)), plgpu.SMEM((4, 128), jnp.float32))(x)


@case(f32(128), reference=lambda x: x)
def checks(x):
    def body(x, o):
        pl.debug_check(x[0] > -100, "x[0] is too small")
        o[...] = x[...]

    with pl.enable_debug_checks(True):
        return kernel(body, like((128,)))(x)


@case(f32(64, 128), reference=lambda x: x + 1)
def layouts(x):
    def body(x, o):
        v = plgpu.layout_cast(x[...], plgpu.Layout.WG_STRIDED((64, 128), vec_size=2))
        w = plgpu.layout_cast(v, plgpu.Layout.WGMMA)
        row = plgpu.layout_cast(w.sum(axis=1) * 0, plgpu.Layout.WGMMA.reduce(1))
        col = plgpu.layout_cast(w.sum(axis=0) * 0, plgpu.Layout.WGMMA.reduce(0))
        one = plgpu.layout_cast(jnp.ones((64, 128), jnp.float32), plgpu.Layout.WG_SPLAT((64, 128)))
        o[...] = w + one + lax.broadcast_in_dim(row, w.shape, (0,)) + lax.broadcast_in_dim(col, w.shape, (1,))

    return kernel(body, like((64, 128)))(x)


_NAMED = [
    "WGMMA",
    "WGMMA_8BIT",
    "WGMMA_UPCAST_2X",
    "WGMMA_UPCAST_4X",
    "WGMMA_TRANSPOSED",
    "TCGEN05",
    "TCGEN05_TRANSPOSED",
    "TCGEN05_TMEM_NATIVE",
    "_WGMMA_ACC_32BIT",
]


@case(f32(128, 128), reference=lambda x: x)
def named_layouts(x):
    def body(x, o):
        v = x[...]
        for name in _NAMED:
            v = plgpu.layout_cast(v, getattr(plgpu.Layout, name))
        tiling = plgpu.Tiling(((64, 8), (16, 8), (8, 8), (2,)))
        v = plgpu.layout_cast(v, plgpu.Layout.TILED(tiling, (-7,), (-3, -2), -1))  # WGMMA, spelled out
        v = plgpu.layout_cast(v, plgpu.Layout.SMEM_GMEM_COPY((128, 128), jnp.float32, 128))
        o[...] = v

    return kernel(body, like((128, 128)))(x)


@case(Arg((64,), jnp.float32), reference=lambda x: x * 3)
def nested_scopes(x):
    def body(x, o):
        def outer(a):
            a[...] = x[...]

            def inner(b):
                b[...] = a[...] * 2
                return b[...]

            first = pl.run_scoped(inner, plgpu.SMEM((64,), jnp.float32))
            second = pl.run_scoped(lambda c: inner(c) - a[...], plgpu.SMEM((64,), jnp.float32))
            o[...] = first + second

        pl.run_scoped(outer, plgpu.SMEM((64,), jnp.float32))

    return kernel(body, like((64,)))(x)


@case(f32(128), reference=lambda x: x)
def empty_arrays(x):
    """Outputs without elements, and an unused output."""

    def body(x, o, empty, unused):
        o[...] = x[...]

    return kernel(body, [like((128,)), like((0, 4)), like((8,))])(x)[0]


@case(f32(128), reference=lambda x: (x + 1, x + 1 + 1))
def two_call_sites(x):
    def body(x, o):
        o[...] = x[...] + 1

    k = kernel(body, like((128,)))
    first = k(x)
    return first, k(first)


@case(reference=lambda: np.arange(8, dtype=np.int32) * 10)
def eight_warpgroups():
    def body(o):
        wg = lax.axis_index("wg")
        o[wg] = wg * 10

    return kernel(body, like((8,), jnp.int32), num_threads=8, thread_name="wg")()
