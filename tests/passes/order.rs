//! The order of the passes: those of a phase may change places, and phases may not.
use crate::differential::Random;
use crate::generate;
use crate::round_trip::golden;
use rayon::prelude::*;
use smalt::descriptor;
use smalt::kernel_ir::Kernel;
use smalt::passes::{PHASES, Pass, Phase};
use std::collections::HashMap;

/// A kernel's text with its ids in the order in which they come.
fn canonical(kernel: &Kernel) -> String {
    let text = kernel.to_string();
    let mut out = String::with_capacity(text.len());
    let mut ids: HashMap<&str, usize> = HashMap::new();
    let mut rest = text.as_str();
    while let Some(at) = rest.find('%') {
        let (before, id) = rest.split_at(at);
        let (id, behind) = id.split_at(id[1..].find(|c: char| !c.is_alphanumeric()).map_or(id.len(), |n| n + 1));
        let next = ids.len();
        out += &format!("{before}%{}", *ids.entry(id).or_insert(next));
        rest = behind;
    }
    out + rest
}

/// What some passes make of a kernel, one after the other.
fn made(kernel: &Kernel, order: impl IntoIterator<Item = Pass>) -> String {
    let mut kernel = kernel.clone();
    for pass in order {
        if let Err(e) = pass(&mut kernel) {
            return e.to_string();
        }
    }
    canonical(&kernel)
}

fn passes<'a>(phases: impl IntoIterator<Item = &'a Phase>) -> Vec<Pass> {
    phases
        .into_iter()
        .flat_map(|phase| phase.passes)
        .map(|(_, pass)| *pass)
        .collect()
}

fn kernels() -> Vec<(String, Kernel)> {
    let of_corpus = golden()
        .into_iter()
        .filter(|path| path.to_string_lossy().contains("0.12.0.1"));
    let corpus = of_corpus.filter_map(|path| {
        let kernel = descriptor::import(&std::fs::read(&path).expect("readable")).ok()?;
        Some((path.display().to_string(), kernel))
    });
    let random = (0..200).map(|seed| (format!("seed {seed}"), generate::kernel(seed)));
    corpus.chain(random).collect()
}

#[test]
fn passes_of_a_phase_may_change_places() {
    let wrong: Vec<String> = kernels()
        .par_iter()
        .enumerate()
        .flat_map_iter(|(i, (name, kernel))| {
            let expected = made(kernel, passes(PHASES));
            let mut random = Random(i as u64);
            let mut differs = vec![];
            for phase in PHASES.iter().filter(|phase| phase.passes.len() > 1) {
                let mut order: Vec<Pass> = vec![];
                let mut names = vec![];
                for p in PHASES {
                    let mut left = p.passes.to_vec();
                    while !left.is_empty() {
                        let at = if std::ptr::eq(p, phase) {
                            random.below(left.len())
                        } else {
                            0
                        };
                        let (name, pass) = left.remove(at);
                        order.push(pass);
                        names.extend(std::ptr::eq(p, phase).then_some(name));
                    }
                }
                if made(kernel, order) != expected {
                    differs.push(format!("{name}: {names:?}"));
                }
            }
            differs
        })
        .collect();
    assert!(wrong.is_empty(), "the order matters:\n{}", wrong.join("\n"));
}

#[test]
fn phases_stand_in_their_order() {
    let kernels = kernels();
    let expected: Vec<String> = kernels
        .par_iter()
        .map(|(_, kernel)| made(kernel, passes(PHASES)))
        .collect();
    for i in 1..PHASES.len() {
        let mut order: Vec<&Phase> = PHASES.iter().collect();
        order.swap(i - 1, i);
        let changes =
            |((_, kernel), expected): (&(String, Kernel), &String)| made(kernel, passes(order.clone())) != *expected;
        assert!(
            kernels.par_iter().zip(&expected).any(changes),
            "phases {} and {i} could change places: they are one",
            i - 1
        );
    }
}
