//! Moments of one path, and what barriers and fences have ordered up to which.
//!
//! All warps take one path, so that one count of moments serves all of them. Nothing moves order from warp to warp but a barrier of all
//! four: up to the last of these, every warp is behind what any warp was behind. So a barrier takes no time, however much came before it.
use super::bytes::Space;

/// A set of warps of the warpgroup; bit 4 stands for all other warpgroups of the block.
pub type Behind = u8;
pub const ALL_WARPS: Behind = 0b1111;
pub const OTHERS: Behind = 0b1_0000;

pub type Moment = u32;

#[derive(Default)]
pub struct Clock {
    now: Moment,
    /// The last barrier of the warpgroup, and of the block.
    joined: Moment,
    block_joined: Moment,
    shared: Fences,
    device: Fences,
}

/// The proxy fences of one space.
#[derive(Default)]
struct Fences {
    /// Each warp's last one, and the barrier before that.
    last: [Moment; 4],
    joined: [Moment; 4],
    /// Up to when all warps are behind a fence that is behind a warp's accesses.
    announced: [Moment; 4],
    /// The last one that the kernel has itself.
    committed: Moment,
}

impl Clock {
    /// Something happens, at this moment.
    pub fn tick(&mut self) -> Moment {
        self.now += 1;
        self.now
    }

    /// All moments that anything is compared with, in a fixed order.
    pub fn moments(&self) -> impl Iterator<Item = Moment> {
        let fences = [&self.shared, &self.device].into_iter();
        let of = |f: &Fences| [&f.last[..], &f.joined, &f.announced, &[f.committed]].concat();
        [self.now, self.joined, self.block_joined]
            .into_iter()
            .chain(fences.flat_map(of))
    }

    /// A barrier of all four warps. `block`: with those of the other warpgroups.
    pub fn join(&mut self, block: bool) {
        self.joined = self.now;
        if block {
            self.block_joined = self.now;
        }
        for fences in [&mut self.shared, &mut self.device] {
            let joined = fences.joined.iter().copied().max().unwrap_or(0);
            for (announced, last) in fences.announced.iter_mut().zip(fences.last) {
                *announced = (*announced).max(last).max(joined);
            }
        }
    }

    /// These warps order what they are behind of before the async proxy. `commits`: by an op of the kernel.
    pub fn fence(&mut self, space: Space, warps: Behind, commits: bool) {
        let (now, joined) = (self.now, self.joined);
        let fences = match space {
            Space::Shared => &mut self.shared,
            Space::Device => &mut self.device,
        };
        for w in (0..4).filter(|w| warps >> w & 1 == 1) {
            fences.last[w] = now;
            fences.joined[w] = joined;
        }
        if commits {
            fences.committed = now;
        }
    }

    /// The warps that are behind what these warps have been behind since then.
    pub fn spread(&self, own: Behind, since: Moment) -> Behind {
        if own & ALL_WARPS == 0 {
            own
        } else if since <= self.block_joined {
            ALL_WARPS | OTHERS
        } else if since <= self.joined {
            own | ALL_WARPS
        } else {
            own
        }
    }

    fn fences(&self, space: Space) -> &Fences {
        match space {
            Space::Shared => &self.shared,
            Space::Device => &self.device,
        }
    }

    /// Whether warp `b` is behind a fence that is behind what warp `a` did then.
    pub fn is_fenced(&self, space: Space, (a, then): (usize, Moment), b: usize) -> bool {
        let fences = self.fences(space);
        then <= fences.announced[a] || a == b && then <= fences.last[b] || then <= fences.joined[b]
    }

    /// Whether the kernel has committed what was done then.
    pub fn is_committed(&self, space: Space, then: Moment) -> bool {
        then <= self.fences(space).committed
    }
}
