//! Signals during a run of the emulator.
//!
//! Python's own handler only notes a signal; what the program set with `signal.signal` is called when the main thread is next in the
//! interpreter. During a run it is not there, so:
//! * A run that XLA executes on the main thread calls the program's handlers itself, every [`PERIOD`] ([`Python`]). If one raises, the
//!   exception is kept and all runs end; once the thread is back in the interpreter, [`raise_kept`] raises it there.
//! * For a run on another thread of XLA's the main thread waits in the interpreter (`_native.waiting_for_runs`), where handlers are called as
//!   always; if one raises, it calls [`end_runs`].
//! * A main thread that waits in XLA itself gets only Ctrl-C: as long as a run lasts, a handler of ours stands before the one it finds for
//!   SIGINT: it counts, and calls that. The run sees the count and ends; the main thread comes back to the interpreter, which raises.
use crate::lock::lock;
use std::ffi::{CStr, c_int, c_void};
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock};
use std::time::{Duration, Instant};

/// How often a run on the main thread calls handlers of signals that have come.
const PERIOD: Duration = Duration::from_millis(20);

/// How often runs were to end since the process started.
static ENDED: AtomicU64 = AtomicU64::new(0);
/// Runs on the main thread, and waits there in the interpreter: handlers are called, and decide whether runs end.
static HANDLED: AtomicU32 = AtomicU32::new(0);
/// The handler of SIGINT that ours calls, and its flags.
static NEXT: AtomicUsize = AtomicUsize::new(0);
static NEXT_FLAGS: AtomicI32 = AtomicI32::new(0);
/// Runs that poll the signals.
static RUNS: Mutex<u32> = Mutex::new(0);
/// What a handler raised: an exception's type, value and traceback, of which we hold the references.
static KEPT: Mutex<Option<[usize; 3]>> = Mutex::new(None);

/// While it lives, signals are looked for.
pub struct Interrupts {
    before: u64,
    /// It was made on the main thread.
    on_main: bool,
    start: Instant,
    /// Milliseconds since then at which handlers are called next.
    due: AtomicU64,
}

impl Interrupts {
    pub fn watch() -> Interrupts {
        let mut runs = runs();
        *runs += 1;
        if *runs == 1 {
            install();
        }
        let on_main = is_main() && Python::get().is_some();
        if on_main {
            HANDLED.fetch_add(1, Ordering::Relaxed);
            // The error of the run before has been dropped.
            drop_kept();
        }
        Interrupts {
            before: ENDED.load(Ordering::Relaxed),
            on_main,
            start: Instant::now(),
            due: AtomicU64::new(0),
        }
    }

    /// Whether the user has interrupted since [`Interrupts::watch`]. On the main thread calls handlers of signals that have come.
    pub fn happened(&self) -> bool {
        if self.on_main && is_main() {
            let now = self.start.elapsed();
            if now.as_millis() as u64 >= self.due.load(Ordering::Relaxed) {
                self.due.store((now + PERIOD).as_millis() as u64, Ordering::Relaxed);
                call_handlers();
            }
        }
        ENDED.load(Ordering::Relaxed) != self.before
    }
}

impl Drop for Interrupts {
    fn drop(&mut self) {
        if self.on_main {
            HANDLED.fetch_sub(1, Ordering::Relaxed);
        }
        let mut runs = runs();
        *runs -= 1;
        if *runs == 0 {
            remove();
        }
    }
}

/// All runs are to end.
pub fn end_runs() {
    ENDED.fetch_add(1, Ordering::Relaxed);
}

/// The main thread begins, or ends, to wait for runs in the interpreter.
pub fn handled_in_python(begins: bool) {
    match begins {
        true => HANDLED.fetch_add(1, Ordering::Relaxed),
        false => HANDLED.fetch_sub(1, Ordering::Relaxed),
    };
}

/// Whether this is the thread on which Python calls handlers: the process's first.
fn is_main() -> bool {
    thread_local! {
        static MAIN: bool = is_first_thread();
    }
    MAIN.with(|main| *main)
}

#[cfg(target_os = "macos")]
fn is_first_thread() -> bool {
    // SAFETY: a query.
    unsafe { libc::pthread_main_np() == 1 }
}

#[cfg(not(target_os = "macos"))]
fn is_first_thread() -> bool {
    // SAFETY: both are queries.
    unsafe { libc::gettid() == libc::getpid() }
}

/// Functions of the interpreter that this library is loaded into (all of them in its stable ABI).
struct Python {
    is_initialized: extern "C" fn() -> c_int,
    ensure: extern "C" fn() -> c_int,
    release: extern "C" fn(c_int),
    check_signals: extern "C" fn() -> c_int,
    fetch: extern "C" fn(*mut usize, *mut usize, *mut usize),
    restore: extern "C" fn(usize, usize, usize),
    decref: extern "C" fn(usize),
}

impl Python {
    /// None where the process is no interpreter.
    fn get() -> Option<&'static Python> {
        static PYTHON: OnceLock<Option<Python>> = OnceLock::new();
        PYTHON.get_or_init(Python::find).as_ref()
    }

    fn find() -> Option<Python> {
        let symbol = |name: &CStr| {
            // SAFETY: a name that ends with NUL; looks only.
            let found: *mut c_void = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
            (!found.is_null()).then_some(found)
        };
        // SAFETY: the signatures of Python's C API, which do not change within its stable ABI.
        unsafe {
            Some(Python {
                is_initialized: std::mem::transmute::<*mut c_void, extern "C" fn() -> c_int>(symbol(
                    c"Py_IsInitialized",
                )?),
                ensure: std::mem::transmute::<*mut c_void, extern "C" fn() -> c_int>(symbol(c"PyGILState_Ensure")?),
                release: std::mem::transmute::<*mut c_void, extern "C" fn(c_int)>(symbol(c"PyGILState_Release")?),
                check_signals: std::mem::transmute::<*mut c_void, extern "C" fn() -> c_int>(symbol(
                    c"PyErr_CheckSignals",
                )?),
                fetch: std::mem::transmute::<*mut c_void, extern "C" fn(*mut usize, *mut usize, *mut usize)>(symbol(
                    c"PyErr_Fetch",
                )?),
                restore: std::mem::transmute::<*mut c_void, extern "C" fn(usize, usize, usize)>(symbol(
                    c"PyErr_Restore",
                )?),
                decref: std::mem::transmute::<*mut c_void, extern "C" fn(usize)>(symbol(c"Py_DecRef")?),
            })
        }
    }

    /// With the interpreter's lock; on the main thread no holder of it waits for us.
    fn locked<T>(&self, body: impl FnOnce() -> T) -> Option<T> {
        if (self.is_initialized)() == 0 {
            return None;
        }
        let state = (self.ensure)();
        let result = body();
        (self.release)(state);
        Some(result)
    }
}

/// Calls the program's handlers of signals that have come, on the main thread. If one raises, runs end.
fn call_handlers() {
    let Some(python) = Python::get() else { return };
    let raised = python.locked(|| {
        ((python.check_signals)() != 0).then(|| {
            let mut kept = [0; 3];
            let [of, value, trace] = &mut kept;
            (python.fetch)(of, value, trace);
            kept
        })
    });
    if let Some(kept) = raised.flatten() {
        drop_kept();
        *lock(&KEPT) = Some(kept);
        end_runs();
    }
}

fn drop_kept() {
    let kept = lock(&KEPT).take();
    if let (Some(kept), Some(python)) = (kept, Python::get()) {
        python.locked(|| {
            kept.into_iter()
                .filter(|object| *object != 0)
                .for_each(|object| (python.decref)(object))
        });
    }
}

/// Sets the interpreter's error to what a handler raised during a run, if one did. The caller holds the interpreter's lock.
pub fn raise_kept() {
    let kept = lock(&KEPT).take();
    if let (Some([of, value, trace]), Some(python)) = (kept, Python::get()) {
        (python.restore)(of, value, trace);
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
    // SAFETY: a query that stores its answer.
    let code = unsafe { libc::sigaction(libc::SIGINT, std::ptr::null(), &mut action) };
    (code == 0).then_some(action)
}

fn ours() -> usize {
    count as extern "C" fn(_, _, _) as usize
}

fn install() {
    let Some(found) = current() else { return };
    // The default ends the process, which is prompt enough; a program that ignores the signal means it. Ours may be there already, where
    // another handler restored it.
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
    // A handler that was set meanwhile stays; if it calls ours, that goes on to the right one.
    let Some(mut action) = current().filter(|action| action.sa_sigaction == ours()) else {
        return;
    };
    action.sa_sigaction = NEXT.load(Ordering::Relaxed);
    action.sa_flags = NEXT_FLAGS.load(Ordering::Relaxed);
    // SAFETY: the handler that `install` found.
    unsafe { libc::sigaction(libc::SIGINT, &action, std::ptr::null_mut()) };
}

extern "C" fn count(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    if HANDLED.load(Ordering::Relaxed) == 0 {
        end_runs();
    }
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
