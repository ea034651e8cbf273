//! A kernel at one place of one program: what the FFI handlers hold.
use super::env::Checking;
use super::host::{self, HostBuffer};
use super::peers::{Peers, Site};
use super::posts::Owner;
use super::printing::mailbox::{self, Mailbox, Mailboxes};
use super::profile::recorder::{self, Recorder, Recorders};
use super::rendezvous::Rendezvous;
use super::{Artifact, BufferRole, BufferSpec, CompileOptions, Locations, cache, gave_up};
use crate::cuda;
use crate::error::{Error, Fault};
use crate::ptx::launch::Exchange;
use smallvec::SmallVec;
use std::sync::Arc;
use std::time::Duration;

/// A buffer as the handlers see it: a host or a device address.
#[derive(Clone, Copy, Debug)]
pub struct BufferView {
    pub address: usize,
    pub bytes: u64,
}

/// The attributes of the custom call.
#[derive(Clone, Copy, Debug)]
pub struct CallSiteAttributes<'a> {
    pub descriptor: &'a [u8],
    pub debug: &'a [u8],
    /// SHA-256 of the descriptor, in hex.
    pub hash: &'a str,
    pub target: &'a str,
    /// Lowest byte: what becomes of what the emulator's checker finds: 0: by `SMALT_CHECK`, 1: an error, 2: a warning, 3: no check.
    /// Above: a number for the mesh's devices where they are of several processes, else 0.
    pub flags: i64,
}

pub struct CallSite {
    artifact: Arc<Artifact>,
    locations: Locations,
    /// The descriptor's.
    hash: String,
    /// A number for the mesh's devices, where they are of several processes.
    mesh: u64,
    check: Option<Checking>,
    /// Where the launch's buffers lie among operands and results of the custom call.
    order: Vec<Place>,
    operands: usize,
    results: usize,
    /// Results that are operands' memory.
    shared: Vec<Shared>,
    /// The rendezvous of the devices of a kernel that communicates, emulated ones and GPUs.
    rendezvous: Rendezvous,
    peers: Peers,
    /// Where what it prints on GPUs comes in.
    mailboxes: Mailboxes,
    /// Where profiles come in from GPUs.
    recorders: Recorders,
}

/// An operand of the custom call, and the result that the kernel makes of it in place.
#[derive(Clone, Copy, Debug)]
struct Shared {
    operand: usize,
    result: usize,
    bytes: u64,
}

/// What has to be copied before the kernel runs.
#[derive(Clone, Copy, Debug)]
struct Copied {
    from: usize,
    to: usize,
    bytes: u64,
}

type Copies = SmallVec<[Copied; 2]>;

/// A place in the call frame.
#[derive(Clone, Copy, Debug)]
enum Place {
    Operand(usize),
    Result(usize),
}

impl Place {
    /// Among the operands, then the results.
    fn index(self, operands: usize) -> usize {
        match self {
            Place::Operand(operand) => operand,
            Place::Result(result) => operands + result,
        }
    }
}

impl CallSite {
    /// `locations` are those of the attributes, decoded.
    pub fn new(attributes: CallSiteAttributes<'_>, locations: Locations) -> Result<CallSite, Error> {
        let newer = |what: String| {
            Error::new(Fault::InvalidDescriptor, what)
                .remedy("the program was made by a newer version of smalt, or its file is damaged: lower it again")
        };
        let (mesh, check) = (attributes.flags as u64 >> 8, attributes.flags & 0xff);
        let check = match check {
            0 => None,
            1 => Some(Checking::Error),
            2 => Some(Checking::Warn),
            3 => Some(Checking::Off),
            _ => return Err(newer(format!("the custom call's flags {:#x}", attributes.flags))),
        };
        let hash = cache::hash(attributes.descriptor);
        if hash != attributes.hash {
            return Err(newer("the descriptor does not have the hash that it came with".into())
                .expected(attributes.hash)
                .got(hash));
        }
        let options = CompileOptions::for_target(attributes.target);
        let artifact = cache::compile(attributes.descriptor, attributes.debug, &options)?;
        let buffers = &artifact.compiled.buffers;
        let is_result = |buffer: &BufferSpec| buffer.role == BufferRole::Output;
        let scratch = buffers
            .iter()
            .filter(|buffer| buffer.role == BufferRole::Scratch)
            .count();
        let results = buffers.iter().filter(|buffer| is_result(buffer)).count();
        // In the call, scratch is operands behind the kernel's own, and results behind its own, aliased.
        let mut next = (0, 0);
        let order = buffers.iter().map(|buffer| {
            if is_result(buffer) {
                next.1 += 1;
                Place::Result(next.1 - 1)
            } else {
                next.0 += 1;
                Place::Operand(next.0 - 1)
            }
        });
        let order: Vec<Place> = order.collect();
        let mut shared: Vec<Shared> = vec![];
        let mut next = results;
        for (place, spec) in order.iter().zip(buffers) {
            let (operand, result) = match (*place, spec.alias_of) {
                (Place::Result(result), Some(operand)) => (operand as usize, result),
                (Place::Operand(operand), _) if spec.role == BufferRole::Scratch => {
                    next += 1;
                    (operand, next - 1)
                }
                _ => continue,
            };
            let bytes = spec.bytes;
            shared.push(Shared { operand, result, bytes });
        }
        Ok(CallSite {
            order,
            shared,
            operands: buffers.len() - results,
            results: results + scratch,
            locations,
            artifact,
            hash,
            mesh,
            check,
            rendezvous: Rendezvous::default(),
            peers: Peers::default(),
            mailboxes: Mailboxes::default(),
            recorders: Recorders::default(),
        })
    }

    pub fn artifact(&self) -> &Arc<Artifact> {
        &self.artifact
    }

    pub fn assemble_in_background(&self) {
        self.artifact.assemble_in_background();
    }

    pub fn locations(&self) -> &Locations {
        &self.locations
    }

    /// Loads the kernel on the device whose context is current; an atomic load when it is there.
    pub fn initialize_cuda(&self, device: i32) -> Result<(), Error> {
        cuda::standalone::make_current(device)?;
        self.artifact.loaded(device)?;
        let place = (device, None);
        self.recorder(place)?;
        self.mailbox(place)?;
        match self.exchange() {
            None => Ok(()),
            Some(_) if self.peers.are_known() => Ok(()),
            Some(exchange) => {
                let plan = super::artifact::plan(self.artifact.launch());
                let name = &self.artifact.compiled.name;
                let site = Site {
                    name,
                    hash: &self.hash,
                    mesh: self.mesh,
                    exchange,
                    templates: &plan.map_templates,
                };
                self.peers.introduce(&site, device)
            }
        }
    }

    fn exchange(&self) -> Option<&Exchange> {
        self.artifact.launch().exchange()
    }

    /// Bytes of the launch's buffers.
    fn sizes(&self, exchange: &Exchange) -> impl Fn(u32) -> u64 {
        let own = exchange.bytes();
        move |buffer| {
            self.artifact
                .compiled
                .buffers
                .get(buffer as usize)
                .map_or(own, |spec| spec.bytes)
        }
    }

    /// Queues the kernel, on a device in an execution. `buffers` are the call's operands (`operands` of them), then its results.
    pub fn execute_cuda(
        &self,
        (device, run_id): (i32, i64),
        stream: usize,
        operands: usize,
        buffers: &[BufferView],
    ) -> Result<(), Error> {
        let loaded = self.artifact.loaded(device)?;
        let mut addresses: SmallVec<[u64; 64]> = SmallVec::new();
        let copies = self.gather(
            operands,
            buffers,
            |b| b.address,
            |b| b.bytes == 0,
            has_its_size,
            |buffer| addresses.push(buffer.address as u64),
        )?;
        queue(&copies, stream)?;
        if let Some(exchange) = self.exchange() {
            self.peers
                .extend(exchange, self.sizes(exchange), device, &mut addresses)?;
        }
        self.launch(loaded, (device, run_id), stream, &mut addresses)
    }

    /// As [`CallSite::execute_cuda`] with buffers of the sizes of an earlier, successful call.
    pub fn execute_cuda_again(
        &self,
        (device, run_id): (i32, i64),
        stream: usize,
        operands: usize,
        addresses: &[usize],
    ) -> Result<(), Error> {
        let loaded = self.artifact.loaded(device)?;
        let mut ordered: SmallVec<[u64; 64]> = SmallVec::new();
        let copies = self.gather(
            operands,
            addresses,
            |address| address,
            |_| true,
            |_, _, _| Ok(()),
            |address| ordered.push(address as u64),
        )?;
        queue(&copies, stream)?;
        if let Some(exchange) = self.exchange() {
            self.peers
                .extend(exchange, self.sizes(exchange), device, &mut ordered)?;
        }
        self.launch(loaded, (device, run_id), stream, &mut ordered)
    }

    fn owner(&self) -> Owner {
        Owner {
            artifact: self.artifact.clone(),
            locations: self.locations.clone(),
        }
    }

    /// Where launches on a device and a stream of it print to, if the kernel prints.
    fn mailbox(&self, place: (i32, Option<usize>)) -> Result<Option<&'static Mailbox>, Error> {
        match self.artifact.launch().printer {
            None => Ok(None),
            Some(_) => mailbox::at(&self.mailboxes, place, || self.owner()).map(Some),
        }
    }

    /// Where the profiles of launches on a device and a stream of it come in, if the kernel has any.
    fn recorder(&self, place: (i32, Option<usize>)) -> Result<Option<&'static Recorder>, Error> {
        match self.artifact.launch().profile_bytes() {
            None => Ok(None),
            Some(bytes) => recorder::at(&self.recorders, place, bytes, || self.owner()).map(Some),
        }
    }

    /// Queues the kernel, and behind it what collects its profile and its prints. If its waits have a limit, waits for its end.
    fn launch(
        &self,
        loaded: &cuda::Loaded,
        (device, run_id): (i32, i64),
        stream: usize,
        addresses: &mut SmallVec<[u64; 64]>,
    ) -> Result<(), Error> {
        let place = (device, Some(stream));
        let (recorder, mailbox) = (self.recorder(place)?, self.mailbox(place)?);
        addresses.extend(recorder.map(Recorder::address));
        addresses.extend(mailbox.map(Mailbox::address));
        let (name, launch) = (&self.artifact.compiled.name, self.artifact.launch());
        let running = match (launch.gives_up, launch.exchange()) {
            (Some(_), Some(_)) => Some(self.peers.begin(name, run_id)?),
            _ => None,
        };
        let queue = || loaded.launch(stream, addresses);
        match mailbox {
            None => queue()?,
            Some(mailbox) => mailbox.queue(stream, queue)?,
        }
        if let Some(buffer) = launch.gives_up {
            let words = cuda::read_at_end(stream, addresses[buffer as usize])?;
            if let Some(error) = gave_up::error_of(name, launch, device, words) {
                let limit = Duration::from_nanos(self.artifact.compiled.wait_timeout_ns);
                if let Some(running) = running {
                    running.gave_up(limit);
                }
                return Err(error);
            }
        }
        // What a kernel leaves that gave up is no profile.
        recorder.map_or(Ok(()), |recorder| recorder.read_behind(stream))
    }

    /// Runs the kernel in the emulator.
    ///
    /// # Safety
    /// 1. Every buffer is host memory, valid for reads and writes of its bytes until this returns.
    /// 2. Nothing else writes them meanwhile, nor reads what the kernel writes.
    pub unsafe fn execute_host(
        &self,
        device: i32,
        run_id: i64,
        operands: usize,
        buffers: &[BufferView],
    ) -> Result<(), Error> {
        let mut host: SmallVec<[HostBuffer; 64]> = SmallVec::new();
        let copies = self.gather(
            operands,
            buffers,
            |b| b.address,
            |b| b.bytes == 0,
            has_its_size,
            |buffer| {
                host.push(HostBuffer {
                    address: buffer.address as *mut u8,
                    bytes: buffer.bytes,
                })
            },
        )?;
        for Copied { from, to, bytes } in copies {
            // SAFETY: as our caller promises; `gather` has seen to it that they do not overlap.
            unsafe { std::ptr::copy_nonoverlapping(from as *const u8, to as *mut u8, bytes as usize) };
        }
        if self.exchange().is_some() {
            if self.mesh != 0 {
                return Err(self.emulated_processes());
            }
            let (artifact, locations, rendezvous) = (&self.artifact, &self.locations, &self.rendezvous);
            // SAFETY: as our caller promises.
            return unsafe { host::run_together(artifact, locations, self.check, rendezvous, run_id, &host) };
        }
        // SAFETY: as our caller promises.
        unsafe { host::run(&self.artifact, &self.locations, self.check, device, &host) }.map(drop)
    }

    /// Gives the call's buffers in the launch's numbering, each after its check, and what has to be copied before the launch.
    /// `address`: where a buffer is; `is_token`: whether it may be one.
    ///
    /// A result that is an operand's memory may be separated from it: XLA's fusions of slices with calls ignore aliases. The kernel
    /// then runs in the result's memory.
    fn gather<B: Copy>(
        &self,
        operands: usize,
        buffers: &[B],
        address: impl Fn(B) -> usize,
        is_token: impl Fn(B) -> bool,
        check: impl Fn(usize, &BufferSpec, B) -> Result<(), Error>,
        mut take: impl FnMut(B),
    ) -> Result<Copies, Error> {
        // Behind both there may be tokens of ordered effects.
        let (results, tokens) = (buffers.len() - operands, operands.wrapping_sub(self.operands));
        let ends = [operands.saturating_sub(tokens), buffers.len().saturating_sub(tokens)];
        let are_tokens = || (0..tokens).all(|i| ends.iter().all(|end| is_token(buffers[end + i])));
        if tokens > operands || results != self.results + tokens || !are_tokens() {
            return Err(self.mismatch(operands, results));
        }
        let addresses =
            |shared: &Shared| [shared.operand, operands + shared.result].map(|place| address(buffers[place]));
        let copies = copies(&self.shared, addresses)?;
        for (index, (place, spec)) in self.order.iter().zip(&self.artifact.compiled.buffers).enumerate() {
            let place = place.index(operands);
            check(index, spec, buffers[place])?;
            let moved = match copies.is_empty() {
                true => None,
                false => self.shared.iter().find(|shared| shared.operand == place),
            };
            let buffer = moved.map_or(buffers[place], |shared| buffers[operands + shared.result]);
            if moved.is_some() {
                check(index, spec, buffer)?;
            }
            take(buffer);
        }
        Ok(copies)
    }

    #[cold]
    fn emulated_processes(&self) -> Error {
        let name = &self.artifact.compiled.name;
        Error::unsupported(format!("`{name}` talks to emulated devices of other processes"))
            .expected("a mesh of emulated devices of one process")
            .remedy("give one process all devices: XLA_FLAGS=--xla_force_host_platform_device_count=N")
    }

    #[cold]
    fn mismatch(&self, operands: usize, results: usize) -> Error {
        Error::new(
            Fault::InvalidDescriptor,
            "the custom call does not have the kernel's operands and results",
        )
        .expected(format!(
            "{} operands and {} results, scratch included",
            self.operands, self.results
        ))
        .got(format!("{operands} operands and {results} results"))
        .remedy("the program was made by another version of smalt: lower it again")
    }
}

/// A wrong size would be a wild read on the device.
fn has_its_size(index: usize, spec: &BufferSpec, buffer: BufferView) -> Result<(), Error> {
    // Scratch may be larger than needed: the program may come from a version that needed more.
    if buffer.bytes == spec.bytes || spec.role == BufferRole::Scratch && buffer.bytes > spec.bytes {
        return Ok(());
    }
    Err(
        Error::internal(format!("buffer {index} of the custom call has the wrong size"))
            .expected(format!("{} bytes ({})", spec.bytes, spec.text))
            .got(format!("{} bytes", buffer.bytes)),
    )
}

/// What has to be copied where an operand (the first address) and its result (the second) are separate.
fn copies(shared: &[Shared], addresses: impl Fn(&Shared) -> [usize; 2]) -> Result<Copies, Error> {
    let copied = |shared: &Shared| {
        let ([from, to], bytes) = (addresses(shared), shared.bytes);
        (from != to && bytes > 0).then_some(Copied { from, to, bytes })
    };
    let copies: Copies = shared.iter().filter_map(copied).collect();
    // One copy behind the other: what is still to be read must not be overwritten.
    let overlap = |a: usize, n: u64, b: usize, m: u64| (a as u64) < b as u64 + m && (b as u64) < a as u64 + n;
    let destroys = |to: &Copied| copies.iter().any(|of| overlap(to.to, to.bytes, of.from, of.bytes));
    match copies.iter().any(destroys) {
        true => Err(overlapping()),
        false => Ok(copies),
    }
}

#[cold]
fn overlapping() -> Error {
    Error::internal("results of the custom call, which it makes in place, overlap other operands")
        .expected("each in its operand's memory, or in memory of its own")
        .remedy("please report it, with XLA's program (XLA_FLAGS=--xla_dump_to=DIR)")
}

/// Queues the copies on a stream.
fn queue(copies: &[Copied], stream: usize) -> Result<(), Error> {
    let copy = |&Copied { from, to, bytes }: &Copied| cuda::copy_behind(stream, from as u64, to as u64, bytes);
    copies.iter().try_for_each(copy)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(pairs: &[[usize; 2]]) -> Result<Vec<[usize; 2]>, Error> {
        let shared = (0..pairs.len()).map(|operand| Shared {
            operand,
            result: 0,
            bytes: 64,
        });
        let found = copies(&shared.collect::<Vec<_>>(), |shared| pairs[shared.operand])?;
        Ok(found.iter().map(|copied| [copied.from, copied.to]).collect())
    }

    #[test]
    fn results_that_are_separate_from_their_operands_are_copied() {
        assert_eq!(of(&[[0, 0], [64, 256], [128, 128]]).unwrap(), [[64, 256]]);
        assert_eq!(of(&[[0, 256], [64, 320]]).unwrap(), [[0, 256], [64, 320]]);
        assert!(of(&[]).unwrap().is_empty());
    }

    #[test]
    fn results_that_overlap_what_is_still_to_be_read_are_refused() {
        for pairs in [&[[0, 32]][..], &[[0, 64], [64, 0]], &[[0, 128], [96, 512]]] {
            let text = of(pairs).unwrap_err().to_string();
            assert!(text.contains("overlap other operands"), "{text}");
        }
    }
}
