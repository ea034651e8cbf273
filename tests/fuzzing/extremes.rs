//! Descriptors with extreme numbers: whatever is too large is refused at once, by a clear error.
//!
//! Each round takes a golden descriptor and puts extreme numbers into fields that the schema calls numbers: one extent of the kernel wherever
//! it occurs (so that shapes go on agreeing with each other), grids, clusters, counts, layouts' parameters, indices, attributes. What comes out
//! is well formed: it gets as far as a kernel of such numbers can get. Compiling it ends in a kernel or in an error that is not
//! ours, within a second of processor time and 1 GiB; nothing panics.
//! How many rounds, and which: `rounds.rs`. `SMALT_FUZZ_SHOW` lists the refusals.
use crate::rounds::{self, Round, Taken};
use crate::tree::{self, Content, Field};
use crate::{Golden, Rng, goldens};
use smalt::error::Fault;
use smalt::runtime::{CompileOptions, pipeline};
use std::collections::BTreeMap;
use std::time::Duration;

const TIME: Duration = Duration::from_secs(1);
const BYTES: usize = 1 << 30;

/// Names of what is there by number: other numbers would be another kernel, or none.
const NAMES: [&str; 10] = [
    "KernelDescriptor.version",
    "KernelDescriptor.thread_axis",
    "Axis.id",
    "MeshAxis.id",
    "Value.id",
    "Op.id",
    "Operand.value",
    "RefUse.value",
    "Axes.ids",
    "DeviceIdEntry.axes",
];

/// Fields that say how far a dimension reaches.
const EXTENTS: [&str; 14] = [
    "ArrayType.shape",
    "RefType.shape",
    "ExtractAlias.shape",
    "Untile.tiling",
    "Index.shape",
    "Index.int_indexer_shape",
    "Slice.static_size",
    "Reshape.shape",
    "ExpandLeadingBatch.shape",
    "Tile.tiling",
    "StridedLayout.shape",
    "SplatLayout.shape",
    "Ints.values",
    "Attr.int",
];

/// Calls `f` with every number that is no name of something else, and its field's name.
fn for_each_number(fields: &mut [Field], f: &mut dyn FnMut(&str, &mut u64)) {
    for field in fields {
        match &mut field.content {
            Content::Message(inner) => for_each_number(inner, f),
            _ if NAMES.contains(&field.name.as_str()) => {}
            Content::Number(x) => f(&field.name, x),
            Content::Numbers(numbers) => numbers.iter_mut().for_each(|x| f(&field.name, x)),
            Content::Other(..) => {}
        }
    }
}

fn extreme(rng: &mut Rng, old: u64) -> u64 {
    let power = 1u64 << rng.below(64);
    match rng.below(14) {
        0 => 0,
        1 => 1,
        2 => u64::MAX,
        3 => 1 << 31,
        4 => 1 << 63,
        5 => (1 << 63) - 1,
        6 => power - 1,
        7 => power.wrapping_add(1),
        8 => (rng.below(64) as u64).wrapping_neg(),
        9 => old.wrapping_mul(1 << rng.below(32)),
        _ => power,
    }
}

/// One extent, wherever it is, becomes another; its multiples become multiples of that.
fn resize(tree: &mut [Field], rng: &mut Rng) {
    let mut extents = vec![];
    for_each_number(tree, &mut |name, x| {
        if matches!(name, "ArrayType.shape" | "RefType.shape") && *x > 1 {
            extents.push(*x);
        }
    });
    if extents.is_empty() {
        return;
    }
    let old = extents[rng.below(extents.len())];
    // Most are of a size that gets somewhere.
    let new = match rng.below(4) {
        0 => extreme(rng, old),
        1 => old.wrapping_mul(1 << rng.below(20)),
        _ => old.wrapping_mul(1 << rng.below(12)).wrapping_add(rng.below(2) as u64),
    };
    let multiples = rng.below(3) == 0;
    for_each_number(tree, &mut |name, x| {
        if EXTENTS.contains(&name) && *x != 0 && (*x == old || multiples && *x % old == 0) {
            *x = (*x / old).wrapping_mul(new);
        }
    });
}

/// One number of a field, whichever fields there are.
fn replace(tree: &mut [Field], rng: &mut Rng) {
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for_each_number(tree, &mut |name, _| *counts.entry(name.to_owned()).or_default() += 1);
    let Some((name, count)) = counts.iter().nth(rng.below(counts.len())) else {
        return;
    };
    let mut which = rng.below(*count);
    for_each_number(tree, &mut |found, x| {
        if found == name {
            if which == 0 {
                *x = extreme(rng, *x);
            }
            which = which.wrapping_sub(1);
        }
    });
}

/// Compiles what a seed makes of a golden descriptor.
fn round(seed: u64, goldens: &[Golden]) -> Round {
    let mut rng = Rng(seed);
    let golden = &goldens[rng.below(goldens.len())];
    let mut tree = golden.tree.clone();
    for _ in 0..1 + rng.below(2) {
        if rng.below(2) == 0 {
            resize(&mut tree, &mut rng);
        } else {
            replace(&mut tree, &mut rng);
        }
    }
    let bytes = tree::write(&tree);
    drop(tree);
    let mut observer = pipeline::Observer::default();
    let compiled = pipeline::compile(&bytes, b"", &CompileOptions::for_target("sm_90a"), &mut observer);
    let phases = observer.phases.iter().filter(|phase| phase.micros > 50_000);
    let phases: Vec<String> = phases.map(|p| format!("{} {} ms", p.name, p.micros / 1000)).collect();
    let blocks = compiled
        .iter()
        .flat_map(|compiled| &compiled.flat)
        .flat_map(|flat| &flat.blocks);
    let instructions = blocks.map(|block| block.insts.len() as u64).sum();
    let (outcome, text) = match compiled {
        Ok(_) => ("kernels", String::new()),
        Err(error) if error.fault == Fault::Internal => ("internal errors", error.to_string()),
        Err(error) => ("refused", error.what),
    };
    Round {
        outcome: outcome.into(),
        instructions,
        text,
        details: format!("{}; {}", golden.name, phases.join(", ")),
    }
}

/// What is wrong with a round.
fn judge(taken: &Taken) -> Option<String> {
    let Round {
        outcome,
        instructions,
        text,
        ..
    } = &taken.round;
    let of = format!("for {instructions} instructions: {text}");
    if !["kernels", "refused"].contains(&outcome.as_str()) {
        Some(format!("{outcome}: {text}"))
    } else if taken.time > TIME {
        Some(format!("took {:?} {of}", taken.time))
    } else if taken.bytes > BYTES {
        Some(format!("took {} MiB {of}", taken.bytes >> 20))
    } else {
        None
    }
}

#[test]
fn extreme_numbers_are_kernels_or_refused_at_once() {
    let make = || {
        let goldens = goldens();
        move |seed| round(seed, &goldens)
    };
    let summary = rounds::run(
        "extremes::extreme_numbers_are_kernels_or_refused_at_once",
        1500,
        make,
        judge,
    );
    summary.finish();
    let (n, compiled) = (summary.rounds, summary.count("kernels"));
    assert!(
        n < 1000 || compiled > n / 50 && summary.texts.len() > 50,
        "the numbers are too coarse to find anything: {compiled} kernels, {} refusals",
        summary.texts.len()
    );
}
