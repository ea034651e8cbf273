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
            floats::<true, false, false, 25, 29>(core, job, d)
        }
        (Accumulator::F32, Element::F16) => floats::<false, false, false, 25, 29>(core, job, d),
        (Accumulator::F16, Element::F16) => floats::<false, true, false, 25, 29>(core, job, d),
        (Accumulator::F32, _) if kind.fraction_bits() == 25 => floats::<false, false, true, 25, 29>(core, job, d),
        (Accumulator::F16, _) if kind.fraction_bits() == 25 => floats::<false, true, true, 25, 29>(core, job, d),
        (Accumulator::F32, _) => floats::<false, false, false, 13, 39>(core, job, d),
        (Accumulator::F16, _) => floats::<false, true, false, 13, 29>(core, job, d),
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
fn largest_exponents<const IS_WIDE: bool>(core: &TensorCore, g: usize, j: usize, depth: usize) -> [[__m256i; 4]; 2] {
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
fn floats<const IS_WIDE: bool, const IS_F16: bool, const IS_DEEP: bool, const FRACTION: i32, const CUT: i32>(
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
                block::<IS_WIDE, true, IS_DEEP, FRACTION, CUT>(core, job, (g, j, 0), &largest[0], row);
                block::<IS_WIDE, true, IS_DEEP, FRACTION, CUT>(core, job, (g, j, 1), &largest[1], row);
            } else {
                let at = g / 2 * registers + j * 4 + g % 2 * 2;
                block::<IS_WIDE, false, IS_DEEP, FRACTION, CUT>(core, job, (g, j, 0), &largest[0], &mut d[at]);
                block::<IS_WIDE, false, IS_DEEP, FRACTION, CUT>(core, job, (g, j, 1), &largest[1], &mut d[at + 1]);
            }
        }
    }
}

/// One [`Fragment`] of outputs, in place; f16 ones are the low or the high halves, by column parity. `IS_DEEP`: an i32 may not hold the sum of
/// all products.
#[inline]
#[target_feature(enable = "avx2,f16c")]
fn block<const IS_WIDE: bool, const IS_F16: bool, const IS_DEEP: bool, const FRACTION: i32, const CUT: i32>(
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
    let mut others = [zero; 4];
    for (k, (a, b)) in a.iter().zip(b).enumerate() {
        if IS_DEEP && k == MOST_PRODUCTS {
            others = std::mem::replace(&mut sums, others);
        }
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
        let half = |sum: __m128i, c: __m128i, other: __m128i| {
            let mut sum = _mm256_add_pd(_mm256_cvtepi32_pd(sum), _mm256_cvtepi32_pd(c));
            if IS_DEEP {
                sum = _mm256_add_pd(sum, _mm256_cvtepi32_pd(other));
            }
            let bits = _mm256_castpd_si256(sum);
            let low = _mm256_set1_epi64x((1 << CUT) - 1);
            let kept = if IS_F16 {
                _mm256_or_si256(bits, _mm256_add_epi64(_mm256_and_si256(bits, low), low))
            } else {
                bits
            };
            _mm256_cvtpd_ps(_mm256_castsi256_pd(_mm256_andnot_si256(low, kept)))
        };
        let low = half(
            _mm256_castsi256_si128(sums[v]),
            _mm256_castsi256_si128(c_parts[v]),
            _mm256_castsi256_si128(others[v]),
        );
        let high = half(
            _mm256_extracti128_si256::<1>(sums[v]),
            _mm256_extracti128_si256::<1>(c_parts[v]),
            _mm256_extracti128_si256::<1>(others[v]),
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
