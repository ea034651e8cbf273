//! The emulator: executes `ptx::Flat` on the CPU, with Hopper's execution model.
//!
//! * [`decode`] turns instructions into micro-ops ([`uop`]) over rows of 32 lanes ([`row`]); [`registers`] places registers.
//! * [`machine`] schedules warps ([`warp`]); [`barrier`], [`sync`] hold what they wait on; [`diagnose`] says why all wait.
//! * [`global`] and [`shared`] are the memories; [`mem`] accesses them; [`agents`], [`bulk`], [`tma`] and [`wgmma`] act on
//!   them asynchronously, at a time that [`options`] chooses; [`mma`] is a warp's own. [`tensor_maps`] finds tensor maps, in memory as [`map_bytes`] has them.
//! * [`hooks`] is where a checker listens; [`causality`] is the one that does, if any, with the vector clocks of [`clock`]
//!   and the memory of [`history`], [`byte_history`] and [`map_order`]; [`communication`] is its part across clusters, with [`known`],
//!   [`words`] and [`far_history`]. [`overwrite`] says what stores change, [`grid`] which cluster wrote what.
//! * [`printer`] gives prints their room; [`profile`] makes marks.
//! * [`trace`] records what happened when, where somebody asks.
//! * `arith` has the arithmetic, bit for bit.
//!
//! Architecture Invariant: this room knows no CUDA and nothing of how kernels are made; `ptx` is all that it imports.
mod agents;
pub mod arith;
mod barrier;
mod bulk;
mod byte_history;
mod cache_policy;
mod carry;
mod causality;
pub mod clock;
mod communication;
mod control;
mod copies;
mod decode;
mod diagnose;
mod far_history;
mod float_environment;
mod floats;
mod global;
mod grid;
mod history;
pub mod hooks;
mod index;
pub mod known;
mod launch;
mod machine;
mod map_bytes;
mod map_order;
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
mod shared_words;
mod sparse;
mod sync;
mod tensor_maps;
pub mod testing;
#[cfg(test)]
mod tests;
mod tma;
pub mod trace;
mod uop;
mod warp;
mod wgmma;
mod words;

pub use causality::Causality;
pub use global::{Contents, HostBuffer, buffer_address};
pub use launch::{run, run_on};
pub use map_bytes::encode_map_template;
pub use options::{AgentOrder, Check, Names, Noted, Options, Position, Report, SmemName, Undefined, Unwatched, Watch};
pub use program::Program;
pub use shared::CtaSlot;
pub use uop::Tier;
pub use warp::Warp;
