//! What cache policies and discarded lines ask of their operands. The caches themselves are not emulated.
use super::check::Hooks;
use super::machine::Machine;
use super::uop::{Body, Flow, Step, Uop, fail};
use super::warp::{Warp, lanes};
use crate::error::{Error, Fault};

/// What is left in memory that is discarded.
pub const DISCARDED: u64 = 0xdead_beef;

/// `d` = a policy for the fraction `a` of accesses; `imm` is the priority.
pub struct PolicyOfFraction;
impl<H: Hooks> Body<H> for PolicyOfFraction {
    #[inline(never)]
    fn run(w: &mut Warp, _: &mut Machine<'_, H>, u: &Uop<H>) -> Step {
        for lane in lanes(w.exec) {
            let fraction = f32::from_bits(w.read::<u32>(u.a)[lane]);
            if !(fraction > 0.0 && fraction <= 1.0) {
                let error = Error::new(Fault::Execution, "a cache policy for a fraction of accesses")
                    .expected("more than 0 and at most 1")
                    .got(fraction.to_string());
                return fail(error);
            }
        }
        give(w, u)
    }
}

/// `d` = a policy for the first `b` of `c` bytes.
pub struct PolicyOfRange;
impl<H: Hooks> Body<H> for PolicyOfRange {
    #[inline(never)]
    fn run(w: &mut Warp, _: &mut Machine<'_, H>, u: &Uop<H>) -> Step {
        for lane in lanes(w.exec) {
            let (primary, total) = (w.read::<u32>(u.b)[lane], w.read::<u32>(u.c)[lane]);
            if primary > total {
                let error = Error::new(Fault::Execution, "a cache policy for a range of addresses")
                    .expected("no more bytes in the first part than in all")
                    .got(format!("{primary} of {total}"));
                return fail(error);
            }
        }
        give(w, u)
    }
}

/// PTX says nothing of a policy's bits.
fn give<H: Hooks>(w: &mut Warp, u: &Uop<H>) -> Step {
    w.write::<u64>(u.d, [1 << 60 | (u.imm as u64) << 52; 32]);
    Ok(Flow::Next)
}

/// Whether the lanes' addresses, `a` and `imm`, begin lines.
pub struct OfLines;
impl<H: Hooks> Body<H> for OfLines {
    #[inline(never)]
    fn run(w: &mut Warp, m: &mut Machine<'_, H>, u: &Uop<H>) -> Step {
        for lane in lanes(w.exec) {
            let address = w.read::<u64>(u.a)[lane].wrapping_add(i64::from(u.imm) as u64);
            if !address.is_multiple_of(128) {
                let error = Error::new(Fault::Execution, "discard of what is no line of 128 bytes")
                    .expected("an address that is a multiple of 128")
                    .got(m.memory.describe(address));
                return fail(error);
            }
        }
        Ok(Flow::Next)
    }
}
