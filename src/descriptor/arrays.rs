//! Ops on values: element-wise, conversions, shapes, reductions.
use super::decode::newer;
use super::op_reader::OpReader;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::kernel_ir::*;

fn is_number(d: DType) -> bool {
    d != DType::Bool
}
fn is_bits(d: DType) -> bool {
    d == DType::Bool || d.is_int()
}

/// Imports the op if it is one of these; false if it is not.
pub fn import(r: &mut OpReader<'_>) -> Result<bool> {
    use BinaryOp as B;
    use UnaryOp as U;
    let float = DType::is_float as fn(DType) -> bool;
    let int = DType::is_int as fn(DType) -> bool;
    match r.op.primitive.as_str() {
        "neg" => unary(r, U::Neg, is_number)?,
        "not" => unary(r, U::Not, is_bits)?,
        "abs" => unary(r, U::Abs, is_number)?,
        "sign" => unary(r, U::Sign, is_number)?,
        "exp" => unary(r, U::Exp, float)?,
        "exp2" => unary(r, U::Exp2, float)?,
        "log" => unary(r, U::Log, float)?,
        "log2" => unary(r, U::Log2, float)?,
        "log1p" => unary(r, U::Log1p, float)?,
        "expm1" => unary(r, U::Expm1, float)?,
        "sin" => unary(r, U::Sin, float)?,
        "cos" => unary(r, U::Cos, float)?,
        "tan" => unary(r, U::Tan, float)?,
        "tanh" => unary(r, U::Tanh, float)?,
        "sinh" => unary(r, U::Sinh, float)?,
        "cosh" => unary(r, U::Cosh, float)?,
        "asin" => unary(r, U::Asin, float)?,
        "acos" => unary(r, U::Acos, float)?,
        "atan" => unary(r, U::Atan, float)?,
        "asinh" => unary(r, U::Asinh, float)?,
        "acosh" => unary(r, U::Acosh, float)?,
        "atanh" => unary(r, U::Atanh, float)?,
        "erf" => unary(r, U::Erf, float)?,
        "erfc" => unary(r, U::Erfc, float)?,
        "erf_inv" => unary(r, U::ErfInv, float)?,
        "lgamma" => unary(r, U::Lgamma, float)?,
        "rsqrt" => unary(r, U::Rsqrt, float)?,
        "sqrt" => unary(r, U::Sqrt, float)?,
        "cbrt" => unary(r, U::Cbrt, float)?,
        "logistic" => unary(r, U::Logistic, float)?,
        "floor" => unary(r, U::Floor, float)?,
        "ceil" => unary(r, U::Ceil, float)?,
        "clz" => unary(r, U::CountLeadingZeros, int)?,
        "population_count" => unary(r, U::PopulationCount, int)?,
        "is_finite" => {
            let a = operand(r, 0, float)?;
            r.arity(1)?;
            let ty = r.ty(a).with_dtype(DType::Bool);
            r.result(OpKind::Unary { op: U::IsFinite, a }, ty)?
        }
        "round" => match r.text("rounding_method")? {
            "away_from_zero" => unary(r, U::RoundAwayFromZero, float)?,
            "to_nearest_even" => unary(r, U::RoundToEven, float)?,
            other => return Err(newer(format!("`round` with the method {other:?}"))),
        },
        "copy" | "stop_gradient" => identity(r)?,
        "square" | "one_minus_square" => {
            let a = operand(r, 0, is_number)?;
            r.arity(1)?;
            let ty = r.ty(a).clone();
            if r.op.primitive == "square" {
                r.result(OpKind::Binary { op: B::Mul, a, b: a }, ty)?
            } else {
                // As lax defines it: (1 − x)·(1 + x).
                let one = one(r, &ty)?;
                let low = r.emit1(
                    OpKind::Binary {
                        op: B::Sub,
                        a: one,
                        b: a,
                    },
                    ty.clone(),
                );
                let high = r.emit1(
                    OpKind::Binary {
                        op: B::Add,
                        a: one,
                        b: a,
                    },
                    ty.clone(),
                );
                r.result(
                    OpKind::Binary {
                        op: B::Mul,
                        a: low,
                        b: high,
                    },
                    ty,
                )?
            }
        }
        "reciprocal" => {
            let b = operand(r, 0, float)?;
            r.arity(1)?;
            r.ignore("approx");
            r.ignore("full_range");
            let ty = r.ty(b).clone();
            let a = one(r, &ty)?;
            r.result(OpKind::Binary { op: B::Div, a, b }, ty)?
        }
        "integer_pow" => {
            let a = operand(r, 0, is_number)?;
            r.arity(1)?;
            let y = r.int("y")?;
            let n = i32::try_from(y).map_err(|_| {
                Error::unsupported(format!("`integer_pow` with the exponent {y}"))
                    .remedy("jnp.power(x, y) with y as an array")
            })?;
            let ty = r.ty(a).clone();
            r.result(OpKind::IntegerPow { a, n }, ty)?
        }

        "add" | "add_any" => binary(r, B::Add, B::Or, is_number)?,
        "sub" => binary(r, B::Sub, B::Sub, is_number)?,
        "mul" => binary(r, B::Mul, B::And, is_number)?,
        "div" => binary(r, B::Div, B::Div, is_number)?,
        "rem" => binary(r, B::Rem, B::Rem, is_number)?,
        "max" => binary(r, B::Max, B::Or, is_number)?,
        "min" => binary(r, B::Min, B::And, is_number)?,
        "and" => binary(r, B::And, B::And, is_bits)?,
        "or" => binary(r, B::Or, B::Or, is_bits)?,
        "xor" => binary(r, B::Xor, B::Xor, is_bits)?,
        "shift_left" => binary(r, B::ShiftLeft, B::ShiftLeft, int)?,
        "shift_right_logical" => binary(r, B::ShiftRightLogical, B::ShiftRightLogical, int)?,
        "shift_right_arithmetic" => binary(r, B::ShiftRightArithmetic, B::ShiftRightArithmetic, int)?,
        "atan2" => binary(r, B::Atan2, B::Atan2, float)?,
        "nextafter" => binary(r, B::NextAfter, B::NextAfter, float)?,
        "copysign" => binary(r, B::CopySign, B::CopySign, float)?,
        "pow" => {
            r.arity(2)?;
            let a = operand(r, 0, float)?;
            let mut b = r.value(1)?;
            let to = r.ty(a).dtype();
            if r.ty(b).dtype() != to {
                let ty = r.ty(b).with_dtype(to);
                b = r.emit1(OpKind::Convert { a: b }, ty);
            }
            let (a, b, ty) = same_shape(r, a, b)?;
            r.result(OpKind::Binary { op: B::Pow, a, b }, ty)?
        }

        "eq" => compare(r, CompareOp::Eq)?,
        "ne" => compare(r, CompareOp::Ne)?,
        "lt" => compare(r, CompareOp::Lt)?,
        "le" => compare(r, CompareOp::Le)?,
        "gt" => compare(r, CompareOp::Gt)?,
        "ge" => compare(r, CompareOp::Ge)?,

        "select_n" => select(r)?,
        "clamp" => {
            r.arity(3)?;
            let x = operand(r, 1, is_number)?;
            let ty = r.ty(x).clone();
            let mut bound = |i: usize| -> Result<Value> {
                let v = r.value(i)?;
                if r.ty(v).dtype() != ty.dtype() {
                    return Err(r.damaged("bounds of another type"));
                }
                r.broadcast_to(v, ty.shape())
            };
            let (lo, hi) = (bound(0)?, bound(2)?);
            r.result(OpKind::Clamp { lo, x, hi }, ty)?
        }
        "convert_element_type" => {
            r.arity(1)?;
            let a = r.value(0)?;
            let to = r.dtype("new_dtype")?;
            let ty = r.ty(a).with_dtype(to);
            if *r.ty(a) == ty {
                r.results(&[a])?
            } else {
                r.result(OpKind::Convert { a }, ty)?
            }
        }
        "bitcast_convert_type" => bitcast(r)?,
        "reduce_precision" => {
            r.arity(1)?;
            let a = operand(r, 0, float)?;
            let (exponent_bits, mantissa_bits) = (r.count("exponent_bits")?, r.count("mantissa_bits")?);
            if exponent_bits == 0 || exponent_bits > 11 || mantissa_bits > 52 {
                return Err(r.damaged("the precision"));
            }
            let ty = r.ty(a).clone();
            r.result(
                OpKind::ReducePrecision {
                    a,
                    exponent_bits,
                    mantissa_bits,
                },
                ty,
            )?
        }

        "broadcast_in_dim" => {
            r.arity(1)?;
            let a = r.value(0)?;
            r.ignore("shape");
            let ty = r.result_type(0)?;
            let dims = r.dims("broadcast_dimensions", ty.shape().len())?;
            let from = r.ty(a).clone();
            let fits = dims.len() == from.shape().len()
                && dims.windows(2).all(|w| w[0] < w[1])
                && dims
                    .iter()
                    .zip(from.shape())
                    .all(|(&d, &n)| n == 1 || n == ty.shape()[d as usize])
                && ty.dtype() == from.dtype();
            if !fits {
                return Err(r.damaged("the broadcast").got(format!("{from} to {ty} along {dims:?}")));
            }
            if from == ty {
                r.results(&[a])?
            } else {
                r.result(OpKind::Broadcast { a, dims }, ty)?
            }
        }
        "broadcast_to" => {
            r.arity(1)?;
            let a = r.value(0)?;
            r.ignore("shape");
            let (from, ty) = (r.ty(a).clone(), r.result_type(0)?);
            let (n, rank) = (from.shape().len(), ty.shape().len());
            let fits = n <= rank
                && from.dtype() == ty.dtype()
                && from
                    .shape()
                    .iter()
                    .zip(&ty.shape()[rank - n..])
                    .all(|(&m, &n)| m == 1 || m == n);
            if !fits {
                return Err(r.damaged("the broadcast").got(format!("{from} to {ty}")));
            }
            let out = r.broadcast(a, ty.shape(), (rank - n..rank).map(|d| d as u32).collect())?;
            r.results(&[out])?
        }
        "iota" => {
            r.arity(0)?;
            r.ignore("shape");
            r.ignore("dtype");
            let ty = r.result_type(0)?;
            let dim = r.dim("dimension", ty.shape().len())?;
            if ty.dtype() == DType::Bool {
                return Err(r.damaged("an iota of bool"));
            }
            r.result(OpKind::Iota { dim }, ty)?
        }
        "reshape" => {
            r.ignore("new_sizes");
            reshape(r)?
        }
        "squeeze" | "expand_dims" => {
            r.ignore("dimensions");
            reshape(r)?
        }
        "transpose" => {
            r.arity(1)?;
            let a = r.value(0)?;
            let from = r.ty(a).clone();
            let permutation = r.dims("permutation", from.shape().len())?;
            if permutation.len() != from.shape().len() {
                return Err(r.damaged("the permutation"));
            }
            let to = permutation.iter().map(|&p| from.shape()[p as usize]).collect::<Shape>();
            if from.is_scalar() {
                r.results(&[a])?
            } else {
                r.result(OpKind::Transpose { a, permutation }, Type::of(from.dtype(), to))?
            }
        }
        "rev" => {
            r.arity(1)?;
            let a = r.value(0)?;
            let ty = r.ty(a).clone();
            let dims = r.dims("dimensions", ty.shape().len())?;
            if dims.is_empty() {
                r.results(&[a])?
            } else {
                r.result(OpKind::Reverse { a, dims }, ty)?
            }
        }
        "slice" => slice(r)?,
        "split" => split(r)?,
        "dynamic_slice" => {
            let a = r.value(0)?;
            r.ignore("slice_sizes");
            let (from, ty) = (r.ty(a).clone(), r.result_type(0)?);
            let starts = starts(r, 1, from.shape().len())?;
            within(r, &ty, &from)?;
            r.result(OpKind::DynamicSlice { a, starts }, ty)?
        }
        "dynamic_update_slice" => {
            let (a, update) = (r.value(0)?, r.value(1)?);
            let (ty, part) = (r.ty(a).clone(), r.ty(update).clone());
            let starts = starts(r, 2, ty.shape().len())?;
            within(r, &part, &ty)?;
            r.result(OpKind::DynamicUpdateSlice { a, update, starts }, ty)?
        }
        "concatenate" => concatenate(r)?,
        "stack" => stack(r)?,
        "tile" => tile(r)?,
        "pad" => pad(r)?,

        "reduce_sum" => reduce(r, ReduceOp::Sum, ReduceOp::Or, is_number)?,
        "reduce_prod" => reduce(r, ReduceOp::Prod, ReduceOp::And, is_number)?,
        "reduce_max" => reduce(r, ReduceOp::Max, ReduceOp::Or, is_number)?,
        "reduce_min" => reduce(r, ReduceOp::Min, ReduceOp::And, is_number)?,
        "reduce_and" => reduce(r, ReduceOp::And, ReduceOp::And, is_bits)?,
        "reduce_or" => reduce(r, ReduceOp::Or, ReduceOp::Or, is_bits)?,
        "reduce_xor" => reduce(r, ReduceOp::Xor, ReduceOp::Xor, is_bits)?,
        "argmax" => arg_reduce(r, ArgReduceOp::ArgMax)?,
        "argmin" => arg_reduce(r, ArgReduceOp::ArgMin)?,
        "cumsum" => cumulative(r, CumulativeOp::Sum)?,
        "cumprod" => cumulative(r, CumulativeOp::Prod)?,
        "cummax" => cumulative(r, CumulativeOp::Max)?,
        "cummin" => cumulative(r, CumulativeOp::Min)?,
        "cumlogsumexp" => cumulative(r, CumulativeOp::LogSumExp)?,

        "optimization_barrier" => {
            let values = r.values_from(0)?;
            let types: Vec<Type> = values.iter().map(|&v| r.ty(v).clone()).collect();
            if types.iter().any(Type::is_acc) {
                return Err(r.damaged("an accumulator"));
            }
            let results = r.emit(OpKind::OptimizationBarrier { values }, types);
            r.results(&results)?
        }
        "multiple_of" => {
            r.arity(1)?;
            let a = r.value(0)?;
            let values = r.ints("values")?;
            if values.iter().any(|&n| n <= 0) {
                return Err(Error::invalid("`multiple_of`")
                    .expected("positive numbers, of each of which x is a multiple")
                    .got(format!("{values:?}"))
                    .remedy("name the steps of the index"));
            }
            let ty = r.ty(a).clone();
            if ty.is_acc() {
                return Err(r.damaged("an accumulator"));
            }
            match common_multiple(values) {
                // What is known is known of scalars.
                divisor if divisor > 1 && ty.is_scalar() && int(ty.dtype()) => {
                    r.result(OpKind::MultipleOf { a, divisor }, ty)?
                }
                _ => r.results(&[a])?,
            }
        }
        "layout_cast" => {
            r.arity(1)?;
            let Some(layout) = r.optional_layout("new_layout")? else {
                return Err(r.damaged("`new_layout` is missing"));
            };
            let layout = super::types::layout(layout)?;
            if r.is_ref(0) {
                return Err(Error::unsupported("`layout_cast` of a TMEM reference")
                    .remedy("load it, and cast the array; Hopper has no tensor memory"));
            }
            let a = r.value(0)?;
            let ty = r.ty(a).clone();
            r.result(OpKind::LayoutCast { a, layout }, ty)?
        }
        _ => return Ok(false),
    }
    Ok(true)
}

/// Operand i, of one of these element types.
fn operand(r: &mut OpReader<'_>, i: usize, ok: fn(DType) -> bool) -> Result<Value> {
    let v = r.value(i)?;
    if !ok(r.ty(v).dtype()) {
        let got = r.ty(v).to_string();
        return Err(r
            .damaged(&format!("operand {i} has an element type that it cannot have"))
            .got(got));
    }
    Ok(v)
}

fn identity(r: &mut OpReader<'_>) -> Result<()> {
    r.arity(1)?;
    let a = r.value(0)?;
    r.results(&[a])
}

/// What is a multiple of each of these positive numbers is one of this: their least common multiple, or as much of it as fits.
fn common_multiple(values: &[i64]) -> u64 {
    values.iter().fold(1, |all: i64, &n| {
        let (mut a, mut b) = (all, n);
        while b != 0 {
            (a, b) = (b, a % b);
        }
        (all / a).checked_mul(n).unwrap_or(all.max(n))
    }) as u64
}

fn unary(r: &mut OpReader<'_>, op: UnaryOp, ok: fn(DType) -> bool) -> Result<()> {
    r.arity(1)?;
    let a = operand(r, 0, ok)?;
    let ty = r.ty(a).clone();
    r.result(OpKind::Unary { op, a }, ty)
}

/// The number one in a type.
fn one(r: &mut OpReader<'_>, ty: &Type) -> Result<Value> {
    let bits = match ty.dtype() {
        DType::F16 => 0x3c00,
        DType::BF16 => 0x3f80,
        DType::F32 => 0x3f80_0000,
        DType::F64 => 0x3ff0_0000_0000_0000,
        d if d.is_int() => 1,
        d => {
            return Err(
                Error::unsupported(format!("`{}` of {d}", r.op.primitive)).remedy("convert it to float32 first")
            );
        }
    };
    Ok(r.emit1(OpKind::Constant(Constant::Splat(bits)), ty.clone()))
}

/// Two operands broadcast to one shape, and their type. A scalar and dimensions of extent 1 stretch.
fn same_shape(r: &mut OpReader<'_>, a: Value, b: Value) -> Result<(Value, Value, Type)> {
    let (ta, tb) = (r.ty(a).clone(), r.ty(b).clone());
    let shape: Vec<u64> = match (ta.shape(), tb.shape()) {
        (x, y) if x.len() == y.len() => x.iter().zip(y).map(|(&m, &n)| if m == 1 { n } else { m }).collect(),
        (x, []) => x.to_vec(),
        (_, y) => y.to_vec(),
    };
    let a = r.broadcast_to(a, &shape)?;
    let b = r.broadcast_to(b, &shape)?;
    if r.ty(a) != r.ty(b) {
        return Err(r
            .damaged("operands of different types")
            .expected(ta.to_string())
            .got(tb.to_string()));
    }
    let ty = r.ty(a).clone();
    Ok((a, b, ty))
}

/// `of_bool` is what the op is on bool, where numbers only are `ok` for `op`.
fn binary(r: &mut OpReader<'_>, op: BinaryOp, of_bool: BinaryOp, ok: fn(DType) -> bool) -> Result<()> {
    r.arity(2)?;
    let (a, b) = (r.value(0)?, r.value(1)?);
    let (a, b, ty) = same_shape(r, a, b)?;
    let op = match ty.dtype() {
        DType::Bool if matches!(of_bool, BinaryOp::And | BinaryOp::Or | BinaryOp::Xor) => of_bool,
        d if ok(d) => op,
        _ => {
            return Err(r
                .damaged("operands of an element type that it cannot have")
                .got(ty.to_string()));
        }
    };
    r.result(OpKind::Binary { op, a, b }, ty)
}

fn compare(r: &mut OpReader<'_>, op: CompareOp) -> Result<()> {
    r.arity(2)?;
    let (a, b) = (r.value(0)?, r.value(1)?);
    let (a, b, ty) = same_shape(r, a, b)?;
    r.result(OpKind::Compare { op, a, b }, ty.with_dtype(DType::Bool))
}

fn select(r: &mut OpReader<'_>) -> Result<()> {
    let mut which = r.value(0)?;
    let mut cases = r.values_from(1)?;
    let dtype = r.ty(which).dtype();
    if dtype.is_int() && dtype != DType::I32 {
        let ty = r.ty(which).with_dtype(DType::I32);
        which = r.emit1(OpKind::Convert { a: which }, ty);
    }
    let selector = r.ty(which).clone();
    let fits = match selector.dtype() {
        DType::Bool => (1..=2).contains(&cases.len()),
        DType::I32 => !cases.is_empty(),
        _ => false,
    };
    if !fits {
        return Err(r
            .damaged("the number of cases")
            .got(format!("{} for {selector}", cases.len())));
    }
    let shape = cases
        .iter()
        .map(|&v| r.ty(v).shape())
        .chain([selector.shape()])
        .find(|s| !s.is_empty())
        .unwrap_or(&[])
        .to_vec();
    let dtype = r.ty(cases[0]).dtype();
    for case in &mut cases {
        *case = r.broadcast_to(*case, &shape)?;
        if r.ty(*case).dtype() != dtype {
            return Err(r.damaged("cases of different types"));
        }
    }
    if !selector.is_scalar() && selector.shape() != shape {
        return Err(r.damaged("a selector of another shape"));
    }
    let ty = r.ty(cases[0]).clone();
    if cases.len() == 1 {
        return r.results(&[cases[0]]);
    }
    r.result(OpKind::Select { which, cases }, ty)
}

fn bitcast(r: &mut OpReader<'_>) -> Result<()> {
    r.arity(1)?;
    let a = r.value(0)?;
    let from = r.ty(a).clone();
    let to = r.dtype("new_dtype")?;
    let mut shape = Shape::from_slice(from.shape());
    let (wide, narrow) = (u64::from(from.dtype().bits()), u64::from(to.bits()));
    if wide > narrow && wide.is_multiple_of(narrow) {
        shape.push(wide / narrow);
    } else if wide < narrow && shape.pop() == Some(narrow / wide) && narrow.is_multiple_of(wide) {
        // The minor dimension is consumed.
    } else if wide != narrow {
        return Err(r.damaged("the shapes of a bitcast").got(format!("{from} to {to}")));
    }
    // `wide / narrow` ≤ 32 on a shape within limits.
    let ty = Type::of(to, super::types::shape(&shape)?);
    if ty == from {
        r.results(&[a])
    } else {
        r.result(OpKind::Bitcast { a }, ty)
    }
}

fn reshape(r: &mut OpReader<'_>) -> Result<()> {
    r.arity(1)?;
    let a = r.value(0)?;
    let (from, ty) = (r.ty(a).clone(), r.result_type(0)?);
    if num_elements(from.shape()) != num_elements(ty.shape()) || from.dtype() != ty.dtype() {
        return Err(r.damaged("the shapes").got(format!("{from} to {ty}")));
    }
    if from == ty {
        r.results(&[a])
    } else {
        r.result(OpKind::Reshape { a }, ty)
    }
}

fn slice(r: &mut OpReader<'_>) -> Result<()> {
    r.arity(1)?;
    let a = r.value(0)?;
    let from = r.ty(a).clone();
    let rank = from.shape().len();
    let (starts, limits) = (r.ints("start_indices")?.to_vec(), r.ints("limit_indices")?.to_vec());
    let strides = r
        .optional_ints("strides")?
        .map_or_else(|| vec![1; rank], <[i64]>::to_vec);
    if [&starts, &limits, &strides].iter().any(|x| x.len() != rank) {
        return Err(r.damaged("indices of another rank"));
    }
    let mut shape = Shape::new();
    for (d, &extent) in from.shape().iter().enumerate() {
        let (start, limit, stride) = (starts[d], limits[d], strides[d]);
        if start < 0 || stride < 1 || limit < start || u64::try_from(limit).is_ok_and(|l| l > extent) {
            return Err(r.damaged("a slice outside of its array").got(format!(
                "{start}:{limit}:{stride} of dimension {d} with extent {extent}"
            )));
        }
        shape.push(((limit - start) as u64).div_ceil(stride as u64));
    }
    let ty = Type::of(from.dtype(), shape);
    if ty == from {
        return r.results(&[a]);
    }
    let unsigned = |x: Vec<i64>| x.into_iter().map(|x| x as u64).collect();
    r.result(
        OpKind::Slice {
            a,
            starts: unsigned(starts),
            strides: unsigned(strides),
        },
        ty,
    )
}

fn split(r: &mut OpReader<'_>) -> Result<()> {
    r.arity(1)?;
    let a = r.value(0)?;
    let from = r.ty(a).clone();
    let axis = r.dim("axis", from.shape().len())? as usize;
    let sizes = r.ints("sizes")?.to_vec();
    let mut start = 0u64;
    let mut parts = vec![];
    for &size in &sizes {
        let size = u64::try_from(size).map_err(|_| r.damaged("a negative size"))?;
        let end = start.checked_add(size).filter(|&e| e <= from.shape()[axis]);
        let end = end.ok_or_else(|| r.damaged("a part outside of its array"))?;
        let mut shape = Shape::from_slice(from.shape());
        shape[axis] = size;
        let mut starts = vec![0; shape.len()];
        starts[axis] = start;
        let strides = vec![1; shape.len()];
        parts.push(r.emit1(OpKind::Slice { a, starts, strides }, Type::of(from.dtype(), shape)));
        start = end;
    }
    r.results(&parts)
}

/// Scalar integer operands from i on, one for each dimension.
fn starts(r: &mut OpReader<'_>, i: usize, rank: usize) -> Result<Vec<Value>> {
    r.arity(i + rank)?;
    (i..i + rank)
        .map(|i| r.scalar(i, "an integer scalar", DType::is_int))
        .collect()
}

/// Checks that `part` fits into `whole`.
fn within(r: &OpReader<'_>, part: &Type, whole: &Type) -> Result<()> {
    let fits = part.dtype() == whole.dtype()
        && part.shape().len() == whole.shape().len()
        && part.shape().iter().zip(whole.shape()).all(|(p, w)| p <= w);
    if fits {
        Ok(())
    } else {
        Err(r.damaged("a slice that does not fit").got(format!("{part} in {whole}")))
    }
}

fn concatenate(r: &mut OpReader<'_>) -> Result<()> {
    let parts = r.values_from(0)?;
    let Some(&first) = parts.first() else {
        return Err(r.damaged("nothing to concatenate"));
    };
    let first = r.ty(first).clone();
    let dim = r.dim("dimension", first.shape().len())?;
    let mut shape = Shape::from_slice(first.shape());
    for &part in &parts[1..] {
        let ty = r.ty(part);
        let same = ty.dtype() == first.dtype()
            && ty.shape().len() == shape.len()
            && (0..shape.len()).all(|d| d == dim as usize || ty.shape()[d] == shape[d]);
        if !same {
            return Err(r.damaged("parts that do not fit").got(format!("{first} and {ty}")));
        }
        shape[dim as usize] = shape[dim as usize]
            .checked_add(ty.shape()[dim as usize])
            .ok_or_else(|| r.damaged("too many elements"))?;
    }
    let ty = Type::of(first.dtype(), super::types::shape(&shape)?);
    if parts.len() == 1 {
        r.results(&parts)
    } else {
        r.result(OpKind::Concat { parts, dim }, ty)
    }
}

fn stack(r: &mut OpReader<'_>) -> Result<()> {
    let parts = r.values_from(0)?;
    let Some(&first) = parts.first() else {
        return Err(r.damaged("nothing to stack"));
    };
    let first = r.ty(first).clone();
    let dim = r.dim("axis", first.shape().len() + 1)?;
    let mut shape = Shape::from_slice(first.shape());
    shape.insert(dim as usize, 1);
    let single = Type::of(first.dtype(), super::types::shape(&shape)?);
    let mut slices = vec![];
    for a in parts {
        if *r.ty(a) != first {
            return Err(r.damaged("parts of different types"));
        }
        slices.push(r.emit1(OpKind::Reshape { a }, single.clone()));
    }
    shape[dim as usize] = slices.len() as u64;
    let ty = Type::of(first.dtype(), super::types::shape(&shape)?);
    if slices.len() == 1 {
        r.results(&slices)
    } else {
        r.result(OpKind::Concat { parts: slices, dim }, ty)
    }
}

/// Copies side by side: each dimension gets one of repetitions in front, then the two become one.
fn tile(r: &mut OpReader<'_>) -> Result<()> {
    r.arity(1)?;
    let a = r.value(0)?;
    let from = r.ty(a).clone();
    let reps = r.ints("reps")?.to_vec();
    if reps.len() != from.shape().len() {
        return Err(r.damaged("`reps` of another rank"));
    }
    let (mut wide, mut folded) = (Shape::new(), Shape::new());
    for (&n, &extent) in reps.iter().zip(from.shape()) {
        let n = u64::try_from(n).map_err(|_| r.damaged("a negative number of copies"))?;
        let both = n.checked_mul(extent).ok_or_else(|| r.damaged("too many copies"))?;
        wide.extend([n, extent]);
        folded.push(both);
    }
    let dims = (0..reps.len() as u32).map(|d| 2 * d + 1).collect();
    let wide = Type::of(from.dtype(), super::types::shape(&wide)?);
    let a = r.emit1(OpKind::Broadcast { a, dims }, wide);
    r.result(
        OpKind::Reshape { a },
        Type::of(from.dtype(), super::types::shape(&folded)?),
    )
}

fn pad(r: &mut OpReader<'_>) -> Result<()> {
    r.arity(2)?;
    let (a, value) = (r.value(0)?, r.value(1)?);
    let from = r.ty(a).clone();
    if *r.ty(value) != Type::Scalar(from.dtype()) {
        return Err(r.damaged("the padding value's type"));
    }
    let config = r.ints("padding_config")?;
    if config.len() != 3 * from.shape().len() {
        return Err(r.damaged("`padding_config` of another rank"));
    }
    let (mut low, mut high, mut interior, mut shape) = (vec![], vec![], vec![], Shape::new());
    for (entry, &extent) in config.chunks_exact(3).zip(from.shape()) {
        let (lo, hi, inner) = (entry[0], entry[1], entry[2]);
        let limit = 1 << 40;
        if !(-limit..limit).contains(&lo) || !(-limit..limit).contains(&hi) || !(0..limit).contains(&inner) {
            return Err(r.damaged("the padding").got(format!("{entry:?}")));
        }
        let gaps = (extent as i64).saturating_sub(1).max(0).saturating_mul(inner);
        let size = (extent as i64)
            .saturating_add(gaps)
            .saturating_add(lo)
            .saturating_add(hi);
        shape.push(u64::try_from(size).map_err(|_| r.damaged("a padding that leaves less than nothing"))?);
        low.push(lo);
        high.push(hi);
        interior.push(inner);
    }
    let ty = Type::of(from.dtype(), super::types::shape(&shape)?);
    if from.is_scalar() {
        return r.results(&[a]);
    }
    r.result(
        OpKind::Pad {
            a,
            value,
            low,
            high,
            interior,
        },
        ty,
    )
}

fn reduce(r: &mut OpReader<'_>, op: ReduceOp, of_bool: ReduceOp, ok: fn(DType) -> bool) -> Result<()> {
    r.arity(1)?;
    let a = r.value(0)?;
    let from = r.ty(a).clone();
    let mut axes = r.dims("axes", from.shape().len())?;
    axes.sort_unstable();
    let parallel = match r.int_or("accumulator_ilp", 0)? {
        0 => None,
        n => Some(u32::try_from(n).map_err(|_| r.damaged("`accumulator_ilp`"))?),
    };
    let op = match from.dtype() {
        DType::Bool
            if matches!(
                op,
                ReduceOp::Max | ReduceOp::Min | ReduceOp::And | ReduceOp::Or | ReduceOp::Xor
            ) =>
        {
            of_bool
        }
        d if ok(d) => op,
        _ => return Err(r.damaged("an element type that it cannot have").got(from.to_string())),
    };
    let kept = (0..from.shape().len()).filter(|&d| !axes.contains(&(d as u32)));
    let shape: Shape = kept.map(|d| from.shape()[d]).collect();
    if axes.is_empty() {
        return r.results(&[a]);
    }
    r.result(OpKind::Reduce { op, a, axes, parallel }, Type::of(from.dtype(), shape))
}

fn arg_reduce(r: &mut OpReader<'_>, op: ArgReduceOp) -> Result<()> {
    r.arity(1)?;
    let mut a = r.value(0)?;
    if r.ty(a).dtype() == DType::Bool {
        let ty = r.ty(a).with_dtype(DType::U8);
        a = r.emit1(OpKind::Convert { a }, ty);
    }
    let from = r.ty(a).clone();
    let axes = r.dims("axes", from.shape().len())?;
    let dtype = r.dtype("index_dtype")?;
    let ([axis], true) = (axes.as_slice(), dtype.is_int()) else {
        return Err(Error::unsupported(format!("`{}` over several axes", r.op.primitive))
            .remedy("flatten them first: x.reshape(-1), or reduce axis after axis"));
    };
    let mut shape = Shape::from_slice(from.shape());
    if shape.remove(*axis as usize) == 0 {
        return Err(r.damaged("the extreme of nothing"));
    }
    let to = Type::of(dtype, shape);
    if !op::is_short_run(from.shape(), *axis as usize) || from.dtype() == DType::Bool {
        return super::order::arg_reduce(r, op, a, *axis, to);
    }
    r.result(OpKind::ArgReduce { op, a, axis: *axis }, to)
}

fn cumulative(r: &mut OpReader<'_>, op: CumulativeOp) -> Result<()> {
    r.arity(1)?;
    let a = r.value(0)?;
    let is_bool = r.ty(a).dtype() == DType::Bool;
    let a = if is_bool { r.converted(a, DType::U32) } else { a };
    let ty = r.ty(a).clone();
    let axis = r.dim("axis", ty.shape().len())?;
    let reverse = r.bool_or("reverse", false)?;
    if op == CumulativeOp::LogSumExp && !ty.dtype().is_float() {
        return Err(r.damaged("an element type that it cannot have").got(ty.to_string()));
    }
    if ty.shape().contains(&0) {
        return r.results(&[a]);
    }
    let out = r.emit1(OpKind::Cumulative { op, a, axis, reverse }, ty);
    let out = if is_bool { r.converted(out, DType::Bool) } else { out };
    r.results(&[out])
}
