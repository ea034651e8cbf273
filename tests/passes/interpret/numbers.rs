//! Numbers of every element type, as their bits.
use smalt::dtype::DType;
use smalt::kernel_ir::{AtomicOp, BinaryOp, CompareOp, UnaryOp};

/// A binary float format of at most 32 bits.
struct Format {
    exponent: u32,
    mantissa: u32,
    bias: i32,
    special: Special,
}

/// What a format's codes with the largest exponent are.
#[derive(Clone, Copy, PartialEq)]
enum Special {
    /// Infinities and NaN.
    Ieee,
    /// NaN where all bits but the sign are set; no infinity.
    OneNan,
    /// NaN in the place of −0; no infinity.
    NanIsNegativeZero,
    /// Numbers.
    None,
}

fn format(dtype: DType) -> Option<Format> {
    use Special::*;
    let (exponent, mantissa, bias, special) = match dtype {
        DType::F16 => (5, 10, 15, Ieee),
        DType::BF16 => (8, 7, 127, Ieee),
        DType::F8E4M3FN => (4, 3, 7, OneNan),
        DType::F8E5M2 => (5, 2, 15, Ieee),
        DType::F4E2M1FN => (2, 1, 1, None),
        DType::F6E2M3FN => (2, 3, 1, None),
        DType::F6E3M2FN => (3, 2, 3, None),
        DType::F8E4M3B11FNUZ => (4, 3, 11, NanIsNegativeZero),
        DType::F8E4M3FNUZ => (4, 3, 8, NanIsNegativeZero),
        DType::F8E5M2FNUZ => (5, 2, 16, NanIsNegativeZero),
        DType::F8E3M4 => (3, 4, 3, Ieee),
        DType::F8E4M3 => (4, 3, 7, Ieee),
        _ => return Option::None,
    };
    Some(Format {
        exponent,
        mantissa,
        bias,
        special,
    })
}

pub fn mask(dtype: DType) -> u64 {
    match dtype {
        DType::Bool => 1,
        _ => u64::MAX >> (64 - dtype.bits()),
    }
}

/// The number that a float's bits are.
pub fn to_f64(dtype: DType, bits: u64) -> f64 {
    match dtype {
        DType::F64 => return f64::from_bits(bits),
        DType::F32 => return f64::from(f32::from_bits(bits as u32)),
        // 2^(e − 127), and NaN.
        DType::F8E8M0FNU => {
            return match bits {
                255 => f64::NAN,
                e => 2f64.powi(e as i32 - 127),
            };
        }
        _ => {}
    }
    let f = format(dtype).expect("a float");
    let mantissa = bits & ((1 << f.mantissa) - 1);
    let exponent = bits >> f.mantissa & ((1 << f.exponent) - 1);
    let negative = bits >> (f.mantissa + f.exponent) & 1 == 1;
    let last = (1 << f.exponent) - 1;
    match f.special {
        Special::Ieee if exponent == last && mantissa == 0 => {
            return if negative { f64::NEG_INFINITY } else { f64::INFINITY };
        }
        Special::Ieee if exponent == last => return f64::NAN,
        Special::OneNan if exponent == last && mantissa == (1 << f.mantissa) - 1 => return f64::NAN,
        Special::NanIsNegativeZero if negative && exponent == 0 && mantissa == 0 => return f64::NAN,
        Special::Ieee | Special::OneNan | Special::NanIsNegativeZero | Special::None => {}
    }
    let (significand, e) = match exponent {
        0 => (mantissa, 1),
        e => (mantissa | 1 << f.mantissa, e as i32),
    };
    let x = significand as f64 * 2f64.powi(e - f.bias - f.mantissa as i32);
    if negative { -x } else { x }
}

/// The nearest float, halves to even; where there is none, what `ml_dtypes` gives.
pub fn from_f64(dtype: DType, x: f64) -> u64 {
    match dtype {
        DType::F64 => return if x.is_nan() { f64::NAN } else { x }.to_bits(),
        DType::F32 => return u64::from(if x.is_nan() { f32::NAN } else { x as f32 }.to_bits()),
        DType::F8E8M0FNU => {
            let e = x.log2().round_ties_even() + 127.0;
            return if x > 0.0 && e < 255.0 { e.max(0.0) as u64 } else { 255 };
        }
        _ => {}
    }
    let f = format(dtype).expect("a float");
    let all = (1u64 << (f.mantissa + f.exponent)) - 1;
    let sign = u64::from(x.is_sign_negative()) << (f.mantissa + f.exponent);
    let last = ((1u64 << f.exponent) - 1) << f.mantissa;
    let nan = match f.special {
        Special::Ieee => last | 1 << (f.mantissa - 1),
        Special::OneNan => all,
        Special::NanIsNegativeZero => all + 1,
        // The largest number of the sign.
        Special::None => all | sign,
    };
    if x.is_nan() {
        return nan;
    }
    // The largest number, as its code.
    let largest = match f.special {
        Special::Ieee => last - 1,
        Special::OneNan => all - 1,
        Special::NanIsNegativeZero | Special::None => all,
    };
    let outside = match f.special {
        Special::Ieee => last | sign,
        Special::OneNan | Special::NanIsNegativeZero => nan,
        Special::None => all | sign,
    };
    if x.is_infinite() {
        return outside;
    }
    let least = 1 - f.bias;
    let e = match x == 0.0 {
        true => least,
        false => ((x.to_bits() >> 52 & 0x7ff) as i32 - 1023).max(least),
    };
    // Codes of one sign are in the order of their numbers: a carry goes into the exponent.
    let significand = (x.abs() * 2f64.powi(f.mantissa as i32 - e)).round_ties_even() as u64;
    let code = significand + (((e - least) as u64) << f.mantissa);
    match (code > largest, f.special) {
        (true, _) => outside,
        (false, Special::NanIsNegativeZero) if code == 0 => 0,
        (false, _) => code | sign,
    }
}

/// The number that an integer's (bool's) bits are.
pub fn to_int(dtype: DType, bits: u64) -> i128 {
    let width = dtype.bits();
    match dtype.is_signed_int() {
        true => i128::from((bits as i64) << (64 - width) >> (64 - width)),
        false => i128::from(bits & mask(dtype)),
    }
}

/// Wraps.
pub fn from_int(dtype: DType, x: i128) -> u64 {
    match dtype {
        DType::Bool => u64::from(x != 0),
        _ => x as u64 & mask(dtype),
    }
}

fn least(dtype: DType) -> i128 {
    match dtype.is_signed_int() {
        true => -(1 << (dtype.bits() - 1)),
        false => 0,
    }
}

pub fn greatest(dtype: DType) -> i128 {
    match dtype {
        DType::Bool => 1,
        d if d.is_signed_int() => (1 << (d.bits() - 1)) - 1,
        d => (1 << d.bits()) - 1,
    }
}

pub fn convert(from: DType, to: DType, bits: u64) -> u64 {
    match (from.is_float(), to.is_float()) {
        _ if from == to => bits,
        (true, true) => from_f64(to, to_f64(from, bits)),
        (true, false) => {
            let x = to_f64(from, bits);
            match to {
                DType::Bool => u64::from(x != 0.0),
                _ if x.is_nan() => 0,
                _ => from_int(to, (x.trunc() as i128).clamp(least(to), greatest(to))),
            }
        }
        (false, true) if to == DType::F32 => u64::from((to_int(from, bits) as f32).to_bits()),
        (false, true) => from_f64(to, to_int(from, bits) as f64),
        (false, false) => from_int(to, to_int(from, bits)),
    }
}

/// The smaller and the larger; NaN if either is; −0 below +0.
fn float_extreme(a: f64, b: f64, max: bool) -> f64 {
    if a.is_nan() || b.is_nan() {
        return f64::NAN;
    }
    let less = a < b || a == b && a.is_sign_negative();
    if less == max { b } else { a }
}

fn float_binary(op: BinaryOp, dtype: DType, a: f64, b: f64) -> Option<f64> {
    Some(match op {
        BinaryOp::Add => a + b,
        BinaryOp::Sub => a - b,
        BinaryOp::Mul => a * b,
        BinaryOp::Div => a / b,
        BinaryOp::Rem => a % b,
        BinaryOp::Max => float_extreme(a, b, true),
        BinaryOp::Min => float_extreme(a, b, false),
        BinaryOp::Pow => a.powf(b),
        BinaryOp::Atan2 => a.atan2(b),
        BinaryOp::CopySign => a.copysign(b),
        BinaryOp::NextAfter => {
            if a.is_nan() || b.is_nan() {
                return Some(f64::NAN);
            }
            // By code, in the type itself.
            let bits = from_f64(dtype, a);
            let sign = 1u64 << (dtype.bits() - 1);
            match (a == b, a == 0.0) {
                (true, _) => b,
                (_, true) => to_f64(dtype, 1 | if b < 0.0 { sign } else { 0 }),
                _ => to_f64(dtype, if (b > a) == (a > 0.0) { bits + 1 } else { bits - 1 }),
            }
        }
        BinaryOp::And
        | BinaryOp::Or
        | BinaryOp::Xor
        | BinaryOp::ShiftLeft
        | BinaryOp::ShiftRightLogical
        | BinaryOp::ShiftRightArithmetic => return None,
    })
}

/// `None`: no such op on the type.
pub fn binary(op: BinaryOp, dtype: DType, a: u64, b: u64) -> Option<u64> {
    if dtype.is_float() {
        let result = float_binary(op, dtype, to_f64(dtype, a), to_f64(dtype, b))?;
        return Some(from_f64(dtype, result));
    }
    let (x, y) = (to_int(dtype, a), to_int(dtype, b));
    let width = i128::from(dtype.bits());
    // As a shift's count: unsigned.
    let count = i128::from(b & mask(dtype));
    let result = match op {
        BinaryOp::Add => x + y,
        BinaryOp::Sub => x - y,
        BinaryOp::Mul => x.wrapping_mul(y),
        BinaryOp::Div if y == 0 => -1,
        BinaryOp::Div => x / y,
        BinaryOp::Rem if y == 0 => x,
        BinaryOp::Rem => x % y,
        BinaryOp::Max => x.max(y),
        BinaryOp::Min => x.min(y),
        BinaryOp::And => x & y,
        BinaryOp::Or => x | y,
        BinaryOp::Xor => x ^ y,
        BinaryOp::ShiftLeft if count >= width => 0,
        BinaryOp::ShiftLeft => x << count,
        BinaryOp::ShiftRightLogical if count >= width => 0,
        BinaryOp::ShiftRightLogical => i128::from((a & mask(dtype)) >> count),
        // The sign is the highest bit, of unsigned types too.
        BinaryOp::ShiftRightArithmetic => {
            let signed = (i128::from(a & mask(dtype)) << (128 - width)) >> (128 - width);
            signed >> count.min(width - 1)
        }
        BinaryOp::Pow | BinaryOp::Atan2 | BinaryOp::NextAfter | BinaryOp::CopySign => return None,
    };
    Some(from_int(dtype, result))
}

pub fn compare(op: CompareOp, dtype: DType, a: u64, b: u64) -> bool {
    let order = match dtype.is_float() {
        true => to_f64(dtype, a).partial_cmp(&to_f64(dtype, b)),
        false => Some(to_int(dtype, a).cmp(&to_int(dtype, b))),
    };
    match op {
        CompareOp::Eq => order.is_some_and(|o| o.is_eq()),
        CompareOp::Ne => order.is_none_or(|o| o.is_ne()),
        CompareOp::Lt => order.is_some_and(|o| o.is_lt()),
        CompareOp::Le => order.is_some_and(|o| o.is_le()),
        CompareOp::Gt => order.is_some_and(|o| o.is_gt()),
        CompareOp::Ge => order.is_some_and(|o| o.is_ge()),
    }
}

/// erf by its series near 0, else by the continued fraction of erfc.
fn erf(x: f64) -> f64 {
    if x.abs() > 3.0 {
        1f64.copysign(x) - erfc(x.abs()).copysign(x)
    } else {
        erf_series(x)
    }
}

fn erf_series(x: f64) -> f64 {
    let (mut term, mut sum) = (x, x);
    for n in 1..100 {
        term *= -x * x / f64::from(n);
        sum += term / f64::from(2 * n + 1);
    }
    sum * std::f64::consts::FRAC_2_SQRT_PI
}

fn erfc(x: f64) -> f64 {
    if x < 3.0 {
        return if x < -3.0 { 2.0 - erfc(-x) } else { 1.0 - erf_series(x) };
    }
    let fraction = (1..60).rev().fold(0.0, |f, n| f64::from(n) / 2.0 / (x + f));
    (-x * x).exp() / (x + fraction) / std::f64::consts::PI.sqrt()
}

/// By Newton's method.
fn erf_inv(y: f64) -> f64 {
    if y.is_nan() || y.abs() >= 1.0 {
        return if y.abs() == 1.0 { y * f64::INFINITY } else { f64::NAN };
    }
    let mut x: f64 = 0.0;
    for _ in 0..60 {
        x -= (erf(x) - y) / (std::f64::consts::FRAC_2_SQRT_PI * (-x * x).exp());
        x = x.clamp(-6.0, 6.0);
    }
    x
}

/// By Stirling's series, where it is good, and reflection.
fn lgamma(x: f64) -> f64 {
    if x < 0.5 {
        let sine = (std::f64::consts::PI * x).sin().abs();
        return std::f64::consts::PI.ln() - sine.ln() - lgamma(1.0 - x);
    }
    let (mut shift, mut z) = (0.0, x);
    while z < 10.0 {
        shift += z.ln();
        z += 1.0;
    }
    let tail = 1.0 / (12.0 * z) - 1.0 / (360.0 * z.powi(3)) + 1.0 / (1260.0 * z.powi(5));
    (z - 0.5) * z.ln() - z + 0.5 * (2.0 * std::f64::consts::PI).ln() + tail - shift
}

fn float_unary(op: UnaryOp, x: f64) -> Option<f64> {
    Some(match op {
        UnaryOp::Neg => -x,
        UnaryOp::Abs => x.abs(),
        UnaryOp::Sign if x == 0.0 || x.is_nan() => x,
        UnaryOp::Sign => x.signum(),
        UnaryOp::Floor => x.floor(),
        UnaryOp::Ceil => x.ceil(),
        UnaryOp::RoundAwayFromZero => x.round(),
        UnaryOp::RoundToEven => x.round_ties_even(),
        UnaryOp::Exp => x.exp(),
        UnaryOp::Exp2 => x.exp2(),
        UnaryOp::Expm1 => x.exp_m1(),
        UnaryOp::Log => x.ln(),
        UnaryOp::Log1p => x.ln_1p(),
        UnaryOp::Log2 => x.log2(),
        UnaryOp::Sqrt => x.sqrt(),
        UnaryOp::Rsqrt => 1.0 / x.sqrt(),
        UnaryOp::Cbrt => x.cbrt(),
        UnaryOp::Sin => x.sin(),
        UnaryOp::Cos => x.cos(),
        UnaryOp::Tan => x.tan(),
        UnaryOp::Asin => x.asin(),
        UnaryOp::Acos => x.acos(),
        UnaryOp::Atan => x.atan(),
        UnaryOp::Sinh => x.sinh(),
        UnaryOp::Cosh => x.cosh(),
        UnaryOp::Tanh => x.tanh(),
        UnaryOp::Asinh => x.asinh(),
        UnaryOp::Acosh => x.acosh(),
        UnaryOp::Atanh => x.atanh(),
        UnaryOp::Erf => erf(x),
        UnaryOp::Erfc => erfc(x),
        UnaryOp::ErfInv => erf_inv(x),
        UnaryOp::Lgamma => lgamma(x),
        UnaryOp::Logistic => 1.0 / (1.0 + (-x).exp()),
        UnaryOp::Not
        | UnaryOp::RoundToTf32
        | UnaryOp::IsFinite
        | UnaryOp::CountLeadingZeros
        | UnaryOp::PopulationCount => return None,
    })
}

/// To 10 bits behind the point, halves away from zero.
pub fn to_tf32(x: f32) -> f32 {
    match x.is_finite() {
        true => f32::from_bits((x.to_bits().wrapping_add(1 << 12)) & !0x1fff),
        false => x,
    }
}

/// `None`: no such op on the type.
pub fn unary(op: UnaryOp, dtype: DType, a: u64) -> Option<u64> {
    if dtype.is_float() {
        let sign = 1u64 << (dtype.bits() - 1);
        return Some(match op {
            UnaryOp::IsFinite => u64::from(to_f64(dtype, a).is_finite()),
            UnaryOp::RoundToTf32 if dtype == DType::F32 => u64::from(to_tf32(f32::from_bits(a as u32)).to_bits()),
            UnaryOp::RoundToTf32 => a,
            // Of NaN's sign too.
            UnaryOp::Neg if matches!(dtype, DType::F16 | DType::BF16 | DType::F32 | DType::F64) => a ^ sign,
            _ => from_f64(dtype, float_unary(op, to_f64(dtype, a))?),
        });
    }
    let x = to_int(dtype, a);
    let result = match op {
        UnaryOp::Neg => -x,
        UnaryOp::Not if dtype == DType::Bool => 1 - x,
        UnaryOp::Not => !x,
        UnaryOp::Abs => x.abs(),
        UnaryOp::Sign => x.signum(),
        UnaryOp::CountLeadingZeros => i128::from((a & mask(dtype)).leading_zeros()) - 64 + i128::from(dtype.bits()),
        UnaryOp::PopulationCount => i128::from((a & mask(dtype)).count_ones()),
        _ => return None,
    };
    Some(from_int(dtype, result))
}

/// `None`: no such op on the type.
pub fn atomic(op: AtomicOp, dtype: DType, old: u64, new: u64) -> Option<u64> {
    let op = match op {
        AtomicOp::Add => BinaryOp::Add,
        AtomicOp::Max => BinaryOp::Max,
        AtomicOp::Min => BinaryOp::Min,
        AtomicOp::And => BinaryOp::And,
        AtomicOp::Or => BinaryOp::Or,
        AtomicOp::Xor => BinaryOp::Xor,
    };
    binary(op, dtype, old, new)
}

pub fn integer_pow(dtype: DType, a: u64, n: i32) -> Option<u64> {
    let one = match dtype.is_float() {
        true => from_f64(dtype, 1.0),
        false => 1,
    };
    let mut power = one;
    for _ in 0..n.unsigned_abs() {
        power = binary(BinaryOp::Mul, dtype, power, a)?;
    }
    match n < 0 {
        true => binary(BinaryOp::Div, dtype, one, power),
        false => Some(power),
    }
}

pub fn reduce_precision(dtype: DType, a: u64, exponent: u32, mantissa: u32) -> u64 {
    let x = to_f64(dtype, a);
    if !x.is_finite() || x == 0.0 {
        return a;
    }
    let bias = (1 << (exponent - 1)) - 1;
    let e = ((x.to_bits() >> 52 & 0x7ff) as i32 - 1023).max(1 - bias);
    let step = 2f64.powi(e - mantissa as i32);
    let rounded = (x / step).round_ties_even() * step;
    let limit = 2f64.powi(bias) * (2.0 - 2f64.powi(-(mantissa as i32)));
    from_f64(
        dtype,
        match rounded.abs() > limit {
            true => f64::INFINITY.copysign(x),
            // Numbers that are too small for the exponent are zero.
            false if rounded.abs() < 2f64.powi(1 - bias) => 0f64.copysign(x),
            false => rounded,
        },
    )
}
