//! Runs a program over the host's buffers.
use super::float_environment::IeeeMode;
use super::global::{GlobalMemory, HostBuffer};
use super::hooks::Hooks;
use super::machine::Machine;
use super::options::{Options, Report, Watch};
use super::program::Program;
use super::{residency, tma};
use crate::error::{Error, Result};
use crate::ptx::launch::EntryParam;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// Executes the kernel.
///
/// Kernels whose CTAs may see each other's writes run on one host thread, with as many CTAs resident as the modelled machine
/// holds; of all others each cluster runs by itself, on as many threads as the options allow. Either way the result does
/// not depend on the number of threads. `watch` may end the run at any time.
///
/// # Safety
/// Every buffer must be valid for reads and writes of its length, and nothing else may access it during the call. Buffers may
/// be the same, not partly overlapping.
pub unsafe fn run<H: Hooks>(
    program: &Program<H>,
    buffers: &[HostBuffer],
    options: &Options,
    watch: &dyn Watch,
) -> Result<Report> {
    let resident = residency::run(program, options)?;
    let launch = &program.launch;
    let grid: [u64; 3] = std::array::from_fn(|i| u64::from(launch.grid[i] / launch.cluster[i]));
    let total = grid.iter().product::<u64>();
    // Nothing orders what clusters do that cannot tell each other.
    let apart = H::LISTENS && !program.communicates && total > 1;
    // SAFETY: the caller's promise.
    let memory = unsafe { GlobalMemory::new(buffers, options.check_undefined, apart, options.names.clone()) };
    for param in &program.launch.params {
        let buffer = match param {
            EntryParam::Pointer { buffer } => *buffer,
            EntryParam::TensorMap(map) => map.buffer,
        };
        let Some(len) = memory.size(buffer) else {
            return Err(Error::internal("the launch")
                .expected(format!("buffer {buffer}"))
                .got(format!("{} buffers", buffers.len())));
        };
        if let EntryParam::TensorMap(map) = param {
            tma::check_map(map, len)?;
        }
    }
    for (k, map) in launch.map_templates.iter().enumerate() {
        tma::check_shape(map, &|| format!("template {k} of a tensor map"))?;
    }
    let size = u64::from(launch.cluster.iter().product::<u32>());
    let next = AtomicU64::new(0);
    let take = || {
        let i = next.fetch_add(1, Ordering::Relaxed);
        (i < total).then(|| {
            [
                (i % grid[0]) as u32,
                (i / grid[0] % grid[1]) as u32,
                (i / grid[0] / grid[1]) as u32,
            ]
        })
    };
    let mut report = Report {
        steps: 0,
        ctas: total * size,
        resident_ctas: u64::from(resident).min(total) * size,
    };
    if program.communicates {
        let _mode = IeeeMode::enter();
        let clusters = u64::from(resident).min(total) as u32;
        let mut machine = Machine::new(program, &memory, options, watch, clusters);
        machine.run(&mut || take())?;
        report.steps = machine.clock;
        return Ok(report);
    }
    let threads = (options.threads.max(1) as u64).min(total);
    let worker = || {
        let _mode = IeeeMode::enter();
        let mut machine = Machine::new(program, &memory, options, watch, 1);
        let result = machine.run(&mut || take());
        (machine.clock, result)
    };
    if threads == 1 {
        let (steps, result) = worker();
        report.steps = steps;
        return result.map(|()| report);
    }
    let outcome = Mutex::new((0u64, Ok(())));
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                let (steps, result) = worker();
                let mut outcome = outcome.lock().unwrap_or_else(|e| e.into_inner());
                outcome.0 += steps;
                if result.is_err() {
                    // The others need not go on.
                    next.store(total, Ordering::Relaxed);
                    if outcome.1.is_ok() {
                        outcome.1 = result;
                    }
                }
            });
        }
    });
    let (steps, result) = outcome.into_inner().unwrap_or_else(|e| e.into_inner());
    report.steps = steps;
    result.map(|()| report)
}
