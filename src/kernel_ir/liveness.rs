//! What is alive where.
use super::rewrite::regions_of;
use super::*;
use rustc_hash::FxHashSet;

/// Makes of what is alive behind an op what is alive before it.
pub fn go_before(kernel: &Kernel, op: Op, alive: &mut FxHashSet<Value>) {
    for v in &kernel.ops[op].results {
        alive.remove(v);
    }
    visit::for_each_value(&kernel.ops[op].kind, &mut |v| {
        alive.insert(v);
    });
    for inner in regions_of(kernel, op) {
        captured(kernel, inner, alive);
    }
}

/// Adds what a region uses from outside.
pub fn captured(kernel: &Kernel, region: Region, out: &mut FxHashSet<Value>) {
    let mut used: FxHashSet<Value> = kernel.regions[region].results.iter().copied().collect();
    for &op in kernel.regions[region].ops.iter().rev() {
        go_before(kernel, op, &mut used);
    }
    for v in &kernel.regions[region].params {
        used.remove(v);
    }
    out.extend(used);
}

/// Whether an array takes no registers: it is made anew where it is used.
pub fn is_free(kernel: &Kernel, v: Value) -> bool {
    kernel.def_op(v).is_some_and(|op| {
        matches!(
            kernel.ops[op].kind,
            OpKind::Constant(_) | OpKind::Iota { .. } | OpKind::Broadcast { .. }
        )
    })
}
