//! What layout inference decides.
use super::register_layout::RegisterLayout;
use super::relayout::RelayoutPlan;
use super::tiled;
use crate::error::{Error, Result};
use crate::kernel_ir::{Alloc, Op, SmemTransforms, Value};
use cranelift_entity::SecondaryMap;
use std::fmt;

/// Every choice of layout in a kernel.
#[derive(Clone, Debug, Default)]
pub struct Assignment {
    /// Of every array and accumulator.
    pub values: SecondaryMap<Value, Option<RegisterLayout>>,
    /// Of every SMEM allocation.
    pub smem: SecondaryMap<Alloc, Option<SmemTransforms>>,
    /// The `relayout` ops that inference inserted, and the names of the ops that need them.
    pub relayouts: Vec<(Op, &'static str)>,
    /// Why each choice was made, in the order of the choices.
    pub report: Vec<Reason>,
}

impl Assignment {
    /// The layout of an array or accumulator.
    pub fn layout(&self, v: Value) -> Result<&RegisterLayout> {
        let layout = self.values[v].as_ref();
        layout.ok_or_else(|| Error::internal(format!("{v} has no layout")))
    }
}

/// A choice and its reason.
#[derive(Clone, Debug)]
pub struct Reason {
    pub subject: Subject,
    pub choice: Choice,
    pub why: &'static str,
}

/// What was chosen. Prints as reports show it; no text is made before that.
#[derive(Clone, Debug)]
pub enum Choice {
    Registers(RegisterLayout),
    Smem(SmemTransforms),
    /// A change of layout, and what it takes.
    Relayout {
        from: RegisterLayout,
        to: RegisterLayout,
        plan: Option<Box<RelayoutPlan>>,
    },
}

impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Choice::Registers(layout) => match tiled::name_of(layout) {
                Some(name) => write!(f, "{name}: {layout}"),
                None => write!(f, "{layout}"),
            },
            Choice::Relayout { from, to, plan } => {
                let name = |l: &RegisterLayout| tiled::name_of(l).map_or_else(|| l.to_string(), str::to_owned);
                write!(f, "{} → {}: ", name(from), name(to))?;
                match plan {
                    None => f.write_str("registers are renamed, free"),
                    Some(plan) => plan.fmt(f),
                }
            }
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
