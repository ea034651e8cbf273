//! Profiles: what launches record of when their ranges begin and end → a file of each launch, for Perfetto and `chrome://tracing`.
//!
//! * [`timeline`] reads the tracks of one launch;
//! * [`recorder`] is a GPU's memory for them, and the call behind each launch that takes them.
//!
//! The emulator executes the same PTX into memory of its own: files are made here for both.
pub mod recorder;
mod timeline;

use super::{Artifact, Locations, env};
use crate::lock::lock;
use serde::Deserialize;
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs::File;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{SystemTime, UNIX_EPOCH};

/// What a kernel has run on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Machine {
    Gpu,
    Emulator,
}

/// A kernel that this process has lowered, and the folder that its author chose for profiles.
#[derive(PartialEq, Eq, PartialOrd, Ord, Deserialize)]
pub struct LoweredHere {
    /// The descriptor's.
    pub hash: String,
    pub folder: String,
}

static LOWERED: Mutex<BTreeSet<LoweredHere>> = Mutex::new(BTreeSet::new());

/// From now on, profiles of the kernel go to the folder.
pub fn lowered_here(kernel: LoweredHere) {
    lock(&LOWERED).insert(kernel);
}

/// Where profiles of a kernel go that names a folder. Artefacts come from anywhere (`jax.export`): a folder in one counts only if this process
/// has lowered the kernel with that folder itself; else the environment decides.
fn folder(hash: &str, named: &str, from_environment: Option<&Path>) -> Option<PathBuf> {
    let kernel = LoweredHere {
        hash: hash.to_owned(),
        folder: named.to_owned(),
    };
    match lock(&LOWERED).contains(&kernel) {
        true => Some(named.into()),
        false => from_environment.map(Path::to_owned),
    }
}

/// Writes what a launch has left in its memory for that, where the call site allows it. A file that cannot be written fails nothing.
pub fn write(artifact: &Artifact, locations: &Locations, memory: &[u64], machine: Machine, device: i32) {
    let (compiled, Some(named)) = (&artifact.compiled, locations.profile_dir()) else {
        return;
    };
    let (Some(profile), Some(ranges)) = (&compiled.launch.profile, &compiled.ranges) else {
        return;
    };
    let name = &compiled.name;
    let from_environment = env::get().ok().and_then(|env| env.profile_dir.as_deref());
    let Some(dir) = folder(&artifact.hash, named, from_environment) else {
        warn_once(format!(
            "smalt: the profile of `{name}` is not written: another process lowered the kernel and named the folder {named:?} \
             (set SMALT_PROFILE_DIR to the folder that such profiles may go to)"
        ));
        return;
    };
    let made = timeline::of(name, profile, ranges, memory, machine, device);
    if made.dropped > 0 {
        let of = match ranges.tracks {
            crate::kernel_ir::profile::Tracks::Warpgroups => "a warpgroup",
            crate::kernel_ir::profile::Tracks::Warps => "a warp",
        };
        let (space, most) = (ranges.space, made.most);
        warn_once(format!(
            "smalt: the profile of `{name}` is cut short: {of} has room for {space} ranges and went through {most} (set profile_space to more)"
        ));
    }
    if let Err(error) = save(&dir, name, &made.json) {
        warn_once(format!(
            "smalt: the profile of `{name}` cannot be written to {}: {error}",
            dir.display()
        ));
    }
}

/// On stderr, each text once.
fn warn_once(text: String) {
    static WARNED: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
    let mut warned = lock(&WARNED);
    if !warned.contains(&text) {
        eprintln!("{text}");
        warned.insert(text);
    }
}

/// A new file, by JAX's name for it: of the kernel and the time.
fn save(dir: &Path, name: &str, json: &Value) -> std::io::Result<PathBuf> {
    let clean = |c: char| {
        if c.is_alphanumeric() || "_.-".contains(c) {
            c
        } else {
            '_'
        }
    };
    let name: String = name.chars().take(64).map(clean).collect();
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let mut nanos = since.as_nanos();
    loop {
        let path = dir.join(format!("{name}-{nanos}-trace.json"));
        match File::create_new(&path) {
            Ok(mut file) => {
                file.write_all(json.to_string().as_bytes())?;
                return Ok(path);
            }
            // Another launch's.
            Err(error) if error.kind() == ErrorKind::AlreadyExists => nanos += 1,
            Err(error) => return Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn only_who_lowered_a_kernel_chooses_its_folder() {
        let kernel = |hash: &str, folder: &str| LoweredHere {
            hash: hash.into(),
            folder: folder.into(),
        };
        assert_eq!(folder("1a", "/chosen", None), None);
        lowered_here(kernel("1a", "/chosen"));
        assert_eq!(folder("1a", "/chosen", Some(Path::new("/env"))), Some("/chosen".into()));
        for (hash, named) in [
            ("1a", "/elsewhere"),
            ("2b", "/chosen"),
            ("1a", "/chosen/.."),
            ("1a", ""),
        ] {
            assert_eq!(folder(hash, named, None), None, "{hash} {named}");
            assert_eq!(folder(hash, named, Some(Path::new("/env"))), Some("/env".into()));
        }
    }

    #[test]
    fn a_name_is_no_path() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["../../up", "/etc/passwd", "a\0b", "..", &"long".repeat(1000)] {
            let path = save(dir.path(), name, &json!({})).unwrap();
            assert_eq!(path.parent(), Some(dir.path()), "{name}");
        }
    }

    #[test]
    fn each_launch_has_a_file_of_its_own() {
        let dir = tempfile::tempdir().unwrap();
        let paths: BTreeSet<PathBuf> = (0..20)
            .map(|_| save(dir.path(), "a kernel", &json!({})).unwrap())
            .collect();
        assert_eq!(paths.len(), 20);
        let name = paths.first().unwrap().file_name().unwrap().to_str().unwrap();
        assert!(name.starts_with("a_kernel-") && name.ends_with("-trace.json"), "{name}");
        assert!(save(&dir.path().join("missing"), "k", &json!({})).is_err());
    }
}
