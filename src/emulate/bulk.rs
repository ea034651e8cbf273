//! Bulk stores in flight: per-thread groups of a warp.
use super::clock::View;
use super::tensor_maps::TensorMap;
use crate::ptx::modifier::TensorRed;
use std::collections::VecDeque;

/// Where a bulk store goes.
#[derive(Clone, Debug)]
pub enum Destination {
    Linear {
        address: u64,
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
}

/// The bulk stores of a warp, oldest first, and how many groups each thread has committed.
#[derive(Default)]
pub struct BulkGroups {
    pub stores: VecDeque<BulkStore>,
    pub committed: [u64; 32],
}

impl BulkGroups {
    pub fn clear(&mut self) {
        self.stores.clear();
        self.committed = [0; 32];
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
    }

    /// Whether a store is in a group that a wait for all but the last `pending` groups of its thread covers.
    pub fn covered(&self, store: &BulkStore, lane: usize, pending: u64) -> bool {
        store.lane as usize == lane
            && store
                .group
                .is_some_and(|group| group < self.committed[lane].saturating_sub(pending))
    }
}
