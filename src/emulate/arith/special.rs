//! Hopper's approximate functions, bit for bit: `ex2 lg2 rcp rsqrt sqrt sin cos tanh .approx`, their 16-bit forms, the f64
//! seeds, and `div.approx`, `div.full`.
//!
//! The special-function unit (MUFU) is a quadratic interpolator, `(C0·2^a + C1·x + C2·sq(x)·2^b + K) >> r`, with tables
//! in [`special_tables`](super::special_tables) and a *truncating* squarer; the PTX instructions without `.ftz` are what
//! ptxas 13.0 makes of them: an exact scaling before and after the unit. Measured on an H200: over all 2^32 inputs of
//! the f32 functions and the f64 seeds' high words, all 16-bit pairs, and 1.5·10^11 operand pairs for each division.
//!
//! Scalars are bits. [`rows`] has the same functions on 32 lanes at once, the fast way to call them.

use super::float::{F32_NAN, is_nan_f32, mul_f32, mul_ftz_f32};
use super::special_tables as tables;

const INFINITY: u32 = 0x7f80_0000;
const SIGN: u32 = 0x8000_0000;
const FRACTION: u32 = 0x7f_ffff;

/// A function of the unit, in three steps so that 32 lanes can take each step together.
trait Function {
    type Segment: Copy + Default + 'static;
    const TABLE: &'static [Self::Segment];

    /// The operand's segment, its offset `x` in the segment (17 bits) and what [`finish`](Self::finish) wants to know.
    fn locate(bits: u32) -> (u32, u32, u32);

    fn finish(bits: u32, note: u32, segment: Self::Segment, x: u32, square: u32) -> u32;
}

/// The unit's squarer of 17-bit numbers, about x²/2^19: partial products `x >> (18 - i)` of the set bits i, cut one by one.
///
/// With x = h·2^9 + l the cut partial products inside h are exact, and those of h with l and of l with h are equal, so
/// that the sum is `h² + 2·Σ_j h_j·(l >> (9 - j))`; the final halving cuts the last bit of h².
#[inline(always)]
fn truncating_square(x: u32) -> u32 {
    let (high, low) = (x >> 9, x & 0x1ff);
    let mut cross = 0;
    for j in 1..8 {
        let mask = 0u32.wrapping_sub(high >> j & 1);
        cross += (low >> (9 - j)) & mask;
    }
    // h < 2^8: the product of 16-bit halves is cheaper in SIMD than a 32-bit one.
    ((high * high) >> 1) + cross
}

struct Coefficients {
    c0: u64,
    c1: u64,
    c2: u64,
}

#[inline(always)]
fn unpack(segment: tables::Segment) -> Coefficients {
    Coefficients {
        c0: segment >> 32,
        c1: segment & 0xffff,
        c2: segment >> 16 & 0xffff,
    }
}

#[inline(always)]
fn exponent_field(bits: u32) -> i32 {
    (bits >> 23 & 255) as i32
}

/// `sign`, exponent and a significand in [2^23, 2^24] of exponent field `field`; overflows and flushes.
#[inline(always)]
fn pack(sign: u32, field: i32, significand: u32) -> u32 {
    // The hidden bit, or the carry to 2^24, goes into the field.
    let field = field - 1 + (significand >> 23) as i32;
    let normal = (field as u32) << 23 | significand & FRACTION;
    let magnitude = if field >= 255 { INFINITY } else { normal };
    let magnitude = if field <= 0 { 0 } else { magnitude };
    sign | magnitude
}

/// `value · 2^-unit` as f32 bits, cut; `value` < 2^52 and the result normal or zero.
#[inline(always)]
fn normalise(value: u64, unit: u32) -> u32 {
    const TWO_52: u64 = 0x4330_0000_0000_0000;
    let exact = (f64::from_bits(TWO_52 | value) - f64::from_bits(TWO_52)).to_bits();
    // The f64's top 23 fraction bits below its rebiased exponent; modulo 2^32 the lost high bits do not matter.
    let bits = ((exact >> 29) as u32).wrapping_sub((1023 - 127 + unit) << 23);
    if value == 0 { 0 } else { bits }
}

struct Ex2;

impl Function for Ex2 {
    type Segment = tables::Segment;
    const TABLE: &'static [Self::Segment] = &tables::EX2;

    #[inline(always)]
    fn locate(bits: u32) -> (u32, u32, u32) {
        let exponent = exponent_field(bits) - 127;
        let significand = bits & FRACTION | 0x80_0000;
        // |x| in units of 2^-23, cut; subnormals and all below become 0.
        let cut = significand << exponent.clamp(0, 7) >> (-exponent).clamp(0, 31);
        let negative = if cut & FRACTION == 0 {
            0u32.wrapping_sub(cut)
        } else {
            !cut
        };
        let fixed = if bits & SIGN != 0 { negative } else { cut };
        (fixed >> 17 & 63, fixed & 0x1_ffff, (fixed as i32 >> 23) as u32)
    }

    #[inline(always)]
    fn finish(bits: u32, note: u32, segment: tables::Segment, x: u32, square: u32) -> u32 {
        let Coefficients { c0, c1, c2 } = unpack(segment);
        let sum = (c0 << 13) + c1 * u64::from(x) + c2 * u64::from(square) + 0x77e2;
        let result = pack(0, note as i32 + 127, (sum >> 15) as u32);
        let huge = if bits & SIGN != 0 { 0 } else { INFINITY };
        let result = if exponent_field(bits) >= 127 + 8 { huge } else { result };
        if is_nan_f32(bits) { F32_NAN } else { result }
    }
}

struct Rcp;

impl Function for Rcp {
    type Segment = tables::Segment;
    const TABLE: &'static [Self::Segment] = &tables::RCP;

    #[inline(always)]
    fn locate(bits: u32) -> (u32, u32, u32) {
        (bits >> 16 & 127, (bits & 0xffff) << 1, 0)
    }

    #[inline(always)]
    fn finish(bits: u32, _: u32, segment: tables::Segment, x: u32, square: u32) -> u32 {
        let significand = rcp_significand(segment, x, square);
        let field = exponent_field(bits);
        let sign = bits & SIGN;
        let result = pack(sign, 253 - field, significand);
        let result = if field == 0 { sign | INFINITY } else { result };
        let result = if field == 255 { sign } else { result };
        if is_nan_f32(bits) { F32_NAN } else { result }
    }
}

/// 2/x for x in [1, 2), in units of 2^-23; `x` is the doubled 16-bit offset.
#[inline(always)]
fn rcp_significand(segment: tables::Segment, x: u32, square: u32) -> u32 {
    let Coefficients { c0, c1, c2 } = unpack(segment);
    ((((c0 << 13) + c2 * u64::from(square) + 0x47e7) - c1 * u64::from(x >> 1)) >> 15) as u32
}

/// Segment and offset of rsqrt and sqrt: the operand scaled to [1, 4) by an even power of two, `odd` ⇔ [1, 2).
#[inline(always)]
fn locate_root(bits: u32) -> (u32, u32, u32) {
    let odd_field = bits >> 23 & 1;
    ((bits >> 17 & 63) + 64 * (1 - odd_field), bits & 0x1_ffff, odd_field)
}

struct Rsqrt;

impl Function for Rsqrt {
    type Segment = tables::Segment;
    const TABLE: &'static [Self::Segment] = &tables::RSQRT;

    #[inline(always)]
    fn locate(bits: u32) -> (u32, u32, u32) {
        locate_root(bits)
    }

    #[inline(always)]
    fn finish(bits: u32, odd_field: u32, segment: tables::Segment, x: u32, square: u32) -> u32 {
        let exact = bits & FRACTION == 0 && odd_field == 1;
        let significand = if exact {
            1 << 24
        } else {
            rsqrt_significand(segment, x, square)
        };
        let field = exponent_field(bits);
        let result = pack(0, 126 - ((field - 127) >> 1), significand);
        let result = if bits == INFINITY { 0 } else { result };
        let negative = bits & SIGN != 0;
        let result = if is_nan_f32(bits) || negative { F32_NAN } else { result };
        if field == 0 { bits & SIGN | INFINITY } else { result }
    }
}

/// 1/sqrt(x) for x in [1, 4), in units of 2^-24.
#[inline(always)]
fn rsqrt_significand(segment: tables::Segment, x: u32, square: u32) -> u32 {
    let Coefficients { c0, c1, c2 } = unpack(segment);
    ((((c0 << 14) + (c2 << 2) * u64::from(square) + 0x7fff) - c1 * u64::from(x)) >> 16) as u32
}

struct Sqrt;

impl Function for Sqrt {
    type Segment = tables::Segment;
    const TABLE: &'static [Self::Segment] = &tables::SQRT;

    #[inline(always)]
    fn locate(bits: u32) -> (u32, u32, u32) {
        locate_root(bits)
    }

    #[inline(always)]
    fn finish(bits: u32, odd_field: u32, segment: tables::Segment, x: u32, square: u32) -> u32 {
        let Coefficients { c0, c1, c2 } = unpack(segment);
        let (x, square) = (u64::from(x), u64::from(square));
        let lower = ((c0 << 15) + c1 * x + 0x7fff - (c2 << 1) * square) >> 17;
        let upper = ((c0 << 14) + c1 * x + 0x3fff - c2 * square) >> 16;
        let significand = if odd_field == 1 { lower } else { upper };
        let field = exponent_field(bits);
        let result = pack(0, 127 + ((field - 127) >> 1), significand as u32);
        let result = if bits == INFINITY { INFINITY } else { result };
        let negative = bits & SIGN != 0;
        let result = if is_nan_f32(bits) || negative { F32_NAN } else { result };
        if field == 0 { bits & SIGN } else { result }
    }
}

struct Lg2;

impl Function for Lg2 {
    type Segment = tables::Segment;
    const TABLE: &'static [Self::Segment] = &tables::LG2;

    #[inline(always)]
    fn locate(bits: u32) -> (u32, u32, u32) {
        (bits >> 17 & 63, bits & 0x1_ffff, 0)
    }

    #[inline(always)]
    fn finish(bits: u32, _: u32, segment: tables::Segment, x: u32, square: u32) -> u32 {
        let Coefficients { c0, c1, c2 } = unpack(segment);
        let fraction = ((c0 << 12) + c1 * u64::from(x) + 0x3345 - (c2 << 1) * u64::from(square)) >> 2;
        // In units of 2^-36; a negative one is complemented, not negated.
        let exponent = exponent_field(bits) - 127;
        let fixed = (fraction as i64).wrapping_add(i64::from(exponent) << 36);
        let magnitude = if exponent < 0 { !fixed } else { fixed } as u64;
        let sign = if exponent < 0 { SIGN } else { 0 };
        let result = sign | normalise(magnitude, 36);
        let result = if bits == 0x3f80_0000 { 0 } else { result };
        let result = if bits == INFINITY { INFINITY } else { result };
        let negative = bits & SIGN != 0;
        let result = if is_nan_f32(bits) || negative { F32_NAN } else { result };
        if exponent == -127 { SIGN | INFINITY } else { result }
    }
}

/// Sine or cosine of an operand in revolutions.
struct Sine<const IS_COSINE: bool>;

impl<const IS_COSINE: bool> Function for Sine<IS_COSINE> {
    type Segment = tables::Segment;
    const TABLE: &'static [Self::Segment] = &tables::SIN;

    #[inline(always)]
    fn locate(bits: u32) -> (u32, u32, u32) {
        let shift = exponent_field(bits) - 125;
        let significand = bits & FRACTION | 0x80_0000;
        // |y| in units of 2^-25, modulo one revolution.
        let turns = significand << shift.clamp(0, 31) >> (-shift).clamp(0, 31);
        let quadrant = (turns >> 23).wrapping_add(u32::from(IS_COSINE));
        let fraction = turns & FRACTION ^ (FRACTION & 0u32.wrapping_sub(quadrant & 1));
        let operand_sign = if IS_COSINE { 0 } else { bits & SIGN };
        (fraction >> 17, fraction & 0x1_ffff, (quadrant & 2) << 30 ^ operand_sign)
    }

    #[inline(always)]
    fn finish(bits: u32, sign: u32, segment: tables::Segment, x: u32, square: u32) -> u32 {
        let Coefficients { c0, c1, c2 } = unpack(segment);
        let sum = (c0 << 11) + c1 * u64::from(x) - c2 * u64::from(square);
        let result = sign | normalise(sum, 37);
        if exponent_field(bits) == 255 { F32_NAN } else { result }
    }
}

struct Tanh;

impl Function for Tanh {
    type Segment = (u64, u32, u32);
    const TABLE: &'static [Self::Segment] = &tables::TANH;

    #[inline(always)]
    fn locate(bits: u32) -> (u32, u32, u32) {
        let (first, log_segments) = tables::TANH_BINADES[(exponent_field(bits) - 119).clamp(0, 10) as usize];
        let segment = (bits & FRACTION) >> (23 - u32::from(log_segments));
        (
            u32::from(first) + segment,
            bits >> (6 - u32::from(log_segments)) & 0x1_ffff,
            0,
        )
    }

    #[inline(always)]
    fn finish(bits: u32, _: u32, (c0, c1, c2): Self::Segment, x: u32, square: u32) -> u32 {
        let sum = c0 + u64::from(c1) * u64::from(x) - u64::from(c2) * u64::from(square);
        let sign = bits & SIGN;
        let field = exponent_field(bits);
        let result = sign | normalise(sum, 45);
        let result = if field >= 130 { sign | 0x3f80_0000 } else { result };
        let result = if field <= 118 { bits } else { result };
        if is_nan_f32(bits) { F32_NAN } else { result }
    }
}

#[inline(always)]
fn unit<F: Function>(bits: u32) -> u32 {
    let (index, x, note) = F::locate(bits);
    F::finish(bits, note, F::TABLE[index as usize], x, truncating_square(x))
}

#[inline(always)]
fn unit_row<F: Function>(bits: &[u32; 32]) -> [u32; 32] {
    let (mut index, mut x, mut note, mut square) = ([0; 32], [0; 32], [0; 32], [0; 32]);
    for lane in 0..32 {
        (index[lane], x[lane], note[lane]) = F::locate(bits[lane]);
    }
    for lane in 0..32 {
        square[lane] = truncating_square(x[lane]);
    }
    let mut segments = [F::Segment::default(); 32];
    for lane in 0..32 {
        segments[lane] = F::TABLE[index[lane] as usize];
    }
    let mut out = [0; 32];
    for lane in 0..32 {
        out[lane] = F::finish(bits[lane], note[lane], segments[lane], x[lane], square[lane]);
    }
    out
}

/// An f32 instruction: the unit between an exact scaling of its operand and one of its result.
trait Instruction {
    type Unit: Function;

    fn before(x: u32) -> u32;

    /// The result from the unit's and the instruction's operand.
    fn after(result: u32, x: u32) -> u32;
}

#[inline(always)]
fn is_subnormal_or_zero(x: u32) -> bool {
    exponent_field(x) == 0
}

macro_rules! instructions {
    ($($(#[$doc:meta])* $name:ident: $unit:ty, |$x:ident| $before:expr, |$y:ident, $z:ident| $after:expr;)*) => {
        /// The instructions as types.
        #[allow(non_camel_case_types)]
        mod instruction {
            use super::*;
            $(pub struct $name;

            impl Instruction for $name {
                type Unit = $unit;

                #[inline(always)]
                fn before($x: u32) -> u32 {
                    $before
                }

                #[inline(always)]
                fn after($y: u32, $z: u32) -> u32 {
                    let _ = $z;
                    $after
                }
            })*
        }

        $($(#[$doc])*
        pub fn $name(x: u32) -> u32 {
            let result = unit::<<instruction::$name as Instruction>::Unit>(instruction::$name::before(x));
            instruction::$name::after(result, x)
        })*

        /// The same functions on the 32 lanes of a warp.
        pub mod rows {
            use super::*;

            $($(#[$doc])*
            pub fn $name(x: &[u32; 32]) -> [u32; 32] {
                vectorised!(x, instruction_row::<instruction::$name>)
            })*

            rows16! {
                /// `ex2.approx.f16x2`.
                ex2_approx_f16x2: Ex2, f16_to_f32, cut_to_f16;
                /// `ex2.approx.ftz.bf16x2`.
                ex2_approx_ftz_bf16x2: Ex2, bf16_to_f32, cut_to_bf16;
                /// `tanh.approx.f16x2`.
                tanh_approx_f16x2: Tanh, f16_to_f32, cut_to_f16;
                /// `tanh.approx.bf16x2`.
                tanh_approx_bf16x2: Tanh, bf16_to_f32, cut_to_bf16;
            }

            rows_div! {
                /// `div.approx.ftz.f32`.
                div_approx_ftz_f32
                /// `div.approx.f32`.
                div_approx_f32
                /// `div.full.ftz.f32`.
                div_full_ftz_f32
                /// `div.full.f32`.
                div_full_f32
            }
        }
    };
}

/// Runs a row function, in the AVX2 tier where there is one (the same code, compiled for it).
macro_rules! vectorised {
    ($x:expr, $row:expr) => {{
        #[cfg(target_arch = "x86_64")]
        {
            #[target_feature(enable = "avx2,bmi1,bmi2")]
            fn avx2(x: &[u32; 32]) -> [u32; 32] {
                $row(x)
            }
            if super::super::has_avx2() {
                // SAFETY: the features were found at run time.
                return unsafe { avx2($x) };
            }
        }
        $row($x)
    }};
}

macro_rules! rows16 {
    ($($(#[$doc:meta])* $name:ident: $unit:ty, $widen:ident, $cut:ident;)*) => {
        $($(#[$doc])*
        pub fn $name(x: &[u32; 32]) -> [u32; 32] {
            vectorised!(x, |x: &[u32; 32]| {
                let low = unit_row::<$unit>(&x.map(|x| $widen(x as u16)));
                let high = unit_row::<$unit>(&x.map(|x| $widen((x >> 16) as u16)));
                std::array::from_fn(|lane| u32::from($cut(low[lane])) | u32::from($cut(high[lane])) << 16)
            })
        })*
    };
}

macro_rules! rows_div {
    ($($(#[$doc:meta])* $name:ident)*) => {
        $($(#[$doc])*
        pub fn $name(a: &[u32; 32], b: &[u32; 32]) -> [u32; 32] {
            #[inline(always)]
            fn row(a: &[u32; 32], b: &[u32; 32]) -> [u32; 32] {
                let reciprocals = unit_row::<Rcp>(&b.map(|b| division::$name::divisor(b)));
                std::array::from_fn(|lane| division::$name::quotient(a[lane], b[lane], reciprocals[lane]))
            }
            #[cfg(target_arch = "x86_64")]
            {
                #[target_feature(enable = "avx2,bmi1,bmi2")]
                fn avx2(a: &[u32; 32], b: &[u32; 32]) -> [u32; 32] {
                    row(a, b)
                }
                if super::super::has_avx2() {
                    // SAFETY: the features were found at run time.
                    return unsafe { avx2(a, b) };
                }
            }
            row(a, b)
        })*
    };
}

#[inline(always)]
fn instruction_row<I: Instruction>(x: &[u32; 32]) -> [u32; 32] {
    let result = unit_row::<I::Unit>(&x.map(I::before));
    std::array::from_fn(|lane| I::after(result[lane], x[lane]))
}

const fn f32_bits(value: f32) -> u32 {
    value.to_bits()
}

const TWO_126: u32 = (126 + 127) << 23;
const TWO_24: u32 = f32_bits(16_777_216.0);
const TWO_12: u32 = f32_bits(4096.0);
const TWO_MINUS_12: u32 = f32_bits(1.0 / 4096.0);
/// FMUL.RZ by this turns radians into revolutions: 1/(2π).
const REVOLUTIONS: f32 = f32::from_bits(0x3e22_f983);

/// x·2^24 if x is subnormal.
#[inline(always)]
fn scale_subnormal(x: u32) -> u32 {
    if is_subnormal_or_zero(x) { mul_f32(x, TWO_24) } else { x }
}

/// 2^24 for a subnormal, 1/4 above 2^126, else 1.
#[inline(always)]
fn rcp_scale(x: u32) -> u32 {
    let large = if x & !SIGN > TWO_126 {
        f32_bits(0.25)
    } else {
        f32_bits(1.0)
    };
    if is_subnormal_or_zero(x) { TWO_24 } else { large }
}

/// FMUL.RZ by 1/(2π).
#[inline(always)]
fn revolutions(x: u32) -> u32 {
    // The product is exact in f64; whatever is below 2^-126 is zero to the unit.
    let exact = f64::from(f32::from_bits(x)) * f64::from(REVOLUTIONS);
    let bits = exact.to_bits();
    let field = (bits >> 52 & 0x7ff) as i32 - 1023 + 127;
    let magnitude = if field <= 0 {
        0
    } else {
        (field as u32) << 23 | (bits >> 29) as u32 & FRACTION
    };
    if exponent_field(x) == 255 {
        x
    } else {
        x & SIGN | magnitude
    }
}

#[inline(always)]
fn below_minus_126(x: u32) -> bool {
    // Includes NaN, as the comparison of the instruction sequence does.
    !matches!(
        f32::from_bits(x).partial_cmp(&-126.0),
        Some(std::cmp::Ordering::Greater | std::cmp::Ordering::Equal)
    )
}

instructions! {
    /// `ex2.approx.ftz.f32`.
    ex2_approx_ftz_f32: Ex2, |x| x, |y, x| y;
    /// `ex2.approx.f32`.
    ex2_approx_f32: Ex2,
        |x| if below_minus_126(x) { mul_f32(x, f32_bits(0.5)) } else { x },
        |y, x| if below_minus_126(x) { mul_f32(y, y) } else { y };
    /// `lg2.approx.ftz.f32`.
    lg2_approx_ftz_f32: Lg2, |x| x, |y, x| y;
    /// `lg2.approx.f32`.
    lg2_approx_f32: Lg2,
        |x| scale_subnormal(x),
        |y, x| if is_subnormal_or_zero(x) { super::super::float::add_f32(y, f32_bits(-24.0)) } else { y };
    /// `rcp.approx.ftz.f32`.
    rcp_approx_ftz_f32: Rcp, |x| x, |y, x| y;
    /// `rcp.approx.f32`.
    rcp_approx_f32: Rcp, |x| mul_f32(x, rcp_scale(x)), |y, x| mul_f32(y, rcp_scale(x));
    /// `rsqrt.approx.ftz.f32`.
    rsqrt_approx_ftz_f32: Rsqrt, |x| x, |y, x| y;
    /// `rsqrt.approx.f32`.
    rsqrt_approx_f32: Rsqrt,
        |x| scale_subnormal(x),
        |y, x| if is_subnormal_or_zero(x) { mul_f32(y, TWO_12) } else { y };
    /// `sqrt.approx.ftz.f32`.
    sqrt_approx_ftz_f32: Sqrt, |x| x, |y, x| y;
    /// `sqrt.approx.f32`.
    sqrt_approx_f32: Sqrt,
        |x| scale_subnormal(x),
        |y, x| if is_subnormal_or_zero(x) { mul_f32(y, TWO_MINUS_12) } else { y };
    /// `sin.approx.f32`, and the same with `.ftz`.
    sin_approx_f32: Sine<false>, |x| revolutions(x), |y, x| y;
    /// `cos.approx.f32`, and the same with `.ftz`.
    cos_approx_f32: Sine<true>, |x| revolutions(x), |y, x| y;
    /// `tanh.approx.f32`.
    tanh_approx_f32: Tanh, |x| x, |y, x| y;
}

/// The divisions: MUFU.RCP and one FMUL, with the operands scaled first.
#[allow(non_camel_case_types)]
mod division {
    use super::*;

    macro_rules! divisions {
        ($($name:ident: small $small:literal large $large:literal $mul:ident;)*) => {
            $(pub struct $name;

            impl $name {
                /// What both operands are multiplied by.
                #[inline(always)]
                fn scale(b: u32) -> u32 {
                    let large = $large && b & !SIGN > TWO_126;
                    let scale = if large { f32_bits(0.25) } else { f32_bits(1.0) };
                    if $small && is_subnormal_or_zero(b) { TWO_24 } else { scale }
                }

                #[inline(always)]
                pub fn divisor(b: u32) -> u32 {
                    $mul(b, Self::scale(b))
                }

                #[inline(always)]
                pub fn quotient(a: u32, b: u32, reciprocal: u32) -> u32 {
                    $mul($mul(a, Self::scale(b)), reciprocal)
                }
            })*
        };
    }

    divisions! {
        div_approx_ftz_f32: small false large false mul_ftz_f32;
        div_approx_f32: small true large false mul_f32;
        div_full_ftz_f32: small false large true mul_ftz_f32;
        div_full_f32: small true large true mul_f32;
    }
}

macro_rules! scalar_divisions {
    ($($(#[$doc:meta])* $name:ident)*) => {
        $($(#[$doc])*
        pub fn $name(a: u32, b: u32) -> u32 {
            division::$name::quotient(a, b, unit::<Rcp>(division::$name::divisor(b)))
        })*
    };
}

scalar_divisions! {
    /// `div.approx.ftz.f32`.
    div_approx_ftz_f32
    /// `div.approx.f32`.
    div_approx_f32
    /// `div.full.ftz.f32`.
    div_full_ftz_f32
    /// `div.full.f32`.
    div_full_f32
}

#[inline(always)]
fn bf16_to_f32(code: u16) -> u32 {
    u32::from(code) << 16
}

#[inline(always)]
fn f16_to_f32(code: u16) -> u32 {
    super::convert::f16_to_f32_bits(code)
}

/// Towards zero; NaN is 0x7fff, 2^16 and above infinity.
#[inline(always)]
fn cut_to_f16(bits: u32) -> u16 {
    let magnitude = bits & !SIGN;
    let significand = magnitude & FRACTION | 0x80_0000;
    let subnormal = significand >> (126 - exponent_field(bits)).clamp(0, 31);
    let normal = magnitude.wrapping_sub(112 << 23) >> 13;
    let result = if magnitude < 113 << 23 { subnormal } else { normal };
    let result = if magnitude >= (127 + 16) << 23 { 0x7c00 } else { result };
    let result = result as u16 | (bits >> 16) as u16 & 0x8000;
    if is_nan_f32(bits) { 0x7fff } else { result }
}

#[inline(always)]
fn cut_to_bf16(bits: u32) -> u16 {
    // The unit's NaN is 0x7fffffff.
    (bits >> 16) as u16
}

macro_rules! scalars16 {
    ($($(#[$doc:meta])* $name:ident: $unit:ty, $widen:ident, $cut:ident;)*) => {
        $($(#[$doc])*
        pub fn $name(x: u16) -> u16 {
            $cut(unit::<$unit>($widen(x)))
        })*
    };
}

scalars16! {
    /// `ex2.approx.f16`; each half of `.f16x2`.
    ex2_approx_f16: Ex2, f16_to_f32, cut_to_f16;
    /// `ex2.approx.ftz.bf16`; each half of `.bf16x2`.
    ex2_approx_ftz_bf16: Ex2, bf16_to_f32, cut_to_bf16;
    /// `tanh.approx.f16`; each half of `.f16x2`.
    tanh_approx_f16: Tanh, f16_to_f32, cut_to_f16;
    /// `tanh.approx.bf16`; each half of `.bf16x2`.
    tanh_approx_bf16: Tanh, bf16_to_f32, cut_to_bf16;
}

/// An f64 with this high word and low word 0.
const fn high_word(high: u32) -> u64 {
    (high as u64) << 32
}

/// The high word of an f64 with an exponent field and a significand in [2^23, 2^24], cut to 20 bits; flushes.
fn pack_f64(sign: u32, field: i32, significand: u32) -> u64 {
    let field = field - 1 + (significand >> 23) as i32;
    high_word(if field <= 0 {
        sign
    } else {
        sign | (field as u32) << 20 | (significand & FRACTION) >> 3
    })
}

/// `rcp.approx.ftz.f64`. The operand's low word is ignored, the result's is 0.
pub fn rcp_approx_ftz_f64(x: u64) -> u64 {
    let high = (x >> 32) as u32;
    let (sign, field, fraction) = (high & SIGN, (high >> 20 & 0x7ff) as i32, (high & 0xf_ffff) << 3);
    match field {
        0 => high_word(sign | 0x7ff0_0000),
        0x7ff if fraction == 0 => high_word(sign),
        0x7ff => high_word(F32_NAN),
        _ => {
            let (index, x, _) = Rcp::locate(fraction);
            pack_f64(
                sign,
                2045 - field,
                rcp_significand(Rcp::TABLE[index as usize], x, truncating_square(x)),
            )
        }
    }
}

/// `rsqrt.approx.ftz.f64`. The operand's low word is ignored, the result's is 0.
pub fn rsqrt_approx_ftz_f64(x: u64) -> u64 {
    let high = (x >> 32) as u32;
    let (sign, field, fraction) = (high & SIGN, (high >> 20 & 0x7ff) as i32, (high & 0xf_ffff) << 3);
    match field {
        0 => high_word(sign | 0x7ff0_0000),
        _ if sign != 0 || field == 0x7ff && fraction != 0 => high_word(F32_NAN),
        0x7ff => 0,
        _ => {
            let (index, x, odd_field) = locate_root((field as u32 & 1) << 23 | fraction);
            let exact = fraction == 0 && odd_field == 1;
            let significand = rsqrt_significand(Rsqrt::TABLE[index as usize], x, truncating_square(x));
            pack_f64(
                0,
                1022 - ((field - 1023) >> 1),
                if exact { 1 << 24 } else { significand },
            )
        }
    }
}
