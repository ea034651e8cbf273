//! Values → registers: those that a copy or a tied operand joins share one, unless they are live together. Fragments of accumulators
//! that are loaded for one product, one after the other, share theirs.
use super::linearize::*;
use super::liveness::*;
use crate::ptx::flat::Reg;
use crate::ptx::inst::{Effects, Inst};
use crate::ptx::ssa::*;
use cranelift_entity::SecondaryMap;
use rustc_hash::FxHashSet;

pub(super) struct Webs {
    /// The register of every value that is defined.
    pub reg: SecondaryMap<Value, Option<Reg>>,
    /// Registers of each class.
    pub count: [u32; 4],
}

struct UnionFind {
    parent: SecondaryMap<Value, Option<Value>>,
    ranges: SecondaryMap<Value, Ranges>,
}

impl UnionFind {
    fn find(&mut self, v: Value) -> Value {
        let mut root = v;
        while let Some(up) = self.parent[root] {
            root = up;
        }
        let mut at = v;
        while let Some(up) = self.parent[at] {
            if up == root {
                break;
            }
            self.parent[at] = Some(root);
            at = up;
        }
        root
    }
    fn join(&mut self, a: Value, b: Value) {
        let (a, b) = (self.find(a), self.find(b));
        if a == b || !disjoint(&self.ranges[a], &self.ranges[b]) {
            return;
        }
        let (root, child) = if self.ranges[a].len() >= self.ranges[b].len() {
            (a, b)
        } else {
            (b, a)
        };
        let ranges = std::mem::take(&mut self.ranges[child]);
        union(&mut self.ranges[root], &ranges);
        self.parent[child] = Some(root);
    }
}

/// ptxas 13.0 allocates registers for a fragment as a whole, and does not see that those of one fragment are free when the next is
/// loaded: with registers of their own, fragments that fit one after the other are spilled, and every wgmma is serialised.
fn share_loaded_fragments(linear: &Linear<'_>, sets: &mut UnionFind) {
    let insts = || {
        let ops = linear.blocks.iter().flat_map(|block| &block.ops);
        ops.filter_map(|op| match op {
            LOp::Inst { inst, .. } => Some(&**inst),
            LOp::Copies { .. } | LOp::Settle { .. } => None,
        })
    };
    let mut loaded = FxHashSet::default();
    for inst in insts() {
        if let Inst::Ld { d, .. } | Inst::LdLocal { d, .. } = inst {
            loaded.extend(d.iter().map(|v| sets.find(*v)));
        }
    }
    // The registers that fragments share, of the longest one.
    let mut shared: Vec<Vec<Value>> = vec![];
    for inst in insts().filter(|inst| inst.effects().contains(Effects::WGMMA)) {
        let Some(tied) = inst.tied() else { continue };
        let fragment: Vec<Value> = tied.input.iter().map(|v| sets.find(*v)).collect();
        if !fragment.iter().all(|v| loaded.contains(v)) {
            continue;
        }
        let fits = |sets: &mut UnionFind, registers: &[Value]| {
            registers.iter().zip(&fragment).all(|(r, v)| {
                let r = sets.find(*r);
                r == *v || disjoint(&sets.ranges[r], &sets.ranges[*v])
            })
        };
        let Some(registers) = shared.iter_mut().find(|registers| fits(sets, registers)) else {
            shared.push(fragment);
            continue;
        };
        for (r, v) in registers.iter().zip(&fragment) {
            sets.join(*r, *v);
        }
        let more = fragment.get(registers.len()..).unwrap_or_default();
        registers.extend(more);
        for r in registers.iter() {
            let root = sets.find(*r);
            loaded.insert(root);
        }
    }
}

pub(super) fn coalesce(
    ssa: &Ssa,
    linear: &Linear<'_>,
    constants: &SecondaryMap<Value, Option<u64>>,
    live: Liveness,
) -> Webs {
    // Accumulators first, then the copies of inner loops before those of outer ones.
    let mut wishes: Vec<(u32, Value, Value)> = vec![];
    for block in &linear.blocks {
        for op in &block.ops {
            for step in steps(op) {
                match step {
                    Step::Copies(pairs) => {
                        for (d, s) in pairs {
                            if let Some(s) = s.reg() {
                                wishes.push((1000 - block.depth.min(999), *d, s));
                            }
                        }
                    }
                    Step::Tied(inst) => {
                        if let Some(tied) = inst.tied() {
                            for (i, o) in tied.input.iter().zip(&tied.output) {
                                if constants[*i].is_none() {
                                    wishes.push((0, *o, *i));
                                }
                            }
                        }
                    }
                    Step::Inst(..) => {}
                }
            }
        }
    }
    wishes.sort_by_key(|(order, ..)| *order);
    let mut sets = UnionFind {
        parent: SecondaryMap::with_capacity(ssa.values.len()),
        ranges: live.ranges,
    };
    for (_, d, s) in wishes {
        if ssa.values[d].class == ssa.values[s].class {
            sets.join(d, s);
        }
    }
    share_loaded_fragments(linear, &mut sets);
    // Registers are numbered in the order of their first definition.
    let mut webs = Webs {
        reg: SecondaryMap::with_capacity(ssa.values.len()),
        count: [0; 4],
    };
    for block in &linear.blocks {
        for op in &block.ops {
            for step in steps(op) {
                step.for_each_def(|v| {
                    if webs.reg[v].is_some() {
                        return;
                    }
                    let root = sets.find(v);
                    if webs.reg[root].is_none() {
                        let class = ssa.values[v].class;
                        let index = webs.count[class as usize];
                        webs.count[class as usize] += 1;
                        webs.reg[root] = Some(Reg { class, index });
                    }
                    webs.reg[v] = webs.reg[root];
                });
            }
        }
    }
    webs
}
