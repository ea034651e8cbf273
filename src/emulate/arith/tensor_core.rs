//! One step of the Hopper tensor core, `D = C + Σ_k A[k]·B[k]`, for one output element: the exact integer model.
//!
//! An instruction takes up to 32 bytes of K; *all* its products and C are added in one fused step (no sub-groups, no
//! order). Measured on an H200 over 2.8·10^10 results of `wgmma.mma_async` and `mma.sync` without a mismatch; 40,994 of
//! the hardware's results are in `tests/numerics/data`. The rule, for floating-point operands:
//!
//! 1. Product k is `m_a·m_b` with exponent `e_k = e_a + e_b`; nothing is normalised, denormals count fully.
//! 2. `E = max(L, e_k of the non-zero products, e_C if C ≠ 0)`, `L` = -133 (f32 accumulator) or -21 (f16).
//! 3. Each product and C is cut towards zero to a multiple of `2^(E-F)`; `F` = 25 for f16, bf16, tf32 and 13 for fp8.
//! 4. Their sum is exact.
//! 5. It is rounded once: f32 towards zero (23 mantissa bits; 13 for fp8 operands), f16 to nearest even. A zero result
//!    is +0; overflow gives infinity.
//!
//! Blackwell (`tcgen05.mma`) adds in the same way, fp8 like the others: [`MmaKind::blackwell`].
//!
//! NaN operands, inf·0 and infinities of both signs give `0x7fffffff` (f16: `0x7fff`); otherwise an infinity wins.

/// Element type of a tensor-core operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Element {
    F16,
    Bf16,
    /// 32 bits in memory; the low 13 are ignored.
    Tf32,
    E4m3,
    E5m2,
    S8,
    U8,
    /// One bit; products are `and`, their sum a population count.
    B1,
}

impl Element {
    /// Bits that one element takes in memory.
    pub const fn bits(self) -> usize {
        match self {
            Element::B1 => 1,
            Element::E4m3 | Element::E5m2 | Element::S8 | Element::U8 => 8,
            Element::F16 | Element::Bf16 => 16,
            Element::Tf32 => 32,
        }
    }

    /// The code of element `k` in a packed row.
    #[inline]
    pub fn code(self, row: &[u8], k: usize) -> u32 {
        match self {
            Element::F16 | Element::Bf16 => u32::from(u16::from_le_bytes([row[2 * k], row[2 * k + 1]])),
            Element::Tf32 => u32::from_le_bytes([row[4 * k], row[4 * k + 1], row[4 * k + 2], row[4 * k + 3]]),
            Element::E4m3 | Element::E5m2 | Element::S8 | Element::U8 => u32::from(row[k]),
            Element::B1 => u32::from(row[k / 8] >> (k % 8) & 1),
        }
    }
}

/// Type of C and D.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Accumulator {
    F32,
    F16,
    /// Modulo 2^32.
    S32,
    /// `.satfinite`: C plus the exact sum, clamped once per instruction.
    S32Saturating,
}

/// Bits kept below the largest exponent of a step, of all types but Hopper's fp8; and those that the sum of fp8 keeps there.
const FRACTION_BITS: i32 = 25;
const HOPPER_FP8_BITS: i32 = 13;
/// Mantissa bits of f32.
const F32_BITS: i32 = 23;
/// Blackwell's fp8: the sum is as wide as of the other types. `sf-tensor/tcgen05`, MODEL.md: 46 paths of a B200, a million cases each, bit for
/// bit; microsoft/MMA-Sim and arXiv 2512.07004 agree. That M, N, the pair and where A lies change nothing is assumed (tried on few shapes).
const BLACKWELL_FP8_BITS: i32 = FRACTION_BITS;
/// The least exponent of a step: 7 below the accumulator's smallest. Measured on Hopper; for Blackwell arXiv 2512.07004 has the same, MODEL.md none:
/// they differ in accumulators of f16 alone, where a product below 2^-46 may decide a tie.
const LEAST_F32_STEP: i32 = -133;
const LEAST_F16_STEP: i32 = -21;

/// Operand and accumulator types of one instruction; only combinations that the tensor core has can be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MmaKind {
    a: Element,
    b: Element,
    accumulator: Accumulator,
    /// Bits that sums of fp8 keep.
    fp8_bits: i32,
}

impl MmaKind {
    /// `None` for a combination that no dense instruction of sm_90a has (PTX ISA, `wgmma.mma_async`).
    pub const fn new(a: Element, b: Element, accumulator: Accumulator) -> Option<MmaKind> {
        use Accumulator as Acc;
        use Element::*;
        let exists = match (a, b) {
            (F16, F16) => matches!(accumulator, Acc::F32 | Acc::F16),
            (Bf16, Bf16) | (Tf32, Tf32) => matches!(accumulator, Acc::F32),
            (E4m3 | E5m2, E4m3 | E5m2) => matches!(accumulator, Acc::F32 | Acc::F16),
            (S8 | U8, S8 | U8) => matches!(accumulator, Acc::S32 | Acc::S32Saturating),
            (B1, B1) => matches!(accumulator, Acc::S32),
            (F16 | Bf16 | Tf32 | E4m3 | E5m2 | S8 | U8 | B1, _) => false,
        };
        if exists {
            Some(MmaKind {
                a,
                b,
                accumulator,
                fp8_bits: HOPPER_FP8_BITS,
            })
        } else {
            None
        }
    }

    /// The same of `tcgen05.mma`, which has no single bits.
    pub const fn blackwell(a: Element, b: Element, accumulator: Accumulator) -> Option<MmaKind> {
        match (a, MmaKind::new(a, b, accumulator)) {
            (Element::B1, _) | (_, None) => None,
            (_, Some(kind)) => Some(MmaKind {
                fp8_bits: BLACKWELL_FP8_BITS,
                ..kind
            }),
        }
    }

    pub const fn a(self) -> Element {
        self.a
    }

    pub const fn b(self) -> Element {
        self.b
    }

    pub const fn accumulator(self) -> Accumulator {
        self.accumulator
    }

    /// Fractional bits kept below the largest exponent of a step.
    pub(super) const fn fraction_bits(self) -> i32 {
        match self.a {
            Element::E4m3 | Element::E5m2 => self.fp8_bits,
            Element::F16 | Element::Bf16 | Element::Tf32 | Element::S8 | Element::U8 | Element::B1 => FRACTION_BITS,
        }
    }

    const fn least_exponent(self) -> i32 {
        match self.accumulator {
            Accumulator::F16 => LEAST_F16_STEP,
            Accumulator::F32 | Accumulator::S32 | Accumulator::S32Saturating => LEAST_F32_STEP,
        }
    }

    /// Mantissa bits of a result in f32 (f16 accumulators always have 10).
    const fn f32_result_bits(self) -> i32 {
        if self.fraction_bits() < F32_BITS {
            self.fraction_bits()
        } else {
            F32_BITS
        }
    }
}

/// A decoded floating-point operand: `(-1)^negative · magnitude · 2^(exponent - w)`, `w` the mantissa bits of its type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Number {
    Finite {
        negative: bool,
        magnitude: u32,
        exponent: i32,
    },
    Infinite {
        negative: bool,
    },
    Nan,
}

/// How a binary floating-point code is laid out.
struct Format {
    exponent_bits: u32,
    mantissa_bits: u32,
    /// Whether the largest exponent field means infinity and NaN (not so in e4m3, where only 0x7f is NaN).
    ieee: bool,
}

const F32: Format = Format {
    exponent_bits: 8,
    mantissa_bits: 23,
    ieee: true,
};
const F16: Format = Format {
    exponent_bits: 5,
    mantissa_bits: 10,
    ieee: true,
};

const fn format_of(element: Element) -> Format {
    match element {
        Element::F16 => F16,
        Element::Bf16 => Format {
            exponent_bits: 8,
            mantissa_bits: 7,
            ieee: true,
        },
        Element::Tf32 => Format {
            exponent_bits: 8,
            mantissa_bits: 10,
            ieee: true,
        },
        Element::E4m3 => Format {
            exponent_bits: 4,
            mantissa_bits: 3,
            ieee: false,
        },
        Element::E5m2 => Format {
            exponent_bits: 5,
            mantissa_bits: 2,
            ieee: true,
        },
        Element::S8 | Element::U8 | Element::B1 => panic!("not a floating-point element"),
    }
}

fn decode(format: &Format, code: u32) -> Number {
    let mantissa = code & ((1 << format.mantissa_bits) - 1);
    let field = code >> format.mantissa_bits & ((1 << format.exponent_bits) - 1);
    let negative = code >> (format.mantissa_bits + format.exponent_bits) & 1 == 1;
    let top = (1 << format.exponent_bits) - 1;
    if format.ieee && field == top {
        return if mantissa == 0 {
            Number::Infinite { negative }
        } else {
            Number::Nan
        };
    }
    if !format.ieee && field == top && mantissa == (1 << format.mantissa_bits) - 1 {
        return Number::Nan;
    }
    let bias = (1 << (format.exponent_bits - 1)) - 1;
    let hidden = if field > 0 { 1 << format.mantissa_bits } else { 0 };
    Number::Finite {
        negative,
        magnitude: mantissa | hidden,
        exponent: field.max(1) as i32 - bias,
    }
}

/// `value · 2^shift`, cut towards zero (of a magnitude).
fn shift_cut(value: u64, shift: i32) -> u64 {
    if value == 0 {
        // A zero product may have any exponent, above the step's included.
        0
    } else if shift >= 0 {
        value << shift
    } else if shift > -64 {
        value >> -shift
    } else {
        0
    }
}

/// One step: `c + Σ a[k]·b[k]` over the packed rows `a` and `b` of equal length (at most 32 bytes), as the accumulator's
/// bits (f16 in the low half). `negate` flips the sign of every product (`imm-scale-a` ≠ `imm-scale-b`) and has no meaning
/// for integers.
///
/// # Panics
/// If the rows differ in length or are longer than 32 bytes.
pub fn step(kind: MmaKind, a: &[u8], b: &[u8], c: u32, negate: bool) -> u32 {
    assert!(
        a.len() == b.len() && a.len() <= 32,
        "rows of {} and {} bytes",
        a.len(),
        b.len()
    );
    match kind.accumulator {
        Accumulator::F32 | Accumulator::F16 => step_float(kind, a, b, c, negate),
        Accumulator::S32 => (i64::from(c as i32) + integer_sum(kind, a, b)) as u32,
        Accumulator::S32Saturating => {
            let sum = i64::from(c as i32) + integer_sum(kind, a, b);
            sum.clamp(i64::from(i32::MIN), i64::from(i32::MAX)) as i32 as u32
        }
    }
}

fn integer_sum(kind: MmaKind, a: &[u8], b: &[u8]) -> i64 {
    let widen = |element: Element, byte: u8| match element {
        Element::S8 => i64::from(byte as i8),
        Element::U8 => i64::from(byte),
        Element::F16 | Element::Bf16 | Element::Tf32 | Element::E4m3 | Element::E5m2 | Element::B1 => unreachable!(),
    };
    let pairs = a.iter().zip(b);
    if kind.a == Element::B1 {
        return pairs.map(|(&x, &y)| i64::from((x & y).count_ones())).sum();
    }
    pairs.map(|(&x, &y)| widen(kind.a, x) * widen(kind.b, y)).sum()
}

fn step_float(kind: MmaKind, a: &[u8], b: &[u8], c: u32, negate: bool) -> u32 {
    let f16_accumulator = kind.accumulator == Accumulator::F16;
    let (nan, infinity, sign) = if f16_accumulator {
        (0x7fff, 0x7c00, 0x8000)
    } else {
        (0x7fff_ffff, 0x7f80_0000, 0x8000_0000)
    };
    let (format_a, format_b) = (format_of(kind.a), format_of(kind.b));
    let format_c = if f16_accumulator { F16 } else { F32 };

    // Products and C as (negative, magnitude, exponent of the magnitude's unit + w, w).
    let mut terms = [(false, 0u64, 0i32, 0i32); 33];
    let mut count = 0;
    let (mut positive_infinity, mut negative_infinity) = (false, false);
    let mut note_infinity = |negative: bool| {
        if negative {
            negative_infinity = true
        } else {
            positive_infinity = true
        }
    };

    let code = |element: Element, row: &[u8], k: usize| match element {
        Element::Tf32 => element.code(row, k) >> 13,
        _ => element.code(row, k),
    };
    for k in 0..a.len() * 8 / kind.a.bits() {
        let x = decode(&format_a, code(kind.a, a, k));
        let y = decode(&format_b, code(kind.b, b, k));
        match (x, y) {
            (Number::Nan, _) | (_, Number::Nan) => return nan,
            (Number::Infinite { negative: s }, Number::Infinite { negative: t }) => note_infinity(s ^ t ^ negate),
            (
                Number::Infinite { negative: s },
                Number::Finite {
                    negative: t, magnitude, ..
                },
            )
            | (
                Number::Finite {
                    negative: t, magnitude, ..
                },
                Number::Infinite { negative: s },
            ) => {
                if magnitude == 0 {
                    return nan;
                }
                note_infinity(s ^ t ^ negate);
            }
            (
                Number::Finite {
                    negative: s,
                    magnitude: m,
                    exponent: e,
                },
                Number::Finite {
                    negative: t,
                    magnitude: n,
                    exponent: f,
                },
            ) => {
                let width = (format_a.mantissa_bits + format_b.mantissa_bits) as i32;
                terms[count] = (s ^ t ^ negate, u64::from(m) * u64::from(n), e + f, width);
                count += 1;
            }
        }
    }
    match decode(&format_c, if f16_accumulator { c & 0xffff } else { c }) {
        Number::Nan => return nan,
        Number::Infinite { negative } => note_infinity(negative),
        Number::Finite {
            negative,
            magnitude,
            exponent,
        } => {
            terms[count] = (negative, u64::from(magnitude), exponent, format_c.mantissa_bits as i32);
            count += 1;
        }
    }
    match (positive_infinity, negative_infinity) {
        (true, true) => return nan,
        (true, false) => return infinity,
        (false, true) => return infinity | sign,
        (false, false) => {}
    }

    let terms = &terms[..count];
    let largest = terms
        .iter()
        .filter(|t| t.1 != 0)
        .map(|t| t.2)
        .fold(kind.least_exponent(), i32::max);
    let fraction = kind.fraction_bits();
    let sum: i64 = terms
        .iter()
        .map(|&(negative, magnitude, exponent, width)| {
            let cut = shift_cut(magnitude, fraction - largest + exponent - width) as i64;
            if negative { -cut } else { cut }
        })
        .sum();
    let magnitude = match f16_accumulator {
        true => round_f16_nearest(sum.unsigned_abs(), largest - fraction),
        false => cut_f32(sum.unsigned_abs(), largest - fraction, kind.f32_result_bits()),
    };
    if sum < 0 && magnitude != 0 {
        magnitude | sign
    } else {
        magnitude
    }
}

/// `value · 2^exponent` as f32 bits, cut towards zero to `width` mantissa bits; overflow gives infinity.
fn cut_f32(value: u64, exponent: i32, width: i32) -> u32 {
    if value == 0 {
        return 0;
    }
    let top = 63 - value.leading_zeros() as i32 + exponent;
    if top >= 128 {
        return 0x7f80_0000;
    }
    let unit = (top - width).max(-126 - width);
    let mantissa = (shift_cut(value, exponent - unit) as u32) << (23 - width);
    if top >= -126 {
        ((top + 127) as u32) << 23 | mantissa & 0x7f_ffff
    } else {
        mantissa
    }
}

/// `value · 2^exponent` as f16 bits, to nearest even; overflow gives infinity.
fn round_f16_nearest(value: u64, exponent: i32) -> u32 {
    if value == 0 {
        return 0;
    }
    let top = 63 - value.leading_zeros() as i32 + exponent;
    if top >= 16 {
        return 0x7c00;
    }
    let unit = (top - 10).max(-24);
    let mantissa = if exponent >= unit {
        value << (exponent - unit)
    } else {
        let drop = unit - exponent;
        let (kept, rest) = if drop < 64 {
            (value >> drop, value & ((1 << drop) - 1))
        } else {
            (0, value)
        };
        let half = if drop <= 64 { 1u64 << (drop - 1) } else { u64::MAX };
        kept + u64::from(rest > half || rest == half && kept & 1 == 1)
    };
    // The hidden bit of a normal number adds one to the exponent field below it; a carry out of the mantissa another.
    let field = if top >= -14 { (top + 14) as u32 } else { 0 };
    ((field << 10) + mantissa as u32).min(0x7c00)
}
