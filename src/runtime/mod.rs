//! Strings the rooms together: descriptor → artifact → a launch on either machine.
//!
//! * [`compile`]: the artifact of a descriptor, from the cache or through [`pipeline`].
//! * [`Artifact`]: PTX, flat program, launch specification, resources; assembled and loaded when first needed.
//! * [`CallSite`]: an artifact at one place of one program, with the locations of its ops.
//! * [`env`]: every environment variable that the library reads.
//!
//! Compile early, launch late: lowering compiles (so that errors are Python exceptions) and starts the assembler in
//! the background, Instantiate finds the artifact in the cache, Initialize loads it, Execute only launches.
mod artifact;
pub mod buffers;
mod cache;
mod call_site;
pub mod directory;
mod doctor;
mod dump;
pub mod env;
#[cfg(test)]
mod fictitious;
mod gave_up;
mod handler_calls;
mod host;
mod interrupt;
pub mod layout_map;
mod locations;
mod neighbours;
#[cfg(not(target_os = "linux"))]
mod no_sockets;
mod park_or_spill;
mod peers;
pub mod pipeline;
mod posts;
pub mod printing;
mod profile;
mod rendezvous;
mod reported;
pub mod smem_map;
#[cfg(target_os = "linux")]
mod sockets;
mod supervise;
pub mod trace;
mod undefined;
mod unit_functions;

pub use artifact::{Artifact, Phase};
pub use buffers::{BufferRole, BufferSpec};
pub use cache::{Stats, compile, hash, stats};
pub use call_site::{BufferView, CallSite, CallSiteAttributes};
pub use doctor::doctor;
pub use handler_calls::handler_calls;
pub use host::{HostBuffer, Schedule, emulate_on_host_data, measure, run_on_host_data};
pub use interrupt::{end_runs, handled_in_python, raise_kept};
pub use locations::{Frame, LocatedError, Locations};
pub use pipeline::CompileOptions;
pub use profile::lowered_here;
pub use reported::{find_reported, remember_reported};

pub use crate::panics::contain_panics;
pub use crate::ptx::launch::LaunchSpec;

use crate::assemble::{Assembler, Config};
use crate::error::Error;
use crate::lock::lock;
use crate::target::Target;
use std::sync::{Arc, Mutex, Once, OnceLock, RwLock};

/// The machine of this name.
pub fn target(name: &str) -> Result<Target, Error> {
    Target::from_name(name).ok_or_else(|| {
        Error::unsupported(format!("the target {name}"))
            .expected(Target::names())
            .remedy("leave CompilerParams.target and SMALT_TARGET empty: the device's own is taken")
    })
}

/// The target for a device of this capability.
pub fn target_of(capability: (u32, u32)) -> Result<&'static str, Error> {
    let machine = Target::of_capability(capability);
    machine.map(|machine| machine.name).ok_or_else(|| {
        let (major, minor) = capability;
        Error::unsupported(format!("a GPU of compute capability {major}.{minor}"))
            .expected(format!("what one of these runs on: {}", Target::names()))
    })
}

/// Where Python packages lie, set by the Python side: pip puts assemblers there.
static PACKAGES: RwLock<Vec<std::path::PathBuf>> = RwLock::new(Vec::new());
static ASSEMBLER: OnceLock<Arc<Assembler>> = OnceLock::new();
/// Held while looking for it: programs are run for their version once.
static LOOKING: Mutex<()> = Mutex::new(());

/// To be called before anything is assembled; later calls have no effect on an assembler already chosen.
pub fn set_packages(packages: Vec<std::path::PathBuf>) {
    *PACKAGES.write().unwrap_or_else(|poisoned| poisoned.into_inner()) = packages;
}

/// The assembler of this process. A failure to find it is not remembered: it may be of the moment.
pub fn assembler() -> Result<Arc<Assembler>, Error> {
    if let Some(found) = ASSEMBLER.get() {
        return Ok(found.clone());
    }
    let _looking = lock(&LOOKING);
    if let Some(found) = ASSEMBLER.get() {
        return Ok(found.clone());
    }
    let env = env::get()?;
    let config = Config {
        choice: env.assembler,
        ptxas: env.ptxas.clone(),
        packages: PACKAGES.read().unwrap_or_else(|poisoned| poisoned.into_inner()).clone(),
        cuda_home: env.cuda_home.clone(),
        path: env.path.clone(),
        cache: env.cache.clone(),
    };
    let found = Arc::new(Assembler::find(&config)?);
    Ok(ASSEMBLER.get_or_init(|| found).clone())
}

/// Finds it on another thread, while the first kernel is being traced. Errors show when a cubin is needed.
pub fn look_for_assembler() {
    static STARTED: Once = Once::new();
    STARTED.call_once(|| {
        if let Some(pool) = artifact::assemblers() {
            pool.spawn(|| drop(contain_panics(assembler)));
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_get_the_machine_with_most_parts_that_they_run() {
        for (capability, name) in [
            ((8, 0), "sm_80"),
            ((8, 7), "sm_87"),
            ((8, 9), "sm_89"),
            ((9, 0), "sm_90a"),
            ((10, 0), "sm_100a"),
            ((10, 3), "sm_103a"),
            // The GB10 has no row: what is for sm_120 runs there.
            ((12, 1), "sm_120"),
        ] {
            assert_eq!(target_of(capability), Ok(name));
        }
        for unknown in [(0, 0), (7, 5), (9, 1), (13, 0)] {
            let known = target_of(unknown).is_ok();
            assert_eq!(known, unknown == (9, 1), "{unknown:?}");
        }
        for wrong in ["", "sm_", "sm_9", "90a", "sm_-90", "sm_90aa_", "compute_90a"] {
            assert!(target(wrong).is_err(), "{wrong}");
        }
    }
}
