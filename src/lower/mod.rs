//! Lowering: a normalised kernel and its layouts become `ptx::Ssa` and a launch specification.
//!
//! * [`kernel::run`] is the entry: prologue, body, launch;
//! * [`cx::LowerCx`] holds what is shared: the builder, the lowered values ([`value`]), the entry's parameters;
//! * [`dispatch`] is one match over the ops, each arm a function of its family's file: `family::lower_x(cx, op, …)`.
//!
//! Lowering emits plans and decides nothing: what cannot be compiled is refused before, by types and views in `kernel_ir/legality`, by
//! layouts in `plan/`. An error here is a defect of the compiler. The program is written for one thread: every value
//! is the thread's own, and what a group agrees on (scalars, predicates of branches) is computed alike in all its threads.
pub mod atomic;
pub mod barrier;
pub mod control;
pub mod convert;
mod convert_words;
mod copy_by_threads;
pub mod cx;
pub mod debug_print;
pub mod dispatch;
pub mod dot;
pub mod elementwise;
pub mod emit;
pub mod exchange;
pub mod float;
mod give_up;
pub mod ids;
pub mod indexed;
mod inline_ptx;
pub mod integer;
pub mod kernel;
pub mod math;
pub mod memory;
pub mod misc;
mod network;
mod parked;
mod pieces;
pub mod positions;
pub mod profile;
pub mod put;
pub mod reduce;
pub mod relayout;
pub mod running;
mod running_registers;
pub mod scan;
pub mod semaphore;
pub mod shape;
pub mod sort;
mod sort_first;
mod sort_registers;
mod sort_scratch;
mod substitute;
pub mod take;
mod tensor_memory;
pub mod tma;
pub mod value;
pub mod view;
pub mod wgmma;

pub use cx::LowerCx;
pub use kernel::{Lowered, run};
