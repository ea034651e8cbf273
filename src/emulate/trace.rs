//! What a run did and when, for a timeline: [`Options::trace`](super::Options) asks for it.
//!
//! Time is the machine's clock: micro-ops of warps. One warp runs at a time, so spans of running do not overlap; what is in flight does.
//! Where nobody asks, a run pays for it one test wherever a warp stops, a barrier changes, or an asynchronous operation begins or ends.
use super::options::Names;
use super::shared::CtaSlot;
use super::warp::Wait;
use crate::error::Loc;
use crate::lock::lock;
use rustc_hash::FxHashMap;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

/// A CTA of a launch.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct CtaId {
    pub device: u32,
    /// z, y, x: in the grid's order.
    pub zyx: [u32; 3],
}

/// Whose timeline within a CTA. Where several things overlap there are several rows.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Track {
    Warp(u32),
    /// Bulk copies in flight.
    Copies {
        row: u32,
    },
    /// A warp's quarters of `wgmma`s in flight.
    TensorCore {
        warp: u32,
        row: u32,
    },
    /// The phases of the mbarrier at an offset in shared memory.
    Mbarrier(u32),
}

/// What happened.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum What {
    /// A warp ran.
    Runs,
    /// A warp waited: for what.
    Waits { on: &'static str, what: String },
    /// A bulk copy was in flight: a load until its bytes had landed, a store until it had written.
    Copies {
        kind: &'static str,
        bytes: u64,
        from: String,
        to: String,
        /// When a store had read its source.
        read: Option<u64>,
    },
    /// A warp's quarter of a `wgmma` was in flight.
    Multiplies { shape: String, group: u64 },
    /// A phase of an mbarrier: from the end of the one before to its own.
    Phase {
        number: u64,
        arrivals: u64,
        expected: u32,
        bytes: u64,
    },
    /// Arrivals of a warp on an mbarrier; or bytes of a copy, which no warp brings.
    Arrives { warp: Option<u32>, count: u64, bytes: i64 },
    /// A print found room.
    Prints,
}

/// A span, or a moment, of a track.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Event {
    pub cta: CtaId,
    pub track: Track,
    pub start: u64,
    /// Of a moment, its start.
    pub end: u64,
    pub what: What,
    /// The op that it belongs to; `None` where that is not known.
    pub loc: Option<Loc>,
    /// The warp that issued it.
    pub by: Option<u32>,
    /// The run ended before it did.
    pub unfinished: bool,
}

/// What a run's machines have recorded.
#[derive(Debug, Default)]
pub struct Recorded {
    pub events: Vec<Event>,
    /// Events for which there was no room.
    pub dropped: u64,
    /// The last clock.
    pub end: u64,
}

/// Where recordings go: one for each run.
#[derive(Debug)]
pub struct Trace {
    limit: u64,
    recorded: Mutex<Recorded>,
}

impl Trace {
    /// Room for `limit` events.
    pub fn new(limit: u64) -> Trace {
        Trace {
            limit,
            recorded: Mutex::default(),
        }
    }

    pub fn take(&self) -> Recorded {
        std::mem::take(&mut *lock(&self.recorded))
    }
}

/// Something that has begun.
struct Open {
    track: Track,
    start: u64,
    what: What,
    loc: Option<Loc>,
    by: u32,
    slot: CtaSlot,
}

/// A warp that does not run.
struct Pause {
    pc: u32,
    start: u64,
    what: What,
    loc: Loc,
}

struct Phase {
    start: u64,
    number: u64,
    arrivals: u64,
    bytes: u64,
    expected: u32,
}

/// A bulk copy: a load by its number, a store by its warp and its number there.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum CopyId {
    Load(u64),
    Store(u32, u64),
}

/// How a turn of a warp ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TurnEnd {
    Blocked(Wait),
    /// Others go first.
    Yielded,
    /// It, or the run, is over.
    Over,
}

/// One turn of a warp.
pub struct Turn {
    pub warp: u32,
    pub start: u64,
    pub start_loc: Loc,
    pub end: u64,
    pub pc: u32,
    pub loc: Loc,
    pub how: TurnEnd,
}

/// What one machine records.
pub struct Recorder {
    sink: Arc<Trace>,
    names: Arc<Names>,
    warps_per_cta: u32,
    /// Of each resident CTA.
    ids: Vec<CtaId>,
    events: Vec<Event>,
    dropped: u64,
    pauses: FxHashMap<u32, Pause>,
    copies: FxHashMap<CopyId, Open>,
    multiplies: FxHashMap<u32, VecDeque<Open>>,
    /// Which rows of a CTA's copies, of a warp's wgmmas, are taken.
    copy_rows: FxHashMap<CtaSlot, Vec<bool>>,
    multiply_rows: FxHashMap<u32, Vec<bool>>,
    phases: FxHashMap<(CtaSlot, u32), Phase>,
    loads: u64,
    /// The warp whose turn it is.
    running: u32,
}

fn take_row(rows: &mut Vec<bool>) -> u32 {
    let free = rows.iter().position(|taken| !taken).unwrap_or(rows.len());
    if free == rows.len() {
        rows.push(true);
    } else {
        rows[free] = true;
    }
    free as u32
}

impl Recorder {
    pub fn new(sink: Arc<Trace>, names: Arc<Names>, warps_per_cta: u32, ctas: usize) -> Recorder {
        Recorder {
            sink,
            names,
            warps_per_cta,
            ids: vec![CtaId::default(); ctas],
            events: vec![],
            dropped: 0,
            pauses: FxHashMap::default(),
            copies: FxHashMap::default(),
            multiplies: FxHashMap::default(),
            copy_rows: FxHashMap::default(),
            multiply_rows: FxHashMap::default(),
            phases: FxHashMap::default(),
            loads: 0,
            running: 0,
        }
    }

    fn slot(&self, warp: u32) -> CtaSlot {
        CtaSlot(warp / self.warps_per_cta)
    }

    fn add(&mut self, event: Event) {
        if (self.events.len() as u64) < self.sink.limit {
            self.events.push(event);
        } else {
            self.dropped += 1;
        }
    }

    fn span(&mut self, open: Open, end: u64, unfinished: bool) {
        self.add(Event {
            cta: self.ids[open.slot.0 as usize],
            track: open.track,
            start: open.start,
            end,
            what: open.what,
            loc: open.loc,
            by: Some(open.by % self.warps_per_cta),
            unfinished,
        });
    }

    pub fn cta_starts(&mut self, slot: CtaSlot, device: u32, [x, y, z]: [u32; 3]) {
        self.ids[slot.0 as usize] = CtaId { device, zyx: [z, y, x] };
        self.copy_rows.remove(&slot);
    }

    /// What was in flight, and phases in which something has happened, end with their CTA.
    pub fn cta_ends(&mut self, slot: CtaSlot, now: u64) {
        self.end(now, |of| of == slot);
    }

    fn end(&mut self, now: u64, ends: impl Fn(CtaSlot) -> bool) {
        let mut offsets: Vec<(CtaSlot, u32)> = self.phases.keys().filter(|(slot, _)| ends(*slot)).copied().collect();
        offsets.sort_unstable_by_key(|(slot, offset)| (slot.0, *offset));
        for (slot, offset) in offsets {
            let phase = self.phases.remove(&(slot, offset));
            if let Some(phase) = phase.filter(|phase| phase.arrivals > 0 || phase.bytes > 0) {
                self.phase_span(slot, offset, &phase, now, true);
            }
        }
        let mut late: Vec<CopyId> = self
            .copies
            .iter()
            .filter(|(_, c)| ends(c.slot))
            .map(|(id, _)| *id)
            .collect();
        late.sort_unstable_by_key(|id| match id {
            CopyId::Load(number) => (0, *number),
            CopyId::Store(warp, number) => (1 + warp, *number),
        });
        for id in late {
            self.copy_done(id, now, true);
        }
    }

    /// A warp's turn is over.
    pub fn turn(&mut self, turn: Turn) {
        let slot = self.slot(turn.warp);
        let index = turn.warp % self.warps_per_cta;
        let again = match self.pauses.get(&turn.warp) {
            // It looked again, and goes on waiting.
            Some(pause) => matches!(turn.how, TurnEnd::Blocked(_)) && pause.pc == turn.pc && turn.end - turn.start <= 1,
            None => false,
        };
        if again {
            return;
        }
        let span = |what, start, end, loc, unfinished| (Track::Warp(index), what, start, end, loc, unfinished);
        let mut spans = vec![];
        if let Some(pause) = self.pauses.remove(&turn.warp) {
            spans.push(span(pause.what, pause.start, turn.start, pause.loc, false));
        }
        spans.push(span(What::Runs, turn.start, turn.end, turn.start_loc, false));
        for (track, what, start, end, loc, unfinished) in spans {
            self.add(Event {
                cta: self.ids[slot.0 as usize],
                track,
                start,
                end,
                what,
                loc: Some(loc),
                by: None,
                unfinished,
            });
        }
        if let TurnEnd::Blocked(wait) = turn.how {
            let what = self.wait(slot, wait);
            let (pc, start, loc) = (turn.pc, turn.end, turn.loc);
            self.pauses.insert(turn.warp, Pause { pc, start, what, loc });
        }
    }

    fn wait(&self, slot: CtaSlot, wait: Wait) -> What {
        let (on, what) = match wait {
            Wait::Mbarrier {
                slot: of,
                offset,
                parity,
            } => {
                let whose = if of == slot { "" } else { " of another CTA" };
                let barrier = self.names.mbarrier(offset);
                ("mbarrier", format!("{barrier}{whose}, parity {parity}"))
            }
            Wait::Named { id, .. } => ("named barrier", format!("barrier {id}")),
            Wait::Products { .. } => ("wgmma", "the other warps of the warpgroup".to_owned()),
            Wait::Cluster { .. } => ("cluster barrier", "the cluster's barrier".to_owned()),
            Wait::Global { address, value } => ("memory", format!("the word at 0x{address:x} to be {value} or more")),
            Wait::Tag { address, tag } => ("memory", format!("the tag {tag} in the word at 0x{address:x}")),
            Wait::Registers { wanted } => ("registers", format!("{wanted} registers a thread")),
            Wait::Columns { columns } => ("tensor memory", format!("{columns} columns of tensor memory")),
            Wait::No | Wait::Poll => ("turn", "its turn".to_owned()),
        };
        What::Waits { on, what }
    }

    /// The number of a load that is issued.
    pub fn load_number(&mut self) -> u64 {
        self.loads += 1;
        self.loads
    }

    pub fn copy_issued(&mut self, id: CopyId, warp: u32, now: u64, loc: Loc, what: What) {
        let slot = self.slot(warp);
        let row = take_row(self.copy_rows.entry(slot).or_default());
        let open = Open {
            track: Track::Copies { row },
            start: now,
            what,
            loc: Some(loc),
            by: warp,
            slot,
        };
        self.copies.insert(id, open);
    }

    /// A store has read its source.
    pub fn copy_read(&mut self, id: CopyId, now: u64) {
        if let Some(open) = self.copies.get_mut(&id)
            && let What::Copies { read, .. } = &mut open.what
        {
            read.get_or_insert(now);
        }
    }

    pub fn copy_done(&mut self, id: CopyId, now: u64, unfinished: bool) {
        let Some(open) = self.copies.remove(&id) else { return };
        if let Track::Copies { row } = open.track
            && let Some(rows) = self.copy_rows.get_mut(&open.slot)
            && let Some(taken) = rows.get_mut(row as usize)
        {
            *taken = false;
        }
        self.span(open, now, unfinished);
    }

    pub fn multiply_issued(&mut self, warp: u32, now: u64, loc: Loc, what: What) {
        let row = take_row(self.multiply_rows.entry(warp).or_default());
        let open = Open {
            track: Track::TensorCore {
                warp: warp % self.warps_per_cta,
                row,
            },
            start: now,
            what,
            loc: Some(loc),
            by: warp,
            slot: self.slot(warp),
        };
        self.multiplies.entry(warp).or_default().push_back(open);
    }

    /// The oldest one of the warp is done.
    pub fn multiply_done(&mut self, warp: u32, now: u64, unfinished: bool) {
        let Some(open) = self.multiplies.get_mut(&warp).and_then(VecDeque::pop_front) else {
            return;
        };
        if let Track::TensorCore { row, .. } = open.track
            && let Some(taken) = self
                .multiply_rows
                .get_mut(&warp)
                .and_then(|rows| rows.get_mut(row as usize))
        {
            *taken = false;
        }
        self.span(open, now, unfinished);
    }

    /// Whose turn begins.
    pub fn runs(&mut self, warp: u32) {
        self.running = warp;
    }

    pub fn barrier_starts(&mut self, slot: CtaSlot, offset: u32, expected: u32, now: u64) {
        let phase = Phase {
            start: now,
            number: 0,
            arrivals: 0,
            bytes: 0,
            expected,
        };
        self.phases.insert((slot, offset), phase);
    }

    pub fn barrier_ends(&mut self, slot: CtaSlot, offset: u32) {
        self.phases.remove(&(slot, offset));
    }

    /// Arrivals on a barrier and bytes announced by the running warp; or bytes that came (`lands`). `opens`: they ended the phase, and
    /// the next one takes so many arrivals.
    pub fn barrier_changes(
        &mut self,
        slot: CtaSlot,
        offset: u32,
        (count, bytes, lands): (u64, i64, bool),
        opens: Option<u32>,
        now: u64,
        loc: Option<Loc>,
    ) {
        let Some(phase) = self.phases.get_mut(&(slot, offset)) else {
            return;
        };
        phase.arrivals += count;
        if lands {
            phase.bytes += bytes.unsigned_abs();
        }
        let warp = (!lands).then_some(self.running % self.warps_per_cta);
        let cta = self.ids[slot.0 as usize];
        // Lanes of one instruction are one event.
        let same = self.events.last_mut().filter(|e| {
            let here = (e.cta, e.track, e.start) == (cta, Track::Mbarrier(offset), now);
            here && !lands && matches!(e.what, What::Arrives { warp: by, .. } if by == warp)
        });
        match same {
            Some(Event {
                what: What::Arrives {
                    count: all, bytes: sum, ..
                },
                ..
            }) => {
                *all += count;
                *sum += bytes;
            }
            _ => self.add(Event {
                cta,
                track: Track::Mbarrier(offset),
                start: now,
                end: now,
                what: What::Arrives { warp, count, bytes },
                loc,
                by: warp,
                unfinished: false,
            }),
        }
        if let Some(expected) = opens
            && let Some(phase) = self.phases.get_mut(&(slot, offset))
        {
            let next = Phase {
                start: now,
                number: phase.number + 1,
                arrivals: 0,
                bytes: 0,
                expected,
            };
            let over = std::mem::replace(phase, next);
            self.phase_span(slot, offset, &over, now, false);
        }
    }

    fn phase_span(&mut self, slot: CtaSlot, offset: u32, phase: &Phase, end: u64, unfinished: bool) {
        self.add(Event {
            cta: self.ids[slot.0 as usize],
            track: Track::Mbarrier(offset),
            start: phase.start,
            end,
            what: What::Phase {
                number: phase.number,
                arrivals: phase.arrivals,
                expected: phase.expected,
                bytes: phase.bytes,
            },
            loc: None,
            by: None,
            unfinished,
        });
    }

    pub fn prints(&mut self, warp: u32, now: u64, loc: Option<Loc>) {
        self.add(Event {
            cta: self.ids[self.slot(warp).0 as usize],
            track: Track::Warp(warp % self.warps_per_cta),
            start: now,
            end: now,
            what: What::Prints,
            loc,
            by: None,
            unfinished: false,
        });
    }

    /// The run is over, or has failed: what has begun ends, and all goes to the sink.
    pub fn finish(mut self, now: u64) {
        let mut waiting: Vec<(u32, Pause)> = self.pauses.drain().collect();
        waiting.sort_unstable_by_key(|(warp, _)| *warp);
        for (warp, pause) in waiting {
            let slot = self.slot(warp);
            self.add(Event {
                cta: self.ids[slot.0 as usize],
                track: Track::Warp(warp % self.warps_per_cta),
                start: pause.start,
                end: now,
                what: pause.what,
                loc: Some(pause.loc),
                by: None,
                unfinished: true,
            });
        }
        self.end(now, |_| true);
        let mut warps: Vec<u32> = self.multiplies.keys().copied().collect();
        warps.sort_unstable();
        for warp in warps {
            while self.multiplies.get(&warp).is_some_and(|open| !open.is_empty()) {
                self.multiply_done(warp, now, true);
            }
        }
        let mut sink = lock(&self.sink.recorded);
        sink.events.append(&mut self.events);
        sink.dropped += self.dropped;
        sink.end = sink.end.max(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn recorder(limit: u64) -> (Arc<Trace>, Recorder) {
        let sink = Arc::new(Trace::new(limit));
        (sink.clone(), Recorder::new(sink, Arc::default(), 4, 1))
    }

    fn copy(bytes: u64) -> What {
        What::Copies {
            kind: "bulk load",
            bytes,
            from: String::new(),
            to: String::new(),
            read: None,
        }
    }

    #[test]
    fn what_overlaps_has_rows_and_what_does_not_fit_is_counted() {
        let (sink, mut r) = recorder(3);
        for k in 1..=4 {
            r.copy_issued(CopyId::Load(k), 1, k, Loc(7), copy(16));
            if k == 2 {
                r.copy_done(CopyId::Load(1), 3, false);
            }
        }
        r.finish(9);
        let recorded = sink.take();
        let rows = recorded.events.iter().map(|e| (e.start, e.end, e.track, e.unfinished));
        let track = |row| Track::Copies { row };
        let expected = [(1, 3, track(0), false), (2, 9, track(1), true), (3, 9, track(0), true)];
        assert_eq!(rows.collect::<Vec<_>>(), expected);
        assert_eq!((recorded.dropped, recorded.end), (1, 9));
    }

    #[test]
    fn a_wait_lasts_until_the_warp_gets_on() {
        let (sink, mut r) = recorder(100);
        let turn = |start, end, pc, how| Turn {
            warp: 2,
            start,
            start_loc: Loc(1),
            end,
            pc,
            loc: Loc(2),
            how,
        };
        let wait = TurnEnd::Blocked(Wait::Named { id: 3, generation: 0 });
        r.turn(turn(0, 10, 5, wait));
        r.turn(turn(20, 21, 5, wait));
        r.turn(turn(30, 40, 9, TurnEnd::Over));
        r.finish(50);
        let spans = sink.take().events.into_iter().map(|e| (e.start, e.end, e.what, e.loc));
        let waits = What::Waits {
            on: "named barrier",
            what: "barrier 3".into(),
        };
        let expected = [
            (0, 10, What::Runs, Some(Loc(1))),
            (10, 30, waits, Some(Loc(2))),
            (30, 40, What::Runs, Some(Loc(1))),
        ];
        assert_eq!(spans.collect::<Vec<_>>(), expected);
    }

    #[test]
    fn arrivals_of_one_step_are_one_and_phases_follow_each_other() {
        let (sink, mut r) = recorder(100);
        r.barrier_starts(CtaSlot(0), 64, 2, 5);
        r.runs(3);
        r.barrier_changes(CtaSlot(0), 64, (1, 0, false), None, 10, None);
        r.barrier_changes(CtaSlot(0), 64, (1, 0, false), Some(2), 10, None);
        r.barrier_changes(CtaSlot(0), 64, (0, 32, true), None, 12, None);
        r.finish(20);
        let events = sink.take().events;
        let phase = |number, arrivals, bytes| What::Phase {
            number,
            arrivals,
            expected: 2,
            bytes,
        };
        let arrives = |warp, count, bytes| What::Arrives { warp, count, bytes };
        let found: Vec<_> = events
            .into_iter()
            .map(|e| (e.start, e.end, e.what, e.unfinished))
            .collect();
        let expected = [
            (10, 10, arrives(Some(3), 2, 0), false),
            (5, 10, phase(0, 2, 0), false),
            (12, 12, arrives(None, 0, 32), false),
            (10, 20, phase(1, 0, 32), true),
        ];
        assert_eq!(found, expected);
    }
}
