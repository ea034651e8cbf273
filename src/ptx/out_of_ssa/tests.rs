//! Random structured programs, executed before and after.
//!
//! One thread, integers: `evaluate` is the semantics of pure instructions, stores and atomics are events, and stores change
//! what loads read, byte by byte. What both forms do must be equal.
use super::*;
use crate::ptx::build::{Builder, Operand};
use crate::ptx::evaluate::{NoFunctions, evaluate};
use crate::ptx::flat::*;
use crate::ptx::inst::Inst;
use crate::ptx::modifier::*;
use crate::ptx::operand::*;
use crate::ptx::ssa::*;
use crate::ptx::{infer_uniformity, interleave_elements, optimize, parse, print, verify_flat, verify_ssa};
use cranelift_entity::SecondaryMap;
use proptest::prelude::*;
use rustc_hash::FxHashMap;
use std::collections::BTreeSet;

pub(in crate::ptx) fn shell() -> Shell {
    Shell {
        launch: LaunchSpec {
            entry: "kernel".into(),
            ..LaunchSpec::of_one_block(128)
        },
        target: "sm_90a".into(),
        min_ctas_per_sm: None,
    }
}

/// Stores, as `(address, value)`, and the bytes that they have left; an atomic also gives its event's number.
#[derive(Default, PartialEq, Debug)]
struct Events(Vec<(u64, u64)>, FxHashMap<u64, u8>);

impl Events {
    /// Memory starts as a function of the address.
    fn load(&self, at: u64) -> u64 {
        let byte = |at: u64| self.1.get(&at).copied().unwrap_or((at.wrapping_mul(151) >> 3) as u8);
        (0..4).fold(0, |word, i| word | u64::from(byte(at + i)) << (8 * i))
    }
    fn store(&mut self, at: u64, value: u64) {
        self.0.push((at, value));
        for i in 0..4 {
            self.1.insert(at + i, (value >> (8 * i)) as u8);
        }
    }
}

const FUEL: usize = 20_000;

/// One instruction; gives what it defines.
fn step<R: Copy>(inst: &Inst<R>, get: &dyn Fn(R) -> Option<u64>, events: &mut Events) -> Vec<u64> {
    let src = |s: &Src<R>| s.imm().or_else(|| get(s.reg().expect("a register"))).expect("defined");
    match inst {
        Inst::St { addr, a, .. } => {
            for (i, s) in a.iter().enumerate() {
                let at = get(addr.base).expect("defined") + addr.offset as u64 + 4 * i as u64;
                events.store(at, src(s));
            }
            vec![]
        }
        Inst::Ld { addr, d, .. } => {
            let at = get(addr.base).expect("defined") + addr.offset as u64;
            (0..d.len() as u64).map(|i| events.load(at + 4 * i)).collect()
        }
        Inst::Atom { addr, a, .. } => {
            events.0.push((get(addr.base).expect("defined"), src(a)));
            vec![events.0.len() as u64 * 7]
        }
        // A stand-in for an accumulator: out = 3·in + a.
        Inst::WgmmaIntSs { acc, a, .. } => {
            let a = get(*a).expect("defined");
            acc.input
                .iter()
                .map(|r| (get(*r).expect("defined").wrapping_mul(3).wrapping_add(a)) & 0xffff_ffff)
                .collect()
        }
        Inst::WgmmaWait { acc, .. } | Inst::WgmmaFence { acc } => {
            acc.input.iter().map(|r| get(*r).expect("defined")).collect()
        }
        Inst::WgmmaCommit {} | Inst::Fence { .. } => vec![],
        Inst::MovSpecial32 { .. } => vec![5],
        _ => vec![evaluate(inst, get, &NoFunctions).expect("pure and defined")],
    }
}

struct SsaMachine<'a> {
    ssa: &'a Ssa,
    values: FxHashMap<Value, u64>,
    events: Events,
    fuel: usize,
}

impl SsaMachine<'_> {
    fn region(&mut self, r: Region) -> Option<()> {
        for op in &self.ssa.regions[r].ops {
            self.fuel = self.fuel.checked_sub(1)?;
            match &op.kind {
                OpKind::Inst { guard, inst } => {
                    let runs = guard.is_none_or(|(p, negated)| (self.values[&p] == 1) == (negated == Negated::No));
                    if runs {
                        let values = &self.values;
                        let out = step(inst, &|v| values.get(&v).copied(), &mut self.events);
                        let mut out = out.into_iter();
                        inst.for_each_def(|d, _| {
                            self.values.insert(d, out.next().expect("one value per definition"));
                        });
                    }
                }
                OpKind::If {
                    cond,
                    then,
                    otherwise,
                    results,
                } => {
                    let arm = if self.values[cond] == 1 { *then } else { *otherwise };
                    self.region(arm)?;
                    self.assign(results, &self.ssa.regions[arm].results);
                }
                OpKind::Loop {
                    inits,
                    cond,
                    body,
                    results,
                } => {
                    let (c, b) = (&self.ssa.regions[*cond], &self.ssa.regions[*body]);
                    self.assign(&c.params, inits);
                    loop {
                        self.fuel = self.fuel.checked_sub(1)?;
                        self.region(*cond)?;
                        if self.values[&c.results[0]] != 1 {
                            break;
                        }
                        self.assign(&b.params, &c.results[1..]);
                        self.region(*body)?;
                        self.assign(&c.params, &b.results);
                    }
                    self.assign(results, &c.results[1..]);
                }
            }
        }
        Some(())
    }
    fn assign(&mut self, to: &[Value], from: &[Value]) {
        let values: Vec<u64> = from.iter().map(|v| self.values[v]).collect();
        for (t, v) in to.iter().zip(values) {
            self.values.insert(*t, v);
        }
    }
}

fn run_ssa(ssa: &Ssa) -> Option<Events> {
    let mut m = SsaMachine {
        ssa,
        values: FxHashMap::default(),
        events: Events::default(),
        fuel: FUEL,
    };
    m.region(ssa.body?)?;
    Some(m.events)
}

fn run_flat(flat: &Flat) -> Events {
    let mut regs: FxHashMap<Reg, u64> = FxHashMap::default();
    let mut events = Events::default();
    let mut at = 0;
    for _ in 0..50 * FUEL {
        let block = &flat.blocks[at];
        for fi in &block.insts {
            if fi.guard.is_some_and(|g| (regs[&g.pred] == 1) == g.negated) {
                // What is computed from it, unguarded, is not used.
                fi.inst.for_each_def(|d, _| {
                    regs.entry(d).or_insert(0x5a5a);
                });
                continue;
            }
            let out = step(&fi.inst, &|r| regs.get(&r).copied(), &mut events);
            let mut out = out.into_iter();
            fi.inst.for_each_def(|d, _| {
                regs.insert(d, out.next().expect("one value per definition"));
            });
        }
        at = match &block.terminator {
            Terminator::Return => return events,
            Terminator::Branch { to } => to.0 as usize,
            Terminator::CondBranch {
                guard, then, otherwise, ..
            } => {
                let taken = (regs[&guard.pred] == 1) != guard.negated;
                (if taken { then } else { otherwise }).0 as usize
            }
        };
    }
    panic!("the flat form does not end")
}

/// A stream of choices.
struct Choices<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Choices<'_> {
    fn next(&mut self, n: usize) -> usize {
        let byte = self.bytes.get(self.at).copied().unwrap_or(0);
        self.at += 1;
        usize::from(byte) % n
    }
    fn exhausted(&self) -> bool {
        self.at >= self.bytes.len()
    }
}

/// Appends random code; `pool` holds the 32-bit values in scope.
fn generate(b: &mut Builder, c: &mut Choices<'_>, pool: &mut Vec<Value>, depth: usize) {
    let scope = pool.len();
    for _ in 0..1 + c.next(6) {
        if c.exhausted() {
            break;
        }
        let pick = |c: &mut Choices<'_>, pool: &[Value]| pool[pool.len() - 1 - c.next(pool.len().min(8))];
        match c.next(if depth < 3 { 9 } else { 5 }) {
            0 | 1 => {
                let (x, y) = (pick(c, pool), pick(c, pool));
                let v = match c.next(4) {
                    0 => b.add(IntType::U32, x, y),
                    1 => b.mul(IntType::U32, x, c.next(200) as i32),
                    2 => b.xor(LogicType::B32, x, y),
                    _ => b.copy(x, Class::B32).into(),
                };
                let v = b.value(v, Class::B32);
                pool.push(v);
            }
            2 => {
                let v = b.constant(Class::B32, c.next(50) as u64);
                pool.push(v);
            }
            3 | 4 => {
                // Three memories of a few bytes each, so that accesses meet; some of which do not say where they belong.
                let (a, v) = (pick(c, pool), pick(c, pool));
                let (memory, offset) = (c.next(3) as u32, c.next(4) as i32 * 2);
                let base = b.and(LogicType::B32, a, 12);
                let at = Addr::at(b.value(base, Class::B32), 64 * memory as i32 + offset);
                let tag = if c.next(3) == 0 {
                    MemTag::ANY
                } else {
                    MemTag::shared(64 * memory)
                };
                let before = b.set_memory(tag);
                match c.next(5) {
                    0 | 1 => {
                        let loaded = b.load(Space::Shared, MemType::B32, at, 1 + c.next(2));
                        pool.extend(loaded);
                    }
                    2 | 3 => b.store(Space::Shared, MemType::B32, at, &[v.into()]),
                    _ => {
                        let (sem, scope) = (FenceSem::AcqRel, Scope::Cta);
                        b.inst(Inst::Fence { sem, scope });
                    }
                }
                b.set_memory(before);
            }
            5 | 6 => {
                let (x, y) = (pick(c, pool), pick(c, pool));
                let p = b.setp(Compare::Lt, CompareType::U32, x, y);
                let n = c.next(3);
                b.open_if(p);
                let mut inner = pool.clone();
                generate(b, c, &mut inner, depth + 1);
                let results: Vec<Operand> = (0..n).map(|_| pick(c, &inner).into()).collect();
                b.open_else(&results);
                let mut inner = pool.clone();
                if c.next(2) == 0 {
                    generate(b, c, &mut inner, depth + 1);
                }
                let results: Vec<Operand> = (0..n).map(|_| pick(c, &inner).into()).collect();
                pool.extend(b.close_if(&results));
            }
            _ => {
                // A counter bounds the loop; the other values are carried at random, permuted perhaps.
                let n = c.next(4);
                let counter = b.constant(Class::B32, 0);
                let mut inits = vec![counter];
                inits.extend((0..n).map(|_| pick(c, pool)));
                let params = b.open_loop(&inits);
                let mut inner = pool.clone();
                inner.extend(&params);
                if c.next(4) == 0 {
                    generate(b, c, &mut inner, depth + 2);
                } else if c.next(2) == 0 {
                    let v = b.add(IntType::U32, params[0], pick(c, &inner));
                    inner.push(b.value(v, Class::B32));
                }
                let p = b.setp(Compare::Lt, CompareType::U32, params[0], c.next(5) as i32);
                let mut handed = vec![params[0]];
                handed.extend((0..c.next(4)).map(|_| pick(c, &inner)));
                let carried = b.open_body(p, &handed);
                let mut inner = pool.clone();
                inner.extend(&carried);
                generate(b, c, &mut inner, depth + 1);
                let mut next = vec![b.add(IntType::U32, carried[0], 1)];
                next.extend((0..n).map(|_| Operand::from(pick(c, &inner))));
                pool.extend(b.close_loop(&next));
            }
        }
    }
    pool.truncate(scope.max(1) + 6);
}

fn generate_whole(bytes: &[u8]) -> Ssa {
    let mut b = Builder::new();
    let mut c = Choices { bytes, at: 0 };
    let mut pool = vec![b.tid()];
    while !c.exhausted() {
        generate(&mut b, &mut c, &mut pool, 0);
    }
    for v in &pool {
        b.store(Space::Shared, MemType::B32, Addr::new(pool[0]), &[(*v).into()]);
    }
    let mut ssa = b.finish();
    infer_uniformity::run(&mut ssa);
    ssa
}

/// The values that are live at every point, by the data-flow equations: sets of blocks until nothing changes, then step by step.
fn live_at_points(
    linear: &linearize::Linear<'_>,
    constants: &SecondaryMap<Value, Option<u64>>,
) -> Vec<BTreeSet<Value>> {
    let points = liveness::points(linear);
    let mut at = vec![BTreeSet::new(); points[linear.blocks.len()] as usize];
    let mut changed = true;
    while changed {
        changed = false;
        for (b, block) in linear.blocks.iter().enumerate().rev() {
            let mut point = points[b + 1] as usize - 1;
            let mut live: BTreeSet<Value> = BTreeSet::new();
            let next = match block.terminator {
                linearize::LTerm::Branch(to) => vec![to],
                linearize::LTerm::Cond { then, otherwise, .. } => vec![then, otherwise],
                linearize::LTerm::Return => vec![],
            };
            for to in next {
                live.extend(&at[points[to] as usize]);
            }
            at[point].clone_from(&live);
            if let linearize::LTerm::Cond { pred, .. } = block.terminator {
                live.insert(pred);
            }
            point -= 1;
            at[point].clone_from(&live);
            for step in block.ops.iter().rev().flat_map(|op| liveness::steps(op).rev()) {
                point -= 2;
                at[point + 1].clone_from(&live);
                step.for_each_def(|v| {
                    at[point + 1].insert(v);
                    live.remove(&v);
                });
                step.for_each_use(constants, |v| {
                    live.insert(v);
                });
                changed |= at[point] != live;
                at[point].clone_from(&live);
            }
        }
    }
    at
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]
    #[test]
    fn ranges_solve_the_data_flow_equations(bytes in proptest::collection::vec(any::<u8>(), 10..300)) {
        let ssa = generate_whole(&bytes);
        let (linear, constants) = linearize::linearize(&ssa);
        let live = liveness::compute(&ssa, &linear, &constants);
        let mut at = vec![BTreeSet::new(); liveness::points(&linear)[linear.blocks.len()] as usize];
        for v in ssa.values.keys() {
            let ranges = &live.ranges[v];
            prop_assert!(ranges.windows(2).all(|two| two[0].1 < two[1].0), "{v}: {ranges:?}");
            for point in ranges.iter().flat_map(|(from, to)| *from..*to) {
                at[point as usize].insert(v);
            }
        }
        prop_assert_eq!(at, live_at_points(&linear, &constants), "{}", ssa);
    }
    #[test]
    fn flat_does_what_ssa_does(bytes in proptest::collection::vec(any::<u8>(), 10..300)) {
        let ssa = generate_whole(&bytes);
        if let Some(expected) = run_ssa(&ssa) {
            let flat = run(&ssa, shell()).unwrap();
            let got = run_flat(&flat);
            prop_assert_eq!(&expected, &got, "{}", print::print(&flat));
            prop_assert_eq!(verify_flat::run(&flat), vec![], "{}", print::print(&flat));
            // The parser reads it back, and prints it again.
            let text = print::print(&flat);
            prop_assert_eq!(print::print(&parse::parse(&text).unwrap()), text);
            // The optimiser changes nothing that can be seen.
            let optimized = optimize::run(ssa, optimize::Options::default(), |_, _| {}).unwrap();
            let flat = run(&optimized, shell()).unwrap();
            prop_assert_eq!(verify_flat::run(&flat), vec![], "{}", print::print(&flat));
            let got = run_flat(&flat);
            prop_assert_eq!(&expected, &got, "{}", print::print(&flat));
            // Nor does any order that array code may be listed in.
            for budget in [0, 5, 12] {
                let mut listed = optimized.clone();
                interleave_elements::run_regardless(&mut listed, budget);
                prop_assert_eq!(verify_ssa::run(&listed), vec![]);
                let flat = run(&listed, shell()).unwrap();
                prop_assert_eq!(verify_flat::run(&flat), vec![], "{}", print::print(&flat));
                prop_assert_eq!(&expected, &run_flat(&flat), "{}", print::print(&flat));
            }
        }
    }
}

fn count(flat: &Flat, name: &str) -> usize {
    let insts = flat.blocks.iter().flat_map(|b| &b.insts);
    insts
        .filter(|i| crate::ptx::inst::ROWS[i.inst.row()].name == name)
        .count()
}

/// `n` accumulators of a wgmma in a loop of `steps`; `swap` exchanges two of them every iteration.
fn accumulate(b: &mut Builder, accs: &[Vec<Value>], wait: i64, swap: bool) -> Vec<Vec<Value>> {
    let n = accs[0].len();
    let zero = b.constant(Class::B32, 0);
    let mut inits = vec![zero];
    inits.extend(accs.iter().flatten());
    let params = b.open_loop(&inits);
    let p = b.setp(Compare::Lt, CompareType::U32, params[0], 4);
    let carried = b.open_body(p, &params);
    let desc = b.cvt_int(CvtType::U64, CvtType::U32, carried[0]);
    let desc = b.value(desc, Class::B64);
    let scale_d = b.constant(Class::Pred, 1);
    let mut now: Vec<Vec<Value>> = carried[1..].chunks(n).map(<[Value]>::to_vec).collect();
    for acc in &mut now {
        *acc = b
            .inst(Inst::WgmmaFence {
                acc: Tied {
                    input: acc.clone(),
                    output: vec![Value::NEW; n],
                },
            })
            .to_vec();
        *acc = b
            .inst(Inst::WgmmaIntSs {
                ty: WgmmaTypes::S8S8,
                sat: SatFinite::No,
                n: 8,
                acc: Tied {
                    input: acc.clone(),
                    output: vec![Value::NEW; n],
                },
                a: desc,
                b: desc,
                scale_d,
            })
            .to_vec();
        b.inst(Inst::WgmmaCommit {});
    }
    let all: Vec<Value> = now.concat();
    let all = b
        .inst(Inst::WgmmaWait {
            n: wait,
            acc: Tied {
                output: vec![Value::NEW; all.len()],
                input: all,
            },
        })
        .to_vec();
    let mut now: Vec<Vec<Value>> = all.chunks(n).map(<[Value]>::to_vec).collect();
    if swap {
        now.swap(0, 1);
    }
    let mut next = vec![b.add(IntType::U32, carried[0], 1)];
    next.extend(now.into_iter().flatten().map(Operand::from));
    let results = b.close_loop(&next);
    results[1..].chunks(n).map(<[Value]>::to_vec).collect()
}

fn store_all(b: &mut Builder, values: &[Value]) {
    let tid = b.tid();
    for v in values {
        b.store(Space::Shared, MemType::B32, Addr::new(tid), &[(*v).into()]);
    }
}

#[test]
fn an_accumulator_keeps_its_registers_through_a_loop() {
    let mut b = Builder::new();
    // One shared zero for all of them: every register is cleared once, nothing is copied.
    let zero = b.constant(Class::B32, 0);
    let accs = accumulate(&mut b, &[vec![zero; 4], vec![zero; 4]], 0, false);
    store_all(&mut b, &accs.concat());
    let mut ssa = b.finish();
    infer_uniformity::run(&mut ssa);
    let flat = run(&ssa, shell()).unwrap();
    let zeros = 8 + 1 + 1; // the accumulators, the counter and scale_d's predicate in the loop
    assert_eq!(
        count(&flat, "Mov") + count(&flat, "MovPred"),
        zeros,
        "{}",
        print::print(&flat)
    );
    assert_eq!(Some(run_flat(&flat)), run_ssa(&ssa));
    // A guard that is known to hold and not evaluated, one block for the loop.
    assert_eq!(count(&flat, "Setp"), 1);
    assert_eq!(flat.blocks.len(), 3, "{}", print::print(&flat));
}

#[test]
fn swapped_accumulators_are_settled_before_they_are_copied() {
    let build = |wait: bool| {
        let mut b = Builder::new();
        let zero = b.constant(Class::B32, 0);
        let one = b.constant(Class::B32, 1);
        let accs = if wait {
            accumulate(&mut b, &[vec![zero; 4], vec![one; 4]], 0, true)
        } else {
            // No wait in the loop at all.
            let params = b.open_loop(&[zero, one, zero]);
            let p = b.setp(Compare::Lt, CompareType::U32, params[2], 4);
            let carried = b.open_body(p, &params);
            let desc = b.cvt_int(CvtType::U64, CvtType::U32, carried[2]);
            let desc = b.value(desc, Class::B64);
            let scale_d = b.constant(Class::Pred, 1);
            let acc = b.inst(Inst::WgmmaIntSs {
                ty: WgmmaTypes::S8S8,
                sat: SatFinite::No,
                n: 8,
                acc: Tied {
                    input: vec![carried[0]],
                    output: vec![Value::NEW],
                },
                a: desc,
                b: desc,
                scale_d,
            });
            let next = b.add(IntType::U32, carried[2], 1);
            let r = b.close_loop(&[carried[1].into(), acc[0].into(), next]);
            vec![r]
        };
        store_all(&mut b, &accs.concat());
        b.finish()
    };
    let ssa = build(true);
    let flat = run(&ssa, shell()).unwrap();
    assert_eq!(Some(run_flat(&flat)), run_ssa(&ssa));
    let ssa = build(false);
    let flat = run(&ssa, shell()).unwrap();
    assert_eq!(Some(run_flat(&flat)), run_ssa(&ssa));
    assert!(count(&flat, "WgmmaWait") > 0, "{}", print::print(&flat));
}

#[test]
fn fragments_of_a_stay_until_the_wait_that_covers_their_reader() {
    // Two fragments take turns: the second is loaded while the first is read asynchronously.
    let mut b = Builder::new();
    let tid = b.tid();
    let acc = b.constant(Class::B32, 0);
    let first = b.load(Space::Shared, MemType::B32, Addr::new(tid), 1)[0];
    let desc = b.constant(Class::B64, 9);
    let scale_d = b.constant(Class::Pred, 1);
    let acc = b.inst(Inst::WgmmaIntRs {
        ty: WgmmaTypes::S8S8,
        sat: SatFinite::No,
        n: 8,
        acc: Tied {
            input: vec![acc],
            output: vec![Value::NEW],
        },
        a: [Src::Reg(first)].into_iter().collect(),
        b: desc,
        scale_d,
    });
    b.inst(Inst::WgmmaCommit {});
    let second = b.load(Space::Shared, MemType::B32, Addr::at(tid, 4), 1)[0];
    let copy = b.copy(second, Class::B32);
    let acc = b.inst(Inst::WgmmaWait {
        n: 0,
        acc: Tied {
            input: acc.to_vec(),
            output: vec![Value::NEW],
        },
    });
    store_all(&mut b, &[acc[0], copy]);
    let ssa = b.finish();
    let (mut linear, constants) = linearize::linearize(&ssa);
    liveness::mark_asynchronous_reads(&mut linear);
    let live = liveness::compute(&ssa, &linear, &constants);
    assert!(!liveness::disjoint(&live.ranges[first], &live.ranges[second]));
}

#[test]
fn small_conditionals_are_guarded_and_waits_are_branched_over() {
    for wait in [false, true] {
        let mut b = Builder::new();
        let tid = b.tid();
        let p = b.elect();
        b.open_if(p);
        b.store(Space::Shared, MemType::B32, Addr::new(tid), &[1.into()]);
        if wait {
            b.inst(Inst::MbarrierWait {
                ask: MbarrierAsk::Try,
                acquire: Acquire::Cta,
                suspend: Suspend::Short,
                addr: Addr::new(tid),
                parity: 0.into(),
            });
        }
        b.close_if(&[]);
        let flat = run(&b.finish(), shell()).unwrap();
        assert_eq!(flat.blocks.len(), if wait { 3 } else { 1 });
        if wait {
            let Terminator::CondBranch {
                uniformity, otherwise, ..
            } = &flat.blocks[0].terminator
            else {
                panic!("a branch over the wait")
            };
            assert_eq!(*uniformity, Uniformity::Divergent { reconverge: *otherwise });
        }
    }
}

#[test]
fn too_many_values_are_no_program() {
    let mut b = Builder::new();
    let tid = b.tid();
    let kept: Vec<Value> = (0..20)
        .map(|i| b.load(Space::Shared, MemType::B32, Addr::at(tid, 4 * i), 1)[0])
        .collect();
    store_all(&mut b, &kept);
    let ssa = b.finish();
    // And the thread's number.
    for (most, fits) in [(21, true), (20, false), (5, false)] {
        let (flat, peak) = run_measured(&ssa, shell(), most).unwrap();
        assert_eq!((flat.is_some(), peak.words), (fits, 21));
    }
}

#[test]
fn ten_thousand_ops_are_flattened_at_once() {
    let time = |n: usize| {
        let mut b = Builder::new();
        let mut x = b.tid();
        for i in 0..n {
            let y = b.mul(IntType::U32, x, 3 + i as i32);
            x = b.value(y, Class::B32);
            b.store(Space::Shared, MemType::B32, Addr::new(x), &[x.into()]);
            if i % 10 == 0 {
                let p = b.setp(Compare::Lt, CompareType::U32, x, 77);
                b.open_if(p);
                b.inst(Inst::MbarrierWait {
                    ask: MbarrierAsk::Try,
                    acquire: Acquire::Cta,
                    suspend: Suspend::Short,
                    addr: Addr::new(x),
                    parity: 0.into(),
                });
                b.close_if(&[]);
            }
        }
        let mut ssa = b.finish();
        infer_uniformity::run(&mut ssa);
        // The best of several: other work on the machine only ever adds.
        let once = || {
            let start = std::time::Instant::now();
            run(&ssa, shell()).unwrap();
            start.elapsed()
        };
        (0..5).map(|_| once()).min().unwrap_or_default()
    };
    let (small, large) = (time(1000), time(10_000));
    println!("1,000: {small:?}, 10,000: {large:?}");
    // Milliseconds; a step that compared all pairs of ops would take minutes.
    assert!(large < std::time::Duration::from_secs(2), "{small:?} → {large:?}");
}
