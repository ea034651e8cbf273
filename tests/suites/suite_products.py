"""The tests of products of arrays, for the machine that there is: the emulator, or a GPU.

`SMALT_PRODUCTS` is how many random products and convolutions there are.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from typing import Any

import jax
import jax.experimental.pallas as pl
import jax.experimental.pallas.mosaic_gpu as plgpu
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax import lax

import smalt
from tests import ROOT
from tests.corpus.case import EXACT, Case, kernel, like, x64
from tests.fuzz.seeds import seeds
from tests.machine import ON_GPU, enabled
from tests.programs.convolutions import CONVOLUTIONS
from tests.programs.memory_products import MEMORY_PRODUCTS
from tests.programs.products import PRODUCTS
from tests.suites.recipes import CASES

COUNT = int(os.environ.get("SMALT_PRODUCTS", "250"))
BATCH = 50


@seeds(PRODUCTS, COUNT, BATCH)
def test_random_products(programs: list[Any]) -> None: ...


@seeds(MEMORY_PRODUCTS, COUNT // 3, 20)
def test_random_products_of_memory(programs: list[Any]) -> None: ...


@seeds(CONVOLUTIONS, COUNT // 10, 10)
def test_random_convolutions(programs: list[Any]) -> None: ...


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_recipes(case: Case) -> None:
    case.run()


@pytest.mark.skipif(not ON_GPU, reason="compares a GPU with the emulator")
@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_recipes_have_the_emulators_bits(case: Case) -> None:
    cpu = jax.devices("cpu")[0]
    inputs = case.inputs()
    with case.scope():
        f = jax.jit(case.fn)
        got, emulated = f(*inputs), f(*(jax.device_put(x, cpu) for x in inputs))
    if "attention" not in case.name and "flash" not in case.name:
        assert np.asarray(got).tobytes() == np.asarray(emulated).tobytes()


# ------------------------------------------------------------------------------------------ particular sizes and numbers


def _run(f: Callable[..., Any], *args: Any) -> np.ndarray[Any, Any]:
    def body(*refs: Any) -> None:
        refs[-1][...] = f(*(r[...] for r in refs[:-1]))

    out = jax.eval_shape(f, *args)
    with enabled():
        return np.asarray(kernel(body, like(out.shape, out.dtype))(*args))


@pytest.mark.parametrize("dtype", [jnp.float16, jnp.float32, jnp.int8])
@pytest.mark.parametrize(
    "shape",
    [(1, 1, 1), (2, 2, 2), (1, 4096, 2), (4096, 1, 3), (31, 33, 127), (129, 2, 31), (1000, 3, 5), (3, 5, 1000), (128, 128, 128)],
)
def test_sizes(shape: tuple[int, int, int], dtype: Any) -> None:
    m, n, k = shape
    rng = np.random.default_rng(m + n + k)
    x, y = (rng.integers(-8, 9, s).astype(dtype) for s in ((m, k), (k, n)))
    to = jnp.int32 if dtype == jnp.int8 else jnp.float32
    got = _run(lambda x, y: jnp.dot(x, y, preferred_element_type=to), x, y)
    # Sums of small integers are exact in all types.
    assert (got == x.astype(np.int64) @ y.astype(np.int64)).all()


@pytest.mark.parametrize("shape", [(0, 3, 4), (3, 0, 4), (3, 4, 0)])
def test_empty(shape: tuple[int, int, int]) -> None:
    m, n, k = shape
    wrapped = _run(lambda w: jnp.zeros((m, k)) @ jnp.zeros((k, n)) + w, np.ones((m or 1, n or 1), np.float32)[: m or 1, : n or 1])
    assert wrapped.shape == np.broadcast_shapes((m, n), (m or 1, n or 1)) and (wrapped == 1).all()


@pytest.mark.parametrize("precision", ["default", "highest"])
@pytest.mark.parametrize("shape", [(5, 6, 7), (16, 8, 9), (20, 3, 1)])
def test_special_numbers(shape: tuple[int, int, int], precision: str) -> None:
    """What is not finite stays in its row and column: what pads M, N and K takes no part."""
    m, n, k = shape
    x, y = np.ones((m, k), np.float32), np.ones((k, n), np.float32)
    x[1, 0], x[2, k - 1], x[3, 0], y[0, 1] = np.nan, np.inf, -np.inf, 0.0
    got = _run(lambda x, y: jnp.dot(x, y, precision=precision), x, y)
    with np.errstate(invalid="ignore"):
        expected = (x[:, :, None] * y[None]).sum(axis=1)
    assert np.array_equal(got, expected, equal_nan=True)


@pytest.mark.parametrize("room", [16, 24, 48])
@pytest.mark.parametrize(
    ("lhs", "rhs", "spec"),
    [
        ((64, 96), (96, 64), "mk,kn->mn"),
        ((12, 16, 40), (12, 40, 24), "bmk,bkn->bmn"),
        ((7, 33, 50), (7, 50, 17), "bmk,bkn->bmn"),
        ((3, 20, 130), (3, 40, 130), "bmk,bnk->bmn"),
    ],
)
def test_slices_of_k_and_of_batches(lhs: tuple[int, ...], rhs: tuple[int, ...], spec: str, room: int) -> None:
    """Where shared memory is short (so many KiB), operands are staged a slice at a time."""
    rng = np.random.default_rng(room)
    x, y = (rng.integers(-8, 9, s).astype(np.float32) for s in (lhs, rhs))

    for dtype, precision in ((jnp.float32, "highest"), (jnp.float32, None), (jnp.float16, None)):

        def body(x_ref: Any, y_ref: Any, o_ref: Any, big: Any, precision: Any = precision) -> None:
            big[0] = jnp.uint8(1)
            out = jnp.einsum(spec, x_ref[...], y_ref[...], precision=precision, preferred_element_type=jnp.float32)
            o_ref[...] = out * big[0].astype(jnp.float32)

        expected = np.einsum(spec, x, y)
        with enabled():
            scratch = plgpu.SMEM((227 * 1024 - room * 1024 - 1024,), jnp.uint8)
            got = np.asarray(kernel(body, like(expected.shape, jnp.float32), scratch)(x.astype(dtype), y.astype(dtype)))
        assert (got == expected).all()


@pytest.mark.parametrize("preset", [*lax.DotAlgorithmPreset, lax.DotAlgorithm(jnp.bfloat16, jnp.bfloat16, jnp.float32)], ids=str)
@pytest.mark.parametrize("inner", [40, 1])
def test_algorithms(preset: Any, inner: int) -> None:
    """Every preset computes, and rounds operands to what it names: integers of 9 bits and more are no bf16 any more."""
    rng = np.random.default_rng(inner)
    x, y = (rng.integers(-1000, 1000, s).astype(np.float32) for s in ((24, inner), (inner, 9)))
    name = str(getattr(preset, "name", "BF16_BF16_F32"))
    with x64(name.startswith("F64")):
        got = _run(lambda x, y: lax.dot(x, y, precision=preset), x, y)
    narrow = {"F16_F16": np.float16, "BF16_BF16": ml_dtypes.bfloat16}.get(name.rpartition("_")[0] if "X" not in name else "", np.float32)
    expected = x.astype(narrow).astype(np.float64) @ y.astype(narrow).astype(np.float64)
    assert (abs(got - expected) <= 2.0**-18 * (abs(x) @ abs(y)) + (abs(expected) * 2.0**-7 if name.endswith(("_F16", "_BF16")) else 0)).all()


_RECORDS = ROOT / "tests/numerics/data"


@pytest.mark.parametrize(
    ("name", "dtype", "to"),
    [
        ("f16_f16_f32", np.float16, np.float32),
        ("bf16_bf16_f32", ml_dtypes.bfloat16, np.float32),
        ("s8_s8_s32", np.int8, np.int32),
        ("u8_u8_s32", np.uint8, np.int32),
    ],
)
def test_one_step_has_the_tensor_cores_bits(name: str, dtype: Any, to: Any) -> None:
    """What the hardware was seen to give for 32 bytes of K and an accumulator (`tests/numerics`)."""
    records = np.fromfile(_RECORDS / f"{name}.bin", np.uint8).reshape(-1, 72)[:512]
    count = len(records)
    a, b = (np.ascontiguousarray(records[:, i : i + 32]).view(dtype).reshape(count, 1, -1) for i in (0, 32))
    c, expected = (np.ascontiguousarray(records[:, i : i + 4]).view(np.uint32).reshape(count, 1, 1) for i in (64, 68))
    a, b, c, expected = (np.broadcast_to(x, (count, 2, x.shape[2])) for x in (a, b, c, expected))
    c, expected = (np.broadcast_to(x, (count, 2, 2)) for x in (c, expected))

    def body(a_ref: Any, b_ref: Any, c_ref: Any, o_ref: Any) -> None:
        for i in range(0, count, 64):
            part = pl.ds(i, 64)
            product = lax.dot_general(a_ref[part], b_ref[part], (((2,), (2,)), ((0,), (0,))), preferred_element_type=to)
            o_ref[part] = lax.bitcast_convert_type(lax.bitcast_convert_type(c_ref[part], to) + product, jnp.uint32)

    if count % 64:
        a, b, c, expected = (x[: count // 64 * 64] for x in (a, b, c, expected))
        count = count // 64 * 64
    with enabled():
        sums = dataclasses.replace(EXACT, approx_math=True)  # the accumulator is what the product is added to
        got = np.asarray(kernel(body, like((count, 2, 2), jnp.uint32), params=sums)(*(np.array(x) for x in (a, b, c))))
    assert (got == expected).all(), f"{(got != expected).sum()} of {got.size}"


# ------------------------------------------------------------------------------------------ errors


def test_no_room_names_the_product() -> None:
    def body(x_ref: Any, o_ref: Any, big: Any) -> None:
        big[0] = jnp.uint8(1)
        x = x_ref[...]
        o_ref[...] = x @ x.T + big[0].astype(jnp.float32)

    full, x = plgpu.SMEM((226 * 1024,), jnp.uint8), np.zeros((128, 64), np.float32)
    wrong = r"(?s)at most 232448 bytes.*product of arrays of shape \[128, 128\].*plgpu.wgmma"
    with enabled(), pytest.raises(Exception, match=wrong) as caught:
        jax.block_until_ready(kernel(body, like((128, 128), jnp.float32), full)(x))
    assert "suite_products.py" in str(caught.value)


def test_an_algorithm_that_is_not_there() -> None:
    algorithm = lax.DotAlgorithm(jnp.float16, jnp.bfloat16, jnp.float32)
    x = np.zeros((8, 8), np.float16)
    with enabled(), pytest.raises(smalt.Unsupported, match=r"(?s)dot_general.*precision"):
        kernel(lambda a, o: o.__setitem__(..., lax.dot(a[...], a[...], precision=algorithm)), like((8, 8), jnp.float16))(x)


def test_a_large_window_is_refused() -> None:
    x, y = np.zeros((1, 1, 64, 64), np.float32), np.zeros((1, 1, 17, 17), np.float32)
    with pytest.raises(smalt.Unsupported, match=r"(?s)window of \(17, 17\).*at most 256 taps.*remedy"):
        _run(lambda x, y: lax.conv(x, y, (1, 1), "VALID"), x, y)


# ------------------------------------------------------------------------------------------ operands where they are


def ptx_of(f: Callable[..., Any], *args: Any) -> str:
    with enabled():
        (report,) = smalt.inspect(f, *args)
    return str(report.ptx)


def test_a_left_operand_in_registers_outlives_its_product() -> None:
    """Two products of a loop whose left operands are as many registers, and one of them is the same in all rounds: what ptxas gave the registers
    of the other (docs/FOUND.md)."""
    rounds, n = 4, 128
    rng = np.random.default_rng(0)
    x = rng.standard_normal((64, n)).astype(np.float16)
    k, v = (rng.standard_normal((rounds, n, n)).astype(np.float16) for _ in range(2))

    def body(x: Any, k: Any, v: Any, o: Any, k_tile: Any, v_tile: Any, full: Any) -> None:
        q = x[...]

        def turn(i: Any, carry: tuple[Any, Any]) -> tuple[Any, Any]:
            total, top = carry
            plgpu.copy_gmem_to_smem(k.at[i], k_tile, full)
            plgpu.copy_gmem_to_smem(v.at[i], v_tile, full)
            plgpu.barrier_wait(full)
            s = jnp.dot(q, k_tile[...].T, preferred_element_type=jnp.float32) * n**-0.5
            new = jnp.maximum(top, s.max(1))
            p, old = jnp.exp(s - new[:, None]), jnp.exp(top - new)
            return old[:, None] * total + jnp.dot(p.astype(jnp.float16), v_tile[...], preferred_element_type=jnp.float32), new

        total, _ = lax.fori_loop(0, rounds, turn, (jnp.zeros((64, n), jnp.float32), jnp.full(64, -1e30, jnp.float32)))
        o[...] = total

    tiles = [plgpu.SMEM((n, n), jnp.float16), plgpu.SMEM((n, n), jnp.float16), plgpu.Barrier(num_arrivals=2)]
    f = jax.jit(plgpu.kernel(body, out_type=like((64, n)), scratch_types=tiles))
    s = np.concatenate([x.astype(np.float32) @ tile.astype(np.float32).T for tile in k], 1) * n**-0.5
    p = np.exp(s - s.max(1, keepdims=True))
    with enabled():
        np.testing.assert_allclose(f(x, k, v), p @ v.reshape(-1, n).astype(np.float32), rtol=2e-2, atol=2e-2)
    text = ptx_of(f, x, k, v)
    assert text.count("wgmma.mma") == 16 and "%nsmid" in text  # copies that ptxas cannot look through


@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16, jnp.int8, jnp.uint8])
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("shape", [(16, 64, 128), (32, 32, 64), (16, 256, 128), (48, 128, 64), (128, 8, 128)])
def test_operands_in_shared_memory_are_read_there(shape: tuple[int, int, int], turned: bool, dtype: Any) -> None:
    """By `ldmatrix`, and nothing passes through scratch, where 8 rows of 16 bytes lie so that they meet all banks."""
    m, n, k = shape
    rng = np.random.default_rng(0)
    is_float = np.issubdtype(np.dtype(dtype), np.floating) or dtype == jnp.bfloat16
    x, y = (np.asarray(jnp.asarray(rng.standard_normal(s) if is_float else rng.integers(0, 9, s), dtype)) for s in [(m, k), (k, n) if turned else (n, k)])

    def body(x: Any, y: Any, o: Any, left: Any, right: Any, full: Any) -> None:
        plgpu.copy_gmem_to_smem(x, left, full)
        plgpu.copy_gmem_to_smem(y, right, full)
        plgpu.barrier_wait(full)
        a, b = left[...], right[...] if turned else right[...].T
        o[...] = jnp.dot(a, b, preferred_element_type=o.dtype)

    out = jnp.float32 if is_float else jnp.int32
    scratch = [plgpu.SMEM(x.shape, dtype), plgpu.SMEM(y.shape, dtype), plgpu.Barrier(num_arrivals=2)]
    f = jax.jit(plgpu.kernel(body, out_type=like((m, n), out), scratch_types=scratch))
    want = x.astype(np.float64) @ (y if turned else y.T).astype(np.float64)
    with enabled():
        np.testing.assert_allclose(np.asarray(f(x, y), np.float64), want, rtol=1e-5, atol=1e-4 if is_float else 0)
    text = ptx_of(f, x, y)
    is_narrow = np.dtype(dtype).itemsize == 1
    if m % 64 and not (turned and is_narrow):
        assert "ldmatrix" in text and "mma.sync" in text and "st.shared" not in text and "stmatrix" not in text


def test_who_may_be_overwritten_is_not_read_late() -> None:
    """Others are signalled that the operand was read before it is multiplied: it is not read where it is."""
    rng = np.random.default_rng(0)
    x, y = (rng.standard_normal(s).astype(np.float16) for s in [(16, 64), (64, 64)])

    def body(x: Any, y: Any, o: Any, left: Any, right: Any, full: Any, read: Any) -> None:
        plgpu.copy_gmem_to_smem(x, left, full)
        plgpu.copy_gmem_to_smem(y, right, full)
        plgpu.barrier_wait(full)
        a, b = left[...], right[...]
        plgpu.barrier_arrive(read)
        o[...] = jnp.dot(a, b, preferred_element_type=jnp.float32)
        plgpu.barrier_wait(read)

    scratch = [plgpu.SMEM((16, 64), jnp.float16), plgpu.SMEM((64, 64), jnp.float16), plgpu.Barrier(num_arrivals=2), plgpu.Barrier()]
    f = jax.jit(plgpu.kernel(body, out_type=like((16, 64)), scratch_types=scratch))
    with enabled():
        np.testing.assert_allclose(f(x, y), x.astype(np.float32) @ y.astype(np.float32), rtol=1e-2, atol=1e-2)
    text = ptx_of(f, x, y)
    assert "stmatrix" in text or "st.shared" in text
    # The loads may still be going on when others learn that they were made.
    assert text.index("fence.proxy.async.shared::cta") < text.index("mbarrier.arrive.shared::cta.b64 _")
