"""The tests of `plgpu.inline_mgpu`, for the machine that there is: the emulator, or a GPU."""

from __future__ import annotations

import math
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
from jax.experimental.mosaic import gpu as mgpu
from jax.experimental.mosaic.gpu import utils
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import arith, llvm, memref, nvvm, scf, vector

from tests.corpus.case import kernel, x64
from tests.machine import ON_GPU, enabled
from tests.suites.suite_inline_ptx import random

L = plgpu.Layout
SMEM = plgpu.SMEM
FA = mgpu.FragmentedArray
BF16 = ml_dtypes.bfloat16
SHAPE = (64, 64)


def sds(shape: Any, dtype: Any, layout: Any = None) -> Any:
    return plgpu.ShapeDtypeStruct(shape, dtype, layout=L.WG_SPLAT(shape) if layout is None else layout)


def out(shape: Any, dtype: Any) -> Any:
    return jax.ShapeDtypeStruct(shape, dtype)


def run(body: Any, out_type: Any, *args: Any, scratch: Any = (), **kwargs: Any) -> Any:
    with enabled():
        return jax.tree.map(np.asarray, jax.jit(kernel(body, out_type, *scratch, **kwargs))(*args))


def apply(f: Any, layout: Any, out_type: Any, *args: Any, out_layout: Any = None) -> Any:
    """An `inline_mgpu` function of arrays of one layout."""

    def body(*refs: Any) -> None:
        *xs, o = refs
        inline = plgpu.inline_mgpu(
            arg_types=(layout,) * len(xs), return_type=sds(out_type.shape, out_type.dtype, out_layout or layout)
        )(f)
        o[...] = inline(*(plgpu.layout_cast(x[...], layout) for x in xs))

    return run(body, out_type, *args)


def i32() -> Any:
    return ir.IntegerType.get_signless(32)


# ------------------------------------------------------------------------------------------ layouts

LAYOUTS: dict[str, tuple[Any, tuple[int, ...]]] = {
    "wgmma": (L.WGMMA, (64, 64)),
    "wgmma tall": (L.WGMMA, (192, 24)),
    "wgmma transposed": (L.WGMMA_TRANSPOSED, (64, 64)),
    "wgmma row": (L.WGMMA.reduce(1), (128,)),
    "wgmma column": (L.WGMMA.reduce(0), (64,)),
    "wgmma upcast 2x": (L.WGMMA_UPCAST_2X, (64, 64)),
    "wgmma upcast 4x": (L.WGMMA_UPCAST_4X, (64, 64)),
    "tcgen05": (L.TCGEN05, (128, 64)),
    "strided 1": (L.WG_STRIDED((8, 64), 1), (8, 64)),
    "strided 4": (L.WG_STRIDED((4, 3, 128), 4), (4, 3, 128)),
}
if hasattr(L, "WGMMA_8BIT"):
    LAYOUTS["wgmma 8 bits"] = (L.WGMMA_8BIT, (64, 64))


@pytest.mark.parametrize("name", LAYOUTS)
def test_each_register_is_the_element_that_jax_says(name: str) -> None:
    """Numbers that JAX's arithmetic of indices makes, and elements as they come, are in the same places."""
    layout, shape = LAYOUTS[name]
    x = random(shape, np.int32)

    def f(ctx: Any, x: Any) -> Any:
        registers = np.empty_like(x.registers)
        (lanes,) = ir.VectorType(x.registers.flat[0].type).shape
        for index, (place, register) in zip(x.layout.thread_idxs(x.shape), np.ndenumerate(x.registers), strict=True):
            first, parts = _flat(index, x.shape), []
            for k in range(lanes):
                element = vector.extract(register, [], ir.DenseI64ArrayAttr.get([k]))
                number = arith.addi(first, arith.constant(i32(), k * _step(x.layout, x.shape)))
                parts.append(vector.broadcast(ir.VectorType.get((1,), i32()), arith.xori(element, number)))
            registers[place] = utils.vector_concat(parts)
        return FA(_registers=registers, _layout=x.layout, _is_signed=True)

    got = apply(f, layout, out(shape, np.int32), x)
    np.testing.assert_array_equal(got, x ^ np.arange(x.size, dtype=np.int32).reshape(shape))


def _flat(index: Any, shape: Any) -> Any:
    flat = arith.constant(i32(), 0)
    for i, n in zip(index, shape):
        flat = arith.addi(arith.muli(flat, arith.constant(i32(), n)), arith.index_cast(i32(), i))
    return flat


def _step(layout: Any, shape: Any) -> int:
    """The distance, in row-major order, of neighbours in a register."""
    if isinstance(layout, mgpu.WGStridedFragLayout):
        return 1
    dense = [math.prod(shape[i + 1 :]) for i in range(len(shape))]
    return int(layout.tiling.tile_strides(tuple(dense))[layout.vector_dim])


@pytest.mark.parametrize("dtype", [np.float32, np.float16, BF16, np.int16, np.uint16, np.int32, np.uint32], ids=lambda t: np.dtype(t).name)
def test_types(dtype: Any) -> None:
    x, y = random(SHAPE, dtype), random(SHAPE, dtype, 1)
    got = apply(lambda ctx, x, y: x + y, L.WGMMA, out(SHAPE, dtype), x, y)
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(got, x + y)


def test_layouts_differ_among_arguments_and_results() -> None:
    x, row = random(SHAPE, np.float32), random((64,), np.float32, 1)

    def f(ctx: Any, x: Any, row: Any) -> Any:
        wide = row.broadcast_in_dim(x.shape, (0,), x.layout)
        return x * wide, x.reduce("add", 1), row

    def body(x: Any, row: Any, o: Any, sums: Any, same: Any) -> None:
        by_row = L.WGMMA.reduce(1)
        types = (sds(SHAPE, np.float32, L.WGMMA), sds((64,), np.float32, by_row), sds((64,), np.float32, by_row))
        inline = plgpu.inline_mgpu(arg_types=(L.WGMMA, by_row), return_type=types)(f)
        o[...], sums[...], same[...] = inline(plgpu.layout_cast(x[...], L.WGMMA), plgpu.layout_cast(row[...], by_row))

    got, sums, same = run(body, (out(SHAPE, np.float32), out((64,), np.float32), out((64,), np.float32)), x, row)
    np.testing.assert_array_equal(got, x * row[:, None])
    np.testing.assert_allclose(sums, x.astype(np.float64).sum(1), rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal(same, row)


def test_splats_and_scalars() -> None:
    """A scalar, an array of equal elements, and both as results."""
    x = random(SHAPE, np.float32)
    n = np.array([3, 5], np.int32)

    def f(ctx: Any, x: Any, n: Any, ones: Any) -> Any:
        scale = n.astype(ir.F32Type.get())
        filled = FA.splat(scale.registers.item(), x.shape, x.layout)
        return x * filled, n + 1, ones

    def body(x: Any, n: Any, o: Any, m: Any, ones: Any) -> None:
        splat = L.WG_SPLAT(SHAPE)
        types = (sds(SHAPE, np.float32, L.WGMMA), sds((), np.int32), sds(SHAPE, np.float32, splat))
        inline = plgpu.inline_mgpu(arg_types=(L.WGMMA, L.WG_SPLAT(()), splat), return_type=types)(f)
        y, k, one = inline(plgpu.layout_cast(x[...], L.WGMMA), n[1], jnp.full(SHAPE, 2.5, jnp.float32))
        o[...] = y
        m[0] = k
        ones[...] = plgpu.layout_cast(one, L.WGMMA)

    got, m, ones = run(body, (out(SHAPE, np.float32), out((1,), np.int32), out(SHAPE, np.float32)), x, n)
    np.testing.assert_array_equal(got, x * np.float32(5))
    assert m.tolist() == [6] and (ones == 2.5).all()


def test_what_is_not_returned_in_its_layout_is_cast_outside() -> None:
    """The array that goes in has another layout, and so has what becomes of the result."""
    x = random(SHAPE, np.float32)

    def body(x: Any, o: Any) -> None:
        f = plgpu.inline_mgpu(arg_types=(L.WGMMA,), return_type=sds(SHAPE, np.float32, L.WGMMA))(lambda ctx, x: x + x)
        y = plgpu.layout_cast(plgpu.layout_cast(x[...], L.WG_STRIDED(SHAPE, 2)) * 3, L.WGMMA)
        o[...] = plgpu.layout_cast(f(y), L.WG_STRIDED(SHAPE, 4)) + 1

    np.testing.assert_array_equal(run(body, out(SHAPE, np.float32), x), x * 3 * 2 + 1)


# ------------------------------------------------------------------------------------------ arithmetic


def of_registers(f: Callable[..., Any]) -> Callable[..., Any]:
    """A function of the registers of arrays, which are vectors, as one of the arrays."""

    def g(ctx: Any, x: Any, *others: Any) -> Any:
        registers = np.empty_like(x.registers)
        for at, v in np.ndenumerate(x.registers):
            registers[at] = f(v, *(other.registers[at] for other in others))
        return FA(_registers=registers, _layout=x.layout, _is_signed=x.is_signed)

    return g


def _shifted(x: Any, y: Any) -> Any:
    seven = ir.IntegerAttr.get(ir.VectorType(y.type).element_type, 7)
    few = arith.andi(y, arith.constant(y.type, ir.DenseElementsAttr.get_splat(y.type, seven)))
    return arith.xori(arith.shli(x, few), arith.xori(arith.shrsi(x, few), arith.shrui(x, few)))


#: Of MLIR itself: what is narrow is not extended before, and has what it has above.
NARROW: dict[str, tuple[Any, Any]] = {
    "sums": (lambda x, y: arith.subi(arith.muli(x, y), arith.addi(x, y)), lambda x, y: x * y - (x + y)),
    "signed": (lambda x, y: arith.maxsi(arith.minsi(arith.muli(x, y), y), x), lambda x, y: np.maximum(np.minimum(x * y, y), x)),
    "unsigned": (
        lambda x, y: arith.maxui(arith.minui(arith.addi(x, y), y), arith.muli(x, x)),
        lambda x, y: np.maximum(np.minimum((x + y).view(np.uint8), y.view(np.uint8)), (x * x).view(np.uint8)).view(np.int8),
    ),
    "shifts": (_shifted, lambda x, y: (x << (y & 7)) ^ (x >> (y & 7)) ^ (x.view(np.uint8) >> (y & 7).view(np.uint8)).view(np.int8)),
    "compare": (
        lambda x, y: arith.select(arith.cmpi(arith.CmpIPredicate.slt, arith.addi(x, y), y), x, arith.select(arith.cmpi(arith.CmpIPredicate.uge, x, y), y, arith.addi(x, x))),
        lambda x, y: np.where(x + y < y, x, np.where(x.view(np.uint8) >= y.view(np.uint8), y, x + x)),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", NARROW)
def test_bytes(name: str) -> None:
    f, reference = NARROW[name]
    x, y = random(SHAPE, np.int8), random(SHAPE, np.int8, 1)
    got = apply(of_registers(f), L.WGMMA, out(SHAPE, np.int8), x, y)
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(got, reference(x, y))


INT_OPS: dict[str, tuple[Any, Any]] = {
    "mul": (lambda x, y: x * y, lambda x, y: x * y),
    "and or xor not": (lambda x, y: (x & y) | ~(x ^ y), lambda x, y: (x & y) | ~(x ^ y)),
    "floor division": (lambda x, y: x // (y | 1), lambda x, y: x // (y | 1)),
    "min max": (lambda x, y: x.min(y) - x.max(y), lambda x, y: np.minimum(x, y) - np.maximum(x, y)),
    "shifts": (lambda x, y: (x << (y & 3)) ^ (x >> (y & 3)), lambda x, y: (x << (y & 3)) ^ (x >> (y & 3))),
    "remainder": (lambda x, y: (x & 31) % ((y & 7) | 1), lambda x, y: (x & 31) % ((y & 7) | 1)),
    "select": (lambda x, y: ((x < y) | (x == y)).select(x, y), lambda x, y: np.where(x <= y, x, y)),
}


@pytest.mark.parametrize("dtype", [np.int16, np.int32, np.uint32], ids=lambda t: np.dtype(t).name)
@pytest.mark.parametrize("name", INT_OPS)
def test_integers(name: str, dtype: Any) -> None:
    f, reference = INT_OPS[name]
    x, y = random(SHAPE, dtype), random(SHAPE, dtype, 1)
    if name == "shifts" and not hasattr(FA, "__lshift__"):
        pytest.skip("FragmentedArray has no shifts in this version")
    got = apply(lambda ctx, x, y: f(x, y), L.WGMMA, out(SHAPE, dtype), x, y)
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(got, reference(x, y).astype(dtype))


FLOAT_OPS: dict[str, tuple[Any, Any]] = {
    "arithmetic": (lambda x, y: (x - y) * x, lambda x, y: (x - y) * x),
    "division": (lambda x, y: x / y, lambda x, y: x / y),
    "min max": (lambda x, y: x.max(y) - x.min(y), lambda x, y: np.maximum(x, y) - np.minimum(x, y)),
    "negative": (lambda x, y: -x + abs_of(y), lambda x, y: -x + np.abs(y)),
    "select": (lambda x, y: (x > y).select(x, -y), lambda x, y: np.where(x > y, x, -y)),
}


def abs_of(x: Any) -> Any:
    return x.abs() if hasattr(x, "abs") else (x < 0.0).select(-x, x)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, BF16], ids=lambda t: np.dtype(t).name)
@pytest.mark.parametrize("name", FLOAT_OPS)
def test_floats(name: str, dtype: Any) -> None:
    f, reference = FLOAT_OPS[name]
    x, y = random(SHAPE, dtype), random(SHAPE, dtype, 1)
    got = apply(lambda ctx, x, y: f(x, y), L.WGMMA, out(SHAPE, dtype), x, y)
    np.testing.assert_array_equal(got, reference(x, y))


FUNCTIONS: dict[str, tuple[Any, Any, float]] = {
    "exp": (lambda x: x.exp(), np.exp, 3e-7),
    "exp approx": (lambda x: x.exp(approx=True), np.exp, 2e-6),
    "exp2": (lambda x: x.exp2() if hasattr(x, "exp2") else (x * math.log(2)).exp(), np.exp2, 2e-6),
    "log": (lambda x: (x * x).log(), lambda x: np.log(x * x), 4e-7),
    "rsqrt": (lambda x: (x * x).rsqrt(), lambda x: 1 / np.abs(x), 3e-7),
    "tanh approx": (lambda x: x.tanh(approx=True), np.tanh, 6e-4),
    "sin approx": (lambda x: x.sin(approx=True), np.sin, 2e-6),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions(name: str) -> None:
    f, reference, tolerance = FUNCTIONS[name]
    x = random(SHAPE, np.float32) * (20 if name in ("exp", "log") else 1)
    if name in ("exp", "log"):
        x[0, :8] = [0, -0.0, 88.7, -87.4, -103.9, 1e-20, 1.0, 90]
    got = apply(lambda ctx, x: f(x), L.WGMMA, out(SHAPE, np.float32), x)
    with np.errstate(divide="ignore", over="ignore"):
        expected = reference(x.astype(np.float64) if name != "log" else (x * x).astype(np.float64) ** 0.5)
    np.testing.assert_allclose(got, expected.astype(np.float32), rtol=tolerance, atol=tolerance if name.endswith("approx") else 1e-37)


@pytest.mark.parametrize(
    ("source", "to"),
    [
        (np.float32, np.float16), (np.float32, BF16), (np.float16, np.float32), (BF16, np.float32), (np.float32, np.int32), (np.int32, np.float32),
        (np.int8, np.int32), (np.uint8, np.int32), (np.int32, np.int8), (np.int8, BF16), (np.int8, np.float16), (np.int16, np.float32), (np.uint32, np.float32),
        (np.float32, np.int8), (np.float16, BF16), (np.float32, ml_dtypes.float8_e4m3fn), (ml_dtypes.float8_e4m3fn, np.float16), (np.float32, ml_dtypes.float8_e5m2),
    ],
    ids=lambda t: np.dtype(t).name,
)  # fmt: skip
def test_conversions(source: Any, to: Any) -> None:
    x = random(SHAPE, source) if source != ml_dtypes.float8_e4m3fn else random(SHAPE, np.float32).astype(source)
    if np.issubdtype(to, np.integer) and not np.issubdtype(source, np.integer):
        x = (x * 20).astype(source)
    signed = {"is_signed": not np.issubdtype(to, np.unsignedinteger)} if np.issubdtype(to, np.integer) else {}

    def f(ctx: Any, x: Any) -> Any:
        return x.astype(utils.dtype_to_ir_type(jnp.dtype(to)), **signed)

    got = apply(f, L.WGMMA, out(SHAPE, to), x)
    expected = x.astype(np.float32).astype(to) if np.issubdtype(to, np.floating) or not np.issubdtype(source, np.integer) else x.astype(to)
    np.testing.assert_array_equal(got.astype(np.float32), expected.astype(np.float32))


@pytest.mark.parametrize("to", [BF16, np.float16, np.int8, np.int32, np.float32], ids=lambda t: np.dtype(t).name)
@pytest.mark.parametrize("layout", ["wgmma upcast 2x", "wgmma upcast 4x"])
@pytest.mark.parametrize("source", [jnp.int4, jnp.uint4], ids=["int4", "uint4"])
def test_four_bits(source: Any, layout: str, to: Any) -> None:
    """The conversions that JAX has for products of mixed types."""
    place, shape = LAYOUTS[layout]
    x = random(shape, np.int8) & 15 if source == jnp.uint4 else random(shape, np.int8) >> 4
    signed = {"is_signed": True} if np.issubdtype(to, np.integer) else {}

    def body(x: Any, o: Any) -> None:
        inline = plgpu.inline_mgpu(arg_types=(place,), return_type=sds(shape, to, place))
        convert = inline(lambda ctx, x: x.astype(utils.dtype_to_ir_type(jnp.dtype(to)), **signed))
        o[...] = convert(plgpu.layout_cast(x[...].astype(source), place))

    np.testing.assert_array_equal(run(body, out(shape, to), x).astype(np.float32), x.astype(np.float32))


@pytest.mark.parametrize(("source", "to"), [("wgmma", "wgmma transposed"), ("wgmma transposed", "wgmma"), ("wgmma upcast 2x", "wgmma")])
def test_changes_of_layouts_in_the_function(source: str, to: str) -> None:
    (source_layout, shape), (to_layout, _) = LAYOUTS[source], LAYOUTS[to]
    x = random(shape, np.float16)
    got = apply(lambda ctx, x: x.to_layout(to_layout.to_mgpu()), source_layout, out(shape, np.float16), x, out_layout=to_layout)
    np.testing.assert_array_equal(got, x)


def test_booleans_go_in_and_out() -> None:
    x = random(SHAPE, np.int32)

    def body(x: Any, o: Any) -> None:
        f = plgpu.inline_mgpu(arg_types=(L.WGMMA,), return_type=sds(SHAPE, np.bool_, L.WGMMA))(lambda ctx, b: ~b)
        o[...] = jnp.where(f(plgpu.layout_cast(x[...] > 0, L.WGMMA)), 1, 2)

    np.testing.assert_array_equal(run(body, out(SHAPE, np.int32), x), np.where(x > 0, 2, 1))


# ------------------------------------------------------------------------------------------ memory


@pytest.mark.parametrize("swizzle", [32, 64, 128])
@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.int8], ids=lambda t: np.dtype(t).name)
def test_tiled_memory(dtype: Any, swizzle: int) -> None:
    """As JAX's own documentation has it: a tiled and swizzled buffer is loaded, and another one stored."""
    minor = swizzle // np.dtype(dtype).itemsize
    transforms = (plgpu.TilingTransform((8, minor)), plgpu.SwizzleTransform(swizzle))
    shape = (64, 128)
    x = random(shape, dtype)

    def body(x: Any, o: Any, a: Any, b: Any, bar: Any) -> None:
        @plgpu.inline_mgpu(arg_types=(plgpu.RefType(transforms),), return_type=sds(shape, dtype, L.WGMMA))
        def load(ctx: Any, ref: Any) -> Any:
            assert tuple(ir.MemRefType(ref.type).shape) == (8, 128 // minor, 8, minor)
            return FA.load_tiled(ref, swizzle, is_signed=utils.is_signed(jnp.dtype(dtype)), layout=mgpu.WGMMA_LAYOUT)

        @plgpu.inline_mgpu(arg_types=(L.WGMMA, plgpu.RefType(transforms)))
        def store(ctx: Any, x: Any, ref: Any) -> None:
            x.store_tiled(ref, swizzle)

        plgpu.copy_gmem_to_smem(x, a, bar)
        plgpu.barrier_wait(bar)
        store(load(a), b)
        plgpu.commit_smem()
        plgpu.copy_smem_to_gmem(b, o)
        plgpu.wait_smem_to_gmem(0)

    buffer = SMEM(shape, dtype, transforms=transforms)
    np.testing.assert_array_equal(run(body, out(shape, dtype), x, scratch=(buffer, buffer, plgpu.Barrier())), x)


def tiles(swizzle: int) -> tuple[Any, ...]:
    """Those of f32 in which eight rows repeat the swizzle's pattern."""
    return plgpu.TilingTransform((8, swizzle // 4)), plgpu.SwizzleTransform(swizzle)


def loads_tiled(swizzle: int, named: Any = None) -> Any:
    """A function that loads a matrix of f32 as `named` says that it lies, `tiles(swizzle)` if nothing is said."""

    @plgpu.inline_mgpu(arg_types=(plgpu.RefType(named or tiles(swizzle)),), return_type=sds(SHAPE, np.float32, L.WGMMA))
    def load(ctx: Any, ref: Any) -> Any:
        return FA.load_tiled(ref, swizzle, layout=mgpu.WGMMA_LAYOUT)

    return load


WARPGROUP = plgpu.CompilerParams(lowering_semantics=plgpu.LoweringSemantics.Warpgroup)


@pytest.mark.parametrize("union", [False, True], ids=["buffers", "members of unions"])
@pytest.mark.parametrize("swizzles", [(128, 64), (32, 128), (64, 64)], ids=str)
def test_transforms_that_functions_name(swizzles: tuple[int, int], union: bool) -> None:
    """Under Warpgroup semantics buffers without transforms lie as the functions say that take them, each in its own way."""
    x = random((3, *SHAPE), np.float32)

    def body(x: Any, o: Any, first: Any, second: Any, slots: Any, bar: Any) -> None:
        if union:
            (first, _), (second, _) = first, second
        plgpu.copy_gmem_to_smem(x.at[0], first, bar)
        plgpu.barrier_wait(bar)
        second[...] = x[1]
        slots[1] = x[2]
        plgpu.commit_smem()
        loads = [loads_tiled(swizzle) for swizzle in swizzles]
        o[...] = loads[0](first) + 2 * loads[1](second) + 4 * loads[0](slots.at[pl.ds(0, 2)].at[1])

    buffer = SMEM(SHAPE, np.float32)
    place = plgpu.RefUnion(buffer, SMEM((8, 128), np.float32)) if union else buffer
    scratch = (place, place, SMEM((2, *SHAPE), np.float32), plgpu.Barrier())
    got = run(body, out(SHAPE, np.float32), x, scratch=scratch, params=WARPGROUP)
    np.testing.assert_allclose(got, x[0] + 2 * x[1] + 4 * x[2], rtol=1e-6, atol=1e-5)


def test_functions_that_name_different_transforms() -> None:
    """A buffer lies in one way."""

    def body(x: Any, o: Any, buffer: Any) -> None:
        buffer[...] = x[...]
        plgpu.commit_smem()
        o[...] = loads_tiled(128)(buffer) + loads_tiled(64)(buffer)

    with pytest.raises(smalt.Unsupported) as e:
        run(body, out(SHAPE, np.float32), random(SHAPE, np.float32), scratch=(SMEM(SHAPE, np.float32),), params=WARPGROUP)
    assert "as the buffer is: tiles of [8, 32], swizzle 128" in str(e.value)
    assert "got: tiles of [8, 16], swizzle 64" in str(e.value) and "suite_inline_mgpu.py" in str(e.value)


def test_slots_of_a_tiled_buffer() -> None:
    """A slot that is computed, and rows of whole tiles."""
    transforms = (plgpu.TilingTransform((8, 32)), plgpu.SwizzleTransform(128))
    x = random((3, 128, 64), np.float32)

    def body(x: Any, o: Any, buffer: Any) -> None:
        @plgpu.inline_mgpu(arg_types=(plgpu.RefType(transforms),), return_type=sds(SHAPE, np.float32, L.WGMMA))
        def load(ctx: Any, ref: Any) -> Any:
            return FA.load_tiled(ref, 128, layout=mgpu.WGMMA_LAYOUT)

        for i in range(3):
            buffer[i] = x[i]
        plgpu.commit_smem()

        @pl.loop(0, 3)
        def slot(i: Any) -> None:
            o[i] = load(buffer.at[i, pl.ds(64, 64)])

    got = run(body, out((3, 64, 64), np.float32), x, scratch=(SMEM((3, 128, 64), np.float32, transforms=transforms),))
    np.testing.assert_array_equal(got, x[:, 64:])


def test_device_memory_and_scratch_by_address() -> None:
    x = random((4, 64, 64), np.float32)

    def body(x: Any, o: Any, buffer: Any) -> None:
        layout = L.WG_STRIDED(SHAPE, 2)

        @plgpu.inline_mgpu(arg_types=(plgpu.RefType(), plgpu.RefType()), return_type=sds(SHAPE, np.float32, layout))
        def through(ctx: Any, source: Any, buffer: Any) -> Any:
            assert tuple(ir.MemRefType(source.type).shape) == SHAPE
            FA.load_strided(source, vec_size=4).store_untiled(buffer)
            utils.warpgroup_barrier()
            return FA.load_strided(buffer, vec_size=2)

        @plgpu.inline_mgpu(arg_types=(layout, plgpu.RefType()))
        def store(ctx: Any, x: Any, to: Any) -> None:
            x.store_untiled(to, optimized=False)

        @pl.loop(0, 2)
        def one(i: Any) -> None:
            store(through(x.at[i + 1], buffer) * 2, o.at[i])

    np.testing.assert_array_equal(run(body, out((2, 64, 64), np.float32), x, scratch=(SMEM(SHAPE, np.float32),)), x[1:3] * 2)


def test_memref_operations() -> None:
    """Slices, transposes and reshapes of memrefs; elements loaded and stored one by one."""
    x = random((16, 128), np.int32)

    def body(x: Any, o: Any, buffer: Any) -> None:
        @plgpu.inline_mgpu(arg_types=(plgpu.RefType(), plgpu.RefType(), L.WG_SPLAT(())))
        def move(ctx: Any, buffer: Any, to: Any, row: Any) -> None:
            index = ir.IndexType.get()
            column = arith.remui(arith.index_cast(index, utils.thread_idx()), arith.constant(index, 128))
            at = arith.index_cast(index, row.registers.item())
            part = utils.memref_slice(buffer, (utils.DynamicSlice(at, 4),))
            turned = utils.memref_transpose(part, (1, 0))
            for i in range(4):
                element = memref.load(turned, [column, arith.constant(index, i)])
                flat = utils.memref_fold(utils.memref_slice(to, (slice(0, 4),)), 0, 2)
                place = arith.addi(arith.muli(arith.constant(index, i), arith.constant(index, 128)), column)
                memref.store(arith.addi(element, arith.constant(i32(), i)), flat, [place])

        buffer[...] = x[...]
        move(buffer, o, x[0, 0] * 0 + 8)
        o[pl.ds(4, 12)] = x[pl.ds(4, 12)]

    got = run(body, out((16, 128), np.int32), x, scratch=(SMEM((16, 128), np.int32),))
    expected = x.copy()
    expected[:4] = x[8:12] + np.arange(4, dtype=np.int32)[:, None]
    np.testing.assert_array_equal(got, expected)


def test_shapes_of_memrefs_and_members_of_unions() -> None:
    x = random(SHAPE, np.float32)

    def body(x: Any, o: Any, union: Any) -> None:
        member, _ = union

        @plgpu.inline_mgpu(arg_types=(plgpu.RefType(), plgpu.RefType()))
        def f(ctx: Any, buffer: Any, o: Any) -> None:
            parts = utils.memref_fold(utils.memref_unfold(buffer, 0, (4, 16)), 1, 2)
            whole = utils.memref_slice(utils.memref_unsqueeze(utils.memref_reshape(parts, SHAPE), 0), 0)
            FA.load_strided(whole, vec_size=2).store_untiled(o)

        member[...] = x[...]
        f(member, o)

    union = plgpu.RefUnion(SMEM(SHAPE, np.float32), SMEM((128, 64), np.float16))
    np.testing.assert_array_equal(run(body, out(SHAPE, np.float32), x, scratch=(union,)), x)


def test_a_product_goes_on_in_a_function() -> None:
    a = random(SHAPE, np.float16)
    transforms = (plgpu.TilingTransform((8, 64)), plgpu.SwizzleTransform(128))

    def body(a: Any, o: Any, buffer: Any) -> None:
        def multiply(acc: Any) -> Any:
            plgpu.wgmma(acc, buffer, buffer)
            return acc[...]

        buffer[...] = a[...]
        plgpu.commit_smem()
        product = pl.run_scoped(multiply, plgpu.ACC(SHAPE, jnp.float32))
        f = plgpu.inline_mgpu(arg_types=(L.WGMMA,), return_type=sds(SHAPE, np.float32, L.WGMMA))(lambda ctx, x: x * 2.0)
        o[...] = f(product)

    wide = a.astype(np.float32)
    np.testing.assert_allclose(run(body, out(SHAPE, np.float32), a, scratch=(SMEM(SHAPE, np.float16, transforms=transforms),)), 2 * (wide @ wide), rtol=1e-2, atol=1e-2)


@pytest.mark.skipif(ON_GPU, reason="the emulator's checker reports it")
def test_a_missing_barrier_is_told() -> None:
    def body(x: Any, o: Any, buffer: Any) -> None:
        narrow, wide = L.WG_STRIDED(SHAPE, 2), L.WG_STRIDED(SHAPE, 4)

        @plgpu.inline_mgpu(arg_types=(narrow, plgpu.RefType()), return_type=sds(SHAPE, np.float32, wide))
        def f(ctx: Any, x: Any, buffer: Any) -> Any:
            x.store_untiled(buffer)
            return FA.load_strided(buffer, vec_size=4)

        o[...] = f(plgpu.layout_cast(x[...], narrow), buffer)

    with pytest.raises(jax.errors.JaxRuntimeError, match="nothing orders the two"):
        run(body, out(SHAPE, np.float32), random(SHAPE, np.float32), scratch=(SMEM(SHAPE, np.float32),))


def test_pipelined_blocks() -> None:
    """References that `emit_pipeline` hands on."""
    transforms = (plgpu.TilingTransform((8, 32)), plgpu.SwizzleTransform(128))
    x = random((256, 64), np.float32)

    def body(x: Any, o: Any) -> None:
        def step(_: Any, x: Any, o: Any) -> None:
            @plgpu.inline_mgpu(arg_types=(plgpu.RefType(transforms), plgpu.RefType(transforms)))
            def double(ctx: Any, x: Any, o: Any) -> None:
                y = FA.load_tiled(x, 128, layout=mgpu.WGMMA_LAYOUT)
                (y + y).store_tiled(o, 128)

            double(x, o)

        spec = plgpu.BlockSpec((64, 64), lambda i: (i, 0), transforms=transforms)
        plgpu.emit_pipeline(step, grid=(4,), in_specs=[spec], out_specs=[spec], max_concurrent_steps=2)(x, o)

    np.testing.assert_array_equal(run(body, out((256, 64), np.float32), x), x + x)


# ------------------------------------------------------------------------------------------ lanes and reductions


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("op", ["add", "max"])
def test_reductions(op: str, axis: int) -> None:
    """By shuffles; over warps by way of shared memory, of which the function gets some."""
    x = random(SHAPE, np.float32)

    def f(ctx: Any, x: Any, scratch: Any) -> Any:
        return x.reduce(op, axis, scratch) if axis == 0 else x.reduce(op, axis)

    def body(x: Any, o: Any, scratch: Any) -> None:
        layout = L.WGMMA.reduce(axis)
        inline = plgpu.inline_mgpu(arg_types=(L.WGMMA, plgpu.RefType()), return_type=sds((64,), np.float32, layout))(f)
        o[...] = inline(plgpu.layout_cast(x[...], L.WGMMA), scratch)

    got = run(body, out((64,), np.float32), x, scratch=(SMEM((1024,), np.float32),))
    expected = x.astype(np.float64).sum(axis) if op == "add" else x.max(axis)
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)


def test_shuffles_and_votes() -> None:
    x = random((4, 128), np.int32)

    def f(v: Any) -> Any:
        everyone = arith.constant(i32(), -1)
        element = vector.extract(v, [], ir.DenseI64ArrayAttr.get([0]))
        other = utils.shfl_bfly(element, 3)
        positive = arith.cmpi(arith.CmpIPredicate.sgt, element, arith.constant(i32(), 0))
        asm = "{ .reg .pred p; vote.sync.any.pred p, $1, 0xffffffff; selp.b32 $0, 1, 0, p; }"
        some = llvm.inline_asm(i32(), [positive], asm, "=r,b", has_side_effects=True)
        whole = utils.redux(element, everyone, nvvm.ReductionKind.ADD)
        return vector.broadcast(v.type, arith.addi(arith.addi(other, whole), some))

    got = apply(of_registers(f), L.WG_STRIDED((4, 128), 1), out((4, 128), np.int32), x)
    with np.errstate(over="ignore"):
        warps = x.reshape(4, 4, 32)
        other = warps[..., np.arange(32) ^ 3]
        expected = other + warps.sum(-1, keepdims=True, dtype=np.int32) + (warps > 0).any(-1, keepdims=True)
    np.testing.assert_array_equal(got, expected.reshape(4, 128))


def test_scalars_that_nothing_shows_to_be_equal() -> None:
    """A reduction over the warpgroup, an element of memory, as a scalar and as an array; of what differs, the first thread's."""
    x = random((128,), np.float32)

    def body(x: Any, o: Any, p: Any, q: Any, buffer: Any, scratch: Any) -> None:
        row = L.WG_STRIDED((128,), 1)

        @plgpu.inline_mgpu(arg_types=(row, plgpu.RefType(), plgpu.RefType()), return_type=(sds((), np.float32), sds((128,), np.float32), sds((), np.int32)))
        def f(ctx: Any, x: Any, buffer: Any, scratch: Any) -> Any:
            third = memref.load(buffer, [arith.constant(ir.IndexType.get(), 3)])
            thread = arith.addi(utils.thread_idx(), arith.constant(i32(), 7))
            return x.reduce("max", 0, scratch), FA.splat(third, (128,)), FA.splat(thread, (), is_signed=True)

        buffer[...] = x[...]
        most, third, seven = f(plgpu.layout_cast(x[...], row), buffer, scratch)
        o[...] = x[...] - most
        p[...] = plgpu.layout_cast(third, row)

        @pl.when(seven == 7)
        def all_threads() -> None:
            q[...] = x[...] + buffer[...]

    types = (out((128,), np.float32),) * 3
    got, third, double = run(body, types, x, scratch=(SMEM((128,), np.float32), SMEM((128,), np.float32)))
    np.testing.assert_array_equal(got, x - x.max())
    assert (third == x[3]).all()
    np.testing.assert_array_equal(double, x + x)


def test_64_bits() -> None:
    with x64(True):
        rng = np.random.default_rng(0)
        x, y = (rng.integers(-(2**62), 2**62, SHAPE) for _ in range(2))
        got = apply(lambda ctx, x, y: (((x * y) + (x - y)).max(y) ^ (x & y)) + x // 3 + x // -7, L.WGMMA, out(SHAPE, np.int64), x, y)
        np.testing.assert_array_equal(got, (np.maximum(x * y + (x - y), y) ^ (x & y)) + x // 3 + x // -7)
        got = apply(lambda ctx, x: x.astype(ir.F32Type.get()), L.WGMMA, out(SHAPE, np.float32), x)
        np.testing.assert_array_equal(got, x.astype(np.float32))
        a = rng.standard_normal(SHAPE)
        np.testing.assert_array_equal(apply(lambda ctx, a: (a * a - a) / (a + 9.0), L.WGMMA, out(SHAPE, np.float64), a), (a * a - a) / (a + 9.0))


def test_bounds_of_loops_that_are_computed() -> None:
    x, n = random((128,), np.float32), np.array([5], np.int32)

    def body(x: Any, n: Any, o: Any) -> None:
        row = L.WG_STRIDED((128,), 1)

        @plgpu.inline_mgpu(arg_types=(row, L.WG_SPLAT(())), return_type=sds((128,), np.float32, row))
        def f(ctx: Any, x: Any, n: Any) -> Any:
            return utils.fori(n.registers.item(), x)(lambda i, x: x + 1.0).result

        y = plgpu.layout_cast(x[...], row)
        o[...] = f(y, n[0]) + f(y, n[0] - 7)

    expected = x
    for _ in range(5):
        expected = expected + np.float32(1)
    np.testing.assert_array_equal(run(body, out((128,), np.float32), x, n), expected + x)


def test_pointers() -> None:
    """LLVM's loads, and an address as an operand of assembly that ends with a comment."""
    x = random((128,), np.float32)

    def body(x: Any, o: Any) -> None:
        @plgpu.inline_mgpu(arg_types=(plgpu.RefType(), plgpu.RefType()))
        def f(ctx: Any, x: Any, o: Any) -> None:
            f32 = ir.F32Type.get()
            source, to = (utils.getelementptr(utils.memref_ptr(r), [utils.thread_idx()], f32) for r in (x, o))
            asm = "st.global.f32 [$0], $1; // done"
            llvm.inline_asm(ir.Type.parse("!llvm.void"), [to, llvm.load(f32, source)], asm, "l,f", has_side_effects=True)

        f(x, o)

    np.testing.assert_array_equal(run(body, out((128,), np.float32), x), x)


def test_a_conditional_of_a_warpgroup_holds_a_barrier() -> None:
    x = random((128,), np.float32)

    def body(x: Any, o: Any, buffer: Any) -> None:
        row = L.WG_STRIDED((128,), 1)

        @plgpu.inline_mgpu(arg_types=(row, plgpu.RefType()), return_type=sds((128,), np.float32, row))
        def f(ctx: Any, x: Any, buffer: Any) -> Any:
            with utils.when(arith.cmpi(arith.CmpIPredicate.eq, utils.warpgroup_idx(), arith.constant(i32(), 0))):
                x.store_untiled(buffer)
                utils.warpgroup_barrier()
            return FA.load_strided(buffer, vec_size=1)

        o[...] = f(plgpu.layout_cast(x[...], row), buffer)

    np.testing.assert_array_equal(run(body, out((128,), np.float32), x, scratch=(SMEM((128,), np.float32),)), x)


def test_one_thread_stores() -> None:
    """Predicates of single threads, and a conditional of what one thread does."""
    x = random((128,), np.int32)

    def body(x: Any, o: Any) -> None:
        @plgpu.inline_mgpu(arg_types=(L.WG_STRIDED((128,), 1), plgpu.RefType()))
        def f(ctx: Any, x: Any, o: Any) -> None:
            index = ir.IndexType.get()
            (v,) = x.registers.flat
            element = vector.extract(v, [], ir.DenseI64ArrayAttr.get([0]))
            thread = utils.thread_idx()
            with utils.when(arith.cmpi(arith.CmpIPredicate.ult, thread, arith.constant(i32(), 100))):
                memref.store(element, o, [arith.index_cast(index, thread)])
            with utils.single_thread(scope=utils.ThreadSubset.WARPGROUP):
                memref.store(arith.constant(i32(), 77), o, [arith.constant(index, 127)])

        o[...] = jnp.zeros((128,), jnp.int32)
        f(plgpu.layout_cast(x[...], L.WG_STRIDED((128,), 1)), o)

    got = run(body, out((128,), np.int32), x)
    np.testing.assert_array_equal(got[:100], x[:100])
    assert not got[100:127].any() and got[127] == 77


# ------------------------------------------------------------------------------------------ control


def test_loops_and_conditionals() -> None:
    """A counted loop that carries an array, one until a condition holds in each lane, and a conditional with results."""
    x = random((128,), np.int32) & 0xFFF

    def f(ctx: Any, x: Any) -> Any:
        @utils.fori(arith.constant(i32(), 5), x)
        def five(i: Any, x: Any) -> Any:
            return x + FA.splat(i, x.shape, x.layout, is_signed=True)

        (v,) = five.result.registers.flat
        element = vector.extract(v, [], ir.DenseI64ArrayAttr.get([0]))
        loop = scf.WhileOp([i32(), i32()], [element, arith.constant(i32(), 0)])
        before = loop.before.blocks.append(i32(), i32())
        with ir.InsertionPoint(before):
            many = arith.cmpi(arith.CmpIPredicate.sgt, before.arguments[0], arith.constant(i32(), 1))
            scf.condition(many, list(before.arguments))
        after = loop.after.blocks.append(i32(), i32())
        with ir.InsertionPoint(after):
            number, steps = after.arguments
            odd = arith.cmpi(arith.CmpIPredicate.ne, arith.andi(number, arith.constant(i32(), 1)), arith.constant(i32(), 0))
            fork = scf.IfOp(odd, [i32()], has_else=True)
            with ir.InsertionPoint(fork.then_block):
                scf.yield_([arith.subi(number, arith.constant(i32(), 1))])
            with ir.InsertionPoint(fork.else_block):
                scf.yield_([arith.shrsi(number, arith.constant(i32(), 1))])
            scf.yield_([fork.results[0], arith.addi(steps, arith.constant(i32(), 1))])
        registers = np.empty_like(x.registers)
        registers[(0,) * registers.ndim] = vector.broadcast(v.type, loop.results[1])
        return FA(_registers=registers, _layout=x.layout, _is_signed=True)

    got = apply(f, L.WG_STRIDED((128,), 1), out((128,), np.int32), x)

    def steps(n: int) -> int:
        count = 0
        while n > 1:
            n, count = (n - 1 if n & 1 else n >> 1), count + 1
        return count

    np.testing.assert_array_equal(got, [steps(int(n) + 10) for n in x])


def test_in_a_loop_of_two_warpgroups() -> None:
    x = random((2, 128), np.float32)

    def body(x: Any, o: Any) -> None:
        wg = jax.lax.axis_index("wg")
        layout = L.WG_STRIDED((128,), 1)

        @plgpu.inline_mgpu(arg_types=(layout, L.WG_SPLAT(())), return_type=sds((128,), np.float32, layout))
        def f(ctx: Any, x: Any, wg: Any) -> Any:
            number = utils.warpgroup_idx()
            same = arith.cmpi(arith.CmpIPredicate.eq, number, wg.registers.item())
            add = arith.select(same, utils.c(1.0, ir.F32Type.get()), utils.c(1000.0, ir.F32Type.get()))
            return x + FA.splat(add, x.shape, x.layout)

        y = plgpu.layout_cast(x[wg], layout)
        o[wg] = jax.lax.fori_loop(0, 4, lambda _, y: f(y, wg), y)

    got = run(body, out((2, 128), np.float32), x, num_threads=2, thread_name="wg")
    expected = x
    for _ in range(4):
        expected = expected + np.float32(1)
    np.testing.assert_array_equal(got, expected)


# ------------------------------------------------------------------------------------------ assembly


def test_assembly() -> None:
    """Several results, names and a label of its own in every copy, packed operands, `$$`, ties."""
    x = random(SHAPE, np.float16)

    def f(ctx: Any, x: Any) -> Any:
        pair = llvm.StructType.get_literal([i32(), i32()])
        registers = np.empty_like(x.registers)
        for at, v in np.ndenumerate(x.registers):
            word = utils.bitcast(v, i32())
            asm = "{ .reg .b32 t; .reg .pred p; mov.b32 t, $2; setp.ne.u32 p, $3, 0; @p bra DONE; mov.b32 t, 0; DONE: add.rn.f16x2 $0, t, t; xor.b32 $1, t, $2; }"
            both = llvm.inline_asm(pair, [word, arith.constant(i32(), 1)], asm, "=r,=r,r,n", has_side_effects=True)
            double, zero = (llvm.extractvalue(i32(), both, [i]) for i in range(2))
            again = llvm.inline_asm(i32(), [double, zero], "add.u32 $0, $0, $2;", "=r,0,r")
            registers[at] = utils.bitcast(again, v.type)
        return FA(_registers=registers, _layout=x.layout, _is_signed=None)

    np.testing.assert_array_equal(apply(f, L.WGMMA, out(SHAPE, np.float16), x), x + x)


def test_named_barriers() -> None:
    """Two warpgroups that take turns: one arrives, the other one waits; the number is an argument."""
    x = random((128,), np.float32)

    def body(x: Any, o: Any, buffer: Any) -> None:
        wg = jax.lax.axis_index("wg")

        def bar_op(operation: str, number: Any) -> None:
            @plgpu.inline_mgpu(arg_types=(L.WG_SPLAT(()),))
            def f(ctx: Any, number: Any) -> None:
                llvm.inline_asm(ir.Type.parse("!llvm.void"), [number.registers.item()], f"bar.{operation} $0, 256;", "r", has_side_effects=True)

            f(number)

        @pl.when(wg == 0)
        def stores() -> None:
            buffer[...] = x[...]
            bar_op("arrive", wg + 9)

        @pl.when(wg == 1)
        def loads() -> None:
            bar_op("sync", wg + 8)
            o[...] = buffer[...] * 2

    np.testing.assert_array_equal(run(body, out((128,), np.float32), x, scratch=(SMEM((128,), np.float32),), num_threads=2, thread_name="wg"), x * 2)


def test_bits_of_packed_words() -> None:
    """Booleans in 32-bit words, taken apart into an array of another type and shape."""
    x = random((128, 2), np.uint32)

    def body(x: Any, o: Any) -> None:
        rows = L.WG_STRIDED((128,), 1)

        @plgpu.inline_mgpu(arg_types=(rows, rows), return_type=sds((128, 64), np.int8, L.WG_STRIDED((128, 64), 64)))
        def unpack(ctx: Any, low: Any, high: Any) -> Any:
            i8 = ir.IntegerType.get_signless(8)
            bits = []
            for word in (low.registers.item(), high.registers.item()):
                element = vector.extract(word, [], ir.DenseI64ArrayAttr.get([0]))
                flags = vector.bitcast(ir.VectorType.get((32,), ir.IntegerType.get_signless(1)), vector.broadcast(ir.VectorType.get((1,), i32()), element))
                bits.append(arith.extui(ir.VectorType.get((32,), i8), flags))
            registers = np.empty((1,), object)
            registers[0] = utils.vector_concat(bits)
            return FA(_registers=registers, _layout=mgpu.WGStridedFragLayout((128, 64), 64), _is_signed=True)

        o[...] = unpack(plgpu.layout_cast(x[:, 0], rows), plgpu.layout_cast(x[:, 1], rows))

    got = run(body, out((128, 64), np.int8), x)
    expected = np.unpackbits(x.view(np.uint8).reshape(128, 8), axis=1, bitorder="little")
    np.testing.assert_array_equal(got, expected.astype(np.int8))


def test_fences_and_launch_context() -> None:
    x = random((128,), np.float32)

    def body(x: Any, o: Any, buffer: Any) -> None:
        @plgpu.inline_mgpu()
        def commit(ctx: Any) -> None:
            with ctx.named_region("commit"):
                utils.commit_shared()

        buffer[...] = x[...]
        commit()
        plgpu.copy_smem_to_gmem(buffer, o)
        plgpu.wait_smem_to_gmem(0)

    np.testing.assert_array_equal(run(body, out((128,), np.float32), x, scratch=(SMEM((128,), np.float32),)), x)


def test_scalars_of_a_warp() -> None:
    """In a warp region: scalars and references."""
    x = np.arange(4, dtype=np.int32)

    def body(x: Any, o: Any, buffer: Any) -> None:
        @pl.core_map(plgpu.WarpMesh(axis_name="warp"))
        def warps() -> None:
            warp = jax.lax.axis_index("warp")

            @plgpu.inline_mgpu(arg_types=(L.WG_SPLAT(()), plgpu.RefType()))
            def f(ctx: Any, n: Any, buffer: Any) -> None:
                number = n.registers.item()
                with utils.single_thread(scope=utils.ThreadSubset.WARP):
                    memref.store(arith.muli(number, number), buffer, [arith.index_cast(ir.IndexType.get(), number)])

            f(warp, buffer)

        for i in range(4):
            o[i] = buffer[i] + x[i]

    np.testing.assert_array_equal(run(body, out((4,), np.int32), x, scratch=(SMEM((4,), np.int32),)), x * x + x)


def test_arrays_of_a_pallas_call() -> None:
    x = random((4, 128), np.float32)
    layout = L.WG_STRIDED((128,), 1)

    def body(x: Any, o: Any) -> None:
        f = plgpu.inline_mgpu(arg_types=(layout,), return_type=sds((128,), np.float32, layout))(lambda ctx, x: x * x)
        o[...] = f(plgpu.layout_cast(x[...], layout))

    spec = pl.BlockSpec((None, 128), lambda i: (i, 0))
    call = pl.pallas_call(body, out_shape=out((4, 128), np.float32), grid=(4,), in_specs=[spec], out_specs=spec, compiler_params=plgpu.CompilerParams())
    with enabled():
        np.testing.assert_array_equal(np.asarray(jax.jit(call)(x)), x * x)
