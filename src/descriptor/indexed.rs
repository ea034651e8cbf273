//! `ref[idx]` with arrays of indices, as JAX's `NDIndexer` means it: the integer indices have one shape, which stands where they
//! stand if they are neighbours, else in front; slices keep their dimensions. A slice with a stride is an array of indices, too.
use super::op_reader::OpReader;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::kernel_ir::*;

/// A view and the indices into it of each element that an op touches, one array for each of its dimensions.
pub struct Indexed {
    pub view: RefUse,
    pub at: Vec<Value>,
    pub shape: Shape,
    /// Whether no element is named twice: there are slices only.
    pub is_sliced: bool,
}

/// The dimensions of what an index step takes, if some of it is by arrays: where the arrays' come, and all.
pub fn gathered_shape(kernel: &Kernel, dims: &[DimIndex]) -> Result<Option<(usize, Shape, Shape)>> {
    let mut inner: Option<Shape> = None;
    for dim in dims {
        if let DimIndex::Gather(v) = dim {
            let shape = Shape::from_slice(kernel.ty(*v).shape());
            if inner.get_or_insert_with(|| shape.clone()) != &shape {
                return Err(super::decode::damaged("arrays of indices of different shapes"));
            }
        }
    }
    let Some(inner) = inner else { return Ok(None) };
    let is_slice = |d: &DimIndex| matches!(d, DimIndex::Slice { .. } | DimIndex::Window { .. });
    let integers: Vec<usize> = (0..dims.len()).filter(|&d| !is_slice(&dims[d])).collect();
    let are_neighbours = integers.windows(2).all(|w| w[0] + 1 == w[1]);
    let first = if are_neighbours { integers[0] } else { 0 };
    let mut whole = Shape::new();
    for dim in dims {
        if let DimIndex::Slice { size, .. } | DimIndex::Window { size, .. } = dim {
            whole.push(*size);
        }
    }
    for (i, &n) in inner.iter().enumerate() {
        whole.insert(first + i, n);
    }
    Ok(Some((first, inner, super::types::shape(&whole)?)))
}

/// A use of memory by arrays of indices; none: it has no such index.
pub fn indexed(r: &mut OpReader<'_>, u: &RefUse) -> Result<Option<Indexed>> {
    indexed_where(r, u, false)
}

/// `masked`: only where a mask is true, so that slices may begin outside of their dimensions: they are indices, too.
pub fn indexed_where(r: &mut OpReader<'_>, u: &RefUse, masked: bool) -> Result<Option<Indexed>> {
    let by_arrays = |step: &Step| {
        let Step::Index(dims) = step else { return false };
        dims.iter().any(|d| matches!(d, DimIndex::Gather(_)))
    };
    let by_stride = |step: &Step| {
        let Step::Index(dims) = step else { return false };
        dims.iter()
            .any(|d| matches!(d, DimIndex::Slice { stride, .. } if *stride != 1))
    };
    let is_sliced = !u.steps.iter().any(by_arrays);
    let (steps, part) = part_of(&u.steps);
    if is_sliced && !steps.last().is_some_and(by_stride) {
        return Ok(None);
    }
    let last = steps.split_last();
    let last = last.filter(|(last, before)| (is_sliced || by_arrays(last)) && !before.iter().any(by_arrays));
    let Some((Step::Index(dims), before)) = last else {
        return Err(
            Error::unsupported("a view of what an array of indices takes of a reference")
                .remedy("index last: slice, transpose and reshape the reference before, or the loaded array after"),
        );
    };
    let data = &r.importer.kernel.allocs[u.alloc];
    if is_sliced && (!data.is_gmem() && !data.is_smem() || u.steps.iter().any(has_window)) {
        return Ok(None);
    }
    if !data.is_gmem() && !data.is_smem() {
        return Err(
            Error::unsupported("arrays as indices of a reference that is neither in GMEM nor in SMEM")
                .remedy("keep the array in SMEM, or index the loaded array"),
        );
    }
    if u.steps.iter().any(has_window) {
        return Err(
            Error::unsupported("arrays as indices of a block that may reach outside of its array")
                .remedy("load the block, and index the array"),
        );
    }
    let dims = dims.clone();
    let (first, inner, shape) = match gathered_shape(&r.importer.kernel, &dims)? {
        Some(found) => found,
        None => (0, Shape::new(), u.shape.clone()),
    };
    let (elem, extents) =
        view::apply(data.elem(), &data.shape, before, &r.importer.kernel).map_err(|e| r.damaged(&e))?;
    let inner_at: Vec<u32> = (first..first + inner.len()).map(|d| d as u32).collect();
    let mut slice_at = (0..shape.len()).filter(|d| !inner_at.contains(&(*d as u32)));
    let (mut view_dims, mut view_shape, mut at) = (vec![], Shape::new(), vec![]);
    for (dim, &extent) in dims.iter().zip(&extents) {
        match dim {
            DimIndex::At(i) => view_dims.push(DimIndex::At(*i)),
            DimIndex::Window { .. } => return Err(r.damaged("an index")),
            DimIndex::Gather(v) => {
                let v = counting(r, *v, extent);
                at.push(r.broadcast(v, &shape, inner_at.clone())?);
                view_dims.push(DimIndex::all(extent));
                view_shape.push(extent);
            }
            DimIndex::Slice { start, size, stride } => {
                let d = slice_at.next().ok_or_else(|| r.damaged("an index"))?;
                let i = r.iota(&shape, d)?;
                match start {
                    // The view begins there, all else is indices.
                    Index::Const(c) if *stride != 1 => {
                        let i = r.converted(i, index_type(extent));
                        let i = r.binary_int(BinaryOp::Mul, i, *stride as i64);
                        at.push(r.binary_int(BinaryOp::Add, i, *c));
                        view_dims.push(DimIndex::all(extent));
                        view_shape.push(extent);
                    }
                    Index::Value(start) if masked => {
                        let start = start_of(r, *start, *size, extent);
                        let start = r.broadcast(start, &shape, vec![])?;
                        let i = r.converted(i, index_type(extent));
                        at.push(r.binary(BinaryOp::Add, start, i));
                        view_dims.push(DimIndex::all(extent));
                        view_shape.push(extent);
                    }
                    Index::Const(_) | Index::Value(_) => {
                        at.push(i);
                        view_dims.push(dim.clone());
                        view_shape.push(*size);
                    }
                }
            }
        }
    }
    view_dims.extend(part);
    let mut steps = before.to_vec();
    steps.push(Step::Index(view_dims));
    let view = RefUse {
        alloc: u.alloc,
        steps,
        place: u.place.clone(),
        elem,
        shape: view_shape,
    };
    Ok(Some(Indexed {
        view,
        at,
        shape,
        is_sliced,
    }))
}

/// The steps less one that takes but a position of their last dimension: the real or imaginary parts of complex numbers.
fn part_of(steps: &[Step]) -> (Vec<Step>, Option<DimIndex>) {
    let is_whole = |d: &DimIndex| {
        matches!(
            d,
            DimIndex::Slice {
                start: Index::Const(0),
                stride: 1,
                ..
            }
        )
    };
    if let [before @ .., Step::Index(first), Step::Index(second)] = steps
        && let [rest @ .., last] = first.as_slice()
        && let [whole @ .., part @ DimIndex::At(_)] = second.as_slice()
        && is_whole(last)
        && whole.iter().all(is_whole)
    {
        let mut steps = before.to_vec();
        steps.push(Step::Index(rest.to_vec()));
        return (steps, Some(part.clone()));
    }
    (steps.to_vec(), None)
}

fn has_window(step: &Step) -> bool {
    let Step::Index(dims) = step else { return false };
    dims.iter().any(|d| d.window().is_some())
}

/// What counts a dimension's positions.
fn index_type(extent: u64) -> DType {
    match i32::try_from(extent) {
        Ok(_) => DType::I32,
        Err(_) => DType::I64,
    }
}

/// Indices in a type that counts the dimension, those outside of it still outside.
fn counting(r: &mut OpReader<'_>, v: Value, extent: u64) -> Value {
    let dtype = r.ty(v).dtype();
    if dtype.bits() < 32 || dtype == DType::I32 {
        return r.converted(v, DType::I32);
    }
    let mut v = v;
    let to = index_type(extent);
    let holds_all = dtype == to || dtype == DType::U32 && to == DType::I64;
    if !holds_all {
        v = r.binary_int(BinaryOp::Min, v, extent as i64);
        if dtype.is_signed_int() {
            v = r.binary_int(BinaryOp::Max, v, -1);
        }
    }
    r.converted(v, to)
}

/// The start of a slice in a type that counts the dimension; what is far outside of it is near, and still outside.
fn start_of(r: &mut OpReader<'_>, v: Value, size: u64, extent: u64) -> Value {
    let (dtype, to) = (r.ty(v).dtype(), index_type(extent));
    let holds_all = dtype == to || dtype.bits() < to.bits();
    if holds_all {
        return r.converted(v, to);
    }
    let mut v = r.binary_int(BinaryOp::Min, v, extent as i64);
    if dtype.is_signed_int() {
        v = r.binary_int(BinaryOp::Max, v, -(size as i64));
    }
    r.converted(v, to)
}

impl Indexed {
    /// The elements.
    pub fn load(&self, r: &mut OpReader<'_>, dtype: DType) -> Value {
        self.load_where(r, None, dtype)
    }

    /// Those for which a mask is true.
    pub fn load_where(&self, r: &mut OpReader<'_>, mask: Option<Value>, dtype: DType) -> Value {
        let ty = Type::of(dtype, self.shape.clone());
        if num_elements(&self.shape) == 0 {
            return r.int_splat(&ty, 0);
        }
        let kind = OpKind::LoadAt {
            src: self.view.clone(),
            at: self.at.clone(),
            mask,
        };
        r.emit1(kind, ty)
    }

    /// Stores the elements of `value`, of this shape.
    pub fn store(self, r: &mut OpReader<'_>, value: Value) {
        self.store_where(r, None, value);
    }

    /// Those for which a mask is true.
    pub fn store_where(self, r: &mut OpReader<'_>, mask: Option<Value>, value: Value) {
        if num_elements(&self.shape) > 0 {
            let Indexed { view: dst, at, .. } = self;
            r.emit(OpKind::StoreAt { dst, at, mask, value }, []);
        }
    }

    /// Updates elements with those of `value`, of this shape.
    pub fn update(self, r: &mut OpReader<'_>, op: AtomicOp, value: Value) {
        if num_elements(&self.shape) > 0 {
            let Indexed { view: dst, at, .. } = self;
            r.emit(OpKind::AtomicUpdateAt { op, dst, at, value }, []);
        }
    }
}
