//! Kernels as barrier insertion leaves them, built by hand.
use smalt::dtype::DType;
use smalt::error::Loc;
use smalt::kernel_ir::testing::KernelBuilder;
use smalt::kernel_ir::*;
use smalt::layout::{self, Assignment};
use smalt::plan::verify_order::{self, Fault, Finding, Missing};
use smalt::plan::{Allocation, allocate};

/// A kernel under construction, in a scope that owns its shared memory.
pub struct Test {
    pub b: KernelBuilder,
    /// What the scope owns.
    allocs: Vec<Alloc>,
    /// Allocations that are to share a place.
    same_place: Vec<(Alloc, Alloc)>,
    /// Whether ops go to a warp region.
    in_warps: bool,
}

impl Test {
    pub fn input(&mut self, dtype: DType, shape: &[u64]) -> Alloc {
        self.b.input(dtype, shape)
    }
    pub fn output(&mut self, dtype: DType, shape: &[u64]) -> Alloc {
        self.b.output(dtype, shape)
    }
    /// Shared memory of the outermost scope.
    pub fn smem(&mut self, dtype: DType, shape: &[u64]) -> Alloc {
        let alloc = self.b.smem(dtype, shape, None);
        self.allocs.push(alloc);
        alloc
    }
    /// An operand of wgmma.
    pub fn tile(&mut self) -> Alloc {
        let transforms = SmemTransforms {
            tiling: [8, 64].as_slice().into(),
            swizzle_bytes: 128,
        };
        let alloc = self.b.smem(DType::F16, &[64, 64], Some(transforms));
        self.allocs.push(alloc);
        alloc
    }
    /// Shared memory of a scope to come.
    pub fn inner_smem(&mut self, dtype: DType, shape: &[u64]) -> Alloc {
        self.b.smem(dtype, shape, None)
    }
    pub fn barriers(&mut self, n: u64) -> Alloc {
        let alloc = self.b.kernel.allocs.push(AllocData {
            kind: AllocKind::Barrier {
                num_arrivals: 1,
                orders_tensor_core: false,
                cluster: None,
            },
            shape: [n].as_slice().into(),
            collective: true,
            within: None,
            owner: Owner::Author,
            loc: Loc::CALL_SITE,
        });
        self.allocs.push(alloc);
        alloc
    }
    /// Makes members of a union of two allocations of the outermost scope.
    pub fn unite(&mut self, a: Alloc, b: Alloc) {
        let union = self.b.smem(DType::I8, &[1024], None);
        let allocs = &mut self.b.kernel.allocs;
        allocs[union].kind = AllocKind::SmemUnion;
        for (group, member) in [a, b].into_iter().enumerate() {
            allocs[member].within = Some(Within {
                union,
                offset: 0,
                group: group as u32,
            });
        }
        // A union is placed before its members.
        self.allocs.insert(0, union);
    }
    /// Places `b` where `a` lies.
    pub fn share(&mut self, a: Alloc, b: Alloc) {
        self.same_place.push((a, b));
    }

    pub fn op(&mut self, kind: OpKind) {
        self.b.op(kind, &[]);
    }
    pub fn sync(&mut self) {
        self.sync_of(Group::Warpgroup);
    }
    pub fn sync_of(&mut self, group: Group) {
        self.op(OpKind::Sync { group });
    }
    pub fn commit(&mut self) {
        self.op(OpKind::CommitSmem);
    }
    pub fn int(&mut self, x: i64) -> Value {
        self.b.int(DType::I32, x)
    }
    /// One element.
    pub fn at(&self, alloc: Alloc, i: i64) -> RefUse {
        self.b.indexed(alloc, vec![DimIndex::At(Index::Const(i))])
    }
    /// Elements from `start` on.
    pub fn part(&self, alloc: Alloc, start: i64, size: u64) -> RefUse {
        let start = Index::Const(start);
        self.b.indexed(alloc, vec![DimIndex::Slice { start, size, stride: 1 }])
    }
    /// A slot of a ring of rows.
    pub fn slot(&self, alloc: Alloc, at: Index) -> RefUse {
        let row = self.b.kernel.allocs[alloc].shape[1];
        self.b.indexed(alloc, vec![DimIndex::At(at), DimIndex::all(row)])
    }
    pub fn whole(&self, alloc: Alloc) -> RefUse {
        self.b.whole(alloc)
    }
    pub fn load(&mut self, src: RefUse) -> Value {
        self.b.load(src)
    }
    pub fn store(&mut self, dst: RefUse, value: Value) {
        self.b.store(dst, value);
    }
    pub fn copy_in(&mut self, src: RefUse, dst: RefUse, barriers: Alloc, i: i64) {
        let barrier = Some(self.at(barriers, i));
        self.op(OpKind::CopyGmemToSmem {
            by_threads: false,
            uncounted: false,
            src,
            dst,
            barrier,
            collective_axes: vec![],
            leader_tracked: None,
            oob: OobMode::Zeros,
            predicate: None,
        });
    }
    pub fn copy_out(&mut self, src: RefUse, dst: RefUse) {
        self.op(OpKind::CopySmemToGmem {
            by_threads: false,
            src,
            dst,
            reduction: None,
            commit_group: true,
            predicate: None,
        });
    }
    pub fn wait_out(&mut self, n: u32, scope: WaitScope) {
        self.op(OpKind::WaitSmemToGmem { n, scope });
    }
    pub fn wait(&mut self, barriers: Alloc, i: i64) {
        let barrier = self.at(barriers, i);
        let phases = self.b.int(DType::U32, 0);
        let kind = OpKind::BarrierWait {
            barrier,
            phases: Some(phases),
        };
        self.b.op(kind, &[Type::Scalar(DType::U32)]);
    }
    pub fn arrive(&mut self, barriers: Alloc, i: i64) {
        let barrier = self.at(barriers, i);
        self.op(OpKind::BarrierArrive {
            barrier,
            predicate: None,
        });
    }
    pub fn acc(&mut self) -> Value {
        let ty = Type::Acc {
            dtype: DType::F32,
            shape: [64, 64].as_slice().into(),
        };
        self.b.op(OpKind::AccInit { init: None }, &[ty])[0]
    }
    pub fn wgmma(&mut self, acc: Value, a: Alloc, b: Alloc) -> Value {
        let ty = self.b.kernel.ty(acc).clone();
        let kind = OpKind::Wgmma {
            acc: AccUse::Value(acc),
            a: MmaOperand::Smem(self.whole(a)),
            b: self.whole(b),
        };
        self.b.op(kind, &[ty])[0]
    }
    pub fn wait_mma(&mut self, n: u32, acc: Value) -> Value {
        let ty = self.b.kernel.ty(acc).clone();
        self.b.op(OpKind::WgmmaWait { n, accs: vec![acc] }, &[ty])[0]
    }

    /// `body` with an index from 0 to `n`.
    pub fn repeat(&mut self, n: Value, body: impl FnOnce(&mut Test, Value)) {
        let lower = self.int(0);
        let body = self.region(Group::Warpgroup, &[Type::Scalar(DType::I32)], |t, p| body(t, p[0]));
        self.op(OpKind::For {
            lower,
            upper: n,
            inits: vec![],
            xs: vec![],
            reverse: false,
            unroll: 1,
            body,
        });
    }
    pub fn when(&mut self, selector: Value, body: impl FnOnce(&mut Test)) {
        self.in_arm(selector, 1, body);
    }
    /// Two arms, of which one does something.
    pub fn in_arm(&mut self, selector: Value, arm: usize, body: impl FnOnce(&mut Test)) {
        let group = if self.in_warps { Group::Warp } else { Group::Warpgroup };
        let mut arms = vec![self.region(group, &[], |_, _| ())];
        arms.insert(arm, self.region(group, &[], |t, _| body(t)));
        self.op(OpKind::Switch { selector, arms });
    }
    /// `body` in warp `warp` of a warp region.
    pub fn in_warp(&mut self, warp: i64, body: impl FnOnce(&mut Test)) {
        self.in_every_warp(|t, axis| t.when_warp(axis, warp, body));
    }
    /// In a warp region, `body` in warp `warp`.
    pub fn when_warp(&mut self, axis: Axis, warp: i64, body: impl FnOnce(&mut Test)) {
        let index = self.b.op1(OpKind::AxisIndex { axis }, DType::I32, &[]);
        let this = self.int(warp);
        let compare = OpKind::Compare {
            op: CompareOp::Eq,
            a: index,
            b: this,
        };
        let here = self.b.op1(compare, DType::Bool, &[]);
        self.when(here, body);
    }
    pub fn in_every_warp(&mut self, body: impl FnOnce(&mut Test, Axis)) {
        let axis = self.b.kernel.axes.push(AxisData {
            name: String::new(),
            size: 4,
            kind: AxisKind::Warp,
        });
        self.in_warps = true;
        let body = self.region(Group::Warp, &[], |t, _| body(t, axis));
        self.in_warps = false;
        self.op(OpKind::WarpMap {
            axis,
            inits: vec![],
            body,
        });
    }
    pub fn scope(&mut self, allocs: &[Alloc], collective: bool, body: impl FnOnce(&mut Test)) {
        let body = self.region(Group::Warpgroup, &[], |t, _| body(t));
        self.op(OpKind::Scope {
            allocs: allocs.to_vec(),
            collective,
            body,
        });
    }
    /// `while cond { body }` without carries.
    pub fn repeat_while(&mut self, cond: impl FnOnce(&mut Test) -> Value, body: impl FnOnce(&mut Test)) {
        let cond = self.region_with(Group::Warpgroup, &[], |t, _| vec![cond(t)]);
        let body = self.region(Group::Warpgroup, &[], |t, _| body(t));
        self.op(OpKind::While {
            inits: vec![],
            cond,
            body,
        });
    }

    fn region(&mut self, group: Group, params: &[Type], f: impl FnOnce(&mut Test, &[Value])) -> Region {
        self.region_with(group, params, |t, p| {
            f(t, p);
            vec![]
        })
    }
    fn region_with(
        &mut self,
        group: Group,
        params: &[Type],
        f: impl FnOnce(&mut Test, &[Value]) -> Vec<Value>,
    ) -> Region {
        let mut builder = std::mem::take(&mut self.b);
        let region = builder.region(group, params, |b, p| {
            std::mem::swap(&mut self.b, b);
            let results = f(self, p);
            std::mem::swap(&mut self.b, b);
            results
        });
        self.b = builder;
        region
    }
}

/// The kernel that `build` makes with so many warpgroups, its layouts and places.
pub fn built(warpgroups: u32, automatic: bool, build: impl FnOnce(&mut Test)) -> (Kernel, Assignment, Allocation) {
    let builder = match warpgroups {
        1 => KernelBuilder::new(),
        n => KernelBuilder::new().warpgroups(n),
    };
    let mut t = Test {
        b: builder,
        allocs: vec![],
        same_place: vec![],
        in_warps: false,
    };
    t.b.kernel.compiler_params.unsafe_no_auto_barriers = !automatic;
    let body = t.region(Group::Warpgroup, &[], |t, _| build(t));
    let (allocs, same_place) = (t.allocs.clone(), t.same_place.clone());
    t.op(OpKind::Scope {
        allocs,
        collective: true,
        body,
    });
    let mut kernel = t.b.finish();
    facts::run(&mut kernel);
    let assignment = layout::infer::run(&mut kernel).expect("layouts");
    let mut allocation = allocate::run(&kernel, 2048, &[]).expect("an allocation");
    allocation.reuses |= !same_place.is_empty();
    for (a, b) in same_place {
        allocation.smem[b] = allocation.smem[a];
    }
    (kernel, assignment, allocation)
}

/// What the checker finds there.
pub fn findings_of(warpgroups: u32, automatic: bool, build: impl FnOnce(&mut Test)) -> Vec<Finding> {
    let (kernel, assignment, allocation) = built(warpgroups, automatic, build);
    verify_order::run(&kernel, &assignment, &allocation)
}

/// The right kernel is clean; the broken one lacks this and nothing else.
pub fn twins(fault: Fault, missing: Missing, build: impl Fn(&mut Test, bool)) {
    twins_with(1, true, fault, missing, build);
}

pub fn twins_with(warpgroups: u32, automatic: bool, fault: Fault, missing: Missing, build: impl Fn(&mut Test, bool)) {
    clean_with(warpgroups, automatic, |t| build(t, true));
    let broken = findings_of(warpgroups, automatic, |t| build(t, false));
    assert!(!broken.is_empty(), "the broken twin passes");
    for finding in &broken {
        assert_eq!((finding.fault, finding.missing), (fault, missing), "{finding}");
    }
}

pub fn clean(build: impl FnOnce(&mut Test)) {
    clean_with(1, true, build);
}

pub fn clean_with(warpgroups: u32, automatic: bool, build: impl FnOnce(&mut Test)) {
    let found = findings_of(warpgroups, automatic, build);
    let texts: Vec<String> = found.iter().map(|f| format!("{:?}: {f}", f.fault)).collect();
    assert!(found.is_empty(), "the right twin is blamed:\n{}", texts.join("\n"));
}
