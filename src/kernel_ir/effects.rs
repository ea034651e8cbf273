//! What ops do to memory and to its order: the one account of it.
//!
//! An op's row ([`table`](super::table)) says in these words which bytes it reads and writes, by which proxy, who does it and when it is
//! over ([`of`]), what it does to the order of other accesses ([`order`]), and what of others its results report ([`look`]). Who needs to know what an op touches (the placing of barriers, passes that
//! move waits and stores, scopes of acquire and release) finds it here and nowhere else. Barriers and semaphores synchronise; they are no data.
use super::class::Transfer;
use super::entities::Alloc;
use super::kernel::Kernel;
use super::op::{Does, InlinePtx, MmaOperand, OpKind, WaitScope};
use super::types::{Elem, Group};
use super::view::RefUse;
use cranelift_entity::SecondaryMap;
use smallvec::{SmallVec, smallvec};

/// How memory is accessed (PTX ISA, "Proxies").
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Proxy {
    /// Ordinary loads and stores, atomics.
    Generic,
    /// Bulk and tensor copies.
    AsyncCopy,
    /// wgmma and tcgen05 reading shared memory.
    TensorCore,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Access {
    Read,
    Write,
    /// Reads and writes at once: swap, atomics, reductions.
    Update,
}

impl Access {
    pub fn reads(self) -> bool {
        matches!(self, Access::Read | Access::Update)
    }
    pub fn writes(self) -> bool {
        matches!(self, Access::Write | Access::Update)
    }
}

/// Who makes an access, of the executing group.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Actor {
    /// The lanes, each the elements that its layout gives it; a scalar is read by all of them and written by the first.
    Lanes,
    /// The lanes, each whatever elements its indices say.
    AnyLanes,
    /// A unit that the lane which issues copies has started.
    Issuer,
    /// A unit that each warp has started for itself.
    Warps,
}

/// When an access is over.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Completion<'a> {
    /// When the op is.
    Now,
    /// With a wait for its group of wgmmas.
    Wgmma,
    /// With a wait for its group of smem → gmem copies; what it writes, only with one for [`WaitScope::Complete`].
    StoreGroup,
    /// With a phase of this mbarrier.
    Barrier(&'a RefUse),
    /// With a wait for its group of sm_80 copies.
    LoadGroup,
    /// With a phase of the mbarrier at which the lane that issued it has an arrival made, then or later.
    Commit,
}

/// One access of an op to data in GMEM or SMEM.
#[derive(Clone, Copy, Debug)]
pub struct Effect<'a> {
    pub alloc: Alloc,
    pub view: &'a RefUse,
    pub proxy: Proxy,
    pub access: Access,
    pub actor: Actor,
    pub completion: Completion<'a>,
}

impl Effect<'_> {
    /// Whether it may still be going on when the op is done: until the wait that covers it.
    pub fn is_asynchronous(&self) -> bool {
        self.completion != Completion::Now
    }
}

/// What an op does to the order of accesses around it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Order<'a> {
    /// Nothing.
    None,
    /// Not known: instructions of the user's. What they order is the user's to know; the compiler counts on nothing of it.
    Unknown,
    /// A rendezvous of the group, whose lanes see each other's memory.
    Rendezvous(Group),
    /// A rendezvous of the executing group; then it `signals` others, before that it `acquires` from others.
    RendezvousExecuting {
        acquires: bool,
        signals: bool,
    },
    /// A rendezvous of the executing group, behind which one lane does what the op does. It may signal others, and wait for them.
    RendezvousBefore,
    /// What the lanes have stored in shared memory, units see; and a rendezvous.
    CommitSmem,
    /// Every lane waits for a phase of the barrier.
    Wait(&'a RefUse),
    /// Every warp arrives for itself (in a warp region, the warp for its warpgroup).
    Arrive,
    /// One lane arrives for the group.
    ArriveByIssuer,
    /// Ends a group of smem → gmem copies.
    CommitStores,
    /// At most `n` groups of the issuing lane's smem → gmem copies are left.
    WaitStores {
        n: u32,
        scope: WaitScope,
    },
    /// At most `n` groups of the executing warp's wgmmas are left.
    WaitWgmma {
        n: u32,
    },
    /// What every lane has seen of ordinary stores to shared or device memory, units that it starts see too.
    FenceShared,
    FenceDevice,
}

/// What an op looks at, for its results, and others may change.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Look<'a> {
    Memory(&'a RefUse),
    /// The count of a semaphore.
    Semaphore,
    /// Whether a phase of a barrier is over.
    Barrier,
}

/// What an op itself does (not what the ops in its regions do).
pub(super) struct Effects<'a> {
    accesses: SmallVec<[Effect<'a>; 2]>,
    order: Order<'a>,
    look: Option<Look<'a>>,
}

/// What an op itself does to memory.
pub fn of(kind: &OpKind) -> SmallVec<[Effect<'_>; 2]> {
    kind.effects().accesses
}

/// What an op itself does to the order of accesses. A copy with a group of its own commits it behind its accesses.
pub fn order(kind: &OpKind) -> Order<'_> {
    kind.effects().order
}

/// What an op's results report that others may change.
pub fn look(kind: &OpKind) -> Option<Look<'_>> {
    kind.effects().look
}

// ------------------------------------------------------------ what rows are made of
pub(super) const SIGNALS: Order<'static> = Order::RendezvousExecuting {
    acquires: false,
    signals: true,
};
pub(super) const ACQUIRES: Order<'static> = Order::RendezvousExecuting {
    acquires: true,
    signals: false,
};

impl<'a> Effects<'a> {
    pub fn none() -> Effects<'a> {
        orders(Order::None)
    }
    fn with(self, order: Order<'a>) -> Effects<'a> {
        Effects { order, ..self }
    }
    pub fn looks_at(self, look: Look<'a>) -> Effects<'a> {
        let look = Some(look);
        Effects { look, ..self }
    }
}

pub(super) fn orders(order: Order<'_>) -> Effects<'_> {
    Effects {
        accesses: smallvec![],
        order,
        look: None,
    }
}

fn does<'a>(accesses: impl IntoIterator<Item = Effect<'a>>) -> Effects<'a> {
    Effects {
        accesses: accesses.into_iter().collect(),
        ..Effects::none()
    }
}

/// What it loads is its result, which reports what others may change.
pub(super) fn transferred<'a>(transfer: &Transfer<'a>) -> Effects<'a> {
    let access = match (transfer.value, transfer.loads || transfer.update.is_some()) {
        (None, _) => Access::Read,
        (Some(_), false) => Access::Write,
        (Some(_), true) => Access::Update,
    };
    let actor = match transfer.is_whole() {
        true => Actor::Lanes,
        false => Actor::AnyLanes,
    };
    let effects = does([effect(transfer.view, Proxy::Generic, access, actor, Completion::Now)]);
    match transfer.loads {
        true => effects.looks_at(Look::Memory(transfer.view)),
        false => effects,
    }
}

/// Its bytes complete on the barrier; there is no arrival.
pub(super) fn async_store<'a>(dst: &'a RefUse, barrier: &'a RefUse, updates: bool) -> Effects<'a> {
    let (access, completion) = (update_if(updates), Completion::Barrier(barrier));
    does([effect(dst, Proxy::AsyncCopy, access, Actor::Warps, completion)])
}

pub(super) fn copy_in<'a>(
    src: &'a RefUse,
    dst: &'a RefUse,
    barrier: Option<&'a RefUse>,
    by_threads: bool,
) -> Effects<'a> {
    let completion = barrier.map_or(Completion::LoadGroup, Completion::Barrier);
    let (proxy, actor, arrives) = match by_threads {
        true => (Proxy::Generic, Actor::AnyLanes, Order::Arrive),
        false => (Proxy::AsyncCopy, Actor::Issuer, Order::ArriveByIssuer),
    };
    let order = barrier.map_or(Order::None, |_| arrives);
    let copy = |view, access| effect(view, proxy, access, actor, completion);
    does([copy(src, Access::Read), copy(dst, Access::Write)]).with(order)
}

pub(super) fn copy_out<'a>(
    src: &'a RefUse,
    dst: &'a RefUse,
    updates: bool,
    commits: bool,
    by_threads: bool,
) -> Effects<'a> {
    if by_threads {
        return does([by_any_lanes(src, Access::Read), by_any_lanes(dst, update_if(updates))]);
    }
    let copy = |view, access| effect(view, Proxy::AsyncCopy, access, Actor::Issuer, Completion::StoreGroup);
    does([copy(src, Access::Read), copy(dst, update_if(updates))]).with(match commits {
        true => Order::CommitStores,
        false => Order::None,
    })
}

/// The operands of a wgmma that are in memory.
pub(super) fn tensor_core<'a>(a: &'a MmaOperand, b: &'a RefUse) -> Effects<'a> {
    let reads = |view| effect(view, Proxy::TensorCore, Access::Read, Actor::Warps, Completion::Wgmma);
    does(a.reference().into_iter().chain([b]).map(reads))
}

/// What a product in tensor memory reads of shared memory. It may have an arrival made.
pub(super) fn reads_of_tcgen05<'a>(a: Option<&'a RefUse>, b: &'a RefUse, arrives: bool) -> Effects<'a> {
    let reads = |view| effect(view, Proxy::TensorCore, Access::Read, Actor::Issuer, Completion::Commit);
    does(a.into_iter().chain([b]).map(reads)).with(match arrives {
        true => Order::ArriveByIssuer,
        false => Order::None,
    })
}

/// The operands of a product that are read from memory as it goes.
pub(super) fn in_place<'a>(a: &'a MmaOperand, b: &'a MmaOperand) -> Effects<'a> {
    does(
        [a, b]
            .into_iter()
            .filter_map(MmaOperand::reference)
            .map(|r| by_any_lanes(r, Access::Read)),
    )
}

/// Of instructions of the user's.
pub(super) fn text<'a>(does_what: Does, code: &InlinePtx, refs: &'a [RefUse]) -> Effects<'a> {
    if does_what != Does::Acts {
        return Effects::none();
    }
    let data = refs.iter().enumerate().filter(|(_, r)| r.elem != Elem::Barrier);
    does(data.map(|(i, r)| by_any_lanes(r, code.access(i)))).with(match code.once {
        true => Order::RendezvousBefore,
        false => Order::Unknown,
    })
}

fn by_any_lanes(view: &RefUse, access: Access) -> Effect<'_> {
    effect(view, Proxy::Generic, access, Actor::AnyLanes, Completion::Now)
}

fn effect<'a>(view: &'a RefUse, proxy: Proxy, access: Access, actor: Actor, completion: Completion<'a>) -> Effect<'a> {
    Effect {
        alloc: view.alloc,
        view,
        proxy,
        access,
        actor,
        completion,
    }
}

fn update_if(updates: bool) -> Access {
    if updates { Access::Update } else { Access::Write }
}

/// The allocation that owns the bytes: a union for its members.
pub fn root(kernel: &Kernel, alloc: Alloc) -> Alloc {
    kernel.allocs[alloc].within.map_or(alloc, |within| within.union)
}

/// Whether two allocations may have bytes in common.
pub fn may_share(kernel: &Kernel, a: Alloc, b: Alloc) -> bool {
    root(kernel, a) == root(kernel, b)
}

/// The allocations that some op of the kernel writes through one of these proxies.
pub fn written(kernel: &Kernel, through: impl Fn(Proxy) -> bool) -> SecondaryMap<Alloc, bool> {
    let mut written = SecondaryMap::new();
    kernel.for_each_op(&mut |op| {
        for effect in of(&kernel.ops[op].kind) {
            written[effect.alloc] |= effect.access.writes() && through(effect.proxy);
        }
    });
    written
}
