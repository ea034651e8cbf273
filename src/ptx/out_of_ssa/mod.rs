//! `ptx::Ssa` → `ptx::Flat`.
//!
//! Regions become blocks ([`linearize`]), values that may share a register do ([`liveness`], [`coalesce`]), what is
//! left of the parallel copies is put in order ([`emit`]). An accumulator in flight is never copied, which would make
//! ptxas serialise every wgmma of the kernel (C7514): where a copy cannot be avoided (accumulators that change places
//! every iteration) a wait for all groups precedes it.
mod coalesce;
mod emit;
mod linearize;
mod liveness;
#[cfg(test)]
pub(super) mod tests;

pub use liveness::Peak;

use super::flat::Flat;
use super::launch::LaunchSpec;
use super::ssa::Ssa;
use crate::error::Error;

/// What a kernel is besides its code.
#[derive(Clone, Debug)]
pub struct Shell {
    pub launch: LaunchSpec,
    /// "sm_90a"
    pub target: String,
    /// `.minnctapersm`, needed by `setmaxnreg`.
    pub min_ctas_per_sm: Option<u32>,
}

pub fn run(ssa: &Ssa, shell: Shell) -> Result<Flat, Error> {
    match run_measured(ssa, shell, u32::MAX)? {
        (Some(flat), _) => Ok(flat),
        (None, _) => Err(Error::internal("more words at once than can be counted")),
    }
}

/// Also reports where most values are live. None: more than `most` words are.
pub fn run_measured(ssa: &Ssa, shell: Shell, most: u32) -> Result<(Option<Flat>, Peak), Error> {
    let (mut linear, constants) = linearize::linearize(ssa);
    liveness::mark_asynchronous_reads(&mut linear);
    let live = liveness::compute(ssa, &linear, &constants);
    let peak = liveness::peak(ssa, &linear, &live);
    if peak.words > most {
        return Ok((None, peak));
    }
    let webs = coalesce::coalesce(ssa, &linear, &constants, live);
    Ok((Some(emit::emit(&linear, &constants, webs, shell)?), peak))
}
