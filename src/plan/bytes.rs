//! Which bytes an access touches.
use super::allocate::Allocation;
use crate::dtype::DType;
use crate::kernel_ir::{Alloc, AllocKind, DimIndex, Elem, Index, Kernel, Place, RefUse, Step};
use crate::layout::Assignment;

/// Where bytes are.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Space {
    /// The block's shared memory, from its start: allocations that overlay each other, and members of unions, overlap here.
    Shared,
    /// Other blocks' shared memory. It counts as disjoint from the own, also where an index may name the own block: what blocks do in
    /// each other's memory is ordered by barriers of the cluster, which are the user's.
    Peers,
    /// An array in device memory.
    Device(Alloc),
    /// All of memory.
    Everything,
    /// No memory: how far each warp has come with its waits for mbarriers. A wait reads it, the arrival of one lane for its
    /// group writes it (see [`super::insert_barriers`]).
    Progress,
}

/// A range of bytes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Bytes {
    pub space: Space,
    pub from: u64,
    pub to: u64,
}

impl Bytes {
    pub const EVERYTHING: Bytes = Bytes {
        space: Space::Everything,
        from: 0,
        to: u64::MAX,
    };
    pub const PROGRESS: Bytes = Bytes {
        space: Space::Progress,
        from: 0,
        to: 1,
    };

    pub fn overlap(&self, other: &Bytes) -> bool {
        match (self.space, other.space) {
            (Space::Everything, _) | (_, Space::Everything) => true,
            (a, b) => a == b && self.from < other.to && other.from < self.to,
        }
    }

    pub fn covers(&self, other: &Bytes) -> bool {
        self.space == other.space && self.from <= other.from && other.to <= self.to
    }

    /// The smallest range with both, in one space.
    pub fn hull(&self, other: &Bytes) -> Bytes {
        Bytes {
            space: self.space,
            from: self.from.min(other.from),
            to: self.to.max(other.to),
        }
    }
}

/// The bytes of a view.
pub fn of(kernel: &Kernel, assignment: &Assignment, allocation: &Allocation, r: &RefUse) -> Bytes {
    let data = &kernel.allocs[r.alloc];
    let bits = match data.elem() {
        Elem::Data(dtype) => u64::from(dtype.bits()),
        Elem::Barrier | Elem::Semaphore => 64,
    };
    let bytes = |first: u64, count: u64| {
        let end = first.saturating_add(count).saturating_mul(bits).div_ceil(8);
        (first.saturating_mul(bits) / 8, end)
    };
    if !data.is_smem() {
        let (first, count) = contiguous_range(kernel, &data.shape, data.shape.len(), &r.steps);
        let (from, to) = bytes(first, count);
        let space = Space::Device(r.alloc);
        return Bytes { space, from, to };
    }
    let transforms = assignment.smem[r.alloc].as_ref();
    let tiled = transforms.map_or(0, |t| t.tiling.len());
    let (first, count) = contiguous_range(kernel, &data.shape, data.shape.len().saturating_sub(tiled), &r.steps);
    let (mut from, mut to) = bytes(first, count);
    let start = allocation.smem[r.alloc].map_or(0, u64::from);
    from += start;
    to = to.saturating_add(start);
    if transforms.is_some_and(|t| t.swizzle_bytes > 0) {
        // A swizzle moves bytes within 1024 of them.
        (from, to) = (from / 1024 * 1024, to.next_multiple_of(1024));
    }
    let space = match r.place {
        Place::Here => Space::Shared,
        Place::Cluster { .. } | Place::Peer { .. } | Place::Multicast { .. } => Space::Peers,
    };
    Bytes { space, from, to }
}

/// The bytes of a whole SMEM allocation that is no member of a union.
pub fn of_smem(kernel: &Kernel, allocation: &Allocation, alloc: Alloc) -> Option<Bytes> {
    let data = &kernel.allocs[alloc];
    let count: u64 = data.shape.iter().product();
    let bytes = match (&data.kind, &data.within) {
        (AllocKind::Smem { dtype, .. }, None) => dtype.bytes(count)?,
        (AllocKind::SmemUnion, _) => DType::I8.bytes(count)?,
        (
            AllocKind::Smem { .. }
            | AllocKind::Gmem { .. }
            | AllocKind::Tmem { .. }
            | AllocKind::TmemUnion
            | AllocKind::Barrier { .. }
            | AllocKind::Semaphore { .. }
            | AllocKind::Register { .. },
            _,
        ) => return None,
    };
    let from = u64::from(allocation.smem[alloc]?);
    Some(Bytes {
        space: Space::Shared,
        from,
        to: from + bytes,
    })
}

/// The elements that a view may touch, as one range of the row-major array: where the view begins with positions in leading
/// dimensions, of which `dims` are contiguous in memory.
fn contiguous_range(kernel: &Kernel, shape: &[u64], dims: usize, steps: &[Step]) -> (u64, u64) {
    let total: u64 = shape.iter().product();
    let Some(Step::Index(indices)) = steps.first() else {
        return (0, total);
    };
    let (mut first, mut inner) = (0, total);
    for (index, &extent) in indices.iter().zip(shape).take(dims) {
        if extent == 0 {
            return (0, 0);
        }
        inner /= extent;
        // The positions of this dimension: from, to.
        let (from, to) = match index {
            DimIndex::At(i) => {
                let (lo, hi) = bounds(kernel, *i, extent);
                (lo, hi + 1)
            }
            DimIndex::Slice { start, size, stride } => {
                let (lo, hi) = bounds(kernel, *start, extent);
                let reach = size.saturating_sub(1).saturating_mul(*stride).saturating_add(1);
                (lo, hi.saturating_add(reach).min(extent.max(lo + 1)))
            }
            DimIndex::Window { .. } | DimIndex::Gather(_) => (0, extent),
        };
        first += from * inner;
        if to - from != 1 {
            return (first, (to - from) * inner);
        }
    }
    (first, inner)
}

/// The least and the greatest position that an index may have in a dimension.
fn bounds(kernel: &Kernel, index: Index, extent: u64) -> (u64, u64) {
    let last = extent as i64 - 1;
    let clamp = |x: i64| x.clamp(0, last) as u64;
    match index {
        Index::Const(c) => (clamp(c), clamp(c)),
        Index::Value(v) => {
            let (lo, hi) = kernel.facts(v).bounds_i64();
            (clamp(lo), clamp(hi.max(lo)))
        }
    }
}
