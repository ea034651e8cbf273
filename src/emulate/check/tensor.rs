//! Tensor memory: which accesses to it nothing orders.
//!
//! It is remembered by granules of 16 lanes of a column: the last write, and the reads since then. Each has an actor in the clocks, and a number:
//! * what a thread of a warp issues (products, copies) is complete for whoever has waited for the mbarrier that a commit behind it arrived on, or has
//!   synchronised with somebody who has: the warp's queue is the actor, and its operations are counted;
//! * a `tcgen05.ld` or `.st` is complete behind the warp's `tcgen05.wait` for it: its loads, and its stores, are actors, and what is counted are waits.
//!
//! Who comes later must know that, but for the pairs that the hardware keeps in order if their issues are: products of one accumulator and shape, and
//! a product behind a copy. `tcgen05.fence` is not asked for: JAX synchronises with `tcgen05.wait` and a barrier alone (strict readers of the PTX ISA
//! want it on both sides).
//!
//! Shared memory that products and copies read is held against the shadow of shared memory, by the queue's numbers ([`Kind::Issued`]).
use super::clock::{Clock, Knowledge, View};
use super::race::{Actor, Kind, Past};
use super::shadow::{Found, worst};
use super::{Checker, Verdict, Who};
use crate::emulate::overwrite::Mask;
use crate::emulate::shared::CtaSlot;
use crate::error::Loc;
use crate::ptx::modifier::TmemAccess;
use std::rc::Rc;

/// Lanes of a granule, and granules of a column.
const LANES: u32 = 16;
const GRANULES: usize = 8;
const COLUMNS: usize = 512;

/// A part of tensor memory: granules (bit i: lanes from 16·i on) of columns that follow one another.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cells {
    pub lanes: u8,
    pub first: u32,
    pub columns: u32,
}

impl Cells {
    /// All lanes.
    pub fn all(first: u32, columns: u32) -> Cells {
        Cells {
            lanes: u8::MAX,
            first,
            columns,
        }
    }

    pub fn of_lanes(lane: u32, lanes: u32, first: u32, columns: u32) -> Cells {
        let bits = (1u32 << (lanes / LANES)) - 1;
        Cells {
            lanes: (bits << (lane / LANES)) as u8,
            first,
            columns,
        }
    }

    /// Indices of its granules.
    fn indices(self) -> impl Iterator<Item = usize> {
        let lanes = (0..GRANULES).filter(move |i| self.lanes >> i & 1 == 1);
        let columns = self.first as usize..(self.first + self.columns) as usize;
        lanes.flat_map(move |i| columns.clone().map(move |column| i * COLUMNS + column))
    }
}

/// What a warp does itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Touched {
    Load,
    Store,
    /// It has got the columns.
    Allocate,
    /// It gives them back.
    Give,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Touch {
    pub what: Touched,
    pub cells: Cells,
    /// The instruction's; of what is given back, of the allocation.
    pub loc: Loc,
}

impl Touch {
    pub fn new(what: Touched, cells: Cells, loc: Loc) -> Touch {
        Touch { what, cells, loc }
    }
}

/// A product or a copy, of which shared memory is read by lines.
#[derive(Clone, Copy, Debug)]
pub struct TensorWork<'a> {
    pub writes: Cells,
    /// An A in tensor memory.
    pub reads: Option<Cells>,
    /// Of a product: where it accumulates, and its shape.
    pub accumulator: Option<(u32, u32)>,
    pub lines: &'a [(u32, Mask)],
    pub loc: Loc,
}

/// The number of what has been issued, and what is wrong with it.
pub type Issued = (u32, Verdict);

/// What an access is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Deed {
    Load,
    Store,
    Allocate,
    Give,
    Copy,
    /// Of an accumulator, and shape.
    Product((u32, u32)),
    /// A product's A.
    Operand,
}

impl Deed {
    /// Whether the hardware keeps a later one in order with this, if their issues are.
    fn leads(self, later: Deed) -> bool {
        match (self, later) {
            (Deed::Product(mine), Deed::Product(theirs)) => mine == theirs,
            (Deed::Copy, Deed::Product(_) | Deed::Operand) => true,
            // Whoever has used what he loaded is done; kernels of JAX do not wait where nobody writes any more.
            (Deed::Load, Deed::Give) => true,
            _ => false,
        }
    }
}

/// An access that is remembered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Record {
    pub deed: Deed,
    /// The component that tells when it is complete, and what it says then.
    pub by: u32,
    pub number: u32,
    /// The warp that issued it, and its epoch.
    pub warp: u32,
    pub since: u32,
    pub loc: Loc,
}

impl Record {
    fn is_complete(&self, seen: &[u32]) -> bool {
        seen[self.by as usize] >= self.number
    }

    pub fn is_issued(&self, seen: &[u32]) -> bool {
        seen[self.warp as usize] >= self.since
    }

    fn is_before(&self, later: Deed, seen: &[u32]) -> bool {
        self.is_complete(seen) || self.deed.leads(later) && self.is_issued(seen)
    }
}

#[derive(Clone, Default)]
struct Granule {
    write: Option<Record>,
    reads: Vec<Record>,
}

/// What is remembered of all CTAs.
pub(super) struct State {
    /// By CTA; empty where nobody has tensor memory.
    granules: Vec<Vec<Granule>>,
    /// By warp: products and copies issued, and how many of them a commit covers, and where that is.
    issued: Vec<u32>,
    pub committed: Vec<(u32, Loc)>,
    /// Waits for loads, and for stores.
    waits: Vec<[u32; 2]>,
}

impl State {
    pub fn new(ctas: usize, warps: usize) -> State {
        State {
            granules: vec![vec![]; ctas],
            issued: vec![0; warps],
            committed: vec![(0, Loc::CALL_SITE); warps],
            waits: vec![[0; 2]; warps],
        }
    }

    /// A cluster starts in the place of these.
    pub fn clear(&mut self, ctas: std::ops::Range<usize>, warps: std::ops::Range<usize>) {
        self.granules[ctas].iter_mut().for_each(Vec::clear);
        self.issued[warps.clone()].fill(0);
        self.committed[warps.clone()].fill((0, Loc::CALL_SITE));
        self.waits[warps].fill([0; 2]);
    }
}

/// An access that is about to happen, and one before it that nothing orders.
#[derive(Clone, Copy, Debug)]
pub(super) struct Race {
    pub mine: Deed,
    pub theirs: Record,
    /// Which lanes and column.
    pub lane: u32,
    pub column: u32,
}

/// Actors of a warp in the clocks, from its first one on.
pub(super) const ACTORS: usize = 3;
const QUEUE: u32 = 0;
const LOADS: u32 = 1;
const STORES: u32 = 2;

impl Checker {
    /// The first actor of a warp's, by its component.
    fn tensor_actor(&self, component: u32, which: u32) -> u32 {
        self.tensor_actors + ACTORS as u32 * component + which
    }

    /// An access now, by a warp that has seen so much.
    fn tensor_access(&mut self, slot: CtaSlot, cells: Cells, mine: Record, seen: &[u32]) -> Option<Race> {
        let granules = &mut self.tensor.granules[slot.0 as usize];
        if granules.is_empty() {
            granules.resize(GRANULES * COLUMNS, Granule::default());
        }
        let is_read = matches!(mine.deed, Deed::Load | Deed::Operand);
        let mut found = None;
        for at in cells.indices() {
            let granule = &mut granules[at];
            if mine.deed == Deed::Allocate {
                // Whoever had it before was done when it gave it back, for which the allocation waits.
                *granule = Granule::default();
            }
            let write = granule.write.filter(|write| !write.is_before(mine.deed, seen));
            let race = match is_read {
                true => write,
                false => write.or_else(|| granule.reads.iter().find(|it| !it.is_before(mine.deed, seen)).copied()),
            };
            if let Some(theirs) = race {
                found.get_or_insert(Race {
                    mine: mine.deed,
                    theirs,
                    lane: (at / COLUMNS) as u32 * LANES,
                    column: (at % COLUMNS) as u32,
                });
            }
            if is_read {
                match granule.reads.iter_mut().find(|it| it.by == mine.by) {
                    Some(read) => *read = mine,
                    None => granule.reads.push(mine),
                }
            } else {
                granule.write = Some(mine);
                granule.reads.clear();
            }
        }
        found
    }

    pub(super) fn touch_tensor(&mut self, who: Who, touch: Touch) -> Verdict {
        let (id, component) = (self.id(who), self.component(who) as u32);
        let clock = Rc::clone(&self.clocks[id]);
        let since = clock.seen()[component as usize];
        let (deed, by, number) = match touch.what {
            Touched::Load => (
                Deed::Load,
                self.tensor_actor(component, LOADS),
                self.tensor.waits[id][0] + 1,
            ),
            Touched::Store => (
                Deed::Store,
                self.tensor_actor(component, STORES),
                self.tensor.waits[id][1] + 1,
            ),
            Touched::Allocate => (Deed::Allocate, component, since),
            Touched::Give => (Deed::Give, component, since),
        };
        let mine = Record {
            deed,
            by,
            number,
            warp: component,
            since,
            loc: touch.loc,
        };
        let race = self.tensor_access(who.cta, touch.cells, mine, clock.seen());
        race.map_or(Ok(()), |race| Err(self.tensor_race(who, &race)))
    }

    pub(super) fn wait_tensor(&mut self, who: Who, what: TmemAccess) {
        let (id, component) = (self.id(who), self.component(who) as u32);
        let (which, actor) = match what {
            TmemAccess::Loads => (0, LOADS),
            TmemAccess::Stores => (1, STORES),
        };
        let waits = &mut self.tensor.waits[id][which];
        *waits += 1;
        let (waits, by) = (*waits, self.tensor_actor(component, actor));
        self.clock(id).see(by as usize, waits);
    }

    pub(super) fn issue_tensor(&mut self, who: Who, view: &View, work: TensorWork<'_>) -> Issued {
        let (id, component) = (self.id(who), self.component(who) as u32);
        let Some(view) = view else { return (0, Ok(())) };
        let by = self.tensor_actor(component, QUEUE);
        self.tensor.issued[id] += 1;
        let number = self.tensor.issued[id];
        let record = |deed| Record {
            deed,
            by,
            number,
            warp: component,
            since: view.seen()[component as usize],
            loc: work.loc,
        };
        let deed = work.accumulator.map_or(Deed::Copy, Deed::Product);
        let mut race = None;
        if let Some(cells) = work.reads {
            race = self.tensor_access(who.cta, cells, record(Deed::Operand), view.seen());
        }
        race = self
            .tensor_access(who.cta, work.writes, record(deed), view.seen())
            .or(race);
        let verdict = self.read_by_issued(who, view, (by, number), work);
        let race = race.map_or(Ok(()), |race| Err(self.tensor_race(who, &race)));
        (number, verdict.and(race))
    }

    /// What has been issued reads shared memory.
    fn read_by_issued(&mut self, who: Who, view: &Clock, (by, number): (u32, u32), work: TensorWork<'_>) -> Verdict {
        let mine = self.side(who, Kind::Issued, work.loc, view);
        let shadow = &mut self.ctas[who.cta.0 as usize].shared;
        let mut found: Option<Found> = None;
        for (line, mask) in work.lines {
            let at = *line as usize;
            worst(
                &mut found,
                shadow.find((at, u64::from(*line)), *mask, &mine, &|| Mask::MAX),
            );
            shadow.remember(at, Past::new(Actor::own(by), Kind::Issued, number, work.loc, *mask));
        }
        self.verdict(who, &mine, who.cta, found)
    }

    /// A commit is issued: what it covers, and whether its barriers may be used.
    pub(super) fn commit_tensor(&mut self, who: Who, loc: Loc, targets: &[(CtaSlot, u32)]) -> Issued {
        let id = self.id(who);
        let number = self.tensor.issued[id];
        self.tensor.committed[id] = (number, loc);
        let mut verdict = Ok(());
        for (slot, offset) in targets.iter().copied() {
            verdict = verdict.and(self.check_barrier(who, slot, offset, slot != who.cta));
            self.visit(who, slot);
        }
        // It tells of what its thread did before.
        self.tick(id);
        (number, verdict)
    }

    /// All that a commit covers is complete, and it is about to arrive.
    pub(super) fn arrive_tensor(&mut self, who: Who, view: &View, number: u32, (slot, offset): (CtaSlot, u32)) {
        let by = self.tensor_actor(self.component(who) as u32, QUEUE);
        let Some(barrier) = self.cta(slot).barriers.get_mut(&offset) else {
            return;
        };
        let arriving = &mut barrier.phases.arriving;
        view.iter().for_each(|view| arriving.join(view));
        arriving.see(by as usize, number);
    }

    /// Of an actor of tensor memory the warp's component, if it is its queue.
    pub(super) fn queue_of(&self, component: u32) -> u32 {
        (component - self.tensor_actors) / ACTORS as u32
    }
}
