//! Values → registers: those that a copy or a tied operand joins share one, unless they are live together.
use super::linearize::*;
use super::liveness::*;
use crate::ptx::flat::Reg;
use crate::ptx::ssa::*;
use cranelift_entity::SecondaryMap;

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
