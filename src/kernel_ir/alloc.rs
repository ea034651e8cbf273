//! Allocations: what references refer to.
use super::entities::{Alloc, Axis};
use super::text::texts;
use super::types::{Elem, LayoutSpec, Shape};
use crate::dtype::DType;
use crate::error::Loc;

/// One allocation. Its identity is its memory: two uses touch the same bytes only if their allocations are equal or share a union.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct AllocData {
    pub kind: AllocKind,
    /// Logical extents (before [`Stage::Normalized`](super::Stage) of SMEM and TMEM: physical ones, as JAX gives them). A barrier
    /// allocation has rank 1 once normalised.
    pub shape: Shape,
    /// One for all warpgroups of the block (`collective_axes` = the thread axis), or one for each. GMEM parameters are collective.
    pub collective: bool,
    /// The union that this is a member of.
    pub within: Option<Within>,
    pub owner: Owner,
    pub loc: Loc,
}

/// Who made an allocation, and orders what is done in it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Owner {
    /// The kernel's author: with `unsafe_no_auto_barriers` its order is the author's, too.
    Author,
    Compiler,
}

texts! {
/// A member's place in a union: members of one group lie one after another, groups overlap.
#[derive(Copy)]
pub struct Within {
    union: Alloc,
    /// Bytes (SMEM) or columns (TMEM) from the union's start.
    "at" offset: u64,
    group: u32,
}}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum AllocKind {
    /// Device memory: a kernel parameter, row-major and contiguous.
    Gmem { dtype: DType, origin: GmemOrigin },
    /// Shared memory. `transforms`: what the user asked for; `None` leaves the choice to layout inference.
    Smem {
        dtype: DType,
        transforms: Option<SmemTransforms>,
    },
    /// Shared memory whose members are separate allocations; `shape` is `[bytes]`. Never referred to itself once normalised.
    SmemUnion,
    /// Tensor memory, `shape` = rows × columns of elements.
    Tmem {
        dtype: DType,
        layout: Option<LayoutSpec>,
        collective_mma: bool,
    },
    /// Tensor memory whose members are separate allocations; `shape` is `[128, columns]`.
    TmemUnion,
    /// mbarriers in SMEM; `shape` is their number. `num_arrivals`: logical arrivals that end a phase.
    Barrier {
        num_arrivals: u64,
        orders_tensor_core: bool,
        cluster: Option<ClusterBarrier>,
    },
    /// i32 counters in GMEM, zero at entry.
    Semaphore { origin: GmemOrigin },
    /// A reference to registers: an accumulator (zero at scope entry), or a state of `run_state`. Only until
    /// [`Stage::Normalized`](super::Stage): then they are values.
    Register { dtype: DType, accumulator: bool },
}

texts! {
/// A barrier that every CTA differing in at most one of these axes arrives at.
pub struct ClusterBarrier {
    /// Each is one axis, or several that act as one.
    collective_axes: Vec<Vec<Axis>>,
    /// Only the leader's barrier is used: all arrive at that of the first block along the axes.
    leader_tracked: bool,
}}

/// Where GMEM comes from.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum GmemOrigin {
    /// Index into [`Kernel::params`](super::Kernel). The OUTPUT aliased with a MUTABLE parameter has no allocation of its own.
    Param(u32),
    /// Scratch that the launch provides, zeroed: semaphores. `global`: one per kernel (`get_global`), else one per block.
    Scratch { global: bool },
}

texts! {
/// How a logical SMEM array is laid out: tiled over its last dims, then swizzled.
#[derive(Default)]
pub struct SmemTransforms {
    /// Tile of the last `tiling.len()` dims: physical `(…, dᵢ/tᵢ…, tᵢ…)`. Empty: untiled.
    "tile" tiling: Shape = Shape::new(),
    /// 32, 64 or 128; 0: unswizzled. Byte-address bits `[4, 4+k) ^= [7, 7+k)` with k = log2(swizzle/16).
    "swizzle" swizzle_bytes: u32,
}}

impl AllocData {
    pub fn elem(&self) -> Elem {
        match &self.kind {
            AllocKind::Gmem { dtype, .. }
            | AllocKind::Smem { dtype, .. }
            | AllocKind::Tmem { dtype, .. }
            | AllocKind::Register { dtype, .. } => Elem::Data(*dtype),
            AllocKind::SmemUnion => Elem::Data(DType::I8),
            AllocKind::TmemUnion => Elem::Data(DType::I32),
            AllocKind::Barrier { .. } => Elem::Barrier,
            AllocKind::Semaphore { .. } => Elem::Semaphore,
        }
    }

    pub fn is_gmem(&self) -> bool {
        matches!(self.kind, AllocKind::Gmem { .. })
    }

    pub fn is_smem(&self) -> bool {
        matches!(self.kind, AllocKind::Smem { .. } | AllocKind::SmemUnion)
    }

    pub fn is_tmem(&self) -> bool {
        matches!(self.kind, AllocKind::Tmem { .. } | AllocKind::TmemUnion)
    }

    pub fn is_barrier(&self) -> bool {
        matches!(self.kind, AllocKind::Barrier { .. })
    }
}
