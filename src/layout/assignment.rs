//! What layout inference decides.
use super::register_layout::RegisterLayout;
use super::tiled;
use crate::kernel_ir::{Alloc, Op, SmemTransforms, Value};
use cranelift_entity::SecondaryMap;
use rustc_hash::FxHashMap;
use std::fmt;

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
    pub choice: Choice,
    pub why: &'static str,
}

/// What was chosen. Prints as reports show it; nothing is printed before somebody asks.
#[derive(Clone, Debug)]
pub enum Choice {
    Registers(RegisterLayout),
    Smem(SmemTransforms),
}

impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Choice::Registers(layout) => match tiled::name_of(layout) {
                Some(name) => write!(f, "{name}: {layout}"),
                None => write!(f, "{layout}"),
            },
            Choice::Smem(t) if t.tiling.is_empty() && t.swizzle_bytes == 0 => f.write_str("row-major"),
            Choice::Smem(t) => write!(f, "tiling {:?}, swizzle {} bytes", t.tiling.as_slice(), t.swizzle_bytes),
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Subject {
    Value(Value),
    Alloc(Alloc),
}
