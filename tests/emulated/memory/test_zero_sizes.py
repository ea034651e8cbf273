"""Arrays, refs, copies, loops and reductions of nothing, against NumPy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import smalt
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu
from tests.corpus.case import kernel, like

SMEM, Barrier = plgpu.SMEM, plgpu.Barrier
F16, F32 = jnp.float16, jnp.float32

# name -> (kernel's function, shapes of its arguments, NumPy)
CASES: dict[str, tuple[Callable[..., Any], tuple[tuple[int, ...], ...], Callable[..., Any]]] = {}


def case(*shapes: tuple[int, ...], want: Callable[..., Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def add(fn: Callable[..., Any]) -> Callable[..., Any]:
        CASES[fn.__name__] = (fn, shapes, want)
        return fn

    return add


@case((0, 128), want=lambda x: x * 2)
def elementwise(x):
    def body(x, o):
        o[...] = x[...] * 2

    return kernel(body, like((0, 128)))(x)


@case((128, 0), want=lambda x: x * 2)
def elementwise_without_columns(x):
    def body(x, o):
        o[...] = x[...] * 2

    return kernel(body, like((128, 0)))(x)


@case((0, 128), want=lambda x: np.where(x.astype(np.float16).T.reshape(0, 128) > 0, np.float16(1), np.float16(0)))
def conversions_and_shapes(x):
    def body(x, o):
        v = x[...].astype(F16).T.reshape(0, 128)
        o[...] = jnp.where(v > 0, v, 0)

    return kernel(body, like((0, 128), F16))(x)


@case((0, 64), want=lambda x: x.reshape(64, 0))
def reshape(x):
    def body(x, o):
        o[...] = x[...].reshape(64, 0)

    return kernel(body, like((64, 0)))(x)


@case((0, 64), (64,), want=lambda x, y: x + y[None])
def broadcast(x, y):
    def body(x, y, o):
        o[...] = x[...] + lax.broadcast_in_dim(y[...], (0, 64), (1,))

    return kernel(body, like((0, 64)))(x, y)


@case((0, 128), want=lambda x: x.sum(axis=0) + 1)
def sum_over_nothing(x):
    def body(x, o):
        o[...] = jnp.sum(x[...], axis=0) + 1

    return kernel(body, like((128,)))(x)


@case((0, 128), want=lambda x: np.full(0, 0, np.float32))
def maximum_of_no_rows(x):
    def body(x, o):
        o[...] = jnp.max(x[...], axis=1)

    return kernel(body, like((0,)))(x)


@case((0, 4), want=lambda x: np.full(128, x.sum(), np.float32))
def sum_of_everything(x):
    def body(x, o):
        o[...] = jnp.broadcast_to(jnp.sum(x[...]), (128,))

    return kernel(body, like((128,)))(x)


@case((0, 128), want=lambda x: np.cumsum(x, axis=1))
def cumulative(x):
    def body(x, o):
        o[...] = jnp.cumsum(x[...], axis=1)

    return kernel(body, like((0, 128)))(x)


@case((0, 128), want=lambda x: x.sum(axis=0))
def loop_over_nothing(x):
    def body(x, o):
        o[...] = lax.fori_loop(0, x.shape[0], lambda i, acc: acc + x[i], jnp.zeros((128,), F32))

    return kernel(body, like((128,)))(x)


@case((4, 0), want=lambda x: x)
def loop_that_carries_nothing(x):
    def body(x, o):
        o[...] = lax.fori_loop(0, 3, lambda i, acc: acc * 2 + x[...], x[...])

    return kernel(body, like((4, 0)))(x)


@case((64,), want=lambda x: x)
def slices(x):
    def body(x, o):
        o[...] = x[...]
        o[0:0] = x[5:5] * 2

    return kernel(body, like((64,)))(x)


@case((0,), (128,), want=lambda x, y: y + 1)
def an_operand_that_nobody_reads(x, y):
    def body(x, y, o):
        o[...] = y[...] + 1

    return kernel(body, like((128,)))(x, y)


@case((0, 128), want=lambda x: x)
def through_shared_memory(x):
    def body(x, o, buf):
        buf[...] = x[...]
        plgpu.commit_smem()
        plgpu.copy_smem_to_gmem(buf, o)
        plgpu.wait_smem_to_gmem(0)

    return kernel(body, like((0, 128)), SMEM((0, 128), F32))(x)


@case((0, 128), (128,), want=lambda x, y: y * 3)
def a_bulk_load_and_its_barrier(x, y):
    def body(x, y, o, nothing, something, bar):
        for _ in range(2):
            plgpu.copy_gmem_to_smem(x, nothing, bar)
            plgpu.barrier_wait(bar)
        plgpu.copy_gmem_to_smem(y, something, bar)
        plgpu.barrier_wait(bar)
        o[...] = something[...] * 3

    return kernel(body, like((128,)), SMEM((0, 128), F32), SMEM((128,), F32), Barrier())(x, y)


@case((64, 64), want=lambda x: x)
def a_bulk_load_of_no_rows_of_a_matrix(x):
    transforms = (plgpu.TilingTransform((8, 32)), plgpu.SwizzleTransform(128))

    def body(x, o, nothing, all, bar):
        plgpu.copy_gmem_to_smem(x.at[pl.ds(8, 0)], nothing, bar)
        plgpu.barrier_wait(bar)
        plgpu.copy_gmem_to_smem(x, all, bar)
        plgpu.barrier_wait(bar)
        o[...] = all[...]

    return kernel(body, like((64, 64)), SMEM((0, 64), F32, transforms=transforms), SMEM((64, 64), F32, transforms=transforms), Barrier())(x)


@case((0, 64), want=lambda x: x + 1)
def pallas_call(x):
    def body(x, o):
        o[...] = x[...] + 1

    return pl.pallas_call(body, out_shape=like((0, 64)))(x)


@pytest.mark.parametrize("name", CASES)
def test_nothing(name: str) -> None:
    fn, shapes, want = CASES[name]
    args = [np.random.default_rng(i).standard_normal(shape).astype(np.float32) for i, shape in enumerate(shapes)]
    with smalt.emulated("H100"):
        try:
            lowered = jax.jit(fn).lower(*args)
        except ValueError as e:
            if "Out of bound slice" not in str(e):
                raise
            pytest.skip(f"the pipeline of JAX {jax.__version__} takes no empty block: {e}")
        got = np.asarray(lowered.compile()(*args))
    expected = np.asarray(want(*args))
    assert got.shape == expected.shape
    np.testing.assert_array_equal(got, expected.astype(got.dtype))
    if not got.size:
        assert got.dtype == (np.float16 if name == "conversions_and_shapes" else np.float32)
