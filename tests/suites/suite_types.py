"""The tests of conversions of element types, for the machine that there is: the emulator, or a GPU."""

from __future__ import annotations

import re
from typing import Any

import jax
import jax.experimental.pallas.mosaic_gpu as plgpu
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax.experimental.pallas.ops.gpu import hopper_mixed_type_matmul_mgpu as mixed

import smalt
from smalt import _native
from tests.corpus.case import kernel, like, x64
from tests.machine import enabled
from tests.oracles import semantics

SMALL = ("bool", "int4", "uint4", "int8", "uint8", "int16", "uint16", "float8_e4m3fn", "float8_e5m2", "float16", "bfloat16")
WIDE = ("float32", "float16", "bfloat16")
#: Narrow types to floats; then what has packed forms to other narrow types.
PAIRS = [(a, b) for a in SMALL for b in WIDE if a != b]
PAIRS += [("bool", b) for b in ("int4", "uint4", "int8", "uint8", "int16", "uint16", "int32", "float8_e4m3fn", "float8_e5m2")]
PAIRS += [(a, b) for a in ("int8", "uint8", "float16", "bfloat16") for b in ("float8_e4m3fn", "float8_e5m2")]
#: How the elements of a thread lie: in a row, in pairs, in fours, in eights, one by one.
LAYOUTS: dict[str, Any] = {
    "any": None,
    "pairs": plgpu.Layout.WGMMA,
    "fours": plgpu.Layout.WGMMA_UPCAST_2X,
    "eights": plgpu.Layout.WGMMA_UPCAST_4X,
    "columns": plgpu.Layout.WGMMA_TRANSPOSED,
}


def bits(name: str) -> int:
    return {"bool": 1, "int4": 4, "uint4": 4}.get(name) or 8 * jnp.dtype(name).itemsize


def codes(name: str, shape: tuple[int, ...], begin: int = 0) -> np.ndarray[Any, Any]:
    """All codes of a type of at most 16 bits, begun one later each time."""
    n, i = 1 << bits(name), np.arange(np.prod(shape)) + begin
    code = ((i + i // n) % n).reshape(shape)
    dtype = np.dtype(getattr(ml_dtypes, name)) if hasattr(ml_dtypes, name) else np.dtype(name)
    if name in ("bool", "int4", "uint4"):
        return (code - 16 * (code >= 8) if name == "int4" else code).astype(dtype)
    return code.astype(f"u{dtype.itemsize}").view(dtype)


def converted(x: Any, to: str, layout: Any) -> Any:
    def body(x: Any, o: Any) -> None:
        value = x[...]
        if layout is not None:
            value = plgpu.layout_cast(value, layout)
        o[...] = value.astype(to)

    return kernel(body, like(x.shape, jnp.dtype(to)))(x)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("source", "target"), PAIRS, ids=lambda name: name)
def test_every_code(source: str, target: str, layout: str) -> None:
    """Bit for bit; of NaN, that it is one."""
    shape = (64, 64)
    count = 1 << bits(source)
    given = [codes(source, shape, begin) for begin in range(0, count, 4096)]
    f = jax.jit(lambda x: converted(x, target, LAYOUTS[layout]))
    with enabled():
        results = [np.asarray(f(x)) for x in given]
    for x, got in zip(given, results, strict=True):
        with np.errstate(over="ignore", invalid="ignore"):
            want = semantics.convert(x, got.dtype)
            nan = semantics.is_nan(want)
            np.testing.assert_array_equal(semantics.is_nan(got), nan)
        np.testing.assert_array_equal(np.where(nan, 0, semantics.bits(got)), np.where(nan, 0, semantics.bits(want)))


# ------------------------------------------------------------------------------------------ one rounding

#: Types of which some numbers lie closer to a tie between two narrow floats than any f32; and f32.
LONG = ("int32", "uint32", "int64", "uint64", "float32", "float64")


def around_ties(source: str, target: str) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Numbers half-way between two neighbours of a float type and beside it, as close as the source has any; and what they round to.

    They are `(m + 1/2)·2^e` with `m` of as many bits as the target has: of all exponents that an integer may have, of some of a float's.
    """
    info, kind = ml_dtypes.finfo(target), np.dtype(source)
    digits, lowest = info.nmant + 1, int(np.log2(float(info.smallest_subnormal)))
    first, last = 1 << info.nmant, 2 * (1 << info.nmant) - 1
    if kind.kind == "f":
        close = 2.0 ** (digits - np.finfo(kind).nmant)
        exponents = [*range(lowest, int(info.maxexp) - digits, 7), int(info.maxexp) - digits]
    else:
        exponents = list(range(2, np.iinfo(kind).bits - (kind.kind == "i") - digits))
    given, want = [], []
    for e in exponents:
        # The smallest exponent is also that of numbers with fewer bits.
        for m in sorted({first, first + 1, first + first // 3, last - 1, last, *([0, 1, 2] if e == lowest else [])}):
            for step in (-1, 0, 1):
                rounded = (m + (step > 0 or (step == 0 and m % 2 == 1))) * 2.0**e
                if rounded <= float(info.max):
                    given.append((m + 0.5 + step * close) * 2.0**e if kind.kind == "f" else ((2 * m + 1) << e - 1) + step)
                    want.append(rounded)
    if kind.kind != "u":
        given, want = [*given, *(-x for x in given)], [*want, *(-x for x in want)]
    padded = -len(given) % 128
    shape = (-1, 128)
    return np.array(given + padded * [0], kind).reshape(shape), np.array(want + padded * [0.0]).astype(jnp.dtype(target)).reshape(shape)


@pytest.mark.parametrize("source", LONG)
def test_numbers_are_rounded_once(source: str) -> None:
    """On the way to a narrow float through f32, what lies beside a tie must not become one."""
    targets = ("float16", "bfloat16", "float8_e4m3fn", "float8_e5m2")
    with x64(True), enabled():
        for target in targets:
            x, want = around_ties(source, target)
            got = np.asarray(jax.jit(lambda x, target=target: converted(x, target, None))(x))
            wrong = np.argwhere(semantics.bits(got) != semantics.bits(want))
            assert not len(wrong), f"{target}: {len(wrong)} wrong: {[(x[tuple(i)], got[tuple(i)], want[tuple(i)]) for i in wrong[:3]]}"


# ------------------------------------------------------------------------------------------ instructions

#: Instructions that compute, for each eight elements, of conversions of whole words.
COST = {
    ("int8", "bfloat16"): 16,
    ("uint8", "bfloat16"): 16,
    ("int8", "float16"): 10,
    ("uint8", "float16"): 8,
    ("int8", "float32"): 18,
    ("uint8", "float32"): 16,
    ("int4", "bfloat16"): 13,
    ("uint4", "bfloat16"): 13,
    ("int4", "float16"): 13,
    ("uint4", "float16"): 13,
    ("int4", "float32"): 17,
    ("uint4", "float32"): 17,
    ("int16", "float32"): 20,
    ("uint16", "float32"): 16,
    ("int16", "bfloat16"): 24,
    ("uint16", "float16"): 20,
}


def _ops(ptx: str) -> list[str]:
    """The instructions that compute, without those of addresses."""
    return re.findall(r"^\t(prmt|lop3|sub\.\S*[fb]f?(?:16x2|32)|fma|cvt|bfe|bfi|shr|shl|and|or|xor|selp)\b", ptx, re.M)


def described(f: Any, *args: Any) -> tuple[bytes, bytes]:
    with smalt.emulated("H100"):
        ((_, descriptor, debug),) = smalt.descriptor(f, *args)
    return descriptor, debug


@pytest.mark.parametrize(("source", "target"), COST, ids=lambda name: name)
def test_instructions(source: str, target: str) -> None:
    """What more elements cost more: none goes through the conversion unit."""
    counts = []
    for columns in (64, 128):
        x = like((64, columns), jnp.dtype(source))
        ptx = _native.compile(*described(lambda x: converted(x, target, plgpu.Layout.WG_STRIDED(x.shape, 8)), x), "sm_90a").ptx
        assert not re.search(r"cvt\S*\.[su](8|16|32)\b", ptx.replace("cvt.u64.u32", "")), ptx
        counts.append(len(_ops(ptx)))
    # 32 elements a thread are four times eight.
    assert counts[1] - counts[0] == 4 * COST[source, target]


@pytest.mark.parametrize("layout", ["any", "pairs"])
def test_ones_of_predicates(layout: str) -> None:
    """A selection for an element and one instruction that joins two: not a selection, a conversion and a packing."""
    counts = []
    for columns in (64, 128):
        x = like((64, columns), jnp.bool_)
        ptx = _native.compile(*described(lambda x: converted(x, "float16", LAYOUTS[layout]), x), "sm_90a").ptx
        assert "cvt.rn.f16" not in ptx
        counts.append(ptx.count("selp") + ptx.count("or.b32"))
    assert counts[1] - counts[0] == 32 * 3 // 2


# ------------------------------------------------------------------------------------------ the kernel that JAX ships

M, N = mixed.MatmulDimension.M, mixed.MatmulDimension.N


@pytest.mark.parametrize(("tile_m", "dimension"), [(64, M), (128, M), (128, N), (256, N)])
def test_mixed_matmul_converts_pairs(tile_m: int, dimension: Any) -> None:
    """Of each pair loaded: one permutation, two selections of bits, a subtraction; no bytes are put together."""
    config = mixed.TuningConfig(tile_m, 128 if tile_m < 256 else 64, 64, 4, wg_dimension=dimension)

    def f(a: Any, b: Any) -> Any:
        return mixed.mixed_matmul_kernel(a, b, out_dtype=jnp.bfloat16, config=config)

    ptx = _native.compile(*described(f, like((1024, 1024), jnp.int8), like((1024, 1024), jnp.bfloat16)), "sm_90a").ptx
    pairs = tile_m * 64 // 128 // 2
    assert not re.search(r"cvt\S*\.s8|bfi|bfe", ptx)
    assert ptx.count("ld.shared.b16") == ptx.count("prmt.b32") == ptx.count("sub.rn.bf16x2") == pairs
    assert ptx.count("lop3.b32") == 2 * pairs


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_mixed_matmul(dtype: Any) -> None:
    rng = np.random.default_rng(0)
    a = rng.integers(-128, 128, (256, 256), np.int8)
    b = rng.integers(-8, 9, (256, 128)).astype(dtype)
    config = mixed.TuningConfig(64, 64, 64, 2)
    with enabled():
        got = np.asarray(mixed.mixed_matmul_kernel(a, b, out_dtype=jnp.float32, config=config))
    # Sums of integers below 2^24 are exact in every order.
    np.testing.assert_array_equal(got, a.astype(np.float32) @ b.astype(np.float32))


@pytest.mark.parametrize("source", ["int4", "uint4", "int8", "uint8", "float8_e4m3fn"])
def test_narrow_operand_of_wgmma(source: str) -> None:
    """A product whose left operand is loaded narrow, and converted in registers."""
    rng = np.random.default_rng(1)
    a = codes(source, (64, 64))
    a = np.where(semantics.is_nan(a), np.zeros_like(a), a)
    b = rng.integers(-8, 9, (64, 64)).astype(jnp.bfloat16)

    def body(a: Any, b: Any, o: Any, a_smem: Any, b_smem: Any, barrier: Any) -> None:
        a_smem[...] = a[...]
        plgpu.copy_gmem_to_smem(b, b_smem, barrier)
        plgpu.barrier_wait(barrier)

        def scope(acc: Any) -> Any:
            x = plgpu.layout_cast(a_smem[...], plgpu.Layout.WGMMA)
            plgpu.wgmma(acc, x.astype(jnp.bfloat16), b_smem)
            return acc[...]

        o[...] = plgpu.layout_cast(jax.experimental.pallas.run_scoped(scope, plgpu.ACC((64, 64))), plgpu.Layout.WGMMA)

    transforms = (plgpu.TilingTransform((8, 64)), plgpu.SwizzleTransform(128))
    scratch = [plgpu.SMEM((64, 64), jnp.dtype(source)), plgpu.SMEM((64, 64), jnp.bfloat16, transforms=transforms), plgpu.Barrier()]
    with enabled():
        got = np.asarray(kernel(body, like((64, 64)), *scratch)(a, b))
    np.testing.assert_array_equal(got, a.astype(np.float32) @ b.astype(np.float32))


@pytest.mark.parametrize("shape", [(8, 1), (1, 8), (12, 9, 1), (256, 1, 1), (4, 1, 2), (2, 6, 1), (8, 4, 1), (1, 1, 2)], ids=str)
def test_dimensions_of_one_element_of_half_a_byte(shape: tuple[int, ...]) -> None:
    """Neighbours in memory are along the last of the others."""
    x = codes("int4", shape)

    def body(x: Any, whole: Any, turned: Any, part: Any, buf: Any) -> None:
        whole[...] = x[...]
        turned[...] = jnp.sort(x[...].astype(jnp.int32), axis=0).astype(jnp.int4)
        buf[...] = jnp.zeros(shape, jnp.int4)
        buf.at[0 : (shape[0] + 1) // 2][...] = x[0 : (shape[0] + 1) // 2]
        part[...] = buf[...]

    with enabled():
        got = kernel(body, [like(shape, jnp.int4)] * 3, plgpu.SMEM(shape, jnp.int4))(x)
        whole, turned, part = (np.asarray(a).astype(np.int32) for a in got)
    x = x.astype(np.int32)
    np.testing.assert_array_equal(whole, x)
    np.testing.assert_array_equal(turned, np.sort(x, axis=0))
    np.testing.assert_array_equal(part, np.where(np.arange(shape[0]).reshape(-1, *[1] * (len(shape) - 1)) < (shape[0] + 1) // 2, x, 0))
