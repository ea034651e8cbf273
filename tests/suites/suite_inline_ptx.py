"""The tests of `smalt.inline_ptx`, for the machine that there is: the emulator, or a GPU."""

from __future__ import annotations

from typing import Any

import jax
import jax.experimental.pallas as pl
import jax.experimental.pallas.mosaic_gpu as plgpu
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import smalt
from jax._src.pallas.mosaic_gpu import helpers

from tests.corpus.case import kernel, x64
from tests.fuzz.seeds import seeds
from tests.machine import ON_GPU, enabled
from tests.programs.inline_programs import INLINE_PTX_WITHOUT_CARRIES, INLINE_PTX_WITH_CARRIES, TOGETHER, Together

U32, F32 = np.uint32, np.float32


def out(*shape_and_dtype: Any) -> Any:
    *shape, dtype = shape_and_dtype
    return jax.ShapeDtypeStruct(tuple(shape), dtype)


def run(body: Any, out_type: Any, *args: Any, scratch: Any = ()) -> Any:
    with enabled():
        return jax.tree.map(np.asarray, jax.jit(kernel(body, out_type, *scratch))(*args))


def random(shape: Any, dtype: Any, seed: int = 0) -> Any:
    rng = np.random.default_rng(seed)
    if np.issubdtype(dtype, np.integer):
        info = np.iinfo(dtype)
        return rng.integers(info.min, info.max, shape, dtype=dtype, endpoint=True)
    return rng.standard_normal(shape).astype(dtype)


# ------------------------------------------------------------------------------------------ operands and results

#: An addition of each type, and how it is written.
TYPES: dict[str, tuple[Any, str]] = {
    "i8": (np.int8, "add.s32 {0}, {1}, {2};"),
    "u8": (np.uint8, "add.u32 {0}, {1}, {2};"),
    "i16": (np.int16, "add.s16 {0}, {1}, {2};"),
    "u16": (np.uint16, "add.u16 {0}, {1}, {2};"),
    "i32": (np.int32, "add.s32 {0}, {1}, {2};"),
    "u32": (np.uint32, "add.u32 {0}, {1}, {2};"),
    "f16": (np.float16, "add.rn.f16 {0}, {1}, {2};"),
    "bf16": (ml_dtypes.bfloat16, "add.rn.bf16 {0}, {1}, {2};"),
    "f32": (np.float32, "add.rn.f32 {0}, {1}, {2};"),
}


@pytest.mark.parametrize("scalar", [False, True], ids=["arrays", "scalars"])
@pytest.mark.parametrize("name", TYPES)
def test_types(name: str, scalar: bool) -> None:
    dtype, text = TYPES[name]
    x, y = random((8, 128), dtype), random((8, 128), dtype, 1)

    def body(x: Any, y: Any, o: Any) -> None:
        if not scalar:
            o[...] = smalt.inline_ptx(text, out(8, 128, dtype), x[...], y[...])
            return
        for i in range(4):
            o[i, 3] = smalt.inline_ptx(text, dtype, x[i, 3], y[2, i])

    got = run(body, out(8, 128, dtype), x, y)
    with np.errstate(over="ignore"):
        if scalar:
            np.testing.assert_array_equal(got[:4, 3], x[:4, 3] + y[2, :4])
        else:
            np.testing.assert_array_equal(got, x + y)


def test_64_bits() -> None:
    x = random((256,), np.uint32)

    def body(x: Any, o: Any) -> None:
        wide = smalt.inline_ptx("mul.wide.u32 {0}, {1}, {1};", out(256, jnp.uint64), x[...])
        low, high = smalt.inline_ptx("mov.b64 {{0}, {1}}, {2};", (out(256, jnp.uint32), out(256, jnp.uint32)), wide)
        o[0] = low
        o[1] = high

    with jax.enable_x64(True) if hasattr(jax, "enable_x64") else jax.experimental.enable_x64():
        low, high = run(body, out(2, 256, np.uint32), x)
    square = x.astype(np.uint64) ** 2
    np.testing.assert_array_equal(low, square.astype(U32))
    np.testing.assert_array_equal(high, (square >> np.uint64(32)).astype(U32))


def test_predicates() -> None:
    x = random((4, 64), np.int32)

    def body(x: Any, o: Any) -> None:
        positive = smalt.inline_ptx("setp.gt.s32 {0}, {1}, 0;", out(4, 64, jnp.bool_), x[...])
        odd = (x[...] & 1) == 1
        o[...] = smalt.inline_ptx("selp.b32 {0}, {1}, {2}, {3};\n@!{4} mov.b32 {0}, 7;", out(4, 64, jnp.int32), x[...], -1, positive, odd)

    np.testing.assert_array_equal(run(body, out(4, 64, np.int32), x), np.where(x % 2 == 1, np.where(x > 0, x, -1), 7))


#: With `pack`: what a text sees as one register.
PACKS: dict[str, tuple[Any, int, str]] = {
    "f16x2": (np.float16, 2, "add.rn.f16x2 {0}, {1}, {1};"),
    "bf16x2": (ml_dtypes.bfloat16, 2, "add.rn.bf16x2 {0}, {1}, {1};"),
    "u8x4": (np.uint8, 4, "shl.b32 {0}, {1}, 1; and.b32 {0}, {0}, 0xfefefefe;"),
    "u8x2": (np.uint8, 2, "shl.b16 {0}, {1}, 1; and.b16 {0}, {0}, 0xfefe;"),
    "f32x2": (np.float32, 2, ".reg .f32 a, b; mov.b64 {a, b}, {1}; add.rn.f32 a, a, a; add.rn.f32 b, b, b; mov.b64 {0}, {a, b};"),
}


@pytest.mark.parametrize("shape", [(4, 256), (1, 128), (8, 8)], ids=str)
@pytest.mark.parametrize("name", PACKS)
def test_packs(name: str, shape: tuple[int, int]) -> None:
    dtype, pack, text = PACKS[name]
    x = random(shape, dtype)

    def body(x: Any, o: Any) -> None:
        o[...] = smalt.inline_ptx(text, out(*shape, dtype), x[...], pack=pack)

    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(run(body, out(*shape, dtype), x), x + x)


def test_a_pack_of_two_types() -> None:
    """Two f32 in 64 bits become two f16 in 32."""
    x = random((4, 256), F32)

    def body(x: Any, o: Any) -> None:
        text = "{ .reg .f32 a, b; mov.b64 {a, b}, {1}; cvt.rn.f16x2.f32 {0}, b, a; }"
        o[...] = smalt.inline_ptx(text, out(4, 256, jnp.float16), x[...], pack=2)

    np.testing.assert_array_equal(run(body, out(4, 256, np.float16), x), x.astype(np.float16))


def test_scalars_and_arrays_mix() -> None:
    x = random((3, 128), F32)

    def body(x: Any, o: Any) -> None:
        two, rows = smalt.inline_ptx(
            "mov.b32 {0}, 0f40000000; mul.rn.f32 {1}, {2}, {3}; add.rn.f32 {1}, {1}, 1.5;", (jnp.float32, out(3, 128, F32)), x[...], x[1, 5]
        )
        o[...] = rows * two

    np.testing.assert_array_equal(run(body, out(3, 128, F32), x), (x * x[1, 5] + F32(1.5)).astype(F32) * 2)


def test_no_results_and_trees() -> None:
    x = random((128,), np.int32)

    def body(x: Any, o: Any, p: Any) -> None:
        assert smalt.inline_ptx("fence.proxy.async.shared::cta;") == ()
        tree = smalt.inline_ptx("not.b32 {0}, {2}; neg.s32 {1}, {2};", {"b": x, "a": (out(128, np.int32),)}, x[...])
        o[...] = tree["a"][0]
        p[...] = tree["b"]

    not_x, neg_x = run(body, (out(128, np.int32), out(128, np.int32)), x)
    np.testing.assert_array_equal(not_x, ~x)
    np.testing.assert_array_equal(neg_x, -x)


def test_in_a_pallas_call_and_loops() -> None:
    x = random((64, 512), F32)

    def body(x: Any, o: Any) -> None:
        def step(i: Any, acc: Any) -> Any:
            return smalt.inline_ptx("fma.rn.f32 {0}, {1}, 0.5, {2};", acc, acc, x[...])

        o[...] = jax.lax.fori_loop(0, 3, step, jnp.zeros((16, 512), F32))

    spec = pl.BlockSpec((16, 512), lambda i: (i, 0))
    call = pl.pallas_call(body, out_shape=out(64, 512, F32), grid=(4,), in_specs=[spec], out_specs=spec, compiler_params=plgpu.CompilerParams())
    with enabled():
        got = np.asarray(jax.jit(call)(x))
    np.testing.assert_array_equal(got, ((x * 0.5 + x) * F32(0.5) + x).astype(F32))


# ------------------------------------------------------------------------------------------ jax.vmap


def mapped(f: Any, out_type: Any, *args: Any, **axes: Any) -> Any:
    """`jax.vmap(f, **axes)` of all operands, in a kernel."""

    def body(*refs: Any) -> None:
        refs[-1][...] = jax.vmap(f, **axes)(*(ref[...] for ref in refs[:-1]))

    return run(body, out_type, *args)


FMA = "fma.rn.f32 {0}, {1}, {2}, {3};"


def test_vmap_of_arrays() -> None:
    x, y = random((4, 256), F32), random((256,), F32, 1)

    def f(row: Any, y: Any) -> Any:
        return smalt.inline_ptx(FMA, row, row, 0.5, y)

    want = x * F32(0.5) + y  # halves are exact
    np.testing.assert_array_equal(mapped(f, out(4, 256, F32), x, y, in_axes=(0, None)), want)
    np.testing.assert_array_equal(mapped(jax.jit(f), out(4, 256, F32), x, y, in_axes=(0, None)), want)
    np.testing.assert_array_equal(mapped(f, out(256, 4, F32), x, y, in_axes=(0, None), out_axes=1), want.T)
    np.testing.assert_array_equal(mapped(f, out(4, 256, F32), np.ascontiguousarray(x.T), y, in_axes=(1, None)), want)


@pytest.mark.parametrize("jitted", [False, True], ids=["eager", "jitted"])
def test_vmap_of_scalars(jitted: bool) -> None:
    """A scalar of each: with arrays it goes to the elements of its own; with scalars alone, the results are an array."""
    x, s = random((8, 128), np.int32), random((8,), np.int32, 1)
    text = "mad.lo.s32 {0}, {1}, {2}, {3};"

    def f(row: Any, s: Any) -> Any:
        return smalt.inline_ptx(text, row, row, s, 3)

    def g(a: Any, b: Any) -> Any:
        low, high = smalt.inline_ptx("min.s32 {0}, {2}, {3}; max.s32 {1}, {2}, {3};", (jnp.int32, jnp.int32), a, b)
        return low ^ (high * 2)

    f, g = (jax.jit(f), jax.jit(g)) if jitted else (f, g)
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(mapped(f, out(8, 128, np.int32), x, s), x * s[:, None] + 3)
        np.testing.assert_array_equal(mapped(g, out(128, np.int32), x[0], x[1]), np.minimum(x[0], x[1]) ^ (np.maximum(x[0], x[1]) * 2))


def test_vmap_of_vmap() -> None:
    x, y = random((4, 64), np.int32), random((3, 64), np.int32, 1)

    def f(a: Any, b: Any) -> Any:
        return smalt.inline_ptx("{ .reg .pred p; setp.lt.s32 p, {1}, {2}; @p bra L; mov.b32 {0}, {1}; bra M; L: sub.s32 {0}, {2}, {1}; M: }", jnp.int32, a, b)

    def pairs(a: Any, b: Any) -> Any:
        return jax.vmap(lambda a: jax.vmap(lambda b: jax.vmap(f)(a, b))(b))(a)

    def body(a: Any, b: Any, o: Any) -> None:
        o[...] = pairs(a[...], b[...])

    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(run(body, out(4, 3, 64, np.int32), x, y), np.where(x[:, None] < y, y - x[:, None], x[:, None]))


def test_vmap_of_what_is_not_mapped() -> None:
    """A fence, a load, a number of the lane: once, and then equal for the whole batch."""
    x = random((4, 128), np.int32)

    def body(x: Any, flag: Any, o: Any) -> None:
        def f(row: Any) -> Any:
            smalt.fence("acq_rel", "gpu")
            return row + smalt.load(flag.at[1]) + smalt.inline_ptx("mov.u32 {0}, %ctaid.x;", jnp.int32)

        o[...] = jax.vmap(f)(x[...])

    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(run(body, out(4, 128, np.int32), x, np.arange(32, dtype=np.int32)), x + 1)


# ------------------------------------------------------------------------------------------ lanes


def test_lanes_and_shuffles() -> None:
    def body(o: Any) -> None:
        lane = smalt.inline_ptx("mov.u32 {0}, %laneid;", out(128, np.int32))
        warp = smalt.inline_ptx("mov.u32 {0}, %tid.x; shr.u32 {0}, {0}, 5;", out(128, np.int32))
        o[0] = lane
        o[1] = smalt.inline_ptx("shfl.sync.bfly.b32 {0}, {1}, 1, 31, 0xffffffff;", lane, lane * 3 + warp)

    lane, mixed = run(body, out(2, 128, np.int32))
    np.testing.assert_array_equal(lane, np.arange(128) % 32)
    np.testing.assert_array_equal(mixed, (np.arange(128) % 32 ^ 1) * 3 + np.arange(128) // 32)


def test_equal_operands_do_not_make_equal_results() -> None:
    def body(o: Any) -> None:
        ones = jnp.ones((2, 128), jnp.int32)
        o[...] = smalt.inline_ptx(".reg .b32 t; mov.u32 t, %tid.x; add.s32 {0}, {1}, t;", ones, ones)

    got = run(body, out(2, 128, np.int32))
    assert len(set(got.reshape(-1).tolist())) == 128


def test_equal_elements_are_run_one_by_one() -> None:
    """Where all operands are equal everywhere: with a scalar beside the array among the results, and with no results."""

    def body(o: Any, count: Any, shared: Any) -> None:
        ones = jnp.ones((2, 128), jnp.int32)
        seven, lanes = smalt.inline_ptx(".reg .b32 t; mov.u32 t, %tid.x; mov.b32 {0}, 7; add.s32 {1}, {2}, t;", (jnp.int32, ones), ones)
        o[...] = lanes * seven
        shared[0] = 0
        smalt.inline_ptx("red.relaxed.cta.shared.add.s32 [{1}], {0};", (), ones, shared.at[0])
        count[...] = shared[...]

    lanes, count = run(body, (out(2, 128, np.int32), out(1, np.int32)), scratch=[plgpu.SMEM((1,), jnp.int32)])
    np.testing.assert_array_equal(np.sort(lanes.reshape(-1)), np.repeat(7 * (1 + np.arange(128)), 2))
    assert count[0] == 256


def test_a_layout_is_the_results() -> None:
    """Which thread has an element of a wgmma layout, by the text, and by JAX's layout."""

    def body(o: Any) -> None:
        o[...] = smalt.inline_ptx("mov.u32 {0}, %tid.x;", plgpu.ShapeDtypeStruct((64, 64), jnp.int32, layout=plgpu.Layout.WGMMA))

    got = run(body, out(64, 64, np.int32))
    row, col = np.indices((64, 64))
    np.testing.assert_array_equal(got, row // 16 * 32 + row % 8 * 4 + col % 8 // 2)


# ------------------------------------------------------------------------------------------ matrices


def multiply(opcode: str, a: Any, b: Any, c: Any, *rest: Any, last: str = "") -> Any:
    """D of an `mma` of words `[registers, 128]`, as threads have them."""
    operands = np.stack([x.view(U32) for x in (*a, *b, *c, *rest)])
    first = len(c)
    lists = [range(first)]
    for x in (a, b, c):
        lists.append(range(lists[-1].stop, lists[-1].stop + len(x)))
    texts = ["{" + ", ".join(f"{{{k}}}" for k in numbers) + "}" for numbers in lists]
    texts += [f"{{{k}}}" for k in range(lists[-1].stop, first + len(operands))]
    text = f"{opcode} {', '.join(texts)}{last};"

    def body(x: Any, o: Any) -> None:
        made = smalt.inline_ptx(text, (out(128, U32),) * first, *(x[i] for i in range(len(operands))))
        for i, row in enumerate(made):
            o[i] = row

    return run(body, out(first, 128, U32), operands)


def place(matrix: Any) -> Any:
    """`[warps, rows, bytes]` of A, or of B transposed: words of threads."""
    warps, rows, _ = matrix.shape
    blocks = matrix.reshape(warps, -1, 8, matrix.shape[2] // 16, 4, 4)
    return np.ascontiguousarray(blocks.transpose(3, 1, 0, 2, 4, 5)).view(U32).reshape(-1, 32 * warps)


def accumulators(matrix: Any) -> Any:
    """The same of C or D, `[warps, 16, 8]` of 32 bits."""
    return matrix.reshape(-1, 2, 8, 4, 2).transpose(1, 4, 0, 2, 3).reshape(4, -1)


@pytest.mark.parametrize("sat", ["", ".satfinite"])
def test_products_of_4_bit_integers(sat: str) -> None:
    rng = np.random.default_rng(5)
    a, b = rng.integers(-8, 8, (4, 16, 64)), rng.integers(0, 16, (4, 8, 64))
    c = rng.choice([np.iinfo(np.int32).min, -7, np.iinfo(np.int32).max], (4, 16, 8))
    pairs = lambda x: (x[..., ::2] & 15 | (x[..., 1::2] & 15) << 4).astype(np.uint8)  # noqa: E731
    got = multiply(f"mma.sync.aligned.m16n8k64.row.col{sat}.s32.s4.u4.s32", place(pairs(a)), place(pairs(b)), accumulators(c.astype(np.int32)))
    wanted = c + a @ b.transpose(0, 2, 1)
    wanted = np.clip(wanted, -(2**31), 2**31 - 1) if sat else wanted
    np.testing.assert_array_equal(got, accumulators(wanted.astype(np.int32)).view(U32))


@pytest.mark.parametrize("selector", [0, 1])
def test_sparse_products(selector: int) -> None:
    """Two of each four elements of A's rows, and which they are."""
    rng = np.random.default_rng(6)
    a, b = (rng.integers(-4, 5, shape).astype(np.float16) for shape in ((4, 16, 32), (4, 8, 32)))
    chosen = np.sort(rng.permuted(np.broadcast_to(np.arange(4), (4, 16, 8, 4)), axis=-1)[..., :2])
    kept = np.take_along_axis(a.reshape(4, 16, 8, 4), chosen, -1).reshape(4, 16, 16)
    sparse = np.zeros((4, 16, 8, 4), np.float16)
    np.put_along_axis(sparse, chosen, kept.reshape(4, 16, 8, 2), -1)
    # A word has four chunks of row i and four of row i + 8; two of each four lanes have those of eight.
    bits = (chosen[..., 0] | chosen[..., 1] << 2).reshape(4, 2, 8, 2, 4).transpose(0, 2, 3, 1, 4).reshape(4, 8, 2, 8)
    words = (bits << 4 * np.arange(8)).sum(-1).astype(U32)
    metadata = np.zeros((4, 8, 2, 2), U32)
    metadata[:, :, selector] = words
    c = rng.integers(-9, 9, (4, 16, 8)).astype(F32)
    opcode = "mma.sp::ordered_metadata.sync.aligned.m16n8k32.row.col.f32.f16.f16.f32"
    operands = (place(kept.view(np.uint8)), place(b.view(np.uint8)), accumulators(c), metadata.reshape(128))
    got = multiply(opcode, *operands, last=f", {selector}")
    wanted = c + sparse.reshape(4, 16, 32).astype(F32) @ b.astype(F32).transpose(0, 2, 1)
    np.testing.assert_array_equal(got.view(F32), accumulators(wanted))


# ------------------------------------------------------------------------------------------ memory


@pytest.mark.parametrize("space", ["smem", "gmem"])
def test_references_are_addresses(space: str) -> None:
    x = random((4, 128), np.int32)
    where, base = ("shared", "b32") if space == "smem" else ("global", "b64")

    def body(x: Any, o: Any, *scratch: Any) -> None:
        ref = scratch[0] if scratch else o
        ref[...] = x[...] + 1
        text = f"""{{ .reg .{base} at, by; .reg .b32 t, v;
          mov.u32 t, %tid.x;
          {"shl.b32 by, t, 2;" if base == "b32" else "mul.wide.u32 by, t, 4;"}
          add.{"u32" if base == "b32" else "u64"} at, {{1}}, by;
          ld.{where}.b32 v, [at + 512];
          st.{where}.b32 [at], v;
          mov.b32 {{0}}, v; }}"""
        second = smalt.inline_ptx(text, out(128, np.int32), ref.at[pl.ds(1, 3)])
        o[...] = ref[...]
        o[0] = second

    scratch = [plgpu.SMEM((4, 128), jnp.int32)] if space == "smem" else []
    got = run(body, out(4, 128, np.int32), x, scratch=scratch)
    expected = x + 1
    np.testing.assert_array_equal(got, np.stack([expected[2], expected[2], expected[2], expected[3]]))


def test_atomics_and_their_old_values() -> None:
    """Every thread takes a ticket of its own."""

    def body(count: Any, o: Any, total: Any, shared: Any) -> None:
        shared[0] = count[0]
        o[...] = smalt.inline_ptx("atom.relaxed.cta.shared.add.u32 {0}, [{1}], 3;", out(128, np.uint32), shared.at[0])
        total[...] = shared[...]

    tickets, total = run(
        body, (out(128, np.uint32), out(1, np.uint32)), np.array([5], U32), scratch=[plgpu.SMEM((1,), jnp.uint32)]
    )
    np.testing.assert_array_equal(np.sort(tickets), 5 + 3 * np.arange(128))
    assert total[0] == 5 + 3 * 128


def test_jax_inline_ptx() -> None:
    x = random((128,), F32)

    def body(x: Any, o: Any) -> None:
        helpers.inline_ptx("fence.acq_rel.gpu;")
        helpers.inline_ptx("{ .reg .b32 t; mov.u32 t, %laneid; }")
        o[...] = x[...]

    np.testing.assert_array_equal(run(body, out(128, F32), x), x)


# ------------------------------------------------------------------------------------------ control


def test_loops_that_lanes_leave_apart() -> None:
    """Collatz steps, with two ways out."""
    x = np.random.default_rng(3).integers(1, 1 << 16, (256,)).astype(U32)
    text = """{
      .reg .b32 n, t; .reg .pred p, odd;
      mov.b32 n, {1}; mov.b32 {0}, 0;
      again:
        setp.eq.u32 p, n, 1;
        @p bra done;
        and.b32 t, n, 1;
        setp.ne.u32 odd, t, 0;
        @odd bra up;
          shr.u32 n, n, 1;
          bra.uni next;
        up:
          mad.lo.u32 n, n, 3, 1;
        next:
        add.u32 {0}, {0}, 1;
        setp.lt.u32 p, {0}, 100;
        @p bra again;
        mov.b32 {0}, 999;
      done:
    }"""

    def body(x: Any, o: Any) -> None:
        o[...] = smalt.inline_ptx(text, x, x[...])

    def steps(n: int) -> int:
        count = 0
        while n != 1:
            n, count = (n * 3 + 1 if n % 2 else n // 2), count + 1
            if count == 100:
                return 999
        return count

    np.testing.assert_array_equal(run(body, out(256, U32), x), [steps(int(n)) for n in x])


def test_nested_loops_and_a_continue_of_the_outer_one() -> None:
    x = np.random.default_rng(4).integers(0, 40, (128,)).astype(U32)
    text = """{
      .reg .b32 i, j, k; .reg .pred p, q;
      mov.b32 i, 0; mov.b32 {0}, 0;
      outer:
        add.u32 i, i, 1;
        setp.gt.u32 p, i, 6;
        @p bra out;
        mov.b32 j, 0;
        inner:
          add.u32 j, j, 1;
          mad.lo.u32 k, i, j, {0};
          setp.gt.u32 q, k, {1};
          @q bra outer;
          add.u32 {0}, {0}, j;
          setp.lt.u32 p, j, i;
          @p bra inner;
        add.u32 {0}, {0}, 1000;
        bra outer;
      out:
    }"""

    def body(x: Any, o: Any) -> None:
        o[...] = smalt.inline_ptx(text, x, x[...])

    def one(n: int) -> int:
        total = 0
        for i in range(1, 7):
            for j in range(1, i + 1):
                if i * j + total > n:
                    break
                total += j
            else:
                total += 1000
        return total

    np.testing.assert_array_equal(run(body, out(128, U32), x), [one(int(n)) for n in x])


def test_lanes_that_leave_before_a_loop_and_in_it() -> None:
    """To one label, and others to one behind that."""
    x = np.arange(128, dtype=U32)
    text = """{
      .reg .pred p;
      mov.b32 {0}, 7;
      setp.lt.u32 p, {1}, 20;
      @p bra out;
      setp.gt.u32 p, {1}, 100;
      @p bra late;
      again:
        add.u32 {0}, {0}, 5;
        setp.ge.u32 p, {0}, {1};
        @p bra out;
        setp.lt.u32 p, {0}, 60;
        @p bra again;
      mov.b32 {0}, 500;
      out:
      add.u32 {0}, {0}, 1000;
      late:
      add.u32 {0}, {0}, 10000;
    }"""

    def body(x: Any, o: Any) -> None:
        o[...] = smalt.inline_ptx(text, x, x[...])

    def one(n: int) -> int:
        total = 7
        if n > 100:
            return total + 10000
        while n >= 20:
            total += 5
            if total >= n:
                break
            if total >= 60:
                return 11500
        return total + 11000

    np.testing.assert_array_equal(run(body, out(128, U32), x), [one(int(n)) for n in x])


COUNT = 1000 if ON_GPU else 60


@pytest.mark.whole
@seeds(INLINE_PTX_WITHOUT_CARRIES, COUNT, TOGETHER)
def test_random_programs(programs: list[Together]) -> None: ...


@pytest.mark.whole
@seeds(INLINE_PTX_WITH_CARRIES, COUNT, TOGETHER, first=10_000)
def test_random_programs_with_carries(programs: list[Together]) -> None: ...


# ------------------------------------------------------------------------------------------ roundings


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_roundings_of_a_text_are_its_own(dtype: Any) -> None:
    """Products and sums of a kernel are fused, unless one of the two stands in a text: rounded products less themselves are 0."""
    name = f"f{8 * np.dtype(dtype).itemsize}"
    x, y = random((256,), dtype), random((256,), dtype, 1)

    def body(x: Any, y: Any, z: Any, o: Any) -> None:
        one, y = out(256, dtype), y[...]
        # Powers of two make products that differ: one that is used twice is not fused.
        (x0, z0), (x1, z1), (x2, z2), (x3, z3), (x4, z4), (x5, z5) = ((x[...] * 2.0**k, z[...] * 2.0**k) for k in range(6))

        def product(x: Any) -> Any:
            return smalt.inline_ptx(f"mul.rn.{name} {{0}}, {{1}}, {{2}};", one, x, y)

        o[0], o[1], o[2] = product(x0) + -z0, product(x1) - z1, z2 - product(x2)
        o[3] = smalt.inline_ptx(f"sub.rn.{name} {{0}}, {{1}}, {{2}};", one, x3 * y, z3)
        o[4] = smalt.inline_ptx(f"{{ .reg .{name} p; mul.rn.{name} p, {{1}}, {{2}}; sub.rn.{name} {{0}}, p, {{3}}; }}", one, x4, y, z4)
        o[5] = x5 * y - z5

    with x64(dtype is np.float64), enabled():
        got = np.asarray(jax.jit(kernel(body, out(6, 256, dtype), params=smalt.CompilerParams()))(x, y, x * y))
    np.testing.assert_array_equal(got[:5], np.zeros((5, 256), dtype))
    assert np.count_nonzero(got[5]) > 64, "the kernel's own are not fused"


# ------------------------------------------------------------------------------------------ carries, cache policies


@pytest.mark.parametrize("dtype", [np.uint32, np.int32, np.uint64, np.int64])
@pytest.mark.parametrize("how", ["mad.hi", "mul.hi, add", "mad.hi.cc"])
def test_the_same_product_in_every_turn_of_a_loop(how: str, dtype: Any) -> None:
    """ptxas before 13.4 makes one instruction of the high half and the sum, and loses half of the turns."""
    bits, name = 8 * np.dtype(dtype).itemsize, f"{np.dtype(dtype).kind.replace('i', 's')}{8 * np.dtype(dtype).itemsize}"
    rng = np.random.default_rng(bits)
    x, y = (rng.integers(np.iinfo(dtype).min, np.iinfo(dtype).max, 128, dtype) for _ in range(2))
    n = rng.integers(1, 23, 128).astype(np.int32)
    step = {
        "mad.hi": f"mad.hi.{name} {{0}}, {{1}}, {{2}}, {{0}};",
        "mul.hi, add": f"mul.hi.{name} h, {{1}}, {{2}}; add.{name} {{0}}, {{0}}, h;",
        "mad.hi.cc": f"mad.hi.cc.{name} {{0}}, {{1}}, {{2}}, {{0}};",
    }[how]
    text = f"""{{ .reg .b{bits} h; .reg .b32 n; .reg .pred p;
        mov.b32 n, {{3}}; mov.b{bits} {{0}}, {{2}};
        L: {step} add.s32 n, n, -1; setp.gt.s32 p, n, 0; @p bra L; }}"""

    def body(x: Any, y: Any, n: Any, o: Any) -> None:
        o[...] = smalt.inline_ptx(text, jax.ShapeDtypeStruct((128,), dtype), x[...], y[...], n[...])

    with x64(bits == 64):
        got = run(body, out(128, dtype), x, y, n)
    high = [int(a) * int(b) >> bits for a, b in zip(x, y)]
    expected = [(int(b) + int(k) * h) % (1 << bits) for b, h, k in zip(y, high, n)]
    np.testing.assert_array_equal(got.view(f"u{bits // 8}"), np.array(expected, f"u{bits // 8}"))


def test_numbers_of_four_words() -> None:
    """Products of 64 bits by 64, an element of each array in two registers; and sums of 128 bits by scalars, equal in all lanes."""
    n = 256
    rng = np.random.default_rng(0)
    x, y = (rng.integers(0, 1 << 32, (2, n), dtype=np.uint64).astype(U32) for _ in range(2))

    def body(x: Any, y: Any, o: Any, total: Any) -> None:
        text = """
            mul.lo.u32 {0}, {4}, {6};
            mul.hi.u32 {1}, {4}, {6};
            mad.lo.cc.u32 {1}, {4}, {7}, {1};
            madc.hi.u32 {2}, {4}, {7}, 0;
            mad.lo.cc.u32 {1}, {5}, {6}, {1};
            madc.hi.cc.u32 {2}, {5}, {6}, {2};
            addc.u32 {3}, 0, 0;
            mad.lo.cc.u32 {2}, {5}, {7}, {2};
            madc.hi.u32 {3}, {5}, {7}, {3};"""
        words = smalt.inline_ptx(text, [out(n, U32)] * 4, x[0], x[1], y[0], y[1])
        for i, word in enumerate(words):
            o[i] = word
        scalars = "add.cc.u32 {0}, {3}, {4}; addc.cc.u32 {1}, {3}, {4}; addc.u32 {2}, 0, 0;"
        for i, word in enumerate(smalt.inline_ptx(scalars, [jnp.uint32] * 3, jnp.uint32(0xFFFFFFF0), jax.lax.axis_index("i").astype(jnp.uint32) + jnp.uint32(0x20))):
            total[i] = jnp.full((n,), word)

    call = kernel(body, (out(4, n, U32), out(3, n, U32)), grid=(1,), grid_names=("i",))
    with enabled():
        got, total = (np.asarray(v) for v in jax.jit(call)(x, y))
    wide = [v[0].astype(object) + (v[1].astype(object) << 32) for v in (x, y)]
    product = wide[0] * wide[1]
    np.testing.assert_array_equal(got, np.stack([(product >> 32 * i & 0xFFFFFFFF).astype(U32) for i in range(4)]))
    np.testing.assert_array_equal(total[:, 0], np.array([0x10, 0x11, 1], U32))


def test_cache_policies() -> None:
    def body(x: Any, o: Any) -> None:
        i = jax.lax.broadcasted_iota(jnp.int32, (512,), 0)
        text = """{ .reg .b64 keep, from, at; .reg .b32 t;
            createpolicy.fractional.L2::evict_last.L2::evict_first.b64 keep, 0.5;
            mad.wide.s32 from, {2}, 4, {0};
            mad.wide.s32 at, {2}, 4, {1};
            ld.global.L1::no_allocate.L2::cache_hint.u32 t, [from], keep;
            add.u32 t, t, 1;
            createpolicy.range.L2::evict_first.b64 keep, [{1}], 1024, 2048;
            st.global.L2::cache_hint.u32 [at], t, keep; }"""
        smalt.inline_ptx(text, (), x, o, i)

    x = np.arange(512, dtype=U32)
    np.testing.assert_array_equal(run(body, out(512, U32), x), x + 1)


def test_a_line_that_is_discarded_is_stored_anew() -> None:
    def body(x: Any, o: Any) -> None:
        o[...] = x[...] + U32(7)
        smalt.inline_ptx("discard.global.L2 [{0}], 128; discard.L2 [{0}+128], 128;", (), o, once=True)
        o[...] = x[...] + U32(1)

    x = np.arange(128, dtype=U32)
    np.testing.assert_array_equal(run(body, out(128, U32), x), x + 1)


@pytest.mark.skipif(ON_GPU, reason="a GPU may leave anything there")
def test_nobody_finds_what_was_discarded() -> None:
    def body(x: Any, o: Any) -> None:
        o[...] = x[...]
        smalt.inline_ptx("discard.global.L2 [{0}], 128;", (), o, once=True)

    x = np.arange(128, dtype=U32)
    got = run(body, out(128, U32), x)
    assert (got[:32] != x[:32]).all() and (got[32:] == x[32:]).all()


# ------------------------------------------------------------------------------------------ texts that nobody reads


def unread(known: bool) -> Any:
    """A sum of the low halves of two words, and whether it is even; by an instruction that the table does not have, or not."""
    text = "vadd.u32.u32.u32 t, {2}.h0, {3}.h0;" if not known else "{ .reg .b32 a, b; and.b32 a, {2}, 65535; and.b32 b, {3}, 65535; add.u32 t, a, b; }"
    text = f"""
        .reg .b32 t, %r1; .reg .b64 wide;
        {text}
        mov.b32 %r1, t;   // names of the text's own
        and.b32 t, t, 1; setp.eq.u32 {{1}}, t, 0;
        cvt.u64.u32 wide, %r1; st.global.u64 [{{4}}], wide;
        add.u32 {{0}}, %r1, {{5}};"""

    def body(x: Any, y: Any, sums: Any, even: Any, last: Any) -> None:
        layout = plgpu.Layout.WG_STRIDED((256,), vec_size=2)
        a, b = plgpu.layout_cast(x[...], layout), plgpu.layout_cast(y[...], layout)
        types = out(256, U32), out(256, np.bool_)
        total, is_even = smalt.inline_ptx(text, types, a, b, last, jnp.uint32(3), unchecked=True)
        sums[...] = total
        even[...] = is_even.astype(jnp.int32)

    return kernel(body, (out(256, U32), out(256, np.int32), out(1, np.uint64)))


@pytest.mark.skipif(not ON_GPU, reason="the emulator reads what it runs")
@pytest.mark.parametrize("known", [False, True])
def test_a_text_that_nobody_reads(known: bool) -> None:
    x, y = (np.random.default_rng(i).integers(0, 1 << 32, 256, dtype=np.uint64).astype(U32) for i in range(2))
    with enabled(), jax.enable_x64(True) if hasattr(jax, "enable_x64") else jax.experimental.enable_x64():
        sums, even, last = (np.asarray(v) for v in jax.jit(unread(known))(x, y))
    expected = (x & 0xFFFF) + (y & 0xFFFF)
    np.testing.assert_array_equal(sums, expected + U32(3))
    np.testing.assert_array_equal(even, expected % 2 == 0)
    assert last[0] in expected


@pytest.mark.skipif(not ON_GPU, reason="the emulator reads what it runs")
def test_one_lane_runs_a_text_that_nobody_reads() -> None:
    def body(x: Any, o: Any, word: Any) -> None:
        word[0] = x[0]
        told = smalt.inline_ptx("{ .reg .b32 t; ld.shared.b32 t, [{1}]; vadd.u32.u32.u32 {0}, t.b0, {2}; }", U32, word.at[0], x[1], once=True, unchecked="8.3")
        o[...] = jnp.full((128,), told)

    x = np.array([0x1234, 5] + [0] * 126, U32)
    np.testing.assert_array_equal(run(body, out(128, U32), x, scratch=[plgpu.SMEM((1,), U32)]), np.full(128, 0x34 + 5))


# ------------------------------------------------------------------------------------------ named barriers


def ping_pong(rounds: int, waits: bool = True) -> Any:
    """Two warpgroups take turns, as TLX's ping-pong has them: each continues a sum where the other one left it, in shared memory.

    Without `waits` the second one arrives where it should wait for the last time: a race."""

    def body(x: Any, o: Any, buffer: Any) -> None:
        wg = jax.lax.axis_index("wg")

        @pl.when(wg == 0)
        def ping() -> None:
            buffer[...] = x[0]
            for r in range(rounds):
                if r:
                    smalt.named_barrier_sync(10, 256)
                buffer[...] = buffer[...] * 2 + 1
                smalt.named_barrier_arrive(9, 256)

        @pl.when(wg == 1)
        def pong() -> None:
            for r in range(rounds):
                if waits or r + 1 < rounds:
                    smalt.named_barrier_sync(9, 256)
                else:
                    smalt.named_barrier_arrive(9, 256)
                buffer[...] = buffer[...] * 3 + 1
                if r + 1 < rounds:
                    smalt.named_barrier_arrive(10, 256)
            o[...] = buffer[...]

    return kernel(body, out(256, np.uint32), plgpu.SMEM((256,), jnp.uint32), num_threads=2, thread_name="wg")


def test_ping_pong_by_named_barriers() -> None:
    x = random((1, 256), np.uint32)
    with enabled():
        got = np.asarray(jax.jit(ping_pong(5))(x))
    expected = x[0]
    for _ in range(5):
        expected = (expected * U32(2) + U32(1)) * U32(3) + U32(1)
    np.testing.assert_array_equal(got, expected)


def test_warps_wait_for_each_other_by_a_named_barrier() -> None:
    """Of one warpgroup, beside the compiler's own barriers."""

    def body(x: Any, o: Any, buffer: Any) -> None:
        for i in range(3):
            buffer[...] = x[...] + i
            smalt.named_barrier_sync(15, 128)
            o[i] = buffer[...]

    x = random((128,), np.int32)
    np.testing.assert_array_equal(run(body, out(3, 128, np.int32), x, scratch=[plgpu.SMEM((128,), jnp.int32)]), np.stack([x, x + 1, x + 2]))
