//! Artifacts by content.
use super::env;
use super::pipeline::{self, CompileOptions, Observer};
use super::{Artifact, dump};
use crate::error::Error;
use crate::lock::lock;
use rustc_hash::FxHashMap;
use sha2::{Digest, Sha256};
use std::sync::{Arc, Mutex, OnceLock, Weak};

/// Artifacts that the cache itself keeps alive; those in use by an executable stay reachable beyond that.
const MAX_KEPT: usize = 512;
const MAX_KEPT_BYTES: usize = 256 << 20;

/// What an artifact depends on, hashed.
type Key = [u8; 32];

fn key(descriptor: &[u8], debug: &[u8], options: &CompileOptions) -> Key {
    let mut hash = Sha256::new();
    let lines = if options.line_info { debug } else { b"" };
    for part in [
        options.target.as_bytes(),
        &[options.line_info, options.racecheck, options.spill].map(u8::from),
        &options.omit_barrier.map_or([0; 4], |n| (n + 1).to_le_bytes()),
        lines,
        descriptor,
    ] {
        hash.update((part.len() as u64).to_le_bytes());
        hash.update(part);
    }
    hash.finalize().into()
}

/// SHA-256 in hex: the `hash` of a custom call and of reports.
pub fn hash(descriptor: &[u8]) -> String {
    Sha256::digest(descriptor)
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

/// Compiles, or finds what was compiled before. Callers that come while a kernel is compiled wait for it.
pub fn compile(descriptor: &[u8], debug: &[u8], options: &CompileOptions) -> Result<Arc<Artifact>, Error> {
    let env = env::get()?;
    // What is wrong with them shows before a kernel runs.
    env::emulation()?;
    let options = CompileOptions {
        line_info: options.line_info || env.line_info,
        racecheck: options.racecheck || env.racecheck,
        spill: options.spill || env.parking == env::Parking::Never,
        ..options.clone()
    };
    let slot = cache().slot(key(descriptor, debug, &options));
    let mut filled = lock(&slot);
    if let Some(artifact) = filled.upgrade() {
        cache().keep(&artifact, key(descriptor, debug, &options), false);
        return Ok(artifact);
    }
    let mut observer = Observer {
        shown: env::get()?.dumps(env::Dump::Ir).then(Vec::new),
        ..Observer::default()
    };
    let compiled = pipeline::compile(descriptor, debug, &options, &mut observer);
    dump::dump_compiling(descriptor, debug, &options, &observer);
    let phases = observer.phases;
    let artifact = Arc::new(Artifact::new(descriptor, debug, options, compiled?, phases));
    dump::dump_compiled(&artifact);
    *filled = Arc::downgrade(&artifact);
    cache().keep(&artifact, key(descriptor, debug, &artifact.options), true);
    Ok(artifact)
}

/// The artifact weighs something else than when it was inserted.
pub(super) fn reweigh(descriptor: &[u8], debug: &[u8], artifact: &Artifact) {
    let key = key(descriptor, debug, &artifact.options);
    let dropped = {
        let mut inner = lock(&cache().inner);
        inner.reweigh(&key, artifact, artifact.weight())
    };
    drop(dropped);
}

/// What the cache holds, and what the process has done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Stats {
    /// Artifacts kept alive by the cache.
    pub kept: usize,
    pub kept_bytes: usize,
    /// Keys known, those of dropped artifacts that were not yet cleared away included.
    pub known: usize,
    pub compiled: u64,
    pub hits: u64,
    /// Calls of the CUDA execute handler in this process, and their host time.
    pub handler_calls: u64,
    pub handler_nanos: u64,
    /// To 50 ns; times from 25.6 µs count as that.
    pub handler_median_nanos: u64,
}

pub fn stats() -> Stats {
    let (handler_calls, handler_nanos, handler_median_nanos) = super::handler_calls().read();
    let inner = lock(&cache().inner);
    Stats {
        kept: inner.kept.len(),
        kept_bytes: inner.bytes,
        known: inner.known.len(),
        compiled: inner.compiled,
        hits: inner.hits,
        handler_calls,
        handler_nanos,
        handler_median_nanos,
    }
}

fn cache() -> &'static Cache {
    static CACHE: OnceLock<Cache> = OnceLock::new();
    CACHE.get_or_init(|| Cache::new(MAX_KEPT, MAX_KEPT_BYTES))
}

/// One kernel's place: locked while it is compiled.
type Slot<T> = Arc<Mutex<Weak<T>>>;

struct Cache {
    inner: Mutex<Inner<Artifact>>,
}

struct Inner<T> {
    max: usize,
    max_bytes: usize,
    /// Kept alive, with weight and time of last use.
    kept: FxHashMap<Key, Kept<T>>,
    bytes: usize,
    /// Every key whose artifact may be alive.
    known: FxHashMap<Key, Slot<T>>,
    /// Size of `known` at which dead entries are cleared away.
    sweep_at: usize,
    clock: u64,
    compiled: u64,
    hits: u64,
}

struct Kept<T> {
    value: Arc<T>,
    bytes: usize,
    used: u64,
}

impl Cache {
    fn new(max: usize, max_bytes: usize) -> Cache {
        Cache {
            inner: Mutex::new(Inner::new(max, max_bytes)),
        }
    }

    fn slot(&self, key: Key) -> Slot<Artifact> {
        lock(&self.inner).slot(key)
    }

    fn keep(&self, artifact: &Arc<Artifact>, key: Key, new: bool) {
        let dropped = {
            let mut inner = lock(&self.inner);
            if new {
                inner.compiled += 1;
            } else {
                inner.hits += 1;
            }
            inner.keep(key, artifact.clone(), artifact.weight())
        };
        // Outside of the lock: dropping an artifact retires its modules.
        drop(dropped);
    }
}

impl<T> Inner<T> {
    fn new(max: usize, max_bytes: usize) -> Inner<T> {
        Inner {
            max,
            max_bytes,
            kept: FxHashMap::default(),
            bytes: 0,
            known: FxHashMap::default(),
            sweep_at: 2 * max,
            clock: 0,
            compiled: 0,
            hits: 0,
        }
    }

    fn slot(&mut self, key: Key) -> Slot<T> {
        if self.known.len() >= self.sweep_at {
            // A slot with another reference is being filled.
            self.known.retain(|_, slot| {
                Arc::strong_count(slot) > 1 || slot.try_lock().map_or(true, |weak| weak.strong_count() > 0)
            });
            self.sweep_at = 2 * self.known.len().max(self.max);
        }
        self.known.entry(key).or_default().clone()
    }

    /// Marks as just used, and returns what had to go.
    fn keep(&mut self, key: Key, value: Arc<T>, bytes: usize) -> Vec<Arc<T>> {
        self.clock += 1;
        let used = self.clock;
        if let Some(old) = self.kept.insert(key, Kept { value, bytes, used }) {
            self.bytes -= old.bytes;
        }
        self.bytes += bytes;
        self.shrink()
    }

    /// Another weight for what is kept under `key`, if it is `value`.
    fn reweigh(&mut self, key: &Key, value: &T, bytes: usize) -> Vec<Arc<T>> {
        if let Some(kept) = self.kept.get_mut(key).filter(|kept| std::ptr::eq(&*kept.value, value)) {
            self.bytes = self.bytes - kept.bytes + bytes;
            kept.bytes = bytes;
        }
        self.shrink()
    }

    /// Lets the least recently used go until the bounds hold.
    fn shrink(&mut self) -> Vec<Arc<T>> {
        let mut dropped = Vec::new();
        while self.kept.len() > 1 && (self.kept.len() > self.max || self.bytes > self.max_bytes) {
            // Linear, but over at most `max` entries and once per compilation beyond the bound.
            let oldest = self.kept.iter().min_by_key(|(_, kept)| kept.used).map(|(key, _)| *key);
            let Some(gone) = oldest.and_then(|oldest| self.kept.remove(&oldest)) else {
                break;
            };
            self.bytes -= gone.bytes;
            dropped.push(gone.value);
        }
        dropped
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn number(n: u64) -> Key {
        let mut key = [0; 32];
        key[..8].copy_from_slice(&n.to_le_bytes());
        key
    }

    fn insert(inner: &mut Inner<u64>, n: u64, bytes: usize) -> Arc<u64> {
        let value = Arc::new(n);
        *inner.slot(number(n)).lock().unwrap() = Arc::downgrade(&value);
        inner.keep(number(n), value.clone(), bytes);
        value
    }

    #[test]
    fn memory_is_bounded_over_many_kernels() {
        let mut inner = Inner::new(16, 1000);
        for n in 0..10_000 {
            insert(&mut inner, n, 10);
            assert!(inner.kept.len() <= 16 && inner.bytes <= 1000 && inner.known.len() <= 2 * 16 + 1);
        }
        assert!(inner.kept.contains_key(&number(9_999)));
    }

    #[test]
    fn what_is_used_stays_and_what_is_alive_is_found() {
        let mut inner = Inner::new(4, 1000);
        let alive = insert(&mut inner, 0, 1);
        for n in 1..4 {
            insert(&mut inner, n, 1);
        }
        inner.keep(number(1), Arc::new(1), 1);
        insert(&mut inner, 4, 1);
        insert(&mut inner, 5, 1);
        assert!(inner.kept.contains_key(&number(1)), "used after 0 and 2");
        assert!(!inner.kept.contains_key(&number(0)) && !inner.kept.contains_key(&number(2)));
        for n in 6..200 {
            insert(&mut inner, n, 1);
        }
        let found = inner.slot(number(0)).lock().unwrap().upgrade();
        assert!(
            Arc::ptr_eq(&found.unwrap(), &alive),
            "an artifact in use is found though the cache let go of it"
        );
    }

    #[test]
    fn one_heavy_kernel_may_exceed_the_bound_alone() {
        let mut inner = Inner::new(4, 1000);
        insert(&mut inner, 0, 10);
        insert(&mut inner, 1, 5000);
        assert_eq!((inner.kept.len(), inner.bytes), (1, 5000));
        insert(&mut inner, 2, 10);
        assert_eq!((inner.kept.len(), inner.bytes), (1, 10));
    }

    #[test]
    fn what_grows_pushes_others_out() {
        let mut inner = Inner::new(4, 1000);
        let first = insert(&mut inner, 0, 10);
        let second = insert(&mut inner, 1, 10);
        let gone = inner.reweigh(&number(1), &second, 995);
        assert!(Arc::ptr_eq(&gone[0], &first) && gone.len() == 1);
        assert_eq!((inner.kept.len(), inner.bytes), (1, 995));
        inner.reweigh(&number(1), &first, 5);
        assert_eq!(inner.bytes, 995, "another artifact's weight");
    }

    #[test]
    fn keys_distinguish_options() {
        let options = |target: &str, line_info| CompileOptions {
            line_info,
            ..CompileOptions::for_target(target)
        };
        let base = key(b"kernel", b"lines", &options("sm_90a", false));
        assert_eq!(
            base,
            key(b"kernel", b"other lines", &options("sm_90a", false)),
            "locations are not hashed"
        );
        for other in [
            key(b"kernel", b"lines", &options("sm_100a", false)),
            key(b"kernel", b"lines", &options("sm_90a", true)),
            key(b"kernel2", b"lines", &options("sm_90a", false)),
            key(
                b"kernel",
                b"lines",
                &CompileOptions {
                    racecheck: true,
                    ..options("sm_90a", false)
                },
            ),
        ] {
            assert_ne!(base, other);
        }
        let lines = |debug| key(b"kernel", debug, &options("sm_90a", true));
        assert_ne!(lines(b"a".as_slice()), lines(b"b".as_slice()));
    }
}
