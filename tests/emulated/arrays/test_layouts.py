"""Every register layout as the operand of every kind of op: right numbers, whatever the op needs.

An operand in a layout that its op does not work in has to be converted. Taken as it lies it gives wrong numbers that no schedule of the
emulator and no checker shows: both see only registers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

import smalt
from tests.corpus.case import kernel, like, load

pytestmark = pytest.mark.shared

SHAPE = (128, 64)
L = plgpu.Layout
#: Everything that an array of this shape can be cast to. What `None` stands for is up to inference.
LAYOUTS: dict[str, Any] = {
    "inferred": None,
    "WGMMA": L.WGMMA,
    "WGMMA_8BIT": L.WGMMA_8BIT,
    "WGMMA_UPCAST_2X": L.WGMMA_UPCAST_2X,
    "WGMMA_UPCAST_4X": L.WGMMA_UPCAST_4X,
    "WGMMA_TRANSPOSED": L.WGMMA_TRANSPOSED,
    "TCGEN05": L.TCGEN05,
    "TCGEN05_TRANSPOSED": L.TCGEN05_TRANSPOSED,
    "TCGEN05_TMEM_NATIVE": L.TCGEN05_TMEM_NATIVE,
    "WG_STRIDED_1": L.WG_STRIDED(SHAPE, vec_size=1),
    "WG_STRIDED_2": L.WG_STRIDED(SHAPE, vec_size=2),
    "WG_STRIDED_8": L.WG_STRIDED(SHAPE, vec_size=8),
    "SMEM_GMEM_COPY": L.SMEM_GMEM_COPY(SHAPE, jnp.float16, 128),
}
TILED = (plgpu.TilingTransform((8, 64)), plgpu.SwizzleTransform(128))
RNG = np.random.default_rng(0)
X = RNG.standard_normal(SHAPE).astype(np.float16)
B = RNG.standard_normal((64, 64)).astype(np.float16)


def cast(x: Any, layout: Any) -> Any:
    return x if layout is None else plgpu.layout_cast(x, layout)


def other(layout: Any) -> Any:
    """A layout that is not this one."""
    return L.WG_STRIDED(SHAPE, vec_size=4) if layout is L.WGMMA else L.WGMMA


def run(body: Callable[..., None], out: Any, *inputs: np.ndarray, scratch: tuple[Any, ...] = ()) -> np.ndarray:
    with smalt.enabled(True):
        return np.asarray(jax.jit(kernel(body, out, *scratch))(*inputs))


def multiply(make: Callable[[Any], Any], start: Callable[[], Any] | None = None) -> np.ndarray:
    """`start + make(x) @ b` on the tensor core, the left operand in registers."""

    def body(x: Any, b: Any, o: Any, b_buf: Any, bar: Any) -> None:
        plgpu.copy_gmem_to_smem(b, b_buf, bar)
        plgpu.barrier_wait(bar)
        left = make(x)

        def compute(acc: Any) -> Any:
            plgpu.wgmma(acc, left, b_buf)
            return acc[...]

        def more(acc: Any) -> None:
            plgpu.wgmma(acc, left, b_buf)

        if start is None:
            o[...] = pl.run_scoped(compute, plgpu.ACC((128, 64), jnp.float32))
        else:
            o[...] = pl.run_state(more)(plgpu.ACC.init(start()))

    scratch = (plgpu.SMEM((64, 64), jnp.float16, transforms=TILED), plgpu.Barrier(num_barriers=1))
    return run(body, like((128, 64)), X, B, scratch=scratch)


def product(a: np.ndarray) -> np.ndarray:
    return a.astype(np.float32) @ B.astype(np.float32)


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_left_operand_of_wgmma(layout: Any) -> None:
    np.testing.assert_allclose(multiply(lambda x: cast(x[...], layout)), product(X), atol=1e-3)


def test_left_operand_of_wgmma_that_is_equal_everywhere() -> None:
    got = multiply(lambda x: jnp.full(SHAPE, 2.0, jnp.float16))
    np.testing.assert_allclose(got, product(np.full(SHAPE, 2.0)), atol=1e-3)
    one = plgpu.Layout.WG_SPLAT(SHAPE)
    got = multiply(lambda x: plgpu.layout_cast(jnp.full(SHAPE, 2.0, jnp.float16), one))
    np.testing.assert_allclose(got, product(np.full(SHAPE, 2.0)), atol=1e-3)


@pytest.mark.parametrize("bits", [8, 16])
def test_left_operand_of_wgmma_by_its_type(bits: int) -> None:
    """Bytes and halves have fragments of their own; a conversion between them changes layouts."""
    if bits == 16:
        got = multiply(lambda x: plgpu.layout_cast(x[...].astype(jnp.float32), L.WG_STRIDED(SHAPE, vec_size=4)).astype(jnp.float16))
        np.testing.assert_allclose(got, product(X), atol=1e-3)
        return
    x = RNG.integers(-8, 8, SHAPE, np.int8)
    b = RNG.integers(-8, 8, (64, 64), np.int8)

    def body(x: Any, b: Any, o: Any, b_buf: Any, bar: Any) -> None:
        plgpu.copy_gmem_to_smem(b, b_buf, bar)
        plgpu.barrier_wait(bar)
        left = plgpu.layout_cast(x[...], L.WGMMA)

        def compute(acc: Any) -> Any:
            plgpu.wgmma(acc, left, plgpu.transpose_ref(b_buf, (1, 0)))
            return acc[...]

        o[...] = pl.run_scoped(compute, plgpu.ACC((128, 64), jnp.int32))

    tiled = (plgpu.TilingTransform((8, 64)), plgpu.SwizzleTransform(64))
    scratch = (plgpu.SMEM((64, 64), jnp.int8, transforms=tiled), plgpu.Barrier(num_barriers=1))
    got = run(body, like((128, 64), jnp.int32), x, b, scratch=scratch)
    np.testing.assert_array_equal(got, x.astype(np.int32) @ b.astype(np.int32).T)


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_start_of_an_accumulator(layout: Any) -> None:
    def body(x: Any, b: Any, o: Any, b_buf: Any, bar: Any) -> None:
        plgpu.copy_gmem_to_smem(b, b_buf, bar)
        plgpu.barrier_wait(bar)
        start = cast(x[...].astype(jnp.float32), layout)
        left = x[...]
        o[...] = pl.run_state(lambda acc: plgpu.wgmma(acc, left, b_buf))(plgpu.ACC.init(start))

    scratch = (plgpu.SMEM((64, 64), jnp.float16, transforms=TILED), plgpu.Barrier(num_barriers=1))
    got = run(body, like((128, 64)), X, B, scratch=scratch)
    np.testing.assert_allclose(got, X + product(X), atol=1e-3)


def _fori(v: Any, layout: Any) -> Any:
    return lax.fori_loop(0, 3, lambda i, c: cast(c + v, other(layout)), v)


def _while(v: Any, layout: Any) -> Any:
    return lax.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, cast(c[1] + v, other(layout))), (jnp.int32(0), v))[1]


def _cond(v: Any, layout: Any) -> Any:
    which = v.max() < jnp.float16(1e4)
    return lax.cond(which, lambda: cast(v + 1, other(layout)), lambda: v)


def _two_carries(v: Any, layout: Any) -> Any:
    def step(_: Any, c: Any) -> Any:
        return cast(c[1], layout), cast(c[0], other(layout))

    return lax.fori_loop(0, 3, step, (v, v * 2))[0]


#: Ops on an array and its layout, and what NumPy makes of it.
OPS: dict[str, tuple[Callable[[Any, Any], Any], Callable[[np.ndarray], Any]]] = {
    "unary": (lambda v, _: -v, lambda x: -x),
    "binary": (lambda v, l: v + cast(v * 2, other(l)), lambda x: x + x * 2),
    "binary_with_iota": (
        lambda v, _: v + lax.broadcasted_iota(jnp.int32, SHAPE, 1).astype(jnp.float16),
        lambda x: x + np.arange(64, dtype=np.float16),
    ),
    "iota_in_two_layouts": (
        lambda v, l: (lambda i: cast(v, other(l)) + i + cast(cast(v, l) + i, other(l)))(lax.broadcasted_iota(jnp.float16, SHAPE, 0)),
        lambda x: (x + np.arange(128, dtype=np.float16)[:, None]) + (x + np.arange(128, dtype=np.float16)[:, None]),
    ),
    "causal_mask": (
        lambda v, _: jnp.where(
            lax.broadcasted_iota(jnp.int32, SHAPE, 0) + 3 >= lax.broadcasted_iota(jnp.int32, SHAPE, 1), v, jnp.float16(-5)
        ),
        lambda x: np.where(np.arange(128)[:, None] + 3 >= np.arange(64), x, np.float16(-5)),
    ),
    "mask_of_a_row": (
        lambda v, _: jnp.where((jnp.arange(64) % 3 == 0)[None, :], v, jnp.float16(0)),
        lambda x: np.where(np.arange(64) % 3 == 0, x, np.float16(0)),
    ),
    "compare": (lambda v, l: (v > cast(v * 2, other(l))).astype(jnp.float16), lambda x: (x > x * 2).astype(np.float16)),
    "select": (lambda v, l: jnp.where(cast(v, other(l)) > 0, v, cast(-v, other(l))), np.abs),
    "clamp": (lambda v, l: lax.clamp(cast(v * 0 - 1, other(l)), v, cast(v * 0 + 1, other(l))), lambda x: np.clip(x, -1, 1)),
    "convert": (lambda v, _: v.astype(jnp.float32), lambda x: x.astype(np.float32)),
    "bitcast": (lambda v, _: lax.bitcast_convert_type(v, jnp.int16), lambda x: x.view(np.int16)),
    "bitcast_narrower": (lambda v, _: lax.bitcast_convert_type(v, jnp.uint8), lambda x: x.view(np.uint8).reshape(128, 64, 2)),
    "reduce_rows": (lambda v, _: v.max(axis=1), lambda x: x.max(1)),
    "reduce_columns": (lambda v, _: v.max(axis=0), lambda x: x.max(0)),
    "reduce_all": (lambda v, _: jnp.broadcast_to(v.max(), (8,)), lambda x: np.full(8, x.max())),
    "reduce_and_broadcast": (lambda v, _: v - v.max(axis=1, keepdims=True), lambda x: x - x.max(1, keepdims=True)),
    "broadcast_columns": (lambda v, _: v - v.max(axis=0)[None, :], lambda x: x - x.max(0)),
    "argmax": (lambda v, _: lax.argmax(v, 1, jnp.int32), lambda x: x.argmax(1).astype(np.int32)),
    "cumulative": (lambda v, _: lax.cummax(v, axis=1), lambda x: np.maximum.accumulate(x, 1)),
    "reshape": (lambda v, _: v.reshape(64, 128), lambda x: x.reshape(64, 128)),
    "transpose": (lambda v, _: v.T, lambda x: x.T),
    "slice": (lambda v, _: v[64:], lambda x: x[64:]),
    "slice_with_stride": (lambda v, _: v[::2, ::4], lambda x: x[::2, ::4]),
    "dynamic_slice": (lambda v, _: lax.dynamic_slice(v, (jnp.int32(5), jnp.int32(0)), (64, 64)), lambda x: x[5:69]),
    "dynamic_update_slice": (
        lambda v, l: lax.dynamic_update_slice(v, cast(v * 2, other(l))[:64], (jnp.int32(7), jnp.int32(0))),
        lambda x: np.concatenate([x[:7], x[:64] * 2, x[71:]]),
    ),
    "concat": (lambda v, l: jnp.concatenate([v, cast(-v, other(l))], 1), lambda x: np.concatenate([x, -x], 1)),
    "pad": (lambda v, _: lax.pad(v, jnp.float16(1), ((0, 0, 0), (32, 32, 0))), lambda x: np.pad(x, ((0, 0), (32, 32)), constant_values=1)),
    "reverse": (lambda v, _: v[::-1], lambda x: x[::-1]),
    "fori_loop": (_fori, lambda x: x + x + x + x),
    "while_loop": (_while, lambda x: x + x + x + x),
    "cond": (_cond, lambda x: x + 1),
    "two_carries": (_two_carries, lambda x: x * 2),
    "scan": (
        lambda v, l: lax.scan(lambda c, row: (c, row * 2), jnp.int32(0), cast(v, l)[:16])[1],
        lambda x: x[:16] * 2,
    ),
    "optimization_barrier": (lambda v, _: lax.optimization_barrier((v, v * 2))[1], lambda x: x * 2),
}


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize("op", OPS)
def test_operand_of(op: str, layout: Any) -> None:
    make, reference = OPS[op]
    expected = np.asarray(reference(X))

    def body(x: Any, o: Any) -> None:
        o[...] = make(cast(x[...], layout), layout)

    got = run(body, like(expected.shape, jnp.dtype(expected.dtype)), X)
    np.testing.assert_array_equal(got, expected)


def test_conversions_are_reported() -> None:
    """`inspect` has a row for every change of layout: from, to, how, and for whose sake."""

    def body(x: Any, o: Any) -> None:
        v = plgpu.layout_cast(x[...], L.WG_STRIDED(SHAPE, vec_size=2))
        o[...] = plgpu.layout_cast(v, L.WGMMA) + plgpu.layout_cast(v, L.WGMMA) * 2

    with smalt.enabled(True):
        (report,) = smalt.inspect(kernel(body, like(SHAPE, jnp.float16)), X)
    (row,) = [row for row in report.layouts if row.what == "relayout"]
    assert "→ WGMMA" in row.choice and "bytes of shared memory" in row.choice and "cost" in row.choice
    assert row.why == "for layout_cast" and row.at and "test_layouts.py" in row.at


def test_a_mask_needs_no_conversion() -> None:
    def body(x: Any, o: Any) -> None:
        rows, columns = (lax.broadcasted_iota(jnp.int32, SHAPE, d) for d in (0, 1))
        mask = rows >= columns
        a = jnp.where(mask, plgpu.layout_cast(x[...], L.WGMMA), jnp.float16(0))
        b = jnp.where(mask, plgpu.layout_cast(x[...], L.TCGEN05), jnp.float16(0))
        o[0] = a
        o[1] = b

    with smalt.enabled(True):
        (report,) = smalt.inspect(kernel(body, like((2, *SHAPE), jnp.float16)), X)
    assert not [row for row in report.layouts if row.what == "relayout"]
    assert not [place for place in report.shared_memory if "scratch" in place.what]
    got = run(body, like((2, *SHAPE), jnp.float16), X)
    np.testing.assert_array_equal(got, np.stack([np.tril(X)] * 2))


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("parts", [2, 4])
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float16])
def test_whole_parts_stay_in_registers(dim: int, parts: int, dtype: Any) -> None:
    x = RNG.integers(-8, 8, (32, 512)).astype(dtype)
    scale = RNG.integers(-8, 8, tuple(n // parts if d == dim else n for d, n in enumerate(x.shape))).astype(dtype)
    n = x.shape[dim] // parts

    def turned(x: Any, scale: Any) -> Any:
        pieces = [lax.slice_in_dim(x, k * n, (k + 1) * n, axis=dim) for k in range(parts)]
        return jnp.concatenate([a * scale - b for a, b in zip(pieces, [*pieces[1:], pieces[0]])], axis=dim)

    def body(x: Any, scale: Any, o: Any) -> None:
        o[...] = turned(x[...], scale[...])

    with smalt.enabled(True):
        (report,) = smalt.inspect(kernel(body, like(x.shape, dtype)), x, scale)
    assert not [place for place in report.shared_memory if "scratch" in place.what]
    np.testing.assert_array_equal(run(body, like(x.shape, dtype), x, scale), turned(x, scale))


@pytest.mark.parametrize("sizes", [(8, 24), (16, 16), (5, 27), (1, 31), (12, 12, 8)])
def test_parts_of_any_size(sizes: tuple[int, ...]) -> None:
    """Of the middle dimension, in a kernel that also reduces them."""
    x = RNG.integers(-8, 8, (6, sum(sizes), 40)).astype(np.float32)
    starts = [sum(sizes[:k]) for k in range(len(sizes))]

    def swapped(x: Any) -> Any:
        pieces = [lax.slice_in_dim(x, s, s + n, axis=1) for s, n in zip(starts, sizes)]
        return jnp.concatenate([p - p.sum(axis=1, keepdims=True) for p in reversed(pieces)], axis=1)

    def body(x: Any, o: Any) -> None:
        o[...] = swapped(x[...])

    np.testing.assert_array_equal(run(body, like(x.shape), x), swapped(x))


def test_parts_that_are_constant() -> None:
    def body(x: Any, o: Any) -> None:
        o[...] = jnp.concatenate([jnp.zeros((16, 128)), jnp.ones((16, 128)), x[...]], axis=1)

    x = RNG.standard_normal((16, 128)).astype(np.float32)
    want = np.concatenate([np.zeros((16, 128)), np.ones((16, 128)), x], axis=1).astype(np.float32)
    np.testing.assert_array_equal(run(body, like((16, 384)), x), want)


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize("memory", ["plain", "tiled", "transposed", "swapped"])
def test_store_and_load(memory: str, layout: Any) -> None:
    def body(x: Any, o: Any, buf: Any) -> None:
        v = cast(x[...], layout)
        if memory == "transposed":
            buf.T[...] = v
            plgpu.commit_smem()
            o[...] = cast(buf.T[...], layout)
            return
        buf[...] = v
        plgpu.commit_smem()
        if memory == "swapped":
            buf[...] = cast(buf[...], layout) * 2
        o[...] = load(buf, layout=layout)

    shape = SHAPE[::-1] if memory == "transposed" else SHAPE
    transforms = TILED if memory == "tiled" else ()
    got = run(body, like(SHAPE, jnp.float16), X, scratch=(plgpu.SMEM(shape, jnp.float16, transforms=transforms),))
    np.testing.assert_array_equal(got, X * 2 if memory == "swapped" else X)


@pytest.mark.parametrize("tile", [(8, 32), (8, 16), (64, 8)], ids=str)
@pytest.mark.parametrize("tiled_first", [False, True], ids=["plain first", "tiled first"])
@pytest.mark.parametrize("dtype", [np.float32, np.int32])
def test_members_of_a_union_that_lie_differently(tile: tuple[int, int], tiled_first: bool, dtype: Any) -> None:
    """The same lane has the same elements of both, but not the same bytes: warps meet before memory changes its use."""

    def body(x: Any, y: Any, o: Any, p: Any, union: Any) -> None:
        first, second = union if tiled_first else union[::-1]

        @pl.loop(0, 2)
        def _(_: Any) -> None:
            first[...] = x[...]
            o[...] = first[...]
            second[...] = y[...]
            p[...] = second[...]

    union = plgpu.RefUnion(plgpu.SMEM((64, 64), dtype, transforms=(plgpu.TilingTransform(tile),)), plgpu.SMEM((64, 64), dtype))
    x = np.arange(64 * 64, dtype=dtype).reshape(64, 64)
    with smalt.enabled(True):
        got = jax.jit(kernel(body, [like(x.shape, dtype)] * 2, union))(x, -x)
    for result, given in zip(got, (x, -x), strict=True):
        np.testing.assert_array_equal(result, given)


@pytest.mark.parametrize("dtype", ["int4", "uint4", "int8", "float8_e4m3fn", "float16", "int32"])
@pytest.mark.parametrize("layout", ["WGMMA", "WGMMA_8BIT", "WGMMA_UPCAST_2X", "WGMMA_UPCAST_4X"])
def test_elements_of_any_width_between_layouts_of_tensor_cores(layout: str, dtype: str) -> None:
    """In registers, where eight of the narrowest are in a word: there and back."""
    others = [name for name in LAYOUTS if name.startswith("WGMMA") and name != layout]
    x = (RNG.integers(0, 16 if dtype == "uint4" else 8, SHAPE) - (8 if dtype == "int4" else 0) * RNG.integers(0, 2, SHAPE)).astype(jnp.dtype(dtype))

    def body(x: Any, *out: Any) -> None:
        v = plgpu.layout_cast(x[...], LAYOUTS[layout])
        for there, back, name in zip(out[::2], out[1::2], others, strict=True):
            cast = plgpu.layout_cast(v, LAYOUTS[name])
            there[...] = cast
            back[...] = plgpu.layout_cast(cast, LAYOUTS[layout])

    with smalt.enabled(True):
        results = jax.jit(kernel(body, [like(SHAPE, jnp.dtype(dtype))] * 2 * len(others)))(x)
    for k, got in enumerate(results):
        np.testing.assert_array_equal(np.asarray(got).astype(np.float32), x.astype(np.float32), f"{others[k // 2]}, {'back' if k % 2 else 'there'}")
