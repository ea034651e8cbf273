//! Every layout as the operand of every kind of op: what inference leaves meets the signatures, and what does not is found.
use smalt::dtype::DType;
use smalt::error::Fault;
use smalt::kernel_ir::testing::KernelBuilder;
use smalt::kernel_ir::visit::for_each_value;
use smalt::kernel_ir::*;
use smalt::layout::assignment::Assignment;
use smalt::layout::register_layout::{Group, RegisterLayout};
use smalt::layout::tiled::TiledLayout;
use smalt::layout::{infer, verify_layouts};

const SHAPE: [u64; 2] = [128, 64];

/// The layouts that an array of the tests' shape can be cast to.
fn specs() -> Vec<LayoutSpec> {
    let named = TiledLayout::NAMES.into_iter().filter_map(|name| {
        let fits = TiledLayout::by_name(name)?.instantiate(&SHAPE).is_ok();
        let name = name.to_string();
        fits.then_some(LayoutSpec::Named { name, args: vec![] })
    });
    let strided = [1, 2, 4].map(|vec| LayoutSpec::Strided {
        shape: SHAPE.as_slice().into(),
        vec,
    });
    named.chain(strided).collect()
}

fn sorted(b: &mut KernelBuilder, a: Value, axis: u32, first: u64) -> Value {
    let key = b.op1(OpKind::Bitcast { a }, DType::U16, &SHAPE);
    let mut shape = SHAPE;
    shape[axis as usize] = first;
    let kind = OpKind::Sort {
        keys: vec![key],
        axis,
        indexed: false,
        first,
    };
    b.op1(kind, DType::U16, &shape)
}

type Make = fn(&mut KernelBuilder, Value, Value) -> Value;

fn array(b: &mut KernelBuilder, kind: OpKind, shape: &[u64]) -> Value {
    b.op1(kind, DType::F16, shape)
}

fn looped(b: &mut KernelBuilder, x: Value, y: Value) -> Value {
    let (lower, upper) = (b.int(DType::I32, 0), b.int(DType::I32, 4));
    let ty = Type::of(DType::F16, SHAPE.as_slice());
    let params = [Type::Scalar(DType::I32), ty.clone(), ty.clone()];
    let body = b.region(smalt::kernel_ir::Group::Warpgroup, &params, |_, p| vec![p[2], p[1]]);
    let kind = OpKind::For {
        lower,
        upper,
        inits: vec![x, y],
        xs: vec![],
        reverse: false,
        unroll: 1,
        body,
    };
    b.op(kind, &[ty.clone(), ty])[0]
}

fn multiplied(b: &mut KernelBuilder, x: Value, _: Value) -> Value {
    let transforms = SmemTransforms {
        tiling: [8, 64].as_slice().into(),
        swizzle_bytes: 128,
    };
    let right = b.smem(DType::F16, &[64, 64], Some(transforms));
    let ty = Type::Acc {
        dtype: DType::F32,
        shape: SHAPE.as_slice().into(),
    };
    let acc = b.op(OpKind::AccInit { init: None }, std::slice::from_ref(&ty))[0];
    let kind = OpKind::Wgmma {
        acc: AccUse::Value(acc),
        a: MmaOperand::Registers(x),
        b: b.whole(right),
    };
    let acc = b.op(kind, std::slice::from_ref(&ty))[0];
    let acc = b.op(OpKind::WgmmaWait { n: 0, accs: vec![acc] }, std::slice::from_ref(&ty))[0];
    let kind = OpKind::AccRead {
        acc: AccUse::Value(acc),
    };
    b.op(kind, &[Type::of(DType::F32, SHAPE.as_slice()), ty])[0]
}

const OPS: [(&str, Make); 15] = [
    ("add", |b, a, c| {
        let kind = OpKind::Binary {
            op: BinaryOp::Add,
            a,
            b: c,
        };
        array(b, kind, &SHAPE)
    }),
    ("clamp", |b, a, c| {
        array(b, OpKind::Clamp { lo: c, x: a, hi: c }, &SHAPE)
    }),
    ("transpose", |b, a, _| {
        let permutation = vec![1, 0];
        array(b, OpKind::Transpose { a, permutation }, &[64, 128])
    }),
    ("reshape", |b, a, _| array(b, OpKind::Reshape { a }, &[64, 128])),
    ("slice", |b, a, _| {
        let (starts, strides) = (vec![64, 0], vec![1, 1]);
        array(b, OpKind::Slice { a, starts, strides }, &[64, 64])
    }),
    ("reduce", |b, a, _| {
        let kind = OpKind::Reduce {
            op: ReduceOp::Max,
            a,
            axes: vec![1],
            parallel: None,
        };
        array(b, kind, &[128])
    }),
    ("reduce and broadcast", |b, a, c| {
        let kind = OpKind::Reduce {
            op: ReduceOp::Max,
            a,
            axes: vec![0],
            parallel: None,
        };
        let row = array(b, kind, &[64]);
        let rows = array(b, OpKind::Broadcast { a: row, dims: vec![1] }, &SHAPE);
        let kind = OpKind::Binary {
            op: BinaryOp::Sub,
            a: c,
            b: rows,
        };
        array(b, kind, &SHAPE)
    }),
    ("argmax", |b, a, _| {
        let kind = OpKind::ArgReduce {
            op: ArgReduceOp::ArgMax,
            a,
            axis: 1,
        };
        b.op1(kind, DType::I32, &[128])
    }),
    ("cummax", |b, a, _| {
        let kind = OpKind::Cumulative {
            op: CumulativeOp::Max,
            a,
            axis: 0,
            reverse: false,
        };
        array(b, kind, &SHAPE)
    }),
    ("concat", |b, a, c| {
        let (parts, dim) = (vec![a, c], 0);
        array(b, OpKind::Concat { parts, dim }, &[256, 64])
    }),
    ("bitcast", |b, a, _| {
        b.op1(OpKind::Bitcast { a }, DType::U8, &[128, 64, 2])
    }),
    ("sort", |b, a, _| sorted(b, a, 0, SHAPE[0])),
    ("first of a sort", |b, a, _| sorted(b, a, 1, 5)),
    ("loop", looped),
    ("wgmma", multiplied),
];

/// `op(x in the layout, x as inference likes it)`, stored.
fn kernel(make: Make, layout: &LayoutSpec) -> Kernel {
    let mut b = KernelBuilder::new();
    let input = b.input(DType::F16, &SHAPE);
    let x = b.load(b.whole(input));
    let layout = layout.clone();
    let cast = array(&mut b, OpKind::LayoutCast { a: x, layout }, &SHAPE);
    let y = b.load(b.whole(input));
    let result = make(&mut b, cast, y);
    let ty = b.kernel.ty(result).clone();
    let out = b.output(ty.dtype(), ty.shape());
    b.store(b.whole(out), result);
    b.finish()
}

fn inferred(make: Make, layout: &LayoutSpec) -> (Kernel, Assignment) {
    let mut kernel = kernel(make, layout);
    let assignment = infer::run(&mut kernel).unwrap();
    (kernel, assignment)
}

#[test]
fn what_inference_leaves_meets_every_signature() {
    for (name, make) in OPS {
        for layout in specs() {
            let (kernel, assignment) = inferred(make, &layout);
            if let Err(e) = verify_layouts::run(&kernel, &assignment.values) {
                panic!("{name} of {layout}: {e}\n{kernel}");
            }
        }
    }
}

#[test]
fn the_left_operand_of_wgmma_lies_as_the_instruction_reads_it() {
    let fragments = TiledLayout::wgmma().instantiate(&SHAPE).unwrap();
    for layout in specs() {
        let (kernel, assignment) = inferred(multiplied, &layout);
        let mut seen = false;
        kernel.for_each_op(&mut |op| {
            if let OpKind::Wgmma {
                a: MmaOperand::Registers(a),
                ..
            } = &kernel.ops[op].kind
            {
                assert_eq!(assignment.values[*a].as_ref(), Some(&fragments), "{layout}");
                seen = true;
            }
        });
        assert!(seen);
    }
}

/// Ops that take these operands in any layout: they go by what the operand has.
fn takes_any(kind: &OpKind) -> bool {
    matches!(
        kind,
        OpKind::Relayout { .. }
            | OpKind::Concat { .. }
            | OpKind::Store { .. }
            | OpKind::Transpose { .. }
            | OpKind::Reshape { .. }
            | OpKind::Slice { .. }
            | OpKind::Broadcast { .. }
    )
}

#[test]
fn no_operand_in_another_layout_passes() {
    for (name, make) in OPS {
        let (kernel, assignment) = inferred(make, &specs()[0]);
        let mut operands = vec![];
        kernel.for_each_op(&mut |op| {
            let kind = &kernel.ops[op].kind;
            for_each_value(kind, &mut |v| {
                if !takes_any(kind) && !kernel.ty(v).is_scalar() {
                    operands.push(v);
                }
            });
        });
        for v in operands {
            let own = assignment.values[v].clone().unwrap();
            // Nobody needs this: single elements, the first dimension's in one thread.
            let odd = smalt::layout::derivation::with_dim_in_slots(own.shape(), None, Group::Warpgroup);
            let odd = if odd == own {
                RegisterLayout::strided(own.shape(), 1, Group::Warpgroup)
            } else {
                odd
            };
            let mut broken = assignment.values.clone();
            broken[v] = Some(odd);
            let error = verify_layouts::run(&kernel, &broken).expect_err(&format!("{name}: {v}\n{kernel}"));
            assert_eq!(error.fault, Fault::Internal);
        }
    }
}

#[test]
fn equal_conversions_are_one_and_leave_loops() {
    // for 4 { y = y + x in another layout + x in another layout }
    let mut b = KernelBuilder::new();
    let input = b.input(DType::F32, &SHAPE);
    let x = b.load(b.whole(input));
    let strided = LayoutSpec::Strided {
        shape: SHAPE.as_slice().into(),
        vec: 4,
    };
    let x = b.op1(OpKind::LayoutCast { a: x, layout: strided }, DType::F32, &SHAPE);
    let start = b.load(b.whole(input));
    let wgmma = LayoutSpec::Named {
        name: "WGMMA".into(),
        args: vec![],
    };
    let (lower, upper) = (b.int(DType::I32, 0), b.int(DType::I32, 4));
    let ty = Type::of(DType::F32, SHAPE.as_slice());
    let params = [Type::Scalar(DType::I32), ty.clone()];
    let body = b.region(smalt::kernel_ir::Group::Warpgroup, &params, |b, p| {
        let layout = wgmma.clone();
        let mut y = b.op1(OpKind::LayoutCast { a: p[1], layout }, DType::F32, &SHAPE);
        for _ in 0..2 {
            let kind = OpKind::Binary {
                op: BinaryOp::Add,
                a: y,
                b: x,
            };
            y = b.op1(kind, DType::F32, &SHAPE);
        }
        vec![y]
    });
    let kind = OpKind::For {
        lower,
        upper,
        inits: vec![start],
        xs: vec![],
        reverse: false,
        unroll: 1,
        body,
    };
    let sum = b.op(kind, &[ty])[0];
    let out = b.output(DType::F32, &SHAPE);
    b.store(b.whole(out), sum);
    let mut kernel = b.finish();
    let assignment = infer::run(&mut kernel).unwrap();
    assert_eq!(assignment.relayouts.len(), 1, "{kernel}");
    let (conversion, user) = assignment.relayouts[0];
    assert_eq!(user, "add");
    assert!(kernel.regions[kernel.body].ops.contains(&conversion), "{kernel}");
}

#[test]
fn counters_and_masks_are_computed_anew() {
    // A mask of two counters, cast to two layouts: no conversion.
    let mut b = KernelBuilder::new();
    let rows = b.op1(OpKind::Iota { dim: 0 }, DType::I32, &SHAPE);
    let columns = b.op1(OpKind::Iota { dim: 1 }, DType::I32, &SHAPE);
    let kind = OpKind::Compare {
        op: CompareOp::Ge,
        a: rows,
        b: columns,
    };
    let mask = b.op1(kind, DType::Bool, &SHAPE);
    for layout in specs() {
        let cast = b.op1(OpKind::LayoutCast { a: mask, layout }, DType::Bool, &SHAPE);
        let out = b.output(DType::Bool, &SHAPE);
        b.store(b.whole(out), cast);
    }
    let mut kernel = b.finish();
    let assignment = infer::run(&mut kernel).unwrap();
    assert_eq!(assignment.relayouts, [], "{kernel}");
}
