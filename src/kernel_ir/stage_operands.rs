//! A product whose left operand is loaded and converted for it begins with the half that is ready.
//!
//! ```text
//! x = load s                              x, y = load s[:, :k/2], load s[:, k/2:]
//! a = convert x                           a = convert x
//! p = wgmma acc += a @ b            =>    q = wgmma acc += a @ b[:k/2]
//!                                         b = convert y                                (beside q)
//!                                         p = wgmma q += b @ b[k/2:]
//! ```
//!
//! A product takes all of its left operand's registers when it begins, so the tensor cores wait for as long as threads convert. The sums
//! keep their order. Nothing between the load and the product writes what is loaded, or tells anybody that it may be written ([`Loads`]).
//! JAX's matmul of i8 and bf16 on an H200, 128 × 128 and 64 × 128 a warpgroup: in two parts 0.945 and 0.970 of the time in one, in four
//! 0.943 and 0.970, in as many as there are instructions 0.98.
use super::loads::{Chain, Loads};
use super::*;
use crate::error::Result;

/// Instructions along K that a half has at least.
const MIN_STEPS: u64 = 2;

pub fn run(kernel: &mut Kernel) -> Result<()> {
    let mut is_any = false;
    kernel.for_each_op(&mut |op| {
        let from_registers = matches!(
            kernel.ops[op].kind,
            OpKind::Wgmma {
                a: MmaOperand::Registers(_),
                ..
            }
        );
        is_any |= from_registers;
    });
    if !is_any {
        return Ok(());
    }
    let uses = kernel.use_counts();
    let regions: Vec<Region> = kernel.regions.keys().collect();
    let mut staged = false;
    for region in regions {
        let mut loads = Loads::default();
        for op in std::mem::take(&mut kernel.regions[region].ops) {
            let kind = &kernel.ops[op].kind;
            // Products write no memory, and their start tells nobody anything.
            if !matches!(kind.class(), class::Class::Accumulator) {
                loads.pass(kernel, op);
            }
            if let OpKind::Wgmma {
                a: MmaOperand::Registers(a),
                ..
            } = *kind
                && let Some(chain) = Chain::of(kernel, a, &loads, &uses)
            {
                staged |= stage(kernel, region, op, &chain);
            }
            kernel.regions[region].ops.push(op);
        }
    }
    if staged {
        eliminate_dead_code::run(kernel)?;
        compose_views::run(kernel)?;
    }
    Ok(())
}

/// Puts the product of the first half at a region's end, and lets the op be that of the second one.
fn stage(kernel: &mut Kernel, region: Region, op: Op, chain: &Chain) -> bool {
    let OpData { kind, results, loc } = kernel.ops[op].clone();
    let OpKind::Wgmma {
        acc: AccUse::Value(acc),
        b,
        ..
    } = kind
    else {
        return false;
    };
    let Some(dtype) = b.dtype() else { return false };
    let k = b.shape[0];
    let step = legality::tensor_core::wgmma_k(dtype);
    let converts = chain
        .ops()
        .iter()
        .any(|op| matches!(kernel.ops[*op].kind, OpKind::Convert { .. }));
    if !converts || k % (2 * step) != 0 || k / (2 * step) < MIN_STEPS {
        return false;
    }
    let half = k / 2;
    let rows = |start: u64| {
        let mut b = b.clone();
        let mut dims: Vec<DimIndex> = b.shape.iter().map(|n| DimIndex::all(*n)).collect();
        dims[0] = DimIndex::Slice {
            start: Index::Const(start as i64),
            size: half,
            stride: 1,
        };
        b.steps.push(Step::Index(dims));
        b.shape[0] = half;
        b
    };
    let loaded = [0, half].map(|start| chain.load(kernel, region, start, half));
    let [first, second] = loaded;
    let a = MmaOperand::Registers(chain.convert(kernel, region, first, half));
    let kind = OpKind::Wgmma {
        acc: AccUse::Value(acc),
        a,
        b: rows(0),
    };
    let ty = kernel.ty(results[0]).clone();
    let acc = AccUse::Value(kernel.append1(region, kind, ty, loc));
    let a = MmaOperand::Registers(chain.convert(kernel, region, second, half));
    kernel.ops[op].kind = OpKind::Wgmma { acc, a, b: rows(half) };
    true
}
