//! Where what kernels print goes: to Python's `sys.stdout`, which may be a notebook's or a test's, else to file descriptor 1.
use crate::lock::lock;
use std::io::Write;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

/// Writes a text; false where it could not.
pub type Writer = Arc<dyn Fn(&str) -> bool + Send + Sync>;

static WRITER: RwLock<Option<Writer>> = RwLock::new(None);

/// How long a print waits until it is written. Python writes when it can have its lock, whose owner may wait for the very stream that
/// the print is on: then the text comes later.
const PATIENCE: Duration = Duration::from_secs(1);

/// Sets the writer; none: file descriptor 1.
pub fn set(writer: Option<Writer>) {
    *WRITER.write().unwrap_or_else(PoisonError::into_inner) = writer;
}

/// Has `text` written, one text after the other, and mostly waits for it.
pub fn write(text: String) {
    static QUEUE: Mutex<Option<Sender<(String, Sender<()>)>>> = Mutex::new(None);
    let (done, written) = channel();
    let left = {
        let mut queue = lock(&QUEUE);
        if queue.is_none() {
            let (sender, receiver) = channel::<(String, Sender<()>)>();
            let serve = move || {
                for (text, done) in receiver {
                    write_now(&text);
                    // The waiting print may have timed out.
                    let _ = done.send(());
                }
            };
            let started = std::thread::Builder::new().name("smalt-print".into()).spawn(serve);
            *queue = started.is_ok().then_some(sender);
        }
        match &*queue {
            Some(sender) => sender.send((text, done)).err().map(|refused| refused.0.0),
            None => Some(text),
        }
    };
    match left {
        // No thread, for want of memory or because the process ends.
        Some(text) => write_now(&text),
        None => drop(written.recv_timeout(PATIENCE)),
    }
}

fn write_now(text: &str) {
    let writer = WRITER.read().unwrap_or_else(PoisonError::into_inner).clone();
    if writer.is_some_and(|writer| writer(text)) {
        return;
    }
    let mut stdout = std::io::stdout().lock();
    // An error means that stdout is closed: nothing to report.
    let _ = stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush());
}
