//! Products of tensor cores: a warpgroup's, and a warp's own.
use super::Hooks;
use super::decoder::{Decoder, List, NONE, Operands, micro_ops, no};
use crate::emulate::arith::convert::Fp8;
use crate::emulate::arith::float::Rounding;
use crate::emulate::arith::mma_sync::{Arithmetic, BitJoin, LaneHas, QuadTypes, Sparsity};
use crate::emulate::arith::tensor_core::{Accumulator, Element, MmaKind};
use crate::emulate::mma::{Mma, MmaOp, Product};
use crate::emulate::sparse::sparsity;
use crate::emulate::wgmma::{self, AOperand, MatMul, Wgmma};
use crate::error::{Error, Result};
use crate::ptx::modifier::*;

/// What makes a kind of product of operand types: the accumulators' type, or whether integers saturate.
trait Accumulates {
    fn accumulator(self) -> Accumulator;
}
impl Accumulates for AccType {
    fn accumulator(self) -> Accumulator {
        match self {
            AccType::F32 => Accumulator::F32,
            AccType::F16 => Accumulator::F16,
            AccType::S32 => Accumulator::S32,
        }
    }
}
impl Accumulates for SatFinite {
    fn accumulator(self) -> Accumulator {
        match self {
            SatFinite::No => Accumulator::S32,
            SatFinite::Yes => Accumulator::S32Saturating,
        }
    }
}

fn kind(ty: WgmmaTypes, acc: impl Accumulates) -> Option<MmaKind> {
    use Element::*;
    let (a, b) = match ty {
        WgmmaTypes::F16 => (F16, F16),
        WgmmaTypes::BF16 => (Bf16, Bf16),
        WgmmaTypes::TF32 => (Tf32, Tf32),
        WgmmaTypes::E4M3E4M3 => (E4m3, E4m3),
        WgmmaTypes::E4M3E5M2 => (E4m3, E5m2),
        WgmmaTypes::E5M2E4M3 => (E5m2, E4m3),
        WgmmaTypes::E5M2E5M2 => (E5m2, E5m2),
        WgmmaTypes::S8S8 => (S8, S8),
        WgmmaTypes::S8U8 => (S8, U8),
        WgmmaTypes::U8S8 => (U8, S8),
        WgmmaTypes::U8U8 => (U8, U8),
    };
    MmaKind::new(a, b, acc.accumulator())
}

/// A's place: registers, or shared memory by a descriptor.
trait Places {
    fn place<H: Hooks>(self, cx: &mut Decoder<'_, H>) -> Result<AOperand>;
}
impl Places for u16 {
    fn place<H: Hooks>(self, _: &mut Decoder<'_, H>) -> Result<AOperand> {
        Ok(AOperand::Shared(self))
    }
}
impl Places for List {
    fn place<H: Hooks>(self, cx: &mut Decoder<'_, H>) -> Result<AOperand> {
        if self.len() != 4 {
            return Err(Error::internal("a wgmma with A in registers")
                .expected("4")
                .got(self.len().to_string()));
        }
        let len = self.len() as u32;
        Ok(AOperand::Registers {
            start: cx.list(self),
            len,
        })
    }
}

/// The rows of `wgmma`: what accumulates, whether K is a field, A's place, metadata, and what says how operands are negated and transposed.
macro_rules! warpgroup_products {
    ($($method:ident($Acc:ident $(with $k:ident)?, $A:ty $(, $meta:ident $sel:ident)?; $($flag:ident),*);)+) => {
        impl<H: Hooks> Decoder<'_, H> {$(
            pub fn $method(&mut self, ty: WgmmaTypes, acc_ty: $Acc, n: i64, $($k: i64,)? acc: List, a: $A, b: u16,
                $($meta: u16, $sel: i64,)? scale_d: u16, $($flag: i64),*) -> Result<()> {
                let sparse: Option<(u16, i64)> = [$(($meta, $sel))?].first().copied();
                self.matmul(kind(ty, acc_ty), n, acc, a, (b, scale_d), &[$($flag),*], sparse)
            }
        )+}
    };
}
warpgroup_products! {
    wgmma_half_ss(AccType, u16; neg_a, neg_b, trans_a, trans_b);
    wgmma_half_rs(AccType, List; neg_a, neg_b, trans_b);
    wgmma_float_ss(AccType with _k, u16; neg_a, neg_b);
    wgmma_float_rs(AccType with _k, List; neg_a, neg_b);
    wgmma_int_ss(SatFinite, u16;);
    wgmma_int_rs(SatFinite, List;);
    wgmma_sparse_half_ss(AccType, u16, meta sel; neg_a, neg_b, trans_a, trans_b);
    wgmma_sparse_half_rs(AccType, List, meta sel; neg_a, neg_b, trans_b);
    wgmma_sparse_float_ss(AccType with _k, u16, meta sel; neg_a, neg_b);
    wgmma_sparse_float_rs(AccType with _k, List, meta sel; neg_a, neg_b);
    wgmma_sparse_int_ss(SatFinite, u16, meta sel;);
    wgmma_sparse_int_rs(SatFinite, List, meta sel;);
}

impl<H: Hooks> Decoder<'_, H> {
    /// `flags`: the signs of A and B, and whether they are transposed, as far as there are such fields: one of A only if it is in shared memory.
    fn matmul(
        &mut self,
        kind: Option<MmaKind>,
        n: i64,
        acc: List,
        a: impl Places,
        (b, scale_d): (u16, u16),
        flags: &[i64],
        sparse: Option<(u16, i64)>,
    ) -> Result<()> {
        let a = a.place(self)?;
        let kind = kind.ok_or_else(|| Error::internal("a wgmma of these operand and accumulator types"))?;
        let per = if kind.accumulator() == Accumulator::F16 { 4 } else { 2 };
        if !(8..=256).contains(&n) || n % 8 != 0 || acc.len() as i64 * per != n {
            return Err(Error::internal("a wgmma")
                .expected("n of 8 to 256 in steps of 8, and its accumulator registers")
                .got(format!("n {n}, {} registers", acc.len())));
        }
        let (negate, trans_a, trans_b) = match *flags {
            [neg_a, neg_b, trans_a, trans_b] => ((neg_a < 0) != (neg_b < 0), trans_a != 0, trans_b != 0),
            [neg_a, neg_b, trans_b] => ((neg_a < 0) != (neg_b < 0), false, trans_b != 0),
            [neg_a, neg_b] => ((neg_a < 0) != (neg_b < 0), false, false),
            _ => (false, false, false),
        };
        let next = self.accumulators.len() as u32;
        let acc_id = *self.accumulators.entry(acc.clone()).or_insert(next);
        let len = acc.len() as u32;
        let op = MatMul {
            kind,
            n: n as usize,
            acc: (self.list(acc), len),
            acc_id,
            a,
            b,
            scale_d,
            negate,
            trans_a,
            trans_b,
            sparse: sparse.map(|(meta, sel)| (meta, sparsity(kind, sel as usize))),
        };
        let o = NONE
            .imm(self.program.code.len() as i32)
            .aux(self.program.matmuls.len() as u32);
        self.program.matmuls.push(op);
        self.emit::<Wgmma>(o);
        Ok(())
    }
}

/// What is computed of these types.
fn arithmetic(ty: MmaTypes, sat: SatFinite) -> Option<Arithmetic> {
    use Element::*;
    let saturates = sat == SatFinite::Yes;
    let integers = sat.accumulator();
    let step = |a, b, accumulator| MmaKind::new(a, b, accumulator).map(Arithmetic::Step);
    let fp8 = |a, b, accumulator| Some(Arithmetic::Fp8 { a, b, accumulator });
    let nibbles = |a_signed, b_signed| {
        Some(Arithmetic::Nibbles {
            a_signed,
            b_signed,
            saturates,
        })
    };
    match ty {
        MmaTypes::F16 => step(F16, F16, Accumulator::F32),
        MmaTypes::F16Half => step(F16, F16, Accumulator::F16),
        MmaTypes::BF16 => step(Bf16, Bf16, Accumulator::F32),
        MmaTypes::TF32 => step(Tf32, Tf32, Accumulator::F32),
        MmaTypes::S8S8 => step(S8, S8, integers),
        MmaTypes::S8U8 => step(S8, U8, integers),
        MmaTypes::U8S8 => step(U8, S8, integers),
        MmaTypes::U8U8 => step(U8, U8, integers),
        MmaTypes::S4S4 => nibbles(true, true),
        MmaTypes::S4U4 => nibbles(true, false),
        MmaTypes::U4S4 => nibbles(false, true),
        MmaTypes::U4U4 => nibbles(false, false),
        MmaTypes::E4M3E4M3 => fp8(Fp8::E4m3, Fp8::E4m3, Accumulator::F32),
        MmaTypes::E4M3E5M2 => fp8(Fp8::E4m3, Fp8::E5m2, Accumulator::F32),
        MmaTypes::E5M2E4M3 => fp8(Fp8::E5m2, Fp8::E4m3, Accumulator::F32),
        MmaTypes::E5M2E5M2 => fp8(Fp8::E5m2, Fp8::E5m2, Accumulator::F32),
        MmaTypes::E4M3E4M3Half => fp8(Fp8::E4m3, Fp8::E4m3, Accumulator::F16),
        MmaTypes::E4M3E5M2Half => fp8(Fp8::E4m3, Fp8::E5m2, Accumulator::F16),
        MmaTypes::E5M2E4M3Half => fp8(Fp8::E5m2, Fp8::E4m3, Accumulator::F16),
        MmaTypes::E5M2E5M2Half => fp8(Fp8::E5m2, Fp8::E5m2, Accumulator::F16),
    }
}

fn of_major(major: MmaMajor) -> LaneHas {
    match major {
        MmaMajor::Row => LaneHas::Row,
        MmaMajor::Col => LaneHas::Column,
    }
}

impl<H: Hooks> Decoder<'_, H> {
    fn mma(&mut self, product: Product, d: List, a: List, b: List, c: List) {
        let aux = self.program.mma_ops.len() as u32;
        self.program.mma_ops.push(MmaOp { product, d, a, b, c });
        self.emit::<Mma>(NONE.aux(aux));
    }
    pub fn mma_sync(
        &mut self,
        _: MmaShape,
        sat: SatFinite,
        ty: MmaTypes,
        d: List,
        a: List,
        b: List,
        c: List,
    ) -> Result<()> {
        let Some(arithmetic) = arithmetic(ty, sat) else {
            return no("mma.sync of this type");
        };
        self.mma(Product::Dense(arithmetic), d, a, b, c);
        Ok(())
    }
    pub fn mma_bits(&mut self, _: MmaBitShape, op: BitProduct, d: List, a: List, b: List, c: List) {
        let join = match op {
            BitProduct::And => BitJoin::And,
            BitProduct::Xor => BitJoin::Xor,
        };
        self.mma(Product::Dense(Arithmetic::Bits(join)), d, a, b, c);
    }
    pub fn mma_f64(&mut self, _: MmaF64Shape, rnd: MmaF64Round, d: List, a: List, b: List, c: List) {
        let rounding = match rnd {
            MmaF64Round::Rn => Rounding::NearestEven,
            MmaF64Round::Rz => Rounding::TowardZero,
            MmaF64Round::Rm => Rounding::Down,
            MmaF64Round::Rp => Rounding::Up,
        };
        self.mma(Product::Doubles(rounding), d, a, b, c);
    }
    pub fn mma_quads(
        &mut self,
        a_major: MmaMajor,
        b_major: MmaMajor,
        ty: MmaQuadTypes,
        d: List,
        a: List,
        b: List,
        c: List,
    ) {
        let types = match ty {
            MmaQuadTypes::F32 => QuadTypes::F32,
            MmaQuadTypes::F32OfF16 => QuadTypes::F32OfF16,
            MmaQuadTypes::F16 => QuadTypes::F16,
        };
        self.mma(Product::Quads([a_major, b_major].map(of_major), types), d, a, b, c);
    }
    pub fn mma_sparse(
        &mut self,
        order: MetadataOrder,
        _: MmaShape,
        sat: SatFinite,
        ty: MmaTypes,
        d: List,
        a: List,
        b: List,
        c: List,
        meta: u16,
        selector: i64,
    ) -> Result<()> {
        let Some(arithmetic) = arithmetic(ty, sat) else {
            return no("mma.sp of this type");
        };
        let sparsity = Sparsity {
            unit: if ty.element_bits() < 16 { 1 } else { 2 },
            selector: selector as usize,
            ordered: match order {
                MetadataOrder::Ordered => true,
                MetadataOrder::Any => false,
            },
            whole_pairs: ty.element_bits() == 32,
        };
        let product = Product::Sparse {
            arithmetic,
            sparsity,
            meta,
        };
        self.mma(product, d, a, b, c);
        Ok(())
    }
}

micro_ops! {
    wgmma_fence(_: List) = wgmma::WgmmaFence {};
    wgmma_commit() = wgmma::WgmmaCommit {};
    wgmma_wait(n: i64, _: List) = wgmma::WgmmaWait { imm: n as i32 };
}
