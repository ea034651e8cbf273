//! Functions of one lane: integers, moves, bits. Floats are in `floats.rs`.
use super::arith::integer;
use super::row::Lane;
use super::uop::{Op1, Op2, Op3, Test};
use crate::ptx::modifier::{Compare, Modifier, PrmtMode};
use std::marker::PhantomData;

/// Integers that instructions compute with.
pub trait Int: Lane + Ord + Default {
    type Wide: Lane;
    fn add(self, b: Self) -> Self;
    fn sub(self, b: Self) -> Self;
    fn mul(self, b: Self) -> Self;
    fn mul_hi(self, b: Self) -> Self;
    fn mul_wide(self, b: Self) -> Self::Wide;
    fn add_wide(a: Self::Wide, b: Self::Wide) -> Self::Wide;
    fn div(self, b: Self) -> Self;
    fn rem(self, b: Self) -> Self;
    fn neg(self) -> Self;
    fn abs(self) -> Self;
    fn and(self, b: Self) -> Self;
    fn or(self, b: Self) -> Self;
    fn xor(self, b: Self) -> Self;
    fn not(self) -> Self;
    /// Amounts beyond the width give 0.
    fn shl(self, n: u32) -> Self;
    /// Amounts beyond the width give 0, or the sign.
    fn shr(self, n: u32) -> Self;
    fn field(self, pos: u32, len: u32) -> Self;
    fn insert(self, into: Self, pos: u32, len: u32) -> Self;
    fn clz(self) -> u32;
    fn popc(self) -> u32;
    fn brev(self) -> Self;
}

macro_rules! ints {
    ($($t:ident, $wide:ident, $double:ident, $unsigned:ident, $signed:literal, $shl:ident, $shr:ident, $div:ident, $rem:ident,
       $field:expr, $insert:expr;)*) => {$(
        impl Int for $t {
            type Wide = $wide;
            #[inline(always)]
            fn add(self, b: $t) -> $t { self.wrapping_add(b) }
            #[inline(always)]
            fn sub(self, b: $t) -> $t { self.wrapping_sub(b) }
            #[inline(always)]
            fn mul(self, b: $t) -> $t { self.wrapping_mul(b) }
            #[inline(always)]
            fn mul_hi(self, b: $t) -> $t { ((self as $double).wrapping_mul(b as $double) >> $t::BITS) as $t }
            #[inline(always)]
            fn mul_wide(self, b: $t) -> $wide { (self as $wide).wrapping_mul(b as $wide) }
            #[inline(always)]
            fn add_wide(a: $wide, b: $wide) -> $wide { a.wrapping_add(b) }
            #[inline(always)]
            fn div(self, b: $t) -> $t { integer::$div(self, b) }
            #[inline(always)]
            fn rem(self, b: $t) -> $t { integer::$rem(self, b) }
            #[inline(always)]
            fn neg(self) -> $t { (0 as $t).wrapping_sub(self) }
            #[inline(always)]
            fn abs(self) -> $t { if $signed && self >> ($t::BITS - 1) != 0 { (0 as $t).wrapping_sub(self) } else { self } }
            #[inline(always)]
            fn and(self, b: $t) -> $t { self & b }
            #[inline(always)]
            fn or(self, b: $t) -> $t { self | b }
            #[inline(always)]
            fn xor(self, b: $t) -> $t { self ^ b }
            #[inline(always)]
            fn not(self) -> $t { !self }
            #[inline(always)]
            fn shl(self, n: u32) -> $t { integer::$shl(self as $unsigned, n) as $t }
            #[inline(always)]
            fn shr(self, n: u32) -> $t { integer::$shr(self, n) }
            #[inline(always)]
            fn field(self, pos: u32, len: u32) -> $t { let f: fn($t, u32, u32) -> $t = $field; f(self, pos, len) }
            #[inline(always)]
            fn insert(self, into: $t, pos: u32, len: u32) -> $t {
                let f: fn($unsigned, $unsigned, u32, u32) -> $unsigned = $insert;
                f(self as $unsigned, into as $unsigned, pos, len) as $t
            }
            #[inline(always)]
            fn clz(self) -> u32 { self.leading_zeros() }
            #[inline(always)]
            fn popc(self) -> u32 { self.count_ones() }
            #[inline(always)]
            fn brev(self) -> $t { self.reverse_bits() }
        }
    )*};
}
ints! {
    u32, u64, u64, u32, false, shl_b32, shr_u32, div_u32, rem_u32, integer::bfe_u32, integer::bfi_b32;
    i32, i64, i64, u32, true, shl_b32, shr_s32, div_s32, rem_s32, integer::bfe_s32, integer::bfi_b32;
    // 64-bit integers have no wider product in PTX; their own width stands in.
    u64, u64, u128, u64, false, shl_b64, shr_u64, div_u64, rem_u64, integer::bfe_u64, integer::bfi_b64;
    i64, i64, i128, u64, true, shl_b64, shr_s64, div_s64, rem_s64, integer::bfe_s64, integer::bfi_b64;
    // 16-bit integers have no bit fields: the decoder refuses them.
    u16, u32, u32, u16, false, shl_b16, shr_u16, div_u16, rem_u16, |a, _, _| a, |_, b, _, _| b;
    i16, i32, i32, u16, true, shl_b16, shr_s16, div_s16, rem_s16, |a, _, _| a, |_, b, _, _| b;
}

macro_rules! int_ops {
    ($(unary $name:ident |$a:ident| $e:expr;)*) => {$(
        pub struct $name<T>(PhantomData<T>);
        impl<T: Int> Op1 for $name<T> {
            type A = T;
            type D = T;
            #[inline(always)]
            fn f(_: u32, $a: T) -> T { $e }
        }
    )*};
    ($(binary $scalar:literal $name:ident |$a:ident, $b:ident| $e:expr;)*) => {$(
        pub struct $name<T>(PhantomData<T>);
        impl<T: Int> Op2 for $name<T> {
            type A = T;
            type B = T;
            type D = T;
            const SCALAR: bool = $scalar;
            #[inline(always)]
            fn f(_: u32, $a: T, $b: T) -> T { $e }
        }
    )*};
}
int_ops! {
    unary Copy |a| a;
    unary Neg |a| a.neg();
    unary Abs |a| a.abs();
    unary Not |a| a.not();
    unary Brev |a| a.brev();
}
int_ops! {
    binary false Add |a, b| a.add(b);
    binary false Sub |a, b| a.sub(b);
    binary false Mul |a, b| a.mul(b);
    binary false MulHi |a, b| a.mul_hi(b);
    binary true Div |a, b| a.div(b);
    binary true Rem |a, b| a.rem(b);
    binary false Min |a, b| if b < a { b } else { a };
    binary false Max |a, b| if b > a { b } else { a };
    binary false And |a, b| a.and(b);
    binary false Or |a, b| a.or(b);
    binary false Xor |a, b| a.xor(b);
}

pub struct Shl<T>(PhantomData<T>);
impl<T: Int> Op2 for Shl<T> {
    type A = T;
    type B = u32;
    type D = T;
    #[inline(always)]
    fn f(_: u32, a: T, b: u32) -> T {
        a.shl(b)
    }
}
pub struct Shr<T>(PhantomData<T>);
impl<T: Int> Op2 for Shr<T> {
    type A = T;
    type B = u32;
    type D = T;
    #[inline(always)]
    fn f(_: u32, a: T, b: u32) -> T {
        a.shr(b)
    }
}
pub struct MulWide<T>(PhantomData<T>);
impl<T: Int> Op2 for MulWide<T> {
    type A = T;
    type B = T;
    type D = T::Wide;
    #[inline(always)]
    fn f(_: u32, a: T, b: T) -> T::Wide {
        a.mul_wide(b)
    }
}
pub struct MadWide<T>(PhantomData<T>);
impl<T: Int> Op3 for MadWide<T> {
    type A = T;
    type B = T;
    type C = T::Wide;
    type D = T::Wide;
    #[inline(always)]
    fn f(_: u32, a: T, b: T, c: T::Wide) -> T::Wide {
        T::add_wide(a.mul_wide(b), c)
    }
}
pub struct MadLo<T>(PhantomData<T>);
impl<T: Int> Op3 for MadLo<T> {
    type A = T;
    type B = T;
    type C = T;
    type D = T;
    #[inline(always)]
    fn f(_: u32, a: T, b: T, c: T) -> T {
        a.mul(b).add(c)
    }
}
pub struct Bfe<T>(PhantomData<T>);
impl<T: Int> Op3 for Bfe<T> {
    type A = T;
    type B = u32;
    type C = u32;
    type D = T;
    #[inline(always)]
    fn f(_: u32, a: T, pos: u32, len: u32) -> T {
        a.field(pos, len)
    }
}
pub struct Clz<T>(PhantomData<T>);
impl<T: Int> Op1 for Clz<T> {
    type A = T;
    type D = u32;
    #[inline(always)]
    fn f(_: u32, a: T) -> u32 {
        a.clz()
    }
}
pub struct Popc<T>(PhantomData<T>);
impl<T: Int> Op1 for Popc<T> {
    type A = T;
    type D = u32;
    #[inline(always)]
    fn f(_: u32, a: T) -> u32 {
        a.popc()
    }
}
/// All ones where there is no bit.
pub struct Bfind<T>(PhantomData<T>);
impl<T: Int> Op1 for Bfind<T> {
    type A = T;
    type D = u32;
    #[inline(always)]
    fn f(_: u32, a: T) -> u32 {
        let a = if a < T::default() { a.not() } else { a };
        (8 * size_of::<T>() as u32 - 1).wrapping_sub(a.clz())
    }
}

/// `imm` is the table.
pub struct Lop3;
impl Op3 for Lop3 {
    type A = u32;
    type B = u32;
    type C = u32;
    type D = u32;
    #[inline(always)]
    fn f(table: u32, a: u32, b: u32, c: u32) -> u32 {
        integer::lop3(a, b, c, table as u8)
    }
}

pub struct Shf<const RIGHT: bool, const CLAMP: bool>;
impl<const RIGHT: bool, const CLAMP: bool> Op3 for Shf<RIGHT, CLAMP> {
    type A = u32;
    type B = u32;
    type C = u32;
    type D = u32;
    #[inline(always)]
    fn f(_: u32, a: u32, b: u32, c: u32) -> u32 {
        let mode = if CLAMP {
            integer::FunnelShift::Clamp
        } else {
            integer::FunnelShift::Wrap
        };
        if RIGHT {
            integer::shf_r(a, b, c, mode)
        } else {
            integer::shf_l(a, b, c, mode)
        }
    }
}

/// Bytes picked by nibbles.
pub struct Prmt;
/// The special modes of `prmt`; `imm` is the mode's position in the enum.
pub struct PrmtSpecial;
impl Op3 for Prmt {
    type A = u32;
    type B = u32;
    type C = u32;
    type D = u32;
    #[inline(always)]
    fn f(_: u32, a: u32, b: u32, c: u32) -> u32 {
        integer::prmt(a, b, c, integer::Permute::Generic)
    }
}
impl Op3 for PrmtSpecial {
    type A = u32;
    type B = u32;
    type C = u32;
    type D = u32;
    const SCALAR: bool = true;
    #[inline(always)]
    fn f(imm: u32, a: u32, b: u32, c: u32) -> u32 {
        let mode = match PrmtMode::ALL[imm as usize] {
            PrmtMode::Bytes => integer::Permute::Generic,
            PrmtMode::F4e => integer::Permute::ForwardFour,
            PrmtMode::B4e => integer::Permute::BackwardFour,
            PrmtMode::Rc8 => integer::Permute::Replicate8,
            PrmtMode::Ecl => integer::Permute::EdgeLeft,
            PrmtMode::Ecr => integer::Permute::EdgeRight,
            PrmtMode::Rc16 => integer::Permute::Replicate16,
        };
        integer::prmt(a, b, c, mode)
    }
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
impl<T: Int> Test for CompareInt<T> {
    type A = T;
    #[inline(always)]
    fn f(set: u32, a: T, b: T) -> bool {
        ((set & LESS != 0) & (a < b)) | ((set & EQUAL != 0) & (a == b)) | ((set & GREATER != 0) & (a > b))
    }
}

/// The shift to the left that moves the highest bit up; all ones where there is none.
pub struct BfindShift<T>(PhantomData<T>);
impl<T: Int> Op1 for BfindShift<T> {
    type A = T;
    type D = u32;
    #[inline(always)]
    fn f(_: u32, a: T) -> u32 {
        let a = if a < T::default() { a.not() } else { a };
        if a == T::default() { u32::MAX } else { a.clz() }
    }
}

pub struct MadHi<T>(PhantomData<T>);
impl<T: Int> Op3 for MadHi<T> {
    type A = T;
    type B = T;
    type C = T;
    type D = T;
    #[inline(always)]
    fn f(_: u32, a: T, b: T, c: T) -> T {
        a.mul_hi(b).add(c)
    }
}

pub struct Sad<T>(PhantomData<T>);
impl<T: Int> Op3 for Sad<T> {
    type A = T;
    type B = T;
    type C = T;
    type D = T;
    #[inline(always)]
    fn f(_: u32, a: T, b: T, c: T) -> T {
        let distance = if a < b { b.sub(a) } else { a.sub(b) };
        distance.add(c)
    }
}

pub struct Cnot<T>(PhantomData<T>);
impl<T: Int + From<u8>> Op1 for Cnot<T> {
    type A = T;
    type D = T;
    #[inline(always)]
    fn f(_: u32, a: T) -> T {
        T::from(u8::from(a == T::default()))
    }
}

/// The low 24 bits of a number, sign-extended where `SIGNED`.
fn low24(x: u32, signed: bool) -> i64 {
    if signed {
        i64::from((x << 8) as i32 >> 8)
    } else {
        i64::from(x & 0xff_ffff)
    }
}

/// The low or the high 32 of the 48 bits of a product.
pub struct Mul24<const SIGNED: bool, const HIGH: bool>;
impl<const SIGNED: bool, const HIGH: bool> Op2 for Mul24<SIGNED, HIGH> {
    type A = u32;
    type B = u32;
    type D = u32;
    #[inline(always)]
    fn f(_: u32, a: u32, b: u32) -> u32 {
        let product = low24(a, SIGNED) * low24(b, SIGNED);
        (if HIGH { product >> 16 } else { product }) as u32
    }
}
pub struct Mad24<const SIGNED: bool, const HIGH: bool>;
impl<const SIGNED: bool, const HIGH: bool> Op3 for Mad24<SIGNED, HIGH> {
    type A = u32;
    type B = u32;
    type C = u32;
    type D = u32;
    #[inline(always)]
    fn f(imm: u32, a: u32, b: u32, c: u32) -> u32 {
        Mul24::<SIGNED, HIGH>::f(imm, a, b).wrapping_add(c)
    }
}

/// Whether an operand of `dp4a` or `dp2a` is signed, by bit 0 (`a`) and bit 1 (`b`) of `imm`; bit 2: the high bytes of `b`.
pub const DOT_SIGNED_A: u32 = 1;
pub const DOT_SIGNED_B: u32 = 2;
pub const DOT_HIGH: u32 = 4;

fn part(x: u32, at: u32, bits: u32, signed: bool) -> u32 {
    let x = x << (32 - at - bits);
    if signed {
        (x as i32 >> (32 - bits)) as u32
    } else {
        x >> (32 - bits)
    }
}

macro_rules! lane_integers {
    ($($(#[$doc:meta])* $name:ident $imm:ident ($a:ident: $A:ty, $b:ident: $B:ty $(, $c:ident: $C:ty)?) -> $d:ty = $e:expr;)*) => {$(
        $(#[$doc])*
        pub struct $name;
        lane_integers!(@ $name $imm ($a: $A, $b: $B $(, $c: $C)?) $d, $e);
    )*};
    (@ $name:ident $imm:ident ($a:ident: $A:ty, $b:ident: $B:ty) $d:ty, $e:expr) => {
        impl Op2 for $name {
            type A = $A;
            type B = $B;
            type D = $d;
            #[inline(always)]
            fn f($imm: u32, $a: $A, $b: $B) -> $d { let _ = $imm; $e }
        }
    };
    (@ $name:ident $imm:ident ($a:ident: $A:ty, $b:ident: $B:ty, $c:ident: $C:ty) $d:ty, $e:expr) => {
        impl Op3 for $name {
            type A = $A;
            type B = $B;
            type C = $C;
            type D = $d;
            #[inline(always)]
            fn f($imm: u32, $a: $A, $b: $B, $c: $C) -> $d { let _ = $imm; $e }
        }
    };
}
lane_integers! {
    AddSat imm (a: i32, b: i32) -> i32 = a.saturating_add(b);
    SubSat imm (a: i32, b: i32) -> i32 = a.saturating_sub(b);
    MadHiSat imm (a: i32, b: i32, c: i32) -> i32 = a.mul_hi(b).saturating_add(c);
    Mad24HiSat imm (a: u32, b: u32, c: i32) -> i32 = (Mul24::<true, true>::f(0, a, b) as i32).saturating_add(c);
    Dp4a imm (a: u32, b: u32, c: u32) -> u32 = (0..4).fold(c, |sum, i| {
        let (x, y) = (part(a, 8 * i, 8, imm & DOT_SIGNED_A != 0), part(b, 8 * i, 8, imm & DOT_SIGNED_B != 0));
        sum.wrapping_add(x.wrapping_mul(y))
    });
    Dp2a imm (a: u32, b: u32, c: u32) -> u32 = (0..2).fold(c, |sum, i| {
        let at = 8 * i + if imm & DOT_HIGH != 0 { 16 } else { 0 };
        let (x, y) = (part(a, 16 * i, 16, imm & DOT_SIGNED_A != 0), part(b, at, 8, imm & DOT_SIGNED_B != 0));
        sum.wrapping_add(x.wrapping_mul(y))
    });
    /// `imm` 1: amounts above 31 are not cut to five bits.
    Bmsk imm (a: u32, b: u32) -> u32 = {
        let clamps = imm != 0;
        let (start, end) = (a & 31, (a & 31) + (b & 31));
        let from = if clamps && a > 31 { 0 } else { u32::MAX << start };
        let beyond = if end > 31 || clamps && (a > 31 || b > 31) { 0 } else { u32::MAX << end };
        from & !beyond
    };
    /// `imm`: bit 0 as above, bit 1 signed.
    Szext imm (a: u32, b: u32) -> u32 = {
        let whole = b > 31 && imm & 1 != 0;
        let len = b & 31;
        let mask = if whole { 0 } else { u32::MAX << len };
        let negative = imm & 2 != 0 && len > 0 && a >> (len.wrapping_sub(1) & 31) & 1 == 1;
        a & !mask | if negative { mask } else { 0 }
    };
    Fns imm (mask: u32, base: u32, offset: i32) -> u32 = {
        let steps = offset.unsigned_abs();
        let one = |at: u32| mask >> at & 1 == 1;
        if base > 31 {
            u32::MAX
        } else if steps == 0 {
            if one(base) { base } else { u32::MAX }
        } else {
            let nth = steps as usize - 1;
            let found = if offset > 0 {
                (base..32).filter(|at| one(*at)).nth(nth)
            } else {
                (0..=base).rev().filter(|at| one(*at)).nth(nth)
            };
            found.unwrap_or(u32::MAX)
        }
    };
    /// `imm` 1: signed.
    PackWords imm (a: i32, b: i32) -> u32 = {
        let one = |x| saturated(x, 16, imm != 0);
        one(a) << 16 | one(b)
    };
    /// `imm`: the bits, and 32 where they are signed.
    PackInto imm (a: i32, b: i32, c: u32) -> u32 = {
        let (bits, signed) = (imm & 31, imm & 32 != 0);
        c << (2 * bits) | saturated(a, bits, signed) << bits | saturated(b, bits, signed)
    };
}

/// A number clamped to so many bits.
fn saturated(x: i32, bits: u32, signed: bool) -> u32 {
    let (low, high) = if signed {
        (-1 << (bits - 1), (1 << (bits - 1)) - 1)
    } else {
        (0, (1 << bits) - 1)
    };
    x.clamp(low, high) as u32 & ((1 << bits) - 1)
}

/// `imm` 1: a result below zero is zero.
pub struct Clamped<O>(PhantomData<O>);
impl<T: Int, O: Op2<A = T, B = T, D = T>> Op2 for Clamped<O> {
    type A = T;
    type B = T;
    type D = T;
    #[inline(always)]
    fn f(imm: u32, a: T, b: T) -> T {
        let x = O::f(0, a, b);
        if imm != 0 && x < T::default() { T::default() } else { x }
    }
}

/// `c ≥ 0 ? a : b`.
pub struct Slct<T>(PhantomData<T>);
impl<T: Lane> Op3 for Slct<T> {
    type A = T;
    type B = T;
    type C = i32;
    type D = T;
    #[inline(always)]
    fn f(_: u32, a: T, b: T, c: i32) -> T {
        if c >= 0 { a } else { b }
    }
}
/// The same of a float; `imm` 1: flushed.
pub struct SlctFloat<T>(PhantomData<T>);
impl<T: Lane> Op3 for SlctFloat<T> {
    type A = T;
    type B = T;
    type C = u32;
    type D = T;
    #[inline(always)]
    fn f(imm: u32, a: T, b: T, c: u32) -> T {
        let c = if imm != 0 { super::arith::float::flush_f32(c) } else { c };
        if f32::from_bits(c) >= 0.0 { a } else { b }
    }
}
