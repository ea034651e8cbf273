//! The C API: plain functions for ctypes. `jax_plugin/smalt/_native.py` declares them; nothing else calls them.
//!
//! * Bytes come in as pointer and length, and go out as [`Bytes`], which the caller gives back to [`smalt_free`].
//! * A function returns its error as JSON ([`LocatedError`](crate::runtime::LocatedError)), and empty bytes on success;
//!   results go through out-parameters.
//! * No panic leaves: a panic is an error like others. So every function that does anything can fail, but for those
//!   without results: those that free what the library made, and those that set its callbacks.
use crate::error::Error;
use crate::runtime::{
    self, Artifact, BufferSpec, BufferView, CallSite, CallSiteAttributes, CompileOptions, HostBuffer, Locations,
};
use crate::target::MACHINES;
use serde::Deserialize;
use serde_json::json;
use std::ffi::c_char;
use std::sync::Arc;

/// Raised with every incompatible change; the Python side checks it.
pub const CAPI_VERSION: u32 = 4;

/// Bytes that the library owns until [`smalt_free`]. Empty: null and 0.
#[repr(C)]
pub struct Bytes {
    data: *mut u8,
    len: usize,
}

impl Bytes {
    const EMPTY: Bytes = Bytes {
        data: std::ptr::null_mut(),
        len: 0,
    };

    fn new(bytes: impl Into<Vec<u8>>) -> Bytes {
        let bytes: Box<[u8]> = bytes.into().into_boxed_slice();
        if bytes.is_empty() {
            return Bytes::EMPTY;
        }
        let len = bytes.len();
        Bytes {
            data: Box::into_raw(bytes).cast(),
            len,
        }
    }
}

/// A compiled kernel and the locations of the call site that it was compiled for.
pub struct Handle {
    artifact: Arc<Artifact>,
    locations: Locations,
}

/// # Safety
/// `data` points to `len` readable bytes that outlive `'a`, or `len` is 0.
unsafe fn slice<'a>(data: *const u8, len: usize) -> &'a [u8] {
    if len == 0 {
        return &[];
    }
    // SAFETY: as our caller promises.
    unsafe { std::slice::from_raw_parts(data, len) }
}

/// # Safety
/// As for [`slice`], of each.
unsafe fn slices<'a, const N: usize>(parts: [(*const u8, usize); N]) -> [&'a [u8]; N] {
    // SAFETY: as our caller promises.
    parts.map(|(data, len)| unsafe { slice(data, len) })
}

/// A pointer for the caller, who gives it back.
///
/// # Safety
/// `out` is writable.
unsafe fn hand_out<T>(out: *mut *mut T, made: T) -> Result<(), Error> {
    // SAFETY: as our caller promises.
    unsafe { out.write(Box::into_raw(Box::new(made))) };
    Ok(())
}

fn from_json<'a, T: Deserialize<'a>>(what: &str, text: &'a [u8]) -> Result<T, Error> {
    serde_json::from_slice(text).map_err(|error| Error::internal(format!("{what} of the C API: {error}")))
}

fn answer(locations: &Locations, body: impl FnOnce() -> Result<(), Error>) -> Bytes {
    let Err(error) = runtime::contain_panics(body) else {
        return Bytes::EMPTY;
    };
    // Locations come from outside, too: an error that cannot be located with them is reported without.
    let located = runtime::contain_panics(|| Ok(json!(locations.locate(&error)).to_string()));
    Bytes::new(located.unwrap_or_else(|_| json!(Locations::default().locate(&error)).to_string()))
}

/// [`answer`], with what `body` makes in `out`.
///
/// # Safety
/// `out` is writable.
unsafe fn answer_with<T: Into<Vec<u8>>>(
    locations: &Locations,
    out: *mut Bytes,
    body: impl FnOnce() -> Result<T, Error>,
) -> Bytes {
    answer(locations, || {
        let made = Bytes::new(body()?);
        // SAFETY: as our caller promises.
        unsafe { out.write(made) };
        Ok(())
    })
}

/// Runs what has no way to report a panic: Python calls it when it collects an object, or the library itself. A panic while dropping leaks the
/// rest, which is better than an abort.
fn contained(body: impl FnOnce()) {
    let _ = runtime::contain_panics(|| {
        body();
        Ok(())
    });
}

/// The locations in a debug table; none where it is damaged.
fn locations(debug: &[u8]) -> Locations {
    runtime::contain_panics(|| Ok(Locations::decode(debug))).unwrap_or_default()
}

#[unsafe(no_mangle)]
pub extern "C" fn smalt_capi_version() -> u32 {
    CAPI_VERSION
}

/// The main thread begins (1), or ends (0), to wait for runs of the emulator in the interpreter, which calls handlers of signals.
#[unsafe(no_mangle)]
pub extern "C" fn smalt_wait_for_runs(begins: i32) {
    runtime::handled_in_python(begins != 0);
}

/// All runs of the emulator are to end: a handler of a signal has raised.
#[unsafe(no_mangle)]
pub extern "C" fn smalt_end_runs() {
    runtime::end_runs();
}

/// Sets the interpreter's error to what the handler of a signal raised during a run, if one did. The caller holds the interpreter's lock.
#[unsafe(no_mangle)]
pub extern "C" fn smalt_raise_kept() {
    runtime::raise_kept();
}

/// The crate's version, NUL-terminated and static.
#[unsafe(no_mangle)]
pub extern "C" fn smalt_version() -> *const c_char {
    concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast()
}

/// Gives bytes back.
///
/// # Safety
/// `bytes` came from this library and is not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn smalt_free(bytes: Bytes) {
    if !bytes.data.is_null() {
        // SAFETY: made by `Bytes::new` from a box of this length.
        drop(unsafe { Box::from_raw(std::ptr::slice_from_raw_parts_mut(bytes.data, bytes.len)) });
    }
}

/// Sets where Python packages lie (a JSON list of folders): assemblers are looked for there.
///
/// # Safety
/// `json` points to `len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn smalt_set_packages(json: *const u8, len: usize) -> Bytes {
    // SAFETY: as our caller promises.
    let json = unsafe { slice(json, len) };
    answer(&Locations::default(), || {
        runtime::set_packages(from_json("the packages", json)?);
        Ok(())
    })
}

/// Sets the callback for the directory of a job of several processes: `ask` gets a request in JSON, and answers by calling
/// [`smalt_directory_answer`] with `sink` before it returns. See src/runtime/directory.rs.
#[unsafe(no_mangle)]
pub extern "C" fn smalt_set_directory(ask: extern "C" fn(request: *const u8, len: usize, sink: *mut Vec<u8>)) {
    contained(|| {
        runtime::directory::set(Arc::new(move |request: &str| {
            let mut answer = Vec::new();
            ask(request.as_ptr(), request.len(), &mut answer);
            answer
        }));
    });
}

/// # Safety
/// `sink` is that of a request under way; `json` points to `len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn smalt_directory_answer(sink: *mut Vec<u8>, json: *const u8, len: usize) {
    // SAFETY: as our caller promises.
    contained(|| unsafe { (*sink).extend_from_slice(slice(json, len)) });
}

/// Sets what writes kernels' prints: a text of `len` bytes, to standard output; false where it could not. Called from any thread, by one at
/// a time. Null: they go to file descriptor 1.
#[unsafe(no_mangle)]
pub extern "C" fn smalt_set_stdout(write: Option<extern "C" fn(text: *const u8, len: usize) -> bool>) {
    let writer = move |write: extern "C" fn(*const u8, usize) -> bool| -> runtime::printing::sink::Writer {
        Arc::new(move |text: &str| write(text.as_ptr(), text.len()))
    };
    contained(|| runtime::printing::sink::set(write.map(writer)));
}

/// Starts to look for an assembler, on another thread: a kernel for a GPU will soon be compiled.
#[unsafe(no_mangle)]
pub extern "C" fn smalt_look_for_assembler() {
    contained(runtime::look_for_assembler);
}

/// Compiles a descriptor (from the cache, if it was compiled before). `options` is JSON: `{"target": "sm_90a"}`.
///
/// # Safety
/// Each pointer points to its length in bytes; `out` is writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn smalt_compile(
    descriptor: *const u8,
    descriptor_len: usize,
    debug: *const u8,
    debug_len: usize,
    options: *const u8,
    options_len: usize,
    out: *mut *mut Handle,
) -> Bytes {
    // SAFETY: as our caller promises.
    let [descriptor, debug, options] =
        unsafe { slices([(descriptor, descriptor_len), (debug, debug_len), (options, options_len)]) };
    let locations = locations(debug);
    answer(&locations.clone(), || {
        let options: CompileOptions = from_json("the options", options)?;
        let artifact = runtime::compile(descriptor, debug, &options)?;
        // SAFETY: as our caller promises.
        unsafe { hand_out(out, Handle { artifact, locations }) }
    })
}

/// The kernel's text after each pass, as JSON: `[["import", "…"], …, ["print", PTX]]`. Compiles anew, past the cache.
///
/// # Safety
/// As for [`smalt_compile`]; `out` is writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn smalt_show(
    descriptor: *const u8,
    descriptor_len: usize,
    debug: *const u8,
    debug_len: usize,
    options: *const u8,
    options_len: usize,
    out: *mut Bytes,
) -> Bytes {
    // SAFETY: as our caller promises.
    let [descriptor, debug, options] =
        unsafe { slices([(descriptor, descriptor_len), (debug, debug_len), (options, options_len)]) };
    let show = || {
        let options: CompileOptions = from_json("the options", options)?;
        Ok(json!(runtime::pipeline::show(descriptor, debug, &options)?).to_string())
    };
    // SAFETY: as our caller promises.
    unsafe { answer_with(&locations(debug), out, show) }
}

/// A kernel given as PTX text.
#[derive(Deserialize)]
struct PtxKernel {
    name: String,
    ptx: String,
    launch: runtime::LaunchSpec,
    buffers: Vec<BufferSpec>,
    target: String,
    /// A debug table for the ops that its `.loc`s name.
    #[serde(default)]
    debug: Vec<u8>,
}

/// Makes an artifact of PTX text; `json` has its fields `name`, `ptx`, `launch`, `buffers`, `target`, perhaps `debug`.
///
/// # Safety
/// `json` points to `len` bytes; `out` is writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn smalt_from_ptx(json: *const u8, len: usize, out: *mut *mut Handle) -> Bytes {
    // SAFETY: as our caller promises.
    let json = unsafe { slice(json, len) };
    answer(&Locations::default(), || {
        let kernel: PtxKernel = from_json("a PTX kernel", json)?;
        let machine = runtime::target(&kernel.target)?;
        let PtxKernel {
            name,
            ptx,
            launch,
            buffers,
            debug,
            ..
        } = kernel;
        let artifact = Arc::new(Artifact::from_ptx(&name, &ptx, launch, buffers, machine));
        let locations = Locations::decode(&debug);
        // SAFETY: as our caller promises.
        unsafe { hand_out(out, Handle { artifact, locations }) }
    })
}

/// # Safety
/// `handle` came from this library and is not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn smalt_release(handle: *mut Handle) {
    if !handle.is_null() {
        // SAFETY: made by `Box::into_raw`.
        let handle = unsafe { Box::from_raw(handle) };
        contained(|| {
            #[cfg(feature = "test-handlers")]
            handle.artifact.provoke("release");
            drop(handle);
        });
    }
}

/// The artifact's report as JSON.
///
/// # Safety
/// `handle` is alive; `out` is writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn smalt_report(handle: *const Handle, out: *mut Bytes) -> Bytes {
    // SAFETY: as our caller promises.
    let handle = unsafe { &*handle };
    let report = || Ok(handle.artifact.report(&handle.locations).to_string());
    // SAFETY: as our caller promises.
    unsafe { answer_with(&handle.locations, out, report) }
}

/// The PTX text.
///
/// # Safety
/// `handle` is alive; `out` is writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn smalt_ptx(handle: *const Handle, out: *mut Bytes) -> Bytes {
    // SAFETY: as our caller promises.
    let handle = unsafe { &*handle };
    let text = || {
        #[cfg(feature = "test-handlers")]
        handle.artifact.provoke("ptx");
        Ok(handle.artifact.best_known().compiled.ptx.clone())
    };
    // SAFETY: as our caller promises.
    unsafe { answer_with(&handle.locations, out, text) }
}

/// Assembles, if that was not done; `out` gets the cubin, or nothing where only the driver can assemble.
///
/// # Safety
/// `handle` is alive; `out` is writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn smalt_assemble(handle: *const Handle, out: *mut Bytes) -> Bytes {
    // SAFETY: as our caller promises.
    let handle = unsafe { &*handle };
    let cubin = || {
        let assembled = handle.artifact.best()?.assembled()?;
        Ok(assembled.map(|assembled| assembled.cubin.clone()).unwrap_or_default())
    };
    // SAFETY: as our caller promises.
    unsafe { answer_with(&handle.locations, out, cubin) }
}

/// Starts the assembler on another thread.
///
/// # Safety
/// `handle` is alive.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn smalt_assemble_in_background(handle: *const Handle) -> Bytes {
    // SAFETY: as our caller promises.
    let handle = unsafe { &*handle };
    answer(&handle.locations, || {
        handle.artifact.assemble_in_background();
        Ok(())
    })
}

/// Runs the kernel on host buffers, in the launch's numbering: in the emulator (`device` < 0) or on that GPU; or, with
/// `batch` > 0, times `10 * batch` launches on that GPU and leaves the buffers alone. `out` gets a report as JSON.
///
/// # Safety
/// `handle` is alive; `data` and `lens` have `count` entries, each buffer readable and writable, and not used by others
/// meanwhile; `out` is writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn smalt_run(
    handle: *const Handle,
    device: i32,
    count: usize,
    data: *const *mut u8,
    lens: *const usize,
    batch: u32,
    out: *mut Bytes,
) -> Bytes {
    // SAFETY: as our caller promises.
    let handle = unsafe { &*handle };
    let run = || {
        // SAFETY: as our caller promises.
        let buffers = unsafe { host_buffers(count, data, lens) };
        // SAFETY: as our caller promises.
        let report = unsafe {
            match batch {
                0 => runtime::run_on_host_data(&handle.artifact, &handle.locations, device, &buffers)?,
                _ => runtime::measure(&handle.artifact, device, &buffers, batch)?,
            }
        };
        Ok(report.to_string())
    };
    // SAFETY: as our caller promises.
    unsafe { answer_with(&handle.locations, out, run) }
}

/// A place where a kernel is called on streams of the caller's: what the custom call is to XLA.
///
/// # Safety
/// Each pointer points to its length in bytes; `out` is writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn smalt_call_site(
    descriptor: *const u8,
    descriptor_len: usize,
    debug: *const u8,
    debug_len: usize,
    target: *const u8,
    target_len: usize,
    out: *mut *mut CallSite,
) -> Bytes {
    // SAFETY: as our caller promises.
    let [descriptor, debug, target] =
        unsafe { slices([(descriptor, descriptor_len), (debug, debug_len), (target, target_len)]) };
    let locations = locations(debug);
    answer(&locations.clone(), || {
        let target = std::str::from_utf8(target).map_err(|_| Error::internal("a target that is no text"))?;
        let attributes = CallSiteAttributes {
            descriptor,
            debug,
            hash: &runtime::hash(descriptor),
            target,
            flags: 0,
        };
        let site = CallSite::new(attributes, locations)?;
        // SAFETY: as our caller promises.
        unsafe { hand_out(out, site) }
    })
}

/// # Safety
/// `site` is from [`smalt_call_site`], or null; it is used no more. What was launched from there is over.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn smalt_release_call_site(site: *mut CallSite) {
    if !site.is_null() {
        // SAFETY: as our caller promises.
        let site = unsafe { Box::from_raw(site) };
        contained(|| {
            #[cfg(feature = "test-handlers")]
            site.artifact().provoke("release");
            drop(site);
        });
    }
}

/// Queues the kernel on a stream of a device whose context is current. `addresses` and `bytes` are those of `count` buffers: `operands` of
/// them are operands, scratch behind them; then results, scratch behind them, too.
///
/// # Safety
/// `site` is alive; `addresses` and `bytes` have `count` entries. The buffers are the device's, and live until the stream has come to the
/// end of the kernel.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn smalt_launch(
    site: *const CallSite,
    device: i32,
    stream: usize,
    operands: usize,
    count: usize,
    addresses: *const usize,
    bytes: *const usize,
) -> Bytes {
    // SAFETY: as our caller promises.
    let site = unsafe { &*site };
    answer(site.locations(), || {
        let buffers: Vec<BufferView> = (0..count)
            .map(|i| BufferView {
                // SAFETY: as our caller promises.
                address: unsafe { *addresses.add(i) },
                // SAFETY: as our caller promises.
                bytes: unsafe { *bytes.add(i) } as u64,
            })
            .collect();
        site.initialize_cuda(device)?;
        site.execute_cuda((device, 0), stream, operands.min(count), &buffers)
    })
}

/// Runs the kernel on host buffers in the emulator; `schedule` is JSON ([`runtime::Schedule`]). `out` gets a report as JSON.
///
/// # Safety
/// As for [`smalt_run`]; `schedule` points to `schedule_len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn smalt_emulate(
    handle: *const Handle,
    count: usize,
    data: *const *mut u8,
    lens: *const usize,
    schedule: *const u8,
    schedule_len: usize,
    out: *mut Bytes,
) -> Bytes {
    // SAFETY: as our caller promises.
    let (handle, schedule) = unsafe { (&*handle, slice(schedule, schedule_len)) };
    let run = || {
        let schedule: runtime::Schedule = from_json("the schedule", schedule)?;
        // SAFETY: as our caller promises.
        let buffers = unsafe { host_buffers(count, data, lens) };
        // SAFETY: as our caller promises.
        let report =
            unsafe { runtime::emulate_on_host_data(&handle.artifact, &handle.locations, &buffers, &schedule)? };
        Ok(report.to_string())
    };
    // SAFETY: as our caller promises.
    unsafe { answer_with(&handle.locations, out, run) }
}

/// # Safety
/// `data` and `lens` have `count` entries.
unsafe fn host_buffers(count: usize, data: *const *mut u8, lens: *const usize) -> Vec<HostBuffer> {
    let buffer = |index| {
        // SAFETY: both arrays have `count` entries.
        let (address, bytes) = unsafe { (*data.add(index), *lens.add(index)) };
        HostBuffer {
            address,
            bytes: bytes as u64,
        }
    };
    (0..count).map(buffer).collect()
}

/// From here on, runs in the emulator are traced to the file of this path (UTF-8); without one, by `SMALT_TRACE`.
///
/// # Safety
/// `path` points to `len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn smalt_set_trace(path: *const u8, len: usize) -> Bytes {
    // SAFETY: as our caller promises.
    let path = unsafe { slice(path, len) };
    answer(&Locations::default(), || {
        let path = String::from_utf8_lossy(path);
        runtime::trace::choose(Some(&*path).filter(|path| !path.is_empty()))
    })
}

/// This process has lowered a kernel whose profiles go to a folder: `query` is JSON, `{"hash": …, "folder": …}`. Of others they go nowhere, or where
/// `SMALT_PROFILE_DIR` is.
///
/// # Safety
/// `query` points to `len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn smalt_lowered_profile(query: *const u8, len: usize) -> Bytes {
    // SAFETY: as our caller promises.
    let query = unsafe { slice(query, len) };
    answer(&Locations::default(), || {
        runtime::lowered_here(from_json("a profile", query)?);
        Ok(())
    })
}

/// Which thread holds which element of an array, as JSON. `query` is JSON, too ([`runtime::layout_map::Query`]).
///
/// # Safety
/// `query` points to `len` bytes; `out` is writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn smalt_layout_map(query: *const u8, len: usize, out: *mut Bytes) -> Bytes {
    // SAFETY: as our caller promises.
    let query = unsafe { slice(query, len) };
    let map = || Ok(runtime::layout_map::answer(&from_json("a layout", query)?)?.to_string());
    // SAFETY: as our caller promises.
    unsafe { answer_with(&Locations::default(), out, map) }
}

/// Where each element of a buffer in shared memory lies, as JSON. `query` is JSON, too ([`runtime::smem_map::Query`]).
///
/// # Safety
/// `query` points to `len` bytes; `out` is writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn smalt_smem_map(query: *const u8, len: usize, out: *mut Bytes) -> Bytes {
    // SAFETY: as our caller promises.
    let query = unsafe { slice(query, len) };
    let map = || Ok(runtime::smem_map::answer(&from_json("a buffer", query)?)?.to_string());
    // SAFETY: as our caller promises.
    unsafe { answer_with(&Locations::default(), out, map) }
}

/// The error that was reported to XLA with a message that stands in `text`, as JSON; nothing where there is none.
///
/// # Safety
/// `text` points to `len` bytes; `out` is writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn smalt_reported(text: *const u8, len: usize, out: *mut Bytes) -> Bytes {
    // SAFETY: as our caller promises.
    let text = unsafe { slice(text, len) };
    let find = || {
        let found = runtime::find_reported(&String::from_utf8_lossy(text));
        Ok(found.map_or_else(String::new, |error| error.to_string()))
    };
    // SAFETY: as our caller promises.
    unsafe { answer_with(&Locations::default(), out, find) }
}

/// The machines that smalt compiles for, as JSON: by name, what there is of each.
///
/// # Safety
/// `out` is writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn smalt_machines(out: *mut Bytes) -> Bytes {
    let machines = || {
        let all = MACHINES.iter().map(|machine| {
            let features = machine.features.iter_names().map(|(name, _)| name.to_lowercase());
            let of = json!({
                "capability": machine.capability,
                "features": features.collect::<Vec<_>>(),
                "shared_memory": 1024 * machine.smem_kib,
                "producers": machine.producers,
                "status": machine.proof.text(),
            });
            (machine.name.to_owned(), of)
        });
        Ok(serde_json::Value::Object(all.collect()).to_string())
    };
    // SAFETY: as our caller promises.
    unsafe { answer_with(&Locations::default(), out, machines) }
}

/// The machine to compile for where a device of this compute capability runs it.
///
/// # Safety
/// `out` is writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn smalt_target_of(major: u32, minor: u32, out: *mut Bytes) -> Bytes {
    // SAFETY: as our caller promises.
    unsafe { answer_with(&Locations::default(), out, || runtime::target_of((major, minor))) }
}

/// What works on this machine, as JSON.
///
/// # Safety
/// `out` is writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn smalt_doctor(out: *mut Bytes) -> Bytes {
    // SAFETY: as our caller promises.
    unsafe { answer_with(&Locations::default(), out, || Ok(runtime::doctor().to_string())) }
}

/// The artifact cache's state, as JSON.
///
/// # Safety
/// `out` is writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn smalt_cache_stats(out: *mut Bytes) -> Bytes {
    // SAFETY: as our caller promises.
    unsafe { answer_with(&Locations::default(), out, || Ok(json!(runtime::stats()).to_string())) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take(bytes: Bytes) -> Vec<u8> {
        // SAFETY: made by this library, used once.
        let copy = unsafe { slice(bytes.data, bytes.len) }.to_vec();
        // SAFETY: as above.
        unsafe { smalt_free(bytes) };
        copy
    }

    #[test]
    fn an_error_is_json_with_its_fault() {
        let mut handle = std::ptr::null_mut();
        let options = br#"{"target": "sm_90a"}"#;
        // SAFETY: the pointers and lengths belong together.
        let error = unsafe {
            smalt_compile(
                b"x".as_ptr(),
                0,
                std::ptr::null(),
                0,
                options.as_ptr(),
                options.len(),
                &mut handle,
            )
        };
        let error: serde_json::Value = serde_json::from_slice(&take(error)).unwrap();
        assert_eq!(error["fault"], "InvalidDescriptor", "{error}");
        assert!(handle.is_null());
    }

    #[test]
    fn a_panic_is_an_error() {
        let error = take(answer(&Locations::default(), || panic!("half-way")));
        let error: serde_json::Value = serde_json::from_slice(&error).unwrap();
        assert_eq!(error["fault"], "Internal");
        assert!(error["what"].as_str().unwrap().contains("half-way"));
    }

    #[test]
    fn ptx_kernels_are_described_by_json() {
        let kernel = json!({
            "name": "k", "ptx": ".version 8.0\n", "target": "sm_90a",
            "launch": {"entry": "k", "grid": [1, 1, 1], "cluster": [1, 1, 1], "block": 128, "smem_bytes": 0,
                       "params": [{"Pointer": {"buffer": 0}}], "scratch": [], "uses_programmatic_launch": false},
            "buffers": [{"role": "mutable", "bytes": 4, "text": "f32[]"}],
        });
        let kernel = kernel.to_string();
        let mut handle = std::ptr::null_mut();
        // SAFETY: pointer and length belong together.
        assert_eq!(
            take(unsafe { smalt_from_ptx(kernel.as_ptr(), kernel.len(), &mut handle) }),
            b""
        );
        let mut report = Bytes::EMPTY;
        // SAFETY: the handle is alive and `report` is ours.
        assert_eq!(take(unsafe { smalt_report(handle, &mut report) }), b"");
        let report: serde_json::Value = serde_json::from_slice(&take(report)).unwrap();
        assert_eq!(
            (&report["launch"]["block"], &report["buffers"][0]["role"]),
            (&json!(128), &json!("mutable"))
        );
        // SAFETY: the handle is alive and not used again.
        unsafe { smalt_release(handle) };
    }
}
