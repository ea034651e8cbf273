//! The compiler: one function, a list of passes.
use super::artifact::Phase;
use super::buffers::BufferSpec;
use super::host::HostBuffer;
use crate::error::{Error, Fault};
use crate::ptx::Flat;
use crate::ptx::launch::LaunchSpec;
use serde::{Deserialize, Serialize};
use std::time::Instant;

/// What changes generated code and is not in the descriptor; part of the artifact's key.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct CompileOptions {
    /// `sm_90a`, …
    pub target: String,
    /// Print real files and lines instead of op ids. The artifact then depends on the debug table too.
    #[serde(default)]
    pub line_info: bool,
}

/// What the passes make of a descriptor.
pub struct Compiled {
    /// The kernel's name, for reports.
    pub name: String,
    /// The program; absent for a kernel that was given as PTX text.
    pub flat: Option<Flat>,
    pub ptx: String,
    pub launch: LaunchSpec,
    /// Operands, then results, then scratch: the buffers in the launch's numbering.
    pub buffers: Vec<BufferSpec>,
    /// What passes wish to report: chosen layouts and transforms, with their reasons.
    pub notes: serde_json::Value,
    /// A test's stand-in for the emulator.
    pub host: Option<fn(&[HostBuffer]) -> Result<(), Error>>,
}

/// Times the passes and, if somebody wants it, collects the kernel's text after each.
#[derive(Default)]
pub struct Observer {
    pub phases: Vec<Phase>,
    /// Pass and text, in order.
    pub shown: Option<Vec<(&'static str, String)>>,
}

impl Observer {
    /// Runs a pass.
    pub fn pass<T>(&mut self, name: &'static str, pass: impl FnOnce() -> Result<T, Error>) -> Result<T, Error> {
        let start = Instant::now();
        let result = pass();
        let micros = start.elapsed().as_micros() as u64;
        self.phases.push(Phase { name, micros });
        result
    }

    /// Shows the kernel as it is after `pass`; `text` is made only if somebody looks.
    pub fn after(&mut self, pass: &'static str, text: impl FnOnce() -> String) {
        if let Some(shown) = &mut self.shown {
            shown.push((pass, text()));
        }
    }
}

/// Descriptor → artifact's contents. `debug` is the table of locations: used only where `options.line_info` says so.
pub fn compile(
    descriptor: &[u8],
    debug: &[u8],
    options: &CompileOptions,
    observer: &mut Observer,
) -> Result<Compiled, Error> {
    super::capability(&options.target)?;
    #[cfg(feature = "test-handlers")]
    if let Some(compiled) = super::artifact::test_kernel(descriptor) {
        return compiled;
    }
    let _ = (debug, observer);
    if descriptor.is_empty() {
        return Err(Error::new(Fault::InvalidDescriptor, "an empty descriptor"));
    }
    Err(Error::unsupported("compiling a descriptor"))
}
