//! Products of arrays: `dot_general`, `mma`.
//!
//! Dimensions are brought to `[batch, M, K]` and `[batch, N, K]` (transposes and reshapes, most of which only give registers other names),
//! operands to a type that the arithmetic takes. Products of vectors, and of a matrix and a vector, are multiplications and sums.
use super::op_reader::OpReader;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::kernel_ir::types::num_elements;
use crate::kernel_ir::*;

/// What a product is computed in.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Compute {
    operand: DType,
    arithmetic: DotArithmetic,
}

/// What f32 operands are multiplied as.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Precision {
    /// tf32.
    Default,
    /// As they are.
    Exact,
    /// Rounded to this type first.
    Rounded(DType),
}

/// JAX's `precision`: a `Precision` (of each operand), or a `DotAlgorithmPreset`.
fn precision(r: &mut OpReader<'_>) -> Result<Precision> {
    let Some(text) = r.optional_text("precision")? else {
        return Ok(Precision::Default);
    };
    Ok(match text {
        "f32_f32_f32" | "tf32_tf32_f32_x3" | "bf16_bf16_f32_x3" | "bf16_bf16_f32_x6" | "bf16_bf16_f32_x9" => {
            Precision::Exact
        }
        "tf32_tf32_f32" => Precision::Default,
        "f16_f16_f16" | "f16_f16_f32" => Precision::Rounded(DType::F16),
        "bf16_bf16_bf16" | "bf16_bf16_f32" => Precision::Rounded(DType::BF16),
        "f64_f64_f64" => Precision::Rounded(DType::F64),
        "any_f8_any_f8_any" | "any_f8_any_f8_f32" | "any_f8_any_f8_any_fast_accum" | "any_f8_any_f8_f32_fast_accum" => {
            Precision::Default
        }
        _ => {
            let mut exact = false;
            for one in text.split('+') {
                match one {
                    "default" | "none" => {}
                    "high" | "highest" => exact = true,
                    _ => {
                        return Err(Error::unsupported(format!("`dot_general` with the precision {text:?}"))
                            .remedy("a jax.lax.Precision, or a jax.lax.DotAlgorithmPreset"));
                    }
                }
            }
            if exact { Precision::Exact } else { Precision::Default }
        }
    })
}

/// Whether f16 has all values of the type.
fn fits_f16(d: DType) -> bool {
    d == DType::F16 || d.bits() <= 8 && d != DType::F8E8M0FNU
}

/// The same of bf16: 8 bits of significand.
fn fits_bf16(d: DType) -> bool {
    d == DType::BF16 || d.bits() <= 8
}

/// What to compute the product of these types in, K terms a sum.
fn compute(a: DType, b: DType, to: DType, k: u64, precision: Precision) -> Compute {
    use DType::*;
    let tensor_core = |operand| Compute {
        operand,
        arithmetic: DotArithmetic::TensorCore,
    };
    let multiply_add = |operand| Compute {
        operand,
        arithmetic: DotArithmetic::MultiplyAdd,
    };
    let narrow = |d: DType| d.bits() <= 8;
    let is_exact = |d: DType| !d.is_float();
    if [a, b, to].contains(&F64) || precision == Precision::Rounded(F64) {
        return multiply_add(F64);
    }
    if is_exact(a) && is_exact(b) {
        // Sums of products of bytes that 32 bits hold; those of results of 32 bits and fewer wrap as they should.
        let is_small = |largest: u64| k.saturating_mul(largest) < 1 << 31 || !to.is_float() && to.bits() <= 32;
        let is_signed = |d: DType| d.is_signed_int() || d == Bool;
        let is_unsigned = |d: DType| d.is_unsigned_int() || d == Bool;
        return if narrow(a) && narrow(b) && is_signed(a) && is_signed(b) && is_small(1 << 14) {
            tensor_core(I8)
        } else if narrow(a) && narrow(b) && is_unsigned(a) && is_unsigned(b) && is_small(1 << 16) {
            tensor_core(U8)
        } else if to.is_float() {
            multiply_add(F32)
        } else if to.bits() == 64 {
            multiply_add(I64)
        } else {
            multiply_add(I32)
        };
    }
    match precision {
        Precision::Rounded(d) => return tensor_core(d),
        Precision::Default | Precision::Exact => {}
    }
    let is_fp8 = |d| matches!(d, F8E4M3FN | F8E5M2);
    if precision == Precision::Exact && is_fp8(a) && is_fp8(b) {
        // f16 may be multiplied as what it was made of, with the sums that tensor cores have for 8 bits (`layout::infer::products`).
        tensor_core(BF16)
    } else if fits_f16(a) && fits_f16(b) {
        tensor_core(F16)
    } else if fits_bf16(a) && fits_bf16(b) {
        tensor_core(BF16)
    } else if a.bits() <= 16 && b.bits() <= 16 && a.is_float() && b.is_float() {
        // f16 and bf16: tf32 has all values of both.
        tensor_core(F32)
    } else if precision == Precision::Exact || !a.is_float() && !narrow(a) || !b.is_float() && !narrow(b) {
        // Integers of more than 8 bits have no tf32.
        multiply_add(F32)
    } else {
        tensor_core(F32)
    }
}

fn transposed(r: &mut OpReader<'_>, a: Value, permutation: &[u32]) -> Value {
    if permutation.windows(2).all(|w| w[0] < w[1]) {
        return a;
    }
    let from = r.ty(a).clone();
    let shape: Shape = permutation.iter().map(|&d| from.shape()[d as usize]).collect();
    let permutation = permutation.to_vec();
    r.emit1(OpKind::Transpose { a, permutation }, Type::of(from.dtype(), shape))
}

pub fn dot_general(r: &mut OpReader<'_>) -> Result<()> {
    let operands = [r.value(0)?, r.value(1)?];
    let types = operands.map(|v| r.ty(v).clone());
    let result = r.result_type(0)?;
    let precision = precision(r)?;
    let mut dims: [(Vec<u32>, Vec<u32>); 2] = Default::default();
    for ((names, ty), dims) in [("lhs_contracting", "lhs_batch"), ("rhs_contracting", "rhs_batch")]
        .into_iter()
        .zip(&types)
        .zip(&mut dims)
    {
        let rank = ty.shape().len();
        *dims = (r.dims(names.0, rank)?, r.dims(names.1, rank)?);
        if dims.0.iter().any(|d| dims.1.contains(d)) {
            return Err(r.damaged("a dimension that is contracted and a batch"));
        }
    }
    let extents = |i: usize, of: &[u32]| -> Vec<u64> { of.iter().map(|&d| types[i].shape()[d as usize]).collect() };
    let (batch, contracted) = (extents(0, &dims[0].1), extents(0, &dims[0].0));
    let free: Vec<Vec<u32>> = (0..2)
        .map(|i| {
            let rank = types[i].shape().len() as u32;
            (0..rank)
                .filter(|d| !dims[i].0.contains(d) && !dims[i].1.contains(d))
                .collect()
        })
        .collect();
    let kept: Vec<u64> = [batch.clone(), extents(0, &free[0]), extents(1, &free[1])].concat();
    if batch != extents(1, &dims[1].1) || contracted != extents(1, &dims[1].0) || kept != result.shape() {
        return Err(r
            .damaged("the shapes")
            .got(format!("{} and {} to {result}", types[0], types[1])));
    }
    let [b, k] = [&batch, &contracted].map(|of| num_elements(of));
    let [m, n] = [0, 1].map(|i| num_elements(&extents(i, &free[i])));
    if num_elements(&kept) == 0 || k == 0 {
        return r.declared(OpKind::Constant(Constant::Splat(0)));
    }
    let mut canonical = operands;
    for (i, (v, size)) in canonical.iter_mut().zip([m, n]).enumerate() {
        let permutation: Vec<u32> = [&dims[i].1[..], &free[i], &dims[i].0].concat();
        let array = transposed(r, *v, &permutation);
        let shape = if b == 1 { vec![size, k] } else { vec![b, size, k] };
        *v = r.reshaped(array, &shape)?;
    }
    let product = product(r, canonical, None, result.dtype(), precision)?;
    let product = r.reshaped(product, &kept)?;
    r.results(&[product])
}

/// `acc + a @ b`.
pub fn mma(r: &mut OpReader<'_>) -> Result<()> {
    let (acc, a, b) = (r.value(0)?, r.value(1)?, r.value(2)?);
    let (tc, ta, tb) = (r.ty(acc).clone(), r.ty(a).clone(), r.ty(b).clone());
    match (tc.shape(), ta.shape(), tb.shape()) {
        ([m, n], [ma, k], [kb, nb]) if m == ma && n == nb && k == kb && !ta.shape().contains(&0) && *n > 0 => {}
        _ => return Err(r.damaged("the shapes").got(format!("{tc} += {ta} @ {tb}"))),
    }
    let b = transposed(r, b, &[1, 0]);
    let sum = product(r, [a, b], Some(acc), tc.dtype(), Precision::Default)?;
    r.results(&[sum])
}

/// `acc + a bᵀ` of `[batch, M, K]` and `[batch, N, K]`, or without batches.
fn product(
    r: &mut OpReader<'_>,
    operands: [Value; 2],
    acc: Option<Value>,
    to: DType,
    precision: Precision,
) -> Result<Value> {
    let [ta, tb] = operands.map(|v| r.ty(v).clone());
    let (rank, k) = (ta.shape().len(), ta.shape()[ta.shape().len() - 1]);
    let (m, n) = (ta.shape()[rank - 2], tb.shape()[rank - 2]);
    let how = compute(ta.dtype(), tb.dtype(), to, k, precision);
    let Some(sum) = how.arithmetic.result(how.operand) else {
        return Err(Error::internal(format!("a product of {}", how.operand)));
    };
    let mut shape = ta.shape().to_vec();
    shape[rank - 1] = n;
    let acc = acc.map(|acc| r.converted(acc, sum));
    let out = if k == 1 || m == 1 || n == 1 {
        // Rounded as asked, then exact.
        let operands = operands.map(|v| {
            let v = match precision {
                Precision::Rounded(_) => r.converted(v, how.operand),
                Precision::Default | Precision::Exact => v,
            };
            r.converted(v, sum)
        });
        let product = multiplied(r, operands)?;
        match acc {
            Some(acc) => r.binary(BinaryOp::Add, acc, product),
            None => product,
        }
    } else {
        let [a, b] = operands.map(|v| r.converted(v, how.operand));
        let arithmetic = how.arithmetic;
        let ty = Type::of(sum, super::types::shape(&shape)?);
        r.emit1(OpKind::Dot { acc, a, b, arithmetic }, ty)
    };
    // Sums of bytes without sign are counted without.
    let unsigned = how.operand == DType::U8 && (to.is_float() || to.bits() == 64);
    let out = match unsigned {
        true => r.converted(out, DType::U32),
        false => out,
    };
    Ok(r.converted(out, to))
}

/// The same where M, N or K is 1, by multiplications and sums in the operands' type.
fn multiplied(r: &mut OpReader<'_>, [a, b]: [Value; 2]) -> Result<Value> {
    let [ta, tb] = [a, b].map(|v| r.ty(v).clone());
    let rank = ta.shape().len();
    let (m, k) = (ta.shape()[rank - 2], ta.shape()[rank - 1]);
    let n = tb.shape()[rank - 2];
    let mut shape = ta.shape().to_vec();
    shape[rank - 1] = n;
    if k == 1 {
        // An outer product: one side along M, the other along N.
        let b = {
            let mut row = shape.clone();
            row[rank - 2] = 1;
            r.reshaped(b, &row)?
        };
        let (a, b) = (r.broadcast_to(a, &shape)?, r.broadcast_to(b, &shape)?);
        return Ok(r.binary(BinaryOp::Mul, a, b));
    }
    // The side with one row goes along the other's.
    let mut wide = shape.clone();
    (wide[rank - 2], wide[rank - 1]) = (m.max(n), k);
    let (a, b) = (r.broadcast_to(a, &wide)?, r.broadcast_to(b, &wide)?);
    let product = r.binary(BinaryOp::Mul, a, b);
    let reduce = OpKind::Reduce {
        op: ReduceOp::Sum,
        a: product,
        axes: vec![rank as u32 - 1],
        parallel: None,
    };
    let sum = r.emit1(reduce, Type::of(ta.dtype(), super::types::shape(&wide[..rank - 1])?));
    r.reshaped(sum, &shape)
}
