//! Every pass on its own: what a kernel computes before it and after it is the same, bit for bit.
use crate::generate;
use crate::interpret::{self, Results, Stop, numbers};
use crate::round_trip::golden;
use rayon::prelude::*;
use smalt::dtype::DType;
use smalt::error::Fault;
use smalt::kernel_ir::{Kernel, Stage, legality, verify};
use smalt::{descriptor, layout, passes, plan};
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;

/// What a pass did that it must not.
struct Finding {
    pass: String,
    what: String,
    before: String,
    after: String,
}

/// What came of a kernel.
#[derive(Default)]
struct Report {
    findings: Vec<Finding>,
    /// How often a pass changed the kernel, and both were run.
    compared: usize,
    /// Why there was no run.
    stopped: BTreeMap<String, usize>,
}

/// A small random number generator (splitmix64), the same everywhere.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    pub fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    pub fn of<T: Copy>(&mut self, list: &[T]) -> T {
        list[self.below(list.len())]
    }
}

/// Numbers of a type that are likely to matter: small ones, the ends, any.
pub fn number(random: &mut Random, dtype: DType) -> u64 {
    if dtype.is_float() {
        let x = match random.below(10) {
            0 => random.of(&[
                0.0,
                -0.0,
                1.0,
                -1.0,
                f64::INFINITY,
                f64::NEG_INFINITY,
                f64::NAN,
                1e30,
                65504.0,
                0.5,
            ]),
            1..=4 => random.below(9) as f64 - 4.0,
            _ => (random.next() >> 11) as f64 / (1u64 << 53) as f64 * 4.0 - 2.0,
        };
        return numbers::from_f64(dtype, x);
    }
    let width = dtype.bits();
    let bits = match random.below(8) {
        0..=3 => random.below(9) as u64,
        4 => (random.below(9) as u64).wrapping_neg(),
        5 => (1u64 << (width - 1))
            .wrapping_add(random.below(5) as u64)
            .wrapping_sub(2),
        _ => random.next(),
    };
    bits & numbers::mask(dtype)
}

/// Small numbers, as indices and counts are; floats as above, but finite.
fn small(random: &mut Random, dtype: DType) -> u64 {
    match dtype.is_float() {
        true => numbers::from_f64(dtype, (random.below(33) as f64 - 16.0) / 8.0),
        false => random.below(4) as u64 & numbers::mask(dtype) >> 1,
    }
}

/// Parameters of a kernel; `None`: too large to be tried.
fn inputs(kernel: &Kernel, seed: u64) -> Option<Vec<Vec<u8>>> {
    const LARGEST: usize = 1 << 24;
    let mut random = Random(seed);
    let mut all = vec![];
    let mut total = 0;
    for param in &kernel.params {
        let bytes = interpret::param_bytes(param)?;
        total += bytes;
        if total > LARGEST {
            return None;
        }
        let dtype = param.ty.dtype();
        let width = dtype.bits();
        let mut data = vec![0; bytes];
        for i in 0..bytes as u64 * 8 / u64::from(width) {
            let x = match seed % 2 {
                0 => small(&mut random, dtype),
                _ => number(&mut random, dtype),
            };
            interpret::write(&mut data, i * u64::from(width), width, x);
        }
        all.push(data);
    }
    Some(all)
}

/// Where results differ. `tolerance`: floats may by this, relative to the larger one and 1.
fn difference(before: &Results, after: &Results, tolerance: f64) -> Option<String> {
    for (p, ((dtype, a), (_, b))) in before.params.iter().zip(&after.params).enumerate() {
        let width = dtype.bits();
        for i in 0..(a.len() as u64 * 8 / u64::from(width)).min(b.len() as u64 * 8 / u64::from(width)) {
            let x = interpret::read(a, i * u64::from(width), width);
            let y = interpret::read(b, i * u64::from(width), width);
            if x == y {
                continue;
            }
            if !dtype.is_float() {
                let (x, y) = (numbers::to_int(*dtype, x), numbers::to_int(*dtype, y));
                return Some(format!("param{p}[{i}] of {dtype} was {x} and is {y}"));
            }
            let (x, y) = (numbers::to_f64(*dtype, x), numbers::to_f64(*dtype, y));
            let near = (x - y).abs() <= tolerance * x.abs().max(y.abs()).max(1.0);
            if !(x.is_nan() && y.is_nan() || near && tolerance > 0.0) {
                return Some(format!("param{p}[{i}] of {dtype} was {x:?} and is {y:?}"));
            }
        }
    }
    let prints = before.prints != after.prints;
    prints.then(|| format!("printed {:?} and prints {:?}", before.prints, after.prints))
}

/// Runs of one kernel: with each of these inputs what it gave the last time.
struct Runs {
    inputs: Vec<Vec<Vec<u8>>>,
    results: Vec<Option<Results>>,
    text: String,
    fuel: u64,
    report: Report,
}

impl Runs {
    fn of(kernel: &Kernel, seeds: &[u64], fuel: u64) -> Runs {
        let inputs: Vec<_> = seeds.iter().filter_map(|seed| inputs(kernel, *seed)).collect();
        let mut runs = Runs {
            results: vec![None; inputs.len()],
            inputs,
            text: kernel.to_string(),
            fuel,
            report: Report::default(),
        };
        if runs.inputs.is_empty() {
            runs.stopped("large parameters");
        }
        for i in 0..runs.inputs.len() {
            match interpret::run(kernel, &runs.inputs[i], fuel) {
                Ok(results) => runs.results[i] = Some(results),
                Err(stop) => runs.stop(&stop),
            }
        }
        runs
    }

    fn stopped(&mut self, why: impl Into<String>) {
        *self.report.stopped.entry(why.into()).or_default() += 1;
    }

    fn stop(&mut self, stop: &Stop) {
        match stop {
            Stop::Unsupported(what) => self.stopped(format!("unsupported: {what}")),
            Stop::Invalid(what) => self.stopped(format!(
                "invalid: {}",
                what.split([':', '(']).next().unwrap_or_default()
            )),
            Stop::TooLong => self.stopped("too long"),
        }
    }

    fn finding(&mut self, pass: &str, what: String, after: &str) {
        self.report.findings.push(Finding {
            pass: pass.to_string(),
            what,
            before: self.text.clone(),
            after: after.to_string(),
        });
    }

    /// Runs the kernel that a pass has made.
    fn compare(&mut self, pass: &str, kernel: &Kernel) {
        let text = kernel.to_string();
        if let Err(broken) = verify::run(kernel) {
            self.finding(pass, format!("not valid: {broken}"), &text);
        }
        if text == self.text || self.results.iter().all(Option::is_none) {
            return;
        }
        let tolerance = if kernel.compiler_params.approx_math { 1e-2 } else { 0.0 };
        for i in 0..self.inputs.len() {
            let Some(before) = self.results[i].take() else {
                continue;
            };
            // A pass may make more of a kernel, not another order of magnitude.
            match interpret::run(kernel, &self.inputs[i], self.fuel * 4) {
                Ok(after) => {
                    self.report.compared += 1;
                    if let Some(what) = difference(&before, &after, tolerance) {
                        self.finding(pass, what, &text);
                    } else if let (true, Some(what)) = (before.untrue.is_empty(), after.untrue.first()) {
                        self.finding(pass, format!("facts that do not hold: {what}"), &text);
                    }
                    self.results[i] = Some(after);
                }
                Err(Stop::Invalid(what)) => self.finding(pass, format!("it did run, and now: {what}"), &text),
                Err(stop) => self.stop(&stop),
            }
        }
        self.text = text;
    }

    /// All passes of a kernel as it is imported. An error is what a pass refuses.
    fn passes(&mut self, kernel: &mut Kernel) -> Result<(), smalt::error::Error> {
        for (name, pass) in passes::all() {
            pass(kernel)?;
            self.compare(name, kernel);
        }
        kernel.stage = Stage::Normalized;
        self.compare("normalize", kernel);
        legality::run(kernel)?;
        let assignment = layout::infer::run(kernel)?;
        self.compare("infer_layouts", kernel);
        let (_, mut allocation) = plan::scratch::allocate(kernel, &assignment)?;
        plan::parked::run(kernel, &assignment, &mut allocation, false)?;
        plan::insert_barriers::run(kernel, &assignment, &allocation);
        self.compare("insert_barriers", kernel);
        Ok(())
    }
}

/// Runs a kernel before and after every pass.
fn differential(mut kernel: Kernel, seeds: &[u64], fuel: u64) -> Report {
    let mut runs = Runs::of(&kernel, seeds, fuel);
    let ended = catch_unwind(AssertUnwindSafe(|| runs.passes(&mut kernel)));
    match ended {
        Ok(Ok(())) => {}
        Ok(Err(e)) if e.fault == Fault::Internal => runs.finding("a pass", e.to_string(), ""),
        Ok(Err(e)) => runs.stopped(format!("refused: {}", e.what.split('`').next().unwrap_or_default())),
        Err(panic) => {
            let text = panic.downcast_ref::<String>().cloned();
            let text = text.or_else(|| panic.downcast_ref::<&str>().map(|s| s.to_string()));
            runs.finding("a pass", format!("panicked: {}", text.unwrap_or_default()), "");
        }
    }
    runs.report
}

/// Whether two kernels compute the same.
pub enum Kept {
    Same,
    Differs(String),
}

/// Runs two kernels on several inputs. The first one must run.
pub fn keeps(before: &Kernel, after: &Kernel) -> Kept {
    for seed in 0..6 {
        let inputs = inputs(before, seed).expect("a small kernel");
        let fuel = 10_000_000;
        let differs = match (
            interpret::run(before, &inputs, fuel),
            interpret::run(after, &inputs, fuel),
        ) {
            (Ok(a), Ok(b)) => difference(&a, &b, 0.0).or(b.untrue.first().cloned()),
            (Err(stop), _) => Some(format!("it did not run: {stop:?}")),
            (_, Err(stop)) => Some(format!("it does not run any more: {stop:?}")),
        };
        if let Some(why) = differs {
            return Kept::Differs(format!("of inputs {seed}: {why}"));
        }
    }
    Kept::Same
}

fn variable(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// What all kernels came to: fails where a pass did wrong.
fn conclude(what: &str, reports: Vec<(String, Report)>) -> (usize, BTreeMap<String, usize>) {
    let compared = reports.iter().map(|(_, r)| r.compared).sum();
    let mut stopped: BTreeMap<String, usize> = BTreeMap::new();
    let mut by_pass: BTreeMap<&str, Vec<(&str, &Finding)>> = BTreeMap::new();
    for (name, report) in &reports {
        report
            .stopped
            .iter()
            .for_each(|(why, n)| *stopped.entry(why.clone()).or_default() += n);
        for finding in &report.findings {
            by_pass.entry(&finding.pass).or_default().push((name, finding));
        }
    }
    println!(
        "{what}: {} kernels, {compared} runs behind a pass compared",
        reports.len()
    );
    stopped.iter().for_each(|(why, n)| println!("{n:6} {why}"));
    let mut text = String::new();
    for (pass, found) in &by_pass {
        let (name, first) = found.iter().min_by_key(|(_, f)| f.before.len()).expect("at least one");
        text += &format!("\n==== {pass}: {} found\n", found.len());
        for (name, finding) in found.iter().take(20) {
            text += &format!("  {name}: {}\n", finding.what.lines().next().unwrap_or_default());
        }
        text += &format!(
            "---- {name}: {}\n{}---- after {pass}\n{}",
            first.what, first.before, first.after
        );
    }
    assert!(
        by_pass.is_empty(),
        "{what}: passes that change what a kernel computes{text}"
    );
    (compared, stopped)
}

fn descriptors(paths: &[PathBuf], fuel: u64) -> Vec<(String, Report)> {
    let run = |path: &PathBuf| {
        let bytes = std::fs::read(path).expect("readable");
        let kernel = descriptor::import(&bytes).ok()?;
        Some((path.display().to_string(), differential(kernel, &[0, 1], fuel)))
    };
    paths.par_iter().filter_map(run).collect()
}

#[test]
fn the_corpus() {
    let fuel = variable("SMALT_PASSES_FUEL").unwrap_or(300_000);
    let paths: Vec<PathBuf> = golden()
        .into_iter()
        .filter(|p| p.to_string_lossy().contains("0.11.2"))
        .collect();
    let (compared, stopped) = conclude("the corpus", descriptors(&paths, fuel));
    assert!(compared > 200, "{compared} compared");
    let unsupported: usize = stopped
        .iter()
        .filter(|(why, _)| why.starts_with("unsupported"))
        .map(|(_, n)| n)
        .sum();
    assert!(
        unsupported < 200,
        "{unsupported} runs of what the interpreter does not know"
    );
}

#[test]
fn descriptors_of_a_folder() {
    let Some(folder) = std::env::var_os("SMALT_PASSES_FOLDER") else {
        return;
    };
    let files = std::fs::read_dir(folder)
        .expect("a folder")
        .map(|f| f.expect("readable").path());
    let mut paths: Vec<PathBuf> = files.filter(|p| p.extension().is_some_and(|e| e == "pb")).collect();
    paths.sort();
    let fuel = variable("SMALT_PASSES_FUEL").unwrap_or(3_000_000);
    conclude("the folder", descriptors(&paths, fuel));
}

#[test]
fn random_kernels() {
    let count = variable("SMALT_PASSES_RANDOM").unwrap_or(400);
    let first = variable("SMALT_PASSES_SEED").unwrap_or(0);
    let fuel = variable("SMALT_PASSES_FUEL").unwrap_or(100_000);
    let run = |seed: u64| {
        let kernel = generate::kernel(seed);
        if let Err(broken) = verify::run(&kernel) {
            panic!("the generator's kernel {seed} is not valid: {broken}\n{kernel}");
        }
        (format!("seed {seed}"), differential(kernel, &[0, 1, 3, 5], fuel))
    };
    let reports: Vec<_> = (first..first + count).into_par_iter().map(run).collect();
    conclude("random kernels", reports);
}
