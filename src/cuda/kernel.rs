//! A kernel on a device: loading and launching.
use super::driver::{
    Code, Driver, ERROR_INVALID_IMAGE, ERROR_INVALID_PTX, ERROR_NO_BINARY_FOR_GPU, ERROR_UNSUPPORTED_PTX_VERSION,
    SUCCESS, current_context, driver, uncaptured,
};
use super::plan::{Param, Plan, TensorMap};
use super::{DeviceInfo, retire};
use crate::error::{Error, Fault};
use cudarc::driver::sys;
use serde::Serialize;
use smallvec::SmallVec;
use std::ffi::{CString, c_int, c_uint, c_void};
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::Mutex;

/// Numbers of cuda.h (`CUfunction_attribute`).
mod function_attribute {
    use std::ffi::c_uint;
    pub const SHARED_SIZE_BYTES: c_uint = 1;
    pub const LOCAL_SIZE_BYTES: c_uint = 3;
    pub const NUM_REGS: c_uint = 4;
    pub const MAX_DYNAMIC_SHARED_SIZE_BYTES: c_uint = 8;
    pub const NON_PORTABLE_CLUSTER_SIZE_ALLOWED: c_uint = 14;
}

/// Numbers of cuda.h (`CUjit_option`).
mod jit_option {
    use std::ffi::c_uint;
    pub const INFO_LOG_BUFFER: c_uint = 3;
    pub const INFO_LOG_BUFFER_SIZE_BYTES: c_uint = 4;
    pub const ERROR_LOG_BUFFER: c_uint = 5;
    pub const ERROR_LOG_BUFFER_SIZE_BYTES: c_uint = 6;
    pub const LOG_VERBOSE: c_uint = 12;
    pub const GENERATE_LINE_INFO: c_uint = 13;
}

/// The largest cluster that every device takes without an opt-in (CUDA programming guide, thread block clusters).
const PORTABLE_CLUSTER: u32 = 8;

/// Any 256-byte aligned address: a tensor map is encoded once at load and gets its buffer's address at launch.
const PLACEHOLDER_ADDRESS: usize = 1 << 40;

/// What a module is loaded from.
pub enum Image<'a> {
    Cubin(&'a [u8]),
    Ptx { text: &'a str, line_info: bool },
}

/// The log of the driver's own assembler; empty when its compute cache had the kernel.
#[derive(Clone, Debug, Default, Serialize)]
pub struct JitLog {
    pub info: String,
    pub error: String,
}

/// The device's attributes of the kernel.
#[derive(Clone, Debug, Serialize)]
pub struct Resources {
    pub device: DeviceInfo,
    pub registers: u32,
    /// Stack and spills of one thread, in bytes.
    pub local_bytes: u32,
    pub static_smem_bytes: u32,
    /// CTAs that fit on one multiprocessor.
    pub ctas_per_multiprocessor: u32,
}

/// A kernel on one device, ready to launch.
pub struct Loaded {
    context: sys::CUcontext,
    module: sys::CUmodule,
    function: sys::CUfunction,
    plan: Plan,
    /// The tensor maps of `plan.params`, in order, over a placeholder address.
    maps: Vec<sys::CUtensorMap>,
    /// The maps of the latest launch, with the addresses that are in them: buffers seldom move between two steps.
    latest: Mutex<Vec<(u64, sys::CUtensorMap)>>,
    attributes: Vec<sys::CUlaunchAttribute>,
    resources: Resources,
    log: JitLog,
}

// SAFETY: driver handles may be used from any thread; the rest is immutable after loading.
unsafe impl Send for Loaded {}
// SAFETY: as above.
unsafe impl Sync for Loaded {}

impl Loaded {
    /// Loads `image` in the context that is current on this thread and prepares `plan`'s launch.
    pub fn load(plan: Plan, image: Image<'_>) -> Result<Loaded, Error> {
        plan.check()?;
        let driver = driver()?;
        let context = current_context(driver, "a kernel is to be loaded")?;
        let device = DeviceInfo::current()?;
        if plan.smem_bytes > device.smem_per_block {
            return Err(Error::invalid("the kernel's shared memory does not fit")
                .expected(format!("at most {} bytes on {}", device.smem_per_block, device.name))
                .got(format!("{} bytes", plan.smem_bytes))
                .remedy("use smaller tiles or fewer pipeline stages"));
        }
        let (module, log) = uncaptured(driver, || load_module(driver, &image))?;
        // From here on, an error must not leak the module.
        let module = ModuleGuard { driver, module };
        let name = CString::new(plan.entry.as_str()).map_err(|_| Error::internal("an entry's name holds a NUL"))?;
        let mut function = ptr::null_mut();
        // SAFETY: the module is loaded and the name is NUL-terminated.
        let code = unsafe { (driver.module_get_function)(&mut function, module.module, name.as_ptr()) };
        driver.check("cuModuleGetFunction", code)?;

        let get = |attribute: c_uint| {
            let mut value: c_int = 0;
            // SAFETY: `function` is valid.
            let code = unsafe { (driver.func_get_attribute)(&mut value, attribute, function) };
            driver.check("cuFuncGetAttribute", code).map(|()| value as u32)
        };
        let set = |attribute: c_uint, value: u32| {
            // SAFETY: `function` is valid.
            let code = unsafe { (driver.func_set_attribute)(function, attribute, value as c_int) };
            driver.check("cuFuncSetAttribute", code)
        };
        let static_smem_bytes = get(function_attribute::SHARED_SIZE_BYTES)?;
        if plan.smem_bytes > 0 {
            set(function_attribute::MAX_DYNAMIC_SHARED_SIZE_BYTES, plan.smem_bytes)?;
        }
        if plan.cluster.iter().product::<u32>() > PORTABLE_CLUSTER {
            set(function_attribute::NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 1)?;
        }
        let mut ctas: c_int = 0;
        // SAFETY: `function` is valid.
        let code =
            unsafe { (driver.max_active_blocks)(&mut ctas, function, plan.block as c_int, plan.smem_bytes as usize) };
        driver.check("cuOccupancyMaxActiveBlocksPerMultiprocessor", code)?;
        let resources = Resources {
            registers: get(function_attribute::NUM_REGS)?,
            local_bytes: get(function_attribute::LOCAL_SIZE_BYTES)?,
            static_smem_bytes,
            ctas_per_multiprocessor: ctas as u32,
            device,
        };
        let maps = plan.params.iter().filter_map(|param| match param {
            Param::Pointer { .. } => None,
            Param::TensorMap(map) => Some(encode(driver, map)),
        });
        Ok(Loaded {
            context,
            function,
            maps: maps.collect::<Result<_, _>>()?,
            latest: Mutex::default(),
            attributes: launch_attributes(&plan),
            module: module.into_inner(),
            resources,
            log,
            plan,
        })
    }

    pub fn resources(&self) -> &Resources {
        &self.resources
    }

    pub fn log(&self) -> &JitLog {
        &self.log
    }

    /// Queues the kernel on `stream` (a `CUstream` of the context that it was loaded in).
    ///
    /// `addresses` are the buffers' device addresses, in the plan's numbering. Whether these are buffers of the sizes
    /// that the kernel was compiled for is the caller's business: a GPU kernel is as unsafe as a pointer.
    pub fn launch(&self, stream: usize, addresses: &[u64]) -> Result<(), Error> {
        let driver = driver()?;
        let maps = self.maps_at(driver, addresses)?;
        let mut next_map = maps.iter();
        let mut params: SmallVec<[*mut c_void; 64]> = SmallVec::new();
        for param in &self.plan.params {
            params.push(match param {
                Param::Pointer { buffer } => ptr::from_ref(buffer_address(addresses, *buffer)?).cast_mut().cast(),
                Param::TensorMap(_) => {
                    // INVARIANT: `maps` has one entry per tensor map of `plan.params`.
                    let (_, map) = next_map.next().expect("a map per parameter");
                    ptr::from_ref(map).cast_mut().cast()
                }
            });
        }
        let [x, y, z] = self.plan.grid;
        let config = sys::CUlaunchConfig {
            gridDimX: x,
            gridDimY: y,
            gridDimZ: z,
            blockDimX: self.plan.block,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: self.plan.smem_bytes,
            hStream: stream as sys::CUstream,
            attrs: self.attributes.as_ptr().cast_mut(),
            numAttrs: self.attributes.len() as c_uint,
        };
        // SAFETY: `params` points to one value per entry parameter, each of its parameter's size and alignment, alive
        // until the call returns (the driver copies them); the attributes are read only.
        let code = unsafe { (driver.launch_kernel_ex)(&config, self.function, params.as_mut_ptr(), ptr::null_mut()) };
        driver.check("cuLaunchKernelEx", code)
    }

    /// The tensor maps over these buffers: the latest launch's, or theirs with new addresses. Never waits for another
    /// thread.
    fn maps_at(&self, driver: &Driver, addresses: &[u64]) -> Result<SmallVec<[(u64, sys::CUtensorMap); 8]>, Error> {
        let mut maps = SmallVec::new();
        if self.maps.is_empty() {
            return Ok(maps);
        }
        if let Ok(latest) = self.latest.try_lock() {
            maps.extend_from_slice(&latest);
        }
        let fresh = self.maps.iter().map(|map| (0, *map));
        if maps.is_empty() {
            maps.extend(fresh);
        }
        let specs = self.plan.params.iter().filter_map(|param| match param {
            Param::Pointer { .. } => None,
            Param::TensorMap(spec) => Some(spec),
        });
        let mut moved = false;
        for (spec, (at, map)) in specs.zip(&mut maps) {
            let address = buffer_address(addresses, spec.buffer)? + spec.byte_offset;
            if address == *at {
                continue;
            }
            if address % 16 != 0 {
                return Err(misaligned(spec, address));
            }
            // SAFETY: `map` is an encoded tensor map, 64-byte aligned by its type.
            let code = unsafe { (driver.tensor_map_replace_address)(map, address as *mut c_void) };
            driver.check("cuTensorMapReplaceAddress", code)?;
            *at = address;
            moved = true;
        }
        if moved && let Ok(mut latest) = self.latest.try_lock() {
            latest.clear();
            latest.extend_from_slice(&maps);
        }
        Ok(maps)
    }
}

fn buffer_address(addresses: &[u64], buffer: u32) -> Result<&u64, Error> {
    let missing = || Error::internal(format!("a launch without buffer {buffer}"));
    addresses.get(buffer as usize).ok_or_else(missing)
}

impl Drop for Loaded {
    fn drop(&mut self) {
        retire::retire(self.context, retire::Thing::Module(self.module));
    }
}

struct ModuleGuard {
    driver: &'static Driver,
    module: sys::CUmodule,
}

impl ModuleGuard {
    fn into_inner(self) -> sys::CUmodule {
        let module = self.module;
        std::mem::forget(self);
        module
    }
}

impl Drop for ModuleGuard {
    fn drop(&mut self) {
        // SAFETY: nothing was ever launched from it.
        unsafe { (self.driver.module_unload)(self.module) };
    }
}

#[cold]
fn misaligned(spec: &TensorMap, address: u64) -> Error {
    Error::invalid(format!("buffer {} of a TMA transfer is misaligned", spec.buffer))
        .expected("an address that is a multiple of 16")
        .got(format!("{address:#x} ({} bytes into the buffer)", spec.byte_offset))
        .remedy("pass an array of its own (XLA aligns those), not a view of another library's memory")
}

/// The 128 bytes of a tensor map over a placeholder address: what goes to a multiple of 128 in device memory for a kernel that sets the
/// address itself.
pub fn encode_map(map: &TensorMap) -> Result<[u8; 128], Error> {
    let map = encode(driver()?, map)?;
    // SAFETY: opaque words of the size of the type.
    Ok(unsafe { std::mem::transmute::<sys::CUtensorMap, [u8; 128]>(map) })
}

fn encode(driver: &Driver, spec: &TensorMap) -> Result<sys::CUtensorMap, Error> {
    let rank = spec.dims.len();
    let mut map = MaybeUninit::uninit();
    let element_strides = [1u32; super::MAX_TENSOR_RANK];
    // SAFETY: every array has at least `rank` entries, the strides `rank - 1`; the map is written on success only.
    let code = unsafe {
        (driver.tensor_map_encode_tiled)(
            map.as_mut_ptr(),
            spec.data_type,
            rank as c_uint,
            PLACEHOLDER_ADDRESS as *mut c_void,
            spec.dims.as_ptr(),
            spec.strides.as_ptr(),
            spec.box_dims.as_ptr(),
            element_strides.as_ptr(),
            0, // no interleave
            spec.swizzle,
            0, // no L2 promotion: measured, no effect
            0, // elements out of bounds read as zero
        )
    };
    if code != SUCCESS {
        let error = driver.check("cuTensorMapEncodeTiled", code).unwrap_err();
        return Err(Error::internal(format!("{}, for {spec:?}", error.what)));
    }
    // SAFETY: the driver has written it.
    Ok(unsafe { map.assume_init() })
}

fn launch_attributes(plan: &Plan) -> Vec<sys::CUlaunchAttribute> {
    let mut attributes = Vec::new();
    let mut push = |id, value| attributes.push(sys::CUlaunchAttribute { id, pad: [0; 4], value });
    if plan.cluster != [1, 1, 1] {
        let mut value = zeroed_value();
        let [x, y, z] = plan.cluster;
        value.clusterDim = sys::CUlaunchAttributeValue_union__bindgen_ty_1 { x, y, z };
        push(sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION, value);
    }
    if plan.programmatic_launch {
        let mut value = zeroed_value();
        value.programmaticStreamSerializationAllowed = 1;
        push(
            sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
            value,
        );
    }
    attributes
}

fn zeroed_value() -> sys::CUlaunchAttributeValue {
    sys::CUlaunchAttributeValue { pad: [0; 64] }
}

fn load_module(driver: &Driver, image: &Image<'_>) -> Result<(sys::CUmodule, JitLog), Error> {
    let mut info = vec![0u8; 16 << 10];
    let mut error = vec![0u8; 16 << 10];
    let mut module = ptr::null_mut();
    let (mut text, line_info) = match image {
        Image::Cubin(bytes) => (bytes.to_vec(), false),
        Image::Ptx { text, line_info } => (text.as_bytes().to_vec(), *line_info),
    };
    text.push(0);
    let mut options = [
        jit_option::INFO_LOG_BUFFER,
        jit_option::INFO_LOG_BUFFER_SIZE_BYTES,
        jit_option::ERROR_LOG_BUFFER,
        jit_option::ERROR_LOG_BUFFER_SIZE_BYTES,
        jit_option::LOG_VERBOSE,
        jit_option::GENERATE_LINE_INFO,
    ];
    let mut values = [
        info.as_mut_ptr().cast::<c_void>(),
        ptr::without_provenance_mut(info.len() - 1),
        error.as_mut_ptr().cast::<c_void>(),
        ptr::without_provenance_mut(error.len() - 1),
        ptr::without_provenance_mut(1),
        ptr::without_provenance_mut(usize::from(line_info)),
    ];
    // SAFETY: the image is a whole cubin or NUL-terminated PTX; each option has its value, and the buffers outlive the
    // call with a byte to spare for the NUL.
    let code = unsafe {
        (driver.module_load_data_ex)(
            &mut module,
            text.as_ptr().cast(),
            options.len() as c_uint,
            options.as_mut_ptr(),
            values.as_mut_ptr(),
        )
    };
    let log = JitLog {
        info: c_text(&info),
        error: c_text(&error),
    };
    if code == SUCCESS {
        return Ok((module, log));
    }
    let mut result = driver.check("cuModuleLoadDataEx", code).unwrap_err();
    if is_image_error(code) {
        result.fault = Fault::Environment;
        result = result.remedy(match image {
            Image::Cubin(_) => "the assembler may be newer than the driver; set SMALT_ASSEMBLER=driver",
            Image::Ptx { .. } => "the driver may be too old for this kernel's PTX version",
        });
    }
    if !log.error.is_empty() {
        result = result.got(log.error);
    }
    Err(result)
}

/// The image, not the machine, is what the driver dislikes.
fn is_image_error(code: Code) -> bool {
    [
        ERROR_INVALID_IMAGE,
        ERROR_NO_BINARY_FOR_GPU,
        ERROR_INVALID_PTX,
        ERROR_UNSUPPORTED_PTX_VERSION,
    ]
    .contains(&code)
}

fn c_text(buffer: &[u8]) -> String {
    let end = buffer.iter().position(|&byte| byte == 0).unwrap_or(buffer.len());
    String::from_utf8_lossy(&buffer[..end]).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_misaligned_buffer_is_said_in_words() {
        let map = TensorMap {
            buffer: 2,
            byte_offset: 64,
            data_type: 7,
            dims: [64].into_iter().collect(),
            strides: Default::default(),
            box_dims: [64].into_iter().collect(),
            swizzle: 0,
        };
        let text = misaligned(&map, 0x1004).to_string();
        for words in [
            "buffer 2 of a TMA transfer is misaligned",
            "expected: an address that is a multiple of 16",
            "got: 0x1004 (64 bytes into the buffer)",
            "remedy: pass an array of its own",
        ] {
            assert!(text.contains(words), "{text}");
        }
    }
}
