//! Loads, stores, atomics, matrices; bounds, alignment, poison.
use super::build::*;
use crate::emulate::{Contents, HostBuffer, Unwatched, run};
use crate::ptx::flat::Reg;
use crate::ptx::inst::Inst;
use crate::ptx::modifier::*;
use crate::ptx::operand::{Addr, Src};
use smallvec::smallvec;

/// Copies `n · bytes`-byte vectors per thread from buffer 0 through shared memory to buffer 1.
fn copy_kernel(ty: MemType, n: usize, bytes: u32) -> Kernel {
    let mut k = Kernel::new(64).smem(64 * 16);
    let tid = k.tid();
    let size = n as u32 * bytes;
    let (from, to, base) = (k.pointer(0), k.pointer(1), k.smem_base());
    let (from, to) = (k.element(from, tid, size), k.element(to, tid, size));
    let fresh = |k: &mut Kernel| -> Reg {
        match ty {
            MemType::B64 => k.rd(),
            MemType::B16 => k.h(),
            _ => k.r(),
        }
    };
    let loaded: Vec<Reg> = (0..n).map(|_| fresh(&mut k)).collect();
    let again: Vec<Reg> = (0..n).map(|_| fresh(&mut k)).collect();
    let at = k.r();
    k.push(Inst::MadLo {
        ty: IntType::U32,
        d: at,
        a: tid.into(),
        b: imm(size),
        c: base.into(),
    });
    let list = |regs: &[Reg]| regs.iter().map(|r| Src::Reg(*r)).collect();
    k.push(Inst::Ld {
        sem: LoadSem::Weak,
        space: Space::Global,
        ty,
        d: loaded.iter().copied().collect(),
        addr: Addr::new(from),
    });
    k.push(Inst::St {
        sem: StoreSem::Weak,
        space: Space::Shared,
        ty,
        addr: Addr::new(at),
        a: list(&loaded),
    });
    k.push(Inst::Ld {
        sem: LoadSem::Weak,
        space: Space::Shared,
        ty,
        d: again.iter().copied().collect(),
        addr: Addr::new(at),
    });
    k.push(Inst::St {
        sem: StoreSem::Weak,
        space: Space::Global,
        ty,
        addr: Addr::new(to),
        a: list(&again),
    });
    k
}

#[test]
fn vectors_of_every_width() {
    let cases = [
        (MemType::U8, 1),
        (MemType::S8, 1),
        (MemType::B16, 2),
        (MemType::B32, 4),
        (MemType::B64, 8),
    ];
    for (ty, bytes) in cases {
        for n in [1, 2, 4] {
            if n as u32 * bytes > 16 || (bytes == 8 && n == 4) {
                continue;
            }
            let k = copy_kernel(ty, n, bytes);
            let data = random_bytes(64 * n * bytes as usize, 5);
            let mut buffers = [data.clone(), vec![0; data.len()]];
            k.run(&mut buffers);
            assert_eq!(buffers[1], data, "{ty:?} x{n}");
        }
    }
}

#[test]
fn bytes_are_extended() {
    for (ty, extend) in [
        (MemType::U8, (|x| u32::from(x)) as fn(u8) -> u32),
        (MemType::S8, |x| x as i8 as u32),
    ] {
        let mut k = Kernel::new(32);
        let tid = k.tid();
        let base = k.pointer(1);
        let at = k.element(base, tid, 1);
        let d = k.r();
        k.push(Inst::Ld {
            sem: LoadSem::Weak,
            space: Space::Global,
            ty,
            d: smallvec![d],
            addr: Addr::at(at, 3),
        });
        k.store_per_thread(0, d);
        let data = random_bytes(35, 9);
        let mut buffers = [vec![0; 128], data.clone()];
        k.run(&mut buffers);
        let expected: Vec<u32> = data[3..].iter().map(|b| extend(*b)).collect();
        assert_eq!(words_of(&buffers[0]), expected);
    }
}

fn load_at(buffer_words: usize, offset: i32) -> crate::error::Error {
    let mut k = Kernel::new(32);
    let tid = k.tid();
    let base = k.pointer(0);
    let at = k.element(base, tid, 4);
    let d = k.r();
    k.push(Inst::Ld {
        sem: LoadSem::Weak,
        space: Space::Global,
        ty: MemType::B32,
        d: smallvec![d],
        addr: Addr::at(at, offset),
    });
    let error = k.error(&mut [vec![0; 4 * buffer_words]]);
    assert_eq!(error.loc, Some(k.loc()));
    error
}

#[test]
fn global_accesses_stay_inside_their_buffers() {
    let error = load_at(20, 0);
    assert!(error.what.contains("lane 20: out of bounds"), "{error}");
    assert!(error.what.contains("CTA (0, 0, 0), warp 0"), "{error}");
    assert!(
        error
            .got
            .as_deref()
            .unwrap_or("")
            .contains("0 bytes beyond buffer 0, which has 80 bytes"),
        "{error}"
    );
    let error = load_at(64, -8);
    assert!(error.what.contains("lane 0: out of bounds"), "{error}");
    assert!(
        error.got.as_deref().unwrap_or("").contains("8 bytes before buffer 0"),
        "{error}"
    );
    let error = load_at(64, 2);
    assert!(error.what.contains("misaligned"), "{error}");
    assert_eq!(error.expected.as_deref(), Some("a multiple of 4"), "{error}");
}

#[test]
fn shared_accesses_stay_inside() {
    for (offset, what) in [(128, "out of bounds"), (-4, "out of bounds"), (6, "misaligned")] {
        let mut k = Kernel::new(32).smem(128);
        let base = k.smem_base();
        k.store_shared(base, offset, imm(1));
        let error = k.error(&mut []);
        assert!(error.what.contains(what), "{error}");
        assert!(
            error
                .got
                .as_deref()
                .unwrap_or("")
                .contains("of the 128 bytes of CTA (0, 0, 0)"),
            "{error}"
        );
    }
}

#[test]
fn shared_memory_that_nothing_wrote_is_not_read() {
    let mut k = Kernel::new(32).smem(256);
    let (base, tid) = (k.smem_base(), k.tid());
    let at = k.r();
    k.push(Inst::MadLo {
        ty: IntType::U32,
        d: at,
        a: tid.into(),
        b: imm(4),
        c: base.into(),
    });
    let p = k.compare(Compare::Ne, tid.into(), imm(11));
    k.when(p, false, |k| {
        k.store_shared(at, 0, imm(1));
    });
    let d = k.load_shared(at, 0);
    k.store_per_thread(0, d);
    let error = k.error(&mut [vec![0; 128]]);
    assert!(error.what.contains("lane 11: memory that nothing wrote"), "{error}");
    // Without the check it reads poison.
    let unchecked = crate::emulate::Options {
        undefined: crate::emulate::Undefined::Ignored,
        ..options()
    };
    let mut buffers = [vec![0; 128]];
    k.try_run(&mut buffers, &unchecked).expect("runs");
    let expected: Vec<u32> = (0..32).map(|i| if i == 11 { u32::MAX } else { 1 }).collect();
    assert_eq!(words_of(&buffers[0]), expected);
}

#[test]
fn a_half_written_word_is_not_read_whole() {
    let mut k = Kernel::new(1).smem(16);
    let base = k.smem_base();
    k.push(Inst::St {
        sem: StoreSem::Weak,
        space: Space::Shared,
        ty: MemType::U8,
        addr: Addr::at(base, 1),
        a: smallvec![imm(5)],
    });
    let d = k.r();
    k.push(Inst::Ld {
        sem: LoadSem::Weak,
        space: Space::Shared,
        ty: MemType::U8,
        d: smallvec![d],
        addr: Addr::at(base, 1),
    });
    k.load_shared(base, 0);
    let error = k.error(&mut []);
    assert_eq!(error.loc, Some(k.loc()));
}

#[test]
fn undefined_buffers_are_poisoned_and_watched() {
    let mut k = Kernel::new(32);
    let tid = k.tid();
    let base = k.pointer(0);
    let at = k.element(base, tid, 4);
    let p = k.compare(Compare::Lt, tid.into(), imm(16));
    k.when(p, false, |k| {
        k.store(at, tid);
    });
    let partial = k.decode().expect("decodes");
    k.load(at);
    let whole = k.decode().expect("decodes");
    let mut data = vec![0u8; 128];
    let buffers = [HostBuffer {
        ptr: data.as_mut_ptr(),
        len: 128,
        contents: Contents::Undefined,
    }];
    // SAFETY: `data` outlives both calls and is used by nobody else.
    unsafe { run(&partial, &buffers, &options(), &Unwatched) }.expect("runs");
    let expected: Vec<u32> = (0..32).map(|i| if i < 16 { i } else { u32::MAX }).collect();
    assert_eq!(words_of(&data), expected);
    let buffers = [HostBuffer {
        ptr: data.as_mut_ptr(),
        len: 128,
        contents: Contents::Undefined,
    }];
    // SAFETY: as above.
    let error = unsafe { run(&whole, &buffers, &options(), &Unwatched) }.expect_err("reads what nothing wrote");
    assert!(error.what.contains("lane 16: memory that nothing wrote"), "{error}");
}

/// `op` of every thread's index on one word; the old values are checked to be those of some order.
fn atomic(op: AtomOp, ty: AtomType, start: u32, value: impl Fn(u32) -> u32) -> (u32, Vec<u32>) {
    let mut k = Kernel::new(64).grid([2, 1, 1], [1; 3]);
    let (tid, cta) = (k.tid(), k.special(SpecialReg32::CtaidX));
    let index = k.r();
    k.push(Inst::MadLo {
        ty: IntType::U32,
        d: index,
        a: cta.into(),
        b: imm(64),
        c: tid.into(),
    });
    let values = k.pointer(1);
    let at = k.element(values, index, 4);
    let a = k.load(at);
    let word = k.pointer(2);
    let d = k.r();
    k.push(Inst::Atom {
        sem: AtomSem::Relaxed,
        scope: Scope::Gpu,
        space: Space::Global,
        op,
        ty,
        d,
        addr: Addr::new(word),
        a: a.into(),
    });
    k.store_per_thread(0, d);
    let values: Vec<u32> = (0..128).map(value).collect();
    let mut buffers = [vec![0; 512], bytes_of(&values), start.to_le_bytes().to_vec()];
    k.run(&mut buffers);
    (words_of(&buffers[2])[0], words_of(&buffers[0]))
}

#[test]
fn atomics() {
    let (sum, mut old) = atomic(AtomOp::Add, AtomType::U32, 7, |_| 3);
    assert_eq!(sum, 7 + 3 * 128);
    old.sort();
    assert_eq!(old, (0..128).map(|i| 7 + 3 * i).collect::<Vec<u32>>());
    assert_eq!(atomic(AtomOp::Max, AtomType::S32, 0, |i| i.wrapping_sub(100)).0, 27);
    assert_eq!(
        atomic(AtomOp::Min, AtomType::S32, 0, |i| i.wrapping_sub(100)).0,
        -100i32 as u32
    );
    assert_eq!(atomic(AtomOp::Min, AtomType::U32, 50, |i| i + 9).0, 9);
    assert_eq!(atomic(AtomOp::Or, AtomType::B32, 0, |i| 1 << (i % 32)).0, u32::MAX);
    assert_eq!(atomic(AtomOp::Xor, AtomType::B32, 5, |_| 1).0, 5);
    assert_eq!(atomic(AtomOp::Inc, AtomType::U32, 0, |_| 9).0, 128 % 10);
    assert_eq!(atomic(AtomOp::Dec, AtomType::U32, 5, |_| 9).0, 7);
    assert_eq!(
        atomic(AtomOp::Add, AtomType::F32, 0, |_| 1f32.to_bits()).0,
        128f32.to_bits()
    );
    // Global f32 atomics flush.
    assert_eq!(atomic(AtomOp::Add, AtomType::F32, 0, |_| 1).0, 0);
    let pair = |x: u32| u32::from(half::f16::from_f32(x as f32).to_bits());
    assert_eq!(
        atomic(AtomOp::Add, AtomType::F16x2, 0, |_| pair(1) | pair(2) << 16).0,
        pair(128) | pair(256) << 16
    );
}

#[test]
fn vectors_are_aligned_to_all_their_elements() {
    let kernel = |offset: i32| {
        let mut k = Kernel::new(32);
        let place = k.pointer(0);
        let pair = k.r();
        k.push(Inst::Mov {
            ty: BitType::B32,
            d: pair,
            a: imm(0x3c00_c000),
        });
        k.push(Inst::RedVector {
            sem: AtomSem::Relaxed,
            scope: Scope::Gpu,
            op: HalfRedOp::Add,
            ty: HalfType::F16x2,
            addr: Addr::at(place, offset),
            a: smallvec![pair.into(), pair.into()],
        });
        k
    };
    let mut buffers = [vec![0; 16]];
    kernel(8).run(&mut buffers);
    // 32 times 1 and -2.
    assert_eq!(words_of(&buffers[0]), [0, 0, 0x5000_d400, 0x5000_d400]);
    let error = kernel(4).error(&mut [vec![0; 16]]);
    assert!(
        error.what.contains("atomic of 8 global bytes by lane 0: misaligned"),
        "{error}"
    );
}

#[test]
fn compare_and_swap() {
    let mut k = Kernel::new(32);
    let tid = k.tid();
    let word = k.pointer(1);
    let next = k.add(tid.into(), imm(1));
    let d = k.r();
    k.push(Inst::AtomCas {
        sem: AtomSem::AcqRel,
        scope: Scope::Sys,
        space: Space::Global,
        ty: BitType::B32,
        d,
        addr: Addr::new(word),
        a: tid.into(),
        b: next.into(),
    });
    k.store_per_thread(0, d);
    let mut buffers = [vec![0; 128], vec![0; 4]];
    k.run(&mut buffers);
    assert_eq!(words_of(&buffers[1]), [32]);
    assert_eq!(words_of(&buffers[0]), (0..32).collect::<Vec<u32>>());
}

#[test]
fn shared_reductions_do_not_flush() {
    let mut k = Kernel::new(32).smem(16);
    let (base, tid) = (k.smem_base(), k.tid());
    k.store_shared(base, 0, imm(0));
    k.push(Inst::Red {
        sem: AtomSem::Relaxed,
        scope: Scope::Cta,
        space: Space::Shared,
        op: RedOp::Add,
        ty: AtomType::F32,
        addr: Addr::new(base),
        a: tid.into(),
    });
    let d = k.load_shared(base, 0);
    k.store_per_thread(0, d);
    assert_eq!(k.words(32), [31 * 32 / 2; 32]);
}

/// `stmatrix` then `ldmatrix`, plain and transposed, against the fragments' definition.
#[test]
fn matrices() {
    for (store_trans, load_trans) in [(false, false), (true, false), (false, true), (true, true)] {
        let trans = |t: bool| if t { MatrixTrans::Yes } else { MatrixTrans::No };
        let mut k = Kernel::new(32).smem(4 * 128);
        let (base, tid) = (k.smem_base(), k.tid());
        let at = k.r();
        k.push(Inst::MadLo {
            ty: IntType::U32,
            d: at,
            a: tid.into(),
            b: imm(16),
            c: base.into(),
        });
        let v = k.load_own_words(1, 4);
        k.push(Inst::Stmatrix {
            trans: trans(store_trans),
            addr: Addr::new(at),
            a: v.iter().map(|r| Src::Reg(*r)).collect(),
        });
        let l: Vec<Reg> = (0..4).map(|_| k.r()).collect();
        k.push(Inst::Ldmatrix {
            trans: trans(load_trans),
            d: l.iter().copied().collect(),
            addr: Addr::new(at),
        });
        k.store_own_words(0, &l);
        let data = random_bytes(512, 3);
        let mut buffers = [vec![0; 512], data.clone()];
        k.run(&mut buffers);
        if store_trans == load_trans {
            assert_eq!(buffers[0], data);
            continue;
        }
        // Element (r, c) of a fragment is half c % 2 of lane 4r + c / 2; lane l has matrix j at word 4l + j.
        let element = |d: &[u8], j: usize, r: usize, c: usize| {
            let at = (4 * (4 * r + c / 2) + j) * 4 + c % 2 * 2;
            [d[at], d[at + 1]]
        };
        for (j, r, c) in (0..256).map(|i| (i / 64, i / 8 % 8, i % 8)) {
            assert_eq!(
                element(&buffers[0], j, r, c),
                element(&data, j, c, r),
                "{store_trans} {load_trans} {j} {r} {c}"
            );
        }
    }
}
