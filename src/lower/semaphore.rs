//! Semaphore.
use super::cx::LowerCx;
use crate::error::Result;
#[allow(unused_imports)]
use crate::kernel_ir::*;
pub fn lower_signal(cx: &mut LowerCx, op: Op, _s: &[(RefUse, Value)], _m: MemoryScope) -> Result<()> {
    Err(cx.unsupported(op, "this op"))
}
pub fn lower_wait(cx: &mut LowerCx, op: Op, _s: &RefUse, _v: Value, _d: bool, _m: MemoryScope) -> Result<()> {
    Err(cx.unsupported(op, "this op"))
}
pub fn lower_read(cx: &mut LowerCx, op: Op, _s: &RefUse) -> Result<()> {
    Err(cx.unsupported(op, "this op"))
}
