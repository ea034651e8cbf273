//! Chains of digits: the one representation under every layout.
//!
//! A *chain* writes an index as a mixed radix number, minor digit first. Digit `k` has a `size`, and its stride in
//! the index is implied: the product of the sizes before it. So a chain is a bijection between `0..∏size` and tuples of
//! digit values; what it *means* is in each digit's `place` (a lane bit, a slot, a stride in shared memory).
//!
//! Three operations carry the whole algebra:
//! * [`split`]: cut a chain at an index stride; legal when the cut falls between digits or divides the digit it hits;
//! * [`merge`]: join neighbours whose places continue each other; merging as far as possible is a normal form, because
//!   two chains describe the same map exactly if their maximally merged forms are equal;
//! * [`refine`]: the coarsest chain that both arguments can be cut into, when their cuts form one divisibility chain.
use smallvec::SmallVec;

/// Where a digit lives. Cutting a digit of size `a·b` in two leaves the minor part (size `a`) at the same place and
/// the major part at `place.above(a)`.
pub trait Place: Copy + PartialEq {
    /// The place of the part of a digit that counts in units of `size`.
    fn above(self, size: u64) -> Self;
    /// Whether a digit here may be cut into a minor part of `size` (bit positions only admit powers of two).
    fn cuttable(self, size: u64) -> bool;
}

/// One digit of a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Digit<P> {
    pub size: u64,
    pub place: P,
}

pub type Chain<P> = SmallVec<[Digit<P>; 6]>;

impl<P> Digit<P> {
    pub fn new(size: u64, place: P) -> Self {
        Digit { size, place }
    }
}

/// Quotient and remainder. Nearly all sizes are powers of two, and layouts divide a lot: a shift takes a tenth of a division.
pub fn div_rem(i: u64, size: u64) -> (u64, u64) {
    if size.is_power_of_two() {
        (i >> size.trailing_zeros(), i & (size - 1))
    } else {
        (i / size, i % size)
    }
}

/// The number of indices that a chain covers.
pub fn extent<P>(chain: &[Digit<P>]) -> u64 {
    chain.iter().map(|d| d.size).product()
}

/// Drops unit digits and joins neighbours that continue each other.
pub fn merge<P: Place>(chain: &[Digit<P>]) -> Chain<P> {
    let mut out: Chain<P> = Chain::new();
    for d in chain.iter().filter(|d| d.size != 1) {
        match out.last_mut() {
            Some(low) if low.place.above(low.size) == d.place && low.place.cuttable(low.size) => low.size *= d.size,
            _ => out.push(*d),
        }
    }
    out
}

/// Cuts a chain at index stride `at`: the digits below and the digits above. `None` if the cut goes through a digit
/// that it does not divide.
pub fn split<P: Place>(chain: &[Digit<P>], at: u64) -> Option<(Chain<P>, Chain<P>)> {
    let (mut low, mut high) = (Chain::new(), Chain::new());
    let mut below = 1;
    for d in chain {
        if below >= at {
            high.push(*d);
        } else if at.is_multiple_of(below * d.size) {
            low.push(*d);
        } else {
            let part = at / below;
            if !at.is_multiple_of(below) || d.size % part != 0 || !d.place.cuttable(part) {
                return None;
            }
            low.push(Digit::new(part, d.place));
            high.push(Digit::new(d.size / part, d.place.above(part)));
        }
        below *= d.size;
    }
    (below >= at).then_some((low, high))
}

/// One digit of a common refinement of two chains.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pair<A, B> {
    pub size: u64,
    pub a: A,
    pub b: B,
}

/// The coarsest common refinement of two chains of the same extent; `None` when their cuts do not divide each other.
pub fn refine<A: Place, B: Place>(a: &[Digit<A>], b: &[Digit<B>]) -> Option<SmallVec<[Pair<A, B>; 8]>> {
    let mut out = SmallVec::new();
    let (mut ia, mut ib) = (
        a.iter().copied().filter(|d| d.size > 1),
        b.iter().copied().filter(|d| d.size > 1),
    );
    let (mut da, mut db) = (ia.next(), ib.next());
    loop {
        match (da, db) {
            (None, None) => return Some(out),
            (Some(x), Some(y)) => {
                let size = x.size.min(y.size);
                if x.size % size != 0 || y.size % size != 0 {
                    return None;
                }
                let rest = |d: u64| d / size;
                if (rest(x.size) > 1 && !x.place.cuttable(size)) || (rest(y.size) > 1 && !y.place.cuttable(size)) {
                    return None;
                }
                out.push(Pair {
                    size,
                    a: x.place,
                    b: y.place,
                });
                da = match rest(x.size) {
                    1 => ia.next(),
                    n => Some(Digit::new(n, x.place.above(size))),
                };
                db = match rest(y.size) {
                    1 => ib.next(),
                    n => Some(Digit::new(n, y.place.above(size))),
                };
            }
            _ => return None,
        }
    }
}
