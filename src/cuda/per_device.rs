//! One loaded kernel per device: a lock to load, an atomic load to use.
use super::{Loaded, devices};
use crate::error::Error;
use std::sync::{Mutex, OnceLock};

/// Filled device by device. Dropping it retires the modules.
#[derive(Default)]
pub struct PerDevice {
    slots: OnceLock<Box<[OnceLock<Loaded>]>>,
    loading: Mutex<()>,
}

impl PerDevice {
    /// The kernel on `device`, loaded by `load` the first time. A failure is not remembered.
    pub fn get_or_load(&self, device: i32, load: impl FnOnce() -> Result<Loaded, Error>) -> Result<&Loaded, Error> {
        if let Some(loaded) = self.get(device) {
            return Ok(loaded);
        }
        let _loading = self.loading.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let slots = match self.slots.get() {
            Some(slots) => slots,
            None => {
                let count = devices()?.len();
                self.slots.get_or_init(|| (0..count).map(|_| OnceLock::new()).collect())
            }
        };
        let slot = usize::try_from(device).ok().and_then(|device| slots.get(device));
        let slot = slot.ok_or_else(|| {
            Error::internal(format!(
                "XLA runs on device {device}, but the driver shows {}",
                slots.len()
            ))
        })?;
        if let Some(loaded) = slot.get() {
            return Ok(loaded);
        }
        let loaded = load()?;
        Ok(slot.get_or_init(|| loaded))
    }

    pub fn get(&self, device: i32) -> Option<&Loaded> {
        self.slots.get()?.get(usize::try_from(device).ok()?)?.get()
    }

    /// Every device that has it, with what is loaded there.
    pub fn iter(&self) -> impl Iterator<Item = (usize, &Loaded)> {
        let slots = self.slots.get().map(|slots| &slots[..]).unwrap_or_default();
        slots
            .iter()
            .enumerate()
            .filter_map(|(device, slot)| Some((device, slot.get()?)))
    }
}
