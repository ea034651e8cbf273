//! What happened before what, on one path of one warpgroup.
//!
//! Of each access that a later one may yet race with, it has which warps' *present* lies behind it. A barrier adds its warps to
//! those of every access that one of them is behind ([`clock`](super::clock)); nothing else moves order from warp to warp. An
//! asynchronous access is an actor of its own: no warp is behind it before a wait that covers it, and then those that waited. A wait for a bulk load
//! into a slot also orders what came before that load ([`refills`](crate::plan::refills)).
//!
//! Assumed of the machine: the accesses that one warp makes to one address happen in the order of its program, whichever of
//! its lanes make them. PTX promises that for one lane; shared memory serves a warp's instructions in order, which `stmatrix`
//! followed by ordinary loads relies on throughout. A wait by a warp counts for all of its lanes.
use super::bytes::{Bytes, FootprintId, Space, has_owners};
use super::clock::{ALL_WARPS, Behind, Clock, OTHERS};
use super::finding::{Fault, Finding, Missing};
use super::live::{Access, Completion, Live};
use super::scalars::Val;
use crate::error::Loc;
use crate::kernel_ir::{Alloc, AllocKind, AtomicOp, Kernel, Op, Owner, Value, WaitScope};
use crate::layout::assignment::Assignment;
use cranelift_entity::SecondaryMap;
use rustc_hash::{FxBuildHasher, FxHashMap, FxHashSet};
use smallvec::SmallVec;
use std::hash::BuildHasher;

/// What an access does, and through which proxy.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum What {
    Read,
    Write,
    Atomic(AtomicOp),
    /// A bulk load's write of shared memory, and its read of device memory.
    LoadWrite,
    LoadRead,
    /// A bulk store's read of shared memory, and its write of device memory.
    StoreRead,
    StoreWrite,
    /// A tensor core's read of an operand.
    MmaRead,
}

impl What {
    fn writes(self) -> bool {
        match self {
            What::Write | What::Atomic(_) | What::LoadWrite | What::StoreWrite => true,
            What::Read | What::LoadRead | What::StoreRead | What::MmaRead => false,
        }
    }
    fn is_asynchronous(self) -> bool {
        match self {
            What::LoadWrite | What::LoadRead | What::StoreRead | What::StoreWrite | What::MmaRead => true,
            What::Read | What::Write | What::Atomic(_) => false,
        }
    }
    fn verb(self) -> &'static str {
        match self {
            What::Read => "reads",
            What::Write => "writes",
            What::Atomic(_) => "updates",
            What::LoadWrite => "starts a bulk load that writes",
            What::LoadRead => "starts a bulk load that reads",
            What::StoreRead => "starts a bulk store that reads",
            What::StoreWrite => "starts a bulk store that writes",
            What::MmaRead => "starts a tensor core that reads",
        }
    }
}

/// The executor of an op.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Actor {
    /// The warps that are here: all four, one in a warp region, the first in a feeding loop.
    pub warps: Behind,
    /// The warp region's number, if this is one: its warps diverge, and only their own accesses are in program order.
    pub warp_region: Option<u32>,
}

impl Actor {
    /// The warp one lane of which issues copies, and acts alone for the group.
    pub fn leader(self) -> Actor {
        Actor {
            warps: 1 << self.warps.trailing_zeros(),
            ..self
        }
    }
    fn is_whole(self) -> bool {
        self.warps == ALL_WARPS
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BarrierKey {
    pub alloc: Alloc,
    pub index: Val,
}

impl BarrierKey {
    /// Whether the two may be one barrier.
    pub fn may_be(self, other: BarrierKey) -> bool {
        let distinct = matches!((self.index, other.index), (Val::Int(a), Val::Int(b)) if a != b);
        self.alloc == other.alloc && !distinct
    }
}

/// A wait that only some warps have gone through.
#[derive(Clone, PartialEq)]
struct Waited {
    op: Op,
    actor: Actor,
    barrier: Option<BarrierKey>,
}

/// A wgmma, and where the path was.
struct Mma {
    loc: Loc,
    turns: u64,
}

/// Of a ring, as far as its loads are issued by others: what a wait for a phase of `full[i]` orders in slot `i`.
#[derive(Default)]
struct Rings {
    /// What each phase of a barrier refills a slot of.
    refills: SecondaryMap<Alloc, Vec<Alloc>>,
    /// How often this warpgroup has released anything, and acquired since.
    exchange: u32,
    released: bool,
    /// The exchange in which each slot's refill was last waited for.
    filled: FxHashMap<(Alloc, Val), u32>,
}

/// What allocations are, of what matters here.
struct Memory<'a> {
    kernel: &'a Kernel,
    /// Device arrays that copies touch: stores to them wait for a fence.
    copied: Vec<Alloc>,
    /// What lies in bytes that have several owners in turn.
    reuse: SecondaryMap<Alloc, bool>,
}

impl Memory<'_> {
    fn root(&self, alloc: Alloc) -> Alloc {
        self.kernel.allocs[alloc].within.map_or(alloc, |w| w.union)
    }

    /// Whether nothing can collide with an access any more.
    fn is_over(&self, bytes: &Bytes, clock: &Clock, x: &Access) -> bool {
        let footprint = bytes.get(x.footprint);
        let shared = self.kernel.num_warpgroups > 1
            && footprint.space == Space::Shared
            && self.reuse[self.root(footprint.alloc)];
        let needed = if shared { ALL_WARPS | OTHERS } else { ALL_WARPS };
        if !x.is_behind(clock, needed) {
            return false;
        }
        let copies = footprint.space == Space::Shared || self.copied.contains(&footprint.alloc);
        let needs_fence = copies && !x.what.is_asynchronous() && !x.refilled;
        let is_fenced = |a: usize| (0..4).all(|b| clock.is_fenced(footprint.space, (a, x.made), b));
        !needs_fence || (0..4).all(|a| x.actor.warps >> a & 1 == 0 || is_fenced(a))
    }
}

/// Accesses of one path that later ones may collide with.
pub struct History<'a> {
    kernel: &'a Kernel,
    assignment: &'a Assignment,
    pub bytes: Bytes,
    clock: Clock,
    live: Live,
    /// Waits by some warps, since the last barrier.
    waited: Vec<Waited>,
    /// The last wait by every warp, each for itself, since the last barrier.
    all_waited: Option<Op>,
    rings: Rings,
    /// Commit groups of each warp: of its warpgroup's copies, and of those of warp regions.
    bulk_groups: [[u32; 4]; 2],
    /// The wgmmas, each a group of its own.
    mmas: Vec<Mma>,
    /// Entries of the scope that owns an allocation (a union for its members).
    lives: SecondaryMap<Alloc, u32>,
    memory: Memory<'a>,
    /// What [`Live::near`] has found.
    near: Vec<u32>,
    /// Nothing has happened since the last barrier of the block.
    at_block_barrier: bool,
    automatic: bool,
    /// Where the path began, and the turns that it has taken to where it is.
    start: Start,
    pub turns: Vec<(Op, Turn)>,
    pub findings: Vec<Finding>,
}

/// The walker: a warpgroup of the first or of the last block.
#[derive(Clone, Copy, Default)]
pub struct Start {
    pub warpgroup: u32,
    pub last: bool,
}

/// A choice of the path's that still holds.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Turn {
    Round(u64),
    Arm(usize),
    Warp(u32),
}

/// All that decides about what follows: equal for two moments of a path, if the same then follows upon both. Of moments, warp regions,
/// groups, and lives only the order is in it.
#[derive(PartialEq)]
pub struct State {
    clock: Vec<usize>,
    accesses: Vec<Access>,
    waited: Vec<Waited>,
    /// The warp region.
    here: Option<u32>,
    all_waited: Option<Op>,
    released: bool,
    /// The slots whose refill was waited for in this exchange.
    filled: FxHashSet<(Alloc, Val)>,
    at_block_barrier: bool,
}

/// Where each number is among all of them.
struct Ranks(Vec<u32>);

impl Ranks {
    fn of(numbers: impl Iterator<Item = u32>) -> Ranks {
        let mut all: Vec<u32> = numbers.collect();
        all.sort_unstable();
        all.dedup();
        Ranks(all)
    }
    fn rank(&self, n: u32) -> usize {
        self.0.partition_point(|m| *m < n)
    }
}

impl<'a> History<'a> {
    /// `copied`: device arrays that copies touch. `reuse`: what lies in bytes that have several owners in turn. `refills`: what each phase
    /// of a barrier refills a slot of.
    pub fn new(
        kernel: &'a Kernel,
        assignment: &'a Assignment,
        copied: Vec<Alloc>,
        reuse: SecondaryMap<Alloc, bool>,
        refills: SecondaryMap<Alloc, Vec<Alloc>>,
    ) -> History<'a> {
        History {
            kernel,
            assignment,
            bytes: Bytes::default(),
            clock: Clock::default(),
            live: Live::default(),
            waited: vec![],
            all_waited: None,
            rings: Rings {
                refills,
                ..Rings::default()
            },
            bulk_groups: [[0; 4]; 2],
            mmas: vec![],
            lives: SecondaryMap::new(),
            memory: Memory { kernel, copied, reuse },
            near: vec![],
            at_block_barrier: false,
            automatic: !kernel.compiler_params.unsafe_no_auto_barriers,
            start: Start::default(),
            turns: vec![],
            findings: vec![],
        }
    }

    /// Another path begins.
    pub fn restart(&mut self, start: Start) {
        self.clock = Clock::default();
        self.live.clear();
        self.waited.clear();
        self.all_waited = None;
        self.rings.exchange = 0;
        self.rings.released = false;
        self.rings.filled.clear();
        self.bulk_groups = [[0; 4]; 2];
        self.mmas.clear();
        self.lives.clear();
        self.at_block_barrier = false;
        self.start = start;
        self.turns.clear();
    }

    fn life(&self, alloc: Alloc) -> u32 {
        self.lives[self.memory.root(alloc)]
    }

    /// What decides about what follows, by the walker.
    pub fn state(&mut self, actor: Actor) -> State {
        let mut accesses = self.live.listed(|x| self.memory.is_over(&self.bytes, &self.clock, x));
        let mut waited = self.waited.clone();
        let moments = accesses.iter_mut().flat_map(Access::moments).map(|m| *m);
        let moments = Ranks::of(moments.chain(self.clock.moments()));
        let of_accesses = accesses.iter().flat_map(|x| [x.actor.warp_region, x.waited_in]);
        let regions = of_accesses
            .chain(waited.iter().map(|w| w.actor.warp_region))
            .chain([actor.warp_region]);
        let regions = Ranks::of(regions.flatten());
        let region = |number: &mut Option<u32>| *number = number.map(|n| regions.rank(n) as u32);
        for x in &mut accesses {
            x.moments().for_each(|m| *m = moments.rank(*m) as u32);
            // Another life is another, whichever.
            x.life = u32::from(x.life == self.life(self.bytes.get(x.footprint).alloc));
            let groups = match x.completion {
                Completion::BulkGroup(_) => {
                    self.bulk_groups[usize::from(x.actor.warp_region.is_some())]
                        [x.actor.warps.trailing_zeros() as usize]
                }
                Completion::MmaGroup(_) => self.mmas.len() as u32,
                Completion::Done | Completion::Mbarrier(_) => 0,
            };
            if let Completion::BulkGroup(n) | Completion::MmaGroup(n) = &mut x.completion {
                *n = if x.lists.open { groups - *n } else { 0 };
            }
            region(&mut x.actor.warp_region);
            region(&mut x.waited_in);
        }
        waited.iter_mut().for_each(|w| region(&mut w.actor.warp_region));
        let mut here = actor.warp_region;
        region(&mut here);
        let filled = self.rings.filled.iter();
        State {
            clock: self.clock.moments().map(|m| moments.rank(m)).collect(),
            accesses,
            waited,
            here,
            all_waited: self.all_waited,
            released: self.rings.released,
            filled: filled
                .filter(|(_, exchange)| **exchange == self.rings.exchange)
                .map(|(slot, _)| *slot)
                .collect(),
            at_block_barrier: self.at_block_barrier,
        }
    }

    // ------------------------------------------------------------ order

    /// A barrier of all of these warps. `block`: with those of the other warpgroups.
    pub fn join(&mut self, actor: Actor, block: bool) {
        self.at_block_barrier = block;
        if !actor.is_whole() {
            return;
        }
        let now = self.clock.tick();
        self.live.join(block, now);
        self.clock.join(block);
        self.waited.clear();
        self.all_waited = None;
        if block {
            self.exchange();
        }
    }

    /// These warps order what they are behind of in this memory before the async proxy. `commits`: by an op of the kernel.
    pub fn fence(&mut self, actor: Actor, space: Space, commits: bool) {
        self.at_block_barrier = false;
        self.clock.fence(space, actor.warps, commits);
    }

    /// The open group of bulk stores of their issuer.
    fn bulk_group(&mut self, actor: Actor) -> &mut u32 {
        let issuer = actor.warps.trailing_zeros() as usize;
        &mut self.bulk_groups[usize::from(actor.warp_region.is_some())][issuer]
    }

    pub fn commit_group(&mut self, actor: Actor) {
        self.at_block_barrier = false;
        *self.bulk_group(actor) += 1;
    }

    /// The same by all threads: those that issued stores in warp regions, too.
    pub fn commit_groups(&mut self, actor: Actor) {
        self.commit_group(actor);
        if actor.warp_region.is_none() {
            for (warp, groups) in self.bulk_groups[1].iter_mut().enumerate() {
                *groups += u32::from(actor.warps >> warp & 1 == 1);
            }
        }
    }

    pub fn wait_bulk_stores(&mut self, actor: Actor, n: u32, scope: WaitScope) {
        self.at_block_barrier = false;
        let now = self.clock.tick();
        let groups = self.bulk_groups;
        self.live.wait_stores(actor, now, |access, issuer, group| {
            let covers = access.what == What::StoreRead || scope == WaitScope::Complete;
            covers && group + n < groups[usize::from(access.actor.warp_region.is_some())][issuer]
        });
    }

    /// The kernel is over, and shared memory is another block's.
    pub fn end_kernel(&mut self) {
        for access in self.live.listed(|_| false) {
            if access.what == What::StoreRead && access.behind_any(&self.clock) & ALL_WARPS == 0 {
                let text = format!(
                    "the kernel ends while {} may still read shared memory",
                    self.name(access.op)
                );
                let expected = "a wait for it before the kernel ends";
                self.report(Fault::Compiler, Missing::Wait, None, access.op, text, expected);
            }
        }
    }

    pub fn wait_mma(&mut self, actor: Actor, n: u32) {
        self.at_block_barrier = false;
        let now = self.clock.tick();
        self.live
            .wait_mmas(actor, now, (self.mmas.len() as u32).saturating_sub(n));
    }

    /// Each of these warps has waited for an mbarrier.
    pub fn wait_barrier(&mut self, op: Op, actor: Actor, key: BarrierKey) {
        self.at_block_barrier = false;
        self.require_waits_of_others(op, actor, |wait| wait.barrier.is_some_and(|b| b.may_be(key)));
        let now = self.clock.tick();
        self.live.wait_loads(key, actor, now);
        self.acquire();
        if actor.is_whole() && actor.warp_region.is_none() {
            let rings = &mut self.rings;
            for &alloc in &rings.refills[key.alloc] {
                self.live.refill((alloc, key.index));
                rings.filled.insert((alloc, key.index), rings.exchange);
            }
        }
        self.add_wait(op, actor, Some(key));
    }

    /// Each of these warps arrives on an mbarrier: in no phase that one of them alone has yet to see.
    pub fn arrive(&mut self, op: Op, actor: Actor, key: BarrierKey) {
        self.require_waits_of_others(op, actor, |wait| wait.barrier.is_some_and(|b| b.may_be(key)));
    }

    /// These warps have waited for a semaphore.
    pub fn wait_semaphore(&mut self, op: Op, actor: Actor) {
        self.at_block_barrier = false;
        self.acquire();
        if !actor.is_whole() {
            self.add_wait(op, actor, None);
        }
    }

    fn add_wait(&mut self, op: Op, actor: Actor, barrier: Option<BarrierKey>) {
        if actor.is_whole() {
            self.all_waited = Some(op);
        } else {
            self.waited.retain(|w| w.barrier != barrier || w.actor != actor);
            self.waited.push(Waited { op, actor, barrier });
        }
    }

    /// What came before may be ordered before what others do from here on.
    pub fn release(&mut self) {
        self.rings.released = true;
    }

    /// What others are behind of is ordered before what follows.
    pub fn acquire(&mut self) {
        if self.rings.released {
            self.exchange();
        }
    }

    /// A release of everything, and an acquire of whatever followed from it.
    pub fn exchange(&mut self) {
        self.rings.released = false;
        self.rings.exchange += 1;
    }

    // ------------------------------------------------------------ control

    /// A scope begins: its allocations are new memory.
    pub fn enter(&mut self, op: Op, allocs: &[Alloc], needs_block_barrier: bool) {
        for alloc in allocs {
            self.lives[*alloc] += 1;
        }
        if needs_block_barrier && !self.at_block_barrier {
            let text = "a collective scope begins without a barrier of all warpgroups of the block before it";
            self.report(
                Fault::Compiler,
                Missing::BlockBarrier,
                None,
                op,
                text.into(),
                "a block barrier before it",
            );
        }
    }

    /// A barrier of all four warps; false if they are not all here.
    pub fn all_here(&mut self, op: Op, actor: Actor, what: &str) -> bool {
        if actor.is_whole() {
            return true;
        }
        let warps = names(actor.warps);
        let text = format!("{what} of the whole warpgroup, which only {warps} reaches");
        self.report(
            Fault::Compiler,
            Missing::Warps,
            None,
            op,
            text,
            "a barrier of those that are here",
        );
        false
    }

    /// One warp releases for its warpgroup: what the others did must be behind it.
    pub fn releases_for_all(&mut self, op: Op, actor: Actor) {
        self.at_block_barrier = false;
        self.release();
        if actor.is_whole() || !self.automatic {
            return;
        }
        let mut found = vec![];
        for x in self.live.since_barrier() {
            let divergent = x.actor.warp_region.is_some() && x.actor.warp_region == actor.warp_region;
            let footprint = self.bytes.get(x.footprint);
            let counts = match footprint.space {
                Space::Shared => !matches!(x.what, What::LoadWrite | What::LoadRead),
                Space::Device => matches!(x.what, What::Write | What::Atomic(_)),
            };
            let lacks = (0..4).find(|&a| {
                let behind = x.behind(&self.clock, a);
                let started = !x.what.is_asynchronous() || behind & ALL_WARPS != 0;
                x.actor.warps >> a & 1 == 1 && started && behind & actor.warps == 0
            });
            if let Some(a) = lacks.filter(|_| counts && !divergent) {
                let text = format!(
                    "{} announces, for its whole warpgroup, that {} are free or ready, which warp {a} {} at {}",
                    names(actor.warps),
                    footprint.text(self.kernel),
                    x.what.verb(),
                    name(self.kernel, x.op),
                );
                found.push((x.op, text));
            }
        }
        for (earlier, text) in found {
            let what = "a warpgroup barrier between the two";
            self.report(Fault::Compiler, Missing::Barrier, Some(earlier), op, text, what);
        }
        self.waits_are_over(op, actor);
    }

    // ------------------------------------------------------------ accesses

    /// An access by the lanes of these warps. `slot`: of a ring, that all of it lies in.
    pub fn touch(
        &mut self,
        op: Op,
        actor: Actor,
        what: What,
        footprint: FootprintId,
        value: Option<Value>,
        slot: Option<(Alloc, Val)>,
    ) {
        self.check(op, actor, what, footprint, value);
        self.add(op, actor, what, footprint, value, Completion::Done, slot);
    }

    /// A bulk load begins. `device`: none where nothing is written.
    pub fn load(
        &mut self,
        op: Op,
        actor: Actor,
        device: Option<FootprintId>,
        shared: FootprintId,
        barrier: Option<BarrierKey>,
    ) {
        let issuer = actor.leader();
        self.at_block_barrier = false;
        self.waits_are_over(op, issuer);
        let parts = [(What::LoadRead, device), (What::LoadWrite, Some(shared))];
        for (what, footprint) in parts.iter().filter_map(|&(what, footprint)| Some((what, footprint?))) {
            self.check(op, issuer, what, footprint, None);
        }
        // Waits for a load without a barrier are not followed: no warp counts as behind it.
        let Some(barrier) = barrier else { return };
        self.release();
        for (what, footprint) in parts.iter().filter_map(|&(what, footprint)| Some((what, footprint?))) {
            self.add(op, issuer, what, footprint, None, Completion::Mbarrier(barrier), None);
        }
    }

    /// All warps begin a load, each its part, which is over with a phase of a barrier.
    pub fn load_by_threads(
        &mut self,
        op: Op,
        actor: Actor,
        device: Option<FootprintId>,
        shared: FootprintId,
        barrier: BarrierKey,
    ) {
        let parts = [
            (What::Read, What::LoadRead, device),
            (What::Write, What::LoadWrite, Some(shared)),
        ];
        for (begins, is, footprint) in parts {
            let Some(footprint) = footprint else { continue };
            self.check(op, actor, begins, footprint, None);
            self.add(
                op,
                actor.leader(),
                is,
                footprint,
                None,
                Completion::Mbarrier(barrier),
                None,
            );
        }
    }

    /// A bulk store begins.
    pub fn store(
        &mut self,
        op: Op,
        actor: Actor,
        shared: FootprintId,
        device: FootprintId,
        slot: Option<(Alloc, Val)>,
    ) {
        let issuer = actor.leader();
        self.check(op, issuer, What::StoreRead, shared, None);
        self.check(op, issuer, What::StoreWrite, device, None);
        let group = Completion::BulkGroup(*self.bulk_group(issuer));
        self.add(op, issuer, What::StoreRead, shared, None, group, slot);
        self.add(op, issuer, What::StoreWrite, device, None, group, None);
    }

    /// A product in tensor memory begins, by the lane that issues, which reads this operand until a commit that the author waits for.
    pub fn tcgen05(&mut self, op: Op, actor: Actor, operand: FootprintId) {
        self.check(op, actor.leader(), What::MmaRead, operand, None);
    }

    /// The lane that issues has an arrival made, some time.
    pub fn commit(&mut self, op: Op, actor: Actor) {
        self.at_block_barrier = false;
        self.waits_are_over(op, actor.leader());
        self.release();
    }

    /// A wgmma begins, which reads these operands.
    pub fn mma(&mut self, op: Op, actor: Actor, operands: &[(FootprintId, Option<(Alloc, Val)>)]) {
        for &(footprint, _) in operands {
            self.check(op, actor, What::MmaRead, footprint, None);
        }
        let group = Completion::MmaGroup(self.mmas.len() as u32);
        let (loc, turns) = (self.kernel.ops[op].loc, self.turns_now());
        self.mmas.push(Mma { loc, turns });
        for &(footprint, slot) in operands {
            self.add(op, actor, What::MmaRead, footprint, None, group, slot);
        }
    }

    /// The turns that the path has taken to where it is, as one number.
    fn turns_now(&self) -> u64 {
        FxBuildHasher.hash_one(&self.turns)
    }

    /// The last wgmma that comes before an op in the program. A pass may have moved later ones before it, not knowing of a collision
    /// that is the kernel's own to prevent.
    fn mma_before(&self, op: Op) -> Option<Completion> {
        let (loc, turns) = (self.kernel.ops[op].loc, self.turns_now());
        let is_later = |mma: &Mma| mma.turns == turns && mma.loc > loc;
        let last = self.mmas.iter().rposition(|mma| !is_later(mma))?;
        Some(Completion::MmaGroup(last as u32))
    }

    fn add(
        &mut self,
        op: Op,
        actor: Actor,
        what: What,
        footprint: FootprintId,
        value: Option<Value>,
        completion: Completion,
        slot: Option<(Alloc, Val)>,
    ) {
        self.at_block_barrier = false;
        let life = self.life(self.bytes.get(footprint).alloc);
        let layout = value.and_then(|v| self.bytes.layout(self.assignment, v));
        // Within the exchange in which the slot's refill was waited for, the next one cannot have been acquired.
        let before_refill = slot.filter(|slot| self.rings.filled.get(slot) == Some(&self.rings.exchange));
        let now = self.clock.tick();
        let access = (op, what, footprint, value);
        self.live
            .add(&self.bytes, now, access, layout, actor, life, completion, before_refill);
    }

    /// A bulk load completes phases, and arms others: no warp may still have to see an older one.
    fn waits_are_over(&mut self, op: Op, issuer: Actor) {
        if !self.automatic {
            return;
        }
        let late = (0..4).find(|a| issuer.warps >> a & 1 == 0);
        let late = self.all_waited.zip(late);
        if let Some((wait, late)) = late {
            let text = format!(
                "{} at {} may complete a phase that warp {late} still has to see at {}: that warp then hangs",
                names(issuer.warps),
                self.name(op),
                self.name(wait),
            );
            let what = "a warpgroup barrier between the wait and the load";
            self.report(Fault::Compiler, Missing::Barrier, Some(wait), op, text, what);
        }
    }

    /// A wait that one warp made for its warpgroup: the others are to be ordered behind it.
    fn require_waits_of_others(&mut self, op: Op, actor: Actor, of: impl Fn(&Waited) -> bool) {
        if !self.automatic {
            return;
        }
        let missed = self.waited.iter().find_map(|w| {
            let divergent = w.actor.warp_region.is_some() && w.actor.warp_region == actor.warp_region;
            let late = actor.warps & !w.actor.warps;
            (!divergent && late != 0 && of(w)).then_some((w.op, w.actor.warps, late))
        });
        if let Some((wait, who, late)) = missed {
            let text = format!(
                "at {} only {} has waited; nothing orders {} at {} behind that",
                self.name(wait),
                names(who),
                names(late),
                self.name(op),
            );
            let what = "a warpgroup barrier between the two";
            self.report(Fault::Compiler, Missing::Barrier, Some(wait), op, text, what);
        }
    }

    /// Everything earlier that this access collides with and that nothing orders before it.
    fn check(&mut self, op: Op, actor: Actor, what: What, footprint: FootprintId, value: Option<Value>) {
        let space = self.bytes.get(footprint).space;
        self.require_waits_of_others(op, actor, |_| true);
        let mut found = vec![];
        let mut near = std::mem::take(&mut self.near);
        let is_over = |x: &Access| self.memory.is_over(&self.bytes, &self.clock, x);
        self.live.near(&self.bytes, footprint, is_over, &mut near);
        for &i in &near {
            let old = self.live.get(i);
            let same_atomic = matches!((old.what, what), (What::Atomic(a), What::Atomic(b)) if a == b);
            if !(old.what.writes() || what.writes()) || same_atomic {
                continue;
            }
            let old = *old;
            if let Some(one) = self.collide(&old, op, actor, what, footprint, value) {
                found.push((old.op, one));
            }
        }
        self.near = near;
        for (earlier, (fault, missing, text)) in found {
            let expected = match missing {
                Missing::Barrier => "a warpgroup barrier between the two",
                Missing::BlockBarrier => "a block barrier between the two",
                Missing::Fence if space == Space::Device => "fence.proxy.async for global memory between the two",
                Missing::Fence => "a proxy fence (commit_smem) between the two",
                Missing::Wait => "a wait for it between the two",
                Missing::Warps => "a barrier of those that are here",
            };
            let text = format!("{} {} {text}", self.name(op), what.verb());
            self.report(fault, missing, Some(earlier), op, text, expected);
        }
    }

    /// What is wrong between two accesses to a common byte, one of which writes.
    fn collide(
        &mut self,
        old: &Access,
        op: Op,
        actor: Actor,
        what: What,
        footprint: FootprintId,
        value: Option<Value>,
    ) -> Option<(Fault, Missing, String)> {
        // Warps of one region diverge: only what one of them does is in order.
        if old.actor.warp_region.is_some()
            && old.actor.warp_region == actor.warp_region
            && old.actor.warps & actor.warps == 0
        {
            return None;
        }
        let (was, is) = (self.bytes.get(old.footprint), self.bytes.get(footprint));
        let (alloc, old_alloc, space) = (is.alloc, was.alloc, is.space);
        let reused = space == Space::Shared
            && (self.memory.root(old_alloc) != self.memory.root(alloc) || old.life != self.life(alloc));
        if reused && !what.writes() {
            return None; // what was there before a scope began is undefined
        }
        let is_compilers = self.kernel.allocs[alloc].owner == Owner::Compiler;
        let is_ordered_here = self.automatic || reused || is_compilers;
        let before = |this: &Self| {
            let place = this.bytes.get(footprint).text(this.kernel);
            format!("{place}, which {} {}", this.name(old.op), old.what.verb())
        };
        if old.what.is_asynchronous() && old.behind_any(&self.clock) & ALL_WARPS == 0 {
            let fault = match old.what {
                // The kernel's own protocol, perhaps with another warpgroup.
                What::LoadWrite | What::LoadRead => return None,
                What::StoreWrite if what == What::StoreWrite => return None,
                What::StoreRead | What::StoreWrite if reused => Fault::Compiler,
                What::StoreRead | What::StoreWrite => Fault::User,
                // "When a wgmma returns, no older one is still running."
                What::MmaRead if reused || Some(old.completion) != self.mma_before(op) => Fault::Compiler,
                What::MmaRead => Fault::User,
                What::Read | What::Write | What::Atomic(_) => return None,
            };
            if fault == Fault::Compiler && !is_ordered_here {
                return None;
            }
            return Some((
                fault,
                Missing::Wait,
                format!("{} and may still be doing so", before(self)),
            ));
        }
        if old.waited_in.is_some() && old.waited_in == actor.warp_region {
            return None; // one warp of the region would have to release it to the other
        }
        if !is_ordered_here && !(old.what == What::StoreRead && what.writes()) {
            return None;
        }
        let pairs = || {
            let all = (0..4usize).flat_map(|a| (0..4usize).map(move |b| (a, b)));
            all.filter(|&(a, b)| old.actor.warps >> a & 1 == 1 && actor.warps >> b & 1 == 1)
        };
        // A load may still be going on behind a barrier: a copy that fills its place needs the fence, too.
        let matters = old.what.writes() || what == What::LoadWrite && old.what == What::Read;
        let unannounced = what.is_asynchronous() && matters && !old.what.is_asynchronous();
        let is_late = |this: &Self, (a, b): (usize, usize)| old.behind(&this.clock, a) >> b & 1 == 0;
        let is_unfenced = |this: &Self, (a, b): (usize, usize)| {
            unannounced && !old.refilled && !this.clock.is_fenced(space, (a, old.made), b)
        };
        let collective = |alloc: Alloc| self.kernel.allocs[alloc].collective;
        let changes_hands = reused && self.kernel.num_warpgroups > 1 && (collective(old_alloc) || collective(alloc));
        let suspicious = pairs().any(|pair| is_late(self, pair) || is_unfenced(self, pair));
        if !suspicious && !changes_hands {
            return None;
        }
        let mut pairs: SmallVec<[(usize, usize); 16]> = pairs().collect();
        if suspicious {
            pairs = self.owners_overlap(old, what, footprint, value, pairs);
        }
        let users_fence = !reused && !is_compilers && matches!(what, What::StoreRead | What::MmaRead);
        if let Some(&(a, b)) = pairs.iter().find(|&&pair| is_late(self, pair)) {
            let before = before(self);
            let who = if old.what.is_asynchronous() {
                let waiters = names(old.behind_any(&self.clock));
                format!("{before}; {waiters} has waited for that, and nothing orders warp {b} behind it")
            } else {
                format!("{before}; nothing orders warp {a} there before warp {b} here")
            };
            let fault = if unannounced && users_fence && !self.clock.is_committed(space, old.made) {
                Fault::User
            } else {
                Fault::Compiler
            };
            return Some((fault, Missing::Barrier, who));
        }
        if (self.automatic || is_compilers) && pairs.iter().any(|&pair| is_unfenced(self, pair)) {
            // JAX has an op that announces to tensor cores and bulk stores what they read, and no other.
            let fault = if space == Space::Shared && users_fence {
                Fault::User
            } else {
                Fault::Compiler
            };
            return Some((
                fault,
                Missing::Fence,
                format!("{} through the other proxy", before(self)),
            ));
        }
        if changes_hands {
            let here = pairs.iter().all(|&(a, _)| old.behind(&self.clock, a) & OTHERS != 0);
            if !here {
                let before = before(self);
                let text = format!("{before} in an earlier life; other warpgroups may not have come so far");
                return Some((Fault::Compiler, Missing::BlockBarrier, text));
            }
        }
        None
    }

    /// Of these pairs of warps those that touch a common byte, when each lane's part is known.
    fn owners_overlap(
        &mut self,
        old: &Access,
        what: What,
        footprint: FootprintId,
        value: Option<Value>,
        pairs: SmallVec<[(usize, usize); 16]>,
    ) -> SmallVec<[(usize, usize); 16]> {
        // Of several copies of an element one is stored, by a warp that holds it.
        let part_of = |what: What, footprint: FootprintId, value: Option<Value>| match what {
            What::Read => value,
            _ => value.filter(|_| self.has_bytes(footprint)),
        };
        let (x, y) = (
            part_of(old.what, old.footprint, old.value),
            part_of(what, footprint, value),
        );
        let layout = |v: Option<Value>| v.and_then(|v| self.assignment.values[v].as_ref());
        if let (Some(a), Some(b)) = (layout(x), layout(y))
            && self.bytes.same_pattern(old.footprint, footprint)
            && self.has_bytes(footprint)
            && a == b
            && has_owners(a)
        {
            return SmallVec::new();
        }
        let (bytes, assignment) = (&mut self.bytes, self.assignment);
        pairs
            .into_iter()
            .filter(|&(a, b)| bytes.warps_overlap(assignment, (old.footprint, x, a), (footprint, y, b)))
            .collect()
    }

    /// Whether elements share no byte.
    fn has_bytes(&self, footprint: FootprintId) -> bool {
        match &self.kernel.allocs[self.bytes.get(footprint).alloc].kind {
            AllocKind::Smem { dtype, .. } | AllocKind::Gmem { dtype, .. } => dtype.bits() >= 8,
            AllocKind::SmemUnion
            | AllocKind::Tmem { .. }
            | AllocKind::TmemUnion
            | AllocKind::Barrier { .. }
            | AllocKind::Semaphore { .. }
            | AllocKind::Register { .. } => false,
        }
    }

    // ------------------------------------------------------------ words

    fn name(&self, op: Op) -> String {
        name(self.kernel, op)
    }

    fn report(&mut self, fault: Fault, missing: Missing, earlier: Option<Op>, later: Op, text: String, expected: &str) {
        let at = |op: Op| (op, self.kernel.ops[op].loc);
        let key = (fault, missing, earlier, later);
        if self.findings.iter().any(|f| f.key() == key) {
            return;
        }
        let block = if self.start.last { "last" } else { "first" };
        let mut path = format!("warpgroup {} of the {block} block", self.start.warpgroup);
        for (op, turn) in &self.turns {
            let loc = self.kernel.ops[*op].loc;
            path += &match turn {
                Turn::Round(i) => format!(", round {i} of the loop at {loc}"),
                Turn::Arm(i) => format!(", arm {i} at {loc}"),
                Turn::Warp(w) => format!(", warp {w} at {loc}"),
            };
        }
        self.findings.push(Finding {
            fault,
            missing,
            earlier: earlier.map(at),
            later: at(later),
            text: format!("{text}\n  expected: {expected}\n  path: {path}"),
        });
    }
}

fn name(kernel: &Kernel, op: Op) -> String {
    let data = &kernel.ops[op];
    format!("{} ({})", data.kind.name(), data.loc)
}

/// `warp 2`, `the warpgroup`, …
fn names(warps: Behind) -> String {
    if warps & ALL_WARPS == ALL_WARPS {
        return "the warpgroup".into();
    }
    let list: Vec<String> = (0..4)
        .filter(|a| warps >> a & 1 == 1)
        .map(|a: u32| a.to_string())
        .collect();
    match list.len() {
        0 => "no warp".into(),
        1 => format!("warp {}", list[0]),
        _ => format!("warps {}", list.join(", ")),
    }
}
