//! Generates the descriptor's types from `proto/` and, with the feature `xla-ffi`, compiles the C++ shim in `ffi/`.
use std::path::{Path, PathBuf};
use std::process::Command;

const HEADERS: &str = "SMALT_XLA_FFI_INCLUDE_DIR";

fn main() {
    println!("cargo:rerun-if-changed=proto/descriptor.proto");
    let set = protox::compile(["proto/descriptor.proto"], ["proto"]).expect("proto/descriptor.proto compiles");
    prost_build::Config::new()
        .compile_fds(set)
        .expect("prost generates the descriptor types");
    if std::env::var_os("CARGO_FEATURE_XLA_FFI").is_some() {
        compile_shim(&xla_ffi_headers());
    }
}

fn compile_shim(headers: &Path) {
    for file in ["src/ffi/bridge.rs", "ffi/shim.cc", "ffi/shim.h"] {
        println!("cargo:rerun-if-changed={file}");
    }
    cxx_build::CFG.include_prefix = "smalt";
    cxx_build::bridge("src/ffi/bridge.rs")
        .file("ffi/shim.cc")
        .std("c++17")
        // Their headers are not ours to warn about, and an assertion in them would abort the user's Python.
        .flag("-isystem")
        .flag(headers.to_str().expect("the path of the XLA FFI headers is UTF-8"))
        .define("NDEBUG", None)
        .flag("-fvisibility=hidden")
        .opt_level(2)
        .debug(false)
        .compile("smalt_ffi");
}

/// The folder that holds `xla/ffi/api/ffi.h`: from the environment, else from a Python that has jaxlib.
///
/// The binary runs on this jaxlib and on newer ones, never on older ones: releases are built against the oldest one
/// that smalt supports.
fn xla_ffi_headers() -> PathBuf {
    println!("cargo:rerun-if-env-changed={HEADERS}");
    println!("cargo:rerun-if-env-changed=SMALT_BUILD_PYTHON");
    if let Some(dir) = std::env::var_os(HEADERS) {
        let dir = PathBuf::from(dir);
        assert!(
            has_headers(&dir),
            "{HEADERS}={} holds no xla/ffi/api/ffi.h",
            dir.display()
        );
        return dir;
    }
    // Where `make` has put the right ones (scripts/xla_headers.py).
    let fetched = PathBuf::from("build/jaxlib-0.10.2/jaxlib/include");
    if has_headers(&fetched) {
        return std::path::absolute(fetched).expect("the working directory exists");
    }
    let mut pythons = Vec::new();
    if let Some(python) = std::env::var_os("SMALT_BUILD_PYTHON") {
        pythons.push(PathBuf::from(python));
    }
    pythons.push(PathBuf::from(".venv/bin/python"));
    pythons.push(PathBuf::from("python3"));
    for python in &pythons {
        if let Some(dir) = headers_of(python) {
            return dir;
        }
    }
    panic!(
        "the XLA FFI headers were not found. They come with jaxlib: run `make build`, which makes a virtual \
         environment with the right one, or set {HEADERS} to the output of \
         `python -c 'import jaxlib, os; print(os.path.join(os.path.dirname(jaxlib.__file__), \"include\"))'` for the \
         oldest jaxlib that the library shall run with (constraints/jax.txt). Without XLA: --no-default-features. \
         Asked: {pythons:?}"
    );
}

fn headers_of(python: &Path) -> Option<PathBuf> {
    let script = "import importlib.util, os; s = importlib.util.find_spec('jaxlib'); \
                  print(os.path.join(list(s.submodule_search_locations)[0], 'include'))";
    let output = Command::new(python).args(["-c", script]).output().ok()?;
    let dir = PathBuf::from(String::from_utf8(output.stdout).ok()?.trim());
    (output.status.success() && has_headers(&dir)).then_some(dir)
}

fn has_headers(dir: &Path) -> bool {
    dir.join("xla/ffi/api/ffi.h").is_file()
}
