//! Where references begin, and what their dynamic indices are.
use super::cx::LowerCx;
use super::emit::{S, V};
use super::value::scalar_class;
use crate::error::{Error, Result};
use crate::kernel_ir::{AllocKind, DimIndex, Index, Place, RefUse, Step, Value};
use crate::layout::facts::{DynId, DynTerm};
use crate::layout::smem_layout::SmemView;
use crate::layout::views::value_of;
use crate::ptx::inst::Inst;
use crate::ptx::modifier::{Indexed, IntType};
use crate::ptx::operand::{Class, Src};
use crate::ptx::ssa::Value as PtxValue;

/// The scalar that a number stands for, in 32 bits.
pub fn dyn_value(cx: &mut LowerCx, id: DynId) -> Result<S> {
    match cx.extra_value(id) {
        Some((Class::B64, x)) => Ok(cx.b.truncate(x)),
        Some((_, x)) => Ok(x),
        None => cx.index32(value_of(id)),
    }
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

/// The value of a term, in 64 bits: of what may be in memory that 32 bits do not count.
pub fn long_dyn_term(cx: &mut LowerCx, term: &DynTerm) -> Result<S> {
    let mut x = long_dyn_value(cx, term.value)?;
    if term.div != 1 {
        x = cx.b.div(IntType::U64, x, Src::Imm(term.div));
    }
    if let Some(m) = term.modulus {
        x = cx.b.rem(IntType::U64, x, Src::Imm(m));
    }
    Ok(cx.b.mul(IntType::S64, x, Src::Imm(term.stride as u64)))
}

/// The scalar that a number stands for, in 64 bits.
pub fn long_dyn_value(cx: &mut LowerCx, id: DynId) -> Result<S> {
    match cx.extra_value(id) {
        Some((Class::B64, x)) => Ok(x),
        Some((_, x)) => Ok(cx.b.widen(x, true)),
        None => cx.index64(value_of(id)),
    }
}

/// Whether an index of so many positions may be one that 32 bits do not hold.
pub fn is_long(cx: &LowerCx, id: DynId, positions: u64) -> bool {
    positions > i32::MAX as u64
        && match cx.extra_value(id) {
            Some((class, _)) => class == Class::B64,
            None => !cx.kernel.facts(value_of(id)).within(i32::MIN, i32::MAX),
        }
}

/// Where the emulator's message finds what is indexed; none: it has none for it.
fn indexed(cx: &mut LowerCx, r: &RefUse) -> Result<Option<(Indexed, u32)>> {
    let kernel = cx.kernel;
    Ok(match &kernel.allocs[r.alloc].kind {
        AllocKind::Gmem { .. } | AllocKind::Semaphore { .. } => Some((Indexed::Buffer, cx.buffer_of(r.alloc)?)),
        AllocKind::Smem { .. } => Some((Indexed::Shared, cx.smem_address(r.alloc)?.1 as u32)),
        AllocKind::Barrier { .. } => Some((Indexed::Barriers, cx.smem_address(r.alloc)?.1 as u32)),
        AllocKind::Tmem { .. } => cx.plan.tensor.starts[r.alloc].map(|column| (Indexed::Tensor, column)),
        AllocKind::SmemUnion | AllocKind::TmemUnion | AllocKind::Register { .. } => None,
    })
}

/// The predicate under which a check is made: none: always; no check at all where it never holds.
fn guard_of(when: S) -> Option<Option<V>> {
    match when {
        Src::Imm(1) => Some(None),
        Src::Imm(_) => None,
        Src::Reg(p) => Some(Some(p)),
    }
}

/// Has the emulator check that an element's index, which is signed, lies in dimension `dim` of the view, where `when` holds.
pub fn check_index(
    cx: &mut LowerCx,
    r: &RefUse,
    when: S,
    (class, i): (Class, S),
    (dim, extent): (usize, u64),
) -> Result<()> {
    let (Some((of, place)), Some(guard)) = (indexed(cx, r)?, guard_of(when)) else {
        return Ok(());
    };
    let check = Inst::check_index(
        if class == Class::B64 {
            IntType::S64
        } else {
            IntType::S32
        },
        of,
        i,
        1,
        extent as i64,
        dim as i64,
        i64::from(place),
    );
    cx.b.inst_if(guard, check);
    Ok(())
}

/// An integer scalar as what [`Inst::CheckIndex`] looks at.
pub fn index_of(cx: &mut LowerCx, v: Value) -> Result<(IntType, S)> {
    let dtype = cx.kernel.ty(v).dtype();
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
    Ok((ty, i))
}

/// Has the emulator check what is not proven: that every dynamic index of a use lies in its dimension. On a GPU it is nothing.
/// `when`: only then are the indices meant.
pub fn check_indices(cx: &mut LowerCx, r: &RefUse, when: S) -> Result<()> {
    let kernel = cx.kernel;
    let data = &kernel.allocs[r.alloc];
    let (Some((of, place)), Some(guard)) = (indexed(cx, r)?, guard_of(when)) else {
        return Ok(());
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
                | DimIndex::Window { .. }
                | DimIndex::Gather(_) => continue,
            };
            let facts = kernel.facts(v);
            let extent = extent as i64;
            if facts.within(0, extent - size) {
                continue;
            }
            let (ty, i) = index_of(cx, v)?;
            let check = Inst::check_index(ty, of, i, size, extent, dim as i64, i64::from(place));
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

/// Where an SMEM allocation begins, for a use of it: a shared-window address, with bytes to be added. With [`Place::Cluster`]: a
/// `shared::cluster` address.
pub fn smem_base(cx: &mut LowerCx, r: &RefUse) -> Result<(V, i32)> {
    let (base, offset) = cx.smem_address(r.alloc)?;
    if r.place == Place::Here {
        return Ok((base, offset));
    }
    let rank = peer_rank(cx, r)?;
    let local = cx.b.add(IntType::U32, base, Src::imm32(offset));
    let local = cx.b.r32(local);
    let remote = cx.b.emit(Inst::mapa(PtxValue::NEW, local, rank));
    Ok((cx.b.r32(remote), 0))
}

/// The address of a view's first element before the swizzle: base, constant and dynamic offsets.
pub fn smem_start(cx: &mut LowerCx, r: &RefUse, view: &SmemView) -> Result<S> {
    let (base, offset) = smem_base(cx, r)?;
    let constant = i64::from(offset) + (view.offset / 8) as i64;
    let mut at = cx.b.add(IntType::U32, base, Src::imm32(constant as i32));
    for term in &view.dynamic {
        let x = dyn_term(cx, &term.in_bytes())?;
        at = cx.b.add(IntType::U32, at, x);
    }
    Ok(at)
}
