//! What happened before what, on one path of one warpgroup.
//!
//! Vector clocks, read from the other end: instead of a clock for each warp there is, for each access that somebody may yet
//! collide with, the set of warps whose *present* lies behind it ([`Behind`]). A barrier adds its warps to the set of every
//! access that one of them is behind; nothing else moves order from warp to warp. An asynchronous access is an actor of its own:
//! nobody is behind it before a wait that covers it, and then those who waited.
//!
//! Assumed of the machine: the accesses that one warp makes to one address happen in the order of its program, whichever of
//! its lanes make them. PTX promises that for one lane; shared memory serves a warp's instructions in order, which `stmatrix`
//! followed by ordinary loads relies on throughout. A wait by a warp counts for all of its lanes.
use super::bytes::{Bytes, Foot, Space, has_owners};
use super::finding::{Fault, Finding, Missing};
use super::scalars::Val;
use crate::kernel_ir::{Alloc, AllocKind, AtomicOp, Kernel, Op, Value, WaitScope};
use crate::layout::assignment::Assignment;
use rustc_hash::FxHashMap;

/// A set of warps of the warpgroup; bit 4 stands for all other warpgroups of the block.
pub type Behind = u8;
pub const ALL_WARPS: Behind = 0b1111;
pub const OTHERS: Behind = 0b1_0000;

/// What an access does, and through which door.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
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

/// Who executes an op.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Actor {
    /// The warps that are here: all four, one in a warp region, the first in a feeding loop.
    pub warps: Behind,
    /// The warp region's number, if this is one: its warps run apart, and only their own accesses are in program order.
    pub apart: Option<u32>,
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
    fn may_be(self, other: BarrierKey) -> bool {
        let apart = matches!((self.index, other.index), (Val::Int(a), Val::Int(b)) if a != b);
        self.alloc == other.alloc && !apart
    }
}

/// What ends an asynchronous access.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Completion {
    /// At once.
    Done,
    /// A phase.
    Mbarrier(BarrierKey),
    /// The issuing warp's commit group of this number.
    BulkGroup(u32),
    MmaGroup(u32),
}

/// An access to bytes.
struct Access {
    op: Op,
    what: What,
    foot: Foot,
    /// The value whose layout says which warp touches what.
    value: Option<Value>,
    actor: Actor,
    /// How often the allocation's scope had been entered: another number is other memory.
    life: u32,
    completion: Completion,
    /// For each warp of the actor: who is behind its part.
    behind: [Behind; 4],
    /// Who is behind a proxy fence that is behind it.
    fenced: [Behind; 4],
    /// Whether the kernel has committed it since.
    committed: bool,
    /// The warp region in which somebody waited for it, the first to do so.
    waited_in: Option<u32>,
}

/// A wait that not every warp, or each warp by itself, has gone through.
struct Waited {
    op: Op,
    actor: Actor,
    barrier: Option<BarrierKey>,
    behind: [Behind; 4],
}

/// Accesses of one path that later ones may collide with.
pub struct History<'a> {
    kernel: &'a Kernel,
    assignment: &'a Assignment,
    pub bytes: Bytes,
    accesses: Vec<Access>,
    waited: Vec<Waited>,
    /// Commit groups of each warp, and wgmma groups.
    bulk_groups: [u32; 4],
    mma_groups: u32,
    /// Entries of the scope that owns an allocation (a union for its members).
    lives: FxHashMap<Alloc, u32>,
    /// Device arrays that copies touch: stores to them wait for a fence.
    copied: Vec<Alloc>,
    /// Whether some bytes have several owners in turn.
    reuse: bool,
    /// The block has met since anything else happened.
    met: bool,
    automatic: bool,
    /// Where the path began, and the turns that it has taken to where it is.
    pub start: String,
    pub turns: Vec<(Op, Turn)>,
    pub findings: Vec<Finding>,
}

/// A choice of the path's that still holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Turn {
    Round(u64),
    Arm(usize),
    Warp(u32),
}

impl<'a> History<'a> {
    /// `copied`: device arrays that copies touch. `reuse`: some bytes have several owners in turn.
    pub fn new(kernel: &'a Kernel, assignment: &'a Assignment, copied: Vec<Alloc>, reuse: bool) -> History<'a> {
        History {
            kernel,
            assignment,
            bytes: Bytes::default(),
            accesses: vec![],
            waited: vec![],
            bulk_groups: [0; 4],
            mma_groups: 0,
            lives: FxHashMap::default(),
            copied,
            reuse,
            met: false,
            automatic: !kernel.compiler_params.unsafe_no_auto_barriers,
            start: String::new(),
            turns: vec![],
            findings: vec![],
        }
    }

    /// Another path begins.
    pub fn restart(&mut self, start: String) {
        self.accesses.clear();
        self.waited.clear();
        self.bulk_groups = [0; 4];
        self.mma_groups = 0;
        self.lives.clear();
        self.met = false;
        self.start = start;
        self.turns.clear();
    }

    fn root(&self, alloc: Alloc) -> Alloc {
        self.kernel.allocs[alloc].within.map_or(alloc, |w| w.union)
    }
    fn life(&self, alloc: Alloc) -> u32 {
        self.lives.get(&self.root(alloc)).copied().unwrap_or(0)
    }

    // ------------------------------------------------------------ order

    /// All of these warps have met. `block`: with those of the other warpgroups.
    pub fn join(&mut self, actor: Actor, block: bool) {
        self.met = block;
        if !actor.is_whole() {
            return;
        }
        let group = if block { ALL_WARPS | OTHERS } else { ALL_WARPS };
        for access in &mut self.accesses {
            if block && matches!(access.completion, Completion::Mbarrier(_)) {
                // Who waits for a load may be another warpgroup: that protocol is the kernel's.
                access.behind[access.actor.warps.trailing_zeros() as usize] |= group;
            }
            for set in access.behind.iter_mut().chain(&mut access.fenced) {
                if *set & ALL_WARPS != 0 {
                    *set |= group;
                }
            }
        }
        for wait in &mut self.waited {
            for set in &mut wait.behind {
                if *set & ALL_WARPS != 0 {
                    *set |= group;
                }
            }
        }
        self.retire();
    }

    /// Forgets what nothing can collide with any more.
    fn retire(&mut self) {
        let needed = if self.kernel.num_warpgroups > 1 {
            ALL_WARPS | OTHERS
        } else {
            ALL_WARPS
        };
        let done = |actor: Actor, sets: &[Behind; 4], needed: Behind| {
            (0..4).all(|a| actor.warps >> a & 1 == 0 || sets[a] & needed == needed)
        };
        let (bytes, copied, reuse) = (&self.bytes, &self.copied, self.reuse);
        self.accesses.retain(|x| {
            let foot = bytes.get(x.foot);
            let copies = foot.space == Space::Shared || copied.contains(&foot.alloc);
            let plain_write = x.what.writes() && !x.what.is_asynchronous();
            let fences = copies && plain_write && !done(x.actor, &x.fenced, ALL_WARPS);
            let needed = if reuse && foot.space == Space::Shared {
                needed
            } else {
                ALL_WARPS
            };
            fences || !done(x.actor, &x.behind, needed)
        });
        self.waited.retain(|x| !done(x.actor, &x.behind, ALL_WARPS));
    }

    /// These warps announce to the async proxy what they are behind of in this memory. `commits`: as the kernel says.
    pub fn fence(&mut self, actor: Actor, space: Space, commits: bool) {
        self.met = false;
        for access in &mut self.accesses {
            if self.bytes.get(access.foot).space != space {
                continue;
            }
            access.committed |= commits;
            for a in 0..4 {
                access.fenced[a] |= access.behind[a] & actor.warps;
            }
        }
    }

    pub fn commit_group(&mut self, actor: Actor) {
        self.met = false;
        self.bulk_groups[actor.leader().warps.trailing_zeros() as usize] += 1;
    }

    pub fn wait_bulk_stores(&mut self, actor: Actor, n: u32, scope: WaitScope) {
        self.met = false;
        for access in &mut self.accesses {
            let Completion::BulkGroup(group) = access.completion else {
                continue;
            };
            let issuer = access.actor.warps.trailing_zeros() as usize;
            let waits = actor.warps & access.actor.warps;
            let covers = access.what == What::StoreRead || scope == WaitScope::Complete;
            if covers && group + n < self.bulk_groups[issuer] {
                access.behind[issuer] |= waits;
                access.waited_in = actor.apart;
            }
        }
    }

    pub fn wait_mma(&mut self, actor: Actor, n: u32) {
        self.met = false;
        for access in &mut self.accesses {
            if let Completion::MmaGroup(group) = access.completion
                && group + n < self.mma_groups
            {
                for a in 0..4 {
                    access.behind[a] |= actor.warps & 1 << a;
                }
            }
        }
    }

    /// Each of these warps has waited for an mbarrier.
    pub fn wait_barrier(&mut self, op: Op, actor: Actor, key: BarrierKey) {
        self.met = false;
        self.others_have_waited(op, actor, |wait| wait.barrier.is_some_and(|b| b.may_be(key)));
        for access in &mut self.accesses {
            if let Completion::Mbarrier(of) = access.completion
                && of.may_be(key)
            {
                let behind = &mut access.behind[access.actor.warps.trailing_zeros() as usize];
                if *behind == 0 {
                    access.waited_in = actor.apart;
                }
                *behind |= actor.warps;
            }
        }
        self.add_wait(op, actor, Some(key));
    }

    /// Each of these warps arrives on an mbarrier: in no phase that one of them alone has yet to see.
    pub fn arrive(&mut self, op: Op, actor: Actor, key: BarrierKey) {
        self.others_have_waited(op, actor, |wait| wait.barrier.is_some_and(|b| b.may_be(key)));
    }

    /// These warps have waited for a semaphore.
    pub fn wait_semaphore(&mut self, op: Op, actor: Actor) {
        self.met = false;
        if !actor.is_whole() {
            self.add_wait(op, actor, None);
        }
    }

    fn add_wait(&mut self, op: Op, actor: Actor, barrier: Option<BarrierKey>) {
        let mut behind = [0; 4];
        for (a, set) in behind.iter_mut().enumerate() {
            *set = actor.warps & 1 << a;
        }
        self.waited.retain(|w| w.op != op || w.actor != actor);
        self.waited.push(Waited {
            op,
            actor,
            barrier,
            behind,
        });
    }

    // ------------------------------------------------------------ control

    /// A scope begins: its allocations are new memory.
    pub fn enter(&mut self, op: Op, allocs: &[Alloc], must_meet: bool) {
        for alloc in allocs {
            *self.lives.entry(*alloc).or_default() += 1;
        }
        if must_meet && !self.met {
            let text = "a collective scope begins before all warpgroups of the block have met";
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

    /// One warp speaks for its warpgroup: what the others did must be behind it.
    pub fn releases_for_all(&mut self, op: Op, actor: Actor) {
        self.met = false;
        if actor.is_whole() || !self.automatic {
            return;
        }
        let mut found = vec![];
        for x in &self.accesses {
            let apart = x.actor.apart.is_some() && x.actor.apart == actor.apart;
            let foot = self.bytes.get(x.foot);
            let counts = match foot.space {
                Space::Shared => !matches!(x.what, What::LoadWrite | What::LoadRead),
                Space::Device => matches!(x.what, What::Write | What::Atomic(_)),
            };
            let lacks = (0..4).find(|&a| {
                let started = !x.what.is_asynchronous() || x.behind[a] & ALL_WARPS != 0;
                x.actor.warps >> a & 1 == 1 && started && x.behind[a] & actor.warps == 0
            });
            if let Some(a) = lacks.filter(|_| counts && !apart) {
                let text = format!(
                    "{} announces, for its whole warpgroup, that {} are free or ready, which warp {a} {} at {}",
                    names(actor.warps),
                    foot.text(self.kernel),
                    x.what.verb(),
                    self.name(x.op),
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

    /// An access by the lanes of these warps.
    pub fn touch(&mut self, op: Op, actor: Actor, what: What, foot: Foot, value: Option<Value>) {
        self.check(op, actor, what, foot, value);
        let mut behind = [0; 4];
        for (a, set) in behind.iter_mut().enumerate() {
            *set = actor.warps & 1 << a;
        }
        self.add(op, actor, what, foot, value, Completion::Done, behind);
    }

    /// A bulk load begins. `device`: none where nobody writes.
    pub fn load(&mut self, op: Op, actor: Actor, device: Option<Foot>, shared: Foot, barrier: Option<BarrierKey>) {
        let issuer = actor.leader();
        self.waits_are_over(op, issuer);
        let completion = barrier.map_or(Completion::Done, Completion::Mbarrier);
        let parts = [(What::LoadRead, device), (What::LoadWrite, Some(shared))];
        for (what, foot) in parts.iter().filter_map(|&(what, foot)| Some((what, foot?))) {
            self.check(op, issuer, what, foot, None);
        }
        for (what, foot) in parts.iter().filter_map(|&(what, foot)| Some((what, foot?))) {
            self.add(op, issuer, what, foot, None, completion, [0; 4]);
        }
    }

    /// A bulk store begins.
    pub fn store(&mut self, op: Op, actor: Actor, shared: Foot, device: Foot) {
        let issuer = actor.leader();
        self.check(op, issuer, What::StoreRead, shared, None);
        self.check(op, issuer, What::StoreWrite, device, None);
        let group = Completion::BulkGroup(self.bulk_groups[issuer.warps.trailing_zeros() as usize]);
        self.add(op, issuer, What::StoreRead, shared, None, group, [0; 4]);
        self.add(op, issuer, What::StoreWrite, device, None, group, [0; 4]);
    }

    /// A wgmma begins, which reads these operands.
    pub fn mma(&mut self, op: Op, actor: Actor, operands: &[Foot]) {
        for &foot in operands {
            self.check(op, actor, What::MmaRead, foot, None);
        }
        let group = Completion::MmaGroup(self.mma_groups);
        self.mma_groups += 1;
        for &foot in operands {
            self.add(op, actor, What::MmaRead, foot, None, group, [0; 4]);
        }
    }

    fn add(
        &mut self,
        op: Op,
        actor: Actor,
        what: What,
        foot: Foot,
        value: Option<Value>,
        completion: Completion,
        behind: [Behind; 4],
    ) {
        self.met = false;
        // The same again: it is ordered before less than the one before.
        self.accesses
            .retain(|x| !(x.op == op && x.what == what && x.foot == foot && x.actor.warps == actor.warps));
        let life = self.life(self.bytes.get(foot).alloc);
        self.accesses.push(Access {
            op,
            what,
            foot,
            value,
            actor,
            life,
            completion,
            behind,
            fenced: [0; 4],
            committed: false,
            waited_in: None,
        });
    }

    /// A bulk load completes phases, and arms others: no warp may still have to see an older one.
    fn waits_are_over(&mut self, op: Op, issuer: Actor) {
        if !self.automatic {
            return;
        }
        let late = self.waited.iter().find_map(|w| {
            let late = (0..4).find(|&a| w.actor.warps >> a & 1 == 1 && w.behind[a] & issuer.warps == 0)?;
            (w.actor.is_whole()).then_some((w.op, late))
        });
        if let Some((wait, late)) = late {
            let text = format!(
                "{} at {} may complete a phase that warp {late} still has to see at {}: that warp then waits for ever",
                names(issuer.warps),
                self.name(op),
                self.name(wait),
            );
            let what = "a warpgroup barrier between the wait and the load";
            self.report(Fault::Compiler, Missing::Barrier, Some(wait), op, text, what);
        }
    }

    /// A wait that one warp made for its warpgroup: the others are to be ordered behind it.
    fn others_have_waited(&mut self, op: Op, actor: Actor, of: impl Fn(&Waited) -> bool) {
        if !self.automatic {
            return;
        }
        let missed = self.waited.iter().find_map(|w| {
            let behind = w.behind.iter().fold(0, |all, set| all | set);
            let apart = w.actor.apart.is_some() && w.actor.apart == actor.apart;
            let late = actor.warps & !behind;
            (!w.actor.is_whole() && !apart && late != 0 && of(w)).then_some((w.op, w.actor.warps, late))
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
    fn check(&mut self, op: Op, actor: Actor, what: What, foot: Foot, value: Option<Value>) {
        let space = self.bytes.get(foot).space;
        self.others_have_waited(op, actor, |_| true);
        let mut found = vec![];
        for i in 0..self.accesses.len() {
            if let Some(one) = self.collide(i, actor, what, foot, value) {
                found.push((self.accesses[i].op, one));
            }
        }
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

    fn collide(
        &mut self,
        i: usize,
        actor: Actor,
        what: What,
        foot: Foot,
        value: Option<Value>,
    ) -> Option<(Fault, Missing, String)> {
        let old = &self.accesses[i];
        let same_atomic = matches!((old.what, what), (What::Atomic(a), What::Atomic(b)) if a == b);
        if !(old.what.writes() || what.writes()) || same_atomic {
            return None;
        }
        // Warps of one region run apart: only what one of them does is in order.
        if old.actor.apart.is_some() && old.actor.apart == actor.apart && old.actor.warps & actor.warps == 0 {
            return None;
        }
        if !self.bytes.overlap(old.foot, foot) {
            return None;
        }
        let old = &self.accesses[i];
        let (was, is) = (self.bytes.get(old.foot), self.bytes.get(foot));
        let (alloc, old_alloc, space) = (is.alloc, was.alloc, is.space);
        let reused =
            space == Space::Shared && (self.root(old_alloc) != self.root(alloc) || old.life != self.life(alloc));
        if reused && !what.writes() {
            return None; // what was there before a scope began is nobody's
        }
        let place = is.text(self.kernel);
        let before = format!("{place}, which {} {}", self.name(old.op), old.what.verb());
        let waited = old.behind.iter().any(|set| *set & ALL_WARPS != 0);

        if old.what.is_asynchronous() && !waited {
            let fault = match old.what {
                // The kernel's own protocol, perhaps with another warpgroup.
                What::LoadWrite | What::LoadRead => return None,
                What::StoreWrite if what == What::StoreWrite => return None,
                What::StoreRead | What::StoreWrite if reused => Fault::Compiler,
                What::StoreRead | What::StoreWrite => Fault::User,
                // "When a wgmma returns, no older one is still running."
                What::MmaRead if reused || old.completion != Completion::MmaGroup(self.mma_groups - 1) => {
                    Fault::Compiler
                }
                What::MmaRead => Fault::User,
                What::Read | What::Write | What::Atomic(_) => return None,
            };
            if fault == Fault::Compiler && !self.automatic && !reused {
                return None;
            }
            return Some((fault, Missing::Wait, format!("{before} and may still be doing so")));
        }
        if old.waited_in.is_some() && old.waited_in == actor.apart {
            return None; // one warp of the region would have to tell the other
        }
        let demanded = self.automatic || reused || old.what == What::StoreRead && what.writes();
        if !demanded {
            return None;
        }
        let mut pairs: Vec<(usize, usize)> = (0..4)
            .flat_map(|a| (0..4).map(move |b| (a, b)))
            .filter(|&(a, b)| old.actor.warps >> a & 1 == 1 && actor.warps >> b & 1 == 1)
            .collect();
        let unannounced = what.is_asynchronous() && old.what.writes() && !old.what.is_asynchronous();
        let is_late = |old: &Access, &(a, b): &(usize, usize)| old.behind[a] >> b & 1 == 0;
        let is_unfenced = |old: &Access, &(a, b): &(usize, usize)| unannounced && old.fenced[a] >> b & 1 == 0;
        if pairs.iter().any(|pair| is_late(old, pair) || is_unfenced(old, pair)) {
            pairs = self.owners_meet(i, what, foot, value, pairs);
        }
        let old = &self.accesses[i];
        let users_fence = !reused && matches!(what, What::StoreRead | What::MmaRead);
        if let Some((a, b)) = pairs.iter().find(|pair| is_late(old, pair)) {
            let who = if old.what.is_asynchronous() {
                let waiters = old.behind.iter().fold(0, |all, set| all | set);
                format!(
                    "{before}; {} has waited for that, and nothing orders warp {b} behind it",
                    names(waiters)
                )
            } else {
                format!("{before}; nothing orders warp {a} there before warp {b} here")
            };
            let fault = if unannounced && users_fence && !old.committed {
                Fault::User
            } else {
                Fault::Compiler
            };
            return Some((fault, Missing::Barrier, who));
        }
        if unannounced && self.automatic {
            if pairs.iter().any(|pair| is_unfenced(old, pair)) {
                // JAX has an op that announces to tensor cores and bulk stores what they read, and no other.
                let fault = if space == Space::Shared && users_fence {
                    Fault::User
                } else {
                    Fault::Compiler
                };
                return Some((fault, Missing::Fence, format!("{before} through the other proxy")));
            }
        }
        let collective = |alloc: Alloc| self.kernel.allocs[alloc].collective;
        if reused && self.kernel.num_warpgroups > 1 && (collective(old_alloc) || collective(alloc)) {
            let here = pairs.iter().all(|&(a, _)| old.behind[a] & OTHERS != 0);
            if !here {
                let text = format!("{before} in an earlier life; other warpgroups may not have come so far");
                return Some((Fault::Compiler, Missing::BlockBarrier, text));
            }
        }
        None
    }

    /// Of these pairs of warps those that touch a common byte, when each lane's part is known.
    fn owners_meet(
        &mut self,
        i: usize,
        what: What,
        foot: Foot,
        value: Option<Value>,
        pairs: Vec<(usize, usize)>,
    ) -> Vec<(usize, usize)> {
        let (old_foot, old_value) = (self.accesses[i].foot, self.accesses[i].value);
        // Of several copies of an element one is stored, by a warp that holds it.
        let part_of = |what: What, foot: Foot, value: Option<Value>| match what {
            What::Read => value,
            _ => value.filter(|_| self.has_bytes(foot)),
        };
        let (x, y) = (
            part_of(self.accesses[i].what, old_foot, old_value),
            part_of(what, foot, value),
        );
        let layout = |v: Option<Value>| v.and_then(|v| self.assignment.values[v].as_ref());
        if let (Some(a), Some(b)) = (layout(x), layout(y))
            && self.bytes.same_pattern(old_foot, foot)
            && self.has_bytes(foot)
            && a == b
            && has_owners(a)
        {
            return vec![];
        }
        let (bytes, assignment) = (&mut self.bytes, self.assignment);
        pairs
            .into_iter()
            .filter(|&(a, b)| bytes.warps_meet(assignment, (old_foot, x, a), (foot, y, b)))
            .collect()
    }

    /// Whether elements share no byte.
    fn has_bytes(&self, foot: Foot) -> bool {
        match &self.kernel.allocs[self.bytes.get(foot).alloc].kind {
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
        let data = &self.kernel.ops[op];
        format!("{} ({})", data.kind.name(), data.loc)
    }

    fn report(&mut self, fault: Fault, missing: Missing, earlier: Option<Op>, later: Op, text: String, expected: &str) {
        let at = |op: Op| (op, self.kernel.ops[op].loc);
        let key = (fault, missing, earlier, later);
        if self.findings.iter().any(|f| f.key() == key) {
            return;
        }
        let mut path = self.start.clone();
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
        0 => "nobody".into(),
        1 => format!("warp {}", list[0]),
        _ => format!("warps {}", list.join(", ")),
    }
}
