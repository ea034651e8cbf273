//! The order of the passes: what `PASSES` says may change places does, and nothing comes of it.
use crate::differential::Random;
use crate::generate;
use crate::round_trip::golden;
use rayon::prelude::*;
use smalt::descriptor;
use smalt::kernel_ir::Kernel;
use smalt::passes::PASSES;
use std::collections::BTreeMap;

/// A kernel's text with its ids in the order in which they come.
fn canonical(kernel: &Kernel) -> String {
    let text = kernel.to_string();
    let mut out = String::with_capacity(text.len());
    let mut names: BTreeMap<String, usize> = BTreeMap::new();
    let mut rest = text.as_str();
    while let Some(at) = rest.find('%') {
        out += &rest[..at];
        let end = rest[at + 1..]
            .find(|c: char| !c.is_alphanumeric())
            .map_or(rest.len(), |n| at + 1 + n);
        let next = names.len();
        let id = *names.entry(rest[at..end].to_string()).or_insert(next);
        out += &format!("%{id}");
        rest = &rest[end..];
    }
    out + rest
}

fn after(kernel: &Kernel, order: &[usize]) -> String {
    let mut kernel = kernel.clone();
    for i in order {
        if let Err(e) = (PASSES[*i].1)(&mut kernel) {
            return e.to_string();
        }
    }
    canonical(&kernel)
}

#[test]
fn experiment() {
    let mut kernels: Vec<Kernel> = golden()
        .iter()
        .filter(|p| p.to_string_lossy().contains("0.12.0.1"))
        .filter_map(|p| descriptor::import(&std::fs::read(p).unwrap()).ok())
        .collect();
    for folder in ["/tmp/desc_shipped", "/tmp/desc"] {
        for (n, f) in std::fs::read_dir(folder).unwrap().enumerate() {
            if n < 250 {
                kernels.extend(descriptor::import(&std::fs::read(f.unwrap().path()).unwrap()).ok());
            }
        }
    }
    kernels.extend((0..200).map(generate::kernel));
    let base: Vec<usize> = (0..PASSES.len()).collect();
    let texts: Vec<String> = kernels.par_iter().map(|k| after(k, &base)).collect();
    for i in 0..PASSES.len() {
        let mut row = format!("{i:2} {:20}", PASSES[i].0);
        for j in i + 1..(i + 9).min(PASSES.len()) {
            // j directly before i, and i directly behind j.
            let mut early = base.clone();
            let x = early.remove(j);
            early.insert(i, x);
            let mut late = base.clone();
            let x = late.remove(i);
            late.insert(j, x);
            let n = |order: &[usize]| {
                kernels
                    .par_iter()
                    .zip(&texts)
                    .filter(|(k, t)| after(k, order) != **t)
                    .count()
            };
            row += &format!(" {}:{}/{}", j, n(&early), n(&late));
        }
        eprintln!("{row}");
    }
    let _ = Random(0).next();
}
