//! The constraints that signatures put on layouts.
use super::group_of;
use super::narrow;
use super::smem::{Smem, tiled_orientation};
use crate::error::Result;
use crate::kernel_ir::class::{Function, Pure, ShapeOp};
use crate::kernel_ir::visit::for_each_value;
use crate::kernel_ir::*;
use crate::layout::derivation::{Derivation, blocked, repeated};
use crate::layout::facts::gcd;
use crate::layout::register_layout::{Group, RegisterLayout};
use crate::layout::signature::{self, Gives, Need, Signature};
use crate::layout::tiled::TiledLayout;
use cranelift_entity::{EntitySet, SecondaryMap};
use smallvec::SmallVec;

/// Elements of an array that every thread has as a whole: splitting keys of random numbers costs nothing then.
const EVERYWHERE: u64 = 4;

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

pub(super) struct Constraints {
    /// By what makes the value: there is no other way.
    pub made: Vec<(Value, RegisterLayout, &'static str)>,
    /// By what uses it: another layout is converted.
    pub pulled: Vec<(Value, RegisterLayout, &'static str)>,
    /// With what breaking it costs.
    pub list: Vec<(Constraint, u64)>,
    /// Values that are equal everywhere.
    pub splats: EntitySet<Value>,
    /// Values that are cheaper to compute again in another layout than to convert ([`is_recomputed`]): they follow others, and
    /// nothing follows them.
    pub recomputed: EntitySet<Value>,
    /// Arrays and accumulators in program order.
    pub order: Vec<Value>,
    preferred: SecondaryMap<Value, Option<(RegisterLayout, &'static str)>>,
    /// Values of which slices are taken, or that are put together: along each dimension the largest number of which all borders are
    /// multiples.
    cuts: SecondaryMap<Value, Option<SmallVec<[u64; 4]>>>,
    /// Values some shape op of which needs each dimension to have digits of its own.
    separable: EntitySet<Value>,
}

impl Constraints {
    /// What an unreached value takes.
    pub(super) fn preference(&self, kernel: &Kernel, value: Value) -> (RegisterLayout, &'static str) {
        if let Some((layout, why)) = &self.preferred[value] {
            return (layout.clone(), why);
        }
        let data = &kernel.values[value];
        let (shape, bits, group) = (data.ty.shape(), data.ty.dtype().bits(), group_of(data.group));
        if num_elements(shape) <= EVERYWHERE {
            let layout = RegisterLayout::replicated(shape, group);
            return (layout, "so small that every thread has all of it");
        }
        if let Some(part) = &self.cuts[value]
            && part.as_slice() != shape
        {
            let of_parts = RegisterLayout::strided_default(part, bits, group);
            let torn = (0..of_parts.rank()).any(|d| of_parts.straddles(d));
            if !torn && let Some(layout) = repeated(&of_parts, shape) {
                return (layout, "its parts are in registers of their own");
            }
        }
        let strided = RegisterLayout::strided_default(shape, bits, group);
        let torn = (0..strided.rank()).any(|d| strided.straddles(d));
        if torn && self.separable.contains(value) {
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

/// Whether an op is cheap to do again where its operands are: counting, comparing, masking.
fn is_cheap(kind: &OpKind) -> bool {
    match kind.pure() {
        Some(Pure::Elementwise(function)) => match function {
            Function::Unary { op, .. } => matches!(op, UnaryOp::Neg | UnaryOp::Not | UnaryOp::Abs),
            Function::Binary { op, .. } => !matches!(
                op,
                BinaryOp::Div | BinaryOp::Rem | BinaryOp::Pow | BinaryOp::Atan2 | BinaryOp::NextAfter
            ),
            Function::Compare { .. } | Function::Select { .. } | Function::Clamp { .. } | Function::Convert { .. } => {
                true
            }
            Function::IntegerPow { .. } | Function::Other | Function::MultipleOf { .. } => false,
        },
        Some(Pure::Iota | Pure::LayoutCast) => true,
        Some(Pure::Shape(shape)) => matches!(shape, ShapeOp::Broadcast { .. }),
        Some(
            Pure::Constant(_)
            | Pure::AxisIndex(_)
            | Pure::Bitcast
            | Pure::Reduce { .. }
            | Pure::Run
            | Pure::Exchange
            | Pure::Product { .. }
            | Pure::Relayout { .. }
            | Pure::Inline,
        )
        | None => false,
    }
}

pub(super) fn collect(kernel: &Kernel, smem: &Smem) -> Result<Constraints> {
    let mut c = Collector {
        kernel,
        smem,
        out: Constraints {
            made: vec![],
            pulled: vec![],
            list: vec![],
            splats: EntitySet::new(),
            recomputed: EntitySet::new(),
            order: vec![],
            preferred: SecondaryMap::new(),
            cuts: SecondaryMap::new(),
            separable: EntitySet::new(),
        },
        ops: SecondaryMap::new(),
    };
    c.region(kernel.body, 0)?;
    Ok(c.out)
}

struct Collector<'a> {
    kernel: &'a Kernel,
    smem: &'a Smem,
    out: Constraints,
    /// Ops that make a recomputed value.
    ops: SecondaryMap<Value, u32>,
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
        let free = |v| !self.distributed(v) || self.out.splats.contains(v);
        if a != b && !free(a) && !free(b) {
            let cost = self.cost(a, depth);
            self.out.list.push((Constraint::Equal(a, b), cost));
        }
    }

    fn region(&mut self, region: Region, depth: u32) -> Result<()> {
        let data = &self.kernel.regions[region];
        let arrays = data.params.iter().copied().filter(|v| self.distributed(*v));
        let arrays: SmallVec<[Value; 4]> = arrays.collect();
        self.out.order.extend(arrays);
        for &op in &data.ops {
            self.op(op, depth).map_err(|e| e.at(self.kernel.ops[op].loc))?;
        }
        Ok(())
    }

    fn op(&mut self, op: Op, depth: u32) -> Result<()> {
        let kernel = self.kernel;
        let results = &kernel.ops[op].results;
        let sig = signature::of(kernel, op)?;
        let mut operands: SmallVec<[Value; 4]> = SmallVec::new();
        for_each_value(&kernel.ops[op].kind, &mut |v| operands.push(v));
        self.out
            .order
            .extend(results.iter().copied().filter(|v| !kernel.ty(*v).is_scalar()));
        for (r, gives) in results.iter().zip(&sig.results) {
            self.result(&sig, &operands, *r, gives);
        }
        if let &[result] = results.as_slice() {
            self.recomputed(op, &operands, result);
        }
        let moved = kernel.ops[op].kind.transfer().filter(|moved| moved.at.is_none());
        if let Some(moved) = moved.filter(|moved| moved.only_loads()) {
            self.prefer(results[0], moved.view);
        }
        let stored = if let OpKind::AsyncStoreSmem { dst, value, .. } = &kernel.ops[op].kind {
            Some((*value, dst))
        } else {
            moved.and_then(|moved| Some((moved.value?, moved.view)))
        };
        if let Some((value, dst)) = stored {
            self.prefer(value, dst);
            for (v, layout, why) in narrow::stored(kernel, self.smem, value, dst) {
                let is_free = self.distributed(v) && self.out.preferred[v].is_none();
                if is_free {
                    self.out.preferred[v] = Some((layout, why));
                }
            }
        }
        if let OpKind::Wgmma {
            a: MmaOperand::Registers(a),
            ..
        } = kernel.ops[op].kind
        {
            self.out.pulled.extend(narrow::multiplied(kernel, a)?);
        }
        if let OpKind::Slice { a, starts, strides } = &kernel.ops[op].kind
            && strides.iter().all(|s| *s == 1)
        {
            self.cut(*a, starts);
            self.cut(*a, kernel.ty(results[0]).shape());
        }
        if let OpKind::Concat { parts, .. } = &kernel.ops[op].kind {
            for v in parts {
                self.cut(results[0], kernel.ty(*v).shape());
            }
        }
        let arrays = |values: &[Value]| {
            let arrays = values.iter().copied().filter(|v| !kernel.ty(*v).is_scalar());
            arrays.collect::<SmallVec<[Value; 4]>>()
        };
        if sig.separable {
            self.out.separable.extend(arrays(&operands));
        }
        if sig.makes_separable {
            self.out.separable.extend(arrays(results));
        }
        let inside = depth + u32::from(sig.is_loop);
        for border in &sig.regions {
            self.region(border.region, inside)?;
        }
        for border in &sig.regions {
            let data = &kernel.regions[border.region];
            for (v, need) in data.results.iter().zip(&border.results) {
                self.need(*v, need, inside);
            }
            for (v, gives) in data.params.iter().zip(&border.params) {
                if let Gives::Same(other) = gives {
                    self.equal(*v, *other, inside);
                }
                if let Gives::Exactly(layout, why) = gives {
                    self.out.made.push((*v, layout.clone(), why));
                }
            }
        }
        for (v, need) in operands.iter().zip(&sig.operands) {
            if matches!(need, Need::Derives) {
                self.derives(sig.derived.as_ref(), *v, results[0], depth);
            }
            self.need(*v, need, depth);
        }
        for (v, gives) in results.iter().zip(&sig.results) {
            if let Gives::Same(other) = gives {
                self.equal(*v, *other, depth);
            }
        }
        Ok(())
    }

    /// Notes borders of parts of a value.
    fn cut(&mut self, v: Value, borders: &[u64]) {
        let shape = self.kernel.ty(v).shape();
        let cuts = self.out.cuts[v].get_or_insert_with(|| shape.into());
        for (cut, &border) in cuts.iter_mut().zip(borders) {
            *cut = gcd(*cut, border);
        }
    }

    fn result(&mut self, sig: &Signature, operands: &[Value], result: Value, gives: &Gives) {
        if !self.distributed(result) {
            return;
        }
        if let Gives::Exactly(layout, why) = gives {
            self.out.made.push((result, layout.clone(), why));
        }
        let mut uses = operands.iter().zip(&sig.operands);
        let is_splat = matches!(gives, Gives::Splat)
            || sig.keeps_splats(result)
                && uses.all(|(v, need)| match need {
                    Need::Same(r) if *r != result => true,
                    _ => !self.distributed(*v) || self.out.splats.contains(*v),
                });
        if is_splat {
            self.out.splats.insert(result);
        }
    }

    /// Remembers what is cheaper to compute again.
    fn recomputed(&mut self, op: Op, operands: &[Value], result: Value) {
        if !self.distributed(result) || self.out.splats.contains(result) || !is_cheap(&self.kernel.ops[op].kind) {
            return;
        }
        let mut ops = 1;
        for &v in operands
            .iter()
            .filter(|v| self.distributed(**v) && !self.out.splats.contains(**v))
        {
            if !self.out.recomputed.contains(v) {
                return;
            }
            ops += self.ops[v];
        }
        if ops <= self.kernel.target.max_recomputed {
            self.ops[result] = ops;
            self.out.recomputed.insert(result);
        }
    }

    fn need(&mut self, v: Value, need: &Need, depth: u32) {
        match need {
            Need::Same(other) | Need::Prefers(other) | Need::Stored { like: Some(other), .. } => {
                self.equal(v, *other, depth)
            }
            Need::PrefersPartOf(whole) => self.derives(Some(&Derivation::Concat), v, *whole, depth),
            Need::Exactly {
                layout,
                pulls: true,
                why,
            } => {
                if self.distributed(v) && !self.out.splats.contains(v) {
                    self.out.pulled.push((v, layout.clone(), why));
                }
            }
            Need::Any
            | Need::Exactly { pulls: false, .. }
            | Need::Derives
            | Need::Runs(_)
            | Need::Stored { like: None, .. } => {}
        }
    }

    fn derives(&mut self, how: Option<&Derivation>, from: Value, to: Value, depth: u32) {
        let free = |v| !self.distributed(v) || self.out.splats.contains(v);
        if let (Some(how), false) = (how, free(from) || free(to)) {
            let how = how.clone();
            let cost = self.cost(from, depth);
            self.out.list.push((Constraint::Derived { from, to, how }, cost));
        }
    }

    fn prefer(&mut self, v: Value, r: &RefUse) {
        if !self.distributed(v) || self.out.preferred[v].is_some() || self.out.splats.contains(v) {
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
        let tiled = match group_of(self.kernel.values[v].group) {
            Group::Warpgroup => tiled,
            Group::Warp => tiled.of_one_warp().expect("warps are the first digits of wgmma's"),
        };
        if ty.shape().len() >= 2
            && tiled.divides(ty.shape())
            && let Ok(layout) = tiled.instantiate(ty.shape())
        {
            self.out.preferred[v] = Some((layout, "conflict-free with the tiled SMEM that it meets"));
        }
    }
}
