//! Branches, guards, special registers, exchanges within a warp.
use super::build::*;
use crate::emulate::{Options, Position, Watch, run};
use crate::error::{Error, Fault};
use crate::ptx::flat::Terminator;
use crate::ptx::inst::Inst;
use crate::ptx::modifier::*;
use crate::ptx::operand::Src;

#[test]
fn every_thread_of_every_cta_stores_its_index() {
    let mut k = Kernel::new(96).grid([5, 1, 1], [1; 3]);
    let (tid, cta) = (k.tid(), k.special(SpecialReg32::CtaidX));
    let v = k.r();
    k.push(Inst::MadLo {
        ty: IntType::U32,
        d: v,
        a: cta.into(),
        b: imm(1000),
        c: tid.into(),
    });
    k.store_per_thread(0, v);
    let expected: Vec<u32> = (0..480).map(|i| i / 96 * 1000 + i % 96).collect();
    assert_eq!(k.words(480), expected);
}

#[test]
fn programs_are_as_long_as_they_like() {
    // More registers, and more constants, than an operand can name; some of them wide, some under a guard.
    let mut k = Kernel::new(32);
    let tid = k.tid();
    let few = k.compare(Compare::Lt, tid.into(), imm(7));
    let mut v = tid;
    let mut expected: Vec<u32> = (0..32).collect();
    for i in 0..40_000u32 {
        let c = i.wrapping_mul(2_654_435_761) ^ 0x5bd1_e995;
        let next = k.add(v.into(), Src::u32(c));
        k.when(few, false, |k| {
            k.push(Inst::Logic {
                op: Logic::Xor,
                ty: LogicType::B32,
                d: next,
                a: next.into(),
                b: Src::u32(!c),
            });
        });
        v = next;
        for (lane, x) in expected.iter_mut().enumerate() {
            *x = x.wrapping_add(c) ^ if lane < 7 { !c } else { 0 };
        }
    }
    let wide = k.mov64(0x0123_4567_89ab_cdef);
    let (low, high) = (k.r(), k.r());
    k.push(Inst::UnpackB64 {
        d: [low, high].into_iter().collect(),
        a: wide,
    });
    let sum = k.add(v.into(), low.into());
    let sum = k.add(sum.into(), high.into());
    k.store_per_thread(0, sum);
    let constant = 0x0123_4567u32.wrapping_add(0x89ab_cdef);
    expected.iter_mut().for_each(|x| *x = x.wrapping_add(constant));
    assert_eq!(k.words(32), expected);
}

#[test]
fn the_last_warp_may_be_partial() {
    let mut k = Kernel::new(40);
    let tid = k.tid();
    k.store_per_thread(0, tid);
    let got = k.words(64);
    assert_eq!(got[..40], (0..40).collect::<Vec<u32>>());
    assert_eq!(got[40..], [0; 24]);
}

#[test]
fn guards_hold_lanes_back() {
    let mut k = Kernel::new(32);
    let tid = k.tid();
    let v = k.mov(imm(7));
    let p = k.compare(Compare::Lt, tid.into(), imm(5));
    k.when(p, false, |k| {
        k.push(Inst::AddInt {
            ty: IntType::U32,
            d: v,
            a: v.into(),
            b: imm(100),
        });
        k.push(Inst::AddInt {
            ty: IntType::U32,
            d: v,
            a: v.into(),
            b: imm(1000),
        });
    });
    k.when(p, true, |k| {
        k.push(Inst::AddInt {
            ty: IntType::U32,
            d: v,
            a: v.into(),
            b: imm(1),
        });
    });
    k.store_per_thread(0, v);
    let expected: Vec<u32> = (0..32).map(|i| if i < 5 { 1107 } else { 8 }).collect();
    assert_eq!(k.words(32), expected);
}

#[test]
fn a_guard_is_read_anew_after_it_was_redefined() {
    let mut k = Kernel::new(32);
    let tid = k.tid();
    let v = k.mov(imm(0));
    let p = k.compare(Compare::Lt, tid.into(), imm(16));
    k.when(p, false, |k| {
        k.push(Inst::Setp {
            cmp: Compare::Lt,
            ftz: Ftz::No,
            ty: CompareType::U32,
            d: p,
            a: tid.into(),
            b: imm(4),
        });
        k.push(Inst::Mov {
            ty: BitType::B32,
            d: v,
            a: imm(1),
        });
    });
    k.store_per_thread(0, v);
    let expected: Vec<u32> = (0..32).map(|i| u32::from(i < 4)).collect();
    assert_eq!(k.words(32), expected);
}

/// `if tid & 1 { if tid & 2 { 1 } else { 2 } } else { 3 }`, then all lanes add a ballot.
#[test]
fn lanes_part_and_meet_again() {
    let mut k = Kernel::new(32);
    let tid = k.tid();
    let v = k.r();
    let bit = |k: &mut Kernel, mask: u32| {
        let d = k.r();
        k.push(Inst::Logic {
            op: Logic::And,
            ty: LogicType::B32,
            d,
            a: tid.into(),
            b: imm(mask),
        });
        k.compare(Compare::Ne, d.into(), imm(0))
    };
    let (p, q) = (bit(&mut k, 1), bit(&mut k, 2));
    k.branch(p, false, 1, 5, Some(6));
    k.branch(q, false, 2, 3, Some(4));
    k.push(Inst::Mov {
        ty: BitType::B32,
        d: v,
        a: imm(1),
    });
    k.block(Terminator::Branch {
        to: crate::ptx::flat::BlockId(4),
    });
    k.push(Inst::Mov {
        ty: BitType::B32,
        d: v,
        a: imm(2),
    });
    k.jump();
    k.block(Terminator::Branch {
        to: crate::ptx::flat::BlockId(6),
    });
    k.push(Inst::Mov {
        ty: BitType::B32,
        d: v,
        a: imm(3),
    });
    k.jump();
    let ballot = k.r();
    k.push(Inst::Ballot {
        d: ballot,
        a: p,
        mask: 0xffff_ffff,
    });
    let sum = k.add(v.into(), ballot.into());
    k.store_per_thread(0, sum);
    let value = |i: u32| {
        if i & 1 == 0 {
            3
        } else if i & 2 != 0 {
            1
        } else {
            2
        }
    };
    let expected: Vec<u32> = (0..32).map(|i| value(i) + 0xaaaa_aaaa).collect();
    assert_eq!(k.words(32), expected);
}

/// Each lane loops `tid` times; afterwards all meet.
#[test]
fn lanes_leave_a_loop_one_by_one() {
    let mut k = Kernel::new(64);
    let tid = k.tid();
    let (i, sum) = (k.mov(imm(0)), k.mov(imm(0)));
    k.jump();
    let p = k.compare(Compare::Lt, i.into(), tid.into());
    k.branch(p, false, 2, 3, Some(3));
    k.push(Inst::AddInt {
        ty: IntType::U32,
        d: sum,
        a: sum.into(),
        b: i.into(),
    });
    k.push(Inst::AddInt {
        ty: IntType::U32,
        d: i,
        a: i.into(),
        b: imm(1),
    });
    k.block(Terminator::Branch {
        to: crate::ptx::flat::BlockId(1),
    });
    let all = k.r();
    let t = k.compare(Compare::Eq, i.into(), i.into());
    k.push(Inst::Ballot {
        d: all,
        a: t,
        mask: 0xffff_ffff,
    });
    let out = k.add(sum.into(), all.into());
    k.store_per_thread(0, out);
    let expected: Vec<u32> = (0..64u32)
        .map(|t| (t * t.wrapping_sub(1) / 2).wrapping_sub(1))
        .collect();
    let expected: Vec<u32> = expected
        .iter()
        .enumerate()
        .map(|(t, e)| if t == 0 { u32::MAX } else { *e })
        .collect();
    assert_eq!(k.words(64), expected);
}

#[test]
fn lanes_may_return_early() {
    let mut k = Kernel::new(32);
    let tid = k.tid();
    let p = k.compare(Compare::Ge, tid.into(), imm(20));
    k.branch(p, false, 1, 2, Some(2));
    k.block(Terminator::Return);
    let t = k.compare(Compare::Eq, tid.into(), tid.into());
    let all = k.r();
    k.push(Inst::Ballot {
        d: all,
        a: t,
        mask: 0xffff_ffff,
    });
    k.store_per_thread(0, all);
    let got = k.words(32);
    assert_eq!(got[..20], [0xf_ffff; 20]);
    assert_eq!(got[20..], [0; 12]);
}

#[test]
fn a_uniform_branch_must_be_uniform() {
    let mut k = Kernel::new(32);
    let tid = k.tid();
    let p = k.compare(Compare::Lt, tid.into(), imm(3));
    k.branch(p, false, 1, 1, None);
    let error = k.error(&mut []);
    assert!(error.what.contains("marked uniform"), "{error}");
    assert!(error.got.as_deref().unwrap_or("").contains("0x00000007"), "{error}");
}

/// Panics as soon as it is asked.
struct Panics;

impl Watch for Panics {
    fn poll(&self, _: Position) -> Result<(), Error> {
        panic!("somewhere in a thread of the emulator")
    }
    fn finding(&self, _: Error) {}
}

#[test]
fn a_panic_in_a_thread_is_an_internal_error() {
    let mut k = Kernel::new(32).grid([4, 1, 1], [1; 3]);
    k.jump();
    k.mov(imm(1));
    k.block(Terminator::Branch {
        to: crate::ptx::flat::BlockId(1),
    });
    let program = k.decode().unwrap();
    for threads in [2, 4] {
        let options = Options {
            threads,
            ..Options::default()
        };
        // SAFETY: there are no buffers.
        let error = unsafe { run(&program, &[], &options, &Panics) }.unwrap_err();
        assert!(
            error.fault == Fault::Internal && error.what.contains("somewhere in a thread"),
            "{error}"
        );
    }
}

#[test]
fn an_endless_loop_is_reported() {
    let mut k = Kernel::new(32);
    k.jump();
    k.mov(imm(1));
    k.block(Terminator::Branch {
        to: crate::ptx::flat::BlockId(1),
    });
    let limited = Options {
        max_steps: 5_000_000,
        ..options()
    };
    let error = k.try_run(&mut [], &limited).expect_err("it does not end");
    assert!(error.what.contains("did not end"), "{error}");
}

#[test]
fn shuffles_follow_the_isa() {
    let modes = [ShuffleMode::Up, ShuffleMode::Down, ShuffleMode::Bfly, ShuffleMode::Idx];
    for mode in modes {
        for by in [0u32, 1, 3, 8, 16, 31] {
            for c in [0x1f, 0, 0x181f, 0x1800, 0x100f] {
                let mut k = Kernel::new(32);
                let tid = k.tid();
                let a = k.mul(tid.into(), imm(10));
                let d = k.r();
                k.push(Inst::Shfl {
                    mode,
                    d,
                    a,
                    b: imm(by),
                    c: imm(c),
                    mask: 0xffff_ffff,
                });
                k.store_per_thread(0, d);
                let expected: Vec<u32> = (0..32i32)
                    .map(|lane| {
                        // The pseudocode of PTX ISA 9.7.9.6.
                        let (segment, clamp, by) = ((c >> 8) as i32 & 31, c as i32 & 31, by as i32);
                        let max = (lane & segment) | (clamp & !segment);
                        let min = lane & segment;
                        let (j, p) = match mode {
                            ShuffleMode::Up => (lane - by, lane - by >= max),
                            ShuffleMode::Down => (lane + by, lane + by <= max),
                            ShuffleMode::Bfly => (lane ^ by, (lane ^ by) <= max),
                            ShuffleMode::Idx => (min | (by & !segment), (min | (by & !segment)) <= max),
                        };
                        (if p { j } else { lane }) as u32 * 10
                    })
                    .collect();
                assert_eq!(k.words(32), expected, "{mode:?} {by} {c:x}");
            }
        }
    }
}

#[test]
fn votes_and_reductions() {
    let mut k = Kernel::new(32);
    let tid = k.tid();
    let p = k.compare(Compare::Lt, tid.into(), imm(7));
    let mut results = vec![];
    for mode in [VoteMode::All, VoteMode::Any, VoteMode::Uni] {
        let (d, r) = (k.p(), k.r());
        k.push(Inst::Vote {
            mode,
            d,
            a: p,
            mask: 0xffff_ffff,
        });
        k.push(Inst::Selp {
            ty: BitType::B32,
            d: r,
            a: imm(1),
            b: imm(0),
            p: d,
        });
        results.push(r);
    }
    let minus = k.r();
    k.push(Inst::SubInt {
        ty: IntType::U32,
        d: minus,
        a: tid.into(),
        b: imm(16),
    });
    for op in [
        ReduxOp::AddS32,
        ReduxOp::MinS32,
        ReduxOp::MaxU32,
        ReduxOp::Xor,
        ReduxOp::And,
    ] {
        let d = k.r();
        k.push(Inst::Redux {
            op,
            d,
            a: minus,
            mask: 0xffff_ffff,
        });
        results.push(d);
    }
    let e = k.p();
    k.push(Inst::Elect {
        d: e,
        mask: 0xffff_ffff,
    });
    let r = k.r();
    k.push(Inst::Selp {
        ty: BitType::B32,
        d: r,
        a: imm(1),
        b: imm(0),
        p: e,
    });
    results.push(r);
    let base = k.pointer(0);
    let tid9 = k.mul(tid.into(), imm(9));
    for (i, r) in results.iter().enumerate() {
        let index = k.add(tid9.into(), imm(i as u32));
        let at = k.element(base, index, 4);
        k.store(at, *r);
    }
    let got = k.words(32 * 9);
    for lane in 0..32usize {
        let expected = [
            0,
            1,
            0,
            -16i32 as u32,
            -16i32 as u32,
            u32::MAX,
            0,
            0,
            u32::from(lane == 0),
        ];
        assert_eq!(got[lane * 9..lane * 9 + 9], expected, "lane {lane}");
    }
}

#[test]
fn a_shuffle_in_divergent_code_names_its_lanes() {
    let mut k = Kernel::new(32);
    let tid = k.tid();
    let p = k.compare(Compare::Lt, tid.into(), imm(8));
    k.when(p, false, |k| {
        let d = k.r();
        k.push(Inst::Shfl {
            mode: ShuffleMode::Bfly,
            d,
            a: tid,
            b: imm(1),
            c: imm(31),
            mask: 0xffff_ffff,
        });
    });
    let error = k.error(&mut []);
    assert_eq!(error.got.as_deref(), Some("lanes 0x000000ff"), "{error}");
    assert_eq!(error.loc, Some(k.loc()));
}

#[test]
fn wide_values_and_halves_travel_through_registers() {
    let mut k = Kernel::new(32);
    let tid = k.tid();
    let d = k.rd();
    k.push(Inst::PackB64 {
        d,
        a: smallvec::smallvec![tid.into(), imm(5)],
    });
    k.push(Inst::AddInt {
        ty: IntType::U64,
        d,
        a: d.into(),
        b: Src::Imm(0xffff_ffff),
    });
    let (low, high) = (k.r(), k.r());
    k.push(Inst::UnpackB64 {
        d: smallvec::smallvec![low, high],
        a: d,
    });
    let (h, l) = (k.h(), k.h());
    k.push(Inst::UnpackB32 {
        d: smallvec::smallvec![l, h],
        a: low,
    });
    let swapped = k.r();
    k.push(Inst::PackB32 {
        d: swapped,
        a: smallvec::smallvec![h.into(), l.into()],
    });
    let sum = k.add(swapped.into(), high.into());
    k.store_per_thread(0, sum);
    let expected: Vec<u32> = (0..32u64)
        .map(|i| {
            let x = (5 << 32 | i) + 0xffff_ffff;
            (x as u32).rotate_left(16).wrapping_add((x >> 32) as u32)
        })
        .collect();
    assert_eq!(k.words(32), expected);
}
