//! Floating-point arithmetic of PTX on sm_90: f32, f64, f16, bf16, on bits.
//!
//! NaNs: f32 arithmetic returns 0x7fffffff, 16-bit arithmetic 0x7fff, payload and sign lost (PTX ISA, "Floating Point
//! Instructions": NaN payloads are supported for double precision only). f64 operations return the first NaN operand, made
//! quiet, and 0xfff8000000000000 where they create one; the order of operands is an assumption, the rest is the PTX ISA's.
//! Subnormals are kept; `.ftz` forms of add are [`flush_f32`] of operands and result, those of mul and fma have their own
//! functions, since what is flushed there depends on the exact product.
//!
//! Everything is branch-free where it can be, for rows of 32 lanes to be vectorised around it. `fma` uses the hardware's
//! in code compiled for a target that has it (`HAS_FMA`), else exact arithmetic in f64.

/// The NaN of f32 arithmetic.
pub const F32_NAN: u32 = 0x7fff_ffff;
/// The NaN of f16 and bf16 arithmetic.
pub const NAN_16: u16 = 0x7fff;
/// The NaN that f64 arithmetic creates.
pub const F64_NAN: u64 = 0xfff8_0000_0000_0000;

/// Rounding of a result: `.rn`, `.rz`, `.rm`, `.rp`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rounding {
    NearestEven,
    TowardZero,
    Down,
    Up,
}

#[inline(always)]
pub const fn is_nan_f32(x: u32) -> bool {
    x & 0x7fff_ffff > 0x7f80_0000
}

#[inline(always)]
pub const fn is_nan_f16(x: u16) -> bool {
    x & 0x7fff > 0x7c00
}

#[inline(always)]
pub const fn is_nan_bf16(x: u16) -> bool {
    x & 0x7fff > 0x7f80
}

#[inline(always)]
pub const fn is_nan_f64(x: u64) -> bool {
    x & !SIGN_64 > 0x7ff0_0000_0000_0000
}

const SIGN_64: u64 = 1 << 63;

/// A result's bits with the canonical NaN.
#[inline(always)]
fn canonical(result: f32) -> u32 {
    if result.is_nan() { F32_NAN } else { result.to_bits() }
}

/// `.ftz` of an operand, or of an exact result: subnormals become zero of the same sign.
#[inline(always)]
pub const fn flush_f32(x: u32) -> u32 {
    if x & 0x7f80_0000 == 0 { x & 0x8000_0000 } else { x }
}

/// `.ftz` of an f16.
#[inline(always)]
pub const fn flush_f16(x: u16) -> u16 {
    if x & 0x7c00 == 0 { x & 0x8000 } else { x }
}

/// `.sat` of an f32 result: clamped to [0, 1], NaN and -0 to +0.
#[inline(always)]
pub const fn saturate_f32(x: u32) -> u32 {
    let below_one = if x > 0x3f80_0000 { 0x3f80_0000 } else { x };
    if x >> 31 == 1 || is_nan_f32(x) { 0 } else { below_one }
}

/// `.sat` of an f16 result.
#[inline(always)]
pub const fn saturate_f16(x: u16) -> u16 {
    let below_one = if x > 0x3c00 { 0x3c00 } else { x };
    if x >> 15 == 1 || is_nan_f16(x) { 0 } else { below_one }
}

/// `.sat` of a bf16 result.
#[inline(always)]
pub const fn saturate_bf16(x: u16) -> u16 {
    let below_one = if x > 0x3f80 { 0x3f80 } else { x };
    if x >> 15 == 1 || is_nan_bf16(x) { 0 } else { below_one }
}

/// `.relu` of a 16-bit result: negative to +0; NaN (already canonical) stays.
#[inline(always)]
pub const fn relu_16(x: u16) -> u16 {
    if x >> 15 == 1 { 0 } else { x }
}

// ---------------------------------------------------------------------------------------------------------------- f32

#[inline(always)]
pub fn add_f32(a: u32, b: u32) -> u32 {
    canonical(f32::from_bits(a) + f32::from_bits(b))
}

#[inline(always)]
pub fn sub_f32(a: u32, b: u32) -> u32 {
    canonical(f32::from_bits(a) - f32::from_bits(b))
}

#[inline(always)]
pub fn mul_f32(a: u32, b: u32) -> u32 {
    canonical(f32::from_bits(a) * f32::from_bits(b))
}

/// `fma.rn.f32`. With `HAS_FMA` the caller must be compiled for a target with fused multiply-add, or this is slow.
#[inline(always)]
pub fn fma_f32<const HAS_FMA: bool>(a: u32, b: u32, c: u32) -> u32 {
    if HAS_FMA {
        canonical(f32::from_bits(a).mul_add(f32::from_bits(b), f32::from_bits(c)))
    } else {
        let exact = fma_odd(a, b, c);
        canonical(exact as f32)
    }
}

/// `add.ftz.f32`: a subnormal sum is exact, so flushing it is enough.
#[inline(always)]
pub fn add_ftz_f32(a: u32, b: u32) -> u32 {
    flush_f32(add_f32(flush_f32(a), flush_f32(b)))
}

#[inline(always)]
pub fn sub_ftz_f32(a: u32, b: u32) -> u32 {
    flush_f32(sub_f32(flush_f32(a), flush_f32(b)))
}

/// Below this a value rounds, to nearest with an unbounded exponent, to less than 2^-126: 2^-126 - 2^-151.
const FLUSHED_BELOW: f64 = f64::from_bits(0x3810_0000_0000_0000) - f64::from_bits(0x3680_0000_0000_0000);

/// `mul.ftz.f32`: flushed if less than 2^-126 after rounding to 24 bits with an unbounded exponent (measured on H200).
#[inline(always)]
pub fn mul_ftz_f32(a: u32, b: u32) -> u32 {
    let exact = f64::from(f32::from_bits(flush_f32(a))) * f64::from(f32::from_bits(flush_f32(b)));
    flush_rounded(exact)
}

/// `fma.rn.ftz.f32`, flushed like [`mul_ftz_f32`] (measured with addend zero only).
#[inline(always)]
pub fn fma_ftz_f32(a: u32, b: u32, c: u32) -> u32 {
    flush_rounded(fma_odd(flush_f32(a), flush_f32(b), flush_f32(c)))
}

#[inline(always)]
fn flush_rounded(exact: f64) -> u32 {
    let rounded = canonical(exact as f32);
    let flushed = (exact.to_bits() >> 32) as u32 & 0x8000_0000;
    if exact.abs() < FLUSHED_BELOW { flushed } else { rounded }
}

/// The sum of two f64 rounded to odd: exact, or the neighbour whose last bit is 1, from which rounding to a narrower
/// format in any mode gives the right result.
#[inline(always)]
fn sum_to_odd(x: f64, y: f64) -> f64 {
    let sum = x + y;
    // Knuth's two-sum.
    let of_y = sum - x;
    let error = (x - (sum - of_y)) + (y - of_y);
    let bits = sum.to_bits();
    // Towards the exact value if the sum is even: away from zero when the error has the sum's sign.
    let outward = (error.to_bits() ^ bits) >> 63 == 0;
    let odd = if outward { bits + 1 } else { bits.wrapping_sub(1) };
    // An infinite or NaN sum has a NaN error; zero sums of this kind are exact.
    let inexact = error.abs() > 0.0 && bits & 1 == 0;
    f64::from_bits(if inexact { odd } else { bits })
}

/// a·b + c rounded to odd in f64 (of f32 operands: the product is exact).
#[inline(always)]
fn fma_odd(a: u32, b: u32, c: u32) -> f64 {
    let product = f64::from(f32::from_bits(a)) * f64::from(f32::from_bits(b));
    sum_to_odd(product, f64::from(f32::from_bits(c)))
}

/// An f64 (exact, or rounded to odd) rounded to f32 in any mode. NaN is canonical.
#[inline(always)]
pub fn round_to_f32(x: f64, rounding: Rounding) -> u32 {
    let nearest = x as f32;
    let back = f64::from(nearest);
    let bits = nearest.to_bits();
    let too_high = back > x;
    let too_low = back < x;
    // One step on the magnitude: down for values above x when positive, and so on. Zero keeps x's sign.
    let (inward, outward) = (bits.wrapping_sub(1), bits.wrapping_add(1));
    let negative = bits >> 31 == 1;
    let (down, up) = if negative { (outward, inward) } else { (inward, outward) };
    let result = match rounding {
        Rounding::NearestEven => bits,
        Rounding::TowardZero if back.abs() > x.abs() => inward,
        Rounding::Down if too_high => down,
        Rounding::Up if too_low => up,
        Rounding::TowardZero | Rounding::Down | Rounding::Up => bits,
    };
    if x.is_nan() { F32_NAN } else { result }
}

/// An exact zero sum is -0 when rounding down, unless both addends are +0.
#[inline(always)]
fn zero_sum(x: f64, y: f64, rounding: Rounding) -> f64 {
    let sum = sum_to_odd(x, y);
    let both_positive = (x.to_bits() | y.to_bits()) >> 63 == 0;
    if rounding == Rounding::Down && sum == 0.0 && !both_positive {
        -0.0
    } else {
        sum
    }
}

/// `add` with any rounding.
#[inline(always)]
pub fn add_rounded_f32(a: u32, b: u32, rounding: Rounding) -> u32 {
    round_to_f32(
        zero_sum(f64::from(f32::from_bits(a)), f64::from(f32::from_bits(b)), rounding),
        rounding,
    )
}

/// `mul` with any rounding.
#[inline(always)]
pub fn mul_rounded_f32(a: u32, b: u32, rounding: Rounding) -> u32 {
    round_to_f32(f64::from(f32::from_bits(a)) * f64::from(f32::from_bits(b)), rounding)
}

/// `fma` with any rounding.
#[inline(always)]
pub fn fma_rounded_f32(a: u32, b: u32, c: u32, rounding: Rounding) -> u32 {
    let product = f64::from(f32::from_bits(a)) * f64::from(f32::from_bits(b));
    round_to_f32(zero_sum(product, f64::from(f32::from_bits(c)), rounding), rounding)
}

/// `div.rn.f32`.
#[inline(always)]
pub fn div_f32(a: u32, b: u32) -> u32 {
    canonical(f32::from_bits(a) / f32::from_bits(b))
}

/// `rcp.rn.f32`.
#[inline(always)]
pub fn rcp_f32(a: u32) -> u32 {
    canonical(1.0 / f32::from_bits(a))
}

/// `sqrt.rn.f32`.
#[inline(always)]
pub fn sqrt_f32(a: u32) -> u32 {
    canonical(f32::from_bits(a).sqrt())
}

/// `abs.f32`, as the addition of -0 that it is compiled to (a NaN becomes canonical).
#[inline(always)]
pub const fn abs_f32(a: u32) -> u32 {
    if is_nan_f32(a) { F32_NAN } else { a & 0x7fff_ffff }
}

/// `neg.f32`, as the addition of -0 that it is compiled to (a NaN becomes canonical).
#[inline(always)]
pub const fn neg_f32(a: u32) -> u32 {
    if is_nan_f32(a) { F32_NAN } else { a ^ 0x8000_0000 }
}

/// `copysign.f32 d, sign, magnitude`.
#[inline(always)]
pub const fn copysign_f32(sign: u32, magnitude: u32) -> u32 {
    magnitude & 0x7fff_ffff | sign & 0x8000_0000
}

/// Sign-magnitude bits as an integer in the same order, -0 below +0.
macro_rules! order {
    ($bits:ty, $signed:ty, $x:expr) => {{
        let x = $x as $signed;
        x ^ ((x >> (<$bits>::BITS - 1)) as $bits >> 1) as $signed
    }};
}

/// Minima and maxima: the number if one operand is NaN, -0 below +0; of two NaNs what stands behind. And `.NaN`: NaN if an operand is.
macro_rules! extrema {
    ($($name:ident $(, $propagates:ident)?: $bits:ty, $signed:ty, $is_nan:ident, a $than:tt b, |$b:ident| $nan:expr;)*) => {$(
        #[inline(always)]
        pub const fn $name(a: $bits, $b: $bits) -> $bits {
            let picked = if order!($bits, $signed, a) $than order!($bits, $signed, $b) { a } else { $b };
            let without_b = if $is_nan($b) { a } else { picked };
            let both = if $is_nan(a) { $b } else { without_b };
            if $is_nan(a) && $is_nan($b) { $nan } else { both }
        }
        $(
            #[inline(always)]
            pub const fn $propagates(a: $bits, $b: $bits) -> $bits {
                if $is_nan(a) || $is_nan($b) { $nan } else { $name(a, $b) }
            }
        )?
    )*};
}
extrema! {
    min_f32, min_nan_f32: u32, i32, is_nan_f32, a < b, |b| F32_NAN;
    max_f32, max_nan_f32: u32, i32, is_nan_f32, a > b, |b| F32_NAN;
    min_f16, min_nan_f16: u16, i16, is_nan_f16, a < b, |b| NAN_16;
    max_f16, max_nan_f16: u16, i16, is_nan_f16, a > b, |b| NAN_16;
    min_bf16, min_nan_bf16: u16, i16, is_nan_bf16, a < b, |b| NAN_16;
    max_bf16, max_nan_bf16: u16, i16, is_nan_bf16, a > b, |b| NAN_16;
    // The second of two NaNs, made quiet (the compiled sequence's result).
    min_f64: u64, i64, is_nan_f64, a < b, |b| b | QUIET_64;
    max_f64: u64, i64, is_nan_f64, a > b, |b| b | QUIET_64;
}

/// What `testp` asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Test {
    Finite,
    Infinite,
    Number,
    NotANumber,
    Normal,
    Subnormal,
}

/// `testp.f32`. Zero counts as normal (PTX ISA, `testp`; measured on an H100).
#[inline(always)]
pub const fn test_f32(test: Test, a: u32) -> bool {
    let magnitude = a & 0x7fff_ffff;
    match test {
        Test::Finite => magnitude < 0x7f80_0000,
        Test::Infinite => magnitude == 0x7f80_0000,
        Test::Number => magnitude <= 0x7f80_0000,
        Test::NotANumber => magnitude > 0x7f80_0000,
        Test::Normal => magnitude == 0 || magnitude >= 0x80_0000 && magnitude < 0x7f80_0000,
        Test::Subnormal => magnitude != 0 && magnitude < 0x80_0000,
    }
}

/// `testp.f64`.
#[inline(always)]
pub const fn test_f64(test: Test, a: u64) -> bool {
    const INFINITY: u64 = 0x7ff0_0000_0000_0000;
    let magnitude = a & !SIGN_64;
    match test {
        Test::Finite => magnitude < INFINITY,
        Test::Infinite => magnitude == INFINITY,
        Test::Number => magnitude <= INFINITY,
        Test::NotANumber => magnitude > INFINITY,
        Test::Normal => magnitude == 0 || magnitude >= 1 << 52 && magnitude < INFINITY,
        Test::Subnormal => magnitude != 0 && magnitude < 1 << 52,
    }
}

// ---------------------------------------------------------------------------------------------------------------- f64

const QUIET_64: u64 = 1 << 51;

/// The first NaN among the operands made quiet, or the result, or the created NaN.
#[inline(always)]
fn with_nans_f64(result: f64, operands: [u64; 3]) -> u64 {
    let mut bits = if result.is_nan() { F64_NAN } else { result.to_bits() };
    for operand in operands.into_iter().rev() {
        bits = if is_nan_f64(operand) { operand | QUIET_64 } else { bits };
    }
    bits
}

#[inline(always)]
pub fn add_f64(a: u64, b: u64) -> u64 {
    with_nans_f64(f64::from_bits(a) + f64::from_bits(b), [a, b, 0])
}

#[inline(always)]
pub fn sub_f64(a: u64, b: u64) -> u64 {
    with_nans_f64(f64::from_bits(a) - f64::from_bits(b), [a, b, 0])
}

#[inline(always)]
pub fn mul_f64(a: u64, b: u64) -> u64 {
    with_nans_f64(f64::from_bits(a) * f64::from_bits(b), [a, b, 0])
}

/// `fma.rn.f64`.
#[inline(always)]
pub fn fma_f64(a: u64, b: u64, c: u64) -> u64 {
    with_nans_f64(
        f64::from_bits(a).mul_add(f64::from_bits(b), f64::from_bits(c)),
        [a, b, c],
    )
}

/// `div.rn.f64`.
#[inline(always)]
pub fn div_f64(a: u64, b: u64) -> u64 {
    with_nans_f64(f64::from_bits(a) / f64::from_bits(b), [a, b, 0])
}

/// `rcp.rn.f64`.
#[inline(always)]
pub fn rcp_f64(a: u64) -> u64 {
    with_nans_f64(1.0 / f64::from_bits(a), [a, 0, 0])
}

/// `sqrt.rn.f64`.
#[inline(always)]
pub fn sqrt_f64(a: u64) -> u64 {
    with_nans_f64(f64::from_bits(a).sqrt(), [a, 0, 0])
}

/// `abs.f64`.
#[inline(always)]
pub const fn abs_f64(a: u64) -> u64 {
    let magnitude = a & !SIGN_64;
    if is_nan_f64(a) { magnitude | QUIET_64 } else { magnitude }
}

/// `neg.f64`.
#[inline(always)]
pub const fn neg_f64(a: u64) -> u64 {
    let negated = a ^ SIGN_64;
    if is_nan_f64(a) { negated | QUIET_64 } else { negated }
}

/// `copysign.f64 d, sign, magnitude`.
#[inline(always)]
pub const fn copysign_f64(sign: u64, magnitude: u64) -> u64 {
    magnitude & !SIGN_64 | sign & SIGN_64
}

// ------------------------------------------------------------------------------------------------------- f16 and bf16

use super::convert::{bf16_to_f32_bits, f16_to_f32_bits, f32_to_bf16, f32_to_f16};

#[inline(always)]
fn widen_f16(a: u16) -> f32 {
    f32::from_bits(f16_to_f32_bits(a))
}

#[inline(always)]
fn widen_bf16(a: u16) -> f32 {
    f32::from_bits(bf16_to_f32_bits(a))
}

/// `add.rn.f16`: the f32 sum has more than 2·11 + 2 bits, so that rounding it again changes nothing.
#[inline(always)]
pub fn add_f16(a: u16, b: u16) -> u16 {
    f32_to_f16((widen_f16(a) + widen_f16(b)).to_bits())
}

#[inline(always)]
pub fn sub_f16(a: u16, b: u16) -> u16 {
    f32_to_f16((widen_f16(a) - widen_f16(b)).to_bits())
}

/// `mul.rn.f16`: the f32 product is exact.
#[inline(always)]
pub fn mul_f16(a: u16, b: u16) -> u16 {
    f32_to_f16((widen_f16(a) * widen_f16(b)).to_bits())
}

/// `fma.rn.f16`.
#[inline(always)]
pub fn fma_f16(a: u16, b: u16, c: u16) -> u16 {
    // The product is exact in f32 and every term a multiple of 2^-48: the sum rounded to odd there needs no f64.
    let (x, y) = (widen_f16(a) * widen_f16(b), widen_f16(c));
    let sum = x + y;
    let of_y = sum - x;
    let error = (x - (sum - of_y)) + (y - of_y);
    let bits = sum.to_bits();
    let outward = (error.to_bits() ^ bits) >> 31 == 0;
    let odd = if outward {
        bits.wrapping_add(1)
    } else {
        bits.wrapping_sub(1)
    };
    f32_to_f16(if error.abs() > 0.0 && bits & 1 == 0 { odd } else { bits })
}

/// `add.rn.bf16`: see [`add_f16`].
#[inline(always)]
pub fn add_bf16(a: u16, b: u16) -> u16 {
    f32_to_bf16((widen_bf16(a) + widen_bf16(b)).to_bits())
}

#[inline(always)]
pub fn sub_bf16(a: u16, b: u16) -> u16 {
    f32_to_bf16((widen_bf16(a) - widen_bf16(b)).to_bits())
}

/// `mul.rn.bf16`. The product is exact in f64, not in f32 (subnormals).
#[inline(always)]
pub fn mul_bf16(a: u16, b: u16) -> u16 {
    f32_to_bf16(odd_to_f32(f64::from(widen_bf16(a)) * f64::from(widen_bf16(b))))
}

/// `fma.rn.bf16`.
#[inline(always)]
pub fn fma_bf16(a: u16, b: u16, c: u16) -> u16 {
    f32_to_bf16(odd_to_f32(fma_odd(
        bf16_to_f32_bits(a),
        bf16_to_f32_bits(b),
        bf16_to_f32_bits(c),
    )))
}

/// An f64 (exact or odd) rounded to odd in f32, subnormals included.
#[inline(always)]
pub(super) fn odd_to_f32(x: f64) -> u32 {
    let cut = round_to_f32(x, Rounding::TowardZero);
    if f64::from(f32::from_bits(cut)) != x && !x.is_nan() {
        cut | 1
    } else {
        cut
    }
}

macro_rules! signs_16 {
    ($is_nan:ident, $abs:ident, $neg:ident, $copysign:ident) => {
        /// `abs`, NaN canonical.
        #[inline(always)]
        pub const fn $abs(a: u16) -> u16 {
            if $is_nan(a) { NAN_16 } else { a & 0x7fff }
        }

        /// `neg`, NaN canonical.
        #[inline(always)]
        pub const fn $neg(a: u16) -> u16 {
            if $is_nan(a) { NAN_16 } else { a ^ 0x8000 }
        }

        /// The magnitude of the second operand with the sign of the first.
        #[inline(always)]
        pub const fn $copysign(sign: u16, magnitude: u16) -> u16 {
            magnitude & 0x7fff | sign & 0x8000
        }
    };
}

signs_16!(is_nan_f16, abs_f16, neg_f16, copysign_f16);
signs_16!(is_nan_bf16, abs_bf16, neg_bf16, copysign_bf16);

/// A 16-bit operation on both halves: the `x2` forms.
#[inline(always)]
pub fn halves_1(a: u32, f: impl Fn(u16) -> u16) -> u32 {
    u32::from(f(a as u16)) | u32::from(f((a >> 16) as u16)) << 16
}

/// A 16-bit operation on both halves: the `x2` forms.
#[inline(always)]
pub fn halves_2(a: u32, b: u32, f: impl Fn(u16, u16) -> u16) -> u32 {
    u32::from(f(a as u16, b as u16)) | u32::from(f((a >> 16) as u16, (b >> 16) as u16)) << 16
}

/// A 16-bit operation on both halves: the `x2` forms.
#[inline(always)]
pub fn halves_3(a: u32, b: u32, c: u32, f: impl Fn(u16, u16, u16) -> u16) -> u32 {
    let high = f((a >> 16) as u16, (b >> 16) as u16, (c >> 16) as u16);
    u32::from(f(a as u16, b as u16, c as u16)) | u32::from(high) << 16
}
