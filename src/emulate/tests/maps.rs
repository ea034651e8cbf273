//! Tensor maps in global memory, whose addresses the kernel sets: copies through them, and everything that may be missing.
use super::build::*;
use super::copies::{dump, map};
use crate::emulate::{Options, encode_map_template};
use crate::error::Error;
use crate::ptx::flat::Reg;
use crate::ptx::inst::Inst;
use crate::ptx::launch::{TensorMapElement, TensorMapSpec, TensorMapSwizzle};
use crate::ptx::modifier::*;
use crate::ptx::operand::{Addr, ParamRef, Src};
use smallvec::smallvec;

/// Where the barrier is, and the bytes of a box at 0.
const BARRIER: i32 = 1024;
const BOX: u32 = 512;
const MAPS: u32 = 0;
const HERE: u32 = 1;
const THERE: u32 = 2;
const OUT: u32 = 3;

/// A tensor of 8 rows of 32 words, in boxes of 4 rows.
fn template() -> TensorMapSpec {
    map(77, TensorMapElement::F32, &[32, 8], &[32, 4], TensorMapSwizzle::None)
}

/// Two templates in memory; what they are to be set to; room for results.
fn buffers() -> [Vec<u8>; 4] {
    let maps = [encode_map_template(0), encode_map_template(1)].concat();
    [maps, random_bytes(1024, 1), random_bytes(1024, 2), vec![0; 1024]]
}

/// Two warps; barrier initialised, nothing else.
fn kernel() -> (Kernel, Reg) {
    let mut k = Kernel::new(64).smem(2048);
    k.flat.launch.map_templates = vec![template(), template()];
    let base = k.smem_base();
    let first = k.first_thread();
    k.when(first, false, |k| {
        k.init_barrier(base, BARRIER, 1);
        k.push(Inst::FenceMbarrierInit {});
    });
    k.sync();
    (k, base)
}

/// Of the first thread of a warp.
fn thread_of(k: &mut Kernel, warp: u32) -> Reg {
    let tid = k.tid();
    k.compare(Compare::Eq, tid.into(), imm(32 * warp))
}

fn replace(k: &mut Kernel, at: Addr<Reg>, new: Reg) {
    k.push(Inst::ReplaceMapAddress {
        addr: at,
        new: Src::Reg(new),
    });
}
fn release(k: &mut Kernel, scope: Scope) {
    k.push(Inst::FenceMapRelease { scope });
}
fn acquire(k: &mut Kernel, addr: Addr<Reg>, scope: Scope) {
    k.push(Inst::FenceMapAcquire { scope, addr });
}

/// The thread of `p` loads rows `row`… of a box.
fn load(k: &mut Kernel, p: Reg, base: Reg, map: Reg, row: i32) {
    k.when(p, false, |k| {
        k.expect(base, BARRIER, BOX);
        k.push(Inst::TensorLoad {
            dst: Addr::new(base),
            map,
            coords: smallvec![imm(0), Src::imm32(row)],
            bar: Addr::at(base, BARRIER),
        });
    });
}

/// Warp 0 sets the address of the first map, warp 1 loads through it. Fences of these scopes, or none.
fn loads(released: Option<Scope>, acquired: Option<Scope>) -> Kernel {
    let (mut k, base) = kernel();
    let (maps, there) = (k.pointer(MAPS), k.pointer(THERE));
    let (writer, user) = (thread_of(&mut k, 0), thread_of(&mut k, 1));
    k.when(writer, false, |k| {
        replace(k, Addr::new(maps), there);
        if let Some(scope) = released {
            release(k, scope);
        }
    });
    k.sync();
    k.when(user, false, |k| {
        if let Some(scope) = acquired {
            acquire(k, Addr::new(maps), scope);
        }
    });
    load(&mut k, user, base, maps, 2);
    k.wait(base, BARRIER, imm(0));
    dump(&mut k, base, OUT, BOX);
    k
}

fn everywhere(k: &Kernel, check: impl Fn(&[Vec<u8>; 4], &[Vec<u8>; 4])) {
    for options in every_order() {
        let before = buffers();
        let mut after = before.clone();
        k.try_run(&mut after, &options).unwrap_or_else(|e| panic!("{e}"));
        check(&before, &after);
    }
}

/// Wrong under every schedule.
fn nowhere(k: &Kernel) -> Error {
    for options in every_order() {
        k.try_run(&mut buffers(), &options).expect_err("the kernel is wrong");
    }
    k.error(&mut buffers())
}

fn expects(error: &Error, what: &str, expected: &str) {
    assert!(error.what.contains(what), "{error}");
    assert!(error.expected.as_deref().unwrap_or("").contains(expected), "{error}");
}
const UNACQUIRED: &str = "which its warp has not acquired as it is now";

#[test]
fn a_load_goes_where_the_kernel_has_set_the_map() {
    for scope in [Scope::Cta, Scope::Cluster, Scope::Gpu, Scope::Sys] {
        everywhere(&loads(Some(scope), Some(scope)), |before, after| {
            assert_eq!(after[OUT as usize][..512], before[THERE as usize][256..768]);
            assert_eq!(after[HERE as usize], before[HERE as usize]);
        });
    }
}

#[test]
fn nothing_is_checked_where_nobody_asks() {
    let k = loads(None, None);
    let program = crate::emulate::Program::<crate::emulate::check::NoCheck>::decode(&k.flat).unwrap();
    let mut data = buffers();
    let lent = super::build::lent(&mut data);
    // SAFETY: the buffers are ours, exclusively, and outlive the call.
    unsafe { crate::emulate::run(&program, &lent, &options(), &crate::emulate::Unwatched) }.unwrap();
    assert_eq!(data[OUT as usize][..512], buffers()[THERE as usize][256..768]);
}

#[test]
fn a_missing_release_or_acquire_is_an_error() {
    let error = nowhere(&loads(None, Some(Scope::Gpu)));
    expects(&error, UNACQUIRED, "release after the change by warp 0");
    assert!(error.what.contains("TensorLoad"), "{error}");
    let error = nowhere(&loads(Some(Scope::Gpu), None));
    expects(&error, UNACQUIRED, "acquire of the map after the change by warp 0");
    let error = nowhere(&loads(None, None));
    expects(&error, UNACQUIRED, "acquire of the map after the change by warp 0");
}

/// Both in one warp: fences are due all the same.
#[test]
fn a_warp_acquires_what_it_has_changed_itself() {
    let one_warp = |fences: bool| {
        let (mut k, base) = kernel();
        let (maps, there) = (k.pointer(MAPS), k.pointer(THERE));
        let p = k.first_thread();
        k.when(p, false, |k| {
            replace(k, Addr::at(maps, 128), there);
            if fences {
                release(k, Scope::Gpu);
                acquire(k, Addr::at(maps, 128), Scope::Gpu);
            }
        });
        let second = k.rd();
        k.push(Inst::AddInt {
            ty: IntType::U64,
            d: second,
            a: maps.into(),
            b: Src::Imm(128),
        });
        load(&mut k, p, base, second, -1);
        k.wait(base, BARRIER, imm(0));
        dump(&mut k, base, OUT, BOX);
        k
    };
    everywhere(&one_warp(true), |before, after| {
        let wanted = [vec![0; 128], before[THERE as usize][..384].to_vec()].concat();
        assert_eq!(after[OUT as usize][..512], wanted);
    });
    expects(&nowhere(&one_warp(false)), UNACQUIRED, "acquire of the map");
}

#[test]
fn an_acquire_comes_after_the_change_and_its_release() {
    // Before the change: nothing is left of it.
    let (mut k, base) = kernel();
    let (maps, there) = (k.pointer(MAPS), k.pointer(THERE));
    let (writer, user) = (thread_of(&mut k, 0), thread_of(&mut k, 1));
    k.when(user, false, |k| acquire(k, Addr::new(maps), Scope::Gpu));
    k.sync();
    k.when(writer, false, |k| {
        replace(k, Addr::new(maps), there);
        release(k, Scope::Gpu);
    });
    k.sync();
    load(&mut k, user, base, maps, 0);
    k.wait(base, BARRIER, imm(0));
    expects(
        &nowhere(&k),
        UNACQUIRED,
        "acquire of the map after the change by warp 0",
    );

    // After it, as this schedule has it, and nothing orders the two.
    let (mut k, base) = kernel();
    let (maps, there) = (k.pointer(MAPS), k.pointer(THERE));
    let (writer, user) = (thread_of(&mut k, 1), thread_of(&mut k, 0));
    k.when(writer, false, |k| {
        replace(k, Addr::new(maps), there);
        release(k, Scope::Gpu);
    });
    k.when(user, false, |k| acquire(k, Addr::new(maps), Scope::Gpu));
    k.sync();
    load(&mut k, user, base, maps, 0);
    k.wait(base, BARRIER, imm(0));
    expects(&k.error(&mut buffers()), UNACQUIRED, "a barrier between the release");
    nowhere(&k);
}

/// One warp acquires for the other, which it tells, or not.
#[test]
fn a_warp_may_acquire_for_those_of_its_block() {
    let for_another = |tells: bool| {
        let (mut k, base) = kernel();
        let (maps, there) = (k.pointer(MAPS), k.pointer(THERE));
        let (writer, user) = (thread_of(&mut k, 0), thread_of(&mut k, 1));
        k.when(writer, false, |k| {
            replace(k, Addr::new(maps), there);
            release(k, Scope::Gpu);
        });
        if !tells {
            k.sync();
        }
        k.when(writer, false, |k| acquire(k, Addr::new(maps), Scope::Gpu));
        if tells {
            k.sync();
        }
        load(&mut k, user, base, maps, 0);
        k.wait(base, BARRIER, imm(0));
        dump(&mut k, base, OUT, BOX);
        k
    };
    everywhere(&for_another(true), |before, after| {
        assert_eq!(after[OUT as usize][..512], before[THERE as usize][..512]);
    });
    expects(&nowhere(&for_another(false)), UNACQUIRED, "acquire of the map");
}

/// A CTA of a cluster sets a map, the other uses it.
#[test]
fn scopes_include_both_sides() {
    let across = |released: Scope, acquired: Scope| {
        let (mut k, base) = kernel();
        k = k.grid([2, 1, 1], [2, 1, 1]);
        let (maps, there, out) = (k.pointer(MAPS), k.pointer(THERE), k.pointer(OUT));
        let rank = k.special(SpecialReg32::ClusterCtarank);
        let tid = k.tid();
        let number = k.r();
        k.push(Inst::MadLo {
            ty: IntType::U32,
            d: number,
            a: rank.into(),
            b: imm(64),
            c: tid.into(),
        });
        let writer = k.compare(Compare::Eq, number.into(), imm(0));
        let user = k.compare(Compare::Eq, number.into(), imm(64));
        k.when(writer, false, |k| {
            replace(k, Addr::new(maps), there);
            release(k, released);
        });
        k.push(Inst::ClusterArrive {
            sem: ClusterArriveSem::Release,
        });
        k.push(Inst::ClusterWait {});
        k.when(user, false, |k| acquire(k, Addr::new(maps), acquired));
        load(&mut k, user, base, maps, 0);
        let waits = k.compare(Compare::Eq, rank.into(), imm(1));
        k.branch(waits, false, 1, 2, None);
        k.wait(base, BARRIER, imm(0));
        let word = k.load_shared(base, 0);
        k.store(out, word);
        k.jump();
        k
    };
    for scope in [Scope::Cluster, Scope::Gpu, Scope::Sys] {
        everywhere(&across(scope, scope), |before, after| {
            assert_eq!(after[OUT as usize][..4], before[THERE as usize][..4]);
        });
    }
    expects(&nowhere(&across(Scope::Cta, Scope::Gpu)), UNACQUIRED, "release.cluster");
    expects(&nowhere(&across(Scope::Gpu, Scope::Cta)), UNACQUIRED, "acquire.cluster");
}

/// Ordinary stores change a map, too.
#[test]
fn an_ordinary_store_changes_a_map() {
    let stored = |again: bool| {
        let (mut k, base) = kernel();
        let (maps, here, there) = (k.pointer(MAPS), k.pointer(HERE), k.pointer(THERE));
        let p = k.first_thread();
        k.when(p, false, |k| {
            replace(k, Addr::new(maps), here);
            release(k, Scope::Gpu);
            acquire(k, Addr::new(maps), Scope::Gpu);
            k.push(Inst::St {
                sem: StoreSem::Weak,
                space: Space::Global,
                ty: MemType::B64,
                addr: Addr::new(maps),
                a: smallvec![there.into()],
            });
            if again {
                release(k, Scope::Gpu);
                acquire(k, Addr::new(maps), Scope::Gpu);
            }
        });
        load(&mut k, p, base, maps, 0);
        k.wait(base, BARRIER, imm(0));
        dump(&mut k, base, OUT, BOX);
        k
    };
    everywhere(&stored(true), |before, after| {
        assert_eq!(after[OUT as usize][..512], before[THERE as usize][..512]);
    });
    expects(
        &nowhere(&stored(false)),
        UNACQUIRED,
        "acquire of the map after the change by warp 0",
    );
}

/// A map as the host wrote it is acquired once, too: a GPU may have another launch's.
#[test]
fn what_nobody_changes_is_acquired_in_each_launch() {
    let unchanged = |acquired: bool| {
        let (mut k, base) = kernel();
        let maps = k.pointer(MAPS);
        let p = k.first_thread();
        if acquired {
            k.when(p, false, |k| acquire(k, Addr::new(maps), Scope::Sys));
        }
        load(&mut k, p, base, maps, 0);
        k.wait(base, BARRIER, imm(0));
        k
    };
    let set = |k: &Kernel| {
        let mut data = buffers();
        data[0][..8].copy_from_slice(&(2u64 << 40).to_le_bytes());
        k.try_run(&mut data, &options())
    };
    set(&unchanged(true)).unwrap();
    expects(
        &set(&unchanged(false)).unwrap_err(),
        UNACQUIRED,
        "of the map in this launch",
    );
}

/// Parameter 0's map is copied to memory, and set there.
#[test]
fn a_parameter_is_copied_to_memory() {
    let (mut k, base) = kernel();
    k.flat.launch.map_templates.clear();
    let spec = TensorMapSpec {
        buffer: HERE,
        ..template()
    };
    k.tensor_map(spec);
    let p = ParamRef(k.flat.launch.params.len() as u32 - 1);
    let (maps, there) = (k.pointer(MAPS), k.pointer(THERE));
    let first = k.first_thread();
    let words: Vec<Reg> = (0..16)
        .map(|i| {
            let d = k.rd();
            k.push(Inst::LdParamMap { d, p, offset: 8 * i });
            d
        })
        .collect();
    k.when(first, false, |k| {
        for (i, word) in words.iter().enumerate() {
            k.push(Inst::St {
                sem: StoreSem::Weak,
                space: Space::Global,
                ty: MemType::B64,
                addr: Addr::at(maps, 8 * i as i32),
                a: smallvec![(*word).into()],
            });
        }
        release(k, Scope::Gpu);
    });
    k.sync();
    let user = thread_of(&mut k, 1);
    for (parity, change) in [false, true].into_iter().enumerate() {
        if change {
            // What the first load brought has been read.
            k.fence_async();
            k.sync();
            k.when(user, false, |k| {
                replace(k, Addr::new(maps), there);
                release(k, Scope::Gpu);
            });
        }
        k.when(user, false, |k| acquire(k, Addr::new(maps), Scope::Gpu));
        load(&mut k, user, base, maps, 1);
        k.wait(base, BARRIER, imm(parity as u32));
        let half = k.pointer(OUT);
        let lane = k.special(SpecialReg32::Laneid);
        let from = k.r();
        k.push(Inst::MadLo {
            ty: IntType::U32,
            d: from,
            a: lane.into(),
            b: imm(4),
            c: base.into(),
        });
        let to = k.element(half, lane, 4);
        let v = k.load_shared(from, 0);
        k.push(Inst::St {
            sem: StoreSem::Weak,
            space: Space::Global,
            ty: MemType::B32,
            addr: Addr::at(to, 512 * parity as i32),
            a: smallvec![v.into()],
        });
    }
    everywhere(&k, |before, after| {
        assert_eq!(after[OUT as usize][..128], before[HERE as usize][128..256]);
        assert_eq!(after[OUT as usize][512..640], before[THERE as usize][128..256]);
    });
}

/// Stores, and reductions, of the box in shared memory; the map changes once they are done, or before.
fn stores(reduce: Option<TensorRed>, waits: bool) -> Kernel {
    let (mut k, base) = kernel();
    let (maps, here, there) = (k.pointer(MAPS), k.pointer(HERE), k.pointer(THERE));
    let lane = k.special(SpecialReg32::Laneid);
    for row in 0..4 {
        let at = k.r();
        k.push(Inst::MadLo {
            ty: IntType::U32,
            d: at,
            a: lane.into(),
            b: imm(4),
            c: base.into(),
        });
        k.store_shared(at, 128 * row, lane.into());
    }
    k.fence_async();
    k.sync();
    let p = k.first_thread();
    k.when(p, false, |k| {
        for to in [there, here] {
            replace(k, Addr::new(maps), to);
            release(k, Scope::Gpu);
            acquire(k, Addr::new(maps), Scope::Gpu);
            let coords = smallvec![imm(0), Src::imm32(6)];
            let src = Addr::new(base);
            k.push(match reduce {
                None => Inst::TensorStore { map: maps, coords, src },
                Some(op) => Inst::TensorReduce {
                    op,
                    map: maps,
                    coords,
                    src,
                },
            });
            k.push(Inst::BulkCommit {});
            let what = if waits { BulkWait::Read } else { BulkWait::Complete };
            let n = if waits || to == here { 0 } else { 1 };
            k.push(Inst::BulkWait { what, n });
        }
    });
    k
}

#[test]
fn stores_and_reductions_go_where_the_map_was_when_they_were_issued() {
    let wanted = |old: &[u8], add: bool| {
        let mut words = words_of(old);
        for (i, word) in words[192..].iter_mut().enumerate() {
            let lane = i as u32 % 32;
            *word = if add { word.wrapping_add(lane) } else { lane };
        }
        bytes_of(&words)
    };
    for (reduce, add) in [(None, false), (Some(TensorRed::Add), true)] {
        let mut k = stores(reduce, true);
        for spec in &mut k.flat.launch.map_templates {
            spec.element = TensorMapElement::U32;
        }
        everywhere(&k, |before, after| {
            for buffer in [HERE as usize, THERE as usize] {
                assert_eq!(after[buffer], wanted(&before[buffer], add), "{reduce:?} {buffer}");
            }
        });
    }
}

#[test]
fn a_map_in_use_is_not_changed() {
    let error = stores(None, false).error(&mut buffers());
    expects(
        &error,
        "a tensor map is changed that a copy in flight may still read",
        "a wait",
    );
    assert!(error.what.contains("ReplaceMapAddress"), "{error}");
    // Of a load, too.
    let (mut k, base) = kernel();
    let (maps, here, there) = (k.pointer(MAPS), k.pointer(HERE), k.pointer(THERE));
    let p = k.first_thread();
    k.when(p, false, |k| {
        replace(k, Addr::new(maps), there);
        release(k, Scope::Gpu);
        acquire(k, Addr::new(maps), Scope::Gpu);
    });
    load(&mut k, p, base, maps, 0);
    k.when(p, false, |k| replace(k, Addr::new(maps), here));
    k.wait(base, BARRIER, imm(0));
    let error = k.error(&mut buffers());
    expects(
        &error,
        "a tensor map is changed that a copy in flight may still read",
        "a wait",
    );
}

/// What the replaced map, or the address in it, may be.
#[test]
fn maps_and_addresses_are_checked() {
    let with = |offset: i32, address: u64| {
        let (mut k, base) = kernel();
        let maps = k.pointer(MAPS);
        let new = k.mov64(address);
        let p = k.first_thread();
        k.when(p, false, |k| {
            replace(k, Addr::at(maps, offset), new);
            release(k, Scope::Gpu);
            acquire(k, Addr::at(maps, offset), Scope::Gpu);
        });
        load(&mut k, p, base, maps, 0);
        k.wait(base, BARRIER, imm(0));
        k
    };
    let (here, there) = (2u64 << 40, 3u64 << 40);
    with(0, here).run(&mut buffers());
    let error = nowhere(&with(64, here));
    expects(
        &error,
        "tensormap.replace with a misaligned tensor map",
        "a multiple of 128",
    );
    expects(
        &nowhere(&with(256, here)),
        "tensormap.replace",
        "the address of a tensor map",
    );
    expects(
        &nowhere(&with(0, here + 8)),
        "tensormap.replace with a misaligned address",
        "a multiple of 16",
    );
    // Eight rows of 128 bytes, and no more.
    let error = nowhere(&with(0, there + 16));
    expects(
        &error,
        "does not fit where its address says",
        "1024 bytes from there on in one buffer",
    );
    assert!(
        error.got.as_deref().is_some_and(|g| g.contains("byte 16 of buffer 2")),
        "{error}"
    );
    expects(
        &nowhere(&with(0, here - 16)),
        "does not fit where its address says",
        "1024 bytes",
    );
    expects(
        &nowhere(&with(0, 0)),
        "does not fit where its address says",
        "1024 bytes",
    );

    let mut garbage = buffers();
    garbage[0][9] ^= 1;
    expects(
        &with(0, here).error(&mut garbage),
        "tensormap.replace with global memory that holds no tensor map",
        "a tensor map that the host wrote",
    );
    let mut another = buffers();
    another[0][..128].copy_from_slice(&encode_map_template(2));
    expects(&with(0, here).error(&mut another), "a map of another launch", "");
    let mut k = with(0, here);
    k.flat.launch.map_templates[1].box_dims[0] = 3;
    expects(
        &k.error(&mut buffers()),
        "template 1",
        "an inner box of a multiple of 16 bytes",
    );
}

/// Blocks that cannot tell each other set one map: all to the same address, or each to its own.
#[test]
fn blocks_share_a_map_that_they_agree_on() {
    let blocks = |own: bool| {
        let (mut k, base) = kernel();
        k = k.grid([3, 1, 1], [1, 1, 1]);
        let (maps, there) = (k.pointer(MAPS), k.pointer(THERE));
        let cta = k.special(SpecialReg32::CtaidX);
        let new = k.element(there, cta, if own { 128 } else { 0 });
        let p = k.first_thread();
        k.when(p, false, |k| {
            replace(k, Addr::new(maps), new);
            release(k, Scope::Gpu);
            acquire(k, Addr::new(maps), Scope::Gpu);
        });
        load(&mut k, p, base, maps, 0);
        k.wait(base, BARRIER, imm(0));
        dump(&mut k, base, OUT, BOX);
        for spec in &mut k.flat.launch.map_templates {
            spec.dims[1] = 4;
        }
        k
    };
    let run = |k: &Kernel, threads: usize| {
        let mut data = buffers();
        let options = Options { threads, ..options() };
        k.try_run(&mut data, &options).map(|_| data)
    };
    for threads in [1, 3] {
        let after = run(&blocks(false), threads).unwrap_or_else(|e| panic!("{e}"));
        assert_eq!(after[OUT as usize][..512], buffers()[THERE as usize][..512]);
        let error = run(&blocks(true), threads).unwrap_err();
        expects(&error, "a store of another value to global memory that CTA", "");
    }
}

/// Of a warp: one map each, or one map for all, at addresses that differ.
#[test]
fn lanes_set_maps_of_their_own() {
    let lanes = |distance: u32| {
        let (mut k, _) = kernel();
        let (maps, there) = (k.pointer(MAPS), k.pointer(THERE));
        let tid = k.tid();
        let two = k.compare(Compare::Lt, tid.into(), imm(2));
        let (at, new) = (k.element(maps, tid, distance), k.element(there, tid, 16));
        k.when(two, false, |k| replace(k, Addr::new(at), new));
        k
    };
    let mut data = buffers();
    lanes(128).run(&mut data);
    assert_eq!(data[0][..8], (3u64 << 40).to_le_bytes());
    assert_eq!(data[0][128..136], ((3u64 << 40) + 16).to_le_bytes());
    assert_eq!(data[0][136..], buffers()[0][136..]);
    expects(
        &nowhere(&lanes(0)),
        "two lanes of one store have different values",
        "the same value",
    );
}

/// The first block sets the map and raises a flag, the second one waits for it; what is left out is wrong.
#[test]
fn a_flag_in_global_memory_hands_a_map_on() {
    let flagged = |released: Option<Scope>, acquired: Option<Scope>| {
        let (mut k, base) = kernel();
        k = k.grid([2, 1, 1], [1, 1, 1]);
        let (maps, there, out) = (k.pointer(MAPS), k.pointer(THERE), k.pointer(OUT));
        let cta = k.special(SpecialReg32::CtaidX);
        let tid = k.tid();
        let p = k.compare(Compare::Eq, tid.into(), imm(0));
        let first = k.compare(Compare::Eq, cta.into(), imm(0));
        k.branch(first, false, 1, 2, None);
        k.when(p, false, |k| {
            replace(k, Addr::new(maps), there);
            if let Some(scope) = released {
                release(k, scope);
            }
            k.push(Inst::Red {
                sem: AtomSem::Release,
                scope: Scope::Gpu,
                space: Space::Global,
                op: RedOp::Add,
                ty: AtomType::U32,
                addr: Addr::at(out, 1020),
                a: imm(1),
            });
        });
        k.block(crate::ptx::flat::Terminator::Return);
        k.push(Inst::WaitAtLeast {
            scope: Scope::Gpu,
            addr: Addr::at(out, 1020),
            value: imm(1),
        });
        if let Some(scope) = acquired {
            k.when(p, false, |k| acquire(k, Addr::new(maps), scope));
        }
        load(&mut k, p, base, maps, 4);
        k.wait(base, BARRIER, imm(0));
        dump(&mut k, base, OUT, BOX);
        k
    };
    for scope in [Scope::Gpu, Scope::Sys] {
        everywhere(&flagged(Some(scope), Some(scope)), |before, after| {
            assert_eq!(after[OUT as usize][..512], before[THERE as usize][512..]);
        });
    }
    let another = "the change by a warp of another cluster";
    let (gpu, cluster) = (Some(Scope::Gpu), Some(Scope::Cluster));
    expects(
        &nowhere(&flagged(None, gpu)),
        UNACQUIRED,
        &format!("release after {another}"),
    );
    expects(
        &nowhere(&flagged(gpu, None)),
        UNACQUIRED,
        &format!("acquire of the map after {another}"),
    );
    expects(&nowhere(&flagged(cluster, gpu)), UNACQUIRED, "release.gpu");
    expects(&nowhere(&flagged(gpu, cluster)), UNACQUIRED, "acquire.gpu");
}

/// A block uses what another one may have set: nothing orders the two.
#[test]
fn a_block_does_not_use_what_another_one_sets() {
    let (mut k, base) = kernel();
    k = k.grid([2, 1, 1], [1, 1, 1]);
    let (maps, there) = (k.pointer(MAPS), k.pointer(THERE));
    let cta = k.special(SpecialReg32::CtaidX);
    let first = k.compare(Compare::Eq, cta.into(), imm(0));
    let p = k.first_thread();
    k.branch(first, false, 1, 2, None);
    k.when(p, false, |k| {
        replace(k, Addr::new(maps), there);
        release(k, Scope::Gpu);
    });
    k.jump();
    k.when(p, false, |k| acquire(k, Addr::new(maps), Scope::Gpu));
    load(&mut k, p, base, maps, 4);
    k.wait(base, BARRIER, imm(0));
    let error = k.error(&mut buffers());
    expects(&error, "a bulk load of global memory that CTA (0, 0, 0) wrote", "");
}

/// The other copies that take a map.
#[test]
fn multicast_and_prefetch_take_maps_in_memory() {
    let others = |fences: bool, prefetch: bool| {
        let (mut k, base) = kernel();
        let (maps, there) = (k.pointer(MAPS), k.pointer(THERE));
        let mask = k.h();
        k.push(Inst::Mov {
            ty: BitType::B16,
            d: mask,
            a: Src::Imm(1),
        });
        let p = k.first_thread();
        k.when(p, false, |k| {
            replace(k, Addr::new(maps), there);
            if fences {
                release(k, Scope::Cta);
                acquire(k, Addr::new(maps), Scope::Cta);
            }
            let coords = smallvec![imm(0), imm(3)];
            if prefetch {
                k.push(Inst::TensorPrefetch { map: maps, coords });
                return;
            }
            k.expect(base, BARRIER, BOX);
            k.push(Inst::TensorLoadMulticast {
                dst: Addr::new(base),
                map: maps,
                coords,
                bar: Addr::at(base, BARRIER),
                mask,
            });
        });
        if !prefetch {
            k.wait(base, BARRIER, imm(0));
            dump(&mut k, base, OUT, BOX);
        }
        k
    };
    everywhere(&others(true, false), |before, after| {
        assert_eq!(after[OUT as usize][..512], before[THERE as usize][384..896]);
    });
    everywhere(&others(true, true), |_, _| {});
    for prefetch in [false, true] {
        expects(&nowhere(&others(false, prefetch)), UNACQUIRED, "acquire of the map");
    }
}

/// Buffer 4 of a device says: what address goes into the map, where the map is, where the flag is; and who sets it.
fn on_two_devices(k: &Kernel, says: [[u64; 4]; 2], options: &Options) -> Result<[Vec<Vec<u8>>; 2], Error> {
    let mut data = says.map(|words| {
        let said = words.iter().flat_map(|w| w.to_le_bytes()).collect();
        [buffers().to_vec(), vec![said]].concat()
    });
    data[1][THERE as usize] = random_bytes(1024, 3);
    let lent: Vec<_> = data.iter_mut().map(|buffers| super::build::lent(buffers)).collect();
    let lent: Vec<&[_]> = lent.iter().map(Vec::as_slice).collect();
    let program = k.decode()?;
    // SAFETY: the buffers are ours, exclusively, and outlive the call.
    unsafe { crate::emulate::run_on(&program, &lent, options, &crate::emulate::Unwatched) }?;
    Ok(data)
}

/// The address of a device's buffer.
fn address(device: u64, buffer: u32) -> u64 {
    (device * 5 + u64::from(buffer) + 1) << 40
}

/// What buffer 4 says, in the order of its words.
fn said(k: &mut Kernel) -> [Reg; 4] {
    let says = k.pointer(4);
    [0, 8, 16, 24].map(|offset| {
        let d = k.rd();
        k.push(Inst::Ld {
            sem: LoadSem::Weak,
            space: Space::Global,
            ty: MemType::B64,
            d: smallvec![d],
            addr: Addr::at(says, offset),
        });
        d
    })
}

fn raise(k: &mut Kernel, flag: Addr<Reg>) {
    k.push(Inst::Red {
        sem: AtomSem::Release,
        scope: Scope::Sys,
        space: Space::Global,
        op: RedOp::Add,
        ty: AtomType::U32,
        addr: flag,
        a: imm(1),
    });
}

fn await_flag(k: &mut Kernel, flag: Addr<Reg>) {
    k.push(Inst::WaitAtLeast {
        scope: Scope::Sys,
        addr: flag,
        value: imm(1),
    });
}

/// Each device sets its own map to its peer's buffer, reads that, and says so.
#[test]
fn a_map_is_set_to_a_peers_buffer() {
    let (mut k, base) = kernel();
    let [new, map, theirs, own] = said(&mut k);
    let p = k.first_thread();
    k.when(p, false, |k| {
        replace(k, Addr::new(map), new);
        release(k, Scope::Cta);
        acquire(k, Addr::new(map), Scope::Cta);
    });
    load(&mut k, p, base, map, 4);
    k.wait(base, BARRIER, imm(0));
    k.when(p, false, |k| {
        raise(k, Addr::new(theirs));
        await_flag(k, Addr::new(own));
    });
    dump(&mut k, base, OUT, BOX);
    let says = |device: u64, offset: u64| {
        let peer = 1 - device;
        [
            address(peer, THERE) + offset,
            address(device, MAPS),
            address(peer, OUT) + 1020,
            address(device, OUT) + 1020,
        ]
    };
    for options in every_order() {
        let after = on_two_devices(&k, [says(0, 0), says(1, 0)], &options).unwrap_or_else(|e| panic!("{e}"));
        for device in [0, 1] {
            let there = &after[1 - device][THERE as usize];
            assert_eq!(after[device][OUT as usize][..512], there[512..]);
        }
    }
    let error = on_two_devices(&k, [says(0, 0), says(1, 512)], &options()).unwrap_err();
    expects(&error, "does not fit where its address says", "1024 bytes");
    let got = error.got.as_deref().unwrap_or_default();
    assert!(
        got.contains("byte 512 of buffer 2") && got.contains("device 0"),
        "{error}"
    );
}

/// One device sets a map of its own, the other one reads through that.
#[test]
fn a_map_for_another_device_is_released_to_the_system() {
    let handed = |released: Scope, acquired: Scope| {
        let (mut k, base) = kernel();
        let [new, map, flag, reads] = said(&mut k);
        let p = k.first_thread();
        let sets = k.p();
        k.push(Inst::Setp {
            cmp: Compare::Eq,
            ftz: Ftz::No,
            ty: CompareType::U64,
            d: sets,
            a: reads.into(),
            b: Src::Imm(0),
        });
        k.branch(sets, false, 1, 2, None);
        k.when(p, false, |k| {
            replace(k, Addr::new(map), new);
            release(k, released);
            raise(k, Addr::new(flag));
            // Its memory is read until the reader says so.
            await_flag(k, Addr::at(flag, -4));
        });
        k.block(crate::ptx::flat::Terminator::Return);
        await_flag(&mut k, Addr::new(flag));
        k.when(p, false, |k| acquire(k, Addr::new(map), acquired));
        load(&mut k, p, base, map, 0);
        k.wait(base, BARRIER, imm(0));
        k.when(p, false, |k| raise(k, Addr::at(flag, -4)));
        dump(&mut k, base, OUT, BOX);
        k
    };
    let says = |reads: u64| [address(0, THERE), address(0, MAPS), address(1, OUT) + 1020, reads];
    let run = |k: &Kernel, options: &Options| on_two_devices(k, [says(0), says(1)], options);
    for options in every_order() {
        let after = run(&handed(Scope::Sys, Scope::Sys), &options).unwrap_or_else(|e| panic!("{e}"));
        assert_eq!(after[1][OUT as usize][..512], after[0][THERE as usize][..512]);
    }
    let error = run(&handed(Scope::Gpu, Scope::Sys), &options()).unwrap_err();
    expects(&error, UNACQUIRED, "release.sys");
    let error = run(&handed(Scope::Sys, Scope::Gpu), &options()).unwrap_err();
    expects(&error, UNACQUIRED, "acquire.sys");
}
