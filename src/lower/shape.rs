//! Constants and ops that move elements without changing them.
//!
//! What renaming slots can do costs nothing: [`renaming`] finds it for any op, by enumeration. What the algebra can do by naming
//! the operand's registers differently ([`RegisterLayout::transpose`], …) is followed by a change of layout. Everything else is stored
//! to scratch and loaded through a view.
use super::cx::LowerCx;
use super::emit::S;
use super::memory::{self, Target};
use super::relayout::relayout;
use super::value::{ArrayRegs, Lowered, scalar_class, scalar_constant};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::kernel_ir::{Constant, Op, Value};
use crate::layout::digits::Digit;
use crate::layout::facts::{Fact, Start};
use crate::layout::smem_layout::Index;
use crate::layout::transfer::{self, Direction, Memory, Options};
use crate::layout::{Axis, Group, Place, RegisterLayout, SmemView, Term};
use crate::ptx::modifier::*;
use crate::ptx::operand::Src;
use smallvec::smallvec;

type Dims = Vec<u64>;

/// Binds an array to a value in the layout that inference chose for it; an array of one element may become a scalar.
pub fn bind_converted(cx: &mut LowerCx, result: Value, a: ArrayRegs) -> Result<()> {
    if cx.ty(result).is_scalar() {
        let s = to_scalar(cx, &a)?;
        cx.bind_scalar(result, s);
        return Ok(());
    }
    let layout = cx.layout_of(result)?;
    let a = relayout(cx, &a, &layout)?;
    cx.bind_array(result, a);
    Ok(())
}

/// The only element of an array, in all threads.
fn to_scalar(cx: &mut LowerCx, a: &ArrayRegs) -> Result<S> {
    let everywhere = RegisterLayout::replicated(a.layout.shape(), a.layout.group());
    let a = if a.layout.is_splat() {
        a.clone()
    } else {
        relayout(cx, a, &everywhere)?
    };
    let s = cx.elements(&a)[0];
    let uniform = cx.group_uniform();
    if cx.b.uniform(s) >= uniform {
        return Ok(s);
    }
    // One value for all lanes, and known to be, whatever the element was computed from: branches on it are uniform.
    let told = cx.b.broadcast_lane0(scalar_class(a.dtype), s);
    if let Src::Reg(v) = told {
        cx.b.claim_uniform(v, uniform);
    }
    Ok(told)
}

/// The layout with a new minor dimension of `n` elements in neighbouring slots.
pub fn with_minor_slots(layout: &RegisterLayout, n: u32) -> RegisterLayout {
    let mut shape: Dims = layout.shape().to_vec();
    let minor = shape.len();
    shape.push(u64::from(n));
    let mut axes: Vec<Axis> = layout.axes().to_vec();
    for d in axes.iter_mut().flat_map(|a| a.chain.iter_mut()) {
        if let Place::Slot(s) = &mut d.place {
            *s *= n;
        }
    }
    axes.push(Axis {
        first: minor,
        rank: 1,
        size: u64::from(n),
        chain: smallvec![Digit::new(u64::from(n), Place::Slot(1))],
    });
    RegisterLayout::from_axes(&shape, layout.group(), axes)
}

/// A layout in which a thread has whole runs along `dim`, and the other dimensions are spread over the threads where they have
/// factors of two.
pub fn with_dim_in_slots(shape: &[u64], dim: Option<usize>, group: Group) -> RegisterLayout {
    let mut bit = 0u8;
    let mut stride = 1u32;
    let mut axes: Vec<Axis> = vec![];
    let mut add_slots = |chain: &mut crate::layout::digits::Chain<Place>, n: u64| {
        chain.push(Digit::new(n, Place::Slot(stride)));
        stride *= n as u32;
    };
    if let Some(d) = dim {
        let mut chain = smallvec![];
        add_slots(&mut chain, shape[d]);
        axes.push(Axis {
            first: d,
            rank: 1,
            size: shape[d],
            chain,
        });
    }
    for (d, &n) in shape.iter().enumerate().rev().filter(|(d, _)| Some(*d) != dim) {
        let mut chain = smallvec![];
        let twos = n.trailing_zeros().min(u32::from(group.thread_bits() - bit)) as u8;
        if twos > 0 {
            chain.push(Digit::new(1 << twos, Place::Thread(bit)));
            bit += twos;
        }
        add_slots(&mut chain, n >> twos);
        axes.push(Axis {
            first: d,
            rank: 1,
            size: n,
            chain,
        });
    }
    RegisterLayout::from_axes(shape, group, axes)
}

// ---------------------------------------------------------------------------------------------- renaming

/// Where the element of a result at an index comes from: the number of the source, and in the second argument its index there.
/// `None`: it is the padding value.
type From<'a> = dyn Fn(&[u64], &mut [u64]) -> Option<usize> + 'a;

/// For each slot of a result the source and slot whose register it is; `None`: the padding value.
type Renaming = Vec<Option<(usize, u32)>>;

/// The renaming, if no element has to leave its thread and all threads agree. Looks at every element: where layouts say it by
/// themselves, ask them first.
fn renaming(sources: &[&RegisterLayout], result: &RegisterLayout, from: &From) -> Option<Renaming> {
    let mut index = vec![0; result.rank()];
    let mut inner = vec![0; sources[0].rank()];
    let mut out = Vec::with_capacity(result.slots() as usize);
    for slot in 0..result.slots() {
        let mut found: Option<Option<(usize, u32)>> = None;
        for thread in 0..result.group().threads() {
            if !result.write_element(thread, slot, &mut index) {
                continue;
            }
            let here = match from(&index, &mut inner) {
                None => None,
                Some(k) => {
                    let (owner, slot) = sources[k].owner(&inner);
                    if (owner ^ thread) & !u32::from(sources[k].replicated_bits()) != 0 {
                        return None;
                    }
                    Some((k, slot))
                }
            };
            if *found.get_or_insert(here) != here {
                return None;
            }
        }
        // A slot that is padding everywhere.
        out.push(found.unwrap_or(Some((0, 0))));
    }
    Some(out)
}

/// Renames if that is possible.
fn rename(cx: &mut LowerCx, sources: &[ArrayRegs], fill: S, result: &RegisterLayout, from: &From) -> Option<ArrayRegs> {
    let layouts: Vec<&RegisterLayout> = sources.iter().map(|a| &a.layout).collect();
    let map = renaming(&layouts, result, from)?;
    Some(renamed(cx, sources, fill, result, &map))
}

fn renamed(
    cx: &mut LowerCx,
    sources: &[ArrayRegs],
    fill: S,
    result: &RegisterLayout,
    map: &[Option<(usize, u32)>],
) -> ArrayRegs {
    let elements: Vec<Vec<S>> = sources.iter().map(|a| cx.elements(a)).collect();
    let moved: Vec<S> = map
        .iter()
        .map(|m| {
            m.map_or(fill, |(k, slot)| {
                elements[k].get(slot as usize).copied().unwrap_or(fill)
            })
        })
        .collect();
    cx.from_elements(sources[0].dtype, result.clone(), &moved)
}

/// The renaming of a broadcast whose result, without the new dimensions, is laid out as the operand.
fn projection(operand: &RegisterLayout, result: &RegisterLayout, dims: &[usize]) -> Option<Renaming> {
    let kept = dims.iter().zip(operand.shape()).all(|(&d, &n)| result.shape()[d] == n);
    if !kept || !dims.is_sorted() {
        return None;
    }
    let new: Vec<usize> = (0..result.rank()).filter(|d| !dims.contains(d)).collect();
    let plan = result.reduce_plan(&new).filter(|plan| plan.result == *operand)?;
    let mut map = vec![None; result.slots() as usize];
    for (slot, shared) in (0..).zip(&plan.slots) {
        shared.iter().for_each(|&s| map[s as usize] = Some((0, slot)));
    }
    Some(map)
}

// ---------------------------------------------------------------------------------------------- scratch

/// The type that an array travels through memory in: whole bytes.
fn travel_type(dtype: DType) -> DType {
    match dtype {
        DType::Bool => DType::Bool,
        d if d.bits() < 8 => DType::U8,
        d => d,
    }
}

fn to_travel(cx: &mut LowerCx, a: &ArrayRegs) -> ArrayRegs {
    let dtype = travel_type(a.dtype);
    if dtype == a.dtype {
        return a.clone();
    }
    let elements = cx.elements(a);
    cx.from_elements(dtype, a.layout.clone(), &elements)
}

fn from_travel(cx: &mut LowerCx, a: ArrayRegs, dtype: DType) -> ArrayRegs {
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
struct Trip {
    dtype: DType,
    target: Target,
}

impl Trip {
    /// Scratch for so many elements; all threads have left it.
    fn start(cx: &mut LowerCx, dtype: DType, elements: u64) -> Result<Trip> {
        let (base, available) = cx.scratch();
        let bytes = elements * u64::from(travel_type(dtype).bits() / 8);
        if bytes > u64::from(available) {
            cx.lack_scratch(bytes);
            return Err(
                Error::unsupported("moving an array between threads through shared memory")
                    .expected(format!("at most {available} bytes of scratch"))
                    .got(format!("{bytes} bytes"))
                    .remedy("choose a layout in which the op renames registers, or use smaller arrays")
                    .at(cx.b.loc()),
            );
        }
        cx.sync_group();
        Ok(Trip {
            dtype,
            target: Target::shared(base.into()),
        })
    }
    fn bits(&self) -> u32 {
        travel_type(self.dtype).bits()
    }
    fn store(&self, cx: &mut LowerCx, a: &ArrayRegs, view: &SmemView) -> Result<()> {
        let a = to_travel(cx, a);
        let plan = transfer::plan(&a.layout, view, Memory::Shared, Direction::Store, Options::default())
            .map_err(|e| Error::internal(e.to_string()))?;
        let a = relayout(cx, &a, &plan.layout)?;
        memory::emit_store(cx, self.target, &plan, view, &a)
    }
    fn load(&self, cx: &mut LowerCx, layout: &RegisterLayout, view: &SmemView) -> Result<ArrayRegs> {
        cx.sync_group();
        let plan = transfer::plan(layout, view, Memory::Shared, Direction::Load, Options::default())
            .map_err(|e| Error::internal(e.to_string()))?;
        let a = memory::emit_load(cx, self.target, &plan, view, travel_type(self.dtype))?;
        Ok(from_travel(cx, a, self.dtype))
    }
}

fn elements_of(shape: &[u64]) -> u64 {
    shape.iter().product()
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
    let trip = Trip::start(cx, a.dtype, elements_of(a.layout.shape()))?;
    let bits = trip.bits();
    trip.store(cx, a, &SmemView::row_major(a.layout.shape(), bits))?;
    let strides: Vec<u64> = strides.iter().map(|s| s * u64::from(bits)).collect();
    let mut view = SmemView::strided(layout.shape(), &strides, bits);
    view.offset = offset * u64::from(bits);
    trip.load(cx, layout, &view)
}

/// The layout to produce: inference's; of a scalar, a rank-0 one.
fn result_layout(cx: &LowerCx, result: Value) -> Result<RegisterLayout> {
    if cx.ty(result).is_scalar() {
        Ok(RegisterLayout::replicated(&[], cx.layout_group()))
    } else {
        cx.layout_of(result)
    }
}

/// An array without elements, for results of size 0.
fn bind_if_empty(cx: &mut LowerCx, result: Value) -> Result<bool> {
    if cx.ty(result).is_scalar() || !cx.ty(result).shape().contains(&0) {
        return Ok(false);
    }
    let layout = cx.layout_of(result)?;
    let a = cx.fill(cx.ty(result).dtype(), layout, Src::Imm(0));
    cx.bind_array(result, a);
    Ok(true)
}

// ---------------------------------------------------------------------------------------------- constants

/// Dense constants of more elements are not worth their registers.
const MAX_DENSE: usize = 1024;

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
            if elements.len() > MAX_DENSE {
                return Err(cx.unsupported(op, format!("an array constant of {} elements", elements.len())));
            }
            let everywhere = RegisterLayout::replicated(cx.ty(result).shape(), cx.layout_group());
            let a = cx.from_elements(dtype, everywhere, &elements);
            bind_converted(cx, result, a)
        }
    }
}

/// The thread's part of the flattened index along an axis.
pub fn thread_index(cx: &mut LowerCx, terms: &[Term]) -> S {
    let mut sum = Src::u32(0);
    for t in terms.iter().filter(|t| t.bits != 0) {
        let (source, whole) = match t.source {
            crate::layout::Source::Lane => (cx.b.lane(), 5),
            crate::layout::Source::Warp => (cx.b.warp_in_warpgroup(), 2),
        };
        let mut x = cx.b.shr(ShiftType::U32, source, Src::u32(u32::from(t.lo_bit)));
        if t.lo_bit + t.bits < whole {
            x = cx.b.and32(x, (1 << t.bits) - 1);
        }
        let x = cx.b.mul(IntType::U32, x, Src::u32(t.stride as u32));
        sum = cx.b.add(IntType::U32, sum, x);
    }
    sum
}

/// The index along `dim` of what a thread holds in each slot.
pub fn dim_indices(cx: &mut LowerCx, layout: &RegisterLayout, dim: usize) -> Vec<S> {
    let axis = layout.axis_of(dim).clone();
    let below: u64 = layout.shape()[dim + 1..axis.first + axis.rank].iter().product();
    let thread = thread_index(cx, &RegisterLayout::axis_terms(&axis));
    (0..layout.slots())
        .map(|slot| {
            let offset = RegisterLayout::axis_offset(&axis, slot);
            let flat = cx.b.add(IntType::U32, thread, Src::u32(offset as u32));
            let above = cx.b.div(IntType::U32, flat, Src::u32(below as u32));
            if dim == axis.first {
                above
            } else {
                cx.b.rem(IntType::U32, above, Src::u32(layout.shape()[dim] as u32))
            }
        })
        .collect()
}

/// Whether the axis of `dim` has a digit along which the layout is constant.
fn is_constant_along(layout: &RegisterLayout, dim: usize) -> bool {
    layout
        .axis_of(dim)
        .chain
        .iter()
        .any(|d| d.place == Place::Constant && d.size > 1)
}

pub fn lower_iota(cx: &mut LowerCx, op: Op, dim: usize) -> Result<()> {
    let result = cx.result(op);
    if bind_if_empty(cx, result)? {
        return Ok(());
    }
    let dtype = cx.ty(result).dtype();
    let mut layout = cx.layout_of(result)?;
    let wanted = layout.clone();
    if is_constant_along(&layout, dim) {
        layout = with_dim_in_slots(cx.ty(result).shape(), None, cx.layout_group());
    }
    let indices = dim_indices(cx, &layout, dim);
    let mut out = Vec::with_capacity(indices.len());
    for x in indices {
        out.push(super::convert::convert(&mut cx.b, DType::I32, dtype, x)?);
    }
    let a = cx.from_elements(dtype, layout, &out);
    let a = relayout(cx, &a, &wanted)?;
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
    let x = cx.operand(op, 0, a)?;
    let dims: Vec<usize> = dims.iter().map(|&d| d as usize).collect();
    let layout = result_layout(cx, result)?;
    let own = x.layout.shape().to_vec();
    let from = |index: &[u64], inner: &mut [u64]| {
        for ((i, &d), &n) in inner.iter_mut().zip(&dims).zip(&own) {
            *i = if n == 1 { 0 } else { index[d] };
        }
        Some(0)
    };
    let map = projection(&x.layout, &layout, &dims).or_else(|| renaming(&[&x.layout], &layout, &from));
    if let Some(map) = map {
        let out = renamed(cx, &[x], Src::Imm(0), &layout, &map);
        return bind_converted(cx, result, out);
    }
    if let Some(natural) = x.layout.broadcast_in_dim(layout.shape(), &dims) {
        let out = ArrayRegs { layout: natural, ..x };
        return bind_converted(cx, result, out);
    }
    let own_strides = strides_of(&own);
    let mut strides = vec![0; layout.rank()];
    for ((&d, &n), &s) in dims.iter().zip(&own).zip(&own_strides) {
        strides[d] = if n == 1 { 0 } else { s };
    }
    let out = reload(cx, &x, &layout, &strides, 0)?;
    bind_converted(cx, result, out)
}

pub fn lower_reshape(cx: &mut LowerCx, op: Op, a: Value) -> Result<()> {
    let result = cx.result(op);
    if bind_if_empty(cx, result)? {
        return Ok(());
    }
    if let Lowered::Scalar(_) = cx.get(a)? {
        return lower_broadcast(cx, op, a, &[]);
    }
    let x = cx.operand(op, 0, a)?;
    if cx.ty(result).is_scalar() {
        return bind_converted(cx, result, x);
    }
    let layout = cx.layout_of(result)?;
    if let Some(natural) = x.layout.reshape(layout.shape()) {
        let out = ArrayRegs { layout: natural, ..x };
        return bind_converted(cx, result, out);
    }
    let strides = strides_of(layout.shape());
    let out = reload(cx, &x, &layout, &strides, 0)?;
    cx.bind_array(result, out);
    Ok(())
}

pub fn lower_transpose(cx: &mut LowerCx, op: Op, a: Value, permutation: &[u32]) -> Result<()> {
    let result = cx.result(op);
    if bind_if_empty(cx, result)? {
        return Ok(());
    }
    let x = cx.operand(op, 0, a)?;
    let perm: Vec<usize> = permutation.iter().map(|&d| d as usize).collect();
    if let Some(natural) = x.layout.transpose(&perm) {
        let out = ArrayRegs { layout: natural, ..x };
        return bind_converted(cx, result, out);
    }
    let own = strides_of(x.layout.shape());
    let strides: Vec<u64> = perm.iter().map(|&p| own[p]).collect();
    let layout = cx.layout_of(result)?;
    let out = reload(cx, &x, &layout, &strides, 0)?;
    cx.bind_array(result, out);
    Ok(())
}

pub fn lower_slice(cx: &mut LowerCx, op: Op, a: Value, starts: &[u64], strides: &[u64]) -> Result<()> {
    let result = cx.result(op);
    if bind_if_empty(cx, result)? {
        return Ok(());
    }
    let x = cx.operand(op, 0, a)?;
    let out = sliced(cx, &x, result, starts, strides)?;
    bind_converted(cx, result, out)
}

fn sliced(cx: &mut LowerCx, x: &ArrayRegs, result: Value, starts: &[u64], strides: &[u64]) -> Result<ArrayRegs> {
    let layout = cx.layout_of(result)?;
    let natural = match strides.iter().all(|&s| s == 1) {
        true => x.layout.slice(starts, layout.shape()),
        false => None,
    };
    let from = |index: &[u64], inner: &mut [u64]| {
        for (d, i) in inner.iter_mut().enumerate() {
            *i = starts[d] + index[d] * strides[d];
        }
        Some(0)
    };
    if natural.as_ref().is_none_or(|(natural, _)| *natural != layout)
        && let Some(out) = rename(cx, std::slice::from_ref(x), Src::Imm(0), &layout, &from)
    {
        return Ok(out);
    }
    if let Some((natural, map)) = natural {
        let elements = cx.elements(x);
        let moved: Vec<S> = map.iter().map(|&s| elements[s as usize]).collect();
        return Ok(cx.from_elements(x.dtype, natural, &moved));
    }
    let own = strides_of(x.layout.shape());
    let offset = own.iter().zip(starts).map(|(s, start)| s * start).sum();
    let steps: Vec<u64> = own.iter().zip(strides).map(|(s, stride)| s * stride).collect();
    reload(cx, x, &layout, &steps, offset)
}

/// Starts clamped so that the slice is inside, as indices of a view.
fn clamped_starts(cx: &mut LowerCx, starts: &[Value], extents: &[u64], sizes: &[u64]) -> Result<Vec<Index>> {
    let mut out = vec![];
    for ((&v, &extent), &size) in starts.iter().zip(extents).zip(sizes) {
        let most = extent - size;
        let facts = cx.kernel.facts(v);
        let start = match facts.as_constant() {
            _ if most == 0 => Start::Static(0),
            Some(c) => Start::Static(c.clamp(0, most as i64) as u64),
            None => {
                let inside = facts.lo >= 0 && facts.hi <= most as i64;
                let x = cx.index64(v)?;
                let x = cx.b.max(IntType::S64, x, Src::Imm(0));
                let x = cx.b.min(IntType::S64, x, Src::Imm(most));
                let x = if inside { cx.index32(v)? } else { cx.b.truncate(x) };
                let divisor = if inside { facts.divisor.max(1) } else { 1 };
                Start::Dynamic(
                    cx.extra_dyn(x),
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

fn static_starts(starts: &[Index]) -> Option<Vec<u64>> {
    starts
        .iter()
        .map(|i| match i {
            Index::Slice(Start::Static(s), _) => Some(*s),
            _ => None,
        })
        .collect()
}

pub fn lower_dynamic_slice(cx: &mut LowerCx, op: Op, a: Value, starts: &[Value]) -> Result<()> {
    let result = cx.result(op);
    if bind_if_empty(cx, result)? {
        return Ok(());
    }
    let x = cx.operand(op, 0, a)?;
    let sizes = cx.ty(result).shape().to_vec();
    let extents = x.layout.shape().to_vec();
    let indices = clamped_starts(cx, starts, &extents, &sizes)?;
    if let Some(starts) = static_starts(&indices) {
        let ones = vec![1; starts.len()];
        let out = sliced(cx, &x, result, &starts, &ones)?;
        return bind_converted(cx, result, out);
    }
    let layout = cx.layout_of(result)?;
    let trip = Trip::start(cx, x.dtype, elements_of(&extents))?;
    let whole = SmemView::row_major(&extents, trip.bits());
    trip.store(cx, &x, &whole)?;
    let view = whole
        .index_loosely(&indices)
        .map_err(|e| Error::internal(e.to_string()))?;
    let out = trip.load(cx, &layout, &view)?;
    bind_converted(cx, result, out)
}

pub fn lower_dynamic_update_slice(cx: &mut LowerCx, op: Op, a: Value, update: Value, starts: &[Value]) -> Result<()> {
    let result = cx.result(op);
    if bind_if_empty(cx, result)? {
        return Ok(());
    }
    let x = cx.operand(op, 0, a)?;
    let u = cx.operand(op, 1, update)?;
    let extents = x.layout.shape().to_vec();
    let sizes = u.layout.shape().to_vec();
    if sizes.contains(&0) {
        return bind_converted(cx, result, x);
    }
    let indices = clamped_starts(cx, starts, &extents, &sizes)?;
    let layout = cx.layout_of(result)?;
    if let Some(starts) = static_starts(&indices) {
        let from = |index: &[u64], inner: &mut [u64]| {
            inner.copy_from_slice(index);
            let inside = index
                .iter()
                .zip(&starts)
                .zip(&sizes)
                .all(|((i, s), n)| i >= s && i - s < *n);
            if inside {
                inner.iter_mut().zip(&starts).for_each(|(i, s)| *i -= s);
            }
            Some(usize::from(inside))
        };
        if let Some(out) = rename(cx, &[x.clone(), u.clone()], Src::Imm(0), &layout, &from) {
            return bind_converted(cx, result, out);
        }
    }
    let trip = Trip::start(cx, x.dtype, elements_of(&extents))?;
    let whole = SmemView::row_major(&extents, trip.bits());
    trip.store(cx, &x, &whole)?;
    cx.sync_group();
    let part = whole
        .index_loosely(&indices)
        .map_err(|e| Error::internal(e.to_string()))?;
    trip.store(cx, &u, &part)?;
    let out = trip.load(cx, &layout, &whole)?;
    bind_converted(cx, result, out)
}

pub fn lower_concat(cx: &mut LowerCx, op: Op, parts: &[Value], dim: usize) -> Result<()> {
    let result = cx.result(op);
    if bind_if_empty(cx, result)? {
        return Ok(());
    }
    let mut arrays = vec![];
    let mut starts = vec![];
    let mut at = 0;
    for (i, &v) in parts.iter().enumerate() {
        let size = cx.ty(v).shape()[dim];
        if !cx.ty(v).shape().contains(&0) {
            arrays.push(cx.operand(op, i as u32, v)?);
            starts.push(at);
        }
        at += size;
    }
    let layout = cx.layout_of(result)?;
    let from = |index: &[u64], inner: &mut [u64]| {
        let k = starts.partition_point(|&s| s <= index[dim]) - 1;
        inner.copy_from_slice(index);
        inner[dim] -= starts[k];
        Some(k)
    };
    if let Some(out) = rename(cx, &arrays, Src::Imm(0), &layout, &from) {
        return bind_converted(cx, result, out);
    }
    let trip = Trip::start(cx, arrays[0].dtype, elements_of(layout.shape()))?;
    let whole = SmemView::row_major(layout.shape(), trip.bits());
    for (a, &start) in arrays.iter().zip(&starts) {
        let indices: Vec<Index> = a
            .layout
            .shape()
            .iter()
            .enumerate()
            .map(|(d, &n)| Index::Slice(Start::Static(if d == dim { start } else { 0 }), n))
            .collect();
        let view = whole
            .index_loosely(&indices)
            .map_err(|e| Error::internal(e.to_string()))?;
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
    let layout = cx.layout_of(result)?;
    let dtype = cx.ty(result).dtype();
    if cx.ty(a).shape().contains(&0) {
        let out = cx.fill(dtype, layout, fill);
        cx.bind_array(result, out);
        return Ok(());
    }
    let x = cx.operand(op, 0, a)?;
    let shape = x.layout.shape().to_vec();
    let from = |index: &[u64], inner: &mut [u64]| {
        for (d, &i) in index.iter().enumerate() {
            let (step, i) = (interior[d] + 1, i as i64 - low[d]);
            if i < 0 || i % step != 0 || i / step >= shape[d] as i64 {
                return None;
            }
            inner[d] = (i / step) as u64;
        }
        Some(0)
    };
    if let Some(out) = rename(cx, std::slice::from_ref(&x), fill, &layout, &from) {
        return bind_converted(cx, result, out);
    }
    // The operand's elements at their places; negative padding leaves the first and last ones out, one by one: what lies outside
    // goes to the room before and behind the result.
    let target = layout.shape();
    let strides = strides_of(target);
    let mut kept_start = vec![];
    let mut kept_size = vec![];
    for d in 0..target.len() {
        let step = interior[d] + 1;
        let first = if low[d] < 0 { (-low[d] + step - 1) / step } else { 0 };
        let last = (target[d] as i64 - 1 - low[d])
            .div_euclid(step)
            .min(shape[d] as i64 - 1);
        kept_start.push(first as u64);
        kept_size.push((last - first + 1).max(0) as u64);
    }
    if kept_size.contains(&0) {
        let out = cx.fill(dtype, layout, fill);
        cx.bind_array(result, out);
        return Ok(());
    }
    let kept = crop(cx, &x, &kept_start, &kept_size)?;
    let trip = Trip::start(cx, dtype, elements_of(target))?;
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

/// A part of an array, in whatever layout is at hand.
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
    let result = cx.result(op);
    if bind_if_empty(cx, result)? {
        return Ok(());
    }
    let x = cx.operand(op, 0, a)?;
    let layout = cx.layout_of(result)?;
    let shape = layout.shape().to_vec();
    let reversed = |d: usize| dims.contains(&(d as u32));
    let from = |index: &[u64], inner: &mut [u64]| {
        for (d, i) in inner.iter_mut().enumerate() {
            *i = if reversed(d) { shape[d] - 1 - index[d] } else { index[d] };
        }
        Some(0)
    };
    if let Some(out) = rename(cx, std::slice::from_ref(&x), Src::Imm(0), &layout, &from) {
        return bind_converted(cx, result, out);
    }
    let trip = Trip::start(cx, x.dtype, elements_of(&shape))?;
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
