//! What is asynchronous in shared memory: bulk loads and `red.async`, which write it, `wgmma` and bulk copies out of it, which read it.
use super::clock::Clock;
use super::race::{IN_FLIGHT, Kind};
use super::shadow::{Found, worst};
use super::{Access, Checker, Cta, Landing, Mode, Range, Verdict, Who};
use crate::emulate::overwrite::{Mask, lines_of};
use crate::emulate::shared::CtaSlot;
use std::collections::VecDeque;

/// Loads that have landed, remembered for messages.
const REMEMBERED: usize = 256;

/// A bulk load, and how many had been issued before it.
#[derive(Clone, Copy)]
pub struct Issued {
    pub landing: Landing,
    pub before: u32,
}

/// The bulk loads to a CTA.
#[derive(Default)]
pub struct Loads {
    /// How many have landed there: their epochs, whichever CTA has been in this place.
    pub landed: u32,
    flying: Vec<Issued>,
    recent: VecDeque<(u32, Issued)>,
    /// Landings of copies by threads, and the offsets of their barriers.
    small: VecDeque<(u32, u32)>,
}

impl Loads {
    /// What is in flight goes with its cluster.
    pub fn clear(&mut self) {
        self.flying.clear();
        self.recent.clear();
        self.small.clear();
    }

    /// Copies by threads land: as which.
    pub fn land_small(&mut self, barrier: u32) -> u32 {
        self.landed += 1;
        if self.small.len() == REMEMBERED {
            self.small.pop_front();
        }
        self.small.push_back((self.landed, barrier));
        self.landed
    }

    /// The offset of the barrier of a landing of copies by threads.
    pub fn small_barrier(&self, number: u32) -> Option<u32> {
        self.small
            .iter()
            .find(|(n, _)| *n == number)
            .map(|(_, barrier)| *barrier)
    }

    /// The load that a finding is of: whether it is in flight.
    pub fn of(&self, found: &Found) -> (bool, Option<Issued>) {
        let late = found.theirs.mask & found.hit;
        let at = 128 * found.line as u32 + late.trailing_zeros();
        let reduces = found.theirs.kind == Kind::Reduction;
        let covers = |it: &&Issued| {
            let Landing { offset, bytes, .. } = it.landing;
            it.landing.reduces == reduces && (offset..offset + bytes).contains(&at)
        };
        match found.theirs.epoch {
            IN_FLIGHT => (true, self.flying.iter().find(covers).copied()),
            number => {
                let landed = self.recent.iter().find(|(n, _)| *n == number);
                (false, landed.map(|(_, issued)| *issued))
            }
        }
    }
}

fn lines_of_landing(landing: Landing) -> impl Iterator<Item = (u64, Mask)> + Clone {
    lines_of(landing.offset.into(), landing.bytes.into())
}

impl Checker {
    /// The async proxy accesses memory for a warp's operation that has inherited `view`.
    pub(super) fn async_access(&mut self, who: Who, view: &Clock, access: Access<'_>) -> Verdict {
        match access.range {
            Range::Global { address } => {
                self.global_lines(who, view, &mut lines_of(address, access.bytes.into()), access)
            }
            _ if access.mode != Mode::Read => Ok(()),
            Range::Shared { slot, offset } => {
                let lines = lines_of(offset.into(), access.bytes.into());
                self.async_read(who, view, (slot, Kind::Copy), lines, access)
            }
            Range::Lines { slot, lines } => {
                let lines = lines.iter().map(|(line, mask)| (u64::from(*line), *mask));
                self.async_read(who, view, (slot, Kind::Product), lines, access)
            }
            Range::SharedLanes { .. } | Range::GlobalLanes { .. } => Ok(()),
        }
    }

    fn async_read(
        &mut self,
        who: Who,
        view: &Clock,
        (slot, kind): (CtaSlot, Kind),
        lines: impl Iterator<Item = (u64, Mask)>,
        access: Access<'_>,
    ) -> Verdict {
        let mine = self.side(who, kind, access.loc, view);
        let shadow = &mut self.ctas[slot.0 as usize].shared;
        let mut found = None;
        for (address, mask) in lines {
            let line = address as usize;
            worst(&mut found, shadow.find((line, address), mask, &mine, &|| Mask::MAX));
            match kind {
                Kind::Product => shadow.multiply(line, who.index / 4, access.number as u32, mask, access.loc),
                _ if slot == who.cta => shadow.remember(line, mine.past(mask)),
                _ => {}
            }
        }
        self.verdict(who, &mine, slot, found)
    }

    /// A bulk load, or reduction, has been issued by a warp that had seen `view`.
    pub(super) fn issue_load(&mut self, who: Who, view: &Clock, landing: Landing) -> Verdict {
        let Landing { slot, barrier, loc, .. } = landing;
        let checked = self.check_barrier(who, slot, barrier, true);
        let kind = if landing.reduces { Kind::Reduction } else { Kind::Load };
        let mine = self.side(who, kind, loc, view);
        let mut found = None;
        if checked.is_ok() {
            let shadow = &self.cta(slot).shared;
            let find = |(line, mask)| shadow.find((line as usize, line), mask, &mine, &|| Mask::MAX);
            found = lines_of_landing(landing).find_map(find);
        }
        let verdict = match found {
            None => checked,
            Some(found) => Err(self.load_race(who, &mine, landing, &found)),
        };
        let before = self.loads;
        self.loads = before.wrapping_add(1);
        let cta = self.cta(slot);
        for (line, mask) in lines_of_landing(landing) {
            match landing.reduces {
                true => cta.shared.reduce(line as usize, mask, IN_FLIGHT, loc),
                false => cta.shared.load(line as usize, mask, IN_FLIGHT, loc),
            }
        }
        cta.loads.flying.push(Issued { landing, before });
        verdict
    }

    /// It has written a destination, and is about to complete on the barrier.
    pub(super) fn land_load(&mut self, landing: Landing) {
        let component = self.columns(landing.slot).loads;
        let Cta {
            shared,
            loads,
            barriers,
            ..
        } = self.cta(landing.slot);
        loads.landed += 1;
        let number = loads.landed;
        for (line, mask) in lines_of_landing(landing) {
            match landing.reduces {
                true => shared.reduce(line as usize, mask, number, landing.loc),
                false => shared.load(line as usize, mask, number, landing.loc),
            }
        }
        let at = loads.flying.iter().position(|it| it.landing == landing);
        let before = at.map_or(0, |at| loads.flying.swap_remove(at).before);
        if loads.recent.len() == REMEMBERED {
            loads.recent.pop_front();
        }
        loads.recent.push_back((number, Issued { landing, before }));
        if let Some(barrier) = barriers.get_mut(&landing.barrier) {
            barrier.phases.arriving.see(component as usize, number);
        }
        if let Some(across) = &mut self.across {
            across.load_landed(component, number);
        }
    }
}
