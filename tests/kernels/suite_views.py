"""The tests of views without addresses and of hints, for the machine that there is: the emulator, or a GPU."""

from __future__ import annotations

import os

import jax.experimental.pallas as pl
import jax.experimental.pallas.mosaic_gpu as plgpu
import jax.numpy as jnp
import numpy as np
import pytest

from tests.corpus.case import kernel, like
from tests.kernels import views
from tests.kernels.suite import ON_GPU, enabled

#: SMALT_VIEWS_N: how many times as many as in the emulator's tests.
TIMES = int(os.environ.get("SMALT_VIEWS_N", 10 if ON_GPU else 1))


@pytest.mark.parametrize("kind", list(views.KINDS))
def test_views_equal_numpy(kind: str) -> None:
    for seed in range(views.KINDS[kind][1] * TIMES):
        with enabled():
            views.run(kind, seed)


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
