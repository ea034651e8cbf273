//! How to run, who looks on, and what came of it.
use super::global::POISON_BYTE;
use super::trace::Trace;
use crate::error::{Error, Loc, RefId};
use crate::lock::lock;
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

/// When asynchronous operations take effect.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AgentOrder {
    /// At issue.
    Earliest,
    /// When somebody waits for them and nobody else can run: a missing wait gives a wrong number.
    Latest,
    /// At random between the two; warps take turns at random, too.
    Seeded(u64),
}

impl AgentOrder {
    pub fn is_seeded(self) -> bool {
        matches!(self, AgentOrder::Seeded(_))
    }
}

/// What becomes of what the checker finds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Check {
    /// It ends the run.
    #[default]
    Error,
    /// [`Watch::finding`] is told, once per instruction and machine, and the run goes on.
    Warn,
    /// Nothing.
    Off,
}

/// What becomes of reads of memory that nothing wrote: shared memory, and buffers that begin undefined.
#[derive(Clone, Debug, Default)]
pub enum Undefined {
    /// They are errors.
    #[default]
    Denied,
    Ignored,
    /// They are noted, where a checker listens.
    Noted(Arc<Noted>),
}

/// What a run has seen of undefined memory.
#[derive(Default, Debug)]
pub struct Noted {
    /// Instructions that read some.
    reads: Mutex<BTreeSet<Loc>>,
    /// By buffer that began undefined, for each 4 bytes which of them have been written.
    pub(super) written: Mutex<Vec<Option<Vec<u8>>>>,
    /// Who last stored to [`Options::watched`].
    pub(super) stored: Mutex<Option<Loc>>,
}

impl Noted {
    pub(super) fn read(&self, at: Loc) {
        lock(&self.reads).insert(at);
    }

    pub fn reads(&self) -> Vec<Loc> {
        lock(&self.reads).iter().copied().collect()
    }

    pub fn stored(&self) -> Option<Loc> {
        *lock(&self.stored)
    }

    /// The first of a buffer's bytes that differ between two runs, if something wrote it and it `counts`.
    pub fn difference(&self, buffer: usize, one: &[u8], other: &[u8], counts: impl Fn(usize) -> bool) -> Option<usize> {
        let written = lock(&self.written);
        let granules = written.get(buffer).and_then(Option::as_ref);
        let is_written = |byte: usize| granules.is_none_or(|granules| granules[byte / 4] >> (byte % 4) & 1 == 1);
        let mut at = 0;
        for (one, other) in one.chunks(4096).zip(other.chunks(4096)) {
            if one != other {
                let found = (0..one.len()).find(|i| one[*i] != other[*i] && is_written(at + i) && counts(at + i));
                if let Some(i) = found {
                    return Some(at + i);
                }
            }
            at += 4096;
        }
        None
    }

    /// Of a buffer that began undefined, and of which something was written: its bytes that were not, how many and the first.
    pub fn unwritten(&self, buffer: usize, bytes: usize) -> Option<(usize, usize)> {
        let written = lock(&self.written);
        let granules = written.get(buffer)?.as_ref()?;
        if granules.iter().all(|granule| *granule == 0) {
            return None;
        }
        let gaps = granules.iter().enumerate().filter(|(_, granule)| **granule != 0xf);
        let bytes_of = |(at, granule): (usize, &u8)| {
            let granule = *granule;
            (0..4).filter(move |i| granule >> i & 1 == 0).map(move |i| 4 * at + i)
        };
        let mut missing = gaps.flat_map(bytes_of).filter(|byte| *byte < bytes);
        let first = missing.next()?;
        Some((1 + missing.count(), first))
    }
}

/// What the user calls the kernel's buffers and barriers: messages say it behind their numbers.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Names {
    /// By number, e.g. `input f32[64]`.
    pub buffers: Vec<(RefId, String)>,
    /// Of a launch on several devices: how many buffers each has; device d's come behind those of the devices before.
    pub per_device: usize,
    /// What lies in a CTA's shared memory, by offset.
    pub smem: Vec<SmemName>,
}

/// Something in a CTA's shared memory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SmemName {
    pub offset: u32,
    pub bytes: u64,
    pub of: RefId,
    /// `f32[64], op7`.
    pub text: String,
    /// Of barriers, how many arrivals of the machine's the user counts as one.
    pub per_arrival: u32,
}

impl Names {
    /// `buffer 3 (input f32[64])`, `buffer 3 (input f32[64]) of device 1`.
    pub fn buffer(&self, index: usize) -> String {
        if self.per_device > 0 {
            let (device, own) = (index / self.per_device, index % self.per_device);
            return format!("{} of device {device}", self.own_buffer(own));
        }
        self.own_buffer(index)
    }

    fn own_buffer(&self, index: usize) -> String {
        match self.buffers.get(index) {
            Some((of, name)) => format!("{of}buffer {index} ({name})"),
            None => format!("buffer {index}"),
        }
    }

    /// `mbarrier at shared offset 64 (number 1 of 4 barriers, op7)`.
    pub fn mbarrier(&self, offset: u32) -> String {
        match self.at(offset) {
            Some(it) => {
                let number = (offset - it.offset) / 8;
                format!(
                    "mbarrier at shared offset {offset} ({}number {number} of {})",
                    it.of, it.text
                )
            }
            None => format!("mbarrier at shared offset {offset}"),
        }
    }

    /// How many arrivals at an mbarrier the user counts as one: each warp of a warpgroup makes one, say.
    pub fn per_arrival(&self, offset: u32) -> u32 {
        self.at(offset).map_or(1, |it| it.per_arrival.max(1))
    }

    /// `1 of 2 arrivals`, as the user counts them: those still to come.
    pub fn arrivals(&self, offset: u32, pending: u32, expected: u32) -> String {
        let unit = self.per_arrival(offset);
        let (left, all) = (pending.div_ceil(unit), expected / unit);
        match pending.is_multiple_of(unit) {
            true => format!("{left} of {all} arrivals"),
            false => format!("{left} of {all} arrivals (of one of these some warps have arrived)"),
        }
    }

    /// `at shared offset 64 (4 barriers, op7)`.
    pub fn place(&self, offset: u32) -> String {
        format!("at shared offset {offset}{}", self.what(offset))
    }

    /// `shared bytes 64..128 (f32[64], op7)`.
    pub fn bytes(&self, from: u32, to: u32) -> String {
        format!("shared bytes {from}..{to}{}", self.what(from))
    }

    fn what(&self, offset: u32) -> String {
        self.at(offset)
            .map_or(String::new(), |it| format!(" ({}{})", it.of, it.text))
    }

    /// What lies at an offset.
    fn at(&self, offset: u32) -> Option<&SmemName> {
        let inside = |it: &&SmemName| offset >= it.offset && u64::from(offset - it.offset) < it.bytes;
        self.smem.iter().find(inside)
    }
}

/// Where a run is, for who looks on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Position {
    /// The instruction that some warp is at.
    pub loc: Loc,
    pub cta: [u32; 3],
    pub warp: u32,
    /// Micro-ops of warps since this machine last said so.
    pub steps: u64,
}

/// Who looks on: asked every few milliseconds by each of the run's threads.
pub trait Watch: Sync {
    /// An error ends the run; its location is filled in.
    fn poll(&self, at: Position) -> Result<(), Error>;
    /// The thread that called for the run waits for the others.
    fn look(&self) {}
    /// What the checker found under [`Check::Warn`].
    fn finding(&self, error: Error);
}

/// Nobody looks on.
pub struct Unwatched;

impl Watch for Unwatched {
    fn poll(&self, _: Position) -> Result<(), Error> {
        Ok(())
    }
    fn finding(&self, _: Error) {}
}

/// How to run a kernel.
#[derive(Clone, Debug)]
pub struct Options {
    pub agents: AgentOrder,
    /// Of the schedule under [`AgentOrder::Seeded`]; set from it by [`Options::with_agents`].
    pub seed: u64,
    /// SMs of the machine.
    pub sms: u32,
    /// CTAs per SM; `None`: what shared memory, threads and registers allow.
    pub occupancy: Option<u32>,
    /// Instructions of warps before a run counts as endless, per host thread.
    pub max_steps: u64,
    /// Rounds of polls that see no change before a run counts as deadlocked.
    pub max_polls: u64,
    /// Host threads.
    pub threads: usize,
    pub undefined: Undefined,
    /// What undefined memory holds, byte by byte. The default is a NaN of every float type, −1 of every integer type.
    pub poison: u8,
    /// What registers hold at the start.
    pub register_poison: u32,
    /// An address of global memory: who stores to it is noted ([`Noted::stored`]).
    pub watched: Option<u64>,
    pub check: Check,
    pub names: Arc<Names>,
    /// Where to record what happens when. Times are of one machine: to be used with one host thread.
    pub trace: Option<Arc<Trace>>,
}

impl Default for Options {
    /// An H100: 132 SMs.
    fn default() -> Options {
        Options {
            agents: AgentOrder::Latest,
            seed: 0,
            sms: 132,
            occupancy: None,
            max_steps: 1 << 40,
            max_polls: 1 << 20,
            threads: std::thread::available_parallelism().map_or(1, |n| n.get()),
            undefined: Undefined::Denied,
            poison: POISON_BYTE,
            register_poison: 0xdead_beef,
            watched: None,
            check: Check::Error,
            names: Arc::default(),
            trace: None,
        }
    }
}

impl Options {
    pub(super) fn denies_undefined(&self) -> bool {
        matches!(self.undefined, Undefined::Denied)
    }

    /// Where reads of undefined memory are to be noted.
    pub(super) fn notes_undefined(&self) -> Option<&Arc<Noted>> {
        match &self.undefined {
            Undefined::Noted(noted) => Some(noted),
            Undefined::Denied | Undefined::Ignored => None,
        }
    }

    pub fn with_agents(self, agents: AgentOrder) -> Options {
        let seed = if let AgentOrder::Seeded(seed) = agents {
            seed
        } else {
            self.seed
        };
        Options { agents, seed, ..self }
    }
}

/// What a run did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Micro-ops of warps.
    pub steps: u64,
    pub ctas: u64,
    /// CTAs that are resident at once on the modelled machine.
    pub resident_ctas: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrivals_are_counted_as_the_user_counts_them() {
        let barriers = |offset, per_arrival| SmemName {
            offset,
            bytes: 16,
            of: RefId::default(),
            text: "2 barriers".into(),
            per_arrival,
        };
        let names = Names {
            smem: vec![barriers(64, 4), barriers(80, 1), barriers(96, 0)],
            ..Names::default()
        };
        assert_eq!(names.arrivals(72, 8, 12), "2 of 3 arrivals");
        assert_eq!(
            names.arrivals(72, 7, 12),
            "2 of 3 arrivals (of one of these some warps have arrived)"
        );
        for offset in [80, 96, 200] {
            assert_eq!(names.arrivals(offset, 7, 12), "7 of 12 arrivals");
        }
    }
}
