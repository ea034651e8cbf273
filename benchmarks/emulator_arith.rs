//! Speed of the emulator's arithmetic on one core: `cargo bench --bench emulator_arith [-- filter]`.
//!
//! Tensor core: whole instructions, decoding of the raw operand tiles included, chained on one accumulator; data is
//! N(0, 1). Prints the best and the median of many samples: the machine may be shared.

use smalt::emulate::arith::special::rows;
use smalt::emulate::arith::tensor_core::{Accumulator, Element, MmaKind};
use smalt::emulate::arith::tensor_core_fast::{Instruction, Major, Operand, TensorCore};
use std::hint::black_box;
use std::time::Instant;

struct Rng(u64);

impl Rng {
    fn bits(&mut self) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        self.0 ^ self.0 >> 29
    }

    fn normal(&mut self) -> f32 {
        (0..12).map(|_| (self.bits() >> 40) as f32 / 16_777_216.0).sum::<f32>() - 6.0
    }
}

/// Seconds of one call: (best, median) over samples of at least a millisecond each.
fn time(mut f: impl FnMut()) -> (f64, f64) {
    let mut calls = 1;
    loop {
        let start = Instant::now();
        (0..calls).for_each(|_| f());
        if start.elapsed().as_secs_f64() > 1e-3 {
            break;
        }
        calls *= 2;
    }
    let mut samples: Vec<f64> = (0..100)
        .map(|_| {
            let start = Instant::now();
            (0..calls).for_each(|_| f());
            start.elapsed().as_secs_f64() / f64::from(calls)
        })
        .collect();
    samples.sort_by(f64::total_cmp);
    (samples[0], samples[samples.len() / 2])
}

fn tensor_core(filter: &str) {
    use Accumulator::{F16 as AccF16, F32, S32, S32Saturating};
    use Element::*;
    let mut rng = Rng(7);
    for (a, b, accumulator) in [
        (F16, F16, F32),
        (F16, F16, AccF16),
        (Bf16, Bf16, F32),
        (Tf32, Tf32, F32),
        (E4m3, E4m3, F32),
        (E5m2, E4m3, AccF16),
        (S8, S8, S32),
        (S8, U8, S32Saturating),
        (B1, B1, S32),
    ] {
        for (n, major) in [(128, Major::K), (256, Major::K), (256, Major::Mn)] {
            let name = format!("{a:?}*{b:?}+{accumulator:?} n{n} B {major:?}");
            if !name.contains(filter) || major == Major::Mn && a.bits() != 16 {
                continue;
            }
            let kind = MmaKind::new(a, b, accumulator).expect("exists");
            let instruction = Instruction {
                kind,
                m: 64,
                n,
                k_bytes: 32,
                scale_d: true,
                negate: false,
            };
            let mut operand = |extent: usize, element: Element| -> Vec<u8> {
                let mut bytes = Vec::new();
                while bytes.len() < extent * 32 {
                    let x = rng.normal();
                    match element {
                        F16 => bytes.extend(half::f16::from_f32(x).to_bits().to_le_bytes()),
                        Bf16 => bytes.extend(half::bf16::from_f32(x).to_bits().to_le_bytes()),
                        Tf32 => bytes.extend(x.to_bits().to_le_bytes()),
                        E5m2 => bytes.push((half::f16::from_f32(x).to_bits() >> 8) as u8),
                        E4m3 => bytes.push((half::f16::from_f32(x / 256.0).to_bits() >> 7) as u8),
                        S8 | U8 | B1 => bytes.push(rng.bits() as u8),
                    }
                }
                bytes
            };
            let (a_bytes, b_bytes) = (operand(64, a), operand(n, b));
            let mut core = TensorCore::default();
            let mut d = vec![[0; 32]; 4 * instruction.registers()];
            let mut steps = 0u32;
            let (best, median) = time(|| {
                steps += 1;
                // A fresh accumulator every 32 steps, as in a matmul of K = 512.
                let instruction = Instruction {
                    scale_d: !steps.is_multiple_of(32),
                    ..instruction
                };
                let a = Operand {
                    bytes: black_box(&a_bytes),
                    major: Major::K,
                };
                core.execute(
                    instruction,
                    a,
                    Operand {
                        bytes: black_box(&b_bytes),
                        major,
                    },
                    &mut d,
                );
            });
            let macs = (64 * n * 32 * 8 / a.bits()) as f64;
            println!(
                "{name:32} {:7.2} GMAC/s best, {:7.2} median",
                macs / best / 1e9,
                macs / median / 1e9
            );
        }
    }
}

fn special_functions(filter: &str) {
    type Row = fn(&[u32; 32]) -> [u32; 32];
    let mut rng = Rng(9);
    let functions: [(&str, Row); 10] = [
        ("ex2.approx.ftz.f32", rows::ex2_approx_ftz_f32),
        ("ex2.approx.f32", rows::ex2_approx_f32),
        ("lg2.approx.f32", rows::lg2_approx_f32),
        ("rcp.approx.f32", rows::rcp_approx_f32),
        ("rsqrt.approx.f32", rows::rsqrt_approx_f32),
        ("sqrt.approx.f32", rows::sqrt_approx_f32),
        ("sin.approx.f32", rows::sin_approx_f32),
        ("tanh.approx.f32", rows::tanh_approx_f32),
        ("ex2.approx.f16x2", rows::ex2_approx_f16x2),
        ("tanh.approx.bf16x2", rows::tanh_approx_bf16x2),
    ];
    let x: [u32; 32] = std::array::from_fn(|_| rng.normal().to_bits());
    let print = |name: &str, (best, median): (f64, f64)| {
        println!(
            "{name:32} {:7.2} ns/lane best, {:7.2} median",
            best / 32.0 * 1e9,
            median / 32.0 * 1e9
        );
    };
    for (name, row) in functions.into_iter().filter(|function| function.0.contains(filter)) {
        print(
            name,
            time(|| {
                black_box(row(black_box(&x)));
            }),
        );
    }
    if "div.full.f32".contains(filter) {
        print(
            "div.full.f32",
            time(|| {
                black_box(rows::div_full_f32(black_box(&x), black_box(&x)));
            }),
        );
    }
}

fn main() {
    let filter = std::env::args()
        .skip(1)
        .find(|argument| !argument.starts_with("--"))
        .unwrap_or_default();
    tensor_core(&filter);
    special_functions(&filter);
}
