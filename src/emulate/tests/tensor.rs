//! wgmma and mma.sync: descriptors of every layout against the exact model on logical matrices; groups in flight.
use super::build::*;
use crate::emulate::arith::tensor_core::{Accumulator, Element, MmaKind as Kind, step};
use crate::emulate::wgmma::descriptor;
use crate::ptx::flat::Reg;
use crate::ptx::inst::Inst;
use crate::ptx::modifier::*;
use crate::ptx::operand::{Addr, Src};
use smallvec::smallvec;

const BASE: u32 = 1024;

/// How an operand lies in shared memory.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Layout {
    /// Bytes of the swizzle's span; 16: none.
    span: u32,
    transposed: bool,
}

/// A logical matrix of `rows` × 32 bytes along K, packed K-major, put into shared memory at `at` as its layout says. Returns
/// the descriptor. Addresses by the layouts' definitions, tile by tile, not by the emulator's formula.
fn place(smem: &mut [u8], at: u32, rows: u32, data: &[u8], layout: Layout) -> u64 {
    let swizzle = |linear: u32| {
        let address = BASE + linear;
        (address ^ (address >> 7 & (layout.span / 16 - 1)) << 4) - BASE
    };
    let span = layout.span;
    if !layout.transposed {
        // Blocks of 8 rows by one span; only 32 bytes of each row are this instruction's.
        let (leading, stride) = if span == 16 {
            (8 * 16 * (rows / 8), 8 * 16)
        } else {
            (0, 8 * span)
        };
        for r in 0..rows {
            for b in 0..32u32 {
                let linear = if span == 16 {
                    at + b / 16 * leading + r / 8 * stride + r % 8 * 16 + b % 16
                } else {
                    at + r / 8 * stride + r % 8 * span + b
                };
                let to = swizzle(linear & !15) + linear % 16;
                smem[to as usize] = data[(r * 32 + b) as usize];
            }
        }
        return descriptor(BASE + at, leading, stride, span);
    }
    // Rows of one k hold a span of M (or N); 8 of them are a block.
    let across = span / 2;
    let block = 8 * span;
    // The blocks of k lie `block` apart, those of M behind both.
    let (k_step, m_step) = (block, 2 * block);
    for r in 0..rows {
        for k in 0..16u32 {
            let linear = at + r / across * m_step + k / 8 * k_step + k % 8 * span + r % across * 2;
            let to = swizzle(linear & !15) + linear % 16;
            for byte in 0..2 {
                smem[(to + byte) as usize] = data[(r * 32 + k * 2 + byte) as usize];
            }
        }
    }
    // Without swizzle the two distances change places.
    let (leading, stride) = if span == 16 { (k_step, m_step) } else { (m_step, k_step) };
    descriptor(BASE + at, leading, stride, span)
}

struct Case {
    kind: Kind,
    n: u32,
    a: Layout,
    b: Layout,
    from_registers: bool,
    scale_d: bool,
    negate: bool,
}

/// Where output (row, column) is: warp, register, lane, shift. PTX ISA, fragments of wgmma.
fn position(accumulator: Accumulator, row: u32, column: u32) -> (u32, u32, u32, u32) {
    let (warp, half, lane) = (row / 16, row / 8 % 2, row % 8 * 4 + column % 8 / 2);
    match accumulator {
        Accumulator::F16 => (warp, column / 8 * 2 + half, lane, column % 2 * 16),
        _ => (warp, column / 8 * 4 + half * 2 + column % 2, lane, 0),
    }
}

const SMEM: u32 = 48 * 1024;

/// Fills shared memory from buffer 0.
fn fill(k: &mut Kernel, base: Reg) {
    let tid = k.tid();
    let input = k.pointer(0);
    let (from, at) = (k.element(input, tid, 16), k.r());
    k.push(Inst::MadLo {
        ty: IntType::U32,
        d: at,
        a: tid.into(),
        b: imm(16),
        c: base.into(),
    });
    for start in (0..SMEM as i32).step_by(128 * 16) {
        let v: Vec<Reg> = (0..4).map(|_| k.r()).collect();
        k.push(Inst::Ld {
            sem: LoadSem::Weak,
            space: Space::Global,
            ty: MemType::B32,
            d: v.iter().copied().collect(),
            addr: Addr::at(from, start),
        });
        k.push(Inst::St {
            sem: StoreSem::Weak,
            space: Space::Shared,
            ty: MemType::B32,
            addr: Addr::at(at, start),
            a: v.iter().map(|r| Src::Reg(*r)).collect(),
        });
    }
    k.fence_async();
    k.sync();
}

/// Loads or stores `regs` of every thread at `buffer`, register by register.
fn fragments(k: &mut Kernel, buffer: u32, regs: &[Reg], store: bool) {
    let tid = k.tid();
    let base = k.pointer(buffer);
    let at = k.element(base, tid, 4);
    for (i, r) in regs.iter().enumerate() {
        let addr = Addr::at(at, 512 * i as i32);
        k.push(if store {
            Inst::St {
                sem: StoreSem::Weak,
                space: Space::Global,
                ty: MemType::B32,
                addr,
                a: smallvec![Src::Reg(*r)],
            }
        } else {
            Inst::Ld {
                sem: LoadSem::Weak,
                space: Space::Global,
                ty: MemType::B32,
                d: smallvec![*r],
                addr,
            }
        });
    }
}

fn modifiers(kind: Kind) -> (WgmmaTypes, AccType, SatFinite) {
    let ty = match (kind.a(), kind.b()) {
        (Element::F16, _) => WgmmaTypes::F16,
        (Element::Bf16, _) => WgmmaTypes::BF16,
        (Element::Tf32, _) => WgmmaTypes::TF32,
        (Element::E4m3, Element::E5m2) => WgmmaTypes::E4M3E5M2,
        (Element::E4m3, _) => WgmmaTypes::E4M3E4M3,
        (Element::E5m2, Element::E4m3) => WgmmaTypes::E5M2E4M3,
        (Element::E5m2, _) => WgmmaTypes::E5M2E5M2,
        (Element::S8, Element::U8) => WgmmaTypes::S8U8,
        (Element::S8, _) => WgmmaTypes::S8S8,
        (Element::U8, Element::S8) => WgmmaTypes::U8S8,
        _ => WgmmaTypes::U8U8,
    };
    let (acc, sat) = match kind.accumulator() {
        Accumulator::F32 => (AccType::F32, SatFinite::No),
        Accumulator::F16 => (AccType::F16, SatFinite::No),
        Accumulator::S32 => (AccType::S32, SatFinite::No),
        Accumulator::S32Saturating => (AccType::S32, SatFinite::Yes),
    };
    (ty, acc, sat)
}

/// The instruction; `a` holds a descriptor or four registers.
fn wgmma(case: &Case, acc: &[Reg], a: &[Reg], b: Reg, scale_d: Reg) -> Inst<Reg> {
    let (ty, acc_ty, sat) = modifiers(case.kind);
    let n = i64::from(case.n);
    let acc = tied(acc);
    let neg_a = if case.negate { -1 } else { 1 };
    let (trans_a, trans_b) = (i64::from(case.a.transposed), i64::from(case.b.transposed));
    let regs = || a.iter().map(|r| Src::Reg(*r)).collect();
    let k = if case.kind.a().bits() == 32 { 8 } else { 32 };
    match (case.kind.a().bits(), acc_ty, case.from_registers) {
        (16, _, false) => Inst::WgmmaHalfSs {
            ty,
            acc_ty,
            n,
            acc,
            a: a[0],
            b,
            scale_d,
            neg_a,
            neg_b: 1,
            trans_a,
            trans_b,
        },
        (16, _, true) => Inst::WgmmaHalfRs {
            ty,
            acc_ty,
            n,
            acc,
            a: regs(),
            b,
            scale_d,
            neg_a,
            neg_b: 1,
            trans_b,
        },
        (_, AccType::S32, false) => Inst::WgmmaIntSs {
            ty,
            sat,
            n,
            acc,
            a: a[0],
            b,
            scale_d,
        },
        (_, AccType::S32, true) => Inst::WgmmaIntRs {
            ty,
            sat,
            n,
            acc,
            a: regs(),
            b,
            scale_d,
        },
        (_, _, false) => Inst::WgmmaFloatSs {
            ty,
            acc_ty,
            n,
            k,
            acc,
            a: a[0],
            b,
            scale_d,
            neg_a,
            neg_b: 1,
        },
        (_, _, true) => Inst::WgmmaFloatRs {
            ty,
            acc_ty,
            n,
            k,
            acc,
            a: regs(),
            b,
            scale_d,
            neg_a,
            neg_b: 1,
        },
    }
}

/// Small values of the type, so that nothing saturates or is NaN too often.
fn matrix(element: Element, rows: u32, seed: u64) -> Vec<u8> {
    let mut data = random_bytes(rows as usize * 32, seed);
    match element {
        Element::F16 => data.iter_mut().skip(1).step_by(2).for_each(|b| *b = *b & 0xbf | 0x20),
        Element::Bf16 => data.iter_mut().skip(1).step_by(2).for_each(|b| *b = *b & 0x83 | 0x3c),
        Element::Tf32 => data.iter_mut().skip(3).step_by(4).for_each(|b| *b = *b & 0x83 | 0x3c),
        _ => {}
    }
    data
}

fn check(case: &Case) {
    let (a, b) = (matrix(case.kind.a(), 64, 1), matrix(case.kind.b(), case.n, 2));
    let mut smem = vec![0; SMEM as usize];
    let b_at = 16 * 1024;
    let (a_bits, b_bits) = (
        place(&mut smem, 0, 64, &a, case.a),
        place(&mut smem, b_at, case.n, &b, case.b),
    );
    let registers = match case.kind.accumulator() {
        Accumulator::F16 => case.n / 4,
        _ => case.n / 2,
    };
    let mut c = random_bytes(registers as usize * 512, 3);
    if case.kind.accumulator() != Accumulator::S32 {
        // f32 and f16 near 1.
        for (i, byte) in c.iter_mut().enumerate() {
            if i % 4 == 3 || (case.kind.accumulator() == Accumulator::F16 && i % 2 == 1) {
                *byte = *byte & 0x83 | 0x38;
            }
        }
    }
    let mut k = Kernel::new(128).smem(SMEM);
    let base = k.smem_base();
    fill(&mut k, base);
    let acc: Vec<Reg> = (0..registers).map(|_| k.r()).collect();
    fragments(&mut k, 1, &acc, false);
    let a_operand: Vec<Reg> = if case.from_registers {
        // Word l % 4 of row l / 4 (+ 8 for odd registers), + 16 bytes for the upper two.
        let (tid, at) = (k.tid(), k.pointer(3));
        let from = k.element(at, tid, 16);
        let v: Vec<Reg> = (0..4).map(|_| k.r()).collect();
        k.push(Inst::Ld {
            sem: LoadSem::Weak,
            space: Space::Global,
            ty: MemType::B32,
            d: v.iter().copied().collect(),
            addr: Addr::new(from),
        });
        v
    } else {
        vec![k.mov64(a_bits)]
    };
    let b_operand = k.mov64(b_bits);
    let scale_d = k.p();
    k.push(Inst::MovPred {
        d: scale_d,
        a: Src::Imm(u64::from(case.scale_d)),
    });
    k.push(Inst::WgmmaFence { acc: tied(&acc) });
    k.push(wgmma(case, &acc, &a_operand, b_operand, scale_d));
    k.push(Inst::WgmmaCommit {});
    k.push(Inst::WgmmaWait { n: 0, acc: tied(&acc) });
    fragments(&mut k, 2, &acc, true);
    let mut a_registers = vec![0u8; 128 * 16];
    for (t, r, byte) in (0..128usize).flat_map(|t| (0..4usize).flat_map(move |r| (0..4usize).map(move |b| (t, r, b)))) {
        let row = t / 32 * 16 + t % 32 / 4 + r % 2 * 8;
        a_registers[t * 16 + r * 4 + byte] = a[row * 32 + t % 4 * 4 + r / 2 * 16 + byte];
    }
    for options in [
        options(),
        options().with_agents(crate::emulate::AgentOrder::Earliest),
        options().with_agents(crate::emulate::AgentOrder::Seeded(5)),
    ] {
        let mut buffers = [smem.clone(), c.clone(), vec![0; c.len()], a_registers.clone()];
        k.try_run(&mut buffers, &options).unwrap_or_else(|e| panic!("{e}"));
        let word = |d: &[u8], (warp, register, lane, shift): (u32, u32, u32, u32)| {
            let at = (register * 512 + (warp * 32 + lane) * 4) as usize;
            let word = u32::from_le_bytes([d[at], d[at + 1], d[at + 2], d[at + 3]]) >> shift;
            if case.kind.accumulator() == Accumulator::F16 {
                word & 0xffff
            } else {
                word
            }
        };
        for (row, column) in (0..64).flat_map(|r| (0..case.n).map(move |c| (r, c))) {
            let at = position(case.kind.accumulator(), row, column);
            let before = if case.scale_d { word(&c, at) } else { 0 };
            let (a, b) = (&a[row as usize * 32..][..32], &b[column as usize * 32..][..32]);
            let want = step(case.kind, a, b, before, case.negate);
            assert_eq!(
                word(&buffers[2], at),
                want,
                "{:?} {:?} {:?} row {row} column {column}",
                case.kind,
                case.a,
                case.b
            );
        }
    }
}

const K_MAJOR: Layout = Layout {
    span: 128,
    transposed: false,
};

fn kind(a: Element, b: Element, accumulator: Accumulator) -> Kind {
    Kind::new(a, b, accumulator).expect("it exists")
}

#[test]
fn every_swizzle_and_both_majors() {
    let f16 = kind(Element::F16, Element::F16, Accumulator::F32);
    for span in [16, 32, 64, 128] {
        for (ta, tb) in [(false, false), (true, false), (false, true), (true, true)] {
            let (a, b) = (Layout { span, transposed: ta }, Layout { span, transposed: tb });
            check(&Case {
                kind: f16,
                n: 64,
                a,
                b,
                from_registers: false,
                scale_d: true,
                negate: false,
            });
        }
    }
}

#[test]
fn every_type_from_shared_memory_and_registers() {
    use Accumulator::{F32, S32, S32Saturating};
    use Element::*;
    let kinds = [
        (F16, F16, F32),
        (F16, F16, Accumulator::F16),
        (Bf16, Bf16, F32),
        (Tf32, Tf32, F32),
        (E4m3, E5m2, F32),
        (E5m2, E4m3, Accumulator::F16),
        (S8, U8, S32),
        (U8, U8, S32Saturating),
    ];
    for (a, b, acc) in kinds {
        for from_registers in [false, true] {
            for n in [8, 96] {
                check(&Case {
                    kind: kind(a, b, acc),
                    n,
                    a: K_MAJOR,
                    b: Layout { span: 64, ..K_MAJOR },
                    from_registers,
                    scale_d: true,
                    negate: false,
                });
            }
        }
    }
}

#[test]
fn scale_and_sign() {
    let bf16 = kind(Element::Bf16, Element::Bf16, Accumulator::F32);
    for (scale_d, negate) in [(false, false), (false, true), (true, true)] {
        check(&Case {
            kind: bf16,
            n: 256,
            a: K_MAJOR,
            b: K_MAJOR,
            from_registers: false,
            scale_d,
            negate,
        });
    }
}

/// Two groups on one accumulator, then what comes between.
fn two_groups(tail: impl FnOnce(&mut Kernel, &[Reg], Reg)) -> (Kernel, Vec<u8>) {
    let f16 = kind(Element::F16, Element::F16, Accumulator::F32);
    let case = Case {
        kind: f16,
        n: 8,
        a: K_MAJOR,
        b: K_MAJOR,
        from_registers: false,
        scale_d: true,
        negate: false,
    };
    let mut smem = vec![0; SMEM as usize];
    let a_bits = place(&mut smem, 0, 64, &matrix(Element::F16, 64, 1), K_MAJOR);
    let b_bits = place(&mut smem, 16 * 1024, 8, &matrix(Element::F16, 8, 2), K_MAJOR);
    let mut k = Kernel::new(128).smem(SMEM);
    let base = k.smem_base();
    fill(&mut k, base);
    let acc: Vec<Reg> = (0..4).map(|_| k.mov(imm(0))).collect();
    let (a, b) = (k.mov64(a_bits), k.mov64(b_bits));
    let p = k.p();
    k.push(Inst::MovPred { d: p, a: Src::Imm(1) });
    k.push(Inst::WgmmaFence { acc: tied(&acc) });
    for _ in 0..2 {
        k.push(wgmma(&case, &acc, &[a], b, p));
        k.push(Inst::WgmmaCommit {});
    }
    tail(&mut k, &acc, base);
    (k, smem)
}

fn outcome(k: &Kernel, smem: &[u8]) -> Result<Vec<u8>, crate::error::Error> {
    let mut buffers = [smem.to_vec(), vec![], vec![0; 4 * 512]];
    k.try_run(&mut buffers, &options()).map(|_| buffers[2].clone())
}

#[test]
fn what_a_wait_does_not_cover_is_not_there() {
    let finish = |k: &mut Kernel, acc: &[Reg], n: i64| {
        k.push(Inst::WgmmaWait { n, acc: tied(acc) });
        fragments(k, 2, acc, true);
    };
    let (right, smem) = two_groups(|k, acc, _| finish(k, acc, 0));
    let right = outcome(&right, &smem).expect("runs");
    assert!(words_of(&right).iter().any(|w| *w != 0));
    // One group still pending, or no wait at all.
    let (pending, smem) = two_groups(|k, acc, _| finish(k, acc, 1));
    let error = outcome(&pending, &smem).expect_err("in flight");
    assert!(error.what.contains("registers of a wgmma in flight"), "{error}");
    let (none, smem) = two_groups(|k, acc, _| fragments(k, 2, acc, true));
    let error = outcome(&none, &smem).expect_err("in flight");
    assert!(error.what.contains("registers of a wgmma in flight"), "{error}");
    // Nobody touches them, but the warp ends.
    let (end, smem) = two_groups(|_, _, _| {});
    let error = outcome(&end, &smem).expect_err("in flight");
    assert!(
        error.what.contains("a warp ends while its wgmma is in flight"),
        "{error}"
    );
    assert!(error.what.contains("WgmmaHalfSs"), "{error}");
}

#[test]
fn operands_are_read_at_the_wait() {
    let overwrite = |k: &mut Kernel, base: Reg| {
        let tid = k.tid();
        let at = k.r();
        k.push(Inst::MadLo {
            ty: IntType::U32,
            d: at,
            a: tid.into(),
            b: imm(4),
            c: base.into(),
        });
        for offset in [0, 512, 16 * 1024] {
            k.store_shared(at, offset, imm(0x3c00_3c00));
        }
        k.fence_async();
    };
    let (right, smem) = two_groups(|k, acc, base| {
        k.push(Inst::WgmmaWait { n: 0, acc: tied(acc) });
        k.sync();
        overwrite(k, base);
        fragments(k, 2, acc, true);
    });
    outcome(&right, &smem).expect("runs");
    let (wrong, smem) = two_groups(|k, acc, base| {
        overwrite(k, base);
        k.push(Inst::WgmmaWait { n: 0, acc: tied(acc) });
        fragments(k, 2, acc, true);
    });
    let error = outcome(&wrong, &smem).expect_err("overwritten");
    assert!(error.what.contains("nothing orders the two"), "{error}");
    // Without a proxy fence after the overwrite it is an error.
    let (unfenced, smem) = two_groups(|k, acc, base| {
        k.store_shared(base, 16 * 1024, imm(0));
        k.push(Inst::WgmmaWait { n: 0, acc: tied(acc) });
    });
    let error = outcome(&unfenced, &smem).expect_err("no fence");
    assert!(
        error.what.contains("shared memory that the generic proxy writes"),
        "{error}"
    );
}

#[test]
fn operands_stay_inside_shared_memory() {
    let f16 = kind(Element::F16, Element::F16, Accumulator::F32);
    let case = Case {
        kind: f16,
        n: 8,
        a: K_MAJOR,
        b: K_MAJOR,
        from_registers: false,
        scale_d: false,
        negate: false,
    };
    let mut k = Kernel::new(128).smem(1024);
    let acc: Vec<Reg> = (0..4).map(|_| k.mov(imm(0))).collect();
    let (a, b) = (
        k.mov64(descriptor(BASE, 0, 1024, 128)),
        k.mov64(descriptor(BASE, 0, 1024, 128)),
    );
    let p = k.p();
    k.push(Inst::MovPred { d: p, a: Src::Imm(0) });
    k.push(Inst::WgmmaFence { acc: tied(&acc) });
    k.push(wgmma(&case, &acc, &[a], b, p));
    let issue = k.loc();
    k.push(Inst::WgmmaCommit {});
    k.push(Inst::WgmmaWait { n: 0, acc: tied(&acc) });
    let error = k.error(&mut []);
    // Warp 0's rows fit: it finds that nothing wrote them; the others' lie outside.
    assert!(
        error.what.contains("nothing wrote") || error.what.contains("outside"),
        "{error}"
    );
    assert_eq!(error.loc, Some(issue), "{error}");
}

/// mma.sync m16n8 against the model.
#[test]
fn mma_sync() {
    let kinds = [
        (
            (MmaShape::M16N8K16, MmaTypes::F16),
            kind(Element::F16, Element::F16, Accumulator::F32),
        ),
        (
            (MmaShape::M16N8K16, MmaTypes::BF16),
            kind(Element::Bf16, Element::Bf16, Accumulator::F32),
        ),
        (
            (MmaShape::M16N8K8, MmaTypes::TF32),
            kind(Element::Tf32, Element::Tf32, Accumulator::F32),
        ),
        (
            (MmaShape::M16N8K32, MmaTypes::S8S8),
            kind(Element::S8, Element::S8, Accumulator::S32),
        ),
        (
            (MmaShape::M16N8K32, MmaTypes::U8U8),
            kind(Element::U8, Element::U8, Accumulator::S32),
        ),
    ];
    for (mma, kind) in kinds {
        let (a, b) = (matrix(kind.a(), 16, 1), matrix(kind.b(), 8, 2));
        let mut k = Kernel::new(32);
        let (ra, rb, rc) = (k.load_own_words(0, 4), k.load_own_words(1, 2), k.load_own_words(2, 4));
        let list = |v: &[Reg]| v.iter().map(|r| Src::Reg(*r)).collect();
        let d: Vec<Reg> = (0..4).map(|_| k.r()).collect();
        k.push(Inst::MmaSync {
            shape: mma.0,
            sat: SatFinite::No,
            ty: mma.1,
            d: d.iter().copied().collect(),
            a: list(&ra),
            b: list(&rb),
            c: list(&rc),
        });
        k.store_own_words(3, &d);
        let word =
            |m: &[u8], row: usize, word: usize| <[u8; 4]>::try_from(&m[row * 32 + word * 4..][..4]).expect("4 bytes");
        let mut buffers = [vec![], vec![], matrix(Element::Tf32, 16, 9), vec![0; 512]];
        for lane in 0..32 {
            for r in 0..4 {
                buffers[0].extend(word(&a, lane / 4 + r % 2 * 8, lane % 4 + r / 2 * 4));
            }
            for r in 0..2 {
                buffers[1].extend(word(&b, lane / 4, lane % 4 + r * 4));
            }
        }
        let c = words_of(&buffers[2]);
        k.run(&mut buffers);
        let got = words_of(&buffers[3]);
        for (row, column) in (0..16usize).flat_map(|r| (0..8usize).map(move |c| (r, c))) {
            let at = (row % 8 * 4 + column / 2) * 4 + row / 8 * 2 + column % 2;
            assert_eq!(
                got[at],
                step(kind, &a[row * 32..][..32], &b[column * 32..][..32], c[at], false),
                "{mma:?} {row} {column}"
            );
        }
    }
}
