//! The rendezvous of emulated devices: one of them runs the launch of all.
//!
//! XLA:CPU calls the handlers of a program's devices on threads of their own. Those of a kernel that communicates wait here for each other;
//! the last one to arrive runs all devices in one machine of the emulator, and hands the others the outcome.
use super::host::HostBuffer;
use super::interrupt::Interrupts;
use crate::emulate;
use crate::error::{Error, Fault};
use crate::lock::lock;
use crate::panics::contain_panics;
use crate::ptx::launch::Exchange;
use rustc_hash::FxHashMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How long a device waits for another while nothing runs in any emulator; for a kernel whose waits have a limit, at least.
const PATIENCE: Duration = Duration::from_secs(60);
const LEAST_PATIENCE: Duration = Duration::from_secs(2);
/// How often it looks whether it is to go on waiting.
const LOOK: Duration = Duration::from_millis(50);

/// Runs of the emulator that are under way in this process.
static RUNNING: AtomicU32 = AtomicU32::new(0);

/// Counts as a run of the emulator while it lives: waits for it are patient.
pub struct Running(());

impl Running {
    pub fn start() -> Running {
        RUNNING.fetch_add(1, Ordering::Relaxed);
        Running(())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        RUNNING.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The buffers of one device; those of the call, in the launch's numbering.
type Buffers = Vec<HostBuffer>;

/// The devices that have arrived at one execution.
struct Launch {
    devices: Mutex<Gathered>,
    changed: Condvar,
}

struct Gathered {
    buffers: Vec<Option<Buffers>>,
    outcome: Option<Result<(), Error>>,
}

/// The rendezvous of a call site's devices.
#[derive(Default)]
pub struct Rendezvous {
    launches: Mutex<FxHashMap<i64, Arc<Launch>>>,
    /// Each device's exchange block: they live as long as the call site.
    blocks: Mutex<Vec<Vec<u64>>>,
}

impl Rendezvous {
    /// Device `position` has arrived at execution `run` with its buffers. `limit`: nanoseconds that waits may last, 0: unlimited; `all`:
    /// runs every device's part.
    pub fn arrive(
        &self,
        (name, limit): (&str, u64),
        run: i64,
        (position, devices): (usize, usize),
        buffers: Buffers,
        all: impl FnOnce(&[Buffers]) -> Result<(), Error>,
    ) -> Result<(), Error> {
        if position >= devices {
            return Err(Error::internal(format!(
                "`{name}` on device {position} of a mesh of {devices}"
            )));
        }
        let launch = self.launch(run, devices);
        self.wait(&launch, (name, limit), run, position, buffers, all)
    }

    /// The devices that have arrived at an execution until now.
    fn launch(&self, run: i64, devices: usize) -> Arc<Launch> {
        let new = || {
            Arc::new(Launch {
                devices: Mutex::new(Gathered {
                    buffers: vec![None; devices],
                    outcome: None,
                }),
                changed: Condvar::new(),
            })
        };
        lock(&self.launches).entry(run).or_insert_with(new).clone()
    }

    /// A device joins a launch, and waits for its outcome or brings it about.
    fn wait(
        &self,
        launch: &Launch,
        (name, limit): (&str, u64),
        run: i64,
        position: usize,
        buffers: Buffers,
        all: impl FnOnce(&[Buffers]) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let mut gathered = lock(&launch.devices);
        // Others may have given up since this device found the launch. They have returned, and their buffers are XLA's again.
        if let Some(outcome) = &gathered.outcome {
            return outcome.clone();
        }
        if gathered.buffers[position].replace(buffers).is_some() {
            return Err(Error::internal(format!(
                "device {position} is twice in one execution of `{name}`"
            )));
        }
        if gathered.buffers.iter().all(Option::is_some) {
            // The same execution may come here again, in a loop: that is another rendezvous.
            lock(&self.launches).remove(&run);
            let buffers = gathered.buffers.iter_mut().filter_map(Option::take).collect::<Vec<_>>();
            drop(gathered);
            // Even of a panic, as the others are waiting.
            let outcome = contain_panics(|| all(&buffers));
            lock(&launch.devices).outcome = Some(outcome.clone());
            launch.changed.notify_all();
            return outcome;
        }
        let patience = match limit {
            0 => PATIENCE,
            limit => Duration::from_nanos(limit).clamp(LEAST_PATIENCE, PATIENCE),
        };
        let interrupts = Interrupts::watch();
        let mut idle = Instant::now();
        loop {
            if let Some(outcome) = &gathered.outcome {
                return outcome.clone();
            }
            (gathered, _) = launch
                .changed
                .wait_timeout(gathered, LOOK)
                .unwrap_or_else(PoisonError::into_inner);
            if RUNNING.load(Ordering::Relaxed) > 0 {
                idle = Instant::now();
            }
            // Once all have come, it is the run itself that looks.
            let all = gathered.buffers.iter().all(Option::is_none);
            if gathered.outcome.is_none() && !all && (interrupts.happened() || idle.elapsed() > patience) {
                let missing = missing(name, &gathered.buffers, interrupts.happened());
                gathered.outcome = Some(Err(missing));
                // A device that arrives later must find no buffers of those that have returned.
                gathered.buffers.fill(None);
                lock(&self.launches).remove(&run);
                launch.changed.notify_all();
            }
        }
    }

    /// `f` with each device's exchange block, which keeps what the launches before left in it. `start`: the block's first word in
    /// emulated memory, by device.
    pub fn with_blocks<T>(
        &self,
        exchange: &Exchange,
        start: impl Fn(u32) -> u64,
        f: impl FnOnce(&[HostBuffer]) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let mut blocks = lock(&self.blocks);
        if blocks.is_empty() {
            let starts = (0..exchange.devices).map(start).collect::<Vec<_>>();
            let maps = (0..exchange.map_count)
                .map(emulate::encode_map_template)
                .collect::<Vec<_>>();
            *blocks = (0..exchange.devices).map(|_| exchange.block(&starts, &maps)).collect();
        }
        let lent = blocks.iter_mut().map(|block| HostBuffer {
            address: block.as_mut_ptr().cast(),
            bytes: 8 * block.len() as u64,
        });
        let lent = lent.collect::<Vec<_>>();
        let result = f(&lent);
        if result.is_err() {
            // The tickets of a launch that did not end are not all taken.
            blocks.clear();
        }
        result
    }
}

fn missing(name: &str, buffers: &[Option<Buffers>], interrupted: bool) -> Error {
    let absent = (0..buffers.len()).filter(|i| buffers[*i].is_none());
    let absent = absent.map(|i| i.to_string()).collect::<Vec<_>>().join(", ");
    let devices = buffers.len();
    let fault = if interrupted {
        Fault::Interrupted
    } else {
        Fault::Timeout
    };
    Error::new(
        fault,
        format!("devices of the mesh have not come to the launch of `{name}`, which talks to them"),
    )
    .expected(format!("all {devices} devices to run the same program"))
    .got(format!("waited for device {absent} of {devices}"))
    .remedy(format!(
        "set PJRT_NPROC={} before JAX starts, so that every emulated device has a thread; let every device of the mesh run the program",
        2 * devices
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;

    fn buffers() -> Buffers {
        vec![]
    }

    const SOON: u64 = 1;

    #[test]
    fn who_comes_when_others_have_given_up_uses_none_of_their_buffers() {
        let (rendezvous, ran) = (Rendezvous::default(), AtomicBool::new(false));
        let run = |_: &[Buffers]| {
            ran.store(true, Ordering::Relaxed);
            Ok(())
        };
        // Device 1 has found the launch, and is held up before it joins.
        let launch = rendezvous.launch(7, 2);
        let early = rendezvous.arrive(("k", SOON), 7, (0, 2), buffers(), run);
        assert_eq!(early.unwrap_err().fault, Fault::Timeout);
        assert!(lock(&launch.devices).buffers.iter().all(Option::is_none));
        let late = rendezvous.wait(&launch, ("k", SOON), 7, 1, buffers(), run);
        assert_eq!(late.unwrap_err().fault, Fault::Timeout);
        assert!(!ran.load(Ordering::Relaxed));
        // The next execution is another launch.
        assert!(!Arc::ptr_eq(&launch, &rendezvous.launch(7, 2)));
    }

    #[test]
    fn a_panic_in_the_run_is_an_error_of_each_device() {
        let rendezvous = Rendezvous::default();
        let arrive = |position| rendezvous.arrive(("k", SOON), 1, (position, 2), buffers(), |_| panic!("half-way"));
        std::thread::scope(|scope| {
            let other = scope.spawn(|| arrive(0));
            let errors = [arrive(1).unwrap_err(), other.join().unwrap().unwrap_err()];
            for error in errors {
                assert!(
                    error.fault == Fault::Internal && error.what.contains("half-way"),
                    "{error}"
                );
            }
        });
    }
}
