//! What ops do to memory and to its order: the one account of it.
//!
//! Every op says here which bytes it reads and writes, by which proxy, who does it and when it is over ([`of`]), what it does to
//! the order of other accesses ([`order`]), and what its results tell of others ([`look`]). They are columns of one exhaustive
//! table: a new op does not compile without its row. Who needs to know what an op touches (the placing of barriers, passes that
//! move waits and stores, scopes of acquire and release) asks here and nowhere else. Barriers and semaphores synchronise; they are no data.
use super::class::pure_ops;
use super::entities::Alloc;
use super::kernel::Kernel;
use super::op::{Arriving, AtomicOp, Does, FenceKind, MmaOperand, OpKind, WaitScope};
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
    /// wgmma reading shared memory.
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
    /// Nobody knows: instructions of the user's. What they order is the user's to know; the compiler counts on nothing of it.
    Unknown,
    /// The lanes of the group meet, and see each other's memory.
    Meet(Group),
    /// The lanes of the executing group meet; then `signals` others, before that `acquires` from others.
    MeetExecuting {
        acquires: bool,
        signals: bool,
    },
    /// The lanes of the executing group meet before one of them does what the op does. It may signal others, and be told by them.
    MeetBefore,
    /// What the lanes have stored in shared memory, units see; and they meet.
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
struct Row<'a> {
    effects: SmallVec<[Effect<'a>; 2]>,
    order: Order<'a>,
    look: Option<Look<'a>>,
}

/// What an op itself does to memory.
pub fn of(kind: &OpKind) -> SmallVec<[Effect<'_>; 2]> {
    row(kind).effects
}

/// What an op itself does to the order of accesses. A copy with a group of its own commits it behind its accesses.
pub fn order(kind: &OpKind) -> Order<'_> {
    row(kind).order
}

/// What an op's results tell that others may change.
pub fn look(kind: &OpKind) -> Option<Look<'_>> {
    row(kind).look
}

/// The table.
fn row(kind: &OpKind) -> Row<'_> {
    let row = |effects, order, look| Row { effects, order, look };
    let does = |effects| row(effects, Order::None, None);
    let orders = |order| row(smallvec![], order, None);
    let lanes = |view, access| effect(view, Proxy::Generic, access, Actor::Lanes, Completion::Now);
    let any_lanes = |view, access| effect(view, Proxy::Generic, access, Actor::AnyLanes, Completion::Now);
    let stores = |view, access| does(smallvec![lanes(view, access)]);
    let loads = |view, access| row(smallvec![lanes(view, access)], Order::None, Some(Look::Memory(view)));
    let copy = |view, access, completion| effect(view, Proxy::AsyncCopy, access, Actor::Issuer, completion);
    let mma = |view| effect(view, Proxy::TensorCore, Access::Read, Actor::Warps, Completion::Wgmma);
    match kind {
        OpKind::Load { src } => loads(src, Access::Read),
        OpKind::Swap { dst, .. } => loads(dst, Access::Update),
        OpKind::Store { dst, .. } => stores(dst, Access::Write),
        OpKind::AtomicUpdate { dst, .. } => stores(dst, Access::Update),
        OpKind::LoadMasked { src, .. } | OpKind::LoadAt { src, .. } => row(
            smallvec![any_lanes(src, Access::Read)],
            Order::None,
            Some(Look::Memory(src)),
        ),
        OpKind::StoreMasked { dst, .. } | OpKind::StoreAt { dst, .. } => does(smallvec![any_lanes(dst, Access::Write)]),
        OpKind::AtomicUpdateAt { dst, .. } => does(smallvec![any_lanes(dst, Access::Update)]),
        // Its bytes complete on the barrier; nobody arrives.
        OpKind::AsyncStoreSmem {
            dst, atomic, barrier, ..
        } => does(smallvec![effect(
            dst,
            Proxy::AsyncCopy,
            update_if(atomic.is_some()),
            Actor::Warps,
            Completion::Barrier(barrier)
        )]),
        OpKind::CopyGmemToSmem { src, dst, barrier, .. } => {
            let (completion, order) = match barrier {
                Some(barrier) => (Completion::Barrier(barrier), Order::ArriveByIssuer),
                None => (Completion::LoadGroup, Order::None),
            };
            let (from, to) = (
                copy(src, Access::Read, completion),
                copy(dst, Access::Write, completion),
            );
            row(smallvec![from, to], order, None)
        }
        OpKind::CopySmemToGmem {
            src,
            dst,
            reduction,
            commit_group,
            ..
        } => {
            let (from, to) = (
                copy(src, Access::Read, Completion::StoreGroup),
                copy(dst, update_if(reduction.is_some()), Completion::StoreGroup),
            );
            let order = if *commit_group {
                Order::CommitStores
            } else {
                Order::None
            };
            row(smallvec![from, to], order, None)
        }
        OpKind::Wgmma { acc: _, a, b } => does(match a {
            MmaOperand::Smem(a) => smallvec![mma(a), mma(b)],
            MmaOperand::Registers(_) => smallvec![mma(b)],
        }),
        OpKind::DotInPlace { acc: _, a, b } => does(
            [a, b]
                .into_iter()
                .filter_map(|operand| match operand {
                    MmaOperand::Smem(r) => Some(any_lanes(r, Access::Read)),
                    MmaOperand::Registers(_) => None,
                })
                .collect(),
        ),
        OpKind::Sync { group } => orders(Order::Meet(*group)),
        OpKind::CommitSmem => orders(Order::CommitSmem),
        OpKind::SemaphoreSignal { .. } | OpKind::SemaphoreSignalParallel { .. } => orders(Order::MeetExecuting {
            acquires: false,
            signals: true,
        }),
        OpKind::SemaphoreWait { .. } => orders(Order::MeetExecuting {
            acquires: true,
            signals: false,
        }),
        // Relaxed: what it tells of other memory needs a wait.
        OpKind::SemaphoreRead { .. } => row(smallvec![], Order::None, Some(Look::Semaphore)),
        OpKind::BarrierWait { barrier, .. } => orders(Order::Wait(barrier)),
        OpKind::BarrierTest { barrier, .. } => row(smallvec![], Order::Wait(barrier), Some(Look::Barrier)),
        OpKind::BarrierArrive { .. } => orders(Order::Arrive),
        OpKind::MbarrierArrive {
            by: Arriving::Warps | Arriving::All,
            ..
        } => orders(Order::Arrive),
        OpKind::MbarrierArrive { by: Arriving::One, .. } | OpKind::MbarrierExpect { .. } => {
            orders(Order::MeetExecuting {
                acquires: false,
                signals: true,
            })
        }
        OpKind::MbarrierWait { barrier, order, .. } => orders(match order.relaxed {
            true => Order::Unknown,
            false => Order::Wait(barrier),
        }),
        OpKind::CommitGroup => orders(Order::CommitStores),
        OpKind::WaitSmemToGmem { n, scope } => orders(Order::WaitStores { n: *n, scope: *scope }),
        OpKind::WgmmaWait { n, .. } => orders(Order::WaitWgmma { n: *n }),
        OpKind::Fence { kind } => orders(match kind {
            FenceKind::ProxyAsyncGlobal => Order::FenceDevice,
            FenceKind::ProxyAsyncSharedCta => Order::FenceShared,
            FenceKind::ProxyAsyncGenericAcquire | FenceKind::ProxyAsyncGenericRelease => Order::None,
        }),
        // A prefetch changes nothing that anyone can see; waits for sm_80 copies are refused by lowering.
        OpKind::Prefetch { .. } | OpKind::WaitGmemToSmem { .. } => does(smallvec![]),
        OpKind::InlinePtx {
            does: Does::Acts,
            code,
            refs,
            ..
        } => row(
            refs.iter()
                .enumerate()
                .filter(|(_, r)| r.elem != Elem::Barrier)
                .map(|(i, r)| any_lanes(r, code.access(i)))
                .collect(),
            match code.once {
                true => Order::MeetBefore,
                false => Order::Unknown,
            },
            None,
        ),
        pure_ops!()
        | OpKind::OptimizationBarrier { .. }
        | OpKind::AccInit { .. }
        | OpKind::AccRead { .. }
        | OpKind::For { .. }
        | OpKind::While { .. }
        | OpKind::Switch { .. }
        | OpKind::Scope { .. }
        | OpKind::WarpMap { .. }
        | OpKind::SetMaxRegisters { .. }
        | OpKind::Delay { .. }
        | OpKind::GridDependency { .. }
        | OpKind::DebugPrint { .. }
        | OpKind::ProfileMark { .. }
        | OpKind::PrintLayout { .. } => does(smallvec![]),
    }
}

/// How an op updates memory atomically, if it does.
pub fn atomic(kind: &OpKind) -> Option<AtomicOp> {
    if let OpKind::AtomicUpdate { op, .. } | OpKind::AtomicUpdateAt { op, .. } = kind {
        Some(*op)
    } else {
        None
    }
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
