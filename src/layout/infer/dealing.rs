//! Whether each warp has whole rows of a product of arrays, or tiles that are nearly square, for which it reads less of the operands.
//!
//! Rows, where results are reduced along them, or are left operands of other products: what is reduced, or multiplied, is then in one warp. And
//! where there is `wgmma`, whose results lie so: what the others of its products are is changed to and fro without a trip.
use crate::kernel_ir::class::Pure;
use crate::kernel_ir::visit::for_each_value;
use crate::kernel_ir::{Dealing, Kernel, MmaOperand, OpKind, Value};
use crate::target::Features;
use rustc_hash::FxHashSet;

pub fn of(kernel: &Kernel) -> Dealing {
    if kernel.target.has(Features::WGMMA) {
        return Dealing::Rows;
    }
    let mut needs_rows = false;
    let mut seen = FxHashSet::default();
    kernel.for_each_op(&mut |op| {
        let kind = &kernel.ops[op].kind;
        let mut whole = None;
        if let Some(Pure::Product { a, .. } | Pure::Reduce { a, .. }) = kind.pure() {
            whole = Some(a);
        }
        if let OpKind::DotInPlace {
            a: MmaOperand::Registers(a),
            ..
        } = kind
        {
            whole = Some(*a);
        }
        needs_rows |= whole.is_some_and(|v| is_of_product(kernel, v, &mut seen));
        if matches!(kind.pure(), Some(Pure::Run | Pure::Exchange)) {
            for_each_value(kind, &mut |v| needs_rows |= is_of_product(kernel, v, &mut seen));
        }
    });
    if needs_rows { Dealing::Rows } else { Dealing::Squares }
}

/// Whether a value is computed from the result of a product of arrays by what has no effects. What was seen before was of none.
fn is_of_product(kernel: &Kernel, v: Value, seen: &mut FxHashSet<Value>) -> bool {
    let mut work = vec![v];
    while let Some(v) = work.pop() {
        if kernel.ty(v).is_scalar() || !seen.insert(v) {
            continue;
        }
        let Some(op) = kernel.def_op(v) else { continue };
        let kind = &kernel.ops[op].kind;
        if matches!(kind.pure(), Some(Pure::Product { .. })) || matches!(kind, OpKind::DotInPlace { .. }) {
            return true;
        }
        if kind.is_pure() {
            for_each_value(kind, &mut |v| work.push(v));
        }
    }
    false
}
