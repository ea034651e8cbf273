//! Artefacts on disk: `SMALT_DUMP`, `SMALT_DUMP_DIR`.
//!
//! A dumped descriptor (`….smalt`) is a complete bug report: `python -m smalt compile|run` replays it with no JAX.
//! Dumping is a help: a folder that cannot be written is reported once on stderr and fails nothing.
use super::env::{self, Dump, Env};
use super::{Artifact, Locations, cache};
use crate::assemble::Assembled;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};

/// First bytes of a dumped descriptor: then the descriptor's length (u64, little endian), the descriptor, the debug
/// table.
pub const MAGIC: &[u8; 8] = b"SMALT\0\x01\n";

/// A descriptor and its locations as one replayable file.
pub fn replayable(descriptor: &[u8], debug: &[u8]) -> Vec<u8> {
    let mut file = MAGIC.to_vec();
    file.extend((descriptor.len() as u64).to_le_bytes());
    file.extend(descriptor);
    file.extend(debug);
    file
}

pub(super) fn dump_compiling(descriptor: &[u8], debug: &[u8], shown: &[(&'static str, String)]) {
    let Ok(env) = env::get() else { return };
    if env.dump.is_empty() {
        return;
    }
    let hash = cache::hash(descriptor);
    if env.dumps(Dump::Descriptor) {
        write(env, "kernel", &hash, "smalt", &replayable(descriptor, debug));
    }
    for (number, (pass, text)) in shown.iter().enumerate() {
        write(env, "kernel", &hash, &format!("{number:02}-{pass}.ir"), text.as_bytes());
    }
}

pub(super) fn dump_compiled(artifact: &Artifact) {
    let Ok(env) = env::get() else { return };
    if env.dumps(Dump::Ptx) {
        let extension = format!("{}.ptx", artifact.options.target);
        write(
            env,
            &artifact.compiled.name,
            &artifact.hash,
            &extension,
            artifact.compiled.ptx.as_bytes(),
        );
    }
}

pub(super) fn dump_assembled(artifact: &Artifact, assembled: Option<&Assembled>) {
    let Ok(env) = env::get() else { return };
    let name = |extension: &str| format!("{}.{extension}", artifact.options.target);
    if let Some(assembled) = assembled {
        if env.dumps(Dump::Cubin) {
            write(
                env,
                &artifact.compiled.name,
                &artifact.hash,
                &name("cubin"),
                &assembled.cubin,
            );
        }
        if env.dumps(Dump::Ptxas) {
            let text = assembled.log.text.as_bytes();
            write(env, &artifact.compiled.name, &artifact.hash, &name("ptxas.txt"), text);
        }
    }
    if env.dumps(Dump::Report) {
        let report = format!("{:#}\n", artifact.report(&Locations::default()));
        write(
            env,
            &artifact.compiled.name,
            &artifact.hash,
            &name("report.json"),
            report.as_bytes(),
        );
    }
}

fn write(env: &Env, name: &str, hash: &str, extension: &str, bytes: &[u8]) -> Option<PathBuf> {
    // A kernel's name is the user's: only what is safe in a file's name.
    let safe = |c: char| if c.is_ascii_alphanumeric() || c == '_' { c } else { '_' };
    let name = name.chars().take(64).map(safe).collect::<String>();
    let file = env
        .dump_dir
        .join(format!("{name}-{}.{extension}", &hash[..hash.len().min(12)]));
    let written = std::fs::create_dir_all(&env.dump_dir).and_then(|()| std::fs::write(&file, bytes));
    match written {
        Ok(()) => Some(file),
        Err(error) => {
            static SAID: AtomicBool = AtomicBool::new(false);
            if !SAID.swap(true, Ordering::Relaxed) {
                eprintln!("smalt: SMALT_DUMP: {}: {error}", file.display());
            }
            None
        }
    }
}
