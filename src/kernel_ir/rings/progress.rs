//! Whether every wait for a barrier ends: what each warpgroup of a block arrives at and waits for, in its order, run to the end.
//!
//! Arrivals are only ever added, and who waits for the n-th phase goes on when there were n times as many as a phase counts: whatever order the
//! warpgroups run in, they get equally far. So one order shows it for all. A copy arrives at once: it ends by itself.
//!
//! It is known where loops, arms and barriers depend on numbers and on the warpgroup's index, for blocks without a cluster.
use crate::kernel_ir::class::Control;
use crate::kernel_ir::effects::{self, Order};
use crate::kernel_ir::executor::{Executor, Known, evaluate_with};
use crate::kernel_ir::*;
use rustc_hash::FxHashMap;
use std::cell::Cell;

/// Steps that are followed.
const MAX_STEPS: u32 = 1 << 18;

/// An element of an allocation of barriers.
type Barrier = (Alloc, i64);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Event {
    Arrive(Barrier),
    Wait(Barrier),
    /// A barrier of the block.
    Rendezvous,
}

/// Whether it is known that all warpgroups come to their ends.
pub fn all_end(kernel: &Kernel) -> bool {
    let left = Cell::new(MAX_STEPS);
    let traces: Option<Vec<Vec<Event>>> = (0..kernel.num_warpgroups)
        .map(|warpgroup| {
            let mut way = Way {
                kernel,
                warpgroup,
                numbers: FxHashMap::default(),
                events: vec![],
                left: &left,
            };
            way.region(kernel.body).map(|()| way.events)
        })
        .collect();
    kernel.cluster_size() == 1 && traces.is_some_and(|traces| run(kernel, &traces))
}

/// Runs all traces as far as they get.
fn run(kernel: &Kernel, traces: &[Vec<Event>]) -> bool {
    let mut at = vec![0; traces.len()];
    let mut arrived: FxHashMap<Barrier, u64> = FxHashMap::default();
    let mut waited: Vec<FxHashMap<Barrier, u64>> = vec![FxHashMap::default(); traces.len()];
    loop {
        let mut moved = false;
        for (i, trace) in traces.iter().enumerate() {
            while let Some(event) = trace.get(at[i]) {
                match event {
                    Event::Arrive(barrier) => *arrived.entry(*barrier).or_default() += 1,
                    Event::Wait(barrier) => {
                        let phase = waited[i].entry(*barrier).or_default();
                        let AllocKind::Barrier { num_arrivals, .. } = kernel.allocs[barrier.0].kind else {
                            return false;
                        };
                        if arrived.get(barrier).copied().unwrap_or(0) < (*phase + 1) * num_arrivals {
                            break;
                        }
                        *phase += 1;
                    }
                    Event::Rendezvous => break,
                }
                at[i] += 1;
                moved = true;
            }
        }
        let next = |i: usize| traces[i].get(at[i]);
        if (0..traces.len()).all(|i| next(i).is_none()) {
            return true;
        }
        if (0..traces.len()).all(|i| next(i) == Some(&Event::Rendezvous)) {
            at.iter_mut().for_each(|at| *at += 1);
        } else if !moved {
            return false;
        }
    }
}

/// The way of one warpgroup through the kernel. `None`: what it does is not known.
struct Way<'a> {
    kernel: &'a Kernel,
    warpgroup: u32,
    /// Counters and carries of loops, and results of arms.
    numbers: FxHashMap<Value, i64>,
    events: Vec<Event>,
    left: &'a Cell<u32>,
}

impl Way<'_> {
    fn number(&self, v: Value) -> Option<i64> {
        let known = |v: Value| self.numbers.get(&v).map(|n| Known::Number(*n));
        evaluate_with(self.kernel, v, Executor::warpgroup(self.warpgroup), &known)
    }

    /// `to` become what `from` are, all at once.
    fn pass(&mut self, from: &[Value], to: &[Value]) {
        let integer = |v: &Value| self.kernel.ty(*v).is_scalar() && !self.kernel.ty(*v).dtype().is_float();
        let values: Vec<Option<i64>> = from
            .iter()
            .map(|v| integer(v).then(|| self.number(*v)).flatten())
            .collect();
        for (to, n) in to.iter().zip(values) {
            match n {
                Some(n) => self.numbers.insert(*to, n),
                None => self.numbers.remove(to),
            };
        }
    }

    fn region(&mut self, region: Region) -> Option<()> {
        self.kernel.regions[region].ops.iter().try_for_each(|op| self.op(*op))
    }

    fn op(&mut self, op: Op) -> Option<()> {
        let kernel = self.kernel;
        let OpData { kind, results, .. } = &kernel.ops[op];
        if kind.is_pure() {
            return Some(());
        }
        self.left.set(self.left.get().checked_sub(1)?);
        match kind.control() {
            None => self.event(kind),
            Some(Control::For { .. }) => {
                let OpKind::For {
                    lower,
                    upper,
                    inits,
                    xs,
                    reverse: false,
                    body,
                    ..
                } = kind
                else {
                    return None;
                };
                let (Some(lower), Some(upper)) = (self.number(*lower), self.number(*upper)) else {
                    return is_silent(kernel, *body).then_some(());
                };
                let RegionData {
                    params, results: next, ..
                } = &kernel.regions[*body];
                let carries = &params[1..params.len() - xs.len()];
                self.pass(inits, carries);
                for i in lower..upper {
                    self.numbers.insert(params[0], i);
                    self.left.set(self.left.get().checked_sub(1)?);
                    self.region(*body)?;
                    self.pass(&next[..carries.len()], carries);
                }
                self.pass(carries, &results[..carries.len()]);
                Some(())
            }
            Some(Control::Switch { selector, arms }) => {
                let arm = match self.number(selector) {
                    Some(n) => *arms.get(usize::try_from(n).ok()?)?,
                    None if arms.iter().all(|arm| is_silent(kernel, *arm)) => return Some(()),
                    None => return None,
                };
                self.region(arm)?;
                self.pass(&kernel.regions[arm].results, results);
                Some(())
            }
            Some(Control::Scope { collective, body, .. }) => {
                if collective {
                    self.events.push(Event::Rendezvous);
                }
                self.region(body)?;
                self.pass(&kernel.regions[body].results, results);
                Some(())
            }
            // It may wait for others.
            Some(Control::While { .. }) => None,
            Some(Control::WarpMap { body, .. }) => is_silent(kernel, body).then_some(()),
        }
    }

    /// What an op without regions does.
    fn event(&mut self, kind: &OpKind) -> Option<()> {
        let event = if let OpKind::BarrierWait { barrier, .. } = kind {
            Event::Wait(self.barrier(barrier)?)
        } else if let OpKind::BarrierArrive {
            barrier,
            predicate: None,
        } = kind
        {
            Event::Arrive(self.barrier(barrier)?)
        } else if let OpKind::CopyGmemToSmem {
            barrier: Some(barrier),
            predicate: None,
            leader_tracked: None,
            collective_axes,
            ..
        } = kind
            && collective_axes.is_empty()
        {
            Event::Arrive(self.barrier(barrier)?)
        } else if let OpKind::Sync { group: Group::Block } = kind {
            Event::Rendezvous
        } else {
            return is_quiet(self.kernel, kind).then_some(());
        };
        self.events.push(event);
        Some(())
    }

    fn barrier(&self, view: &RefUse) -> Option<Barrier> {
        if view.place != Place::Here {
            return None;
        }
        let i = match view.single_index() {
            Some(Index::Const(i)) => i,
            Some(Index::Value(v)) => self.number(v)?,
            None if view.steps.is_empty() => 0,
            None => return None,
        };
        Some((view.alloc, i))
    }
}

/// Whether nothing in a region arrives anywhere, or waits for anybody.
fn is_silent(kernel: &Kernel, region: Region) -> bool {
    let mut silent = true;
    kernel.for_each_op_in(region, &mut |op| {
        let kind = &kernel.ops[op].kind;
        let waits = matches!(kind, OpKind::Scope { collective: true, .. } | OpKind::While { .. });
        silent &= !waits && is_quiet(kernel, kind);
    });
    silent
}

/// Whether an op touches no barrier and waits for no other thread.
fn is_quiet(kernel: &Kernel, kind: &OpKind) -> bool {
    let mut quiet = match effects::order(kind) {
        Order::None
        | Order::Rendezvous(Group::Warp | Group::Warpgroup)
        | Order::CommitStores
        | Order::WaitStores { .. }
        | Order::WaitWgmma { .. }
        | Order::CommitSmem
        | Order::FenceShared
        | Order::FenceDevice => true,
        Order::Unknown
        | Order::Arrive
        | Order::ArriveByIssuer
        | Order::Rendezvous(Group::Block)
        | Order::RendezvousExecuting { .. }
        | Order::RendezvousBefore
        | Order::Wait(_) => false,
    };
    visit::for_each_ref(kind, &mut |view| quiet &= !kernel.allocs[view.alloc].is_barrier());
    quiet
}
