//! Descriptors → kernels.
use smalt::descriptor;
use smalt::error::Fault;
use smalt::kernel_ir::{self, Kernel};
use std::path::{Path, PathBuf};

/// The committed descriptors of every JAX version, in a fixed order.
fn golden() -> Vec<(PathBuf, Vec<u8>)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corpus/golden");
    let mut files: Vec<PathBuf> = std::fs::read_dir(&root)
        .expect("tests/corpus/golden is there")
        .flat_map(|dir| std::fs::read_dir(dir.unwrap().path()).unwrap())
        .map(|file| file.unwrap().path())
        .filter(|path| path.extension().is_some_and(|e| e == "pb"))
        .collect();
    files.sort();
    files
        .into_iter()
        .map(|p| (p.clone(), std::fs::read(p).unwrap()))
        .collect()
}

/// Prints kernels as they are after each pass named in `SMALT_TEST_PRINT` ("import" for none), for those files whose path
/// contains `SMALT_TEST_KERNEL`.
fn printer(path: &Path) -> impl FnMut(&str, &Kernel) {
    let passes = std::env::var("SMALT_TEST_PRINT").unwrap_or_default();
    let name = path.to_string_lossy().into_owned();
    let wanted = name.contains(&std::env::var("SMALT_TEST_KERNEL").unwrap_or_default());
    move |pass, kernel| {
        if wanted && passes.split(',').any(|p| p == pass) {
            println!("---- {name} after {pass}\n{kernel}");
        }
    }
}

#[test]
fn golden_descriptors_import_and_normalize() {
    let files = golden();
    assert!(files.len() >= 12, "the corpus is there");
    let mut failures = vec![];
    let mut unsupported = std::collections::BTreeMap::<String, usize>::new();
    for (path, bytes) in files {
        let mut print = printer(&path);
        let mut fail = |what: String| failures.push(format!("{}: {what}", path.display()));
        let mut kernel = match descriptor::import(&bytes) {
            Ok(kernel) => kernel,
            // What we lack is an honest answer; anything else is not.
            Err(e) if e.fault == Fault::Unsupported => {
                *unsupported.entry(e.what).or_default() += 1;
                continue;
            }
            Err(e) => {
                fail(format!("{} {e}", e.loc.unwrap_or_default()));
                continue;
            }
        };
        print("import", &kernel);
        if let Err(e) = kernel_ir::verify::run(&kernel) {
            fail(format!("{e}"));
            continue;
        }
        match kernel_ir::normalize::run(&mut kernel, &mut print) {
            Ok(()) => print("normalize", &kernel),
            Err(e) if e.fault == Fault::Unsupported => *unsupported.entry(e.what).or_default() += 1,
            Err(e) => fail(format!("{} {e}", e.loc.unwrap_or_default())),
        }
    }
    for (what, n) in &unsupported {
        println!("{n:4} {what}");
    }
    assert!(
        failures.is_empty(),
        "{} failures:\n{}",
        failures.len(),
        failures.join("\n")
    );
}
