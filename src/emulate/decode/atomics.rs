//! Atomics and reductions.
use super::Hooks;
use super::decoder::{At, Decoder, List, NONE, no};
use super::memory::is_shared;
use crate::emulate::mem::{
    Atomic, AtomicVector, Global, NO_RESULT, SharedCta, Word16, Word32, Word64, atom_bytes, atom_code,
};
use crate::error::Result;
use crate::ptx::modifier::*;

/// Semantics and scope.
type Order = (AtomSem, Scope);

fn half_reduction(op: HalfRedOp, ty: HalfType) -> (AtomOp, AtomType) {
    let op = match op {
        HalfRedOp::Add => AtomOp::Add,
        HalfRedOp::Min => AtomOp::Min,
        HalfRedOp::Max => AtomOp::Max,
    };
    let ty = match ty {
        HalfType::F16 => AtomType::F16,
        HalfType::BF16 => AtomType::BF16,
        HalfType::F16x2 => AtomType::F16x2,
        HalfType::BF16x2 => AtomType::BF16x2,
    };
    (op, ty)
}

impl<H: Hooks> Decoder<'_, H> {
    /// `op` none: compares with `value`, and swaps `replacement` in.
    fn atomic(
        &mut self,
        (sem, scope): Order,
        space: Space,
        (op, ty): (Option<AtomOp>, AtomType),
        d: u16,
        addr: At,
        value: u16,
        replacement: u16,
    ) {
        let shared = is_shared(space);
        self.program.communicates |= !shared;
        let aux = u32::from(replacement) | (scope as u32) << 16 | (sem as u32) << 24;
        let o = NONE.at(addr).d(d).b(value).c(atom_code(op, ty)).aux(aux);
        match (atom_bytes(ty), shared) {
            (2, true) => self.emit::<Atomic<SharedCta, Word16>>(o),
            (2, false) => self.emit::<Atomic<Global, Word16>>(o),
            (4, true) => self.emit::<Atomic<SharedCta, Word32>>(o),
            (4, false) => self.emit::<Atomic<Global, Word32>>(o),
            (_, true) => self.emit::<Atomic<SharedCta, Word64>>(o),
            (_, false) => self.emit::<Atomic<Global, Word64>>(o),
        }
    }
    pub fn atom(
        &mut self,
        sem: AtomSem,
        scope: Scope,
        space: Space,
        op: AtomOp,
        ty: AtomType,
        d: u16,
        addr: At,
        a: u16,
    ) {
        self.atomic((sem, scope), space, (Some(op), ty), d, addr, a, 0);
    }
    pub fn atom_cas(
        &mut self,
        sem: AtomSem,
        scope: Scope,
        space: Space,
        ty: BitType,
        d: u16,
        addr: At,
        a: u16,
        b: u16,
    ) {
        let ty = match ty {
            // Bits are compared; no type of an operation is 16 bits without a format.
            BitType::B16 => AtomType::F16,
            BitType::B32 => AtomType::B32,
            BitType::B64 => AtomType::B64,
        };
        self.atomic((sem, scope), space, (None, ty), d, addr, a, b);
    }
    pub fn red(&mut self, sem: AtomSem, scope: Scope, space: Space, op: RedOp, ty: AtomType, addr: At, a: u16) {
        let op = Some(op.as_atom());
        self.atomic((sem, scope), space, (op, ty), NO_RESULT, addr, a, 0);
    }

    /// An atomic of adjacent elements; with their old values, where `d` is for them.
    fn atomic_vector(
        &mut self,
        (sem, scope): Order,
        (op, ty): (AtomOp, AtomType),
        d: Option<List>,
        addr: At,
        a: List,
    ) -> Result<()> {
        self.program.communicates = true;
        let (n, has_result) = (a.len(), d.is_some());
        let o = NONE.at(addr).d(has_result.into()).b((scope as u16) << 8 | sem as u16);
        let aux = self.list(a.into_iter().chain(d.into_iter().flatten()));
        let o = o.c(atom_code(Some(op), ty)).aux(aux);
        match (atom_bytes(ty), n) {
            (2, 2) => self.emit::<AtomicVector<Word16, 2, 4>>(o),
            (2, 4) => self.emit::<AtomicVector<Word16, 4, 8>>(o),
            (4, 2) => self.emit::<AtomicVector<Word32, 2, 8>>(o),
            (4, 4) => self.emit::<AtomicVector<Word32, 4, 16>>(o),
            (_, n) => return no(format!("red.v{n}.{}", ty.text())),
        }
        Ok(())
    }
    pub fn red_vector(
        &mut self,
        sem: AtomSem,
        scope: Scope,
        op: HalfRedOp,
        ty: HalfType,
        addr: At,
        a: List,
    ) -> Result<()> {
        self.atomic_vector((sem, scope), half_reduction(op, ty), None, addr, a)
    }
    pub fn atom_vector(
        &mut self,
        sem: AtomSem,
        scope: Scope,
        op: HalfRedOp,
        ty: HalfType,
        d: List,
        addr: At,
        a: List,
    ) -> Result<()> {
        self.atomic_vector((sem, scope), half_reduction(op, ty), Some(d), addr, a)
    }
    pub fn red_vector_f32(&mut self, sem: AtomSem, scope: Scope, addr: At, a: List) -> Result<()> {
        self.atomic_vector((sem, scope), (AtomOp::Add, AtomType::F32), None, addr, a)
    }
    pub fn atom_vector_f32(&mut self, sem: AtomSem, scope: Scope, d: List, addr: At, a: List) -> Result<()> {
        self.atomic_vector((sem, scope), (AtomOp::Add, AtomType::F32), Some(d), addr, a)
    }
}
