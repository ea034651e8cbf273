//! The optimiser of `ptx::Ssa`, as a list of passes. What ptxas does well is left to it.
use super::evaluate::{ConstantFunctions, NoFunctions};
use super::ssa::Ssa;
use super::{
    contract, defer_sums, eliminate_dead_code, hoist, infer_uniformity, interleave_elements, keep_operands,
    merge_equal, settle_operands, verify, verify_ssa,
};
use crate::error::Error;

/// What the user may choose.
pub struct Options {
    /// Fuse multiplications and additions (`fp_contract`).
    pub contract: bool,
    /// Add floats in another order (`approx_math`), where that saves something.
    pub reassociate: bool,
    /// Values of approximate functions on constants.
    pub functions: Box<dyn ConstantFunctions>,
    /// Words a thread that array code may keep alive before it is listed in tiles; `None`: any number.
    pub register_budget: Option<u32>,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            contract: true,
            reassociate: false,
            functions: Box::new(NoFunctions),
            register_budget: None,
        }
    }
}

/// All passes. `around` is called before each, and after it with the kernel as it is then. Builds of tests verify each time;
/// who compiles verifies what comes out.
pub fn run(ssa: Ssa, options: Options, mut around: impl FnMut(&'static str, Option<&Ssa>)) -> Result<Ssa, Error> {
    let mut ssa = ssa;
    let mut pass = |name: &'static str, ssa: Option<&Ssa>| {
        around(name, ssa);
        if let Some(ssa) = ssa.filter(|_| cfg!(any(test, feature = "test-handlers"))) {
            let found = verify_ssa::run(ssa);
            // Uniformity, on which convergence rests, is inferred in the end.
            let inferred = [
                "infer_uniformity",
                "defer_sums",
                "interleave_elements",
                "keep_operands",
                "settle_operands",
            ];
            let found: Vec<_> = found
                .into_iter()
                .filter(|v| inferred.contains(&name) || v.rule != "convergent")
                .collect();
            if !found.is_empty() {
                return Err(verify::into_error(&format!("ptx::Ssa after {name}"), &found));
            }
        }
        Ok(())
    };
    pass("hoist", None)?;
    // What the builder assumed of loops' parameters, lowering's claims among it, gives way to what follows from the instructions.
    infer_uniformity::run(&mut ssa);
    hoist::run(&mut ssa);
    pass("hoist", Some(&ssa))?;
    pass("merge_equal", None)?;
    ssa = merge_equal::run(&ssa, options.functions);
    pass("merge_equal", Some(&ssa))?;
    if options.contract {
        pass("contract", None)?;
        contract::run(&mut ssa);
        pass("contract", Some(&ssa))?;
    }
    pass("eliminate_dead_code", None)?;
    eliminate_dead_code::run(&mut ssa);
    pass("eliminate_dead_code", Some(&ssa))?;
    pass("infer_uniformity", None)?;
    infer_uniformity::run(&mut ssa);
    pass("infer_uniformity", Some(&ssa))?;
    pass("defer_sums", None)?;
    defer_sums::run(&mut ssa, options.reassociate);
    pass("defer_sums", Some(&ssa))?;
    if let Some(budget) = options.register_budget {
        pass("interleave_elements", None)?;
        interleave_elements::run(&mut ssa, budget);
        pass("interleave_elements", Some(&ssa))?;
    }
    pass("keep_operands", None)?;
    keep_operands::run(&mut ssa);
    pass("keep_operands", Some(&ssa))?;
    pass("settle_operands", None)?;
    settle_operands::run(&mut ssa);
    pass("settle_operands", Some(&ssa))?;
    Ok(ssa)
}

#[cfg(test)]
mod tests {
    use super::super::build::{Builder, Operand};
    use super::super::inst::{Inst, ROWS};
    use super::super::modifier::*;
    use super::super::operand::*;
    use super::super::ssa::*;
    use super::*;

    /// Names of the instructions in the order of regions, loops and conditionals as such.
    fn names(ssa: &Ssa, r: Region, out: &mut Vec<String>) {
        for op in &ssa.regions[r].ops {
            match &op.kind {
                OpKind::Inst { inst, .. } => out.push(ROWS[inst.row()].name.into()),
                OpKind::If { then, otherwise, .. } => {
                    out.push("if".into());
                    names(ssa, *then, out);
                    out.push("else".into());
                    names(ssa, *otherwise, out);
                    out.push("end".into());
                }
                OpKind::Loop { cond, body, .. } => {
                    out.push("while".into());
                    names(ssa, *cond, out);
                    out.push("do".into());
                    names(ssa, *body, out);
                    out.push("end".into());
                }
            }
        }
    }
    fn optimized(ssa: Ssa, contract: bool) -> String {
        let options = Options {
            contract,
            ..Options::default()
        };
        let ssa = run(ssa, options, |_, _| {}).unwrap();
        let mut out = vec![];
        names(&ssa, ssa.body.unwrap(), &mut out);
        out.join(" ")
    }
    fn store(b: &mut Builder, at: Value, v: impl Into<Operand>) {
        b.store(Space::Shared, MemType::B32, Addr::new(at), &[v.into()]);
    }
    fn load(b: &mut Builder, at: Value, offset: i32) -> Value {
        b.load(Space::Shared, MemType::B32, Addr::at(at, offset), 1)[0]
    }

    #[test]
    fn a_product_used_once_joins_its_sum() {
        let build = || {
            let mut b = Builder::new();
            let tid = b.tid();
            let (x, y) = (load(&mut b, tid, 0), load(&mut b, tid, 4));
            let xy = b.fmul(FloatType::F32, x, y);
            let sum = b.fadd(FloatType::F32, xy, x);
            store(&mut b, tid, sum);
            // A product used twice stays, and so does what contraction is off for.
            let yy = b.fmul(FloatType::F32, y, y);
            let sum = b.fadd(FloatType::F32, yy, x);
            store(&mut b, tid, sum);
            store(&mut b, tid, yy);
            let yx = b.fmul(FloatType::F32, x, 3.0f32.to_bits());
            let difference = b.fsub(FloatType::F32, y, yx);
            store(&mut b, tid, difference);
            b.finish()
        };
        assert_eq!(
            optimized(build(), true),
            "MovSpecial32 Ld Ld Fma St MulFloat AddFloat St St NegFloat Fma St"
        );
        assert_eq!(
            optimized(build(), false),
            "MovSpecial32 Ld Ld MulFloat AddFloat St MulFloat AddFloat St St MulFloat SubFloat St"
        );
    }

    #[test]
    fn what_does_not_change_leaves_the_loop() {
        let mut b = Builder::new();
        let tid = b.tid();
        let zero = b.constant(Class::B32, 0);
        let params = b.open_loop(&[zero, tid]);
        let p = b.setp(Compare::Lt, CompareType::U32, params[0], 4);
        let carried = b.open_body(p, &params);
        let scaled = b.mul(IntType::U32, carried[1], 12);
        let at = b.add(IntType::U32, scaled, carried[0]);
        let at = b.value(at, Class::B32);
        store(&mut b, at, carried[1]);
        let next = b.add(IntType::U32, carried[0], 1);
        b.close_loop(&[next, carried[1].into()]);
        // The same outside, found equal once both are there.
        let again = b.mul(IntType::U32, tid, 12);
        store(&mut b, tid, again);
        // The second value is carried unchanged, so that the product moves; unused loads go.
        load(&mut b, tid, 0);
        assert_eq!(
            optimized(b.finish(), true),
            "MovSpecial32 MulLo Mov while Setp do AddInt St AddInt end St"
        );
    }

    #[test]
    fn a_sum_with_a_constant_leaves_the_loop_only_for_what_needs_it() {
        let looped = |needed: bool| {
            let mut b = Builder::new();
            let (tid, zero) = (b.tid(), b.constant(Class::B32, 0));
            let params = b.open_loop(&[zero]);
            let p = b.setp(Compare::Lt, CompareType::U32, params[0], 4);
            let carried = b.open_body(p, &params);
            let mut at = b.add(IntType::U32, tid, 65536);
            if needed {
                at = b.mul(IntType::U32, at, 12);
            }
            let at = b.add(IntType::U32, at, carried[0]);
            let at = b.value(at, Class::B32);
            store(&mut b, at, carried[0]);
            let next = b.add(IntType::U32, carried[0], 1);
            b.close_loop(&[next]);
            optimized(b.finish(), true)
        };
        assert_eq!(
            looped(false),
            "MovSpecial32 Mov while Setp do AddInt AddInt St AddInt end"
        );
        assert_eq!(
            looped(true),
            "MovSpecial32 AddInt MulLo Mov while Setp do AddInt St AddInt end"
        );
    }

    #[test]
    fn divisions_by_constants_are_products() {
        let mut b = Builder::new();
        let tid = b.tid();
        let x = load(&mut b, tid, 0);
        for c in [6u32, 64, 7] {
            let (q, r) = (b.div(IntType::S32, x, c), b.rem(IntType::S32, x, c));
            store(&mut b, tid, q);
            store(&mut b, tid, r);
        }
        // What is known of the dividend makes it one word's product.
        let slot = b.rem(IntType::U32, tid, 6);
        store(&mut b, tid, slot);
        assert_eq!(
            optimized(b.finish(), true),
            "MovSpecial32 Ld MulHi Shr AddInt MulLo AddInt St St Shr Shr AddInt Shr Logic SubInt St St \
             MulHi AddInt Shr AddInt MulLo AddInt St St MulLo Shr MulLo AddInt St"
        );
    }

    #[test]
    fn a_counters_range_is_used() {
        let mut b = Builder::new();
        let tid = b.tid();
        let bound = load(&mut b, tid, 0);
        let zero = b.constant(Class::B32, 0);
        let params = b.open_loop(&[zero]);
        let p = b.setp(Compare::Lt, CompareType::S32, params[0], bound);
        let carried = b.open_body(p, &params);
        // Not negative: the remainder is a mask.
        let slot = b.rem(IntType::S32, carried[0], 4);
        store(&mut b, tid, slot);
        let next = b.add(IntType::S32, carried[0], 1);
        b.close_loop(&[next]);
        assert_eq!(
            optimized(b.finish(), true),
            "MovSpecial32 Ld Mov while Setp do Logic St AddInt end"
        );
    }

    #[test]
    fn halves_that_were_taken_apart_come_together() {
        let mut b = Builder::new();
        let tid = b.tid();
        let x = load(&mut b, tid, 0);
        let halves = b.inst(Inst::UnpackB32 {
            d: smallvec::smallvec![Value::NEW, Value::NEW],
            a: x,
        });
        let whole = b.emit(Inst::PackB32 {
            d: Value::NEW,
            a: smallvec::smallvec![halves[0].into(), halves[1].into()],
        });
        store(&mut b, tid, whole);
        assert_eq!(optimized(b.finish(), true), "MovSpecial32 Ld St");
    }

    #[test]
    fn small_arms_become_selections_and_dead_values_are_not_carried() {
        let mut b = Builder::new();
        let tid = b.tid();
        let x = load(&mut b, tid, 0);
        let p = b.setp(Compare::Lt, CompareType::U32, x, 4);
        b.open_if(p);
        let y = b.add(IntType::U32, x, 1);
        b.open_else(&[y, 5.into()]);
        let r = b.close_if(&[x.into(), 6.into()]);
        store(&mut b, tid, r[0]);
        assert_eq!(optimized(b.finish(), true), "MovSpecial32 Ld Setp AddInt Selp St");

        let mut b = Builder::new();
        let tid = b.tid();
        let zero = b.constant(Class::B32, 0);
        let params = b.open_loop(&[zero, zero]);
        let p = b.setp(Compare::Lt, CompareType::U32, params[0], 4);
        let carried = b.open_body(p, &params);
        let next = b.add(IntType::U32, carried[0], 1);
        let vain = b.add(IntType::U32, carried[1], tid);
        let results = b.close_loop(&[next, vain]);
        assert_eq!(results.len(), 2);
        assert_eq!(optimized(b.finish(), true), "Mov while Setp do AddInt end");
    }

    #[test]
    fn approximate_functions_of_constants_are_the_units() {
        struct Unit;
        impl ConstantFunctions for Unit {
            fn mufu(&self, _: Mufu, _: Ftz, a: u32) -> Option<u32> {
                Some(a ^ 1)
            }
        }
        let mut b = Builder::new();
        let tid = b.tid();
        let x = b.emit(Inst::Mufu {
            op: Mufu::Ex2,
            ftz: Ftz::Yes,
            d: Value::NEW,
            a: Src::f32(0.3),
        });
        store(&mut b, tid, x);
        let options = Options {
            contract: false,
            reassociate: false,
            functions: Box::new(Unit),
            register_budget: None,
        };
        let ssa = run(b.finish(), options, |_, _| {}).unwrap();
        let body = ssa.body.unwrap();
        let OpKind::Inst {
            inst: Inst::St { a, .. },
            ..
        } = &ssa.regions[body].ops[1].kind
        else {
            panic!("a store of a constant")
        };
        assert_eq!(a[0], Src::Imm(u64::from(0.3f32.to_bits() ^ 1)));
    }
}
