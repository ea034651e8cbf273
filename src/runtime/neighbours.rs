//! Other processes of this host: they map our device memory, and we theirs.
//!
//! A thread of each process listens on a socket. A process that wants a neighbour to reach some memory sends the allocation's descriptor, and gets
//! the address at which the neighbour has mapped it. No process waits for the neighbour's Python or GPU, nor for a
//! silent neighbour: each is served by a thread of its own.
//!
//! Both sides check the other's user before they send anything: any user can open a socket by its name. Processes of one user may do to
//! each other what they like.
//!
//! What is mapped here stays mapped until the process ends, its owner's end included: a kernel in flight may be using it, and a job that has
//! lost a process ends soon.
#[cfg(not(target_os = "linux"))]
use super::no_sockets as sockets;
#[cfg(target_os = "linux")]
use super::sockets;
use crate::cuda;
use crate::error::{Error, Fault};
use crate::lock::lock;
use crate::panics::contain_panics;
use rustc_hash::FxHashMap;
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::hash::{BuildHasher, RandomState};
use std::io::Write;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// How long a neighbour may take for one answer: it maps memory, which takes milliseconds.
const PATIENCE: Duration = Duration::from_secs(30);
/// Neighbours that are served at once. Others wait for their turn.
const SERVED: usize = 64;
/// Between attempts to accept where that fails: the process may be out of file descriptors.
const SHORTEST_PAUSE: Duration = Duration::from_millis(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// How memory of another process is mapped.
pub trait Mapper: Send + Sync + 'static {
    /// The address here of an allocation of `bytes` bytes.
    fn import(&self, descriptor: &OwnedFd, bytes: u64) -> Result<u64, Error>;
    /// A number that the allocation around an address has alone.
    fn identity(&self, address: u64) -> Result<u64, Error>;
    /// The allocation around an address, and a descriptor to map it by.
    fn export(&self, address: u64) -> Result<(Range<u64>, OwnedFd), Error>;
}

/// GPUs' memory.
struct Gpus;

impl Mapper for Gpus {
    fn import(&self, descriptor: &OwnedFd, bytes: u64) -> Result<u64, Error> {
        cuda::shared::import(descriptor, bytes)
    }
    fn identity(&self, address: u64) -> Result<u64, Error> {
        cuda::shared::identity(address)
    }
    fn export(&self, address: u64) -> Result<(Range<u64>, OwnedFd), Error> {
        cuda::shared::export(address)
    }
}

/// What comes with a descriptor: an allocation of the process that listens at `from`.
#[derive(Serialize, Deserialize)]
struct Offer {
    from: String,
    start: u64,
    bytes: u64,
}

#[derive(Deserialize)]
enum Answer {
    #[serde(rename = "address")]
    Address(u64),
    #[serde(rename = "error")]
    Error(String),
}

/// This process among its neighbours.
pub struct Neighbours {
    /// The name of its socket.
    name: String,
    mapper: Box<dyn Mapper>,
    /// What others have mapped, by process: an allocation's identity, where it is here, and where it begins there.
    exports: Mutex<FxHashMap<String, Vec<(u64, Range<u64>, u64)>>>,
    /// What is mapped here, by its owner: where it is there and here.
    imports: Mutex<FxHashMap<String, Vec<(Range<u64>, u64)>>>,
    changed: Condvar,
    /// How many are being served.
    served: Mutex<usize>,
    leaves: Condvar,
}

/// This process; it listens from the first call on.
pub fn here() -> Result<&'static Arc<Neighbours>, Error> {
    static HERE: OnceLock<Result<Arc<Neighbours>, Error>> = OnceLock::new();
    let here = HERE.get_or_init(|| Neighbours::listen(Box::new(Gpus)));
    here.as_ref().map_err(Clone::clone)
}

/// What all processes of a running kernel have in common, and no others.
pub fn host() -> Result<String, Error> {
    let id = "/proc/sys/kernel/random/boot_id";
    let text = std::fs::read_to_string(id).map_err(|error| trouble(&format!("reading {id}"), &error))?;
    Ok(text.trim().to_owned())
}

impl Neighbours {
    fn listen(mapper: Box<dyn Mapper>) -> Result<Arc<Neighbours>, Error> {
        let random = || RandomState::new().hash_one(std::process::id());
        let name = format!("smalt-{}-{:016x}{:016x}", std::process::id(), random(), random());
        let listener = sockets::listen(&name);
        let listener = listener.map_err(|error| trouble("opening a socket for other processes", &error))?;
        let neighbours = Arc::new(Neighbours {
            name,
            mapper,
            exports: Mutex::default(),
            imports: Mutex::default(),
            changed: Condvar::new(),
            served: Mutex::new(0),
            leaves: Condvar::new(),
        });
        let own = neighbours.clone();
        let serve = move || {
            let mut pause = SHORTEST_PAUSE;
            for stream in listener.incoming() {
                match stream {
                    Ok(stream) => {
                        pause = SHORTEST_PAUSE;
                        own.serve_on_thread(stream);
                    }
                    Err(_) => {
                        std::thread::sleep(pause);
                        pause = (2 * pause).min(LONGEST_PAUSE);
                    }
                }
            }
        };
        let thread = std::thread::Builder::new().name("smalt-neighbours".into()).spawn(serve);
        thread.map_err(|error| trouble("starting a thread", &error))?;
        Ok(neighbours)
    }

    /// Where others reach this process.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Lets the process at `peer` map the allocation around `address`; where that allocation is here, and where it begins there.
    pub fn offer(&self, peer: &str, address: u64) -> Result<(Range<u64>, u64), Error> {
        let identity = self.mapper.identity(address)?;
        // Held until the answer: nothing is mapped twice.
        let mut exports = lock(&self.exports);
        let of_peer = exports.entry(peer.to_owned()).or_default();
        if let Some((_, range, there)) = of_peer
            .iter()
            .find(|(id, range, _)| *id == identity && range.contains(&address))
        {
            return Ok((range.clone(), *there));
        }
        let (range, descriptor) = self.mapper.export(address)?;
        let offer = json!(Offer {
            from: self.name.clone(),
            start: range.start,
            bytes: range.end - range.start,
        });
        let answer = sockets::ask(peer, &offer.to_string(), &descriptor, PATIENCE)
            .map_err(|error| trouble("asking another process to map device memory", &error))?;
        match serde_json::from_slice(&answer) {
            Ok(Answer::Address(there)) => {
                of_peer.push((identity, range.clone(), there));
                Ok((range, there))
            }
            Ok(Answer::Error(text)) => Err(Error::new(
                Fault::Environment,
                "another process of the mesh could not map this one's memory",
            )
            .got(text)),
            Err(_) => Err(Error::new(
                Fault::Environment,
                "another process of the mesh did not answer: it may have ended",
            )
            .remedy("look at its output; all processes run the same version of smalt")),
        }
    }

    /// Where byte `address` of the process at `peer` is here, once that process has offered it; none: not within `patience`.
    pub fn find(&self, peer: &str, address: u64, patience: Duration) -> Option<u64> {
        let start = Instant::now();
        let mut imports = self.imports();
        loop {
            let of_peer = imports.get(peer).map_or(&[][..], Vec::as_slice);
            // The latest counts: addresses may be used again.
            let found = of_peer.iter().rev().find(|(range, _)| range.contains(&address));
            if let Some((range, here)) = found {
                return Some(here + (address - range.start));
            }
            let left = patience.checked_sub(start.elapsed())?;
            let waited = self.changed.wait_timeout(imports, left);
            (imports, _) = waited.unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn imports(&self) -> MutexGuard<'_, FxHashMap<String, Vec<(Range<u64>, u64)>>> {
        lock(&self.imports)
    }

    /// Serves a neighbour on another thread. One that cannot be served gets no answer.
    fn serve_on_thread(self: &Arc<Neighbours>, stream: UnixStream) {
        if !sockets::is_of_our_user(&stream).unwrap_or(false) {
            return;
        }
        let mut served = lock(&self.served);
        while *served >= SERVED {
            served = self.leaves.wait(served).unwrap_or_else(PoisonError::into_inner);
        }
        *served += 1;
        drop(served);
        let own = self.clone();
        let serve = move || {
            let _ = contain_panics(|| Ok(own.serve(stream)));
            *lock(&own.served) -= 1;
            own.leaves.notify_one();
        };
        let name = "smalt-neighbour".to_owned();
        if std::thread::Builder::new().name(name).spawn(serve).is_err() {
            *lock(&self.served) -= 1;
        }
    }

    fn serve(&self, mut stream: UnixStream) -> std::io::Result<()> {
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        let (text, descriptor) = sockets::receive(&mut stream)?;
        let offer = serde_json::from_slice::<Offer>(&text).map_err(|error| error.to_string());
        // An offer is another process's word: its numbers are anything.
        let range = offer.and_then(|offer| match offer.start.checked_add(offer.bytes) {
            Some(end) if offer.bytes > 0 => Ok((offer.from, offer.start..end)),
            _ => Err(format!("{} bytes from {:#x}", offer.bytes, offer.start)),
        });
        let answer = match (range, descriptor) {
            (Ok((from, there)), Some(descriptor)) => match self.mapper.import(&descriptor, there.end - there.start) {
                Ok(here) => {
                    self.imports().entry(from).or_default().push((there, here));
                    self.changed.notify_all();
                    json!({ "address": here })
                }
                Err(error) => json!({ "error": error.to_string() }),
            },
            (Ok(_), None) => json!({ "error": "an offer of memory without a descriptor" }),
            (Err(text), _) => json!({ "error": format!("not an offer of memory: {text}") }),
        };
        stream.write_all(answer.to_string().as_bytes())
    }
}

fn trouble(doing: &str, error: &std::io::Error) -> Error {
    Error::new(Fault::Environment, format!("{doing}: {error}"))
        .remedy("processes of a mesh share a host, its network namespace and a user")
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;
    use std::io::{Read, Seek, SeekFrom};
    use std::net::Shutdown;
    use std::sync::atomic::{AtomicU64, Ordering};

    const BYTES: u64 = 0x1000;

    /// Memory whose descriptors are files with the allocation's own address in them.
    #[derive(Default)]
    struct Files {
        identity: AtomicU64,
        /// Of the imports: how many, and what was in the files.
        seen: Mutex<Vec<u64>>,
        full: bool,
    }

    impl Mapper for Arc<Files> {
        fn import(&self, descriptor: &OwnedFd, bytes: u64) -> Result<u64, Error> {
            if self.full {
                return Err(Error::new(Fault::Environment, "no more room"));
            }
            assert_eq!(bytes, BYTES);
            let mut file = std::fs::File::from(descriptor.try_clone().unwrap());
            let mut word = [0; 8];
            file.seek(SeekFrom::Start(0)).unwrap();
            file.read_exact(&mut word).unwrap();
            let mut seen = self.seen.lock().unwrap();
            seen.push(u64::from_le_bytes(word));
            Ok(seen.len() as u64 * 0x10_0000)
        }
        fn identity(&self, address: u64) -> Result<u64, Error> {
            Ok(address / BYTES + 1000 * self.identity.load(Ordering::Relaxed))
        }
        fn export(&self, address: u64) -> Result<(Range<u64>, OwnedFd), Error> {
            let start = address / BYTES * BYTES;
            let mut file = tempfile::tempfile().unwrap();
            file.write_all(&start.to_le_bytes()).unwrap();
            Ok((start..start + BYTES, file.into()))
        }
    }

    fn process(full: bool) -> (Arc<Files>, Arc<Neighbours>) {
        let files = Arc::new(Files {
            full,
            ..Files::default()
        });
        let neighbours = Neighbours::listen(Box::new(files.clone())).unwrap();
        (files, neighbours)
    }

    const SOON: Duration = Duration::from_millis(20);

    #[test]
    fn an_allocation_is_mapped_once_and_found_at_every_byte() {
        let ((_, a), (files, b)) = (process(false), process(false));
        assert_eq!(b.find(a.name(), 0x5010, SOON), None);
        assert_eq!(a.offer(b.name(), 0x5010), Ok((0x5000..0x6000, 0x10_0000)));
        assert_eq!(a.offer(b.name(), 0x5ff8), Ok((0x5000..0x6000, 0x10_0000)));
        assert_eq!(*files.seen.lock().unwrap(), [0x5000]);
        assert_eq!(b.find(a.name(), 0x5ff8, SOON), Some(0x10_0ff8));
        assert_eq!(b.find(a.name(), 0x6000, SOON), None);
        assert_eq!(b.find(b.name(), 0x5010, SOON), None, "another process's address");
        assert_eq!(a.offer(b.name(), 0x6000), Ok((0x6000..0x7000, 0x20_0000)));
    }

    #[test]
    fn memory_that_is_used_again_is_mapped_again() {
        let ((own, a), (_, b)) = (process(false), process(false));
        a.offer(b.name(), 0x5000).unwrap();
        own.identity.store(1, Ordering::Relaxed);
        assert_eq!(a.offer(b.name(), 0x5008), Ok((0x5000..0x6000, 0x20_0000)));
        assert_eq!(b.find(a.name(), 0x5008, SOON), Some(0x20_0008));
    }

    #[test]
    fn processes_offer_to_each_other_at_the_same_time() {
        let ((_, a), (_, b)) = (process(false), process(false));
        std::thread::scope(|scope| {
            for i in 0..8 {
                let (a, b) = (&a, &b);
                let (from, to) = if i % 2 == 0 { (a, b) } else { (b, a) };
                scope.spawn(move || {
                    for page in 0..32 {
                        let address = (page + 1) * BYTES + i * 8;
                        let (range, there) = from.offer(to.name(), address).unwrap();
                        let found = to.find(from.name(), address, PATIENCE);
                        assert_eq!(found, Some(there + (address - range.start)));
                    }
                });
            }
        });
    }

    #[test]
    fn what_goes_wrong_is_reported_and_harms_no_process() {
        let ((_, a), (_, full), (_, b)) = (process(false), process(true), process(false));
        let error = a.offer(full.name(), 0x5000).unwrap_err().to_string();
        assert!(
            error.contains("could not map") && error.contains("no more room"),
            "{error}"
        );
        let error = a.offer("smalt-nobody", 0x5000).unwrap_err().to_string();
        assert!(error.contains("share a host"), "{error}");
        // Neither a text that is no offer, nor none, nor an offer without a descriptor.
        for text in ["", "{", r#"{"from": "x", "start": 0, "bytes": 4096}"#] {
            let mut stream = sockets::connect(b.name()).unwrap();
            stream.write_all(text.as_bytes()).unwrap();
            stream.shutdown(Shutdown::Write).unwrap();
            let mut answer = String::new();
            stream.read_to_string(&mut answer).unwrap();
            assert!(answer.contains("error"), "{answer}");
        }
        // Nor numbers that are no memory's.
        let file = OwnedFd::from(tempfile::tempfile().unwrap());
        for (start, bytes) in [
            (u64::MAX, 0x1000),
            (0x1000, u64::MAX),
            (u64::MAX, u64::MAX),
            (0x1000, 0),
        ] {
            let offer = json!({ "from": "x", "start": start, "bytes": bytes });
            let answer = sockets::ask(b.name(), &offer.to_string(), &file, PATIENCE).unwrap();
            let answer = String::from_utf8(answer).unwrap();
            assert!(answer.contains("not an offer of memory"), "{answer}");
        }
        assert!(a.offer(b.name(), 0x5000).is_ok());
    }

    #[test]
    fn a_silent_neighbour_keeps_none_waiting() {
        let ((_, a), (_, b)) = (process(false), process(false));
        let silent = [(); 8].map(|()| sockets::connect(b.name()).unwrap());
        let start = Instant::now();
        assert!(a.offer(b.name(), 0x5000).is_ok());
        assert!(start.elapsed() < PATIENCE / 3, "{:?}", start.elapsed());
        drop(silent);
    }
}
