//! Text that is printed, read, and printed again is the same.
use smalt::descriptor;
use smalt::kernel_ir::{Kernel, ROWS, parse};
use smalt::passes;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// The committed descriptors, in a fixed order.
pub fn golden() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corpus/golden");
    let versions = std::fs::read_dir(root).expect("tests/corpus/golden is there");
    let mut files: Vec<PathBuf> = versions
        .flat_map(|dir| std::fs::read_dir(dir.expect("readable").path()).expect("readable"))
        .map(|file| file.expect("readable").path())
        .filter(|path| path.extension().is_some_and(|e| e == "pb"))
        .collect();
    files.sort();
    files
}

/// What is wrong with reading a text and printing what was read.
fn differs(text: &str) -> Option<String> {
    let read = match parse::parse(text) {
        Ok(read) => read.to_string(),
        Err(e) => return Some(format!("{e}\n{}", text.lines().nth(e.line - 1).unwrap_or_default())),
    };
    let at = text.lines().zip(read.lines()).find(|(a, b)| a != b);
    (read != text).then(|| at.map_or("lines are missing".into(), |(a, b)| format!("- {a}\n+ {b}")))
}

/// Ops by the names of their variants.
fn variants(kernel: &Kernel, into: &mut BTreeSet<String>) {
    kernel.for_each_op(&mut |op| {
        let text = format!("{:?}", kernel.ops[op].kind);
        let end = text.find(|c: char| !c.is_alphanumeric()).unwrap_or(text.len());
        into.insert(text[..end].to_string());
    });
}

/// What no kernel of the corpus has.
const MORE: &str = include_str!("more.txt");

#[test]
fn kernels_and_ops_are_read_as_they_print() {
    let mut wrong = vec![];
    let mut read = 0;
    let mut seen = BTreeSet::new();
    if let Some(why) = differs(MORE) {
        panic!("more.txt:{why}");
    }
    variants(&parse::parse(MORE).expect("read above"), &mut seen);
    for path in golden() {
        let bytes = std::fs::read(&path).expect("readable");
        let Ok(mut kernel) = descriptor::import(&bytes) else {
            continue;
        };
        let mut last = String::new();
        let mut look = |pass: &str, kernel: &Kernel| {
            let text = kernel.to_string();
            if text == last {
                return;
            }
            read += 1;
            if let Some(why) = differs(&text) {
                wrong.push(format!("{} after {pass}: {why}", path.display()));
            }
            last = text;
        };
        look("import", &kernel);
        variants(&kernel, &mut seen);
        // What is not supported is refused somewhere in between.
        let _ = passes::run(&mut kernel, &mut |pass, made| {
            if let Some(kernel) = made {
                look(pass, kernel);
                variants(kernel, &mut seen);
            }
        });
    }
    println!("{read} kernels");
    assert!(read > 1000, "the corpus is there");
    let unread: Vec<_> = ROWS.iter().map(|r| r.variant).filter(|v| !seen.contains(*v)).collect();
    assert!(unread.is_empty(), "no text has {unread:?}: add them to more.txt");
    assert!(
        wrong.is_empty(),
        "{} differ\n{}",
        wrong.len(),
        wrong[..wrong.len().min(10)].join("\n")
    );
}
