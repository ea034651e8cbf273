//! nvJitLink, by dlopen.
use super::{Output, Request};
use crate::error::Error;
use libloading::Library;
use std::ffi::{CString, c_char, c_int, c_uint, c_void};
use std::path::{Path, PathBuf};
use std::ptr;

type Handle = *mut c_void;
type SizeOf = unsafe extern "C" fn(Handle, *mut usize) -> c_int;
type Get = unsafe extern "C" fn(Handle, *mut c_char) -> c_int;

/// `nvJitLinkInputType` (nvJitLink.h).
const INPUT_PTX: c_int = 2;

pub struct NvJitLink {
    path: PathBuf,
    version: (c_uint, c_uint),
    identity: String,
    create: unsafe extern "C" fn(*mut Handle, c_uint, *const *const c_char) -> c_int,
    destroy: unsafe extern "C" fn(*mut Handle) -> c_int,
    add_data: unsafe extern "C" fn(Handle, c_int, *const c_void, usize, *const c_char) -> c_int,
    complete: unsafe extern "C" fn(Handle) -> c_int,
    cubin: (SizeOf, Get),
    info: (SizeOf, Get),
    error: (SizeOf, Get),
    _library: Library,
}

impl NvJitLink {
    /// `None` if the file is no nvJitLink that we can use.
    pub fn open(path: &Path) -> Option<NvJitLink> {
        // SAFETY: loading nvJitLink runs only its own initialisers. The signatures are those of nvJitLink.h, and the
        // function pointers live no longer than the library beside them.
        unsafe {
            let library = Library::new(path).ok()?;
            macro_rules! symbol {
                ($name:literal) => {
                    *library.get(concat!($name, "\0").as_bytes()).ok()?
                };
            }
            let version_of: unsafe extern "C" fn(*mut c_uint, *mut c_uint) -> c_int = symbol!("nvJitLinkVersion");
            let mut version = (0, 0);
            if version_of(&mut version.0, &mut version.1) != 0 {
                return None;
            }
            Some(NvJitLink {
                path: path.to_owned(),
                version,
                identity: identity(path, version),
                create: symbol!("nvJitLinkCreate"),
                destroy: symbol!("nvJitLinkDestroy"),
                add_data: symbol!("nvJitLinkAddData"),
                complete: symbol!("nvJitLinkComplete"),
                cubin: (
                    symbol!("nvJitLinkGetLinkedCubinSize"),
                    symbol!("nvJitLinkGetLinkedCubin"),
                ),
                info: (symbol!("nvJitLinkGetInfoLogSize"), symbol!("nvJitLinkGetInfoLog")),
                error: (symbol!("nvJitLinkGetErrorLogSize"), symbol!("nvJitLinkGetErrorLog")),
                _library: library,
            })
        }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn version(&self) -> String {
        format!("{}.{}", self.version.0, self.version.1)
    }

    pub fn identity(&self) -> &str {
        &self.identity
    }

    pub fn run(&self, request: &Request<'_>, options: &[String]) -> Result<Output, Error> {
        let options = options.iter().map(String::as_str).chain(["-verbose"]).map(CString::new);
        let options = options.collect::<Result<Vec<_>, _>>();
        let options = options.map_err(|_| Error::internal("a target with a NUL in its name"))?;
        let pointers = options.iter().map(|option| option.as_ptr()).collect::<Vec<_>>();
        let mut handle = ptr::null_mut();
        // SAFETY: the options are NUL-terminated and outlive the call.
        let code = unsafe { (self.create)(&mut handle, pointers.len() as c_uint, pointers.as_ptr()) };
        if code != 0 {
            return Err(self.failure(code, request, String::new()));
        }
        let link = Link { owner: self, handle };
        let mut ptx = request.ptx.as_bytes().to_vec();
        ptx.push(0);
        // SAFETY: the handle is alive; the text is NUL-terminated, its NUL counted in the size, as PTX must be.
        let mut code =
            unsafe { (self.add_data)(handle, INPUT_PTX, ptx.as_ptr().cast(), ptx.len(), c"kernel".as_ptr()) };
        if code == 0 {
            // SAFETY: the handle is alive and has its input.
            code = unsafe { (self.complete)(handle) };
        }
        if code != 0 {
            let log = String::from_utf8_lossy(&link.get(&self.error)).into_owned();
            return Err(self.failure(code, request, log));
        }
        let cubin = link.get(&self.cubin);
        if cubin.is_empty() {
            return Err(self.failure(code, request, "no cubin came out".into()));
        }
        let log = String::from_utf8_lossy(&link.get(&self.info)).into_owned();
        Ok(Output { cubin, log })
    }

    #[cold]
    fn failure(&self, code: c_int, request: &Request<'_>, log: String) -> Error {
        let name = format!("nvJitLink {} (code {code})", self.version());
        super::log::failure(&name, &log, request)
    }
}

/// Its version has no patch level: the file distinguishes builds.
fn identity(path: &Path, (major, minor): (c_uint, c_uint)) -> String {
    let about = std::fs::metadata(path).ok();
    let modified = about.as_ref().and_then(|about| about.modified().ok());
    let bytes = about.map_or(0, |about| about.len());
    format!("nvJitLink {major}.{minor}, {bytes} bytes of {modified:?}")
}

struct Link<'a> {
    owner: &'a NvJitLink,
    handle: Handle,
}

impl Link<'_> {
    /// A log or the cubin; a trailing NUL of a text is cut. Empty on failure.
    fn get(&self, (size_of, get): &(SizeOf, Get)) -> Vec<u8> {
        let mut size = 0;
        // SAFETY: the handle is alive.
        if unsafe { size_of(self.handle, &mut size) } != 0 {
            return Vec::new();
        }
        let mut bytes = vec![0u8; size + 1];
        // SAFETY: the buffer holds what the library reported that it would write, and one byte more.
        if unsafe { get(self.handle, bytes.as_mut_ptr().cast()) } != 0 {
            return Vec::new();
        }
        bytes.truncate(size);
        bytes
    }
}

impl Drop for Link<'_> {
    fn drop(&mut self) {
        // SAFETY: created by `run`, destroyed once.
        unsafe { (self.owner.destroy)(&mut self.handle) };
    }
}
