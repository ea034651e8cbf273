//! Who wrote what of global memory, where clusters run by themselves: nothing orders one's accesses and another's.
//!
//! Of a line of 128 bytes: who wrote it first, at which instruction, and which bytes have been written since. A store holds its line
//! while it compares, writes and notes, so that what it compares with is what the other wrote, on however many threads clusters run.
//! Lines that several clusters write are listed byte by byte.
use super::byte_history::Mask;
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

/// What one cluster wrote of a line that several do.
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

/// What was written of one buffer. Pages of it that nobody touches take no memory.
pub struct Written {
    lines: Box<[AtomicU64]>,
    any: AtomicBool,
}

/// Lines that several clusters have written, by address / 128.
#[derive(Default)]
pub struct SharedLines(Mutex<FxHashMap<u64, Vec<Part>>>);

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
        let mut lines = lock(&self.0);
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

impl Written {
    pub fn new(bytes: usize) -> Written {
        // Zeroed by the system where it is large, page by page when touched.
        let lines = vec![0u64; WORDS * bytes.div_ceil(128)].into_boxed_slice();
        // SAFETY: `AtomicU64` is laid out as `u64` (on 64-bit hosts aligned alike, too), and the box is the only owner.
        let lines = unsafe { Box::from_raw(Box::into_raw(lines) as *mut [AtomicU64]) };
        Written {
            lines,
            any: AtomicBool::new(false),
        }
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
    /// wrote something else there. `line`: its address / 128.
    #[inline(always)]
    pub fn store(
        &self,
        shared: &SharedLines,
        (line, index): (u64, u64),
        by: Author,
        mask: Mask,
        changes: impl FnOnce() -> Mask,
        write: impl FnOnce(),
    ) -> Option<Author> {
        self.any.store(true, Ordering::Relaxed);
        let held = self.hold(index);
        let (first, mut other) = (held.first, None);
        let mut word = if first == 0 { word(by) } else { first };
        if first != 0 && (first & SHARED != 0 || author(first).cluster != by.cluster) {
            other = shared.other(line, &held, by, changes() & mask, mask);
            word |= SHARED;
        }
        write();
        held.store(mask);
        held.release(word);
        other
    }

    /// Another cluster that wrote some of these bytes of a line.
    #[inline(always)]
    pub fn other(&self, shared: &SharedLines, (line, index): (u64, u64), by: Author, mask: Mask) -> Option<Author> {
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
        let (written, shared) = (Written::new(300), SharedLines::default());
        let store = |who, mask: Mask, changes: Mask| written.store(&shared, (9, 2), who, mask, || changes, || ());
        let reads = |who, mask| written.other(&shared, (9, 2), who, mask);
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
        assert_eq!(written.other(&shared, (8, 1), by(2, 1), !0), None);
    }

    #[test]
    fn of_unequal_stores_of_threads_one_is_told() {
        for round in 0..200u64 {
            let (written, shared) = (Written::new(128), SharedLines::default());
            let memory = AtomicU64::new(u64::MAX);
            let told: Vec<bool> = std::thread::scope(|scope| {
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
            let count = told.iter().filter(|told| **told).count();
            assert_eq!(count, (round % 2) as usize, "round {round}");
        }
    }
}
