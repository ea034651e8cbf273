//! Lets an iteration's first products begin before the last ones of the iteration before are waited for.
//!
//! A loop ends its iterations with products, their wait, and the arrivals that release their operands; the next begins with other products.
//! Between them the tensor cores are idle for as long as threads take to see the one end and to start the other. Here the loop begins behind
//! the first products' wait, and ends with the next iteration's:
//!
//! ```text
//!                                          if any {
//! for i in l..u (x) {                        q = wgmma …; arrive [go]; wait [go]; wgmma_wait 0 q
//!   q = wgmma …                              for i in l..u - 1 (x, q) {
//!   arrive [go]                                …
//!   wait [go]                                  y = wgmma acc_init(f(x, q)) += …
//!   wgmma_wait 0 q                             wait [next]
//!   …                                          q' = wgmma …                            (iteration i + 1)
//!   y = wgmma acc_init(f(x, q)) += …   =>      wgmma_wait 1 y; arrive [slot]
//!   wait [next]                                arrive [go]; wait [go]                   (iteration i + 1)
//!   wgmma_wait 0 y                             wgmma_wait 0 y, q'; yield read y, q'
//!   arrive [slot]                            }
//!   yield read y                             …; y = wgmma …; wait [next]; wgmma_wait 0 y; arrive [slot]
//! }                                        }
//! ```
//!
//! * **The end** of an iteration that is passed is a wait for all products, reads of the accumulators that it settles, and arrivals; what is
//!   read is handed on, and taken by nothing before the next iteration's first wait for products.
//! * **What passes it** are the next iteration's first products, with the starts of their accumulators, scalars, and waits for barriers in front of them.
//!   Nothing else moves: what others may wait for comes in the same order as before. An arrival releases what was done before it; a product that
//!   reads does nothing that others could wait for, and what it reads was there before: waits pass with it, in their order.
//! * **A wait** that passes comes before the arrivals that release the last operands. What it waits for may in turn wait for these: so
//!   what all warpgroups wait for and arrive at is run to the end ([`progress`]), and where that may not end, the loop stays as it is.
//! * **Elements** are read where the first products are waited for. ptxas 13.0 serialises products that run across a loop's end or a
//!   branch (C7514), so the loop is rotated: where all are waited for is in the iteration that began them.
//! * **Scalars** that both parts of an iteration need are computed in both: a value that a loop carries is in no uniform register.
//! * **Registers**: the last products' operands in registers stay until they are waited for, beside the first ones' accumulators. Where that does
//!   not fit, the loop stays as it is.
use crate::error::{Loc, Result};
use crate::kernel_ir::liveness::{Around, captured, uses};
use crate::kernel_ir::rewrite::{Substitution, append_binary, append_compare, append_copies, append_if};
use crate::kernel_ir::rings::progress;
use crate::kernel_ir::*;
use crate::passes::rewriter::{self, Found, Rewrite};
use rustc_hash::{FxHashMap, FxHashSet};
use std::ops::Range;

/// Values of the loop, and what stands for them.
type Map = FxHashMap<Value, Value>;

/// Products that pass, at most: so many can be left running by a wait.
const MAX_PASSING: usize = 7;

pub fn run(kernel: &mut Kernel) -> Result<()> {
    rewriter::run::<RotateLoops>(kernel)
}

/// What the pass wants: loops whose iterations end with the next one's beginning.
struct RotateLoops;

impl Rewrite for RotateLoops {
    type Plan = Rotation;
    const NAME: &'static str = "rotate_loops";
    const LIVENESS: Option<fn(&Kernel, Op) -> bool> = Some(Kernel::multiplies_within);

    fn applies(kernel: &Kernel) -> bool {
        kernel.multiplies()
    }

    fn find(kernel: &Kernel, at: Region, site: Range<usize>, around: &Around) -> Found<Option<Rotation>> {
        let op = kernel.regions[at].ops[site.start];
        find(kernel, op, around)
    }

    fn write(kernel: &mut Kernel, at: Region, ops: &[Op], rotation: &Rotation) -> Substitution {
        let op = ops[0];
        let results = rotation.write(kernel, at);
        let mut now = Substitution::default();
        for (old, new) in kernel.ops[op].results.clone().into_iter().zip(results) {
            now.replace(old, new);
        }
        now
    }

    fn is_checked(rotation: &Rotation) -> bool {
        rotation.waits
    }

    fn check(kernel: &Kernel) -> Found<()> {
        let ends = progress::all_end(kernel);
        let why =
            "an iteration begins with a wait, of which it is not known that it ends before what the last one releases";
        ends.then_some(()).ok_or(why)
    }
}

/// A loop whose iterations overlap.
struct Rotation {
    loc: Loc,
    lower: Value,
    upper: Value,
    inits: Vec<Value>,
    unroll: u32,
    /// Whether it runs at least once, by the facts of its bounds.
    is_any: bool,
    /// The parameters and the results of an iteration.
    params: Vec<Value>,
    results: Vec<Value>,
    /// Whether a wait for a barrier passes, too.
    waits: bool,
    /// The products that pass with what they need; the others up to the first wait; this wait.
    passing: Vec<Op>,
    first: Vec<Op>,
    first_wait: Op,
    /// From there to the last wait, which settles these accumulators; the positions among what the loop carries of what is read of each.
    last: Vec<Op>,
    settled: Vec<(Value, usize)>,
    last_wait: Op,
    arrivals: Vec<Op>,
    /// What is needed behind the first wait from before it: scalars that are computed again, and what the loop carries.
    again: Vec<Op>,
    carried: Vec<Value>,
}

/// `None`: no loop that ends and begins with products.
fn find(kernel: &Kernel, op: Op, around: &Around) -> Found<Option<Rotation>> {
    let OpKind::For {
        lower,
        upper,
        ref inits,
        ref xs,
        reverse: false,
        unroll,
        body,
    } = kernel.ops[op].kind
    else {
        return Ok(None);
    };
    let RegionData {
        params, ops, results, ..
    } = &kernel.regions[body];
    let kind = |op: Op| &kernel.ops[op].kind;
    let is_wait = |op: &Op| matches!(kind(*op), OpKind::WgmmaWait { .. });
    let is_product = |op: &Op| kind(*op).is_product();
    let is_scalar = |op: Op| kernel.ops[op].results.iter().all(|v| kernel.ty(*v).is_scalar());

    // The beginning, as far as it is unobservable that it was earlier.
    let passes = |op: &Op| {
        matches!(
            kind(*op),
            OpKind::AccInit { init: None } | OpKind::Wgmma { .. } | OpKind::BarrierWait { .. }
        ) || kind(*op).is_pure() && is_scalar(*op)
    };
    // Waits behind the last product stay behind what settles.
    let passing = ops.iter().take_while(|op| passes(op));
    let to = passing
        .enumerate()
        .filter(|(_, op)| is_product(op))
        .map(|(i, _)| i + 1)
        .last()
        .unwrap_or(0);
    let (Some(wait), Some(from)) = (ops.iter().position(is_wait), ops.iter().rposition(is_wait)) else {
        return Ok(None);
    };
    let num_passing = ops[..to].iter().filter(|op| is_product(op)).count();
    let trips = kernel.facts(upper).hi.saturating_sub(kernel.facts(lower).lo);
    if wait == from || trips <= 1 || !xs.is_empty() || !(1..=MAX_PASSING).contains(&num_passing) {
        return Ok(None);
    }
    let OpKind::WgmmaWait { n: 0, accs: ended } = kind(ops[from]) else {
        return Err("an iteration ends with products in flight");
    };
    let OpKind::WgmmaWait { n: 0, .. } = kind(ops[wait]) else {
        return Err("the first products of an iteration are waited for with others in flight");
    };

    // The end: reads, arrivals, and scalars, which may as well be computed before it.
    let (mut read, mut arrivals, mut scalars) = (FxHashMap::default(), vec![], vec![]);
    for &op in &ops[from + 1..] {
        if let OpKind::AccRead {
            acc: AccUse::Value(acc),
        } = kind(op)
        {
            read.insert(*acc, kernel.ops[op].results[0]);
        } else if let OpKind::BarrierArrive { .. } = kind(op) {
            arrivals.push(op);
        } else if kind(op).is_pure() && is_scalar(op) {
            scalars.push(op);
        } else {
            // It does not end with products.
            return Ok(None);
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
        .filter(|op| !scalars.contains(op))
        .flat_map(|op| kernel.ops[*op].results.to_vec())
        .collect();
    let handed = results.iter().filter(|v| ended.contains(*v)).count();
    let mut times = 0;
    for op in &ops[from..] {
        visit::for_each_value(kind(*op), &mut |v| times += usize::from(ended.contains(&v)));
    }
    if handed != settled.len() || times != settled.len() {
        return Err("what an iteration ends with is used by itself");
    }
    // Accumulators that begin in it are touched by the first part alone.
    let begun: FxHashSet<Value> = ops[..=wait]
        .iter()
        .flat_map(|op| kernel.ops[*op].results.to_vec())
        .collect();
    let taken = ops[..=wait].iter().flat_map(|op| uses(kernel, *op));
    if taken.into_iter().any(|v| kernel.ty(v).is_acc() && !begun.contains(&v)) {
        return Err("the first products of an iteration go into accumulators from before it");
    }
    // What is late is taken by nothing before.
    let late: Vec<Value> = settled.iter().map(|(_, place)| params[place + 1]).collect();
    if ops[..wait]
        .iter()
        .any(|op| uses(kernel, *op).iter().any(|v| late.contains(v)))
    {
        return Err("an iteration takes what the last one ends with before its first products are done");
    }
    let mut scoped = false;
    kernel.for_each_op_in(body, &mut |op| scoped |= matches!(kind(op), OpKind::Scope { .. }));
    if scoped {
        return Err("an iteration has memory of its own");
    }

    let (again, carried) = taken_over(kernel, &ops[..=wait], &ops[wait + 1..], results);
    let words = words_alive(kernel, body, &carried, &ops[wait..from], around);
    if words + u64::from(kernel.target.overlap_reserve) > around.registers.into() {
        return Err("the last products' operands and the first ones' accumulators do not fit into registers together");
    }
    Ok(Some(Rotation {
        loc: kernel.ops[op].loc,
        lower,
        upper,
        inits: inits.clone(),
        unroll,
        is_any: kernel.facts(lower).hi < kernel.facts(upper).lo,
        params: params.clone(),
        results: results.clone(),
        waits: ops[..to]
            .iter()
            .any(|op| matches!(kind(*op), OpKind::BarrierWait { .. })),
        passing: ops[..to].to_vec(),
        first: ops[to..wait].to_vec(),
        first_wait: ops[wait],
        last: ops[wait + 1..from].iter().copied().chain(scalars).collect(),
        settled,
        last_wait: ops[from],
        arrivals,
        again,
        carried,
    }))
}

/// What the `last` ops of an iteration and its results take from the `first`: ops that are done again, which compute scalars of the parameters and of
/// what is outside, and other values.
fn taken_over(kernel: &Kernel, first: &[Op], last: &[Op], results: &[Value]) -> (Vec<Op>, Vec<Value>) {
    let is_scalar = |op: Op| kernel.ops[op].results.iter().all(|v| kernel.ty(*v).is_scalar());
    let mut before: FxHashSet<Value> = FxHashSet::default();
    let mut computed = FxHashSet::default();
    for &op in first {
        let data = &kernel.ops[op];
        let can_be_again = |v: &Value| !before.contains(v) || computed.contains(v);
        if data.kind.is_pure() && is_scalar(op) && uses(kernel, op).iter().all(can_be_again) {
            computed.extend(data.results.iter().copied());
        }
        before.extend(data.results.iter().copied());
    }
    let mut taken: FxHashSet<Value> = results.iter().copied().collect();
    for &op in last {
        taken.extend(uses(kernel, op));
    }
    let mut again = vec![];
    for &op in first.iter().rev() {
        if kernel.ops[op]
            .results
            .iter()
            .any(|v| taken.contains(v) && computed.contains(v))
        {
            taken.extend(uses(kernel, op));
            again.push(op);
        }
    }
    again.reverse();
    let given = first.iter().flat_map(|op| kernel.ops[*op].results.to_vec());
    let carried = given.filter(|v| taken.contains(v) && !computed.contains(v)).collect();
    (again, carried)
}

/// 32-bit registers of a thread that are taken while both products run: by what the loop carries, and will carry, the last products' operands, and
/// what comes from outside. Of what is used in the loop ptxas keeps conversions to 32 bits, since both copies of an iteration take them.
fn words_alive(kernel: &Kernel, body: Region, carried: &[Value], last: &[Op], around: &Around) -> u64 {
    let mut from_outside = FxHashSet::default();
    captured(kernel, body, &mut from_outside);
    let is_held = |v: &&Value| liveness::is_held(kernel, **v);
    let words = |v: &Value, bits: u64| around.words(kernel, *v, bits);
    let mut alive: u64 = kernel.regions[body]
        .params
        .iter()
        .chain(carried)
        .map(|v| words(v, 8))
        .sum();
    alive += from_outside.iter().filter(is_held).map(|v| words(v, 32)).sum::<u64>();
    let across = around.alive.difference(&from_outside).filter(is_held);
    alive += across.map(|v| words(v, 8)).sum::<u64>();
    for &op in last {
        if let OpKind::Wgmma {
            a: MmaOperand::Registers(a),
            ..
        } = kernel.ops[op].kind
        {
            alive += words(&a, 8);
        }
    }
    alive
}

impl Rotation {
    /// The loop, rotated, at the end of a region, and its results.
    fn write(&self, kernel: &mut Kernel, at: Region) -> Vec<Value> {
        if self.is_any {
            return self.write_some(kernel, at);
        }
        let is_any = append_compare(kernel, at, CompareOp::Lt, self.lower, self.upper, self.loc);
        let some = |kernel: &mut Kernel, at: Region| self.write_some(kernel, at);
        append_if(kernel, at, is_any, &self.inits, self.loc, some)
    }

    fn write_some(&self, kernel: &mut Kernel, at: Region) -> Vec<Value> {
        let loc = self.loc;
        // The first iteration's beginning.
        let mut map = self.map(self.lower, &self.inits);
        for list in [&self.passing, &self.first, &vec![self.first_wait]] {
            append_copies(kernel, at, list, &mut map);
        }
        let begun: Vec<Value> = self.carried.iter().map(|v| map[v]).collect();

        // All iterations but the last, with the next one's beginning.
        let group = kernel.regions[at].group;
        let body = kernel.new_region(group);
        let carries: Vec<Value> = self.params[1..].iter().chain(&self.carried).copied().collect();
        let types: Vec<Type> = carries.iter().map(|v| kernel.ty(*v).clone()).collect();
        let index = kernel.new_value(kernel.ty(self.lower).clone(), group);
        let params: Vec<Value> = types.iter().map(|ty| kernel.new_value(ty.clone(), group)).collect();
        kernel.regions[body].params = std::iter::once(index).chain(params.iter().copied()).collect();
        let (mut map, mut results) = self.last_part(kernel, body, index, &params);
        let one = kernel.append_int(body, kernel.ty(index).dtype(), 1, loc);
        let next = append_binary(kernel, body, BinaryOp::Add, index, one, loc);
        let mut ahead = self.map(next, &results);
        for (_, place) in &self.settled {
            ahead.remove(&self.params[place + 1]);
        }
        append_copies(kernel, body, &self.passing, &mut ahead);
        let is_product = |op: &&Op| kernel.ops[**op].kind.is_product();
        let num_passing = self.passing.iter().filter(is_product).count();
        let running = self.settled.iter().map(|(acc, _)| map[acc]).collect();
        let last_loc = kernel.ops[self.last_wait].loc;
        let mut running = settle(kernel, body, num_passing as u32, running, last_loc);
        append_copies(kernel, body, &self.arrivals, &mut map);
        append_copies(kernel, body, &self.first, &mut ahead);
        let OpData {
            kind,
            results: done,
            loc: first_loc,
        } = kernel.ops[self.first_wait].clone();
        let OpKind::WgmmaWait { accs, .. } = kind else {
            unreachable!("`find` saw a wait")
        };
        running.extend(accs.iter().map(|v| ahead[v]));
        let mut running = settle(kernel, body, 0, running, first_loc);
        ahead.extend(done.iter().copied().zip(running.split_off(self.settled.len())));
        self.read(kernel, body, running, &mut results);
        results.extend(self.carried.iter().map(|v| ahead[v]));
        kernel.regions[body].results = results;
        let dtype = kernel.ty(self.upper).dtype();
        let one = kernel.append_int(at, dtype, 1, loc);
        let upper = append_binary(kernel, at, BinaryOp::Sub, self.upper, one, loc);
        let kind = OpKind::For {
            lower: self.lower,
            upper,
            inits: self.inits.iter().chain(&begun).copied().collect(),
            xs: vec![],
            reverse: false,
            unroll: self.unroll,
            body,
        };
        let after = kernel.append(at, kind, types, loc).to_vec();

        // The rest of the last one.
        let (mut map, mut results) = self.last_part(kernel, at, upper, &after);
        let running = self.settled.iter().map(|(acc, _)| map[acc]).collect();
        let done = settle(kernel, at, 0, running, last_loc);
        self.read(kernel, at, done, &mut results);
        append_copies(kernel, at, &self.arrivals, &mut map);
        results
    }

    /// An iteration's parameters, but for those of the first part that the loop carries.
    fn map(&self, index: Value, carries: &[Value]) -> Map {
        let all = std::iter::once(index).chain(carries.iter().copied());
        self.params.iter().copied().zip(all).collect()
    }

    /// An iteration from its first wait to its last, and its results (instead of those that are late, what is of no use). `carries`: what the
    /// iteration got, and what its first part gave.
    fn last_part(&self, kernel: &mut Kernel, at: Region, index: Value, carries: &[Value]) -> (Map, Vec<Value>) {
        let mut map = self.map(index, carries);
        let given = self.carried.iter().copied();
        map.extend(given.zip(carries[self.params.len() - 1..].iter().copied()));
        append_copies(kernel, at, &self.again, &mut map);
        append_copies(kernel, at, &self.last, &mut map);
        let results = self.results.iter().map(|v| *map.get(v).unwrap_or(v)).collect();
        (map, results)
    }

    /// Reads the accumulators that an iteration ends with, into its results.
    fn read(&self, kernel: &mut Kernel, at: Region, accs: Vec<Value>, results: &mut [Value]) {
        let loc = kernel.ops[self.last_wait].loc;
        for ((_, place), acc) in self.settled.iter().zip(accs) {
            let types = [kernel.ty(self.results[*place]).clone(), kernel.ty(acc).clone()];
            let acc = AccUse::Value(acc);
            results[*place] = kernel.append(at, OpKind::AccRead { acc }, types, loc)[0];
        }
    }
}

/// Waits for all products but the `n` that began last.
fn settle(kernel: &mut Kernel, at: Region, n: u32, accs: Vec<Value>, loc: Loc) -> Vec<Value> {
    let types: Vec<Type> = accs.iter().map(|v| kernel.ty(*v).clone()).collect();
    kernel.append(at, OpKind::WgmmaWait { n, accs }, types, loc).to_vec()
}
