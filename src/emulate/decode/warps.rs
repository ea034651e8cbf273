//! What the lanes of a warp do with each other, and what a thread does that is seen outside: checks, prints, marks, sleeps, ends.
use super::Hooks;
use super::decoder::{Decoder, List, NONE};
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
    pub fn shfl(&mut self, mode: ShuffleMode, d: u16, a: u16, b: u16, c: u16, mask: i64) {
        self.emit::<Shuffle>(NONE.d(d).a(a).b(b).c(c).imm(mask as i32).aux(mode as u32));
    }
    pub fn shfl_pred(&mut self, mode: ShuffleMode, d: u16, p: u16, a: u16, b: u16, c: u16, members: u16) {
        let masks = u32::from(members) | u32::from(p) << 16;
        self.emit::<ShuffleMasked>(NONE.d(d).a(a).b(b).c(c).imm(masks as i32).aux(mode as u32));
    }
    pub fn shfl_masked(&mut self, mode: ShuffleMode, d: u16, a: u16, b: u16, c: u16, members: u16) {
        self.shfl_pred(mode, d, NO_PREDICATE, a, b, c, members);
    }
    pub fn vote(&mut self, mode: VoteMode, d: u16, a: u16, mask: i64) {
        self.emit::<Vote>(NONE.d(d).a(a).imm(mask as i32).aux(mode as u32));
    }
    pub fn ballot(&mut self, d: u16, a: u16, mask: i64) {
        self.emit::<Vote>(NONE.d(d).a(a).imm(mask as i32).aux(BALLOT));
    }
    pub fn vote_masked(&mut self, mode: VoteMode, d: u16, a: u16, members: u16) {
        self.emit::<VoteMasked>(NONE.d(d).a(a).b(members).aux(mode as u32));
    }
    pub fn ballot_masked(&mut self, d: u16, a: u16, members: u16) {
        self.emit::<VoteMasked>(NONE.d(d).a(a).b(members).aux(BALLOT));
    }
    pub fn redux(&mut self, op: ReduxOp, d: u16, a: u16, mask: i64) {
        self.emit::<Redux>(NONE.d(d).a(a).imm(mask as i32).aux(op as u32));
    }
    pub fn redux_masked(&mut self, op: ReduxOp, d: u16, a: u16, members: u16) {
        self.emit::<ReduxMasked>(NONE.d(d).a(a).b(members).aux(op as u32));
    }
    pub fn elect(&mut self, d: u16, mask: i64) {
        self.emit::<Elect>(NONE.d(d).imm(mask as i32));
    }
    pub fn elect_masked(&mut self, d: u16, members: u16) {
        self.elect_leader(NO_PREDICATE, d, members);
    }
    pub fn elect_leader(&mut self, d: u16, p: u16, members: u16) {
        self.emit::<ElectMasked>(NONE.d(p).a(d).b(members));
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
    pub fn activemask(&mut self, d: u16) {
        self.emit::<ActiveMask>(NONE.d(d));
    }
    pub fn movmatrix(&mut self, d: u16, a: u16) {
        self.emit::<MoveMatrix>(NONE.d(d).a(a));
    }
    pub fn bar_warp(&mut self, mask: i64) {
        self.emit::<WarpBarrier>(NONE.imm(mask as i32));
    }
    pub fn bar_warp_masked(&mut self, members: u16) {
        self.emit::<WarpBarrierMasked>(NONE.a(members));
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
    pub fn nanosleep(&mut self, _: u16) {
        self.emit::<Sleep>(NONE);
    }
    pub fn trap(&mut self) {
        self.emit::<Trap>(NONE);
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
    pub fn print_reserve(&mut self, d: u16, printer: u16, weight: u16, bytes: i64) {
        self.emit::<PrintReserve>(NONE.d(d).a(printer).b(weight).aux(bytes as u32));
    }
    pub fn profile_start(&mut self, at: u16, n: u16) {
        self.emit::<ProfileStart>(NONE.a(at).b(n));
    }
    pub fn profile_mark(&mut self, tag: i64, marks: i64) {
        self.emit::<ProfileMark>(NONE.imm(marks as i32).aux(tag as u32));
    }
    pub fn profile_end(&mut self) {
        self.emit::<ProfileEnd>(NONE);
    }

    // A wait that takes too long is the run's error (`bounded`), so that no block ever has given up.
    pub fn give_up_begin(&mut self, _: i64) {
        self.nothing();
    }
    pub fn give_up(&mut self, _: u16, _: u16, _: u16, _: i64) {
        self.trap();
    }
    pub fn leave_if_block_gave_up(&mut self, _: Drain, _: i64) {
        self.nothing();
    }
    pub fn leave_if_any_gave_up(&mut self, _: Drain, _: u16, _: i64) {
        self.nothing();
    }
    pub fn give_up_end(&mut self, _: i64, _: LeftRegisters, _: EndsWith, _: i64, _: i64) {
        self.nothing();
    }
}
