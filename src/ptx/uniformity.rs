//! What instructions say about the equality of their results across threads.
use super::inst::{Effects, Inst};
use super::modifier::*;
use super::operand::*;
use super::ssa::{Uniform, Value};

/// The uniformity of `inst`'s results that follows from its operands.
///
/// `Known` holds for every execution; `Claim(at_least)` marks instructions of which lowering may know more (a load of
/// memory that nothing else writes, a broadcast from a fixed lane).
pub enum Derived {
    Known(Uniform),
    Claim(Uniform),
}

/// Full mask of `shfl`, `vote`, ….
const ALL_LANES: i64 = 0xffff_ffff;

/// Of instructions with carries.
pub fn carries<R>(inst: &Inst<R>) -> Option<Carries> {
    match inst {
        Inst::CarryOp { op, .. } => Some(op.carries()),
        Inst::CarryMad { op, .. } => Some(op.carries()),
        _ => None,
    }
}

pub fn derive(inst: &Inst<Value>, of: impl Fn(Value) -> Uniform) -> Derived {
    let mut operands = Uniform::Cta;
    inst.for_each_use(|v, _| operands = operands.min(of(v)));
    match inst {
        Inst::MovSpecial32 { reg, .. } => Derived::Known(match reg.reader() {
            Reader::Lane | Reader::Clock => Uniform::Thread,
            Reader::Block => Uniform::Cta,
        }),
        Inst::Shfl {
            mode: ShuffleMode::Idx,
            b: Src::Imm(_),
            c: Src::Imm(31),
            mask: ALL_LANES,
            ..
        } => Derived::Claim(operands.max(Uniform::Warp)),
        Inst::Shfl { .. } => Derived::Claim(operands),
        Inst::Vote { mask: ALL_LANES, .. }
        | Inst::PrintReserve { .. }
        | Inst::Ballot { mask: ALL_LANES, .. }
        | Inst::Redux { mask: ALL_LANES, .. } => Derived::Known(Uniform::Warp),
        Inst::MatchAll {
            members: Src::Imm(0xffff_ffff),
            ..
        }
        | Inst::MatchAllPred {
            members: Src::Imm(0xffff_ffff),
            ..
        } => Derived::Known(Uniform::Warp),
        // All threads of the block are given the same.
        Inst::BarRedAll { .. } | Inst::BarRedPopcAll { .. } => Derived::Known(Uniform::Cta),
        Inst::MovSpecialPred { .. } => Derived::Known(Uniform::Cta),
        Inst::Elect { .. } => Derived::Known(Uniform::Thread),
        _ if inst.effects().is_pure() => Derived::Known(operands),
        _ if inst.effects().contains(Effects::VOLATILE) => Derived::Known(Uniform::Thread),
        _ => Derived::Claim(Uniform::Thread),
    }
}
