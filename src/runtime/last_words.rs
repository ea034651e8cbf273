//! What kernels say that give up on a GPU: a trap ends their context, and XLA knows only that.
//!
//! A kernel whose waits have a limit writes a word of pinned host memory before it traps. When an error of the driver comes to Python,
//! the words are looked at, and the error says who waited for whom.
use super::{Locations, printing};
use crate::cuda;
use crate::error::{Error, Fault, Loc};
use crate::lock::lock;
use crate::ptx::launch::LastWords;
use serde_json::{Value, json};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// Words of one allocation.
const WORDS: usize = 512;

struct Ear {
    name: String,
    device: i32,
    devices: u32,
    locations: Locations,
    word: &'static AtomicU64,
}

/// Ears, and words that are still free. Pinned memory is never given back: a kernel may write it as long as its context lives.
static EARS: Mutex<(Vec<Ear>, Vec<&'static AtomicU64>)> = Mutex::new((Vec::new(), Vec::new()));

/// Where the kernel `name` writes its last words on a device, one of `devices`.
pub fn listen(name: &str, device: i32, devices: u32, locations: &Locations) -> Result<u64, Error> {
    let mut ears = lock(&EARS);
    if ears.1.is_empty() {
        let words = cuda::host_words(WORDS)?;
        ears.1.extend(words.iter());
    }
    let Some(word) = ears.1.pop() else {
        return Err(Error::internal("pinned memory of no words"));
    };
    word.store(0, Ordering::Relaxed);
    ears.0.push(Ear {
        name: name.into(),
        device,
        devices,
        locations: locations.clone(),
        word,
    });
    Ok(std::ptr::from_ref(word) as u64)
}

/// What was said when the driver failed with `text`; none: nothing, or it is no error of the driver's.
pub fn heard(text: &str) -> Option<Value> {
    if !text.contains("CUDA_ERROR") {
        return None;
    }
    if let Some(mut value) = printing::mailbox::print_what_is_left() {
        value["last_words"] = json!(true);
        return Some(value);
    }
    let ears = lock(&EARS);
    let said = ears.0.iter().find_map(|ear| {
        let words = LastWords::of(ear.word.load(Ordering::Acquire))?;
        Some((ear, words))
    });
    let (ear, words) = said?;
    let mut value = json!(ear.locations.locate(&error_of(ear, words)));
    value["last_words"] = json!(true);
    Some(value)
}

fn error_of(ear: &Ear, words: LastWords) -> Error {
    let name = &ear.name;
    let (what, expected, got, loc) = match words {
        LastWords::NoDevice(device) => (
            format!("`{name}` waited longer than wait_timeout_ns for another device to begin"),
            format!("all {} devices of the mesh to launch it", ear.devices),
            format!("device {device} of the mesh did not come (said by GPU {})", ear.device),
            Loc::CALL_SITE,
        ),
        LastWords::Semaphore { op, value } => (
            format!("`{name}` waited longer than wait_timeout_ns for a semaphore"),
            format!("a count of at least {value}"),
            format!("less, on GPU {}", ear.device),
            Loc(op),
        ),
    };
    Error::new(Fault::Timeout, what)
        .expected(expected)
        .got(got)
        .remedy("run it on emulated devices, which show who waits for whom; this process cannot use the GPU any more: start it again")
        .at(loc)
}
