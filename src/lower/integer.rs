//! Element-wise functions of integers and bools, on scalars as [`super::value::Lowered::Scalar`] keeps them.
//!
//! lax's semantics: everything wraps, division by zero and oversized shifts have values.
use super::emit::S;
use super::float::undefined;
use crate::dtype::DType;
use crate::error::Result;
use crate::kernel_ir::{BinaryOp, CompareOp, UnaryOp};
use crate::ptx::build::Builder;
use crate::ptx::inst::Inst;
use crate::ptx::modifier::*;
use crate::ptx::operand::{Class, Src};
use crate::ptx::ssa::Value;

/// The arithmetic type that an integer type is computed in.
pub fn int_type(dtype: DType) -> IntType {
    match (dtype.bits(), dtype.is_signed_int()) {
        (64, true) => IntType::S64,
        (64, false) => IntType::U64,
        (_, true) => IntType::S32,
        (_, false) => IntType::U32,
    }
}

/// What arithmetic on a narrow type left in the high bits is replaced by the extension.
pub fn wrap(b: &mut Builder, dtype: DType, a: S) -> S {
    match dtype.bits() {
        bits if bits >= 32 => a,
        bits => b.field(a, 0, bits, dtype.is_signed_int()),
    }
}

/// The bits of an integer, zero-extended.
fn unsigned_bits(b: &mut Builder, dtype: DType, a: S) -> S {
    match dtype.bits() {
        bits if bits >= 32 => a,
        bits => b.field(a, 0, bits, false),
    }
}

fn constant(dtype: DType, x: i64) -> S {
    if dtype.bits() == 64 {
        Src::Imm(x as u64)
    } else {
        Src::Imm(u64::from(x as u32))
    }
}

pub fn unary(b: &mut Builder, op: UnaryOp, dtype: DType, a: S) -> Result<S> {
    if dtype == DType::Bool {
        return match op {
            UnaryOp::Not => Ok(b.not_pred(a)),
            _ => Err(undefined(op.name(), dtype)),
        };
    }
    let ty = int_type(dtype);
    let word = if dtype.bits() == 64 {
        WordType::B64
    } else {
        WordType::B32
    };
    let d = Value::NEW;
    let out = match op {
        UnaryOp::Neg => b.neg(ty, a),
        UnaryOp::Not => b.not(ty.as_logic(), a),
        UnaryOp::Abs if dtype.is_signed_int() => {
            let minus = b.neg(ty, a);
            b.max(ty, a, minus)
        }
        UnaryOp::Abs => a,
        UnaryOp::Sign if dtype.is_signed_int() => {
            let low = b.max(ty, a, constant(dtype, -1));
            b.min(ty, low, constant(dtype, 1))
        }
        UnaryOp::Sign => b.min(ty, a, constant(dtype, 1)),
        UnaryOp::CountLeadingZeros => {
            let bits = unsigned_bits(b, dtype, a);
            let zeros = b.emit(Inst::Clz { ty: word, d, a: bits });
            let zeros = b.sub(IntType::U32, zeros, Src::u32(32 - dtype.bits().min(32)));
            if dtype.bits() == 64 {
                b.widen(zeros, false)
            } else {
                zeros
            }
        }
        UnaryOp::PopulationCount => {
            let bits = unsigned_bits(b, dtype, a);
            let ones = b.emit(Inst::Popc { ty: word, d, a: bits });
            if dtype.bits() == 64 { b.widen(ones, false) } else { ones }
        }
        _ => return Err(undefined(op.name(), dtype)),
    };
    Ok(wrap(b, dtype, out))
}

pub fn binary(b: &mut Builder, op: BinaryOp, dtype: DType, x: S, y: S) -> Result<S> {
    if dtype == DType::Bool {
        return match op {
            BinaryOp::Add | BinaryOp::Or | BinaryOp::Max => Ok(b.either(x, y)),
            BinaryOp::Mul | BinaryOp::And | BinaryOp::Min => Ok(b.both(x, y)),
            BinaryOp::Xor => Ok(b.logic_pred(Logic::Xor, x, y)),
            _ => Err(undefined(op.name(), dtype)),
        };
    }
    let ty = int_type(dtype);
    let out = match op {
        BinaryOp::Add => b.add(ty, x, y),
        BinaryOp::Sub => b.sub(ty, x, y),
        BinaryOp::Mul => b.mul(ty, x, y),
        BinaryOp::Div => divide(b, dtype, x, y),
        BinaryOp::Rem => remainder(b, dtype, x, y),
        BinaryOp::Max => b.max(ty, x, y),
        BinaryOp::Min => b.min(ty, x, y),
        BinaryOp::And => b.and(ty.as_logic(), x, y),
        BinaryOp::Or => b.or(ty.as_logic(), x, y),
        BinaryOp::Xor => b.xor(ty.as_logic(), x, y),
        BinaryOp::ShiftLeft => {
            let amount = shift_amount(b, dtype, y);
            b.shl(ty.as_bits(), x, amount)
        }
        BinaryOp::ShiftRightLogical => {
            let amount = shift_amount(b, dtype, y);
            let bits = unsigned_bits(b, dtype, x);
            let shift = if dtype.bits() == 64 {
                ShiftType::U64
            } else {
                ShiftType::U32
            };
            b.shr(shift, bits, amount)
        }
        BinaryOp::ShiftRightArithmetic => {
            let amount = shift_amount(b, dtype, y);
            let bits = if dtype.bits() < 32 {
                b.field(x, 0, dtype.bits(), true)
            } else {
                x
            };
            let shift = if dtype.bits() == 64 {
                ShiftType::S64
            } else {
                ShiftType::S32
            };
            b.shr(shift, bits, amount)
        }
        BinaryOp::Pow | BinaryOp::Atan2 | BinaryOp::NextAfter | BinaryOp::CopySign => {
            return Err(undefined(op.name(), dtype));
        }
    };
    Ok(wrap(b, dtype, out))
}

/// The machine's shifts clamp amounts beyond the width, as unsigned 32-bit numbers; a narrow type's extension is beyond its width
/// where its bits are.
fn shift_amount(b: &mut Builder, dtype: DType, amount: S) -> S {
    match dtype.bits() {
        64 => {
            let clamped = b.min(IntType::U64, amount, Src::Imm(64));
            b.truncate(clamped)
        }
        bits if bits < 32 && dtype.is_signed_int() => amount,
        _ => amount,
    }
}

/// The quotient: the machine divides by 1 where the divisor is 0 or, of signed types, −1, and the result is selected.
fn divide(b: &mut Builder, dtype: DType, x: S, y: S) -> S {
    let (ty, class) = (int_type(dtype), int_type(dtype).slot().class);
    let zero = b.setp(Compare::Eq, ty.as_compare(), y, Src::Imm(0));
    let mut safe = b.pick(class, zero, constant(dtype, 1), y);
    let all_ones = match (dtype.is_signed_int(), dtype.bits()) {
        (true, _) | (false, 64) => constant(dtype, -1),
        (false, bits) => Src::Imm((1 << bits) - 1),
    };
    if !dtype.is_signed_int() {
        let quotient = b.div(ty, x, safe);
        return b.pick(class, zero, all_ones, quotient);
    }
    let minus_one = b.setp(Compare::Eq, ty.as_compare(), y, constant(dtype, -1));
    safe = b.pick(class, minus_one, constant(dtype, 1), safe);
    let quotient = b.div(ty, x, safe);
    let negated = b.neg(ty, x);
    let quotient = b.pick(class, minus_one, negated, quotient);
    b.pick(class, zero, all_ones, quotient)
}

fn remainder(b: &mut Builder, dtype: DType, x: S, y: S) -> S {
    let (ty, class) = (int_type(dtype), int_type(dtype).slot().class);
    let zero = b.setp(Compare::Eq, ty.as_compare(), y, Src::Imm(0));
    let mut safe = b.pick(class, zero, constant(dtype, 1), y);
    if dtype.is_signed_int() {
        let minus_one = b.setp(Compare::Eq, ty.as_compare(), y, constant(dtype, -1));
        safe = b.pick(class, minus_one, constant(dtype, 1), safe);
    }
    let rest = b.rem(ty, x, safe);
    b.pick(class, zero, x, rest)
}

pub fn compare(b: &mut Builder, op: CompareOp, dtype: DType, x: S, y: S) -> S {
    if dtype == DType::Bool {
        let (not_x, not_y) = (b.not_pred(x), b.not_pred(y));
        return match op {
            CompareOp::Eq => b.logic_pred(Logic::Xor, x, not_y),
            CompareOp::Ne => b.logic_pred(Logic::Xor, x, y),
            CompareOp::Lt => b.both(not_x, y),
            CompareOp::Le => b.either(not_x, y),
            CompareOp::Gt => b.both(x, not_y),
            CompareOp::Ge => b.either(x, not_y),
        };
    }
    let cmp = match op {
        CompareOp::Eq => Compare::Eq,
        CompareOp::Ne => Compare::Ne,
        CompareOp::Lt => Compare::Lt,
        CompareOp::Le => Compare::Le,
        CompareOp::Gt => Compare::Gt,
        CompareOp::Ge => Compare::Ge,
    };
    b.setp(cmp, int_type(dtype).as_compare(), x, y)
}

/// x^n by repeated squaring, n ≥ 0.
pub fn power(b: &mut Builder, dtype: DType, x: S, n: u32) -> S {
    let ty = int_type(dtype);
    let (mut result, mut square, mut n) = (constant(dtype, 1), x, n);
    while n > 0 {
        if n & 1 == 1 {
            result = b.mul(ty, result, square);
        }
        n >>= 1;
        if n > 0 {
            square = b.mul(ty, square, square);
        }
    }
    wrap(b, dtype, result)
}

/// A bool as a number of the integer type.
pub fn from_bool(b: &mut Builder, dtype: DType, p: S) -> S {
    let class = if dtype.bits() == 64 { Class::B64 } else { Class::B32 };
    b.pick(class, p, Src::Imm(1), Src::Imm(0))
}
