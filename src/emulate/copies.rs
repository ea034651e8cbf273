//! `cp.async`: copies of a few bytes from global to shared memory, in per-thread groups of a warp.
//!
//! A copy acts when it is issued, when a wait covers it, or before an arrival that waits for it: as a load and a store of the
//! thread (PTX ISA, `cp.async`: in the generic proxy, unordered until it is waited for). The checker hears of it when it is issued, and when
//! it ends, whenever it acts.
use super::check::{Hooks, Mode, SmallCopies, Sync, Verdict};
use super::global::GlobalMemory;
use super::machine::Machine;
use super::mem::{Denied, Global, SharedCta, Space, collisions, denied, dense_bytes};
use super::options::AgentOrder;
use super::overwrite::no_values;
use super::sync::{ARRIVE, MbarrierArrive, barrier_of};
use super::uop::{Body, Flow, Step, Uop};
use super::warp::{Warp, lanes};
use crate::error::Loc;
use crate::ptx::modifier::Scope;
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
    /// The lanes that have committed it, and to which of their groups.
    committed: u32,
    groups: [u32; 32],
    /// It has acted, and the checker has yet to hear of its end.
    acted: bool,
    /// Lanes may write the same bytes.
    may_overlap: bool,
    /// The instruction's.
    loc: Loc,
}

/// A warp's copies, oldest first, and how many groups each thread has committed.
#[derive(Default)]
pub struct CopyGroups {
    copies: VecDeque<SmallCopy>,
    committed: [u32; 32],
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

/// The lanes of which something holds.
#[inline(always)]
fn mask_of(holds: impl Fn(usize) -> bool) -> u32 {
    (0..32).fold(0, |all, i| all | u32::from(holds(i)) << i)
}

impl SmallCopy {
    /// What it writes for a lane, as its source is now.
    fn value(&self, memory: &GlobalMemory, lane: usize) -> [u8; 16] {
        match self.taken[lane] {
            0 => [0; 16],
            count => memory.peek(self.sources[lane], count.into()),
        }
    }

    /// Lanes that read as much, and how much that is; none of those that read nothing.
    fn alike(&self, mask: u32) -> impl Iterator<Item = (u32, u32)> + '_ {
        let mut left = mask & mask_of(|i| self.taken[i] > 0);
        std::iter::from_fn(move || {
            let count = self.taken[lanes(left).next()?];
            let alike = left & mask_of(|i| self.taken[i] == count);
            left &= !alike;
            Some((alike, count))
        })
    }
}

/// Tells the checker of a copy that is issued.
fn issue<H: Hooks>(w: &mut Warp, m: &mut Machine<'_, H>, copy: &mut SmallCopy) -> Verdict {
    let memory = m.memory;
    for (alike, bytes) in copy.alike(copy.lanes) {
        w.set_exec(alike);
        Global::check(m, w, &copy.sources, 0, bytes, Mode::SmallRead, &no_values)?;
    }
    w.set_exec(copy.lanes);
    let (mode, values) = (Mode::SmallWrite, |i| copy.value(memory, i));
    SharedCta::check(m, w, &copy.destinations, 0, copy.bytes, mode, &values)?;
    copy.may_overlap = m.hooks.lanes_may_overlap();
    Ok(())
}

/// The copies of some lanes of one instruction are over, and have acted; `landing`: for whoever has seen it.
fn end<H: Hooks>(w: &mut Warp, m: &mut Machine<'_, H>, copy: &SmallCopy, mask: u32, landing: Option<u32>) -> Verdict {
    if H::LISTENS {
        let copies = SmallCopies {
            mask,
            destinations: &copy.destinations,
            sources: &copy.sources,
            bytes: copy.bytes,
            taken: &copy.taken,
            loc: copy.loc,
        };
        let verdict = m.hooks.small_copies_end(w.who(), copies, landing);
        m.judge(w, verdict)?;
    }
    if copy.acted {
        return Ok(());
    }
    let exec = w.exec;
    w.set_exec(mask);
    act(w, m, copy)?;
    w.set_exec(exec);
    Ok(())
}

/// The executing lanes of a copy act.
fn act<H: Hooks>(w: &Warp, m: &mut Machine<'_, H>, copy: &SmallCopy) -> Verdict {
    match copy.bytes {
        4 => act_as::<4, H>(w, m, copy),
        8 => act_as::<8, H>(w, m, copy),
        _ => act_as::<16, H>(w, m, copy),
    }
}

fn act_as<const B: usize, H: Hooks>(w: &Warp, m: &mut Machine<'_, H>, copy: &SmallCopy) -> Verdict {
    let mask = w.exec;
    let mut values = [[0; B]; 32];
    if copy.taken == [B as u32; 32]
        && let Some(source) = Global::dense::<B, H>(m, w, &copy.sources, 0)
        && let Some(destination) = SharedCta::run::<B, H>(m, w, &copy.destinations, 0)
    {
        values
            .as_flattened_mut()
            .copy_from_slice(dense_bytes::<Global, B, H>(m, w, source));
        SharedCta::write_run(m, w, destination, values.as_flattened());
        return Ok(());
    }
    for i in lanes(mask).filter(|i| copy.taken[*i] > 0) {
        let read = taken::<B, H>(m, w, copy.sources[i], copy.taken[i])
            .map_err(|why| denied(m, w, why, "cp.async", Global::NAME, i, copy.sources[i], B))?;
        values[i].copy_from_slice(&read[..B]);
    }
    for i in lanes(mask) {
        let address = u64::from(copy.destinations[i]);
        SharedCta::write::<B, H>(m, w, address, values[i])
            .map_err(|why| denied(m, w, why, "cp.async", SharedCta::NAME, i, address, B))?;
    }
    if H::LISTENS && copy.may_overlap {
        let address = |i: usize| u64::from(copy.destinations[i]);
        collisions::<SharedCta, B, H>(m, w, mask, &address, &|i| values[i])?;
    }
    Ok(())
}

/// The copies of the executing lanes that `covers` says end.
fn end_where<H: Hooks>(
    w: &mut Warp,
    m: &mut Machine<'_, H>,
    landing: Option<u32>,
    covers: impl Fn(&SmallCopy) -> u32,
) -> Step {
    let mut waiting = std::mem::take(&mut w.copies.copies);
    let mut is_over = false;
    for copy in &mut waiting {
        let mask = copy.lanes & w.exec & covers(copy);
        if mask != 0 {
            end(w, m, copy, mask, landing)?;
        }
        copy.lanes &= !mask;
        is_over |= copy.lanes == 0;
    }
    if is_over {
        // Mostly the oldest.
        while waiting.front().is_some_and(|copy| copy.lanes == 0) {
            waiting.pop_front();
        }
        waiting.retain(|copy| copy.lanes != 0);
    }
    w.copies.copies = waiting;
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
        let mut copy = SmallCopy {
            lanes: w.exec,
            destinations: w.read::<u32>(u.a).map(|a| a.wrapping_add(u.imm as u32)),
            sources: w.read::<u64>(u.b).map(|b| b.wrapping_add(u.aux as i32 as i64 as u64)),
            bytes,
            taken,
            committed: 0,
            groups: [0; 32],
            acted: false,
            may_overlap: false,
            loc: if H::LISTENS { m.here() } else { Loc::CALL_SITE },
        };
        if H::LISTENS {
            issue(w, m, &mut copy)?;
        }
        let now = match m.options.agents {
            AgentOrder::Earliest => true,
            AgentOrder::Latest => false,
            AgentOrder::Seeded(_) => m.rng.below(4) == 0,
        };
        if now {
            act(w, m, &copy)?;
            copy.acted = true;
        }
        if now && !H::LISTENS {
            return Ok(Flow::Next);
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
        let CopyGroups { copies, committed } = &mut w.copies;
        for copy in copies {
            let new = w.exec & !copy.committed;
            if new != 0 {
                lanes(new).for_each(|i| copy.groups[i] = committed[i]);
                copy.committed |= new;
            }
        }
        lanes(w.exec).for_each(|i| committed[i] += 1);
        Ok(Flow::Next)
    }
}

/// `cp.async.wait_group`; `imm`: how many groups may be pending.
pub struct CopyWait;
impl<H: Hooks> Body<H> for CopyWait {
    #[inline(never)]
    fn run(w: &mut Warp, m: &mut Machine<'_, H>, u: &Uop<H>) -> Step {
        m.hooks.small_copies_waited(w.who());
        let over = w.copies.committed.map(|n| n.saturating_sub(u.imm as u32));
        end_where(w, m, None, |copy| {
            copy.committed & mask_of(|i| copy.groups[i] < over[i])
        })
    }
}

/// `cp.async.wait_all`.
pub struct CopyWaitAll;
impl<H: Hooks> Body<H> for CopyWaitAll {
    #[inline(never)]
    fn run(w: &mut Warp, m: &mut Machine<'_, H>, _: &Uop<H>) -> Step {
        m.hooks.small_copies_waited(w.who());
        end_where(w, m, None, |_| !0)
    }
}

/// The copies of the executing lanes act, and land where their lanes arrive.
fn land<H: Hooks>(w: &mut Warp, m: &mut Machine<'_, H>, u: &Uop<H>) -> Step {
    if !H::LISTENS {
        return end_where(w, m, None, |_| !0);
    }
    let (exec, mut left) = (w.exec, w.exec);
    while let Some(first) = lanes(left).next() {
        let (slot, offset) = barrier_of(w, m, u, first)?;
        let addresses = w.read::<u32>(u.a);
        let alike = lanes(left)
            .filter(|i| addresses[*i] == addresses[first])
            .fold(0, |all, i| all | 1 << i);
        let landing = m.hooks.small_copies_arrive(w.who(), slot, offset);
        w.set_exec(alike);
        end_where(w, m, Some(landing), |_| !0)?;
        left &= !alike;
    }
    w.set_exec(exec);
    Ok(Flow::Next)
}

/// `cp.async.mbarrier.arrive.noinc`: the copies act, and then the lanes arrive. Operands are [`MbarrierArrive`]'s.
pub struct CopyArrive;
impl<H: Hooks> Body<H> for CopyArrive {
    #[inline(never)]
    fn run(w: &mut Warp, m: &mut Machine<'_, H>, u: &Uop<H>) -> Step {
        land(w, m, u)?;
        MbarrierArrive::run(w, m, &Uop { c: ARRIVE, ..*u })
    }
}

/// The same without `.noinc`: the barrier takes one arrival more than it would have, and has it.
pub struct CopyArriveMore;
impl<H: Hooks> Body<H> for CopyArriveMore {
    #[inline(never)]
    fn run(w: &mut Warp, m: &mut Machine<'_, H>, u: &Uop<H>) -> Step {
        land(w, m, u)?;
        for i in lanes(w.exec) {
            let (slot, offset) = barrier_of(w, m, u, i)?;
            let release = Some(Scope::Cta);
            m.note(w, Sync::Arrive { slot, offset, release })?;
        }
        Ok(Flow::Next)
    }
}
