//! What is added to a product of arrays becomes its accumulator: `acc + x @ y` needs the registers of one sum, and no addition.
//!
//! This adds in another order: to the accumulator each element of K by itself, and not their sum. So it is done to integers, which
//! wrap in any order, and to floats where the user allows it (`accumulate_products`): f32 ones added to 10⁸ one by one leave it what it is.
//!
//! The sum is where the product is, if what is added is known there, so that its operands' memory is still theirs; else where the addition
//! is, in the same region. The product has no other user. A product that is rounded to a narrower
//! float and at once widened again, as `acc += x @ y` does with f16 operands and an f32 `acc`, is not rounded: XLA leaves the same out
//! (`xla_allow_excess_precision`, on by default).
use crate::dtype::DType;
use crate::error::Result;
use crate::kernel_ir::class::Class;
use crate::kernel_ir::*;
use cranelift_entity::SecondaryMap;

pub fn run(kernel: &mut Kernel) -> Result<()> {
    let mut is_any = false;
    kernel.for_each_op(&mut |op| is_any |= matches!(kernel.ops[op].kind, OpKind::Dot { .. }));
    if !is_any {
        return Ok(());
    }
    let uses = kernel.use_counts();
    for region in kernel.live_regions() {
        fuse(kernel, region, &uses);
    }
    Ok(())
}

fn fuse(kernel: &mut Kernel, region: Region, uses: &SecondaryMap<Value, u32>) {
    // Products of this region that nothing is added to yet, and what no op moves across lies behind them.
    // With each the value that it is known by, and the ops that go when it does.
    let mut products: Vec<(Op, Value, Vec<Op>)> = vec![];
    let mut moved: Vec<Op> = vec![];
    for op in kernel.regions[region].ops.clone() {
        let OpData { kind, results, .. } = &kernel.ops[op];
        if let Class::Pinned | Class::Tensor | Class::Instructions = kind.class() {
            products.clear();
        }
        if let OpKind::Dot { acc: None, .. } = kind
            && uses[results[0]] == 1
        {
            products.push((op, results[0], vec![op]));
        }
        if let OpKind::Convert { a } = kind
            && uses[results[0]] == 1
            && let Some((product, sum, gone)) = products.iter_mut().find(|(_, sum, _)| sum == a)
        {
            let (from, to) = (
                kernel.ty(kernel.ops[*product].results[0]).dtype(),
                kernel.ty(results[0]).dtype(),
            );
            if matches!((from, to), (DType::F32, DType::F16 | DType::BF16 | DType::F32)) {
                gone.push(op);
                *sum = results[0];
            }
        }
        let OpKind::Binary {
            op: BinaryOp::Add,
            a,
            b,
        } = *kind
        else {
            continue;
        };
        let ty = kernel.ty(results[0]);
        if ty.dtype().is_float() && !kernel.compiler_params.accumulate_products {
            continue;
        }
        // The sum's type is the product's: what was narrowed is widened again.
        let is_sum = |p: Op| kernel.ty(kernel.ops[p].results[0]) == ty;
        let of = |v: Value| products.iter().rposition(|(p, sum, _)| *sum == v && is_sum(*p));
        let Some((at, acc)) = of(b).map(|at| (at, a)).or_else(|| of(a).map(|at| (at, b))) else {
            continue;
        };
        let (product, _, mut gone) = products.remove(at);
        let mut kind = kernel.ops[product].kind.clone();
        if let OpKind::Dot { acc: own, .. } = &mut kind {
            *own = Some(acc);
        }
        if is_known(kernel, region, acc, product) {
            let sum = kernel.ops[op].results[0];
            kernel.values[sum].def = product.into();
            kernel.ops[product].results = kernel.ops[op].results.clone();
            kernel.ops[product].kind = kind;
            gone[0] = op;
        } else {
            kernel.ops[op].kind = kind;
        }
        moved.extend(gone);
    }
    if !moved.is_empty() {
        kernel.regions[region].ops.retain(|op| !moved.contains(op));
    }
}

/// Whether a value that is known at the end of a region is known in front of one of its ops.
fn is_known(kernel: &Kernel, region: Region, value: Value, op: Op) -> bool {
    let before = kernel.regions[region].ops.iter().take_while(|at| **at != op);
    let Some(def) = kernel.def_op(value) else { return true };
    before.clone().any(|at| *at == def) || !kernel.regions[region].ops.contains(&def)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel_ir::testing::KernelBuilder;

    fn product(b: &mut KernelBuilder, dtype: DType) -> Value {
        let x = b.input(dtype, &[64, 32]);
        let x = b.load(b.whole(x));
        let kind = OpKind::Dot {
            acc: None,
            a: x,
            b: x,
            arithmetic: DotArithmetic::TensorCore,
        };
        b.op1(kind, DotArithmetic::TensorCore.result(dtype).unwrap(), &[64, 64])
    }

    fn sums(kernel: &Kernel) -> usize {
        let mut n = 0;
        kernel.for_each_op(&mut |op| n += usize::from(matches!(kernel.ops[op].kind, OpKind::Binary { .. })));
        n
    }

    /// `acc + x @ xᵀ` of such `x`, stored; and the product too, if it is used.
    fn kernel(x: DType, is_used: bool, accumulate: bool) -> Kernel {
        let mut b = KernelBuilder::new();
        let dtype = DotArithmetic::TensorCore.result(x).unwrap();
        let acc = b.input(dtype, &[64, 64]);
        let acc = b.load(b.whole(acc));
        let dot = product(&mut b, x);
        let add = OpKind::Binary {
            op: BinaryOp::Add,
            a: acc,
            b: dot,
        };
        let sum = b.op1(add, dtype, &[64, 64]);
        for v in [Some(sum), is_used.then_some(dot)].into_iter().flatten() {
            let out = b.output(dtype, &[64, 64]);
            b.store(b.whole(out), v);
        }
        let mut kernel = b.finish();
        kernel.compiler_params.accumulate_products = accumulate;
        run(&mut kernel).unwrap();
        verify::run(&kernel).unwrap();
        kernel
    }

    #[test]
    fn a_product_takes_what_it_is_added_to() {
        assert_eq!(sums(&kernel(DType::F16, false, true)), 0);
        assert_eq!(sums(&kernel(DType::I8, false, false)), 0);
    }

    #[test]
    fn floats_are_added_in_the_users_order() {
        assert_eq!(sums(&kernel(DType::F16, false, false)), 1);
    }

    #[test]
    fn a_product_with_other_users_stays() {
        assert_eq!(sums(&kernel(DType::F16, true, true)), 1);
    }
}
