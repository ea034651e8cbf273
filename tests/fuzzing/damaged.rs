//! Damaged descriptors: any byte string gives a kernel or a clean error.
//!
//! Each round takes a golden descriptor, damages it (bytes, or fields of the decoded wire format, whose lengths are then put right
//! again), and runs it through import, verifier and normalisation; one in `SMALT_FUZZ_COMPILE` (default 20) of those that are
//! kernels is compiled to PTX. Nothing may panic, hang, or end in an internal error.
//! How many rounds, and which: `rounds.rs`.
use crate::rounds::{self, Round, Taken};
use crate::tree::{self, Content, Field};
use crate::{Golden, Rng, environment, goldens};
use smalt::descriptor::{self, DebugTable};
use smalt::error::{Error, Fault};
use smalt::kernel_ir::verify;
use smalt::passes;
use smalt::runtime::{CompileOptions, pipeline};
use std::time::Duration;

/// What a round may take.
const TIME: Duration = Duration::from_secs(10);

/// A message somewhere in the tree.
fn pick<'a>(fields: &'a mut Vec<Field>, rng: &mut Rng) -> &'a mut Vec<Field> {
    let inner: Vec<usize> = fields
        .iter()
        .enumerate()
        .filter(|(_, f)| matches!(f.content, Content::Message(_)))
        .map(|(i, _)| i)
        .collect();
    if inner.is_empty() || rng.one_in(6) {
        return fields;
    }
    let i = inner[rng.below(inner.len())];
    match &mut fields[i].content {
        Content::Message(inner) => pick(inner, rng),
        _ => unreachable!("only messages were collected"),
    }
}

/// A number that has caused trouble before.
fn number(rng: &mut Rng, old: u64) -> u64 {
    match rng.below(10) {
        0 => 0,
        1 => 1,
        2 => u64::MAX,
        3 => 1 << rng.below(64),
        4 => (1u64 << rng.below(64)).wrapping_sub(1),
        5 => old.wrapping_add(1),
        6 => old.wrapping_sub(1),
        7 => rng.next(),
        _ => rng.below(64) as u64,
    }
}

fn mutate_fields(fields: &mut Vec<Field>, other: &[Field], rng: &mut Rng) {
    for _ in 0..1 + rng.below(3) {
        let donor = {
            let mut other = other.to_vec();
            let from = pick(&mut other, rng);
            if from.is_empty() {
                None
            } else {
                Some(from[rng.below(from.len())].clone())
            }
        };
        let at = pick(fields, rng);
        if at.is_empty() {
            continue;
        }
        let i = rng.below(at.len());
        match rng.below(8) {
            0 => {
                at.remove(i);
            }
            1 => {
                let copy = at[i].clone();
                at.insert(i, copy);
            }
            2 => {
                let j = rng.below(at.len());
                at.swap(i, j);
            }
            3 => {
                if let Some(donor) = donor {
                    at[i] = donor;
                }
            }
            _ => {
                let Field { number: n, content, .. } = &mut at[i];
                match content {
                    Content::Number(x) => {
                        *x = number(rng, *x);
                        if rng.one_in(20) {
                            *n = 1 + rng.below(20) as u32;
                        }
                    }
                    Content::Numbers(numbers) if numbers.is_empty() => numbers.push(number(rng, 0)),
                    Content::Numbers(numbers) => {
                        let i = rng.below(numbers.len());
                        match rng.below(8) {
                            0 => drop(numbers.remove(i)),
                            1 => numbers.insert(i, numbers[i]),
                            _ => numbers[i] = number(rng, numbers[i]),
                        }
                    }
                    Content::Other(2, bytes) if bytes.is_empty() => bytes.push(rng.next() as u8),
                    Content::Other(wire, bytes) => {
                        let i = rng.below(bytes.len());
                        bytes[i] = rng.next() as u8;
                        if *wire == 2 && rng.one_in(4) {
                            bytes.truncate(i);
                        }
                    }
                    Content::Message(_) => *n = 1 + rng.below(16) as u32,
                }
            }
        }
    }
}

fn mutate_bytes(bytes: &mut Vec<u8>, rng: &mut Rng) {
    for _ in 0..1 + rng.below(4) {
        if bytes.is_empty() {
            return;
        }
        let i = rng.below(bytes.len());
        match rng.below(5) {
            0 => bytes[i] ^= 1 << rng.below(8),
            1 => bytes[i] = rng.next() as u8,
            2 => {
                bytes.remove(i);
            }
            3 => bytes.insert(i, rng.next() as u8),
            _ => bytes.truncate(i),
        }
    }
}

/// A descriptor that a seed makes.
fn mutated(goldens: &[Golden], seed: u64) -> Vec<u8> {
    let mut rng = Rng(seed);
    let golden = &goldens[rng.below(goldens.len())];
    if rng.one_in(4) {
        let mut bytes = golden.bytes.clone();
        mutate_bytes(&mut bytes, &mut rng);
        return bytes;
    }
    let mut tree = golden.tree.clone();
    let other = rng.below(goldens.len());
    mutate_fields(&mut tree, &goldens[other].tree, &mut rng);
    tree::write(&tree)
}

/// Where a descriptor was refused, and why.
type Refusal = Box<(&'static str, Error)>;

/// What comes of a descriptor.
fn run(bytes: &[u8], compile: bool) -> Result<&'static str, Refusal> {
    let _ = DebugTable::decode(bytes);
    let at = |stage: &'static str| move |e: Error| Box::new((stage, e));
    let mut kernel = descriptor::import(bytes).map_err(at("import"))?;
    verify::run(&kernel).map_err(|e| at("the imported kernel")(Error::internal(e.to_string())))?;
    passes::run(&mut kernel, &mut |_, _| {}).map_err(at("normalize"))?;
    let _ = kernel.to_string();
    if !compile {
        return Ok("kernels");
    }
    let options = CompileOptions::for_target("sm_90a");
    match pipeline::compile(bytes, b"", &options, &mut pipeline::Observer::default()) {
        Err(e) if e.fault == Fault::Internal => Err(at("compile")(e)),
        Ok(_) => Ok("compiled"),
        Err(_) => Ok("kernels that are refused"),
    }
}

fn round(seed: u64, every: u64, goldens: &[Golden]) -> Round {
    let made = run(&mutated(goldens, seed), seed % every == 0);
    let (outcome, text) = match made.map_err(|refusal| *refusal) {
        Ok(outcome) => (outcome, String::new()),
        Err((stage, e)) if e.fault == Fault::Internal => ("internal errors", format!("{stage}: {e}")),
        Err((_, e)) => ("refused", e.what),
    };
    Round {
        outcome: outcome.into(),
        text,
        ..Round::default()
    }
}

/// What is wrong with a round.
fn judge(taken: &Taken) -> Option<String> {
    let Round { outcome, text, .. } = &taken.round;
    match outcome.as_str() {
        "panics" | "internal errors" => Some(format!("{outcome}: {text}")),
        _ => (taken.time > TIME).then(|| format!("took {:?}", taken.time)),
    }
}

#[test]
fn mutated_descriptors_are_kernels_or_clean_errors() {
    let make = || {
        let (goldens, every) = (goldens(), environment("SMALT_FUZZ_COMPILE", 20).max(1));
        move |seed| round(seed, every, &goldens)
    };
    let summary = rounds::run(
        "damaged::mutated_descriptors_are_kernels_or_clean_errors",
        20_000,
        make,
        judge,
    );
    summary.finish();
    let (n, refused) = (summary.rounds, summary.count("refused"));
    assert!(
        n < 1000 || n - refused > n / 100,
        "the mutations are too coarse to find anything: {refused} of {n} are no kernels"
    );
}
