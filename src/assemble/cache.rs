//! Cubins on disk, by content. The cache never turns a working kernel into a failing one: whatever is wrong with a
//! file or the folder, the kernel is assembled again.
use super::{Output, Request};
use sha2::{Digest, Sha256};
use std::io::Write;
use std::path::PathBuf;

/// What a cubin depends on, hashed.
pub struct Key(String);

impl Key {
    pub fn new(assembler: &str, request: &Request<'_>) -> Key {
        let mut hash = Sha256::new();
        for part in [
            assembler,
            request.target,
            if request.line_info { "lines" } else { "" },
            request.ptx,
        ] {
            hash.update((part.len() as u64).to_le_bytes());
            hash.update(part);
        }
        Key(hex(&hash.finalize()))
    }
}

pub struct Cache {
    folder: PathBuf,
}

impl Cache {
    pub fn new(folder: PathBuf) -> Cache {
        Cache { folder }
    }

    fn file(&self, key: &Key) -> PathBuf {
        self.folder.join(format!("{}.cubin", key.0))
    }

    /// The entry, if it is there and whole.
    pub fn get(&self, key: &Key) -> Option<Output> {
        decode(&std::fs::read(self.file(key)).ok()?)
    }

    /// Stores an entry, atomically; failing to do so is no failure.
    pub fn put(&self, key: &Key, output: &Output) {
        let store = || -> std::io::Result<()> {
            std::fs::create_dir_all(&self.folder)?;
            let mut file = tempfile::NamedTempFile::new_in(&self.folder)?;
            file.write_all(&encode(output))?;
            file.persist(self.file(key))?;
            Ok(())
        };
        // A full or read-only disk costs time at the next start, nothing else.
        let _ = store();
    }
}

/// SHA-256 of the rest · length of the log · log · cubin.
fn encode(output: &Output) -> Vec<u8> {
    let mut body = (output.log.len() as u64).to_le_bytes().to_vec();
    body.extend(output.log.as_bytes());
    body.extend(&output.cubin);
    let mut file = Sha256::digest(&body).to_vec();
    file.extend(body);
    file
}

fn decode(file: &[u8]) -> Option<Output> {
    let (sum, body) = file.split_at_checked(32)?;
    if sum != &Sha256::digest(body)[..] {
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

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const REQUEST: Request<'static> = Request {
        ptx: ".version 8.0",
        target: "sm_90a",
        line_info: false,
    };

    #[test]
    fn what_was_put_comes_back_unless_it_was_damaged() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::new(folder.path().join("made/on/demand"));
        let key = Key::new("ptxas 1", &REQUEST);
        assert!(cache.get(&key).is_none());
        let output = Output {
            cubin: vec![0x7f, 0, 0xff],
            log: "Used 10 registers".into(),
        };
        cache.put(&key, &output);
        let found = cache.get(&key).unwrap();
        assert_eq!((found.cubin, found.log), (output.cubin, output.log));
        let file = cache.file(&key);
        let whole = std::fs::read(&file).unwrap();
        for cut in 0..whole.len() {
            std::fs::write(&file, &whole[..cut]).unwrap();
            assert!(cache.get(&key).is_none(), "cut at {cut}");
        }
        for byte in 0..whole.len() {
            let mut damaged = whole.clone();
            damaged[byte] ^= 1;
            std::fs::write(&file, &damaged).unwrap();
            assert!(cache.get(&key).is_none(), "byte {byte}");
        }
    }

    #[test]
    fn keys_tell_everything_apart() {
        let keys = [
            Key::new("ptxas 1", &REQUEST),
            Key::new("ptxas 2", &REQUEST),
            Key::new(
                "ptxas 1",
                &Request {
                    target: "sm_100a",
                    ..REQUEST
                },
            ),
            Key::new(
                "ptxas 1",
                &Request {
                    line_info: true,
                    ..REQUEST
                },
            ),
            Key::new(
                "ptxas 1",
                &Request {
                    ptx: ".version 8.6",
                    ..REQUEST
                },
            ),
            // The parts' borders count.
            Key::new("ptxas 1sm_90", &Request { target: "a", ..REQUEST }),
        ];
        let unique = keys.iter().map(|key| &key.0).collect::<std::collections::BTreeSet<_>>();
        assert_eq!(unique.len(), keys.len());
    }

    #[test]
    fn an_unwritable_folder_is_no_failure() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let cache = Cache::new(file.path().join("below/a/file"));
        let output = Output {
            cubin: vec![1],
            log: String::new(),
        };
        cache.put(&Key::new("x", &REQUEST), &output);
        assert!(cache.get(&Key::new("x", &REQUEST)).is_none());
    }
}
