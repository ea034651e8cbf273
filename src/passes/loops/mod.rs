//! What moves over the borders of loops' iterations: a tile's end into the next tile, a step's beginning into the step before, loads of inputs
//! out of loops; and the analyses of barriers that allow it.
pub mod defer_drains;
pub mod defer_epilogue;
pub mod defer_stores;
pub mod hoist_inputs;
pub mod rotate_loops;
mod sink;
