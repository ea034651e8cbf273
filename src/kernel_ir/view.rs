//! Uses of references: an allocation and the view that an op takes of it.
use super::entities::{Alloc, Axis, Value};
use super::types::{Elem, Shape};
use crate::dtype::DType;

/// What an op touches: part of an allocation, seen in some shape.
#[derive(Clone, PartialEq, Debug)]
pub struct RefUse {
    pub alloc: Alloc,
    /// Applied in order, in logical coordinates of the allocation.
    pub steps: Vec<Step>,
    pub place: Place,
    /// Element and shape after all steps.
    pub elem: Elem,
    pub shape: Shape,
}

/// Whose copy of the allocation.
#[derive(Clone, PartialEq, Debug)]
pub enum Place {
    /// The executing block's (SMEM, barriers) or this device's (GMEM).
    Here,
    /// The block of the cluster with these coordinates on `axes` and the executing block's on the others.
    Cluster { axes: Vec<Axis>, indices: Vec<Value> },
    /// The same GMEM parameter on another device. `device`: logical id, i32.
    Peer { device: Value },
    /// The same GMEM parameter on all devices of these mesh axes, by a multicast address.
    Multicast { axes: Vec<Axis> },
}

/// One step of a view.
#[derive(Clone, PartialEq, Debug)]
pub enum Step {
    /// One entry per dimension.
    Index(Vec<DimIndex>),
    /// Result dimension i is dimension `permutation[i]`.
    Transpose(Vec<u32>),
    /// The row-major elements in another shape.
    Reshape(Shape),
    /// The bits as another element type of equal width (JAX: the minor dim scales when widths differ).
    Bitcast { dtype: DType, shape: Shape },
    /// GMEM `(N, *spatial, C)` seen as `(N·Πout, *window, C)`.
    Im2Col {
        window: Vec<u64>,
        padding: Vec<(i64, i64)>,
        shape: Shape,
    },
    /// TMEM `(m, Πbatch·n)` seen as `(*batch, m, n)`.
    ExpandLeadingBatch(Shape),
    /// Before normalisation only: a member of a union.
    ExtractAlias {
        offset: u64,
        group: u32,
        member: Box<super::AllocData>,
    },
    /// Before normalisation only: the buffer's physical bytes are swizzled.
    Unswizzle(u32),
    /// Before normalisation only: physical `(…, dᵢ/tᵢ…, tᵢ…)` seen as `(…, dᵢ…)`.
    Untile(Shape),
}

/// What an index step takes of one dimension.
#[derive(Clone, PartialEq, Debug)]
pub enum DimIndex {
    /// One position; the dimension is dropped.
    At(Index),
    /// `size` positions `start + i·stride`. A dynamic start has stride 1.
    Slice { start: Index, size: u64, stride: u64 },
    /// The positions in an index array; the result has the array's extent there (TMA gather and scatter).
    Gather(Value),
}

/// A position in a dimension.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Index {
    Const(i64),
    /// An integer scalar, any integer type.
    Value(Value),
}

impl DimIndex {
    /// The whole of a dimension.
    pub fn all(size: u64) -> DimIndex {
        DimIndex::Slice {
            start: Index::Const(0),
            size,
            stride: 1,
        }
    }

    /// Whether this is the whole of a dimension of extent `extent`.
    pub fn is_all(&self, extent: u64) -> bool {
        matches!(self, DimIndex::Slice { start: Index::Const(0), size, stride: 1 } if *size == extent)
    }
}

impl RefUse {
    pub fn dtype(&self) -> Option<DType> {
        self.elem.dtype()
    }

    /// The one barrier (semaphore) that a normalised use names: its index in the allocation.
    pub fn single_index(&self) -> Option<Index> {
        match self.steps.as_slice() {
            [Step::Index(dims)] => match dims.as_slice() {
                [DimIndex::At(index)] => Some(*index),
                _ => None,
            },
            _ => None,
        }
    }
}
