//! Addresses of a thread, split into what is computed once and what becomes an immediate.
//!
//! A planner has, for every access, a linear byte offset `origin + T + C`: `origin` is the allocation's address plus the
//! view's dynamic terms, `T` a sum of lane and warp terms, `C` a constant. After the swizzle `s` the address is
//! `s(origin + T + C)`. When origin is a multiple of the swizzle's period and `T` and `C` share no bits below it (no
//! carries), `s` is linear over GF(2): `s(T + C) = s(T) ^ s(C)`, and of `s(C)` only the bits that `s(T)` can have need an
//! XOR; all others are added, i.e. they are immediates. So a few *bases* are computed per thread, and every access is a
//! base plus an immediate.
use super::facts::DynTerm;
use super::register_layout::Term;
use super::smem_layout::Swizzle;
use smallvec::SmallVec;

/// How bases are computed. `T` is the sum of the terms, `origin` the allocation's address plus the dynamic terms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fold {
    /// `base[k] = origin + (swizzle(T) ^ bases[k])`
    Linear,
    /// `base[k] = swizzle(origin + T + bases[k])`
    Absolute,
}

/// The addresses of a plan: access (base `k`, immediate `i`) is at byte `base[k] + i`.
#[derive(Clone, Debug, PartialEq)]
pub struct AddressPlan {
    /// Of the allocation or buffer, strides in bytes.
    pub dynamic: SmallVec<[DynTerm; 2]>,
    /// Lane and warp terms, strides in bytes.
    pub terms: Vec<Term>,
    pub swizzle: Swizzle,
    pub fold: Fold,
    /// Constants below the swizzle's period or of exchanged bits (see [`Fold`]); the first is 0 whenever some access uses 0.
    pub bases: Vec<u64>,
}

impl AddressPlan {
    /// Splits the constants of all accesses: the plan, and (base number, immediate) per access. `exchanged` are bits in
    /// which terms and constants are combined by XOR (staggered orders), and which neither the sum of the other terms nor another
    /// constant has; `None` if the addresses aren't linear then.
    pub fn new(
        dynamic: SmallVec<[DynTerm; 2]>,
        terms: Vec<Term>,
        swizzle: Swizzle,
        exchanged: u64,
        constants: &[u64],
    ) -> Option<(AddressPlan, Vec<(usize, i64)>)> {
        let period = swizzle.period();
        let low = period - 1 | exchanged;
        let of_terms = possible_bits(&terms);
        let of_constants = constants.iter().fold(0, |m, c| m | c);
        let aligned = dynamic.iter().all(|d| d.multiple % period == 0);
        let linear = aligned && of_terms & of_constants & low & !exchanged == 0;
        let fold = match linear {
            true => Fold::Linear,
            false if exchanged != 0 => return None,
            false => Fold::Absolute,
        };
        let mut plan = AddressPlan {
            dynamic,
            terms,
            swizzle,
            fold,
            bases: Vec::new(),
        };
        // Which bits of s(T) can be set.
        let reach = of_terms | (of_terms >> swizzle.shift) & swizzle.target_mask();
        let places = constants.iter().map(|&c| {
            let (base, immediate) = match fold {
                Fold::Linear => {
                    let s = swizzle.apply(c);
                    let base = s & reach & low;
                    (base, s - base)
                }
                Fold::Absolute => (c & (period - 1), c & !(period - 1)),
            };
            let k = plan.bases.iter().position(|&b| b == base).unwrap_or_else(|| {
                plan.bases.push(base);
                plan.bases.len() - 1
            });
            (k, immediate as i64)
        });
        let places = places.collect();
        Some((plan, places))
    }

    /// The byte address of an access for a thread, given the allocation's address plus dynamic terms.
    pub fn address(&self, origin: u64, thread: u32, base: usize, immediate: i64) -> u64 {
        let t: u64 = self.terms.iter().map(|t| t.value(thread)).sum::<i64>() as u64;
        let base = match self.fold {
            Fold::Linear => origin + (self.swizzle.apply(t) ^ self.bases[base]),
            Fold::Absolute => self.swizzle.apply(origin + t + self.bases[base]),
        };
        base + immediate as u64
    }
}

/// Bits that the sum of the terms can have.
pub fn possible_bits(terms: &[Term]) -> u64 {
    // Sums of some terms that have no bit in common: what each can have, and its maximum.
    let mut sums: SmallVec<[(u64, u64); 8]> = SmallVec::new();
    for t in terms.iter().filter(|t| t.stride != 0) {
        let stride = t.stride as u64;
        let mut max = ((1u64 << t.bits) - 1) * stride;
        let mut mask = if stride.is_power_of_two() {
            max
        } else {
            span(stride, max)
        };
        while let Some(k) = sums.iter().position(|s| s.0 & mask != 0) {
            let (other, other_max) = sums.swap_remove(k);
            max += other_max;
            mask = span(mask | other, max);
        }
        sums.push((mask, max));
    }
    sums.iter().fold(0, |m, s| m | s.0)
}

/// All bits from the lowest of `low` to the highest of `high`.
fn span(low: u64, high: u64) -> u64 {
    let top = 64 - high.leading_zeros();
    ((1u128 << top) - 1) as u64 & !((1 << low.trailing_zeros()) - 1)
}
