//! Blocks over values → blocks over registers: copies in order, empty blocks gone.
use super::Shell;
use super::coalesce::Webs;
use super::linearize::*;
use crate::error::{Error, Loc};
use crate::ptx::flat::*;
use crate::ptx::inst::{Effects, Inst, RegMap};
use crate::ptx::modifier::BitType;
use crate::ptx::operand::*;
use crate::ptx::ssa::*;
use cranelift_entity::SecondaryMap;
use rustc_hash::{FxHashMap, FxHashSet};

struct Emitter<'a> {
    webs: Webs,
    constants: &'a SecondaryMap<Value, Option<u64>>,
    /// Accumulators that a wgmma may be writing.
    in_flight: SecondaryMap<Value, bool>,
    out: Vec<FlatInst>,
}

struct ToRegs<'a> {
    reg: &'a SecondaryMap<Value, Option<Reg>>,
    missing: Option<Value>,
}

impl RegMap<Value, Reg> for ToRegs<'_> {
    fn reg(&mut self, v: Value, slot: Slot) -> Reg {
        self.reg[v].unwrap_or_else(|| {
            self.missing.get_or_insert(v);
            Reg {
                class: slot.class,
                index: 0,
            }
        })
    }
    fn def(&mut self, v: Value, slot: Slot) -> Reg {
        self.reg(v, slot)
    }
}

pub(super) fn emit(
    linear: &Linear<'_>,
    constants: &SecondaryMap<Value, Option<u64>>,
    webs: Webs,
    shell: Shell,
) -> Result<Flat, Error> {
    let mut e = Emitter {
        webs,
        constants,
        in_flight: in_flight(linear),
        out: vec![],
    };
    let mut blocks = vec![];
    for block in &linear.blocks {
        for op in &block.ops {
            match op {
                LOp::Copies { pairs, loc } => e.copies(pairs, *loc)?,
                LOp::Settle { values, loc } => e.settle(values, *loc),
                LOp::Inst { guard, inst, loc, .. } => e.inst(*guard, inst, *loc)?,
            }
        }
        let terminator = match block.terminator {
            LTerm::Return => Terminator::Return,
            LTerm::Branch(to) => Terminator::Branch { to: BlockId(to as u32) },
            LTerm::Cond {
                pred,
                then,
                otherwise,
                uniform,
                reconverge,
            } => Terminator::CondBranch {
                guard: Guard {
                    pred: e.reg(pred, block.loc)?,
                    negated: false,
                },
                then: BlockId(then as u32),
                otherwise: BlockId(otherwise as u32),
                uniformity: if uniform {
                    Uniformity::Uniform
                } else {
                    Uniformity::Divergent {
                        reconverge: BlockId(reconverge as u32),
                    }
                },
            },
        };
        blocks.push(Block {
            insts: std::mem::take(&mut e.out),
            terminator,
            loc: block.loc,
        });
    }
    Ok(Flat {
        launch: shell.launch,
        target: shell.target,
        registers: e.webs.count,
        blocks: tidy(blocks),
        min_ctas_per_sm: shell.min_ctas_per_sm,
    })
}

/// Accumulators that a wgmma has written and that no wait for all groups has settled since, through copies.
fn in_flight(linear: &Linear<'_>) -> SecondaryMap<Value, bool> {
    let mut set: SecondaryMap<Value, bool> = SecondaryMap::new();
    let mut changed = true;
    while changed {
        changed = false;
        let mut mark = |set: &mut SecondaryMap<Value, bool>, v: Value| {
            if !set[v] {
                set[v] = true;
                changed = true;
            }
        };
        for op in linear.blocks.iter().flat_map(|b| &b.ops) {
            match op {
                LOp::Settle { .. } => {}
                LOp::Copies { pairs, .. } => {
                    for (d, s) in pairs {
                        if s.reg().is_some_and(|s| set[s]) {
                            mark(&mut set, *d);
                        }
                    }
                }
                LOp::Inst { inst, .. } => {
                    let Some(tied) = inst.tied() else { continue };
                    if inst.effects().contains(Effects::ASYNC_REGISTERS) {
                        tied.output.iter().for_each(|v| mark(&mut set, *v));
                    } else if !matches!(inst, Inst::WgmmaWait { n: 0, .. }) {
                        for (i, o) in tied.input.iter().zip(&tied.output) {
                            if set[*i] {
                                mark(&mut set, *o);
                            }
                        }
                    }
                }
            }
        }
    }
    set
}

impl Emitter<'_> {
    fn reg(&self, v: Value, loc: Loc) -> Result<Reg, Error> {
        self.webs.reg[v].ok_or_else(|| undefined(v, loc))
    }

    fn push(&mut self, guard: Option<Guard>, inst: Inst<Reg>, loc: Loc) {
        self.out.push(FlatInst { guard, inst, loc });
    }

    fn inst(&mut self, guard: Option<(Value, Negated)>, inst: &Inst<Value>, loc: Loc) -> Result<(), Error> {
        if let Some(tied) = inst.tied() {
            let pairs: Vec<_> = tied
                .input
                .iter()
                .zip(&tied.output)
                .map(|(i, o)| (*o, self.constants[*i].map_or(Src::Reg(*i), Src::Imm)))
                .collect();
            self.copies(&pairs, loc)?;
        }
        let guard = match guard {
            Some((p, negated)) => Some(Guard {
                pred: self.reg(p, loc)?,
                negated: negated == Negated::Yes,
            }),
            None => None,
        };
        let mut to_regs = ToRegs {
            reg: &self.webs.reg,
            missing: None,
        };
        // A tied constant has no register: its output's, which the copy above has set.
        let mut flat = match inst.tied() {
            Some(tied) => {
                let mut in_place = inst.clone();
                if let Some(t) = in_place.tied_mut() {
                    t.input.clone_from(&tied.output);
                }
                in_place.map(&mut to_regs)
            }
            None => inst.map(&mut to_regs),
        };
        if let Some(v) = to_regs.missing {
            return Err(undefined(v, loc));
        }
        if let Some(t) = flat.tied_mut() {
            t.input.clone_from(&t.output);
        }
        if let Inst::TmemStore { a, .. } = &mut flat {
            self.separate(a, loc);
        }
        self.push(guard, flat, loc);
        Ok(())
    }

    /// Gives each of a list's operands a register of its own: ptxas 13.0 counts those of `tcgen05.st` without repetitions (C7308).
    fn separate(&mut self, list: &mut Srcs<Reg>, loc: Loc) {
        let mut seen = FxHashSet::default();
        for a in list.iter_mut() {
            let Src::Reg(r) = *a else { continue };
            if seen.insert(r) {
                continue;
            }
            let count = &mut self.webs.count[r.class as usize];
            let d = Reg {
                class: r.class,
                index: *count,
            };
            *count += 1;
            if let Some(ty) = BitType::of(r.class) {
                self.push(None, Inst::Mov { ty, d, a: *a }, loc);
            }
            *a = Src::Reg(d);
        }
    }

    /// Waits for all groups, on behalf of these registers. Waiting early is always right; copying in flight never is.
    fn wait(&mut self, mut regs: Vec<Reg>, loc: Loc) {
        regs.sort();
        regs.dedup();
        if !regs.is_empty() {
            let acc = Tied::in_place(regs);
            self.push(None, Inst::WgmmaWait { n: 0, acc }, loc);
        }
    }

    fn settle(&mut self, values: &[(Value, Option<Value>)], loc: Loc) {
        let flies = |v: Value| self.in_flight[v];
        let flying = values
            .iter()
            .filter(|(v, other)| flies(*v) && !other.is_some_and(flies));
        let regs = flying.filter_map(|(v, _)| self.webs.reg[*v]).collect();
        self.wait(regs, loc);
    }

    /// Parallel copies, one after the other.
    fn copies(&mut self, pairs: &[(Value, Src<Value>)], loc: Loc) -> Result<(), Error> {
        let mut moves: Vec<(Reg, Reg)> = vec![];
        let mut immediates: Vec<(Reg, u64)> = vec![];
        let mut flying: Vec<Reg> = vec![];
        for (d, s) in pairs {
            let to = self.reg(*d, loc)?;
            match s {
                Src::Imm(bits) => immediates.push((to, *bits)),
                Src::Reg(s) => {
                    let from = self.reg(*s, loc)?;
                    if from == to {
                        continue;
                    }
                    if self.in_flight[*s] {
                        flying.push(from);
                    }
                    moves.push((to, from));
                }
            }
        }
        self.wait(flying, loc);
        self.sequence(moves, loc);
        // They read nothing, and what they overwrite has been read.
        for (to, bits) in immediates {
            self.copy(to, Src::Imm(bits), loc);
        }
        Ok(())
    }

    /// Moves whose destination no other move still reads go first; what remains are cycles, opened by a spare register.
    fn sequence(&mut self, mut moves: Vec<(Reg, Reg)>, loc: Loc) {
        let index: FxHashMap<Reg, usize> = moves.iter().enumerate().map(|(i, (to, _))| (*to, i)).collect();
        let mut readers: FxHashMap<Reg, u32> = FxHashMap::default();
        for (_, from) in &moves {
            *readers.entry(*from).or_default() += 1;
        }
        let mut done = vec![false; moves.len()];
        let mut ready: Vec<usize> = (0..moves.len())
            .filter(|i| !readers.contains_key(&moves[*i].0))
            .collect();
        ready.reverse();
        let mut first = 0;
        loop {
            while let Some(i) = ready.pop() {
                let (to, from) = moves[i];
                self.copy(to, Src::Reg(from), loc);
                done[i] = true;
                let left = readers.entry(from).or_default();
                *left = left.saturating_sub(1);
                if *left == 0
                    && let Some(&next) = index.get(&from)
                    && !done[next]
                {
                    ready.push(next);
                }
            }
            while first < moves.len() && done[first] {
                first += 1;
            }
            if first == moves.len() {
                return;
            }
            // A cycle: its first destination is saved, and whoever would have read it reads the copy.
            let victim = moves[first].0;
            let spare = Reg {
                class: victim.class,
                index: self.webs.count[victim.class as usize],
            };
            self.webs.count[victim.class as usize] += 1;
            self.copy(spare, Src::Reg(victim), loc);
            for (_, from) in &mut moves {
                if *from == victim {
                    *from = spare;
                }
            }
            let waiting = readers.remove(&victim).unwrap_or(0);
            readers.insert(spare, waiting);
            ready.push(first);
        }
    }

    fn copy(&mut self, d: Reg, a: Src<Reg>, loc: Loc) {
        let inst = match BitType::of(d.class) {
            Some(ty) => Inst::Mov { ty, d, a },
            None => Inst::MovPred { d, a },
        };
        self.push(None, inst, loc);
    }
}

fn undefined(v: Value, loc: Loc) -> Error {
    Error::internal(format!("{v} is used but never defined")).at(loc)
}

/// Drops empty blocks and joins blocks that only follow each other.
fn tidy(mut blocks: Vec<Block>) -> Vec<Block> {
    // Where a branch to each block really goes; blocks behind first, so that chains are followed once.
    let mut target: Vec<u32> = (0..blocks.len() as u32).collect();
    for b in (0..blocks.len()).rev() {
        let mut at = b as u32;
        for _ in 0..blocks.len() {
            match &blocks[at as usize] {
                Block {
                    insts,
                    terminator: Terminator::Branch { to },
                    ..
                } if insts.is_empty() && to.0 != at => at = to.0,
                _ => break,
            }
            if at > b as u32 {
                at = target[at as usize];
                break;
            }
        }
        target[b] = at;
    }
    let redirect = |t: &mut Terminator, map: &dyn Fn(BlockId) -> BlockId| match t {
        Terminator::Branch { to } => *to = map(*to),
        Terminator::CondBranch {
            then,
            otherwise,
            uniformity,
            ..
        } => {
            *then = map(*then);
            *otherwise = map(*otherwise);
            if let Uniformity::Divergent { reconverge } = uniformity {
                *reconverge = map(*reconverge);
            }
        }
        Terminator::Return => {}
    };
    for block in &mut blocks {
        redirect(&mut block.terminator, &|b| BlockId(target[b.0 as usize]));
        if let Terminator::CondBranch { then, otherwise, .. } = block.terminator
            && then == otherwise
        {
            block.terminator = Terminator::Branch { to: then };
        }
    }
    // Reached from the entry; predecessors counted once each, reconvergence points pinned.
    let mut preds = vec![0u32; blocks.len()];
    let mut pinned = vec![false; blocks.len()];
    let mut reached = vec![false; blocks.len()];
    let mut work = vec![0usize];
    reached[0] = true;
    preds[0] = 1;
    pinned[0] = true;
    while let Some(b) = work.pop() {
        let mut visit = |to: BlockId| {
            preds[to.0 as usize] += 1;
            if !std::mem::replace(&mut reached[to.0 as usize], true) {
                work.push(to.0 as usize);
            }
        };
        match &blocks[b].terminator {
            Terminator::Branch { to } => visit(*to),
            Terminator::CondBranch {
                then,
                otherwise,
                uniformity,
                ..
            } => {
                visit(*then);
                visit(*otherwise);
                if let Uniformity::Divergent { reconverge } = uniformity {
                    pinned[reconverge.0 as usize] = true;
                    // Kept although nothing may reach it (an endless loop).
                    if !std::mem::replace(&mut reached[reconverge.0 as usize], true) {
                        work.push(reconverge.0 as usize);
                    }
                }
            }
            Terminator::Return => {}
        }
    }
    let mut joined: Vec<Option<Block>> = blocks.into_iter().map(Some).collect();
    for b in 0..joined.len() {
        if !reached[b] {
            joined[b] = None;
            continue;
        }
        loop {
            let Some(Terminator::Branch { to }) = joined[b].as_ref().map(|block| &block.terminator) else {
                break;
            };
            let to = to.0 as usize;
            // Only forwards: the block is then printed where its predecessor is.
            if to == b || preds[to] != 1 || pinned[to] {
                break;
            }
            let Some(next) = joined[to].take() else { break };
            if let Some(block) = joined[b].as_mut() {
                block.insts.extend(next.insts);
                block.terminator = next.terminator;
            }
        }
    }
    let mut number = vec![u32::MAX; joined.len()];
    let mut count = 0;
    for (b, block) in joined.iter().enumerate() {
        if block.is_some() {
            number[b] = count;
            count += 1;
        }
    }
    let mut out: Vec<Block> = joined.into_iter().flatten().collect();
    for block in &mut out {
        redirect(&mut block.terminator, &|b| BlockId(number[b.0 as usize]));
    }
    out
}
