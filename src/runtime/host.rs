//! The CPU's side of a launch.
use super::buffers::BufferRole;
use super::env::{Checking, Emulation};
use super::printing::{mailbox, records, sink};
use super::profile::{self, Machine};
use super::rendezvous::{Rendezvous, Running};
use super::supervise::Supervision;
use super::undefined::{self, Again};
use super::{Artifact, Locations, gave_up};
use crate::cuda;
use crate::emulate::{self, Noted, Watch};
use crate::error::{Error, Fault};
use serde_json::json;
use std::sync::Arc;

/// A buffer in host memory.
#[derive(Clone, Copy, Debug)]
pub struct HostBuffer {
    pub address: *mut u8,
    pub bytes: u64,
}

// SAFETY: a pointer and a length; its user upholds the safety of dereferencing it.
unsafe impl Send for HostBuffer {}
// SAFETY: as above.
unsafe impl Sync for HostBuffer {}

/// Runs a kernel in the emulator, as the environment is set; `check` overrides that. `device`: for what it prints.
///
/// # Safety
/// As for [`run_with`].
pub unsafe fn run(
    artifact: &Artifact,
    locations: &Locations,
    check: Option<Checking>,
    device: i32,
    buffers: &[HostBuffer],
) -> Result<emulate::Report, Error> {
    let emulation = super::env::emulation()?;
    let check = check.unwrap_or(emulation.check);
    // SAFETY: as our caller promises.
    unsafe { run_with(artifact, locations, device, buffers, options(&emulation), check) }
}

/// Runs one device's part of a kernel that talks to other devices: all of them, once all have arrived at execution `run_id`.
///
/// # Safety
/// As for [`run_with`].
pub unsafe fn run_together(
    artifact: &Artifact,
    locations: &Locations,
    check: Option<Checking>,
    rendezvous: &Rendezvous,
    run_id: i64,
    buffers: &[HostBuffer],
) -> Result<(), Error> {
    let emulation = super::env::emulation()?;
    let launch = artifact.launch();
    let (Some(mesh), Some(exchange)) = (&launch.mesh, launch.exchange()) else {
        return Err(Error::internal("a kernel that does not talk, run together"));
    };
    let position = buffers[mesh.position as usize];
    // SAFETY: as our caller promises; `check_sizes` or the call site has seen that it has four bytes.
    let position = unsafe { position.address.cast::<u32>().read_unaligned() };
    let all = |devices: &[Vec<HostBuffer>]| {
        let per_device =
            buffers.len() as u32 + 1 + u32::from(launch.printer.is_some()) + u32::from(launch.profile.is_some());
        let start = |device| emulate::buffer_address(device * per_device + exchange.buffer);
        rendezvous.with_blocks(exchange, start, |blocks| {
            let with_block = |(own, block): (&Vec<HostBuffer>, &HostBuffer)| [own.as_slice(), &[*block]].concat();
            let devices = devices.iter().zip(blocks).map(with_block).collect::<Vec<_>>();
            let devices = devices.iter().map(Vec::as_slice).collect::<Vec<_>>();
            // SAFETY: as our callers promise, each of whom waits for this run.
            unsafe {
                run_devices(
                    artifact,
                    locations,
                    0,
                    &devices,
                    options(&emulation),
                    check.unwrap_or(emulation.check),
                )
            }
            .map(drop)
        })
    };
    let who = (position as usize, mesh.devices as usize);
    let compiled = &artifact.compiled;
    rendezvous.arrive(
        (&compiled.name, compiled.wait_timeout_ns),
        run_id,
        who,
        buffers.to_vec(),
        all,
    )
}

/// Runs a kernel in the emulator.
///
/// # Safety
/// 1. Every buffer is valid for reads and writes of its bytes until this returns.
/// 2. Nothing else writes them meanwhile, nor reads what the kernel writes.
unsafe fn run_with(
    artifact: &Artifact,
    locations: &Locations,
    device: i32,
    buffers: &[HostBuffer],
    options: emulate::Options,
    check: Checking,
) -> Result<emulate::Report, Error> {
    #[cfg(feature = "test-handlers")]
    if let Some(host) = artifact.compiled.host {
        return host(buffers).map(|()| emulate::Report::default());
    }
    // SAFETY: as our caller promises.
    unsafe { run_devices(artifact, locations, device, &[buffers], options, check) }
}

/// Runs a kernel in the emulator on several devices from `first` on, each with buffers of its own; behind the call's, its exchange block.
/// What it prints is printed, whether it fails or not.
///
/// # Safety
/// As for [`run_with`], of every device's buffers.
unsafe fn run_devices(
    artifact: &Artifact,
    locations: &Locations,
    first: i32,
    devices: &[&[HostBuffer]],
    options: emulate::Options,
    check: Checking,
) -> Result<emulate::Report, Error> {
    let _running = Running::start();
    let specs = &artifact.compiled.buffers;
    let is_result = |index: usize| specs.iter().any(|spec| spec.alias_of == Some(index as u32));
    let contents = |index: usize| match specs.get(index) {
        Some(spec) if spec.role == BufferRole::Output && spec.alias_of.is_none() => emulate::Contents::Undefined,
        Some(spec) if spec.role == BufferRole::Input && !is_result(index) => emulate::Contents::Constant,
        Some(_) | None => emulate::Contents::Defined,
    };
    let lent = |buffers: &&[HostBuffer]| {
        let lend = |(index, buffer): (usize, &HostBuffer)| emulate::HostBuffer {
            ptr: buffer.address,
            len: buffer.bytes as usize,
            contents: contents(index),
        };
        buffers.iter().enumerate().map(lend).collect::<Vec<_>>()
    };
    let mut lent = devices.iter().map(lent).collect::<Vec<_>>();
    let env = super::env::get()?;
    let (mut profiles, mut printed) = (vec![], vec![]);
    if let Some(bytes) = artifact.launch().profile_bytes() {
        for buffers in &mut lent {
            let mut memory = vec![0u64; bytes.div_ceil(8) as usize];
            buffers.push(emulate::HostBuffer {
                ptr: memory.as_mut_ptr().cast(),
                len: 8 * memory.len(),
                contents: emulate::Contents::Defined,
            });
            profiles.push(memory);
        }
    }
    if artifact.launch().printer.is_some() {
        for buffers in &mut lent {
            let mut memory = records::empty(env.print_bytes);
            buffers.push(emulate::HostBuffer {
                ptr: memory.as_mut_ptr().cast(),
                len: 8 * memory.len(),
                contents: emulate::Contents::Defined,
            });
            printed.push(memory);
        }
    }
    let lent = lent.iter().map(Vec::as_slice).collect::<Vec<_>>();
    let policy = match check {
        Checking::Error => emulate::Check::Error,
        Checking::Warn => emulate::Check::Warn,
        Checking::Off => emulate::Check::Off,
    };
    let tracing = super::trace::begin();
    // Devices that communicate run once: their messages would have to be sent again.
    let noted = (check != Checking::Off && devices.len() == 1).then(Arc::<Noted>::default);
    // SAFETY: as our caller promises.
    let before = noted.as_ref().map(|_| unsafe { copies(lent[0]) });
    let options = emulate::Options {
        check: policy,
        names: artifact.names(),
        // What does not fit is then the same in every run, and times are of one clock.
        threads: if printed.is_empty() && profiles.is_empty() && tracing.is_none() {
            options.threads
        } else {
            1
        },
        trace: tracing.as_ref().map(|tracing| tracing.trace.clone()),
        undefined: noted
            .clone()
            .map_or(options.undefined.clone(), emulate::Undefined::Noted),
        ..options
    };
    let watch = Supervision::new(artifact, locations, super::env::emulation()?.timeout);
    let outcome = match check {
        Checking::Error | Checking::Warn => {
            // SAFETY: as our caller promises.
            unsafe { emulate::run_on(artifact.emulated()?, &lent, &options, &watch) }
        }
        Checking::Off => {
            // SAFETY: as our caller promises.
            unsafe { emulate::run_on(artifact.emulated_unchecked()?, &lent, &options, &watch) }
        }
    };
    if let Some(tracing) = tracing {
        let failed = outcome.as_ref().err();
        tracing.write(&artifact.compiled.name, locations, &options.names, failed);
    }
    let outcome = match (outcome, noted, before) {
        (Ok(report), Some(noted), Some(before)) => {
            let run = Run {
                artifact,
                options: &options,
                buffers: lent[0],
                before: &before,
                steps: report.steps,
            };
            // SAFETY: as our caller promises.
            unsafe { look_at_undefined(&run, &noted, &watch) }.map(|()| report)
        }
        (outcome, _, _) => outcome,
    };
    if outcome.is_ok() {
        for (device, memory) in (first..).zip(&profiles) {
            profile::write(artifact, locations, memory, Machine::Emulator, device);
        }
    }
    let mut failed = None;
    for (device, memory) in (first..).zip(&printed) {
        let here = print(artifact, memory, device);
        failed = failed.or(here);
    }
    match (outcome, failed) {
        (Err(_), Some(check)) => Err(check),
        (outcome, _) => outcome,
    }
}

/// Copies of what buffers hold that the kernel may write.
///
/// # Safety
/// Every buffer is valid for reads of its bytes.
unsafe fn copies(buffers: &[emulate::HostBuffer]) -> Vec<Option<Vec<u8>>> {
    let copy = |buffer: &emulate::HostBuffer| match buffer.contents {
        // SAFETY: as our caller promises.
        emulate::Contents::Defined => Some(unsafe { bytes_of(buffer) }.to_vec()),
        emulate::Contents::Constant | emulate::Contents::Undefined => None,
    };
    buffers.iter().map(copy).collect()
}

/// # Safety
/// The buffer is valid for reads of its bytes as long as the result lives, and is not written meanwhile.
unsafe fn bytes_of(buffer: &emulate::HostBuffer) -> &[u8] {
    match buffer.len {
        0 => &[],
        // SAFETY: as our caller promises.
        len => unsafe { std::slice::from_raw_parts(buffer.ptr, len) },
    }
}

/// A run of a kernel on one device that has come to its end.
struct Run<'a> {
    artifact: &'a Artifact,
    options: &'a emulate::Options,
    buffers: &'a [emulate::HostBuffer],
    /// What those held before that it may write.
    before: &'a [Option<Vec<u8>>],
    steps: u64,
}

impl Run<'_> {
    /// The kernel runs again on copies, with other contents of undefined memory. What its buffers hold then.
    ///
    /// # Safety
    /// As for [`run_with`].
    unsafe fn again(
        &self,
        noted: Arc<Noted>,
        watched: Option<u64>,
        watch: &Supervision,
    ) -> Result<Vec<Vec<u8>>, Error> {
        let memory = |(buffer, before): (&emulate::HostBuffer, &Option<Vec<u8>>)| match buffer.contents {
            emulate::Contents::Constant => vec![],
            emulate::Contents::Defined | emulate::Contents::Undefined => {
                before.clone().unwrap_or_else(|| vec![0; buffer.len])
            }
        };
        let mut memory: Vec<Vec<u8>> = self.buffers.iter().zip(self.before).map(memory).collect();
        let lend = |(buffer, memory): (&emulate::HostBuffer, &mut Vec<u8>)| emulate::HostBuffer {
            ptr: match buffer.contents {
                emulate::Contents::Constant => buffer.ptr,
                emulate::Contents::Defined | emulate::Contents::Undefined => memory.as_mut_ptr(),
            },
            ..*buffer
        };
        let lent: Vec<_> = self.buffers.iter().zip(&mut memory).map(lend).collect();
        let options = emulate::Options {
            undefined: emulate::Undefined::Noted(noted),
            poison: undefined::OTHER_POISON,
            check: emulate::Check::Off,
            max_steps: 4 * self.steps + (1 << 20),
            watched,
            trace: None,
            ..self.options.clone()
        };
        // SAFETY: as our caller promises of constant ones; the others are ours.
        unsafe { emulate::run_on(self.artifact.emulated()?, &[&lent], &options, &Again(watch)) }?;
        Ok(memory)
    }

    /// An output that has other bytes after another run, and the first of those that something wrote; `computed`: one that is no copy of
    /// undefined memory.
    ///
    /// # Safety
    /// As for [`run_with`].
    unsafe fn difference(&self, noted: &Noted, other: &[Vec<u8>], computed: bool) -> Option<(usize, usize)> {
        let specs = self.artifact.compiled.buffers.iter().zip(self.buffers).zip(other);
        specs.enumerate().find_map(|(index, ((spec, buffer), other))| {
            let is_output = match spec.role {
                BufferRole::Output => spec.alias_of.is_none(),
                BufferRole::Mutable | BufferRole::Input => buffer.contents == emulate::Contents::Defined,
                BufferRole::Scratch | BufferRole::Position => false,
            };
            // SAFETY: as our caller promises; the run is over.
            let own = unsafe { bytes_of(buffer) };
            let copied = |byte: usize| computed && undefined::is_copy(spec, byte, self.options.poison, own, other);
            let counts = |byte: usize| !copied(byte) && !undefined::is_padding(spec, byte, own[byte], other[byte]);
            let at = is_output
                .then(|| noted.difference(index, own, other, counts))
                .flatten()?;
            Some((index, at))
        })
    }
}

/// Whether it matters what undefined memory held; and reports outputs of which a part was never stored.
///
/// # Safety
/// As for [`run_with`].
unsafe fn look_at_undefined(run: &Run, noted: &Noted, watch: &Supervision) -> Result<(), Error> {
    let specs = &run.artifact.compiled.buffers;
    for (index, spec) in specs.iter().enumerate() {
        if let Some(error) = undefined::unstored(spec, index, noted) {
            watch.finding(error);
        }
    }
    let reads = noted.reads();
    if reads.is_empty() {
        return Ok(());
    }
    // SAFETY: as our caller promises.
    let again = |watched: Option<u64>| {
        let noted = Arc::<Noted>::default();
        unsafe { run.again(noted.clone(), watched, watch) }.map(|memory| (memory, noted))
    };
    let stored = |index: usize, byte: usize| {
        let address = emulate::buffer_address(index as u32) + byte as u64;
        again(Some(address)).ok().and_then(|(_, noted)| noted.stored())
    };
    let found = match again(None) {
        Err(error) if matches!(error.fault, Fault::Interrupted | Fault::Internal) => return Err(error),
        Err(_) if watch.is_over() => return Ok(()),
        Err(error) => undefined::decides(&error, &reads),
        // SAFETY: as our caller promises.
        Ok((memory, _)) => match unsafe { run.difference(noted, &memory, true) } {
            Some((index, byte)) => {
                watch.finding(undefined::reaches(&specs[index], byte, stored(index, byte), &reads));
                return Ok(());
            }
            None => {
                // SAFETY: as our caller promises.
                if let Some((index, byte)) = unsafe { run.difference(noted, &memory, false) } {
                    watch.finding(undefined::copied(&specs[index], byte, stored(index, byte), &reads));
                }
                return Ok(());
            }
        },
    };
    match run.options.check {
        emulate::Check::Error => Err(found),
        emulate::Check::Warn | emulate::Check::Off => {
            watch.finding(found);
            Ok(())
        }
    }
}

/// Prints what a launch has left in its memory for that; the check that failed, if one did.
fn print(artifact: &Artifact, memory: &[u64], device: i32) -> Option<Error> {
    let words = memory.iter().flat_map(|word| [*word as u32, (*word >> 32) as u32]);
    let printed = mailbox::printed(artifact, &words.collect::<Vec<_>>(), device);
    if !printed.text.is_empty() {
        sink::write(printed.text);
    }
    printed.failed
}

/// How to emulate one run.
#[derive(Clone, PartialEq, Eq, Debug, Default, serde::Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Schedule {
    /// `latest`, `earliest` or `seeded`; `None`: by `SMALT_SCHEDULE`.
    pub schedule: Option<String>,
    pub seed: u64,
    /// Host threads; 0: as many as there are cores.
    pub threads: usize,
    /// `None`: by `SMALT_CHECK`.
    pub check: Option<Checking>,
}

/// Emulates a kernel on host data. The report is JSON.
///
/// # Safety
/// As for [`run_with`].
pub unsafe fn emulate_on_host_data(
    artifact: &Artifact,
    locations: &Locations,
    buffers: &[HostBuffer],
    schedule: &Schedule,
) -> Result<serde_json::Value, Error> {
    check_sizes(artifact, buffers)?;
    let emulation = super::env::emulation()?;
    let mut options = options(&emulation);
    match schedule.schedule.as_deref() {
        None => {}
        Some("latest") => options = options.with_agents(emulate::AgentOrder::Latest),
        Some("earliest") => options = options.with_agents(emulate::AgentOrder::Earliest),
        Some("seeded") => options = options.with_agents(emulate::AgentOrder::Seeded(schedule.seed)),
        Some(other) => {
            return Err(Error::invalid("a schedule of the emulator")
                .expected("latest, earliest or seeded")
                .got(other));
        }
    }
    if schedule.threads > 0 {
        options.threads = schedule.threads;
    }
    let start = std::time::Instant::now();
    // SAFETY: as our caller promises.
    let report = unsafe {
        run_with(
            artifact,
            locations,
            0,
            buffers,
            options,
            schedule.check.unwrap_or(emulation.check),
        )
    }?;
    let wall_us = start.elapsed().as_micros() as u64;
    // SAFETY: as our caller promises.
    unsafe { copy_aliased(artifact, buffers) };
    Ok(json!({"device": "emulator", "wall_us": wall_us,
              "warp_instructions": report.steps, "ctas": report.ctas, "resident_ctas": report.resident_ctas}))
}

/// Results that alias an operand get what the kernel wrote there.
///
/// # Safety
/// As for [`run_with`]; sizes have been checked.
unsafe fn copy_aliased(artifact: &Artifact, buffers: &[HostBuffer]) {
    for (spec, result) in artifact.compiled.buffers.iter().zip(buffers) {
        let Some(alias) = spec.alias_of else { continue };
        let operand = buffers[alias as usize];
        // SAFETY: both are valid for their bytes, and distinct.
        unsafe {
            std::ptr::copy(
                operand.address,
                result.address,
                result.bytes.min(operand.bytes) as usize,
            )
        };
    }
}

/// Reading what nothing wrote is no error here, since it
/// is none on a GPU if the result is not used; it reads poison.
fn options(emulation: &Emulation) -> emulate::Options {
    // `Emulation` refuses a seed without a schedule that has one.
    let agents = match (emulation.schedule.as_deref(), emulation.seed) {
        (None | Some("latest"), None) => emulate::AgentOrder::Latest,
        (Some("earliest"), _) => emulate::AgentOrder::Earliest,
        (_, seed) => emulate::AgentOrder::Seeded(seed.unwrap_or(0)),
    };
    emulate::Options {
        undefined: emulate::Undefined::Ignored,
        ..emulate::Options::default()
    }
    .with_agents(agents)
}

/// Runs a kernel on host data: in the emulator, or on GPU `device` if that is not negative. The report is JSON.
///
/// # Safety
/// As for [`run`].
pub unsafe fn run_on_host_data(
    artifact: &Artifact,
    locations: &Locations,
    device: i32,
    buffers: &[HostBuffer],
) -> Result<serde_json::Value, Error> {
    if device < 0 {
        // SAFETY: as our caller promises.
        return unsafe { emulate_on_host_data(artifact, locations, buffers, &Schedule::default()) };
    }
    check_sizes(artifact, buffers)?;
    let slices = buffers.iter().map(|buffer| {
        // SAFETY: as our caller promises; the buffers are distinct.
        unsafe { std::slice::from_raw_parts_mut(buffer.address, buffer.bytes as usize) }
    });
    let mut slices = slices.collect::<Vec<_>>();
    let (plan, image) = standalone(artifact)?;
    let mut recorded = artifact.launch().profile_bytes().map(|bytes| vec![0; bytes as usize]);
    slices.extend(recorded.as_deref_mut());
    let mut printed = printer(artifact)?;
    slices.extend(printed.as_deref_mut());
    let outcome = cuda::standalone::run(device, plan, image, &mut slices)?;
    let gave_up = artifact.launch().gives_up.and_then(|buffer| {
        let words = slices[buffer as usize].as_chunks::<8>().0;
        let words = [words[0], words[1]].map(u64::from_le_bytes);
        gave_up::error_of(&artifact.compiled.name, artifact.launch(), device, words)
    });
    let words = |memory: &Vec<u8>| -> Vec<u64> {
        let words = memory.as_chunks::<8>().0.iter();
        words.map(|bytes| u64::from_le_bytes(*bytes)).collect()
    };
    if let Some(memory) = &recorded {
        profile::write(artifact, locations, &words(memory), Machine::Gpu, device);
    }
    if let Some(memory) = &printed {
        print(artifact, &words(memory), device);
    }
    if let Some(error) = gave_up {
        return Err(error);
    }
    // SAFETY: as our caller promises.
    unsafe { copy_aliased(artifact, buffers) };
    Ok(json!(outcome))
}

/// Times `10 * batch` launches on GPU `device`. The report is JSON.
///
/// # Safety
/// Every buffer is valid for reads of its bytes until this returns, and nothing writes it meanwhile.
pub unsafe fn measure(
    artifact: &Artifact,
    device: i32,
    buffers: &[HostBuffer],
    batch: u32,
) -> Result<serde_json::Value, Error> {
    check_sizes(artifact, buffers)?;
    let slices = buffers.iter().map(|buffer| {
        // SAFETY: as our caller promises.
        unsafe { std::slice::from_raw_parts(buffer.address.cast_const(), buffer.bytes as usize) }
    });
    let mut slices = slices.collect::<Vec<_>>();
    let recorded = artifact.launch().profile_bytes().map(|bytes| vec![0; bytes as usize]);
    slices.extend(recorded.as_deref());
    let printed = printer(artifact)?;
    slices.extend(printed.as_deref());
    let (plan, image) = standalone(artifact)?;
    Ok(json!(cuda::standalone::measure(device, plan, image, &slices, batch)?))
}

/// Memory for what a run prints, if the kernel prints.
fn printer(artifact: &Artifact) -> Result<Option<Vec<u8>>, Error> {
    let bytes = super::env::get()?.print_bytes;
    let memory = || {
        records::empty(bytes)
            .iter()
            .flat_map(|word| word.to_le_bytes())
            .collect()
    };
    Ok(artifact.launch().printer.map(|_| memory()))
}

fn standalone(artifact: &Artifact) -> Result<(cuda::Plan, cuda::Image<'_>), Error> {
    let artifact = artifact.best()?;
    let image = match artifact.assembled()? {
        Some(assembled) => cuda::Image::Cubin(&assembled.cubin),
        None => artifact.ptx_image(),
    };
    Ok((super::artifact::plan(artifact.launch()), image))
}

/// Checks what a run of one kernel by itself is given, in the emulator or on a GPU.
fn check_sizes(artifact: &Artifact, buffers: &[HostBuffer]) -> Result<(), Error> {
    if artifact.launch().exchange().is_some() {
        return Err(
            Error::unsupported("a kernel that talks to other devices, run by itself")
                .remedy("run the program under jax.shard_map on a mesh of several devices"),
        );
    }
    let specs = &artifact.compiled.buffers;
    if buffers.len() != specs.len() {
        return Err(Error::invalid("a run with the wrong number of buffers")
            .expected(format!("{} (operands, results, scratch)", specs.len()))
            .got(buffers.len().to_string()));
    }
    for (index, (buffer, spec)) in buffers.iter().zip(specs).enumerate() {
        if buffer.bytes != spec.bytes {
            return Err(Error::invalid(format!("buffer {index} of a run has the wrong size"))
                .expected(format!("{} bytes ({})", spec.bytes, spec.text))
                .got(format!("{} bytes", buffer.bytes)));
        }
    }
    Ok(())
}
