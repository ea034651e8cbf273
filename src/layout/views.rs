//! References as the layout algebra sees them: views of shared memory, slices of device memory.
//!
//! Dynamic indices go to the algebra by number: [`DynId`] is the number of the kernel value.
use crate::error::{Error, Fault, Result};
use crate::kernel_ir::{
    Alloc, AllocKind, DimIndex, Index, Kernel, OobMode, OpKind, RefUse, SmemTransforms, Step, Value, words,
};
use crate::layout::ViewError;
use crate::layout::digits::Digit;
use crate::layout::facts::{DynId, Fact, Start};
use crate::layout::smem_layout::{self, SmemView, Stride, ViewDim};
use crate::layout::tma::{self, CopyError, CopyPlan, GmemDim, OutOfBounds};
use cranelift_entity::{EntityRef, SecondaryMap};
use smallvec::SmallVec;

/// The value that a number stands for.
pub fn value_of(id: DynId) -> Value {
    Value::new(id.0 as usize)
}

/// What is known about an index.
fn fact_of(kernel: &Kernel, v: Value) -> Fact {
    let f = kernel.facts(v);
    let (min, max) = f.bounds_i64();
    // 0 is divisible by everything.
    Fact {
        divisor: if f.divisor == 0 { 1 << 40 } else { f.divisor },
        min,
        max,
    }
}

fn start_of(kernel: &Kernel, index: Index) -> Start {
    match index {
        Index::Const(c) => Start::Static(c.max(0) as u64),
        Index::Value(v) => match kernel.facts(v).as_constant() {
            Some(c) if c >= 0 => Start::Static(c as u64),
            _ => Start::Dynamic(DynId(v.index() as u32), fact_of(kernel, v)),
        },
    }
}

/// How each SMEM allocation is laid out.
pub type Transforms = SecondaryMap<Alloc, Option<SmemTransforms>>;

/// The view that a use takes of shared memory. Slices that cut tiles make dimensions loose if `loosely`, else they are errors.
pub fn smem(kernel: &Kernel, transforms: &Transforms, r: &RefUse, loosely: bool) -> Result<SmemView> {
    let data = &kernel.allocs[r.alloc];
    let AllocKind::Smem { dtype, .. } = data.kind else {
        return Err(Error::internal(format!("{} is not in shared memory", r.alloc)));
    };
    let transforms = transforms[r.alloc].clone().unwrap_or_default();
    let view = SmemView::new(&data.shape, dtype.bits(), &transforms.tiling, transforms.swizzle_bytes)
        .map_err(|e| view_error(kernel, r, e))?;
    apply_steps(kernel, view, r, loosely)
}

/// The view that a use takes of a GMEM array: like shared memory, but row-major and unswizzled.
pub fn gmem(kernel: &Kernel, r: &RefUse) -> Result<SmemView> {
    let data = &kernel.allocs[r.alloc];
    let AllocKind::Gmem { dtype, .. } = data.kind else {
        return Err(Error::internal(format!("{} is not in device memory", r.alloc)));
    };
    apply_steps(kernel, SmemView::row_major(&data.shape, dtype.bits()), r, true)
}

/// A dimension so long that a window lies within it: what is outside of the dimension is never touched.
fn widen(dim: &mut ViewDim, start: Start, size: u64) {
    let first = match start {
        Start::Static(first) => first,
        Start::Dynamic(..) => 0,
    };
    let end = first + size;
    if end <= dim.size {
        return;
    }
    let Some((outer, inner)) = dim.chain.split_last_mut() else {
        // One position, of no stride.
        dim.size = end;
        dim.chain.push(Digit::new(end, Stride(0)));
        return;
    };
    let inner: u64 = inner.iter().map(|digit| digit.size).product();
    let more = (end - dim.size).div_ceil(inner);
    outer.size += more;
    dim.size += more * inner;
}

fn view_error(kernel: &Kernel, r: &RefUse, e: ViewError) -> Error {
    let fault = match &e {
        // Another compiler takes it for granted that a start which is computed is a tile's.
        ViewError::CutsTile { start: None, .. } | ViewError::BadReshape { .. } | ViewError::BadBitcast { .. } => {
            Fault::Unsupported
        }
        ViewError::CutsTile { start: Some(_), .. }
        | ViewError::TilingDoesNotDivide { .. }
        | ViewError::SwizzleWidth { .. }
        | ViewError::UnknownSwizzle(_)
        | ViewError::OutOfBounds { .. }
        | ViewError::Rank { .. } => Fault::InvalidKernel,
    };
    Error::new(fault, "view of a reference")
        .expected("slices of whole tiles of the buffer's transforms")
        .got(format!("{}: {e}", words::of_use(kernel, r)))
        .remedy("start slices at multiples of the tile, state what is known with pl.multiple_of, or choose other transforms")
}

/// A step that `legality` refuses, or that normalisation removes.
fn no_step(step: &Step) -> Error {
    Error::internal(format!("a view with the step {step:?}"))
}

/// The view after all steps of a use.
fn apply_steps(kernel: &Kernel, mut view: SmemView, r: &RefUse, loosely: bool) -> Result<SmemView> {
    for step in &r.steps {
        view = match step {
            Step::Index(dims) => {
                let mut indices: SmallVec<[smem_layout::Index; 4]> = SmallVec::new();
                for (d, dim) in dims.iter().zip(&mut view.dims) {
                    indices.push(match d {
                        DimIndex::At(i) => smem_layout::Index::At(start_of(kernel, *i)),
                        DimIndex::Slice { start, size, stride: 1 } => {
                            smem_layout::Index::Slice(start_of(kernel, *start), *size)
                        }
                        DimIndex::Window { start, size } => {
                            let start = start_of(kernel, *start);
                            widen(dim, start, *size);
                            smem_layout::Index::Slice(start, *size)
                        }
                        DimIndex::Slice { .. } | DimIndex::Gather(_) => return Err(no_step(step)),
                    });
                }
                let view = match loosely {
                    true => view.index_loosely(&indices),
                    false => view.index(&indices),
                };
                view.map_err(|e| view_error(kernel, r, e))?
            }
            Step::Transpose(perm) => {
                let perm: SmallVec<[usize; 4]> = perm.iter().map(|p| *p as usize).collect();
                view.transpose(&perm)
            }
            Step::Reshape(shape) => view.reshape(shape).map_err(|e| view_error(kernel, r, e))?,
            Step::Bitcast { dtype, shape } if dtype.bits() == view.bits && *shape == view.shape() => view,
            Step::Bitcast { .. }
            | Step::Im2Col { .. }
            | Step::ExpandLeadingBatch(_)
            | Step::ExtractAlias { .. }
            | Step::Unswizzle(_)
            | Step::Untile(_) => return Err(no_step(step)),
        };
    }
    Ok(view)
}

/// The dimensions of a GMEM array as a copy through this use sees them: integer indices drop dimensions. The kept ones are in the
/// order of the view.
pub fn gmem_dims(kernel: &Kernel, r: &RefUse) -> Result<SmallVec<[GmemDim; 4]>> {
    let data = &kernel.allocs[r.alloc];
    let AllocKind::Gmem { dtype: own, .. } = data.kind else {
        return Err(Error::internal(format!("{} is not in device memory", r.alloc)));
    };
    let mut kept = tma::whole(&data.shape, own.bits());
    let mut dropped: SmallVec<[GmemDim; 4]> = SmallVec::new();
    for step in &r.steps {
        match step {
            Step::Index(indices) => {
                let mut next: SmallVec<[GmemDim; 4]> = SmallVec::new();
                for (mut dim, index) in kept.into_iter().zip(indices) {
                    let (start, size, drop) = match index {
                        DimIndex::At(i) => (*i, 1, true),
                        DimIndex::Slice { start, size, stride: 1 } => (*start, *size, false),
                        DimIndex::Slice { .. } | DimIndex::Window { .. } | DimIndex::Gather(_) => {
                            return Err(no_step(step));
                        }
                    };
                    match start_of(kernel, start) {
                        Start::Static(s) => dim.start += s,
                        Start::Dynamic(id, fact) => dim.dynamic.push((id, fact)),
                    }
                    dim.size = size;
                    dim.dropped = drop;
                    if drop {
                        dropped.push(dim);
                    } else {
                        next.push(dim);
                    }
                }
                kept = next;
            }
            Step::Transpose(perm) => kept = perm.iter().map(|p| kept[*p as usize].clone()).collect(),
            Step::Reshape(shape) => kept = reshape(&kept, shape)?,
            Step::Bitcast { dtype, shape } if dtype.bits() == own.bits() && shape.len() == kept.len() => {}
            Step::Bitcast { .. }
            | Step::Im2Col { .. }
            | Step::ExpandLeadingBatch(_)
            | Step::ExtractAlias { .. }
            | Step::Unswizzle(_)
            | Step::Untile(_) => return Err(no_step(step)),
        }
    }
    dropped.sort_by_key(|d| std::cmp::Reverse(d.stride));
    dropped.extend(kept);
    Ok(dropped)
}

/// A reshape of whole, contiguous dimensions.
fn reshape(dims: &[GmemDim], shape: &[u64]) -> Result<SmallVec<[GmemDim; 4]>> {
    let whole = dims
        .iter()
        .all(|d| d.start == 0 && d.dynamic.is_empty() && d.size == d.extent);
    let contiguous = dims.windows(2).all(|w| w[0].stride == w[1].stride * w[1].extent);
    if !whole || !contiguous {
        return Err(Error::unsupported("reshapes of parts of a reference")
            .remedy("reshape the whole array, outside of the kernel or before it is sliced"));
    }
    let mut stride = dims.last().map_or(8, |d| d.stride);
    let mut out: SmallVec<[GmemDim; 4]> = SmallVec::new();
    for &extent in shape.iter().rev() {
        out.insert(
            0,
            GmemDim {
                extent,
                stride,
                start: 0,
                dynamic: SmallVec::new(),
                size: extent,
                dropped: false,
            },
        );
        stride *= extent;
    }
    Ok(out)
}

/// A bulk or tensor copy, or a prefetch, as it is planned.
pub struct CopyUse<'a> {
    pub gmem: &'a RefUse,
    /// Absent: a prefetch.
    pub smem: Option<&'a RefUse>,
    out_of_bounds: OutOfBounds,
    /// The blocks that share it.
    parts: u64,
    /// It may be one run of bytes.
    bulk: bool,
}

/// What a copy does with elements outside of its array.
pub fn out_of_bounds(oob: OobMode) -> OutOfBounds {
    match oob {
        OobMode::Zeros => OutOfBounds::Zeros,
        OobMode::PromiseInBounds | OobMode::Undefined => OutOfBounds::Ignored,
    }
}

impl<'a> CopyUse<'a> {
    /// Of an op that is one.
    pub fn of(kernel: &Kernel, kind: &'a OpKind) -> Option<CopyUse<'a>> {
        if let OpKind::CopyGmemToSmem {
            src,
            dst,
            collective_axes,
            oob,
            ..
        } = kind
        {
            return Some(CopyUse {
                gmem: src,
                smem: Some(dst),
                out_of_bounds: out_of_bounds(*oob),
                parts: collective_axes.iter().map(|a| kernel.axes[*a].size).product(),
                bulk: true,
            });
        }
        if let OpKind::CopySmemToGmem {
            src, dst, reduction, ..
        } = kind
        {
            return Some(CopyUse {
                gmem: dst,
                smem: Some(src),
                out_of_bounds: OutOfBounds::Zeros,
                parts: 1,
                bulk: reduction.is_none(),
            });
        }
        if let OpKind::Prefetch { src, .. } = kind {
            return Some(CopyUse {
                gmem: src,
                smem: None,
                out_of_bounds: OutOfBounds::Ignored,
                parts: 1,
                bulk: true,
            });
        }
        None
    }

    /// Its side in shared memory, and how it is done, if it can be.
    pub fn plan(
        &self,
        kernel: &Kernel,
        transforms: &Transforms,
    ) -> Result<(SmemView, std::result::Result<CopyPlan, CopyError>)> {
        let dtype = self.gmem.dtype();
        let bits = dtype
            .ok_or_else(|| Error::internal("a copy of something that is no data"))?
            .bits();
        let smem = match self.smem {
            Some(r) => self::smem(kernel, transforms, r, false)?,
            None => SmemView::row_major(&self.gmem.shape, bits),
        };
        let dims = gmem_dims(kernel, self.gmem)?;
        let plan = tma::plan(&dims, &smem, bits, self.out_of_bounds, self.parts, self.bulk);
        Ok((smem, plan))
    }
}
