//! Predicates: comparisons, what combines them, and logic, which is of predicates too.
use super::Hooks;
use super::decoder::{Decoder, NONE};
use crate::emulate::control::*;
use crate::emulate::floats::*;
use crate::emulate::ops::*;
use crate::emulate::rounded::{Flushed, OfHalves, Testp};
use crate::emulate::uop::{EachTest, Test};
use crate::ptx::integer::by;
use crate::ptx::modifier::*;

impl<H: Hooks> Decoder<'_, H> {
    fn test<T: Test>(&mut self, d: u16, a: u16, b: u16, imm: u32) {
        self.emit::<EachTest<T>>(NONE.d(d).a(a).b(b).imm(imm as i32));
    }

    /// A comparison into a predicate.
    fn compare(&mut self, cmp: Compare, ftz: Ftz, ty: CompareType, d: u16, a: u16, b: u16) {
        let set = compare_set(cmp);
        match ty {
            CompareType::U16 | CompareType::B16 => self.test::<CompareInt<u16>>(d, a, b, set),
            CompareType::S16 => self.test::<CompareInt<i16>>(d, a, b, set),
            CompareType::U32 | CompareType::B32 => self.test::<CompareInt<u32>>(d, a, b, set),
            CompareType::S32 => self.test::<CompareInt<i32>>(d, a, b, set),
            CompareType::U64 | CompareType::B64 => self.test::<CompareInt<u64>>(d, a, b, set),
            CompareType::S64 => self.test::<CompareInt<i64>>(d, a, b, set),
            CompareType::F16 if ftz == Ftz::Yes => self.test::<Flushed<CompareF16>>(d, a, b, set),
            CompareType::F16 => self.test::<CompareF16>(d, a, b, set),
            CompareType::BF16 => self.test::<CompareBF16>(d, a, b, set),
            CompareType::F32 if ftz == Ftz::Yes => self.test::<Flushed<CompareF32>>(d, a, b, set),
            CompareType::F32 => self.test::<CompareF32>(d, a, b, set),
            CompareType::F64 => self.test::<CompareF64>(d, a, b, set),
        }
    }

    /// The same into a predicate for what is in between.
    fn found(&mut self, cmp: Compare, ftz: Ftz, ty: CompareType, a: u16, b: u16) -> u16 {
        let found = self.spare_predicate();
        self.compare(cmp, ftz, ty, found, a, b);
        found
    }

    /// `d`, and `e` of the negation: the predicate `found`, combined with another one.
    fn combine(&mut self, found: u16, with: Option<(BoolOp, Inverted, u16)>, d: u16, e: Option<u16>) {
        let o = NONE.a(found).b(with.map_or(0, |(_, _, c)| c));
        let code = |negated| combine_code(with.map(|(op, inverted, _)| (op, inverted)), negated);
        // `d` may be the other predicate.
        let kept = found + 1;
        if e.is_some() {
            self.emit::<CombinePredicate>(o.d(kept).imm(code(true)));
        }
        self.emit::<CombinePredicate>(o.d(d).imm(code(false)));
        if let Some(e) = e {
            self.emit::<MovePredicate>(NONE.d(e).a(kept));
        }
    }

    /// A predicate as a number.
    fn truth(&mut self, to: SetType, d: u16, found: u16) {
        let one = match to {
            SetType::U32 | SetType::S32 => u32::MAX,
            SetType::F32 => 1f32.to_bits(),
        };
        let (a, b) = (self.constant(one.into(), false), self.constant(0, false));
        self.emit::<Select<u32>>(NONE.d(d).a(a).b(b).c(found));
    }

    pub fn setp(&mut self, cmp: Compare, ftz: Ftz, ty: CompareType, d: u16, a: u16, b: u16) {
        self.compare(cmp, ftz, ty, d, a, b);
    }
    pub fn setp_bool(
        &mut self,
        cmp: Compare,
        op: BoolOp,
        ftz: Ftz,
        ty: CompareType,
        d: u16,
        a: u16,
        b: u16,
        negated: Inverted,
        c: u16,
    ) {
        let found = self.found(cmp, ftz, ty, a, b);
        self.combine(found, Some((op, negated, c)), d, None);
    }
    pub fn setp_pair(&mut self, cmp: Compare, ftz: Ftz, ty: CompareType, d: u16, e: u16, a: u16, b: u16) {
        let found = self.found(cmp, ftz, ty, a, b);
        self.combine(found, None, d, Some(e));
    }
    pub fn setp_bool_pair(
        &mut self,
        cmp: Compare,
        op: BoolOp,
        ftz: Ftz,
        ty: CompareType,
        d: u16,
        e: u16,
        a: u16,
        b: u16,
        negated: Inverted,
        c: u16,
    ) {
        let found = self.found(cmp, ftz, ty, a, b);
        self.combine(found, Some((op, negated, c)), d, Some(e));
    }
    pub fn setp_halves(&mut self, cmp: Compare, ftz: Ftz, ty: Pair16, d: u16, e: u16, a: u16, b: u16) {
        let set = compare_set(cmp);
        macro_rules! halves {
            ($T:ty) => {{
                self.test::<OfHalves<$T, false>>(d, a, b, set);
                self.test::<OfHalves<$T, true>>(e, a, b, set);
            }};
        }
        match ty {
            Pair16::F16x2 if ftz == Ftz::Yes => halves!(Flushed<CompareF16>),
            Pair16::F16x2 => halves!(CompareF16),
            Pair16::BF16x2 => halves!(CompareBF16),
        }
    }
    pub fn set(&mut self, cmp: Compare, ftz: Ftz, to: SetType, ty: CompareType, d: u16, a: u16, b: u16) {
        let found = self.found(cmp, ftz, ty, a, b);
        self.truth(to, d, found);
    }
    pub fn set_bool(
        &mut self,
        cmp: Compare,
        op: BoolOp,
        ftz: Ftz,
        to: SetType,
        ty: CompareType,
        d: u16,
        a: u16,
        b: u16,
        negated: Inverted,
        c: u16,
    ) {
        let found = self.found(cmp, ftz, ty, a, b);
        self.combine(found, Some((op, negated, c)), found, None);
        self.truth(to, d, found);
    }
    pub fn testp(&mut self, test: FloatTest, ty: WideFloatType, d: u16, a: u16) {
        by!(row ty, T => self.test::<Testp<T>>(d, a, a, test as u32));
    }
    pub fn lop3_pred(
        &mut self,
        op: OrAnd,
        d: u16,
        p: u16,
        a: u16,
        b: u16,
        c: u16,
        lut: i64,
        negated: Inverted,
        q: u16,
    ) {
        self.op3::<Lop3>(d, a, b, c, lut as u32);
        let (found, zero) = (self.spare_predicate(), self.constant(0, false));
        self.test::<CompareInt<u32>>(found, d, zero, compare_set(Compare::Ne));
        let op = match op {
            OrAnd::Or => BoolOp::Or,
            OrAnd::And => BoolOp::And,
        };
        self.combine(found, Some((op, negated, q)), p, None);
    }

    pub fn logic(&mut self, op: Logic, ty: LogicType, d: u16, a: u16, b: u16) {
        if ty == LogicType::Pred {
            return self.emit::<LogicPredicate>(NONE.d(d).a(a).b(b).imm(op as i32));
        }
        by!(row ty, T => match op {
            Logic::And => self.op2::<And<T>>(d, a, b, 0),
            Logic::Or => self.op2::<Or<T>>(d, a, b, 0),
            Logic::Xor => self.op2::<Xor<T>>(d, a, b, 0),
        });
    }
    pub fn not(&mut self, ty: LogicType, d: u16, a: u16) {
        match ty {
            LogicType::Pred => self.emit::<LogicPredicate>(NONE.d(d).a(a).b(a).imm(3)),
            LogicType::B16 => self.op1::<Not<u16>>(d, a, 0),
            LogicType::B32 => self.op1::<Not<u32>>(d, a, 0),
            LogicType::B64 => self.op1::<Not<u64>>(d, a, 0),
        }
    }
}
