//! Moves out of loops what does not change in them: pure instructions whose operands come from outside.
//!
//! ptxas hoists too, but the emulator runs what is written. A budget keeps registers: every value moved may stay live
//! over the whole loop.
use super::ssa::*;
use cranelift_entity::SecondaryMap;

/// 32-bit words that one loop may keep alive for what was moved out of it.
const BUDGET: u32 = 32;

pub fn run(ssa: &mut Ssa) {
    let Some(body) = ssa.body else { return };
    let mut depth: SecondaryMap<Value, u32> = SecondaryMap::with_capacity(ssa.values.len());
    record(ssa, body, 0, &mut depth);
    region(ssa, body, 0, &mut depth);
}

/// The number of loops around each definition.
fn record(ssa: &Ssa, r: Region, at: u32, depth: &mut SecondaryMap<Value, u32>) {
    ssa.regions[r].params.iter().for_each(|p| depth[*p] = at);
    for op in &ssa.regions[r].ops {
        match &op.kind {
            OpKind::Inst { inst, .. } => inst.for_each_def(|d, _| depth[d] = at),
            OpKind::If {
                then,
                otherwise,
                results,
                ..
            } => {
                results.iter().for_each(|d| depth[*d] = at);
                record(ssa, *then, at, depth);
                record(ssa, *otherwise, at, depth);
            }
            OpKind::Loop {
                cond, body, results, ..
            } => {
                results.iter().for_each(|d| depth[*d] = at);
                record(ssa, *cond, at + 1, depth);
                record(ssa, *body, at + 1, depth);
            }
        }
    }
}

/// `r` lies inside `at` loops. Inner loops first: what leaves them may leave this one too.
fn region(ssa: &mut Ssa, r: Region, at: u32, depth: &mut SecondaryMap<Value, u32>) {
    let ops = std::mem::take(&mut ssa.regions[r].ops);
    let mut out = Vec::with_capacity(ops.len());
    for op in ops {
        match op.kind {
            OpKind::Inst { .. } => {}
            OpKind::If { then, otherwise, .. } => {
                region(ssa, then, at, depth);
                region(ssa, otherwise, at, depth);
            }
            OpKind::Loop { cond, body, .. } => {
                region(ssa, cond, at + 1, depth);
                region(ssa, body, at + 1, depth);
                leave(ssa, [cond, body], at, depth, &mut out);
            }
        }
        out.push(op);
    }
    ssa.regions[r].ops = out;
}

fn movable(op: &Op, at: u32, depth: &SecondaryMap<Value, u32>) -> bool {
    let OpKind::Inst { guard: None, inst } = &op.kind else {
        return false;
    };
    let mut outside = inst.is_speculatable();
    let mut operands = 0;
    inst.for_each_use(|v, _| {
        operands += 1;
        outside &= depth[v] <= at;
    });
    // A constant costs less than the register that would keep it.
    outside && operands > 0
}

/// Moves what may leave the loop in `regions` to `out`.
fn leave(ssa: &mut Ssa, regions: [Region; 2], at: u32, depth: &mut SecondaryMap<Value, u32>, out: &mut Vec<Op>) {
    let mut budget = BUDGET;
    for r in regions {
        let ops = std::mem::take(&mut ssa.regions[r].ops);
        let (mut moved, mut kept): (Vec<Op>, Vec<Op>) = (vec![], Vec::with_capacity(ops.len()));
        for op in ops {
            if budget == 0 || !movable(&op, at, depth) {
                kept.push(op);
                continue;
            }
            if let OpKind::Inst { inst, .. } = &op.kind {
                inst.for_each_def(|d, slot| {
                    depth[d] = at;
                    budget = budget.saturating_sub(slot.class.bits().div_ceil(32));
                });
            }
            moved.push(op);
        }
        ssa.regions[r].ops = kept;
        out.extend(moved);
    }
}
