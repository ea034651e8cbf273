//! Linear maps between bit vectors of up to 64 bits.
//!
//! Where the digits of a layout are powers of two and strides don't overlap, an index expression is linear over GF(2):
//! address bit i is the XOR of some bits of lane, warp and slot numbers, swizzles included. Then rank gives bank
//! conflicts, inverses give owners, and left division gives the map from one layout to another.

/// Column `k` is the image of input bit `k`.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct BitMatrix {
    columns: Vec<u64>,
}

impl BitMatrix {
    pub fn from_columns(columns: impl IntoIterator<Item = u64>) -> BitMatrix {
        BitMatrix {
            columns: columns.into_iter().collect(),
        }
    }
    pub fn identity(bits: u32) -> BitMatrix {
        BitMatrix::from_columns((0..bits).map(|k| 1 << k))
    }
    pub fn columns(&self) -> &[u64] {
        &self.columns
    }
    pub fn apply(&self, mut x: u64) -> u64 {
        let mut y = 0;
        while x != 0 {
            y ^= self.columns[x.trailing_zeros() as usize];
            x &= x - 1;
        }
        y
    }
    /// `self ∘ first`.
    pub fn after(&self, first: &BitMatrix) -> BitMatrix {
        BitMatrix::from_columns(first.columns.iter().map(|&c| self.apply(c)))
    }
    /// Keeps the output bits of `mask`.
    pub fn masked(&self, mask: u64) -> BitMatrix {
        BitMatrix::from_columns(self.columns.iter().map(|c| c & mask))
    }

    /// Column echelon form: pairs (combination of input bits, its image) with distinct leading image bits, and a
    /// basis of the kernel.
    fn echelon(&self) -> (Vec<(u64, u64)>, Vec<u64>) {
        let (mut basis, mut kernel): (Vec<(u64, u64)>, Vec<u64>) = (Vec::new(), Vec::new());
        for (k, &column) in self.columns.iter().enumerate() {
            let (mut x, mut y) = (1u64 << k, column);
            for &(bx, by) in &basis {
                if y >> (63 - by.leading_zeros()) & 1 != 0 {
                    x ^= bx;
                    y ^= by;
                }
            }
            if y == 0 { kernel.push(x) } else { basis.push((x, y)) }
        }
        (basis, kernel)
    }
    pub fn rank(&self) -> u32 {
        self.echelon().0.len() as u32
    }
    /// Inputs that map to 0 (a basis).
    pub fn kernel(&self) -> Vec<u64> {
        self.echelon().1
    }
    /// Some x with `self(x) = y`.
    pub fn solve(&self, mut y: u64) -> Option<u64> {
        let mut x = 0;
        for (bx, by) in self.echelon().0 {
            if y >> (63 - by.leading_zeros()) & 1 != 0 {
                x ^= bx;
                y ^= by;
            }
        }
        (y == 0).then_some(x)
    }
    /// The inverse, if this is a bijection on the low bits.
    pub fn inverse(&self) -> Option<BitMatrix> {
        let n = self.columns.len() as u32;
        (self.rank() == n && self.columns.iter().all(|c| n == 64 || c >> n == 0))
            .then(|| self.divide_left(&BitMatrix::identity(n)))
            .flatten()
    }
    /// Some `x` with `self ∘ x = other`.
    pub fn divide_left(&self, other: &BitMatrix) -> Option<BitMatrix> {
        other
            .columns
            .iter()
            .map(|&c| self.solve(c))
            .collect::<Option<Vec<_>>>()
            .map(|columns| BitMatrix { columns })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn random(state: &mut u64) -> u64 {
        *state ^= *state << 13;
        *state ^= *state >> 7;
        *state ^= *state << 17;
        *state
    }

    #[test]
    fn laws_against_enumeration() {
        let mut seed = 0x9e37_79b9_7f4a_7c15;
        for case in 0..300 {
            let (rows, cols) = (1 + case % 7, 1 + (case / 7) % 7);
            let m = BitMatrix::from_columns((0..cols).map(|_| random(&mut seed) & ((1 << rows) - 1)));
            let images: std::collections::BTreeSet<u64> = (0..1 << cols).map(|x| m.apply(x)).collect();
            assert_eq!(images.len(), 1 << m.rank());
            assert_eq!(m.kernel().len() as u32, cols as u32 - m.rank());
            assert!(m.kernel().iter().all(|&x| x != 0 && m.apply(x) == 0));
            for y in 0..1u64 << rows {
                match m.solve(y) {
                    Some(x) => assert_eq!(m.apply(x), y),
                    None => assert!(!images.contains(&y)),
                }
            }
            for (x, y) in (0..1 << cols).flat_map(|x| [1, 5].map(|y| (x, y & ((1 << cols) - 1)))) {
                assert_eq!(m.apply(x ^ y), m.apply(x) ^ m.apply(y));
            }
            if let Some(inverse) = m.inverse() {
                assert_eq!(inverse.after(&m), BitMatrix::identity(cols as u32));
                assert_eq!(m.after(&inverse), BitMatrix::identity(cols as u32));
            } else {
                assert!(rows != cols || m.rank() < cols as u32);
            }
            let other = m.after(&BitMatrix::from_columns(
                (0..5).map(|_| random(&mut seed) & ((1 << cols) - 1)),
            ));
            let quotient = m.divide_left(&other).expect("a multiple is divisible");
            assert_eq!(m.after(&quotient), other);
        }
    }
}
