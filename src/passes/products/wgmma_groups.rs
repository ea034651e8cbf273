//! Which groups of wgmma must be done at each op of a straight run of ops, and the fewest waits that ensure it.
//!
//! Groups complete in the order in which they are issued, so what is done at a point is all groups before some number. The run's
//! own are 0, 1, …; those that were issued before it are −1, −2, …, the youngest first. `wgmma_wait n` behind k issued groups
//! means that all groups before k − n are done.
//!
//! An op *needs* a group if the group was done where the op stood, and the op
//! * takes the group's accumulator;
//! * writes memory that the group reads;
//! * orders, releases, waits, reads what others do, or has regions: then whatever was done may be what others, or what
//!   follows, rely on, and all of it is needed. So it is at the run's end.
//!
//! No other op observes whether a group is done. Where ops and waits change places, every op still finds done what it needs.
use crate::kernel_ir::class::Class;
use crate::kernel_ir::*;
use rustc_hash::{FxHashMap, FxHashSet};

/// Nothing is known to be done.
const NONE: i64 = i64::MIN / 2;

/// A straight run of ops: in it are no regions with accumulators.
pub struct Run {
    /// Without waits for wgmma.
    pub ops: Vec<Op>,
    /// The waits that it had: the place among `ops`, all groups before which are done then.
    pub waits: Vec<Wait>,
    /// Of each value of an accumulator, the first value that the run has of it.
    accumulators: FxHashMap<Value, Value>,
    /// The number of each group before anything moved.
    groups: FxHashMap<Op, usize>,
    needs: FxHashMap<Op, Need>,
    end: Need,
    /// Accumulators that begin in the run.
    begun: FxHashSet<Value>,
    /// Accumulators that may be running where the run begins, by their first values.
    running: Vec<Value>,
}

/// A wait before the op at `at`: all groups before `done` are done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Wait {
    pub at: usize,
    pub done: i64,
}

/// The groups that must be done.
#[derive(Clone, Debug)]
struct Need {
    /// Of those before the run, all before this number.
    before: i64,
    /// Of the run's own.
    own: Vec<usize>,
}

impl Need {
    fn nothing() -> Need {
        let (before, own) = (NONE, vec![]);
        Need { before, own }
    }

    /// Of the groups before `done`, the older ones and what of the run `is_needed`.
    fn of(done: i64, is_needed: impl Fn(usize) -> bool) -> Need {
        Need {
            before: done.min(0),
            own: (0..done.max(0) as usize).filter(|g| is_needed(*g)).collect(),
        }
    }
}

impl Run {
    /// Of these ops, which stand behind each other in a region.
    pub fn new(kernel: &Kernel, all: &[Op]) -> Run {
        let mut run = Run {
            ops: vec![],
            waits: vec![],
            accumulators: FxHashMap::default(),
            groups: FxHashMap::default(),
            needs: FxHashMap::default(),
            end: Need::nothing(),
            begun: FxHashSet::default(),
            running: vec![],
        };
        let mut issued: Vec<Op> = vec![];
        let mut done = NONE;
        for &op in all {
            let OpData { kind, results, .. } = &kernel.ops[op];
            let taken: Vec<Value> = operands(kernel, op).map(|v| run.enter(v)).collect();
            let given = results.iter().filter(|v| kernel.ty(**v).is_acc());
            for (i, &v) in given.enumerate() {
                let first = taken.get(i).copied().unwrap_or(v);
                run.accumulators.insert(v, first);
                if taken.is_empty() {
                    run.begun.insert(v);
                }
            }
            if let OpKind::WgmmaWait { n, .. } = kind {
                if done < 0 {
                    run.running.extend(taken.iter().filter(|v| !run.begun.contains(v)));
                }
                done = done.max(issued.len() as i64 - i64::from(*n));
                let at = run.ops.len();
                run.waits.push(Wait { at, done });
                continue;
            }
            let need = match kind.class() {
                Class::Pure(_) => Need::nothing(),
                Class::Accumulator if taken.is_empty() => Need::nothing(),
                Class::Accumulator => {
                    let uses = |g: usize| taken.contains(&run.accumulator(kernel, issued[g]));
                    let need = Need::of(done, uses);
                    // Groups before the run have accumulators from before it.
                    match taken.iter().all(|v| run.begun.contains(v)) {
                        true => Need { before: NONE, ..need },
                        false => need,
                    }
                }
                Class::Memory if motion::orders_nothing(kind) => {
                    let effects = effects::of(kind);
                    let writes = |g: usize| {
                        let mut written = effects.iter().filter(|e| e.access.writes());
                        written.any(|e| motion::touches(kernel, issued[g], e.alloc))
                    };
                    match effects.iter().any(|e| e.access.writes()) {
                        true => Need::of(done, writes),
                        false => Need::nothing(),
                    }
                }
                Class::Memory
                | Class::Synchronisation
                | Class::Pinned
                | Class::Tensor
                | Class::Instructions
                | Class::Control(_)
                | Class::Aside => Need::of(done, |_| true),
            };
            run.needs.insert(op, need);
            if let OpKind::Wgmma { .. } = kind {
                run.groups.insert(op, issued.len());
                issued.push(op);
            }
            run.ops.push(op);
        }
        run.end = Need::of(done, |_| true);
        run.running.sort_unstable();
        run.running.dedup();
        run
    }

    fn enter(&mut self, v: Value) -> Value {
        *self.accumulators.entry(v).or_insert(v)
    }

    /// What an op on an accumulator takes, as the run's first value of it.
    fn accumulator(&self, kernel: &Kernel, op: Op) -> Value {
        let taken = operands(kernel, op).next();
        taken.map_or_else(|| kernel.ops[op].results[0], |v| self.accumulators[&v])
    }

    /// The run's first value of the accumulator that `v` is a value of, if it is one.
    pub fn first(&self, v: Value) -> Option<Value> {
        self.accumulators.get(&v).copied()
    }

    /// Whether an op multiplies.
    pub fn is_group(&self, op: Op) -> bool {
        self.groups.contains_key(&op)
    }

    /// Whether the groups from `first` to `second` are done where the run ends: no count behind it relies on their order.
    pub fn may_swap(&self, first: Op, second: Op) -> bool {
        let [from, to] = [self.groups[&first], self.groups[&second]];
        self.end.own.contains(&from) && self.end.own.contains(&to)
    }

    /// The waits that this order of the ops needs.
    pub fn place_waits(&self, order: &[Op]) -> Vec<Wait> {
        let mut number: Vec<usize> = vec![usize::MAX; self.groups.len()];
        let groups = order.iter().filter_map(|op| self.groups.get(op));
        groups.enumerate().for_each(|(new, old)| number[*old] = new);
        let mut waits = vec![];
        let mut known = NONE;
        let needs = order.iter().map(|op| &self.needs[op]).chain([&self.end]);
        for (at, need) in needs.enumerate() {
            let own = need.own.iter().map(|g| number[*g] as i64 + 1).max();
            // Where nothing may be running at the beginning, nothing of before is waited for.
            let before = if self.running.is_empty() { NONE } else { need.before };
            let done = own.unwrap_or(NONE).max(before);
            if done > known {
                waits.push(Wait { at, done });
                known = done;
            }
        }
        waits
    }

    /// For each op of an order: the groups that are running behind it, as a range of numbers.
    pub fn running(&self, order: &[Op], waits: &[Wait]) -> Vec<std::ops::Range<usize>> {
        let mut waits = waits.iter().peekable();
        let (mut done, mut issued) = (0, 0);
        let mut out = Vec::with_capacity(order.len());
        for (at, op) in order.iter().enumerate() {
            while let Some(wait) = waits.next_if(|wait| wait.at <= at) {
                done = done.max(wait.done.max(0) as usize);
            }
            issued += usize::from(self.is_group(*op));
            out.push(done..issued);
        }
        out
    }

    /// The ops with their waits. New names of accumulators from here on: the old values, and what they are now.
    pub fn write(
        &self,
        kernel: &mut Kernel,
        order: &[Op],
        waits: &[Wait],
        group: Group,
    ) -> (Vec<Op>, Vec<(Value, Value)>) {
        let mut now: FxHashMap<Value, Value> = self.accumulators.values().map(|v| (*v, *v)).collect();
        let mut out = Vec::with_capacity(order.len() + waits.len());
        let mut waits = waits.iter().peekable();
        let (mut issued, mut known): (Vec<Value>, i64) = (vec![], NONE);
        for at in 0..=order.len() {
            while let Some(&Wait { done, .. }) = waits.next_if(|wait| wait.at == at) {
                let mut of: Vec<Value> = issued[known.max(0) as usize..].to_vec();
                if known < 0 {
                    of.extend(&self.running);
                }
                of.sort_unstable();
                of.dedup();
                known = done;
                let near = order.get(at).or(order.last());
                let loc = near.map_or(crate::error::Loc::CALL_SITE, |op| kernel.ops[*op].loc);
                let n = u32::try_from(issued.len() as i64 - done).unwrap_or(0);
                let accs: Vec<Value> = of.iter().map(|v| now[v]).collect();
                let types: Vec<Type> = accs.iter().map(|v| kernel.ty(*v).clone()).collect();
                let wait = kernel.new_op(OpKind::WgmmaWait { n, accs }, types, group, loc);
                for (v, result) in of.iter().zip(&kernel.ops[wait].results) {
                    now.insert(*v, *result);
                }
                out.push(wait);
            }
            let Some(&op) = order.get(at) else { break };
            if self.is_group(op) {
                issued.push(self.accumulator(kernel, op));
            }
            let taken: Vec<Value> = operands(kernel, op).collect();
            visit::map_values(&mut kernel.ops[op].kind, &mut |v| {
                if taken.contains(v) {
                    *v = now[&self.accumulators[v]];
                }
            });
            for v in &kernel.ops[op].results {
                if let Some(first) = self.accumulators.get(v) {
                    now.insert(*first, *v);
                }
            }
            out.push(op);
        }
        let mut renamed: Vec<(Value, Value)> = self.accumulators.iter().map(|(v, first)| (*v, now[first])).collect();
        renamed.retain(|(old, new)| old != new);
        renamed.sort_unstable();
        (out, renamed)
    }
}

/// The accumulators that an op takes.
fn operands(kernel: &Kernel, op: Op) -> impl Iterator<Item = Value> {
    let mut taken: Vec<Value> = vec![];
    visit::for_each_value(&kernel.ops[op].kind, &mut |v| {
        if kernel.ty(v).is_acc() {
            taken.push(v);
        }
    });
    taken.into_iter()
}
