//! The emulator: executes `ptx::Flat` on the CPU, with Hopper's execution model.
//!
//! * [`decode`] turns instructions into micro-ops ([`uop`]) over rows of 32 lanes ([`row`]); [`registers`] places registers.
//! * [`machine`] schedules warps ([`warp`]); [`barrier`], [`sync`] hold what they wait on; [`diagnose`] says why all wait.
//! * [`global`] and [`shared`] are the memories; [`mem`] accesses them; [`agents`], [`bulk`], [`tma`] and [`wgmma`] act on
//!   them asynchronously, at a time that [`options`] chooses, and so does [`tcgen05`] on [`tensor_memory`]; [`mma`] is a warp's own. [`tensor_maps`] finds tensor maps, in memory as [`map_bytes`] has them.
//! * [`check`] is told what happens, and says what nothing orders. [`overwrite`] says what stores change, [`grid`] which cluster wrote what.
//! * [`printer`] gives prints their room; [`profile`] makes marks.
//! * [`trace`] records what happened when, where somebody asks.
//! * `arith` has the arithmetic, bit for bit.
//!
//! Architecture Invariant: this room knows no CUDA and nothing of how kernels are made; `ptx` is all that it imports.
mod agents;
pub mod arith;
mod barrier;
mod bulk;
mod cache_policy;
mod carry;
pub mod check;
mod control;
mod copies;
mod decode;
mod diagnose;
mod float_environment;
mod floats;
mod global;
mod grid;
mod index;
mod launch;
mod machine;
mod map_bytes;
mod mem;
mod mma;
mod ops;
mod options;
mod overwrite;
mod printer;
mod profile;
mod program;
mod registers;
mod residency;
mod rng;
mod rounded;
mod row;
mod shared;
mod sparse;
mod sync;
mod tcgen05;
mod tensor_maps;
mod tensor_memory;
pub mod testing;
#[cfg(test)]
mod tests;
mod tma;
pub mod trace;
mod uop;
mod warp;
mod wgmma;

pub use check::Checker;
pub use global::{Contents, HostBuffer, buffer_address};
pub use launch::{run, run_on};
pub use map_bytes::encode_map_template;
pub use options::{AgentOrder, Check, Names, Noted, Options, Position, Report, SmemName, Undefined, Unwatched, Watch};
pub use program::Program;
pub use shared::CtaSlot;
pub use uop::Tier;
pub use warp::Warp;
