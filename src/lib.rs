//! smalt: a Pallas:Mosaic-GPU backend.
//!
//! A kernel travels `descriptor` → `kernel_ir` → `passes` → `layout` → `plan` → `lower` → `ptx`, and from there to a GPU (`assemble`,
//! `cuda`) or through the CPU (`emulate`). `runtime` strings the rooms together; `capi` and `ffi` are its doors.
//! `docs/ARCHITECTURE.md` has the map.
#![deny(unsafe_op_in_unsafe_fn)]
pub mod assemble;
pub mod capi;
pub mod cuda;
pub mod descriptor;
pub mod dtype;
pub mod emulate;
pub mod error;
#[cfg(feature = "xla-ffi")]
pub mod ffi;
pub mod inline;
pub mod kernel_ir;
pub mod layout;
mod lock;
pub mod lower;
mod panics;
pub mod passes;
pub mod plan;
pub mod ptx;
pub mod runtime;
pub mod target;
