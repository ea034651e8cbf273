//! Lowering: a normalised kernel and its layouts become `ptx::Ssa` and a launch specification.
pub mod allocate;
pub mod insert_barriers;
