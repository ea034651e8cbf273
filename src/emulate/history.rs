//! What the checker remembers of a CTA: who touched its shared memory when, and what its barriers hand on.
//!
//! Memory is in lines of 128 bytes, 32 granules of 4 bytes each; a line's granules are a mask. A [`Cell`] says when a warp last touched each
//! of a line's granules, if that was in two epochs at most. Lines for which that, or granules, is too coarse are narrow: they are remembered
//! byte by byte (`byte_history.rs`).
use super::byte_history::{ByteHistory, Entry, Mask, Side, Touch, races};
use super::clock::Clock;
use super::hooks::{Landing, Shape};
use super::warp::lanes;
use crate::error::Loc;
use rustc_hash::FxHashMap;
use smallvec::SmallVec;
use std::collections::VecDeque;

/// Of a chunk that a load in flight writes.
pub const IN_FLIGHT: u32 = u32::MAX;
/// Loads that have landed, remembered for messages.
pub const REMEMBERED: usize = 256;

/// A clock that a barrier collects, and the one that it hands on since its last phase.
#[derive(Default)]
pub struct Handover {
    pub arriving: Clock,
    pub passed: Clock,
}

impl Handover {
    pub fn new(width: usize) -> Handover {
        Handover {
            arriving: Clock::new(width),
            passed: Clock::new(width),
        }
    }

    /// A phase is over.
    pub fn open(&mut self) {
        self.passed.join(&self.arriving);
        self.arriving.clear();
    }
}

/// A warp that has waited for a phase.
#[derive(Clone, Copy)]
pub struct Waited {
    pub who: usize,
    pub epoch: u32,
    /// The component of its warpgroup's products, and the groups of wgmma that it had issued by then: who knows a later one to be complete
    /// knows that it has gone on.
    pub products: usize,
    pub groups: u32,
}

/// An mbarrier.
pub struct Barrier {
    pub phases: Handover,
    /// Who initialised it, when, and whether `fence.mbarrier_init` followed.
    pub by: usize,
    pub at: u32,
    pub published: bool,
    /// Who has waited for the last phase that is complete.
    pub waits: Vec<Waited>,
}

impl Barrier {
    /// Of those who have waited for the last phase, one of whom nobody knows who has arrived in the current one.
    pub fn left_behind(&self) -> Option<usize> {
        let known = self.phases.arriving.seen();
        let late = |it: &&Waited| known[it.who] < it.epoch && known[it.products] <= it.groups;
        self.waits.iter().find(late).map(|it| it.who)
    }
}

/// A peer's access to a line.
#[derive(Clone, Copy)]
pub struct Visit {
    /// The warp's component, and its epoch.
    pub by: usize,
    pub wrote: bool,
    pub touch: Touch,
}

/// Reductions in a granule: how many are in flight, and the number of the last that has landed.
#[derive(Clone, Copy, Default)]
struct Reduced {
    flying: u32,
    landed: u32,
}

impl Reduced {
    fn latest(self) -> u32 {
        if self.flying > 0 { IN_FLIGHT } else { self.landed }
    }
}

/// A warp's reads, or writes, of a line: its last epoch and the granules that it touched then; and of an older one what it has not
/// touched since. Epochs above, masks below.
#[derive(Clone, Copy, Default)]
pub struct Cell {
    last: u64,
    older: u64,
    last_at: Loc,
    older_at: Loc,
}

/// What a warp did to granules of a line.
#[derive(Clone, Copy)]
pub struct Past {
    pub epoch: u32,
    pub granules: u32,
    pub loc: Loc,
}

impl Cell {
    /// Which of these granules it touched after the epoch `seen`.
    #[inline(always)]
    fn unseen(&self, mask: u32, seen: u32) -> impl Iterator<Item = Past> {
        let of = move |entry: u64, loc: Loc| {
            let (epoch, granules) = ((entry >> 32) as u32, entry as u32 & mask);
            (granules != 0 && epoch > seen).then_some(Past { epoch, granules, loc })
        };
        let older = of(self.older, self.older_at);
        of(self.last, self.last_at).into_iter().chain(older)
    }

    /// Notes a touch. False: it would be of three epochs, and what it has of the oldest is lost.
    #[inline(always)]
    fn touch(&mut self, epoch: u32, mask: u32, loc: Loc) -> bool {
        let (behind, mut fits) = (!u64::from(mask), true);
        let older = self.older & behind;
        if (self.last >> 32) as u32 == epoch {
            self.last |= u64::from(mask);
            self.older = older;
        } else {
            let left = self.last & behind;
            if left as u32 != 0 {
                fits = older as u32 == 0;
                (self.older, self.older_at) = (left, self.last_at);
            } else {
                self.older = older;
            }
            self.last = u64::from(epoch) << 32 | u64::from(mask);
        }
        self.last_at = loc;
        fits
    }

    /// Both entries, the older first.
    fn entries(&self) -> [Past; 2] {
        [(self.older, self.older_at), (self.last, self.last_at)].map(|(entry, loc)| Past {
            epoch: (entry >> 32) as u32,
            granules: entry as u32,
            loc,
        })
    }
}

/// What the tensor core read of a line for a warpgroup. Its epochs are the warpgroup's groups of wgmma, counted from 1.
#[derive(Clone, Copy)]
pub struct Product {
    pub warpgroup: usize,
    pub past: Past,
}

/// A bulk load, and how many had been issued before it.
#[derive(Clone, Copy)]
pub struct Issued {
    pub landing: Landing,
    pub loads_before: u32,
}

/// What is remembered of a CTA.
pub struct History {
    /// Warps of the CTA.
    warps: usize,
    /// Per 16-byte chunk: the number of the bulk load of this CTA that wrote it, counted as they land.
    landed: Vec<u32>,
    /// Per line with reductions by `red.async`: those of each granule.
    reduced: FxHashMap<usize, Box<[Reduced; 32]>>,
    /// Per line: the largest number of all of these.
    latest: Vec<u32>,
    pub landings: u32,
    /// Per line: warps of this CTA that read or wrote it by themselves or asynchronously.
    pub readers: Vec<u32>,
    /// Of those that read it: by bulk copies, too.
    pub copiers: Vec<u32>,
    pub writers: Vec<u32>,
    /// Per line and warp; not kept up for narrow lines.
    reads: Vec<Cell>,
    writes: Vec<Cell>,
    /// Per line: the last store that touched it with gaps between its lanes, by number, and its granules.
    pub stores: Vec<(u32, u32)>,
    /// Lines with accesses of less than a granule, or atomic ones, or of more epochs than a cell holds: their accesses are in `bytes`.
    pub narrow: Vec<bool>,
    pub bytes: ByteHistory,
    pub barriers: FxHashMap<u32, Barrier>,
    pub named: [Option<Box<Handover>>; 16],
    /// Per line: what warpgroups' products read of it.
    products: Vec<SmallVec<[Product; 2]>>,
    /// Loads in flight, and those that have landed lately with their number.
    pub flying: Vec<Issued>,
    pub recent: VecDeque<(u32, Issued)>,
    /// The number of the last that had landed when the CTA began.
    pub landed_before: u32,
    /// Per warp of the cluster: the epoch of its last access from another CTA.
    pub visits: Vec<u32>,
    /// Per line: its peers' accesses.
    pub visited: FxHashMap<usize, Vec<Visit>>,
    /// What its warps that have ended have seen.
    pub ended: Clock,
}

/// The bits of the granules of a line that an access of 1 to 16 bytes, which does not cross a chunk, touches.
#[inline(always)]
pub fn granules(offset: u32, bytes: u32) -> u32 {
    (u32::MAX >> (32 - bytes.div_ceil(4))) << (offset >> 2 & 31)
}

/// The lines of a range, and which granules of each.
pub fn lines_of(offset: u32, bytes: u32) -> impl Iterator<Item = (usize, u32)> {
    let end = offset + bytes;
    (offset >> 7..end.div_ceil(128)).map(move |line| {
        let (first, last) = (offset.max(line << 7), end.min((line + 1) << 7) - 1);
        let mask = u32::MAX << (first >> 2 & 31) & u32::MAX >> (31 - (last >> 2 & 31));
        (line as usize, mask)
    })
}

/// The bytes of granules.
#[inline(always)]
pub fn bytes_of(granules: u32) -> Mask {
    let half = |bits: u32| {
        let mut spread = u64::from(bits);
        spread = (spread | spread << 24) & 0x0000_00ff_0000_00ff;
        spread = (spread | spread << 12) & 0x000f_000f_000f_000f;
        spread = (spread | spread << 6) & 0x0303_0303_0303_0303;
        spread = (spread | spread << 3) & 0x1111_1111_1111_1111;
        Mask::from(spread * 0xf)
    };
    half(granules & 0xffff) | half(granules >> 16) << 64
}

/// The granules that bytes are in.
pub fn granules_of(bytes: Mask) -> u32 {
    (0..32).filter(|i| bytes >> (4 * i) & 0xf != 0).map(|i| 1 << i).sum()
}

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

impl History {
    pub fn new(shape: Shape, width: usize) -> History {
        let (lines, warps) = (shape.smem_bytes.div_ceil(128) as usize, shape.warps_per_cta as usize);
        History {
            warps,
            landed: vec![0; 8 * lines],
            reduced: FxHashMap::default(),
            latest: vec![0; lines],
            landings: 0,
            readers: vec![0; lines],
            copiers: vec![0; lines],
            writers: vec![0; lines],
            reads: vec![Cell::default(); lines * warps],
            writes: vec![Cell::default(); lines * warps],
            stores: vec![(0, 0); lines],
            narrow: vec![false; lines],
            bytes: ByteHistory::new(warps),
            products: vec![SmallVec::new(); lines],
            barriers: FxHashMap::default(),
            named: Default::default(),
            flying: vec![],
            recent: VecDeque::new(),
            landed_before: 0,
            visited: FxHashMap::default(),
            visits: vec![0; (shape.cluster_size * shape.warps_per_cta) as usize],
            ended: Clock::new(width),
        }
    }

    /// Peers' accesses to bytes of a line that race with an access of a warp (`by`) that has seen `seen`.
    #[cold]
    pub fn visit_unseen(
        &self,
        line: usize,
        by: usize,
        writes: bool,
        touch: Touch,
        seen: &[u32],
        changes: &dyn Fn() -> Mask,
    ) -> Option<(Mask, Visit)> {
        let visits = self.visited.get(&line)?;
        let mine = Side {
            writes,
            atomic: touch.atomic,
        };
        visits.iter().find_map(|visit| {
            let hit = visit.touch.mask & touch.mask;
            if visit.by == by || !(writes || visit.wrote) || visit.touch.epoch <= seen[visit.by] {
                return None;
            }
            let theirs = Side {
                writes: visit.wrote,
                atomic: visit.touch.atomic,
            };
            races(hit, theirs, mine, changes).then_some((hit, *visit))
        })
    }

    /// The same of what its own warps did, the first of which is component `first`.
    #[cold]
    pub fn own_unseen(
        &self,
        line: usize,
        first: usize,
        writes: bool,
        touch: Touch,
        seen: &[u32],
        changes: &dyn Fn() -> Mask,
    ) -> Option<(Mask, Visit)> {
        let mine = Side {
            writes,
            atomic: touch.atomic,
        };
        let sides = [
            (true, self.writers[line]),
            (false, if writes { self.readers[line] } else { 0 }),
        ];
        for (wrote, theirs) in sides {
            for warp in lanes(theirs) {
                for past in self.unseen(line, warp, wrote, touch.mask, seen[first + warp]) {
                    let atomic = past.atomic;
                    if races(past.mask, Side { writes: wrote, atomic }, mine, changes) {
                        let by = first + warp;
                        return Some((past.mask, Visit { by, wrote, touch: past }));
                    }
                }
            }
        }
        None
    }

    /// A peer's warp touches bytes of a line: that stands for what it did to them before, but an atomic for atomics alone.
    #[cold]
    pub fn note_visit(&mut self, line: usize, visit: Visit) {
        let visits = self.visited.entry(line).or_default();
        let (mut mine, same) = (visit, |v: &Visit| (v.by, v.wrote) == (visit.by, visit.wrote));
        visits.retain_mut(|old| {
            if same(old) && (old.touch.epoch, old.touch.atomic) == (visit.touch.epoch, visit.touch.atomic) {
                mine.touch.mask |= old.touch.mask;
                return false;
            }
            if same(old) && (old.touch.atomic || !visit.touch.atomic) {
                old.touch.mask &= !visit.touch.mask;
            }
            old.touch.mask != 0
        });
        visits.push(mine);
    }

    /// A warp's writes, or reads, of a line that is not narrow: those of these granules after the epoch `seen`.
    #[inline(always)]
    pub fn unseen_granules(
        &self,
        line: usize,
        warp: usize,
        wrote: bool,
        mask: u32,
        seen: u32,
    ) -> impl Iterator<Item = Past> {
        let cells = if wrote { &self.writes } else { &self.reads };
        cells[line * self.warps + warp].unseen(mask, seen)
    }

    /// The same of these bytes of any line.
    #[cold]
    pub fn unseen(&self, line: usize, warp: usize, wrote: bool, mask: Mask, seen: u32) -> Vec<Touch> {
        let here = match self.narrow[line] {
            true => self.bytes.peek(line as u64),
            false => None,
        };
        let Some(here) = here else {
            let pasts = self.unseen_granules(line, warp, wrote, granules_of(mask), seen);
            let touch = |past: Past| Touch {
                epoch: past.epoch,
                loc: past.loc,
                atomic: false,
                mask: bytes_of(past.granules) & mask,
            };
            return pasts.map(touch).collect();
        };
        let touch = |entry: &Entry| Touch {
            epoch: entry.epoch(),
            loc: entry.loc(),
            atomic: entry.is_atomic(),
            mask: entry.unseen(mask, seen),
        };
        let touches = self.bytes.entries(here, warp, wrote).map(touch);
        touches.filter(|touch| touch.mask != 0).collect()
    }

    /// Of what a warp did to granules of a line after the epoch `seen`, something.
    #[inline(always)]
    pub fn any_unseen(&self, line: usize, warp: usize, wrote: bool, mask: u32, seen: u32) -> Option<Past> {
        match self.narrow[line] {
            false => self.unseen_granules(line, warp, wrote, mask, seen).next(),
            true => {
                let touches = self.unseen(line, warp, wrote, bytes_of(mask), seen);
                touches.first().map(|touch| Past {
                    epoch: touch.epoch,
                    granules: granules_of(touch.mask),
                    loc: touch.loc,
                })
            }
        }
    }

    /// A warp reads, or writes, granules of a line, and no part of one.
    #[inline(always)]
    pub fn note(&mut self, line: usize, warp: usize, wrote: bool, epoch: u32, mask: u32, loc: Loc) {
        let at = line * self.warps + warp;
        let (cells, touched) = match wrote {
            true => (&mut self.writes, &mut self.writers[line]),
            false => (&mut self.reads, &mut self.readers[line]),
        };
        let cell = &mut cells[at];
        if *touched >> warp & 1 == 0 {
            *touched |= 1 << warp;
            *cell = Cell::default();
        }
        let before = *cell;
        if self.narrow[line] || !cell.touch(epoch, mask, loc) {
            *cell = before;
            self.note_bytes(line, warp, wrote, epoch, mask, loc);
        }
    }

    /// The tensor core reads granules of a line for a group of a warpgroup.
    pub fn note_product(&mut self, line: usize, warpgroup: usize, past: Past) {
        let products = &mut self.products[line];
        let (mut mine, same) = (past, |p: &Product| p.warpgroup == warpgroup);
        products.retain(|p| {
            if same(p) && p.past.epoch == past.epoch {
                mine.granules |= p.past.granules;
                return false;
            }
            if same(p) {
                p.past.granules &= !past.granules;
            }
            p.past.granules != 0
        });
        products.push(Product { warpgroup, past: mine });
    }

    /// A product that read these granules of a line, and is not known to be complete: `settled` has each warpgroup's last group that is.
    pub fn product_unseen(&self, line: usize, mask: u32, settled: &[u32]) -> Option<Product> {
        let late = |p: &&Product| p.past.granules & mask != 0 && p.past.epoch > settled[p.warpgroup];
        self.products[line].iter().find(late).copied()
    }

    pub fn forget_products(&mut self) {
        self.products.iter_mut().for_each(SmallVec::clear);
    }

    #[cold]
    fn note_bytes(&mut self, line: usize, warp: usize, wrote: bool, epoch: u32, mask: u32, loc: Loc) {
        self.make_narrow(line);
        let touch = Touch {
            epoch,
            loc,
            atomic: false,
            mask: bytes_of(mask),
        };
        self.note_exact(line, warp, wrote, touch);
    }

    /// A warp reads, or writes, bytes of a narrow line.
    pub fn note_exact(&mut self, line: usize, warp: usize, wrote: bool, touch: Touch) {
        let touched = if wrote { &mut self.writers } else { &mut self.readers };
        touched[line] |= 1 << warp;
        let here = self.bytes.line(line as u64);
        match wrote {
            true => self.bytes.note_write(here, warp, touch),
            false => self.bytes.note_read(here, warp, touch),
        }
    }

    /// From here on, a line is looked at byte by byte.
    #[cold]
    pub fn make_narrow(&mut self, line: usize) {
        if std::mem::replace(&mut self.narrow[line], true) {
            return;
        }
        let here = self.bytes.line(line as u64);
        let warps = self.warps;
        for (wrote, touched) in [(false, self.readers[line]), (true, self.writers[line])] {
            for warp in lanes(touched) {
                let cells = if wrote { &self.writes } else { &self.reads };
                for past in cells[line * warps + warp].entries() {
                    let touch = Touch {
                        epoch: past.epoch,
                        loc: past.loc,
                        atomic: false,
                        mask: bytes_of(past.granules),
                    };
                    match wrote {
                        _ if past.granules == 0 => {}
                        true => self.bytes.note_write(here, warp, touch),
                        false => self.bytes.note_read(here, warp, touch),
                    }
                }
            }
        }
    }

    /// Whoever touches a line from here on comes after all that was done to it.
    pub fn forget(&mut self, line: usize) {
        (self.readers[line], self.writers[line]) = (0, 0);
        self.products[line].clear();
        if self.narrow[line] {
            self.narrow[line] = false;
            self.bytes.forget(line as u64);
        }
        self.visited.remove(&line);
    }

    /// Whether no chunk of a line's granules was written by a load after `seen`, and none of them by a reduction (of which an
    /// atomic access needs to see nothing).
    #[inline(always)]
    pub fn is_seen(&self, line: usize, mask: u32, seen: u32, atomic: bool) -> bool {
        self.latest[line] <= seen || self.is_each_seen(line, mask, seen, atomic)
    }

    fn is_each_seen(&self, line: usize, mask: u32, seen: u32, atomic: bool) -> bool {
        (0..8).all(|i| mask >> (4 * i) & 15 == 0 || self.landed[8 * line + i] <= seen)
            && (atomic || self.reduced_late(line, mask, seen).is_none())
    }

    /// A granule in which somebody reduces, or has reduced, after `seen`.
    fn reduced_late(&self, line: usize, mask: u32, seen: u32) -> Option<(usize, Reduced)> {
        let granules = self.reduced.get(&line)?;
        let mut touched = granules.iter().enumerate().filter(|(i, _)| mask >> i & 1 == 1);
        touched.find(|(_, of)| of.latest() > seen).map(|(i, of)| (i, *of))
    }

    /// A reduction of granules is issued (`number`: `None`), or lands.
    pub fn reduce(&mut self, line: usize, mask: u32, number: Option<u32>) {
        let granules = self.reduced.entry(line).or_default();
        for (_, of) in granules.iter_mut().enumerate().filter(|(i, _)| mask >> i & 1 == 1) {
            match number {
                None => of.flying += 1,
                Some(number) => {
                    of.flying = of.flying.saturating_sub(1);
                    of.landed = number;
                }
            }
        }
        self.count_latest(line);
    }

    fn count_latest(&mut self, line: usize) {
        let chunks = self.landed[8 * line..8 * line + 8].iter().copied();
        let reduced = self.reduced.get(&line).into_iter().flat_map(|granules| granules.iter());
        let numbers = chunks.chain(reduced.map(|of| of.latest()));
        self.latest[line] = numbers.max().unwrap_or(0);
    }

    /// What is in flight goes with its cluster.
    pub fn forget_reductions(&mut self) {
        self.reduced.clear();
    }

    /// A load lands, or will land (`IN_FLIGHT`), on granules of a line. Pieces of less than a chunk (`st.async`) share it with
    /// others and are not followed.
    pub fn land(&mut self, line: usize, mask: u32, number: u32) {
        let chunks = &mut self.landed[8 * line..8 * line + 8];
        if mask == u32::MAX {
            chunks.fill(number);
            self.latest[line] = number;
            if !self.reduced.is_empty() {
                self.count_latest(line);
            }
            return;
        }
        for (i, chunk) in chunks.iter_mut().enumerate() {
            if mask >> (4 * i) & 15 == 15 {
                *chunk = number;
            }
        }
        self.count_latest(line);
    }

    /// Whether no load has landed in a line since the CTA began, and none of its warps has written it.
    pub fn is_untouched(&self, line: usize) -> bool {
        self.latest[line] <= self.landed_before && self.writers[line] == 0
    }

    /// The load that wrote, or will write, a line's granules: whether it is in flight.
    pub fn load_of(&self, line: usize, mask: u32, seen: u32) -> (bool, Option<Issued>) {
        let late = (0..8).find(|i| mask >> (4 * i) & 15 != 0 && self.landed[8 * line + i] > seen);
        let (offset, bytes, number) = match late {
            Some(chunk) => (128 * line + 16 * chunk, 16, self.landed[8 * line + chunk]),
            None => match self.reduced_late(line, mask, seen) {
                Some((granule, of)) => (128 * line + 4 * granule, 4, of.latest()),
                None => return (false, None),
            },
        };
        let offset = offset as u32;
        let covers = |it: &Issued| {
            let l = &it.landing;
            l.reduces == late.is_none() && l.offset < offset + bytes && offset < l.offset + l.bytes
        };
        if number == IN_FLIGHT {
            (true, self.flying.iter().find(|l| covers(l)).copied())
        } else {
            let landed = self.recent.iter().find(|(n, _)| *n == number);
            (false, landed.map(|(_, l)| *l))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_cut_ranges() {
        let lines = |offset, bytes| lines_of(offset, bytes).collect::<Vec<_>>();
        assert_eq!(lines(120, 24), [(0, 0xc000_0000), (1, 0xf)]);
        assert_eq!(lines(128, 256), [(1, !0), (2, !0)]);
        assert_eq!(lines(64, 2), [(0, 1 << 16)]);
        for (offset, bytes, mask) in [(0, 1, 1), (2, 2, 1), (4, 4, 2), (8, 8, 0xc), (112, 16, 0xf000_0000)] {
            assert_eq!(granules(offset, bytes), mask);
        }
    }

    #[test]
    fn granules_are_bytes() {
        for granules in [0, 1, 0x8000_0000, 0xffff_ffff, 0x1234_5678, 0x0001_8000] {
            let bytes = (0..32).filter(|i| granules >> i & 1 == 1).map(|i| 0xf << (4 * i)).sum();
            assert_eq!(bytes_of(granules), bytes);
            assert_eq!(granules_of(bytes), granules);
        }
    }

    #[test]
    fn a_cell_has_two_epochs() {
        let mut cell = Cell::default();
        let touch = |cell: &mut Cell, epoch, mask| cell.touch(epoch, mask, Loc(epoch));
        let unseen = |cell: &Cell, mask, seen| cell.unseen(mask, seen).next().map(|past| (past.granules, past.loc));
        assert!(touch(&mut cell, 3, 0b0001) && touch(&mut cell, 3, 0b0100));
        assert!(touch(&mut cell, 5, 0b0010));
        assert_eq!(unseen(&cell, 0b0111, 2), Some((0b0010, Loc(5))));
        assert_eq!(unseen(&cell, 0b0101, 2), Some((0b0101, Loc(3))), "of the epoch before");
        assert_eq!(unseen(&cell, 0b0101, 3), None);
        // The last stands for those before it.
        assert!(touch(&mut cell, 5, 0b0101));
        assert_eq!(unseen(&cell, 0b0101, 2), Some((0b0101, Loc(5))));
        assert!(touch(&mut cell, 6, 0b0110));
        assert!(!touch(&mut cell, 7, 0b1000), "of three epochs");
    }
}
