//! A product whose left operand is loaded and converted for it begins with the half that is ready.
//!
//! ```text
//! x = load s                              x, y = load s[:, :k/2], load s[:, k/2:]
//! a = convert x                           a = convert x
//! p = wgmma acc += a @ b            =>    q = wgmma acc += a @ b[:k/2]
//!                                         c = convert y                                (beside q)
//!                                         p = wgmma q += c @ b[k/2:]
//! ```
//!
//! The first part is the largest power of two that is no more than half of K. A product takes all of its left operand's registers when it
//! begins, so the tensor cores wait for as long as threads convert. The sums keep their order. Nothing between the load and the product
//! writes what is loaded, or allows others to write it ([`Loads`]).
//! Where the accumulator does not fit into registers one product stays one ([`fits`]).
//! JAX's matmul of i8 and bf16 on an H200, 128 × 128 and 64 × 128 a warpgroup: in two parts 0.945 and 0.970 of the time in one, in four
//! 0.943 and 0.970, in as many as there are instructions 0.98.
use crate::error::Result;
use crate::kernel_ir::loads::{Chain, Loads};
use crate::kernel_ir::*;
use crate::passes::canonical::{compose_views, eliminate_dead_code};

/// Instructions along K that a part has at least.
const MIN_STEPS: u64 = 2;

pub fn run(kernel: &mut Kernel) -> Result<()> {
    let from_registers = |op: &OpData| {
        matches!(
            op.kind,
            OpKind::Wgmma {
                a: MmaOperand::Registers(_),
                ..
            }
        )
    };
    if !kernel.ops.values().any(from_registers) {
        return Ok(());
    }
    let uses = kernel.use_counts();
    let mut staged = false;
    for region in kernel.live_regions() {
        let mut loads = Loads::default();
        for op in std::mem::take(&mut kernel.regions[region].ops) {
            let kind = &kernel.ops[op].kind;
            // Products write no memory, and their start orders nothing.
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

/// Puts the product of the first part at a region's end, and lets the op be that of the second one.
fn stage(kernel: &mut Kernel, region: Region, op: Op, chain: &Chain) -> bool {
    let OpData { kind, results, loc } = kernel.ops[op].clone();
    let OpKind::Wgmma {
        acc: AccUse::Value(acc),
        a: MmaOperand::Registers(a),
        b,
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
    // Tiles of a buffer are powers of two that K is a multiple of: none is cut but into equal parts.
    let first = 1u64 << (k / 2).max(1).ilog2();
    if !converts || k % step != 0 || first < MIN_STEPS * step || !fits(kernel, acc, a) {
        return false;
    }
    let parts = [(0, first), (first, k - first)];
    let rows = |(start, size): (u64, u64)| b.clone().part(0, start, size);
    let loaded = parts.map(|(start, size)| chain.load(kernel, region, start, size));
    let left =
        |kernel: &mut Kernel, i: usize| MmaOperand::Registers(chain.convert(kernel, region, loaded[i], parts[i].1));
    let a = left(kernel, 0);
    let kind = OpKind::Wgmma {
        acc: AccUse::Value(acc),
        a,
        b: rows(parts[0]),
    };
    let ty = kernel.ty(results[0]).clone();
    let acc = AccUse::Value(kernel.append1(region, kind, ty, loc));
    let a = left(kernel, 1);
    kernel.ops[op].kind = OpKind::Wgmma {
        acc,
        a,
        b: rows(parts[1]),
    };
    true
}

/// Whether a thread's registers have room for an accumulator and a left operand. If not, some of the accumulator waits in memory between
/// products, so that each of them costs a trip there.
fn fits(kernel: &Kernel, acc: Value, left: Value) -> bool {
    let words = |v: Value| kernel.ty(v).words(8);
    let registers = u64::from(kernel.target.max_thread_registers);
    words(acc) + words(left) + u64::from(kernel.target.parks_below) <= registers
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dtype::DType;
    use crate::kernel_ir::testing::KernelBuilder;

    #[derive(Clone, Copy, PartialEq, Debug)]
    enum What {
        Right,
        /// Nothing is computed between the load and the product.
        Plain,
        /// One instruction for each half.
        Short,
        /// An accumulator of 256 words a thread.
        Wide,
        /// All of it has another use.
        Shared,
        /// It is overwritten between the load and the product.
        Overwritten,
        /// Others may overwrite it from there on.
        Released,
    }

    /// K of the loads and of the products, in order.
    fn parts(what: What) -> Vec<(&'static str, u64)> {
        let mut b = KernelBuilder::new();
        let rows = if what == What::Wide { 256 } else { 64 };
        let columns = if what == What::Wide { 128 } else { 64 };
        let k = if what == What::Short { 32 } else { 64 };
        let from = if what == What::Plain { DType::BF16 } else { DType::I8 };
        let (left, right) = (b.smem(from, &[rows, k], None), b.smem(DType::BF16, &[k, columns], None));
        let mut allocs = vec![left, right];
        let acc = Type::Acc {
            dtype: DType::F32,
            shape: Shape::from_slice(&[rows, columns]),
        };
        let start = b.op(OpKind::AccInit { init: None }, std::slice::from_ref(&acc))[0];
        let loaded = b.load(b.whole(left));
        let mut a = loaded;
        if what != What::Plain {
            a = b.op1(OpKind::Convert { a }, DType::BF16, &[rows, k]);
        }
        match what {
            What::Shared => {
                let out = b.output(DType::BF16, &[64, k]);
                b.store(b.whole(out), a);
            }
            What::Overwritten => {
                let zero = b.op1(OpKind::Constant(Constant::Splat(0)), from, &[64, k]);
                b.store(b.whole(left), zero);
            }
            What::Released => {
                let barrier = b.barriers(1);
                allocs.push(barrier);
                let barrier = b.indexed(barrier, vec![DimIndex::At(Index::Const(0))]);
                b.op(
                    OpKind::BarrierArrive {
                        barrier,
                        predicate: None,
                    },
                    &[],
                );
            }
            What::Right | What::Plain | What::Short | What::Wide => {}
        }
        let kind = OpKind::Wgmma {
            acc: AccUse::Value(start),
            a: MmaOperand::Registers(a),
            b: b.whole(right),
        };
        let sum = b.op(kind, std::slice::from_ref(&acc))[0];
        b.op(OpKind::WgmmaWait { n: 0, accs: vec![sum] }, std::slice::from_ref(&acc));
        let (mut kernel, _) = b.finish_in_scope(&allocs);
        run(&mut kernel).unwrap();
        verify::run(&kernel).unwrap();
        let mut out = vec![];
        kernel.for_each_op(&mut |op| match &kernel.ops[op].kind {
            OpKind::Load { src } => out.push(("load", src.shape[1])),
            OpKind::Convert { a } => out.push(("convert", kernel.ty(*a).shape()[1])),
            OpKind::Wgmma { b, .. } => out.push(("wgmma", b.shape[0])),
            _ => {}
        });
        out
    }

    #[test]
    fn a_product_begins_with_the_half_that_is_converted() {
        let halves = ["load", "load", "convert", "wgmma", "convert", "wgmma"].map(|op| (op, 32));
        assert_eq!(parts(What::Right), halves);
        assert_eq!(parts(What::Plain), [("load", 64), ("wgmma", 64)]);
        assert_eq!(parts(What::Short), [("load", 32), ("convert", 32), ("wgmma", 32)]);
        for what in [What::Shared, What::Overwritten, What::Released, What::Wide] {
            assert_eq!(parts(what), [("load", 64), ("convert", 64), ("wgmma", 64)], "{what:?}");
        }
    }
}
