//! What the machine has.
use super::driver::{Driver, current_device, driver};
use crate::error::Error;
use serde::Serialize;
use std::ffi::{c_char, c_int, c_uint};

/// Device attributes, numbered as in cuda.h (`CUdevice_attribute`).
pub(super) mod attribute {
    use std::ffi::c_uint;
    pub const MULTIPROCESSOR_COUNT: c_uint = 16;
    pub const CAPABILITY_MAJOR: c_uint = 75;
    pub const CAPABILITY_MINOR: c_uint = 76;
    pub const MAX_SHARED_MEMORY_PER_BLOCK_OPTIN: c_uint = 97;
}

/// One GPU.
#[derive(Clone, Debug, Serialize)]
pub struct DeviceInfo {
    pub name: String,
    /// Compute capability.
    pub capability: (u32, u32),
    pub multiprocessors: u32,
    /// Shared memory that one CTA may have, in bytes.
    pub smem_per_block: u32,
}

impl DeviceInfo {
    pub(super) fn of(driver: &Driver, device: c_int) -> Result<DeviceInfo, Error> {
        let attribute = |which: c_uint| {
            let mut value = 0;
            // SAFETY: `device` is a valid device; the value is stored in `value`.
            let code = unsafe { (driver.device_get_attribute)(&mut value, which, device) };
            driver.check("cuDeviceGetAttribute", code).map(|()| value as u32)
        };
        let mut name = [0 as c_char; 256];
        // SAFETY: the driver writes at most 256 bytes, NUL included.
        let code = unsafe { (driver.device_get_name)(name.as_mut_ptr(), 256, device) };
        driver.check("cuDeviceGetName", code)?;
        let name = name
            .iter()
            .take_while(|&&c| c != 0)
            .map(|&c| c as u8)
            .collect::<Vec<_>>();
        Ok(DeviceInfo {
            name: String::from_utf8_lossy(&name).into_owned(),
            capability: (
                attribute(attribute::CAPABILITY_MAJOR)?,
                attribute(attribute::CAPABILITY_MINOR)?,
            ),
            multiprocessors: attribute(attribute::MULTIPROCESSOR_COUNT)?,
            smem_per_block: attribute(attribute::MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)?,
        })
    }

    /// The GPU whose context is current on this thread.
    pub fn current() -> Result<DeviceInfo, Error> {
        let driver = driver()?;
        DeviceInfo::of(driver, current_device(driver)?)
    }
}

/// Every GPU that the driver shows, in its order.
pub fn devices() -> Result<Vec<DeviceInfo>, Error> {
    let driver = driver()?;
    let mut count = 0;
    // SAFETY: stores the count.
    driver.check("cuDeviceGetCount", unsafe { (driver.device_get_count)(&mut count) })?;
    (0..count)
        .map(|ordinal| {
            let mut device = 0;
            // SAFETY: `ordinal` is below the count.
            driver.check("cuDeviceGet", unsafe { (driver.device_get)(&mut device, ordinal) })?;
            DeviceInfo::of(driver, device)
        })
        .collect()
}

/// The CUDA version that the driver supports, e.g. (13, 0).
pub fn driver_version() -> Result<(u32, u32), Error> {
    let driver = driver()?;
    let mut version: c_int = 0;
    // SAFETY: stores the version.
    driver.check("cuDriverGetVersion", unsafe {
        (driver.driver_get_version)(&mut version)
    })?;
    Ok((version as u32 / 1000, version as u32 % 1000 / 10))
}
