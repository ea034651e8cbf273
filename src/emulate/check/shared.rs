//! Warps' accesses to shared memory: their own CTA's, and their peers'.
use super::clock::{Clock, Knowledge};
use super::race::{Kind, Side};
use super::shadow::{Found, worst};
use super::words::is_wide;
use super::{Access, Checker, Mode, Verdict, Who};
use crate::emulate::overwrite::{Mask, lines_of};
use crate::emulate::row::lanes;
use crate::emulate::shared::{self, CtaSlot, RANK_SHIFT, SMEM_BASE};
use arrayvec::ArrayVec;
use std::rc::Rc;

/// Addresses, an offset, and which lanes.
pub type Lanes<'a> = (&'a [u32; 32], i32, u32);

/// Whether the lanes' accesses follow one another.
#[inline(always)]
pub fn is_dense(addresses: &[u32; 32], bytes: u32) -> bool {
    if addresses[31] != addresses[0].wrapping_add(31 * bytes) {
        return false;
    }
    let mut differs = 0;
    for (i, address) in addresses.iter().enumerate() {
        differs |= address ^ addresses[0].wrapping_add(i as u32 * bytes);
    }
    differs == 0
}

/// The bytes of an access at an offset, in its line.
#[inline(always)]
pub fn bytes_at(offset: u32, bytes: u32) -> Mask {
    (Mask::MAX >> (128 - bytes)) << (offset & 127)
}

/// Places that lanes have accessed: whether two may be one.
#[derive(Default)]
pub struct Places([u64; 16]);

impl Places {
    #[inline(always)]
    pub fn add(&mut self, at: u32) -> bool {
        let bit = at.wrapping_mul(0x9e37_79b9) >> 22;
        let word = &mut self.0[bit as usize / 64];
        let before = *word >> (bit % 64) & 1 == 1;
        *word |= 1 << (bit % 64);
        before
    }
}

impl Checker {
    /// An access by the lanes of a warp to shared memory.
    #[inline(always)]
    pub(super) fn shared_lanes(
        &mut self,
        who: Who,
        (addresses, offset, mask): Lanes<'_>,
        access: Access<'_>,
    ) -> Verdict {
        let (kind, bytes) = (Kind::of(access.mode), access.bytes);
        if kind.writes() {
            self.part_from_views(self.id(who));
        }
        let again = self.same_epoch(who, kind, access.loc);
        let (shadow, size) = (&mut self.ctas[who.cta.0 as usize].shared, self.shape.smem_bytes);
        let start = addresses[0].wrapping_add(offset as u32).wrapping_sub(SMEM_BASE);
        self.overlap = false;
        let is_within = start < size && start.wrapping_add(32 * bytes) <= size;
        if mask == u32::MAX && is_within && is_dense(addresses, bytes) {
            let lines = lines_of(start.into(), u64::from(32 * bytes));
            return match shadow.touch_lines(lines, &again) {
                true => Ok(()),
                false => self.look_at_run(who, start, access),
            };
        }
        let mut left = mask;
        let is_atomic = matches!(kind, Kind::Atomic(_));
        // Atomics are often of one word in all lanes.
        if matches!(kind, Kind::Read | Kind::Write | Kind::SmallWrite) || is_atomic && addresses[0] != addresses[31] {
            let mut at = *addresses;
            for at in &mut at {
                *at = at.wrapping_add(offset as u32).wrapping_sub(SMEM_BASE);
            }
            if matches!(kind, Kind::Write | Kind::SmallWrite) {
                let mut places = Places::default();
                lanes(mask).for_each(|i| self.overlap |= places.add(at[i]));
            }
            left = shadow.touch(&at, mask, bytes, &again);
        } else {
            self.overlap = true;
        }
        match left {
            0 => Ok(()),
            _ => self.look_at_lanes(who, (addresses, offset, left), access),
        }
    }

    /// An access by all lanes to bytes that follow one another, for which more than a glance is needed.
    #[inline(never)]
    fn look_at_run(&mut self, who: Who, start: u32, access: Access<'_>) -> Verdict {
        let clock = Rc::clone(&self.clocks[self.id(who)]);
        let mine = self.side(who, Kind::of(access.mode), access.loc, &clock);
        let shadow = &mut self.ctas[who.cta.0 as usize].shared;
        let mut found = None;
        for (line, mask) in lines_of(start.into(), u64::from(32 * access.bytes)) {
            let changes = || (access.changes)(who.cta, line);
            worst(&mut found, shadow.access((line as usize, line), mask, &mine, &changes));
        }
        self.verdict(who, &mine, who.cta, found)
    }

    /// The lanes of an access for which more than a glance is needed.
    #[inline(never)]
    fn look_at_lanes(&mut self, who: Who, (addresses, offset, mask): Lanes<'_>, access: Access<'_>) -> Verdict {
        let clock = Rc::clone(&self.clocks[self.id(who)]);
        let mine = &self.side(who, Kind::of(access.mode), access.loc, &clock);
        let (size, own_rank) = (self.shape.smem_bytes, who.cta.0 % self.shape.cluster_size + 1);
        let shadow = &mut self.ctas[who.cta.0 as usize].shared;
        let mut found = None;
        let mut look = |line: u32, touched: Mask| {
            let changes = || (access.changes)(who.cta, line.into());
            let race = shadow.access((line as usize, line.into()), touched, mine, &changes);
            worst(&mut found, race);
        };
        // Neighbours in a line together.
        let (mut line, mut touched, mut peers) = (u32::MAX, 0, 0u32);
        for i in lanes(mask) {
            let address = addresses[i].wrapping_add(offset as u32);
            let rank = address >> RANK_SHIFT;
            let at = (address & ((1 << RANK_SHIFT) - 1)).wrapping_sub(SMEM_BASE);
            if at >= size || (rank != 0 && rank != own_rank) {
                // A peer's; or nobody's, which the access itself reports.
                peers |= u32::from(at < size) << i;
                continue;
            }
            if at >> 7 != line {
                if touched != 0 {
                    look(line, touched);
                }
                (line, touched) = (at >> 7, 0);
            }
            touched |= bytes_at(at, access.bytes);
        }
        if touched != 0 {
            look(line, touched);
        }
        let peer = match peers {
            0 => Ok(()),
            _ => self.peer_lanes(who, (addresses, offset, peers), access, mine),
        };
        self.verdict(who, mine, who.cta, found).and(peer)
    }

    /// The same of lanes whose addresses are in peers.
    #[cold]
    fn peer_lanes(
        &mut self,
        who: Who,
        (addresses, offset, mask): Lanes<'_>,
        access: Access<'_>,
        mine: &Side<'_>,
    ) -> Verdict {
        let mut verdict = Ok(());
        for i in lanes(mask) {
            let address = addresses[i].wrapping_add(offset as u32);
            let Some((slot, at)) = shared::locate(who.cta, self.shape.cluster_size, address) else {
                continue;
            };
            let (line, touched) = ((at >> 7) as usize, bytes_at(at, access.bytes));
            let changes = || (access.changes)(slot, line as u64);
            let shadow = &self.cta(slot).shared;
            let found = shadow.find((line, line as u64), touched, mine, &changes);
            verdict = verdict.and(self.verdict(who, mine, slot, found));
            self.visit(who, slot);
            if mine.kind.writes() {
                let id = self.id(who);
                self.fences[id].far_since.get_or_insert(mine.epoch);
            }
            if mine.kind != Kind::Poll {
                self.cta(slot).shared.remember(line, mine.past(touched));
            }
        }
        verdict
    }

    /// Where lanes access shared memory: whose, and from which of its bytes on.
    fn shared_places(&self, cta: CtaSlot, (addresses, offset, mask): Lanes<'_>) -> ArrayVec<(CtaSlot, u32), 32> {
        let mut places = ArrayVec::new();
        for i in lanes(mask) {
            let address = addresses[i].wrapping_add(offset as u32);
            // Addresses of nobody the access itself reports.
            let place =
                shared::locate(cta, self.shape.cluster_size, address).filter(|(_, at)| *at < self.shape.smem_bytes);
            if let Some(place) = place
                && places.last() != Some(&place)
            {
                places.push(place);
            }
        }
        places
    }

    /// A warp is about to look at words of shared memory on which warps release and acquire.
    #[cold]
    pub(super) fn observe_words(&mut self, who: Who, at: Lanes<'_>, access: Access<'_>) {
        let Some((scope, acquires)) = access.mode.looks() else {
            return;
        };
        if self.words.is_empty() {
            return;
        }
        let id = self.id(who);
        for (slot, at) in self.shared_places(who.cta, at) {
            for (released, beyond) in self.words.observed((slot, at, access.bytes), who.cta) {
                if beyond && !is_wide(scope) {
                    continue;
                }
                match acquires {
                    true => {
                        self.times.until[id] = None;
                        Rc::make_mut(&mut self.clocks[id]).join(released);
                    }
                    false => self.fences[id].acquire_later(beyond, released, self.width),
                }
            }
        }
    }

    /// A warp writes words of shared memory, which has been noted: whoever looks at them may learn what it did until now.
    #[cold]
    pub(super) fn release_words(&mut self, who: Who, at: Lanes<'_>, access: Access<'_>) {
        let (replaces, signal) = (matches!(access.mode, Mode::Store(_)), access.mode.signals());
        let (id, bytes) = (self.id(who), access.bytes);
        let mut released: ArrayVec<(&Clock, bool), 2> = ArrayVec::new();
        match signal {
            Some((scope, true)) => released.push((&*self.clocks[id], is_wide(scope))),
            // A fence has released, as far as it and the access reach.
            Some((scope, false)) => {
                let releases = self.fences[id].releases.iter().zip([false, is_wide(scope)]);
                released.extend(releases.filter_map(|(clock, wide)| Some((clock.as_ref()?, wide))));
            }
            None => {}
        }
        let any = !released.is_empty();
        if !any && (!replaces || self.words.is_empty()) {
            return;
        }
        for (slot, at) in self.shared_places(who.cta, at) {
            if replaces {
                self.words.replace((slot, at, bytes));
            }
            for (clock, wide) in &released {
                self.words.release((slot, at, bytes), who.cta, *wide, clock);
            }
        }
        drop(released);
        if let Some((scope, true)) = signal
            && is_wide(scope)
        {
            self.fences[id].far_since = None;
        }
        if any {
            self.tick(id);
        }
    }

    /// What becomes of a finding in the shared memory of a CTA.
    #[inline(always)]
    pub(super) fn verdict(&self, who: Who, mine: &Side<'_>, slot: CtaSlot, found: Option<Found>) -> Verdict {
        match found {
            None => Ok(()),
            Some(found) => Err(self.shared_race(who, mine, slot, &found)),
        }
    }
}
