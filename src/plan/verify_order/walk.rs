//! Paths through a kernel: what one warpgroup executes, op by op.
//!
//! Only what order depends on is walked ([`slice`]). Loops are unrolled and arms are taken as the scalars decide. Where they don't, each
//! number of rounds from none to three and each arm is a path of its own; what has been chosen stays chosen for equal scalars. A loop is
//! not walked where its rounds repeat: once a turn of its rings has left the history as it was, and as long as every number that decides
//! about anything is what it was in that turn ([`evolution`](super::evolution)), the next ones find nothing new.
use super::bytes::{Bytes, FootprintId, Space};
use super::clock::ALL_WARPS;
use super::evolution::Change;
use super::finding::{Finding, Report};
use super::history::{Actor, BarrierKey, History, Start, Turn, What};
use super::scalars::{Scalars, Val};
use super::slice::{self, Slice};
use crate::kernel_ir::class::{Class, Control, Transfer, aside_ops, pure_ops, transfer_ops};
use crate::kernel_ir::polling::{self, Polling};
use crate::kernel_ir::rings::Slot;
use crate::kernel_ir::visit::{for_each_ref, for_each_region, for_each_value};
use crate::kernel_ir::{
    Alloc, AllocKind, Arriving, AxisKind, Elem, FenceKind, Group, Index, Kernel, MmaOperand, Op, OpKind, RefUse,
    Region, Value,
};
use crate::layout::assignment::Assignment;
use crate::plan::{Allocation, refills};
use cranelift_entity::SecondaryMap;
use smallvec::SmallVec;

/// Paths that are enumerated from one start, and as many again that are drawn where there are more.
const MAX_PATHS: usize = 16;
/// Ops on one path, of those that are walked.
const MAX_STEPS: usize = 12_000;
/// Ops on all paths, for each op of the kernel, and at most.
const TOTAL_PER_OP: usize = 100;
const MAX_TOTAL: usize = 150_000;
/// Ops on all paths of the smallest kernels.
const MIN_TOTAL: usize = 2 * MAX_STEPS;
/// Rounds of one loop that are walked, in turn, until a path is short enough.
const ROUNDS: [u64; 4] = [u64::MAX, 24, 8, 4];
/// Turns between those that are watched, from which on a path that is going to be too long is left.
const WATCHED: u64 = 4;
/// Rounds of a loop whose number is not known, the likeliest first.
const UNKNOWN_ROUNDS: [i64; 4] = [2, 0, 1, 3];

/// What is out of order in a kernel whose barriers have been placed.
pub fn run(kernel: &Kernel, assignment: &Assignment, allocation: &Allocation) -> Vec<Finding> {
    check(kernel, assignment, allocation).findings
}

/// Walks the kernel's paths and reports what is out of order on them.
pub fn check(kernel: &Kernel, assignment: &Assignment, allocation: &Allocation) -> Report {
    let history = History::new(
        kernel,
        assignment,
        copied(kernel),
        reuses(kernel, allocation),
        refills::find(kernel),
    );
    let (written, polling) = (written(kernel), polling::find(kernel));
    let slice = Slice::new(kernel, allocation, &written, &polling);
    let mut walk = Walk {
        kernel,
        assignment,
        allocation,
        slice: &slice,
        history,
        scalars: Scalars::new(kernel, &slice),
        choices: Choices::default(),
        used: used(kernel),
        written,
        polling,
        period: period(kernel),
        max_total: MAX_TOTAL.min(MIN_TOTAL + TOTAL_PER_OP * slice.len),
        start: Start::default(),
        max_rounds: u64::MAX,
        first_scope: true,
        warp_regions: 0,
        steps: 0,
        stopped: false,
        shortened: false,
    };
    let mut report = Report::default();
    // A warpgroup whose index is not read does the same as the others.
    let warpgroups = if slice.reads_warpgroup {
        kernel.num_warpgroups
    } else {
        1
    };
    let blocks: &[bool] = if slice.reads_block { &[false, true] } else { &[false] };
    for warpgroup in 0..warpgroups {
        for &last in blocks {
            walk.start = Start { warpgroup, last };
            walk.all_paths(&mut report);
        }
    }
    report.findings = std::mem::take(&mut walk.history.findings);
    report.findings.sort_by_key(Finding::key);
    report
}

/// Device arrays that copies read or write.
fn copied(kernel: &Kernel) -> Vec<Alloc> {
    let mut out = vec![];
    kernel.for_each_op(&mut |op| {
        if let OpKind::CopyGmemToSmem { src: r, .. } | OpKind::CopySmemToGmem { dst: r, .. } = &kernel.ops[op].kind {
            out.push(r.alloc);
        }
    });
    out.sort_unstable();
    out.dedup();
    out
}

/// What the kernel writes.
fn written(kernel: &Kernel) -> SecondaryMap<Alloc, bool> {
    let mut written = SecondaryMap::new();
    kernel.for_each_op(&mut |op| {
        let kind = &kernel.ops[op].kind;
        let loads = kind.transfer().filter(Transfer::only_loads);
        let source = if let OpKind::CopyGmemToSmem { src, .. }
        | OpKind::CopySmemToGmem { src, .. }
        | OpKind::Prefetch { src, .. } = kind
        {
            Some(src)
        } else {
            loads.map(|moved| moved.view)
        };
        if let (Class::Memory, false) = (kind.class(), matches!(kind, OpKind::DotInPlace { .. })) {
            let is_source = |r: &RefUse| source.is_some_and(|src| std::ptr::eq(src, r));
            for_each_ref(kind, &mut |r| written[r.alloc] |= !is_source(r));
        }
        if let (Class::Instructions, OpKind::InlinePtx { code, refs, .. }) = (kind.class(), kind) {
            for (i, r) in refs.iter().enumerate() {
                written[r.alloc] |= code.access(i).writes();
            }
        }
    });
    written
}

/// What lies in bytes that have several owners in turn: in overlapping places, or in a scope that all warpgroups enter again. In one that
/// each enters by itself they have bytes of their own.
fn reuses(kernel: &Kernel, allocation: &Allocation) -> SecondaryMap<Alloc, bool> {
    fn in_loops(kernel: &Kernel, region: Region, inside: bool, reuses: &mut SecondaryMap<Alloc, bool>) {
        for &op in &kernel.regions[region].ops {
            let kind = &kernel.ops[op].kind;
            let inside = inside || kind.control().is_some_and(Control::is_loop);
            if let OpKind::Scope { allocs, collective, .. } = kind {
                allocs.iter().for_each(|alloc| reuses[*alloc] = inside && *collective);
            }
            for_each_region(kind, &mut |r| in_loops(kernel, r, inside, reuses));
        }
    }
    let mut reuses = SecondaryMap::new();
    in_loops(kernel, kernel.body, false, &mut reuses);
    let mut places: Vec<(u64, u64, Alloc)> = vec![];
    for (alloc, data) in kernel.allocs.iter() {
        let bytes = match &data.kind {
            AllocKind::Smem { dtype, .. } if data.within.is_none() => dtype.bytes(data.shape.iter().product()),
            AllocKind::SmemUnion => Some(data.shape.iter().product()),
            AllocKind::Smem { .. }
            | AllocKind::Gmem { .. }
            | AllocKind::Tmem { .. }
            | AllocKind::TmemUnion
            | AllocKind::Barrier { .. }
            | AllocKind::Semaphore { .. }
            | AllocKind::Register { .. } => None,
        };
        if let (Some(start), Some(bytes @ 1..)) = (allocation.smem[alloc], bytes) {
            places.push((u64::from(start), u64::from(start) + bytes, alloc));
        }
    }
    places.sort_unstable();
    // The place that reaches farthest, of those that begin before.
    let mut farthest: Option<(u64, Alloc)> = None;
    for (start, end, alloc) in places {
        if let Some((before, other)) = farthest
            && start < before
        {
            reuses[alloc] = true;
            reuses[other] = true;
        }
        if farthest.is_none_or(|(before, _)| before < end) {
            farthest = Some((end, alloc));
        }
    }
    reuses
}

/// Rounds after which rings of slots and barriers are where they were.
fn period(kernel: &Kernel) -> u64 {
    let mut period = 1;
    for data in kernel.allocs.values() {
        let ring = matches!(data.kind, AllocKind::Smem { .. } | AllocKind::Barrier { .. });
        if let Some(&n @ 2..=16) = data.shape.first().filter(|_| ring) {
            let next = period * n / crate::layout::facts::gcd(period, n);
            if next <= 48 {
                period = next;
            }
        }
    }
    period
}

fn used(kernel: &Kernel) -> SecondaryMap<Value, bool> {
    let mut used = SecondaryMap::new();
    kernel.for_each_op(&mut |op| for_each_value(&kernel.ops[op].kind, &mut |v| used[v] = true));
    for region in kernel.live_regions() {
        kernel.regions[region].results.iter().for_each(|v| used[*v] = true);
    }
    used
}

/// What a path chooses where scalars don't decide.
#[derive(Default)]
struct Choices {
    /// Choice and number of alternatives.
    taken: Vec<(usize, usize)>,
    at: usize,
    /// Draws what is not in `taken`; 0: the first alternative.
    seed: u64,
}

impl Choices {
    fn choose(&mut self, n: usize) -> usize {
        if n <= 1 {
            return 0;
        }
        if self.at == self.taken.len() {
            let choice = if self.seed == 0 {
                0
            } else {
                // xorshift64
                self.seed ^= self.seed << 13;
                self.seed ^= self.seed >> 7;
                self.seed ^= self.seed << 17;
                (self.seed >> 16) as usize % n
            };
            self.taken.push((choice, n));
        }
        self.at += 1;
        self.taken[self.at - 1].0
    }

    /// The next combination; false after the last.
    fn advance(&mut self) -> bool {
        self.at = 0;
        while let Some((choice, n)) = self.taken.pop() {
            if choice + 1 < n {
                self.taken.push((choice + 1, n));
                return true;
            }
        }
        false
    }
}

struct Walk<'a> {
    kernel: &'a Kernel,
    assignment: &'a Assignment,
    allocation: &'a Allocation,
    slice: &'a Slice,
    history: History<'a>,
    scalars: Scalars<'a>,
    choices: Choices,
    used: SecondaryMap<Value, bool>,
    written: SecondaryMap<Alloc, bool>,
    polling: Polling,
    period: u64,
    max_total: usize,
    start: Start,
    max_rounds: u64,
    first_scope: bool,
    /// Warp regions entered on this path.
    warp_regions: u32,
    steps: usize,
    stopped: bool,
    shortened: bool,
}

/// A loop whose rounds are counted.
struct Counted {
    op: Op,
    actor: Actor,
    /// The first index, or the last in reverse.
    first: i64,
    rounds: u64,
    reverse: bool,
    /// How many values it carries.
    carries: usize,
    body: Region,
}

impl<'a> Walk<'a> {
    fn all_paths(&mut self, report: &mut Report) {
        self.choices = Choices::default();
        let mut more = true;
        for _ in 0..MAX_PATHS {
            self.path(report);
            more = self.choices.advance();
            if !more || report.steps > self.max_total {
                break;
            }
        }
        if !more {
            return;
        }
        report.bounded = true;
        for i in 0..MAX_PATHS as u64 {
            if report.steps > self.max_total {
                return;
            }
            let seed = (i + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            self.choices = Choices {
                seed,
                ..Choices::default()
            };
            self.path(report);
        }
    }

    /// One path, with fewer rounds of long loops if it is too long.
    fn path(&mut self, report: &mut Report) {
        for rounds in ROUNDS {
            self.max_rounds = rounds;
            self.choices.at = 0;
            self.scalars.restart();
            self.first_scope = true;
            self.warp_regions = 0;
            self.steps = 0;
            self.stopped = false;
            self.shortened = false;
            self.history.restart(self.start);
            let all_warps = Actor {
                warps: ALL_WARPS,
                warp_region: None,
            };
            self.region(self.kernel.body, all_warps);
            if !self.stopped && !self.shortened {
                self.history.end_kernel();
            }
            report.steps += self.steps;
            report.bounded |= self.shortened | self.stopped;
            if !self.stopped || report.steps > self.max_total {
                break;
            }
        }
        report.paths += 1;
    }

    fn region(&mut self, region: Region, actor: Actor) {
        let slice = self.slice;
        for &op in slice.ops(region) {
            if self.stopped {
                return;
            }
            self.steps += 1;
            self.stopped = self.steps > MAX_STEPS;
            self.op(op, actor);
        }
    }

    /// The slot of a ring that a view lies in.
    fn slot(&mut self, r: &RefUse) -> Option<(Alloc, Val)> {
        let part = refills::slot(self.kernel, r)?;
        match part.slot {
            Slot::Of(index) => Some((part.alloc, self.scalars.get(index))),
            Slot::At(_) | Slot::Whole => None,
        }
    }

    fn footprint(&mut self, op: Op, position: u8, r: &RefUse) -> FootprintId {
        let bytes: &mut Bytes = &mut self.history.bytes;
        bytes.of(
            self.kernel,
            self.assignment,
            self.allocation,
            &mut self.scalars,
            op,
            position,
            r,
        )
    }

    fn is_watched(&self, r: &RefUse) -> bool {
        slice::is_watched(self.kernel, r)
    }

    fn barrier(&mut self, r: &RefUse) -> BarrierKey {
        let index = match r.single_index() {
            Some(Index::Value(v)) => self.scalars.get(v),
            Some(Index::Const(c)) => Val::Int(c),
            None => Val::Int(0),
        };
        BarrierKey { alloc: r.alloc, index }
    }

    /// A barrier that an op's lowering holds: of the warp in warp regions, else of the warpgroup.
    fn rendezvous(&mut self, op: Op, actor: Actor) {
        if actor.warp_region.is_some() {
            return;
        }
        let name = self.kernel.ops[op].kind.name();
        if self.history.all_here(op, actor, name) {
            self.history.join(actor, false);
        }
    }

    fn is_false(&mut self, predicate: Option<Value>) -> bool {
        predicate.is_some_and(|p| self.scalars.get(p) == Val::Int(0))
    }

    fn forget_results(&mut self, op: Op) {
        for &r in &self.kernel.ops[op].results {
            self.scalars.forget(r);
        }
    }

    fn is_scalar(&self, v: Value) -> bool {
        self.kernel.ty(v).is_scalar()
    }

    fn load(&mut self, op: Op, actor: Actor, r: &RefUse, result: Value) {
        let is_gmem = self.kernel.allocs[r.alloc].is_gmem();
        if !self.is_watched(r) || self.kernel.is_input(r.alloc) {
            return;
        }
        if is_gmem && !self.written[r.alloc] {
            // Memory that the kernel does not write needs no order.
            if self.allocation.rendezvous[op] {
                self.rendezvous(op, actor);
            }
            return;
        }
        let (footprint, slot) = (self.footprint(op, 0, r), self.slot(r));
        if !self.is_scalar(result) {
            self.history.touch(op, actor, What::Read, footprint, Some(result), slot);
        } else if self.allocation.rendezvous[op] || self.allocation.by_leader[op] {
            // One lane reads, and broadcasts where the others need it.
            self.history
                .touch(op, actor.leader(), What::Read, footprint, None, slot);
            if self.allocation.rendezvous[op] {
                self.rendezvous(op, actor);
            }
        } else {
            self.history.touch(op, actor, What::Read, footprint, None, slot);
        }
    }

    fn store(&mut self, op: Op, actor: Actor, what: What, r: &RefUse, value: Value) {
        if !self.is_watched(r) {
            return;
        }
        let (footprint, slot) = (self.footprint(op, 0, r), self.slot(r));
        if r.shape.is_empty() {
            self.history.touch(op, actor.leader(), what, footprint, None, slot);
        } else {
            let value = Some(value).filter(|v| !self.is_scalar(*v));
            self.history.touch(op, actor, what, footprint, value, slot);
        }
    }

    /// Any lane touches any element of the view.
    fn touch_anywhere(&mut self, op: Op, actor: Actor, what: What, r: &RefUse) {
        if self.is_watched(r) {
            let (footprint, slot) = (self.footprint(op, 0, r), self.slot(r));
            self.history.touch(op, actor, what, footprint, None, slot);
        }
    }

    /// What moves in its order: an atomic update reads and writes at once, a swap reads before it writes, if something wants what was there.
    fn transfer(&mut self, op: Op, actor: Actor, moved: &Transfer<'_>) {
        let view = moved.view;
        let result = self.kernel.ops[op].results.first().copied();
        if let (Some(result), None) = (result, moved.update)
            && (moved.only_loads() || self.used[result])
        {
            if moved.is_whole() {
                self.load(op, actor, view, result);
            } else if self.written[view.alloc] {
                self.touch_anywhere(op, actor, What::Read, view);
            }
            if moved.value.is_some() {
                // All lanes have read before any writes.
                self.rendezvous(op, actor);
            }
        }
        if let Some(value) = moved.value {
            let what = moved.update.map_or(What::Write, What::Atomic);
            match moved.is_whole() {
                true => self.store(op, actor, what, view, value),
                false => self.touch_anywhere(op, actor, what, view),
            }
        }
    }

    fn op(&mut self, op: Op, actor: Actor) {
        let kernel = self.kernel;
        let data = &kernel.ops[op];
        if let OpKind::AxisIndex { axis } = data.kind {
            let axis = &kernel.axes[axis];
            let last = if self.start.last { axis.size as i64 - 1 } else { 0 };
            let x = match axis.kind {
                AxisKind::Grid(_) | AxisKind::Cluster(_) | AxisKind::DeviceMesh(_) => last,
                AxisKind::Thread => i64::from(self.start.warpgroup),
                AxisKind::Warp => i64::from(actor.warps.trailing_zeros()),
            };
            self.scalars.set(data.results[0], Val::Int(x), Change::NONE);
            return;
        }
        match &data.kind {
            pure_ops!() | OpKind::OptimizationBarrier { .. } | OpKind::AccInit { .. } | OpKind::AccRead { .. } => {
                self.scalars.op(op);
                if self.allocation.rendezvous[op] {
                    self.rendezvous(op, actor);
                }
            }
            transfer_ops!() => {
                if let Some(moved) = data.kind.transfer() {
                    self.transfer(op, actor, &moved);
                }
                self.forget_results(op);
            }
            OpKind::InlinePtx { code, refs, .. } => {
                let by = if code.once { actor.leader() } else { actor };
                if code.once {
                    self.rendezvous(op, actor);
                }
                for (i, r) in refs.iter().enumerate().filter(|(_, r)| r.elem != Elem::Barrier) {
                    if self.is_watched(r) && !self.kernel.is_input(r.alloc) {
                        let footprint = self.footprint(op, i as u8, r);
                        let what = if code.access(i).writes() {
                            What::Write
                        } else {
                            What::Read
                        };
                        self.history.touch(op, by, what, footprint, None, None);
                    }
                }
                if self.allocation.rendezvous[op] {
                    self.rendezvous(op, actor);
                }
                self.history.exchange();
                self.forget_results(op);
            }
            OpKind::CopyGmemToSmem {
                src,
                dst,
                barrier,
                predicate,
                collective_axes: _,
                leader_tracked: _,
                oob: _,
                by_threads,
                uncounted: _,
            } => {
                let copies = !self.is_false(*predicate);
                if *by_threads {
                    let key = barrier.as_ref().map(|b| self.barrier(b));
                    match key {
                        Some(key) if copies && self.is_watched(dst) => {
                            let from =
                                (self.is_watched(src) && self.written[src.alloc]).then(|| self.footprint(op, 0, src));
                            let to = self.footprint(op, 1, dst);
                            self.history.load_by_threads(op, actor, from, to, key);
                        }
                        None if copies => self.copied_by_threads(op, actor, src, dst),
                        _ => {}
                    }
                    if let Some(key) = key
                        && (copies || !self.kernel.semantics.false_predicate_suppresses_arrival)
                    {
                        self.history.arrive(op, actor, key);
                        self.history.releases_for_all(op, actor);
                    }
                } else if copies && self.is_watched(src) && self.is_watched(dst) {
                    let from = self.written[src.alloc].then(|| self.footprint(op, 0, src));
                    let to = self.footprint(op, 1, dst);
                    let key = barrier.as_ref().map(|b| self.barrier(b));
                    self.history.load(op, actor, from, to, key);
                }
            }
            OpKind::CopySmemToGmem {
                src,
                dst,
                reduction: _,
                commit_group,
                by_threads,
                predicate,
            } => {
                let copies = !self.is_false(*predicate);
                if *by_threads {
                    if copies {
                        self.copied_by_threads(op, actor, src, dst);
                    }
                } else {
                    if copies && self.is_watched(src) && self.is_watched(dst) {
                        let (from, to) = (self.footprint(op, 0, src), self.footprint(op, 1, dst));
                        let slot = self.slot(src);
                        self.history.store(op, actor, from, to, slot);
                    }
                    if *commit_group {
                        self.history.commit_group(actor);
                    }
                }
            }
            OpKind::CommitGroup => self.history.commit_groups(actor),
            OpKind::WaitSmemToGmem { n, scope } => self.history.wait_bulk_stores(actor, *n, *scope),
            OpKind::CommitSmem => {
                self.history.fence(actor, Space::Shared, true);
                self.rendezvous(op, actor);
            }
            OpKind::Fence { kind } => {
                let space = match kind {
                    FenceKind::ProxyAsyncSharedCta
                    | FenceKind::ProxyAsyncGenericAcquire
                    | FenceKind::ProxyAsyncGenericRelease => Space::Shared,
                    FenceKind::ProxyAsyncGlobal => Space::Device,
                };
                self.history.fence(actor, space, false);
            }
            OpKind::BarrierArrive { barrier, predicate } => {
                if !self.is_false(*predicate) {
                    let key = self.barrier(barrier);
                    self.history.arrive(op, actor, key);
                    self.history.releases_for_all(op, actor);
                }
            }
            OpKind::BarrierWait { barrier, phases: _ } => {
                let key = self.barrier(barrier);
                self.history.wait_barrier(op, actor, key);
                self.forget_results(op);
            }
            OpKind::BarrierTest { barrier, phases: _ } => {
                let key = self.barrier(barrier);
                self.history.wait_barrier(op, actor, key);
                self.rendezvous(op, actor);
                self.forget_results(op);
            }
            OpKind::MbarrierArrive { barrier, by, .. } => {
                if *by == Arriving::One {
                    self.rendezvous(op, actor);
                }
                let key = self.barrier(barrier);
                self.history.arrive(op, actor, key);
                self.history.releases_for_all(op, actor);
            }
            OpKind::MbarrierExpect { .. } => {
                self.rendezvous(op, actor);
                self.history.release();
            }
            OpKind::MbarrierWait { barrier, order, .. } => {
                if order.relaxed {
                    self.history.exchange();
                } else {
                    let key = self.barrier(barrier);
                    self.history.wait_barrier(op, actor, key);
                }
            }
            OpKind::Sync { group } => match group {
                Group::Warp => {}
                Group::Warpgroup | Group::Block => {
                    if self.history.all_here(op, actor, "a barrier") {
                        self.history.join(actor, *group == Group::Block);
                    }
                }
            },
            OpKind::SemaphoreSignal { .. } | OpKind::SemaphoreSignalParallel { .. } => {
                self.rendezvous(op, actor);
                self.history.releases_for_all(op, actor);
            }
            OpKind::SemaphoreWait { .. } => {
                self.rendezvous(op, actor);
                self.history.wait_semaphore(op, actor);
            }
            OpKind::SemaphoreRead { .. } => {
                self.rendezvous(op, actor);
                self.forget_results(op);
            }
            OpKind::Wgmma { acc: _, a, b } => {
                if self.history.all_here(op, actor, "wgmma") {
                    let mut operands = vec![(self.footprint(op, 1, b), self.slot(b))];
                    if let MmaOperand::Smem(a) = a {
                        operands.push((self.footprint(op, 0, a), self.slot(a)));
                    }
                    self.history.mma(op, actor, &operands);
                }
            }
            OpKind::WgmmaWait { n, accs: _ } => self.history.wait_mma(actor, *n),
            // Of tensor memory the author keeps the order; of what products read of shared memory, it is watched that it is there.
            OpKind::Tcgen05Mma {
                a,
                b,
                a_in_tmem,
                barrier,
                ..
            } => {
                let operands = [(1, b), (0, a)];
                for &(i, r) in &operands[..2 - usize::from(*a_in_tmem)] {
                    let footprint = self.footprint(op, i, r);
                    self.history.tcgen05(op, actor, footprint);
                }
                if barrier.is_some() {
                    self.history.commit(op, actor);
                }
            }
            OpKind::Tcgen05Commit { predicate, .. } => {
                if !self.is_false(*predicate) {
                    self.history.commit(op, actor);
                }
            }
            OpKind::TmemCopy { src, .. } => {
                let footprint = self.footprint(op, 0, src);
                self.history.tcgen05(op, actor, footprint);
            }
            OpKind::TmemWait { .. } => self.rendezvous(op, actor),
            OpKind::TmemLoad { .. } | OpKind::TmemStore { .. } => self.forget_results(op),
            OpKind::DotInPlace { acc: _, a, b } => {
                // What passes through scratch is there first.
                if self.allocation.rendezvous[op] {
                    self.rendezvous(op, actor);
                }
                for (i, operand) in [a, b].into_iter().enumerate() {
                    if let MmaOperand::Smem(r) = operand
                        && self.is_watched(r)
                    {
                        let (footprint, slot) = (self.footprint(op, i as u8, r), self.slot(r));
                        self.history.touch(op, actor, What::Read, footprint, None, slot);
                    }
                }
                self.forget_results(op);
            }
            // Nothing of theirs is memory that this warpgroup's program touches again, or they are not lowered.
            OpKind::WaitGmemToSmem { .. } => self.rendezvous(op, actor),
            OpKind::Prefetch { .. } | OpKind::AsyncStoreSmem { .. } | aside_ops!() => self.forget_results(op),
            OpKind::For {
                lower,
                upper,
                inits,
                xs: _,
                reverse,
                unroll: _,
                body,
            } => {
                let actor = self.in_loop(op, actor);
                self.counted(op, actor, (*lower, *upper, *reverse), inits, *body);
            }
            OpKind::While { inits, cond, body } => {
                let actor = self.in_loop(op, actor);
                self.conditional(op, actor, inits, *cond, *body);
            }
            OpKind::Switch { selector, arms } => self.switch(op, actor, *selector, arms),
            OpKind::Scope {
                allocs,
                collective,
                body,
            } => {
                let all = kernel.num_warpgroups > 1 && actor.warps == ALL_WARPS;
                self.history.enter(op, allocs, *collective && all && !self.first_scope);
                self.first_scope = false;
                self.region(*body, actor);
                self.pass(&kernel.regions[*body].results, &data.results);
            }
            OpKind::WarpMap { axis: _, inits, body } => self.warps(op, actor, inits, *body),
        }
    }

    /// Whichever lanes do it: one reads what another one wrote before, if nothing orders the two.
    fn copied_by_threads(&mut self, op: Op, actor: Actor, src: &RefUse, dst: &RefUse) {
        for (i, (r, what)) in [(src, What::Read), (dst, What::Write)].into_iter().enumerate() {
            let is_shared = self.kernel.allocs[r.alloc].is_smem();
            if self.is_watched(r) && (is_shared || self.written[r.alloc]) {
                let footprint = self.footprint(op, i as u8, r);
                self.history.touch(op, actor, what, footprint, None, None);
            }
        }
    }

    /// Scalars go over a border, all at once.
    fn pass(&mut self, from: &[Value], to: &[Value]) {
        let (kernel, slice) = (self.kernel, self.slice);
        let needed = from.iter().zip(to).filter(|(_, to)| slice.has(**to));
        let values: SmallVec<[(Value, Option<(Val, Change)>); 8]> = needed
            .map(|(&v, &to)| (to, kernel.ty(v).is_scalar().then(|| self.scalars.changing(v))))
            .collect();
        for (v, x) in values {
            match x {
                Some((x, change)) => self.scalars.set(v, x, change),
                None => self.scalars.forget(v),
            }
        }
    }

    /// In a loop that only feeds, the first warp waits and issues; the others count.
    fn in_loop(&self, op: Op, actor: Actor) -> Actor {
        if self.allocation.feeding.loops[op] {
            actor.leader()
        } else {
            actor
        }
    }

    fn counted(
        &mut self,
        op: Op,
        actor: Actor,
        (lower, upper, reverse): (Value, Value, bool),
        inits: &[Value],
        body: Region,
    ) {
        let region = &self.kernel.regions[body];
        let (first, rounds) = self.rounds(lower, upper);
        let skipped = rounds.saturating_sub(self.max_rounds) / self.period * self.period;
        self.shortened |= skipped > 0;
        let counted = Counted {
            op,
            actor,
            first,
            rounds,
            reverse,
            carries: inits.len(),
            body,
        };
        // As long as turns predict nothing, they are watched at growing distances.
        let mut watch = if skipped == 0 && self.is_innermost(body) {
            self.period
        } else {
            u64::MAX
        };
        if watch > rounds / 3 && self.is_too_long(&counted, rounds - skipped) {
            self.stopped = true;
            return;
        }
        let before = (rounds - skipped).div_ceil(2);
        let (carries, _) = region.params[1..].split_at(inits.len());
        self.pass(inits, carries);
        let (mut i, mut last, mut gap) = (0, vec![], self.period);
        while i < rounds && !self.stopped {
            if i == before {
                i += skipped;
            }
            if i + self.period == watch {
                last = self.carried(&counted);
            }
            if i == watch && rounds - i > 2 * self.period {
                let turns = self.watched_turn(&counted, i, &last);
                i += (1 + turns) * self.period;
                gap = if turns > 0 { self.period } else { 2 * gap };
                watch = i + gap;
                self.stopped |= gap > WATCHED * self.period && self.is_too_long(&counted, rounds - i);
            } else {
                self.round(&counted, i);
                i += 1;
            }
        }
        let (results, stacked) = self.kernel.ops[op].results.split_at(inits.len());
        self.pass(carries, results);
        for &r in stacked {
            self.scalars.forget(r);
        }
    }

    /// A path that is going to be too long is not walked to where it is.
    fn is_too_long(&self, counted: &Counted, rounds: u64) -> bool {
        let least = rounds.saturating_mul(self.slice.ops(counted.body).len() as u64);
        let is_last_try = ROUNDS.last() == Some(&self.max_rounds);
        !is_last_try && least > (MAX_STEPS - self.steps.min(MAX_STEPS)) as u64
    }

    fn is_innermost(&self, region: Region) -> bool {
        self.slice.ops(region).iter().all(|op| {
            let kind = &self.kernel.ops[*op].kind;
            let mut so = !kind.control().is_some_and(Control::is_loop);
            for_each_region(kind, &mut |inner| so &= self.is_innermost(inner));
            so
        })
    }

    fn round(&mut self, counted: &Counted, i: u64) {
        let region = &self.kernel.regions[counted.body];
        let (carries, slices) = region.params[1..].split_at(counted.carries);
        let (at, change) = if counted.reverse {
            (counted.rounds - 1 - i, -(self.period as i64))
        } else {
            (i, self.period as i64)
        };
        let index = Val::Int(counted.first.wrapping_add(at as i64));
        self.scalars.set(region.params[0], index, Change::By(change));
        for &slice in slices {
            self.scalars.forget(slice);
        }
        self.history.turns.push((counted.op, Turn::Round(i)));
        self.region(counted.body, counted.actor);
        self.history.turns.pop();
        self.pass(&region.results[..counted.carries], carries);
    }

    /// What a loop carries of what is walked.
    fn carried(&mut self, counted: &Counted) -> Vec<(Value, Val)> {
        let region = &self.kernel.regions[counted.body];
        let carries = region.params[1..][..counted.carries].iter();
        let needed = carries.filter(|v| self.slice.has(**v));
        needed.map(|&v| (v, self.scalars.changing(v).0)).collect()
    }

    /// Walks one turn of the rings, and returns how many like it follow, behind which the path goes on: nothing is found in them
    /// that was not found in this one, because the history is then as it was before, and every decision is the same. `last`: what the loop
    /// carried a turn before.
    fn watched_turn(&mut self, counted: &Counted, i: u64, last: &[(Value, Val)]) -> u64 {
        let state = self.history.state(counted.actor);
        let now = self.carried(counted);
        self.scalars.watch();
        let mut expected = vec![];
        for (&(v, x), &(_, before)) in now.iter().zip(last) {
            let change = match (x, before) {
                (Val::Int(x), Val::Int(before)) => x.checked_sub(before).map_or(Change::Unknown, Change::By),
                _ if x == before => Change::NONE,
                _ => Change::Unknown,
            };
            expected.push(change);
            self.scalars.set(v, x, change);
        }
        for k in 0..self.period {
            self.round(counted, i + k);
        }
        let then = self.carried(counted);
        let Some(evolution) = self.scalars.watched() else {
            return 0;
        };
        let left = (counted.rounds - i) / self.period - 1;
        let turns = evolution.turns.min(left);
        if turns == 0 || self.stopped {
            return 0;
        }
        let mut jumped = vec![];
        for ((&(v, x), &(_, y)), &change) in now.iter().zip(&then).zip(&expected) {
            let Change::By(by) = change else { return 0 };
            let is_so = match (x, y) {
                (Val::Int(x), Val::Int(y)) => y.checked_sub(x) == Some(by),
                _ => x == y,
            };
            if !is_so || evolution.of(v, y) != change {
                return 0;
            }
            let by = i64::try_from(turns).ok().and_then(|turns| turns.checked_mul(by));
            jumped.push(match (y, by) {
                (Val::Int(y), Some(by)) => (v, y.checked_add(by).map(Val::Int)),
                (Val::Sym { .. }, _) => (v, Some(y)),
                (Val::Int(_), None) => (v, None),
            });
        }
        if jumped.iter().any(|(_, x)| x.is_none()) || self.history.state(counted.actor) != state {
            return 0;
        }
        for (v, x) in jumped {
            if let Some(x) = x {
                self.scalars.set(v, x, Change::NONE);
            }
        }
        turns
    }

    fn conditional(&mut self, op: Op, actor: Actor, inits: &[Value], cond: Region, body: Region) {
        let (test, inner) = (&self.kernel.regions[cond], &self.kernel.regions[body]);
        self.pass(inits, &test.params);
        let mut i = 0;
        while !self.stopped {
            self.history.turns.push((op, Turn::Round(i)));
            self.region(cond, actor);
            self.pass(&test.results[1..], &inner.params);
            let goes_on = self.goes_on(test.results[0], i);
            if goes_on {
                self.region(body, actor);
                self.pass(&inner.results, &test.params);
            }
            self.history.turns.pop();
            if !goes_on {
                break;
            }
            i += 1;
        }
        self.pass(&inner.params, &self.kernel.ops[op].results);
        if self.polling.loops.contains(op) {
            self.history.exchange();
        }
    }

    /// The first index of a loop and the number of its rounds.
    fn rounds(&mut self, lower: Value, upper: Value) -> (i64, u64) {
        let kernel = self.kernel;
        let (from, to) = (self.scalars.get(lower), self.scalars.get(upper));
        let first = match from {
            Val::Int(x) => x,
            Val::Sym { .. } => kernel.facts(lower).bounds_i64().0.max(0),
        };
        if let (Val::Int(a), Val::Int(b)) = (from, to) {
            return (a, b.saturating_sub(a).max(0) as u64);
        }
        let facts = kernel.facts(upper);
        let (least, most) = facts.bounds_i64();
        let fits = |n: &i64| {
            let end = first.saturating_add(*n);
            matches!(to, Val::Int(b) if b >= first)
                || (least..=most).contains(&end)
                    && (end == 0 || end.unsigned_abs().is_multiple_of(facts.divisor.max(1)))
        };
        let mut possible: Vec<i64> = UNKNOWN_ROUNDS.iter().copied().filter(fits).collect();
        if possible.is_empty() {
            possible.push(least.saturating_sub(first).clamp(0, 64));
        }
        let n = possible[self.choices.choose(possible.len())];
        self.scalars.choose(from, first);
        // Where the start was unknown, it is what leaves so many rounds.
        let first = match to {
            Val::Int(b) => b.saturating_sub(n),
            Val::Sym { .. } => {
                self.scalars.choose(to, first.saturating_add(n));
                first
            }
        };
        (first, n.max(0) as u64)
    }

    fn goes_on(&mut self, condition: Value, round: u64) -> bool {
        match self.scalars.get(condition) {
            Val::Int(x) => {
                let capped = round >= self.max_rounds;
                self.shortened |= capped && x != 0;
                x != 0 && !capped
            }
            unknown @ Val::Sym { .. } => {
                let more = [round < 2, round >= 2];
                let n = if round < 3 { 2 } else { 1 };
                let goes_on = round < 3 && more[self.choices.choose(n)];
                self.scalars.choose(unknown, i64::from(goes_on));
                goes_on
            }
        }
    }

    fn switch(&mut self, op: Op, actor: Actor, selector: Value, arms: &[Region]) {
        let kernel = self.kernel;
        let last = arms.len().saturating_sub(1);
        let arm = match self.scalars.get(selector) {
            Val::Int(x) => (x.max(0) as usize).min(last),
            unknown @ Val::Sym { .. } => {
                let facts = kernel.facts(selector);
                let (lo, hi) = facts.bounds_i64();
                let lo = (lo.max(0) as usize).min(last);
                let hi = (hi.max(0) as usize).clamp(lo, last);
                let arm = lo + self.choices.choose(hi - lo + 1);
                self.scalars.choose(unknown, arm as i64);
                arm
            }
        };
        let Some(&region) = arms.get(arm) else { return };
        self.history.turns.push((op, Turn::Arm(arm)));
        self.region(region, actor);
        self.history.turns.pop();
        self.pass(&kernel.regions[region].results, &kernel.ops[op].results);
    }

    /// The warps of a region, one after the other: none of them is ordered before another.
    fn warps(&mut self, op: Op, actor: Actor, inits: &[Value], body: Region) {
        let kernel = self.kernel;
        let region = &kernel.regions[body];
        // What one of them acquires may follow from what another one releases.
        self.history.exchange();
        self.warp_regions += 1;
        let number = self.warp_regions;
        for warp in 0..4u32 {
            if actor.warps >> warp & 1 == 0 {
                continue;
            }
            self.pass(inits, &region.params);
            let one = Actor {
                warps: 1 << warp,
                warp_region: Some(number),
            };
            self.history.turns.push((op, Turn::Warp(warp)));
            self.region(body, one);
            self.history.turns.pop();
        }
        self.history.exchange();
        self.forget_results(op);
    }
}
