//! Conversions of arrays on whole register words, with the bits of [`super::convert::convert`] of each element.
//!
//! Small integers become floats without the conversion unit (16 lanes a clock and multiprocessor, the arithmetic units: 64 and
//! more; CUDA C++ Programming Guide, "Throughput of Native Arithmetic Instructions"): `prmt` or `lop3` inserts an integer's bits
//! below an exponent whose last place is worth one, and a subtraction takes away what that exponent stands for. All of it is
//! exact, and zero comes out positive, as x − x does. Four bits have sixteen values: where that is shorter, `prmt` looks them up.
use super::convert::fp8_pair;
use super::cx::LowerCx;
use super::emit::S;
use super::value::{ArrayRegs, Packing};
use crate::dtype::DType;
use crate::ptx::build::Builder;
use crate::ptx::inst::Inst;
use crate::ptx::modifier::*;
use crate::ptx::operand::{Class, Src};
use crate::ptx::ssa::Value;
use crate::target::Features;

/// The `lop3` table of `a & b ^ c`.
const AND_XOR: i64 = 0xf0 & 0xcc ^ 0xaa;

/// The bits of 2^23 as f32: the last place is worth one.
const ONES_F32: u32 = 0x4b00_0000;

/// An array in another type; none: there is nothing better than element by element.
pub fn run(cx: &mut LowerCx, x: &ArrayRegs, to: DType) -> Option<ArrayRegs> {
    // Constants fold element by element.
    if x.regs.iter().all(|r| r.imm().is_some()) {
        return None;
    }
    let slots = x.layout.slots() as usize;
    let table = match (x.dtype, to) {
        (DType::I4 | DType::U4, DType::F8E4M3FN | DType::F8E5M2) | (DType::F4E2M1FN, _) => looked_up(&mut cx.b, x, to),
        _ => None,
    };
    let regs = match (x.dtype, to) {
        _ if table.is_some() => table,
        (DType::Bool, _) => from_bools(&mut cx.b, &x.regs, to),
        (DType::I4 | DType::U4 | DType::I8 | DType::U8, DType::F16 | DType::BF16) => {
            Some(integers_to_halves(&mut cx.b, x, to))
        }
        (DType::F8E4M3FN | DType::F8E5M2, DType::F16) if cx.b.has(Features::FP8) => Some(fp8_to_f16(&mut cx.b, x)),
        (_, DType::F32) => to_f32(cx, x),
        (DType::F32, _) => from_f32(&mut cx.b, &x.regs, to),
        (_, DType::F16 | DType::BF16 | DType::F8E4M3FN | DType::F8E5M2) => match to_f32(cx, x) {
            Some(wide) => from_f32(&mut cx.b, &wide, to),
            None => None,
        },
        _ => None,
    };
    assert!(
        regs.as_ref()
            .is_none_or(|r| r.len() == Packing::of(to).regs(slots as u32) as usize)
    );
    let layout = x.layout.clone();
    regs.map(|regs| ArrayRegs {
        dtype: to,
        layout,
        regs,
    })
}

/// Where the elements of an array are: the word and the position in it, of the first element of each `step`.
fn places(x: &ArrayRegs, step: usize) -> impl Iterator<Item = (S, u32)> {
    let per_word = 32 / x.dtype.bits() as usize;
    let slots = x.layout.slots() as usize;
    (0..slots)
        .step_by(step)
        .map(move |slot| (x.regs[slot / per_word], (slot % per_word) as u32))
}

/// Every element as f32, exactly: types of at most 16 bits that have a form for words.
fn to_f32(cx: &mut LowerCx, x: &ArrayRegs) -> Option<Vec<S>> {
    Some(match x.dtype {
        DType::I4 | DType::U4 => nibbles_to_f32(&mut cx.b, x),
        DType::I8 | DType::U8 => {
            // Signed: with the sign bit inverted a number is 128 larger, and never negative.
            let (words, bias) = unsigned(&mut cx.b, x, 0x8080_8080, 128.0);
            let selector = |i| 0x3004 + i;
            below_exponent(&mut cx.b, &words, selector, bias)
        }
        DType::I16 | DType::U16 => {
            let (words, bias) = unsigned(&mut cx.b, x, 0x8000_8000, 32768.0);
            let selector = |i| 0x3054 + 0x22 * i;
            below_exponent(&mut cx.b, &words, selector, bias)
        }
        DType::BF16 => places(x, 1)
            .map(|(word, i)| match i {
                0 => cx.b.shl(BitType::B32, word, Src::u32(16)),
                _ => cx.b.and32(word, 0xffff_0000),
            })
            .collect(),
        DType::F16 => halves_to_f32(cx, x.clone()),
        DType::F8E4M3FN | DType::F8E5M2 if cx.b.has(Features::FP8) => {
            let halves = ArrayRegs {
                dtype: DType::F16,
                layout: x.layout.clone(),
                regs: fp8_to_f16(&mut cx.b, x),
            };
            halves_to_f32(cx, halves)
        }
        _ => return None,
    })
}

fn halves_to_f32(cx: &mut LowerCx, x: ArrayRegs) -> Vec<S> {
    let elements = cx.elements(&x).into_iter();
    elements
        .map(|h| cx.b.cvt(CvtType::F32, CvtType::F16, CvtRound::None, h))
        .collect()
}

/// f32 rounded to the words of a narrower type that has a conversion of pairs.
fn from_f32(b: &mut Builder, x: &[S], to: DType) -> Option<Vec<S>> {
    let to_pair = match to {
        DType::F16 => Pair16::F16x2,
        DType::BF16 => Pair16::BF16x2,
        DType::F8E4M3FN | DType::F8E5M2 if b.has(Features::FP8) => return Some(from_f32_to_fp8(b, x, to)),
        _ => return None,
    };
    let pairs = x.chunks(2);
    Some(
        pairs
            .map(|pair| {
                let high = pair.get(1).copied().unwrap_or(Src::Imm(0));
                b.emit(Inst::cvt_pair(Round::Rn, Relu::No, to_pair, Value::NEW, high, pair[0]))
            })
            .collect(),
    )
}

fn from_f32_to_fp8(b: &mut Builder, x: &[S], to: DType) -> Vec<S> {
    x.chunks(4)
        .map(|c| {
            let at = |i: usize| c.get(i).copied().unwrap_or(Src::Imm(0));
            let low = fp8_pair(b, to, at(0), at(1));
            if c.len() <= 2 {
                return low;
            }
            let high = fp8_pair(b, to, at(2), at(3));
            b.prmt(low, high, 0x5410)
        })
        .collect()
}

fn fp8_to_f16(b: &mut Builder, x: &ArrayRegs) -> Vec<S> {
    let from = if x.dtype == DType::F8E5M2 {
        Pair8::E5M2x2
    } else {
        Pair8::E4M3x2
    };
    places(x, 2)
        .map(|(word, i)| {
            let half = b.unpack16(word)[i as usize / 2];
            let half = b.r16(half);
            b.emit(Inst::cvt_f16x2_pair8(Relu::No, from, Value::NEW, half))
        })
        .collect()
}

// ------------------------------------------------------------------------------------------------------------ integers

/// Words of unsigned integers, and how much larger each is than the number that it stands for.
fn unsigned(b: &mut Builder, x: &ArrayRegs, signs: u32, bias: f32) -> (ArrayRegs, f32) {
    let mut x = x.clone();
    if x.dtype.is_unsigned_int() {
        return (x, 0.0);
    }
    for word in &mut x.regs {
        *word = b.xor(LogicType::B32, *word, Src::u32(signs));
    }
    (x, bias)
}

/// Unsigned integers of 8 or 16 bits, less `bias`, as f32. `selector` inserts one below the exponent of 2^23.
fn below_exponent(b: &mut Builder, x: &ArrayRegs, selector: impl Fn(u32) -> u32, bias: f32) -> Vec<S> {
    places(x, 1)
        .map(|(word, i)| {
            let placed = b.prmt(Src::u32(ONES_F32), word, selector(i));
            b.fsub(FloatType::F32, placed, Src::f32(f32::from_bits(ONES_F32) + bias))
        })
        .collect()
}

/// Integers of 4 bits stay where they are in the word: the exponent is that whose mantissa is worth one there.
fn nibbles_to_f32(b: &mut Builder, x: &ArrayRegs) -> Vec<S> {
    // A mantissa has 23 bits: those of the last three are moved down first.
    const IN_PLACE: u32 = 5;
    let sign = if x.dtype == DType::I4 { 8 } else { 0 };
    places(x, 1)
        .map(|(word, i)| {
            let (word, at) = if i < IN_PLACE {
                (word, 4 * i)
            } else {
                (b.shr(ShiftType::U32, word, Src::u32(20)), 4 * (i - IN_PLACE))
            };
            let ones = ONES_F32 - (at << 23);
            let placed = and_xor(b, word, 0xf << at, ones | sign << at);
            b.fsub(FloatType::F32, placed, Src::f32(f32::from_bits(ones) + sign as f32))
        })
        .collect()
}

/// Integers of 4 or 8 bits as pairs of 16-bit floats.
fn integers_to_halves(b: &mut Builder, x: &ArrayRegs, to: DType) -> Vec<S> {
    match (x.dtype, to) {
        (DType::I4 | DType::U4, _) => nibbles_to_halves(b, x, to),
        (DType::I8, DType::BF16) => pairs_of_bytes(b, x, 0, |b, pair| {
            // 128 and the low seven bits, less 128 or 256 by the sign.
            let low = and_xor(b, pair, 0x007f_007f, 0x4300_4300);
            let high = and_xor(b, pair, 0x0080_0080, 0x4300_4300);
            b.fsub(FloatType::BF16x2, low, high)
        }),
        (_, DType::BF16) => pairs_of_bytes(b, x, 0x43, |b, pair| {
            // The pattern is worth x + 128, from 128 on 2·x: less 256 and then times 1 or 1/2 by the highest bit, x − 128.
            let less = b.fsub(FloatType::BF16x2, pair, Src::u32(0x4380_4380));
            let factor = and_xor(b, pair, 0x0080_0080, 0x3f80_3f80);
            b.fma(FloatType::BF16x2, less, factor, Src::u32(0x4300_4300))
        }),
        _ => {
            // 1024 and the number; signed ones are made 128 larger.
            let ones = if x.dtype == DType::I8 { 0x6480_6480 } else { 0x6400_6400 };
            let (words, _) = unsigned(b, x, 0x8080_8080, 128.0);
            pairs_of_bytes(b, &words, 0x64, |b, pair| {
                b.fsub(FloatType::F16x2, pair, Src::u32(ones))
            })
        }
    }
}

/// What `f` makes of each pair of bytes, inserted below the byte `exponent` of a half each.
fn pairs_of_bytes(b: &mut Builder, x: &ArrayRegs, exponent: u32, f: impl Fn(&mut Builder, S) -> S) -> Vec<S> {
    places(x, 2)
        .map(|(word, i)| {
            let pair = b.prmt(Src::u32(exponent), word, 0x0504 + 0x0202 * (i / 2));
            f(b, pair)
        })
        .collect()
}

fn nibbles_to_halves(b: &mut Builder, x: &ArrayRegs, to: DType) -> Vec<S> {
    // The pattern whose last place is worth one: 128, or 1024.
    let (ty, ones) = match to {
        DType::BF16 => (FloatType::BF16x2, 0x4300_4300),
        _ => (FloatType::F16x2, 0x6400_6400),
    };
    // Inverting its sign bit makes a signed number 8 larger.
    let ones = ones | if x.dtype == DType::I4 { 0x0008_0008 } else { 0 };
    places(x, 2)
        .map(|(word, i)| {
            let odd = b.shr(ShiftType::U32, word, Src::u32(4));
            let byte = i / 2;
            let pair = b.prmt(word, odd, 0x4400 + 0x1111 * byte);
            let placed = and_xor(b, pair, 0x000f_000f, ones);
            b.fsub(ty, placed, Src::u32(ones))
        })
        .collect()
}

/// `word & mask ^ bits`.
fn and_xor(b: &mut Builder, word: S, mask: u32, bits: u32) -> S {
    b.emit(Inst::lop3(Value::NEW, word, Src::u32(mask), Src::u32(bits), AND_XOR))
}

// ------------------------------------------------------------------------------------------------------------ tables

/// The `lop3` table of `c ? b : a`, bit by bit.
const PICK: i64 = 0xf0 & !0xaa | 0xcc & 0xaa;

/// The value of each code of a type of four bits.
fn values_of_nibbles(dtype: DType) -> Option<[f32; 16]> {
    const E2M1: [f32; 8] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];
    Some(std::array::from_fn(|code| match dtype {
        DType::I4 => (code as f32) - if code < 8 { 0.0 } else { 16.0 },
        DType::U4 => code as f32,
        DType::F4E2M1FN if code < 8 => E2M1[code],
        DType::F4E2M1FN => -E2M1[code - 8],
        _ => f32::NAN,
    }))
    .filter(|values: &[f32; 16]| !values[0].is_nan())
}

/// The bits of a small number in a float of 8 or 16 bits; none: it does not have it.
fn exact_bits(x: f32, to: DType) -> Option<u32> {
    let half = half::f16::from_f32(x).to_bits();
    let (bits, back) = match to {
        DType::F16 => (u32::from(half), half::f16::from_bits(half).to_f32()),
        DType::BF16 => (x.to_bits() >> 16, f32::from_bits(x.to_bits() & 0xffff_0000)),
        DType::F8E5M2 => (u32::from(half >> 8), half::f16::from_bits(half & 0xff00).to_f32()),
        // From 2^-6 on: the exponent's bias is 7 instead of 15.
        DType::F8E4M3FN => {
            let (sign, rest) = (half >> 8 & 0x80, half & 0x7f80);
            let code = if rest == 0 { 0 } else { (rest >> 7).checked_sub(8 << 3)? };
            (u32::from(sign | code), half::f16::from_bits(half & 0xff80).to_f32())
        }
        _ => return None,
    };
    (back == x).then_some(bits)
}

/// Numbers of four bits in floats of 8 or 16 bits, a byte at a time.
fn looked_up(b: &mut Builder, x: &ArrayRegs, to: DType) -> Option<Vec<S>> {
    let mut codes = [0; 16];
    for (code, value) in codes.iter_mut().zip(values_of_nibbles(x.dtype)?) {
        *code = exact_bits(value, to)?;
    }
    let byte = |i: u32| codes.map(|code| (code >> (8 * i)) as u8);
    let slots = x.layout.slots() as usize;
    let mut words = vec![];
    for (i, &word) in x.regs.iter().enumerate() {
        let here = (slots - 8 * i).min(8);
        // The bytes whose highest bits are those of even places.
        let even = b.shl(BitType::B32, word, Src::u32(4));
        let low = b.and32(word, 0x7777_7777);
        let high = b.shr(ShiftType::U32, low, Src::u32(16));
        for (half, index) in [low, high].into_iter().enumerate().take(here.div_ceil(4)) {
            // All bits of a byte are its number's highest one.
            let signs = |b: &mut Builder| b.prmt(even, word, if half == 0 { 0xd9c8 } else { 0xfbea });
            let first = table(b, byte(0), index, signs);
            if to.bits() == 8 {
                words.push(first);
                continue;
            }
            let second = table(b, byte(1), index, signs);
            words.push(b.prmt(first, second, 0x5140));
            if here > 4 * half + 2 {
                words.push(b.prmt(first, second, 0x7362));
            }
        }
    }
    Some(words)
}

/// Four entries of a table: of its halves the one that the numbers' highest bits select.
fn table(b: &mut Builder, entries: [u8; 16], index: S, signs: impl FnOnce(&mut Builder) -> S) -> S {
    let word = |at: usize| Src::u32(u32::from_le_bytes([0, 1, 2, 3].map(|i| entries[at + i])));
    let half = |b: &mut Builder, at: usize| b.prmt_by(word(at), word(at + 4), index);
    let low = half(b, 0);
    if entries[..8] == entries[8..] {
        return low;
    }
    let high = half(b, 8);
    let signs = signs(b);
    b.emit(Inst::lop3(Value::NEW, low, high, signs, PICK))
}

// ------------------------------------------------------------------------------------------------------------ predicates

/// Words in which true is one: a selection for each element, of the bits in their place.
fn from_bools(b: &mut Builder, x: &[S], to: DType) -> Option<Vec<S>> {
    let Packing::Words(per_word) = Packing::of(to) else {
        return None;
    };
    let one = match to {
        DType::F16 => 0x3c00,
        DType::BF16 => 0x3f80,
        DType::F8E4M3FN => 0x38,
        DType::F8E5M2 => 0x3c,
        _ if to.is_int() && per_word > 1 => 1,
        _ => return None,
    };
    let words = x.chunks(per_word as usize).map(|elements| {
        // Elements of one predicate share their selection.
        let mut masks: Vec<(S, u32)> = vec![];
        for (i, &p) in elements.iter().enumerate() {
            let bits = one << (i as u32 * to.bits());
            match masks.iter_mut().find(|(q, _)| *q == p) {
                Some((_, mask)) => *mask |= bits,
                None => masks.push((p, bits)),
            }
        }
        let mut word = Src::u32(0);
        for (p, mask) in masks {
            let bits = b.pick(Class::B32, p, Src::u32(mask), Src::u32(0));
            word = b.or(LogicType::B32, word, bits);
        }
        word
    });
    Some(words.collect())
}
