//! The three interfaces through which a checker sees a run: memory, asynchronous use of registers, synchronisation.
//!
//! Instruction methods call only these; [`NoCheck`] compiles to nothing.
use super::shared::CtaSlot;
use super::warp::Warp;
use crate::ptx::modifier::{AtomSem, FenceSem, LoadSem, ProxyFence, Scope, StoreSem};

/// Who acts on memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Proxy {
    Generic,
    /// TMA and the tensor cores.
    Async,
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
}

/// Addresses of an access.
#[derive(Clone, Copy, Debug)]
pub enum Range<'a> {
    /// Of the lanes of a mask; 32-bit shared-window addresses.
    SharedLanes {
        addresses: &'a [u32; 32],
        mask: u32,
    },
    GlobalLanes {
        addresses: &'a [u64; 32],
        mask: u32,
    },
    Shared {
        slot: CtaSlot,
        offset: u32,
    },
    Global {
        address: u64,
    },
}

/// An access to memory: `bytes` at every address.
#[derive(Clone, Copy, Debug)]
pub struct Access<'a> {
    pub range: Range<'a>,
    pub bytes: u32,
    pub proxy: Proxy,
    pub mode: Mode,
}

/// Registers that an asynchronous operation uses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ownership {
    /// It reads them.
    Borrowed,
    /// It reads and writes them.
    Taken,
    /// It is done with them.
    Returned,
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
        count: u32,
    },
    ExpectTx {
        slot: CtaSlot,
        offset: u32,
        bytes: u32,
    },
    CompleteTx {
        slot: CtaSlot,
        offset: u32,
        bytes: u32,
    },
    Waited {
        slot: CtaSlot,
        offset: u32,
        parity: u32,
        scope: Scope,
    },
    NamedArrive {
        id: u32,
        waits: bool,
    },
    NamedWaited {
        id: u32,
    },
    WarpBarrier {
        mask: u32,
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
    WgmmaFence,
    WgmmaCommit,
    WgmmaWaited {
        pending: u32,
    },
    BulkCommit,
    BulkWaited {
        pending: u32,
        reads_only: bool,
    },
}

/// A checker.
pub trait Hooks: Default + Send + 'static {
    /// An access by the executing lanes of a warp, or by the async proxy on its behalf.
    #[inline(always)]
    fn memory(&mut self, _w: &Warp, _access: Access<'_>) {}
    /// A register operand is about to be read.
    #[inline(always)]
    fn reads(&mut self, _w: &Warp, _operand: u16) {}
    /// A register has been written.
    #[inline(always)]
    fn writes(&mut self, _w: &Warp, _operand: u16) {}
    /// An asynchronous operation of the warp takes or returns registers.
    #[inline(always)]
    fn ownership(&mut self, _w: &Warp, _operands: &[u16], _how: Ownership) {}
    #[inline(always)]
    fn sync(&mut self, _w: &Warp, _event: Sync) {}
}

/// Checks nothing, costs nothing.
#[derive(Clone, Copy, Default, Debug)]
pub struct NoCheck;

impl Hooks for NoCheck {}
