//! File tests: a kernel as text, passes, and what they make of it, in one file of `tests/filetests/passes`.
//!
//! The header is `// test: kind, …`, and lines that say what it is about, up to an empty line. The kernel follows, then a line
//! `// becomes`, and what comes out; without that line it may be anything that the kinds allow. A kind is a pass by its name, or
//!
//! | kind | |
//! |---|---|
//! | `normalize` | all passes |
//! | `interpret` | before and after it the kernel computes the same, of several inputs |
//! | `refused` | what comes out is the error |
//!
//! `SMALT_BLESS=1` writes what comes out into the files.
use crate::differential::{Kept, keeps};
use smalt::kernel_ir::{Kernel, parse, verify};
use smalt::passes;
use std::path::{Path, PathBuf};

const BECOMES: &str = "\n// becomes\n";

fn files() -> Vec<PathBuf> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/filetests/passes");
    let files = std::fs::read_dir(dir).expect("the directory of file tests");
    let mut paths: Vec<PathBuf> = files.map(|f| f.expect("readable").path()).collect();
    paths.sort();
    paths
}

fn run_pass(kernel: &mut Kernel, kind: &str) -> Result<(), String> {
    if kind == "normalize" {
        return passes::run(kernel, &mut |_, _| {}).map_err(|e| e.to_string());
    }
    let pass = passes::all().find(|(name, _)| *name == kind);
    let (_, pass) = pass.ok_or_else(|| format!("there is no pass `{kind}`"))?;
    pass(kernel).map_err(|e| e.to_string())?;
    verify::run(kernel).map_err(|e| e.to_string())
}

/// What comes out of a kernel's text.
fn outcome(kinds: &[&str], text: &str) -> Result<String, String> {
    let mut kernel = parse::parse(text).map_err(|e| e.to_string())?;
    verify::run(&kernel).map_err(|e| e.to_string())?;
    let before = kernel.clone();
    for kind in kinds.iter().filter(|kind| !["interpret", "refused"].contains(kind)) {
        run_pass(&mut kernel, kind)?;
    }
    if kinds.contains(&"interpret") {
        match keeps(&before, &kernel) {
            Kept::Same => {}
            Kept::Differs(why) => return Err(format!("it computes something else: {why}\n{kernel}")),
        }
    }
    Ok(kernel.to_string())
}

fn run(path: &Path) -> Result<(), String> {
    let text = std::fs::read_to_string(path).map_err(|e| e.to_string())?;
    let (head, body) = text.split_once("\n\n").ok_or("no header")?;
    let kinds = head
        .lines()
        .find_map(|l| l.strip_prefix("// test: "))
        .ok_or("no `// test:` line")?;
    let kinds: Vec<&str> = kinds.split(", ").collect();
    let (input, expected) = match body.split_once(BECOMES) {
        Some((input, expected)) => (input, Some(expected)),
        None => (body, None),
    };
    let found = match (outcome(&kinds, input), kinds.contains(&"refused")) {
        (Ok(text), false) => text,
        (Err(why), true) => format!("{why}\n"),
        (Ok(text), true) => return Err(format!("it is not refused:\n{text}")),
        (Err(why), false) => return Err(why),
    };
    let bless = std::env::var_os("SMALT_BLESS").is_some();
    if expected == Some(&*found) || expected.is_none() && !bless {
        return Ok(());
    }
    if bless {
        let whole = format!("{head}\n\n{}\n{BECOMES}{found}", input.trim_end());
        return std::fs::write(path, whole).map_err(|e| e.to_string());
    }
    Err(format!("differs (SMALT_BLESS=1 accepts it); now it is:\n{found}"))
}

#[test]
fn files_become_what_they_say() {
    let paths = files();
    assert!(!paths.is_empty());
    let failures = paths
        .iter()
        .filter_map(|path| Some(format!("{}: {}", path.display(), run(path).err()?)));
    let failures: Vec<String> = failures.collect();
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}
