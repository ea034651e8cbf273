//! What the checker remembers byte by byte: a CTA's accesses to global memory, its bulk stores' among them, and those to lines of its
//! shared memory that somebody accesses in less than 4 bytes.
//!
//! Lines of 128 bytes that somebody has touched; of each, of each warp and of each byte the last epoch in which the warp touched it, and
//! where. Nearly always that is one entry, the last; what an entry has of other bytes (or an ordinary access that an atomic follows, with
//! which others' atomics do not race) goes to the older ones.
//!
//! A bulk store is another matter: until its warp waits for it in full it may happen at any time, and so races with whoever touches the bytes.
use crate::error::Loc;
use rustc_hash::FxHashMap;

/// Bytes of a line.
pub type Mask = u128;

/// A warp touched bytes of a line in an epoch.
#[derive(Clone, Copy, Default)]
pub struct Entry {
    epoch: u32,
    /// The last instruction that did.
    loc: Loc,
    /// An atomic was among them.
    atomic: bool,
    mask: Mask,
}

/// A touch of a line.
#[derive(Clone, Copy)]
pub struct Touch {
    pub epoch: u32,
    pub loc: Loc,
    pub atomic: bool,
    pub mask: Mask,
}

/// What an access does, where another is held against it.
#[derive(Clone, Copy)]
pub struct Side {
    pub writes: bool,
    pub atomic: bool,
}

/// Whether two unordered accesses with these bytes in common race, of which one writes: not if both are atomic; a store and a later one
/// only where that changes something.
#[inline(always)]
pub fn races(hit: Mask, theirs: Side, mine: Side, changes: impl FnOnce() -> Mask) -> bool {
    let by_value = theirs.writes && mine.writes && !mine.atomic;
    hit != 0 && !(theirs.atomic && mine.atomic) && (!by_value || hit & changes() != 0)
}

impl Entry {
    /// Which of these bytes it touched after the epoch `seen`.
    #[inline(always)]
    pub fn unseen(&self, mask: Mask, seen: u32) -> Mask {
        if self.epoch > seen { self.mask & mask } else { 0 }
    }

    pub fn epoch(&self) -> u32 {
        self.epoch
    }

    pub fn loc(&self) -> Loc {
        self.loc
    }

    pub fn is_atomic(&self) -> bool {
        self.atomic
    }

    /// What is left of it behind another touch of the warp: whoever has not seen an ordinary access has not seen those before it.
    #[inline(always)]
    fn behind(&self, touch: Touch) -> Mask {
        if touch.atomic && !self.atomic {
            self.mask
        } else {
            self.mask & !touch.mask
        }
    }

    /// Notes a touch, and says what else is to be remembered.
    #[inline(always)]
    fn touch(&mut self, touch: Touch) -> Option<Entry> {
        if (self.epoch, self.atomic) == (touch.epoch, touch.atomic) {
            self.mask |= touch.mask;
            self.loc = touch.loc;
            return None;
        }
        let mask = self.behind(touch);
        let left = (mask != 0).then_some(Entry { mask, ..*self });
        *self = Entry {
            epoch: touch.epoch,
            loc: touch.loc,
            atomic: touch.atomic,
            mask: touch.mask,
        };
        left
    }
}

/// A bulk store of a warp that it has not waited for in full, and what it writes of a line.
#[derive(Clone, Copy)]
pub struct Pending {
    pub warp: usize,
    /// Which of its warp's.
    pub number: u64,
    pub touch: Touch,
}

pub struct ByteHistory {
    warps: usize,
    /// A line's number, by its address.
    numbers: FxHashMap<u64, usize>,
    /// By line and warp.
    reads: Vec<Entry>,
    writes: Vec<Entry>,
    /// Warps that did, by line.
    readers: Vec<u32>,
    writers: Vec<u32>,
    /// Older entries by line: of which warp, and whether it wrote. Lines that have any.
    older: FxHashMap<usize, Vec<(usize, bool, Entry)>>,
    has_older: Vec<bool>,
    /// Bulk stores that have not been waited for, by line; and their lines, by warp and number.
    pending: FxHashMap<usize, Vec<Pending>>,
    stores: FxHashMap<(usize, u64), Vec<usize>>,
    last: (u64, usize),
}

impl ByteHistory {
    pub fn new(warps: usize) -> ByteHistory {
        ByteHistory {
            warps,
            numbers: FxHashMap::default(),
            reads: vec![],
            writes: vec![],
            readers: vec![],
            writers: vec![],
            older: FxHashMap::default(),
            has_older: vec![],
            pending: FxHashMap::default(),
            stores: FxHashMap::default(),
            last: (u64::MAX, 0),
        }
    }

    pub fn clear(&mut self) {
        self.numbers.clear();
        self.reads.clear();
        self.writes.clear();
        self.readers.clear();
        self.writers.clear();
        self.older.clear();
        self.has_older.clear();
        self.pending.clear();
        self.stores.clear();
        self.last = (u64::MAX, 0);
    }

    /// The number of a line.
    #[inline(always)]
    pub fn line(&mut self, address: u64) -> usize {
        if self.last.0 != address {
            self.last = (address, self.find(address));
        }
        self.last.1
    }

    /// Nobody has touched a line.
    pub fn forget(&mut self, address: u64) {
        let Some(line) = self.peek(address) else { return };
        (self.readers[line], self.writers[line]) = (0, 0);
        let here = line * self.warps..(line + 1) * self.warps;
        self.reads[here.clone()].fill(Entry::default());
        self.writes[here].fill(Entry::default());
        self.has_older[line] = false;
        self.older.remove(&line);
    }

    /// The number of a line that somebody has touched.
    pub fn peek(&self, address: u64) -> Option<usize> {
        self.numbers.get(&address).copied()
    }

    fn find(&mut self, address: u64) -> usize {
        let next = self.readers.len();
        let number = *self.numbers.entry(address).or_insert(next);
        if number == next {
            self.readers.push(0);
            self.writers.push(0);
            self.has_older.push(false);
            self.reads.resize(self.reads.len() + self.warps, Entry::default());
            self.writes.resize(self.writes.len() + self.warps, Entry::default());
        }
        number
    }

    pub fn readers(&self, line: usize) -> u32 {
        self.readers[line]
    }
    pub fn writers(&self, line: usize) -> u32 {
        self.writers[line]
    }
    /// A warp's last writes.
    pub fn last_write(&self, line: usize, warp: usize) -> &Entry {
        &self.writes[line * self.warps + warp]
    }

    /// All that is remembered of a warp's writes, or reads, the last first.
    #[inline(always)]
    pub fn entries(&self, line: usize, warp: usize, writes: bool) -> impl Iterator<Item = &Entry> {
        let last = if writes { &self.writes } else { &self.reads };
        let older = match self.has_older[line] {
            true => self.older.get(&line).map_or(&[][..], Vec::as_slice),
            false => &[],
        };
        let own = move |(by, wrote, _): &'_ (usize, bool, Entry)| (*by, *wrote) == (warp, writes);
        let older = older.iter().filter(move |it| own(it)).map(|(_, _, entry)| entry);
        std::iter::once(&last[line * self.warps + warp]).chain(older)
    }

    #[inline(always)]
    pub fn note_read(&mut self, line: usize, warp: usize, touch: Touch) {
        let left = self.reads[line * self.warps + warp].touch(touch);
        self.readers[line] |= 1 << warp;
        if left.is_some() || self.has_older[line] {
            self.keep(line, (warp, false), left, touch);
        }
    }

    #[inline(always)]
    pub fn note_write(&mut self, line: usize, warp: usize, touch: Touch) {
        let left = self.writes[line * self.warps + warp].touch(touch);
        self.writers[line] |= 1 << warp;
        if left.is_some() || self.has_older[line] {
            self.keep(line, (warp, true), left, touch);
        }
    }

    /// Remembers what a touch has left of the entry before it, and forgets of the older ones what the touch stands for.
    #[cold]
    fn keep(&mut self, line: usize, who: (usize, bool), left: Option<Entry>, touch: Touch) {
        self.has_older[line] = true;
        let older = self.older.entry(line).or_default();
        older.retain_mut(|(warp, wrote, entry)| {
            if (*warp, *wrote) == who {
                entry.mask = entry.behind(touch);
            }
            entry.mask != 0
        });
        older.extend(left.map(|entry| (who.0, who.1, entry)));
    }

    /// A bulk store writes bytes of a line.
    pub fn note_pending(&mut self, line: usize, pending: Pending) {
        self.pending.entry(line).or_default().push(pending);
        self.stores
            .entry((pending.warp, pending.number))
            .or_default()
            .push(line);
    }

    /// Bulk stores to a line that have not been waited for.
    pub fn pending(&self, line: usize) -> &[Pending] {
        match self.pending.is_empty() {
            true => &[],
            false => self.pending.get(&line).map_or(&[], Vec::as_slice),
        }
    }

    /// A warp has waited for a bulk store in full: it has written now, in an epoch of the warp's.
    pub fn settle(&mut self, warp: usize, number: u64, epoch: u32) {
        for line in self.stores.remove(&(warp, number)).unwrap_or_default() {
            let Some(stores) = self.pending.get_mut(&line) else {
                continue;
            };
            let mut over = vec![];
            stores.retain(|store| {
                let settles = (store.warp, store.number) == (warp, number);
                over.extend(settles.then_some(store.touch));
                !settles
            });
            if stores.is_empty() {
                self.pending.remove(&line);
            }
            for touch in over {
                self.note_write(line, warp, Touch { epoch, ..touch });
            }
        }
    }
}

/// The lines of a range, by address / 128, and which bytes of each.
pub fn lines_of(address: u64, bytes: u64) -> impl Iterator<Item = (u64, Mask)> + Clone {
    let end = address + bytes;
    (address >> 7..end.div_ceil(128)).map(move |line| {
        let (first, last) = (address.max(line << 7) & 127, (end - 1).min((line << 7) + 127) & 127);
        (line, Mask::MAX << first & Mask::MAX >> (127 - last))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_cut_ranges() {
        let lines = |address, bytes| lines_of(address, bytes).collect::<Vec<_>>();
        assert_eq!(lines(127, 2), [(0, 1 << 127), (1, 1)]);
        assert_eq!(lines(256, 128), [(2, !0)]);
        assert_eq!(lines(4, 4), [(0, 0xf0)]);
    }

    #[test]
    fn a_byte_has_its_last_epoch() {
        let mut history = ByteHistory::new(4);
        let line = history.line(7);
        let touch = |epoch, mask, atomic| Touch {
            epoch,
            loc: Loc(epoch),
            atomic,
            mask,
        };
        let unseen = |history: &ByteHistory, mask, seen, atomic| {
            let entries = history.entries(line, 2, true);
            entries
                .filter(|entry| !(atomic && entry.is_atomic()))
                .fold(0, |all, entry| all | entry.unseen(mask, seen))
        };
        history.note_write(line, 2, touch(3, 0b01, false));
        history.note_write(line, 2, touch(3, 0b10, false));
        assert_eq!(unseen(&history, !0, 2, false), 0b11);
        assert_eq!(unseen(&history, !0, 3, false), 0);
        history.note_write(line, 2, touch(4, 0b110, false));
        assert_eq!(unseen(&history, !0, 3, false), 0b110);
        assert_eq!(unseen(&history, !0, 2, false), 0b111, "of the epoch before");
        // With an ordinary store an atomic races, whatever atomic follows that.
        history.note_write(line, 2, touch(5, 0b111, true));
        assert_eq!(unseen(&history, !0, 4, false), 0b111);
        assert_eq!(unseen(&history, !0, 3, true), 0b110);
        history.note_write(line, 2, touch(6, 0b111, false));
        assert_eq!(history.entries(line, 2, true).count(), 1, "the last stands for all");
        assert_eq!((history.writers(line), history.readers(line)), (0b100, 0));
        assert_eq!(history.line(7), line);
        assert_eq!((history.peek(7), history.peek(8)), (Some(line), None));
        history.clear();
        assert_eq!(history.line(9), 0);
    }

    #[test]
    fn a_bulk_store_pends_until_it_is_waited_for() {
        let mut history = ByteHistory::new(2);
        let line = history.line(7);
        let touch = Touch {
            epoch: 3,
            loc: Loc(1),
            atomic: false,
            mask: 0b11,
        };
        let (warp, number) = (1, 5);
        history.note_pending(line, Pending { warp, number, touch });
        history.settle(1, 4, 6);
        assert_eq!((history.pending(line).len(), history.writers(line)), (1, 0));
        history.settle(1, 5, 6);
        assert_eq!((history.pending(line).len(), history.writers(line)), (0, 0b10));
        assert_eq!(history.last_write(line, 1).epoch(), 6);
    }
}
