//! Products of large arrays that are loaded for them alone become sums of products of slices of K, each loaded right before.
//!
//! A thread then holds one slice of the operands and not all of them, which would not fit its registers. What lies between a load
//! and its product only computes or loads, so that the product may load instead.
use crate::error::Result;
use crate::kernel_ir::loads::{Chain, Loads};
use crate::kernel_ir::*;
use cranelift_entity::SecondaryMap;

/// Words of a thread that operands may take as a whole, and those that a slice of them should. Chosen: beside an accumulator of
/// 128 × 128 whole operands of 128 words do not spill.
const WHOLE_WORDS: u64 = 128;
const SLICE_WORDS: u64 = 64;
/// Slices are multiples of this: whole tiles of swizzled shared memory, whole sectors of device memory.
const UNIT: u64 = 64;
/// Slices of one product.
const MAX_SLICES: u64 = 32;
const THREADS: u64 = 128;

pub fn run(kernel: &mut Kernel) -> Result<()> {
    let mut is_any = false;
    kernel.for_each_op(&mut |op| is_any |= matches!(kernel.ops[op].kind, OpKind::Dot { .. }));
    if !is_any {
        return Ok(());
    }
    let uses = kernel.use_counts();
    for region in kernel.live_regions() {
        if kernel.regions[region].group == Group::Warp {
            continue;
        }
        let mut loads = Loads::default();
        for op in std::mem::take(&mut kernel.regions[region].ops) {
            loads.pass(kernel, op);
            slice(kernel, region, op, &loads, &uses);
            kernel.regions[region].ops.push(op);
        }
    }
    Ok(())
}

fn slice(kernel: &mut Kernel, region: Region, op: Op, loads: &Loads, uses: &SecondaryMap<Value, u32>) {
    let OpKind::Dot { acc, a, b, arithmetic } = kernel.ops[op].kind else {
        return;
    };
    let words = |v: Value| num_elements(kernel.ty(v).shape()) * u64::from(kernel.ty(v).dtype().bits()) / 32 / THREADS;
    let all = words(a) + words(b);
    let k = kernel.ty(a).shape().last().copied().unwrap_or(1);
    let size = (k * SLICE_WORDS / all.max(1))
        .max(k.div_ceil(MAX_SLICES))
        .next_multiple_of(UNIT);
    if all <= WHOLE_WORDS || size >= k {
        return;
    }
    let (Some(left), Some(right)) = (Chain::of(kernel, a, loads, uses), Chain::of(kernel, b, loads, uses)) else {
        return;
    };
    let (ty, loc) = (kernel.ty(kernel.ops[op].results[0]).clone(), kernel.ops[op].loc);
    let mut acc = acc;
    let mut start = 0;
    loop {
        let size = size.min(k - start);
        let a = left.part(kernel, region, start, size);
        let b = right.part(kernel, region, start, size);
        let kind = OpKind::Dot { acc, a, b, arithmetic };
        start += size;
        if start == k {
            kernel.ops[op].kind = kind;
            return;
        }
        acc = Some(kernel.append1(region, kind, ty.clone(), loc));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dtype::DType;
    use crate::kernel_ir::testing::KernelBuilder;

    /// What happens between the loads and the product.
    #[derive(PartialEq)]
    enum Between {
        Nothing,
        StoreElsewhere,
        StoreThere,
        Barrier,
    }

    fn kernel(k: u64, between: Between) -> Kernel {
        let mut b = KernelBuilder::new();
        let x = b.output(DType::F16, &[64, k]);
        let y = b.input(DType::F16, &[k, 64]);
        let other = b.output(DType::F16, &[64, k]);
        let stored = if between == Between::StoreThere { x } else { other };
        let (x, y) = (b.load(b.whole(x)), b.load(b.whole(y)));
        match between {
            Between::Nothing => {}
            Between::StoreElsewhere | Between::StoreThere => {
                let zero = b.op1(OpKind::Constant(Constant::Splat(0)), DType::F16, &[64, k]);
                b.store(b.whole(stored), zero);
            }
            Between::Barrier => {
                b.op(OpKind::CommitSmem, &[]);
            }
        }
        let transpose = OpKind::Transpose {
            a: y,
            permutation: vec![1, 0],
        };
        let y = b.op1(transpose, DType::F16, &[64, k]);
        let kind = OpKind::Dot {
            acc: None,
            a: x,
            b: y,
            arithmetic: DotArithmetic::TensorCore,
        };
        let product = b.op1(kind, DType::F32, &[64, 64]);
        let out = b.output(DType::F32, &[64, 64]);
        b.store(b.whole(out), product);
        let mut kernel = b.finish();
        run(&mut kernel).unwrap();
        verify::run(&kernel).unwrap();
        kernel
    }

    /// K of each product.
    fn slices(kernel: &Kernel) -> Vec<u64> {
        let mut out = vec![];
        kernel.for_each_op(&mut |op| {
            if let OpKind::Dot { a, .. } = kernel.ops[op].kind {
                out.push(kernel.ty(a).shape()[1]);
            }
        });
        out
    }

    const PARTS: [u64; 8] = [128, 128, 128, 128, 128, 128, 128, 104];

    #[test]
    fn large_operands_are_loaded_in_slices() {
        assert_eq!(slices(&kernel(128, Between::Nothing)), [128]);
        assert_eq!(slices(&kernel(1000, Between::Nothing)), PARTS);
    }

    #[test]
    fn nothing_is_loaded_behind_a_store_that_may_touch_it() {
        assert_eq!(slices(&kernel(1000, Between::StoreElsewhere)), PARTS);
        assert_eq!(slices(&kernel(1000, Between::StoreThere)), [1000]);
        assert_eq!(slices(&kernel(1000, Between::Barrier)), [1000]);
    }
}
