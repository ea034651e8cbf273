//! One loaded kernel per device: a lock to load, an atomic load to use.
use super::{Loaded, devices, retire};
use crate::error::Error;
use crate::lock::lock;
use std::sync::{Mutex, OnceLock};

/// Filled device by device. Dropping it retires the modules.
#[derive(Default)]
pub struct PerDevice {
    slots: OnceLock<Box<[Slot]>>,
}

/// One device's. Locked while that device loads: no device waits for another.
#[derive(Default)]
struct Slot {
    loaded: OnceLock<Loaded>,
    loading: Mutex<()>,
}

impl PerDevice {
    /// The kernel on `device`, whose context is current, loaded by `load` the first time. A failure is not remembered.
    pub fn get_or_load(&self, device: i32, load: impl FnOnce() -> Result<Loaded, Error>) -> Result<&Loaded, Error> {
        if let Some(loaded) = self.get(device) {
            return Ok(loaded);
        }
        let slots = match self.slots.get() {
            Some(slots) => slots,
            None => {
                let count = devices()?.len();
                self.slots.get_or_init(|| (0..count).map(|_| Slot::default()).collect())
            }
        };
        let slot = usize::try_from(device).ok().and_then(|device| slots.get(device));
        let slot = slot.ok_or_else(|| {
            Error::internal(format!(
                "XLA runs on device {device}, but the driver shows {}",
                slots.len()
            ))
        })?;
        // May wait for the device's queue, in which may be work that needs a thread that waits for our lock.
        retire::clear();
        slot.get_or_load(load)
    }

    pub fn get(&self, device: i32) -> Option<&Loaded> {
        self.slots.get()?.get(usize::try_from(device).ok()?)?.loaded.get()
    }

    /// Every device that has it, with what is loaded there.
    pub fn iter(&self) -> impl Iterator<Item = (usize, &Loaded)> {
        let slots = self.slots.get().map(|slots| &slots[..]).unwrap_or_default();
        slots
            .iter()
            .enumerate()
            .filter_map(|(device, slot)| Some((device, slot.loaded.get()?)))
    }
}

impl Slot {
    fn get_or_load(&self, load: impl FnOnce() -> Result<Loaded, Error>) -> Result<&Loaded, Error> {
        let _loading = lock(&self.loading);
        if let Some(loaded) = self.loaded.get() {
            return Ok(loaded);
        }
        let loaded = load()?;
        Ok(self.loaded.get_or_init(|| loaded))
    }
}
