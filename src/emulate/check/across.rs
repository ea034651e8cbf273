//! The checker across clusters, in kernels that communicate through global memory: semaphores, flags, atomics.
//!
//! * What a cluster's warps release on a word of global memory, by an atomic, a store or a fence before one, whoever acquires there
//!   learns of ([`Words`]), in scopes that include both; barriers hand it on with the rest of a clock.
//! * Accesses of different clusters to the same bytes, of which one writes, are ordered that way, or race; stores of what is there
//!   already do not, nor do atomics among themselves.
//! * A bulk store is over when its warp has waited for it in full, a bulk load's reading when somebody has waited for its barrier: at
//!   whatever time the schedule performs them, a signal before that tells nobody of them.
//!
//! * What is done to the memory of another device is known there when its kernel ends.
//!
//! One thread runs all clusters of such a kernel, so all of this is one state. Clusters that cannot synchronise with each other are `grid.rs`'s.
use super::clock::{Clock, Knowledge, Known};
use super::race::{Actor, IN_FLIGHT, Kind, Past, Side, conflicts};
use super::shadow::{Columns, Shadow};
use super::words::{Releaser, Word, Words};
use super::{Mode, Shape, Verdict, WordWait};
use crate::emulate::global;
use crate::emulate::options::Names;
use crate::emulate::overwrite::Mask;
use crate::emulate::shared::CtaSlot;
use crate::error::{Error, Loc};
use crate::ptx::modifier::{AtomSem, FenceSem, Scope, StoreSem};
use arrayvec::ArrayVec;
use std::sync::Arc;

/// Accesses of a kind that are remembered of a line.
const EACH: usize = 24;

/// A cluster that has begun.
pub struct Cluster {
    pub device: u32,
    /// Its position along the grid of clusters.
    pub id: [u32; 3],
}

/// A warp of a launch.
#[derive(Clone, Copy)]
pub struct Member {
    pub actor: Actor,
    pub device: u32,
    /// Its number in the machine.
    pub warp: usize,
}

/// An access of a warp, as it is held against those of other clusters.
pub struct Far {
    who: Member,
    /// As it is remembered.
    past: Past,
    race: Option<(u64, Mask, Past)>,
    /// To the memory of a device whose kernel has ended.
    late: Option<(u64, Mask, u32)>,
}

/// What has become of an access to bytes of a line.
#[derive(Default)]
pub struct Noted {
    /// The bytes, and one of another cluster that it races with.
    pub race: Option<(Mask, Past)>,
    /// Something was noted that was not there.
    pub is_new: bool,
    /// An older one was forgotten: there were too many.
    pub forgets: bool,
}

/// What is known across clusters.
pub struct Across {
    pub(super) shape: Shape,
    pub(super) names: Arc<Names>,
    pub(super) clusters: Vec<Cluster>,
    /// The number of the cluster at each place in the machine.
    current: Vec<u32>,
    /// Per warp: what it knew at its last fence of each scope from the cluster's on.
    fences: Vec<[Known; 3]>,
    pub words: Words<Word>,
    /// Accesses with their bytes, of which each that has seen an earlier one takes the earlier one's place where whoever knows of the later knows
    /// of the earlier, and races with it if he races with that. So a line has as many as have not heard of each other, and at most [`EACH`] of a
    /// kind: the oldest are forgotten.
    lines: Shadow,
    /// Lines that the bulk load that is performed reads, its number, and the components and epochs that say it is over.
    reading: Vec<u64>,
    loads: u64,
    landed: Vec<(u32, u32)>,
    /// Per device: what its warps that have ended knew, and whether its kernel has ended.
    ended: Vec<(Known, bool)>,
}

fn level(scope: Scope) -> usize {
    match scope {
        Scope::Cta | Scope::Cluster => 0,
        Scope::Gpu => 1,
        Scope::Sys => 2,
    }
}

/// Whether whoever knows of an access knows of an earlier one that it has seen, and races with that if he races with this.
fn stands_for(kind: Kind, earlier: Kind) -> bool {
    match (room(kind), kind.scope()) {
        (Room::Writes, _) => true,
        (Room::Reads, _) => room(earlier) == Room::Reads,
        (Room::Atomics, scope) => match room(earlier) {
            Room::Reads => true,
            Room::Writes => false,
            Room::Atomics => scope <= earlier.scope(),
        },
    }
}

/// Kinds that share room.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Room {
    Reads,
    Writes,
    Atomics,
}

fn room(kind: Kind) -> Room {
    match kind.scope() {
        Some(_) => Room::Atomics,
        None if kind.writes() => Room::Writes,
        None => Room::Reads,
    }
}

impl Across {
    pub fn new(shape: Shape, names: Arc<Names>) -> Across {
        let warps = shape.clusters * shape.cluster_size * shape.warps_per_cta;
        Across {
            shape,
            names,
            clusters: vec![],
            current: vec![0; shape.clusters as usize],
            fences: (0..warps).map(|_| Default::default()).collect(),
            words: Words::default(),
            lines: Shadow::new(Columns::default(), 0),
            reading: vec![],
            loads: 0,
            landed: vec![],
            ended: vec![(Known::default(), false); shape.devices as usize],
        }
    }

    /// A cluster begins at a place in the machine.
    pub fn cluster_starts(&mut self, cluster: usize, device: u32, id: [u32; 3]) {
        self.current[cluster] = self.clusters.len() as u32;
        self.clusters.push(Cluster { device, id });
        let warps = (self.shape.cluster_size * self.shape.warps_per_cta) as usize;
        for fences in &mut self.fences[cluster * warps..(cluster + 1) * warps] {
            *fences = Default::default();
        }
    }

    /// The warp whose component in its cluster's clocks this is.
    pub fn member(&self, cta: CtaSlot, component: u32, warp: usize) -> Member {
        let cluster = self.current[(cta.0 / self.shape.cluster_size) as usize];
        Member {
            actor: Actor { cluster, component },
            device: self.clusters[cluster as usize].device,
            warp,
        }
    }

    /// An access by a warp begins.
    pub fn begin(&self, who: Member, side: &Side<'_>, mode: Mode) -> Far {
        let cluster = who.actor.cluster;
        let (epoch, number) = match mode {
            Mode::Read => (IN_FLIGHT, self.loads),
            Mode::SmallRead | Mode::SmallWrite => (IN_FLIGHT, 0),
            Mode::Write | Mode::Reduce => (IN_FLIGHT, side.number),
            Mode::Store(_) | Mode::Atomic(AtomSem::Relaxed | AtomSem::Acquire, _) if side.kind != Kind::Write => {
                // Whoever learns of it by what a fence before it has told knows of it.
                let fence = self.fences[who.warp].iter().rev().find_map(|known| known.of(cluster));
                (
                    fence.map_or(side.epoch, |epochs| epochs[who.actor.component as usize]),
                    0,
                )
            }
            Mode::Load(_) | Mode::Store(_) | Mode::Atomic(..) => (side.epoch, 0),
        };
        let past = Past {
            by: who.actor,
            epoch,
            number,
            ..side.past(0)
        };
        Far {
            who,
            past,
            race: None,
            late: None,
        }
    }

    /// Of it, what it does to bytes of a line.
    pub fn access(
        &mut self,
        far: &mut Far,
        (line, mask): (u64, Mask),
        seen: &Clock,
        changes: &dyn Fn() -> Mask,
    ) -> Noted {
        if self.shape.devices > 1 {
            let owner = self.owner(line);
            if owner != far.who.device && self.ended[owner as usize].1 {
                far.late.get_or_insert((line, mask, owner));
            }
        }
        match far.past.kind {
            Kind::BulkRead => self.reading.push(line),
            Kind::Write | Kind::BulkWrite => self.words.overwrite(line, mask),
            _ => {}
        }
        let mine = Past {
            mask,
            ..far.past.clone()
        };
        let noted = self.hold(line, mine, seen, changes);
        if let (None, Some((hit, other))) = (&far.race, &noted.race) {
            far.race = Some((line, *hit, other.clone()));
        }
        noted
    }

    /// It has been noted: what is wrong with it.
    pub fn end(&self, far: Far) -> Verdict {
        let kind = far.past.kind;
        match (far.race, far.late) {
            (Some((line, hit, other)), _) => Err(self.race(kind, line, hit, &other)),
            (None, Some((line, mask, owner))) => Err(self.too_late(kind, line, mask, owner)),
            (None, None) => Ok(()),
        }
    }

    /// Whether the kernel of any device has ended.
    pub fn has_ended(&self) -> bool {
        self.ended.iter().any(|(_, has_ended)| *has_ended)
    }

    /// Notes an access to a line, and finds one of another cluster that it races with.
    fn hold(&mut self, address: u64, mine: Past, seen: &Clock, changes: &dyn Fn() -> Mask) -> Noted {
        let line = self.lines.line(address);
        let (clusters, here) = (&self.clusters, self.lines.others_mut(line));
        let own = mine.by.cluster;
        let alike = |it: &Past| {
            (it.by, it.kind, it.epoch, it.number) == (mine.by, mine.kind, mine.epoch, mine.number) && it.heard.is_none()
        };
        // Whoever does once more what it has done in this epoch stands for nothing new.
        let again = here.iter().position(|it| alike(it) && mine.mask & !it.mask == 0);
        let (mut noted, mut emptied) = (Noted::default(), false);
        for theirs in here.iter_mut() {
            let hit = theirs.mask & mine.mask;
            if hit == 0 {
                continue;
            }
            let stands = again.is_none() && stands_for(mine.kind, theirs.kind);
            let includes = |scope: Scope| match scope {
                Scope::Cta | Scope::Cluster => false,
                Scope::Gpu => clusters[theirs.by.cluster as usize].device == clusters[own as usize].device,
                Scope::Sys => true,
            };
            let scopes = (theirs.kind.scope(), mine.kind.scope());
            let atomic = matches!(scopes, (Some(x), Some(y)) if includes(x) && includes(y));
            let races = |changes: bool| conflicts(theirs.kind, mine.kind, atomic, || changes);
            let may_race = noted.race.is_none() && theirs.by.cluster != own && races(true);
            if !stands && !may_race {
                continue;
            }
            if theirs.is_seen(|cluster| cluster == own, |by, epoch| seen.has_seen(own, by, epoch)) {
                if stands {
                    theirs.mask &= !mine.mask;
                    emptied |= theirs.mask == 0;
                }
            } else if may_race && (races(false) || hit & changes() != 0) {
                noted.race = Some((hit, theirs.clone()));
            }
        }
        if let Some(at) = again {
            here[at].loc = mine.loc;
            return noted;
        }
        noted.is_new = true;
        if emptied {
            here.retain(|past| past.mask != 0);
        }
        if let Some(old) = here.iter_mut().find(|it| alike(it)) {
            old.mask |= mine.mask;
            old.loc = mine.loc;
            return noted;
        }
        let shares = |it: &Past| room(it.kind) == room(mine.kind);
        if here.iter().filter(|it| shares(it)).count() >= EACH
            && let Some(oldest) = here.iter().position(shares)
        {
            here.remove(oldest);
            noted.forgets = true;
        }
        here.push(mine);
        noted
    }

    /// Bytes of a line are polled by a cluster: whether that is news.
    pub fn poll(&mut self, address: u64, mask: Mask, by: u32) -> bool {
        let Some(line) = self.lines.peek(address) else {
            return false;
        };
        let here = self.lines.others_mut(line);
        let mut parts = vec![];
        for past in here.iter_mut() {
            let hit = past.mask & mask;
            let known = past.by.cluster == by || past.heard.as_ref().is_some_and(|it| it.polled_by.contains(&by));
            let is_store = matches!(past.kind, Kind::Write | Kind::BulkWrite | Kind::Flag(_));
            if !is_store || hit == 0 || known || past.epoch == IN_FLIGHT {
                continue;
            }
            past.mask &= !hit;
            let mut part = Past {
                mask: hit,
                ..past.clone()
            };
            part.heard.get_or_insert_default().polled_by.push(by);
            parts.push(part);
        }
        if parts.is_empty() {
            return false;
        }
        here.retain(|past| past.mask != 0);
        here.extend(parts);
        true
    }

    /// Of a line that what is in flight of an actor touches: it is over, as `over` notes.
    fn settle(&mut self, address: u64, by: Actor, number: u64, writes: bool, over: impl Fn(&mut Past)) {
        let Some(line) = self.lines.peek(address) else { return };
        for past in self.lines.others_mut(line) {
            if (past.by, past.number, past.epoch, past.kind.writes()) == (by, number, IN_FLIGHT, writes) {
                past.number = 0;
                over(past);
            }
        }
    }

    /// The device whose memory a line is.
    fn owner(&self, line: u64) -> u32 {
        match self.names.per_device {
            0 => 0,
            per => ((global::split(line << 7).0 / per) as u32).min(self.shape.devices - 1),
        }
    }

    /// What is known where a warp ends.
    pub fn warp_ends(&mut self, who: Member, clock: &Clock) {
        if self.shape.devices > 1 {
            let known = clock.known(who.actor.cluster);
            self.ended[who.device as usize].0.join(&known);
        }
    }

    /// The last cluster of a device has ended, and its memory is XLA's again. What others did to it must be known there.
    pub fn device_ends(&mut self, device: u32) -> Result<(), Box<Error>> {
        self.ended[device as usize].1 = true;
        let known = &self.ended[device as usize].0;
        let is_seen = |past: &Past| {
            let polls = |cluster: u32| self.clusters[cluster as usize].device == device;
            polls(past.by.cluster) || past.is_seen(polls, |by, epoch| known.has_seen(by, epoch))
        };
        let owned = self
            .lines
            .addresses()
            .into_iter()
            .filter(|line| self.owner(*line) == device);
        let unseen = |line: u64| {
            let here = self.lines.others(self.lines.peek(line)?);
            here.iter().find(|past| !is_seen(past)).map(|past| (line, past))
        };
        let unseen = { owned }.find_map(unseen);
        unseen.map_or(Ok(()), |(line, other)| Err(self.ends_unseen(device, line, other)))
    }

    /// Whether an access of a warp releases something to whoever looks, or is to be remembered as a look.
    pub fn releases(&self, who: Member, mode: Mode) -> bool {
        let releases = mode.signals().is_some_and(|(_, releases)| releases);
        releases || matches!(mode, Mode::Load(_)) || self.fences[who.warp].iter().any(|known| !known.is_empty())
    }

    /// A warp polls, signals or does both at places, after the access has been noted. True: others may learn what it did until now.
    pub fn at_words(
        &mut self,
        who: Member,
        clock: &mut Clock,
        places: impl Iterator<Item = (u64, u64)>,
        mode: Mode,
        loc: Loc,
    ) -> bool {
        let (signals, looks) = (mode.signals(), mode.looks());
        let mut released = ArrayVec::new();
        for place in places {
            match mode {
                Mode::Load(_) => self.words.at(place.0).looked_at = true,
                Mode::Store(sem) if sem != StoreSem::Weak => self.words.overwrite_at(place.0, place.1),
                Mode::Store(_) | Mode::Atomic(..) | Mode::Read | Mode::Write | Mode::Reduce => {}
                Mode::SmallRead | Mode::SmallWrite => {}
            }
            // One snapshot for all places, unless it learns at each.
            if let Some(signal) = signals
                && (released.is_empty() || looks.is_some_and(|(_, acquires)| acquires))
            {
                released = self.signals(who, clock, signal);
            }
            // Of several the widest is the signal.
            for (i, (known, scope)) in released.iter().enumerate() {
                let by = Releaser {
                    actor: who.actor,
                    device: who.device,
                    loc,
                    polled: &clock.polled()[1],
                    counts: i + 1 == released.len(),
                };
                self.words.release(place, *scope, by, known);
            }
            if let Some((scope, acquires)) = looks {
                self.observe(who, clock, place, scope, acquires);
            }
        }
        !released.is_empty()
    }

    /// What a warp tells by a signal of a scope, and to whom: what it knows, if it releases, or knew at its last fences.
    fn signals(&self, who: Member, clock: &Clock, (scope, releases): (Scope, bool)) -> ArrayVec<(Known, Scope), 3> {
        if releases {
            return ArrayVec::from_iter([(clock.known(who.actor.cluster), scope)]);
        }
        let fences = self.fences[who.warp]
            .iter()
            .zip([Scope::Cluster, Scope::Gpu, Scope::Sys]);
        fences
            .filter(|(known, _)| !known.is_empty())
            .map(|(known, of)| (known.clone(), scope.min(of)))
            .collect()
    }

    fn observe(&self, who: Member, clock: &mut Clock, place: (u64, u64), scope: Scope, acquires: bool) {
        let (cluster, device) = (who.actor.cluster, who.device);
        if acquires {
            clock.learn(&self.words.observed(place, scope, cluster, device), cluster);
            return;
        }
        let [gpu, sys] = clock.polled_mut();
        let observed = self.words.observed(place, scope.min(Scope::Gpu), cluster, device);
        match scope {
            Scope::Sys => sys.join(&self.words.observed(place, scope, cluster, device)),
            Scope::Cta | Scope::Cluster | Scope::Gpu => sys.join(&observed),
        }
        gpu.join(&observed);
    }

    /// A warp has waited for a word; `takes`: and subtracted what it waited for.
    pub fn waited(&mut self, who: Member, clock: &mut Clock, address: u64, wait: WordWait, loc: Loc) {
        let WordWait {
            scope,
            takes,
            held,
            value,
        } = wait;
        let cluster = who.actor.cluster;
        let seen = |actor, epoch| clock.has_seen(cluster, actor, epoch);
        let at = (cluster, who.device);
        let observed = self.words.observed_by_wait(address, (held, value), scope, at, &seen);
        clock.learn(&observed, cluster);
        if takes {
            let epoch = clock.seen()[who.actor.component as usize];
            self.words.take(address, (held, value), who.actor, epoch);
        }
        let word = self.words.at(address);
        word.taken |= takes;
        word.looked_at |= !takes;
        word.wait = Some((who.actor, loc));
    }

    /// An atomic adds to a word that holds `old`; `amount`: `None` of one that does something else.
    pub fn added(&mut self, address: u64, old: u32, amount: Option<u32>) {
        self.words.added(address, old, amount);
    }

    /// A fence: what polls have seen is known, and what is known now later signals release.
    pub fn fence(&mut self, who: Member, clock: &mut Clock, sem: FenceSem, scope: Scope) {
        let cluster = who.actor.cluster;
        if sem != FenceSem::Release {
            match level(scope) {
                0 => {
                    let polled = clock.polled()[0].clone();
                    clock.learn_own(&polled, cluster);
                }
                level => {
                    let polled = std::mem::take(&mut clock.polled_mut()[level - 1]);
                    clock.learn(&polled, cluster);
                }
            }
        }
        if sem != FenceSem::Acquire {
            self.fences[who.warp][level(scope)] = clock.known(cluster);
        }
    }

    /// A warp has waited in full for one of its bulk stores, in an epoch of its own.
    pub fn store_waited(&mut self, who: Member, lines: &[u64], number: u64, epoch: u32) {
        for line in lines {
            self.settle(*line, who.actor, number, true, |past| past.epoch = epoch);
        }
    }

    /// The bulk load that is performed has landed in a CTA, as its component's landing `number`.
    pub fn load_landed(&mut self, component: u32, number: u32) {
        if !self.reading.is_empty() {
            self.landed.push((component, number));
        }
    }

    /// It has landed everywhere: any of its barriers tells that it has read.
    pub fn load_done(&mut self, who: Member) {
        let landed = std::mem::take(&mut self.landed);
        for line in std::mem::take(&mut self.reading) {
            let Some(((component, epoch), also)) = landed.split_first() else {
                continue;
            };
            self.settle(line, who.actor, self.loads, false, |past| {
                past.by.component = *component;
                past.epoch = *epoch;
                if !also.is_empty() {
                    past.heard.get_or_insert_default().landed = also.to_vec();
                }
            });
        }
        self.loads += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Clusters of one warp, two to a device.
    fn across() -> Across {
        let shape = Shape {
            devices: 4,
            clusters: 8,
            cluster_size: 1,
            cluster: [1; 3],
            warps_per_cta: 1,
            smem_bytes: 1024,
            communicates: true,
            tensor: false,
        };
        let mut across = Across::new(shape, Arc::default());
        (0..100).for_each(|i| across.cluster_starts(i % 8, i as u32 / 2 % 4, [i as u32, 0, 0]));
        across
    }

    fn past(cluster: u32, kind: Kind, epoch: u32, mask: Mask) -> Past {
        let by = Actor { cluster, component: 0 };
        Past::new(by, kind, epoch, Loc(10 * cluster + epoch), mask)
    }

    /// Somebody of a cluster who has seen so much of some others.
    fn seen(cluster: u32, of: &[(u32, u32)]) -> Clock {
        let (mut clock, mut known) = (Clock::new(3), Known::default());
        of.iter().for_each(|(cluster, epoch)| known.see(*cluster, &[*epoch; 6]));
        known.see(cluster, &[u32::MAX - 1; 6]);
        clock.learn(&known, cluster);
        clock
    }

    impl Across {
        fn by(&mut self, line: u64, mine: Past, has_seen: &[(u32, u32)], changes: Mask) -> Option<(Mask, Past)> {
            let clock = seen(mine.by.cluster, has_seen);
            self.hold(line, mine, &clock, &|| changes).race
        }
        fn len(&mut self, line: u64) -> usize {
            let line = self.lines.line(line);
            self.lines.others(line).len()
        }
    }

    #[test]
    fn unordered_accesses_race_by_kind() {
        let gpu = Kind::Atomic(Scope::Gpu);
        let sys = Kind::Atomic(Scope::Sys);
        for (first, second, other, finds) in [
            (Kind::Read, Kind::Read, 1, false),
            (Kind::Write, Kind::Read, 1, true),
            (Kind::Read, Kind::Write, 1, true),
            (Kind::Write, Kind::Write, 1, true),
            (gpu, gpu, 1, false),
            (gpu, gpu, 2, true),
            (sys, sys, 2, false),
            (sys, gpu, 2, true),
            (gpu, Kind::Write, 1, true),
            (Kind::Read, gpu, 1, true),
            (Kind::Write, gpu, 1, true),
            (Kind::Write, Kind::Read, 0, false),
        ] {
            let mut across = across();
            assert!(across.by(3, past(0, first, 1, 0b0110), &[], !0).is_none());
            let found = across.by(3, past(other, second, 1, 0b1100), &[], !0);
            assert_eq!(found.is_some(), finds, "{first:?}, {second:?} by {other}");
            if let Some((hit, theirs)) = found {
                assert_eq!((hit, theirs.loc), (0b0100, Loc(1)));
            }
            let all = [(0, 1), (other, 1)];
            assert!(across.by(3, past(5, Kind::Write, 1, 0b1000), &all, !0).is_none());
        }
    }

    #[test]
    fn stores_of_one_value_do_not_race() {
        let mut across = across();
        across.by(0, past(0, Kind::Write, 1, 0b11), &[], !0);
        assert!(across.by(0, past(1, Kind::Write, 1, 0b11), &[], 0b100).is_none());
        assert!(across.by(0, past(2, Kind::BulkWrite, 1, 0b11), &[], 0b10).is_some());
        // An atomic changes what is there.
        assert!(
            across
                .by(0, past(3, Kind::Atomic(Scope::Gpu), 1, 0b1), &[], 0)
                .is_some()
        );
    }

    #[test]
    fn who_has_seen_an_access_stands_for_it() {
        let mut across = across();
        let all = [(0, 1), (1, 1), (2, 1), (3, 1)];
        (0..4).for_each(|cluster| drop(across.by(0, past(cluster, Kind::Read, 1, 0xff), &[], !0)));
        assert_eq!(across.len(0), 4);
        across.by(0, past(4, Kind::Write, 1, 0x0f), &all, !0);
        assert_eq!(across.len(0), 5);
        across.by(0, past(4, Kind::Write, 1, 0xf0), &all, !0);
        assert_eq!(across.len(0), 1);
        // Only the last writer need be known.
        assert!(across.by(0, past(5, Kind::Write, 1, 0xff), &[(4, 1)], !0).is_none());
    }

    #[test]
    fn lists_are_bounded() {
        let mut across = across();
        for cluster in 0..100 {
            across.by(0, past(cluster, Kind::Read, 1, 1), &[], !0);
            let mine = past(cluster, Kind::Atomic(Scope::Sys), 1, 2);
            let noted = across.hold(0, mine, &seen(cluster, &[]), &|| !0);
            assert_eq!((noted.is_new, noted.forgets), (true, cluster as usize >= EACH));
        }
        assert_eq!(across.len(0), 2 * EACH);
    }

    #[test]
    fn a_bulk_store_is_over_when_it_has_been_waited_for() {
        let mut across = across();
        let store = Past {
            epoch: IN_FLIGHT,
            number: 3,
            ..past(0, Kind::BulkWrite, 1, 0xff)
        };
        let by = store.by;
        across.by(0, store, &[], !0);
        assert!(across.by(0, past(1, Kind::Read, 1, 1), &[(0, 9)], !0).is_some());
        across.settle(0, by, 2, true, |past| past.epoch = 5);
        assert!(across.by(0, past(1, Kind::Read, 1, 1), &[(0, 9)], !0).is_some());
        across.settle(0, by, 3, true, |past| past.epoch = 5);
        assert!(across.by(0, past(1, Kind::Read, 1, 1), &[(0, 5)], !0).is_none());
        assert!(across.by(0, past(2, Kind::Read, 1, 1), &[(0, 4)], !0).is_some());
    }

    #[test]
    fn a_poll_sees_the_store_that_it_reads() {
        let mut across = across();
        across.by(0, past(0, Kind::Write, 1, 0xff), &[], !0);
        assert!(across.poll(0, 0x0f, 1) && !across.poll(0, 0x0f, 1));
        assert!(across.by(0, past(1, Kind::Read, 1, 0x0f), &[], !0).is_none());
        assert!(across.by(0, past(1, Kind::Read, 1, 0x10), &[], !0).is_some());
        assert!(across.by(0, past(2, Kind::Read, 1, 0x01), &[], !0).is_some());
    }
}
