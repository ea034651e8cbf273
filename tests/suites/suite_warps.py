"""Warp regions: arrays, scratch, copies and waits of single warps, on the machine that there is.

Random programs by warps are elsewhere: element by element and with control flow in `suite.py`, of all that arrays can in `tests/programs/arrays`
(`by_warps`), over memory in `tests/programs/memory` (`warp_arrays`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.experimental.pallas as pl
import jax.experimental.pallas.mosaic_gpu as plgpu
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import smalt

from tests.suites.suite_barriers import F32, I32, is_refused, out, random, run

BF16 = np.dtype(ml_dtypes.bfloat16)
MESH = plgpu.WarpMesh(axis_name="warp")
SWIZZLED = (plgpu.TilingTransform((8, 64)), plgpu.SwizzleTransform(128))
TWO = {"num_threads": 2, "thread_name": "wg"}


def warps(f: Callable[[Any], None]) -> None:
    """Runs `f` in each warp, with its index."""
    pl.core_map(MESH)(lambda: f(jax.lax.axis_index("warp")))


def rows(f: Callable[[Any], Any], x: Any, out_type: Any, **launch: Any) -> Any:
    """`f` of each row of x, by the warp of that number (of all warpgroups)."""

    def body(x: Any, o: Any) -> None:
        first = 4 * jax.lax.axis_index("wg") if "num_threads" in launch else 0

        def each(w: Any) -> None:
            o[first + w] = f(x[first + w])

        warps(each)

    return run(body, out_type, x, **launch)


# ------------------------------------------------------------------------------------------ arrays


def halved(v: Any) -> Any:
    return jax.lax.while_loop(lambda v: jnp.max(v) > 10, lambda v: v // 2, v)


#: Of a warp's array: the kernel's function, NumPy's or JAX's, shape and type.
OF_ARRAYS: dict[str, tuple[Any, Any, tuple[int, ...], Any]] = {
    "odd": (lambda v: v * 2 + 1, lambda v: v * 2 + 1, (10,), F32),
    "one": (lambda v: v * 2 + 1, lambda v: v * 2 + 1, (1,), I32),
    "bytes": (lambda v: v ^ jnp.uint8(85), lambda v: v ^ np.uint8(85), (200,), np.uint8),
    "rows": (lambda v: jnp.sum(v, 0), lambda v: v.sum(0, dtype=I32), (8, 64), I32),
    "columns": (lambda v: jnp.max(v, 1), lambda v: v.max(1), (8, 64), F32),
    "all": (lambda v: jnp.full((32,), jnp.min(v)), lambda v: np.full(32, v.min()), (96,), F32),
    "argmax": (lambda v: jnp.argmax(v, 1).astype(I32), lambda v: v.argmax(1).astype(I32), (5, 40), F32),
    "transpose": (lambda v: v.T + 1, lambda v: v.T + 1, (16, 32), I32),
    "reversed": (lambda v: v[::-1] - jnp.min(v), lambda v: v[::-1] - v.min(), (100,), I32),
    "cumsum": (lambda v: jnp.cumsum(v), lambda v: v.cumsum(dtype=I32), (300,), I32),
    "sort": (lambda v: jnp.sort(v), np.sort, (300,), F32),
    "first": (lambda v: jax.lax.top_k(v, 3)[0], lambda v: np.sort(v)[::-1][:3], (257,), F32),
    "first bytes": (lambda v: jax.lax.top_k(v, 3)[0], lambda v: np.sort(v)[::-1][:3], (129,), np.uint8),
    "first places": (lambda v: jax.lax.top_k(v, 40)[1], None, (600,), I32),
    "joined": (lambda v: jnp.concatenate([v, v[4:12], v * 2]), lambda v: np.concatenate([v, v[4:12], v * 2]), (16,), I32),
    "where": (lambda v: jnp.where(jax.lax.iota(I32, 48) % 2 == 0, v, -v), lambda v: np.where(np.arange(48) % 2 == 0, v, -v), (48,), I32),
    "take": (lambda v: jnp.take(v, (v & 31)), lambda v: v[v & 31], (32,), I32),
    "scatter": (lambda v: jnp.zeros(40, I32).at[v & 31].add(1), lambda v: np.bincount(v & 31, minlength=40).astype(I32), (64,), I32),
    "while": (halved, lambda v: halved(jnp.asarray(v)), (48,), I32),
    "scan": (lambda v: jax.lax.scan(lambda c, r: (c * 3 + r, c), jnp.zeros(32, I32), v)[1], None, (6, 32), I32),
}


@pytest.mark.parametrize("warpgroups", [1, 2])
@pytest.mark.parametrize("name", OF_ARRAYS)
def test_arrays(name: str, warpgroups: int) -> None:
    f, reference, shape, dtype = OF_ARRAYS[name]
    reference = reference or f
    x = random((4 * warpgroups, *shape), dtype)
    with jax.default_device(jax.devices("cpu")[0]):
        expected = np.stack([np.asarray(reference(row)) for row in x])
    got = rows(f, x, jax.ShapeDtypeStruct(expected.shape, expected.dtype), **(TWO if warpgroups > 1 else {}))
    np.testing.assert_array_equal(got, expected)


def test_softmax() -> None:
    x = random((4, 5, 40), F32)
    got = rows(lambda v: jax.nn.softmax(v, axis=-1), x, out(4, 5, 40, F32))
    np.testing.assert_allclose(got, np.asarray(jax.nn.softmax(x, axis=-1)), rtol=1e-6)


@pytest.mark.parametrize("dtype", [BF16, np.dtype(F32)])
def test_products(dtype: Any) -> None:
    """By `mma.sync`, of one warp."""
    x = random((4, 32, 32), F32).astype(dtype)
    got = rows(lambda v: jnp.dot(v, v.T, preferred_element_type=F32, precision="highest"), x, out(4, 32, 32, F32))
    wide = x.astype(np.float64)
    np.testing.assert_allclose(got, wide @ wide.transpose(0, 2, 1), rtol=1e-4, atol=1e-4)


def test_warps_take_ways_of_their_own() -> None:
    x = random((4, 64))

    def f(w: Any, v: Any) -> Any:
        return jax.lax.switch(w, [lambda: jnp.cumsum(v), lambda: jnp.sort(v), lambda: v[::-1], lambda: v * jnp.max(v)])

    def body(x: Any, o: Any) -> None:
        def each(w: Any) -> None:
            o[w] = f(w, x[w])

        warps(each)

    expected = np.stack([x[0].cumsum(dtype=I32), np.sort(x[1]), x[2][::-1], x[3] * x[3].max()])
    np.testing.assert_array_equal(run(body, out(4, 64, I32), x), expected)


def test_inline_ptx_of_arrays() -> None:
    """An element is a lane's, of the warp's 32."""
    x = random((4, 64))
    got = rows(lambda v: smalt.inline_ptx("add.s32 {0}, {1}, {1};", jax.ShapeDtypeStruct((64,), I32), v), x, out(4, 64, I32))
    np.testing.assert_array_equal(got, x + x)


def test_atomics_of_arrays() -> None:
    """An element is a lane's."""
    x = random((4, 64))

    def body(x: Any, o: Any) -> None:
        o[...] = jnp.zeros(64, I32)

        def each(w: Any) -> None:
            smalt.atomic_add(o, x[w])

        warps(each)

    np.testing.assert_array_equal(run(body, out(64, I32), x), x.sum(0, dtype=I32))


def test_a_layout_of_one_warp() -> None:
    """As the user writes it: with warps that hold the same."""
    layout = plgpu.Layout.TILED(plgpu.Tiling(((8, 32), (8, 1))), warp_dims=(plgpu.Replicated(4),), lane_dims=(-3,), vector_dim=-1)
    x = random((4, 8, 32))
    got = rows(lambda v: plgpu.layout_cast(v, layout) * 3, x, out(4, 8, 32, I32))
    np.testing.assert_array_equal(got, x * 3)
    got = rows(lambda v: plgpu.layout_cast(v, plgpu.Layout.WG_STRIDED((8, 32), vec_size=2)) * 3, x, out(4, 8, 32, I32))
    np.testing.assert_array_equal(got, x * 3)


# ------------------------------------------------------------------------------------------ shared memory


@pytest.mark.parametrize("transforms", [(), SWIZZLED], ids=["plain", "swizzled"])
@pytest.mark.parametrize("scoped", [False, True])
def test_tiles_in_shared_memory(transforms: Any, scoped: bool) -> None:
    """Loaded, transposed and stored to where they were, stored by a copy."""
    x = random((4, 64, 64), F32).astype(np.float16)

    def body(x: Any, o: Any, *tiles: Any) -> None:
        def turn(tile: Any, bar: Any, w: Any) -> None:
            plgpu.copy_gmem_to_smem(x.at[w], tile, bar)
            plgpu.barrier_wait(bar)
            tile[...] = tile[...].T
            plgpu.commit_smem()
            plgpu.copy_smem_to_gmem(tile, o.at[w])
            plgpu.wait_smem_to_gmem(0)

        def each(w: Any) -> None:
            if scoped:
                scratch = [plgpu.SMEM((64, 64), np.float16, transforms=transforms), plgpu.Barrier()]
                pl.run_scoped(lambda tile, bar: turn(tile, bar, w), *scratch)
            else:
                turn(tiles[0].at[w], tiles[1].at[w], w)

        warps(each)

    scratch = [] if scoped else [plgpu.SMEM((4, 64, 64), np.float16, transforms=transforms), plgpu.Barrier(num_barriers=4)]
    np.testing.assert_array_equal(run(body, out(4, 64, 64, np.float16), x, scratch=scratch), x.transpose(0, 2, 1))


def test_a_warp_commits_what_its_warpgroup_stored() -> None:
    """And another one issues the copy."""
    x = random((4, 256))

    def body(x: Any, o: Any, p: Any, buffer: Any) -> None:
        buffer[...] = x[...]

        def each(w: Any) -> None:
            @pl.when(w == 1)
            def one() -> None:
                p[...] = jnp.ones(256, I32)
                plgpu.commit_smem()

        warps(each)
        plgpu.copy_smem_to_gmem(buffer.at[2], o)
        plgpu.wait_smem_to_gmem(0)

    got, _ = run(body, [out(256, I32), out(256, I32)], x, scratch=[plgpu.SMEM((4, 256), I32)])
    np.testing.assert_array_equal(got, x[2])


# ------------------------------------------------------------------------------------------ scratch of warps


def test_scopes_follow_each_other_in_loops() -> None:
    """Of two warpgroups; while one warp is in a scope, another is in the one before."""
    x = random((8, 6, 64))

    def body(x: Any, o: Any) -> None:
        first = 4 * jax.lax.axis_index("wg")

        def each(w: Any) -> None:
            def step(i: Any, total: Any) -> Any:
                def one(buffer: Any) -> Any:
                    buffer[...] = x[first + w, i]
                    return total * 3 + buffer[...][::-1]

                def two(buffer: Any) -> Any:
                    buffer[0], buffer[1] = total + 1, total
                    return buffer[0] ^ buffer[1][::-1]

                total = pl.run_scoped(one, plgpu.SMEM((64,), I32))
                return pl.run_scoped(two, plgpu.SMEM((2, 64), I32))

            o[first + w] = jax.lax.fori_loop(0, 6, step, jnp.zeros((64,), I32))

        warps(each)

    expected = np.zeros((8, 64), I32)
    for i in range(6):
        expected = expected * 3 + x[:, i, ::-1]
        expected = (expected + 1) ^ expected[:, ::-1]
    np.testing.assert_array_equal(run(body, out(8, 64, I32), x, **TWO), expected)


def test_barriers_of_scopes() -> None:
    """Each warp has its own, which are awaited in every iteration."""
    x = random((4, 8, 2, 64))

    def body(x: Any, o: Any) -> None:
        def each(w: Any) -> None:
            def step(i: Any, total: Any) -> Any:
                def scope(buffer: Any, bars: Any) -> Any:
                    for k in range(2):
                        plgpu.copy_gmem_to_smem(x.at[w, i, k], buffer.at[k], bars.at[k])
                    for k in range(2):
                        plgpu.barrier_wait(bars.at[k])
                    return total * 3 + buffer[0] - buffer[1]

                return pl.run_scoped(scope, plgpu.SMEM((2, 64), I32), plgpu.Barrier(num_barriers=2))

            o[w] = jax.lax.fori_loop(0, 8, step, jnp.zeros((64,), I32))

        warps(each)

    expected = np.zeros((4, 64), I32)
    for i in range(8):
        expected = expected * 3 + x[:, i, 0] - x[:, i, 1]
    np.testing.assert_array_equal(run(body, out(4, 64, I32), x), expected)


def test_device_memory_of_scopes() -> None:
    x = random((2, 2, 4, 64))

    def body(x: Any, o: Any) -> None:
        block, wg = jax.lax.axis_index("block"), jax.lax.axis_index("wg")

        def each(w: Any) -> None:
            def scope(buffer: Any) -> None:
                buffer[...] = x[block, wg, w]
                o[block, wg, w] = buffer[...][::-1]

            pl.run_scoped(scope, plgpu.GMEM((64,), I32))

        warps(each)

    got = run(body, out(2, 2, 4, 64, I32), x, grid=(2,), grid_names=("block",), **TWO)
    np.testing.assert_array_equal(got, x[..., ::-1])


def test_only_those_who_come_by_have_scratch() -> None:
    """48 KiB for each of three warps of one warpgroup: for all warps of three there would be no room."""
    x = random((4, 96, 128))

    def body(x: Any, o: Any) -> None:
        def each(w: Any) -> None:
            def scope(buffer: Any) -> None:
                buffer[...] = x[w]
                o[w] = buffer[...] + 1

            @pl.when(w > 0)
            def some() -> None:
                pl.run_scoped(scope, plgpu.SMEM((96, 128), I32))

        @pl.when(jax.lax.axis_index("wg") == 1)
        def one() -> None:
            warps(each)

    got = run(body, out(4, 96, 128, I32), x, num_threads=3, thread_name="wg")
    np.testing.assert_array_equal(got[1:], x[1:] + 1)


# ------------------------------------------------------------------------------------------ warps that talk


@pytest.mark.parametrize("schedule", ["latest", "earliest", "seeded"])
def test_a_producer_and_consumers_in_one_warpgroup(schedule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A warp copies, three add up: rings of slots, full and empty barriers of warps."""
    monkeypatch.setenv("SMALT_SCHEDULE", schedule)
    steps, slots = 7, 2
    x = random((steps, 3, 64))

    def body(x: Any, o: Any, ring: Any, full: Any, empty: Any) -> None:
        def produce() -> None:
            @pl.loop(0, steps)
            def step(i: Any) -> None:
                for k in range(3):

                    @pl.when(i >= slots)
                    def _() -> None:
                        plgpu.barrier_wait(empty.at[k * slots + i % slots])

                    plgpu.copy_gmem_to_smem(x.at[i, k], ring.at[k, i % slots], full.at[k * slots + i % slots])

        def consume(k: Any) -> None:
            def step(i: Any, total: Any) -> Any:
                plgpu.barrier_wait(full.at[k * slots + i % slots])
                total = total * 3 + ring[k, i % slots]
                plgpu.barrier_arrive(empty.at[k * slots + i % slots])
                return total

            o[k] = jax.lax.fori_loop(0, steps, step, jnp.zeros((64,), I32))

        def each(w: Any) -> None:
            pl.when(w == 0)(produce)
            pl.when(w > 0)(lambda: consume(w - 1))

        warps(each)

    expected = np.zeros((3, 64), I32)
    for i in range(steps):
        expected = expected * 3 + x[i]
    scratch = [plgpu.SMEM((3, slots, 64), I32), plgpu.Barrier(num_barriers=3 * slots), plgpu.Barrier(num_barriers=3 * slots)]
    np.testing.assert_array_equal(run(body, out(3, 64, I32), x, scratch=scratch), expected)


def test_semaphores_order_arrays() -> None:
    x = random((4, 64))

    def body(x: Any, o: Any, done: Any, kept: Any) -> None:
        def each(w: Any) -> None:
            @pl.when(w < 3)
            def give() -> None:
                kept[w] = x[w] * 2
                pl.semaphore_signal(done)

            @pl.when(w == 3)
            def take() -> None:
                pl.semaphore_wait(done, 3)
                o[...] = kept[0] + kept[1] + kept[2]

        warps(each)

    scratch = [plgpu.SemaphoreType.REGULAR, plgpu.GMEM((4, 64), I32)]
    np.testing.assert_array_equal(run(body, out(64, I32), x, scratch=scratch), 2 * x[:3].sum(0, dtype=I32))


def test_what_warps_store_is_there_behind_the_region() -> None:
    """And what the warpgroup stored, in the region: the compiler orders both."""
    x = random((4, 128))

    def body(x: Any, o: Any, buffer: Any) -> None:
        buffer[...] = x[...]

        def each(w: Any) -> None:
            buffer[w] = buffer[w][::-1] + jnp.max(buffer[w])

        warps(each)
        buffer[...] = buffer[...] ^ buffer[...][::-1]
        warps(each)
        o[...] = buffer[...]

    def turned(v: Any) -> Any:
        return v[:, ::-1] + v.max(1, keepdims=True)

    expected = turned(x)
    expected = turned(expected ^ expected[::-1])
    np.testing.assert_array_equal(run(body, out(4, 128, I32), x, scratch=[plgpu.SMEM((4, 128), I32)]), expected)


def test_warps_that_meet_in_memory_are_told() -> None:
    """Nothing orders one warp's array and another's."""

    def body(x: Any, o: Any, buffer: Any) -> None:
        def each(w: Any) -> None:
            buffer[w] = x[w]
            o[w] = buffer[(w + 1) % 4]

        warps(each)

    x = random((4, 128))
    is_refused(lambda: run(body, out(4, 128, I32), x, scratch=[plgpu.SMEM((4, 128), I32)]), "nothing orders")


