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

struct Listener {
    name: String,
    device: i32,
    devices: u32,
    locations: Locations,
    word: &'static AtomicU64,
}

/// Who listens at which word, and words that are free. Pinned memory is never given back: a kernel may write it as long as its context
/// lives.
struct Words {
    listeners: Vec<Listener>,
    free: Vec<&'static AtomicU64>,
}

static WORDS_OF_ALL: Mutex<Words> = Mutex::new(Words {
    listeners: Vec::new(),
    free: Vec::new(),
});

/// A word that is listened at, until this is dropped: then what was launched with it is over.
pub struct Word(&'static AtomicU64);

impl Word {
    pub fn address(&self) -> u64 {
        std::ptr::from_ref(self.0) as u64
    }
}

impl Drop for Word {
    fn drop(&mut self) {
        // What was said is kept: the error that asks for it may be on its way.
        if self.0.load(Ordering::Acquire) == 0 {
            let mut words = lock(&WORDS_OF_ALL);
            words.listeners.retain(|listener| !std::ptr::eq(listener.word, self.0));
            words.free.push(self.0);
        }
    }
}

/// Where the kernel `name` writes its last words on a device, one of `devices`.
pub fn listen(name: &str, device: i32, devices: u32, locations: &Locations) -> Result<Word, Error> {
    listen_in(cuda::host_words, name, device, devices, locations)
}

fn listen_in(
    allocate: impl Fn(usize) -> Result<&'static [AtomicU64], Error>,
    name: &str,
    device: i32,
    devices: u32,
    locations: &Locations,
) -> Result<Word, Error> {
    let mut words = lock(&WORDS_OF_ALL);
    if words.free.is_empty() {
        words.free.extend(allocate(WORDS)?.iter());
    }
    let Some(word) = words.free.pop() else {
        return Err(Error::internal("pinned memory of no words"));
    };
    word.store(0, Ordering::Relaxed);
    words.listeners.push(Listener {
        name: name.into(),
        device,
        devices,
        locations: locations.clone(),
        word,
    });
    Ok(Word(word))
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
    let all = lock(&WORDS_OF_ALL);
    let said = all.listeners.iter().find_map(|listener| {
        let words = LastWords::of(listener.word.load(Ordering::Acquire))?;
        Some((listener, words))
    });
    let (listener, words) = said?;
    let mut value = json!(listener.locations.locate(&error_of(listener, words)));
    value["last_words"] = json!(true);
    Some(value)
}

fn error_of(listener: &Listener, words: LastWords) -> Error {
    let name = &listener.name;
    let (what, expected, got, loc) = match words {
        LastWords::NoDevice(device) => (
            format!("`{name}` waited longer than wait_timeout_ns for another device to begin"),
            format!("all {} devices of the mesh to launch it", listener.devices),
            format!(
                "device {device} of the mesh did not come (said by GPU {})",
                listener.device
            ),
            Loc::CALL_SITE,
        ),
        LastWords::Semaphore { op, value } => (
            format!("`{name}` waited longer than wait_timeout_ns for a semaphore"),
            format!("a count of at least {value}"),
            format!("less, on GPU {}", listener.device),
            Loc(op),
        ),
    };
    Error::new(Fault::Timeout, what)
        .expected(expected)
        .got(got)
        .remedy("run it on emulated devices, which show who waits for whom; this process cannot use the GPU any more: start it again")
        .at(loc)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_gone_listens_no_more_unless_something_was_said() {
        let allocate = |n: usize| {
            let words: Vec<AtomicU64> = (0..n).map(|_| AtomicU64::new(0)).collect();
            Ok(&*words.leak())
        };
        let listen = |name: &str| listen_in(allocate, name, 0, 2, &Locations::default()).unwrap();
        let counts = || {
            let words = lock(&WORDS_OF_ALL);
            (words.listeners.len(), words.free.len())
        };
        let first = listen("first");
        let before = counts();
        for _ in 0..4 * WORDS {
            drop(listen("many"));
        }
        assert_eq!(counts(), before);
        first.0.store(!0, Ordering::Release);
        let (listeners, free) = before;
        drop(first);
        assert_eq!(counts(), (listeners, free), "what was said is kept");
    }
}
