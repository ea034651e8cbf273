//! `mma.sync` on register fragments: the tensor core's step for m16n8k*, and the compiled sequence of its fp8 form.

use super::convert::{Fp8, fp8_to_f16};
use super::float::add_f32;
use super::tensor_core::{Accumulator, Element, MmaKind};
use super::tensor_core_fast::{
    Fragment, Instruction, Major, Operand, TensorCore, gather_a_fragments, gather_b_fragments,
};

/// `mma.sync.m16n8k*` of one warp: 4 registers of A and 2 of B (2 and 1 for the shorter shapes), D as C on entry.
///
/// fp8 goes to [`mma_sync_fp8`]: on sm_90 it is no step of its own.
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
    let k_bytes = a.len() * 8;
    let (mut a_rows, mut b_rows) = ([0; 16 * 32], [0; 8 * 32]);
    gather_a_fragments(a, &mut a_rows[..16 * k_bytes]);
    gather_b_fragments(b, &mut b_rows[..8 * k_bytes]);
    let instruction = Instruction {
        kind,
        m: 16,
        n: 8,
        k_bytes,
        scale_d: true,
        negate: false,
    };
    let a = Operand {
        bytes: &a_rows[..16 * k_bytes],
        major: Major::K,
    };
    let b = Operand {
        bytes: &b_rows[..8 * k_bytes],
        major: Major::K,
    };
    core.execute(instruction, a, b, d);
}

/// `mma.sync.m16n8k32` of fp8 operands with f32 accumulators.
///
/// What nvcc 13.0 makes of it for sm_90 (measured): exact conversion to f16 and two chained f16 steps from zero, first the
/// k with k % 4 in {0, 1}, then the others; their result is added to C by one nearest-even f32 addition.
pub fn mma_sync_fp8(
    core: &mut TensorCore,
    (a_format, a): (Fp8, &[Fragment; 4]),
    (b_format, b): (Fp8, &[Fragment; 2]),
    d: &mut [Fragment; 4],
) {
    const KIND: MmaKind = MmaKind::new(Element::F16, Element::F16, Accumulator::F32).expect("wgmma's first type");
    let (mut a_rows, mut b_rows) = ([0; 16 * 32], [0; 8 * 32]);
    gather_a_fragments(a, &mut a_rows);
    gather_b_fragments(b, &mut b_rows);
    let mut sums = [[0; 32]; 4];
    for step in 0..2 {
        let (a, b) = (halves(a_format, &a_rows, step), halves(b_format, &b_rows, step));
        let instruction = Instruction {
            kind: KIND,
            m: 16,
            n: 8,
            k_bytes: 32,
            scale_d: step > 0,
            negate: false,
        };
        let (a, b) = (
            Operand {
                bytes: &a,
                major: Major::K,
            },
            Operand {
                bytes: &b,
                major: Major::K,
            },
        );
        core.execute(instruction, a, b, &mut sums);
    }
    for (row, sums) in d.iter_mut().zip(sums) {
        for (word, sum) in row.iter_mut().zip(sums) {
            *word = add_f32(*word, sum);
        }
    }
}

/// The bytes with k / 2 % 2 = `step` as f16, in rows of 32 bytes as before.
fn halves<const N: usize>(format: Fp8, rows: &[u8; N], step: usize) -> [u8; N] {
    let mut out = [0; N];
    let quads = rows.chunks_exact(4);
    for (quad, halves) in quads.zip(out.chunks_exact_mut(4)) {
        for i in 0..2 {
            halves[2 * i..2 * i + 2].copy_from_slice(&fp8_to_f16(format, quad[2 * step + i]).to_le_bytes());
        }
    }
    out
}
