//! PTX in two forms.
//!
//! * [`table`] lists the instructions; [`inst`] is what it yields.
//! * [`ssa`] is what lowering builds, with [`build`]: per-thread values in structured regions.
//! * [`flat`] is what is printed and executed: virtual registers, blocks, predicates.
//! * [`launch`] is what a launch needs besides the code.
pub mod asynchronous;
pub mod build;
pub mod contract;
mod defer_sums;
mod divide;
pub mod eliminate_dead_code;
mod equal_conditionals;
pub mod evaluate;
mod fixpoint;
pub mod flat;
pub mod flow;
#[cfg(test)]
mod generate;
pub mod hoist;
pub mod infer_uniformity;
pub mod inst;
pub mod integer;
pub mod interleave_elements;
pub mod keep_operands;
pub mod launch;
pub mod least_live;
pub mod legal;
pub mod merge_equal;
pub mod modifier;
pub mod operand;
pub mod optimize;
pub mod out_of_ssa;
pub mod parse;
mod permute;
pub mod print;
mod print_ssa;
pub mod requirements;
pub mod settle_operands;
pub mod simplify;
pub mod ssa;
pub mod table;
#[cfg(test)]
pub mod testing;
pub mod uniformity;
pub mod verify;
pub mod verify_flat;
pub mod verify_ssa;

pub use build::Builder;
pub use flat::Flat;
pub use inst::{Effects, Inst};
pub use ssa::Ssa;
