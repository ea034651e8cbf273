//! The compiler on golden descriptors that were damaged, or whose numbers are extreme.
mod damaged;
mod extremes;
mod rounds;
mod tree;

use std::path::PathBuf;

/// SplitMix64.
struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
    fn below(&mut self, n: usize) -> usize {
        (self.next() % n.max(1) as u64) as usize
    }
    fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }
}

/// A number in the environment.
fn environment(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| {
        text.parse().unwrap_or_else(|_| panic!("{name}={text} is no number"))
    })
}

/// A file or folder of the sources, by its path from their root: `SMALT_SOURCE`, else where this was built, else here.
fn source(path: &str) -> PathBuf {
    let built = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    let root = match std::env::var_os("SMALT_SOURCE") {
        Some(root) => root.into(),
        None if built.exists() => built,
        None => ".".into(),
    };
    root.join(path)
}

/// A golden descriptor.
struct Golden {
    name: String,
    bytes: Vec<u8>,
    tree: Vec<tree::Field>,
}

/// All of them, in the order of their paths.
fn goldens() -> Vec<Golden> {
    let schema = tree::Schema::read(&source("proto/descriptor.proto"));
    let root = source("tests/corpus/golden");
    let mut files: Vec<PathBuf> = std::fs::read_dir(&root)
        .unwrap_or_else(|e| panic!("{}: {e}; SMALT_SOURCE names the root of the sources", root.display()))
        .flat_map(|dir| std::fs::read_dir(dir.unwrap().path()).into_iter().flatten())
        .map(|file| file.unwrap().path())
        .filter(|path| path.extension().is_some_and(|e| e == "pb"))
        .collect();
    files.sort();
    let golden = |file: &PathBuf| {
        let bytes = std::fs::read(file).unwrap();
        let tree = schema.parse("KernelDescriptor", &bytes);
        assert_eq!(tree::write(&tree), bytes, "what is read is written");
        let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
        Golden { name, bytes, tree }
    };
    files.iter().map(golden).collect()
}
