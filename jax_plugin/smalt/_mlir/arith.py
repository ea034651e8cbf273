"""MLIR's `arith`, `math` and `vector`, and LLVM's arithmetic, as inline PTX: element by element."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from smalt import _registry
from smalt._mlir.text import F32, I32, Kind, Text, unsupported

Scalar = Callable[..., str]
#: name of the op → (text, type of the first operand, type of the result, attributes, operands) → register, for each element.
ELEMENTWISE: dict[str, Scalar] = {}
#: name of the op → what translates it as a whole.
VECTORS: dict[str, Callable[[Any, Any], Any]] = {}


_elementwise = _registry.into(ELEMENTWISE)
_vectors = _registry.into(VECTORS)


def _refuse(what: str, kind: Kind, expected: str) -> Exception:
    return unsupported(f"`{what}` of {kind.name}", expected, kind.name)


# ------------------------------------------------------------------------------------------ integers


def _wraps(op: str, of_bits: str) -> Scalar:
    def f(t: Text, kind: Kind, to: Kind, op_: Any, a: str, b: str) -> str:
        if kind.bits == 1:
            return t.op(f"{of_bits}.pred", "pred", a, b)
        if kind.bits == 64:
            return t.arithmetic(op, a, b)
        return t.op(f"{op}.{kind.of_sign(False)}", kind.cls, a, b)

    return f


for _names, _op, _bit in (("add", "add", "xor"), ("sub", "sub", "xor"), ("mul", "mul.lo", "and")):
    _elementwise(f"arith.{_names}i", f"llvm.{_names}")(_wraps(_op, _bit))


def _bitwise(op: str) -> Scalar:
    def f(t: Text, kind: Kind, to: Kind, op_: Any, a: str, b: str) -> str:
        return t.op(f"{op}.{kind.cls}", kind.cls, a, b)

    return f


for _op in ("and", "or", "xor"):
    _elementwise(f"arith.{_op}i", f"llvm.{_op}")(_bitwise(_op))


def _divides(op: str, signed: bool) -> Scalar:
    """Quotients, remainders, minima and maxima: of extended numbers."""

    def f(t: Text, kind: Kind, to: Kind, op_: Any, a: str, b: str) -> str:
        x, y = t.extended(kind, a, signed), t.extended(kind, b, signed)
        cls = "b32" if kind.bits < 16 else kind.cls
        out = t.op(f"{op}.{kind.of_sign(signed)}", cls, x, y)
        return t.from_word(kind, out) if kind.bits == 1 else out

    return f


for _op in ("div", "rem", "min", "max"):
    for _signed in (False, True):
        _s = "s" if _signed else "u"
        _fn = _divides(_op, _signed)
        _elementwise(f"arith.{_op}{_s}i", f"llvm.{_s}{_op}", f"llvm.intr.{_s}{_op}")(_fn)


@_elementwise("arith.floordivsi")
def _floordiv(t: Text, kind: Kind, to: Kind, op: Any, a: str, b: str) -> str:
    x, y = t.extended(kind, a, True), t.extended(kind, b, True)
    ty, cls = kind.of_sign(True), "b32" if kind.bits < 16 else kind.cls
    q, r = t.op(f"div.{ty}", cls, x, y), t.op(f"rem.{ty}", cls, x, y)
    differ = t.op(f"setp.lt.{ty}", "pred", t.op(f"xor.{cls}", cls, r, y), "0")
    down = t.op("and.pred", "pred", differ, t.op(f"setp.ne.{ty}", "pred", r, "0"))
    less = t.op(f"sub.{ty}", cls, q, "1")
    return t.op(f"selp.{cls}", cls, less, q, down)


def _shift(op: str, signed: bool) -> Scalar:
    def f(t: Text, kind: Kind, to: Kind, op_: Any, a: str, b: str) -> str:
        if kind.bits == 1:
            raise _refuse(op_.name, kind, "integers of more than one bit")
        x = a if op == "shl" else t.extended(kind, a, signed)
        amount = t.low(b) if kind.bits == 64 else t.word(kind, t.extended(kind, b, False))
        ty = kind.cls if op == "shl" else kind.of_sign(signed)
        cls = "b32" if kind.bits < 16 else kind.cls
        return t.op(f"{op}.{ty}", cls, x, t.immediate(amount))

    return f


_elementwise("arith.shli", "llvm.shl")(_shift("shl", False))
_elementwise("arith.shrui", "llvm.lshr")(_shift("shr", False))
_elementwise("arith.shrsi", "llvm.ashr")(_shift("shr", True))

_INT_COMPARES = ("eq", "ne", "lt", "le", "gt", "ge", "lt", "le", "gt", "ge")


@_elementwise("arith.cmpi", "llvm.icmp")
def _cmpi(t: Text, kind: Kind, to: Kind, op: Any, a: str, b: str) -> str:
    which = op.attr("predicate").value
    signed = 2 <= which <= 5
    x, y = t.extended(kind, a, signed), t.extended(kind, b, signed)
    return t.op(f"setp.{_INT_COMPARES[which]}.{kind.of_sign(signed)}", "pred", x, y)


@_elementwise("arith.select", "llvm.select")
def _select(t: Text, kind: Kind, to: Kind, op: Any, p: str, a: str, b: str) -> str:
    if to.bits > 1:
        return t.op(f"selp.{to.cls}", to.cls, a, b, p)
    taken = t.op("and.pred", "pred", p, a)
    return t.op("or.pred", "pred", taken, t.op("and.pred", "pred", t.op("not.pred", "pred", p), b))


@_elementwise("math.absi")
def _absi(t: Text, kind: Kind, to: Kind, op: Any, a: str) -> str:
    cls = "b32" if kind.bits < 16 else kind.cls
    return t.op(f"abs.{kind.of_sign(True)}", cls, t.extended(kind, a, True))


@_elementwise("math.ctpop", "math.ctlz")
def _count(t: Text, kind: Kind, to: Kind, op: Any, a: str) -> str:
    if kind.bits not in (32, 64):
        raise _refuse(op.name, kind, "32 or 64 bits")
    n = t.op(f"{'popc' if op.name == 'math.ctpop' else 'clz'}.{kind.cls}", "b32", a)
    return t.wide(n, False) if kind.bits == 64 else n


# ------------------------------------------------------------------------------------------ conversions of integers


def _extends(signed: bool) -> Scalar:
    def f(t: Text, kind: Kind, to: Kind, op: Any, a: str) -> str:
        word = t.op(f"cvt.{'s' if signed else 'u'}32.{'s' if signed else 'u'}16", "b32", a) if kind.cls == "b16" else a
        if kind.bits < 32:
            word = t.extended(kind, word, signed)
        if to.bits == 64:
            return word if kind.bits == 64 else t.wide(word, signed)
        return t.from_word(to, word)

    return f


@_elementwise("arith.trunci", "llvm.trunc")
def _trunci(t: Text, kind: Kind, to: Kind, op: Any, a: str) -> str:
    if to.bits == kind.bits:
        return a
    return t.from_word(to, t.low(a) if kind.bits == 64 else t.word(kind, a))


def _index_cast(signed: bool) -> Scalar:
    def f(t: Text, kind: Kind, to: Kind, op: Any, a: str) -> str:
        return (_extends(signed) if kind.bits < to.bits else _trunci)(t, kind, to, op, a)

    return f


_elementwise("arith.extui", "llvm.zext")(_extends(False))
_elementwise("arith.extsi", "llvm.sext")(_extends(True))
_elementwise("arith.index_cast", "index.casts")(_index_cast(True))
_elementwise("arith.index_castui", "index.castu")(_index_cast(False))


@_elementwise("arith.bitcast", "llvm.bitcast")
def _bitcast(t: Text, kind: Kind, to: Kind, op: Any, a: str) -> str:
    if kind.bits != to.bits:
        raise unsupported(f"`{op.name}`", "types of equal bits", f"{kind.name} to {to.name}")
    return a


def _to_float(signed: bool) -> Scalar:
    def f(t: Text, kind: Kind, to: Kind, op: Any, a: str) -> str:
        if to.bits < 16:
            raise _refuse(op.name, to, "floats of at least 16 bits")
        return t.op(f"cvt.rn.{to.name}.{kind.of_sign(signed)}", to.cls, t.extended(kind, a, signed))

    return f


def _from_float(signed: bool) -> Scalar:
    def f(t: Text, kind: Kind, to: Kind, op: Any, a: str) -> str:
        if kind.bits < 16 or to.bits == 1:
            raise _refuse(op.name, kind, "floats of at least 16 bits, as integers")
        cls = "b32" if to.bits < 16 else to.cls
        return t.op(f"cvt.rzi.{to.of_sign(signed)}.{kind.name}", cls, a)

    return f


_elementwise("arith.sitofp", "llvm.sitofp")(_to_float(True))
_elementwise("arith.uitofp", "llvm.uitofp")(_to_float(False))
_elementwise("arith.fptosi", "llvm.fptosi")(_from_float(True))
_elementwise("arith.fptoui", "llvm.fptoui")(_from_float(False))


# ------------------------------------------------------------------------------------------ floats


def _wide_enough(op: Any, kind: Kind) -> None:
    if kind.bits < 16:
        raise _refuse(op.name, kind, "floats of at least 16 bits (astype first)")


def _rounds(name: str) -> Scalar:
    def f(t: Text, kind: Kind, to: Kind, op: Any, *xs: str) -> str:
        _wide_enough(op, kind)
        return t.op(f"{name}.rn.{kind.ptx}", kind.cls, *xs)

    return f


for _names, _op in (("add", "add"), ("sub", "sub"), ("mul", "mul")):
    _elementwise(f"arith.{_names}f", f"llvm.f{_names}")(_rounds(_op))
_elementwise("math.fma", "llvm.intr.fma", "vector.fma")(_rounds("fma"))


def _in_f32(f: Callable[..., str]) -> Scalar:
    """A function of f32, of 16-bit floats by way of f32."""

    def g(t: Text, kind: Kind, to: Kind, op: Any, *xs: str) -> str:
        if kind.bits not in (16, 32):
            raise _refuse(op.name, kind, "f32, f16 or bf16")
        if kind.bits == 32:
            return f(t, *xs)
        wide = [t.op(f"cvt.f32.{kind.name}", "b32", x) for x in xs]
        return t.op(f"cvt.rn.{kind.name}.f32", "b16", f(t, *wide))

    return g


@_elementwise("arith.divf", "llvm.fdiv")
def _divf(t: Text, kind: Kind, to: Kind, op: Any, a: str, b: str) -> str:
    if kind.bits == 64:
        return t.op("div.rn.f64", "b64", a, b)
    return _in_f32(lambda t, x, y: t.op("div.rn.f32", "b32", x, y))(t, kind, to, op, a, b)


@_elementwise("arith.negf", "llvm.fneg")
def _negf(t: Text, kind: Kind, to: Kind, op: Any, a: str) -> str:
    _wide_enough(op, kind)
    return t.op(f"neg.{kind.ptx}", kind.cls, a)


@_elementwise("math.absf", "llvm.intr.fabs")
def _absf(t: Text, kind: Kind, to: Kind, op: Any, a: str) -> str:
    _wide_enough(op, kind)
    return t.op(f"abs.{kind.ptx}", kind.cls, a)


def _extreme(name: str, nan: str) -> Scalar:
    def f(t: Text, kind: Kind, to: Kind, op: Any, a: str, b: str) -> str:
        _wide_enough(op, kind)
        if kind.bits < 64 or not nan:
            return t.op(f"{name}{nan}.{kind.ptx}", kind.cls, a, b)
        # NaN + x is a NaN.
        either = t.op("setp.nan.f64", "pred", a, b)
        return t.op("selp.b64", "b64", t.op("add.rn.f64", "b64", a, b), t.op(f"{name}.f64", "b64", a, b), either)

    return f


for _op in ("min", "max"):
    _elementwise(f"arith.{_op}imumf")(_extreme(_op, ".NaN"))
    _elementwise(f"arith.{_op}numf")(_extreme(_op, ""))

_FLOAT_COMPARES = ("", "eq", "gt", "ge", "lt", "le", "ne", "num", "equ", "gtu", "geu", "ltu", "leu", "neu", "nan", "")


@_elementwise("arith.cmpf", "llvm.fcmp")
def _cmpf(t: Text, kind: Kind, to: Kind, op: Any, a: str, b: str) -> str:
    _wide_enough(op, kind)
    which = op.attr("predicate").value
    if which in (0, 15):
        return t.constant(to, which & 1)
    return t.op(f"setp.{_FLOAT_COMPARES[which]}.{kind.ptx}", "pred", a, b)


@_elementwise("arith.extf", "llvm.fpext")
def _extf(t: Text, kind: Kind, to: Kind, op: Any, a: str) -> str:
    if kind.name in ("f8E4M3FN", "f8E5M2"):
        h = t.op("cvt.u16.u32", "b16", a)
        pair = t.op(f"cvt.rn.f16x2.{'e4m3x2' if kind.name == 'f8E4M3FN' else 'e5m2x2'}", "b32", h)
        half = t.rebits([pair], I32, Kind("f16", 16))[0]
        return half if to.name == "f16" else _extf(t, Kind("f16", 16), to, op, half) if to.name != "bf16" else _via_f32(t, half)
    _wide_enough(op, kind)
    if to.bits <= kind.bits:
        raise unsupported(f"`{op.name}`", "a wider float", f"{kind.name} to {to.name}")
    return t.op(f"cvt.{to.name}.{kind.name}", to.cls, a)


def _via_f32(t: Text, half: str) -> str:
    return t.op("cvt.rn.bf16.f32", "b16", t.op("cvt.f32.f16", "b32", half))


#: MLIR's rounding modes, by number.
_ROUNDINGS = {0: "rn", 1: "rm", 2: "rp", 3: "rz"}


@_elementwise("arith.truncf", "llvm.fptrunc")
def _truncf(t: Text, kind: Kind, to: Kind, op: Any, a: str) -> str:
    how = op.attr("roundingmode")
    rounding = "rn" if how is None else _ROUNDINGS.get(int(how.value) if hasattr(how, "value") else _mode(str(how)))
    if rounding is None:
        raise unsupported(f"`{op.name}`", "rounding to nearest even, down, up or toward zero", str(how))
    if to.bits < 16 or kind.name == "f64" and to.name == "bf16":
        raise unsupported(f"`{op.name}`", "f64 to f32 or f16, f32 to f16 or bf16 (FragmentedArray.astype has others)", f"{kind.name} to {to.name}")
    return t.op(f"cvt.{rounding}.{to.name}.{kind.name}", to.cls, a)


def _mode(text: str) -> int:
    names = ("to_nearest_even", "downward", "upward", "toward_zero")
    return next((i for i, name in enumerate(names) if name in text), -1)


@_elementwise("math.copysign", "llvm.intr.copysign")
def _copysign(t: Text, kind: Kind, to: Kind, op: Any, a: str, b: str) -> str:
    if kind.bits not in (16, 32):
        raise _refuse(op.name, kind, "f32, f16 or bf16")
    sign = 1 << (kind.bits - 1)
    ty = kind.cls
    size = t.op(f"and.{ty}", ty, a, t.constant(Kind(f"i{kind.bits}", kind.bits), sign - 1))
    return t.op(f"or.{ty}", ty, size, t.op(f"and.{ty}", ty, b, t.constant(Kind(f"i{kind.bits}", kind.bits), sign)))


def _f32(t: Text, x: float) -> str:
    return t.constant(F32, F32.encode(x))


def _whole(how: str) -> Callable[[Text, str], str]:
    return lambda t, x: t.op(f"cvt.{how}.f32.f32", "b32", x)


for _name, _how in (("floor", "rmi"), ("ceil", "rpi"), ("trunc", "rzi"), ("roundeven", "rni")):
    _elementwise(f"math.{_name}")(_in_f32(_whole(_how)))


def _round(t: Text, x: str) -> str:
    """Halves away from zero."""
    whole = t.op("cvt.rzi.f32.f32", "b32", x)
    rest = t.op("abs.f32", "b32", t.op("sub.rn.f32", "b32", x, whole))
    away = t.op("setp.ge.f32", "pred", rest, _f32(t, 0.5))
    signed_one = _copysign(t, F32, F32, None, _f32(t, 1.0), x)
    return t.op("selp.b32", "b32", t.op("add.rn.f32", "b32", whole, signed_one), whole, away)


def _exp(t: Text, x: str) -> str:
    """2ⁿ · 2ʳ, n the integer nearest to x / ln 2, of which one half is multiplied in at a time: within 2 ulp."""
    x = t.op("min.NaN.f32", "b32", t.op("max.NaN.f32", "b32", x, _f32(t, -105.0)), _f32(t, 90.0))
    n = t.op("cvt.rni.f32.f32", "b32", t.op("mul.rn.f32", "b32", x, _f32(t, math.log2(math.e))))
    r = t.op("fma.rn.f32", "b32", n, _f32(t, -0.693359375), x)
    r = t.op("fma.rn.f32", "b32", n, _f32(t, 0.693359375 - math.log(2)), r)
    r = t.op("ex2.approx.f32", "b32", t.op("mul.rn.f32", "b32", r, _f32(t, math.log2(math.e))))
    half = t.op("cvt.rzi.f32.f32", "b32", t.op("mul.rn.f32", "b32", n, _f32(t, 0.5)))
    scale = t.op("ex2.approx.f32", "b32", half)
    rest = t.op("ex2.approx.f32", "b32", t.op("sub.rn.f32", "b32", n, half))
    return t.op("mul.rn.f32", "b32", t.op("mul.rn.f32", "b32", r, scale), rest)


def _log(t: Text, x: str) -> str:
    """x = m · 2ᵉ with m around 1, ln m by the series of 2 artanh((m − 1) / (m + 1)): within 2 ulp."""
    tiny = t.op("setp.lt.f32", "pred", x, _f32(t, 2.0**-126))
    scaled = t.op("selp.b32", "b32", t.op("mul.rn.f32", "b32", x, _f32(t, 2.0**23)), x, tiny)
    above = t.op("sub.s32", "b32", scaled, t.constant(I32, F32.encode(math.sqrt(0.5))))
    e = t.op("shr.s32", "b32", above, "23")
    m = t.op("sub.s32", "b32", scaled, t.op("shl.b32", "b32", e, "23"))
    e = t.op("cvt.rn.f32.s32", "b32", e)
    e = t.op("selp.b32", "b32", t.op("sub.rn.f32", "b32", e, _f32(t, 23.0)), e, tiny)
    one = _f32(t, 1.0)
    f = t.op("sub.rn.f32", "b32", m, one)
    s = t.op("div.rn.f32", "b32", f, t.op("add.rn.f32", "b32", m, one))
    z = t.op("mul.rn.f32", "b32", s, s)
    p = _f32(t, 2 / 11)
    for k in (9, 7, 5, 3):
        p = t.op("fma.rn.f32", "b32", p, z, _f32(t, 2 / k))
    # 2s = f − s·f, of which f is exact.
    p = t.op("mul.rn.f32", "b32", t.op("mul.rn.f32", "b32", p, z), s)
    p = t.op("sub.rn.f32", "b32", p, t.op("mul.rn.f32", "b32", s, f))
    p = t.op("fma.rn.f32", "b32", e, _f32(t, math.log(2) - 0.693359375), p)
    out = t.op("fma.rn.f32", "b32", e, _f32(t, 0.693359375), t.op("add.rn.f32", "b32", f, p))
    # Of infinity and NaN themselves, of zero −∞, of what is negative NaN.
    out = t.op("selp.b32", "b32", out, t.op("add.rn.f32", "b32", x, x), t.op("setp.lt.f32", "pred", x, _f32(t, math.inf)))
    out = t.op("selp.b32", "b32", _f32(t, math.nan), out, t.op("setp.lt.f32", "pred", x, _f32(t, 0.0)))
    return t.op("selp.b32", "b32", _f32(t, -math.inf), out, t.op("setp.eq.f32", "pred", x, _f32(t, 0.0)))


_elementwise("math.round")(_in_f32(_round))
_elementwise("math.exp")(_in_f32(_exp))
_elementwise("math.log")(_in_f32(_log))
_elementwise("math.exp2")(_in_f32(lambda t, x: t.op("ex2.approx.f32", "b32", x)))
_elementwise("math.rsqrt")(_in_f32(lambda t, x: t.op("rsqrt.approx.f32", "b32", x)))


@_elementwise("math.sqrt")
def _sqrt(t: Text, kind: Kind, to: Kind, op: Any, a: str) -> str:
    if kind.bits == 64:
        return t.op("sqrt.rn.f64", "b64", a)
    return _in_f32(lambda t, x: t.op("sqrt.rn.f32", "b32", x))(t, kind, to, op, a)


# ------------------------------------------------------------------------------------------ vectors


def _strides(shape: Sequence[int]) -> list[int]:
    out = [1]
    for n in reversed(shape[1:]):
        out.append(out[-1] * n)
    return out[::-1]


def _span(shape: Sequence[int], at: Sequence[int]) -> tuple[int, int]:
    """Where a part of a vector begins, and its length."""
    strides = _strides(shape)
    return sum(i * s for i, s in zip(at, strides)), math.prod(shape[len(at) :])


def _static(op: Any) -> list[int]:
    at: list[int] = op.ints("static_position")
    if len(op.operands) > (1 if op.name == "vector.extract" else 2):
        raise unsupported(f"`{op.name}`", "positions that are known when the kernel is compiled", "a position that is computed")
    return at


@_vectors("vector.extract")
def _extract(cx: Any, op: Any) -> Any:
    first, n = _span(op.shape_of(0), _static(op))
    return cx.get(op.operands[0])[first : first + n]


@_vectors("vector.insert")
def _insert(cx: Any, op: Any) -> Any:
    first, n = _span(op.shape_of(1), _static(op))
    x, into = cx.get(op.operands[0]), cx.get(op.operands[1])
    return into[:first] + x + into[first + n :]


@_vectors("llvm.extractelement")
def _extract_element(cx: Any, op: Any) -> Any:
    return (cx.get(op.operands[0])[_position(cx, op, 1)],)


@_vectors("llvm.insertelement")
def _insert_element(cx: Any, op: Any) -> Any:
    at = _position(cx, op, 2)
    into = cx.get(op.operands[0])
    return into[:at] + cx.get(op.operands[1]) + into[at + 1 :]


def _position(cx: Any, op: Any, i: int) -> int:
    (reg,) = cx.get(op.operands[i])
    if reg not in cx.text.known:
        raise unsupported(f"`{op.name}`", "positions that are known when the kernel is compiled", "a position that is computed")
    return int(cx.text.known[reg])


@_vectors("vector.broadcast", "vector.splat")
def _broadcast(cx: Any, op: Any) -> Any:
    x, n = cx.get(op.operands[0]), math.prod(op.shape_of_result())
    shape, to = op.shape_of(0), op.shape_of_result()
    if list(shape) != list(to[len(to) - len(shape) :]) and len(x) > 1:
        raise unsupported("`vector.broadcast`", "new dimensions in front", f"{shape} to {to}")
    return x * (n // len(x))


@_vectors("vector.bitcast")
def _vector_bitcast(cx: Any, op: Any) -> Any:
    return tuple(cx.text.rebits(cx.get(op.operands[0]), op.kind_of(0), op.kind_of_result()))


@_vectors("vector.shape_cast")
def _shape_cast(cx: Any, op: Any) -> Any:
    return cx.get(op.operands[0])


@_vectors("vector.extract_strided_slice")
def _slice(cx: Any, op: Any) -> Any:
    if len(op.shape_of(0)) != 1:
        raise unsupported(f"`{op.name}`", "vectors of one dimension", str(op.shape_of(0)))
    (first,), (n,), (step,) = op.ints("offsets"), op.ints("sizes"), op.ints("strides")
    return cx.get(op.operands[0])[first : first + n * step : step]


@_vectors("vector.insert_strided_slice")
def _insert_slice(cx: Any, op: Any) -> Any:
    x, into = cx.get(op.operands[0]), cx.get(op.operands[1])
    if len(op.shape_of(1)) != 1 or op.ints("strides") != [1]:
        raise unsupported(f"`{op.name}`", "vectors of one dimension, without steps", str(op.shape_of(1)))
    (first,) = op.ints("offsets")
    return into[:first] + x + into[first + len(x) :]


@_vectors("vector.shuffle", "llvm.shufflevector")
def _shuffle(cx: Any, op: Any) -> Any:
    both = cx.get(op.operands[0]) + cx.get(op.operands[1])
    return tuple(both[max(i, 0)] for i in op.ints("mask"))


@_vectors("vector.from_elements")
def _from_elements(cx: Any, op: Any) -> Any:
    return tuple(x for v in op.operands for x in cx.get(v))


@_vectors("vector.to_elements")
def _to_elements(cx: Any, op: Any) -> Any:
    return [(x,) for x in cx.get(op.operands[0])]

