//! How long the CUDA execute handler takes on the host.
use std::sync::atomic::{AtomicU64, Ordering};

/// Calls of the CUDA execute handler: those that XLA makes, which are fewer than the launches where it replays a graph.
pub struct HandlerCalls {
    calls: AtomicU64,
    nanos: AtomicU64,
    /// How many took i·[`STEP`] nanoseconds or more, and less than the next; the last: or more.
    histogram: [AtomicU64; 512],
}

const STEP: u64 = 50;

impl HandlerCalls {
    const fn new() -> HandlerCalls {
        HandlerCalls {
            calls: AtomicU64::new(0),
            nanos: AtomicU64::new(0),
            histogram: [const { AtomicU64::new(0) }; 512],
        }
    }

    pub fn add(&self, nanos: u64) {
        self.calls.fetch_add(1, Ordering::Relaxed);
        self.nanos.fetch_add(nanos, Ordering::Relaxed);
        let bucket = (nanos / STEP).min(self.histogram.len() as u64 - 1) as usize;
        self.histogram[bucket].fetch_add(1, Ordering::Relaxed);
    }

    /// Counts since the last call of this, emptied.
    pub fn take(&self) -> (u64, u64, u64) {
        let calls = self.calls.swap(0, Ordering::Relaxed);
        let nanos = self.nanos.swap(0, Ordering::Relaxed);
        let (mut seen, mut median) = (0, 0);
        for (i, bucket) in self.histogram.iter().enumerate() {
            seen += bucket.swap(0, Ordering::Relaxed);
            if median == 0 && seen > 0 && 2 * seen >= calls {
                median = i as u64 * STEP + STEP / 2;
            }
        }
        (calls, nanos, median)
    }
}

pub fn handler_calls() -> &'static HandlerCalls {
    static CALLS: HandlerCalls = HandlerCalls::new();
    &CALLS
}
