//! File tests: a kernel and what is expected of it in one file.
//!
//! The header is `// test: kind, …` and further `// …` lines, up to an empty line. Kinds of `tests/filetests/ptx/*.ptx`:
//!
//! | kind | checks |
//! |---|---|
//! | `print` | parsing and printing gives the text back |
//! | `verify` | the flat verifier finds exactly the header's `// error: rule: place: message` lines (none: it is sound) |
//! | `ptxas` | the assembler takes it without a warning (skipped, and said so, where there is none) |
//! | `run` | executed in the emulator and on a GPU it gives what the header expects: `tests/filetests/run.py`, which Python runs |
//!
//! `SMALT_BLESS=1` writes what was found into the files.
use arrayvec::ArrayVec;
use smalt::ptx::inst::ROWS;
use smalt::ptx::launch::{EntryParam, TensorMapElement, TensorMapSpec, TensorMapSwizzle};
use smalt::ptx::{parse, print, verify_flat};
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

struct FileTest {
    path: PathBuf,
    kinds: Vec<String>,
    /// The header's lines but for the expectations.
    header: Vec<String>,
    errors: Vec<String>,
    body: String,
}

fn read(path: PathBuf) -> FileTest {
    let text = std::fs::read_to_string(&path).expect("a file test is readable");
    let (head, body) = text
        .split_once("\n\n")
        .unwrap_or_else(|| panic!("{}: no header", path.display()));
    let mut test = FileTest {
        path,
        kinds: vec![],
        header: vec![],
        errors: vec![],
        body: body.to_string(),
    };
    for line in head.lines() {
        if let Some(kinds) = line.strip_prefix("// test:") {
            test.kinds = kinds.split(',').map(|k| k.trim().to_string()).collect();
        }
        match line.strip_prefix("// error: ") {
            Some(error) => test.errors.push(error.to_string()),
            None => test.header.push(line.to_string()),
        }
    }
    assert!(!test.kinds.is_empty(), "{}: no `// test:` line", test.path.display());
    test
}

impl FileTest {
    /// What the file would be if this were expected.
    fn text(&self, errors: &[String], body: &str) -> String {
        let mut out = String::new();
        for line in &self.header {
            let _ = writeln!(out, "{line}");
        }
        for error in errors {
            let _ = writeln!(out, "// error: {error}");
        }
        let _ = write!(out, "\n{body}");
        out
    }

    /// The body, with a launch where the text alone does not make one: what tensor maps map does not matter here.
    fn with_launch(&self) -> Result<String, String> {
        let is_map: Vec<bool> = self
            .body
            .lines()
            .filter(|l| l.trim_start().starts_with(".param "))
            .map(|l| l.contains(".align 64"))
            .collect();
        if self.body.starts_with("// smalt.launch") || !is_map.contains(&true) {
            return Ok(self.body.clone());
        }
        let pointers = self.body.replace(".align 64 .b8", ".b64");
        let mut launch = parse::parse(&pointers).map_err(|e| e.to_string())?.launch;
        for (param, _) in launch.params.iter_mut().zip(is_map).filter(|(_, is_map)| *is_map) {
            *param = EntryParam::TensorMap(TensorMapSpec {
                buffer: 0,
                byte_offset: 0,
                element: TensorMapElement::U8,
                dims: [16].into_iter().collect(),
                strides: ArrayVec::new(),
                box_dims: [16].into_iter().collect(),
                swizzle: TensorMapSwizzle::None,
            });
        }
        let json = serde_json::to_string(&launch).map_err(|e| e.to_string())?;
        Ok(format!("// smalt.launch {json}\n{}", self.body))
    }

    /// `Err`: what is wrong.
    fn run(&self, ptxas: Option<&Path>) -> Result<(), String> {
        let flat = parse::parse(&self.with_launch()?).map_err(|e| e.to_string())?;
        let mut found = (self.errors.clone(), self.body.clone());
        for kind in &self.kinds {
            match kind.as_str() {
                "print" => {
                    found.1 = if self.body.starts_with("// smalt.launch") {
                        print::print_with_launch(&flat).map_err(|e| e.to_string())?
                    } else {
                        print::print(&flat)
                    };
                }
                "verify" => found.0 = verify_flat::run(&flat).iter().map(|v| v.to_string()).collect(),
                "ptxas" => {
                    if let Some(ptxas) = ptxas {
                        assemble(ptxas, &flat.target, &print::print(&flat))?;
                    }
                }
                "run" => {}
                other => return Err(format!("unknown kind `{other}`")),
            }
        }
        if found == (self.errors.clone(), self.body.clone()) {
            return Ok(());
        }
        let expected = self.text(&found.0, &found.1);
        if std::env::var_os("SMALT_BLESS").is_some() {
            std::fs::write(&self.path, expected).map_err(|e| e.to_string())?;
            return Ok(());
        }
        Err(format!("differs (SMALT_BLESS=1 accepts it); now it is:\n{expected}"))
    }
}

fn assemble(ptxas: &Path, target: &str, ptx: &str) -> Result<(), String> {
    let dir = tempfile::tempdir().map_err(|e| e.to_string())?;
    let file = dir.path().join("kernel.ptx");
    std::fs::write(&file, ptx).map_err(|e| e.to_string())?;
    let out = Command::new(ptxas)
        .arg(format!("-arch={target}"))
        .arg("-o")
        .arg(dir.path().join("kernel.cubin"))
        .arg(&file)
        .output()
        .map_err(|e| e.to_string())?;
    let log = String::from_utf8_lossy(&out.stderr).to_string() + &String::from_utf8_lossy(&out.stdout);
    if out.status.success() && log.trim().is_empty() {
        Ok(())
    } else {
        Err(format!("ptxas: {log}"))
    }
}

/// `SMALT_PTXAS`, the one of a Python environment that `VIRTUAL_ENV` names, or the path's.
fn find_ptxas() -> Option<PathBuf> {
    let named = std::env::var_os("SMALT_PTXAS").map(PathBuf::from);
    let in_venv = std::env::var_os("VIRTUAL_ENV").and_then(|venv| {
        let python = std::fs::read_dir(Path::new(&venv).join("lib"))
            .ok()?
            .flatten()
            .next()?
            .path();
        Some(python.join("site-packages/nvidia/cu13/bin/ptxas"))
    });
    let found = [named, in_venv, Some("ptxas".into())].into_iter().flatten();
    found.into_iter().find(|p| {
        Command::new(p)
            .arg("--version")
            .output()
            .is_ok_and(|o| o.status.success())
    })
}

fn files() -> Vec<PathBuf> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/filetests/ptx");
    let mut paths: Vec<PathBuf> = std::fs::read_dir(dir)
        .expect("the directory of file tests")
        .map(|entry| entry.expect("readable").path())
        .filter(|p| p.extension().is_some_and(|e| e == "ptx"))
        .collect();
    paths.sort();
    assert!(!paths.is_empty());
    paths
}

#[test]
fn ptx() {
    let paths = files();
    let ptxas = find_ptxas();
    let mut failures = String::new();
    let mut skipped = 0;
    for path in &paths {
        let test = read(path.clone());
        skipped += usize::from(ptxas.is_none() && test.kinds.iter().any(|k| k == "ptxas"));
        if let Err(why) = test.run(ptxas.as_deref()) {
            let _ = writeln!(failures, "{}: {why}", path.display());
        }
    }
    if skipped > 0 {
        eprintln!("SKIPPED: {skipped} file tests were not assembled: no ptxas; set SMALT_PTXAS");
    }
    assert!(failures.is_empty(), "{failures}");
}

/// Every rule of the flat verifier has a file test that breaks it, and no other rule.
#[test]
fn every_rule_of_the_flat_verifier_has_its_test() {
    let source = include_str!("../src/ptx/verify_flat.rs");
    let rules: Vec<&str> = source
        .lines()
        .filter_map(|l| l.strip_prefix("//! | `")?.split_once('`').map(|(rule, _)| rule))
        .collect();
    assert!(rules.len() > 10);
    for rule in rules {
        let path = format!("{}/tests/filetests/ptx/verify_{rule}.ptx", env!("CARGO_MANIFEST_DIR"));
        let test = read(path.into());
        assert!(!test.errors.is_empty(), "{rule}");
        for error in &test.errors {
            assert!(error.starts_with(&format!("{rule}: ")), "{rule}: {error}");
        }
    }
}

/// Every row of the instruction table is executed by some file of kind `run`, but for those with nothing to show.
#[test]
fn files_that_run_cover_the_table() {
    // What is not read is not emulated.
    const NOTHING_TO_SHOW: [&str; 2] = ["Trap", "Unchecked"];
    let mut seen = vec![false; ROWS.len()];
    for path in files() {
        let test = read(path);
        if test.kinds.iter().any(|k| k == "run") {
            let flat = parse::parse(&test.with_launch().expect("a launch")).expect("sound");
            for inst in flat.blocks.iter().flat_map(|b| &b.insts) {
                seen[inst.inst.row()] = true;
            }
        }
    }
    let missing: Vec<&str> = ROWS
        .iter()
        .zip(seen)
        .filter(|(row, seen)| !seen && !NOTHING_TO_SHOW.contains(&row.name))
        .map(|(row, _)| row.name)
        .collect();
    assert!(missing.is_empty(), "{missing:?}");
}
