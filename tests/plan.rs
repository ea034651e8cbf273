//! Plans: how many barriers the compiler places in known kernels, and where in small ones.
use smalt::dtype::DType;
use smalt::error::Loc;
use smalt::kernel_ir::testing::KernelBuilder;
use smalt::kernel_ir::*;
use smalt::layout;
use smalt::plan::{allocate, insert_barriers, rendezvous};
use smalt::runtime::pipeline::{CompileOptions, Observer, compile};
use std::fmt::Write;
use std::path::Path;

/// `tests/plan/barriers.txt` has the barriers of a warpgroup or a block that are placed in each committed kernel. A change shows
/// here; `SMALT_BLESS=1` writes the file anew.
#[test]
fn barriers_in_committed_kernels() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests");
    let mut files: Vec<_> = std::fs::read_dir(root.join("corpus/golden/0.11.2"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "pb"))
        .collect();
    files.sort();
    let mut now = String::new();
    for path in files {
        let descriptor = std::fs::read(&path).unwrap();
        let options = CompileOptions::for_target("sm_90a");
        if let Ok(compiled) = compile(&descriptor, b"", &options, &mut Observer::default()) {
            let name = path.file_stem().unwrap().to_str().unwrap();
            writeln!(now, "{name} {}", compiled.barriers.len()).unwrap();
        }
    }
    let file = root.join("plan/barriers.txt");
    if std::env::var_os("SMALT_BLESS").is_some() {
        std::fs::write(&file, &now).unwrap();
    }
    let before = std::fs::read_to_string(&file).unwrap();
    let changed: Vec<_> = now
        .lines()
        .filter(|line| !before.lines().any(|old| old == *line))
        .collect();
    assert!(
        changed.is_empty() && now.lines().count() == before.lines().count(),
        "{changed:#?}"
    );
}

fn planned(b: KernelBuilder) -> (Kernel, usize) {
    let mut kernel = b.finish();
    verify::run(&kernel).unwrap();
    facts::run(&mut kernel);
    let assignment = layout::infer::run(&mut kernel).unwrap();
    let allocation = allocate::run(&kernel, 0, &[]).unwrap();
    let placed = insert_barriers::run(&mut kernel, &assignment, &allocation).len();
    (kernel, placed)
}

/// The barriers, fences and waits among the body's ops, with what they stand before.
fn text(kernel: &Kernel) -> String {
    let mut out = vec![];
    kernel.for_each_op(&mut |op| {
        let text = match &kernel.ops[op].kind {
            OpKind::Sync { group } => format!("sync {group}"),
            OpKind::Fence { kind } => format!("fence {}", kind.name()),
            kind if kind.is_pure() => return,
            kind => kind.name().to_string(),
        };
        out.push(text);
    });
    out.join(", ")
}

/// Ops in a scope with two buffers of shared memory, an mbarrier, an input and an output.
struct Things {
    x: Alloc,
    out: Alloc,
    a: Alloc,
    b: Alloc,
    bar: Alloc,
}

/// The text of a kernel of one scope after planning, without what is around it.
fn plan_of(f: impl FnOnce(&mut KernelBuilder, &Things)) -> String {
    let mut b = KernelBuilder::new();
    let (x, out) = (b.input(DType::F32, &[64, 128]), b.output(DType::F32, &[64, 128]));
    let buffers = [0, 1].map(|_| b.smem(DType::F32, &[64, 128], None));
    let bar = b.kernel.allocs.push(AllocData {
        kind: AllocKind::Barrier {
            num_arrivals: 1,
            orders_tensor_core: false,
            cluster: None,
        },
        shape: [1].as_slice().into(),
        collective: true,
        within: None,
        owner: Owner::Author,
        loc: smalt::error::Loc::CALL_SITE,
    });
    let things = Things {
        x,
        out,
        a: buffers[0],
        b: buffers[1],
        bar,
    };
    let allocs = vec![things.a, things.b, bar];
    scope(&mut b, allocs, |b| f(b, &things));
    let (kernel, _) = planned(b);
    text(&kernel).strip_prefix("scope, ").unwrap().to_string()
}

fn scope(b: &mut KernelBuilder, allocs: Vec<Alloc>, f: impl FnOnce(&mut KernelBuilder)) {
    let body = b.region(Group::Warpgroup, &[], |b, _| {
        f(b);
        vec![]
    });
    let kind = OpKind::Scope {
        allocs,
        collective: true,
        body,
    };
    b.op(kind, &[]);
}

fn repeat(b: &mut KernelBuilder, f: impl FnOnce(&mut KernelBuilder, Value)) {
    let (lower, upper) = (b.int(DType::I32, 0), b.int(DType::I32, 4));
    let body = b.region(Group::Warpgroup, &[Type::Scalar(DType::I32)], |b, params| {
        f(b, params[0]);
        vec![]
    });
    let kind = OpKind::For {
        lower,
        upper,
        inits: vec![],
        xs: vec![],
        reverse: false,
        unroll: 1,
        body,
    };
    b.op(kind, &[]);
}

fn rows(b: &KernelBuilder, alloc: Alloc, start: Index) -> RefUse {
    let dims = vec![
        DimIndex::Slice {
            start,
            size: 16,
            stride: 1,
        },
        DimIndex::all(128),
    ];
    b.indexed(alloc, dims)
}

fn transposed(b: &KernelBuilder, alloc: Alloc) -> RefUse {
    let whole = b.whole(alloc);
    RefUse {
        steps: vec![Step::Transpose(vec![1, 0])],
        shape: [128, 64].as_slice().into(),
        ..whole
    }
}

fn copy_in(b: &mut KernelBuilder, t: &Things, src: Alloc, dst: Alloc) {
    let kind = OpKind::CopyGmemToSmem {
        by_threads: false,
        uncounted: false,
        src: b.whole(src),
        dst: b.whole(dst),
        barrier: Some(b.indexed(t.bar, vec![DimIndex::At(Index::Const(0))])),
        collective_axes: vec![],
        leader_tracked: None,
        oob: OobMode::Zeros,
        predicate: None,
    };
    b.op(kind, &[]);
}

fn copy_out(b: &mut KernelBuilder, src: RefUse, dst: RefUse) {
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

fn wait_stores(b: &mut KernelBuilder, n: u32, scope: WaitScope) {
    b.op(OpKind::WaitSmemToGmem { n, scope }, &[]);
}

fn load(b: &mut KernelBuilder, src: RefUse) -> Value {
    b.load(src)
}

#[test]
fn lanes_that_keep_to_their_own_elements_need_no_barrier() {
    let same = plan_of(|b, t| {
        let (x, a, out) = (b.whole(t.x), b.whole(t.a), b.whole(t.out));
        let v = load(b, x);
        b.store(a.clone(), v);
        let v = load(b, a);
        b.store(out, v);
    });
    // `stmatrix` passes words between the lanes of a warp.
    assert_eq!(same, "load, store, sync warp, load, store");
    let other = plan_of(|b, t| {
        let (x, a, turned) = (b.whole(t.x), b.whole(t.a), transposed(b, t.a));
        let v = load(b, x);
        b.store(a, v);
        load(b, turned);
    });
    assert_eq!(other, "load, store, sync warpgroup, load");
}

#[test]
fn bytes_apart_need_no_barrier() {
    let slots = |start: i64| {
        plan_of(move |b, t| {
            let (from, to) = (rows(b, t.a, Index::Const(start)), rows(b, t.a, Index::Const(16)));
            let v = load(b, from);
            b.store(to, v);
        })
    };
    assert_eq!(slots(0), "load, store");
    // Each lane has every fourth row; of these rows, others' words.
    assert_eq!(slots(8), "load, sync warp, store");
    assert_eq!(slots(7), "load, sync warpgroup, store");
}

#[test]
fn a_slice_that_moves_meets_itself_in_the_next_iteration() {
    let text = plan_of(|b, t| {
        repeat(b, |b, i| {
            let (from, to) = (rows(b, t.x, Index::Const(0)), rows(b, t.a, Index::Value(i)));
            let v = load(b, from);
            b.store(to, v);
        });
    });
    assert_eq!(text, "for, load, sync warpgroup, store");
}

#[test]
fn the_wait_for_a_bulk_store_is_the_issuers() {
    let text = plan_of(|b, t| {
        let (x, a, out) = (b.whole(t.x), b.whole(t.a), b.whole(t.out));
        let v = load(b, x);
        b.store(a.clone(), v);
        b.op(OpKind::CommitSmem, &[]);
        copy_out(b, a.clone(), out.clone());
        wait_stores(b, 0, WaitScope::Complete);
        b.store(a, v);
        let back = load(b, out);
        let other = b.whole(t.b);
        b.store(other, back);
    });
    assert_eq!(
        text,
        "load, store, commit_smem, copy_smem_to_gmem, wait_smem_to_gmem, sync warpgroup, store, load, store"
    );
}

#[test]
fn bulk_stores_have_read_when_the_kernel_ends() {
    let text = |waited: Option<u32>, committed: bool| {
        plan_of(|b, t| {
            for i in [0, 16] {
                let kind = OpKind::CopySmemToGmem {
                    by_threads: false,
                    src: rows(b, t.a, Index::Const(i)),
                    dst: rows(b, t.out, Index::Const(i)),
                    reduction: None,
                    commit_group: committed,
                    predicate: None,
                };
                b.op(kind, &[]);
            }
            waited.iter().for_each(|n| wait_stores(b, *n, WaitScope::SmemRead));
        })
    };
    let (copies, wait) = ("copy_smem_to_gmem, copy_smem_to_gmem", "wait_smem_to_gmem");
    assert_eq!(text(None, true), format!("{copies}, {wait}"));
    assert_eq!(text(Some(1), true), format!("{copies}, {wait}, {wait}"));
    assert_eq!(text(Some(0), true), format!("{copies}, {wait}"));
    assert_eq!(text(None, false), format!("{copies}, commit_group, {wait}"));
}

#[test]
fn a_wait_for_some_stores_leaves_the_others() {
    let text = plan_of(|b, t| {
        let (first, second) = (rows(b, t.a, Index::Const(0)), rows(b, t.a, Index::Const(16)));
        let (to_first, to_second) = (rows(b, t.out, Index::Const(0)), rows(b, t.out, Index::Const(16)));
        let from = rows(b, t.x, Index::Const(0));
        let v = load(b, from);
        copy_out(b, first.clone(), to_first);
        copy_out(b, second.clone(), to_second);
        wait_stores(b, 1, WaitScope::SmemRead);
        b.store(first, v);
        b.op(OpKind::CommitSmem, &[]);
        wait_stores(b, 0, WaitScope::SmemRead);
        b.store(second, v);
    });
    let expected = "load, copy_smem_to_gmem, copy_smem_to_gmem, wait_smem_to_gmem, sync warpgroup, store, commit_smem, \
                    wait_smem_to_gmem, sync warpgroup, store";
    assert_eq!(text, expected);
}

#[test]
fn a_bulk_load_of_what_lanes_stored_needs_a_fence_and_a_barrier() {
    let text = plan_of(|b, t| {
        let (x, out) = (b.whole(t.x), b.whole(t.out));
        let v = load(b, x);
        b.store(out, v);
        copy_in(b, t, t.out, t.a);
    });
    assert_eq!(
        text,
        "load, store, fence proxy_async_global, sync warpgroup, copy_gmem_to_smem"
    );
}

#[test]
fn a_bulk_load_waits_for_all_who_read() {
    let text = plan_of(|b, t| {
        repeat(b, |b, _| {
            copy_in(b, t, t.x, t.a);
            let a = b.whole(t.a);
            load(b, a);
        });
    });
    assert_eq!(
        text,
        "for, fence proxy_async_shared_cta, sync warpgroup, copy_gmem_to_smem, load"
    );
}

#[test]
fn warps_apart_are_ordered_before_and_behind_their_region() {
    let text = plan_of(|b, t| {
        let one = |b: &KernelBuilder| b.indexed(t.a, vec![DimIndex::At(Index::Const(0)); 2]);
        let first = one(b);
        load(b, first);
        let axis = b.kernel.axes.push(AxisData {
            name: "warp".into(),
            size: 4,
            kind: AxisKind::Warp,
        });
        let body = b.region(Group::Warp, &[], |b, _| {
            let (from, to) = (one(b), one(b));
            let v = load(b, from);
            b.store(to, v);
            vec![]
        });
        let inits = vec![];
        b.op(OpKind::WarpMap { axis, inits, body }, &[]);
        let first = one(b);
        load(b, first);
    });
    assert_eq!(
        text,
        "load, sync warpgroup, warp_map, load, sync warp, store, sync warpgroup, load"
    );
}

#[test]
fn a_warp_commits_what_its_warpgroup_stored_for_whoever_issues() {
    let text = plan_of(|b, t| {
        let (x, a) = (b.whole(t.x), b.whole(t.a));
        let v = load(b, x);
        b.store(a.clone(), v);
        let axis = b.kernel.axes.push(AxisData {
            name: "warp".into(),
            size: 4,
            kind: AxisKind::Warp,
        });
        let body = b.region(Group::Warp, &[], |b, _| {
            b.op(OpKind::CommitSmem, &[]);
            vec![]
        });
        let inits = vec![];
        b.op(OpKind::WarpMap { axis, inits, body }, &[]);
        let out = b.whole(t.out);
        copy_out(b, a, out);
    });
    assert_eq!(
        text,
        "load, store, sync warpgroup, warp_map, commit_smem, sync warpgroup, copy_smem_to_gmem, wait_smem_to_gmem"
    );
}

/// A region of which one warp updates an element that the warpgroup's first lane stores before and behind it.
fn region_of_one_warp(warp: u64) -> String {
    plan_of(|b, t| {
        let one = |b: &KernelBuilder| b.indexed(t.a, vec![DimIndex::At(Index::Const(0)); 2]);
        let zero = b.op1(OpKind::Constant(Constant::Splat(0)), DType::F32, &[]);
        let first = one(b);
        b.store(first, zero);
        let axis = b.kernel.axes.push(AxisData {
            name: "warp".into(),
            size: 4,
            kind: AxisKind::Warp,
        });
        let body = b.region(Group::Warp, &[], |b, _| {
            let index = b.op1(OpKind::AxisIndex { axis }, DType::I32, &[]);
            let number = b.op1(OpKind::Constant(Constant::Splat(warp)), DType::I32, &[]);
            let kind = OpKind::Compare {
                op: CompareOp::Eq,
                a: index,
                b: number,
            };
            let selector = b.op1(kind, DType::Bool, &[]);
            let others = b.region(Group::Warp, &[], |_, _| vec![]);
            let this = b.region(Group::Warp, &[], |b, _| {
                let (from, to) = (one(b), one(b));
                let v = load(b, from);
                b.store(to, v);
                vec![]
            });
            let arms = vec![others, this];
            b.op(OpKind::Switch { selector, arms }, &[]);
            vec![]
        });
        let inits = vec![];
        b.op(OpKind::WarpMap { axis, inits, body }, &[]);
        let first = one(b);
        b.store(first, zero);
    })
}

#[test]
fn what_one_warp_of_a_region_does_meets_that_warp_only() {
    assert_eq!(
        region_of_one_warp(0),
        "store, sync warp, warp_map, switch, load, sync warp, store, sync warp, store"
    );
    assert_eq!(
        region_of_one_warp(2),
        "store, sync warpgroup, warp_map, switch, load, sync warp, store, sync warpgroup, store"
    );
}

#[test]
fn a_while_ends_with_its_condition() {
    let text = plan_of(|b, t| {
        let one = |b: &KernelBuilder| b.indexed(t.a, vec![DimIndex::At(Index::Const(0)); 2]);
        let zero = b.op1(OpKind::Constant(Constant::Splat(0)), DType::F32, &[]);
        let cond = b.region(Group::Warpgroup, &[], |b, _| {
            let flag = one(b);
            let v = load(b, flag);
            let kind = OpKind::Compare {
                op: CompareOp::Lt,
                a: v,
                b: zero,
            };
            vec![b.op1(kind, DType::Bool, &[])]
        });
        let body = b.region(Group::Warpgroup, &[], |b, _| {
            b.op(OpKind::CommitSmem, &[]);
            vec![]
        });
        let inits = vec![];
        b.op(OpKind::While { inits, cond, body }, &[]);
        let flag = one(b);
        b.store(flag, zero);
    });
    assert_eq!(text, "while, load, commit_smem, sync warpgroup, store");
}

#[test]
fn a_scope_that_takes_over_memory_waits_in_every_iteration() {
    let mut b = KernelBuilder::new();
    let out = b.output(DType::F32, &[288, 128]);
    let big = [0, 1].map(|_| b.smem(DType::F32, &[288, 128], None));
    repeat(&mut b, |b, _| {
        for buffer in big {
            scope(b, vec![buffer], |b| {
                let (from, to) = (b.whole(buffer), b.whole(out));
                copy_out(b, from, to);
            });
        }
    });
    let (kernel, _) = planned(b);
    // The one warpgroup meets where it touches the memory; its issuing lane has waited itself.
    let one = "wait_smem_to_gmem, scope, copy_smem_to_gmem";
    assert_eq!(text(&kernel), format!("for, {one}, {one}, wait_smem_to_gmem"));
}

#[test]
fn users_who_place_barriers_themselves_get_those_behind_bulk_stores_only() {
    let run = |automatic: bool| {
        let mut b = KernelBuilder::new();
        b.kernel.compiler_params.unsafe_no_auto_barriers = !automatic;
        let (x, out) = (b.input(DType::F32, &[64, 128]), b.output(DType::F32, &[64, 128]));
        let a = b.smem(DType::F32, &[64, 128], None);
        scope(&mut b, vec![a], |b| {
            let (x, whole, turned, out) = (b.whole(x), b.whole(a), transposed(b, a), b.whole(out));
            let v = load(b, x);
            b.store(whole.clone(), v);
            load(b, turned);
            copy_out(b, whole.clone(), out);
            wait_stores(b, 0, WaitScope::SmemRead);
            b.store(whole, v);
        });
        planned(b).1
    };
    assert_eq!((run(true), run(false)), (2, 1));
}

#[test]
fn memory_of_the_compilers_is_ordered_where_users_place_barriers_themselves() {
    let run = |owner| {
        let mut b = KernelBuilder::new();
        b.kernel.compiler_params.unsafe_no_auto_barriers = true;
        let x = b.input(DType::F32, &[64, 128]);
        let a = b.smem(DType::F32, &[64, 128], None);
        b.kernel.allocs[a].owner = owner;
        scope(&mut b, vec![a], |b| {
            repeat(b, |b, _| {
                let (x, whole, turned) = (b.whole(x), b.whole(a), transposed(b, a));
                let v = load(b, x);
                b.store(whole, v);
                load(b, turned);
            });
        });
        planned(b).1
    };
    assert_eq!((run(Owner::Compiler), run(Owner::Author)), (2, 0));
}

#[test]
fn what_each_warpgroup_enters_by_itself_takes_over_nothing() {
    let places = |collective: bool| {
        let mut b = KernelBuilder::new().warpgroups(2);
        let big = [0, 1].map(|_| b.smem(DType::F32, &[288, 128], None));
        let own = b.smem(DType::F32, &[2, 64, 64], None);
        for buffer in big {
            scope(&mut b, vec![buffer], |_| ());
        }
        repeat(&mut b, |b, _| {
            let body = b.region(Group::Warpgroup, &[], |_, _| vec![]);
            let allocs = vec![own];
            b.op(
                OpKind::Scope {
                    allocs,
                    collective,
                    body,
                },
                &[],
            );
        });
        let (kernel, _) = planned(b);
        let allocation = allocate::run(&kernel, 0, &[]).unwrap();
        let at = |alloc: Alloc| allocation.smem[alloc].unwrap();
        let has_barrier = text(&kernel).contains("for, sync block");
        (at(big[0]) == at(big[1]), at(own) == at(big[0]), has_barrier)
    };
    assert_eq!(places(true), (true, true, true));
    assert_eq!(places(false), (true, false, false));
}

#[test]
fn an_mbarrier_counts_to_2_20() {
    let of = |num_arrivals: u64| {
        let mut b = KernelBuilder::new();
        let kind = AllocKind::Barrier {
            num_arrivals,
            orders_tensor_core: false,
            cluster: None,
        };
        let (shape, loc) = ([1].as_slice().into(), Loc(7));
        b.kernel.allocs.push(AllocData {
            kind,
            shape,
            collective: true,
            within: None,
            owner: Owner::Author,
            loc,
        });
        let kernel = b.finish();
        allocate::run(&kernel, 0, &[])
    };
    assert!(of((1 << 20) - 1).is_ok());
    let error = of(1 << 20).unwrap_err();
    assert_eq!(error.loc, Some(Loc(7)));
    assert!(error.to_string().contains("1 to 1048575 arrivals"), "{error}");
}

/// A scope of one buffer: what `f` does with it, planned.
fn scoped(shape: &[u64], f: impl FnOnce(&mut KernelBuilder, Alloc)) -> String {
    let mut b = KernelBuilder::new();
    let a = b.smem(DType::F32, shape, None);
    scope(&mut b, vec![a], |b| f(b, a));
    text(&planned(b).0).strip_prefix("scope, ").unwrap().to_string()
}

fn at(b: &KernelBuilder, alloc: Alloc, index: Index) -> RefUse {
    b.indexed(alloc, vec![DimIndex::At(index)])
}

/// What every lane needs of a scalar.
fn spread(b: &mut KernelBuilder, to: Alloc, value: Value) {
    let array = b.op1(OpKind::Broadcast { a: value, dims: vec![] }, DType::F32, &[64, 128]);
    let whole = b.whole(to);
    b.store(whole, array);
}

fn count(b: &mut KernelBuilder, from: i64, to: i64, f: impl FnOnce(&mut KernelBuilder, Value)) {
    let (lower, upper) = (b.int(DType::I32, from), b.int(DType::I32, to));
    let body = b.region(Group::Warpgroup, &[Type::Scalar(DType::I32)], |b, params| {
        f(b, params[0]);
        vec![]
    });
    let (inits, xs) = (vec![], vec![]);
    let kind = OpKind::For {
        lower,
        upper,
        inits,
        xs,
        reverse: false,
        unroll: 1,
        body,
    };
    b.op(kind, &[]);
}

#[test]
fn what_a_loop_counts_is_elsewhere_in_the_next_iteration() {
    let loads_and_stores = |counted: bool, trips: i64| {
        scoped(&[8], |b, a| {
            let out = b.output(DType::F32, &[64, 128]);
            let zero = b.op1(OpKind::Constant(Constant::Splat(0)), DType::F32, &[]);
            count(b, 0, trips, |b, i| {
                let index = if counted { Index::Value(i) } else { Index::Const(3) };
                let (from, to) = (at(b, a, index), at(b, a, index));
                let value = b.load(from);
                spread(b, out, value);
                b.store(to, zero);
            });
        })
    };
    assert_eq!(loads_and_stores(true, 4), "for, load, store, sync warpgroup, store");
    assert_eq!(
        loads_and_stores(false, 4),
        "for, sync warpgroup, load, store, sync warpgroup, store"
    );
    assert_eq!(loads_and_stores(false, 1), "for, load, store, sync warpgroup, store");
}

#[test]
fn a_loop_that_never_turns_leaves_nothing_pending() {
    let text = scoped(&[8], |b, a| {
        let out = b.output(DType::F32, &[64, 128]);
        let zero = b.op1(OpKind::Constant(Constant::Splat(0)), DType::F32, &[]);
        count(b, 0, 0, |b, _| {
            let to = at(b, a, Index::Const(0));
            b.store(to, zero);
        });
        let from = at(b, a, Index::Const(0));
        let value = b.load(from);
        spread(b, out, value);
    });
    assert_eq!(text, "for, store, load, store");
}

#[test]
fn what_another_warpgroup_does_in_its_arm_needs_nothing_here() {
    let plan = |both: bool| {
        let mut b = KernelBuilder::new();
        b.kernel.num_warpgroups = 2;
        let out = b.output(DType::F32, &[64, 128]);
        let a = b.smem(DType::F32, &[8], None);
        scope(&mut b, vec![a], |b| {
            let axis = b.kernel.axes.push(AxisData {
                name: "wg".into(),
                size: 2,
                kind: AxisKind::Thread,
            });
            let zero = b.op1(OpKind::Constant(Constant::Splat(0)), DType::F32, &[]);
            let (index, first) = (b.op1(OpKind::AxisIndex { axis }, DType::I32, &[]), b.int(DType::I32, 0));
            let (op, x, y) = (CompareOp::Eq, index, first);
            let is_first = b.op1(OpKind::Compare { op, a: x, b: y }, DType::Bool, &[]);
            let selector = if both {
                b.op1(OpKind::Constant(Constant::Splat(1)), DType::Bool, &[])
            } else {
                is_first
            };
            let none = b.region(Group::Warpgroup, &[], |_, _| vec![]);
            let stores = b.region(Group::Warpgroup, &[], |b, _| {
                let to = at(b, a, Index::Const(0));
                b.store(to, zero);
                vec![]
            });
            let arms = vec![none, stores];
            b.op(OpKind::Switch { selector, arms }, &[]);
            let none = b.region(Group::Warpgroup, &[], |_, _| vec![]);
            let loads = b.region(Group::Warpgroup, &[], |b, _| {
                let from = at(b, a, Index::Const(0));
                let value = b.load(from);
                spread(b, out, value);
                vec![]
            });
            let arms = vec![loads, none];
            b.op(
                OpKind::Switch {
                    selector: is_first,
                    arms,
                },
                &[],
            );
        });
        planned(b).1
    };
    assert_eq!((plan(false), plan(true)), (0, 1));
}

#[test]
fn a_scope_in_a_loop_waits_for_copies_from_its_earlier_iteration() {
    let mut b = KernelBuilder::new();
    let out = b.output(DType::F32, &[64, 128]);
    let a = b.smem(DType::F32, &[64, 128], None);
    repeat(&mut b, |b, _| {
        scope(b, vec![a], |b| {
            let (from, to) = (b.whole(a), b.whole(out));
            copy_out(b, from, to);
        });
    });
    let (kernel, _) = planned(b);
    assert_eq!(
        text(&kernel),
        "for, wait_smem_to_gmem, scope, copy_smem_to_gmem, wait_smem_to_gmem"
    );
}

#[test]
fn a_change_of_layout_through_scratch_is_a_barrier() {
    let plan = |through: bool| {
        let mut b = KernelBuilder::new();
        let out = b.output(DType::F32, &[64, 128]);
        let a = b.smem(DType::F32, &[64, 128], None);
        scope(&mut b, vec![a], |b| {
            let (x, whole, turned, out) = (
                b.input(DType::F32, &[64, 128]),
                b.whole(a),
                transposed(b, a),
                b.whole(out),
            );
            let x = b.whole(x);
            let v = b.load(x);
            b.store(whole, v);
            if through {
                let axes = vec![0, 1];
                let (op, parallel) = (ReduceOp::Sum, None);
                let sum = b.op1(
                    OpKind::Reduce {
                        op,
                        a: v,
                        axes,
                        parallel,
                    },
                    DType::F32,
                    &[],
                );
                let all = b.op1(OpKind::Broadcast { a: sum, dims: vec![] }, DType::F32, &[64, 128]);
                b.store(out, all);
            }
            b.load(turned);
        });
        let mut kernel = b.finish();
        let assignment = layout::infer::run(&mut kernel).unwrap();
        let (_, allocation) = smalt::plan::scratch::allocate(&kernel, &assignment).unwrap();
        insert_barriers::run(&mut kernel, &assignment, &allocation).len()
    };
    assert_eq!((plan(false), plan(true)), (1, 0));
}

/// How the slots of a ring are filled.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fill {
    Whole,
    /// A buffer beside the ring, too: two loads in a phase.
    Both,
    /// The same, each of a phase of its own.
    InTurn,
    Half,
    Predicated,
    /// Somebody arrives without a load.
    Announced,
    /// Every warpgroup loads.
    ByAll,
    /// The slot's number is computed again where it is written.
    Renamed,
    /// Another slot is written than the one that was waited for.
    Other,
    /// The wait is behind the access.
    Late,
}

fn ring(fill: Fill) -> String {
    let row = |size: u64| {
        let (start, stride) = (Index::Const(0), 1);
        DimIndex::Slice { start, size, stride }
    };
    let mut b = KernelBuilder::new();
    if fill == Fill::ByAll {
        b = b.warpgroups(2);
    }
    let (source, out) = (b.input(DType::F32, &[8, 8]), b.output(DType::F32, &[64, 128]));
    let [x, y] = [0, 1].map(|_| b.smem(DType::F32, &[4, 8], None));
    let full = b.kernel.allocs.push(AllocData {
        kind: AllocKind::Barrier {
            num_arrivals: if fill == Fill::Both { 2 } else { 1 },
            orders_tensor_core: false,
            cluster: None,
        },
        shape: [4].as_slice().into(),
        collective: true,
        within: None,
        owner: Owner::Author,
        loc: Loc::CALL_SITE,
    });
    scope(&mut b, vec![x, y, full], |b| {
        let zero = b.op1(OpKind::Constant(Constant::Splat(0)), DType::F32, &[8]);
        count(b, 0, 4, |b, i| {
            let load = |b: &mut KernelBuilder, to: Alloc| {
                let size = if fill == Fill::Half { 4 } else { 8 };
                let dst = b.indexed(to, vec![DimIndex::At(Index::Value(i)), row(size)]);
                let src = b.indexed(source, vec![DimIndex::At(Index::Const(0)), row(size)]);
                let always = b.op1(OpKind::Constant(Constant::Splat(1)), DType::Bool, &[]);
                let kind = OpKind::CopyGmemToSmem {
                    by_threads: false,
                    uncounted: false,
                    src,
                    dst,
                    barrier: Some(at(b, full, Index::Value(i))),
                    collective_axes: vec![],
                    leader_tracked: None,
                    oob: OobMode::Zeros,
                    predicate: (fill == Fill::Predicated).then_some(always),
                };
                b.op(kind, &[]);
            };
            load(b, x);
            if matches!(fill, Fill::Both | Fill::InTurn) {
                load(b, y);
            }
            if fill == Fill::Announced {
                let (barrier, predicate) = (at(b, full, Index::Value(i)), None);
                b.op(OpKind::BarrierArrive { barrier, predicate }, &[]);
            }
        });
        count(b, 0, 8, |b, i| {
            let four = b.int(DType::I32, 4);
            let rem = |b: &mut KernelBuilder| {
                let (op, x, y) = (BinaryOp::Rem, i, four);
                b.op1(OpKind::Binary { op, a: x, b: y }, DType::I32, &[])
            };
            let waited = rem(b);
            let slot = match fill {
                Fill::Renamed => rem(b),
                Fill::Other => i,
                _ => waited,
            };
            let wait = |b: &mut KernelBuilder| {
                let phases = b.op1(OpKind::Constant(Constant::Splat(0)), DType::U32, &[]);
                let kind = OpKind::BarrierWait {
                    barrier: at(b, full, Index::Value(waited)),
                    phases: Some(phases),
                };
                b.op1(kind, DType::U32, &[]);
            };
            if fill != Fill::Late {
                wait(b);
            }
            let to = b.indexed(x, vec![DimIndex::At(Index::Value(slot)), row(8)]);
            b.store(to, zero);
            let from = b.indexed(x, vec![DimIndex::At(Index::Value(slot)), DimIndex::At(Index::Const(0))]);
            let value = b.load(from);
            spread(b, out, value);
            if fill == Fill::Late {
                wait(b);
            }
        });
    });
    let (kernel, _) = planned(b);
    text(&kernel).rsplit("for, ").next().unwrap().to_string()
}

#[test]
fn a_slot_that_was_refilled_needs_no_barrier_on_account_of_what_was_done_before() {
    for fill in [Fill::Whole, Fill::Both] {
        assert_eq!(
            ring(fill),
            "barrier_wait, store, sync warpgroup, load, store",
            "{fill:?}"
        );
    }
    for fill in [
        Fill::InTurn,
        Fill::Half,
        Fill::Predicated,
        Fill::Announced,
        Fill::ByAll,
        Fill::Renamed,
        Fill::Other,
    ] {
        let wanted = "barrier_wait, sync warpgroup, store, sync warpgroup, load, store";
        assert_eq!(ring(fill), wanted, "{fill:?}");
    }
    let wanted = "sync warpgroup, store, sync warpgroup, load, store, barrier_wait";
    assert_eq!(ring(Fill::Late), wanted);
}

/// A rendezvous in front of a product, and what is particular about it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Rendezvous {
    Right,
    /// What the product takes is behind an optimization barrier.
    Fenced,
    /// The wait is for another barrier, or behind the product.
    Other,
    Behind,
    /// The product's left operand is in shared memory, or computed behind the rendezvous.
    Shared,
    Late,
    /// Two accumulators of 128 registers are held.
    Wide,
}

fn is_tied(what: Rendezvous) -> bool {
    let mut b = KernelBuilder::new();
    let n = if what == Rendezvous::Wide { 256 } else { 64 };
    let [left, right] = [[64, 64], [64, n]].map(|shape| b.smem(DType::F16, &shape, None));
    let [go, other] = [0, 1].map(|_| {
        b.kernel.allocs.push(AllocData {
            kind: AllocKind::Barrier {
                num_arrivals: 2,
                orders_tensor_core: false,
                cluster: None,
            },
            shape: [1].as_slice().into(),
            collective: true,
            within: None,
            owner: Owner::Author,
            loc: Loc::CALL_SITE,
        })
    });
    let computed = |b: &mut KernelBuilder| {
        let src = b.whole(left);
        let loaded = b.load(src);
        let (op, x, y) = (BinaryOp::Add, loaded, loaded);
        b.op1(OpKind::Binary { op, a: x, b: y }, DType::F16, &[64, 64])
    };
    let wait = |b: &mut KernelBuilder, barrier: Alloc| {
        let phases = Some(b.op1(OpKind::Constant(Constant::Splat(0)), DType::U32, &[]));
        let barrier = at(b, barrier, Index::Const(0));
        b.op1(OpKind::BarrierWait { barrier, phases }, DType::U32, &[]);
    };
    let (dtype, shape) = (DType::F32, Shape::from_slice(&[64, n]));
    let acc = Type::Acc { dtype, shape };
    let starts: Vec<Value> = (0..2)
        .map(|_| b.op(OpKind::AccInit { init: None }, std::slice::from_ref(&acc))[0])
        .collect();
    let mut p = computed(&mut b);
    if what == Rendezvous::Fenced {
        let kind = OpKind::OptimizationBarrier { values: vec![p] };
        p = b.op1(kind, DType::F16, &[64, 64]);
    }
    let (barrier, predicate) = (at(&b, go, Index::Const(0)), None);
    b.op(OpKind::BarrierArrive { barrier, predicate }, &[]);
    match what {
        Rendezvous::Other => wait(&mut b, other),
        Rendezvous::Behind => {}
        _ => wait(&mut b, go),
    }
    let a = match what {
        Rendezvous::Shared => MmaOperand::Smem(b.whole(left)),
        Rendezvous::Late => MmaOperand::Registers(computed(&mut b)),
        _ => MmaOperand::Registers(p),
    };
    let kind = OpKind::Wgmma {
        acc: AccUse::Value(starts[0]),
        a,
        b: b.whole(right),
    };
    let sum = b.op(kind, std::slice::from_ref(&acc))[0];
    if what == Rendezvous::Behind {
        wait(&mut b, go);
    }
    let types = [acc.clone(), acc];
    b.op(
        OpKind::WgmmaWait {
            n: 0,
            accs: vec![sum, starts[1]],
        },
        &types,
    );
    let kernel = b.finish();
    let tied = rendezvous::find(&kernel);
    kernel.ops.keys().any(|op| tied[op].is_some())
}

#[test]
fn arrivals_at_a_rendezvous_in_front_of_a_product_are_tied_to_what_it_takes() {
    assert!(is_tied(Rendezvous::Right) && is_tied(Rendezvous::Fenced));
    for what in [
        Rendezvous::Other,
        Rendezvous::Behind,
        Rendezvous::Shared,
        Rendezvous::Late,
        Rendezvous::Wide,
    ] {
        assert!(!is_tied(what), "{what:?}");
    }
}
