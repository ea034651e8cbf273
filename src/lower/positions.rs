//! Which elements of an array a thread holds: their numbers, and whether they are its own.
use super::cx::LowerCx;
use super::emit::S;
use super::memory::thread_terms;
use crate::layout::RegisterLayout;
use crate::ptx::modifier::{Compare, CompareType, IntType};
use crate::ptx::operand::Src;

/// The row-major number of what a thread holds in each slot. Padding has some number.
pub fn numbers(cx: &mut LowerCx, layout: &RegisterLayout) -> Vec<S> {
    let mut thread: S = Src::u32(0);
    let mut slots = vec![0u64; layout.slots() as usize];
    for axis in layout.axes() {
        let stride: u64 = layout.shape()[axis.dims().end..].iter().product();
        let terms = thread_terms(cx, &RegisterLayout::axis_terms(axis));
        thread = cx.b.mad(IntType::U32, terms, Src::u32(stride as u32), thread);
        for (slot, at) in slots.iter_mut().enumerate() {
            *at += RegisterLayout::axis_offset(axis, slot as u32) * stride;
        }
    }
    slots
        .into_iter()
        .map(|at| cx.b.add(IntType::U32, thread, Src::u32(at as u32)))
        .collect()
}

/// Whether a slot holds an element, for each slot.
pub fn inside(cx: &mut LowerCx, layout: &RegisterLayout) -> Vec<S> {
    let mut out = vec![Src::Imm(1); layout.slots() as usize];
    for axis in layout.axes().iter().filter(|axis| axis.is_padded()) {
        let thread = thread_terms(cx, &RegisterLayout::axis_terms(axis));
        for (slot, inside) in out.iter_mut().enumerate() {
            let offset = RegisterLayout::axis_offset(axis, slot as u32);
            let here = match axis.size.checked_sub(offset) {
                None | Some(0) => Src::Imm(0),
                Some(left) => cx.b.setp(Compare::Lt, CompareType::U32, thread, Src::u32(left as u32)),
            };
            *inside = cx.b.both(*inside, here);
        }
    }
    out
}

/// Whether a slot holds an element that no thread before has, for each slot: each element has one owner.
pub fn owned(cx: &mut LowerCx, layout: &RegisterLayout) -> Vec<S> {
    let first = first_copy(cx, layout.replicated_bits());
    let inside = inside(cx, layout);
    inside.into_iter().map(|p| cx.b.both(p, first)).collect()
}

/// Where equal elements are in threads that differ in `bits`: true in the first of them.
pub fn first_copy(cx: &mut LowerCx, bits: u8) -> S {
    if bits == 0 {
        return Src::Imm(1);
    }
    let thread = cx.thread_in_group();
    let copy = cx.b.and32(thread.into(), u32::from(bits));
    cx.b.setp(Compare::Eq, CompareType::U32, copy, Src::u32(0))
}
