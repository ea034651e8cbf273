//! The one place that knows what an op holds: values, uses of references, regions.
use super::entities::{Region, Value};
use super::op::{AccUse, MmaOperand, OpKind, PrintLayoutOf};
use super::view::{DimIndex, Index, Place, RefUse, Step};

/// Something an op holds.
pub enum Part<'a> {
    Value(&'a Value),
    Ref(&'a RefUse),
    Region(&'a Region),
}

/// The same, to be changed.
pub enum PartMut<'a> {
    Value(&'a mut Value),
    Ref(&'a mut RefUse),
    Region(&'a mut Region),
}

/// Expands to the match over all ops. It is the same text for shared and mutable access: bindings take the reference kind of the
/// scrutinee.
macro_rules! visit_parts {
    ($kind:expr, $f:expr, $Part:ident) => {{
        let f = $f;
        macro_rules! value {
            ($e:expr) => {
                f($Part::Value($e))
            };
        }
        macro_rules! values {
            ($e:expr) => {
                for v in $e {
                    f($Part::Value(v));
                }
            };
        }
        macro_rules! option {
            ($e:expr) => {
                if let Some(v) = $e {
                    value!(v);
                }
            };
        }
        macro_rules! reference {
            ($e:expr) => {
                f($Part::Ref($e))
            };
        }
        macro_rules! region {
            ($e:expr) => {
                f($Part::Region($e))
            };
        }
        macro_rules! acc {
            ($e:expr) => {
                match $e {
                    AccUse::Ref(r) => reference!(r),
                    AccUse::Value(v) | AccUse::Part { acc: v, .. } => value!(v),
                }
            };
        }
        match $kind {
            OpKind::Constant(_) | OpKind::Iota { .. } | OpKind::AxisIndex { .. } => {}
            OpKind::Unary { op: _, a }
            | OpKind::IntegerPow { a, n: _ }
            | OpKind::Convert { a }
            | OpKind::Relayout { a }
            | OpKind::Bitcast { a }
            | OpKind::ReducePrecision {
                a,
                exponent_bits: _,
                mantissa_bits: _,
            }
            | OpKind::Broadcast { a, dims: _ }
            | OpKind::Reshape { a }
            | OpKind::Transpose { a, permutation: _ }
            | OpKind::Slice {
                a,
                starts: _,
                strides: _,
            }
            | OpKind::Reverse { a, dims: _ }
            | OpKind::Reduce {
                op: _,
                a,
                axes: _,
                parallel: _,
            }
            | OpKind::ArgReduce { op: _, a, axis: _ }
            | OpKind::Cumulative {
                op: _,
                a,
                axis: _,
                reverse: _,
            }
            | OpKind::MultipleOf { a, divisor: _ }
            | OpKind::LayoutCast { a, layout: _ } => value!(a),
            OpKind::Binary { op: _, a, b } | OpKind::Compare { op: _, a, b } => {
                value!(a);
                value!(b);
            }
            OpKind::Select { which, cases } => {
                value!(which);
                values!(cases);
            }
            OpKind::Clamp { lo, x, hi } => {
                value!(lo);
                value!(x);
                value!(hi);
            }
            OpKind::DynamicSlice { a, starts } => {
                value!(a);
                values!(starts);
            }
            OpKind::DynamicUpdateSlice { a, update, starts } => {
                value!(a);
                value!(update);
                values!(starts);
            }
            OpKind::Concat { parts, dim: _ } => values!(parts),
            OpKind::Pad {
                a,
                value,
                low: _,
                high: _,
                interior: _,
            } => {
                value!(a);
                value!(value);
            }
            OpKind::Take { a, at, fill } => {
                value!(a);
                value!(at);
                value!(fill);
            }
            OpKind::Put {
                op: _,
                a,
                at,
                update,
                distinct: _,
            } => {
                value!(a);
                value!(at);
                value!(update);
            }
            OpKind::Sort {
                keys,
                axis: _,
                indexed: _,
                first: _,
            } => values!(keys),
            OpKind::OptimizationBarrier { values } => values!(values),
            OpKind::Load { src } => reference!(src),
            OpKind::LoadMasked { src, mask } => {
                reference!(src);
                value!(mask);
            }
            OpKind::StoreMasked { dst, mask, value } => {
                reference!(dst);
                value!(mask);
                value!(value);
            }
            OpKind::LoadAt { src, at, mask } => {
                reference!(src);
                values!(at);
                option!(mask);
            }
            OpKind::StoreAt { dst, at, mask, value } => {
                reference!(dst);
                values!(at);
                option!(mask);
                value!(value);
            }
            OpKind::AtomicUpdateAt { op: _, dst, at, value } => {
                reference!(dst);
                values!(at);
                value!(value);
            }
            OpKind::Store { dst, value } | OpKind::Swap { dst, value } | OpKind::AtomicUpdate { op: _, dst, value } => {
                reference!(dst);
                value!(value);
            }
            OpKind::CopyGmemToSmem {
                src,
                dst,
                barrier,
                collective_axes: _,
                leader_tracked: _,
                oob: _,
                predicate,
            } => {
                reference!(src);
                reference!(dst);
                if let Some(b) = barrier {
                    reference!(b);
                }
                option!(predicate);
            }
            OpKind::CopySmemToGmem {
                src,
                dst,
                reduction: _,
                commit_group: _,
                predicate,
            } => {
                reference!(src);
                reference!(dst);
                option!(predicate);
            }
            OpKind::CommitGroup
            | OpKind::WaitSmemToGmem { n: _, scope: _ }
            | OpKind::WaitGmemToSmem { n: _ }
            | OpKind::CommitSmem
            | OpKind::Sync { group: _ }
            | OpKind::Fence { kind: _ } => {}
            OpKind::Prefetch {
                src,
                collective_axes: _,
                leader_tracked: _,
                predicate,
            } => {
                reference!(src);
                option!(predicate);
            }
            OpKind::AsyncStoreSmem {
                value,
                dst,
                barrier,
                atomic: _,
            } => {
                value!(value);
                reference!(dst);
                reference!(barrier);
            }
            OpKind::BarrierArrive { barrier, predicate } => {
                reference!(barrier);
                option!(predicate);
            }
            OpKind::BarrierWait { barrier, phases } | OpKind::BarrierTest { barrier, phases } => {
                reference!(barrier);
                option!(phases);
            }
            OpKind::MbarrierArrive {
                barrier,
                count: value,
                by: _,
                order: _,
            }
            | OpKind::MbarrierExpect {
                barrier,
                bytes: value,
                arrives: _,
            }
            | OpKind::MbarrierWait {
                barrier,
                phase: value,
                order: _,
            } => {
                reference!(barrier);
                value!(value);
            }
            OpKind::SemaphoreSignal {
                semaphore,
                value,
                scope: _,
            }
            | OpKind::SemaphoreWait {
                semaphore,
                value,
                decrement: _,
                scope: _,
            } => {
                reference!(semaphore);
                value!(value);
            }
            OpKind::SemaphoreSignalParallel { signals, scope: _ } => {
                for (semaphore, value) in signals {
                    reference!(semaphore);
                    value!(value);
                }
            }
            OpKind::SemaphoreRead { semaphore } => reference!(semaphore),
            OpKind::AccInit { init } => option!(init),
            OpKind::Wgmma { acc, a, b } => {
                acc!(acc);
                match a {
                    MmaOperand::Smem(r) => reference!(r),
                    MmaOperand::Registers(v) => value!(v),
                }
                reference!(b);
            }
            OpKind::WgmmaWait { n: _, accs } => values!(accs),
            OpKind::AccRead { acc } => acc!(acc),
            OpKind::Dot {
                acc,
                a,
                b,
                arithmetic: _,
            } => {
                option!(acc);
                value!(a);
                value!(b);
            }
            OpKind::DotInPlace { acc, a, b } => {
                option!(acc);
                for operand in [a, b] {
                    match operand {
                        MmaOperand::Smem(r) => reference!(r),
                        MmaOperand::Registers(v) => value!(v),
                    }
                }
            }
            OpKind::For {
                lower,
                upper,
                inits,
                xs,
                reverse: _,
                unroll: _,
                body,
            } => {
                value!(lower);
                value!(upper);
                values!(inits);
                values!(xs);
                region!(body);
            }
            OpKind::While { inits, cond, body } => {
                values!(inits);
                region!(cond);
                region!(body);
            }
            OpKind::Switch { selector, arms } => {
                value!(selector);
                for arm in arms {
                    region!(arm);
                }
            }
            OpKind::Scope {
                allocs: _,
                collective: _,
                body,
            } => region!(body),
            OpKind::WarpMap { axis: _, inits, body } => {
                values!(inits);
                region!(body);
            }
            OpKind::SetMaxRegisters { action: _, n: _ } | OpKind::GridDependency { action: _ } => {}
            OpKind::Delay { nanos } => value!(nanos),
            OpKind::InlinePtx {
                does: _,
                code: _,
                refs,
                args,
            } => {
                for r in refs {
                    reference!(r);
                }
                values!(args);
            }
            OpKind::DebugPrint {
                format: _,
                args,
                then: _,
            } => values!(args),
            OpKind::ProfileMark { name: _, edge: _ } => {}
            OpKind::PrintLayout { what, format: _ } => match what {
                PrintLayoutOf::Value(v) => value!(v),
                PrintLayoutOf::Ref(r) => reference!(r),
            },
        }
    }};
}

/// Expands to the walk over the values of a use.
macro_rules! visit_ref_values {
    ($f:expr, $steps:ident, $place:ident) => {{
        let mut f = $f;
        for step in $steps {
            if let Step::Index(dims) = step {
                for dim in dims {
                    match dim {
                        DimIndex::At(Index::Value(v))
                        | DimIndex::Slice {
                            start: Index::Value(v), ..
                        }
                        | DimIndex::Window {
                            start: Index::Value(v), ..
                        } => f(v),
                        DimIndex::Gather(v) => f(v),
                        DimIndex::At(Index::Const(_))
                        | DimIndex::Slice {
                            start: Index::Const(_), ..
                        }
                        | DimIndex::Window {
                            start: Index::Const(_), ..
                        } => {}
                    }
                }
            }
        }
        match $place {
            Place::Here | Place::Multicast { .. } => {}
            Place::Cluster { axes: _, indices } => {
                for v in indices {
                    f(v);
                }
            }
            Place::Peer { device } => f(device),
        }
    }};
}

impl RefUse {
    /// Calls `f` on every value that the view or the place depends on.
    pub fn for_each_value(&self, f: &mut dyn FnMut(Value)) {
        let RefUse {
            alloc: _,
            steps,
            place,
            elem: _,
            shape: _,
        } = self;
        visit_ref_values!(|v: &Value| f(*v), steps, place)
    }

    /// Calls `f` on every value that the view or the place depends on, to replace it.
    pub fn map_values(&mut self, f: &mut dyn FnMut(&mut Value)) {
        let RefUse {
            alloc: _,
            steps,
            place,
            elem: _,
            shape: _,
        } = self;
        visit_ref_values!(|v: &mut Value| f(v), steps, place)
    }
}

/// Calls `f` on each value, use of a reference and region of an op, in the order of its fields.
pub fn for_each_part(kind: &OpKind, f: &mut dyn FnMut(Part<'_>)) {
    visit_parts!(kind, f, Part)
}

/// The same, to be changed.
pub fn for_each_part_mut(kind: &mut OpKind, f: &mut dyn FnMut(PartMut<'_>)) {
    visit_parts!(kind, f, PartMut)
}

/// Calls `f` on each value that the op itself uses (not those used inside its regions), views' values included.
pub fn for_each_value(kind: &OpKind, f: &mut dyn FnMut(Value)) {
    for_each_part(kind, &mut |part| match part {
        Part::Value(v) => f(*v),
        Part::Ref(r) => r.for_each_value(f),
        Part::Region(_) => {}
    })
}

/// Calls `f` on each value that the op itself uses, to replace it.
pub fn map_values(kind: &mut OpKind, f: &mut dyn FnMut(&mut Value)) {
    for_each_part_mut(kind, &mut |part| match part {
        PartMut::Value(v) => f(v),
        PartMut::Ref(r) => r.map_values(f),
        PartMut::Region(_) => {}
    })
}

/// Calls `f` on each use of a reference.
pub fn for_each_ref(kind: &OpKind, f: &mut dyn FnMut(&RefUse)) {
    for_each_part(kind, &mut |part| {
        if let Part::Ref(r) = part {
            f(r)
        }
    })
}

/// Calls `f` on each use of a reference, to change it.
pub fn map_refs(kind: &mut OpKind, f: &mut dyn FnMut(&mut RefUse)) {
    for_each_part_mut(kind, &mut |part| {
        if let PartMut::Ref(r) = part {
            f(r)
        }
    })
}

/// Calls `f` on each region of the op.
pub fn for_each_region(kind: &OpKind, f: &mut dyn FnMut(Region)) {
    for_each_part(kind, &mut |part| {
        if let Part::Region(r) = part {
            f(*r)
        }
    })
}
