//! Ops on values: element-wise, conversions, shapes, reductions.
use super::decode::newer;
use super::op_reader::{OpReader, imports};
use super::{gather, order, products};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::kernel_ir::*;

/// Imports the op if it is one of these; false if it is not.
pub fn import(r: &mut OpReader<'_>) -> Result<bool> {
    let name = r.op.primitive.as_str();
    // Functions of elements have lax's names.
    if let Some(op) = UnaryOp::from_name(name) {
        unary(r, op)?;
    } else if let Some(op) = BinaryOp::from_name(name) {
        binary(r, op)?;
    } else if let Some(op) = CompareOp::from_name(name) {
        let (a, b) = same_shape(r)?;
        r.declared(OpKind::Compare { op, a, b })?;
    } else if let Some(op) = ReduceOp::from_name(name) {
        reduce(r, op)?;
    } else if let Some(op) = ArgReduceOp::from_name(name) {
        arg_reduce(r, op)?;
    } else if let Some(op) = CumulativeOp::from_name(name) {
        cumulative(r, op)?;
    } else {
        return others(r);
    }
    Ok(true)
}

fn others(r: &mut OpReader<'_>) -> Result<bool> {
    imports! { r,
        "convert_element_type"(1) ignoring "new_dtype" => OpKind::Convert { a: r.value(0)? };
        "bitcast_convert_type"(1) ignoring "new_dtype" => OpKind::Bitcast { a: r.value(0)? };
        "broadcast_in_dim"(1) ignoring "shape" => OpKind::Broadcast { a: r.value(0)?, dims: r.dims_of_result("broadcast_dimensions")? };
        "iota"(0) ignoring "shape", "dtype" => OpKind::Iota { dim: r.dim_of_result("dimension")? };
        "reshape"(1) ignoring "new_sizes" => OpKind::Reshape { a: r.value(0)? };
        "squeeze" | "expand_dims"(1) ignoring "dimensions" => OpKind::Reshape { a: r.value(0)? };
        "transpose"(1) => OpKind::Transpose { a: r.value(0)?, permutation: r.dims_of_result("permutation")? };
        "rev"(1) => OpKind::Reverse { a: r.value(0)?, dims: r.dims_of_result("dimensions")? };
        "dynamic_slice" ignoring "slice_sizes" => OpKind::DynamicSlice { a: r.value(0)?, starts: r.values_from(1)? };
        "dynamic_update_slice" => OpKind::DynamicUpdateSlice { a: r.value(0)?, update: r.value(1)?, starts: r.values_from(2)? };
        "concatenate" => OpKind::Concat { parts: r.values_from(0)?, dim: r.dim_of_result("dimension")? };
        "optimization_barrier" => OpKind::OptimizationBarrier { values: r.values_from(0)? };
        "reduce_precision"(1) => OpKind::ReducePrecision {
            a: float(r)?, exponent_bits: r.count("exponent_bits")?, mantissa_bits: r.count("mantissa_bits")?
        };
        others: {
            "copy" | "stop_gradient"(1) => r.value(0).and_then(|a| r.results(&[a]));
            "add_any" => binary(r, BinaryOp::Add);
            "square"(1) => square(r);
            "one_minus_square"(1) => one_minus_square(r);
            "reciprocal"(1) ignoring "approx", "full_range" => reciprocal(r);
            "integer_pow"(1) => integer_pow(r);
            "round" => round(r);
            "select_n" => select(r);
            "clamp"(3) => clamp(r);
            "broadcast_to"(1) ignoring "shape" => broadcast_to(r);
            "slice"(1) ignoring "limit_indices" => slice(r);
            "split"(1) ignoring "sizes" => split(r);
            "stack" => stack(r);
            "tile"(1) => tile(r);
            "pad"(2) => pad(r);
            "multiple_of"(1) => multiple_of(r);
            "layout_cast"(1) => layout_cast(r);
            "dot_general"(2) ignoring "preferred_element_type" => products::dot_general(r);
            "mma"(3) => products::mma(r);
            "gather"(3) => gather::gather(r);
            "scatter"(3) => gather::scatter(r, PutOp::Set);
            "scatter_add" | "scatter_sub"(3) => gather::scatter(r, PutOp::Add);
            "scatter_mul"(3) => gather::scatter(r, PutOp::Mul);
            "scatter_max"(3) => gather::scatter(r, PutOp::Max);
            "scatter_min"(3) => gather::scatter(r, PutOp::Min);
            "sort" => order::sort(r);
            "top_k"(1) ignoring "is_stable" => order::top_k(r);
        }
    }
}

fn element_type(r: &OpReader<'_>, d: DType, fits: bool) -> Result<()> {
    match fits {
        true => Ok(()),
        false => Err(r.damaged("an element type that it cannot have").got(d.to_string())),
    }
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

fn unary(r: &mut OpReader<'_>, op: UnaryOp) -> Result<()> {
    use UnaryOp::*;
    r.arity(1)?;
    let a = operand(r, |d| match op {
        Neg | Abs | Sign => d != DType::Bool,
        Not => !d.is_float(),
        CountLeadingZeros | PopulationCount => d.is_int(),
        Floor | Ceil | RoundAwayFromZero | RoundToEven | RoundToTf32 | Sqrt | Rsqrt | IsFinite | Lgamma | Exp
        | Exp2 | Expm1 | Log | Log1p | Log2 | Cbrt | Sin | Cos | Tan | Asin | Acos | Atan | Sinh | Cosh | Tanh
        | Asinh | Acosh | Atanh | Erf | Erfc | ErfInv | Logistic => d.is_float(),
    })?;
    r.declared(OpKind::Unary { op, a })
}

fn round(r: &mut OpReader<'_>) -> Result<()> {
    match r.text("rounding_method")? {
        "away_from_zero" => unary(r, UnaryOp::RoundAwayFromZero),
        "to_nearest_even" => unary(r, UnaryOp::RoundToEven),
        other => Err(newer(format!("`round` with the method {other:?}"))),
    }
}

/// The number one in the type of a value.
fn one(r: &mut OpReader<'_>, like: Value) -> Result<Value> {
    let ty = r.ty(like).clone();
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
    Ok(r.emit1(OpKind::Constant(Constant::Splat(bits)), ty))
}

/// The only operand, whose elements have one of some types.
fn operand(r: &mut OpReader<'_>, fits: impl FnOnce(DType) -> bool) -> Result<Value> {
    let a = r.value(0)?;
    let d = r.ty(a).dtype();
    element_type(r, d, fits(d))?;
    Ok(a)
}

fn number(r: &mut OpReader<'_>) -> Result<Value> {
    operand(r, |d| d != DType::Bool)
}

fn float(r: &mut OpReader<'_>) -> Result<Value> {
    operand(r, DType::is_float)
}

fn square(r: &mut OpReader<'_>) -> Result<()> {
    let (op, a) = (BinaryOp::Mul, number(r)?);
    r.declared(OpKind::Binary { op, a, b: a })
}

/// As lax defines it: (1 − x)·(1 + x).
fn one_minus_square(r: &mut OpReader<'_>) -> Result<()> {
    let x = number(r)?;
    let one = one(r, x)?;
    let (a, b) = (r.binary(BinaryOp::Sub, one, x), r.binary(BinaryOp::Add, one, x));
    let op = BinaryOp::Mul;
    r.declared(OpKind::Binary { op, a, b })
}

fn reciprocal(r: &mut OpReader<'_>) -> Result<()> {
    let b = float(r)?;
    let a = one(r, b)?;
    let op = BinaryOp::Div;
    r.declared(OpKind::Binary { op, a, b })
}

fn integer_pow(r: &mut OpReader<'_>) -> Result<()> {
    let (a, y) = (number(r)?, r.int("y")?);
    let n = i32::try_from(y).map_err(|_| {
        Error::unsupported(format!("`integer_pow` with the exponent {y}")).remedy("jnp.power(x, y) with y as an array")
    })?;
    r.declared(OpKind::IntegerPow { a, n })
}

/// The two operands, broadcast to one shape. A scalar and dimensions of extent 1 stretch.
fn same_shape(r: &mut OpReader<'_>) -> Result<(Value, Value)> {
    r.arity(2)?;
    let (a, b) = (r.value(0)?, r.value(1)?);
    broadcast_both(r, a, b)
}

fn broadcast_both(r: &mut OpReader<'_>, a: Value, b: Value) -> Result<(Value, Value)> {
    let shape: Vec<u64> = match (r.ty(a).shape(), r.ty(b).shape()) {
        (x, y) if x.len() == y.len() => x.iter().zip(y).map(|(&m, &n)| if m == 1 { n } else { m }).collect(),
        (x, []) => x.to_vec(),
        (_, y) => y.to_vec(),
    };
    Ok((r.broadcast_to(a, &shape)?, r.broadcast_to(b, &shape)?))
}

fn binary(r: &mut OpReader<'_>, op: BinaryOp) -> Result<()> {
    use BinaryOp::*;
    r.arity(2)?;
    let (a, mut b) = (r.value(0)?, r.value(1)?);
    if op == Pow {
        let to = r.ty(a).dtype();
        b = r.converted(b, to);
    }
    let (a, b) = broadcast_both(r, a, b)?;
    let d = r.ty(a).dtype();
    // On bool, sums and products, maxima and minima are functions of bits.
    let (op, fits) = match (op, d == DType::Bool) {
        (And | Or | Xor, _) => (op, !d.is_float()),
        (Add | Max, true) => (Or, true),
        (Mul | Min, true) => (And, true),
        (ShiftLeft | ShiftRightLogical | ShiftRightArithmetic, _) => (op, d.is_int()),
        (Pow | Atan2 | NextAfter | CopySign, _) => (op, d.is_float()),
        (Add | Sub | Mul | Div | Rem | Max | Min, is_bool) => (op, !is_bool),
    };
    element_type(r, d, fits)?;
    r.declared(OpKind::Binary { op, a, b })
}

fn select(r: &mut OpReader<'_>) -> Result<()> {
    let mut which = r.value(0)?;
    let mut cases = r.values_from(1)?;
    if r.ty(which).dtype().is_int() {
        which = r.converted(which, DType::I32);
    }
    let shape = r.result_type(0)?.shape().to_vec();
    for case in &mut cases {
        *case = r.broadcast_to(*case, &shape)?;
    }
    // lax has a bool that selects from one case, too: there is nothing to select.
    if let (DType::Bool, &[only]) = (r.ty(which).dtype(), &cases[..]) {
        return r.results(&[only]);
    }
    r.declared(OpKind::Select { which, cases })
}

fn clamp(r: &mut OpReader<'_>) -> Result<()> {
    let x = r.value(1)?;
    let ty = r.ty(x).clone();
    element_type(r, ty.dtype(), ty.dtype() != DType::Bool)?;
    let mut bound = |i: usize| {
        let v = r.value(i)?;
        r.broadcast_to(v, ty.shape())
    };
    let (lo, hi) = (bound(0)?, bound(2)?);
    r.declared(OpKind::Clamp { lo, x, hi })
}

fn broadcast_to(r: &mut OpReader<'_>) -> Result<()> {
    let a = r.value(0)?;
    let (n, rank) = (r.ty(a).shape().len(), r.result_type(0)?.shape().len());
    let new = rank.checked_sub(n).ok_or_else(|| r.damaged("the broadcast"))?;
    let dims = (new as u32..rank as u32).collect();
    r.declared(OpKind::Broadcast { a, dims })
}

/// Its limits are in the result's shape.
fn slice(r: &mut OpReader<'_>) -> Result<()> {
    let a = r.value(0)?;
    let rank = r.ty(a).shape().len();
    let starts = r.sizes("start_indices")?;
    let strides = match r.optional_ints("strides")? {
        Some(_) => r.sizes("strides")?,
        None => vec![1; rank],
    };
    r.declared(OpKind::Slice { a, starts, strides })
}

fn split(r: &mut OpReader<'_>) -> Result<()> {
    let a = r.value(0)?;
    let rank = r.ty(a).shape().len();
    let axis = r.dim("axis", rank)? as usize;
    let mut start = 0;
    let mut parts = vec![];
    for i in 0..r.op.results.len() {
        let ty = r.result_type(i)?;
        let (mut starts, strides) = (vec![0; rank], vec![1; rank]);
        starts[axis] = start;
        start += ty.shape().get(axis).copied().unwrap_or(0);
        parts.push(r.checked(OpKind::Slice { a, starts, strides }, ty)?);
    }
    r.results(&parts)
}

fn stack(r: &mut OpReader<'_>) -> Result<()> {
    let mut parts = r.values_from(0)?;
    let dim = r.dim_of_result("axis")?;
    let whole = r.result_type(0)?;
    let mut shape = Shape::from_slice(whole.shape());
    shape[dim as usize] = 1;
    for a in &mut parts {
        *a = r.checked(OpKind::Reshape { a: *a }, Type::of(whole.dtype(), shape.clone()))?;
    }
    r.declared(OpKind::Concat { parts, dim })
}

/// Copies side by side: each dimension gets one of repetitions in front, then the two become one.
fn tile(r: &mut OpReader<'_>) -> Result<()> {
    let a = r.value(0)?;
    let from = r.ty(a).clone();
    let reps = r.sizes("reps")?;
    let wide: Vec<u64> = reps.iter().zip(from.shape()).flat_map(|(n, m)| [*n, *m]).collect();
    let dims = (0..reps.len() as u32).map(|d| 2 * d + 1).collect();
    let wide = Type::of(from.dtype(), super::types::shape(&wide)?);
    let a = r.checked(OpKind::Broadcast { a, dims }, wide)?;
    let to = r.result_type(0)?;
    let tiled = r.checked(OpKind::Reshape { a }, to)?;
    r.results(&[tiled])
}

fn pad(r: &mut OpReader<'_>) -> Result<()> {
    let (a, value) = (r.value(0)?, r.value(1)?);
    let config = r.ints("padding_config")?;
    // What is computed with these and extents fits.
    let fits = |n: &i64| (-1 << 40..1 << 40).contains(n);
    if !config.iter().all(fits) {
        return Err(r.damaged("the padding").got(format!("{config:?}")));
    }
    let of = |i: usize| config.iter().skip(i).step_by(3).copied().collect();
    let (low, high, interior) = (of(0), of(1), of(2));
    let kind = OpKind::Pad {
        a,
        value,
        low,
        high,
        interior,
    };
    r.declared(kind)
}

fn multiple_of(r: &mut OpReader<'_>) -> Result<()> {
    let a = r.value(0)?;
    let values = r.ints("values")?;
    if values.iter().any(|&n| n <= 0) {
        return Err(Error::invalid("`multiple_of`")
            .expected("positive numbers, of each of which x is a multiple")
            .got(format!("{values:?}"))
            .remedy("name the steps of the index"));
    }
    let divisor = common_multiple(values);
    // What is known is known of scalars.
    match divisor > 1 && r.ty(a).is_scalar() && r.ty(a).dtype().is_int() {
        true => r.declared(OpKind::MultipleOf { a, divisor }),
        false => r.results(&[a]),
    }
}

fn layout_cast(r: &mut OpReader<'_>) -> Result<()> {
    let Some(layout) = r.optional_layout("new_layout")? else {
        return Err(r.damaged("`new_layout` is missing"));
    };
    let layout = super::types::layout(layout)?;
    if r.is_ref(0) {
        return Err(Error::unsupported("`layout_cast` of a TMEM reference")
            .remedy("load it, and cast the array; Hopper has no tensor memory"));
    }
    let a = r.value(0)?;
    r.declared(OpKind::LayoutCast { a, layout })
}

fn reduce(r: &mut OpReader<'_>, op: ReduceOp) -> Result<()> {
    use ReduceOp::*;
    r.arity(1)?;
    let a = r.value(0)?;
    let mut axes = r.dims("axes", r.ty(a).shape().len())?;
    axes.sort_unstable();
    let parallel = match r.int_or("accumulator_ilp", 0)? {
        0 => None,
        n => Some(u32::try_from(n).map_err(|_| r.damaged("`accumulator_ilp`"))?),
    };
    let d = r.ty(a).dtype();
    let (op, fits) = match (op, d == DType::Bool) {
        (And | Or | Xor, _) => (op, !d.is_float()),
        (Max, true) => (Or, true),
        (Min, true) => (And, true),
        (Sum | Prod | Max | Min, is_bool) => (op, !is_bool),
    };
    element_type(r, d, fits)?;
    r.declared(OpKind::Reduce { op, a, axes, parallel })
}

fn arg_reduce(r: &mut OpReader<'_>, op: ArgReduceOp) -> Result<()> {
    r.arity(1)?;
    let mut a = r.value(0)?;
    if r.ty(a).dtype() == DType::Bool {
        a = r.converted(a, DType::U8);
    }
    let from = r.ty(a).clone();
    let axes = r.dims("axes", from.shape().len())?;
    let dtype = r.dtype("index_dtype")?;
    let (&[axis], true) = (axes.as_slice(), dtype.is_int()) else {
        return Err(Error::unsupported(format!("`{}` over several axes", r.op.primitive))
            .remedy("flatten them first: x.reshape(-1), or reduce axis after axis"));
    };
    let mut shape = Shape::from_slice(from.shape());
    if shape.remove(axis as usize) == 0 {
        return Err(r.damaged("the extreme of nothing"));
    }
    match op::is_short_run(from.shape(), axis as usize) {
        true => r.declared(OpKind::ArgReduce { op, a, axis }),
        false => order::arg_reduce(r, op, a, axis, Type::of(dtype, shape)),
    }
}

fn cumulative(r: &mut OpReader<'_>, op: CumulativeOp) -> Result<()> {
    r.arity(1)?;
    let a = r.value(0)?;
    let is_bool = r.ty(a).dtype() == DType::Bool;
    let a = if is_bool { r.converted(a, DType::U32) } else { a };
    let ty = r.ty(a).clone();
    let axis = r.dim("axis", ty.shape().len())?;
    let reverse = r.bool_or("reverse", false)?;
    element_type(r, ty.dtype(), op != CumulativeOp::LogSumExp || ty.dtype().is_float())?;
    if ty.shape().contains(&0) {
        return r.results(&[a]);
    }
    let out = r.emit1(OpKind::Cumulative { op, a, axis, reverse }, ty);
    let out = if is_bool { r.converted(out, DType::Bool) } else { out };
    r.results(&[out])
}
