//! Folds what is known, merges what is equal.
//!
//! Scalar integers and bools: constants (from facts), identities, the index arithmetic that `%` and `//` become; common
//! subexpressions; a `switch` on a constant is its arm, one of a few pure scalar ops a `select`, a loop of one iteration its body.
//! Floats are not touched.
use crate::dtype::DType;
use crate::error::{Loc, Result};
use crate::kernel_ir::class::Control;
use crate::kernel_ir::rewrite::{Substitution, regions_of};
use crate::kernel_ir::*;
use rustc_hash::{FxBuildHasher, FxHashMap};
use smallvec::SmallVec;
use std::hash::BuildHasher;

/// Most speculatable scalar ops in an arm that becomes a `select`.
const SPECULATED: usize = 8;

pub fn run(kernel: &mut Kernel) -> Result<()> {
    facts::run(kernel);
    let body = kernel.body;
    let mut pass = Simplify {
        kernel,
        subst: Substitution::default(),
        known: FxHashMap::default(),
        log: vec![],
    };
    pass.region(body);
    Ok(())
}

struct Simplify<'a> {
    kernel: &'a mut Kernel,
    subst: Substitution,
    /// Pure scalar ops that are in scope, by hash of what they compute; the youngest last.
    known: FxHashMap<u64, SmallVec<[Op; 2]>>,
    /// Hashes in order of insertion: a region's end forgets its own.
    log: Vec<u64>,
}

impl Simplify<'_> {
    fn region(&mut self, region: Region) {
        let mark = self.log.len();
        let ops = std::mem::take(&mut self.kernel.regions[region].ops);
        for op in ops {
            self.op(region, op);
        }
        self.subst.apply_results(self.kernel, region);
        for hash in self.log.drain(mark..) {
            self.known.get_mut(&hash).and_then(SmallVec::pop);
        }
    }

    /// What ops that compute the same have in common: the kind, and the result's type and group.
    fn computes(&self, op: Op) -> (&OpKind, &Type, Group) {
        let OpData { kind, results, .. } = &self.kernel.ops[op];
        let ValueData { ty, group, .. } = &self.kernel.values[results[0]];
        (kind, ty, *group)
    }

    /// The value in scope that is this already, and the hash under which it is, or would be, remembered.
    fn look_up(&self, what: (&OpKind, &Type, Group)) -> (Option<Value>, u64) {
        let hash = FxBuildHasher.hash_one(what);
        let ops = self.known.get(&hash).into_iter().flatten();
        let same = ops.copied().find(|&op| self.computes(op) == what);
        (same.map(|op| self.kernel.ops[op].results[0]), hash)
    }

    fn remember(&mut self, hash: u64, op: Op) {
        self.known.entry(hash).or_default().push(op);
        self.log.push(hash);
    }

    /// Handles one op; what is left of it goes to the end of `region`.
    fn op(&mut self, region: Region, op: Op) {
        self.subst.apply(self.kernel, op);
        if self.structural(region, op) {
            return;
        }
        for inner in regions_of(self.kernel, op) {
            self.region(inner);
        }
        let [result] = self.kernel.ops[op].results.as_slice() else {
            self.kernel.regions[region].ops.push(op);
            return;
        };
        let result = *result;
        if !self.kernel.ops[op].kind.is_pure() {
            self.kernel.regions[region].ops.push(op);
            return;
        }
        if let Some(same) = self.identity(op) {
            self.subst.replace(result, same);
            return;
        }
        let ty = self.kernel.ty(result).clone();
        if !ty.is_scalar() {
            self.kernel.regions[region].ops.push(op);
            return;
        }
        facts::update(self.kernel, result);
        if !ty.dtype().is_float() && !matches!(self.kernel.ops[op].kind, OpKind::Constant(_)) {
            if let Some(x) = self.kernel.facts(result).only() {
                let bits = kernel::int_bits(ty.dtype(), x);
                self.kernel.ops[op].kind = OpKind::Constant(Constant::Splat(bits));
            } else {
                self.canonical(region, op);
                if let Some(same) = self.identity(op) {
                    self.subst.replace(result, same);
                    return;
                }
            }
        }
        match self.look_up(self.computes(op)) {
            (Some(same), _) => self.subst.replace(result, same),
            (None, hash) => {
                self.remember(hash, op);
                self.kernel.regions[region].ops.push(op);
            }
        }
    }

    fn constant(&self, v: Value) -> Option<i64> {
        let ty = self.kernel.ty(v);
        if ty.is_scalar() && !ty.dtype().is_float() {
            self.kernel.facts(v).as_constant()
        } else {
            None
        }
    }

    /// The value that the op's result is equal to, if it is one of its operands.
    fn identity(&self, op: Op) -> Option<Value> {
        let zero = |v| self.constant(v) == Some(0);
        let one = |v| self.constant(v) == Some(1);
        let kind = &self.kernel.ops[op].kind;
        if let OpKind::Select { which, cases } = kind {
            return match self.constant(*which) {
                Some(i) => cases.get(usize::try_from(i).ok()?).copied(),
                None => cases.iter().all(|c| *c == cases[0]).then_some(cases[0]),
            };
        }
        if let OpKind::Convert { a } = kind {
            // To a type and back, when nothing was lost on the way.
            let result = self.kernel.ops[op].results[0];
            let inner = self.kernel.def_op(*a)?;
            let OpKind::Convert { a: source } = self.kernel.ops[inner].kind else {
                return None;
            };
            let (from, via) = (self.kernel.ty(source), self.kernel.ty(*a));
            let ints = !from.dtype().is_float() && !via.dtype().is_float();
            let fits = from.is_scalar() && {
                let (f, top) = (self.kernel.facts(source), Facts::of_dtype(via.dtype()));
                f.within(top.lo, top.hi)
            };
            return (ints && fits && from == self.kernel.ty(result)).then_some(source);
        }
        let OpKind::Binary { op, a, b } = kind else {
            return None;
        };
        let dtype = self.kernel.ty(*a).dtype();
        if dtype.is_float() || !self.kernel.ty(*a).is_scalar() {
            return None;
        }
        let is_bool = dtype == DType::Bool;
        match op {
            BinaryOp::Add | BinaryOp::Or | BinaryOp::Xor if zero(*b) => Some(*a),
            BinaryOp::Add | BinaryOp::Or | BinaryOp::Xor if zero(*a) => Some(*b),
            BinaryOp::Sub | BinaryOp::ShiftLeft | BinaryOp::ShiftRightLogical if zero(*b) => Some(*a),
            BinaryOp::ShiftRightArithmetic if zero(*b) => Some(*a),
            BinaryOp::Mul | BinaryOp::Div if one(*b) => Some(*a),
            BinaryOp::Mul if one(*a) => Some(*b),
            BinaryOp::And if is_bool && one(*a) => Some(*b),
            BinaryOp::And if is_bool && one(*b) => Some(*a),
            BinaryOp::And | BinaryOp::Or | BinaryOp::Max | BinaryOp::Min if a == b => Some(*a),
            BinaryOp::Max | BinaryOp::Min => {
                let (fa, fb) = (self.kernel.facts(*a), self.kernel.facts(*b));
                let (a_above, b_above) = (fa.lo >= fb.hi, fb.lo >= fa.hi);
                match (*op == BinaryOp::Max, a_above, b_above) {
                    (true, true, _) | (false, _, true) => Some(*a),
                    (true, _, true) | (false, true, _) => Some(*b),
                    _ => None,
                }
            }
            BinaryOp::Rem => {
                let (fa, n) = (self.kernel.facts(*a), self.constant(*b)?);
                (n > 0 && fa.within(0, n - 1)).then_some(*a)
            }
            _ => None,
        }
    }

    /// Puts an integer scalar op into the canonical form that later passes and merging expect.
    fn canonical(&mut self, region: Region, op: Op) {
        let loc = self.kernel.ops[op].loc;
        let OpKind::Binary { op: kind, a, b } = self.kernel.ops[op].kind else {
            return;
        };
        let dtype = self.kernel.ty(a).dtype();
        let (ca, cb) = (self.constant(a), self.constant(b));
        match kind {
            // x − c = x + (−c).
            BinaryOp::Sub if dtype != DType::Bool && cb.is_some_and(|c| c != i64::MIN) => {
                let c = self.int(region, dtype, -cb.unwrap_or(0), loc);
                self.kernel.ops[op].kind = OpKind::Binary {
                    op: BinaryOp::Add,
                    a,
                    b: c,
                };
                self.canonical(region, op);
            }
            // Constants to the right, and together: (x + c) + d = x + (c + d).
            BinaryOp::Add | BinaryOp::Mul if dtype != DType::Bool => {
                let (x, c) = match (ca, cb) {
                    (Some(c), None) => (b, c),
                    (None, Some(c)) => (a, c),
                    _ => return,
                };
                if ca.is_some() {
                    self.kernel.ops[op].kind = OpKind::Binary { op: kind, a: b, b: a };
                }
                if let Some(inner) = self.kernel.def_op(x)
                    && let OpKind::Binary { op: inner, a: y, b: d } = self.kernel.ops[inner].kind
                    && inner == kind
                    && let Some(d) = self.constant(d)
                {
                    let sum = if kind == BinaryOp::Add {
                        c.wrapping_add(d)
                    } else {
                        c.wrapping_mul(d)
                    };
                    let sum = self.int(region, dtype, sum, loc);
                    self.kernel.ops[op].kind = OpKind::Binary { op: kind, a: y, b: sum };
                }
            }
            // (x + k·n) rem n = x rem n, where nothing wraps and nothing is negative.
            BinaryOp::Rem => {
                if let Some(n) = cb.filter(|&n| n > 0)
                    && let Some(inner) = self.kernel.def_op(a)
                    && let OpKind::Binary {
                        op: BinaryOp::Add,
                        a: x,
                        b: c,
                    } = self.kernel.ops[inner].kind
                    && self.constant(c).is_some_and(|c| c > 0 && c % n == 0)
                    && self.kernel.facts(x).lo >= 0
                    && self.kernel.facts(a).lo > 0
                {
                    self.kernel.ops[op].kind = OpKind::Binary {
                        op: BinaryOp::Rem,
                        a: x,
                        b,
                    };
                    let result = self.kernel.ops[op].results[0];
                    facts::update(self.kernel, result);
                }
            }
            // The correction of `//`: sign(x) ≠ sign(y) and x rem y ≠ 0 cannot both be, when neither is negative.
            BinaryOp::And if dtype == DType::Bool && (self.never_both(a, b) || self.never_both(b, a)) => {
                self.kernel.ops[op].kind = OpKind::Constant(Constant::Splat(0));
                let result = self.kernel.ops[op].results[0];
                self.kernel.values[result].facts = Facts::constant(0);
            }
            _ => {}
        }
    }

    /// Whether `signs` is sign(x) ≠ sign(y), `rest` is x rem y ≠ 0, and x ≥ 0, y > 0.
    fn never_both(&self, signs: Value, rest: Value) -> bool {
        let kind = |v: Value| self.kernel.def_op(v).map(|op| &self.kernel.ops[op].kind);
        let rem = |v: Value| {
            let Some(OpKind::Binary { op, a, b }) = kind(v) else {
                return None;
            };
            (*op == BinaryOp::Rem).then_some((*a, *b))
        };
        let ne = |v: Value| {
            let Some(OpKind::Compare { op, a, b }) = kind(v) else {
                return None;
            };
            (*op == CompareOp::Ne).then_some((*a, *b))
        };
        let Some((x, y)) = ne(rest)
            .filter(|&(_, z)| self.constant(z) == Some(0))
            .and_then(|(r, _)| rem(r))
        else {
            return false;
        };
        let is_sign_of =
            |v: Value, x: Value| matches!(kind(v), Some(OpKind::Unary { op: UnaryOp::Sign, a }) if *a == x);
        let positive = |v: Value| self.kernel.facts(v).lo > 0;
        let Some((s, t)) = ne(signs) else { return false };
        is_sign_of(s, x)
            && (is_sign_of(t, y) || self.constant(t) == Some(1))
            && self.kernel.facts(x).lo >= 0
            && positive(y)
    }

    /// A constant, perhaps one that is there.
    fn int(&mut self, region: Region, dtype: DType, x: i64, loc: Loc) -> Value {
        let kind = OpKind::Constant(Constant::Splat(kernel::int_bits(dtype, x)));
        let group = self.kernel.regions[region].group;
        let (same, hash) = self.look_up((&kind, &Type::Scalar(dtype), group));
        if let Some(same) = same {
            return same;
        }
        let v = self.kernel.append_int(region, dtype, x, loc);
        facts::update(self.kernel, v);
        if let Some(op) = self.kernel.def_op(v) {
            self.remember(hash, op);
        }
        v
    }

    /// Removes control flow that is decided. True: nothing is left to do.
    fn structural(&mut self, region: Region, op: Op) -> bool {
        match self.kernel.ops[op].kind.control() {
            Some(Control::Switch { selector, arms }) => {
                let arms = arms.to_vec();
                if let Some(i) = self.constant(selector) {
                    let Some(&arm) = usize::try_from(i).ok().and_then(|i| arms.get(i)) else {
                        return false;
                    };
                    self.splice(region, op, arm);
                    return true;
                }
                // `switch convert(bool)` switches on the bool.
                if arms.len() == 2
                    && let Some(def) = self.kernel.def_op(selector)
                    && let OpKind::Convert { a } = self.kernel.ops[def].kind
                    && self.kernel.ty(a).dtype() == DType::Bool
                {
                    self.kernel.ops[op].kind = OpKind::Switch {
                        selector: a,
                        arms: arms.clone(),
                    };
                }
                if self.kernel.ops[op].results.is_empty() || !arms.iter().all(|&arm| self.is_cheap(arm)) {
                    return false;
                }
                self.speculate(region, op, &arms);
                true
            }
            // A scope of nothing, as accumulators leave behind.
            Some(Control::Scope {
                allocs: [],
                collective: false,
                body,
            }) => {
                self.splice(region, op, body);
                true
            }
            Some(Control::For {
                lower,
                upper,
                inits,
                xs,
                body,
            }) => {
                let once = match (self.constant(lower), self.constant(upper)) {
                    (Some(lo), Some(hi)) => lo.checked_add(1) == Some(hi),
                    _ => false,
                };
                if !once || !xs.is_empty() || inits.len() != self.kernel.ops[op].results.len() {
                    return false;
                }
                let inits = inits.to_vec();
                let params = self.kernel.regions[body].params.clone();
                for (&p, v) in params.iter().zip([lower].into_iter().chain(inits)) {
                    self.subst.replace(p, v);
                }
                self.splice(region, op, body);
                true
            }
            Some(Control::Scope { .. } | Control::While { .. } | Control::WarpMap { .. }) | None => false,
        }
    }

    /// A few speculatable ops on scalars.
    fn is_cheap(&self, arm: Region) -> bool {
        let data = &self.kernel.regions[arm];
        data.ops.len() <= SPECULATED
            && data.results.iter().all(|&v| self.kernel.ty(v).is_scalar())
            && data.ops.iter().all(|&op| {
                let data = &self.kernel.ops[op];
                data.kind.is_speculatable() && data.results.iter().all(|&v| self.kernel.ty(v).is_scalar())
            })
    }

    /// Replaces an op by a region's ops; its results are the region's.
    fn splice(&mut self, region: Region, op: Op, inner: Region) {
        for results in self
            .inline(region, inner)
            .into_iter()
            .zip(self.kernel.ops[op].results.clone())
        {
            self.subst.replace(results.1, results.0);
        }
    }

    /// Appends a region's ops to `region`; returns what it yields.
    fn inline(&mut self, region: Region, inner: Region) -> Vec<Value> {
        for op in std::mem::take(&mut self.kernel.regions[inner].ops) {
            self.op(region, op);
        }
        self.subst.apply_results(self.kernel, inner);
        self.kernel.regions[inner].results.clone()
    }

    /// Runs all arms and selects.
    fn speculate(&mut self, region: Region, op: Op, arms: &[Region]) {
        let OpKind::Switch { selector, .. } = self.kernel.ops[op].kind else {
            return;
        };
        let cases: Vec<Vec<Value>> = arms.iter().map(|&arm| self.inline(region, arm)).collect();
        let loc = self.kernel.ops[op].loc;
        for (i, result) in self.kernel.ops[op].results.clone().into_iter().enumerate() {
            let cases: Vec<Value> = cases.iter().map(|c| c[i]).collect();
            if cases.iter().all(|c| *c == cases[0]) {
                self.subst.replace(result, cases[0]);
                continue;
            }
            let ty = self.kernel.ty(result).clone();
            let group = self.kernel.regions[region].group;
            let select = self
                .kernel
                .new_op(OpKind::Select { which: selector, cases }, [ty], group, loc);
            let v = self.kernel.ops[select].results[0];
            self.op(region, select);
            self.subst.replace(result, v);
        }
    }
}
