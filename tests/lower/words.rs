//! Conversions of whole register words: every code at every place of a word, against plain Rust.
use super::harness::{Buffer, KernelRun, one_block};
use half::{bf16, f16};
use smalt::dtype::DType;
use smalt::kernel_ir::OpKind;

const NARROW: [DType; 12] = [
    DType::Bool,
    DType::I4,
    DType::U4,
    DType::I8,
    DType::U8,
    DType::I16,
    DType::U16,
    DType::F16,
    DType::BF16,
    DType::F8E4M3FN,
    DType::F8E5M2,
    DType::F4E2M1FN,
];

fn kernel(from: DType, to: DType, n: u64) -> KernelRun {
    KernelRun::of(one_block(&[(from, &[n])], (to, &[n]), |b, v| {
        b.op1(OpKind::Convert { a: v[0] }, to, &[n])
    }))
}

/// Bits of an element in memory.
fn stored_bits(dtype: DType) -> u32 {
    if dtype == DType::Bool { 8 } else { dtype.bits() }
}

fn pack(dtype: DType, codes: &[u32]) -> Buffer {
    let bits = stored_bits(dtype);
    let mut bytes = vec![0u8; codes.len() * bits as usize / 8];
    for (i, code) in codes.iter().enumerate() {
        for bit in 0..bits {
            let at = i * bits as usize + bit as usize;
            bytes[at / 8] |= ((code >> bit & 1) as u8) << (at % 8);
        }
    }
    Buffer(bytes)
}

fn unpack(dtype: DType, bytes: &Buffer) -> Vec<u32> {
    let bits = stored_bits(dtype) as usize;
    let bit = |at: usize| u32::from(bytes.0[at / 8] >> (at % 8) & 1);
    (0..bytes.0.len() * 8 / bits)
        .map(|i| (0..bits).map(|k| bit(i * bits + k) << k).sum())
        .collect()
}

/// The number that a code stands for: f32 holds all of them.
fn decode(dtype: DType, code: u32) -> f32 {
    let signed = |bits: u32| ((code << (32 - bits)) as i32 >> (32 - bits)) as f32;
    match dtype {
        DType::I4 => signed(4),
        DType::I8 => signed(8),
        DType::I16 => signed(16),
        DType::F4E2M1FN => {
            let magnitude = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0][code as usize & 7];
            if code & 8 != 0 { -magnitude } else { magnitude }
        }
        DType::F16 => f16::from_bits(code as u16).to_f32(),
        DType::BF16 => bf16::from_bits(code as u16).to_f32(),
        // The high byte of an f16.
        DType::F8E5M2 => f16::from_bits((code << 8) as u16).to_f32(),
        DType::F8E4M3FN => {
            let (exponent, mantissa) = (code >> 3 & 15, (code & 7) as f32);
            let magnitude = match (exponent, code & 7) {
                (15, 7) => f32::NAN,
                (0, _) => mantissa * 2f32.powi(-9),
                _ => (8.0 + mantissa) * 2f32.powi(exponent as i32 - 10),
            };
            if code & 0x80 != 0 { -magnitude } else { magnitude }
        }
        _ => code as f32,
    }
}

/// `x` rounded to a type, as its bits; NaN as one of its NaNs.
fn encode(dtype: DType, x: f32) -> u32 {
    match dtype {
        DType::F32 => x.to_bits(),
        DType::F16 => f16::from_f32(x).to_bits().into(),
        // The code whose number it is, of the same sign.
        DType::F8E4M3FN | DType::F8E5M2 => (0..256u32)
            .find(|code| decode(dtype, *code).to_bits() == x.to_bits())
            .expect("a number that the type has"),
        _ => bf16::from_f32(x).to_bits().into(),
    }
}

fn is_nan(dtype: DType, bits: u32) -> bool {
    match dtype {
        DType::F32 => f32::from_bits(bits).is_nan(),
        DType::F16 => f16::from_bits(bits as u16).is_nan(),
        DType::BF16 => bf16::from_bits(bits as u16).is_nan(),
        _ => false,
    }
}

fn check(kernel: &KernelRun, from: DType, to: DType, codes: &[u32]) {
    let got = unpack(to, &kernel.run(&[pack(from, codes)])[0]);
    for (i, (&code, got)) in codes.iter().zip(got).enumerate() {
        let want = encode(to, decode(from, code));
        let same = got == want || is_nan(to, got) && is_nan(to, want);
        assert!(
            same,
            "{from} {code:#x} as {to}, element {i}: got {got:#x}, expected {want:#x}"
        );
    }
}

#[test]
fn every_code_at_every_place() {
    for from in NARROW {
        let bits = if from == DType::Bool { 1 } else { from.bits() };
        let (all, n) = (1u32 << bits, 8192);
        for to in [DType::F32, DType::F16, DType::BF16] {
            if from == to {
                continue;
            }
            let kernel = kernel(from, to, n);
            // Codes in order, begun one later each time: each meets every place of the words.
            let runs = if all > 256 { 16 } else { 1 };
            for run in 0..runs {
                let code = |i: u32| (run / 2 * n as u32 + run % 2 + i + i / all) % all;
                let codes: Vec<u32> = (0..n as u32).map(code).collect();
                check(&kernel, from, to, &codes);
            }
        }
    }
}

/// What is looked up in tables.
#[test]
fn four_bits_as_eight() {
    for (from, to) in [
        (DType::I4, DType::F8E4M3FN),
        (DType::I4, DType::F8E5M2),
        (DType::U4, DType::F8E4M3FN),
        (DType::F4E2M1FN, DType::F8E4M3FN),
        (DType::F4E2M1FN, DType::F8E5M2),
    ] {
        for n in [128, 384, 640, 896, 8192] {
            let codes: Vec<u32> = (0..n as u32).map(|i| (i + i / 16) % 16).collect();
            check(&kernel(from, to, n), from, to, &codes);
        }
    }
}

/// Words that are not full, of elements that are loaded one by one.
#[test]
fn words_that_are_not_full() {
    for from in NARROW {
        for to in [DType::F32, DType::F16, DType::BF16] {
            for n in [128, 384, 640, 896] {
                if from != to {
                    let codes: Vec<u32> = (0..n as u32).map(|i| i * 0x5bd1 % (1 << from.bits().min(16))).collect();
                    let codes: Vec<u32> = codes
                        .iter()
                        .map(|c| if from == DType::Bool { c & 1 } else { *c })
                        .collect();
                    check(&kernel(from, to, n), from, to, &codes);
                }
            }
        }
    }
}

#[test]
fn predicates_become_ones() {
    for to in [
        DType::I4,
        DType::U4,
        DType::I8,
        DType::U8,
        DType::I16,
        DType::U16,
        DType::F8E4M3FN,
        DType::F8E5M2,
    ] {
        let one = match to {
            DType::F8E4M3FN => 0x38,
            DType::F8E5M2 => 0x3c,
            _ => 1,
        };
        for n in [128, 384, 640, 2048] {
            let codes: Vec<u32> = (0..n as u32).map(|i| (i ^ i >> 3 ^ i >> 7) & 1).collect();
            let got = unpack(to, &kernel(DType::Bool, to, n).run(&[pack(DType::Bool, &codes)])[0]);
            let want: Vec<u32> = codes.iter().map(|c| c * one).collect();
            assert_eq!(got, want, "{to}, {n} elements");
        }
    }
}
