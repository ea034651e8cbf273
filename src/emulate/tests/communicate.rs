//! Clusters, and devices, that tell each other through global memory: right kernels, and broken twins of them.
use super::build::*;
use crate::emulate::{Check, HostBuffer, Options, Position, Watch, buffer_address, run_on};
use crate::error::{Error, Result};
use crate::ptx::flat::{BlockId, Reg, Terminator};
use crate::ptx::inst::Inst;
use crate::ptx::modifier::*;
use crate::ptx::operand::{Addr, Src};
use smallvec::smallvec;
use std::sync::Mutex;

/// Where the semaphores are in buffer 1.
const READY: i32 = 0;
const FREE: i32 = 128;

fn red(k: &mut Kernel, base: Reg, offset: i32, sem: AtomSem, scope: Scope) {
    let first = k.first_thread();
    k.when(first, false, |k| {
        k.push(Inst::Red {
            sem,
            scope,
            space: Space::Global,
            op: RedOp::Add,
            ty: AtomType::U32,
            addr: Addr::at(base, offset),
            a: imm(1),
        });
    });
}

fn signal(k: &mut Kernel, base: Reg, offset: i32) {
    k.sync();
    red(k, base, offset, AtomSem::Release, Scope::Gpu);
}

fn await_(k: &mut Kernel, base: Reg, offset: i32, value: u32, takes: bool, scope: Scope) {
    let first = k.first_thread();
    k.when(first, false, |k| {
        let (addr, value) = (Addr::at(base, offset), imm(value));
        k.push(match takes {
            true => Inst::WaitAndSubtract { scope, addr, value },
            false => Inst::WaitAtLeast { scope, addr, value },
        });
    });
    k.sync();
}

fn wait(k: &mut Kernel, base: Reg, offset: i32, value: u32) {
    await_(k, base, offset, value, true, Scope::Gpu);
}

/// CTA 0, or device 0, executes one, the others the other.
fn either(k: &mut Kernel, is_first: Reg, first: impl FnOnce(&mut Kernel), others: impl FnOnce(&mut Kernel)) {
    let n = k.flat.blocks.len() as u32;
    k.branch(is_first, false, n, n + 1, None);
    first(k);
    k.block(Terminator::Branch { to: BlockId(n + 2) });
    others(k);
    k.jump();
}

fn is_cta_0(k: &mut Kernel) -> Reg {
    let cta = k.special(SpecialReg32::CtaidX);
    k.compare(Compare::Eq, cta.into(), imm(0))
}

/// Thread t's word of a base.
fn own(k: &mut Kernel, base: Reg) -> Reg {
    let tid = k.tid();
    k.element(base, tid, 4)
}

fn buffers() -> [Vec<u8>; 3] {
    [vec![0; 1024], vec![0; 256], vec![0; 1024]]
}

/// A right kernel never alarms; a broken one, under every schedule, with these words; both lines are named.
#[track_caller]
fn right(k: &Kernel) {
    for options in every_order() {
        k.try_run(&mut buffers(), &options)
            .unwrap_or_else(|e| panic!("{:?}: {e}", options.agents));
    }
}

#[track_caller]
fn broken(k: &Kernel, shows: &[&str]) -> Error {
    let mut last = None;
    for options in every_order() {
        let Err(error) = k.try_run(&mut buffers(), &options) else {
            panic!("{:?}: no finding", options.agents)
        };
        let text = error.to_string();
        for words in shows {
            assert!(text.contains(words), "{:?}: {words:?} is not in {text}", options.agents);
        }
        assert!(error.loc.is_some() && text.contains("(at op"), "{text}");
        last = Some(error);
    }
    last.expect("several orders")
}

const NOTHING: &str = "and nothing orders the two";

/// CTA 1 stores what CTA 0 loads.
fn message(signals: impl Fn(&mut Kernel, Reg), waits: impl Fn(&mut Kernel, Reg)) -> Kernel {
    let mut k = Kernel::new(64).grid([2, 1, 1], [1; 3]);
    let (data, sems, out) = (k.pointer(0), k.pointer(1), k.pointer(2));
    let (at, to, tid) = (own(&mut k, data), own(&mut k, out), k.tid());
    let first = is_cta_0(&mut k);
    // Something else that communicates, so that a kernel without signals is checked.
    red(&mut k, sems, 64, AtomSem::Relaxed, Scope::Gpu);
    either(
        &mut k,
        first,
        |k| {
            waits(k, sems);
            let v = k.load(at);
            k.store(to, v);
        },
        |k| {
            let v = k.add(tid.into(), imm(1));
            k.store(at, v);
            signals(k, sems);
        },
    );
    k
}

fn nothing(_: &mut Kernel, _: Reg) {}
fn signals_ready(k: &mut Kernel, sems: Reg) {
    signal(k, sems, READY);
}
fn waits_ready(k: &mut Kernel, sems: Reg) {
    wait(k, sems, READY, 1);
}

#[test]
fn a_signal_and_a_wait_order_a_store_and_a_load() {
    let k = message(signals_ready, waits_ready);
    right(&k);
    let mut all = buffers();
    k.run(&mut all);
    assert_eq!(words_of(&all[2])[..64], (1..65).collect::<Vec<u32>>());
    let error = broken(&message(signals_ready, nothing), &["global memory that warp", NOTHING]);
    assert!(error.to_string().contains("of buffer 0 on"), "{error}");
    broken(&message(nothing, nothing), &[NOTHING]);
    // The leading thread of warp 0 signals for warp 1, which may be late.
    let early = |k: &mut Kernel, sems: Reg| red(k, sems, READY, AtomSem::Release, Scope::Gpu);
    broken(
        &message(early, waits_ready),
        &["global memory that warp 1 of CTA (", NOTHING],
    );
}

#[test]
fn what_a_signal_or_a_wait_lacks_shows() {
    let red_of = |sem, scope| {
        move |k: &mut Kernel, sems: Reg| {
            k.sync();
            red(k, sems, READY, sem, scope);
        }
    };
    let wait_in = |scope| move |k: &mut Kernel, sems: Reg| await_(k, sems, READY, 1, true, scope);
    broken(&message(red_of(AtomSem::Relaxed, Scope::Gpu), waits_ready), &[NOTHING]);
    broken(&message(red_of(AtomSem::Release, Scope::Cta), waits_ready), &[NOTHING]);
    broken(&message(signals_ready, wait_in(Scope::Cta)), &[NOTHING]);
    right(&message(red_of(AtomSem::Release, Scope::Sys), wait_in(Scope::Sys)));
    right(&message(red_of(AtomSem::AcqRel, Scope::Sys), waits_ready));
    // A fence, then a relaxed atomic; not the other way round.
    let fenced = |first: bool, scope: Scope| {
        move |k: &mut Kernel, sems: Reg| {
            k.sync();
            let fence = Inst::Fence {
                sem: FenceSem::AcqRel,
                scope,
            };
            if first {
                k.push(fence.clone());
            }
            red(k, sems, READY, AtomSem::Relaxed, Scope::Gpu);
            if !first {
                k.push(fence);
            }
        }
    };
    right(&message(fenced(true, Scope::Gpu), waits_ready));
    broken(&message(fenced(true, Scope::Cta), waits_ready), &[NOTHING]);
    broken(&message(fenced(false, Scope::Gpu), waits_ready), &[NOTHING]);
}

/// Polls until the word is not zero, in one thread, then `behind`.
fn polls(sem: LoadSem, behind: Option<Scope>) -> impl Fn(&mut Kernel, Reg) {
    move |k, sems| {
        let next = k.jump().0;
        let v = k.r();
        k.push(Inst::Ld {
            sem,
            space: Space::Global,
            ty: MemType::B32,
            d: smallvec![v],
            addr: Addr::at(sems, READY),
        });
        let not_yet = k.compare(Compare::Eq, v.into(), imm(0));
        k.branch(not_yet, false, next, next + 1, None);
        if let Some(scope) = behind {
            k.push(Inst::Fence {
                sem: FenceSem::AcqRel,
                scope,
            });
        }
    }
}

/// As `message`, CTA 0 in several blocks of code.
fn polled_message(signals: impl Fn(&mut Kernel, Reg), waits: impl Fn(&mut Kernel, Reg)) -> Kernel {
    let mut k = Kernel::new(64).grid([2, 1, 1], [1; 3]);
    let (data, sems, out) = (k.pointer(0), k.pointer(1), k.pointer(2));
    let (at, to, tid) = (own(&mut k, data), own(&mut k, out), k.tid());
    let first = is_cta_0(&mut k);
    // CTA 1: block 1; CTA 0: blocks 2, 3 (the poll) and 4; all: block 5.
    k.branch(first, false, 2, 1, None);
    let v = k.add(tid.into(), imm(1));
    k.store(at, v);
    signals(&mut k, sems);
    k.block(Terminator::Branch { to: BlockId(5) });
    waits(&mut k, sems);
    let v = k.load(at);
    k.store(to, v);
    k.jump();
    k
}

#[test]
fn polls_acquire_by_themselves_or_with_a_fence() {
    let flag = |sem| {
        move |k: &mut Kernel, sems: Reg| {
            k.sync();
            let (first, one) = (k.first_thread(), k.mov(imm(1)));
            k.when(first, false, |k| {
                k.push(Inst::St {
                    sem,
                    space: Space::Global,
                    ty: MemType::B32,
                    addr: Addr::at(sems, READY),
                    a: smallvec![one.into()],
                });
            });
        }
    };
    right(&polled_message(signals_ready, polls(LoadSem::AcquireGpu, None)));
    right(&polled_message(
        signals_ready,
        polls(LoadSem::RelaxedSys, Some(Scope::Gpu)),
    ));
    right(&polled_message(
        flag(StoreSem::ReleaseGpu),
        polls(LoadSem::AcquireGpu, None),
    ));
    right(&polled_message(
        flag(StoreSem::ReleaseSys),
        polls(LoadSem::Volatile, Some(Scope::Sys)),
    ));
    broken(
        &polled_message(signals_ready, polls(LoadSem::RelaxedGpu, None)),
        &[NOTHING],
    );
    broken(
        &polled_message(signals_ready, polls(LoadSem::RelaxedGpu, Some(Scope::Cta))),
        &[NOTHING],
    );
    broken(
        &polled_message(flag(StoreSem::RelaxedGpu), polls(LoadSem::AcquireGpu, None)),
        &[NOTHING],
    );
}

/// CTAs 1 to 3 store a line each, CTA 0 loads them all when it has waited for `count`; `extra` signals of CTA 1.
fn gather(count: u32, takes: bool, extra: u32) -> Kernel {
    let mut k = Kernel::new(32).grid([4, 1, 1], [1; 3]);
    let (data, sems, out) = (k.pointer(0), k.pointer(1), k.pointer(2));
    let (tid, cta) = (k.tid(), k.special(SpecialReg32::CtaidX));
    let line = k.element(data, cta, 128);
    let (at, to) = (own(&mut k, line), own(&mut k, out));
    let place = k.mul(cta.into(), imm(32));
    let place = k.add(place.into(), tid.into());
    let is_1 = k.compare(Compare::Eq, place.into(), imm(32));
    let first = is_cta_0(&mut k);
    either(
        &mut k,
        first,
        |k| {
            await_(k, sems, READY, count, takes, Scope::Gpu);
            for i in 1..4 {
                let d = k.r();
                k.push(Inst::Ld {
                    sem: LoadSem::Weak,
                    space: Space::Global,
                    ty: MemType::B32,
                    d: smallvec![d],
                    addr: Addr::at(at, 128 * i),
                });
                k.store(to, d);
            }
        },
        |k| {
            let v = k.add(tid.into(), imm(1));
            k.store(at, v);
            signal(k, sems, READY);
            for _ in 0..extra {
                k.when(is_1, false, |k| {
                    k.push(Inst::Red {
                        sem: AtomSem::Release,
                        scope: Scope::Gpu,
                        space: Space::Global,
                        op: RedOp::Add,
                        ty: AtomType::U32,
                        addr: Addr::at(sems, READY),
                        a: imm(1),
                    });
                });
            }
        },
    );
    k
}

/// Also where all signals have come before anybody looks.
#[test]
fn a_wait_for_too_few_shows_under_every_schedule() {
    for takes in [false, true] {
        right(&gather(3, takes, 0));
        broken(&gather(2, takes, 0), &[NOTHING]);
        broken(&gather(1, takes, 0), &[NOTHING]);
    }
}

/// With it, another's signal may be missing when the wait ends. If it comes later than the wait ends, nobody knows.
#[test]
fn an_extra_signal_shows() {
    for takes in [false, true] {
        let errors = |k: &Kernel| -> Vec<String> {
            let runs = every_order();
            let errors = runs
                .iter()
                .filter_map(|options| k.try_run(&mut buffers(), options).err());
            errors.map(|e| e.to_string()).collect()
        };
        let told = errors(&gather(3, takes, 1));
        assert!(told.len() > every_order().len() / 2, "{}", told.len());
        assert!(told.iter().all(|text| text.contains(NOTHING)), "{told:?}");
        right(&gather(4, takes, 1));
    }
}

#[test]
fn a_missing_signal_is_a_deadlock_with_its_picture() {
    let k = gather(4, true, 0);
    for options in every_order() {
        let error = k
            .try_run(&mut buffers(), &options)
            .expect_err("nobody signals four times");
        assert!(error.what.contains("deadlock"), "{error}");
        let picture = error.got.expect("a picture");
        assert!(
            picture.contains("wait for the word at byte 0 of buffer 1, which is 3, to be at least 4; last signalled by warp 0 of CTA ("),
            "{picture}"
        );
    }
    let k = message(nothing, waits_ready);
    let error = k.try_run(&mut buffers(), &options()).expect_err("nobody signals");
    let picture = error.got.expect("a picture");
    assert!(
        picture.contains("which is 0, to be at least 1; nobody has signalled it"),
        "{picture}"
    );
}

/// Rounds of a ring of one slot: CTA 1 fills it, CTA 0 empties it.
fn ring(releases: bool, waits_free: bool, first_free: bool) -> Kernel {
    let mut k = Kernel::new(64).grid([2, 1, 1], [1; 3]);
    let (data, sems, out) = (k.pointer(0), k.pointer(1), k.pointer(2));
    let (at, to, tid) = (own(&mut k, data), own(&mut k, out), k.tid());
    let first = is_cta_0(&mut k);
    either(
        &mut k,
        first,
        |k| {
            for _ in 0..3 {
                wait(k, sems, READY, 1);
                if first_free {
                    signal(k, sems, FREE);
                }
                let v = k.load(at);
                k.store(to, v);
                if releases {
                    signal(k, sems, FREE);
                }
            }
        },
        |k| {
            for round in 0..3 {
                if round > 0 && waits_free {
                    wait(k, sems, FREE, 1);
                }
                let v = k.add(tid.into(), imm(100 * round));
                k.store(at, v);
                signal(k, sems, READY);
            }
        },
    );
    k
}

#[test]
fn a_slot_is_refilled_when_its_reader_says_so() {
    right(&ring(true, true, false));
    broken(&ring(true, false, false), &[NOTHING]);
    // The signal comes before the load.
    broken(&ring(false, true, true), &["of CTA (", NOTHING]);
}

fn copy(k: &mut Kernel, global: Reg, smem: Reg) {
    k.push(Inst::BulkStore {
        dst: Addr::new(global),
        src: Addr::new(smem),
        bytes: imm(256),
    });
    k.push(Inst::BulkCommit {});
}

fn bulk_wait(k: &mut Kernel, what: BulkWait) {
    k.push(Inst::BulkWait { what, n: 0 });
}

/// CTA 1 stores 256 bytes by a bulk copy; `full` says for what it waits before it signals.
fn bulk_message(what: Option<BulkWait>, later: bool) -> Kernel {
    let mut k = Kernel::new(64).smem(512).grid([2, 1, 1], [1; 3]);
    let (data, sems, out) = (k.pointer(0), k.pointer(1), k.pointer(2));
    let (at, to, tid, smem) = (own(&mut k, data), own(&mut k, out), k.tid(), k.smem_base());
    let mine = k.r();
    k.push(Inst::MadLo {
        ty: IntType::U32,
        d: mine,
        a: tid.into(),
        b: imm(4),
        c: smem.into(),
    });
    let is_first = k.first_thread();
    let first = is_cta_0(&mut k);
    either(
        &mut k,
        first,
        |k| {
            wait(k, sems, READY, 1);
            let v = k.load(at);
            k.store(to, v);
        },
        |k| {
            let v = k.add(tid.into(), imm(1));
            k.store_shared(mine, 0, v.into());
            k.fence_async();
            k.sync();
            k.when(is_first, false, |k| {
                copy(k, data, smem);
                if let Some(what) = what {
                    bulk_wait(k, what);
                }
            });
            signal(k, sems, READY);
            k.when(is_first, false, |k| {
                if later {
                    bulk_wait(k, BulkWait::Complete);
                }
            });
        },
    );
    k
}

#[test]
fn a_bulk_store_is_told_of_when_it_is_over() {
    right(&bulk_message(Some(BulkWait::Complete), false));
    for (what, later) in [
        (None, true),
        (Some(BulkWait::Read), true),
        (Some(BulkWait::Read), false),
    ] {
        broken(&bulk_message(what, later), &[NOTHING]);
    }
    // Under the earliest schedule everything is there, and nobody may know.
    let early = options().with_agents(crate::emulate::AgentOrder::Earliest);
    let text = bulk_message(Some(BulkWait::Read), true)
        .try_run(&mut buffers(), &early)
        .expect_err("not waited for before the signal")
        .to_string();
    assert!(
        text.contains("a load of global memory that a bulk store of warp 0 of CTA (1, 0, 0) wr"),
        "{text}"
    );
    let error = bulk_message(Some(BulkWait::Read), false)
        .try_run(&mut buffers(), &early)
        .expect_err("not waited for in full");
    let text = error.to_string();
    assert!(
        text.contains(
            "a load of global memory that a bulk store of warp 0 of CTA (1, 0, 0) writes, which has not waited for it"
        ),
        "{text}"
    );
    assert!(text.contains("a wait for the whole of that store"), "{text}");
}

/// Two bulk stores in groups of their own; a wait for all but one lets the first be told of.
#[test]
fn groups_of_bulk_stores_are_waited_for_one_by_one() {
    let kernel = |which: i32, pending: i64| {
        let mut k = Kernel::new(64).smem(512).grid([2, 1, 1], [1; 3]);
        let (data, sems, out) = (k.pointer(0), k.pointer(1), k.pointer(2));
        let (at, to, tid, smem) = (own(&mut k, data), own(&mut k, out), k.tid(), k.smem_base());
        let mine = k.r();
        k.push(Inst::MadLo {
            ty: IntType::U32,
            d: mine,
            a: tid.into(),
            b: imm(4),
            c: smem.into(),
        });
        let is_first = k.first_thread();
        let first = is_cta_0(&mut k);
        either(
            &mut k,
            first,
            |k| {
                wait(k, sems, READY, 1);
                let d = k.r();
                k.push(Inst::Ld {
                    sem: LoadSem::Weak,
                    space: Space::Global,
                    ty: MemType::B32,
                    d: smallvec![d],
                    addr: Addr::at(at, 256 * which),
                });
                k.store(to, d);
            },
            |k| {
                k.store_shared(mine, 0, tid.into());
                k.fence_async();
                k.sync();
                k.when(is_first, false, |k| {
                    for i in 0..2 {
                        k.push(Inst::BulkStore {
                            dst: Addr::at(data, 256 * i),
                            src: Addr::new(smem),
                            bytes: imm(256),
                        });
                        k.push(Inst::BulkCommit {});
                    }
                    k.push(Inst::BulkWait {
                        what: BulkWait::Complete,
                        n: pending,
                    });
                });
                signal(k, sems, READY);
                k.when(is_first, false, |k| bulk_wait(k, BulkWait::Complete));
            },
        );
        k
    };
    for (which, pending) in [(0, 0), (1, 0), (0, 1)] {
        right(&kernel(which, pending));
    }
    broken(&kernel(1, 1), &[NOTHING]);
}

/// CTA 0 copies 256 bytes in; CTA 1 overwrites them when it hears that they are free.
fn bulk_source(waits_first: bool) -> Kernel {
    let mut k = Kernel::new(64).smem(512).grid([2, 1, 1], [1; 3]);
    let (data, sems) = (k.pointer(0), k.pointer(1));
    let (at, tid, smem) = (own(&mut k, data), k.tid(), k.smem_base());
    let is_first = k.first_thread();
    let first = is_cta_0(&mut k);
    either(
        &mut k,
        first,
        |k| {
            k.when(is_first, false, |k| {
                k.init_barrier(smem, 256, 1);
                k.push(Inst::FenceMbarrierInit {});
                k.expect(smem, 256, 256);
                k.push(Inst::BulkLoad {
                    dst: Addr::new(smem),
                    src: Addr::new(data),
                    bytes: imm(256),
                    bar: Addr::at(smem, 256),
                });
            });
            k.sync();
            if waits_first {
                k.wait(smem, 256, imm(0));
            }
            signal(k, sems, FREE);
            if !waits_first {
                k.wait(smem, 256, imm(0));
            }
        },
        |k| {
            wait(k, sems, FREE, 1);
            let v = k.add(tid.into(), imm(1));
            k.store(at, v);
        },
    );
    k
}

#[test]
fn a_bulk_load_has_read_when_its_barrier_has_been_waited_for() {
    right(&bulk_source(true));
    broken(&bulk_source(false), &[NOTHING]);
    let early = options().with_agents(crate::emulate::AgentOrder::Earliest);
    let error = bulk_source(false)
        .try_run(&mut buffers(), &early)
        .expect_err("not waited for");
    let text = error.to_string();
    assert!(
        text.contains("a store to global memory that a bulk load into CTA (0, 0, 0) reads"),
        "{text}"
    );
}

/// Both CTAs store to one place, and nobody tells the other.
#[test]
fn stores_of_one_value_and_atomics_do_not_race() {
    let kernel = |differ: u32, atomic: bool, scope: Scope| {
        let mut k = Kernel::new(32).grid([2, 1, 1], [1; 3]);
        let (data, sems, cta) = (k.pointer(0), k.pointer(1), k.special(SpecialReg32::CtaidX));
        let at = own(&mut k, data);
        red(&mut k, sems, 64, AtomSem::Relaxed, Scope::Gpu);
        let v = k.mul(cta.into(), imm(differ));
        let v = k.add(v.into(), imm(5));
        if atomic {
            k.push(Inst::Red {
                sem: AtomSem::Relaxed,
                scope,
                space: Space::Global,
                op: RedOp::Add,
                ty: AtomType::U32,
                addr: Addr::new(at),
                a: v.into(),
            });
        } else {
            k.store(at, v);
        }
        k
    };
    right(&kernel(0, false, Scope::Gpu));
    right(&kernel(1, true, Scope::Gpu));
    broken(
        &kernel(1, false, Scope::Gpu),
        &["a store to global memory that warp 0 of CTA (", NOTHING],
    );
    broken(&kernel(1, true, Scope::Cta), &["an atomic on global memory", NOTHING]);
}

/// CTA 0 executes one store instruction with these offsets and values, CTA 1 stores 0 at the beginning.
fn one_store_often(stores: &[(i32, u32)]) -> Kernel {
    let mut k = Kernel::new(32).grid([2, 1, 1], [1; 3]);
    let (data, sems) = (k.pointer(0), k.pointer(1));
    let (first, thread) = (is_cta_0(&mut k), k.first_thread());
    red(&mut k, sems, 64, AtomSem::Relaxed, Scope::Gpu);
    let store = |k: &mut Kernel, offset: i32, value: u32| {
        k.when(thread, false, |k| {
            k.push(Inst::St {
                sem: StoreSem::Weak,
                space: Space::Global,
                ty: MemType::B32,
                addr: Addr::at(data, offset),
                a: smallvec![imm(value)],
            });
        });
    };
    either(
        &mut k,
        first,
        |k| {
            let mut loc = None;
            for (offset, value) in stores {
                store(k, *offset, *value);
                let now = k.loc();
                let last = k.flat.blocks.last_mut().and_then(|block| block.insts.last_mut());
                last.expect("the store").loc = *loc.get_or_insert(now);
            }
        },
        |k| store(k, 0, 0),
    );
    k
}

#[test]
fn what_an_instruction_has_stored_hides_nothing_that_it_stores_later() {
    right(&one_store_often(&[(0, 0), (4, 5), (0, 0)]));
    for stores in [
        &[(0, 1)][..],
        &[(0, 0), (0, 1)],
        &[(0, 0), (4, 5), (0, 1)],
        &[(4, 5), (0, 0), (4, 5), (0, 1)],
        &[(0, 0), (4, 5), (8, 6), (0, 0), (4, 5), (0, 1)],
    ] {
        broken(
            &one_store_often(stores),
            &["a store to global memory that warp 0 of CTA (", NOTHING],
        );
    }
}

/// CTA 0 adds to two 16-bit floats of each word, CTA 1 does so, too, or stores the word.
#[test]
fn vectors_are_atomic_to_each_other_only() {
    let kernel = |stores: bool, scope: Scope| {
        let mut k = Kernel::new(32).grid([2, 1, 1], [1; 3]);
        let data = k.pointer(0);
        let at = own(&mut k, data);
        let one = k.h();
        k.push(Inst::Mov {
            ty: BitType::B16,
            d: one,
            a: imm(0x3f80),
        });
        let add = |k: &mut Kernel| {
            k.push(Inst::RedVector {
                sem: AtomSem::Relaxed,
                scope,
                op: HalfRedOp::Add,
                ty: HalfType::BF16,
                addr: Addr::new(at),
                a: smallvec![one.into(), one.into()],
            });
        };
        let first = is_cta_0(&mut k);
        either(&mut k, first, add, |k| {
            if stores {
                let tid = k.tid();
                k.store(at, tid);
            } else {
                add(k);
            }
        });
        k
    };
    right(&kernel(false, Scope::Gpu));
    broken(&kernel(true, Scope::Gpu), &[NOTHING]);
    broken(&kernel(false, Scope::Cta), &["an atomic on global memory", NOTHING]);
}

/// Larger grids than the machine holds: a cluster is not the one whose place it takes.
#[test]
fn a_cluster_that_takes_a_place_is_another() {
    let kernel = |orders: bool| {
        let mut k = Kernel::new(32).grid([3, 1, 1], [1; 3]);
        let (data, sems, cta) = (k.pointer(0), k.pointer(1), k.special(SpecialReg32::CtaidX));
        let at = own(&mut k, data);
        if orders {
            // Turn by turn.
            let first = k.first_thread();
            k.when(first, false, |k| {
                k.push(Inst::WaitAtLeast {
                    scope: Scope::Gpu,
                    addr: Addr::new(sems),
                    value: cta.into(),
                });
            });
            k.sync();
        }
        let v = k.load(at);
        let v = k.add(v.into(), imm(1));
        k.store(at, v);
        signal(&mut k, sems, READY);
        k
    };
    for mut options in every_order() {
        (options.sms, options.occupancy) = (1, Some(1));
        kernel(true)
            .try_run(&mut buffers(), &options)
            .unwrap_or_else(|e| panic!("{e}"));
        let error = kernel(false)
            .try_run(&mut buffers(), &options)
            .expect_err("not ordered");
        assert!(error.to_string().contains("of CTA (0, 0, 0)"), "{error}");
    }
    right(&kernel(true));
}

/// What is told where a run goes on.
#[derive(Default)]
struct Findings(Mutex<Vec<Error>>);

impl Watch for Findings {
    fn poll(&self, _: Position) -> Result<()> {
        Ok(())
    }
    fn finding(&self, error: Error) {
        self.0.lock().unwrap().push(error);
    }
}

/// Runs on devices, buffers of which are alike.
fn run_devices(k: &Kernel, devices: &mut [Vec<Vec<u8>>], options: &Options, watch: &dyn Watch) -> Result<()> {
    let program = k.decode()?;
    let lent: Vec<_> = devices.iter_mut().map(|buffers| super::build::lent(buffers)).collect();
    let lent: Vec<&[HostBuffer]> = lent.iter().map(Vec::as_slice).collect();
    // SAFETY: the buffers are ours, exclusively, and outlive the call.
    unsafe { run_on(&program, &lent, options, watch) }.map(|_| ())
}

#[test]
fn semaphores_that_are_left_with_a_count_are_told() {
    let tells = |k: &Kernel| {
        let told = Findings::default();
        let mut options = options();
        options.check = Check::Warn;
        run_devices(k, &mut [buffers().to_vec()], &options, &told).expect("runs");
        told.0.into_inner().unwrap()
    };
    let twice = |k: &mut Kernel, sems: Reg| {
        signals_ready(k, sems);
        red(k, sems, READY, AtomSem::Release, Scope::Gpu);
    };
    assert!(tells(&message(signals_ready, waits_ready)).is_empty());
    let told = tells(&message(twice, waits_ready));
    let left = told
        .iter()
        .find(|e| e.what.contains("a semaphore is 1 at the end"))
        .expect("told");
    let expected = left.expected.as_deref().unwrap_or("");
    assert!(
        expected.contains("the last signal was by warp 0 of CTA (1, 0, 0)")
            && expected.contains("the last wait by warp 0 of CTA (0, 0, 0)"),
        "{left}"
    );
    // Counts that are looked at stay.
    let stays = |k: &mut Kernel, sems: Reg| await_(k, sems, READY, 1, false, Scope::Gpu);
    assert!(tells(&message(signals_ready, stays)).is_empty());
}

/// What devices do with each other's memory. Buffer 3 holds the device's position, buffer 1 semaphores; addresses are known.
struct Peers {
    k: Kernel,
    own: [Reg; 3],
    peer: [Reg; 3],
}

impl Peers {
    fn new() -> Peers {
        let mut k = Kernel::new(32);
        let position = k.pointer(3);
        let position = k.load(position);
        let is_first = k.compare(Compare::Eq, position.into(), imm(0));
        let own = [0, 1, 2].map(|i| k.pointer(i));
        let peer = [0, 1, 2].map(|i| {
            let d = k.rd();
            let of = |device: u32| Src::Imm(buffer_address(4 * device + i));
            k.push(Inst::Selp {
                ty: BitType::B64,
                d,
                a: of(1),
                b: of(0),
                p: is_first,
            });
            d
        });
        Peers { k, own, peer }
    }

    fn run(&self, options: &Options) -> Result<Vec<Vec<Vec<u8>>>> {
        let of = |device: u32| {
            let mut all = buffers().to_vec();
            all.push(bytes_of(&[device]));
            all
        };
        let mut devices = vec![of(0), of(1)];
        run_devices(&self.k, &mut devices, options, &Findings::default())?;
        Ok(devices)
    }

    #[track_caller]
    fn right(&self) {
        for options in every_order() {
            self.run(&options)
                .unwrap_or_else(|e| panic!("{:?}: {e}", options.agents));
        }
    }

    #[track_caller]
    fn broken(&self, shows: &[&str]) {
        for options in every_order() {
            let error = self.run(&options).expect_err("broken");
            let text = error.to_string();
            let shown = shows.iter().any(|words| text.contains(words));
            assert!(shown, "{:?}: none of {shows:?} is in {text}", options.agents);
            assert!(text.contains("of device "), "{text}");
        }
    }
}

fn signal_in(k: &mut Kernel, base: Reg, offset: i32, scope: Scope) {
    k.sync();
    red(k, base, offset, AtomSem::Release, scope);
}

/// Each device stores into the other's buffer 0, which then loads it.
fn swap(signal_scope: Scope, wait_scope: Scope, signals: u32) -> Peers {
    let mut p = Peers::new();
    let k = &mut p.k;
    let tid = k.tid();
    let (to, from, out) = (own(k, p.peer[0]), own(k, p.own[0]), own(k, p.own[2]));
    k.store(to, tid);
    for _ in 0..signals {
        signal_in(k, p.peer[1], READY, signal_scope);
    }
    await_(k, p.own[1], READY, 1, true, wait_scope);
    let v = k.load(from);
    k.store(out, v);
    p
}

#[test]
fn devices_tell_each_other_in_the_systems_scope() {
    let p = swap(Scope::Sys, Scope::Sys, 1);
    p.right();
    let devices = p.run(&options()).expect("runs");
    for device in &devices {
        assert_eq!(words_of(&device[2])[..32], (0..32).collect::<Vec<u32>>());
    }
    swap(Scope::Gpu, Scope::Sys, 1).broken(&[NOTHING]);
    swap(Scope::Sys, Scope::Gpu, 1).broken(&[NOTHING]);
}

#[test]
fn a_signal_that_its_owner_does_not_wait_for_comes_too_late() {
    swap(Scope::Sys, Scope::Sys, 2).broken(&[
        "whose kernel has ended",
        "and nothing orders that after an atomic on its memory",
    ]);
}

/// Each device loads, or stores to, the other's buffer 0; and tells it, or not.
fn visit(stores: bool, tells: bool, bulk: bool) -> Peers {
    let mut p = Peers::new();
    let k = &mut p.k;
    if bulk {
        k.flat.launch.smem_bytes = 512;
    }
    let tid = k.tid();
    let theirs = own(k, p.peer[0]);
    if bulk {
        let smem = k.smem_base();
        let mine = k.r();
        k.push(Inst::MadLo {
            ty: IntType::U32,
            d: mine,
            a: tid.into(),
            b: imm(4),
            c: smem.into(),
        });
        k.store_shared(mine, 0, tid.into());
        k.store_shared(mine, 128, tid.into());
        k.fence_async();
        k.sync();
        let first = k.first_thread();
        let peer = p.peer[0];
        k.when(first, false, |k| {
            copy(k, peer, smem);
            bulk_wait(k, if tells { BulkWait::Complete } else { BulkWait::Read });
        });
    } else if stores {
        k.store(theirs, tid);
    } else {
        let out = own(k, p.own[2]);
        let v = k.load(theirs);
        k.store(out, v);
    }
    if tells || bulk {
        signal_in(k, p.peer[1], READY, Scope::Sys);
        await_(k, p.own[1], READY, 1, true, Scope::Sys);
    } else {
        // Of the device itself.
        signal(k, p.own[1], READY);
        wait(k, p.own[1], READY, 1);
    }
    p
}

#[test]
fn a_device_ends_when_others_are_done_with_its_memory() {
    for stores in [false, true] {
        visit(stores, true, false).right();
        let what = if stores {
            "a store to its memory"
        } else {
            "a load of its memory"
        };
        visit(stores, false, false).broken(&["whose kernel has ended", what]);
    }
    visit(true, true, true).right();
    visit(true, false, true).broken(&[
        "whose kernel has ended",
        "a store to its memory by warp 0 of CTA (0, 0, 0) of device",
    ]);
}

/// A signal to itself, where the peer waits for one.
#[test]
fn a_signal_to_the_wrong_device_shows() {
    let mut p = Peers::new();
    let k = &mut p.k;
    let tid = k.tid();
    let (to, from, out) = (own(k, p.peer[0]), own(k, p.own[0]), own(k, p.own[2]));
    k.store(to, tid);
    signal_in(k, p.own[1], READY, Scope::Sys);
    await_(k, p.own[1], READY, 1, true, Scope::Sys);
    let v = k.load(from);
    k.store(out, v);
    p.broken(&[NOTHING]);
}
