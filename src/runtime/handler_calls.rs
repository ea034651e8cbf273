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

    /// Calls, their nanoseconds, and the median.
    pub fn read(&self) -> (u64, u64, u64) {
        let (mut seen, mut median) = (0, 0);
        let calls = self.calls.load(Ordering::Relaxed);
        for (i, bucket) in self.histogram.iter().enumerate() {
            seen += bucket.load(Ordering::Relaxed);
            if seen > 0 && 2 * seen >= calls {
                median = i as u64 * STEP + STEP / 2;
                break;
            }
        }
        (calls, self.nanos.load(Ordering::Relaxed), median)
    }
}

pub fn handler_calls() -> &'static HandlerCalls {
    static CALLS: HandlerCalls = HandlerCalls::new();
    &CALLS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reading_changes_nothing() {
        let calls = HandlerCalls::new();
        assert_eq!(calls.read(), (0, 0, 0));
        for nanos in [120, 130, 9_000_000] {
            calls.add(nanos);
        }
        assert_eq!(calls.read(), (3, 9_000_250, 125));
        assert_eq!(calls.read(), (3, 9_000_250, 125));
    }
}
