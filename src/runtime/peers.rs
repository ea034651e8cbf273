//! The GPUs of a call site exchange addresses, once: each has an exchange block, and all have its address.
//!
//! The devices of one process do so in memory. Where a mesh spans processes of a host, each device announces itself in the
//! [`directory`], and the processes map each other's memory ([`neighbours`]): the blocks at the first launch, other
//! buffers when a launch first names them.
use super::{directory, gave_up, neighbours};
use crate::cuda::{self, DeviceMemory};
use crate::error::{Error, Fault};
use crate::lock::lock;
use crate::ptx::launch::Exchange;
use rustc_hash::FxHashMap;
use serde::{Deserialize, Serialize};
use serde_json::json;
use smallvec::SmallVec;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// How long a device waits for the others before the first launch: they may be compiling.
const PATIENCE: Duration = Duration::from_secs(120);
/// Where they are of several processes, which may have more to do before; and after what time that is reported on stderr.
const PATIENCE_FOR_PROCESSES: Duration = Duration::from_secs(600);
const NOTICE: Duration = Duration::from_secs(60);
/// How often it looks which devices have announced themselves.
const LOOK: Duration = Duration::from_millis(10);
/// Rows of one allocation.
const ROWS: u64 = 32;

/// A call site, as far as its devices need it.
pub struct Site<'a> {
    pub name: &'a str,
    /// The descriptor's.
    pub hash: &'a str,
    /// Identifies the devices of the mesh where these are several processes'; else 0.
    pub mesh: u64,
    pub exchange: &'a Exchange,
    pub templates: &'a [cuda::TensorMap],
}

/// The exchange blocks of a call site's devices.
#[derive(Default)]
pub struct Peers {
    arrived: Mutex<Arrived>,
    changed: Condvar,
    /// Once all are there and each has all addresses.
    known: OnceLock<Known>,
    /// Of a kernel with waits that have a limit.
    launches: Mutex<Launches>,
    ended: Condvar,
}

/// Launches that this process sees end.
#[derive(Default)]
struct Launches {
    running: usize,
    /// Executions in which one gave up: what other devices launch in them has no counterpart.
    failed: VecDeque<i64>,
    /// One gave up, so that the blocks' epochs are no longer alike.
    is_stale: bool,
}

/// Failed executions that are remembered: more than devices may be behind each other.
const FAILED: usize = 64;

/// A launch that has begun.
pub struct Running<'a> {
    peers: &'a Peers,
    run: i64,
}

#[derive(Default)]
struct Arrived {
    /// This process's, by device ordinal.
    devices: Vec<(i32, DeviceMemory)>,
    /// How the call site is called in the directory, and the job, where its devices are several processes'; none: not decided yet.
    key: Option<Option<(String, directory::Job)>>,
}

struct Known {
    devices: Vec<Device>,
    /// What a block has in the parts that only its device writes.
    contents: [(u64, Vec<u64>); 2],
    /// All devices of the call site, in the order of the blocks' lists: the process of each, none for this one.
    processes: Vec<Option<String>>,
}

/// One of this process's devices.
struct Device {
    ordinal: i32,
    /// Its exchange block.
    block: u64,
    /// Where others have mapped its memory; none: they are all of this process.
    rows: Option<Mutex<Rows>>,
}

/// Rows of [`crate::ptx::launch::EntryParam::Row`], one for each allocation that a launch has named.
#[derive(Default)]
struct Rows {
    rows: Vec<Row>,
    memory: Vec<DeviceMemory>,
}

struct Row {
    range: Range<u64>,
    identity: u64,
    address: u64,
}

/// A device's entry in the directory.
#[derive(Debug, Serialize, Deserialize)]
struct Announcement {
    process: u32,
    device: i32,
    host: String,
    socket: String,
    /// Where its exchange block is, in its process.
    block: u64,
}

impl Peers {
    /// Whether all have arrived.
    pub fn are_known(&self) -> bool {
        self.known.get().is_some()
    }

    /// Device `device`, whose context is current, is to launch the kernel: waits for the mesh's others, the first time.
    pub fn introduce(&self, site: &Site<'_>, device: i32) -> Result<(), Error> {
        let mut arrived = lock(&self.arrived);
        let key = match &arrived.key {
            Some(key) => key.clone(),
            None => arrived.key.insert(directory_key(site)?).clone(),
        };
        if key.is_some() {
            cuda::shared::join()?;
        }
        if !arrived.devices.iter().any(|(ordinal, _)| *ordinal == device) {
            let bytes = site.exchange.bytes();
            let memory = match key {
                None => DeviceMemory::new(bytes)?,
                Some(_) => DeviceMemory::shareable(bytes)?,
            };
            // Before its address is known: another device's message may come at any time from then on.
            memory.write(0, &vec![0; bytes.div_ceil(8) as usize])?;
            arrived.devices.push((device, memory));
        }
        match key {
            None => self.rendezvous(site, arrived)?,
            Some((key, job)) => self.rendezvous_of_processes(site, device, (&key, job), arrived)?,
        }
        let arrived = lock(&self.arrived);
        arrived.devices.iter().try_for_each(|(_, memory)| cuda::reach(memory))
    }

    /// All devices are this process's.
    fn rendezvous(&self, site: &Site<'_>, mut arrived: MutexGuard<'_, Arrived>) -> Result<(), Error> {
        if arrived.devices.len() == site.exchange.devices as usize {
            let starts = arrived.devices.iter().map(|(_, memory)| memory.address());
            let starts = starts.collect::<Vec<_>>();
            let contents = write_blocks(site, &arrived, &starts)?;
            let known = arrived.devices.iter().map(|(ordinal, memory)| Device {
                ordinal: *ordinal,
                block: memory.address(),
                rows: None,
            });
            self.publish(known.collect(), vec![], contents);
        }
        let start = Instant::now();
        while self.known.get().is_none() {
            let left = PATIENCE.checked_sub(start.elapsed());
            let Some(left) = left else {
                let came = arrived.devices.iter().map(|(ordinal, _)| ordinal.to_string());
                let came = format!("device {}", came.collect::<Vec<_>>().join(", "));
                return Err(missing(site, PATIENCE, &came));
            };
            let waited = self.changed.wait_timeout(arrived, left);
            (arrived, _) = waited.unwrap_or_else(PoisonError::into_inner);
        }
        Ok(())
    }

    /// The devices are several processes'; `key` is the call site's in the job's directory.
    fn rendezvous_of_processes(
        &self,
        site: &Site<'_>,
        device: i32,
        (key, job): (&str, directory::Job),
        arrived: MutexGuard<'_, Arrived>,
    ) -> Result<(), Error> {
        let here = neighbours::here()?;
        let host = neighbours::host()?;
        let own = arrived.devices.iter().find(|(ordinal, _)| *ordinal == device);
        let own = own.ok_or_else(|| Error::internal("a device without a block"))?;
        let announcement = Announcement {
            process: job.process,
            device,
            host: host.clone(),
            socket: here.name().to_owned(),
            block: own.1.address(),
        };
        drop(arrived);
        directory::put(&format!("{key}/{}.{device}", job.process), &json!(announcement))?;
        let start = Instant::now();
        let mut noticed = false;
        let all = loop {
            let all = decode(directory::list(&format!("{key}/"))?)?;
            if all.len() >= site.exchange.devices as usize {
                break all;
            }
            let came = || {
                let came = all
                    .values()
                    .map(|one| format!("{} of process {}", one.device, one.process));
                format!("device {}", came.collect::<Vec<_>>().join(", "))
            };
            if start.elapsed() > PATIENCE_FOR_PROCESSES {
                return Err(missing(site, PATIENCE_FOR_PROCESSES, &came()));
            }
            if start.elapsed() > NOTICE && !noticed {
                noticed = true;
                let (name, devices) = (site.name, site.exchange.devices);
                eprintln!(
                    "smalt: `{name}` waits for the {devices} devices of its mesh; only {} came",
                    came()
                );
            }
            std::thread::sleep(LOOK);
        };
        if let Some(far) = all.values().find(|one| one.host != host) {
            return Err(across_hosts(site, &job, far));
        }
        let arrived = lock(&self.arrived);
        if self.known.get().is_some() {
            return Ok(());
        }
        let is_own = |one: &Announcement| one.socket == here.name();
        // Ours go to them, and then theirs have come to us, or are on their way.
        let processes = all.values().map(|one| (!is_own(one)).then(|| one.socket.clone()));
        let processes = processes.collect::<Vec<_>>();
        let mut devices = vec![];
        for (ordinal, memory) in &arrived.devices {
            let device = Device {
                ordinal: *ordinal,
                block: memory.address(),
                rows: Some(Mutex::default()),
            };
            device.row(&processes, memory.address(), site.exchange.bytes())?;
            devices.push(device);
        }
        let mut starts = vec![];
        for one in all.values() {
            let start = match is_own(one) {
                true => Some(one.block),
                false => here.find(&one.socket, one.block, PATIENCE),
            };
            let came = || format!("no memory of process {} of the job", one.process);
            starts.push(start.ok_or_else(|| missing(site, PATIENCE, &came()))?);
        }
        let contents = write_blocks(site, &arrived, &starts)?;
        self.publish(devices, processes, contents);
        Ok(())
    }

    /// A device is about to launch the kernel `name`, with waits that have a limit, in execution `run`.
    ///
    /// Where one gave up before, its device's epoch and semaphores are not what the others' are: when no launch is running, all begin anew. No launch of
    /// the failed execution comes after that.
    pub fn begin(&self, name: &str, run: i64) -> Result<Running<'_>, Error> {
        let mut launches = lock(&self.launches);
        loop {
            if launches.failed.contains(&run) {
                return Err(gave_up::elsewhere(name));
            }
            if !launches.is_stale {
                break;
            }
            if launches.running == 0 {
                self.begin_anew(name)?;
                launches.is_stale = false;
                break;
            }
            launches = self.ended.wait(launches).unwrap_or_else(PoisonError::into_inner);
        }
        launches.running += 1;
        Ok(Running { peers: self, run })
    }

    /// The blocks are as before the first launch. No device runs the kernel.
    fn begin_anew(&self, name: &str) -> Result<(), Error> {
        let known = self.known.get().ok_or_else(unknown)?;
        if known.processes.iter().any(Option::is_some) {
            return Err(gave_up::lost(name));
        }
        for (_, memory) in &lock(&self.arrived).devices {
            memory.write(0, &vec![0; (memory.bytes() / 8) as usize])?;
            for (at, words) in &known.contents {
                memory.write(*at, words)?;
            }
        }
        Ok(())
    }

    /// The caller holds the lock.
    fn publish(&self, devices: Vec<Device>, processes: Vec<Option<String>>, contents: [(u64, Vec<u64>); 2]) {
        let _ = self.known.set(Known {
            devices,
            contents,
            processes,
        });
        self.changed.notify_all();
    }

    /// What a launch on `device` has behind the call's buffers, of which these are the addresses and sizes: its exchange block, and the rows of
    /// exchanged buffers.
    pub fn extend(
        &self,
        exchange: &Exchange,
        sizes: impl Fn(u32) -> u64,
        device: i32,
        addresses: &mut SmallVec<[u64; 64]>,
    ) -> Result<(), Error> {
        let known = self.known.get().ok_or_else(unknown)?;
        let device = known
            .devices
            .iter()
            .find(|one| one.ordinal == device)
            .ok_or_else(unknown)?;
        addresses.push(device.block);
        for buffer in &exchange.exchanged {
            let row = match device.rows {
                None => device.block + exchange.zero_row(),
                Some(_) => device.row(&known.processes, addresses[*buffer as usize], sizes(*buffer))?,
            };
            addresses.push(row);
        }
        Ok(())
    }
}

impl Running<'_> {
    /// It gave up; `limit`: after what time.
    ///
    /// Returns when no other device writes this one's buffers any more, which are XLA's again then: what runs ends by its own limits, and nothing is
    /// launched before. Of other processes that cannot be checked; they get as much time as a wait may take.
    pub fn gave_up(self, limit: Duration) {
        let peers = self.peers;
        let mut launches = lock(&peers.launches);
        launches.is_stale = true;
        if launches.failed.len() == FAILED {
            launches.failed.pop_front();
        }
        launches.failed.push_back(self.run);
        drop(launches);
        drop(self);
        let spans = |known: &Known| known.processes.iter().any(Option::is_some);
        if peers.known.get().is_some_and(spans) {
            std::thread::sleep(limit);
        }
        let mut launches = lock(&peers.launches);
        while launches.is_stale && launches.running > 0 {
            launches = peers.ended.wait(launches).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        lock(&self.peers.launches).running -= 1;
        self.peers.ended.notify_all();
    }
}

fn unknown() -> Error {
    Error::internal("a launch on a device that was not initialised")
}

/// Fills the blocks of this process's devices; `starts`: where all devices' are. Gives what it writes to each.
fn write_blocks(site: &Site<'_>, arrived: &Arrived, starts: &[u64]) -> Result<[(u64, Vec<u64>); 2], Error> {
    let maps = site
        .templates
        .iter()
        .map(cuda::encode_map)
        .collect::<Result<Vec<_>, _>>()?;
    let contents = site.exchange.own_parts(starts, &maps);
    for (_, memory) in &arrived.devices {
        for (at, words) in &contents {
            memory.write(*at, words)?;
        }
    }
    Ok(contents)
}

impl Device {
    /// The row of the allocation around an address of this device; `processes`: those that it has differences of. Its context is current.
    fn row(&self, processes: &[Option<String>], address: u64, bytes: u64) -> Result<u64, Error> {
        let rows = self
            .rows
            .as_ref()
            .ok_or_else(|| Error::internal("rows in one process"))?;
        let mut rows = lock(rows);
        let identity = cuda::shared::identity(address)?;
        let end = address + bytes;
        let holds = |range: &Range<u64>| range.start <= address && end <= range.end;
        let known = rows
            .rows
            .iter()
            .find(|row| row.identity == identity && holds(&row.range));
        if let Some(row) = known {
            return Ok(row.address);
        }
        let here = neighbours::here()?;
        let mut there: FxHashMap<&str, u64> = FxHashMap::default();
        let mut range = None;
        for process in processes.iter().flatten().collect::<BTreeSet<_>>() {
            let (around, start) = here.offer(process, address)?;
            there.insert(process, start.wrapping_sub(around.start));
            range = Some(around);
        }
        let range = range.ok_or_else(|| Error::internal("a mesh of several processes, and no other process"))?;
        if !holds(&range) {
            return Err(in_pieces(bytes));
        }
        let words = processes.iter().map(|process| match process {
            None => 0,
            Some(process) => there[process.as_str()],
        });
        let words = words.collect::<Vec<_>>();
        let bytes = size_of_val(words.as_slice()) as u64;
        let at = rows.rows.len() as u64 % ROWS;
        if at == 0 {
            rows.memory.push(DeviceMemory::new(ROWS * bytes)?);
        }
        let memory = rows
            .memory
            .last()
            .ok_or_else(|| Error::internal("rows without memory"))?;
        memory.write(at * bytes, &words)?;
        let row = memory.address() + at * bytes;
        rows.rows.push(Row {
            range,
            identity,
            address: row,
        });
        Ok(row)
    }
}

/// How a call site is called in the job's directory; none: its devices are all this process's.
///
/// The processes of a mesh run its programs in the same order, so that the same descriptor's call sites have the same numbers.
fn directory_key(site: &Site<'_>) -> Result<Option<(String, directory::Job)>, Error> {
    // An entry is never removed: the directory forgets no key, so that one that came again would name a call site that is gone.
    static SITES: Mutex<BTreeMap<(u64, String), u32>> = Mutex::new(BTreeMap::new());
    let devices = site.exchange.devices;
    let is_spanning = |job: &directory::Job| job.processes > 1 && (site.mesh != 0 || devices > job.local_devices);
    let Some(job) = directory::job()?.filter(is_spanning) else {
        let here = cuda::devices()?.len();
        if here < devices as usize {
            return Err(Error::unsupported(format!(
                "`{}` talks to {devices} devices from a process that has {here}",
                site.name
            ))
            .remedy(
                "run all devices of the mesh in one process, or in a job of several: jax.distributed.initialize()",
            ));
        }
        return Ok(None);
    };
    let mut sites = lock(&SITES);
    let number = sites.entry((site.mesh, site.hash.to_owned())).or_default();
    *number += 1;
    let key = format!("smalt/{:x}/{}/{number}", site.mesh, site.hash);
    Ok(Some((key, job)))
}

/// By the keys in the directory, which all processes have in the same order.
fn decode(entries: BTreeMap<String, String>) -> Result<BTreeMap<String, Announcement>, Error> {
    let decode = |(key, text): (String, String)| {
        let one = serde_json::from_str(&text).map_err(|error| {
            Error::internal(format!("a device's entry in the directory: {error}"))
                .remedy("all processes of a job must run the same version of smalt")
        })?;
        Ok((key, one))
    };
    entries.into_iter().map(decode).collect()
}

fn missing(site: &Site<'_>, waited: Duration, came: &str) -> Error {
    Error::new(
        Fault::Timeout,
        format!(
            "devices of the mesh have not come to the first launch of `{}`, which talks to them",
            site.name
        ),
    )
    .expected(format!("{} devices to run the same program", site.exchange.devices))
    .got(format!("waited {} s; only {came} came", waited.as_secs()))
    .remedy("let every device of the mesh run the program; look for an error on another device")
}

fn in_pieces(bytes: u64) -> Error {
    Error::unsupported("a buffer that other processes reach, in several pieces of device memory")
        .expected("each of XLA's arrays in one allocation of its pool")
        .got(format!("{bytes} bytes that do not lie in one"))
        .remedy("let XLA take its pool at once: leave XLA_PYTHON_CLIENT_PREALLOCATE as it is")
}

fn across_hosts(site: &Site<'_>, job: &directory::Job, far: &Announcement) -> Error {
    Error::unsupported(format!("`{}` talks to devices of another host", site.name))
        .expected("a mesh whose devices are of one host: kernels reach each other's memory by NVLink")
        .got(format!(
            "process {} and process {} are on different hosts",
            job.process, far.process
        ))
        .remedy("make the axis that the kernel talks over lie within a host, and use XLA's collectives between hosts")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// No device that gives up returns while another launch runs, and of a failed execution none comes.
    #[test]
    fn who_gives_up_waits_for_the_others() {
        let peers = Peers::default();
        peers.publish(vec![], vec![], Default::default());
        let [first, second] = [0, 1].map(|_| peers.begin("f", 7).unwrap());
        let ended = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| {
                first.gave_up(Duration::ZERO);
                assert!(ended.load(std::sync::atomic::Ordering::Acquire));
            });
            while !lock(&peers.launches).is_stale {
                std::thread::yield_now();
            }
            assert!(peers.begin("f", 7).is_err_and(|error| error.fault == Fault::Timeout));
            let next = scope.spawn(|| {
                drop(peers.begin("f", 8).unwrap());
                assert!(ended.load(std::sync::atomic::Ordering::Acquire));
            });
            std::thread::sleep(LOOK);
            ended.store(true, std::sync::atomic::Ordering::Release);
            drop(second);
            waits.join().unwrap();
            next.join().unwrap();
        });
        assert!(peers.begin("f", 7).is_err());
        assert!(!lock(&peers.launches).is_stale);
    }

    #[test]
    fn what_separates_devices_is_reported() {
        let exchange = Exchange {
            buffer: 2,
            devices: 4,
            exchanged: vec![0],
            map_count: 0,
            semaphore_bytes: 16,
        };
        let site = Site {
            name: "ring",
            hash: "0",
            mesh: 1,
            exchange: &exchange,
            templates: &[],
        };
        let job = directory::Job {
            process: 1,
            processes: 2,
            local_devices: 2,
        };
        let far = |process: u32, host: &str| {
            let value = json!({ "process": process, "device": 0, "host": host, "socket": "s", "block": 4096 });
            (format!("k/{process}.0"), value.to_string())
        };
        let all = decode([far(0, "a"), far(1, "b")].into()).unwrap();
        let text = across_hosts(&site, &job, &all["k/0.0"]).to_string();
        for words in [
            "`ring` talks to devices of another host",
            "process 1 and process 0",
            "XLA's collectives",
        ] {
            assert!(text.contains(words), "{text}");
        }
        let other = [("k/0.0".to_owned(), r#"{"process": 0}"#.to_owned())];
        let error = decode(other.into()).unwrap_err().to_string();
        assert!(error.contains("same version of smalt"), "{error}");
        let text = missing(&site, PATIENCE, "device 0 of process 0").to_string();
        assert!(
            text.contains("4 devices") && text.contains("only device 0 of process 0 came"),
            "{text}"
        );
        assert!(in_pieces(1 << 30).to_string().contains("XLA_PYTHON_CLIENT_PREALLOCATE"));
    }
}
