//! What the lanes of a warp do with each other, and what a thread does that is seen outside: checks, prints, marks, sleeps, ends.
use super::Hooks;
use super::decoder::{Decoder, List, NONE, Operands, micro_ops};
use crate::emulate::control::*;
use crate::emulate::index::{CheckIndex, IndexCheck, Unknown};
use crate::emulate::printer::PrintReserve;
use crate::emulate::profile::{ProfileEnd, ProfileMark, ProfileStart};
use crate::emulate::sync::SetRegisters;
use crate::error::{Error, Result};
use crate::ptx::integer::by;
use crate::ptx::modifier::*;
use std::sync::Arc;

/// A vote whose result is the lanes.
const BALLOT: u32 = VoteMode::ALL.len() as u32;

impl<H: Hooks> Decoder<'_, H> {
    pub fn shfl_pred(&mut self, mode: ShuffleMode, d: u16, p: u16, a: u16, b: u16, c: u16, members: u16) {
        let masks = u32::from(members) | u32::from(p) << 16;
        self.emit::<ShuffleMasked>(NONE.d(d).a(a).b(b).c(c).imm(masks as i32).aux(mode as u32));
    }
    pub fn shfl_masked(&mut self, mode: ShuffleMode, d: u16, a: u16, b: u16, c: u16, members: u16) {
        self.shfl_pred(mode, d, NO_PREDICATE, a, b, c, members);
    }
    pub fn elect_masked(&mut self, d: u16, members: u16) {
        self.elect_leader(NO_PREDICATE, d, members);
    }
    fn matches(&mut self, ty: WordType, d: u16, p: u16, a: u16, members: u16, all: i32) {
        by!(WordType ty, T => self.emit::<Match<T>>(NONE.d(d).a(a).b(members).c(p).imm(all)));
    }
    pub fn match_any(&mut self, ty: WordType, d: u16, a: u16, members: u16) {
        self.matches(ty, d, NO_PREDICATE, a, members, 0);
    }
    pub fn match_all(&mut self, ty: WordType, d: u16, a: u16, members: u16) {
        self.matches(ty, d, NO_PREDICATE, a, members, 1);
    }
    pub fn match_all_pred(&mut self, ty: WordType, d: u16, p: u16, a: u16, members: u16) {
        self.matches(ty, d, p, a, members, 1);
    }
    pub fn set_max_reg(&mut self, _: RegCount, n: i64) -> Result<()> {
        if !(24..=256).contains(&n) || n % 8 != 0 {
            return Err(Error::internal("setmaxnreg")
                .expected("24 to 256 in steps of 8")
                .got(n.to_string()));
        }
        self.program.reallocates = true;
        self.emit::<SetRegisters>(NONE.imm(n as i32));
        Ok(())
    }

    pub fn check_index(&mut self, ty: IntType, of: Indexed, i: u16, size: i64, extent: i64, dim: i64, place: i64) {
        self.emit::<CheckIndex>(NONE.a(i).aux(self.program.checks.len() as u32));
        self.program.checks.push(IndexCheck {
            ty,
            of,
            place,
            dim,
            size,
            extent,
        });
    }
    pub fn unchecked(&mut self, _: Lanes, _: i64, unknown: &Arc<str>, _: &Arc<str>, _: List, _: List) {
        self.emit::<Unknown>(NONE.aux(self.program.unknown.len() as u32));
        self.program.unknown.push(unknown.clone());
    }
}

micro_ops! {
    shfl(mode: ShuffleMode, d: u16, a: u16, b: u16, c: u16, mask: i64) = Shuffle { d, a, b, c, imm: mask as i32, aux: mode as u32 };
    vote(mode: VoteMode, d: u16, a: u16, mask: i64) = Vote { d, a, imm: mask as i32, aux: mode as u32 };
    ballot(d: u16, a: u16, mask: i64) = Vote { d, a, imm: mask as i32, aux: BALLOT };
    vote_masked(mode: VoteMode, d: u16, a: u16, members: u16) = VoteMasked { d, a, b: members, aux: mode as u32 };
    ballot_masked(d: u16, a: u16, members: u16) = VoteMasked { d, a, b: members, aux: BALLOT };
    redux(op: ReduxOp, d: u16, a: u16, mask: i64) = Redux { d, a, imm: mask as i32, aux: op as u32 };
    redux_masked(op: ReduxOp, d: u16, a: u16, members: u16) = ReduxMasked { d, a, b: members, aux: op as u32 };
    elect(d: u16, mask: i64) = Elect { d, imm: mask as i32 };
    elect_leader(d: u16, p: u16, members: u16) = ElectMasked { d: p, a: d, b: members };
    activemask(d: u16) = ActiveMask { d };
    movmatrix(d: u16, a: u16) = MoveMatrix { d, a };
    bar_warp(mask: i64) = WarpBarrier { imm: mask as i32 };
    bar_warp_masked(members: u16) = WarpBarrierMasked { a: members };
    nanosleep(_: u16) = Sleep {};
    trap() = Trap {};
    print_reserve(d: u16, printer: u16, weight: u16, bytes: i64) = PrintReserve { d, a: printer, b: weight, aux: bytes as u32 };
    profile_start(at: u16, n: u16) = ProfileStart { a: at, b: n };
    profile_mark(tag: i64, marks: i64) = ProfileMark { imm: marks as i32, aux: tag as u32 };
    profile_end() = ProfileEnd {};
    // A wait that takes too long is the run's error (`bounded`), so that no block ever has given up.
    give_up(_: u16, _: u16, _: u16, _: i64) = Trap {};
    give_up_begin(_: i64) = Nothing {};
    leave_if_block_gave_up(_: Drain, _: i64) = Nothing {};
    leave_if_any_gave_up(_: Drain, _: u16, _: i64) = Nothing {};
    give_up_end(_: i64, _: LeftRegisters, _: LeftCopies, _: MbarrierAsk, _: EndsWith, _: i64, _: i64) = Nothing {};
}
