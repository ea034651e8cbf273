//! One right kernel and one broken twin for each rule.
use crate::harness::{Test, built, clean, clean_with, findings_of, twins, twins_with};
use smalt::dtype::DType;
use smalt::kernel_ir::*;
use smalt::plan::verify_order;
use smalt::plan::verify_order::Fault::{Compiler, User};
use smalt::plan::verify_order::Missing::{Barrier, BlockBarrier, Fence, Wait, Warps};

/// 128 floats.
fn floats(t: &mut Test) -> Value {
    let x = t.input(DType::F32, &[128]);
    let whole = t.whole(x);
    t.load(whole)
}

fn zero(t: &mut Test) -> Value {
    let zero = t.int(0);
    t.b.op1(OpKind::Convert { a: zero }, DType::F32, &[])
}

// ---------------------------------------------------------------------------------------------- lanes

#[test]
fn lanes_read_what_one_lane_wrote() {
    twins(Compiler, Barrier, |t, right| {
        let (s, out) = (t.smem(DType::F32, &[1]), t.output(DType::F32, &[1]));
        let x = zero(t);
        t.store(t.at(s, 0), x);
        if right {
            t.sync();
        }
        let y = t.load(t.at(s, 0));
        t.store(t.at(out, 0), y);
    });
}

#[test]
fn one_lane_writes_what_lanes_read() {
    twins(Compiler, Barrier, |t, right| {
        let s = t.smem(DType::F32, &[1]);
        t.load(t.at(s, 0));
        if right {
            t.sync();
        }
        let x = zero(t);
        t.store(t.at(s, 0), x);
    });
}

#[test]
fn device_memory_counts_as_shared_memory_does() {
    twins(Compiler, Barrier, |t, right| {
        let out = t.output(DType::F32, &[256]);
        let x = floats(t);
        t.store(t.part(out, 0, 128), x);
        if right {
            t.sync();
        }
        t.load(t.part(out, 64, 128));
    });
}

#[test]
fn memory_of_the_compilers_is_ordered_by_the_compiler() {
    let build = |owner| {
        move |t: &mut Test, right| {
            let s = t.smem(DType::F32, &[256]);
            t.b.kernel.allocs[s].owner = owner;
            let x = floats(t);
            t.store(t.part(s, 0, 128), x);
            if right {
                t.sync();
            }
            t.load(t.part(s, 64, 128));
        }
    };
    twins_with(1, false, Compiler, Barrier, build(Owner::Compiler));
    clean_with(1, false, |t| build(Owner::Author)(t, false));
}

#[test]
fn what_tensor_cores_read_of_the_compilers_memory_the_compiler_commits() {
    let build = |t: &mut Test, right| {
        let (a, b) = (t.tile(), t.tile());
        t.b.kernel.allocs[b].owner = Owner::Compiler;
        let zero = t.b.op1(OpKind::Constant(Constant::Splat(0)), DType::F16, &[64, 64]);
        t.store(t.whole(b), zero);
        if right {
            t.commit();
        } else {
            t.sync();
        }
        let acc = t.acc();
        let acc = t.wgmma(acc, a, b);
        t.wait_mma(0, acc);
    };
    twins(Compiler, Fence, build);
    twins_with(1, false, Compiler, Fence, build);
}

/// Text that does whatever it likes to what it is given, or only loads from it.
fn text(t: &mut Test, r: RefUse, loads: bool) {
    let code = InlinePtx {
        text: String::new(),
        operands: vec![],
        pack: 1,
        once: false,
        loads_from: vec![loads],
        whole: None,
        barriers: None,
        unchecked: Some(80),
        called: None,
        maps: vec![],
    };
    t.op(OpKind::InlinePtx {
        does: Does::Acts,
        code: Box::new(code),
        refs: vec![r],
        args: vec![],
    });
}

#[test]
fn what_a_text_stores_to_device_memory_is_written() {
    twins(Compiler, Barrier, |t, right| {
        let out = t.output(DType::F32, &[128]);
        text(t, t.whole(out), false);
        if right {
            t.sync();
        }
        t.load(t.whole(out));
    });
}

#[test]
fn a_copy_reads_what_a_text_stored_to_device_memory() {
    for missing in [Barrier, Fence] {
        twins(Compiler, missing, |t, right| {
            let (out, s, bars) = (t.output(DType::F32, &[128]), t.smem(DType::F32, &[128]), t.barriers(1));
            text(t, t.whole(out), false);
            if right || missing == Barrier {
                t.op(OpKind::Fence {
                    kind: FenceKind::ProxyAsyncGlobal,
                });
            }
            if right || missing == Fence {
                t.sync();
            }
            t.copy_in(t.whole(out), t.whole(s), bars, 0);
            t.wait(bars, 0);
        });
    }
}

#[test]
fn what_a_text_only_loads_is_not_written() {
    clean(|t| {
        let out = t.output(DType::F32, &[128]);
        text(t, t.whole(out), true);
        t.load(t.whole(out));
    });
}

#[test]
fn a_lane_sees_what_it_wrote() {
    clean(|t| {
        let s = t.smem(DType::F32, &[128]);
        let x = floats(t);
        t.store(t.whole(s), x);
        let y = t.load(t.whole(s));
        t.store(t.whole(s), y);
    });
}

#[test]
fn another_part_of_the_array_is_another_warps() {
    twins(Compiler, Barrier, |t, right| {
        let s = t.smem(DType::F32, &[256]);
        let x = floats(t);
        t.store(t.part(s, 0, 128), x);
        t.load(t.part(s, if right { 128 } else { 64 }, 128));
    });
}

#[test]
fn warps_that_keep_to_their_own_bytes_need_no_barrier() {
    // 32 elements further on is the next warp; 16 on is half of it.
    for (shift, collides) in [(0, false), (32, true), (16, true), (128, false)] {
        let found = findings_of(1, true, |t| {
            let s = t.smem(DType::F32, &[256]);
            let x = floats(t);
            t.store(t.part(s, 0, 128), x);
            let y = t.load(t.part(s, shift, 128));
            t.store(t.part(s, shift, 128), y);
        });
        assert_eq!(!found.is_empty(), collides, "{shift}: {found:?}");
    }
}

#[test]
fn an_element_at_a_multiple_of_something() {
    // Of 512 elements the first 128 were stored: an index that is a multiple of 128 meets the first of them only, which is warp 0's.
    for (multiple, collides) in [(128, false), (64, true), (32, true)] {
        let found = findings_of(1, true, |t| {
            let (n, s) = (t.input(DType::I32, &[1]), t.smem(DType::F32, &[512]));
            let x = floats(t);
            t.store(t.part(s, 0, 128), x);
            let (a, b) = (t.load(t.at(n, 0)), t.int(multiple));
            let product = OpKind::Binary {
                op: BinaryOp::Mul,
                a,
                b,
            };
            let at = t.b.op1(product, DType::I32, &[]);
            let zero = zero(t);
            let element = t.b.indexed(s, vec![DimIndex::At(Index::Value(at))]);
            t.store(element, zero);
        });
        assert_eq!(!found.is_empty(), collides, "{multiple}: {found:?}");
    }
}

#[test]
fn a_column_of_many_rows_is_disjoint_from_others() {
    // An element of a row that nobody knows, and a part of one that is known, of so many rows that their bytes are not listed.
    // The first 32 columns of the part are of the warp that has the element.
    for (column, collides) in [
        (13, false),
        (255, false),
        (287, false),
        (288, true),
        (383, true),
        (384, false),
    ] {
        for multiple in [false, true] {
            let found = findings_of(1, true, |t| {
                let (n, out) = (t.input(DType::I32, &[1]), t.output(DType::F32, &[10_000, 512]));
                let x = floats(t);
                let mut row = t.load(t.at(n, 0));
                if multiple {
                    let two = t.int(2);
                    let double = OpKind::Binary {
                        op: BinaryOp::Mul,
                        a: row,
                        b: two,
                    };
                    row = t.b.op1(double, DType::I32, &[]);
                }
                let zero = zero(t);
                let column = DimIndex::At(Index::Const(column));
                t.store(t.b.indexed(out, vec![DimIndex::At(Index::Value(row)), column]), zero);
                let part = DimIndex::Slice {
                    start: Index::Const(256),
                    size: 128,
                    stride: 1,
                };
                t.store(
                    t.b.indexed(out, vec![DimIndex::At(Index::Const(2050)), part.clone()]),
                    x,
                );
                // No even row is this one.
                t.store(t.b.indexed(out, vec![DimIndex::At(Index::Const(4099)), part]), x);
            });
            let expected = match (collides, multiple) {
                (false, _) => 0,
                (true, true) => 1,
                (true, false) => 2,
            };
            assert_eq!(found.len(), expected, "{column}, {multiple}: {found:?}");
        }
    }
}

#[test]
fn a_warp_writes_its_own_columns_of_many_rows() {
    // An element of a row that nobody knows and a block of the same row: of the warp that has the element the other's part is, or another's.
    for (column, collides) in [
        (255, false),
        (256, false),
        (287, false),
        (288, true),
        (383, true),
        (384, false),
    ] {
        let found = findings_of(1, true, |t| {
            let (n, out) = (t.input(DType::I32, &[1]), t.output(DType::F32, &[10_000, 512]));
            let x = floats(t);
            let row = Index::Value(t.load(t.at(n, 0)));
            let zero = zero(t);
            let element =
                t.b.indexed(out, vec![DimIndex::At(row), DimIndex::At(Index::Const(column))]);
            t.store(element, zero);
            let part = DimIndex::Slice {
                start: Index::Const(256),
                size: 128,
                stride: 1,
            };
            t.store(t.b.indexed(out, vec![DimIndex::At(row), part]), x);
        });
        assert_eq!(!found.is_empty(), collides, "{column}: {found:?}");
    }
}

#[test]
fn one_kind_of_update_is_in_no_order() {
    twins(Compiler, Barrier, |t, right| {
        let (x, out) = (t.input(DType::I32, &[128]), t.output(DType::I32, &[256]));
        let value = t.load(t.whole(x));
        for (start, op) in [
            (0, AtomicOp::Add),
            (64, if right { AtomicOp::Add } else { AtomicOp::Max }),
        ] {
            let dst = t.part(out, start, 128);
            t.op(OpKind::AtomicUpdate { op, dst, value });
        }
    });
}

#[test]
fn members_of_a_union_are_the_same_bytes() {
    twins(Compiler, Barrier, |t, right| {
        let (a, b) = (t.smem(DType::F32, &[128]), t.smem(DType::F32, &[256]));
        if !right {
            t.unite(a, b);
        }
        let x = floats(t);
        t.store(t.whole(a), x);
        t.load(t.part(b, 64, 128));
    });
}

#[test]
fn a_signal_holds_a_barrier() {
    twins(Compiler, Barrier, |t, right| {
        let s = t.smem(DType::F32, &[1]);
        let semaphore = t.b.kernel.allocs.push(AllocData {
            kind: AllocKind::Semaphore {
                origin: GmemOrigin::Scratch { global: true },
            },
            shape: [1].as_slice().into(),
            collective: true,
            within: None,
            owner: Owner::Author,
            loc: smalt::error::Loc::CALL_SITE,
        });
        let x = zero(t);
        t.store(t.at(s, 0), x);
        if right {
            let (semaphore, value) = (t.at(semaphore, 0), t.int(1));
            t.op(OpKind::SemaphoreSignal {
                semaphore,
                value,
                scope: MemoryScope::Gpu,
            });
        }
        t.load(t.at(s, 0));
    });
}

// ---------------------------------------------------------------------------------------------- bulk loads

#[test]
fn a_bulk_load_overwrites_what_lanes_read() {
    for missing in [Barrier, Fence] {
        twins(Compiler, missing, |t, right| {
            let (x, s, bar) = (t.input(DType::F32, &[128]), t.smem(DType::F32, &[128]), t.barriers(1));
            t.load(t.whole(s));
            if right || missing == Barrier {
                let kind = FenceKind::ProxyAsyncSharedCta;
                t.op(OpKind::Fence { kind });
            }
            if right || missing == Fence {
                t.sync();
            }
            t.copy_in(t.whole(x), t.whole(s), bar, 0);
        });
    }
}

#[test]
fn a_bulk_load_overwrites_what_lanes_wrote() {
    twins(Compiler, Fence, |t, right| {
        let (x, s, bar) = (t.input(DType::F32, &[128]), t.smem(DType::F32, &[128]), t.barriers(1));
        let y = floats(t);
        t.store(t.whole(s), y);
        if right {
            t.commit();
        } else {
            t.sync();
        }
        t.copy_in(t.whole(x), t.whole(s), bar, 0);
    });
}

#[test]
fn a_bulk_load_reads_what_lanes_stored() {
    for missing in [Barrier, Fence] {
        twins(Compiler, missing, |t, right| {
            let (p, s, bar) = (t.output(DType::F32, &[128]), t.smem(DType::F32, &[128]), t.barriers(1));
            let y = floats(t);
            t.store(t.whole(p), y);
            if right || missing == Barrier {
                let kind = FenceKind::ProxyAsyncGlobal;
                t.op(OpKind::Fence { kind });
            }
            if right || missing == Fence {
                // commit_smem announces shared memory only.
                t.commit();
            }
            t.copy_in(t.whole(p), t.whole(s), bar, 0);
        });
    }
}

#[test]
fn warps_have_seen_their_phases_before_the_next_load() {
    twins(Compiler, Barrier, |t, right| {
        let (x, s, bar) = (
            t.input(DType::F32, &[128]),
            t.smem(DType::F32, &[2, 128]),
            t.barriers(2),
        );
        t.wait(bar, 0);
        if right {
            t.sync();
        }
        t.copy_in(t.whole(x), t.slot(s, Index::Const(1)), bar, 1);
    });
}

#[test]
fn what_one_warp_has_waited_for() {
    twins(Compiler, Barrier, |t, right| {
        let (x, s, bar) = (t.input(DType::F32, &[128]), t.smem(DType::F32, &[128]), t.barriers(1));
        t.in_warp(0, |t| {
            t.copy_in(t.whole(x), t.whole(s), bar, 0);
            t.wait(bar, 0);
        });
        if right {
            t.sync();
        }
        t.load(t.whole(s));
    });
}

#[test]
fn what_one_warp_waits_for_is_not_told_to_others_of_its_region() {
    // One region: its warps tell each other, or don't. Two of them: the compiler orders the second behind the first.
    let build = |t: &mut Test, regions: u32| {
        let (x, s, bar) = (t.input(DType::F32, &[128]), t.smem(DType::F32, &[128]), t.barriers(2));
        t.copy_in(t.whole(x), t.whole(s), bar, 0);
        let again = |t: &mut Test, axis| t.when_warp(axis, 1, |t| t.copy_in(t.whole(x), t.whole(s), bar, 1));
        t.in_every_warp(|t, axis| {
            t.when_warp(axis, 0, |t| t.wait(bar, 0));
            if regions == 1 {
                again(t, axis);
            }
        });
        if regions == 2 {
            t.in_every_warp(again);
        }
    };
    clean(|t| build(t, 1));
    let found = findings_of(1, true, |t| build(t, 2));
    assert!(
        found.iter().any(|f| (f.fault, f.missing) == (Compiler, Barrier)),
        "{found:?}"
    );
}

#[test]
fn the_other_warps_meet_a_feeding_loop() {
    twins(Compiler, Barrier, |t, right| {
        let (x, s, bar) = (t.input(DType::F32, &[128]), t.smem(DType::F32, &[128]), t.barriers(1));
        let n = t.int(3);
        t.repeat(n, |t, _| {
            t.wait(bar, 0);
            t.copy_in(t.whole(x), t.whole(s), bar, 0);
            t.wait(bar, 0);
        });
        if right {
            t.sync();
        }
        t.load(t.whole(s));
    });
}

#[test]
fn slots_of_a_ring_are_apart() {
    // Round i reads slot i mod 2 and refills the other one; broken: the same one.
    twins(Compiler, Barrier, |t, right| {
        let (x, s, bar) = (
            t.input(DType::F32, &[128]),
            t.smem(DType::F32, &[2, 128]),
            t.barriers(1),
        );
        t.sync();
        let (n, two) = (t.int(2), t.int(2));
        t.repeat(n, |t, i| {
            let rem = |t: &mut Test, a| {
                let op = BinaryOp::Rem;
                t.b.op1(OpKind::Binary { op, a, b: two }, DType::I32, &[])
            };
            let one = t.int(1);
            let next = OpKind::Binary {
                op: BinaryOp::Add,
                a: i,
                b: one,
            };
            let next = t.b.op1(next, DType::I32, &[]);
            let (here, other) = (rem(t, i), rem(t, next));
            let y = t.load(t.slot(s, Index::Value(here)));
            let o = t.output(DType::F32, &[128]);
            t.store(t.whole(o), y);
            let kind = FenceKind::ProxyAsyncSharedCta;
            t.op(OpKind::Fence { kind });
            let to = if right { other } else { here };
            t.copy_in(t.whole(x), t.slot(s, Index::Value(to)), bar, 0);
            t.sync();
        });
    });
}

// ---------------------------------------------------------------------------------------------- bulk stores

#[test]
fn the_kernel_commits_what_a_bulk_store_reads() {
    twins(User, Barrier, |t, right| {
        let (s, out) = (t.smem(DType::F32, &[128]), t.output(DType::F32, &[128]));
        let x = floats(t);
        t.store(t.whole(s), x);
        if right {
            t.commit();
        }
        t.copy_out(t.whole(s), t.whole(out));
        t.wait_out(0, WaitScope::SmemRead);
    });
}

#[test]
fn bulk_stores_have_read_when_the_kernel_ends() {
    let build = |t: &mut Test, right: bool| {
        let (s, out) = (t.smem(DType::F32, &[2, 128]), t.output(DType::F32, &[2, 128]));
        for i in 0..2 {
            t.copy_out(t.slot(s, Index::Const(i)), t.slot(out, Index::Const(i)));
        }
        t.wait_out(u32::from(!right), WaitScope::SmemRead);
    };
    twins(Compiler, Wait, build);
    // Nobody else gets the memory while they read, whoever places barriers.
    twins_with(1, false, Compiler, Wait, build);
}

#[test]
fn one_lane_has_waited_for_a_bulk_store() {
    let build = |t: &mut Test, right: bool| {
        let (s, out) = (t.smem(DType::F32, &[128]), t.output(DType::F32, &[128]));
        let x = floats(t);
        t.copy_out(t.whole(s), t.whole(out));
        t.wait_out(0, WaitScope::SmemRead);
        if right {
            t.sync();
        }
        t.store(t.whole(s), x);
    };
    twins(Compiler, Barrier, build);
    // This one is owed under `unsafe_no_auto_barriers` too.
    twins_with(1, false, Compiler, Barrier, build);
}

#[test]
fn the_kernel_waits_for_its_bulk_stores() {
    twins(User, Wait, |t, right| {
        let (s, out) = (t.smem(DType::F32, &[128]), t.output(DType::F32, &[128]));
        let x = floats(t);
        t.copy_out(t.whole(s), t.whole(out));
        if right {
            t.wait_out(0, WaitScope::SmemRead);
        }
        t.sync();
        t.store(t.whole(s), x);
        t.wait_out(0, WaitScope::SmemRead);
    });
}

#[test]
fn a_barrier_settles_only_what_was_waited_for() {
    // Two stores; the first barrier comes when only the older one was waited for.
    twins(Compiler, Barrier, |t, right| {
        let (s, out) = (t.smem(DType::F32, &[2, 128]), t.output(DType::F32, &[2, 128]));
        let x = floats(t);
        for i in 0..2 {
            t.copy_out(t.slot(s, Index::Const(i)), t.slot(out, Index::Const(i)));
        }
        t.wait_out(1, WaitScope::SmemRead);
        t.sync();
        t.store(t.slot(s, Index::Const(0)), x);
        t.commit();
        t.wait_out(0, WaitScope::SmemRead);
        if right {
            t.sync();
        }
        t.store(t.slot(s, Index::Const(1)), x);
    });
}

#[test]
fn lanes_read_back_what_a_bulk_store_wrote() {
    let build = |scope: WaitScope| {
        move |t: &mut Test, right: bool| {
            let (s, out) = (t.smem(DType::F32, &[128]), t.output(DType::F32, &[128]));
            t.copy_out(t.whole(s), t.whole(out));
            t.wait_out(0, if right { WaitScope::Complete } else { scope });
            if right || scope == WaitScope::SmemRead {
                t.sync();
            }
            t.load(t.whole(out));
        }
    };
    twins(Compiler, Barrier, build(WaitScope::Complete));
    twins(User, Wait, build(WaitScope::SmemRead));
}

#[test]
fn a_bulk_store_of_one_warp_and_a_load_by_another() {
    twins(Compiler, Barrier, |t, right| {
        let (x, s, bar) = (t.input(DType::F32, &[128]), t.smem(DType::F32, &[128]), t.barriers(1));
        let out = t.output(DType::F32, &[128]);
        t.in_warp(2, |t| {
            t.copy_out(t.whole(s), t.whole(out));
            t.wait_out(0, WaitScope::SmemRead);
        });
        if right {
            t.sync();
        }
        t.copy_in(t.whole(x), t.whole(s), bar, 0);
    });
}

// ---------------------------------------------------------------------------------------------- tensor cores

#[test]
fn each_warp_has_waited_for_its_own_wgmma() {
    twins(Compiler, Barrier, |t, right| {
        let (a, b, x) = (t.tile(), t.tile(), t.input(DType::F16, &[64, 64]));
        let bar = t.barriers(1);
        let acc = t.acc();
        let acc = t.wgmma(acc, a, b);
        t.wait_mma(0, acc);
        if right {
            t.sync();
        }
        t.copy_in(t.whole(x), t.whole(b), bar, 0);
    });
}

#[test]
fn the_kernel_waits_for_its_last_wgmma() {
    twins(User, Wait, |t, right| {
        let (a, b, x) = (t.tile(), t.tile(), t.input(DType::F16, &[64, 64]));
        let bar = t.barriers(1);
        let acc = t.acc();
        let acc = t.wgmma(acc, a, b);
        if right {
            t.wait_mma(0, acc);
        }
        t.sync();
        t.copy_in(t.whole(x), t.whole(b), bar, 0);
    });
}

#[test]
fn the_wgmma_before_the_last_is_over() {
    twins(Compiler, Wait, |t, right| {
        let (a, b, c, x) = (t.tile(), t.tile(), t.tile(), t.input(DType::F16, &[64, 64]));
        let bar = t.barriers(1);
        let acc = t.acc();
        let acc = t.wgmma(acc, a, b);
        let mut acc = t.wgmma(acc, a, c);
        if right {
            acc = t.wait_mma(1, acc);
            t.sync();
        }
        t.copy_in(t.whole(x), t.whole(b), bar, 0);
        t.wait_mma(0, acc);
    });
}

#[test]
fn a_barrier_while_a_wgmma_flies_settles_nothing_of_it() {
    twins(Compiler, Barrier, |t, right| {
        let (a, b, x) = (t.tile(), t.tile(), t.input(DType::F16, &[64, 64]));
        let bar = t.barriers(1);
        let acc = t.acc();
        let acc = t.wgmma(acc, a, b);
        let acc = t.wgmma(acc, a, b);
        let acc = t.wait_mma(1, acc);
        t.sync();
        t.wait_mma(0, acc);
        if right {
            t.sync();
        }
        t.copy_in(t.whole(x), t.whole(b), bar, 0);
    });
}

#[test]
fn the_kernel_commits_what_a_tensor_core_reads() {
    twins(User, Fence, |t, right| {
        let (a, b, x) = (t.tile(), t.tile(), t.input(DType::F16, &[64, 64]));
        let x = t.load(t.whole(x));
        t.store(t.whole(b), x);
        if right {
            t.commit();
        } else {
            t.sync();
        }
        let acc = t.acc();
        let acc = t.wgmma(acc, a, b);
        t.wait_mma(0, acc);
    });
}

// ---------------------------------------------------------------------------------------------- warp regions

#[test]
fn a_barrier_that_one_warp_reaches() {
    twins(Compiler, Warps, |t, right| {
        t.in_warp(1, |t| t.sync_of(if right { Group::Warp } else { Group::Warpgroup }));
    });
}

#[test]
fn a_commit_in_a_warp_region_is_the_warps() {
    twins(Compiler, Barrier, |t, right| {
        let s = t.smem(DType::F32, &[1]);
        let x = zero(t);
        t.in_warp(3, |t| {
            t.store(t.at(s, 0), x);
            t.commit();
        });
        if right {
            t.sync();
        }
        t.load(t.at(s, 0));
    });
}

#[test]
fn what_was_before_a_warp_region() {
    twins(Compiler, Barrier, |t, right| {
        let s = t.smem(DType::F32, &[1]);
        let x = zero(t);
        t.store(t.at(s, 0), x);
        if right {
            t.sync();
        }
        t.in_warp(1, |t| {
            t.load(t.at(s, 0));
        });
    });
}

#[test]
fn the_warps_of_a_region_are_in_no_order() {
    clean(|t| {
        let s = t.smem(DType::F32, &[1]);
        let x = zero(t);
        t.in_every_warp(|t, _| t.store(t.at(s, 0), x));
        t.sync();
        t.load(t.at(s, 0));
    });
}

#[test]
fn one_warp_arrives_for_all() {
    twins(Compiler, Barrier, |t, right| {
        let (s, bar) = (t.smem(DType::F32, &[128]), t.barriers(1));
        t.load(t.whole(s));
        if right {
            t.sync();
        }
        t.in_warp(0, |t| t.arrive(bar, 0));
    });
}

// ---------------------------------------------------------------------------------------------- control

#[test]
fn a_loop_comes_around() {
    // The hazard is between one round's end and the next one's start, of a loop whose rounds nobody knows.
    twins(Compiler, Barrier, |t, right| {
        let (s, n) = (t.smem(DType::F32, &[1]), t.b.scalar(DType::I32));
        let x = zero(t);
        t.repeat(n, |t, _| {
            if right {
                t.sync();
            }
            t.store(t.at(s, 0), x);
            t.sync();
            t.load(t.at(s, 0));
        });
    });
}

#[test]
fn a_loop_that_may_not_run() {
    twins(Compiler, Barrier, |t, right| {
        let (s, n) = (t.smem(DType::F32, &[1]), t.b.scalar(DType::I32));
        let x = zero(t);
        t.store(t.at(s, 0), x);
        t.repeat(n, |t, _| t.sync());
        if right {
            t.sync();
        }
        t.load(t.at(s, 0));
    });
}

#[test]
fn what_the_condition_read_last() {
    twins(Compiler, Barrier, |t, right| {
        let flag = t.smem(DType::I32, &[1]);
        let seven = t.int(7);
        t.store(t.at(flag, 0), seven);
        t.commit();
        t.repeat_while(
            |t| {
                let a = t.load(t.at(flag, 0));
                let b = t.int(5);
                let op = CompareOp::Lt;
                t.b.op1(OpKind::Compare { op, a, b }, DType::Bool, &[])
            },
            |t| {
                t.sync();
                t.store(t.at(flag, 0), seven);
                t.commit();
            },
        );
        if right {
            t.sync();
        }
        t.store(t.at(flag, 0), seven);
    });
}

#[test]
fn one_choice_holds_for_a_whole_path() {
    twins(Compiler, Barrier, |t, right| {
        let (s, out) = (t.smem(DType::F32, &[1]), t.output(DType::F32, &[1]));
        let (n, m) = (t.b.scalar(DType::I32), t.b.scalar(DType::I32));
        let zero_ = t.int(0);
        let test = |t: &mut Test, op, a| t.b.op1(OpKind::Compare { op, a, b: zero_ }, DType::Bool, &[]);
        let first = test(t, CompareOp::Eq, n);
        let second = OpKind::Unary {
            op: UnaryOp::Not,
            a: if right { first } else { test(t, CompareOp::Eq, m) },
        };
        let second = t.b.op1(second, DType::Bool, &[]);
        let x = zero(t);
        t.when(first, |t| t.store(t.at(s, 0), x));
        t.when(second, |t| {
            let y = t.load(t.at(s, 0));
            t.store(t.at(out, 0), y);
        });
    });
}

#[test]
fn what_only_computes_is_no_choice() {
    // Of sixteen paths one is out of order; behind them come loops of unknown length that touch nothing.
    for path in 0..16 {
        let (kernel, assignment, allocation) = built(1, true, |t| {
            let s = t.smem(DType::F32, &[1]);
            let x = zero(t);
            t.store(t.at(s, 0), x);
            for bit in 0..4 {
                let (a, b) = (t.b.scalar(DType::I32), t.int(0));
                let op = CompareOp::Eq;
                let which = t.b.op1(OpKind::Compare { op, a, b }, DType::Bool, &[]);
                t.in_arm(which, usize::from(path >> bit & 1 == 0), Test::sync);
            }
            for _ in 0..6 {
                let n = t.b.scalar(DType::I32);
                t.repeat(n, |t, i| {
                    let op = BinaryOp::Add;
                    t.b.op1(OpKind::Binary { op, a: i, b: i }, DType::I32, &[]);
                });
            }
            t.load(t.at(s, 0));
        });
        let report = verify_order::check(&kernel, &assignment, &allocation);
        assert_eq!(
            (report.findings.len(), report.bounded),
            (1, false),
            "{path}: {report:?}"
        );
    }
}

#[test]
fn a_long_loop_is_walked_where_its_rounds_differ() {
    // Each round reads a slot that the one before wrote. In one round of a million something else happens, without a barrier or with one.
    for at in [0, 3, 77, 777_776, 999_998, 999_999] {
        for right in [true, false] {
            let (kernel, assignment, allocation) = built(1, true, |t| {
                let (ring, s) = (t.smem(DType::F32, &[4, 128]), t.smem(DType::F32, &[1]));
                let (row, x) = (floats(t), zero(t));
                let n = t.int(1_000_000);
                t.repeat(n, |t, i| {
                    let four = t.int(4);
                    let op = BinaryOp::Rem;
                    let slot = t.b.op1(OpKind::Binary { op, a: i, b: four }, DType::I32, &[]);
                    t.load(t.slot(ring, Index::Value(slot)));
                    t.sync();
                    t.store(t.slot(ring, Index::Value(slot)), row);
                    let (b, op) = (t.int(at), CompareOp::Eq);
                    let which = t.b.op1(OpKind::Compare { op, a: i, b }, DType::Bool, &[]);
                    t.when(which, |t| {
                        t.store(t.at(s, 0), x);
                        if right {
                            t.sync();
                        }
                        t.load(t.at(s, 0));
                    });
                });
            });
            let report = verify_order::check(&kernel, &assignment, &allocation);
            assert_eq!(report.findings.is_empty(), right, "{at}: {report:?}");
            assert!(!report.bounded && report.steps < 1000, "{at}: {report:?}");
        }
    }
}

// ---------------------------------------------------------------------------------------------- memory that changes owner

#[test]
fn scopes_that_share_bytes_are_ordered_both_ways() {
    let build = |t: &mut Test, right: bool| {
        let (a, b) = (t.inner_smem(DType::F32, &[128]), t.inner_smem(DType::F32, &[128]));
        let n = t.int(3);
        t.share(a, b);
        let x = zero(t);
        t.repeat(n, |t, _| {
            for (alloc, ordered) in [(a, right), (b, true)] {
                if ordered {
                    t.sync_of(Group::Block);
                }
                t.scope(&[alloc], false, |t| {
                    t.store(t.at(alloc, 0), x);
                    t.sync();
                    t.load(t.at(alloc, 0));
                });
            }
        });
    };
    twins(Compiler, Barrier, build);
    twins_with(1, false, Compiler, Barrier, build);
}

#[test]
fn a_scope_takes_over_from_what_still_runs() {
    twins(Compiler, Wait, |t, right| {
        let (a, b) = (t.inner_smem(DType::F32, &[128]), t.inner_smem(DType::F32, &[128]));
        let out = t.output(DType::F32, &[128]);
        t.share(a, b);
        t.scope(&[a], false, |t| t.copy_out(t.whole(a), t.whole(out)));
        if right {
            t.wait_out(0, WaitScope::SmemRead);
        }
        t.sync_of(Group::Block);
        t.scope(&[b], false, |t| {
            let x = floats(t);
            t.store(t.whole(b), x);
        });
    });
}

#[test]
fn a_scope_that_takes_over_announces_for_its_loads() {
    twins(Compiler, Fence, |t, right| {
        let (a, b) = (t.inner_smem(DType::F32, &[128]), t.inner_smem(DType::F32, &[128]));
        let (x, bar) = (t.input(DType::F32, &[128]), t.barriers(1));
        t.share(a, b);
        t.scope(&[a], false, |t| {
            let x = floats(t);
            t.store(t.whole(a), x);
        });
        if right {
            t.commit();
        }
        t.sync_of(Group::Block);
        t.scope(&[b], false, |t| t.copy_in(t.whole(x), t.whole(b), bar, 0));
    });
}

#[test]
fn other_warpgroups_have_left_the_memory() {
    twins_with(2, true, Compiler, BlockBarrier, |t, right| {
        let (a, b) = (t.inner_smem(DType::F32, &[128]), t.inner_smem(DType::F32, &[128]));
        t.share(a, b);
        t.scope(&[a], false, |t| {
            t.load(t.whole(a));
        });
        t.sync_of(if right { Group::Block } else { Group::Warpgroup });
        t.scope(&[b], false, |t| {
            let x = floats(t);
            t.store(t.whole(b), x);
        });
    });
}

#[test]
fn a_collective_scope_begins_with_a_block_barrier() {
    twins_with(2, true, Compiler, BlockBarrier, |t, right| {
        let a = t.inner_smem(DType::F32, &[128]);
        if right {
            t.sync_of(Group::Block);
        }
        t.scope(&[a], true, |_| ());
    });
}

// ---------------------------------------------------------------------------------------------- what is not demanded

#[test]
fn without_automatic_barriers_order_is_the_kernels() {
    clean_with(1, false, |t| {
        let s = t.smem(DType::F32, &[1]);
        let x = zero(t);
        t.store(t.at(s, 0), x);
        t.load(t.at(s, 0));
    });
}

#[test]
fn a_text_says_what_where_and_what_is_missing() {
    let found = findings_of(1, true, |t| {
        let (s, n) = (t.smem(DType::F32, &[4]), t.b.scalar(DType::I32));
        let x = zero(t);
        t.repeat(n, |t, _| t.store(t.at(s, 1), x));
        t.load(t.at(s, 1));
    });
    let [finding] = found.as_slice() else {
        panic!("{found:?}")
    };
    for part in [
        "load (op",
        "reads bytes 4 to 8 of shared memory",
        "f32[4]",
        "store (op",
        "expected: a warpgroup barrier",
        "path: ",
    ] {
        assert!(finding.text.contains(part), "{part}: {finding}");
    }
}
