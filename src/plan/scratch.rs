//! Scratch: what passes through shared memory that no user allocated, planned once for allocation and for lowering.
//!
//! Changes of layout between warps, shape ops whose elements change threads, reductions over warps, scalars that one thread
//! reads for all. Their plans are made here and emitted by lowering; scratch is as large as the largest of them.
use super::allocate::{self, Allocation};
use super::leader_loads;
use super::size::too_many_values;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::kernel_ir::class::{Class, Pure};
use crate::kernel_ir::effects::{self, Look};
use crate::kernel_ir::op::is_short_run;
use crate::kernel_ir::polling::{self, Polling};
use crate::kernel_ir::visit::{for_each_region, for_each_value};
use crate::kernel_ir::{DotArithmetic, Group, Kernel, MmaOperand, Op, OpKind, Region, Type, Value};
use crate::layout::dot::{self, DotPlan};
use crate::layout::exchange::{self, TakePlan};
use crate::layout::in_place::{InPlace, Side};
use crate::layout::infer::group_of;
use crate::layout::movement::{self, Movement};
use crate::layout::relayout::{self, RelayoutError, RelayoutKind, RelayoutPlan, travel_bits};
use crate::layout::scan::ScanPlan;
use crate::layout::views;
use crate::layout::{Assignment, ReducePlan, RegisterLayout, signature};
use crate::target::{Features, Target};
use cranelift_entity::SecondaryMap;
use rustc_hash::FxHashMap;
use std::collections::hash_map::Entry;

/// Bytes of a word that one thread broadcasts.
const BROADCAST: u64 = 8;

/// The plans of a kernel's exchanges between threads.
#[derive(Clone, Debug, Default)]
pub struct Exchanges {
    /// Of the `relayout` ops that are more than other names for registers.
    pub relayouts: FxHashMap<Op, RelayoutPlan>,
    /// Of the shape ops.
    pub movements: FxHashMap<Op, Movement>,
    /// Of the products of arrays.
    pub products: FxHashMap<Op, DotPlan>,
    /// Of those that take elements of an array wherever they are.
    pub takes: FxHashMap<Op, TakePlan>,
    /// Ops that pass something through scratch.
    pub rendezvous: SecondaryMap<Op, bool>,
    /// Loads of scalars that the first lane makes for itself.
    pub by_leader: SecondaryMap<Op, bool>,
    /// Scratch of each warpgroup.
    pub bytes: u32,
    /// How many bytes of it ops need.
    pub needs: Vec<(u64, Op)>,
}

/// Bytes that what can be cut into passes or slices may take.
#[derive(Clone, Copy, Debug)]
pub struct Budget {
    /// Changes of layout, reductions.
    pub exchanges: u64,
    /// Operands of products.
    pub products: u64,
    /// Arrays from which elements are taken.
    pub takes: u64,
}

impl Budget {
    /// The best first.
    fn all(kernel: &Kernel) -> impl Iterator<Item = Budget> + use<> {
        let (budgets, products) = (kernel.target.scratch_budgets, kernel.target.product_budget);
        let of = |exchanges, products, takes| Budget {
            exchanges,
            products,
            takes,
        };
        let last = budgets[budgets.len() - 1];
        // What is taken from lies there as a whole where there is room: it is looked up once.
        std::iter::once(of(budgets[0], products, u64::MAX))
            .chain(budgets.into_iter().map(move |b| of(b, b, b)))
            .chain([of(last, 0, last)])
    }
}

/// Plans all exchanges. `movements`: what is known of those of shape ops, which no budget changes.
pub fn run(
    kernel: &Kernel,
    assignment: &Assignment,
    budget: Budget,
    movements: FxHashMap<Op, Movement>,
) -> Result<Exchanges> {
    let mut planner = Planner {
        kernel,
        assignment,
        budget,
        polling: polling::find(kernel),
        out: Exchanges {
            by_leader: leader_loads::find(kernel),
            movements,
            ..Exchanges::default()
        },
        need: 0,
    };
    planner.region(kernel.body)?;
    let Planner { mut out, need, .. } = planner;
    out.bytes = u32::try_from(need).unwrap_or(u32::MAX / 2);
    Ok(out)
}

/// Plans exchanges and places everything in shared memory. What does not fit is planned again in smaller passes, before the
/// kernel is refused.
pub fn allocate(kernel: &Kernel, assignment: &Assignment) -> Result<(Exchanges, Allocation)> {
    let mut refused = None;
    let mut movements = FxHashMap::default();
    for budget in Budget::all(kernel) {
        let mut exchanges = run(kernel, assignment, budget, movements)?;
        match allocate::run(kernel, exchanges.bytes, &exchanges.needs) {
            // What does not depend on the budget does not get smaller.
            Err(_) if refused.as_ref().is_some_and(|(bytes, _)| *bytes <= exchanges.bytes) => {}
            Err(error) => refused = Some((exchanges.bytes, error)),
            Ok(done) => {
                let (rendezvous, by_leader) = (exchanges.rendezvous.clone(), exchanges.by_leader.clone());
                return Ok((
                    exchanges,
                    Allocation {
                        rendezvous,
                        by_leader,
                        ..done
                    },
                ));
            }
        }
        movements = std::mem::take(&mut exchanges.movements);
    }
    Err(refused.map_or_else(|| Error::internal("no budget"), |(_, error)| error))
}

struct Planner<'a> {
    kernel: &'a Kernel,
    assignment: &'a Assignment,
    budget: Budget,
    polling: Polling,
    out: Exchanges,
    need: u64,
}

impl Planner<'_> {
    fn region(&mut self, region: Region) -> Result<()> {
        let data = &self.kernel.regions[region];
        // Each warp has a quarter of its warpgroup's.
        let parts = if data.group == Group::Warp { 4 } else { 1 };
        for &op in &data.ops {
            let budget = Budget {
                exchanges: self.budget.exchanges / parts,
                products: self.budget.products / parts,
                takes: self.budget.takes / parts,
            };
            let need = self.op(op, budget).map_err(|e| e.at(self.kernel.ops[op].loc))?;
            self.need = self.need.max(need.saturating_mul(parts));
            if need > 0 {
                self.out.needs.push((need.saturating_mul(parts), op));
            }
            // Nothing is made of nothing without a trip.
            let mut is_empty = false;
            for_each_value(&self.kernel.ops[op].kind, &mut |v| {
                is_empty |= self.kernel.ty(v).shape().contains(&0)
            });
            self.out.rendezvous[op] = need > 0 && !is_empty;
            let mut regions = vec![];
            for_each_region(&self.kernel.ops[op].kind, &mut |r| regions.push(r));
            for r in regions {
                self.region(r)?;
            }
        }
        Ok(())
    }

    /// The bytes that an op passes through scratch.
    fn op(&mut self, op: Op, budget: Budget) -> Result<u64> {
        let kernel = self.kernel;
        let data = &kernel.ops[op];
        let is_scalar = |v: Value| kernel.ty(v).is_scalar();
        let is_empty = |v: Value| kernel.ty(v).shape().contains(&0);
        Ok(match data.kind.class() {
            Class::Pure(Pure::Relayout { a }) if !is_empty(a) => {
                let (from, to) = (self.assignment.layout(a)?, self.assignment.layout(data.results[0])?);
                let dtype = kernel.ty(a).dtype();
                if is_renamed(from, to, dtype) {
                    return Ok(0);
                }
                let plan = plan(from, to, kernel.ty(a), &kernel.target, budget.exchanges)?;
                let bytes = match &plan.kind {
                    RelayoutKind::Registers(_) => 0,
                    RelayoutKind::Scratch(plan) => plan.bytes,
                };
                self.out.relayouts.insert(op, plan);
                bytes
            }
            Class::Pure(Pure::Shape(_)) => self.movement(op)?,
            Class::Pure(Pure::Exchange | Pure::Run) => match self.scan(op)? {
                Some(scan) => scan.bytes,
                None => self.exchange(op, budget.takes)?,
            },
            Class::Pure(Pure::Reduce { a, axes }) if !is_scalar(a) && !is_empty(a) => {
                let layout = self.assignment.layout(a)?;
                let axes: Vec<usize> = axes.iter().map(|d| *d as usize).collect();
                match layout.reduce_plan(&axes) {
                    Some(plan) if plan.warp_bits != 0 => {
                        let one = u64::from(PartialResults::of(kernel.ty(a).dtype(), &plan, layout).bytes());
                        one * (budget.exchanges / one).clamp(1, plan.slots.len() as u64)
                    }
                    _ => 0,
                }
            }
            Class::Memory if matches!(data.kind, OpKind::DotInPlace { .. }) => self.in_place(op, budget.products)?,
            Class::Memory | Class::Synchronisation => match effects::look(&data.kind) {
                Some(Look::Memory(src)) if is_scalar(data.results[0]) => {
                    // What a loop polls, and what others may write meanwhile, one thread loads for all: one load counts.
                    let is_broadcast = self.polling.looks[op].is_some() || kernel.allocs[src.alloc].is_gmem();
                    if is_broadcast && !self.out.by_leader[op] && !kernel.is_input(src.alloc) {
                        BROADCAST
                    } else {
                        0
                    }
                }
                Some(Look::Semaphore | Look::Barrier) => BROADCAST,
                Some(Look::Memory(_)) | None => 0,
            },
            Class::Instructions => {
                let is_broadcast =
                    matches!(&data.kind, OpKind::InlinePtx { code, .. } if code.once && !data.results.is_empty());
                if is_broadcast { BROADCAST } else { 0 }
            }
            Class::Pure(Pure::Product { a, b, .. }) => {
                let OpKind::Dot { arithmetic, .. } = data.kind else {
                    return Err(Error::internal("a product that is none"));
                };
                let ty = kernel.ty(a);
                let (a, b) = (self.assignment.layout(a)?, self.assignment.layout(b)?);
                let k = (ty.shape().last().copied().unwrap_or(1), ty.dtype().bits());
                let tiling = dot::tiling(
                    arithmetic,
                    kernel.ty(data.results[0]).shape(),
                    a.group(),
                    kernel.dealing,
                );
                let left = left_operand(kernel, arithmetic, &tiling, a, k.1);
                let operands = [left, dot::Operand::Registers(b)];
                let plan = dot::plan(arithmetic, tiling, k, operands, budget.products)
                    .map_err(|e| Error::internal(e.to_string()))?;
                let bytes = plan.bytes;
                self.out.products.insert(op, plan);
                bytes
            }
            Class::Pure(
                Pure::Constant(_)
                | Pure::AxisIndex(_)
                | Pure::Iota
                | Pure::Elementwise(_)
                | Pure::Bitcast
                | Pure::Reduce { .. }
                | Pure::LayoutCast
                | Pure::Relayout { .. }
                | Pure::Inline,
            )
            | Class::Pinned
            | Class::Tensor
            | Class::Accumulator
            | Class::Control(_)
            | Class::Aside => 0,
        })
    }

    /// A product whose operands, or one of them, are read where they are.
    fn in_place(&mut self, op: Op, budget: u64) -> Result<u64> {
        let kernel = self.kernel;
        let data = &kernel.ops[op];
        let OpKind::DotInPlace { a, b, .. } = &data.kind else {
            return Err(Error::internal("a product that reads no memory"));
        };
        let arithmetic = DotArithmetic::TensorCore;
        let (k, dtype) = match a {
            MmaOperand::Smem(r) => (r.shape.last(), r.dtype()),
            MmaOperand::Registers(v) => (kernel.ty(*v).shape().last(), Some(kernel.ty(*v).dtype())),
        };
        let (Some(&k), Some(dtype)) = (k, dtype) else {
            return Err(Error::internal("an operand without elements"));
        };
        let result = data.results[0];
        let group = group_of(kernel.values[result].group);
        let tiling = dot::tiling(arithmetic, kernel.ty(result).shape(), group, kernel.dealing);
        let step = dot::step(arithmetic, u64::from(dtype.bits() / 8));
        let in_place = |operand: &MmaOperand, side| match operand {
            MmaOperand::Registers(_) => Ok(None),
            MmaOperand::Smem(r) => {
                let view = views::smem(kernel, &self.assignment.smem, r, true)?;
                let found = InPlace::of(&view, side, &tiling, step);
                found
                    .map(Some)
                    .ok_or_else(|| Error::internal("an operand that cannot be read in place"))
            }
        };
        let own = [in_place(a, Side::Left)?, in_place(b, Side::Right)?];
        let mut operands = vec![];
        for (operand, own) in [a, b].into_iter().zip(&own) {
            operands.push(match (operand, own) {
                (MmaOperand::Registers(v), _) => dot::Operand::Registers(self.assignment.layout(*v)?),
                (MmaOperand::Smem(_), Some(own)) => dot::Operand::InPlace(own),
                (MmaOperand::Smem(_), None) => return Err(Error::internal("an operand in neither place")),
            });
        }
        let &[left, right] = operands.as_slice() else {
            return Err(Error::internal("a product of other than two operands"));
        };
        let left = match left {
            dot::Operand::Registers(layout) => left_operand(kernel, arithmetic, &tiling, layout, dtype.bits()),
            dot::Operand::Fragments | dot::Operand::InPlace(_) => left,
        };
        let operands = [left, right];
        let plan = dot::plan(arithmetic, tiling.clone(), (k, dtype.bits()), operands, budget)
            .map_err(|e| Error::internal(e.to_string()))?;
        let bytes = plan.bytes;
        self.out.products.insert(op, plan);
        Ok(bytes)
    }

    /// How a running reduction is done in registers, where it is one and can be.
    fn scan(&self, op: Op) -> Result<Option<ScanPlan>> {
        let OpKind::Cumulative { a, axis, .. } = self.kernel.ops[op].kind else {
            return Ok(None);
        };
        let ty = self.kernel.ty(a);
        if ty.shape().contains(&0) || is_short_run(ty.shape(), axis as usize) {
            return Ok(None);
        }
        let element = exchange::running_element(ty.dtype());
        Ok(ScanPlan::of(self.assignment.layout(a)?, axis as usize, element))
    }

    /// What any thread may need of any other.
    fn exchange(&mut self, op: Op, budget: u64) -> Result<u64> {
        let kernel = self.kernel;
        let OpKind::Take { a, at, .. } = kernel.ops[op].kind else {
            return Ok(exchange::bytes(kernel, op));
        };
        if kernel.ty(at).shape().contains(&0) {
            return Ok(0);
        }
        let plan = TakePlan::of(kernel.ty(a).dtype(), self.assignment.layout(a)?, budget);
        self.out.takes.insert(op, plan);
        Ok(plan.bytes)
    }

    fn movement(&mut self, op: Op) -> Result<u64> {
        let kernel = self.kernel;
        let result = kernel.ops[op].results[0];
        if kernel.ty(result).is_scalar() || kernel.ty(result).shape().contains(&0) {
            return Ok(0);
        }
        let mut operands = vec![];
        for_each_value(&kernel.ops[op].kind, &mut |v| operands.push(v));
        operands.retain(|v| movement::takes_part(kernel, op, *v));
        if operands.is_empty() {
            return Ok(0);
        }
        let layouts = operands
            .iter()
            .map(|v| self.assignment.layout(*v))
            .collect::<Result<Vec<_>>>()?;
        let movement = match self.out.movements.entry(op) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(entry) => {
                let derived = signature::of(kernel, op)?.derived;
                let result = self.assignment.layout(result)?;
                entry.insert(movement::of(kernel, op, derived.as_ref(), &layouts, result))
            }
        };
        let bytes = match *movement {
            Movement::Stay | Movement::Rename(_) => 0,
            Movement::Scratch { bytes } => {
                let nowhere = |l: &&RegisterLayout| l.is_constant_somewhere() && !l.is_splat();
                if let Some(layout) = layouts.into_iter().find(nowhere) {
                    return Err(Error::internal(format!(
                        "a shape op stores {layout}, which is constant somewhere"
                    )));
                }
                bytes
            }
        };
        Ok(bytes)
    }
}

/// Whether a change of layout is other names for whole registers.
pub fn is_renamed(from: &RegisterLayout, to: &RegisterLayout, dtype: DType) -> bool {
    (dtype == DType::Bool || dtype.bits() >= 32) && from.rename_to(to).is_some()
}

fn plan(from: &RegisterLayout, to: &RegisterLayout, ty: &Type, target: &Target, budget: u64) -> Result<RelayoutPlan> {
    let dtype = ty.dtype();
    let plan = |budget| relayout::plan(from, to, travel_bits(dtype), budget);
    let plan = match plan(budget) {
        // No pass is smaller.
        Err(RelayoutError::Scratch { needed, .. }) => plan(needed),
        plan => plan,
    };
    plan.map_err(|e| match e {
        RelayoutError::TooLarge(words) => too_many_values(target, words, Some(ty)),
        e => Error::unsupported(format!("a change of layout of {ty}: {e}"))
            .remedy("store the array to shared memory, and load it in the other layout"),
    })
}

/// How the partial results of a reduction over warps lie in scratch.
#[derive(Clone, Copy, Debug)]
pub struct PartialResults {
    /// Of one partial result: 4, or 8.
    pub element_bytes: u32,
    /// Lanes that hold the same result share one word: 1, or 32.
    pub lanes: u32,
}

impl PartialResults {
    /// `dtype`: of the array that is reduced, in `layout`.
    pub fn of(dtype: DType, plan: &ReducePlan, layout: &RegisterLayout) -> PartialResults {
        let all_lanes = (1u8 << crate::layout::register_layout::LANE_BITS) - 1;
        let equal_lanes = (plan.lane_bits | layout.replicated_bits()) & all_lanes == all_lanes;
        PartialResults {
            element_bytes: if dtype.bits() == 64 { 8 } else { 4 },
            lanes: if equal_lanes { 1 } else { 32 },
        }
    }

    /// Of one result: four warps' parts.
    pub fn bytes(&self) -> u32 {
        4 * self.lanes * self.element_bytes
    }
}

/// A left operand in registers, as its product takes it. With `wgmma` products of what other products give are its own, and the rest
/// goes through scratch: what is better there was not measured.
fn left_operand<'a>(
    kernel: &Kernel,
    arithmetic: DotArithmetic,
    tiling: &dot::Tiling,
    layout: &'a RegisterLayout,
    bits: u32,
) -> dot::Operand<'a> {
    let is_direct = !kernel.target.has(Features::WGMMA) && dot::is_fragments(arithmetic, tiling, layout, bits);
    match is_direct {
        true => dot::Operand::Fragments,
        false => dot::Operand::Registers(layout),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel_ir::testing::KernelBuilder;
    use crate::kernel_ir::{LayoutSpec, ReduceOp};
    use crate::layout::infer;

    const SMEM: u64 = 227 * 1024;

    /// Loads an f32 array in one layout, stores it in another; `data` bytes of shared memory are the user's.
    fn converted(data: u64) -> Kernel {
        let shape = [128u64, 128];
        let mut b = KernelBuilder::new();
        let buffer = b.smem(DType::U8, &[data], None);
        let input = b.input(DType::F32, &shape);
        let x = b.load(b.whole(input));
        let cast = |b: &mut KernelBuilder, a, layout| b.op1(OpKind::LayoutCast { a, layout }, DType::F32, &shape);
        let strided = LayoutSpec::Strided {
            shape: shape.as_slice().into(),
            vec: 4,
        };
        let wgmma = LayoutSpec::Named {
            name: "WGMMA".into(),
            args: vec![],
        };
        let x = cast(&mut b, x, strided);
        let x = cast(&mut b, x, wgmma);
        let out = b.output(DType::F32, &shape);
        b.store(b.whole(out), x);
        let mut kernel = b.finish();
        let body = kernel.body;
        let inner = kernel.new_region(Group::Warpgroup);
        kernel.regions[inner].ops = std::mem::take(&mut kernel.regions[body].ops);
        let scope = OpKind::Scope {
            allocs: vec![buffer],
            collective: true,
            body: inner,
        };
        kernel.append(body, scope, [], crate::error::Loc::CALL_SITE);
        kernel
    }

    fn scratch_beside(data: u64) -> Result<u32> {
        let mut kernel = converted(data);
        let assignment = infer::run(&mut kernel)?;
        assert_eq!(assignment.relayouts.len(), 1, "{kernel}");
        let (exchanges, allocation) = allocate(&kernel, &assignment)?;
        assert_eq!(allocation.scratch.bytes, exchanges.bytes.next_multiple_of(512));
        let plan = exchanges.relayouts.values().next().expect("one relayout");
        let RelayoutKind::Scratch(plan) = &plan.kind else {
            panic!("warps exchange elements")
        };
        assert_eq!(plan.bytes * plan.trips.len() as u64, 128 * 128 * 4);
        Ok(exchanges.bytes)
    }

    #[test]
    fn where_room_is_short_relayouts_take_more_passes_and_then_the_kernel_is_refused() {
        assert_eq!(scratch_beside(1024).unwrap(), 32 * 1024);
        assert_eq!(scratch_beside(SMEM - 20 * 1024).unwrap(), 16 * 1024);
        assert_eq!(scratch_beside(SMEM - 10 * 1024).unwrap(), 8 * 1024);
        let error = scratch_beside(SMEM - 4 * 1024).unwrap_err();
        assert!(error.to_string().contains("at most 232448 bytes"), "{error}");
    }

    /// Scratch of a sum over these axes of an f32[64, 256] as it is loaded, warps along the rows.
    fn of_sum(axes: &[u32]) -> u32 {
        let mut b = KernelBuilder::new();
        let input = b.input(DType::F32, &[64, 256]);
        let x = b.load(b.whole(input));
        let kept: Vec<u64> = [64, 256]
            .into_iter()
            .zip(0..)
            .filter(|(_, d)| !axes.contains(d))
            .map(|(n, _)| n)
            .collect();
        let kind = OpKind::Reduce {
            op: ReduceOp::Sum,
            a: x,
            axes: axes.to_vec(),
            parallel: None,
        };
        let sum = b.op(kind, &[Type::of(DType::F32, kept.as_slice())])[0];
        let out = b.output(DType::F32, &kept);
        b.store(b.whole(out), sum);
        let mut kernel = b.finish();
        let assignment = infer::run(&mut kernel).unwrap();
        run(
            &kernel,
            &assignment,
            Budget::all(&kernel).next().unwrap(),
            FxHashMap::default(),
        )
        .unwrap()
        .bytes
    }

    #[test]
    fn a_reduction_has_the_scratch_of_its_partial_results() {
        assert_eq!(of_sum(&[0, 1]), 4 * 4, "one number of each warp");
    }
}
