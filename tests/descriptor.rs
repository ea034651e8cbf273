//! Descriptors → kernels.
use smalt::descriptor;
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

#[test]
fn golden_descriptors_import() {
    for (path, bytes) in golden() {
        match descriptor::import(&bytes) {
            Ok(kernel) => {
                if std::env::var_os("SMALT_TEST_PRINT").is_some() {
                    println!("{}\n{kernel}", path.display());
                }
            }
            Err(e) => println!("{}: {:?} {e}", path.display(), e.loc),
        }
    }
}
