//! The part of a kernel that its order depends on.
//!
//! A backward slice: the ops that touch memory, wait or pass a barrier, the scalars that decide where they do and whether, and the control flow
//! around both. What is left out (arithmetic on data, loops that only compute, arms without accesses) no path goes through, and none
//! chooses anything there.
use super::scalars;
use crate::kernel_ir::class::{Class, Control, Transfer};
use crate::kernel_ir::polling::Polling;
use crate::kernel_ir::visit::{for_each_ref, for_each_region, for_each_value};
use crate::kernel_ir::{Alloc, AllocKind, AxisKind, Kernel, Op, OpKind, Place, RefUse, Region, Value};
use crate::plan::Allocation;
use cranelift_entity::packed_option::PackedOption;
use cranelift_entity::{EntitySet, SecondaryMap};

pub struct Slice {
    /// What is walked of each region, in order.
    ops: SecondaryMap<Region, Vec<Op>>,
    /// What has to be known, if it can be: whatever an index, a predicate, or a choice of control flow is computed from.
    values: EntitySet<Value>,
    /// Ops that are walked.
    pub len: usize,
    /// Whether the block's index is read, and the warpgroup's: blocks and warpgroups may differ then.
    pub reads_block: bool,
    pub reads_warpgroup: bool,
}

impl Slice {
    /// `written`: what the kernel writes.
    pub fn new(
        kernel: &Kernel,
        allocation: &Allocation,
        written: &SecondaryMap<Alloc, bool>,
        polling: &Polling,
    ) -> Slice {
        let mut slicer = Slicer {
            kernel,
            allocation,
            written,
            polling,
            defs: SecondaryMap::with_capacity(kernel.values.len()),
            region_of: SecondaryMap::with_capacity(kernel.ops.len()),
            op_of: SecondaryMap::with_capacity(kernel.regions.len()),
            walked: EntitySet::with_capacity(kernel.ops.len()),
            values: EntitySet::with_capacity(kernel.values.len()),
            work: vec![],
        };
        slicer.define(kernel.body);
        kernel.for_each_op(&mut |op| slicer.begin(op));
        slicer.close();
        let mut slice = Slice {
            ops: SecondaryMap::with_capacity(kernel.regions.len()),
            values: slicer.values,
            len: 0,
            reads_block: false,
            reads_warpgroup: false,
        };
        for region in kernel.live_regions() {
            let data = &kernel.regions[region];
            let walked = data.ops.iter().copied().filter(|op| slicer.walked.contains(*op));
            let ops: Vec<Op> = walked.collect();
            slice.len += ops.len();
            for op in &ops {
                if let OpKind::AxisIndex { axis } = kernel.ops[*op].kind {
                    let axis = &kernel.axes[axis];
                    match axis.kind {
                        AxisKind::Grid(_) | AxisKind::Cluster(_) | AxisKind::DeviceMesh(_) => {
                            slice.reads_block |= axis.size > 1;
                        }
                        AxisKind::Thread => slice.reads_warpgroup = true,
                        AxisKind::Warp => {}
                    }
                }
            }
            slice.ops[region] = ops;
        }
        slice
    }

    pub fn ops(&self, region: Region) -> &[Op] {
        &self.ops[region]
    }

    pub fn has(&self, value: Value) -> bool {
        self.values.contains(value)
    }
}

/// Data of this block or device; no other is checked.
pub fn is_watched(kernel: &Kernel, r: &RefUse) -> bool {
    let data = &kernel.allocs[r.alloc];
    r.place == Place::Here && (data.is_smem() || data.is_gmem())
}

/// Where a value comes from, and the how manieth it is there.
#[derive(Clone, Copy, Default)]
enum Def {
    #[default]
    Nowhere,
    Result(Op, usize),
    Param(Region, usize),
}

struct Slicer<'a> {
    kernel: &'a Kernel,
    allocation: &'a Allocation,
    written: &'a SecondaryMap<Alloc, bool>,
    polling: &'a Polling,
    defs: SecondaryMap<Value, Def>,
    /// What an op, and what a region is in.
    region_of: SecondaryMap<Op, PackedOption<Region>>,
    op_of: SecondaryMap<Region, PackedOption<Op>>,
    walked: EntitySet<Op>,
    values: EntitySet<Value>,
    /// Values that are needed, not yet what they are computed from.
    work: Vec<Value>,
}

impl Slicer<'_> {
    fn define(&mut self, region: Region) {
        let kernel = self.kernel;
        let data = &kernel.regions[region];
        for (i, &v) in data.params.iter().enumerate() {
            self.defs[v] = Def::Param(region, i);
        }
        for &op in &data.ops {
            self.region_of[op] = region.into();
            for (i, &v) in kernel.ops[op].results.iter().enumerate() {
                self.defs[v] = Def::Result(op, i);
            }
            for_each_region(&kernel.ops[op].kind, &mut |inner| {
                self.op_of[inner] = op.into();
                self.define(inner);
            });
        }
    }

    /// Takes an op that the order depends on by itself.
    fn begin(&mut self, op: Op) {
        let kernel = self.kernel;
        let kind = &kernel.ops[op].kind;
        let class = kind.class();
        let does_something = match class {
            Class::Pure(_) | Class::Pinned | Class::Aside => false,
            Class::Instructions | Class::Synchronisation | Class::Tensor => true,
            Class::Memory => {
                let loads = kind.transfer().filter(Transfer::only_loads);
                match loads {
                    Some(moved) => self.is_looked_at(moved.view),
                    None => !matches!(kind, OpKind::Prefetch { .. }),
                }
            }
            Class::Accumulator => kind.is_product() || matches!(kind, OpKind::WgmmaWait { .. }),
            // Memory that changes owner, warps that part.
            Class::Control(Control::Scope { .. } | Control::WarpMap { .. }) => true,
            Class::Control(Control::While { .. }) => self.polling.loops.contains(op),
            Class::Control(Control::For { .. } | Control::Switch { .. }) => false,
        };
        if !does_something && !self.allocation.rendezvous[op] {
            return;
        }
        self.walk(op);
        for_each_ref(kind, &mut |r| {
            let is_known = matches!(class, Class::Instructions) && is_watched(kernel, r);
            if is_known || self.is_looked_at(r) {
                r.for_each_value(&mut |v| self.need(v));
            }
        });
        if let OpKind::CopyGmemToSmem { predicate, .. }
        | OpKind::CopySmemToGmem { predicate, .. }
        | OpKind::BarrierArrive { predicate, .. } = kind
        {
            predicate.iter().for_each(|v| self.need(*v));
        }
    }

    /// Whether it matters where in its allocation a reference is. Memory that the kernel does not write needs no order.
    fn is_looked_at(&self, r: &RefUse) -> bool {
        let data = &self.kernel.allocs[r.alloc];
        matches!(data.kind, AllocKind::Barrier { .. })
            || is_watched(self.kernel, r) && (data.is_smem() || self.written[r.alloc])
    }

    /// An op is walked, and so is whatever it is in.
    fn walk(&mut self, op: Op) {
        let mut next = Some(op);
        while let Some(op) = next {
            if !self.walked.insert(op) {
                return;
            }
            match self.kernel.ops[op].kind.control() {
                Some(Control::For { lower, upper, .. }) => [lower, upper].into_iter().for_each(|v| self.need(v)),
                Some(Control::While { cond, .. }) => self.need(self.kernel.regions[cond].results[0]),
                Some(Control::Switch { selector, .. }) => self.need(selector),
                Some(Control::Scope { .. } | Control::WarpMap { .. }) | None => {}
            }
            next = self.region_of[op]
                .expand()
                .and_then(|region| self.op_of[region].expand());
        }
    }

    fn need(&mut self, v: Value) {
        let is_fixed = self.kernel.ty(v).is_scalar() && self.kernel.facts(v).as_constant().is_some();
        if !is_fixed && self.values.insert(v) {
            self.work.push(v);
        }
    }

    /// What a loop carries, or arms hand out, by number.
    fn need_carry(&mut self, control: Control<'_>, i: usize) {
        for carries in control.carries() {
            let region = &self.kernel.regions[carries.region];
            if let Some(first) = carries.params {
                self.need(region.params[first + i]);
            }
            self.need(region.results[carries.results + i]);
        }
        if let Some(inits) = control.inits() {
            self.need(inits[i]);
        }
    }

    fn close(&mut self) {
        let kernel = self.kernel;
        while let Some(v) = self.work.pop() {
            match self.defs[v] {
                Def::Nowhere => {}
                Def::Param(region, i) => {
                    let Some(op) = self.op_of[region].expand() else {
                        continue;
                    };
                    self.walk(op);
                    let Some(control) = kernel.ops[op].kind.control() else {
                        continue;
                    };
                    let carried = control.inits().map_or(0, <[Value]>::len);
                    let own = control.carries().into_iter().find(|c| c.region == region);
                    let number = own.and_then(|c| i.checked_sub(c.params?));
                    if let Some(number) = number.filter(|n| *n < carried) {
                        self.need_carry(control, number);
                    }
                }
                Def::Result(op, i) => {
                    self.walk(op);
                    self.need_operands(op, v, i);
                }
            }
        }
    }

    /// What the `i`th result of an op is computed from, as far as anything is.
    fn need_operands(&mut self, op: Op, v: Value, i: usize) {
        let kernel = self.kernel;
        let kind = &kernel.ops[op].kind;
        if let Some(control) = kind.control() {
            // Behind what a loop carries it stacks up what its rounds give.
            if control.inits().is_none_or(|inits| i < inits.len()) {
                self.need_carry(control, i);
            }
        } else if !kernel.ty(v).is_scalar() {
            // It is a new one each time; no more is known.
        } else if let OpKind::OptimizationBarrier { values } = kind {
            self.need(values[i]);
        } else if scalars::is_computed(kernel, kind) {
            for_each_value(kind, &mut |v| self.need(v));
        }
    }
}
