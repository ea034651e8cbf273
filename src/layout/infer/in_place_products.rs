//! Products of `mma.sync` whose operands lie in shared memory read them there, by `ldmatrix`, instead of loading, storing and reading again.
//!
//! **Legal** as in [`products`]: from the load to the product nothing is stored there and nothing released. The product reads when it is
//! executed: it is a [`OpKind::DotInPlace`], with its effects.
//!
//! **Memory** has to lie so that the lanes of `ldmatrix` are spread over all banks ([`in_place`](crate::layout::in_place)): transforms of the user's
//! may; an allocation without any gets the widest swizzle, if all of its uses allow that.
use super::{group_of, products, smem};
use crate::dtype::DType;
use crate::error::Loc;
use crate::kernel_ir::loads::Loads;
use crate::kernel_ir::*;
use crate::layout::dot;
use crate::layout::in_place::{InPlace, Side};
use crate::layout::views::{self, Transforms};
use cranelift_entity::{EntitySet, SecondaryMap};

/// Instructions of a thread for one product: all of them are written one after the other.
const MAX_INSTRUCTIONS: u64 = 512;

/// `wanted` gets the transforms that operands want of their allocations.
pub(super) fn run(kernel: &mut Kernel, wanted: &mut Transforms) {
    let mut pass = Pass {
        by_wgmma: read_by_wgmma(kernel),
        uses: kernel.use_counts(),
        gone: EntitySet::new(),
        wanted,
    };
    for region in kernel.live_regions() {
        if kernel.regions[region].group == Group::Warp {
            continue;
        }
        let mut loads = Loads::default();
        for op in kernel.regions[region].ops.clone() {
            loads.pass(kernel, op);
            pass.product(kernel, op, &loads);
        }
    }
    let gone = pass.gone;
    for region in kernel.regions.values_mut() {
        region.ops.retain(|op| !gone.contains(*op));
    }
}

/// Allocations with transforms that are not ours to choose.
fn read_by_wgmma(kernel: &Kernel) -> EntitySet<Alloc> {
    let mut out = EntitySet::new();
    kernel.for_each_op(&mut |op| {
        if let OpKind::Wgmma { .. } = kernel.ops[op].kind {
            visit::for_each_ref(&kernel.ops[op].kind, &mut |r| {
                out.insert(r.alloc);
            });
        }
    });
    out
}

struct Pass<'a> {
    by_wgmma: EntitySet<Alloc>,
    uses: SecondaryMap<Value, u32>,
    gone: EntitySet<Op>,
    wanted: &'a mut Transforms,
}

impl Pass<'_> {
    fn product(&mut self, kernel: &mut Kernel, op: Op, loads: &Loads) {
        let OpKind::Dot {
            acc,
            a,
            b,
            arithmetic: DotArithmetic::TensorCore,
        } = kernel.ops[op].kind
        else {
            return;
        };
        let (ty, result) = (kernel.ty(a), kernel.ops[op].results[0]);
        let &[_, k] = ty.shape() else { return };
        if !matches!(ty.dtype(), DType::F16 | DType::BF16 | DType::I8 | DType::U8) {
            return;
        }
        let group = group_of(kernel.values[result].group);
        let tiling = dot::tiling(
            DotArithmetic::TensorCore,
            kernel.ty(result).shape(),
            group,
            kernel.dealing,
        );
        let step = dot::step(DotArithmetic::TensorCore, u64::from(ty.dtype().bits() / 8));
        if k.div_ceil(step) * tiling.tiles.iter().product::<u64>() > MAX_INSTRUCTIONS {
            return;
        }
        let mut is_any = false;
        let operands = [(a, Side::Left), (b, Side::Right)].map(|(v, side)| {
            let found = products::operand(kernel, v, loads).filter(|r| self.lies(kernel, r, side, &tiling, step));
            is_any |= found.is_some();
            found.map_or(MmaOperand::Registers(v), MmaOperand::Smem)
        });
        if !is_any {
            return;
        }
        for (operand, v) in operands.iter().zip([a, b]) {
            if let MmaOperand::Smem(_) = operand {
                products::unused(kernel, &mut self.uses, v, &mut self.gone);
            }
        }
        let [a, b] = operands;
        kernel.ops[op].kind = OpKind::DotInPlace { acc, a, b };
    }

    /// Whether memory lies, or can lie, as it has to.
    fn lies(&mut self, kernel: &Kernel, r: &RefUse, side: Side, tiling: &dot::Tiling, step: u64) -> bool {
        let data = &kernel.allocs[r.alloc];
        let AllocKind::Smem { dtype, transforms } = &data.kind else {
            return false;
        };
        let mut with = self.wanted.clone();
        if let Some(own) = transforms {
            with[r.alloc] = Some(own.clone());
        } else if with[r.alloc].is_none() {
            let used = smem::matrix_dims(kernel, r, Loc::CALL_SITE, "");
            let widest = used.and_then(|used| smem::widest(&data.shape, *dtype, &used));
            if widest.is_none() || self.by_wgmma.contains(r.alloc) {
                return false;
            }
            with[r.alloc] = widest;
            let mut is_allowed = true;
            kernel.for_each_op(&mut |op| {
                let kind = &kernel.ops[op].kind;
                visit::for_each_ref(kind, &mut |use_| {
                    is_allowed &= use_.alloc != r.alloc || products::allows(kernel, kind, use_, &with);
                });
            });
            if !is_allowed {
                return false;
            }
        }
        let Ok(view) = views::smem(kernel, &with, r, true) else {
            return false;
        };
        let found = InPlace::of(&view, side, tiling, step).is_some();
        if found && transforms.is_none() {
            *self.wanted = with;
        }
        found
    }
}
