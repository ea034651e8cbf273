//! Which combinations of modifiers, list lengths and immediates PTX has (and ptxas 13.0 accepts for sm_90a).
//!
//! A row's type says most of it; this file says the rest. A test assembles every combination that is legal here.
use super::inst::Inst;
use super::modifier::*;
use super::operand::*;

/// What `cp.async.bulk.wait_group` can leave pending: the SASS field has six bits (ptxas 13.0 prints larger numbers as 63).
pub const MAX_PENDING_BULK_GROUPS: i64 = 63;
/// Bytes of one `cp.async.bulk`, where they are an immediate (ptxas 13.0).
pub const MAX_BULK_BYTES: u32 = 0xf_fff0;
/// PTX ISA, `wgmma.wait_group`: N is 0 to 7.
pub const MAX_PENDING_WGMMA_GROUPS: i64 = 7;

/// `Ok`, or what is expected.
pub fn check<R: Copy>(inst: &Inst<R>) -> Result<(), &'static str> {
    match inst {
        Inst::PackB32 { a, .. } | Inst::PackB64 { a, .. } => ensure(a.len() == 2, "two halves"),
        Inst::UnpackB32 { d, .. } | Inst::UnpackB64 { d, .. } => ensure(d.len() == 2, "two halves"),
        Inst::PackQuarters { a, .. } => ensure(a.len() == 4, "four halves"),
        Inst::UnpackQuarters { d, .. } => ensure(d.len() == 4, "four halves"),
        Inst::NegInt { ty, .. } | Inst::AbsInt { ty, .. } => ensure(ty.is_signed(), "a signed type"),
        Inst::Bfind { ty, .. } | Inst::BfindShift { ty, .. } => ensure(ty.bits() != 16, "a 32- or 64-bit type"),
        Inst::Bfe { ty, pos, len, .. } => {
            ensure(ty.bits() != 16, "a 32- or 64-bit type")?;
            ensure(byte(pos) && byte(len), "a position and a length of at most 255")
        }
        Inst::Bfi { pos, len, .. } => ensure(byte(pos) && byte(len), "a position and a length of at most 255"),
        Inst::AddFloat { rnd, ftz, ty, .. }
        | Inst::SubFloat { rnd, ftz, ty, .. }
        | Inst::MulFloat { rnd, ftz, ty, .. }
        | Inst::Fma { rnd, ftz, ty, .. } => {
            ensure(*rnd == Round::Rn || is_wide(*ty), "nearest even for 16-bit floats")?;
            flushes(*ftz, *ty)
        }
        Inst::FloatSat { rnd, ftz, ty, .. } | Inst::FmaSat { rnd, ftz, ty, .. } => {
            let ty = match ty {
                SatFloatType::F16 => FloatType::F16,
                SatFloatType::F16x2 => FloatType::F16x2,
                SatFloatType::F32 => FloatType::F32,
            };
            ensure(*rnd == Round::Rn || is_wide(ty), "nearest even for 16-bit floats")?;
            flushes(*ftz, ty)
        }
        Inst::FmaRelu { ftz, ty, .. } => ensure(
            *ftz == Ftz::No || matches!(ty, HalfType::F16 | HalfType::F16x2),
            "subnormals flushed for f16 only",
        ),
        Inst::MinMaxXorsign { ftz, ty, .. } => ensure(
            *ftz == Ftz::No || !matches!(ty, SignedMinType::BF16 | SignedMinType::BF16x2),
            "subnormals flushed for f16 and f32 only",
        ),
        Inst::NegFloat { ftz, ty, .. } | Inst::AbsFloat { ftz, ty, .. } => flushes(*ftz, *ty),
        Inst::MinMaxFloat { ftz, nan, ty, .. } => {
            ensure(*nan == NanMode::Number || *ty != FloatType::F64, "no .NaN for f64")?;
            flushes(*ftz, *ty)
        }
        Inst::DivFloat { ftz, ty, .. }
        | Inst::Exact { ftz, ty, .. }
        | Inst::DivDirected { ftz, ty, .. }
        | Inst::ExactDirected { ftz, ty, .. } => ensure(
            *ftz == Ftz::No || *ty == WideFloatType::F32,
            "subnormals flushed for f32 only",
        ),
        Inst::Cvt {
            rnd,
            ftz,
            sat,
            to,
            from,
            ..
        } => cvt(*rnd, *ftz, *sat, *to, *from),
        Inst::CvtPair { rnd, .. } | Inst::CvtTf32Rounded { rnd, .. } | Inst::CvtRelu { rnd, .. } => {
            ensure(matches!(rnd, Round::Rn | Round::Rz), "rounding to nearest or to zero")
        }
        Inst::Setp { cmp, ftz, ty, .. } | Inst::SetpBool { cmp, ftz, ty, .. } => setp(*cmp, *ftz, *ty),
        Inst::SetpPair { cmp, ftz, ty, .. } | Inst::SetpBoolPair { cmp, ftz, ty, .. } => {
            ensure(
                !matches!(ty, CompareType::F16 | CompareType::BF16),
                "one result of 16-bit floats",
            )?;
            setp(*cmp, *ftz, *ty)
        }
        Inst::SetpHalves { cmp, ftz, ty, .. } => match ty {
            Pair16::F16x2 => setp(*cmp, *ftz, CompareType::F16),
            Pair16::BF16x2 => setp(*cmp, *ftz, CompareType::BF16),
        },
        Inst::Set { cmp, ftz, ty, .. } | Inst::SetBool { cmp, ftz, ty, .. } => {
            ensure(!matches!(ty, CompareType::F16 | CompareType::BF16), "no 16-bit floats")?;
            setp(*cmp, *ftz, *ty)
        }
        Inst::LdParamMap { offset, .. } => ensure(
            (0..128).contains(offset) && offset % 8 == 0,
            "a multiple of 8 below the 128 bytes of a tensor map",
        ),
        Inst::Ld { ty, d, .. } | Inst::LdNc { ty, d, .. } => vector(d.len(), *ty),
        Inst::St { ty, a, .. } => vector(a.len(), *ty),
        Inst::LdCached { space, ty, d, .. } => {
            ensure(matches!(space, Space::Global | Space::Generic), "global memory")?;
            vector(d.len(), *ty)
        }
        Inst::LdNcCached { ty, d, .. } | Inst::LdNcPolicy { ty, d, .. } => vector(d.len(), *ty),
        Inst::LdPolicy { space, ty, d, .. } => {
            ensure(matches!(space, Space::Global | Space::Generic), "global memory")?;
            vector(d.len(), *ty)
        }
        Inst::StPolicy { space, ty, a, .. } => {
            ensure(matches!(space, Space::Global | Space::Generic), "global memory")?;
            vector(a.len(), *ty)
        }
        Inst::CreatePolicyFraction { fraction, .. } => ensure(
            imm(fraction).is_none_or(|x| (0.0..=1.0).contains(&f32::from_bits(x as u32)) && x != 0),
            "a fraction of more than 0 and at most 1",
        ),
        Inst::CreatePolicyRange { primary, total, .. } => ensure(
            imm(primary)
                .zip(imm(total))
                .is_none_or(|(primary, total)| primary <= total),
            "no more bytes in the first part than in all",
        ),
        Inst::CarryOp { ty, .. } | Inst::CarryMad { ty, .. } => ensure(ty.bits() != 16, "a 32- or 64-bit type"),
        Inst::StCached { space, ty, a, .. } => {
            ensure(matches!(space, Space::Global | Space::Generic), "global memory")?;
            vector(a.len(), *ty)
        }
        Inst::AtomVector { d, a, .. } | Inst::AtomVectorF32 { d, a, .. } => ensure(
            matches!(a.len(), 2 | 4) && d.len() == a.len(),
            "2 or 4 registers, and as many",
        ),
        Inst::RedVectorF32 { sem, a, .. } => {
            ensure(
                matches!(sem, AtomSem::Relaxed | AtomSem::Release),
                "relaxed or release semantics: nothing is read",
            )?;
            ensure(matches!(a.len(), 2 | 4), "2 or 4 registers")
        }
        Inst::CopyAsync { cache, bytes, .. } => copied(*cache, *bytes),
        Inst::CopyAsyncPartly {
            cache, bytes, taken, ..
        } => {
            copied(*cache, *bytes)?;
            ensure(
                imm(taken).is_none_or(|n| n <= bytes.unsigned_abs()),
                "no more bytes than there are",
            )
        }
        Inst::CopyWait { n } => ensure(*n >= 0, "a number of groups"),
        Inst::LdLocal { d, at } => local(d.len(), *at),
        Inst::StLocal { a, at } => local(a.len(), *at),
        Inst::StAsync { ty, a, .. } => {
            ensure(matches!(ty, MemType::B32 | MemType::B64), "32- or 64-bit elements")?;
            vector(a.len(), *ty)
        }
        Inst::Atom { op, ty, .. } => ensure(atom(*op, *ty), "a type that the operation has"),
        Inst::Red { sem, op, ty, .. } => {
            ensure(
                matches!(sem, AtomSem::Relaxed | AtomSem::Release),
                "relaxed or release semantics: nothing is read",
            )?;
            ensure(atom(op.as_atom(), *ty), "a type that the operation has")
        }
        Inst::RedAsync { op, ty, .. } => ensure(async_reduction(*op, *ty), "a type that the operation has"),
        Inst::RedVector { sem, a, .. } => {
            ensure(
                matches!(sem, AtomSem::Relaxed | AtomSem::Release),
                "relaxed or release semantics: nothing is read",
            )?;
            ensure(matches!(a.len(), 2 | 4), "2 or 4 registers")
        }
        Inst::Ldmatrix { d, .. } => ensure(matches!(d.len(), 1 | 2 | 4), "1, 2 or 4 matrices"),
        Inst::Stmatrix { a, .. } => ensure(matches!(a.len(), 1 | 2 | 4), "1, 2 or 4 matrices"),
        Inst::SetMaxReg { n, .. } => ensure(
            (24..=256).contains(n) && n % 8 == 0,
            "a multiple of 8 from 24 to 256 registers",
        ),
        Inst::BarSync { id, threads } | Inst::BarArrive { id, threads } => {
            ensure(imm(id).is_none_or(|id| id < 16), "a barrier from 0 to 15")?;
            ensure(imm(threads).is_none_or(|n| n > 0 && n % 32 == 0), "whole warps")
        }
        Inst::BarrierSync { id, threads } | Inst::BarrierArrive { id, threads } => {
            ensure(imm(id).is_none_or(|id| id < 16), "a barrier from 0 to 15")?;
            ensure(imm(threads).is_none_or(|n| n > 0 && n % 32 == 0), "whole warps")
        }
        Inst::BarRed { id, threads, .. } | Inst::BarRedPopc { id, threads, .. } => {
            ensure(imm(id).is_none_or(|id| id < 16), "a barrier from 0 to 15")?;
            ensure(imm(threads).is_none_or(|n| n > 0 && n % 32 == 0), "whole warps")
        }
        Inst::BarSyncAll { id }
        | Inst::BarrierSyncAll { id }
        | Inst::BarRedAll { id, .. }
        | Inst::BarRedPopcAll { id, .. } => ensure(imm(id).is_none_or(|id| id < 16), "a barrier from 0 to 15"),
        // What other rows have is theirs.
        Inst::MbarrierCount { op, sem, space, .. } => ensure(
            *op != MbarrierOp::Arrive
                || match space {
                    BarrierSpace::Cta => *sem != ArriveSem::Default,
                    BarrierSpace::Cluster => !matches!(sem, ArriveSem::Default | ArriveSem::ReleaseCluster),
                },
            "an arrival of another form",
        ),
        Inst::MbarrierOneExpectTx { op, sem, space, .. } => ensure(
            *op != MbarrierOp::Arrive
                || match space {
                    BarrierSpace::Cta => *sem != ArriveSem::Default,
                    BarrierSpace::Cluster => *sem != ArriveSem::ReleaseCluster,
                },
            "an arrival of another form",
        ),
        Inst::MbarrierNoComplete { sem, .. } => ensure(
            matches!(sem, ArriveSem::Default | ArriveSem::ReleaseCta),
            "release semantics in the block",
        ),
        Inst::MbarrierTx { op, scope, space, .. } => ensure(
            (*op, *scope, *space) != (TxOp::Expect, TxScope::Cta, BarrierSpace::Cta),
            "a count of another form",
        ),
        Inst::MbarrierAskParity { ask, sem, parity, .. } => {
            ensure(
                *ask == MbarrierAsk::Try || *sem != AskSem::Default,
                "a test of another form",
            )?;
            ensure(imm(parity).is_none_or(|p| p < 2), "a parity of 0 or 1")
        }
        Inst::MbarrierTryParityFor { parity, .. } => ensure(imm(parity).is_none_or(|p| p < 2), "a parity of 0 or 1"),
        Inst::CheckIndex { ty, of, size, .. } => {
            ensure(ty.bits() != 16, "a 32- or 64-bit type")?;
            ensure(*of != Indexed::Hint || *size > 0, "a positive number")
        }
        Inst::MbarrierTest { parity, .. }
        | Inst::MbarrierWait { parity, .. }
        | Inst::MbarrierWaitFor { parity, .. } => ensure(imm(parity).is_none_or(|p| p < 2), "a parity of 0 or 1"),
        Inst::BulkLoad { bytes, .. }
        | Inst::BulkLoadMulticast { bytes, .. }
        | Inst::BulkStore { bytes, .. }
        | Inst::BulkReduce { bytes, .. }
        | Inst::BulkCopyCluster { bytes, .. }
        | Inst::BulkPrefetch { bytes, .. } => ensure(
            imm(bytes).is_none_or(|n| n % 16 == 0 && n <= MAX_BULK_BYTES.into()),
            "a multiple of 16 bytes, 1048560 at most",
        ),
        Inst::TensorLoad { coords, .. }
        | Inst::TensorLoadMulticast { coords, .. }
        | Inst::TensorStore { coords, .. }
        | Inst::TensorReduce { coords, .. }
        | Inst::TensorPrefetch { coords, .. } => ensure((1..=5).contains(&coords.len()), "1 to 5 coordinates"),
        Inst::BulkWait { n, .. } => ensure((0..=MAX_PENDING_BULK_GROUPS).contains(n), "at most 63 pending groups"),
        Inst::WgmmaWait { n, .. } => ensure((0..=MAX_PENDING_WGMMA_GROUPS).contains(n), "at most 7 pending groups"),
        Inst::WgmmaHalfSs {
            ty,
            acc_ty,
            n,
            acc,
            neg_a,
            neg_b,
            ..
        }
        | Inst::WgmmaSparseHalfSs {
            ty,
            acc_ty,
            n,
            acc,
            neg_a,
            neg_b,
            ..
        } => {
            ensure(half_acc(*ty, *acc_ty), "f32 accumulators, or f16 ones of f16 operands")?;
            wgmma(*n, *acc_ty, acc.output.len(), 4)?;
            ensure(sign(*neg_a) && sign(*neg_b), "1 or −1")
        }
        Inst::WgmmaHalfRs {
            ty,
            acc_ty,
            n,
            acc,
            a,
            neg_a,
            neg_b,
            ..
        }
        | Inst::WgmmaSparseHalfRs {
            ty,
            acc_ty,
            n,
            acc,
            a,
            neg_a,
            neg_b,
            ..
        } => {
            ensure(half_acc(*ty, *acc_ty), "f32 accumulators, or f16 ones of f16 operands")?;
            wgmma(*n, *acc_ty, acc.output.len(), a.len())?;
            ensure(sign(*neg_a) && sign(*neg_b), "1 or −1")
        }
        Inst::WgmmaFloatSs {
            ty,
            acc_ty,
            n,
            k,
            acc,
            neg_a,
            neg_b,
            ..
        }
        | Inst::WgmmaSparseFloatSs {
            ty,
            acc_ty,
            n,
            k,
            acc,
            neg_a,
            neg_b,
            ..
        } => {
            ensure(
                float_acc(*ty, *acc_ty, *k, wgmma_selector(inst).is_some()),
                "tf32 with k = 8, or fp8 with k = 32; of sparse products twice as much",
            )?;
            wgmma(*n, *acc_ty, acc.output.len(), 4)?;
            ensure(sign(*neg_a) && sign(*neg_b), "1 or −1")
        }
        Inst::WgmmaFloatRs {
            ty,
            acc_ty,
            n,
            k,
            acc,
            a,
            neg_a,
            neg_b,
            ..
        }
        | Inst::WgmmaSparseFloatRs {
            ty,
            acc_ty,
            n,
            k,
            acc,
            a,
            neg_a,
            neg_b,
            ..
        } => {
            ensure(
                float_acc(*ty, *acc_ty, *k, wgmma_selector(inst).is_some()),
                "tf32 with k = 8, or fp8 with k = 32; of sparse products twice as much",
            )?;
            wgmma(*n, *acc_ty, acc.output.len(), a.len())?;
            ensure(sign(*neg_a) && sign(*neg_b), "1 or −1")
        }
        Inst::WgmmaIntSs { ty, n, acc, .. } | Inst::WgmmaSparseIntSs { ty, n, acc, .. } => {
            ensure(is_int8(*ty), "8-bit integers")?;
            wgmma(*n, AccType::S32, acc.output.len(), 4)
        }
        Inst::WgmmaIntRs { ty, n, acc, a, .. } | Inst::WgmmaSparseIntRs { ty, n, acc, a, .. } => {
            ensure(is_int8(*ty), "8-bit integers")?;
            wgmma(*n, AccType::S32, acc.output.len(), a.len())
        }
        Inst::MmaSync {
            shape,
            sat,
            ty,
            a,
            b,
            c,
            d,
        } => {
            ensure(
                dense(*shape, *ty),
                "a depth of 16 or 32 bytes; eight rows of integers of 16 bytes",
            )?;
            saturates(*sat, *ty)?;
            fragments(shape.fragments(*ty), [a.len(), b.len(), c.len(), d.len()])
        }
        Inst::MmaBits { shape, a, b, c, d, .. } => fragments(shape.fragments(), [a.len(), b.len(), c.len(), d.len()]),
        Inst::MmaF64 { shape, a, b, c, d, .. } => fragments(shape.fragments(), [a.len(), b.len(), c.len(), d.len()]),
        Inst::MmaQuads { ty, a, b, c, d, .. } => {
            let (of_c, of_d) = ty.accumulators();
            ensure(
                [a.len(), b.len(), c.len(), d.len()] == [2, 2, of_c, of_d],
                "two registers of A and of B; 8 of C or D of f32, 4 of f16",
            )
        }
        Inst::MmaSparse {
            shape,
            sat,
            ty,
            a,
            b,
            c,
            d,
            selector,
            ..
        } => {
            ensure(
                sparse(*shape, *ty),
                "16 rows, and a depth of 32 or 64 bytes (fp8: 64, and f32 accumulators)",
            )?;
            saturates(*sat, *ty)?;
            fragments(shape.sparse_fragments(*ty), [a.len(), b.len(), c.len(), d.len()])?;
            let places = shape.selectors(*ty);
            ensure(
                (0..places).contains(selector),
                match places {
                    1 => "a sparsity selector of 0: all lanes have metadata",
                    2 => "a sparsity selector of 0 or 1: which two of each four lanes have metadata",
                    _ => "a sparsity selector from 0 to 3: which of each four lanes has metadata",
                },
            )
        }
        // Rows whose types leave nothing illegal.
        _ => Ok(()),
    }?;
    if let Some((ty, sel)) = wgmma_selector(inst) {
        selector(ty, sel)?;
    }
    tied_alike(inst)
}

fn ensure(holds: bool, expected: &'static str) -> Result<(), &'static str> {
    if holds { Ok(()) } else { Err(expected) }
}

fn tied_alike<R: Copy>(inst: &Inst<R>) -> Result<(), &'static str> {
    ensure(
        inst.tied().is_none_or(|t| t.input.len() == t.output.len()),
        "as many tied inputs as outputs",
    )
}

fn imm<R>(s: &Src<R>) -> Option<u64> {
    match s {
        Src::Imm(bits) => Some(*bits),
        Src::Reg(_) => None,
    }
}
fn byte<R>(s: &Src<R>) -> bool {
    imm(s).is_none_or(|v| v < 256)
}
/// Whole lines of the L2 cache's sectors where L1 is passed by.
fn copied(cache: CopyCache, bytes: i64) -> Result<(), &'static str> {
    match cache {
        CopyCache::Ca => ensure(matches!(bytes, 4 | 8 | 16), "4, 8 or 16 bytes"),
        CopyCache::Cg => ensure(bytes == 16, "16 bytes"),
    }
}
fn sign(n: i64) -> bool {
    n == 1 || n == -1
}

fn is_wide(ty: FloatType) -> bool {
    match ty {
        FloatType::F32 | FloatType::F64 => true,
        FloatType::F16 | FloatType::F16x2 | FloatType::BF16 | FloatType::BF16x2 => false,
    }
}

fn flushes(ftz: Ftz, ty: FloatType) -> Result<(), &'static str> {
    let can = match ty {
        FloatType::F16 | FloatType::F16x2 | FloatType::F32 => true,
        FloatType::BF16 | FloatType::BF16x2 | FloatType::F64 => false,
    };
    ensure(ftz == Ftz::No || can, "subnormals flushed for f16 and f32 only")
}

/// Bytes of a thread's own memory (CUDA C Programming Guide, technical specifications: 512 KB).
pub const MAX_LOCAL_BYTES: i64 = 512 * 1024;

fn local(words: usize, at: i64) -> Result<(), &'static str> {
    vector(words, MemType::B32)?;
    let bytes = 4 * words as i64;
    ensure(
        (0..=MAX_LOCAL_BYTES - bytes).contains(&at) && at % bytes == 0,
        "an aligned place in the thread's own memory",
    )
}

/// Vectors are 1, 2 or 4 elements and at most 16 bytes (32 need sm_100).
fn vector(n: usize, ty: MemType) -> Result<(), &'static str> {
    let bytes = match ty {
        MemType::U8 | MemType::S8 => 1,
        MemType::B16 => 2,
        MemType::B32 => 4,
        MemType::B64 => 8,
    };
    ensure(
        matches!(n, 1 | 2 | 4) && n * bytes <= 16,
        "1, 2 or 4 elements, at most 16 bytes",
    )
}

fn cvt(rnd: CvtRound, ftz: Ftz, sat: Sat, to: CvtType, from: CvtType) -> Result<(), &'static str> {
    let to_float = matches!(rnd, CvtRound::Rn | CvtRound::Rz | CvtRound::Rm | CvtRound::Rp);
    let to_integral = matches!(rnd, CvtRound::Rni | CvtRound::Rzi | CvtRound::Rmi | CvtRound::Rpi);
    let none = rnd == CvtRound::None;
    ensure(
        ftz == Ftz::No || to == CvtType::F32 || from == CvtType::F32,
        "subnormals flushed where f32 is converted",
    )?;
    let bf16 = to == CvtType::BF16 || from == CvtType::BF16;
    ensure(sat == Sat::No || !bf16, "no saturation of bf16")?;
    match (to.integer(), from.integer()) {
        (Some((t, t_signed)), Some((f, f_signed))) => {
            ensure(none, "no rounding between integers")?;
            let kept = if t_signed == f_signed {
                t >= f
            } else {
                t_signed && t > f
            };
            ensure(sat == Sat::No || !kept, "saturation where a value can be lost")
        }
        (None, Some((f, _))) => {
            ensure(to_float, "a rounding to a float")?;
            ensure(to != CvtType::BF16 || f != 8, "no bytes to bf16")
        }
        (Some((t, _)), None) => {
            ensure(to_integral, "a rounding to an integer")?;
            ensure(from != CvtType::BF16 || t != 8, "no bf16 to bytes")
        }
        (None, None) if to == from => ensure(none || to_integral, "a rounding to an integral value, or none"),
        (None, None) => {
            let exact = matches!(
                (from, to),
                (CvtType::F16 | CvtType::BF16, CvtType::F32 | CvtType::F64) | (CvtType::F32, CvtType::F64)
            );
            ensure(
                if exact { none } else { to_float },
                "a rounding exactly where one is needed",
            )
        }
    }
}

fn setp(cmp: Compare, ftz: Ftz, ty: CompareType) -> Result<(), &'static str> {
    ensure(
        ftz == Ftz::No || matches!(ty, CompareType::F16 | CompareType::F32),
        "subnormals flushed for f16 and f32 only",
    )?;
    let (equality, order, unsigned_order, float) = match cmp {
        Compare::Eq | Compare::Ne => (true, false, false, false),
        Compare::Lt | Compare::Le | Compare::Gt | Compare::Ge => (false, true, false, false),
        Compare::Lo | Compare::Ls | Compare::Hi | Compare::Hs => (false, false, true, false),
        Compare::Equ
        | Compare::Neu
        | Compare::Ltu
        | Compare::Leu
        | Compare::Gtu
        | Compare::Geu
        | Compare::Num
        | Compare::Nan => (false, false, false, true),
    };
    ensure(
        match ty {
            CompareType::B16 | CompareType::B32 | CompareType::B64 => equality,
            CompareType::S16 | CompareType::S32 | CompareType::S64 => equality || order,
            CompareType::U16 | CompareType::U32 | CompareType::U64 => equality || order || unsigned_order,
            CompareType::F16 | CompareType::BF16 | CompareType::F32 | CompareType::F64 => equality || order || float,
        },
        "a comparison that the type has",
    )
}

fn atom(op: AtomOp, ty: AtomType) -> bool {
    match op {
        AtomOp::Add => match ty {
            AtomType::U32
            | AtomType::S32
            | AtomType::U64
            | AtomType::F32
            | AtomType::F64
            | AtomType::F16
            | AtomType::F16x2
            | AtomType::BF16
            | AtomType::BF16x2 => true,
            AtomType::B32 | AtomType::B64 | AtomType::S64 => false,
        },
        AtomOp::Min | AtomOp::Max => {
            matches!(ty, AtomType::U32 | AtomType::S32 | AtomType::U64 | AtomType::S64)
        }
        AtomOp::And | AtomOp::Or | AtomOp::Xor | AtomOp::Exch => matches!(ty, AtomType::B32 | AtomType::B64),
        AtomOp::Inc | AtomOp::Dec => ty == AtomType::U32,
    }
}

/// Reductions in another block's shared memory (PTX ISA 9.7.13.7).
fn async_reduction(op: RedOp, ty: AtomType) -> bool {
    match op {
        RedOp::Add => matches!(ty, AtomType::U32 | AtomType::S32 | AtomType::U64),
        RedOp::Min | RedOp::Max => matches!(ty, AtomType::U32 | AtomType::S32),
        RedOp::And | RedOp::Or | RedOp::Xor => ty == AtomType::B32,
        RedOp::Inc | RedOp::Dec => ty == AtomType::U32,
    }
}

/// Dense shapes of a type: its operands' rows are 16 or 32 bytes.
const fn dense(shape: MmaShape, ty: MmaTypes) -> bool {
    let bits = shape.depth() * ty.element_bits();
    match shape.rows() {
        8 => ty.is_integer() && bits == 128,
        _ => bits == 128 || bits == 256,
    }
}
/// Sparse ones (ptxas 13.0 has no f16 accumulators of fp8 operands for sm_90a).
const fn sparse(shape: MmaShape, ty: MmaTypes) -> bool {
    let bits = shape.depth() * ty.element_bits();
    let exists = if ty.is_fp8() {
        bits == 512 && ty.accumulator_bits() == 32
    } else {
        bits == 256 || bits == 512
    };
    exists && shape.rows() == 16
}
fn saturates(sat: SatFinite, ty: MmaTypes) -> Result<(), &'static str> {
    ensure(
        sat == SatFinite::No || ty.is_integer(),
        "saturation of sums of integers only",
    )
}
/// Lengths of A, B, C and D.
fn fragments(of: MmaFragments, lengths: [usize; 4]) -> Result<(), &'static str> {
    let MmaFragments { a, b, acc } = of;
    ensure(
        lengths == [a, b, acc, acc],
        match (a, b, acc) {
            (1, 1, 2) => "1 register of A, 1 of B, 2 of C and of D",
            (2, 1, 2) => "2 registers of A, 1 of B, 2 of C and of D",
            (2, 1, 4) => "2 registers of A, 1 of B, 4 of C and of D",
            (2, 2, 2) => "2 registers of A, 2 of B, 2 of C and of D",
            (2, 2, 4) => "2 registers of A, 2 of B, 4 of C and of D",
            (4, 2, 2) => "4 registers of A, 2 of B, 2 of C and of D",
            (4, 2, 4) => "4 registers of A, 2 of B, 4 of C and of D",
            (4, 4, 2) => "4 registers of A, 4 of B, 2 of C and of D",
            (4, 4, 4) => "4 registers of A, 4 of B, 4 of C and of D",
            (8, 4, 4) => "8 registers of A, 4 of B, 4 of C and of D",
            _ => "as many registers as the shape has fragments",
        },
    )
}

fn half_acc(ty: WgmmaTypes, acc: AccType) -> bool {
    match acc {
        AccType::F32 => matches!(ty, WgmmaTypes::F16 | WgmmaTypes::BF16),
        AccType::F16 => ty == WgmmaTypes::F16,
        AccType::S32 => false,
    }
}
fn float_acc(ty: WgmmaTypes, acc: AccType, k: i64, sparse: bool) -> bool {
    let times = if sparse { 2 } else { 1 };
    match ty {
        WgmmaTypes::TF32 => acc == AccType::F32 && k == 8 * times,
        WgmmaTypes::E4M3E4M3 | WgmmaTypes::E4M3E5M2 | WgmmaTypes::E5M2E4M3 | WgmmaTypes::E5M2E5M2 => {
            acc != AccType::S32 && k == 32 * times
        }
        WgmmaTypes::F16
        | WgmmaTypes::BF16
        | WgmmaTypes::S8S8
        | WgmmaTypes::S8U8
        | WgmmaTypes::U8S8
        | WgmmaTypes::U8U8 => false,
    }
}
/// The operand types and the sparsity selector of a sparse `wgmma`.
fn wgmma_selector<R: Copy>(inst: &Inst<R>) -> Option<(WgmmaTypes, i64)> {
    match inst {
        Inst::WgmmaSparseHalfSs { ty, sel, .. }
        | Inst::WgmmaSparseHalfRs { ty, sel, .. }
        | Inst::WgmmaSparseFloatSs { ty, sel, .. }
        | Inst::WgmmaSparseFloatRs { ty, sel, .. }
        | Inst::WgmmaSparseIntSs { ty, sel, .. }
        | Inst::WgmmaSparseIntRs { ty, sel, .. } => Some((*ty, *sel)),
        _ => None,
    }
}

/// All four lanes of a quad give the metadata of 8-bit types, two of them that of wider ones.
fn selector(ty: WgmmaTypes, sel: i64) -> Result<(), &'static str> {
    match ty {
        WgmmaTypes::F16 | WgmmaTypes::BF16 | WgmmaTypes::TF32 => {
            ensure((0..=1).contains(&sel), "a sparsity selector of 0 or 1")
        }
        WgmmaTypes::E4M3E4M3
        | WgmmaTypes::E4M3E5M2
        | WgmmaTypes::E5M2E4M3
        | WgmmaTypes::E5M2E5M2
        | WgmmaTypes::S8S8
        | WgmmaTypes::S8U8
        | WgmmaTypes::U8S8
        | WgmmaTypes::U8U8 => ensure(
            sel == 0,
            "the sparsity selector 0: all lanes give metadata of 8-bit types",
        ),
    }
}
fn is_int8(ty: WgmmaTypes) -> bool {
    matches!(
        ty,
        WgmmaTypes::S8S8 | WgmmaTypes::S8U8 | WgmmaTypes::U8S8 | WgmmaTypes::U8U8
    )
}

/// Columns are multiples of 8 up to 256 (for integers 8, 24 or multiples of 16); a warpgroup holds 64·n accumulators
/// in 128 lanes.
fn wgmma(n: i64, acc: AccType, regs: usize, a: usize) -> Result<(), &'static str> {
    let columns = (8..=256).contains(&n)
        && match acc {
            AccType::F32 | AccType::F16 => n % 8 == 0,
            AccType::S32 => n == 8 || n == 24 || n % 16 == 0,
        };
    ensure(columns, "columns: a multiple of 8 (integers: 8, 24 or of 16) up to 256")?;
    let per_register = match acc {
        AccType::F32 | AccType::S32 => 1,
        AccType::F16 => 2,
    };
    ensure(
        regs as i64 * 2 * per_register == n,
        "64·n accumulators over the 128 lanes of a warpgroup",
    )?;
    ensure(a == 4, "four registers of A")
}
