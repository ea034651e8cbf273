//! What watches while the emulator runs: interrupts, `SMALT_TIMEOUT`, reports of long runs, findings of the checker.
//!
//! Nothing here takes the interpreter's lock, which the thread that waits for the run may hold (but on Python's main thread, for handlers
//! of signals): reports go to stderr.
use super::interrupt::Interrupts;
use super::{Artifact, Locations};
use crate::emulate::{Position, Watch};
use crate::error::{Error, Fault, Loc};
use crate::lock::lock;
use rustc_hash::FxHashSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Seconds between two reports of a run; tests do not wait as long for one.
const PERIOD: u64 = if cfg!(feature = "test-handlers") { 3 } else { 10 };
/// Findings that are remembered as reported.
const REMEMBERED: usize = 1 << 12;

pub struct Supervision<'a> {
    artifact: &'a Artifact,
    locations: &'a Locations,
    interrupts: Interrupts,
    start: Instant,
    timeout: Option<Duration>,
    /// Instructions of warps, over all threads.
    steps: AtomicU64,
    /// Seconds at which the next report is due.
    due: AtomicU64,
}

impl<'a> Supervision<'a> {
    /// `timeout`: how long the run may last.
    pub fn new(artifact: &'a Artifact, locations: &'a Locations, timeout: Option<Duration>) -> Supervision<'a> {
        Supervision {
            artifact,
            locations,
            interrupts: Interrupts::watch(),
            start: Instant::now(),
            timeout,
            steps: AtomicU64::new(0),
            due: AtomicU64::new(PERIOD),
        }
    }

    /// Whether the run has lasted as long as it may.
    pub fn is_over(&self) -> bool {
        self.timeout.is_some_and(|limit| self.start.elapsed() > limit)
    }

    /// `1.5 million instructions of warps; CTA (0, 0, 0), warp 1 is at kernel.py:12`
    fn progress(&self, at: Position) -> String {
        let millions = self.steps.load(Ordering::Relaxed) as f64 / 1e6;
        let [x, y, z] = at.cta;
        let line = self.line(at.loc);
        format!(
            "{millions:.1} million instructions of warps; CTA ({x}, {y}, {z}), warp {} is at {line}",
            at.warp
        )
    }

    fn line(&self, loc: Loc) -> String {
        self.locations.line(loc).unwrap_or_else(|| loc.to_string())
    }
}

impl Watch for Supervision<'_> {
    fn poll(&self, at: Position) -> Result<(), Error> {
        self.steps.fetch_add(at.steps, Ordering::Relaxed);
        let name = &self.artifact.compiled.name;
        if self.interrupts.happened() {
            return Err(Error::new(
                Fault::Interrupted,
                format!("the run of `{name}` in the emulator was interrupted"),
            )
            .got(self.progress(at)));
        }
        let spent = self.start.elapsed();
        if let Some(limit) = self.timeout.filter(|limit| spent > *limit) {
            return Err(
                Error::new(Fault::Timeout, format!("`{name}` ran too long in the emulator"))
                    .expected(format!("to end within SMALT_TIMEOUT={} s", limit.as_secs_f64()))
                    .got(self.progress(at))
                    .remedy("look for a loop whose condition never changes, or allow more time"),
            );
        }
        let due = self.due.load(Ordering::Relaxed);
        if spent.as_secs() >= due {
            let next = spent.as_secs() + PERIOD;
            let mine = self
                .due
                .compare_exchange(due, next, Ordering::Relaxed, Ordering::Relaxed);
            if mine.is_ok() {
                let seconds = spent.as_secs();
                eprintln!(
                    "smalt: `{name}` has run in the emulator for {seconds} s: {}",
                    self.progress(at)
                );
            }
        }
        Ok(())
    }

    fn look(&self) {
        self.interrupts.happened();
    }

    fn finding(&self, error: Error) {
        static REPORTED: Mutex<Option<FxHashSet<(String, String, String)>>> = Mutex::new(None);
        let line = self.line(error.loc.unwrap_or(Loc::CALL_SITE));
        let new = {
            let mut reported = lock(&REPORTED);
            let reported = reported.get_or_insert_default();
            if reported.len() >= REMEMBERED {
                reported.clear();
            }
            // Kernels that were given as PTX text have no descriptor to distinguish them.
            reported.insert((self.artifact.hash.clone(), self.artifact.compiled.name.clone(), line))
        };
        if new {
            let text = self.locations.describe(&error);
            let text = text.strip_prefix("smalt: ").unwrap_or(&text);
            eprintln!(
                "smalt: warning: {text}\n  in `{}`; reported once for this line",
                self.artifact.compiled.name
            );
        }
    }
}
