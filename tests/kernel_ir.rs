//! The kernel IR's verifier and passes, on kernels built by hand.
use expect_test::expect;
use smalt::dtype::DType;
use smalt::error::{Fault, Loc};
use smalt::kernel_ir::intensity::Limit;
use smalt::kernel_ir::verify::Rule;
use smalt::kernel_ir::*;
use smalt::passes;

const L: Loc = Loc(1);

fn i32s() -> Type {
    Type::Scalar(DType::I32)
}

fn array(dtype: DType, shape: &[u64]) -> Type {
    Type::of(dtype, Shape::from_slice(shape))
}

/// A kernel under construction: ops go to the end of the region on top of the stack.
struct Build {
    k: Kernel,
    stack: Vec<Region>,
}

impl Build {
    fn new(warpgroups: u32) -> Build {
        let mut k = Kernel::empty("test", warpgroups);
        if warpgroups > 1 {
            let axis = AxisData {
                name: "wg".into(),
                size: u64::from(warpgroups),
                kind: AxisKind::Thread,
            };
            k.thread_axis = Some(k.axes.push(axis));
        }
        let stack = vec![k.body];
        Build { k, stack }
    }

    fn at(&self) -> Region {
        *self.stack.last().unwrap()
    }

    fn op(&mut self, kind: OpKind, results: &[Type]) -> Vec<Value> {
        let at = self.at();
        self.k.append(at, kind, results.to_vec(), L).to_vec()
    }

    fn one(&mut self, kind: OpKind, ty: Type) -> Value {
        self.op(kind, &[ty])[0]
    }

    fn int(&mut self, dtype: DType, x: i64) -> Value {
        let at = self.at();
        self.k.append_int(at, dtype, x, L)
    }

    fn i(&mut self, x: i64) -> Value {
        self.int(DType::I32, x)
    }

    fn bin(&mut self, op: BinaryOp, a: Value, b: Value) -> Value {
        let ty = self.k.ty(a).clone();
        self.one(OpKind::Binary { op, a, b }, ty)
    }

    fn cmp(&mut self, op: CompareOp, a: Value, b: Value) -> Value {
        let ty = self.k.ty(a).with_dtype(DType::Bool);
        self.one(OpKind::Compare { op, a, b }, ty)
    }

    fn select(&mut self, which: Value, no: Value, yes: Value) -> Value {
        let ty = self.k.ty(no).clone();
        self.one(
            OpKind::Select {
                which,
                cases: vec![no, yes],
            },
            ty,
        )
    }

    /// `a % b` as JAX writes it on traced integers.
    fn floor_mod(&mut self, a: Value, b: Value) -> Value {
        let zero = self.i(0);
        let r = self.bin(BinaryOp::Rem, a, b);
        let ne = self.cmp(CompareOp::Ne, r, zero);
        let (rn, bn) = (self.cmp(CompareOp::Lt, r, zero), self.cmp(CompareOp::Lt, b, zero));
        let signs = self.cmp(CompareOp::Ne, rn, bn);
        let fix = self.bin(BinaryOp::And, signs, ne);
        let fixed = self.bin(BinaryOp::Add, r, b);
        self.select(fix, r, fixed)
    }

    /// `a // b` as JAX writes it.
    fn floor_div(&mut self, a: Value, b: Value) -> Value {
        let (zero, one) = (self.i(0), self.i(1));
        let q = self.bin(BinaryOp::Div, a, b);
        let sa = self.one(OpKind::Unary { op: UnaryOp::Sign, a }, i32s());
        let sb = self.one(
            OpKind::Unary {
                op: UnaryOp::Sign,
                a: b,
            },
            i32s(),
        );
        let signs = self.cmp(CompareOp::Ne, sa, sb);
        let r = self.bin(BinaryOp::Rem, a, b);
        let ne = self.cmp(CompareOp::Ne, r, zero);
        let fix = self.bin(BinaryOp::And, signs, ne);
        let less = self.bin(BinaryOp::Sub, q, one);
        self.select(fix, q, less)
    }

    fn region(&mut self, group: Group, params: &[Type], f: impl FnOnce(&mut Build, &[Value]) -> Vec<Value>) -> Region {
        let region = self.k.new_region(group);
        let values: Vec<Value> = params.iter().map(|ty| self.k.new_value(ty.clone(), group)).collect();
        self.k.regions[region].params = values.clone();
        self.stack.push(region);
        let results = f(self, &values);
        self.stack.pop();
        self.k.regions[region].results = results;
        region
    }

    /// `for i in lower..upper`; `f` gets the counter and the carries.
    fn for_loop(
        &mut self,
        (lower, upper): (Value, Value),
        inits: &[Value],
        f: impl FnOnce(&mut Build, Value, &[Value]) -> Vec<Value>,
    ) -> Vec<Value> {
        let types: Vec<Type> = inits.iter().map(|&v| self.k.ty(v).clone()).collect();
        let mut params = vec![self.k.ty(lower).clone()];
        params.extend(types.clone());
        let body = self.region(Group::Warpgroup, &params, |b, p| f(b, p[0], &p[1..]));
        let kind = OpKind::For {
            lower,
            upper,
            inits: inits.to_vec(),
            xs: vec![],
            reverse: false,
            unroll: 1,
            body,
        };
        self.op(kind, &types)
    }

    /// `switch` on a bool, without results.
    fn when(&mut self, selector: Value, yes: impl FnOnce(&mut Build), no: impl FnOnce(&mut Build)) {
        let arms = vec![
            self.region(Group::Warpgroup, &[], |b, _| {
                no(b);
                vec![]
            }),
            self.region(Group::Warpgroup, &[], |b, _| {
                yes(b);
                vec![]
            }),
        ];
        self.op(OpKind::Switch { selector, arms }, &[]);
    }

    fn alloc(&mut self, kind: AllocKind, shape: &[u64]) -> Alloc {
        let data = AllocData {
            kind,
            shape: Shape::from_slice(shape),
            collective: true,
            within: None,
            owner: Owner::Author,
            loc: L,
        };
        self.k.allocs.push(data)
    }

    /// An array parameter in GMEM.
    fn param(&mut self, role: ParamRole, dtype: DType, shape: &[u64]) -> Alloc {
        let origin = GmemOrigin::Param(self.k.params.len() as u32);
        let alloc = self.alloc(AllocKind::Gmem { dtype, origin }, shape);
        self.k.params.push(ParamData {
            role,
            binding: ParamBinding::Alloc(alloc),
            ty: array(dtype, shape),
        });
        alloc
    }

    fn smem(&mut self, dtype: DType, shape: &[u64]) -> Alloc {
        self.alloc(
            AllocKind::Smem {
                dtype,
                transforms: None,
            },
            shape,
        )
    }

    fn barriers(&mut self, n: u64) -> Alloc {
        self.alloc(
            AllocKind::Barrier {
                num_arrivals: 1,
                orders_tensor_core: false,
                cluster: None,
            },
            &[n],
        )
    }

    fn accumulator(&mut self, m: u64, n: u64) -> Alloc {
        let alloc = self.alloc(
            AllocKind::Register {
                dtype: DType::F32,
                accumulator: true,
            },
            &[m, n],
        );
        self.k.allocs[alloc].collective = false;
        alloc
    }

    fn scope(&mut self, allocs: &[Alloc], f: impl FnOnce(&mut Build)) {
        let body = self.region(Group::Warpgroup, &[], |b, _| {
            f(b);
            vec![]
        });
        self.op(
            OpKind::Scope {
                allocs: allocs.to_vec(),
                collective: false,
                body,
            },
            &[],
        );
    }

    fn whole(&self, alloc: Alloc) -> RefUse {
        self.k.whole(alloc)
    }

    /// The first 64 rows, 64 columns wide.
    fn corner(&self, alloc: Alloc) -> RefUse {
        let mut r = self.k.whole(alloc);
        r.steps.push(Step::Index(vec![DimIndex::all(64), DimIndex::all(64)]));
        r.shape = Shape::from_slice(&[64, 64]);
        r
    }

    /// One element.
    fn element(&self, alloc: Alloc, index: Index) -> RefUse {
        let mut r = self.k.whole(alloc);
        r.steps.push(Step::Index(vec![DimIndex::At(index)]));
        r.shape = Shape::new();
        r
    }

    fn wait(&mut self, barriers: Alloc, i: i64) {
        let barrier = self.element(barriers, Index::Const(i));
        self.op(OpKind::BarrierWait { barrier, phases: None }, &[]);
    }

    fn wgmma(&mut self, acc: Alloc, a: Alloc, b: Alloc) {
        let kind = OpKind::Wgmma {
            acc: AccUse::Ref(self.whole(acc)),
            a: MmaOperand::Smem(self.whole(a)),
            b: self.whole(b),
        };
        self.op(kind, &[]);
    }

    fn deref(&mut self, acc: Alloc) -> Value {
        let ty = array(DType::F32, &self.k.allocs[acc].shape.clone());
        self.op(OpKind::WgmmaWait { n: 0, accs: vec![] }, &[]);
        self.one(
            OpKind::AccRead {
                acc: AccUse::Ref(self.whole(acc)),
            },
            ty,
        )
    }

    /// Something that keeps a scalar alive.
    fn keep(&mut self, v: Value) {
        self.op(
            OpKind::DebugPrint {
                format: "{}".into(),
                args: vec![v],
                then: AfterPrint::GoesOn,
            },
            &[],
        );
    }

    fn normalize(&mut self) -> String {
        if let Err(e) = verify::run(&self.k) {
            panic!("{e}\n{}", self.k);
        }
        if let Err(e) = passes::run(&mut self.k, &mut |_, _| {}) {
            panic!("{e}\n{}", self.k);
        }
        body(&self.k)
    }
}

/// The kernel's ops as text, without locations, the outermost at the margin.
fn body(kernel: &Kernel) -> String {
    let text = kernel.to_string();
    let at = text.find("\n{\n").expect("a body") + 3;
    text[at..text.len() - 2]
        .replace("  // op1; ", "  // ")
        .replace("  // op1\n", "\n")
        .lines()
        .map(|line| format!("{}\n", line.strip_prefix("  ").unwrap_or(line)))
        .collect()
}

/// How many ops have this name.
fn count(kernel: &Kernel, name: &str) -> usize {
    let mut n = 0;
    kernel.for_each_op(&mut |op| n += usize::from(kernel.ops[op].kind.name() == name));
    n
}

// ---------------------------------------------------------------- passes

#[test]
fn python_modulo_and_division_of_non_negative_numbers_are_one_op() {
    let mut b = Build::new(1);
    let (lo, hi, four) = (b.i(0), b.i(60), b.i(4));
    b.for_loop((lo, hi), &[], |b, i, _| {
        let m = b.floor_mod(i, four);
        let d = b.floor_div(i, four);
        b.keep(m);
        b.keep(d);
        vec![]
    });
    expect![[r#"
          for 0 .. 60 do (%v3: i32) {
            %v5: i32 = rem %v3, 4  // 0..=3
            %v15: i32 = div %v3, 4  // 0..=14
            debug_print "{}" %v5
            debug_print "{}" %v15
          }
    "#]]
    .assert_eq(&b.normalize());
}

#[test]
fn python_division_of_numbers_of_unknown_sign_keeps_its_correction() {
    let mut b = Build::new(1);
    let gmem = b.param(ParamRole::Input, DType::I32, &[1]);
    let src = b.element(gmem, Index::Const(0));
    let x = b.one(OpKind::Load { src }, i32s());
    let four = b.i(4);
    let m = b.floor_mod(x, four);
    b.keep(m);
    b.normalize();
    assert_eq!(count(&b.k, "select"), 1);
}

#[test]
fn a_while_that_counts_is_a_for() {
    let mut b = Build::new(1);
    let gmem = b.param(ParamRole::Input, DType::I32, &[1]);
    let src = b.element(gmem, Index::Const(0));
    let n = b.one(OpKind::Load { src }, i32s());
    let (zero, ten) = (b.i(0), b.i(10));
    // (i, n, x): x grows by 3.
    let types = [i32s(), i32s(), i32s()];
    let cond = b.region(Group::Warpgroup, &types, |b, p| {
        let c = b.cmp(CompareOp::Lt, p[0], p[1]);
        vec![c, p[0], p[1], p[2]]
    });
    let body = b.region(Group::Warpgroup, &types, |b, p| {
        let (one, three) = (b.i(1), b.i(3));
        b.keep(p[2]);
        let i = b.bin(BinaryOp::Add, p[0], one);
        let x = b.bin(BinaryOp::Add, three, p[2]);
        vec![i, p[1], x]
    });
    let r = b.op(
        OpKind::While {
            inits: vec![zero, n, ten],
            cond,
            body,
        },
        &types,
    );
    b.keep(r[0]);
    b.keep(r[2]);
    expect![[r#"
          %v0: i32 = load alloc0[0]: i32
          for 0 .. %v0 do (%v7: i32) {
            %v18: i32 = mul %v7, 3
            %v19: i32 = add %v18, 10
            debug_print "{}" %v19
          }
          %v21: i32 = max 0, %v0  // 0..=2147483647
          %v22: i32 = mul %v21, 3
          %v23: i32 = add %v22, 10
          debug_print "{}" %v21
          debug_print "{}" %v23
    "#]]
    .assert_eq(&b.normalize());
}

#[test]
fn a_while_whose_bound_changes_stays() {
    let mut b = Build::new(1);
    let (zero, ten) = (b.i(0), b.i(10));
    let types = [i32s(), i32s()];
    let cond = b.region(Group::Warpgroup, &types, |b, p| {
        let c = b.cmp(CompareOp::Lt, p[0], p[1]);
        vec![c, p[0], p[1]]
    });
    let body = b.region(Group::Warpgroup, &types, |b, p| {
        let (one, minus) = (b.i(1), b.i(-1));
        b.keep(p[0]);
        let i = b.bin(BinaryOp::Add, p[0], one);
        let n = b.bin(BinaryOp::Add, p[1], minus);
        vec![i, n]
    });
    b.op(
        OpKind::While {
            inits: vec![zero, ten],
            cond,
            body,
        },
        &types,
    );
    b.normalize();
    assert_eq!(count(&b.k, "while"), 1);
}

#[test]
fn wrapping_counters_are_bounded() {
    let mut b = Build::new(1);
    let (lo, hi, n) = (b.i(0), b.i(1000), b.i(64));
    b.for_loop((lo, hi), &[lo], |b, _, carry| {
        b.keep(carry[0]);
        let one = b.i(1);
        let next = b.bin(BinaryOp::Add, carry[0], one);
        let end = b.cmp(CompareOp::Eq, next, n);
        vec![b.select(end, next, lo)]
    });
    let text = b.normalize();
    assert!(text.contains("select") && text.contains("// 0..=63"), "{text}");
}

#[test]
fn wide_counters_become_narrow() {
    let mut b = Build::new(1);
    let gmem = b.param(ParamRole::Output { alias_of: None }, DType::F32, &[8, 64]);
    let (lo, hi) = (b.i(0), b.i(8));
    let wide = b.int(DType::I64, 0);
    b.for_loop((lo, hi), &[wide], |b, _, carry| {
        let (one, two) = (b.int(DType::I64, 1), b.int(DType::I64, 2));
        let doubled = b.bin(BinaryOp::Mul, carry[0], two);
        let row = b.bin(BinaryOp::Div, doubled, two);
        let mut dst = b.whole(gmem);
        dst.steps
            .push(Step::Index(vec![DimIndex::At(Index::Value(row)), DimIndex::all(64)]));
        dst.shape = Shape::from_slice(&[64]);
        let zero = b.one(OpKind::Constant(Constant::Splat(0)), array(DType::F32, &[64]));
        b.op(OpKind::Store { dst, value: zero }, &[]);
        vec![b.bin(BinaryOp::Add, carry[0], one)]
    });
    let text = b.normalize();
    assert!(!text.contains("i64"), "{text}");
}

#[test]
fn index_steps_compose() {
    let mut b = Build::new(1);
    let gmem = b.param(ParamRole::Input, DType::F32, &[256, 128]);
    let (lo, hi) = (b.i(0), b.i(4));
    b.for_loop((lo, hi), &[], |b, i, _| {
        let tile = b.i(64);
        let start = b.bin(BinaryOp::Mul, i, tile);
        let mut src = b.whole(gmem);
        // a[s:s+64, :].T[32:96, 8] → a[s+8, 32:96]
        let slice = |start, size| DimIndex::Slice { start, size, stride: 1 };
        src.steps = vec![
            Step::Index(vec![slice(Index::Value(start), 64), DimIndex::all(128)]),
            Step::Transpose(vec![1, 0]),
            Step::Index(vec![slice(Index::Const(32), 64), DimIndex::At(Index::Const(8))]),
        ];
        src.shape = Shape::from_slice(&[64]);
        let v = b.one(OpKind::Load { src }, array(DType::F32, &[64]));
        b.keep(v);
        vec![]
    });
    let text = b.normalize();
    assert!(text.contains("add %v4, 8  // 8..=200, multiple of 8"), "{text}");
    assert!(
        text.contains(", 32:+64]: f32[64]") && !text.contains("transpose"),
        "{text}"
    );
}

#[test]
fn barrier_phases_flow_through_scopes_loops_and_arms() {
    let mut b = Build::new(1);
    let gmem = b.param(ParamRole::Input, DType::Bool, &[1]);
    let bars = b.barriers(2);
    let (lo, hi) = (b.i(0), b.i(5));
    b.for_loop((lo, hi), &[], |b, _, _| {
        b.scope(&[bars], |b| {
            b.wait(bars, 0);
            let src = b.element(gmem, Index::Const(0));
            let p = b.one(OpKind::Load { src }, Type::Scalar(DType::Bool));
            b.when(p, |b| b.wait(bars, 1), |_| {});
        });
        vec![]
    });
    expect![[r#"
        %v3: bool = load alloc0[0]: bool
        %v10: u32 = for 0 .. 5 from 0:u32 do (%v2: i32, %v5: u32) {
          %v9: u32 = scope(alloc1) {
            %v6: u32 = barrier_wait alloc1[0]: barrier phases %v5
            %v8: u32 = switch %v3 case 0 {
              yield %v6
            } case 1 {
              %v7: u32 = barrier_wait alloc1[1]: barrier phases %v6
              yield %v7
            }
            yield %v8
          }
          yield %v9
        }
    "#]]
    .assert_eq(&b.normalize());
}

#[test]
fn phases_of_warps_are_per_warp() {
    let mut b = Build::new(1);
    let axis = b.k.axes.push(AxisData {
        name: String::new(),
        size: 4,
        kind: AxisKind::Warp,
    });
    let bars = b.barriers(1);
    b.scope(&[bars], |b| {
        let body = b.region(Group::Warp, &[], |b, _| {
            let warp = b.one(OpKind::AxisIndex { axis }, i32s());
            let zero = b.i(0);
            let first = b.cmp(CompareOp::Eq, warp, zero);
            let arms = vec![
                b.region(Group::Warp, &[], |_, _| vec![]),
                b.region(Group::Warp, &[], |b, _| {
                    b.wait(bars, 0);
                    vec![]
                }),
            ];
            b.op(OpKind::Switch { selector: first, arms }, &[]);
            vec![]
        });
        b.op(
            OpKind::WarpMap {
                axis,
                inits: vec![],
                body,
            },
            &[],
        );
        b.wait(bars, 0);
    });
    let text = b.normalize();
    assert!(text.contains("u32 per warp = warp_map axis0 from "), "{text}");
    assert!(text.contains("barrier_wait alloc0[0]: barrier phases %v"), "{text}");
}

#[test]
fn more_barriers_than_bits_are_refused() {
    let mut b = Build::new(1);
    let bars = b.barriers(33);
    b.scope(&[bars], |b| b.wait(bars, 32));
    let e = passes::run(&mut b.k, &mut |_, _| {}).unwrap_err();
    assert_eq!(e.fault, Fault::Unsupported);
    assert_eq!(e.what, "an array of 33 barriers");
}

/// A kernel with operands for wgmma and one accumulator.
fn with_wgmma(f: impl FnOnce(&mut Build, Alloc, Alloc, Alloc)) -> Build {
    let mut b = Build::new(1);
    let x = b.smem(DType::F16, &[64, 64]);
    let y = b.smem(DType::F16, &[64, 64]);
    let acc = b.accumulator(64, 64);
    b.scope(&[x, y], |b| b.scope(&[acc], |b| f(b, acc, x, y)));
    b
}

#[test]
fn an_accumulator_is_carried_and_wgmmas_contract_is_kept() {
    let mut b = with_wgmma(|b, acc, x, y| {
        let (lo, hi) = (b.i(0), b.i(8));
        b.for_loop((lo, hi), &[], |b, _, _| {
            b.wgmma(acc, x, y);
            b.op(OpKind::CommitSmem, &[]);
            vec![]
        });
        let v = b.deref(acc);
        b.keep(v);
    });
    expect![[r#"
          scope(alloc0,alloc1) {
            %v4: acc f32[64,64] = acc_init
            %v8: acc f32[64,64] = for 0 .. 8 from %v4 do (%v2: i32, %v5: acc f32[64,64]) {
              %v6: acc f32[64,64] = wgmma %v5 += alloc0: f16[64,64] @ alloc1: f16[64,64]
              %v7: acc f32[64,64] = wgmma_wait 1 %v6
              commit_smem
              yield %v7
            }
            %v9: acc f32[64,64] = wgmma_wait 0 %v8
            %v3: f32[64,64], %v10: acc f32[64,64] = acc_read %v9
            debug_print "{}" %v3
          }
    "#]]
    .assert_eq(&b.normalize());
}

#[test]
fn no_wait_is_added_where_none_is_needed() {
    // Nothing in flight before; the next op that touches anything is a wait.
    let mut b = with_wgmma(|b, acc, x, y| {
        b.wgmma(acc, x, y);
        b.wgmma(acc, x, y);
        let v = b.deref(acc);
        b.keep(v);
    });
    b.normalize();
    assert_eq!(count(&b.k, "wgmma_wait"), 1);
}

#[test]
fn an_accumulator_that_nobody_reads_is_settled_before_its_registers_go() {
    let mut b = with_wgmma(|b, acc, x, y| b.wgmma(acc, x, y));
    let text = b.normalize();
    assert!(text.contains("wgmma_wait 0"), "{text}");
}

#[test]
fn an_arm_that_does_not_touch_the_accumulator_hands_it_on() {
    let mut b = with_wgmma(|b, acc, x, y| {
        let gmem = b.param(ParamRole::Input, DType::Bool, &[1]);
        let src = b.element(gmem, Index::Const(0));
        let p = b.one(OpKind::Load { src }, Type::Scalar(DType::Bool));
        b.when(p, |b| b.wgmma(acc, x, y), |b| b.op(OpKind::CommitSmem, &[]).clear());
        let v = b.deref(acc);
        b.keep(v);
    });
    let text: Vec<String> = b.normalize().lines().map(|l| l.trim().to_string()).collect();
    let arm = text.iter().position(|l| l.ends_with("case 0 {")).expect("a switch");
    assert_eq!(
        text[arm + 1..arm + 4],
        ["commit_smem", "yield %v2", "} case 1 {"],
        "{text:#?}"
    );
}

#[test]
fn a_role_branch_inside_a_loop_becomes_one_loop_per_role() {
    let mut b = Build::new(3);
    let axis = b.k.thread_axis.unwrap();
    let (lo, hi) = (b.i(0), b.i(16));
    b.for_loop((lo, hi), &[], |b, i, _| {
        let wg = b.one(OpKind::AxisIndex { axis }, i32s());
        let (two, four) = (b.i(2), b.i(4));
        let tile = b.bin(BinaryOp::Rem, i, four);
        let compute = b.cmp(CompareOp::Ne, wg, two);
        b.when(
            compute,
            |b| {
                b.op(
                    OpKind::SetMaxRegisters {
                        action: RegisterAction::Increase,
                        n: 232,
                    },
                    &[],
                );
                b.keep(tile);
            },
            |b| {
                b.op(
                    OpKind::SetMaxRegisters {
                        action: RegisterAction::Decrease,
                        n: 40,
                    },
                    &[],
                );
                b.keep(i);
            },
        );
        vec![]
    });
    expect![[r#"
          %v3: i32 = axis_index axis0  // 0..=2
          %v7: bool = ne %v3, 2
          switch %v7 case 0 {
            set_max_registers decrease 40
            for 0 .. 16 do (%v8: i32) {
              debug_print "{}" %v8
            }
          } case 1 {
            set_max_registers increase 232
            for 0 .. 16 do (%v10: i32) {
              %v11: i32 = rem %v10, 4  // 0..=3
              debug_print "{}" %v11
            }
          }
    "#]]
    .assert_eq(&b.normalize());
}

#[test]
fn a_loop_with_effects_before_its_role_branch_stays_whole() {
    let mut b = Build::new(2);
    let axis = b.k.thread_axis.unwrap();
    let (lo, hi) = (b.i(0), b.i(16));
    b.for_loop((lo, hi), &[], |b, i, _| {
        b.op(OpKind::CommitSmem, &[]);
        let wg = b.one(OpKind::AxisIndex { axis }, i32s());
        let zero = b.i(0);
        let first = b.cmp(CompareOp::Eq, wg, zero);
        b.when(first, |b| b.keep(i), |_| {});
        vec![]
    });
    b.normalize();
    assert_eq!(count(&b.k, "for"), 1);
}

#[test]
fn uses_that_disagree_about_transforms_are_refused() {
    let mut b = Build::new(1);
    let smem = b.smem(DType::F16, &[8, 1, 8, 64]);
    b.scope(&[smem], |b| {
        for swizzle in [128, 64] {
            let mut src = b.whole(smem);
            let tiling = Shape::from_slice(&[8, 64]);
            src.steps = vec![Step::Unswizzle(swizzle), Step::Untile(tiling)];
            src.shape = Shape::from_slice(&[64, 64]);
            let v = b.one(OpKind::Load { src }, array(DType::F16, &[64, 64]));
            b.keep(v);
        }
    });
    let e = passes::run(&mut b.k, &mut |_, _| {}).unwrap_err();
    assert_eq!(e.what, "one allocation with different transforms");
}

#[test]
fn inputs_are_not_written() {
    let mut b = Build::new(1);
    let gmem = b.param(ParamRole::Input, DType::I32, &[1]);
    let one = b.i(1);
    let dst = b.element(gmem, Index::Const(0));
    b.op(OpKind::Store { dst, value: one }, &[]);
    let e = passes::run(&mut b.k, &mut |_, _| {}).unwrap_err();
    assert_eq!((e.fault, e.loc), (Fault::InvalidKernel, Some(L)));
}

#[test]
fn dead_carries_loads_and_loops_go() {
    let mut b = Build::new(1);
    let gmem = b.param(ParamRole::Input, DType::F32, &[64]);
    let src = b.whole(gmem);
    let x = b.one(OpKind::Load { src }, array(DType::F32, &[64]));
    let (lo, hi) = (b.i(0), b.i(16));
    b.for_loop((lo, hi), &[x], |b, _, c| vec![b.bin(BinaryOp::Add, c[0], c[0])]);
    assert_eq!(b.normalize(), "");
}

/// A loop that needs sums of an input's first `n` elements (`sizes`) in each round; `f` may do something before and in it.
fn loop_over_sizes(
    role: ParamRole,
    n: i64,
    f: impl FnOnce(&mut Build, Alloc),
    inside: impl FnOnce(&mut Build, Alloc, Value),
) -> (usize, usize) {
    let mut b = Build::new(1);
    let sizes = b.param(role, DType::I32, &[256]);
    f(&mut b, sizes);
    let rounds = (b.i(0), b.i(16));
    b.for_loop(rounds, &[], |b, i, _| {
        let mut sum = b.i(0);
        for at in 0..n {
            let src = b.element(sizes, Index::Const(at));
            let size = b.one(OpKind::Load { src }, i32s());
            sum = b.bin(BinaryOp::Add, sum, size);
            let (three, later) = (b.i(3), b.i(at));
            let scaled = b.bin(BinaryOp::Mul, sum, three);
            let here = b.bin(BinaryOp::Add, scaled, later);
            let mine = b.bin(BinaryOp::Mul, here, i);
            b.keep(mine);
        }
        inside(b, sizes, i);
        vec![]
    });
    b.normalize();
    let body = b.k.regions[b.k.body].ops.clone();
    let inner = body.iter().find_map(|op| match &b.k.ops[*op].kind {
        OpKind::For { body, .. } => Some(*body),
        _ => None,
    });
    let mut inside = 0;
    b.k.for_each_op_in(inner.unwrap(), &mut |op| {
        inside += usize::from(matches!(b.k.ops[op].kind, OpKind::Load { .. }));
    });
    (count(&b.k, "load"), inside)
}

#[test]
fn loads_of_inputs_leave_loops() {
    let nothing = |_: &mut Build, _: Alloc| {};
    let none = |_: &mut Build, _: Alloc, _: Value| {};
    assert_eq!(loop_over_sizes(ParamRole::Input, 5, nothing, none), (5, 0));
    // What somebody may write is read when it is asked for.
    let output = ParamRole::Output { alias_of: None };
    assert_eq!(loop_over_sizes(output, 5, nothing, none), (5, 5));
    let (_, inside) = loop_over_sizes(
        ParamRole::Input,
        5,
        |b, _| {
            let action = GridDependencyAction::Wait;
            b.op(OpKind::GridDependency { action }, &[]);
        },
        none,
    );
    assert_eq!(inside, 5, "the kernel before this one may still write");
    // A place that changes, or may lie outside, where the loop need not get.
    let dynamic = |b: &mut Build, sizes: Alloc, i: Value| {
        let src = b.element(sizes, Index::Value(i));
        let size = b.one(OpKind::Load { src }, i32s());
        b.keep(size);
    };
    assert_eq!(loop_over_sizes(ParamRole::Input, 5, nothing, dynamic), (6, 1));
}

#[test]
fn no_more_is_kept_for_a_loop_than_there_are_registers() {
    let nothing = |_: &mut Build, _: Alloc| {};
    let none = |_: &mut Build, _: Alloc, _: Value| {};
    // The sums cross the border: one each, and so many are left.
    assert_eq!(loop_over_sizes(ParamRole::Input, 96, nothing, none), (96, 0));
    let (all, inside) = loop_over_sizes(ParamRole::Input, 200, nothing, none);
    assert_eq!((all, inside), (200, 200 - 96));
    // Warpgroups that give their registers away keep nothing.
    let gives = |b: &mut Build, _: Alloc| {
        let (n, action) = (40, RegisterAction::Decrease);
        b.op(OpKind::SetMaxRegisters { n, action }, &[]);
    };
    assert_eq!(loop_over_sizes(ParamRole::Input, 5, gives, none), (5, 5));
}

/// What is left of commits and waits beside stores that end their group themselves or do not (none: there are no stores).
fn commits_and_waits(stores: Option<bool>, pending: u32) -> (usize, usize) {
    let mut b = Build::new(1);
    let (out, tile) = (
        b.param(ParamRole::Output { alias_of: None }, DType::F32, &[64]),
        b.smem(DType::F32, &[64]),
    );
    b.scope(&[tile], |b| {
        if let Some(commit_group) = stores {
            let kind = OpKind::CopySmemToGmem {
                by_threads: false,
                src: b.whole(tile),
                dst: b.whole(out),
                reduction: None,
                commit_group,
                predicate: None,
            };
            b.op(kind, &[]);
        }
        b.op(OpKind::CommitGroup, &[]);
        let (n, scope) = (pending, WaitScope::Complete);
        b.op(OpKind::WaitSmemToGmem { n, scope }, &[]);
    });
    b.normalize();
    (count(&b.k, "commit_group"), count(&b.k, "wait_smem_to_gmem"))
}

#[test]
fn groups_that_are_empty_and_waits_for_nothing_go() {
    assert_eq!(commits_and_waits(None, 0), (0, 0));
    assert_eq!(commits_and_waits(None, 1), (0, 0));
    assert_eq!(commits_and_waits(Some(true), 0), (0, 1));
    // An empty group is one of those that may be pending.
    assert_eq!(commits_and_waits(Some(true), 1), (1, 1));
    assert_eq!(commits_and_waits(Some(false), 0), (1, 1));
}

#[test]
fn a_carry_that_only_the_condition_reads_is_still_handed_on() {
    let mut b = Build::new(1);
    let (zero, ten) = (b.i(0), b.i(10));
    let cond = b.region(Group::Warpgroup, &[i32s()], |b, p| {
        let c = b.cmp(CompareOp::Lt, p[0], ten);
        let handed = b.bin(BinaryOp::Mul, p[0], ten);
        vec![c, handed]
    });
    let body = b.region(Group::Warpgroup, &[i32s()], |b, _| {
        b.keep(zero);
        vec![ten]
    });
    b.op(
        OpKind::While {
            inits: vec![zero],
            cond,
            body,
        },
        &[i32s()],
    );
    passes::canonical::eliminate_dead_code::run(&mut b.k).unwrap();
    assert!(verify::run(&b.k).is_ok(), "{}", b.k);
}

// ---------------------------------------------------------------- legality

/// What `legality` says of a kernel's ops.
fn refused(b: &Build) -> String {
    let e = legality::run(&b.k).expect_err("the kernel is not legal");
    assert_eq!(e.loc, Some(L));
    e.to_string()
}

#[test]
fn views_that_nothing_lowers_are_refused() {
    type Change = fn(&mut RefUse);
    let views: [(Change, &str); 5] = [
        (
            |r| {
                r.steps = vec![Step::Bitcast {
                    dtype: DType::I64,
                    shape: [32].as_slice().into(),
                }]
            },
            "between widths",
        ),
        (
            |r| {
                let (start, size, stride) = (Index::Const(0), 32, 2);
                r.steps = vec![Step::Index(vec![DimIndex::Slice { start, size, stride }])];
            },
            "strided slices",
        ),
        (
            |r| r.steps = vec![Step::Index(vec![DimIndex::Gather(Value::from_u32(0))])],
            "arrays as indices",
        ),
        (
            |r| r.place = Place::Multicast { axes: vec![] },
            "load of a multicast reference",
        ),
        (
            |r| {
                r.place = Place::Peer {
                    device: Value::from_u32(1),
                }
            },
            "a device that is not there",
        ),
    ];
    for (change, expected) in views {
        let mut b = Build::new(1);
        b.i(0);
        b.i(7);
        let gmem = b.param(ParamRole::Input, DType::I32, &[64]);
        let mut src = b.whole(gmem);
        change(&mut src);
        b.one(OpKind::Load { src }, array(DType::I32, &[64]));
        let text = refused(&b);
        assert!(text.contains(expected), "{text}");
    }
}

#[test]
fn ops_that_nothing_lowers_are_refused() {
    let mut b = Build::new(1);
    b.op(
        OpKind::SetMaxRegisters {
            action: RegisterAction::Increase,
            n: 100,
        },
        &[],
    );
    assert!(refused(&b).contains("a multiple of 8 between 24 and 256"));

    let mut b = Build::new(1);
    let many = OpKind::Constant(Constant::Dense(vec![0; 4096]));
    b.one(many, array(DType::I8, &[4096]));
    assert!(refused(&b).contains("an array constant of 4096 elements\n  expected: at most 1024"));

    let mut b = Build::new(1);
    let shape = [96, 8].as_slice().into();
    b.one(
        OpKind::AccInit { init: None },
        Type::Acc {
            dtype: DType::F32,
            shape,
        },
    );
    assert!(refused(&b).contains("M a multiple of 64"));
}

#[test]
fn what_a_loop_does_that_never_runs_is_not_refused() {
    let mut b = Build::new(1);
    let (zero, four) = (b.i(0), b.i(4));
    let body = |b: &mut Build, _: Value, _: &[Value]| {
        let action = RegisterAction::Increase;
        b.op(OpKind::SetMaxRegisters { action, n: 100 }, &[]);
        vec![]
    };
    b.for_loop((four, four), &[], body);
    assert_eq!(legality::run(&b.k), Ok(()));
    b.for_loop((zero, four), &[], body);
    assert!(refused(&b).contains("a multiple of 8"));
}

#[test]
fn what_no_machine_launches_is_refused() {
    let error = |change: fn(&mut Kernel)| {
        let mut k = Kernel::empty("test", 1);
        change(&mut k);
        passes::run(&mut k, &mut |_, _| {}).unwrap_err().to_string()
    };
    let axis = |k: &mut Kernel, size: u64, kind: AxisKind| {
        k.axes.push(AxisData {
            name: String::new(),
            size,
            kind,
        })
    };
    assert!(error(|k| k.num_warpgroups = 9).contains("num_threads <= 8 (CUDA has 1024 threads"));
    // 2^30 clusters of four blocks are too many, though 2^30 blocks are not.
    let mut k = Kernel::empty("test", 1);
    k.grid = vec![axis(&mut k, 1 << 30, AxisKind::Grid(0))];
    assert!(passes::run(&mut k.clone(), &mut |_, _| {}).is_ok());
    k.cluster = vec![axis(&mut k, 4, AxisKind::Cluster(0))];
    let e = passes::run(&mut k.clone(), &mut |_, _| {}).unwrap_err();
    assert_eq!(e.got.as_deref(), Some("[1073741824] clusters of [4]"));
    k.cluster = vec![axis(&mut k, 17, AxisKind::Cluster(0))];
    let e = passes::run(&mut k, &mut |_, _| {}).unwrap_err();
    assert!(e.to_string().contains("1 to 16 blocks"), "{e}");
    let mut k = Kernel::empty("test", 1);
    k.cluster = (0..4).map(|i| axis(&mut k, 1, AxisKind::Cluster(i))).collect();
    let e = passes::run(&mut k, &mut |_, _| {}).unwrap_err();
    assert_eq!(e.what, "a cluster of more than 3 axes");
}

// ---------------------------------------------------------------- verifier

/// The rules that a kernel breaks.
fn broken(k: &Kernel) -> Vec<Rule> {
    let mut rules: Vec<Rule> = verify::run(k)
        .expect_err("the kernel is broken")
        .0
        .iter()
        .map(|v| v.rule)
        .collect();
    rules.dedup();
    rules
}

#[test]
fn verifier_defined_once() {
    let mut b = Build::new(1);
    b.i(1);
    let op = b.k.regions[b.k.body].ops[0];
    b.k.regions[b.k.body].ops.push(op);
    assert_eq!(broken(&b.k), [Rule::DefinedOnce]);
}

#[test]
fn verifier_dominance() {
    let mut b = Build::new(1);
    let (x, y) = (b.i(1), b.i(2));
    b.bin(BinaryOp::Add, x, y);
    b.k.regions[b.k.body].ops.rotate_left(1);
    assert_eq!(broken(&b.k), [Rule::Dominance]);
    // A value from inside of a region is not seen outside.
    let mut b = Build::new(1);
    let mut inner = None;
    b.scope(&[], |b| inner = Some(b.i(1)));
    b.keep(inner.unwrap());
    assert_eq!(broken(&b.k), [Rule::Dominance]);
}

#[test]
fn verifier_group() {
    let mut b = Build::new(1);
    let axis = b.k.axes.push(AxisData {
        name: String::new(),
        size: 4,
        kind: AxisKind::Warp,
    });
    let body = b.region(Group::Warp, &[], |b, _| {
        b.op(
            OpKind::SetMaxRegisters {
                action: RegisterAction::Increase,
                n: 64,
            },
            &[],
        );
        vec![]
    });
    b.op(
        OpKind::WarpMap {
            axis,
            inits: vec![],
            body,
        },
        &[],
    );
    assert_eq!(broken(&b.k), [Rule::Group]);
}

#[test]
fn verifier_arity() {
    let mut b = Build::new(1);
    let x = b.i(1);
    b.op(OpKind::Unary { op: UnaryOp::Neg, a: x }, &[i32s(), i32s()]);
    assert_eq!(broken(&b.k), [Rule::Arity]);
}

#[test]
fn verifier_type() {
    let mut b = Build::new(1);
    let (x, y) = (b.i(1), b.int(DType::I64, 1));
    b.bin(BinaryOp::Add, x, y);
    assert_eq!(broken(&b.k), [Rule::Type]);
    let mut b = Build::new(1);
    let (lo, hi) = (b.i(0), b.i(4));
    b.for_loop((lo, hi), &[lo], |b, _, _| vec![b.int(DType::I64, 1)]);
    assert_eq!(broken(&b.k), [Rule::Type]);
}

#[test]
fn verifier_view() {
    let mut b = Build::new(1);
    let gmem = b.param(ParamRole::Input, DType::I32, &[4]);
    let src = b.element(gmem, Index::Const(4));
    b.one(OpKind::Load { src }, i32s());
    assert_eq!(broken(&b.k), [Rule::View]);
}

#[test]
fn verifier_scope() {
    let mut b = Build::new(1);
    let smem = b.smem(DType::I32, &[4]);
    b.scope(&[smem], |_| {});
    let src = b.element(smem, Index::Const(0));
    b.one(OpKind::Load { src }, i32s());
    assert_eq!(broken(&b.k), [Rule::Scope]);
}

#[test]
fn verifier_linear() {
    let acc = Type::Acc {
        dtype: DType::F32,
        shape: Shape::from_slice(&[64, 64]),
    };
    let wait = |v| OpKind::WgmmaWait { n: 0, accs: vec![v] };
    let mut b = Build::new(1);
    let a = b.one(OpKind::AccInit { init: None }, acc.clone());
    b.op(wait(a), std::slice::from_ref(&acc));
    b.op(wait(a), std::slice::from_ref(&acc));
    assert_eq!(broken(&b.k), [Rule::Linear]);
    // Once on each path is once.
    let mut b = Build::new(1);
    let a = b.one(OpKind::AccInit { init: None }, acc.clone());
    let p = b.int(DType::Bool, 1);
    let ty = acc.clone();
    let use_it = |b: &mut Build| b.op(wait(a), std::slice::from_ref(&ty)).clear();
    b.when(p, use_it, use_it);
    assert_eq!(verify::run(&b.k), Ok(()));
    // In a loop it is used many times.
    let mut b = Build::new(1);
    let a = b.one(OpKind::AccInit { init: None }, acc.clone());
    let (lo, hi) = (b.i(0), b.i(4));
    b.for_loop((lo, hi), &[], |b, _, _| {
        b.op(wait(a), std::slice::from_ref(&acc));
        vec![]
    });
    assert_eq!(broken(&b.k), [Rule::Linear]);
}

#[test]
fn verifier_normalized() {
    let mut b = Build::new(1);
    let bars = b.barriers(1);
    b.scope(&[bars], |b| b.wait(bars, 0));
    assert_eq!(verify::run(&b.k), Ok(()));
    b.k.stage = Stage::Normalized;
    assert_eq!(broken(&b.k), [Rule::Normalized]);
}

/// What is wrong with a producer's and a consumer's ring of four slots.
#[derive(Clone, Copy, PartialEq)]
enum Ring {
    Right,
    /// The waits begin with the third slot.
    Rotated,
    /// The waits are for every other slot, twice.
    Doubled,
    /// The consumer releases a slot before it reads it.
    ReleasedEarly,
    /// The consumer releases another slot than it read.
    OtherSlot,
    /// The consumer does not wait for the slot that it releases.
    Unwaited,
    /// The consumer writes what the producer reads.
    WritesInput,
    /// The producer refills a slot for which it did not wait.
    RefillsUnwaited,
    /// Nothing is wrong: a tile is its first round.
    NoRefill,
    /// There are fewer waits than slots.
    ShortDrain,
    /// The consumer reads a slot once more behind its loop.
    ReadBehind,
}

fn ring(ring: Ring) -> String {
    let mut b = Build::new(2);
    let gmem = b.param(ParamRole::Mutable, DType::F32, &[512, 64]);
    if ring != Ring::WritesInput {
        b.k.params[0].role = ParamRole::Input;
    }
    let tiles = b.param(ParamRole::Input, DType::I32, &[1]);
    let out = b.param(ParamRole::Output { alias_of: None }, DType::F32, &[64, 64]);
    let x = b.smem(DType::F32, &[4, 64, 64]);
    let (full, empty) = (b.barriers(4), b.barriers(4));
    b.scope(&[x, full, empty], |b| {
        let src = b.element(tiles, Index::Const(0));
        let n = b.one(OpKind::Load { src }, i32s());
        let wg = b.one(
            OpKind::AxisIndex {
                axis: b.k.thread_axis.unwrap(),
            },
            i32s(),
        );
        let (zero, one, three, four) = (b.i(0), b.i(1), b.i(3), b.i(4));
        let is_producer = b.cmp(CompareOp::Eq, wg, one);
        let slot_of = |b: &Build, s: Index| {
            let mut view = b.whole(x);
            let whole = DimIndex::all(64);
            view.steps
                .push(Step::Index(vec![DimIndex::At(s), whole.clone(), whole]));
            view.shape = Shape::from_slice(&[64, 64]);
            view
        };
        let copy = |b: &mut Build, s: Value| {
            let src = b.corner(gmem);
            let kind = OpKind::CopyGmemToSmem {
                by_threads: false,
                uncounted: false,
                src,
                dst: slot_of(b, Index::Value(s)),
                barrier: Some(b.element(full, Index::Value(s))),
                collective_axes: vec![],
                leader_tracked: None,
                oob: OobMode::Zeros,
                predicate: None,
            };
            b.op(kind, &[]);
        };
        let wait = |b: &mut Build, on: Alloc, s: Index| {
            let barrier = b.element(on, s);
            b.op(OpKind::BarrierWait { barrier, phases: None }, &[]);
        };
        b.when(
            is_producer,
            |b| {
                b.for_loop((zero, n), &[], |b, _, _| {
                    b.for_loop((zero, four), &[], |b, s, _| {
                        copy(b, s);
                        vec![]
                    });
                    if ring != Ring::NoRefill {
                        b.for_loop((zero, n), &[], |b, i, _| {
                            let s = b.bin(BinaryOp::Rem, i, four);
                            if ring != Ring::RefillsUnwaited {
                                wait(b, empty, Index::Value(s));
                            }
                            copy(b, s);
                            vec![]
                        });
                    }
                    let slots = if ring == Ring::ShortDrain { three } else { four };
                    b.for_loop((zero, slots), &[], |b, s, _| {
                        let s = match ring {
                            Ring::Rotated => b.bin(BinaryOp::Add, s, three),
                            Ring::Doubled => b.bin(BinaryOp::Add, s, s),
                            _ => s,
                        };
                        let s = b.bin(BinaryOp::Rem, s, four);
                        wait(b, empty, Index::Value(s));
                        vec![]
                    });
                    vec![]
                });
            },
            |b| {
                b.for_loop((zero, n), &[], |b, i, _| {
                    let s = b.bin(BinaryOp::Rem, i, four);
                    let released = match ring {
                        Ring::OtherSlot => Index::Const(0),
                        _ => Index::Value(s),
                    };
                    let arrive = |b: &mut Build| {
                        let barrier = b.element(empty, released);
                        let predicate = None;
                        b.op(OpKind::BarrierArrive { barrier, predicate }, &[]);
                    };
                    if ring != Ring::Unwaited {
                        wait(b, full, Index::Value(s));
                    }
                    if ring == Ring::ReleasedEarly {
                        arrive(b);
                    }
                    let src = slot_of(b, Index::Value(s));
                    let tile = b.one(OpKind::Load { src }, array(DType::F32, &[64, 64]));
                    let dst = b.whole(out);
                    b.op(OpKind::Store { dst, value: tile }, &[]);
                    if ring == Ring::WritesInput {
                        let dst = b.corner(gmem);
                        b.op(OpKind::Store { dst, value: tile }, &[]);
                    }
                    if ring != Ring::ReleasedEarly {
                        arrive(b);
                    }
                    vec![]
                });
            },
        );
        if ring == Ring::ReadBehind {
            let src = slot_of(b, Index::Const(0));
            let tile = b.one(OpKind::Load { src }, array(DType::F32, &[64, 64]));
            let dst = b.whole(out);
            b.op(OpKind::Store { dst, value: tile }, &[]);
        }
    });
    b.normalize()
}

#[test]
fn a_producer_runs_into_its_next_tile() {
    expect![[r#"
        scope(alloc3,alloc4,alloc5) {
          %v0: i32 = load alloc1[0]: i32
          %v1: i32 = axis_index axis0  // 0..=1
          %v6: bool = eq %v1, 1
          switch %v6 case 0 {
            %v20: u32 = for 0 .. %v0 from 0:u32 do (%v7: i32, %v18: u32) {
              %v8: i32 = rem %v7, 4  // 0..=3
              %v19: u32 = barrier_wait alloc4[%v8]: barrier phases %v18
              %v9: f32[64,64] = load alloc3[%v8, 0:+64, 0:+64]: f32[64,64]
              store alloc2: f32[64,64] <- %v9
              barrier_arrive alloc5[%v8]: barrier
              yield %v19
            }
          } case 1 {
            %v28: u32 = for 0 .. %v0 from 0:u32 do (%v10: i32, %v21: u32) {
              %v33: bool = gt %v10, 0
              %v35: u32 = for 0 .. 4 from %v21 do (%v11: i32, %v34: u32) {
                %v37: u32 = switch %v33 case 0 {
                  yield %v34
                } case 1 {
                  %v36: u32 = barrier_wait alloc5[%v11]: barrier phases %v34
                  yield %v36
                }
                copy_gmem_to_smem alloc0[0:+64, 0:+64]: f32[64,64] -> alloc3[%v11, 0:+64, 0:+64]: f32[64,64] using alloc4[%v11]: barrier
                yield %v37
              }
              %v24: u32 = for 0 .. %v0 from %v35 do (%v12: i32, %v22: u32) {
                %v13: i32 = rem %v12, 4  // 0..=3
                %v23: u32 = barrier_wait alloc5[%v13]: barrier phases %v22
                copy_gmem_to_smem alloc0[0:+64, 0:+64]: f32[64,64] -> alloc3[%v13, 0:+64, 0:+64]: f32[64,64] using alloc4[%v13]: barrier
                yield %v23
              }
              yield %v24
            }
            %v38: bool = lt 0, %v0
            %v41: u32 = switch %v38 case 0 {
              yield %v28
            } case 1 {
              %v27: u32 = for 0 .. 4 from %v28 do (%v14: i32, %v25: u32) {
                %v26: u32 = barrier_wait alloc5[%v14]: barrier phases %v25
                yield %v26
              }
              yield %v27
            }
          }
        }
    "#]].assert_eq(&ring(Ring::Right));
}

#[test]
fn waits_stay_where_a_barrier_is_not_shown_to_release_its_slot() {
    for wrong in [
        Ring::Doubled,
        Ring::ReleasedEarly,
        Ring::OtherSlot,
        Ring::Unwaited,
        Ring::WritesInput,
        Ring::RefillsUnwaited,
        Ring::ShortDrain,
        Ring::ReadBehind,
    ] {
        let text = ring(wrong);
        assert!(!text.contains("= gt %"), "{text}");
    }
    for right in [Ring::Right, Ring::Rotated, Ring::NoRefill] {
        let text = ring(right);
        assert!(text.contains("= gt %"), "{text}");
    }
}

/// What is wrong with a warpgroup that computes and stores one tile after the other.
#[derive(Clone, Copy, PartialEq)]
enum Epilogue {
    Right,
    /// The staging buffer is read behind the loop.
    SharedStaging,
    /// What was stored is read back.
    OutputRead,
    /// The epilogue waits on a barrier.
    Waits,
    /// There are fewer steps than parts.
    ShortLoop,
    /// The accumulator and the tile need 128 registers each.
    Wide,
    /// There is one tile only.
    OneTile,
    /// Loads limit, not tensor cores.
    Starved,
}

fn epilogue(wrong: Epilogue) -> String {
    let mut b = Build::new(1);
    let n = if wrong == Epilogue::Wide { 256 } else { 128 };
    let tiles = b.param(ParamRole::Input, DType::I32, &[1]);
    let out = b.param(ParamRole::Output { alias_of: None }, DType::F32, &[64, n]);
    // All warpgroups' rows.
    let rows = if wrong == Epilogue::Starved { 64 } else { 256 };
    let (x, y) = (b.smem(DType::F16, &[rows, 64]), b.smem(DType::F16, &[64, n]));
    let staging = b.smem(DType::F32, &[64, n]);
    let (full, empty) = (b.barriers(1), b.barriers(1));
    let acc = b.accumulator(64, n);
    b.scope(&[x, y, staging, full, empty], |b| {
        let src = b.element(tiles, Index::Const(0));
        let count = b.one(OpKind::Load { src }, i32s());
        let (zero, one) = (b.i(0), b.i(1));
        let steps = b.i(if wrong == Epilogue::ShortLoop { 1 } else { 8 });
        let count = if wrong == Epilogue::OneTile { one } else { count };
        b.for_loop((zero, count), &[], |b, _, _| {
            b.scope(&[acc], |b| {
                b.for_loop((zero, steps), &[], |b, _, _| {
                    b.wait(full, 0);
                    let own = b.corner(x);
                    let kind = OpKind::Wgmma {
                        acc: AccUse::Ref(b.whole(acc)),
                        a: MmaOperand::Smem(own),
                        b: b.whole(y),
                    };
                    b.op(kind, &[]);
                    b.op(OpKind::WgmmaWait { n: 0, accs: vec![] }, &[]);
                    let barrier = b.element(empty, Index::Const(0));
                    let predicate = None;
                    b.op(OpKind::BarrierArrive { barrier, predicate }, &[]);
                    vec![]
                });
                let tile = b.deref(acc);
                if wrong == Epilogue::OutputRead {
                    let src = b.whole(out);
                    let old = b.one(OpKind::Load { src }, array(DType::F32, &[64, n]));
                    let dst = b.whole(staging);
                    b.op(OpKind::Store { dst, value: old }, &[]);
                }
                if wrong == Epilogue::Waits {
                    b.wait(full, 0);
                }
                for _ in 0..2 {
                    let scope = WaitScope::SmemRead;
                    b.op(OpKind::WaitSmemToGmem { n: 0, scope }, &[]);
                    let dst = b.whole(staging);
                    b.op(OpKind::Store { dst, value: tile }, &[]);
                    b.op(OpKind::CommitSmem, &[]);
                    let (src, dst) = (b.whole(staging), b.whole(out));
                    let kind = OpKind::CopySmemToGmem {
                        by_threads: false,
                        src,
                        dst,
                        reduction: None,
                        commit_group: true,
                        predicate: None,
                    };
                    b.op(kind, &[]);
                }
            });
            vec![]
        });
        if wrong == Epilogue::SharedStaging {
            let src = b.whole(staging);
            let seen = b.one(OpKind::Load { src }, array(DType::F32, &[64, n]));
            let dst = b.whole(staging);
            b.op(OpKind::Store { dst, value: seen }, &[]);
        }
    });
    b.normalize()
}

#[test]
fn a_tile_is_stored_beside_the_next_ones_first_steps() {
    expect![[r#"
        scope(alloc2,alloc3,alloc4,alloc5,alloc6) {
          %v0: i32 = load alloc0[0]: i32
          %v21: f32[64,128] = constant splat 0x0
          %v19: u32, %v23: f32[64,128] = for 0 .. %v0 from 0:u32, %v21 do (%v4: i32, %v14: u32, %v22: f32[64,128]) {
            %v24: bool = gt %v4, 0
            %v7: acc f32[64,128] = acc_init
            %v26: u32 = barrier_wait alloc5[0]: barrier phases %v14
            %v27: acc f32[64,128] = wgmma %v7 += alloc2[0:+64, 0:+64]: f16[64,64] @ alloc3: f16[64,128]
            switch %v24 case 0 {
            } case 1 {
              wait_smem_to_gmem 0 smem_read
              store alloc4: f32[64,128] <- %v22
              commit_smem
              copy_smem_to_gmem alloc4: f32[64,128] -> alloc1: f32[64,128] commit_group
            }
            %v28: acc f32[64,128] = wgmma_wait 0 %v27
            barrier_arrive alloc6[0]: barrier
            %v30: u32 = barrier_wait alloc5[0]: barrier phases %v26
            %v31: acc f32[64,128] = wgmma %v28 += alloc2[0:+64, 0:+64]: f16[64,64] @ alloc3: f16[64,128]
            switch %v24 case 0 {
            } case 1 {
              wait_smem_to_gmem 0 smem_read
              store alloc4: f32[64,128] <- %v22
              commit_smem
              copy_smem_to_gmem alloc4: f32[64,128] -> alloc1: f32[64,128] commit_group
            }
            %v32: acc f32[64,128] = wgmma_wait 0 %v31
            barrier_arrive alloc6[0]: barrier
            %v11: acc f32[64,128], %v17: u32 = for 2 .. 8 from %v32, %v30 do (%v5: i32, %v8: acc f32[64,128], %v15: u32) {
              %v16: u32 = barrier_wait alloc5[0]: barrier phases %v15
              %v9: acc f32[64,128] = wgmma %v8 += alloc2[0:+64, 0:+64]: f16[64,64] @ alloc3: f16[64,128]
              %v10: acc f32[64,128] = wgmma_wait 0 %v9
              barrier_arrive alloc6[0]: barrier
              yield %v10, %v16
            }
            %v6: f32[64,128], %v12: acc f32[64,128] = acc_read %v11
            yield %v17, %v6
          }
          %v34: bool = lt 0, %v0
          switch %v34 case 0 {
          } case 1 {
            wait_smem_to_gmem 0 smem_read
            store alloc4: f32[64,128] <- %v23
            commit_smem
            copy_smem_to_gmem alloc4: f32[64,128] -> alloc1: f32[64,128] commit_group
            wait_smem_to_gmem 0 smem_read
            store alloc4: f32[64,128] <- %v23
            commit_smem
            copy_smem_to_gmem alloc4: f32[64,128] -> alloc1: f32[64,128] commit_group
          }
        }
    "#]]
    .assert_eq(&epilogue(Epilogue::Right));
}

#[test]
fn an_epilogue_that_somebody_could_see_stays() {
    for wrong in [
        Epilogue::SharedStaging,
        Epilogue::OutputRead,
        Epilogue::Waits,
        Epilogue::ShortLoop,
        Epilogue::Wide,
        Epilogue::OneTile,
        Epilogue::Starved,
    ] {
        let text = epilogue(wrong);
        assert!(!text.contains("= gt %"), "{text}");
    }
}

/// A warpgroup that loads, multiplies and stores one tile after the other, and what is particular about it.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Late {
    Right,
    /// The staging buffer is allocated in each tile.
    Scoped,
    /// The epilogue adds an input, or what it finds in the staging buffer.
    Addend,
    InPlace,
    /// Some tiles have no steps.
    Conditional,
    /// One step, with no loop.
    OneStep,
    /// A copy of the tile's beginning reads the result.
    ReadsResult,
    /// The staging buffer is used behind the loop.
    SharedStaging,
    /// The epilogue waits, or arrives.
    Waits,
    Arrives,
    /// The steps copy an operand out, and the epilogue waits for that.
    CopiesOut,
    /// Another warpgroup may be told by the copies.
    NotAlone,
    /// The beginning waits before its first copy; it has no copy.
    WaitsFirst,
    LoadedBefore,
    /// There is one tile only.
    OneTile,
    /// The tile needs 192 registers; it and the operands do not fit side by side.
    Wide,
    Large,
}

fn late(what: Late) -> Kernel {
    let mut b = Build::new(if what == Late::NotAlone { 2 } else { 1 });
    let (m, n) = if what == Late::Wide { (192, 128) } else { (64, 128) };
    let tiles = b.param(ParamRole::Input, DType::I32, &[1]);
    let addend = b.param(ParamRole::Input, DType::F32, &[64, n]);
    let (left, right) = (
        b.param(ParamRole::Input, DType::F16, &[m, 64]),
        b.param(ParamRole::Input, DType::F16, &[64, n]),
    );
    let out = b.param(ParamRole::Output { alias_of: None }, DType::F32, &[m, n]);
    let left_out = b.param(ParamRole::Output { alias_of: None }, DType::F16, &[m, 64]);
    let slots = if what == Late::Large { 11 } else { 1 };
    let (x, y) = (b.smem(DType::F16, &[m, 64]), b.smem(DType::F16, &[64, n]));
    let more = b.smem(DType::F16, &[slots, 64, n]);
    let staging = b.smem(DType::F32, &[m, n]);
    let (full, other) = (b.barriers(1), b.barriers(1));
    let acc = b.accumulator(m, n);
    let outer: &[Alloc] = match what {
        Late::Scoped => &[x, y, more, full, other],
        _ => &[x, y, more, staging, full, other],
    };
    let arrive = |b: &mut Build| {
        let barrier = b.element(other, Index::Const(0));
        b.op(
            OpKind::BarrierArrive {
                barrier,
                predicate: None,
            },
            &[],
        );
    };
    let copy = |b: &mut Build, src: RefUse, to: Alloc| {
        let kind = OpKind::CopyGmemToSmem {
            by_threads: false,
            uncounted: false,
            src,
            dst: b.whole(to),
            barrier: Some(b.element(full, Index::Const(0))),
            collective_axes: vec![],
            leader_tracked: None,
            oob: OobMode::Zeros,
            predicate: None,
        };
        b.op(kind, &[]);
    };
    b.scope(outer, |b| {
        let src = b.element(tiles, Index::Const(0));
        let count = b.one(OpKind::Load { src }, i32s());
        let (zero, one, four) = (b.i(0), b.i(1), b.i(4));
        let count = if what == Late::OneTile { one } else { count };
        let sources = (b.whole(left), b.whole(right));
        if what == Late::LoadedBefore {
            copy(b, sources.0.clone(), x);
            copy(b, sources.1.clone(), y);
        }
        b.for_loop((zero, count), &[zero], |b, tile, carry| {
            b.scope(&[acc], |b| {
                let steps = |b: &mut Build| {
                    if what == Late::WaitsFirst {
                        b.wait(other, 0);
                    }
                    if what != Late::LoadedBefore {
                        copy(b, sources.0.clone(), x);
                        copy(b, sources.1.clone(), y);
                    }
                    if what == Late::ReadsResult {
                        let src = b.whole(out);
                        copy(b, src, staging);
                    }
                    let step = |b: &mut Build| {
                        b.wait(full, 0);
                        if what == Late::CopiesOut {
                            let (src, dst) = (b.whole(x), b.whole(left_out));
                            let kind = OpKind::CopySmemToGmem {
                                by_threads: false,
                                src,
                                dst,
                                reduction: None,
                                commit_group: true,
                                predicate: None,
                            };
                            b.op(kind, &[]);
                        }
                        let kind = OpKind::Wgmma {
                            acc: AccUse::Ref(b.whole(acc)),
                            a: MmaOperand::Smem(b.whole(x)),
                            b: b.whole(y),
                        };
                        b.op(kind, &[]);
                        b.op(OpKind::WgmmaWait { n: 0, accs: vec![] }, &[]);
                    };
                    if what == Late::OneStep {
                        step(b);
                    } else {
                        b.for_loop((zero, four), &[], |b, _, _| {
                            step(b);
                            vec![]
                        });
                    }
                };
                if what == Late::Conditional {
                    let kind = OpKind::Compare {
                        op: CompareOp::Gt,
                        a: tile,
                        b: carry[0],
                    };
                    let any = b.one(kind, Type::Scalar(DType::Bool));
                    b.when(any, steps, |_| {});
                } else {
                    steps(b);
                }
                let mut value = b.deref(acc);
                let mut finish = |b: &mut Build| {
                    match what {
                        Late::Waits => b.wait(full, 0),
                        Late::Arrives => arrive(b),
                        Late::Addend => {
                            let src = b.whole(addend);
                            let a = b.one(OpKind::Load { src }, array(DType::F32, &[64, n]));
                            let kind = OpKind::Binary {
                                op: BinaryOp::Add,
                                a: value,
                                b: a,
                            };
                            value = b.one(kind, array(DType::F32, &[64, n]));
                        }
                        Late::InPlace => {
                            let src = b.whole(staging);
                            value = b.one(OpKind::Load { src }, array(DType::F32, &[64, n]));
                        }
                        _ => {}
                    }
                    let dst = b.whole(staging);
                    b.op(OpKind::Store { dst, value }, &[]);
                    b.op(OpKind::CommitSmem, &[]);
                    let (src, dst) = (b.whole(staging), b.whole(out));
                    let kind = OpKind::CopySmemToGmem {
                        by_threads: false,
                        src,
                        dst,
                        reduction: None,
                        commit_group: true,
                        predicate: None,
                    };
                    b.op(kind, &[]);
                    let scope = WaitScope::SmemRead;
                    b.op(OpKind::WaitSmemToGmem { n: 0, scope }, &[]);
                };
                if what == Late::Scoped {
                    b.scope(&[staging], finish);
                } else {
                    finish(b);
                }
            });
            vec![carry[0]]
        });
        if what == Late::SharedStaging {
            let src = b.whole(staging);
            let value = b.one(OpKind::Load { src }, array(DType::F32, &[64, n]));
            let dst = b.whole(staging);
            b.op(OpKind::Store { dst, value }, &[]);
        }
    });
    b.normalize();
    b.k
}

#[test]
fn a_tile_is_stored_behind_the_next_ones_copies() {
    expect![[r#"
        scope(alloc6,alloc7,alloc8,alloc10,alloc11) {
          %v0: i32 = load alloc0[0]: i32
          %v29: u32 = scope(alloc9) {
            %v23: f32[64,128] = constant splat 0x0
            %v21: u32, %v25: f32[64,128] = for 0 .. %v0 from 0:u32, %v23 do (%v4: i32, %v16: u32, %v24: f32[64,128]) {
              copy_gmem_to_smem alloc2: f16[64,64] -> alloc6: f16[64,64] using alloc10[0]: barrier
              copy_gmem_to_smem alloc3: f16[64,128] -> alloc7: f16[64,128] using alloc10[0]: barrier
              %v26: bool = gt %v4, 0
              switch %v26 case 0 {
              } case 1 {
                store alloc9: f32[64,128] <- %v24
                commit_smem
                copy_smem_to_gmem alloc9: f32[64,128] -> alloc4: f32[64,128] commit_group
                wait_smem_to_gmem 0 smem_read
              }
              %v27: acc f32[64,128] = acc_init
              %v13: acc f32[64,128], %v19: u32 = for 0 .. 4 from %v27, %v16 do (%v6: i32, %v10: acc f32[64,128], %v17: u32) {
                %v18: u32 = barrier_wait alloc10[0]: barrier phases %v17
                %v11: acc f32[64,128] = wgmma %v10 += alloc6: f16[64,64] @ alloc7: f16[64,128]
                %v12: acc f32[64,128] = wgmma_wait 0 %v11
                yield %v12, %v18
              }
              %v7: f32[64,128], %v14: acc f32[64,128] = acc_read %v13
              yield %v19, %v7
            }
            %v28: bool = lt 0, %v0
            switch %v28 case 0 {
            } case 1 {
              store alloc9: f32[64,128] <- %v25
              commit_smem
              copy_smem_to_gmem alloc9: f32[64,128] -> alloc4: f32[64,128] commit_group
              wait_smem_to_gmem 0 smem_read
            }
            yield %v21
          }
        }
    "#]]
    .assert_eq(&body(&late(Late::Scoped)));
}

#[test]
fn a_tile_is_stored_late_where_nobody_sees() {
    for right in [
        Late::Right,
        Late::Scoped,
        Late::Addend,
        Late::InPlace,
        Late::Conditional,
        Late::OneStep,
    ] {
        let text = body(&late(right));
        // The accumulator is started behind the store, on each way.
        let stores = text.matches("store alloc").count();
        assert_eq!(
            stores,
            if right == Late::Conditional { 3 } else { 2 },
            "{right:?}: {text}"
        );
        let after = text.rsplit("wait_smem_to_gmem").nth(1).expect("two stores");
        assert!(after.contains("acc_init"), "{right:?}: {text}");
    }
    for wrong in [
        Late::ReadsResult,
        Late::SharedStaging,
        Late::Waits,
        Late::Arrives,
        Late::CopiesOut,
        Late::NotAlone,
        Late::WaitsFirst,
        Late::LoadedBefore,
        Late::OneTile,
        Late::Wide,
        Late::Large,
    ] {
        let kernel = late(wrong);
        let text = body(&kernel);
        assert_eq!(text.matches("wait_smem_to_gmem").count(), 1, "{wrong:?}: {text}");
        let says_why = kernel.notes.iter().any(|note| note.pass == "defer_stores");
        let is_candidate = !matches!(
            wrong,
            Late::NotAlone | Late::WaitsFirst | Late::LoadedBefore | Late::OneTile
        );
        assert_eq!(says_why, is_candidate, "{wrong:?}");
    }
}

/// A block that multiplies slots of `rows` by `columns`, 64 rows a warpgroup.
#[derive(Clone, Copy)]
struct Tile {
    rows: u64,
    columns: u64,
    /// Operands that a cluster of two blocks loads together.
    shared: [bool; 2],
    /// The left operand is loaded once, before the loop.
    left_stays: bool,
    /// A warpgroup of its own loads, and not those that multiply.
    producer: bool,
}

impl Tile {
    const fn new(rows: u64, columns: u64) -> Tile {
        Tile {
            rows,
            columns,
            shared: [false; 2],
            left_stays: false,
            producer: true,
        }
    }

    fn limit(self) -> Limit {
        let multiply = self.rows / 64;
        let mut b = Build::new(multiply as u32 + u32::from(self.producer));
        let axis = b.k.axes.push(AxisData {
            name: "c".to_string(),
            size: 2,
            kind: AxisKind::Cluster(0),
        });
        b.k.cluster.push(axis);
        let shapes = [[self.rows, 64], [64, self.columns]];
        let (slots, full, acc) = (
            shapes.map(|[m, n]| b.smem(DType::F16, &[4, m, n])),
            b.barriers(4),
            b.accumulator(64, self.columns),
        );
        let first = |b: &Build, alloc: Alloc, [m, n]: [u64; 2]| RefUse {
            steps: vec![Step::Index(vec![
                DimIndex::At(Index::Const(0)),
                DimIndex::all(m),
                DimIndex::all(n),
            ])],
            shape: Shape::from_slice(&[m, n]),
            ..b.whole(alloc)
        };
        let sources = [0, 1].map(|i| b.param(ParamRole::Input, DType::F16, &shapes[i]));
        let copy = |b: &mut Build, i: usize| {
            let kind = OpKind::CopyGmemToSmem {
                by_threads: false,
                uncounted: false,
                src: b.whole(sources[i]),
                dst: first(b, slots[i], shapes[i]),
                barrier: Some(b.element(full, Index::Const(0))),
                collective_axes: if self.shared[i] { vec![axis] } else { vec![] },
                leader_tracked: None,
                oob: OobMode::Zeros,
                predicate: None,
            };
            b.op(kind, &[]);
        };
        let load = |b: &mut Build| {
            if self.left_stays {
                copy(b, 0);
            }
            let (zero, n) = (b.i(0), b.i(9));
            b.for_loop((zero, n), &[], |b, _, _| {
                if !self.left_stays {
                    copy(b, 0);
                }
                copy(b, 1);
                vec![]
            });
        };
        let compute = |b: &mut Build| {
            let (zero, n) = (b.i(0), b.i(9));
            b.for_loop((zero, n), &[], |b, _, _| {
                let kind = OpKind::Wgmma {
                    acc: AccUse::Ref(b.whole(acc)),
                    a: MmaOperand::Smem(first(b, slots[0], [64, 64])),
                    b: first(b, slots[1], shapes[1]),
                };
                b.op(kind, &[]);
                vec![]
            });
        };
        let thread = b.k.thread_axis;
        if self.producer {
            let me = b.one(OpKind::AxisIndex { axis: thread.unwrap() }, i32s());
            let last = b.i(multiply as i64);
            let loads = b.cmp(CompareOp::Ge, me, last);
            b.when(loads, load, compute);
        } else {
            load(&mut b);
            compute(&mut b);
        }
        intensity::limit(&b.k)
    }
}

#[test]
fn tensor_cores_limit_unless_producers_cannot_keep_up() {
    let tile = Tile::new;
    assert_eq!(tile(128, 128).limit(), Limit::TensorCores);
    assert_eq!(tile(256, 128).limit(), Limit::TensorCores);
    assert_eq!(tile(256, 64).limit(), Limit::Loads);
    let shared = |left, right| Tile {
        shared: [left, right],
        ..tile(256, 64)
    };
    assert_eq!(shared(false, true).limit(), Limit::Loads, "the small one");
    assert_eq!(shared(true, false).limit(), Limit::TensorCores, "the large one");
    // One that is loaded once costs nothing in a round.
    let stays = |rows, columns| Tile {
        left_stays: true,
        ..tile(rows, columns)
    };
    assert_eq!(
        (stays(128, 64).limit(), tile(128, 64).limit()),
        (Limit::TensorCores, Limit::Loads)
    );
    // Who multiplies what it loads cannot run ahead.
    let alone = Tile {
        producer: false,
        ..tile(64, 64)
    };
    assert!(alone.limit() == Limit::TensorCores && tile(64, 64).limit() == Limit::Loads);
    assert_eq!(
        intensity::limit(&Build::new(1).k),
        Limit::Other,
        "nothing is multiplied"
    );
}

/// Shared memory, barriers and accumulators of a kernel with several products.
struct Products {
    /// Operands of 64 × 64.
    a: Alloc,
    b: Alloc,
    c: Alloc,
    d: Alloc,
    e: Alloc,
    /// A row.
    row: Alloc,
    /// Others wait for these.
    free: Alloc,
    full: Alloc,
    acc: [Alloc; 4],
}

/// What a kernel does in order: barriers, products, waits, loads, stores, `exp2` and `add` of arrays.
fn happens(k: &Kernel) -> String {
    let mut out = vec![];
    k.for_each_op(&mut |op| {
        let kind = &k.ops[op].kind;
        out.push(match kind {
            OpKind::Wgmma { b, .. } => format!("wgmma {}", b.alloc),
            OpKind::WgmmaWait { n, accs } => format!("wait {n} of {}", accs.len()),
            OpKind::Load { src } => format!("load {}", src.alloc),
            OpKind::Store { dst, .. } => format!("store {}", dst.alloc),
            OpKind::BarrierArrive { barrier, .. } => format!("arrive {}", barrier.single_index().map_or(9, number)),
            OpKind::Unary { op: UnaryOp::Exp2, .. } => "exp2".to_string(),
            OpKind::Binary { a, .. } if !k.ty(*a).is_scalar() => "add".to_string(),
            OpKind::BarrierWait { .. }
            | OpKind::CommitSmem
            | OpKind::Sync { .. }
            | OpKind::Fence { .. }
            | OpKind::OptimizationBarrier { .. }
            | OpKind::Switch { .. } => kind.name().to_string(),
            _ => return,
        });
    });
    out.join(", ")
}

fn number(index: Index) -> i64 {
    match index {
        Index::Const(i) => i,
        Index::Value(_) => -1,
    }
}

/// A kernel that waits for its operands and does `f`.
fn with_products(columns: u64, f: impl FnOnce(&mut Build, &Products)) -> Build {
    let mut b = Build::new(2);
    let [x, y, z, w] = std::array::from_fn(|_| b.smem(DType::F16, &[64, columns]));
    let p = Products {
        a: b.smem(DType::F16, &[64, 64]),
        b: x,
        c: y,
        d: z,
        e: w,
        row: b.smem(DType::F32, &[64]),
        free: b.barriers(3),
        full: b.barriers(1),
        acc: std::array::from_fn(|_| b.accumulator(64, columns)),
    };
    b.scope(&[p.a, p.b, p.c, p.d, p.e, p.row, p.free, p.full], |b| {
        b.wait(p.full, 0);
        b.scope(&p.acc, |b| f(b, &p));
    });
    b
}

impl Build {
    fn exp2(&mut self, a: Value) -> Value {
        let ty = self.k.ty(a).clone();
        self.one(OpKind::Unary { op: UnaryOp::Exp2, a }, ty)
    }

    fn arrive(&mut self, barriers: Alloc, i: i64) {
        let (barrier, predicate) = (self.element(barriers, Index::Const(i)), None);
        self.op(OpKind::BarrierArrive { barrier, predicate }, &[]);
    }

    fn load_whole(&mut self, alloc: Alloc, dtype: DType) -> Value {
        let src = self.whole(alloc);
        let ty = array(dtype, &self.k.allocs[alloc].shape.clone());
        self.one(OpKind::Load { src }, ty)
    }

    fn f16(&mut self, a: Value) -> Value {
        let ty = self.k.ty(a).with_dtype(DType::F16);
        self.one(OpKind::Convert { a }, ty)
    }

    fn done(mut self) -> (String, Kernel) {
        self.normalize();
        (happens(&self.k), self.k)
    }
}

/// Two products of which the second needs nothing of the first, and `between` them.
fn two_products(columns: u64, between: impl FnOnce(&mut Build, &Products, Value)) -> (String, Kernel) {
    let b = with_products(columns, |b, p| {
        b.wgmma(p.acc[0], p.a, p.b);
        let x = b.deref(p.acc[0]);
        let e = b.exp2(x);
        between(b, p, e);
        b.wgmma(p.acc[1], p.a, p.c);
        let (dst, value) = (b.whole(p.d), b.f16(e));
        b.op(OpKind::Store { dst, value }, &[]);
        let y = b.deref(p.acc[1]);
        let sum = b.bin(BinaryOp::Add, e, y);
        b.keep(sum);
    });
    b.done()
}

#[test]
fn a_product_runs_beside_what_is_computed_of_another() {
    let (text, k) = two_products(64, |_, _, _| ());
    let expected = "barrier_wait, wgmma alloc0, wgmma alloc1, wait 1 of 2, exp2, store alloc2, wait 0 of 1, add";
    assert_eq!(text, expected);
    assert!(k.notes.iter().all(|note| note.pass != "overlap_products"));
}

#[test]
fn what_is_computed_for_later_is_left_to_the_assembler() {
    let b = with_products(64, |b, p| {
        b.wgmma(p.acc[0], p.a, p.b);
        let x = b.deref(p.acc[0]);
        let e = b.exp2(x);
        b.wgmma(p.acc[1], p.a, p.c);
        let y = b.deref(p.acc[1]);
        let sum = b.bin(BinaryOp::Add, e, y);
        b.keep(sum);
    });
    let expected = "barrier_wait, wgmma alloc0, wait 0 of 1, exp2, wgmma alloc1, wait 0 of 1, add";
    assert_eq!(b.done().0, expected);
}

#[test]
fn what_tells_others_or_reads_lets_a_product_pass() {
    // Whoever hears of the arrival may go by the first product being done: it is.
    let (text, _) = two_products(64, |b, p, _| b.arrive(p.free, 0));
    let expected =
        "barrier_wait, wgmma alloc0, wgmma alloc1, wait 1 of 2, exp2, arrive 0, store alloc2, wait 0 of 1, add";
    assert_eq!(text, expected);
    // The second product does not read what is stored.
    let (text, _) = two_products(64, |b, p, e| {
        let (dst, value) = (b.whole(p.e), b.f16(e));
        b.op(OpKind::Store { dst, value }, &[]);
    });
    let expected =
        "barrier_wait, wgmma alloc0, wgmma alloc1, wait 1 of 2, exp2, store alloc3, store alloc2, wait 0 of 1, add";
    assert_eq!(text, expected);
}

#[test]
fn a_product_stays_behind_what_it_may_need() {
    let stays = |what: &str, between: &dyn Fn(&mut Build, &Products, Value)| {
        let (text, _) = two_products(64, |b, p, e| between(b, p, e));
        let first = "barrier_wait, wgmma alloc0, wait 0 of 1, exp2, ";
        let rest = text.strip_prefix(first).unwrap_or_else(|| panic!("{what}: {text}"));
        assert!(
            rest.contains(what) && rest.ends_with("wgmma alloc1, store alloc2, wait 0 of 1, add"),
            "{what}: {text}"
        );
    };
    stays("store alloc1", &|b, p, e| {
        let (dst, value) = (b.whole(p.c), b.f16(e));
        b.op(OpKind::Store { dst, value }, &[]);
    });
    stays("barrier_wait", &|b, p, _| b.wait(p.full, 0));
    stays("commit_smem", &|b, _, _| b.op(OpKind::CommitSmem, &[]).clear());
    stays("sync", &|b, _, _| {
        b.op(
            OpKind::Sync {
                group: Group::Warpgroup,
            },
            &[],
        )
        .clear()
    });
    stays("fence", &|b, _, _| {
        let kind = FenceKind::ProxyAsyncGenericAcquire;
        b.op(OpKind::Fence { kind }, &[]);
    });
    stays("optimization_barrier", &|b, _, e| {
        let ty = b.k.ty(e).clone();
        let v = b.one(OpKind::OptimizationBarrier { values: vec![e] }, ty);
        b.keep(v);
    });
    stays("switch", &|b, p, _| {
        let src = b.element(p.row, Index::Const(0));
        let x = b.one(OpKind::Load { src }, Type::Scalar(DType::F32));
        let yes = b.cmp(CompareOp::Lt, x, x);
        b.when(yes, |b| b.wait(p.full, 0), |_| ());
    });
}

#[test]
fn a_union_is_one_memory() {
    let b = with_products(64, |b, p| {
        let union = b.alloc(AllocKind::SmemUnion, &[16384]);
        for (member, offset) in [(p.c, 0), (p.d, 0)] {
            b.k.allocs[member].within = Some(Within {
                union,
                offset,
                group: 0,
            });
        }
        b.wgmma(p.acc[0], p.a, p.b);
        let x = b.deref(p.acc[0]);
        let e = b.exp2(x);
        let (dst, value) = (b.whole(p.d), b.f16(e));
        b.op(OpKind::Store { dst, value }, &[]);
        b.wgmma(p.acc[1], p.a, p.c);
        let y = b.deref(p.acc[1]);
        b.keep(y);
    });
    let mut k = b.k;
    for (_, pass) in passes::all() {
        if let Err(e) = pass(&mut k) {
            panic!("{e}");
        }
    }
    let expected = "barrier_wait, wgmma alloc0, wait 0 of 1, exp2, store alloc2, wgmma alloc1, wait 0 of 1";
    assert_eq!(happens(&k), expected);
}

#[test]
fn a_product_of_what_another_gave_stays_behind_it() {
    let product = |acc: usize| {
        let b = with_products(64, |b, p| {
            b.wgmma(p.acc[0], p.a, p.b);
            let x = b.deref(p.acc[0]);
            let e = b.exp2(x);
            let kind = OpKind::Wgmma {
                acc: AccUse::Ref(b.whole(p.acc[acc])),
                // The same accumulator, or elements that were made of it.
                a: match acc {
                    0 => MmaOperand::Smem(b.whole(p.a)),
                    _ => MmaOperand::Registers(b.f16(e)),
                },
                b: b.whole(p.c),
            };
            b.op(kind, &[]);
            let y = b.deref(p.acc[acc]);
            let sum = b.bin(BinaryOp::Add, e, y);
            b.keep(sum);
        });
        b.done().0
    };
    let expected = "barrier_wait, wgmma alloc0, wait 0 of 1, exp2, wgmma alloc1, wait 0 of 1, add";
    assert_eq!(product(1), expected);
    assert_eq!(product(0), expected);
}

#[test]
fn what_does_not_fit_into_registers_stays_as_it_is() {
    // 128 registers each, of 255.
    let (text, k) = two_products(256, |_, _, _| ());
    assert_eq!(
        text,
        "barrier_wait, wgmma alloc0, wait 0 of 1, exp2, wgmma alloc1, store alloc2, wait 0 of 1, add"
    );
    assert!(
        k.notes.iter().any(|note| note.pass == "overlap_products"),
        "{:?}",
        k.notes
    );
    let (text, _) = two_products(128, |_, _, _| ());
    assert!(text.contains("wgmma alloc0, wgmma alloc1"), "{text}");
}

/// Three products, arrivals for what they read, `between` these, computing, a fourth product, and perhaps a last arrival.
fn four_products(last: bool, between: impl FnOnce(&mut Build, &Products)) -> String {
    let b = with_products(64, |b, p| {
        b.wgmma(p.acc[0], p.a, p.b);
        b.wgmma(p.acc[3], p.a, p.e);
        let x = b.deref(p.acc[0]);
        let e = b.exp2(x);
        let a = MmaOperand::Registers(b.f16(e));
        let (acc, right) = (AccUse::Ref(b.whole(p.acc[1])), b.whole(p.c));
        b.op(OpKind::Wgmma { acc, a, b: right }, &[]);
        let y = b.deref(p.acc[1]);
        let w = b.deref(p.acc[3]);
        b.arrive(p.free, 0);
        between(b, p);
        b.arrive(p.free, 1);
        let f = b.bin(BinaryOp::Add, e, w);
        let a = MmaOperand::Registers(b.f16(f));
        let (acc, right) = (AccUse::Ref(b.whole(p.acc[2])), b.whole(p.d));
        b.op(OpKind::Wgmma { acc, a, b: right }, &[]);
        let z = b.deref(p.acc[2]);
        if last {
            b.arrive(p.free, 2);
        }
        let sum = b.bin(BinaryOp::Add, y, z);
        b.keep(sum);
    });
    b.done().0
}

#[test]
fn arrivals_wait_behind_the_next_product_in_their_order() {
    let first = "barrier_wait, wgmma alloc0, wgmma alloc3, wait 1 of 2, exp2, wgmma alloc1, ";
    let text = four_products(true, |_, _| ());
    let expected = "wait 1 of 2, add, wgmma alloc2, wait 1 of 2, arrive 0, arrive 1, wait 0 of 1, arrive 2, add";
    assert_eq!(text, format!("{first}{expected}"));
    // Nothing would be released later than they are.
    let early = "wait 0 of 2, arrive 0, arrive 1, add, wgmma alloc2, wait 0 of 1, ";
    assert_eq!(four_products(false, |_, _| ()), format!("{first}{early}add"));
    // Somebody may have to see the first arrival for this wait to end.
    let text = four_products(true, |b, p| b.wait(p.full, 0));
    let expected = "wait 0 of 2, arrive 0, barrier_wait, arrive 1, ";
    assert!(text.starts_with(&format!("{first}{expected}")), "{text}");
    // Nor does it move past a store.
    let text = four_products(true, |b, p| {
        let value = b.one(OpKind::Constant(Constant::Splat(0)), array(DType::F32, &[64]));
        let dst = b.whole(p.row);
        b.op(OpKind::Store { dst, value }, &[]);
    });
    let expected = "wait 0 of 2, arrive 0, store alloc5, arrive 1, ";
    assert!(text.starts_with(&format!("{first}{expected}")), "{text}");
}

#[test]
fn what_a_product_takes_is_computed_beside_the_one_before() {
    let product = |arrives: [bool; 2]| {
        let b = with_products(64, |b, p| {
            b.wgmma(p.acc[0], p.a, p.b);
            let x = b.deref(p.acc[0]);
            let e = b.exp2(x);
            if arrives[0] {
                b.arrive(p.free, 0);
            }
            let row = b.one(OpKind::Iota { dim: 0 }, array(DType::F32, &[64, 64]));
            let f = b.exp2(row);
            let a = MmaOperand::Registers(b.f16(f));
            let (acc, right) = (AccUse::Ref(b.whole(p.acc[1])), b.whole(p.c));
            b.op(OpKind::Wgmma { acc, a, b: right }, &[]);
            let y = b.deref(p.acc[1]);
            if arrives[1] {
                b.arrive(p.free, 1);
            }
            let sum = b.bin(BinaryOp::Add, e, y);
            b.keep(sum);
        });
        b.done().0
    };
    let expected = "barrier_wait, wgmma alloc0, exp2, wgmma alloc1, wait 1 of 2, exp2, wait 0 of 1, add";
    assert_eq!(product([false, false]), expected);
    let expected =
        "barrier_wait, wgmma alloc0, exp2, wgmma alloc1, wait 1 of 2, exp2, arrive 0, wait 0 of 1, arrive 1, add";
    assert_eq!(product([true, true]), expected);
    // The arrival would be late, and nothing comes after it.
    let expected = "barrier_wait, wgmma alloc0, wait 0 of 1, exp2, arrive 0, exp2, wgmma alloc1, wait 0 of 1, add";
    assert_eq!(product([true, false]), expected);
}

#[test]
fn a_load_moves_over_a_wait() {
    let load = |before: &dyn Fn(&mut Build, &Products)| {
        let b = with_products(64, |b, p| {
            b.wgmma(p.acc[0], p.a, p.b);
            let x = b.deref(p.acc[0]);
            let e = b.exp2(x);
            before(b, p);
            let row = b.load_whole(p.row, DType::F32);
            let a = b.one(
                OpKind::Broadcast { a: row, dims: vec![1] },
                array(DType::F32, &[64, 64]),
            );
            let sum = b.bin(BinaryOp::Add, e, a);
            b.keep(sum);
        });
        b.done().0
    };
    assert_eq!(
        load(&|_, _| ()),
        "barrier_wait, wgmma alloc0, load alloc5, wait 0 of 1, exp2, add"
    );
    let stored = load(&|b, p| {
        let ty = array(DType::F32, &[64]);
        let value = b.one(OpKind::Constant(Constant::Splat(0)), ty);
        let dst = b.whole(p.row);
        b.op(OpKind::Store { dst, value }, &[]);
    });
    assert_eq!(
        stored,
        "barrier_wait, wgmma alloc0, wait 0 of 1, exp2, store alloc5, load alloc5, add"
    );
    let waited = load(&|b, p| b.wait(p.full, 0));
    assert_eq!(
        waited,
        "barrier_wait, wgmma alloc0, wait 0 of 1, exp2, barrier_wait, load alloc5, add"
    );
}

#[test]
fn a_store_waits_for_the_product_that_reads_what_is_there() {
    let store = |to: fn(&Products) -> Alloc| {
        let b = with_products(64, |b, p| {
            let row = b.load_whole(p.c, DType::F16);
            b.wgmma(p.acc[0], p.a, p.b);
            let x = b.deref(p.acc[0]);
            let dst = b.whole(to(p));
            b.op(OpKind::Store { dst, value: row }, &[]);
            let ty = array(DType::F32, &[64, 64]);
            let row = b.one(OpKind::Convert { a: row }, ty);
            let f = b.exp2(row);
            let sum = b.bin(BinaryOp::Add, x, f);
            b.keep(sum);
        });
        b.done().0
    };
    let expected = "barrier_wait, load alloc1, wgmma alloc0, wait 0 of 1, store alloc0, exp2, add";
    assert_eq!(store(|p| p.b), expected);
    let expected = "barrier_wait, load alloc1, wgmma alloc0, store alloc2, exp2, wait 0 of 1, add";
    assert_eq!(store(|p| p.d), expected);
}

/// A loop whose last product runs on into the next round.
#[test]
fn counts_go_on_over_the_end_of_a_round() {
    let product = |is_settled: bool| {
        let b = with_products(64, |b, p| {
            let (lo, hi) = (b.i(0), b.i(8));
            b.for_loop((lo, hi), &[], |b, _, _| {
                let own = [b.accumulator(64, 64), b.accumulator(64, 64)];
                b.scope(&own, |b| {
                    b.wgmma(own[0], p.a, p.c);
                    let x = b.deref(own[0]);
                    let e = b.exp2(x);
                    let a = MmaOperand::Registers(b.f16(e));
                    let (acc, right) = (AccUse::Ref(b.whole(own[1])), b.whole(p.d));
                    b.op(OpKind::Wgmma { acc, a, b: right }, &[]);
                    b.wgmma(p.acc[0], p.a, p.b);
                    let y = match is_settled {
                        true => b.deref(own[1]),
                        false => {
                            b.op(OpKind::WgmmaWait { n: 1, accs: vec![] }, &[]);
                            let acc = AccUse::Ref(b.whole(own[1]));
                            b.one(OpKind::AccRead { acc }, array(DType::F32, &[64, 64]))
                        }
                    };
                    b.keep(y);
                });
                vec![]
            });
            let y = b.deref(p.acc[0]);
            b.keep(y);
        });
        b.done().0
    };
    // What comes behind the loop counts on the product into the first accumulator being the youngest.
    let running = product(false);
    assert!(
        running.contains("exp2, wgmma alloc2, wgmma alloc0, wait 1 of "),
        "{running}"
    );
    let settled = product(true);
    assert!(settled.contains("wgmma alloc1, wgmma alloc0, wait 1 of "), "{settled}");
}

/// A loop that begins and ends with a product, and what is particular about it.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Steps {
    Right,
    /// As many as a parameter says.
    Dynamic,
    One,
    /// Two products before the first wait.
    Two,
    /// Something is waited for before the first product: nobody arrives; another warpgroup does, when there is a free slot of two, of one; when
    /// it has been told of a free one before; as often as an input says.
    WaitsFirst,
    Fed,
    OneSlot,
    Late,
    Unknown,
    /// The first product takes what the last step ended with; it adds to what the one before has.
    TakesLate,
    Adds,
    /// Arrays from outside are used in each step, or behind the loop.
    Captures,
    Outlives,
    /// The slot that is released last is computed where it is.
    Scalar,
    /// What a step ends with is taken before its first product is done, in an arm.
    TakesEarly,
    /// What a step ends with is handed on twice, or computed with.
    Twice,
    Computed,
    /// A step ends with a store.
    Stores,
    /// The last product is left running.
    Running,
    /// A step has memory of its own.
    Scoped,
    /// Two accumulators of 128 registers.
    Wide,
}

fn steps(what: Steps) -> Kernel {
    let columns = if what == Steps::Wide { 256 } else { 64 };
    let slots = match what {
        Steps::Fed | Steps::Late | Steps::Unknown => 2,
        Steps::OneSlot => 1,
        _ => 0,
    };
    let is_fed = slots > 0;
    let mut b = Build::new(if is_fed { 2 } else { 1 });
    b.k.stage = Stage::Normalized;
    let count = b.param(ParamRole::Input, DType::I32, &[1]);
    let [left, first, second] = [[64, 64], [64, columns], [columns, columns]].map(|s| b.smem(DType::F16, &s));
    let own = b.smem(DType::F16, &[64, 64]);
    let [free, ready, go, full] = [b.barriers(2), b.barriers(1), b.barriers(1), b.barriers(2)];
    let acc = Type::Acc {
        dtype: DType::F32,
        shape: Shape::from_slice(&[64, columns]),
    };
    let elements = array(DType::F32, &[64, columns]);
    let begin = |b: &mut Build, init: Option<Value>| b.one(OpKind::AccInit { init }, acc.clone());
    let multiply = |b: &mut Build, to: Value, a: MmaOperand, right: Alloc| {
        let kind = OpKind::Wgmma {
            acc: AccUse::Value(to),
            a,
            b: b.whole(right),
        };
        b.one(kind, acc.clone())
    };
    let settle = |b: &mut Build, n: u32, of: Value| b.one(OpKind::WgmmaWait { n, accs: vec![of] }, acc.clone());
    let read = |b: &mut Build, of: Value| {
        let kind = OpKind::AccRead { acc: AccUse::Value(of) };
        b.op(kind, &[elements.clone(), acc.clone()])
    };
    let phase = |b: &mut Build, barriers: Alloc| {
        let phases = Some(b.int(DType::U32, 0));
        let barrier = b.element(barriers, Index::Const(0));
        b.one(OpKind::BarrierWait { barrier, phases }, Type::Scalar(DType::U32));
    };
    let element = |b: &mut Build, barriers: Alloc, i: Value| {
        let phases = Some(b.int(DType::U32, 0));
        let barrier = b.element(barriers, Index::Value(i));
        b.one(OpKind::BarrierWait { barrier, phases }, Type::Scalar(DType::U32));
    };
    let release = |b: &mut Build, barriers: Alloc, i: Value| {
        let (barrier, predicate) = (b.element(barriers, Index::Value(i)), None);
        b.op(OpKind::BarrierArrive { barrier, predicate }, &[]);
    };
    // Who fills the slots.
    let feed = |b: &mut Build| {
        let (zero, four, slots) = (b.i(0), b.i(4), b.i(slots));
        let upper = match what {
            Steps::Unknown => {
                let src = b.element(count, Index::Const(0));
                b.one(OpKind::Load { src }, i32s())
            }
            _ => four,
        };
        b.for_loop((zero, slots), &[], |b, i, _| {
            release(b, full, i);
            vec![]
        });
        b.for_loop((slots, upper), &[], |b, i, _| {
            let one = b.i(1);
            let next = b.bin(BinaryOp::Rem, i, slots);
            let waited = match what {
                Steps::Late => {
                    let last = b.bin(BinaryOp::Add, i, one);
                    b.bin(BinaryOp::Rem, last, slots)
                }
                _ => next,
            };
            element(b, free, waited);
            release(b, full, next);
            vec![]
        });
    };
    let multiply_steps = |b: &mut Build| {
        let zero = b.i(0);
        let upper = match what {
            Steps::Dynamic => {
                let src = b.element(count, Index::Const(0));
                b.one(OpKind::Load { src }, i32s())
            }
            Steps::One => b.i(1),
            _ => b.i(4),
        };
        let x = b.one(OpKind::Constant(Constant::Splat(0)), elements.clone());
        let inits = match what {
            Steps::Twice => vec![x, x],
            Steps::Adds => vec![x, begin(b, None)],
            _ => vec![x],
        };
        let held: Vec<Value> = match what {
            Steps::Captures | Steps::Outlives => (0..6).map(|_| b.load_whole(left, DType::F16)).collect(),
            _ => vec![],
        };
        let held: Vec<Value> = held
            .into_iter()
            .map(|v| {
                let ty = elements.clone();
                b.one(OpKind::Convert { a: v }, ty)
            })
            .collect();
        b.for_loop((zero, upper), &inits, |b, i, carries| {
            let x = carries[0];
            let two = b.i(if what == Steps::OneSlot { 1 } else { 2 });
            let slot = b.bin(BinaryOp::Rem, i, two);
            if what == Steps::WaitsFirst {
                phase(b, ready);
            }
            if is_fed {
                element(b, full, slot);
            }
            let q = if what == Steps::Adds {
                carries[1]
            } else {
                begin(b, None)
            };
            let a = match what {
                Steps::TakesLate => MmaOperand::Registers(b.f16(x)),
                _ => MmaOperand::Smem(b.whole(left)),
            };
            let mut q = multiply(b, q, a, first);
            if what == Steps::Two {
                let a = MmaOperand::Smem(b.whole(left));
                q = multiply(b, q, a, first);
            }
            b.arrive(go, 0);
            phase(b, go);
            if what == Steps::TakesEarly {
                let none = b.i(0);
                let is_odd = b.cmp(CompareOp::Ne, slot, none);
                b.when(is_odd, |b| b.keep(x), |_| ());
            }
            let q = settle(b, 0, q);
            let [e, q] = read(b, q)[..] else {
                unreachable!("elements and the accumulator")
            };
            let mut e = b.exp2(e);
            if what == Steps::Captures {
                e = held.iter().fold(e, |e, v| b.bin(BinaryOp::Add, e, *v));
            }
            let scaled = b.bin(BinaryOp::Add, x, e);
            let p = b.f16(e);
            let y = begin(b, Some(scaled));
            let y = multiply(b, y, MmaOperand::Registers(p), second);
            if !is_fed {
                phase(b, ready);
            }
            if what == Steps::Scoped {
                b.scope(&[own], |_| ());
            }
            let y = settle(b, u32::from(what == Steps::Running), y);
            let mut end = read(b, y)[0];
            let slot = if what == Steps::Scalar {
                b.bin(BinaryOp::Rem, i, two)
            } else {
                slot
            };
            release(b, free, slot);
            if what == Steps::Stores {
                let (dst, value) = (b.whole(first), b.f16(end));
                b.op(OpKind::Store { dst, value }, &[]);
            }
            if what == Steps::Computed {
                end = b.exp2(end);
            }
            match what {
                Steps::Twice => vec![end, end],
                Steps::Adds => vec![end, q],
                _ => vec![end],
            }
        });
        if what == Steps::Outlives {
            held.iter().for_each(|v| b.keep(*v));
        }
    };
    b.scope(&[left, first, second, free, ready, go, full], |b| {
        match b.k.thread_axis {
            Some(axis) => {
                let zero = b.i(0);
                let warpgroup = b.one(OpKind::AxisIndex { axis }, i32s());
                let is_first = b.cmp(CompareOp::Eq, warpgroup, zero);
                b.when(is_first, |b| multiply_steps(b), |b| feed(b));
            }
            None => multiply_steps(b),
        }
    });
    facts::run(&mut b.k);
    verify::run(&b.k).unwrap_or_else(|e| panic!("{what:?}: {e}\n{}", b.k));
    passes::loops::rotate_loops::run(&mut b.k).unwrap();
    verify::run(&b.k).unwrap_or_else(|e| panic!("{what:?}: {e}\n{}", b.k));
    b.k
}

/// What happens, with the loops and arms in which it does.
fn in_loops(k: &Kernel, at: Region) -> String {
    let mut out = vec![];
    for &op in &k.regions[at].ops {
        let kind = &k.ops[op].kind;
        let mut inner = vec![];
        visit::for_each_region(kind, &mut |r| inner.push(r));
        let inside = |r: &Region| format!("{{ {} }}", in_loops(k, *r));
        out.push(match kind {
            OpKind::For { .. } => format!("for {}", inside(&inner[0])),
            OpKind::Switch { .. } => format!("switch {}", inner.iter().map(inside).collect::<Vec<_>>().join(" ")),
            OpKind::Scope { .. } => in_loops(k, inner[0]),
            OpKind::Wgmma { b, .. } => format!("wgmma {}", b.alloc),
            OpKind::WgmmaWait { n, accs } => format!("settle {n} of {}", accs.len()),
            OpKind::BarrierArrive { barrier, .. } => format!("arrive {}", barrier.alloc),
            OpKind::BarrierWait { barrier, .. } => format!("wait {}", barrier.alloc),
            OpKind::AccRead { .. } => "read".into(),
            OpKind::Unary { op: UnaryOp::Exp2, .. } => "exp2".into(),
            _ => continue,
        });
    }
    out.retain(|text| !text.is_empty());
    out.join(", ")
}

#[test]
fn the_next_iterations_first_product_runs_beside_the_last() {
    let order = |what| in_loops(&steps(what), steps(what).body);
    // alloc2, alloc3: the operands; alloc5: their release; alloc6: the next is there; alloc7: the rendezvous.
    let turned = "wgmma alloc2, arrive alloc7, wait alloc7, settle 0 of 1, for { read, exp2, wgmma alloc3, wait alloc6, wgmma alloc2, \
         settle 1 of 1, arrive alloc5, arrive alloc7, wait alloc7, settle 0 of 2, read }, read, exp2, wgmma alloc3, wait alloc6, settle 0 of 1, \
         read, arrive alloc5";
    assert_eq!(order(Steps::Right), turned);
    assert_eq!(order(Steps::Scalar), turned);
    assert_eq!(order(Steps::Dynamic), format!("switch {{  }} {{ {turned} }}"));
    // Both of them pass.
    let twice = turned.replace("wgmma alloc2", "wgmma alloc2, wgmma alloc2");
    assert_eq!(order(Steps::Two), twice.replace("settle 1 of 1", "settle 2 of 1"));
    // The slot's number is computed from the counter in each part.
    let kernel = steps(Steps::Right);
    let remainders = kernel.to_string().matches("= rem").count();
    assert_eq!(remainders, 4, "{kernel}");
}

#[test]
fn products_stay_in_their_iterations_where_more_would_move() {
    for (what, noted) in [
        (Steps::One, false),
        (Steps::WaitsFirst, true),
        (Steps::TakesLate, false),
        (Steps::Adds, true),
        (Steps::Captures, true),
        (Steps::Outlives, true),
        (Steps::TakesEarly, true),
        (Steps::Twice, true),
        (Steps::Computed, false),
        (Steps::Stores, false),
        (Steps::Running, true),
        (Steps::Scoped, true),
        (Steps::Wide, true),
    ] {
        let kernel = steps(what);
        let text = in_loops(&kernel, kernel.body);
        assert!(text.starts_with("for {"), "{what:?}: {text}");
        assert_eq!(!kernel.notes.is_empty(), noted, "{what:?}: {:?}", kernel.notes);
    }
}

#[test]
fn a_wait_passes_where_it_ends_in_any_case() {
    for (what, turns) in [
        (Steps::Fed, true),
        (Steps::OneSlot, false),
        (Steps::Late, false),
        (Steps::Unknown, false),
    ] {
        let kernel = steps(what);
        let text = in_loops(&kernel, kernel.body);
        let first = "wait alloc8, wgmma alloc2, settle 1 of 1, arrive alloc5";
        assert_eq!(text.contains(first), turns, "{what:?}: {text}");
        assert_eq!(kernel.notes.is_empty(), turns, "{what:?}: {:?}", kernel.notes);
    }
}
