//! Clocks: what somebody has seen of what all others did.
//!
//! Of the own cluster a [`Clock`] has a component per warp, then one per CTA for the bulk loads that land there, then one per warpgroup for its
//! products; a warp's own component counts its releases and fences: what it does between two of them has one epoch. Tensor maps have fences of
//! their own. Of the other clusters of a launch it has what is [`Known`]: their epochs, by the clusters' numbers in the order in which they begin
//! (one that takes the place of another in the machine has a number of its own), as far as somebody who released had heard of them. That is
//! handed on as a whole, and mostly to those who know it already, so it is shared.
use super::race::Actor;
use crate::ptx::modifier::{Modifier, Scope};
use std::rc::Rc;

/// What somebody has seen: of every component the last epoch whose effects happened before; and up to which epoch they are
/// known to the async proxy, too.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Clock {
    /// `seen`, then `fenced`.
    epochs: Box<[u32]>,
    /// What was released to the copies' reads of tensor maps: `seen` at each scope. Few kernels ever do.
    released: Option<Box<[u32]>>,
    /// Of other clusters.
    others: Known,
    /// Of them, what a fence of the device's scope, or the system's, would let it know: it, or who then told it, has looked at words by which
    /// others told of what they did, in loads that do not acquire.
    polled: [Known; 2],
    /// Of what an asynchronous operation inherits: bulk loads that had been issued then, whoever knows of them.
    loads_before: u32,
}

/// What an asynchronous operation inherits from its issuer; `None` where nobody checks.
pub type View = Option<Rc<Clock>>;

impl Clock {
    /// Has seen nothing.
    pub fn new(width: usize) -> Clock {
        Clock {
            epochs: vec![0; 2 * width].into_boxed_slice(),
            released: None,
            others: Known::default(),
            polled: Default::default(),
            loads_before: 0,
        }
    }

    pub fn loads_before(&self) -> u32 {
        self.loads_before
    }
    pub fn set_loads_before(&mut self, loads: u32) {
        self.loads_before = loads;
    }

    fn width(&self) -> usize {
        self.epochs.len() / 2
    }

    pub fn seen(&self) -> &[u32] {
        &self.epochs[..self.width()]
    }

    pub fn fenced(&self) -> &[u32] {
        &self.epochs[self.width()..]
    }

    /// Has seen an epoch of a component.
    pub fn see(&mut self, component: usize, epoch: u32) {
        let at = &mut self.epochs[component];
        *at = (*at).max(epoch);
    }

    /// Has seen a component before an epoch at most.
    pub fn forget(&mut self, component: usize, from: u32) {
        let width = self.width();
        for at in [component, width + component] {
            self.epochs[at] = self.epochs[at].min(from.saturating_sub(1));
        }
    }

    /// A release fence of tensor maps: what has been seen may be acquired, in this scope and in narrower ones.
    pub fn release_maps(&mut self, scope: Scope) {
        let width = self.width();
        let released = released_of(&mut self.released, width);
        for at in released.chunks_exact_mut(width).take(scope as usize + 1) {
            // What was released has been seen.
            at.copy_from_slice(&self.epochs[..width]);
        }
    }

    /// Up to which epoch a component is known to have been released for users of tensor maps in a scope.
    pub fn released(&self, component: usize, scope: Scope) -> u32 {
        let at = scope as usize * self.width() + component;
        self.released.as_ref().map_or(0, |released| released[at])
    }

    /// Whether an epoch of an actor is known, to one of a cluster.
    pub fn has_seen(&self, cluster: u32, by: Actor, epoch: u32) -> bool {
        match by.cluster == cluster {
            true => self.seen()[by.component as usize] >= epoch,
            false => self.others.has_seen(by, epoch),
        }
    }

    pub fn polled(&self) -> &[Known; 2] {
        &self.polled
    }
    pub fn polled_mut(&mut self) -> &mut [Known; 2] {
        &mut self.polled
    }

    /// What a clock of a cluster knows of all of them.
    pub fn known(&self, cluster: u32) -> Known {
        let mut known = self.others.clone();
        match &self.released {
            None => known.see(cluster, &self.epochs),
            Some(released) => known.see(cluster, &[&*self.epochs, released].concat()),
        }
        known
    }

    /// Learns what others know, this clock's own cluster included.
    pub fn learn(&mut self, known: &Known, cluster: u32) {
        self.learn_own(known, cluster);
        self.others.join(known);
    }

    /// Of what others know what they know of this clock's own cluster.
    pub fn learn_own(&mut self, known: &Known, cluster: u32) {
        let Some(theirs) = known.of(cluster) else { return };
        let (epochs, released) = theirs.split_at(self.epochs.len());
        raise(&mut self.epochs, epochs);
        if !released.is_empty() {
            let width = self.width();
            raise(released_of(&mut self.released, width), released);
        }
    }

    /// The next epoch of a component that is its owner.
    pub fn tick(&mut self, component: usize) {
        self.epochs[component] += 1;
    }

    /// A proxy fence: what has been seen is known to the async proxy.
    pub fn fence(&mut self) {
        let width = self.width();
        let (seen, fenced) = self.epochs.split_at_mut(width);
        fenced.copy_from_slice(seen);
    }

    /// As at the start, when everything up to these epochs is long past.
    pub fn restart(&mut self, epochs: &[u32]) {
        let width = self.width();
        self.epochs[..width].copy_from_slice(epochs);
        self.epochs[width..].copy_from_slice(epochs);
        self.forget_others();
    }

    pub fn clear(&mut self) {
        self.epochs.fill(0);
        self.forget_others();
    }

    fn forget_others(&mut self) {
        self.released = None;
        self.others = Known::default();
        self.polled = Default::default();
    }
}

/// What may be handed on.
pub trait Knowledge: Clone {
    /// Adds what another knows.
    fn join(&mut self, other: &Self);
}

impl Knowledge for Clock {
    fn join(&mut self, other: &Clock) {
        raise(&mut self.epochs, &other.epochs);
        if let Some(theirs) = &other.released {
            let width = self.width();
            raise(released_of(&mut self.released, width), theirs);
        }
        self.others.join(&other.others);
        for (mine, theirs) in self.polled.iter_mut().zip(&other.polled) {
            mine.join(theirs);
        }
    }
}

fn released_of(released: &mut Option<Box<[u32]>>, width: usize) -> &mut [u32] {
    released.get_or_insert_with(|| vec![0; Scope::ALL.len() * width].into())
}

/// Epochs of one cluster, as its clocks have them: what has been seen, fenced, and perhaps released for tensor maps.
type Epochs = Rc<[u32]>;

/// Epochs of clusters, by their numbers.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Known(Option<Rc<Vec<(u32, Epochs)>>>);

/// Nothing is known of what is not there.
fn epoch(epochs: &[u32], i: usize) -> u32 {
    epochs.get(i).copied().unwrap_or(0)
}

/// Each to another's, where that is later.
fn raise(mine: &mut [u32], theirs: &[u32]) {
    for (mine, theirs) in mine.iter_mut().zip(theirs) {
        *mine = (*mine).max(*theirs);
    }
}

fn either(a: &[u32], b: &[u32]) -> Epochs {
    (0..a.len().max(b.len()))
        .map(|i| epoch(a, i).max(epoch(b, i)))
        .collect()
}

impl Knowledge for Known {
    fn join(&mut self, other: &Known) {
        if self.knows(other) {
            return;
        }
        if other.knows(self) {
            self.0 = other.0.clone();
            return;
        }
        for (cluster, epochs) in other.list() {
            if !self.covers(*cluster, epochs) {
                self.add(*cluster, epochs.clone());
            }
        }
    }
}

impl Known {
    pub fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    fn list(&self) -> &[(u32, Epochs)] {
        self.0.as_ref().map_or(&[], |list| list.as_slice())
    }

    /// What is known of a cluster.
    pub fn of(&self, cluster: u32) -> Option<&[u32]> {
        let list = self.list();
        let at = list.binary_search_by_key(&cluster, |(number, _)| *number).ok()?;
        Some(&list[at].1)
    }

    /// Whether an epoch of an actor is known.
    pub fn has_seen(&self, by: Actor, epoch: u32) -> bool {
        self.of(by.cluster)
            .is_some_and(|epochs| epochs[by.component as usize] >= epoch)
    }

    /// Adds epochs of a cluster.
    pub fn see(&mut self, cluster: u32, epochs: &[u32]) {
        if !self.covers(cluster, epochs) {
            self.add(cluster, epochs.into());
        }
    }

    fn add(&mut self, cluster: u32, epochs: Epochs) {
        let list = Rc::make_mut(self.0.get_or_insert_default());
        match list.binary_search_by_key(&cluster, |(number, _)| *number) {
            Err(at) => list.insert(at, (cluster, epochs)),
            Ok(at) => list[at].1 = either(&list[at].1, &epochs),
        }
    }

    /// Whether another knows nothing else.
    fn knows(&self, other: &Known) -> bool {
        let is_same = matches!((&self.0, &other.0), (Some(a), Some(b)) if Rc::ptr_eq(a, b));
        let mut theirs = other.list().iter();
        is_same || theirs.all(|(cluster, epochs)| self.covers(*cluster, epochs))
    }

    /// Whether nothing of these epochs of a cluster is unknown.
    fn covers(&self, cluster: u32, epochs: &[u32]) -> bool {
        let covers =
            |mine: &[u32]| std::ptr::eq(mine, epochs) || (0..epochs.len()).all(|i| epoch(mine, i) >= epochs[i]);
        self.of(cluster).is_some_and(covers)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fence_covers_what_was_seen_and_nothing_later() {
        let (mut writer, mut issuer) = (Clock::new(3), Clock::new(3));
        writer.tick(0);
        let write = writer.seen()[0];
        assert!(issuer.seen()[0] < write);
        issuer.join(&writer);
        assert!(issuer.seen()[0] >= write && issuer.fenced()[0] < write);
        issuer.fence();
        writer.tick(0);
        assert!(issuer.fenced()[0] >= write && issuer.fenced()[0] < writer.seen()[0]);
    }

    #[test]
    fn a_release_hands_on_what_was_fenced() {
        let (mut writer, mut barrier, mut issuer) = (Clock::new(2), Clock::new(2), Clock::new(2));
        writer.tick(0);
        writer.fence();
        barrier.join(&writer);
        issuer.join(&barrier);
        assert_eq!(issuer.fenced(), writer.fenced());
        barrier.clear();
        assert_eq!(barrier, Clock::new(2));
    }

    #[test]
    fn a_release_of_maps_is_handed_on_in_its_scope() {
        let (mut writer, mut user) = (Clock::new(2), Clock::new(2));
        writer.tick(0);
        let change = writer.seen()[0];
        user.join(&writer);
        assert_eq!(user.released(0, Scope::Cta), 0);
        writer.release_maps(Scope::Cluster);
        writer.tick(0);
        assert!(user.released(0, Scope::Cta) < change);
        user.join(&writer);
        assert!(
            [Scope::Cta, Scope::Cluster]
                .iter()
                .all(|s| user.released(0, *s) == change)
        );
        assert_eq!((user.released(0, Scope::Gpu), user.released(0, Scope::Sys)), (0, 0));
        assert!(user.released(0, Scope::Cta) < writer.seen()[0]);
        writer.release_maps(Scope::Sys);
        assert_eq!(writer.released(0, Scope::Sys), writer.seen()[0]);
        user.clear();
        assert_eq!(user, Clock::new(2));
    }

    fn at(cluster: u32, component: u32) -> Actor {
        Actor { cluster, component }
    }

    fn known(of: &[(u32, [u32; 2])]) -> Known {
        let mut known = Known::default();
        of.iter().for_each(|(cluster, epochs)| known.see(*cluster, epochs));
        known
    }

    #[test]
    fn what_two_know_is_what_either_knows() {
        let mut a = known(&[(1, [1, 5]), (4, [2, 2])]);
        let b = known(&[(0, [3, 3]), (1, [2, 4]), (4, [2, 2])]);
        a.join(&b);
        assert_eq!(a, known(&[(0, [3, 3]), (1, [2, 5]), (4, [2, 2])]));
        assert!(a.has_seen(at(1, 1), 5) && !a.has_seen(at(1, 1), 6) && !a.has_seen(at(2, 0), 1));
        assert!(b.has_seen(at(1, 0), 2) && b.of(7).is_none());
    }

    #[test]
    fn who_knows_all_shares_it() {
        let all = known(&[(1, [2, 2]), (3, [1, 1])]);
        let shares = |a: &Known, b: &Known| Rc::ptr_eq(a.0.as_ref().unwrap(), b.0.as_ref().unwrap());
        for less in [
            Known::default(),
            known(&[(1, [2, 1])]),
            known(&[(1, [2, 2]), (3, [1, 1])]),
        ] {
            let mut a = all.clone();
            a.join(&less);
            assert!(shares(&a, &all), "{less:?}");
        }
        let mut b = known(&[(3, [1, 0])]);
        b.join(&all);
        assert!(shares(&b, &all));
        b.see(1, &[1, 2]);
        assert_eq!(b, all);
        b.see(1, &[3, 2]);
        assert!(b.has_seen(at(1, 0), 3) && !all.has_seen(at(1, 0), 3));
    }
}
