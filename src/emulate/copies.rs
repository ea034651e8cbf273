//! `cp.async`: copies of a few bytes from global to shared memory, in per-thread groups of a warp.
//!
//! A copy acts when it is issued, when a wait covers it, or before an arrival that waits for it: as a load and a store of the
//! thread (PTX ISA, `cp.async`: in the generic proxy, unordered until it is waited for).
use super::check::{Hooks, Mode, Sync};
use super::machine::Machine;
use super::mem::{Denied, Global, SharedCta, Space, collisions, denied};
use super::options::AgentOrder;
use super::overwrite::no_values;
use super::sync::{ARRIVE, MbarrierArrive, barrier_of};
use super::uop::{Body, Flow, Step, Uop};
use super::warp::{Warp, lanes};
use crate::ptx::modifier::{LoadSem, Scope, StoreSem};
use std::collections::VecDeque;

/// The copies of one instruction that have yet to act.
#[derive(Clone, Debug)]
pub struct SmallCopy {
    lanes: u32,
    destinations: [u32; 32],
    sources: [u64; 32],
    /// 4, 8 or 16.
    bytes: u32,
    /// How many of them are read.
    taken: [u32; 32],
    /// The groups of their threads, once committed.
    groups: [Option<u64>; 32],
}

/// A warp's copies, oldest first, and how many groups each thread has committed.
#[derive(Default)]
pub struct CopyGroups {
    copies: VecDeque<SmallCopy>,
    committed: [u64; 32],
}

impl CopyGroups {
    pub fn clear(&mut self) {
        self.copies.clear();
        self.committed = [0; 32];
    }
}

/// The first bytes of a source.
fn taken<const B: usize, H: Hooks>(m: &Machine<'_, H>, w: &Warp, address: u64, count: u32) -> Result<[u8; 16], Denied> {
    let mut out = [0; 16];
    if count as usize == B {
        out[..B].copy_from_slice(&Global::read::<B, H>(m, w, address)?);
        return Ok(out);
    }
    if !address.is_multiple_of(B as u64) {
        return Err(Denied::Misaligned);
    }
    for (i, byte) in out.iter_mut().enumerate().take(count as usize) {
        [*byte] = Global::read::<1, H>(m, w, address + i as u64)?;
    }
    Ok(out)
}

fn act<H: Hooks>(w: &mut Warp, m: &mut Machine<'_, H>, copy: &SmallCopy, mask: u32) -> Step {
    let exec = w.exec;
    let flow = match copy.bytes {
        4 => act_as::<4, H>(w, m, copy, mask),
        8 => act_as::<8, H>(w, m, copy, mask),
        _ => act_as::<16, H>(w, m, copy, mask),
    };
    w.set_exec(exec);
    flow
}

fn act_as<const B: usize, H: Hooks>(w: &mut Warp, m: &mut Machine<'_, H>, copy: &SmallCopy, mask: u32) -> Step {
    // The checker hears of lanes that read as much together.
    let mut left = lanes(mask)
        .filter(|i| copy.taken[*i] > 0)
        .fold(0, |all, i| all | 1 << i);
    while left != 0 {
        let count = copy.taken[u32::trailing_zeros(left) as usize];
        let alike = lanes(left)
            .filter(|i| copy.taken[*i] == count)
            .fold(0, |all, i| all | 1 << i);
        w.set_exec(alike);
        let mode = Mode::Load(LoadSem::Weak);
        Global::check(m, w, &copy.sources, 0, count, mode, &no_values)?;
        left &= !alike;
    }
    w.set_exec(mask);
    let mut values = [[0; 16]; 32];
    for i in lanes(mask) {
        values[i] = match copy.taken[i] {
            0 => [0; 16],
            count => taken::<B, H>(m, w, copy.sources[i], count)
                .map_err(|why| denied(m, w, why, "cp.async", Global::NAME, i, copy.sources[i], B))?,
        };
    }
    let mode = Mode::Store(StoreSem::Weak);
    SharedCta::check(m, w, &copy.destinations, 0, B as u32, mode, &|i| values[i])?;
    let mut cut = [[0; B]; 32];
    for i in lanes(mask) {
        cut[i].copy_from_slice(&values[i][..B]);
        let address = u64::from(copy.destinations[i]);
        SharedCta::write::<B, H>(m, w, address, cut[i])
            .map_err(|why| denied(m, w, why, "cp.async", SharedCta::NAME, i, address, B))?;
    }
    if H::LISTENS && m.hooks.lanes_may_overlap() {
        let address = |i: usize| u64::from(copy.destinations[i]);
        collisions::<SharedCta, B, H>(m, w, mask, &address, &|i| cut[i])?;
    }
    Ok(Flow::Next)
}

/// The copies of the executing lanes that `covers` (lane, group) says act.
fn act_where<H: Hooks>(
    w: &mut Warp,
    m: &mut Machine<'_, H>,
    covers: impl Fn(&CopyGroups, usize, Option<u64>) -> bool,
) -> Step {
    let mut waiting = std::mem::take(&mut w.copies.copies);
    let mut kept = VecDeque::new();
    while let Some(mut copy) = waiting.pop_front() {
        let covered = lanes(copy.lanes & w.exec).filter(|i| covers(&w.copies, *i, copy.groups[*i]));
        let mask = covered.fold(0, |all, i| all | 1 << i);
        if mask != 0 {
            act(w, m, &copy, mask)?;
        }
        copy.lanes &= !mask;
        if copy.lanes != 0 {
            kept.push_back(copy);
        }
    }
    w.copies.copies = kept;
    Ok(Flow::Next)
}

/// All bytes are read.
pub const ALL_TAKEN: u16 = u16::MAX;

/// Issues copies of `d` bytes to `a` + `imm` from `b` + `aux`; `c` is how many are read.
pub struct CopyAsync;
impl<H: Hooks> Body<H> for CopyAsync {
    #[inline(never)]
    fn run(w: &mut Warp, m: &mut Machine<'_, H>, u: &Uop<H>) -> Step {
        let bytes = u32::from(u.d);
        let taken = match u.c {
            ALL_TAKEN => [bytes; 32],
            c => w.read::<u32>(c).map(|n| n.min(bytes)),
        };
        let copy = SmallCopy {
            lanes: w.exec,
            destinations: w.read::<u32>(u.a).map(|a| a.wrapping_add(u.imm as u32)),
            sources: w.read::<u64>(u.b).map(|b| b.wrapping_add(u.aux as i32 as i64 as u64)),
            bytes,
            taken,
            groups: [None; 32],
        };
        let now = match m.options.agents {
            AgentOrder::Earliest => true,
            AgentOrder::Latest => false,
            AgentOrder::Seeded(_) => m.rng.below(4) == 0,
        };
        if now {
            return act(w, m, &copy, copy.lanes);
        }
        w.copies.copies.push_back(copy);
        Ok(Flow::Next)
    }
}

/// `cp.async.commit_group`.
pub struct CopyCommit;
impl<H: Hooks> Body<H> for CopyCommit {
    #[inline(never)]
    fn run(w: &mut Warp, _: &mut Machine<'_, H>, _: &Uop<H>) -> Step {
        for lane in lanes(w.exec) {
            let group = w.copies.committed[lane];
            w.copies.committed[lane] += 1;
            for copy in &mut w.copies.copies {
                copy.groups[lane].get_or_insert(group);
            }
        }
        Ok(Flow::Next)
    }
}

/// `cp.async.wait_group`; `imm`: how many groups may be pending.
pub struct CopyWait;
impl<H: Hooks> Body<H> for CopyWait {
    #[inline(never)]
    fn run(w: &mut Warp, m: &mut Machine<'_, H>, u: &Uop<H>) -> Step {
        let pending = u.imm as u64;
        act_where(w, m, |groups, lane, group| {
            group.is_some_and(|group| group < groups.committed[lane].saturating_sub(pending))
        })
    }
}

/// `cp.async.wait_all`.
pub struct CopyWaitAll;
impl<H: Hooks> Body<H> for CopyWaitAll {
    #[inline(never)]
    fn run(w: &mut Warp, m: &mut Machine<'_, H>, _: &Uop<H>) -> Step {
        act_where(w, m, |_, _, _| true)
    }
}

/// `cp.async.mbarrier.arrive.noinc`: the copies act, and then the lanes arrive. Operands are [`MbarrierArrive`]'s.
pub struct CopyArrive;
impl<H: Hooks> Body<H> for CopyArrive {
    #[inline(never)]
    fn run(w: &mut Warp, m: &mut Machine<'_, H>, u: &Uop<H>) -> Step {
        act_where(w, m, |_, _, _| true)?;
        MbarrierArrive::run(w, m, &Uop { c: ARRIVE, ..*u })
    }
}

/// The same without `.noinc`: the barrier takes one arrival more than it would have, and has it.
pub struct CopyArriveMore;
impl<H: Hooks> Body<H> for CopyArriveMore {
    #[inline(never)]
    fn run(w: &mut Warp, m: &mut Machine<'_, H>, u: &Uop<H>) -> Step {
        act_where(w, m, |_, _, _| true)?;
        for i in lanes(w.exec) {
            let (slot, offset) = barrier_of(w, m, u, i)?;
            let release = Some(Scope::Cta);
            m.note(w, Sync::Arrive { slot, offset, release })?;
        }
        Ok(Flow::Next)
    }
}
