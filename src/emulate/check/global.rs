//! Accesses to global memory within a cluster: warps', and their bulk copies'.
//!
//! A bulk store is another matter than a store: until its warp waits for it in full it may happen at any time, and so races with whoever
//! touches the bytes.
use super::clock::Clock;
use super::maps::Author;
use super::race::{Actor, IN_FLIGHT, Kind};
use super::shadow::worst;
use super::shared::{Places, bytes_at};
use super::{Access, Checker, Mode, Verdict, Who};
use crate::emulate::overwrite::{Mask, lines_of};
use crate::emulate::row::lanes;
use arrayvec::ArrayVec;
use std::rc::Rc;

impl Checker {
    /// An access by the lanes of a warp to global memory.
    pub(super) fn global_lanes(
        &mut self,
        who: Who,
        addresses: &[u64; 32],
        offset: i32,
        mask: u32,
        access: Access<'_>,
    ) -> Verdict {
        let (id, bytes) = (self.id(who), u64::from(access.bytes));
        self.part_from_views(id);
        let at = |i: usize| addresses[i].wrapping_add_signed(offset.into());
        let is_run = mask == u32::MAX && (1..32).all(|i| addresses[i] == addresses[0].wrapping_add(i as u64 * bytes));
        self.overlap = false;
        if matches!(access.mode, Mode::Store(_)) && !is_run {
            let mut places = Places::default();
            lanes(mask).for_each(|i| self.overlap |= places.add(at(i) as u32));
        }
        let left = self.new_lanes(who, &at, (mask, is_run), &access);
        if left == 0 {
            return Ok(());
        }
        let clock = Rc::clone(&self.clocks[id]);
        if is_run {
            return self.global_lines(who, &clock, &mut lines_of(at(0), 32 * bytes), access);
        }
        // Neighbours in a line together.
        let mut touched: ArrayVec<(u64, Mask), 32> = ArrayVec::new();
        let mut add = |line: u64, mask: Mask| match touched.last_mut() {
            Some(last) if last.0 == line => last.1 |= mask,
            // Only of misaligned ones there are more, which the access itself reports.
            _ => drop(touched.try_push((line, mask))),
        };
        let mut last = None;
        for at in lanes(left).map(at).filter(|at| last.replace(*at) != Some(*at)) {
            match at & 127 <= 128 - bytes {
                true => add(at >> 7, bytes_at(at as u32, access.bytes)),
                false => lines_of(at, bytes).for_each(|(line, mask)| add(line, mask)),
            }
        }
        self.global_lines(who, &clock, &mut touched.iter().copied(), access)
    }

    /// The lanes whose accesses do not repeat what their warp has noted in this epoch, of lines that have not changed since all of that was
    /// looked at: what is repeated is neither to be noted nor held against others. `is_run`: all do, or none.
    #[inline(always)]
    fn new_lanes(&self, who: Who, at: &impl Fn(usize) -> u64, (mask, is_run): (u32, bool), access: &Access<'_>) -> u32 {
        let (kind, bytes) = (Kind::of(access.mode), access.bytes);
        let shadow = &self.ctas[who.cta.0 as usize].global;
        let releases = access.mode.signals().is_some_and(|(_, releases)| releases);
        let has_ended = || self.across.as_ref().is_some_and(|across| across.has_ended());
        let Some(repeats) = shadow.repeats(&self.same_epoch(who, kind, access.loc)) else {
            return mask;
        };
        if releases || kind.writes() && !self.maps.is_empty() || has_ended() {
            return mask;
        }
        let versions = self.versions.for_kind(kind);
        let cell = |line: u64| repeats.of(line, versions.of(line));
        if is_run {
            let known = |(line, mask)| cell(line).is_some_and(|cell| cell.covers(mask));
            let all = lines_of(at(0), 32 * u64::from(bytes)).all(known);
            return if all { 0 } else { mask };
        }
        let (mut left, mut last) = (0, (u64::MAX, None));
        for i in lanes(mask) {
            let (address, line) = (at(i), at(i) >> 7);
            if last.0 != line {
                last = (line, cell(line));
            }
            let is_known = last.1.is_some_and(|cell| cell.covers_at(address, bytes));
            left |= u32::from(!is_known) << i;
        }
        left
    }

    /// An access to lines of global memory by a warp that has seen `view`: its lanes', or its bulk copies'.
    pub(super) fn global_lines(
        &mut self,
        who: Who,
        view: &Clock,
        lines: &mut dyn Iterator<Item = (u64, Mask)>,
        access: Access<'_>,
    ) -> Verdict {
        let kind = Kind::of(access.mode);
        let member = self.member(who);
        // A poll races with nothing.
        if kind == Kind::Poll {
            if let (Some(member), Some(across)) = (member, &mut self.across) {
                lines
                    .filter(|(line, mask)| across.poll(*line, *mask, member.actor.cluster))
                    .for_each(|(line, _)| self.versions.count(line, kind));
            }
            return Ok(());
        }
        let mut mine = self.side(who, kind, access.loc, view);
        mine.number = access.number;
        let (id, epoch) = (self.id(who), mine.epoch);
        // Across clusters a copy by threads has read where it has been waited for.
        let across = self.across.as_ref().zip(member).filter(|_| !kind.is_small());
        let mut far = across.map(|(across, member)| across.begin(member, &mine, access.mode));
        let is_store = matches!(kind, Kind::BulkWrite | Kind::BulkReduction);
        if is_store {
            mine.epoch = IN_FLIGHT;
        }
        let (own, size) = (who.cta.0 as usize, self.shape.cluster_size as usize);
        let mut found = None;
        for (address, mask) in lines {
            let compares = std::cell::Cell::new(false);
            let changes = || {
                compares.set(true);
                (access.changes)(who.cta, address)
            };
            let before = self.versions.for_kind(kind).of(address);
            let (mut changed, mut races) = (false, false);
            if let (Some(far), Some(across)) = (&mut far, &mut self.across) {
                let noted = across.access(far, (address, mask), view, &changes);
                (changed, races) = (noted.is_new, noted.race.is_some());
                if noted.forgets {
                    // Of an atomic, too: its warp is to note it again.
                    self.versions.count(address, Kind::Read);
                }
            }
            for cta in own / size * size..own / size * size + size {
                let shadow = &mut self.ctas[cta].global;
                let race = if cta != own {
                    let race = |line| shadow.find((line, address), mask, &mine, &changes);
                    shadow.peek(address).and_then(race)
                } else {
                    let line = shadow.line(address);
                    changed |= !shadow.has(line, mask, &mine);
                    let race = shadow.look((line, address), mask, &mine, &changes);
                    // What a bulk load has read is over for whoever waits for it, not for its issuer.
                    if kind != Kind::BulkRead {
                        shadow.put(line, mask, &mine);
                    }
                    race
                };
                races |= race.is_some();
                worst(&mut found, race);
            }
            if changed {
                self.versions.count(address, kind);
            }
            if !races && !compares.get() {
                let shadow = &mut self.ctas[own].global;
                let line = shadow.line(address);
                let now = self.versions.for_kind(kind).of(address);
                shadow.mark_looked(line, mask, &mine, [before, now]);
            }
            if is_store {
                self.stores.entry((id, access.number)).or_default().push(address);
            }
            if kind.writes() && !self.maps.is_empty() {
                let author = Author {
                    warp: id,
                    epoch,
                    loc: access.loc,
                };
                let any = matches!(kind, Kind::Atomic(_) | Kind::BulkReduction);
                self.maps.written(address, author, || {
                    any || (access.changes)(who.cta, address) & mask != 0
                });
            }
        }
        let verdict = match (far, &self.across) {
            (Some(far), Some(across)) => across.end(far),
            _ => Ok(()),
        };
        match found {
            None => verdict,
            Some(found) => Err(self.global_race(who, &mine, &found)),
        }
    }

    /// An ordered access by the lanes of a warp, which has been noted: to words on which clusters release and acquire.
    pub(super) fn at_words(&mut self, who: Who, addresses: &[u64; 32], offset: i32, mask: u32, access: Access<'_>) {
        let (id, member) = (self.id(who), self.member(who));
        let (Some(member), Some(across)) = (member, &mut self.across) else {
            return;
        };
        let at = |i: usize| addresses[i].wrapping_add_signed(offset.into());
        let releases = across.releases(member, access.mode);
        self.counts = releases || !across.words.is_empty() && lanes(mask).any(|i| across.words.may_have(at(i)));
        if !self.counts {
            return;
        }
        if access.mode.looks().is_some_and(|(_, acquires)| acquires) {
            self.times.until[id] = None;
        }
        let clock = Rc::make_mut(&mut self.clocks[id]);
        let mut last = None;
        let places = lanes(mask).map(at).filter(|at| last.replace(*at) != Some(*at));
        if across.at_words(
            member,
            clock,
            places.map(|at| (at, access.bytes.into())),
            access.mode,
            access.loc,
        ) {
            self.tick(id);
        }
    }

    /// A warp has waited in full for one of its bulk stores.
    pub(super) fn settle_store(&mut self, who: Who, number: u64) {
        let id = self.id(who);
        self.part_from_views(id);
        let Some(lines) = self.stores.remove(&(id, number)) else {
            return;
        };
        let component = self.component(who);
        let epoch = self.clocks[id].seen()[component];
        let now = self.times.access(id, epoch);
        let by = Actor::own(component as u32);
        let global = &mut self.ctas[who.cta.0 as usize].global;
        for address in &lines {
            if let Some(line) = global.peek(*address) {
                global.settle(line, by, number, (epoch, now));
            }
        }
        if let (Some(member), Some(across)) = (self.member(who), &mut self.across) {
            across.store_waited(member, &lines, number, epoch);
        }
    }
}
