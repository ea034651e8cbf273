//! Rows as they are written in PTX, against plain Rust: what kernels' authors write by hand, and no pass of ours.
use super::build::*;
use super::scalar::check;
use crate::emulate::arith::float;
use crate::ptx::flat::Reg;
use crate::ptx::inst::Inst;
use crate::ptx::modifier::*;
use crate::ptx::operand::Class;
use crate::ptx::parse::parse_inst;
use std::collections::HashMap;

/// An instruction from its text, in which names stand for registers.
fn inst(text: &str, registers: &[(&str, Reg)]) -> Inst<Reg> {
    let named: HashMap<&str, Reg> = registers.iter().copied().collect();
    let mut out = String::new();
    let mut word = String::new();
    for c in text.chars().chain([' ']) {
        if c.is_ascii_alphanumeric() || c == '_' || c == '%' || c == '.' {
            word.push(c);
            continue;
        }
        match named.get(word.as_str()) {
            Some(r) => out += &format!("%{}{}", r.class.prefix(), r.index),
            None => out += &word,
        }
        word.clear();
        out.push(c);
    }
    let (inst, rest) = parse_inst(out.trim()).unwrap_or_else(|| panic!("no row: `{out}`"));
    assert_eq!(rest, "", "{out}");
    crate::ptx::legal::check(&inst).unwrap_or_else(|e| panic!("`{out}`: {e}"));
    inst
}

/// The instruction of registers D, A, B and C.
fn row(text: &'static str, classes: [Class; 4], expect: impl Fn(u64, u64, u64) -> u64) {
    let make = |d, a, b, c| inst(text, &[("D", d), ("A", a), ("B", b), ("C", c)]);
    check(text, classes, make, expect);
}

const W: [Class; 4] = [Class::B32; 4];
const D: [Class; 4] = [Class::B64; 4];
const H: [Class; 4] = [Class::B16; 4];

fn halves(a: u64, b: u64, f: impl Fn(u16, u16) -> u16) -> u64 {
    u64::from(f(a as u16, b as u16)) | u64::from(f((a >> 16) as u16, (b >> 16) as u16)) << 16
}

#[test]
fn integers() {
    let signed = |x: u64| i64::from(x as i32);
    let saturated = |x: i64| x.clamp(i32::MIN.into(), i32::MAX.into()) as u64;
    row("add.sat.s32 D, A, B;", W, |a, b, _| saturated(signed(a) + signed(b)));
    row("sub.sat.s32 D, A, B;", W, |a, b, _| saturated(signed(a) - signed(b)));
    row("mad.hi.u32 D, A, B, C;", W, |a, b, c| (a * b >> 32) + c);
    row("mad.hi.s64 D, A, B, C;", D, |a, b, c| {
        ((i128::from(a as i64) * i128::from(b as i64) >> 64) as u64).wrapping_add(c)
    });
    row("mad.hi.sat.s32 D, A, B, C;", W, |a, b, c| {
        saturated((signed(a) * signed(b) >> 32) + signed(c))
    });
    let low24 = |x: u64| i64::from((x as i32) << 8 >> 8);
    row("mul24.lo.u32 D, A, B;", W, |a, b, _| (a & 0xff_ffff) * (b & 0xff_ffff));
    row("mul24.hi.u32 D, A, B;", W, |a, b, _| {
        (a & 0xff_ffff) * (b & 0xff_ffff) >> 16
    });
    row("mul24.lo.s32 D, A, B;", W, |a, b, _| (low24(a) * low24(b)) as u64);
    row("mad24.hi.s32 D, A, B, C;", W, |a, b, c| {
        ((low24(a) * low24(b) >> 16) as u64).wrapping_add(c)
    });
    row("mad24.hi.sat.s32 D, A, B, C;", W, |a, b, c| {
        saturated((low24(a) * low24(b) >> 16) + signed(c))
    });
    row("sad.u32 D, A, B, C;", W, |a, b, c| a.abs_diff(b) + c);
    row("sad.s16 D, A, B, C;", H, |a, b, c| {
        u64::from((a as i16).abs_diff(b as i16)) + c
    });
    row("dp4a.s32.u32 D, A, B, C;", W, |a, b, c| {
        let sum: i64 = (0..4)
            .map(|i| i64::from((a >> (8 * i)) as i8) * i64::from((b >> (8 * i)) as u8))
            .sum();
        (sum as u64).wrapping_add(c)
    });
    row("dp2a.hi.u32.s32 D, A, B, C;", W, |a, b, c| {
        let sum: i64 = (0..2)
            .map(|i| i64::from((a >> (16 * i)) as u16) * i64::from((b >> (16 + 8 * i)) as i8))
            .sum();
        (sum as u64).wrapping_add(c)
    });
    row("add.u16x2 D, A, B;", W, |a, b, _| halves(a, b, u16::wrapping_add));
    row("min.u16x2 D, A, B;", W, |a, b, _| halves(a, b, u16::min));
    row("max.s16x2 D, A, B;", W, |a, b, _| {
        halves(a, b, |a, b| (a as i16).max(b as i16) as u16)
    });
    row("min.relu.s16x2 D, A, B;", W, |a, b, _| {
        halves(a, b, |a, b| (a as i16).min(b as i16).max(0) as u16)
    });
    row("max.relu.s32 D, A, B;", W, |a, b, _| {
        (a as i32).max(b as i32).max(0) as u64
    });
    row("bmsk.clamp.b32 D, A, B;", W, |a, b, _| {
        (0..32)
            .filter(|i| a <= *i && *i < a.saturating_add(b))
            .fold(0, |m, i| m | 1 << i)
    });
    row("bmsk.wrap.b32 D, A, B;", W, |a, b, _| {
        let (a, b) = (a & 31, b & 31);
        (0..32).filter(|i| a <= *i && *i < a + b).fold(0, |m, i| m | 1 << i)
    });
    row("szext.clamp.s32 D, A, B;", W, |a, b, _| match b {
        0 => 0,
        1..=31 => ((a as i32) << (32 - b) >> (32 - b)) as u64,
        _ => a,
    });
    row("szext.wrap.u32 D, A, B;", W, |a, b, _| a & ((1 << (b & 31)) - 1));
    row("bfind.shiftamt.u32 D, A;", W, |a, _, _| {
        if a == 0 {
            u64::MAX
        } else {
            (a as u32).leading_zeros().into()
        }
    });
    row(
        "bfind.shiftamt.s64 D, A;",
        [Class::B32, Class::B64, Class::B32, Class::B32],
        |a, _, _| {
            let a = if (a as i64) < 0 { !a } else { a };
            if a == 0 { u64::MAX } else { a.leading_zeros().into() }
        },
    );
    // The example of PTX ISA, `fns`, and some more.
    row("fns.b32 D, 0xaaaaaaaa, 3, 1;", W, |_, _, _| 3);
    row("fns.b32 D, 0xaaaaaaaa, 3, -1;", W, |_, _, _| 3);
    row("fns.b32 D, 0xaaaaaaaa, 2, 1;", W, |_, _, _| 3);
    row("fns.b32 D, 0xaaaaaaaa, 2, -1;", W, |_, _, _| 1);
    row("fns.b32 D, 0xaaaaaaaa, 2, 0;", W, |_, _, _| u64::MAX);
    row("fns.b32 D, A, 0, 5;", W, |a, _, _| {
        (0..32).filter(|i| a >> i & 1 == 1).nth(4).unwrap_or(u64::MAX)
    });
    row("fns.b32 D, A, 31, -2;", W, |a, _, _| {
        (0..32).rev().filter(|i| a >> i & 1 == 1).nth(1).unwrap_or(u64::MAX)
    });
    row("cnot.b16 D, A;", H, |a, _, _| u64::from(a == 0));
    row("cnot.b64 D, A;", D, |a, _, _| u64::from(a == 0));
    row("cvt.pack.sat.s16.s32 D, A, B;", W, |a, b, _| {
        let one = |x: u64| (x as i32).clamp(-32768, 32767) as u64 & 0xffff;
        one(a) << 16 | one(b)
    });
    row("cvt.pack.sat.u8.s32.b32 D, A, B, C;", W, |a, b, c| {
        let one = |x: u64| (x as i32).clamp(0, 255) as u64;
        c << 16 | one(a) << 8 | one(b)
    });
}

#[test]
fn selections() {
    row(
        "slct.b64.s32 D, A, B, C;",
        [Class::B64, Class::B64, Class::B64, Class::B32],
        |a, b, c| {
            if c as i32 >= 0 { a } else { b }
        },
    );
    row("slct.f32.f32 D, A, B, C;", W, |a, b, c| {
        if f32::from_bits(c as u32) >= 0.0 { a } else { b }
    });
    row("set.lt.u32.s32 D, A, B;", W, |a, b, _| {
        if (a as i32) < b as i32 { u64::MAX } else { 0 }
    });
    row("set.geu.f32.f32 D, A, B;", W, |a, b, _| {
        let (a, b) = (f32::from_bits(a as u32), f32::from_bits(b as u32));
        if a < b { 0 } else { 1f32.to_bits().into() }
    });
    let with = [Class::Pred, Class::B32, Class::B32, Class::Pred];
    row("setp.lt.and.u32 D, A, B, C;", with, |a, b, c| {
        u64::from(a < b && c == 1)
    });
    row("setp.lt.or.u32 D, A, B, !C;", with, |a, b, c| {
        u64::from(a < b || c == 0)
    });
    row("setp.ge.xor.s32 D, A, B, C;", with, |a, b, c| {
        u64::from((a as i32 >= b as i32) != (c == 1))
    });
    row(
        "set.eq.and.s32.u32 D, A, B, C;",
        [Class::B32, Class::B32, Class::B32, Class::Pred],
        |a, b, c| {
            if a == b && c == 1 { u64::MAX } else { 0 }
        },
    );
    for (test, of) in [
        ("testp.finite.f32 D, A;", float::Test::Finite),
        ("testp.infinite.f32 D, A;", float::Test::Infinite),
        ("testp.number.f32 D, A;", float::Test::Number),
        ("testp.notanumber.f32 D, A;", float::Test::NotANumber),
        ("testp.normal.f32 D, A;", float::Test::Normal),
        ("testp.subnormal.f32 D, A;", float::Test::Subnormal),
    ] {
        row(test, [Class::Pred, Class::B32, Class::B32, Class::B32], |a, _, _| {
            float::test_f32(of, a as u32).into()
        });
    }
    // The rank of an address without one is the CTA's own.
    row("getctarank.shared::cluster.u32 D, A;", W, |a, _, _| {
        if a >> 24 == 0 { 0 } else { (a >> 24) - 1 }
    });
    row("mov.f64 D, A;", D, |a, _, _| a);
    row(
        "selp.f32 D, A, B, C;",
        [Class::B32, Class::B32, Class::B32, Class::Pred],
        |a, b, c| if c == 1 { a } else { b },
    );
    row("shr.b32 D, A, B;", W, |a, b, _| if b > 31 { 0 } else { a >> b });
}

#[test]
fn quarters() {
    let got = warp(|k| {
        let (tid, d, low, high) = (k.tid(), k.rd(), k.r(), k.r());
        let h: Vec<Reg> = (0..5).map(|_| k.h()).collect();
        let names = [
            ("T", tid),
            ("D", d),
            ("LOW", low),
            ("HIGH", high),
            ("A", h[0]),
            ("B", h[1]),
            ("C", h[2]),
            ("E", h[3]),
            ("F", h[4]),
        ];
        for text in [
            "cvt.u16.u32 A, T;",
            "not.b16 B, A;",
            "mov.b64 D, {A, B, B, A};",
            "mov.b64 {C, E, A, F}, D;",
            "mov.b32 LOW, {C, E};",
            "mov.b32 HIGH, {A, F};",
        ] {
            k.push(inst(text, &names));
        }
        vec![low, high]
    });
    for (lane, got) in got.iter().enumerate() {
        let (a, b) = (lane as u32, 0xffff ^ lane as u32);
        assert_eq!(got[..], [a | b << 16, b | a << 16], "lane {lane}");
    }
}

/// Two results: the second one is stored beside the first.
#[test]
fn comparisons_with_two_results() {
    let mut k = Kernel::new(32);
    let tid = k.tid();
    let (p, q, r, out) = (k.p(), k.p(), k.p(), k.r());
    let odd = k.odd();
    let c = k.compare(Compare::Ne, odd.into(), imm(0));
    let names = [
        ("T", tid),
        ("P", p),
        ("Q", q),
        ("R", r),
        ("C", c),
        ("O", out),
        ("ODD", odd),
    ];
    let sum = k.mov(imm(0));
    let add = |k: &mut Kernel, p: Reg, weight: u32| {
        k.when(p, false, |k| {
            k.push(Inst::AddInt {
                ty: IntType::U32,
                d: sum,
                a: sum.into(),
                b: imm(weight),
            });
        });
    };
    k.push(inst("setp.lt.u32 P|Q, T, 10;", &names));
    add(&mut k, p, 1);
    add(&mut k, q, 2);
    k.push(inst("setp.lt.and.u32 C|Q, T, 10, C;", &names));
    add(&mut k, c, 4);
    add(&mut k, q, 8);
    k.push(inst("lop3.or.b32 O|R, T, ODD, 12, 0x80, !P;", &names));
    add(&mut k, r, 16);
    add(&mut k, p, 0);
    k.push(Inst::AddInt {
        ty: IntType::U32,
        d: sum,
        a: sum.into(),
        b: out.into(),
    });
    k.store_per_thread(0, sum);
    let expected: Vec<u32> = (0..32u32)
        .map(|t| {
            let (less, odd) = (t < 10, t % 2 == 1);
            let and = t & (t & 1) & 12;
            let flags = [less, !less, less && odd, !less && odd, and != 0 || !less];
            flags.iter().enumerate().map(|(i, f)| u32::from(*f) << i).sum::<u32>() + and
        })
        .collect();
    assert_eq!(k.words(32), expected);
}

#[test]
fn floats() {
    let single = |x: u64| f32::from_bits(x as u32);
    row("add.sat.f32 D, A, B;", W, |a, b, _| {
        float::saturate_f32(float::add_f32(a as u32, b as u32)).into()
    });
    row("mul.rz.sat.f32 D, A, B;", W, |a, b, _| {
        float::saturate_f32(float::mul_rounded_f32(a as u32, b as u32, float::Rounding::TowardZero)).into()
    });
    row("fma.rn.ftz.sat.f32 D, A, B, C;", W, |a, b, c| {
        float::saturate_f32(float::fma_ftz_f32(a as u32, b as u32, c as u32)).into()
    });
    row("fma.rn.relu.f16x2 D, A, B, C;", W, |a, b, c| {
        u64::from(float::halves_3(a as u32, b as u32, c as u32, |a, b, c| {
            float::relu_16(float::fma_f16(a, b, c))
        }))
    });
    row("fma.rn.relu.bf16 D, A, B, C;", H, |a, b, c| {
        u64::from(float::relu_16(float::fma_bf16(a as u16, b as u16, c as u16)))
    });
    row("add.ftz.f16 D, A, B;", H, |a, b, _| {
        let flush = float::flush_f16;
        u64::from(flush(float::add_f16(flush(a as u16), flush(b as u16))))
    });
    row("sub.sat.f16x2 D, A, B;", W, |a, b, _| {
        halves(a, b, |a, b| float::saturate_f16(float::sub_f16(a, b)))
    });
    row("neg.ftz.f16 D, A;", H, |a, _, _| {
        u64::from(float::neg_f16(float::flush_f16(a as u16)))
    });
    row("max.ftz.f16x2 D, A, B;", W, |a, b, _| {
        halves(a, b, |a, b| float::max_f16(float::flush_f16(a), float::flush_f16(b)))
    });
    row("min.xorsign.abs.f32 D, A, B;", W, |a, b, _| {
        let (x, y) = (single(a).abs(), single(b).abs());
        if x.is_nan() && y.is_nan() {
            return float::F32_NAN.into();
        }
        u64::from(x.min(y).to_bits() | (a ^ b) as u32 & 0x8000_0000)
    });
    // Between the two neighbours that nearest even has on either side.
    row("div.rz.f32 D, A, B;", W, |a, b, _| {
        let near = float::div_f32(a as u32, b as u32);
        let (x, y) = (f64::from(single(a)), f64::from(single(b)));
        let exact = x / y;
        if !exact.is_finite() || single(near.into()).is_nan() {
            return near.into();
        }
        // Exact quotients of f32 are never that close to the middle or to a number, but they may be one.
        let over = (f64::from(f32::from_bits(near)) * y).abs() > x.abs() || f32::from_bits(near).is_infinite();
        u64::from(near - u32::from(over))
    });
    row("sqrt.rp.f32 D, A;", W, |a, _, _| {
        let near = float::sqrt_f32(a as u32);
        let root = f64::from(f32::from_bits(near));
        u64::from(near + u32::from(root * root < f64::from(single(a)) && root.is_finite()))
    });
    row("rcp.rm.f64 D, 0d3FF0000000000000;", D, |_, _, _| 1f64.to_bits());
    row("mul.rp.f64 D, A, 0d3FE0000000000000;", D, |a, _, _| {
        let x = f64::from_bits(a);
        if x.is_nan() {
            return a | 1 << 51;
        }
        let half = x * 0.5;
        (if half * 2.0 < x {
            f64::from_bits(half.to_bits().wrapping_add(if x > 0.0 { 1 } else { u64::MAX }))
        } else {
            half
        })
        .to_bits()
    });
    row("cvt.rz.tf32.f32 D, A;", W, |a, _, _| {
        if single(a).is_nan() {
            0x7fff_e000
        } else {
            a & 0xffff_e000
        }
    });
    row(
        "cvt.rn.relu.f16.f32 D, A;",
        [Class::B16, Class::B32, Class::B32, Class::B32],
        |a, _, _| u64::from(float::relu_16(crate::emulate::arith::convert::f32_to_f16(a as u32))),
    );
}

/// Every lane's results of a kernel of one warp, in order.
fn warp(build: impl FnOnce(&mut Kernel) -> Vec<Reg>) -> Vec<Vec<u32>> {
    let mut k = Kernel::new(32);
    let results = build(&mut k);
    let n = results.len();
    let (tid, base) = (k.tid(), k.pointer(0));
    let first = k.mul(tid.into(), imm(n as u32));
    for (i, r) in results.iter().enumerate() {
        let index = k.add(first.into(), imm(i as u32));
        let at = k.element(base, index, 4);
        k.store(at, *r);
    }
    k.words(32 * n).chunks(n).map(<[u32]>::to_vec).collect()
}

fn number(k: &mut Kernel, p: Reg) -> Reg {
    let r = k.r();
    k.push(inst("selp.b32 R, 1, 0, P;", &[("R", r), ("P", p)]));
    r
}

#[test]
fn masks_in_registers_make_groups() {
    let got = warp(|k| {
        let tid = k.tid();
        let [odd, mask, sum, near, any, all, ballot, lead] = [(); 8].map(|()| k.r());
        let [p, q, inside, elected, same] = [(); 5].map(|()| k.p());
        let names = [
            ("T", tid),
            ("ODD", odd),
            ("M", mask),
            ("SUM", sum),
            ("NEAR", near),
            ("ANY", any),
            ("ALL", all),
            ("BALLOT", ballot),
            ("LEAD", lead),
            ("P", p),
            ("Q", q),
            ("IN", inside),
            ("E", elected),
            ("SAME", same),
        ];
        for text in [
            "and.b32 ODD, T, 1;",
            "match.any.sync.b32 M, ODD, 0xffffffff;",
            "redux.sync.add.s32 SUM, T, M;",
            "shfl.sync.down.b32 NEAR|IN, T, 2, 31, M;",
            "setp.lt.u32 P, T, 5;",
            "vote.sync.any.pred Q, P, M;",
            "vote.sync.ballot.b32 BALLOT, P, M;",
            "elect.sync LEAD|E, M;",
            "match.any.sync.b32 ANY, T, -1;",
            "match.all.sync.b32 ALL|SAME, ODD, M;",
            "bar.warp.sync M;",
        ] {
            k.push(inst(text, &names));
        }
        let [q, inside, elected, same] = [q, inside, elected, same].map(|p| number(k, p));
        vec![mask, sum, near, inside, q, ballot, lead, elected, any, all, same]
    });
    for (lane, got) in got.iter().enumerate() {
        let lane = lane as u32;
        let odd = lane % 2;
        let group = if odd == 1 { 0xaaaa_aaaa } else { 0x5555_5555 };
        let inside = lane + 2 < 32;
        let expected = [
            group,
            240 + 16 * odd,
            if inside { lane + 2 } else { lane },
            inside.into(),
            1,
            group & 31,
            odd,
            u32::from(lane == odd),
            1 << lane,
            group,
            1,
        ];
        assert_eq!(got[..], expected, "lane {lane}");
    }
}

#[test]
fn matrices_are_transposed_in_registers() {
    let got = warp(|k| {
        let (tid, d) = (k.tid(), k.r());
        let low = k.mul(tid.into(), imm(2));
        let high = k.add(low.into(), imm(1));
        let shifted = k.mul(high.into(), imm(1 << 16));
        let a = k.add(low.into(), shifted.into());
        k.push(inst(
            "movmatrix.sync.aligned.m8n8.trans.b16 D, A;",
            &[("D", d), ("A", a)],
        ));
        vec![d]
    });
    for (lane, got) in got.iter().enumerate() {
        let (row, column) = (lane as u32 / 4, lane as u32 % 4 * 2);
        // Element (r, c) is 8·r + c.
        assert_eq!(
            got[0],
            (8 * column + row) | (8 * (column + 1) + row) << 16,
            "lane {lane}"
        );
    }
}

#[test]
fn lanes_that_execute_together() {
    let got = warp(|k| {
        let tid = k.tid();
        let d = k.mov(imm(99));
        let p = k.compare(Compare::Lt, tid.into(), imm(3));
        k.when(p, false, |k| {
            k.push(inst("activemask.b32 D;", &[("D", d)]));
        });
        let registers = [
            "%lanemask_eq",
            "%lanemask_le",
            "%lanemask_ge",
            "%lanemask_gt",
            "%nwarpid",
            "%tid.y",
            "%ntid.z",
            "%cluster_nctaid.x",
        ];
        let mut all = vec![d];
        for register in registers {
            let r = k.r();
            k.push(inst(&format!("mov.u32 R, {register};"), &[("R", r)]));
            all.push(r);
        }
        let q = k.p();
        k.push(inst("mov.pred Q, %is_explicit_cluster;", &[("Q", q)]));
        let q = number(k, q);
        all.push(q);
        all
    });
    for (lane, got) in got.iter().enumerate() {
        let own = 1u32 << lane;
        let expected = [
            if lane < 3 { 7 } else { 99 },
            own,
            own | (own - 1),
            !(own - 1),
            !(own | (own - 1)),
            64,
            0,
            1,
            1,
            0,
        ];
        assert_eq!(got[..], expected, "lane {lane}");
    }
}

/// A matrix's elements as numbers do not matter here: integers of a few bits make every accumulation exact.
#[test]
fn shapes_of_mma() {
    let f16 = |x: i32| half::f16::from_f32(x as f32).to_bits();
    let element = |i: usize, j: usize, salt: usize| ((i * 7 + j * 5 + salt * 3) % 7) as i32 - 3;
    // (kind, elements of k, bytes of one, accumulators in pairs)
    for (text, k_len, bytes, packed) in [
        ("m16n8k8.row.col.f32.f16.f16.f32", 8, 2, false),
        ("m16n8k8.row.col.f32.bf16.bf16.f32", 8, 2, false),
        ("m16n8k4.row.col.f32.tf32.tf32.f32", 4, 4, false),
        ("m16n8k16.row.col.f16.f16.f16.f16", 16, 2, true),
        ("m16n8k8.row.col.f16.f16.f16.f16", 8, 2, true),
        ("m16n8k16.row.col.s32.s8.s8.s32", 16, 1, false),
        ("m16n8k16.row.col.satfinite.s32.s8.s8.s32", 16, 1, false),
    ] {
        let code = |x: i32| -> u32 {
            match bytes {
                1 => u32::from(x as i8 as u8),
                4 => (x as f32).to_bits(),
                _ if text.contains("bf16") => (x as f32).to_bits() >> 16,
                _ => f16(x).into(),
            }
        };
        let per = 4 / bytes;
        let (shape, _) = MmaShape::parse_prefix(text).expect("a shape");
        let ty = MmaTypes::ALL
            .iter()
            .find(|ty| text.ends_with(ty.text()))
            .expect("types");
        let of = shape.fragments(*ty);
        let mut k = Kernel::new(32);
        let (a, b, c) = (
            k.load_own_words(0, of.a),
            k.load_own_words(1, of.b),
            k.load_own_words(2, of.acc),
        );
        let d: Vec<Reg> = (0..of.acc).map(|_| k.r()).collect();
        let list = |v: &[Reg]| {
            let names: Vec<String> = v.iter().map(|r| format!("%r{}", r.index)).collect();
            format!("{{{}}}", names.join(", "))
        };
        let written = format!(
            "mma.sync.aligned.{text} {}, {}, {}, {};",
            list(&d),
            list(&a),
            list(&b),
            list(&c)
        );
        k.push(inst(&written, &[]));
        k.store_own_words(3, &d);
        let mut buffers = [vec![], vec![], vec![], vec![0; 128 * of.acc]];
        let word = |row: usize, at: usize, salt: usize| -> u32 {
            (0..per).fold(0, |word, j| {
                word | code(element(row, at * per + j, salt)) << (8 * bytes * j)
            })
        };
        let is_int = text.contains("s32");
        for lane in 0..32 {
            for r in 0..of.a {
                buffers[0].extend(word(lane / 4 + r % 2 * 8, lane % 4 + r / 2 * 4, 0).to_le_bytes());
            }
            for r in 0..of.b {
                buffers[1].extend(word(lane / 4, lane % 4 + r * 4, 1).to_le_bytes());
            }
            for r in 0..of.acc {
                let c = |row: usize, column: usize| element(row, column, 2);
                let column = lane % 4 * 2;
                let value: u32 = if packed {
                    let row = lane / 4 + r * 8;
                    u32::from(f16(c(row, column))) | u32::from(f16(c(row, column + 1))) << 16
                } else {
                    let c = c(lane / 4 + r / 2 * 8, column + r % 2);
                    if is_int { c as u32 } else { (c as f32).to_bits() }
                };
                buffers[2].extend(value.to_le_bytes());
            }
        }
        k.run(&mut buffers);
        let got = words_of(&buffers[3]);
        for (row, column) in (0..16usize).flat_map(|r| (0..8usize).map(move |c| (r, c))) {
            let sum: i32 = (0..k_len).map(|k| element(row, k, 0) * element(column, k, 1)).sum();
            let wanted = sum + element(row, column, 2);
            let lane = row % 8 * 4 + column / 2;
            let found = if packed {
                let word = got[lane * 2 + row / 8];
                half::f16::from_bits((word >> (16 * (column % 2))) as u16).to_f32() as i32
            } else {
                let word = got[lane * 4 + row / 8 * 2 + column % 2];
                if is_int {
                    word as i32
                } else {
                    f32::from_bits(word) as i32
                }
            };
            assert_eq!(found, wanted, "{text}: {row} {column}");
        }
    }
}

/// Two warps; what each thread's predicate is counts.
#[test]
fn barriers_reduce_predicates() {
    let mut k = Kernel::new(64);
    let tid = k.tid();
    let [count, rest] = [(); 2].map(|()| k.r());
    let [p, all, any, none] = [(); 4].map(|()| k.p());
    let names = [
        ("T", tid),
        ("COUNT", count),
        ("REST", rest),
        ("P", p),
        ("ALL", all),
        ("ANY", any),
        ("NONE", none),
    ];
    for text in [
        "setp.lt.u32 P, T, 40;",
        "bar.red.popc.u32 COUNT, 1, 64, P;",
        "bar.red.popc.u32 REST, 1, !P;",
        "bar.red.and.pred ALL, 2, P;",
        "bar.red.or.pred ANY, 2, 64, P;",
        "barrier.sync 3;",
        "setp.lt.u32 P, T, 100;",
        "barrier.red.or.aligned.pred NONE, 2, !P;",
        "bar.sync 0;",
    ] {
        k.push(inst(text, &names));
    }
    let flags = [all, any, none].map(|p| number(&mut k, p));
    let mut sum = k.mul(count.into(), imm(1000));
    sum = k.add(sum.into(), rest.into());
    for flag in flags {
        sum = k.mul(sum.into(), imm(10));
        sum = k.add(sum.into(), flag.into());
    }
    k.store_per_thread(0, sum);
    assert_eq!(k.words(64), [40_024_010; 64]);
}

/// One thread drives a barrier of three arrivals through its phases.
#[test]
fn arrivals_say_what_phase_they_are_in() {
    let got = {
        let mut k = Kernel::new(32).smem(64);
        let base = k.smem_base();
        let first = k.first_thread();
        let results: Vec<Reg> = (0..8).map(|_| k.mov(imm(9))).collect();
        let [s, t, u] = [(); 3].map(|()| k.rd());
        let preds: Vec<Reg> = (0..5).map(|_| k.p()).collect();
        k.when(first, false, |k| {
            let mut names = vec![("B", base), ("S", s), ("T", t), ("U", u)];
            names.extend(["N0", "N1", "N2"].into_iter().zip(results.iter().copied()));
            names.extend(["P0", "P1", "P2", "P3", "P4"].into_iter().zip(preds.iter().copied()));
            for text in [
                "mbarrier.init.shared.b64 [B], 3;",
                "mbarrier.arrive.shared::cta.b64 S, [B];",
                "mbarrier.pending_count.b64 N0, S;",
                "mbarrier.test_wait.shared::cta.b64 P0, [B], S;",
                "mbarrier.arrive.noComplete.shared::cta.b64 T, [B], 1;",
                "mbarrier.pending_count.b64 N1, T;",
                // The last of this phase, and of one thread that arrives no more.
                "mbarrier.arrive_drop.shared::cta.b64 _, [B];",
                "mbarrier.try_wait.acquire.cta.shared::cta.b64 P1, [B], S;",
                "mbarrier.arrive.expect_tx.release.cta.shared::cta.b64 U, [B], 64;",
                "mbarrier.pending_count.b64 N2, U;",
                "mbarrier.arrive.relaxed.cta.shared::cta.b64 _, [B], 1;",
                "mbarrier.try_wait.parity.relaxed.cta.shared::cta.b64 P2, [B], 1;",
                "mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [B], 64;",
                "mbarrier.try_wait.parity.shared::cta.b64 P3, [B], 1, 20;",
                "mbarrier.test_wait.parity.shared::cta.b64 P4, [B], 0;",
            ] {
                k.push(inst(text, &names));
            }
        });
        let mut all = results[..3].to_vec();
        for p in &preds {
            let r = number(&mut k, *p);
            all.push(r);
        }
        let (tid, out) = (k.tid(), k.pointer(0));
        let at0 = k.mul(tid.into(), imm(8));
        for (i, r) in all.iter().enumerate() {
            let index = k.add(at0.into(), imm(i as u32));
            let at = k.element(out, index, 4);
            k.store(at, *r);
        }
        k.words(32 * 8)
    };
    assert_eq!(got[..8], [3, 2, 2, 0, 1, 0, 1, 0]);
}

#[test]
fn small_copies_are_waited_for() {
    for wait in ["cp.async.wait_group 0;", "cp.async.wait_all;"] {
        let mut k = Kernel::new(32).smem(32 * 16);
        let (tid, base) = (k.tid(), k.smem_base());
        let at = k.r();
        k.push(Inst::MadLo {
            ty: IntType::U32,
            d: at,
            a: tid.into(),
            b: imm(16),
            c: base.into(),
        });
        let source = k.pointer(0);
        let from = k.element(source, tid, 16);
        let n = k.r();
        let names = [("AT", at), ("FROM", from), ("T", tid), ("N", n)];
        for text in [
            "and.b32 N, T, 15;",
            "cp.async.ca.shared.global [AT], [FROM], 16, N;",
            "cp.async.commit_group;",
            // Copies are not ordered among each other.
            "cp.async.commit_group;",
            "cp.async.wait_group 1;",
            "cp.async.ca.shared::cta.global.L2::128B [AT+4], [FROM+8], 4;",
            "cp.async.commit_group;",
            wait,
        ] {
            k.push(inst(text, &names));
        }
        let d = k.load_words(Space::Shared, at, 4);
        k.store_own_words(1, &d);
        let input = random_bytes(512, 5);
        for options in every_order() {
            let mut buffers = [input.clone(), vec![0; 512]];
            k.try_run(&mut buffers, &options).expect("runs");
            for t in 0..32 {
                let mut row = [0; 16];
                row[..t & 15].copy_from_slice(&input[16 * t..16 * t + (t & 15)]);
                row[4..8].copy_from_slice(&input[16 * t + 8..16 * t + 12]);
                assert_eq!(buffers[1][16 * t..16 * t + 16], row, "thread {t}");
            }
        }
    }
}

#[test]
fn atomics_of_adjacent_elements_give_the_old_ones() {
    let mut k = Kernel::new(32);
    let (tid, base) = (k.tid(), k.pointer(0));
    let at = k.element(base, tid, 8);
    let [x, y, c, d] = [(); 4].map(|()| k.r());
    let names = [("AT", at), ("X", x), ("Y", y), ("C", c), ("D", d)];
    for text in [
        "mov.f32 C, 0f40000000;",
        "atom.global.add.v2.f32 {X, Y}, [AT], {C, C};",
        "red.global.add.v2.f32 [AT], {X, C};",
        "ld.global.cg.f32 D, [AT+4];",
    ] {
        k.push(inst(text, &names));
    }
    let out = k.pointer(1);
    let to = k.element(out, tid, 8);
    k.push(inst(
        "st.global.cs.v2.f32 [TO], {Y, D};",
        &[("TO", to), ("Y", y), ("D", d)],
    ));
    let input: Vec<u32> = (0..64).map(|i| (i as f32).to_bits()).collect();
    let mut buffers = [bytes_of(&input), vec![0; 256]];
    k.run(&mut buffers);
    let (memory, got) = (words_of(&buffers[0]), words_of(&buffers[1]));
    for t in 0..32u32 {
        let [a, b] = [2 * t, 2 * t + 1].map(|i| i as f32);
        let i = 2 * t as usize;
        let float = |x: u32| f32::from_bits(x);
        assert_eq!(
            (float(memory[i]), float(memory[i + 1])),
            (a + 2.0 + a, b + 4.0),
            "thread {t}"
        );
        assert_eq!((float(got[i]), float(got[i + 1])), (b, b + 4.0), "thread {t}");
    }
}
