//! PTX text → cubin, outside of the driver.
//!
//! [`Assembler::find`] takes `ptxas`, which comes with JAX's CUDA plugin from PyPI; where it is not, the driver assembles
//! the PTX when the module is loaded. nvJitLink is quicker (no process: 11 ms for a small kernel instead of 30), but is
//! taken only on request: it compiles relocatable code and ignores `setmaxnreg` (seen with 13.0 on hopper_matmul:
//! no `USETMAXREG` in its SASS, two in that of ptxas 13.0.88).
//! [`Log`]: the assembler's messages, read for what matters: registers, spills, and each `C75xx` line (wgmma
//! serialised, setmaxnreg ignored), with the op that it belongs to.
mod cache;
mod find;
mod log;
mod nvjitlink;
mod ptxas;

pub use cache::{Place, State};
pub use find::{Assembler, Choice, Config};
pub use log::{Log, Warning, op_at_line};

use crate::error::Error;
use serde::Serialize;
use std::time::Instant;

/// What to assemble.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    pub ptx: &'a str,
    /// `sm_90a`, …
    pub target: &'a str,
    /// Keep `.loc` lines in the cubin, for profilers.
    pub line_info: bool,
}

impl Request<'_> {
    /// The arguments of ptxas and nvJitLink; all that a cubin depends on beside the PTX and its assembler.
    fn options(&self) -> Vec<String> {
        let mut options = vec![format!("-arch={}", self.target), "-O3".into()];
        if self.line_info {
            options.push("-lineinfo".into());
        }
        options
    }
}

/// A cubin and how it came about.
#[derive(Clone, Debug, Serialize)]
pub struct Assembled {
    #[serde(skip)]
    pub cubin: Vec<u8>,
    pub log: Log,
    /// E.g. `nvJitLink 13.0`, or `disk cache`.
    pub assembler: String,
    /// Wall time in microseconds.
    pub micros: u64,
}

/// What an assembler returns: the cubin and the text of its log.
struct Output {
    cubin: Vec<u8>,
    log: String,
}

impl Assembler {
    /// Assembles, through the disk cache if one is configured. `Ok(None)`: there is no assembler on this machine.
    pub fn assemble(&self, request: Request<'_>) -> Result<Option<Assembled>, Error> {
        let start = Instant::now();
        let Some(identity) = self.identity() else {
            return Ok(None);
        };
        let options = request.options();
        let key = cache::Key::new(identity, &options, request.ptx);
        if let Some(output) = self.cache.as_ref().and_then(|cache| cache.get(&key)) {
            return Ok(Some(Assembled {
                log: Log::parse(&output.log, request.ptx),
                cubin: output.cubin,
                assembler: "disk cache".into(),
                micros: start.elapsed().as_micros() as u64,
            }));
        }
        let Some(output) = self.run(&request, &options)? else {
            return Ok(None);
        };
        if let Some(cache) = &self.cache {
            cache.put(&key, &output);
        }
        Ok(Some(Assembled {
            log: Log::parse(&output.log, request.ptx),
            cubin: output.cubin,
            assembler: self.name(),
            micros: start.elapsed().as_micros() as u64,
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_of_assemblers_have_target_and_lines() {
        let options = |target, line_info| {
            let ptx = "";
            Request { ptx, target, line_info }.options()
        };
        assert_eq!(options("sm_90a", true), ["-arch=sm_90a", "-O3", "-lineinfo"]);
        assert_eq!(options("sm_100a", false), ["-arch=sm_100a", "-O3"]);
    }
}
