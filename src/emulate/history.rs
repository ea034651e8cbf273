//! What the checker remembers of a CTA: who touched its shared memory when, and what its barriers hand on.
//!
//! Memory is in lines of 128 bytes, 32 granules of 4 bytes each; a line's granules are a mask. An entry says when a warp last
//! touched a line, and which of its granules then: the epoch above, the mask below.
use super::byte_history::{ByteHistory, Mask, Side, Touch, races};
use super::clock::Clock;
use super::hooks::{Landing, Shape};
use crate::error::Loc;
use rustc_hash::FxHashMap;
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

/// An mbarrier.
pub struct Barrier {
    pub phases: Handover,
    /// Who initialised it, when, and whether `fence.mbarrier_init` followed.
    pub by: usize,
    pub at: u32,
    pub published: bool,
    /// Who has waited for the last phase that is complete, and the epoch of that.
    pub waits: Vec<(usize, u32)>,
}

impl Barrier {
    /// Of those who have waited for the last phase, one of whom nobody knows who has arrived in the current one.
    pub fn left_behind(&self) -> Option<usize> {
        let known = self.phases.arriving.seen();
        let late = self.waits.iter().find(|(who, epoch)| known[*who] < *epoch);
        late.map(|(who, _)| *who)
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

/// What is remembered of a CTA.
pub struct History {
    /// Per 16-byte chunk: the number of the bulk load of this CTA that wrote it, counted as they land.
    landed: Vec<u32>,
    /// Per line with reductions by `red.async`: those of each granule.
    reduced: FxHashMap<usize, Box<[Reduced; 32]>>,
    /// Per line: the largest number of all of these.
    latest: Vec<u32>,
    pub landings: u32,
    /// Per line: warps of this CTA that read or wrote it by themselves or asynchronously.
    pub readers: Vec<u32>,
    pub writers: Vec<u32>,
    /// Per line and warp: the last epoch (high half) and granules.
    pub reads: Vec<u64>,
    pub writes: Vec<u64>,
    /// The same: the last instruction.
    pub read_at: Vec<Loc>,
    pub written_at: Vec<Loc>,
    /// Per line: the last store that touched it with gaps between its lanes, by number, and its granules.
    pub stores: Vec<(u32, u32)>,
    /// Per line: warps that accessed it atomically.
    pub atomics: Vec<u32>,
    /// Lines with accesses of less than a granule: of these, ordinary accesses are in `bytes`, too.
    pub narrow: Vec<bool>,
    pub bytes: ByteHistory,
    pub barriers: FxHashMap<u32, Barrier>,
    pub named: [Option<Box<Handover>>; 16],
    /// Loads in flight, and those that have landed lately with their number.
    pub flying: Vec<Landing>,
    pub recent: VecDeque<(u32, Landing)>,
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
pub fn bytes_of(granules: u32) -> Mask {
    (0..32).filter(|i| granules >> i & 1 == 1).map(|i| 0xf << (4 * i)).sum()
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

/// A warp touches granules in an epoch; what it did in older ones is forgotten.
#[inline(always)]
pub fn touch(entry: &mut u64, epoch: u32, mask: u32) {
    let old = if (*entry >> 32) as u32 == epoch {
        *entry as u32
    } else {
        0
    };
    *entry = u64::from(epoch) << 32 | u64::from(old | mask);
}

impl History {
    pub fn new(shape: Shape, width: usize) -> History {
        let (lines, warps) = (shape.smem_bytes.div_ceil(128) as usize, shape.warps_per_cta as usize);
        History {
            landed: vec![0; 8 * lines],
            reduced: FxHashMap::default(),
            latest: vec![0; lines],
            landings: 0,
            readers: vec![0; lines],
            writers: vec![0; lines],
            reads: vec![0; lines * warps],
            writes: vec![0; lines * warps],
            read_at: vec![Loc::CALL_SITE; lines * warps],
            written_at: vec![Loc::CALL_SITE; lines * warps],
            stores: vec![(0, 0); lines],
            atomics: vec![0; lines],
            narrow: vec![false; lines],
            bytes: ByteHistory::new(warps),
            barriers: FxHashMap::default(),
            named: Default::default(),
            flying: vec![],
            recent: VecDeque::new(),
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
        let warps = self.warps();
        let mine = Side {
            writes,
            atomic: touch.atomic,
        };
        let narrow = self.narrow[line].then(|| self.bytes.peek(line as u64)).flatten();
        let sides = [
            (true, self.writers[line]),
            (false, if writes { self.readers[line] } else { 0 }),
        ];
        for (wrote, theirs) in sides {
            for warp in (0..warps).filter(|warp| theirs >> warp & 1 == 1) {
                let at = line * warps + warp;
                let (entry, loc) = if wrote {
                    (self.writes[at], self.written_at[at])
                } else {
                    (self.reads[at], self.read_at[at])
                };
                let hit = match narrow {
                    Some(here) => self
                        .bytes
                        .entry(here, warp, wrote)
                        .unseen(touch.mask, seen[first + warp]),
                    None if (entry >> 32) as u32 > seen[first + warp] => bytes_of(entry as u32) & touch.mask,
                    None => 0,
                };
                let atomic = self.atomics[line] >> warp & 1 == 1;
                let theirs = Side { writes: wrote, atomic };
                if races(hit, theirs, mine, changes) {
                    let touch = Touch {
                        epoch: 0,
                        loc,
                        atomic,
                        mask: hit,
                    };
                    return Some((
                        hit,
                        Visit {
                            by: first + warp,
                            wrote,
                            touch,
                        },
                    ));
                }
            }
        }
        None
    }

    /// Warps of the CTA.
    fn warps(&self) -> usize {
        self.reads.len() / self.readers.len().max(1)
    }

    /// A peer's warp touches bytes of a line.
    #[cold]
    pub fn note_visit(&mut self, line: usize, visit: Visit) {
        let visits = self.visited.entry(line).or_default();
        match visits.iter_mut().find(|v| (v.by, v.wrote) == (visit.by, visit.wrote)) {
            Some(old) if old.touch.epoch == visit.touch.epoch => {
                old.touch.mask |= visit.touch.mask;
                old.touch.atomic |= visit.touch.atomic;
                old.touch.loc = visit.touch.loc;
            }
            Some(old) => *old = visit,
            None => visits.push(visit),
        }
    }

    /// From here on, a line is looked at byte by byte.
    #[cold]
    pub fn make_narrow(&mut self, line: usize, warps: usize) {
        self.narrow[line] = true;
        let here = self.bytes.line(line as u64);
        for warp in 0..warps {
            let at = line * warps + warp;
            let touch = |entry: u64, loc| Touch {
                epoch: (entry >> 32) as u32,
                loc,
                atomic: self.atomics[line] >> warp & 1 == 1,
                mask: bytes_of(entry as u32),
            };
            if self.readers[line] >> warp & 1 == 1 {
                let touch = touch(self.reads[at], self.read_at[at]);
                self.bytes.note_read(here, warp, touch);
            }
            if self.writers[line] >> warp & 1 == 1 {
                let touch = touch(self.writes[at], self.written_at[at]);
                self.bytes.note_write(here, warp, touch);
            }
        }
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

    /// The load that wrote, or will write, a line's granules: whether it is in flight.
    pub fn load_of(&self, line: usize, mask: u32, seen: u32) -> (bool, Option<Landing>) {
        let late = (0..8).find(|i| mask >> (4 * i) & 15 != 0 && self.landed[8 * line + i] > seen);
        let (offset, bytes, number) = match late {
            Some(chunk) => (128 * line + 16 * chunk, 16, self.landed[8 * line + chunk]),
            None => match self.reduced_late(line, mask, seen) {
                Some((granule, of)) => (128 * line + 4 * granule, 4, of.latest()),
                None => return (false, None),
            },
        };
        let offset = offset as u32;
        let covers =
            |l: &Landing| l.reduces == late.is_none() && l.offset < offset + bytes && offset < l.offset + l.bytes;
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
    fn an_entry_forgets_older_epochs() {
        let mut entry = 0;
        touch(&mut entry, 3, 1);
        touch(&mut entry, 3, 4);
        assert_eq!(entry, 3 << 32 | 5);
        touch(&mut entry, 4, 2);
        assert_eq!(entry, 4 << 32 | 2);
    }
}
