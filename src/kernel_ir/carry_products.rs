//! Lets the next iteration's first product begin before this one's last is waited for.
//!
//! A loop ends its iterations with a product, its wait, and the arrivals that release the operands; the next begins with another product.
//! Between them the tensor cores are idle for as long as threads take to see the one end and to start the other. Here the loop carries the
//! accumulator, not the elements that were read of it, and both are waited for at once:
//!
//! ```text
//! for i (x) {                              y = acc_init x
//!   q = wgmma …                            for i (y, slot') {
//!   arrive [go]                              q = wgmma …
//!   wait [go]                                arrive [go]
//!   wgmma_wait 0 q                           wgmma_wait 0 y, q
//!   …                                 =>     x = read y; if i > first { arrive [slot'] }
//!   y = wgmma acc_init(f(x)) += …            wait [go]
//!   …                                        …
//!   wgmma_wait 0 y                           y = wgmma acc_init(f(x)) += …
//!   x = read y                               yield y, slot
//!   arrive [slot]                          }
//!   yield x                                wgmma_wait 0 y
//! }                                        x = read y; if any { arrive [slot] }
//! ```
//!
//! * **The end** of an iteration that moves is a wait for everything, reads of the accumulators that it settles, and arrivals; what is read is
//!   handed on, and taken by nothing before the place it moves to.
//! * **It moves over** scalars, starts of accumulators, products, and arrivals, to the first other op. An arrival that is late makes others
//!   wait; in what it moves over nobody waits, for whatever they do. So whoever waits for it goes on, later.
//! * **The wait for the first product** moves up to there: that ends by itself, and what it moves over are waits and arrivals, which need no
//!   registers. A wait for some of the products in flight would do, but ptxas 13.0 serialises products whose accumulators are read behind one
//!   that began before the loop's end (C7514).
//! * **Registers**: the last product's operands in registers stay until it is waited for, beside the first one's accumulator. Where that does not
//!   fit, the loop stays as it is.
//!
//! Not in use: arrivals that it passes (`arrive [go]`) may release the operands of the product that still runs, to others who go by them and not by `arrive
//! [slot]`. That nobody does is to be shown: who writes those operands waits for `arrive [slot]`, each time for the phase of the use before. In attention the
//! loop's `go` is waited for by warpgroups that write nothing, but what they arrive at in turn is waited for by the one that does.
//!
//! Attention on an H200, the same change made by hand in the PTX: head 64, blocks of 128 and 64 keys, 153.1 → 149.7 and 181.7 → 167.1 µs; head 128,
//! 202.0 → 196.6 and 227.7 → 221.3.
use super::rewrite::{Substitution, append_binary, append_compare, copy_op, regions_of};
use super::*;
use crate::error::Result;
use rustc_hash::{FxHashMap, FxHashSet};

/// What was looked for, or why it is not so.
type Found<T> = std::result::Result<T, &'static str>;

pub fn run(kernel: &mut Kernel) -> Result<()> {
    if kernel.ops.values().any(|op| matches!(op.kind, OpKind::Wgmma { .. })) {
        let threads = 128 * kernel.num_warpgroups;
        let share = (kernel.target.registers / threads).min(kernel.target.max_thread_registers);
        region(kernel, kernel.body, share);
    }
    Ok(())
}

/// `registers` of a thread.
fn region(kernel: &mut Kernel, at: Region, mut registers: u32) {
    let mut i = 0;
    while i < kernel.regions[at].ops.len() {
        let op = kernel.regions[at].ops[i];
        i += 1;
        if let OpKind::SetMaxRegisters { n, .. } = kernel.ops[op].kind {
            registers = n.min(kernel.target.max_thread_registers);
        }
        match find(kernel, op, registers) {
            Ok(Some(end)) => {
                let rest = kernel.regions[at].ops.split_off(i);
                kernel.regions[at].ops.pop();
                carry(kernel, at, op, end, &rest);
                i = kernel.regions[at].ops.len() - rest.len();
            }
            Ok(None) => {}
            Err(text) => {
                let (loc, pass) = (kernel.ops[op].loc, "carry_products");
                kernel.notes.push(Note { loc, pass, text });
            }
        }
        for inner in regions_of(kernel, op) {
            region(kernel, inner, registers);
        }
    }
}

/// The end of an iteration that may be late.
struct End {
    /// The wait: from here on the loop's ops are the end.
    from: usize,
    /// Accumulators that it settles, and the positions among what the loop carries of what is read of each.
    settled: Vec<(Value, usize)>,
    arrivals: Vec<Op>,
    /// What the arrivals take from the iteration.
    kept: Vec<Value>,
    /// Where it goes, and the place of the wait that goes there too.
    to: usize,
    wait: usize,
}

/// `None`: no loop that ends and begins with products.
fn find(kernel: &Kernel, op: Op, registers: u32) -> Found<Option<End>> {
    let OpKind::For {
        ref xs,
        reverse: false,
        body,
        ..
    } = kernel.ops[op].kind
    else {
        return Ok(None);
    };
    let RegionData {
        params, ops, results, ..
    } = &kernel.regions[body];
    let kind = |op: Op| &kernel.ops[op].kind;
    let is_wait = |op: &Op| matches!(kind(*op), OpKind::WgmmaWait { .. });
    let is_product = |op: &Op| matches!(kind(*op), OpKind::Wgmma { .. });

    // The beginning: up to the first op that somebody may wait in.
    let passes = |op: &Op| {
        let is_scalar = kernel.ops[*op].results.iter().all(|v| kernel.ty(*v).is_scalar());
        matches!(
            kind(*op),
            OpKind::AccInit { init: None } | OpKind::Wgmma { .. } | OpKind::BarrierArrive { .. }
        ) || kind(*op).is_pure() && is_scalar
    };
    let to = ops.iter().take_while(|op| passes(op)).count();
    let (Some(wait), Some(from)) = (
        ops.iter().skip(to).position(is_wait).map(|k| to + k),
        ops.iter().rposition(is_wait),
    ) else {
        return Ok(None);
    };
    if wait == from || !xs.is_empty() || !ops[..to].iter().any(is_product) {
        return Ok(None);
    }
    let OpKind::WgmmaWait { n: 0, accs: ended } = kind(ops[from]) else {
        return Ok(None);
    };
    let OpKind::WgmmaWait { n: 0, .. } = kind(ops[wait]) else {
        return Err("the first product of an iteration is waited for with others in flight");
    };
    let is_light = |op: &Op| match kind(*op) {
        OpKind::BarrierWait { .. } | OpKind::BarrierArrive { .. } | OpKind::Sync { .. } => true,
        kind => kind.is_pure() && kernel.ops[*op].results.iter().all(|v| kernel.ty(*v).is_scalar()),
    };
    if !ops[to..wait].iter().all(is_light) {
        return Err("something is done between the first product of an iteration and its wait");
    }

    // The end: reads, and arrivals.
    let (mut read, mut arrivals) = (FxHashMap::default(), vec![]);
    for &op in &ops[from + 1..] {
        match kind(op) {
            OpKind::AccRead {
                acc: AccUse::Value(acc),
            } => {
                read.insert(*acc, kernel.ops[op].results[0]);
            }
            OpKind::BarrierArrive { .. } => arrivals.push(op),
            _ => return Err("an iteration does more behind its last wait than to read accumulators and to arrive"),
        }
    }
    let mut settled = vec![];
    for (acc, after) in ended.iter().zip(&kernel.ops[ops[from]].results) {
        let elements = read
            .get(after)
            .ok_or("an accumulator that an iteration ends with is not read")?;
        let mut places = results.iter().enumerate().filter(|(_, v)| *v == elements);
        let place = places.next().ok_or("what an iteration ends with is not handed on")?.0;
        if places.next().is_some() {
            return Err("what an iteration ends with is handed on twice");
        }
        settled.push((*acc, place));
    }
    // Accumulators do not outlive the end, and elements are used by the next iteration alone.
    let ended: FxHashSet<Value> = ops[from..]
        .iter()
        .flat_map(|op| kernel.ops[*op].results.to_vec())
        .collect();
    let handed = results.iter().filter(|v| ended.contains(*v)).count();
    let mut uses = 0;
    for op in &ops[from..] {
        visit::for_each_value(kind(*op), &mut |v| uses += usize::from(ended.contains(&v)));
    }
    if handed != settled.len() || uses != settled.len() {
        return Err("what an iteration ends with is used by itself");
    }
    // What the beginning takes is not what is late.
    let late: Vec<Value> = settled.iter().map(|(_, place)| params[place + 1]).collect();
    let mut early = false;
    for &op in &ops[..to] {
        visit::for_each_value(kind(op), &mut |v| early |= late.contains(&v));
    }
    for &op in &ops[to..wait] {
        visit::for_each_value(kind(op), &mut |v| early |= late.contains(&v));
    }
    if early {
        return Err("an iteration begins with what the last one ends with");
    }

    let defined: FxHashSet<Value> = {
        let inside = ops[..from].iter().flat_map(|op| kernel.ops[*op].results.to_vec());
        params.iter().copied().chain(inside).collect()
    };
    let mut kept = vec![];
    for &op in &arrivals {
        visit::for_each_value(kind(op), &mut |v| {
            if defined.contains(&v) && !kept.contains(&v) {
                kept.push(v);
            }
        });
    }

    // What is alive while both products run: what the loop carries, the first one's accumulators, the last ones' operands.
    let words = |v: Value| {
        let ty = kernel.ty(v);
        let bits = u64::from(ty.dtype().bits().max(8));
        match ty.is_scalar() {
            true => bits.div_ceil(32),
            false => (ty.shape().iter().product::<u64>() * bits).div_ceil(128 * 32),
        }
    };
    let mut alive: u64 = params.iter().map(|v| words(*v)).sum::<u64>() + kept.iter().map(|v| words(*v)).sum::<u64>();
    for &op in &ops[..to] {
        if let OpKind::AccInit { .. } = kind(op) {
            alive += words(kernel.ops[op].results[0]);
        }
    }
    for &op in &ops[wait..from] {
        if let OpKind::Wgmma {
            a: MmaOperand::Registers(a),
            ..
        } = kind(op)
        {
            alive += words(*a);
        }
    }
    if alive + u64::from(kernel.target.overlap_reserve) > registers.into() {
        return Err("the last product's operands and the first one's accumulator do not fit into registers together");
    }
    Ok(Some(End {
        from,
        settled,
        arrivals,
        kept,
        to,
        wait,
    }))
}

/// `op` is a loop that is in no region now; `rest` follows it in `at`.
fn carry(kernel: &mut Kernel, at: Region, op: Op, end: End, rest: &[Op]) {
    let OpKind::For { lower, upper, body, .. } = kernel.ops[op].kind else {
        unreachable!("`find` saw a loop")
    };
    let group = kernel.regions[body].group;
    let loc = kernel.ops[op].loc;
    let zero = OpKind::Constant(Constant::Splat(0));

    // Accumulators are carried in the place of what is read of them.
    let (mut carried, mut old, mut behind) = (vec![], vec![], vec![]);
    for (acc, place) in &end.settled {
        let ty = kernel.ty(*acc).clone();
        let OpKind::For { inits, .. } = &kernel.ops[op].kind else {
            unreachable!("`find` saw a loop")
        };
        let init = Some(inits[*place]);
        let start = kernel.append1(at, OpKind::AccInit { init }, ty.clone(), loc);
        if let OpKind::For { inits, .. } = &mut kernel.ops[op].kind {
            inits[*place] = start;
        }
        let param = kernel.new_value(ty.clone(), group);
        old.push(std::mem::replace(&mut kernel.regions[body].params[place + 1], param));
        carried.push(param);
        kernel.regions[body].results[*place] = *acc;
        let result = kernel.new_value(ty, group);
        kernel.values[result].def = op.into();
        let elements = std::mem::replace(&mut kernel.ops[op].results[*place], result);
        behind.push((result, elements));
    }
    let (mut before, mut after) = (FxHashMap::default(), FxHashMap::default());
    for v in &end.kept {
        let ty = kernel.ty(*v).clone();
        let init = kernel.append1(at, zero.clone(), ty.clone(), loc);
        if let OpKind::For { inits, .. } = &mut kernel.ops[op].kind {
            inits.push(init);
        }
        let (param, result) = (kernel.new_value(ty.clone(), group), kernel.new_value(ty, group));
        kernel.regions[body].params.push(param);
        kernel.regions[body].results.push(*v);
        kernel.values[result].def = op.into();
        kernel.ops[op].results.push(result);
        before.insert(*v, param);
        after.insert(*v, result);
    }
    kernel.regions[at].ops.push(op);

    // Both waits, the reads, and the arrivals of the iteration before.
    let mut ops = std::mem::take(&mut kernel.regions[body].ops);
    ops.truncate(end.from);
    let first = ops.remove(end.wait);
    let steps = ops.split_off(end.to);
    kernel.regions[body].ops = ops;
    let OpKind::WgmmaWait { accs, .. } = kernel.ops[first].kind.clone() else {
        unreachable!("`find` saw a wait")
    };
    let all: Vec<Value> = carried.iter().chain(&accs).copied().collect();
    let done = wait(kernel, body, all, loc);
    let mut now = Substitution::default();
    for (param, acc) in old.iter().zip(&done) {
        let elements = read(kernel, body, *param, *acc, loc);
        now.replace(*param, elements);
    }
    for (acc, settled) in kernel.ops[first]
        .results
        .clone()
        .into_iter()
        .zip(&done[carried.len()..])
    {
        now.replace(acc, *settled);
    }
    if !end.arrivals.is_empty() {
        let index = kernel.regions[body].params[0];
        let is_again = append_compare(kernel, body, CompareOp::Gt, index, lower, loc);
        arrive(kernel, body, is_again, &end.arrivals, &mut before);
    }
    for &op in &steps {
        now.apply_nested(kernel, op);
    }
    now.apply_results(kernel, body);
    kernel.regions[body].ops.extend(steps);

    // The last iteration's.
    let done = wait(kernel, at, behind.iter().map(|b| b.0).collect(), loc);
    let mut now = Substitution::default();
    for ((_, elements), acc) in behind.iter().zip(done) {
        let read = read(kernel, at, *elements, acc, loc);
        now.replace(*elements, read);
    }
    if !end.arrivals.is_empty() {
        let is_any = append_compare(kernel, at, CompareOp::Lt, lower, upper, loc);
        arrive(kernel, at, is_any, &end.arrivals, &mut after);
    }
    for &op in rest {
        now.apply_nested(kernel, op);
    }
    now.apply_results(kernel, at);
    kernel.regions[at].ops.extend(rest);
}

fn wait(kernel: &mut Kernel, at: Region, accs: Vec<Value>, loc: crate::error::Loc) -> Vec<Value> {
    let types: Vec<Type> = accs.iter().map(|v| kernel.ty(*v).clone()).collect();
    kernel.append(at, OpKind::WgmmaWait { n: 0, accs }, types, loc).to_vec()
}

/// The elements of an accumulator, like those in `like`.
fn read(kernel: &mut Kernel, at: Region, like: Value, acc: Value, loc: crate::error::Loc) -> Value {
    let types = [kernel.ty(like).clone(), kernel.ty(acc).clone()];
    let kind = OpKind::AccRead {
        acc: AccUse::Value(acc),
    };
    kernel.append(at, kind, types, loc)[0]
}

/// Copies of arrivals, where `is_any`.
fn arrive(kernel: &mut Kernel, at: Region, is_any: Value, arrivals: &[Op], map: &mut FxHashMap<Value, Value>) {
    for op in arrivals {
        let copy = copy_op(kernel, *op, map);
        let loc = kernel.ops[copy].loc;
        let own = match kernel.ops[copy].kind {
            OpKind::BarrierArrive { predicate, .. } => predicate,
            _ => None,
        };
        let both = match own {
            Some(p) => append_binary(kernel, at, BinaryOp::And, p, is_any, loc),
            None => is_any,
        };
        if let OpKind::BarrierArrive { predicate, .. } = &mut kernel.ops[copy].kind {
            *predicate = Some(both);
        }
        kernel.regions[at].ops.push(copy);
    }
}
