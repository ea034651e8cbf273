//! Conversions between element types, on scalars as [`super::value::Lowered::Scalar`] keeps them.
use super::convert_words;
use super::cx::LowerCx;
use super::emit::S;
use super::integer::{int_type, wrap};
use super::value::{ArrayRegs, scalar_class};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::ptx::build::Builder;
use crate::ptx::inst::Inst;
use crate::ptx::modifier::*;
use crate::ptx::operand::{Class, Src};
use crate::ptx::ssa::Value;
use crate::target::Features;

/// lax's `convert_element_type`.
pub fn convert(b: &mut Builder, from: DType, to: DType, a: S) -> Result<S> {
    if from == to {
        return Ok(a);
    }
    match (kind(from), kind(to)) {
        (Kind::Bool, Kind::Bool) => Ok(a),
        (Kind::Bool, Kind::Int) => Ok(super::integer::from_bool(b, to, a)),
        (Kind::Bool, Kind::Float) => {
            if to == DType::F64 {
                Ok(b.pick(Class::B64, a, Src::f64(1.0), Src::Imm(0)))
            } else {
                let x = b.pick(Class::B32, a, Src::f32(1.0), Src::Imm(0));
                from_f32(b, to, x)
            }
        }
        (Kind::Int, Kind::Bool) => Ok(b.setp(Compare::Ne, int_type(from).as_compare(), a, Src::Imm(0))),
        (Kind::Float, Kind::Bool) => {
            let (x, ty) = match from {
                DType::F64 => (a, CompareType::F64),
                _ => (to_f32(b, from, a)?, CompareType::F32),
            };
            Ok(b.setp(Compare::Neu, ty, x, Src::Imm(0)))
        }
        (Kind::Int, Kind::Int) => Ok(int_to_int(b, from, to, a)),
        (Kind::Int, Kind::Float) => int_to_float(b, from, to, a),
        (Kind::Float, Kind::Int) => float_to_int(b, from, to, a),
        (Kind::Float, Kind::Float) => float_to_float(b, from, to, a),
    }
}

/// An array converted.
pub fn as_type(cx: &mut LowerCx, x: &ArrayRegs, to: DType) -> Result<ArrayRegs> {
    if x.dtype == to {
        return Ok(x.clone());
    }
    if let Some(out) = convert_words::run(cx, x, to) {
        return Ok(out);
    }
    let mut out = vec![];
    for s in cx.elements(x) {
        out.push(convert(&mut cx.b, x.dtype, to, s)?);
    }
    Ok(cx.from_elements(to, x.layout.clone(), &out))
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Bool,
    Int,
    Float,
}

fn kind(dtype: DType) -> Kind {
    match dtype {
        DType::Bool => Kind::Bool,
        d if d.is_int() => Kind::Int,
        _ => Kind::Float,
    }
}

fn int_to_int(b: &mut Builder, from: DType, to: DType, a: S) -> S {
    match (from.bits() == 64, to.bits() == 64) {
        (true, true) => a,
        (false, true) => b.widen(a, from.is_signed_int()),
        (true, false) => {
            let low = b.truncate(a);
            wrap(b, to, low)
        }
        (false, false) => {
            let fits = from.bits() < to.bits() && (from.is_unsigned_int() || to.is_signed_int());
            if fits { a } else { wrap(b, to, a) }
        }
    }
}

fn int_to_float(b: &mut Builder, from: DType, to: DType, a: S) -> Result<S> {
    let int = int_type(from).as_cvt();
    match to {
        DType::F64 => return Ok(b.cvt(CvtType::F64, int, CvtRound::Rn, a)),
        DType::F32 => return Ok(b.cvt(CvtType::F32, int, CvtRound::Rn, a)),
        _ => {}
    }
    // f32 holds integers of up to 24 bits; larger ones are rounded to odd, so that the second rounding is the only one.
    if from.bits() <= 16 {
        let x = b.cvt(CvtType::F32, int, CvtRound::Rn, a);
        return from_f32(b, to, x);
    }
    let x = b.cvt(CvtType::F32, int, CvtRound::Rz, a);
    let back = b.cvt(int, CvtType::F32, CvtRound::Rzi, x);
    let inexact = b.setp(Compare::Ne, int_type(from).as_compare(), back, a);
    let x = sticky(b, x, inexact);
    from_f32(b, to, x)
}

/// The f32 with its last bit set where something was cut off.
fn sticky(b: &mut Builder, x: S, inexact: S) -> S {
    let odd = b.or(LogicType::B32, x, Src::u32(1));
    b.pick(Class::B32, inexact, odd, x)
}

/// Towards zero, saturating, NaN → 0.
fn float_to_int(b: &mut Builder, from: DType, to: DType, a: S) -> Result<S> {
    let (x, float, compare) = match from {
        DType::F64 => (a, CvtType::F64, CompareType::F64),
        _ => (to_f32(b, from, a)?, CvtType::F32, CompareType::F32),
    };
    let int = int_type(to);
    let class = scalar_class(to);
    let mut out = b.cvt(int.as_cvt(), float, CvtRound::Rzi, x);
    // The machine saturates; NaN becomes 0 only when neither side is 64-bit (PTX ISA 9.7.9.21).
    if from == DType::F64 || to.bits() == 64 {
        let nan = b.setp(Compare::Nan, compare, x, x);
        out = b.pick(class, nan, Src::Imm(0), out);
    }
    let bits = to.bits();
    if bits < 32 {
        let (lo, hi) = match to.is_signed_int() {
            true => (-(1i32 << (bits - 1)), (1i32 << (bits - 1)) - 1),
            false => (0, ((1u32 << bits) - 1) as i32),
        };
        out = b.min(int, out, Src::imm32(hi));
        if to.is_signed_int() {
            out = b.max(int, out, Src::imm32(lo));
        }
    }
    Ok(out)
}

fn float_to_float(b: &mut Builder, from: DType, to: DType, a: S) -> Result<S> {
    match (from, to) {
        (DType::F64, DType::F32) => Ok(b.cvt(CvtType::F32, CvtType::F64, CvtRound::Rn, a)),
        (DType::F64, _) => {
            // Rounded to odd, so that the second rounding is the only one.
            let x = b.cvt(CvtType::F32, CvtType::F64, CvtRound::Rz, a);
            let back = b.cvt(CvtType::F64, CvtType::F32, CvtRound::None, x);
            let inexact = b.setp(Compare::Ne, CompareType::F64, back, a);
            let x = sticky(b, x, inexact);
            from_f32(b, to, x)
        }
        (_, DType::F64) => {
            let x = to_f32(b, from, a)?;
            Ok(b.cvt(CvtType::F64, CvtType::F32, CvtRound::None, x))
        }
        _ => {
            let x = to_f32(b, from, a)?;
            from_f32(b, to, x)
        }
    }
}

/// A float of at most 32 bits as f32, exactly.
pub fn to_f32(b: &mut Builder, from: DType, a: S) -> Result<S> {
    let d = Value::NEW;
    Ok(match from {
        DType::F32 => a,
        DType::F16 => b.cvt(CvtType::F32, CvtType::F16, CvtRound::None, a),
        DType::BF16 => b.pack16(Src::Imm(0), a),
        DType::F8E4M3FN | DType::F8E5M2 if b.has(Features::FP8) => {
            let from = if from == DType::F8E5M2 {
                Pair8::E5M2x2
            } else {
                Pair8::E4M3x2
            };
            let half = b.cvt_int(CvtType::U16, CvtType::U32, a);
            let half = b.r16(half);
            let pair = b.emit(Inst::cvt_f16x2_pair8(Relu::No, from, d, half));
            let low = b.unpack16(pair)[0];
            b.cvt(CvtType::F32, CvtType::F16, CvtRound::None, low)
        }
        DType::F8E8M0FNU => {
            // 2^(code − 127): code 0 is subnormal in f32, 255 is NaN.
            let shifted = b.shl(BitType::B32, a, Src::u32(23));
            let zero = b.setp(Compare::Eq, CompareType::U32, a, Src::u32(0));
            let x = b.pick(Class::B32, zero, Src::u32(1 << 22), shifted);
            let nan = b.setp(Compare::Eq, CompareType::U32, a, Src::u32(255));
            b.pick(Class::B32, nan, Src::u32(0x7fc0_0000), x)
        }
        _ => match Small::of(from) {
            Some(small) => small.decode(b, a),
            None => return Err(Error::internal(format!("{from} as f32"))),
        },
    })
}

/// An f32 rounded to a float of at most 32 bits.
pub fn from_f32(b: &mut Builder, to: DType, a: S) -> Result<S> {
    Ok(match to {
        DType::F32 => a,
        DType::F16 => b.cvt(CvtType::F16, CvtType::F32, CvtRound::Rn, a),
        DType::BF16 => b.cvt(CvtType::BF16, CvtType::F32, CvtRound::Rn, a),
        DType::F8E4M3FN | DType::F8E5M2 if b.has(Features::FP8) => {
            let pair = fp8_pair(b, to, a, Src::Imm(0));
            b.field(pair, 0, 8, false)
        }
        DType::F8E8M0FNU => return Err(Error::internal("a conversion to float8_e8m0fnu")),
        _ => match Small::of(to) {
            Some(small) => small.encode(b, a),
            None => return Err(Error::internal(format!("f32 as {to}"))),
        },
    })
}

/// Two f32 as two fp8 codes in the low half of a word, `low` in the low byte. The machine saturates; what it saturated becomes NaN
/// (e4m3fn) or infinity (e5m2), as in `ml_dtypes`.
pub fn fp8_pair(b: &mut Builder, to: DType, low: S, high: S) -> S {
    let e5m2 = to == DType::F8E5M2;
    let pair = if e5m2 { Pair8::E5M2x2 } else { Pair8::E4M3x2 };
    let codes = b.emit(Inst::cvt_pair8_f32(Relu::No, pair, Value::NEW, high, low));
    let mut word = b.cvt_int(CvtType::U32, CvtType::U16, codes);
    for (i, x) in [low, high].into_iter().enumerate() {
        if x.imm() == Some(0) {
            continue;
        }
        let magnitude = b.and32(x, 0x7fff_ffff);
        // Halfway to what would follow the largest number: rounds away from 57344 (e5m2), to 448 (e4m3fn), both even.
        let (beyond, code) = if e5m2 {
            let inf = b.setp(Compare::Ge, CompareType::F32, magnitude, Src::f32(61440.0));
            (inf, 0x7c)
        } else {
            let nan = b.setp(Compare::Gtu, CompareType::F32, magnitude, Src::f32(464.0));
            (nan, 0x7f)
        };
        let fixed = b.insert_field(Src::u32(code), word, 8 * i as u32, 7);
        word = b.pick(Class::B32, beyond, fixed, word);
    }
    word
}

/// A narrow float that the machine does not convert: sign, exponent and mantissa bits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Small {
    exponent: u32,
    mantissa: u32,
    bias: i32,
    special: Special,
}

/// What the largest codes of a narrow float are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Special {
    /// All are finite; what is too large saturates, NaN becomes −0 (`ml_dtypes` for types without NaN).
    Finite,
    /// NaN is the code of −0; there is no infinity and no −0.
    UnsignedZero,
    /// As in IEEE: the largest exponent is infinity and NaN.
    Ieee,
    /// NaN is all ones, and what is too large; there is no infinity.
    AllOnes,
}

impl Small {
    fn of(dtype: DType) -> Option<Small> {
        let (exponent, mantissa, bias, special) = match dtype {
            DType::F4E2M1FN => (2, 1, 1, Special::Finite),
            DType::F6E2M3FN => (2, 3, 1, Special::Finite),
            DType::F6E3M2FN => (3, 2, 3, Special::Finite),
            DType::F8E4M3B11FNUZ => (4, 3, 11, Special::UnsignedZero),
            DType::F8E4M3FNUZ => (4, 3, 8, Special::UnsignedZero),
            DType::F8E5M2FNUZ => (5, 2, 16, Special::UnsignedZero),
            DType::F8E3M4 => (3, 4, 3, Special::Ieee),
            DType::F8E4M3 => (4, 3, 7, Special::Ieee),
            DType::F8E5M2 => (5, 2, 15, Special::Ieee),
            DType::F8E4M3FN => (4, 3, 7, Special::AllOnes),
            _ => return None,
        };
        Some(Small {
            exponent,
            mantissa,
            bias,
            special,
        })
    }

    fn width(self) -> u32 {
        1 + self.exponent + self.mantissa
    }

    /// The code's bits moved to f32's places are the number divided by 2^(127 − bias), subnormals included.
    fn decode(self, b: &mut Builder, a: S) -> S {
        let magnitude = b.field(a, 0, self.width() - 1, false);
        let placed = b.shl(BitType::B32, magnitude, Src::u32(23 - self.mantissa));
        let scale = f32::from_bits(((127 + 127 - self.bias) as u32) << 23);
        let mut x = b.fmul(FloatType::F32, placed, Src::f32(scale));
        let sign = b.field(a, self.width() - 1, 1, false);
        let sign = b.shl(BitType::B32, sign, Src::u32(31));
        let nan = Src::u32(0x7fc0_0000);
        match self.special {
            Special::Finite => {}
            Special::UnsignedZero => {
                let is_nan = b.setp(Compare::Eq, CompareType::U32, a, Src::u32(1 << (self.width() - 1)));
                x = b.pick(Class::B32, is_nan, nan, x);
            }
            Special::Ieee => {
                let inf = ((1u32 << self.exponent) - 1) << self.mantissa;
                let is_inf = b.setp(Compare::Eq, CompareType::U32, magnitude, Src::u32(inf));
                x = b.pick(Class::B32, is_inf, Src::u32(0x7f80_0000), x);
                let is_nan = b.setp(Compare::Hi, CompareType::U32, magnitude, Src::u32(inf));
                x = b.pick(Class::B32, is_nan, nan, x);
            }
            Special::AllOnes => {
                let ones = (1u32 << (self.width() - 1)) - 1;
                let is_nan = b.setp(Compare::Eq, CompareType::U32, magnitude, Src::u32(ones));
                x = b.pick(Class::B32, is_nan, nan, x);
            }
        }
        b.or(LogicType::B32, x, sign)
    }

    fn encode(self, b: &mut Builder, a: S) -> S {
        let magnitude = b.and32(a, 0x7fff_ffff);
        let sign = b.shr(ShiftType::U32, a, Src::u32(31));
        let sign = b.shl(BitType::B32, sign, Src::u32(self.width() - 1));
        let dropped = 23 - self.mantissa;
        // Normal numbers: round the bits to nearest even, then move the bias.
        let last = b.field(magnitude, dropped, 1, false);
        let up = b.add(IntType::U32, last, Src::u32((1 << (dropped - 1)) - 1));
        let rounded = b.add(IntType::U32, magnitude, up);
        let rounded = b.shr(ShiftType::U32, rounded, Src::u32(dropped));
        let rebias = (127 - self.bias) << self.mantissa;
        let normal = b.sub(IntType::S32, rounded, Src::imm32(rebias));
        // Subnormal ones: adding 2^(23 − mantissa + 1 − bias) leaves them in the low bits, rounded by the addition.
        let magic = f32::from_bits(((127 + 23 - self.mantissa as i32 + 1 - self.bias) as u32) << 23);
        let sum = b.fadd(FloatType::F32, magnitude, Src::f32(magic));
        let subnormal = b.sub(IntType::U32, sum, Src::f32(magic));
        let smallest_normal = ((127 + 1 - self.bias) as u32) << 23;
        let small = b.setp(Compare::Lo, CompareType::U32, magnitude, Src::u32(smallest_normal));
        let mut code = b.pick(Class::B32, small, subnormal, normal);
        let all = (1u32 << (self.width() - 1)) - 1;
        let nan_input = b.setp(Compare::Hi, CompareType::U32, magnitude, Src::u32(0x7f80_0000));
        match self.special {
            Special::Finite => {
                code = b.min(IntType::S32, code, Src::u32(all));
                let out = b.or(LogicType::B32, code, sign);
                b.pick(Class::B32, nan_input, Src::u32(all + 1), out)
            }
            Special::UnsignedZero => {
                let beyond = b.setp(Compare::Gt, CompareType::S32, code, Src::u32(all));
                let nan = b.either(beyond, nan_input);
                let zero = b.setp(Compare::Eq, CompareType::U32, code, Src::u32(0));
                let sign = b.pick(Class::B32, zero, Src::u32(0), sign);
                let out = b.or(LogicType::B32, code, sign);
                b.pick(Class::B32, nan, Src::u32(all + 1), out)
            }
            Special::Ieee => {
                let inf = ((1u32 << self.exponent) - 1) << self.mantissa;
                code = b.min(IntType::S32, code, Src::u32(inf));
                let quiet = inf | 1 << (self.mantissa - 1);
                code = b.pick(Class::B32, nan_input, Src::u32(quiet), code);
                b.or(LogicType::B32, code, sign)
            }
            // What is too large, and infinity, is the largest code, which is NaN; the bits of a NaN are larger still.
            Special::AllOnes => {
                code = b.min(IntType::S32, code, Src::u32(all));
                b.or(LogicType::B32, code, sign)
            }
        }
    }
}
