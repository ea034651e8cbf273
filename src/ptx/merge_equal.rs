//! Rebuilds the kernel through the builder, which folds constants and merges equal instructions where one dominates
//! the other; on the way, values that a loop carries unchanged become the values they started as, conditionals on
//! constants become their arm, small arms that only compute become selections, and divisions by constants
//! multiplications.
use super::build::{Builder, Operand};
use super::divide;
use super::evaluate::ConstantFunctions;
use super::inst::{Inst, RegMap};
use super::modifier::{BitType, Compare, CompareType};
use super::operand::*;
use super::ssa::*;
use super::uniformity::{Derived, derive};
use cranelift_entity::SecondaryMap;

/// Instructions of both arms together that are executed rather than branched over.
const MAX_SELECTED: usize = 8;
const MAX_SELECTIONS: usize = 4;

pub fn run(ssa: &Ssa, functions: Box<dyn ConstantFunctions>) -> Ssa {
    let mut m = Merger {
        old: ssa,
        b: Builder::new().with_functions(functions),
        map: SecondaryMap::with_capacity(ssa.values.len()),
        sums: sums(ssa),
    };
    if let Some(body) = ssa.body {
        m.region(body);
    }
    m.b.finish()
}

struct Merger<'a> {
    old: &'a Ssa,
    b: Builder,
    map: SecondaryMap<Value, Option<Operand>>,
    /// Values that are another plus a positive constant.
    sums: SecondaryMap<Value, Option<(Value, u64)>>,
}

fn sums(ssa: &Ssa) -> SecondaryMap<Value, Option<(Value, u64)>> {
    let mut out = SecondaryMap::new();
    for op in ssa.regions.values().flat_map(|r| &r.ops) {
        if let OpKind::Inst {
            guard: None,
            inst:
                Inst::AddInt {
                    ty,
                    d,
                    a: Src::Reg(a),
                    b: Src::Imm(step),
                },
        } = &op.kind
            && (1..=ty.slot().class.mask() >> 1).contains(step)
        {
            out[*d] = Some((*a, *step));
        }
    }
    out
}

/// Old values to new operands; fresh definitions.
struct Rename<'m, 'a>(&'m mut Merger<'a>);

impl RegMap<Value, Value> for Rename<'_, '_> {
    fn reg(&mut self, r: Value, slot: Slot) -> Value {
        let operand = self.0.operand(r);
        self.0.b.value(operand, slot.class)
    }
    fn def(&mut self, _: Value, _: Slot) -> Value {
        Value::NEW
    }
    fn src(&mut self, r: Value, _: Slot) -> Operand {
        self.0.operand(r)
    }
    fn addr(&mut self, addr: Addr<Value>, slot: Slot) -> Addr<Value> {
        let base = self.0.operand(addr.base);
        match base {
            Src::Reg(_) => self.0.b.addr(base, addr.offset),
            Src::Imm(_) => Addr::at(self.0.b.value(base, slot.class), addr.offset),
        }
    }
}

impl Merger<'_> {
    fn operand(&self, v: Value) -> Operand {
        // The verifier has seen that definitions dominate uses.
        self.map[v].unwrap_or(Src::Reg(v))
    }
    fn operands(&self, list: &[Value]) -> Vec<Operand> {
        list.iter().map(|v| self.operand(*v)).collect()
    }
    fn class(&self, v: Value) -> Class {
        self.old.values[v].class
    }
    fn value(&mut self, v: Value) -> Value {
        let class = self.class(v);
        let operand = self.operand(v);
        self.b.value(operand, class)
    }

    fn region(&mut self, r: Region) {
        let old = self.old;
        for op in &old.regions[r].ops {
            self.b.set_loc(op.loc);
            self.b.set_memory(op.memory);
            self.b.set_rounding(op.rounding);
            match &op.kind {
                OpKind::Inst { guard, inst } => self.inst(*guard, inst),
                OpKind::If {
                    cond,
                    then,
                    otherwise,
                    results,
                } => self.if_(*cond, *then, *otherwise, results),
                OpKind::Loop {
                    inits,
                    cond,
                    body,
                    results,
                } => self.loop_(inits, *cond, *body, results),
            }
        }
    }

    fn inst(&mut self, guard: Option<(Value, Negated)>, inst: &Inst<Value>) {
        if let Inst::Mov { d, a, .. } | Inst::MovPred { d, a } = inst
            && guard.is_none()
        {
            // Copies and constants are made anew where registers are needed.
            self.map[*d] = Some(match a {
                Src::Reg(v) => self.operand(*v),
                Src::Imm(bits) => Src::Imm(*bits),
            });
            return;
        }
        let renamed = inst.map(&mut Rename(self));
        let mut old_defs: smallvec::SmallVec<[Value; 4]> = smallvec::smallvec![];
        inst.for_each_def(|d, _| old_defs.push(d));
        if let ([d], true) = (&old_defs[..], inst.is_speculatable()) {
            self.map[*d] = Some(match divide::expand(&mut self.b, &renamed) {
                Some(result) => result,
                None => self.b.emit(renamed),
            });
            return;
        }
        let new_defs = match guard {
            Some((p, negated)) if !inst.is_speculatable() => match self.operand(p) {
                Src::Imm(bits) if (bits & 1 == 1) == (negated == Negated::No) => self.b.inst(renamed),
                // Never executed: nothing under the same guard is, either.
                Src::Imm(_) => {
                    for d in old_defs {
                        self.map[d] = Some(Src::Imm(0));
                    }
                    return;
                }
                Src::Reg(p) => self.b.guarded(p, negated, |b| b.inst(renamed)),
            },
            _ => self.b.inst(renamed),
        };
        let claims = matches!(derive(inst, |v| self.old.values[v].uniform), Derived::Claim(_));
        for (o, n) in old_defs.iter().zip(&new_defs) {
            if claims {
                self.b.claim_uniform(*n, self.old.values[*o].uniform);
            }
            self.map[*o] = Some(Src::Reg(*n));
        }
    }

    /// How many instructions the region has, if all it does is compute.
    fn computes(&self, r: Region) -> Option<usize> {
        let ops = &self.old.regions[r].ops;
        let only = ops.iter().all(|op| match &op.kind {
            OpKind::Inst { guard: None, inst } => inst.is_speculatable(),
            OpKind::Inst { .. } | OpKind::If { .. } | OpKind::Loop { .. } => false,
        });
        only.then_some(ops.len())
    }

    fn if_(&mut self, cond: Value, then: Region, otherwise: Region, results: &[Value]) {
        let old = self.old;
        let cond = match self.operand(cond) {
            Src::Imm(bits) => {
                let arm = if bits & 1 == 1 { then } else { otherwise };
                self.region(arm);
                for (d, v) in results.iter().zip(&old.regions[arm].results) {
                    self.map[*d] = Some(self.operand(*v));
                }
                return;
            }
            Src::Reg(cond) => cond,
        };
        let selectable = results.len() <= MAX_SELECTIONS && results.iter().all(|d| self.class(*d) != Class::Pred);
        if selectable
            && let (Some(a), Some(b)) = (self.computes(then), self.computes(otherwise))
            && a + b <= MAX_SELECTED
        {
            self.region(then);
            self.region(otherwise);
            for (i, d) in results.iter().enumerate() {
                let a = self.operand(old.regions[then].results[i]);
                let b = self.operand(old.regions[otherwise].results[i]);
                let Some(ty) = BitType::of(self.class(*d)) else {
                    continue;
                };
                self.map[*d] = Some(self.b.select(ty, cond, a, b));
            }
            return;
        }
        self.b.open_if(cond);
        self.region(then);
        let values: Vec<Operand> = old.regions[then]
            .results
            .iter()
            .map(|v| self.value(*v).into())
            .collect();
        self.b.open_else(&values);
        self.region(otherwise);
        let values: Vec<Operand> = old.regions[otherwise]
            .results
            .iter()
            .map(|v| self.value(*v).into())
            .collect();
        let new = self.b.close_if(&values);
        for (d, n) in results.iter().zip(new) {
            self.map[*d] = Some(Src::Reg(n));
        }
    }

    /// Parameter `i` of a loop's condition goes up from a number that is not negative to what it is compared with:
    /// the largest value that the body sees.
    fn counter_bound(&self, init: Operand, cond: Region, body: Region, i: usize) -> Option<u64> {
        let (c, b) = (&self.old.regions[cond], &self.old.regions[body]);
        let (pred, handed) = c.results.split_first()?;
        let param = c.params[i];
        let (before, step) = self.sums[b.results[i]]?;
        let counts = before == param || b.params.iter().zip(handed).any(|(q, h)| *q == before && *h == param);
        let class = self.class(param);
        let (ty, upper) = c.ops.iter().find_map(|op| match &op.kind {
            OpKind::Inst {
                guard: None,
                inst:
                    Inst::Setp {
                        cmp: Compare::Lt,
                        ty,
                        d,
                        a: Src::Reg(a),
                        b,
                        ..
                    },
            } if d == pred && *a == param => Some((*ty, *b)),
            _ => None,
        })?;
        let signed = match ty {
            CompareType::S32 | CompareType::S64 => true,
            CompareType::U32 | CompareType::U64 => false,
            _ => return None,
        };
        // The largest number of the comparison's kind.
        let largest = if signed { class.mask() >> 1 } else { class.mask() };
        if !counts || self.b.bound(init, class) > largest {
            return None;
        }
        let upper = match upper {
            Src::Imm(bits) => bits,
            Src::Reg(v) => self.map[v].map_or(largest, |o| self.b.bound(o, class)),
        };
        let upper = upper.min(largest);
        // Wider steps might jump over the largest number and come back as a negative one.
        (step == 1 || upper <= largest - step || !signed).then(|| upper.saturating_sub(1))
    }

    fn loop_(&mut self, inits: &[Value], cond: Region, body: Region, results: &[Value]) {
        let old = self.old;
        let (c, b) = (&old.regions[cond], &old.regions[body]);
        let Some((pred, handed)) = c.results.split_first() else {
            return;
        };
        // Carried unchanged: the body gives back what it was handed, which is the parameter.
        let unchanged: Vec<bool> = (0..inits.len())
            .map(|i| {
                b.results[i] == c.params[i]
                    || b.params
                        .iter()
                        .zip(handed)
                        .any(|(p, h)| b.results[i] == *p && *h == c.params[i])
            })
            .collect();
        let outer: Vec<Operand> = self.operands(inits);
        let carried: Vec<usize> = (0..inits.len()).filter(|i| !unchanged[*i]).collect();
        for i in (0..inits.len()).filter(|i| unchanged[*i]) {
            self.map[c.params[i]] = Some(outer[i]);
        }
        let new_inits: Vec<Value> = carried
            .iter()
            .map(|i| self.b.value(outer[*i], self.class(inits[*i])))
            .collect();
        let params = self.b.open_loop(&new_inits);
        for (i, p) in carried.iter().zip(params) {
            self.map[c.params[*i]] = Some(Src::Reg(p));
        }
        self.region(cond);
        // What is handed on as it was before the loop need not be handed on.
        let outside: Vec<Option<Operand>> = handed
            .iter()
            .map(|h| match self.operand(*h) {
                imm @ Src::Imm(_) => Some(imm),
                o if c.params.iter().zip(&unchanged).any(|(p, u)| p == h && *u) => Some(o),
                Src::Reg(_) => None,
            })
            .collect();
        let passed: Vec<usize> = (0..handed.len()).filter(|j| outside[*j].is_none()).collect();
        let values: Vec<Value> = passed.iter().map(|j| self.value(handed[*j])).collect();
        let pred = self.value(*pred);
        let body_params = self.b.open_body(pred, &values);
        for (j, o) in outside.iter().enumerate() {
            if let Some(o) = o {
                self.map[b.params[j]] = Some(*o);
            }
        }
        for (j, p) in passed.iter().zip(body_params) {
            self.map[b.params[*j]] = Some(Src::Reg(p));
            let counter = carried.iter().find(|i| c.params[**i] == handed[*j]);
            if let Some(&i) = counter
                && let Some(bound) = self.counter_bound(outer[i], cond, body, i)
            {
                self.b.assume_at_most(p, bound);
            }
        }
        self.region(body);
        let next: Vec<Operand> = carried.iter().map(|i| self.value(b.results[*i]).into()).collect();
        let new = self.b.close_loop(&next);
        for (j, o) in outside.iter().enumerate() {
            if let Some(o) = o {
                self.map[results[j]] = Some(*o);
            }
        }
        for (j, n) in passed.iter().zip(new) {
            self.map[results[*j]] = Some(Src::Reg(n));
        }
    }
}
