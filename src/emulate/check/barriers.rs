//! What hands on what a warp has seen: mbarriers, named barriers, the cluster's barrier, and fences.
use super::clock::{Clock, Knowledge};
use super::words::is_wide;
use super::{Access, Checker, Mode, Sync, Verdict, Who, WordWait};
use crate::emulate::overwrite::lines_of;
use crate::emulate::shared::CtaSlot;
use crate::error::Loc;
use crate::ptx::modifier::{AtomSem, FenceSem, LoadSem, ProxyFence, Scope};
use std::iter;
use std::rc::Rc;

/// A clock that a barrier collects, and the one that it hands on since its last phase.
#[derive(Default)]
pub struct Handover {
    pub arriving: Clock,
    pub passed: Clock,
}

impl Handover {
    pub fn new(width: usize) -> Handover {
        Handover {
            arriving: Clock::new(width),
            passed: Clock::new(width),
        }
    }

    /// A phase is over.
    pub fn open(&mut self) {
        self.passed.join(&self.arriving);
        self.arriving.clear();
    }
}

/// A warp that has waited for a phase.
#[derive(Clone, Copy)]
struct Waited {
    who: usize,
    epoch: u32,
    /// The component of its warpgroup's products, and the groups of wgmma that it had issued by then: who knows a later one to be complete
    /// knows that it has gone on.
    products: usize,
    groups: u32,
}

/// An mbarrier.
pub struct Barrier {
    pub phases: Handover,
    /// Who initialised it, when, and whether `fence.mbarrier_init` followed.
    pub by: usize,
    pub at: u32,
    pub published: bool,
    /// The landing of the copies by threads that arrive in the current phase.
    pub landing: Option<u32>,
    /// Who has waited for the last phase that is complete.
    waits: Vec<Waited>,
}

impl Barrier {
    /// Of those who have waited for the last phase, one of whom nobody knows who has arrived in the current one.
    fn left_behind(&self) -> Option<usize> {
        let known = self.phases.arriving.seen();
        let late = |it: &&Waited| known[it.who] < it.epoch && known[it.products] <= it.groups;
        self.waits.iter().find(late).map(|it| it.who)
    }
}

/// What a warp's fences have done, and will.
#[derive(Default)]
pub struct Fences {
    /// It has executed one that a relaxed arrival at the cluster's barrier may publish with.
    fenced: bool,
    /// The epoch of its first store to a peer's shared memory that it has not released to the cluster.
    pub far_since: Option<u32>,
    /// What its relaxed arrivals and accesses release, as of its last fences, and what its next ones acquire: within the CTA, and beyond.
    pub releases: [Option<Clock>; 2],
    pub acquires: [Option<Clock>; 2],
}

impl Fences {
    /// What it looks at without acquiring. `beyond`: it takes a scope beyond the CTA.
    pub fn acquire_later(&mut self, beyond: bool, released: &Clock, width: usize) {
        self.acquires[usize::from(beyond)]
            .get_or_insert_with(|| Clock::new(width))
            .join(released);
    }
}

impl Checker {
    /// What a CTA's warps have stored in peers' memory and have released to the own CTA at most: components, and from which epoch on.
    fn far_stores(&self, cta: CtaSlot) -> Vec<(usize, u32)> {
        let warps = self.shape.warps_per_cta as usize;
        let ids = cta.0 as usize * warps..(cta.0 as usize + 1) * warps;
        let of = |id: usize| Some((id % self.warps, self.fences[id].far_since?));
        ids.filter_map(of).collect()
    }

    fn arrive(&mut self, who: Who, slot: CtaSlot, offset: u32, release: Option<Scope>) {
        let id = self.id(who);
        if release == Some(Scope::Cluster) {
            self.fences[id].far_since = None;
        }
        let far = match slot == who.cta {
            true => vec![],
            false => self.far_stores(who.cta),
        };
        let Some(barrier) = self.ctas[slot.0 as usize].barriers.get_mut(&offset) else {
            return;
        };
        let arriving = &mut barrier.phases.arriving;
        let mut tell = |clock: &Clock, wide: bool| match wide || far.is_empty() {
            true => arriving.join(clock),
            false => {
                let mut clock = clock.clone();
                far.iter()
                    .for_each(|(component, epoch)| clock.forget(*component, *epoch));
                arriving.join(&clock);
            }
        };
        match release {
            Some(scope) => tell(&self.clocks[id], is_wide(scope)),
            None => {
                let releases = self.fences[id].releases.iter().zip([false, true]);
                releases.for_each(|(clock, wide)| clock.iter().for_each(|clock| tell(clock, wide)));
            }
        }
        self.tick(id);
    }

    fn wait(&mut self, who: Who, (slot, offset): (CtaSlot, u32), scope: Option<Scope>, waits: Option<u32>) {
        let (id, component) = (self.id(who), self.component(who));
        let products = (self.columns(who.cta).products + who.index / 4) as usize;
        let Some(barrier) = self.ctas[slot.0 as usize].barriers.get_mut(&offset) else {
            return;
        };
        match scope {
            Some(_) => {
                self.times.until[id] = None;
                Rc::make_mut(&mut self.clocks[id]).join(&barrier.phases.passed);
            }
            None => self.fences[id].acquire_later(false, &barrier.phases.passed, self.width),
        }
        if let Some(groups) = waits {
            barrier.waits.retain(|it| it.who != component);
            barrier.waits.push(Waited {
                who: component,
                epoch: self.clocks[id].seen()[component],
                products,
                groups,
            });
        }
    }

    fn fence(&mut self, who: Who, sem: FenceSem, scope: Scope) {
        let (id, wide) = (self.id(who), is_wide(scope));
        self.fences[id].fenced = true;
        if sem != FenceSem::Release {
            for (i, needs_wide) in [false, true].into_iter().enumerate() {
                let acquired = self.fences[id].acquires[i].take_if(|_| wide || !needs_wide);
                acquired.iter().for_each(|acquired| self.clock(id).join(acquired));
            }
        }
        if let Some(member) = self.member(who) {
            self.times.until[id] = None;
            let clock = Rc::make_mut(&mut self.clocks[id]);
            self.across
                .iter_mut()
                .for_each(|across| across.fence(member, clock, sem, scope));
        }
        if sem != FenceSem::Acquire {
            self.fences[id].releases[usize::from(wide)] = Some(Clock::clone(&self.clocks[id]));
            if wide {
                self.fences[id].far_since = None;
            }
        }
        self.tick(id);
    }

    /// A wait for a word of global memory is over: an access to so many of its bytes, and what is learnt there.
    fn waited_for_word(
        &mut self,
        who: Who,
        (address, bytes): (u64, u64),
        mode: Mode,
        wait: Option<WordWait>,
        loc: Loc,
    ) -> Verdict {
        let id = self.id(who);
        let mut verdict = Ok(());
        if wait.is_none_or(|wait| wait.takes) {
            let view = Rc::clone(&self.clocks[id]);
            verdict = self.global_lines(
                who,
                &view,
                &mut lines_of(address, bytes),
                Access::of_word(address, mode, loc),
            );
        }
        if let Some(member) = self.member(who) {
            self.times.until[id] = None;
            let clock = Rc::make_mut(&mut self.clocks[id]);
            self.across.iter_mut().for_each(|across| match wait {
                Some(wait) => across.waited(member, clock, address, wait, loc),
                None => drop(across.at_words(member, clock, iter::once((address, bytes)), mode, loc)),
            });
        }
        verdict
    }

    pub(super) fn synchronise(&mut self, who: Who, event: Sync) -> Verdict {
        let (id, width) = (self.id(who), self.width);
        match event {
            Sync::BarrierInit { slot, offset } => {
                let by = self.component(who);
                let barrier = Barrier {
                    phases: Handover::new(width),
                    by,
                    at: self.clocks[id].seen()[by],
                    published: false,
                    landing: None,
                    waits: vec![],
                };
                self.cta(slot).barriers.insert(offset, barrier);
            }
            Sync::BarrierInvalidate { slot, offset } => {
                self.cta(slot).barriers.remove(&offset);
            }
            Sync::Arrive { slot, offset, release } => {
                let verdict = self.check_barrier(who, slot, offset, slot != who.cta);
                self.visit(who, slot);
                self.arrive(who, slot, offset, release);
                return verdict;
            }
            Sync::ExpectTx { slot, offset } => return self.check_barrier(who, slot, offset, slot != who.cta),
            Sync::Waited {
                slot,
                offset,
                scope,
                waits,
            } => {
                let verdict = self.check_barrier(who, slot, offset, slot != who.cta);
                self.wait(who, (slot, offset), scope, waits);
                return verdict;
            }
            Sync::NamedArrive { id: number, opens } => {
                let named = self.ctas[who.cta.0 as usize].named[number as usize]
                    .get_or_insert_with(|| Box::new(Handover::new(width)));
                named.arriving.join(&self.clocks[id]);
                if opens {
                    named.open();
                }
                self.tick(id);
            }
            Sync::NamedWaited { id: number } => {
                if let Some(named) = &self.ctas[who.cta.0 as usize].named[number as usize] {
                    self.times.until[id] = None;
                    Rc::make_mut(&mut self.clocks[id]).join(&named.passed);
                }
            }
            Sync::ClusterArrive { releases } => {
                if std::mem::take(&mut self.fences[id].fenced) || releases {
                    self.fences[id].far_since = None;
                    let cluster = self.cluster_of(who.cta);
                    self.clusters[cluster].arriving.join(&self.clocks[id]);
                    self.tick(id);
                }
            }
            Sync::ClusterWaited => {
                let cluster = self.cluster_of(who.cta);
                self.times.until[id] = None;
                Rc::make_mut(&mut self.clocks[id]).join(&self.clusters[cluster].passed);
            }
            Sync::Fence { sem, scope } => self.fence(who, sem, scope),
            Sync::WordAdded { address, old, amount } => {
                if let Some(across) = &mut self.across {
                    across.added(address, old, amount);
                }
            }
            Sync::TagWaited { address, scope, loc } => {
                let sem = match scope {
                    Scope::Cta => LoadSem::AcquireCta,
                    Scope::Cluster => LoadSem::AcquireCluster,
                    Scope::Gpu => LoadSem::AcquireGpu,
                    Scope::Sys => LoadSem::AcquireSys,
                };
                return self.waited_for_word(who, (address, 8), Mode::Load(sem), None, loc);
            }
            Sync::WordWaited { address, wait, loc } => {
                let mode = Mode::Atomic(AtomSem::Relaxed, wait.scope);
                return self.waited_for_word(who, (address, 4), mode, Some(wait), loc);
            }
            Sync::FenceMbarrierInit => {
                self.fences[id].fenced = true;
                let by = self.component(who);
                for barrier in self.cta(who.cta).barriers.values_mut() {
                    barrier.published |= barrier.by == by;
                }
            }
            Sync::FenceProxy(proxy) => match proxy {
                ProxyFence::Async
                | ProxyFence::AsyncSharedCta
                | ProxyFence::AsyncSharedCluster
                | ProxyFence::AsyncGenericAcquireCluster
                | ProxyFence::AsyncGenericReleaseCluster => {
                    Rc::make_mut(&mut self.clocks[id]).fence();
                    self.tick(id);
                }
                ProxyFence::AsyncGlobal | ProxyFence::Alias => {}
            },
            Sync::MapRelease { scope } => {
                Rc::make_mut(&mut self.clocks[id]).release_maps(scope);
                self.tick(id);
            }
            Sync::MapAcquire { address, scope } => self.acquire_map(who, address >> 7, scope),
            Sync::WgmmaWaited { settled } => {
                let own = self.columns(who.cta).products + who.index / 4;
                Rc::make_mut(&mut self.clocks[id]).see(own as usize, settled as u32);
            }
        }
        Ok(())
    }

    /// Whether a warp may use a barrier; `far`: from a peer, or by the async proxy.
    pub(super) fn check_barrier(&self, who: Who, slot: CtaSlot, offset: u32, far: bool) -> Verdict {
        let own = self.component(who);
        let clock = &self.clocks[self.id(who)];
        let Some(barrier) = self.ctas[slot.0 as usize].barriers.get(&offset) else {
            return Ok(());
        };
        if barrier.by != own && clock.seen()[barrier.by] < barrier.at {
            return Err(self.uninitialised(who, slot, offset, barrier.by));
        }
        if far && !barrier.published && clock.fenced()[barrier.by] < barrier.at {
            return Err(self.unpublished(offset));
        }
        Ok(())
    }

    pub(super) fn complete_phase(&mut self, slot: CtaSlot, offset: u32) -> Verdict {
        let Some(barrier) = self.cta(slot).barriers.get_mut(&offset) else {
            return Ok(());
        };
        let left = barrier.left_behind();
        barrier.waits.clear();
        barrier.landing = None;
        barrier.phases.open();
        left.map_or(Ok(()), |component| Err(self.left_behind(component, slot, offset)))
    }
}
