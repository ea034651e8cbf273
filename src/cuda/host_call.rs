//! A call of the host's on a stream, when what was queued before is over.
use super::driver::driver;
use crate::error::Error;
use cudarc::driver::sys;
use std::ffi::c_void;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// What is called: it must not call CUDA, nor wait for a thread that does.
pub struct HostCall {
    body: Box<dyn Fn() + Send + Sync>,
}

impl HostCall {
    /// Never freed: a stream may come to it at any time.
    pub fn new(body: impl Fn() + Send + Sync + 'static) -> &'static HostCall {
        Box::leak(Box::new(HostCall { body: Box::new(body) }))
    }

    /// Queues a call on `stream` (a `CUstream` of the current context).
    pub fn queue(&'static self, stream: usize) -> Result<(), Error> {
        let driver = driver()?;
        let data = std::ptr::from_ref(self).cast_mut().cast::<c_void>();
        // SAFETY: the function takes what `data` is, which is never freed and is shared between threads.
        let code = unsafe { (driver.launch_host_func)(stream as sys::CUstream, call, data) };
        driver.check("cuLaunchHostFunc", code)
    }
}

/// What the driver calls, on a thread of its own.
unsafe extern "C" fn call(data: *mut c_void) {
    // SAFETY: `queue` passes a `HostCall` that is never freed.
    let call = unsafe { &*data.cast_const().cast::<HostCall>() };
    // A panic must not reach the driver; the hook has reported it.
    let _ = catch_unwind(AssertUnwindSafe(|| (call.body)()));
}
