//! Element-wise functions of floats, on scalars as [`super::value::Lowered::Scalar`] keeps them.
//!
//! f32 and f64 are computed as they are; f16 and bf16 add, subtract, multiply and compare as they are; everything else goes through
//! f32 and is rounded once (its 24 bits make the double rounding of a quotient or root innocuous).
//!
//! **Division of f32** is `div.full`, within 2 ulp, as everywhere in a JAX program on a GPU: XLA compiles with
//! `-nvptx-prec-divf32=1`, so that an expression has one value in a kernel and outside. Division by a constant multiplies by its
//! correctly rounded reciprocal, as XLA's algebraic simplifier and ptxas make of it. `precise_division` selects
//! `div.rn`, NumPy's quotient. Normal quotients of f16 and bf16 are correctly rounded either way (checked over all pairs of
//! significands; of subnormal f16 ones some 30 in a million are not: ties).
use super::convert;
use super::cx::LowerCx;
use super::emit::S;
use super::math;
use super::value::scalar_class;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::kernel_ir::{BinaryOp, CompareOp, Quotients, UnaryOp};
use crate::ptx::build::Builder;
use crate::ptx::inst::Inst;
use crate::ptx::modifier::*;
use crate::ptx::operand::{Class, Src};
use crate::ptx::ssa::Value;

/// How precise functions and quotients are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Precision {
    pub functions: Functions,
    pub quotients: Quotients,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Functions {
    Full,
    /// The special-function unit's values.
    Approximate,
}

impl Precision {
    pub fn of(cx: &LowerCx) -> Precision {
        let params = &cx.kernel.compiler_params;
        Precision {
            functions: if params.approx_math {
                Functions::Approximate
            } else {
                Functions::Full
            },
            quotients: params.quotients,
        }
    }
}

/// An op of a type that `legality` refuses.
pub fn undefined(op: &str, dtype: DType) -> Error {
    Error::internal(format!("{op} of {dtype} is lowered"))
}

/// The type of native arithmetic; `None` for types that the machine only stores.
pub fn native(dtype: DType) -> Option<FloatType> {
    match dtype {
        DType::F16 => Some(FloatType::F16),
        DType::BF16 => Some(FloatType::BF16),
        DType::F32 => Some(FloatType::F32),
        DType::F64 => Some(FloatType::F64),
        _ => None,
    }
}

/// An integer view of the bits: its type, the sign bit, the value bits.
fn bits_view(dtype: DType) -> (LogicType, u64) {
    let width = dtype.bits();
    let ty = match scalar_class(dtype) {
        Class::B16 => LogicType::B16,
        Class::B64 => LogicType::B64,
        Class::B32 | Class::Pred => LogicType::B32,
    };
    (ty, 1 << (width - 1))
}

pub fn unary(b: &mut Builder, precision: Precision, op: UnaryOp, dtype: DType, a: S) -> Result<S> {
    let (bits, sign) = bits_view(dtype);
    match op {
        UnaryOp::Neg => return Ok(b.xor(bits, a, Src::Imm(sign))),
        UnaryOp::Abs => return Ok(b.and(bits, a, Src::Imm(sign - 1))),
        _ => {}
    }
    match dtype {
        DType::F32 => unary_f32(b, precision, op, a),
        DType::F64 => unary_f64(b, op, a),
        _ => {
            let wide = convert::to_f32(b, dtype, a)?;
            let out = unary_f32(b, precision, op, wide)?;
            if op == UnaryOp::IsFinite {
                Ok(out)
            } else {
                convert::from_f32(b, dtype, out)
            }
        }
    }
}

fn round_f32(b: &mut Builder, rnd: CvtRound, a: S) -> S {
    b.cvt(CvtType::F32, CvtType::F32, rnd, a)
}

fn unary_f32(b: &mut Builder, precision: Precision, op: UnaryOp, a: S) -> Result<S> {
    const F32: FloatType = FloatType::F32;
    let approximate = precision.functions == Functions::Approximate;
    Ok(match op {
        UnaryOp::Sign => {
            let sign = b.and32(a, 1 << 31);
            let one = b.or(LogicType::B32, sign, Src::f32(1.0));
            let magnitude = b.and32(a, 0x7fff_ffff);
            // False for zeros and NaN, which stay.
            let is_number = b.setp(Compare::Gt, CompareType::F32, magnitude, Src::f32(0.0));
            b.pick(Class::B32, is_number, one, a)
        }
        UnaryOp::Floor => round_f32(b, CvtRound::Rmi, a),
        UnaryOp::Ceil => round_f32(b, CvtRound::Rpi, a),
        UnaryOp::RoundToEven => round_f32(b, CvtRound::Rni, a),
        UnaryOp::RoundToTf32 => {
            let a = b.r32(a);
            b.emit(Inst::CvtTf32 { d: Value::NEW, a })
        }
        UnaryOp::RoundAwayFromZero => {
            let truncated = round_f32(b, CvtRound::Rzi, a);
            let rest = b.fsub(F32, a, truncated);
            let rest = b.and32(rest, 0x7fff_ffff);
            let sign = b.and32(a, 1 << 31);
            let one = b.or(LogicType::B32, sign, Src::f32(1.0));
            let away = b.fadd(F32, truncated, one);
            let far = b.setp(Compare::Ge, CompareType::F32, rest, Src::f32(0.5));
            b.pick(Class::B32, far, away, truncated)
        }
        UnaryOp::IsFinite => {
            let magnitude = b.and32(a, 0x7fff_ffff);
            b.setp(Compare::Lt, CompareType::U32, magnitude, Src::u32(0x7f80_0000))
        }
        UnaryOp::Sqrt if approximate => b.mufu(Mufu::Sqrt, Ftz::No, a),
        UnaryOp::Sqrt => b.exact(Exact::Sqrt, WideFloatType::F32, a),
        // Within 2 ulp (PTX ISA 9.7.3.19).
        UnaryOp::Rsqrt => b.mufu(Mufu::Rsqrt, Ftz::No, a),
        _ => return math::unary(b, precision, op, a),
    })
}

fn unary_f64(b: &mut Builder, op: UnaryOp, a: S) -> Result<S> {
    const SIGN: u64 = 1 << 63;
    let round = |b: &mut Builder, rnd| b.cvt(CvtType::F64, CvtType::F64, rnd, a);
    let magnitude = |b: &mut Builder, a: S| b.and(LogicType::B64, a, Src::Imm(SIGN - 1));
    let signed_one = |b: &mut Builder| {
        let sign = b.and(LogicType::B64, a, Src::Imm(SIGN));
        b.or(LogicType::B64, sign, Src::f64(1.0))
    };
    Ok(match op {
        UnaryOp::Sign => {
            let one = signed_one(b);
            let positive = magnitude(b, a);
            let is_number = b.setp(Compare::Gt, CompareType::F64, positive, Src::f64(0.0));
            b.pick(Class::B64, is_number, one, a)
        }
        UnaryOp::Floor => round(b, CvtRound::Rmi),
        UnaryOp::Ceil => round(b, CvtRound::Rpi),
        UnaryOp::RoundToEven => round(b, CvtRound::Rni),
        UnaryOp::RoundAwayFromZero => {
            let truncated = round(b, CvtRound::Rzi);
            let rest = b.fsub(FloatType::F64, a, truncated);
            let rest = magnitude(b, rest);
            let one = signed_one(b);
            let away = b.fadd(FloatType::F64, truncated, one);
            let far = b.setp(Compare::Ge, CompareType::F64, rest, Src::f64(0.5));
            b.pick(Class::B64, far, away, truncated)
        }
        UnaryOp::IsFinite => {
            let positive = magnitude(b, a);
            b.setp(Compare::Lt, CompareType::U64, positive, Src::Imm(0x7ff << 52))
        }
        UnaryOp::Sqrt => b.exact(Exact::Sqrt, WideFloatType::F64, a),
        UnaryOp::Rsqrt => {
            let root = b.exact(Exact::Sqrt, WideFloatType::F64, a);
            b.exact(Exact::Rcp, WideFloatType::F64, root)
        }
        _ => return Err(undefined(op.name(), DType::F64)),
    })
}

pub fn binary(b: &mut Builder, precision: Precision, op: BinaryOp, dtype: DType, x: S, y: S) -> Result<S> {
    if op == BinaryOp::CopySign {
        let (bits, sign) = bits_view(dtype);
        let magnitude = b.and(bits, x, Src::Imm(sign - 1));
        let sign = b.and(bits, y, Src::Imm(sign));
        return Ok(b.or(bits, magnitude, sign));
    }
    if op == BinaryOp::NextAfter {
        return next_after(b, dtype, x, y);
    }
    let ty = native(dtype);
    match (op, ty) {
        (BinaryOp::Add, Some(ty)) => return Ok(b.fadd(ty, x, y)),
        (BinaryOp::Sub, Some(ty)) => return Ok(b.fsub(ty, x, y)),
        (BinaryOp::Mul, Some(ty)) => return Ok(b.fmul(ty, x, y)),
        (BinaryOp::Max, Some(ty)) => return Ok(min_max(b, MinMax::Max, ty, x, y)),
        (BinaryOp::Min, Some(ty)) => return Ok(min_max(b, MinMax::Min, ty, x, y)),
        _ => {}
    }
    match dtype {
        DType::F32 => binary_f32(b, precision, op, x, y),
        DType::F64 => match op {
            BinaryOp::Div => Ok(b.fdiv(WideFloatType::F64, x, y)),
            _ => Err(undefined(op.name(), dtype)),
        },
        _ => {
            let (x, y) = (convert::to_f32(b, dtype, x)?, convert::to_f32(b, dtype, y)?);
            let out = binary_f32(b, precision, op, x, y)?;
            convert::from_f32(b, dtype, out)
        }
    }
}

fn quotient_f32(b: &mut Builder, quotients: Quotients, x: S, y: S) -> S {
    let reciprocal = b.as_constant(y).map(|bits| 1.0 / f32::from_bits(bits as u32));
    match (quotients, reciprocal) {
        (Quotients::Rounded, _) => b.fdiv(WideFloatType::F32, x, y),
        (Quotients::Full, Some(r)) if r.is_normal() && b.as_constant(x).is_none() => {
            b.fmul(FloatType::F32, x, Src::u32(r.to_bits()))
        }
        (Quotients::Full, _) => b.emit(Inst::div_approx(DivMode::Full, Ftz::No, Value::NEW, x, y)),
    }
}

fn binary_f32(b: &mut Builder, precision: Precision, op: BinaryOp, x: S, y: S) -> Result<S> {
    const F32: FloatType = FloatType::F32;
    Ok(match op {
        BinaryOp::Add => b.fadd(F32, x, y),
        BinaryOp::Sub => b.fsub(F32, x, y),
        BinaryOp::Mul => b.fmul(F32, x, y),
        BinaryOp::Div => quotient_f32(b, precision.quotients, x, y),
        BinaryOp::Max => min_max(b, MinMax::Max, F32, x, y),
        BinaryOp::Min => min_max(b, MinMax::Min, F32, x, y),
        BinaryOp::Rem => math::fmod(b, x, y)?,
        BinaryOp::Pow => math::pow(b, precision, x, y),
        BinaryOp::Atan2 => math::atan2(b, x, y),
        BinaryOp::And
        | BinaryOp::Or
        | BinaryOp::Xor
        | BinaryOp::ShiftLeft
        | BinaryOp::ShiftRightLogical
        | BinaryOp::ShiftRightArithmetic
        | BinaryOp::NextAfter
        | BinaryOp::CopySign => return Err(undefined(op.name(), DType::F32)),
    })
}

/// NaN if either is NaN; −0 below +0. PTX has no `.NaN` form for f64.
pub fn min_max(b: &mut Builder, op: MinMax, ty: FloatType, x: S, y: S) -> S {
    if ty != FloatType::F64 {
        return b.fmin_max(op, NanMode::Propagate, ty, x, y);
    }
    let number = b.fmin_max(op, NanMode::Number, ty, x, y);
    let nan = b.setp(Compare::Nan, CompareType::F64, x, y);
    b.pick(Class::B64, nan, Src::f64(f64::NAN), number)
}

/// The next number from x towards y: y if they are equal, NaN if either is.
fn next_after(b: &mut Builder, dtype: DType, x: S, y: S) -> Result<S> {
    let (int, class, cmp) = match dtype {
        DType::F32 => (IntType::S32, Class::B32, CompareType::F32),
        DType::F64 => (IntType::S64, Class::B64, CompareType::F64),
        _ => return Err(undefined("nextafter", dtype)),
    };
    let (logic, sign) = bits_view(dtype);
    let wide = if class == Class::B64 { u64::MAX } else { 0xffff_ffff };
    let equal = b.setp(Compare::Eq, cmp, x, y);
    let up = b.setp(Compare::Lt, cmp, x, y);
    let negative = b.setp(Compare::Lt, int.as_compare(), x, Src::Imm(0));
    // Away from zero: the magnitude grows.
    let grows = b.logic_pred(Logic::Xor, up, negative);
    let step = b.pick(class, grows, Src::Imm(1), Src::Imm(wide));
    let moved = b.add(int, x, step);
    // From zero: the smallest number of y's sign.
    let y_sign = b.and(logic, y, Src::Imm(sign));
    let smallest = b.or(logic, y_sign, Src::Imm(1));
    let is_zero = b.setp(Compare::Eq, cmp, x, Src::Imm(0));
    let moved = b.pick(class, is_zero, smallest, moved);
    let out = b.pick(class, equal, y, moved);
    let nan = b.setp(Compare::Nan, cmp, x, y);
    let quiet = if class == Class::B64 {
        f64::NAN.to_bits()
    } else {
        u64::from(f32::NAN.to_bits())
    };
    Ok(b.pick(class, nan, Src::Imm(quiet), out))
}

/// False with a NaN; `Ne` true.
pub fn compare(b: &mut Builder, op: CompareOp, dtype: DType, x: S, y: S) -> Result<S> {
    let ty = match dtype {
        DType::F16 => CompareType::F16,
        DType::BF16 => CompareType::BF16,
        DType::F32 => CompareType::F32,
        DType::F64 => CompareType::F64,
        _ => {
            let (x, y) = (convert::to_f32(b, dtype, x)?, convert::to_f32(b, dtype, y)?);
            return compare(b, op, DType::F32, x, y);
        }
    };
    let cmp = match op {
        CompareOp::Eq => Compare::Eq,
        CompareOp::Ne => Compare::Neu,
        CompareOp::Lt => Compare::Lt,
        CompareOp::Le => Compare::Le,
        CompareOp::Gt => Compare::Gt,
        CompareOp::Ge => Compare::Ge,
    };
    Ok(b.setp(cmp, ty, x, y))
}

/// a^n by repeated squaring; n < 0: 1 / a^|n|.
pub fn integer_pow(b: &mut Builder, precision: Precision, dtype: DType, a: S, n: i32) -> Result<S> {
    let one = match dtype {
        DType::F64 => Src::f64(1.0),
        _ => Src::f32(1.0),
    };
    let (wide, ty) = match dtype {
        DType::F64 => (a, FloatType::F64),
        _ => (convert::to_f32(b, dtype, a)?, FloatType::F32),
    };
    let mut result = None;
    let (mut square, mut left) = (wide, n.unsigned_abs());
    while left > 0 {
        if left & 1 == 1 {
            result = Some(match result {
                None => square,
                Some(r) => b.fmul(ty, r, square),
            });
        }
        left >>= 1;
        if left > 0 {
            square = b.fmul(ty, square, square);
        }
    }
    let mut out = result.unwrap_or(one);
    if n < 0 {
        let as_type = if ty == FloatType::F64 { DType::F64 } else { DType::F32 };
        out = binary(b, precision, BinaryOp::Div, as_type, one, out)?;
    }
    match dtype {
        DType::F64 => Ok(out),
        _ => convert::from_f32(b, dtype, out),
    }
}

/// A float with fewer exponent and mantissa bits, in the same type; f32 and what converts to it exactly.
pub fn reduce_precision(b: &mut Builder, dtype: DType, a: S, exponent: u32, mantissa: u32) -> Result<S> {
    if dtype == DType::F64 {
        return Err(undefined("reduce_precision", dtype));
    }
    let x = convert::to_f32(b, dtype, a)?;
    let magnitude = b.and32(x, 0x7fff_ffff);
    let sign = b.and32(x, 1 << 31);
    let mut out = magnitude;
    if mantissa < 23 {
        // Round to nearest even by adding just below half and the last kept bit.
        let dropped = 23 - mantissa;
        let last = b.field(magnitude, dropped, 1, false);
        let bias = b.add(IntType::U32, last, Src::u32((1 << (dropped - 1)) - 1));
        let sum = b.add(IntType::U32, magnitude, bias);
        out = b.and32(sum, !((1u32 << dropped) - 1));
    }
    if exponent < 8 {
        // XLA: what is too large becomes infinity, what is too small zero.
        let bias = (1i64 << (exponent.max(1) - 1)) - 1;
        let largest = ((bias + 127) as u32) << 23 | (0x007f_ffff & !((1u32 << (23 - mantissa.min(23))) - 1));
        let smallest = ((1 - bias + 127) as u32) << 23;
        let too_large = b.setp(Compare::Hi, CompareType::U32, out, Src::u32(largest));
        out = b.pick(Class::B32, too_large, Src::u32(0x7f80_0000), out);
        let too_small = b.setp(Compare::Lo, CompareType::U32, out, Src::u32(smallest));
        out = b.pick(Class::B32, too_small, Src::u32(0), out);
    }
    let special = b.setp(Compare::Hi, CompareType::U32, magnitude, Src::u32(0x7f80_0000));
    out = b.pick(Class::B32, special, magnitude, out);
    let out = b.or(LogicType::B32, out, sign);
    convert::from_f32(b, dtype, out)
}
