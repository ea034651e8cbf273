//! Loads, stores and atomic updates of memory at indices that arrays hold: element by element.
use super::atomic;
use super::cx::LowerCx;
use super::emit::{S, V};
use super::memory::{self, ElementPlace, Target};
use super::positions;
use super::shape::{bind_if_empty, part_of};
use super::value::scalar_class;
use super::view;
use crate::dtype::DType;
use crate::error::Result;
use crate::kernel_ir::{AtomicOp, Op, OpKind, RefUse, Value};
use crate::layout::RegisterLayout;
use crate::layout::facts::{Fact, Start};
use crate::layout::smem_layout::Index;
use crate::ptx::operand::{Addr, Src};
use crate::ptx::ssa::Uniform;

/// Whether indices count along a dimension that is no longer than what they index.
fn counts_inside(cx: &LowerCx, v: Value, extent: u64) -> bool {
    let def = cx.kernel.def_op(v).map(|op| &cx.kernel.ops[op].kind);
    matches!(def, Some(OpKind::Iota { dim }) if cx.ty(v).shape()[*dim as usize] <= extent)
}

/// Where each slot's element lies. Where `when` holds, the emulator checks the indices.
fn places(
    cx: &mut LowerCx,
    op: Op,
    (r, target): (&RefUse, Target),
    at: &[Value],
    layout: &RegisterLayout,
    when: &[S],
) -> Result<Vec<ElementPlace>> {
    let whole = &cx.transfer(op)?.view;
    let mut indices = vec![];
    for &v in at {
        let array = cx.array_in(v, layout)?;
        indices.push(cx.elements(&array));
    }
    let mut out = vec![];
    for (slot, &when) in when.iter().enumerate() {
        let mut dims = vec![];
        for (dim, (elements, &extent)) in indices.iter().zip(&r.shape).enumerate() {
            let i = (scalar_class(cx.ty(at[dim]).dtype()), elements[slot]);
            if !counts_inside(cx, at[dim], extent) {
                view::check_index(cx, r, when, i, (dim, extent))?;
            }
            let fact = Fact::UNKNOWN.in_range(0, extent.saturating_sub(1) as i64);
            dims.push(Index::At(Start::Dynamic(cx.extra_dyn(i.0, i.1), fact)));
        }
        let element = part_of(whole, &dims)?;
        out.push(memory::scalar_place(cx, &element, target)?);
    }
    Ok(out)
}

/// Those slots of `here` that a mask has.
fn masked(cx: &mut LowerCx, here: Vec<S>, mask: Option<Value>, layout: &RegisterLayout) -> Result<Vec<S>> {
    let Some(mask) = mask else { return Ok(here) };
    let mask = cx.array_in(mask, layout)?;
    let mask = cx.elements(&mask);
    Ok(here.into_iter().zip(mask).map(|(p, m)| cx.b.both(p, m)).collect())
}

/// Indices, and which of them count.
type At<'a> = (&'a [Value], Option<Value>);

pub fn lower_load_at(cx: &mut LowerCx, op: Op, src: &RefUse, (at, mask): At) -> Result<()> {
    let result = cx.result(op);
    if bind_if_empty(cx, result)? {
        return Ok(());
    }
    let dtype = cx.ty(result).dtype();
    let layout = cx.layout_of(result)?;
    let mut target = memory::locate(cx, src, Src::Imm(1))?;
    if cx.polling.looks[op].is_some() {
        target.sem = target.relaxed(cx);
    }
    let inside = positions::inside(cx, &layout);
    let inside = masked(cx, inside, mask, &layout)?;
    let places = places(cx, op, (src, target), at, &layout, &inside)?;
    let mut out = vec![];
    for (place, inside) in places.into_iter().zip(inside) {
        let loaded = cx.if_else(
            inside,
            &[scalar_class(dtype)],
            |cx| Ok(vec![memory::load_from(cx, target, place, dtype, Uniform::Thread)?]),
            |_| Ok(vec![Src::Imm(0)]),
        )?;
        out.push(loaded[0]);
    }
    let out = cx.from_elements(dtype, layout, &out);
    cx.bind_array(result, out);
    Ok(())
}

/// Calls `f` with the address and the element of each slot, and whether it is the thread's to store.
fn for_each_own(
    cx: &mut LowerCx,
    op: Op,
    dst: &RefUse,
    (at, mask): At,
    value: Value,
    f: impl Fn(&mut LowerCx, Target, Addr<V>, S, S) -> Result<()>,
) -> Result<()> {
    if cx.ty(value).shape().contains(&0) {
        return Ok(());
    }
    let layout = RegisterLayout::dealt(cx.ty(value).shape(), cx.layout_group());
    let target = memory::locate(cx, dst, Src::Imm(1))?;
    let owned = positions::owned(cx, &layout);
    let owned = masked(cx, owned, mask, &layout)?;
    let places = places(cx, op, (dst, target), at, &layout, &owned)?;
    let array = cx.array_in(value, &layout)?;
    let elements = cx.elements(&array);
    for ((place, x), own) in places.into_iter().zip(elements).zip(owned) {
        f(cx, target, place.addr, x, own)?;
    }
    Ok(())
}

pub fn lower_store_at(cx: &mut LowerCx, op: Op, dst: &RefUse, at: At, value: Value) -> Result<()> {
    let dtype = cx.ty(value).dtype();
    for_each_own(cx, op, dst, at, value, |cx, target, address, x, own| {
        cx.if_then(own, |cx| memory::store_scalar(cx, target, address, dtype, x))
    })
}

pub fn lower_atomic_update_at(
    cx: &mut LowerCx,
    op: Op,
    update: AtomicOp,
    dst: &RefUse,
    at: &[Value],
    value: Value,
) -> Result<()> {
    let dtype: DType = cx.ty(value).dtype();
    for_each_own(cx, op, dst, (at, None), value, |cx, target, address, x, own| {
        atomic::update(cx, op, update, dtype, target, address, x, own)
    })
}
