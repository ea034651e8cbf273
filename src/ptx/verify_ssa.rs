//! The rules of `ptx::Ssa`.
//!
//! | rule | says |
//! |---|---|
//! | `class` | every value has its slot's class; what regions hand on fits what receives it |
//! | `immediate` | immediates stand where they may and fit |
//! | `legal` | PTX has the form ([`super::legal`]) |
//! | `single_definition` | a value is defined once |
//! | `scope` | a value is used where its definition dominates: behind it in its region, or in regions inside |
//! | `arity` | regions take and yield as many values as their owner says; a loop's condition yields a predicate first |
//! | `region` | a region is owned once; arms and the body have no parameters |
//! | `guard` | guards are predicates; loops, blocks and convergent instructions are not guarded |
//! | `guarded_definition` | what a guarded instruction defines is used under that guard only |
//! | `convergent` | no convergent instruction where lanes may have parted |
//! | `uniform` | no value claims to be more uniform than what defines it allows |
use super::inst::{Effects, Inst};
use super::operand::*;
use super::ssa::*;
use super::uniformity::{Derived, derive};
use super::verify::{Violation, check_guarded, check_inst, into_error};
use crate::error::{Error, Loc};
use cranelift_entity::SecondaryMap;

/// All violations; none: the form is sound.
pub fn run(ssa: &Ssa) -> Vec<Violation> {
    let mut v = Verifier {
        ssa,
        defined: SecondaryMap::new(),
        in_scope: SecondaryMap::new(),
        guard_of: SecondaryMap::new(),
        owned: SecondaryMap::new(),
        divergent: None,
        found: vec![],
    };
    match ssa.body {
        Some(body) => {
            v.own(body, Loc::CALL_SITE);
            v.no_params(body, Loc::CALL_SITE);
            v.scope(|v| v.region(body));
        }
        None => v.report("region", None, Loc::CALL_SITE, "no body".into()),
    }
    v.found
}

/// All violations as one internal error.
pub fn check(ssa: &Ssa) -> Result<(), Error> {
    let found = run(ssa);
    if found.is_empty() {
        Ok(())
    } else {
        Err(into_error("ptx::Ssa", &found))
    }
}

struct Verifier<'a> {
    ssa: &'a Ssa,
    defined: SecondaryMap<Value, bool>,
    in_scope: SecondaryMap<Value, bool>,
    guard_of: SecondaryMap<Value, Option<(Value, bool)>>,
    owned: SecondaryMap<Region, bool>,
    /// The condition that may have parted the lanes of a warp.
    divergent: Option<Value>,
    found: Vec<Violation>,
}

impl Verifier<'_> {
    fn report(&mut self, rule: &'static str, region: Option<Region>, loc: Loc, message: String) {
        let place = region.map_or("kernel".to_string(), |r| r.to_string());
        self.found.push(Violation {
            rule,
            place,
            loc,
            message,
        });
    }

    fn own(&mut self, r: Region, loc: Loc) {
        if std::mem::replace(&mut self.owned[r], true) {
            self.report("region", Some(r), loc, "two owners".into());
        }
    }
    fn no_params(&mut self, r: Region, loc: Loc) {
        if !self.ssa.regions[r].params.is_empty() {
            self.report("region", Some(r), loc, "parameters of an arm or the body".into());
        }
    }

    /// What `f` brings into scope leaves it.
    fn scope(&mut self, f: impl FnOnce(&mut Self) -> Vec<Value>) {
        let values = f(self);
        for v in values {
            self.in_scope[v] = false;
        }
    }

    fn define(&mut self, v: Value, r: Region, loc: Loc, scope: &mut Vec<Value>) {
        if !self.ssa.values.is_valid(v) {
            return self.report("scope", Some(r), loc, format!("{v} is no value"));
        }
        if std::mem::replace(&mut self.defined[v], true) {
            self.report("single_definition", Some(r), loc, format!("{v} is defined twice"));
        }
        self.in_scope[v] = true;
        scope.push(v);
    }

    fn use_(&mut self, v: Value, r: Region, loc: Loc, guard: Option<(Value, Negated)>) {
        if !self.ssa.values.is_valid(v) {
            return self.report("scope", Some(r), loc, format!("{v} is no value"));
        }
        if !self.in_scope[v] {
            self.report(
                "scope",
                Some(r),
                loc,
                format!("{v} is used where its definition does not dominate"),
            );
        }
        if let Some(needed) = self.guard_of[v]
            && guard.map(|(p, n)| (p, n == Negated::Yes)) != Some(needed)
        {
            self.report(
                "guarded_definition",
                Some(r),
                loc,
                format!("{v} exists only where {} holds", needed.0),
            );
        }
    }

    fn class(&self, v: Value) -> Class {
        if self.ssa.values.is_valid(v) {
            self.ssa.values[v].class
        } else {
            Class::B32
        }
    }
    fn uniform(&self, v: Value) -> Uniform {
        if self.ssa.values.is_valid(v) {
            self.ssa.values[v].uniform
        } else {
            Uniform::Thread
        }
    }

    /// `to` takes what `from` yields.
    fn hand_over(&mut self, what: &str, to: &[Value], from: &[Value], r: Region, loc: Loc) {
        if to.len() != from.len() {
            return self.report(
                "arity",
                Some(r),
                loc,
                format!("{what}: {} values for {}", from.len(), to.len()),
            );
        }
        for (t, f) in to.iter().zip(from) {
            let (ct, cf) = (self.class(*t), self.class(*f));
            if ct != cf {
                let message = format!("{what}: {f} is {}, {t} is {}", cf.ptx_type(), ct.ptx_type());
                self.report("class", Some(r), loc, message);
            }
        }
    }

    fn claims(&mut self, v: Value, at_most: Uniform, r: Region, loc: Loc) {
        if self.uniform(v) > at_most {
            let message = format!(
                "{v} claims to be equal per {:?}, but is per {at_most:?}",
                self.uniform(v)
            );
            self.report("uniform", Some(r), loc, message);
        }
    }

    fn region(&mut self, r: Region) -> Vec<Value> {
        let ssa = self.ssa;
        let mut scope = vec![];
        for p in &ssa.regions[r].params {
            self.define(*p, r, Loc::CALL_SITE, &mut scope);
        }
        for op in &ssa.regions[r].ops {
            match &op.kind {
                OpKind::Inst { guard, inst } => self.inst(*guard, inst, r, op.loc, &mut scope),
                OpKind::If {
                    cond,
                    then,
                    otherwise,
                    results,
                } => {
                    self.if_(*cond, [*then, *otherwise], results, r, op.loc);
                    for (i, d) in results.iter().enumerate() {
                        self.define(*d, r, op.loc, &mut scope);
                        let mut at_most = self.uniform(*cond);
                        for arm in [then, otherwise] {
                            if let Some(v) = ssa.regions[*arm].results.get(i) {
                                at_most = at_most.min(self.uniform(*v));
                            }
                        }
                        self.claims(*d, at_most, r, op.loc);
                    }
                }
                OpKind::Loop {
                    inits,
                    cond,
                    body,
                    results,
                } => {
                    self.loop_(inits, *cond, *body, results, r, op.loc);
                    let handed = &ssa.regions[*cond].results;
                    for (i, d) in results.iter().enumerate() {
                        self.define(*d, r, op.loc, &mut scope);
                        if let (Some(pred), Some(v)) = (handed.first(), handed.get(i + 1)) {
                            let at_most = self.uniform(*pred).min(self.uniform(*v));
                            self.claims(*d, at_most, r, op.loc);
                        }
                    }
                }
            }
        }
        for v in &ssa.regions[r].results {
            self.use_(*v, r, Loc::CALL_SITE, None);
        }
        scope
    }

    fn inst(
        &mut self,
        guard: Option<(Value, Negated)>,
        inst: &Inst<Value>,
        r: Region,
        loc: Loc,
        scope: &mut Vec<Value>,
    ) {
        let mut found = vec![];
        check_inst(
            inst,
            |v: Value| self.class(v),
            |rule, message| found.push((rule, message)),
        );
        if let Some((p, _)) = guard {
            check_guarded(inst, |rule, message| found.push((rule, message)));
            if self.class(p) != Class::Pred {
                found.push(("guard", format!("{p} is no predicate")));
            }
            self.use_(p, r, loc, None);
        }
        if inst.effects().contains(Effects::CONVERGENT)
            && let Some(cond) = self.divergent
        {
            found.push(("convergent", format!("lanes may have parted at {cond}")));
        }
        for (rule, message) in found {
            self.report(rule, Some(r), loc, message);
        }
        inst.for_each_use(|v, _| self.use_(v, r, loc, guard));
        let derived = derive(inst, |v| self.uniform(v));
        inst.for_each_def(|d, _| {
            self.define(d, r, loc, scope);
            if let Some((p, negated)) = guard {
                self.guard_of[d] = Some((p, negated == Negated::Yes));
            }
            if let Derived::Known(at_most) = derived {
                self.claims(d, at_most, r, loc);
            }
        });
    }

    /// `f` with lanes parted if `cond` differs between them.
    fn under(&mut self, cond: Value, f: impl FnOnce(&mut Self)) {
        let before = self.divergent;
        if self.uniform(cond) == Uniform::Thread {
            self.divergent.get_or_insert(cond);
        }
        f(self);
        self.divergent = before;
    }

    fn if_(&mut self, cond: Value, arms: [Region; 2], results: &[Value], r: Region, loc: Loc) {
        self.use_(cond, r, loc, None);
        if self.class(cond) != Class::Pred {
            self.report("class", Some(r), loc, format!("{cond} is no predicate"));
        }
        for arm in arms {
            self.own(arm, loc);
            self.no_params(arm, loc);
            self.under(cond, |v| v.scope(|v| v.region(arm)));
            self.hand_over("an arm yields", results, &self.ssa.regions[arm].results, arm, loc);
        }
    }

    fn loop_(&mut self, inits: &[Value], cond: Region, body: Region, results: &[Value], r: Region, loc: Loc) {
        let ssa = self.ssa;
        for v in inits {
            self.use_(*v, r, loc, None);
        }
        self.own(cond, loc);
        self.own(body, loc);
        let (c, b) = (&ssa.regions[cond], &ssa.regions[body]);
        self.hand_over("a loop starts", &c.params, inits, cond, loc);
        self.hand_over("a body yields", &c.params, &b.results, body, loc);
        match c.results.split_first() {
            Some((pred, handed)) => {
                if self.class(*pred) != Class::Pred {
                    self.report("arity", Some(cond), loc, "a condition yields a predicate first".into());
                }
                self.hand_over("a condition hands on", &b.params, handed, cond, loc);
                self.hand_over("a loop gives", results, handed, cond, loc);
                // Lanes that leave early do not come back: the condition runs with the others only.
                self.under(*pred, |v| {
                    v.scope(|v| {
                        let mut scope = v.region(cond);
                        scope.extend(v.region(body));
                        scope
                    });
                });
            }
            None => self.report("arity", Some(cond), loc, "a condition yields a predicate first".into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::build::Builder;
    use super::super::modifier::*;
    use super::*;

    fn rules(ssa: &Ssa) -> Vec<&'static str> {
        let mut rules: Vec<&'static str> = run(ssa).iter().map(|v| v.rule).collect();
        rules.dedup();
        rules
    }
    fn push(ssa: &mut Ssa, guard: Option<(Value, Negated)>, inst: Inst<Value>) {
        let body = ssa.body.unwrap();
        ssa.regions[body].ops.push(Op {
            kind: OpKind::Inst { guard, inst },
            loc: Loc(7),
            memory: MemTag::ANY,
            rounding: Rounding::default(),
        });
    }
    /// A kernel with `%tid.x` and a divergent predicate.
    fn start() -> (Ssa, Value, Value) {
        let mut b = Builder::new();
        let tid = b.tid();
        let p = b.setp(Compare::Lt, CompareType::U32, tid, 7);
        let p = b.value(p, Class::Pred);
        (b.finish(), tid, p)
    }
    fn new(ssa: &mut Ssa, class: Class) -> Value {
        ssa.value(class, Uniform::Thread)
    }

    #[test]
    fn a_sound_kernel_has_no_violation() {
        let (ssa, ..) = start();
        assert_eq!(run(&ssa), vec![]);
    }

    #[test]
    fn class() {
        let (mut ssa, tid, _) = start();
        let d = new(&mut ssa, Class::B64);
        push(
            &mut ssa,
            None,
            Inst::NegInt {
                ty: IntType::S32,
                d,
                a: tid.into(),
            },
        );
        assert_eq!(rules(&ssa), ["class"]);
    }

    #[test]
    fn immediate() {
        let (mut ssa, tid, _) = start();
        let d = new(&mut ssa, Class::B32);
        let ty = IntType::U32;
        push(
            &mut ssa,
            None,
            Inst::AddInt {
                ty,
                d,
                a: tid.into(),
                b: Src::Imm(1 << 32),
            },
        );
        assert_eq!(rules(&ssa), ["immediate"]);
    }

    #[test]
    fn legal() {
        let (mut ssa, tid, _) = start();
        let d = new(&mut ssa, Class::B32);
        push(
            &mut ssa,
            None,
            Inst::NegInt {
                ty: IntType::U32,
                d,
                a: tid.into(),
            },
        );
        assert_eq!(rules(&ssa), ["legal"]);
    }

    #[test]
    fn single_definition() {
        let (mut ssa, tid, _) = start();
        let d = new(&mut ssa, Class::B32);
        for _ in 0..2 {
            push(
                &mut ssa,
                None,
                Inst::Not {
                    ty: LogicType::B32,
                    d,
                    a: tid.into(),
                },
            );
        }
        assert_eq!(rules(&ssa), ["single_definition"]);
    }

    #[test]
    fn scope() {
        let mut b = Builder::new();
        let tid = b.tid();
        let p = b.setp(Compare::Lt, CompareType::U32, tid, 7);
        b.open_if(p);
        let inner = b.add(IntType::U32, tid, 5);
        b.close_if(&[]);
        let at = b.addr(tid, 0);
        b.store(Space::Shared, MemType::B32, at, &[inner]);
        assert_eq!(rules(&b.finish()), ["scope"]);
    }

    #[test]
    fn arity() {
        let mut b = Builder::new();
        let zero = b.constant(Class::B32, 0);
        let params = b.open_loop(&[zero]);
        let p = b.setp(Compare::Lt, CompareType::U32, params[0], 7);
        b.open_body(p, &[]);
        b.close_loop(&[params[0].into()]);
        let mut ssa = b.finish();
        let body = ssa.body.unwrap();
        let Some(OpKind::Loop { inits, .. }) = ssa.regions[body].ops.last_mut().map(|op| &mut op.kind) else {
            panic!("the loop comes last")
        };
        inits.clear();
        assert_eq!(rules(&ssa), ["arity"]);
    }

    #[test]
    fn region() {
        let (mut ssa, _, p) = start();
        let (then, body) = (ssa.region(), ssa.body.unwrap());
        ssa.regions[body].ops.push(Op {
            kind: OpKind::If {
                cond: p,
                then,
                otherwise: then,
                results: vec![],
            },
            loc: Loc(7),
            memory: MemTag::ANY,
            rounding: Rounding::default(),
        });
        assert_eq!(rules(&ssa), ["region"]);
    }

    #[test]
    fn guard() {
        let (mut ssa, tid, p) = start();
        let wait = Inst::MbarrierWait {
            ask: MbarrierAsk::Try,
            acquire: Acquire::Cta,
            suspend: Suspend::Short,
            addr: Addr::new(tid),
            parity: Src::Imm(0),
        };
        push(&mut ssa, Some((p, Negated::No)), wait);
        assert_eq!(rules(&ssa), ["guard"]);
    }

    #[test]
    fn guarded_definition() {
        let (mut ssa, tid, p) = start();
        let d = new(&mut ssa, Class::B32);
        let (sem, space, ty, addr) = (LoadSem::Weak, Space::Shared, MemType::B32, Addr::new(tid));
        push(
            &mut ssa,
            Some((p, Negated::No)),
            Inst::Ld {
                sem,
                space,
                ty,
                d: [d].into_iter().collect(),
                addr,
            },
        );
        let (sem, a) = (StoreSem::Weak, [Src::Reg(d)].into_iter().collect());
        push(
            &mut ssa,
            Some((p, Negated::Yes)),
            Inst::St {
                sem,
                space,
                ty,
                addr,
                a,
            },
        );
        assert_eq!(rules(&ssa), ["guarded_definition"]);
    }

    #[test]
    fn convergent() {
        let mut b = Builder::new();
        let tid = b.tid();
        let p = b.setp(Compare::Lt, CompareType::U32, tid, 7);
        b.open_if(p);
        b.inst(Inst::BarWarp { mask: 0xffff_ffff });
        b.close_if(&[]);
        assert_eq!(rules(&b.finish()), ["convergent"]);
    }

    #[test]
    fn uniform() {
        let (mut ssa, tid, _) = start();
        let d = ssa.value(Class::B32, Uniform::Warp);
        push(
            &mut ssa,
            None,
            Inst::Not {
                ty: LogicType::B32,
                d,
                a: tid.into(),
            },
        );
        assert_eq!(rules(&ssa), ["uniform"]);
    }
}
