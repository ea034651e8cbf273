//! Elements of an array at positions that others hold: the array is stored to scratch, each thread loads its result's elements. What does not
//! fit there goes in passes, each of some slots of all threads.
use super::cx::LowerCx;
use super::emit::S;
use super::memory;
use super::shape::{Trip, bind_if_empty, to_travel};
use super::value::{ArrayRegs, scalar_class};
use crate::dtype::DType;
use crate::error::Result;
use crate::kernel_ir::{Op, Value, num_elements};
use crate::layout::movement::travel_type;
use crate::layout::register_layout::{LANE_BITS, Place, Term};
use crate::layout::{RegisterLayout, SmemView};
use crate::ptx::modifier::{Compare, CompareType, IntType};
use crate::ptx::operand::Src;

pub fn lower_take(cx: &mut LowerCx, op: Op, a: Value, at: Value, fill: Value) -> Result<()> {
    let result = cx.result(op);
    if bind_if_empty(cx, result)? {
        return Ok(());
    }
    let dtype = cx.ty(a).dtype();
    let layout = cx.layout_of(result)?;
    let fill = cx.scalar(fill)?;
    let n = num_elements(cx.ty(a).shape());
    if n == 0 {
        let out = cx.fill(dtype, layout, fill);
        cx.bind_array(result, out);
        return Ok(());
    }
    let x = cx.array(a)?;
    let at = cx.array_in(at, &layout)?;
    let positions = cx.elements(&at);
    let exchanges = cx.exchanges;
    let plan = exchanges.takes.get(&op).ok_or_else(|| cx.unexpected(op))?;
    if let Some(slots) = plan.slots {
        let out = in_passes(cx, &x, &positions, fill, slots)?;
        let out = cx.from_elements(dtype, layout, &out);
        cx.bind_array(result, out);
        return Ok(());
    }
    let trip = Trip::start(cx, dtype);
    trip.store(cx, &x, &SmemView::row_major(cx.ty(a).shape(), trip.bits()))?;
    cx.sync_group();
    let travel = travel_type(dtype);
    let (base, _) = cx.scratch();
    let mut out = Vec::with_capacity(positions.len());
    for i in positions {
        let inside = cx.b.setp(Compare::Lt, CompareType::U32, i, Src::u32(n as u32));
        // What is outside, and padding, reads some element.
        let i = cx.b.min(IntType::U32, i, Src::u32(n as u32 - 1));
        let address = cx.b.mad(IntType::U32, i, Src::u32(trip.bits() / 8), base);
        let address = cx.b.addr(address, 0);
        let x = memory::load_element(cx, trip.target, address, travel)?;
        let x = narrowed(cx, travel, dtype, x);
        out.push(cx.b.pick(scalar_class(dtype), inside, x, fill));
    }
    let out = cx.from_elements(dtype, layout, &out);
    cx.bind_array(result, out);
    Ok(())
}

/// The elements at `positions`, where only so many slots of each thread have room in scratch: each position is found in the array's
/// layout, and loaded when its slot is there.
fn in_passes(cx: &mut LowerCx, x: &ArrayRegs, positions: &[S], fill: S, slots: u32) -> Result<Vec<S>> {
    let (layout, dtype, travel) = (x.layout.clone(), x.dtype, travel_type(x.dtype));
    let count = num_elements(layout.shape());
    let threads = layout.group().threads();
    let (class, element) = (scalar_class(dtype), travel.bits() / 8);
    let travelling = to_travel(cx, x);
    let elements = cx.elements(&travelling);
    let places: Vec<(S, S)> = positions.iter().map(|i| holder(cx, &layout, *i)).collect();
    let mut out = vec![fill; positions.len()];
    let (base, _) = cx.scratch();
    let lanes = Term::of_thread(0, 32, i64::from(element));
    let warps = Term::of_thread(LANE_BITS, u64::from(threads / 32), i64::from(32 * element));
    let own = memory::thread_terms(cx, &[lanes, warps]);
    let own = cx.b.add(IntType::U32, own, base);
    for first in (0..layout.slots()).step_by(slots as usize) {
        let here = slots.min(layout.slots() - first);
        let trip = Trip::start(cx, dtype);
        for slot in 0..here {
            let place = cx.b.addr(own, (slot * threads * element) as i32);
            memory::store_element(cx, trip.target, place, travel, elements[(first + slot) as usize])?;
        }
        cx.sync_group();
        for ((out, position), (slot, thread)) in out.iter_mut().zip(positions).zip(&places) {
            let slot = cx.b.sub(IntType::U32, *slot, Src::u32(first));
            let is_here = cx.b.setp(Compare::Lt, CompareType::U32, slot, Src::u32(here));
            let inside =
                cx.b.setp(Compare::Lt, CompareType::U32, *position, Src::u32(count as u32));
            // Others read some element.
            let slot = cx.b.min(IntType::U32, slot, Src::u32(here - 1));
            let at = cx.b.mad(IntType::U32, slot, Src::u32(threads), *thread);
            let at = cx.b.mad(IntType::U32, at, Src::u32(element), base);
            let at = cx.b.addr(at, 0);
            let loaded = memory::load_element(cx, trip.target, at, travel)?;
            let loaded = narrowed(cx, travel, dtype, loaded);
            let taken = cx.b.both(inside, is_here);
            *out = cx.b.pick(class, taken, loaded, *out);
        }
    }
    Ok(out)
}

/// The slot and the thread of a position in a layout; of one that is outside of the array, some.
fn holder(cx: &mut LowerCx, layout: &RegisterLayout, position: S) -> (S, S) {
    let (mut slot, mut thread): (S, S) = (Src::u32(0), Src::u32(0));
    for axis in layout.axes() {
        let below: u64 = layout.shape()[axis.dims().end..].iter().product();
        let mut left = cx.b.div(IntType::U32, position, Src::Imm(below));
        left = cx.b.rem(IntType::U32, left, Src::Imm(axis.size));
        for digit in &axis.chain {
            let x = cx.b.rem(IntType::U32, left, Src::Imm(digit.size));
            left = cx.b.div(IntType::U32, left, Src::Imm(digit.size));
            match digit.place {
                Place::Slot(stride) => slot = cx.b.mad(IntType::U32, x, Src::u32(stride), slot),
                Place::Thread(bit) => thread = cx.b.mad(IntType::U32, x, Src::u32(1 << bit), thread),
                Place::Constant => {}
            }
        }
    }
    (slot, thread)
}

/// An element of the type that it travelled as, as its own.
pub fn narrowed(cx: &mut LowerCx, travel: DType, dtype: DType, x: S) -> S {
    if travel == dtype {
        return x;
    }
    cx.b.field(x, 0, dtype.bits(), dtype.is_signed_int())
}
