//! Reductions: in the thread, then between lanes, then between warps.
//!
//! The order is fixed by the layout, and every thread that ends with a result has computed it from the same operands in the same order:
//! the results are bit-equal. Floats narrower than 32 bits are reduced in f32 and rounded once.
use super::convert;
use super::cx::LowerCx;
use super::elementwise;
use super::emit::{ALL_LANES, S};
use super::float::{self, Precision};
use super::integer;
use super::memory::{self, Target};
use super::shape;
use super::value::{ArrayRegs, Lowered, scalar_class, scalar_constant};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::kernel_ir::op::is_short_run;
use crate::kernel_ir::{ArgReduceOp, BinaryOp, CompareOp, CumulativeOp, Op, ReduceOp, UnaryOp, Value};
use crate::layout::register_layout::{LANE_BITS, ReducePlan};
use crate::layout::{Place, RegisterLayout};
use crate::plan::scratch::PartialResults;
use crate::ptx::inst::Inst;
use crate::ptx::modifier::*;
use crate::ptx::operand::{Class, Src};
use crate::ptx::ssa;

/// The type that a reduction is computed in.
pub fn compute_type(dtype: DType) -> DType {
    if dtype.is_float() && dtype.bits() < 32 {
        DType::F32
    } else {
        dtype
    }
}

fn binary_op(op: ReduceOp) -> BinaryOp {
    match op {
        ReduceOp::Sum => BinaryOp::Add,
        ReduceOp::Prod => BinaryOp::Mul,
        ReduceOp::Max => BinaryOp::Max,
        ReduceOp::Min => BinaryOp::Min,
        ReduceOp::And => BinaryOp::And,
        ReduceOp::Or => BinaryOp::Or,
        ReduceOp::Xor => BinaryOp::Xor,
    }
}

/// One step of a reduction.
pub fn combine(cx: &mut LowerCx, op: BinaryOp, dtype: DType, x: S, y: S) -> Result<S> {
    if dtype.is_float() {
        let precision = Precision::of(cx);
        float::binary(&mut cx.b, precision, op, dtype, x, y)
    } else {
        integer::binary(&mut cx.b, op, dtype, x, y)
    }
}

/// What changes nothing.
fn identity(op: ReduceOp, dtype: DType) -> S {
    let bits = u64::from(dtype.bits());
    let ones = if bits == 64 { u64::MAX } else { (1 << bits) - 1 };
    let sign = 1u64 << (bits - 1);
    let float = |f32: f32| match dtype {
        DType::F64 => Src::f64(f64::from(f32)),
        _ => Src::f32(f32),
    };
    let int = |bits: u64| scalar_constant(dtype, bits);
    match op {
        ReduceOp::Sum => Src::Imm(0),
        ReduceOp::Prod if dtype.is_float() => float(1.0),
        ReduceOp::Prod => int(1),
        ReduceOp::Max if dtype.is_float() => float(f32::NEG_INFINITY),
        ReduceOp::Min if dtype.is_float() => float(f32::INFINITY),
        ReduceOp::Max if dtype.is_signed_int() => int(sign),
        ReduceOp::Min if dtype.is_signed_int() => int(ones >> 1),
        ReduceOp::Max => int(0),
        ReduceOp::Min => int(ones),
        ReduceOp::And => int(ones),
        ReduceOp::Or | ReduceOp::Xor => Src::Imm(0),
    }
}

pub fn lower_reduce(cx: &mut LowerCx, op: Op, reduction: ReduceOp, a: Value, axes: &[u32]) -> Result<()> {
    let result = cx.result(op);
    let dtype = cx.ty(a).dtype();
    let compute = compute_type(dtype);
    if let Lowered::Scalar(s) = *cx.get(a)? {
        cx.bind_scalar(result, s);
        return Ok(());
    }
    if cx.ty(a).shape().contains(&0) {
        let empty = identity(reduction, compute);
        let x = convert::convert(&mut cx.b, compute, dtype, empty)?;
        if cx.ty(result).is_scalar() {
            cx.bind_scalar(result, x);
        } else {
            let layout = cx.layout_of(result)?;
            let x = cx.fill(dtype, layout, x);
            cx.bind_array(result, x);
        }
        return Ok(());
    }
    let x = cx.array(a)?;
    let dims: Vec<usize> = axes.iter().map(|&d| d as usize).collect();
    let plan = x
        .layout
        .reduce_plan(&dims)
        .ok_or_else(|| Error::internal("a digit straddles reduced and kept dimensions").at(cx.b.loc()))?;
    let out = reduce(cx, reduction, compute, &x, &dims, &plan)?;
    let mut rounded = vec![];
    for s in out {
        rounded.push(convert::convert(&mut cx.b, compute, dtype, s)?);
    }
    if cx.ty(result).is_scalar() {
        // One value for all lanes, provably: branches on it are uniform.
        let broadcast = cx.b.broadcast_lane0(scalar_class(dtype), rounded[0]);
        if let Src::Reg(v) = broadcast {
            let uniform = cx.group_uniform();
            cx.b.claim_uniform(v, uniform);
        }
        cx.bind_scalar(result, broadcast);
        return Ok(());
    }
    let out = cx.from_elements(dtype, plan.result.clone(), &rounded);
    cx.bind_array(result, out);
    Ok(())
}

/// The elements of the result in the layout of the plan, as scalars of `compute`.
fn reduce(
    cx: &mut LowerCx,
    op: ReduceOp,
    compute: DType,
    x: &ArrayRegs,
    dims: &[usize],
    plan: &ReducePlan,
) -> Result<Vec<S>> {
    let mut elements = vec![];
    for s in cx.elements(x) {
        elements.push(convert::convert(&mut cx.b, x.dtype, compute, s)?);
    }
    if plan.padded {
        mask_padding(cx, op, compute, &x.layout, dims, &mut elements);
    }
    let binary = binary_op(op);
    let mut out = Vec::with_capacity(plan.slots.len());
    for slots in &plan.slots {
        let mut level: Vec<S> = slots.iter().map(|&s| elements[s as usize]).collect();
        // A balanced tree: short dependences, and errors that grow with the logarithm.
        while level.len() > 1 {
            let mut next = Vec::with_capacity(level.len().div_ceil(2));
            for pair in level.chunks(2) {
                next.push(match *pair {
                    [a, b] => combine(cx, binary, compute, a, b)?,
                    [a] => a,
                    _ => unreachable!("chunks of two"),
                });
            }
            level = next;
        }
        let s = repeat(cx, op, compute, level[0], plan.repeats)?;
        out.push(between_lanes(cx, op, compute, s, plan.lane_bits)?);
    }
    if plan.warp_bits != 0 {
        between_warps(cx, op, compute, &mut out, plan, &x.layout)?;
    }
    Ok(out)
}

/// Positions beyond the array along reduced dimensions hold the identity.
fn mask_padding(
    cx: &mut LowerCx,
    op: ReduceOp,
    compute: DType,
    layout: &RegisterLayout,
    dims: &[usize],
    elements: &mut [S],
) {
    let neutral = identity(op, compute);
    let class = scalar_class(compute);
    for axis in layout
        .axes()
        .iter()
        .filter(|a| a.is_padded() && dims.contains(&a.first))
    {
        let thread = memory::thread_terms(cx, &RegisterLayout::axis_terms(axis));
        for (slot, x) in elements.iter_mut().enumerate() {
            let offset = RegisterLayout::axis_offset(axis, slot as u32);
            let inside = if offset >= axis.size {
                Src::Imm(0)
            } else {
                cx.b.setp(Compare::Lt, CompareType::U32, thread, Src::Imm(axis.size - offset))
            };
            *x = cx.b.pick(class, inside, *x, neutral);
        }
    }
}

/// The reduction of `n` equal elements.
fn repeat(cx: &mut LowerCx, op: ReduceOp, compute: DType, x: S, n: u64) -> Result<S> {
    if n == 1 {
        return Ok(x);
    }
    match op {
        ReduceOp::Max | ReduceOp::Min | ReduceOp::And | ReduceOp::Or => Ok(x),
        ReduceOp::Xor if n % 2 == 1 => Ok(x),
        ReduceOp::Xor => Ok(Src::Imm(0)),
        ReduceOp::Sum if compute == DType::Bool => Ok(x),
        ReduceOp::Sum => {
            let count = match compute {
                DType::F64 => Src::f64(n as f64),
                d if d.is_float() => Src::f32(n as f32),
                d => scalar_constant(d, n),
            };
            combine(cx, BinaryOp::Mul, compute, x, count)
        }
        ReduceOp::Prod => {
            let (mut result, mut square, mut left) = (None, x, n);
            while left > 0 {
                if left & 1 == 1 {
                    result = Some(match result {
                        None => square,
                        Some(r) => combine(cx, BinaryOp::Mul, compute, r, square)?,
                    });
                }
                left >>= 1;
                if left > 0 {
                    square = combine(cx, BinaryOp::Mul, compute, square, square)?;
                }
            }
            Ok(result.unwrap_or(x))
        }
    }
}

fn between_lanes(cx: &mut LowerCx, op: ReduceOp, compute: DType, x: S, lane_bits: u8) -> Result<S> {
    if lane_bits == 0
        || (x.imm().is_some() && matches!(op, ReduceOp::Max | ReduceOp::Min | ReduceOp::And | ReduceOp::Or))
    {
        return Ok(x);
    }
    let whole_warp = lane_bits == (1 << LANE_BITS) - 1;
    if whole_warp && let Some(out) = warp_instruction(cx, op, compute, x) {
        return Ok(out);
    }
    let class = scalar_class(compute);
    // A constant is a register here: each lane adds its own.
    let mut x = Src::Reg(cx.b.value(x, class));
    for bit in (0..LANE_BITS).filter(|b| lane_bits >> b & 1 == 1) {
        let other = cx.b.shfl_xor_any(class, x, 1 << bit);
        x = combine(cx, binary_op(op), compute, x, other)?;
    }
    Ok(x)
}

/// Reductions over all lanes that the machine has as one instruction.
fn warp_instruction(cx: &mut LowerCx, op: ReduceOp, compute: DType, x: S) -> Option<S> {
    let d = ssa::Value::NEW;
    if compute == DType::Bool {
        let a = cx.b.pred(x);
        let mode = match op {
            ReduceOp::And | ReduceOp::Min | ReduceOp::Prod => VoteMode::All,
            ReduceOp::Or | ReduceOp::Max | ReduceOp::Sum => VoteMode::Any,
            ReduceOp::Xor => return None,
        };
        return Some(cx.b.emit(Inst::vote(mode, d, a, ALL_LANES)));
    }
    if !compute.is_int() || compute.bits() > 32 {
        return None;
    }
    let signed = compute.is_signed_int();
    let redux = match op {
        ReduceOp::Sum => ReduxOp::AddU32,
        ReduceOp::Max if signed => ReduxOp::MaxS32,
        ReduceOp::Max => ReduxOp::MaxU32,
        ReduceOp::Min if signed => ReduxOp::MinS32,
        ReduceOp::Min => ReduxOp::MinU32,
        ReduceOp::And => ReduxOp::And,
        ReduceOp::Or => ReduxOp::Or,
        ReduceOp::Xor => ReduxOp::Xor,
        ReduceOp::Prod => return None,
    };
    let a = cx.b.r32(x);
    let out = cx.b.emit(Inst::redux(redux, d, a, ALL_LANES));
    Some(integer::wrap(&mut cx.b, compute, out))
}

/// Each warp leaves its partial results in scratch; then every thread combines those of the warps in one order.
fn between_warps(
    cx: &mut LowerCx,
    op: ReduceOp,
    compute: DType,
    out: &mut [S],
    plan: &ReducePlan,
    layout: &RegisterLayout,
) -> Result<()> {
    let stored = if compute == DType::Bool {
        DType::U32
    } else {
        widened(compute)
    };
    let (base, available) = cx.scratch();
    let partial = PartialResults::of(compute, plan, layout);
    let (bytes, lanes, per_result) = (partial.element_bytes, partial.lanes, partial.bytes());
    let equal_lanes = lanes == 1;
    let at_once = (available / per_result) as usize;
    if at_once == 0 {
        return Err(Error::internal("no scratch in shared memory for a reduction over warps").at(cx.b.loc()));
    }
    let (lane, warp) = (cx.b.lane(), cx.warp_in_group());
    let target = Target::shared(base.into());
    let column = if equal_lanes {
        Src::u32(0)
    } else {
        cx.b.mul(IntType::U32, lane, Src::u32(bytes))
    };
    let own = cx.b.mad(IntType::U32, warp, Src::u32(lanes * bytes), base);
    let own = cx.b.add(IntType::U32, own, column);
    let writer = if equal_lanes {
        cx.b.setp(Compare::Eq, CompareType::U32, lane, Src::u32(0))
    } else {
        Src::Imm(1)
    };
    // The first warp of those whose partial results belong together.
    let first = cx.b.and32(warp, !u32::from(plan.warp_bits) & 3);
    let first = cx.b.mad(IntType::U32, first, Src::u32(lanes * bytes), base);
    let first = cx.b.add(IntType::U32, first, column);
    let binary = binary_op(op);
    for chunk in out.chunks_mut(at_once) {
        // Earlier users of the scratch have left it.
        cx.sync_group();
        let values: Vec<S> = chunk.iter().map(|&x| as_stored(cx, compute, x)).collect();
        cx.if_then(writer, |cx| {
            for (r, &x) in values.iter().enumerate() {
                let addr = cx.b.addr(own, (r as u32 * per_result) as i32);
                memory::store_element(cx, target, addr, stored, x)?;
            }
            Ok(())
        })?;
        cx.sync_group();
        for (r, x) in chunk.iter_mut().enumerate() {
            let mut sum: Option<S> = None;
            for k in (0..4u32).filter(|k| k & !u32::from(plan.warp_bits) == 0) {
                let offset = r as u32 * per_result + k * lanes * bytes;
                let addr = cx.b.addr(first, offset as i32);
                let loaded = memory::load_element(cx, target, addr, stored)?;
                let loaded = from_stored(cx, compute, loaded);
                sum = Some(match sum {
                    None => loaded,
                    Some(s) => combine(cx, binary, compute, s, loaded)?,
                });
            }
            *x = sum.ok_or_else(|| Error::internal("a reduction over no warps"))?;
        }
    }
    Ok(())
}

/// Narrow integers travel as words.
fn widened(compute: DType) -> DType {
    match compute.bits() {
        64 => compute,
        _ if compute.is_signed_int() => DType::I32,
        _ if compute.is_int() => DType::U32,
        _ => compute,
    }
}

fn as_stored(cx: &mut LowerCx, compute: DType, x: S) -> S {
    if compute == DType::Bool {
        cx.b.pick(Class::B32, x, Src::u32(1), Src::u32(0))
    } else {
        x
    }
}

fn from_stored(cx: &mut LowerCx, compute: DType, x: S) -> S {
    if compute == DType::Bool {
        cx.b.setp(Compare::Ne, CompareType::U32, x, Src::u32(0))
    } else {
        x
    }
}

// ---------------------------------------------------------------------------------------------- along one dimension

/// Slots of a layout in runs along `dim`: for each run the slots in order.
fn runs(layout: &RegisterLayout, dim: usize) -> Vec<Vec<usize>> {
    let axis = layout.axis_of(dim);
    let n = axis.size as usize;
    let mut out: Vec<Vec<usize>> = vec![];
    for slot in 0..layout.slots() {
        if RegisterLayout::axis_offset(axis, slot) == 0 {
            out.push(vec![]);
        }
    }
    // Slots of one run differ only in the axis' digits.
    let rest = |slot: u32| {
        let mut slot_rest = slot;
        for d in &axis.chain {
            if let Place::Slot(s) = d.place {
                slot_rest -= slot / s % d.size as u32 * s;
            }
        }
        slot_rest
    };
    let mut starts: Vec<u32> = (0..layout.slots()).filter(|&s| rest(s) == s).collect();
    starts.sort_unstable();
    for (run, &start) in out.iter_mut().zip(&starts) {
        *run = vec![0; n];
        for slot in (0..layout.slots()).filter(|&s| rest(s) == start) {
            run[RegisterLayout::axis_offset(axis, slot) as usize] = slot as usize;
        }
    }
    out
}

pub fn lower_arg_reduce(cx: &mut LowerCx, op: Op, extreme: ArgReduceOp, a: Value, axis: u32) -> Result<()> {
    let result = cx.result(op);
    let dim = axis as usize;
    let index_type = cx.ty(result).dtype();
    let x = cx.array(a)?;
    let dtype = x.dtype;
    let class = scalar_class(dtype);
    let elements = cx.elements(&x);
    let plan = x
        .layout
        .reduce_plan(&[dim])
        .ok_or_else(|| Error::internal("a run along a dimension cannot be reduced"))?;
    let better = match extreme {
        ArgReduceOp::ArgMax => CompareOp::Gt,
        ArgReduceOp::ArgMin => CompareOp::Lt,
    };
    let runs = runs(&x.layout, dim);
    let mut out = vec![];
    for slots in &plan.slots {
        let run = runs
            .iter()
            .find(|r| r.contains(&(slots[0] as usize)))
            .ok_or_else(|| Error::internal("a result of no run"))?;
        let mut best = elements[run[0]];
        let mut at = Src::u32(0);
        for (i, &slot) in run.iter().enumerate().skip(1) {
            let x = elements[slot];
            let mut wins = elementwise::compare(&mut cx.b, better, dtype, x, best)?;
            if dtype.is_float() {
                // The first NaN wins over everything and is beaten by nothing.
                let x_nan = elementwise::compare(&mut cx.b, CompareOp::Ne, dtype, x, x)?;
                let best_nan = elementwise::compare(&mut cx.b, CompareOp::Ne, dtype, best, best)?;
                let not_yet = cx.b.not_pred(best_nan);
                let first_nan = cx.b.both(x_nan, not_yet);
                wins = cx.b.either(wins, first_nan);
            }
            best = cx.b.pick(class, wins, x, best);
            at = cx.b.pick(Class::B32, wins, Src::u32(i as u32), at);
        }
        out.push(convert::convert(&mut cx.b, DType::I32, index_type, at)?);
    }
    if cx.ty(result).is_scalar() {
        let s = shape::to_scalar(cx, index_type, out[0]);
        cx.bind_scalar(result, s);
        return Ok(());
    }
    let out = cx.from_elements(index_type, plan.result.clone(), &out);
    cx.bind_array(result, out);
    Ok(())
}

pub fn lower_cumulative(
    cx: &mut LowerCx,
    op: Op,
    running: CumulativeOp,
    a: Value,
    axis: u32,
    reverse: bool,
) -> Result<()> {
    let result = cx.result(op);
    let dim = axis as usize;
    if !is_short_run(cx.ty(a).shape(), dim) && !cx.ty(a).shape().contains(&0) {
        return super::running::lower_running(cx, op, running, a, axis, reverse);
    }
    let x = cx.array(a)?;
    let dtype = x.dtype;
    let compute = compute_type(dtype);
    let mut elements = vec![];
    for s in cx.elements(&x) {
        elements.push(convert::convert(&mut cx.b, dtype, compute, s)?);
    }
    for mut run in runs(&x.layout, dim) {
        if reverse {
            run.reverse();
        }
        for pair in run.windows(2) {
            let (before, here) = (elements[pair[0]], elements[pair[1]]);
            elements[pair[1]] = step(cx, running, compute, before, here)?;
        }
    }
    let mut out = vec![];
    for s in elements {
        out.push(convert::convert(&mut cx.b, compute, dtype, s)?);
    }
    let out = cx.from_elements(dtype, x.layout, &out);
    cx.bind_array(result, out);
    Ok(())
}

/// One step of a running reduction.
pub fn step(cx: &mut LowerCx, running: CumulativeOp, compute: DType, before: S, here: S) -> Result<S> {
    let binary = match running {
        CumulativeOp::Sum => BinaryOp::Add,
        CumulativeOp::Prod => BinaryOp::Mul,
        CumulativeOp::Max => BinaryOp::Max,
        CumulativeOp::Min => BinaryOp::Min,
        CumulativeOp::LogSumExp => return log_add_exp(cx, compute, before, here),
    };
    combine(cx, binary, compute, before, here)
}

/// log(eˣ + eʸ) = max + log1p(e^−|x − y|); equal infinities are themselves.
fn log_add_exp(cx: &mut LowerCx, dtype: DType, x: S, y: S) -> Result<S> {
    let precision = Precision::of(cx);
    let b = &mut cx.b;
    let largest = float::binary(b, precision, BinaryOp::Max, dtype, x, y)?;
    let difference = float::binary(b, precision, BinaryOp::Sub, dtype, x, y)?;
    let difference = float::unary(b, precision, UnaryOp::Abs, dtype, difference)?;
    let difference = float::unary(b, precision, UnaryOp::Neg, dtype, difference)?;
    let e = float::unary(b, precision, UnaryOp::Exp, dtype, difference)?;
    let rest = float::unary(b, precision, UnaryOp::Log1p, dtype, e)?;
    let sum = float::binary(b, precision, BinaryOp::Add, dtype, largest, rest)?;
    let equal = float::compare(b, CompareOp::Eq, dtype, x, y)?;
    let infinite = float::unary(b, precision, UnaryOp::IsFinite, dtype, x)?;
    let infinite = b.not_pred(infinite);
    let keep = b.both(equal, infinite);
    Ok(b.pick(scalar_class(dtype), keep, x, sum))
}
