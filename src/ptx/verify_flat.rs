//! The rules of `ptx::Flat`. Whatever passes is printed, assembled and emulated without further questions.
//!
//! | rule | says |
//! |---|---|
//! | `class` | every register has its slot's class |
//! | `immediate` | immediates stand where they may and fit |
//! | `legal` | PTX has the form ([`super::legal`]) |
//! | `register` | no register beyond the declared ones |
//! | `guard` | guards are predicates; loops, blocks and convergent instructions are not guarded |
//! | `label` | branches and reconvergence points are blocks |
//! | `defined` | every register is written on all paths before it is read |
//! | `tied` | registers updated in place are the same in and out, and different from each other |
//! | `in_flight` | what a wgmma reads or writes in registers is not touched before a wait covers it |
//! | `wgmma_fence` | a `wgmma.fence` lies between accesses to a wgmma's registers and the wgmma |
//! | `convergent` | no convergent instruction lies between a divergent branch and its reconvergence point |
//! | `requires` | the target's architecture has the instruction |
//! | `setmaxnreg` | `setmaxnreg` comes with `.minnctapersm` (ptxas ignores it otherwise: C7508) |
//! | `param` | parameters exist; addresses are taken of tensor maps, values of pointers |
//! | `launch` | 1 to 1024 threads in whole warps; clusters of at most 16 CTAs that divide the grid |
use super::flat::*;
use super::inst::{Effects, Inst};
use super::launch::EntryParam;
use super::operand::*;
use super::verify::{Violation, check_guarded, check_inst, into_error};
use crate::error::{Error, Loc};

/// All violations; none: the form is sound.
pub fn run(flat: &Flat) -> Vec<Violation> {
    let mut v = Verifier::new(flat);
    v.launch();
    for (b, block) in flat.blocks.iter().enumerate() {
        for (i, fi) in block.insts.iter().enumerate() {
            v.inst(b, i, fi);
        }
        v.terminator(b, block);
    }
    // The analyses follow branches and index registers.
    if v.found.iter().all(|f| f.rule != "label" && f.rule != "register") {
        v.defined();
        v.wgmma();
        v.convergent();
    }
    v.found
}

/// What breaks the rules of registers that asynchronous operations use: `in_flight` and `wgmma_fence`. Labels and register
/// numbers must be sound.
pub fn run_asynchronous_registers(flat: &Flat) -> Vec<Violation> {
    let mut v = Verifier::new(flat);
    v.wgmma();
    v.found
}

/// All violations as one internal error.
pub fn check(flat: &Flat) -> Result<(), Error> {
    let found = run(flat);
    if found.is_empty() {
        Ok(())
    } else {
        Err(into_error("ptx::Flat", &found))
    }
}

struct Verifier<'a> {
    flat: &'a Flat,
    /// The target's number; 0: none.
    sm: u16,
    found: Vec<Violation>,
}

fn successors(t: &Terminator) -> impl Iterator<Item = BlockId> {
    let (a, b) = match t {
        Terminator::Branch { to } => (Some(*to), None),
        Terminator::CondBranch { then, otherwise, .. } => (Some(*then), Some(*otherwise)),
        Terminator::Return => (None, None),
    };
    a.into_iter().chain(b)
}

impl Verifier<'_> {
    fn new(flat: &Flat) -> Verifier<'_> {
        let number = flat.target.trim_start_matches("sm_").trim_end_matches(['a', 'f']);
        Verifier {
            flat,
            sm: number.parse().unwrap_or(0),
            found: vec![],
        }
    }

    fn report(&mut self, rule: &'static str, (b, i): (usize, usize), loc: Loc, message: String) {
        self.found.push(Violation {
            rule,
            place: format!("B{b}:{i}"),
            loc,
            message,
        });
    }

    fn launch(&mut self) {
        let launch = &self.flat.launch;
        let mut wrong = vec![];
        if launch.block == 0 || launch.block > 1024 || !launch.block.is_multiple_of(32) {
            wrong.push(format!("{} threads", launch.block));
        }
        let cluster: u64 = launch.cluster.iter().map(|n| u64::from(*n)).product();
        if cluster == 0 || cluster > 16 {
            wrong.push(format!("a cluster of {cluster} CTAs"));
        } else if launch
            .grid
            .iter()
            .zip(launch.cluster)
            .any(|(g, c)| *g == 0 || !g.is_multiple_of(c))
        {
            wrong.push(format!(
                "a grid of {:?} in clusters of {:?}",
                launch.grid, launch.cluster
            ));
        }
        if self.flat.blocks.is_empty() {
            wrong.push("no block".into());
        }
        for message in wrong {
            self.found.push(Violation {
                rule: "launch",
                place: launch.entry.clone(),
                loc: Loc::CALL_SITE,
                message,
            });
        }
    }

    fn register(&mut self, r: Reg, at: (usize, usize), loc: Loc) {
        if r.index >= self.flat.registers[r.class as usize] {
            self.report("register", at, loc, format!("{r} is not declared"));
        }
    }

    fn inst(&mut self, b: usize, i: usize, fi: &FlatInst) {
        let (at, loc) = ((b, i), fi.loc);
        let mut found = vec![];
        check_inst(&fi.inst, |r: Reg| r.class, |rule, message| found.push((rule, message)));
        if let Some(guard) = fi.guard {
            check_guarded(&fi.inst, |rule, message| found.push((rule, message)));
            if guard.pred.class != Class::Pred {
                found.push(("guard", format!("{} is no predicate", guard.pred)));
            }
            self.register(guard.pred, at, loc);
        }
        if let Some(tied) = fi.inst.tied() {
            if tied.input != tied.output {
                found.push(("tied", "different registers in and out".into()));
            }
            let mut seen = tied.output.clone();
            seen.sort();
            if seen.windows(2).any(|w| w[0] == w[1]) {
                found.push(("tied", "one register twice".into()));
            }
        }
        let requires = fi.inst.requires();
        if self.sm < requires.sm {
            found.push((
                "requires",
                format!("needs sm_{}, the target is {}", requires.sm, self.flat.target),
            ));
        }
        if matches!(fi.inst, Inst::SetMaxReg { .. }) && self.flat.min_ctas_per_sm.is_none() {
            found.push(("setmaxnreg", "no .minnctapersm".into()));
        }
        match &fi.inst {
            Inst::LdParam { p, .. } => match self.flat.launch.params.get(p.0 as usize) {
                Some(EntryParam::Pointer { .. }) => {}
                Some(EntryParam::TensorMap(_)) => found.push(("param", "the value of a tensor map".into())),
                None => found.push(("param", format!("no parameter {}", p.0))),
            },
            Inst::ParamAddr { p, .. } => match self.flat.launch.params.get(p.0 as usize) {
                Some(EntryParam::TensorMap(_)) => {}
                Some(EntryParam::Pointer { .. }) => found.push(("param", "the address of a pointer".into())),
                None => found.push(("param", format!("no parameter {}", p.0))),
            },
            _ => {}
        }
        for (rule, message) in found {
            self.report(rule, at, loc, message);
        }
        fi.inst.for_each_use(|r, _| self.register(r, at, loc));
        fi.inst.for_each_def(|r, _| self.register(r, at, loc));
    }

    fn terminator(&mut self, b: usize, block: &Block) {
        let at = (b, block.insts.len());
        let mut targets: Vec<BlockId> = successors(&block.terminator).collect();
        if let Terminator::CondBranch { guard, uniformity, .. } = &block.terminator {
            if guard.pred.class != Class::Pred {
                self.report("guard", at, block.loc, format!("{} is no predicate", guard.pred));
            }
            self.register(guard.pred, at, block.loc);
            if let Uniformity::Divergent { reconverge } = uniformity {
                targets.push(*reconverge);
            }
        }
        for to in targets {
            if to.0 as usize >= self.flat.blocks.len() {
                self.report("label", at, block.loc, format!("there is no block {to}"));
            }
        }
    }

    /// Blocks from the entry on, until nothing changes; `transfer` may lower a state and says what it gives.
    fn forward<S: Clone>(
        &self,
        entry: S,
        join: impl Fn(&mut S, &S) -> bool,
        transfer: impl Fn(usize, &mut S),
    ) -> Vec<Option<S>> {
        let mut states: Vec<Option<S>> = vec![None; self.flat.blocks.len()];
        if states.is_empty() {
            return states;
        }
        states[0] = Some(entry);
        let mut work = vec![0usize];
        let mut queued = vec![false; states.len()];
        while let Some(b) = work.pop() {
            queued[b] = false;
            let Some(mut state) = states[b].clone() else { continue };
            transfer(b, &mut state);
            for to in successors(&self.flat.blocks[b].terminator) {
                let to = to.0 as usize;
                let changed = match &mut states[to] {
                    Some(old) => join(old, &state),
                    slot => {
                        *slot = Some(state.clone());
                        true
                    }
                };
                if changed && !std::mem::replace(&mut queued[to], true) {
                    work.push(to);
                }
            }
        }
        states
    }

    fn defined(&mut self) {
        let flat = self.flat;
        let (index, total) = number_registers(flat);
        let transfer = |b: usize, defined: &mut Vec<u64>| {
            for fi in &flat.blocks[b].insts {
                fi.inst
                    .for_each_def(|r, _| defined[index(r) / 64] |= 1 << (index(r) % 64));
            }
        };
        let join = |old: &mut Vec<u64>, new: &Vec<u64>| {
            let mut changed = false;
            for (o, n) in old.iter_mut().zip(new) {
                changed |= *o & !n != 0;
                *o &= n;
            }
            changed
        };
        let states = self.forward(vec![0u64; total.div_ceil(64)], join, transfer);
        for (b, state) in states.into_iter().enumerate() {
            let Some(mut defined) = state else { continue };
            let block = &flat.blocks[b];
            for (i, fi) in block.insts.iter().enumerate() {
                let mut missing = vec![];
                let mut read = |r: Reg| {
                    if defined[index(r) / 64] >> (index(r) % 64) & 1 == 0 {
                        missing.push(r);
                    }
                };
                if let Some(guard) = fi.guard {
                    read(guard.pred);
                }
                fi.inst.for_each_use(|r, _| read(r));
                for r in missing {
                    self.report(
                        "defined",
                        (b, i),
                        fi.loc,
                        format!("{r} is read before it is written on some path"),
                    );
                }
                fi.inst
                    .for_each_def(|r, _| defined[index(r) / 64] |= 1 << (index(r) % 64));
            }
            if let Terminator::CondBranch { guard, .. } = &block.terminator {
                let at = index(guard.pred);
                if defined[at / 64] >> (at % 64) & 1 == 0 {
                    let message = format!("{} is read before it is written on some path", guard.pred);
                    self.report("defined", (b, block.insts.len()), block.loc, message);
                }
            }
        }
    }

    fn wgmma(&mut self) {
        let flat = self.flat;
        // The registers that wgmmas touch, numbered.
        let (index, total) = number_registers(flat);
        let mut numbers: Vec<Option<u32>> = vec![None; total];
        let mut count = 0;
        for fi in flat.blocks.iter().flat_map(|b| &b.insts) {
            if fi.inst.effects().contains(Effects::ASYNC_REGISTERS) {
                let mut add = |r: Reg| {
                    numbers[index(r)].get_or_insert_with(|| {
                        count += 1;
                        count - 1
                    });
                };
                fi.inst.for_each_def(|r, _| add(r));
                fragments(&fi.inst).for_each(add);
            }
        }
        if count == 0 {
            return;
        }
        let number = |r: Reg| numbers[index(r)].map(|i| i as usize);
        let entry = Wgmma {
            written: vec![IDLE; count as usize],
            read: vec![IDLE; count as usize],
            dirty: vec![Access::Written; count as usize],
        };
        let join = |old: &mut Wgmma, new: &Wgmma| {
            let mut changed = false;
            for (o, n) in old
                .written
                .iter_mut()
                .zip(&new.written)
                .chain(old.read.iter_mut().zip(&new.read))
            {
                changed |= n < o;
                *o = (*o).min(*n);
            }
            for (o, n) in old.dirty.iter_mut().zip(&new.dirty) {
                changed |= n > o;
                *o = (*o).max(*n);
            }
            changed
        };
        let states = self.forward(entry, join, |b, state| {
            for fi in &flat.blocks[b].insts {
                state.step(&fi.inst, number, |_, _| {});
            }
        });
        for (b, state) in states.into_iter().enumerate() {
            let Some(mut state) = state else { continue };
            for (i, fi) in flat.blocks[b].insts.iter().enumerate() {
                let mut found: Vec<(&'static str, String)> = vec![];
                state.step(&fi.inst, number, |rule, message| {
                    // One of many registers tells enough.
                    if found.iter().all(|(r, _)| *r != rule) {
                        found.push((rule, message));
                    }
                });
                for (rule, message) in found {
                    self.report(rule, (b, i), fi.loc, message);
                }
            }
        }
    }

    fn convergent(&mut self) {
        let flat = self.flat;
        let mut inside: Vec<Option<usize>> = vec![None; flat.blocks.len()];
        for (b, block) in flat.blocks.iter().enumerate() {
            let Terminator::CondBranch {
                uniformity: Uniformity::Divergent { reconverge },
                ..
            } = block.terminator
            else {
                continue;
            };
            let mut work: Vec<BlockId> = successors(&block.terminator).collect();
            let mut seen = vec![false; flat.blocks.len()];
            while let Some(at) = work.pop() {
                if at == reconverge || std::mem::replace(&mut seen[at.0 as usize], true) {
                    continue;
                }
                inside[at.0 as usize] = Some(b);
                work.extend(successors(&flat.blocks[at.0 as usize].terminator));
            }
        }
        for (b, by) in inside.into_iter().enumerate() {
            let Some(by) = by else { continue };
            for (i, fi) in flat.blocks[b].insts.iter().enumerate() {
                if fi.inst.effects().contains(Effects::CONVERGENT) {
                    let message = format!("lanes parted at the end of B{by} and have not met again");
                    self.report("convergent", (b, i), fi.loc, message);
                }
            }
        }
    }
}

/// A number for every declared register, and how many there are.
fn number_registers(flat: &Flat) -> (impl Fn(Reg) -> usize + use<>, usize) {
    let mut base = [0usize; 4];
    let mut total = 0;
    for class in Class::ALL {
        base[class as usize] = total;
        total += flat.registers[class as usize] as usize;
    }
    (move |r: Reg| base[r.class as usize] + r.index as usize, total)
}

/// The registers of A.
fn fragments(inst: &Inst<Reg>) -> impl Iterator<Item = Reg> {
    let mut regs = vec![];
    for field in inst.fields() {
        if let Field::Srcs(list, _) = field {
            regs.extend(list.iter().filter_map(|s| s.reg()));
        }
    }
    regs.into_iter()
}

const IDLE: u8 = u8::MAX;
/// More groups than a wait can leave pending.
const MANY: u8 = 8;

/// Per register: groups committed since the youngest wgmma that writes or reads it (`IDLE`: none in flight), and
/// whether it was read or written since the last `wgmma.fence`.
#[derive(Clone)]
struct Wgmma {
    written: Vec<u8>,
    read: Vec<u8>,
    dirty: Vec<Access>,
}

/// The last access of an ordinary instruction to a register that no `wgmma.fence` has followed; the worst where paths meet.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Access {
    Fenced,
    Read,
    Written,
}

impl Wgmma {
    fn step(
        &mut self,
        inst: &Inst<Reg>,
        number: impl Fn(Reg) -> Option<usize>,
        mut report: impl FnMut(&'static str, String),
    ) {
        if inst.effects().contains(Effects::ASYNC_REGISTERS) {
            let unfenced = |r: Reg, how: Access| {
                let how = if how == Access::Read { "read" } else { "written" };
                format!("{r} was {how}, and no wgmma.fence followed")
            };
            for r in fragments(inst) {
                let Some(i) = number(r) else { continue };
                if self.written[i] != IDLE {
                    report("in_flight", format!("a wgmma that writes {r} is in flight"));
                }
                if self.dirty[i] != Access::Fenced {
                    report("wgmma_fence", unfenced(r, self.dirty[i]));
                }
                self.read[i] = 0;
            }
            inst.for_each_def(|r, _| {
                let Some(i) = number(r) else { return };
                if self.read[i] != IDLE {
                    report("in_flight", format!("a wgmma that reads {r} is in flight"));
                }
                if self.dirty[i] != Access::Fenced {
                    report("wgmma_fence", unfenced(r, self.dirty[i]));
                }
                self.written[i] = 0;
            });
            return;
        }
        match inst {
            Inst::WgmmaFence { .. } => self.dirty.fill(Access::Fenced),
            Inst::WgmmaCommit {} => {
                for age in self.written.iter_mut().chain(&mut self.read).filter(|a| **a != IDLE) {
                    *age = (*age + 1).min(MANY);
                }
            }
            Inst::WgmmaWait { n, .. } => {
                for age in self.written.iter_mut().chain(&mut self.read) {
                    if *age != IDLE && i64::from(*age) > *n {
                        *age = IDLE;
                    }
                }
            }
            _ => {
                inst.for_each_use(|r, _| {
                    let Some(i) = number(r) else { return };
                    if self.written[i] != IDLE {
                        report(
                            "in_flight",
                            format!("{r} is read, and a wgmma that writes it is in flight"),
                        );
                    }
                    self.dirty[i] = self.dirty[i].max(Access::Read);
                });
                inst.for_each_def(|r, _| {
                    if let Some(i) = number(r) {
                        if self.written[i] != IDLE || self.read[i] != IDLE {
                            report(
                                "in_flight",
                                format!("{r} is written, and a wgmma that uses it is in flight"),
                            );
                        }
                        self.dirty[i] = Access::Written;
                    }
                });
            }
        }
    }
}
