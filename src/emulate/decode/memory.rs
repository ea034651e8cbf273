//! Loads and stores, cache policies, and what of memory has no effect here.
use super::Hooks;
use super::decoder::{At, Decoder, List, NONE, Operands, micro_ops, no};
use crate::emulate::cache_policy::{DISCARDED, OfLines, PolicyOfFraction, PolicyOfRange};
use crate::emulate::control::Nothing;
use crate::emulate::mem::{
    ByteS, ByteU, Global, Ldmatrix, Load, Polling, SharedCta, Space as MemorySpace, Stmatrix, Store, Word16, Word32,
    Word64,
};
use crate::emulate::ops::Copy;
use crate::emulate::uop::{OpFn, Tier, pick};
use crate::error::Result;
use crate::ptx::modifier::*;

/// What is done to memory.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Does {
    Load,
    /// A load that may be one of many until something changes.
    Poll,
    Store,
}

/// The body of an access, if there is one: total bytes at most 16, a power of two.
fn access<H: Hooks, S: MemorySpace>(ty: MemType, n: usize, tier: Tier, does: Does) -> Option<OpFn<H>> {
    macro_rules! accesses {
        ($($E:ident, $T:ident: $($n:literal $b:literal),+;)*) => {
            match (ty, n) {
                $($( (MemType::$T, $n) => match does {
                    Does::Store => pick::<Store<S, $E, $n, $b>, H>(tier),
                    Does::Poll => pick::<Polling<Load<S, $E, $n, $b>>, H>(tier),
                    Does::Load => pick::<Load<S, $E, $n, $b>, H>(tier),
                }, )+)*
                _ => return None,
            }
        };
    }
    Some(accesses! {
        ByteU, U8: 1 1, 2 2, 4 4;
        ByteS, S8: 1 1, 2 2, 4 4;
        Word16, B16: 1 2, 2 4, 4 8;
        Word32, B32: 1 4, 2 8, 4 16;
        Word64, B64: 1 8, 2 16;
    })
}

pub fn is_shared(space: Space) -> bool {
    match space {
        Space::Shared | Space::SharedCluster => true,
        Space::Global | Space::Generic => false,
    }
}

/// The row of the `i`-th word behind `at` in a thread's own memory: [`crate::emulate::registers`] has found rows for all of them.
fn own_row(at: i64, i: usize) -> u16 {
    (at / 4) as u16 + i as u16
}

impl<H: Hooks> Decoder<'_, H> {
    fn access(&mut self, does: Does, space: Space, ty: MemType, list: List, addr: At, sem: u16) -> Result<()> {
        let body = match is_shared(space) {
            true => access::<H, SharedCta>(ty, list.len(), self.tier, does),
            false => access::<H, Global>(ty, list.len(), self.tier, does),
        };
        let Some(body) = body else {
            let name = if does == Does::Store { "st" } else { "ld" };
            return no(format!("{name}.v{}.{}", list.len(), ty.text()));
        };
        let aux = self.list(list);
        self.emit_fn(body, NONE.at(addr).c(sem).aux(aux));
        Ok(())
    }
    pub fn ld(&mut self, sem: LoadSem, space: Space, ty: MemType, d: List, addr: At) -> Result<()> {
        let ordered = sem != LoadSem::Weak;
        self.program.communicates |= ordered && !is_shared(space);
        let does = if ordered { Does::Poll } else { Does::Load };
        self.access(does, space, ty, d, addr, sem as u16)
    }
    pub fn st(&mut self, sem: StoreSem, space: Space, ty: MemType, addr: At, a: List) -> Result<()> {
        self.program.communicates |= sem != StoreSem::Weak && !is_shared(space);
        self.access(Does::Store, space, ty, a, addr, sem as u16)
    }
    fn ld_weak(&mut self, space: Space, ty: MemType, d: List, addr: At) -> Result<()> {
        self.ld(LoadSem::Weak, space, ty, d, addr)
    }
    pub fn ld_nc(&mut self, ty: MemType, d: List, addr: At) -> Result<()> {
        self.ld_weak(Space::Global, ty, d, addr)
    }
    pub fn ld_cached(&mut self, space: Space, _: LoadCache, ty: MemType, d: List, addr: At) -> Result<()> {
        self.ld_weak(space, ty, d, addr)
    }
    pub fn ld_nc_cached(&mut self, _: ReadCache, ty: MemType, d: List, addr: At) -> Result<()> {
        self.ld_weak(Space::Global, ty, d, addr)
    }
    pub fn st_cached(&mut self, space: Space, _: StoreCache, ty: MemType, addr: At, a: List) -> Result<()> {
        self.st(StoreSem::Weak, space, ty, addr, a)
    }
    pub fn ld_policy(
        &mut self,
        space: Space,
        _: L1Priority,
        _: PrefetchSize,
        ty: MemType,
        d: List,
        addr: At,
        _: u16,
    ) -> Result<()> {
        self.ld_weak(space, ty, d, addr)
    }
    pub fn ld_nc_policy(
        &mut self,
        _: L1Priority,
        _: PrefetchSize,
        ty: MemType,
        d: List,
        addr: At,
        _: u16,
    ) -> Result<()> {
        self.ld_weak(Space::Global, ty, d, addr)
    }
    pub fn st_policy(&mut self, space: Space, _: L1Priority, ty: MemType, addr: At, a: List, _: u16) -> Result<()> {
        self.st(StoreSem::Weak, space, ty, addr, a)
    }
    pub fn ld_local(&mut self, d: List, at: i64) {
        for (i, d) in d.into_iter().enumerate() {
            self.op1::<Copy<u32>>(d, own_row(at, i), 0);
        }
    }
    pub fn st_local(&mut self, at: i64, a: List) {
        for (i, a) in a.into_iter().enumerate() {
            self.op1::<Copy<u32>>(own_row(at, i), a, 0);
        }
    }
    pub fn ldmatrix(&mut self, trans: MatrixTrans, d: List, addr: At) {
        let o = NONE.at(addr).b(d.len() as u16).c(trans as u16).aux(self.list(d));
        self.emit::<Ldmatrix>(o);
    }
    pub fn stmatrix(&mut self, trans: MatrixTrans, addr: At, a: List) {
        let o = NONE.at(addr).b(a.len() as u16).c(trans as u16).aux(self.list(a));
        self.emit::<Stmatrix>(o);
    }

    pub fn create_policy(&mut self, priority: PolicyPriority, others: PolicyOthers, d: u16) {
        let all = self.constant(1f32.to_bits().into(), false);
        self.create_policy_fraction(priority, others, d, all);
    }
    pub fn discard(&mut self, addr: At) -> Result<()> {
        self.emit::<OfLines>(NONE.at(addr));
        let word = self.constant(DISCARDED, false);
        for i in 0..8 {
            let addr = (addr.0, addr.1 + 16 * i);
            self.st(StoreSem::Weak, Space::Global, MemType::B32, addr, vec![word; 4])?;
        }
        Ok(())
    }
}

micro_ops! {
    create_policy_fraction(priority: PolicyPriority, _: PolicyOthers, d: u16, fraction: u16)
        = PolicyOfFraction { d, a: fraction, imm: priority as i32 };
    create_policy_range(priority: PolicyPriority, _: PolicyOthers, d: u16, _: At, primary: u16, total: u16)
        = PolicyOfRange { d, b: primary, c: total, imm: priority as i32 };
    // What has no effect in the emulator.
    prefetch(_: PrefetchLevel, _: At) = Nothing {};
    prefetch_uniform(_: At) = Nothing {};
    apply_priority(_: At) = Nothing {};
    prefetch_tensormap(_: u16) = Nothing {};
}
