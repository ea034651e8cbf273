//! TODO
pub mod arith;
