//! What is known about integer scalars: range and divisibility.
//!
//! One forward walk in program order. A loop's carries start as what their initial values are and grow until the body gives
//! nothing new; a bound that keeps growing jumps to the next constant that the kernel compares with, in the end to the type's.
//! The work is bounded: when the budget is spent, carries start as anything their type allows.
use super::class::{Control, Function};
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
                    landmarks.extend([x - 1, x, x + 1]);
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
    landmarks: Vec<i128>,
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
                    hi: (hi.hi - 1).max(lo.lo),
                    divisor: 1,
                };
                self.kernel.values[params[0]].facts = counter.tight();
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
        if lo >= top.lo && hi <= top.hi {
            return Facts { lo, hi, divisor }.tight();
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
    if let OpKind::Constant(c) = &data.kind {
        let number = c.splat().and_then(|bits| bits_int(dtype, bits));
        return number.map_or(top, Facts::constant);
    }
    if let OpKind::AxisIndex { axis } = data.kind {
        return Facts::range(0, kernel.axes[axis].size.saturating_sub(1)).tight();
    }
    let Some(function) = data.kind.function() else {
        return top;
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
            known.map_or(top, Facts::constant)
        }
        Function::Select { which, cases } => select(kernel, which, cases),
        Function::Clamp { lo, x, hi } => {
            let raised = binary(BinaryOp::Max, dtype, f(x), f(lo));
            binary(BinaryOp::Min, dtype, raised, f(hi))
        }
        Function::Convert { a } if is_int(a) => convert(dtype, f(a)),
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
        Function::IntegerPow { a, n } => {
            let known = f(a).only().and_then(|a| arithmetic::power(dtype, a, n));
            known.map_or(top, Facts::constant)
        }
        Function::Unary { .. } | Function::Compare { .. } | Function::Convert { .. } | Function::Other => top,
    }
}

/// An integer or bool as one of the type `to`.
fn convert(to: DType, a: Facts) -> Facts {
    if to == DType::Bool {
        let known = compare(CompareOp::Ne, a, Facts::constant(0));
        return known.map_or(Facts::of_dtype(to), Facts::constant);
    }
    match a.only() {
        Some(x) => Facts::constant(arithmetic::wrap(to, x)),
        None => Facts::wrapped(to, a.lo, a.hi, a.divisor),
    }
}

fn binary(op: BinaryOp, dtype: DType, a: Facts, b: Facts) -> Facts {
    let top = Facts::of_dtype(dtype);
    if let (Some(x), Some(y)) = (a.only(), b.only()) {
        return arithmetic::binary(op, dtype, x, y).map_or(top, Facts::constant);
    }
    if dtype == DType::Bool {
        return truth(op, a, b);
    }
    let (al, ah, bl, bh) = (a.lo, a.hi, b.lo, b.hi);
    let width = i128::from(dtype.bits());
    match op {
        BinaryOp::Add => Facts::wrapped(dtype, al + bl, ah + bh, gcd(a.divisor, b.divisor)),
        BinaryOp::Sub => Facts::wrapped(dtype, al - bh, ah - bl, gcd(a.divisor, b.divisor)),
        BinaryOp::Mul => {
            // The largest are beyond every type; exactly how far does not matter.
            let p = [(al, bl), (al, bh), (ah, bl), (ah, bh)].map(|(x, y)| x.saturating_mul(y));
            let (lo, hi) = (p.into_iter().min().unwrap_or(0), p.into_iter().max().unwrap_or(0));
            // The product of the divisors, or as much of it as fits.
            let divisor = a.divisor.checked_mul(b.divisor).unwrap_or(a.divisor.max(b.divisor));
            Facts::wrapped(dtype, lo, hi, divisor)
        }
        BinaryOp::Div => match b.only() {
            Some(0) => Facts::constant(arithmetic::wrap(dtype, -1)),
            Some(y) => {
                let q = [al / y, ah / y];
                let y = y.unsigned_abs() as u64;
                let divisor = if a.divisor.is_multiple_of(y) { a.divisor / y } else { 1 };
                Facts::wrapped(dtype, q[0].min(q[1]), q[0].max(q[1]), divisor)
            }
            _ if a.lo >= 0 && b.lo > 0 => Facts::wrapped(dtype, al / bh, ah / bl, 1),
            _ => top,
        },
        BinaryOp::Rem => {
            let zero = b.lo <= 0 && b.hi >= 0;
            if zero {
                // x rem 0 = x, otherwise towards zero.
                return Facts {
                    lo: a.lo.min(0),
                    hi: a.hi.max(0),
                    divisor: gcd(a.divisor, b.divisor).max(1),
                };
            }
            let most = bl.abs().max(bh.abs()) - 1;
            if let Some(y) = b.only()
                && a.lo >= 0
                && a.hi < y.abs()
            {
                return a;
            }
            if a.is_multiple_of(b.divisor) && b.only().is_some() {
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
        BinaryOp::And => match (al >= 0, bl >= 0) {
            (true, true) => Facts::range(0, ah.min(bh)),
            (true, false) => Facts::range(0, ah),
            (false, true) => Facts::range(0, bh),
            (false, false) => top,
        },
        BinaryOp::Or | BinaryOp::Xor if al >= 0 && bl >= 0 => {
            let bits = 128 - (ah | bh).leading_zeros();
            Facts::range(0, (1i128 << bits) - 1)
        }
        // A shift by s is a product with, or a quotient by, 2^s: the factor is exact, the result wraps.
        BinaryOp::ShiftLeft => match b.only() {
            Some(s) if (0..width).contains(&s) => binary(BinaryOp::Mul, dtype, a, Facts::constant(1i128 << s)),
            _ => top,
        },
        BinaryOp::ShiftRightLogical => shifted_right(dtype, a, b),
        // The bits of an unsigned type are shifted as those of a signed one.
        BinaryOp::ShiftRightArithmetic if ah < 1 << (width - 1) => shifted_right(dtype, a, b),
        BinaryOp::Or
        | BinaryOp::Xor
        | BinaryOp::ShiftRightArithmetic
        | BinaryOp::Pow
        | BinaryOp::Atan2
        | BinaryOp::NextAfter
        | BinaryOp::CopySign => top,
    }
}

/// A function of bools that are not both known.
fn truth(op: BinaryOp, a: Facts, b: Facts) -> Facts {
    match op {
        BinaryOp::And | BinaryOp::Mul | BinaryOp::Min => Facts::range(a.lo.min(b.lo), a.hi.min(b.hi)).tight(),
        BinaryOp::Or | BinaryOp::Add | BinaryOp::Max => Facts::range(a.lo.max(b.lo), a.hi.max(b.hi)).tight(),
        BinaryOp::Sub
        | BinaryOp::Div
        | BinaryOp::Rem
        | BinaryOp::Xor
        | BinaryOp::ShiftLeft
        | BinaryOp::ShiftRightLogical
        | BinaryOp::ShiftRightArithmetic
        | BinaryOp::Pow
        | BinaryOp::Atan2
        | BinaryOp::NextAfter
        | BinaryOp::CopySign => Facts::of_dtype(DType::Bool),
    }
}

/// A right shift of bits whose highest is known to be 0.
fn shifted_right(dtype: DType, a: Facts, b: Facts) -> Facts {
    if a.lo < 0 {
        return Facts::of_dtype(dtype);
    }
    match b.only() {
        Some(s) if (0..i128::from(dtype.bits())).contains(&s) => {
            binary(BinaryOp::Div, dtype, a, Facts::constant(1i128 << s))
        }
        _ => Facts::range(0, a.hi),
    }
}

impl Facts {
    /// A range of one value is that constant.
    fn tight(self) -> Facts {
        match self.only() {
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
    if let Some(x) = a.only() {
        return arithmetic::unary(op, dtype, x).map_or(top, Facts::constant);
    }
    let (lo, hi) = (a.lo, a.hi);
    match op {
        UnaryOp::Neg if dtype.is_signed_int() => Facts::wrapped(dtype, -hi, -lo, a.divisor),
        UnaryOp::Abs if a.lo >= 0 => a,
        UnaryOp::Abs if dtype.is_signed_int() => {
            let least = if a.hi < 0 { -hi } else { 0 };
            Facts::wrapped(dtype, least, (-lo).max(hi), a.divisor)
        }
        UnaryOp::Sign => Facts::range(a.lo.signum(), a.hi.signum()).tight(),
        UnaryOp::Not if dtype.is_signed_int() => Facts::range(!a.hi, !a.lo).tight(),
        UnaryOp::CountLeadingZeros | UnaryOp::PopulationCount => Facts::wrapped(dtype, 0, dtype.bits().into(), 1),
        _ => top,
    }
}

fn reflexive(op: CompareOp) -> bool {
    matches!(op, CompareOp::Eq | CompareOp::Le | CompareOp::Ge)
}

fn compare(op: CompareOp, a: Facts, b: Facts) -> Option<bool> {
    match op {
        CompareOp::Lt if a.hi < b.lo => Some(true),
        CompareOp::Lt if a.lo >= b.hi => Some(false),
        CompareOp::Le if a.hi <= b.lo => Some(true),
        CompareOp::Le if a.lo > b.hi => Some(false),
        CompareOp::Gt => compare(CompareOp::Lt, b, a),
        CompareOp::Ge => compare(CompareOp::Le, b, a),
        CompareOp::Eq if a.hi < b.lo || b.hi < a.lo => Some(false),
        CompareOp::Eq => match (a.only(), b.only()) {
            (Some(x), Some(y)) => Some(x == y),
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
        let i = i as i128;
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
    let mut r = f;
    match (op, truth) {
        (CompareOp::Lt, true) | (CompareOp::Ge, false) => r.hi = r.hi.min(bound.hi - 1),
        (CompareOp::Le, true) | (CompareOp::Gt, false) => r.hi = r.hi.min(bound.hi),
        (CompareOp::Gt, true) | (CompareOp::Le, false) => r.lo = r.lo.max(bound.lo + 1),
        (CompareOp::Ge, true) | (CompareOp::Lt, false) => r.lo = r.lo.max(bound.lo),
        (CompareOp::Eq, true) | (CompareOp::Ne, false) => {
            r.lo = r.lo.max(bound.lo);
            r.hi = r.hi.min(bound.hi);
        }
        (CompareOp::Eq, false) | (CompareOp::Ne, true) => {
            if let Some(x) = bound.only() {
                if r.lo == x {
                    r.lo += 1;
                }
                if r.hi == x {
                    r.hi -= 1;
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

    fn integers() -> impl Iterator<Item = DType> {
        DType::ALL.into_iter().filter(|d| !d.is_float())
    }

    fn holds(facts: Facts, x: i128) -> bool {
        let divides = match facts.divisor {
            0 => x == 0,
            n => x.unsigned_abs().is_multiple_of(n.into()),
        };
        facts.within(i64::MIN, u64::MAX) && facts.lo <= x && x <= facts.hi && divides
    }

    /// Facts of numbers of a type, each with some of the numbers that it is true of, its ends among them.
    fn ranges(dtype: DType) -> Vec<(Facts, Vec<i128>)> {
        let all = arithmetic::numbers(dtype);
        let last = all.len() - 1;
        let zero = all.partition_point(|x| *x < 0);
        let mut ends: Vec<usize> = [
            0,
            1,
            9,
            zero.saturating_sub(1),
            zero,
            zero + 1,
            zero + 3,
            zero + 8,
            last / 3,
            last - 1,
            last,
        ]
        .map(|i| i.min(last))
        .to_vec();
        ends.sort_unstable();
        ends.dedup();
        let mut out = vec![];
        for (i, &from) in ends.iter().enumerate() {
            for &to in &ends[i..] {
                for divisor in [1u64, 4, 6] {
                    let range = Facts {
                        lo: all[from],
                        hi: all[to],
                        divisor,
                    };
                    let range = range.tight();
                    let of_range: Vec<i128> = all[from..=to].iter().copied().filter(|x| holds(range, *x)).collect();
                    let some = of_range.iter().step_by(1 + of_range.len() / 6);
                    let some: Vec<i128> = some.chain(of_range.last()).copied().collect();
                    if !some.is_empty() {
                        out.push((range, some));
                    }
                }
            }
        }
        out
    }

    #[test]
    fn what_is_folded_is_what_is_computed() {
        for dtype in integers() {
            let numbers = arithmetic::numbers(dtype);
            for &x in &numbers {
                for op in UnaryOp::ALL.iter().copied() {
                    let want = arithmetic::unary(op, dtype, x);
                    let got = unary(op, dtype, Facts::constant(x));
                    assert_eq!(
                        got,
                        want.map_or(Facts::of_dtype(dtype), Facts::constant),
                        "{} {x}",
                        op.name()
                    );
                }
                for op in BinaryOp::ALL.iter().copied() {
                    for &y in &numbers {
                        let want = arithmetic::binary(op, dtype, x, y);
                        let got = binary(op, dtype, Facts::constant(x), Facts::constant(y));
                        let want = want.map_or(Facts::of_dtype(dtype), Facts::constant);
                        assert_eq!(got, want, "{} {dtype} {x} {y}", op.name());
                    }
                }
                for to in integers() {
                    let got = convert(to, Facts::constant(x));
                    assert_eq!(got, Facts::constant(arithmetic::wrap(to, x)), "{dtype} {x} to {to}");
                }
            }
        }
    }

    /// For some pairs of numbers in every pair of ranges.
    #[test]
    fn facts_of_results_hold() {
        for dtype in integers() {
            let ranges = ranges(dtype);
            for (i, (a, xs)) in ranges.iter().enumerate() {
                for op in UnaryOp::ALL.iter().copied() {
                    let facts = unary(op, dtype, *a);
                    for &x in xs {
                        if let Some(z) = arithmetic::unary(op, dtype, x) {
                            assert!(holds(facts, z), "{} {dtype} {x} = {z}: {a} gave {facts}", op.name());
                        }
                    }
                }
                for to in integers() {
                    let facts = convert(to, *a);
                    for &x in xs {
                        let z = arithmetic::wrap(to, x);
                        assert!(holds(facts, z), "{dtype} {x} to {to} = {z}: {a} gave {facts}");
                    }
                }
                // A third of the pairs, a different third for each row.
                for (b, ys) in ranges.iter().skip(i % 3).step_by(3) {
                    for op in BinaryOp::ALL.iter().copied() {
                        let facts = binary(op, dtype, *a, *b);
                        for (&x, &y) in xs.iter().flat_map(|x| ys.iter().map(move |y| (x, y))) {
                            if let Some(z) = arithmetic::binary(op, dtype, x, y) {
                                let name = op.name();
                                assert!(holds(facts, z), "{name} {dtype} {x} {y} = {z}: {a}, {b} gave {facts}");
                            }
                        }
                    }
                    for op in CompareOp::ALL.iter().copied() {
                        let Some(known) = compare(op, *a, *b) else { continue };
                        for (&x, &y) in xs.iter().flat_map(|x| ys.iter().map(move |y| (x, y))) {
                            assert_eq!(arithmetic::compare(op, x, y), known, "{x} {} {y}: {a}, {b}", op.name());
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
