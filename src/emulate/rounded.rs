//! Functions of one lane that round as they are told to, flush, saturate or clamp: [`super::arith::exact`] in shapes that rows take.
use super::arith::convert;
use super::arith::exact::{BF16, F16, F32, F64, Format, Subnormals, Value};
use super::arith::float::{self, Rounding};
use super::floats::rounding;
use super::row::Lane;
use super::uop::{Op1, Op2, Op3, Test};
use crate::ptx::modifier::{DirectedRound, FloatTest, Ftz, Modifier, NanMode, Round};
use std::marker::PhantomData;

/// How a result becomes bits: `imm` of the functions below.
#[derive(Clone, Copy)]
pub struct Finish(u32);

const FLUSHES: u32 = 4;
const SATURATES: u32 = 8;
const CLAMPS: u32 = 16;

impl Finish {
    pub fn of(rnd: Round) -> Finish {
        Finish(rnd as u32)
    }
    pub fn directed(rnd: DirectedRound) -> Finish {
        Finish::of(match rnd {
            DirectedRound::Rz => Round::Rz,
            DirectedRound::Rm => Round::Rm,
            DirectedRound::Rp => Round::Rp,
        })
    }
    pub fn flushed(self, ftz: Ftz) -> Finish {
        Finish(self.0 | if ftz == Ftz::Yes { FLUSHES } else { 0 })
    }
    pub fn saturated(self) -> Finish {
        Finish(self.0 | SATURATES)
    }
    /// `.relu`.
    pub fn clamped(self) -> Finish {
        Finish(self.0 | CLAMPS)
    }
    pub fn code(self) -> u32 {
        self.0
    }

    fn rounding(self) -> Rounding {
        rounding(self.0 & 3)
    }
    fn subnormals(self) -> Subnormals {
        if self.0 & FLUSHES != 0 {
            Subnormals::Flushed
        } else {
            Subnormals::Kept
        }
    }
    fn bits<F: Bits>(self, value: Value, operands: &[u64]) -> F {
        let format = F::FORMAT;
        let mut bits = format.round(value, self.rounding(), self.subnormals());
        if format == F64 {
            // The first NaN among the operands, made quiet.
            if let Some(nan) = operands.iter().find(|x| format.is_nan(**x)) {
                bits = nan | 1 << 51;
            }
        }
        if self.0 & SATURATES != 0 {
            bits = format.saturate(bits);
        }
        if self.0 & CLAMPS != 0 {
            bits = format.relu(bits);
        }
        F::of(bits)
    }
}

/// The bits of a float.
pub trait Bits: Lane {
    const FORMAT: Format;
    fn bits(self) -> u64;
    fn of(bits: u64) -> Self;
}

macro_rules! formats {
    ($($(#[$doc:meta])* $name:ident: $bits:ty, $format:expr;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy)]
        pub struct $name($bits);
        impl Lane for $name {
            type Raw = <$bits as Lane>::Raw;
            #[inline(always)]
            fn from_raw(raw: Self::Raw) -> $name { $name(<$bits as Lane>::from_raw(raw)) }
            #[inline(always)]
            fn into_raw(self) -> Self::Raw { self.0.into_raw() }
        }
        impl Bits for $name {
            const FORMAT: Format = $format;
            #[inline(always)]
            fn bits(self) -> u64 { u64::from(self.0) }
            #[inline(always)]
            fn of(bits: u64) -> $name { $name(bits as $bits) }
        }
    )*};
}
formats! {
    Half: u16, F16;
    Brain: u16, BF16;
    Single: u32, F32;
    Double: u64, F64;
}

macro_rules! rounded {
    ($($op:ident $name:ident |$how:ident, $($x:ident: $X:ident),+| $value:expr;)*) => {$(
        pub struct $name<F>(PhantomData<F>);
        impl<F: Bits> $op for $name<F> {
            $( type $X = F; )+
            type D = F;
            const SCALAR: bool = true;
            #[inline(always)]
            fn f(imm: u32, $($x: F),+) -> F {
                let how = Finish(imm);
                let operands = [$($x.bits()),+];
                $( let $x = F::FORMAT.value($x.bits(), how.subnormals()); )+
                let $how = how.rounding();
                let _ = $how;
                how.bits($value, &operands)
            }
        }
    )*};
}
rounded! {
    Op2 Add |how, a: A, b: B| a.add(b, how);
    Op2 Sub |how, a: A, b: B| a.add(b.negated(), how);
    Op2 Mul |how, a: A, b: B| a.times(b);
    Op2 Div |how, a: A, b: B| a.over(b);
    Op3 Fma |how, a: A, b: B, c: C| a.times(b).add(c, how);
    Op1 Rcp |how, a: A| Value::integer(false, 1).over(a);
    Op1 Sqrt |how, a: A| a.sqrt();
}

/// A function of 16-bit scalars on both halves of pairs.
pub struct Both<O>(PhantomData<O>);
macro_rules! both {
    ($($Op:ident($($x:ident: $X:ident),+);)+) => {$(
        impl<O: $Op<$($X: Lane<Raw = u32>,)+ D: Lane<Raw = u32>>> $Op for Both<O> {
            $( type $X = u32; )+
            type D = u32;
            const SCALAR: bool = O::SCALAR;
            #[inline(always)]
            fn f(imm: u32, $($x: u32),+) -> u32 {
                let half = |at: u32| O::f(imm, $(O::$X::from_raw($x >> at & 0xffff)),+).into_raw();
                half(0) | half(16) << 16
            }
        }
    )+};
}
both! {
    Op1(a: A);
    Op2(a: A, b: B);
    Op3(a: A, b: B, c: C);
}

/// Operands flushed first.
pub struct Flushed<O>(PhantomData<O>);
/// What is flushed: f16 and f32.
pub trait Flush {
    fn flush(self) -> Self;
}
impl Flush for u16 {
    #[inline(always)]
    fn flush(self) -> u16 {
        float::flush_f16(self)
    }
}
impl Flush for u32 {
    #[inline(always)]
    fn flush(self) -> u32 {
        float::flush_f32(self)
    }
}
impl<O: Op1<A: Flush>> Op1 for Flushed<O> {
    type A = O::A;
    type D = O::D;
    #[inline(always)]
    fn f(imm: u32, a: O::A) -> O::D {
        O::f(imm, a.flush())
    }
}
impl<O: Op2<A: Flush, B: Flush>> Op2 for Flushed<O> {
    type A = O::A;
    type B = O::B;
    type D = O::D;
    #[inline(always)]
    fn f(imm: u32, a: O::A, b: O::B) -> O::D {
        O::f(imm, a.flush(), b.flush())
    }
}
impl<O: Test<A: Flush>> Test for Flushed<O> {
    type A = O::A;
    #[inline(always)]
    fn f(imm: u32, a: O::A, b: O::A) -> bool {
        O::f(imm, a.flush(), b.flush())
    }
}

/// `min.xorsign.abs` and `max.xorsign.abs`; `imm`: bit 0 the greater, bit 1 NaN where an operand is, bit 2 flushes.
pub struct Xorsign<F>(PhantomData<F>);

pub fn xorsign_code(greater: bool, nan: NanMode, flushes: bool) -> u32 {
    u32::from(greater) | u32::from(nan == NanMode::Propagate) << 1 | u32::from(flushes) << 2
}

impl<F: Bits> Op2 for Xorsign<F> {
    type A = F;
    type B = F;
    type D = F;
    const SCALAR: bool = true;
    #[inline(always)]
    fn f(imm: u32, a: F, b: F) -> F {
        let format = F::FORMAT;
        let sign = 1 << (format.precision + format.exponent_bits - 1);
        let (a, b) = (a.bits(), b.bits());
        let magnitude = |x: u64| {
            let magnitude = x & (sign - 1);
            let subnormal = magnitude >> (format.precision - 1) == 0;
            if imm & 4 != 0 && subnormal { 0 } else { magnitude }
        };
        let (x, y) = (magnitude(a), magnitude(b));
        let picked = match (format.is_nan(a), format.is_nan(b)) {
            (true, true) => return F::of(format.nan),
            (true, _) | (_, true) if imm & 2 != 0 => return F::of(format.nan),
            (true, false) => y,
            (false, true) => x,
            (false, false) if imm & 1 != 0 => x.max(y),
            (false, false) => x.min(y),
        };
        F::of(picked | (a ^ b) & sign)
    }
}

/// `testp`; `imm` is the test's position in the enum.
pub struct Testp<F>(PhantomData<F>);

fn of_test(test: FloatTest) -> float::Test {
    match test {
        FloatTest::Finite => float::Test::Finite,
        FloatTest::Infinite => float::Test::Infinite,
        FloatTest::Number => float::Test::Number,
        FloatTest::NotANumber => float::Test::NotANumber,
        FloatTest::Normal => float::Test::Normal,
        FloatTest::Subnormal => float::Test::Subnormal,
    }
}
impl Test for Testp<u32> {
    type A = u32;
    #[inline(always)]
    fn f(imm: u32, a: u32, _: u32) -> bool {
        float::test_f32(of_test(FloatTest::ALL[imm as usize]), a)
    }
}
impl Test for Testp<u64> {
    type A = u64;
    #[inline(always)]
    fn f(imm: u32, a: u64, _: u64) -> bool {
        float::test_f64(of_test(FloatTest::ALL[imm as usize]), a)
    }
}

/// A comparison of the low or the high halves of pairs.
pub struct OfHalves<T, const HIGH: bool>(PhantomData<T>);
impl<T: Test<A = u16>, const HIGH: bool> Test for OfHalves<T, HIGH> {
    type A = u32;
    #[inline(always)]
    fn f(set: u32, a: u32, b: u32) -> bool {
        let half = |x: u32| if HIGH { (x >> 16) as u16 } else { x as u16 };
        T::f(set, half(a), half(b))
    }
}

/// `cvt.rn.tf32.f32` and `cvt.rz.tf32.f32`; `imm`: a [`Finish`].
pub struct F32ToTf32Rounded;
impl Op1 for F32ToTf32Rounded {
    type A = u32;
    type D = u32;
    const SCALAR: bool = true;
    #[inline(always)]
    fn f(imm: u32, a: u32) -> u32 {
        let x = convert::f32_to_tf32(a, Finish(imm).rounding());
        if imm & CLAMPS != 0 {
            F32.relu(x.into()) as u32
        } else {
            x
        }
    }
}

/// f32 to a narrower float; `imm`: a [`Finish`].
pub struct F32To<F>(PhantomData<F>);
impl<F: Bits> Op1 for F32To<F> {
    type A = u32;
    type D = F;
    const SCALAR: bool = true;
    #[inline(always)]
    fn f(imm: u32, a: u32) -> F {
        Finish(imm).bits(F32.value(a.into(), Subnormals::Kept), &[])
    }
}
