//! What stands for an instruction on a machine that has not the [part](crate::target::Features) that it needs: others, with the same results.
//!
//! | instruction | others |
//! |---|---|
//! | `elect` | the lowest lane of the mask, by its number |
//! | sums, differences, products of bf16 | `fma` of bf16: by 1 or −1, or plus −0; each rounds once, and zeros have the same signs |
//! | comparisons of bf16 | comparisons of f32, which holds the same numbers |
//! | conversions of bf16 to all others and from f16, functions of bf16 | the same of f32, then rounded |
//! | arithmetic on pairs of 16-bit integers | on both halves |
//! | `stmatrix` | a store of each word, to a row whose address another lane has |
//!
//! What is not here is the user's error ([`crate::ptx::requirements`]).
use super::emit::ALL_LANES;
use crate::ptx::build::{Builder, Operand};
use crate::ptx::inst::Inst;
use crate::ptx::modifier::*;
use crate::ptx::operand::{Addr, Class, Src};
use crate::ptx::ssa::Value;
use smallvec::{SmallVec, smallvec};

/// What the instruction defines, made by others; `None`: there are none that do it.
pub fn run(b: &mut Builder, inst: &Inst<Value>) -> Option<SmallVec<[Value; 4]>> {
    let (made, class) = match *inst {
        Inst::Elect { mask, .. } => {
            let lane = b.lane();
            let lowest = (mask as u32).trailing_zeros();
            (
                b.setp(Compare::Eq, CompareType::U32, lane, Src::u32(lowest)),
                Class::Pred,
            )
        }
        Inst::ElectMasked { members, .. } => (elect(b, members.into()).1, Class::Pred),
        Inst::ElectLeader { members, .. } => {
            let (leader, is_leader) = elect(b, members);
            return Some(smallvec![b.value(leader, Class::B32), b.value(is_leader, Class::Pred)]);
        }
        Inst::AddFloat { ty, a, b: c, .. } => fma(b, ty, a, by(ty, ONE)?, c),
        Inst::SubFloat { ty, a, b: c, .. } => fma(b, ty, c, by(ty, ONE | SIGN)?, a),
        Inst::MulFloat { ty, a, b: c, .. } => fma(b, ty, a, c, by(ty, SIGN)?),
        Inst::Setp {
            cmp,
            ty: CompareType::BF16,
            a,
            b: c,
            ..
        } => {
            let (x, y) = (widened(b, a), widened(b, c));
            (b.setp(cmp, CompareType::F32, x, y), Class::Pred)
        }
        Inst::Cvt {
            rnd,
            ftz: Ftz::No,
            sat: Sat::No,
            to,
            from: CvtType::BF16,
            a,
            ..
        } => {
            let x = widened(b, Src::Reg(a));
            match to {
                CvtType::F32 => (x, Class::B32),
                // To an integral value: exact, and so is what follows.
                CvtType::BF16 => {
                    let x = b.cvt(CvtType::F32, CvtType::F32, rnd, x);
                    (b.cvt(CvtType::BF16, CvtType::F32, CvtRound::Rn, x), Class::B16)
                }
                _ => (b.cvt(to, CvtType::F32, rnd, x), to.slot().class),
            }
        }
        Inst::Cvt {
            rnd,
            ftz: Ftz::No,
            sat: Sat::No,
            to: CvtType::BF16,
            from: CvtType::F16,
            a,
            ..
        } => {
            let x = b.cvt(CvtType::F32, CvtType::F16, CvtRound::None, a.into());
            (b.cvt(CvtType::BF16, CvtType::F32, rnd, x), Class::B16)
        }
        Inst::Stmatrix { trans, addr, ref a } => {
            store_matrices(b, trans, addr, a);
            return Some(smallvec![]);
        }
        Inst::Mufu16 { op, a, .. } => return unary(b, op, a),
        Inst::AddPair { a, b: c, .. } => halves(b, [a.into(), c.into()], |b, [x, y]| b.add(IntType::U16, x, y)),
        Inst::MinMaxPair { op, ty, a, b: c, .. } => {
            let ty = match ty {
                PairIntType::U16x2 => IntType::U16,
                PairIntType::S16x2 => IntType::S16,
            };
            halves(b, [a.into(), c.into()], |b, [x, y]| {
                b.emit(Inst::min_max_int(op, ty, Value::NEW, x, y))
            })
        }
        Inst::MinMaxRelu { op, ty, a, b: c, .. } => {
            let relu = |b: &mut Builder, ty, x, y| {
                let found = b.emit(Inst::min_max_int(op, ty, Value::NEW, x, y));
                b.emit(Inst::min_max_int(MinMax::Max, ty, Value::NEW, found, Src::Imm(0)))
            };
            match ty {
                ReluIntType::S32 => (relu(b, IntType::S32, a, c), Class::B32),
                ReluIntType::S16x2 => halves(b, [a, c], |b, [x, y]| relu(b, IntType::S16, x, y)),
            }
        }
        _ => return None,
    };
    Some(smallvec![b.value(made, class)])
}

/// Lane 8·m + r has the address of row r of matrix m, and lane l two elements of row l / 4: a word for its place there.
fn store_matrices(b: &mut Builder, trans: MatrixTrans, addr: Addr<Value>, words: &[Operand]) {
    let rows = b.add(IntType::U32, addr.base, Src::imm32(addr.offset));
    let rows = b.value(rows, Class::B32);
    let lane = b.lane();
    let row = b.shr(ShiftType::U32, lane, Src::u32(2));
    let place = b.and(LogicType::B32, lane, Src::u32(3));
    let place = b.shl(BitType::B32, place, Src::u32(2));
    for (m, word) in words.iter().enumerate() {
        let from = b.add(IntType::U32, row, Src::u32(8 * m as u32));
        let start = b.emit_value(Inst::shfl(
            ShuffleMode::Idx,
            Value::NEW,
            rows,
            from,
            Src::u32(31),
            ALL_LANES,
        ));
        let at = b.add(IntType::U32, start, place);
        let at = b.addr(at, 0);
        let word = match trans {
            MatrixTrans::No => *word,
            MatrixTrans::Yes => {
                let a = b.value(*word, Class::B32);
                b.emit_value(Inst::Movmatrix { d: Value::NEW, a }).into()
            }
        };
        b.store(Space::Shared, MemType::B32, at, &[word]);
    }
}

const ONE: u64 = 0x3f80;
const SIGN: u64 = 0x8000;

/// A constant of bf16, twice in a pair.
fn by(ty: FloatType, bits: u64) -> Option<Operand> {
    match ty {
        FloatType::BF16 => Some(Src::Imm(bits)),
        FloatType::BF16x2 => Some(Src::Imm(bits << 16 | bits)),
        FloatType::F16 | FloatType::F16x2 | FloatType::F32 | FloatType::F64 => None,
    }
}

/// As it is: a product by one is not to become a sum again.
fn fma(b: &mut Builder, ty: FloatType, x: Operand, y: Operand, z: Operand) -> (Operand, Class) {
    let made = b.emit_value(Inst::fma(Round::Rn, Ftz::No, ty, Value::NEW, x, y, z));
    (made.into(), ty.slot().class)
}

/// The lowest of the lanes, and whether the executing one is that.
fn elect(b: &mut Builder, members: Operand) -> (Operand, Operand) {
    let lane = b.lane();
    let reversed = b.emit(Inst::Brev {
        ty: WordType::B32,
        d: Value::NEW,
        a: members,
    });
    let leader = b.emit(Inst::Clz {
        ty: WordType::B32,
        d: Value::NEW,
        a: reversed,
    });
    (leader, b.setp(Compare::Eq, CompareType::U32, lane, leader))
}

/// A bf16 as f32.
fn widened(b: &mut Builder, a: Operand) -> Operand {
    b.pack16(Src::Imm(0), a)
}

/// A function of bf16s.
fn unary(b: &mut Builder, op: Unary16, a: Value) -> Option<SmallVec<[Value; 4]>> {
    let of = |b: &mut Builder, x: Operand| {
        let x = widened(b, x);
        let x = b.value(x, Class::B32);
        let made = match op {
            Unary16::Ex2BF16 | Unary16::Ex2BF16x2 => b.mufu(Mufu::Ex2, Ftz::Yes, Src::Reg(x)),
            _ => b.emit(Inst::TanhApprox {
                d: Value::NEW,
                a: Src::Reg(x),
            }),
        };
        b.cvt(CvtType::BF16, CvtType::F32, CvtRound::Rn, made)
    };
    match op {
        Unary16::Ex2BF16 | Unary16::TanhBF16 => {
            let made = of(b, a.into());
            Some(smallvec![b.value(made, Class::B16)])
        }
        Unary16::Ex2BF16x2 | Unary16::TanhBF16x2 => {
            let (made, class) = halves(b, [a.into()], |b, [x]| of(b, x));
            Some(smallvec![b.value(made, class)])
        }
        Unary16::Ex2F16 | Unary16::Ex2F16x2 | Unary16::TanhF16 | Unary16::TanhF16x2 => None,
    }
}

/// Of each half, then packed again.
fn halves<const N: usize>(
    b: &mut Builder,
    pairs: [Operand; N],
    mut of: impl FnMut(&mut Builder, [Operand; N]) -> Operand,
) -> (Operand, Class) {
    let split = pairs.map(|pair| b.unpack16(pair));
    let low = of(b, split.each_ref().map(|half| half[0]));
    let high = of(b, split.each_ref().map(|half| half[1]));
    (b.pack16(low, high), Class::B32)
}
