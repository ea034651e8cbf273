//! Left operands of `wgmma` in registers that are read again when the product is done are handed to it as copies.
//!
//! ptxas 13.0 gives the fragments of A of two products the same registers where they are as many, also if those of the first
//! product are read again later: in the next round of a loop, as a left operand that the loop does not change. The second product's
//! fragments destroy them, and from the second round on results are wrong, without a word (`docs/FOUND.md`). It sees through a `mov`. It
//! does not through an exclusive or with a number that it cannot know to be zero: of the copies nothing is read again, and what the
//! kernel keeps lies in registers of its own.
//!
//! Copies are made in front of the fence that orders registers before the products. Kernels whose products all have the same
//! fragments, or none, stay as they are.
use super::inst::{Inst, RegMap};
use super::modifier::*;
use super::operand::{Class, Slot, Src};
use super::settle_operands::read_later;
use super::ssa::*;
use crate::error::Loc;
use rustc_hash::{FxHashMap, FxHashSet};

pub fn run(ssa: &mut Ssa) {
    let Some(body) = ssa.body else { return };
    let mut fragments: FxHashSet<Vec<Value>> = FxHashSet::default();
    for op in ssa.regions.values().flat_map(|r| &r.ops) {
        if let OpKind::Inst { inst, .. } = &op.kind {
            fragments.extend(Some(read_later(inst)).filter(|l| !l.is_empty()));
        }
    }
    if fragments.len() < 2 {
        return;
    }
    let mut found = Found::default();
    found.region(ssa, body, 0);
    let kept: FxHashSet<Value> = fragments
        .iter()
        .flatten()
        .copied()
        .filter(|v| found.is_read_again(*v))
        .collect();
    if kept.is_empty() {
        return;
    }
    let zero = unknown_zero(ssa, body);
    for region in ssa.regions.keys().collect::<Vec<_>>() {
        copy(ssa, region, &kept, zero);
    }
}

/// Where values are defined and read, by the order of the program's text.
#[derive(Default)]
struct Found {
    at: u32,
    /// The loop that a value is defined in: the place where it begins.
    defined: FxHashMap<Value, u32>,
    /// Of the values that products read as A: the innermost loop, and the place where their group ends.
    products: FxHashMap<Value, Vec<(u32, u32)>>,
    last: FxHashMap<Value, u32>,
}

impl Found {
    fn define(&mut self, v: Value, inside: u32) {
        self.defined.insert(v, inside);
    }
    fn read(&mut self, v: Value) {
        self.last.insert(v, self.at);
    }

    /// Whether something reads the value behind the group of a product that reads it.
    fn is_read_again(&self, v: Value) -> bool {
        let (defined, last) = (self.defined.get(&v).copied(), self.last.get(&v).copied().unwrap_or(0));
        let mut products = self.products.get(&v).into_iter().flatten();
        products.any(|&(inside, end)| defined != Some(inside) || last > end)
    }

    /// `inside`: where the innermost loop begins.
    fn region(&mut self, ssa: &Ssa, region: Region, inside: u32) {
        let mut open: Vec<Value> = vec![];
        for v in &ssa.regions[region].params {
            self.define(*v, inside);
        }
        for op in &ssa.regions[region].ops {
            self.at += 1;
            match &op.kind {
                OpKind::Inst { guard, inst } => {
                    guard.iter().for_each(|(p, _)| self.read(*p));
                    inst.for_each_use(|v, _| self.read(v));
                    inst.for_each_def(|v, _| self.define(v, inside));
                    open.extend(read_later(inst));
                    if matches!(inst, Inst::WgmmaCommit {}) {
                        self.close(&mut open, inside);
                    }
                }
                OpKind::If {
                    cond,
                    then,
                    otherwise,
                    results,
                } => {
                    self.read(*cond);
                    self.region(ssa, *then, inside);
                    self.region(ssa, *otherwise, inside);
                    results.iter().for_each(|v| self.define(*v, inside));
                }
                OpKind::Loop {
                    inits,
                    cond,
                    body,
                    results,
                } => {
                    inits.iter().for_each(|v| self.read(*v));
                    let here = self.at;
                    self.region(ssa, *cond, here);
                    self.region(ssa, *body, here);
                    results.iter().for_each(|v| self.define(*v, inside));
                }
            }
        }
        self.close(&mut open, inside);
        self.at += 1;
        for v in &ssa.regions[region].results {
            self.read(*v);
        }
    }

    fn close(&mut self, open: &mut Vec<Value>, inside: u32) {
        for v in open.drain(..) {
            self.products.entry(v).or_default().push((inside, self.at));
        }
    }
}

/// Zero, as long as a GPU has fewer than 2^31 multiprocessors; at the start of the kernel.
fn unknown_zero(ssa: &mut Ssa, body: Region) -> Value {
    let (count, zero) = (ssa.value(Class::B32, Uniform::Cta), ssa.value(Class::B32, Uniform::Cta));
    let read = Inst::mov_special32(SpecialReg32::Nsmid, count);
    let shift = Inst::shr(ShiftType::U32, zero, Src::Reg(count), Src::u32(31));
    ssa.regions[body]
        .ops
        .splice(0..0, [plain(read, Loc::CALL_SITE), plain(shift, Loc::CALL_SITE)]);
    zero
}

fn plain(inst: Inst<Value>, loc: Loc) -> Op {
    Op {
        kind: OpKind::Inst { guard: None, inst },
        loc,
        memory: MemTag::ANY,
        rounding: Rounding::default(),
    }
}

/// Copies in front of the fences of a region, for the products that follow each.
fn copy(ssa: &mut Ssa, region: Region, kept: &FxHashSet<Value>, zero: Value) {
    let old = std::mem::take(&mut ssa.regions[region].ops);
    let mut new: Vec<Op> = Vec::with_capacity(old.len());
    let (mut fence, mut made): (Option<usize>, FxHashMap<Value, Value>) = (None, FxHashMap::default());
    for mut op in old {
        let loc = op.loc;
        if let OpKind::Inst { inst, .. } = &mut op.kind {
            if matches!(inst, Inst::WgmmaFence { .. }) {
                (fence, made) = (Some(new.len()), FxHashMap::default());
            }
            let mut copies = vec![];
            for v in read_later(inst).into_iter().filter(|v| kept.contains(v)) {
                made.entry(v).or_insert_with(|| {
                    let d = ssa.values.push(ssa.values[v].clone());
                    let (a, b) = (Src::Reg(v), Src::Reg(zero));
                    copies.push(plain(Inst::logic(Logic::Xor, LogicType::B32, d, a, b), loc));
                    d
                });
            }
            if !read_later(inst).is_empty() {
                *inst = inst.map(&mut Copied(&made));
            }
            let at = fence.unwrap_or(new.len());
            fence = fence.map(|at| at + copies.len());
            new.splice(at..at, copies);
        }
        new.push(op);
    }
    ssa.regions[region].ops = new;
}

/// Reads copies.
struct Copied<'a>(&'a FxHashMap<Value, Value>);

impl RegMap<Value, Value> for Copied<'_> {
    fn reg(&mut self, v: Value, _: Slot) -> Value {
        self.0.get(&v).copied().unwrap_or(v)
    }
    fn def(&mut self, v: Value, _: Slot) -> Value {
        v
    }
}
