//! Who of all clusters touched global memory last, where clusters tell each other.
//!
//! Of a line of 128 bytes: accesses with their bytes, of which each that has seen an earlier one takes the earlier one's place where
//! whoever knows of the later knows of the earlier, and races with it if he races with that. So the list is as long as there are
//! accesses that have not heard of each other, and at most [`EACH`] of a kind long: the oldest are forgotten.
use super::byte_history::{Mask, Side, races};
use super::words::Agent;
use crate::error::Loc;
use crate::ptx::modifier::Scope;
use rustc_hash::FxHashMap;

/// Accesses of a kind that are remembered of a line.
pub const EACH: usize = 24;
/// The epoch of what nobody knows to be over: a bulk store that has not been waited for.
pub const PENDING: u32 = u32::MAX;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    Read,
    Write,
    /// A store that others may poll.
    Flag(Scope),
    /// By an atomic or a reduction.
    Atomic(Scope),
}

impl Kind {
    fn writes(self) -> bool {
        self != Kind::Read
    }

    fn scope(self) -> Option<Scope> {
        match self {
            Kind::Read | Kind::Write => None,
            Kind::Flag(scope) | Kind::Atomic(scope) => Some(scope),
        }
    }

    /// Kinds that share room.
    fn room(self) -> u8 {
        match self {
            Kind::Read => 0,
            Kind::Write => 1,
            Kind::Flag(_) | Kind::Atomic(_) => 2,
        }
    }

    /// Whether whatever races with `earlier`, which came before, races with this.
    fn stands_for(self, earlier: Kind) -> bool {
        match self {
            Kind::Write => true,
            Kind::Read => earlier == Kind::Read,
            Kind::Flag(scope) | Kind::Atomic(scope) => match earlier {
                Kind::Read => true,
                Kind::Write => false,
                Kind::Flag(other) | Kind::Atomic(other) => (scope as u8) <= other as u8,
            },
        }
    }
}

/// Somebody touched bytes of a line.
#[derive(Clone, Debug)]
pub struct Touched {
    pub by: Agent,
    pub device: u32,
    pub kind: Kind,
    /// Of the component; of a bulk store that is not known to be over [`PENDING`].
    pub epoch: u32,
    /// Of a bulk store that is not known to be over: which of its warp's; of a load that has not landed: its number.
    pub store: u64,
    pub is_bulk: bool,
    pub loc: Loc,
    pub mask: Mask,
    /// Of a bulk load to several CTAs: the other components and epochs by which it may be known.
    pub also: Option<Box<[(usize, u32)]>>,
    /// Clusters that polled these bytes, and so have seen what was stored there, if nothing else.
    pub polled_by: Vec<u32>,
}

/// Of no bulk store.
pub const NO_STORE: u64 = u64::MAX;

#[derive(Default)]
pub struct Lines(FxHashMap<u64, Vec<Touched>>);

/// Whether two atomics are atomic to each other.
fn mutual(a: &Touched, b: &Touched) -> bool {
    let includes = |scope: Scope| match scope {
        Scope::Cta | Scope::Cluster => a.by.cluster == b.by.cluster,
        Scope::Gpu => a.device == b.device,
        Scope::Sys => true,
    };
    match (a.kind.scope(), b.kind.scope()) {
        (Some(x), Some(y)) => includes(x) && includes(y),
        (None, _) | (_, None) => false,
    }
}

impl Touched {
    /// Whether who has seen so much knows that it is over.
    pub fn is_seen(&self, polls: &dyn Fn(u32) -> bool, seen: &dyn Fn(Agent, u32) -> bool) -> bool {
        let other = |(component, epoch): &(usize, u32)| {
            let by = Agent {
                component: *component,
                ..self.by
            };
            seen(by, *epoch)
        };
        self.epoch != PENDING && seen(self.by, self.epoch)
            || self.also.iter().flatten().any(other)
            || self.polled_by.iter().any(|cluster| polls(*cluster))
    }
}

impl Lines {
    /// Notes an access, and finds one of another cluster that it races with: which bytes, and the other. `seen` says whether an epoch
    /// of an agent is known to whoever accesses.
    pub fn access(
        &mut self,
        line: u64,
        mine: Touched,
        seen: &dyn Fn(Agent, u32) -> bool,
        changes: impl Fn() -> Mask,
    ) -> Option<(Mask, Touched)> {
        let here = self.0.entry(line).or_default();
        let mut found = None;
        let mut emptied = false;
        for theirs in here.iter_mut() {
            let hit = theirs.mask & mine.mask;
            if hit == 0 {
                continue;
            }
            let stands = mine.kind.stands_for(theirs.kind);
            let foreign = theirs.by.cluster != mine.by.cluster;
            let may_race = foreign && found.is_none() && (mine.kind.writes() || theirs.kind.writes());
            if !stands && !may_race {
                continue;
            }
            if theirs.is_seen(&|cluster| cluster == mine.by.cluster, seen) {
                if stands {
                    theirs.mask &= !mine.mask;
                    emptied |= theirs.mask == 0;
                }
                continue;
            }
            if !may_race {
                continue;
            }
            let theirs_side = Side {
                writes: theirs.kind.writes(),
                atomic: mutual(theirs, &mine),
            };
            let mine_side = Side {
                writes: mine.kind.writes(),
                atomic: mine.kind.scope().is_some(),
            };
            if races(hit, theirs_side, mine_side, &changes) {
                found = Some((hit, theirs.clone()));
            }
        }
        if emptied {
            here.retain(|touched| touched.mask != 0);
        }
        note(here, mine);
        found
    }

    /// Bytes of a line are polled by a cluster.
    pub fn polled(&mut self, line: u64, mask: Mask, by: u32) {
        let Some(here) = self.0.get_mut(&line) else { return };
        let mut parts = vec![];
        for touched in here.iter_mut() {
            let hit = touched.mask & mask;
            let known = touched.by.cluster == by || touched.polled_by.contains(&by);
            let is_store = matches!(touched.kind, Kind::Write | Kind::Flag(_));
            if !is_store || hit == 0 || known || touched.epoch == PENDING {
                continue;
            }
            touched.mask &= !hit;
            let mut part = Touched {
                mask: hit,
                ..touched.clone()
            };
            part.polled_by.push(by);
            parts.push(part);
        }
        if !parts.is_empty() {
            here.retain(|touched| touched.mask != 0);
            here.extend(parts);
        }
    }

    /// A warp has waited for a bulk store: what it did to a line is what the warp has done in an epoch.
    pub fn settle(&mut self, line: u64, by: Agent, store: u64, epoch: u32) {
        for touched in self.0.get_mut(&line).into_iter().flatten() {
            if touched.by == by && touched.store == store && touched.kind.writes() {
                (touched.epoch, touched.store) = (epoch, NO_STORE);
            }
        }
    }

    /// A bulk load has landed: what it read of a line is over for who knows one of these components and epochs.
    pub fn land(&mut self, line: u64, by: Agent, load: u64, landed: &[(usize, u32)]) {
        let Some(((component, epoch), also)) = landed.split_first() else {
            return;
        };
        for touched in self.0.get_mut(&line).into_iter().flatten() {
            if touched.by == by && touched.store == load && touched.kind == Kind::Read {
                touched.by.component = *component;
                (touched.epoch, touched.store) = (*epoch, NO_STORE);
                touched.also = (!also.is_empty()).then(|| also.into());
            }
        }
    }

    /// Accesses to some lines, of the first lines first.
    pub fn in_lines(&self, mut which: impl FnMut(u64) -> bool) -> Vec<(u64, &Touched)> {
        let mut lines: Vec<u64> = self.0.keys().copied().filter(|line| which(*line)).collect();
        lines.sort_unstable();
        lines
            .into_iter()
            .flat_map(|line| self.0[&line].iter().map(move |touched| (line, touched)))
            .collect()
    }
}

fn note(here: &mut Vec<Touched>, mine: Touched) {
    let alike = |t: &&mut Touched| {
        (t.by, t.kind, t.epoch, t.store, t.is_bulk) == (mine.by, mine.kind, mine.epoch, mine.store, mine.is_bulk)
            && t.also == mine.also
            && t.polled_by.is_empty()
    };
    if let Some(old) = here.iter_mut().find(alike) {
        old.mask |= mine.mask;
        old.loc = mine.loc;
        return;
    }
    let room = mine.kind.room();
    if here.iter().filter(|t| t.kind.room() == room).count() >= EACH
        && let Some(oldest) = here.iter().position(|t| t.kind.room() == room)
    {
        here.remove(oldest);
    }
    here.push(mine);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn touched(cluster: u32, kind: Kind, epoch: u32, mask: Mask) -> Touched {
        Touched {
            by: Agent { cluster, component: 0 },
            device: cluster / 2,
            kind,
            epoch,
            store: NO_STORE,
            is_bulk: false,
            loc: Loc(10 * cluster + epoch),
            mask,
            also: None,
            polled_by: vec![],
        }
    }

    fn nobody(_: Agent, _: u32) -> bool {
        false
    }
    fn everybody(_: Agent, _: u32) -> bool {
        true
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
            let mut lines = Lines::default();
            assert!(lines.access(3, touched(0, first, 1, 0b0110), &nobody, || !0).is_none());
            let found = lines.access(3, touched(other, second, 1, 0b1100), &nobody, || !0);
            assert_eq!(found.is_some(), finds, "{first:?}, {second:?} by {other}");
            if let Some((hit, theirs)) = found {
                assert_eq!((hit, theirs.loc), (0b0100, Loc(1)));
            }
            assert!(
                lines
                    .access(3, touched(5, Kind::Write, 1, 0b1000), &everybody, || !0)
                    .is_none()
            );
        }
    }

    #[test]
    fn stores_of_one_value_do_not_race() {
        let mut lines = Lines::default();
        lines.access(0, touched(0, Kind::Write, 1, 0b11), &nobody, || !0);
        assert!(
            lines
                .access(0, touched(1, Kind::Write, 1, 0b11), &nobody, || 0b100)
                .is_none()
        );
        assert!(
            lines
                .access(0, touched(2, Kind::Write, 1, 0b11), &nobody, || 0b10)
                .is_some()
        );
        // An atomic changes what is there.
        assert!(
            lines
                .access(0, touched(3, Kind::Atomic(Scope::Gpu), 1, 0b1), &nobody, || 0)
                .is_some()
        );
    }

    #[test]
    fn who_has_seen_an_access_stands_for_it() {
        let mut lines = Lines::default();
        for cluster in 0..4 {
            lines.access(0, touched(cluster, Kind::Read, 1, 0xff), &nobody, || !0);
        }
        assert_eq!(lines.0[&0].len(), 4);
        lines.access(0, touched(4, Kind::Write, 1, 0x0f), &everybody, || !0);
        assert_eq!(lines.0[&0].len(), 5);
        lines.access(0, touched(4, Kind::Write, 1, 0xf0), &everybody, || !0);
        assert_eq!(lines.0[&0].len(), 1);
        // Only the last writer need be known.
        let last = |agent: Agent, _: u32| agent.cluster == 4;
        assert!(
            lines
                .access(0, touched(5, Kind::Write, 1, 0xff), &last, || !0)
                .is_none()
        );
    }

    #[test]
    fn lists_are_bounded() {
        let mut lines = Lines::default();
        for cluster in 0..100 {
            lines.access(0, touched(cluster, Kind::Read, 1, 1), &nobody, || !0);
            lines.access(0, touched(cluster, Kind::Atomic(Scope::Sys), 1, 2), &nobody, || !0);
        }
        assert_eq!(lines.0[&0].len(), 2 * EACH);
    }

    #[test]
    fn a_bulk_store_is_over_when_it_has_been_waited_for() {
        let mut lines = Lines::default();
        let store = Touched {
            epoch: PENDING,
            store: 3,
            ..touched(0, Kind::Write, 1, 0xff)
        };
        lines.access(0, store, &nobody, || !0);
        assert!(
            lines
                .access(0, touched(1, Kind::Read, 1, 1), &everybody, || !0)
                .is_some()
        );
        let by = Agent {
            cluster: 0,
            component: 0,
        };
        lines.settle(0, by, 2, 5);
        assert!(
            lines
                .access(0, touched(1, Kind::Read, 1, 1), &everybody, || !0)
                .is_some()
        );
        lines.settle(0, by, 3, 5);
        let until = |epoch| move |agent: Agent, e: u32| agent.cluster == 0 && e <= epoch;
        assert!(
            lines
                .access(0, touched(1, Kind::Read, 1, 1), &until(5), || !0)
                .is_none()
        );
        assert!(
            lines
                .access(0, touched(2, Kind::Read, 1, 1), &until(4), || !0)
                .is_some()
        );
    }

    #[test]
    fn a_poll_sees_the_store_that_it_reads() {
        let mut lines = Lines::default();
        lines.access(0, touched(0, Kind::Write, 1, 0xff), &nobody, || !0);
        lines.polled(0, 0x0f, 1);
        assert!(
            lines
                .access(0, touched(1, Kind::Read, 1, 0x0f), &nobody, || !0)
                .is_none()
        );
        assert!(
            lines
                .access(0, touched(1, Kind::Read, 1, 0x10), &nobody, || !0)
                .is_some()
        );
        assert!(
            lines
                .access(0, touched(2, Kind::Read, 1, 0x01), &nobody, || !0)
                .is_some()
        );
    }
}
