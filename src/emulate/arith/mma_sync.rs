//! `mma` on the register fragments of one warp: the tensor core's step, and what ptxas 13.0 compiles for sm_90 where that has no
//! instruction of its own.
//!
//! | operands | on sm_90 |
//! |---|---|
//! | f16, bf16, tf32, 8-bit integers | one step of the tensor core (measured) |
//! | fp8 | exact conversion to f16 and two chained steps from zero, first the k with k % 4 in {0, 1}, then the others; C is added to that (f32 accumulators measured, f16 ones read from the code) |
//! | 4-bit integers | two products of bytes, C added to their sum: exact |
//! | single bits | `and`, or two `and`s for `xor`: exact |
//! | f16 in groups of eight lanes | multiply-adds of f32 (the order read from the code) |
//! | f64 | an instruction: [`multiply_add_doubles`] says in which order |
//! | sparse A | the same of the elements that A has, and those of B that belong to them |
use super::convert::{Fp8, f16_to_f32_bits, f32_to_f16, fp8_to_f16};
use super::exact::{F64, Subnormals};
use super::float::{Rounding, add_f16, add_f32, fma_f32, fma_f64, mul_f32};
use super::tensor_core::{Accumulator, Element, MmaKind, step};
use super::tensor_core_fast::{
    Fragment, Instruction, Major, Operand, TensorCore, gather_a_fragments, gather_b_fragments,
};

/// One 64-bit register of a warp.
pub type WideFragment = [u64; 32];

/// What joins single bits; their ones are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BitJoin {
    And,
    Xor,
}

/// Elements and accumulators of a product whose registers have 32 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arithmetic {
    /// The tensor core's step.
    Step(MmaKind),
    /// fp8 in halves.
    Fp8 {
        a: Fp8,
        b: Fp8,
        accumulator: Accumulator,
    },
    /// 4-bit integers: whether those of A and of B have signs, and whether sums are clamped instead of wrapped.
    Nibbles {
        a_signed: bool,
        b_signed: bool,
        saturates: bool,
    },
    Bits(BitJoin),
}

impl Arithmetic {
    /// One output: `c` and the products along packed rows of A and B of equal length.
    pub fn element(self, a: &[u8], b: &[u8], c: u32) -> u32 {
        match self {
            Arithmetic::Step(kind) => step(kind, a, b, c, false),
            Arithmetic::Fp8 {
                a: a_format,
                b: b_format,
                accumulator,
            } => {
                let kind = halves_kind(accumulator);
                let sum = (0..2).fold(0, |sum, part| {
                    step(kind, &halves(a_format, a, part), &halves(b_format, b, part), sum, false)
                });
                add(accumulator, c, sum)
            }
            Arithmetic::Nibbles {
                a_signed,
                b_signed,
                saturates,
            } => {
                let products = a.iter().zip(b).map(|(&x, &y)| {
                    let (x, y) = (nibbles(x, a_signed), nibbles(y, b_signed));
                    i64::from(x[0] * y[0] + x[1] * y[1])
                });
                let sum = i64::from(c as i32) + products.sum::<i64>();
                if saturates {
                    sum.clamp(i32::MIN.into(), i32::MAX.into()) as i32 as u32
                } else {
                    sum as u32
                }
            }
            Arithmetic::Bits(join) => {
                let ones = a.iter().zip(b).map(|(&x, &y)| match join {
                    BitJoin::And => (x & y).count_ones(),
                    BitJoin::Xor => (x ^ y).count_ones(),
                });
                c.wrapping_add(ones.sum())
            }
        }
    }

    /// Whether accumulators are in pairs.
    fn is_packed(self) -> bool {
        match self {
            Arithmetic::Step(kind) => kind.accumulator() == Accumulator::F16,
            Arithmetic::Fp8 { accumulator, .. } => accumulator == Accumulator::F16,
            Arithmetic::Nibbles { .. } | Arithmetic::Bits(_) => false,
        }
    }
}

/// The low and the high half of a byte.
fn nibbles(byte: u8, signed: bool) -> [i32; 2] {
    [byte & 15, byte >> 4].map(|x| match signed {
        true => i32::from((x << 4) as i8 >> 4),
        false => i32::from(x),
    })
}

fn halves_kind(accumulator: Accumulator) -> MmaKind {
    MmaKind::new(Element::F16, Element::F16, accumulator).expect("f16 operands have f32 and f16 accumulators")
}

/// The bytes with k / 2 % 2 = `part` as f16, in rows of as many bytes as before.
fn halves(format: Fp8, rows: &[u8], part: usize) -> Vec<u8> {
    let chosen = rows.chunks_exact(4).flat_map(|quad| &quad[2 * part..2 * part + 2]);
    chosen
        .flat_map(|code| fp8_to_f16(format, *code).to_le_bytes())
        .collect()
}

/// The ordinary sum, to nearest even.
fn add(accumulator: Accumulator, c: u32, sum: u32) -> u32 {
    match accumulator {
        Accumulator::F16 => u32::from(add_f16(c as u16, sum as u16)),
        Accumulator::F32 | Accumulator::S32 | Accumulator::S32Saturating => add_f32(c, sum),
    }
}

/// Where output (row, column) is: register, lane, shift.
fn output(packed: bool, row: usize, column: usize) -> (usize, usize, u32) {
    let lane = row % 8 * 4 + column / 2;
    if packed {
        (row / 8, lane, column as u32 % 2 * 16)
    } else {
        (row / 8 * 2 + column % 2, lane, 0)
    }
}

/// `d = element(row, column, c)` of all outputs.
fn each_output(arithmetic: Arithmetic, d: &mut [Fragment], element: impl Fn(usize, usize, u32) -> u32) {
    let packed = arithmetic.is_packed();
    let mask = if packed { 0xffff } else { !0 };
    for (row, column) in (0..16).flat_map(|row| (0..8).map(move |column| (row, column))) {
        let (register, lane, shift) = output(packed, row, column);
        let word = &mut d[register][lane];
        let new = element(row, column, *word >> shift & mask);
        *word = *word & !(mask << shift) | new << shift;
    }
}

/// The dense `mma` of one warp, D as C on entry: 16 rows with 4 registers of A and 2 of B, or 2 and 1; 8 rows with 1 and 1.
///
/// # Panics
/// If the registers are not those of a shape.
pub fn multiply_add(core: &mut TensorCore, arithmetic: Arithmetic, a: &[Fragment], b: &[Fragment], d: &mut [Fragment]) {
    if let ([a], [low, high]) = (a, &mut *d) {
        // Rows 8 to 15 are zeros.
        let mut all = [*low, *high, [0; 32], [0; 32]];
        multiply_add(core, arithmetic, &[*a, [0; 32]], b, &mut all);
        [*low, *high] = [all[0], all[1]];
        return;
    }
    match arithmetic {
        Arithmetic::Step(kind) => mma_sync(core, kind, a, b, d),
        Arithmetic::Fp8 {
            a: a_format,
            b: b_format,
            accumulator,
        } => mma_sync_fp8(core, accumulator, (a_format, a), (b_format, b), d),
        Arithmetic::Nibbles { .. } | Arithmetic::Bits(_) => {
            let (a_rows, b_rows, k_bytes) = gathered(a, b);
            each_output(arithmetic, d, |row, column, c| {
                arithmetic.element(
                    &a_rows[row * k_bytes..][..k_bytes],
                    &b_rows[column * k_bytes..][..k_bytes],
                    c,
                )
            });
        }
    }
}

/// Rows of A and columns of B, and how long those of A are.
fn gathered(a: &[Fragment], b: &[Fragment]) -> (Vec<u8>, Vec<u8>, usize) {
    let (mut a_rows, mut b_rows) = (vec![0; 128 * a.len()], vec![0; 128 * b.len()]);
    gather_a_fragments(a, &mut a_rows);
    gather_b_fragments(b, &mut b_rows);
    (a_rows, b_rows, 8 * a.len())
}

/// The tensor core's step of one warp: 4 registers of A and 2 of B (2 and 1 for the shorter shapes), D as C on entry.
///
/// # Panics
/// If the registers are not those of a shape, or the kind is fp8.
pub fn mma_sync(core: &mut TensorCore, kind: MmaKind, a: &[Fragment], b: &[Fragment], d: &mut [Fragment]) {
    assert!(
        !matches!(kind.a(), Element::E4m3 | Element::E5m2),
        "fp8 mma.sync is two f16 steps"
    );
    assert!(
        matches!((a.len(), b.len()), (4, 2) | (2, 1)),
        "{} and {} registers",
        a.len(),
        b.len()
    );
    let (a_rows, b_rows, k_bytes) = gathered(a, b);
    execute(core, kind, k_bytes, [&a_rows, &b_rows], d);
}

fn execute(core: &mut TensorCore, kind: MmaKind, k_bytes: usize, operands: [&[u8]; 2], d: &mut [Fragment]) {
    let instruction = Instruction {
        kind,
        m: 16,
        n: 8,
        k_bytes,
        scale_d: true,
        negate: false,
    };
    let [a, b] = operands.map(|bytes| Operand { bytes, major: Major::K });
    core.execute(instruction, a, b, d);
}

/// `mma.sync.m16n8k16` and `k32` of fp8 operands: what ptxas 13.0 makes of it for sm_90.
pub fn mma_sync_fp8(
    core: &mut TensorCore,
    accumulator: Accumulator,
    (a_format, a): (Fp8, &[Fragment]),
    (b_format, b): (Fp8, &[Fragment]),
    d: &mut [Fragment],
) {
    let (a_rows, b_rows, k_bytes) = gathered(a, b);
    let mut sums = vec![[0; 32]; d.len()];
    for part in 0..2 {
        let (a, b) = (halves(a_format, &a_rows, part), halves(b_format, &b_rows, part));
        execute(core, halves_kind(accumulator), k_bytes, [&a, &b], &mut sums);
    }
    for (row, sums) in d.iter_mut().zip(sums) {
        for (word, sum) in row.iter_mut().zip(sums) {
            *word = match accumulator {
                Accumulator::F16 => {
                    add(accumulator, *word & 0xffff, sum & 0xffff) | add(accumulator, *word >> 16, sum >> 16) << 16
                }
                Accumulator::F32 | Accumulator::S32 | Accumulator::S32Saturating => add(accumulator, *word, sum),
            };
        }
    }
}

/// Where a sparse A's metadata is, and what it counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sparsity {
    /// Bytes of what a place is of: 2, or 1. A chunk of B has four of them, of which A has two. 4-bit elements go in pairs, and a tf32 element
    /// is two of 16 bits.
    pub unit: usize,
    pub selector: usize,
    /// Whether the places of a chunk must rise.
    pub ordered: bool,
    /// tf32: both halves of an element.
    pub whole_pairs: bool,
}

impl Sparsity {
    /// The four bits of a chunk of a row of A, of which there are `chunks`.
    ///
    /// PTX ISA, "Sparse matrix storage". With 16-bit units a word has four chunks of a row in its low half and those of the row eight
    /// below in its high half; with bytes each has eight chunks of one row, and the neighbour's has the other.
    fn chunk(self, metadata: &Fragment, row: usize, chunk: usize, chunks: usize) -> u32 {
        let (of_group, shift) = if self.unit == 2 {
            (self.selector * (chunks / 4) + chunk / 4, row / 8 * 16 + chunk % 4 * 4)
        } else {
            (self.selector * (chunks / 4) + row / 8 + chunk / 8 * 2, chunk % 8 * 4)
        };
        metadata[row % 8 * 4 + of_group] >> shift & 15
    }

    /// The places of the two units that A has of a chunk; `None`: none that PTX gives a meaning.
    fn places(self, bits: u32) -> Option<[usize; 2]> {
        let (first, second) = (bits as usize & 3, bits as usize >> 2);
        let means = match (self.whole_pairs, self.ordered) {
            (true, _) => first % 2 == 0 && second == first + 1,
            (false, true) => first < second,
            (false, false) => first != second,
        };
        means.then_some([first, second])
    }

    /// Of each unit of A's 16 rows of `k_bytes` bytes: where in a column of B its own begins.
    pub fn chosen(self, metadata: &Fragment, k_bytes: usize) -> Result<Vec<usize>, Meaningless> {
        let chunks = k_bytes / (2 * self.unit);
        let mut chosen = vec![];
        for row in 0..16 {
            for chunk in 0..chunks {
                let bits = self.chunk(metadata, row, chunk, chunks);
                let places = self.places(bits).ok_or(Meaningless { row, chunk, bits })?;
                chosen.extend(places.map(|place| (4 * chunk + place) * self.unit));
            }
        }
        Ok(chosen)
    }
}

/// Metadata without a meaning: of this row and chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Meaningless {
    pub row: usize,
    pub chunk: usize,
    pub bits: u32,
}

/// The sparse `mma` of one warp, D as C on entry: 2 registers of A and 2 of B, or 4 and 4.
///
/// The arithmetic is the dense one's of A's own depth, on the elements of B that A's belong to.
pub fn multiply_add_sparse(
    arithmetic: Arithmetic,
    sparsity: Sparsity,
    metadata: &Fragment,
    (a, b): (&[Fragment], &[Fragment]),
    d: &mut [Fragment],
) -> Result<(), Meaningless> {
    let (a_rows, b_rows, k_bytes) = gathered(a, b);
    let unit = sparsity.unit;
    let chosen = sparsity.chosen(metadata, k_bytes)?;
    let in_row = k_bytes / unit;
    each_output(arithmetic, d, |row, column, c| {
        let b = &b_rows[column * 2 * k_bytes..][..2 * k_bytes];
        let of_row = &chosen[row * in_row..][..in_row];
        let b: Vec<u8> = of_row.iter().flat_map(|&at| &b[at..at + unit]).copied().collect();
        arithmetic.element(&a_rows[row * k_bytes..][..k_bytes], &b, c)
    });
    Ok(())
}

/// The `mma` of doubles of one warp, D as C on entry: 16 rows with 2, 4 or 8 registers of A and half as many of B; 8 rows with 1 and 1.
pub fn multiply_add_doubles(rounding: Rounding, a: &[WideFragment], b: &[WideFragment], d: &mut [WideFragment]) {
    let halves = a.len() / b.len();
    for (row, column) in (0..8 * halves).flat_map(|row| (0..8).map(move |column| (row, column))) {
        let sum = &mut d[row / 8 * 2 + column % 2][row % 8 * 4 + column / 2];
        // An H200's: products join C one by one, in the order of k, each with one rounding. What is no number before four of them stays.
        for four in 0..b.len() {
            if F64.is_nan(*sum) {
                *sum |= 1 << 51;
                continue;
            }
            for k in 4 * four..4 * four + 4 {
                let x = a[k / 4 * halves + row / 8][row % 8 * 4 + k % 4];
                let y = b[k / 4][column * 4 + k % 4];
                *sum = fused(rounding, x, y, *sum);
            }
        }
    }
}

/// `a·b + c` of doubles with any rounding.
fn fused(rounding: Rounding, a: u64, b: u64, c: u64) -> u64 {
    if rounding == Rounding::NearestEven {
        return fma_f64(a, b, c);
    }
    if let Some(nan) = [a, b, c].into_iter().find(|x| F64.is_nan(*x)) {
        return nan | 1 << 51;
    }
    let [a, b, c] = [a, b, c].map(|x| F64.value(x, Subnormals::Kept));
    F64.round(a.times(b).add(c, rounding), rounding, Subnormals::Kept)
}

/// Whose rows or columns of an operand lanes have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LaneHas {
    Row,
    Column,
}

/// Types of C and D of products of eight lanes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QuadTypes {
    F32,
    /// C is f16, D f32.
    F32OfF16,
    F16,
}

/// `mma.m8n8k4` of f16: four products, each of four neighbouring lanes and the four that are 16 behind them.
///
/// PTX ISA, "Matrix Fragments for mma.m8n8k4 with .f16 floating point type". What sm_90 computes is read from what ptxas 13.0 compiles.
pub fn multiply_add_quads(
    [a_has, b_has]: [LaneHas; 2],
    types: QuadTypes,
    a: &[Fragment; 2],
    b: &[Fragment; 2],
    c: &[Fragment],
) -> Vec<Fragment> {
    let half = |registers: &[Fragment], i: usize, lane: usize| (registers[i / 2][lane] >> (16 * (i % 2))) as u16;
    let is_packed = |c: bool| match types {
        QuadTypes::F32 => false,
        QuadTypes::F32OfF16 => c,
        QuadTypes::F16 => true,
    };
    let mut d = vec![[0; 32]; if is_packed(false) { 4 } else { 8 }];
    for (quad, row, column) in
        (0..4).flat_map(|quad| (0..8).flat_map(move |row| (0..8).map(move |column| (quad, row, column))))
    {
        // The lane that has number `i` of the eight rows or columns.
        let lane = |i: usize| 4 * quad + i % 4 + i / 4 * 16;
        let products: [(u32, u32); 4] = std::array::from_fn(|k| {
            let x = match a_has {
                LaneHas::Row => half(a, k, lane(row)),
                LaneHas::Column => half(a, row % 4, lane(row / 4 * 4 + k)),
            };
            let y = match b_has {
                LaneHas::Column => half(b, k, lane(column)),
                LaneHas::Row => half(b, column % 4, lane(column / 4 * 4 + k)),
            };
            (f16_to_f32_bits(x), f16_to_f32_bits(y))
        });
        // Pairs: all columns of a row. Words: a row's even or odd half, by columns.
        let packed = (lane(row), column / 2, column % 2 * 16);
        let wide = (
            lane(row / 4 * 4 + row % 2 + column / 2 % 2 * 2),
            row / 2 % 2 * 2 + column / 4 * 4 + column % 2,
        );
        let c = if is_packed(true) {
            f16_to_f32_bits((c[packed.1][packed.0] >> packed.2) as u16)
        } else {
            c[wide.1][wide.0]
        };
        let fma = |(x, y): (u32, u32), sum: u32| fma_f32::<false>(x, y, sum);
        if is_packed(false) {
            let [low, high] = [0, 2].map(|k| fma(products[k + 1], mul_f32(products[k].0, products[k].1)));
            let sum = add_f32(add_f32(c, low), high);
            d[packed.1][packed.0] |= u32::from(f32_to_f16(sum)) << packed.2;
        } else {
            let sum = products.into_iter().fold(0, |sum, product| fma(product, sum));
            d[wide.1][wide.0] = add_f32(c, sum);
        }
    }
    d
}
