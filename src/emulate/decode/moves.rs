//! Moves: between registers, of special registers and parameters, of parts of registers.
use super::Hooks;
use super::decoder::{Decoder, List, NONE, Operands, micro_ops, no};
use crate::emulate::control::*;
use crate::emulate::global::param_address;
use crate::emulate::ops::Copy;
use crate::emulate::shared::SMEM_BASE;
use crate::emulate::tensor_maps::LoadMapParameter;
use crate::error::Result;
use crate::ptx::integer::by;
use crate::ptx::launch::EntryParam;
use crate::ptx::modifier::*;
use crate::ptx::operand::ParamRef;

impl<H: Hooks> Decoder<'_, H> {
    pub fn mov_pred(&mut self, d: u16, a: u16) {
        let is_constant = a >= self.spare_predicate();
        match self.program.code.last_mut() {
            // It has just been set: here, then.
            Some(set) if is_constant => set.d = d,
            _ => self.emit::<MovePredicate>(NONE.d(d).a(a)),
        }
    }
    pub fn mov_smem_base(&mut self, d: u16) {
        let a = self.constant(SMEM_BASE.into(), false);
        self.op1::<Copy<u32>>(d, a, 0);
    }
    pub fn pack_b32(&mut self, d: u16, a: List) -> Result<()> {
        let [low, high] = a[..] else {
            return no("mov.b32 of other than two halves");
        };
        self.op2::<Pack32>(d, low, high, 0);
        Ok(())
    }
    pub fn unpack_b32(&mut self, d: List, a: u16) -> Result<()> {
        let [low, high] = d[..] else {
            return no("mov.b32 to other than two halves");
        };
        self.emit::<Unpack32>(NONE.d(low).a(a).b(high));
        Ok(())
    }
    pub fn pack_b64(&mut self, d: u16, a: List) -> Result<()> {
        let [low, high] = a[..] else {
            return no("mov.b64 of other than two words");
        };
        self.op2::<Pack64>(d, low, high, 0);
        Ok(())
    }
    pub fn unpack_b64(&mut self, d: List, a: u16) -> Result<()> {
        let [low, high] = d[..] else {
            return no("mov.b64 to other than two words");
        };
        self.emit::<Unpack64>(NONE.d(low).a(a).b(high));
        Ok(())
    }
    pub fn pack_quarters(&mut self, d: u16, a: List) -> Result<()> {
        if a.len() != 4 {
            return no("mov.b64 of other than four halves");
        }
        let aux = self.list(a);
        self.emit::<PackQuarters>(NONE.d(d).aux(aux));
        Ok(())
    }
    pub fn unpack_quarters(&mut self, d: List, a: u16) -> Result<()> {
        if d.len() != 4 {
            return no("mov.b64 to other than four halves");
        }
        let aux = self.list(d);
        self.emit::<UnpackQuarters>(NONE.a(a).aux(aux));
        Ok(())
    }
    pub fn ld_param(&mut self, ty: WordType, d: u16, p: ParamRef) -> Result<()> {
        let launch = &self.flat.launch;
        let (buffer, offset) = match (launch.params.get(p.0 as usize), launch.exchange()) {
            (Some(EntryParam::Pointer { buffer }), _) => (*buffer, 0),
            // The devices are one process's.
            (Some(EntryParam::Row { .. }), Some(exchange)) => (exchange.buffer, exchange.zero_row()),
            (Some(EntryParam::Row { .. } | EntryParam::TensorMap(_)) | None, _) => {
                return no(format!("ld.param of parameter {}, which is no pointer", p.0));
            }
        };
        if ty == WordType::B32 {
            return no("ld.param of half a pointer");
        }
        self.emit::<LoadPointer>(NONE.d(d).imm(buffer as i32).aux(offset as u32));
        Ok(())
    }
    pub fn ld_param_map(&mut self, d: u16, p: ParamRef, offset: i64) -> Result<()> {
        let Some(EntryParam::TensorMap(_)) = self.flat.launch.params.get(p.0 as usize) else {
            return no(format!("bytes of parameter {}, which is no tensor map", p.0));
        };
        self.emit::<LoadMapParameter>(NONE.d(d).imm(offset as i32).aux(p.0));
        Ok(())
    }
    pub fn param_addr(&mut self, d: u16, p: ParamRef) {
        let a = self.constant(param_address(p.0), true);
        self.op1::<Copy<u64>>(d, a, 0);
    }
    pub fn mapa(&mut self, d: u16, a: u16, rank: u16) {
        self.op2::<MapAddress>(d, a, rank, 0);
    }
    pub fn selp(&mut self, ty: BitType, d: u16, a: u16, b: u16, p: u16) {
        by!(row ty, T => self.emit::<Select<T>>(NONE.d(d).a(a).b(b).c(p)));
    }
}

micro_ops! {
    mov_special32(reg: SpecialReg32, d: u16) = Special32 { d, imm: reg as i32 };
    mov_special64(_: SpecialReg64, d: u16) = Clock64 { d };
    mov_special_pred(_: SpecialPred, d: u16) = IsCluster { d };
    getctarank(d: u16, a: u16) = CtaRank { d, a };
}
