//! Lowered kernels, executed by the emulator and held against plain Rust.
mod harness;
mod legality;
mod loops;
mod math;
mod words;
