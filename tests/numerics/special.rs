//! The special functions against hashes of an H200's outputs, over blocks of 2^23 inputs or over all 2^32.

use crate::rng::Rng;
use half::{bf16, f16};
use smalt::emulate::arith::special::{self, rows};

type Row = fn(&[u32; 32]) -> [u32; 32];

/// One hash per instruction and block of 2^23 inputs that share sign and exponent; little-endian u64 [15][512].
static HASHES: &[u8] = include_bytes!("data/special_function_hashes.bin");

/// In the file's order; with the blocks that the default test takes: where the function is busy, and its edges.
const FUNCTIONS: [(&str, Row, [usize; 3]); 15] = [
    (
        "ex2.approx.ftz.f32",
        rows::ex2_approx_ftz_f32,
        [127, 128 + 256 + 5, 123],
    ),
    ("ex2.approx.f32", rows::ex2_approx_f32, [130, 133 + 256, 126 + 256]),
    ("lg2.approx.ftz.f32", rows::lg2_approx_ftz_f32, [127, 126, 0]),
    ("lg2.approx.f32", rows::lg2_approx_f32, [126, 0, 200]),
    ("rcp.approx.ftz.f32", rows::rcp_approx_ftz_f32, [127, 253, 255 + 256]),
    ("rcp.approx.f32", rows::rcp_approx_f32, [0, 253, 300]),
    ("rsqrt.approx.ftz.f32", rows::rsqrt_approx_ftz_f32, [127, 128, 256]),
    ("rsqrt.approx.f32", rows::rsqrt_approx_f32, [0, 127, 254]),
    ("sqrt.approx.ftz.f32", rows::sqrt_approx_ftz_f32, [127, 128, 0]),
    ("sqrt.approx.f32", rows::sqrt_approx_f32, [0, 100, 255]),
    ("sin.approx.ftz.f32", rows::sin_approx_f32, [129, 127 + 256, 140]),
    ("sin.approx.f32", rows::sin_approx_f32, [126, 132 + 256, 100]),
    ("cos.approx.ftz.f32", rows::cos_approx_f32, [129, 127 + 256, 0]),
    ("cos.approx.f32", rows::cos_approx_f32, [128, 135, 255]),
    ("tanh.approx.f32", rows::tanh_approx_f32, [126, 124 + 256, 128]),
];

fn recorded(function: usize, block: usize) -> u64 {
    let at = (function * 512 + block) * 8;
    u64::from_le_bytes(HASHES[at..at + 8].try_into().unwrap())
}

fn hash(row: Row, block: usize) -> u64 {
    let mut total = 0u64;
    let mut fraction = 0;
    while fraction < 1 << 23 {
        let inputs: [u32; 32] = std::array::from_fn(|lane| (block as u32) << 23 | (fraction + lane as u32));
        for (input, output) in inputs.into_iter().zip(row(&inputs)) {
            let mixed = output ^ input.wrapping_mul(2_654_435_761);
            let n = u64::from(mixed).wrapping_mul(0x9E37_79B9_7F4A_7C15);
            total = total.wrapping_add((n ^ n >> 32).wrapping_mul(0xD6E8_FEB8_6659_FD93));
        }
        fraction += 32;
    }
    total
}

#[test]
fn sampled_blocks_equal_the_hardware() {
    assert_eq!(HASHES.len(), 15 * 512 * 8);
    let mut wrong = Vec::new();
    for (i, (name, row, blocks)) in FUNCTIONS.into_iter().enumerate() {
        wrong.extend(
            blocks
                .into_iter()
                .filter(|&b| hash(row, b) != recorded(i, b))
                .map(|b| format!("{name} block {b}")),
        );
    }
    assert!(wrong.is_empty(), "{wrong:?}");
}

type Scalar = fn(u32) -> u32;

#[test]
fn scalars_equal_rows() {
    let scalars: [Scalar; 15] = [
        special::ex2_approx_ftz_f32,
        special::ex2_approx_f32,
        special::lg2_approx_ftz_f32,
        special::lg2_approx_f32,
        special::rcp_approx_ftz_f32,
        special::rcp_approx_f32,
        special::rsqrt_approx_ftz_f32,
        special::rsqrt_approx_f32,
        special::sqrt_approx_ftz_f32,
        special::sqrt_approx_f32,
        special::sin_approx_f32,
        special::sin_approx_f32,
        special::cos_approx_f32,
        special::cos_approx_f32,
        special::tanh_approx_f32,
    ];
    let mut rng = Rng(40);
    for (scalar, (name, row, _)) in scalars.into_iter().zip(FUNCTIONS) {
        for _ in 0..200 {
            let x: [u32; 32] = std::array::from_fn(|_| rng.bits() as u32);
            assert_eq!(row(&x), x.map(scalar), "{name}");
        }
    }
    type Scalar16 = fn(u16) -> u16;
    let pairs: [(Row, Scalar16); 4] = [
        (rows::ex2_approx_f16x2, special::ex2_approx_f16),
        (rows::ex2_approx_ftz_bf16x2, special::ex2_approx_ftz_bf16),
        (rows::tanh_approx_f16x2, special::tanh_approx_f16),
        (rows::tanh_approx_bf16x2, special::tanh_approx_bf16),
    ];
    for (row, scalar) in pairs {
        for start in (0..0x1_0000).step_by(32) {
            let x: [u32; 32] = std::array::from_fn(|lane| ((start + lane as u32) * 0x1_0001) ^ 0x5555_0000);
            let expected = x.map(|x| u32::from(scalar(x as u16)) | u32::from(scalar((x >> 16) as u16)) << 16);
            assert_eq!(row(&x), expected);
        }
    }
    type Division = (fn(u32, u32) -> u32, fn(&[u32; 32], &[u32; 32]) -> [u32; 32]);
    let divisions: [Division; 4] = [
        (special::div_approx_ftz_f32, rows::div_approx_ftz_f32),
        (special::div_approx_f32, rows::div_approx_f32),
        (special::div_full_ftz_f32, rows::div_full_ftz_f32),
        (special::div_full_f32, rows::div_full_f32),
    ];
    for (scalar, row) in divisions {
        for _ in 0..200 {
            let a: [u32; 32] = std::array::from_fn(|_| rng.bits() as u32);
            let b: [u32; 32] = std::array::from_fn(|_| rng.bits() as u32);
            assert_eq!(row(&a, &b), std::array::from_fn(|lane| scalar(a[lane], b[lane])));
        }
    }
}

/// The forms without recorded hashes, against the bounds that the PTX ISA and the CUDA documentation give.
#[test]
fn narrow_wide_and_divided_forms_are_close() {
    let mut rng = Rng(41);
    for code in 0..=u16::MAX {
        let x = f16::from_bits(code);
        let got = special::ex2_approx_f16(code);
        if x.is_nan() {
            assert_eq!(got, 0x7fff);
            assert_eq!(special::tanh_approx_f16(code), 0x7fff);
        } else {
            let exact = x.to_f64().exp2();
            let got = f16::from_bits(got).to_f64();
            // Cut to 11 bits, or to a multiple of 2^-24.
            let error = (exact * 2f64.powi(-10)).max(2f64.powi(-24)) * 1.01;
            assert!(
                if exact >= 65536.0 {
                    got == f64::INFINITY
                } else {
                    (got - exact).abs() <= error
                },
                "{code:#x}: {got}"
            );
            let tanh = f16::from_bits(special::tanh_approx_f16(code)).to_f64();
            assert!(
                (tanh - x.to_f64().tanh()).abs() <= x.to_f64().tanh().abs() * 2f64.powi(-9),
                "{code:#x}"
            );
        }
        let x = bf16::from_bits(code);
        let got = special::ex2_approx_ftz_bf16(code);
        if x.is_nan() {
            assert_eq!(got, 0x7fff);
        } else {
            let (exact, got) = (x.to_f64().exp2(), bf16::from_bits(got).to_f64());
            let is_right = match exact {
                ..1.17e-38 => got <= 2f64.powi(-126),
                3.4e38.. => got == f64::INFINITY,
                _ => (got - exact).abs() <= exact * 2f64.powi(-7) * 1.01,
            };
            assert!(is_right, "{code:#x}: {got} for {exact}");
        }
    }
    for _ in 0..200_000 {
        // Middle exponents: all four divisions are within 2 units (PTX ISA, `div`), the seeds within 2^-20.
        let number = |rng: &mut Rng| (rng.bits() as u32 & 0x807f_ffff) | (70 + rng.below(110) as u32) << 23;
        let (a, b) = (number(&mut rng), number(&mut rng));
        let exact = f64::from(f32::from_bits(a)) / f64::from(f32::from_bits(b));
        if (1e-37..1e38).contains(&exact.abs()) {
            for divide in [
                special::div_approx_ftz_f32,
                special::div_approx_f32,
                special::div_full_ftz_f32,
                special::div_full_f32,
            ] {
                let got = f64::from(f32::from_bits(divide(a, b)));
                assert!(
                    (got / exact - 1.0).abs() < 2f64.powi(-22),
                    "{a:#x} / {b:#x}: {got} for {exact}"
                );
            }
        }
        let x = f64::from_bits(rng.bits() >> 1);
        if x.is_normal() && x > 1e-300 && x < 1e300 {
            let rcp = f64::from_bits(special::rcp_approx_ftz_f64(x.to_bits()));
            assert!((rcp * x - 1.0).abs() < 2f64.powi(-19), "1/{x}: {rcp}");
            let rsqrt = f64::from_bits(special::rsqrt_approx_ftz_f64(x.to_bits()));
            assert!((rsqrt * x.sqrt() - 1.0).abs() < 2f64.powi(-19), "1/sqrt({x}): {rsqrt}");
        }
    }
    let f = |x: f32| x.to_bits();
    assert_eq!(special::div_full_f32(f(6.0), f(3.0)), f(2.0));
    assert_eq!(
        special::div_full_f32(f(1.0), f(2f32.powi(127))),
        f(2f32.powi(-127)),
        "kept"
    );
    assert_eq!(
        special::div_full_ftz_f32(f(2f32.powi(10)), f(2f32.powi(127))),
        f(2f32.powi(-117))
    );
    assert_eq!(
        special::div_approx_ftz_f32(f(2f32.powi(10)), f(2f32.powi(127))),
        0,
        "the reciprocal was flushed"
    );
    assert_eq!(special::div_approx_f32(0, 0), 0x7fff_ffff);
    assert_eq!(
        special::rcp_approx_ftz_f64(f64::INFINITY.to_bits() | 1),
        0,
        "infinity: the low word is ignored"
    );
    assert_eq!(special::rsqrt_approx_ftz_f64(4f64.to_bits()), 0.5f64.to_bits());
}

/// All 2^32 inputs of each instruction: minutes in a release build.
#[test]
#[ignore = "long"]
fn all_blocks_equal_the_hardware() {
    let mut wrong = Vec::new();
    for (i, (name, row, _)) in FUNCTIONS.into_iter().enumerate() {
        let bad: Vec<usize> = (0..512).filter(|&b| hash(row, b) != recorded(i, b)).collect();
        println!("{name}: {} of 512 blocks differ {bad:?}", bad.len());
        wrong.extend(bad);
    }
    assert!(wrong.is_empty());
}
