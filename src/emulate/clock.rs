//! Vector clocks of a cluster.
//!
//! A clock has a component per warp of the cluster, then one per CTA for the bulk loads that land there. A warp's own
//! component counts its releases and fences: what it does between two of them has one epoch.
use std::rc::Rc;

/// What somebody has seen: of every component the last epoch whose effects happened before; and up to which epoch they are
/// known to the async proxy, too.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Clock {
    /// `seen`, then `fenced`.
    epochs: Box<[u32]>,
}

/// What an asynchronous operation inherits from its issuer; `None` where nobody checks.
pub type View = Option<Rc<Clock>>;

impl Clock {
    /// Has seen nothing.
    pub fn new(width: usize) -> Clock {
        Clock {
            epochs: vec![0; 2 * width].into_boxed_slice(),
        }
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

    /// Sees what another has seen.
    pub fn join(&mut self, other: &Clock) {
        for (mine, theirs) in self.epochs.iter_mut().zip(&other.epochs) {
            *mine = (*mine).max(*theirs);
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
    }

    pub fn clear(&mut self) {
        self.epochs.fill(0);
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
}
