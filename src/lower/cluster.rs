//! What a block does to other blocks of its cluster.
use super::cx::LowerCx;
use crate::error::Result;
use crate::kernel_ir::Op;

pub fn lower_async_store_smem(cx: &mut LowerCx, op: Op) -> Result<()> {
    Err(cx.unsupported(op, "stores into another block"))
}
