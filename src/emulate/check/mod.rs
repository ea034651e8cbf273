//! The checker: which accesses to memory nothing orders, and what else the order of a kernel lacks.
//!
//! One door ([`Hooks`]), one clock ([`Clock`]: what somebody has seen), one shadow ([`Shadow`]: who touched a space's lines), one relation
//! ([`race`]). Barriers, fences and words of memory hand clocks on; against them hold:
//! * what a bulk load writes: from its issue on nobody touches it who has not waited for its barrier, or synchronised with somebody who has;
//! * a bulk load's issue: its destination was read, and written, only before it, with a proxy fence after the writes;
//! * what `wgmma` and bulk stores read: written before their issue, with a proxy fence in between, and not again until a wait covers them;
//! * ordinary loads and stores, to shared memory (a peer's, too) and to global memory: something orders a warp's load after another warp's
//!   store, a store after a load, and a store after one of another value (what memory holds just before decides). Atomics count as both, but
//!   do not race with each other;
//! * copies by threads (`cp.async`): from their issue until their own warp has waited for them, or somebody for the barrier on which they arrive,
//!   nobody touches their destination, or writes their source ([`small`]);
//! * an mbarrier's phase: does not complete before everybody who waits for the one before is known to have done so (a warp that is late
//!   would wait for the phase after it); and it is initialised before it is used, with `fence.mbarrier_init` before peers and the async proxy use it;
//! * tensor memory, and what its products and copies read of shared memory: complete before somebody else touches it ([`tensor`]);
//! * a tensor map in global memory: released by who changed it, and acquired by who uses it ([`maps`]);
//! * a CTA's shared memory: outlives its peers' accesses; a device's global memory: other devices' ([`across`]).
//!
//! A file has a theme: [`shared`], [`loads`] (what is asynchronous in shared memory), [`small`] and [`global`] hold accesses against the shadows,
//! [`barriers`] hands clocks on, [`words`] too, [`messages`] has all that is said. What the machine tells is in [`hooks`]; this room knows of the
//! machine what that says, and where memory lies. Lanes of one store are held against each other where stores are (`mem.rs`), clusters that
//! nothing orders in `grid.rs`.
//!
//! A finding changes nothing: what happens is noted all the same, so that a run may go on after it
//! ([`Check::Warn`](super::options::Check::Warn)). Whatever is reported is wrong, and not everything wrong is reported: a warp is one; a release on
//! an mbarrier counts at every scope, but for stores in peers' memory; and in global memory the scope of a CTA counts as its cluster's.
mod across;
mod barriers;
mod clock;
mod global;
mod hooks;
mod loads;
mod maps;
mod messages;
mod race;
mod shadow;
mod shared;
mod small;
mod tensor;
mod versions;
mod words;

pub use clock::View;
pub use hooks::*;
pub use tensor::{Cells, Issued, TensorWork, Touch, Touched};

use super::options::Names;
use super::shared::CtaSlot;
use crate::error::{Error, Loc};
use crate::ptx::modifier::{LoadSem, StoreSem, TmemAccess};
use across::{Across, Member};
use barriers::{Barrier, Fences, Handover};
use clock::{Clock, Knowledge};
use loads::Loads;
use maps::MapOrder;
use race::{Actor, Glance, Kind, SameEpoch, Side};
use rustc_hash::{FxHashMap, FxHashSet};
use shadow::{Columns, Shadow};
use std::rc::Rc;
use std::sync::Arc;
use versions::Versions;
use words::{SharedWord, Words};

/// The checker.
pub struct Checker {
    shape: Shape,
    names: Arc<Names>,
    /// Warps of a cluster, and components of its clocks.
    warps: usize,
    width: usize,
    /// By warp: what it has seen, and what its fences have.
    clocks: Vec<Rc<Clock>>,
    fences: Vec<Fences>,
    times: Times,
    ctas: Vec<Cta>,
    /// Per cluster: its barrier.
    clusters: Vec<Handover>,
    maps: MapOrder,
    /// Of lines of global memory.
    versions: Versions,
    /// Lines of global memory of the bulk stores that have not been waited for, by warp and the store's number.
    stores: FxHashMap<(usize, u64), Vec<u64>>,
    /// Lanes of the last access may have bytes in common; its words are counted.
    overlap: bool,
    counts: bool,
    /// Bulk loads issued.
    loads: u32,
    /// Per warp: the last landing of its copies by threads; and where there are such copies.
    arrived: Vec<u32>,
    small: FxHashSet<Loc>,
    /// What goes through words of shared memory that are polled.
    words: Words<SharedWord>,
    /// Of tensor memory, and the component of the first warp's actors there.
    tensor: tensor::State,
    tensor_actors: u32,
    /// Across clusters, where they communicate.
    across: Option<Box<Across>>,
}

/// What is remembered of a CTA.
struct Cta {
    shared: Shadow,
    global: Shadow,
    loads: Loads,
    barriers: FxHashMap<u32, Barrier>,
    named: [Option<Box<Handover>>; 16],
    /// Per warp of the cluster: the epoch of its last access from another CTA.
    visits: Vec<u32>,
    /// What its warps that have ended have seen.
    ended: Clock,
}

/// Epochs of a warp whose beginnings are remembered.
const REMEMBERED: usize = 32;

/// When what happened: time goes on when a warp begins to access memory in an epoch. All accesses up to some time may have been seen by a
/// warp, which saves a look at each.
struct Times {
    now: u32,
    /// Per warp: the last epochs in which it has accessed memory, and since when; and how many there were.
    begun: Vec<([(u32, u32); REMEMBERED], usize)>,
    /// Until when it has seen all that others of its CTA did; none: it may have seen more since then.
    until: Vec<Option<u32>>,
}

impl Times {
    fn new(warps: usize) -> Times {
        Times {
            now: 0,
            begun: vec![([(0, 0); REMEMBERED], 0); warps],
            until: vec![None; warps],
        }
    }

    /// A warp accesses memory in an epoch: since when it does.
    #[inline(always)]
    fn access(&mut self, warp: usize, epoch: u32) -> u32 {
        let (begun, count) = &mut self.begun[warp];
        let last = begun[count.wrapping_sub(1) % REMEMBERED];
        if last.0 == epoch {
            return last.1;
        }
        self.now += 1;
        begun[*count % REMEMBERED] = (epoch, self.now);
        *count += 1;
        self.now
    }

    /// When a warp began to access memory after an epoch, as far as that is remembered.
    fn begun_after(&self, warp: usize, epoch: u32) -> Option<u32> {
        let (begun, count) = &self.begun[warp];
        let last = (count.saturating_sub(REMEMBERED)..*count)
            .rev()
            .map(|i| begun[i % REMEMBERED]);
        let after = last.take_while(|(of, _)| *of > epoch).map(|(_, since)| since);
        match after.clone().count() {
            REMEMBERED => Some(1),
            _ => after.last(),
        }
    }
}

impl Checker {
    fn id(&self, who: Who) -> usize {
        (who.cta.0 * self.shape.warps_per_cta + who.index) as usize
    }

    /// The component of a warp.
    fn component(&self, who: Who) -> usize {
        (self.columns(who.cta).first + who.index) as usize
    }

    fn cluster_of(&self, slot: CtaSlot) -> usize {
        (slot.0 / self.shape.cluster_size) as usize
    }

    fn columns(&self, slot: CtaSlot) -> &Columns {
        &self.ctas[slot.0 as usize].shared.columns
    }

    fn cta(&mut self, slot: CtaSlot) -> &mut Cta {
        &mut self.ctas[slot.0 as usize]
    }

    /// For changes: the warp may have seen more then.
    fn clock(&mut self, id: usize) -> &mut Clock {
        self.times.until[id] = None;
        Rc::make_mut(&mut self.clocks[id])
    }

    /// What the warp did from now on has a new epoch.
    fn tick(&mut self, id: usize) {
        let own = id % self.warps;
        Rc::make_mut(&mut self.clocks[id]).tick(own);
    }

    /// The same if something that the warp has issued has not seen what it does now.
    #[inline(always)]
    fn part_from_views(&mut self, id: usize) {
        if Rc::strong_count(&self.clocks[id]) > 1 {
            self.tick(id);
        }
    }

    /// Until when a warp has seen all that others of its CTA did.
    #[inline(always)]
    fn seen_until(&mut self, id: usize) -> u32 {
        match self.times.until[id] {
            Some(until) => until,
            None => self.count_seen_until(id),
        }
    }

    #[inline(never)]
    fn count_seen_until(&mut self, id: usize) -> u32 {
        let per = self.shape.warps_per_cta as usize;
        let (times, seen) = (&self.times, self.clocks[id].seen());
        let others = (id / per * per..(id / per + 1) * per).filter(|other| *other != id);
        let unseen = others.filter_map(|other| times.begun_after(other, seen[other % self.warps]));
        let until = unseen.fold(times.now, |until, begun| until.min(begun - 1));
        self.times.until[id] = Some(until);
        until
    }

    /// An access of a warp now, in its epoch.
    #[inline(always)]
    fn same_epoch(&self, who: Who, kind: Kind, loc: Loc) -> SameEpoch {
        let component = self.component(who);
        SameEpoch {
            component: component as u32,
            kind,
            epoch: self.clocks[self.id(who)].seen()[component],
            loc,
        }
    }

    /// The side of a warp in an access now, having seen `seen`.
    #[inline(always)]
    fn side<'a>(&mut self, who: Who, kind: Kind, loc: Loc, seen: &'a Clock) -> Side<'a> {
        let (id, component) = (self.id(who), self.component(who));
        let until = self.seen_until(id);
        // What is asynchronous is looked at access by access.
        let now = match kind.is_async() || kind == Kind::Reduction {
            true => 0,
            false => self.times.access(id, self.clocks[id].seen()[component]),
        };
        let clock = self.clocks[id].seen();
        let landed = clock[self.columns(who.cta).loads as usize];
        Side {
            by: Actor::own(component as u32),
            kind,
            epoch: clock[component],
            loc,
            number: 0,
            seen,
            glance: Glance { landed, until, now },
        }
    }

    /// A warp uses the memory of a peer.
    fn visit(&mut self, who: Who, slot: CtaSlot) {
        if slot != who.cta {
            let own = self.component(who);
            let epoch = self.clocks[self.id(who)].seen()[own];
            self.cta(slot).visits[own] = epoch;
        }
    }

    /// The warp across clusters, where they communicate.
    fn member(&self, who: Who) -> Option<Member> {
        let across = self.across.as_ref()?;
        Some(across.member(who.cta, self.component(who) as u32, self.id(who)))
    }
}

fn warpgroups(shape: Shape) -> u32 {
    shape.warps_per_cta.div_ceil(4)
}

/// Components of a clock: warps, then CTAs for the loads that land there, then warpgroups for their products, then warps' actors in tensor memory.
fn columns(shape: Shape, slot: CtaSlot) -> Columns {
    let (rank, warps) = (slot.0 % shape.cluster_size, shape.cluster_size * shape.warps_per_cta);
    Columns {
        first: rank * shape.warps_per_cta,
        warps: shape.warps_per_cta,
        loads: warps + rank,
        products: warps + shape.cluster_size + rank * warpgroups(shape),
        warpgroups: warpgroups(shape),
    }
}

impl Hooks for Checker {
    const LISTENS: bool = true;

    fn new(shape: Shape, names: Arc<Names>) -> Checker {
        let warps = (shape.cluster_size * shape.warps_per_cta) as usize;
        let tensor_actors = warps + (shape.cluster_size * (1 + warpgroups(shape))) as usize;
        let width = tensor_actors + if shape.tensor { tensor::ACTORS * warps } else { 0 };
        let all = shape.clusters as usize * warps;
        let cta = |slot: u32| {
            let columns = columns(shape, CtaSlot(slot));
            let alone = Columns {
                warpgroups: 0,
                ..columns
            };
            Cta {
                shared: Shadow::new(columns, shape.smem_bytes.div_ceil(128) as usize),
                global: Shadow::new(alone, 0),
                loads: Loads::default(),
                barriers: FxHashMap::default(),
                named: Default::default(),
                visits: vec![0; warps],
                ended: Clock::new(width),
            }
        };
        Checker {
            across: shape.communicates.then(|| Box::new(Across::new(shape, names.clone()))),
            shape,
            names,
            warps,
            width,
            clocks: (0..all).map(|_| Rc::new(Clock::new(width))).collect(),
            fences: (0..all).map(|_| Fences::default()).collect(),
            times: Times::new(all),
            ctas: (0..shape.clusters * shape.cluster_size).map(cta).collect(),
            clusters: (0..shape.clusters).map(|_| Handover::new(width)).collect(),
            maps: MapOrder::default(),
            versions: Versions::new(shape.devices),
            stores: FxHashMap::default(),
            overlap: false,
            counts: false,
            loads: 0,
            arrived: vec![0; all],
            small: FxHashSet::default(),
            words: Words::default(),
            tensor: tensor::State::new((shape.clusters * shape.cluster_size) as usize, all),
            tensor_actors: tensor_actors as u32,
        }
    }

    fn cluster_starts(&mut self, cluster: u32, device: u32, id: [u32; 3]) {
        if let Some(across) = &mut self.across {
            across.cluster_starts(cluster as usize, device, id);
        }
        let size = self.shape.cluster_size as usize;
        let (first, slots) = (
            cluster as usize * self.warps,
            cluster as usize * size..(cluster as usize + 1) * size,
        );
        self.maps.forget(&(first..first + self.warps));
        self.stores
            .retain(|(warp, _), _| !(first..first + self.warps).contains(warp));
        let mut epochs: Vec<u32> = (0..self.warps).map(|i| self.clocks[first + i].seen()[i]).collect();
        epochs.extend(self.ctas[slots.clone()].iter().map(|cta| cta.loads.landed));
        epochs.resize(self.width, 0);
        for id in first..first + self.warps {
            self.clock(id).restart(&epochs);
            self.tick(id);
            self.fences[id] = Fences::default();
            self.arrived[id] = 0;
        }
        self.words.clear(&slots);
        self.tensor.clear(slots.clone(), first..first + self.warps);
        for cta in &mut self.ctas[slots] {
            cta.shared.clear();
            cta.global.clear();
            cta.loads.clear();
            cta.barriers.clear();
            cta.named = Default::default();
            cta.visits.fill(0);
            cta.ended.clear();
        }
        self.clusters[cluster as usize] = Handover::new(self.width);
    }

    fn warp_ends(&mut self, who: Who) {
        let clock = Rc::clone(&self.clocks[self.id(who)]);
        self.cta(who.cta).ended.join(&clock);
        if let (Some(member), Some(across)) = (self.member(who), &mut self.across) {
            across.warp_ends(member, &clock);
        }
    }

    fn device_ends(&mut self, device: u32) -> Verdict {
        self.across.as_mut().map_or(Ok(()), |across| across.device_ends(device))
    }

    fn last_signal(&self, address: u64) -> Option<String> {
        self.across.as_ref().map(|across| across.last_signal(address))
    }

    fn leftovers(&self, word: &dyn Fn(u64) -> u32) -> Vec<Error> {
        self.across.as_ref().map_or(vec![], |across| across.leftovers(word))
    }

    fn cta_ends(&mut self, slot: CtaSlot) -> Verdict {
        let cta = &self.ctas[slot.0 as usize];
        let late = cta
            .visits
            .iter()
            .zip(cta.ended.seen())
            .position(|(visit, seen)| visit > seen);
        late.map_or(Ok(()), |component| Err(self.ended_early(component, slot)))
    }

    fn view(&mut self, who: Who) -> View {
        let id = self.id(who);
        if self.clocks[id].loads_before() != self.loads {
            Rc::make_mut(&mut self.clocks[id]).set_loads_before(self.loads);
        }
        Some(Rc::clone(&self.clocks[id]))
    }

    #[inline(always)]
    fn memory(&mut self, who: Who, access: Access<'_>) -> Verdict {
        let is_ordered = !matches!(
            access.mode,
            Mode::Load(LoadSem::Weak) | Mode::Store(StoreSem::Weak) | Mode::SmallRead | Mode::SmallWrite
        );
        match access.range {
            Range::SharedLanes {
                addresses,
                offset,
                mask,
            } => {
                if is_ordered {
                    self.observe_words(who, (addresses, offset, mask), access);
                }
                let verdict = self.shared_lanes(who, (addresses, offset, mask), access);
                if is_ordered || !self.words.is_empty() {
                    self.release_words(who, (addresses, offset, mask), access);
                }
                verdict
            }
            Range::GlobalLanes {
                addresses,
                offset,
                mask,
            } => {
                let verdict = self.global_lanes(who, addresses, offset, mask, access);
                if is_ordered {
                    self.at_words(who, addresses, offset, mask, access);
                }
                verdict
            }
            Range::Shared { .. } | Range::Lines { .. } | Range::Global { .. } => Ok(()),
        }
    }

    #[inline(always)]
    fn lanes_may_overlap(&self) -> bool {
        self.overlap
    }

    #[inline(always)]
    fn counts_words(&self) -> bool {
        self.counts
    }

    fn async_memory(&mut self, who: Who, view: &View, access: Access<'_>) -> Verdict {
        let Some(view) = view else { return Ok(()) };
        self.async_access(who, view, access)
    }

    fn map_named(&mut self, who: Who, address: u64) {
        self.name_map(who, address >> 7);
    }

    fn map_used(&mut self, who: Who, address: u64) -> Verdict {
        self.use_map(who, address >> 7)
    }

    fn map_is_own(&self, who: Who, address: u64) -> bool {
        self.has_written_map(who, address >> 7)
    }

    fn load_issued(&mut self, who: Who, view: &View, landing: Landing) -> Verdict {
        let Some(view) = view else { return Ok(()) };
        self.issue_load(who, view, landing)
    }

    fn load_landed(&mut self, landing: Landing) {
        self.land_load(landing);
    }

    fn load_done(&mut self, who: Who) {
        if let (Some(member), Some(across)) = (self.member(who), &mut self.across) {
            across.load_done(member);
        }
    }

    fn store_waited(&mut self, who: Who, number: u64) {
        self.settle_store(who, number);
    }

    fn tensor_touched(&mut self, who: Who, touch: Touch) -> Verdict {
        self.touch_tensor(who, touch)
    }

    fn tensor_waited(&mut self, who: Who, what: TmemAccess) {
        self.wait_tensor(who, what);
    }

    fn tensor_issued(&mut self, who: Who, view: &View, work: TensorWork<'_>) -> Issued {
        self.issue_tensor(who, view, work)
    }

    fn tensor_committed(&mut self, who: Who, loc: Loc, targets: &[(CtaSlot, u32)]) -> Issued {
        self.commit_tensor(who, loc, targets)
    }

    fn tensor_arrives(&mut self, who: Who, view: &View, number: u32, at: (CtaSlot, u32)) {
        self.arrive_tensor(who, view, number, at);
    }

    fn small_copies_arrive(&mut self, who: Who, slot: CtaSlot, offset: u32) -> u32 {
        self.arrive_small_copies(who, slot, offset)
    }

    fn small_copies_end(&mut self, who: Who, copies: SmallCopies<'_>, landing: Option<u32>) -> Verdict {
        self.end_small_copies(who, copies, landing)
    }

    fn small_copies_waited(&mut self, who: Who) {
        self.wait_for_small_copies(who);
    }

    fn sync(&mut self, who: Who, event: Sync) -> Verdict {
        self.synchronise(who, event)
    }

    fn phase_completes(&mut self, slot: CtaSlot, offset: u32) -> Verdict {
        self.complete_phase(slot, offset)
    }

    fn cluster_opens(&mut self, cluster: u32) {
        self.clusters[cluster as usize].open();
    }
}
