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
use super::asynchronous::Asynchronous;
use super::flat::*;
use super::flow::{Flow, number_registers, successors};
use super::inst::{Effects, Inst};
use super::launch::EntryParam;
use super::operand::*;
use super::verify::{Violation, check_guarded, check_inst, into_error};
use crate::error::{Error, Loc};
use crate::target::{Features, Target};
use rustc_hash::FxHashSet;

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
        let flow = Flow::new(flat);
        v.defined(&flow);
        v.asynchronous(&flow);
        v.convergent();
    }
    v.found
}

/// What breaks the rules of registers that asynchronous operations use: `in_flight` and `wgmma_fence`. Labels and register
/// numbers must be sound.
pub fn run_asynchronous_registers(flat: &Flat) -> Vec<Violation> {
    let mut v = Verifier::new(flat);
    v.asynchronous(&Flow::new(flat));
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
    /// What the machine has.
    features: Features,
    found: Vec<Violation>,
}

impl Verifier<'_> {
    fn new(flat: &Flat) -> Verifier<'_> {
        Verifier {
            flat,
            features: Target::from_name(&flat.target).map_or(Features::empty(), |target| target.features),
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
        let lacks = fi.inst.requires().features.difference(self.features);
        if !lacks.is_empty() {
            found.push(("requires", format!("needs {lacks}, the target is {}", self.flat.target)));
        }
        if matches!(fi.inst, Inst::SetMaxReg { .. }) && self.flat.min_ctas_per_sm.is_none() {
            found.push(("setmaxnreg", "no .minnctapersm".into()));
        }
        match &fi.inst {
            Inst::LdParam { p, .. } => match self.flat.launch.params.get(p.0 as usize) {
                Some(EntryParam::Pointer { .. } | EntryParam::Row { .. }) => {}
                Some(EntryParam::TensorMap(_)) => found.push(("param", "the value of a tensor map".into())),
                None => found.push(("param", format!("no parameter {}", p.0))),
            },
            Inst::ParamAddr { p, .. } => match self.flat.launch.params.get(p.0 as usize) {
                Some(EntryParam::TensorMap(_)) => {}
                Some(EntryParam::Pointer { .. } | EntryParam::Row { .. }) => {
                    found.push(("param", "the address of a pointer".into()))
                }
                None => found.push(("param", format!("no parameter {}", p.0))),
            },
            Inst::LdParamMap { p, .. } => match self.flat.launch.params.get(p.0 as usize) {
                Some(EntryParam::TensorMap(_)) => {}
                Some(EntryParam::Pointer { .. } | EntryParam::Row { .. }) => {
                    found.push(("param", "bytes of a pointer, as of a tensor map".into()))
                }
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
        let mut targets: Vec<BlockId> = successors(&block.terminator).map(|b| BlockId(b as u32)).collect();
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

    /// A register is written on all paths to a read when it is written before in the block, or in a block that dominates
    /// it, or in blocks of which every path crosses one: found by walking back from the block, no further than the register
    /// is wanted.
    fn defined(&mut self, flow: &Flow) {
        let flat = self.flat;
        let (index, total) = number_registers(flat);
        const NOWHERE: u32 = u32::MAX;
        // The last block that wrote each register; reads that no write of their block precedes, once for each block.
        let mut written = vec![NOWHERE; total];
        let mut wanted: Vec<Vec<u32>> = vec![vec![]; total];
        for (b, block) in flat.blocks.iter().enumerate().filter(|(b, _)| flow.reached(*b)) {
            let b = b as u32;
            for_each_access(block, |_, access| match access {
                Access::Read(r) => {
                    let r = index(r);
                    if written[r] != b && wanted[r].last() != Some(&b) {
                        wanted[r].push(b);
                    }
                }
                Access::Written(r) => written[index(r)] = b,
            });
        }
        let mut writers: Vec<Vec<u32>> = vec![vec![]; total];
        for (b, block) in flat.blocks.iter().enumerate().filter(|(b, _)| flow.reached(*b)) {
            for fi in &block.insts {
                fi.inst.for_each_def(|r, _| {
                    let r = index(r);
                    if !wanted[r].is_empty() && writers[r].last() != Some(&(b as u32)) {
                        writers[r].push(b as u32);
                    }
                });
            }
        }
        // Whether the entry reaches the start of some block of `from` without a write.
        let mut seen = vec![NOWHERE; flat.blocks.len()];
        let mut writes = vec![NOWHERE; flat.blocks.len()];
        let mut stamp = 0;
        let mut escapes = |r: usize, from: &[u32]| {
            stamp += 1;
            writers[r].iter().for_each(|b| writes[*b as usize] = stamp);
            let mut work = from.to_vec();
            while let Some(b) = work.pop() {
                let b = b as usize;
                if std::mem::replace(&mut seen[b], stamp) == stamp {
                    continue;
                }
                // The first writers are those that may dominate: the others join them on the way.
                let dominated = |w: &u32| flow.strictly_dominates(*w as usize, b);
                if writers[r].iter().take(4).any(dominated) {
                    continue;
                }
                if b == 0 {
                    return true;
                }
                work.extend(flow.predecessors[b].iter().filter(|p| writes[**p as usize] != stamp));
            }
            false
        };
        let mut broken: FxHashSet<(usize, usize)> = FxHashSet::default();
        for (r, blocks) in wanted.iter().enumerate() {
            if !blocks.is_empty() && escapes(r, blocks) {
                let which = blocks.iter().filter(|b| escapes(r, &[**b]));
                broken.extend(which.map(|b| (*b as usize, r)));
            }
        }
        if broken.is_empty() {
            return;
        }
        for (b, block) in flat.blocks.iter().enumerate() {
            let mut here: FxHashSet<usize> = FxHashSet::default();
            let mut missing = vec![];
            for_each_access(block, |i, access| match access {
                Access::Read(r) if broken.contains(&(b, index(r))) && !here.contains(&index(r)) => missing.push((i, r)),
                Access::Read(_) => {}
                Access::Written(r) => {
                    here.insert(index(r));
                }
            });
            for (i, r) in missing {
                let loc = block.insts.get(i).map_or(block.loc, |fi| fi.loc);
                let message = format!("{r} is read before it is written on some path");
                self.report("defined", (b, i), loc, message);
            }
        }
    }

    fn asynchronous(&mut self, flow: &Flow) {
        let flat = self.flat;
        if let Some(analysis) = Asynchronous::of(flat, flow) {
            analysis.check(|b, i, (rule, message)| self.report(rule, (b, i), flat.blocks[b].insts[i].loc, message));
        }
    }

    fn convergent(&mut self) {
        let flat = self.flat;
        let mut inside: Vec<Option<usize>> = vec![None; flat.blocks.len()];
        // The branch whose walk has been in a block.
        let mut seen = vec![usize::MAX; flat.blocks.len()];
        for (b, block) in flat.blocks.iter().enumerate() {
            let Terminator::CondBranch {
                uniformity: Uniformity::Divergent { reconverge },
                ..
            } = block.terminator
            else {
                continue;
            };
            let mut work: Vec<usize> = successors(&block.terminator).collect();
            while let Some(at) = work.pop() {
                if at == reconverge.0 as usize || std::mem::replace(&mut seen[at], b) == b {
                    continue;
                }
                inside[at] = Some(b);
                work.extend(successors(&flat.blocks[at].terminator));
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

/// What a block does to registers.
enum Access {
    Read(Reg),
    Written(Reg),
}

/// The reads and writes of a block in order, with the instruction's number; the terminator's last.
fn for_each_access(block: &Block, mut f: impl FnMut(usize, Access)) {
    for (i, fi) in block.insts.iter().enumerate() {
        if let Some(guard) = fi.guard {
            f(i, Access::Read(guard.pred));
        }
        fi.inst.for_each_use(|r, _| f(i, Access::Read(r)));
        fi.inst.for_each_def(|r, _| f(i, Access::Written(r)));
    }
    if let Terminator::CondBranch { guard, .. } = &block.terminator {
        f(block.insts.len(), Access::Read(guard.pred));
    }
}
