//! What ops do to memory.
use super::entities::Alloc;
use super::kernel::Kernel;
use super::op::{MmaOperand, OpKind};
use super::view::RefUse;
use cranelift_entity::SecondaryMap;
use smallvec::SmallVec;

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

/// One access of an op to data in GMEM or SMEM. Barriers and semaphores synchronise; they are no data.
#[derive(Clone, Copy, Debug)]
pub struct Effect<'a> {
    pub alloc: Alloc,
    pub view: &'a RefUse,
    pub proxy: Proxy,
    pub access: Access,
}

impl Effect<'_> {
    /// Whether it may still be going on when the op is done: until the wait that covers it.
    pub fn is_asynchronous(&self) -> bool {
        self.proxy != Proxy::Generic
    }
}

/// What an op itself does to memory (not what the ops in its regions do).
pub fn of(kind: &OpKind) -> SmallVec<[Effect<'_>; 2]> {
    let mut out = SmallVec::new();
    let mut push = |view, proxy, access| push_effect(&mut out, view, proxy, access);
    match kind {
        OpKind::Load { src } => push(src, Proxy::Generic, Access::Read),
        OpKind::Store { dst, .. } => push(dst, Proxy::Generic, Access::Write),
        OpKind::Swap { dst, .. } | OpKind::AtomicUpdate { dst, .. } => push(dst, Proxy::Generic, Access::Update),
        OpKind::MultimemStore { dst, .. } => push(dst, Proxy::Generic, Access::Write),
        OpKind::MultimemLoadReduce { src, .. } => push(src, Proxy::Generic, Access::Read),
        OpKind::AsyncStoreSmem { dst, atomic, .. } => push(
            dst,
            Proxy::AsyncCopy,
            if atomic.is_some() {
                Access::Update
            } else {
                Access::Write
            },
        ),
        OpKind::CopyGmemToSmem { src, dst, .. } => {
            push(src, Proxy::AsyncCopy, Access::Read);
            push(dst, Proxy::AsyncCopy, Access::Write);
        }
        OpKind::CopySmemToGmem {
            src, dst, reduction, ..
        } => {
            push(src, Proxy::AsyncCopy, Access::Read);
            push(
                dst,
                Proxy::AsyncCopy,
                if reduction.is_some() {
                    Access::Update
                } else {
                    Access::Write
                },
            );
        }
        OpKind::Wgmma { acc: _, a, b } => {
            if let MmaOperand::Smem(a) = a {
                push(a, Proxy::TensorCore, Access::Read);
            }
            push(b, Proxy::TensorCore, Access::Read);
        }
        // A prefetch changes nothing that anyone can see.
        _ => {}
    }
    out
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

fn push_effect<'a>(out: &mut SmallVec<[Effect<'a>; 2]>, view: &'a RefUse, proxy: Proxy, access: Access) {
    out.push(Effect {
        alloc: view.alloc,
        view,
        proxy,
        access,
    });
}
