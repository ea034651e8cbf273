//! Loops over arrays.
use super::harness::{Buffer, KernelRun};
use smalt::dtype::DType;
use smalt::kernel_ir::testing::KernelBuilder;
use smalt::kernel_ir::{BinaryOp, Group, Kernel, OpKind, Type};

/// Running sums along the leading dimension: carries the sum, stacks it.
fn running_sums(n: u64, m: u64, reverse: bool) -> Kernel {
    let mut b = KernelBuilder::new();
    let x = b.input(DType::F32, &[n, m]);
    let out = b.output(DType::F32, &[n, m]);
    let last = b.output(DType::F32, &[m]);
    let row = Type::of(DType::F32, [m].as_slice());
    let whole = b.whole(x);
    let xs = b.load(whole);
    let zero = b.op1(OpKind::Constant(smalt::kernel_ir::Constant::Splat(0)), DType::F32, &[m]);
    let (lower, upper) = (b.int(DType::I32, 0), b.int(DType::I32, n as i64));
    let body = b.region(
        Group::Warpgroup,
        &[Type::Scalar(DType::I32), row.clone(), row.clone()],
        |b, p| {
            let sum = b.op1(
                OpKind::Binary {
                    op: BinaryOp::Add,
                    a: p[1],
                    b: p[2],
                },
                DType::F32,
                &[m],
            );
            vec![sum, sum]
        },
    );
    let kind = OpKind::For {
        lower,
        upper,
        inits: vec![zero],
        xs: vec![xs],
        reverse,
        unroll: 1,
        body,
    };
    let results = b.op(kind, &[row, Type::of(DType::F32, [n, m].as_slice())]);
    let (last, out) = (b.whole(last), b.whole(out));
    b.store(last, results[0]);
    b.store(out, results[1]);
    b.finish()
}

#[test]
fn scans_carry_and_stack() {
    // Unrolled, searched; with and without threads to spread over.
    for (n, m) in [(4, 128), (5, 33), (20, 64), (24, 3)] {
        for reverse in [false, true] {
            let xs: Vec<f32> = (0..n * m).map(|i| (i * 7 % 23) as f32).collect();
            let got = KernelRun::of(running_sums(n, m, reverse)).run(&[Buffer::f32(&xs)]);
            let (n, m) = (n as usize, m as usize);
            let mut sums = vec![0f32; m];
            let mut want = vec![0f32; n * m];
            for step in 0..n {
                let i = if reverse { n - 1 - step } else { step };
                for j in 0..m {
                    sums[j] += xs[i * m + j];
                    want[i * m + j] = sums[j];
                }
            }
            assert_eq!(got[0].as_f32(), want, "[{n}, {m}], reverse: {reverse}");
            assert_eq!(got[1].as_f32(), sums, "[{n}, {m}], reverse: {reverse}");
        }
    }
}
