//! Whether the barriers of a ring order nothing but what is in its slots.
//!
//! A producer that waits for all slots of a tile before it fills one for the next tile orders more than the slots: who finds the next
//! tile's first slot full knows of all that others did before they released this tile's last one. If the producer runs ahead, he knows
//! only of what they did before they released that slot. So what a thread does between the releases of a tile's slots must not be in
//! conflict with what another warpgroup, warp, block or device does: with memory that both touch and one writes, or a barrier that both use.
//!
//! What one does before it has waited for anything is behind nothing of the others, and in no such conflict. A loop around all
//! releases that goes as often as the producer's goes over its tiles.
use super::Ring;
use crate::kernel_ir::class::Control;
use crate::kernel_ir::effects::{self, Completion, Look, Order};
use crate::kernel_ir::executor::{Executor, arm_taken, evaluate_with};
use crate::kernel_ir::rewrite::regions_of;
use crate::kernel_ir::*;
use std::ops::Range;

/// Whether the ring's barriers order nothing but its slots. `producer`: its loop over tiles.
pub fn is_all(kernel: &Kernel, ring: &Ring, producer: Op) -> bool {
    let mut touches: Vec<Touch> = vec![];
    let mut waits = false;
    for warpgroup in 0..kernel.num_warpgroups {
        let mut walk = Walk {
            kernel,
            ring,
            producer,
            by: Executor::warpgroup(warpgroup),
            loops: 0,
            over_tiles: false,
            acquired: false,
            waits: false,
            waits_for_stores: false,
            touches: vec![],
        };
        walk.region(kernel.body, false);
        waits |= walk.waits;
        for touch in &mut walk.touches {
            touch.between |= touch.ends == Ends::Stores && walk.waits_for_stores;
        }
        touches.append(&mut walk.touches);
    }
    for touch in &mut touches {
        touch.between |= touch.ends == Ends::Barrier && waits;
    }
    let mut between = touches.iter().filter(|x| x.between);
    !between.any(|x| {
        let mut others = touches.iter().filter(|y| y.late && y.root == x.root);
        others.any(|y| in_conflict(kernel, x, y))
    })
}

/// What an executor does to memory, a barrier or a semaphore.
struct Touch {
    alloc: Alloc,
    root: Alloc,
    /// Whether it is this block's, or this device's.
    is_here: bool,
    /// What is known of the positions in each dimension of the allocation.
    dims: Vec<Option<Range<i64>>>,
    by: Executor,
    /// Barriers and semaphores are written, whoever uses them.
    writes: bool,
    /// Whether it may go on after a tile's first slot is released and be over before its last one is.
    between: bool,
    ends: Ends,
    /// Whether it may be behind something that others did.
    late: bool,
}

/// What shows that a touch is over.
#[derive(PartialEq)]
enum Ends {
    Now,
    Barrier,
    Stores,
}

/// Whether two touches of one allocation may be in each other's way and are not those of one executor.
fn in_conflict(kernel: &Kernel, x: &Touch, y: &Touch) -> bool {
    if !x.writes && !y.writes {
        return false;
    }
    let data = &kernel.allocs[x.root];
    let is_wide = match data.kind {
        AllocKind::Semaphore { .. } => true,
        AllocKind::Barrier { ref cluster, .. } => cluster.is_some(),
        // Other blocks may read it. (An order of their writes upon which blocks agree needs something else that one of them reads.)
        AllocKind::Gmem { .. } => !x.writes || !y.writes,
        _ => false,
    };
    if is_wide || !x.is_here || !y.is_here {
        return true;
    }
    let (a, b) = (x.by, y.by);
    let is_other = if a.warpgroup == b.warpgroup {
        a.warp.is_some() && b.warp.is_some() && a.warp != b.warp
    } else {
        data.collective
    };
    let are_disjoint = |(a, b): (&Option<Range<i64>>, &Option<Range<i64>>)| match (a, b) {
        (Some(a), Some(b)) => a.end <= b.start || b.end <= a.start,
        _ => false,
    };
    is_other && !(x.alloc == y.alloc && x.dims.iter().zip(&y.dims).any(are_disjoint))
}

/// One executor's way through the kernel, without the producer's loop.
struct Walk<'a> {
    kernel: &'a Kernel,
    ring: &'a Ring,
    /// The producer's loop over tiles.
    producer: Op,
    by: Executor,
    loops: u32,
    /// Within a loop that goes over tiles as the producer's does.
    over_tiles: bool,
    /// Whether it may have waited for others.
    acquired: bool,
    /// Whether it waits between releases for a barrier that is not the ring's, or for copies out of shared memory.
    waits: bool,
    waits_for_stores: bool,
    touches: Vec<Touch>,
}

impl Walk<'_> {
    fn region(&mut self, at: Region, between: bool) {
        let kernel = self.kernel;
        let ops = &kernel.regions[at].ops;
        let releases: Vec<usize> = (0..ops.len()).filter(|i| self.releases_within(ops[*i])).collect();
        let producer = self.producer;
        for (i, &op) in ops.iter().enumerate().filter(|(_, op)| **op != producer) {
            let is_between = match releases[..] {
                [first, .., last] => (first..=last).contains(&i),
                _ => false,
            };
            self.op(op, between || is_between);
        }
    }

    fn op(&mut self, op: Op, between: bool) {
        let kernel = self.kernel;
        let kind = &kernel.ops[op].kind;
        let Some(control) = kind.control() else {
            self.touch(kind, between);
            self.acquired |= self.acquires(kind);
            return;
        };
        match control {
            Control::For { body, .. } => {
                self.acquired |= self.acquires_within(op);
                let over_tiles = self.over_tiles;
                let releases = self.releases_within(op);
                let is_over_tiles = releases && !over_tiles && self.goes_as_the_producer(op);
                self.over_tiles |= is_over_tiles;
                self.loops += 1;
                self.region(body, between || releases && !is_over_tiles);
                self.loops -= 1;
                self.over_tiles = over_tiles;
            }
            Control::While { cond, body, .. } => {
                self.acquired |= self.acquires_within(op);
                let between = between || self.releases_within(op);
                self.loops += 1;
                self.region(cond, between);
                self.region(body, between);
                self.loops -= 1;
            }
            Control::Switch { arms, .. } => {
                let acquired = self.acquired;
                match arm_taken(kernel, kind, self.by) {
                    Some(arm) => self.region(arm, between),
                    None => {
                        let mut any = acquired;
                        for arm in arms {
                            self.acquired = acquired;
                            self.region(*arm, between);
                            any |= self.acquired;
                        }
                        self.acquired = any;
                    }
                }
            }
            Control::Scope { collective, body, .. } => {
                // Where the scope of the ring begins, and that once, nothing has been done yet.
                let mut begins = false;
                kernel.for_each_op_in(body, &mut |op| begins |= op == self.producer);
                self.acquired |= collective && (self.loops > 0 || !begins);
                self.region(body, between);
            }
            Control::WarpMap { body, .. } => {
                let (by, acquired) = (self.by, self.acquired);
                let mut any = acquired;
                for warp in 0..4 {
                    self.by.warp = Some(warp);
                    self.acquired = acquired;
                    self.region(body, between);
                    any |= self.acquired;
                }
                (self.by, self.acquired) = (by, any);
            }
        }
    }

    fn touch(&mut self, kind: &OpKind, between: bool) {
        let kernel = self.kernel;
        for effect in effects::of(kind) {
            let ends = match effect.completion {
                Completion::Now | Completion::Wgmma | Completion::LoadGroup | Completion::Commit => Ends::Now,
                Completion::Barrier(_) => Ends::Barrier,
                Completion::StoreGroup => Ends::Stores,
            };
            // Products are waited for wherever slots are released.
            let between = between
                || matches!(
                    effect.completion,
                    Completion::Wgmma | Completion::LoadGroup | Completion::Commit
                );
            if !kernel.is_input(effect.alloc) {
                self.add(effect.view, effect.access.writes(), between, ends);
            }
        }
        visit::for_each_ref(kind, &mut |view| {
            let data = &kernel.allocs[view.alloc];
            if data.is_barrier() || matches!(data.kind, AllocKind::Semaphore { .. }) {
                self.add(view, true, between, Ends::Now);
            }
        });
        match effects::order(kind) {
            Order::Wait(barrier) => self.waits |= between && !self.ring.has(self.kernel, barrier),
            Order::WaitStores { .. } => self.waits_for_stores |= between,
            _ => {}
        }
    }

    fn add(&mut self, view: &RefUse, writes: bool, between: bool, ends: Ends) {
        if self.ring.has(self.kernel, view) {
            return;
        }
        let dims = match view.steps.first() {
            Some(Step::Index(dims)) => dims.iter().map(|dim| self.range(dim)).collect(),
            _ => vec![],
        };
        self.touches.push(Touch {
            alloc: view.alloc,
            root: effects::root(self.kernel, view.alloc),
            is_here: view.place == Place::Here,
            dims,
            by: self.by,
            writes,
            between,
            ends,
            late: self.acquired,
        });
    }

    fn range(&self, dim: &DimIndex) -> Option<Range<i64>> {
        let start = match dim.first()? {
            Index::Const(start) => start,
            Index::Value(v) => evaluate_with(self.kernel, v, self.by, &|_| None)?,
        };
        let length = i64::try_from(dim.size().checked_mul(dim.stride())?).ok()?;
        Some(start..start.checked_add(length)?)
    }

    /// Whether it may learn of what others did.
    fn acquires(&self, kind: &OpKind) -> bool {
        let waits = match effects::order(kind) {
            Order::Wait(_) | Order::Rendezvous(Group::Block) => true,
            Order::RendezvousExecuting { acquires, .. } => acquires,
            _ => false,
        };
        let looks = match effects::look(kind) {
            Some(Look::Memory(view)) => !self.kernel.is_input(view.alloc),
            Some(Look::Semaphore | Look::Barrier) => true,
            None => false,
        };
        waits || looks
    }

    fn acquires_within(&self, op: Op) -> bool {
        let mut found = false;
        self.kernel
            .for_each_op_of(op, &mut |op| found |= self.acquires(&self.kernel.ops[op].kind));
        found
    }

    /// Whether it releases slots there.
    fn releases_within(&self, op: Op) -> bool {
        let kernel = self.kernel;
        let kind = &kernel.ops[op].kind;
        if let OpKind::BarrierArrive { barrier, .. } = kind {
            return self.ring.has_free(barrier.alloc);
        }
        let within = |region: &Region| kernel.regions[*region].ops.iter().any(|op| self.releases_within(*op));
        match arm_taken(kernel, kind, self.by) {
            Some(arm) => within(&arm),
            None => regions_of(kernel, op).iter().any(within),
        }
    }

    /// Whether a loop's bounds are the producer's.
    fn goes_as_the_producer(&self, op: Op) -> bool {
        let bounds = |op: Op| {
            if let Some(Control::For { lower, upper, .. }) = self.kernel.ops[op].kind.control() {
                return Some([lower, upper]);
            }
            None
        };
        let same = |a: Value, b: Value| {
            let constant = |v: Value| self.kernel.facts(v).as_constant();
            a == b || constant(a).is_some() && constant(a) == constant(b)
        };
        match (bounds(op), bounds(self.producer)) {
            (Some([a, b]), Some([c, d])) => same(a, c) && same(b, d),
            _ => false,
        }
    }
}
