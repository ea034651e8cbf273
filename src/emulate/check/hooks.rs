//! The door: what the machine tells a checker of, and all that it asks.
//!
//! Instructions call only these; [`NoCheck`] compiles to nothing, [`Checker`](super::Checker) is the one that listens. An event is here if the
//! checker looks at it.
use super::clock::View;
use super::tensor::{Issued, TensorWork, Touch};
use crate::emulate::options::Names;
use crate::emulate::overwrite::Mask;
use crate::emulate::shared::CtaSlot;
use crate::error::{Error, Loc};
use crate::ptx::modifier::{AtomSem, FenceSem, LoadSem, ProxyFence, Scope, StoreSem, TmemAccess};
use std::sync::Arc;

/// What a checker says of an event. The event happens all the same, and the checker has noted it: the run may go on.
pub type Verdict = Result<(), Box<Error>>;

/// What a checker knows of a machine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Shape {
    /// Devices that run side by side.
    pub devices: u32,
    /// Resident clusters of all of them, device by device, and CTAs of each.
    pub clusters: u32,
    pub cluster_size: u32,
    /// A cluster's extents.
    pub cluster: [u32; 3],
    pub warps_per_cta: u32,
    pub smem_bytes: u32,
    /// Clusters may tell each other through global memory: all that may are in the machine.
    pub communicates: bool,
    /// There are instructions for tensor memory.
    pub tensor: bool,
}

/// A warp, by its CTA and its index there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Who {
    pub cta: CtaSlot,
    pub index: u32,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mode {
    Load(LoadSem),
    Store(StoreSem),
    Atomic(AtomSem, Scope),
    /// By the async proxy.
    Read,
    Write,
    Reduce,
    /// By a copy of the lanes (`cp.async`) that is issued: from then until they have waited for it.
    SmallRead,
    SmallWrite,
}

impl Mode {
    /// The scope of a look at what others may change meanwhile, and whether it acquires.
    pub fn looks(self) -> Option<(Scope, bool)> {
        match self {
            Mode::Load(sem) => match sem {
                LoadSem::Weak => None,
                LoadSem::RelaxedCta => Some((Scope::Cta, false)),
                LoadSem::RelaxedCluster => Some((Scope::Cluster, false)),
                LoadSem::RelaxedGpu => Some((Scope::Gpu, false)),
                LoadSem::Volatile | LoadSem::RelaxedSys => Some((Scope::Sys, false)),
                LoadSem::AcquireCta => Some((Scope::Cta, true)),
                LoadSem::AcquireCluster => Some((Scope::Cluster, true)),
                LoadSem::AcquireGpu => Some((Scope::Gpu, true)),
                LoadSem::AcquireSys => Some((Scope::Sys, true)),
            },
            Mode::Atomic(sem, scope) => Some((scope, matches!(sem, AtomSem::Acquire | AtomSem::AcqRel))),
            Mode::Store(_) | Mode::Read | Mode::Write | Mode::Reduce | Mode::SmallRead | Mode::SmallWrite => None,
        }
    }

    /// The scope of a change that others may look at meanwhile, and whether it releases.
    pub fn signals(self) -> Option<(Scope, bool)> {
        match self {
            Mode::Store(sem) => match sem {
                StoreSem::Weak => None,
                StoreSem::RelaxedCta => Some((Scope::Cta, false)),
                StoreSem::RelaxedCluster => Some((Scope::Cluster, false)),
                StoreSem::RelaxedGpu => Some((Scope::Gpu, false)),
                StoreSem::Volatile | StoreSem::RelaxedSys => Some((Scope::Sys, false)),
                StoreSem::ReleaseCta => Some((Scope::Cta, true)),
                StoreSem::ReleaseCluster => Some((Scope::Cluster, true)),
                StoreSem::ReleaseGpu => Some((Scope::Gpu, true)),
                StoreSem::ReleaseSys => Some((Scope::Sys, true)),
            },
            Mode::Atomic(sem, scope) => Some((scope, matches!(sem, AtomSem::Release | AtomSem::AcqRel))),
            Mode::Load(_) | Mode::Read | Mode::Write | Mode::Reduce | Mode::SmallRead | Mode::SmallWrite => None,
        }
    }
}

/// Addresses of an access.
#[derive(Clone, Copy, Debug)]
pub enum Range<'a> {
    /// Of the lanes of a mask; 32-bit shared-window addresses, less an offset.
    SharedLanes {
        addresses: &'a [u32; 32],
        offset: i32,
        mask: u32,
    },
    GlobalLanes {
        addresses: &'a [u64; 32],
        offset: i32,
        mask: u32,
    },
    /// One run of bytes.
    Shared {
        slot: CtaSlot,
        offset: u32,
    },
    /// Lines of 128 bytes and which bytes of each.
    Lines {
        slot: CtaSlot,
        lines: &'a [(u32, Mask)],
    },
    Global {
        address: u64,
    },
}

/// An access to memory: `bytes` at every address (of lines: no more than what they say).
#[derive(Clone, Copy)]
pub struct Access<'a> {
    pub range: Range<'a>,
    pub bytes: u32,
    pub mode: Mode,
    /// The instruction's.
    pub loc: Loc,
    /// Of a write that has yet to happen.
    pub changes: &'a Changes<'a>,
    /// Of a bulk store: which of its warp's. Of a wgmma: its group, from 1 on.
    pub number: u64,
}

impl Access<'_> {
    /// To a word of four bytes of global memory.
    pub fn of_word(address: u64, mode: Mode, loc: Loc) -> Access<'static> {
        Access {
            range: Range::Global { address },
            bytes: 4,
            mode,
            loc,
            changes: &changes_all,
            number: 0,
        }
    }
}

/// Which bytes of a line of 128 hold something else than what is about to be written there: of a CTA's shared memory by offset / 128,
/// of global memory (whichever CTA) by address / 128. Asked only where somebody else wrote.
pub type Changes<'a> = dyn Fn(CtaSlot, u64) -> Mask + 'a;

/// Of what is no write, and of writes of which nobody knows.
pub fn changes_all(_: CtaSlot, _: u64) -> Mask {
    Mask::MAX
}

/// What orders memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sync {
    BarrierInit {
        slot: CtaSlot,
        offset: u32,
    },
    BarrierInvalidate {
        slot: CtaSlot,
        offset: u32,
    },
    /// `slot` is the barrier's CTA.
    Arrive {
        slot: CtaSlot,
        offset: u32,
        /// To whom it releases what was done before; `None`: what a fence before it has.
        release: Option<Scope>,
    },
    ExpectTx {
        slot: CtaSlot,
        offset: u32,
    },
    Waited {
        slot: CtaSlot,
        offset: u32,
        /// What it acquires; `None`: what a fence behind it will.
        scope: Option<Scope>,
        /// It would not have gone on before: the groups of wgmma that the warp had issued by then.
        waits: Option<u32>,
    },
    NamedArrive {
        id: u32,
        /// It was the last.
        opens: bool,
    },
    NamedWaited {
        id: u32,
    },
    ClusterArrive {
        releases: bool,
    },
    ClusterWaited,
    Fence {
        sem: FenceSem,
        scope: Scope,
    },
    FenceMbarrierInit,
    FenceProxy(ProxyFence),
    MapRelease {
        scope: Scope,
    },
    /// Of the tensor map at an address of global memory.
    MapAcquire {
        address: u64,
        scope: Scope,
    },
    /// Groups of the warpgroup that are complete.
    WgmmaWaited {
        settled: u64,
    },
    /// A lane has waited for a word of global memory.
    WordWaited {
        address: u64,
        wait: WordWait,
        loc: Loc,
    },
    /// A lane has waited for the tag in a word of 8 bytes of global memory.
    TagWaited {
        address: u64,
        scope: Scope,
        loc: Loc,
    },
    /// A lane's atomic has added to a word of global memory that held `old`; `None`: it has done something else.
    WordAdded {
        address: u64,
        old: u32,
        amount: Option<u32>,
    },
}

/// A wait for a word to be at least `value` that is over: it held `held`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WordWait {
    pub scope: Scope,
    /// And `value` has been subtracted.
    pub takes: bool,
    pub held: u32,
    pub value: u32,
}

/// A bulk load at one of its destinations.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Landing {
    pub slot: CtaSlot,
    /// What it writes, chunks that a swizzle moves included.
    pub offset: u32,
    pub bytes: u32,
    /// Offset of the barrier in the same CTA.
    pub barrier: u32,
    /// It is a reduction (`red.async`), of an element.
    pub reduces: bool,
    /// The instruction's.
    pub loc: Loc,
}

/// Copies by threads (`cp.async`), one of each lane of a mask.
#[derive(Clone, Copy)]
pub struct SmallCopies<'a> {
    pub mask: u32,
    pub destinations: &'a [u32; 32],
    pub sources: &'a [u64; 32],
    /// What each writes, and how much of that it reads.
    pub bytes: u32,
    pub taken: &'a [u32; 32],
    /// The instruction's.
    pub loc: Loc,
}

/// A checker.
pub trait Hooks: 'static {
    /// Whether it wants to know anything at all.
    const LISTENS: bool;
    /// `names` is for messages.
    fn new(shape: Shape, names: Arc<Names>) -> Self;
    /// A cluster begins at a place in the machine; `id` is its position along the grid of clusters.
    #[inline(always)]
    fn cluster_starts(&mut self, _cluster: u32, _device: u32, _id: [u32; 3]) {}
    #[inline(always)]
    fn warp_ends(&mut self, _who: Who) {}
    /// Its last warp has ended, and nothing of it is in flight.
    #[inline(always)]
    fn cta_ends(&mut self, _slot: CtaSlot) -> Verdict {
        Ok(())
    }
    /// What an asynchronous operation that the warp issues now inherits.
    #[inline(always)]
    fn view(&mut self, _who: Who) -> View {
        View::default()
    }
    /// An access by the executing lanes of a warp is about to happen.
    #[inline(always)]
    fn memory(&mut self, _who: Who, _access: Access<'_>) -> Verdict {
        Ok(())
    }
    /// Whether lanes of the last access of [`Hooks::memory`] may have bytes in common. Right where it says no.
    #[inline(always)]
    fn lanes_may_overlap(&self) -> bool {
        false
    }
    /// Whether it wants to know what the last access's atomics did to words ([`Sync::WordAdded`]).
    #[inline(always)]
    fn counts_words(&self) -> bool {
        false
    }
    /// The async proxy accesses memory for the warp that issued an operation.
    #[inline(always)]
    fn async_memory(&mut self, _who: Who, _view: &View, _access: Access<'_>) -> Verdict {
        Ok(())
    }
    /// There is a tensor map at this address of global memory.
    #[inline(always)]
    fn map_named(&mut self, _who: Who, _address: u64) {}
    /// A copy of the warp is about to use it.
    #[inline(always)]
    fn map_used(&mut self, _who: Who, _address: u64) -> Verdict {
        Ok(())
    }
    /// Whether the warp's cluster has written what it holds now: maybe not alone.
    #[inline(always)]
    fn map_is_own(&self, _who: Who, _address: u64) -> bool {
        false
    }
    /// A bulk load has been issued.
    #[inline(always)]
    fn load_issued(&mut self, _who: Who, _view: &View, _landing: Landing) -> Verdict {
        Ok(())
    }
    /// It has written a destination, and is about to complete on the barrier.
    #[inline(always)]
    fn load_landed(&mut self, _landing: Landing) {}
    /// It has written all its destinations.
    #[inline(always)]
    fn load_done(&mut self, _who: Who) {}
    /// The warp has waited in full for one of its bulk stores, by number.
    #[inline(always)]
    fn store_waited(&mut self, _who: Who, _number: u64) {}
    /// A warp is about to access tensor memory, gets columns of it, or gives them back.
    #[inline(always)]
    fn tensor_touched(&mut self, _who: Who, _touch: Touch) -> Verdict {
        Ok(())
    }
    /// It has waited for all its loads, or stores, of tensor memory.
    #[inline(always)]
    fn tensor_waited(&mut self, _who: Who, _what: TmemAccess) {}
    /// A thread of it has issued a product or a copy.
    #[inline(always)]
    fn tensor_issued(&mut self, _who: Who, _view: &View, _work: TensorWork<'_>) -> Issued {
        (0, Ok(()))
    }
    /// It has issued a commit to these mbarriers: the number of what that covers.
    #[inline(always)]
    fn tensor_committed(&mut self, _who: Who, _loc: Loc, _targets: &[(CtaSlot, u32)]) -> Issued {
        (0, Ok(()))
    }
    /// All up to that number is complete, and the commit is about to arrive at one of them.
    #[inline(always)]
    fn tensor_arrives(&mut self, _who: Who, _view: &View, _number: u32, _at: (CtaSlot, u32)) {}
    /// All of the warp's copies by threads so far arrive on an mbarrier: as which of the landings in the CTA.
    #[inline(always)]
    fn small_copies_arrive(&mut self, _who: Who, _slot: CtaSlot, _offset: u32) -> u32 {
        0
    }
    /// Copies by threads of the warp are over: for itself, or for whoever has seen a landing.
    #[inline(always)]
    fn small_copies_end(&mut self, _who: Who, _copies: SmallCopies<'_>, _landing: Option<u32>) -> Verdict {
        Ok(())
    }
    /// The warp has waited for copies by threads.
    #[inline(always)]
    fn small_copies_waited(&mut self, _who: Who) {}
    /// Arrivals before they count, waits after they are over.
    #[inline(always)]
    fn sync(&mut self, _who: Who, _event: Sync) -> Verdict {
        Ok(())
    }
    /// A phase of an mbarrier has completed.
    #[inline(always)]
    fn phase_completes(&mut self, _slot: CtaSlot, _offset: u32) -> Verdict {
        Ok(())
    }
    /// The last cluster of a device has ended.
    #[inline(always)]
    fn device_ends(&mut self, _device: u32) -> Verdict {
        Ok(())
    }
    /// Who last signalled a word of global memory, in words.
    fn last_signal(&self, _address: u64) -> Option<String> {
        None
    }
    /// Semaphores that are left with a count that nobody waited for; `word`: what a word of global memory holds.
    fn leftovers(&self, _word: &dyn Fn(u64) -> u32) -> Vec<Error> {
        vec![]
    }
    /// The cluster's barrier has.
    #[inline(always)]
    fn cluster_opens(&mut self, _cluster: u32) {}
}

/// Checks nothing, costs nothing.
#[derive(Clone, Copy, Default, Debug)]
pub struct NoCheck;

impl Hooks for NoCheck {
    const LISTENS: bool = false;
    fn new(_: Shape, _: Arc<Names>) -> NoCheck {
        NoCheck
    }
}
