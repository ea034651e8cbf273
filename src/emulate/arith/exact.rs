//! Arithmetic that is exact until it is rounded once, in any mode: on integers, for the forms that rows of lanes have no fast
//! way to.
//!
//! A [`Value`] is ± `significand` · 2^`exponent`. Quotients and roots keep more bits than any format has and set the last one
//! where something is cut off, so that rounding them is rounding the exact result.

use super::float::{F32_NAN, NAN_16, Rounding};

/// A binary format of IEEE 754.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Format {
    /// Bits of the significand, the hidden one included.
    pub precision: u32,
    pub exponent_bits: u32,
    /// The NaN that operations create.
    pub nan: u64,
}

pub const F16: Format = Format {
    precision: 11,
    exponent_bits: 5,
    nan: NAN_16 as u64,
};
pub const BF16: Format = Format {
    precision: 8,
    exponent_bits: 8,
    nan: NAN_16 as u64,
};
pub const F32: Format = Format {
    precision: 24,
    exponent_bits: 8,
    nan: F32_NAN as u64,
};
pub const F64: Format = Format {
    precision: 53,
    exponent_bits: 11,
    nan: super::float::F64_NAN,
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Value {
    Nan,
    Infinite {
        negative: bool,
    },
    Number {
        negative: bool,
        significand: u128,
        exponent: i32,
    },
}

/// What becomes of subnormal numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subnormals {
    Kept,
    /// Zeros: operands, and results that are below the least normal number when rounded with an unbounded exponent.
    Flushed,
}

impl Format {
    const fn sign(self) -> u64 {
        1 << (self.precision + self.exponent_bits - 1)
    }
    const fn infinity(self) -> u64 {
        ((1 << self.exponent_bits) - 1) << (self.precision - 1)
    }
    const fn bias(self) -> i32 {
        (1 << (self.exponent_bits - 1)) - 1
    }

    pub fn is_nan(self, bits: u64) -> bool {
        bits & (self.sign() - 1) > self.infinity()
    }

    pub fn value(self, bits: u64, subnormals: Subnormals) -> Value {
        let negative = bits & self.sign() != 0;
        let magnitude = bits & (self.sign() - 1);
        if magnitude > self.infinity() {
            return Value::Nan;
        }
        if magnitude == self.infinity() {
            return Value::Infinite { negative };
        }
        let fraction = magnitude & ((1 << (self.precision - 1)) - 1);
        let biased = (magnitude >> (self.precision - 1)) as i32;
        let significand = match (biased, subnormals) {
            (0, Subnormals::Kept) => fraction,
            (0, Subnormals::Flushed) => 0,
            _ => fraction | 1 << (self.precision - 1),
        };
        Value::Number {
            negative,
            significand: significand.into(),
            exponent: biased.max(1) - self.bias() - (self.precision as i32 - 1),
        }
    }

    /// The bits of a value.
    pub fn round(self, value: Value, rounding: Rounding, subnormals: Subnormals) -> u64 {
        let signed = |negative: bool, magnitude: u64| magnitude | if negative { self.sign() } else { 0 };
        let (negative, significand, exponent) = match value {
            Value::Nan => return self.nan,
            Value::Infinite { negative } => return signed(negative, self.infinity()),
            Value::Number {
                negative,
                significand: 0,
                ..
            } => return signed(negative, 0),
            Value::Number {
                negative,
                significand,
                exponent,
            } => (negative, significand, exponent),
        };
        let least = 1 - self.bias();
        let digits = self.precision as i32 - 1;
        let top = 127 - significand.leading_zeros() as i32 + exponent;
        let rounded = |unit: i32| -> u64 {
            let shift = unit - exponent;
            let (kept, rest, half) = match shift {
                ..=0 => (significand << -shift, 0, 1),
                1..=127 => (
                    significand >> shift,
                    significand & ((1 << shift) - 1),
                    1u128 << (shift - 1),
                ),
                // Less than half of the unit.
                _ => (0, 1, 2),
            };
            let up = match rounding {
                Rounding::NearestEven => rest > half || rest == half && kept & 1 == 1,
                Rounding::TowardZero => false,
                Rounding::Down => negative && rest != 0,
                Rounding::Up => !negative && rest != 0,
            };
            kept as u64 + u64::from(up)
        };
        if subnormals == Subnormals::Flushed && top < least {
            let carried = rounded(top - digits) >> self.precision != 0;
            if !(carried && top + 1 == least) {
                return signed(negative, 0);
            }
        }
        let unit = top.max(least) - digits;
        // A significand with its hidden bit counts as one in the exponent.
        let biased = (unit + digits + self.bias() - 1) as u64;
        if biased >= 1 << self.exponent_bits {
            return signed(negative, self.overflow(negative, rounding));
        }
        let bits = rounded(unit) + (biased << (self.precision - 1));
        if bits >= self.infinity() {
            return signed(negative, self.overflow(negative, rounding));
        }
        signed(negative, bits)
    }

    fn overflow(self, negative: bool, rounding: Rounding) -> u64 {
        let away = match rounding {
            Rounding::NearestEven => true,
            Rounding::TowardZero => false,
            Rounding::Down => negative,
            Rounding::Up => !negative,
        };
        if away { self.infinity() } else { self.infinity() - 1 }
    }

    /// `.sat`: into [0, 1]; NaN and −0 become +0.
    pub fn saturate(self, bits: u64) -> u64 {
        let one = (self.bias() as u64) << (self.precision - 1);
        if bits & self.sign() != 0 || self.is_nan(bits) {
            0
        } else {
            bits.min(one)
        }
    }

    /// `.relu`: negative numbers and −0 become +0; a NaN stays.
    pub fn relu(self, bits: u64) -> u64 {
        if bits & self.sign() != 0 && !self.is_nan(bits) {
            0
        } else {
            bits
        }
    }
}

/// The highest bit of significands that are added: one above it is for the carry, and those below a format's are room for what is
/// shifted out.
const TOP: u32 = 125;

/// The same value with its highest bit at `TOP`.
fn normalised(significand: u128, exponent: i32) -> (u128, i32) {
    let shift = significand.leading_zeros() as i32 - (127 - TOP as i32);
    if shift >= 0 {
        (significand << shift, exponent - shift)
    } else {
        (cut(significand, -shift as u32), exponent - shift)
    }
}

/// Shifted to the right; what is lost is in the last bit.
fn cut(significand: u128, shift: u32) -> u128 {
    if shift >= 128 {
        return u128::from(significand != 0);
    }
    significand >> shift | u128::from(significand & ((1 << shift) - 1) != 0)
}

impl Value {
    pub fn integer(negative: bool, magnitude: u64) -> Value {
        Value::Number {
            negative,
            significand: magnitude.into(),
            exponent: 0,
        }
    }

    pub fn negated(self) -> Value {
        match self {
            Value::Nan => Value::Nan,
            Value::Infinite { negative } => Value::Infinite { negative: !negative },
            Value::Number {
                negative,
                significand,
                exponent,
            } => Value::Number {
                negative: !negative,
                significand,
                exponent,
            },
        }
    }

    /// Zero sums of opposite signs are −0 where results are rounded down.
    pub fn add(self, other: Value, rounding: Rounding) -> Value {
        let (a, b) = match (self, other) {
            (Value::Nan, _) | (_, Value::Nan) => return Value::Nan,
            (Value::Infinite { negative: a }, Value::Infinite { negative: b }) if a != b => return Value::Nan,
            (Value::Infinite { negative }, _) | (_, Value::Infinite { negative }) => {
                return Value::Infinite { negative };
            }
            (
                Value::Number {
                    negative,
                    significand,
                    exponent,
                },
                Value::Number {
                    negative: n,
                    significand: s,
                    exponent: e,
                },
            ) => ((negative, significand, exponent), (n, s, e)),
        };
        match (a.1, b.1) {
            (0, 0) => {
                let negative = if a.0 == b.0 { a.0 } else { rounding == Rounding::Down };
                return Value::integer(negative, 0);
            }
            (0, _) => return other,
            (_, 0) => return self,
            _ => {}
        }
        let (x, y) = (normalised(a.1, a.2), normalised(b.1, b.2));
        let ((high, mut negative), (low, low_negative)) = if (x.1, x.0) >= (y.1, y.0) {
            ((x, a.0), (y, b.0))
        } else {
            ((y, b.0), (x, a.0))
        };
        let shifted = cut(low.0, (high.1 - low.1) as u32);
        let significand = if negative == low_negative {
            high.0 + shifted
        } else {
            high.0 - shifted
        };
        if significand == 0 {
            negative = rounding == Rounding::Down;
        }
        Value::Number {
            negative,
            significand,
            exponent: high.1,
        }
    }

    pub fn times(self, other: Value) -> Value {
        match (self, other) {
            (Value::Nan, _) | (_, Value::Nan) => Value::Nan,
            (Value::Infinite { .. }, Value::Number { significand: 0, .. })
            | (Value::Number { significand: 0, .. }, Value::Infinite { .. }) => Value::Nan,
            (Value::Infinite { negative: a }, Value::Infinite { negative: b } | Value::Number { negative: b, .. })
            | (Value::Number { negative: a, .. }, Value::Infinite { negative: b }) => {
                Value::Infinite { negative: a != b }
            }
            (
                Value::Number {
                    negative,
                    significand,
                    exponent,
                },
                Value::Number {
                    negative: n,
                    significand: s,
                    exponent: e,
                },
            ) => Value::Number {
                negative: negative != n,
                significand: significand * s,
                exponent: exponent + e,
            },
        }
    }

    pub fn over(self, other: Value) -> Value {
        match (self, other) {
            (Value::Nan, _)
            | (_, Value::Nan)
            | (Value::Infinite { .. }, Value::Infinite { .. })
            | (Value::Number { significand: 0, .. }, Value::Number { significand: 0, .. }) => Value::Nan,
            (Value::Infinite { negative: a }, Value::Number { negative: b, .. })
            | (
                Value::Number { negative: a, .. },
                Value::Number {
                    negative: b,
                    significand: 0,
                    ..
                },
            ) => Value::Infinite { negative: a != b },
            (Value::Number { negative: a, .. }, Value::Infinite { negative: b })
            | (
                Value::Number {
                    negative: a,
                    significand: 0,
                    ..
                },
                Value::Number { negative: b, .. },
            ) => Value::integer(a != b, 0),
            (
                Value::Number {
                    negative,
                    significand,
                    exponent,
                },
                Value::Number {
                    negative: n,
                    significand: s,
                    exponent: e,
                },
            ) => {
                let (dividend, exponent) = normalised(significand, exponent);
                let rest = u128::from(dividend % s != 0);
                Value::Number {
                    negative: negative != n,
                    significand: dividend / s << 1 | rest,
                    exponent: exponent - e - 1,
                }
            }
        }
    }

    pub fn sqrt(self) -> Value {
        match self {
            Value::Nan => Value::Nan,
            Value::Number { significand: 0, .. } | Value::Infinite { negative: false } => self,
            Value::Infinite { negative: true } | Value::Number { negative: true, .. } => Value::Nan,
            Value::Number {
                significand, exponent, ..
            } => {
                let (mut radicand, mut exponent) = normalised(significand, exponent);
                if exponent % 2 != 0 {
                    radicand <<= 1;
                    exponent -= 1;
                }
                let root = radicand.isqrt();
                let rest = u128::from(root * root != radicand);
                Value::Number {
                    negative: false,
                    significand: root << 1 | rest,
                    exponent: exponent / 2 - 1,
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::emulate::arith::float;

    /// Bits of every magnitude and sign, corner cases among them.
    fn numbers(n: usize) -> Vec<u32> {
        let corners = [
            0u32,
            1,
            0x007f_ffff,
            0x0080_0000,
            0x3f80_0000,
            0x3f7f_ffff,
            0x7f7f_ffff,
            0x7f80_0000,
            0x7fc0_0000,
            0x4049_0fdb,
        ];
        let mut state = 7u32;
        let mut out: Vec<u32> = corners.iter().flat_map(|x| [*x, x | 0x8000_0000]).collect();
        out.extend((0..n).map(|_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            state ^ state >> 15
        }));
        out
    }

    #[test]
    fn f32_agrees_with_the_fast_ways() {
        use Rounding::*;
        let all = numbers(200);
        for (i, &a) in all.iter().enumerate() {
            for (j, &b) in all.iter().enumerate() {
                let c = all[(i * 31 + j * 7) % all.len()];
                for rounding in [NearestEven, TowardZero, Down, Up] {
                    let v = |x: u32| F32.value(x.into(), Subnormals::Kept);
                    let r = |x: Value| F32.round(x, rounding, Subnormals::Kept) as u32;
                    assert_eq!(
                        r(v(a).add(v(b), rounding)),
                        float::add_rounded_f32(a, b, rounding),
                        "{a:x} + {b:x} {rounding:?}"
                    );
                    assert_eq!(
                        r(v(a).times(v(b))),
                        float::mul_rounded_f32(a, b, rounding),
                        "{a:x} * {b:x} {rounding:?}"
                    );
                    let fused = v(a).times(v(b)).add(v(c), rounding);
                    assert_eq!(
                        r(fused),
                        float::fma_rounded_f32(a, b, c, rounding),
                        "{a:x} * {b:x} + {c:x} {rounding:?}"
                    );
                }
                let v = |x: u32| F32.value(x.into(), Subnormals::Kept);
                let r = |x: Value| F32.round(x, NearestEven, Subnormals::Kept) as u32;
                assert_eq!(r(v(a).over(v(b))), float::div_f32(a, b), "{a:x} / {b:x}");
                let v = |x: u32| F32.value(x.into(), Subnormals::Flushed);
                let r = |x: Value| F32.round(x, NearestEven, Subnormals::Flushed) as u32;
                assert_eq!(r(v(a).times(v(b))), float::mul_ftz_f32(a, b), "{a:x} * {b:x} flushed");
                assert_eq!(
                    r(v(a).times(v(b)).add(v(c), NearestEven)),
                    float::fma_ftz_f32(a, b, c),
                    "flushed"
                );
            }
            let root = F32.round(
                F32.value(a.into(), Subnormals::Kept).sqrt(),
                NearestEven,
                Subnormals::Kept,
            ) as u32;
            assert_eq!(root, float::sqrt_f32(a), "sqrt {a:x}");
        }
    }

    #[test]
    fn f64_agrees_with_the_fast_ways() {
        let halves = numbers(300);
        let wide: Vec<u64> = halves
            .windows(2)
            .map(|p| u64::from(p[0]) << 32 | u64::from(p[1]))
            .filter(|x| !F64.is_nan(*x))
            .collect();
        for (i, &a) in wide.iter().enumerate() {
            for j in 0..wide.len() {
                let (b, c) = (wide[j], wide[(i * 13 + j * 5) % wide.len()]);
                let v = |x: u64| F64.value(x, Subnormals::Kept);
                let r = |x: Value| F64.round(x, Rounding::NearestEven, Subnormals::Kept);
                assert_eq!(
                    r(v(a).add(v(b), Rounding::NearestEven)),
                    float::add_f64(a, b),
                    "{a:x} + {b:x}"
                );
                assert_eq!(r(v(a).times(v(b))), float::mul_f64(a, b), "{a:x} * {b:x}");
                assert_eq!(r(v(a).over(v(b))), float::div_f64(a, b), "{a:x} / {b:x}");
                let fused = v(a).times(v(b)).add(v(c), Rounding::NearestEven);
                assert_eq!(r(fused), float::fma_f64(a, b, c), "{a:x} * {b:x} + {c:x}");
            }
            let root = F64.round(
                F64.value(a, Subnormals::Kept).sqrt(),
                Rounding::NearestEven,
                Subnormals::Kept,
            );
            assert_eq!(root, float::sqrt_f64(a), "sqrt {a:x}");
        }
    }
}
