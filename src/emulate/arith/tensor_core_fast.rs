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
//! so the truncating conversion is the cut, and 16 products fit an i32. The sum with C is exact in f64 and is rounded once.
//! Outputs where that does not hold (infinities and NaNs, which decode to an exponent above all others; `E` outside
//! [-76, 120], where scale factors or results leave the normal f32 range) are seen by their `E` and recomputed by the
//! reference. A product too small for f32 is only ever inexact where the cut makes it zero.

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
            let mut sums = [0i32; 32];
            for k in 0..depth {
                let (a, b) = (&self.a_values[a + k].0, &self.b_values[b + k]);
                for lane in 0..32 {
                    // Wrapping: a special lane's values saturate, and its result is not used.
                    sums[lane] = sums[lane].wrapping_add((a[lane] * b[lane % 4] * scale[lane]) as i32);
                }
            }
            let mut out = [0; 32];
            for lane in 0..32 {
                let sum = f64::from(sums[lane]) + f64::from((c_values[lane] * scale[lane]) as i32);
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

#[cfg(target_arch = "x86_64")]
mod avx2 {
    //! The kernels for AVX2 + F16C, eight lanes at a time.
    use super::*;
    use std::arch::x86_64::*;

    #[target_feature(enable = "avx2,f16c,popcnt")]
    pub(super) fn execute(core: &mut TensorCore, job: &Job, d: &mut [Fragment]) {
        let kind = job.instruction.kind;
        if kind.a() == Element::B1 {
            return execute_bits(job, d);
        }
        decode(core, job);
        match (kind.accumulator(), kind.a()) {
            (Accumulator::F32 | Accumulator::F16, Element::Bf16 | Element::Tf32) => {
                floats::<true, false, 25, 29>(core, job, d)
            }
            (Accumulator::F32, Element::F16) => floats::<false, false, 25, 29>(core, job, d),
            (Accumulator::F16, Element::F16) => floats::<false, true, 25, 29>(core, job, d),
            (Accumulator::F32, _) => floats::<false, false, 13, 39>(core, job, d),
            (Accumulator::F16, _) => floats::<false, true, 13, 29>(core, job, d),
            (Accumulator::S32, _) => integers::<false>(core, job, d),
            (Accumulator::S32Saturating, _) => integers::<true>(core, job, d),
        }
    }

    /// Codes of four rows at two successive k, as [k][row] in 32-bit lanes. For 8-bit integers a code is a pair of bytes.
    type Codes = __m256i;

    #[target_feature(enable = "avx2,f16c")]
    fn decode(core: &mut TensorCore, job: &Job) {
        let Instruction { kind, m, n, negate, .. } = job.instruction;
        let is_float = matches!(kind.accumulator(), Accumulator::F32 | Accumulator::F16);
        let sign = _mm256_set1_ps(if negate && is_float { -0.0 } else { 0.0 });
        let depth = match kind.a() {
            Element::S8 | Element::U8 => job.instruction.elements() / 2,
            _ => job.instruction.elements(),
        };
        macro_rules! both {
            ($decode_a:ident, $decode_b:ident, $a:ident, $b:ident) => {{
                $decode_a(core, job, depth, |codes| {
                    let (values, exponents) = $a(codes);
                    (_mm256_xor_ps(values, sign), exponents)
                });
                $decode_b(core, job, depth, |codes| $b(codes));
            }};
        }
        core.a_values.resize(m / 8 * depth, Lanes([0.0; 32]));
        core.b_values.resize(n / 4 * depth, [0.0; 4]);
        let is_wide = matches!(kind.a(), Element::Bf16 | Element::Tf32);
        if is_wide {
            core.a_exponents.resize(m / 8 * depth, Lanes([0; 32]));
            core.b_exponents.resize(n / 4 * depth, [0; 4]);
        } else {
            core.a_narrow.resize(m / 8 * depth, Lanes([0; 32]));
            core.b_narrow.resize(n / 4 * depth, [0; 4]);
        }
        match (kind.a(), kind.b()) {
            (Element::F16, _) => both!(decode_a, decode_b, f16, f16),
            (Element::Bf16, _) => both!(decode_a_wide, decode_b_wide, bf16, bf16),
            (Element::Tf32, _) => both!(decode_a_wide, decode_b_wide, tf32, tf32),
            (Element::E4m3, Element::E4m3) => both!(decode_a, decode_b, e4m3, e4m3),
            (Element::E4m3, _) => both!(decode_a, decode_b, e4m3, e5m2),
            (Element::E5m2, Element::E4m3) => both!(decode_a, decode_b, e5m2, e4m3),
            (Element::E5m2, _) => both!(decode_a, decode_b, e5m2, e5m2),
            (Element::S8, Element::S8) => both!(decode_a, decode_b, s8, s8),
            (Element::S8, _) => both!(decode_a, decode_b, s8, u8),
            (Element::U8, Element::S8) => both!(decode_a, decode_b, u8, s8),
            (Element::U8, _) => both!(decode_a, decode_b, u8, u8),
            (Element::B1, _) => unreachable!("bits are not decoded"),
        }
    }

    /// max(field, 1) - bias, or the marks.
    #[inline]
    #[target_feature(enable = "avx2")]
    fn exponents(field: __m256i, is_zero: __m256i, is_special: __m256i, bias: i32, marks: &Marks) -> __m256i {
        let finite = _mm256_sub_epi32(_mm256_max_epi32(field, _mm256_set1_epi32(1)), _mm256_set1_epi32(bias));
        let finite = _mm256_blendv_epi8(finite, _mm256_set1_epi32(marks.zero.into()), is_zero);
        _mm256_blendv_epi8(finite, _mm256_set1_epi32(marks.special.into()), is_special)
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    fn f16(codes: Codes) -> (__m256, __m256i) {
        let magnitude = _mm256_and_si256(codes, _mm256_set1_epi32(0x7fff));
        let field = _mm256_srli_epi32::<10>(magnitude);
        let is_zero = _mm256_cmpeq_epi32(magnitude, _mm256_setzero_si256());
        let is_special = _mm256_cmpeq_epi32(field, _mm256_set1_epi32(31));
        let value = _mm256_mul_ps(
            _mm256_castsi256_ps(_mm256_slli_epi32::<13>(magnitude)),
            _mm256_castsi256_ps(_mm256_set1_epi32((127 + 112) << 23)),
        );
        let sign = _mm256_slli_epi32::<16>(_mm256_xor_si256(codes, magnitude));
        (
            _mm256_or_ps(value, _mm256_castsi256_ps(sign)),
            exponents(field, is_zero, is_special, 15, &NARROW),
        )
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    fn bf16(codes: Codes) -> (__m256, __m256i) {
        tf32(_mm256_slli_epi32::<16>(codes))
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    fn tf32(codes: Codes) -> (__m256, __m256i) {
        let codes = _mm256_and_si256(codes, _mm256_set1_epi32(!0x1fff));
        let field = _mm256_and_si256(_mm256_srli_epi32::<23>(codes), _mm256_set1_epi32(255));
        let is_zero = _mm256_cmpeq_epi32(_mm256_add_epi32(codes, codes), _mm256_setzero_si256());
        let is_special = _mm256_cmpeq_epi32(field, _mm256_set1_epi32(255));
        (
            _mm256_castsi256_ps(codes),
            exponents(field, is_zero, is_special, 127, &WIDE),
        )
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    fn e5m2(codes: Codes) -> (__m256, __m256i) {
        // The high byte of an f16.
        f16(_mm256_slli_epi32::<8>(codes))
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    fn e4m3(codes: Codes) -> (__m256, __m256i) {
        let magnitude = _mm256_and_si256(codes, _mm256_set1_epi32(0x7f));
        let field = _mm256_srli_epi32::<3>(magnitude);
        let is_zero = _mm256_cmpeq_epi32(magnitude, _mm256_setzero_si256());
        let is_special = _mm256_cmpeq_epi32(magnitude, _mm256_set1_epi32(0x7f));
        let value = _mm256_mul_ps(
            _mm256_castsi256_ps(_mm256_slli_epi32::<20>(magnitude)),
            _mm256_castsi256_ps(_mm256_set1_epi32((127 + 120) << 23)),
        );
        let sign = _mm256_slli_epi32::<24>(_mm256_xor_si256(codes, magnitude));
        (
            _mm256_or_ps(value, _mm256_castsi256_ps(sign)),
            exponents(field, is_zero, is_special, 7, &NARROW),
        )
    }

    /// Two signed bytes as two i16.
    #[inline]
    #[target_feature(enable = "avx2")]
    fn s8(codes: Codes) -> (__m256, __m256i) {
        let first = _mm256_srai_epi32::<24>(_mm256_slli_epi32::<24>(codes));
        let second = _mm256_slli_epi32::<16>(_mm256_srai_epi32::<24>(_mm256_slli_epi32::<16>(codes)));
        let pair = _mm256_blend_epi16::<0b1010_1010>(first, second);
        (_mm256_castsi256_ps(pair), _mm256_setzero_si256())
    }

    /// Two unsigned bytes as two i16.
    #[inline]
    #[target_feature(enable = "avx2")]
    fn u8(codes: Codes) -> (__m256, __m256i) {
        let first = _mm256_and_si256(codes, _mm256_set1_epi32(0xff));
        let second = _mm256_slli_epi32::<8>(_mm256_and_si256(codes, _mm256_set1_epi32(0xff00)));
        (
            _mm256_castsi256_ps(_mm256_or_si256(first, second)),
            _mm256_setzero_si256(),
        )
    }

    /// All codes of rows `first`, `first + stride`, … (four of them), two k in each vector, as many as there are.
    #[inline]
    #[target_feature(enable = "avx2")]
    fn gather(job: &Job, operand: &Operand, extent: usize, first: usize, stride: usize, out: &mut [Codes; 16]) {
        let Instruction { kind, k_bytes, .. } = job.instruction;
        if operand.major == Major::Mn {
            // 16-bit elements: four rows of one k are among eight successive elements.
            let pick = match stride {
                1 => _mm_setr_epi8(0, 1, 2, 3, 4, 5, 6, 7, -1, -1, -1, -1, -1, -1, -1, -1),
                _ => _mm_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, -1, -1, -1, -1, -1, -1, -1, -1),
            };
            // The eight are those of the group of 8 rows, so that no load leaves the tile.
            let group = first / 8 * 8;
            for (pair, out) in out.iter_mut().enumerate().take(k_bytes / 4) {
                let row = |k: usize| {
                    let bytes = &operand.bytes[(k * extent + group) * 2..][..16];
                    // SAFETY: 16 bytes.
                    let all = unsafe { _mm_loadu_si128(bytes.as_ptr().cast()) };
                    let all = match first - group {
                        0 => all,
                        1 => _mm_srli_si128::<2>(all),
                        _ => _mm_srli_si128::<8>(all),
                    };
                    _mm_shuffle_epi8(all, pick)
                };
                *out = _mm256_cvtepu16_epi32(_mm_unpacklo_epi64(row(2 * pair), row(2 * pair + 1)));
            }
            return;
        }
        for chunk in 0..k_bytes / 16 {
            let rows: [__m128i; 4] = std::array::from_fn(|i| {
                let bytes = &operand.bytes[(first + i * stride) * k_bytes + chunk * 16..][..16];
                // SAFETY: 16 bytes.
                unsafe { _mm_loadu_si128(bytes.as_ptr().cast()) }
            });
            match kind.a() {
                Element::Tf32 => {
                    let (low01, high01) = (
                        _mm_unpacklo_epi32(rows[0], rows[1]),
                        _mm_unpackhi_epi32(rows[0], rows[1]),
                    );
                    let (low23, high23) = (
                        _mm_unpacklo_epi32(rows[2], rows[3]),
                        _mm_unpackhi_epi32(rows[2], rows[3]),
                    );
                    let k = |low, high| _mm256_set_m128i(_mm_unpackhi_epi64(low, high), _mm_unpacklo_epi64(low, high));
                    out[2 * chunk] = k(low01, low23);
                    out[2 * chunk + 1] = k(high01, high23);
                }
                Element::F16 | Element::Bf16 | Element::S8 | Element::U8 => {
                    let (low01, high01) = (
                        _mm_unpacklo_epi16(rows[0], rows[1]),
                        _mm_unpackhi_epi16(rows[0], rows[1]),
                    );
                    let (low23, high23) = (
                        _mm_unpacklo_epi16(rows[2], rows[3]),
                        _mm_unpackhi_epi16(rows[2], rows[3]),
                    );
                    let out = &mut out[4 * chunk..][..4];
                    out[0] = _mm256_cvtepu16_epi32(_mm_unpacklo_epi32(low01, low23));
                    out[1] = _mm256_cvtepu16_epi32(_mm_unpackhi_epi32(low01, low23));
                    out[2] = _mm256_cvtepu16_epi32(_mm_unpacklo_epi32(high01, high23));
                    out[3] = _mm256_cvtepu16_epi32(_mm_unpackhi_epi32(high01, high23));
                }
                Element::E4m3 | Element::E5m2 | Element::B1 => {
                    let (low01, high01) = (_mm_unpacklo_epi8(rows[0], rows[1]), _mm_unpackhi_epi8(rows[0], rows[1]));
                    let (low23, high23) = (_mm_unpacklo_epi8(rows[2], rows[3]), _mm_unpackhi_epi8(rows[2], rows[3]));
                    let quads = [
                        _mm_unpacklo_epi16(low01, low23),
                        _mm_unpackhi_epi16(low01, low23),
                        _mm_unpacklo_epi16(high01, high23),
                        _mm_unpackhi_epi16(high01, high23),
                    ];
                    for (i, quad) in quads.into_iter().enumerate() {
                        out[8 * chunk + 2 * i] = _mm256_cvtepu8_epi32(quad);
                        out[8 * chunk + 2 * i + 1] = _mm256_cvtepu8_epi32(_mm_srli_si128::<8>(quad));
                    }
                }
            }
        }
    }

    /// Eight i32 as i16, saturating (exponents never do).
    #[inline]
    #[target_feature(enable = "avx2")]
    fn pack16(x: __m256i) -> __m128i {
        _mm_packs_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256::<1>(x))
    }

    /// Two k of four rows of A into their lanes: rows `4·half..` of a group of eight, each four times.
    #[inline]
    #[target_feature(enable = "avx2")]
    fn store_a_values(values: __m256, half: usize, out: &mut [F32x32]) {
        for (k, out) in out.iter_mut().enumerate() {
            let (first, second) = if k == 0 {
                (
                    _mm256_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1),
                    _mm256_setr_epi32(2, 2, 2, 2, 3, 3, 3, 3),
                )
            } else {
                (
                    _mm256_setr_epi32(4, 4, 4, 4, 5, 5, 5, 5),
                    _mm256_setr_epi32(6, 6, 6, 6, 7, 7, 7, 7),
                )
            };
            let lanes = &mut out.0[half * 16..][..16];
            // SAFETY: 16 floats.
            unsafe {
                _mm256_storeu_ps(lanes.as_mut_ptr(), _mm256_permutevar8x32_ps(values, first));
                _mm256_storeu_ps(lanes.as_mut_ptr().add(8), _mm256_permutevar8x32_ps(values, second));
            }
        }
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    fn decode_a(core: &mut TensorCore, job: &Job, depth: usize, decode: impl Fn(Codes) -> (__m256, __m256i)) {
        let m = job.instruction.m;
        let mut codes = [_mm256_setzero_si256(); 16];
        for four in 0..m / 4 {
            let (at, half) = (four / 2 * depth, four % 2);
            gather(job, &job.a, m, four * 4, 1, &mut codes);
            let values_out = core.a_values[at..][..depth].chunks_exact_mut(2);
            let exponents_out = core.a_narrow[at..][..depth].chunks_exact_mut(2);
            for ((codes, values_out), exponents_out) in codes.iter().zip(values_out).zip(exponents_out) {
                let (values, exponents) = decode(*codes);
                store_a_values(values, half, values_out);
                let bytes = _mm_packs_epi16(pack16(exponents), _mm_setzero_si128());
                let first = _mm_setr_epi8(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3);
                let second = _mm_add_epi8(first, _mm_set1_epi8(4));
                let [x, y] = exponents_out else {
                    unreachable!("chunks of two")
                };
                let (x, y) = (&mut x.0[half * 16..][..16], &mut y.0[half * 16..][..16]);
                // SAFETY: 16 bytes each.
                unsafe {
                    _mm_storeu_si128(x.as_mut_ptr().cast(), _mm_shuffle_epi8(bytes, first));
                    _mm_storeu_si128(y.as_mut_ptr().cast(), _mm_shuffle_epi8(bytes, second));
                }
            }
        }
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    fn decode_a_wide(core: &mut TensorCore, job: &Job, depth: usize, decode: impl Fn(Codes) -> (__m256, __m256i)) {
        let m = job.instruction.m;
        let mut codes = [_mm256_setzero_si256(); 16];
        for four in 0..m / 4 {
            let (at, half) = (four / 2 * depth, four % 2);
            gather(job, &job.a, m, four * 4, 1, &mut codes);
            let values_out = core.a_values[at..][..depth].chunks_exact_mut(2);
            let exponents_out = core.a_exponents[at..][..depth].chunks_exact_mut(2);
            for ((codes, values_out), exponents_out) in codes.iter().zip(values_out).zip(exponents_out) {
                let (values, exponents) = decode(*codes);
                store_a_values(values, half, values_out);
                let shorts = pack16(exponents);
                let shorts = _mm256_set_m128i(shorts, shorts);
                let first = _mm256_setr_epi8(
                    0, 1, 0, 1, 0, 1, 0, 1, 2, 3, 2, 3, 2, 3, 2, 3, 4, 5, 4, 5, 4, 5, 4, 5, 6, 7, 6, 7, 6, 7, 6, 7,
                );
                let second = _mm256_add_epi8(first, _mm256_set1_epi8(8));
                let [x, y] = exponents_out else {
                    unreachable!("chunks of two")
                };
                let (x, y) = (&mut x.0[half * 16..][..16], &mut y.0[half * 16..][..16]);
                // SAFETY: 16 shorts each.
                unsafe {
                    _mm256_storeu_si256(x.as_mut_ptr().cast(), _mm256_shuffle_epi8(shorts, first));
                    _mm256_storeu_si256(y.as_mut_ptr().cast(), _mm256_shuffle_epi8(shorts, second));
                }
            }
        }
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    fn decode_b(core: &mut TensorCore, job: &Job, depth: usize, decode: impl Fn(Codes) -> (__m256, __m256i)) {
        let n = job.instruction.n;
        let mut codes = [_mm256_setzero_si256(); 16];
        for four in 0..n / 4 {
            // Columns of one parity in a group of eight.
            gather(job, &job.b, n, four / 2 * 8 + four % 2, 2, &mut codes);
            let values_out = core.b_values[four * depth..][..depth].chunks_exact_mut(2);
            let exponents_out = core.b_narrow[four * depth..][..depth].chunks_exact_mut(2);
            for ((codes, values_out), exponents_out) in codes.iter().zip(values_out).zip(exponents_out) {
                let (values, exponents) = decode(*codes);
                let bytes = _mm_packs_epi16(pack16(exponents), _mm_setzero_si128());
                // SAFETY: two times four floats, two times four bytes.
                unsafe {
                    _mm256_storeu_ps(values_out.as_mut_ptr().cast(), values);
                    _mm_storel_epi64(exponents_out.as_mut_ptr().cast(), bytes);
                }
            }
        }
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    fn decode_b_wide(core: &mut TensorCore, job: &Job, depth: usize, decode: impl Fn(Codes) -> (__m256, __m256i)) {
        let n = job.instruction.n;
        let mut codes = [_mm256_setzero_si256(); 16];
        for four in 0..n / 4 {
            // Columns of one parity in a group of eight.
            gather(job, &job.b, n, four / 2 * 8 + four % 2, 2, &mut codes);
            let values_out = core.b_values[four * depth..][..depth].chunks_exact_mut(2);
            let exponents_out = core.b_exponents[four * depth..][..depth].chunks_exact_mut(2);
            for ((codes, values_out), exponents_out) in codes.iter().zip(values_out).zip(exponents_out) {
                let (values, exponents) = decode(*codes);
                // SAFETY: two times four floats, two times four shorts.
                unsafe {
                    _mm256_storeu_ps(values_out.as_mut_ptr().cast(), values);
                    _mm_storeu_si128(exponents_out.as_mut_ptr().cast(), pack16(exponents));
                }
            }
        }
    }

    /// Largest exponent sums of the blocks of both column parities, as marked exponents in `[parity][lane]`.
    #[inline]
    #[target_feature(enable = "avx2,f16c")]
    fn largest_exponents<const IS_WIDE: bool>(
        core: &TensorCore,
        g: usize,
        j: usize,
        depth: usize,
    ) -> [[__m256i; 4]; 2] {
        let mut out = [[_mm256_setzero_si256(); 4]; 2];
        if IS_WIDE {
            let a = &core.a_exponents[g * depth..][..depth];
            let mut largest = [[_mm256_set1_epi16(i16::MIN); 2]; 2];
            for (p, largest) in largest.iter_mut().enumerate() {
                let b = &core.b_exponents[(j * 2 + p) * depth..][..depth];
                for (a, b) in a.iter().zip(b) {
                    // SAFETY: 64 bytes of i16, 8 bytes of i16.
                    let (low, high, b) = unsafe {
                        let a = a.0.as_ptr().cast::<__m256i>();
                        (
                            _mm256_load_si256(a),
                            _mm256_load_si256(a.add(1)),
                            b.as_ptr().cast::<i64>().read_unaligned(),
                        )
                    };
                    let b = _mm256_set1_epi64x(b);
                    largest[0] = _mm256_max_epi16(largest[0], _mm256_add_epi16(low, b));
                    largest[1] = _mm256_max_epi16(largest[1], _mm256_add_epi16(high, b));
                }
                for v in 0..4 {
                    let part = largest[v / 2];
                    let part = if v % 2 == 0 {
                        _mm256_castsi256_si128(part)
                    } else {
                        _mm256_extracti128_si256::<1>(part)
                    };
                    out[p][v] = _mm256_cvtepi16_epi32(part);
                }
            }
        } else {
            let a = &core.a_narrow[g * depth..][..depth];
            let b0 = &core.b_narrow[j * 2 * depth..][..depth];
            let b1 = &core.b_narrow[(j * 2 + 1) * depth..][..depth];
            let mut largest = [_mm256_set1_epi8(i8::MIN); 2];
            for ((a, b0), b1) in a.iter().zip(b0).zip(b1) {
                // SAFETY: 32 bytes.
                let a = unsafe { _mm256_load_si256(a.0.as_ptr().cast()) };
                let b0 = _mm256_set1_epi32(i32::from_ne_bytes(b0.map(|e| e as u8)));
                let b1 = _mm256_set1_epi32(i32::from_ne_bytes(b1.map(|e| e as u8)));
                largest[0] = _mm256_max_epi8(largest[0], _mm256_adds_epi8(a, b0));
                largest[1] = _mm256_max_epi8(largest[1], _mm256_adds_epi8(a, b1));
            }
            for (out, largest) in out.iter_mut().zip(largest) {
                let (low, high) = (_mm256_castsi256_si128(largest), _mm256_extracti128_si256::<1>(largest));
                *out = [
                    _mm256_cvtepi8_epi32(low),
                    _mm256_cvtepi8_epi32(_mm_srli_si128::<8>(low)),
                    _mm256_cvtepi8_epi32(high),
                    _mm256_cvtepi8_epi32(_mm_srli_si128::<8>(high)),
                ];
            }
        }
        out
    }

    #[target_feature(enable = "avx2,f16c")]
    fn floats<const IS_WIDE: bool, const IS_F16: bool, const FRACTION: i32, const CUT: i32>(
        core: &TensorCore,
        job: &Job,
        d: &mut [Fragment],
    ) {
        let Instruction { m, n, .. } = job.instruction;
        let (depth, registers) = (job.instruction.elements(), job.instruction.registers());
        for g in 0..m / 8 {
            for j in 0..n / 8 {
                let largest = largest_exponents::<IS_WIDE>(core, g, j, depth);
                if IS_F16 {
                    let row = &mut d[g / 2 * registers + j * 2 + g % 2];
                    block::<IS_WIDE, true, FRACTION, CUT>(core, job, (g, j, 0), &largest[0], row);
                    block::<IS_WIDE, true, FRACTION, CUT>(core, job, (g, j, 1), &largest[1], row);
                } else {
                    let at = g / 2 * registers + j * 4 + g % 2 * 2;
                    block::<IS_WIDE, false, FRACTION, CUT>(core, job, (g, j, 0), &largest[0], &mut d[at]);
                    block::<IS_WIDE, false, FRACTION, CUT>(core, job, (g, j, 1), &largest[1], &mut d[at + 1]);
                }
            }
        }
    }

    /// One [`Fragment`] of outputs, in place; f16 ones are the low or the high halves, by column parity.
    #[inline]
    #[target_feature(enable = "avx2,f16c")]
    fn block<const IS_WIDE: bool, const IS_F16: bool, const FRACTION: i32, const CUT: i32>(
        core: &TensorCore,
        job: &Job,
        (g, j, p): (usize, usize, usize),
        largest: &[__m256i; 4],
        row: &mut Fragment,
    ) {
        let marks = if IS_WIDE { &WIDE } else { &NARROW };
        let depth = job.instruction.elements();
        let zero = _mm256_setzero_si256();
        let mut exponents = [zero; 4];
        let mut scales = [_mm256_setzero_ps(); 4];
        let mut sums = [zero; 4];
        let mut c_parts = [zero; 4];
        let mut bad = 0;
        for v in 0..4 {
            // SAFETY: 8 of the 32 words.
            let c = unsafe { _mm256_loadu_si256(row.as_ptr().cast::<__m256i>().add(v)) };
            let special = _mm256_cmpgt_epi32(largest[v], _mm256_set1_epi32(marks.special_above));
            let (value, exponent, is_bad);
            if IS_F16 {
                let c = if p == 0 {
                    _mm256_and_si256(c, _mm256_set1_epi32(0xffff))
                } else {
                    _mm256_srli_epi32::<16>(c)
                };
                let field = _mm256_and_si256(_mm256_srli_epi32::<10>(c), _mm256_set1_epi32(31));
                let c_special = _mm256_cmpeq_epi32(field, _mm256_set1_epi32(31));
                // A zero has the exponent of a denormal here: -14, not to be counted.
                let is_zero = _mm256_cmpeq_epi32(_mm256_and_si256(c, _mm256_set1_epi32(0x7fff)), zero);
                let c_exponent = _mm256_sub_epi32(_mm256_max_epi32(field, _mm256_set1_epi32(1)), _mm256_set1_epi32(15));
                let c_exponent = _mm256_blendv_epi8(c_exponent, _mm256_set1_epi32(LEAST_F16_EXPONENT), is_zero);
                let low = _mm256_max_epi32(c_exponent, _mm256_set1_epi32(LEAST_F16_EXPONENT));
                exponent = _mm256_max_epi32(largest[v], low);
                is_bad = _mm256_or_si256(special, c_special);
                let packed = _mm_packus_epi32(_mm256_castsi256_si128(c), _mm256_extracti128_si256::<1>(c));
                value = _mm256_cvtph_ps(packed);
            } else {
                let field = _mm256_and_si256(_mm256_srli_epi32::<23>(c), _mm256_set1_epi32(255));
                let is_zero = _mm256_cmpeq_epi32(_mm256_add_epi32(c, c), zero);
                // Zero has field 0, so -127, like denormals: below what is fast, and above nothing that is.
                let c_exponent = _mm256_sub_epi32(field, _mm256_set1_epi32(127));
                // The exponent of zero products (-1 << 16) is below every C's.
                let no_product = _mm256_cmpgt_epi32(_mm256_set1_epi32(marks.zero_below), largest[v]);
                let counted = _mm256_add_epi32(largest[v], _mm256_slli_epi32::<16>(no_product));
                let both = _mm256_max_epi32(counted, c_exponent);
                let nothing = _mm256_and_si256(is_zero, no_product);
                let low = _mm256_cmpgt_epi32(_mm256_set1_epi32(LEAST_FAST_EXPONENT), both);
                let high = _mm256_cmpgt_epi32(both, _mm256_set1_epi32(LARGEST_FAST_EXPONENT));
                is_bad = _mm256_or_si256(_mm256_andnot_si256(nothing, low), _mm256_or_si256(high, special));
                exponent = _mm256_min_epi32(
                    _mm256_max_epi32(both, _mm256_set1_epi32(LEAST_FAST_EXPONENT)),
                    _mm256_set1_epi32(LARGEST_FAST_EXPONENT),
                );
                value = _mm256_castsi256_ps(c);
            }
            bad |= (_mm256_movemask_ps(_mm256_castsi256_ps(is_bad)) as u32) << (8 * v);
            let scale = _mm256_slli_epi32::<23>(_mm256_sub_epi32(_mm256_set1_epi32(FRACTION + 127), exponent));
            scales[v] = _mm256_castsi256_ps(scale);
            c_parts[v] = _mm256_cvttps_epi32(_mm256_mul_ps(value, scales[v]));
            exponents[v] = exponent;
        }

        let a = &core.a_values[g * depth..][..depth];
        let b = &core.b_values[(j * 2 + p) * depth..][..depth];
        for (a, b) in a.iter().zip(b) {
            // SAFETY: 16 bytes.
            let b = unsafe { _mm_loadu_ps(b.as_ptr()) };
            let b = _mm256_set_m128(b, b);
            for v in 0..4 {
                // SAFETY: 8 of 32 aligned values.
                let a = unsafe { _mm256_load_ps(a.0.as_ptr().add(8 * v)) };
                let cut = _mm256_cvttps_epi32(_mm256_mul_ps(_mm256_mul_ps(a, b), scales[v]));
                sums[v] = _mm256_add_epi32(sums[v], cut);
            }
        }

        let mut results = [zero; 4];
        for v in 0..4 {
            let half = |sum: __m128i, c: __m128i| {
                let sum = _mm256_add_pd(_mm256_cvtepi32_pd(sum), _mm256_cvtepi32_pd(c));
                let bits = _mm256_castpd_si256(sum);
                let low = _mm256_set1_epi64x((1 << CUT) - 1);
                let kept = if IS_F16 {
                    _mm256_or_si256(bits, _mm256_add_epi64(_mm256_and_si256(bits, low), low))
                } else {
                    bits
                };
                _mm256_cvtpd_ps(_mm256_castsi256_pd(_mm256_andnot_si256(low, kept)))
            };
            let low = half(_mm256_castsi256_si128(sums[v]), _mm256_castsi256_si128(c_parts[v]));
            let high = half(
                _mm256_extracti128_si256::<1>(sums[v]),
                _mm256_extracti128_si256::<1>(c_parts[v]),
            );
            let unscale = _mm256_slli_epi32::<23>(_mm256_add_epi32(exponents[v], _mm256_set1_epi32(127 - FRACTION)));
            let result = _mm256_mul_ps(_mm256_set_m128(high, low), _mm256_castsi256_ps(unscale));
            let bits = if IS_F16 {
                let halves = _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(result);
                let is_negative_zero = _mm_cmpeq_epi16(halves, _mm_set1_epi16(i16::MIN));
                _mm256_cvtepu16_epi32(_mm_andnot_si128(is_negative_zero, halves))
            } else {
                _mm256_castps_si256(result)
            };
            results[v] = bits;
        }
        let before = if bad == 0 { None } else { Some(*row) };
        for (v, result) in results.into_iter().enumerate() {
            // SAFETY: 8 of the 32 words.
            let at = unsafe { row.as_mut_ptr().cast::<__m256i>().add(v) };
            let result = if IS_F16 {
                // SAFETY: as above.
                let old = unsafe { _mm256_loadu_si256(at) };
                if p == 0 {
                    _mm256_blend_epi16::<0b1010_1010>(result, old)
                } else {
                    _mm256_blend_epi16::<0b1010_1010>(old, _mm256_slli_epi32::<16>(result))
                }
            } else {
                result
            };
            // SAFETY: as above.
            unsafe { _mm256_storeu_si256(at, result) };
        }
        if let Some(before) = before {
            job.patch((g, j, p), bad, &before, row);
        }
    }

    #[target_feature(enable = "avx2")]
    fn integers<const SATURATING: bool>(core: &TensorCore, job: &Job, d: &mut [Fragment]) {
        let Instruction { m, n, k_bytes, .. } = job.instruction;
        let (depth, registers) = (k_bytes / 2, job.instruction.registers());
        for (g, j, p) in blocks(m, n) {
            // Pairs of i16 in the place of values.
            let a = &core.a_values[g * depth..][..depth];
            let b = &core.b_values[(j * 2 + p) * depth..][..depth];
            let mut sums = [_mm256_setzero_si256(); 4];
            for (a, b) in a.iter().zip(b) {
                // SAFETY: 16 bytes; 128 aligned bytes.
                let b = _mm256_broadcastsi128_si256(unsafe { _mm_loadu_si128(b.as_ptr().cast()) });
                for (v, sum) in sums.iter_mut().enumerate() {
                    let a = unsafe { _mm256_load_si256(a.0.as_ptr().cast::<__m256i>().add(v)) };
                    *sum = _mm256_add_epi32(*sum, _mm256_madd_epi16(a, b));
                }
            }
            let row = d[g / 2 * registers + j * 4 + g % 2 * 2 + p]
                .as_mut_ptr()
                .cast::<__m256i>();
            for (v, &sum) in sums.iter().enumerate() {
                // SAFETY: 8 of the row's 32 words.
                let c = unsafe { _mm256_loadu_si256(row.add(v)) };
                let mut result = _mm256_add_epi32(c, sum);
                if SATURATING {
                    let overflow = _mm256_and_si256(_mm256_xor_si256(c, result), _mm256_xor_si256(sum, result));
                    let limit = _mm256_xor_si256(_mm256_srai_epi32::<31>(c), _mm256_set1_epi32(i32::MAX));
                    result = _mm256_castps_si256(_mm256_blendv_ps(
                        _mm256_castsi256_ps(result),
                        _mm256_castsi256_ps(limit),
                        _mm256_castsi256_ps(overflow),
                    ));
                }
                // SAFETY: as above.
                unsafe { _mm256_storeu_si256(row.add(v), result) };
            }
        }
    }
}
