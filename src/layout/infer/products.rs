//! Products of arrays that `wgmma` can compute: from operands in shared memory, where they are, else by way of [`staged_products`].
//!
//! **Legal** where an operand is a load of shared memory, perhaps transposed, and from the load to the product nothing is stored there
//! and nothing is released: a write of the elements has to be ordered behind their reads. The left operand may be in
//! registers. The arithmetic is that of `mma.sync` (exact products, the same cuts of sums). f32 is not read from memory: `wgmma`
//! cuts operands to tf32 instead of rounding them.
//!
//! **Memory** has to lie as the tensor core wants it. An allocation without transforms of the user's gets the widest swizzle, if all of
//! its uses allow that: copies still have plans, and views are views. Products for which that fails stay what they are.
use super::smem::{self, MatrixUse, Side};
use super::{in_place_products, slice_products, staged_products};
use crate::dtype::DType;
use crate::error::{Loc, Result};
use crate::kernel_ir::legality::tensor_core;
use crate::kernel_ir::loads::Loads;
use crate::kernel_ir::motion::releases_nothing;
use crate::kernel_ir::*;
use crate::layout::tma::CopyPlan;
use crate::layout::views::{self, CopyUse, Transforms};
use crate::target::Features;
use cranelift_entity::{EntitySet, SecondaryMap};
use rustc_hash::FxHashMap;

/// More boxes for one copy are not worth a swizzle.
const MAX_PIECES: usize = 16;

/// Returns what products would like allocations to be, which all of their uses allow.
pub(super) fn run(kernel: &mut Kernel) -> Result<Transforms> {
    let (mut is_any, mut is_asynchronous) = (false, false);
    kernel.for_each_op(&mut |op| {
        is_any |= matches!(kernel.ops[op].kind, OpKind::Dot { .. });
        // Its waits would have to count these groups, too.
        is_asynchronous |= matches!(kernel.ops[op].kind, OpKind::Wgmma { .. });
    });
    let mut wanted = Transforms::new();
    if !is_any {
        return Ok(wanted);
    }
    if !is_asynchronous && kernel.target.has(Features::WGMMA) {
        let mut found = find(kernel);
        settle(kernel, &mut found);
        if !found.is_empty() {
            Rewrite::of(kernel, found).run();
        }
        wanted = staged_products::run(kernel);
    }
    in_place_products::run(kernel, &mut wanted);
    slice_products::run(kernel)?;
    Ok(wanted)
}

/// A product for `wgmma`.
struct Candidate {
    /// Absent: in registers.
    a: Option<RefUse>,
    /// K × N.
    b: RefUse,
}

type Candidates = FxHashMap<Op, Candidate>;

fn find(kernel: &Kernel) -> Candidates {
    let mut out = Candidates::default();
    for region in kernel.live_regions() {
        let region = &kernel.regions[region];
        if region.group == Group::Warp {
            continue;
        }
        let mut loads = Loads::default();
        for &op in &region.ops {
            loads.pass(kernel, op);
            if let Some(candidate) = candidate(kernel, op, &loads) {
                out.insert(op, candidate);
            }
        }
    }
    out
}

/// What a product by tensor cores multiplies: 8-bit floats themselves, which it has as f16, where sums may be the tensor core's own.
pub(super) fn factors(kernel: &Kernel, op: Op) -> Option<[Value; 2]> {
    let OpKind::Dot {
        a,
        b,
        arithmetic: DotArithmetic::TensorCore,
        ..
    } = kernel.ops[op].kind
    else {
        return None;
    };
    let narrow = |v: Value| {
        let OpKind::Convert { a } = kernel.ops[kernel.def_op(v)?].kind else {
            return None;
        };
        let is_fp8 = matches!(kernel.ty(a).dtype(), DType::F8E4M3FN | DType::F8E5M2);
        (is_fp8 && kernel.ty(v).dtype() == DType::F16).then_some(a)
    };
    let narrow = narrow(a)
        .zip(narrow(b))
        .filter(|_| kernel.compiler_params.accumulate_products);
    Some(narrow.map_or([a, b], |(a, b)| [a, b]))
}

fn candidate(kernel: &Kernel, op: Op, loads: &Loads) -> Option<Candidate> {
    let [a, b] = factors(kernel, op)?;
    let (left, right) = (kernel.ty(a), kernel.ty(b));
    let result = kernel.ty(kernel.ops[op].results[0]);
    let (&[n, k], [_, _]) = (right.shape(), left.shape()) else {
        return None;
    };
    let is_legal = tensor_core::wgmma(&acc_type(result), left, &Type::of(right.dtype(), [k, n].as_slice())).is_ok();
    if !is_legal || right.dtype() == DType::F32 {
        return None;
    }
    let b = transposed(operand(kernel, b, loads)?, &[1, 0]);
    Some(Candidate {
        a: operand(kernel, a, loads),
        b,
    })
}

/// The accumulator for a product.
pub(super) fn acc_type(array: &Type) -> Type {
    Type::Acc {
        dtype: array.dtype(),
        shape: array.shape().into(),
    }
}

/// The memory that a value is.
pub(super) fn operand(kernel: &Kernel, v: Value, loads: &Loads) -> Option<RefUse> {
    let op = kernel.def_op(v)?;
    if let OpKind::Transpose { a, permutation } = &kernel.ops[op].kind {
        return Some(transposed(operand(kernel, *a, loads)?, permutation));
    }
    let OpKind::Load { src } = &kernel.ops[op].kind else {
        return None;
    };
    (loads.holds(op) && kernel.allocs[src.alloc].is_smem()).then(|| src.clone())
}

/// Another order of a view's dimensions.
pub(super) fn transposed(mut r: RefUse, permutation: &[u32]) -> RefUse {
    let of = |list: &[u32]| -> Vec<u32> { permutation.iter().map(|p| list[*p as usize]).collect() };
    r.shape = permutation.iter().map(|p| r.shape[*p as usize]).collect();
    let whole = match r.steps.last() {
        Some(Step::Transpose(before)) => {
            let whole = of(before);
            r.steps.pop();
            whole
        }
        _ => permutation.to_vec(),
    };
    if whole.iter().enumerate().any(|(i, p)| i != *p as usize) {
        r.steps.push(Step::Transpose(whole));
    }
    r
}

/// Leaves the candidates that can be operands of `wgmma` together.
fn settle(kernel: &Kernel, found: &mut Candidates) {
    // What cannot be laid out for the tensor core.
    let mut refused: EntitySet<Alloc> = EntitySet::new();
    loop {
        let uses = matrix_uses(kernel, found);
        let mut transforms = Transforms::new();
        for (alloc, data) in kernel.allocs.iter() {
            let AllocKind::Smem { dtype, transforms: own } = &data.kind else {
                continue;
            };
            transforms[alloc] = own.clone();
            if let (None, Some(used)) = (own, &uses[alloc]) {
                transforms[alloc] = smem::widest(&data.shape, *dtype, used);
                if transforms[alloc].is_none() {
                    refused.insert(alloc);
                }
            }
        }
        kernel.for_each_op(&mut |op| {
            let kind = &kernel.ops[op].kind;
            visit::for_each_ref(kind, &mut |r| {
                if uses[r.alloc].is_some() && !refused.contains(r.alloc) && !allows(kernel, kind, r, &transforms) {
                    refused.insert(r.alloc);
                }
            });
        });
        let is_operand =
            |r: &RefUse, side| !refused.contains(r.alloc) && smem::is_operand(kernel, &transforms, r, side);
        let before = found.len() + found.values().filter(|c| c.a.is_some()).count();
        found.retain(|op, c| {
            c.a.take_if(|a| !is_operand(a, Side::Left));
            let is_integer = kernel.ty(kernel.ops[*op].results[0]).dtype().is_int();
            is_operand(&c.b, Side::Right { is_integer })
        });
        if found.len() + found.values().filter(|c| c.a.is_some()).count() == before {
            return;
        }
    }
}

fn matrix_uses(kernel: &Kernel, found: &Candidates) -> SecondaryMap<Alloc, Option<MatrixUse>> {
    let mut out: SecondaryMap<Alloc, Option<MatrixUse>> = SecondaryMap::new();
    for (op, c) in found {
        for r in c.a.iter().chain([&c.b]) {
            if out[r.alloc].is_none() {
                out[r.alloc] = smem::matrix_dims(kernel, r, kernel.ops[*op].loc, "");
            }
        }
    }
    out
}

/// Whether an op can touch shared memory through this reference, if it is laid out so.
pub(super) fn allows(kernel: &Kernel, kind: &OpKind, r: &RefUse, transforms: &Transforms) -> bool {
    match CopyUse::of(kernel, kind) {
        Some(copy) if copy.gmem.shape.contains(&0) => true,
        Some(copy) => match copy.plan(kernel, transforms) {
            Ok((_, Ok(CopyPlan::Tensor(plan)))) => plan.pieces.len() <= MAX_PIECES,
            Ok((_, Ok(CopyPlan::Bulk(_)))) => true,
            Ok((_, Err(_))) | Err(_) => false,
        },
        None => views::smem(kernel, transforms, r, true).is_ok(),
    }
}

/// `acc + a @ b` at the end of a region, and a wait that leaves `n` groups running: the accumulator before it and behind it.
pub(super) fn multiply(
    kernel: &mut Kernel,
    region: Region,
    acc: Value,
    (a, b): (MmaOperand, RefUse),
    n: u32,
    loc: Loc,
) -> (Value, Value) {
    let ty = kernel.ty(acc).clone();
    let acc = AccUse::Value(acc);
    let running = kernel.append1(region, OpKind::Wgmma { acc, a, b }, ty.clone(), loc);
    let accs = vec![running];
    let settled = kernel.append1(region, OpKind::WgmmaWait { n, accs }, ty, loc);
    (running, settled)
}

/// Memory that threads store to: allocations, and unions that they are in. The tensor core sees it when it is committed.
fn stored(kernel: &Kernel) -> EntitySet<Alloc> {
    let mut out = EntitySet::new();
    kernel.for_each_op(&mut |op| {
        let kind = &kernel.ops[op].kind;
        let loads = kind.transfer().is_some_and(|moved| moved.only_loads());
        if loads || CopyUse::of(kernel, kind).is_some() {
            return;
        }
        visit::for_each_ref(kind, &mut |r| {
            out.insert(storage(kernel, r));
        });
    });
    out
}

/// What a reference's memory is shared with.
fn storage(kernel: &Kernel, r: &RefUse) -> Alloc {
    effects::root(kernel, r.alloc)
}

struct Rewrite<'a> {
    kernel: &'a mut Kernel,
    found: Candidates,
    stored: EntitySet<Alloc>,
    uses: SecondaryMap<Value, u32>,
    /// The last product, while nothing happened that would have to wait for it.
    running: Option<Running>,
}

/// A product that is waited for, and read, for the sake of one that adds to it: perhaps in vain.
struct Running {
    /// Its elements, by the op that reads them.
    read: Op,
    wait: Op,
    /// Before the wait.
    acc: Value,
}

impl Rewrite<'_> {
    fn of(kernel: &mut Kernel, found: Candidates) -> Rewrite<'_> {
        let uses = kernel.use_counts();
        Rewrite {
            stored: stored(kernel),
            kernel,
            found,
            uses,
            running: None,
        }
    }

    fn run(mut self) {
        let mut gone: EntitySet<Op> = EntitySet::new();
        for region in self.kernel.live_regions() {
            self.running = None;
            for op in std::mem::take(&mut self.kernel.regions[region].ops) {
                if let Some(candidate) = self.found.remove(&op) {
                    self.product(region, op, candidate, &mut gone);
                } else if !releases_nothing(&self.kernel.ops[op].kind) {
                    self.running = None;
                }
                self.kernel.regions[region].ops.push(op);
            }
        }
        for region in self.kernel.regions.values_mut() {
            region.ops.retain(|op| !gone.contains(*op));
        }
    }

    fn product(&mut self, region: Region, op: Op, candidate: Candidate, gone: &mut EntitySet<Op>) {
        let (OpKind::Dot { acc, a, b, .. }, Some([left, _])) = (&self.kernel.ops[op].kind, factors(self.kernel, op))
        else {
            unreachable!("candidates are products");
        };
        let (acc, a, b) = (*acc, *a, *b);
        let loc = self.kernel.ops[op].loc;
        let ty = acc_type(self.kernel.ty(self.kernel.ops[op].results[0]));
        let before = self.running.take().filter(|r| {
            let elements = self.kernel.ops[r.read].results[0];
            acc == Some(elements) && self.uses[elements] == 1
        });
        let start = match before {
            Some(running) => {
                gone.insert(running.wait);
                gone.insert(running.read);
                running.acc
            }
            None => self
                .kernel
                .append1(region, OpKind::AccInit { init: acc }, ty.clone(), loc),
        };
        unused(self.kernel, &mut self.uses, b, gone);
        let is_stored = |r: &RefUse| self.stored.contains(storage(self.kernel, r));
        if is_stored(&candidate.b) || candidate.a.as_ref().is_some_and(is_stored) {
            self.kernel.append(region, OpKind::CommitSmem, [], loc);
        }
        let left = match candidate.a {
            Some(r) => MmaOperand::Smem(r),
            None => {
                self.uses[left] += 1;
                MmaOperand::Registers(left)
            }
        };
        unused(self.kernel, &mut self.uses, a, gone);
        let (acc, settled) = multiply(self.kernel, region, start, (left, candidate.b), 0, loc);
        let wait = self.kernel.regions[region].ops.last().copied();
        let group = self.kernel.regions[region].group;
        let further = self.kernel.new_value(ty, group);
        self.kernel.values[further].def = op.into();
        let acc_use = AccUse::Value(settled);
        self.kernel.ops[op].kind = OpKind::AccRead { acc: acc_use };
        self.kernel.ops[op].results.push(further);
        self.running = wait.map(|wait| Running { read: op, wait, acc });
    }
}

/// One use less of a value; what makes it goes with the last one.
pub(super) fn unused(kernel: &Kernel, uses: &mut SecondaryMap<Value, u32>, v: Value, gone: &mut EntitySet<Op>) {
    uses[v] -= 1;
    if uses[v] > 0 {
        return;
    }
    let Some(op) = kernel.def_op(v) else { return };
    gone.insert(op);
    if let OpKind::Transpose { a, .. } | OpKind::Convert { a } = kernel.ops[op].kind {
        unused(kernel, uses, a, gone);
    }
}
