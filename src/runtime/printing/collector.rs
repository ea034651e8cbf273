//! The thread that prints what launches on GPUs have left, and lets their streams go on.
//!
//! It reads memory and calls nothing of the driver's: a thread that queues launches may hold the driver's locks while a stream is full, which only
//! goes on when this thread has printed. While launches are pending it looks every so often; it sleeps when there are none.
use super::mailbox::{self, Look};
use crate::error::{Error, Fault};
use std::sync::OnceLock;
use std::thread::Thread;
use std::time::Duration;

/// Between two looks, when something was just printed or launched.
const SHORTEST: Duration = Duration::from_micros(20);
/// Between two looks where launches go on for long that print nothing.
const LONGEST: Duration = Duration::from_millis(1);

/// The thread, to be woken when a launch is queued.
pub fn get() -> Result<&'static Thread, Error> {
    static THREAD: OnceLock<Result<Thread, Error>> = OnceLock::new();
    let start = || {
        let started = std::thread::Builder::new()
            .name("smalt-collector".into())
            .spawn(collect);
        let started = started.map(|handle| handle.thread().clone());
        started.map_err(|error| {
            Error::new(
                Fault::Environment,
                format!("no thread could be started for what kernels print: {error}"),
            )
            .remedy("let the process have more threads (`ulimit -u`) or more memory, or leave prints and checks out")
        })
    };
    THREAD.get_or_init(start).as_ref().map_err(Clone::clone)
}

fn collect() {
    let mut pause = SHORTEST;
    loop {
        match mailbox::look_at_all() {
            Look::Printed => pause = SHORTEST,
            Look::Pending => {
                std::thread::sleep(pause);
                pause = (pause * 9 / 8).min(LONGEST);
            }
            Look::Idle => {
                std::thread::park();
                pause = SHORTEST;
            }
        }
    }
}
