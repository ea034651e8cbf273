//! Conditionals that only compute, so that of two that are alike the second is the first.
use super::inst::{Inst, RegMap};
use super::operand::Slot;
use super::ssa::*;
use cranelift_entity::EntityRef;
use rustc_hash::{FxHashMap, FxHasher};
use std::hash::Hasher;

/// Names of what arms define themselves, in the order in which they do.
const FIRST_OWN: usize = 1 << 31;

/// What a conditional computes, whatever its arms call their values.
#[derive(Debug)]
pub struct Computation {
    hash: u64,
    cond: Value,
    arms: [Arm; 2],
}

#[derive(PartialEq, Eq, Debug)]
struct Arm {
    insts: Vec<Inst<Value>>,
    results: Vec<Value>,
}

impl Computation {
    /// None if an arm does more than compute.
    pub fn of(ssa: &Ssa, cond: Value, arms: [Region; 2]) -> Option<Computation> {
        let mut hasher = FxHasher::default();
        hasher.write_usize(cond.index());
        let [a, b] = arms;
        let arms = [arm(ssa, a, &mut hasher)?, arm(ssa, b, &mut hasher)?];
        Some(Computation {
            hash: hasher.finish(),
            cond,
            arms,
        })
    }

    /// Whether both compute the same.
    pub fn equals(&self, other: &Computation) -> bool {
        (self.hash, self.cond) == (other.hash, other.cond) && self.arms == other.arms
    }
}

fn arm(ssa: &Ssa, region: Region, hasher: &mut FxHasher) -> Option<Arm> {
    let mut own = Own::default();
    let mut insts = vec![];
    for op in &ssa.regions[region].ops {
        match &op.kind {
            OpKind::Inst { guard: None, inst } if inst.is_speculatable() => {
                let inst = inst.map(&mut own);
                inst.hash_but_for_names(hasher);
                insts.push(inst);
            }
            OpKind::Inst { .. } | OpKind::If { .. } | OpKind::Loop { .. } => return None,
        }
    }
    let results: Vec<Value> = ssa.regions[region].results.iter().map(|v| own.of(*v)).collect();
    results.iter().for_each(|v| hasher.write_usize(v.index()));
    Some(Arm { insts, results })
}

#[derive(Default)]
struct Own(FxHashMap<Value, Value>);

impl Own {
    fn of(&self, v: Value) -> Value {
        self.0.get(&v).copied().unwrap_or(v)
    }
}

impl RegMap<Value, Value> for Own {
    fn reg(&mut self, r: Value, _: Slot) -> Value {
        self.of(r)
    }
    fn def(&mut self, r: Value, _: Slot) -> Value {
        let name = Value::new(FIRST_OWN + self.0.len());
        self.0.insert(r, name);
        name
    }
}
