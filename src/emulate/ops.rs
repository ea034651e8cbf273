//! Functions of one lane: integers, bits, comparisons. What is a function of one row alone stands in the instruction table (`computes`), and
//! what it needs for that is here. Floats are in `floats.rs`.
use super::row::Lane;
use super::uop::{Op1, Op2, Op3, Test, lane_function, lane_functions};
use crate::ptx::integer::{self, Int};
use crate::ptx::modifier::{Compare, Half, Int32Type, Modifier, NarrowPackType, PrmtMode};
use std::marker::PhantomData;

/// Words with a field that `bfi` replaces.
pub trait Fields: Lane {
    fn insert(self, into: Self, pos: u32, len: u32) -> Self;
}
impl Fields for u32 {
    #[inline(always)]
    fn insert(self, into: u32, pos: u32, len: u32) -> u32 {
        integer::bfi_b32(self, into, pos, len)
    }
}
impl Fields for u64 {
    #[inline(always)]
    fn insert(self, into: u64, pos: u32, len: u32) -> u64 {
        integer::bfi_b64(self, into, pos, len)
    }
}

/// Lane functions of any type that has `$Bound`.
macro_rules! generic_functions {
    ($($Op:ident $name:ident<$Bound:path>($($x:ident: $X:ident),+) = $e:expr;)*) => {$(
        pub struct $name<T>(PhantomData<T>);
        impl<T: Lane + $Bound> $Op for $name<T> {
            $( type $X = T; )+
            type D = T;
            #[inline(always)]
            fn f(_: u32, $($x: T),+) -> T { $e }
        }
    )*};
}
generic_functions! {
    Op1 Copy<Lane>(a: A) = a;
    Op1 Not<std::ops::Not<Output = T>>(a: A) = !a;
    Op2 And<std::ops::BitAnd<Output = T>>(a: A, b: B) = a & b;
    Op2 Or<std::ops::BitOr<Output = T>>(a: A, b: B) = a | b;
    Op2 Xor<std::ops::BitXor<Output = T>>(a: A, b: B) = a ^ b;
}

lane_functions! {
    Lop3 [table] (a: u32, b: u32, c: u32) -> u32 = integer::lop3(a, b, c, table as u8);
}

/// Three-way result as a set: a comparison is true when its `imm` has the bit of what is the case.
pub const LESS: u32 = 1;
pub const EQUAL: u32 = 2;
pub const GREATER: u32 = 4;
pub const UNORDERED: u32 = 8;

/// The set of a comparison.
pub const fn compare_set(cmp: Compare) -> u32 {
    match cmp {
        Compare::Eq => EQUAL,
        Compare::Ne => LESS | GREATER,
        Compare::Lt | Compare::Lo => LESS,
        Compare::Le | Compare::Ls => LESS | EQUAL,
        Compare::Gt | Compare::Hi => GREATER,
        Compare::Ge | Compare::Hs => GREATER | EQUAL,
        Compare::Equ => EQUAL | UNORDERED,
        Compare::Neu => LESS | GREATER | UNORDERED,
        Compare::Ltu => LESS | UNORDERED,
        Compare::Leu => LESS | EQUAL | UNORDERED,
        Compare::Gtu => GREATER | UNORDERED,
        Compare::Geu => GREATER | EQUAL | UNORDERED,
        Compare::Num => LESS | EQUAL | GREATER,
        Compare::Nan => UNORDERED,
    }
}

pub struct CompareInt<T>(PhantomData<T>);
impl<T: Int + Lane> Test for CompareInt<T> {
    type A = T;
    #[inline(always)]
    fn f(set: u32, a: T, b: T) -> bool {
        ((set & LESS != 0) & (a < b)) | ((set & EQUAL != 0) & (a == b)) | ((set & GREATER != 0) & (a > b))
    }
}

/// The special modes of `prmt`, by their position in the enum.
pub fn permutation(mode: u32) -> integer::Permute {
    match PrmtMode::ALL[mode as usize] {
        PrmtMode::Bytes => integer::Permute::Generic,
        PrmtMode::F4e => integer::Permute::ForwardFour,
        PrmtMode::B4e => integer::Permute::BackwardFour,
        PrmtMode::Rc8 => integer::Permute::Replicate8,
        PrmtMode::Ecl => integer::Permute::EdgeLeft,
        PrmtMode::Ecr => integer::Permute::EdgeRight,
        PrmtMode::Rc16 => integer::Permute::Replicate16,
    }
}

const SIGNED: u32 = 1;
const HIGH: u32 = 4;

/// How [`mul24`] multiplies.
pub fn product24(half: Half, ty: Int32Type) -> u32 {
    let high = if half == Half::Hi { HIGH } else { 0 };
    high | if ty == Int32Type::S32 { SIGNED } else { 0 }
}

/// The low or the high 32 of the 48 bits of a product.
#[inline(always)]
pub fn mul24(a: u32, b: u32, how: u32) -> u32 {
    let low24 = |x: u32| match how & SIGNED {
        0 => i64::from(x & 0xff_ffff),
        _ => i64::from((x << 8) as i32 >> 8),
    };
    let product = low24(a) * low24(b);
    (if how & HIGH != 0 { product >> 16 } else { product }) as u32
}

/// How [`dot4`] and [`dot2`] read their operands: bit 0: `a` is signed, bit 1: `b` is.
pub fn dot_signs(a: Int32Type, b: Int32Type) -> u32 {
    a as u32 | (b as u32) << 1
}

/// [`dot_signs`]; of `dot2` also which bytes of `b`.
pub fn dot_half(half: Half, a: Int32Type, b: Int32Type) -> u32 {
    dot_signs(a, b) | if half == Half::Hi { HIGH } else { 0 }
}

fn part(x: u32, at: u32, bits: u32, signed: bool) -> u32 {
    let x = x << (32 - at - bits);
    if signed {
        (x as i32 >> (32 - bits)) as u32
    } else {
        x >> (32 - bits)
    }
}

/// `c` and the products of `n` parts of `a` with bytes of `b`.
#[inline(always)]
fn dot(n: u32, a: u32, b: u32, c: u32, from: u32, how: u32) -> u32 {
    (0..n).fold(c, |sum, i| {
        let bits = 32 / n;
        let (x, y) = (
            part(a, bits * i, bits, how & 1 != 0),
            part(b, from + 8 * i, 8, how & 2 != 0),
        );
        sum.wrapping_add(x.wrapping_mul(y))
    })
}
#[inline(always)]
pub fn dot4(a: u32, b: u32, c: u32, how: u32) -> u32 {
    dot(4, a, b, c, 0, how)
}
#[inline(always)]
pub fn dot2(a: u32, b: u32, c: u32, how: u32) -> u32 {
    dot(2, a, b, c, if how & HIGH != 0 { 16 } else { 0 }, how)
}

/// `len` ones from bit `start` on. `clamps`: amounts above 31 are not cut to five bits.
#[inline(always)]
pub fn bit_mask(start: u32, len: u32, clamps: bool) -> u32 {
    let end = (start & 31) + (len & 31);
    let from = if clamps && start > 31 {
        0
    } else {
        u32::MAX << (start & 31)
    };
    let beyond = if end > 31 || clamps && (start > 31 || len > 31) {
        0
    } else {
        u32::MAX << (end & 31)
    };
    from & !beyond
}

/// The low `len` bits, with their sign. `clamps`: as above.
#[inline(always)]
pub fn extended(a: u32, len: u32, clamps: bool, signed: bool) -> u32 {
    let whole = len > 31 && clamps;
    let len = len & 31;
    let mask = if whole { 0 } else { u32::MAX << len };
    let negative = signed && len > 0 && a >> (len.wrapping_sub(1) & 31) & 1 == 1;
    a & !mask | if negative { mask } else { 0 }
}

/// `fns`.
pub fn nth_one(mask: u32, from: u32, nth: i32) -> u32 {
    let steps = nth.unsigned_abs();
    let one = |at: u32| mask >> at & 1 == 1;
    if from > 31 {
        return u32::MAX;
    }
    if steps == 0 {
        return if one(from) { from } else { u32::MAX };
    }
    let i = steps as usize - 1;
    let found = if nth > 0 {
        (from..32).filter(|at| one(*at)).nth(i)
    } else {
        (0..=from).rev().filter(|at| one(*at)).nth(i)
    };
    found.unwrap_or(u32::MAX)
}

/// Bits and sign that `cvt.pack` saturates to.
pub fn packed(to: NarrowPackType) -> u32 {
    match to {
        NarrowPackType::U8 => 8,
        NarrowPackType::S8 => 8 | 32,
        NarrowPackType::U4 => 4,
        NarrowPackType::S4 => 4 | 32,
        NarrowPackType::U2 => 2,
        NarrowPackType::S2 => 2 | 32,
    }
}

/// `a` and `b` saturated in front of the low bits of `c`; `how`: [`packed`].
#[inline(always)]
pub fn pack_into(a: i32, b: i32, c: u32, how: u32) -> u32 {
    let (bits, signed) = (how & 31, how & 32 != 0);
    c << (2 * bits) | saturated(a, bits, signed) << bits | saturated(b, bits, signed)
}

/// A number clamped to so many bits.
pub fn saturated(x: i32, bits: u32, signed: bool) -> u32 {
    let (low, high) = if signed {
        (-1 << (bits - 1), (1 << (bits - 1)) - 1)
    } else {
        (0, (1 << bits) - 1)
    };
    x.clamp(low, high) as u32 & ((1 << bits) - 1)
}
