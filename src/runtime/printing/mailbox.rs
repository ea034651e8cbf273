//! Pinned memory that a kernel on a GPU prints to, and that the host empties when a launch is over.
//!
//! Behind each launch its stream waits until the mailbox is empty, which it mostly is ([`Gate`]). [`collector`] sees that a stream has
//! come there and waits, prints what there is, and lets it go on.
use super::collector;
use super::records::{self, Printed};
use super::sink;
use crate::cuda::{self, Gate, HostCall};
use crate::error::Error;
use crate::lock::lock;
use crate::ptx::launch::Printer;
use crate::runtime::Artifact;
use crate::runtime::posts::{Owner, Pool, Post, Posts};
use serde_json::{Value, json};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock};

pub struct Memory {
    /// As [`Printer`] has it.
    words: &'static [AtomicU64],
    gate: Gate,
    /// Launches so far.
    launches: AtomicU64,
    /// Held while one is queued.
    queueing: Mutex<()>,
    /// Those that were seen to be over.
    seen: AtomicU64,
    /// Held while it is emptied.
    emptying: Mutex<()>,
    /// Where there are no gates.
    call: OnceLock<&'static HostCall>,
}

pub type Mailbox = Post<Memory>;
/// The mailboxes of a call site.
pub type Mailboxes = Posts<Memory>;

static ALL: Pool<Memory> = Pool::new();

/// What a look at a mailbox finds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Look {
    /// No launch is pending.
    Idle,
    Pending,
    Printed,
}

/// The mailbox of a call site for a device, and a stream of it.
pub fn at(
    mailboxes: &Mailboxes,
    place: (i32, Option<usize>),
    owner: impl FnOnce() -> Owner,
) -> Result<&'static Mailbox, Error> {
    mailboxes.at(place, &ALL, owner, |_| true, Memory::new)
}

impl Memory {
    fn new() -> Result<Memory, Error> {
        let contents = records::empty(crate::runtime::env::get()?.print_bytes);
        let own = contents.len();
        let words = cuda::host_words(own + 2)?;
        for (word, value) in words.iter().zip(contents) {
            word.store(value, Ordering::Relaxed);
        }
        let gate = Gate {
            came: &words[own],
            closed: &words[(Printer::CURSOR / 8) as usize],
            passed: &words[own + 1],
        };
        Ok(Memory {
            words: &words[..own],
            gate,
            launches: AtomicU64::new(0),
            queueing: Mutex::new(()),
            seen: AtomicU64::new(0),
            emptying: Mutex::new(()),
            call: OnceLock::new(),
        })
    }
}

impl Mailbox {
    /// Where kernels find it.
    pub fn address(&self) -> u64 {
        self.memory.words.as_ptr() as u64
    }

    /// Queues a launch that may print on `stream`, as `launch` does: what is queued behind it goes on when the mailbox is empty.
    pub fn queue(&'static self, stream: usize, launch: impl FnOnce() -> Result<(), Error>) -> Result<(), Error> {
        // A stream that is never let through would hang.
        let collector = collector::get()?;
        let memory = &self.memory;
        let _queueing = lock(&memory.queueing);
        launch()?;
        let number = memory.launches.load(Ordering::Relaxed) + 1;
        self.begin();
        let ends = |_: &Error| self.end();
        if memory.call.get().is_none() && memory.gate.queue(stream, number).inspect_err(ends)? {
            memory.launches.store(number, Ordering::Release);
            collector.unpark();
            return Ok(());
        }
        let call = memory.call.get_or_init(|| {
            HostCall::new(|| {
                self.print();
                self.end();
            })
        });
        call.queue(stream).inspect_err(ends)
    }

    /// Prints what a launch has left that is over.
    fn look(&self) -> Look {
        let memory = &self.memory;
        let launches = memory.launches.load(Ordering::Acquire);
        let (look, passed) = look_at(&memory.gate, launches, |word| word.load(Ordering::Acquire));
        for _ in memory.seen.swap(passed, Ordering::Relaxed)..passed {
            self.end();
        }
        if look == Look::Printed {
            self.print();
        }
        look
    }

    /// Prints what there is, and opens the gate; the check that failed, if one did.
    fn print(&self) -> Option<Value> {
        let _emptying = lock(&self.memory.emptying);
        let taken = self.take()?;
        let owner = self.owner();
        let printed = printed(&owner.artifact, &taken, self.device);
        if !printed.text.is_empty() {
            sink::write(printed.text);
        }
        self.memory.gate.closed.store(0, Ordering::Release);
        printed.failed.map(|error| json!(owner.locations.locate(&error)))
    }

    /// What kernels have left, if anything. There is room for more, but for the cursor.
    fn take(&self) -> Option<Vec<u32>> {
        let words = self.memory.words;
        let word = |at: u64| &words[(at / 8) as usize];
        let reserved = word(Printer::CURSOR).load(Ordering::Acquire);
        if reserved == 0 {
            return None;
        }
        let capacity = word(Printer::CAPACITY).load(Ordering::Relaxed);
        let used = (Printer::RECORDS + reserved.min(capacity)).div_ceil(8) as usize;
        let taken = words[..used].iter().map(|word| word.load(Ordering::Relaxed));
        let taken = taken.flat_map(|word| [word as u32, (word >> 32) as u32]).collect();
        word(Printer::DROPPED).store(0, Ordering::Relaxed);
        for word in &words[(Printer::RECORDS / 8) as usize..used] {
            word.store(0, Ordering::Relaxed);
        }
        Some(taken)
    }
}

/// What there is behind a gate to which so many launches have been queued, and how many were seen to have passed it. `read`: a word now.
fn look_at(gate: &Gate, launches: u64, mut read: impl FnMut(&'static AtomicU64) -> u64) -> (Look, u64) {
    // In this order: if a stream has come to the gate and not passed it, then what closes it is of a launch that is over.
    let is_closed = read(gate.closed) != 0;
    let came = read(gate.came);
    let passed = read(gate.passed);
    let look = match (is_closed && came > passed, passed < launches) {
        (true, _) => Look::Printed,
        (false, true) => Look::Pending,
        (false, false) => Look::Idle,
    };
    (look, passed)
}

/// What a launch on a device has printed.
pub fn printed(artifact: &Artifact, memory: &[u32], device: i32) -> Printed {
    let compiled = &artifact.compiled;
    let device = (device > 0 || compiled.launch.mesh.is_some()).then_some(device);
    records::printed(&compiled.name, &compiled.prints, memory, device)
}

/// Looks at all of them.
pub fn look_at_all() -> Look {
    let looks = ALL.all().into_iter().map(Mailbox::look);
    looks.fold(Look::Idle, |found, look| match (found, look) {
        (Look::Printed, _) | (_, Look::Printed) => Look::Printed,
        (Look::Pending, _) | (_, Look::Pending) => Look::Pending,
        (Look::Idle, Look::Idle) => Look::Idle,
    })
}

/// Prints what kernels have left whose stream will not come to its end, for a GPU has failed; the check that failed, if that is why.
pub fn print_remaining() -> Option<Value> {
    ALL.all().into_iter().fold(None, |failed, mailbox| {
        let here = mailbox.print();
        failed.or(here)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a stream does with some launches, step by step.
    #[derive(Clone, Copy, PartialEq, Debug)]
    enum Step {
        Print,
        Come(u64),
        Pass(u64),
    }

    struct Stream {
        gate: Gate,
        steps: Vec<Step>,
        done: usize,
    }

    impl Stream {
        /// `prints`: how many times each launch prints.
        fn new(prints: &[usize]) -> Stream {
            let word = || &*Box::leak(Box::new(AtomicU64::new(0)));
            let steps = (1..).zip(prints).flat_map(|(number, prints)| {
                let prints = std::iter::repeat_n(Step::Print, *prints);
                prints.chain([Step::Come(number), Step::Pass(number)])
            });
            Stream {
                gate: Gate {
                    came: word(),
                    closed: word(),
                    passed: word(),
                },
                steps: steps.collect(),
                done: 0,
            }
        }

        fn waits(&self) -> bool {
            matches!(self.steps.get(self.done), Some(Step::Pass(_))) && self.gate.closed.load(Ordering::Relaxed) != 0
        }

        /// As many steps, unless it waits or has come to its end.
        fn go(&mut self, steps: usize) {
            for _ in 0..steps {
                if self.waits() {
                    return;
                }
                match self.steps.get(self.done) {
                    Some(Step::Print) => drop(self.gate.closed.fetch_add(32, Ordering::Relaxed)),
                    Some(Step::Come(number)) => self.gate.came.store(*number, Ordering::Relaxed),
                    Some(Step::Pass(number)) => self.gate.passed.store(*number, Ordering::Relaxed),
                    None => return,
                }
                self.done += 1;
            }
        }
    }

    /// Looks while the stream goes on between any two reads: what is found to be over is over, and waits are found.
    #[test]
    fn what_is_printed_is_of_launches_that_are_over() {
        for prints in [[0, 0, 2], [2, 0, 1], [0, 3, 0], [1, 1, 1], [0, 0, 0]] {
            let all = Stream::new(&prints).steps.len();
            for way in 0..(all + 1).pow(4) {
                let mut stream = Stream::new(&prints);
                let mut pauses = (0..4).map(|i| way / (all + 1).pow(i) % (all + 1));
                stream.go(pauses.next().unwrap());
                let waited = stream.waits();
                let gate = stream.gate;
                let (look, passed) = look_at(&gate, prints.len() as u64, |word| {
                    stream.go(pauses.next().unwrap());
                    word.load(Ordering::Relaxed)
                });
                assert!(look != Look::Printed || stream.waits(), "{prints:?}, {way}");
                assert!(look == Look::Printed || !waited, "{prints:?}, {way}");
                assert_eq!(look == Look::Idle, passed == prints.len() as u64, "{prints:?}, {way}");
            }
        }
    }
}
