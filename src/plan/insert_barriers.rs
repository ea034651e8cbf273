//! Places the barriers and fences that JAX's program-order semantics need.
//!
//! In a Pallas thread each op sees what the ones before it did, but the lanes and units that do them run apart. A forward
//! analysis carries what is [`pending`](super::pending) (what may still be going on, and who knows of its end) through the
//! kernel, joins it over arms, and takes it round loops to the fixpoint; where an op is about to begin an access that conflicts
//! with something pending, a barrier goes before it: of the warpgroup, in a warp region of the warp. What an op touches is
//! [`effects::of`], in [`bytes`](super::bytes) of memory, so that unions and scopes that overlay each other are nothing special.
//!
//! Two accesses by the lanes with the same layout through the same view touch the same bytes from the same lane: no barrier, unless
//! several lanes hold an element (one of them stores it), or the view is a slice that may begin elsewhere in the next iteration of
//! a loop. An arrival on an mbarrier releases the accesses of each warp that arrives, and every lane executes a wait, so what
//! these order needs nothing more.
//!
//! **Apart.** In a warp region the warps run apart, and in a feeding loop ([`super::feeding_loops`]) the first warp runs alone: no
//! barrier of the warpgroup can be placed inside. What conflicts with anything inside is ordered before it begins; so is
//! everything where a warp inside arrives or signals for its warpgroup. What warps did in their region is known to nobody else
//! behind it, and neither is what they were told by a wait.
//!
//! **Progress.** A bulk load arrives on its mbarrier by one lane. Warps that issue nothing would let that lane go ahead of their
//! own waits, and a warp that falls two phases behind waits for a phase that is long past, for ever: a wait by each warp conflicts
//! with a later arrival by one lane, whatever the barriers are.
//!
//! **Proxies.** What units read of shared memory is committed by the user (`commit_smem`). JAX has no such op for what they
//! overwrite there, and none for device memory: a proxy fence is placed before a bulk load over ordinary stores, and before a copy
//! that meets them in device memory, whether they are this thread's or, behind a wait, another's.
//!
//! **Scopes.** A scope that takes over the memory of one that is over, in an earlier iteration perhaps, waits for everything that
//! any warpgroup does there. A collective one begins with a barrier of the block, as in JAX.
//!
//! Under `unsafe_no_auto_barriers` only these are placed: fences for device memory, before scopes, behind feeding loops, before waits' ends are relied on by
//! others (progress in feeding loops), and behind a wait for a bulk store, which is one by the warpgroup in any case.
use super::allocate::Allocation;
use super::bytes::{self, Bytes, Space};
use super::pending::{Access, By, End, Ends, Need, Owner, State, conflict};
use crate::dtype::DType;
use crate::error::Loc;
use crate::kernel_ir::class::Control;
use crate::kernel_ir::effects::{self, Actor, Order, Proxy};
use crate::kernel_ir::polling::{self, Polling};
use crate::kernel_ir::visit::for_each_region;
use crate::kernel_ir::*;
use crate::layout::assignment::Assignment;
use crate::layout::register_layout::RegisterLayout;
use cranelift_entity::SecondaryMap;
use rustc_hash::FxHashMap;
use std::rc::Rc;

/// Inserts `Sync` and `Fence` ops; returns the barriers of a warpgroup or a block.
pub fn run(kernel: &mut Kernel, assignment: &Assignment, allocation: &Allocation) -> Vec<Op> {
    let mut pass = Pass {
        written: accessed(kernel, |e| e.access.writes()),
        mixed: vec![],
        assignment,
        allocation,
        automatic: !kernel.compiler_params.unsafe_no_auto_barriers,
        shares_block: kernel.num_warpgroups > 1,
        placed: vec![],
        has_scope_before: false,
        depth: 0,
        accesses: SecondaryMap::new(),
        apart: FxHashMap::default(),
        owners: FxHashMap::default(),
        owner_data: vec![],
        visited: FxHashMap::default(),
        polling: polling::find(kernel),
    };
    pass.mixed = pass.mixed(kernel);
    let mut state = State::new(Group::Warpgroup);
    pass.region(kernel, kernel.body, &mut state, Mode::Insert);
    pass.placed
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

/// What is known of an [`Owner`].
struct OwnerData {
    /// The view may be of other elements in another iteration of a loop, which some other lane owns.
    moves: bool,
    /// No other lane handles its words: no `stmatrix`, no `ldmatrix`.
    own_words: bool,
}

/// What a region does whose executors run apart.
#[derive(Default)]
struct Apart {
    accesses: Vec<Access>,
    /// Some warp tells others, in the name of its warpgroup.
    releases: bool,
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
    /// What ordinary stores write and copies meet.
    mixed: Vec<Bytes>,
    automatic: bool,
    /// The block has other warpgroups.
    shares_block: bool,
    placed: Vec<Op>,
    /// A scope has begun already.
    has_scope_before: bool,
    /// Loops around.
    depth: u32,
    /// By op, once computed.
    accesses: SecondaryMap<Op, Option<Rc<[Access]>>>,
    apart: FxHashMap<Op, Rc<Apart>>,
    owners: FxHashMap<(RefUse, RegisterLayout), Owner>,
    owner_data: Vec<OwnerData>,
    visited: FxHashMap<Op, Visit>,
    polling: Polling,
}

impl Pass<'_> {
    // ------------------------------------------------------------ what ops do

    /// The lanes that make an access, when each element of the value is one lane's.
    fn owner(&mut self, kernel: &Kernel, r: &RefUse, value: Option<Value>) -> Option<Owner> {
        let value = value?;
        let layout = self.assignment.values[value].as_ref()?;
        let dtype = kernel.ty(value).dtype();
        // Narrow elements share bytes, and may travel in another layout.
        let own_bytes = dtype == DType::Bool || dtype.bits() >= 8;
        let one_lane = layout.replicated_bits() == 0 && !layout.is_constant_somewhere();
        if !own_bytes || !one_lane {
            return None;
        }
        let key = (r.clone(), layout.clone());
        if let Some(owner) = self.owners.get(&key) {
            return Some(*owner);
        }
        let owner = Owner(self.owner_data.len() as u32);
        self.owner_data.push(OwnerData {
            moves: r.steps.iter().any(|step| moves(kernel, step)),
            own_words: !kernel.allocs[r.alloc].is_smem() || dtype.bits() > 32,
        });
        self.owners.insert(key, owner);
        Some(owner)
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
            // Nobody minds readers of what nobody writes.
            if is_device && !self.written[effect.alloc] {
                continue;
            }
            let stored = if let OpKind::Store { value, .. }
            | OpKind::Swap { value, .. }
            | OpKind::AtomicUpdate { value, .. } = data.kind
            {
                Some(value)
            } else {
                None
            };
            let value = stored.or(data.results.first().copied());
            let by = match effect.actor {
                // A scalar: every lane reads it where all may, the first one writes it.
                Actor::Lanes if effect.view.shape.is_empty() && (effect.access.writes() || is_device) => By::Leader,
                Actor::Lanes => By::Lanes(self.owner(kernel, effect.view, value)),
                Actor::Issuer => By::Issuer,
                Actor::Warps => By::Warps,
            };
            let access = |reads, writes, by| Access {
                bytes,
                reads,
                writes,
                proxy: effect.proxy,
                by,
                ends: Ends::of(effect.completion, writes),
            };
            if effect.access == effects::Access::Update && by == By::Leader && !is_device {
                // The first lane writes what all have read.
                out.push(access(true, false, By::Lanes(None)));
            }
            out.push(access(effect.access.reads(), effect.access.writes(), by));
        }
        if effects::order(&data.kind) == Order::ArriveByIssuer {
            out.push(Access {
                bytes: Bytes::PROGRESS,
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

    /// The bytes of ordinary stores that copies meet.
    fn mixed(&mut self, kernel: &Kernel) -> Vec<Bytes> {
        let (mut stored, mut met) = (vec![], vec![]);
        let mut ops = vec![];
        kernel.for_each_op(&mut |op| ops.push(op));
        for op in ops {
            for access in self.accesses(kernel, op).iter() {
                if is_fenced_here(access) && !met.contains(&access.bytes) {
                    met.push(access.bytes);
                }
                let is_store = access.proxy == Proxy::Generic && access.writes && access.bytes != Bytes::PROGRESS;
                if is_store && !stored.contains(&access.bytes) {
                    stored.push(access.bytes);
                }
            }
        }
        stored.retain(|bytes| met.iter().any(|other| bytes.overlap(other)));
        stored
    }

    /// What the ops in an op's regions do, for which no barrier can be placed among them.
    fn apart(&mut self, kernel: &Kernel, op: Op) -> Rc<Apart> {
        if let Some(known) = self.apart.get(&op) {
            return known.clone();
        }
        let in_warps = matches!(kernel.ops[op].kind, OpKind::WarpMap { .. });
        let mut inside = vec![];
        for_each_region(&kernel.ops[op].kind, &mut |r| {
            kernel.for_each_op_in(r, &mut |op| inside.push(op));
        });
        let mut out = Apart::default();
        for op in inside {
            for access in self.accesses(kernel, op).iter() {
                let by = if in_warps { By::Somebody } else { access.by };
                let access = Access { by, ..*access };
                if !out.accesses.contains(&access) {
                    out.accesses.push(access);
                }
            }
            out.releases |= in_warps
                && match effects::order(&kernel.ops[op].kind) {
                    Order::Arrive | Order::ArriveByIssuer => true,
                    Order::MeetExecuting { signals, .. } => signals,
                    Order::None
                    | Order::Meet(_)
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
        self.apart.insert(op, out.clone());
        out
    }

    // ------------------------------------------------------------ what is placed

    fn place(&mut self, kernel: &mut Kernel, state: &State, mode: Mode, out: &mut Vec<Op>, kind: OpKind, loc: Loc) {
        if mode == Mode::Insert {
            let meets_all = matches!(
                kind,
                OpKind::Sync {
                    group: Group::Warpgroup | Group::Block
                }
            );
            let op = kernel.new_op(kind, [], state.group, loc);
            if meets_all {
                self.placed.push(op);
            }
            out.push(op);
        }
    }

    /// A barrier before the op that is about to be pushed.
    fn sync(&mut self, kernel: &mut Kernel, state: &mut State, mode: Mode, out: &mut Vec<Op>, group: Group, loc: Loc) {
        self.place(kernel, state, mode, out, OpKind::Sync { group }, loc);
        state.meet(group);
    }

    /// Whether only this conflict counts under `unsafe_no_auto_barriers`.
    fn need(&self, state: &State, access: &Access) -> Option<Need> {
        if self.automatic {
            return state.need(access);
        }
        if access.proxy != Proxy::Generic {
            return None;
        }
        let behind_wait = state.pending.iter().filter(|old| old.end == End::Issuer);
        behind_wait.filter_map(|old| conflict(old, access)).max()
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
                self.begin_apart(kernel, op, state, mode, out, loc);
                self.loop_(kernel, op, state, mode);
                out.push(op);
                // The other warps meet the one that waited.
                self.sync(kernel, state, mode, out, Group::Warpgroup, loc);
            }
            Some(Control::For { .. } | Control::While { .. }) => {
                self.loop_(kernel, op, state, mode);
                out.push(op);
                // A loop that polls is a wait.
                if self.polling.loops.contains(op) {
                    self.acquire(state);
                }
            }
            Some(Control::Switch { arms, .. }) => {
                let arms = arms.to_vec();
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
                let own: Vec<Bytes> = match allocation.reuses {
                    true => allocs
                        .iter()
                        .filter_map(|a| bytes::of_smem(kernel, allocation, *a))
                        .collect(),
                    false => vec![],
                };
                self.begin_scope(kernel, &own, collective, state, mode, out, loc);
                self.region(kernel, body, state, mode);
                for bytes in own {
                    state.leave(bytes);
                }
                out.push(op);
            }
            Some(Control::WarpMap { body, .. }) => {
                self.begin_apart(kernel, op, state, mode, out, loc);
                let mut inner = State::new(Group::Warp);
                inner.unfenced.clone_from(&state.unfenced);
                self.region(kernel, body, &mut inner, mode);
                state.absorb(&inner);
                out.push(op);
            }
            None => {
                self.begin(kernel, op, state, mode, out, loc);
                out.push(op);
                self.order(kernel, op, state);
            }
        }
    }

    /// What an op without regions needs before it, and what is pending behind it.
    fn begin(&mut self, kernel: &mut Kernel, op: Op, state: &mut State, mode: Mode, out: &mut Vec<Op>, loc: Loc) {
        let accesses = self.accesses(kernel, op);
        for (kind, shared) in [
            (FenceKind::ProxyAsyncGlobal, false),
            (FenceKind::ProxyAsyncSharedCta, true),
        ] {
            let meets_stores = |access: &Access| {
                let fenced_here = is_fenced_here(access) && (access.bytes.space == Space::Shared) == shared;
                fenced_here
                    && (self.automatic || !shared)
                    && state.unfenced.iter().any(|bytes| bytes.overlap(&access.bytes))
            };
            if accesses.iter().any(meets_stores) {
                self.place(kernel, state, mode, out, OpKind::Fence { kind }, loc);
                state.fence(shared);
            }
        }
        match accesses.iter().filter_map(|access| self.need(state, access)).max() {
            Some(Need::Group) => self.sync(kernel, state, mode, out, state.group, loc),
            Some(Need::Warp) => self.sync(kernel, state, mode, out, Group::Warp, loc),
            None => {}
        }
        if accesses.iter().any(|access| access.ends == Ends::Wgmma) {
            state.issue_wgmma();
        }
        for access in accesses.iter() {
            let own_words = match access.by {
                By::Lanes(Some(owner)) => self.owner_data[owner.0 as usize].own_words,
                By::Lanes(None) | By::Leader | By::Issuer | By::Warps | By::Somebody => false,
            };
            state.begin(access, own_words);
            let is_store = access.proxy == Proxy::Generic && access.writes;
            if is_store && self.mixed.iter().any(|mixed| mixed.overlap(&access.bytes)) {
                state.unfence(access.bytes);
            }
        }
    }

    /// What an op does to the order of what is pending.
    fn order(&mut self, kernel: &Kernel, op: Op, state: &mut State) {
        match effects::order(&kernel.ops[op].kind) {
            Order::None | Order::Arrive | Order::ArriveByIssuer => {}
            Order::Meet(group) => state.meet(group),
            Order::MeetExecuting { acquires, signals: _ } => {
                state.meet(state.group);
                if acquires {
                    self.acquire(state);
                }
            }
            Order::Wait(_) => {
                self.acquire(state);
                if state.group != Group::Warp && !self.allocation.feeding.waits[op] {
                    let waits = Access {
                        bytes: Bytes::PROGRESS,
                        reads: true,
                        writes: false,
                        proxy: Proxy::Generic,
                        by: By::Warps,
                        ends: Ends::WithTheOp,
                    };
                    state.begin(&waits, false);
                }
            }
            Order::CommitStores => state.commit_stores(),
            Order::WaitStores { n, scope } => state.wait_stores(n, scope),
            Order::WaitWgmma { n } => state.wait_wgmma(n),
            Order::CommitSmem => {
                state.fence(true);
                state.meet(state.group);
            }
            Order::FenceShared => state.fence(true),
            Order::FenceDevice => state.fence(false),
        }
    }

    /// Others have told of their stores.
    fn acquire(&self, state: &mut State) {
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

    /// Orders everything that matters before an op in which warps run apart.
    fn begin_apart(&mut self, kernel: &mut Kernel, op: Op, state: &mut State, mode: Mode, out: &mut Vec<Op>, loc: Loc) {
        let apart = self.apart(kernel, op);
        let feeds = self.allocation.feeding.loops[op];
        let conflicts = apart
            .accesses
            .iter()
            // Who falls behind in a feeding loop hangs for ever, whoever places barriers.
            .filter(|access| self.automatic || feeds && access.bytes == Bytes::PROGRESS)
            .any(|access| state.need(access).is_some());
        let releases = self.automatic && apart.releases && state.pending.iter().any(|p| !p.end.is_running());
        if conflicts || releases {
            self.sync(kernel, state, mode, out, state.group, loc);
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
        // A scope in a loop comes after itself.
        let is_first = !std::mem::replace(&mut self.has_scope_before, true) && self.depth == 0;
        if state
            .left
            .iter()
            .any(|left| own.iter().any(|bytes| bytes.overlap(left)))
        {
            // Everything that the memory's former owner started has to be over, in every warpgroup.
            if state.has_open_stores() {
                self.place(kernel, state, mode, out, OpKind::CommitGroup, loc);
                state.commit_stores();
            }
            for kind in [
                OpKind::WgmmaWait { n: 0, accs: vec![] },
                OpKind::WaitSmemToGmem {
                    n: 0,
                    scope: WaitScope::SmemRead,
                },
                OpKind::Sync { group: Group::Block },
            ] {
                self.place(kernel, state, mode, out, kind, loc);
            }
            state.wait_wgmma(0);
            state.wait_stores(0, WaitScope::SmemRead);
            state.meet(Group::Block);
            state.left.clear();
        } else if collective && !is_first && kernel.num_warpgroups > 1 {
            self.sync(kernel, state, mode, out, Group::Block, loc);
        }
    }

    /// A loop: what it leaves pending is pending when it starts again. A `while` ends with its condition.
    fn loop_(&mut self, kernel: &mut Kernel, op: Op, state: &mut State, mode: Mode) {
        let (cond, body) = match kernel.ops[op].kind.control() {
            Some(Control::For { body, .. }) => (None, body),
            Some(Control::While { cond, body, .. }) => (Some(cond), body),
            Some(Control::Switch { .. } | Control::Scope { .. } | Control::WarpMap { .. }) | None => return,
        };
        self.depth += 1;
        if self.visited.get(&op).is_none_or(|visit| visit.entry != *state) {
            let scopes = self.has_scope_before;
            let mut head = state.clone();
            let exit = loop {
                let mut inner = head.clone();
                if let Some(cond) = cond {
                    self.region(kernel, cond, &mut inner, Mode::Dry);
                }
                let exit = inner.clone();
                self.region(kernel, body, &mut inner, Mode::Dry);
                self.next_iteration(&mut inner);
                let mut next = head.clone();
                next.join(&inner);
                if next == head {
                    break if cond.is_some() { exit } else { head.clone() };
                }
                head = next;
            };
            self.has_scope_before = scopes;
            let entry = state.clone();
            self.visited.insert(op, Visit { entry, head, exit });
        }
        let visit = &self.visited[&op];
        let mut inner = visit.head.clone();
        *state = visit.exit.clone();
        if mode == Mode::Insert {
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
    fn next_iteration(&self, state: &mut State) {
        state.disown(|owner| self.owner_data[owner.0 as usize].moves);
    }
}

/// Whether the compiler places the proxy fence between ordinary stores and this access.
fn is_fenced_here(access: &Access) -> bool {
    match access.bytes.space {
        Space::Device(_) => access.proxy == Proxy::AsyncCopy,
        Space::Shared => access.proxy == Proxy::AsyncCopy && access.writes,
        Space::Peers | Space::Everything | Space::Progress => false,
    }
}

/// Whether a view's step may be of other elements when the values in it change, and not of all others.
fn moves(kernel: &Kernel, step: &Step) -> bool {
    match step {
        Step::Index(dims) => dims.iter().any(|dim| match dim {
            DimIndex::Slice {
                start: Index::Value(v),
                size,
                ..
            } => !kernel.facts(*v).divisor.is_multiple_of(*size),
            DimIndex::Gather(_) => true,
            DimIndex::At(_)
            | DimIndex::Slice {
                start: Index::Const(_), ..
            } => false,
        }),
        Step::Transpose(_)
        | Step::Reshape(_)
        | Step::Bitcast { .. }
        | Step::Im2Col { .. }
        | Step::ExpandLeadingBatch(_)
        | Step::ExtractAlias { .. }
        | Step::Unswizzle(_)
        | Step::Untile(_) => false,
    }
}
