//! Places the barriers and fences that JAX's program-order semantics need.
//!
//! In a Pallas thread each op sees what the ones before it did, but the lanes and units that do them diverge. A forward
//! analysis carries what is [`pending`](super::pending) (what may still be going on, and what its end is ordered before) through the
//! kernel, joins it over arms, and takes it round loops to the fixpoint; where an op is about to begin an access that conflicts
//! with something pending, a barrier goes before it: of the warpgroup, in a warp region of the warp. What an op touches is
//! [`effects::of`], in [`bytes`](super::bytes) of memory, so that unions and scopes that overlay each other are nothing special.
//!
//! Two accesses by lanes conflict where different lanes touch an element, which is looked up element by element
//! ([`footprint`](super::footprint)): the same layout through the same view is disjoint from lane to lane, and an overlap within one warp needs
//! a barrier of the warp only. An arrival on an mbarrier releases the accesses of each warp that arrives, and every lane executes
//! a wait, so what these order needs nothing more.
//!
//! **Divergence.** In a warp region the warps diverge, and in a feeding loop ([`super::feeding_loops`]) the first warp runs alone: no
//! barrier of the warpgroup can be placed inside. What conflicts with anything inside is ordered before it begins; so is everything where
//! a warp inside arrives or signals for its warpgroup. What warps did in their region, or acquired by a wait there, is not ordered before other
//! threads behind it; what one warp alone loads and stores there, by arms on its index, is its lanes'. Behind a feeding loop only the
//! lane that issued has acquired anything: the other warps pass a barrier with it before they touch memory, or wait for an mbarrier that
//! it has waited for.
//!
//! **Progress.** A bulk load arrives on its mbarrier by one lane. Warps that issue nothing would let that lane go ahead of their
//! own waits, and a warp that falls two phases behind waits for a phase that is long past, and hangs: a wait by each warp conflicts
//! with a later arrival by one lane, whatever the barriers are.
//!
//! **Proxies.** What units read of shared memory is committed by the user (`commit_smem`). JAX has no such op for what they
//! overwrite there, and none for device memory: a proxy fence is placed before a bulk load over ordinary stores, and before a copy
//! that overlaps them in device memory, whether they are this thread's or, behind a wait, another's. A load of shared memory may still be
//! going on when its lane arrives on a barrier, or passes one, so that a bulk load into its place is the faster one (seen on an H100, with
//! `ldmatrix` in front of an arrival: `docs/FOUND.md`): a fence is placed there, too.
//!
//! **Scopes.** A scope that takes over the memory of one that is over, in an earlier iteration perhaps, waits for everything that
//! any warpgroup does there. A collective one begins with a barrier of the block, as in JAX. The kernel's end is the end of all of
//! them: bulk stores have read by then, whichever thread has waited for them.
//!
//! **Warpgroups** that take different arms are looked at one after the other: what one of them does needs nothing of the others.
//!
//! Under `unsafe_no_auto_barriers` only these are placed: fences for device memory, fences behind loads, before scopes, at the end, where the end of a feeding loop matters to
//! the other warps, before feeding loops for progress, behind a wait for a bulk store, which is one by the warpgroup in any case, and in memory that
//! the compiler has allocated ([`Owner::Compiler`]).
use super::allocate::{Allocation, shares};
use super::bytes::{self, Bytes, Space};
use super::footprint::{FootprintId, Footprints, Holder};
use super::pending::{Access, By, End, Ends, Need, Pending, Since, State, conflict};
use super::refills;
use crate::error::Loc;
use crate::kernel_ir::class::Control;
use crate::kernel_ir::effects::{self, Actor, Order, Proxy};
use crate::kernel_ir::executor::{Executor, Known, arm_taken, evaluate_for, evaluate_with};
use crate::kernel_ir::polling::{self, Polling};
use crate::kernel_ir::rings::{Part, Slot};
use crate::kernel_ir::visit::for_each_region;
use crate::kernel_ir::*;
use crate::layout::assignment::Assignment;
use cranelift_entity::SecondaryMap;
use rustc_hash::FxHashMap;
use std::rc::Rc;

/// Inserts `Sync` and `Fence` ops; returns the barriers of a warpgroup or a block.
pub fn run(kernel: &mut Kernel, assignment: &Assignment, allocation: &Allocation) -> Vec<Op> {
    let mut pass = Pass {
        written: accessed(kernel, |e| e.access.writes()),
        mixed: vec![],
        filled: vec![],
        assignment,
        allocation,
        automatic: !kernel.compiler_params.unsafe_no_auto_barriers,
        shares_block: kernel.num_warpgroups > 1,
        placed: vec![],
        warpgroup: 0,
        has_scope_before: false,
        depth: 0,
        accesses: SecondaryMap::new(),
        divergent: FxHashMap::default(),
        footprints: Footprints::new(kernel, assignment, allocation),
        waited_alone: SecondaryMap::new(),
        visited: FxHashMap::default(),
        polling: polling::find(kernel),
        refills: refills::find(kernel),
    };
    pass.mixed = pass.mixed(kernel);
    pass.filled = pass.filled(kernel);
    pass.waited_alone = pass.waited_alone(kernel);
    for warpgroup in 0..if takes_arms(kernel) { kernel.num_warpgroups } else { 1 } {
        pass.warpgroup = warpgroup;
        pass.has_scope_before = false;
        pass.visited.clear();
        pass.divergent.clear();
        let mut state = State::new(Group::Warpgroup);
        pass.region(kernel, kernel.body, &mut state, Mode::Insert);
        end_kernel(kernel, &state);
    }
    pass.placed
}

/// Behind the last op shared memory goes to another block: bulk stores without a wait have read it by then.
fn end_kernel(kernel: &mut Kernel, state: &State) {
    let (unread, open) = state.unread_stores();
    let body = kernel.body;
    let Some(&last) = kernel.regions[body].ops.last() else {
        return;
    };
    let (n, scope) = (0, WaitScope::SmemRead);
    // A warpgroup that was looked at before has placed it, for all of them.
    if !unread || matches!(kernel.ops[last].kind, OpKind::WaitSmemToGmem { n: 0, .. }) {
        return;
    }
    let loc = kernel.ops[last].loc;
    let commit = open.then_some(OpKind::CommitGroup);
    for kind in commit.into_iter().chain([OpKind::WaitSmemToGmem { n, scope }]) {
        let op = kernel.new_op(kind, [], state.group, loc);
        kernel.regions[body].ops.push(op);
    }
}

/// Whether warpgroups take different arms.
fn takes_arms(kernel: &Kernel) -> bool {
    let mut takes = false;
    kernel.for_each_op(&mut |op| {
        if let OpKind::Switch { selector, .. } = &kernel.ops[op].kind {
            let arms = (0..kernel.num_warpgroups).map(|warpgroup| evaluate_for(kernel, *selector, warpgroup));
            takes |= !arms.is_sorted_by(|a, b| a == b);
        }
    });
    takes
}

fn accessed(kernel: &Kernel, how: impl Fn(&effects::Effect<'_>) -> bool) -> SecondaryMap<Alloc, bool> {
    let mut accessed = SecondaryMap::new();
    kernel.for_each_op(&mut |op| {
        for effect in effects::of(&kernel.ops[op].kind) {
            accessed[effect.alloc] |= how(&effect);
        }
    });
    accessed
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Mode {
    /// Compute the state behind the region only.
    Dry,
    Insert,
}

/// What a region with divergent executors does.
#[derive(Default)]
struct Divergent {
    accesses: Vec<Access>,
    /// Of what one warp of a warp region touches by ordinary accesses, by what it is to the warp that does: what it is to the
    /// warpgroup; None: several warps do.
    alone: FxHashMap<(Bytes, Option<FootprintId>), Option<FootprintId>>,
    /// Some warp releases, for its warpgroup.
    releases: bool,
    /// Some warp commits shared memory to units that read it.
    commits: bool,
}

/// A loop as it was last seen: what it began with, what it begins an iteration with, and what it ends with.
struct Visit {
    entry: State,
    head: State,
    exit: State,
}

struct Pass<'a> {
    assignment: &'a Assignment,
    allocation: &'a Allocation,
    /// What the kernel writes by any proxy.
    written: SecondaryMap<Alloc, bool>,
    /// What ordinary stores write and copies touch.
    mixed: Vec<Bytes>,
    /// Shared memory that copies fill.
    filled: Vec<Bytes>,
    automatic: bool,
    /// The block has other warpgroups.
    shares_block: bool,
    placed: Vec<Op>,
    /// The warpgroup that is followed through the kernel.
    warpgroup: u32,
    /// A scope has begun already.
    has_scope_before: bool,
    /// Loops around.
    depth: u32,
    /// By op, once computed.
    accesses: SecondaryMap<Op, Option<Rc<[Access]>>>,
    divergent: FxHashMap<Op, Rc<Divergent>>,
    footprints: Footprints,
    /// Barriers that one warp waits for alone: in feeding loops, in warp regions.
    waited_alone: SecondaryMap<Alloc, bool>,
    visited: FxHashMap<Op, Visit>,
    polling: Polling,
    refills: SecondaryMap<Alloc, Vec<Alloc>>,
}

impl Pass<'_> {
    // ------------------------------------------------------------ what ops do

    /// Which lanes touch what of a view. `all`: every lane reads it as a whole.
    fn footprint(
        &mut self,
        kernel: &Kernel,
        effect: &effects::Effect<'_>,
        value: Option<Value>,
        all: bool,
    ) -> FootprintId {
        let holder = match effect.actor {
            Actor::Issuer => Holder::Issuer,
            Actor::Warps | Actor::AnyLanes => Holder::All,
            Actor::Lanes if all => Holder::All,
            Actor::Lanes if effect.view.shape.is_empty() => Holder::First,
            Actor::Lanes => match value.and_then(|v| self.assignment.values[v].as_ref()) {
                Some(layout) => Holder::Layout(layout.clone()),
                None => Holder::All,
            },
        };
        self.footprints.of(kernel, effect.view, holder)
    }

    /// The accesses that an op makes itself.
    fn accesses(&mut self, kernel: &Kernel, op: Op) -> Rc<[Access]> {
        if let Some(known) = &self.accesses[op] {
            return known.clone();
        }
        let data = &kernel.ops[op];
        let mut out = vec![];
        for effect in effects::of(&data.kind) {
            let bytes = bytes::of(kernel, self.assignment, self.allocation, effect.view);
            let is_device = matches!(bytes.space, Space::Device(_));
            // Reads of what no thread writes need no order.
            if is_device && !self.written[effect.alloc] {
                continue;
            }
            let stored = data.kind.transfer().filter(|moved| moved.is_whole());
            let stored = stored.and_then(|moved| moved.value);
            let value = stored.or(data.results.first().copied());
            let by = match effect.actor {
                Actor::Lanes | Actor::AnyLanes => By::Lanes,
                Actor::Issuer => By::Issuer,
                Actor::Warps => By::Warps,
            };
            // A scalar: every lane reads it, unless one broadcasts it; the first one writes it.
            let is_scalar = effect.actor == Actor::Lanes && effect.view.shape.is_empty();
            let by_first = self.allocation.rendezvous[op] || self.allocation.by_leader[op];
            let is_scalar = is_scalar && !is_device && !by_first;
            let slot = refills::slot(kernel, effect.view);
            let access = |reads, writes, footprint| Access {
                bytes,
                footprint: Some(footprint),
                slot,
                owner: kernel.allocs[effect.alloc].owner,
                reads,
                writes,
                proxy: effect.proxy,
                by,
                ends: Ends::of(effect.completion, writes),
            };
            if is_scalar && effect.access.reads() {
                let footprint = self.footprint(kernel, &effect, value, true);
                out.push(access(true, false, footprint));
            }
            if !is_scalar || effect.access.writes() {
                let footprint = self.footprint(kernel, &effect, value, false);
                out.push(access(effect.access.reads(), effect.access.writes(), footprint));
            }
        }
        if effects::order(&data.kind) == Order::ArriveByIssuer {
            out.push(Access {
                bytes: Bytes::PROGRESS,
                footprint: None,
                slot: None,
                owner: Owner::Author,
                reads: false,
                writes: true,
                proxy: Proxy::Generic,
                by: By::Issuer,
                ends: Ends::Barrier,
            });
        }
        let out: Rc<[Access]> = out.into();
        self.accesses[op] = Some(out.clone());
        out
    }

    /// The bytes of ordinary stores that copies touch.
    fn mixed(&mut self, kernel: &Kernel) -> Vec<Bytes> {
        let (mut stored, mut copied) = (vec![], vec![]);
        let mut ops = vec![];
        kernel.for_each_op(&mut |op| ops.push(op));
        for op in ops {
            for access in self.accesses(kernel, op).iter() {
                if is_fenced_here(access) && !copied.contains(&access.bytes) {
                    copied.push(access.bytes);
                }
                let is_store = access.proxy == Proxy::Generic && access.writes && access.bytes != Bytes::PROGRESS;
                if is_store && !stored.contains(&access.bytes) {
                    stored.push(access.bytes);
                }
            }
        }
        stored.retain(|bytes| copied.iter().any(|other| bytes.overlap(other)));
        stored
    }

    fn filled(&mut self, kernel: &Kernel) -> Vec<Bytes> {
        let (mut filled, mut ops) = (vec![], vec![]);
        kernel.for_each_op(&mut |op| ops.push(op));
        for op in ops {
            for access in self.accesses(kernel, op).iter() {
                let fills = is_fenced_here(access) && access.bytes.space == Space::Shared;
                if fills && !filled.contains(&access.bytes) {
                    filled.push(access.bytes);
                }
            }
        }
        filled
    }

    fn waited_alone(&self, kernel: &Kernel) -> SecondaryMap<Alloc, bool> {
        let mut alone = SecondaryMap::new();
        for region in kernel.live_regions() {
            let region = &kernel.regions[region];
            for &op in &region.ops {
                if let Order::Wait(barrier) = effects::order(&kernel.ops[op].kind) {
                    alone[barrier.alloc] |= region.group == Group::Warp || self.allocation.feeding.waits[op];
                }
            }
        }
        alone
    }

    /// What the ops in an op's regions do, for which no barrier can be placed among them.
    fn divergent(&mut self, kernel: &Kernel, op: Op) -> Rc<Divergent> {
        if let Some(known) = self.divergent.get(&op) {
            return known.clone();
        }
        let in_warps = matches!(kernel.ops[op].kind, OpKind::WarpMap { .. });
        let mut inside = vec![];
        executed(kernel, op, self.warpgroup, 0b1111, &mut inside);
        let mut out = Divergent::default();
        for (op, warps) in inside {
            for access in self.accesses(kernel, op).iter() {
                let mut access = *access;
                if in_warps {
                    let footprint = access
                        .footprint
                        .filter(|_| access.by == By::Lanes && warps.is_power_of_two())
                        .map(|footprint| self.footprints.by_warp(kernel, footprint, warps.trailing_zeros() as u8));
                    if access.by == By::Lanes {
                        let known = out.alone.entry((access.bytes, access.footprint)).or_insert(footprint);
                        *known = known.filter(|known| Some(*known) == footprint);
                    }
                    (access.by, access.footprint) = match footprint {
                        Some(footprint) => (By::Lanes, Some(footprint)),
                        None => (By::SomeWarp, access.footprint),
                    };
                }
                if !out.accesses.contains(&access) {
                    out.accesses.push(access);
                }
            }
            let order = effects::order(&kernel.ops[op].kind);
            out.commits |= in_warps && matches!(order, Order::CommitSmem | Order::FenceShared);
            out.releases |= in_warps
                && match order {
                    Order::Arrive | Order::RendezvousBefore => true,
                    Order::RendezvousExecuting { signals, .. } => signals,
                    Order::None
                    | Order::Unknown
                    | Order::ArriveByIssuer
                    | Order::Rendezvous(_)
                    | Order::Wait(_)
                    | Order::CommitStores
                    | Order::WaitStores { .. }
                    | Order::WaitWgmma { .. }
                    | Order::CommitSmem
                    | Order::FenceShared
                    | Order::FenceDevice => false,
                };
        }
        let out = Rc::new(out);
        self.divergent.insert(op, out.clone());
        out
    }

    // ------------------------------------------------------------ what is placed

    fn place(&mut self, kernel: &mut Kernel, state: &State, mode: Mode, out: &mut Vec<Op>, kind: OpKind, loc: Loc) {
        if mode == Mode::Insert {
            let is_wide = matches!(
                kind,
                OpKind::Sync {
                    group: Group::Warpgroup | Group::Block
                }
            );
            let op = kernel.new_op(kind, [], state.group, loc);
            if is_wide {
                self.placed.push(op);
            }
            out.push(op);
        }
    }

    /// A barrier before the op that is about to be pushed.
    fn sync(&mut self, kernel: &mut Kernel, state: &mut State, mode: Mode, out: &mut Vec<Op>, group: Group, loc: Loc) {
        self.place(kernel, state, mode, out, OpKind::Sync { group }, loc);
        state.pass_barrier(group);
    }

    /// What an access needs before it. Not `all`, of the author's memory: only because of what a wait by one lane has ended.
    fn need(&mut self, kernel: &Kernel, state: &State, new: &Access, all: bool) -> Option<Need> {
        let counts = |old: &&Pending| {
            let is_acquired = old.bytes.space == Space::Everything || new.proxy == Proxy::Generic;
            all || new.owner == Owner::Compiler || is_acquired && matches!(old.end, End::Issuer { .. })
        };
        let mut overlap = |a: (FootprintId, Since), b: FootprintId| self.footprints.overlap(kernel, a, b);
        let pending = state.pending.iter().filter(counts);
        pending.filter_map(|old| conflict(old, new, &mut overlap)).max()
    }

    // ------------------------------------------------------------ the walk

    fn region(&mut self, kernel: &mut Kernel, region: Region, state: &mut State, mode: Mode) {
        let ops = kernel.regions[region].ops.clone();
        let mut out = Vec::with_capacity(ops.len());
        for op in ops {
            self.op(kernel, op, state, mode, &mut out);
        }
        if mode == Mode::Insert {
            kernel.regions[region].ops = out;
        }
    }

    fn op(&mut self, kernel: &mut Kernel, op: Op, state: &mut State, mode: Mode, out: &mut Vec<Op>) {
        let loc = kernel.ops[op].loc;
        match kernel.ops[op].kind.control() {
            Some(Control::For { .. } | Control::While { .. }) if self.allocation.feeding.loops[op] => {
                self.begin_divergent(kernel, op, state, mode, out, loc);
                self.loop_(kernel, op, state, mode);
                out.push(op);
                state.acquire_alone();
            }
            Some(Control::For { .. } | Control::While { .. }) => {
                self.loop_(kernel, op, state, mode);
                out.push(op);
                // A loop that polls is a wait: it acquires what any store of others may have released.
                if self.polling.loops.contains(op) {
                    state.release();
                    self.acquire(state);
                }
            }
            Some(Control::Switch { selector: _, arms }) => {
                let by = Executor::warpgroup(self.warpgroup);
                let arms = match arm_taken(kernel, &kernel.ops[op].kind, by) {
                    Some(arm) => vec![arm],
                    None => arms.to_vec(),
                };
                let before = state.clone();
                for (i, arm) in arms.into_iter().enumerate() {
                    let mut inner = before.clone();
                    self.region(kernel, arm, &mut inner, mode);
                    match i {
                        0 => *state = inner,
                        _ => state.join(&inner),
                    }
                }
                out.push(op);
            }
            Some(Control::Scope {
                allocs,
                collective,
                body,
            }) => {
                let allocation = self.allocation;
                let bytes = |a: &Alloc| bytes::of_smem(kernel, allocation, *a);
                let own: Vec<Bytes> = allocs.iter().filter_map(bytes).collect();
                let leaves = allocation.reuses && shares(kernel, allocs, collective);
                self.begin_scope(kernel, &own, collective, state, mode, out, loc);
                self.region(kernel, body, state, mode);
                if leaves {
                    own.into_iter().for_each(|bytes| state.leave(bytes));
                }
                out.push(op);
            }
            Some(Control::WarpMap { body, .. }) => {
                self.begin_divergent(kernel, op, state, mode, out, loc);
                let mut inner = state.warp();
                self.region(kernel, body, &mut inner, mode);
                let divergent = self.divergent(kernel, op);
                state.absorb(&inner, |p| {
                    divergent.alone.get(&(p.bytes, p.footprint)).copied().flatten()
                });
                out.push(op);
                if self.automatic && divergent.commits {
                    // Another warp may issue what reads it.
                    self.sync(kernel, state, mode, out, state.group, loc);
                }
            }
            None => {
                self.begin(kernel, op, state, mode, out, loc);
                out.push(op);
                self.order(kernel, op, state);
                if self.allocation.rendezvous[op] {
                    state.pass_barrier(state.group);
                    // Behind what passes through scratch it reads what is in place.
                    if let OpKind::DotInPlace { .. } = kernel.ops[op].kind {
                        self.accesses(kernel, op).iter().for_each(|access| state.begin(access));
                    }
                }
            }
        }
    }

    /// What an op without regions needs before it, and what is pending behind it.
    fn begin(&mut self, kernel: &mut Kernel, op: Op, state: &mut State, mode: Mode, out: &mut Vec<Op>, loc: Loc) {
        let accesses = match self.never_copies(kernel, op) {
            true => [].into(),
            false => self.accesses(kernel, op),
        };
        if effects::order(&kernel.ops[op].kind) == Order::RendezvousBefore {
            state.pass_barrier(state.group);
        }
        for (kind, shared) in [
            (FenceKind::ProxyAsyncGlobal, false),
            (FenceKind::ProxyAsyncSharedCta, true),
        ] {
            let overlaps = |list: &[Bytes], access: &Access| list.iter().any(|bytes| bytes.overlap(&access.bytes));
            let overlaps_copy = |access: &Access| {
                let fenced_here = is_fenced_here(access) && (access.bytes.space == Space::Shared) == shared;
                let stores = (self.automatic || !shared) && overlaps(&state.unfenced, access);
                fenced_here && (stores || shared && overlaps(&state.unread, access))
            };
            // A thread that is ordered behind it may have it filled again.
            let arrives = matches!(
                kernel.ops[op].kind,
                OpKind::BarrierArrive { .. } | OpKind::MbarrierArrive { .. }
            );
            let releases = shared && arrives && !state.unread.is_empty();
            if releases || accesses.iter().any(overlaps_copy) {
                self.place(kernel, state, mode, out, OpKind::Fence { kind }, loc);
                state.fence(shared);
            }
        }
        let all = self.automatic;
        let mut need = accesses
            .iter()
            .filter_map(|access| self.need(kernel, state, access, all))
            .max();
        // A wait for, or arrival on, a barrier that one warp has waited for alone must not be a phase ahead of it.
        let barrier = if let OpKind::BarrierArrive { barrier, .. } = &kernel.ops[op].kind {
            Some(barrier.alloc)
        } else if let Order::Wait(barrier) = effects::order(&kernel.ops[op].kind) {
            Some(barrier.alloc)
        } else {
            None
        };
        let is_divergent = state.group == Group::Warp || self.allocation.feeding.waits[op];
        if barrier.is_some_and(|alloc| self.waited_alone[alloc]) && !is_divergent {
            need = need.max(self.need(kernel, state, &WAITS, all));
        }
        match need {
            Some(Need::Group) => self.sync(kernel, state, mode, out, state.group, loc),
            Some(Need::Warp) => self.sync(kernel, state, mode, out, Group::Warp, loc),
            None => {}
        }
        if accesses.iter().any(|access| access.ends == Ends::Wgmma) {
            state.issue_wgmma();
        }
        for access in accesses.iter() {
            state.begin(access);
            let is_store = access.proxy == Proxy::Generic && access.writes;
            if is_store && self.mixed.iter().any(|mixed| mixed.overlap(&access.bytes)) {
                state.unfence(access.bytes);
            }
            let is_load = access.proxy == Proxy::Generic && access.reads && access.bytes.space == Space::Shared;
            if is_load && self.filled.iter().any(|filled| filled.overlap(&access.bytes)) {
                state.read(access.bytes);
            }
        }
    }

    /// Whether an op is a copy that this warpgroup does not make.
    fn never_copies(&self, kernel: &Kernel, op: Op) -> bool {
        let (OpKind::CopyGmemToSmem { predicate, .. } | OpKind::CopySmemToGmem { predicate, .. }) =
            &kernel.ops[op].kind
        else {
            return false;
        };
        predicate.is_some_and(|p| evaluate_for(kernel, p, self.warpgroup) == Some(0))
    }

    /// What an op does to the order of what is pending.
    fn order(&mut self, kernel: &Kernel, op: Op, state: &mut State) {
        match effects::order(&kernel.ops[op].kind) {
            Order::None => {}
            Order::Unknown => state.forget_filled(),
            Order::Arrive | Order::ArriveByIssuer => state.release(),
            Order::RendezvousBefore => {
                state.release();
                self.acquire(state);
            }
            Order::Rendezvous(group) => state.pass_barrier(group),
            Order::RendezvousExecuting { acquires, signals } => {
                state.pass_barrier(state.group);
                if acquires {
                    self.acquire(state);
                }
                if signals {
                    state.release();
                }
            }
            Order::Wait(barrier) => {
                self.acquire(state);
                if state.group != Group::Warp && !self.allocation.feeding.waits[op] {
                    self.refill(&kernel.ops[op].kind, barrier, state);
                    state.begin(&WAITS);
                }
            }
            Order::CommitStores => state.commit_stores(),
            Order::WaitStores { n, scope } => state.wait_stores(n, scope),
            Order::WaitWgmma { n } => state.wait_wgmma(n),
            Order::CommitSmem => {
                state.fence(true);
                state.pass_barrier(state.group);
            }
            Order::FenceShared => state.fence(true),
            Order::FenceDevice => state.fence(false),
        }
    }

    /// Every lane has waited for a slot to be refilled.
    fn refill(&self, kind: &OpKind, barrier: &RefUse, state: &mut State) {
        if !matches!(kind, OpKind::BarrierWait { .. }) {
            return;
        }
        let Some(Index::Value(index)) = barrier.single_index() else {
            return;
        };
        for &alloc in &self.refills[barrier.alloc] {
            let slot = Slot::Of(index);
            state.refill(Part { alloc, slot });
        }
    }

    /// Stores of others are ordered before what follows, and so is what they had acquired.
    fn acquire(&self, state: &mut State) {
        state.acquire();
        // In shared memory, those are the block's other warpgroups.
        for bytes in self
            .mixed
            .iter()
            .filter(|b| self.shares_block || b.space != Space::Shared)
        {
            state.unfence(*bytes);
        }
        if state.group == Group::Warp {
            state.acquire_alone();
        }
    }

    /// Orders everything that matters before an op in which warps diverge.
    fn begin_divergent(
        &mut self,
        kernel: &mut Kernel,
        op: Op,
        state: &mut State,
        mode: Mode,
        out: &mut Vec<Op>,
        loc: Loc,
    ) {
        let divergent = self.divergent(kernel, op);
        let feeds = self.allocation.feeding.loops[op];
        // A warp that falls behind in a feeding loop hangs, whatever places barriers.
        let need = divergent.accesses.iter().filter_map(|access| {
            let all = self.automatic || feeds && access.bytes == Bytes::PROGRESS;
            self.need(kernel, state, access, all)
        });
        let mut need = need.max();
        let is_known = |p: &Pending| divergent.releases && p.needs_release() || divergent.commits && p.is_committed();
        if self.automatic && state.pending.iter().any(is_known) {
            need = Some(Need::Group);
        }
        match need {
            Some(Need::Group) => self.sync(kernel, state, mode, out, state.group, loc),
            Some(Need::Warp) => self.sync(kernel, state, mode, out, Group::Warp, loc),
            None => {}
        }
    }

    /// Takes over the memory of scopes that are over.
    fn begin_scope(
        &mut self,
        kernel: &mut Kernel,
        own: &[Bytes],
        collective: bool,
        state: &mut State,
        mode: Mode,
        out: &mut Vec<Op>,
        loc: Loc,
    ) {
        // What has been started in the memory of an owner before, perhaps this scope in an earlier iteration, has to be over.
        let (wgmmas, stores, open) = state.running_in(own);
        if open {
            self.place(kernel, state, mode, out, OpKind::CommitGroup, loc);
            state.commit_stores();
        }
        if wgmmas {
            self.place(kernel, state, mode, out, OpKind::WgmmaWait { n: 0, accs: vec![] }, loc);
            state.wait_wgmma(0);
        }
        if stores {
            let (n, scope) = (0, WaitScope::SmemRead);
            self.place(kernel, state, mode, out, OpKind::WaitSmemToGmem { n, scope }, loc);
            state.wait_stores(n, scope);
        }
        // Every warpgroup has to have left it; one alone passes a barrier where it touches something.
        let is_left = state
            .left
            .iter()
            .any(|left| own.iter().any(|bytes| bytes.overlap(left)));
        let takes_over = is_left && (self.shares_block || !self.automatic);
        // A scope in a loop comes after itself.
        let is_first = !std::mem::replace(&mut self.has_scope_before, true) && self.depth == 0;
        let begins_together = collective && !is_first && self.shares_block && !ends_with_block_barrier(kernel, out);
        if takes_over || begins_together {
            self.sync(kernel, state, mode, out, Group::Block, loc);
        }
        if takes_over {
            state.left.clear();
        }
    }

    /// A loop: what it leaves pending is pending when it starts again, if it does. A `while` ends with its condition, behind its body
    /// if that is known to run.
    fn loop_(&mut self, kernel: &mut Kernel, op: Op, state: &mut State, mode: Mode) {
        let (cond, body, (least, most)) = match kernel.ops[op].kind.control() {
            Some(Control::For { lower, upper, body, .. }) => {
                let (from, to) = (kernel.facts(lower), kernel.facts(upper));
                let trips = (to.lo.saturating_sub(from.hi), to.hi.saturating_sub(from.lo));
                (None, body, trips)
            }
            Some(Control::While { inits, cond, body }) => {
                let begins = begins(kernel, inits, cond, self.warpgroup);
                (Some(cond), body, (i128::from(begins), i128::MAX))
            }
            Some(Control::Switch { .. } | Control::Scope { .. } | Control::WarpMap { .. }) | None => return,
        };
        let count = match cond {
            None => kernel.regions[body].params.first().copied(),
            Some(_) => None,
        };
        self.depth += 1;
        if self.visited.get(&op).is_none_or(|visit| visit.entry != *state) {
            let scopes = self.has_scope_before;
            let entry = state.clone();
            // What an iteration begins with; of a `while` that is known to begin, a later one.
            let (mut head, mut turned): (State, Option<State>) = (entry.clone(), None);
            let mut exit = loop {
                let mut inner = head.clone();
                if let Some(cond) = cond {
                    self.region(kernel, cond, &mut inner, Mode::Dry);
                }
                let before_body = inner.clone();
                self.region(kernel, body, &mut inner, Mode::Dry);
                let after_body = inner.clone();
                self.next_iteration(&mut inner, &entry, count);
                let exit = match (cond, least >= 1, most >= 1) {
                    (Some(cond), true, _) => {
                        // Behind the body, and the condition once more.
                        let mut exit = match turned.take() {
                            Some(turned) => turned.joined(&inner),
                            None => inner.clone(),
                        };
                        turned = Some(exit.clone());
                        self.region(kernel, cond, &mut exit, Mode::Dry);
                        exit
                    }
                    (Some(_), false, _) => before_body,
                    (None, true, _) => after_body,
                    (None, false, true) => entry.clone().joined(&after_body),
                    (None, false, false) => entry.clone(),
                };
                if most <= 1 {
                    break exit;
                }
                let next = head.clone().joined(&inner);
                if next == head {
                    break exit;
                }
                head = next;
            };
            exit.later(|_, since| match since {
                Since::Count(v) if Some(v) == count => Since::Before,
                since => since,
            });
            self.has_scope_before = scopes;
            self.visited.insert(op, Visit { entry, head, exit });
        }
        let visit = &self.visited[&op];
        let mut inner = visit.head.clone();
        *state = visit.exit.clone();
        if mode == Mode::Insert && most >= 1 {
            if let Some(cond) = cond {
                self.region(kernel, cond, &mut inner, mode);
            }
            self.region(kernel, body, &mut inner, mode);
        }
        self.has_scope_before = true;
        self.depth -= 1;
    }

    /// What is pending at the end of an iteration, seen from the next one: a slice from a dynamic start may overlap with
    /// another one of its kind, unless it starts at multiples of its size.
    fn next_iteration(&self, state: &mut State, entry: &State, count: Option<Value>) {
        state.forget_refills(entry);
        state.later(|footprint, since| self.footprints.next_iteration(footprint, since, count));
    }
}

/// Whether a `while` is known to begin.
fn begins(kernel: &Kernel, inits: &[Value], cond: Region, warpgroup: u32) -> bool {
    let cond = &kernel.regions[cond];
    let first = |v: Value| {
        let i = cond.params.iter().position(|p| *p == v)?;
        Some(Known::Value(inits[i]))
    };
    evaluate_with(kernel, cond.results[0], Executor::warpgroup(warpgroup), &first).is_some_and(|x| x != 0)
}

/// The ops in an op's regions, and which of `warps` execute each, as far as arms depend on a warp's index.
fn executed(kernel: &Kernel, op: Op, warpgroup: u32, warps: u8, out: &mut Vec<(Op, u8)>) {
    let kind = &kernel.ops[op].kind;
    for_each_region(kind, &mut |region| {
        let comes = |warp: &u32| {
            let warp = Some(*warp);
            arm_taken(kernel, kind, Executor { warpgroup, warp }).is_none_or(|arm| arm == region)
        };
        let here = (0..4).filter(|warp| warps >> warp & 1 == 1).filter(comes);
        let here = here.fold(0, |all, warp| all | 1 << warp);
        for &inner in kernel.regions[region].ops.iter().filter(|_| here != 0) {
            out.push((inner, here));
            executed(kernel, inner, warpgroup, here, out);
        }
    });
}

fn ends_with_block_barrier(kernel: &Kernel, ops: &[Op]) -> bool {
    let is_barrier = |op: &Op| matches!(kernel.ops[*op].kind, OpKind::Sync { group: Group::Block });
    ops.last().is_some_and(is_barrier)
}

/// A wait for an mbarrier by each warp.
const WAITS: Access = Access {
    bytes: Bytes::PROGRESS,
    footprint: None,
    slot: None,
    owner: Owner::Author,
    reads: true,
    writes: false,
    proxy: Proxy::Generic,
    by: By::Warps,
    ends: Ends::WithTheOp,
};

/// Whether the compiler places the proxy fence between ordinary stores and this access.
fn is_fenced_here(access: &Access) -> bool {
    match access.bytes.space {
        Space::Device(_) => access.proxy == Proxy::AsyncCopy,
        Space::Shared => access.proxy == Proxy::AsyncCopy && access.writes,
        Space::Peers | Space::Everything | Space::Progress => false,
    }
}
