//! Vector clocks of a cluster, and what they know of others.
//!
//! A clock has a component per warp of the cluster, then one per CTA for the bulk loads that land there. A warp's own
//! component counts its releases and fences: what it does between two of them has one epoch. Tensor maps have fences of their own.
use super::known::{Far, Known};
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
    far: Far,
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
            far: Far::default(),
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

    /// Sees what another has seen.
    pub fn join(&mut self, other: &Clock) {
        for (mine, theirs) in self.epochs.iter_mut().zip(&other.epochs) {
            *mine = (*mine).max(*theirs);
        }
        if let Some(theirs) = &other.released {
            let width = self.width();
            for (mine, theirs) in released_of(&mut self.released, width).iter_mut().zip(theirs) {
                *mine = (*mine).max(*theirs);
            }
        }
        if !other.far.is_empty() {
            self.far.join(&other.far);
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

    /// What is known of other clusters, and may be after a fence.
    pub fn far(&self) -> &Far {
        &self.far
    }
    pub fn far_mut(&mut self) -> &mut Far {
        &mut self.far
    }

    /// What a clock of a cluster knows of all of them.
    pub fn known(&self, cluster: u32) -> Known {
        let mut known = self.far.known.clone();
        match &self.released {
            None => known.see(cluster, &self.epochs),
            Some(released) => known.see(cluster, &[&*self.epochs, released].concat()),
        }
        known
    }

    /// Learns what others know, this clock's own cluster included.
    pub fn learn(&mut self, known: &Known, cluster: u32) {
        self.learn_own(known, cluster);
        self.far.known.join(known);
    }

    /// Of what others know what they know of this clock's own cluster.
    pub fn learn_own(&mut self, known: &Known, cluster: u32) {
        let Some(theirs) = known.of(cluster) else { return };
        let (epochs, released) = theirs.split_at(self.epochs.len());
        for (mine, theirs) in self.epochs.iter_mut().zip(epochs) {
            *mine = (*mine).max(*theirs);
        }
        if !released.is_empty() {
            let width = self.width();
            for (mine, theirs) in released_of(&mut self.released, width).iter_mut().zip(released) {
                *mine = (*mine).max(*theirs);
            }
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
        self.released = None;
        self.far = Far::default();
    }

    pub fn clear(&mut self) {
        self.epochs.fill(0);
        self.released = None;
        self.far = Far::default();
    }
}

fn released_of(released: &mut Option<Box<[u32]>>, width: usize) -> &mut [u32] {
    released.get_or_insert_with(|| vec![0; Scope::ALL.len() * width].into())
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
}
