//! Whole tiles of the tensor core's step, equal to [`tensor_core::step`](super::tensor_core::step) bit for bit.
//!
//! **Operands** are raw, packed tiles, as a gatherer that copies 16-byte chunks out of swizzled shared memory leaves
//! them: [`Major::K`], one row of `k_bytes` per row of A or column of B, or [`Major::Mn`], one row of all m or n elements
//! per k (16-bit types only, like the hardware's transposed operands). [`gather_a_fragments`] and
//! [`gather_b_fragments`] make `Major::K` tiles of operands held in registers.
//!
//! **D** is in the register fragments of `wgmma` and `mma.sync` (the two agree): [`Fragment`] `r` of warp `w` is
//! `d[w * registers + r]`, see [`fragment_position`]. So no gather or scatter of the accumulator is ever needed.
//!
//! **Method.** One [`Fragment`] of f32 is 8 rows × 4 columns. A is decoded to one value per lane of that block, B to one
//! per column. Pass 1 over k finds each output's largest exponent `E` in narrow integers (8-bit lanes for f16 and fp8,
//! whose product exponents lie in [-32, 31], else 16-bit). Pass 2 adds `trunc(a·b·2^(F-E))`: the product is exact in f32,
//! so the truncating conversion is the cut, and 16 products fit an i32 (32 of fp8 take two where they are cut at 25 bits). The sum with C is exact in f64 and is rounded once.
//! Outputs where that does not hold (infinities and NaNs, which decode to an exponent above all others; `E` outside
//! [-76, 120], where scale factors or results leave the normal f32 range) are seen by their `E` and recomputed by the
//! reference. A product too small for f32 is only ever inexact where the cut makes it zero.

#[cfg(target_arch = "x86_64")]
mod avx2;

use super::tensor_core::{Accumulator, Element, MmaKind, step};

/// One register of a warp.
pub type Fragment = [u32; 32];

/// Which index of an operand is contiguous.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Major {
    /// `bytes[i * k_bytes..][..k_bytes]` is row i of A (column i of B).
    K,
    /// `bytes[(k * extent + i) * 2..][..2]` is element (i, k); `extent` is m or n. 16-bit elements only.
    Mn,
}

/// A raw operand tile.
#[derive(Clone, Copy, Debug)]
pub struct Operand<'a> {
    pub bytes: &'a [u8],
    pub major: Major,
}

/// One `wgmma` or `mma.sync` step: m × n outputs, `k_bytes` of K.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Instruction {
    pub kind: MmaKind,
    /// A multiple of 16: 64 for `wgmma`, 16 for `mma.sync`.
    pub m: usize,
    /// A multiple of 8.
    pub n: usize,
    /// 32, or 16 for the shorter shapes of `mma.sync`.
    pub k_bytes: usize,
    /// Whether C is read (`scale-d`); otherwise it counts as +0.
    pub scale_d: bool,
    /// Whether products change sign (`imm-scale-a` ≠ `imm-scale-b`).
    pub negate: bool,
}

impl Instruction {
    /// Registers of D in each warp.
    pub const fn registers(&self) -> usize {
        match self.kind.accumulator() {
            Accumulator::F16 => self.n / 4,
            Accumulator::F32 | Accumulator::S32 | Accumulator::S32Saturating => self.n / 2,
        }
    }

    fn elements(&self) -> usize {
        self.k_bytes * 8 / self.kind.a().bits()
    }
}

/// Where output (row, column) lives: index into `d`, lane, and bit offset (16 for the odd columns of f16 accumulators).
///
/// PTX ISA, "Register Fragments for wgmma.mma_async.m64nNk16", D; the same for the accumulators of `mma.m16n8k*`.
pub fn fragment_position(instruction: &Instruction, row: usize, column: usize) -> (usize, usize, u32) {
    let lane = row % 8 * 4 + column % 8 / 2;
    let warp = row / 16 * instruction.registers();
    let half = row / 8 % 2;
    match instruction.kind.accumulator() {
        Accumulator::F16 => (warp + column / 8 * 2 + half, lane, column as u32 % 2 * 16),
        Accumulator::F32 | Accumulator::S32 | Accumulator::S32Saturating => {
            (warp + column / 8 * 4 + half * 2 + column % 2, lane, 0)
        }
    }
}

/// Writes one warp's A operand (2 or 4 registers) as 16 rows of 8 bytes per register pair, `Major::K`.
///
/// Byte `4·(lane % 4)` of row `lane / 4` is register 0; +8 rows register 1; +16 bytes registers 2 and 3. One pattern
/// serves every element type (PTX ISA, fragments of `wgmma` and `mma.m16n8k*`).
pub fn gather_a_fragments(registers: &[Fragment], rows: &mut [u8]) {
    let k_bytes = registers.len() * 8;
    for (r, register) in registers.iter().enumerate() {
        for (lane, word) in register.iter().enumerate() {
            let at = (lane / 4 + r % 2 * 8) * k_bytes + lane % 4 * 4 + r / 2 * 16;
            rows[at..at + 4].copy_from_slice(&word.to_le_bytes());
        }
    }
}

/// Writes one warp's B operand of `mma.m16n8k*` (1 or 2 registers) as 8 rows, `Major::K`.
pub fn gather_b_fragments(registers: &[Fragment], rows: &mut [u8]) {
    let k_bytes = registers.len() * 16;
    for (r, register) in registers.iter().enumerate() {
        for (lane, word) in register.iter().enumerate() {
            let at = lane / 4 * k_bytes + lane % 4 * 4 + r * 16;
            rows[at..at + 4].copy_from_slice(&word.to_le_bytes());
        }
    }
}

#[repr(C, align(32))]
#[derive(Clone, Copy)]
struct Lanes<T, const N: usize>([T; N]);

type F32x32 = Lanes<f32, 32>;
type I8x32 = Lanes<i8, 32>;
type I16x32 = Lanes<i16, 32>;
type I32x32 = Lanes<i32, 32>;

/// Decode buffers, to be kept for many instructions.
///
/// A is stored per group of 8 rows and k, each row's value four times (a [`Fragment`]'s lanes); B per group of 8 columns,
/// column parity and k, four columns.
#[derive(Default)]
pub struct TensorCore {
    a_values: Vec<F32x32>,
    a_exponents: Vec<I16x32>,
    a_narrow: Vec<I8x32>,
    a_pairs: Vec<I32x32>,
    b_values: Vec<[f32; 4]>,
    b_exponents: Vec<[i16; 4]>,
    b_narrow: Vec<[i8; 4]>,
    b_pairs: Vec<[i32; 4]>,
}

/// Exponents that stand for zero and for infinity or NaN in pass 1. Their sums with each other and with finite exponents
/// stay apart: a zero factor brings it below every other sum, `special + zero` is still above every finite one.
struct Marks {
    zero: i16,
    special: i16,
    /// Sums below this have a zero factor.
    zero_below: i32,
    /// Sums above this have an infinity or a NaN.
    special_above: i32,
}

const NARROW: Marks = Marks {
    zero: -64,
    special: 127,
    zero_below: -40,
    special_above: 40,
};
const WIDE: Marks = Marks {
    zero: -4096,
    special: 8192,
    zero_below: -2000,
    special_above: 2000,
};

const LEAST_FAST_EXPONENT: i32 = -76;
const LARGEST_FAST_EXPONENT: i32 = 120;
const LEAST_F16_EXPONENT: i32 = -21;
/// Products of less than 2^27 whose sum fits an i32.
const MOST_PRODUCTS: usize = 16;

/// Value and exponent of all 256 codes of an fp8 type.
struct Fp8Table {
    values: [f32; 256],
    exponents: [i8; 256],
}

const fn fp8_table(exponent_bits: u32) -> Fp8Table {
    let mantissa_bits = 7 - exponent_bits;
    let bias = (1 << (exponent_bits - 1)) - 1;
    let mut table = Fp8Table {
        values: [0.0; 256],
        exponents: [0; 256],
    };
    let mut code = 0;
    while code < 256 {
        let field = code >> mantissa_bits & ((1 << exponent_bits) - 1);
        let mantissa = code & ((1 << mantissa_bits) - 1);
        let is_special = if exponent_bits == 4 {
            code & 0x7f == 0x7f
        } else {
            field == 31
        };
        let exponent = (if field == 0 { 1 } else { field }) - bias;
        let magnitude = mantissa + (if field == 0 { 0 } else { 1 << mantissa_bits });
        // 2^(exponent - mantissa_bits), a normal f32.
        let unit = f32::from_bits(((exponent - mantissa_bits as i32 + 127) as u32) << 23);
        let value = magnitude as f32 * unit;
        table.values[code as usize] = if code & 0x80 != 0 { -value } else { value };
        table.exponents[code as usize] = if is_special {
            NARROW.special as i8
        } else if magnitude == 0 {
            NARROW.zero as i8
        } else {
            exponent as i8
        };
        code += 1;
    }
    table
}

static E4M3: Fp8Table = fp8_table(4);
static E5M2: Fp8Table = fp8_table(5);

/// Decodes one packed row to f32 values (of specials: anything) and marked exponents.
#[inline(always)]
fn decode_row(element: Element, row: &[u8], values: &mut [f32; 32], exponents: &mut [i16; 32]) {
    match element {
        Element::F16 => {
            for (k, code) in row.chunks_exact(2).enumerate().take(16) {
                let code = u16::from_le_bytes([code[0], code[1]]);
                // Rebiasing by multiplication gets denormals right.
                let magnitude = f32::from_bits(u32::from(code & 0x7fff) << 13) * f32::from_bits((127 + 112) << 23);
                values[k] = f32::from_bits(magnitude.to_bits() | u32::from(code & 0x8000) << 16);
                exponents[k] = marked_exponent(code, 10, 15, &NARROW);
            }
        }
        Element::Bf16 => {
            for (k, code) in row.chunks_exact(2).enumerate().take(16) {
                let code = u16::from_le_bytes([code[0], code[1]]);
                values[k] = f32::from_bits(u32::from(code) << 16);
                exponents[k] = marked_exponent(code, 7, 127, &WIDE);
            }
        }
        Element::Tf32 => {
            for (k, code) in row.chunks_exact(4).enumerate().take(8) {
                let code = u32::from_le_bytes([code[0], code[1], code[2], code[3]]) & 0xffff_e000;
                values[k] = f32::from_bits(code);
                let field = (code >> 23 & 0xff) as i16;
                let finite = if code & 0x7fff_ffff == 0 {
                    WIDE.zero
                } else {
                    field.max(1) - 127
                };
                exponents[k] = if field == 255 { WIDE.special } else { finite };
            }
        }
        Element::E4m3 | Element::E5m2 => {
            let table = if element == Element::E4m3 { &E4M3 } else { &E5M2 };
            for (k, &code) in row.iter().enumerate().take(32) {
                values[k] = table.values[usize::from(code)];
                exponents[k] = i16::from(table.exponents[usize::from(code)]);
            }
        }
        Element::S8 | Element::U8 | Element::B1 => unreachable!("integers have no exponents"),
    }
}

#[inline(always)]
fn marked_exponent(code: u16, mantissa_bits: u32, bias: i16, marks: &Marks) -> i16 {
    let magnitude = code & 0x7fff;
    let field = (magnitude >> mantissa_bits) as i16;
    let finite = if magnitude == 0 {
        marks.zero
    } else {
        field.max(1) - bias
    };
    if field == (1 << (15 - mantissa_bits)) - 1 {
        marks.special
    } else {
        finite
    }
}

impl Operand<'_> {
    /// Row i of A or column i of B, packed along K.
    #[inline(always)]
    fn row(&self, i: usize, extent: usize, k_bytes: usize) -> [u8; 32] {
        let mut row = [0; 32];
        match self.major {
            Major::K => row[..k_bytes].copy_from_slice(&self.bytes[i * k_bytes..][..k_bytes]),
            Major::Mn => {
                for k in 0..k_bytes / 2 {
                    row[2 * k..2 * k + 2].copy_from_slice(&self.bytes[(k * extent + i) * 2..][..2]);
                }
            }
        }
        row
    }
}

/// An instruction with its raw operands: what the reference needs.
struct Job<'a> {
    instruction: Instruction,
    a: Operand<'a>,
    b: Operand<'a>,
}

impl Job<'_> {
    #[cold]
    #[inline(never)]
    fn reference(&self, row: usize, column: usize, c: u32) -> u32 {
        let Instruction {
            kind,
            m,
            n,
            k_bytes,
            negate,
            ..
        } = self.instruction;
        let a = self.a.row(row, m, k_bytes);
        let b = self.b.row(column, n, k_bytes);
        step(kind, &a[..k_bytes], &b[..k_bytes], c, negate)
    }

    /// Recomputes the lanes of `bad` of row group g, column group j, column parity p, from what C was `before`.
    #[cold]
    #[inline(never)]
    fn patch(&self, (g, j, p): (usize, usize, usize), bad: u32, before: &Fragment, d: &mut Fragment) {
        let (shift, mask) = match self.instruction.kind.accumulator() {
            Accumulator::F16 => (16 * p, 0xffff << (16 * p)),
            Accumulator::F32 | Accumulator::S32 | Accumulator::S32Saturating => (0, u32::MAX),
        };
        let mut rest = bad;
        while rest != 0 {
            let lane = rest.trailing_zeros() as usize;
            let c = (before[lane] & mask) >> shift;
            let result = self.reference(g * 8 + lane / 4, j * 8 + lane % 4 * 2 + p, c);
            d[lane] = d[lane] & !mask | result << shift;
            rest &= rest - 1;
        }
    }
}

impl TensorCore {
    /// Executes one instruction on `d` (C on entry, D on return).
    ///
    /// # Panics
    /// If the shape or a buffer's length is not what [`Instruction`] says.
    pub fn execute(&mut self, instruction: Instruction, a: Operand, b: Operand, d: &mut [Fragment]) {
        let Instruction {
            kind,
            m,
            n,
            k_bytes,
            scale_d,
            ..
        } = instruction;
        assert!(
            m.is_multiple_of(16) && n.is_multiple_of(8) && (k_bytes == 16 || k_bytes == 32),
            "{instruction:?}"
        );
        assert!(
            a.bytes.len() == m * k_bytes && b.bytes.len() == n * k_bytes,
            "operand sizes of {instruction:?}"
        );
        assert!(
            a.major == Major::K || kind.a().bits() == 16,
            "{instruction:?} with A m-major"
        );
        assert!(
            b.major == Major::K || kind.b().bits() == 16,
            "{instruction:?} with B n-major"
        );
        assert!(
            d.len() == m / 16 * instruction.registers(),
            "accumulator size of {instruction:?}"
        );
        if !scale_d {
            d.fill([0; 32]);
        }
        let job = Job { instruction, a, b };
        #[cfg(target_arch = "x86_64")]
        if super::has_avx2() {
            // SAFETY: the features were found at run time.
            return unsafe { avx2::execute(self, &job, d) };
        }
        self.execute_portable(&job, d);
    }

    /// [`execute`](Self::execute) without SIMD intrinsics, for hosts that have none of ours and for tests.
    #[doc(hidden)]
    pub fn execute_without_simd(&mut self, instruction: Instruction, a: Operand, b: Operand, d: &mut [Fragment]) {
        if !instruction.scale_d {
            d.fill([0; 32]);
        }
        self.execute_portable(&Job { instruction, a, b }, d);
    }

    #[inline(always)]
    fn decode_floats<const IS_WIDE: bool>(&mut self, job: &Job) {
        let Instruction {
            kind,
            m,
            n,
            k_bytes,
            negate,
            ..
        } = job.instruction;
        let depth = job.instruction.elements();
        let sign = if negate { 0x8000_0000 } else { 0 };
        let (mut values, mut exponents) = ([0.0f32; 32], [0i16; 32]);
        self.a_values.resize(m / 8 * depth, Lanes([0.0; 32]));
        if IS_WIDE {
            self.a_exponents.resize(m / 8 * depth, Lanes([0; 32]));
        } else {
            self.a_narrow.resize(m / 8 * depth, Lanes([0; 32]));
        }
        for i in 0..m {
            decode_row(
                kind.a(),
                &job.a.row(i, m, k_bytes)[..k_bytes],
                &mut values,
                &mut exponents,
            );
            let (first, at) = (i / 8 * depth, i % 8 * 4);
            for k in 0..depth {
                let value = f32::from_bits(values[k].to_bits() ^ sign);
                self.a_values[first + k].0[at..at + 4].fill(value);
                if IS_WIDE {
                    self.a_exponents[first + k].0[at..at + 4].fill(exponents[k]);
                } else {
                    self.a_narrow[first + k].0[at..at + 4].fill(exponents[k] as i8);
                }
            }
        }
        self.b_values.resize(n / 4 * depth, [0.0; 4]);
        if IS_WIDE {
            self.b_exponents.resize(n / 4 * depth, [0; 4]);
        } else {
            self.b_narrow.resize(n / 4 * depth, [0; 4]);
        }
        for i in 0..n {
            decode_row(
                kind.b(),
                &job.b.row(i, n, k_bytes)[..k_bytes],
                &mut values,
                &mut exponents,
            );
            let (first, at) = ((i / 8 * 2 + i % 2) * depth, i % 8 / 2);
            for k in 0..depth {
                self.b_values[first + k][at] = values[k];
                if IS_WIDE {
                    self.b_exponents[first + k][at] = exponents[k];
                } else {
                    self.b_narrow[first + k][at] = exponents[k] as i8;
                }
            }
        }
    }

    #[inline(always)]
    fn decode_integers(&mut self, job: &Job) {
        let Instruction {
            kind, m, n, k_bytes, ..
        } = job.instruction;
        let depth = k_bytes / 2;
        let pair = |element: Element, bytes: &[u8]| {
            let [x, y] = [bytes[0], bytes[1]].map(|byte| match element {
                Element::S8 => i16::from(byte as i8) as u16,
                _ => u16::from(byte),
            });
            (u32::from(x) | u32::from(y) << 16) as i32
        };
        self.a_pairs.resize(m / 8 * depth, Lanes([0; 32]));
        for i in 0..m {
            let row = job.a.row(i, m, k_bytes);
            for k in 0..depth {
                self.a_pairs[i / 8 * depth + k].0[i % 8 * 4..][..4].fill(pair(kind.a(), &row[2 * k..]));
            }
        }
        self.b_pairs.resize(n / 4 * depth, [0; 4]);
        for i in 0..n {
            let row = job.b.row(i, n, k_bytes);
            for k in 0..depth {
                self.b_pairs[(i / 8 * 2 + i % 2) * depth + k][i % 8 / 2] = pair(kind.b(), &row[2 * k..]);
            }
        }
    }

    fn execute_portable(&mut self, job: &Job, d: &mut [Fragment]) {
        let kind = job.instruction.kind;
        match (kind.accumulator(), kind.a()) {
            (Accumulator::F32 | Accumulator::F16, Element::Bf16 | Element::Tf32) => {
                self.decode_floats::<true>(job);
                self.floats_portable::<true>(job, d);
            }
            (Accumulator::F32 | Accumulator::F16, _) => {
                self.decode_floats::<false>(job);
                self.floats_portable::<false>(job, d);
            }
            (Accumulator::S32 | Accumulator::S32Saturating, Element::B1) => execute_bits(job, d),
            (Accumulator::S32 | Accumulator::S32Saturating, _) => {
                self.decode_integers(job);
                self.integers_portable(job, d);
            }
        }
    }

    fn floats_portable<const IS_WIDE: bool>(&self, job: &Job, d: &mut [Fragment]) {
        let Instruction { kind, m, n, .. } = job.instruction;
        let (depth, registers) = (job.instruction.elements(), job.instruction.registers());
        let marks = if IS_WIDE { &WIDE } else { &NARROW };
        let is_f16 = kind.accumulator() == Accumulator::F16;
        let fraction = kind.fraction_bits();
        for (g, j, p) in blocks(m, n) {
            let (a, b) = (g * depth, (j * 2 + p) * depth);
            let mut largest = [i32::MIN; 32];
            for k in 0..depth {
                for (lane, largest) in largest.iter_mut().enumerate() {
                    let sum = if IS_WIDE {
                        i32::from(self.a_exponents[a + k].0[lane]) + i32::from(self.b_exponents[b + k][lane % 4])
                    } else {
                        i32::from(self.a_narrow[a + k].0[lane]) + i32::from(self.b_narrow[b + k][lane % 4])
                    };
                    *largest = sum.max(*largest);
                }
            }
            let register = g / 2 * registers + if is_f16 { j * 2 + g % 2 } else { j * 4 + g % 2 * 2 + p };
            let c = if is_f16 {
                d[register].map(|word| word >> (16 * p) & 0xffff)
            } else {
                d[register]
            };
            let mut c_values = [0.0f32; 32];
            let mut exponents = [0; 32];
            let mut bad = 0;
            for lane in 0..32 {
                let (value, c_exponent, c_special) = if is_f16 {
                    let field = (c[lane] >> 10 & 31) as i32;
                    let magnitude = f32::from_bits((c[lane] & 0x7fff) << 13) * f32::from_bits((127 + 112) << 23);
                    (
                        f32::from_bits(magnitude.to_bits() | (c[lane] & 0x8000) << 16),
                        field.max(1) - 15,
                        field == 31,
                    )
                } else {
                    let field = (c[lane] >> 23 & 255) as i32;
                    (f32::from_bits(c[lane]), field.max(1) - 127, field == 255)
                };
                let mut exponent = largest[lane];
                let special = exponent > marks.special_above || c_special;
                let products_are_zero = exponent < marks.zero_below;
                if products_are_zero {
                    exponent = i32::MIN;
                }
                if value != 0.0 {
                    exponent = exponent.max(c_exponent);
                }
                let nothing = products_are_zero && value == 0.0;
                if is_f16 {
                    exponent = exponent.max(LEAST_F16_EXPONENT);
                }
                let in_range = (LEAST_FAST_EXPONENT..=LARGEST_FAST_EXPONENT).contains(&exponent) || nothing;
                if special || !in_range {
                    bad |= 1 << lane;
                }
                c_values[lane] = value;
                exponents[lane] = exponent.clamp(LEAST_FAST_EXPONENT, LARGEST_FAST_EXPONENT);
            }
            let scale = exponents.map(|e| f32::from_bits(((fraction - e + 127) as u32) << 23));
            let mut halves = [[0i32; 32]; 2];
            for k in 0..depth {
                let (a, b) = (&self.a_values[a + k].0, &self.b_values[b + k]);
                let sums = &mut halves[k / MOST_PRODUCTS];
                for lane in 0..32 {
                    // Wrapping: a special lane's values saturate, and its result is not used.
                    sums[lane] = sums[lane].wrapping_add((a[lane] * b[lane % 4] * scale[lane]) as i32);
                }
            }
            let mut out = [0; 32];
            for lane in 0..32 {
                let products = f64::from(halves[0][lane]) + f64::from(halves[1][lane]);
                let sum = products + f64::from((c_values[lane] * scale[lane]) as i32);
                let unscale = f32::from_bits(((exponents[lane] - fraction + 127) as u32) << 23);
                out[lane] = if is_f16 {
                    let odd = f64::from_bits(round_to_odd(sum.to_bits()));
                    f16_bits_nearest(odd as f32 * unscale)
                } else {
                    let cut = sum.to_bits() & (u64::MAX << if fraction == 13 { 39 } else { 29 });
                    (f64::from_bits(cut) as f32 * unscale).to_bits()
                };
            }
            let before = d[register];
            if is_f16 {
                for (word, half) in d[register].iter_mut().zip(out) {
                    *word = *word & (0xffff << (16 * (1 - p))) | half << (16 * p);
                }
            } else {
                d[register] = out;
            }
            if bad != 0 {
                job.patch((g, j, p), bad, &before, &mut d[register]);
            }
        }
    }

    fn integers_portable(&self, job: &Job, d: &mut [Fragment]) {
        let Instruction {
            kind, m, n, k_bytes, ..
        } = job.instruction;
        let (depth, registers) = (k_bytes / 2, job.instruction.registers());
        for (g, j, p) in blocks(m, n) {
            let mut sums = [0i32; 32];
            for k in 0..depth {
                let (a, b) = (&self.a_pairs[g * depth + k].0, &self.b_pairs[(j * 2 + p) * depth + k]);
                for lane in 0..32 {
                    let (x, y) = (a[lane], b[lane % 4]);
                    sums[lane] += (x >> 16) * (y >> 16) + i32::from(x as i16) * i32::from(y as i16);
                }
            }
            let row = &mut d[g / 2 * registers + j * 4 + g % 2 * 2 + p];
            for (word, sum) in row.iter_mut().zip(sums) {
                let c = *word as i32;
                let result = match kind.accumulator() {
                    Accumulator::S32Saturating => c.saturating_add(sum),
                    Accumulator::S32 | Accumulator::F32 | Accumulator::F16 => c.wrapping_add(sum),
                };
                *word = result as u32;
            }
        }
    }
}

/// Row group, column group, column parity of every [`Fragment`]-sized block.
fn blocks(m: usize, n: usize) -> impl Iterator<Item = (usize, usize, usize)> {
    (0..m / 8).flat_map(move |g| (0..n / 8).flat_map(move |j| (0..2).map(move |p| (g, j, p))))
}

/// Single-bit products: population counts over 64-bit words.
#[inline(always)]
fn execute_bits(job: &Job, d: &mut [Fragment]) {
    let Instruction { m, n, k_bytes, .. } = job.instruction;
    let registers = job.instruction.registers();
    let words = |operand: &Operand, i: usize| {
        let row = operand.row(i, 0, k_bytes);
        [0, 8, 16, 24].map(|at| u64::from_le_bytes(std::array::from_fn(|byte| row[at + byte])))
    };
    let b: Vec<[u64; 4]> = (0..n).map(|i| words(&job.b, i)).collect();
    for row in 0..m {
        let a = words(&job.a, row);
        for (column, b) in b.iter().enumerate() {
            let count: u32 = a.iter().zip(b).map(|(x, y)| (x & y).count_ones()).sum();
            let register = row / 16 * registers + column / 8 * 4 + row / 8 % 2 * 2 + column % 2;
            let word = &mut d[register][row % 8 * 4 + column % 8 / 2];
            *word = word.wrapping_add(count);
        }
    }
}

/// Clears the low 29 bits of an f64, leaving a sticky bit: exactly representable in f32, and rounding it further down
/// gives what rounding the original would.
#[inline(always)]
fn round_to_odd(bits: u64) -> u64 {
    const LOW: u64 = (1 << 29) - 1;
    (bits | ((bits & LOW) + LOW)) & !LOW
}

/// f16 to nearest even of a finite value whose zero results are to be +0.
#[inline(always)]
fn f16_bits_nearest(value: f32) -> u32 {
    let magnitude = value.to_bits() & 0x7fff_ffff;
    let half = if magnitude >= 0x477f_f000 {
        0x7c00
    } else if magnitude >= 0x3880_0000 {
        // Normal: round at bit 13, ties to even; the carry runs into the exponent.
        (magnitude - (112 << 23) + 0xfff + (magnitude >> 13 & 1)) >> 13
    } else {
        // Below 2^-14: adding 2^-14·2^13 = 0.5 puts the last bit of the sum at 2^-24.
        (f32::from_bits(magnitude) + 0.5).to_bits() - 0.5f32.to_bits()
    };
    if half == 0 {
        0
    } else {
        half | (value.to_bits() >> 16 & 0x8000)
    }
}
