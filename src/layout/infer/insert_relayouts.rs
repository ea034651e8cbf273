//! Makes every op's signature true: where a value is not laid out as its user needs it, a [`OpKind::Relayout`] comes between.
//!
//! * A value that is cheaper to compute than to move (counters, masks of them) is computed again in the layout that is needed.
//! * An array that a shape op makes larger is converted before it, if that is cheaper: costs are the planners'.
//! * A conversion of what a loop does not change is inserted in front of the loop; equal ones are one.
use crate::dtype::DType;
use crate::error::{Loc, Result};
use crate::kernel_ir::visit::{for_each_value, map_values};
use crate::kernel_ir::*;
use crate::layout::assignment::Assignment;
use crate::layout::derivation::{Derivation, blocked, is_constant_along, materialized};
use crate::layout::movement::{self, Movement};
use crate::layout::register_layout::RegisterLayout;
use crate::layout::relayout::{self, travel_bits};
use crate::layout::signature::{self, Border, Gives, Layouts, Need, Signature};
use cranelift_entity::{EntitySet, SecondaryMap};
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

/// More than any plan costs.
const IMPOSSIBLE: u64 = 1 << 40;

pub(super) fn run(kernel: &mut Kernel, assignment: &mut Assignment, recomputed: Recomputed) -> Result<()> {
    let mut pass = Pass {
        layouts: std::mem::take(&mut assignment.values),
        kernel,
        recomputed,
        depth: SecondaryMap::new(),
        frames: vec![],
        prices: FxHashMap::default(),
        inserted: vec![],
        replaced: false,
    };
    let body = pass.kernel.body;
    let border = Border {
        region: body,
        params: SmallVec::new(),
        results: SmallVec::new(),
    };
    pass.region(&border, false, Loc::CALL_SITE, "kernel")?;
    let Pass {
        layouts,
        inserted,
        replaced,
        ..
    } = pass;
    assignment.values = layouts;
    assignment.relayouts = inserted;
    if replaced {
        remove_unused(kernel, &assignment.values);
    }
    Ok(())
}

type Recomputed = EntitySet<Value>;

/// A region on the way from the kernel's body to what is being visited.
struct Frame {
    ops: Vec<Op>,
    /// Its op runs it many times.
    is_loop: bool,
    /// Conversions that dominate here.
    available: FxHashMap<(Value, RegisterLayout), Value>,
}

struct Pass<'a> {
    kernel: &'a mut Kernel,
    layouts: Layouts,
    recomputed: Recomputed,
    /// The number of the frame that defines a value.
    depth: SecondaryMap<Value, u32>,
    frames: Vec<Frame>,
    prices: FxHashMap<(RegisterLayout, RegisterLayout, DType), u64>,
    inserted: Vec<(Op, &'static str)>,
    /// Some value was computed again, and may be of no use any more.
    replaced: bool,
}

/// How a shape op is made to fit.
struct Fit {
    cost: u64,
    operand: RegisterLayout,
    /// What it makes then, if that is not what its result is to be.
    natural: Option<RegisterLayout>,
}

impl Pass<'_> {
    fn region(&mut self, border: &Border, is_loop: bool, loc: Loc, user: &'static str) -> Result<()> {
        let region = border.region;
        self.frames.push(Frame {
            ops: vec![],
            is_loop,
            available: FxHashMap::default(),
        });
        let here = self.frames.len() as u32 - 1;
        let params = self.kernel.regions[region].params.clone();
        for (i, &v) in params.iter().enumerate() {
            self.depth[v] = here;
            let natural = border
                .params
                .get(i)
                .and_then(|gives: &Gives| gives.of_param(&self.layouts));
            if let Some(natural) = natural.filter(|_| !self.kernel.ty(v).is_scalar())
                && self.layouts[v].as_ref() != Some(&natural)
            {
                let made = self.new_value(v, natural);
                self.kernel.regions[region].params[i] = made;
                self.convert_result(made, v, loc, user);
            }
        }
        for op in std::mem::take(&mut self.kernel.regions[region].ops) {
            self.op(op)?;
        }
        let mut results = std::mem::take(&mut self.kernel.regions[region].results);
        for (v, need) in results.iter_mut().zip(&border.results) {
            if let Some(to) = need.unmet(self.kernel, &self.layouts, *v) {
                let loc = self.kernel.def_op(*v).map_or(loc, |op| self.kernel.ops[op].loc);
                *v = self.convert(*v, &to, loc, user);
            }
        }
        self.kernel.regions[region].results = results;
        if let Some(frame) = self.frames.pop() {
            self.kernel.regions[region].ops = frame.ops;
        }
        Ok(())
    }

    fn op(&mut self, op: Op) -> Result<()> {
        let sig = signature::of(self.kernel, op).map_err(|e| e.at(self.kernel.ops[op].loc))?;
        let (loc, user) = (self.kernel.ops[op].loc, self.kernel.ops[op].kind.name());
        let results = self.kernel.ops[op].results.clone();
        let mut operands: SmallVec<[Value; 4]> = SmallVec::new();
        for_each_value(&self.kernel.ops[op].kind, &mut |v| operands.push(v));
        let mut wanted: SmallVec<[Option<RegisterLayout>; 4]> = operands
            .iter()
            .zip(&sig.operands)
            .map(|(v, need)| need.unmet(self.kernel, &self.layouts, *v))
            .collect();
        let mut fit = None;
        if let Some(&result) = results.first()
            && !self.is_empty(result)
        {
            if matches!(sig.operands.first(), Some(Need::Derives))
                && self.layouts[operands[0]].is_some()
                && !self.is_empty(operands[0])
            {
                let found = self.fit(op, &sig, operands[0], result);
                wanted[0] = Some(found.operand.clone());
                fit = Some(found);
            }
            if sig.moves {
                self.prepare_to_move(op, &sig, &operands, &mut wanted, fit.as_ref());
            }
        }
        let mut changed = false;
        for (v, to) in operands.iter_mut().zip(&wanted) {
            if let Some(to) = to {
                let converted = self.convert(*v, to, loc, user);
                changed |= converted != *v;
                *v = converted;
            }
        }
        if changed {
            let mut next = operands.iter();
            map_values(&mut self.kernel.ops[op].kind, &mut |v| {
                if let Some(w) = next.next() {
                    *v = *w;
                }
            });
        }
        for border in &sig.regions {
            self.region(border, sig.is_loop, loc, user)?;
        }
        self.frame().ops.push(op);
        let here = self.frames.len() as u32 - 1;
        for (k, &v) in results.iter().enumerate() {
            self.depth[v] = here;
            let natural = match &fit {
                Some(fit) if k == 0 => fit.natural.clone(),
                _ => sig.natural(self.kernel, op, &self.layouts, &operands, k),
            };
            let is_made =
                !self.kernel.ty(v).is_scalar() && !self.is_empty(v) && !operands.iter().any(|a| self.is_empty(*a));
            if let Some(natural) = natural.filter(|_| is_made || !sig.regions.is_empty())
                && self.layouts[v].as_ref() != Some(&natural)
            {
                let made = self.new_value(v, natural);
                self.kernel.values[made].def = op.into();
                self.kernel.ops[op].results[k] = made;
                self.convert_result(made, v, loc, user);
            }
        }
        Ok(())
    }

    fn is_empty(&self, v: Value) -> bool {
        self.kernel.ty(v).shape().contains(&0)
    }

    fn frame(&mut self) -> &mut Frame {
        self.frames.last_mut().expect("ops are visited in a region")
    }

    /// Another value of `v`'s type.
    fn new_value(&mut self, v: Value, layout: RegisterLayout) -> Value {
        let (ty, group) = (self.kernel.ty(v).clone(), self.kernel.values[v].group);
        let made = self.kernel.new_value(ty, group);
        self.layouts[made] = Some(layout);
        self.depth[made] = self.frames.len() as u32 - 1;
        made
    }

    /// Makes `v`, which has a layout already, out of `made`.
    fn convert_result(&mut self, made: Value, v: Value, loc: Loc, user: &'static str) {
        let op = self.kernel.ops.push(OpData {
            kind: OpKind::Relayout { a: made },
            results: [v].into_iter().collect(),
            loc,
        });
        self.kernel.values[v].def = op.into();
        self.inserted.push((op, user));
        let natural = self.layouts[made].clone();
        let frame = self.frame();
        frame.ops.push(op);
        // Uses of it in the layout that it was made in.
        if let Some(natural) = natural {
            frame.available.insert((v, natural), made);
        }
    }

    /// `v` in a layout.
    fn convert(&mut self, v: Value, to: &RegisterLayout, loc: Loc, user: &'static str) -> Value {
        if self.kernel.ty(v).is_scalar() || self.layouts[v].as_ref() == Some(to) {
            return v;
        }
        let key = (v, to.clone());
        if let Some(w) = self.frames.iter().find_map(|frame| frame.available.get(&key)) {
            return *w;
        }
        if let Some(w) = self.recompute(v, to, loc, user) {
            self.replaced = true;
            self.frame().available.insert(key, w);
            return w;
        }
        let mut place = self.frames.len() - 1;
        if self.price(v, to) > 0 {
            while place > self.depth[v] as usize && self.frames[place].is_loop {
                place -= 1;
            }
        }
        let made = self.new_value(v, to.clone());
        self.depth[made] = place as u32;
        let op = self.kernel.ops.push(OpData {
            kind: OpKind::Relayout { a: v },
            results: [made].into_iter().collect(),
            loc,
        });
        self.kernel.values[made].def = op.into();
        self.inserted.push((op, user));
        self.frames[place].ops.push(op);
        self.frames[place].available.insert(key, made);
        made
    }

    /// The op that makes `v` once more, for a result in another layout; `None`: that would not do.
    fn recompute(&mut self, v: Value, to: &RegisterLayout, loc: Loc, user: &'static str) -> Option<Value> {
        if !self.recomputed.contains(v) {
            return None;
        }
        let op = self.kernel.def_op(v)?;
        let mut kind = self.kernel.ops[op].kind.clone();
        let mut operand = to.clone();
        if let OpKind::LayoutCast { a, .. } = kind {
            return Some(self.convert(a, to, loc, user));
        }
        if matches!(kind, OpKind::Iota { dim } if is_constant_along(to, dim as usize)) {
            return None;
        }
        if let OpKind::Broadcast { a, dims } = &kind {
            let dims = dims.iter().map(|d| *d as usize).collect();
            let how = Derivation::Broadcast { dims };
            operand = how.backward(to, self.kernel.ty(*a).shape())?;
            how.forward(&operand, to.shape())?.rename_to(to)?;
        }
        let mut operands: SmallVec<[Value; 4]> = SmallVec::new();
        for_each_value(&kind, &mut |v| operands.push(v));
        for a in &mut operands {
            if self.recomputed.contains(*a) {
                *a = self.convert(*a, &operand, loc, user);
            }
        }
        let mut next = operands.iter();
        map_values(&mut kind, &mut |v| {
            if let Some(w) = next.next() {
                *v = *w;
            }
        });
        let made = self.new_value(v, to.clone());
        let op = self.kernel.ops.push(OpData {
            kind,
            results: [made].into_iter().collect(),
            loc: self.kernel.ops[op].loc,
        });
        self.kernel.values[made].def = op.into();
        self.recomputed.insert(made);
        self.frame().ops.push(op);
        Some(made)
    }

    /// What having `v` in a layout costs, where it is needed.
    fn price(&mut self, v: Value, to: &RegisterLayout) -> u64 {
        let Some(from) = self.layouts[v].clone() else { return 0 };
        if self.recomputed.contains(v) && from != *to {
            return self.kernel.target.recomputing_costs;
        }
        self.price_of(&from, to, self.kernel.ty(v).dtype())
    }

    fn price_of(&mut self, from: &RegisterLayout, to: &RegisterLayout, dtype: DType) -> u64 {
        if from == to || from.shape().contains(&0) || from.rename_to(to).is_some() {
            return 0;
        }
        // What is there in the end may be less.
        let scratch = self.kernel.target.scratch_budgets[0];
        *self.prices.entry((from.clone(), to.clone(), dtype)).or_insert_with(|| {
            let plan = |scratch| relayout::plan(from, to, travel_bits(dtype), scratch);
            let plan = plan(scratch).or_else(|_| plan(u64::MAX / 8));
            plan.map_or(IMPOSSIBLE, |plan| u64::from(plan.cost))
        })
    }

    /// The cheapest way from the operand of a shape op to its result: which layout the operand is converted to, and what is
    /// converted after.
    fn fit(&mut self, op: Op, sig: &Signature, a: Value, result: Value) -> Fit {
        let (kernel, dtype) = (&*self.kernel, self.kernel.ty(result).dtype());
        let own = self.layouts[a].clone().expect("an array has a layout");
        let scalar = RegisterLayout::splat(&[], own.group());
        let to = self.layouts[result].clone().unwrap_or(scalar);
        let how = sig.derived.clone().expect("the operand derives the result");
        let (shape, is_scalar) = (kernel.ty(a).shape().to_vec(), kernel.ty(result).is_scalar());
        if sig.moves
            && !matches!(
                movement::of(kernel, op, Some(&how), &[&own], &to),
                Movement::Scratch { .. }
            )
        {
            return Fit {
                cost: 0,
                operand: own,
                natural: None,
            };
        }
        let bits = kernel.ty(a).dtype().bits();
        let invariant =
            (self.depth[a] as usize) < self.frames.len() - 1 && self.frames.last().is_some_and(|f| f.is_loop);
        let candidates = [
            Some(own.clone()),
            how.backward(&to, &shape),
            Some(blocked(&shape, bits, own.group())),
        ];
        let mut best: Option<Fit> = None;
        for operand in candidates.into_iter().flatten() {
            let Some(natural) = how.forward(&operand, to.shape()) else {
                continue;
            };
            let after = if is_scalar {
                0
            } else {
                self.price_of(&natural, &to, dtype)
            };
            let before = self.price(a, &operand) / if invariant { 10 } else { 1 };
            let is_done = is_scalar || natural == to || sig.moves && after == 0 && natural.rename_to(&to).is_some();
            if best.as_ref().is_none_or(|best| before + after < best.cost) {
                best = Some(Fit {
                    cost: before + after,
                    operand,
                    natural: (!is_done).then_some(natural),
                });
            }
        }
        // Where nothing follows, the op takes the elements through shared memory itself, one by one.
        best.filter(|best| best.cost < IMPOSSIBLE).unwrap_or(Fit {
            cost: IMPOSSIBLE,
            operand: own,
            natural: None,
        })
    }

    /// Operands that go through memory are spread over threads and slots.
    fn prepare_to_move(
        &mut self,
        op: Op,
        sig: &Signature,
        operands: &[Value],
        wanted: &mut [Option<RegisterLayout>],
        fit: Option<&Fit>,
    ) {
        let result = self.kernel.ops[op].results[0];
        let Some(to) = &self.layouts[result] else { return };
        let layouts: SmallVec<[RegisterLayout; 4]> = operands
            .iter()
            .zip(wanted.iter())
            .filter(|(v, _)| movement::takes_part(self.kernel, op, **v))
            .filter_map(|(v, wanted)| wanted.clone().or_else(|| self.layouts[*v].clone()))
            .collect();
        let layouts: SmallVec<[&RegisterLayout; 4]> = layouts.iter().collect();
        let follows = fit.is_some_and(|fit| fit.natural.is_some());
        let moves = || movement::of(self.kernel, op, sig.derived.as_ref(), &layouts, to);
        if layouts.is_empty() || follows || !matches!(moves(), Movement::Scratch { .. }) {
            return;
        }
        for (v, wanted) in operands.iter().zip(wanted) {
            if let Some(layout) = wanted.clone().or_else(|| self.layouts[*v].clone())
                && layout.is_constant_somewhere()
                && !layout.is_splat()
            {
                *wanted = Some(materialized(&layout));
            }
        }
    }
}

/// Removes pure ops with unused results, as recomputed values leave them behind.
fn remove_unused(kernel: &mut Kernel, layouts: &Layouts) {
    let mut uses = kernel.use_counts();
    let mut order = vec![];
    kernel.for_each_op(&mut |op| order.push(op));
    let mut gone: EntitySet<Op> = EntitySet::new();
    for &op in order.iter().rev() {
        let data = &kernel.ops[op];
        let is_array = |v: &Value| layouts[*v].is_some();
        if data.kind.is_pure() && data.results.iter().all(|v| uses[*v] == 0 && is_array(v)) {
            gone.insert(op);
            for_each_value(&data.kind, &mut |v| uses[v] -= 1);
        }
    }
    for region in kernel.regions.values_mut() {
        region.ops.retain(|op| !gone.contains(*op));
    }
}
