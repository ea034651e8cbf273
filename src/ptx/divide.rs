//! Division and remainder by a constant, without a division.
//!
//! ptxas has no such rewriting: it computes `x / 6` with the reciprocal unit and Newton's steps, `x / 64` of a signed number
//! with nine instructions. Quotients are products with a rounded-up reciprocal, cut (Granlund and Montgomery, "Division by
//! Invariant Integers using Multiplication", 1994). What is known of the dividend's range decides how short it gets.
use super::build::{Builder, Operand};
use super::inst::Inst;
use super::modifier::*;
use super::operand::*;
use super::ssa::Value;

/// How the quotient of an unsigned number of `width` bits by a constant is found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Unsigned {
    /// `x·m >> k`, in one word.
    Low { m: u64, k: u32 },
    /// `(x >> first)·m >> width + k`
    High { first: u32, m: u64, k: u32 },
    /// `t + (x − t >> 1) >> k`, where `t = x·m >> width`: the reciprocal has a bit more than a word.
    Long { m: u64, k: u32 },
}

/// `⌊2^k / c⌋ + 1`, and by how much its product with `c` exceeds `2^k`. `c` is no power of two.
fn reciprocal(k: u32, c: u64) -> (u128, u128) {
    let m = (1u128 << k) / u128::from(c) + 1;
    (m, m * u128::from(c) - (1u128 << k))
}

/// For dividends up to `bound`. `c` is no power of two, `2 < c`, `2·c <= bound < 2^width`.
///
/// With `m·c = 2^k + e`, `⌊x·m / 2^k⌋ = ⌊x / c⌋` wherever `x·e < 2^k`: what the product has too much does not reach the next
/// quotient.
fn unsigned(width: u32, bound: u64, c: u64) -> Unsigned {
    let (x, word) = (u128::from(bound), 1u128 << width);
    let exact = |k: u32, x: u128| {
        let (m, e) = reciprocal(k, c);
        (x * e < 1 << k).then_some(m)
    };
    for k in 0..width {
        match exact(k, x) {
            Some(m) if m * x < word => return Unsigned::Low { m: m as u64, k },
            _ => {}
        }
    }
    let high = |first: u32| {
        let (x, c) = (x >> first, c >> first);
        (0..width).find_map(|k| {
            let (m, e) = reciprocal(width + k, c);
            (m < word && x * e < 1 << (width + k)).then_some(Unsigned::High { first, m: m as u64, k })
        })
    };
    if let Some(found) = high(0) {
        return found;
    }
    // An even divisor leaves room: its zeros are taken off first.
    if let (1.., Some(found)) = (c.trailing_zeros(), high(c.trailing_zeros())) {
        return found;
    }
    // 2^(width + k) / c has width + 1 bits for the k with 2^k < c < 2^(k + 1), and k + 1 is always enough.
    let k = c.ilog2();
    let (m, _) = reciprocal(width + k + 1, c);
    Unsigned::Long {
        m: (m - word) as u64,
        k,
    }
}

/// The multiplier `m < 2^width` and the shift with `⌊x·m / 2^(width + k)⌋`, one more for negative `x`, the quotient by `c` of every
/// signed `x`, cut towards zero. `c` is no power of two, `2 < c < 2^(width − 1)`.
///
/// For negative `x` the product must not fall below the next quotient: `|x|·e <= 2^(width + k)`.
fn signed(width: u32, c: u64) -> (u64, u32) {
    let found = (0..width).find_map(|k| {
        let (m, e) = reciprocal(width + k, c);
        (e <= 1 << (k + 1)).then_some((m as u64, k))
    });
    // e <= c < 2^(width − 1).
    found.expect("some shift is enough")
}

/// The quotient or remainder by a constant, if `inst` (its definition is [`Value::NEW`]) is one and there is a better way.
/// `x / 0` stays as it is.
pub fn expand(b: &mut Builder, inst: &Inst<Value>) -> Option<Operand> {
    let (ty, x, c, remainder) = match *inst {
        Inst::DivInt { ty, a, b: c, .. } => (ty, a, c, false),
        Inst::RemInt { ty, a, b: c, .. } => (ty, a, c, true),
        _ => return None,
    };
    let class = ty.slot().class;
    let c = b.as_constant(c)? & class.mask();
    if b.as_constant(x).is_some() || c == 0 {
        return None;
    }
    let (bound, half) = (b.bound(x, class), class.mask() >> 1);
    if ty.is_signed() && (bound > half || c > half) {
        return Some(expand_signed(b, ty, x, c, remainder));
    }
    // Simplification knows these, with no multiplication.
    if c.is_power_of_two() || bound < c {
        return None;
    }
    let ty = ty.as_unsigned();
    if bound / c == 1 {
        return Some(divide_once(b, ty, x, c, remainder));
    }
    let q = quotient(b, ty, x, bound, c);
    b.assume_at_most(q, bound / c);
    if !remainder {
        return Some(q);
    }
    let r = rest(b, ty, x, q, c);
    b.assume_at_most(r, c - 1);
    Some(r)
}

/// Of an unsigned number below `2·c`.
fn divide_once(b: &mut Builder, ty: IntType, x: Operand, c: u64, remainder: bool) -> Operand {
    if remainder {
        // x − c wraps to a larger number where x < c.
        let less = b.sub(ty, x, Src::Imm(c));
        return b.min(ty, x, less);
    }
    let once = b.setp(Compare::Ge, ty.as_compare(), x, Src::Imm(c));
    b.select(ty.as_bits(), once, Src::Imm(1), Src::Imm(0))
}

/// `x − q·c`
fn rest(b: &mut Builder, ty: IntType, x: Operand, q: Operand, c: u64) -> Operand {
    let minus = Src::Imm(c.wrapping_neg() & ty.slot().class.mask());
    b.mad(ty, q, minus, x)
}

/// Of an unsigned number up to `bound`.
fn quotient(b: &mut Builder, ty: IntType, x: Operand, bound: u64, c: u64) -> Operand {
    if ty == IntType::U64 && bound <= u64::from(u32::MAX) {
        let narrow = b.cvt_int(CvtType::U32, CvtType::U64, x);
        b.assume_at_most(narrow, bound);
        let q = quotient(b, IntType::U32, narrow, bound, c);
        return b.cvt_int(CvtType::U64, CvtType::U32, q);
    }
    let (width, shift) = (ty.bits(), ty.as_shift());
    match unsigned(width, bound, c) {
        Unsigned::Low { m, k } => {
            let product = b.mul(ty, x, Src::Imm(m));
            b.shr(shift, product, Src::u32(k))
        }
        Unsigned::High { first, m, k } => {
            let x = b.shr(shift, x, Src::u32(first));
            let high = high(b, ty, x, m);
            b.shr(shift, high, Src::u32(k))
        }
        Unsigned::Long { m, k } => {
            let t = high(b, ty, x, m);
            let left = b.sub(ty, x, t);
            let left = b.shr(shift, left, Src::u32(1));
            let sum = b.add(ty, left, t);
            b.shr(shift, sum, Src::u32(k))
        }
    }
}

/// The high word of a product.
fn high(b: &mut Builder, ty: IntType, x: Operand, m: u64) -> Operand {
    b.emit(Inst::mul_hi(ty, Value::NEW, x, Src::Imm(m)))
}

fn expand_signed(b: &mut Builder, ty: IntType, x: Operand, c: u64, remainder: bool) -> Operand {
    let (class, width, shift) = (ty.slot().class, ty.bits(), ty.as_shift());
    let logical = ty.as_unsigned().as_shift();
    let negative = c > class.mask() >> 1;
    // The least number's magnitude is its own bits.
    let magnitude = if negative { c.wrapping_neg() & class.mask() } else { c };
    if magnitude == 1 {
        return match (remainder, negative) {
            (true, _) => Src::Imm(0),
            (false, true) => b.emit(Inst::neg_int(ty, Value::NEW, x)),
            (false, false) => x,
        };
    }
    if magnitude.is_power_of_two() {
        let k = magnitude.trailing_zeros();
        // c − 1 more for negative numbers, so that the shift rounds towards zero.
        let sign = b.shr(shift, x, Src::u32(k - 1));
        let more = b.shr(logical, sign, Src::u32(width - k));
        let sum = b.add(ty, x, more);
        if remainder {
            let whole = b.logic(
                Logic::And,
                ty.as_logic(),
                sum,
                Src::Imm(magnitude.wrapping_neg() & class.mask()),
            );
            return b.sub(ty, x, whole);
        }
        let q = b.shr(shift, sum, Src::u32(k));
        return if negative {
            b.emit(Inst::neg_int(ty, Value::NEW, q))
        } else {
            q
        };
    }
    let (m, k) = signed(width, magnitude);
    let mut q = high(b, ty, x, m);
    if m > class.mask() >> 1 {
        // As a signed number the multiplier is a word less.
        q = b.add(ty, q, x);
    }
    q = b.shr(shift, q, Src::u32(k));
    let one = b.shr(logical, x, Src::u32(width - 1));
    q = b.add(ty, q, one);
    match (remainder, negative) {
        // The divisor's sign makes no difference.
        (true, _) => rest(b, ty, x, q, magnitude),
        (false, true) => b.emit(Inst::neg_int(ty, Value::NEW, q)),
        (false, false) => q,
    }
}

#[cfg(test)]
mod tests {
    use super::super::evaluate::{NoFunctions, evaluate};
    use super::super::inst::ROWS;
    use super::super::ssa::OpKind;
    use super::*;
    use std::collections::HashMap;

    /// Every divisor, bound and dividend of eight bits.
    #[test]
    fn all_quotients_of_a_small_word_are_right() {
        let width = 8;
        for c in (3u64..128).filter(|c| !c.is_power_of_two()) {
            for bound in 2 * c..256 {
                let how = unsigned(width, bound, c);
                for x in 0..=bound {
                    let q = match how {
                        Unsigned::Low { m, k } => {
                            assert!(x * m < 1 << width, "{how:?} of {x} / {c} leaves the word");
                            x * m >> k
                        }
                        Unsigned::High { first, m, k } => {
                            assert!(m < 1 << width && k < width);
                            (x >> first) * m >> width >> k
                        }
                        Unsigned::Long { m, k } => {
                            assert!(m < 1 << width && k < width);
                            let t = x * m >> width;
                            (x - t >> 1) + t >> k
                        }
                    };
                    assert_eq!(q, x / c, "{x} / {c}, at most {bound}: {how:?}");
                }
            }
            let (m, k) = signed(width, c);
            assert!(m < 1 << width && k < width);
            for x in -128i64..128 {
                let q = (x * m as i64 >> width >> k) + i64::from(x < 0);
                assert_eq!(q, x / c as i64, "{x} / {c}: {m} {k}");
            }
        }
    }

    /// The result of what `expand` writes, on a dividend.
    struct Expansion {
        b: Builder,
        x: Value,
        result: Operand,
    }

    fn expansion(ty: IntType, bound: u64, c: u64, remainder: bool) -> Option<Expansion> {
        let mut b = Builder::new();
        let class = ty.slot().class;
        // Any instruction whose result is not known.
        let at = b.tid();
        let mem = match class {
            Class::B16 => MemType::B16,
            Class::B64 => MemType::B64,
            Class::B32 | Class::Pred => MemType::B32,
        };
        let x = b.load(Space::Shared, mem, Addr::new(at), 1)[0];
        b.assume_at_most(x, bound);
        let (d, a, c) = (Value::NEW, Src::Reg(x), Src::Imm(c));
        let inst = match remainder {
            true => Inst::RemInt { ty, d, a, b: c },
            false => Inst::DivInt { ty, d, a, b: c },
        };
        let result = expand(&mut b, &inst)?;
        Some(Expansion { b, x, result })
    }

    impl Expansion {
        fn on(self, dividends: &[u64]) -> Vec<u64> {
            let ssa = self.b.finish();
            dividends
                .iter()
                .map(|x| {
                    let mut known = HashMap::from([(self.x, *x)]);
                    for op in ssa.regions.values().flat_map(|r| &r.ops) {
                        let OpKind::Inst { inst, .. } = &op.kind else { continue };
                        assert!(!matches!(inst, Inst::DivInt { .. } | Inst::RemInt { .. }));
                        if let Some(v) = evaluate(inst, |v| known.get(&v).copied(), &NoFunctions) {
                            inst.for_each_def(|d, slot| {
                                known.insert(d, v & slot.class.mask());
                            });
                        }
                    }
                    match self.result {
                        Src::Imm(bits) => bits,
                        Src::Reg(v) => known[&v],
                    }
                })
                .collect()
        }
    }

    /// As the machine's words have them; the least number by −1 wraps.
    fn divided(ty: IntType, x: u64, c: u64) -> (u64, u64) {
        let mask = ty.slot().class.mask();
        let (q, r) = if ty.is_signed() {
            let shift = 64 - ty.bits();
            let signed = |v: u64| ((v << shift) as i64) >> shift;
            (
                signed(x).wrapping_div(signed(c)) as u64,
                signed(x).wrapping_rem(signed(c)) as u64,
            )
        } else {
            (x / c, x % c)
        };
        (q & mask, r & mask)
    }

    /// All types, divisors and dividends near what is special about them, every kind of bound.
    #[test]
    fn what_is_written_gives_quotient_and_remainder() {
        use IntType::*;
        let mut state = 1u64;
        // Knuth's, whose high bits are good.
        let mut random = move |below: u64| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            let high = state >> 32;
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (high << 32 | state >> 32) % below
        };
        let mut expanded = 0;
        for ty in [U16, S16, U32, S32, U64, S64] {
            let mask = ty.slot().class.mask();
            for round in 0..3000u64 {
                let mut any = || random(u64::MAX) >> random(u64::from(ty.bits())) & mask;
                let c = match round % 4 {
                    0 => 1 + round / 4,
                    1 => (1 + round / 4).wrapping_neg() & mask,
                    2 => {
                        (1u64 << (any() % u64::from(ty.bits())))
                            .wrapping_add(any() % 3)
                            .wrapping_sub(1)
                            & mask
                    }
                    _ => any(),
                };
                if c == 0 {
                    continue;
                }
                let bound = match any() % 3 {
                    0 => mask,
                    1 => any(),
                    _ => any() % (4 * u64::from(u32::MAX)) & mask,
                };
                let near: Vec<u64> = (0..24)
                    .map(|i| match i {
                        0 => 0,
                        1 => bound,
                        2 => mask,
                        3 => mask >> 1,
                        4 => (mask >> 1) + 1,
                        5..=12 => (any() % 64).wrapping_mul(c).wrapping_add(i).wrapping_sub(8) & mask,
                        13..=18 => {
                            (bound / c)
                                .wrapping_sub(i % 3)
                                .wrapping_mul(c)
                                .wrapping_add(i % 2)
                                .wrapping_sub(1)
                                & mask
                        }
                        _ => any(),
                    })
                    .filter(|x| *x <= bound)
                    .collect();
                for remainder in [false, true] {
                    let Some(found) = expansion(ty, bound, c, remainder) else {
                        continue;
                    };
                    expanded += 1;
                    for (x, got) in near.iter().zip(found.on(&near)) {
                        let (q, r) = divided(ty, *x, c);
                        assert_eq!(
                            got,
                            if remainder { r } else { q },
                            "{ty:?} {x:#x} by {c:#x}, at most {bound:#x}, remainder: {remainder}"
                        );
                    }
                }
            }
        }
        assert!(expanded > 15_000, "{expanded}");
    }

    #[test]
    fn quotient_and_remainder_share_the_product() {
        let mut b = Builder::new();
        let x = b.tid();
        let (d, a, c) = (Value::NEW, Src::Reg(x), Src::u32(6));
        let ty = IntType::U32;
        expand(&mut b, &Inst::DivInt { ty, d, a, b: c }).unwrap();
        expand(&mut b, &Inst::RemInt { ty, d, a, b: c }).unwrap();
        let names: Vec<_> = b
            .finish()
            .regions
            .values()
            .flat_map(|r| &r.ops)
            .filter_map(|op| match &op.kind {
                OpKind::Inst { inst, .. } => Some(ROWS[inst.row()].name),
                OpKind::If { .. } | OpKind::Loop { .. } => None,
            })
            .collect();
        assert_eq!(names, ["MovSpecial32", "MulLo", "Shr", "MulLo", "AddInt"]);
    }
}
