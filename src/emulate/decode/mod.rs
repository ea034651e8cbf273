//! Flat form → micro-ops, row by row of the instruction table.
//!
//! * [`decoder`] goes through the blocks, and has what a program is made of: code, constants, lists, side tables.
//! * [`rows`] expands the table. It resolves the fields of an instruction (registers and constants become rows, modifiers and numbers are
//!   themselves), and runs what the row says: `computes`, or the method that has the row's name.
//! * Those methods are in the other files, a family each. Here are only methods, and what they alone need: what micro-ops do when they run is
//!   in the files of `emulate/` beside this folder.
mod atomics;
mod convert;
mod copies;
mod decoder;
mod floats;
mod integers;
mod memory;
mod moves;
mod predicates;
mod products;
mod rows;
mod synchronise;
mod tensor_memory;
mod warps;

use super::check::Hooks;

pub use decoder::run;
