//! Device memory that lives as long as its owner, and the devices that may reach it.
use super::driver::{
    ERROR_PEER_ACCESS_ALREADY_ENABLED, ERROR_PEER_ACCESS_UNSUPPORTED, SUCCESS, current_context, driver, uncaptured,
};
use super::{retire, shared};
use crate::error::{Error, Fault};
use cudarc::driver::sys;
use std::sync::atomic::AtomicU64;

/// An allocation in the context that was current when it was made.
pub struct DeviceMemory {
    context: sys::CUcontext,
    address: u64,
    bytes: u64,
    /// How it goes back.
    thing: retire::Thing,
}

// SAFETY: a driver handle and an address, both of which any thread may use.
unsafe impl Send for DeviceMemory {}
// SAFETY: as above; nothing here changes after it is made.
unsafe impl Sync for DeviceMemory {}

impl DeviceMemory {
    /// `bytes` bytes of device memory in the current context; what they hold is whatever was there.
    pub fn new(bytes: u64) -> Result<DeviceMemory, Error> {
        let driver = driver()?;
        let context = current_context(driver, "memory is to be allocated")?;
        let mut address = 0;
        // SAFETY: stores the address on success.
        let code = uncaptured(driver, || unsafe { (driver.mem_alloc)(&mut address, bytes as usize) });
        driver.check("cuMemAlloc", code)?;
        let thing = retire::Thing::Memory(address);
        Ok(DeviceMemory {
            context,
            address,
            bytes,
            thing,
        })
    }

    /// As [`DeviceMemory::new`], where other processes can map it; the current device has [joined](shared::join).
    pub fn shareable(bytes: u64) -> Result<DeviceMemory, Error> {
        let context = current_context(driver()?, "memory is to be allocated")?;
        let address = shared::allocate(bytes)?;
        let thing = retire::Thing::Shared(address, bytes);
        Ok(DeviceMemory {
            context,
            address,
            bytes,
            thing,
        })
    }

    pub fn address(&self) -> u64 {
        self.address
    }

    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Copies words to byte `at` and waits for that; its own context need not be current.
    pub fn write(&self, at: u64, words: &[u64]) -> Result<(), Error> {
        if words.is_empty() {
            return Ok(());
        }
        let driver = driver()?;
        // SAFETY: the context lives as long as XLA's client.
        driver.check("cuCtxPushCurrent", unsafe { (driver.ctx_push_current)(self.context) })?;
        // The copy may return when the words are on their way; its stream, which waits for none of XLA's, then has more to do.
        // SAFETY: the caller allocated at least that much, and the words outlive the call.
        let code = uncaptured(driver, || unsafe {
            match (driver.memcpy_htod)(self.address + at, words.as_ptr().cast(), size_of_val(words)) {
                SUCCESS => (driver.stream_synchronize)(std::ptr::null_mut()),
                code => code,
            }
        });
        let mut popped = std::ptr::null_mut();
        // SAFETY: pops what was pushed above.
        unsafe { (driver.ctx_pop_current)(&mut popped) };
        driver.check("copying to device memory", code)
    }
}

impl DeviceMemory {
    /// Queues a copy of the first words on `stream` (a `CUstream` of the same context) to pinned memory, which [`host_words`] gave.
    pub fn read_behind(&self, stream: usize, to: &'static [AtomicU64]) -> Result<(), Error> {
        let driver = driver()?;
        let target = to.as_ptr().cast_mut().cast::<std::ffi::c_void>();
        // SAFETY: the caller allocated at least that much, and the words are never freed.
        let code =
            unsafe { (driver.memcpy_dtoh_async)(target, self.address, size_of_val(to), stream as sys::CUstream) };
        driver.check("cuMemcpyDtoHAsync", code)
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        retire::retire(self.context, self.thing);
    }
}

/// Queues a copy between device addresses of the current context on `stream` (a `CUstream` of it), which may be captured.
pub fn copy_behind(stream: usize, from: u64, to: u64, bytes: u64) -> Result<(), Error> {
    let driver = driver()?;
    // SAFETY: the caller has that much at both addresses, and they do not overlap.
    let code = unsafe { (driver.memcpy_dtod_async)(to, from, bytes as usize, stream as sys::CUstream) };
    driver.check("cuMemcpyDtoDAsync", code)
}

/// Words at a device address of the current context when all is over that was queued on `stream` (a `CUstream` of it): waits for that.
pub fn read_at_end<const N: usize>(stream: usize, address: u64) -> Result<[u64; N], Error> {
    let driver = driver()?;
    let stream = stream as sys::CUstream;
    let mut words = [0u64; N];
    // SAFETY: the caller has that much at the address; the words outlive the copy, which is waited for.
    let code = uncaptured(driver, || unsafe {
        match (driver.memcpy_dtoh_async)(words.as_mut_ptr().cast(), address, size_of_val(&words), stream) {
            SUCCESS => (driver.stream_synchronize)(stream),
            code => code,
        }
    });
    driver.check("waiting for the end of a kernel", code)?;
    Ok(words)
}

/// Lets kernels of the current context reach what `other`'s context holds. XLA has mostly done so.
pub fn reach(other: &DeviceMemory) -> Result<(), Error> {
    let driver = driver()?;
    let context = current_context(driver, "memory is to be reached")?;
    if context == other.context {
        return Ok(());
    }
    // SAFETY: both contexts are alive; the flags must be 0.
    match uncaptured(driver, || unsafe { (driver.ctx_enable_peer_access)(other.context, 0) }) {
        SUCCESS | ERROR_PEER_ACCESS_ALREADY_ENABLED => Ok(()),
        ERROR_PEER_ACCESS_UNSUPPORTED => Err(out_of_reach()),
        code => driver.check("cuCtxEnablePeerAccess", code),
    }
}

/// Devices that are not connected.
pub fn out_of_reach() -> Error {
    Error::new(
        Fault::Environment,
        "the devices of a mesh cannot reach each other's memory",
    )
    .expected("GPUs connected by NVLink, or by PCIe with peer access")
    .remedy("`nvidia-smi topo -p2p r` shows which can; make the mesh of those")
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
    // SAFETY: as many bytes as were allocated, page-aligned, never freed; all zeros is a valid word.
    unsafe {
        std::ptr::write_bytes(address.cast::<u8>(), 0, bytes);
        Ok(std::slice::from_raw_parts(address.cast::<AtomicU64>(), count))
    }
}
