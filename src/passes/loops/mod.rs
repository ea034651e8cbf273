//! What moves over the borders of loops' iterations: a tile's end into the next tile, a step's beginning into the step before, loads of inputs
//! out of loops; and what is known of barriers, by which it may.
pub mod defer_drains;
pub mod defer_epilogue;
pub mod defer_stores;
pub mod hoist_inputs;
mod sink;
pub mod turn_loops;
