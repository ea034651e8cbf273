//! What a text does with `wgmma`: registers in flight, and who executes it.
//!
//! The table's fences and waits name the registers that they order or settle, so that nothing moves across them; PTX's do not. [`tie`]
//! names those that a product has or gets, and that are read later.
use super::program::{Program, Statement};
use crate::error::{Error, Loc, Result};
use crate::kernel_ir::Group;
use crate::ptx::asynchronous::Asynchronous;
use crate::ptx::build::{Builder, Operand};
use crate::ptx::flat::Reg;
use crate::ptx::flow::Flow;
use crate::ptx::inst::{Effects, Inst};
use crate::ptx::launch::LaunchSpec;
use crate::ptx::modifier::{BitType, MemType, Space};
use crate::ptx::operand::{Addr, Class, Field, Src, Tied};
use crate::ptx::out_of_ssa::{self, Shell};
use crate::ptx::{Ssa, eliminate_dead_code};
use std::collections::BTreeSet;

/// Whether a warpgroup executes it together.
pub fn is_of_warpgroup<R: Copy>(inst: &Inst<R>) -> bool {
    let orders = matches!(
        inst,
        Inst::WgmmaFence { .. } | Inst::WgmmaCommit {} | Inst::WgmmaWait { .. }
    );
    orders || is_product(inst)
}

fn is_product<R: Copy>(inst: &Inst<R>) -> bool {
    inst.effects().contains(Effects::ASYNC_REGISTERS)
}

fn insts(program: &Program) -> impl Iterator<Item = &Inst<Reg>> {
    program.statements.iter().filter_map(|s| match s {
        Statement::Inst { inst, .. } => Some(inst),
        Statement::Label(_) | Statement::Branch { .. } => None,
    })
}

// ------------------------------------------------------------------------------------------ what fences and waits are about

/// Names the registers that fences and waits are about. `results`: how many of the interface's registers are looked at behind the text.
pub fn tie(program: &mut Program, results: usize) {
    let products: Vec<&Inst<Reg>> = insts(program).filter(|i| is_product(*i)).collect();
    if products.is_empty() {
        return;
    }
    let (mut written, mut ordered) = (BTreeSet::new(), BTreeSet::new());
    for inst in products {
        inst.for_each_def(|r, _| {
            written.insert(r);
        });
        for field in inst.fields() {
            if let Field::Srcs(list, _) = field {
                ordered.extend(list.iter().filter_map(|s| s.reg()));
            }
        }
    }
    ordered.extend(&written);
    // And what they are copies of: a copy is no instruction in the end.
    for set in [&mut written, &mut ordered] {
        let mut changed = true;
        while std::mem::take(&mut changed) {
            for inst in insts(program) {
                if let Inst::Mov {
                    ty: BitType::B32,
                    d,
                    a: Src::Reg(a),
                } = inst
                {
                    changed |= set.contains(d) && set.insert(*a);
                }
            }
        }
    }
    let live = live_behind(program, results, &ordered);
    for (statement, live) in program.statements.iter_mut().zip(live) {
        let Statement::Inst { inst, .. } = statement else {
            continue;
        };
        let (acc, about) = match inst {
            Inst::WgmmaFence { acc } => (acc, &ordered),
            Inst::WgmmaWait { acc, .. } => (acc, &written),
            _ => continue,
        };
        *acc = Tied::in_place(live.intersection(about).copied().collect());
    }
}

/// Of each fence and wait, the registers of `of` that are read behind it; of other statements none.
fn live_behind(program: &Program, results: usize, of: &BTreeSet<Reg>) -> Vec<BTreeSet<Reg>> {
    let looked_at: BTreeSet<Reg> = program.interface[..results].iter().copied().collect();
    let mut at_label = vec![BTreeSet::new(); program.labels.len()];
    let mut out = vec![BTreeSet::new(); program.statements.len()];
    let mut changed = true;
    while std::mem::take(&mut changed) {
        let mut live = looked_at.clone();
        for (at, statement) in program.statements.iter().enumerate().rev() {
            match statement {
                Statement::Label(l) => {
                    let before = at_label[*l].len();
                    at_label[*l].extend(&live);
                    changed |= at_label[*l].len() > before;
                }
                Statement::Branch { guard: None, to } => live = at_label[*to].clone(),
                Statement::Branch { guard: Some(_), to } => live.extend(&at_label[*to]),
                Statement::Inst { guard, inst } => {
                    if matches!(inst, Inst::WgmmaFence { .. } | Inst::WgmmaWait { .. }) {
                        out[at] = live.clone();
                        continue;
                    }
                    if guard.is_none() {
                        inst.for_each_def(|r, _| {
                            live.remove(&r);
                        });
                    }
                    inst.for_each_use(|r, _| {
                        if of.contains(&r) {
                            live.insert(r);
                        }
                    });
                }
            }
        }
    }
    out
}

// ------------------------------------------------------------------------------------------ what is wrong

/// Whether a text has any `wgmma`; it is an error in a warp region.
pub fn has_products(program: &Program, group: Group) -> Result<bool> {
    let first = program.statements.iter().position(|s| match s {
        Statement::Inst { inst, .. } => is_of_warpgroup(inst),
        Statement::Label(_) | Statement::Branch { .. } => false,
    });
    let Some(first) = first else { return Ok(false) };
    if group == Group::Warp {
        let line = program.lines[first];
        return Err(
            Error::invalid(format!("inline PTX, line {line}: wgmma in a warp region"))
                .expected("code of a warpgroup: its four warps execute wgmma together")
                .remedy("call it outside of the warp region; a warp alone multiplies with mma.sync"),
        );
    }
    Ok(true)
}

/// Reads results behind the text, as the kernel does.
pub fn read_results(b: &mut Builder, program: &Program, results: &[Operand]) {
    b.set_loc(Loc(program.statements.len() as u32));
    let base = b.smem_base();
    for x in results {
        let Src::Reg(x) = x else { continue };
        let ty = match b.class(*x) {
            Class::B16 => MemType::B16,
            Class::B32 => MemType::B32,
            Class::B64 => MemType::B64,
            Class::Pred => continue,
        };
        b.store(Space::Shared, ty, Addr::at(base, 0), &[Src::Reg(*x)]);
    }
}

/// A text orders its products itself: no register is touched behind its last fence or while it is in flight, and nothing is in flight at
/// the end. `ssa`: what is emitted for it, with what [`read_results`] adds.
pub fn check(program: &Program, mut ssa: Ssa) -> Result<()> {
    let last = program.lines.last().copied().unwrap_or(1);
    let error = |at: usize, what: &str| {
        let line = program.lines.get(at).copied().unwrap_or(last);
        Error::invalid(format!("inline PTX, line {line}: {what}"))
    };
    if let Some(at) = unsettled(program) {
        return Err(error(at, "the text ends, and this wgmma may be in flight")
            .expected("wgmma.commit_group.sync.aligned and then wgmma.wait_group.sync.aligned 0 behind the last wgmma, on every way to the end")
            .remedy("wait for it; products that go on behind it are plgpu.wgmma's"));
    }
    eliminate_dead_code::run(&mut ssa);
    let shell = Shell {
        launch: LaunchSpec::of_one_block(128),
        target: "sm_90a".into(),
        min_ctas_per_sm: None,
    };
    let flat = out_of_ssa::run(&ssa, shell)?;
    let flow = Flow::new(&flat);
    let mut wrong: Option<(usize, &str)> = None;
    if let Some(asynchronous) = Asynchronous::of(&flat, &flow) {
        asynchronous.check(|b, i, (rule, _)| {
            let at = flat.blocks[b].insts[i].loc.0 as usize;
            if wrong.is_none_or(|(first, _)| at < first) {
                wrong = Some((at, rule));
            }
        });
    }
    Err(match wrong {
        None => return Ok(()),
        Some((at, "wgmma_fence")) => error(at, "a wgmma on registers that no wgmma.fence has ordered")
            .expected("wgmma.fence.sync.aligned behind whatever else touches its accumulators and its registers of A, and before it")
            .remedy("issue wgmma.fence.sync.aligned when the registers are ready"),
        Some((at, _)) => error(at, "a register that a wgmma in flight uses is touched")
            .expected("wgmma.commit_group.sync.aligned and wgmma.wait_group.sync.aligned between the wgmma and the access")
            .remedy("wait for the wgmma first"),
    })
}

/// How far products are on some way to a place: the last one's statement, and whether it is committed.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Pending {
    None,
    Committed(usize),
    Issued(usize),
}

/// A product that may not have been waited for when the text ends.
fn unsettled(program: &Program) -> Option<usize> {
    let mut at_label = vec![Pending::None; program.labels.len()];
    loop {
        let (before, mut now) = (at_label.clone(), Pending::None);
        for (at, statement) in program.statements.iter().enumerate() {
            match statement {
                Statement::Label(l) => {
                    at_label[*l] = at_label[*l].max(now);
                    now = at_label[*l];
                }
                Statement::Branch { guard, to } => {
                    at_label[*to] = at_label[*to].max(now);
                    if guard.is_none() {
                        now = Pending::None;
                    }
                }
                Statement::Inst { guard, inst } => match (inst, now) {
                    _ if is_product(inst) => now = Pending::Issued(at),
                    // Behind a guard they may not be executed.
                    _ if guard.is_some() => {}
                    (Inst::WgmmaCommit {}, Pending::Issued(at)) => now = Pending::Committed(at),
                    (Inst::WgmmaWait { n: 0, .. }, Pending::Committed(_)) => now = Pending::None,
                    _ => {}
                },
            }
        }
        if at_label == before {
            return match now {
                Pending::None => None,
                Pending::Committed(at) | Pending::Issued(at) => Some(at),
            };
        }
    }
}
