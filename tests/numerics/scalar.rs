//! Conversions and scalar floating-point arithmetic against exact integer arithmetic, the `half` crate and the host.

use crate::rng::Rng;
use half::{bf16, f16};
use smalt::emulate::arith::convert::{self, Fp8, ToInteger};
use smalt::emulate::arith::float::{self, Rounding, Test};

const ROUNDINGS: [Rounding; 4] = [
    Rounding::NearestEven,
    Rounding::TowardZero,
    Rounding::Down,
    Rounding::Up,
];

/// A binary format: mantissa bits, exponent bits.
#[derive(Clone, Copy)]
struct Format(u32, u32);

const F32: Format = Format(23, 8);
const F16: Format = Format(10, 5);
const BF16: Format = Format(7, 8);

impl Format {
    fn bias(self) -> i32 {
        (1 << (self.1 - 1)) - 1
    }

    /// Signed significand and exponent of a finite code: value = n · 2^q.
    fn decode(self, code: u32) -> (i128, i32) {
        let mantissa = code & ((1 << self.0) - 1);
        let field = code >> self.0 & ((1 << self.1) - 1);
        let n = i128::from(if field > 0 { mantissa | 1 << self.0 } else { mantissa });
        let sign = code >> (self.0 + self.1) & 1;
        (
            if sign == 1 { -n } else { n },
            field.max(1) as i32 - self.bias() - self.0 as i32,
        )
    }

    /// n · 2^q rounded. A zero n is +0.
    fn round(self, n: i128, q: i32, rounding: Rounding) -> u32 {
        let sign = u32::from(n < 0) << (self.0 + self.1);
        let magnitude = n.unsigned_abs();
        if magnitude == 0 {
            return 0;
        }
        let top = 127 - magnitude.leading_zeros() as i32 + q;
        let unit = (top - self.0 as i32).max(1 - self.bias() - self.0 as i32);
        let drop = unit - q;
        let (mut kept, rest, half) = match drop {
            ..=0 => (magnitude << -drop, 0, 1),
            1..=127 => (magnitude >> drop, magnitude & ((1 << drop) - 1), 1u128 << (drop - 1)),
            _ => (0, 1, 2),
        };
        kept += u128::from(match rounding {
            Rounding::NearestEven => rest > half || rest == half && kept & 1 == 1,
            Rounding::TowardZero => false,
            Rounding::Down => rest != 0 && n < 0,
            Rounding::Up => rest != 0 && n > 0,
        });
        // Adding the hidden bit to a field one too small handles subnormals and carries.
        let field = (unit + self.bias() + self.0 as i32 - 1) as u32;
        let code = (field << self.0) as u128 + kept;
        let infinity = ((1u128 << self.1) - 1) << self.0;
        let to_infinity = match rounding {
            Rounding::NearestEven => true,
            Rounding::TowardZero => false,
            Rounding::Down => n < 0,
            Rounding::Up => n > 0,
        };
        sign | if code < infinity {
            code
        } else {
            infinity - u128::from(!to_infinity)
        } as u32
    }

    /// A finite code with exponent field near `field`.
    fn draw(self, rng: &mut Rng, field: i32, spread: usize) -> u32 {
        let top = (1 << self.1) - 2;
        let field = (field + rng.below(spread) as i32 - spread as i32 / 2).clamp(0, top) as u32;
        let mantissa = match rng.below(4) {
            0 => 0,
            1 => u32::MAX,
            _ => rng.bits() as u32,
        } & ((1 << self.0) - 1);
        (rng.below(2) as u32) << (self.0 + self.1) | field << self.0 | mantissa
    }
}

/// a·b + c exactly, or a + c if there is no b.
fn exact_fma(format: Format, a: u32, b: u32, c: u32) -> (i128, i32) {
    let ((a, qa), (b, qb), (c, qc)) = (format.decode(a), format.decode(b), format.decode(c));
    let (product, qp) = (a * b, qa + qb);
    let q = qp.min(qc);
    ((product << (qp - q)) + (c << (qc - q)), q)
}

/// Operands of fma whose exact result fits an i128, in every range of the format.
fn fma_operands(format: Format, rng: &mut Rng) -> (u32, u32, u32) {
    let top = (1 << format.1) - 2;
    let spread = 12.min(top as usize);
    let field = [0, top, format.bias(), rng.below(top as usize) as i32][rng.below(4)];
    let a = format.draw(rng, field, spread);
    let field_a = (a >> format.0) as i32 & (top + 1);
    // b places the product, c near it or far above or below, within what an i128 holds.
    let target = [0, top, rng.below(top as usize) as i32, 1 - format.0 as i32][rng.below(4)];
    let b = format.draw(rng, target - field_a + format.bias(), spread);
    let field_b = (b >> format.0) as i32 & (top + 1);
    let product = field_a + field_b - format.bias();
    let c = match rng.below(8) {
        0 => (rng.below(2) as u32) << (format.0 + format.1),
        1 => format.draw(rng, product, 70),
        _ => format.draw(rng, product, 2 * format.0 as usize + 6),
    };
    (a, b, c)
}

/// The expected code of an exact sum, with IEEE's signs of zero.
fn expect(format: Format, exact: (i128, i32), zero_signs: (u32, u32), rounding: Rounding) -> u32 {
    let sign = 1 << (format.0 + format.1);
    match (zero_signs.0 & sign, zero_signs.1 & sign) {
        _ if exact.0 != 0 => format.round(exact.0, exact.1, rounding),
        (x, y) if x == y => x,
        _ if rounding == Rounding::Down => sign,
        _ => 0,
    }
}

fn fits((a, b, c): (u32, u32, u32), format: Format) -> bool {
    let ((_, qa), (_, qb), (_, qc)) = (format.decode(a), format.decode(b), format.decode(c));
    (qa + qb - qc).abs() < 76
}

#[test]
fn fused_multiply_add_is_exact_then_rounded() {
    let mut rng = Rng(3);
    let mut tried = 0;
    while tried < 60_000 {
        let (a, b, c) = fma_operands(F32, &mut rng);
        if !fits((a, b, c), F32) {
            continue;
        }
        tried += 1;
        let exact = exact_fma(F32, a, b, c);
        for rounding in ROUNDINGS {
            let expected = expect(F32, exact, (a ^ b, c), rounding);
            let got = float::fma_rounded_f32(a, b, c, rounding);
            assert_eq!(
                got, expected,
                "{rounding:?} {a:#x} {b:#x} {c:#x}: {got:#x} for {expected:#x}"
            );
        }
        let nearest = expect(F32, exact, (a ^ b, c), Rounding::NearestEven);
        assert_eq!(float::fma_f32::<false>(a, b, c), nearest, "{a:#x} {b:#x} {c:#x}");
        assert_eq!(float::fma_f32::<true>(a, b, c), nearest, "{a:#x} {b:#x} {c:#x}");
    }
    for _ in 0..60_000 {
        let (a, b, c) = fma_operands(F16, &mut rng);
        let expected = expect(F16, exact_fma(F16, a, b, c), (a ^ b, c), Rounding::NearestEven);
        let got = u32::from(float::fma_f16(a as u16, b as u16, c as u16));
        assert_eq!(got, expected, "f16 {a:#x} {b:#x} {c:#x}: {got:#x} for {expected:#x}");
        let (a, b, c) = fma_operands(BF16, &mut rng);
        if fits((a, b, c), BF16) {
            let expected = expect(BF16, exact_fma(BF16, a, b, c), (a ^ b, c), Rounding::NearestEven);
            let got = u32::from(float::fma_bf16(a as u16, b as u16, c as u16));
            assert_eq!(got, expected, "bf16 {a:#x} {b:#x} {c:#x}: {got:#x} for {expected:#x}");
        }
    }
}

#[test]
fn sums_and_products_are_exact_then_rounded() {
    let mut rng = Rng(4);
    let one = |format: Format| (format.bias() as u32) << format.0;
    let minus_zero = |format: Format| 1 << (format.0 + format.1);
    for _ in 0..60_000 {
        let (a, b, c) = fma_operands(F32, &mut rng);
        if fits((a, one(F32), c), F32) {
            let exact = exact_fma(F32, a, one(F32), c);
            for rounding in ROUNDINGS {
                let expected = expect(F32, exact, (a, c), rounding);
                assert_eq!(
                    float::add_rounded_f32(a, c, rounding),
                    expected,
                    "{rounding:?} {a:#x} + {c:#x}"
                );
            }
            let expected = expect(F32, exact, (a, c), Rounding::NearestEven);
            assert_eq!(float::add_f32(a, c), expected);
            assert_eq!(float::sub_f32(a, c ^ minus_zero(F32)), expected);
        }
        let product = (F32.decode(a).0 * F32.decode(b).0, F32.decode(a).1 + F32.decode(b).1);
        for rounding in ROUNDINGS {
            let expected = expect(F32, product, (a ^ b, a ^ b), rounding);
            assert_eq!(
                float::mul_rounded_f32(a, b, rounding),
                expected,
                "{rounding:?} {a:#x} * {b:#x}"
            );
        }
        assert_eq!(
            float::mul_f32(a, b),
            expect(F32, product, (a ^ b, a ^ b), Rounding::NearestEven)
        );

        type Op = fn(u16, u16) -> u16;
        let f16_ops: (Op, Op, Op) = (float::add_f16, float::sub_f16, float::mul_f16);
        let bf16_ops: (Op, Op, Op) = (float::add_bf16, float::sub_bf16, float::mul_bf16);
        for (format, (add, sub, mul)) in [(F16, f16_ops), (BF16, bf16_ops)] {
            let (a, b, c) = fma_operands(format, &mut rng);
            if fits((a, one(format), c), format) {
                let exact = exact_fma(format, a, one(format), c);
                let expected = expect(format, exact, (a, c), Rounding::NearestEven);
                assert_eq!(u32::from(add(a as u16, c as u16)), expected, "{a:#x} + {c:#x}");
                assert_eq!(u32::from(sub(a as u16, c as u16 ^ 0x8000)), expected, "{a:#x} - {c:#x}");
            }
            let product = (
                format.decode(a).0 * format.decode(b).0,
                format.decode(a).1 + format.decode(b).1,
            );
            let expected = expect(format, product, (a ^ b, a ^ b), Rounding::NearestEven);
            assert_eq!(u32::from(mul(a as u16, b as u16)), expected, "{a:#x} * {b:#x}");
        }
    }
}

#[test]
fn products_are_flushed_by_their_unbounded_rounding() {
    let mut rng = Rng(5);
    let mut near = 0;
    for _ in 0..200_000 {
        // Products within a few units of 2^-126.
        let a = F32.draw(&mut rng, 100, 60);
        let mut b = ((127 - 126 + 254 - (a >> 23 & 255)).clamp(1, 254)) << 23 | (rng.bits() as u32 & 0x7f_ffff);
        let reciprocal = (2f64.powi(-126) / f64::from(f32::from_bits(a))) as f32;
        if rng.below(2) == 0 {
            b = reciprocal.to_bits().wrapping_add(rng.below(5) as u32).wrapping_sub(2) & 0x7fff_ffff;
        }
        let (a, b) = (float::flush_f32(a), float::flush_f32(b));
        let (n, q) = (F32.decode(a).0 * F32.decode(b).0, F32.decode(a).1 + F32.decode(b).1);
        // The exponent after rounding to 24 bits, if exponents had no end.
        let magnitude = n.unsigned_abs();
        let bits = 128 - magnitude.leading_zeros() as i32;
        let drop = (bits - 24).max(0);
        let half = (1 << drop) >> 1;
        let tie = drop > 0 && magnitude & ((1 << drop) - 1) == half;
        let carried = ((magnitude + half) >> drop) - u128::from(tie && magnitude >> drop & 1 == 0);
        let top = bits + q - 1 + i32::from(drop > 0 && carried == 1 << 24);
        let flushed = n == 0 || top < -126;
        let expected = if flushed {
            (a ^ b) & 0x8000_0000
        } else {
            F32.round(n, q, Rounding::NearestEven)
        };
        near += u32::from(n != 0 && (n.unsigned_abs().ilog2() as i32 + q + 126).abs() < 2);
        assert_eq!(float::mul_ftz_f32(a, b), expected, "{a:#x} {b:#x}");
        let zero = (a ^ b) & 0x8000_0000;
        assert_eq!(float::fma_ftz_f32(a, b, zero), expected, "{a:#x} {b:#x}");
    }
    assert!(near > 50_000, "only {near} products near the edge");
}

/// Every value of a 16-bit format, the midpoints between neighbours, and what is next to those in f32.
fn edges(widen: impl Fn(u16) -> f32) -> impl Iterator<Item = u32> {
    (0..=u16::MAX).flat_map(move |code| {
        let (x, y) = (widen(code), widen(code.wrapping_add(1)));
        let middle = ((f64::from(x) + f64::from(y)) / 2.0) as f32;
        let middle = if middle.is_nan() { x } else { middle };
        [x, middle].into_iter().flat_map(|value| {
            let bits = value.to_bits();
            [bits.wrapping_sub(1), bits, bits.wrapping_add(1)]
        })
    })
}

fn check_narrowing(x: u32) {
    let value = f32::from_bits(x);
    let (f, b) = (convert::f32_to_f16(x), convert::f32_to_bf16(x));
    if value.is_nan() {
        assert_eq!((f, b), (0x7fff, 0x7fff), "{x:#x}");
        assert_eq!(convert::f32_to_f16_rounded(x, Rounding::TowardZero), 0x7fff);
        return;
    }
    assert_eq!(f, f16::from_f32(value).to_bits(), "{x:#x}");
    assert_eq!(b, bf16::from_f32(value).to_bits(), "{x:#x}");
    if value.is_finite() {
        let (n, q) = F32.decode(x);
        for rounding in ROUNDINGS {
            let f = F16.round(n, q, rounding) | if n == 0 { x >> 16 & 0x8000 } else { 0 };
            let b = BF16.round(n, q, rounding) | if n == 0 { x >> 16 & 0x8000 } else { 0 };
            assert_eq!(
                u32::from(convert::f32_to_f16_rounded(x, rounding)),
                f,
                "{x:#x} {rounding:?}"
            );
            assert_eq!(
                u32::from(convert::f32_to_bf16_rounded(x, rounding)),
                b,
                "{x:#x} {rounding:?}"
            );
        }
    }
}

#[test]
fn halves_convert_like_the_half_crate() {
    for code in 0..=u16::MAX {
        let (f, b) = (f16::from_bits(code), bf16::from_bits(code));
        let expected = if f.is_nan() { 0x7fff_ffff } else { f.to_f32().to_bits() };
        assert_eq!(convert::f16_to_f32_bits(code), expected, "{code:#x}");
        assert_eq!(convert::bf16_to_f32_bits(code), u32::from(code) << 16);
        let expected = if f.is_nan() {
            0x7fff
        } else {
            bf16::from_f32(f.to_f32()).to_bits()
        };
        assert_eq!(convert::f16_to_bf16(code), expected);
        let expected = if b.is_nan() {
            0x7fff
        } else {
            f16::from_f32(b.to_f32()).to_bits()
        };
        assert_eq!(convert::bf16_to_f16(code), expected);
    }
    edges(|code| f16::from_bits(code).to_f32()).for_each(check_narrowing);
    edges(|code| bf16::from_bits(code).to_f32()).for_each(check_narrowing);
    let mut rng = Rng(6);
    (0..200_000).for_each(|_| check_narrowing(rng.bits() as u32));
}

#[test]
fn f64_narrows_once() {
    let mut rng = Rng(8);
    let f64_format = |x: u64| {
        let n = i128::from(x & ((1 << 52) - 1) | 1 << 52);
        (if x >> 63 == 1 { -n } else { n }, (x >> 52 & 0x7ff) as i32 - 1075)
    };
    for i in 0..300_000 {
        // Around the exponents of f16, bf16 and f32, a third of them on the verge of a tie.
        let center = [
            1023,
            1023 - 14,
            1023 - 24,
            1023 - 126,
            1023 - 149,
            1023 + 127,
            1023 + 15,
        ][i % 7];
        let field = center + rng.below(9) as u64 - 4;
        let mut fraction = rng.bits() >> 12;
        if i % 3 == 0 {
            let keep = [10, 11, 7, 8, 23, 24][rng.below(6)];
            fraction &= !0u64 << (52 - keep);
            fraction = fraction.wrapping_add(rng.below(3) as u64).wrapping_sub(1) & ((1 << 52) - 1);
        }
        let x = rng.bits() & 1 << 63 | field << 52 | fraction;
        let (n, q) = f64_format(x);
        let zero = |bits: u32, sign: u32| if bits == 0 && n < 0 { sign } else { bits };
        assert_eq!(
            u32::from(convert::f64_to_f16(x)),
            zero(F16.round(n, q, Rounding::NearestEven), 0x8000),
            "{x:#x}"
        );
        assert_eq!(
            u32::from(convert::f64_to_bf16(x)),
            zero(BF16.round(n, q, Rounding::NearestEven), 0x8000),
            "{x:#x}"
        );
        for rounding in ROUNDINGS {
            let expected = zero(F32.round(n, q, rounding), 0x8000_0000);
            assert_eq!(convert::f64_to_f32(x, rounding), expected, "{x:#x} {rounding:?}");
        }
    }
}

#[test]
fn fp8_rounds_to_the_nearest_code() {
    for (format, bits, largest) in [(Fp8::E4m3, Format(3, 4), 0x7e), (Fp8::E5m2, Format(2, 5), 0x7b)] {
        for code in 0..=255u8 {
            let magnitude = u32::from(code & 0x7f);
            let wide = convert::fp8_to_f16(format, code);
            if magnitude > largest && !(format == Fp8::E5m2 && magnitude == 0x7c) {
                assert_eq!(wide, 0x7fff, "{format:?} {code:#x}");
                continue;
            }
            if magnitude == 0x7c && format == Fp8::E5m2 {
                assert_eq!(wide & 0x7fff, 0x7c00);
                continue;
            }
            let (n, q) = bits.decode(u32::from(code));
            assert_eq!(
                f16::from_bits(wide).to_f64(),
                n as f64 * 2f64.powi(q),
                "{format:?} {code:#x}"
            );
            assert_eq!(wide >> 15, u16::from(code >> 7));
            assert_eq!(convert::f16_to_fp8(format, wide), code, "{format:?} {code:#x}");
        }
        // f16's values, midpoints and neighbours contain every midpoint of both fp8 formats.
        for x in edges(|code| f16::from_bits(code).to_f32()).chain([0x7f7f_ffff, 0x7f80_0000, 0xff80_0000, 0x7fc0_0000])
        {
            let value = f32::from_bits(x);
            let got = u32::from(convert::f32_to_fp8(format, x));
            if value.is_nan() {
                assert_eq!(got, 0x7f);
                continue;
            }
            let sign = x >> 24 & 0x80;
            let (n, q) = if value.is_infinite() {
                (1 << 100, 0)
            } else {
                F32.decode(x & 0x7fff_ffff)
            };
            // Rounded as if the largest exponent were ordinary, then saturated.
            let wider = Format(bits.0, bits.1 + 1);
            let rounded = wider.round(n, q, Rounding::NearestEven);
            let as_value = {
                let (n, q) = wider.decode(rounded);
                n as f64 * 2f64.powi(q)
            };
            let (m, e) = bits.decode(largest);
            let limit = m as f64 * 2f64.powi(e);
            // Below the least normal the wider format keeps more bits: round to the unit directly.
            let (_, unit) = bits.decode(0);
            let least_normal = 2f64.powi(unit + bits.0 as i32);
            let magnitude = f64::from(value.abs());
            let expected = if magnitude < least_normal {
                (magnitude * 2f64.powi(-unit)).round_ties_even() * 2f64.powi(unit)
            } else {
                as_value.min(limit)
            };
            let (n, q) = bits.decode(got & 0x7f);
            assert_eq!(n as f64 * 2f64.powi(q), expected, "{format:?} {x:#x}: {got:#x}");
            assert_eq!(got & 0x80, sign);
        }
    }
}

#[test]
fn tf32_rounds_by_integer_arithmetic() {
    assert_eq!(convert::f32_to_tf32_rna(0x3f80_1000), 0x3f80_2000);
    assert_eq!(convert::f32_to_tf32_rna(0xbf80_1000), 0xbf80_2000);
    assert_eq!(convert::f32_to_tf32_rna(0x3f80_0fff), 0x3f80_0000);
    assert_eq!(convert::f32_to_tf32_rna(0x7f7f_ffff), 0x7f80_0000);
    assert_eq!(
        convert::f32_to_tf32_rna(0x7f80_0001),
        0x7f80_0000,
        "what is left of this NaN is infinity"
    );
    assert_eq!(convert::f32_to_tf32(0x3f80_1000, Rounding::NearestEven), 0x3f80_0000);
    assert_eq!(convert::f32_to_tf32(0x3f80_3000, Rounding::NearestEven), 0x3f80_4000);
    assert_eq!(convert::f32_to_tf32(0x3f80_3fff, Rounding::TowardZero), 0x3f80_2000);
    assert_eq!(convert::f32_to_tf32(0xff80_0001, Rounding::NearestEven), 0x7fff_e000);
}

#[test]
fn integers_saturate_and_nan_is_zero() {
    let f = |x: f32| x.to_bits();
    assert_eq!(convert::f32_to_s32(f(2.5), ToInteger::NearestEven), 2);
    assert_eq!(convert::f32_to_s32(f(-2.5), ToInteger::Down), -3);
    assert_eq!(convert::f32_to_s32(f(-2.5), ToInteger::Up), -2);
    assert_eq!(convert::f32_to_s32(f(-2.9), ToInteger::TowardZero), -2);
    assert_eq!(convert::f32_to_s32(f(3e9), ToInteger::TowardZero), i32::MAX);
    assert_eq!(convert::f32_to_s32(f32::NAN.to_bits(), ToInteger::TowardZero), 0);
    assert_eq!(convert::f32_to_u32(f(-1.0), ToInteger::TowardZero), 0);
    assert_eq!(convert::f32_to_u8(f(300.0), ToInteger::TowardZero), 255);
    assert_eq!(convert::f32_to_s8(f(-300.0), ToInteger::TowardZero), -128);
    assert_eq!(convert::f32_to_s16(f(40000.0), ToInteger::NearestEven), i16::MAX);
    assert_eq!(convert::f32_to_s64(f32::NAN.to_bits(), ToInteger::TowardZero), i64::MIN);
    assert_eq!(convert::f64_to_s32(f64::NAN.to_bits(), ToInteger::TowardZero), i32::MIN);
    assert_eq!(convert::f64_to_s32(2.5f64.to_bits(), ToInteger::NearestEven), 2);
    assert_eq!(convert::round_integral_f32(f(-0.25), ToInteger::Up), f(-0.0));
    assert_eq!(convert::round_integral_f32(0x7f80_0001, ToInteger::Up), 0x7fff_ffff);
    assert_eq!(
        convert::round_integral_f16(0xbe00, ToInteger::NearestEven),
        0xc000,
        "-1.5 to -2"
    );
    let mut rng = Rng(10);
    for _ in 0..200_000 {
        let x = rng.bits() >> rng.below(64);
        for rounding in ROUNDINGS {
            assert_eq!(
                convert::u64_to_f32(x, rounding),
                F32.round(i128::from(x), 0, rounding),
                "{x} {rounding:?}"
            );
            let signed = x as i64;
            assert_eq!(
                convert::s64_to_f32(signed, rounding),
                F32.round(i128::from(signed), 0, rounding),
                "{signed}"
            );
        }
        let nearest = Rounding::NearestEven;
        assert_eq!(
            u32::from(convert::u64_to_f16(x)),
            F16.round(i128::from(x), 0, nearest),
            "{x}"
        );
        assert_eq!(
            u32::from(convert::s64_to_bf16(x as i64)),
            BF16.round(i128::from(x as i64), 0, nearest),
            "{x}"
        );
        assert_eq!(
            u32::from(convert::u64_to_bf16(x)),
            BF16.round(i128::from(x), 0, nearest),
            "{x}"
        );
        assert_eq!(
            u32::from(convert::s64_to_f16(x as i64)),
            F16.round(i128::from(x as i64), 0, nearest),
            "{x}"
        );
    }
}

#[test]
fn nans_zeros_and_extrema() {
    let (zero, minus_zero, one, nan, inf) = (0u32, 0x8000_0000, 0x3f80_0000, 0xffc0_1234, 0x7f80_0000);
    let canonical = 0x7fff_ffff;
    assert_eq!(float::add_f32(inf, inf ^ minus_zero), canonical);
    assert_eq!(float::mul_f32(zero, inf), canonical);
    assert_eq!(float::fma_f32::<true>(nan, one, one), canonical);
    assert_eq!(float::fma_f32::<false>(one, inf, inf ^ minus_zero), canonical);
    assert_eq!(float::fma_f32::<false>(inf, one, one), inf);
    assert_eq!(
        float::fma_rounded_f32(one, one, 0xbf80_0000, Rounding::Down),
        minus_zero
    );
    assert_eq!(float::min_f32(zero, minus_zero), minus_zero);
    assert_eq!(float::min_f32(minus_zero, zero), minus_zero);
    assert_eq!(float::max_f32(minus_zero, zero), zero);
    assert_eq!(float::max_f32(zero, minus_zero), zero);
    assert_eq!(float::min_f32(nan, one), one);
    assert_eq!(float::max_f32(one, nan), one);
    assert_eq!(float::min_f32(nan, nan), canonical);
    assert_eq!(float::min_nan_f32(nan, one), canonical);
    assert_eq!(float::max_nan_f32(one, minus_zero), one);
    assert_eq!(float::max_f32(inf ^ minus_zero, 0xff7f_ffff), 0xff7f_ffff);
    assert_eq!(float::min_bf16(0x3f80, 0x7f81), 0x3f80);
    assert_eq!(float::max_f16(0x8000, 0x0000), 0);
    assert_eq!(float::max_nan_f16(0x7c01, 0), 0x7fff);
    assert_eq!(float::abs_f32(nan), canonical);
    assert_eq!(float::neg_f32(zero), minus_zero);
    assert_eq!(float::neg_bf16(0x7f81), 0x7fff);
    assert_eq!(float::copysign_f32(minus_zero, one), 0xbf80_0000);
    assert_eq!(float::saturate_f32(nan), 0);
    assert_eq!(float::saturate_f32(0x4000_0000), one);
    assert_eq!(float::saturate_f32(0xbf80_0000), 0);
    assert_eq!(float::div_f32(one, zero), inf);
    assert_eq!(float::div_f32(zero, zero), canonical);
    assert_eq!(float::sqrt_f32(0xbf80_0000), canonical);
    assert_eq!(float::sqrt_f32(minus_zero), minus_zero);
    let f64_nan = 0x7ff0_0000_0000_0001;
    assert_eq!(float::add_f64(f64_nan, 0), f64_nan | 1 << 51);
    assert_eq!(float::mul_f64(0, 0x7ff0_0000_0000_0000), 0xfff8_0000_0000_0000);
    assert_eq!(float::min_f64(f64_nan, 5), 5);
    assert_eq!(float::max_f64(1 << 63, 0), 0);
    assert!(
        float::test_f32(Test::Subnormal, 1) && !float::test_f32(Test::Normal, 1) && float::test_f32(Test::Normal, 0)
    );
    assert!(float::test_f32(Test::Number, inf) && float::test_f32(Test::NotANumber, nan));
    let pair = float::halves_2(0x3c00_4000, 0x3c00_3c00, float::add_f16);
    assert_eq!(pair, 0x4000_4200, "(1 + 1, 2 + 1)");
}
