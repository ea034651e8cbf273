//! Order: numbers as integers of the same order, sorts.
use super::op_reader::OpReader;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::kernel_ir::*;

/// The signed integer type of a width.
fn signed(bits: u32) -> Result<DType> {
    match bits {
        16 => Ok(DType::I16),
        32 => Ok(DType::I32),
        64 => Ok(DType::I64),
        _ => Err(Error::unsupported(format!("an order of numbers of {bits} bits"))
            .remedy("convert them to 16 bits or more first")),
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
    /// None: a key does not determine the element.
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

/// The `first` of ordered keys, and, where `indexed`, from where along the axis each element came.
fn sorted(r: &mut OpReader<'_>, keys: Vec<Value>, axis: u32, indexed: bool, first: u64) -> Vec<Value> {
    let dtypes: Vec<DType> = keys.iter().map(|&k| r.ty(k).dtype()).collect();
    let mut to = Shape::from_slice(r.ty(keys[0]).shape());
    to[axis as usize] = first;
    let types = dtypes.into_iter().chain(indexed.then_some(DType::I32));
    let types: Vec<Type> = types.map(|dtype| Type::of(dtype, to.clone())).collect();
    let kind = OpKind::Sort {
        keys,
        axis,
        indexed,
        first,
    };
    r.emit(kind, types).to_vec()
}

/// The row-major positions in an array of this shape at these indices along an axis, and at the own ones along the others.
fn positions(r: &mut OpReader<'_>, along: Value, shape: &[u64], axis: usize) -> Result<Value> {
    let strides = super::compose::strides_of(shape);
    let to = r.ty(along).clone();
    let mut at = r.binary_int(BinaryOp::Mul, along, strides[axis]);
    for (d, &stride) in strides.iter().enumerate() {
        if d != axis && shape[d] > 1 {
            let i = r.iota(to.shape(), d)?;
            let i = r.binary_int(BinaryOp::Mul, i, stride);
            at = r.binary(BinaryOp::Add, at, i);
        }
    }
    Ok(at)
}

/// The elements of `a` at these indices along an axis, and at the own ones along the others.
fn taken(r: &mut OpReader<'_>, a: Value, from: Value, axis: usize) -> Result<Value> {
    let (whole, to) = (r.ty(a).clone(), r.ty(from).clone());
    let at = positions(r, from, whole.shape(), axis)?;
    let fill = r.splat(&Type::Scalar(whole.dtype()), 0);
    Ok(r.emit1(OpKind::Take { a, at, fill }, to.with_dtype(whole.dtype())))
}

pub fn sort(r: &mut OpReader<'_>) -> Result<()> {
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
    let length = shape[axis as usize];
    if let [x] = operands[..]
        && r.ty(x).dtype().is_float()
    {
        let out = sorted_floats(r, x, axis as usize)?;
        return r.results(&[out]);
    }
    let mut keys = vec![];
    for &v in &operands[..num_keys] {
        keys.push(Key::of(r, v)?);
    }
    let tells_all = |i: usize| keys.get(i).is_some_and(|k| k.back.is_some());
    let indexed = !(0..operands.len()).all(tells_all);
    let out = sorted(r, keys.iter().map(|k| k.key).collect(), axis, indexed, length);
    let mut results = vec![];
    for (i, &v) in operands.iter().enumerate() {
        let dtype = r.ty(v).dtype();
        let def = r.importer.kernel.def_op(v).map(|op| &r.importer.kernel.ops[op].kind);
        results.push(match keys.get(i).and_then(|k| k.back) {
            Some(back) => Key::element(back, r, out[i]),
            // An index along the axis: `argsort`.
            None if matches!(def, Some(OpKind::Iota { dim }) if *dim == axis) => r.converted(out[num_keys], dtype),
            None => taken(r, v, out[num_keys], axis as usize)?,
        });
    }
    r.results(&results)
}

/// Floats in order. A key determines a float but for the sign of a zero and the bits of a NaN: those that are among the elements, which
/// is looked for, are put in their places as they came.
fn sorted_floats(r: &mut OpReader<'_>, x: Value, axis: usize) -> Result<Value> {
    let (dtype, length) = (r.ty(x).dtype(), r.ty(x).shape()[axis]);
    let wide = if dtype.bits() < 16 { DType::F32 } else { dtype };
    let number = r.converted(x, wide);
    let key = order_of(r, number, true)?;
    let key = from_zero(r, key);
    // The keys of -0 and of NaNs have all bits but the first.
    let sign = !greatest(wide.bits());
    let bits = r.binary_int(BinaryOp::Or, key, sign);
    let kind = OpKind::Reduce {
        op: ReduceOp::Max,
        a: bits,
        axes: (0..r.ty(x).shape().len() as u32).collect(),
        parallel: None,
    };
    let most = r.emit1(kind, Type::Scalar(unsigned(wide.bits())));
    let selector = r.compare_int(CompareOp::Eq, most, -1);
    let out = sorted(r, vec![key], axis as u32, false, length)[0];
    let order = r.bits_as(out, signed(wide.bits())?);
    let order = r.binary_int(BinaryOp::Xor, order, sign);
    let plain = key_from_order(r, order, wide, true)?;
    let plain = r.converted(plain, dtype);
    let group = r.group();
    let arms = [(); 2].map(|()| r.importer.kernel.new_region(group));
    let outside = std::mem::replace(&mut r.region, arms[1]);
    let mended = with_special(r, number, x, plain, axis);
    r.region = outside;
    for (arm, result) in arms.into_iter().zip([plain, mended?]) {
        r.importer.kernel.regions[arm].results = vec![result];
    }
    let ty = r.ty(x).clone();
    let arms = arms.to_vec();
    Ok(r.emit1(OpKind::Switch { selector, arms }, ty))
}

/// `plain`, ordered floats, with the zeros and the NaNs among `x` in their places, as they came. `number`: `x` in a type to compare.
fn with_special(r: &mut OpReader<'_>, number: Value, x: Value, plain: Value, axis: usize) -> Result<Value> {
    let shape = r.ty(x).shape().to_vec();
    // Two counts in one integer.
    let (dtype, half) = if shape[axis] < 1 << 15 {
        (DType::I32, 16)
    } else {
        (DType::I64, 32)
    };
    let counts = r.ty(x).with_dtype(dtype);
    let zero = r.splat(&r.ty(number).clone(), 0);
    let is_zero = r.compare(CompareOp::Eq, number, zero);
    let is_nan = r.compare(CompareOp::Ne, number, number);
    let is_less = r.compare(CompareOp::Lt, number, zero);
    let [none, low, high, both] = [0, 1, 1 << half, (1 << half) + 1].map(|n| r.int_splat(&counts, n));
    let own = r.choose(is_nan, high, none);
    let own = r.choose(is_zero, low, own);
    let kind = OpKind::Cumulative {
        op: CumulativeOp::Sum,
        a: own,
        axis: axis as u32,
        reverse: false,
    };
    let ranks = r.emit1(kind, counts.clone());
    // What is less than zero is before zeros, what is a number is before NaNs.
    let before = r.choose(is_nan, none, high);
    let before = r.choose(is_less, both, before);
    let mut kept = Shape::from_slice(&shape);
    kept.remove(axis);
    let kind = OpKind::Reduce {
        op: ReduceOp::Sum,
        a: before,
        axes: vec![axis as u32],
        parallel: None,
    };
    let before = r.emit1(kind, Type::of(dtype, kept));
    let dims = (0..shape.len() as u32).filter(|d| *d as usize != axis).collect();
    let before = r.broadcast(before, &shape, dims)?;
    let places = r.binary(BinaryOp::Add, ranks, before);
    let of_zeros = r.binary_int(BinaryOp::And, places, (1 << half) - 1);
    let of_nans = r.binary_int(BinaryOp::ShiftRightArithmetic, places, half);
    let place = r.choose(is_nan, of_nans, of_zeros);
    let place = r.binary_int(BinaryOp::Sub, place, 1);
    let place = r.converted(place, DType::I32);
    let at = positions(r, place, &shape, axis)?;
    let outside = r.int_splat(&r.ty(at).clone(), -1);
    let is_special = r.binary(BinaryOp::Or, is_zero, is_nan);
    let at = r.choose(is_special, at, outside);
    let kind = OpKind::Put {
        op: PutOp::Set,
        a: plain,
        at,
        update: x,
        distinct: true,
    };
    let ty = r.ty(x).clone();
    Ok(r.emit1(kind, ty))
}

pub fn top_k(r: &mut OpReader<'_>) -> Result<()> {
    let a = r.value(0)?;
    let shape = r.ty(a).shape().to_vec();
    let axis = r.dim("axis", shape.len())? as usize;
    let k = u64::from(r.count("k")?);
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
    let first = sorted(r, vec![down], axis as u32, true, k);
    let up = r.unary(UnaryOp::Not, first[0]);
    let back = back.ok_or_else(|| r.damaged("keys that are no integers"))?;
    let mut values = Key::element(back, r, up);
    if dtype.is_float() {
        values = flip(r, values, wide.bits());
        values = r.bits_as(values, wide);
        values = r.converted(values, dtype);
    }
    r.results(&[values, first[1]])
}

/// The first index of the extreme element along a dimension, NaN being one: of what equals the extreme, the least index.
pub fn arg_reduce(r: &mut OpReader<'_>, op: ArgReduceOp, a: Value, axis: u32, to: Type) -> Result<()> {
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
