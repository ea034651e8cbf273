//! The instruction table, expanded for execution: [`Decoder::instruction`].
//!
//! A row's fields reach its `computes` clause, or the method with its name, as what the machine knows: `def`, `reg` and `src` are rows (or
//! predicates) of type `u16`, `addr` is an [`At`](super::decoder::At), lists are a [`List`](super::decoder::List); modifiers, numbers and
//! parameters are themselves.
use super::Hooks;
use super::decoder::{Computed, Decoder, NONE, no};
use crate::emulate::arith::float::{self, flush_f32};
use crate::emulate::arith::{convert, special};
use crate::emulate::floats::{f16_of_fp8, fp8_of_f16, fp8_of_f32};
use crate::emulate::global::SHARED_WINDOW;
use crate::emulate::ops::*;
use crate::emulate::rounded::Both;
use crate::emulate::uop::{Each, Each2, Each3, Op1, Op2, Op3, lane_function, pick};
use crate::error::Result;
use crate::ptx::Inst;
use crate::ptx::flat::Reg;
use crate::ptx::inst::wide_slot;
use crate::ptx::integer::{self, Int, by};
use crate::ptx::modifier::*;
use crate::ptx::operand::Slot;

/// A function of each lane's operands, as [`Computed`]: `lanes!(|a: i32, b: u32| -> i32 { … })`. The parameters are fields of the row, at
/// most three. Behind it may stand `, how = e`: the function's `how`, a `u32`, is `e`, which modifiers say. In front of it may stand
/// * `IntType ty,`: types that are left out are `T`, the one that modifier `ty` stands for ([`by`]);
/// * `scalar`: it is evaluated for lanes that execute, one at a time;
/// * `in Both`: the function of functions `Both` makes of it is meant.
macro_rules! lanes {
    (@type) => { T };
    (@type $X:ty) => { $X };
    (@each $F:ty, $o:expr, $a:ident) => { Computed { pick: pick::<Each<$F>, H>, operands: $o.a($a) } };
    (@each $F:ty, $o:expr, $a:ident $b:ident) => { Computed { pick: pick::<Each2<$F>, H>, operands: $o.a($a).b($b) } };
    (@each $F:ty, $o:expr, $a:ident $b:ident $c:ident) => { Computed { pick: pick::<Each3<$F>, H>, operands: $o.a($a).b($b).c($c) } };
    (@ $scalar:literal, $F:ty, |$($x:ident $(: $X:ty)?),+| $(-> $D:ty)? $body:block $(, $how:ident = $e:expr)?) => {{
        struct Lane;
        lane_function!(Lane, $scalar, ($($how)?), ($($x: lanes!(@type $($X)?)),+), lanes!(@type $($D)?), $body);
        lanes!(@each $F, NONE$(.imm($e as i32))?, $($x)+)
    }};
    ($types:ident $ty:ident, $($f:tt)+) => { by!($types $ty, T => lanes!($($f)+)) };
    (scalar $($f:tt)+) => { lanes!(@ true, Lane, $($f)+) };
    (in $Both:ident $($f:tt)+) => { lanes!(@ false, $Both<Lane>, $($f)+) };
    ($($f:tt)+) => { lanes!(@ false, Lane, $($f)+) };
}

/// Operands of an instruction become rows.
macro_rules! operand {
    (def $slot:tt, $cx:ident, $e:ident) => {
        let $e = $cx.reg($e);
    };
    (reg $slot:tt, $cx:ident, $e:ident) => {
        let $e = $cx.reg($e);
    };
    (src [$slot:expr], $cx:ident, $e:ident) => {
        let $e = $cx.source($e, $slot);
    };
    (addr $slot:tt, $cx:ident, $e:ident) => {
        let $e = ($cx.reg(&$e.base), $e.offset);
    };
    (defs $slot:tt, $cx:ident, $e:ident) => {
        let $e = $cx.regs($e);
    };
    (srcs [$slot:expr], $cx:ident, $e:ident) => {
        let $e = $cx.sources($e, $slot);
    };
    (tied $slot:tt, $cx:ident, $e:ident) => {
        let $e = $cx.regs(&$e.output);
    };
    ($kind:ident $t:tt, $cx:ident, $e:ident) => {};
}
/// The other fields are themselves. Slots of operands depend on them: this comes second.
macro_rules! setting {
    (modifier $e:ident) => {
        let $e = *$e;
    };
    (number $e:ident) => {
        let $e = *$e;
    };
    (param $e:ident) => {
        let $e = *$e;
    };
    ($kind:ident $e:ident) => {};
}
/// What a row that computes defines.
macro_rules! defined {
    (def $e:ident, $d:ident) => {
        let $d = $e;
    };
    ($kind:ident $e:ident, $d:ident) => {};
}
macro_rules! execute {
    ($cx:ident, $method:ident, ($($kind:ident $field:ident),*), computes [$computed:expr]) => {{
        let Computed { pick, operands } = $computed;
        $( defined!($kind $field, d); )*
        $cx.emit_fn(pick($cx.tier), operands.d(d));
    }};
    ($cx:ident, $method:ident, ($($kind:ident $field:ident),*),) => { $cx.$method($($field),*).into_result()? };
}

/// What methods of rows return.
trait Decoded {
    fn into_result(self) -> Result<()>;
}
impl Decoded for () {
    fn into_result(self) -> Result<()> {
        Ok(())
    }
}
impl Decoded for Result<()> {
    fn into_result(self) -> Result<()> {
        self
    }
}

macro_rules! decode_rows {
    ($(
        $(#[doc = $doc:literal])*
        $method:ident $variant:ident { $( $kind:ident $field:ident : $arg:tt );* $(;)? }
            $syntax:literal, requires $requires:tt, effects $effects:tt $(, legal $legal:tt)? $(, computes $computes:tt)?;
    )*) => {
        impl<H: Hooks> Decoder<'_, H> {
            /// Decodes an instruction. A row that says nothing of what it computes has a method with its name.
            #[allow(unused_variables)]
            pub fn instruction(&mut self, inst: &Inst<Reg>) -> Result<()> {
                match inst {
                    $( Inst::$variant { $( $field ),* } => {
                        $( operand!($kind $arg, self, $field); )*
                        $( setting!($kind $field); )*
                        execute!(self, $method, ($($kind $field),*), $(computes $computes)?);
                    } )*
                }
                Ok(())
            }
        }
    };
}
crate::instruction_table!(decode_rows);
