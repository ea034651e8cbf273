//! Sparse `wgmma`: which elements of B the elements of A belong to.
//!
//! A's rows hold every second element along K: of four neighbours two, of tf32 one of two. A nibble of *metadata* for each such group
//! says which (PTX ISA, `wgmma.mma_async.sp`): the lower index, then the higher one; of tf32, 4 for the first and 14 for the second.
//! Which lane and nibble a row's groups are in is as an H100 has it, asked for every row and group of each type.
use super::arith::tensor_core::{Element, MmaKind, step};
use super::arith::tensor_core_fast::{Fragment, Major, Operand};

/// Bytes of A in a row, and half of those of B in a column.
pub const A_BYTES: usize = 32;

/// Metadata that names no elements: lane and nibble.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unselected {
    pub lane: usize,
    pub nibble: u32,
}

/// Where the metadata of group `group` of row `row` (of a warp's 16) is: lane, and nibble of its word.
fn place(bits: usize, sel: usize, row: usize, group: usize) -> (usize, usize) {
    let (quad, below) = (row % 8 * 4, row / 8);
    match bits {
        // All lanes of a quad: two for each row, eight groups each.
        8 => (quad + below + 2 * (group / 8), group % 8),
        // Two lanes: four groups of the row and of the one eight below.
        _ => (quad + 2 * sel + group / 4, group % 4 + 4 * below),
    }
}

/// Of each of a row's elements, its index along K.
fn selected(kind: MmaKind, meta: &Fragment, sel: usize, row: usize) -> Result<Vec<usize>, Unselected> {
    let bits = kind.a().bits();
    let elements = 8 * A_BYTES / bits;
    let mut out = Vec::with_capacity(elements);
    let (groups, size) = match kind.a() {
        Element::Tf32 => (elements, 2),
        _ => (elements / 2, 4),
    };
    for group in 0..groups {
        let (lane, at) = place(bits, sel, row, group);
        let nibble = meta[lane] >> (4 * at) & 15;
        let (low, high) = ((nibble & 3) as usize, (nibble >> 2) as usize);
        match (kind.a(), nibble) {
            (Element::Tf32, 0b0100) => out.push(group * size),
            (Element::Tf32, 0b1110) => out.push(group * size + 1),
            (Element::Tf32, _) => return Err(Unselected { lane, nibble }),
            _ if low < high => out.extend([group * size + low, group * size + high]),
            _ => return Err(Unselected { lane, nibble }),
        }
    }
    Ok(out)
}

/// `acc = acc·scale_d ± A·B` of 16 rows: A packed, of B `n` columns with twice as many elements. Each element is one step of the tensor
/// core over the products that there are.
pub fn multiply(
    kind: MmaKind,
    n: usize,
    (meta, sel): (&Fragment, usize),
    (scale_d, negate): (bool, bool),
    a: Operand<'_>,
    b: Operand<'_>,
    acc: &mut [Fragment],
) -> Result<(), Unselected> {
    use super::arith::tensor_core::Accumulator;
    let width = kind.a().bits() / 8;
    let is_half = kind.accumulator() == Accumulator::F16;
    // An element of an operand with `outer` rows or columns, `len` bytes each along K.
    let element = |x: &Operand<'_>, outer: usize, len: usize, i: usize, k: usize| {
        let at = match x.major {
            Major::K => i * len + k * width,
            Major::Mn => (k * outer + i) * width,
        };
        at..at + width
    };
    let (mut left, mut right) = ([0u8; A_BYTES], [0u8; A_BYTES]);
    for row in 0..16 {
        let ks = selected(kind, meta, sel, row)?;
        for (j, place) in left.chunks_exact_mut(width).enumerate() {
            place.copy_from_slice(&a.bytes[element(&a, 16, A_BYTES, row, j)]);
        }
        for column in 0..n {
            for (k, place) in ks.iter().zip(right.chunks_exact_mut(width)) {
                place.copy_from_slice(&b.bytes[element(&b, n, 2 * A_BYTES, column, *k)]);
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
