//! Functions of one lane: floating point, as `arith` has it, in shapes that rows take.
use super::arith::convert::{self, Fp8, ToInteger};
use super::arith::exact;
use super::arith::float::{self, Rounding};
use super::arith::special;
use super::check::Hooks;
use super::machine::Machine;
use super::ops::{EQUAL, GREATER, LESS, UNORDERED};
use super::uop::{Body, Flow, Op1, Op2, Op3, Step, Test, Uop, lane_function, lane_functions};
use super::warp::Warp;
use crate::ptx::modifier::{CvtRound, CvtType, Modifier, Round};
use std::marker::PhantomData;

/// The rounding at a position of its enum.
pub fn rounding(imm: u32) -> Rounding {
    match Round::ALL[imm as usize] {
        Round::Rn => Rounding::NearestEven,
        Round::Rz => Rounding::TowardZero,
        Round::Rm => Rounding::Down,
        Round::Rp => Rounding::Up,
    }
}

const SIGN_32: u32 = 0x8000_0000;

lane_functions! {
    AddF32 (a: u32, b: u32) -> u32 = float::add_f32(a, b);
    SubF32 (a: u32, b: u32) -> u32 = float::sub_f32(a, b);
    MulF32 (a: u32, b: u32) -> u32 = float::mul_f32(a, b);
    FmaF32 (a: u32, b: u32, c: u32) -> u32 = float::fma_f32::<true>(a, b, c);
    FmaF32Slow (a: u32, b: u32, c: u32) -> u32 = float::fma_f32::<false>(a, b, c);
    AddFtzF32 (a: u32, b: u32) -> u32 = float::add_ftz_f32(a, b);
    SubFtzF32 (a: u32, b: u32) -> u32 = float::sub_ftz_f32(a, b);
    MulFtzF32 (a: u32, b: u32) -> u32 = float::mul_ftz_f32(a, b);
    FmaFtzF32 (a: u32, b: u32, c: u32) -> u32 = float::fma_ftz_f32(a, b, c);
    NegF32 (a: u32) -> u32 = float::neg_f32(a);
    AbsF32 (a: u32) -> u32 = float::abs_f32(a);
    MinF32 (a: u32, b: u32) -> u32 = float::min_f32(a, b);
    MaxF32 (a: u32, b: u32) -> u32 = float::max_f32(a, b);
    MinNanF32 (a: u32, b: u32) -> u32 = float::min_nan_f32(a, b);
    MaxNanF32 (a: u32, b: u32) -> u32 = float::max_nan_f32(a, b);
    AddF64 (a: u64, b: u64) -> u64 = float::add_f64(a, b);
    SubF64 (a: u64, b: u64) -> u64 = float::sub_f64(a, b);
    MulF64 (a: u64, b: u64) -> u64 = float::mul_f64(a, b);
    FmaF64 (a: u64, b: u64, c: u64) -> u64 = float::fma_f64(a, b, c);
    NegF64 (a: u64) -> u64 = float::neg_f64(a);
    AbsF64 (a: u64) -> u64 = float::abs_f64(a);
    MinF64 (a: u64, b: u64) -> u64 = float::min_f64(a, b);
    MaxF64 (a: u64, b: u64) -> u64 = float::max_f64(a, b);
    AddF16 (a: u16, b: u16) -> u16 = float::add_f16(a, b);
    SubF16 (a: u16, b: u16) -> u16 = float::sub_f16(a, b);
    MulF16 (a: u16, b: u16) -> u16 = float::mul_f16(a, b);
    FmaF16 (a: u16, b: u16, c: u16) -> u16 = float::fma_f16(a, b, c);
    NegF16 (a: u16) -> u16 = float::neg_f16(a);
    AbsF16 (a: u16) -> u16 = float::abs_f16(a);
    MinF16 (a: u16, b: u16) -> u16 = float::min_f16(a, b);
    MaxF16 (a: u16, b: u16) -> u16 = float::max_f16(a, b);
    MinNanF16 (a: u16, b: u16) -> u16 = float::min_nan_f16(a, b);
    MaxNanF16 (a: u16, b: u16) -> u16 = float::max_nan_f16(a, b);
    AddBF16 (a: u16, b: u16) -> u16 = float::add_bf16(a, b);
    SubBF16 (a: u16, b: u16) -> u16 = float::sub_bf16(a, b);
    MulBF16 (a: u16, b: u16) -> u16 = float::mul_bf16(a, b);
    FmaBF16 (a: u16, b: u16, c: u16) -> u16 = float::fma_bf16(a, b, c);
    NegBF16 (a: u16) -> u16 = float::neg_bf16(a);
    AbsBF16 (a: u16) -> u16 = float::abs_bf16(a);
    MinBF16 (a: u16, b: u16) -> u16 = float::min_bf16(a, b);
    MaxBF16 (a: u16, b: u16) -> u16 = float::max_bf16(a, b);
    MinNanBF16 (a: u16, b: u16) -> u16 = float::min_nan_bf16(a, b);
    MaxNanBF16 (a: u16, b: u16) -> u16 = float::max_nan_bf16(a, b);
    // Conversions that are worth a loop of their own.
    F16ToF32 (a: u16) -> u32 = convert::f16_to_f32_bits(a);
    BF16ToF32 (a: u16) -> u32 = convert::bf16_to_f32_bits(a);
    F32ToF16 (a: u32) -> u16 = convert::f32_to_f16(a);
    F32ToBF16 (a: u32) -> u16 = convert::f32_to_bf16(a);
    S32ToF32 (a: i32) -> u32 = convert::s32_to_f32(a);
    U32ToF32 (a: u32) -> u32 = convert::u32_to_f32(a);
    F32ToS32 (a: u32) -> i32 = convert::f32_to_s32(a, ToInteger::TowardZero);
    SignExtend32 (a: i32) -> i64 = i64::from(a);
    ZeroExtend32 (a: u32) -> u64 = u64::from(a);
    Low32 (a: u64) -> u32 = a as u32;
    Low16 (a: u32) -> u16 = a as u16;
    ZeroExtend16 (a: u16) -> u32 = u32::from(a);
    SignExtend16 (a: i16) -> i32 = i32::from(a);
    // Packed pairs: `a` is the high half.
    PackF16 (a: u32, b: u32) -> u32 = u32::from(convert::f32_to_f16(a)) << 16 | u32::from(convert::f32_to_f16(b));
    PackBF16 (a: u32, b: u32) -> u32 = u32::from(convert::f32_to_bf16(a)) << 16 | u32::from(convert::f32_to_bf16(b));
}
lane_functions! {
    scalar
    // `imm` is the rounding.
    AddRoundedF32 [imm] (a: u32, b: u32) -> u32 = float::add_rounded_f32(a, b, rounding(imm));
    SubRoundedF32 [imm] (a: u32, b: u32) -> u32 = float::add_rounded_f32(a, negated(b), rounding(imm));
    MulRoundedF32 [imm] (a: u32, b: u32) -> u32 = float::mul_rounded_f32(a, b, rounding(imm));
    FmaRoundedF32 [imm] (a: u32, b: u32, c: u32) -> u32 = float::fma_rounded_f32(a, b, c, rounding(imm));
    Ex2F16 (a: u16) -> u16 = special::ex2_approx_f16(a);
    Ex2BF16 (a: u16) -> u16 = special::ex2_approx_ftz_bf16(a);
    TanhF16 (a: u16) -> u16 = special::tanh_approx_f16(a);
    TanhBF16 (a: u16) -> u16 = special::tanh_approx_bf16(a);
    // `imm`: bits 0–1 the rounding, bit 2 `.relu`, bit 3 bf16.
    PackRounded [imm] (a: u32, b: u32) -> u32 = {
        let one = |x| {
            let x = if imm & 8 != 0 { convert::f32_to_bf16_rounded(x, rounding(imm & 3)) } else { convert::f32_to_f16_rounded(x, rounding(imm & 3)) };
            u32::from(if imm & 4 != 0 { float::relu_16(x) } else { x })
        };
        one(a) << 16 | one(b)
    };
}

fn negated(b: u32) -> u32 {
    b ^ SIGN_32
}
/// Conversions from and to fp8; `how`: bit 0 `.relu`, bit 1 e5m2.
pub fn fp8_of_f32(how: u32, x: u32) -> u8 {
    relu8(how, convert::f32_to_fp8(fp8(how), x))
}
pub fn fp8_of_f16(how: u32, x: u16) -> u8 {
    relu8(how, convert::f16_to_fp8(fp8(how), x))
}
pub fn f16_of_fp8(how: u32, x: u8) -> u32 {
    let x = convert::fp8_to_f16(fp8(how), x);
    u32::from(if how & 1 != 0 { float::relu_16(x) } else { x })
}
fn fp8(how: u32) -> Fp8 {
    if how & 2 != 0 { Fp8::E5m2 } else { Fp8::E4m3 }
}
fn relu8(how: u32, x: u8) -> u8 {
    if how & 1 != 0 { convert::relu_fp8(x) } else { x }
}

/// Floats that are compared; `imm` is a set of outcomes.
pub struct CompareF32;
pub struct CompareF64;
pub struct CompareF16;
pub struct CompareBF16;
macro_rules! compares {
    ($($name:ident: $t:ty, |$x:ident| $value:expr;)*) => {$(
        impl Test for $name {
            type A = $t;
            #[inline(always)]
            fn f(set: u32, a: $t, b: $t) -> bool {
                let value = |$x: $t| $value;
                let (a, b) = (value(a), value(b));
                ((set & LESS != 0) & (a < b))
                    | ((set & EQUAL != 0) & (a == b))
                    | ((set & GREATER != 0) & (a > b))
                    | ((set & UNORDERED != 0) & (a.is_nan() | b.is_nan()))
            }
        }
    )*};
}
compares! {
    CompareF32: u32, |x| f32::from_bits(x);
    CompareF64: u64, |x| f64::from_bits(x);
    CompareF16: u16, |x| f32::from_bits(convert::f16_to_f32_bits(x));
    CompareBF16: u16, |x| f32::from_bits(convert::bf16_to_f32_bits(x));
}

/// A function of whole rows of f32.
pub trait Row1: 'static {
    fn f(a: &[u32; 32]) -> [u32; 32];
}
pub trait Row2: 'static {
    fn f(a: &[u32; 32], b: &[u32; 32]) -> [u32; 32];
}
pub struct Rows<O>(PhantomData<O>);
pub struct Rows2<O>(PhantomData<O>);
impl<O: Row1, H: Hooks> Body<H> for Rows<O> {
    #[inline(always)]
    fn run(w: &mut Warp, _: &mut Machine<'_, H>, u: &Uop<H>) -> Step {
        let out = O::f(w.read::<u32>(u.a));
        w.write::<u32>(u.d, out);
        Ok(Flow::Next)
    }
}
impl<O: Row2, H: Hooks> Body<H> for Rows2<O> {
    #[inline(always)]
    fn run(w: &mut Warp, _: &mut Machine<'_, H>, u: &Uop<H>) -> Step {
        let out = O::f(w.read::<u32>(u.a), w.read::<u32>(u.b));
        w.write::<u32>(u.d, out);
        Ok(Flow::Next)
    }
}
macro_rules! row_functions {
    ($($name:ident = $f:ident;)*) => {$(
        pub struct $name;
        impl Row1 for $name {
            #[inline(always)]
            fn f(a: &[u32; 32]) -> [u32; 32] { special::rows::$f(a) }
        }
    )*};
    (2 $($name:ident = $f:ident;)*) => {$(
        pub struct $name;
        impl Row2 for $name {
            #[inline(always)]
            fn f(a: &[u32; 32], b: &[u32; 32]) -> [u32; 32] { special::rows::$f(a, b) }
        }
    )*};
}
row_functions! {
    Ex2 = ex2_approx_f32;
    Ex2Ftz = ex2_approx_ftz_f32;
    Lg2 = lg2_approx_f32;
    Lg2Ftz = lg2_approx_ftz_f32;
    Rcp = rcp_approx_f32;
    RcpFtz = rcp_approx_ftz_f32;
    Rsqrt = rsqrt_approx_f32;
    RsqrtFtz = rsqrt_approx_ftz_f32;
    Sqrt = sqrt_approx_f32;
    SqrtFtz = sqrt_approx_ftz_f32;
    Sin = sin_approx_f32;
    Cos = cos_approx_f32;
    Tanh = tanh_approx_f32;
    Ex2F16x2 = ex2_approx_f16x2;
    Ex2BF16x2 = ex2_approx_ftz_bf16x2;
    TanhF16x2 = tanh_approx_f16x2;
    TanhBF16x2 = tanh_approx_bf16x2;
}
row_functions! { 2
    DivApprox = div_approx_f32;
    DivApproxFtz = div_approx_ftz_f32;
    DivFull = div_full_f32;
    DivFullFtz = div_full_ftz_f32;
}

/// A conversion: `imm` of [`Convert`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Conversion {
    pub rnd: CvtRound,
    pub flushes: bool,
    pub saturates: bool,
    pub to: CvtType,
    pub from: CvtType,
}

impl Conversion {
    pub fn code(self) -> u32 {
        self.rnd as u32
            | u32::from(self.flushes) << 4
            | u32::from(self.saturates) << 5
            | (self.to as u32) << 8
            | (self.from as u32) << 16
    }
    fn of_code(code: u32) -> Conversion {
        Conversion {
            rnd: CvtRound::ALL[(code & 15) as usize],
            flushes: code & 16 != 0,
            saturates: code & 32 != 0,
            to: CvtType::ALL[(code >> 8 & 255) as usize],
            from: CvtType::ALL[(code >> 16 & 255) as usize],
        }
    }

    /// The converted bits, as they sit in the destination register; `None`: no such conversion.
    pub fn apply(self, bits: u64) -> Option<u64> {
        match (is_float(self.from), is_float(self.to)) {
            (false, false) => Some(self.between_integers(bits)),
            (false, true) => self.of_integer(bits),
            (true, false) => self.to_integer(bits),
            (true, true) => self.between_floats(bits),
        }
    }

    fn between_integers(self, bits: u64) -> u64 {
        let x = integer_value(self.from, bits);
        let (low, high) = match self.to {
            CvtType::U8 => (0, i128::from(u8::MAX)),
            CvtType::S8 => (i128::from(i8::MIN), i128::from(i8::MAX)),
            CvtType::U16 => (0, i128::from(u16::MAX)),
            CvtType::S16 => (i128::from(i16::MIN), i128::from(i16::MAX)),
            CvtType::U32 => (0, i128::from(u32::MAX)),
            CvtType::S32 => (i128::from(i32::MIN), i128::from(i32::MAX)),
            CvtType::U64 => (0, i128::from(u64::MAX)),
            CvtType::S64 => (i128::from(i64::MIN), i128::from(i64::MAX)),
            CvtType::F16 | CvtType::BF16 | CvtType::F32 | CvtType::F64 => return bits,
        };
        register_bits(self.to, if self.saturates { x.clamp(low, high) } else { x } as u64)
    }

    fn of_integer(self, bits: u64) -> Option<u64> {
        let x = integer_value(self.from, bits);
        let is_u64 = self.from == CvtType::U64;
        let rounding = float_rounding(self.rnd)?;
        let nearest = rounding == Rounding::NearestEven;
        // Every other integer fits an i64.
        let (signed, unsigned) = (x as i64, x as u64);
        Some(match self.to {
            CvtType::F32 if is_u64 => u64::from(self.finish32(convert::u64_to_f32(unsigned, rounding))),
            CvtType::F32 => u64::from(self.finish32(convert::s64_to_f32(signed, rounding))),
            CvtType::F64 if nearest && is_u64 => convert::u64_to_f64(unsigned),
            CvtType::F64 if nearest || x.unsigned_abs() < 1 << 53 => convert::s64_to_f64(signed),
            CvtType::F16 if nearest && is_u64 => u64::from(convert::u64_to_f16(unsigned)),
            CvtType::F16 if nearest => u64::from(convert::s64_to_f16(signed)),
            CvtType::BF16 if nearest && is_u64 => u64::from(convert::u64_to_bf16(unsigned)),
            CvtType::BF16 if nearest => u64::from(convert::s64_to_bf16(signed)),
            to => {
                let magnitude = x.unsigned_abs() as u64;
                exact_format(to)?.round(
                    exact::Value::integer(x < 0, magnitude),
                    rounding,
                    exact::Subnormals::Kept,
                )
            }
        })
    }

    fn to_integer(self, bits: u64) -> Option<u64> {
        let rounding = integral_rounding(self.rnd)?;
        let wide = self.from == CvtType::F64;
        let x32 = match self.from {
            CvtType::F32 if self.flushes => float::flush_f32(bits as u32),
            CvtType::F32 => bits as u32,
            CvtType::F16 => convert::f16_to_f32_bits(bits as u16),
            CvtType::BF16 => convert::bf16_to_f32_bits(bits as u16),
            _ => 0,
        };
        macro_rules! by_width {
            ($of32:ident, $of64:ident) => {
                if wide {
                    convert::$of64(bits, rounding) as u64
                } else {
                    convert::$of32(x32, rounding) as u64
                }
            };
        }
        let value = match self.to {
            CvtType::U8 => by_width!(f32_to_u8, f64_to_u8),
            CvtType::S8 => by_width!(f32_to_s8, f64_to_s8),
            CvtType::U16 => by_width!(f32_to_u16, f64_to_u16),
            CvtType::S16 => by_width!(f32_to_s16, f64_to_s16),
            CvtType::U32 => by_width!(f32_to_u32, f64_to_u32),
            CvtType::S32 => by_width!(f32_to_s32, f64_to_s32),
            CvtType::U64 => by_width!(f32_to_u64, f64_to_u64),
            CvtType::S64 => by_width!(f32_to_s64, f64_to_s64),
            CvtType::F16 | CvtType::BF16 | CvtType::F32 | CvtType::F64 => return None,
        };
        Some(register_bits(self.to, value))
    }

    fn between_floats(self, bits: u64) -> Option<u64> {
        let integral = integral_rounding(self.rnd);
        let rounding = float_rounding(self.rnd);
        let x32 = if self.flushes {
            float::flush_f32(bits as u32)
        } else {
            bits as u32
        };
        let x16 = bits as u16;
        use CvtType::{BF16, F16, F32, F64};
        let saturate16 = |x: u16| match self.to {
            _ if !self.saturates => u64::from(x),
            BF16 => u64::from(float::saturate_bf16(x)),
            _ => u64::from(float::saturate_f16(x)),
        };
        Some(match (self.from, self.to) {
            (F32, F32) => u64::from(self.finish32(match integral {
                Some(r) => convert::round_integral_f32(x32, r),
                None => x32,
            })),
            (F64, F64) => match integral {
                Some(r) => convert::round_integral_f64(bits, r),
                None => bits,
            },
            (F16, F16) => saturate16(integral.map_or(x16, |r| convert::round_integral_f16(x16, r))),
            (BF16, BF16) => saturate16(integral.map_or(x16, |r| convert::round_integral_bf16(x16, r))),
            (F16, F32) => u64::from(self.finish32(convert::f16_to_f32_bits(x16))),
            (BF16, F32) => u64::from(self.finish32(convert::bf16_to_f32_bits(x16))),
            (F32, F16) => saturate16(convert::f32_to_f16_rounded(x32, rounding?)),
            (F32, BF16) => saturate16(convert::f32_to_bf16_rounded(x32, rounding?)),
            (F32, F64) => convert::f32_to_f64(x32),
            (F64, F32) => u64::from(self.finish32(convert::f64_to_f32(bits, rounding?))),
            (F64, F16) if rounding == Some(Rounding::NearestEven) => saturate16(convert::f64_to_f16(bits)),
            (F64, BF16) if rounding == Some(Rounding::NearestEven) => saturate16(convert::f64_to_bf16(bits)),
            (F16, BF16) if rounding == Some(Rounding::NearestEven) => saturate16(convert::f16_to_bf16(x16)),
            (BF16, F16) if rounding == Some(Rounding::NearestEven) => saturate16(convert::bf16_to_f16(x16)),
            (F64, F16) if float::is_nan_f64(bits) => saturate16(convert::nan_f64_to_f16(bits)),
            (F64, BF16) if float::is_nan_f64(bits) => saturate16(convert::nan_f64_to_bf16(bits)),
            (F64, F16 | BF16) | (F16, BF16) | (BF16, F16) => {
                let value = exact_format(self.from)?.value(bits, exact::Subnormals::Kept);
                saturate16(exact_format(self.to)?.round(value, rounding?, exact::Subnormals::Kept) as u16)
            }
            (F16, F64) => convert::f32_to_f64(convert::f16_to_f32_bits(x16)),
            (BF16, F64) => convert::f32_to_f64(convert::bf16_to_f32_bits(x16)),
            _ => return None,
        })
    }

    fn finish32(self, x: u32) -> u32 {
        let x = if self.flushes { float::flush_f32(x) } else { x };
        if self.saturates { float::saturate_f32(x) } else { x }
    }
}

fn exact_format(ty: CvtType) -> Option<exact::Format> {
    match ty {
        CvtType::F16 => Some(exact::F16),
        CvtType::BF16 => Some(exact::BF16),
        CvtType::F32 => Some(exact::F32),
        CvtType::F64 => Some(exact::F64),
        CvtType::U8
        | CvtType::S8
        | CvtType::U16
        | CvtType::S16
        | CvtType::U32
        | CvtType::S32
        | CvtType::U64
        | CvtType::S64 => None,
    }
}

fn is_float(ty: CvtType) -> bool {
    matches!(ty, CvtType::F16 | CvtType::BF16 | CvtType::F32 | CvtType::F64)
}

fn integer_value(ty: CvtType, bits: u64) -> i128 {
    match ty {
        CvtType::U8 => i128::from(bits as u8),
        CvtType::S8 => i128::from(bits as i8),
        CvtType::U16 => i128::from(bits as u16),
        CvtType::S16 => i128::from(bits as i16),
        CvtType::U32 => i128::from(bits as u32),
        CvtType::S32 => i128::from(bits as i32),
        CvtType::S64 => i128::from(bits as i64),
        CvtType::U64 | CvtType::F16 | CvtType::BF16 | CvtType::F32 | CvtType::F64 => i128::from(bits),
    }
}

/// An integer as it sits in its register: 8-bit ones extended to 32 bits.
fn register_bits(ty: CvtType, x: u64) -> u64 {
    match ty {
        CvtType::U8 => u64::from(x as u8),
        CvtType::S8 => u64::from(x as i8 as i32 as u32),
        CvtType::U16 | CvtType::S16 => u64::from(x as u16),
        CvtType::U32 | CvtType::S32 => u64::from(x as u32),
        CvtType::U64 | CvtType::S64 | CvtType::F16 | CvtType::BF16 | CvtType::F32 | CvtType::F64 => x,
    }
}

fn float_rounding(rnd: CvtRound) -> Option<Rounding> {
    match rnd {
        CvtRound::Rn => Some(Rounding::NearestEven),
        CvtRound::Rz => Some(Rounding::TowardZero),
        CvtRound::Rm => Some(Rounding::Down),
        CvtRound::Rp => Some(Rounding::Up),
        CvtRound::None | CvtRound::Rni | CvtRound::Rzi | CvtRound::Rmi | CvtRound::Rpi => None,
    }
}

fn integral_rounding(rnd: CvtRound) -> Option<ToInteger> {
    match rnd {
        CvtRound::Rni => Some(ToInteger::NearestEven),
        CvtRound::Rzi => Some(ToInteger::TowardZero),
        CvtRound::Rmi => Some(ToInteger::Down),
        CvtRound::Rpi => Some(ToInteger::Up),
        CvtRound::None | CvtRound::Rn | CvtRound::Rz | CvtRound::Rm | CvtRound::Rp => None,
    }
}

/// Any conversion, lane by lane.
pub struct Convert<A, D>(PhantomData<(A, D)>);

/// Bits to and from 64.
pub trait Narrow: super::row::Lane {
    fn widen(self) -> u64;
    fn narrow(bits: u64) -> Self;
}
macro_rules! narrow {
    ($($t:ty)*) => {$(
        impl Narrow for $t {
            #[inline(always)]
            fn widen(self) -> u64 { u64::from(self) }
            #[inline(always)]
            fn narrow(bits: u64) -> $t { bits as $t }
        }
    )*};
}
narrow! { u16 u32 u64 }

impl<A: Narrow, D: Narrow> Op1 for Convert<A, D> {
    type A = A;
    type D = D;
    const SCALAR: bool = true;
    #[inline(always)]
    fn f(imm: u32, a: A) -> D {
        // The decoder has tried it.
        D::narrow(Conversion::of_code(imm).apply(a.widen()).unwrap_or(0))
    }
}
