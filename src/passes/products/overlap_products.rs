//! Lets the tensor cores work while threads do: products that do not wait for each other are issued together, and waited for
//! where they are needed.
//!
//! ```text
//! x = wgmma a @ b                            x = wgmma a @ b
//! wgmma_wait 0; e = exp2(read x)             y = wgmma c @ d
//! v = wgmma e @ d                            load l
//! y = wgmma c @ d                            wgmma_wait 1; e = exp2(read x)        (beside y)
//! wgmma_wait 0; read v                 =>    v = wgmma e @ d
//! arrive [d is free]                         wgmma_wait 1; s = e * (read y - l)    (beside v)
//! load l                                     w = wgmma s @ b
//! s = e * (read y - l)                       wgmma_wait 1; arrive [d is free]
//! w = wgmma s @ b                            wgmma_wait 0; read v, read w; arrive [b is free]
//! wgmma_wait 0; read w; arrive [b is free]
//! ```
//!
//! Within a straight run of ops ([`wgmma_groups`]), in this order:
//!
//! * **A read** of an accumulator moves down to what takes the elements, or the accumulator. It does nothing; the accumulator
//!   is not touched in between.
//! * **A wgmma** moves up behind an older one, over four at most. With it move the pure ops that it needs, and to before the older
//!   one the start of its accumulator; nothing else may it need from in between. In between nothing writes memory that it reads,
//!   and nothing *acquires*: no wait for a barrier, no fence, no commit, nothing with regions. Arrivals and ends of groups of copies
//!   may be there: they release what came before them, and no thread relies on when a wgmma begins. No count behind the run may rely
//!   on the order of those that change places: they are all done at its end.
//! * **An arrival** that waits for a product moves down behind the next wgmma, with the arrivals in between, so that they keep
//!   their order. A late arrival makes others wait, so nothing in between may wait: there are only pure ops, ops on
//!   accumulators and loads. What is computed in between makes it late, so a later arrival of the run must follow: of what the
//!   run releases, the last is not released later.
//! * **A load** from shared memory moves up over the wait in front of it (the assembler's loads do not cross one), with the
//!   scalars that it needs, under a wgmma's conditions.
//! * **Waits** stand where what is done is needed first, and leave running what is not needed.
//!
//! A step is taken if more is computed beside running products than before, for ops that take it before the wait (what is taken
//! later, the assembler moves behind the wait, and between the instructions of a product that stands there), and if what is
//! alive at once fits into the registers of the thread ([`Target::overlap_reserve`](crate::target::Target::overlap_reserve)). A run that does not fit as it is
//! stays as it is: the assembler spills there, and more so with products in flight. Sums keep their order: of each accumulator
//! the wgmmas stay as they are.
use super::wgmma_groups::{Run, Wait};
use crate::error::Result;
use crate::kernel_ir::class::{Class, Pure};
use crate::kernel_ir::liveness::{Around, go_before, is_held, uses};
use crate::kernel_ir::rewrite::{Substitution, regions_of};
use crate::kernel_ir::*;
use crate::passes::rewriter::{self, Found, Rewrite};
use rustc_hash::{FxHashMap, FxHashSet};
use std::ops::Range;

/// Orders of one run that are tried.
const MAX_TRIES: usize = 256;

/// wgmmas that another passes at most: with so many ahead of it the tensor cores are busy anyway.
const MAX_PASSED: usize = 4;

pub fn run(kernel: &mut Kernel) -> Result<()> {
    rewriter::run::<OverlapProducts>(kernel)
}

/// What the pass wants: straight runs of ops in another order.
struct OverlapProducts;

impl Rewrite for OverlapProducts {
    type Plan = (Run, Plan);
    const NAME: &'static str = "overlap_products";
    const CROSSES_ITERATIONS: bool = false;
    const LIVENESS: Option<fn(&Kernel, Op) -> bool> = Some(has_accumulators);

    fn applies(kernel: &Kernel) -> bool {
        kernel.multiplies()
    }

    fn site(kernel: &Kernel, rest: &[Op], _: bool) -> usize {
        rest.iter().take_while(|op| !is_border(kernel, **op)).count()
    }

    fn find(kernel: &Kernel, at: Region, site: Range<usize>, around: &Around) -> Found<Option<(Run, Plan)>> {
        let RegionData { ops, results, .. } = &kernel.regions[at];
        let run = Run::new(kernel, &ops[site.clone()]);
        if run.waits.is_empty() || !run.ops.iter().any(|op| run.is_group(*op)) {
            return Ok(None);
        }
        let mut used: FxHashSet<Value> = results.iter().copied().collect();
        for &op in ops[site.end..].iter().rev() {
            go_before(kernel, op, &mut used);
        }
        let best = Search::new(kernel, &run, around, &used).improve()?;
        Ok(best.map(|best| (run, best)))
    }

    fn write(kernel: &mut Kernel, at: Region, _: &[Op], (run, best): &(Run, Plan)) -> Substitution {
        let group = kernel.regions[at].group;
        let (ops, renamed) = run.write(kernel, &best.order, &best.waits, group);
        kernel.regions[at].ops.extend(ops);
        let mut now = Substitution::default();
        for (old, new) in renamed {
            now.replace(old, new);
        }
        now
    }
}

/// Whether accumulators go into an op's regions, or are in them.
fn has_accumulators(kernel: &Kernel, op: Op) -> bool {
    let mut found = false;
    for inner in regions_of(kernel, op) {
        kernel.for_each_op_in(inner, &mut |op| {
            found |= matches!(kernel.ops[op].kind.class(), Class::Accumulator);
        });
    }
    if found || kernel.ops[op].kind.control().is_some() {
        visit::for_each_value(&kernel.ops[op].kind, &mut |v| found |= kernel.ty(v).is_acc());
    }
    found
}

/// Whether a straight run of ops ends here.
fn is_border(kernel: &Kernel, op: Op) -> bool {
    matches!(kernel.ops[op].kind, OpKind::SetMaxRegisters { .. }) || has_accumulators(kernel, op)
}

/// An order of a run's ops.
#[derive(Clone)]
struct Plan {
    order: Vec<Op>,
    waits: Vec<Wait>,
    /// Words a thread that ops compute, load and store while groups run.
    beside: u64,
    /// Words a thread that are alive at once.
    words: u64,
}

const CROWDED: &str = "products that could run beside what is computed do not fit into registers with it";

struct Search<'a> {
    kernel: &'a Kernel,
    run: &'a Run,
    around: &'a Around,
    /// What each op uses and makes, by its registers.
    touched: FxHashMap<Op, [Vec<Value>; 2]>,
    /// Holders of what is alive from outside, all along, and of what is used behind the run.
    alive: FxHashSet<Value>,
    behind: FxHashSet<Value>,
}

impl<'a> Search<'a> {
    fn new(kernel: &'a Kernel, run: &'a Run, around: &'a Around, behind: &FxHashSet<Value>) -> Search<'a> {
        let mut search = Search {
            kernel,
            run,
            around,
            touched: FxHashMap::default(),
            alive: FxHashSet::default(),
            behind: FxHashSet::default(),
        };
        search.alive = around.alive.iter().map(|v| search.holder(*v)).collect();
        search.behind = behind.iter().map(|v| search.holder(*v)).collect();
        for &op in &run.ops {
            let used = uses(kernel, op).into_iter().map(|v| search.holder(v)).collect();
            let made = kernel.ops[op].results.iter().map(|v| search.holder(*v)).collect();
            search.touched.insert(op, [used, made]);
        }
        search
    }
}

impl Search<'_> {
    /// A better order, if there is one; it has to fit into registers.
    fn improve(&self) -> Found<Option<Plan>> {
        let registers = self.around.registers;
        let limit = u64::from(registers.saturating_sub(self.kernel.target.overlap_reserve));
        let old = self.measure(self.run.ops.clone(), self.run.waits.clone());
        let mut best = self.plan(self.reads_late(&old.order));
        if best.words > limit {
            best = self.plan(old.order.clone());
        }
        let (mut tries, mut is_crowded) = (MAX_TRIES, false);
        loop {
            let mut better = None;
            for order in self.steps(&best.order).take(tries) {
                tries -= 1;
                let plan = self.plan(order);
                if plan.beside > best.beside {
                    if plan.words <= limit {
                        better = Some(plan);
                        break;
                    }
                    is_crowded = true;
                }
            }
            let Some(plan) = better else { break };
            best = plan;
        }
        let is_better = best.beside > old.beside || best.beside == old.beside && best.waits.len() < old.waits.len();
        match is_better {
            true if best.words <= limit => Ok(Some(best)),
            true => Err(CROWDED),
            false if is_crowded => Err(CROWDED),
            false => Ok(None),
        }
    }

    /// Orders that are one step away: wgmmas that move up, the farthest first, then arrivals, then loads.
    fn steps<'a>(&'a self, order: &'a [Op]) -> impl Iterator<Item = Vec<Op>> + 'a {
        let groups: Vec<usize> = (0..order.len()).filter(|i| self.run.is_group(order[*i])).collect();
        let pairs = (0..groups.len()).flat_map(|to| (to.saturating_sub(MAX_PASSED)..to).map(move |from| (from, to)));
        let pairs: Vec<(usize, usize)> = pairs.map(|(from, to)| (groups[from], groups[to])).collect();
        let wgmmas = pairs
            .into_iter()
            .filter_map(|(from, to)| self.wgmma_up(order, from, to));
        let arrivals = (0..order.len()).filter_map(|i| self.arrival_down(order, i));
        let loads = (0..order.len()).filter_map(|i| self.load_up(order, i));
        wgmmas.chain(arrivals).chain(loads)
    }

    fn kind(&self, op: Op) -> &OpKind {
        &self.kernel.ops[op].kind
    }

    fn is_arrival(&self, op: Op) -> bool {
        matches!(self.kind(op), OpKind::BarrierArrive { .. })
    }

    fn plan(&self, order: Vec<Op>) -> Plan {
        let waits = self.run.place_waits(&order);
        self.measure(order, waits)
    }

    // ------------------------------------------------------------ steps

    /// Reads of accumulators just before what takes them.
    fn reads_late(&self, order: &[Op]) -> Vec<Op> {
        let (mut out, mut held): (Vec<Op>, Vec<Op>) = (Vec::with_capacity(order.len()), vec![]);
        for &op in order {
            if !held.is_empty() {
                let [used, _] = &self.touched[&op];
                held.retain(|read| {
                    let results = &self.kernel.ops[*read].results;
                    let is_used = results.iter().any(|v| used.contains(&self.holder(*v)));
                    if is_used {
                        out.push(*read);
                    }
                    !is_used
                });
            }
            if let OpKind::AccRead { .. } = self.kind(op) {
                held.push(op);
            } else {
                out.push(op);
            }
        }
        out.extend(held);
        out
    }

    /// The wgmma at `to` behind the one at `from`, with what it needs from in between.
    fn wgmma_up(&self, order: &[Op], from: usize, to: usize) -> Option<Vec<Op>> {
        let wgmma = order[to];
        let between = &order[from + 1..to];
        let mut passed = between.iter().filter(|op| self.run.is_group(**op));
        if !passed.all(|op| self.run.may_swap(*op, wgmma)) {
            return None;
        }
        let is_start = |op: &&Op| matches!(self.kind(**op), OpKind::AccInit { .. });
        let movable = |kind: &OpKind| kind.is_pure() || matches!(kind, OpKind::AccInit { .. });
        let needed = self.needed(between, wgmma, &movable)?;
        let stays = |op: &&Op| !needed.contains(*op);
        if !between
            .iter()
            .filter(stays)
            .all(|op| motion::may_follow_read(self.kernel, *op, wgmma))
        {
            return None;
        }
        // Computing what the wgmma takes makes arrivals late.
        let computes = needed.iter().any(|op| self.work(*op) > 0);
        let mut late = between.iter().filter(stays);
        if computes && late.any(|op| self.is_arrival(*op)) && !order[to..].iter().any(|op| self.is_arrival(*op)) {
            return None;
        }
        // The assembler lets nothing write an accumulator's registers while a wgmma runs; the rest is computed beside it.
        let mut first: Vec<Op> = vec![];
        for &start in needed.iter().filter(is_start) {
            first.extend(self.needed(&needed, start, &movable)?);
            first.push(start);
        }
        let is_first = |op: &&Op| first.contains(*op);
        let mut out = order[..from].to_vec();
        out.extend(needed.iter().filter(is_first));
        out.push(order[from]);
        out.extend(needed.iter().filter(|op| !is_first(op)));
        out.push(wgmma);
        out.extend(between.iter().filter(stays));
        out.extend(&order[to + 1..]);
        Some(out)
    }

    /// What of the ops `between` an op needs, in order, if all of it may move with it.
    fn needed(&self, between: &[Op], op: Op, may_move: &dyn Fn(&OpKind) -> bool) -> Option<Vec<Op>> {
        let same = |v: Value| self.run.first(v).unwrap_or(v);
        let mut used = FxHashSet::default();
        visit::for_each_value(self.kind(op), &mut |v| {
            used.insert(same(v));
        });
        let mut needed = vec![];
        for &op in between.iter().rev() {
            if self.kernel.ops[op].results.iter().any(|v| used.contains(&same(*v))) {
                if !may_move(self.kind(op)) {
                    return None;
                }
                visit::for_each_value(self.kind(op), &mut |v| {
                    used.insert(same(v));
                });
                needed.push(op);
            }
        }
        needed.reverse();
        Some(needed)
    }

    /// The arrival at `from`, and those that follow it, behind the next wgmma.
    fn arrival_down(&self, order: &[Op], from: usize) -> Option<Vec<Op>> {
        let is_arrival = |op: &Op| self.is_arrival(*op);
        if !is_arrival(&order[from]) {
            return None;
        }
        let behind = &order[from..];
        let to = from + behind.iter().position(|op| self.run.is_group(*op))?;
        let between = &order[from..to];
        let stays = |op: &&Op| !is_arrival(op);
        if !between
            .iter()
            .filter(stays)
            .all(|op| motion::may_precede_release(self.kernel, *op))
            || !order[to + 1..].iter().any(is_arrival)
        {
            return None;
        }
        let mut out = order[..from].to_vec();
        out.extend(between.iter().filter(stays));
        out.push(order[to]);
        out.extend(between.iter().filter(|op| is_arrival(op)));
        out.extend(&order[to + 1..]);
        Some(out)
    }

    /// The load at `from` before the read of an accumulator in front of it, at which the run waits.
    fn load_up(&self, order: &[Op], from: usize) -> Option<Vec<Op>> {
        let load = order[from];
        let OpKind::Load { src } = self.kind(load) else {
            return None;
        };
        if !self.kernel.allocs[src.alloc].is_smem() || src.place != Place::Here {
            return None;
        }
        let is_read = |op: &Op| matches!(self.kind(*op), OpKind::AccRead { .. });
        let to = order[..from].iter().rposition(is_read)?;
        let between = &order[to..from];
        let scalar = |op: &Op| {
            self.kernel.ops[*op]
                .results
                .iter()
                .all(|v| self.kernel.ty(*v).is_scalar())
        };
        let needed = self.needed(between, load, &OpKind::is_pure)?;
        let stays = |op: &&Op| !needed.contains(*op);
        let is_group = |op: &Op| self.run.is_group(*op);
        if !needed.iter().all(scalar)
            || between.iter().any(is_group)
            || !between
                .iter()
                .filter(stays)
                .all(|op| motion::may_follow_read(self.kernel, *op, load))
        {
            return None;
        }
        let mut out = order[..to].to_vec();
        out.extend(&needed);
        out.push(load);
        out.extend(between.iter().filter(stays));
        out.extend(&order[from + 1..]);
        Some(out)
    }

    // ------------------------------------------------------------ what an order is worth

    fn measure(&self, order: Vec<Op>, waits: Vec<Wait>) -> Plan {
        let running = self.run.running(&order, &waits);
        let beside = self.beside(&order, &running);
        let words = self.alive(&order, &running);
        Plan {
            order,
            waits,
            beside,
            words,
        }
    }

    /// Words a thread that ops compute, load and store while groups run, once for each group. What is computed counts where an op
    /// that stays in its place takes it before the group is waited for: else the assembler may do it behind the wait, and does.
    fn beside(&self, order: &[Op], running: &[std::ops::Range<usize>]) -> u64 {
        // The first op that stays and takes an op's results, in however many steps.
        let mut takers: FxHashMap<Value, usize> = FxHashMap::default();
        let mut sum = 0;
        for (i, &op) in order.iter().enumerate().rev() {
            let kind = self.kind(op);
            let [used, made] = &self.touched[&op];
            let taker = match kind.is_pure() || matches!(kind, OpKind::AccInit { .. }) {
                true => made.iter().filter_map(|v| takers.get(v)).min().copied(),
                false => Some(i),
            };
            let Some(taker) = taker else { continue };
            for v in used {
                let first = takers.entry(*v).or_insert(taker);
                *first = taker.min(*first);
            }
            let start = running[i].start.max(running[taker].start);
            sum += self.work(op) * running[i].end.saturating_sub(start) as u64;
        }
        sum
    }

    /// Words a thread that an op computes, loads or stores.
    fn work(&self, op: Op) -> u64 {
        let (takes, gives) = match self.kind(op).class() {
            Class::Pure(pure) => {
                let computes = matches!(
                    pure,
                    Pure::Elementwise(_) | Pure::Inline | Pure::Reduce { .. } | Pure::Run
                );
                (false, computes)
            }
            Class::Memory => (true, true),
            Class::Pinned
            | Class::Tensor
            | Class::Instructions
            | Class::Synchronisation
            | Class::Accumulator
            | Class::Control(_)
            | Class::Aside => (false, false),
        };
        let [used, made] = &self.touched[&op];
        let of = |values: &[Value], counts: bool| match counts {
            true => values.iter().map(|v| self.words(*v)).sum::<u64>(),
            false => 0,
        };
        of(used, takes) + of(made, gives)
    }

    /// The value whose registers `v` has.
    fn holder(&self, v: Value) -> Value {
        if let Some(first) = self.run.first(v) {
            return first;
        }
        let mut v = v;
        while let Some(op) = self.kernel.def_op(v) {
            if let OpKind::Broadcast { a, .. } | OpKind::LayoutCast { a, .. } = *self.kind(op) {
                v = a;
            } else {
                break;
            }
        }
        v
    }

    /// 32-bit words of a thread that a value takes.
    fn words(&self, v: Value) -> u64 {
        match is_held(self.kernel, v) {
            true => self.around.words(self.kernel, v, 8),
            false => 0,
        }
    }

    /// The most words a thread that are alive behind an op.
    fn alive(&self, order: &[Op], running: &[std::ops::Range<usize>]) -> u64 {
        // Where each value is made (none: before the run), and behind which op it is needed no more.
        let mut spans: FxHashMap<Value, (usize, usize)> = FxHashMap::default();
        let mut operands = vec![];
        for (i, &op) in order.iter().enumerate() {
            let [used, made] = &self.touched[&op];
            for v in used {
                spans.entry(*v).or_insert((0, 0)).1 = i;
            }
            for v in made {
                spans.entry(*v).or_insert((i, i)).1 = i;
            }
            if let OpKind::Wgmma {
                a: MmaOperand::Registers(a),
                ..
            } = self.kind(op)
            {
                operands.push((self.holder(*a), i, running[i].end - 1));
            }
        }
        // A running wgmma reads its left operand.
        for (a, at, group) in operands {
            let end = running[at..].iter().position(|groups| !groups.contains(&group));
            let end = end.map_or(order.len(), |n| at + n);
            if let Some(span) = spans.get_mut(&a) {
                span.1 = span.1.max(end);
            }
        }
        for v in &self.behind {
            spans.entry(*v).or_insert((0, 0)).1 = order.len();
        }
        let mut changes = vec![0i64; order.len() + 2];
        for (v, (from, to)) in spans {
            if !self.alive.contains(&v) {
                changes[from] += self.words(v) as i64;
                changes[to] -= self.words(v) as i64;
            }
        }
        let mut now = self.alive.iter().map(|v| self.words(*v) as i64).sum::<i64>();
        let mut most = now;
        for change in changes {
            now += change;
            most = most.max(now);
        }
        most as u64
    }
}
