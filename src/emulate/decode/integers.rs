//! Integers: what is no function of three operands.
use super::Hooks;
use super::decoder::{Decoder, NONE};
use crate::emulate::carry::{CarryProduct, CarrySum};
use crate::emulate::control::Insert;
use crate::ptx::integer::by;
use crate::ptx::modifier::*;

impl<H: Hooks> Decoder<'_, H> {
    pub fn carry_op(&mut self, op: CarryOp, ty: IntType, d: u16, a: u16, b: u16) {
        by!(row ty, T => self.emit::<CarrySum<T>>(NONE.d(d).a(a).b(b).imm(op as i32)));
    }
    pub fn carry_mad(&mut self, op: CarryMad, ty: IntType, d: u16, a: u16, b: u16, c: u16) {
        let o = NONE.d(d).a(a).b(b).c(c).imm(op as i32);
        by!(row ty, T => self.emit::<CarryProduct<T>>(o.aux(ty.is_signed().into())));
    }
    pub fn bfi(&mut self, ty: WordType, d: u16, a: u16, b: u16, pos: u16, len: u16) {
        by!(WordType ty, T => self.emit::<Insert<T>>(NONE.d(d).a(a).b(b).c(pos).aux(len.into())));
    }
}
