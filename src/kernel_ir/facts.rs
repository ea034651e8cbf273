//! What is known about integer scalars: range and divisibility.
//!
//! One forward walk in program order. A loop's carries start as what their initial values are and grow until the body gives
//! nothing new; a bound that keeps growing jumps to the next constant that the kernel compares with, in the end to the type's.
//! The work is bounded: when the budget is spent, carries start as anything their type allows.
use super::class::{Control, Function, Pure};
use super::kernel::bits_int;
use super::*;
use crate::dtype::DType;

/// Rounds in which a carry's bounds may grow by themselves.
const ROUNDS: u32 = 2;
/// Rounds after which they become the type's.
const LAST_ROUND: u32 = 6;

/// Recomputes [`ValueData::facts`] of every integer scalar in the kernel.
pub fn run(kernel: &mut Kernel) {
    let budget = 8 * kernel.ops.len() as u64 + 1000;
    let body = kernel.body;
    for i in 0..kernel.regions[body].params.len() {
        let p = kernel.regions[body].params[i];
        kernel.values[p].facts = Facts::of_dtype(kernel.ty(p).dtype());
    }
    let mut landmarks = vec![];
    for data in kernel.ops.values() {
        if let OpKind::Compare { a, b, .. } = data.kind {
            for v in [a, b] {
                if let Some(op) = kernel.def_op(v)
                    && let OpKind::Constant(Constant::Splat(bits)) = kernel.ops[op].kind
                    && let Some(x) = bits_int(kernel.ty(v).dtype(), bits)
                {
                    landmarks.extend([x.saturating_sub(1), x, x.saturating_add(1)]);
                }
            }
        }
    }
    landmarks.sort_unstable();
    landmarks.dedup();
    Analysis {
        kernel,
        budget,
        landmarks,
    }
    .region(body);
}

struct Analysis<'a> {
    kernel: &'a mut Kernel,
    /// Op visits left for iterating over loops.
    budget: u64,
    /// Constants that the kernel compares with, and their neighbours, in order.
    landmarks: Vec<i64>,
}

impl Analysis<'_> {
    fn region(&mut self, region: Region) {
        for i in 0..self.kernel.regions[region].ops.len() {
            let op = self.kernel.regions[region].ops[i];
            self.budget = self.budget.saturating_sub(1);
            self.op(op);
        }
    }

    fn top(&self, v: Value) -> Facts {
        Facts::of_dtype(self.kernel.ty(v).dtype())
    }

    fn op(&mut self, op: Op) {
        match self.kernel.ops[op].kind.control() {
            Some(Control::For {
                lower,
                upper,
                inits,
                xs: _,
                body,
            }) => {
                let inits = inits.to_vec();
                let (lo, hi) = (self.kernel.facts(lower), self.kernel.facts(upper));
                let params = self.kernel.regions[body].params.clone();
                let counter = Facts {
                    lo: lo.lo,
                    hi: hi.hi.saturating_sub(1).max(lo.lo),
                    divisor: 1,
                };
                self.kernel.values[params[0]].facts = if counter.as_constant().is_some() {
                    Facts::constant(counter.lo)
                } else {
                    counter
                };
                for &p in &params[1 + inits.len()..] {
                    self.kernel.values[p].facts = self.top(p);
                }
                let carries = &params[1..1 + inits.len()];
                self.loop_carries(&inits, carries, body, |this| this.region(body));
                let results = self.kernel.ops[op].results.clone();
                for (i, &r) in results.iter().enumerate() {
                    self.kernel.values[r].facts = match inits.get(i) {
                        Some(&init) => {
                            let last = self.kernel.regions[body].results[i];
                            self.kernel.facts(init).join(self.kernel.facts(last))
                        }
                        None => self.top(r),
                    };
                }
            }
            Some(Control::While { inits, cond, body }) => {
                let inits = inits.to_vec();
                let carries = self.kernel.regions[cond].params.clone();
                self.loop_carries(&inits, &carries, body, |this| {
                    this.region(cond);
                    for i in 0..this.kernel.regions[body].params.len() {
                        let passed = this.kernel.regions[cond].results[1 + i];
                        let p = this.kernel.regions[body].params[i];
                        this.kernel.values[p].facts = this.kernel.facts(passed);
                    }
                    this.region(body);
                });
                self.yields(op, &[cond], 1);
            }
            Some(Control::Switch { selector: _, arms }) => {
                let arms = arms.to_vec();
                for &arm in &arms {
                    self.region(arm);
                }
                self.yields(op, &arms, 0);
            }
            Some(Control::Scope { body, .. }) => {
                self.region(body);
                self.yields(op, &[body], 0);
            }
            Some(Control::WarpMap { inits, body }) => {
                let inits = inits.to_vec();
                let params = self.kernel.regions[body].params.clone();
                for (&p, &init) in params.iter().zip(&inits) {
                    self.kernel.values[p].facts = self.kernel.facts(init);
                }
                self.region(body);
                self.yields(op, &[body], 0);
            }
            None => {
                for i in 0..self.kernel.ops[op].results.len() {
                    let r = self.kernel.ops[op].results[i];
                    if self.kernel.ty(r).is_scalar() {
                        self.kernel.values[r].facts = of_result(self.kernel, op, i);
                    }
                }
            }
        }
    }

    /// The op's results are what any of the regions yields, after its first `skip` results.
    fn yields(&mut self, op: Op, regions: &[Region], skip: usize) {
        for (i, r) in self.kernel.ops[op].results.clone().into_iter().enumerate() {
            let yielded = regions
                .iter()
                .map(|&region| self.kernel.facts(self.kernel.regions[region].results[skip + i]));
            self.kernel.values[r].facts = yielded.reduce(Facts::join).unwrap_or(Facts::UNKNOWN);
        }
    }

    /// Finds facts of a loop's carries that its body preserves; `once` goes through the loop, whose next carries `body` yields first.
    fn loop_carries(&mut self, inits: &[Value], carries: &[Value], body: Region, mut once: impl FnMut(&mut Self)) {
        let exhausted = self.budget == 0;
        for (&c, &init) in carries.iter().zip(inits) {
            self.kernel.values[c].facts = if exhausted {
                self.top(c)
            } else {
                self.kernel.facts(init)
            };
        }
        for round in 0.. {
            once(self);
            let mut changed = false;
            for (i, &c) in carries.iter().enumerate() {
                let n = self.kernel.regions[body].results[i];
                if !self.kernel.ty(c).is_scalar() {
                    continue;
                }
                let old = self.kernel.facts(c);
                let mut new = old.join(self.kernel.facts(n));
                let top = self.top(c);
                let last = round >= LAST_ROUND || self.budget == 0;
                if round >= ROUNDS || last {
                    let at = self.landmarks.partition_point(|&x| x < new.hi);
                    let above = self.landmarks.get(at).copied().filter(|_| !last).unwrap_or(top.hi);
                    let at = self.landmarks.partition_point(|&x| x <= new.lo);
                    let below = at
                        .checked_sub(1)
                        .map(|i| self.landmarks[i])
                        .filter(|_| !last)
                        .unwrap_or(top.lo);
                    new.lo = if new.lo < old.lo { below.max(top.lo) } else { new.lo };
                    new.hi = if new.hi > old.hi { above.min(top.hi) } else { new.hi };
                    // A divisor only ever shrinks to one of its divisors, but that can take long.
                    new.divisor = if new.divisor != old.divisor { 1 } else { new.divisor };
                }
                if new != old {
                    self.kernel.values[c].facts = new;
                    changed = true;
                }
            }
            if !changed {
                return;
            }
        }
    }
}

/// Recomputes the facts of one result from its op's operands.
pub fn update(kernel: &mut Kernel, v: Value) {
    if let Some(op) = kernel.def_op(v)
        && let Some(i) = kernel.ops[op].results.iter().position(|&r| r == v)
    {
        kernel.values[v].facts = of_result(kernel, op, i);
    }
}

impl Facts {
    /// What holds for both.
    pub fn join(self, other: Facts) -> Facts {
        Facts {
            lo: self.lo.min(other.lo),
            hi: self.hi.max(other.hi),
            divisor: gcd(self.divisor, other.divisor),
        }
    }

    /// A result computed exactly in [lo, hi], which the type `dtype` then wraps.
    fn wrapped(dtype: DType, lo: i128, hi: i128, divisor: u64) -> Facts {
        let top = Facts::of_dtype(dtype);
        if lo >= i128::from(top.lo) && hi <= i128::from(top.hi) {
            let (lo, hi) = (lo as i64, hi as i64);
            return if lo == hi {
                Facts::constant(lo)
            } else {
                Facts {
                    lo,
                    hi,
                    divisor: divisor.max(1),
                }
            };
        }
        // Wrapping adds a multiple of 2^width.
        let width = dtype.bits();
        let power = if divisor == 0 {
            width.min(62)
        } else {
            divisor.trailing_zeros().min(width.min(62))
        };
        Facts {
            divisor: 1 << power,
            ..top
        }
    }
}

fn gcd(a: u64, b: u64) -> u64 {
    let (mut a, mut b) = (a, b);
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

/// Facts of result `i` of an op without regions, from its operands'. A float's are meaningless.
pub fn of_result(kernel: &Kernel, op: Op, i: usize) -> Facts {
    let data = &kernel.ops[op];
    let result = data.results[i];
    let dtype = kernel.ty(result).dtype();
    let top = Facts::of_dtype(dtype);
    if dtype.is_float() || !kernel.ty(result).is_scalar() {
        return top;
    }
    let f = |v: Value| kernel.facts(v);
    let is_int = |v: Value| !kernel.ty(v).dtype().is_float() && kernel.ty(v).is_scalar();
    if let OpKind::OptimizationBarrier { values } = &data.kind {
        return f(values[i]);
    }
    let function = match data.kind.pure() {
        Some(Pure::Constant(c)) => {
            return c
                .splat()
                .and_then(|bits| bits_int(dtype, bits))
                .map_or(top, Facts::constant);
        }
        Some(Pure::AxisIndex(axis)) => {
            let last = kernel.axes[axis].size.saturating_sub(1);
            return Facts::range(0, last.min(i64::MAX as u64) as i64);
        }
        Some(Pure::Elementwise(function)) => function,
        Some(
            Pure::Iota
            | Pure::Bitcast
            | Pure::Shape(_)
            | Pure::Reduce { .. }
            | Pure::Run
            | Pure::Exchange
            | Pure::Product { .. }
            | Pure::LayoutCast
            | Pure::Relayout { .. }
            | Pure::Inline,
        )
        | None => return top,
    };
    match function {
        Function::Binary { op, a, b } => binary(op, dtype, f(a), f(b)),
        Function::Unary { op, a } if is_int(a) => unary(op, dtype, f(a)),
        Function::Compare { op, a, b } if is_int(a) => {
            let known = if a == b {
                Some(reflexive(op))
            } else {
                compare(op, f(a), f(b))
            };
            known.map_or(top, |x| Facts::constant(i64::from(x)))
        }
        Function::Select { which, cases } => select(kernel, which, cases),
        Function::Clamp { lo, x, hi } => {
            let raised = binary(BinaryOp::Max, dtype, f(x), f(lo));
            binary(BinaryOp::Min, dtype, raised, f(hi))
        }
        Function::Convert { a } if is_int(a) && dtype == DType::Bool => {
            let known = compare(CompareOp::Ne, f(a), Facts::constant(0));
            known.map_or(top, |x| Facts::constant(i64::from(x)))
        }
        Function::Convert { a } if is_int(a) => {
            let a = f(a);
            Facts::wrapped(dtype, i128::from(a.lo), i128::from(a.hi), a.divisor)
        }
        Function::MultipleOf { a, divisor } => {
            let a = f(a);
            let d = if a.divisor == 0 {
                0
            } else {
                let rest = a.divisor / gcd(a.divisor, divisor);
                rest.checked_mul(divisor).unwrap_or(a.divisor.max(divisor))
            };
            Facts { divisor: d, ..a }
        }
        Function::Unary { .. }
        | Function::Compare { .. }
        | Function::Convert { .. }
        | Function::IntegerPow { .. }
        | Function::ReducePrecision => top,
    }
}

fn binary(op: BinaryOp, dtype: DType, a: Facts, b: Facts) -> Facts {
    let top = Facts::of_dtype(dtype);
    let (al, ah, bl, bh) = (i128::from(a.lo), i128::from(a.hi), i128::from(b.lo), i128::from(b.hi));
    // A u64 without an upper bound may be above i64::MAX.
    let unbounded = |f: Facts| dtype == DType::U64 && f.hi == i64::MAX;
    if unbounded(a) || unbounded(b) {
        return top;
    }
    match op {
        BinaryOp::Add => Facts::wrapped(dtype, al + bl, ah + bh, gcd(a.divisor, b.divisor)),
        BinaryOp::Sub => Facts::wrapped(dtype, al - bh, ah - bl, gcd(a.divisor, b.divisor)),
        BinaryOp::Mul => {
            let p = [al * bl, al * bh, ah * bl, ah * bh];
            let (lo, hi) = (p.into_iter().min().unwrap_or(0), p.into_iter().max().unwrap_or(0));
            // The product of the divisors, or as much of it as fits.
            let divisor = a.divisor.checked_mul(b.divisor).unwrap_or(a.divisor.max(b.divisor));
            Facts::wrapped(dtype, lo, hi, divisor)
        }
        BinaryOp::Div => match (a.as_constant(), b.as_constant()) {
            (_, Some(0)) => Facts::wrapped(dtype, -1, -1, 1),
            (Some(x), Some(y)) => {
                let q = i128::from(x) / i128::from(y);
                Facts::wrapped(dtype, q, q, 1)
            }
            (_, Some(y)) => {
                let q = [al / i128::from(y), ah / i128::from(y)];
                let y = y.unsigned_abs();
                let divisor = if a.divisor.is_multiple_of(y) { a.divisor / y } else { 1 };
                Facts::wrapped(dtype, q[0].min(q[1]), q[0].max(q[1]), divisor)
            }
            _ if a.lo >= 0 && b.lo > 0 => Facts::wrapped(dtype, al / bh, ah / bl, 1),
            _ => top,
        },
        BinaryOp::Rem => {
            if let (Some(x), Some(y)) = (a.as_constant(), b.as_constant()) {
                let r = if y == 0 {
                    i128::from(x)
                } else {
                    i128::from(x) % i128::from(y)
                };
                return Facts::wrapped(dtype, r, r, 1);
            }
            let zero = b.lo <= 0 && b.hi >= 0;
            if zero {
                // x rem 0 = x, otherwise towards zero.
                return Facts {
                    lo: a.lo.min(0),
                    hi: a.hi.max(0),
                    divisor: gcd(a.divisor, b.divisor).max(1),
                };
            }
            let most = (bl.abs().max(bh.abs()) - 1) as i64;
            if let Some(y) = b.as_constant()
                && a.lo >= 0
                && i128::from(a.hi) < i128::from(y).abs()
            {
                return a;
            }
            if a.is_multiple_of(b.divisor) && b.as_constant().is_some() && b.divisor != 0 {
                return Facts::constant(0);
            }
            Facts {
                lo: if a.lo >= 0 { 0 } else { (-most).max(a.lo) },
                hi: if a.hi <= 0 { 0 } else { most.min(a.hi) },
                divisor: gcd(a.divisor, b.divisor).max(1),
            }
        }
        BinaryOp::Max => Facts {
            lo: a.lo.max(b.lo),
            hi: a.hi.max(b.hi),
            divisor: gcd(a.divisor, b.divisor),
        }
        .tight(),
        BinaryOp::Min => Facts {
            lo: a.lo.min(b.lo),
            hi: a.hi.min(b.hi),
            divisor: gcd(a.divisor, b.divisor),
        }
        .tight(),
        BinaryOp::And if dtype == DType::Bool => Facts::range(a.lo.min(b.lo).max(0), a.hi.min(b.hi)).tight(),
        BinaryOp::Or if dtype == DType::Bool => Facts::range(a.lo.max(b.lo), a.hi.max(b.hi).min(1)).tight(),
        BinaryOp::Xor if dtype == DType::Bool => match (a.as_constant(), b.as_constant()) {
            (Some(x), Some(y)) => Facts::constant(x ^ y),
            _ => top,
        },
        BinaryOp::And => match (a.as_constant(), b.as_constant()) {
            (Some(x), Some(y)) => Facts::constant(x & y),
            _ if a.lo >= 0 && b.lo >= 0 => Facts::range(0, a.hi.min(b.hi)),
            _ if a.lo >= 0 => Facts::range(0, a.hi),
            _ if b.lo >= 0 => Facts::range(0, b.hi),
            _ => top,
        },
        BinaryOp::Or | BinaryOp::Xor => match (a.as_constant(), b.as_constant()) {
            (Some(x), Some(y)) => Facts::constant(if op == BinaryOp::Or { x | y } else { x ^ y }),
            _ if a.lo >= 0 && b.lo >= 0 => {
                let bits = 64 - (a.hi | b.hi).leading_zeros();
                let hi = if bits >= 63 { i64::MAX } else { (1 << bits) - 1 };
                Facts::range(0, hi.min(top.hi))
            }
            _ => top,
        },
        BinaryOp::ShiftLeft => match b.as_constant() {
            Some(s) if (0..i64::from(dtype.bits())).contains(&s) && s < 63 => {
                binary(BinaryOp::Mul, dtype, a, Facts::constant(1 << s))
            }
            _ => top,
        },
        BinaryOp::ShiftRightLogical | BinaryOp::ShiftRightArithmetic if a.lo >= 0 => match b.as_constant() {
            Some(s) if (0..i64::from(dtype.bits())).contains(&s) && s < 63 => {
                binary(BinaryOp::Div, dtype, a, Facts::constant(1 << s))
            }
            _ => Facts::range(0, a.hi),
        },
        BinaryOp::ShiftRightLogical
        | BinaryOp::ShiftRightArithmetic
        | BinaryOp::Pow
        | BinaryOp::Atan2
        | BinaryOp::NextAfter
        | BinaryOp::CopySign => top,
    }
}

impl Facts {
    /// A range of one value is that constant.
    fn tight(self) -> Facts {
        match self.as_constant() {
            Some(x) => Facts::constant(x),
            None => Facts {
                divisor: self.divisor.max(1),
                ..self
            },
        }
    }
}

fn unary(op: UnaryOp, dtype: DType, a: Facts) -> Facts {
    let top = Facts::of_dtype(dtype);
    let (lo, hi) = (i128::from(a.lo), i128::from(a.hi));
    match op {
        UnaryOp::Neg if dtype.is_signed_int() => Facts::wrapped(dtype, -hi, -lo, a.divisor),
        UnaryOp::Abs if a.lo >= 0 => a,
        UnaryOp::Abs if dtype.is_signed_int() => {
            let least = if a.hi < 0 { -hi } else { 0 };
            Facts::wrapped(dtype, least, (-lo).max(hi), a.divisor)
        }
        UnaryOp::Sign => Facts::range(a.lo.signum(), a.hi.signum()).tight(),
        UnaryOp::Not if dtype == DType::Bool => match a.as_constant() {
            Some(x) => Facts::constant(1 - x),
            None => top,
        },
        UnaryOp::Not if dtype.is_signed_int() => Facts::range(!a.hi, !a.lo).tight(),
        UnaryOp::CountLeadingZeros | UnaryOp::PopulationCount => Facts::range(0, i64::from(dtype.bits())),
        _ => top,
    }
}

fn reflexive(op: CompareOp) -> bool {
    matches!(op, CompareOp::Eq | CompareOp::Le | CompareOp::Ge)
}

fn compare(op: CompareOp, a: Facts, b: Facts) -> Option<bool> {
    // `i64::MAX` may mean "no bound", but then the comparisons below decide nothing by it.
    match op {
        CompareOp::Lt if a.hi < b.lo => Some(true),
        CompareOp::Lt if a.lo >= b.hi && b.hi != i64::MAX => Some(false),
        CompareOp::Le if a.hi <= b.lo && a.hi != i64::MAX => Some(true),
        CompareOp::Le if a.lo > b.hi => Some(false),
        CompareOp::Gt => compare(CompareOp::Lt, b, a),
        CompareOp::Ge => compare(CompareOp::Le, b, a),
        CompareOp::Eq if a.hi < b.lo || b.hi < a.lo => Some(false),
        CompareOp::Eq => match (a.as_constant(), b.as_constant()) {
            (Some(x), Some(y)) if x != i64::MAX => Some(x == y),
            _ => None,
        },
        CompareOp::Ne => compare(CompareOp::Eq, a, b).map(|x| !x),
        CompareOp::Lt | CompareOp::Le => None,
    }
}

/// The join of the cases that can be chosen, each under what its choice says about it.
fn select(kernel: &Kernel, which: Value, cases: &[Value]) -> Facts {
    let w = kernel.facts(which);
    let mut joined: Option<Facts> = None;
    for (i, &case) in cases.iter().enumerate() {
        let i = i as i64;
        if i < w.lo || i > w.hi {
            continue;
        }
        let mut facts = kernel.facts(case);
        if kernel.ty(which).dtype() == DType::Bool
            && let Some(op) = kernel.def_op(which)
            && let OpKind::Compare { op, a, b } = kernel.ops[op].kind
        {
            facts = refine(kernel, op, a, b, i == 1, case, facts);
        }
        joined = Some(joined.map_or(facts, |j| j.join(facts)));
    }
    joined.unwrap_or(Facts::UNKNOWN)
}

/// Facts of `v` where `a op b` is `truth`.
fn refine(kernel: &Kernel, op: CompareOp, a: Value, b: Value, truth: bool, v: Value, f: Facts) -> Facts {
    let (op, bound) = if v == a {
        (op, kernel.facts(b))
    } else if v == b {
        let flipped = match op {
            CompareOp::Lt => CompareOp::Gt,
            CompareOp::Le => CompareOp::Ge,
            CompareOp::Gt => CompareOp::Lt,
            CompareOp::Ge => CompareOp::Le,
            CompareOp::Eq | CompareOp::Ne => op,
        };
        (flipped, kernel.facts(a))
    } else {
        return f;
    };
    if kernel.ty(v).dtype() == DType::U64 {
        return f;
    }
    let mut r = f;
    match (op, truth) {
        (CompareOp::Lt, true) | (CompareOp::Ge, false) => r.hi = r.hi.min(bound.hi.saturating_sub(1)),
        (CompareOp::Le, true) | (CompareOp::Gt, false) => r.hi = r.hi.min(bound.hi),
        (CompareOp::Gt, true) | (CompareOp::Le, false) => r.lo = r.lo.max(bound.lo.saturating_add(1)),
        (CompareOp::Ge, true) | (CompareOp::Lt, false) => r.lo = r.lo.max(bound.lo),
        (CompareOp::Eq, true) | (CompareOp::Ne, false) => {
            r.lo = r.lo.max(bound.lo);
            r.hi = r.hi.min(bound.hi);
        }
        (CompareOp::Eq, false) | (CompareOp::Ne, true) => {
            if let Some(x) = bound.as_constant() {
                if r.lo == x {
                    r.lo = r.lo.saturating_add(1);
                }
                if r.hi == x {
                    r.hi = r.hi.saturating_sub(1);
                }
            }
        }
    }
    // An impossible case says nothing.
    if r.lo > r.hi { f } else { r.tight() }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every pair of small ranges: the facts of a result hold for every pair of values in them.
    #[test]
    fn binary_facts_hold_for_every_value() {
        let lax = |op: BinaryOp, x: i64, y: i64| -> i64 {
            let wrap = |x: i64| i64::from(x as i8);
            match op {
                BinaryOp::Add => wrap(x + y),
                BinaryOp::Sub => wrap(x - y),
                BinaryOp::Mul => wrap(x * y),
                BinaryOp::Div => {
                    if y == 0 {
                        -1
                    } else {
                        wrap(x / y)
                    }
                }
                BinaryOp::Rem => {
                    if y == 0 {
                        x
                    } else {
                        x % y
                    }
                }
                BinaryOp::Max => x.max(y),
                BinaryOp::Min => x.min(y),
                BinaryOp::And => x & y,
                BinaryOp::Or => x | y,
                BinaryOp::Xor => x ^ y,
                BinaryOp::ShiftLeft => {
                    if (0..8).contains(&y) {
                        wrap(x << y)
                    } else {
                        0
                    }
                }
                BinaryOp::ShiftRightLogical => {
                    if (0..8).contains(&y) {
                        wrap((x & 0xff) >> y)
                    } else {
                        0
                    }
                }
                BinaryOp::ShiftRightArithmetic => x >> if (0..8).contains(&y) { y } else { 7 },
                BinaryOp::Pow | BinaryOp::Atan2 | BinaryOp::NextAfter | BinaryOp::CopySign => unreachable!("floats"),
            }
        };
        let bounds = [-128, -127, -9, -8, -1, 0, 1, 3, 7, 8, 64, 126, 127];
        let mut ranges = vec![];
        for (i, &lo) in bounds.iter().enumerate() {
            for &hi in &bounds[i..] {
                for divisor in [1u64, 4, 6] {
                    let values: Vec<i64> = (lo..=hi)
                        .filter(|x: &i64| x.unsigned_abs().is_multiple_of(divisor))
                        .collect();
                    if !values.is_empty() {
                        ranges.push((
                            Facts {
                                lo,
                                hi,
                                divisor: if lo == hi { lo.unsigned_abs() } else { divisor },
                            },
                            values,
                        ));
                    }
                }
            }
        }
        for op in BinaryOp::ALL.iter().copied().filter(|op| {
            !matches!(
                op,
                BinaryOp::Pow | BinaryOp::Atan2 | BinaryOp::NextAfter | BinaryOp::CopySign
            )
        }) {
            for (i, (a, xs)) in ranges.iter().enumerate() {
                // A third of the pairs, a different third for each row.
                for (b, ys) in ranges.iter().skip(i % 3).step_by(3) {
                    let r = binary(op, DType::I8, *a, *b);
                    for &x in xs.iter().step_by(1 + xs.len() / 16).chain(xs.last()) {
                        for &y in ys.iter().step_by(1 + ys.len() / 16).chain(ys.last()) {
                            let z = lax(op, x, y);
                            let holds = r.lo <= z
                                && z <= r.hi
                                && (if r.divisor == 0 {
                                    z == 0
                                } else {
                                    z.unsigned_abs().is_multiple_of(r.divisor)
                                });
                            assert!(holds, "{} {x} {y} = {z}: {a} {b} gave {r} (÷{})", op.name(), r.divisor);
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn comparisons_decide_only_what_is_certain() {
        let (small, large) = (Facts::range(0, 7), Facts::range(8, 9));
        assert_eq!(compare(CompareOp::Lt, small, large), Some(true));
        assert_eq!(compare(CompareOp::Ge, small, large), Some(false));
        assert_eq!(compare(CompareOp::Eq, small, large), Some(false));
        assert_eq!(compare(CompareOp::Lt, small, Facts::range(7, 9)), None);
        assert_eq!(compare(CompareOp::Le, Facts::UNKNOWN, Facts::constant(i64::MAX)), None);
    }
}
