//! Moves out of loops what does not change in them: pure instructions whose operands come from outside.
//!
//! ptxas hoists too, but the emulator runs what is written. A budget keeps registers: every value moved may stay live
//! over the whole loop.
use super::inst::{Inst, RegMap};
use super::operand::{Slot, Src};
use super::ssa::*;
use cranelift_entity::SecondaryMap;

/// 32-bit words that one loop may keep alive for what was moved out of it.
const BUDGET: u32 = 32;

pub fn run(ssa: &mut Ssa) {
    let Some(body) = ssa.body else { return };
    let mut known = Known {
        depth: SecondaryMap::with_capacity(ssa.values.len()),
        alias: SecondaryMap::with_capacity(ssa.values.len()),
    };
    record(ssa, body, 0, &mut known);
    region(ssa, body, 0, &mut known);
}

struct Known {
    /// The number of loops around each definition.
    depth: SecondaryMap<Value, u32>,
    /// What a loop carries unchanged is what it started as.
    alias: SecondaryMap<Value, Option<Value>>,
}

impl Known {
    fn resolve(&self, v: Value) -> Value {
        self.alias[v].unwrap_or(v)
    }
    fn set_alias(&mut self, v: Value, of: Value) {
        let of = self.resolve(of);
        self.depth[v] = self.depth[of];
        self.alias[v] = Some(of);
    }
}

impl RegMap<Value, Value> for &Known {
    fn reg(&mut self, r: Value, _: Slot) -> Value {
        self.resolve(r)
    }
    fn def(&mut self, r: Value, _: Slot) -> Value {
        r
    }
}

fn record(ssa: &Ssa, r: Region, at: u32, known: &mut Known) {
    for op in &ssa.regions[r].ops {
        match &op.kind {
            OpKind::Inst { inst, .. } => inst.for_each_def(|d, _| known.depth[d] = at),
            OpKind::If {
                then,
                otherwise,
                results,
                ..
            } => {
                results.iter().for_each(|d| known.depth[*d] = at);
                record(ssa, *then, at, known);
                record(ssa, *otherwise, at, known);
            }
            OpKind::Loop {
                inits,
                cond,
                body,
                results,
            } => {
                results.iter().for_each(|d| known.depth[*d] = at);
                let (c, b) = (&ssa.regions[*cond], &ssa.regions[*body]);
                c.params.iter().chain(&b.params).for_each(|p| known.depth[*p] = at + 1);
                let handed = c.results.get(1..).unwrap_or_default();
                for (i, p) in c.params.iter().enumerate() {
                    let passed = |v: &Value| b.params.iter().zip(handed).any(|(q, h)| q == v && h == p);
                    if b.results[i] == *p || passed(&b.results[i]) {
                        known.set_alias(*p, inits[i]);
                    }
                }
                for (q, h) in b.params.iter().zip(handed) {
                    if known.alias[*h].is_some() && c.params.contains(h) {
                        known.set_alias(*q, *h);
                    }
                }
                record(ssa, *cond, at + 1, known);
                record(ssa, *body, at + 1, known);
            }
        }
    }
}

/// `r` lies inside `at` loops. Inner loops first: what leaves them may leave this one too.
fn region(ssa: &mut Ssa, r: Region, at: u32, known: &mut Known) {
    let ops = std::mem::take(&mut ssa.regions[r].ops);
    let mut out = Vec::with_capacity(ops.len());
    for op in ops {
        match op.kind {
            OpKind::Inst { .. } => {}
            OpKind::If { then, otherwise, .. } => {
                region(ssa, then, at, known);
                region(ssa, otherwise, at, known);
            }
            OpKind::Loop { cond, body, .. } => {
                region(ssa, cond, at + 1, known);
                region(ssa, body, at + 1, known);
                leave(ssa, [cond, body], at, known, &mut out);
            }
        }
        out.push(op);
    }
    ssa.regions[r].ops = out;
}

fn movable(op: &Op, at: u32, known: &Known) -> bool {
    let OpKind::Inst { guard: None, inst } = &op.kind else {
        return false;
    };
    let mut outside = inst.is_speculatable();
    let mut operands = 0;
    inst.for_each_use(|v, _| {
        operands += 1;
        outside &= known.depth[v] <= at;
    });
    // A constant costs less than the register that would keep it.
    outside && operands > 0
}

/// Costs no more than keeping it: a sum with a constant, which mostly is a part of an address. Where the other term is equal in
/// all threads a register for it costs more than the sum, too: what is added up with it leaves the uniform datapath.
fn is_cheap(inst: &Inst<Value>) -> bool {
    matches!(inst, Inst::AddInt { b: Src::Imm(_), .. })
}

/// Which instructions may leave the loop, and not for themselves alone if they are cheap: of each region, by their position.
fn leaving(ssa: &Ssa, regions: [Region; 2], at: u32, known: &mut Known) -> [Vec<bool>; 2] {
    let mut leaving = regions.map(|r| vec![false; ssa.regions[r].ops.len()]);
    let mut inside: Vec<(Value, u32)> = vec![];
    for (r, leaving) in regions.iter().zip(&mut leaving) {
        for (op, leaves) in ssa.regions[*r].ops.iter().zip(leaving) {
            if movable(op, at, known)
                && let OpKind::Inst { inst, .. } = &op.kind
            {
                *leaves = true;
                inst.for_each_def(|d, _| inside.push((d, std::mem::replace(&mut known.depth[d], at))));
            }
        }
    }
    // What moves for another's sake is used further down.
    let mut used: SecondaryMap<Value, bool> = SecondaryMap::new();
    for (r, leaving) in regions.iter().zip(&mut leaving).rev() {
        for (op, leaves) in ssa.regions[*r].ops.iter().zip(leaving).rev() {
            let OpKind::Inst { inst, .. } = &op.kind else { continue };
            let mut wanted = !is_cheap(inst);
            inst.for_each_def(|d, _| wanted |= used[d]);
            *leaves &= wanted;
            if *leaves {
                inst.for_each_use(|v, _| used[v] = true);
            }
        }
    }
    inside.into_iter().for_each(|(d, depth)| known.depth[d] = depth);
    leaving
}

/// Moves what may leave the loop in `regions` to `out`.
fn leave(ssa: &mut Ssa, regions: [Region; 2], at: u32, known: &mut Known, out: &mut Vec<Op>) {
    let mut budget = BUDGET;
    let leaving = leaving(ssa, regions, at, known);
    for (r, leaving) in regions.into_iter().zip(leaving) {
        let ops = std::mem::take(&mut ssa.regions[r].ops);
        let (mut moved, mut kept): (Vec<Op>, Vec<Op>) = (vec![], Vec::with_capacity(ops.len()));
        for (mut op, leaves) in ops.into_iter().zip(leaving) {
            // Where the budget ended before an operand.
            if !leaves || budget == 0 || !movable(&op, at, known) {
                kept.push(op);
                continue;
            }
            if let OpKind::Inst { inst, .. } = &mut op.kind {
                inst.for_each_def(|d, slot| {
                    known.depth[d] = at;
                    budget = budget.saturating_sub(slot.class.bits().div_ceil(32));
                });
                *inst = inst.map(&mut &*known);
            }
            moved.push(op);
        }
        ssa.regions[r].ops = kept;
        out.extend(moved);
    }
}
