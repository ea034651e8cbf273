//! The driver's entry points.
//!
//! Looked up here rather than called through `cudarc::driver::sys`, whose functions panic when the library or a symbol
//! is missing and return a Rust enum, which an unknown code would make undefined behaviour. Its types are used.
use cudarc::driver::sys;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::sync::OnceLock;

use crate::error::{Error, Fault};

/// A `CUresult` as the integer that it is.
pub type Code = c_uint;

pub const SUCCESS: Code = 0;
pub const ERROR_INVALID_IMAGE: Code = 200;
pub const ERROR_NO_BINARY_FOR_GPU: Code = 209;
pub const ERROR_INVALID_PTX: Code = 218;
pub const ERROR_PEER_ACCESS_UNSUPPORTED: Code = 217;
pub const ERROR_PEER_ACCESS_ALREADY_ENABLED: Code = 704;
pub const ERROR_UNSUPPORTED_PTX_VERSION: Code = 222;
pub const ERROR_NOT_SUPPORTED: Code = 801;

macro_rules! entry_points {
    ($($field:ident = $symbol:literal: fn($($arg:ty),*);)*) => {
        /// The driver's functions that smalt calls.
        #[allow(non_snake_case)]
        pub struct Driver {
            $(pub $field: unsafe extern "C" fn($($arg),*) -> Code,)*
        }

        impl Driver {
            fn load(library: &'static libloading::Library) -> Result<Driver, Error> {
                Ok(Driver {
                    $($field: {
                        // SAFETY: the symbol has this signature in every driver that exports the name (cuda.h).
                        let symbol = unsafe {
                            library.get::<unsafe extern "C" fn($($arg),*) -> Code>(concat!($symbol, "\0").as_bytes())
                        };
                        *symbol.map_err(|_| {
                            Error::new(Fault::Environment, concat!("the CUDA driver lacks `", $symbol, "`"))
                                .remedy("install an NVIDIA driver of release 525 (CUDA 12.0) or newer")
                        })?
                    },)*
                })
            }
        }
    };
}

entry_points! {
    init = "cuInit": fn(c_uint);
    driver_get_version = "cuDriverGetVersion": fn(*mut c_int);
    device_get_count = "cuDeviceGetCount": fn(*mut c_int);
    device_get = "cuDeviceGet": fn(*mut sys::CUdevice, c_int);
    device_get_name = "cuDeviceGetName": fn(*mut c_char, c_int, sys::CUdevice);
    device_get_attribute = "cuDeviceGetAttribute": fn(*mut c_int, c_uint, sys::CUdevice);
    primary_ctx_retain = "cuDevicePrimaryCtxRetain": fn(*mut sys::CUcontext, sys::CUdevice);
    ctx_get_current = "cuCtxGetCurrent": fn(*mut sys::CUcontext);
    ctx_push_current = "cuCtxPushCurrent_v2": fn(sys::CUcontext);
    ctx_pop_current = "cuCtxPopCurrent_v2": fn(*mut sys::CUcontext);
    ctx_get_device = "cuCtxGetDevice": fn(*mut sys::CUdevice);
    ctx_enable_peer_access = "cuCtxEnablePeerAccess": fn(sys::CUcontext, c_uint);
    ctx_synchronize = "cuCtxSynchronize": fn();
    thread_exchange_capture_mode = "cuThreadExchangeStreamCaptureMode": fn(*mut c_uint);
    module_load_data_ex = "cuModuleLoadDataEx":
        fn(*mut sys::CUmodule, *const c_void, c_uint, *mut c_uint, *mut *mut c_void);
    module_unload = "cuModuleUnload": fn(sys::CUmodule);
    module_get_function = "cuModuleGetFunction": fn(*mut sys::CUfunction, sys::CUmodule, *const c_char);
    func_get_attribute = "cuFuncGetAttribute": fn(*mut c_int, c_uint, sys::CUfunction);
    func_set_attribute = "cuFuncSetAttribute": fn(sys::CUfunction, c_uint, c_int);
    max_active_blocks = "cuOccupancyMaxActiveBlocksPerMultiprocessor":
        fn(*mut c_int, sys::CUfunction, c_int, usize);
    launch_kernel_ex = "cuLaunchKernelEx":
        fn(*const sys::CUlaunchConfig, sys::CUfunction, *mut *mut c_void, *mut *mut c_void);
    launch_host_func = "cuLaunchHostFunc":
        fn(sys::CUstream, unsafe extern "C" fn(*mut c_void), *mut c_void);
    tensor_map_encode_tiled = "cuTensorMapEncodeTiled":
        fn(*mut sys::CUtensorMap, c_uint, c_uint, *mut c_void, *const u64, *const u64, *const u32, *const u32,
           c_uint, c_uint, c_uint, c_uint);
    tensor_map_replace_address = "cuTensorMapReplaceAddress": fn(*mut sys::CUtensorMap, *mut c_void);
    mem_alloc = "cuMemAlloc_v2": fn(*mut u64, usize);
    mem_host_alloc = "cuMemHostAlloc": fn(*mut *mut c_void, usize, c_uint);
    mem_free = "cuMemFree_v2": fn(u64);
    mem_get_address_range = "cuMemGetAddressRange_v2": fn(*mut u64, *mut usize, u64);
    mem_get_allocation_granularity = "cuMemGetAllocationGranularity":
        fn(*mut usize, *const sys::CUmemAllocationProp, c_uint);
    mem_create = "cuMemCreate": fn(*mut u64, usize, *const sys::CUmemAllocationProp, u64);
    mem_release = "cuMemRelease": fn(u64);
    mem_address_reserve = "cuMemAddressReserve": fn(*mut u64, usize, usize, u64, u64);
    mem_address_free = "cuMemAddressFree": fn(u64, usize);
    mem_map = "cuMemMap": fn(u64, usize, usize, u64, u64);
    mem_unmap = "cuMemUnmap": fn(u64, usize);
    mem_set_access = "cuMemSetAccess": fn(u64, usize, *const sys::CUmemAccessDesc, usize);
    mem_retain_allocation_handle = "cuMemRetainAllocationHandle": fn(*mut u64, *mut c_void);
    mem_export = "cuMemExportToShareableHandle": fn(*mut c_void, u64, c_uint, u64);
    mem_import = "cuMemImportFromShareableHandle": fn(*mut u64, *mut c_void, c_uint);
    pointer_get_attribute = "cuPointerGetAttribute": fn(*mut c_void, c_uint, u64);
    memcpy_htod = "cuMemcpyHtoD_v2": fn(u64, *const c_void, usize);
    memcpy_dtoh = "cuMemcpyDtoH_v2": fn(*mut c_void, u64, usize);
    memcpy_dtod_async = "cuMemcpyDtoDAsync_v2": fn(u64, u64, usize, sys::CUstream);
    memcpy_dtoh_async = "cuMemcpyDtoHAsync_v2": fn(*mut c_void, u64, usize, sys::CUstream);
    stream_synchronize = "cuStreamSynchronize": fn(sys::CUstream);
    stream_batch_mem_op = "cuStreamBatchMemOp_v2":
        fn(sys::CUstream, c_uint, *mut sys::CUstreamBatchMemOpParams, c_uint);
    event_create = "cuEventCreate": fn(*mut sys::CUevent, c_uint);
    event_record = "cuEventRecord": fn(sys::CUevent, sys::CUstream);
    event_synchronize = "cuEventSynchronize": fn(sys::CUevent);
    event_elapsed_time = "cuEventElapsedTime": fn(*mut f32, sys::CUevent, sys::CUevent);
    event_destroy = "cuEventDestroy_v2": fn(sys::CUevent);
    get_error_name = "cuGetErrorName": fn(c_uint, *mut *const c_char);
    get_error_string = "cuGetErrorString": fn(c_uint, *mut *const c_char);
}

/// The driver, initialised; the same error each time on a machine that has none.
pub fn driver() -> Result<&'static Driver, Error> {
    static DRIVER: OnceLock<Result<Driver, Error>> = OnceLock::new();
    DRIVER.get_or_init(open).as_ref().map_err(Clone::clone)
}

fn open() -> Result<Driver, Error> {
    // SAFETY: looks for libcuda in the loader's path; loading it runs only its own initialisers.
    if !unsafe { sys::is_culib_present() } {
        return Err(Error::new(
            Fault::Environment,
            "there is no NVIDIA driver on this machine (libcuda.so.1)",
        )
        .expected("a GPU of compute capability 9.0 and its driver, CUDA 12.0 or newer")
        .remedy(
            "run on the CPU platform, where kernels run in the emulator; `python -m smalt doctor` says what is here",
        ));
    }
    // SAFETY: the library is present, so that this does not panic; it is never unloaded.
    let driver = Driver::load(unsafe { sys::culib() })?;
    // SAFETY: `cuInit` may be called at any time and more than once.
    driver.check("cuInit", unsafe { (driver.init)(0) })?;
    Ok(driver)
}

impl Driver {
    /// The code as an error with the call that failed and the driver's name of it.
    pub fn check(&self, call: &str, code: Code) -> Result<(), Error> {
        if code == SUCCESS {
            Ok(())
        } else {
            Err(self.error(call, code))
        }
    }

    #[cold]
    fn error(&self, call: &str, code: Code) -> Error {
        let text = |lookup: unsafe extern "C" fn(c_uint, *mut *const c_char) -> Code| {
            let mut text = std::ptr::null();
            // SAFETY: on success the driver stores a static C string, else null or nothing.
            let found = unsafe { lookup(code, &mut text) } == SUCCESS && !text.is_null();
            // SAFETY: as above.
            found.then(|| unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned())
        };
        let name = text(self.get_error_name).unwrap_or_else(|| format!("code {code}"));
        let meaning = text(self.get_error_string).unwrap_or_else(|| "a code that this driver does not name".into());
        Error::new(Fault::Execution, format!("{call} failed: {name} ({meaning})"))
    }
}

/// Runs `body` while the thread may make calls that a stream capture elsewhere would otherwise forbid
/// (`cuModuleLoadDataEx` while XLA records a graph in another thread).
pub fn uncaptured<T>(driver: &Driver, body: impl FnOnce() -> T) -> T {
    const RELAXED: c_uint = 2; // CU_STREAM_CAPTURE_MODE_RELAXED
    let mut mode = RELAXED;
    // SAFETY: exchanges this thread's mode with `mode`.
    let exchanged = unsafe { (driver.thread_exchange_capture_mode)(&mut mode) } == SUCCESS;
    let result = body();
    if exchanged {
        // SAFETY: as above; restores the old mode.
        unsafe { (driver.thread_exchange_capture_mode)(&mut mode) };
    }
    result
}

/// The current context. `what`: what needs one.
pub fn current_context(driver: &Driver, what: &str) -> Result<sys::CUcontext, Error> {
    let mut context = std::ptr::null_mut();
    // SAFETY: stores the current context, null if there is none.
    driver.check("cuCtxGetCurrent", unsafe { (driver.ctx_get_current)(&mut context) })?;
    match context.is_null() {
        true => Err(Error::internal(format!("no CUDA context is current where {what}"))),
        false => Ok(context),
    }
}

/// The device of the current context.
pub fn current_device(driver: &Driver) -> Result<sys::CUdevice, Error> {
    let mut device = 0;
    // SAFETY: stores the device of the current context.
    driver.check("cuCtxGetDevice", unsafe { (driver.ctx_get_device)(&mut device) })?;
    Ok(device)
}
