//! Cubins on disk, by content, shared by all processes of a user. The cache never turns a working kernel into a failing
//! one: whatever is wrong with a file or the folder, the kernel is assembled again.
//!
//! One file an entry, named by its key. It comes by a rename, so that none is read half written; a checksum over key and
//! content finds what a crash or a disk damaged, and then the next process to assemble the kernel replaces it. Nothing
//! is locked: two processes that assemble one kernel write the same entry twice, and an entry that another process evicts
//! while it is read stays readable until it is closed.
//!
//! A read marks its file as just used (its time of modification). Above the limit the least recently used go.
//!
//! A user who can write an entry chooses the code that runs here: the checksum finds accidents, not forgeries. So the folder is its
//! user's alone. It is made so, whatever the umask; a folder or an entry that belongs to another user, or that others may
//! write, is not used, which is reported once.
use super::Output;
use crate::lock::lock;
use serde::Serialize;
use sha2::{Digest, Sha256};
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

/// Of the files and of the key: entries of another number are never found, and leave in their turn.
const FORMAT: &str = "smalt cubin 1";
const EXTENSION: &str = "cubin";
/// Of files that are being written.
const UNFINISHED: &str = ".smalt-";
/// The writer of an unfinished file of this age is gone.
const ABANDONED: Duration = Duration::from_secs(3600);
/// A process looks at the folder's size again after it has added this part of the limit.
const LOOK_AGAIN: u64 = 16;

/// Where, and how much of it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Place {
    pub folder: PathBuf,
    /// The entries' size above which the least recently used go. Of n processes that add at once, each may add a
    /// sixteenth before it notices.
    pub limit_bytes: u64,
}

/// What is there.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct State {
    pub folder: PathBuf,
    pub entries: usize,
    pub bytes: u64,
    pub limit_bytes: u64,
    /// Why nothing can be stored; none: it can.
    pub unwritable: Option<String>,
}

/// What a cubin depends on, hashed.
pub(super) struct Key([u8; 32]);

impl Key {
    /// `assembler`: which one, to the build. `options`: its arguments, the target among them.
    pub fn new(assembler: &str, options: &[String], ptx: &str) -> Key {
        let mut hash = Sha256::new();
        let mut part = |bytes: &str| {
            hash.update((bytes.len() as u64).to_le_bytes());
            hash.update(bytes);
        };
        part(FORMAT);
        part(assembler);
        options.iter().for_each(|option| part(option));
        part(ptx);
        Key(hash.finalize().into())
    }
}

pub(super) struct Cache {
    place: Place,
    /// Bytes added since this process last looked at the folder; none: it never did.
    added: Mutex<Option<u64>>,
}

impl Cache {
    pub fn new(place: Place) -> Cache {
        let added = Mutex::new(None);
        Cache { place, added }
    }

    fn file(&self, key: &Key) -> PathBuf {
        let hex = key.0.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        self.place.folder.join(format!("{hex}.{EXTENSION}"))
    }

    /// The entry, if it is there and whole.
    pub fn get(&self, key: &Key) -> Option<Output> {
        self.place.check().ok()?;
        let path = self.file(key);
        // Checked before it is opened: opening a pipe waits for a writer. A link is no file of ours.
        if !fs::symlink_metadata(&path).ok()?.is_file() {
            return None;
        }
        let file = File::open(path).ok()?;
        let about = file.metadata().ok()?;
        if !about.is_file() || foreign_access(&about).is_some() || about.len() > self.place.limit_bytes {
            return None;
        }
        let mut bytes = Vec::new();
        (&file).take(about.len()).read_to_end(&mut bytes).ok()?;
        let output = decode(key, &bytes)?;
        // On a read-only disk entries look older than they are.
        let _ = file.set_modified(SystemTime::now());
        Some(output)
    }

    /// Stores an entry, atomically; failing to do so costs time at the next start, nothing else.
    pub fn put(&self, key: &Key, output: &Output) {
        let entry = encode(key, output);
        if entry.len() as u64 > self.place.limit_bytes {
            return;
        }
        let store = || -> io::Result<()> {
            let mut file = self.place.unfinished()?;
            file.write_all(&entry)?;
            file.persist(self.file(key))?;
            Ok(())
        };
        if store().is_ok() {
            self.added(entry.len() as u64, &self.file(key));
        }
    }

    fn added(&self, bytes: u64, file: &Path) {
        let mut added = lock(&self.added);
        let sum = added.map(|sum| sum + bytes);
        *added = if sum.is_some_and(|sum| sum <= self.place.limit_bytes / LOOK_AGAIN) {
            sum
        } else {
            self.place.shrink(file);
            Some(0)
        };
    }
}

impl Place {
    /// Whether the folder is this user's alone; warns once if not.
    fn check(&self) -> io::Result<()> {
        let Some(whose) = foreign_access(&fs::metadata(&self.folder)?) else {
            return Ok(());
        };
        let folder = self.folder.display();
        let text = format!("{folder} {whose}: kernels could be stored there that you did not compile");
        static WARNED: AtomicBool = AtomicBool::new(false);
        if !WARNED.swap(true, Ordering::Relaxed) {
            eprintln!(
                "smalt: the cubin cache is not used. {text} (`chmod 700 {folder}` if it is yours, or set SMALT_CACHE_DIR to another folder)"
            );
        }
        Err(io::Error::new(io::ErrorKind::PermissionDenied, text))
    }

    /// A file in the folder, which is made on demand; it is removed unless it is renamed.
    fn unfinished(&self) -> io::Result<tempfile::NamedTempFile> {
        make(&self.folder)?;
        self.check()?;
        tempfile::Builder::new().prefix(UNFINISHED).tempfile_in(&self.folder)
    }

    /// Entries, and how much room there is.
    pub fn state(&self) -> State {
        let files = self.entries();
        State {
            folder: self.folder.clone(),
            entries: files.len(),
            bytes: files.iter().map(|entry| entry.bytes).sum(),
            limit_bytes: self.limit_bytes,
            unwritable: self.unfinished().err().map(|error| error.to_string()),
        }
    }

    /// Lets the least recently used go if the limit is passed, some more than necessary: not every entry that is added
    /// afterwards shall push out one other. `newest` stays.
    fn shrink(&self, newest: &Path) {
        let mut entries = self.entries();
        let mut bytes = entries.iter().map(|entry| entry.bytes).sum::<u64>();
        if bytes <= self.limit_bytes {
            return;
        }
        let enough = self.limit_bytes - self.limit_bytes / LOOK_AGAIN;
        entries.sort_by(|a, b| (a.used, &a.path).cmp(&(b.used, &b.path)));
        for entry in entries.iter().filter(|entry| entry.path != newest) {
            if bytes <= enough {
                break;
            }
            // Another process may have been quicker: then it is gone as well.
            let _ = fs::remove_file(&entry.path);
            bytes -= entry.bytes;
        }
    }

    /// The folder's entries; on the way, what crashed processes left is removed. Other files are not ours to touch.
    fn entries(&self) -> Vec<Entry> {
        let now = SystemTime::now();
        let mut entries = Vec::new();
        for file in fs::read_dir(&self.folder).into_iter().flatten().flatten() {
            let name = file.file_name();
            let Some(name) = name.to_str() else { continue };
            let unfinished = name.starts_with(UNFINISHED);
            if !unfinished && !is_entry(name) {
                continue;
            }
            // Of the link, where it is one.
            let Ok(about) = file.metadata() else { continue };
            let used = about.modified().unwrap_or(SystemTime::UNIX_EPOCH);
            if unfinished {
                if now.duration_since(used).is_ok_and(|age| age > ABANDONED) {
                    let _ = fs::remove_file(file.path());
                }
            } else if !about.is_dir() {
                entries.push(Entry {
                    path: file.path(),
                    bytes: about.len(),
                    used,
                });
            }
        }
        entries
    }
}

struct Entry {
    path: PathBuf,
    bytes: u64,
    used: SystemTime,
}

fn is_entry(name: &str) -> bool {
    let hex = name.strip_suffix(EXTENSION).and_then(|rest| rest.strip_suffix('.'));
    hex.is_some_and(|hex| hex.len() == 64 && hex.bytes().all(|byte| byte.is_ascii_hexdigit()))
}

/// A folder for this user alone.
fn make(folder: &Path) -> io::Result<()> {
    let mut builder = fs::DirBuilder::new();
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.recursive(true).create(folder)
}

/// Another owner of a file or folder, or write access for others.
#[cfg(unix)]
fn foreign_access(about: &fs::Metadata) -> Option<String> {
    use std::os::unix::fs::MetadataExt;
    let (own, owner, mode) = (rustix::process::geteuid().as_raw(), about.uid(), about.mode() & 0o7777);
    if owner != own {
        Some(format!("belongs to user {owner}, not {own}"))
    } else if mode & 0o022 != 0 {
        Some(format!("may be written by others (mode {mode:04o})"))
    } else {
        None
    }
}

/// Where caches lie, no other user has access.
#[cfg(not(unix))]
fn foreign_access(_: &fs::Metadata) -> Option<String> {
    None
}

/// SHA-256 of key and rest · length of the log · log · cubin.
fn encode(key: &Key, output: &Output) -> Vec<u8> {
    let mut body = (output.log.len() as u64).to_le_bytes().to_vec();
    body.extend(output.log.as_bytes());
    body.extend(&output.cubin);
    let mut file = sum(key, &body).to_vec();
    file.extend(body);
    file
}

fn decode(key: &Key, file: &[u8]) -> Option<Output> {
    let (found, body) = file.split_at_checked(32)?;
    if found != sum(key, body) {
        return None;
    }
    let (length, rest) = body.split_at_checked(8)?;
    let length = u64::from_le_bytes(length.try_into().ok()?);
    let (log, cubin) = rest.split_at_checked(usize::try_from(length).ok()?)?;
    Some(Output {
        log: String::from_utf8(log.to_vec()).ok()?,
        cubin: cubin.to_vec(),
    })
}

fn sum(key: &Key, body: &[u8]) -> [u8; 32] {
    Sha256::new().chain_update(key.0).chain_update(body).finalize().into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    const PLENTY: u64 = 1 << 20;

    fn cache(folder: &Path, limit_bytes: u64) -> Cache {
        let folder = folder.to_owned();
        Cache::new(Place { folder, limit_bytes })
    }

    fn key(n: usize) -> Key {
        Key::new("ptxas 1", &["-arch=sm_90a".into()], &format!("// {n}"))
    }

    /// An entry of 100 bytes.
    fn output(n: usize) -> Output {
        Output {
            cubin: vec![n as u8; 100 - 32 - 8 - 3],
            log: "log".into(),
        }
    }

    /// As if `key` had been used `seconds` ago.
    fn age(cache: &Cache, key: &Key, seconds: u64) {
        let then = SystemTime::now() - Duration::from_secs(seconds);
        let file = File::options().append(true).open(cache.file(key)).unwrap();
        file.set_modified(then).unwrap();
    }

    fn same(found: Option<Output>, n: usize) -> bool {
        found.is_some_and(|found| (found.cubin, found.log) == (output(n).cubin, output(n).log))
    }

    #[test]
    fn what_was_put_comes_back_unless_it_was_damaged() {
        let folder = tempfile::tempdir().unwrap();
        let cache = cache(&folder.path().join("made/on/demand"), PLENTY);
        assert!(cache.get(&key(0)).is_none());
        cache.put(&key(0), &output(0));
        assert!(same(cache.get(&key(0)), 0));
        let file = cache.file(&key(0));
        let whole = fs::read(&file).unwrap();
        assert_eq!(whole.len(), 100);
        for cut in 0..whole.len() {
            fs::write(&file, &whole[..cut]).unwrap();
            assert!(cache.get(&key(0)).is_none(), "cut at {cut}");
        }
        for byte in 0..whole.len() {
            let mut damaged = whole.clone();
            damaged[byte] ^= 1;
            fs::write(&file, &damaged).unwrap();
            assert!(cache.get(&key(0)).is_none(), "byte {byte}");
        }
        cache.put(&key(0), &output(0));
        assert!(same(cache.get(&key(0)), 0), "a damaged entry is replaced");
    }

    #[cfg(unix)]
    #[test]
    fn what_others_may_write_is_not_used() {
        use std::os::unix::fs::{PermissionsExt, chown, symlink};
        let folder = tempfile::tempdir().unwrap();
        let cache = cache(&folder.path().join("made/on/demand"), PLENTY);
        cache.put(&key(0), &output(0));
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o7777;
        let set = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        let (dir, file) = (cache.place.folder.clone(), cache.file(&key(0)));
        for path in [&dir, dir.parent().unwrap()] {
            assert_eq!(mode(path) & 0o077, 0, "{}", path.display());
        }
        for (path, right) in [(&dir, 0o700), (&file, 0o600)] {
            for wrong in [0o020, 0o002] {
                set(path, right | wrong);
                assert!(cache.get(&key(0)).is_none(), "{} {wrong:o}", path.display());
            }
            set(path, right);
            assert!(same(cache.get(&key(0)), 0));
        }
        set(&dir, 0o777);
        cache.put(&key(1), &output(1));
        assert!(!cache.file(&key(1)).exists(), "nothing is stored there either");
        let why = cache.place.state().unwritable.unwrap();
        assert!(why.contains("may be written by others (mode 0777)"), "{why}");
        set(&dir, 0o700);
        // Another's file, under the entry's name.
        let other = folder.path().join("other");
        fs::rename(&file, &other).unwrap();
        symlink(&other, &file).unwrap();
        assert!(cache.get(&key(0)).is_none());
        fs::remove_file(&file).unwrap();
        fs::rename(&other, &file).unwrap();
        // Only root can give files away.
        if chown(&file, Some(1), None).is_ok() {
            assert!(cache.get(&key(0)).is_none());
            chown(&dir, Some(1), None).unwrap();
            let why = cache.place.state().unwritable.unwrap();
            assert!(why.contains("belongs to user 1, not 0"), "{why}");
        }
    }

    #[test]
    fn an_entry_is_of_its_key() {
        let folder = tempfile::tempdir().unwrap();
        let cache = cache(folder.path(), PLENTY);
        cache.put(&key(0), &output(0));
        fs::copy(cache.file(&key(0)), cache.file(&key(1))).unwrap();
        assert!(cache.get(&key(1)).is_none(), "it was renamed");
    }

    #[test]
    fn keys_distinguish_everything() {
        let key = |assembler: &str, options: &[&str], ptx: &str| {
            let options = options.iter().map(|&option| option.to_owned()).collect::<Vec<_>>();
            Key::new(assembler, &options, ptx).0
        };
        let keys = [
            key("ptxas 1", &["-arch=sm_90a"], ".version 8.0"),
            key("ptxas 2", &["-arch=sm_90a"], ".version 8.0"),
            key("ptxas 1", &["-arch=sm_100a"], ".version 8.0"),
            key("ptxas 1", &["-arch=sm_90a", "-lineinfo"], ".version 8.0"),
            key("ptxas 1", &["-arch=sm_90a"], ".version 8.6"),
            // The parts' borders count.
            key("ptxas 1-arch=", &["sm_90a"], ".version 8.0"),
            key("ptxas 1", &["-arch=", "sm_90a"], ".version 8.0"),
        ];
        assert_eq!(keys.iter().collect::<BTreeSet<_>>().len(), keys.len());
    }

    #[test]
    fn the_least_recently_used_go() {
        let folder = tempfile::tempdir().unwrap();
        let cache = cache(folder.path(), 1000);
        for n in 0..10 {
            cache.put(&key(n), &output(n));
            age(&cache, &key(n), 1000 - n as u64);
        }
        assert!(same(cache.get(&key(0)), 0), "1000 bytes fit");
        cache.put(&key(10), &output(10));
        // Some more than the one that is too many, and not the one that was just read.
        let left = (0..11).filter(|&n| cache.get(&key(n)).is_some()).collect::<Vec<_>>();
        assert_eq!(left, [0, 3, 4, 5, 6, 7, 8, 9, 10]);
    }

    #[test]
    fn the_folder_is_bounded_over_many_kernels_and_processes() {
        let folder = tempfile::tempdir().unwrap();
        for n in 0..1000 {
            // A process that stores one entry looks at the folder as well.
            let cache = cache(folder.path(), 3200);
            cache.put(&key(n), &output(n));
            assert!(same(cache.get(&key(n)), n));
            assert!(cache.place.state().bytes <= 3200);
        }
        let one = cache(folder.path(), 3200);
        for n in 0..1000 {
            one.put(&key(n), &output(n));
            assert!(
                one.place.state().bytes <= 3200 + 200,
                "a sixteenth before it looks again"
            );
        }
        assert!(one.place.state().entries >= 28);
    }

    #[test]
    fn an_entry_above_the_limit_is_not_stored() {
        let folder = tempfile::tempdir().unwrap();
        let cache = cache(folder.path(), 99);
        cache.put(&key(0), &output(0));
        assert_eq!(cache.place.state().entries, 0);
    }

    #[test]
    fn what_is_not_ours_stays() {
        let folder = tempfile::tempdir().unwrap();
        let cache = cache(folder.path(), 150);
        let old = SystemTime::now() - Duration::from_secs(100_000);
        let make = |name: &str| {
            let file = File::create(folder.path().join(name)).unwrap();
            file.set_len(1000).unwrap();
            file.set_modified(old).unwrap();
        };
        let foreign = ["thesis.tex", "kernel-0123.sm_90a.cubin", ".hidden"];
        foreign.into_iter().for_each(make);
        make(".smalt-crashed");
        fs::write(folder.path().join(".smalt-writing"), b"x").unwrap();
        for n in 0..5 {
            cache.put(&key(n), &output(n));
        }
        let mut left = fs::read_dir(folder.path())
            .unwrap()
            .map(|file| file.unwrap().file_name().into_string().unwrap())
            .filter(|name| !is_entry(name))
            .collect::<Vec<_>>();
        left.sort();
        assert_eq!(
            left,
            [".hidden", ".smalt-writing", "kernel-0123.sm_90a.cubin", "thesis.tex"]
        );
        assert_eq!(cache.place.state().entries, 1);
    }

    #[test]
    fn readers_writers_and_eviction_at_once() {
        let folder = tempfile::tempdir().unwrap();
        let found = std::thread::scope(|scope| {
            let workers = (0..4).map(|worker| {
                // As in processes of their own.
                let cache = cache(folder.path(), 800);
                scope.spawn(move || {
                    let mut found = 0;
                    for i in 0..400 {
                        let n = (i * (worker + 1)) % 16;
                        match cache.get(&key(n)) {
                            Some(got) => {
                                assert!(same(Some(got), n));
                                found += 1;
                            }
                            None => cache.put(&key(n), &output(n)),
                        }
                    }
                    found
                })
            });
            let workers = workers.collect::<Vec<_>>();
            workers.into_iter().map(|worker| worker.join().unwrap()).sum::<u32>()
        });
        assert!(found > 0);
        assert!(cache(folder.path(), 800).place.state().bytes <= 800 + 4 * 100);
    }

    #[test]
    fn folders_that_are_none() {
        let file = tempfile::NamedTempFile::new().unwrap();
        for folder in [
            file.path().to_owned(),
            file.path().join("below/a/file"),
            "/proc/nothing".into(),
        ] {
            let cache = cache(&folder, PLENTY);
            cache.put(&key(0), &output(0));
            assert!(cache.get(&key(0)).is_none());
            assert!(cache.place.state().unwritable.is_some());
        }
    }

    #[cfg(unix)]
    #[test]
    fn entries_that_are_no_files() {
        use std::os::unix::fs::symlink;
        let folder = tempfile::tempdir().unwrap();
        let cache = cache(folder.path(), PLENTY);
        let file = cache.file(&key(0));
        // A link to itself, a link to bytes without end, a dangling one: all are replaced.
        for target in [file.as_path(), Path::new("/dev/zero"), Path::new("/nowhere")] {
            let _ = fs::remove_file(&file);
            symlink(target, &file).unwrap();
            assert!(cache.get(&key(0)).is_none());
            cache.put(&key(0), &output(0));
            assert!(same(cache.get(&key(0)), 0));
        }
        // A folder is not: the kernel is assembled each time.
        fs::remove_file(&file).unwrap();
        fs::create_dir(&file).unwrap();
        cache.put(&key(0), &output(0));
        assert!(cache.get(&key(0)).is_none());
        assert_eq!(cache.place.state().entries, 0);
        // Opening a pipe would wait.
        let pipe = cache.file(&key(1));
        let made = std::process::Command::new("mkfifo").arg(&pipe).status();
        if made.is_ok_and(|status| status.success()) {
            assert!(cache.get(&key(1)).is_none());
            cache.put(&key(1), &output(1));
            assert!(same(cache.get(&key(1)), 1));
        }
        // A folder that is a link to itself.
        let circle = folder.path().join("circle");
        symlink(&circle, &circle).unwrap();
        let cache = self::cache(&circle, PLENTY);
        cache.put(&key(0), &output(0));
        assert!(cache.get(&key(0)).is_none());
    }
}
