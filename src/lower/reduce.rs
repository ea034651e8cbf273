//! Reduce.
use super::cx::LowerCx;
use crate::error::Result;
#[allow(unused_imports)]
use crate::kernel_ir::*;
pub fn lower_reduce(cx: &mut LowerCx, op: Op, _o: ReduceOp, _a: Value, _x: &[u32]) -> Result<()> {
    Err(cx.unsupported(op, "this op"))
}
pub fn lower_arg_reduce(cx: &mut LowerCx, op: Op, _o: ArgReduceOp, _a: Value, _x: u32) -> Result<()> {
    Err(cx.unsupported(op, "this op"))
}
pub fn lower_cumulative(cx: &mut LowerCx, op: Op, _o: CumulativeOp, _a: Value, _x: u32, _r: bool) -> Result<()> {
    Err(cx.unsupported(op, "this op"))
}
