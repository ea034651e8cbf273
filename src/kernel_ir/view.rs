//! Uses of references: an allocation and the view that an op takes of it.
use super::entities::{Alloc, Axis, Value};
use super::text::texts;
use super::types::{Elem, Shape};
use crate::dtype::DType;
use smallvec::SmallVec;

/// What an op touches: part of an allocation, seen in some shape.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct RefUse {
    pub alloc: Alloc,
    /// Applied in order, in logical coordinates of the allocation.
    pub steps: Vec<Step>,
    pub place: Place,
    /// Element and shape after all steps.
    pub elem: Elem,
    pub shape: Shape,
}

texts! { "place"
/// Which block's or device's copy of the allocation.
pub enum Place {
    /// The executing block's (SMEM, barriers) or this device's (GMEM).
    Here "here",
    /// The block of the cluster with these coordinates on `axes` and the executing block's on the others.
    Cluster "cluster" { axes: Vec<Axis>, "at" indices: Vec<Value> },
    /// The same GMEM parameter on another device. `device`: logical id, i32.
    Peer "peer" { device: Value },
    /// Of an imported op only: the same GMEM parameter on all devices of these mesh axes. Ops that may name it become one op for each
    /// device.
    Multicast "multicast" { axes: Vec<Axis> },
}}

texts! { "step of a view"
/// One step of a view.
pub enum Step {
    /// One entry per dimension.
    Index "index" (dims: Vec<DimIndex>),
    /// Result dimension i is dimension `permutation[i]`.
    Transpose "transpose" (permutation: Vec<u32>),
    /// The row-major elements in another shape.
    Reshape "reshape" (shape: Shape),
    /// The bits as another element type of equal width (JAX: the dimension before the last scales when widths differ).
    Bitcast "bitcast" { dtype: DType, shape: Shape },
    /// GMEM `(N, *spatial, C)` seen as `(N·Πout, *window, C)`.
    Im2Col "im2col" { window: Vec<u64>, "padding" padding: Vec<(i64, i64)>, shape: Shape },
    /// TMEM `(m, Πbatch·n)` seen as `(*batch, m, n)`.
    ExpandLeadingBatch "expand_leading_batch" (batch: Shape),
    /// Before normalisation only: a member of a union.
    ExtractAlias "alias" { offset: u64, group: u32, "of" member: Box<super::AllocData> },
    /// Before normalisation only: the buffer's physical bytes are swizzled.
    Unswizzle "unswizzle" (bytes: u32),
    /// Before normalisation only: physical `(…, dᵢ/tᵢ…, tᵢ…)` seen as `(…, dᵢ…)`.
    Untile "untile" (tiling: Shape),
}}

/// What an index step takes of one dimension.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum DimIndex {
    /// One position; the dimension is dropped.
    At(Index),
    /// `size` positions `start + i·stride`. A dynamic start has stride 1.
    Slice { start: Index, size: u64, stride: u64 },
    /// `size` positions from `start`, which may be negative. Positions outside of the dimension are not there: loads give zero
    /// for them, stores leave them out. Of loads and stores of GMEM only.
    Window { start: Index, size: u64 },
    /// The positions in an index array; the result has the array's extent there (TMA gather and scatter).
    Gather(Value),
}

/// A position in a dimension.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
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

    /// Its first position; none: they are in an array.
    pub fn first(&self) -> Option<Index> {
        match self {
            DimIndex::At(start) | DimIndex::Slice { start, .. } | DimIndex::Window { start, .. } => Some(*start),
            DimIndex::Gather(_) => None,
        }
    }

    /// The number of positions from the first one on; none: it is one, and the dimension goes, or they are in an array.
    pub fn extent(&self) -> Option<u64> {
        match self {
            DimIndex::Slice { size, .. } | DimIndex::Window { size, .. } => Some(*size),
            DimIndex::At(_) | DimIndex::Gather(_) => None,
        }
    }

    /// The number of positions; of those in an array, 1.
    pub fn size(&self) -> u64 {
        self.extent().unwrap_or(1)
    }

    pub fn stride(&self) -> u64 {
        match self {
            DimIndex::Slice { stride, .. } => *stride,
            DimIndex::At(_) | DimIndex::Window { .. } | DimIndex::Gather(_) => 1,
        }
    }

    /// Where a window begins.
    pub fn window(&self) -> Option<Index> {
        match self {
            DimIndex::Window { start, .. } => Some(*start),
            DimIndex::At(_) | DimIndex::Slice { .. } | DimIndex::Gather(_) => None,
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

    /// The view's `size` indices of a dimension from `start` on.
    pub fn part(mut self, dim: usize, start: u64, size: u64) -> RefUse {
        let mut dims: Vec<DimIndex> = self.shape.iter().map(|n| DimIndex::all(*n)).collect();
        dims[dim] = DimIndex::Slice {
            start: Index::Const(start as i64),
            size,
            stride: 1,
        };
        self.steps.push(Step::Index(dims));
        self.shape[dim] = size;
        self
    }

    /// Whether it may reach outside of its allocation.
    pub fn has_windows(&self) -> bool {
        let windows = |dims: &Vec<DimIndex>| dims.iter().any(|d| d.window().is_some());
        self.steps
            .iter()
            .any(|s| matches!(s, Step::Index(dims) if windows(dims)))
    }

    /// The dimensions of its allocation, of that rank, that a view keeps, in its order; none where it mixes them. `false`: the
    /// elements are seen as another type.
    pub fn kept_dims(&self, rank: usize) -> Option<(SmallVec<[usize; 4]>, bool)> {
        let mut dims: SmallVec<[usize; 4]> = (0..rank).collect();
        let mut same_type = true;
        for step in &self.steps {
            match step {
                Step::Index(indices) => {
                    let mut kept = indices.iter().map(|i| !matches!(i, DimIndex::At(_)));
                    dims.retain(|_| kept.next().unwrap_or(true));
                }
                Step::Transpose(perm) => dims = perm.iter().map(|p| dims[*p as usize]).collect(),
                Step::Bitcast { .. } => same_type = false,
                Step::Reshape(_)
                | Step::Im2Col { .. }
                | Step::ExpandLeadingBatch(_)
                | Step::ExtractAlias { .. }
                | Step::Unswizzle(_)
                | Step::Untile(_) => return None,
            }
        }
        Some((dims, same_type))
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

/// What steps make of elements and extents; the text says what does not fit.
///
/// A dynamic slice of GMEM may be larger than its dimension: copies fill what is outside.
pub fn apply(elem: Elem, shape: &[u64], steps: &[Step], kernel: &super::Kernel) -> Result<(Elem, Shape), String> {
    let mut elem = elem;
    let mut shape: Shape = shape.into();
    for step in steps {
        shape = match step {
            Step::Index(dims) => {
                if dims.len() != shape.len() {
                    return Err(format!("an index of rank {} of rank {}", dims.len(), shape.len()));
                }
                let mut next = Shape::new();
                for (dim, &extent) in dims.iter().zip(&shape) {
                    match dim {
                        DimIndex::At(Index::Const(i)) => {
                            if !u64::try_from(*i).is_ok_and(|i| i < extent) {
                                return Err(format!("the index {i} of {extent}"));
                            }
                        }
                        DimIndex::At(Index::Value(v)) => index_type(kernel, *v)?,
                        DimIndex::Slice { start, size, stride } => {
                            match start {
                                Index::Const(s) => {
                                    let last = size.saturating_sub(1).checked_mul(*stride);
                                    let last = u64::try_from(*s).ok().zip(last).and_then(|(s, l)| s.checked_add(l));
                                    let bound = if *size == 0 {
                                        extent.checked_add(1)
                                    } else {
                                        Some(extent)
                                    };
                                    if last.zip(bound).is_none_or(|(l, b)| l >= b) {
                                        return Err(format!("{size} positions from {s} of {extent}"));
                                    }
                                }
                                Index::Value(v) => {
                                    index_type(kernel, *v)?;
                                    if *stride != 1 {
                                        return Err("a dynamic start with a stride".to_string());
                                    }
                                }
                            }
                            next.push(*size);
                        }
                        DimIndex::Window { start, size } => {
                            if let Index::Value(v) = start {
                                index_type(kernel, *v)?;
                            }
                            next.push(*size);
                        }
                        DimIndex::Gather(v) => match kernel.ty(*v) {
                            super::Type::Array { dtype, shape } if dtype.is_int() && shape.len() == 1 => {
                                next.push(shape[0]);
                            }
                            ty => return Err(format!("an index array of type {ty}")),
                        },
                    }
                }
                next
            }
            Step::Transpose(p) => permuted(&shape, p).ok_or_else(|| format!("the permutation {p:?}"))?,
            Step::Reshape(to) => {
                if to.iter().product::<u64>() != shape.iter().product::<u64>() {
                    return Err(format!("a reshape of {shape:?} to {to:?}"));
                }
                to.clone()
            }
            Step::Bitcast { dtype, shape: to } => {
                let Elem::Data(from) = elem else {
                    return Err("a bitcast of barriers".to_string());
                };
                let bits = |n: &[u64], d: DType| n.iter().product::<u64>() * u64::from(d.bits());
                if bits(&shape, from) != bits(to, *dtype) {
                    return Err(format!("a bitcast of {from}{shape:?} to {dtype}{to:?}"));
                }
                elem = Elem::Data(*dtype);
                to.clone()
            }
            Step::Im2Col { shape: to, .. } => to.clone(),
            Step::ExpandLeadingBatch(batch) => {
                let columns = batch.iter().product::<u64>();
                match shape.as_slice() {
                    [m, n] if columns > 0 && n % columns == 0 => {
                        batch.iter().copied().chain([*m, n / columns]).collect()
                    }
                    _ => return Err(format!("a leading batch {batch:?} of {shape:?}")),
                }
            }
            Step::ExtractAlias { member, .. } => {
                elem = member.elem();
                member.shape.clone()
            }
            Step::Unswizzle(_) => shape,
            Step::Untile(tiling) => {
                let r = tiling.len();
                if r == 0 || shape.len() < 2 * r || shape[shape.len() - r..] != tiling[..] {
                    return Err(format!("a tiling {tiling:?} of {shape:?}"));
                }
                let mut logical: Shape = shape[..shape.len() - r].into();
                let batch = logical.len() - r;
                for (d, t) in logical[batch..].iter_mut().zip(tiling) {
                    *d *= t;
                }
                logical
            }
        };
    }
    Ok((elem, shape))
}

fn index_type(kernel: &super::Kernel, v: Value) -> Result<(), String> {
    let ty = kernel.ty(v);
    if ty.is_scalar() && ty.dtype().is_int() {
        Ok(())
    } else {
        Err(format!("an index {v} of type {ty}"))
    }
}

/// The extents of a transposed shape; none if `permutation` is none of its rank.
pub fn permuted(shape: &[u64], permutation: &[u32]) -> Option<Shape> {
    let mut seen = 0u64;
    let mut to = Shape::new();
    for &p in permutation {
        let extent = shape.get(p as usize)?;
        if seen & (1 << p) != 0 {
            return None;
        }
        seen |= 1 << p;
        to.push(*extent);
    }
    (to.len() == shape.len()).then_some(to)
}
