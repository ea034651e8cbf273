//! Time from descriptor to PTX by stage, on one core: `cargo bench --profile dist --bench compile [-- what]`.
//!
//! Kernels are committed descriptors, so that neither JAX nor a GPU is needed. `what` is
//! * nothing: three kernels of the corpus, medians of many compilations in microseconds. The first compilation in the
//!   process is printed apart: it pays for what is made once; and the best of all, for machines that are shared.
//! * names of kernels, or paths of descriptors: those instead.
//! * `--fingerprints`: a hash of the PTX, or of the error, of every committed descriptor. What shall only be faster must not
//!   change a line of it.

use smalt::runtime::CompileOptions;
use smalt::runtime::pipeline::{self, Observer};
use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const GOLDEN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/corpus/golden");
const KERNELS: [&str; 3] = ["add_one", "hopper_matmul_float16_basic", "attention_plain"];

fn options() -> CompileOptions {
    CompileOptions::for_target("sm_90a")
}

fn median(mut samples: Vec<f64>) -> f64 {
    samples.sort_by(f64::total_cmp);
    samples[samples.len() / 2]
}

/// Compiles for half a second; prints microseconds by stage.
fn measure(path: &Path) {
    let name = path.file_stem().unwrap_or_default().to_string_lossy();
    let descriptor = std::fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let mut stages: Vec<(String, Vec<f64>)> = vec![];
    let mut totals = vec![];
    let begin = Instant::now();
    while totals.len() < 30 || begin.elapsed() < Duration::from_millis(500) {
        let mut observer = Observer::default();
        let start = Instant::now();
        let compiled = pipeline::compile(&descriptor, &[], &options(), &mut observer);
        totals.push(start.elapsed().as_secs_f64() * 1e6);
        if let Err(error) = compiled {
            println!("{name}: {error}");
            return;
        }
        for phase in &observer.phases {
            let micros = phase.micros as f64;
            match stages.iter_mut().find(|(name, _)| *name == phase.name) {
                Some((_, samples)) => samples.push(micros),
                None => stages.push((phase.name.clone(), vec![micros])),
            }
        }
    }
    println!("\n{name}: {} compilations", totals.len());
    for (stage, samples) in stages {
        println!("{stage:18} {:8.0}", median(samples));
    }
    let (first, best) = (totals[0], totals.iter().copied().fold(f64::INFINITY, f64::min));
    let all = median(totals);
    println!(
        "{:18} {all:8.0}   (first: {first:.0}, best: {best:.0})",
        "descriptor → PTX"
    );
}

fn fingerprint(path: &Path) -> u64 {
    let descriptor = std::fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let mut hasher = DefaultHasher::new();
    match pipeline::compile(&descriptor, &[], &options(), &mut Observer::default()) {
        Ok(compiled) => compiled.ptx.hash(&mut hasher),
        Err(error) => error.to_string().hash(&mut hasher),
    }
    hasher.finish()
}

fn fingerprints() {
    let folder = |path: &Path| -> Vec<PathBuf> {
        let entries = std::fs::read_dir(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        entries.flatten().map(|entry| entry.path()).collect()
    };
    let files = folder(Path::new(GOLDEN))
        .into_iter()
        .flat_map(|version| folder(&version));
    let kernels = files.filter(|file| file.extension().is_some_and(|extension| extension == "pb"));
    let hashes: BTreeMap<PathBuf, u64> = kernels.map(|file| (file.clone(), fingerprint(&file))).collect();
    for (file, hash) in hashes {
        let name = file.strip_prefix(GOLDEN).unwrap_or(&file);
        println!("{hash:016x} {}", name.display());
    }
}

fn main() {
    let arguments: Vec<String> = std::env::args()
        .skip(1)
        .filter(|argument| argument != "--bench")
        .collect();
    if arguments.iter().any(|argument| argument == "--fingerprints") {
        return fingerprints();
    }
    let chosen = if arguments.is_empty() {
        KERNELS.map(String::from).to_vec()
    } else {
        arguments
    };
    for kernel in chosen {
        let path = match kernel.ends_with(".pb") {
            true => PathBuf::from(kernel),
            false => Path::new(GOLDEN).join(format!("0.11.2/{kernel}.pb")),
        };
        measure(&path);
    }
}
