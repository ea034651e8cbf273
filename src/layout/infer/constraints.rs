//! What ops demand of the layouts of their operands and results.
use super::smem::{Smem, tiled_orientation};
use super::{group_of, spec};
use crate::error::Result;
use crate::kernel_ir::visit::for_each_value;
use crate::kernel_ir::*;
use crate::layout::digits::Digit;
use crate::layout::register_layout::{self, Axis, Place, RegisterLayout};
use crate::layout::tiled::TiledLayout;
use cranelift_entity::SecondaryMap;
use rustc_hash::{FxHashMap, FxHashSet};
use smallvec::SmallVec;

/// A soft constraint between two values.
pub(super) enum Constraint {
    Equal(Value, Value),
    /// `to`'s layout follows from `from`'s.
    Derived {
        from: Value,
        to: Value,
        how: Derivation,
    },
}

impl Constraint {
    pub(super) fn ends(&self) -> (Value, Value) {
        match self {
            Constraint::Equal(a, b) => (*a, *b),
            Constraint::Derived { from, to, .. } => (*from, *to),
        }
    }
}

/// How the result of a shape op follows from its operand.
pub enum Derivation {
    Reduce { axes: SmallVec<[usize; 4]> },
    Broadcast { dims: SmallVec<[usize; 4]> },
    Transpose { permutation: SmallVec<[usize; 4]> },
    Reshape,
    Slice { starts: SmallVec<[u64; 4]> },
}

impl Derivation {
    /// The derivation of a shape op whose operand is an array.
    pub fn of(kernel: &Kernel, op: Op) -> Option<Derivation> {
        let index = |v: &[u32]| v.iter().map(|d| *d as usize).collect();
        match &kernel.ops[op].kind {
            OpKind::Reduce { axes, .. } => Some(Derivation::Reduce { axes: index(axes) }),
            OpKind::Broadcast { a, dims } if !kernel.ty(*a).is_scalar() => {
                Some(Derivation::Broadcast { dims: index(dims) })
            }
            OpKind::Transpose { permutation, .. } => Some(Derivation::Transpose {
                permutation: index(permutation),
            }),
            OpKind::Reshape { .. } => Some(Derivation::Reshape),
            OpKind::Slice { starts, strides, .. } if strides.iter().all(|s| *s == 1) => Some(Derivation::Slice {
                starts: starts.as_slice().into(),
            }),
            _ => None,
        }
    }

    /// The result's layout.
    pub fn forward(&self, from: &RegisterLayout, to_shape: &[u64]) -> Option<RegisterLayout> {
        match self {
            Derivation::Reduce { axes } => from.reduce(axes),
            Derivation::Broadcast { dims } => from.broadcast_in_dim(to_shape, dims),
            Derivation::Transpose { permutation } => from.transpose(permutation),
            Derivation::Reshape => from.reshape(to_shape),
            Derivation::Slice { starts } => from.slice(starts, to_shape).map(|(layout, _)| layout),
        }
    }

    /// A layout of the operand from which the result's follows.
    pub fn backward(&self, to: &RegisterLayout, from_shape: &[u64]) -> Option<RegisterLayout> {
        match self {
            Derivation::Reduce { axes } => {
                // Candidates: the named layouts whose reduction this is.
                [TiledLayout::wgmma(), TiledLayout::wgmma_transposed()]
                    .iter()
                    .filter_map(|t| t.instantiate(from_shape).ok())
                    .find(|l| l.reduce(axes).as_ref() == Some(to))
            }
            Derivation::Broadcast { dims } => {
                if dims.len() != from_shape.len() {
                    return None;
                }
                let dropped: SmallVec<[usize; 4]> = (0..to.rank()).filter(|d| !dims.contains(d)).collect();
                // A dimension expanded from 1 keeps no digits of the result.
                dims.iter()
                    .zip(from_shape)
                    .all(|(d, n)| to.shape()[*d] == *n)
                    .then(|| to.reduce(&dropped))
                    .flatten()
            }
            Derivation::Transpose { permutation } => {
                let mut inverse: SmallVec<[usize; 4]> = SmallVec::from_elem(0, permutation.len());
                for (i, p) in permutation.iter().enumerate() {
                    inverse[*p] = i;
                }
                to.transpose(&inverse)
            }
            Derivation::Reshape => to.reshape(from_shape),
            Derivation::Slice { .. } => named_for_shape(to, from_shape),
        }
    }
}

/// The layout of the same family for another shape.
fn named_for_shape(layout: &RegisterLayout, shape: &[u64]) -> Option<RegisterLayout> {
    let name = TiledLayout::name_of(layout)?;
    TiledLayout::by_name(name)?.instantiate(shape).ok()
}

pub(super) struct Constraints {
    pub fixed: Vec<(Value, RegisterLayout, &'static str)>,
    /// With what breaking it costs.
    pub list: Vec<(Constraint, u64)>,
    /// Values that are equal everywhere.
    pub splats: Vec<Value>,
    /// Arrays and accumulators in program order.
    pub order: Vec<Value>,
    preferred: SecondaryMap<Value, Option<(RegisterLayout, &'static str)>>,
    /// Values some shape op of which needs each dimension to have digits of its own.
    separable: FxHashSet<Value>,
}

impl Constraints {
    /// What an unreached value takes.
    pub(super) fn preference(&self, kernel: &Kernel, value: Value) -> (RegisterLayout, &'static str) {
        if let Some((layout, why)) = &self.preferred[value] {
            return (layout.clone(), why);
        }
        let data = &kernel.values[value];
        let (shape, bits, group) = (data.ty.shape(), data.ty.dtype().bits(), group_of(data.group));
        let strided = RegisterLayout::strided_default(shape, bits, group);
        let torn = (0..strided.rank()).any(|d| strided.straddles(d));
        if torn && self.separable.contains(&value) {
            (
                blocked(shape, bits, group),
                "each dimension has digits of its own, for an op along one axis",
            )
        } else {
            (
                strided,
                "nothing asks for another: coalesced and free of bank conflicts",
            )
        }
    }
}

/// Every dimension has its own digits: vectors and lanes along the minor dimension as far as it goes, then along the next.
pub fn blocked(shape: &[u64], bits: u32, group: register_layout::Group) -> RegisterLayout {
    let total_bits = group.thread_bits();
    let mut bit = 0u8;
    let mut slots = 1u64;
    let mut axes: Vec<Axis> = vec![];
    for (dim, &size) in shape.iter().enumerate().rev() {
        let mut chain = SmallVec::new();
        let mut left = size.max(1);
        if dim + 1 == shape.len() {
            let widest = u64::from(64 / bits.clamp(8, 64));
            let vec = 1u64 << left.trailing_zeros().min(widest.trailing_zeros());
            if vec > 1 {
                chain.push(Digit::new(vec, Place::Slot(slots as u32)));
                slots *= vec;
                left /= vec;
            }
        }
        // Lane digits, then warp digits: a digit never spans both.
        for end in [register_layout::LANE_BITS.min(total_bits), total_bits] {
            let want = left.next_power_of_two().trailing_zeros() as u8;
            let take = want.min(end.saturating_sub(bit));
            if take > 0 && bit < end {
                chain.push(Digit::new(1 << take, Place::Thread(bit)));
                bit += take;
                left = left.div_ceil(1 << take);
            }
        }
        if left > 1 {
            chain.push(Digit::new(left, Place::Slot(slots as u32)));
            slots *= left;
        }
        if chain.is_empty() {
            chain.push(Digit::new(1, Place::Constant));
        }
        axes.push(Axis {
            first: dim,
            rank: 1,
            size,
            chain,
        });
    }
    RegisterLayout::from_axes(shape, group, axes)
}

pub(super) fn collect(kernel: &Kernel, smem: &Smem) -> Result<Constraints> {
    let mut c = Collector {
        kernel,
        smem,
        out: Constraints {
            fixed: vec![],
            list: vec![],
            splats: vec![],
            order: vec![],
            preferred: SecondaryMap::new(),
            separable: FxHashSet::default(),
        },
        splat: FxHashSet::default(),
    };
    c.region(kernel.body, 0)?;
    Ok(c.out)
}

struct Collector<'a> {
    kernel: &'a Kernel,
    smem: &'a Smem,
    out: Constraints,
    splat: FxHashSet<Value>,
}

impl Collector<'_> {
    fn distributed(&self, v: Value) -> bool {
        !self.kernel.ty(v).is_scalar()
    }

    fn cost(&self, v: Value, depth: u32) -> u64 {
        let ty = self.kernel.ty(v);
        let elements: u64 = ty.shape().iter().product();
        elements
            .saturating_mul(u64::from(ty.dtype().bits()))
            .saturating_mul(10u64.saturating_pow(depth.min(12)))
    }

    fn equal(&mut self, a: Value, b: Value, depth: u32) {
        if self.distributed(a) && self.distributed(b) && !self.splat.contains(&a) && !self.splat.contains(&b) && a != b
        {
            let cost = self.cost(a, depth);
            self.out.list.push((Constraint::Equal(a, b), cost));
        }
    }

    fn fix(&mut self, v: Value, layout: RegisterLayout, why: &'static str) {
        self.out.fixed.push((v, layout, why));
    }

    fn prefer(&mut self, v: Value, r: &RefUse) {
        if self.out.preferred[v].is_some() || self.splat.contains(&v) {
            return;
        }
        let ty = self.kernel.ty(v);
        let Some(transposed) = tiled_orientation(self.kernel, self.smem, r) else {
            return;
        };
        let tiled = match (transposed, ty.dtype().bits()) {
            (false, 8) => TiledLayout::wgmma_8bit(),
            (false, _) => TiledLayout::wgmma(),
            (true, _) => TiledLayout::wgmma_transposed(),
        };
        if ty.shape().len() >= 2
            && tiled.divides(ty.shape())
            && let Ok(layout) = tiled.instantiate(ty.shape())
        {
            self.out.preferred[v] = Some((layout, "conflict-free with the tiled SMEM that it meets"));
        }
    }

    fn region(&mut self, region: Region, depth: u32) -> Result<()> {
        for &v in &self.kernel.regions[region].params {
            if self.distributed(v) {
                self.out.order.push(v);
            }
        }
        for &op in &self.kernel.regions[region].ops {
            self.op(op, depth).map_err(|e| e.at(self.kernel.ops[op].loc))?;
        }
        Ok(())
    }

    fn splat_result(&mut self, result: Value, operands: &[Value]) -> bool {
        let splat = operands.iter().all(|v| !self.distributed(*v) || self.splat.contains(v));
        if splat && self.distributed(result) {
            self.splat.insert(result);
            self.out.splats.push(result);
        }
        splat
    }

    /// An element-wise op: all arrays have one layout, unless everything is a splat.
    fn elementwise(&mut self, operands: &[Value], result: Value, depth: u32) {
        if self.splat_result(result, operands) {
            return;
        }
        for &v in operands {
            self.equal(v, result, depth);
        }
    }

    fn derived(&mut self, op: Op, a: Value, depth: u32) {
        let result = self.kernel.ops[op].results[0];
        if self.splat_result(result, &[a]) || !self.distributed(result) {
            self.out.separable.insert(a);
            return;
        }
        if let Some(how) = Derivation::of(self.kernel, op) {
            if !matches!(how, Derivation::Reshape) {
                self.out.separable.insert(a);
                self.out.separable.insert(result);
            }
            let cost = self.cost(a, depth);
            self.out.list.push((
                Constraint::Derived {
                    from: a,
                    to: result,
                    how,
                },
                cost,
            ));
        }
    }

    fn wgmma_layout(&self, v: Value) -> Result<RegisterLayout> {
        let ty = self.kernel.ty(v);
        TiledLayout::wgmma().instantiate(ty.shape()).map_err(|_| {
            crate::error::Error::invalid("wgmma accumulator")
                .expected("M a multiple of 64 and N a multiple of 8")
                .got(format!("{ty}"))
                .remedy("change the tile's shape")
        })
    }

    fn op(&mut self, op: Op, depth: u32) -> Result<()> {
        let data = &self.kernel.ops[op];
        for &v in &data.results {
            if self.distributed(v) {
                self.out.order.push(v);
            }
        }
        match &data.kind {
            OpKind::Constant(c) => {
                if c.splat().is_some() {
                    self.splat_result(data.results[0], &[]);
                }
            }
            OpKind::Unary { a, .. }
            | OpKind::IntegerPow { a, .. }
            | OpKind::ReducePrecision { a, .. }
            | OpKind::Convert { a }
            | OpKind::MultipleOf { a, .. } => self.elementwise(&[*a], data.results[0], depth),
            OpKind::Bitcast { a } => {
                if self.kernel.ty(*a).shape() == self.kernel.ty(data.results[0]).shape() {
                    self.elementwise(&[*a], data.results[0], depth);
                } else {
                    self.out.separable.insert(*a);
                    self.out.separable.insert(data.results[0]);
                }
            }
            OpKind::Binary { a, b, .. } | OpKind::Compare { a, b, .. } => {
                self.elementwise(&[*a, *b], data.results[0], depth)
            }
            OpKind::Clamp { lo, x, hi } => self.elementwise(&[*lo, *x, *hi], data.results[0], depth),
            OpKind::Select { which, cases } => {
                let mut operands = cases.clone();
                operands.push(*which);
                self.elementwise(&operands, data.results[0], depth);
            }
            OpKind::OptimizationBarrier { values } => {
                for (a, r) in values.iter().zip(&data.results) {
                    if self.splat.contains(a) {
                        self.splat_result(*r, &[*a]);
                    } else {
                        self.equal(*a, *r, depth);
                    }
                }
            }
            OpKind::LayoutCast { layout, .. } => {
                let result = data.results[0];
                let ty = self.kernel.ty(result);
                if !ty.is_scalar() {
                    let layout = spec::instantiate(layout, ty.shape(), ty.dtype())?;
                    self.fix(result, layout, "layout_cast");
                }
            }
            OpKind::Broadcast { a, .. } => {
                if !self.splat_result(data.results[0], &[*a]) {
                    self.derived(op, *a, depth);
                }
            }
            OpKind::Reduce { a, .. }
            | OpKind::Reshape { a }
            | OpKind::Transpose { a, .. }
            | OpKind::Slice { a, .. } => self.derived(op, *a, depth),
            OpKind::DynamicSlice { a, .. } | OpKind::Reverse { a, .. } | OpKind::Cumulative { a, .. } => {
                self.equal_if_same_shape(*a, data.results[0], depth)
            }
            OpKind::DynamicUpdateSlice { a, .. } => self.equal(*a, data.results[0], depth),
            OpKind::Pad { a, .. } | OpKind::ArgReduce { a, .. } => {
                self.out.separable.insert(*a);
            }
            OpKind::Concat { parts, .. } => {
                for p in parts {
                    self.out.separable.insert(*p);
                }
                self.out.separable.insert(data.results[0]);
            }
            OpKind::Iota { .. } => {
                self.out.separable.insert(data.results[0]);
            }
            OpKind::Load { src } => {
                if self.distributed(data.results[0]) {
                    self.prefer(data.results[0], src);
                }
            }
            OpKind::Store { dst, value } | OpKind::AtomicUpdate { dst, value, .. } => {
                if self.distributed(*value) {
                    self.prefer(*value, dst);
                }
            }
            OpKind::Swap { dst, value } => {
                if self.distributed(*value) {
                    self.prefer(*value, dst);
                    self.equal(*value, data.results[0], depth);
                }
            }
            OpKind::AsyncStoreSmem { value, dst, .. } => self.prefer(*value, dst),
            OpKind::AccInit { init } => {
                let layout = self.wgmma_layout(data.results[0])?;
                if let Some(v) = init
                    && !self.splat.contains(v)
                {
                    self.fix(*v, layout.clone(), "initial value of an accumulator");
                }
                self.fix(data.results[0], layout, "accumulator of wgmma");
            }
            OpKind::Wgmma { a, .. } => {
                let layout = self.wgmma_layout(data.results[0])?;
                self.fix(data.results[0], layout, "accumulator of wgmma");
                if let MmaOperand::Registers(a) = a {
                    let ty = self.kernel.ty(*a);
                    let tiled = match ty.dtype().bits() {
                        8 => TiledLayout::wgmma_8bit(),
                        _ => TiledLayout::wgmma(),
                    };
                    let layout = tiled.instantiate(ty.shape()).map_err(|_| {
                        crate::error::Error::invalid("wgmma operand in registers")
                            .expected("M a multiple of 64, K a multiple of 32 bytes")
                            .got(format!("{ty}"))
                    })?;
                    self.fix(*a, layout, "left operand of wgmma");
                }
            }
            OpKind::WgmmaWait { .. } => {
                for &r in &data.results {
                    let layout = self.wgmma_layout(r)?;
                    self.fix(r, layout, "accumulator of wgmma");
                }
            }
            OpKind::AccRead { .. } => {
                for &r in &data.results {
                    let layout = self.wgmma_layout(r)?;
                    self.fix(r, layout, "accumulator of wgmma");
                }
            }
            OpKind::For { inits, xs, body, .. } => {
                let (inits, xs, body) = (inits.clone(), xs.len(), *body);
                let params = self.kernel.regions[body].params.clone();
                self.region(body, depth + 1)?;
                let yields = self.kernel.regions[body].results.clone();
                for (i, init) in inits.iter().enumerate() {
                    let param = params[1 + i];
                    self.equal(yields[i], param, depth + 1);
                    self.equal(*init, param, depth);
                    self.equal(param, data.results[i], depth);
                }
                let _ = xs;
            }
            OpKind::While { inits, cond, body } => {
                let (inits, cond, body) = (inits.clone(), *cond, *body);
                self.region(cond, depth + 1)?;
                self.region(body, depth + 1)?;
                for (i, init) in inits.iter().enumerate() {
                    let (cp, bp) = (self.kernel.regions[cond].params[i], self.kernel.regions[body].params[i]);
                    self.equal(self.kernel.regions[body].results[i], bp, depth + 1);
                    self.equal(cp, bp, depth + 1);
                    self.equal(self.kernel.regions[cond].results[1 + i], bp, depth + 1);
                    self.equal(*init, bp, depth);
                    self.equal(bp, data.results[i], depth);
                }
            }
            OpKind::Switch { arms, .. } => {
                for &arm in arms {
                    self.region(arm, depth)?;
                    for (a, r) in self.kernel.regions[arm].results.iter().zip(&data.results) {
                        self.equal(*a, *r, depth);
                    }
                }
            }
            OpKind::Scope { body, .. } => {
                self.region(*body, depth)?;
                for (a, r) in self.kernel.regions[*body].results.iter().zip(&data.results) {
                    self.equal(*a, *r, depth);
                }
            }
            OpKind::WarpMap { body, .. } => self.region(*body, depth)?,
            OpKind::Mma { .. }
            | OpKind::AxisIndex { .. }
            | OpKind::CopyGmemToSmem { .. }
            | OpKind::CopySmemToGmem { .. }
            | OpKind::CommitGroup
            | OpKind::WaitSmemToGmem { .. }
            | OpKind::WaitGmemToSmem { .. }
            | OpKind::Prefetch { .. }
            | OpKind::CommitSmem
            | OpKind::BarrierArrive { .. }
            | OpKind::BarrierWait { .. }
            | OpKind::BarrierTest { .. }
            | OpKind::Sync { .. }
            | OpKind::Fence { .. }
            | OpKind::SemaphoreSignal { .. }
            | OpKind::SemaphoreSignalParallel { .. }
            | OpKind::SemaphoreWait { .. }
            | OpKind::SemaphoreRead { .. }
            | OpKind::MultimemStore { .. }
            | OpKind::MultimemLoadReduce { .. }
            | OpKind::SetMaxRegisters { .. }
            | OpKind::Delay { .. }
            | OpKind::GridDependency { .. }
            | OpKind::DebugPrint { .. }
            | OpKind::PrintLayout { .. } => {}
        }
        Ok(())
    }

    fn equal_if_same_shape(&mut self, a: Value, b: Value, depth: u32) {
        if self.kernel.ty(a).shape() == self.kernel.ty(b).shape() {
            self.equal(a, b, depth);
        }
    }
}

/// The operands whose layout is not the one that their op works in: what lowering converts, and to what.
pub(super) fn casts(
    kernel: &Kernel,
    layouts: &SecondaryMap<Value, Option<RegisterLayout>>,
) -> FxHashMap<(Op, u32), RegisterLayout> {
    let mut casts = FxHashMap::default();
    kernel.for_each_op(&mut |op| {
        let data = &kernel.ops[op];
        let mut need = |position: usize, v: Value, layout: &RegisterLayout| {
            if layouts[v].as_ref().is_some_and(|l| l != layout) {
                casts.insert((op, position as u32), layout.clone());
            }
        };
        let result = data.results.first().and_then(|r| layouts[*r].clone());
        match &data.kind {
            OpKind::Unary { .. }
            | OpKind::IntegerPow { .. }
            | OpKind::ReducePrecision { .. }
            | OpKind::Convert { .. }
            | OpKind::MultipleOf { .. }
            | OpKind::Binary { .. }
            | OpKind::Compare { .. }
            | OpKind::Clamp { .. }
            | OpKind::Select { .. }
            | OpKind::LayoutCast { .. } => {
                if let Some(layout) = result {
                    let mut position = 0;
                    for_each_value(&data.kind, &mut |v| {
                        need(position, v, &layout);
                        position += 1;
                    });
                }
            }
            OpKind::Reduce { a, .. }
            | OpKind::Broadcast { a, .. }
            | OpKind::Reshape { a }
            | OpKind::Transpose { a, .. }
            | OpKind::Slice { a, .. } => {
                // Where the operand's own layout does not do, one with digits of its own for each dimension does.
                if let (Some(layout), Some(how)) = (layouts[*a].as_ref(), Derivation::of(kernel, op)) {
                    let to = kernel.ty(data.results[0]);
                    if how.forward(layout, to.shape()).is_none() {
                        let ty = kernel.ty(*a);
                        need(0, *a, &blocked(ty.shape(), ty.dtype().bits(), layout.group()));
                    }
                }
            }
            OpKind::AccInit { init: Some(v) } => {
                if let Some(layout) = result {
                    need(0, *v, &layout);
                }
            }
            _ => {}
        }
    });
    casts
}
