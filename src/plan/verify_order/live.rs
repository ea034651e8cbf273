//! Accesses of one path that later ones may collide with, found by the bytes that they touch.
//!
//! However long the path, a new access is held against those few that are live in its bytes: each is listed at its footprint, and each
//! footprint lists those that it overlaps. An access leaves when every warp is behind it, or when a later one stands for it.
use super::bytes::{Bytes, Cell, FootprintId};
use super::clock::{ALL_WARPS, Behind, Clock, Moment};
use super::history::{Actor, BarrierKey, What};
use super::scalars::Val;
use crate::kernel_ir::{Alloc, Op, Value};
use rustc_hash::FxHashMap;

/// What ends an access.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Completion {
    /// It is over with its op.
    Done,
    /// A phase.
    Mbarrier(BarrierKey),
    /// The issuing warp's commit group of this number.
    BulkGroup(u32),
    MmaGroup(u32),
}

/// Where else than in its cells an access is listed.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Lists {
    recent: bool,
    /// Some warp has not waited for it.
    pub open: bool,
    slot: Option<(Alloc, Val)>,
}

/// An access to bytes.
#[derive(Clone, Copy, PartialEq)]
pub struct Access {
    pub op: Op,
    pub what: What,
    pub footprint: FootprintId,
    /// The value by whose layout each warp touches its part.
    pub value: Option<Value>,
    /// The layout's number.
    layout: Option<u32>,
    pub actor: Actor,
    /// How often the allocation's scope had been entered: another number is other memory.
    pub life: u32,
    pub completion: Completion,
    pub made: Moment,
    /// For each warp of the actor: the warps that are behind its part without a barrier, and since when.
    own: [(Behind, Moment); 4],
    /// A refill of its slot that was issued behind it has been waited for.
    pub refilled: bool,
    /// The warp region in which a warp waited for it first.
    pub waited_in: Option<u32>,
    gone: bool,
    /// As [`Live::listed`] has seen it.
    pub lists: Lists,
}

impl Access {
    /// The warps behind warp `a`'s part.
    pub fn behind(&self, clock: &Clock, a: usize) -> Behind {
        let (own, since) = self.own[a];
        let refilled = if self.refilled { ALL_WARPS } else { 0 };
        clock.spread(own, since) | refilled
    }

    /// The warps behind any part.
    pub fn behind_any(&self, clock: &Clock) -> Behind {
        (0..4).fold(0, |all, a| all | self.behind(clock, a))
    }

    /// Whether all of these are behind every part.
    pub fn is_behind(&self, clock: &Clock, needed: Behind) -> bool {
        (0..4).all(|a| self.actor.warps >> a & 1 == 0 || self.behind(clock, a) & needed == needed)
    }

    /// These warps have waited for warp `a`'s part.
    fn wait(&mut self, a: usize, warps: Behind, now: Moment) {
        let (own, since) = &mut self.own[a];
        if *own == 0 {
            *since = now;
        }
        *own |= warps;
    }

    /// The moments that anything is compared with.
    pub fn moments(&mut self) -> impl Iterator<Item = &mut Moment> {
        self.own.iter_mut().map(|(_, since)| since).chain([&mut self.made])
    }

    fn issuer(&self) -> usize {
        self.actor.warps.trailing_zeros() as usize
    }
}

#[derive(Default)]
pub struct Live {
    all: Vec<Access>,
    /// Those that were live at the last query, and later ones.
    alive: Vec<u32>,
    /// What is live at each footprint.
    at: Vec<Vec<u32>>,
    /// The footprints that each one has a byte in common with.
    overlaps: Vec<Vec<FootprintId>>,
    /// Those that are in a cell.
    cells: FxHashMap<Cell, Vec<FootprintId>>,
    /// Those that some warp has not waited for yet, and their issuers.
    loads: FxHashMap<Alloc, Vec<u32>>,
    stores: Vec<u32>,
    mmas: Vec<u32>,
    /// Those that were made or waited for since the last barrier of the warpgroup.
    recent: Vec<u32>,
    /// Those that came before the next refill of the slot that they are in.
    in_slots: FxHashMap<(Alloc, Val), Vec<u32>>,
}

impl Live {
    /// Another path begins.
    pub fn clear(&mut self) {
        self.all.clear();
        self.alive.clear();
        self.at.iter_mut().for_each(Vec::clear);
        self.loads.clear();
        self.stores.clear();
        self.mmas.clear();
        self.recent.clear();
        self.in_slots.clear();
    }

    pub fn get(&self, i: u32) -> &Access {
        &self.all[i as usize]
    }

    /// Finds out what new footprints overlap, up to this one.
    fn register(&mut self, bytes: &Bytes, footprint: FootprintId) {
        while self.overlaps.len() <= footprint.number() {
            let new = FootprintId::from_number(self.overlaps.len());
            let mut near = vec![];
            for cell in bytes.cells(new) {
                let others = self.cells.entry(cell).or_default();
                others.push(new);
                near.extend_from_slice(others);
            }
            near.sort_unstable();
            near.dedup();
            near.retain(|other| bytes.overlap(new, *other));
            for other in near.iter().filter(|other| **other != new) {
                self.overlaps[other.number()].push(new);
            }
            self.overlaps.push(near);
            self.at.push(vec![]);
        }
    }

    /// An access begins. `layout`: the number of its value's layout; `slot`: that it lies in, before the next refill of that.
    #[allow(clippy::too_many_arguments)]
    pub fn add(
        &mut self,
        bytes: &Bytes,
        now: Moment,
        (op, what, footprint, value): (Op, What, FootprintId, Option<Value>),
        layout: Option<u32>,
        actor: Actor,
        life: u32,
        completion: Completion,
        slot: Option<(Alloc, Val)>,
    ) {
        let done = completion == Completion::Done;
        let mut own = [(0, now); 4];
        for (a, set) in own.iter_mut().enumerate().filter(|_| done) {
            set.0 = actor.warps & 1 << a;
        }
        let i = self.all.len() as u32;
        self.register(bytes, footprint);
        let here = &mut self.at[footprint.number()];
        // The later one stands for an earlier one of the same op, or by the same warps to the same bytes, laid out alike, all at once.
        here.retain(|&j| {
            let old = &mut self.all[j as usize];
            let again = old.op == op && old.actor.warps == actor.warps;
            let alike = || old.layout == layout && old.actor == actor && old.life == life;
            old.gone |= old.what == what && (again || done && old.completion == Completion::Done && alike());
            !old.gone
        });
        here.push(i);
        self.all.push(Access {
            op,
            what,
            footprint,
            value,
            layout,
            actor,
            life,
            completion,
            made: now,
            own,
            refilled: false,
            waited_in: None,
            gone: false,
            lists: Lists::default(),
        });
        match completion {
            Completion::Done => {}
            Completion::Mbarrier(key) => self.loads.entry(key.alloc).or_default().push(i),
            Completion::BulkGroup(_) => self.stores.push(i),
            Completion::MmaGroup(_) => self.mmas.push(i),
        }
        self.alive.push(i);
        self.recent.push(i);
        if let Some(slot) = slot {
            self.in_slots.entry(slot).or_default().push(i);
        }
    }

    /// Live accesses to bytes of a footprint, oldest first. Those that are `over` go.
    pub fn near(
        &mut self,
        bytes: &Bytes,
        footprint: FootprintId,
        over: impl Fn(&Access) -> bool,
        found: &mut Vec<u32>,
    ) {
        found.clear();
        self.register(bytes, footprint);
        for other in &self.overlaps[footprint.number()] {
            self.at[other.number()].retain(|&i| {
                let access = &mut self.all[i as usize];
                access.gone |= over(access);
                !access.gone
            });
            found.extend_from_slice(&self.at[other.number()]);
        }
        found.sort_unstable();
    }

    /// All live accesses that are not `over`, oldest first; drops the others, and notes in each the lists that it is in.
    pub fn listed(&mut self, over: impl Fn(&Access) -> bool) -> Vec<Access> {
        let all = &mut self.all;
        self.alive.retain(|&i| {
            let access = &mut all[i as usize];
            access.gone |= over(access);
            access.lists = Lists::default();
            !access.gone
        });
        let in_slots = &mut self.in_slots;
        let open = self.loads.values_mut().chain([&mut self.stores, &mut self.mmas]);
        for list in open.chain(in_slots.values_mut()).chain([&mut self.recent]) {
            list.retain(|&i| !all[i as usize].gone);
        }
        let open = self.loads.values().flatten().chain(&self.stores).chain(&self.mmas);
        open.for_each(|&i| all[i as usize].lists.open = true);
        self.recent.iter().for_each(|&i| all[i as usize].lists.recent = true);
        for (slot, list) in &self.in_slots {
            list.iter().for_each(|&i| all[i as usize].lists.slot = Some(*slot));
        }
        self.alive.iter().map(|&i| all[i as usize]).collect()
    }

    /// Live accesses that were made, or waited for, since the last barrier of the warpgroup, oldest first.
    pub fn since_barrier(&mut self) -> impl Iterator<Item = &Access> {
        let all = &self.all;
        self.recent.sort_unstable();
        self.recent.dedup();
        self.recent.retain(|&i| !all[i as usize].gone);
        self.recent.iter().map(|&i| &all[i as usize])
    }

    /// A barrier of all warps. `block`: with the other warpgroups, one of which may have waited for a load.
    pub fn join(&mut self, block: bool, now: Moment) {
        self.recent.clear();
        if block {
            for i in self.loads.drain().flat_map(|(_, list)| list) {
                let access = &mut self.all[i as usize];
                access.wait(access.issuer(), ALL_WARPS, now);
            }
        }
    }

    /// These warps have waited for a barrier.
    pub fn wait_loads(&mut self, key: BarrierKey, actor: Actor, now: Moment) {
        let Some(list) = self.loads.get_mut(&key.alloc) else {
            return;
        };
        let (all, recent) = (&mut self.all, &mut self.recent);
        list.retain(|&i| {
            let access = &mut all[i as usize];
            if let Completion::Mbarrier(of) = access.completion
                && of.may_be(key)
            {
                let issuer = access.issuer();
                if access.own[issuer].0 == 0 {
                    access.waited_in = actor.warp_region;
                }
                access.wait(issuer, actor.warps, now);
                recent.push(i);
            }
            let (waited, _) = access.own[access.issuer()];
            !access.gone && waited & ALL_WARPS != ALL_WARPS
        });
    }

    /// These warps have waited for groups of bulk stores. `covers`: whether the wait covers an access.
    pub fn wait_stores(&mut self, actor: Actor, now: Moment, covers: impl Fn(&Access, usize, u32) -> bool) {
        let (all, recent) = (&mut self.all, &mut self.recent);
        self.stores.retain(|&i| {
            let access = &mut all[i as usize];
            let (issuer, waits) = (access.issuer(), actor.warps & access.actor.warps);
            if let Completion::BulkGroup(group) = access.completion
                && covers(access, issuer, group)
            {
                access.wait(issuer, waits, now);
                access.waited_in = actor.warp_region;
                recent.push(i);
            }
            !access.gone && access.own[issuer].0 == 0
        });
    }

    /// These warps have waited for wgmmas, up to the group of this number, exclusively.
    pub fn wait_mmas(&mut self, actor: Actor, now: Moment, groups: u32) {
        let (all, recent) = (&mut self.all, &mut self.recent);
        self.mmas.retain(|&i| {
            let access = &mut all[i as usize];
            if let Completion::MmaGroup(group) = access.completion
                && group < groups
            {
                for a in (0..4).filter(|a| actor.warps >> a & 1 == 1) {
                    access.wait(a, 1 << a, now);
                }
                recent.push(i);
            }
            !access.gone && (0..4).any(|a| access.own[a].0 == 0)
        });
    }

    /// Every warp has waited for a refill of a slot.
    pub fn refill(&mut self, slot: (Alloc, Val)) {
        for i in self.in_slots.remove(&slot).unwrap_or_default() {
            self.all[i as usize].refilled = true;
        }
    }
}
