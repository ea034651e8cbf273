//! Micro-operations: what an instruction becomes, and the two compilations of each body.
//!
//! A [`Uop`] holds a function pointer and operands. Bodies are types that implement [`Body`]; [`pick`] compiles one for
//! plain x86-64 (or any host) and one for AVX2 with FMA, and takes what the host has. The loops over lanes are plain Rust:
//! the compiler vectorises them.
use super::check::Hooks;
use super::machine::Machine;
use super::row::Lane;
use super::warp::{Warp, lanes};
use crate::error::Error;
use std::marker::PhantomData;

/// What a micro-op does to its warp.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Flow {
    /// On to the next.
    Next,
    /// `Warp::pc` says where.
    Jump,
    /// It must be tried again: the warp is queued where `Warp::wait` says.
    Block,
    /// Done, but the others go first.
    Yield,
    /// The warp has ended.
    Exit,
    /// `Machine::fault` says what is wrong.
    Fault,
}

/// What a body does, or what is wrong.
pub type Step = Result<Flow, Box<Error>>;

/// Stops the run.
#[cold]
pub fn fail<T>(error: Error) -> Result<T, Box<Error>> {
    Err(Box::new(error))
}

/// The signature of a compiled body.
pub type OpFn<H> = for<'m> unsafe fn(&mut Warp, &mut Machine<'m, H>, &Uop<H>) -> Flow;

/// A micro-operation. What the operands mean is the body's business.
pub struct Uop<H: Hooks> {
    pub run: OpFn<H>,
    pub d: u16,
    pub a: u16,
    pub b: u16,
    pub c: u16,
    pub imm: i32,
    /// Further data, or an index into one of the program's side tables.
    pub aux: u32,
}

impl<H: Hooks> Clone for Uop<H> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<H: Hooks> Copy for Uop<H> {}

/// What a micro-op does.
pub trait Body<H: Hooks>: 'static {
    fn run(w: &mut Warp, m: &mut Machine<'_, H>, u: &Uop<H>) -> Step;
}

fn plain<B: Body<H>, H: Hooks>(w: &mut Warp, m: &mut Machine<'_, H>, u: &Uop<H>) -> Flow {
    let step = B::run(w, m, u);
    m.flow(step)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,lzcnt,popcnt")]
fn avx2<B: Body<H>, H: Hooks>(w: &mut Warp, m: &mut Machine<'_, H>, u: &Uop<H>) -> Flow {
    let step = B::run(w, m, u);
    m.flow(step)
}

/// Which compilation of the bodies runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Tier {
    Plain,
    Avx2,
}

impl Tier {
    /// The best that this host has.
    pub fn of_host() -> Tier {
        #[cfg(target_arch = "x86_64")]
        if ["avx2", "fma", "f16c", "bmi1", "bmi2", "lzcnt", "popcnt"]
            .into_iter()
            .all(has)
        {
            return Tier::Avx2;
        }
        Tier::Plain
    }
}

#[cfg(target_arch = "x86_64")]
fn has(feature: &str) -> bool {
    match feature {
        "avx2" => is_x86_feature_detected!("avx2"),
        "fma" => is_x86_feature_detected!("fma"),
        "f16c" => is_x86_feature_detected!("f16c"),
        "bmi1" => is_x86_feature_detected!("bmi1"),
        "bmi2" => is_x86_feature_detected!("bmi2"),
        "lzcnt" => is_x86_feature_detected!("lzcnt"),
        _ => is_x86_feature_detected!("popcnt"),
    }
}

/// The compilation of a body for a tier.
pub fn pick<B: Body<H>, H: Hooks>(tier: Tier) -> OpFn<H> {
    match tier {
        Tier::Plain => plain::<B, H>,
        #[cfg(target_arch = "x86_64")]
        Tier::Avx2 => avx2::<B, H>,
        #[cfg(not(target_arch = "x86_64"))]
        Tier::Avx2 => plain::<B, H>,
    }
}

/// A function of one lane's operands. `imm` is the micro-op's.
pub trait Op1: 'static {
    type A: Lane;
    type D: Lane;
    /// Evaluated for executing lanes only, one at a time.
    const SCALAR: bool = false;
    fn f(imm: u32, a: Self::A) -> Self::D;
}
pub trait Op2: 'static {
    type A: Lane;
    type B: Lane;
    type D: Lane;
    const SCALAR: bool = false;
    fn f(imm: u32, a: Self::A, b: Self::B) -> Self::D;
}
pub trait Op3: 'static {
    type A: Lane;
    type B: Lane;
    type C: Lane;
    type D: Lane;
    const SCALAR: bool = false;
    fn f(imm: u32, a: Self::A, b: Self::B, c: Self::C) -> Self::D;
}
/// A comparison.
pub trait Test: 'static {
    type A: Lane;
    fn f(imm: u32, a: Self::A, b: Self::A) -> bool;
}

/// A lane function as a type: whether it is scalar, the name of `imm` if it looks at it, parameters, result.
macro_rules! lane_function {
    ($name:ty, $scalar:literal, ($($imm:ident)?), ($a:ident: $A:ty), $d:ty, $e:expr) => {
        lane_function!(@ Op1 $name, $scalar, ($($imm)?), ($a: $A), (A = $A,), $d, $e);
    };
    ($name:ty, $scalar:literal, ($($imm:ident)?), ($a:ident: $A:ty, $b:ident: $B:ty), $d:ty, $e:expr) => {
        lane_function!(@ Op2 $name, $scalar, ($($imm)?), ($a: $A, $b: $B), (A = $A, B = $B,), $d, $e);
    };
    ($name:ty, $scalar:literal, ($($imm:ident)?), ($a:ident: $A:ty, $b:ident: $B:ty, $c:ident: $C:ty), $d:ty, $e:expr) => {
        lane_function!(@ Op3 $name, $scalar, ($($imm)?), ($a: $A, $b: $B, $c: $C), (A = $A, B = $B, C = $C,), $d, $e);
    };
    (@ $Op:ident $name:ty, $scalar:literal, (), $x:tt, $X:tt, $d:ty, $e:expr) => {
        lane_function!(@ $Op $name, $scalar, (_imm), $x, $X, $d, $e);
    };
    (@ $Op:ident $name:ty, $scalar:literal, ($imm:ident), ($($x:ident: $t:ty),+), ($($X:ident = $T:ty,)+), $d:ty, $e:expr) => {
        impl $Op for $name {
            $( type $X = $T; )+
            type D = $d;
            const SCALAR: bool = $scalar;
            #[inline(always)]
            fn f($imm: u32, $($x: $t),+) -> $d { $e }
        }
    };
}
pub(super) use lane_function;

/// Lane functions with names: `Name (a: A, …) -> D = e;`, `scalar`: evaluated for executing lanes only, `[imm]`: the micro-op's.
macro_rules! lane_functions {
    (scalar $($(#[$doc:meta])* $name:ident $([$imm:ident])? ($($x:ident: $t:ty),+) -> $d:ty = $e:expr;)*) => {$(
        $(#[$doc])*
        pub struct $name;
        lane_function!($name, true, ($($imm)?), ($($x: $t),+), $d, $e);
    )*};
    ($($(#[$doc:meta])* $name:ident $([$imm:ident])? ($($x:ident: $t:ty),+) -> $d:ty = $e:expr;)*) => {$(
        $(#[$doc])*
        pub struct $name;
        lane_function!($name, false, ($($imm)?), ($($x: $t),+), $d, $e);
    )*};
}
pub(super) use lane_functions;

/// Bodies of lane functions.
pub struct Each<O>(PhantomData<O>);
pub struct Each2<O>(PhantomData<O>);
pub struct Each3<O>(PhantomData<O>);
pub struct EachTest<O>(PhantomData<O>);

/// `d = f(a)` of operands, `$n` of them.
macro_rules! each {
    ($body:ident, $op:ident, $($x:ident: $X:ident),+) => {
        impl<O: $op, H: Hooks> Body<H> for $body<O> {
            #[inline(always)]
            fn run(w: &mut Warp, _: &mut Machine<'_, H>, u: &Uop<H>) -> Step {
                $( let $x = w.read::<O::$X>(u.$x); )+
                let mut out = [<<O::D as Lane>::Raw>::default(); 32];
                let imm = u.imm as u32;
                if O::SCALAR {
                    for i in lanes(w.exec) {
                        out[i] = O::f(imm, $( O::$X::from_raw($x[i]) ),+).into_raw();
                    }
                } else {
                    for i in 0..32 {
                        out[i] = O::f(imm, $( O::$X::from_raw($x[i]) ),+).into_raw();
                    }
                }
                w.write::<O::D>(u.d, out);
                Ok(Flow::Next)
            }
        }
    };
}
each!(Each, Op1, a: A);
each!(Each2, Op2, a: A, b: B);
each!(Each3, Op3, a: A, b: B, c: C);

impl<O: Test, H: Hooks> Body<H> for EachTest<O> {
    #[inline(always)]
    fn run(w: &mut Warp, _: &mut Machine<'_, H>, u: &Uop<H>) -> Step {
        let (a, b) = (w.read::<O::A>(u.a), w.read::<O::A>(u.b));
        let mut is = [false; 32];
        for i in 0..32 {
            is[i] = O::f(u.imm as u32, O::A::from_raw(a[i]), O::A::from_raw(b[i]));
        }
        w.write_predicate(u.d, pack(&is));
        Ok(Flow::Next)
    }
}

/// Lane i into bit i.
#[inline(always)]
fn pack(is: &[bool; 32]) -> u32 {
    let mut bits = 0;
    for (j, eight) in is.chunks_exact(8).enumerate() {
        let mut word = 0u64;
        for (i, lane) in eight.iter().enumerate() {
            word |= u64::from(*lane) << (8 * i);
        }
        // Gathers bit 0 of the eight bytes into the top byte.
        bits |= ((word.wrapping_mul(0x0102_0408_1020_4080) >> 56) as u32) << (8 * j);
    }
    bits
}
