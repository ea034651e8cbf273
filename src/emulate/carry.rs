//! Sums and differences over several words, with a carry in each lane's condition code.
use super::check::Hooks;
use super::machine::Machine;
use super::row::Lane;
use super::uop::{Body, Flow, Step, Uop};
use super::warp::{Warp, lanes};
use crate::ptx::modifier::{Carries, CarryMad, CarryOp, Modifier};
use std::marker::PhantomData;

/// Words that carries go between.
pub trait Word: Lane {
    const BITS: u32;
    fn bits(raw: Self::Raw) -> u64;
    fn of_bits(bits: u64) -> Self::Raw;
}
impl Word for u32 {
    const BITS: u32 = 32;
    fn bits(raw: u32) -> u64 {
        raw.into()
    }
    fn of_bits(bits: u64) -> u32 {
        bits as u32
    }
}
impl Word for u64 {
    const BITS: u32 = 64;
    fn bits(raw: u64) -> u64 {
        raw
    }
    fn of_bits(bits: u64) -> u64 {
        bits
    }
}

/// `a + b`, or `a - b`, and what is carried, of words of so many bits.
fn step(carries: Carries, bits: u32, a: u64, b: u64, carry: bool) -> (u64, bool) {
    let taken = u128::from(carries.takes && carry);
    let (a, b) = (u128::from(a), u128::from(b));
    let sum = match carries.borrows {
        true => a.wrapping_sub(b).wrapping_sub(taken),
        false => a + b + taken,
    };
    ((sum & (u128::MAX >> (128 - bits))) as u64, sum >> bits & 1 == 1)
}

fn sign_extended(bits: u32, a: u64) -> i128 {
    i128::from((a << (64 - bits)) as i64 >> (64 - bits))
}

/// A half of a product.
fn half(is_high: bool, is_signed: bool, bits: u32, a: u64, b: u64) -> u64 {
    let product = match is_signed {
        true => (sign_extended(bits, a) * sign_extended(bits, b)) as u128,
        false => u128::from(a) * u128::from(b),
    };
    let half = if is_high { product >> bits } else { product };
    (half & (u128::MAX >> (128 - bits))) as u64
}

/// `imm`: the [`CarryOp`] by its position.
pub struct CarrySum<T>(PhantomData<T>);
impl<T: Word, H: Hooks> Body<H> for CarrySum<T> {
    #[inline(never)]
    fn run(w: &mut Warp, _: &mut Machine<'_, H>, u: &Uop<H>) -> Step {
        let carries = CarryOp::ALL[u.imm as usize].carries();
        each::<T, H>(w, u, carries, [u.a, u.b, u.b], |a, b, _| (a, b))
    }
}

/// `imm`: the [`CarryMad`] by its position, `aux` 1: signed.
pub struct CarryProduct<T>(PhantomData<T>);
impl<T: Word, H: Hooks> Body<H> for CarryProduct<T> {
    #[inline(never)]
    fn run(w: &mut Warp, _: &mut Machine<'_, H>, u: &Uop<H>) -> Step {
        let op = CarryMad::ALL[u.imm as usize];
        let is_signed = u.aux == 1;
        each::<T, H>(w, u, op.carries(), [u.a, u.b, u.c], |a, b, c| {
            (half(op.is_high(), is_signed, T::BITS, a, b), c)
        })
    }
}

fn each<T: Word, H: Hooks>(
    w: &mut Warp,
    u: &Uop<H>,
    carries: Carries,
    operands: [u16; 3],
    terms: impl Fn(u64, u64, u64) -> (u64, u64),
) -> Step {
    let mut out = [T::Raw::default(); 32];
    let mut carry = w.carry;
    {
        let [a, b, c] = operands.map(|operand| w.read::<T>(operand));
        for lane in lanes(w.exec) {
            let (x, y) = terms(T::bits(a[lane]), T::bits(b[lane]), T::bits(c[lane]));
            let (sum, carried) = step(carries, T::BITS, x, y, carry >> lane & 1 == 1);
            out[lane] = T::of_bits(sum);
            if carries.leaves {
                carry = carry & !(1 << lane) | u32::from(carried) << lane;
            }
        }
    }
    w.carry = carry;
    w.write::<T>(u.d, out);
    Ok(Flow::Next)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn carries_and_borrows() {
        let sum = |bits, a, b, carry| step(CarryOp::AddcCc.carries(), bits, a, b, carry);
        let difference = |bits, a, b, carry| step(CarryOp::SubcCc.carries(), bits, a, b, carry);
        assert_eq!(sum(32, 0xffff_ffff, 0, true), (0, true));
        assert_eq!(sum(32, 0xffff_fffe, 0, true), (0xffff_ffff, false));
        assert_eq!(sum(64, u64::MAX, u64::MAX, true), (u64::MAX, true));
        assert_eq!(difference(32, 0, 0, true), (0xffff_ffff, true));
        assert_eq!(difference(64, 5, 5, false), (0, false));
        assert_eq!(difference(64, 0, u64::MAX, true), (0, true));
        assert_eq!(step(CarryOp::AddCc.carries(), 32, 1, 1, true), (2, false));
    }

    #[test]
    fn halves_of_products() {
        assert_eq!(half(true, true, 32, 0xffff_ffff, 2), 0xffff_ffff);
        assert_eq!(half(true, false, 32, 0xffff_ffff, 2), 1);
        assert_eq!(half(false, true, 32, 0xffff_ffff, 2), 0xffff_fffe);
        assert_eq!(half(true, true, 64, u64::MAX, u64::MAX), 0);
        assert_eq!(half(true, false, 64, u64::MAX, u64::MAX), u64::MAX - 1);
    }
}
