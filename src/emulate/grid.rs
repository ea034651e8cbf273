//! Who wrote what of global memory, and who read it, where clusters run by themselves: nothing orders one's accesses and another's.
//!
//! Of a line of 128 bytes: who wrote it first, at which instruction, and which bytes have been written since. A store holds its line
//! while it compares, writes and notes, so that what it compares with is what the other wrote, on however many threads clusters run.
//! Lines that several clusters write are listed byte by byte. The same of reads of buffers that kernels may write ([`Written::new`]), so that
//! a store and another's load are told of whichever comes first. Of a byte two readers are enough: one of them is another than who writes.
use super::overwrite::Mask;
use crate::error::Loc;
use crate::lock::lock;
use rustc_hash::FxHashMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// A cluster, by its number in the grid, and one of its instructions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Author {
    pub cluster: u32,
    pub loc: Loc,
}

/// What one cluster wrote, or read, of a line that several do.
struct Part {
    author: Author,
    mask: Mask,
}

/// Of a line's word: somebody is at it.
const HELD: u64 = 1 << 63;
/// Several clusters have written it.
const SHARED: u64 = 1 << 62;
/// Words of a line: its first author, and a bit for each byte that was written.
const WORDS: usize = 3;

/// What another cluster did to bytes that a cluster writes, or reads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Clash {
    pub by: Author,
    pub did: Did,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Did {
    Read,
    Write,
}

/// What was written of one buffer. Pages of it that nobody touches take no memory.
pub struct Written {
    lines: Box<[AtomicU64]>,
    /// The same of who read it: the first reader, and its bytes; or ([`SHARED`]) those that two or more have read.
    reads: Option<Box<[AtomicU64]>>,
    any: AtomicBool,
}

/// Lines that several clusters have written, or read, by address / 128.
#[derive(Default)]
pub struct SharedLines {
    writes: Mutex<FxHashMap<u64, Vec<Part>>>,
    reads: Mutex<FxHashMap<u64, Vec<Part>>>,
}

fn word(author: Author) -> u64 {
    u64::from(author.loc.0 & (1 << 30) - 1) << 32 | u64::from(author.cluster + 1)
}

fn author(word: u64) -> Author {
    Author {
        cluster: (word as u32).wrapping_sub(1),
        loc: Loc((word >> 32) as u32 & (1 << 30) - 1),
    }
}

/// A line that this thread holds.
struct Held<'a> {
    words: &'a [AtomicU64],
    first: u64,
}

impl Held<'_> {
    fn stored(&self) -> Mask {
        let half = |i: usize| Mask::from(self.words[i].load(Ordering::Relaxed));
        half(1) | half(2) << 64
    }
    fn store(&self, mask: Mask) {
        for (i, half) in [(1, mask as u64), (2, (mask >> 64) as u64)] {
            if half != 0 {
                let old = self.words[i].load(Ordering::Relaxed);
                self.words[i].store(old | half, Ordering::Relaxed);
            }
        }
    }
    fn release(self, word: u64) {
        self.words[0].store(word, Ordering::Release);
    }
}

impl SharedLines {
    /// Who else wrote some of these bytes of a line; `adds`: what the author writes itself.
    #[cold]
    fn other(&self, line: u64, held: &Held<'_>, by: Author, bytes: Mask, adds: Mask) -> Option<Author> {
        let mut lines = lock(&self.writes);
        let parts = lines.entry(line).or_default();
        if parts.is_empty() {
            parts.push(Part {
                author: author(held.first),
                mask: held.stored(),
            });
        }
        let other = parts
            .iter()
            .find(|part| part.author.cluster != by.cluster && part.mask & bytes != 0);
        let other = other.map(|part| part.author);
        if adds != 0 {
            match parts.iter_mut().find(|part| part.author.cluster == by.cluster) {
                Some(part) => (part.author, part.mask) = (by, part.mask | adds),
                None => parts.push(Part { author: by, mask: adds }),
            }
        }
        other
    }
}

impl SharedLines {
    /// A cluster reads bytes of a line of which others have read some. Those that two have read now.
    #[cold]
    fn note_read(&self, line: u64, first: Option<Part>, by: Author, bytes: Mask) -> Mask {
        let mut lines = lock(&self.reads);
        let parts = lines.entry(line).or_default();
        parts.extend(first);
        let (mut others, mut twice) = (0, 0);
        for part in parts.iter() {
            twice |= others & part.mask;
            others |= part.mask;
        }
        let adds = bytes & !twice;
        match parts.iter_mut().find(|part| part.author.cluster == by.cluster) {
            Some(part) => part.mask |= adds,
            None => parts.push(Part { author: by, mask: adds }),
        }
        let (mut once, mut twice) = (0, 0);
        for part in parts.iter() {
            twice |= once & part.mask;
            once |= part.mask;
        }
        twice
    }

    /// Another cluster that read some of these bytes of a line.
    #[cold]
    fn reader(&self, line: u64, by: Author, bytes: Mask) -> Option<Author> {
        let lines = lock(&self.reads);
        let mut parts = lines.get(&line)?.iter();
        let other = parts.find(|part| part.author.cluster != by.cluster && part.mask & bytes != 0);
        other.map(|part| part.author)
    }
}

/// Words of zero, given by the system page by page when touched where they are many.
fn zeros(words: usize) -> Box<[AtomicU64]> {
    let words = vec![0u64; words].into_boxed_slice();
    // SAFETY: `AtomicU64` is laid out as `u64` (on 64-bit hosts aligned alike, too), and the box is the only owner.
    unsafe { Box::from_raw(Box::into_raw(words) as *mut [AtomicU64]) }
}

impl Written {
    /// Of a buffer. `reads`: the kernel may write it, so that its loads matter, too.
    pub fn new(bytes: usize, reads: bool) -> Written {
        let words = WORDS * bytes.div_ceil(128);
        Written {
            lines: zeros(words),
            reads: reads.then(|| zeros(words)),
            any: AtomicBool::new(false),
        }
    }

    /// Whether a load matters.
    #[inline(always)]
    pub fn heeds_loads(&self) -> bool {
        self.reads.is_some() || self.any()
    }

    /// A cluster reads bytes of a line.
    #[inline(always)]
    fn note_read(&self, shared: &SharedLines, (line, index): (u64, u64), by: Author, mask: Mask) {
        let Some(reads) = &self.reads else { return };
        let words = &reads[WORDS * index as usize..WORDS * (index as usize + 1)];
        let noted = Held { words, first: 0 }.stored() & mask == mask;
        let reader = words[0].load(Ordering::Relaxed);
        // Whoever reads again what it has, or what two have, says nothing new.
        if noted && (reader & SHARED != 0 || author(reader).cluster == by.cluster) {
            return;
        }
        let held = self.hold(index);
        let reads = Held {
            words,
            first: words[0].load(Ordering::Relaxed),
        };
        let first = reads.first;
        if first == 0 || first & SHARED == 0 && author(first).cluster == by.cluster {
            words[0].store(if first == 0 { word(by) } else { first }, Ordering::Relaxed);
            reads.store(mask);
        } else {
            let part = Part {
                author: author(first),
                mask: reads.stored(),
            };
            let part = (first & SHARED == 0).then_some(part);
            let twice = shared.note_read(line, part, by, mask);
            for (i, half) in [(1, twice as u64), (2, (twice >> 64) as u64)] {
                words[i].store(half, Ordering::Relaxed);
            }
            words[0].store(first | SHARED, Ordering::Relaxed);
        }
        let first = held.first;
        held.release(first);
    }

    /// Another cluster that read some of these bytes of a line, which this thread holds.
    #[inline(always)]
    fn reader(
        &self,
        shared: &SharedLines,
        (line, index): (u64, u64),
        by: Author,
        bytes: impl FnOnce() -> Mask,
    ) -> Option<Author> {
        let reads = self.reads.as_ref()?;
        let words = &reads[WORDS * index as usize..WORDS * (index as usize + 1)];
        let first = words[0].load(Ordering::Relaxed);
        if first == 0 || first & SHARED == 0 && author(first).cluster == by.cluster {
            return None;
        }
        if first & SHARED != 0 {
            return shared.reader(line, by, bytes());
        }
        let stored = Held { words, first }.stored();
        (stored & bytes() != 0).then(|| author(first))
    }

    /// Whether anybody has written anything.
    #[inline(always)]
    pub fn any(&self) -> bool {
        self.any.load(Ordering::Relaxed)
    }

    fn words(&self, index: u64) -> &[AtomicU64] {
        let at = WORDS * index as usize;
        &self.lines[at..at + WORDS]
    }

    #[inline(always)]
    fn hold(&self, index: u64) -> Held<'_> {
        let words = self.words(index);
        loop {
            let first = words[0].load(Ordering::Relaxed);
            let free = first & HELD == 0;
            if free
                && words[0]
                    .compare_exchange_weak(first, first | HELD, Ordering::Acquire, Ordering::Relaxed)
                    .is_ok()
            {
                return Held { words, first };
            }
            std::hint::spin_loop();
        }
    }

    /// Bytes `mask` of line `index` are written by `write`, of which `changes` says what differs from what is there. Another cluster that
    /// wrote something else there, or read it. `line`: its address / 128.
    #[inline(always)]
    pub fn store(
        &self,
        shared: &SharedLines,
        (line, index): (u64, u64),
        by: Author,
        mask: Mask,
        changes: impl Fn() -> Mask,
        write: impl FnOnce(),
    ) -> Option<Clash> {
        self.any.store(true, Ordering::Relaxed);
        let held = self.hold(index);
        let (first, mut other) = (held.first, None);
        let mut word = if first == 0 { word(by) } else { first };
        if first != 0 && (first & SHARED != 0 || author(first).cluster != by.cluster) {
            let wrote = shared.other(line, &held, by, changes() & mask, mask);
            other = wrote.map(|by| Clash { by, did: Did::Write });
            word |= SHARED;
        }
        let other = other.or_else(|| {
            let reader = self.reader(shared, (line, index), by, || changes() & mask);
            reader.map(|by| Clash { by, did: Did::Read })
        });
        write();
        held.store(mask);
        held.release(word);
        other
    }

    /// A cluster loads bytes of a line; another that wrote some of them.
    #[inline(always)]
    pub fn load(&self, shared: &SharedLines, (line, index): (u64, u64), by: Author, mask: Mask) -> Option<Author> {
        self.note_read(shared, (line, index), by, mask);
        let first = self.words(index)[0].load(Ordering::Relaxed);
        if first == 0 || first & SHARED == 0 && author(first).cluster == by.cluster {
            return None;
        }
        let held = self.hold(index);
        let other = if held.first & SHARED != 0 {
            shared.other(line, &held, by, mask, 0)
        } else {
            let others = author(held.first).cluster != by.cluster && held.stored() & mask != 0;
            others.then(|| author(held.first))
        };
        let first = held.first;
        held.release(first);
        other
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn by(cluster: u32, loc: u32) -> Author {
        Author { cluster, loc: Loc(loc) }
    }

    #[test]
    fn a_line_knows_who_wrote_which_byte() {
        let (written, shared) = (Written::new(300, false), SharedLines::default());
        let wrote = |clash: Clash| {
            assert_eq!(clash.did, Did::Write);
            clash.by
        };
        let store = |who, mask: Mask, changes: Mask| {
            let clash = written.store(&shared, (9, 2), who, mask, || changes, || ());
            clash.map(wrote)
        };
        let reads = |who, mask| written.load(&shared, (9, 2), who, mask);
        assert!(!written.any());
        assert_eq!(store(by(0, 5), 0b0011, !0), None);
        assert!(written.any());
        assert_eq!(store(by(0, 6), 0b0010, !0), None, "one's own");
        assert_eq!(store(by(1, 7), 0b1100, !0), None, "other bytes");
        assert_eq!(store(by(1, 8), 0b0110, 0b0100), None, "the same value");
        assert_eq!(store(by(1, 8), 0b0110, 0b0010), Some(by(0, 5)));
        assert_eq!(store(by(0, 9), 0b1000, !0), Some(by(1, 8)));
        assert_eq!(reads(by(0, 1), 0b0001), None);
        assert_eq!(reads(by(2, 1), 0b0001), Some(by(0, 9)));
        assert_eq!(reads(by(2, 1), 0b10000), None);
        assert_eq!(written.load(&shared, (8, 1), by(2, 1), !0), None);
    }

    #[test]
    fn a_line_knows_who_read_which_byte() {
        let (written, shared) = (Written::new(300, true), SharedLines::default());
        let store = |who, mask: Mask, changes: Mask| {
            let clash = written.store(&shared, (9, 2), who, mask, || changes, || ());
            clash.filter(|clash| clash.did == Did::Read).map(|clash| clash.by)
        };
        let reads = |who, mask| written.load(&shared, (9, 2), who, mask);
        assert!(written.heeds_loads() && !written.any());
        assert_eq!(reads(by(0, 5), 0b0011), None);
        assert_eq!(store(by(0, 6), 0b0001, !0), None, "one's own");
        assert_eq!(store(by(1, 6), 0b0100, !0), None, "other bytes");
        assert_eq!(store(by(1, 7), 0b0111, 0b0100), None, "the same value");
        assert_eq!(store(by(1, 7), 0b0110, !0), Some(by(0, 5)));
        // Of several readers it is the other one.
        reads(by(1, 8), 0b1100_0000);
        reads(by(0, 8), 0b0100_0000);
        assert_eq!(store(by(0, 9), 0b1000_0000, !0), Some(by(1, 8)));
        assert_eq!(store(by(1, 9), 0b1000_0000, !0), None);
        assert_eq!(store(by(1, 9), 0b0100_0000, !0), Some(by(0, 5)));
        // Two readers are enough.
        for cluster in 2..100 {
            reads(by(cluster, 1), 0b0100_0000);
        }
        assert_eq!(lock(&shared.reads)[&9].len(), 2);
    }

    #[test]
    fn of_unequal_stores_of_threads_one_is_told() {
        for round in 0..200u64 {
            let (written, shared) = (Written::new(128, false), SharedLines::default());
            let memory = AtomicU64::new(u64::MAX);
            let raced: Vec<bool> = std::thread::scope(|scope| {
                let store = |cluster: u32, value: u64| {
                    let differs = || if memory.load(Ordering::Relaxed) == value { 0 } else { !0 };
                    let write = || memory.store(value, Ordering::Relaxed);
                    written
                        .store(&shared, (0, 0), by(cluster, 1), 0xff, differs, write)
                        .is_some()
                };
                let threads: Vec<_> = (0..2)
                    .map(|i| scope.spawn(move || store(i, if round % 2 == 0 { 7 } else { u64::from(i) })))
                    .collect();
                threads.into_iter().map(|t| t.join().unwrap()).collect()
            });
            let count = raced.iter().filter(|raced| **raced).count();
            assert_eq!(count, (round % 2) as usize, "round {round}");
        }
    }
}
