//! The arithmetic of sparse `wgmma`: one step of the tensor core for each element, over the products that there are.
//!
//! A's rows hold every second element along K; metadata says which elements of B they belong to, where [`Sparsity`] finds it: as an H100
//! has it, which was asked for every row and group of f16, tf32 and bytes.
use super::arith::mma_sync::{Meaningless, Sparsity};
use super::arith::tensor_core::{Accumulator, Element, MmaKind, step};
use super::arith::tensor_core_fast::{Fragment, Major, Operand};

/// Bytes of A in a row, and half of those of B in a column.
pub const A_BYTES: usize = 32;

/// Which of B's elements those of a packed A belong to. `selector`: which lanes have the metadata.
pub fn sparsity(kind: MmaKind, selector: usize) -> Sparsity {
    Sparsity {
        unit: if kind.a().bits() == 8 { 1 } else { 2 },
        selector,
        ordered: true,
        whole_pairs: kind.a() == Element::Tf32,
    }
}

/// `acc = acc·scale_d ± A·B` of 16 rows: A packed, of B `n` columns with twice as many elements.
pub fn multiply(
    kind: MmaKind,
    n: usize,
    (metadata, sparsity): (&Fragment, Sparsity),
    (scale_d, negate): (bool, bool),
    a: Operand<'_>,
    b: Operand<'_>,
    acc: &mut [Fragment],
) -> Result<(), Meaningless> {
    let unit = sparsity.unit;
    let is_half = kind.accumulator() == Accumulator::F16;
    // `unit` bytes of an operand with `outer` rows or columns, each of `len` bytes along K. Only 16-bit elements lie along M or N.
    let bytes = |x: &Operand<'_>, outer: usize, len: usize, i: usize, at: usize| {
        let first = match x.major {
            Major::K => i * len + at,
            Major::Mn => at * outer + i * unit,
        };
        first..first + unit
    };
    let chosen = sparsity.chosen(metadata, A_BYTES)?;
    let (mut left, mut right) = ([0u8; A_BYTES], [0u8; A_BYTES]);
    for (row, of_row) in chosen.chunks_exact(A_BYTES / unit).enumerate() {
        for (j, place) in left.chunks_exact_mut(unit).enumerate() {
            place.copy_from_slice(&a.bytes[bytes(&a, 16, A_BYTES, row, j * unit)]);
        }
        for column in 0..n {
            for (at, place) in of_row.iter().zip(right.chunks_exact_mut(unit)) {
                place.copy_from_slice(&b.bytes[bytes(&b, n, 2 * A_BYTES, column, *at)]);
            }
            let lane = row % 8 * 4 + column % 8 / 2;
            let (register, shift) = match is_half {
                true => (column / 8 * 2 + row / 8, column % 2 * 16),
                false => (column / 8 * 4 + row / 8 * 2 + column % 2, 0),
            };
            let word = &mut acc[register][lane];
            let mask = if is_half { 0xffff << shift } else { u32::MAX };
            let before = if scale_d { (*word & mask) >> shift } else { 0 };
            let sum = step(kind, &left, &right, before, negate);
            *word = *word & !mask | sum << shift & mask;
        }
    }
    Ok(())
}
