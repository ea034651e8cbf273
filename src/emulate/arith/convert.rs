//! PTX `cvt` on sm_90, on bits.
//!
//! NaN results: 0x7fffffff in f32, its upper 19 bits in tf32 (`.rn`, `.rz`), 0x7fff in f16 and bf16 (from f64 the payload's upper
//! bits and the sign; measured on an H100), 0x7f in fp8 (PTX ISA, `cvt`). What ptxas makes of some forms decides their NaNs: `cvt.f32.bf16` is a shift and keeps the payload; `cvt.rna.tf32` is integer
//! arithmetic and keeps what is left of it; float to integer is "NaN to zero" (`F2I.NTZ`) where neither side has 64 bits,
//! else the most negative integer's bits.

use super::float::{
    F32_NAN, NAN_16, Rounding, is_nan_bf16, is_nan_f16, is_nan_f32, is_nan_f64, odd_to_f32, round_to_f32,
};

/// `cvt.f32.f16`; exact.
#[inline(always)]
pub fn f16_to_f32_bits(x: u16) -> u32 {
    let magnitude = u32::from(x & 0x7fff) << 13;
    // Rebiasing by multiplication gets subnormals right; infinity is the one value that it does not reach.
    let finite = (f32::from_bits(magnitude) * f32::from_bits((127 + 112) << 23)).to_bits();
    let result = if magnitude >= 0x7c00 << 13 { 0x7f80_0000 } else { finite };
    if is_nan_f16(x) {
        F32_NAN
    } else {
        result | u32::from(x & 0x8000) << 16
    }
}

/// `cvt.f32.bf16`: a shift, NaN payloads included.
#[inline(always)]
pub const fn bf16_to_f32_bits(x: u16) -> u32 {
    (x as u32) << 16
}

/// `cvt.rn.f16.f32`.
#[inline(always)]
pub fn f32_to_f16(x: u32) -> u16 {
    let magnitude = x & 0x7fff_ffff;
    // Normal: round at bit 13, ties to even; the carry runs into the exponent.
    let normal = magnitude
        .wrapping_sub(112 << 23)
        .wrapping_add(0xfff + (magnitude >> 13 & 1))
        >> 13;
    // Below 2^-14: the sum with 0.5 has its last bit at 2^-24.
    let subnormal = (f32::from_bits(magnitude) + 0.5)
        .to_bits()
        .wrapping_sub(0.5f32.to_bits());
    let finite = if magnitude < 0x3880_0000 { subnormal } else { normal };
    let result = if magnitude >= 0x477f_f000 { 0x7c00 } else { finite };
    if is_nan_f32(x) {
        NAN_16
    } else {
        result as u16 | (x >> 16) as u16 & 0x8000
    }
}

/// `cvt.rn.bf16.f32`.
#[inline(always)]
pub const fn f32_to_bf16(x: u32) -> u16 {
    let rounded = (x.wrapping_add(0x7fff + (x >> 16 & 1)) >> 16) as u16;
    if is_nan_f32(x) { NAN_16 } else { rounded }
}

/// `cvt.f16.f32` with any rounding; overflow goes to infinity or the largest finite number as the rounding says.
#[inline(always)]
pub fn f32_to_f16_rounded(x: u32, rounding: Rounding) -> u16 {
    let nearest = f32_to_f16(x);
    let back = f32::from_bits(f16_to_f32_bits(nearest));
    let directed = directed(f64::from(back), f64::from(f32::from_bits(x)), nearest, rounding);
    if is_nan_f32(x) { NAN_16 } else { directed }
}

/// `cvt.bf16.f32` with any rounding.
#[inline(always)]
pub fn f32_to_bf16_rounded(x: u32, rounding: Rounding) -> u16 {
    let nearest = f32_to_bf16(x);
    let back = f32::from_bits(bf16_to_f32_bits(nearest));
    let directed = directed(f64::from(back), f64::from(f32::from_bits(x)), nearest, rounding);
    if is_nan_f32(x) { NAN_16 } else { directed }
}

/// Moves a nearest result (`bits`, whose value is `back`) to the neighbour on the other side of `exact` where the rounding
/// wants that side.
#[inline(always)]
fn directed(back: f64, exact: f64, bits: u16, rounding: Rounding) -> u16 {
    let (inward, outward) = (bits.wrapping_sub(1), bits.wrapping_add(1));
    let (down, up) = if bits >> 15 == 1 {
        (outward, inward)
    } else {
        (inward, outward)
    };
    match rounding {
        Rounding::TowardZero if back.abs() > exact.abs() => inward,
        Rounding::Down if back > exact => down,
        Rounding::Up if back < exact => up,
        Rounding::NearestEven | Rounding::TowardZero | Rounding::Down | Rounding::Up => bits,
    }
}

/// `cvt.rna.tf32.f32`: half of the last bit added to the magnitude unless infinite or NaN; the low 13 bits cleared.
#[inline(always)]
pub const fn f32_to_tf32_rna(x: u32) -> u32 {
    let is_finite = x & 0x7fff_ffff < 0x7f80_0000;
    (if is_finite { x + 0x1000 } else { x }) & 0xffff_e000
}

/// `cvt.rn.tf32.f32` and `cvt.rz.tf32.f32`.
#[inline(always)]
pub const fn f32_to_tf32(x: u32, rounding: Rounding) -> u32 {
    let bias = match rounding {
        Rounding::NearestEven => 0xfff + (x >> 13 & 1),
        Rounding::TowardZero | Rounding::Down | Rounding::Up => 0,
    };
    let result = if is_nan_f32(x) { F32_NAN } else { x.wrapping_add(bias) };
    result & 0xffff_e000
}

/// `cvt.f64.f32`: exact; a NaN keeps its payload and becomes quiet.
#[inline(always)]
pub fn f32_to_f64(x: u32) -> u64 {
    let nan = u64::from(x & 0x8000_0000) << 32 | 0x7ff8_0000_0000_0000 | u64::from(x & 0x7f_ffff) << 29;
    if is_nan_f32(x) {
        nan
    } else {
        f64::from(f32::from_bits(x)).to_bits()
    }
}

/// `cvt.f32.f64`.
#[inline(always)]
pub fn f64_to_f32(x: u64, rounding: Rounding) -> u32 {
    round_to_f32(f64::from_bits(x), rounding)
}

/// A NaN of f64 as one of f16, whatever the rounding.
#[inline(always)]
pub const fn nan_f64_to_f16(x: u64) -> u16 {
    (x >> 48) as u16 & 0x8000 | 0x7e00 | (x >> 42) as u16 & 0x3ff
}

/// The same of bf16.
#[inline(always)]
pub const fn nan_f64_to_bf16(x: u64) -> u16 {
    (x >> 48) as u16 & 0x8000 | 0x7fc0 | (x >> 45) as u16 & 0x7f
}

/// `cvt.rn.f16.f64`: one rounding.
#[inline(always)]
pub fn f64_to_f16(x: u64) -> u16 {
    if is_nan_f64(x) {
        return nan_f64_to_f16(x);
    }
    // Far below f16's range f32's subnormals keep the sticky bit.
    f32_to_f16(odd_to_f32(f64::from_bits(x)))
}

/// `cvt.rn.bf16.f64`: one rounding.
#[inline(always)]
pub fn f64_to_bf16(x: u64) -> u16 {
    if is_nan_f64(x) {
        return nan_f64_to_bf16(x);
    }
    f32_to_bf16(odd_to_f32(f64::from_bits(x)))
}

/// `cvt.rn.bf16.f16`.
#[inline(always)]
pub fn f16_to_bf16(x: u16) -> u16 {
    f32_to_bf16(f16_to_f32_bits(x))
}

/// `cvt.rn.f16.bf16`.
#[inline(always)]
pub fn bf16_to_f16(x: u16) -> u16 {
    let result = f32_to_f16(bf16_to_f32_bits(x));
    if is_nan_bf16(x) { NAN_16 } else { result }
}

/// To which integer a float-to-integer or integral conversion rounds: `.rni`, `.rzi`, `.rmi`, `.rpi`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ToInteger {
    NearestEven,
    TowardZero,
    Down,
    Up,
}

#[inline(always)]
fn integral_f64(x: f64, rounding: ToInteger) -> f64 {
    match rounding {
        ToInteger::NearestEven => x.round_ties_even(),
        ToInteger::TowardZero => x.trunc(),
        ToInteger::Down => x.floor(),
        ToInteger::Up => x.ceil(),
    }
}

/// `cvt.rni.f32.f32` and its kin: integral values; the sign of zero results is the operand's.
#[inline(always)]
pub fn round_integral_f32(x: u32, rounding: ToInteger) -> u32 {
    let value = f32::from_bits(x);
    let integral = match rounding {
        ToInteger::NearestEven => value.round_ties_even(),
        ToInteger::TowardZero => value.trunc(),
        ToInteger::Down => value.floor(),
        ToInteger::Up => value.ceil(),
    };
    if is_nan_f32(x) {
        F32_NAN
    } else {
        integral.to_bits() & 0x7fff_ffff | x & 0x8000_0000
    }
}

/// `cvt.rni.f64.f64` and its kin.
#[inline(always)]
pub fn round_integral_f64(x: u64, rounding: ToInteger) -> u64 {
    let integral = integral_f64(f64::from_bits(x), rounding).to_bits();
    if is_nan_f64(x) {
        x | 1 << 51
    } else {
        integral & !(1 << 63) | x & 1 << 63
    }
}

/// `cvt.rni.f16.f16` and its kin.
#[inline(always)]
pub fn round_integral_f16(x: u16, rounding: ToInteger) -> u16 {
    f32_to_f16(round_integral_f32(f16_to_f32_bits(x), rounding))
}

/// `cvt.rni.bf16.bf16` and its kin.
#[inline(always)]
pub fn round_integral_bf16(x: u16, rounding: ToInteger) -> u16 {
    f32_to_bf16(round_integral_f32(bf16_to_f32_bits(x), rounding))
}

macro_rules! float_to_integer {
    ($($to_32:ident $to_64:ident $integer:ty, $nan_32:expr, $nan_64:expr;)*) => {
        $(
            /// f32 (or an exactly widened f16, bf16) to an integer: saturating; NaN to zero, or to the most negative
            /// integer's bits if the integer has 64 bits.
            #[inline(always)]
            pub fn $to_32(x: u32, rounding: ToInteger) -> $integer {
                let value = f32::from_bits(x);
                let integral = match rounding {
                    ToInteger::NearestEven => value.round_ties_even(),
                    ToInteger::TowardZero => value,
                    ToInteger::Down => value.floor(),
                    ToInteger::Up => value.ceil(),
                };
                if is_nan_f32(x) { $nan_32 } else { integral as $integer }
            }

            /// f64 to an integer: saturating; NaN to the most negative integer's bits.
            #[inline(always)]
            pub fn $to_64(x: u64, rounding: ToInteger) -> $integer {
                if is_nan_f64(x) { $nan_64 } else { integral_f64(f64::from_bits(x), rounding) as $integer }
            }
        )*
    };
}

// That NaN from f64 to integers below 64 bits is the most negative one too is deduced from the missing NTZ of F2I.F64.
float_to_integer! {
    f32_to_s8 f64_to_s8 i8, 0, i8::MIN;
    f32_to_u8 f64_to_u8 u8, 0, 1 << 7;
    f32_to_s16 f64_to_s16 i16, 0, i16::MIN;
    f32_to_u16 f64_to_u16 u16, 0, 1 << 15;
    f32_to_s32 f64_to_s32 i32, 0, i32::MIN;
    f32_to_u32 f64_to_u32 u32, 0, 1 << 31;
    f32_to_s64 f64_to_s64 i64, i64::MIN, i64::MIN;
    f32_to_u64 f64_to_u64 u64, 1 << 63, 1 << 63;
}

/// A 64-bit magnitude as an f64 rounded to odd.
#[inline(always)]
fn magnitude_to_odd(magnitude: u64) -> f64 {
    // 53 bits suffice below 2^53; above, the low 11 bits become one sticky bit.
    let low = magnitude & 0x7ff;
    let sticky = magnitude & !0x7ff | u64::from(low != 0) << 11;
    if magnitude < 1 << 53 {
        magnitude as f64
    } else {
        sticky as f64
    }
}

/// `cvt.rn.f32.s64` and narrower, and its other roundings.
#[inline(always)]
pub fn s64_to_f32(x: i64, rounding: Rounding) -> u32 {
    let magnitude = magnitude_to_odd(x.unsigned_abs());
    round_to_f32(if x < 0 { -magnitude } else { magnitude }, rounding)
}

/// `cvt.rn.f32.u64` and narrower, and its other roundings.
#[inline(always)]
pub fn u64_to_f32(x: u64, rounding: Rounding) -> u32 {
    round_to_f32(magnitude_to_odd(x), rounding)
}

/// `cvt.rn.f32.s32`.
#[inline(always)]
pub fn s32_to_f32(x: i32) -> u32 {
    (x as f32).to_bits()
}

/// `cvt.rn.f32.u32`.
#[inline(always)]
pub fn u32_to_f32(x: u32) -> u32 {
    (x as f32).to_bits()
}

/// `cvt.rn.f64.s64`; exact from narrower integers.
#[inline(always)]
pub fn s64_to_f64(x: i64) -> u64 {
    (x as f64).to_bits()
}

/// `cvt.rn.f64.u64`; exact from narrower integers.
#[inline(always)]
pub fn u64_to_f64(x: u64) -> u64 {
    (x as f64).to_bits()
}

/// `cvt.rn.f16.s64` and narrower: one rounding.
#[inline(always)]
pub fn s64_to_f16(x: i64) -> u16 {
    let magnitude = magnitude_to_odd(x.unsigned_abs());
    f32_to_f16(odd_to_f32(if x < 0 { -magnitude } else { magnitude }))
}

/// `cvt.rn.f16.u64` and narrower: one rounding.
#[inline(always)]
pub fn u64_to_f16(x: u64) -> u16 {
    f32_to_f16(odd_to_f32(magnitude_to_odd(x)))
}

/// `cvt.rn.bf16.s64` and narrower: one rounding.
#[inline(always)]
pub fn s64_to_bf16(x: i64) -> u16 {
    let magnitude = magnitude_to_odd(x.unsigned_abs());
    f32_to_bf16(odd_to_f32(if x < 0 { -magnitude } else { magnitude }))
}

/// `cvt.rn.bf16.u64` and narrower: one rounding.
#[inline(always)]
pub fn u64_to_bf16(x: u64) -> u16 {
    f32_to_bf16(odd_to_f32(magnitude_to_odd(x)))
}

// ---------------------------------------------------------------------------------------------------------------- fp8

/// An 8-bit type: e4m3 (bias 7, no infinity, NaN 0x7f) or e5m2 (bias 15, IEEE-like).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fp8 {
    E4m3,
    E5m2,
}

/// `cvt.rn.satfinite.{e4m3,e5m2}x2.f32`, one of the two: nearest even; overflow and infinity give the largest finite
/// number (448, 57344), NaN gives 0x7f.
#[inline(always)]
pub fn f32_to_fp8(format: Fp8, x: u32) -> u8 {
    let (mantissa, bias, largest) = match format {
        Fp8::E4m3 => (3, 7, 0x7e),
        Fp8::E5m2 => (2, 15, 0x7b),
    };
    let magnitude = x & 0x7fff_ffff;
    let drop = 23 - mantissa;
    let rebias = (127 - bias) << 23;
    // Normal: round at the last kept bit, ties to even. Subnormal: add a power of two whose last bit is the unit.
    let half = (1 << (drop - 1)) - 1 + (magnitude >> drop & 1);
    let normal = magnitude.wrapping_sub(rebias).wrapping_add(half) >> drop;
    let unit = f32::from_bits((127 + 1 - bias + drop) << 23);
    let subnormal = (f32::from_bits(magnitude) + unit)
        .to_bits()
        .wrapping_sub(unit.to_bits());
    let least_normal = rebias + (1 << 23);
    let rounded = if magnitude < least_normal { subnormal } else { normal };
    // Far above the range the rebiased code still is.
    let saturated = rounded.min(largest);
    let sign = (x >> 24) as u8 & 0x80;
    if is_nan_f32(x) { 0x7f } else { saturated as u8 | sign }
}

/// `cvt.rn.satfinite.{e4m3,e5m2}x2.f16x2`, one of the two.
#[inline(always)]
pub fn f16_to_fp8(format: Fp8, x: u16) -> u8 {
    f32_to_fp8(format, f16_to_f32_bits(x))
}

/// `cvt.rn.f16x2.{e4m3,e5m2}x2`, one of the two: exact; NaN gives 0x7fff.
#[inline(always)]
pub fn fp8_to_f16(format: Fp8, x: u8) -> u16 {
    let sign = u16::from(x & 0x80) << 8;
    let magnitude = u16::from(x & 0x7f);
    match format {
        Fp8::E5m2 => {
            if magnitude > 0x7c {
                NAN_16
            } else {
                sign | magnitude << 8
            }
        }
        Fp8::E4m3 => {
            // As f32: rebias by multiplication, which gets subnormals right; all results are f16 normals or zero.
            let wide = f32::from_bits(u32::from(magnitude) << 20) * f32::from_bits((127 + 120) << 23);
            let result = f32_to_f16(wide.to_bits());
            if magnitude == 0x7f { NAN_16 } else { sign | result }
        }
    }
}

/// `.relu` of an fp8 result: negative to +0; NaN (already canonical) stays.
#[inline(always)]
pub const fn relu_fp8(x: u8) -> u8 {
    if x >> 7 == 1 { 0 } else { x }
}

/// `cvt.rn.satfinite.*x2.f32 d, a, b`: `a` in the high byte.
#[inline(always)]
pub fn pack_fp8(high: u8, low: u8) -> u16 {
    u16::from(high) << 8 | u16::from(low)
}
