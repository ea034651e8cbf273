//! Artefacts on disk: `SMALT_DUMP`, `SMALT_DUMP_DIR`.
//!
//! A dumped descriptor (`….smalt`) is a complete bug report: `python -m smalt compile|run` replays it with no JAX.
//! Dumping is a help: a folder that cannot be written is reported once on stderr and fails nothing.
use super::env::{self, Dump, Env};
use super::pipeline::{CompileOptions, Observer};
use super::{Artifact, Locations, cache};
use crate::assemble::Assembled;
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

/// What compiling, to its end or not, has shown.
pub(super) fn dump_compiling(descriptor: &[u8], debug: &[u8], options: &CompileOptions, seen: &Observer) {
    let Ok(env) = env::get() else { return };
    if env.dump.is_empty() {
        return;
    }
    let hash = cache::hash(descriptor);
    // A descriptor that cannot be read has no name.
    let name = seen.kernel.as_deref().unwrap_or("kernel");
    if env.dumps(Dump::Descriptor) {
        write(env, name, &hash, "smalt", &replayable(descriptor, debug));
    }
    for (number, (pass, text)) in seen.shown.iter().flatten().enumerate() {
        write(
            env,
            name,
            &hash,
            &format!("{}{number:02}-{pass}.ir", variant(options)),
            text.as_bytes(),
        );
    }
}

/// Whether artifacts keep their locations, for reports.
pub(super) fn wants_locations() -> bool {
    env::get().is_ok_and(|env| env.dumps(Dump::Report))
}

pub(super) fn dump_compiled(artifact: &Artifact) {
    let Ok(env) = env::get() else { return };
    if env.dumps(Dump::Ptx) {
        write_of(env, artifact, "ptx", artifact.compiled.ptx.as_bytes());
    }
    if env.dumps(Dump::Report) {
        write_report(env, artifact);
    }
    // What is requested is made, for the emulator's kernels too.
    if env.dumps(Dump::Cubin) || env.dumps(Dump::Ptxas) {
        match artifact.best().and_then(Artifact::assembled) {
            Ok(Some(_)) => {}
            Ok(None) => warn_once("cubin and ptxas need an assembler: `python -m smalt doctor` says what to install"),
            Err(error) => warn_once(&error.to_string()),
        }
    }
}

pub(super) fn dump_assembled(artifact: &Artifact, assembled: Option<&Assembled>) {
    let Ok(env) = env::get() else { return };
    let Some(assembled) = assembled else { return };
    if env.dumps(Dump::Cubin) {
        write_of(env, artifact, "cubin", &assembled.cubin);
    }
    if env.dumps(Dump::Ptxas) {
        write_of(env, artifact, "ptxas.txt", assembled.log.text.as_bytes());
    }
}

/// The report, once more when registers are known.
pub(super) fn dump_report(artifact: &Artifact) {
    if let Ok(env) = env::get()
        && env.dumps(Dump::Report)
    {
        write_report(env, artifact);
    }
}

fn write_report(env: &Env, artifact: &Artifact) {
    let report = format!("{:#}\n", artifact.report(&Locations::decode(artifact.debug())));
    write_of(env, artifact, "report.json", report.as_bytes());
}

fn write_of(env: &Env, artifact: &Artifact, extension: &str, bytes: &[u8]) {
    let extension = format!("{}.{}{extension}", artifact.options.target, variant(&artifact.options));
    write(env, &artifact.compiled.name, &artifact.hash, &extension, bytes);
}

/// What is in the names of files of a kernel that is compiled in two ways.
fn variant(options: &CompileOptions) -> &'static str {
    match options.spill {
        false => "",
        true => "spilled-",
    }
}

/// Warns once of what goes wrong with dumps.
fn warn_once(what: &str) {
    static WARNED: AtomicBool = AtomicBool::new(false);
    if !WARNED.swap(true, Ordering::Relaxed) {
        eprintln!("smalt: SMALT_DUMP: {what}");
    }
}

fn write(env: &Env, name: &str, hash: &str, extension: &str, bytes: &[u8]) {
    // A kernel's name is the user's: only what is safe in a file's name.
    let safe = |c: char| if c.is_ascii_alphanumeric() || c == '_' { c } else { '_' };
    let name = name.chars().take(64).map(safe).collect::<String>();
    let file = env
        .dump_dir
        .join(format!("{name}-{}.{extension}", &hash[..hash.len().min(12)]));
    let written = std::fs::create_dir_all(&env.dump_dir).and_then(|()| std::fs::write(&file, bytes));
    if let Err(error) = written {
        warn_once(&format!("{}: {error}", file.display()));
    }
}
