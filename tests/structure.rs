//! The borders between rooms, read from the sources. `docs/ARCHITECTURE.md` says why each is there.
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Rooms and what they may import; `error` and `dtype` are everybody's.
const ROOMS: &[(&str, &[&str])] = &[
    ("descriptor", &["kernel_ir"]),
    ("kernel_ir", &[]),
    ("layout", &["kernel_ir"]),
    ("plan", &["kernel_ir", "layout"]),
    ("lower", &["kernel_ir", "layout", "plan", "ptx"]),
    ("ptx", &[]),
    ("assemble", &["ptx"]),
    ("emulate", &["ptx"]),
    ("cuda", &[]),
    (
        "runtime",
        &[
            "descriptor",
            "kernel_ir",
            "layout",
            "plan",
            "lower",
            "ptx",
            "assemble",
            "emulate",
            "cuda",
        ],
    ),
    ("capi", &["runtime"]),
    ("ffi", &["runtime"]),
];
const SHARED: &[&str] = &["error", "dtype"];

/// Crates that only one room knows.
const PRIVATE: &[(&str, &str)] = &[("cxx::", "ffi"), ("cudarc::", "cuda"), ("prost::", "descriptor")];

/// Where `unsafe` may stand: foreign functions, and memory that belongs to the host program.
const UNSAFE: &[&str] = &[
    "cuda/",
    "ffi/",
    "capi/",
    // A foreign library.
    "assemble/nvjitlink.rs",
    // Buffers of the host program.
    "runtime/host.rs",
    "runtime/call_site.rs",
    "runtime/artifact.rs",
    // A signal handler.
    "runtime/interrupt.rs",
    // Global memory is the host's; SIMD.
    "emulate/",
];

struct Source {
    /// Relative to `src`.
    path: String,
    /// Without comments.
    code: String,
}

fn sources(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files.extend(sources(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
    files.sort();
    files
}

fn all() -> Vec<Source> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let read = |path: PathBuf| {
        let text = std::fs::read_to_string(&path).unwrap();
        let line = |line: &str| line.split("//").next().unwrap_or_default().to_owned() + "\n";
        Source {
            path: path.strip_prefix(&root).unwrap().to_str().unwrap().to_owned(),
            code: text.lines().map(line).collect(),
        }
    };
    sources(&root).into_iter().map(read).collect()
}

/// The identifiers that follow `prefix` in `code`; `prefix{a::x, b::y}` gives both.
fn after<'a>(code: &'a str, prefix: &'a str) -> impl Iterator<Item = &'a str> {
    let identifier = |text: &'a str| {
        let end = text
            .find(|c: char| !c.is_alphanumeric() && c != '_')
            .unwrap_or(text.len());
        &text[..end]
    };
    code.match_indices(prefix).flat_map(move |(at, _)| {
        let rest = &code[at + prefix.len()..];
        match rest.strip_prefix('{') {
            None => vec![identifier(rest)],
            Some(list) => {
                let mut depth = 0;
                let ends = |c: char| {
                    depth += i32::from(c == '{') - i32::from(c == '}');
                    depth < 0
                };
                let list = &list[..list.find(ends).unwrap_or(list.len())];
                list.split(',')
                    .map(|item| identifier(item.trim()))
                    .filter(|name| !name.is_empty())
                    .collect()
            }
        }
    })
}

#[test]
fn rooms_import_only_what_they_may() {
    let rooms = ROOMS.iter().map(|(room, _)| *room).collect::<BTreeSet<_>>();
    let mut wrong = Vec::new();
    for source in all() {
        let Some((room, allowed)) = ROOMS
            .iter()
            .find(|(room, _)| source.path.starts_with(&format!("{room}/")))
        else {
            assert!(!source.path.contains('/'), "a room without rules: {}", source.path);
            continue;
        };
        for name in after(&source.code, "crate::") {
            let known = rooms.contains(name) || SHARED.contains(&name);
            if known && name != *room && !SHARED.contains(&name) && !allowed.contains(&name) {
                wrong.push(format!("{}: {room} may not import {name}", source.path));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn some_crates_are_known_to_one_room_only() {
    for source in all() {
        for (name, room) in PRIVATE {
            let used = source.code.contains(name);
            assert!(
                !used || source.path.starts_with(&format!("{room}/")),
                "{} uses {name}",
                source.path
            );
        }
    }
}

#[test]
fn unsafe_stands_where_it_may() {
    let is_unsafe = |code: &str| {
        let words = code.match_indices("unsafe");
        words.into_iter().any(|(at, word)| {
            let before = code[..at].chars().next_back();
            let next = code[at + word.len()..].trim_start();
            let starts = ["{", "fn ", "impl", "extern", "("]
                .iter()
                .any(|start| next.starts_with(start));
            starts && !before.is_some_and(|c| c.is_alphanumeric() || c == '_')
        })
    };
    for source in all() {
        let may = UNSAFE.iter().any(|place| source.path.starts_with(place));
        assert!(may || !is_unsafe(&source.code), "unsafe in src/{}", source.path);
    }
}

#[test]
fn the_reader_of_imports_reads() {
    let names = |code| after(code, "crate::").collect::<Vec<_>>();
    assert_eq!(
        names("use crate::error::{Error, Loc}; crate::ptx::Flat"),
        ["error", "ptx"]
    );
    assert_eq!(
        names("use crate::{cuda::Plan, error::{A, B}, ptx};"),
        ["cuda", "error", "B", "ptx"]
    );
}

#[test]
fn every_file_is_reached_by_a_mod() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut reached = BTreeSet::from([root.join("lib.rs")]);
    let mut work = vec![root.join("lib.rs")];
    while let Some(file) = work.pop() {
        let text = std::fs::read_to_string(&file).unwrap();
        let folder = match file.file_name().and_then(|name| name.to_str()) {
            Some("lib.rs" | "mod.rs") => file.parent().unwrap().to_owned(),
            _ => file.with_extension(""),
        };
        for line in text.lines() {
            let words: Vec<&str> = line.split_whitespace().collect();
            let [.., "mod", name] = words[..] else {
                continue;
            };
            let Some(name) = name.strip_suffix(';') else { continue };
            for path in [folder.join(format!("{name}.rs")), folder.join(name).join("mod.rs")] {
                if path.exists() && reached.insert(path.clone()) {
                    work.push(path);
                }
            }
        }
    }
    let orphans: Vec<PathBuf> = sources(&root)
        .into_iter()
        .filter(|file| !reached.contains(file))
        .collect();
    assert!(orphans.is_empty(), "no `mod` names {orphans:?}");
}
