"""The tests of `wgmma` that users write themselves, dense and sparse, in texts and in functions of `inline_mgpu`: in the emulator, or on a GPU."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.experimental.mosaic.gpu as mgpu
import jax.experimental.pallas.mosaic_gpu as plgpu
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import smalt
from jax._src.lib.mlir import ir
from jax._src.lib.mlir.dialects import arith, nvvm
from jax.experimental import pallas as pl

from tests.corpus.case import kernel
from tests.machine import ON_GPU, enabled

L = plgpu.Layout
SMEM, Barrier = plgpu.SMEM, plgpu.Barrier
F32 = np.float32

#: Fence, and wait for all.
FENCE = "wgmma.fence.sync.aligned;"
DONE = "wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0;"


def sds(shape: Any, dtype: Any, layout: Any) -> Any:
    return plgpu.ShapeDtypeStruct(shape, dtype, layout=layout)


def run(body: Any, out_type: Any, *args: Any, scratch: Any = ()) -> Any:
    with enabled():
        return jax.tree.map(np.asarray, jax.jit(kernel(body, out_type, *scratch))(*args))


def rows(shape: Any, dtype: Any, swizzle: int = 128) -> Any:
    """A buffer whose rows lie in tiles as wide as their swizzle, as tensor cores read operands along K."""
    width = swizzle // np.dtype(dtype).itemsize
    return SMEM(shape, dtype, transforms=(plgpu.TilingTransform((8, width)), plgpu.SwizzleTransform(swizzle)))


def descriptor(name: str, address: str, stride: int, swizzle: int = 128) -> str:
    """Tiles of eight swizzled rows, `stride` bytes apart; those that follow each other along K are neighbours."""
    bits = {128: 1, 64: 2, 32: 3}[swizzle] << 62 | (stride >> 4) << 32 | (8 * swizzle >> 4) << 16
    return (
        f"{{ .reg .b32 w; shr.u32 w, {address}, 4; and.b32 w, w, 0x3fff; cvt.u64.u32 {name}, w; or.b64 {name}, {name}, {bits:#x}; }}"
    )


@dataclasses.dataclass(frozen=True)
class Kind:
    """Operand types, accumulators, and what follows scale-d."""

    a: Any
    b: Any
    types: str
    acc: Any
    tail: str
    tolerance: float = 0

    @property
    def step(self) -> int:
        """Elements along K of an instruction."""
        return 32 // np.dtype(self.a).itemsize

    def opcode(self, n: int, *, sparse: bool = False) -> str:
        acc = {"float32": "f32", "float16": "f16", "int32": "s32"}[np.dtype(self.acc).name]
        return f"wgmma.mma_async{'.sp' * sparse}.sync.aligned.m64n{n}k{self.step * (1 + sparse)}.{acc}.{self.types}"


KINDS = {
    "f16": Kind(np.float16, np.float16, "f16.f16", F32, ", 1, 1, 0, 0", 1e-4),
    "f16 into f16": Kind(np.float16, np.float16, "f16.f16", np.float16, ", 1, 1, 0, 0", 2e-2),
    "bf16": Kind(ml_dtypes.bfloat16, ml_dtypes.bfloat16, "bf16.bf16", F32, ", 1, 1, 0, 0", 1e-4),
    "tf32": Kind(F32, F32, "tf32.tf32", F32, ", 1, 1", 2e-2),
    "e4m3": Kind(ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e4m3fn, "e4m3.e4m3", F32, ", 1, 1", 2e-2),
    "e5m2, e4m3": Kind(ml_dtypes.float8_e5m2, ml_dtypes.float8_e4m3fn, "e5m2.e4m3", F32, ", 1, 1", 2e-2),
    "s8": Kind(np.int8, np.int8, "s8.s8", np.int32, ""),
    "u8, s8": Kind(np.uint8, np.int8, "u8.s8", np.int32, ""),
}


def random(shape: Any, dtype: Any, seed: int) -> Any:
    rng = np.random.default_rng(seed)
    dtype = np.dtype(dtype)
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        return rng.integers(info.min, info.max + 1, shape).astype(dtype)
    return rng.standard_normal(shape).astype(dtype)


def wide(x: Any) -> Any:
    return x.astype(np.float64)


def check(got: Any, expected: Any, kind: Kind) -> None:
    assert got.dtype == np.dtype(kind.acc)
    np.testing.assert_allclose(wide(got), expected, rtol=kind.tolerance, atol=kind.tolerance * 8)


def load(barrier: Any, *pairs: Any) -> None:
    for ref, buffer in pairs:
        plgpu.copy_gmem_to_smem(ref, buffer, barrier)
    plgpu.barrier_wait(barrier)


# ------------------------------------------------------------------------------------------ texts


@pytest.mark.parametrize("n", [8, 64, 192])
@pytest.mark.parametrize("name", KINDS)
def test_products(name: str, n: int) -> None:
    """Both operands in shared memory, along K; the accumulator comes in and goes out."""
    kind = KINDS[name]
    k = 4 * kind.step
    a, b, c = random((64, k), kind.a, 0), random((n, k), kind.b, 1), random((64, n), kind.acc, 2)
    count = n * np.dtype(kind.acc).itemsize // 8
    steps = [f"{kind.opcode(n)} {{0}}, a, b, p, {kind.tail.removeprefix(', ')};".replace(", ;", ";") + " add.s64 a, a, 2; add.s64 b, b, 2;"] * 4
    text = "\n".join([
        ".reg .b64 a, b; .reg .pred p; setp.eq.u32 p, 0, 0;",
        descriptor("a", "{2}", 1024), descriptor("b", "{3}", 1024),
        *(f"mov.b32 {{0.{i}}}, {{1.{i}}};" for i in range(count)),
        FENCE, *steps, DONE,
    ])  # fmt: skip

    def body(a_ref: Any, b_ref: Any, c: Any, o: Any, a: Any, b: Any, barrier: Any) -> None:
        load(barrier, (a_ref, a), (b_ref, b))
        o[...] = smalt.inline_ptx(text, sds((64, n), kind.acc, L.WGMMA), c[...], a, b, whole=True, arg_layouts=(L.WGMMA, None, None))

    got = run(body, jax.ShapeDtypeStruct((64, n), kind.acc), a, b, c, scratch=(rows((64, k), kind.a), rows((n, k), kind.b), Barrier(num_arrivals=2)))
    check(got, wide(c) + wide(a) @ wide(b).T, kind)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16], ids=["f16", "bf16"])
@pytest.mark.parametrize("n", [16, 128])
def test_a_in_registers_and_b_transposed(n: int, dtype: Any) -> None:
    """A's registers hold two elements each; B lies along N, in tiles of 64 columns. Nothing comes in: scale-d is false at first."""
    kind = KINDS["f16" if dtype == np.float16 else "bf16"]
    a, b = random((64, 64), dtype, 0), random((64, n), dtype, 1)
    width = min(n, 64)
    # Eight rows of a tile are 16 bytes times its width; tiles lie side by side.
    mode = {128: 1, 64: 2, 32: 3}[2 * width]
    bits = mode << 62 | (8 * 2 * width * -(-n // width) >> 4) << 32 | (8 * 2 * width >> 4) << 16
    step = 2 * (8 * 2 * width * -(-n // width)) >> 4
    steps = []
    for s in range(4):
        regs = ", ".join(f"{{1.{4 * s + i}}}" for i in range(4))
        steps.append(f"{kind.opcode(n)} {{0}}, {{ {regs} }}, b, p, 1, 1, 1; add.s64 b, b, {step}; setp.eq.u32 p, 0, 0;")
    text = "\n".join([
        ".reg .b64 b; .reg .b32 w; .reg .pred p; setp.ne.u32 p, 0, 0;",
        f"shr.u32 w, {{2}}, 4; and.b32 w, w, 0x3fff; cvt.u64.u32 b, w; or.b64 b, b, {bits:#x};",
        FENCE, *steps, DONE,
    ])  # fmt: skip
    transforms = (plgpu.TilingTransform((8, width)), plgpu.SwizzleTransform(2 * width))

    def body(a_ref: Any, b_ref: Any, o: Any, b: Any, barrier: Any) -> None:
        load(barrier, (b_ref, b))
        o[...] = smalt.inline_ptx(text, sds((64, n), F32, L.WGMMA), a_ref[...] * 2, b, whole=True, arg_layouts=(L.WGMMA, None))

    got = run(body, jax.ShapeDtypeStruct((64, n), F32), a, b, scratch=(SMEM((64, n), dtype, transforms=transforms), Barrier()))
    check(got, 2 * wide(a) @ wide(b), kind)


def test_a_loop_with_a_product_in_flight() -> None:
    """A text's own loop over K: two accumulators take turns, and one product is in flight while the next one is issued."""
    kind, n, k = KINDS["f16"], 32, 512
    a, b = random((64, k), np.float16, 0), random((n, k), np.float16, 1)
    zeros = "\n".join(f"mov.b32 {{{r}.{i}}}, 0;" for r in (0, 1) for i in range(n // 2))
    group = [f"{kind.opcode(n)} {{{r}}}, a, b, p, 1, 1, 0, 0; add.s64 a, a, 2; add.s64 b, b, 2; wgmma.commit_group.sync.aligned;" for r in (0, 1, 0, 1)]
    text = "\n".join([
        ".reg .b64 a, b; .reg .b32 i; .reg .pred p, more; setp.eq.u32 p, 0, 0; mov.u32 i, 0;",
        descriptor("a", "{2}", 8192), descriptor("b", "{3}", 8192), zeros,
        "again:",
        f"{FENCE} {group[0]} {group[1]} wgmma.wait_group.sync.aligned 1; {group[2]} {group[3]}",
        "wgmma.wait_group.sync.aligned 1;",
        # A tile of 128 bytes is done: 1024 bytes on.
        "add.s64 a, a, 56; add.s64 b, b, 56; add.u32 i, i, 1; setp.lt.u32 more, i, 8; @more bra again;",
        "wgmma.wait_group.sync.aligned 0;",
    ])  # fmt: skip

    def body(a_ref: Any, b_ref: Any, o: Any, a: Any, b: Any, barrier: Any) -> None:
        load(barrier, (a_ref, a), (b_ref, b))
        half = sds((64, n), F32, L.WGMMA)
        x, y = smalt.inline_ptx(text, [half, half], a, b, whole=True)
        o[...] = x + y

    got = run(body, jax.ShapeDtypeStruct((64, n), F32), a, b, scratch=(rows((64, k), np.float16), rows((n, k), np.float16), Barrier(num_arrivals=2)))
    check(got, wide(a) @ wide(b).T, kind)


def test_a_text_that_stores_its_accumulators() -> None:
    """Registers of the text's own, and no arrays: each lane stores what it has. Two warpgroups."""
    kind, n = KINDS["s8"], 16
    a, b = random((128, 128), np.int8, 0), random((n, 128), np.int8, 1)
    regs = ", ".join(f"d{i}" for i in range(n // 2))
    stores = "\n".join(f"st.global.v2.b32 [o+{32 * j + 512 * half}], {{d{4 * j + 2 * half}, d{4 * j + 2 * half + 1}}};" for j in range(n // 8) for half in range(2))
    text = "\n".join([
        f".reg .b64 a, b, o; .reg .b32 d<{n // 2}>, t, g; .reg .pred p; setp.ne.u32 p, 0, 0;",
        descriptor("a", "{0}", 1024), descriptor("b", "{1}", 1024), FENCE,
        *[f"{kind.opcode(n)} {{{regs}}}, a, b, p; add.s64 a, a, 2; add.s64 b, b, 2; setp.eq.u32 p, 0, 0;"] * 4,
        DONE,
        # Row 16 (t / 32) + t % 32 / 4, columns 2 (t % 4) and the next.
        "mov.u32 t, %tid.x; and.b32 t, t, 127; shr.u32 g, t, 5; shl.b32 g, g, 4; and.b32 t, t, 31;",
        f"{{ .reg .b32 r; shr.u32 r, t, 2; add.u32 g, g, r; and.b32 t, t, 3; shl.b32 t, t, 3; mad.lo.u32 g, g, {4 * n}, t; }}",
        "cvt.u64.u32 o, g; add.s64 o, o, {2};", stores,
    ])  # fmt: skip

    def body(a_ref: Any, b_ref: Any, o: Any, a: Any, b: Any, barrier: Any) -> None:
        wg = jax.lax.axis_index("wg")
        mine, rest = a.at[wg], b.at[wg]
        plgpu.copy_gmem_to_smem(a_ref.at[pl.ds(wg * 64, 64)], mine, barrier.at[wg])
        plgpu.copy_gmem_to_smem(b_ref, rest, barrier.at[wg])
        plgpu.barrier_wait(barrier.at[wg])
        smalt.inline_ptx(text, (), mine, rest, o.at[pl.ds(wg * 64, 64)], whole=True)

    scratch = (rows((2, 64, 128), np.int8), rows((2, n, 128), np.int8), Barrier(num_arrivals=2, num_barriers=2))
    with enabled():
        f = kernel(body, jax.ShapeDtypeStruct((128, n), np.int32), *scratch, num_threads=2, thread_name="wg")
        got = np.asarray(jax.jit(f)(a, b))
    np.testing.assert_array_equal(got, a.astype(np.int32) @ b.astype(np.int32).T)


#: C + A·Bᵀ of 64 rows and columns: `{1}` and the buffers `{2}` and `{3}`, which have 64 f16 a row.
ADD = "\n".join([
    ".reg .b64 a, b; .reg .pred p; setp.eq.u32 p, 0, 0;", descriptor("a", "{2}", 1024), descriptor("b", "{3}", 1024),
    *(f"mov.b32 {{0.{i}}}, {{1.{i}}};" for i in range(32)), FENCE,
    *[f"{KINDS['f16'].opcode(64)} {{0}}, a, b, p, 1, 1, 0, 0; add.s64 a, a, 2; add.s64 b, b, 2;"] * 4, DONE,
])  # fmt: skip


def add(c: Any, a: Any, b: Any) -> Any:
    return smalt.inline_ptx(ADD, sds((64, 64), F32, L.WGMMA), c, a, b, whole=True, arg_layouts=(L.WGMMA, None, None))


def test_a_sum_goes_round_a_loop_of_the_kernel() -> None:
    a, b = random((5, 64, 64), np.float16, 0), random((5, 64, 64), np.float16, 1)

    def body(a_ref: Any, b_ref: Any, o: Any, a: Any, b: Any, barrier: Any) -> None:
        def step(i: Any, c: Any) -> Any:
            slot = i % 2
            for ref, buffer in ((a_ref, a), (b_ref, b)):
                plgpu.copy_gmem_to_smem(ref.at[i], buffer.at[slot], barrier.at[slot])
            plgpu.barrier_wait(barrier.at[slot])
            return add(c, a.at[slot], b.at[slot])

        o[...] = jax.lax.fori_loop(0, 5, step, plgpu.layout_cast(jnp.zeros((64, 64), F32), L.WGMMA))

    scratch = (*(rows((2, 64, 64), np.float16) for _ in range(2)), Barrier(num_arrivals=2, num_barriers=2))
    got = run(body, jax.ShapeDtypeStruct((64, 64), F32), a, b, scratch=scratch)
    check(got, np.einsum("smk,snk->mn", wide(a), wide(b)), KINDS["f16"])


def test_beside_the_kernels_own_product() -> None:
    """`plgpu.wgmma` is in flight when the text comes, whose wait settles both; the accumulator goes on behind it."""
    a, b, c = random((64, 64), np.float16, 0), random((64, 64), np.float16, 1), random((64, 64), F32, 2)

    def body(a_ref: Any, b_ref: Any, c: Any, o: Any, p: Any, a: Any, b: Any, barrier: Any) -> None:
        load(barrier, (a_ref, a), (b_ref, b))

        def multiply(acc: Any) -> Any:
            plgpu.wgmma(acc, a, b)
            p[...] = add(c[...], a, b)
            plgpu.wgmma(acc, a, b)
            plgpu.wgmma_wait(0)
            return acc[...]

        o[...] = pl.run_scoped(multiply, plgpu.ACC((64, 64), F32))

    both = jax.ShapeDtypeStruct((64, 64), F32)
    scratch = (*(rows((64, 64), np.float16) for _ in range(2)), Barrier(num_arrivals=2))
    product, own = run(body, [both, both], a, b, c, scratch=scratch)
    check(product, 2 * (wide(a) @ wide(b)), KINDS["f16"])
    check(own, wide(c) + wide(a) @ wide(b).T, KINDS["f16"])


# ------------------------------------------------------------------------------------------ sparse


def pruned(shape: tuple[int, int], dtype: Any, seed: int) -> tuple[Any, Any, Any]:
    """A random matrix with two of four neighbours along a row; those packed, and of each four the indices of the two."""
    m, k = shape
    rng = np.random.default_rng(seed)
    pairs = np.array([(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)])[rng.integers(0, 6, (m, k // 4))]
    packed = random((m, k // 4, 2), dtype, seed + 1)
    full = np.zeros((m, k // 4, 4), dtype)
    np.put_along_axis(full, pairs, packed, -1)
    return full.reshape(m, k), packed.reshape(m, k // 2), pairs


def metadata(pairs: Any, bits: int, selector: int = 0) -> Any:
    """The words of 128 lanes, for instruction after instruction along K: (128, steps)."""
    nibbles = (pairs[..., 0] | pairs[..., 1] << 2).astype(np.uint32)
    groups = 16 if bits == 8 else 8
    steps = nibbles.shape[1] // groups
    out = np.zeros((4, 8, 4, steps), np.uint32)  # warp, row of eight, lane of four
    # warp, half, row, step, and lanes of a pair with the nibbles that each has of a row
    split = nibbles.reshape(4, 2, 8, steps, 2, groups // 2)
    for pair in range(2):
        for half in range(2):
            for i in range(groups // 2):
                x = split[:, half, :, :, pair, i]
                if bits == 8:
                    out[:, :, half + 2 * pair] |= x << np.uint32(4 * i)
                else:
                    out[:, :, 2 * selector + pair] |= x << np.uint32(4 * (i + 4 * half))
    return out.reshape(128, steps)


SPARSE = {name: KINDS[name] for name in ("f16", "f16 into f16", "bf16", "e4m3", "e5m2, e4m3", "s8", "u8, s8")}


@pytest.mark.parametrize("n", [8, 96])
@pytest.mark.parametrize("registers", [False, True], ids=["shared", "registers"])
@pytest.mark.parametrize("name", SPARSE)
def test_sparse_products(name: str, n: int, registers: bool) -> None:
    """A packed, with metadata in registers; twice as much of B, which lies in two tiles."""
    if registers and np.dtype(SPARSE[name].a).itemsize == 1:
        pytest.skip("JAX has no layout of 8-bit operands in all versions")
    sparse_products(SPARSE[name], n, registers)


@pytest.mark.parametrize("swizzle", [32, 64])
@pytest.mark.parametrize("name", ["f16", "s8"])
def test_narrow_tiles_of_sparse_products(name: str, swizzle: int) -> None:
    """The 64 bytes of B that an instruction takes are a tile, or two beside each other."""
    sparse_products(SPARSE[name], 24, False, swizzle)


def sparse_products(kind: Kind, n: int, registers: bool, swizzle: int = 128) -> None:
    """Four, which add up; B's rows lie in tiles as wide as their swizzle."""
    bits = 8 * np.dtype(kind.a).itemsize
    k = 8 * kind.step
    full, packed, pairs = pruned((64, k), kind.a, 3)
    selector = 1 if bits == 16 else 0
    meta = metadata(pairs, bits, selector)
    b = random((n, k), kind.b, 5)
    steps = []
    tail = kind.tail.removesuffix(", 0") if registers and bits == 16 else kind.tail
    for s in range(4):
        a = "{ " + ", ".join(f"{{2.{4 * s + i}}}" for i in range(4)) + " }" if registers else "a"
        # 64 bytes of B: the second half of a tile, the next tile, or the one behind it.
        here, there = (64 * t // swizzle * 8 * swizzle + 64 * t % swizzle for t in (s, s + 1))
        on = there - here >> 4
        steps.append(f"{kind.opcode(n, sparse=True)} {{0}}, {a}, b, {{1.{s}}}, {selector}, p{tail}; add.s64 b, b, {on};")
        steps.append("setp.eq.u32 p, 0, 0;" + "" if registers else "setp.eq.u32 p, 0, 0; add.s64 a, a, 2;")
    text = "\n".join([
        ".reg .b64 a, b; .reg .pred p; setp.ne.u32 p, 0, 0;",
        "" if registers else descriptor("a", "{2}", 1024), descriptor("b", "{3}", 2048, swizzle), FENCE, *steps, DONE,
    ])  # fmt: skip
    words = L.WG_STRIDED((512,), 4)

    def body(a_ref: Any, b_ref: Any, m: Any, o: Any, a: Any, b: Any, barrier: Any) -> None:
        load(barrier, (a_ref, a), (b_ref, b))
        operand, layout = (a_ref[...], L.WGMMA) if registers else (a, None)
        args = m[...], operand, b
        o[...] = smalt.inline_ptx(text, sds((64, n), kind.acc, L.WGMMA), *args, whole=True, arg_layouts=(words, layout, None))

    scratch = (rows((64, k // 2), kind.a), rows((n, k), kind.b, swizzle), Barrier(num_arrivals=2))
    got = run(body, jax.ShapeDtypeStruct((64, n), kind.acc), packed, b, meta.reshape(512), scratch=scratch)
    check(got, wide(full) @ wide(b).T, kind)


@pytest.mark.skipif(ON_GPU, reason="the emulator reports it")
def test_metadata_that_names_nothing() -> None:
    text = "\n".join([
        ".reg .b64 b; .reg .pred p; .reg .b32 m; mov.b32 m, 0; setp.ne.u32 p, 0, 0;", descriptor("b", "{2}", 1024), FENCE,
        "wgmma.mma_async.sp.sync.aligned.m64n8k32.f32.f16.f16 {0}, { {1.0}, {1.1}, {1.2}, {1.3} }, b, m, 0, p, 1, 1, 0;", DONE,
    ])  # fmt: skip

    def body(a: Any, o: Any, b: Any) -> None:
        b[...] = jnp.zeros((8, 64), jnp.float16)
        plgpu.commit_smem()
        o[...] = smalt.inline_ptx(text, sds((64, 8), F32, L.WGMMA), a[...], b, whole=True, arg_layouts=(L.WGMMA, None))

    with pytest.raises(Exception, match=r"wgmma.sp with metadata that means nothing(.|\n)*0b0000 of row 0, chunk 0"):
        run(body, jax.ShapeDtypeStruct((64, 8), F32), random((64, 16), np.float16, 0), scratch=(rows((8, 64), np.float16),))


# ------------------------------------------------------------------------------------------ functions


TILES = (plgpu.TilingTransform((8, 64)), plgpu.SwizzleTransform(128))


def done() -> None:
    nvvm.wgmma_commit_group_sync_aligned()
    nvvm.wgmma_wait_group_sync_aligned(0)


@pytest.mark.parametrize("n", [64, 128])
@pytest.mark.parametrize("acc", [np.float32, np.float16], ids=["f32", "f16"])
@pytest.mark.parametrize("registers", [False, True], ids=["shared", "registers"])
def test_functions(acc: Any, n: int, registers: bool) -> None:
    """JAX's own `wgmma` in an `inline_mgpu` function: an accumulator that comes in, and two products in a row."""
    a, b, c = random((64, 128), np.float16, 0), random((128, n), np.float16, 1), random((64, n), acc, 2)
    ref = plgpu.RefType(TILES)

    def body(a_ref: Any, b_ref: Any, c: Any, o: Any, a: Any, b: Any, barrier: Any) -> None:
        load(barrier, (a_ref, a), (b_ref, b))

        @plgpu.inline_mgpu(arg_types=(L.WGMMA, L.WGMMA if registers else ref, ref), return_type=sds((64, n), acc, L.WGMMA))
        def product(_: Any, c: Any, a: Any, b: Any) -> Any:
            sums = mgpu.WGMMAAccumulator.from_registers(c)
            sums = mgpu.wgmma(sums, a, b, swizzle=128)
            done()
            return sums.value

        o[...] = product(c[...], a_ref[...] if registers else a, b)

    scratch = (SMEM((64, 128), np.float16, transforms=TILES), SMEM((128, n), np.float16, transforms=TILES), Barrier(num_arrivals=2))
    got = run(body, jax.ShapeDtypeStruct((64, n), acc), a, b, c, scratch=scratch)
    check(got, wide(c) + wide(a) @ wide(b), KINDS["f16" if acc == np.float32 else "f16 into f16"])


@pytest.mark.parametrize("pending", [0, 1])
def test_a_function_with_a_loop(pending: int) -> None:
    """The accumulator goes round a loop; with `pending`, in flight."""
    a, b = random((4, 64, 64), np.float16, 0), random((4, 64, 64), np.float16, 1)
    ref = plgpu.RefType(TILES)

    def body(a_ref: Any, b_ref: Any, o: Any, a: Any, b: Any, barrier: Any) -> None:
        load(barrier, (a_ref, a), (b_ref, b))

        @plgpu.inline_mgpu(arg_types=(ref, ref), return_type=sds((64, 64), F32, L.WGMMA))
        def product(_: Any, a: Any, b: Any) -> Any:
            index = ir.IndexType.get()
            count = arith.constant(index, ir.IntegerAttr.get(index, 4))

            @mgpu.fori(count, mgpu.WGMMAAccumulator.zero(64, 64))
            def steps(i: Any, sums: Any) -> Any:
                x, y = (mgpu.memref_slice(r, i) for r in (a, b))
                sums = mgpu.wgmma(sums, x, y, swizzle=128)
                nvvm.wgmma_commit_group_sync_aligned()
                nvvm.wgmma_wait_group_sync_aligned(pending)
                return sums

            nvvm.wgmma_wait_group_sync_aligned(0)
            return steps.result.value

        o[...] = product(a, b)

    scratch = tuple(SMEM((4, 64, 64), np.float16, transforms=TILES) for _ in range(2)) + (Barrier(num_arrivals=2),)
    got = run(body, jax.ShapeDtypeStruct((64, 64), F32), a, b, scratch=scratch)
    check(got, np.einsum("smk,skn->mn", wide(a), wide(b)), KINDS["f16"])


@pytest.mark.skipif(ON_GPU, reason="the emulator's checker reports it")
def test_a_missing_fence_of_the_async_proxy_is_told() -> None:
    """What the kernel stores itself, a product reads through another proxy."""
    kind = KINDS["f16"]
    text = "\n".join([
        ".reg .b64 a, b; .reg .pred p; setp.ne.u32 p, 0, 0;", descriptor("a", "{1}", 1024), descriptor("b", "{1}", 1024), FENCE,
        f"{kind.opcode(64)} {{0}}, a, b, p, 1, 1, 0, 0;", DONE,
    ])  # fmt: skip

    def body(x: Any, o: Any, buffer: Any, *, fence: bool) -> None:
        buffer[...] = x[...]
        if fence:
            plgpu.commit_smem()
        o[...] = smalt.inline_ptx(text, sds((64, 64), F32, L.WGMMA), buffer, whole=True)

    x = random((64, 64), np.float16, 0)
    out = jax.ShapeDtypeStruct((64, 64), F32)
    got = run(lambda *refs: body(*refs, fence=True), out, x, scratch=(rows((64, 64), np.float16),))
    check(got, wide(x[:, :16]) @ wide(x[:, :16]).T, kind)
    with pytest.raises(Exception, match="fence"):
        run(lambda *refs: body(*refs, fence=False), out, x, scratch=(rows((64, 64), np.float16),))
