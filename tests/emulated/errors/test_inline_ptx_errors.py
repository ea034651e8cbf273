"""Texts that are no PTX, or none for a kernel: each is one clear error, at the user's line and the text's."""

from __future__ import annotations

import inspect
import re
from typing import Any

import jax
import jax.experimental.pallas as pl
import jax.experimental.pallas.mosaic_gpu as plgpu
import jax.numpy as jnp
import numpy as np
import pytest
import smalt

from tests.corpus.case import kernel, like
from tests.suites.suite_inline_ptx import ping_pong

pytestmark = pytest.mark.shared

X = like((128,), jnp.int32)


def mma(opcode: str, a: int, b: int, more: str = "") -> str:
    """A text of an `mma` of words."""
    lists = ["{" + ", ".join(names) + "}" for names in (["d0", "d1", "d2", "d3"], ["{1}"] * a, ["{2}"] * b, ["d0", "d1", "d2", "d3"])]
    return f".reg .b32 d<4>; mma.{opcode} {', '.join(lists)}{more}; mov.b32 {{0}}, d0;"


#: Texts of one result `{0}` and two operands `{1}`, `{2}`, all arrays of int32, by what their error says.
HOSTILE: dict[str, list[str]] = {
    "a carry behind a guard": [
        "{ .reg .pred p; setp.lt.s32 p, {1}, 0; @p add.cc.u32 {0}, {1}, {2}; }",
        "{ .reg .pred p; setp.lt.s32 p, {1}, 0; add.cc.u32 {0}, {1}, {2}; @!p addc.u32 {0}, {0}, 0; }",
    ],
    "a carry that is taken and not there": [
        "addc.u32 {0}, {1}, {2};",
        "madc.lo.u32 {0}, {1}, {2}, 0;",
        "add.cc.u32 {0}, {1}, {2}; subc.u32 {0}, {0}, {2};",
        "sub.cc.u32 {0}, {1}, {2}; addc.u32 {0}, {0}, {2};",
        "add.cc.u32 {0}, {1}, {2}; bra L; L: addc.u32 {0}, {0}, {2};",
        "{ .reg .pred p; L: add.cc.u32 {0}, {1}, {2}; setp.lt.s32 p, {0}, 0; @p bra L; addc.u32 {0}, {0}, 0; }",
    ],
    "does not end with a semicolon": [
        "mov.b32 {0}, {1}",
        "add.s32 {0}, {1}, {2}; mov.b32 {0}, {1}",
        "nonsense",
        "add.s32 {0}, {1}, {2}; # a comment of another language",
        "🦀",
        "L: mov.b32 {0}, {1}; M: mov.b32",
    ],
    "no instruction of smalt's table": [
        "move.b32 {0}, {1};",
        "mov.b32 {0};",
        "mov.b32 {0}, {1}, {2};",
        "mov.b32, {0}, {1};",
        "add {0}, {1}, {2};",
        "add.s33 {0}, {1}, {2};",
        "add.s32.s32 {0}, {1}, {2};",
        "add.s32 {0} {1} {2};",
        "add.s32 {0}, {1}, {2},;",
        "add.s32 {0},, {1};",
        "add.s32 ({0}), {1}, {2};",
        "add.s32 {0}, {1} + {2};",
        "add.s32 {0}, [{1}], {2};",
        "ADD.S32 {0}, {1}, {2};",
        "mov.b32 5, {0}; mov.b32 {0}, {1};",
        "sub.f32.rn {0}, {1}, {2};",
        "ld.shared.b32 {0}, {1};",
        "ld.shared.b32 {0}, [{1}*4];",
        "ld.shared.b32 {0}, [{1}+{2}];",
        "ld.shared.b32 {0}, [{1}+1.5];",
        "ld.shared.b32 {0}, [8];",
        "st.shared.b32 [{1}; mov.b32 {0}, {1};",
        "st.shared.b32 {1}], {2}; mov.b32 {0}, {1};",
        "shfl.sync.bfly.b32 {0}, {1}, 1, 31;",
        "shfl.bfly.b32 {0}, {1}, 1, 31;",
        "vote.sync.most.pred {0}, {1}, -1;",
        "tcgen05.shift.cta_group::1.down [{1}]; mov.b32 {0}, {1};",
        "multimem.red.add.u32 [{1}], {2}; mov.b32 {0}, {1};",
        "; ; ; foo;",
        "mov.b32 {0}, {1}; and;",
        "lop3.b32 {0}, {1}, {2};",
        "lop3.b32 {0}, {1}, {2}, {1}, {1};",
        "cvt.s32.f33 {0}, {1};",
        "ex3.approx.f32 {0}, {1};",
    ],
    "is not declared": [
        "mov.b32 {0}, x;",
        "mov.b32 {0}, %r1;",
        "mov.b32 x, {1}; mov.b32 {0}, x;",
        "{ .reg .b32 t; mov.b32 t, {1}; } mov.b32 {0}, t;",
        "mov.u32 {0}, %tdi.x;",
        "mov.b32 {0}, smalt_smem;",
        "ld.local.b32 {0}, [smalt_local+0];",
        "ld.param.b32 {0}, [smalt_p0];",
        "@p mov.b32 {0}, {1};",
        "@ mov.b32 {0}, {1};",
        "mov.b32 {0}, {1}; mov.b32 _x, {0};",
        "mov.b32 {0}, nan;",
        "asm volatile (\"mov.b32 %0, %1;\" : \"=r\"({0}));",
    ],
    "stands for nothing": ["mov.b32 {0}, {3};", "mov.b32 {7}, {1};", "mov.b32 {0}, {99999999999999999999};", "@{9} mov.b32 {0}, {1};"],
    "register where a": [
        ".reg .b64 d; mov.b64 d, {1}; mov.b32 {0}, {1};",
        ".reg .b16 h; mov.b32 {0}, h;",
        ".reg .pred p; add.s32 {0}, {1}, p;",
        "setp.eq.s32 {0}, {1}, {2};",
        "selp.b32 {0}, {1}, {2}, {1};",
        "ld.global.b32 {0}, [{1}];",
        "mul.wide.s32 {0}, {1}, {2};",
        "cvt.f64.f32 {0}, {1};",
        "add.rn.f64 {0}, {1}, {2};",
    ],
    "PTX has no such form": [
        "ld.shared.v3.b32 {{0}, {1}, {2}}, [{1}];",
        mma("sync.aligned.m16n8k32.row.col.s32.s4.s4.s32", 4, 2),
        mma("sync.aligned.m16n8k16.row.col.s32.s4.s4.s32", 4, 2),
        mma("sync.aligned.m16n8k16.row.col.satfinite.f32.f16.f16.f32", 4, 2),
        mma("sp::ordered_metadata.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32", 2, 2, ", {1}, 4"),
        mma("sp::ordered_metadata.sync.aligned.m16n8k64.row.col.s32.s8.s8.s32", 4, 4, ", {1}, 1"),
        "bfind.u16 {0}, {1};", "abs.u32 {0}, {1};", "bfe.u32 {0}, {1}, 300, 4;", "neg.u32 {0}, {1};"],
    "a directive": [".shared .b32 a; mov.b32 {0}, {1};", ".version 8.0; mov.b32 {0}, {1};", ".entry f; mov.b32 {0}, {1};", ".regs .b32 a;"],
    "registers of type": [".reg .b8 a; mov.b32 {0}, {1};", ".reg b32 a; mov.b32 {0}, {1};", ".reg .b128 a; mov.b32 {0}, {1};"],
    "no name of a register": [".reg .b32 1a; mov.b32 {0}, {1};", ".reg .b32; mov.b32 {0}, {1};", ".reg .b32 a b; mov.b32 {0}, {1};"],
    "declared twice": [".reg .b32 a, a; mov.b32 {0}, {1};", ".reg .b32 r<3>; .reg .b32 r2; mov.b32 {0}, {1};"],
    "`name<count>`": [".reg .b32 a<x>; mov.b32 {0}, {1};", ".reg .b32 a<-1>; mov.b32 {0}, {1};"],
    "too many registers": [".reg .b32 a<100000>; mov.b32 {0}, {1};"],
    "is no predicate": ["@{1} mov.b32 {0}, {1};", "@!{2} bra L; L: mov.b32 {0}, {1};"],
    "stands nowhere": ["bra L; mov.b32 {0}, {1};", "L: mov.b32 {0}, {1}; bra M;"],
    "stands twice": ["L: L: mov.b32 {0}, {1};", "L: mov.b32 {0}, {1}; { L: } "],
    "what is no label": ["bra 5; mov.b32 {0}, {1};", "bra; mov.b32 {0}, {1};", "bra {1}; mov.b32 {0}, {1};"],
    "without its `}`": ["{ mov.b32 {0}, {1};", "{ { mov.b32 {0}, {1}; }"],
    "without its `{`": ["mov.b32 {0}, {1}; }", "} mov.b32 {0}, {1};", "mov.b32 {0}}, {1};"],
    "without its `*/`": ["mov.b32 {0}, {1}; /* more"],
    "is never written": ["mov.b32 {1}, {1};", "", "// mov.b32 {0}, {1};\n", ".reg .b32 t; mov.b32 t, {1};"],
    "in inline PTX": [
        "mov.b32 {0}, {1}; ret;",
        "exit; mov.b32 {0}, {1};",
        "call f; mov.b32 {0}, {1};",
        ".reg .pred p; setp.eq.s32 p, {1}, 0; mov.b32 {0}, {1}; @p ret;",
    ],
    "is no number": ["mov.b32 {0}, 0x1g;", "mov.b32 {0}, 12ab;", "mov.b32 {0}, 0f123;", "mov.b32 {0}, 99999999999999999999999;", "mov.b32 {0}, 1.2.3;", "mov.b32 {0}, 09;"],
    "into the middle of a loop": [
        ".reg .pred p; setp.eq.s32 p, {1}, 0; @p bra M; L: mov.b32 {0}, {1}; M: setp.ne.s32 p, {2}, 0; @p bra L;",
    ],
    "lanes that have parted": [
        ".reg .pred p; setp.gt.s32 p, {1}, 0; @p bra L; shfl.sync.bfly.b32 {0}, {1}, 1, 31, 0xffffffff; L:",
        ".reg .pred p; setp.gt.s32 p, {1}, 0; @p shfl.sync.bfly.b32 {0}, {1}, 1, 31, 0xffffffff;",
        ".reg .pred p; L: shfl.sync.bfly.b32 {0}, {1}, 1, 31, 0xffffffff; setp.gt.s32 p, {0}, 0; @p bra L;",
        ".reg .pred p; setp.gt.s32 p, {1}, 0; @p bar.warp.sync 0xffffffff; mov.b32 {0}, {1};",
    ],
    "the compiler's": ["bar.sync 0, 128; mov.b32 {0}, {1};", "bar.sync 1, 128; mov.b32 {0}, {1};", "setmaxnreg.inc.sync.aligned.u32 240; mov.b32 {0}, {1};"],
    "set up by the compiler": ["griddepcontrol.wait; mov.b32 {0}, {1};"],
    "too many labels": ["".join(f"L{i}:" for i in range(300)) + "mov.b32 {0}, {1};"],
    "too long a text": ["mov.b32 {0}, {1};" * 5000],
}
TEXTS = [(text, says) for says, texts in HOSTILE.items() for text in texts]


def lower(body: Any, *types: Any, out: Any = X, scratch: Any = ()) -> None:
    with smalt.emulated("H100"):
        jax.jit(kernel(body, out, *scratch)).lower(*types)


def test_there_are_enough() -> None:
    assert len(TEXTS) >= 100 and len({text for text, _ in TEXTS}) == len(TEXTS)


def test_hostile_texts() -> None:
    here = inspect.getsourcefile(test_hostile_texts)
    for text, says in TEXTS:

        def body(x: Any, y: Any, o: Any) -> None:
            o[...] = smalt.inline_ptx(text, X, x[...], y[...])

        line = inspect.getsourcelines(body)[1] + 1
        with pytest.raises((smalt.InvalidKernel, smalt.Unsupported)) as raised:
            lower(body, X, X)
        message = str(raised.value)
        assert says in message, f"{text!r}: {message}"
        assert re.match(r"smalt: (not supported yet: )?inline PTX", message), f"{text!r}: {message}"
        assert raised.value.where == f"{here}:{line}", f"{text!r}: {message}"
        assert raised.value.expected or raised.value.got, f"{text!r}: {message}"


def test_a_line_of_the_text_is_named() -> None:
    def body(x: Any, o: Any) -> None:
        o[...] = smalt.inline_ptx(
            """
            // a comment
            add.s32 {0}, {1}, 1;  /* and
            another */ foo.s32 {0}, {1};
            """,
            X,
            x[...],
        )

    with pytest.raises(smalt.InvalidKernel, match=r"inline PTX, line 4: no instruction.*\n.*\n  got: `foo.s32 \{0\}, \{1\}`"):
        lower(body, X)


def test_what_an_mma_takes_is_said() -> None:
    """A sparsity selector that the shape does not have, registers that are too many, and metadata that means nothing."""
    f16, s8 = ("sp::ordered_metadata.sync.aligned." + form for form in ("m16n8k16.row.col.f32.f16.f16.f32", "m16n8k64.row.col.s32.s8.s8.s32"))
    for text, says in [
        (mma(f16, 2, 2, ", {1}, 4"), "it takes a sparsity selector from 0 to 3: which of each four lanes has metadata"),
        (mma(s8, 4, 4, ", {1}, 1"), "it takes a sparsity selector of 0: all lanes have metadata"),
        (mma("sync.aligned.m16n8k64.row.col.s32.s4.u4.s32", 2, 1), "it takes 4 registers of A, 2 of B, 4 of C and of D"),
        (mma("sync.aligned.m8n8k4.row.col.f32.f16.f16.f32", 2, 2), "it takes two registers of A and of B; 8 of C or D of f32, 4 of f16"),
    ]:

        def body(x: Any, y: Any, o: Any) -> None:
            o[...] = smalt.inline_ptx(text, X, x[...], y[...])

        with pytest.raises(smalt.InvalidKernel, match=re.escape(says) + "(?s:.*)expected: `mma(?s:.*)remedy: take one of these forms"):
            lower(body, X, X)

    def meaningless(x: Any, o: Any) -> None:
        o[...] = smalt.inline_ptx(mma(f16, 2, 2, ", {1}, 0").replace("{2}", "{1}"), X, x[...])

    with smalt.emulated("H100"), pytest.raises(jax.errors.JaxRuntimeError, match="metadata that means nothing(?s:.*)two rising places of four"):
        np.asarray(jax.jit(kernel(meaningless, X))(np.zeros(128, np.int32)))


# ------------------------------------------------------------------------------------------ what they are used for


def fails(error: type[Exception], says: str, text: str, out_types: Any, *args: Any, **kwargs: Any) -> None:
    """`args` are functions of the kernel's reference to 128 int32."""

    def body(x: Any, o: Any) -> None:
        smalt.inline_ptx(text, out_types, *(arg(x) if callable(arg) else arg for arg in args), **kwargs)
        o[...] = x[...]

    with pytest.raises(error, match=says):
        lower(body, X)


def test_scalars_that_lanes_do_not_agree_on() -> None:
    for text in [
        "mov.u32 {0}, %laneid;",
        "mov.u32 {0}, %tid.x;",
        ".reg .b64 t; mov.u64 t, %clock64; cvt.u32.u64 {0}, t;",
        ".reg .pred p; setp.ne.s32 p, {1}, 0; vote.sync.ballot.b32 {0}, p, 0xffffffff;",
        "add.s32 {0}, {1}, 1;",
    ]:
        args = [lambda x: x[...]] if "{1}" in text else []
        fails(smalt.InvalidKernel, "do not agree on the scalar", text, jnp.int32, *args)


def test_shapes_and_types() -> None:
    whole = lambda x: x[...]  # noqa: E731
    fails(smalt.InvalidKernel, "arrays of several shapes", "mov.b32 {0}, {1};", like((64,), jnp.int32), whole)
    fails(smalt.InvalidKernel, "a `pack` of elements", "mov.b32 {0}, {1};", X, whole, pack=0)
    fails(smalt.InvalidKernel, "a `pack` of elements", "mov.b32 {0}, {1};", X, whole, pack=-3)
    fails(smalt.InvalidKernel, "a `pack` of elements", "mov.b32 {0}, {1};", X, whole, pack=1000)
    fails(smalt.InvalidKernel, "3 elements of i32", "mov.b32 {0}, {1};", X, whole, pack=3)
    fails(smalt.InvalidKernel, "4 elements of i32", "mov.b32 {0}, {1};", X, whole, pack=4)
    fails(smalt.InvalidKernel, "a `pack` of scalars", "mov.b32 {0}, 1;", jnp.int32, pack=2)
    fails(smalt.InvalidKernel, "a type of a result", "mov.b32 {0}, 1;", "what")
    fails(smalt.InvalidKernel, "a type of a result", "mov.b32 {0}, 1;", [object()])
    fails(smalt.InvalidKernel, "no text", 5, X)  # type: ignore[arg-type]
    fails(smalt.InvalidKernel, "an operand", "mov.b32 {0}, 1;", jnp.int32, "a text")


def test_elements_in_several_lanes() -> None:
    text = ".reg .b32 t; mov.u32 t, %laneid; add.s32 {0}, {1}, t;"
    small = like((64,), jnp.int32)

    def body(x: Any, o: Any) -> None:
        row = plgpu.ShapeDtypeStruct((64,), jnp.int32, layout=plgpu.Layout.WGMMA.reduce(1))
        o[...] = smalt.inline_ptx(text, row, x[...])

    with pytest.raises(smalt.InvalidKernel, match="several lanes hold"):
        lower(body, small, out=small)


def test_lanes_without_elements() -> None:
    """What acts would act there, too."""

    def acts(x: Any, o: Any, buffer: Any) -> None:
        smalt.inline_ptx("red.relaxed.cta.shared.add.s32 [{1}], {0};", (), x[...], buffer)
        o[...] = x[...]

    for n in (8, 200):
        few = like((n,), jnp.int32)
        with smalt.emulated("H100"), pytest.raises(smalt.InvalidKernel, match="some lanes have no elements of|several lanes hold"):
            jax.jit(kernel(acts, few, plgpu.SMEM((1,), jnp.int32))).lower(few)
    odd = like((128,), jnp.int8)
    with smalt.emulated("H100"), pytest.raises(smalt.InvalidKernel, match="some lanes have no elements of"):
        text = ".reg .b32 t; cvt.u32.u16 t, {0}; red.relaxed.cta.shared.add.u32 [{1}], t;"

        def packs(x: Any, o: Any, buffer: Any) -> None:
            smalt.inline_ptx(text, (), x[...], buffer, pack=2)
            o[...] = x[...]

        jax.jit(kernel(packs, odd, plgpu.SMEM((1,), jnp.int32))).lower(odd)


def test_references_that_have_no_address() -> None:
    def body(x: Any, o: Any, acc: Any) -> None:
        smalt.inline_ptx("mbarrier.arrive.shared::cta.b64 _, [{0}], 1;", (), acc)
        o[...] = x[...]

    with smalt.emulated("H100"), pytest.raises(smalt.Unsupported, match="the address of"):
        jax.jit(kernel(body, X, plgpu.ACC((64, 64), jnp.float32))).lower(X)
    with smalt.emulated("H100"), pytest.raises(smalt.InvalidKernel, match="the address of several barriers(?s:.*)one barrier(?s:.*)4 of them"):
        jax.jit(kernel(body, X, plgpu.Barrier(num_barriers=4))).lower(X)

    tiles = (plgpu.TilingTransform((8, 32)), plgpu.SwizzleTransform(128))

    def swizzled(x: Any, o: Any, buffer: Any) -> None:
        smalt.inline_ptx(".reg .b32 t; ld.shared.b32 t, [{0}];", (), buffer)
        o[...] = x[...]

    with smalt.emulated("H100"), pytest.raises(smalt.Unsupported, match="without swizzle"):
        jax.jit(kernel(swizzled, X, plgpu.SMEM((64, 32), jnp.int32, transforms=tiles))).lower(X)


def test_outside_of_a_kernel() -> None:
    with pytest.raises(smalt.InvalidKernel, match="outside of a kernel"):
        smalt.inline_ptx("mov.b32 {0}, 1;", jnp.int32)


def test_what_an_address_reaches_is_looked_at() -> None:
    """Outside of the block's memory, and memory that another warp writes with nothing in between."""

    def outside(x: Any, o: Any, buffer: Any) -> None:
        buffer[...] = x[...]
        o[...] = smalt.inline_ptx("ld.shared.b32 {0}, [{1}+1000000];", X, buffer)

    def race(x: Any, o: Any, buffer: Any) -> None:
        buffer[...] = x[...]
        text = "{ .reg .b32 t, a; mov.u32 t, %tid.x; shl.b32 a, t, 2; add.u32 a, a, {1}; st.shared.b32 [a], t; xor.b32 a, a, 256; ld.shared.b32 {0}, [a]; }"
        o[...] = smalt.inline_ptx(text, X, buffer)

    x = np.arange(128, dtype=np.int32)
    for body, says in [(outside, "1000000|outside|shared"), (race, "another warp")]:
        with smalt.emulated("H100"), pytest.raises(jax.errors.JaxRuntimeError, match=says):
            np.asarray(jax.jit(kernel(body, X, plgpu.SMEM((128,), jnp.int32)))(x))


# ------------------------------------------------------------------------------------------ jax.vmap


def test_what_jax_vmap_cannot_map() -> None:
    strided = plgpu.ShapeDtypeStruct((128,), jnp.int32, layout=plgpu.Layout.WG_STRIDED((128,), 1))
    text = "add.s32 {0}, {1}, 1;"
    loop = "remedy: call it for one element after the other, in a loop"
    rows = like((4, 128), jnp.int32)

    bad: dict[str, tuple[Any, str]] = {
        "once": (lambda b, m, r, g, row: smalt.inline_ptx(text, jnp.int32, row[0], once=True), f"smalt.inline_ptx under jax.vmap.*got: once=True.*{loop}"),
        "unchecked": (lambda b, m, r, g, row: smalt.inline_ptx(text, row, row, unchecked=True), f"got: unchecked=True.*{loop}"),
        "layout": (lambda b, m, r, g, row: smalt.inline_ptx(text, strided, row), "got: a layout in `out_types`.*remedy: pass jax.ShapeDtypeStruct"),
        "whole": (lambda b, m, r, g, row: smalt.inline_ptx("mov.b32 {0}, 0;", jnp.int32, whole=True, arg_layouts=()) + smalt.inline_ptx("mov.b32 {0}, {1};", jnp.int32, row[0], whole=True), "got: whole=True.*on the whole arrays"),
        "memory": (lambda b, m, r, g, row: smalt.inline_ptx("st.shared.b32 [{0}], {1};", (), r, row), f"got: an access to memory.*{loop}"),
        "lanes": (lambda b, m, r, g, row: smalt.inline_ptx("{ .reg .b32 t; L: mov.u32 t, %laneid; add.s32 {0}, {1}, t; }", row, row), "got: `%laneid`, which differs"),
        "a shuffle": (lambda b, m, r, g, row: smalt.inline_ptx("shfl.sync.bfly.b32 {0}, {1}, 1, 31, -1;", row, row), f"got: `shfl.sync.bfly.b32 \\{{0\\}}, \\{{1\\}}, 1, 31, -1`.*{loop}"),
        "a barrier behind a guard": (
            lambda b, m, r, g, row: smalt.inline_ptx("{ .reg .pred p; setp.lt.s32 p, {1}, 0; L: @!p bar.sync 9, 128; mov.b32 {0}, {1}; }", row, row),
            "got: `bar.sync 9, 128`",
        ),
        "a scalar result": (lambda b, m, r, g, row: smalt.inline_ptx("add.s32 {0}, {1}, 1;", jnp.int32, row), "got: a scalar result of a text over arrays"),
        "two shapes": (lambda b, m, r, g, row: smalt.inline_ptx("add.s32 {0}, {1}, {2};", row, row, jnp.zeros((2, 128), jnp.int32)), r"arrays of one shape.*got: \[128\] and \[2, 128\]"),
        "packs": (lambda b, m, r, g, row: smalt.inline_ptx("mov.b64 {0}, {1};", row, row, pack=2), "got: pack=2.*on the whole arrays"),
        "a named barrier": (lambda b, m, r, g, row: smalt.named_barrier_sync(row[0], 128, among=range(4, 8)), f"smalt.named_barrier_sync under jax.vmap.*got: a barrier.*{loop}"),
        "an atomic": (lambda b, m, r, g, row: smalt.atomic_add(g.at[0], row[0]), f"smalt.atomic_add under jax.vmap.*got: an access to memory.*{loop}"),
        "atomics of an array": (lambda b, m, r, g, row: smalt.atomic_add(g, row), "smalt.atomic_add under jax.vmap"),
        "a load": (lambda b, m, r, g, row: smalt.load(r.at[row[0]]), f"smalt.load under jax.vmap.*got: an access to memory.*{loop}"),
        "a wait": (lambda b, m, r, g, row: smalt.mbarrier_wait(b, row[0]), f"smalt.mbarrier_wait under jax.vmap.*got: operands that jax.vmap maps.*{loop}"),
        "an arrival": (lambda b, m, r, g, row: smalt.mbarrier_arrive(b, row[0]), "smalt.mbarrier_arrive under jax.vmap"),
        "one of several": (lambda b, m, r, g, row: smalt.mbarrier_arrive(m.at[row[0]]), "smalt.mbarrier_arrive under jax.vmap"),
        "bytes": (lambda b, m, r, g, row: smalt.expect_bytes(b, row[0]), "smalt.expect_bytes under jax.vmap"),
    }
    for wrap in (lambda f: f, jax.jit):
        for name, (call, says) in bad.items():

            def body(x: Any, o: Any, g: Any, b: Any, m: Any, r: Any) -> None:
                def f(row: Any) -> Any:
                    call(b, m, r, g, row)
                    return row

                o[...] = jax.vmap(wrap(f))(x[...])

            line = call.__code__.co_firstlineno
            scratch = (plgpu.Barrier(), plgpu.Barrier(num_barriers=2), plgpu.SMEM((128,), jnp.int32))
            with pytest.raises(smalt.InvalidKernel, match=f"(?s)^smalt: .*{says}") as error:
                lower(body, rows, out=(rows, X), scratch=scratch)
            assert error.value.where and error.value.where.endswith(f"test_inline_ptx_errors.py:{line}"), (name, error.value.where, line)


# ------------------------------------------------------------------------------------------ texts that nobody reads

UNREAD = "vadd.u32.u32.u32 {0}, {1}.h0, {2};"


@pytest.mark.parametrize(
    ("text", "unchecked", "out_types", "says"),
    [
        ("foo {0}, {3};", True, X, r"(?s)line 1: `\{3\}` stands for nothing.*\{0\} to \{2\}"),
        ("foo {0}, {1}", True, X, "(?s)does not end with a semicolon"),
        ("{ foo {0};", True, X, "(?s)a `{` without its `}`"),
        ("\nfoo {0}; }", True, X, "(?s)line 2: a `}` without its `{`"),
        ("foo {0}; /* ", True, X, "(?s)a comment without"),
        (UNREAD, "12", X, "(?s)`unchecked`.*the PTX ISA.*got: '12'"),
        (UNREAD, 8.6, X, "(?s)`unchecked`.*got: 8.6"),
        (UNREAD, True, jnp.int32, "(?s)the scalar {0}.*once=True"),
        ("vadd.u32.u32.u32 {0}, {1}, {2};", False, X, r"(?s)no instruction of smalt's table.*unchecked=True"),
    ],
)
def test_texts_that_nobody_reads_and_that_are_wrong(text: str, unchecked: Any, out_types: Any, says: str) -> None:
    def body(x: Any, o: Any) -> None:
        o[...] = x[...] + smalt.inline_ptx(text, out_types, x[...], x[...], unchecked=unchecked)

    with pytest.raises(smalt.InvalidKernel, match=says) as error:
        lower(body, X)
    line = inspect.getsourcelines(body)[1] + 1
    assert error.value.where is None or error.value.where.endswith(f"test_inline_ptx_errors.py:{line}")


def unread(text: str) -> Any:
    def body(x: Any, o: Any) -> None:
        o[...] = smalt.inline_ptx(text, X, x[...], x[...], unchecked=True)

    return kernel(body, X), f"test_inline_ptx_errors.py:{inspect.getsourcelines(body)[1] + 1}"


def test_the_assembler_gets_a_text_that_nobody_reads() -> None:
    report = smalt.inspect(unread("\n" + UNREAD + " // a comment")[0], X)
    assert "vadd.u32.u32.u32 smalt_0, smalt_1.h0, smalt_2;" in report[0].ptx
    assert "a comment" not in report[0].ptx
    if report[0].assembler is None:
        pytest.skip("no assembler")
    assert report[0].registers


def test_what_the_assembler_says_of_such_a_text_names_the_line() -> None:
    if smalt.inspect(unread(UNREAD)[0], X)[0].assembler is None:
        pytest.skip("no assembler")
    call, line = unread("add.u32 {0}, {1}, {2};\nvadd.u32.u32 {0}, {1}, {2};")
    says = "\n".join(map(str, smalt.inspect(call, X)[0].warnings))
    assert re.search(r"(?s)unchecked inline PTX.*the assembler refuses it.*got: `vadd.u32.u32 smalt_0.*error.*remedy", says), says
    assert line in says


def test_the_emulator_names_what_it_does_not_have() -> None:
    def body(x: Any, o: Any, *, text: str, runs: bool) -> None:
        o[...] = x[...]

        @pl.when((x[0] == 0) == runs)
        def unread() -> None:
            o[...] = smalt.inline_ptx(text, X, x[...], x[...], unchecked=True)

    def call(text: str, runs: bool) -> Any:
        with smalt.emulated("H100"):
            return np.asarray(jax.jit(kernel(lambda x, o: body(x, o, text=text, runs=runs), X))(np.arange(128, dtype=np.int32)))

    line = inspect.getsourcelines(body)[1] + 5
    match = rf"(?s)the emulator does not have an instruction of inline PTX: `vadd.u32.u32.u32 .*remedy: run it on a GPU.*test_inline_ptx_errors.py:{line}"
    with pytest.raises(jax.errors.JaxRuntimeError, match=match):
        call("mov.b32 {0}, 1; " + UNREAD, True)
    with pytest.raises(jax.errors.JaxRuntimeError, match=r"(?s)unchecked inline PTX.*leave out `unchecked`"):
        call("add.u32 {0}, {1}, {2};", True)
    # Where nobody gets there, nothing is wrong.
    np.testing.assert_array_equal(call(UNREAD, False), np.arange(128))


# ------------------------------------------------------------------------------------------ named barriers


def test_named_barriers() -> None:
    def body(x: Any, o: Any, barrier_id: Any, num_threads: Any, among: Any) -> None:
        smalt.named_barrier_sync(barrier_id(x) if callable(barrier_id) else barrier_id, num_threads, among=among)
        o[...] = x[...]

    def computed(x: Any) -> Any:
        return x[0]

    bad: list[tuple[Any, Any, Any, str]] = [
        (-1, 128, None, "0 to 15"),
        (16, 128, None, "0 to 15"),
        (0, 128, None, "the compiler's"),
        (1, 128, None, "the compiler's"),
        (9, 0, None, "a multiple of 32"),
        (9, 100, None, "a multiple of 32"),
        (9, 2048, None, "a multiple of 32"),
        (9, 128.0, None, "known when the kernel is compiled"),
        (True, 128, None, "expected: an integer"),
        (9.0, 128, None, "expected: an integer"),
        (computed, 128, None, r"(?s)`barrier_id` that the kernel computes.*remedy: among=range\(first, last \+ 1\)"),
        (lambda x: x[...], 128, range(4, 8), r"(?s)an integer scalar.*got: int32\[128\]"),
        (lambda x: x[0] * 0.5, 128, range(4, 8), r"(?s)an integer scalar.*got: float32\[\]"),
        (computed, 128, (4, 8), r"(?s)`among`.*a range of barriers.*got: \(4, 8\)"),
        (computed, 128, range(4, 12, 2), r"(?s)without gaps.*remedy: range\(first, last \+ 1\)"),
        (computed, 128, range(4, 4), "(?s)between 1 and 15"),
        (computed, 128, range(4, 17), "(?s)between 1 and 15"),
        (computed, 128, range(1, 4), "(?s)named barriers, of which some are the compiler's.*numbers from 2 to 15.*got: 1 to 3.*remedy"),
        (9, 128, range(4, 8), r"(?s)one among range\(4, 8\).*got: 9"),
    ]
    for barrier_id, num_threads, among, says in bad:
        with pytest.raises(smalt.InvalidKernel, match=says):
            lower(lambda x, o: body(x, o, barrier_id, num_threads, among), X)


@pytest.mark.parametrize("by_hand", [False, True], ids=["named_barrier_sync", "inline_ptx"])
def test_a_named_barrier_that_is_not_among_the_declared_ones(by_hand: bool) -> None:
    """By hand, the compiler's own are what may not be named."""

    def body(x: Any, o: Any) -> None:
        number = jnp.max(x[...])
        if by_hand:
            smalt.inline_ptx("bar.sync {0}, 128;", (), number)
        else:
            smalt.named_barrier_sync(number, 128, among=range(4, 8))
        o[...] = x[...]

    line = inspect.getsourcelines(body)[1] + (3 if by_hand else 5)
    good, bad, expected = (15, 1, "2 to 15") if by_hand else (7, 8, "4 to 7")
    with smalt.emulated("H100"):
        np.asarray(jax.jit(kernel(body, X))(np.full(128, good, np.int32)))
        match = f"(?s)a named barrier that is not among.*a number from {expected}.*got: {bad}.*remedy.*test_inline_ptx_errors.py:{line}"
        with pytest.raises(jax.errors.JaxRuntimeError, match=match):
            np.asarray(jax.jit(kernel(body, X))(np.full(128, bad, np.int32)))


def test_a_round_that_does_not_wait_is_a_race() -> None:
    with smalt.emulated("H100"), pytest.raises(jax.errors.JaxRuntimeError, match="another warp"):
        np.asarray(jax.jit(ping_pong(3, waits=False))(np.zeros((1, 256), np.uint32)))


def test_threads_that_never_come() -> None:
    def body(x: Any, o: Any) -> None:
        smalt.named_barrier_sync(9, 256)
        o[...] = x[...]

    with smalt.emulated("H100"), pytest.raises(jax.errors.JaxRuntimeError, match="(?s)barrier.*256|256.*barrier"):
        np.asarray(jax.jit(kernel(body, X))(np.zeros(128, np.int32)))


# ------------------------------------------------------------------------------------------ wgmma


ISSUE = "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {0}, a, a, p, 1, 1, 0, 0;"
SPARSE = "wgmma.mma_async.sp.sync.aligned.m64n8k32.f32.f16.f16 {0}, a, a, m, %d, p, 1, 1, 0, 0;"
BYTES = "wgmma.mma_async.sp.sync.aligned.m64n8k64.f32.e4m3.e4m3 {0}, a, a, m, 1, p, 1, 1;"
FENCE, COMMIT, WAIT = "wgmma.fence.sync.aligned;", "wgmma.commit_group.sync.aligned;", "wgmma.wait_group.sync.aligned 0;"
#: Of texts with a descriptor `a`, a predicate `p` and a word `m`: what is said.
WRONG_PRODUCTS = {
    "on registers that no wgmma.fence has ordered": [
        f"{ISSUE} {COMMIT} {WAIT}",
        f"{FENCE} cvt.rn.f32.u32 {{0.1}}, {{1}}; {ISSUE} {COMMIT} {WAIT}",
        f"{FENCE} {ISSUE} {COMMIT} {WAIT} add.f32 {{0.2}}, {{0.2}}, 1.0; {ISSUE} {COMMIT} {WAIT}",
        f"mov.b32 m, {{1}}; {FENCE} add.u32 m, m, 1; {ISSUE.replace('a, a', '{m, m, m, m}, a').replace('0, 0;', '0;')} {COMMIT} {WAIT}",
    ],
    "this wgmma may be in flight": [
        f"{FENCE} {ISSUE}",
        f"{FENCE} {ISSUE} {COMMIT}",
        f"{FENCE} {ISSUE} {WAIT}",
        f"{FENCE} {ISSUE} {COMMIT} {WAIT.replace('0;', '1;')}",
        f"{FENCE} {ISSUE} {COMMIT} {WAIT} setp.eq.s32 p, {{1}}, 0; @p bra L; {FENCE} {ISSUE} {COMMIT} L:",
        f"{FENCE} {ISSUE} {COMMIT} setp.eq.s32 p, {{1}}, 0; @p bra L; {WAIT} L:",
        f"{FENCE} {ISSUE} {COMMIT} setp.eq.s32 p, {{1}}, 0; @p {WAIT}",
    ],
    "that a wgmma in flight uses is touched": [
        f"{FENCE} {ISSUE} {COMMIT} add.f32 {{0.0}}, {{0.0}}, 1.0; {WAIT}",
        f"{FENCE} {ISSUE} {WAIT} add.f32 b0, {{0.3}}, 1.0; {COMMIT} {WAIT} add.f32 {{0.3}}, {{0.3}}, b0;",
        f"{FENCE} {ISSUE} {COMMIT} {ISSUE.replace('{0}', '{b0, b1, b2, b3}')} {COMMIT} {WAIT.replace('0;', '1;')} add.f32 {{0.0}}, b0, 1.0; {WAIT}",
    ],
    "warps that have parted": [
        f".reg .b32 t; mov.u32 t, %tid.x; shr.u32 t, t, 5; setp.eq.u32 p, t, 0; {FENCE} @p bra L; {ISSUE} {COMMIT} {WAIT} L:",
        f"ld.shared.b32 m, [{{2}}]; setp.eq.u32 p, m, 0; @p bra L; {FENCE} {ISSUE} {COMMIT} {WAIT} L:",
    ],
    "stands twice among accumulators": [f"{FENCE} {ISSUE.replace('{0}', '{b0, b1, b2, b1}')} {COMMIT} {WAIT} mov.b32 {{0.0}}, b1;"],
    "PTX has no such form": [
        f"{FENCE} {SPARSE % 2} {COMMIT} {WAIT}",
        f"{FENCE} {BYTES} {COMMIT} {WAIT}",
        f"{FENCE} {ISSUE.replace('n8', 'n16')} {COMMIT} {WAIT}",
        f"{FENCE} {ISSUE.replace('1, 1', '1, 2')} {COMMIT} {WAIT}",
    ],
    "a wait for groups of wgmma": [f"{FENCE} {ISSUE} {COMMIT} {WAIT.replace('0;', '8;')}", f"{FENCE} {ISSUE} {COMMIT} {WAIT.replace('0;', 'm;')}"],
    "stands for nothing": [f"{FENCE} {ISSUE.replace('{0}', '{5}')} {COMMIT} {WAIT}", "mov.b32 {0.4}, 0;", "mov.b32 {1.1}, 0;"],
    "is a list of 4 registers": ["@{0} mov.b32 {0.0}, 0;"],
    "is never written": ["mov.b32 {0.0}, 0; mov.b32 {0.1}, 0; mov.b32 {0.3}, 0;"],
    "no instruction of smalt's table": [f"{FENCE} {SPARSE.replace('m, %d', '%d, m') % 0} {COMMIT} {WAIT}", "mov.b32 {0}, 0;"],
}


def test_wrong_products() -> None:
    here = inspect.getsourcefile(test_wrong_products)
    acc = plgpu.ShapeDtypeStruct((64, 8), jnp.float32, layout=plgpu.Layout.WGMMA)
    for says, texts in WRONG_PRODUCTS.items():
        for text in texts:

            def body(x: Any, o: Any, buffer: Any) -> None:
                code = f".reg .b64 a; .reg .pred p; .reg .b32 m; .reg .f32 b<4>; setp.eq.u32 p, 0, 0; cvt.u64.u32 a, {{2}};\n{text}"
                o[...] = smalt.inline_ptx(code, acc, x[0], buffer, whole=True)

            line = inspect.getsourcelines(body)[1] + 2
            with smalt.emulated("H100"), pytest.raises(smalt.InvalidKernel) as raised:
                jax.jit(kernel(body, like((64, 8), jnp.float32), plgpu.SMEM((2048,), jnp.int32))).lower(X)
            message = str(raised.value)
            assert says in message and "inline PTX, line 2:" in message, f"{text!r}: {message}"
            assert raised.value.where == f"{here}:{line}" and raised.value.expected, f"{text!r}: {message}"


def test_products_of_a_warp() -> None:
    def body(x: Any, o: Any, buffer: Any) -> None:
        @pl.core_map(plgpu.WarpMesh(axis_name="warp"))
        def _() -> None:
            smalt.inline_ptx(FENCE, (), buffer)

        o[...] = x[...]

    with smalt.emulated("H100"), pytest.raises(smalt.InvalidKernel, match="wgmma in a warp region"):
        jax.jit(kernel(body, X, plgpu.SMEM((2048,), jnp.int32))).lower(X)


def test_texts_that_are_whole() -> None:
    strided = plgpu.Layout.WG_STRIDED((128,), 1)
    result = plgpu.ShapeDtypeStruct((128,), jnp.int32, layout=strided)
    whole = lambda x: x[...]  # noqa: E731
    fails(smalt.InvalidKernel, "not whole", "mov.b32 {0}, {1};", X, whole, arg_layouts=(strided,))
    fails(smalt.InvalidKernel, "pack=2", "mov.b32 {0}, {1};", result, whole, whole=True, pack=2, arg_layouts=(strided,))
    fails(smalt.InvalidKernel, "once=True", "mov.b32 {0}, {1};", result, whole, whole=True, once=True, arg_layouts=(strided,))
    fails(smalt.InvalidKernel, "layouts of operands", "mov.b32 {0}, {1};", result, whole, whole=True, arg_layouts=(strided, None))
    fails(smalt.InvalidKernel, "operand 0 has no layout", "mov.b32 {0}, {1};", result, whole, whole=True)
    fails(smalt.InvalidKernel, "result 0 has no layout", "mov.b32 {0}, {1};", X, whole, whole=True, arg_layouts=(strided,))
    fails(smalt.InvalidKernel, "the layout of operand 0", "mov.b32 {0}, {1};", result, whole, whole=True, arg_layouts=(plgpu.Layout.WGMMA,))
    odd = plgpu.ShapeDtypeStruct((128,), jnp.int8, layout=strided)
    fails(smalt.InvalidKernel, "in words of 32 bits", "mov.b32 {0}, {1};", odd, whole, whole=True, arg_layouts=(strided,))
    fails(smalt.InvalidKernel, "do not agree on the scalar", "mov.u32 {0}, %laneid;", jnp.int32, whole=True)
