//! `ptx::Ssa`: per-thread values in structured regions. Lowering builds it, the optimiser rewrites it, `out_of_ssa`
//! flattens it.
use super::inst::Inst;
use super::operand::Class;
use crate::error::Loc;
use cranelift_entity::{PrimaryMap, entity_impl};

/// A per-thread value, defined once.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Value(u32);
entity_impl!(Value, "%v");

impl Value {
    /// Stands for "a fresh value of the slot's class" in instructions handed to [`super::build::Builder`].
    pub const NEW: Value = Value(u32::MAX);
}

/// A list of ops with parameters and results; prints as `blk2`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Region(u32);
entity_impl!(Region, "blk");

/// What is known about the equality of a value across threads.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Uniform {
    /// May differ between lanes.
    Thread,
    /// Equal in all lanes of a warp.
    Warp,
    /// Equal in all threads of a warpgroup.
    Warpgroup,
    /// Equal in all threads of the CTA.
    Cta,
}

#[derive(Clone, Debug)]
pub struct ValueData {
    pub class: Class,
    pub uniform: Uniform,
}

#[derive(Clone, Debug)]
pub struct RegionData {
    pub params: Vec<Value>,
    pub ops: Vec<Op>,
    /// What the region yields to the op that owns it.
    pub results: Vec<Value>,
}

#[derive(Clone, Debug)]
pub struct Op {
    pub kind: OpKind,
    pub loc: Loc,
    /// Of a load or store: the memory that it touches. Says nothing of other instructions.
    pub memory: MemTag,
    /// Of floating-point arithmetic: whether a product may be fused with the sum that it goes into.
    pub rounding: Rounding,
}

/// How results are rounded.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Rounding {
    /// As the kernel's `fp_contract` says.
    #[default]
    ByTheKernel,
    /// As the instruction says: users wrote it.
    AsWritten,
}

/// Which memory a load or store touches, besides its space: those of different tags never touch the same bytes, unless one
/// is [`MemTag::ANY`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
pub struct MemTag(u32);

impl MemTag {
    /// Any memory of the space.
    pub const ANY: MemTag = MemTag(0);

    /// An allocation of shared memory that shares no byte with another, by its offset in the block's.
    pub const fn shared(offset: u32) -> MemTag {
        MemTag(offset + 1)
    }
    /// A buffer of the launch; an operand that is also a result is one buffer.
    pub const fn buffer(number: u32) -> MemTag {
        MemTag(number + 1)
    }
}

#[derive(Clone, Debug)]
pub enum OpKind {
    /// One instruction, executed where `guard` holds (`true` in the pair: negated). A guarded instruction defines
    /// nothing, or what it defines is used only under the same guard.
    Inst {
        guard: Option<(Value, Negated)>,
        inst: Inst<Value>,
    },
    /// Regions have no parameters; both yield as many values as there are results.
    If {
        cond: Value,
        then: Region,
        otherwise: Region,
        results: Vec<Value>,
    },
    /// `while`: `cond`'s parameters start as `inits`; it yields a predicate first, then the values handed to `body`
    /// (its parameters), or, when the predicate is false, to `results`. `body` yields `cond`'s next parameters.
    Loop {
        inits: Vec<Value>,
        cond: Region,
        body: Region,
        results: Vec<Value>,
    },
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Negated {
    No,
    Yes,
}

/// A kernel body in SSA form.
#[derive(Clone, Debug, Default)]
pub struct Ssa {
    pub values: PrimaryMap<Value, ValueData>,
    pub regions: PrimaryMap<Region, RegionData>,
    /// The outermost region: no parameters, no results.
    pub body: Option<Region>,
}

impl Ssa {
    pub fn value(&mut self, class: Class, uniform: Uniform) -> Value {
        self.values.push(ValueData { class, uniform })
    }
    pub fn region(&mut self) -> Region {
        self.regions.push(RegionData {
            params: vec![],
            ops: vec![],
            results: vec![],
        })
    }
}
