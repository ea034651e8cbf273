//! Pinned memory that a kernel on a GPU prints to, and that the host empties when a launch is over.
//!
//! A call on the stream, behind the launch, takes what is there. Memory and call live for ever, for the stream may come to them when the
//! call site is long gone; then they serve another one, once no launch is pending.
use super::records::{self, Said};
use super::sink;
use crate::cuda::{self, HostCall};
use crate::error::Error;
use crate::lock::lock;
use crate::ptx::launch::Printer;
use crate::runtime::{Artifact, Locations};
use serde_json::{Value, json};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

pub struct Mailbox {
    memory: &'static [AtomicU64],
    /// Whose prints these are, and on which device.
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
    device: i32,
}

static ALL: Mutex<Vec<&'static Mailbox>> = Mutex::new(Vec::new());

/// The mailboxes of a call site, one for each device.
#[derive(Default)]
pub struct Mailboxes {
    slots: OnceLock<Box<[OnceLock<&'static Mailbox>]>>,
}

impl Mailboxes {
    /// The one for `device`, whose context is current. An atomic load when it is there.
    pub fn at(&self, device: i32, artifact: &Arc<Artifact>, locations: &Locations) -> Result<&'static Mailbox, Error> {
        let slots = match self.slots.get() {
            Some(slots) => slots,
            None => {
                let count = cuda::devices()?.len();
                self.slots.get_or_init(|| (0..count).map(|_| OnceLock::new()).collect())
            }
        };
        let slot = usize::try_from(device).ok().and_then(|device| slots.get(device));
        let slot = slot.ok_or_else(|| Error::internal(format!("a launch on device {device} of {}", slots.len())))?;
        if let Some(mailbox) = slot.get() {
            return Ok(mailbox);
        }
        let made = open(Owner {
            artifact: artifact.clone(),
            locations: locations.clone(),
            device,
        })?;
        let kept = slot.get_or_init(|| made);
        if !std::ptr::eq(*kept, made) {
            *lock(&made.free) = true;
        }
        Ok(kept)
    }
}

impl Drop for Mailboxes {
    fn drop(&mut self) {
        let slots = self.slots.get().map(|slots| &slots[..]).unwrap_or_default();
        for mailbox in slots.iter().filter_map(OnceLock::get) {
            *lock(&mailbox.free) = true;
        }
    }
}

/// A mailbox for a kernel's prints on a device.
fn open(owner: Owner) -> Result<&'static Mailbox, Error> {
    let mut all = lock(&ALL);
    for mailbox in all.iter() {
        let mut free = lock(&mailbox.free);
        if *free && mailbox.pending.load(Ordering::Acquire) == 0 {
            *free = false;
            *lock(&mailbox.owner) = Some(owner);
            return Ok(mailbox);
        }
    }
    let contents = records::empty(crate::runtime::env::get()?.print_bytes);
    let memory = cuda::host_words(contents.len())?;
    for (word, value) in memory.iter().zip(contents) {
        word.store(value, Ordering::Relaxed);
    }
    let mailbox: &'static Mailbox = Box::leak(Box::new(Mailbox {
        memory,
        owner: Mutex::new(Some(owner)),
        free: Mutex::new(false),
        pending: AtomicUsize::new(0),
        call: OnceLock::new(),
    }));
    all.push(mailbox);
    Ok(mailbox)
}

impl Mailbox {
    /// Where kernels find it.
    pub fn address(&self) -> u64 {
        self.memory.as_ptr() as u64
    }

    /// A launch that may print has been queued on `stream`: empties the mailbox behind it.
    pub fn empty_behind(&'static self, stream: usize) -> Result<(), Error> {
        let call = self.call.get_or_init(|| {
            HostCall::new(|| {
                self.print();
                self.pending.fetch_sub(1, Ordering::Release);
            })
        });
        self.pending.fetch_add(1, Ordering::Relaxed);
        call.queue(stream).inspect_err(|_| {
            self.pending.fetch_sub(1, Ordering::Release);
        })
    }

    /// Prints what there is; the check that failed, if one did.
    fn print(&self) -> Option<Value> {
        let taken = self.take()?;
        let owner = lock(&self.owner).clone()?;
        let said = said(&owner.artifact, &taken, owner.device);
        if !said.text.is_empty() {
            sink::write(said.text);
        }
        said.failed.map(|error| json!(owner.locations.locate(&error)))
    }

    /// What kernels have left, if anything; there is room for more then.
    fn take(&self) -> Option<Vec<u32>> {
        let word = |at: u64| &self.memory[(at / 8) as usize];
        let asked = word(Printer::CURSOR).load(Ordering::Acquire);
        if asked == 0 {
            return None;
        }
        let capacity = word(Printer::CAPACITY).load(Ordering::Relaxed);
        let used = (Printer::RECORDS + asked.min(capacity)).div_ceil(8) as usize;
        let words = self.memory[..used].iter().map(|word| word.load(Ordering::Relaxed));
        let taken = words.flat_map(|word| [word as u32, (word >> 32) as u32]).collect();
        for word in &self.memory[..used] {
            word.store(0, Ordering::Relaxed);
        }
        word(Printer::CAPACITY).store(capacity, Ordering::Release);
        Some(taken)
    }
}

/// What a launch on a device has said.
pub fn said(artifact: &Artifact, memory: &[u32], device: i32) -> Said {
    let compiled = &artifact.compiled;
    let device = (device > 0 || compiled.launch.mesh.is_some()).then_some(device);
    records::said(&compiled.name, &compiled.prints, memory, device)
}

/// Prints what kernels have left whose stream will not come to its end, for a GPU has failed; the check that failed, if that is why.
pub fn print_what_is_left() -> Option<Value> {
    let all = lock(&ALL).clone();
    all.iter().fold(None, |failed, mailbox| {
        let here = mailbox.print();
        failed.or(here)
    })
}
