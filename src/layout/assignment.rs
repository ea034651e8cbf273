//! What layout inference decides.
use super::register_layout::RegisterLayout;
use crate::kernel_ir::{Alloc, Op, SmemTransforms, Value};
use cranelift_entity::SecondaryMap;
use rustc_hash::FxHashMap;

/// Every choice of layout in a kernel.
#[derive(Clone, Debug, Default)]
pub struct Assignment {
    /// Of every array and accumulator.
    pub values: SecondaryMap<Value, Option<RegisterLayout>>,
    /// Of every SMEM allocation.
    pub smem: SecondaryMap<Alloc, Option<SmemTransforms>>,
    /// Operands that an op needs in another layout than their value has: (op, position among the op's values in
    /// `for_each_value` order) → the layout that the op works in.
    pub casts: FxHashMap<(Op, u32), RegisterLayout>,
    /// Why each choice was made, in the order of the choices.
    pub report: Vec<Reason>,
}

/// A choice and its reason.
#[derive(Clone, Debug)]
pub struct Reason {
    pub subject: Subject,
    pub choice: String,
    pub why: &'static str,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Subject {
    Value(Value),
    Alloc(Alloc),
}
