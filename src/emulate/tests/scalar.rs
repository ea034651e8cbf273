//! Every arithmetic row against plain Rust or `arith`, lane by lane, with all lanes and with some.
use super::build::*;
use crate::emulate::arith::{convert, float, special};
use crate::ptx::flat::Reg;
use crate::ptx::inst::Inst;
use crate::ptx::modifier::*;
use crate::ptx::operand::{Class, Src};

/// Interesting operands of every kind among random ones.
fn operands(seed: u64, n: usize) -> Vec<u64> {
    let special = [
        0u64,
        1,
        2,
        31,
        32,
        33,
        63,
        64,
        65,
        255,
        256,
        0x7fff_ffff,
        0x8000_0000,
        0xffff_ffff,
        0x3f80_0000,
        0xbf80_0000,
        0x7f80_0000,
        0xff80_0000,
        0x7fc0_0000,
        0x0000_0001,
        0x8000_0001,
        0x007f_ffff,
        0x3c00,
        0x7c00,
        0x7e00,
        0x8000,
        u64::MAX,
        1 << 63,
        0x3ff0_0000_0000_0000,
        0x7ff0_0000_0000_0000,
        0x7ff8_0000_0000_0000,
        0xfff0_0000_0000_0000,
    ];
    let random = random_bytes(8 * n, seed);
    let mut out: Vec<u64> = random
        .chunks_exact(8)
        .map(|b| u64::from_le_bytes(b.try_into().expect("8 bytes")))
        .collect();
    for (i, x) in out.iter_mut().enumerate() {
        match i % 4 {
            0 => *x = special[(*x >> 7) as usize % special.len()],
            // Both words alike, so that 32-bit operands see small shifts and lengths too.
            1 => *x = (*x & 63) | (*x & 63) << 32,
            _ => {}
        }
    }
    out
}

const N: usize = 256;

/// Runs `d = inst(a, b, c)` on many operands and compares with `expect`. Also under a guard for odd threads.
pub fn check(
    name: &str,
    classes: [Class; 4],
    make: impl Fn(Reg, Reg, Reg, Reg) -> Inst<Reg>,
    expect: impl Fn(u64, u64, u64) -> u64,
) {
    let inputs = [operands(1, N), operands(2, N), operands(3, N)];
    for guarded in [false, true] {
        let mut k = Kernel::new(N as u32);
        let tid = k.tid();
        let regs: Vec<Reg> = (0..3)
            .map(|i| {
                let base = k.pointer(i);
                let at = k.element(base, tid, 8);
                let d = k.rd();
                k.push(Inst::Ld {
                    sem: LoadSem::Weak,
                    space: Space::Global,
                    ty: MemType::B64,
                    d: smallvec::smallvec![d],
                    addr: crate::ptx::operand::Addr::new(at),
                });
                narrow(&mut k, d, classes[i as usize + 1])
            })
            .collect();
        let d = match classes[0] {
            Class::Pred => k.p(),
            Class::B16 => k.h(),
            Class::B32 => k.r(),
            Class::B64 => k.rd(),
        };
        let odd = k.odd();
        let p = k.compare(Compare::Ne, odd.into(), imm(0));
        if guarded {
            // What the other lanes keep.
            match classes[0] {
                Class::Pred => k.push(Inst::MovPred { d, a: Src::Imm(0) }),
                Class::B16 => k.push(Inst::Mov {
                    ty: BitType::B16,
                    d,
                    a: Src::Imm(77),
                }),
                Class::B32 => k.push(Inst::Mov {
                    ty: BitType::B32,
                    d,
                    a: Src::Imm(77),
                }),
                Class::B64 => k.push(Inst::Mov {
                    ty: BitType::B64,
                    d,
                    a: Src::Imm(77),
                }),
            };
            k.when(p, false, |k| {
                k.push(make(d, regs[0], regs[1], regs[2]));
            });
        } else {
            k.push(make(d, regs[0], regs[1], regs[2]));
        }
        let wide = widen(&mut k, d);
        let base = k.pointer(3);
        let at = k.element(base, tid, 8);
        k.push(Inst::St {
            sem: StoreSem::Weak,
            space: Space::Global,
            ty: MemType::B64,
            addr: crate::ptx::operand::Addr::new(at),
            a: smallvec::smallvec![wide.into()],
        });
        let mut buffers: Vec<Vec<u8>> = inputs
            .iter()
            .map(|v| v.iter().flat_map(|x| x.to_le_bytes()).collect())
            .collect();
        buffers.push(vec![0; 8 * N]);
        k.run(&mut buffers);
        for i in 0..N {
            let got = u64::from_le_bytes(buffers[3][8 * i..8 * i + 8].try_into().expect("8 bytes"));
            let cut = |x: u64, class: Class| match class {
                Class::Pred => x & 1,
                Class::B16 => x & 0xffff,
                Class::B32 => x & 0xffff_ffff,
                Class::B64 => x,
            };
            let [a, b, c] = [0, 1, 2].map(|j| cut(inputs[j][i], classes[j + 1]));
            let kept = if classes[0] == Class::Pred { 0 } else { 77 };
            let want = if guarded && i % 2 == 0 {
                kept
            } else {
                cut(expect(a, b, c), classes[0])
            };
            assert_eq!(
                got, want,
                "{name}: lane {i}, guarded {guarded}: {a:x} {b:x} {c:x}: got {got:x}, want {want:x}"
            );
        }
    }
}

fn narrow(k: &mut Kernel, d: Reg, class: Class) -> Reg {
    match class {
        Class::B64 => d,
        Class::Pred => {
            let r = narrow(k, d, Class::B32);
            let bit = k.r();
            k.push(Inst::Logic {
                op: Logic::And,
                ty: LogicType::B32,
                d: bit,
                a: r.into(),
                b: imm(1),
            });
            k.compare(Compare::Ne, bit.into(), imm(0))
        }
        Class::B32 => {
            let r = k.r();
            k.push(Inst::Cvt {
                rnd: CvtRound::None,
                ftz: Ftz::No,
                sat: Sat::No,
                to: CvtType::U32,
                from: CvtType::U64,
                d: r,
                a: d,
            });
            r
        }
        Class::B16 => {
            let h = k.h();
            k.push(Inst::Cvt {
                rnd: CvtRound::None,
                ftz: Ftz::No,
                sat: Sat::No,
                to: CvtType::U16,
                from: CvtType::U64,
                d: h,
                a: d,
            });
            h
        }
    }
}

fn widen(k: &mut Kernel, d: Reg) -> Reg {
    let cvt = |k: &mut Kernel, from: CvtType| {
        let wide = k.rd();
        k.push(Inst::Cvt {
            rnd: CvtRound::None,
            ftz: Ftz::No,
            sat: Sat::No,
            to: CvtType::U64,
            from,
            d: wide,
            a: d,
        });
        wide
    };
    match d.class {
        Class::B64 => d,
        Class::B32 => cvt(k, CvtType::U32),
        Class::B16 => cvt(k, CvtType::U16),
        Class::Pred => {
            let wide = k.rd();
            k.push(Inst::Selp {
                ty: BitType::B64,
                d: wide,
                a: Src::Imm(1),
                b: Src::Imm(0),
                p: d,
            });
            wide
        }
    }
}

const W: [Class; 4] = [Class::B32; 4];
const D: [Class; 4] = [Class::B64; 4];
const H: [Class; 4] = [Class::B16; 4];

macro_rules! two {
    ($row:ident { $($extra:tt)* }) => {
        |d, a: Reg, b: Reg, _| Inst::$row { d, a: a.into(), b: b.into(), $($extra)* }
    };
}
macro_rules! three {
    ($row:ident { $($extra:tt)* }) => {
        |d, a: Reg, b: Reg, c: Reg| Inst::$row { d, a: a.into(), b: b.into(), c: c.into(), $($extra)* }
    };
}
macro_rules! one {
    ($row:ident { $($extra:tt)* }) => {
        |d, a: Reg, _, _| Inst::$row { d, a: a.into(), $($extra)* }
    };
}

#[test]
fn integers() {
    check("add.u32", W, two!(AddInt { ty: IntType::U32 }), |a, b, _| {
        (a as u32).wrapping_add(b as u32).into()
    });
    check("add.s16", H, two!(AddInt { ty: IntType::S16 }), |a, b, _| {
        (a as u16).wrapping_add(b as u16).into()
    });
    check("sub.s64", D, two!(SubInt { ty: IntType::S64 }), |a, b, _| {
        a.wrapping_sub(b)
    });
    check("mul.lo.u64", D, two!(MulLo { ty: IntType::U64 }), |a, b, _| {
        a.wrapping_mul(b)
    });
    check("mul.hi.s32", W, two!(MulHi { ty: IntType::S32 }), |a, b, _| {
        (i64::from(a as i32) * i64::from(b as i32) >> 32) as u32 as u64
    });
    check("mul.hi.u64", D, two!(MulHi { ty: IntType::U64 }), |a, b, _| {
        (u128::from(a) * u128::from(b) >> 64) as u64
    });
    check("mul.hi.s64", D, two!(MulHi { ty: IntType::S64 }), |a, b, _| {
        (i128::from(a as i64) * i128::from(b as i64) >> 64) as u64
    });
    check("mul.hi.u16", H, two!(MulHi { ty: IntType::U16 }), |a, b, _| a * b >> 16);
    let wide = [Class::B64, Class::B32, Class::B32, Class::B64];
    check("mul.wide.s32", wide, two!(MulWide { ty: WideType::S32 }), |a, b, _| {
        (i64::from(a as i32) * i64::from(b as i32)) as u64
    });
    check(
        "mad.wide.u32",
        wide,
        three!(MadWide { ty: WideType::U32 }),
        |a, b, c| (a * b).wrapping_add(c),
    );
    let wide16 = [Class::B32, Class::B16, Class::B16, Class::B32];
    check(
        "mul.wide.s16",
        wide16,
        two!(MulWide { ty: WideType::S16 }),
        |a, b, _| (i32::from(a as i16) * i32::from(b as i16)) as u32 as u64,
    );
    check("mad.lo.s32", W, three!(MadLo { ty: IntType::S32 }), |a, b, c| {
        (a as u32).wrapping_mul(b as u32).wrapping_add(c as u32).into()
    });
    check("div.s32", W, two!(DivInt { ty: IntType::S32 }), |a, b, _| {
        if b == 0 {
            u64::MAX
        } else {
            (a as i32).wrapping_div(b as i32) as u64
        }
    });
    check("rem.u64", D, two!(RemInt { ty: IntType::U64 }), |a, b, _| {
        if b == 0 { u64::MAX } else { a % b }
    });
    check("neg.s16", H, one!(NegInt { ty: IntType::S16 }), |a, _, _| {
        (a as u16).wrapping_neg().into()
    });
    check("abs.s64", D, one!(AbsInt { ty: IntType::S64 }), |a, _, _| {
        (a as i64).wrapping_abs() as u64
    });
    check(
        "min.s32",
        W,
        two!(MinMaxInt {
            op: MinMax::Min,
            ty: IntType::S32
        }),
        |a, b, _| (a as i32).min(b as i32) as u64,
    );
    check(
        "max.u64",
        D,
        two!(MinMaxInt {
            op: MinMax::Max,
            ty: IntType::U64
        }),
        |a, b, _| a.max(b),
    );
    check(
        "max.s16",
        H,
        two!(MinMaxInt {
            op: MinMax::Max,
            ty: IntType::S16
        }),
        |a, b, _| (a as i16).max(b as i16) as u64,
    );
}

#[test]
fn bits() {
    check(
        "xor.b64",
        D,
        two!(Logic {
            op: Logic::Xor,
            ty: LogicType::B64
        }),
        |a, b, _| a ^ b,
    );
    check(
        "or.b16",
        H,
        two!(Logic {
            op: Logic::Or,
            ty: LogicType::B16
        }),
        |a, b, _| a | b,
    );
    check("not.b16", H, one!(Not { ty: LogicType::B16 }), |a, _, _| !a);
    check("not.b64", D, one!(Not { ty: LogicType::B64 }), |a, _, _| !a);
    for (op, f) in [
        (Logic::And, (|a, b| a & b) as fn(u64, u64) -> u64),
        (Logic::Or, |a, b| a | b),
        (Logic::Xor, |a, b| a ^ b),
    ] {
        check(
            "logic.pred",
            [Class::Pred; 4],
            |d, a, b, _| Inst::Logic {
                op,
                ty: LogicType::Pred,
                d,
                a: a.into(),
                b: b.into(),
            },
            |a, b, _| f(a, b),
        );
    }
    check(
        "not.pred",
        [Class::Pred; 4],
        one!(Not { ty: LogicType::Pred }),
        |a, _, _| a ^ 1,
    );
    for lut in [0x80i64, 0xca, 0x96, 0x1b] {
        check(
            "lop3",
            W,
            |d, a, b, c| Inst::Lop3 {
                d,
                a: a.into(),
                b: b.into(),
                c: c.into(),
                lut,
            },
            |a, b, c| {
                (0..32)
                    .map(|i| {
                        let index = (a >> i & 1) << 2 | (b >> i & 1) << 1 | (c >> i & 1);
                        (lut as u64 >> index & 1) << i
                    })
                    .sum()
            },
        );
    }
    let by = |class| [class, class, Class::B32, Class::B32];
    check("shl.b32", W, two!(Shl { ty: BitType::B32 }), |a, b, _| {
        if b > 31 { 0 } else { a << b }
    });
    check("shl.b64", by(Class::B64), two!(Shl { ty: BitType::B64 }), |a, b, _| {
        if b > 63 { 0 } else { a << b }
    });
    check("shl.b16", by(Class::B16), two!(Shl { ty: BitType::B16 }), |a, b, _| {
        if b > 15 { 0 } else { a << b }
    });
    check("shr.s32", W, two!(Shr { ty: ShiftType::S32 }), |a, b, _| {
        ((a as i32) >> b.min(31)) as u64
    });
    check(
        "shr.u64",
        by(Class::B64),
        two!(Shr { ty: ShiftType::U64 }),
        |a, b, _| if b > 63 { 0 } else { a >> b },
    );
    check(
        "shr.s16",
        by(Class::B16),
        two!(Shr { ty: ShiftType::S16 }),
        |a, b, _| ((a as i16) >> b.min(15)) as u64,
    );
    check(
        "shf.l.wrap",
        W,
        three!(Shf {
            dir: ShiftDirection::Left,
            amount: ShiftAmount::Wrap
        }),
        |a, b, c| (b << 32 | a) << (c & 31) >> 32,
    );
    check(
        "shf.r.clamp",
        W,
        three!(Shf {
            dir: ShiftDirection::Right,
            amount: ShiftAmount::Clamp
        }),
        |a, b, c| (b << 32 | a) >> c.min(32),
    );
    check("prmt", W, three!(Prmt { mode: PrmtMode::Bytes }), |a, b, c| {
        (0..4)
            .map(|i| {
                let selector = c >> (4 * i) & 15;
                let byte = (b << 32 | a) >> (8 * (selector & 7)) & 255;
                (if selector & 8 == 0 {
                    byte
                } else if byte > 127 {
                    255
                } else {
                    0
                }) << (8 * i)
            })
            .sum()
    });
    check("prmt.rc16", W, three!(Prmt { mode: PrmtMode::Rc16 }), |a, _, c| {
        let half = if c & 1 == 1 { a >> 16 } else { a & 0xffff };
        half << 16 | half
    });
    let field = [Class::B64, Class::B64, Class::B32, Class::B32];
    check(
        "bfe.u64",
        field,
        |d, a, b, c| Inst::Bfe {
            ty: IntType::U64,
            d,
            a: a.into(),
            pos: b.into(),
            len: c.into(),
        },
        |a, pos, len| {
            (0..64u64)
                .filter(|i| *i < (len & 255) && (pos & 255) + i < 64)
                .map(|i| (a >> ((pos & 255) + i) & 1) << i)
                .sum()
        },
    );
    check(
        "bfe.s32",
        W,
        |d, a, b, c| Inst::Bfe {
            ty: IntType::S32,
            d,
            a: a.into(),
            pos: b.into(),
            len: c.into(),
        },
        |a, pos, len| {
            // The pseudocode of PTX ISA 9.7.1.19.
            let (pos, len) = (pos & 255, len & 255);
            let sign = if len == 0 { 0 } else { a >> (pos + len - 1).min(31) & 1 };
            (0..32)
                .map(|i| {
                    (if i < len && pos + i < 32 {
                        a >> (pos + i) & 1
                    } else {
                        sign
                    }) << i
                })
                .sum()
        },
    );
    check(
        "bfi.b32",
        W,
        |d, a, b, c| Inst::Bfi {
            ty: WordType::B32,
            d,
            a: a.into(),
            b: b.into(),
            pos: c.into(),
            len: imm(9),
        },
        |a, b, pos| {
            let pos = pos & 255;
            (0..32u64)
                .map(|i| {
                    (if i >= pos && i < pos + 9 {
                        a >> (i - pos) & 1
                    } else {
                        b >> i & 1
                    }) << i
                })
                .sum()
        },
    );
    let count = [Class::B32, Class::B64, Class::B64, Class::B64];
    check("clz.b32", W, one!(Clz { ty: WordType::B32 }), |a, _, _| {
        (a as u32).leading_zeros().into()
    });
    check("popc.b64", count, one!(Popc { ty: WordType::B64 }), |a, _, _| {
        a.count_ones().into()
    });
    check("bfind.u32", W, one!(Bfind { ty: IntType::U32 }), |a, _, _| {
        u64::from((a as u32).checked_ilog2().unwrap_or(u32::MAX))
    });
    check("bfind.s64", count, one!(Bfind { ty: IntType::S64 }), |a, _, _| {
        let a = a as i64;
        let bits = if a < 0 { !a } else { a };
        u64::from(bits.checked_ilog2().unwrap_or(u32::MAX))
    });
    check("brev.b64", D, one!(Brev { ty: WordType::B64 }), |a, _, _| {
        a.reverse_bits()
    });
}

#[test]
fn floats() {
    macro_rules! float {
        ($name:literal, $classes:expr, $row:ident, $ty:expr, |$a:ident, $b:ident| $e:expr) => {
            check(
                $name,
                $classes,
                |d, a, b, _| Inst::$row {
                    rnd: Round::Rn,
                    ftz: Ftz::No,
                    ty: $ty,
                    d,
                    a: a.into(),
                    b: b.into(),
                },
                |$a, $b, _| u64::from($e),
            );
        };
    }
    float!("add.f32", W, AddFloat, FloatType::F32, |a, b| float::add_f32(
        a as u32, b as u32
    ));
    float!("sub.f32", W, SubFloat, FloatType::F32, |a, b| float::sub_f32(
        a as u32, b as u32
    ));
    float!("mul.f32", W, MulFloat, FloatType::F32, |a, b| float::mul_f32(
        a as u32, b as u32
    ));
    float!("mul.f64", D, MulFloat, FloatType::F64, |a, b| float::mul_f64(a, b));
    float!("add.f16", H, AddFloat, FloatType::F16, |a, b| float::add_f16(
        a as u16, b as u16
    ));
    float!("mul.bf16", H, MulFloat, FloatType::BF16, |a, b| float::mul_bf16(
        a as u16, b as u16
    ));
    float!("sub.f16x2", W, SubFloat, FloatType::F16x2, |a, b| float::halves_2(
        a as u32,
        b as u32,
        float::sub_f16
    ));
    check(
        "add.rz.f32",
        W,
        |d, a, b, _| Inst::AddFloat {
            rnd: Round::Rz,
            ftz: Ftz::No,
            ty: FloatType::F32,
            d,
            a: a.into(),
            b: b.into(),
        },
        |a, b, _| float::add_rounded_f32(a as u32, b as u32, float::Rounding::TowardZero).into(),
    );
    check(
        "mul.ftz.f32",
        W,
        |d, a, b, _| Inst::MulFloat {
            rnd: Round::Rn,
            ftz: Ftz::Yes,
            ty: FloatType::F32,
            d,
            a: a.into(),
            b: b.into(),
        },
        |a, b, _| float::mul_ftz_f32(a as u32, b as u32).into(),
    );
    for (ty, classes) in [
        (FloatType::F32, W),
        (FloatType::F64, D),
        (FloatType::F16, H),
        (FloatType::BF16x2, W),
    ] {
        check(
            "fma",
            classes,
            |d, a, b, c| Inst::Fma {
                rnd: Round::Rn,
                ftz: Ftz::No,
                ty,
                d,
                a: a.into(),
                b: b.into(),
                c: c.into(),
            },
            |a, b, c| match ty {
                FloatType::F32 => float::fma_f32::<false>(a as u32, b as u32, c as u32).into(),
                FloatType::F64 => float::fma_f64(a, b, c),
                FloatType::F16 => float::fma_f16(a as u16, b as u16, c as u16).into(),
                _ => float::halves_3(a as u32, b as u32, c as u32, float::fma_bf16).into(),
            },
        );
    }
    check(
        "min.f32",
        W,
        two!(MinMaxFloat {
            op: MinMax::Min,
            ftz: Ftz::No,
            nan: NanMode::Number,
            ty: FloatType::F32
        }),
        |a, b, _| float::min_f32(a as u32, b as u32).into(),
    );
    check(
        "max.NaN.f32",
        W,
        two!(MinMaxFloat {
            op: MinMax::Max,
            ftz: Ftz::No,
            nan: NanMode::Propagate,
            ty: FloatType::F32
        }),
        |a, b, _| float::max_nan_f32(a as u32, b as u32).into(),
    );
    check(
        "max.f16",
        H,
        two!(MinMaxFloat {
            op: MinMax::Max,
            ftz: Ftz::No,
            nan: NanMode::Number,
            ty: FloatType::F16
        }),
        |a, b, _| float::max_f16(a as u16, b as u16).into(),
    );
    check(
        "neg.bf16x2",
        W,
        one!(NegFloat {
            ftz: Ftz::No,
            ty: FloatType::BF16x2
        }),
        |a, _, _| float::halves_1(a as u32, float::neg_bf16).into(),
    );
    check(
        "abs.f64",
        D,
        one!(AbsFloat {
            ftz: Ftz::No,
            ty: FloatType::F64
        }),
        |a, _, _| float::abs_f64(a),
    );
    check(
        "copysign.f32",
        W,
        two!(Copysign { ty: WideFloatType::F32 }),
        |a, b, _| float::copysign_f32(a as u32, b as u32).into(),
    );
    check(
        "div.rn.f32",
        W,
        two!(DivFloat {
            ftz: Ftz::No,
            ty: WideFloatType::F32
        }),
        |a, b, _| float::div_f32(a as u32, b as u32).into(),
    );
    check(
        "div.full.f32",
        W,
        two!(DivApprox {
            mode: DivMode::Full,
            ftz: Ftz::No
        }),
        |a, b, _| special::div_full_f32(a as u32, b as u32).into(),
    );
    check(
        "sqrt.rn.f64",
        D,
        one!(Exact {
            op: Exact::Sqrt,
            ftz: Ftz::No,
            ty: WideFloatType::F64
        }),
        |a, _, _| float::sqrt_f64(a),
    );
    check(
        "rcp.rn.f32",
        W,
        one!(Exact {
            op: Exact::Rcp,
            ftz: Ftz::No,
            ty: WideFloatType::F32
        }),
        |a, _, _| float::rcp_f32(a as u32).into(),
    );
    check(
        "ex2.approx.ftz",
        W,
        one!(Mufu {
            op: Mufu::Ex2,
            ftz: Ftz::Yes
        }),
        |a, _, _| special::ex2_approx_ftz_f32(a as u32).into(),
    );
    check(
        "lg2.approx",
        W,
        one!(Mufu {
            op: Mufu::Lg2,
            ftz: Ftz::No
        }),
        |a, _, _| special::lg2_approx_f32(a as u32).into(),
    );
    check(
        "sin.approx",
        W,
        one!(Mufu {
            op: Mufu::Sin,
            ftz: Ftz::No
        }),
        |a, _, _| special::sin_approx_f32(a as u32).into(),
    );
    check("tanh.approx", W, one!(TanhApprox {}), |a, _, _| {
        special::tanh_approx_f32(a as u32).into()
    });
    check(
        "tanh.approx.f16",
        H,
        one!(Mufu16 { op: Unary16::TanhF16 }),
        |a, _, _| special::tanh_approx_f16(a as u16).into(),
    );
    check(
        "ex2.approx.f16x2",
        W,
        one!(Mufu16 { op: Unary16::Ex2F16x2 }),
        |a, _, _| float::halves_1(a as u32, special::ex2_approx_f16).into(),
    );
    check("rcp.approx.f64", D, one!(Mufu64 { op: Mufu64::Rcp }), |a, _, _| {
        special::rcp_approx_ftz_f64(a)
    });
}

#[test]
fn conversions() {
    macro_rules! cvt {
        ($rnd:ident $sat:ident $to:ident $from:ident, $dc:ident $ac:ident, |$a:ident| $e:expr) => {
            check(
                concat!("cvt ", stringify!($to), " ", stringify!($from)),
                [Class::$dc, Class::$ac, Class::B64, Class::B64],
                |d, a, _, _| Inst::Cvt {
                    rnd: CvtRound::$rnd,
                    ftz: Ftz::No,
                    sat: Sat::$sat,
                    to: CvtType::$to,
                    from: CvtType::$from,
                    d,
                    a,
                },
                |$a, _, _| $e,
            );
        };
    }
    use convert::ToInteger;
    use float::Rounding;
    cvt!(None No F32 F16, B32 B16, |a| convert::f16_to_f32_bits(a as u16).into());
    cvt!(Rn No F16 F32, B16 B32, |a| convert::f32_to_f16(a as u32).into());
    cvt!(Rz No BF16 F32, B16 B32, |a| convert::f32_to_bf16_rounded(a as u32, Rounding::TowardZero).into());
    cvt!(Rn No F32 F64, B32 B64, |a| convert::f64_to_f32(a, Rounding::NearestEven).into());
    cvt!(None No F64 F32, B64 B32, |a| convert::f32_to_f64(a as u32));
    cvt!(Rn No F32 S32, B32 B32, |a| (a as i32 as f32).to_bits().into());
    cvt!(Rn No F16 S64, B16 B64, |a| convert::s64_to_f16(a as i64).into());
    cvt!(Rn No F32 U8, B32 B32, |a| f32::from(a as u8).to_bits().into());
    cvt!(Rzi No S32 F32, B32 B32, |a| (convert::f32_to_s32(a as u32, ToInteger::TowardZero) as u32).into());
    cvt!(Rni No U64 F64, B64 B64, |a| convert::f64_to_u64(a, ToInteger::NearestEven));
    cvt!(Rmi No S8 F16, B32 B16, |a| (convert::f32_to_s8(convert::f16_to_f32_bits(a as u16), ToInteger::Down) as i32 as u32).into());
    cvt!(None No S64 S8, B64 B32, |a| i64::from(a as i8) as u64);
    cvt!(None No U8 S32, B32 B32, |a| a & 255);
    cvt!(None Yes S8 S32, B32 B32, |a| (a as i32).clamp(-128, 127) as u32 as u64);
    cvt!(None Yes U16 S64, B16 B64, |a| (a as i64).clamp(0, 65535) as u64);
    cvt!(None No S32 S16, B32 B16, |a| a as i16 as i32 as u32 as u64);
    cvt!(Rpi No F32 F32, B32 B32, |a| convert::round_integral_f32(a as u32, ToInteger::Up).into());
    cvt!(None Yes F32 F32, B32 B32, |a| float::saturate_f32(a as u32).into());
    check(
        "cvt.rn.bf16x2",
        W,
        |d, a, b, _| Inst::CvtPair {
            rnd: Round::Rn,
            relu: Relu::No,
            to: Pair16::BF16x2,
            d,
            a: a.into(),
            b: b.into(),
        },
        |a, b, _| u64::from(convert::f32_to_bf16(a as u32)) << 16 | u64::from(convert::f32_to_bf16(b as u32)),
    );
    check(
        "cvt.rn.relu.f16x2",
        W,
        |d, a, b, _| Inst::CvtPair {
            rnd: Round::Rn,
            relu: Relu::Yes,
            to: Pair16::F16x2,
            d,
            a: a.into(),
            b: b.into(),
        },
        |a, b, _| {
            u64::from(float::relu_16(convert::f32_to_f16(a as u32))) << 16
                | u64::from(float::relu_16(convert::f32_to_f16(b as u32)))
        },
    );
    check(
        "cvt e5m2x2",
        [Class::B16, Class::B32, Class::B32, Class::B32],
        |d, a, b, _| Inst::CvtPair8F32 {
            relu: Relu::No,
            to: Pair8::E5M2x2,
            d,
            a: a.into(),
            b: b.into(),
        },
        |a, b, _| {
            u64::from(convert::f32_to_fp8(convert::Fp8::E5m2, a as u32)) << 8
                | u64::from(convert::f32_to_fp8(convert::Fp8::E5m2, b as u32))
        },
    );
    check(
        "cvt f16x2.e4m3x2",
        [Class::B32, Class::B16, Class::B32, Class::B32],
        |d, a, _, _| Inst::CvtF16x2Pair8 {
            relu: Relu::No,
            from: Pair8::E4M3x2,
            d,
            a,
        },
        |a, _, _| {
            u64::from(convert::fp8_to_f16(convert::Fp8::E4m3, (a >> 8) as u8)) << 16
                | u64::from(convert::fp8_to_f16(convert::Fp8::E4m3, a as u8))
        },
    );
    check(
        "cvt.rna.tf32",
        W,
        |d, a, _, _| Inst::CvtTf32 { d, a },
        |a, _, _| convert::f32_to_tf32_rna(a as u32).into(),
    );
}

#[test]
fn comparisons() {
    let pred = |class| [Class::Pred, class, class, class];
    for cmp in [
        Compare::Eq,
        Compare::Ne,
        Compare::Lt,
        Compare::Le,
        Compare::Gt,
        Compare::Ge,
    ] {
        let holds = |o: std::cmp::Ordering| match cmp {
            Compare::Eq => o.is_eq(),
            Compare::Ne => o.is_ne(),
            Compare::Lt => o.is_lt(),
            Compare::Le => o.is_le(),
            Compare::Gt => o.is_gt(),
            _ => o.is_ge(),
        };
        check(
            "setp.s32",
            pred(Class::B32),
            two!(Setp {
                cmp,
                ftz: Ftz::No,
                ty: CompareType::S32
            }),
            |a, b, _| holds((a as i32).cmp(&(b as i32))).into(),
        );
        check(
            "setp.u64",
            pred(Class::B64),
            two!(Setp {
                cmp,
                ftz: Ftz::No,
                ty: CompareType::U64
            }),
            |a, b, _| holds(a.cmp(&b)).into(),
        );
        check(
            "setp.s16",
            pred(Class::B16),
            two!(Setp {
                cmp,
                ftz: Ftz::No,
                ty: CompareType::S16
            }),
            |a, b, _| holds((a as i16).cmp(&(b as i16))).into(),
        );
    }
    use Compare::*;
    for (cmp, ordered, unordered) in [
        (Eq, true, false),
        (Neu, false, true),
        (Ne, false, false),
        (Ltu, true, true),
        (Ge, true, false),
        (Num, true, false),
        (Nan, false, true),
    ] {
        let _ = ordered;
        check(
            "setp.f32",
            pred(Class::B32),
            two!(Setp {
                cmp,
                ftz: Ftz::No,
                ty: CompareType::F32
            }),
            |a, b, _| {
                let (a, b) = (f32::from_bits(a as u32), f32::from_bits(b as u32));
                if a.is_nan() || b.is_nan() {
                    return unordered.into();
                }
                (match cmp {
                    Eq => a == b,
                    Ne | Neu => a != b,
                    Ltu => a < b,
                    Ge => a >= b,
                    Num => true,
                    _ => false,
                })
                .into()
            },
        );
    }
    check(
        "selp",
        [Class::B64, Class::B64, Class::B64, Class::Pred],
        |d, a, b, p| Inst::Selp {
            ty: BitType::B64,
            d,
            a: a.into(),
            b: b.into(),
            p,
        },
        |a, b, p| if p == 1 { a } else { b },
    );
}
