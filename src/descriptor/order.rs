//! Order: numbers as integers of the same order, sorts.
use super::op_reader::OpReader;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::kernel_ir::*;

/// Elements of a part of a long row: eight of each lane of a warp.
const PART: u64 = 256;

/// The signed integer type of a width.
fn signed(bits: u32) -> Result<DType> {
    match bits {
        16 => Ok(DType::I16),
        32 => Ok(DType::I32),
        64 => Ok(DType::I64),
        _ => Err(Error::unsupported(format!("an order of numbers of {bits} bits"))),
    }
}

/// The greatest number of a signed integer type.
fn greatest(bits: u32) -> i64 {
    i64::MAX >> (64 - bits)
}

/// Floats of 16 bits or more as signed integers of the same order, −0 below +0. NaNs are one, the greatest or the least.
pub fn order_of(r: &mut OpReader<'_>, x: Value, nan_is_greatest: bool) -> Result<Value> {
    let bits = r.ty(x).dtype().bits();
    let key = flipped(r, x)?;
    let ty = r.ty(key).clone();
    let most = greatest(bits);
    let extreme = r.int_splat(&ty, if nan_is_greatest { most } else { !most });
    let is_nan = r.compare(CompareOp::Ne, x, x);
    Ok(r.choose(is_nan, extreme, key))
}

/// The float whose [`order_of`] it is.
pub fn key_from_order(r: &mut OpReader<'_>, key: Value, dtype: DType, nan_is_greatest: bool) -> Result<Value> {
    let bits = dtype.bits();
    let most = greatest(bits);
    let x = flip(r, key, bits);
    let x = r.bits_as(x, dtype);
    let is_nan = r.compare_int(CompareOp::Eq, key, if nan_is_greatest { most } else { !most });
    let ty = r.ty(x).clone();
    let nan = r.splat(&ty, nan_of(dtype)?);
    Ok(r.choose(is_nan, nan, x))
}

/// The bits of a float as a signed integer of the same order.
fn flipped(r: &mut OpReader<'_>, x: Value) -> Result<Value> {
    let bits = r.ty(x).dtype().bits();
    let key = r.bits_as(x, signed(bits)?);
    Ok(flip(r, key, bits))
}

/// All bits of negative numbers but the sign.
fn flip(r: &mut OpReader<'_>, key: Value, bits: u32) -> Value {
    let sign = r.binary_int(BinaryOp::ShiftRightArithmetic, key, i64::from(bits) - 1);
    let mask = r.binary_int(BinaryOp::And, sign, greatest(bits));
    r.binary(BinaryOp::Xor, key, mask)
}

/// The quiet NaN of a type.
fn nan_of(dtype: DType) -> Result<u64> {
    match dtype {
        DType::F64 => Ok(0x7ff8_0000_0000_0000),
        DType::F32 => Ok(0x7fc0_0000),
        DType::F16 => Ok(0x7e00),
        DType::BF16 => Ok(0x7fc0),
        _ => Err(Error::internal(format!("an order of {dtype}"))),
    }
}

/// Imports the op if it is one of these; false if it is not.
pub fn import(r: &mut OpReader<'_>) -> Result<bool> {
    match r.op.primitive.as_str() {
        "sort" => sort(r)?,
        "top_k" => top_k(r)?,
        _ => return Ok(false),
    }
    Ok(true)
}

/// The unsigned integer type of a width.
fn unsigned(bits: u32) -> DType {
    match bits {
        64 => DType::U64,
        32 => DType::U32,
        16 => DType::U16,
        _ => DType::U8,
    }
}

/// What an array is sorted by, and how the elements come back from it.
struct Key {
    key: Value,
    /// None: keys do not tell all of an element.
    back: Option<Back>,
}

#[derive(Clone, Copy)]
struct Back {
    dtype: DType,
    /// In between: of whole bytes.
    wide: DType,
}

impl Key {
    /// Unsigned integers in lax's order: zeros are equal, NaNs are equal and last.
    fn of(r: &mut OpReader<'_>, x: Value) -> Result<Key> {
        let dtype = r.ty(x).dtype();
        if dtype.is_float() {
            let x = if dtype.bits() < 16 {
                r.converted(x, DType::F32)
            } else {
                x
            };
            let ty = r.ty(x).clone();
            let zero = r.splat(&ty, 0);
            let is_zero = r.compare(CompareOp::Eq, x, zero);
            let x = r.choose(is_zero, zero, x);
            let key = order_of(r, x, true)?;
            return Ok(Key {
                key: from_zero(r, key),
                back: None,
            });
        }
        let wide = match dtype {
            DType::Bool => DType::U8,
            d if d.bits() >= 8 => d,
            d if d.is_signed_int() => DType::I8,
            _ => DType::U8,
        };
        let x = r.converted(x, wide);
        Ok(Key {
            key: from_zero(r, x),
            back: Some(Back { dtype, wide }),
        })
    }

    fn element(back: Back, r: &mut OpReader<'_>, key: Value) -> Value {
        let x = match back.wide.is_signed_int() {
            true => {
                let x = r.bits_as(key, back.wide);
                r.binary_int(BinaryOp::Xor, x, !greatest(back.wide.bits()))
            }
            false => key,
        };
        r.converted(x, back.dtype)
    }
}

/// Integers as unsigned ones of the same order.
fn from_zero(r: &mut OpReader<'_>, x: Value) -> Value {
    let dtype = r.ty(x).dtype();
    if !dtype.is_signed_int() {
        return x;
    }
    let x = r.binary_int(BinaryOp::Xor, x, !greatest(dtype.bits()));
    r.bits_as(x, unsigned(dtype.bits()))
}

/// Sorts keys; the sorted ones, and from where along the axis each element came.
fn sorted(r: &mut OpReader<'_>, keys: Vec<Value>, axis: u32) -> Vec<Value> {
    let mut types: Vec<Type> = keys.iter().map(|&k| r.ty(k).clone()).collect();
    types.push(types[0].with_dtype(DType::I32));
    r.emit(OpKind::Sort { keys, axis }, types).to_vec()
}

/// The elements of `a` at these indices along an axis, and at the own ones along the others.
fn taken(r: &mut OpReader<'_>, a: Value, from: Value, axis: usize) -> Result<Value> {
    let (whole, to) = (r.ty(a).clone(), r.ty(from).clone());
    let strides = super::compose::strides_of(whole.shape());
    let mut at = r.binary_int(BinaryOp::Mul, from, strides[axis]);
    for (d, &stride) in strides.iter().enumerate() {
        if d != axis && whole.shape()[d] > 1 {
            let i = r.iota(to.shape(), d)?;
            let i = r.binary_int(BinaryOp::Mul, i, stride);
            at = r.binary(BinaryOp::Add, at, i);
        }
    }
    let fill = r.splat(&Type::Scalar(whole.dtype()), 0);
    Ok(r.emit1(OpKind::Take { a, at, fill }, to.with_dtype(whole.dtype())))
}

fn sort(r: &mut OpReader<'_>) -> Result<()> {
    let operands = r.values_from(0)?;
    let Some(&first) = operands.first() else {
        return Err(r.damaged("nothing to sort"));
    };
    let shape = r.ty(first).shape().to_vec();
    if operands.iter().any(|&v| r.ty(v).shape() != shape) {
        return Err(r.damaged("operands of different shapes"));
    }
    let num_keys = r.count("num_keys")? as usize;
    // A sort that need not be stable may be.
    r.bool_or("is_stable", true)?;
    if !(1..=operands.len()).contains(&num_keys) {
        return Err(r.damaged("`num_keys`").got(num_keys.to_string()));
    }
    let axis = r.dim("dimension", shape.len())?;
    if num_elements(&shape) == 0 || shape[axis as usize] == 1 {
        return r.results(&operands);
    }
    let mut keys = vec![];
    for &v in &operands[..num_keys] {
        keys.push(Key::of(r, v)?);
    }
    let out = sorted(r, keys.iter().map(|k| k.key).collect(), axis);
    let from = out[num_keys];
    let mut results = vec![];
    for (i, &v) in operands.iter().enumerate() {
        let dtype = r.ty(v).dtype();
        let def = r.importer.kernel.def_op(v).map(|op| &r.importer.kernel.ops[op].kind);
        results.push(match keys.get(i).and_then(|k| k.back) {
            Some(back) => Key::element(back, r, out[i]),
            // An index along the axis: `argsort`.
            None if matches!(def, Some(OpKind::Iota { dim }) if *dim == axis) => r.converted(from, dtype),
            None => taken(r, v, from, axis as usize)?,
        });
    }
    r.results(&results)
}

/// The `k` least of unsigned integers along an axis, in order, and from where they came; among equals, as they came.
///
/// Long rows are taken apart: what is among the first of all is among the first of its part, and short sorts stay within a warp.
fn first_of(r: &mut OpReader<'_>, keys: Value, axis: usize, k: u64) -> Result<(Value, Value)> {
    let shape = r.ty(keys).shape().to_vec();
    let n = shape[axis];
    let zeros = vec![0; shape.len()];
    let mut to = shape.clone();
    to[axis] = k;
    let long = n / PART >= 4 && n.is_multiple_of(PART) && 8 * k <= PART;
    if !long || axis + 1 != shape.len() {
        let out = sorted(r, vec![keys], axis as u32);
        return Ok((r.part(out[0], zeros.clone(), &to)?, r.part(out[1], zeros, &to)?));
    }
    let mut parts = shape[..axis].to_vec();
    parts.extend([n / PART, PART]);
    let within = r.reshaped(keys, &parts)?;
    let out = sorted(r, vec![within], axis as u32 + 1);
    parts[axis + 1] = k;
    let start = vec![0; parts.len()];
    let (least, from) = (r.part(out[0], start.clone(), &parts)?, r.part(out[1], start, &parts)?);
    let part = r.iota(&parts, axis)?;
    let part = r.binary_int(BinaryOp::Mul, part, PART as i64);
    let from = r.binary(BinaryOp::Add, from, part);
    let from = r.converted(from, DType::U32);
    let mut candidates = shape;
    candidates[axis] = n / PART * k;
    let (least, from) = (r.reshaped(least, &candidates)?, r.reshaped(from, &candidates)?);
    // Where they came from is in order among equals, and so a key like any other.
    let out = sorted(r, vec![least, from], axis as u32);
    let (least, from) = (r.part(out[0], zeros.clone(), &to)?, r.part(out[1], zeros, &to)?);
    Ok((least, r.converted(from, DType::I32)))
}

fn top_k(r: &mut OpReader<'_>) -> Result<()> {
    r.arity(1)?;
    let a = r.value(0)?;
    let shape = r.ty(a).shape().to_vec();
    let axis = r.dim("axis", shape.len())? as usize;
    let k = u64::from(r.count("k")?);
    r.ignore("is_stable");
    if k > shape[axis] {
        return Err(r.damaged("`k`").got(k.to_string()));
    }
    let indices = r.result_type(1)?;
    if indices.dtype() != DType::I32 {
        return Err(r.damaged("the indices' type").got(indices.to_string()));
    }
    let mut part = shape.clone();
    part[axis] = k;
    if num_elements(&part) == 0 {
        let values = r.result_type(0)?;
        let (values, indices) = (r.int_splat(&values, 0), r.int_splat(&indices, 0));
        return r.results(&[values, indices]);
    }
    // Floats in total order, −0 below +0 and NaNs at the ends, as XLA has them.
    let dtype = r.ty(a).dtype();
    let wide = match dtype {
        d if d.is_float() && d.bits() < 16 => DType::F32,
        d => d,
    };
    let key = if dtype.is_float() {
        let x = r.converted(a, wide);
        flipped(r, x)?
    } else {
        a
    };
    let Key { key, back } = Key::of(r, key)?;
    // The greatest first; among equals, as they came.
    let down = r.unary(UnaryOp::Not, key);
    let (first, from) = first_of(r, down, axis, k)?;
    let up = r.unary(UnaryOp::Not, first);
    let back = back.ok_or_else(|| r.damaged("keys that are no integers"))?;
    let mut values = Key::element(back, r, up);
    if dtype.is_float() {
        values = flip(r, values, wide.bits());
        values = r.bits_as(values, wide);
        values = r.converted(values, dtype);
    }
    r.results(&[values, from])
}

/// The first index of the extreme element along a dimension, NaN being one: of what equals the extreme, the least index.
pub fn arg_reduce(r: &mut OpReader<'_>, op: ArgReduceOp, a: Value, axis: u32, to: Type) -> Result<()> {
    let a = if r.ty(a).dtype() == DType::Bool {
        r.converted(a, DType::U32)
    } else {
        a
    };
    let whole = r.ty(a).clone();
    let reduced = |dtype: DType| Type::of(dtype, to.shape());
    let reduce = |r: &mut OpReader<'_>, op, a, ty| {
        let kind = OpKind::Reduce {
            op,
            a,
            axes: vec![axis],
            parallel: None,
        };
        r.emit1(kind, ty)
    };
    let extreme = match op {
        ArgReduceOp::ArgMax => ReduceOp::Max,
        ArgReduceOp::ArgMin => ReduceOp::Min,
    };
    let extreme = reduce(r, extreme, a, reduced(whole.dtype()));
    let kept = (0..whole.shape().len() as u32).filter(|d| *d != axis).collect();
    let extreme = r.broadcast(extreme, whole.shape(), kept)?;
    let mut found = r.compare(CompareOp::Eq, a, extreme);
    if whole.dtype().is_float() {
        let is_nan = r.compare(CompareOp::Ne, a, a);
        found = r.binary(BinaryOp::Or, found, is_nan);
    }
    let index = r.iota(whole.shape(), axis as usize)?;
    let ty = r.ty(index).clone();
    let none = r.int_splat(&ty, i64::from(i32::MAX));
    let index = r.choose(found, index, none);
    let index = reduce(r, ReduceOp::Min, index, reduced(DType::I32));
    let index = r.converted(index, to.dtype());
    r.results(&[index])
}
