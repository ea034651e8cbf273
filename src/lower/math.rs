//! Transcendental functions of f32, as straight-line code.
//!
//! *Full* precision: within a few ulp over the whole range, infinities, NaN and subnormals included. Most functions reduce their
//! argument exactly (fma) and evaluate a polynomial; powers of two come from `ex2.approx`, whose error on [−½, ½] is below 2 ulp.
//! The polynomials are minimax fits made for smalt (weighted by the relative error of the function; the comment gives that error).
//! *Approximate*: what the special-function unit gives.
use super::emit::S;
use super::float::{Functions, Precision, undefined};
use crate::dtype::DType;
use crate::error::Result;
use crate::kernel_ir::UnaryOp;
use crate::ptx::build::Builder;
use crate::ptx::inst::Inst;
use crate::ptx::modifier::*;
use crate::ptx::operand::{Class, Src};
use crate::ptx::ssa::Value;
use std::f32::consts::{FRAC_PI_2, LN_2, LOG2_E, PI};

const F32: FloatType = FloatType::F32;
const SIGN: u32 = 1 << 31;
const INFINITY: u32 = 0x7f80_0000;
const NAN: S = Src::Imm(0x7fc0_0000);

fn k(x: f32) -> S {
    Src::f32(x)
}

/// Arithmetic on f32, named as on paper.
trait F32Ops {
    fn plus(&mut self, a: S, b: S) -> S;
    fn minus(&mut self, a: S, b: S) -> S;
    fn times(&mut self, a: S, b: S) -> S;
    fn fused(&mut self, a: S, b: S, c: S) -> S;
    fn negated(&mut self, a: S) -> S;
    fn magnitude(&mut self, a: S) -> S;
    /// `a` with the sign bit of `sign` added by XOR.
    fn with_sign_of(&mut self, a: S, sign: S) -> S;
    fn largest(&mut self, a: S, b: S) -> S;
    fn smallest(&mut self, a: S, b: S) -> S;
    /// Within 2 ulp. (What is correctly rounded calls a function for rare operands, element by element.)
    fn quotient(&mut self, a: S, b: S) -> S;
    /// Within 1 ulp where nothing leaves the range of normal numbers: the quotient of the reciprocal, corrected by what it leaves.
    fn ordinary_quotient(&mut self, a: S, b: S) -> S;
    /// Within 1 ulp.
    fn reciprocal(&mut self, a: S) -> S;
    /// Within 1 ulp.
    fn root(&mut self, a: S) -> S;
    fn nearest(&mut self, a: S) -> S;
    fn ex2(&mut self, a: S) -> S;
    fn less(&mut self, a: S, b: S) -> S;
    fn choose(&mut self, p: S, a: S, b: S) -> S;
    /// Coefficients are bits, lowest first.
    fn polynomial(&mut self, x: S, coefficients: &[u32]) -> S;
}

impl F32Ops for Builder {
    fn plus(&mut self, a: S, b: S) -> S {
        self.fadd(F32, a, b)
    }
    fn minus(&mut self, a: S, b: S) -> S {
        self.fsub(F32, a, b)
    }
    fn times(&mut self, a: S, b: S) -> S {
        self.fmul(F32, a, b)
    }
    fn fused(&mut self, a: S, b: S, c: S) -> S {
        self.fma(F32, a, b, c)
    }
    fn negated(&mut self, a: S) -> S {
        self.fneg(F32, a)
    }
    fn magnitude(&mut self, a: S) -> S {
        self.fabs(F32, a)
    }
    fn with_sign_of(&mut self, a: S, sign: S) -> S {
        let sign = self.and32(sign, SIGN);
        self.xor(LogicType::B32, a, sign)
    }
    fn largest(&mut self, a: S, b: S) -> S {
        self.fmin_max(MinMax::Max, NanMode::Propagate, F32, a, b)
    }
    fn smallest(&mut self, a: S, b: S) -> S {
        self.fmin_max(MinMax::Min, NanMode::Propagate, F32, a, b)
    }
    fn quotient(&mut self, a: S, b: S) -> S {
        self.emit(Inst::div_approx(DivMode::Full, Ftz::No, Value::NEW, a, b))
    }
    fn ordinary_quotient(&mut self, a: S, b: S) -> S {
        let inverse = self.mufu(Mufu::Rcp, Ftz::Yes, b);
        let q = self.times(a, inverse);
        let minus = self.negated(q);
        let left = self.fused(minus, b, a);
        self.fused(left, inverse, q)
    }
    fn reciprocal(&mut self, a: S) -> S {
        self.mufu(Mufu::Rcp, Ftz::No, a)
    }
    fn root(&mut self, a: S) -> S {
        self.mufu(Mufu::Sqrt, Ftz::No, a)
    }
    fn nearest(&mut self, a: S) -> S {
        self.cvt(CvtType::F32, CvtType::F32, CvtRound::Rni, a)
    }
    fn ex2(&mut self, a: S) -> S {
        self.mufu(Mufu::Ex2, Ftz::No, a)
    }
    fn less(&mut self, a: S, b: S) -> S {
        self.setp(Compare::Lt, CompareType::F32, a, b)
    }
    fn choose(&mut self, p: S, a: S, b: S) -> S {
        self.pick(Class::B32, p, a, b)
    }
    fn polynomial(&mut self, x: S, coefficients: &[u32]) -> S {
        let mut terms = coefficients.iter().rev().map(|&c| Src::u32(c));
        let mut sum = terms.next().unwrap_or(k(0.0));
        for c in terms {
            sum = self.fused(sum, x, c);
        }
        sum
    }
}

pub fn unary(b: &mut Builder, precision: Precision, op: UnaryOp, a: S) -> Result<S> {
    if precision.functions == Functions::Approximate
        && let Some(out) = approximate(b, op, a)
    {
        return Ok(out);
    }
    Ok(match op {
        UnaryOp::Exp => exp_scaled(b, a, 0),
        UnaryOp::Exp2 => b.ex2(a),
        UnaryOp::Expm1 => expm1(b, a),
        UnaryOp::Log => log(b, a),
        UnaryOp::Log2 => log2(b, a),
        UnaryOp::Log1p => log1p(b, a),
        UnaryOp::Cbrt => cbrt(b, a),
        UnaryOp::Sin | UnaryOp::Cos | UnaryOp::Tan => {
            let angle = angles(b, &[a])?[0];
            of_angle(b, op, angle)?
        }
        UnaryOp::Asin => asin(b, a),
        UnaryOp::Acos => acos(b, a),
        UnaryOp::Atan => atan(b, a),
        UnaryOp::Sinh => sinh(b, a),
        UnaryOp::Cosh => cosh(b, a),
        UnaryOp::Tanh => tanh(b, a),
        UnaryOp::Asinh => asinh(b, a),
        UnaryOp::Acosh => acosh(b, a),
        UnaryOp::Atanh => atanh(b, a),
        UnaryOp::Erf => erf(b, a),
        UnaryOp::Erfc => erfc(b, a),
        UnaryOp::ErfInv => erf_inv(b, a),
        UnaryOp::Logistic => logistic(b, a),
        _ => return Err(undefined(op.name(), DType::F32)),
    })
}

fn approximate(b: &mut Builder, op: UnaryOp, a: S) -> Option<S> {
    Some(match op {
        UnaryOp::Exp => {
            let t = b.times(a, k(LOG2_E));
            b.mufu(Mufu::Ex2, Ftz::Yes, t)
        }
        UnaryOp::Exp2 => b.mufu(Mufu::Ex2, Ftz::Yes, a),
        UnaryOp::Log => {
            let t = b.mufu(Mufu::Lg2, Ftz::Yes, a);
            b.times(t, k(LN_2))
        }
        UnaryOp::Log2 => b.mufu(Mufu::Lg2, Ftz::Yes, a),
        UnaryOp::Sin => b.mufu(Mufu::Sin, Ftz::Yes, a),
        UnaryOp::Cos => b.mufu(Mufu::Cos, Ftz::Yes, a),
        UnaryOp::Tanh => b.emit(Inst::TanhApprox { d: Value::NEW, a }),
        UnaryOp::Logistic => {
            // ½ tanh(x / 2) + ½
            let half = b.times(a, k(0.5));
            let t = b.emit(Inst::TanhApprox { d: Value::NEW, a: half });
            b.fused(t, k(0.5), k(0.5))
        }
        _ => return None,
    })
}

// ---------------------------------------------------------------------------------------------- exponentials

/// log2 e = LOG2_E + LOG2_E_LOW.
const LOG2_E_LOW: f32 = 1.925_963e-8;

/// 1.5 · 2²³ + 127: added to a number it rounds it to the nearest integer n, and leaves n + 127 in the low bits, which as an
/// exponent are 2ⁿ.
const ROUNDER: f32 = 12_583_039.0;
/// The same of numbers twice as large: 1.5 · 2²⁴ + 2 · 127 rounds to the nearest even integer 2m, and leaves m + 127.
const EVEN_ROUNDER: f32 = 25_166_078.0;

/// `x · factor` as n + f, f in [−½, ½] (even numbers: [−1, 1]): (2ⁿ, or 2ᵐ of n = 2m; f; −n). The power is right for exponents that
/// f32's normal numbers have.
fn split_power(b: &mut Builder, x: S, factor: f32, rounder: f32) -> (S, S, S) {
    let t = b.fused(x, k(factor), k(rounder));
    let minus_n = b.minus(k(rounder), t);
    let f = b.fused(x, k(factor), minus_n);
    let power = b.shl(BitType::B32, t, Src::u32(23));
    (power, f, minus_n)
}

/// 2^f for |f| ≤ 1: such small powers are the same with and without subnormal numbers.
fn ex2_fraction(b: &mut Builder, f: S) -> S {
    b.mufu(Mufu::Ex2, Ftz::Yes, f)
}

/// eˣ · 2^scale, scale ≤ 0 and small: 2^f · 2^m · 2^m with 2m the nearest even integer to x log2 e, f from two fused steps. Both powers
/// are normal numbers, and only the last product rounds, where the result is subnormal.
fn exp_scaled(b: &mut Builder, x: S, scale: i32) -> S {
    let x = b.largest(x, k(-105.0));
    let x = b.smallest(x, k(90.0));
    let (power, f, _) = split_power(b, x, LOG2_E, EVEN_ROUNDER);
    let f = b.fused(x, k(LOG2_E_LOW), f);
    let fraction = ex2_fraction(b, f);
    let first = b.times(fraction, power);
    let second = if scale == 0 {
        power
    } else {
        b.times(power, k(2f32.powi(scale)))
    };
    b.times(first, second)
}

/// ln 2 = LN2_HIGH + LN2_LOW; the high part has few bits, n·LN2_HIGH is exact.
const LN2_HIGH: f32 = 0.693_359_4;
const LN2_LOW: f32 = -2.121_944_4e-4;

/// (expm1(r) − r) / r² on |r| ≤ ln 2 / 2, 2^−32.
const EXPM1: [u32; 6] = [0x3f000000, 0x3e2aaaaa, 0x3d2aaa59, 0x3c0888c5, 0x3ab6b8fa, 0x3950195f];

/// eˣ − 1 = 2^n (expm1(r) + 1) − 1, computed at half its size: n = 128 occurs.
fn expm1(b: &mut Builder, a: S) -> S {
    let x = b.largest(a, k(-30.0));
    // Beyond, n would be 129; the result overflows.
    let x = b.smallest(x, k(89.0));
    // Half of 2ⁿ.
    let (half_power, _, minus_n) = split_power(b, x, LOG2_E, ROUNDER - 1.0);
    let r = b.fused(minus_n, k(LN2_HIGH), x);
    let r = b.fused(minus_n, k(LN2_LOW), r);
    let q = b.polynomial(r, &EXPM1);
    let square = b.times(r, r);
    let p = b.fused(square, q, r);
    let rest = b.minus(half_power, k(0.5));
    let half = b.fused(p, half_power, rest);
    let out = b.plus(half, half);
    // ±0 and subnormals are themselves.
    let magnitude = b.magnitude(a);
    let tiny = b.less(magnitude, k(1e-30));
    b.choose(tiny, a, out)
}

/// 1 / (1 + e^−x), by 2^−24 of the sum, whose reciprocal is a normal number wherever the result is none.
fn logistic(b: &mut Builder, x: S) -> S {
    let x = b.largest(x, k(-105.0));
    // Beyond, e^−x adds nothing to 1.
    let x = b.smallest(x, k(20.0));
    let (power, f, _) = split_power(b, x, -LOG2_E, ROUNDER - 24.0);
    let f = b.fused(x, k(-LOG2_E_LOW), f);
    let fraction = ex2_fraction(b, f);
    let scale = 2f32.powi(-24);
    let sum = b.fused(fraction, power, k(scale));
    let inverse = b.mufu(Mufu::Rcp, Ftz::Yes, sum);
    b.times(inverse, k(scale))
}

/// (tanh(x) − x) / x³ in x² for |x| < 0.56, 2^−29.5.
const TANH: [u32; 5] = [0xbeaaaaa4, 0x3e08864c, 0xbd5c87e0, 0x3cac334d, 0xbbcb1ead];

fn tanh(b: &mut Builder, x: S) -> S {
    // From 10 on it is 1; no number is smaller than a NaN.
    let magnitude = b.magnitude(x);
    let magnitude = b.smallest(magnitude, k(10.0));
    // 1 − 2 / (e^2|x| + 1). What log2 e lacks makes a tenth of an ulp here.
    let (power, f, _) = split_power(b, magnitude, 2.0 * LOG2_E, ROUNDER);
    let fraction = ex2_fraction(b, f);
    let sum = b.fused(fraction, power, k(1.0));
    let inverse = b.mufu(Mufu::Rcp, Ftz::Yes, sum);
    let large = b.fused(inverse, k(-2.0), k(1.0));
    let z = b.times(magnitude, magnitude);
    let q = b.polynomial(z, &TANH);
    let cube = b.times(z, magnitude);
    let small = b.fused(cube, q, magnitude);
    let is_small = b.less(magnitude, k(0.55));
    let out = b.choose(is_small, small, large);
    b.with_sign_of(out, x)
}

fn sinh(b: &mut Builder, x: S) -> S {
    let magnitude = b.magnitude(x);
    // Half of e^|x|, then − ¼ / that; for small arguments (e + e / (e + 1)) / 2 with e = expm1.
    let half = exp_scaled(b, magnitude, -1);
    let quarter = b.quotient(k(0.25), half);
    let large = b.minus(half, quarter);
    let e = expm1(b, magnitude);
    let sum = b.plus(e, k(1.0));
    let fraction = b.quotient(e, sum);
    let twice = b.plus(e, fraction);
    let small = b.times(twice, k(0.5));
    let is_small = b.less(magnitude, k(1.0));
    let out = b.choose(is_small, small, large);
    let out = b.with_sign_of(out, x);
    let tiny = b.less(magnitude, k(1e-4));
    b.choose(tiny, x, out)
}

fn cosh(b: &mut Builder, x: S) -> S {
    let magnitude = b.magnitude(x);
    let half = exp_scaled(b, magnitude, -1);
    let quarter = b.quotient(k(0.25), half);
    b.plus(half, quarter)
}

// ---------------------------------------------------------------------------------------------- logarithms

/// (log1p(f) − f + f²/2) / f³ on [−¼, ½], 2^−32.8.
const LOG: [u32; 10] = [
    0x3eaaaaaa, 0xbe800007, 0x3e4ccdbc, 0xbe2aa81a, 0x3e121e9d, 0xbdffee4f, 0x3de92df8, 0xbdd87edb, 0x3da4e868,
    0xbd022166,
];

/// log1p on [−¼, ½].
fn log1p_near_zero(b: &mut Builder, f: S) -> S {
    let q = b.polynomial(f, &LOG);
    let u = b.fused(q, f, k(-0.5));
    let square = b.times(f, f);
    b.fused(square, u, f)
}

/// x = m · 2^n with m in [¾, 1½): (m − 1, n as a float). x is positive and finite.
fn split(b: &mut Builder, x: S) -> (S, S) {
    let subnormal = b.less(x, k(f32::MIN_POSITIVE));
    let scaled = b.times(x, k(8_388_608.0));
    let x = b.choose(subnormal, scaled, x);
    let start = b.choose(subnormal, k(-23.0), k(0.0));
    let above = b.sub(IntType::U32, x, Src::f32(0.75));
    let exponent = b.and32(above, 0xff80_0000);
    let m = b.sub(IntType::U32, x, exponent);
    let n = b.cvt(CvtType::F32, CvtType::S32, CvtRound::Rn, exponent);
    let n = b.fused(n, k(1.0 / 8_388_608.0), start);
    let f = b.minus(m, k(1.0));
    (f, n)
}

/// What a logarithm is outside of the positive finite numbers: 0 → −∞, ∞ → ∞, negative and NaN → NaN.
fn log_specials(b: &mut Builder, x: S, out: S) -> S {
    // True for NaN, negative numbers, zeros (as integers: 0, ≥ 2³¹, or ≥ infinity).
    let last = b.sub(IntType::U32, x, Src::u32(1));
    let ordinary = b.setp(Compare::Lo, CompareType::U32, last, Src::u32(INFINITY - 1));
    let is_infinite = b.setp(Compare::Eq, CompareType::U32, x, Src::u32(INFINITY));
    let is_zero = b.setp(Compare::Eq, CompareType::F32, x, k(0.0));
    let special = b.choose(is_zero, k(f32::NEG_INFINITY), NAN);
    let special = b.choose(is_infinite, k(f32::INFINITY), special);
    b.choose(ordinary, out, special)
}

fn log(b: &mut Builder, x: S) -> S {
    let (f, n) = split(b, x);
    let r = log1p_near_zero(b, f);
    let out = b.fused(n, k(LN_2), r);
    log_specials(b, x, out)
}

fn log2(b: &mut Builder, x: S) -> S {
    let (f, n) = split(b, x);
    let r = log1p_near_zero(b, f);
    let low = b.fused(r, k(LOG2_E_LOW), n);
    let out = b.fused(r, k(LOG2_E), low);
    log_specials(b, x, out)
}

/// 1 + x = 2^n (1 + f): f = 2^−n x + (2^−n − 1) is rounded once.
fn log1p(b: &mut Builder, x: S) -> S {
    // Where 1 is nothing to x, log(x 2^−64) + 64 ln 2: 2^−n stays a normal number.
    let large = b.less(k(1e18), x);
    let smaller = b.times(x, k(f32::from_bits((127 - 64) << 23)));
    let sum = b.plus(x, k(1.0));
    let sum = b.choose(large, smaller, sum);
    let x_scaled = b.choose(large, smaller, x);
    let start = b.choose(large, k(64.0), k(0.0));
    let above = b.sub(IntType::U32, sum, Src::f32(0.75));
    let exponent = b.and32(above, 0xff80_0000);
    let scale = b.sub(IntType::U32, k(1.0), exponent);
    let rest = b.minus(scale, k(1.0));
    let rest = b.choose(large, k(-1.0), rest);
    let f = b.fused(scale, x_scaled, rest);
    let n = b.cvt(CvtType::F32, CvtType::S32, CvtRound::Rn, exponent);
    let n = b.fused(n, k(1.0 / 8_388_608.0), start);
    let r = log1p_near_zero(b, f);
    let out = b.fused(n, k(LN_2), r);
    // −1 → −∞, below → NaN, ∞ → ∞; what is tiny is itself.
    let at_end = b.setp(Compare::Eq, CompareType::F32, x, k(-1.0));
    let out = b.choose(at_end, k(f32::NEG_INFINITY), out);
    let inside = b.setp(Compare::Ge, CompareType::F32, x, k(-1.0));
    let out = b.choose(inside, out, NAN);
    let infinite = b.setp(Compare::Eq, CompareType::U32, x, Src::u32(INFINITY));
    let out = b.choose(infinite, x, out);
    let magnitude = b.magnitude(x);
    let tiny = b.less(magnitude, k(1e-30));
    b.choose(tiny, x, out)
}

fn asinh(b: &mut Builder, x: S) -> S {
    let s = b.magnitude(x);
    // log1p(s + s² / (1 + √(s² + 1))); large: log s + ln 2.
    let square = b.times(s, s);
    let root = b.plus(square, k(1.0));
    let root = b.root(root);
    let denominator = b.plus(root, k(1.0));
    let fraction = b.quotient(square, denominator);
    let sum = b.plus(s, fraction);
    let small = log1p(b, sum);
    let large = log(b, s);
    let large = b.plus(large, k(LN_2));
    let is_small = b.less(s, k(1e9));
    let out = b.choose(is_small, small, large);
    b.with_sign_of(out, x)
}

fn acosh(b: &mut Builder, x: S) -> S {
    // log1p(t + √(2t + t²)), t = x − 1; large: log x + ln 2.
    let t = b.minus(x, k(1.0));
    let twice = b.plus(t, t);
    let sum = b.fused(t, t, twice);
    let root = b.root(sum);
    let sum = b.plus(t, root);
    let small = log1p(b, sum);
    let large = log(b, x);
    let large = b.plus(large, k(LN_2));
    let is_large = b.less(k(1e9), x);
    let out = b.choose(is_large, large, small);
    let inside = b.setp(Compare::Ge, CompareType::F32, x, k(1.0));
    b.choose(inside, out, NAN)
}

fn atanh(b: &mut Builder, x: S) -> S {
    // ½ log1p(2|x| / (1 − |x|))
    let s = b.magnitude(x);
    let rest = b.minus(k(1.0), s);
    let twice = b.plus(s, s);
    let ratio = b.quotient(twice, rest);
    let l = log1p(b, ratio);
    let half = b.times(l, k(0.5));
    let out = b.with_sign_of(half, x);
    let inside = b.setp(Compare::Le, CompareType::F32, s, k(1.0));
    b.choose(inside, out, NAN)
}

/// A guess from the special-function unit and one step of Newton's, for the magnitude.
fn cbrt(b: &mut Builder, x: S) -> S {
    let s = b.magnitude(x);
    let third = b.mufu(Mufu::Lg2, Ftz::No, s);
    let third = b.times(third, k(1.0 / 3.0));
    let y = b.ex2(third);
    // y − (y³ − s) / (3 y²), the residual with s / y² so that nothing overflows or is subnormal.
    let inverse = b.reciprocal(y);
    let q = b.times(s, inverse);
    let q = b.times(q, inverse);
    let d = b.minus(q, y);
    let y = b.fused(d, k(1.0 / 3.0), y);
    let y = b.with_sign_of(y, x);
    // ±0, ±∞ and NaN are themselves.
    let last = b.sub(IntType::U32, s, Src::u32(1));
    let ordinary = b.setp(Compare::Lo, CompareType::U32, last, Src::u32(INFINITY - 1));
    b.choose(ordinary, y, x)
}

// ---------------------------------------------------------------------------------------------- trigonometry

/// (sin(r) − r) / r³ in r², |r| ≤ π/4, 2^−37.5.
const SIN: [u32; 4] = [0xbe2aaaab, 0x3c088884, 0xb95007bf, 0x363668e9];
/// (cos(r) − 1 + r²/2) / r⁴ in r², |r| ≤ π/4, 2^−33.
const COS: [u32; 3] = [0x3d2aaaa5, 0xbab6061a, 0x37ccf5ba];

/// Bits 1 to 224 after the binary point of 2/π.
const TWO_OVER_PI: [u32; 7] = [
    0xa2f9_836e,
    0x4e44_1529,
    0xfc27_57d1,
    0xf534_ddc0,
    0xdb62_9599,
    0x3c43_9041,
    0xfe51_63ab,
];

/// π/2 in three parts, each rounded down to 24 bits: n times the first is taken off exactly.
const QUARTER_TURN: [f32; 3] = [
    f32::from_bits(0x3fc9_0fda),
    f32::from_bits(0x33a2_2168),
    f32::from_bits(0x27c2_34c4),
];
/// Up to here they are enough (the quadrant has 17 bits).
const CODY_WAITE_LIMIT: f32 = 105_615.0;
/// 1.5 · 2²³: added to a number it rounds it to the nearest integer, which it leaves in the low bits.
const INTEGER_ROUNDER: f32 = 12_582_912.0;

/// Angles that are reduced together: one branch for all of them.
pub const ANGLES: usize = 8;

/// An angle as a rest in [−π/4, π/4] and a number of quarter turns, of which the low two bits count.
#[derive(Clone, Copy)]
pub struct Angle {
    rest: S,
    quadrant: S,
}

/// The functions of angles, of which elements are best taken several at a time.
pub fn is_of_angles(precision: Precision, op: UnaryOp) -> bool {
    let exact = precision.functions != Functions::Approximate;
    op == UnaryOp::Tan || exact && matches!(op, UnaryOp::Sin | UnaryOp::Cos)
}

/// A function of angles.
pub fn of_angle(b: &mut Builder, op: UnaryOp, angle: Angle) -> Result<S> {
    Ok(match op {
        UnaryOp::Sin => sin_cos(b, angle).0,
        UnaryOp::Cos => sin_cos(b, angle).1,
        UnaryOp::Tan => {
            let (sin, cos) = sin_cos(b, angle);
            b.quotient(sin, cos)
        }
        _ => return Err(undefined(op.name(), DType::F32)),
    })
}

/// Angles reduced: the usual ones at once; where one of them is large, or no number, that one the long way.
pub fn angles(b: &mut Builder, xs: &[S]) -> Result<Vec<Angle>> {
    let mut near = vec![];
    let mut largest = None;
    for &x in xs {
        let sum = b.fused(x, k(std::f32::consts::FRAC_2_PI), k(INTEGER_ROUNDER));
        let n = b.minus(sum, k(INTEGER_ROUNDER));
        let mut rest = x;
        // Every part is positive, and so is n = 0: −0 stays what it is.
        for part in QUARTER_TURN {
            rest = b.fused(n, k(-part), rest);
        }
        near.push(Angle { rest, quadrant: sum });
        let magnitude = b.magnitude(x);
        largest = Some(largest.map_or(magnitude, |l| b.largest(l, magnitude)));
    }
    // Not where one is NaN.
    let largest = largest.unwrap_or(k(0.0));
    let all_near = b.setp(Compare::Le, CompareType::F32, largest, k(CODY_WAITE_LIMIT));
    let words = |b: &mut Builder, angles: &[Angle]| -> Result<Vec<S>> {
        let words = angles.iter().flat_map(|a| [a.rest, a.quadrant]);
        Ok(words.map(|w| b.r32(w).into()).collect())
    };
    let out = b.if_else(
        all_near,
        |b| words(b, &near),
        |b| {
            let mut out = vec![];
            for (&x, near) in xs.iter().zip(&near) {
                let magnitude = b.magnitude(x);
                let is_near = b.setp(Compare::Le, CompareType::F32, magnitude, k(CODY_WAITE_LIMIT));
                let (rest, quadrant) = reduce_far(b, x);
                out.push(Angle {
                    rest: b.choose(is_near, near.rest, rest),
                    quadrant: b.choose(is_near, near.quadrant, quadrant),
                });
            }
            words(b, &out)
        },
    )?;
    Ok(out
        .chunks(2)
        .map(|w| Angle {
            rest: w[0],
            quadrant: w[1],
        })
        .collect())
}

/// sin x and cos x.
fn sin_cos(b: &mut Builder, Angle { rest: r, quadrant }: Angle) -> (S, S) {
    let z = b.times(r, r);
    let q = b.polynomial(z, &SIN);
    // +0 at 0, so that the sum keeps the sign of −0.
    let t = b.fused(z, q, k(0.0));
    let sin_r = b.fused(r, t, r);
    let q = b.polynomial(z, &COS);
    let u = b.fused(q, z, k(-0.5));
    let cos_r = b.fused(u, z, k(1.0));
    let odd = b.and32(quadrant, 1);
    let odd = b.setp(Compare::Ne, CompareType::U32, odd, Src::u32(0));
    let sin = b.choose(odd, cos_r, sin_r);
    let flip = b.shl(BitType::B32, quadrant, Src::u32(30));
    let sin = b.with_sign_of(sin, flip);
    // cos x = sin(x + π/2)
    let cos = b.choose(odd, sin_r, cos_r);
    let next = b.add(IntType::U32, quadrant, Src::u32(1));
    let flip = b.shl(BitType::B32, next, Src::u32(30));
    let cos = b.with_sign_of(cos, flip);
    (sin, cos)
}

/// x − q π/2 and q mod 4, by multiplying x with the 96 bits of 2/π that matter (Payne and Hanek). NaN for infinities and NaN.
fn reduce_far(b: &mut Builder, x: S) -> (S, S) {
    let magnitude = b.magnitude(x);
    let fraction = b.and32(x, 0x007f_ffff);
    let mantissa = b.or(LogicType::B32, fraction, Src::u32(0x0080_0000));
    let mantissa = b.shl(BitType::B32, mantissa, Src::u32(8));
    // x = mantissa · 2^(e − 31). Bits of 2/π from number e − 32 on matter; two zero words stand before bit 1.
    let biased = b.shr(ShiftType::U32, magnitude, Src::u32(23));
    let offset = b.sub(IntType::U32, biased, Src::u32(127 - 31));
    let word = b.shr(ShiftType::U32, offset, Src::u32(5));
    let shift = b.and32(offset, 31);
    let bits = |i: i32| {
        usize::try_from(i - 2)
            .ok()
            .and_then(|i| TWO_OVER_PI.get(i))
            .copied()
            .unwrap_or(0)
    };
    // The word number is 1 to 4 (e from 16 to 127).
    let mut window = vec![];
    for i in 0..4 {
        let mut w = Src::u32(bits(1 + i));
        for start in 2..=4 {
            let here = b.setp(Compare::Eq, CompareType::U32, word, Src::u32(start));
            w = b.choose(here, Src::u32(bits(start as i32 + i)), w);
        }
        window.push(w);
    }
    let funnel = |b: &mut Builder, high: S, low: S| {
        // The high word of (high:low) << shift.
        b.emit(Inst::shf(
            ShiftDirection::Left,
            ShiftAmount::Wrap,
            Value::NEW,
            low,
            high,
            shift,
        ))
    };
    let a0 = funnel(b, window[0], window[1]);
    let a1 = funnel(b, window[1], window[2]);
    let a2 = funnel(b, window[2], window[3]);
    // The low 96 bits of mantissa · (a0:a1:a2); the top two are the quadrant, 94 bits of fraction follow.
    let low = b.mul_hi(IntType::U32, mantissa, a2);
    let middle = {
        let wide = b.emit(Inst::mul_wide(WideType::U32, Value::NEW, mantissa, a1));
        let carry = b.widen(low, false);
        b.add(IntType::U64, wide, carry)
    };
    let high = b.mul(IntType::U32, mantissa, a0);
    let high = b.pack64(Src::u32(0), high);
    let product = b.add(IntType::U64, middle, high);
    let quadrant = b.shr(ShiftType::U64, product, Src::u32(62));
    let quadrant = b.truncate(quadrant);
    let fraction = b.shl(BitType::B64, product, Src::u32(2));
    // As a signed number: the nearest quadrant, and what is left in [−½, ½).
    let up = b.shr(ShiftType::U64, fraction, Src::u32(63));
    let up = b.truncate(up);
    let quadrant = b.add(IntType::U32, quadrant, up);
    let turns = b.cvt(CvtType::F64, CvtType::S64, CvtRound::Rn, fraction);
    let scale = std::f64::consts::FRAC_PI_2 / 18_446_744_073_709_551_616.0;
    let r = b.fmul(FloatType::F64, turns, Src::f64(scale));
    let r = b.cvt(CvtType::F32, CvtType::F64, CvtRound::Rn, r);
    // Odd in x.
    let negative = b.setp(Compare::Lt, CompareType::S32, x, Src::u32(0));
    let minus = b.neg(IntType::S32, quadrant);
    let quadrant = b.choose(negative, minus, quadrant);
    let r = b.with_sign_of(r, x);
    let finite = b.setp(Compare::Lo, CompareType::U32, magnitude, Src::u32(INFINITY));
    (b.choose(finite, r, NAN), quadrant)
}

/// (atan(x) − x) / x³ in x² on [0, 1], 2^−28.5.
const ATAN: [u32; 9] = [
    0xbeaaaa9f, 0x3e4cc8ff, 0xbe1210db, 0x3de04cff, 0xbdac1a47, 0x3d6d64ee, 0xbcff68a8, 0x3c32d326, 0xbaeb17e9,
];

/// atan on [0, 1].
fn atan_unit(b: &mut Builder, t: S) -> S {
    let z = b.times(t, t);
    let q = b.polynomial(z, &ATAN);
    let cube = b.times(z, t);
    b.fused(cube, q, t)
}

/// π/2 = FRAC_PI_2 + PI_2_LOW.
const PI_2_LOW: f32 = -4.371_139e-8;

fn atan(b: &mut Builder, x: S) -> S {
    let s = b.magnitude(x);
    let large = b.less(k(1.0), s);
    let inverse = b.reciprocal(s);
    let t = b.choose(large, inverse, s);
    let r = atan_unit(b, t);
    let minus = b.negated(r);
    let minus = b.plus(minus, k(PI_2_LOW));
    let complement = b.plus(minus, k(FRAC_PI_2));
    let out = b.choose(large, complement, r);
    b.with_sign_of(out, x)
}

pub fn atan2(b: &mut Builder, y: S, x: S) -> S {
    let (sx, sy) = (b.magnitude(x), b.magnitude(y));
    let steep = b.less(sx, sy);
    let large = b.choose(steep, sy, sx);
    let small = b.choose(steep, sx, sy);
    let ratio = b.quotient(small, large);
    // 0/0 is 0, ∞/∞ is 1.
    let zero = b.setp(Compare::Eq, CompareType::F32, large, k(0.0));
    let ratio = b.choose(zero, k(0.0), ratio);
    let infinite = b.setp(Compare::Eq, CompareType::F32, small, k(f32::INFINITY));
    let ratio = b.choose(infinite, k(1.0), ratio);
    let r = atan_unit(b, ratio);
    let minus = b.negated(r);
    let minus_low = b.plus(minus, k(PI_2_LOW));
    let complement = b.plus(minus_low, k(FRAC_PI_2));
    let r = b.choose(steep, complement, r);
    // x negative (−0 too): π − r.
    let left = b.setp(Compare::Lt, CompareType::S32, x, Src::u32(0));
    let minus = b.negated(r);
    let minus = b.plus(minus, k(2.0 * PI_2_LOW));
    let other = b.plus(minus, k(PI));
    let out = b.choose(left, other, r);
    let out = b.with_sign_of(out, y);
    let nan = b.setp(Compare::Nan, CompareType::F32, x, y);
    b.choose(nan, NAN, out)
}

/// (asin(x) − x) / x³ in x² for |x| ≤ ½, 2^−31.8.
const ASIN: [u32; 6] = [0x3e2aaaa6, 0x3d999c3e, 0x3d365769, 0x3d0248d0, 0x3c6c8fd4, 0x3d19aae0];

/// asin on [0, ½], given the argument and its square.
fn asin_small(b: &mut Builder, t: S, z: S) -> S {
    let q = b.polynomial(z, &ASIN);
    let cube = b.times(z, t);
    b.fused(cube, q, t)
}

/// (asin of a small argument, whether the argument was large): of |x| ≤ ½ itself, else of √((1 − |x|) / 2).
fn asin_parts(b: &mut Builder, x: S) -> (S, S) {
    let s = b.magnitude(x);
    let large = b.less(k(0.5), s);
    let square = b.times(s, s);
    let half = b.fused(s, k(-0.5), k(0.5));
    let z = b.choose(large, half, square);
    let root = b.root(half);
    let t = b.choose(large, root, s);
    (asin_small(b, t, z), large)
}

fn asin(b: &mut Builder, x: S) -> S {
    let (r, large) = asin_parts(b, x);
    // π/2 − 2r
    let rest = b.fused(r, k(-2.0), k(PI_2_LOW));
    let complement = b.plus(rest, k(FRAC_PI_2));
    let out = b.choose(large, complement, r);
    b.with_sign_of(out, x)
}

fn acos(b: &mut Builder, x: S) -> S {
    let (r, large) = asin_parts(b, x);
    let negative = b.setp(Compare::Lt, CompareType::S32, x, Src::u32(0));
    // Large: 2r, or π − 2r; else π/2 ∓ r.
    let twice = b.plus(r, r);
    let rest = b.fused(r, k(-2.0), k(2.0 * PI_2_LOW));
    let other = b.plus(rest, k(PI));
    let of_large = b.choose(negative, other, twice);
    let signed = b.with_sign_of(r, x);
    let minus = b.negated(signed);
    let rest = b.plus(minus, k(PI_2_LOW));
    let of_small = b.plus(rest, k(FRAC_PI_2));
    b.choose(large, of_large, of_small)
}

// ---------------------------------------------------------------------------------------------- error function

/// erf(x) / x in x² on [0, 1], 2^−34.8.
const ERF: [u32; 8] = [
    0x3f906ebb, 0xbec093a3, 0x3de71784, 0xbcdc14d4, 0x3bab1477, 0xba5e5f4d, 0x38ec1348, 0xb721c201,
];
/// log2(erfc(x)) on [1, 4], 2^−35 of 1.
const LOG2_ERFC: [u32; 8] = [
    0x398e3a9a, 0xbfd097f3, 0xbf69ddf8, 0xbe202b3b, 0x3d14f668, 0xbbc6c465, 0x3a26e909, 0xb8033a93,
];

fn erf(b: &mut Builder, x: S) -> S {
    let s = b.magnitude(x);
    let z = b.times(x, x);
    let p = b.polynomial(z, &ERF);
    let small = b.times(p, x);
    let t = b.smallest(s, k(4.0));
    let l = b.polynomial(t, &LOG2_ERFC);
    let e = b.ex2(l);
    let large = b.minus(k(1.0), e);
    let large = b.with_sign_of(large, x);
    let is_small = b.less(s, k(1.0));
    b.choose(is_small, small, large)
}

/// e^(x²) erfc(x) (1 + 2x) in (x − 4) / (x + 4) on [0, 10.1], 2^−26.
const ERFCX: [u32; 11] = [
    0x3f9dd2c9, 0xbe0ef8d4, 0x3c7bf165, 0x3d8b74ba, 0xbdced43a, 0x3dc0234d, 0xbd8879b6, 0x3d15319d, 0xbc82282c,
    0x3be639ab, 0x3a6803d5,
];

fn erfc(b: &mut Builder, x: S) -> S {
    let s = b.magnitude(x);
    let s = b.smallest(s, k(10.1));
    let above = b.plus(s, k(4.0));
    let below = b.minus(s, k(4.0));
    let t = b.ordinary_quotient(below, above);
    let p = b.polynomial(t, &ERFCX);
    let denominator = b.fused(s, k(2.0), k(1.0));
    let p = b.ordinary_quotient(p, denominator);
    // e^−s² with what the square's rounding lost.
    let square = b.times(s, s);
    let minus_square = b.negated(square);
    let lost = b.fused(s, s, minus_square);
    let e = exp_scaled(b, minus_square, 0);
    let minus_lost = b.negated(lost);
    let corrected = b.fused(minus_lost, p, p);
    let right = b.times(e, corrected);
    let left = b.minus(k(2.0), right);
    let negative = b.setp(Compare::Lt, CompareType::S32, x, Src::u32(0));
    let out = b.choose(negative, left, right);
    let nan = b.setp(Compare::Nan, CompareType::F32, x, x);
    b.choose(nan, NAN, out)
}

/// erf⁻¹(x) / x in w − 2.5, w = −log(1 − x²) in [0, 5], 2^−27.
const ERF_INV_CENTRE: [u32; 10] = [
    0x3fc02e2f, 0x3e7c8f45, 0xbb88e276, 0xbaa4330b, 0x3964f364, 0xb6a68ad0, 0xb66860cf, 0x34fa45ef, 0x32c79115,
    0xb217074e,
];
/// erf⁻¹(x) / x in √w − 3, w in [5, 16.8], 2^−23.5.
const ERF_INV_TAIL: [u32; 9] = [
    0x40354f7f, 0x3f8036dc, 0x3c1a956b, 0xbbf9e591, 0x3bbcece1, 0xbb6fa29b, 0x3aa96084, 0x38ad0e33, 0xb92789e1,
];

fn erf_inv(b: &mut Builder, x: S) -> S {
    let minus = b.negated(x);
    // 1 − x² = (1 − x)(1 + x): log1p of the fused square keeps what matters near ±1.
    let square = b.times(minus, x);
    let near_one = {
        let below = b.plus(minus, k(1.0));
        let above = b.plus(x, k(1.0));
        let product = b.times(below, above);
        log(b, product)
    };
    let far = log1p(b, square);
    let s = b.magnitude(x);
    let is_near_one = b.less(k(0.5), s);
    let l = b.choose(is_near_one, near_one, far);
    let w = b.negated(l);
    let u = b.minus(w, k(2.5));
    let centre = b.polynomial(u, &ERF_INV_CENTRE);
    let root = b.root(w);
    let u = b.minus(root, k(3.0));
    let tail = b.polynomial(u, &ERF_INV_TAIL);
    let is_centre = b.less(w, k(5.0));
    let p = b.choose(is_centre, centre, tail);
    let out = b.times(p, x);
    // ±1 → ±∞; beyond, the logarithm is NaN already.
    let one = b.setp(Compare::Eq, CompareType::F32, s, k(1.0));
    let infinite = b.with_sign_of(k(f32::INFINITY), x);
    b.choose(one, infinite, out)
}

// ---------------------------------------------------------------------------------------------- powers

/// log2(1 + f) / f on [√½ − 1, √2 − 1] in f64, 4·10⁻¹³.
const LOG2_F64: [f64; 15] = [
    1.4426950408893573,
    -0.72134752042491,
    0.48089834658345093,
    -0.36067376591326067,
    0.2885390709646404,
    -0.24044872659412003,
    0.20609525191461897,
    -0.18035040907992914,
    0.16042557103750035,
    -0.1441264949311334,
    0.1291406534941171,
    -0.1196189819738707,
    0.12613424672316803,
    -0.12355706797128904,
    0.06320605304473843,
];

/// |x|^y = 2^(y log2|x|), the exponent in f64; then C's special cases.
pub fn pow(b: &mut Builder, precision: Precision, x: S, y: S) -> S {
    const F64: FloatType = FloatType::F64;
    let s = b.magnitude(x);
    let magnitude = if precision.functions == Functions::Approximate {
        let l = b.mufu(Mufu::Lg2, Ftz::No, s);
        let t = b.times(l, y);
        b.ex2(t)
    } else {
        // |x| = m 2^n, m in [√½, √2).
        let subnormal = b.less(s, k(f32::MIN_POSITIVE));
        let scaled = b.times(s, k(8_388_608.0));
        let m = b.choose(subnormal, scaled, s);
        let start = b.choose(subnormal, Src::imm32(-23), Src::u32(0));
        let above = b.sub(IntType::U32, m, Src::f32(std::f32::consts::FRAC_1_SQRT_2));
        let n = b.shr(ShiftType::S32, above, Src::u32(23));
        let exponent = b.and32(above, 0xff80_0000);
        let m = b.sub(IntType::U32, m, exponent);
        let n = b.add(IntType::S32, n, start);
        let n = b.cvt(CvtType::F64, CvtType::S32, CvtRound::Rn, n);
        let f = b.minus(m, k(1.0));
        let f = b.cvt(CvtType::F64, CvtType::F32, CvtRound::None, f);
        let mut h = Src::f64(LOG2_F64[14]);
        for &c in LOG2_F64[..14].iter().rev() {
            h = b.fma(F64, h, f, Src::f64(c));
        }
        let log2 = b.fma(F64, h, f, n);
        // 0 and ∞.
        let zero = b.setp(Compare::Eq, CompareType::F32, s, k(0.0));
        let log2 = b.pick(Class::B64, zero, Src::f64(f64::NEG_INFINITY), log2);
        let infinite = b.setp(Compare::Eq, CompareType::F32, s, k(f32::INFINITY));
        let log2 = b.pick(Class::B64, infinite, Src::f64(f64::INFINITY), log2);
        let wide_y = b.cvt(CvtType::F64, CvtType::F32, CvtRound::None, y);
        let t = b.fmul(F64, log2, wide_y);
        // NaN is dealt with below: min and max drop it.
        let t = b.fmin_max(MinMax::Max, NanMode::Number, F64, t, Src::f64(-160.0));
        let t = b.fmin_max(MinMax::Min, NanMode::Number, F64, t, Src::f64(140.0));
        let n = b.cvt(CvtType::F64, CvtType::F64, CvtRound::Rni, t);
        let n = b.fmin_max(MinMax::Min, NanMode::Number, F64, n, Src::f64(127.0));
        let f = b.fsub(F64, t, n);
        let f = b.cvt(CvtType::F32, CvtType::F64, CvtRound::Rn, f);
        let n = b.cvt(CvtType::F32, CvtType::F64, CvtRound::Rn, n);
        let (fraction, power) = (b.ex2(f), b.ex2(n));
        b.times(fraction, power)
    };
    // 1^y = x^0 = 1, whatever the other is; (−1)^±∞ = 1.
    let one = b.setp(Compare::Eq, CompareType::F32, s, k(1.0));
    let out = b.choose(one, k(1.0), magnitude);
    let nan = b.setp(Compare::Nan, CompareType::F32, x, y);
    let out = b.choose(nan, NAN, out);
    // Negative x: the sign of an odd power; NaN for a power that is no integer (unless x is −∞ or −0).
    let integral = b.nearest(y);
    let is_integer = b.setp(Compare::Eq, CompareType::F32, integral, y);
    let half = b.times(y, k(0.5));
    let half_integral = b.nearest(half);
    let half_is_not = b.setp(Compare::Neu, CompareType::F32, half_integral, half);
    let odd = b.both(is_integer, half_is_not);
    let negative = b.setp(Compare::Lt, CompareType::S32, x, Src::u32(0));
    let flip = b.both(odd, negative);
    let flip = b.choose(flip, Src::u32(SIGN), Src::u32(0));
    let out = b.xor(LogicType::B32, out, flip);
    let fraction = b.not_pred(is_integer);
    let below_zero = b.less(x, k(0.0));
    let finite = b.less(k(f32::NEG_INFINITY), x);
    let undefined = b.both(fraction, below_zero);
    let undefined = b.both(undefined, finite);
    let out = b.choose(undefined, NAN, out);
    let is_one = b.setp(Compare::Eq, CompareType::F32, x, k(1.0));
    let is_zero_power = b.setp(Compare::Eq, CompareType::F32, y, k(0.0));
    let trivial = b.either(is_one, is_zero_power);
    b.choose(trivial, k(1.0), out)
}

// ---------------------------------------------------------------------------------------------- remainder

/// C's fmod, exactly: |x| mod |y| by long division, 8 bits of quotient at a time.
pub fn fmod(b: &mut Builder, x: S, y: S) -> Result<S> {
    let (sx, sy) = (b.magnitude(x), b.magnitude(y));
    // Subnormals are scaled up: mantissas below have 24 bits, exponents may be negative.
    let parts = |b: &mut Builder, s: S| {
        let subnormal = b.less(s, k(f32::MIN_POSITIVE));
        let scaled = b.times(s, k(16_777_216.0));
        let bits = b.choose(subnormal, scaled, s);
        let exponent = b.shr(ShiftType::U32, bits, Src::u32(23));
        let shift = b.choose(subnormal, Src::u32(24), Src::u32(0));
        let exponent = b.sub(IntType::S32, exponent, shift);
        let fraction = b.and32(bits, 0x007f_ffff);
        (b.or(LogicType::B32, fraction, Src::u32(0x0080_0000)), exponent)
    };
    let (mx, ex) = parts(b, sx);
    let (my, ey) = parts(b, sy);
    let shorter = b.less(sx, sy);
    let n = b.sub(IntType::S32, ex, ey);
    let n = b.choose(shorter, Src::u32(0), n);
    // The mantissa of x modulo that of y, times 2^n modulo it.
    let r = b.rem(IntType::U32, mx, my);
    let (r, n) = (b.r32(r), b.r32(n));
    let out = b.while_(
        &[r, n],
        |b, now| -> Result<S> { Ok(b.setp(Compare::Gt, CompareType::S32, now[1], Src::u32(0))) },
        |b, now| {
            let step = b.min(IntType::S32, now[1], Src::u32(8));
            let shifted = b.shl(BitType::B32, now[0], step);
            let r = b.rem(IntType::U32, shifted, my);
            let left = b.sub(IntType::S32, now[1], step);
            Ok(vec![r, left])
        },
    )?;
    // r · 2^(ey − 150), exactly: it is below |y| and has its unit.
    let r = b.cvt(CvtType::F32, CvtType::U32, CvtRound::Rn, out[0].into());
    let e = b.sub(IntType::S32, ey, Src::u32(150));
    let high = b.max(IntType::S32, e, Src::imm32(-100));
    let low = b.sub(IntType::S32, e, high);
    let power = |b: &mut Builder, e: S| {
        let e = b.add(IntType::S32, e, Src::u32(127));
        b.shl(BitType::B32, e, Src::u32(23))
    };
    let (high, low) = (power(b, high), power(b, low));
    let r = b.times(r, high);
    let r = b.times(r, low);
    let r = b.choose(shorter, sx, r);
    let r = b.with_sign_of(r, x);
    let zero = b.setp(Compare::Eq, CompareType::F32, sy, k(0.0));
    let infinite = b.setp(Compare::Hs, CompareType::U32, sx, Src::u32(INFINITY));
    let undefined = b.either(zero, infinite);
    let nan = b.setp(Compare::Nan, CompareType::F32, x, y);
    let undefined = b.either(undefined, nan);
    Ok(b.choose(undefined, NAN, r))
}
