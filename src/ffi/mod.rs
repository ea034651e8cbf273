//! The XLA FFI handlers: the only room that knows XLA or cxx.
//!
//! `ffi/shim.cc` decodes XLA's call frames and calls [`bridge`]; everything here forwards to [`crate::runtime`]. No
//! panic crosses: each entry contains it and answers with a status, whose text XLA shows to the user.
//!
//! | stage | CPU | CUDA |
//! |---|---|---|
//! | Instantiate | compiles from the attributes (usually a cache hit) | same; the assembler starts in the background |
//! | Initialize | never called | loads the module on the device; later an atomic load |
//! | Execute | runs the emulator on the host buffers | gathers pointers, fills tensor maps, launches |
mod bridge;
mod handlers;

pub use handlers::{Kernel, smalt_xla_handler};
