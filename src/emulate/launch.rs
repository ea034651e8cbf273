//! Runs a program over the host's buffers.
use super::check::Hooks;
use super::float_environment::IeeeMode;
use super::global::{GlobalMemory, HostBuffer};
use super::machine::Machine;
use super::options::{Options, Report, Watch};
use super::program::Program;
use super::{residency, tma};
use crate::error::{Error, Result};
use crate::lock::lock;
use crate::panics::contain_panics;
use crate::ptx::launch::EntryParam;
use std::borrow::Cow;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// How often the thread that called for a run looks whether the others are done.
const LOOK: Duration = Duration::from_millis(1);

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
    // SAFETY: the caller's promise.
    unsafe { run_on(program, &[buffers], options, watch) }
}

/// Executes the kernel on several devices at once, each with buffers of its own: as [`run`], and all their memory is one address
/// space. Kernels that do not communicate are to be run one by one.
///
/// # Safety
/// As for [`run`], of every device's buffers.
pub unsafe fn run_on<H: Hooks>(
    program: &Program<H>,
    devices: &[&[HostBuffer]],
    options: &Options,
    watch: &dyn Watch,
) -> Result<Report> {
    let resident = residency::run(program, options)?;
    let per_device = devices.first().map_or(0, |buffers| buffers.len());
    let alike = devices.iter().all(|buffers| buffers.len() == per_device);
    let count = devices.len() as u64;
    if !alike || count == 0 || count > 1 && !program.communicates {
        return Err(Error::internal(format!("a launch on {count} devices")));
    }
    let mut options = Cow::Borrowed(options);
    if count > 1 {
        let own = options.to_mut();
        Arc::make_mut(&mut own.names).per_device = per_device;
    }
    let options = &*options;
    let launch = &program.launch;
    let grid: [u64; 3] = std::array::from_fn(|i| u64::from(launch.grid[i] / launch.cluster[i]));
    let total = grid.iter().product::<u64>();
    // Nothing orders what clusters do that cannot tell each other.
    let isolates = H::LISTENS && !program.communicates && total > 1;
    // SAFETY: the caller's promise.
    let memory = unsafe { GlobalMemory::new(&devices.concat(), isolates, options) };
    for param in &program.launch.params {
        let buffer = match param {
            EntryParam::Pointer { buffer } => *buffer,
            EntryParam::TensorMap(map) => map.buffer,
            EntryParam::Row { .. } => match launch.exchange() {
                Some(exchange) => exchange.buffer,
                None => return Err(Error::internal("a launch with rows for devices that it has not")),
            },
        };
        // Buffers of one number are alike on all devices.
        let Some(len) = memory.size(buffer).filter(|_| (buffer as usize) < per_device) else {
            return Err(Error::internal("the launch")
                .expected(format!("buffer {buffer}"))
                .got(format!("{per_device} buffers")));
        };
        if let EntryParam::TensorMap(map) = param {
            tma::check_map(map, len)?;
        }
    }
    for (k, map) in launch.map_templates.iter().enumerate() {
        tma::check_shape(map, &|| format!("template {k} of a tensor map"))?;
    }
    let size = u64::from(launch.cluster.iter().product::<u32>());
    let position = |i: u64| {
        [
            (i % grid[0]) as u32,
            (i / grid[0] % grid[1]) as u32,
            (i / grid[0] / grid[1]) as u32,
        ]
    };
    let mut report = Report {
        steps: 0,
        ctas: total * size * count,
        resident_ctas: u64::from(resident).min(total) * size * count,
    };
    let done = |report: Report| {
        if let Some(noted) = options.notes_undefined() {
            memory.note(noted);
        }
        report
    };
    if program.communicates {
        let _mode = IeeeMode::enter();
        let clusters = u64::from(resident).min(total) as u32;
        let mut machine = Machine::new(program, &memory, options, watch, clusters, count as u32);
        machine.clusters_to_come = total * count;
        let mut started = vec![0; devices.len()];
        machine.run(&mut |device| {
            let next = &mut started[device as usize];
            let i = std::mem::replace(next, *next + 1);
            (i < total).then(|| position(i))
        })?;
        report.steps = machine.clock;
        return Ok(done(report));
    }
    let next = AtomicU64::new(0);
    let take = || {
        let i = next.fetch_add(1, Ordering::Relaxed);
        (i < total).then(|| position(i))
    };
    let threads = (options.threads.max(1) as u64).min(total);
    let worker = || {
        let _mode = IeeeMode::enter();
        let mut machine = Machine::new(program, &memory, options, watch, 1, 1);
        let result = machine.run(&mut |_| take());
        (machine.clock, result)
    };
    if threads == 1 {
        let (steps, result) = worker();
        report.steps = steps;
        return result.map(|()| done(report));
    }
    let outcome = Mutex::new((0u64, Ok(())));
    let work = || {
        let (steps, result) = contain_panics(|| Ok(worker())).unwrap_or_else(|panic| (0, Err(panic)));
        let mut outcome = lock(&outcome);
        outcome.0 += steps;
        if result.is_err() {
            // The others need not go on.
            next.store(total, Ordering::Relaxed);
            if outcome.1.is_ok() {
                outcome.1 = result;
            }
        }
    };
    std::thread::scope(|scope| {
        let others: Vec<_> = (1..threads).map(|_| scope.spawn(work)).collect();
        work();
        // Signals are this thread's matter, which may be Python's main one.
        while others.iter().any(|other| !other.is_finished()) {
            watch.look();
            std::thread::sleep(LOOK);
        }
    });
    let (steps, result) = outcome.into_inner().unwrap_or_else(|e| e.into_inner());
    report.steps = steps;
    result.map(|()| done(report))
}
