//! References as the layout algebra sees them: views of shared memory, slices of device memory.
//!
//! Dynamic indices go to the algebra by number: [`DynId`] is the number of the kernel value.
use super::cx::LowerCx;
use super::emit::{S, V};
use super::value::scalar_class;
use crate::error::{Error, Result};
use crate::kernel_ir::{AllocKind, DimIndex, Index, Kernel, Place, RefUse, Step, Value};
use crate::layout::facts::{DynId, DynTerm, Fact, Start};
use crate::layout::smem_layout::{self, SmemView};
use crate::layout::tma::GmemDim;
use crate::ptx::inst::Inst;
use crate::ptx::modifier::{Indexed, IntType};
use crate::ptx::operand::{Class, Src};
use crate::ptx::ssa::Value as PtxValue;
use cranelift_entity::EntityRef;
use smallvec::SmallVec;

/// A view of shared memory and where its allocation begins.
pub struct SmemPlace {
    pub view: SmemView,
    /// The shared-window address that `view`'s offsets count from, with `offset` bytes added; 1024-byte aligned. With
    /// [`Place::Cluster`]: a `shared::cluster` address.
    pub base: V,
    pub offset: i32,
}

/// What is known about an index.
pub fn fact_of(kernel: &Kernel, v: Value) -> Fact {
    let f = kernel.facts(v);
    // 0 is divisible by everything.
    Fact {
        divisor: if f.divisor == 0 { 1 << 40 } else { f.divisor },
        min: f.lo,
        max: f.hi,
    }
}

fn dyn_id(v: Value) -> DynId {
    DynId(v.index() as u32)
}

fn start_of(kernel: &Kernel, index: Index) -> Start {
    match index {
        Index::Const(c) => Start::Static(c.max(0) as u64),
        Index::Value(v) => match kernel.facts(v).as_constant() {
            Some(c) if c >= 0 => Start::Static(c as u64),
            _ => Start::Dynamic(dyn_id(v), fact_of(kernel, v)),
        },
    }
}

/// The scalar that a number stands for, in 32 bits.
pub fn dyn_value(cx: &mut LowerCx, id: DynId) -> Result<S> {
    if let Some(x) = cx.extra_value(id) {
        return Ok(x);
    }
    cx.index32(Value::new(id.0 as usize))
}

/// The value of a term, in 32 bits.
pub fn dyn_term(cx: &mut LowerCx, term: &DynTerm) -> Result<S> {
    let mut x = dyn_value(cx, term.value)?;
    if term.div != 1 {
        x = cx.b.div(IntType::U32, x, Src::u32(term.div as u32));
    }
    if let Some(m) = term.modulus {
        x = cx.b.rem(IntType::U32, x, Src::u32(m as u32));
    }
    Ok(cx.b.mul(IntType::S32, x, Src::imm32(term.stride as i32)))
}

/// The view that a use takes of shared memory. Slices that cut tiles make dimensions loose if `loosely`, else they are errors.
pub fn smem_view(cx: &mut LowerCx, r: &RefUse, loosely: bool) -> Result<SmemPlace> {
    let kernel = cx.kernel;
    let data = &kernel.allocs[r.alloc];
    let AllocKind::Smem { dtype, .. } = data.kind else {
        return Err(Error::internal(format!("{} is not in shared memory", r.alloc)).at(cx.b.loc()));
    };
    let transforms = cx.assignment.smem[r.alloc].clone().unwrap_or_default();
    let view =
        SmemView::new(&data.shape, dtype.bits(), &transforms.tiling, transforms.swizzle_bytes).map_err(view_error)?;
    let view = apply_steps(kernel, view, r, loosely)?;
    let (base, offset) = cx.smem_address(r.alloc)?;
    let (base, offset) = match &r.place {
        Place::Here => (base, offset),
        Place::Cluster { .. } => {
            let rank = peer_rank(cx, r)?;
            let local = cx.b.add(IntType::U32, base, Src::imm32(offset));
            let local = cx.b.r32(local);
            let remote = cx.b.emit(Inst::Mapa {
                d: PtxValue::NEW,
                a: local,
                rank,
            });
            (cx.b.r32(remote), 0)
        }
        Place::Peer { .. } | Place::Multicast { .. } => {
            return Err(Error::unsupported("shared memory of another device"));
        }
    };
    Ok(SmemPlace { view, base, offset })
}

fn view_error(e: smem_layout::ViewError) -> Error {
    Error::invalid("view of a reference")
        .expected("slices of whole tiles of the buffer's transforms")
        .got(e.to_string())
        .remedy("start slices at multiples of the tile, state what is known with pl.multiple_of, or choose other transforms")
}

/// The view after all steps of a use.
fn apply_steps(kernel: &Kernel, mut view: SmemView, r: &RefUse, loosely: bool) -> Result<SmemView> {
    for step in &r.steps {
        view = match step {
            Step::Index(dims) => {
                let mut indices: SmallVec<[smem_layout::Index; 4]> = SmallVec::new();
                for d in dims {
                    indices.push(match d {
                        DimIndex::At(i) => smem_layout::Index::At(start_of(kernel, *i)),
                        DimIndex::Slice { start, size, stride: 1 } => {
                            smem_layout::Index::Slice(start_of(kernel, *start), *size)
                        }
                        DimIndex::Slice { .. } => return Err(Error::unsupported("strided slices")),
                        DimIndex::Gather(_) => return Err(Error::unsupported("arrays as indices")),
                    });
                }
                if loosely {
                    view.index_loosely(&indices)
                } else {
                    view.index(&indices)
                }
                .map_err(view_error)?
            }
            Step::Transpose(perm) => {
                let perm: SmallVec<[usize; 4]> = perm.iter().map(|p| *p as usize).collect();
                view.transpose(&perm)
            }
            Step::Reshape(shape) => view.reshape(shape).map_err(view_error)?,
            Step::Bitcast { dtype, shape }
                if dtype.bits() == view.bits && shape.as_slice() == view.shape().as_slice() =>
            {
                view
            }
            Step::Bitcast { .. } => return Err(Error::unsupported("a bitcast of a reference between widths")),
            Step::Im2Col { .. }
            | Step::ExpandLeadingBatch(_)
            | Step::ExtractAlias { .. }
            | Step::Unswizzle(_)
            | Step::Untile(_) => {
                return Err(Error::internal("a transform that normalisation should have removed"));
            }
        };
    }
    Ok(view)
}

/// Says to the emulator what is not known to hold: that every dynamic index of a use lies in its dimension. On a GPU it is nothing.
/// `when`: only then are the indices meant.
pub fn check_indices(cx: &mut LowerCx, r: &RefUse, when: S) -> Result<()> {
    let kernel = cx.kernel;
    let data = &kernel.allocs[r.alloc];
    let (of, place) = match &data.kind {
        AllocKind::Gmem { .. } | AllocKind::Semaphore { .. } => (Indexed::Buffer, cx.buffer_of(r.alloc)?),
        AllocKind::Smem { .. } => (Indexed::Shared, cx.smem_address(r.alloc)?.1 as u32),
        AllocKind::Barrier { .. } => (Indexed::Barriers, cx.smem_address(r.alloc)?.1 as u32),
        AllocKind::SmemUnion | AllocKind::Tmem { .. } | AllocKind::TmemUnion | AllocKind::Register { .. } => {
            return Ok(());
        }
    };
    let guard = match when {
        Src::Imm(1) => None,
        Src::Imm(_) => return Ok(()),
        Src::Reg(p) => Some(p),
    };
    for (n, step) in r.steps.iter().enumerate() {
        let Step::Index(dims) = step else { continue };
        let (_, shape) = crate::kernel_ir::view::apply(data.elem(), &data.shape, &r.steps[..n], kernel)
            .map_err(|e| Error::internal(e).at(cx.b.loc()))?;
        for (dim, (index, &extent)) in dims.iter().zip(&shape).enumerate() {
            let (v, size) = match index {
                DimIndex::At(Index::Value(v)) => (*v, 1),
                DimIndex::Slice {
                    start: Index::Value(v),
                    size,
                    ..
                } => (*v, *size as i64),
                DimIndex::At(Index::Const(_))
                | DimIndex::Slice {
                    start: Index::Const(_), ..
                }
                | DimIndex::Gather(_) => continue,
            };
            let facts = kernel.facts(v);
            let extent = extent as i64;
            if facts.lo >= 0 && facts.hi.saturating_add(size) <= extent {
                continue;
            }
            let dtype = kernel.ty(v).dtype();
            let ty = match (scalar_class(dtype), dtype.is_signed_int()) {
                (Class::B64, true) => IntType::S64,
                (Class::B64, false) => IntType::U64,
                (Class::Pred | Class::B16 | Class::B32, true) => IntType::S32,
                (Class::Pred | Class::B16 | Class::B32, false) => IntType::U32,
            };
            let i = match ty {
                IntType::S64 | IntType::U64 => cx.scalar(v)?,
                _ => cx.index32(v)?,
            };
            let check = Inst::CheckIndex {
                ty,
                of,
                i,
                size,
                extent,
                dim: dim as i64,
                place: i64::from(place),
            };
            cx.b.inst_if(guard, check);
        }
    }
    Ok(())
}

/// The rank, in its cluster, of the block that a use names.
pub fn peer_rank(cx: &mut LowerCx, r: &RefUse) -> Result<S> {
    let Place::Cluster { axes, indices } = &r.place else {
        return Ok(cx.cluster_rank());
    };
    // Row-major over the cluster's axes, the last fastest: CUDA's x.
    let kernel = cx.kernel;
    let mut rank = Src::u32(0);
    for axis in &kernel.cluster {
        let at = match axes.iter().position(|a| a == axis) {
            Some(i) => cx.index32(indices[i])?,
            None => super::ids::axis_index(cx, *axis)?,
        };
        let size = Src::u32(kernel.axes[*axis].size as u32);
        rank = cx.b.mad(IntType::U32, rank, size, at);
    }
    Ok(rank)
}

/// The address of a view's first element before the swizzle: base, constant and dynamic offsets.
pub fn smem_start(cx: &mut LowerCx, place: &SmemPlace) -> Result<S> {
    let constant = place.offset as i64 + (place.view.offset / 8) as i64;
    let mut at = cx.b.add(IntType::U32, place.base, Src::imm32(constant as i32));
    for term in &place.view.dynamic {
        let bytes = DynTerm {
            stride: term.stride / 8,
            ..*term
        };
        let x = dyn_term(cx, &bytes)?;
        at = cx.b.add(IntType::U32, at, x);
    }
    Ok(at)
}

/// The dimensions of a GMEM array as a copy through this use sees them: integer indices drop dimensions. The kept ones are in the
/// order of the view.
pub fn gmem_dims(cx: &LowerCx, r: &RefUse) -> Result<SmallVec<[GmemDim; 4]>> {
    let kernel = cx.kernel;
    let data = &kernel.allocs[r.alloc];
    let AllocKind::Gmem { dtype: own, .. } = data.kind else {
        return Err(Error::internal(format!("{} is not in device memory", r.alloc)).at(cx.b.loc()));
    };
    let mut kept = crate::layout::tma::whole(&data.shape, own.bits());
    let mut dropped: SmallVec<[GmemDim; 4]> = SmallVec::new();
    for step in &r.steps {
        match step {
            Step::Index(indices) => {
                let mut next: SmallVec<[GmemDim; 4]> = SmallVec::new();
                for (mut dim, index) in kept.into_iter().zip(indices) {
                    let (start, size, drop) = match index {
                        DimIndex::At(i) => (*i, 1, true),
                        DimIndex::Slice { start, size, stride: 1 } => (*start, *size, false),
                        DimIndex::Slice { .. } => return Err(Error::unsupported("strided slices in copies")),
                        DimIndex::Gather(_) => {
                            return Err(
                                Error::unsupported("arrays as indices of a copy (TMA gather needs sm_100a)")
                                    .remedy("copy row by row in a loop, or gather with ref[indices]"),
                            );
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
            Step::Bitcast { .. } => {
                return Err(Error::unsupported("a bitcast of a reference between widths in a copy"));
            }
            Step::Im2Col { .. } => return Err(Error::unsupported("im2col copies")),
            Step::ExpandLeadingBatch(_) | Step::ExtractAlias { .. } | Step::Unswizzle(_) | Step::Untile(_) => {
                return Err(Error::internal("a transform of another memory").at(cx.b.loc()));
            }
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
        return Err(Error::unsupported("reshapes of parts of a reference"));
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

/// The view that a use takes of a GMEM array: like shared memory, but row-major and unswizzled.
pub fn gmem_view(cx: &LowerCx, r: &RefUse) -> Result<SmemView> {
    let kernel = cx.kernel;
    let data = &kernel.allocs[r.alloc];
    let AllocKind::Gmem { dtype, .. } = data.kind else {
        return Err(Error::internal(format!("{} is not in device memory", r.alloc)).at(cx.b.loc()));
    };
    apply_steps(kernel, SmemView::row_major(&data.shape, dtype.bits()), r, true)
}
