//! Device memory that lives as long as its owner, and who may reach it.
use super::driver::{ERROR_PEER_ACCESS_ALREADY_ENABLED, ERROR_PEER_ACCESS_UNSUPPORTED, SUCCESS, driver, uncaptured};
use super::retire;
use crate::error::{Error, Fault};
use cudarc::driver::sys;
use std::sync::atomic::AtomicU64;

/// An allocation in the context that was current when it was made.
pub struct DeviceMemory {
    context: sys::CUcontext,
    address: u64,
}

// SAFETY: a driver handle and an address, both of which any thread may use.
unsafe impl Send for DeviceMemory {}
// SAFETY: as above; nothing here changes after it is made.
unsafe impl Sync for DeviceMemory {}

impl DeviceMemory {
    /// `bytes` bytes of device memory in the current context; what they hold is whatever was there.
    pub fn new(bytes: u64) -> Result<DeviceMemory, Error> {
        let driver = driver()?;
        let mut context = std::ptr::null_mut();
        // SAFETY: stores the current context, null if there is none.
        driver.check("cuCtxGetCurrent", unsafe { (driver.ctx_get_current)(&mut context) })?;
        if context.is_null() {
            return Err(Error::internal(
                "no CUDA context is current where memory is to be allocated",
            ));
        }
        let mut address = 0;
        // SAFETY: stores the address on success.
        let code = uncaptured(driver, || unsafe { (driver.mem_alloc)(&mut address, bytes as usize) });
        driver.check("cuMemAlloc", code)?;
        Ok(DeviceMemory { context, address })
    }

    pub fn address(&self) -> u64 {
        self.address
    }

    /// Copies words to its start and waits for that; its own context need not be current.
    pub fn write(&self, words: &[u64]) -> Result<(), Error> {
        let driver = driver()?;
        // SAFETY: the context lives as long as XLA's client.
        driver.check("cuCtxPushCurrent", unsafe { (driver.ctx_push_current)(self.context) })?;
        // SAFETY: the caller allocated at least that much, and the words outlive the call.
        let code = uncaptured(driver, || unsafe {
            (driver.memcpy_htod)(self.address, words.as_ptr().cast(), size_of_val(words))
        });
        let mut popped = std::ptr::null_mut();
        // SAFETY: pops what was pushed above.
        unsafe { (driver.ctx_pop_current)(&mut popped) };
        driver.check("cuMemcpyHtoD", code)
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        retire::retire(self.context, retire::Thing::Memory(self.address));
    }
}

/// Lets kernels of the current context reach what `other` holds. XLA has mostly done so.
pub fn reach(other: &DeviceMemory) -> Result<(), Error> {
    let driver = driver()?;
    let mut context = std::ptr::null_mut();
    // SAFETY: stores the current context, null if there is none.
    driver.check("cuCtxGetCurrent", unsafe { (driver.ctx_get_current)(&mut context) })?;
    if context == other.context {
        return Ok(());
    }
    // SAFETY: both contexts are alive; the flags must be 0.
    match uncaptured(driver, || unsafe { (driver.ctx_enable_peer_access)(other.context, 0) }) {
        SUCCESS | ERROR_PEER_ACCESS_ALREADY_ENABLED => Ok(()),
        ERROR_PEER_ACCESS_UNSUPPORTED => Err(Error::new(
            Fault::Environment,
            "the devices of a mesh cannot reach each other's memory",
        )
        .expected("GPUs connected by NVLink, or by PCIe with peer access")
        .remedy("`nvidia-smi topo -p2p r` shows which can; make the mesh of those")),
        code => driver.check("cuCtxEnablePeerAccess", code),
    }
}

/// Words of pinned host memory, zero, which kernels of every context may write at their host addresses. They are never freed.
pub fn host_words(count: usize) -> Result<&'static [AtomicU64], Error> {
    const PORTABLE_AND_MAPPED: u32 = 0x3; // CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP
    let driver = driver()?;
    let mut address = std::ptr::null_mut();
    let bytes = count * size_of::<AtomicU64>();
    // SAFETY: stores the address on success.
    let code = uncaptured(driver, || unsafe {
        (driver.mem_host_alloc)(&mut address, bytes, PORTABLE_AND_MAPPED)
    });
    driver.check("cuMemHostAlloc", code)?;
    // SAFETY: as many bytes as were allocated, page-aligned, for ever; all zeros is a valid word.
    unsafe {
        std::ptr::write_bytes(address.cast::<u8>(), 0, bytes);
        Ok(std::slice::from_raw_parts(address.cast::<AtomicU64>(), count))
    }
}
