//! Kernels whose accumulators do not fit into registers: their columns are parked ([`crate::plan::parked`]), or left to the assembler to
//! spill, whichever costs less (`SMALT_PARK` overrules that). What an assembler spills is known when it has assembled, so both programs
//! are, beside each other. Where only the driver assembles, and in the emulator, columns are parked.
use super::artifact::{Artifact, assemblers};
use super::env::{self, Parking};
use super::pipeline::CompileOptions;
use super::{assembler, cache};
use crate::assemble::Log;
use crate::error::Error;
use std::sync::Arc;

impl Artifact {
    /// The program that a GPU runs: this one, or the same kernel with nothing parked.
    pub fn best(&self) -> Result<&Artifact, Error> {
        if self.compiled.parked.is_some() && self.instead.get().is_none() {
            // A second caller waits for the assembler, and then decides the same.
            let instead = self.spilled_if_better()?;
            let _ = self.instead.set(instead);
        }
        Ok(self.best_known())
    }

    /// The same, without waiting for an assembler.
    pub fn best_known(&self) -> &Artifact {
        self.instead.get().and_then(Option::as_deref).unwrap_or(self)
    }

    fn spilled_if_better(&self) -> Result<Option<Arc<Artifact>>, Error> {
        let Some(moved) = self.compiled.parked else {
            return Ok(None);
        };
        // The driver does not report what it spills: nothing is compiled that would not be compared.
        if env::get()?.parking == Parking::Always || assembler()?.path().is_none() {
            return Ok(None);
        }
        let spilled = || {
            // What cannot be compiled or assembled in this way is no better.
            let spilled = self.with_nothing_parked().ok()?;
            let words = spilled_words(&spilled.assembled().ok()??.log);
            let waits = waits(&spilled);
            Some((spilled, words, waits))
        };
        let (parked, spilled) = match assemblers() {
            Some(pool) => pool.join(|| self.assembled(), spilled),
            None => (self.assembled(), spilled()),
        };
        let (Some(parked), Some((spilled, words, fewer_waits))) = (parked?, spilled) else {
            return Ok(None);
        };
        let more_words = words.saturating_sub(spilled_words(&parked.log));
        let more_waits = waits(self).saturating_sub(fewer_waits);
        Ok(moved.is_worse_than_spilling(more_words, more_waits).then_some(spilled))
    }

    fn with_nothing_parked(&self) -> Result<Arc<Artifact>, Error> {
        let options = CompileOptions {
            spill: true,
            ..self.options.clone()
        };
        cache::compile(self.descriptor(), self.debug(), &options)
    }
}

/// For products, in the program's text.
fn waits(artifact: &Artifact) -> u64 {
    artifact.compiled.ptx.matches("wgmma.wait_group").count() as u64
}

/// Words that go to a thread's own memory and back.
fn spilled_words(log: &Log) -> u64 {
    (u64::from(log.spill_store_bytes) + u64::from(log.spill_load_bytes)) / 8
}
