//! The emulator for the tests outside of this crate. It is generic over its hooks; what is not generic is compiled here, once, and not in
//! each of the tests.
use super::hooks::NoCheck;
use super::{Causality, HostBuffer, Options, Program, Report, Unwatched};
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
    let program = Program::<Causality>::decode(flat)?;
    // SAFETY: as our caller promises.
    unsafe { super::run(&program, buffers, &Options::default(), &Unwatched) }
}
