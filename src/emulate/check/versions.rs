//! Which lines of global memory have changed since a warp last looked at them.
//!
//! What is remembered of a line of global memory is in several shadows: those of the cluster's CTAs, and the one across clusters. A warp whose
//! access repeats what its cell has of this epoch (instruction included), all of whose bytes were looked at since any of them changed, need not look.
use super::race::Kind;
use crate::ptx::modifier::Scope;

const SLOTS: usize = 4096;

/// A number of a line for small tables: lines that follow each other, or are far apart in equal steps, differ in its last bits.
#[inline(always)]
pub fn slot(line: u64) -> usize {
    (line ^ line >> 5) as usize
}

/// By slot: how often something of a line was noted, atomics that race with no other and all else. Lines that share a slot count as one.
pub struct Versions {
    counts: Box<[[u32; 2]; SLOTS]>,
    devices: u32,
}

impl Versions {
    pub fn new(devices: u32) -> Versions {
        Versions {
            counts: Box::new([[0; 2]; SLOTS]),
            devices,
        }
    }

    /// Whether an access races with no atomic of its like, wherever in the launch.
    #[inline(always)]
    fn is_atomic_to_all(&self, kind: Kind) -> bool {
        match kind {
            Kind::Atomic(scope) => scope == Scope::Sys || scope == Scope::Gpu && self.devices == 1,
            _ => false,
        }
    }

    /// Something has been noted of a line.
    #[inline(always)]
    pub fn count(&mut self, line: u64, kind: Kind) {
        let which = usize::from(!self.is_atomic_to_all(kind));
        let count = &mut self.counts[slot(line) % SLOTS][which];
        *count = count.wrapping_add(1);
    }

    /// As accesses of a kind look at them.
    #[inline(always)]
    pub fn for_kind(&self, kind: Kind) -> VersionsFor<'_> {
        VersionsFor {
            counts: &self.counts,
            atomics: if self.is_atomic_to_all(kind) { 0 } else { u32::MAX },
        }
    }
}

pub struct VersionsFor<'a> {
    counts: &'a [[u32; 2]; SLOTS],
    /// Those that count.
    atomics: u32,
}

impl VersionsFor<'_> {
    /// What differs once something has been noted of a line that an access of this kind might race with.
    #[inline(always)]
    pub fn of(&self, line: u64) -> u32 {
        let [atomics, others] = self.counts[slot(line) % SLOTS];
        others.wrapping_add(atomics & self.atomics)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn atomics_do_not_change_a_line_for_each_other() {
        let (gpu, sys) = (Kind::Atomic(Scope::Gpu), Kind::Atomic(Scope::Sys));
        for (devices, noted, mine, differs) in [
            (1, gpu, gpu, false),
            (1, gpu, Kind::Read, true),
            (1, Kind::Read, gpu, true),
            (1, Kind::Flag(Scope::Sys), sys, true),
            (1, Kind::Atomic(Scope::Cta), gpu, true),
            (1, gpu, Kind::Atomic(Scope::Cta), true),
            (2, gpu, gpu, true),
            (2, sys, sys, false),
        ] {
            let mut versions = Versions::new(devices);
            let before = versions.for_kind(mine).of(7);
            versions.count(7, noted);
            assert_eq!(
                versions.for_kind(mine).of(7) != before,
                differs,
                "{noted:?}, {mine:?} on {devices}"
            );
            assert_eq!(versions.for_kind(mine).of(8), before);
        }
    }

    #[test]
    fn lines_in_steps_have_slots_of_their_own() {
        for step in [1, 2, 8, 32, 64, 256] {
            let mut slots: Vec<usize> = (0..32).map(|i| slot(1000 * 4096 + step * i) % 256).collect();
            slots.sort_unstable();
            slots.dedup();
            assert_eq!(slots.len(), 32, "{step}");
        }
    }
}
