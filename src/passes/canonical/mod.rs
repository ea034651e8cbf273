//! Canonical forms, and checks of a kernel as a whole.
pub mod adapt_to_machine;
pub mod check_inputs;
pub mod check_registers;
pub mod compose_views;
pub mod eliminate_dead_code;
pub mod hoist_invariants;
pub mod move_transforms;
pub mod narrow_integers;
pub mod own_warp_scratch;
pub mod promote_registers;
pub mod recognize_loops;
mod register_parts;
pub mod simplify;
pub mod split_roles;
pub mod thread_phases;
mod thread_state;
