//! The GPUs of a call site get to know each other, once: each has an exchange block, and all know where.
use super::{Locations, last_words};
use crate::cuda::{self, DeviceMemory};
use crate::error::{Error, Fault};
use crate::ptx::launch::Exchange;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// How long a device waits for the others before the first launch: they may be compiling.
const PATIENCE: Duration = Duration::from_secs(120);

/// The exchange blocks of a call site's devices.
#[derive(Default)]
pub struct Peers {
    /// By device ordinal.
    come: Mutex<Vec<(i32, DeviceMemory)>>,
    changed: Condvar,
    /// Ordinals and addresses, once all are there and each has all addresses.
    known: OnceLock<Vec<(i32, u64)>>,
    failed: AtomicBool,
}

impl Peers {
    /// Whether all have come.
    pub fn are_known(&self) -> bool {
        self.known.get().is_some()
    }

    /// Device `device`, whose context is current, is to launch the kernel: waits for the mesh's others, the first time.
    pub fn introduce(
        &self,
        (name, locations): (&str, &Locations),
        (exchange, waits_are_bounded): (&Exchange, bool),
        templates: &[cuda::TensorMap],
        device: i32,
    ) -> Result<(), Error> {
        let here = cuda::devices()?.len();
        if here < exchange.devices as usize {
            return Err(Error::unsupported(format!(
                "`{name}` talks to {} devices from a process that has {here}",
                exchange.devices
            ))
            .remedy("run all devices of the mesh in one process"));
        }
        let mut come = self.come.lock().unwrap_or_else(PoisonError::into_inner);
        if !come.iter().any(|(ordinal, _)| *ordinal == device) {
            let memory = DeviceMemory::new(exchange.bytes())?;
            come.push((device, memory));
        }
        if come.len() == exchange.devices as usize {
            let starts = come.iter().map(|(_, memory)| memory.address()).collect::<Vec<_>>();
            let maps = templates.iter().map(cuda::encode_map).collect::<Result<Vec<_>, _>>()?;
            for (ordinal, memory) in come.iter() {
                let devices = exchange.devices;
                let last_words = match waits_are_bounded {
                    true => last_words::listen(name, *ordinal, devices, locations)?,
                    false => 0,
                };
                memory.write(&exchange.block(&starts, &maps, last_words))?;
            }
            let known = come.iter().map(|(ordinal, memory)| (*ordinal, memory.address()));
            // Nobody else sets it: the list is locked.
            let _ = self.known.set(known.collect());
            self.changed.notify_all();
        }
        let start = Instant::now();
        while self.known.get().is_none() {
            let left = PATIENCE.checked_sub(start.elapsed());
            let Some(left) = left.filter(|_| !self.failed.load(Ordering::Relaxed)) else {
                self.failed.store(true, Ordering::Relaxed);
                self.changed.notify_all();
                return Err(missing(name, exchange, &come));
            };
            (come, _) = self
                .changed
                .wait_timeout(come, left)
                .unwrap_or_else(PoisonError::into_inner);
        }
        come.iter().try_for_each(|(_, memory)| cuda::reach(memory))
    }

    /// The device's exchange block.
    pub fn block(&self, device: i32) -> Result<u64, Error> {
        let known = self.known.get().map_or(&[][..], Vec::as_slice);
        let own = known.iter().find(|(ordinal, _)| *ordinal == device);
        own.map(|(_, address)| *address)
            .ok_or_else(|| Error::internal("a launch on a device that was not initialised"))
    }
}

fn missing(name: &str, exchange: &Exchange, come: &[(i32, DeviceMemory)]) -> Error {
    let ordinals = come.iter().map(|(ordinal, _)| ordinal.to_string()).collect::<Vec<_>>();
    Error::new(
        Fault::Timeout,
        format!("devices of the mesh have not come to the first launch of `{name}`, which talks to them"),
    )
    .expected(format!("{} devices to run the same program", exchange.devices))
    .got(format!(
        "waited {} s; only device {} came",
        PATIENCE.as_secs(),
        ordinals.join(", ")
    ))
    .remedy("let every device of the mesh run the program; look for an error on another device")
}
