//! Copies by threads (`cp.async`): in the generic proxy, each as a load and a store that happen at any time until their thread has waited for them.
//!
//! From the issue on they are [`IN_FLIGHT`](super::race::IN_FLIGHT) in the lines that they read and write, for their own warp, too. All that touches
//! these until then is held against that, so that at its end nothing is left to look at: what it did is a load and a store of its warp then, in the
//! present epoch. Where they arrive on an mbarrier they are over for those who have seen a landing of the CTA ([`Loads`](super::loads::Loads)), too:
//! whoever waits for the phase has, and so has their own warp when it waits for copies.
use super::race::{Actor, Kind, Past};
use super::shared::{bytes_at, is_dense};
use super::{Access, Checker, Mode, Range, SmallCopies, Verdict, Who, changes_all};
use crate::emulate::overwrite::{Mask, lines_of};
use crate::emulate::row::lanes;
use crate::emulate::shared::{CtaSlot, SMEM_BASE, locate};
use crate::error::Loc;
use crate::ptx::modifier::LoadSem;
use arrayvec::ArrayVec;
use std::rc::Rc;

/// Lines that lanes touch, neighbours in a line together.
type Touched = ArrayVec<(u64, Mask), 64>;

#[inline(always)]
fn add(touched: &mut Touched, line: u64, mask: Mask) {
    match touched.last_mut() {
        Some(last) if last.0 == line => last.1 |= mask,
        _ => touched.push((line, mask)),
    }
}

impl Checker {
    /// Lines of the own CTA's shared memory: what is elsewhere the copy itself reports.
    fn written_lines(&self, who: Who, copies: SmallCopies<'_>) -> Touched {
        let mut touched = Touched::new();
        let (start, all) = (copies.destinations[0].wrapping_sub(SMEM_BASE), 32 * copies.bytes);
        if copies.mask == !0 && start < self.shape.smem_bytes && is_dense(copies.destinations, copies.bytes) {
            touched.extend(lines_of(
                start.into(),
                u64::from(all.min(self.shape.smem_bytes - start)),
            ));
            return touched;
        }
        for i in lanes(copies.mask) {
            let place = locate(who.cta, self.shape.cluster_size, copies.destinations[i]);
            if let Some((slot, at)) = place
                && slot == who.cta
                && at < self.shape.smem_bytes
            {
                add(&mut touched, u64::from(at >> 7), bytes_at(at, copies.bytes));
            }
        }
        touched
    }

    pub(super) fn end_small_copies(&mut self, who: Who, copies: SmallCopies<'_>, landing: Option<u32>) -> Verdict {
        let id = self.id(who);
        if copies.loc != Loc::CALL_SITE {
            self.small.insert(copies.loc);
        }
        self.part_from_views(id);
        let component = self.component(who);
        let epoch = self.clocks[id].seen()[component];
        let now = self.times.access(id, epoch);
        let over = |kind| Past::new(Actor::own(component as u32), kind, epoch, copies.loc, 0);
        let landing = landing.filter(|landing| *landing != 0);
        let written = self.written_lines(who, copies);
        let cta = &mut self.ctas[who.cta.0 as usize];
        for (line, mask) in written {
            cta.shared.end_small(line as usize, mask, &over(Kind::Write), now);
            if let Some(landing) = landing {
                cta.shared.land_small(line as usize, mask, landing, copies.loc);
            }
        }
        let mut read = Touched::new();
        let (start, bytes) = (copies.sources[0], u64::from(copies.bytes));
        if copies.mask == !0
            && *copies.taken == [copies.bytes; 32]
            && (1..32).all(|i| copies.sources[i] == start.wrapping_add(i as u64 * bytes))
        {
            read.extend(lines_of(start, 32 * bytes));
        } else {
            for i in lanes(copies.mask).filter(|i| copies.taken[*i] > 0) {
                lines_of(copies.sources[i], copies.taken[i].into()).for_each(|(line, mask)| add(&mut read, line, mask));
            }
        }
        // Two copies of the same bytes end together.
        for (address, mask) in &read {
            let line = cta.global.line(*address);
            cta.global.end_small(line, *mask, &over(Kind::Read), now);
            if let Some(landing) = landing {
                cta.global.land_small_read(line, *mask, landing, copies.loc);
            }
            self.versions.count(*address, Kind::Read);
        }
        if self.across.is_none() {
            return Ok(());
        }
        let access = Access {
            range: Range::Global { address: 0 },
            bytes: 0,
            mode: Mode::Load(LoadSem::Weak),
            loc: copies.loc,
            changes: &changes_all,
            number: 0,
        };
        let clock = Rc::clone(&self.clocks[id]);
        self.global_lines(who, &clock, &mut read.into_iter(), access)
    }

    /// Those of one phase land as one. Whoever waits for it knows of all that the warp has copied before, too.
    pub(super) fn arrive_small_copies(&mut self, who: Who, slot: CtaSlot, offset: u32) -> u32 {
        let (id, component) = (self.id(who), self.columns(slot).loads as usize);
        let cta = &mut self.ctas[slot.0 as usize];
        let Some(barrier) = cta.barriers.get_mut(&offset) else {
            return 0;
        };
        let landing = *barrier.landing.get_or_insert_with(|| cta.loads.land_small(offset));
        self.arrived[id] = self.arrived[id].max(landing);
        barrier.phases.arriving.see(component, self.arrived[id]);
        landing
    }

    /// What has arrived on barriers is over for their warp, too.
    pub(super) fn wait_for_small_copies(&mut self, who: Who) {
        let (id, component) = (self.id(who), self.columns(who.cta).loads as usize);
        if self.clocks[id].seen()[component] < self.arrived[id] {
            let landing = self.arrived[id];
            self.clock(id).see(component, landing);
        }
    }
}
