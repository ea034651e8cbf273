//! Tensor memory, and the products that accumulate in it.
use super::Hooks;
use super::decoder::{At, Decoder, List, NONE};
use crate::emulate::tcgen05::{AOperand, Issue, TensorOp};
use crate::emulate::tensor_memory::{
    Allocate, Deallocate, Relinquish, TensorFence, TensorLoad, TensorStore, TensorWait, Transfer,
};
use crate::error::{Error, Result};
use crate::ptx::modifier::*;

/// What pairs of CTAs do together is not here yet.
fn one(group: CtaGroup) -> Result<()> {
    match group {
        CtaGroup::One => Ok(()),
        CtaGroup::Two => Err(
            Error::unsupported("tcgen05 of pairs of CTAs (.cta_group::2) in the emulator").expected(".cta_group::1"),
        ),
    }
}

impl<H: Hooks> Decoder<'_, H> {
    pub fn tmem_alloc(&mut self, group: CtaGroup, dst: At, columns: u16) -> Result<()> {
        one(group)?;
        self.program.has_tensor_memory = true;
        let here = self.program.code.len() as u32;
        self.emit::<Allocate>(NONE.b(columns).aux(here).at(dst));
        Ok(())
    }
    pub fn tmem_dealloc(&mut self, group: CtaGroup, addr: u16, columns: u16) -> Result<()> {
        one(group)?;
        self.program.has_tensor_memory = true;
        self.emit::<Deallocate>(NONE.a(addr).b(columns));
        Ok(())
    }
    pub fn tmem_relinquish(&mut self, group: CtaGroup) -> Result<()> {
        one(group)?;
        self.emit::<Relinquish>(NONE);
        Ok(())
    }

    fn transfer(&mut self, shape: TmemShape, times: i64, packed: bool, registers: List) -> u32 {
        self.program.has_tensor_memory = true;
        self.program.transfers.push(Transfer {
            shape,
            times: times as u32,
            packed,
            registers,
        });
        self.program.transfers.len() as u32 - 1
    }
    pub fn tmem_load(&mut self, shape: TmemShape, times: i64, pack: TmemPack, d: List, src: At) {
        let aux = self.transfer(shape, times, pack == TmemPack::Pack, d);
        self.emit::<TensorLoad>(NONE.aux(aux).at(src));
    }
    pub fn tmem_store(&mut self, shape: TmemShape, times: i64, unpack: TmemUnpack, dst: At, a: List) {
        let aux = self.transfer(shape, times, unpack == TmemUnpack::Unpack, a);
        self.emit::<TensorStore>(NONE.aux(aux).at(dst));
    }
    pub fn tmem_wait(&mut self, what: TmemAccess) {
        self.program.has_tensor_memory = true;
        self.emit::<TensorWait>(NONE.imm(i32::from(what == TmemAccess::Stores)));
    }
    pub fn tcgen05_fence(&mut self, _: ThreadSync) {
        self.emit::<TensorFence>(NONE);
    }

    fn issue(&mut self, group: CtaGroup, op: TensorOp) -> Result<()> {
        one(group)?;
        self.program.has_tensor_memory = true;
        let o = NONE
            .imm(self.program.code.len() as i32)
            .aux(self.program.tensor_ops.len() as u32);
        self.program.tensor_ops.push(op);
        self.emit::<Issue>(o);
        Ok(())
    }
    pub fn tmem_copy(&mut self, group: CtaGroup, shape: TmemCopyShape, dst: At, src: u16) -> Result<()> {
        self.issue(group, TensorOp::Copy { shape, dst, src })
    }
    pub fn tcgen05_commit(&mut self, group: CtaGroup, bar: At) -> Result<()> {
        self.issue(group, TensorOp::Commit { bar, mask: None })
    }
    pub fn tcgen05_commit_multicast(&mut self, group: CtaGroup, bar: At, mask: u16) -> Result<()> {
        let mask = Some(mask);
        self.issue(group, TensorOp::Commit { bar, mask })
    }
}

/// The rows of `tcgen05.mma`: A's place.
macro_rules! products {
    ($($method:ident($a:ty) $place:ident;)+) => {
        impl<H: Hooks> Decoder<'_, H> {$(
            pub fn $method(
                &mut self, group: CtaGroup, kind: Tcgen05Kind, d: At, a: $a, b: u16, idesc: u16, accumulate: u16,
            ) -> Result<()> {
                let a = AOperand::$place(a);
                self.issue(group, TensorOp::Product { kind, d, a, b, idesc, accumulate })
            }
        )+}
    };
}
products! {
    tcgen05_mma_ss(u16) Shared;
    tcgen05_mma_ts(At) Tensor;
}
