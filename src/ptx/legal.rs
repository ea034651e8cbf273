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

macro_rules! define_legality {
    ($(
        $(#[doc = $doc:literal])*
        $method:ident $variant:ident { $( $kind:ident $field:ident : $arg:tt );* $(;)? }
            $syntax:literal, requires [$requires:expr], effects [$effects:expr] $(, legal [$legal:expr])? $(, computes $computes:tt)?;
    )*) => {
        #[allow(unused_variables)]
        fn of_row<R: Copy>(inst: &Inst<R>) -> Legal {
            match inst {
                $( Inst::$variant { $( $field ),* } => { Ok(()) $( .and($legal) )? } ),*
            }
        }
    };
}

crate::instruction_table!(define_legality);

/// `Ok`, or what is expected.
type Legal = Result<(), &'static str>;

/// Whether PTX has an instruction, or what it expects.
pub fn check<R: Copy>(inst: &Inst<R>) -> Legal {
    of_row(inst)?;
    let is_alike = |t: &Tied<R>| t.input.len() == t.output.len();
    ensure(inst.tied().is_none_or(is_alike), "as many tied inputs as outputs")
}

fn ensure(holds: bool, expected: &'static str) -> Legal {
    if holds { Ok(()) } else { Err(expected) }
}

fn imm<R>(s: &Src<R>) -> Option<u64> {
    match s {
        Src::Imm(bits) => Some(*bits),
        Src::Reg(_) => None,
    }
}
/// The place and the length of a field of bits.
fn field<R>(pos: &Src<R>, len: &Src<R>) -> Legal {
    let is_byte = |s| imm(s).is_none_or(|v| v < 256);
    ensure(is_byte(pos) && is_byte(len), "a position and a length of at most 255")
}
fn length<T>(list: &[T], n: usize, expected: &'static str) -> Legal {
    ensure(list.len() == n, expected)
}
fn no_halves(bits: u32) -> Legal {
    ensure(bits != 16, "a 32- or 64-bit type")
}
fn no_half_floats(ty: CompareType, expected: &'static str) -> Legal {
    ensure(!matches!(ty, CompareType::F16 | CompareType::BF16), expected)
}
fn global(space: Space) -> Legal {
    ensure(matches!(space, Space::Global | Space::Generic), "global memory")
}
fn reads_nothing(sem: AtomSem) -> Legal {
    ensure(
        matches!(sem, AtomSem::Relaxed | AtomSem::Release),
        "relaxed or release semantics: nothing is read",
    )
}
/// Columns of tensor memory, of an allocation.
fn tmem_columns<R>(n: &Src<R>) -> Legal {
    let is_size = |n: u64| n.is_power_of_two() && (32..=512).contains(&n);
    ensure(imm(n).is_none_or(is_size), "a power of two of columns from 32 to 512")
}
fn tmem_words(shape: TmemShape, times: i64, words: usize) -> Legal {
    let fits = (1..=128).contains(&times) && times.count_ones() == 1 && words == times as usize * shape.once().0;
    ensure(
        fits && words <= 128,
        "a power of two times the shape, of at most 128 registers, all listed",
    )
}
fn matrices(n: usize) -> Legal {
    ensure(matches!(n, 1 | 2 | 4), "1, 2 or 4 matrices")
}
fn named_barrier<R>(id: &Src<R>) -> Legal {
    ensure(imm(id).is_none_or(|id| id < 16), "a barrier from 0 to 15")
}
fn whole_warps<R>(threads: &Src<R>) -> Legal {
    ensure(imm(threads).is_none_or(|n| n > 0 && n % 32 == 0), "whole warps")
}
fn is_parity<R>(parity: &Src<R>) -> Legal {
    ensure(imm(parity).is_none_or(|p| p < 2), "a parity of 0 or 1")
}
/// An arrival that no other row has.
fn arrival_of_own(op: MbarrierOp, own: bool) -> Legal {
    ensure(op != MbarrierOp::Arrive || own, "an arrival of another form")
}
fn bulk<R>(bytes: &Src<R>) -> Legal {
    ensure(
        imm(bytes).is_none_or(|n| n % 16 == 0 && n <= MAX_BULK_BYTES.into()),
        "a multiple of 16 bytes, 1048560 at most",
    )
}
fn place(selector: i64, places: i64) -> Legal {
    ensure(
        (0..places).contains(&selector),
        match places {
            1 => "a sparsity selector of 0: all lanes have metadata",
            2 => "a sparsity selector of 0 or 1: which two of each four lanes have metadata",
            _ => "a sparsity selector from 0 to 3: which of each four lanes has metadata",
        },
    )
}
/// Whole lines of the L2 cache's sectors where L1 is passed by.
fn copied(cache: CopyCache, bytes: i64) -> Legal {
    match cache {
        CopyCache::Ca => ensure(matches!(bytes, 4 | 8 | 16), "4, 8 or 16 bytes"),
        CopyCache::Cg => ensure(bytes == 16, "16 bytes"),
    }
}
fn signs(a: i64, b: i64) -> Legal {
    ensure(a.abs() == 1 && b.abs() == 1, "1 or −1")
}

fn is_wide(ty: FloatType) -> bool {
    match ty {
        FloatType::F32 | FloatType::F64 => true,
        FloatType::F16 | FloatType::F16x2 | FloatType::BF16 | FloatType::BF16x2 => false,
    }
}

/// Sums and products of floats.
fn rounds(rnd: Round, ftz: Ftz, ty: FloatType) -> Legal {
    ensure(rnd == Round::Rn || is_wide(ty), "nearest even for 16-bit floats").and(flushes(ftz, ty))
}

fn flushed(ftz: Ftz, can: bool, expected: &'static str) -> Legal {
    ensure(ftz == Ftz::No || can, expected)
}

fn flushes(ftz: Ftz, ty: FloatType) -> Legal {
    let can = match ty {
        FloatType::F16 | FloatType::F16x2 | FloatType::F32 => true,
        FloatType::BF16 | FloatType::BF16x2 | FloatType::F64 => false,
    };
    flushed(ftz, can, "subnormals flushed for f16 and f32 only")
}

/// Bytes of a thread's own memory (CUDA C Programming Guide, technical specifications: 512 KB).
pub const MAX_LOCAL_BYTES: i64 = 512 * 1024;

fn local(words: usize, at: i64) -> Legal {
    vector(words, MemType::B32)?;
    let bytes = 4 * words as i64;
    ensure(
        (0..=MAX_LOCAL_BYTES - bytes).contains(&at) && at % bytes == 0,
        "an aligned place in the thread's own memory",
    )
}

/// Vectors are 1, 2 or 4 elements and at most 16 bytes (32 need sm_100).
fn vector(n: usize, ty: MemType) -> Legal {
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

fn cvt(rnd: CvtRound, ftz: Ftz, sat: Sat, to: CvtType, from: CvtType) -> Legal {
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

fn setp(cmp: Compare, ftz: Ftz, ty: CompareType) -> Legal {
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
fn saturates(sat: SatFinite, ty: MmaTypes) -> Legal {
    ensure(
        sat == SatFinite::No || ty.is_integer(),
        "saturation of sums of integers only",
    )
}
/// Lengths of A, B, C and D.
fn fragments(of: MmaFragments, lengths: [usize; 4]) -> Legal {
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

fn half_acc(ty: WgmmaTypes, acc: AccType) -> Legal {
    let has = match acc {
        AccType::F32 => matches!(ty, WgmmaTypes::F16 | WgmmaTypes::BF16),
        AccType::F16 => ty == WgmmaTypes::F16,
        AccType::S32 => false,
    };
    ensure(has, "f32 accumulators, or f16 ones of f16 operands")
}
fn float_acc(ty: WgmmaTypes, acc: AccType, k: i64, sparse: bool) -> Legal {
    let times = if sparse { 2 } else { 1 };
    let has = match ty {
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
    };
    ensure(
        has,
        "tf32 with k = 8, or fp8 with k = 32; of sparse products twice as much",
    )
}
/// All four lanes of a quad give the metadata of 8-bit types, two of them that of wider ones.
fn selector(ty: WgmmaTypes, sel: i64) -> Legal {
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
fn bytes_acc(ty: WgmmaTypes) -> Legal {
    let types = [WgmmaTypes::S8S8, WgmmaTypes::S8U8, WgmmaTypes::U8S8, WgmmaTypes::U8U8];
    ensure(types.contains(&ty), "8-bit integers")
}

/// Columns are multiples of 8 up to 256 (for integers 8, 24 or multiples of 16); a warpgroup holds 64·n accumulators
/// in 128 lanes.
fn wgmma<R>(n: i64, acc_ty: AccType, acc: &Tied<R>, a: usize) -> Legal {
    let columns = (8..=256).contains(&n)
        && match acc_ty {
            AccType::F32 | AccType::F16 => n % 8 == 0,
            AccType::S32 => n == 8 || n == 24 || n % 16 == 0,
        };
    ensure(columns, "columns: a multiple of 8 (integers: 8, 24 or of 16) up to 256")?;
    let per_register = match acc_ty {
        AccType::F32 | AccType::S32 => 1,
        AccType::F16 => 2,
    };
    ensure(
        acc.output.len() as i64 * 2 * per_register == n,
        "64·n accumulators over the 128 lanes of a warpgroup",
    )?;
    ensure(a == 4, "four registers of A")
}
