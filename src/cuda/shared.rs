//! Memory that processes share: allocations that have handles of their own, which travel as file descriptors.
//!
//! XLA's pools are such allocations already. What smalt shares itself lies in chunks that live as long as the process. Nothing here
//! waits for a kernel: mapping memory while one runs takes some 2 ms (H200, driver 580).
use super::driver::{Driver, SUCCESS, current_device, driver, uncaptured};
use super::memory::out_of_reach;
use crate::error::{Error, Fault};
use crate::lock::lock;
use cudarc::driver::sys;
use std::ffi::{c_int, c_uint, c_void};
use std::ops::Range;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::{Mutex, MutexGuard};

const HANDLE_TYPE: sys::CUmemAllocationHandleType =
    sys::CUmemAllocationHandleType_enum::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
/// `CU_POINTER_ATTRIBUTE_BUFFER_ID` of cuda.h: no two allocations of a process have the same.
const BUFFER_ID: c_uint = 7;
/// Pieces of a chunk start at multiples of this.
const ALIGN: u64 = 256;

/// What the process's devices have mapped, and which devices those are.
struct Mapped {
    devices: Vec<c_int>,
    ranges: Vec<Range<u64>>,
    /// Own chunks and their free pieces, by device.
    own: Vec<(c_int, Range<u64>)>,
    free: Vec<(c_int, Range<u64>)>,
}

static MAPPED: Mutex<Mapped> = Mutex::new(Mapped {
    devices: Vec::new(),
    ranges: Vec::new(),
    own: Vec::new(),
    free: Vec::new(),
});

fn mapped() -> MutexGuard<'static, Mapped> {
    lock(&MAPPED)
}

/// The current device is to reach all that is mapped here, now and later.
pub fn join() -> Result<(), Error> {
    let driver = driver()?;
    let device = current_device(driver)?;
    let mut mapped = mapped();
    if !mapped.devices.contains(&device) {
        mapped.devices.push(device);
        for range in &mapped.ranges {
            allow(driver, range, &[device])?;
        }
    }
    Ok(())
}

/// `bytes` bytes on the current device, which has [`join`]ed.
pub fn allocate(bytes: u64) -> Result<u64, Error> {
    let driver = driver()?;
    let device = current_device(driver)?;
    let bytes = bytes.next_multiple_of(ALIGN);
    let mut mapped = mapped();
    let fits = |(of, range): &(c_int, Range<u64>)| *of == device && range.end - range.start >= bytes;
    let place = match mapped.free.iter().position(fits) {
        Some(place) => place,
        None => {
            let chunk = uncaptured(driver, || new_chunk(driver, device, bytes))?;
            if let Err(error) = allow(driver, &chunk, &mapped.devices) {
                unmap(driver, &chunk);
                return Err(error);
            }
            mapped.ranges.push(chunk.clone());
            mapped.own.push((device, chunk.clone()));
            mapped.free.push((device, chunk));
            mapped.free.len() - 1
        }
    };
    let range = &mut mapped.free[place].1;
    let address = range.start;
    range.start += bytes;
    Ok(address)
}

/// Gives back `bytes` bytes of [`allocate`] that are not used any more.
pub fn free(address: u64, bytes: u64) {
    let mut mapped = mapped();
    let chunk = mapped.own.iter().find(|(_, chunk)| chunk.contains(&address));
    if let Some((device, _)) = chunk {
        let piece = (*device, address..address + bytes.next_multiple_of(ALIGN));
        mapped.free.push(piece);
    }
}

/// The allocation that an address lies in, as another process needs it: where it is here, and a descriptor to map it by.
pub fn export(address: u64) -> Result<(Range<u64>, OwnedFd), Error> {
    let driver = driver()?;
    let mut handle = 0;
    // SAFETY: queries an address; stores the handle on success.
    let code = unsafe { (driver.mem_retain_allocation_handle)(&mut handle, address as *mut c_void) };
    if code != SUCCESS {
        return Err(
            Error::new(Fault::Environment, "device memory that other processes cannot map")
                .expected("XLA's own allocator, whose memory has handles")
                .got(driver.check("cuMemRetainAllocationHandle", code).unwrap_err().what)
                .remedy("unset XLA_PYTHON_CLIENT_ALLOCATOR, or let one process run all devices of the mesh"),
        );
    }
    let range = extent(driver, address);
    let mut descriptor: c_int = -1;
    // SAFETY: the handle is valid; a descriptor is stored on success.
    let code = unsafe { (driver.mem_export)((&raw mut descriptor).cast(), handle, HANDLE_TYPE.0, 0) };
    // SAFETY: undoes the retaining above.
    unsafe { (driver.mem_release)(handle) };
    driver.check("cuMemExportToShareableHandle", code)?;
    // SAFETY: the driver has made it for us.
    let descriptor = unsafe { OwnedFd::from_raw_fd(descriptor) };
    Ok((range?, descriptor))
}

/// Where the allocation lies of which `address` is part.
fn extent(driver: &Driver, address: u64) -> Result<Range<u64>, Error> {
    let (mut start, mut bytes) = (0, 0);
    // SAFETY: queries an address.
    let code = unsafe { (driver.mem_get_address_range)(&mut start, &mut bytes, address) };
    driver.check("cuMemGetAddressRange", code)?;
    Ok(start..start + bytes as u64)
}

/// A number that no other allocation of this process has had.
pub fn identity(address: u64) -> Result<u64, Error> {
    let driver = driver()?;
    let mut id = 0u64;
    // SAFETY: stores 64 bits about an address.
    let code = unsafe { (driver.pointer_get_attribute)((&raw mut id).cast(), BUFFER_ID, address) };
    driver.check("cuPointerGetAttribute", code)?;
    Ok(id)
}

/// Maps another process's allocation of `bytes` bytes for all devices that have [`join`]ed; the address is good for all of them.
pub fn import(descriptor: &OwnedFd, bytes: u64) -> Result<u64, Error> {
    let driver = driver()?;
    let mut mapped = mapped();
    let mut handle = 0;
    // SAFETY: the driver takes the descriptor's number as a pointer, and keeps none of it.
    let code = unsafe {
        let descriptor = descriptor.as_raw_fd() as usize as *mut c_void;
        (driver.mem_import)(&mut handle, descriptor, HANDLE_TYPE.0)
    };
    driver.check("cuMemImportFromShareableHandle", code)?;
    let range = uncaptured(driver, || map(driver, handle, bytes));
    // SAFETY: the mapping keeps the memory.
    unsafe { (driver.mem_release)(handle) };
    let range = range?;
    if let Err(error) = allow(driver, &range, &mapped.devices) {
        unmap(driver, &range);
        return Err(error);
    }
    mapped.ranges.push(range.clone());
    Ok(range.start)
}

fn new_chunk(driver: &Driver, device: c_int, bytes: u64) -> Result<Range<u64>, Error> {
    let properties = sys::CUmemAllocationProp {
        type_: sys::CUmemAllocationType_enum::CU_MEM_ALLOCATION_TYPE_PINNED,
        requestedHandleTypes: HANDLE_TYPE,
        location: location(device),
        win32HandleMetaData: std::ptr::null_mut(),
        allocFlags: sys::CUmemAllocationProp_st__bindgen_ty_1 {
            compressionType: 0,
            gpuDirectRDMACapable: 0,
            usage: 0,
            reserved: [0; 4],
        },
    };
    let mut granularity = 0;
    // SAFETY: reads the properties, stores a size.
    let code = unsafe { (driver.mem_get_allocation_granularity)(&mut granularity, &properties, 0) };
    driver.check("cuMemGetAllocationGranularity", code)?;
    let bytes = bytes.next_multiple_of(granularity as u64);
    let mut handle = 0;
    // SAFETY: reads the properties, stores the handle on success.
    let code = unsafe { (driver.mem_create)(&mut handle, bytes as usize, &properties, 0) };
    driver.check("cuMemCreate", code)?;
    let range = map(driver, handle, bytes);
    // SAFETY: the mapping keeps the memory.
    unsafe { (driver.mem_release)(handle) };
    range
}

fn map(driver: &Driver, handle: u64, bytes: u64) -> Result<Range<u64>, Error> {
    let mut start = 0;
    // SAFETY: stores the address on success.
    let code = unsafe { (driver.mem_address_reserve)(&mut start, bytes as usize, 0, 0, 0) };
    driver.check("cuMemAddressReserve", code)?;
    // SAFETY: the range is reserved, and the handle valid.
    let code = unsafe { (driver.mem_map)(start, bytes as usize, 0, handle, 0) };
    if let Err(error) = driver.check("cuMemMap", code) {
        // SAFETY: reserved above, and nothing is mapped there.
        unsafe { (driver.mem_address_free)(start, bytes as usize) };
        return Err(error);
    }
    Ok(start..start + bytes)
}

/// What [`map`] has made, and no device has accessed.
fn unmap(driver: &Driver, range: &Range<u64>) {
    let bytes = (range.end - range.start) as usize;
    // SAFETY: as above.
    unsafe {
        (driver.mem_unmap)(range.start, bytes);
        (driver.mem_address_free)(range.start, bytes);
    }
}

fn allow(driver: &Driver, range: &Range<u64>, devices: &[c_int]) -> Result<(), Error> {
    let access = devices.iter().map(|device| sys::CUmemAccessDesc {
        location: location(*device),
        flags: sys::CUmemAccess_flags_enum::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
    });
    let access = access.collect::<Vec<_>>();
    let bytes = (range.end - range.start) as usize;
    // SAFETY: the range is mapped; the descriptions are read.
    let code = uncaptured(driver, || unsafe {
        (driver.mem_set_access)(range.start, bytes, access.as_ptr(), access.len())
    });
    let failed = |error: Error| out_of_reach().got(error.what);
    driver.check("cuMemSetAccess", code).map_err(failed)
}

fn location(device: c_int) -> sys::CUmemLocation {
    sys::CUmemLocation {
        type_: sys::CUmemLocationType_enum::CU_MEM_LOCATION_TYPE_DEVICE,
        id: device,
    }
}
