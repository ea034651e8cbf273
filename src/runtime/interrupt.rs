//! Ctrl-C during a run of the emulator.
//!
//! Python's own handler only notes the signal; the `KeyboardInterrupt` is raised when the main thread is next in the
//! interpreter. During a run it is not: it waits in XLA, for a thread of XLA's that runs the kernel and must not take the
//! interpreter's lock. So, as long as a run lasts, a handler of ours stands before the one it finds: it counts, and calls
//! that. The run sees the count and ends; the main thread comes back to the interpreter, which raises.
use crate::lock::lock;
use std::sync::atomic::{AtomicI32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard};

/// Interrupts since the process started, as far as they came during runs.
static COUNT: AtomicU64 = AtomicU64::new(0);
/// The handler that ours calls, and its flags.
static NEXT: AtomicUsize = AtomicUsize::new(0);
static NEXT_FLAGS: AtomicI32 = AtomicI32::new(0);
/// Runs that want to know.
static RUNS: Mutex<u32> = Mutex::new(0);

/// While it lives, interrupts are counted.
pub struct Interrupts {
    before: u64,
}

impl Interrupts {
    pub fn watch() -> Interrupts {
        let mut runs = runs();
        *runs += 1;
        if *runs == 1 {
            install();
        }
        Interrupts {
            before: COUNT.load(Ordering::Relaxed),
        }
    }

    /// Whether the user has interrupted since [`Interrupts::watch`].
    pub fn happened(&self) -> bool {
        COUNT.load(Ordering::Relaxed) != self.before
    }
}

impl Drop for Interrupts {
    fn drop(&mut self) {
        let mut runs = runs();
        *runs -= 1;
        if *runs == 0 {
            remove();
        }
    }
}

fn runs() -> MutexGuard<'static, u32> {
    lock(&RUNS)
}

type Action = libc::sigaction;

/// What SIGINT does now.
fn current() -> Option<Action> {
    // SAFETY: all zeros is a valid `sigaction`.
    let mut action: Action = unsafe { std::mem::zeroed() };
    // SAFETY: asks only, and stores the answer.
    let asked = unsafe { libc::sigaction(libc::SIGINT, std::ptr::null(), &mut action) };
    (asked == 0).then_some(action)
}

fn ours() -> usize {
    count as extern "C" fn(_, _, _) as usize
}

fn install() {
    let Some(found) = current() else { return };
    // The default ends the process, which is prompt enough; who ignores the signal means it. Ours may stand already, where
    // somebody kept it.
    if [libc::SIG_DFL, libc::SIG_IGN, ours()].contains(&found.sa_sigaction) {
        return;
    }
    NEXT.store(found.sa_sigaction, Ordering::Relaxed);
    NEXT_FLAGS.store(found.sa_flags, Ordering::Relaxed);
    let mut action = found;
    action.sa_sigaction = ours();
    action.sa_flags |= libc::SA_SIGINFO;
    // SAFETY: `count` does nothing that a signal handler may not, and what it calls was a handler before.
    unsafe { libc::sigaction(libc::SIGINT, &action, std::ptr::null_mut()) };
}

fn remove() {
    // Who has taken the signal meanwhile keeps it; if that one calls ours, it goes on to the right handler.
    let Some(mut action) = current().filter(|action| action.sa_sigaction == ours()) else {
        return;
    };
    action.sa_sigaction = NEXT.load(Ordering::Relaxed);
    action.sa_flags = NEXT_FLAGS.load(Ordering::Relaxed);
    // SAFETY: the handler that `install` found.
    unsafe { libc::sigaction(libc::SIGINT, &action, std::ptr::null_mut()) };
}

extern "C" fn count(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    COUNT.fetch_add(1, Ordering::Relaxed);
    let next = NEXT.load(Ordering::Relaxed);
    if NEXT_FLAGS.load(Ordering::Relaxed) & libc::SA_SIGINFO != 0 {
        type Full = extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void);
        // SAFETY: `install` took it from a `sigaction` with SA_SIGINFO.
        let next: Full = unsafe { std::mem::transmute(next) };
        next(signal, info, context);
    } else {
        // SAFETY: `install` took it from a `sigaction` without SA_SIGINFO; neither SIG_DFL nor SIG_IGN.
        let next: extern "C" fn(libc::c_int) = unsafe { std::mem::transmute(next) };
        next(signal);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU32;

    static SEEN: AtomicU32 = AtomicU32::new(0);
    extern "C" fn others(_: libc::c_int) {
        SEEN.fetch_add(1, Ordering::Relaxed);
    }

    #[test]
    fn a_run_sees_interrupts_and_so_does_the_handler_that_was_there() {
        // SAFETY: all zeros is a valid `sigaction`.
        let mut action: Action = unsafe { std::mem::zeroed() };
        action.sa_sigaction = others as extern "C" fn(_) as usize;
        // SAFETY: `others` is a handler without SA_SIGINFO.
        unsafe { libc::sigaction(libc::SIGINT, &action, std::ptr::null_mut()) };
        // SAFETY: the handler is there.
        let raise = || unsafe { libc::raise(libc::SIGINT) };
        {
            let first = Interrupts::watch();
            assert!(!first.happened());
            raise();
            let second = Interrupts::watch();
            assert!(first.happened() && !second.happened());
            raise();
            assert!(second.happened());
        }
        assert_eq!(SEEN.load(Ordering::Relaxed), 2);
        raise();
        assert_eq!(
            (SEEN.load(Ordering::Relaxed), current().unwrap().sa_sigaction),
            (3, action.sa_sigaction)
        );
        assert!(!Interrupts::watch().happened(), "what came between runs");
    }
}
