//! Every pass of `ptx/`, the checkers that run at every compilation, and the emulator's decoder grow with the program: ten times the
//! instructions take about ten times as long, up to 100,000; ten times the kernel IR's ops, up to 20,000.
//!
//! Time is the thread's own on a processor, the best of several runs, and growth is measured over one decade and over two: what is
//! quadratic fails both, whatever else the machine does.
use smalt::dtype::DType;
use smalt::emulate;
use smalt::kernel_ir::testing::KernelBuilder;
use smalt::kernel_ir::{self, Alloc, DimIndex, Group, Index, Kernel, Type, facts};
use smalt::layout::{self, Assignment, verify_layouts};
use smalt::plan::{Allocation, insert_barriers, scratch, verify_order};
use smalt::ptx::build::{Builder, Operand};
use smalt::ptx::inst::Inst;
use smalt::ptx::launch::LaunchSpec;
use smalt::ptx::modifier::*;
use smalt::ptx::operand::*;
use smalt::ptx::out_of_ssa::Shell;
use smalt::ptx::ssa::{MemTag, Ssa, Value};
use smalt::ptx::{optimize, out_of_ssa, print, verify_flat, verify_ssa};

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

fn shell() -> Shell {
    Shell {
        launch: LaunchSpec {
            entry: "kernel".into(),
            grid: [1, 1, 1],
            cluster: [1, 1, 1],
            block: 128,
            smem_bytes: 1 << 16,
            params: vec![],
            scratch: vec![],
            map_templates: vec![],
            uses_programmatic_launch: false,
            mesh: None,
            printer: None,
            profile: None,
            gives_up: None,
        },
        target: "sm_90a".into(),
        min_ctas_per_sm: None,
    }
}

fn load(b: &mut Builder, at: Value, i: i32) -> Value {
    b.load(Space::Shared, MemType::B32, Addr::at(at, 4 * i), 1)[0]
}
fn store(b: &mut Builder, at: Value, i: i32, v: impl Into<Operand>) {
    let before = b.set_memory(MemTag::shared(1 << 20));
    b.store(Space::Shared, MemType::B32, Addr::at(at, 4 * i), &[v.into()]);
    b.set_memory(before);
}

/// One value, `n` operations.
fn chain(n: usize) -> Ssa {
    let mut b = Builder::new();
    let tid = b.tid();
    let mut x: Operand = load(&mut b, tid, 0).into();
    for i in 0..n / 2 {
        x = b.mul(IntType::U32, x, 3 + 2 * i as i32);
        x = b.xor(LogicType::B32, x, tid);
    }
    store(&mut b, tid, 0, x);
    b.finish()
}

/// An array of so many elements a thread: loaded, operation by operation over all of them, stored. Every eighth operation is a
/// conditional that keeps its values apart, as the slow path of a sine is.
fn array(n: usize, elements: usize) -> Ssa {
    let mut b = Builder::new();
    let tid = b.tid();
    b.set_memory(MemTag::shared(0));
    let mut all: Vec<Operand> = (0..elements).map(|i| load(&mut b, tid, i as i32).into()).collect();
    b.set_memory(MemTag::ANY);
    for step in 0..n / elements / 2 {
        for x in &mut all {
            *x = b.mul(IntType::U32, *x, 3 + 2 * step as i32);
            if step % 8 == 0 {
                let p = b.setp(Compare::Lt, CompareType::U32, *x, 77);
                b.open_if(p);
                let mut y = *x;
                for _ in 0..10 {
                    y = b.mul(IntType::U32, y, y);
                }
                b.open_else(&[y]);
                *x = b.close_if(&[*x])[0].into();
            } else {
                *x = b.add(IntType::U32, *x, tid);
            }
        }
    }
    for (i, x) in all.into_iter().enumerate() {
        store(&mut b, tid, i as i32, x);
    }
    b.finish()
}

/// Values that are live across as many conditionals, in a loop.
fn held(n: usize) -> Ssa {
    let mut b = Builder::new();
    let tid = b.tid();
    let kept: Vec<Value> = (0..n / 10).map(|i| load(&mut b, tid, i as i32 % 1024)).collect();
    let params = b.open_loop(&[tid]);
    let p = b.setp(Compare::Lt, CompareType::U32, params[0], 3);
    let carried = b.open_body(p, &params);
    for i in 0..n / 20 {
        let odd = b.setp(Compare::Gt, CompareType::U32, kept[i], 1000);
        b.open_if(odd);
        for k in 0..8 {
            store(&mut b, tid, k, carried[0]);
        }
        b.close_if(&[]);
    }
    for v in &kept {
        store(&mut b, tid, 0, *v);
    }
    let next = b.add(IntType::U32, carried[0], 1);
    b.close_loop(&[next]);
    b.finish()
}

/// A sequence of loops that carry two values, with a branch each.
fn loops(n: usize) -> Ssa {
    let mut b = Builder::new();
    let tid = b.tid();
    let mut x = load(&mut b, tid, 0);
    for i in 0..n / 8 {
        let zero = b.constant(Class::B32, 0);
        let params = b.open_loop(&[zero, x]);
        let p = b.setp(Compare::Lt, CompareType::U32, params[0], 3 + (i % 5) as i32);
        let carried = b.open_body(p, &params);
        let odd = b.setp(Compare::Gt, CompareType::U32, carried[1], 1000);
        b.open_if(odd);
        for k in 0..8 {
            store(&mut b, tid, k, carried[1]);
        }
        b.close_if(&[]);
        let next = b.mul(IntType::U32, carried[1], 5);
        let count = b.add(IntType::U32, carried[0], 1);
        x = b.close_loop(&[count, next])[1];
    }
    store(&mut b, tid, 0, x);
    b.finish()
}

/// wgmmas on fresh fragments and an accumulator through all of them: each is waited for, or so many at once.
fn wgmmas(n: usize, at_once: usize) -> Ssa {
    let mut b = Builder::new();
    let tid = b.tid();
    let desc = b.constant(Class::B64, 9);
    let scale_d = b.constant(Class::Pred, 1);
    let mut acc: Vec<Value> = (0..4).map(|_| b.constant(Class::B32, 0)).collect();
    for i in 0..n / 16 {
        let a: Vec<Value> = (0..4).map(|k| load(&mut b, tid, (4 * i + k) as i32 % 1024)).collect();
        let tied = |input: &[Value]| Tied {
            input: input.to_vec(),
            output: vec![Value::NEW; input.len()],
        };
        acc = b.inst(Inst::WgmmaFence { acc: tied(&acc) }).to_vec();
        let issue = Inst::WgmmaIntRs {
            ty: WgmmaTypes::S8S8,
            sat: SatFinite::No,
            n: 8,
            acc: tied(&acc),
            a: a.iter().map(|v| Src::Reg(*v)).collect(),
            b: desc,
            scale_d,
        };
        acc = b.inst(issue).to_vec();
        b.inst(Inst::WgmmaCommit {});
        if (i + 1) % at_once == 0 {
            acc = b.inst(Inst::WgmmaWait { n: 0, acc: tied(&acc) }).to_vec();
        }
    }
    for (i, v) in acc.into_iter().enumerate() {
        store(&mut b, tid, i as i32, v);
    }
    b.finish()
}

/// The time that this thread has had (Linux: the first number of its scheduling statistics, in nanoseconds).
fn now(start: Instant) -> Duration {
    let own = std::fs::read_to_string("/proc/thread-self/schedstat").ok();
    let nanoseconds = own.and_then(|text| text.split(' ').next()?.parse().ok());
    nanoseconds.map_or_else(|| start.elapsed(), Duration::from_nanos)
}

type Times = BTreeMap<&'static str, Duration>;

/// The best time of every pass over some runs: other work on the machine only ever adds.
fn times(build: impl Fn() -> Ssa, runs: usize) -> Times {
    let mut best = Times::new();
    let start = Instant::now();
    for _ in 0..runs {
        let mut before = now(start);
        let mut lap = |name: &'static str| {
            let spent = now(start).saturating_sub(before);
            let slot = best.entry(name).or_insert(spent);
            *slot = spent.min(*slot);
            before = now(start);
        };
        let ssa = build();
        lap("build");
        assert!(verify_ssa::run(&ssa).iter().all(|v| v.rule == "convergent"));
        lap("verify_ssa");
        let options = optimize::Options {
            register_budget: Some(24),
            ..optimize::Options::default()
        };
        let around = |name, after: Option<&Ssa>| {
            if after.is_some() {
                lap(name);
            }
        };
        let ssa = optimize::run(ssa, options, around).unwrap();
        lap("the last check");
        let flat = out_of_ssa::run(&ssa, shell()).unwrap();
        lap("out_of_ssa");
        assert_eq!(verify_flat::run(&flat), vec![]);
        lap("verify_flat");
        print::print(&flat);
        lap("print");
        emulate::testing::decode_unchecked(&flat).unwrap();
        lap("decode");
    }
    best
}

/// A kernel under construction: a vector of 128 numbers, and what else its ops need.
struct Memory {
    row: kernel_ir::Value,
    ring: Alloc,
    flat: Alloc,
    out: Alloc,
    /// A number that nobody knows.
    count: kernel_ir::Value,
}

fn planned(n: usize, build: impl Fn(&mut KernelBuilder, &Memory, usize)) -> (Kernel, Assignment, Allocation) {
    let mut b = KernelBuilder::new();
    let count = b.scalar(DType::I32);
    let x = b.input(DType::F32, &[128]);
    let memory = Memory {
        row: b.load(b.whole(x)),
        ring: b.smem(DType::F32, &[4, 128], None),
        flat: b.smem(DType::F32, &[32_768], None),
        out: b.output(DType::F32, &[128]),
        count,
    };
    build(&mut b, &memory, n);
    let (mut kernel, _) = b.finish_in_scope(&[memory.ring, memory.flat]);
    facts::run(&mut kernel);
    let assignment = layout::infer::run(&mut kernel).unwrap();
    let (_, allocation) = scratch::allocate(&kernel, &assignment).unwrap();
    insert_barriers::run(&mut kernel, &assignment, &allocation);
    (kernel, assignment, allocation)
}

/// Loops one behind the other, each of which stores to slots of a ring, and reads them in one lane's order and in another's.
fn small_loops(b: &mut KernelBuilder, m: &Memory, n: usize, is_counted: bool) {
    for _ in 0..n / 8 {
        let (lower, four) = (b.int(DType::I32, 0), b.int(DType::I32, 4));
        let body = b.region(Group::Warpgroup, &[Type::Scalar(DType::I32)], |b, p| {
            let at = DimIndex::At(Index::Value(p[0]));
            let slot = b.indexed(m.ring, vec![at.clone(), DimIndex::all(128)]);
            b.store(slot.clone(), m.row);
            let row = b.load(slot);
            b.store(b.whole(m.out), row);
            let one = b.load(b.indexed(m.ring, vec![at, DimIndex::At(Index::Const(77))]));
            b.store(b.indexed(m.flat, vec![DimIndex::At(Index::Value(p[0]))]), one);
            vec![]
        });
        let kind = kernel_ir::OpKind::For {
            lower,
            upper: if is_counted { four } else { m.count },
            inits: vec![],
            xs: vec![],
            reverse: false,
            unroll: 1,
            body,
        };
        b.op(kind, &[]);
    }
}

/// Accesses to places of their own, none of which needs an order, with no barrier between them.
fn apart(b: &mut KernelBuilder, m: &Memory, n: usize) {
    for i in 0..n / 2 {
        let start = Index::Const(128 * (i as i64 % 256));
        let (size, stride) = (128, 1);
        let part = b.indexed(m.flat, vec![DimIndex::Slice { start, size, stride }]);
        b.store(part.clone(), m.row);
        b.load(part);
    }
}

/// Elements that one lane stores and all lanes read, later.
fn elements(b: &mut KernelBuilder, m: &Memory, n: usize) {
    let at = |i: usize| vec![DimIndex::At(Index::Const(i as i64 % 32_768))];
    let number = b.load(b.indexed(m.flat, at(0)));
    for i in 0..n / 2 {
        b.store(b.indexed(m.flat, at(i)), number);
        b.load(b.indexed(m.flat, at(i / 2)));
    }
}

/// The best time of every checker of a planned kernel over some runs.
fn checkers(build: impl Fn() -> (Kernel, Assignment, Allocation), runs: usize) -> Times {
    let mut best = Times::new();
    let (start, (kernel, assignment, allocation)) = (Instant::now(), build());
    for _ in 0..runs {
        let mut before = now(start);
        let mut lap = |name: &'static str| {
            let spent = now(start).saturating_sub(before);
            let slot = best.entry(name).or_insert(spent);
            *slot = spent.min(*slot);
            before = now(start);
        };
        kernel_ir::verify::run(&kernel).unwrap();
        lap("verify");
        verify_layouts::run(&kernel, &assignment.values).unwrap();
        lap("verify_layouts");
        assert_eq!(verify_order::run(&kernel, &assignment, &allocation), vec![]);
        lap("verify_order");
    }
    best
}

/// Ten times the program takes at most 10^1.3 times as long, or a hundred times the program that twice. Below two ticks of the
/// scheduler, by which the statistics move, times are noise.
fn assert_linear_times(family: &str, sizes: [(usize, usize); 3], times: impl Fn(usize, usize) -> Times) {
    let all: Vec<Times> = sizes.iter().map(|(n, runs)| times(*n, *runs)).collect();
    let mut broken = vec![];
    for (pass, large) in &all[2] {
        let row: Vec<Duration> = all.iter().map(|times| times[pass]).collect();
        let noise = Duration::from_millis(8);
        let decades = |from: Duration| (large.as_secs_f64() / from.max(noise).as_secs_f64()).log10();
        let exponent = decades(row[1]).min(decades(row[0]) / 2.0);
        println!("{family}: {pass}: {row:?}, exponent {exponent:.2}");
        if exponent >= 1.3 {
            broken.push(format!("{pass}: {row:?}, exponent {exponent:.2}"));
        }
    }
    assert!(broken.is_empty(), "{family}, {sizes:?}:\n{}", broken.join("\n"));
}

fn assert_linear(family: &str, build: impl Fn(usize) -> Ssa) {
    let sizes = [(1000, 8), (10_000, 4), (100_000, 3)];
    assert_linear_times(family, sizes, |n, runs| times(|| build(n), runs));
}

fn assert_checkers_are_linear(family: &str, build: impl Fn(&mut KernelBuilder, &Memory, usize)) {
    let sizes = [(200, 4), (2000, 3), (20_000, 2)];
    assert_linear_times(family, sizes, |n, runs| checkers(|| planned(n, &build), runs));
}

#[test]
fn small_loops_in_order() {
    assert_checkers_are_linear("small loops", |b, m, n| small_loops(b, m, n, true));
}

#[test]
fn loops_of_unknown_length_in_order() {
    assert_checkers_are_linear("loops of unknown length", |b, m, n| small_loops(b, m, n, false));
}

#[test]
fn accesses_apart_in_order() {
    assert_checkers_are_linear("accesses apart", apart);
}

#[test]
fn elements_in_order() {
    assert_checkers_are_linear("elements", elements);
}

#[test]
fn chains() {
    assert_linear("a chain", chain);
}

#[test]
fn arrays() {
    assert_linear("an array", |n| array(n, 64));
}

#[test]
fn wide_arrays() {
    // As many elements as the program has operations over each.
    assert_linear("a wide array", |n| array(n, n / 8));
}

#[test]
fn values_across_conditionals() {
    assert_linear("values across conditionals", held);
}

#[test]
fn sequences_of_loops() {
    assert_linear("loops", loops);
}

#[test]
fn sequences_of_wgmmas() {
    assert_linear("wgmmas", |n| wgmmas(n, 1));
}

#[test]
fn wgmmas_that_are_waited_for_at_once() {
    assert_linear("wgmmas at once", |n| wgmmas(n, n / 16));
}
