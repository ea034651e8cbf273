//! Arrivals by which warpgroups take turns: each arrives on a barrier when its arithmetic is done, waits for the other, and multiplies.
//!
//! ```text
//! p = exp2(…)
//! arrive [turn]        the other warpgroup may begin its arithmetic
//! wait [turn]
//! wgmma_wait … wgmma p @ …
//! ```
//!
//! To an assembler an arrival orders memory and nothing else: ptxas 13.0 moves all of the arithmetic behind it, all warpgroups compute at
//! once, and multiply at once. So the arrival is tied to elements of what the product takes in registers: to a few that are spread over
//! them, so that about half of the arithmetic is done by then. Not to all: a warpgroup that computes alone leaves issue slots empty.
//! Attention forward of 4096 rows with rotated loops on an H200, µs, tied to nothing / to four words / to the sums of all: head 64, 128 keys 162.6 / 149.2 /
//! 189.3, 64 keys 182.3 / 161.8 / 229.5; head 128, 128 keys 200.6 / 199.7 / 219.3.
//!
//! Tied are arrivals in front of a wait for the same barrier, in front of a product whose left operand the same straight run of ops has
//! computed in registers before, if all that is alive there fits into registers: else the assembler spills, and more so for a tie. An arrival that
//! only releases something is as early as it can be.
use crate::kernel_ir::liveness::{self, Around};
use crate::kernel_ir::rewrite::regions_of;
use crate::kernel_ir::*;
use cranelift_entity::SecondaryMap;
use cranelift_entity::packed_option::PackedOption;
use rustc_hash::FxHashSet;

/// What each arrival is tied to.
pub fn find(kernel: &Kernel) -> SecondaryMap<Op, PackedOption<Value>> {
    let mut tied = SecondaryMap::new();
    region(kernel, kernel.body, Around::new(kernel), &mut tied);
    tied
}

fn region(kernel: &Kernel, at: Region, mut around: Around, tied: &mut SecondaryMap<Op, PackedOption<Value>>) {
    let RegionData { ops, results, .. } = &kernel.regions[at];
    for (i, &op) in ops.iter().enumerate() {
        let kind = &kernel.ops[op].kind;
        around.pass(kernel, op);
        if let OpKind::BarrierArrive { barrier, .. } = kind
            && barrier.place == Place::Here
            && let Some(v) = operand(kernel, &ops[..i], barrier.alloc, &ops[i + 1..])
        {
            // What is held all along, and the operand before it is converted.
            let mut alive: FxHashSet<Value> = results.iter().copied().collect();
            ops[i + 1..]
                .iter()
                .rev()
                .for_each(|op| liveness::go_before(kernel, *op, &mut alive));
            alive.remove(&v);
            let is_held = |v: &&Value| liveness::is_held(kernel, **v);
            let words: u64 = alive.iter().filter(is_held).map(|v| around.words(kernel, *v, 8)).sum();
            if words + around.words(kernel, v, 32) + u64::from(kernel.target.overlap_reserve) <= around.registers.into()
            {
                tied[op] = v.into();
            }
        }
        for inner in regions_of(kernel, op) {
            region(kernel, inner, around.clone(), tied);
        }
    }
}

/// What the product behind the wait takes, if it was computed before.
fn operand(kernel: &Kernel, before: &[Op], awaited: Alloc, behind: &[Op]) -> Option<Value> {
    let mut waited = false;
    for &op in behind {
        if let OpKind::BarrierWait { barrier, .. } = &kernel.ops[op].kind {
            waited |= barrier.alloc == awaited;
        } else if let OpKind::Wgmma { a, .. } = &kernel.ops[op].kind {
            let MmaOperand::Registers(v) = a else {
                return None;
            };
            let def = kernel.def_op(*v)?;
            let kind = &kernel.ops[def].kind;
            let is_computed = kind.is_pure() || matches!(kind, OpKind::OptimizationBarrier { .. });
            return (waited && is_computed && before.contains(&def)).then_some(*v);
        }
    }
    None
}
