//! Accesses to global memory within a cluster: warps', and their bulk copies'.
//!
//! A bulk store is another matter than a store: until its warp waits for it in full it may happen at any time, and so races with whoever
//! touches the bytes.
use super::clock::Clock;
use super::maps::Author;
use super::race::{Actor, IN_FLIGHT, Kind, Past};
use super::shadow::worst;
use super::shared::bytes_at;
use super::{Access, Checker, Verdict, Who};
use crate::emulate::overwrite::{Mask, lines_of};
use crate::emulate::row::lanes;
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
        let clock = Rc::clone(&self.clocks[id]);
        let at = |i: usize| addresses[i].wrapping_add_signed(offset.into());
        self.meet = false;
        if mask == u32::MAX && (1..32).all(|i| addresses[i] == addresses[0].wrapping_add(i as u64 * bytes)) {
            return self.global_lines(who, &clock, lines_of(at(0), 32 * bytes), access);
        }
        // Neighbours in a line together.
        let mut touched: [(u64, Mask); 32] = [(0, 0); 32];
        let (mut count, mut next) = (0, 0);
        let mut add = |line: u64, mask: Mask| match touched[..count].last_mut() {
            Some(last) if last.0 == line => {
                self.meet |= last.1 & mask != 0;
                last.1 |= mask;
            }
            _ if count < 32 => {
                touched[count] = (line, mask);
                count += 1;
                self.meet |= line < next;
                next = line + 1;
            }
            _ => {}
        };
        for at in lanes(mask).map(at) {
            match at & 127 <= 128 - bytes {
                true => add(at >> 7, bytes_at(at as u32, access.bytes)),
                false => lines_of(at, bytes).for_each(|(line, mask)| add(line, mask)),
            }
        }
        self.global_lines(who, &clock, touched[..count].iter().copied(), access)
    }

    /// An access to lines of global memory by a warp that has seen `view`: its lanes', or its bulk copies'.
    pub(super) fn global_lines(
        &mut self,
        who: Who,
        view: &Clock,
        lines: impl Iterator<Item = (u64, Mask)> + Clone,
        access: Access<'_>,
    ) -> Verdict {
        let kind = Kind::of(access.mode);
        let mut mine = self.side(who, kind, access.loc, view);
        mine.number = access.number;
        let mut verdict = Ok(());
        if let (Some(member), Some(across)) = (self.member(who), &mut self.across) {
            verdict = across.access(member, &mine, lines.clone(), &access);
        }
        let is_store = matches!(kind, Kind::BulkWrite | Kind::BulkReduction);
        let epoch = mine.epoch;
        if is_store {
            mine.epoch = IN_FLIGHT;
            let store = (self.id(who), access.number);
            self.stores
                .entry(store)
                .or_default()
                .extend(lines.clone().map(|(line, _)| line));
        }
        // A poll races with nothing.
        if kind == Kind::Poll {
            return verdict;
        }
        let (own, size) = (who.cta.0 as usize, self.shape.cluster_size as usize);
        let mut found = None;
        for (address, mask) in lines {
            let changes = || (access.changes)(who.cta, address);
            for cta in own / size * size..own / size * size + size {
                let shadow = &mut self.ctas[cta].global;
                if cta != own {
                    let race = |line| shadow.find((line, address), mask, &mine, &changes);
                    worst(&mut found, shadow.peek(address).and_then(race));
                    continue;
                }
                let line = shadow.line(address);
                let race = match kind.is_async() {
                    false => shadow.access((line, address), mask, &mine, &changes),
                    true => shadow.find((line, address), mask, &mine, &changes),
                };
                worst(&mut found, race);
                // What a bulk load has read is over for whoever waits for it, not for its issuer.
                if is_store {
                    let number = access.number;
                    shadow.remember(
                        line,
                        Past {
                            number,
                            ..mine.past(mask)
                        },
                    );
                }
            }
            if kind.writes() && !self.maps.is_empty() {
                let author = Author {
                    warp: self.id(who),
                    epoch,
                    loc: access.loc,
                };
                let any = matches!(kind, Kind::Atomic(_) | Kind::BulkReduction);
                self.maps.written(address, author, || any || changes() & mask != 0);
            }
        }
        match found {
            None => verdict,
            Some(found) => Err(self.global_race(who, &mine, &found)),
        }
    }

    /// An ordered access by the lanes of a warp, which has been noted: to words by which clusters tell each other.
    pub(super) fn at_words(&mut self, who: Who, addresses: &[u64; 32], offset: i32, mask: u32, access: Access<'_>) {
        let (id, member) = (self.id(who), self.member(who));
        let (Some(member), Some(across)) = (member, &mut self.across) else {
            return;
        };
        self.counts = across.has_words();
        if !self.counts && !across.tells(member, access.mode) {
            return;
        }
        self.times.until[id] = None;
        let clock = Rc::make_mut(&mut self.clocks[id]);
        let (mut told, mut last) = (false, None);
        for i in lanes(mask) {
            let address = addresses[i].wrapping_add_signed(offset.into());
            if last != Some(address) {
                last = Some(address);
                told |= across.at_word(member, clock, (address, access.bytes.into()), access.mode, access.loc);
            }
        }
        self.counts = across.has_words();
        if told {
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
