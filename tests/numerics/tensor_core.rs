//! The tensor core: the reference against 40,994 results of an H200, the tile path against both.

use crate::rng::Rng;
use smalt::emulate::arith::convert::{Fp8, fp8_to_f16};
use smalt::emulate::arith::mma_sync::{mma_sync, mma_sync_fp8};
use smalt::emulate::arith::tensor_core::{Accumulator, Element, MmaKind, step};
use smalt::emulate::arith::tensor_core_fast::{
    Fragment, Instruction, Major, Operand, TensorCore, fragment_position, gather_a_fragments, gather_b_fragments,
};

/// One `wgmma` output of the hardware: rows of A and B along K, C, D. 72 bytes in a file, little endian.
struct Record {
    a: [u8; 32],
    b: [u8; 32],
    c: u32,
    d: u32,
}

macro_rules! record_files {
    ($($file:literal: $a:ident $b:ident $accumulator:ident $count:literal),* $(,)?) => {
        const FILES: &[(&str, &[u8], Element, Element, Accumulator, usize)] = &[$((
            $file,
            include_bytes!(concat!("data/", $file, ".bin")),
            Element::$a,
            Element::$b,
            Accumulator::$accumulator,
            $count,
        )),*];
    };
}

record_files! {
    "f16_f16_f32": F16 F16 F32 2837,
    "bf16_bf16_f32": Bf16 Bf16 F32 2882,
    "tf32_tf32_f32": Tf32 Tf32 F32 2978,
    "f16_f16_f16": F16 F16 F16 2805,
    "e4m3_e4m3_f32": E4m3 E4m3 F32 2969,
    "e4m3_e5m2_f32": E4m3 E5m2 F32 2935,
    "e5m2_e4m3_f32": E5m2 E4m3 F32 2882,
    "e5m2_e5m2_f32": E5m2 E5m2 F32 2943,
    "e4m3_e4m3_f16": E4m3 E4m3 F16 2990,
    "e4m3_e5m2_f16": E4m3 E5m2 F16 2856,
    "e5m2_e4m3_f16": E5m2 E4m3 F16 2878,
    "e5m2_e5m2_f16": E5m2 E5m2 F16 2964,
    "s8_s8_s32": S8 S8 S32 1225,
    "s8_u8_s32": S8 U8 S32 600,
    "u8_s8_s32": U8 S8 S32 600,
    "u8_u8_s32": U8 U8 S32 600,
    "s8_s8_s32sat": S8 S8 S32Saturating 600,
    "s8_u8_s32sat": S8 U8 S32Saturating 625,
    "u8_s8_s32sat": U8 S8 S32Saturating 600,
    "u8_u8_s32sat": U8 U8 S32Saturating 625,
    "b1_b1_s32": B1 B1 S32 600,
}

fn records(bytes: &[u8]) -> Vec<Record> {
    assert_eq!(bytes.len() % 72, 0);
    let word = |bytes: &[u8]| u32::from_le_bytes(bytes.try_into().unwrap());
    bytes
        .chunks_exact(72)
        .map(|r| Record {
            a: r[..32].try_into().unwrap(),
            b: r[32..64].try_into().unwrap(),
            c: word(&r[64..68]),
            d: word(&r[68..]),
        })
        .collect()
}

/// Hopper's kinds, and Blackwell's where they differ.
fn all_kinds() -> impl Iterator<Item = MmaKind> {
    let hopper = |file: &(_, _, Element, Element, Accumulator, _)| MmaKind::new(file.2, file.3, file.4);
    let blackwell = |file: &(_, _, Element, Element, Accumulator, _)| MmaKind::blackwell(file.2, file.3, file.4);
    let is_fp8 = |kind: &MmaKind| matches!(kind.a(), Element::E4m3 | Element::E5m2);
    FILES
        .iter()
        .map(move |file| hopper(file).expect("a kind with records exists"))
        .chain(FILES.iter().filter_map(blackwell).filter(is_fp8))
}

/// Words of a B200: types of A, B and D, rows of A and B, C, D; bytes and words in hexadecimal.
const BLACKWELL: &str = include_str!("data/blackwell.txt");

#[test]
fn reference_reproduces_words_of_a_b200() {
    let element = |name: &str| match name {
        "F16" => Element::F16,
        "Bf16" => Element::Bf16,
        "Tf32" => Element::Tf32,
        "E4m3" => Element::E4m3,
        "E5m2" => Element::E5m2,
        "S8" => Element::S8,
        _ => Element::U8,
    };
    let mut core = TensorCore::default();
    for (i, line) in BLACKWELL.lines().enumerate() {
        let fields: Vec<&str> = line.split(' ').collect();
        let [a, b, d, x, y, c, expected] = fields[..] else {
            panic!("line {i}: {line}")
        };
        let accumulator = match d {
            "F32" => Accumulator::F32,
            "S32" => Accumulator::S32,
            _ => Accumulator::S32Saturating,
        };
        let kind = MmaKind::blackwell(element(a), element(b), accumulator).expect("a kind");
        let row = |hex: &str| -> Vec<u8> {
            (0..32)
                .map(|i| u8::from_str_radix(&hex[2 * i..][..2], 16).unwrap())
                .collect()
        };
        let word = |hex: &str| u32::from_str_radix(hex, 16).unwrap();
        let got = step(kind, &row(x), &row(y), word(c), false);
        assert_eq!(got, word(expected), "line {i}: {line}: {got:08x}");
        let instruction = Instruction {
            kind,
            m: 16,
            n: 8,
            k_bytes: 32,
            scale_d: true,
            negate: false,
        };
        let tile = Tile {
            instruction,
            a: row(x).repeat(16),
            b: row(y).repeat(8),
            c: vec![word(c); 16 * 8],
        };
        tile.check(&mut core, line);
    }
}

#[test]
fn reference_reproduces_every_hardware_record() {
    let mut total = 0;
    for &(name, bytes, a, b, accumulator, count) in FILES {
        let kind = MmaKind::new(a, b, accumulator).unwrap();
        let records = records(bytes);
        assert_eq!(records.len(), count, "{name}");
        for (i, r) in records.iter().enumerate() {
            let d = step(kind, &r.a, &r.b, r.c, false);
            assert_eq!(
                d, r.d,
                "{name} record {i}: got {d:#010x}, the hardware gave {:#010x}",
                r.d
            );
        }
        total += records.len();
    }
    assert_eq!(total, 40_994);
}

/// A tile instruction with its operands in every form that the gatherer may choose, checked against the reference.
struct Tile {
    instruction: Instruction,
    /// Packed rows of A and columns of B, `k_bytes` each.
    a: Vec<u8>,
    b: Vec<u8>,
    /// C, row-major.
    c: Vec<u32>,
}

/// `Major::K` bytes of a 16-bit operand rearranged to `Major::Mn`.
fn transpose(bytes: &[u8], extent: usize, k_bytes: usize) -> Vec<u8> {
    let mut out = vec![0; bytes.len()];
    for i in 0..extent {
        for k in 0..k_bytes / 2 {
            out[(k * extent + i) * 2..][..2].copy_from_slice(&bytes[i * k_bytes + 2 * k..][..2]);
        }
    }
    out
}

impl Tile {
    fn fragments(&self) -> Vec<Fragment> {
        let mut d = vec![[0; 32]; self.instruction.m / 16 * self.instruction.registers()];
        for row in 0..self.instruction.m {
            for column in 0..self.instruction.n {
                let (register, lane, shift) = fragment_position(&self.instruction, row, column);
                d[register][lane] |= self.c[row * self.instruction.n + column] << shift;
            }
        }
        d
    }

    fn output(&self, d: &[Fragment], row: usize, column: usize) -> u32 {
        let (register, lane, shift) = fragment_position(&self.instruction, row, column);
        let word = d[register][lane] >> shift;
        if self.instruction.kind.accumulator() == Accumulator::F16 {
            word & 0xffff
        } else {
            word
        }
    }

    fn expected(&self, row: usize, column: usize) -> u32 {
        let Instruction {
            kind,
            n,
            k_bytes,
            scale_d,
            negate,
            ..
        } = self.instruction;
        let c = if scale_d { self.c[row * n + column] } else { 0 };
        step(
            kind,
            &self.a[row * k_bytes..][..k_bytes],
            &self.b[column * k_bytes..][..k_bytes],
            c,
            negate,
        )
    }

    /// All outputs of the SIMD and the portable path, from both operand forms, against the reference.
    fn check(&self, core: &mut TensorCore, what: &str) -> Vec<Fragment> {
        let Instruction {
            kind, m, n, k_bytes, ..
        } = self.instruction;
        let plain = (
            Operand {
                bytes: &self.a,
                major: Major::K,
            },
            Operand {
                bytes: &self.b,
                major: Major::K,
            },
        );
        let mut d = self.fragments();
        core.execute(self.instruction, plain.0, plain.1, &mut d);
        for row in 0..m {
            for column in 0..n {
                let (got, expected) = (self.output(&d, row, column), self.expected(row, column));
                assert_eq!(
                    got,
                    expected,
                    "{what}: {:?} output ({row}, {column}): {got:#010x} for {expected:#010x}; a {:x?} b {:x?} c {:#010x}",
                    self.instruction,
                    &self.a[row * k_bytes..][..k_bytes],
                    &self.b[column * k_bytes..][..k_bytes],
                    self.c[row * n + column],
                );
            }
        }
        let mut portable = self.fragments();
        core.execute_without_simd(self.instruction, plain.0, plain.1, &mut portable);
        assert!(portable == d, "{what}: {:?} without SIMD", self.instruction);
        if kind.a().bits() == 16 {
            let (a, b) = (transpose(&self.a, m, k_bytes), transpose(&self.b, n, k_bytes));
            let (a, b) = (
                Operand {
                    bytes: &a,
                    major: Major::Mn,
                },
                Operand {
                    bytes: &b,
                    major: Major::Mn,
                },
            );
            for (a, b) in [(plain.0, b), (a, plain.1), (a, b)] {
                let mut transposed = self.fragments();
                core.execute(self.instruction, a, b, &mut transposed);
                assert!(
                    transposed == d,
                    "{what}: {:?} with {:?} and {:?}",
                    self.instruction,
                    a.major,
                    b.major
                );
            }
        }
        d
    }
}

#[test]
fn tiles_reproduce_every_hardware_record() {
    let mut core = TensorCore::default();
    for &(name, bytes, a, b, accumulator, _) in FILES {
        let kind = MmaKind::new(a, b, accumulator).unwrap();
        let instruction = Instruction {
            kind,
            m: 64,
            n: 64,
            k_bytes: 32,
            scale_d: true,
            negate: false,
        };
        let records = records(bytes);
        let mut start = 0;
        while start < records.len() {
            // Record i is output (i, i); the others mix records and are held against the reference.
            let group: Vec<&Record> = (0..64).map(|i| &records[(start + i) % records.len()]).collect();
            let tile = Tile {
                instruction,
                a: group.iter().flat_map(|r| r.a).collect(),
                b: group.iter().flat_map(|r| r.b).collect(),
                c: (0..64 * 64).map(|i| group[i / 64].c).collect(),
            };
            let d = tile.check(&mut core, name);
            for (i, record) in group.iter().enumerate() {
                assert_eq!(
                    tile.output(&d, i, i),
                    record.d,
                    "{name} record {}",
                    (start + i) % records.len()
                );
            }
            start += 64;
        }
    }
}

/// Input classes, after those that the hardware was compared on.
#[derive(Clone, Copy, Debug)]
enum Class {
    RandomBits,
    NearNormal,
    Band,
    Cancellation,
    OneHuge,
    Denormal,
    Overflow,
    ZeroProducts,
    SignedZeros,
    Sprinkled,
    TinyResults,
    SmallIntegers,
}

const CLASSES: [Class; 12] = [
    Class::RandomBits,
    Class::NearNormal,
    Class::Band,
    Class::Cancellation,
    Class::OneHuge,
    Class::Denormal,
    Class::Overflow,
    Class::ZeroProducts,
    Class::SignedZeros,
    Class::Sprinkled,
    Class::TinyResults,
    Class::SmallIntegers,
];

/// (mantissa bits, exponent bits) of a floating-point type.
fn layout(element: Element) -> (u32, u32) {
    match element {
        Element::F16 => (10, 5),
        Element::Bf16 => (7, 8),
        Element::Tf32 => (23, 8),
        Element::E4m3 => (3, 4),
        Element::E5m2 => (2, 5),
        Element::S8 | Element::U8 | Element::B1 => unreachable!(),
    }
}

/// A code with the value's sign and exponent, mantissa cut; enough for test data.
fn encode((mantissa, exponent): (u32, u32), value: f64) -> u32 {
    let bias = (1 << (exponent - 1)) - 1;
    let bits = value.to_bits();
    let sign = ((bits >> 63) as u32) << (mantissa + exponent);
    let field = (bits >> 52 & 0x7ff) as i32 - 1023 + bias;
    if value == 0.0 || field <= 0 {
        return sign;
    }
    let field = field.min((1 << exponent) - 2) as u32;
    sign | field << mantissa | (bits >> (52 - mantissa)) as u32 & ((1 << mantissa) - 1)
}

fn draw(rng: &mut Rng, class: Class, format: (u32, u32), k: usize) -> u32 {
    let (mantissa, exponent) = format;
    let width = mantissa + exponent + 1;
    let bits = (rng.bits() >> 20) as u32 & ((1u64 << width) - 1) as u32;
    let bias = (1u32 << (exponent - 1)) - 1;
    let with_field = |field: u32| bits & !(((1 << exponent) - 1) << mantissa) | field << mantissa;
    match class {
        Class::RandomBits => bits,
        Class::NearNormal | Class::Cancellation => encode(format, rng.normal()),
        Class::Band => with_field(bias + rng.below(3) as u32 - 1),
        Class::OneHuge if k == 3 => with_field((1 << exponent) - 3),
        Class::OneHuge => with_field(bias / 2 + rng.below(4) as u32),
        Class::Denormal => with_field(rng.below(2) as u32),
        Class::Overflow => with_field((1 << exponent) - 2 - rng.below(2) as u32),
        Class::ZeroProducts => [0, 1 << (width - 1), bits][rng.below(3)],
        Class::SignedZeros => (rng.below(2) as u32) << (width - 1),
        Class::Sprinkled if rng.below(40) == 0 => {
            let top = ((1 << exponent) - 1) << mantissa;
            [top, top | 1 << (width - 1), top | 1, (1 << (width - 1)) - 1, top - 1][rng.below(5)]
        }
        Class::Sprinkled => encode(format, rng.normal()),
        Class::TinyResults => with_field((bias / 2 + rng.below(12) as u32).saturating_sub(6)),
        Class::SmallIntegers => encode(format, rng.below(9) as f64 - 4.0),
    }
}

fn random_tile(rng: &mut Rng, class: Class, instruction: Instruction) -> Tile {
    let Instruction {
        kind, m, n, k_bytes, ..
    } = instruction;
    let is_float = matches!(kind.accumulator(), Accumulator::F32 | Accumulator::F16);
    let mut rows = |extent: usize, element: Element, mirror: bool| -> Vec<u8> {
        let mut bytes = vec![0; extent * k_bytes];
        for row in bytes.chunks_exact_mut(k_bytes) {
            let size = element.bits() / 8;
            if !is_float {
                row.fill_with(|| rng.bits() as u8);
                continue;
            }
            for k in 0..k_bytes / size {
                let code = draw(rng, class, layout(element), k).to_le_bytes();
                row[k * size..][..size].copy_from_slice(&code[..size]);
            }
            if matches!(class, Class::Cancellation) {
                // Second half = first half, negated in A only: products cancel in pairs.
                let half = k_bytes / 2;
                row.copy_within(..half, half);
                for at in (half + size - 1..k_bytes).step_by(size).filter(|_| mirror) {
                    row[at] ^= 0x80;
                }
            }
        }
        bytes
    };
    let a = rows(m, kind.a(), true);
    let b = rows(n, kind.b(), false);
    let c_format = if kind.accumulator() == Accumulator::F16 {
        (10, 5)
    } else {
        (23, 8)
    };
    let c = (0..m * n)
        .map(|i| match (is_float, rng.below(4)) {
            (false, 0) => (i32::MAX as u32).wrapping_add(rng.below(4000) as u32),
            (false, _) => rng.bits() as u32,
            (true, 0) => draw(rng, class, c_format, i % 7),
            (true, 1) => encode(c_format, rng.normal() * 2f64.powi(rng.below(80) as i32 - 40)),
            (true, 2) => encode(c_format, rng.normal() * 4.0),
            (true, _) => 0,
        })
        .collect();
    Tile { instruction, a, b, c }
}

#[test]
fn tiles_equal_the_reference_on_every_class() {
    let mut rng = Rng(1);
    let mut core = TensorCore::default();
    for kind in all_kinds() {
        for (i, class) in CLASSES.into_iter().enumerate() {
            for (m, n, k_bytes) in [(64, 8, 32), (16, 24, 32), (16, 8, 16)] {
                let (scale_d, negate) = (i % 5 != 4 || n == 24, i % 3 == 1 && n == 8);
                let instruction = Instruction {
                    kind,
                    m,
                    n,
                    k_bytes,
                    scale_d,
                    negate,
                };
                random_tile(&mut rng, class, instruction).check(&mut core, &format!("{class:?}"));
            }
        }
    }
}

/// Tiles of random width, twenty of every kind and class: a minute or two in a release build.
#[test]
#[ignore = "long"]
fn tiles_equal_the_reference_at_length() {
    let mut core = TensorCore::default();
    for round in 0..20 {
        let mut rng = Rng(1000 + round);
        for kind in all_kinds() {
            for class in CLASSES {
                let n = 8 * (1 + rng.below(32));
                let (scale_d, negate) = (rng.below(4) != 0, rng.below(4) == 0);
                let instruction = Instruction {
                    kind,
                    m: 64,
                    n,
                    k_bytes: 32,
                    scale_d,
                    negate,
                };
                random_tile(&mut rng, class, instruction).check(&mut core, &format!("{class:?}"));
            }
        }
    }
}

/// Fragments of an operand whose rows of `k_bytes` are given, as the PTX ISA's figures place them.
fn fragments_of(rows: &[u8], k_bytes: usize, halves: usize) -> Vec<Fragment> {
    let mut registers = vec![[0; 32]; k_bytes / 16 * halves];
    for (r, register) in registers.iter_mut().enumerate() {
        for (lane, word) in register.iter_mut().enumerate() {
            let at = (lane / 4 + r % halves * 8) * k_bytes + r / halves * 16 + lane % 4 * 4;
            *word = u32::from_le_bytes(rows[at..at + 4].try_into().unwrap());
        }
    }
    registers
}

#[test]
fn mma_sync_is_the_same_step() {
    let mut rng = Rng(30);
    let mut core = TensorCore::default();
    for kind in all_kinds().filter(|kind| !matches!(kind.a(), Element::E4m3 | Element::E5m2)) {
        for k_bytes in [16, 32] {
            let instruction = Instruction {
                kind,
                m: 16,
                n: 8,
                k_bytes,
                scale_d: true,
                negate: false,
            };
            let tile = random_tile(&mut rng, Class::NearNormal, instruction);
            let (a, b) = (fragments_of(&tile.a, k_bytes, 2), fragments_of(&tile.b, k_bytes, 1));
            let mut d = tile.fragments();
            mma_sync(&mut core, kind, &a, &b, &mut d);
            for (row, column) in (0..128).map(|i| (i / 8, i % 8)) {
                assert_eq!(
                    tile.output(&d, row, column),
                    tile.expected(row, column),
                    "{kind:?} ({row}, {column})"
                );
            }
        }
    }
}

#[test]
fn fp8_mma_sync_is_two_f16_steps_and_an_addition() {
    let mut rng = Rng(31);
    let mut core = TensorCore::default();
    let f16 = MmaKind::new(Element::F16, Element::F16, Accumulator::F32).unwrap();
    let formats = [(Element::E4m3, Fp8::E4m3), (Element::E5m2, Fp8::E5m2)];
    for ((a, a_format), (b, b_format)) in formats.into_iter().flat_map(|a| formats.map(|b| (a, b))) {
        let kind = MmaKind::new(a, b, Accumulator::F32).unwrap();
        let instruction = Instruction {
            kind,
            m: 16,
            n: 8,
            k_bytes: 32,
            scale_d: true,
            negate: false,
        };
        for class in CLASSES {
            let tile = random_tile(&mut rng, class, instruction);
            let (a, b) = (fragments_of(&tile.a, 32, 2), fragments_of(&tile.b, 32, 1));
            let mut d = tile.fragments();
            mma_sync_fp8(&mut core, Accumulator::F32, (a_format, &a), (b_format, &b), &mut d);
            for (row, column) in (0..128).map(|i| (i / 8, i % 8)) {
                let part = |bytes: &[u8], format: Fp8, first: bool| -> Vec<u8> {
                    let chosen = (0..32).filter(|k| (k % 4 < 2) == first);
                    chosen
                        .flat_map(|k| fp8_to_f16(format, bytes[k]).to_le_bytes())
                        .collect()
                };
                let (a, b) = (&tile.a[row * 32..][..32], &tile.b[column * 32..][..32]);
                let sum = [true, false].into_iter().fold(0, |sum, first| {
                    step(f16, &part(a, a_format, first), &part(b, b_format, first), sum, false)
                });
                let expected = f32::from_bits(sum) + f32::from_bits(tile.c[row * 8 + column]);
                let expected = if expected.is_nan() {
                    0x7fff_ffff
                } else {
                    expected.to_bits()
                };
                assert_eq!(
                    tile.output(&d, row, column),
                    expected,
                    "{kind:?} {class:?} ({row}, {column})"
                );
            }
        }
    }
}

#[test]
fn fragments_round_trip() {
    // A value's own coordinates, through the registers, must land where the instruction reads them.
    let mut registers = [[0u32; 32]; 4];
    for lane in 0..32 {
        for (r, register) in registers.iter_mut().enumerate() {
            // m16n8k16: a0,a1 | a2,a3 | a4,a5 | a6,a7 of PTX ISA's figure: rows +8 for odd r, columns +8 for r ≥ 2.
            let (row, k) = (lane / 4 + r % 2 * 8, lane % 4 * 2 + r / 2 * 8);
            register[lane] = (row * 16 + k) as u32 | ((row * 16 + k + 1) as u32) << 16;
        }
    }
    let mut rows = [0; 16 * 32];
    gather_a_fragments(&registers, &mut rows);
    for (i, code) in rows.chunks_exact(2).enumerate() {
        assert_eq!(usize::from(u16::from_le_bytes([code[0], code[1]])), i);
    }
    let mut registers = [[0u32; 32]; 2];
    for lane in 0..32 {
        for (r, register) in registers.iter_mut().enumerate() {
            let (column, k) = (lane / 4, lane % 4 * 2 + r * 8);
            register[lane] = (column * 16 + k) as u32 | ((column * 16 + k + 1) as u32) << 16;
        }
    }
    let mut rows = [0; 8 * 32];
    gather_b_fragments(&registers, &mut rows);
    for (i, code) in rows.chunks_exact(2).enumerate() {
        assert_eq!(usize::from(u16::from_le_bytes([code[0], code[1]])), i);
    }
}
