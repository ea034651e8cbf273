//! Which op there is of which element type: what lowering has, no more and no less (`tests/lower/legality.rs` tries all of them).
//!
//! Floats of at most 32 bits are computed in f32 where the machine does not have them, and rounded. Nothing rounds to e8m0, which has
//! no sign and no zero.
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::kernel_ir::{AtomicOp, BinaryOp, CumulativeOp, OpKind, PutOp, ReduceOp, UnaryOp};

/// Refuses an op of a type.
pub fn is_defined(kind: &OpKind, dtype: DType, defined: bool) -> Result<()> {
    if defined {
        return Ok(());
    }
    Err(
        Error::unsupported(format!("{} of {dtype}", kind.name())).remedy(match dtype {
            DType::F64 | DType::F8E8M0FNU => "compute it in f32",
            _ => "compute it in another type, or outside of the kernel",
        }),
    )
}

/// A float that results are rounded to from f32.
fn is_rounded(dtype: DType) -> bool {
    dtype.is_float() && !matches!(dtype, DType::F64 | DType::F8E8M0FNU)
}

pub fn unary(op: UnaryOp, dtype: DType) -> bool {
    use UnaryOp::*;
    match op {
        Not => !dtype.is_float(),
        CountLeadingZeros | PopulationCount => dtype.is_int(),
        Neg | Abs => dtype != DType::Bool,
        Sign => dtype.is_int() || dtype == DType::F64 || is_rounded(dtype),
        Floor | Ceil | RoundAwayFromZero | RoundToEven | Sqrt | Rsqrt => dtype == DType::F64 || is_rounded(dtype),
        IsFinite => dtype.is_float(),
        RoundToTf32 => is_rounded(dtype),
        Lgamma => false,
        Exp | Exp2 | Expm1 | Log | Log1p | Log2 | Cbrt | Sin | Cos | Tan | Asin | Acos | Atan | Sinh | Cosh | Tanh
        | Asinh | Acosh | Atanh | Erf | Erfc | ErfInv | Logistic => is_rounded(dtype),
    }
}

pub fn binary(op: BinaryOp, dtype: DType) -> bool {
    use BinaryOp::*;
    match op {
        Add | Mul | Max | Min => dtype != DType::F8E8M0FNU,
        Sub | Div => dtype.is_int() || dtype == DType::F64 || is_rounded(dtype),
        Rem => dtype.is_int() || is_rounded(dtype),
        And | Or | Xor => !dtype.is_float(),
        ShiftLeft | ShiftRightLogical | ShiftRightArithmetic => dtype.is_int(),
        Pow | Atan2 => is_rounded(dtype),
        NextAfter => matches!(dtype, DType::F32 | DType::F64),
        CopySign => dtype.is_float(),
    }
}

pub fn integer_pow(n: i32, dtype: DType) -> bool {
    dtype.is_int() && n >= 0 || dtype == DType::F64 || is_rounded(dtype)
}

pub fn reduce_precision(dtype: DType) -> bool {
    is_rounded(dtype)
}

pub fn reduce(op: ReduceOp, dtype: DType) -> bool {
    match op {
        ReduceOp::Sum | ReduceOp::Prod | ReduceOp::Max | ReduceOp::Min => dtype != DType::F8E8M0FNU,
        ReduceOp::And | ReduceOp::Or | ReduceOp::Xor => !dtype.is_float(),
    }
}

pub fn cumulative(op: CumulativeOp, dtype: DType) -> bool {
    match op {
        CumulativeOp::Sum | CumulativeOp::Prod | CumulativeOp::Max | CumulativeOp::Min => dtype != DType::F8E8M0FNU,
        CumulativeOp::LogSumExp => is_rounded(dtype),
    }
}

pub fn put(op: PutOp, dtype: DType) -> bool {
    op == PutOp::Set || dtype != DType::F8E8M0FNU
}

pub fn atomic(op: AtomicOp, dtype: DType) -> Result<()> {
    let defined = match dtype {
        DType::F32 | DType::F64 => op == AtomicOp::Add,
        DType::F16 | DType::BF16 => matches!(op, AtomicOp::Add | AtomicOp::Max | AtomicOp::Min),
        _ => dtype.is_int() && dtype.bits() >= 32,
    };
    if defined {
        return Ok(());
    }
    Err(Error::unsupported(format!("atomic_update: {} of {dtype}", op.name()))
        .remedy("update int32, uint32, int64 or uint64; add float32 or float64; or add, maximum or minimum of float16 or bfloat16"))
}

/// What `red.async` does.
pub fn async_reduction(op: AtomicOp, dtype: DType) -> Result<()> {
    let defined = match dtype {
        DType::I32 | DType::U32 => true,
        DType::I64 | DType::U64 => op == AtomicOp::Add,
        _ => false,
    };
    if defined {
        return Ok(());
    }
    let what = format!(
        "async_store_smem: reductions into another block's shared memory: {} of {dtype}",
        op.name()
    );
    Err(Error::unsupported(what)
        .expected("int32 or uint32; int64 or uint64 with atomic=\"add\"")
        .remedy("store each block's part in a place of its own (async_store_smem without `atomic`), and let the block that waits for them reduce; or convert to int32"))
}

pub fn convert(from: DType, to: DType) -> Result<()> {
    if from != to && to == DType::F8E8M0FNU {
        return Err(Error::unsupported("conversion to float8_e8m0fnu")
            .remedy("compute the exponents plus 127 as uint8, and bitcast them"));
    }
    Ok(())
}

pub fn bitcast(from: DType, to: DType) -> Result<()> {
    if from == DType::Bool || to == DType::Bool {
        return Err(Error::unsupported("a bitcast of bool").remedy("convert it, or compare with 0"));
    }
    Ok(())
}
