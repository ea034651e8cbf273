//! Elements of an array at positions that others hold: the array is stored to scratch, each thread loads what it is asked for.
use super::cx::LowerCx;
use super::emit::S;
use super::memory;
use super::shape::{Trip, bind_if_empty};
use super::value::scalar_class;
use crate::dtype::DType;
use crate::error::Result;
use crate::kernel_ir::{Op, Value, num_elements};
use crate::layout::SmemView;
use crate::layout::movement::travel_type;
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

/// An element of the type that it travelled as, as its own.
pub fn narrowed(cx: &mut LowerCx, travel: DType, dtype: DType, x: S) -> S {
    if travel == dtype {
        return x;
    }
    cx.b.field(x, 0, dtype.bits(), dtype.is_signed_int())
}
