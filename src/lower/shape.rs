//! Constants and ops that move elements without changing them.
//!
//! What the layout algebra can do by renaming slots costs nothing; all else goes through scratch in shared memory.
use super::cx::LowerCx;
use super::relayout::relayout;
use super::value::ArrayRegs;
use crate::error::Result;
use crate::kernel_ir::{Constant, Op, Value};
use crate::layout::digits::Digit;
use crate::layout::{Axis, Place, RegisterLayout};
use smallvec::smallvec;

/// Binds an array to a value in the layout that inference chose for it; a rank-0 array becomes a scalar.
pub fn bind_converted(cx: &mut LowerCx, result: Value, a: ArrayRegs) -> Result<()> {
    if cx.ty(result).is_scalar() {
        let element = cx.elements(&a)[0];
        cx.bind_scalar(result, element);
        return Ok(());
    }
    let layout = cx.layout_of(result)?;
    let a = relayout(cx, &a, &layout)?;
    cx.bind_array(result, a);
    Ok(())
}

/// The layout with a new minor dimension of `n` elements in neighbouring slots.
pub fn with_minor_slots(layout: &RegisterLayout, n: u32) -> RegisterLayout {
    let mut shape: Vec<u64> = layout.shape().to_vec();
    let minor = shape.len();
    shape.push(u64::from(n));
    let mut axes: Vec<Axis> = layout.axes().to_vec();
    for d in axes.iter_mut().flat_map(|a| a.chain.iter_mut()) {
        if let Place::Slot(s) = &mut d.place {
            *s *= n;
        }
    }
    let chain = smallvec![Digit::new(u64::from(n), Place::Slot(1))];
    axes.push(Axis {
        first: minor,
        rank: 1,
        size: u64::from(n),
        chain,
    });
    RegisterLayout::from_axes(&shape, layout.group(), axes)
}

pub fn lower_constant(cx: &mut LowerCx, op: Op, constant: &Constant) -> Result<()> {
    let result = cx.result(op);
    let dtype = cx.ty(result).dtype();
    match constant {
        Constant::Splat(bits) => {
            let x = super::value::scalar_constant(dtype, *bits);
            if cx.ty(result).is_scalar() {
                cx.bind_scalar(result, x);
            } else {
                let layout = cx.layout_of(result)?;
                let a = cx.fill(dtype, layout, x);
                cx.bind_array(result, a);
            }
            Ok(())
        }
        Constant::Dense(_) => Err(cx.unsupported(op, "arrays of constants")),
    }
}
pub fn lower_iota(cx: &mut LowerCx, op: Op, _d: usize) -> Result<()> {
    Err(cx.unsupported(op, "this op"))
}
pub fn lower_broadcast(cx: &mut LowerCx, op: Op, _a: Value, _d: &[u32]) -> Result<()> {
    Err(cx.unsupported(op, "this op"))
}
pub fn lower_reshape(cx: &mut LowerCx, op: Op, _a: Value) -> Result<()> {
    Err(cx.unsupported(op, "this op"))
}
pub fn lower_transpose(cx: &mut LowerCx, op: Op, _a: Value, _d: &[u32]) -> Result<()> {
    Err(cx.unsupported(op, "this op"))
}
pub fn lower_slice(cx: &mut LowerCx, op: Op, _a: Value, _s: &[u64], _t: &[u64]) -> Result<()> {
    Err(cx.unsupported(op, "this op"))
}
pub fn lower_dynamic_slice(cx: &mut LowerCx, op: Op, _a: Value, _s: &[Value]) -> Result<()> {
    Err(cx.unsupported(op, "this op"))
}
pub fn lower_dynamic_update_slice(cx: &mut LowerCx, op: Op, _a: Value, _u: Value, _s: &[Value]) -> Result<()> {
    Err(cx.unsupported(op, "this op"))
}
pub fn lower_concat(cx: &mut LowerCx, op: Op, _a: &[Value], _d: usize) -> Result<()> {
    Err(cx.unsupported(op, "this op"))
}
pub fn lower_pad(cx: &mut LowerCx, op: Op, _a: Value, _v: Value, _l: &[i64], _i: &[i64]) -> Result<()> {
    Err(cx.unsupported(op, "this op"))
}
pub fn lower_reverse(cx: &mut LowerCx, op: Op, _a: Value, _d: &[u32]) -> Result<()> {
    Err(cx.unsupported(op, "this op"))
}
