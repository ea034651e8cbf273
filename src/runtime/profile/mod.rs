//! Profiles: what launches record of when their ranges begin and end → a file of each launch, for Perfetto and `chrome://tracing`.
//!
//! * [`timeline`] reads the tracks of one launch;
//! * [`recorder`] is a GPU's memory for them, and the call behind each launch that takes them.
//!
//! The emulator executes the same PTX into memory of its own: files are made here for both.
pub mod recorder;
mod timeline;

use super::{Artifact, Locations};
use crate::lock::lock;
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

/// Writes what a launch has left in its memory for that, where the call site says. A file that cannot be written fails nothing.
pub fn write(artifact: &Artifact, locations: &Locations, memory: &[u64], machine: Machine, device: i32) {
    let (compiled, Some(dir)) = (&artifact.compiled, locations.profile_dir()) else {
        return;
    };
    let (Some(profile), Some(ranges)) = (&compiled.launch.profile, &compiled.ranges) else {
        return;
    };
    let name = &compiled.name;
    let made = timeline::of(name, profile, ranges, memory, machine, device);
    if made.dropped > 0 {
        let of = match ranges.tracks {
            crate::kernel_ir::profile::Tracks::Warpgroups => "a warpgroup",
            crate::kernel_ir::profile::Tracks::Warps => "a warp",
        };
        let (space, most) = (ranges.space, made.most);
        tell(format!(
            "smalt: the profile of `{name}` is cut short: {of} has room for {space} ranges and went through {most} (set profile_space to more)"
        ));
    }
    if let Err(error) = save(Path::new(dir), name, &made.json) {
        tell(format!(
            "smalt: the profile of `{name}` cannot be written to {dir}: {error}"
        ));
    }
}

/// On stderr, each text once.
fn tell(text: String) {
    static TOLD: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
    let mut told = lock(&TOLD);
    if !told.contains(&text) {
        eprintln!("{text}");
        told.insert(text);
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
    let name: String = name.chars().map(clean).collect();
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
