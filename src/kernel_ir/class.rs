//! What sort of op an op is: what passes need to know of every op.
//!
//! The row of an op ([`table`](super::table)) says its class, and every `match` over a [`Class`] is exhaustive: no pass treats a new op
//! by an accidental default. A pass that knows more of some kinds takes these out (`if let`), with an answer for the others that
//! is right whatever they do. A test keeps arms for whatever op out of every `match` on [`OpKind`]. Tables that have an arm for every op
//! are few: its types ([`verify`](super::verify)), [`legality`](super::legality), the signatures of layouts, plans of accesses, lowering,
//! and the checker of order.
use super::entities::{Alloc, Axis, Region, Value};
use super::op::{AtomicOp, BinaryOp, CompareOp, Constant, Does, OpKind, UnaryOp};
use super::view::RefUse;
use smallvec::{SmallVec, smallvec};

pub(crate) use super::op::{aside_ops, pure_ops, synchronisation_ops, transfer_ops};

/// What sort of op it is: what passes need to know of every op. Who needs to know more than the class says takes
/// the kinds that it knows out of it, with an answer for the others that is right whatever they do.
#[derive(Clone, Copy, Debug)]
pub enum Class<'a> {
    /// The results depend on the operands alone and the op does nothing else: it may be removed, repeated, or moved to where its
    /// operands are defined, the executing group is the same, and it is executed only if it was before. Whether it may be executed
    /// where it was not (in front of a loop without trips, of an arm that is not taken) says [`OpKind::is_speculatable`].
    Pure(Pure<'a>),
    /// Returns its operands, and no op moves across it.
    Pinned,
    /// The user's own instructions, which may do anything.
    Instructions,
    /// Reads or writes data in memory.
    Memory,
    /// Orders accesses, waits, signals others; looks at barriers and semaphores.
    Synchronisation,
    /// Acts on tensor memory, or waits for what does. No op moves across it.
    Tensor,
    /// On accumulators, which are linear.
    Accumulator,
    Control(Control<'a>),
    /// Sets the machine up, or reports; no data and no order depends on it.
    Aside,
}

#[derive(Clone, Copy, Debug)]
pub enum Pure<'a> {
    Constant(&'a Constant),
    AxisIndex(Axis),
    Iota,
    Elementwise(Function<'a>),
    /// Element by element, but for types of different widths.
    Bitcast,
    Shape(ShapeOp<'a>),
    Reduce {
        a: Value,
        axes: &'a [u32],
    },
    /// Goes along one dimension, which every thread has whole runs of.
    Run,
    /// Passes through scratch: any thread may need what any other has.
    Exchange,
    /// A matrix product.
    Product {
        acc: Option<Value>,
        a: Value,
        b: Value,
    },
    LayoutCast,
    Relayout {
        a: Value,
    },
    /// Instructions of the user's on registers. The layout of arrays may be part of their meaning.
    Inline,
}

/// Element by element. Fields as in [`OpKind`].
#[derive(Clone, Copy, Debug)]
pub enum Function<'a> {
    Unary {
        op: UnaryOp,
        a: Value,
    },
    Binary {
        op: BinaryOp,
        a: Value,
        b: Value,
    },
    Compare {
        op: CompareOp,
        a: Value,
        b: Value,
    },
    Select {
        which: Value,
        cases: &'a [Value],
    },
    Clamp {
        lo: Value,
        x: Value,
        hi: Value,
    },
    IntegerPow {
        a: Value,
        n: i32,
    },
    Convert {
        a: Value,
    },
    /// Any other: nothing is known of what it computes.
    Other,
    MultipleOf {
        a: Value,
        divisor: u64,
    },
}

/// Gives elements another index. Fields as in [`OpKind`].
#[derive(Clone, Copy, Debug)]
pub enum ShapeOp<'a> {
    Broadcast { dims: &'a [u32] },
    Reshape,
    Transpose,
    Slice { starts: &'a [u64], strides: &'a [u64] },
    DynamicSlice { starts: &'a [Value] },
    DynamicUpdateSlice { starts: &'a [Value] },
    Concat { dim: u32 },
    Pad { low: &'a [i64], interior: &'a [i64] },
    Reverse { dims: &'a [u32] },
}

/// How regions run. Fields as in [`OpKind`].
#[derive(Clone, Copy, Debug)]
pub enum Control<'a> {
    For {
        lower: Value,
        upper: Value,
        inits: &'a [Value],
        xs: &'a [Value],
        body: Region,
    },
    While {
        inits: &'a [Value],
        cond: Region,
        body: Region,
    },
    Switch {
        selector: Value,
        arms: &'a [Region],
    },
    Scope {
        allocs: &'a [Alloc],
        collective: bool,
        body: Region,
    },
    WarpMap {
        inits: &'a [Value],
        body: Region,
    },
}

/// Where the values that are carried through an op are at the borders of a region: the first of them among its parameters, if they
/// come in as such, and among its results.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Carries {
    pub region: Region,
    pub params: Option<usize>,
    pub results: usize,
}

/// What loads, stores, swaps and atomic updates have in common: elements that the executing group moves between registers and a view.
#[derive(Clone, Copy, Debug)]
pub struct Transfer<'a> {
    pub view: &'a RefUse,
    /// Whether the elements that were there are the result.
    pub loads: bool,
    /// The elements that go there.
    pub value: Option<Value>,
    /// How they are combined with those that are there; `None`: they replace them.
    pub update: Option<AtomicOp>,
    /// Where the elements are in the view, an array for each of its dimensions; `None`: they are the view's.
    pub at: Option<&'a [Value]>,
    /// What elements are touched; `None`: all.
    pub mask: Option<Value>,
}

pub(super) fn loads(view: &RefUse) -> Transfer<'_> {
    Transfer {
        view,
        loads: true,
        value: None,
        update: None,
        at: None,
        mask: None,
    }
}

pub(super) fn stores(view: &RefUse, value: Value) -> Transfer<'_> {
    Transfer {
        loads: false,
        value: Some(value),
        ..loads(view)
    }
}

impl<'a> Transfer<'a> {
    pub(super) fn and_loads(self) -> Transfer<'a> {
        Transfer { loads: true, ..self }
    }
    pub(super) fn by(self, op: AtomicOp) -> Transfer<'a> {
        let update = Some(op);
        Transfer { update, ..self }
    }
    pub(super) fn at(self, at: &'a [Value]) -> Transfer<'a> {
        Transfer { at: Some(at), ..self }
    }
    pub(super) fn masked(self, mask: Option<Value>) -> Transfer<'a> {
        Transfer { mask, ..self }
    }
    /// Whether it writes nothing.
    pub fn only_loads(&self) -> bool {
        self.value.is_none()
    }

    /// Whether it touches the view as a whole: each lane the elements that its layout gives it.
    pub fn is_whole(&self) -> bool {
        self.at.is_none() && self.mask.is_none()
    }
}

impl<'a> Control<'a> {
    /// Whether regions may run many times.
    pub fn is_loop(self) -> bool {
        match self {
            Control::For { .. } | Control::While { .. } => true,
            Control::Switch { .. } | Control::Scope { .. } | Control::WarpMap { .. } => false,
        }
    }

    /// What carries begin as; none: no region has them as parameters.
    pub fn inits(self) -> Option<&'a [Value]> {
        match self {
            Control::For { inits, .. } | Control::While { inits, .. } | Control::WarpMap { inits, .. } => Some(inits),
            Control::Switch { .. } | Control::Scope { .. } => None,
        }
    }

    /// Where carries are in each region, in the regions' order.
    pub fn carries(self) -> SmallVec<[Carries; 2]> {
        let carries = |region, params, results| Carries {
            region,
            params,
            results,
        };
        match self {
            Control::For { body, .. } => smallvec![carries(body, Some(1), 0)],
            Control::While { cond, body, .. } => smallvec![carries(cond, Some(0), 1), carries(body, Some(0), 0)],
            Control::Switch { arms, .. } => arms.iter().map(|arm| carries(*arm, None, 0)).collect(),
            Control::Scope { body, .. } => smallvec![carries(body, None, 0)],
            Control::WarpMap { body, .. } => smallvec![carries(body, Some(0), 0)],
        }
    }
}

pub(super) fn elementwise(function: Function<'_>) -> Pure<'_> {
    Pure::Elementwise(function)
}

pub(super) fn shape(op: ShapeOp<'_>) -> Pure<'_> {
    Pure::Shape(op)
}

/// Of instructions of the user's.
pub(super) fn instructions(does: Does) -> Class<'static> {
    match does {
        Does::Computes | Does::Exchanges => Class::Pure(Pure::Inline),
        Does::Acts => Class::Instructions,
    }
}

impl OpKind {
    /// What it computes, if it is of [`Class::Pure`].
    pub fn pure(&self) -> Option<Pure<'_>> {
        let Class::Pure(pure) = self.class() else { return None };
        Some(pure)
    }

    /// Whether it multiplies on the tensor cores.
    pub fn is_product(&self) -> bool {
        matches!(self, OpKind::Wgmma { .. })
    }

    /// What it computes element by element, if that is all that it does.
    pub fn function(&self) -> Option<Function<'_>> {
        let Some(Pure::Elementwise(function)) = self.pure() else {
            return None;
        };
        Some(function)
    }

    /// Whether it is of [`Class::Pure`]. Accumulator ops are not (linearity).
    pub fn is_pure(&self) -> bool {
        self.pure().is_some()
    }

    /// Whether it may be executed where it was not: it is pure, and nothing of it is checked where it stands.
    pub fn is_speculatable(&self) -> bool {
        self.is_pure() && !self.is_promise()
    }

    /// How its regions run, if it has any.
    pub fn control(&self) -> Option<Control<'_>> {
        let Class::Control(control) = self.class() else {
            return None;
        };
        Some(control)
    }

    /// What the carries of its regions begin as, where there are carries.
    pub fn inits_mut(&mut self) -> Option<&mut Vec<Value>> {
        if let OpKind::For { inits, .. } | OpKind::While { inits, .. } | OpKind::WarpMap { inits, .. } = self {
            Some(inits)
        } else {
            None
        }
    }
}
