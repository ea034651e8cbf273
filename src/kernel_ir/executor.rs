//! What depends on nothing but who executes it: integers, bools and arms.
use super::class::{Control, Function, Pure};
use super::*;
use std::cell::Cell;

/// Who executes: a warpgroup, or one of its warps.
#[derive(Clone, Copy)]
pub struct Executor {
    pub warpgroup: u32,
    /// Of a warp region.
    pub warp: Option<u32>,
}

impl Executor {
    pub fn warpgroup(warpgroup: u32) -> Executor {
        Executor { warpgroup, warp: None }
    }
}

/// An integer or bool that depends on the warpgroup's index alone.
pub fn evaluate_for(kernel: &Kernel, v: Value, warpgroup: u32) -> Option<i64> {
    evaluate_with(kernel, v, Executor::warpgroup(warpgroup), &|_| None)
}

/// What a value is known to be.
#[derive(Clone, Copy, Debug)]
pub enum Known {
    Value(Value),
    Number(i64),
}

/// One that depends on the executor's indices, and on values of which `known` says what they are.
pub fn evaluate_with(kernel: &Kernel, v: Value, by: Executor, known: &dyn Fn(Value) -> Option<Known>) -> Option<i64> {
    evaluate(kernel, v, by, known, &Cell::new(MAX_EVALUATED))
}

/// The arm of a switch that an executor is known to take.
pub fn arm_taken(kernel: &Kernel, kind: &OpKind, by: Executor) -> Option<Region> {
    let Some(Control::Switch { selector, arms }) = kind.control() else {
        return None;
    };
    let n = evaluate_with(kernel, selector, by, &|_| None)?;
    arms.get(usize::try_from(n).ok()?).copied()
}

/// The values that are looked at for one; of larger expressions nothing is known.
const MAX_EVALUATED: u32 = 64;

fn evaluate(
    kernel: &Kernel,
    v: Value,
    by: Executor,
    known: &dyn Fn(Value) -> Option<Known>,
    left: &Cell<u32>,
) -> Option<i64> {
    let v = match known(v) {
        Some(Known::Number(n)) => return Some(n),
        Some(Known::Value(v)) => v,
        None => v,
    };
    if let Some(n) = kernel.facts(v).as_constant() {
        return Some(n);
    }
    left.set(left.get().checked_sub(1)?);
    let of = |v: Value| evaluate(kernel, v, by, known, left);
    let kind = &kernel.ops[kernel.def_op(v)?].kind;
    if let OpKind::AxisIndex { axis } = kind {
        return match kernel.axes[*axis].kind {
            AxisKind::Thread => Some(by.warpgroup.into()),
            AxisKind::Warp => by.warp.map(i64::from),
            AxisKind::Grid(_) | AxisKind::Cluster(_) | AxisKind::DeviceMesh(_) => None,
        };
    }
    let Some(Pure::Elementwise(function)) = kind.pure() else {
        return None;
    };
    let dtype = kernel.ty(v).dtype();
    let number = |x: i128| i64::try_from(x).ok();
    match function {
        Function::Convert { a } if !kernel.ty(a).dtype().is_float() => number(arithmetic::wrap(dtype, of(a)?.into())),
        Function::Compare { op, a, b } => {
            let (a, b) = (of(a)?, of(b)?);
            Some(i64::from(arithmetic::compare(op, a.into(), b.into())))
        }
        Function::Binary { op, a, b } => number(arithmetic::binary(op, dtype, of(a)?.into(), of(b)?.into())?),
        Function::Unary { op, a } => number(arithmetic::unary(op, dtype, of(a)?.into())?),
        Function::Clamp { lo, x, hi } => Some(of(x)?.max(of(lo)?).min(of(hi)?)),
        Function::Convert { .. }
        | Function::Select { .. }
        | Function::IntegerPow { .. }
        | Function::Other
        | Function::MultipleOf { .. } => None,
    }
}
