//! Rounds of a test, in a process of their own: whatever a round does, the next one is run, and every failure is reported.
//!
//! `SMALT_FUZZ_N` is the number of rounds, `SMALT_FUZZ_SEED` the first seed. A failure is a line that names its seed, printed at once;
//! `SMALT_FUZZ_N=1 SMALT_FUZZ_SEED=…` repeats it. To use several cores, start the test with several ranges of seeds. The binary of the test
//! runs anywhere if `SMALT_SOURCE` names a folder with `proto/` and `tests/corpus/golden/`.
use super::environment;
use std::alloc::{GlobalAlloc, Layout, System};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{BufRead, BufReader};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

/// Beyond these the process ends.
const LAST_SECONDS: i64 = 60;
const LAST_BYTES: usize = 4 << 30;

/// Counts what is alive.
struct Counting;

static ALIVE: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

// SAFETY: the system's allocator does the work.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let alive = ALIVE.fetch_add(layout.size(), Relaxed) + layout.size();
        PEAK.fetch_max(alive, Relaxed);
        if alive > LAST_BYTES {
            // What is made of memory to say so is little.
            ALIVE.fetch_sub(layout.size(), Relaxed);
            return std::ptr::null_mut();
        }
        // SAFETY: as our caller promises.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        ALIVE.fetch_sub(layout.size(), Relaxed);
        // SAFETY: as our caller promises.
        unsafe { System.dealloc(at, layout) }
    }
    // The default copies, where the system moves pages.
    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        let alive = ALIVE.fetch_add(size, Relaxed) + size - layout.size();
        ALIVE.fetch_sub(layout.size(), Relaxed);
        PEAK.fetch_max(alive, Relaxed);
        if alive > LAST_BYTES {
            ALIVE.fetch_sub(size, Relaxed);
            ALIVE.fetch_add(layout.size(), Relaxed);
            return std::ptr::null_mut();
        }
        // SAFETY: as our caller promises.
        unsafe { System.realloc(at, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Processor time of this thread.
fn processor_time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: stores a time.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// The process ends by a signal if it takes more processor time than this from now on.
fn end_after(seconds: i64) {
    let once = libc::timeval {
        tv_sec: seconds,
        tv_usec: 0,
    };
    let never = libc::timeval { tv_sec: 0, tv_usec: 0 };
    // SAFETY: reads a time.
    unsafe {
        let timer = libc::itimerval {
            it_interval: never,
            it_value: once,
        };
        libc::setitimer(libc::ITIMER_PROF, &timer, std::ptr::null_mut());
    }
}

/// What one round of a test gives.
#[derive(Default)]
pub struct Round {
    /// A kind of outcome, which is counted.
    pub outcome: String,
    /// Instructions that were made.
    pub instructions: u64,
    /// Why it is refused, or what went wrong.
    pub text: String,
    /// Whatever helps who looks for the cause of a failure.
    pub details: String,
}

/// A round, and what it took.
pub struct Taken {
    pub time: Duration,
    pub bytes: usize,
    pub round: Round,
}

/// What all rounds gave.
pub struct Summary {
    pub rounds: u64,
    pub outcomes: BTreeMap<String, u64>,
    /// How often each text was given with an outcome.
    pub texts: BTreeMap<String, u64>,
    pub slowest: (Duration, u64),
    pub largest: (usize, u64),
    failures: u64,
}

impl Summary {
    pub fn count(&self, outcome: &str) -> u64 {
        self.outcomes.get(outcome).copied().unwrap_or(0)
    }
    /// Shows what there was, and panics if a round failed.
    pub fn finish(&self) {
        let mut line = format!("{} descriptors:", self.rounds);
        for (outcome, count) in &self.outcomes {
            let _ = write!(line, " {count} {outcome},");
        }
        let ((time, slow), (bytes, large)) = (self.slowest, self.largest);
        println!(
            "{line} slowest {time:?} (seed {slow}), largest {} MiB (seed {large})",
            bytes >> 20
        );
        if std::env::var_os("SMALT_FUZZ_SHOW").is_some() {
            self.texts.iter().for_each(|(text, count)| println!("{count:6} {text}"));
        }
        assert!(self.failures == 0, "{} of {} rounds failed", self.failures, self.rounds);
    }
}

/// Set in the process that runs the rounds.
const INNER: &str = "SMALT_FUZZ_INNER";
/// Starts the line of a round that begins, and of one that ends; the rest is separated by tabs.
const BEGINS: &str = "round begins\t";
const ENDS: &str = "round ends\t";

/// Runs `n` rounds (if the environment does not say otherwise) of the test `name`. `make` gives what runs one for a seed; `judge` says what is wrong
/// with it.
pub fn run<F: FnMut(u64) -> Round>(
    name: &str,
    n: u64,
    make: impl FnOnce() -> F,
    judge: impl Fn(&Taken) -> Option<String>,
) -> Summary {
    let (n, first) = (environment("SMALT_FUZZ_N", n), environment("SMALT_FUZZ_SEED", 1));
    if std::env::var_os(INNER).is_some() {
        inner(first..first + n, make());
        std::process::exit(0);
    }
    let mut summary = Summary {
        rounds: n,
        outcomes: BTreeMap::new(),
        texts: BTreeMap::new(),
        slowest: (Duration::ZERO, 0),
        largest: (0, 0),
        failures: 0,
    };
    let mut next = first;
    while next < first + n {
        let mut child = Command::new(std::env::current_exe().expect("we are running"))
            .args(["--exact", name, "--nocapture"])
            .env(INNER, "1")
            .env("SMALT_FUZZ_N", (first + n - next).to_string())
            .env("SMALT_FUZZ_SEED", next.to_string())
            .stdout(Stdio::piped())
            .spawn()
            .expect("it starts");
        let mut running = None;
        for line in BufReader::new(child.stdout.take().expect("a pipe")).lines() {
            let line = line.expect("a line");
            if let Some(seed) = line.strip_prefix(BEGINS) {
                let seed: u64 = seed.parse().expect("a seed");
                (running, next) = (Some(seed), seed + 1);
            } else if let (Some(seed), Some(rest)) = (running.take(), line.strip_prefix(ENDS)) {
                let taken = Taken::read(rest);
                summary.slowest = summary.slowest.max((taken.time, seed));
                summary.largest = summary.largest.max((taken.bytes, seed));
                if let Some(why) = judge(&taken) {
                    summary.failures += 1;
                    println!("seed {seed}: {why} ({})", taken.round.details);
                }
                *summary.outcomes.entry(taken.round.outcome).or_default() += 1;
                *summary.texts.entry(taken.round.text).or_default() += 1;
            }
        }
        let status = child.wait().expect("it ends");
        match running {
            Some(seed) => {
                summary.failures += 1;
                println!("seed {seed}: the process ended: {status}");
            }
            None => assert!(status.success() && next == first + n, "no round was running: {status}"),
        }
    }
    summary
}

/// The rounds themselves.
fn inner(seeds: std::ops::Range<u64>, mut round: impl FnMut(u64) -> Round) {
    for seed in seeds {
        println!("{BEGINS}{seed}");
        end_after(LAST_SECONDS);
        let before = ALIVE.load(Relaxed);
        PEAK.store(before, Relaxed);
        let start = processor_time();
        let round = catch_unwind(AssertUnwindSafe(|| round(seed))).unwrap_or_else(|_| Round {
            outcome: "panics".into(),
            ..Round::default()
        });
        let time = processor_time() - start;
        let bytes = PEAK.load(Relaxed).saturating_sub(before);
        let Round {
            outcome,
            instructions,
            text,
            details,
        } = round;
        let text = text.replace(['\n', '\t'], " ");
        println!(
            "{ENDS}{}\t{bytes}\t{outcome}\t{instructions}\t{text}\t{details}",
            time.as_nanos()
        );
    }
}

impl Taken {
    fn read(line: &str) -> Taken {
        let mut parts = line.split('\t');
        let mut part = || parts.next().expect("six parts");
        Taken {
            time: Duration::from_nanos(part().parse().expect("a time")),
            bytes: part().parse().expect("a number of bytes"),
            round: Round {
                outcome: part().to_owned(),
                instructions: part().parse().expect("a number of instructions"),
                text: part().to_owned(),
                details: part().to_owned(),
            },
        }
    }
}
