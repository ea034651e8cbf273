//! What the checker remembers byte by byte: a CTA's accesses to global memory, its bulk stores' among them, and those to lines of its
//! shared memory that somebody accesses in less than 4 bytes.
//!
//! Lines of 128 bytes that somebody has touched; of each and of each warp the last epoch and the bytes touched then, and where.
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

    #[inline(always)]
    fn touch(&mut self, touch: Touch) {
        let (mask, atomic) = if self.epoch == touch.epoch {
            (self.mask, self.atomic)
        } else {
            (0, false)
        };
        *self = Entry {
            epoch: touch.epoch,
            loc: touch.loc,
            atomic: atomic | touch.atomic,
            mask: mask | touch.mask,
        };
    }
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
            last: (u64::MAX, 0),
        }
    }

    pub fn clear(&mut self) {
        self.numbers.clear();
        self.reads.clear();
        self.writes.clear();
        self.readers.clear();
        self.writers.clear();
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
    /// A warp's writes, or reads.
    pub fn entry(&self, line: usize, warp: usize, writes: bool) -> &Entry {
        let entries = if writes { &self.writes } else { &self.reads };
        &entries[line * self.warps + warp]
    }
    pub fn note_read(&mut self, line: usize, warp: usize, touch: Touch) {
        self.reads[line * self.warps + warp].touch(touch);
        self.readers[line] |= 1 << warp;
    }
    pub fn note_write(&mut self, line: usize, warp: usize, touch: Touch) {
        self.writes[line * self.warps + warp].touch(touch);
        self.writers[line] |= 1 << warp;
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
    fn an_entry_forgets_older_epochs() {
        let mut history = ByteHistory::new(4);
        let line = history.line(7);
        let touch = |epoch, mask| Touch {
            epoch,
            loc: Loc(epoch),
            atomic: epoch == 3,
            mask,
        };
        history.note_write(line, 2, touch(3, 0b01));
        history.note_write(line, 2, touch(3, 0b10));
        assert!(history.entry(line, 2, true).is_atomic());
        assert_eq!(history.entry(line, 2, true).unseen(!0, 2), 0b11);
        assert_eq!(history.entry(line, 2, true).unseen(!0, 3), 0);
        history.note_write(line, 2, touch(4, 0b100));
        assert_eq!(history.entry(line, 2, true).unseen(!0, 3), 0b100);
        assert_eq!(history.entry(line, 2, true).loc(), Loc(4));
        assert!(!history.entry(line, 2, true).is_atomic());
        assert_eq!((history.writers(line), history.readers(line)), (0b100, 0));
        assert_eq!(history.line(7), line);
        assert_eq!((history.peek(7), history.peek(8)), (Some(line), None));
        history.clear();
        assert_eq!(history.line(9), 0);
    }
}
