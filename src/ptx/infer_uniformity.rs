//! Which values are equal in all lanes of a warp, threads of a warpgroup or of the CTA: a greatest fixpoint.
//!
//! Everything starts as equal everywhere. Where that does not follow from an instruction (loads, shuffles), lowering's claim counts.
use super::fixpoint::{self, Analysis};
use super::inst::Inst;
use super::modifier::Carries;
use super::ssa::*;
use super::uniformity::{Derived, carries, derive};
use cranelift_entity::SecondaryMap;

struct Inference<'a> {
    ssa: &'a Ssa,
    uniform: SecondaryMap<Value, Uniform>,
    /// Of the carry that is in the condition code.
    carry: Uniform,
}

pub fn run(ssa: &mut Ssa) {
    let Some(body) = ssa.body else { return };
    let mut inference = Inference {
        ssa,
        uniform: SecondaryMap::with_default(Uniform::Cta),
        carry: Uniform::Thread,
    };
    fixpoint::region(ssa, body, &mut inference);
    let uniform = inference.uniform;
    for (v, data) in ssa.values.iter_mut() {
        data.uniform = uniform[v];
    }
}

impl Inference<'_> {
    /// What a sum with carries gives is as uniform as its operands, the carry among them.
    fn with_carry(&mut self, inst: &Inst<Value>, carries: Carries) -> Uniform {
        let mut of = if carries.takes { self.carry } else { Uniform::Cta };
        inst.for_each_use(|v, _| of = of.min(self.uniform[v]));
        if carries.leaves {
            self.carry = of;
        }
        of
    }
}

impl Analysis for Inference<'_> {
    type Fact = Uniform;
    fn fact(&self, v: Value) -> Uniform {
        self.uniform[v]
    }
    fn meet(a: Uniform, b: Uniform) -> Uniform {
        a.min(b)
    }
    fn lower(&mut self, v: Value, to: Uniform) -> bool {
        let news = to < self.uniform[v];
        if news {
            self.uniform[v] = to;
        }
        news
    }
    fn inst(&mut self, _: Option<(Value, Negated)>, inst: &Inst<Value>) {
        let derived = match carries(inst) {
            Some(carries) => Derived::Known(self.with_carry(inst, carries)),
            None => derive(inst, |v| self.uniform[v]),
        };
        inst.for_each_def(|d, _| {
            let to = match derived {
                Derived::Known(u) => u,
                Derived::Claim(u) => u.max(self.ssa.values[d].uniform),
            };
            self.lower(d, to);
        });
    }
}

#[cfg(test)]
mod tests {
    use super::super::build::Builder;
    use super::super::modifier::*;
    use super::super::operand::*;
    use super::*;

    #[test]
    fn a_loop_counter_is_uniform_until_the_exit_diverges() {
        for divergent in [false, true] {
            let mut b = Builder::new();
            let (tid, cta) = (b.tid(), b.special(SpecialReg32::CtaidX));
            let upper = if divergent { tid } else { cta };
            let zero = b.constant(Class::B32, 0);
            let params = b.open_loop(&[zero]);
            let p = b.setp(Compare::Lt, CompareType::U32, params[0], upper);
            let carried = b.open_body(p, &params);
            let next = b.add(IntType::U32, carried[0], 1);
            let results = b.close_loop(&[next]);
            let mut ssa = b.finish();
            run(&mut ssa);
            assert_eq!(ssa.values[carried[0]].uniform, Uniform::Cta);
            let expected = if divergent { Uniform::Thread } else { Uniform::Cta };
            assert_eq!(ssa.values[results[0]].uniform, expected);
        }
    }

    #[test]
    fn a_carried_value_that_gets_a_lanes_own_is_its_own() {
        let mut b = Builder::new();
        let (tid, cta) = (b.tid(), b.special(SpecialReg32::CtaidX));
        let zero = b.constant(Class::B32, 0);
        let params = b.open_loop(&[zero, cta]);
        let p = b.setp(Compare::Lt, CompareType::U32, params[0], cta);
        let carried = b.open_body(p, &params);
        let next = b.add(IntType::U32, carried[0], 1);
        let x = b.add(IntType::U32, carried[1], tid);
        b.close_loop(&[next, x]);
        let mut ssa = b.finish();
        run(&mut ssa);
        assert_eq!(ssa.values[carried[1]].uniform, Uniform::Thread);
        assert_eq!(ssa.values[carried[0]].uniform, Uniform::Cta);
    }
}
