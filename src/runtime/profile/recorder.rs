//! Memory of a GPU for the profiles of launches on one stream, and a call behind each launch that takes what is there.
//!
//! Launches on a stream come one after the other, so one piece of memory is enough. It and the call live for ever, for the stream may come
//! to them when the call site is long gone; then they serve another one, once no launch is pending.
use super::Machine;
use crate::cuda::{self, DeviceMemory, HostCall};
use crate::error::Error;
use crate::lock::lock;
use crate::runtime::{Artifact, Locations};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

pub struct Recorder {
    device: i32,
    memory: DeviceMemory,
    /// Where the host reads it.
    pinned: &'static [AtomicU64],
    /// Whose profiles these are.
    owner: Mutex<Option<Owner>>,
    /// No call site has it.
    free: Mutex<bool>,
    /// Calls that the stream has yet to come to.
    pending: AtomicUsize,
    call: OnceLock<&'static HostCall>,
}

#[derive(Clone)]
struct Owner {
    artifact: Arc<Artifact>,
    locations: Locations,
}

static ALL: Mutex<Vec<&'static Recorder>> = Mutex::new(Vec::new());

/// Those of a call site: device, stream, and what is theirs.
#[derive(Default)]
pub struct Recorders(Mutex<Vec<((i32, usize), &'static Recorder)>>);

impl Recorders {
    /// The one for launches on a (device, stream) whose context is current.
    pub fn at(
        &self,
        place: (i32, usize),
        bytes: u64,
        artifact: &Arc<Artifact>,
        locations: &Locations,
    ) -> Result<&'static Recorder, Error> {
        let mut all = lock(&self.0);
        if let Some((_, recorder)) = all.iter().find(|(here, _)| *here == place) {
            return Ok(recorder);
        }
        let owner = Owner {
            artifact: artifact.clone(),
            locations: locations.clone(),
        };
        let made = open(place.0, bytes, owner)?;
        all.push((place, made));
        Ok(made)
    }
}

impl Drop for Recorders {
    fn drop(&mut self) {
        for (_, recorder) in lock(&self.0).iter() {
            *lock(&recorder.free) = true;
        }
    }
}

fn open(device: i32, bytes: u64, owner: Owner) -> Result<&'static Recorder, Error> {
    let words = bytes.div_ceil(8) as usize;
    let mut all = lock(&ALL);
    for recorder in all.iter().filter(|r| r.device == device && r.pinned.len() == words) {
        let mut free = lock(&recorder.free);
        if *free && recorder.pending.load(Ordering::Acquire) == 0 {
            *free = false;
            *lock(&recorder.owner) = Some(owner);
            return Ok(recorder);
        }
    }
    let recorder: &'static Recorder = Box::leak(Box::new(Recorder {
        device,
        memory: DeviceMemory::new(8 * words as u64)?,
        pinned: cuda::host_words(words)?,
        owner: Mutex::new(Some(owner)),
        free: Mutex::new(false),
        pending: AtomicUsize::new(0),
        call: OnceLock::new(),
    }));
    all.push(recorder);
    Ok(recorder)
}

impl Recorder {
    /// Where kernels find it.
    pub fn address(&self) -> u64 {
        self.memory.address()
    }

    /// A launch has been queued on `stream`: takes its profile behind it.
    pub fn read_behind(&'static self, stream: usize) -> Result<(), Error> {
        self.memory.read_behind(stream, self.pinned)?;
        let call = self.call.get_or_init(|| {
            HostCall::new(|| {
                self.write();
                self.pending.fetch_sub(1, Ordering::Release);
            })
        });
        self.pending.fetch_add(1, Ordering::Relaxed);
        call.queue(stream).inspect_err(|_| {
            self.pending.fetch_sub(1, Ordering::Release);
        })
    }

    fn write(&self) {
        let Some(owner) = lock(&self.owner).clone() else { return };
        let words: Vec<u64> = self.pinned.iter().map(|word| word.load(Ordering::Relaxed)).collect();
        super::write(&owner.artifact, &owner.locations, &words, Machine::Gpu, self.device);
    }
}
