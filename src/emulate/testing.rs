//! The emulator for the tests and benchmarks outside of this crate. It is generic over its hooks; what is not generic is compiled here, once,
//! and not in each of them.
use super::check::NoCheck;
use super::{Checker, Contents, HostBuffer, Options, Program, Report, Undefined, Unwatched};
use crate::error::Error;
use crate::ptx::Flat;

/// Decodes a verified kernel, to run without checks.
pub fn decode_unchecked(flat: &Flat) -> Result<(), Error> {
    Program::<NoCheck>::decode(flat).map(|_| ())
}

/// Runs a verified kernel, with all checks.
///
/// # Safety
/// As of [`run`](super::run()): the buffers are there, and nobody else touches them.
pub unsafe fn run_checked(flat: &Flat, buffers: &[HostBuffer]) -> Result<Report, Error> {
    let program = Program::<Checker>::decode(flat)?;
    // SAFETY: as our caller promises.
    unsafe { super::run(&program, buffers, &Options::default(), &Unwatched) }
}

/// Buffers of a kernel, all zeros at first.
pub struct HostMemory(Vec<Vec<u8>>);

impl HostMemory {
    pub fn new(bytes: &[usize]) -> HostMemory {
        HostMemory(bytes.iter().map(|bytes| vec![0; *bytes]).collect())
    }
}

/// A decoded kernel that runs on one thread, with checks or without.
pub enum Runner {
    Checked(Program<Checker>),
    Unchecked(Program<NoCheck>),
}

impl Runner {
    pub fn new(flat: &Flat, checked: bool) -> Result<Runner, Error> {
        Ok(match checked {
            true => Runner::Checked(Program::decode(flat)?),
            false => Runner::Unchecked(Program::decode(flat)?),
        })
    }

    pub fn run(&self, memory: &mut HostMemory) -> Result<Report, Error> {
        let options = Options {
            threads: 1,
            undefined: Undefined::Ignored,
            ..Options::default()
        };
        let buffer = |bytes: &mut Vec<u8>| HostBuffer {
            ptr: bytes.as_mut_ptr(),
            len: bytes.len(),
            contents: Contents::Defined,
        };
        let buffers: Vec<HostBuffer> = memory.0.iter_mut().map(buffer).collect();
        // SAFETY: the buffers are borrowed exclusively, and outlive the call.
        unsafe {
            match self {
                Runner::Checked(program) => super::run(program, &buffers, &options, &Unwatched),
                Runner::Unchecked(program) => super::run(program, &buffers, &options, &Unwatched),
            }
        }
    }
}
