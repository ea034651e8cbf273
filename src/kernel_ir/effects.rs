//! What ops do to memory and to its order: the one account of it.
//!
//! Every op says here which bytes it reads and writes, by which proxy, who does it and when it is over ([`of`]), and what it
//! does to the order of other accesses ([`order`]). Both are exhaustive: a new op does not compile without its rows. Who needs to
//! know what an op touches (the placing of barriers, passes that move waits and stores, scopes of acquire and release) asks
//! here and nowhere else. Barriers and semaphores synchronise; they are no data.
use super::entities::Alloc;
use super::kernel::Kernel;
use super::op::{AtomicOp, FenceKind, MmaOperand, OpKind, WaitScope};
use super::types::Group;
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

/// What an op itself does to memory (not what the ops in its regions do).
pub fn of(kind: &OpKind) -> SmallVec<[Effect<'_>; 2]> {
    let lanes = |view, access| effect(view, Proxy::Generic, access, Actor::Lanes, Completion::Now);
    let copy = |view, access, completion| effect(view, Proxy::AsyncCopy, access, Actor::Issuer, completion);
    let mma = |view| effect(view, Proxy::TensorCore, Access::Read, Actor::Warps, Completion::Wgmma);
    match kind {
        OpKind::Load { src } => smallvec![lanes(src, Access::Read)],
        OpKind::Store { dst, .. } => smallvec![lanes(dst, Access::Write)],
        OpKind::Swap { dst, .. } | OpKind::AtomicUpdate { dst, .. } => smallvec![lanes(dst, Access::Update)],
        OpKind::MultimemStore { dst, .. } => smallvec![lanes(dst, Access::Write)],
        OpKind::MultimemLoadReduce { src, .. } => smallvec![lanes(src, Access::Read)],
        OpKind::AsyncStoreSmem {
            dst, atomic, barrier, ..
        } => smallvec![effect(
            dst,
            Proxy::AsyncCopy,
            update_if(atomic.is_some()),
            Actor::Warps,
            Completion::Barrier(barrier)
        )],
        OpKind::CopyGmemToSmem { src, dst, barrier, .. } => {
            let completion = barrier.as_ref().map_or(Completion::LoadGroup, Completion::Barrier);
            smallvec![
                copy(src, Access::Read, completion),
                copy(dst, Access::Write, completion)
            ]
        }
        OpKind::CopySmemToGmem {
            src, dst, reduction, ..
        } => smallvec![
            copy(src, Access::Read, Completion::StoreGroup),
            copy(dst, update_if(reduction.is_some()), Completion::StoreGroup)
        ],
        OpKind::Wgmma { acc: _, a, b } => match a {
            MmaOperand::Smem(a) => smallvec![mma(a), mma(b)],
            MmaOperand::Registers(_) => smallvec![mma(b)],
        },
        // A prefetch changes nothing that anyone can see.
        OpKind::Prefetch { .. } => smallvec![],
        OpKind::Constant(_)
        | OpKind::Unary { .. }
        | OpKind::Binary { .. }
        | OpKind::Compare { .. }
        | OpKind::Select { .. }
        | OpKind::Clamp { .. }
        | OpKind::IntegerPow { .. }
        | OpKind::Convert { .. }
        | OpKind::Bitcast { .. }
        | OpKind::ReducePrecision { .. }
        | OpKind::Iota { .. }
        | OpKind::Broadcast { .. }
        | OpKind::Reshape { .. }
        | OpKind::Transpose { .. }
        | OpKind::Slice { .. }
        | OpKind::DynamicSlice { .. }
        | OpKind::DynamicUpdateSlice { .. }
        | OpKind::Concat { .. }
        | OpKind::Pad { .. }
        | OpKind::Reverse { .. }
        | OpKind::Reduce { .. }
        | OpKind::ArgReduce { .. }
        | OpKind::Cumulative { .. }
        | OpKind::OptimizationBarrier { .. }
        | OpKind::MultipleOf { .. }
        | OpKind::LayoutCast { .. }
        | OpKind::Relayout { .. }
        | OpKind::AxisIndex { .. }
        | OpKind::CommitGroup
        | OpKind::WaitSmemToGmem { .. }
        | OpKind::WaitGmemToSmem { .. }
        | OpKind::CommitSmem
        | OpKind::BarrierArrive { .. }
        | OpKind::BarrierWait { .. }
        | OpKind::BarrierTest { .. }
        | OpKind::Sync { .. }
        | OpKind::Fence { .. }
        | OpKind::SemaphoreSignal { .. }
        | OpKind::SemaphoreSignalParallel { .. }
        | OpKind::SemaphoreWait { .. }
        | OpKind::SemaphoreRead { .. }
        | OpKind::AccInit { .. }
        | OpKind::WgmmaWait { .. }
        | OpKind::AccRead { .. }
        | OpKind::Mma { .. }
        | OpKind::For { .. }
        | OpKind::While { .. }
        | OpKind::Switch { .. }
        | OpKind::Scope { .. }
        | OpKind::WarpMap { .. }
        | OpKind::SetMaxRegisters { .. }
        | OpKind::Delay { .. }
        | OpKind::GridDependency { .. }
        | OpKind::DebugPrint { .. }
        | OpKind::PrintLayout { .. } => smallvec![],
    }
}

/// What an op does to the order of accesses around it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Order<'a> {
    /// Nothing.
    None,
    /// The lanes of the group meet, and see each other's memory.
    Meet(Group),
    /// The lanes of the executing group meet; then `signals` others, before that `acquires` from others.
    MeetExecuting {
        acquires: bool,
        signals: bool,
    },
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

/// What an op itself does to the order of accesses. A copy with a group of its own commits it behind its accesses.
pub fn order(kind: &OpKind) -> Order<'_> {
    match kind {
        OpKind::Sync { group } => Order::Meet(*group),
        OpKind::CommitSmem => Order::CommitSmem,
        OpKind::SemaphoreSignal { .. } | OpKind::SemaphoreSignalParallel { .. } => Order::MeetExecuting {
            acquires: false,
            signals: true,
        },
        OpKind::SemaphoreWait { .. } => Order::MeetExecuting {
            acquires: true,
            signals: false,
        },
        OpKind::BarrierWait { barrier, .. } | OpKind::BarrierTest { barrier, .. } => Order::Wait(barrier),
        OpKind::BarrierArrive { .. } => Order::Arrive,
        OpKind::CopyGmemToSmem { barrier, .. } => match barrier {
            Some(_) => Order::ArriveByIssuer,
            None => Order::None,
        },
        OpKind::CopySmemToGmem { commit_group, .. } => match commit_group {
            true => Order::CommitStores,
            false => Order::None,
        },
        OpKind::CommitGroup => Order::CommitStores,
        OpKind::WaitSmemToGmem { n, scope } => Order::WaitStores { n: *n, scope: *scope },
        OpKind::WgmmaWait { n, .. } => Order::WaitWgmma { n: *n },
        OpKind::Fence { kind } => match kind {
            FenceKind::ProxyAsyncGlobal => Order::FenceDevice,
            FenceKind::ProxyAsyncSharedCta => Order::FenceShared,
            FenceKind::ProxyAsyncGenericAcquire | FenceKind::ProxyAsyncGenericRelease => Order::None,
        },
        // Its bytes complete on the barrier; nobody arrives.
        OpKind::AsyncStoreSmem { .. } => Order::None,
        // sm_80 copies: refused by lowering.
        OpKind::WaitGmemToSmem { .. } => Order::None,
        // Relaxed: what it tells of other memory needs a wait.
        OpKind::SemaphoreRead { .. } => Order::None,
        OpKind::Constant(_)
        | OpKind::Unary { .. }
        | OpKind::Binary { .. }
        | OpKind::Compare { .. }
        | OpKind::Select { .. }
        | OpKind::Clamp { .. }
        | OpKind::IntegerPow { .. }
        | OpKind::Convert { .. }
        | OpKind::Bitcast { .. }
        | OpKind::ReducePrecision { .. }
        | OpKind::Iota { .. }
        | OpKind::Broadcast { .. }
        | OpKind::Reshape { .. }
        | OpKind::Transpose { .. }
        | OpKind::Slice { .. }
        | OpKind::DynamicSlice { .. }
        | OpKind::DynamicUpdateSlice { .. }
        | OpKind::Concat { .. }
        | OpKind::Pad { .. }
        | OpKind::Reverse { .. }
        | OpKind::Reduce { .. }
        | OpKind::ArgReduce { .. }
        | OpKind::Cumulative { .. }
        | OpKind::OptimizationBarrier { .. }
        | OpKind::MultipleOf { .. }
        | OpKind::LayoutCast { .. }
        | OpKind::Relayout { .. }
        | OpKind::AxisIndex { .. }
        | OpKind::Load { .. }
        | OpKind::Store { .. }
        | OpKind::Swap { .. }
        | OpKind::AtomicUpdate { .. }
        | OpKind::MultimemStore { .. }
        | OpKind::MultimemLoadReduce { .. }
        | OpKind::Prefetch { .. }
        | OpKind::AccInit { .. }
        | OpKind::Wgmma { .. }
        | OpKind::AccRead { .. }
        | OpKind::Mma { .. }
        | OpKind::For { .. }
        | OpKind::While { .. }
        | OpKind::Switch { .. }
        | OpKind::Scope { .. }
        | OpKind::WarpMap { .. }
        | OpKind::SetMaxRegisters { .. }
        | OpKind::Delay { .. }
        | OpKind::GridDependency { .. }
        | OpKind::DebugPrint { .. }
        | OpKind::PrintLayout { .. } => Order::None,
    }
}

/// How an op updates memory atomically, if it does.
pub fn atomic(kind: &OpKind) -> Option<AtomicOp> {
    match kind {
        OpKind::AtomicUpdate { op, .. } => Some(*op),
        _ => None,
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
