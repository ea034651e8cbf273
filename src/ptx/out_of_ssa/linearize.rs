//! Structured regions → blocks over values, with parallel copies on the edges.
//!
//! A loop becomes a guard and a bottom test: a small condition region is emitted twice, with the same values, so that
//! they are defined twice (what follows asks for liveness, not for single definitions). Edges that carry copies get a
//! block of their own, which vanishes when its copies do.
use crate::error::Loc;
use crate::ptx::evaluate::{NoFunctions, evaluate};
use crate::ptx::inst::{Effects, Inst};
use crate::ptx::operand::*;
use crate::ptx::ssa::*;
use cranelift_entity::SecondaryMap;
use rustc_hash::FxHashMap;

/// A guarded instruction costs its issue slot; more of them than this and a branch is cheaper.
const MAX_GUARDED: usize = 6;
/// Conditions up to this size are emitted twice.
const MAX_DUPLICATED: usize = 24;

pub(super) struct Linear<'a> {
    pub blocks: Vec<LBlock<'a>>,
}

pub(super) struct LBlock<'a> {
    pub ops: Vec<LOp<'a>>,
    pub terminator: LTerm,
    pub loc: Loc,
    /// Loops around it.
    pub depth: u32,
    /// Where a conditional or a loop ends: the block before it. Every path from there comes here, every path to here comes from there, and in
    /// printing order only blocks of those paths are between.
    pub head: Option<usize>,
}

pub(super) enum LOp<'a> {
    Inst {
        guard: Option<(Value, Negated)>,
        inst: &'a Inst<Value>,
        loc: Loc,
        /// A wait: what the wgmmas that it covers may have read until here.
        settled: Vec<Value>,
    },
    /// The accumulators that are in flight here wait, since the way they join leaves them defined by something else:
    /// ptxas would serialise every wgmma (C7515). With a value: only if that one is not in flight.
    Settle {
        values: Vec<(Value, Option<Value>)>,
        loc: Loc,
    },
    /// All at once.
    Copies { pairs: Vec<(Value, Src<Value>)>, loc: Loc },
}

impl LOp<'_> {
    pub fn loc(&self) -> Loc {
        match self {
            LOp::Inst { loc, .. } | LOp::Settle { loc, .. } | LOp::Copies { loc, .. } => *loc,
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) enum LTerm {
    Branch(usize),
    Cond {
        pred: Value,
        then: usize,
        otherwise: usize,
        uniform: bool,
        reconverge: usize,
    },
    Return,
}

struct Linearizer<'a> {
    ssa: &'a Ssa,
    blocks: Vec<LBlock<'a>>,
    /// Blocks in printing order.
    order: Vec<usize>,
    current: usize,
    depth: u32,
    constants: SecondaryMap<Value, Option<u64>>,
    read: SecondaryMap<Value, bool>,
    /// The kernel has wgmmas.
    has_accumulators: bool,
}

/// The kernel as blocks, in printing order, and the values that are constants.
pub(super) fn linearize(ssa: &Ssa) -> (Linear<'_>, SecondaryMap<Value, Option<u64>>) {
    let mut constants = SecondaryMap::new();
    // Constants that something reads as a register; the others are written where they are copied.
    let mut read: SecondaryMap<Value, bool> = SecondaryMap::new();
    let mut has_accumulators = false;
    for region in ssa.regions.values() {
        for op in &region.ops {
            match &op.kind {
                OpKind::Inst { guard, inst } => {
                    if let Inst::Mov {
                        d, a: Src::Imm(bits), ..
                    }
                    | Inst::MovPred { d, a: Src::Imm(bits) } = inst
                    {
                        constants[*d] = Some(*bits);
                    }
                    has_accumulators |= inst.effects().contains(Effects::ASYNC_REGISTERS);
                    if let Some((p, _)) = guard {
                        read[*p] = true;
                    }
                    inst.for_each_untied_use(|v, _| read[v] = true);
                }
                OpKind::If { cond, .. } => read[*cond] = true,
                OpKind::Loop { cond, .. } => {
                    if let Some(pred) = ssa.regions[*cond].results.first() {
                        read[*pred] = true;
                    }
                }
            }
        }
    }
    let mut l = Linearizer {
        ssa,
        blocks: vec![],
        order: vec![],
        current: 0,
        depth: 0,
        constants,
        read,
        has_accumulators,
    };
    let entry = l.block(Loc::CALL_SITE);
    l.start(entry);
    if let Some(body) = ssa.body {
        l.region(body);
    }
    l.finish(LTerm::Return);
    (renumber(l.blocks, &l.order), l.constants)
}

fn renumber<'a>(blocks: Vec<LBlock<'a>>, order: &[usize]) -> Linear<'a> {
    let mut position = vec![usize::MAX; blocks.len()];
    for (at, &b) in order.iter().enumerate() {
        position[b] = at;
    }
    let mut slots: Vec<Option<LBlock<'a>>> = blocks.into_iter().map(Some).collect();
    let blocks = order
        .iter()
        .filter_map(|&b| slots[b].take())
        .map(|mut block| {
            block.head = block.head.map(|head| position[head]);
            block.terminator = match block.terminator {
                LTerm::Branch(to) => LTerm::Branch(position[to]),
                LTerm::Cond {
                    pred,
                    then,
                    otherwise,
                    uniform,
                    reconverge,
                } => LTerm::Cond {
                    pred,
                    then: position[then],
                    otherwise: position[otherwise],
                    uniform,
                    reconverge: position[reconverge],
                },
                LTerm::Return => LTerm::Return,
            };
            block
        })
        .collect();
    Linear { blocks }
}

impl<'a> Linearizer<'a> {
    fn block(&mut self, loc: Loc) -> usize {
        self.blocks.push(LBlock {
            ops: vec![],
            terminator: LTerm::Return,
            loc,
            depth: self.depth,
            head: None,
        });
        self.blocks.len() - 1
    }
    /// The block behind a conditional or loop that begins where the current one ends.
    fn join(&mut self, loc: Loc) -> usize {
        let join = self.block(loc);
        self.blocks[join].head = Some(self.current);
        join
    }
    fn start(&mut self, b: usize) {
        self.order.push(b);
        self.blocks[b].depth = self.depth;
        self.current = b;
    }
    fn finish(&mut self, terminator: LTerm) {
        self.blocks[self.current].terminator = terminator;
    }
    fn push(&mut self, op: LOp<'a>) {
        self.blocks[self.current].ops.push(op);
    }
    fn uniform(&self, v: Value) -> bool {
        self.ssa.values[v].uniform >= Uniform::Warp
    }
    fn source(&self, v: Value) -> Src<Value> {
        match self.constants[v] {
            Some(bits) => Src::Imm(bits),
            None => Src::Reg(v),
        }
    }
    fn copies(&mut self, to: &[Value], from: &[Value], loc: Loc) {
        let pairs: Vec<_> = to.iter().zip(from).map(|(t, f)| (*t, self.source(*f))).collect();
        if !pairs.is_empty() {
            self.push(LOp::Copies { pairs, loc });
        }
    }
    /// A block with these copies on the way to `next`.
    fn edge(&mut self, to: &[Value], from: &[Value], next: usize, loc: Loc) -> usize {
        let edge = self.block(loc);
        let current = std::mem::replace(&mut self.current, edge);
        self.copies(to, from, loc);
        self.finish(LTerm::Branch(next));
        self.current = current;
        edge
    }

    /// Values that may be accumulators.
    fn settle(&mut self, values: impl Iterator<Item = (Value, Option<Value>)>, loc: Loc) {
        let values: Vec<_> = values
            .filter(|(v, _)| self.ssa.values[*v].class == Class::B32)
            .collect();
        if self.has_accumulators && !values.is_empty() {
            self.push(LOp::Settle { values, loc });
        }
    }

    /// The edge by which a loop that may not be entered at all is left.
    fn leaving(&mut self, results: &[Value], handed: &[Value], exit: usize, loc: Loc) -> usize {
        let edge = self.block(loc);
        let current = std::mem::replace(&mut self.current, edge);
        self.settle(handed.iter().map(|v| (*v, None)), loc);
        self.copies(results, handed, loc);
        self.finish(LTerm::Branch(exit));
        self.current = current;
        edge
    }

    fn region(&mut self, r: Region) {
        let ssa = self.ssa;
        for op in &ssa.regions[r].ops {
            match &op.kind {
                OpKind::Inst { guard, inst } => self.inst(*guard, inst, op.loc),
                OpKind::If {
                    cond,
                    then,
                    otherwise,
                    results,
                } => self.if_(*cond, *then, *otherwise, results, op.loc),
                OpKind::Loop {
                    inits,
                    cond,
                    body,
                    results,
                } => self.loop_(inits, *cond, *body, results, op.loc),
            }
        }
    }

    fn inst(&mut self, guard: Option<(Value, Negated)>, inst: &'a Inst<Value>, loc: Loc) {
        match inst {
            Inst::Mov { d, a: Src::Imm(_), .. } | Inst::MovPred { d, a: Src::Imm(_) } if !self.read[*d] => {}
            Inst::Mov {
                d, a: a @ Src::Reg(_), ..
            }
            | Inst::MovPred { d, a: a @ Src::Reg(_) }
                if guard.is_none() =>
            {
                let a = a.reg().map_or(*a, |v| self.source(v));
                self.push(LOp::Copies {
                    pairs: vec![(*d, a)],
                    loc,
                });
            }
            _ => self.push(LOp::Inst {
                guard,
                inst,
                loc,
                settled: vec![],
            }),
        }
    }

    /// How many ops the GPU sees in a region.
    fn size(&self, r: Region) -> usize {
        let comment = |op: &&Op| matches!(&op.kind, OpKind::Inst { inst, .. } if inst.is_comment());
        let ops = &self.ssa.regions[r].ops;
        ops.len() - ops.iter().filter(comment).count()
    }

    /// How many instructions of the region need the guard; `None` when it cannot be guarded.
    fn guardable(&self, r: Region) -> Option<usize> {
        let mut guarded = 0;
        for op in &self.ssa.regions[r].ops {
            let OpKind::Inst { guard: None, inst } = &op.kind else {
                return None;
            };
            if inst.is_speculatable() || inst.is_comment() {
                continue;
            }
            if inst.is_compound() || inst.effects().contains(Effects::CONVERGENT) {
                return None;
            }
            guarded += 1;
        }
        (guarded <= MAX_GUARDED && self.size(r) <= 2 * MAX_GUARDED).then_some(guarded)
    }

    fn if_(&mut self, cond: Value, then: Region, otherwise: Region, results: &'a [Value], loc: Loc) {
        let ssa = self.ssa;
        if results.is_empty()
            && let (Some(a), Some(b)) = (self.guardable(then), self.guardable(otherwise))
            && a + b <= MAX_GUARDED
        {
            for (r, negated) in [(then, Negated::No), (otherwise, Negated::Yes)] {
                for op in &ssa.regions[r].ops {
                    let OpKind::Inst { inst, .. } = &op.kind else {
                        unreachable!("guardable regions hold instructions only")
                    };
                    let guard = if inst.is_speculatable() {
                        None
                    } else {
                        Some((cond, negated))
                    };
                    self.inst(guard, inst, op.loc);
                }
            }
            return;
        }
        let has_else = !ssa.regions[otherwise].ops.is_empty() || !results.is_empty();
        let t = self.block(loc);
        let e = if has_else { Some(self.block(loc)) } else { None };
        let merge = self.join(loc);
        self.finish(LTerm::Cond {
            pred: cond,
            then: t,
            otherwise: e.unwrap_or(merge),
            uniform: self.uniform(cond),
            reconverge: merge,
        });
        for (b, r, other) in [(Some(t), then, otherwise), (e, otherwise, then)] {
            if let Some(b) = b {
                self.start(b);
                self.region(r);
                let others = &ssa.regions[other].results;
                self.settle(
                    ssa.regions[r].results.iter().zip(others).map(|(v, o)| (*v, Some(*o))),
                    loc,
                );
                self.copies(results, &ssa.regions[r].results, loc);
                self.finish(LTerm::Branch(merge));
            }
        }
        self.start(merge);
    }

    fn duplicable(&self, r: Region) -> bool {
        let ops = &self.ssa.regions[r].ops;
        self.size(r) <= MAX_DUPLICATED
            && ops.iter().all(|op| match &op.kind {
                OpKind::Inst { inst, .. } => !inst.effects().contains(Effects::ASYNC_REGISTERS),
                OpKind::If { .. } | OpKind::Loop { .. } => false,
            })
    }

    /// Nothing that the condition region computes is wanted but the decision.
    fn only_decides(&self, cond: Region, body: Region) -> bool {
        let region = &self.ssa.regions[cond];
        let mut made: rustc_hash::FxHashSet<Value> = rustc_hash::FxHashSet::default();
        for op in &region.ops {
            let OpKind::Inst { inst, .. } = &op.kind else {
                return false;
            };
            if !inst.is_speculatable() {
                return false;
            }
            inst.for_each_def(|d, _| {
                made.insert(d);
            });
        }
        !region.results[1..].iter().any(|v| made.contains(v)) && !self.uses_any(body, &made)
    }

    /// The region, or one inside it, reads one of `values`.
    fn uses_any(&self, r: Region, values: &rustc_hash::FxHashSet<Value>) -> bool {
        if values.is_empty() {
            return false;
        }
        let region = &self.ssa.regions[r];
        let has = |list: &[Value]| list.iter().any(|v| values.contains(v));
        has(&region.results)
            || region.ops.iter().any(|op| match &op.kind {
                OpKind::Inst { guard, inst } => {
                    let mut found = guard.is_some_and(|(p, _)| values.contains(&p));
                    inst.for_each_use(|v, _| found |= values.contains(&v));
                    found
                }
                OpKind::If {
                    cond, then, otherwise, ..
                } => values.contains(cond) || self.uses_any(*then, values) || self.uses_any(*otherwise, values),
                OpKind::Loop { inits, cond, body, .. } => {
                    has(inits) || self.uses_any(*cond, values) || self.uses_any(*body, values)
                }
            })
    }

    /// The condition is known to hold when the loop is reached.
    fn entered(&self, inits: &[Value], cond: Region) -> bool {
        let region = &self.ssa.regions[cond];
        let mut known: FxHashMap<Value, u64> = FxHashMap::default();
        for (p, init) in region.params.iter().zip(inits) {
            if let Some(bits) = self.constants[*init] {
                known.insert(*p, bits);
            }
        }
        for op in &region.ops {
            if let OpKind::Inst { guard: None, inst } = &op.kind
                && let Some(bits) = evaluate(inst, |v| known.get(&v).copied().or(self.constants[v]), &NoFunctions)
            {
                inst.for_each_def(|d, _| {
                    known.insert(d, bits);
                });
            }
        }
        region
            .results
            .first()
            .and_then(|p| known.get(p).copied().or(self.constants[*p]))
            == Some(1)
    }

    fn loop_(&mut self, inits: &'a [Value], cond: Region, body: Region, results: &'a [Value], loc: Loc) {
        let ssa = self.ssa;
        let (cond_region, body_region) = (&ssa.regions[cond], &ssa.regions[body]);
        let (pred, handed) = match cond_region.results.split_first() {
            Some((pred, handed)) => (*pred, handed),
            // The verifier has seen to it.
            None => return,
        };
        let uniform = self.uniform(pred);
        self.copies(&cond_region.params, inits, loc);
        let exit = self.join(loc);
        if self.duplicable(cond) {
            let body_block = self.block(loc);
            let entered = self.entered(inits, cond);
            if entered {
                // Its condition needs no evaluation, unless the condition region does more.
                if !self.only_decides(cond, body) {
                    self.region(cond);
                }
                self.copies(&body_region.params, handed, loc);
                self.finish(LTerm::Branch(body_block));
                self.depth += 1;
            } else {
                self.region(cond);
                let skip = self.edge(results, handed, exit, loc);
                let enter = self.edge(&body_region.params, handed, body_block, loc);
                self.finish(LTerm::Cond {
                    pred,
                    then: enter,
                    otherwise: skip,
                    uniform,
                    reconverge: exit,
                });
                // The skipping edge is printed first: the entering one then falls through into the body.
                self.order.push(skip);
                self.order.push(enter);
                self.depth += 1;
            }
            self.start(body_block);
            self.region(body);
            self.copies(&cond_region.params, &body_region.results, loc);
            self.region(cond);
            let again = self.edge(&body_region.params, handed, body_block, loc);
            self.depth -= 1;
            let leave = match entered {
                true => self.edge(results, handed, exit, loc),
                false => self.leaving(results, handed, exit, loc),
            };
            self.finish(LTerm::Cond {
                pred,
                then: again,
                otherwise: leave,
                uniform,
                reconverge: exit,
            });
            self.order.push(again);
            self.order.push(leave);
        } else {
            let head = self.block(loc);
            self.finish(LTerm::Branch(head));
            self.depth += 1;
            self.start(head);
            self.region(cond);
            let body_block = self.block(loc);
            let enter = self.edge(&body_region.params, handed, body_block, loc);
            let leave = self.leaving(results, handed, exit, loc);
            self.finish(LTerm::Cond {
                pred,
                then: enter,
                otherwise: leave,
                uniform,
                reconverge: exit,
            });
            self.order.push(enter);
            self.start(body_block);
            self.region(body);
            self.copies(&cond_region.params, &body_region.results, loc);
            self.finish(LTerm::Branch(head));
            self.depth -= 1;
            self.order.push(leave);
        }
        self.start(exit);
    }
}
