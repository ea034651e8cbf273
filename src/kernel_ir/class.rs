//! What sort of op an op is: the answer to what passes ask of every op.
//!
//! [`OpKind::class`] is exhaustive, and so is every `match` over a [`Class`]: a new op does not compile without its row here, and
//! no pass treats it in a way that nobody thought of. A pass that knows more of some kinds takes these out (`if let`), with an
//! answer for the others that is right whatever they do. A test keeps arms for whatever op out of every `match` on [`OpKind`].
//! Tables that have a row for every op are few: names, [`visit`](super::visit), [`effects`](super::effects), [`legality`](super::legality),
//! [`verify`](super::verify), [`print`](super::print), the signatures of layouts, plans of accesses, lowering, and the checker of order.
use super::entities::{Alloc, Axis, Region, Value};
use super::op::{BinaryOp, CompareOp, Constant, Does, OpKind, UnaryOp};
use smallvec::{SmallVec, smallvec};

/// What sort of op it is: what passes ask that must have an answer for every op. Who needs to know more than the class says takes
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
    /// Orders accesses, waits, tells others; looks at barriers and semaphores.
    Synchronisation,
    /// On accumulators, which are linear.
    Accumulator,
    Control(Control<'a>),
    /// Sets the machine up, or reports; nobody's data or order depends on it.
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
    Unary { op: UnaryOp, a: Value },
    Binary { op: BinaryOp, a: Value, b: Value },
    Compare { op: CompareOp, a: Value, b: Value },
    Select { which: Value, cases: &'a [Value] },
    Clamp { lo: Value, x: Value, hi: Value },
    IntegerPow { a: Value, n: i32 },
    Convert { a: Value },
    ReducePrecision,
    MultipleOf { a: Value, divisor: u64 },
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

/// The ops of [`Class::Pure`] as a pattern, for tables with a row for each other op.
macro_rules! pure_ops {
    () => {
        OpKind::Constant(_)
            | OpKind::Unary { .. }
            | OpKind::Binary { .. }
            | OpKind::Compare { .. }
            | OpKind::Select { .. }
            | OpKind::Clamp { .. }
            | OpKind::IntegerPow { .. }
            | OpKind::Convert { .. }
            | OpKind::Bitcast { .. }
            | OpKind::ReducePrecision { .. }
            | OpKind::Iota { .. }
            | OpKind::Broadcast { .. }
            | OpKind::Reshape { .. }
            | OpKind::Transpose { .. }
            | OpKind::Slice { .. }
            | OpKind::DynamicSlice { .. }
            | OpKind::DynamicUpdateSlice { .. }
            | OpKind::Concat { .. }
            | OpKind::Pad { .. }
            | OpKind::Reverse { .. }
            | OpKind::Reduce { .. }
            | OpKind::ArgReduce { .. }
            | OpKind::Cumulative { .. }
            | OpKind::Take { .. }
            | OpKind::Put { .. }
            | OpKind::Sort { .. }
            | OpKind::MultipleOf { .. }
            | OpKind::LayoutCast { .. }
            | OpKind::Relayout { .. }
            | OpKind::AxisIndex { .. }
            | OpKind::Dot { .. }
            | OpKind::InlinePtx {
                does: $crate::kernel_ir::Does::Computes | $crate::kernel_ir::Does::Exchanges,
                ..
            }
    };
}
pub(crate) use pure_ops;

impl OpKind {
    /// What sort of op it is.
    pub fn class(&self) -> Class<'_> {
        use Class::{Accumulator, Aside, Memory, Pinned, Synchronisation};
        let pure = |pure| Class::Pure(pure);
        let elementwise = |function| Class::Pure(Pure::Elementwise(function));
        let shape = |op| Class::Pure(Pure::Shape(op));
        let control = |control| Class::Control(control);
        match *self {
            OpKind::Constant(ref constant) => pure(Pure::Constant(constant)),
            OpKind::Unary { op, a } => elementwise(Function::Unary { op, a }),
            OpKind::Binary { op, a, b } => elementwise(Function::Binary { op, a, b }),
            OpKind::Compare { op, a, b } => elementwise(Function::Compare { op, a, b }),
            OpKind::Select { which, ref cases } => elementwise(Function::Select { which, cases }),
            OpKind::Clamp { lo, x, hi } => elementwise(Function::Clamp { lo, x, hi }),
            OpKind::IntegerPow { a, n } => elementwise(Function::IntegerPow { a, n }),
            OpKind::Convert { a } => elementwise(Function::Convert { a }),
            OpKind::ReducePrecision { .. } => elementwise(Function::ReducePrecision),
            OpKind::MultipleOf { a, divisor } => elementwise(Function::MultipleOf { a, divisor }),
            OpKind::Bitcast { .. } => pure(Pure::Bitcast),
            OpKind::Iota { .. } => pure(Pure::Iota),
            OpKind::Broadcast { ref dims, .. } => shape(ShapeOp::Broadcast { dims }),
            OpKind::Reshape { .. } => shape(ShapeOp::Reshape),
            OpKind::Transpose { .. } => shape(ShapeOp::Transpose),
            OpKind::Slice {
                ref starts,
                ref strides,
                ..
            } => shape(ShapeOp::Slice { starts, strides }),
            OpKind::DynamicSlice { ref starts, .. } => shape(ShapeOp::DynamicSlice { starts }),
            OpKind::DynamicUpdateSlice { ref starts, .. } => shape(ShapeOp::DynamicUpdateSlice { starts }),
            OpKind::Concat { dim, .. } => shape(ShapeOp::Concat { dim }),
            OpKind::Pad {
                ref low, ref interior, ..
            } => shape(ShapeOp::Pad { low, interior }),
            OpKind::Reverse { ref dims, .. } => shape(ShapeOp::Reverse { dims }),
            OpKind::Reduce { a, ref axes, .. } => pure(Pure::Reduce { a, axes }),
            OpKind::ArgReduce { .. } | OpKind::Cumulative { .. } => pure(Pure::Run),
            OpKind::Take { .. } | OpKind::Put { .. } | OpKind::Sort { .. } => pure(Pure::Exchange),
            OpKind::Dot { acc, a, b, .. } => pure(Pure::Product { acc, a, b }),
            OpKind::LayoutCast { .. } => pure(Pure::LayoutCast),
            OpKind::Relayout { a } => pure(Pure::Relayout { a }),
            OpKind::AxisIndex { axis } => pure(Pure::AxisIndex(axis)),
            OpKind::InlinePtx {
                does: Does::Computes | Does::Exchanges,
                ..
            } => pure(Pure::Inline),
            OpKind::InlinePtx { does: Does::Acts, .. } => Class::Instructions,
            OpKind::OptimizationBarrier { .. } => Pinned,
            OpKind::Load { .. }
            | OpKind::Store { .. }
            | OpKind::Swap { .. }
            | OpKind::AtomicUpdate { .. }
            | OpKind::LoadMasked { .. }
            | OpKind::StoreMasked { .. }
            | OpKind::LoadAt { .. }
            | OpKind::StoreAt { .. }
            | OpKind::AtomicUpdateAt { .. }
            | OpKind::DotInPlace { .. }
            | OpKind::CopyGmemToSmem { .. }
            | OpKind::CopySmemToGmem { .. }
            | OpKind::Prefetch { .. }
            | OpKind::AsyncStoreSmem { .. } => Memory,
            OpKind::CommitGroup
            | OpKind::WaitSmemToGmem { .. }
            | OpKind::WaitGmemToSmem { .. }
            | OpKind::CommitSmem
            | OpKind::BarrierArrive { .. }
            | OpKind::BarrierWait { .. }
            | OpKind::BarrierTest { .. }
            | OpKind::MbarrierArrive { .. }
            | OpKind::MbarrierExpect { .. }
            | OpKind::MbarrierWait { .. }
            | OpKind::Sync { .. }
            | OpKind::Fence { .. }
            | OpKind::SemaphoreSignal { .. }
            | OpKind::SemaphoreSignalParallel { .. }
            | OpKind::SemaphoreWait { .. }
            | OpKind::SemaphoreRead { .. } => Synchronisation,
            OpKind::AccInit { .. } | OpKind::Wgmma { .. } | OpKind::WgmmaWait { .. } | OpKind::AccRead { .. } => {
                Accumulator
            }
            OpKind::For {
                lower,
                upper,
                ref inits,
                ref xs,
                reverse: _,
                unroll: _,
                body,
            } => control(Control::For {
                lower,
                upper,
                inits,
                xs,
                body,
            }),
            OpKind::While { ref inits, cond, body } => control(Control::While { inits, cond, body }),
            OpKind::Switch { selector, ref arms } => control(Control::Switch { selector, arms }),
            OpKind::Scope {
                ref allocs,
                collective,
                body,
            } => control(Control::Scope {
                allocs,
                collective,
                body,
            }),
            OpKind::WarpMap {
                axis: _,
                ref inits,
                body,
            } => control(Control::WarpMap { inits, body }),
            OpKind::SetMaxRegisters { .. }
            | OpKind::Delay { .. }
            | OpKind::GridDependency { .. }
            | OpKind::DebugPrint { .. }
            | OpKind::ProfileMark { .. }
            | OpKind::PrintLayout { .. } => Aside,
        }
    }

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
        let is_pure = self.pure().is_some();
        assert_eq!(
            is_pure,
            matches!(self, pure_ops!()),
            "the class and the pattern of {self:?}"
        );
        is_pure
    }

    /// Whether it may be executed where it was not: it is pure, and nothing of it is checked where it stands.
    pub fn is_speculatable(&self) -> bool {
        // What the author promises holds where the author says so.
        self.is_pure() && !matches!(self, OpKind::MultipleOf { .. })
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
