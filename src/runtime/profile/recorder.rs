//! Memory of a GPU for the profiles of launches on one stream, and a call behind each launch that takes what is there.
use super::Machine;
use crate::cuda::{self, DeviceMemory, HostCall};
use crate::error::Error;
use crate::runtime::posts::{Owner, Pool, Post, Posts};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

pub struct Memory {
    memory: DeviceMemory,
    /// Where the host reads it.
    pinned: &'static [AtomicU64],
    call: OnceLock<&'static HostCall>,
}

pub type Recorder = Post<Memory>;
/// Those of a call site.
pub type Recorders = Posts<Memory>;

static ALL: Pool<Memory> = Pool::new();

/// The recorder of a call site for a device, and a stream of it; for profiles of that size.
pub fn at(
    recorders: &Recorders,
    place: (i32, Option<usize>),
    bytes: u64,
    owner: impl FnOnce() -> Owner,
) -> Result<&'static Recorder, Error> {
    let words = bytes.div_ceil(8) as usize;
    let make = || {
        Ok(Memory {
            memory: DeviceMemory::new(8 * words as u64)?,
            pinned: cuda::host_words(words)?,
            call: OnceLock::new(),
        })
    };
    recorders.at(place, &ALL, owner, |memory| memory.pinned.len() == words, make)
}

impl Recorder {
    /// Where kernels find it.
    pub fn address(&self) -> u64 {
        self.memory.memory.address()
    }

    /// A launch has been queued on `stream`: takes its profile behind it.
    pub fn read_behind(&'static self, stream: usize) -> Result<(), Error> {
        let Memory { memory, pinned, call } = &self.memory;
        memory.read_behind(stream, pinned)?;
        let call = call.get_or_init(|| {
            HostCall::new(|| {
                self.write();
                self.end();
            })
        });
        self.begin();
        call.queue(stream).inspect_err(|_| self.end())
    }

    fn write(&self) {
        let owner = self.owner();
        let words: Vec<u64> = self
            .memory
            .pinned
            .iter()
            .map(|word| word.load(Ordering::Relaxed))
            .collect();
        super::write(&owner.artifact, &owner.locations, &words, Machine::Gpu, self.device);
    }
}
