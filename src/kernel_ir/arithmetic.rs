//! What functions of integers and bools compute, on single numbers.
//!
//! This is lax's arithmetic as [`UnaryOp`] and [`BinaryOp`] document it, stated once: facts, executors and the checker of order
//! fold by it. A number is the mathematical value that a scalar's bits stand for under its type; the widest are those of u64.
use super::Facts;
use super::op::{BinaryOp, CompareOp, UnaryOp};
use crate::dtype::DType;

/// The value of the type that has the low bits of `x`; of a bool: whether `x` is not 0.
pub fn wrap(dtype: DType, x: i128) -> i128 {
    if dtype == DType::Bool {
        return i128::from(x != 0);
    }
    let unused = 128 - dtype.bits();
    if dtype.is_signed_int() {
        x << unused >> unused
    } else {
        bits(dtype, x) as i128
    }
}

/// The bits of a number, zero-extended.
fn bits(dtype: DType, x: i128) -> u128 {
    x as u128 & (u128::MAX >> (128 - dtype.bits()))
}

/// Whether a number is one of the type's.
pub fn fits(dtype: DType, x: i128) -> bool {
    let all = Facts::of_dtype(dtype);
    (all.lo..=all.hi).contains(&x)
}

/// None: it is no function of this type.
pub fn unary(op: UnaryOp, dtype: DType, a: i128) -> Option<i128> {
    if dtype.is_float() || dtype == DType::Bool && op != UnaryOp::Not {
        return None;
    }
    let x = match op {
        UnaryOp::Neg => -a,
        UnaryOp::Not if dtype == DType::Bool => 1 - a,
        UnaryOp::Not => !a,
        UnaryOp::Abs => a.abs(),
        UnaryOp::Sign => a.signum(),
        UnaryOp::CountLeadingZeros => i128::from(bits(dtype, a).leading_zeros() - (128 - dtype.bits())),
        UnaryOp::PopulationCount => i128::from(bits(dtype, a).count_ones()),
        UnaryOp::Floor
        | UnaryOp::Ceil
        | UnaryOp::RoundAwayFromZero
        | UnaryOp::RoundToEven
        | UnaryOp::RoundToTf32
        | UnaryOp::IsFinite
        | UnaryOp::Exp
        | UnaryOp::Exp2
        | UnaryOp::Expm1
        | UnaryOp::Log
        | UnaryOp::Log1p
        | UnaryOp::Log2
        | UnaryOp::Sqrt
        | UnaryOp::Rsqrt
        | UnaryOp::Cbrt
        | UnaryOp::Sin
        | UnaryOp::Cos
        | UnaryOp::Tan
        | UnaryOp::Asin
        | UnaryOp::Acos
        | UnaryOp::Atan
        | UnaryOp::Sinh
        | UnaryOp::Cosh
        | UnaryOp::Tanh
        | UnaryOp::Asinh
        | UnaryOp::Acosh
        | UnaryOp::Atanh
        | UnaryOp::Erf
        | UnaryOp::Erfc
        | UnaryOp::ErfInv
        | UnaryOp::Lgamma
        | UnaryOp::Logistic => return None,
    };
    Some(wrap(dtype, x))
}

/// None: it is no function of this type.
pub fn binary(op: BinaryOp, dtype: DType, a: i128, b: i128) -> Option<i128> {
    if dtype.is_float() {
        return None;
    }
    if dtype == DType::Bool {
        return match op {
            BinaryOp::Add | BinaryOp::Or | BinaryOp::Max => Some(a | b),
            BinaryOp::Mul | BinaryOp::And | BinaryOp::Min => Some(a & b),
            BinaryOp::Xor => Some(a ^ b),
            BinaryOp::Sub
            | BinaryOp::Div
            | BinaryOp::Rem
            | BinaryOp::ShiftLeft
            | BinaryOp::ShiftRightLogical
            | BinaryOp::ShiftRightArithmetic
            | BinaryOp::Pow
            | BinaryOp::Atan2
            | BinaryOp::NextAfter
            | BinaryOp::CopySign => None,
        };
    }
    // A shift's amount is unsigned: a negative one is beyond every width.
    let shift = u32::try_from(b).ok().filter(|s| *s < dtype.bits());
    let signed = a << (128 - dtype.bits()) >> (128 - dtype.bits());
    let x = match op {
        BinaryOp::Add => a + b,
        BinaryOp::Sub => a - b,
        BinaryOp::Mul => a.wrapping_mul(b),
        BinaryOp::Div if b == 0 => -1,
        BinaryOp::Div => a / b,
        BinaryOp::Rem if b == 0 => a,
        BinaryOp::Rem => a % b,
        BinaryOp::Max => a.max(b),
        BinaryOp::Min => a.min(b),
        BinaryOp::And => a & b,
        BinaryOp::Or => a | b,
        BinaryOp::Xor => a ^ b,
        BinaryOp::ShiftLeft => shift.map_or(0, |s| a << s),
        BinaryOp::ShiftRightLogical => shift.map_or(0, |s| (bits(dtype, a) >> s) as i128),
        BinaryOp::ShiftRightArithmetic => signed >> shift.unwrap_or(127),
        BinaryOp::Pow | BinaryOp::Atan2 | BinaryOp::NextAfter | BinaryOp::CopySign => return None,
    };
    Some(wrap(dtype, x))
}

pub fn compare(op: CompareOp, a: i128, b: i128) -> bool {
    match op {
        CompareOp::Eq => a == b,
        CompareOp::Ne => a != b,
        CompareOp::Lt => a < b,
        CompareOp::Le => a <= b,
        CompareOp::Gt => a > b,
        CompareOp::Ge => a >= b,
    }
}

/// `a` to the power of `n`; none where `n` is negative.
pub fn power(dtype: DType, a: i128, n: i32) -> Option<i128> {
    let n = u32::try_from(n).ok().filter(|_| dtype.is_int())?;
    Some(wrap(dtype, a.wrapping_pow(n)))
}

/// Numbers of a type that tests take: all if they are few, else those at its ends, around 0 and powers of two, and some others.
#[cfg(test)]
pub fn numbers(dtype: DType) -> Vec<i128> {
    let all = Facts::of_dtype(dtype);
    if dtype.bits() <= 8 {
        return (all.lo..=all.hi).collect();
    }
    let near = |x: i128| [x - 2, x - 1, x, x + 1, x + 2];
    let powers = [7, 8, 15, 16, 31, 32, 47, 62, 63].into_iter().map(|k| 1i128 << k);
    let corners = [all.lo, 0, all.hi, dtype.bits().into()].into_iter().chain(powers);
    let mut numbers: Vec<i128> = corners
        .flat_map(|x| [x, -x])
        .flat_map(near)
        .chain([100, 12345, -777])
        .collect();
    numbers.retain(|x| fits(dtype, *x));
    numbers.sort_unstable();
    numbers.dedup();
    numbers
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What Rust's own type of the same width gives.
    macro_rules! of_type {
        ($op:expr, $signed:ty, $unsigned:ty, $ty:ty, $x:expr, $y:expr) => {{
            let (x, y) = ($x as $ty, $y as $ty);
            let amount = (y as $unsigned as u128) < u128::from(<$ty>::BITS);
            let amount = amount.then_some(y as u32);
            let z: Option<$ty> = match $op {
                BinaryOp::Add => Some(x.wrapping_add(y)),
                BinaryOp::Sub => Some(x.wrapping_sub(y)),
                BinaryOp::Mul => Some(x.wrapping_mul(y)),
                BinaryOp::Div => Some(if y == 0 { !0 } else { x.wrapping_div(y) }),
                BinaryOp::Rem => Some(if y == 0 { x } else { x.wrapping_rem(y) }),
                BinaryOp::Max => Some(x.max(y)),
                BinaryOp::Min => Some(x.min(y)),
                BinaryOp::And => Some(x & y),
                BinaryOp::Or => Some(x | y),
                BinaryOp::Xor => Some(x ^ y),
                BinaryOp::ShiftLeft => Some(amount.map_or(0, |s| x << s)),
                BinaryOp::ShiftRightLogical => Some(amount.map_or(0, |s| (x as $unsigned >> s) as $ty)),
                BinaryOp::ShiftRightArithmetic => Some((x as $signed >> amount.unwrap_or(<$ty>::BITS - 1)) as $ty),
                BinaryOp::Pow | BinaryOp::Atan2 | BinaryOp::NextAfter | BinaryOp::CopySign => None,
            };
            z.map(i128::from)
        }};
    }

    fn rusts(op: BinaryOp, dtype: DType, x: i128, y: i128) -> Option<i128> {
        match dtype {
            DType::I8 => of_type!(op, i8, u8, i8, x, y),
            DType::U8 => of_type!(op, i8, u8, u8, x, y),
            DType::I16 => of_type!(op, i16, u16, i16, x, y),
            DType::U16 => of_type!(op, i16, u16, u16, x, y),
            DType::I32 => of_type!(op, i32, u32, i32, x, y),
            DType::U32 => of_type!(op, i32, u32, u32, x, y),
            DType::I64 => of_type!(op, i64, u64, i64, x, y),
            DType::U64 => of_type!(op, i64, u64, u64, x, y),
            _ => unreachable!("an integer of whole bytes"),
        }
    }

    #[test]
    fn functions_of_integers_are_those_of_rusts_types() {
        for dtype in DType::ALL.into_iter().filter(|d| d.is_int() && d.bits() >= 8) {
            let numbers = numbers(dtype);
            for op in BinaryOp::ALL.iter().copied() {
                for &x in &numbers {
                    for &y in &numbers {
                        assert_eq!(
                            binary(op, dtype, x, y),
                            rusts(op, dtype, x, y),
                            "{} {dtype} {x} {y}",
                            op.name()
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn every_result_is_a_number_of_the_type() {
        for dtype in DType::ALL.into_iter().filter(|d| !d.is_float()) {
            for &x in &numbers(dtype) {
                let unary = UnaryOp::ALL.iter().filter_map(|op| unary(*op, dtype, x));
                let binary = BinaryOp::ALL.iter().flat_map(|op| {
                    let numbers = numbers(dtype);
                    numbers.into_iter().filter_map(move |y| binary(*op, dtype, x, y))
                });
                for z in unary.chain(binary).chain([wrap(dtype, x)]) {
                    assert!(fits(dtype, z), "{z} of {dtype}");
                }
            }
        }
    }

    #[test]
    fn functions_of_one_integer() {
        use UnaryOp::*;
        let of = |op, dtype, x| unary(op, dtype, x).unwrap();
        assert_eq!(of(Neg, DType::I8, -128), -128);
        assert_eq!(of(Neg, DType::U8, 1), 255);
        assert_eq!(of(Abs, DType::I64, i64::MIN.into()), i64::MIN.into());
        assert_eq!(of(Not, DType::U16, 1), 65534);
        assert_eq!(of(Not, DType::Bool, 1), 0);
        assert_eq!(of(Sign, DType::I4, -8), -1);
        assert_eq!(of(CountLeadingZeros, DType::U64, 0), 64);
        assert_eq!(of(CountLeadingZeros, DType::I8, -1), 0);
        // Two leading zeros of two bits: a number that the type does not have.
        assert_eq!(of(CountLeadingZeros, DType::I2, 0), -2);
        assert_eq!(of(PopulationCount, DType::I64, -1), 64);
        assert_eq!(power(DType::I8, 3, 5), Some(-13));
        assert_eq!(power(DType::U64, u64::MAX.into(), 2), Some(1));
    }
}
