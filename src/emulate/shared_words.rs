//! Words of shared memory by which the warps of a cluster tell each other: what whoever reads one learns.
//!
//! A release on a word leaves there what the releasing warp knows, for the threads that its scope includes. Atomics add to what is there, as
//! they extend a release's sequence (PTX ISA, "Release and Acquire Patterns"); a store takes the place of what was there. An acquire
//! learns of those releases whose scope includes it, and which its own includes. (Words of global memory: `words.rs`.)
use super::clock::Clock;
use super::shared::CtaSlot;
use crate::ptx::modifier::Scope;
use rustc_hash::FxHashMap;
use std::ops::Range;

/// Whether a scope reaches beyond a CTA.
pub fn is_wide(scope: Scope) -> bool {
    scope != Scope::Cta
}

/// What warps of a CTA released on a word, to their own CTA or to the cluster.
struct Told {
    by: CtaSlot,
    wide: bool,
    clock: Clock,
}

/// A word of 4 bytes: whose shared memory, and which.
type Place = (CtaSlot, u32);

#[derive(Default)]
pub struct SharedWords {
    words: FxHashMap<Place, Vec<Told>>,
}

/// The words of an access, and whether it covers them.
fn words_of(at: u32, bytes: u32) -> (Range<u32>, bool) {
    (at >> 2..(at + bytes).div_ceil(4), bytes >= 4)
}

impl SharedWords {
    pub fn is_empty(&self) -> bool {
        self.words.is_empty()
    }

    /// A cluster begins: nobody has told anything in the shared memory of its CTAs.
    pub fn clear(&mut self, slots: &Range<usize>) {
        self.words.retain(|(slot, _), _| !slots.contains(&(slot.0 as usize)));
    }

    /// A store: who reads what it leaves there learns of no release before it. (Of a part of a word, who reads the rest does.)
    pub fn replace(&mut self, slot: CtaSlot, at: u32, bytes: u32) {
        let (words, whole) = words_of(at, bytes);
        if whole {
            words.for_each(|word| drop(self.words.remove(&(slot, word))));
        }
    }

    /// A warp of CTA `by` tells what `clock` knows.
    pub fn tell(&mut self, (slot, at, bytes): (CtaSlot, u32, u32), by: CtaSlot, wide: bool, clock: &Clock) {
        for word in words_of(at, bytes).0 {
            let told = self.words.entry((slot, word)).or_default();
            match told.iter_mut().find(|told| told.by == by && told.wide == wide) {
                Some(told) => told.clock.join(clock),
                None => told.push(Told {
                    by,
                    wide,
                    clock: clock.clone(),
                }),
            }
        }
    }

    /// What a warp of CTA `by` may learn of a place: clocks, and whether it takes a scope beyond the CTA.
    pub fn heard(&self, (slot, at, bytes): (CtaSlot, u32, u32), by: CtaSlot) -> impl Iterator<Item = (&Clock, bool)> {
        let told = words_of(at, bytes)
            .0
            .filter_map(move |word| self.words.get(&(slot, word)));
        told.flatten()
            .filter(move |told| told.by == by || told.wide)
            .map(move |told| (&told.clock, told.by != by))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(component: usize) -> Clock {
        let mut clock = Clock::new(4);
        clock.see(component, 1);
        clock
    }

    /// The components that a reader hears of with scope CTA, and with a wider one.
    fn heard(words: &SharedWords, at: u32, bytes: u32, by: u32) -> [Vec<usize>; 2] {
        [false, true].map(|scope| {
            let mut all = Clock::new(4);
            words
                .heard((CtaSlot(0), at, bytes), CtaSlot(by))
                .filter(|(_, wide)| scope || !wide)
                .for_each(|(clock, _)| all.join(clock));
            (0..4).filter(|i| all.seen()[*i] > 0).collect()
        })
    }

    #[test]
    fn a_word_tells_what_was_released_there_to_whom_its_scope_includes() {
        let (own, peer) = (CtaSlot(0), CtaSlot(1));
        let mut words = SharedWords::default();
        words.tell((own, 8, 4), own, false, &of(0));
        words.tell((own, 8, 4), own, true, &of(1));
        words.tell((own, 8, 4), peer, false, &of(2));
        words.tell((own, 12, 4), own, true, &of(3));
        assert_eq!(heard(&words, 8, 4, 0), [vec![0, 1], vec![0, 1]]);
        assert_eq!(heard(&words, 8, 4, 1), [vec![2], vec![1, 2]]);
        assert_eq!(heard(&words, 8, 8, 0), [vec![0, 1, 3], vec![0, 1, 3]]);
        assert_eq!(heard(&words, 4, 4, 0), [[], []] as [[usize; 0]; 2]);
    }

    #[test]
    fn a_store_takes_the_place_of_releases_of_its_words() {
        let own = CtaSlot(0);
        let mut words = SharedWords::default();
        words.tell((own, 0, 8), own, false, &of(0));
        words.replace(own, 0, 2);
        assert_eq!(heard(&words, 0, 4, 0)[0], [0]);
        words.replace(own, 0, 4);
        assert!(heard(&words, 0, 4, 0)[0].is_empty());
        assert_eq!(heard(&words, 4, 4, 0)[0], [0]);
        words.clear(&(0..1));
        assert!(heard(&words, 4, 4, 0)[0].is_empty() && words.words.is_empty());
    }
}
