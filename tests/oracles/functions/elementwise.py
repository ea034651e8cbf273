"""Element by element: arithmetic, comparisons, bits, special functions; every type, several shapes."""

from __future__ import annotations

import itertools
from typing import Any

import jax.numpy as jnp
from jax import lax

from tests.oracles.functions.case import DTYPES, case

SHAPES = ("8,128", "10", "257", "5,7", "", "2,3,5", "1", "33")
FLOATS = ("f32", "bf16", "f16", "f64")
INTS = ("i32", "u8", "i8", "u32", "i16", "u16", "i64", "u64")
ALL = (*FLOATS, *INTS)
_SHAPE = itertools.cycle(SHAPES)


def each(names: str, dtypes: tuple[str, ...], arity: int = 1, domains: tuple[str, ...] = (), **keep: Any) -> None:
    """Functions of `arity` arrays of one type and shape; `domains` of the operands, "any" where none is given."""
    names_ = names.split()
    domains = domains or ("any",) * arity
    for name in names_:
        for i, dtype in enumerate(dtypes):
            for _ in range(2 if i == 0 else 1):
                shape = next(_SHAPE)
                case(name, None, " ".join(f"{dtype}[{shape}]" + (f":{d}" if d else "") for d in domains[:arity]), **keep)


# ------------------------------------------------------------------------------------------ jax.numpy

each("jnp.sin jnp.cos jnp.tanh jnp.arctan jnp.arcsinh jnp.exp jnp.exp2 jnp.expm1 jnp.cbrt jnp.sinc", FLOATS)
each("jnp.tan jnp.sinh jnp.cosh", FLOATS)
each("jnp.arcsin jnp.arccos jnp.arctanh", FLOATS, domains=("unit",))
each("jnp.log jnp.log2 jnp.log10 jnp.log1p jnp.sqrt", FLOATS)
each("jnp.arccosh", FLOATS, domains=("ge1",))
each("jnp.asin jnp.acos jnp.atanh", ("f32",), domains=("unit",))
each("jnp.atan jnp.asinh", ("f32",))
each("jnp.acosh", ("f32",), domains=("ge1",))
each("jnp.sin jnp.exp jnp.sqrt jnp.log1p jnp.arctan", ("i32", "u8", "bool"), domains=("pos",))
each("jnp.floor jnp.ceil jnp.trunc jnp.rint jnp.round jnp.fabs jnp.isnan jnp.isinf jnp.isfinite jnp.signbit", FLOATS)
each("jnp.isposinf jnp.isneginf jnp.nan_to_num jnp.modf jnp.around jnp.fix jnp.spacing", FLOATS)
each("jnp.frexp", ("f32", "f16", "f64"))
each("jnp.floor jnp.isnan jnp.isfinite jnp.rint jnp.signbit", ("i32", "u8"))
each("jnp.abs jnp.absolute jnp.sign jnp.square jnp.negative jnp.positive", ALL)
each("jnp.conj jnp.conjugate jnp.real jnp.imag jnp.angle jnp.isreal jnp.iscomplex", ("f32", "i32"))
each("jnp.reciprocal", FLOATS)
each("jnp.deg2rad jnp.rad2deg jnp.degrees jnp.radians", FLOATS)
each("jnp.bitwise_not jnp.invert jnp.bitwise_invert", (*INTS, "i4", "u4"))
each("jnp.bitwise_count", INTS)
each("jnp.bitwise_not jnp.invert jnp.logical_not jnp.positive jnp.abs", ("bool",))
each("jnp.logical_not", ALL)
each("jnp.i0", ("f32", "f64"), domains=("",))
each("jnp.unwrap", ("f32",), domains=("",))

each("jnp.add jnp.subtract jnp.multiply jnp.maximum jnp.minimum", ALL, 2)
each("jnp.add jnp.multiply jnp.maximum jnp.minimum", ("bool",), 2)
each("jnp.add jnp.subtract jnp.multiply jnp.maximum jnp.minimum jnp.equal jnp.less", ("i4", "u4", "e4m3", "e5m2"), 2, ("", ""))
each("jnp.divide jnp.true_divide jnp.fmod jnp.remainder jnp.mod", FLOATS, 2)
each("jnp.divide jnp.fmod jnp.remainder jnp.floor_divide jnp.divmod", INTS, 2, ("", "pos"))
each("jnp.floor_divide jnp.divmod", FLOATS, 2, ("", "pos"), compare="xla")
each("jnp.fmax jnp.fmin jnp.copysign jnp.hypot jnp.arctan2 jnp.heaviside jnp.logaddexp jnp.logaddexp2", FLOATS, 2)
each("jnp.atan2", ("f32",), 2)
each("jnp.nextafter", ("f32", "f64", "f16", "bf16"), 2, compare="bits")
each("jnp.power jnp.pow jnp.float_power", FLOATS, 2, ("pos", ""))
each("jnp.power", ("i32", "u8", "i64"), 2, ("", "<4"))
each("jnp.equal jnp.not_equal jnp.less jnp.less_equal jnp.greater jnp.greater_equal", (*ALL, "bool"), 2)
each("jnp.logical_and jnp.logical_or jnp.logical_xor", ("bool", "i32", "f32", "f16"), 2)
each("jnp.bitwise_and jnp.bitwise_or jnp.bitwise_xor", (*INTS, "bool", "i4", "u4"), 2)
each("jnp.left_shift jnp.right_shift jnp.bitwise_left_shift jnp.bitwise_right_shift", INTS, 2, ("any", "<8"))
each("jnp.gcd jnp.lcm", ("i32", "u8", "i64"), 2, ("", "pos"))
case("jnp.ldexp", None, "f32[33] i32[33]", "f16[8,128] i32[8,128]", "f64[5] i32[5]")
each("jnp.isclose", ("f32", "i32", "f64"), 2)
case("jnp.where", lambda p, x, y: jnp.where(p, x, y), *(f"bool[5,7] {d}[5,7] {d}[5,7]" for d in (*ALL, "bool", "i4", "u4", "e4m3", "e5m2")))
case("jnp.clip", lambda x: jnp.clip(x, 1, 3), *(f"{d}[257]" for d in ALL))
case("jnp.clip", None, "f32[8,128] f32[8,128] f32[8,128]", "i32[10] i32[10] i32[10]")
case("jnp.select", lambda a, b, x, y: jnp.select([a, b], [x, y], 7), "bool[33] bool[33] f32[33] f32[33]", "bool[5,7] bool[5,7] i32[5,7] i32[5,7]")
case("jnp.piecewise", lambda x: jnp.piecewise(x, [x < 0, x > 1], [lambda v: -v, lambda v: v * v, 0.5]), "f32[10]")
case("jnp.add", None, "f32[8,128] f32[128]", "f32[5,1] f32[1,7]", "f32[10] f32[]", "f32[33] i32[33]", "bf16[33] f32[33]", "u8[9] i32[9]")
case("jnp.astype", lambda x: jnp.astype(x, jnp.float32), *(f"{d}[5,7]" for d in (*ALL, "bool", "i4", "u4", "e4m3", "e5m2")))
for to in (*ALL, "bool", "i4", "u4", "e4m3", "e5m2"):
    case("lax.convert_element_type", lambda x, to=to: lax.convert_element_type(x, DTYPES[to]), "f32[257]", "i32[8,16]", "i4[10]", "e4m3[5,7]")
case("lax.convert_element_type", lambda x: lax.convert_element_type(x, jnp.bfloat16), "f64[10]", "i64[5,7]", "u64[3]", "bool[33]")

# ------------------------------------------------------------------------------------------ jax.lax

each("lax.sin lax.cos lax.tan lax.tanh lax.sinh lax.cosh lax.atan lax.asinh lax.exp lax.exp2 lax.expm1 lax.cbrt lax.logistic", FLOATS)
each("lax.asin lax.acos lax.atanh", FLOATS, domains=("unit",))
each("lax.acosh", FLOATS, domains=("ge1",))
each("lax.log lax.log1p lax.sqrt lax.rsqrt lax.log2", FLOATS, domains=("pos",))
each("lax.erf lax.erfc", FLOATS)
each("lax.erf_inv", FLOATS, domains=("unit",))
each("lax.lgamma lax.digamma", FLOATS, domains=("",), wide=1 << 14)
each("lax.lgamma lax.digamma", FLOATS, wide=1 << 14)
each("lax.bessel_i0e lax.bessel_i1e", FLOATS)
each("lax.igamma lax.igammac lax.igamma_grad_a lax.random_gamma_grad", ("f32", "f64", "bf16"), 2, ("pos", "pos"), wide=1 << 14)
each("lax.zeta", ("f32", "f64"), 2, ("ge1", "pos"), wide=1 << 14)
each("lax.betainc", ("f32", "f64"), 3, ("pos", "pos", "prob"), wide=1 << 14)
case("lax.polygamma", None, "f32[33]:<5 f32[33]:pos", "f64[5,7]:<5 f64[5,7]:pos", wide=1 << 14)
each("lax.neg lax.sign lax.square", ALL)
each("lax.abs", ("f32", "i32", "bf16", "i8", "i64", "f64"))
each("lax.floor lax.ceil lax.is_finite lax.reciprocal", FLOATS, domains=("pos",))
each("lax.round", FLOATS)
each("lax.bitwise_not lax.clz lax.population_count", INTS)
each("lax.add lax.sub lax.mul lax.max lax.min", ALL, 2)
each("lax.div lax.rem", FLOATS, 2)
each("lax.div lax.rem", INTS, 2, ("any", "any"))
each("lax.atan2", FLOATS, 2)
each("lax.pow", FLOATS, 2, ("pos", ""))
each("lax.nextafter", ("f32", "f64"), 2, compare="bits")
each("lax.eq lax.ne lax.lt lax.le lax.gt lax.ge", (*FLOATS, "i32", "u8", "i64", "bool", "i4", "e4m3"), 2, ("", ""))
each("lax.bitwise_and lax.bitwise_or lax.bitwise_xor", (*INTS, "bool"), 2)
each("lax.shift_left lax.shift_right_logical lax.shift_right_arithmetic", INTS, 2)
each("lax.mulhi", ("i32", "u32", "i64", "u64", "u8", "i16"), 2)
case("lax.integer_pow", lambda x: lax.integer_pow(x, 3), *(f"{d}[10]" for d in ALL))
case("lax.integer_pow", lambda x: lax.integer_pow(x, -2), "f32[257]", "bf16[33]", "f64[5]")
case("lax.clamp", lambda x: lax.clamp(jnp.array(1, x.dtype), x, jnp.array(3, x.dtype)), *(f"{d}[33]" for d in ALL))
case("lax.select", None, *(f"bool[33] {d}[33] {d}[33]" for d in (*ALL, "bool", "i4", "u4", "e4m3", "e5m2")))
case("lax.select_n", lambda w, x, y, z: lax.select_n(w, x, y, z), "i32[33]:<3 f32[33] f32[33] f32[33]", "i32[5,7]:<3 i8[5,7] i8[5,7] i8[5,7]")
case("lax.reduce_precision", lambda x: lax.reduce_precision(x, 5, 10), "f32[257]:any", "bf16[33]:any", "f16[10]:any", "f64[10]:any", compare="bits")
case("lax.bitcast_convert_type", lambda x: lax.bitcast_convert_type(x, jnp.int32), "f32[33]:any", "u32[5,7]:any", "f16[10,2]", "u8[5,4]:any", "f64[5]:any")
case("lax.bitcast_convert_type", lambda x: lax.bitcast_convert_type(x, jnp.uint8), "f32[33]:any", "bf16[5,7]", "i8[9]:any", "i64[3]:any", "e4m3[10]")
case("lax.stop_gradient", None, "f32[33]", "i32[5]")
case("lax.optimization_barrier", None, "f32[33]", "i32[5]")
case("lax.one_minus_square", None, "f32[33]", "f64[5]", "bf16[8]")

# ------------------------------------------------------------------------------------------ complex numbers

COMPLEX = ("c64", "c128")
each("jnp.abs jnp.angle jnp.conj jnp.real jnp.imag jnp.negative jnp.square jnp.exp jnp.log jnp.sqrt jnp.sin jnp.cos jnp.tanh", COMPLEX, domains=("",), compare="norm")
each("jnp.sign jnp.reciprocal jnp.expm1 jnp.log1p jnp.sinh jnp.cosh jnp.tan jnp.isfinite", ("c64",), domains=("",), compare="norm")
each("jnp.add jnp.subtract jnp.multiply jnp.divide jnp.equal jnp.not_equal", COMPLEX, 2, ("", ""), compare="norm")
each("jnp.power", ("c64",), 2, ("", ""), compare="norm", ulps=64)
case("lax.complex", None, "f32[33] f32[33]", "f64[5,7] f64[5,7]", "f32[] f32[]")
case("lax.real", None, "c64[33]", "c128[5]")
case("lax.imag", None, "c64[33]", "c128[5]")
case("lax.conj", None, "c64[33]", "f32[5,7]", compare="norm")
case("jnp.where", lambda p, x, y: jnp.where(p, x, y), "bool[33] c64[33] c64[33]")
case("jnp.sum", None, "c64[5,7]", compare="norm")
case("jnp.reshape", lambda x: jnp.reshape(x, (7, 5)), "c64[5,7]")
case("jnp.transpose", None, "c64[5,7]")
case("jnp.concatenate", lambda x, y: jnp.concatenate([x, y]), "c64[5] c64[7]")
case("jnp.matmul", None, "c64[8,8] c64[8,8]", compare="norm")
case("lax.fori_loop", lambda z: lax.fori_loop(0, 5, lambda i, w: w * w * 0.1 + z, z), "c64[33]:unit", compare="norm", ulps=32)
case("lax.cond", lambda z: lax.cond(z.real.sum() > 0, lambda w: w + 1, lambda w: w * 2j, z), "c64[10]", compare="norm")
case("jnp.astype", lambda x: jnp.astype(x, jnp.complex64), "f32[10]", "i32[5]", "c128[5]")
