//! Bulk stores in flight: per-thread groups of a warp.
use super::check::View;
use super::tensor_maps::TensorMap;
use crate::ptx::modifier::{AtomOp, AtomType, TensorRed};
use std::collections::VecDeque;

/// Where a bulk store goes.
#[derive(Clone, Debug)]
pub enum Destination {
    Linear {
        address: u64,
        /// What is there is combined with it.
        reduce: Option<(AtomOp, AtomType)>,
    },
    Tensor {
        map: TensorMap,
        coords: [i32; 5],
        reduce: Option<TensorRed>,
    },
}

/// A bulk store.
#[derive(Clone, Debug)]
pub struct BulkStore {
    pub lane: u32,
    /// The instruction.
    pub pc: u32,
    pub destination: Destination,
    /// Offset in the shared memory of the CTA.
    pub source: u32,
    pub bytes: u32,
    /// What has been read.
    pub data: Option<Vec<u8>>,
    /// The bulk group of its thread, once committed.
    pub group: Option<u64>,
    pub view: View,
    /// Which of its warp's.
    pub number: u64,
}

/// A bulk store that has been performed, and has not been waited for in full.
#[derive(Clone, Copy, Debug)]
pub struct Performed {
    pub lane: u32,
    pub group: Option<u64>,
    pub number: u64,
}

/// The bulk stores of a warp, oldest first, and how many groups each thread has committed.
#[derive(Default)]
pub struct BulkGroups {
    pub stores: VecDeque<BulkStore>,
    pub committed: [u64; 32],
    /// Stores issued.
    pub issued: u64,
    /// Where a checker wants to know.
    pub performed: Vec<Performed>,
    /// Those of them without a group.
    uncommitted: usize,
}

impl BulkGroups {
    pub fn clear(&mut self) {
        self.stores.clear();
        self.committed = [0; 32];
        self.issued = 0;
        self.performed.clear();
        self.uncommitted = 0;
    }

    /// The number of a store that is issued.
    pub fn issue(&mut self) -> u64 {
        self.issued += 1;
        self.issued
    }

    /// The thread's uncommitted stores become its next group.
    pub fn commit(&mut self, lane: usize) {
        let group = self.committed[lane];
        self.committed[lane] += 1;
        for store in &mut self.stores {
            if store.lane as usize == lane && store.group.is_none() {
                store.group = Some(group);
            }
        }
        let (mut left, mut others) = (self.uncommitted, 0);
        for store in self.performed.iter_mut().rev().filter(|s| s.group.is_none()) {
            match store.lane as usize == lane {
                true => store.group = Some(group),
                false => others += 1,
            }
            left -= 1;
            if left == 0 {
                break;
            }
        }
        self.uncommitted = others;
    }

    /// Whether a store is in a group that a wait for all but the last `pending` groups of its thread covers.
    pub fn covered(&self, store: &BulkStore, lane: usize, pending: u64) -> bool {
        store.lane as usize == lane && self.covers(store.group, lane, pending)
    }

    /// A store has been performed.
    pub fn note_performed(&mut self, store: &BulkStore) {
        let (lane, group, number) = (store.lane, store.group, store.number);
        self.uncommitted += usize::from(group.is_none());
        self.performed.push(Performed { lane, group, number });
    }

    fn covers(&self, group: Option<u64>, lane: usize, pending: u64) -> bool {
        group.is_some_and(|group| group < self.committed[lane].saturating_sub(pending))
    }

    /// The same of stores that have been performed: their numbers. They are forgotten.
    pub fn take_performed(&mut self, mask: u32, pending: u64) -> Vec<u64> {
        let mut performed = std::mem::take(&mut self.performed);
        let mut taken = vec![];
        performed.retain(|store| {
            let covered = mask >> store.lane & 1 == 1 && self.covers(store.group, store.lane as usize, pending);
            if covered {
                taken.push(store.number);
            }
            !covered
        });
        self.performed = performed;
        taken
    }
}
