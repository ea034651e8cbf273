//! Unloading modules late.
//!
//! XLA destroys a call site with its executable, when work on its kernel may still be queued, and a recorded graph may
//! name its function. So dropping only retires the module; when enough have gathered, the next load synchronises the
//! context once and unloads them: memory stays bounded and no launch ever waits.
use super::driver::{Driver, SUCCESS, driver, uncaptured};
use super::shared;
use crate::lock::lock;
use cudarc::driver::sys;
use std::sync::Mutex;

/// Modules that may wait before a load clears them away.
const PATIENCE: usize = 256;

/// What is done with later.
#[derive(Clone, Copy)]
pub enum Thing {
    Module(sys::CUmodule),
    /// Device memory, by its address.
    Memory(u64),
    /// Memory that processes share, by its address and size.
    Shared(u64, u64),
}

struct Retired {
    context: sys::CUcontext,
    thing: Thing,
}

// SAFETY: driver handles may be used from any thread.
unsafe impl Send for Retired {}

static RETIRED: Mutex<Vec<Retired>> = Mutex::new(Vec::new());

pub fn retire(context: sys::CUcontext, thing: Thing) {
    let mut retired = lock(&RETIRED);
    retired.push(Retired { context, thing });
}

/// Called before every load, with no lock held. Unloads what has gathered for the current context, if that is much.
pub fn clear() {
    let Ok(driver) = driver() else { return };
    let mut context = std::ptr::null_mut();
    // SAFETY: stores the current context, null if there is none.
    if unsafe { (driver.ctx_get_current)(&mut context) } != SUCCESS || context.is_null() {
        return;
    }
    let mine = {
        let mut retired = lock(&RETIRED);
        if retired.iter().filter(|module| module.context == context).count() < PATIENCE {
            return;
        }
        let (mine, others) = std::mem::take(&mut *retired)
            .into_iter()
            .partition::<Vec<_>, _>(|m| m.context == context);
        *retired = others;
        mine
    };
    if !uncaptured(driver, || unload(driver, &mine)) {
        // A capture is going on in this context: later.
        lock(&RETIRED).extend(mine);
    }
}

fn unload(driver: &Driver, modules: &[Retired]) -> bool {
    // SAFETY: waits for everything queued in the current context.
    if unsafe { (driver.ctx_synchronize)() } != SUCCESS {
        return false;
    }
    for retired in modules {
        // Nothing is queued on it, its owner is gone, and it is unloaded (freed) only once. A failure would mean that the context is
        // gone, and what was in it.
        match retired.thing {
            // SAFETY: as above.
            Thing::Module(module) => unsafe {
                (driver.module_unload)(module);
            },
            // SAFETY: as above.
            Thing::Memory(address) => unsafe {
                (driver.mem_free)(address);
            },
            Thing::Shared(address, bytes) => shared::free(address, bytes),
        }
    }
    true
}
