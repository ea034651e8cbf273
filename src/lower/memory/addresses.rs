//! Where the elements of a thread lie: addresses, what is added to them, and which of them are outside.
use super::{Size, Target};
use crate::error::{Error, Result};
use crate::kernel_ir::{DimIndex, Index, RefUse, Step};
use crate::layout::address::Fold;
use crate::layout::facts::{DynTerm, Start};
use crate::layout::register_layout::{RegisterLayout, Source, Term};
use crate::layout::smem_layout::{SmemView, Swizzle};
use crate::layout::transfer::{Addressing, ElementTerm, Guard, TransferPlan};
use crate::lower::cx::LowerCx;
use crate::lower::emit::{S, V};
use crate::lower::shape::dim_index;
use crate::lower::view;
use crate::ptx::inst::Inst;
use crate::ptx::modifier::*;
use crate::ptx::operand::{Addr, Class, Src};
use crate::ptx::ssa::Value as PtxValue;

/// A thread's part of an index or address: lane and warp digits.
pub fn thread_terms(cx: &mut LowerCx, terms: &[Term]) -> S {
    let mut sum: S = Src::u32(0);
    for t in terms.iter().filter(|t| t.stride != 0 && t.bits != 0) {
        let source: S = match t.source {
            Source::Lane => cx.b.lane().into(),
            Source::Warp => cx.b.warp_in_warpgroup().into(),
        };
        let whole = match t.source {
            Source::Lane => 5,
            Source::Warp => 2,
        };
        let mut x = cx.b.shr(ShiftType::U32, source, Src::u32(u32::from(t.lo_bit)));
        if t.lo_bit + t.bits < whole {
            x = cx.b.and(LogicType::B32, x, Src::u32((1 << t.bits) - 1));
        }
        let x = cx.b.mul(IntType::U32, x, Src::imm32(t.stride as i32));
        sum = cx.b.add(IntType::U32, sum, x);
    }
    sum
}

/// Where shared memory of this swizzle has what lies at an address of it without one.
pub fn swizzle(cx: &mut LowerCx, s: Swizzle, address: S) -> S {
    if s.is_none() {
        return address;
    }
    let row = cx.b.shr(ShiftType::U32, address, Src::u32(u32::from(s.shift)));
    let row = cx.b.and(LogicType::B32, row, Src::u32(s.target_mask() as u32));
    cx.b.xor(LogicType::B32, address, row)
}

/// The same of addresses in device memory where strides may be large: 64 bits if the sum may need them.
fn thread_offset(cx: &mut LowerCx, terms: &[Term]) -> (S, Width) {
    let most = |t: &Term| i128::from(t.stride) * ((1 << t.bits) - 1);
    if terms.iter().map(most).sum::<i128>() <= u32::MAX.into() {
        return (thread_terms(cx, terms), Width::Short);
    }
    let mut sum: S = Src::Imm(0);
    for t in terms {
        let x = thread_terms(cx, &[Term { stride: 1, ..*t }]);
        let x = cx.b.widen(x, false);
        sum = cx.b.mad(IntType::S64, x, Src::Imm(t.stride as u64), sum);
    }
    (sum, Width::Long)
}

/// In how many bits an offset is computed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Width {
    Short,
    Long,
}

impl Width {
    /// Of offsets below `count`.
    pub(super) fn of(count: u128) -> Width {
        match count <= u32::MAX.into() {
            true => Width::Short,
            false => Width::Long,
        }
    }
    pub(super) fn int(self) -> IntType {
        match self {
            Width::Short => IntType::U32,
            Width::Long => IntType::U64,
        }
    }
    pub(super) fn class(self) -> Class {
        match self {
            Width::Short => Class::B32,
            Width::Long => Class::B64,
        }
    }
    pub(super) fn imm(self, x: u64) -> S {
        match self {
            Width::Short => Src::u32(x as u32),
            Width::Long => Src::Imm(x),
        }
    }
    /// An unsigned number of 32 bits.
    pub(super) fn widened(self, cx: &mut LowerCx, x: S) -> S {
        match self {
            Width::Short => x,
            Width::Long => cx.b.widen(x, false),
        }
    }
    /// Where a slice starts.
    pub(super) fn start(self, cx: &mut LowerCx, start: &Start) -> Result<S> {
        match (start, self) {
            (Start::Static(x), _) => Ok(self.imm(*x)),
            (Start::Dynamic(id, _), Width::Short) => view::dyn_value(cx, *id),
            (Start::Dynamic(id, _), Width::Long) => view::long_dyn_value(cx, *id),
        }
    }
    pub(super) fn term(self, cx: &mut LowerCx, term: &DynTerm) -> Result<S> {
        match self {
            Width::Short => view::dyn_term(cx, term),
            Width::Long => view::long_dyn_term(cx, term),
        }
    }
    /// An offset in bytes, added to an address.
    pub(super) fn add_offset(self, cx: &mut LowerCx, target: Target, at: S, offset: S) -> S {
        match self {
            Width::Short => add_offset(cx, target, at, offset),
            Width::Long => cx.b.add(IntType::U64, at, offset),
        }
    }
}

/// A dynamic term in bytes, added to an address.
pub(super) fn add_dynamic(cx: &mut LowerCx, target: Target, at: S, term: &DynTerm) -> Result<S> {
    if !target.wide() {
        let x = view::dyn_term(cx, term)?;
        return Ok(cx.b.add(IntType::U32, at, x));
    }
    add_far(cx, at, term, target.size)
}

/// A dynamic term in bytes, added to an address in an array in device memory.
pub fn add_far(cx: &mut LowerCx, at: S, term: &DynTerm, size: Size) -> Result<S> {
    if view::is_long(cx, term.value, size.positions) {
        let x = view::long_dyn_term(cx, term)?;
        return Ok(cx.b.add(IntType::U64, at, x));
    }
    let unscaled = DynTerm { stride: 1, ..*term };
    let x = view::dyn_term(cx, &unscaled)?;
    if let Ok(stride) = i32::try_from(term.stride) {
        return Ok(cx
            .b
            .emit(Inst::mad_wide(WideType::S32, PtxValue::NEW, x, Src::imm32(stride), at)));
    }
    let x = cx.b.cvt_int(CvtType::S64, CvtType::S32, x);
    Ok(cx.b.mad(IntType::S64, x, Src::Imm(term.stride as u64), at))
}

/// A 32-bit byte offset added to an address.
pub(super) fn add_offset(cx: &mut LowerCx, target: Target, at: S, offset: S) -> S {
    if target.wide() {
        let offset = cx.b.cvt_int(CvtType::U64, CvtType::U32, offset);
        cx.b.add(IntType::U64, at, offset)
    } else {
        cx.b.add(IntType::U32, at, offset)
    }
}

/// The value of `Σ` of an element term, in bits.
fn element_term(cx: &mut LowerCx, t: &ElementTerm, indices: &[S], width: Width) -> Result<S> {
    let mut x: S = match t.axis {
        Some(axis) => indices[axis],
        None => width.imm(0),
    };
    let step = |cx: &mut LowerCx, mut x: S, div: u64, modulus: Option<u64>| {
        if div != 1 {
            x = cx.b.div(width.int(), x, width.imm(div));
        }
        if let Some(m) = modulus {
            x = cx.b.rem(width.int(), x, width.imm(m));
        }
        x
    };
    x = step(cx, x, t.div, t.modulus);
    for s in &t.starts {
        let start = width.start(cx, s)?;
        x = cx.b.add(width.int(), x, start);
    }
    x = step(cx, x, t.then_div, t.then_modulus);
    Ok(x)
}

/// The predicate of an access.
pub fn guard(cx: &mut LowerCx, layout: &RegisterLayout, guards: &[Guard], extra: S) -> S {
    let mut all = extra;
    for g in guards {
        let terms = RegisterLayout::axis_terms(&layout.axes()[g.axis]);
        let x = thread_terms(cx, &terms);
        let x = cx.b.add(IntType::U32, x, Src::u32(g.constant as u32));
        let inside = cx.b.setp(Compare::Lt, CompareType::U32, x, Src::u32(g.limit as u32));
        all = cx.b.both(all, inside);
    }
    all
}

/// A dimension of an array in memory of which a window is taken: dimension `dim` of the window begins at `start`.
pub(super) struct Window {
    pub(super) dim: usize,
    /// Its number in the array.
    pub(super) of: usize,
    pub(super) start: S,
    /// Of positions in the dimension. Half of them are in front of the array.
    pub(super) width: Width,
    pub(super) extent: u64,
}

/// The windows of a use in its first step.
pub(super) fn windows(cx: &mut LowerCx, r: &RefUse) -> Result<Vec<Window>> {
    let mut out = vec![];
    let Some(Step::Index(dims)) = r.steps.first() else {
        return Ok(out);
    };
    let kept = dims.iter().zip(&cx.kernel.allocs[r.alloc].shape).enumerate();
    let kept = kept.filter(|(_, (d, _))| !matches!(d, DimIndex::At(_)));
    for (dim, (of, (index, &extent))) in kept.enumerate() {
        if let Some(start) = index.window() {
            let width = Width::of(u128::from(extent) << 1);
            let start = match (start, width) {
                (Index::Const(c), Width::Short) => Src::imm32(c as i32),
                (Index::Value(v), Width::Short) => cx.index32(v)?,
                (Index::Const(c), Width::Long) => Src::Imm(c as u64),
                (Index::Value(v), Width::Long) => cx.index64(v)?,
            };
            out.push(Window {
                dim,
                of,
                start,
                width,
                extent,
            });
        }
    }
    Ok(out)
}

/// Whether the element in `slot` is inside of all windows.
pub(super) fn inside(cx: &mut LowerCx, layout: &RegisterLayout, windows: &[Window], slot: u32) -> S {
    let mut all = Src::Imm(1);
    for w in windows {
        let x = dim_index(cx, layout, w.dim, slot);
        let x = w.width.widened(cx, x);
        // In front of the array is far behind it.
        let x = cx.b.add(w.width.int(), x, w.start);
        let here =
            cx.b.setp(Compare::Lt, w.width.int().as_compare(), x, w.width.imm(w.extent));
        all = cx.b.both(all, here);
    }
    all
}

/// Addresses of a plan's accesses.
pub struct Addresses {
    pub bases: Vec<S>,
}

pub fn bases(cx: &mut LowerCx, target: Target, addressing: &Addressing) -> Result<Addresses> {
    let Addressing::Affine(plan) = addressing else {
        return Ok(Addresses { bases: vec![] });
    };
    let mut origin = target.origin;
    for term in &plan.dynamic {
        origin = add_dynamic(cx, target, origin, term)?;
    }
    let (t, width) = match target.wide() {
        true => thread_offset(cx, &plan.terms),
        false => (thread_terms(cx, &plan.terms), Width::Short),
    };
    let mut out = vec![];
    let folded = match plan.fold {
        Fold::Linear if target.wide() => Some(t),
        Fold::Linear => Some(swizzle(cx, plan.swizzle, t)),
        Fold::Absolute => None,
    };
    for &constant in &plan.bases {
        out.push(match folded {
            Some(t) => {
                let t = cx.b.xor(width.int().as_logic(), t, width.imm(constant));
                width.add_offset(cx, target, origin, t)
            }
            None => {
                let at = width.add_offset(cx, target, origin, t);
                let at = cx.b.add(IntType::U32, at, Src::u32(constant as u32));
                swizzle(cx, plan.swizzle, at)
            }
        });
    }
    Ok(Addresses { bases: out })
}

/// The address that is so many bytes behind a base: an immediate, unless it is too large for one.
pub fn address(cx: &mut LowerCx, base: S, offset: i64) -> Addr<V> {
    match i32::try_from(offset) {
        Ok(offset) => cx.b.addr(base, offset),
        Err(_) => {
            let at = cx.b.add(IntType::U64, base, Src::Imm(offset as u64));
            cx.b.addr(at, 0)
        }
    }
}

/// Address of the element in `slot`, and the bit in its byte.
pub fn element_address(
    cx: &mut LowerCx,
    target: Target,
    plan: &TransferPlan,
    view: &SmemView,
    slot: u32,
) -> Result<(Addr<V>, S)> {
    let Addressing::Elements {
        constant_bits,
        dynamic_bits,
        terms,
    } = &plan.addressing
    else {
        return Err(Error::internal("an element without an address"));
    };
    let sub_byte = view.bits < 8;
    let unit = if sub_byte { 1 } else { 8 };
    let width = Width::of(u128::from(target.size.bytes) * 8 / u128::from(unit));
    let mut indices: Vec<S> = vec![];
    let offsets = plan.layout.slot_offset(slot);
    for (axis, offset) in plan.layout.axes().iter().zip(offsets) {
        let x = thread_terms(cx, &RegisterLayout::axis_terms(axis));
        let x = cx.b.add(IntType::U32, x, Src::u32(offset as u32));
        indices.push(width.widened(cx, x));
    }
    let mut offset: S = width.imm(constant_bits / unit);
    for d in dynamic_bits {
        let stride = d.stride / unit as i64;
        let x = width.term(cx, &DynTerm { stride, ..*d })?;
        offset = cx.b.add(width.int(), offset, x);
    }
    for t in terms {
        let x = element_term(cx, t, &indices, width)?;
        offset = cx.b.mad(width.int(), x, width.imm(t.stride_bits / unit), offset);
    }
    let (bytes, bit) = match (sub_byte, width) {
        (false, _) => (offset, Src::u32(0)),
        (true, Width::Short) => {
            let bit = cx.b.and(LogicType::B32, offset, Src::u32(7));
            (cx.b.shr(ShiftType::U32, offset, Src::u32(3)), bit)
        }
        (true, Width::Long) => {
            let bit = cx.b.and(LogicType::B64, offset, Src::Imm(7));
            let bit = cx.b.truncate(bit);
            (cx.b.shr(ShiftType::U64, offset, Src::u32(3)), bit)
        }
    };
    let at = width.add_offset(cx, target, target.origin, bytes);
    let at = if target.wide() {
        at
    } else {
        swizzle(cx, view.swizzle, at)
    };
    Ok((cx.b.addr(at, 0), bit))
}
