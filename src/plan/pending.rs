//! What may still be going on at a point of a kernel, and the one rule of what conflicts with it.
//!
//! A Pallas thread's ops are done by 128 lanes, by units that one lane or each warp has started, and in warp regions by one warp
//! that diverges from the others; only barriers order them. A [`Pending`] access is one whose end is not yet ordered before all
//! that the group does next. [`End`] says which threads it is ordered before:
//!
//! | how an access ends | ordered before | until |
//! |---|---|---|
//! | lanes load or store | each lane's own part before that lane; before its warp behind a barrier of the warp | the group's barrier |
//! | wgmma reads its operands | none, until a wait covers its group; then each warp that waited | a barrier behind the wait |
//! | a bulk store reads, writes | none, until a wait covers its group; then the lane that issued it, its warp behind a barrier of the warp | a barrier behind the wait |
//! | a bulk load writes, a product in tensor memory reads | every lane of the group that waits for its mbarrier | – |
//! | anything in a warp region | some warp, even behind barriers of that warp | the warpgroup's barrier |
//!
//! Barriers order nothing that no wait covers: the wait is the user's to write.
use super::bytes::{Bytes, Space};
use super::footprint::{FootprintId, Overlap};
use crate::kernel_ir::effects::{Completion, Proxy};
use crate::kernel_ir::rings::Part;
use crate::kernel_ir::{Alloc, Group, Owner, Value, WaitScope};

/// More entries are made coarser.
const MAX_PENDING: usize = 64;
/// More younger groups are not distinguished.
const MANY: u32 = 8;

/// An access that an op is about to make.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Access {
    pub bytes: Bytes,
    /// Which lane touches what of them, if that is known.
    pub footprint: Option<FootprintId>,
    /// The slot that all of it lies in.
    pub slot: Option<Part>,
    /// Of what it touches.
    pub owner: Owner,
    pub reads: bool,
    pub writes: bool,
    pub proxy: Proxy,
    pub by: By,
    pub ends: Ends,
}

/// What begins an access.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum By {
    /// Lanes, each its own elements.
    Lanes,
    /// The lane that issues copies for the group.
    Issuer,
    /// Each warp.
    Warps,
    /// Some warp of a warp region.
    SomeWarp,
}

/// How an access ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ends {
    WithTheOp,
    Wgmma,
    /// `written`: what the store writes, which a wait for its reading does not cover.
    Store {
        written: bool,
    },
    /// By an mbarrier: before all that wait for it.
    Barrier,
}

impl Ends {
    pub fn of(completion: Completion<'_>, writes: bool) -> Ends {
        match completion {
            Completion::Now => Ends::WithTheOp,
            Completion::Wgmma => Ends::Wgmma,
            Completion::StoreGroup => Ends::Store { written: writes },
            Completion::Barrier(_) | Completion::LoadGroup | Completion::Commit => Ends::Barrier,
        }
    }
}

#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Pending {
    pub bytes: Bytes,
    pub footprint: Option<FootprintId>,
    /// It was made in a slot of this ring, before the slot's next refill was issued.
    before_refill: Option<Alloc>,
    /// A slot that none of it is in, by its refill that was waited for.
    outside: Option<Part>,
    since: Since,
    reads: bool,
    writes: bool,
    generic: bool,
    pub end: End,
}

impl Pending {
    /// Whether it is over, and a release by the group has to order it before others.
    pub fn needs_release(&self) -> bool {
        let data = match self.bytes.space {
            Space::Device(_) => self.writes,
            Space::Shared | Space::Peers | Space::Everything | Space::Progress => true,
        };
        data && !self.end.is_running()
    }

    /// Whether it is a store that units read only behind a fence by a thread that it is ordered before.
    pub fn is_committed(&self) -> bool {
        let in_shared = !matches!(self.bytes.space, Space::Device(_) | Space::Progress);
        in_shared && self.writes && self.generic && !self.end.is_running()
    }

    /// Whether whatever conflicts with `other` conflicts with this.
    fn covers(&self, other: &Pending) -> bool {
        let ends = match (self.end, other.end) {
            (End::Lanes { converged: a }, End::Lanes { converged: b })
            | (End::Issuer { converged: a }, End::Issuer { converged: b }) => !a || b,
            (a, b) => a.is_same_kind(b) && a.join(b) == a,
        };
        self.bytes.covers(&other.bytes)
            && (self.footprint.is_none()
                || self.footprint == other.footprint && (self.since == Since::Before || self.since == other.since))
            && (self.before_refill.is_none() || self.before_refill == other.before_refill)
            && (self.outside.is_none() || self.outside == other.outside)
            && (self.reads || !other.reads)
            && (self.writes || !other.writes)
            && self.generic == other.generic
            && ends
    }
}

/// When an access was begun, as far as its view depends on it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Since {
    /// The view is where it is now.
    Now,
    /// In an earlier iteration of the loop that counts with this, and the view is where it counts.
    Count(Value),
    /// The view may have been elsewhere.
    Before,
}

/// What the end of an access is ordered before.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    /// Nothing yet: wgmmas with so many younger groups.
    Wgmma {
        younger: Younger,
    },
    /// Nothing yet: a bulk store, issued by a lane of a group like this.
    Store {
        written: bool,
        issued: Group,
        /// Its group is not committed.
        open: bool,
        younger: Younger,
    },
    /// Each lane, of its own part. `converged`: the others of its warp, too.
    Lanes {
        converged: bool,
    },
    /// The lane that issued it. `converged`: the others of its warp, too.
    Issuer {
        converged: bool,
    },
    Warps,
    /// Some warp of a warp region that is over.
    SomeWarp,
    /// The executing warp; others don't.
    Warp,
}

/// The groups of its kind that were issued after an access: of all the accesses that an entry stands for, from the one with the
/// least to the one with the most. [`MANY`]: so many or more.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Younger {
    least: u32,
    most: u32,
}

impl Younger {
    const NONE: Younger = Younger { least: 0, most: 0 };

    fn join(self, other: Younger) -> Younger {
        Younger {
            least: self.least.min(other.least),
            most: self.most.max(other.most),
        }
    }

    fn another(self) -> Younger {
        Younger {
            least: (self.least + 1).min(MANY),
            most: (self.most + 1).min(MANY),
        }
    }

    /// With at most `n` groups left: whether some may have ended, and who may be left.
    fn wait(self, n: u32) -> (bool, Option<Younger>) {
        let left = n
            .min(MANY)
            .checked_sub(1)
            .filter(|last| self.least <= *last)
            .map(|last| Younger {
                least: self.least,
                most: self.most.min(last),
            });
        // Beyond what is counted, either may be.
        let left = if n > MANY && self.most == MANY {
            Some(self)
        } else {
            left
        };
        (self.most >= n.min(MANY), left)
    }
}

impl End {
    /// Whether it is ordered before nothing yet.
    pub fn is_running(self) -> bool {
        matches!(self, End::Wgmma { .. } | End::Store { .. })
    }

    /// The same but for what is counted.
    fn is_same_kind(self, other: End) -> bool {
        match (self, other) {
            (End::Wgmma { .. }, End::Wgmma { .. }) => true,
            (
                End::Store {
                    written,
                    issued,
                    open,
                    younger: _,
                },
                End::Store {
                    written: w,
                    issued: i,
                    open: o,
                    younger: _,
                },
            ) => (written, issued, open) == (w, i, o),
            (a, b) => a == b,
        }
    }

    /// Both, of ends that are alike.
    fn join(self, other: End) -> End {
        match (self, other) {
            (End::Wgmma { younger: a }, End::Wgmma { younger: b }) => End::Wgmma { younger: a.join(b) },
            (
                End::Store {
                    written,
                    issued,
                    open,
                    younger: a,
                },
                End::Store { younger: b, .. },
            ) => End::Store {
                written,
                issued,
                open,
                younger: a.join(b),
            },
            (end, _) => end,
        }
    }
}

/// The barrier that an access needs before it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Need {
    /// Of each warp.
    Warp,
    /// Of the executing group.
    Group,
}

/// The one rule: what `new` needs before it because of `old`. `overlap`: of an earlier footprint (of an earlier iteration?) and a later one.
pub fn conflict(
    old: &Pending,
    new: &Access,
    overlap: &mut impl FnMut((FootprintId, Since), FootprintId) -> Overlap,
) -> Option<Need> {
    let is_outside = old.outside.is_some() && old.outside == new.slot;
    if !(old.writes || new.writes) || !old.bytes.overlap(&new.bytes) || is_outside {
        return None;
    }
    let converged = match (old.end, new.by) {
        (End::Wgmma { .. } | End::Store { .. } | End::Warp, _) => return None,
        // What units read of shared memory is committed by the user, which is a barrier.
        (End::Lanes { .. }, By::Issuer | By::Warps)
            if !new.writes && new.proxy != Proxy::Generic && new.bytes.space == Space::Shared =>
        {
            return None;
        }
        (End::Issuer { .. }, By::Issuer) => return None,
        (End::Lanes { converged } | End::Issuer { converged }, By::Lanes | By::Issuer) => Some(converged),
        (End::Lanes { .. } | End::Issuer { .. } | End::Warps | End::SomeWarp, _) => None,
    };
    let place = match (old.footprint, new.footprint) {
        (Some(a), Some(b)) => overlap((a, old.since), b),
        (None, _) | (_, None) => Overlap::Anywhere,
    };
    match (place, converged) {
        (Overlap::Nowhere, _) | (Overlap::Lane, Some(_)) | (Overlap::Warp, Some(true)) => None,
        (Overlap::Warp, Some(false)) => Some(Need::Warp),
        (Overlap::Anywhere, Some(_)) | (_, None) => Some(Need::Group),
    }
}

/// What is pending at a point.
#[derive(Clone, PartialEq, Debug)]
pub struct State {
    /// The executor: a warpgroup, or a warp in a warp region.
    pub group: Group,
    pub pending: Vec<Pending>,
    /// Ordinary stores that units need not see yet: no proxy fence came since.
    pub unfenced: Vec<Bytes>,
    /// Ordinary loads of shared memory that copies fill, which may still be going on: no proxy fence came since.
    pub unread: Vec<Bytes>,
    /// Shared memory of scopes that are over, which other warpgroups may still be in.
    pub left: Vec<Bytes>,
    /// Slots whose refill was waited for, and whose next refill cannot have been acquired.
    filled: Vec<Part>,
    /// One of these waits may have been released to others.
    released: bool,
}

impl State {
    pub fn new(group: Group) -> State {
        State {
            group,
            pending: vec![],
            unfenced: vec![],
            unread: vec![],
            left: vec![],
            filled: vec![],
            released: false,
        }
    }

    fn add(&mut self, new: Pending) {
        let same = |p: &&mut Pending| {
            (p.bytes, p.footprint, p.since) == (new.bytes, new.footprint, new.since)
                && (p.before_refill, p.outside) == (new.before_refill, new.outside)
                && (p.reads, p.writes, p.generic) == (new.reads, new.writes, new.generic)
                && p.end.is_same_kind(new.end)
        };
        if self.pending.iter().any(|old| old.covers(&new)) {
            return;
        }
        match self.pending.iter_mut().find(same) {
            Some(old) => old.end = old.end.join(new.end),
            None => {
                self.pending.push(new);
                if self.pending.len() > MAX_PENDING {
                    self.coarsen();
                }
            }
        }
    }

    /// One entry for all of a space that end alike.
    fn coarsen(&mut self) {
        let mut coarse: Vec<Pending> = vec![];
        for p in &self.pending {
            let end = match p.end {
                End::Lanes { converged: _ } => End::Lanes { converged: false },
                End::Issuer { converged: _ } => End::Issuer { converged: false },
                end => end,
            };
            match coarse
                .iter_mut()
                .find(|c| c.bytes.space == p.bytes.space && c.generic == p.generic && c.end.is_same_kind(end))
            {
                Some(c) => {
                    c.bytes = c.bytes.hull(&p.bytes);
                    c.reads |= p.reads;
                    c.writes |= p.writes;
                    c.before_refill = c.before_refill.filter(|_| c.before_refill == p.before_refill);
                    c.end = c.end.join(end);
                }
                None => coarse.push(Pending {
                    end,
                    footprint: None,
                    outside: None,
                    since: Since::Before,
                    ..*p
                }),
            }
        }
        self.pending = coarse;
    }

    pub fn joined(mut self, other: &State) -> State {
        self.join(other);
        self
    }

    pub fn join(&mut self, other: &State) {
        for &p in &other.pending {
            self.add(p);
        }
        for &bytes in &other.unfenced {
            self.unfence(bytes);
        }
        for &bytes in &other.unread {
            self.read(bytes);
        }
        for &bytes in &other.left {
            self.leave(bytes);
        }
        self.filled.retain(|slot| other.filled.contains(slot));
        self.released |= other.released;
    }

    pub fn unfence(&mut self, bytes: Bytes) {
        if !self.unfenced.iter().any(|known| known.covers(&bytes)) {
            self.unfenced.push(bytes);
        }
    }

    pub fn read(&mut self, bytes: Bytes) {
        if !self.unread.iter().any(|known| known.covers(&bytes)) {
            self.unread.push(bytes);
        }
    }

    /// All stores to this kind of memory that the lanes have seen, and all of their loads of it, are ordered before what units do.
    pub fn fence(&mut self, shared: bool) {
        self.unfenced.retain(|bytes| (bytes.space == Space::Shared) != shared);
        if shared {
            self.unread.clear();
        }
    }

    pub fn leave(&mut self, bytes: Bytes) {
        if !self.left.contains(&bytes) {
            self.left.push(bytes);
        }
    }

    /// `access` has been made, or begun.
    pub fn begin(&mut self, access: &Access) {
        let end = match (access.ends, access.by) {
            (Ends::Barrier, _) => return,
            (Ends::Wgmma, _) => End::Wgmma { younger: Younger::NONE },
            (Ends::Store { written }, _) => End::Store {
                written,
                issued: self.group,
                open: true,
                younger: Younger::NONE,
            },
            (Ends::WithTheOp, By::Lanes) => End::Lanes { converged: false },
            (Ends::WithTheOp, By::Issuer) => End::Issuer { converged: false },
            (Ends::WithTheOp, By::Warps) => End::Warps,
            (Ends::WithTheOp, By::SomeWarp) => End::SomeWarp,
        };
        self.add(Pending {
            bytes: access.bytes,
            footprint: access.footprint,
            before_refill: access
                .slot
                .filter(|slot| self.filled.contains(slot))
                .map(|slot| slot.alloc),
            outside: None,
            since: Since::Now,
            reads: access.reads,
            writes: access.writes,
            generic: access.proxy == Proxy::Generic,
            end,
        });
    }

    /// Another group of wgmmas begins.
    pub fn issue_wgmma(&mut self) {
        for p in &mut self.pending {
            if let End::Wgmma { younger } = &mut p.end {
                *younger = younger.another();
            }
        }
    }

    pub fn wait_wgmma(&mut self, n: u32) {
        self.wait(|end| match end {
            End::Wgmma { younger } => {
                let (some, left) = younger.wait(n);
                (some.then_some(End::Warps), left.map(|younger| End::Wgmma { younger }))
            }
            end => (None, Some(end)),
        });
    }

    /// The issuing lane of the executing group ends its group of stores.
    pub fn commit_stores(&mut self) {
        let group = self.group;
        self.end(|end| match end {
            End::Store {
                written,
                issued,
                open,
                younger,
            } if issued == group => Some(End::Store {
                written,
                issued,
                open: false,
                younger: if open { Younger::NONE } else { younger.another() },
            }),
            _ => None,
        });
    }

    /// Every lane waits for the groups that it has committed. In a warp region, those may be copies from before it, or not.
    pub fn wait_stores(&mut self, n: u32, scope: WaitScope) {
        let group = self.group;
        self.wait(|end| match end {
            End::Store { written: true, .. } if scope == WaitScope::SmemRead => (None, Some(end)),
            End::Store { issued, .. } if issued != group => (Some(End::SomeWarp), Some(end)),
            End::Store {
                written,
                issued,
                open: false,
                younger,
            } => {
                let (some, left) = younger.wait(n);
                let left = left.map(|younger| End::Store {
                    written,
                    issued,
                    open: false,
                    younger,
                });
                (some.then_some(End::Issuer { converged: false }), left)
            }
            end => (None, Some(end)),
        });
    }

    /// A barrier of `group`.
    pub fn pass_barrier(&mut self, group: Group) {
        match (self.group, group) {
            (Group::Warp, _) => self.end(|end| (!end.is_running()).then_some(End::Warp)),
            (Group::Warpgroup | Group::Block, Group::Warp) => self.end(|end| match end {
                End::Lanes { converged: false } => Some(End::Lanes { converged: true }),
                End::Issuer { converged: false } => Some(End::Issuer { converged: true }),
                _ => None,
            }),
            (Group::Warpgroup | Group::Block, Group::Warpgroup | Group::Block) => {
                self.pending.retain(|p| p.end.is_running());
                if group == Group::Block {
                    self.filled.clear();
                    let pending = &self.pending;
                    self.left.retain(|left| pending.iter().any(|p| p.bytes.overlap(left)));
                }
            }
        }
    }

    /// What is pending has been begun at another time now, by `later` of its footprint.
    pub fn later(&mut self, later: impl Fn(FootprintId, Since) -> Since) {
        let since = |p: &Pending| p.footprint.map_or(p.since, |footprint| later(footprint, p.since));
        if self.pending.iter().any(|p| since(p) != p.since) {
            for p in std::mem::take(&mut self.pending) {
                self.add(Pending { since: since(&p), ..p });
            }
        }
    }

    /// What came before may be ordered before what others do from here on.
    pub fn release(&mut self) {
        self.released = true;
    }

    /// What others have done is ordered before what follows, also what followed from a release by this group.
    pub fn acquire(&mut self) {
        if std::mem::take(&mut self.released) {
            self.filled.clear();
        }
    }

    /// Whatever others have done may be ordered before what follows.
    pub fn forget_filled(&mut self) {
        self.filled.clear();
    }

    /// Every lane has waited for a refill of the slot. What was pending when that was issued is over there.
    pub fn refill(&mut self, slot: Part) {
        for p in std::mem::take(&mut self.pending) {
            let is_over = p.before_refill == Some(slot.alloc);
            let outside = if is_over { Some(slot) } else { p.outside };
            self.add(Pending { outside, ..p });
        }
        if !self.filled.contains(&slot) {
            self.filled.push(slot);
        }
    }

    /// Another iteration begins, in which slots have other numbers, but for those named before the loop, which was entered like this.
    pub fn forget_refills(&mut self, entry: &State) {
        self.filled.retain(|slot| entry.filled.contains(slot));
        if self.pending.iter().any(|p| p.outside.is_some()) {
            for p in std::mem::take(&mut self.pending) {
                self.add(Pending { outside: None, ..p });
            }
        }
    }

    /// A warp region begins: its warps may wait for what runs.
    pub fn warp(&self) -> State {
        let mut region = State::new(Group::Warp);
        region
            .pending
            .extend(self.pending.iter().filter(|p| p.end.is_running()));
        region.unfenced.clone_from(&self.unfenced);
        region.unread.clone_from(&self.unread);
        region
    }

    /// A warp region is over: what happened in it is some warp's, or that warp's of which `alone` has the footprint.
    pub fn absorb(&mut self, region: &State, alone: impl Fn(&Pending) -> Option<FootprintId>) {
        for &p in &region.pending {
            let known = alone(&p).filter(|_| p.generic && matches!(p.end, End::Lanes { .. } | End::Warp));
            let (footprint, end) = match known {
                Some(footprint) => (Some(footprint), End::Lanes { converged: false }),
                None if p.end.is_running() => (p.footprint, p.end),
                None => (p.footprint, End::SomeWarp),
            };
            self.add(Pending { footprint, end, ..p });
        }
        // Its warps diverged: what one acquired may follow from what another one released.
        self.forget_filled();
        for &bytes in &region.unfenced {
            self.unfence(bytes);
        }
        for &bytes in &region.unread {
            self.read(bytes);
        }
        for &bytes in &region.left {
            self.leave(bytes);
        }
    }

    /// In a warp region, the warp has acquired others' accesses; in a feeding loop, the issuing lane has.
    pub fn acquire_alone(&mut self) {
        self.add(Pending {
            bytes: Bytes::EVERYTHING,
            footprint: None,
            before_refill: None,
            outside: None,
            since: Since::Now,
            reads: false,
            writes: true,
            generic: true,
            end: match self.group {
                Group::Warp => End::Warp,
                Group::Warpgroup | Group::Block => End::Issuer { converged: false },
            },
        });
    }

    /// What is still running in these bytes: whether wgmmas do, bulk stores, bulk stores whose group is not committed.
    pub fn running_in(&self, bytes: &[Bytes]) -> (bool, bool, bool) {
        let (mut wgmmas, mut stores, mut open_) = (false, false, false);
        for p in self
            .pending
            .iter()
            .filter(|p| bytes.iter().any(|b| b.overlap(&p.bytes)))
        {
            wgmmas |= matches!(p.end, End::Wgmma { .. });
            stores |= matches!(p.end, End::Store { .. });
            open_ |= matches!(p.end, End::Store { open: true, .. });
        }
        (wgmmas, stores, open_)
    }

    /// Whether bulk stores may still have to read shared memory, and whether some such group is not committed.
    pub fn unread_stores(&self) -> (bool, bool) {
        self.pending
            .iter()
            .fold((false, false), |(unread, open), p| match p.end {
                End::Store {
                    written: false,
                    open: is_open,
                    ..
                } => (true, open | is_open),
                _ => (unread, open),
            })
    }

    /// A wait: what ended, and what is left.
    fn wait(&mut self, how: impl Fn(End) -> (Option<End>, Option<End>)) {
        let all = std::mem::take(&mut self.pending);
        for p in all {
            let (ended, left) = how(p.end);
            for end in [left, ended].into_iter().flatten() {
                self.add(Pending { end, ..p });
            }
        }
    }

    fn end(&mut self, how: impl Fn(End) -> Option<End>) {
        let mut changed = false;
        for p in &mut self.pending {
            if let Some(end) = how(p.end) {
                p.end = end;
                changed = true;
            }
        }
        if changed {
            // Some may be alike now.
            let all = std::mem::take(&mut self.pending);
            for p in all {
                self.add(p);
            }
        }
    }
}
