//! Integer and bit instructions against the PTX ISA's own pseudocode, bit by bit.

use crate::rng::Rng;
use smalt::ptx::integer::*;

fn bit(x: u64, i: u32) -> bool {
    x >> i & 1 == 1
}

/// `bfe` as the PTX ISA writes it.
fn bfe(a: u64, position: u32, length: u32, width: u32, is_signed: bool) -> u64 {
    let (position, length) = (position & 0xff, length & 0xff);
    let msb = width - 1;
    let fill = is_signed && length != 0 && bit(a, (position + length - 1).min(msb));
    (0..width).fold(0, |d, i| {
        let value = if i < length && position + i <= msb {
            bit(a, position + i)
        } else {
            fill
        };
        d | u64::from(value) << i
    })
}

/// `bfi` as the PTX ISA writes it.
fn bfi(a: u64, b: u64, position: u32, length: u32, width: u32) -> u64 {
    let (position, length) = (position & 0xff, length & 0xff);
    let mut f = b;
    for i in 0..length {
        if position + i < width {
            f = f & !(1 << (position + i)) | (a >> i & 1) << (position + i);
        }
    }
    f
}

#[test]
fn bit_fields_follow_the_pseudocode() {
    let mut rng = Rng(20);
    for _ in 0..100_000 {
        let (a, b) = (rng.bits(), rng.bits());
        let amount = |rng: &mut Rng| [rng.below(70) as u32, rng.below(256) as u32, rng.bits() as u32][rng.below(3)];
        let (p, n) = (amount(&mut rng), amount(&mut rng));
        let (a32, b32) = (a as u32, b as u32);
        assert_eq!(
            u64::from(bfe_u32(a32, p, n)),
            bfe(a32.into(), p, n, 32, false),
            "{a32:#x} {p} {n}"
        );
        assert_eq!(
            u64::from(bfe_s32(a32 as i32, p, n) as u32),
            bfe(a32.into(), p, n, 32, true),
            "{a32:#x} {p} {n}"
        );
        assert_eq!(bfe_u64(a, p, n), bfe(a, p, n, 64, false), "{a:#x} {p} {n}");
        assert_eq!(bfe_s64(a as i64, p, n) as u64, bfe(a, p, n, 64, true), "{a:#x} {p} {n}");
        assert_eq!(
            u64::from(bfi_b32(a32, b32, p, n)),
            bfi(a32.into(), b32.into(), p, n, 32),
            "{a32:#x} {p} {n}"
        );
        assert_eq!(bfi_b64(a, b, p, n), bfi(a, b, p, n, 64), "{a:#x} {p} {n}");
    }
}

#[test]
fn shifts_clamp() {
    assert_eq!((1u32.shl(31), 1u32.shl(32), 1u32.shl(u32::MAX)), (1 << 31, 0, 0));
    assert_eq!((0x8000_0000u32.shr(31), u32::MAX.shr(32)), (1, 0));
    assert_eq!((i32::MIN.shr(32), i32::MIN.shr(31), 64i32.shr(200)), (-1, -1, 0));
    assert_eq!((1u64.shl(63), 1u64.shl(64), (-8i64).shr(64)), (1 << 63, 0, -1));
    assert_eq!((1u16.shl(16), 0x8000u16.shr(15), (-2i16).shr(16)), (0, 1, -1));
    let mut rng = Rng(21);
    for _ in 0..10_000 {
        let (a, b, n) = (rng.bits() as u32, rng.bits() as u32, rng.below(80) as u32);
        // PTX ISA: d = (b << n) | (a >> (32 - n)), and its mirror.
        let left = |n: u32| b.shl(n) | a.shr(32 - n);
        let right = |n: u32| b.shl(32 - n) | a.shr(n);
        assert_eq!(shf_l(a, b, n, FunnelShift::Clamp), left(n.min(32)));
        assert_eq!(shf_l(a, b, n, FunnelShift::Wrap), left(n & 31));
        assert_eq!(shf_r(a, b, n, FunnelShift::Clamp), right(n.min(32)));
        assert_eq!(shf_r(a, b, n, FunnelShift::Wrap), right(n & 31));
    }
}

#[test]
fn logic_and_permutations() {
    let mut rng = Rng(22);
    for _ in 0..20_000 {
        let (a, b, c) = (rng.bits() as u32, rng.bits() as u32, rng.bits() as u32);
        // PTX ISA: the table is F(0xF0, 0xCC, 0xAA).
        let table = rng.bits() as u8;
        let expected = (0..32).fold(0, |d, i| {
            let index = (a >> i & 1) << 2 | (b >> i & 1) << 1 | (c >> i & 1);
            d | u32::from(table >> index & 1) << i
        });
        assert_eq!(lop3(a, b, c, table), expected);
        assert_eq!(lop3(a, b, c, (0xf0 & 0xcc) | (!0xf0 & 0xaa)), a & b | !a & c);
        let product = i64::from(a as i32) * i64::from(b as i32);
        assert_eq!(
            ((a as i32).mul_hi(b as i32), (a as i32).mul_wide(b as i32)),
            ((product >> 32) as i32, product)
        );
        assert_eq!(
            u64::from(a.mul_hi(b)) << 32 | u64::from(a.wrapping_mul(b)),
            a.mul_wide(b)
        );
    }
    assert_eq!(u64::MAX.mul_hi(u64::MAX), u64::MAX - 1);
    assert_eq!(i64::MIN.mul_hi(2), -1);
    let (a, b) = (0x3322_1180, 0x7766_5544);
    assert_eq!(prmt(a, b, 0x7610, Permute::Generic), 0x7766_1180);
    assert_eq!(prmt(a, b, 0x8888, Permute::Generic), 0xffff_ffff);
    assert_eq!(prmt(a, b, 0x9010, Permute::Generic), 0x0080_1180);
    assert_eq!(prmt(a, b, 1, Permute::ForwardFour), 0x4433_2211);
    assert_eq!(prmt(a, b, 0, Permute::BackwardFour), 0x5566_7780);
    assert_eq!(prmt(a, b, 2, Permute::Replicate8), 0x2222_2222);
    assert_eq!(prmt(a, b, 1, Permute::EdgeLeft), 0x3322_1111);
    assert_eq!(prmt(a, b, 2, Permute::EdgeRight), 0x2222_1180);
    assert_eq!(prmt(a, b, 3, Permute::Replicate16), 0x3322_3322);
}

#[test]
fn divisions_by_zero_give_all_ones() {
    assert_eq!((7u32.div(0), 7u32.rem(0)), (u32::MAX, u32::MAX));
    assert_eq!((7i32.div(0), (-7i32).rem(0)), (-1, -1));
    assert_eq!((i32::MIN.div(-1), i32::MIN.rem(-1)), (i32::MIN, 0));
    assert_eq!(((-7i32).div(2), (-7i32).rem(2)), (-3, -1));
    assert_eq!((i64::MIN.div(-1), 5u64.rem(0)), (i64::MIN, u64::MAX));
    assert_eq!((i16::MIN.div(-1), 1i16.rem(0)), (i16::MIN, -1));
    assert_eq!((i32::MIN.magnitude(), (-3i64).magnitude()), (i32::MIN, 3));
}
