//! Time from descriptor to PTX by stage, on one core: `cargo bench --profile dist --bench compile [-- what]`.
//!
//! Kernels are committed descriptors, so that neither JAX nor a GPU is needed. `what` is
//! * nothing: three kernels of the corpus, medians of many compilations in microseconds. The first compilation in the
//!   process is printed apart: it pays for what is made once; and the best of all, for machines that are shared.
//! * names of kernels, or paths of descriptors: those instead.
//! * `--fingerprints`: a hash of the PTX, or of the error, of every committed descriptor. What shall only be faster must not
//!   change a line of it.
//! * `--checkers`: of every committed descriptor of one JAX version, the best time of some compilations, and what the compiler's own checkers take
//!   of it; at last all kernels together. Paths of descriptors: those instead.

use smalt::runtime::CompileOptions;
use smalt::runtime::pipeline::{self, Observer};
use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const GOLDEN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/corpus/golden");
const VERSION: &str = "0.11.2";
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

fn folder(path: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let mut files: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    files.sort();
    files
}

fn is_descriptor(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "pb")
}

fn fingerprints() {
    let files = folder(Path::new(GOLDEN))
        .into_iter()
        .flat_map(|version| folder(&version));
    let kernels = files.filter(|path| is_descriptor(path));
    let hashes: BTreeMap<PathBuf, u64> = kernels.map(|file| (file.clone(), fingerprint(&file))).collect();
    for (file, hash) in hashes {
        let name = file.strip_prefix(GOLDEN).unwrap_or(&file);
        println!("{hash:016x} {}", name.display());
    }
}

/// Compilations of each kernel of which the fastest counts: on machines that are shared nothing else is steady.
const TRIES: usize = 5;
const CHECKERS: [&str; 3] = ["verify_layouts", "verify_order", "verify_ssa"];

/// Milliseconds: the whole, then each checker.
type Checked = [f64; 1 + CHECKERS.len()];

fn checked(path: &Path) -> Option<Checked> {
    let descriptor = std::fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let mut best = [f64::INFINITY; 1 + CHECKERS.len()];
    for _ in 0..TRIES {
        let mut observer = Observer::default();
        let start = Instant::now();
        pipeline::compile(&descriptor, &[], &options(), &mut observer).ok()?;
        let all = start.elapsed().as_secs_f64() * 1e3;
        let of = |name: &str| observer.phases.iter().find(|phase| phase.name == name);
        let checkers = CHECKERS.map(|name| of(name).map_or(0.0, |phase| phase.micros as f64 / 1e3));
        for (best, now) in best.iter_mut().zip([all].into_iter().chain(checkers)) {
            *best = best.min(now);
        }
    }
    Some(best)
}

/// What the checkers take: the kernels by their share, then all together.
fn checkers(paths: Vec<PathBuf>) {
    let of = |path: PathBuf| checked(&path).map(|times| (path, times));
    let mut rows: Vec<(PathBuf, Checked)> = paths.into_iter().filter_map(of).collect();
    let share = |times: &Checked| times[1..].iter().sum::<f64>() / times[0];
    rows.sort_by(|(_, a), (_, b)| share(a).total_cmp(&share(b)));
    let mut all = [0.0; 1 + CHECKERS.len()];
    let print = |name: &str, times: &Checked| {
        let part = |ms: &f64| format!("{ms:10.3} {:5.1} %", 100.0 * ms / times[0]);
        let parts: String = times[1..].iter().map(part).collect();
        println!("{name:44} {:10.3}{parts} {:5.1} %", times[0], 100.0 * share(times));
    };
    println!(
        "{:44} {:>10}{:>18}{:>18}{:>18}     all",
        "ms", "kernel", CHECKERS[0], CHECKERS[1], CHECKERS[2]
    );
    for (path, times) in &rows {
        print(&path.file_stem().unwrap_or_default().to_string_lossy(), times);
        all.iter_mut().zip(times).for_each(|(sum, ms)| *sum += ms);
    }
    print(&format!("{} kernels", rows.len()), &all);
    if let Some((_, middle)) = rows.get(rows.len() / 2) {
        println!("the median kernel: {:.1} %", 100.0 * share(middle));
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
    if let Some(at) = arguments.iter().position(|argument| argument == "--checkers") {
        let paths: Vec<PathBuf> = arguments[at + 1..].iter().map(PathBuf::from).collect();
        let corpus = || {
            folder(&Path::new(GOLDEN).join(VERSION))
                .into_iter()
                .filter(|path| is_descriptor(path))
                .collect()
        };
        return checkers(if paths.is_empty() { corpus() } else { paths });
    }
    let chosen = if arguments.is_empty() {
        KERNELS.map(String::from).to_vec()
    } else {
        arguments
    };
    for kernel in chosen {
        let path = match kernel.ends_with(".pb") {
            true => PathBuf::from(kernel),
            false => Path::new(GOLDEN).join(VERSION).join(format!("{kernel}.pb")),
        };
        measure(&path);
    }
}
