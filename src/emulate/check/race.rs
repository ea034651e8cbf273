//! The one relation of the checker: which accesses conflict, and what is missing between two that do.
//!
//! Here lives what an access is (who, when, what it does, to which bytes), and how two of them are held against each other. A new kind of
//! access is a variant of [`Kind`]; what it conflicts with is in [`conflicts`], what orders it in [`lack`].
use super::clock::Clock;
use super::hooks::Mode;
use crate::emulate::overwrite::Mask;
use crate::error::Loc;
use crate::ptx::modifier::{LoadSem, Scope};

/// Who acts: a component of the clocks of a cluster, which has a number in the launch (0 where one cluster is looked at by itself).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Actor {
    pub cluster: u32,
    pub component: u32,
}

impl Actor {
    /// Where one cluster is looked at by itself.
    pub fn own(component: u32) -> Actor {
        Actor { cluster: 0, component }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    Read,
    Write,
    /// A store that others may poll.
    Flag(Scope),
    /// An atomic of a warp.
    Atomic(Scope),
    /// A look at what others may change meanwhile.
    Poll,
    /// The async proxy reads shared memory, for a copy or a product.
    Copy,
    Product,
    /// The same for what a thread has issued into tensor memory.
    Issued,
    /// A bulk load, or `red.async`, writes shared memory.
    Load,
    Reduction,
    /// Bulk copies read and write global memory.
    BulkRead,
    BulkWrite,
    BulkReduction,
    /// A copy by threads (`cp.async`) that has not been waited for reads global memory, and writes shared memory.
    SmallRead,
    SmallWrite,
}

impl Kind {
    /// Of an access to global memory, or of a warp's to any.
    pub fn of(mode: Mode) -> Kind {
        match mode {
            Mode::Load(LoadSem::Weak) => Kind::Read,
            Mode::Load(_) => Kind::Poll,
            Mode::Store(_) => mode.signals().map_or(Kind::Write, |(scope, _)| Kind::Flag(scope)),
            Mode::Atomic(_, scope) => Kind::Atomic(scope),
            Mode::Read => Kind::BulkRead,
            Mode::Write => Kind::BulkWrite,
            Mode::Reduce => Kind::BulkReduction,
            Mode::SmallRead => Kind::SmallRead,
            Mode::SmallWrite => Kind::SmallWrite,
        }
    }

    #[inline(always)]
    pub fn writes(self) -> bool {
        match self {
            Kind::Write | Kind::Flag(_) | Kind::Atomic(_) => true,
            Kind::Load | Kind::Reduction | Kind::BulkWrite | Kind::BulkReduction | Kind::SmallWrite => true,
            Kind::Read | Kind::Poll | Kind::Copy | Kind::Product | Kind::Issued | Kind::BulkRead | Kind::SmallRead => {
                false
            }
        }
    }

    /// Of what is atomic to others of its kind: to whom.
    #[inline(always)]
    pub fn scope(self) -> Option<Scope> {
        match self {
            Kind::Flag(scope) | Kind::Atomic(scope) => Some(scope),
            Kind::Reduction => Some(Scope::Cluster),
            Kind::BulkReduction => Some(Scope::Sys),
            Kind::Read | Kind::Write | Kind::Poll | Kind::Copy | Kind::Product | Kind::Issued => None,
            Kind::Load | Kind::BulkRead | Kind::BulkWrite | Kind::SmallRead | Kind::SmallWrite => None,
        }
    }

    /// Whether the async proxy acts.
    #[inline(always)]
    pub fn is_async(self) -> bool {
        match self {
            Kind::Read | Kind::Write | Kind::Flag(_) | Kind::Atomic(_) | Kind::Poll | Kind::Reduction => false,
            // In the generic proxy.
            Kind::SmallRead | Kind::SmallWrite => false,
            Kind::Copy | Kind::Product | Kind::Issued | Kind::Load => true,
            Kind::BulkRead | Kind::BulkWrite | Kind::BulkReduction => true,
        }
    }

    /// Whether it is over only when its own warp has waited for it.
    #[inline(always)]
    pub fn is_small(self) -> bool {
        matches!(self, Kind::SmallRead | Kind::SmallWrite)
    }

    /// Whether the async proxy acts on shared memory, where fences of proxies are watched.
    #[inline(always)]
    pub fn needs_fences(self) -> bool {
        matches!(self, Kind::Copy | Kind::Product | Kind::Issued | Kind::Load)
    }

    /// Whether whoever knows of this access of an actor knows of an `earlier` one of the same, and races with that if he races with this.
    pub fn stands_for(self, earlier: Kind) -> bool {
        match self {
            Kind::Write => matches!(earlier, Kind::Write | Kind::Flag(_)),
            Kind::Flag(_) => matches!(earlier, Kind::Flag(_)),
            Kind::Atomic(_) => matches!(earlier, Kind::Flag(_) | Kind::Atomic(_)),
            Kind::BulkRead | Kind::BulkWrite | Kind::BulkReduction => false,
            Kind::SmallWrite => false,
            Kind::Read | Kind::Poll | Kind::Copy | Kind::Product | Kind::Issued | Kind::SmallRead => self == earlier,
            Kind::Load | Kind::Reduction => self == earlier,
        }
    }
}

/// The epoch of what nobody knows to be over: a bulk load that has not landed, a bulk store or a copy by threads that has not been waited for.
pub const IN_FLIGHT: u32 = u32::MAX;

/// An access to bytes of a line that is remembered.
#[derive(Clone, Debug)]
pub struct Past {
    pub by: Actor,
    pub kind: Kind,
    /// Of the actor's component; or [`IN_FLIGHT`].
    pub epoch: u32,
    /// The last instruction.
    pub loc: Loc,
    pub mask: Mask,
    /// Of what is in flight: which of its actor's; of reductions: how many.
    pub number: u64,
    /// Who else may know that it is over; where clusters communicate.
    pub heard: Option<Box<Heard>>,
}

/// By what it may be known that an access is over, besides its own epoch.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Heard {
    /// Of a bulk load to several CTAs: their components and epochs.
    pub landed: Vec<(u32, u32)>,
    /// Clusters that polled these bytes, and so have seen what was stored there, if nothing else.
    pub polled_by: Vec<u32>,
}

impl Past {
    pub fn new(by: Actor, kind: Kind, epoch: u32, loc: Loc, mask: Mask) -> Past {
        Past {
            by,
            kind,
            epoch,
            loc,
            mask,
            number: 0,
            heard: None,
        }
    }

    /// Whether it is over for whoever knows of epochs as `seen` says, in clusters as `polls` does.
    pub fn is_seen(&self, polls: impl Fn(u32) -> bool, seen: impl Fn(Actor, u32) -> bool) -> bool {
        let landed = |(component, epoch): &(u32, u32)| {
            let by = Actor {
                component: *component,
                ..self.by
            };
            seen(by, *epoch)
        };
        self.epoch != IN_FLIGHT && seen(self.by, self.epoch)
            || self.heard.as_ref().is_some_and(|heard| {
                heard.landed.iter().any(landed) || heard.polled_by.iter().any(|cluster| polls(*cluster))
            })
    }
}

/// An access that is about to happen, by somebody who has seen so much.
#[derive(Clone, Copy)]
pub struct Side<'a> {
    pub by: Actor,
    pub kind: Kind,
    pub epoch: u32,
    pub loc: Loc,
    pub number: u64,
    pub seen: &'a Clock,
    pub glance: Glance,
}

/// A warp's access to which no more need be said if the warp has accessed the line in the same way in this epoch, and nothing has happened to
/// the line since.
#[derive(Clone, Copy)]
pub struct SameEpoch {
    pub component: u32,
    pub kind: Kind,
    pub epoch: u32,
    pub loc: Loc,
}

/// What a warp can say without a look at what is remembered.
#[derive(Clone, Copy, Default)]
pub struct Glance {
    /// The last of its CTA's bulk loads that it has seen land.
    pub landed: u32,
    /// All that others of its CTA did until then it has seen; and the time.
    pub until: u32,
    pub now: u32,
}

impl Side<'_> {
    pub fn same_epoch(&self) -> SameEpoch {
        SameEpoch {
            component: self.by.component,
            kind: self.kind,
            epoch: self.epoch,
            loc: self.loc,
        }
    }

    /// As it is remembered.
    pub fn past(&self, mask: Mask) -> Past {
        let epoch = if self.kind.is_small() { IN_FLIGHT } else { self.epoch };
        let past = Past::new(self.by, self.kind, epoch, self.loc, mask);
        Past {
            number: self.number,
            ..past
        }
    }
}

/// What is missing between two accesses that conflict.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Lack {
    /// Nothing orders them.
    Order,
    /// The async proxy may not see that they are ordered.
    Fence,
}

/// Whether an access and a later one to the same bytes race if nothing orders them. `atomic`: they are to each other. `changes`: whether the
/// later one stores something else than what is there.
#[inline(always)]
pub fn conflicts(theirs: Kind, mine: Kind, atomic: bool, changes: impl FnOnce() -> bool) -> bool {
    match (theirs, mine) {
        // Nobody touches what a load, or a copy by threads, writes, or lets one write what others touch.
        (Kind::Load, _) | (_, Kind::Load) => true,
        (Kind::SmallWrite, _) => true,
        (Kind::Reduction, Kind::Poll) => false,
        (Kind::Reduction, _) | (_, Kind::Reduction) => !atomic,
        (_, Kind::Poll) => false,
        _ if !(theirs.writes() || mine.writes()) => false,
        (_, Kind::Copy | Kind::Product | Kind::Issued) => true,
        // Stores of the same bytes to one place are no race, whoever makes them.
        (Kind::Write | Kind::Flag(_) | Kind::BulkWrite, Kind::Write | Kind::BulkWrite | Kind::SmallWrite) => changes(),
        _ => !atomic,
    }
}

/// What is missing after an access of an actor's component, within a cluster.
#[inline(always)]
pub fn lack(theirs: Kind, component: u32, epoch: u32, mine: &Side<'_>) -> Option<Lack> {
    let at = component as usize;
    if epoch > mine.seen.seen()[at] {
        Some(Lack::Order)
    } else if mine.kind.needs_fences() && !theirs.is_async() && epoch > mine.seen.fenced()[at] {
        Some(Lack::Fence)
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_conflicts() {
        let (gpu, sys) = (Kind::Atomic(Scope::Gpu), Kind::Flag(Scope::Sys));
        for (theirs, mine, atomic, changes, races) in [
            (Kind::Read, Kind::Read, false, true, false),
            (Kind::Write, Kind::Read, false, true, true),
            (Kind::Read, Kind::Write, false, false, true),
            (Kind::Write, Kind::Write, false, true, true),
            (Kind::Write, Kind::Write, false, false, false),
            (sys, Kind::BulkWrite, false, false, false),
            // An atomic has read what is there, and changes it.
            (gpu, Kind::Write, false, false, true),
            (Kind::Write, gpu, false, false, true),
            (gpu, sys, true, true, false),
            (gpu, sys, false, true, true),
            (Kind::Write, Kind::Poll, false, true, false),
            (Kind::Load, Kind::Poll, false, true, true),
            (Kind::Reduction, Kind::Poll, false, true, false),
            (Kind::Reduction, gpu, true, true, false),
            (Kind::Reduction, Kind::Read, false, true, true),
            (Kind::Product, Kind::Copy, false, true, false),
            (Kind::Product, Kind::Write, false, false, true),
            (Kind::Write, Kind::Product, false, false, true),
            (Kind::Product, Kind::Load, false, true, true),
            (Kind::SmallWrite, Kind::Poll, false, true, true),
            (Kind::SmallWrite, Kind::Write, false, false, true),
            (Kind::SmallWrite, Kind::SmallWrite, false, false, true),
            (Kind::Write, Kind::SmallWrite, false, false, false),
            (Kind::Read, Kind::SmallWrite, false, false, true),
            (Kind::SmallRead, Kind::Write, false, false, true),
            (Kind::SmallRead, Kind::Read, false, true, false),
            (gpu, Kind::SmallRead, false, true, true),
        ] {
            assert_eq!(
                conflicts(theirs, mine, atomic, || changes),
                races,
                "{theirs:?}, {mine:?}"
            );
        }
    }

    #[test]
    fn a_fence_is_missing_where_the_async_proxy_comes_behind_the_generic() {
        let mut seen = Clock::new(2);
        seen.see(0, 5);
        let mine = |kind| Side {
            by: Actor::default(),
            kind,
            epoch: 1,
            loc: Loc(1),
            number: 0,
            seen: &seen,
            glance: Glance::default(),
        };
        assert_eq!(lack(Kind::Write, 0, 6, &mine(Kind::Product)), Some(Lack::Order));
        assert_eq!(lack(Kind::Write, 0, 5, &mine(Kind::Product)), Some(Lack::Fence));
        assert_eq!(lack(Kind::Write, 0, 5, &mine(Kind::Read)), None);
        assert_eq!(lack(Kind::Copy, 0, 5, &mine(Kind::Load)), None);
        assert_eq!(lack(Kind::Read, 0, 5, &mine(Kind::Load)), Some(Lack::Fence));
        assert_eq!(lack(Kind::Load, 1, IN_FLIGHT, &mine(Kind::Read)), Some(Lack::Order));
    }
}
