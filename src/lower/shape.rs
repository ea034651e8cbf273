//! Constants and ops that move elements without changing them.
//!
//! [`crate::layout::movement`] plans it: the operand's registers under other names, or a trip through scratch: the operands are stored
//! and the result is loaded through a view.
use super::cx::LowerCx;
use super::emit::S;
use super::memory::{self, Target};
use super::relayout::filled;
use super::value::{ArrayRegs, Lowered, scalar_class, scalar_constant};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::kernel_ir::{Constant, Op, Value};
use crate::layout::derivation::with_dim_in_slots;
use crate::layout::facts::{Fact, Start};
use crate::layout::movement::{Movement, kept_by_padding, static_start, travel_type};
use crate::layout::smem_layout::Index;
use crate::layout::transfer::{self, Direction, Memory, Options};
use crate::layout::{RegisterLayout, SmemView};
use crate::ptx::modifier::*;
use crate::ptx::operand::{Class, Src};

/// An element that all threads hold, as a scalar.
pub fn to_scalar(cx: &mut LowerCx, dtype: DType, s: S) -> S {
    let uniform = cx.group_uniform();
    if cx.b.uniform(s) >= uniform {
        return s;
    }
    // One value for all lanes, provably, whatever the element was computed from: branches on it are uniform.
    let broadcast = cx.b.broadcast_lane0(scalar_class(dtype), s);
    if let Src::Reg(v) = broadcast {
        cx.b.claim_uniform(v, uniform);
    }
    broadcast
}

// ---------------------------------------------------------------------------------------------- renaming

/// Binds an op's result where no element moves. False: they go through scratch, which is up to the op.
fn bind_renamed(cx: &mut LowerCx, op: Op, sources: &[ArrayRegs], fill: S) -> Result<bool> {
    let result = cx.result(op);
    let exchanges = cx.exchanges;
    let map = match exchanges.movements.get(&op) {
        Some(Movement::Stay) => None,
        Some(Movement::Rename(map)) => Some(map),
        Some(Movement::Scratch { .. }) => return Ok(false),
        None => return Err(Error::internal("a shape op without a plan").at(cx.b.loc())),
    };
    let layout = cx.layout_of(result)?;
    let out = match map {
        None => ArrayRegs {
            layout,
            ..sources[0].clone()
        },
        Some(map) => {
            let elements: Vec<Vec<S>> = sources.iter().map(|a| cx.elements(a)).collect();
            let from = |&(k, slot): &(usize, u32)| elements[k].get(slot as usize).copied();
            let moved: Vec<S> = map.iter().map(|m| m.as_ref().and_then(from).unwrap_or(fill)).collect();
            cx.from_elements(cx.ty(result).dtype(), layout, &moved)
        }
    };
    cx.bind_array(result, out);
    Ok(true)
}

/// The operand of an op whose elements go through scratch; none: its result is bound.
fn moved(cx: &mut LowerCx, op: Op, a: Value) -> Result<Option<ArrayRegs>> {
    if bind_if_empty(cx, cx.result(op))? {
        return Ok(None);
    }
    let (x, result) = (cx.array(a)?, cx.result(op));
    if cx.ty(result).is_scalar() {
        let s = cx.elements(&x)[0];
        let s = to_scalar(cx, x.dtype, s);
        cx.bind_scalar(result, s);
        return Ok(None);
    }
    let renamed = bind_renamed(cx, op, std::slice::from_ref(&x), Src::Imm(0))?;
    Ok((!renamed).then_some(x))
}

// ---------------------------------------------------------------------------------------------- scratch

pub fn to_travel(cx: &mut LowerCx, a: &ArrayRegs) -> ArrayRegs {
    let dtype = travel_type(a.dtype);
    if dtype == a.dtype {
        return a.clone();
    }
    let elements = cx.elements(a);
    cx.from_elements(dtype, a.layout.clone(), &elements)
}

pub fn from_travel(cx: &mut LowerCx, a: ArrayRegs, dtype: DType) -> ArrayRegs {
    if dtype == a.dtype {
        return a;
    }
    let bits = dtype.bits();
    let elements: Vec<S> = cx
        .elements(&a)
        .into_iter()
        .map(|x| cx.b.field(x, 0, bits, dtype.is_signed_int()))
        .collect();
    cx.from_elements(dtype, a.layout, &elements)
}

/// Arrays on their way through the group's scratch.
pub struct Trip {
    dtype: DType,
    pub target: Target,
}

impl Trip {
    /// The plan's scratch; all threads have left it.
    pub fn start(cx: &mut LowerCx, dtype: DType) -> Trip {
        let (base, _) = cx.scratch();
        cx.sync_group();
        Trip {
            dtype,
            target: Target::shared(base.into()),
        }
    }
    /// A part of scratch, behind a barrier of its threads.
    pub fn on(dtype: DType, target: Target) -> Trip {
        Trip { dtype, target }
    }
    pub fn bits(&self) -> u32 {
        travel_type(self.dtype).bits()
    }
    pub fn store(&self, cx: &mut LowerCx, a: &ArrayRegs, view: &SmemView) -> Result<()> {
        let a = to_travel(cx, a);
        let plan = transfer::plan(&a.layout, view, Memory::Shared, Direction::Store, Options::default())
            .map_err(|e| Error::internal(e.to_string()))?;
        let a = filled(cx, &a, &plan.layout)?;
        memory::emit_store(cx, self.target, &plan, view, &a)
    }
    pub fn load(&self, cx: &mut LowerCx, layout: &RegisterLayout, view: &SmemView) -> Result<ArrayRegs> {
        cx.sync_group();
        self.load_now(cx, layout, view)
    }
    /// What is there for all threads to see.
    pub fn load_now(&self, cx: &mut LowerCx, layout: &RegisterLayout, view: &SmemView) -> Result<ArrayRegs> {
        let plan = transfer::plan(layout, view, Memory::Shared, Direction::Load, Options::default())
            .map_err(|e| Error::internal(e.to_string()))?;
        let a = memory::emit_load(cx, self.target, &plan, view, travel_type(self.dtype))?;
        Ok(from_travel(cx, a, self.dtype))
    }
}

/// A part of what lies in scratch.
pub fn part_of(whole: &SmemView, indices: &[Index]) -> Result<SmemView> {
    let part = whole.index_loosely(indices);
    part.map_err(|e| Error::internal(e.to_string()))
}

/// Row-major strides in elements.
fn strides_of(shape: &[u64]) -> Vec<u64> {
    let mut out = vec![1; shape.len()];
    for d in (1..shape.len()).rev() {
        out[d - 1] = out[d] * shape[d];
    }
    out
}

/// Stores `a` row-major and loads the elements `offset + Σ indexᵢ·strideᵢ` (in elements).
fn reload(cx: &mut LowerCx, a: &ArrayRegs, layout: &RegisterLayout, strides: &[u64], offset: u64) -> Result<ArrayRegs> {
    let trip = Trip::start(cx, a.dtype);
    let bits = trip.bits();
    trip.store(cx, a, &SmemView::row_major(a.layout.shape(), bits))?;
    let strides: Vec<u64> = strides.iter().map(|s| s * u64::from(bits)).collect();
    let mut view = SmemView::strided(layout.shape(), &strides, bits);
    view.offset = offset * u64::from(bits);
    trip.load(cx, layout, &view)
}

/// The same as the result of an op.
fn bind_reloaded(cx: &mut LowerCx, op: Op, a: &ArrayRegs, strides: &[u64], offset: u64) -> Result<()> {
    let result = cx.result(op);
    let layout = cx.layout_of(result)?;
    let out = reload(cx, a, &layout, strides, offset)?;
    cx.bind_array(result, out);
    Ok(())
}

/// An array without elements, for results of size 0.
pub fn bind_if_empty(cx: &mut LowerCx, result: Value) -> Result<bool> {
    if cx.ty(result).is_scalar() || !cx.ty(result).shape().contains(&0) {
        return Ok(false);
    }
    let layout = cx.layout_of(result)?;
    let a = cx.fill(cx.ty(result).dtype(), layout, Src::Imm(0));
    cx.bind_array(result, a);
    Ok(true)
}

// ---------------------------------------------------------------------------------------------- constants

pub fn lower_constant(cx: &mut LowerCx, op: Op, constant: &Constant) -> Result<()> {
    let result = cx.result(op);
    let dtype = cx.ty(result).dtype();
    match constant {
        Constant::Splat(bits) => {
            let x = scalar_constant(dtype, *bits);
            if cx.ty(result).is_scalar() {
                cx.bind_scalar(result, x);
            } else {
                let layout = cx.layout_of(result)?;
                let a = cx.fill(dtype, layout, x);
                cx.bind_array(result, a);
            }
            Ok(())
        }
        Constant::Dense(bytes) => {
            if bind_if_empty(cx, result)? {
                return Ok(());
            }
            let width = (dtype.bits() as usize).div_ceil(8);
            let elements: Vec<S> = bytes
                .chunks(width)
                .map(|c| scalar_constant(dtype, c.iter().rev().fold(0, |x, &byte| x << 8 | u64::from(byte))))
                .collect();
            let everywhere = RegisterLayout::replicated(cx.ty(result).shape(), cx.layout_group());
            let a = cx.from_elements(dtype, everywhere, &elements);
            match cx.ty(result).is_scalar() {
                true => {
                    let s = to_scalar(cx, dtype, elements[0]);
                    cx.bind_scalar(result, s);
                }
                false => cx.bind_array(result, a),
            }
            Ok(())
        }
    }
}

/// The index along `dim` of what a thread holds in each slot.
pub fn dim_indices(cx: &mut LowerCx, layout: &RegisterLayout, dim: usize) -> Vec<S> {
    let thread = thread_along(cx, layout, dim);
    (0..layout.slots())
        .map(|slot| index_of_slot(cx, layout, dim, thread, slot))
        .collect()
}

/// The index along `dim` of what a thread holds in one slot.
pub fn dim_index(cx: &mut LowerCx, layout: &RegisterLayout, dim: usize, slot: u32) -> S {
    let thread = thread_along(cx, layout, dim);
    index_of_slot(cx, layout, dim, thread, slot)
}

/// A thread's part of the index along the axis that `dim` is of.
fn thread_along(cx: &mut LowerCx, layout: &RegisterLayout, dim: usize) -> S {
    memory::thread_terms(cx, &RegisterLayout::axis_terms(layout.axis_of(dim)))
}

fn index_of_slot(cx: &mut LowerCx, layout: &RegisterLayout, dim: usize, thread: S, slot: u32) -> S {
    let axis = layout.axis_of(dim);
    let below: u64 = layout.shape()[dim + 1..axis.first + axis.rank].iter().product();
    let offset = RegisterLayout::axis_offset(axis, slot);
    let flat = cx.b.add(IntType::U32, thread, Src::u32(offset as u32));
    let above = cx.b.div(IntType::U32, flat, Src::u32(below as u32));
    if dim == axis.first {
        above
    } else {
        cx.b.rem(IntType::U32, above, Src::u32(layout.shape()[dim] as u32))
    }
}

pub fn lower_iota(cx: &mut LowerCx, op: Op, dim: usize) -> Result<()> {
    let result = cx.result(op);
    if bind_if_empty(cx, result)? {
        return Ok(());
    }
    let dtype = cx.ty(result).dtype();
    let layout = cx.layout_of(result)?;
    let indices = dim_indices(cx, &layout, dim);
    let mut out = Vec::with_capacity(indices.len());
    for x in indices {
        out.push(super::convert::convert(&mut cx.b, DType::I32, dtype, x)?);
    }
    let a = cx.from_elements(dtype, layout, &out);
    cx.bind_array(result, a);
    Ok(())
}

// ---------------------------------------------------------------------------------------------- shape ops

pub fn lower_broadcast(cx: &mut LowerCx, op: Op, a: Value, dims: &[u32]) -> Result<()> {
    let result = cx.result(op);
    if bind_if_empty(cx, result)? {
        return Ok(());
    }
    if let Lowered::Scalar(s) = *cx.get(a)? {
        if cx.ty(result).is_scalar() {
            cx.bind_scalar(result, s);
        } else {
            let layout = cx.layout_of(result)?;
            let x = cx.fill(cx.ty(a).dtype(), layout, s);
            cx.bind_array(result, x);
        }
        return Ok(());
    }
    let Some(x) = moved(cx, op, a)? else { return Ok(()) };
    let own = x.layout.shape().to_vec();
    let own_strides = strides_of(&own);
    let mut strides = vec![0; cx.ty(result).shape().len()];
    for ((&d, &n), &s) in dims.iter().zip(&own).zip(&own_strides) {
        strides[d as usize] = if n == 1 { 0 } else { s };
    }
    bind_reloaded(cx, op, &x, &strides, 0)
}

pub fn lower_reshape(cx: &mut LowerCx, op: Op, a: Value) -> Result<()> {
    let result = cx.result(op);
    if bind_if_empty(cx, result)? {
        return Ok(());
    }
    if let Lowered::Scalar(_) = cx.get(a)? {
        return lower_broadcast(cx, op, a, &[]);
    }
    let Some(x) = moved(cx, op, a)? else { return Ok(()) };
    let strides = strides_of(cx.ty(result).shape());
    bind_reloaded(cx, op, &x, &strides, 0)
}

pub fn lower_transpose(cx: &mut LowerCx, op: Op, a: Value, permutation: &[u32]) -> Result<()> {
    let Some(x) = moved(cx, op, a)? else { return Ok(()) };
    let own = strides_of(x.layout.shape());
    let strides: Vec<u64> = permutation.iter().map(|&p| own[p as usize]).collect();
    bind_reloaded(cx, op, &x, &strides, 0)
}

pub fn lower_slice(cx: &mut LowerCx, op: Op, a: Value, starts: &[u64], strides: &[u64]) -> Result<()> {
    let Some(x) = moved(cx, op, a)? else { return Ok(()) };
    let own = strides_of(x.layout.shape());
    let offset = own.iter().zip(starts).map(|(s, start)| s * start).sum();
    let steps: Vec<u64> = own.iter().zip(strides).map(|(s, stride)| s * stride).collect();
    bind_reloaded(cx, op, &x, &steps, offset)
}

/// Starts clamped so that the slice is inside, as indices of a view.
fn clamped_starts(cx: &mut LowerCx, starts: &[Value], extents: &[u64], sizes: &[u64]) -> Result<Vec<Index>> {
    let mut out = vec![];
    for ((&v, &extent), &size) in starts.iter().zip(extents).zip(sizes) {
        let most = extent - size;
        let facts = cx.kernel.facts(v);
        let start = match static_start(cx.kernel, v, extent, size) {
            Some(start) => Start::Static(start),
            None => {
                let inside = facts.within(0, most);
                let x = if inside {
                    cx.index32(v)?
                } else {
                    let x = cx.index64(v)?;
                    let x = match cx.ty(v).dtype().is_signed_int() {
                        true => {
                            let x = cx.b.max(IntType::S64, x, Src::Imm(0));
                            cx.b.min(IntType::S64, x, Src::Imm(most))
                        }
                        false => cx.b.min(IntType::U64, x, Src::Imm(most)),
                    };
                    cx.b.truncate(x)
                };
                let divisor = if inside { facts.divisor.max(1) } else { 1 };
                Start::Dynamic(
                    cx.extra_dyn(Class::B32, x),
                    Fact {
                        divisor,
                        min: 0,
                        max: most as i64,
                    },
                )
            }
        };
        out.push(Index::Slice(start, size));
    }
    Ok(out)
}

pub fn lower_dynamic_slice(cx: &mut LowerCx, op: Op, a: Value, starts: &[Value]) -> Result<()> {
    let Some(x) = moved(cx, op, a)? else { return Ok(()) };
    let result = cx.result(op);
    let sizes = cx.ty(result).shape().to_vec();
    let extents = x.layout.shape().to_vec();
    let indices = clamped_starts(cx, starts, &extents, &sizes)?;
    let layout = cx.layout_of(result)?;
    let trip = Trip::start(cx, x.dtype);
    let whole = SmemView::row_major(&extents, trip.bits());
    trip.store(cx, &x, &whole)?;
    let view = part_of(&whole, &indices)?;
    let out = trip.load(cx, &layout, &view)?;
    cx.bind_array(result, out);
    Ok(())
}

pub fn lower_dynamic_update_slice(cx: &mut LowerCx, op: Op, a: Value, update: Value, starts: &[Value]) -> Result<()> {
    let result = cx.result(op);
    if bind_if_empty(cx, result)? {
        return Ok(());
    }
    let (x, u) = (cx.array(a)?, cx.array(update)?);
    if bind_renamed(cx, op, &[x.clone(), u.clone()], Src::Imm(0))? {
        return Ok(());
    }
    let extents = x.layout.shape().to_vec();
    let sizes = u.layout.shape().to_vec();
    let indices = clamped_starts(cx, starts, &extents, &sizes)?;
    let layout = cx.layout_of(result)?;
    let trip = Trip::start(cx, x.dtype);
    let whole = SmemView::row_major(&extents, trip.bits());
    trip.store(cx, &x, &whole)?;
    if !sizes.contains(&0) {
        cx.sync_group();
        let part = part_of(&whole, &indices)?;
        trip.store(cx, &u, &part)?;
    }
    let out = trip.load(cx, &layout, &whole)?;
    cx.bind_array(result, out);
    Ok(())
}

pub fn lower_concat(cx: &mut LowerCx, op: Op, parts: &[Value], dim: usize) -> Result<()> {
    let result = cx.result(op);
    if bind_if_empty(cx, result)? {
        return Ok(());
    }
    let mut arrays = vec![];
    let mut starts = vec![];
    let mut at = 0;
    for &v in parts {
        let size = cx.ty(v).shape()[dim];
        if !cx.ty(v).shape().contains(&0) {
            arrays.push(cx.array(v)?);
            starts.push(at);
        }
        at += size;
    }
    if bind_renamed(cx, op, &arrays, Src::Imm(0))? {
        return Ok(());
    }
    let layout = cx.layout_of(result)?;
    let trip = Trip::start(cx, arrays[0].dtype);
    let whole = SmemView::row_major(layout.shape(), trip.bits());
    for (a, &start) in arrays.iter().zip(&starts) {
        let indices: Vec<Index> = a
            .layout
            .shape()
            .iter()
            .enumerate()
            .map(|(d, &n)| Index::Slice(Start::Static(if d == dim { start } else { 0 }), n))
            .collect();
        let view = part_of(&whole, &indices)?;
        trip.store(cx, a, &view)?;
    }
    let out = trip.load(cx, &layout, &whole)?;
    cx.bind_array(result, out);
    Ok(())
}

pub fn lower_pad(cx: &mut LowerCx, op: Op, a: Value, value: Value, low: &[i64], interior: &[i64]) -> Result<()> {
    let result = cx.result(op);
    if bind_if_empty(cx, result)? {
        return Ok(());
    }
    let fill = cx.scalar(value)?;
    let x = cx.array(a)?;
    if bind_renamed(cx, op, std::slice::from_ref(&x), fill)? {
        return Ok(());
    }
    // The operand's elements at their places; negative padding leaves the first and last ones out, one by one: what lies outside
    // goes to the room before and behind the result.
    let layout = cx.layout_of(result)?;
    let dtype = cx.ty(result).dtype();
    let target = layout.shape();
    let strides = strides_of(target);
    let (kept_start, kept_size) = kept_by_padding(x.layout.shape(), target, low, interior);
    if kept_size.contains(&0) {
        let out = cx.fill(dtype, layout, fill);
        cx.bind_array(result, out);
        return Ok(());
    }
    let kept = crop(cx, &x, &kept_start, &kept_size)?;
    let trip = Trip::start(cx, dtype);
    let bits = u64::from(trip.bits());
    let whole = SmemView::row_major(target, trip.bits());
    let background = cx.fill(dtype, RegisterLayout::splat(target, layout.group()), fill);
    trip.store(cx, &background, &whole)?;
    cx.sync_group();
    let steps: Vec<u64> = strides
        .iter()
        .zip(interior)
        .map(|(s, i)| s * (*i as u64 + 1) * bits)
        .collect();
    let mut view = SmemView::strided(&kept_size, &steps, trip.bits());
    view.offset = (0..target.len())
        .map(|d| (low[d] + kept_start[d] as i64 * (interior[d] + 1)) as u64 * strides[d] * bits)
        .sum();
    trip.store(cx, &kept, &view)?;
    let out = trip.load(cx, &layout, &whole)?;
    cx.bind_array(result, out);
    Ok(())
}

/// A part of an array, in any layout.
fn crop(cx: &mut LowerCx, x: &ArrayRegs, start: &[u64], size: &[u64]) -> Result<ArrayRegs> {
    if x.layout.shape() == size {
        return Ok(x.clone());
    }
    if let Some((layout, map)) = x.layout.slice(start, size) {
        let elements = cx.elements(x);
        let moved: Vec<S> = map.iter().map(|&s| elements[s as usize]).collect();
        return Ok(cx.from_elements(x.dtype, layout, &moved));
    }
    let layout = with_dim_in_slots(size, None, x.layout.group());
    let own = strides_of(x.layout.shape());
    let offset = own.iter().zip(start).map(|(s, at)| s * at).sum();
    reload(cx, x, &layout, &own, offset)
}

/// Where slots alone can't reverse, the elements are stored at their own places and loaded one by one from the mirrored ones.
pub fn lower_reverse(cx: &mut LowerCx, op: Op, a: Value, dims: &[u32]) -> Result<()> {
    let Some(x) = moved(cx, op, a)? else { return Ok(()) };
    let result = cx.result(op);
    let layout = cx.layout_of(result)?;
    let shape = layout.shape().to_vec();
    let reversed = |d: usize| dims.contains(&(d as u32));
    let trip = Trip::start(cx, x.dtype);
    let bytes = trip.bits() / 8;
    trip.store(cx, &x, &SmemView::row_major(&shape, trip.bits()))?;
    cx.sync_group();
    let strides = strides_of(&shape);
    let mut sums = vec![Src::u32(0); layout.slots() as usize];
    for (d, &n) in shape.iter().enumerate() {
        for (sum, i) in sums.iter_mut().zip(dim_indices(cx, &layout, d)) {
            // Padding reads some element.
            let i = cx.b.min(IntType::U32, i, Src::u32(n as u32 - 1));
            let i = if reversed(d) {
                cx.b.sub(IntType::U32, Src::u32(n as u32 - 1), i)
            } else {
                i
            };
            let offset = cx.b.mul(IntType::U32, i, Src::u32(strides[d] as u32 * bytes));
            *sum = cx.b.add(IntType::U32, *sum, offset);
        }
    }
    let (base, _) = cx.scratch();
    let travel = travel_type(x.dtype);
    let mut elements = vec![];
    for sum in sums {
        let address = cx.b.add(IntType::U32, sum, base);
        let address = cx.b.addr(address, 0);
        elements.push(memory::load_element(cx, trip.target, address, travel)?);
    }
    let out = cx.from_elements(travel, layout, &elements);
    let out = from_travel(cx, out, x.dtype);
    cx.bind_array(result, out);
    Ok(())
}
