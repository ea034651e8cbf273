//! Every op of every element type: what `legality` accepts is lowered, what it refuses lowering does not have. The two are written in two
//! places, which cannot drift apart unnoticed.
use smalt::dtype::DType;
use smalt::error::{Error, Fault};
use smalt::kernel_ir::testing::KernelBuilder;
use smalt::kernel_ir::*;
use smalt::ptx::out_of_ssa::{self, Shell};
use smalt::ptx::{infer_uniformity, verify_flat};
use smalt::{layout, lower, plan};

const SHAPES: [&[u64]; 2] = [&[], &[128, 8]];

/// A kernel with one op of operands of these types: loaded where memory has such elements, else constants.
fn kernel_of(operands: &[Type], results: &[Type], kind: impl FnOnce(&mut KernelBuilder, &[Value]) -> OpKind) -> Kernel {
    let mut b = KernelBuilder::new();
    let values: Vec<Value> = operands
        .iter()
        .map(|ty| {
            let (dtype, shape) = (ty.dtype(), ty.shape());
            if dtype.bits() < 8 && (shape.is_empty() || dtype.bits() == 6) {
                let n = shape.iter().product::<u64>() as usize;
                return b.op1(OpKind::Constant(Constant::Dense(vec![1; n])), dtype, shape);
            }
            let input = b.input(dtype, shape);
            b.load(b.whole(input))
        })
        .collect();
    let kind = kind(&mut b, &values);
    b.op(kind, results);
    b.finish()
}

fn lowered(mut kernel: Kernel) -> Result<(), Error> {
    let assignment = layout::infer::run(&mut kernel)?;
    layout::verify_layouts::run(&kernel, &assignment.values)?;
    let (exchanges, allocation) = plan::scratch::allocate(&kernel, &assignment)?;
    let accesses = plan::accesses::run(&kernel, &assignment)?;
    let lower::Lowered { mut ssa, launch, .. } = lower::run(&kernel, &assignment, &allocation, &exchanges, &accesses)?;
    infer_uniformity::run(&mut ssa);
    let shell = Shell {
        launch,
        target: kernel.target.name.into(),
        min_ctas_per_sm: None,
    };
    let flat = out_of_ssa::run(&ssa, shell)?;
    let broken = verify_flat::run(&flat);
    assert!(broken.is_empty(), "{broken:?}\n{kernel}");
    Ok(())
}

/// Counts kernels that are accepted and refused, and keeps those about which the two disagree.
#[derive(Default)]
struct Tally {
    accepted: u32,
    refused: u32,
    wrong: Vec<String>,
}

impl Tally {
    /// The last op of the body is the one in question.
    fn check(&mut self, kernel: Kernel) {
        let op = *kernel.regions[kernel.body].ops.last().unwrap();
        let legal = legality::op(&kernel, op);
        let text = kernel.to_string();
        let result = lowered(kernel);
        match (legal, result) {
            (Ok(()), Ok(())) => self.accepted += 1,
            // By lowering, or by a plan that has something against it, too.
            (Err(refused), Err(error))
                if refused.fault == Fault::Unsupported
                    && matches!(error.fault, Fault::Internal | Fault::Unsupported) =>
            {
                self.refused += 1;
            }
            (legal, result) => self
                .wrong
                .push(format!("{text}legality: {legal:?}\nlowering: {result:?}")),
        }
    }

    fn finish(self, accepted: u32, refused: u32) {
        let (n, wrong) = (self.wrong.len(), &self.wrong[..self.wrong.len().min(10)]);
        assert!(n == 0, "{n} are wrong, among them\n{}", wrong.join("\n\n"));
        assert!(
            self.accepted > accepted && self.refused > refused,
            "{} and {}",
            self.accepted,
            self.refused
        );
    }
}

/// Both forms of an op from types to a type.
fn every_form(tally: &mut Tally, operands: &[DType], result: DType, kind: impl Fn(&[Value]) -> OpKind) {
    for shape in SHAPES {
        let operands: Vec<Type> = operands.iter().map(|d| Type::of(*d, shape)).collect();
        tally.check(kernel_of(&operands, &[Type::of(result, shape)], |_, v| kind(v)));
    }
}

#[test]
fn element_wise_ops_are_lowered_of_the_types_that_legality_says() {
    let mut tally = Tally::default();
    for dtype in DType::ALL {
        for &op in UnaryOp::ALL {
            let result = if op == UnaryOp::IsFinite { DType::Bool } else { dtype };
            every_form(&mut tally, &[dtype], result, |v| OpKind::Unary { op, a: v[0] });
        }
        for &op in BinaryOp::ALL {
            every_form(&mut tally, &[dtype; 2], dtype, |v| OpKind::Binary {
                op,
                a: v[0],
                b: v[1],
            });
        }
        for &op in CompareOp::ALL {
            every_form(&mut tally, &[dtype; 2], DType::Bool, |v| OpKind::Compare {
                op,
                a: v[0],
                b: v[1],
            });
        }
        every_form(&mut tally, &[dtype; 3], dtype, |v| OpKind::Clamp {
            lo: v[0],
            x: v[1],
            hi: v[2],
        });
        for n in [-3, 0, 2, 5] {
            every_form(&mut tally, &[dtype], dtype, |v| OpKind::IntegerPow { a: v[0], n });
        }
        if dtype.is_float() {
            every_form(&mut tally, &[dtype], dtype, |v| OpKind::ReducePrecision {
                a: v[0],
                exponent_bits: 5,
                mantissa_bits: 2,
            });
        }
    }
    tally.finish(1000, 500);
}

#[test]
fn conversions_are_lowered_between_the_types_that_legality_says() {
    let mut tally = Tally::default();
    for from in DType::ALL {
        for to in DType::ALL {
            every_form(&mut tally, &[from], to, |v| OpKind::Convert { a: v[0] });
            if from.bits() == to.bits() {
                every_form(&mut tally, &[from], to, |v| OpKind::Bitcast { a: v[0] });
            }
        }
        let ty = Type::of(from, [128, 8].as_slice());
        tally.check(kernel_of(&[], &[ty], |_, _| OpKind::Iota { dim: 0 }));
    }
    tally.finish(1000, 50);
}

#[test]
fn reductions_and_updates_are_lowered_of_the_types_that_legality_says() {
    let mut tally = Tally::default();
    for dtype in DType::ALL {
        let ty = |shape: &[u64]| Type::of(dtype, shape);
        for &op in ReduceOp::ALL {
            for (axes, kept) in [(vec![0, 1], vec![]), (vec![0], vec![8]), (vec![1], vec![128])] {
                tally.check(kernel_of(&[ty(&[128, 8])], &[ty(&kept)], |_, v| OpKind::Reduce {
                    op,
                    a: v[0],
                    axes,
                    parallel: None,
                }));
            }
        }
        for op in [ArgReduceOp::ArgMax, ArgReduceOp::ArgMin] {
            let index = Type::of(DType::I32, [128].as_slice());
            tally.check(kernel_of(&[ty(&[128, 8])], &[index], |_, v| OpKind::ArgReduce {
                op,
                a: v[0],
                axis: 1,
            }));
        }
        for &op in CumulativeOp::ALL {
            tally.check(kernel_of(&[ty(&[128, 8])], &[ty(&[128, 8])], |_, v| {
                OpKind::Cumulative {
                    op,
                    a: v[0],
                    axis: 1,
                    reverse: false,
                }
            }));
        }
        let at = Type::of(DType::I32, [128, 8].as_slice());
        let value = ty(&[128, 8]);
        for &op in PutOp::ALL {
            for distinct in [false, true] {
                let operands = [value.clone(), at.clone(), value.clone()];
                tally.check(kernel_of(&operands, std::slice::from_ref(&value), |_, v| OpKind::Put {
                    op,
                    a: v[0],
                    at: v[1],
                    update: v[2],
                    distinct,
                }));
            }
        }
        let operands = [value.clone(), at.clone(), Type::Scalar(dtype)];
        tally.check(kernel_of(&operands, std::slice::from_ref(&value), |_, v| {
            OpKind::Take {
                a: v[0],
                at: v[1],
                fill: v[2],
            }
        }));
        let both = [at.clone(), at.clone(), value.clone()];
        tally.check(kernel_of(&both[..2], std::slice::from_ref(&value), |b, v| {
            let src = b.input(dtype, &[16, 32]);
            OpKind::LoadAt {
                src: b.whole(src),
                at: v.to_vec(),
                mask: None,
            }
        }));
        tally.check(kernel_of(&both, &[], |b, v| {
            let dst = b.output(dtype, &[16, 32]);
            OpKind::StoreAt {
                dst: b.whole(dst),
                at: v[..2].to_vec(),
                mask: None,
                value: v[2],
            }
        }));
        for shape in SHAPES.iter().filter(|shape| !shape.is_empty()) {
            let mask = Type::of(DType::Bool, shape.iter().copied().collect::<Shape>());
            tally.check(kernel_of(std::slice::from_ref(&mask), &[ty(shape)], |b, v| {
                let src = b.input(dtype, shape);
                OpKind::LoadMasked {
                    src: b.whole(src),
                    mask: v[0],
                }
            }));
            tally.check(kernel_of(&[mask, ty(shape)], &[], |b, v| {
                let dst = b.output(dtype, shape);
                OpKind::StoreMasked {
                    dst: b.whole(dst),
                    mask: v[0],
                    value: v[1],
                }
            }));
        }
        for &op in AtomicOp::ALL {
            tally.check(kernel_of(&both, &[], |b, v| {
                let dst = b.output(dtype, &[16, 32]);
                OpKind::AtomicUpdateAt {
                    op,
                    dst: b.whole(dst),
                    at: v[..2].to_vec(),
                    value: v[2],
                }
            }));
        }
        for &op in AtomicOp::ALL {
            for shape in SHAPES {
                tally.check(kernel_of(&[ty(shape)], &[], |b, v| {
                    let out = b.output(dtype, shape);
                    OpKind::AtomicUpdate {
                        op,
                        dst: b.whole(out),
                        value: v[0],
                    }
                }));
            }
        }
        // One element by itself in memory.
        tally.check(kernel_of(&[], &[ty(&[])], |b, _| {
            let input = b.input(dtype, &[]);
            OpKind::Load { src: b.whole(input) }
        }));
    }
    tally.finish(300, 200);
}

#[test]
fn products_are_lowered_of_the_types_that_their_arithmetic_takes() {
    let mut lowered_kernels = 0;
    for arithmetic in [DotArithmetic::TensorCore, DotArithmetic::MultiplyAdd] {
        for dtype in DType::ALL {
            let Some(sum) = arithmetic.result(dtype) else { continue };
            for (a, b, out) in [
                (&[64u64, 40][..], &[24u64, 40][..], &[64u64, 24][..]),
                (&[5, 17, 3], &[5, 2, 3], &[5, 17, 2]),
            ] {
                for with_acc in [false, true] {
                    let types = [Type::of(dtype, a), Type::of(dtype, b), Type::of(sum, out)];
                    let kernel = kernel_of(&types, &[Type::of(sum, out)], |_, v| OpKind::Dot {
                        acc: with_acc.then_some(v[2]),
                        a: v[0],
                        b: v[1],
                        arithmetic,
                    });
                    verify::run(&kernel).unwrap();
                    lowered(kernel).unwrap();
                    lowered_kernels += 1;
                }
            }
        }
    }
    assert_eq!(lowered_kernels, 4 * (5 + 4));
}
