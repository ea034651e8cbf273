"""Tensor memory and the products that accumulate in it (tcgen05), of one CTA, emulated as a B200."""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Iterator
from typing import Any
from unittest import mock

import jax
import jax.experimental.pallas as pl
import jax.experimental.pallas.mosaic_gpu as plgpu
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import smalt
from tests.corpus.case import kernel

pytestmark = pytest.mark.skipif(not hasattr(plgpu, "tcgen05_mma"), reason="a JAX with tcgen05")

SCHEDULES = ("latest", "earliest", "1", "2", "3")


@contextlib.contextmanager
def emulated(schedule: str = "latest", device: str = "B200") -> Iterator[None]:
    """`schedule`: as the emulator's, or the seed of one."""
    how = {"SMALT_SEED" if schedule.isdigit() else "SMALT_SCHEDULE": schedule}
    with mock.patch.dict(os.environ, how), smalt.emulated(device, check="error"):
        yield


def tiled(dtype: Any, swizzle: int = 128) -> Any:
    return plgpu.TilingTransform((8, swizzle * 8 // jnp.finfo(dtype).bits if jnp.issubdtype(dtype, jnp.floating) else swizzle)), plgpu.SwizzleTransform(swizzle)


def numbers(dtype: Any, *shape: int, seed: int) -> Any:
    r = np.random.default_rng(seed)
    if jnp.issubdtype(dtype, jnp.integer):
        return r.integers(-8, 8, shape).astype(dtype)
    return r.standard_normal(shape).astype(dtype)


def matmul(
    dtypes: tuple[Any, Any, Any],
    shape: tuple[int, int, int],
    *,
    swizzle: int = 128,
    transposed: tuple[bool, bool] = (False, False),
    in_tmem: bool = False,
    steps: int = 1,
) -> Any:
    """`a @ b`, K in so many steps, the sums of all but the first added to what is there."""
    (m, n, k), (ta, tb, acc) = shape, dtypes
    shapes = [(m, k)[:: -1 if transposed[0] else 1], (k, n)[:: -1 if transposed[1] else 1]]
    out = jnp.int32 if acc == jnp.int32 else jnp.float32

    def body(a_gmem: Any, b_gmem: Any, o_gmem: Any, a: Any, b: Any, a_tmem: Any, sums: Any, loaded: Any, done: Any) -> None:
        for i in range(steps):
            at = [pl.ds(i * k, k), slice(None)]
            plgpu.copy_gmem_to_smem(a_gmem.at[tuple(at if transposed[0] else at[::-1])], a, loaded)
            plgpu.copy_gmem_to_smem(b_gmem.at[tuple(at[::-1] if transposed[1] else at)], b, loaded)
            plgpu.barrier_wait(loaded)
            left: Any = plgpu.transpose_ref(a, (1, 0)) if transposed[0] else a
            if in_tmem:
                plgpu.async_store_tmem(a_tmem, a[...])
                plgpu.commit_tmem()
                left = a_tmem
            right = plgpu.transpose_ref(b, (1, 0)) if transposed[1] else b
            plgpu.tcgen05_mma(sums, left, right, done, accumulate=i > 0)
            plgpu.barrier_wait(done)
        o_gmem[...] = plgpu.async_load_tmem(sums).astype(out)

    scratch = [
        plgpu.SMEM(shapes[0], ta, transforms=tiled(ta, swizzle)),
        plgpu.SMEM(shapes[1], tb, transforms=tiled(tb, swizzle)),
        plgpu.TMEM((128, k), ta, packed=True) if in_tmem else plgpu.SMEM((8,), jnp.float32),
        plgpu.TMEM((m, n), acc, packed=None if jnp.dtype(acc).itemsize == 4 else False),
        plgpu.Barrier(num_arrivals=2),
        plgpu.Barrier(orders_tensor_core=True),
    ]
    return kernel(body, jax.ShapeDtypeStruct((m, n), out), *scratch)


def check(dtypes: tuple[Any, Any, Any], shape: tuple[int, int, int], *, how: str = "latest", seed: int = 0, **options: Any) -> None:
    (m, n, k), steps = shape, options.get("steps", 1)
    a, b = numbers(dtypes[0], m, k * steps, seed=seed), numbers(dtypes[1], k * steps, n, seed=seed + 1)
    want = a.astype(np.float64) @ b.astype(np.float64)
    ta, tb = options.get("transposed", (False, False))
    f = matmul(dtypes, shape, **options)
    with emulated(how):
        got = np.asarray(jax.jit(f)(a.T.copy() if ta else a, b.T.copy() if tb else b), np.float64)
    if dtypes[2] == I32:
        np.testing.assert_array_equal(got, want)
    else:  # each instruction rounds its sums to their type
        rounded = dtypes[2] == F16
        np.testing.assert_allclose(got, want, rtol=1e-2 if rounded else 1e-3, atol=0.25 if rounded else 1e-3)


F16, BF16, F32, I8, I32 = jnp.float16, jnp.bfloat16, jnp.float32, jnp.int8, jnp.int32
E4M3, E5M2 = jnp.float8_e4m3fn, jnp.float8_e5m2


@pytest.mark.parametrize("dtypes", [(F16, F16, F32), (F16, F16, F16), (BF16, BF16, F32), (E4M3, E4M3, F32), (E5M2, E4M3, F32), (E4M3, E4M3, F16), (I8, I8, I32)])
@pytest.mark.parametrize("m", (64, 128))
def test_types(dtypes: tuple[Any, Any, Any], m: int) -> None:
    k = 64 if jnp.dtype(dtypes[0]).itemsize == 2 else 128
    for how in SCHEDULES:
        check(dtypes, (m, 64 if k == 64 else 128, k), steps=2, how=how)


@pytest.mark.parametrize("n", (16, 48, 128, 256, 512))
@pytest.mark.parametrize("m", (64, 128))
def test_columns(m: int, n: int) -> None:
    # A tile of 64 columns in shared memory, N-major; K-major any multiple of 16.
    check((F16, F16, F32), (m, n, 64), transposed=(False, True))


@pytest.mark.parametrize("n, swizzle", [(96, 64), (192, 128), (48, 32)])
def test_halves_of_columns_that_end_inside_a_tile(n: int, swizzle: int) -> None:
    check((F16, F16, F32), (64, n, 64), swizzle=swizzle)


@pytest.mark.parametrize("swizzle", (32, 64, 128))
@pytest.mark.parametrize("dtype", (F16, E4M3))
def test_transposed_operands(dtype: Any, swizzle: int) -> None:
    k = 64 if dtype == F16 else 128
    for transposed in itertools.product((False, True), repeat=2):
        check((dtype, dtype, F32), (128, 128, k), swizzle=swizzle, transposed=transposed)


@pytest.mark.parametrize("dtype", (F16, BF16))
def test_a_left_operand_in_tensor_memory(dtype: Any) -> None:
    for how in SCHEDULES:
        check((dtype, dtype, F32), (128, 64, 64), in_tmem=True, steps=2, how=how)


@pytest.mark.parametrize("seed", range(24))
def test_random_products(seed: int) -> None:
    r = np.random.default_rng(seed)

    def pick(*of: Any) -> Any:
        return of[int(r.integers(len(of)))]

    dtypes = pick((F16, F16, F32), (F16, F16, F16), (BF16, BF16, F32), (E4M3, E5M2, F32), (E5M2, E5M2, F16), (I8, I8, I32))
    swizzle = pick(32, 64, 128)
    tile = swizzle // jnp.dtype(dtypes[0]).itemsize
    m, transposed = pick(64, 128), (bool(r.integers(2)), bool(r.integers(2)))
    in_tmem = dtypes[0] in (F16, BF16) and m == 128 and not transposed[0] and bool(r.integers(2))
    k = max(tile, 32 // jnp.dtype(dtypes[0]).itemsize) * int(r.integers(1, 3))
    n = 16 * int(r.integers(1, 9)) if transposed[1] else tile * int(r.integers(1, 3))
    n += n % 16
    if transposed[0]:
        m = max(m, tile)
    how = pick("latest", "earliest", str(seed))
    check(dtypes, (m, n, k), swizzle=swizzle, transposed=transposed, in_tmem=in_tmem, steps=int(r.integers(1, 4)), how=how, seed=seed)


@pytest.mark.parametrize("dtype, packed", [(F32, None), (I32, None), (F16, False), (BF16, True), (jnp.uint8, True)])
@pytest.mark.parametrize("rows", (64, 128))
def test_what_is_stored_is_loaded(dtype: Any, packed: bool | None, rows: int) -> None:
    """In parts: columns whose number is computed, of a reference with a batch."""

    if rows == 64 and packed:
        pytest.skip("parts of halves of lanes")

    def body(x: Any, o: Any, whole: Any, batch: Any) -> None:
        plgpu.async_store_tmem(whole, x[...])
        plgpu.commit_tmem()
        y = plgpu.async_load_tmem(whole)
        plgpu.wait_load_tmem()
        if rows == 64:
            o[...] = y
            return

        def step(i: Any, _: None) -> None:
            plgpu.async_store_tmem(batch.at[i], plgpu.async_load_tmem(whole))

        lax.fori_loop(0, 2, step, None)
        plgpu.commit_tmem()
        o[...] = plgpu.async_load_tmem(batch.at[1])

    x = numbers(dtype, rows, 64, seed=3)
    scratch = [plgpu.TMEM((rows, 64), dtype, packed=packed), plgpu.TMEM((2, 128, 64), dtype, packed=packed)]
    for how in SCHEDULES:
        with emulated(how):
            f = kernel(body, jax.ShapeDtypeStruct((rows, 64), dtype), *scratch)
            np.testing.assert_array_equal(np.asarray(jax.jit(f)(x)), x)


def test_a_packed_operand_in_parts() -> None:
    """K in a loop, the left operand in tensor memory as a whole."""

    def body(x: Any, y: Any, o: Any, left: Any, right: Any, sums: Any, done: Any) -> None:
        plgpu.async_store_tmem(left, x[...])
        plgpu.commit_tmem()
        right[...] = y[...]
        plgpu.commit_smem()

        def step(i: Any, _: None) -> None:
            plgpu.tcgen05_mma(sums, left.at[:, pl.ds(i * 64, 64)], right.at[pl.ds(i * 64, 64)], done, accumulate=i > 0)
            plgpu.barrier_wait(done)

        lax.fori_loop(0, 2, step, None)
        o[...] = plgpu.async_load_tmem(sums)

    x, y = numbers(F16, 128, 128, seed=0), numbers(F16, 128, 64, seed=1)
    scratch = [plgpu.TMEM((128, 128), F16, packed=True), plgpu.SMEM((128, 64), F16, transforms=tiled(F16)), plgpu.TMEM((128, 64), F32), plgpu.Barrier(orders_tensor_core=True)]
    with emulated():
        got = jax.jit(kernel(body, jax.ShapeDtypeStruct((128, 64), F32), *scratch))(x, y)
    np.testing.assert_allclose(np.asarray(got), x.astype(np.float64) @ y.astype(np.float64), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("index", (2, -1))
@pytest.mark.parametrize("sliced", (True, False))
def test_an_index_outside_of_a_reference(sliced: bool, index: int) -> None:
    """What is behind it is another reference, or room that the allocation has left."""

    def body(k: Any, o: Any, t: Any, u: Any) -> None:
        plgpu.async_store_tmem(u, jnp.full((128, 64), 7.0, F32))
        plgpu.async_store_tmem(t.at[:, pl.ds(k[0] * 64, 64)] if sliced else t.at[k[0]], jnp.zeros((128, 64), F32))
        plgpu.commit_tmem()
        o[...] = plgpu.async_load_tmem(u)

    whole = plgpu.TMEM((128, 128) if sliced else (2, 128, 64), F32)
    f = kernel(body, jax.ShapeDtypeStruct((128, 64), F32), whole, plgpu.TMEM((128, 64), F32))
    refused("an index outside of its dimension", f, np.array([index], np.int32))


def test_shared_memory_to_tensor_memory() -> None:
    def body(x: Any, o: Any, smem: Any, tmem: Any, loaded: Any, done: Any) -> None:
        plgpu.copy_gmem_to_smem(x, smem, loaded)
        plgpu.barrier_wait(loaded)
        plgpu.async_copy_smem_to_tmem(smem, tmem)
        plgpu.tcgen05_commit_arrive(done)
        plgpu.barrier_wait(done)
        o[...] = plgpu.async_load_tmem(tmem)

    if not hasattr(plgpu, "async_copy_smem_to_tmem"):
        pytest.skip("a JAX that copies to tensor memory")
    x = numbers(F16, 128, 128, seed=0)
    scratch = [plgpu.SMEM((128, 128), F16, transforms=tiled(F16)), plgpu.TMEM((128, 128), F16, packed=True), plgpu.Barrier(), plgpu.Barrier(orders_tensor_core=True)]
    with emulated():
        got = jax.jit(kernel(body, jax.ShapeDtypeStruct((128, 128), F16), *scratch))(x)
    np.testing.assert_array_equal(np.asarray(got), x)


# ------------------------------------------------------------ what is missing


def pipelined(missing: str) -> Any:
    """Two products into one accumulator, whose left operand is stored by hand; `missing`: what is left out."""

    def body(x: Any, y: Any, o: Any, a: Any, b: Any, sums: Any, loaded: Any, done: Any) -> None:
        plgpu.copy_gmem_to_smem(y, b, loaded)
        if missing != "the wait for the load":
            plgpu.barrier_wait(loaded)
        for i in range(2):
            a[...] = x[...]
            if missing != "commit_smem":
                plgpu.commit_smem()
            plgpu.tcgen05_mma(sums, a, b, done if missing != "the commit" else None, accumulate=missing == "the first product" or i > 0)
            if missing == "a wait before the operand is stored" and i == 0:
                continue
            if missing not in ("the wait for the product", "the commit"):
                plgpu.barrier_wait(done)
        y = plgpu.async_load_tmem(sums)
        if missing == "the commit of a store":
            plgpu.wait_load_tmem()
            plgpu.async_store_tmem(sums, y + 1)
            y = plgpu.async_load_tmem(sums)
        o[...] = y

    scratch = [
        plgpu.SMEM((128, 64), F16, transforms=tiled(F16)),
        plgpu.SMEM((64, 64), F16, transforms=tiled(F16)),
        plgpu.TMEM((128, 64), F32),
        plgpu.Barrier(),
        plgpu.Barrier(orders_tensor_core=True),
    ]
    return kernel(body, jax.ShapeDtypeStruct((128, 64), F32), *scratch)


MISSING = {
    "the wait for the load": "in flight",
    "commit_smem": "the generic proxy",
    "the commit": "nothing orders the two",
    "the wait for the product": "nothing orders the two",
    "a wait before the operand is stored": "reads",
    "the commit of a store": "not known to be complete",
}


@pytest.mark.parametrize("missing", ("nothing", *MISSING))
def test_what_is_missing_is_told(missing: str) -> None:
    x, y = numbers(F16, 128, 64, seed=0), numbers(F16, 64, 64, seed=1)
    with emulated():
        f = jax.jit(pipelined(missing))
        if missing == "nothing":
            np.testing.assert_allclose(np.asarray(f(x, y)), 2 * x.astype(np.float64) @ y.astype(np.float64), rtol=1e-3, atol=1e-3)
            return
        with pytest.raises(smalt.Error, match=MISSING[missing]) as e:
            jax.block_until_ready(f(x, y))
    assert "test_tensor_memory.py" in str(e.value) and "remedy" in str(e.value)


def test_sums_that_nothing_began(capfd: pytest.CaptureFixture[str]) -> None:
    with emulated():
        jax.block_until_ready(jax.jit(pipelined("the first product"))(numbers(F16, 128, 64, seed=0), numbers(F16, 64, 64, seed=1)))
    assert "a value of memory that nothing wrote reaches an output" in capfd.readouterr().err


# ------------------------------------------------------------ what cannot be


def refused(match: str, f: Any, *args: Any, device: str = "B200") -> None:
    with emulated(device=device):
        with pytest.raises(smalt.Error, match=match) as e:
            jax.block_until_ready(jax.jit(f)(*args))
    assert "remedy" in str(e.value) and "test_tensor_memory.py" in str(e.value)


@pytest.mark.parametrize("device", ("A100", "H100", "RTX 5090"))
def test_machines_without_it(device: str) -> None:
    x = numbers(F16, 128, 64, seed=0)
    refused("(?s)tensor memory.*sm_100a", matmul((F16, F16, F32), (128, 64, 64)), x, x[:64], device=device)


def test_types_that_it_does_not_multiply() -> None:
    x = numbers(F32, 128, 64, seed=0)
    refused("operands in f16, bf16, fp8", matmul((F32, F32, F32), (128, 64, 64), swizzle=128), x, x[:64])


def test_integers_need_a_machine_that_multiplies_them() -> None:
    x = numbers(I8, 128, 128, seed=0)
    refused("products of integers in tensor memory", matmul((I8, I8, I32), (128, 128, 128)), x, x, device="GB300")


def test_more_columns_than_there_are() -> None:
    refused("512 columns", matmul((F16, F16, F32), (128, 640, 64), transposed=(False, True)), numbers(F16, 128, 64, seed=0), numbers(F16, 640, 64, seed=1))


def test_a_single_element() -> None:
    def body(o: Any, sums: Any) -> None:
        o[...] = jnp.full((128,), sums[0, 0])

    refused("async_load_tmem", kernel(body, jax.ShapeDtypeStruct((128,), F32), plgpu.TMEM((128, 128), F32)))


def test_it_is_assembled_without_spills() -> None:
    """Where ptxas is at hand."""
    x = numbers(F16, 128, 64, seed=0)
    with emulated():
        (report,) = smalt.inspect(jax.jit(matmul((F16, F16, F32), (128, 256, 64), transposed=(False, True))), x, numbers(F16, 256, 64, seed=1))
    assert "tcgen05.mma.cta_group::1.kind::f16" in report.ptx and ".target sm_100a" in report.ptx
    assert report.ptx.count("tcgen05.alloc") == report.ptx.count("tcgen05.dealloc") == 1

