//! Waits for wgmma where the registers of an operand that it may still read are written anew.
//!
//! A `wgmma` with A in registers reads them until its group is waited for. In straight code every value has registers
//! of its own, and [`super::out_of_ssa`] keeps those of A until the wait. A loop defines the *same* value again in its
//! next iteration: if no wait lies in between, the registers change under a running `wgmma`. A copy would not help, it
//! is written in the next iteration just the same. So the group has to be done before, at the latest moment: where the
//! value is defined again, or what the next iteration starts with in its place.
//!
//! Which groups may run is an upper bound, found as `promote_registers` finds those of accumulators: forward, over
//! loops until nothing changes, arms joined. It is made here, on the program that is printed, because only here is it
//! known which registers an operand is: renamings (a slice, a cast of the layout, a bitcast), merged and hoisted
//! instructions all decide that. Kernels that wait by themselves get nothing.
//!
//! The wait settles no accumulator: those are [`Inst::WgmmaWait`]s of the kernel, which follow. It stands where all
//! threads of the warpgroup are: before a conditional that not all of them take alike, if the definition is in one.
use super::inst::{Effects, Inst};
use super::operand::{Field, Tied};
use super::ssa::*;
use crate::error::Loc;
use rustc_hash::{FxHashMap, FxHashSet};

/// More groups than a wait can name.
const MANY: u32 = 8;

pub fn run(ssa: &mut Ssa) {
    let Some(body) = ssa.body else { return };
    let mut operands = FxHashSet::default();
    for op in ssa.regions.values().flat_map(|r| &r.ops) {
        if let OpKind::Inst { inst, .. } = &op.kind {
            operands.extend(read_later(inst));
        }
    }
    // Without a loop every definition is the only one.
    let has_loop = ssa
        .regions
        .values()
        .any(|r| r.ops.iter().any(|op| matches!(op.kind, OpKind::Loop { .. })));
    if operands.is_empty() || !has_loop {
        return;
    }
    let copied = copied_to(ssa, &operands);
    Flights { ssa, copied }.region(body, Flight::default(), true);
}

/// The operands that a value becomes by copies: what a region yields becomes a parameter of the next round, or a
/// result.
///
/// The assembler makes one register of both where it can, so that a definition of the value is one of the operand; it
/// would make every wgmma wait by itself (C7513) if one of them was running then.
fn copied_to(ssa: &Ssa, operands: &FxHashSet<Value>) -> FxHashMap<Value, FxHashSet<Value>> {
    let mut copies: FxHashMap<Value, Vec<Value>> = FxHashMap::default();
    let mut copy = |from: &[Value], to: &[Value]| {
        for (&from, &to) in from.iter().zip(to) {
            copies.entry(to).or_default().push(from);
        }
    };
    let regions = &ssa.regions;
    for op in regions.values().flat_map(|r| &r.ops) {
        match &op.kind {
            OpKind::Inst { .. } => {}
            OpKind::If {
                then,
                otherwise,
                results,
                ..
            } => {
                copy(&regions[*then].results, results);
                copy(&regions[*otherwise].results, results);
            }
            OpKind::Loop {
                cond, body, results, ..
            } => {
                // What a loop starts with is defined before it, and not while a wgmma of it runs.
                let handed = regions[*cond].results.get(1..).unwrap_or_default();
                copy(handed, &regions[*body].params);
                copy(handed, results);
                copy(&regions[*body].results, &regions[*cond].params);
            }
        }
    }
    let mut out: FxHashMap<Value, FxHashSet<Value>> = FxHashMap::default();
    for &operand in operands {
        let mut work = vec![operand];
        while let Some(v) = work.pop() {
            if out.entry(v).or_default().insert(operand) {
                work.extend(copies.get(&v).into_iter().flatten());
            }
        }
    }
    out
}

/// The registers that an instruction reads after it has returned.
pub(super) fn read_later(inst: &Inst<Value>) -> Vec<Value> {
    let mut read = vec![];
    if inst.effects().contains(Effects::ASYNC_REGISTERS) {
        for field in inst.fields() {
            if let Field::Srcs(list, _) = field {
                read.extend(list.iter().filter_map(|s| s.reg()));
            }
        }
    }
    read
}

/// Values that a running group may read, each with the fewest commits since its issue, the group's own included.
#[derive(Clone, Default, PartialEq)]
struct Flight(FxHashMap<Value, u32>);

impl Flight {
    fn join(&mut self, other: &Flight) {
        for (&v, &age) in &other.0 {
            let mine = self.0.entry(v).or_insert(age);
            *mine = age.min(*mine);
        }
    }

    /// At most `n` groups are left running.
    fn wait(&mut self, n: u32) {
        self.0.retain(|_, age| *age <= n);
    }

    fn commit(&mut self) {
        for age in self.0.values_mut() {
            *age = (*age + 1).min(MANY);
        }
    }

    /// The groups that may go on running where these values are defined again, if one of them is in flight.
    fn left(&self, defined: &[Value]) -> Option<u32> {
        let age = defined.iter().filter_map(|v| self.0.get(v)).min()?;
        Some(age.saturating_sub(1))
    }
}

struct Flights<'a> {
    ssa: &'a mut Ssa,
    /// See [`copied_to`].
    copied: FxHashMap<Value, FxHashSet<Value>>,
}

impl Flights<'_> {
    /// Follows a region; `commit`: places the waits.
    fn region(&mut self, region: Region, mut state: Flight, commit: bool) -> Flight {
        let mut placed = vec![];
        for i in 0..self.ssa.regions[region].ops.len() {
            let op = self.ssa.regions[region].ops[i].clone();
            let defined = self.defined_here(&op.kind);
            if let Some(n) = state.left(&defined) {
                if commit {
                    placed.push(wait(n, op.loc));
                }
                state.wait(n);
            }
            match &op.kind {
                OpKind::Inst { inst, .. } => match inst {
                    Inst::WgmmaCommit {} => state.commit(),
                    Inst::WgmmaWait { n, .. } => state.wait((*n).clamp(0, i64::from(MANY)) as u32),
                    _ => state.0.extend(read_later(inst).into_iter().map(|v| (v, 0))),
                },
                OpKind::If {
                    cond, then, otherwise, ..
                } => {
                    if self.is_together(*cond) {
                        let mut end = self.region(*then, state.clone(), commit);
                        end.join(&self.region(*otherwise, state, commit));
                        state = end;
                    }
                }
                OpKind::Loop { cond, body, .. } => state = self.repeat(*cond, *body, state, commit),
            }
            if commit {
                placed.push(op);
            }
        }
        if commit {
            self.ssa.regions[region].ops = placed;
        }
        state
    }

    /// The state behind a loop: after its condition, any number of rounds after `entry`.
    fn repeat(&mut self, cond: Region, body: Region, mut entry: Flight, commit: bool) -> Flight {
        // What the next round starts with takes the place of what this one had, in the condition and, handed on, in the
        // body.
        let regions = &self.ssa.regions;
        let carried: Vec<Value> = regions[cond]
            .params
            .iter()
            .chain(&regions[body].params)
            .copied()
            .collect();
        let close = |end: &mut Flight| {
            let left = end.left(&carried);
            left.inspect(|&n| end.wait(n))
        };
        loop {
            let exit = self.region(cond, entry.clone(), false);
            let mut end = self.region(body, exit, false);
            close(&mut end);
            end.join(&entry);
            if end == entry {
                break;
            }
            entry = end;
        }
        let exit = self.region(cond, entry, commit);
        if commit {
            let mut end = self.region(body, exit.clone(), true);
            if let Some(n) = close(&mut end) {
                let ops = &mut self.ssa.regions[body].ops;
                let loc = ops.last().map_or(Loc::CALL_SITE, |op| op.loc);
                ops.push(wait(n, loc));
            }
        }
        exit
    }

    /// Operands that an op defines, in the end, apart from those that [`Self::region`] finds inside of it.
    fn defined_here(&self, kind: &OpKind) -> Vec<Value> {
        let mut out = vec![];
        match kind {
            OpKind::Inst { inst, .. } => inst.for_each_def(|d, _| out.push(d)),
            OpKind::If {
                cond,
                then,
                otherwise,
                results,
            } => {
                out.extend(results);
                if !self.is_together(*cond) {
                    self.defined_inside(*then, &mut out);
                    self.defined_inside(*otherwise, &mut out);
                }
            }
            OpKind::Loop {
                cond, body, results, ..
            } => {
                out.extend(results);
                out.extend(&self.ssa.regions[*cond].params);
                out.extend(&self.ssa.regions[*body].params);
            }
        }
        out.iter()
            .filter_map(|v| self.copied.get(v))
            .flatten()
            .copied()
            .collect()
    }

    fn defined_inside(&self, region: Region, out: &mut Vec<Value>) {
        out.extend(&self.ssa.regions[region].params);
        for op in &self.ssa.regions[region].ops {
            match &op.kind {
                OpKind::Inst { inst, .. } => inst.for_each_def(|d, _| out.push(d)),
                OpKind::If {
                    then,
                    otherwise,
                    results,
                    ..
                } => {
                    out.extend(results);
                    self.defined_inside(*then, out);
                    self.defined_inside(*otherwise, out);
                }
                OpKind::Loop {
                    cond, body, results, ..
                } => {
                    out.extend(results);
                    self.defined_inside(*cond, out);
                    self.defined_inside(*body, out);
                }
            }
        }
    }

    /// All threads of the warpgroup go the same way.
    fn is_together(&self, cond: Value) -> bool {
        self.ssa.values[cond].uniform >= Uniform::Warpgroup
    }
}

fn wait(n: u32, loc: Loc) -> Op {
    let inst = Inst::wgmma_wait(
        i64::from(n),
        Tied {
            input: vec![],
            output: vec![],
        },
    );
    Op {
        kind: OpKind::Inst { guard: None, inst },
        loc,
        memory: MemTag::ANY,
        rounding: Rounding::default(),
    }
}
