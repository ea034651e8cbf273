//! The committed descriptors: nothing is out of order, and each barrier would be missed.
use smalt::descriptor;
use smalt::error::Error;
use smalt::kernel_ir::{Kernel, Op};
use smalt::layout::{self, Assignment};
use smalt::passes;
use smalt::plan::verify_order;
use smalt::plan::{Allocation, insert_barriers, scratch};
use std::path::{Path, PathBuf};

/// Barriers of the corpus (0.11.2) whose removal leaves nothing out of order: another one does it as well, or nothing
/// follows. May only fall.
const REDUNDANT: usize = 18;

/// The committed descriptors of one JAX version.
fn golden(version: &str) -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/corpus/golden")
        .join(version);
    let entries = std::fs::read_dir(folder).expect("the corpus is there");
    let mut files: Vec<PathBuf> = entries
        .map(|file| file.unwrap().path())
        .filter(|path| path.extension().is_some_and(|e| e == "pb"))
        .collect();
    files.sort();
    files
}

/// The kernel as lowering gets it.
struct Planned {
    kernel: Kernel,
    assignment: Assignment,
    allocation: Allocation,
    /// The barriers that were placed.
    barriers: Vec<Op>,
}

fn planned(bytes: &[u8]) -> Result<Planned, Error> {
    let mut kernel = descriptor::import(bytes)?;
    passes::run(&mut kernel, &mut |_, _| {})?;
    let assignment = layout::infer::run(&mut kernel)?;
    let (_, allocation) = scratch::allocate(&kernel, &assignment)?;
    let barriers = insert_barriers::run(&mut kernel, &assignment, &allocation);
    Ok(Planned {
        kernel,
        assignment,
        allocation,
        barriers,
    })
}

fn name(path: &Path) -> String {
    path.file_stem().unwrap_or_default().to_string_lossy().into_owned()
}

#[test]
fn the_corpus_is_in_order() {
    let mut kernels = 0;
    for version in ["0.10.2", "0.11.2", "0.12.0.1"] {
        for path in golden(version) {
            let Ok(p) = planned(&std::fs::read(&path).unwrap()) else {
                continue; // what smalt lacks is another test's business
            };
            kernels += 1;
            let found = verify_order::run(&p.kernel, &p.assignment, &p.allocation);
            let texts: Vec<String> = found.iter().map(|f| format!("{:?}: {f}", f.fault)).collect();
            assert!(texts.is_empty(), "{}:\n{}", path.display(), texts.join("\n"));
        }
    }
    assert!(kernels > 600, "{kernels}");
}

#[test]
fn a_barrier_that_goes_is_missed() {
    let (mut all, mut redundant) = (0, 0);
    for path in golden("0.11.2") {
        let Ok(p) = planned(&std::fs::read(&path).unwrap()) else {
            continue;
        };
        for &barrier in &p.barriers {
            let mut broken = p.kernel.clone();
            broken.remove(barrier);
            all += 1;
            if verify_order::run(&broken, &p.assignment, &p.allocation).is_empty() {
                redundant += 1;
                println!("not missed: {} {}", name(&path), p.kernel.ops[barrier].loc);
            }
        }
    }
    println!("{redundant} of {all} barriers are not missed");
    assert!(all > 0 && redundant <= REDUNDANT, "{redundant} of {all}");
}
