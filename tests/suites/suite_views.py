"""The tests of views without addresses, of hints, and of copies outside of arrays, for the machine that there is: the emulator, or a GPU."""

from __future__ import annotations

import os

import jax
import jax.experimental.pallas as pl
import jax.experimental.pallas.mosaic_gpu as plgpu
import jax.numpy as jnp
import numpy as np
import pytest

from tests.corpus.case import kernel, like, x64
from tests.fuzz.seeds import right
from tests.machine import ON_GPU, enabled
from tests.programs import views

#: SMALT_VIEWS_N: how many times as many as in the emulator's tests.
TIMES = int(os.environ.get("SMALT_VIEWS_N", 10 if ON_GPU else 1))


@pytest.mark.parametrize("kind", list(views.KINDS))
def test_views_equal_numpy(kind: str) -> None:
    _, count = views.KINDS[kind]
    right(views.VIEWS_OF_KINDS[kind], range(count * TIMES))


def test_products_of_other_widths_on_one_accumulator() -> None:
    """320 columns are two instructions of a right operand that is contiguous along K, five of one along N: these must not overlap."""
    rng = np.random.default_rng(0)
    a, b, c = (views.numbers(rng, shape, jnp.float16) for shape in ((64, 64), (64, 320), (320, 64)))

    def body(a, b, c, o, a_buf, b_buf, c_buf, bars):  # type: ignore[no-untyped-def]
        for i, (src, dst) in enumerate(((a, a_buf), (b, b_buf), (c, c_buf))):
            plgpu.copy_gmem_to_smem(src, dst, bars.at[i])
            plgpu.barrier_wait(bars.at[i])

        def compute(acc):  # type: ignore[no-untyped-def]
            plgpu.wgmma(acc, a_buf, b_buf)
            plgpu.wgmma(acc, a_buf, plgpu.transpose_ref(c_buf, (1, 0)))
            plgpu.wgmma(acc, a_buf, b_buf)
            return acc[...]

        o[...] = pl.run_scoped(compute, plgpu.ACC((64, 320), jnp.float32))

    buffers = [plgpu.SMEM(x.shape, jnp.float16, transforms=views.tiled(jnp.float16, 128)) for x in (a, b, c)]
    with enabled():
        got = np.asarray(kernel(body, like((64, 320)), *buffers, plgpu.Barrier(num_barriers=3))(a, b, c))
    a, b, c = (x.astype(np.float32) for x in (a, b, c))
    np.testing.assert_array_equal(got, a @ b * 2 + a @ c.T)


def test_products_of_other_widths_on_one_accumulator_of_integers() -> None:
    """120 columns of bytes are five instructions, fifteen where three runs of 40 rows are taken out of longer ones."""
    rng = np.random.default_rng(0)
    a, b, c = (rng.integers(-128, 128, shape, np.int8) for shape in ((64, 128), (3, 64, 128), (120, 128)))

    def body(a, b, c, o, a_buf, b_buf, c_buf, bars):  # type: ignore[no-untyped-def]
        for i, (src, dst) in enumerate(((a, a_buf), (b, b_buf), (c, c_buf))):
            plgpu.copy_gmem_to_smem(src, dst, bars.at[i])
            plgpu.barrier_wait(bars.at[i])

        def compute(acc):  # type: ignore[no-untyped-def]
            runs = plgpu.transpose_ref(b_buf.at[:, 0:40].reshape(120, 128), (1, 0))
            plgpu.wgmma(acc, a_buf, runs)
            plgpu.wgmma(acc, a_buf, plgpu.transpose_ref(c_buf, (1, 0)))
            plgpu.wgmma(acc, a_buf, runs)
            return acc[...]

        o[...] = pl.run_scoped(compute, plgpu.ACC((64, 120), jnp.int32))

    buffers = [plgpu.SMEM(x.shape, jnp.int8, transforms=views.tiled(jnp.int8, 128)) for x in (a, b, c)]
    with enabled():
        got = np.asarray(kernel(body, like((64, 120), jnp.int32), *buffers, plgpu.Barrier(num_barriers=3))(a, b, c))
    a, b, c = (x.astype(np.int32) for x in (a, b, c))
    np.testing.assert_array_equal(got, a @ (b[:, :40].reshape(120, 128) * 2 + c).T)


@pytest.mark.parametrize("at", [1, 63])
def test_a_computed_index_of_registers_is_clamped(at: int) -> None:
    """As JAX's references have it, where nobody looks."""
    x, first = np.arange(64, dtype=np.int32), np.array([at], np.int32)

    def body(x, first, o):  # type: ignore[no-untyped-def]
        def program(ref):  # type: ignore[no-untyped-def]
            ref[pl.ds(first[0], 8)] = ref[pl.ds(first[0], 8)] * 2

        o[...] = pl.run_state(program)(x[...])

    with enabled():
        got = np.asarray(kernel(body, like((64,), jnp.int32))(x, first))
    start = min(at, 56)
    x[start : start + 8] *= 2
    np.testing.assert_array_equal(got, x)


#: Copies of rows: of an array, into a buffer with these transforms, from a start that is known to be a multiple of so many.
FAR: dict[str, tuple[tuple[int, ...], int, tuple[object, ...], int]] = {
    "rows": ((100, 32), 16, (), 1),
    "a tile": ((96, 64), 8, views.tiled(jnp.float32, 128), 8),
    "tiles": ((96, 64), 16, views.tiled(jnp.float32, 128), 8),
    "tiles from anywhere": ((100, 64), 16, views.tiled(jnp.float32, 128), 1),
    "elements": ((1024,), 32, (), 1),
    # 32 elements of a row are neighbours in memory: a coordinate is as many times the start.
    "rows of one box": ((128, 2, 16), 4, (), 1),
}


def far_starts(dtype: str, rows: int, multiple: int) -> list[int]:
    """Around the array's ends, and around what integers of 32 and 64 bits hold, of such a type."""
    info = np.iinfo(dtype)
    ends = (0, rows, *(n << bits for bits in (27, 31, 32, 33, 62, 63, 64) for n in (1, 3)))
    near = {sign * end + d for end in ends for sign in (-1, 1) for d in range(-24, 25, 8)}
    return sorted(start for start in near if info.min <= start <= info.max and start % multiple == 0)


@pytest.mark.parametrize("index", ["int32", "uint32", "int64", "uint64"])
@pytest.mark.parametrize("kind", FAR)
def test_copies_that_begin_outside_of_their_array(kind: str, index: str) -> None:
    """However far: what is outside reads as zeros, and what is behind the array is not written; a store in front of it is an error."""
    shape, rows, transforms, multiple = FAR[kind]
    starts = far_starts(index, shape[0], multiple)
    x = (np.arange(np.prod(shape)).reshape(shape) % 97 + 1).astype(np.float32)
    box = (rows, *shape[1:])

    def body(x, starts, loaded, stored, buf, bar):  # type: ignore[no-untyped-def]
        stored[...] = jnp.zeros(shape, jnp.float32)

        def copy(i, carry):  # type: ignore[no-untyped-def]
            start = pl.multiple_of(starts[i], multiple)
            plgpu.copy_gmem_to_smem(x.at[pl.ds(start, rows)], buf, bar)
            plgpu.barrier_wait(bar)
            loaded[i] = buf[...]

            @pl.when(views.may_store(start))
            def _():  # type: ignore[no-untyped-def]
                plgpu.copy_smem_to_gmem(buf, stored.at[pl.ds(start, rows)])

            plgpu.wait_smem_to_gmem(0)
            return carry

        jax.lax.fori_loop(0, len(starts), copy, ())

    with x64(True), enabled():
        call = kernel(body, (like((len(starts), *box)), like(shape)), plgpu.SMEM(box, jnp.float32, transforms=transforms), plgpu.Barrier())
        loaded, stored = (np.asarray(a) for a in call(x, np.array(starts, index)))
    wanted, written = np.zeros((len(starts), *box), np.float32), np.zeros(shape, np.float32)
    for i, start in enumerate(starts):
        for row in range(max(0, -start), min(rows, shape[0] - start)):
            wanted[i, row] = x[start + row]
            if views.may_store(np.dtype(index).type(start)):
                written[start + row] = x[start + row]
    wrong = [start for i, start in enumerate(starts) if not np.array_equal(loaded[i], wanted[i])]
    assert not wrong, f"loads from {wrong}"
    np.testing.assert_array_equal(stored, written)


@pytest.mark.parametrize("seed", [71, 633])
def test_copies_of_more_dimensions_than_a_map_has(seed: int) -> None:
    """Two indices are one coordinate, and each may be outside by itself."""
    with enabled():
        views.Copies.of(seed).check()
