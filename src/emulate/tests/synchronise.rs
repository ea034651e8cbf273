//! Barriers, waits, clusters, deadlocks.
use super::build::*;
use crate::error::Fault;
use crate::ptx::flat::{BlockId, Reg, Terminator};
use crate::ptx::inst::Inst;
use crate::ptx::modifier::*;
use crate::ptx::operand::{Addr, Src};
use smallvec::smallvec;

/// Thread t writes shared word t; after a barrier it reads that of thread t + 33.
#[test]
fn a_cta_barrier_orders_warps() {
    let mut k = Kernel::new(128).smem(512);
    let (base, tid) = (k.smem_base(), k.tid());
    let at = k.r();
    k.push(Inst::MadLo {
        ty: IntType::U32,
        d: at,
        a: tid.into(),
        b: imm(4),
        c: base.into(),
    });
    k.store_shared(at, 0, tid.into());
    k.sync();
    let other = k.add(tid.into(), imm(33));
    let masked = k.r();
    k.push(Inst::Logic {
        op: Logic::And,
        ty: LogicType::B32,
        d: masked,
        a: other.into(),
        b: imm(127),
    });
    let from = k.r();
    k.push(Inst::MadLo {
        ty: IntType::U32,
        d: from,
        a: masked.into(),
        b: imm(4),
        c: base.into(),
    });
    let d = k.load_shared(from, 0);
    k.store_per_thread(0, d);
    let expected: Vec<u32> = (0..128).map(|t| (t + 33) % 128).collect();
    for options in every_order() {
        let mut buffers = [vec![0; 512]];
        k.try_run(&mut buffers, &options).expect("runs");
        assert_eq!(words_of(&buffers[0]), expected);
    }
}

#[test]
fn warps_must_agree_on_a_barrier() {
    let mut k = Kernel::new(64);
    let tid = k.tid();
    let n = k.r();
    let p = k.compare(Compare::Lt, tid.into(), imm(32));
    k.push(Inst::Selp {
        ty: BitType::B32,
        d: n,
        a: imm(64),
        b: imm(96),
        p,
    });
    k.push(Inst::BarSync {
        id: imm(1),
        threads: n.into(),
    });
    let error = k.error(&mut []);
    assert!(error.what.contains("disagree"), "{error}");
}

/// Warp 0 arrives only; warp 1 waits.
#[test]
fn bar_arrive_does_not_wait() {
    let mut k = Kernel::new(64);
    let tid = k.tid();
    let p = k.compare(Compare::Lt, tid.into(), imm(32));
    k.branch(p, false, 1, 2, None);
    k.push(Inst::BarArrive {
        id: imm(3),
        threads: imm(64),
    });
    k.block(Terminator::Branch { to: BlockId(3) });
    k.push(Inst::BarSync {
        id: imm(3),
        threads: imm(64),
    });
    k.jump();
    k.store_per_thread(0, tid);
    assert_eq!(k.words(64), (0..64).collect::<Vec<u32>>());
}

/// Eight rounds over a two-slot ring between a producer warp and a consumer warp.
fn ring(skip_empty_wait: bool, wrong_parity: bool) -> Kernel {
    let mut k = Kernel::new(64).smem(1024);
    let (base, tid) = (k.smem_base(), k.tid());
    // Data of slot s at 128·s; full barriers at 512 + 8s, empty ones at 544 + 8s.
    let first = k.compare(Compare::Eq, tid.into(), imm(0));
    k.when(first, false, |k| {
        for s in 0..2 {
            k.init_barrier(base, 512 + 8 * s, 32);
            k.init_barrier(base, 544 + 8 * s, 32);
        }
    });
    k.sync();
    let lane = k.special(SpecialReg32::Laneid);
    let at = k.r();
    k.push(Inst::MadLo {
        ty: IntType::U32,
        d: at,
        a: lane.into(),
        b: imm(4),
        c: base.into(),
    });
    let is_producer = k.compare(Compare::Lt, tid.into(), imm(32));
    k.branch(is_producer, false, 1, 2, None);
    for round in 0..8u32 {
        let (slot, use_) = ((round % 2) as i32, round / 2);
        if use_ > 0 && !skip_empty_wait {
            k.wait(base, 544 + 8 * slot, imm((use_ - 1) & 1));
        }
        let v = k.add(lane.into(), imm(100 * round));
        k.store_shared(at, 128 * slot, v.into());
        k.arrive(base, 512 + 8 * slot);
    }
    k.block(Terminator::Branch { to: BlockId(3) });
    let sum = k.mov(imm(0));
    for round in 0..8u32 {
        let (slot, use_) = ((round % 2) as i32, round / 2);
        k.wait(
            base,
            512 + 8 * slot,
            imm(if wrong_parity { 1 - (use_ & 1) } else { use_ & 1 }),
        );
        let v = k.load_shared(at, 128 * slot);
        k.push(Inst::MadLo {
            ty: IntType::U32,
            d: sum,
            a: sum.into(),
            b: imm(3),
            c: v.into(),
        });
        k.arrive(base, 544 + 8 * slot);
    }
    k.store_per_thread(0, sum);
    k.jump();
    k
}

#[test]
fn an_mbarrier_ring_carries_eight_rounds() {
    let k = ring(false, false);
    let expected: Vec<u32> = (0..32u32)
        .map(|lane| (0..8).fold(0u32, |sum, r| sum.wrapping_mul(3).wrapping_add(lane + 100 * r)))
        .collect();
    for options in every_order() {
        let mut buffers = [vec![0; 256]];
        k.try_run(&mut buffers, &options).unwrap_or_else(|e| panic!("{e}"));
        assert_eq!(words_of(&buffers[0])[32..], expected);
    }
}

#[test]
fn a_producer_that_does_not_wait_is_caught() {
    // Without the wait the third arrival batch comes before the phase's consumers: data are overwritten.
    let k = ring(true, false);
    let mut buffers = [vec![0; 256]];
    let outcome = k.try_run(&mut buffers, &options());
    let right: Vec<u32> = (0..32u32)
        .map(|lane| (0..8).fold(0u32, |sum, r| sum.wrapping_mul(3).wrapping_add(lane + 100 * r)))
        .collect();
    assert!(outcome.is_err() || words_of(&buffers[0])[32..] != right);
}

#[test]
fn a_phase_that_a_late_warp_would_miss_is_told() {
    // Warp 0 completes phases 0 and 1; warp 1 waits for phase 0, and may come when both are over.
    let kernel = |ordered: bool| {
        let mut k = Kernel::new(64).smem(64);
        let (base, tid) = (k.smem_base(), k.tid());
        let first = k.compare(Compare::Eq, tid.into(), imm(0));
        k.when(first, false, |k| {
            k.init_barrier(base, 0, 1);
        });
        k.sync();
        k.when(first, false, |k| {
            k.arrive(base, 0);
        });
        k.wait(base, 0, imm(0));
        if ordered {
            k.sync();
        }
        // Not yet: lets others run.
        let p = k.p();
        k.push(Inst::MbarrierTest {
            d: p,
            addr: Addr::new(base),
            parity: imm(1),
        });
        k.when(first, false, |k| {
            k.arrive(base, 0);
        });
        k
    };
    let (mut told, mut late) = (0, 0);
    for options in every_order() {
        kernel(true)
            .try_run(&mut [], &options)
            .unwrap_or_else(|e| panic!("{e}"));
        let error = kernel(false).try_run(&mut [], &options).expect_err("not ordered");
        told += usize::from(error.what.contains("the wait of warp 1 for the phase before"));
        late += usize::from(error.what.contains("deadlock"));
    }
    assert!(told > 0 && told + late == every_order().len(), "{told}, {late}");
}

#[test]
fn parity_of_the_phase_before_the_first_is_complete() {
    let mut k = Kernel::new(32).smem(64);
    let base = k.smem_base();
    let first = k.first_thread();
    k.when(first, false, |k| {
        k.init_barrier(base, 0, 1);
    });
    let results: Vec<Reg> = [1u32, 0]
        .into_iter()
        .map(|parity| {
            let (p, r) = (k.p(), k.r());
            k.push(Inst::MbarrierTest {
                d: p,
                addr: Addr::new(base),
                parity: imm(parity),
            });
            k.push(Inst::Selp {
                ty: BitType::B32,
                d: r,
                a: imm(1),
                b: imm(0),
                p,
            });
            r
        })
        .collect();
    k.when(first, false, |k| {
        k.arrive(base, 0);
    });
    let (p, r) = (k.p(), k.r());
    k.push(Inst::MbarrierTest {
        d: p,
        addr: Addr::new(base),
        parity: imm(0),
    });
    k.push(Inst::Selp {
        ty: BitType::B32,
        d: r,
        a: imm(1),
        b: imm(0),
        p,
    });
    let mut all = r;
    for x in results.iter().rev() {
        let d = k.r();
        k.push(Inst::MadLo {
            ty: IntType::U32,
            d,
            a: all.into(),
            b: imm(10),
            c: (*x).into(),
        });
        all = d;
    }
    k.store_per_thread(0, all);
    // After: yes; before: parity 0 no, parity 1 yes.
    assert_eq!(k.words(32), [101; 32]);
}

fn broken_barrier(f: impl FnOnce(&mut Kernel, Reg)) -> crate::error::Error {
    let mut k = Kernel::new(32).smem(64);
    let base = k.smem_base();
    let first = k.first_thread();
    k.guard_all(first, |k| f(k, base));
    k.error(&mut [])
}

impl Kernel {
    fn guard_all(&mut self, p: Reg, f: impl FnOnce(&mut Kernel)) {
        self.when(p, false, f);
    }
}

#[test]
fn barrier_misuse() {
    let error = broken_barrier(|k, base| {
        k.arrive(base, 0);
    });
    assert!(error.what.contains("used before init"), "{error}");
    let error = broken_barrier(|k, base| {
        k.init_barrier(base, 0, 1);
        k.push(Inst::MbarrierArrive {
            addr: Addr::new(base),
            count: imm(2),
        });
    });
    assert_eq!(
        error.expected.as_deref(),
        Some("at most 1 more arrivals in this phase"),
        "{error}"
    );
    let error = broken_barrier(|k, base| {
        k.init_barrier(base, 4, 1);
    });
    assert!(error.what.contains("misaligned"), "{error}");
    let error = broken_barrier(|k, base| {
        k.init_barrier(base, 64, 1);
    });
    assert!(error.what.contains("outside"), "{error}");
    let error = broken_barrier(|k, base| {
        k.init_barrier(base, 0, 0);
    });
    assert_eq!(error.got.as_deref(), Some("0"), "{error}");
    let error = broken_barrier(|k, base| {
        k.init_barrier(base, 0, 1);
        k.push(Inst::MbarrierInval { addr: Addr::new(base) });
        k.arrive(base, 0);
    });
    assert!(error.what.contains("used before init"), "{error}");
    let error = broken_barrier(|k, base| {
        k.init_barrier(base, 0, 2);
        k.expect(base, 0, 1 << 20);
    });
    assert!(error.expected.as_deref().unwrap_or("").contains("2^20"), "{error}");
}

#[test]
fn a_deadlock_is_drawn() {
    let k = ring(false, true);
    let error = k.error(&mut [vec![0; 256]]);
    // With wrong parities the consumer runs ahead: it reads what nothing wrote.
    assert_eq!(error.fault, Fault::Execution);
    let mut k = Kernel::new(64).smem(64);
    let base = k.smem_base();
    let first = k.first_thread();
    k.when(first, false, |k| {
        k.init_barrier(base, 8, 3);
        k.arrive(base, 8);
        k.push(Inst::MbarrierExpectTx {
            addr: Addr::at(base, 8),
            bytes: imm(96),
        });
    });
    k.sync();
    k.wait(base, 8, imm(0));
    let wait = k.loc();
    let error = k.error(&mut []);
    assert!(error.what.contains("deadlock"), "{error}");
    assert_eq!(error.loc, Some(wait));
    let picture = error.got.expect("a picture");
    assert!(picture.contains("CTA (0, 0, 0):"), "{picture}");
    assert!(
        picture.contains(&format!(
            "warps 0, 1 at {wait} (MbarrierWait): wait for the phase of parity 0 of the mbarrier at shared offset 8"
        )),
        "{picture}"
    );
    assert!(
        picture.contains("mbarrier at shared offset 8: phase 0 (parity 0), 2 of 3 arrivals to come, 96 bytes to come"),
        "{picture}"
    );
}

/// Each CTA writes its rank into every peer's shared memory.
fn cluster_exchange(last_sync: bool) -> Kernel {
    let mut k = Kernel::new(32).smem(64).grid([8, 1, 1], [4, 1, 1]);
    let (base, rank, lane) = (
        k.smem_base(),
        k.special(SpecialReg32::ClusterCtarank),
        k.special(SpecialReg32::Laneid),
    );
    let in_cluster = k.compare(Compare::Lt, lane.into(), imm(4));
    let cta = k.special(SpecialReg32::CtaidX);
    k.when(in_cluster, false, |k| {
        let at = k.r();
        k.push(Inst::MadLo {
            ty: IntType::U32,
            d: at,
            a: rank.into(),
            b: imm(4),
            c: base.into(),
        });
        let remote = k.r();
        k.push(Inst::Mapa {
            d: remote,
            a: at,
            rank: lane.into(),
        });
        k.push(Inst::St {
            sem: StoreSem::Weak,
            space: Space::SharedCluster,
            ty: MemType::B32,
            addr: Addr::new(remote),
            a: smallvec![cta.into()],
        });
    });
    k.push(Inst::ClusterArrive {
        sem: ClusterArriveSem::Release,
    });
    k.push(Inst::ClusterWait {});
    let word = k.r();
    k.push(Inst::Logic {
        op: Logic::And,
        ty: LogicType::B32,
        d: word,
        a: lane.into(),
        b: imm(3),
    });
    let at = k.r();
    k.push(Inst::MadLo {
        ty: IntType::U32,
        d: at,
        a: word.into(),
        b: imm(4),
        c: base.into(),
    });
    let d = if last_sync {
        k.load_shared(at, 0)
    } else {
        // Reads a peer's memory, which may be gone.
        let p = k.compare(Compare::Eq, rank.into(), imm(3));
        let d = k.mov(imm(0));
        k.when(p, false, |k| {
            let (remote, spin) = (k.r(), k.r());
            k.push(Inst::Mov {
                ty: BitType::B32,
                d: spin,
                a: imm(0),
            });
            k.push(Inst::Nanosleep { ns: imm(100) });
            k.push(Inst::Mapa {
                d: remote,
                a: at,
                rank: imm(0),
            });
            k.push(Inst::Ld {
                sem: LoadSem::Weak,
                space: Space::SharedCluster,
                ty: MemType::B32,
                d: smallvec![d],
                addr: Addr::new(remote),
            });
        });
        d
    };
    k.store_per_thread(0, d);
    k
}

#[test]
fn clusters_share_memory() {
    let expected: Vec<u32> = (0..256).map(|i| i / 128 * 4 + i % 4).collect();
    for options in every_order() {
        let mut buffers = [vec![0; 1024]];
        cluster_exchange(true)
            .try_run(&mut buffers, &options)
            .unwrap_or_else(|e| panic!("{e}"));
        assert_eq!(words_of(&buffers[0]), expected);
    }
    let error = cluster_exchange(false).error(&mut [vec![0; 1024]]);
    assert!(error.what.contains("has ended"), "{error}");
}

#[test]
fn remote_arrivals() {
    // CTA 1 arrives on CTA 0's barrier for each of its threads.
    let mut k = Kernel::new(64).smem(64).grid([2, 1, 1], [2, 1, 1]);
    let (base, rank, tid) = (k.smem_base(), k.special(SpecialReg32::ClusterCtarank), k.tid());
    let first = k.compare(Compare::Eq, tid.into(), imm(0));
    k.when(first, false, |k| {
        k.init_barrier(base, 0, 64);
        k.push(Inst::FenceMbarrierInit {});
    });
    k.push(Inst::ClusterArrive {
        sem: ClusterArriveSem::Relaxed,
    });
    k.push(Inst::ClusterWait {});
    let is_first = k.compare(Compare::Eq, rank.into(), imm(0));
    k.branch(is_first, false, 1, 2, None);
    k.push(Inst::MbarrierWait {
        ask: MbarrierAsk::Try,
        acquire: Acquire::Cluster,
        suspend: Suspend::Short,
        addr: Addr::new(base),
        parity: imm(0),
    });
    k.store_per_thread(0, tid);
    k.block(Terminator::Branch { to: BlockId(3) });
    let remote = k.r();
    k.push(Inst::Mapa {
        d: remote,
        a: base,
        rank: imm(0),
    });
    k.push(Inst::MbarrierArriveCluster {
        release: Release::Cta,
        addr: Addr::new(remote),
        count: imm(1),
    });
    k.jump();
    k.push(Inst::ClusterArrive {
        sem: ClusterArriveSem::Release,
    });
    k.push(Inst::ClusterWait {});
    let got = k.words(128);
    assert_eq!(got[..64], (0..64).collect::<Vec<u32>>());
}

/// CTA 0 waits for a flag that the last CTA raises: fine if all are resident, a deadlock if not.
fn flag_kernel(ctas: u32, subtract: bool) -> Kernel {
    let mut k = Kernel::new(32).grid([ctas, 1, 1], [1; 3]);
    let (cta, flag) = (k.special(SpecialReg32::CtaidX), k.pointer(0));
    let first = k.compare(Compare::Eq, cta.into(), imm(0));
    k.branch(first, false, 1, 2, None);
    let lane0 = k.first_thread();
    k.when(lane0, false, |k| {
        if subtract {
            k.push(Inst::WaitAndSubtract {
                scope: Scope::Gpu,
                addr: Addr::new(flag),
                value: imm(ctas - 1),
            });
        } else {
            k.push(Inst::WaitAtLeast {
                scope: Scope::Gpu,
                addr: Addr::new(flag),
                value: imm(ctas - 1),
            });
        }
    });
    k.block(Terminator::Branch { to: BlockId(3) });
    let lane0 = k.first_thread();
    k.when(lane0, false, |k| {
        k.push(Inst::Red {
            sem: AtomSem::Release,
            scope: Scope::Gpu,
            space: Space::Global,
            op: RedOp::Add,
            ty: AtomType::U32,
            addr: Addr::new(flag),
            a: imm(1),
        });
    });
    k.jump();
    k
}

#[test]
fn waits_on_global_words_block_until_they_change() {
    let mut buffers = [vec![0; 4]];
    flag_kernel(9, false).run(&mut buffers);
    assert_eq!(words_of(&buffers[0]), [8]);
    let mut buffers = [vec![0; 4]];
    flag_kernel(9, true).run(&mut buffers);
    assert_eq!(words_of(&buffers[0]), [0]);
}

#[test]
fn a_grid_that_needs_more_residency_than_there_is_deadlocks() {
    let small = crate::emulate::Options {
        sms: 1,
        occupancy: Some(1),
        ..options()
    };
    let error = flag_kernel(3, false)
        .try_run(&mut [vec![0; 4]], &small)
        .expect_err("CTA 0 never ends");
    assert!(error.what.contains("deadlock"), "{error}");
    assert!(
        error
            .got
            .as_deref()
            .unwrap_or("")
            .contains("byte 0 of buffer 0, which is 0, to be at least 2; nobody has signalled it"),
        "{error}"
    );
    let enough = crate::emulate::Options {
        sms: 1,
        occupancy: Some(2),
        ..options()
    };
    flag_kernel(3, false)
        .try_run(&mut [vec![0; 4]], &enough)
        .expect("the others take turns on the second place");
}

#[test]
fn polls_let_others_run() {
    // Warp 0 polls a shared word that warp 1 writes, with ld.volatile.
    let mut k = Kernel::new(64).smem(16);
    let (base, tid) = (k.smem_base(), k.tid());
    let first = k.compare(Compare::Eq, tid.into(), imm(0));
    k.when(first, false, |k| {
        k.store_shared(base, 0, imm(0));
    });
    k.sync();
    let p = k.compare(Compare::Lt, tid.into(), imm(32));
    k.branch(p, false, 1, 2, None);
    let v = k.r();
    k.push(Inst::Ld {
        sem: LoadSem::Volatile,
        space: Space::Shared,
        ty: MemType::B32,
        d: smallvec![v],
        addr: Addr::new(base),
    });
    let not_yet = k.compare(Compare::Eq, v.into(), imm(0));
    k.branch(not_yet, false, 1, 3, None);
    k.store_shared(base, 0, imm(5));
    k.jump();
    k.store_per_thread(0, tid);
    assert_eq!(k.words(64), (0..64).collect::<Vec<u32>>());
}

#[test]
fn register_pools() {
    let kernel = |dec: i64, inc: i64| {
        let mut k = Kernel::new(384);
        let tid = k.tid();
        let p = k.compare(Compare::Lt, tid.into(), imm(128));
        k.branch(p, false, 1, 2, None);
        k.push(Inst::SetMaxReg {
            action: RegCount::Decrease,
            n: dec,
        });
        k.block(Terminator::Branch { to: BlockId(3) });
        k.push(Inst::SetMaxReg {
            action: RegCount::Increase,
            n: inc,
        });
        k.jump();
        k.sync();
        k
    };
    kernel(40, 232).run(&mut []);
    let error = kernel(40, 240).error(&mut []);
    assert!(
        error.got.as_deref().unwrap_or("").contains("wait for 240 registers"),
        "{error}"
    );
}

#[test]
fn a_trap_is_an_error() {
    let mut k = Kernel::new(32);
    k.push(Inst::Trap {});
    let error = k.error(&mut []);
    assert!(error.what.contains("trapped"), "{error}");
    assert_eq!(error.loc, Some(k.loc()));
}

#[test]
fn st_async_completes_on_the_peers_barrier() {
    let mut k = Kernel::new(32).smem(256).grid([2, 1, 1], [2, 1, 1]);
    let (base, rank, lane) = (
        k.smem_base(),
        k.special(SpecialReg32::ClusterCtarank),
        k.special(SpecialReg32::Laneid),
    );
    let first = k.compare(Compare::Eq, lane.into(), imm(0));
    k.when(first, false, |k| {
        k.init_barrier(base, 128, 1);
        k.push(Inst::FenceMbarrierInit {});
        k.expect(base, 128, 128);
    });
    k.push(Inst::ClusterArrive {
        sem: ClusterArriveSem::Release,
    });
    k.push(Inst::ClusterWait {});
    let peer = k.r();
    k.push(Inst::Logic {
        op: Logic::Xor,
        ty: LogicType::B32,
        d: peer,
        a: rank.into(),
        b: imm(1),
    });
    let (at, to, bar) = (k.r(), k.r(), k.r());
    k.push(Inst::MadLo {
        ty: IntType::U32,
        d: at,
        a: lane.into(),
        b: imm(4),
        c: base.into(),
    });
    k.push(Inst::Mapa {
        d: to,
        a: at,
        rank: peer.into(),
    });
    k.push(Inst::Mapa {
        d: bar,
        a: base,
        rank: peer.into(),
    });
    let v = k.r();
    k.push(Inst::MadLo {
        ty: IntType::U32,
        d: v,
        a: rank.into(),
        b: imm(100),
        c: lane.into(),
    });
    k.push(Inst::StAsync {
        ty: MemType::B32,
        addr: Addr::new(to),
        a: smallvec![Src::Reg(v)],
        bar: Addr::at(bar, 128),
    });
    k.wait(base, 128, imm(0));
    let d = k.load_shared(at, 0);
    k.store_per_thread(0, d);
    k.push(Inst::ClusterArrive {
        sem: ClusterArriveSem::Release,
    });
    k.push(Inst::ClusterWait {});
    let expected: Vec<u32> = (0..64).map(|i| (1 - i / 32) * 100 + i % 32).collect();
    for options in every_order() {
        let mut buffers = [vec![0; 256]];
        k.try_run(&mut buffers, &options).unwrap_or_else(|e| panic!("{e}"));
        assert_eq!(words_of(&buffers[0]), expected);
    }
}

/// A cluster of two blocks in which the lower half of each warp does something by itself before the rest follows.
fn halves(of_lower: &[Inst<Reg>], of_all: &[Inst<Reg>]) -> Kernel {
    let mut k = Kernel::new(32).grid([2, 1, 1], [2, 1, 1]);
    let tid = k.tid();
    let lower = k.compare(Compare::Lt, tid.into(), imm(16));
    k.when(lower, false, |k| {
        for inst in of_lower {
            k.push(inst.clone());
        }
    });
    for inst in of_all {
        k.push(inst.clone());
    }
    k
}

#[test]
fn misuse_of_the_clusters_barrier_by_lanes() {
    let arrive = Inst::ClusterArriveApart {
        sem: ClusterArriveSem::Release,
    };
    let together = Inst::ClusterArrive {
        sem: ClusterArriveSem::Release,
    };
    let wait = Inst::ClusterWaitApart {};
    let cases = [
        (
            vec![arrive.clone(), wait.clone()],
            vec![],
            "before all lanes of the warp have arrived",
        ),
        (vec![arrive.clone()], vec![arrive], "twice with no wait between"),
        (vec![], vec![wait], "with no arrive before it"),
        (vec![together], vec![], "not all lanes of the warp execute"),
    ];
    for (of_lower, of_all, expected) in cases {
        let error = halves(&of_lower, &of_all).error(&mut []);
        assert!(error.what.contains(expected), "{error}");
    }
}
