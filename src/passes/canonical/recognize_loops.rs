//! Finds counted loops, and what moves through loops in step with the counter.
//!
//! * A `while` whose condition is `i < n`, with n fixed and `i + 1` carried on, is a `for`.
//! * A carry that the body hands on unchanged is its initial value.
//! * A carry that grows by a fixed number is that number times the iteration.
use crate::dtype::DType;
use crate::error::{Loc, Result};
use crate::kernel_ir::rewrite::{Substitution, append_binary, append_convert, regions_of, values_defined_in};
use crate::kernel_ir::*;
use rustc_hash::FxHashSet;

pub fn run(kernel: &mut Kernel) -> Result<()> {
    let body = kernel.body;
    let mut subst = Substitution::default();
    region(kernel, body, &mut subst);
    subst.apply_region(kernel, body);
    Ok(())
}

fn region(kernel: &mut Kernel, at: Region, subst: &mut Substitution) {
    let ops = std::mem::take(&mut kernel.regions[at].ops);
    for op in ops {
        subst.apply(kernel, op);
        for inner in regions_of(kernel, op) {
            region(kernel, inner, subst);
        }
        let after = counted(kernel, op);
        if matches!(kernel.ops[op].kind, OpKind::For { .. }) {
            induction(kernel, at, op, subst);
        } else {
            kernel.regions[at].ops.push(op);
        }
        if let Some((result, lower, upper)) = after {
            let end = append_binary(kernel, at, BinaryOp::Max, lower, upper, kernel.ops[op].loc);
            subst.replace(result, end);
        }
    }
    subst.apply_results(kernel, at);
}

/// Turns a `while` into a `for` if it is one. Gives the counter's old result and the bounds.
fn counted(kernel: &mut Kernel, op: Op) -> Option<(Value, Value, Value)> {
    let OpKind::While { inits, cond, body } = &kernel.ops[op].kind else {
        return None;
    };
    let (inits, cond, body) = (inits.clone(), *cond, *body);
    let c = &kernel.regions[cond];
    // The condition computes one comparison and hands the carries on.
    let [only] = c.ops.as_slice() else { return None };
    if c.results[1..] != c.params[..] || kernel.def_op(c.results[0]) != Some(*only) {
        return None;
    }
    let OpKind::Compare { op: compares, a, b } = kernel.ops[*only].kind else {
        return None;
    };
    let (i, n) = match compares {
        CompareOp::Lt => (a, b),
        CompareOp::Gt => (b, a),
        CompareOp::Eq | CompareOp::Ne | CompareOp::Le | CompareOp::Ge => return None,
    };
    let dtype = kernel.ty(i).dtype();
    let k = c.params.iter().position(|&p| p == i)?;
    if !dtype.is_int() || !kernel.ty(i).is_scalar() {
        return None;
    }
    let b = &kernel.regions[body];
    // The bound: a carry that stays, or a value from outside (the condition's region defines nothing else).
    let upper = match c.params.iter().position(|&p| p == n) {
        Some(m) if b.results[m] == b.params[m] => inits[m],
        Some(_) => return None,
        None => n,
    };
    let (step_of, step) = increment(kernel, b.results[k])?;
    if step_of != b.params[k] || kernel.facts(step).as_constant() != Some(1) {
        return None;
    }
    let lower = inits[k];
    let result = kernel.ops[op].results[k];
    let mut inits = inits;
    inits.remove(k);
    let data = &mut kernel.regions[body];
    let counter = data.params.remove(k);
    data.params.insert(0, counter);
    data.results.remove(k);
    kernel.ops[op].results.remove(k);
    kernel.ops[op].kind = OpKind::For {
        lower,
        upper,
        inits,
        xs: vec![],
        reverse: false,
        unroll: 1,
        body,
    };
    Some((result, lower, upper))
}

/// `x + c` as (x, c), either way round.
fn increment(kernel: &Kernel, v: Value) -> Option<(Value, Value)> {
    let OpKind::Binary {
        op: BinaryOp::Add,
        a,
        b,
    } = kernel.ops[kernel.def_op(v)?].kind
    else {
        return None;
    };
    if !kernel.ty(v).is_scalar() || !kernel.ty(v).dtype().is_int() {
        return None;
    }
    Some(if kernel.facts(a).as_constant().is_some() {
        (b, a)
    } else {
        (a, b)
    })
}

/// Writes the loop at the end of `at`, its carries replaced by functions of the counter where they are that.
fn induction(kernel: &mut Kernel, at: Region, op: Op, subst: &mut Substitution) {
    let OpKind::For {
        lower,
        upper,
        inits,
        xs: _,
        reverse,
        unroll: _,
        body,
    } = &kernel.ops[op].kind
    else {
        return;
    };
    let (lower, upper, inits, reverse, body) = (*lower, *upper, inits.clone(), *reverse, *body);
    let loc = kernel.ops[op].loc;
    let inside = values_inside(kernel, body, &inits);
    let params = kernel.regions[body].params.clone();
    let results = kernel.regions[body].results.clone();
    let mut dropped = vec![false; inits.len()];
    // Ops that compute carries from the counter come first in the body.
    let rest = std::mem::take(&mut kernel.regions[body].ops);
    let mut ends = vec![];
    for (j, &init) in inits.iter().enumerate() {
        let (p, r) = (params[1 + j], subst.resolve(results[j]));
        let result = kernel.ops[op].results[j];
        if r == p || r == init {
            subst.replace(p, init);
            ends.push((result, init, None));
            dropped[j] = true;
        } else if let Some((x, c)) = increment(kernel, r)
            && x == p
            && !inside.contains(&c)
            && !reverse
        {
            let dtype = kernel.ty(p).dtype();
            let value = advanced(kernel, body, init, params[0], lower, c, dtype, loc);
            subst.replace(p, value);
            ends.push((result, init, Some(c)));
            dropped[j] = true;
        } else if let Some((x, c)) = increment(kernel, r)
            && x == p
            && let Some(c) = kernel.facts(c).as_constant()
            && !reverse
        {
            // A constant, defined inside of the loop.
            let dtype = kernel.ty(p).dtype();
            let c_in = kernel.append_int(body, dtype, c, loc);
            let value = advanced(kernel, body, init, params[0], lower, c_in, dtype, loc);
            subst.replace(p, value);
            let c_out = kernel.append_int(at, dtype, c, loc);
            ends.push((result, init, Some(c_out)));
            dropped[j] = true;
        }
    }
    kernel.regions[body].ops.extend(rest);
    drop_carries(kernel, op, body, &dropped);
    // The loop's bounds may be among its own carries' substitutes, never the other way round.
    kernel.regions[at].ops.push(op);
    for (result, init, c) in ends {
        let end = match c {
            None => init,
            Some(c) => {
                let dtype = kernel.ty(init).dtype();
                let past = append_binary(kernel, at, BinaryOp::Max, lower, upper, loc);
                advanced(kernel, at, init, past, lower, c, dtype, loc)
            }
        };
        subst.replace(result, end);
    }
}

/// `init + (i − lower)·c`, modulo the carry's type as the loop's sums are.
#[allow(clippy::too_many_arguments)]
fn advanced(
    kernel: &mut Kernel,
    region: Region,
    init: Value,
    i: Value,
    lower: Value,
    c: Value,
    dtype: DType,
    loc: Loc,
) -> Value {
    // In the carry's type: i − lower may be beyond the counter's.
    let mut n = append_convert(kernel, region, i, dtype, loc);
    if kernel.facts(lower).as_constant() != Some(0) {
        let lower = append_convert(kernel, region, lower, dtype, loc);
        n = append_binary(kernel, region, BinaryOp::Sub, n, lower, loc);
    }
    if kernel.facts(c).as_constant() != Some(1) {
        n = append_binary(kernel, region, BinaryOp::Mul, n, c, loc);
    }
    if kernel.facts(init).as_constant() != Some(0) {
        n = append_binary(kernel, region, BinaryOp::Add, init, n, loc);
    }
    n
}

/// Values of the loop's body; none need be collected for a loop without carries.
fn values_inside(kernel: &Kernel, body: Region, inits: &[Value]) -> FxHashSet<Value> {
    if inits.is_empty() {
        FxHashSet::default()
    } else {
        values_defined_in(kernel, body)
    }
}

fn drop_carries(kernel: &mut Kernel, op: Op, body: Region, dropped: &[bool]) {
    let keep = |i: usize| !dropped.get(i).copied().unwrap_or(false);
    let mut i = 0;
    kernel.ops[op].results.retain(|_| {
        i += 1;
        keep(i - 1)
    });
    let data = &mut kernel.regions[body];
    let mut i = 0;
    data.results.retain(|_| {
        i += 1;
        keep(i - 1)
    });
    let mut i = 0;
    data.params.retain(|_| {
        i += 1;
        i == 1 || keep(i - 2)
    });
    let OpKind::For { inits, .. } = &mut kernel.ops[op].kind else {
        return;
    };
    let mut i = 0;
    inits.retain(|_| {
        i += 1;
        keep(i - 1)
    });
}
