//! `mma` of every form, from its text, against plain Rust. Where elements are is written from the PTX ISA's fragments, by element.
use super::build::*;
use crate::emulate::arith::convert::{Fp8, fp8_to_f16};
use crate::emulate::arith::tensor_core::{Accumulator, Element, MmaKind, step};
use crate::ptx::flat::Reg;
use crate::ptx::modifier::*;
use crate::ptx::operand::Class;
use crate::ptx::parse::parse_inst;

/// Numbers from 0 up to `n`, without it.
struct Rng(u64);
impl Rng {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % n
    }
    fn word(&mut self) -> u32 {
        (self.below(1 << 16) << 16 | self.below(1 << 16)) as u32
    }
}

/// Runs one `mma` of one warp; operands and results by register and lane, 64-bit ones as two words.
struct Warp<'t> {
    opcode: &'t str,
    class: Class,
    /// Behind C.
    metadata: Option<([u32; 32], u32)>,
}

fn run(warp: &Warp, operands: [&[[u64; 32]]; 3], d_len: usize) -> Result<Vec<[u64; 32]>, String> {
    let words = if warp.class == Class::B64 { 2 } else { 1 };
    let mut k = Kernel::new(32);
    let mut buffers = vec![];
    let mut load = |k: &mut Kernel, rows: &[[u64; 32]], words: usize| -> Vec<Reg> {
        let mut bytes = vec![];
        for lane in 0..32 {
            for row in rows {
                bytes.extend(&row[lane].to_le_bytes()[..4 * words]);
            }
        }
        buffers.push(bytes);
        let (tid, base) = (k.tid(), k.pointer(buffers.len() as u32 - 1));
        let at = k.element(base, tid, (4 * words * rows.len()) as u32);
        let load = |i: usize, k: &mut Kernel| {
            let (name, ty, d) = match words {
                2 => ("d", "b64", k.rd()),
                _ => ("r", "b32", k.r()),
            };
            let text = format!("ld.global.{ty} %{name}{}, [%d{}+{}];", d.index, at.index, 4 * words * i);
            k.push(parse_inst(&text).expect(&text).0);
            d
        };
        (0..rows.len()).map(|i| load(i, k)).collect()
    };
    let lists = operands.map(|rows| load(&mut k, rows, words));
    let metadata = warp.metadata.map(|(metadata, selector)| {
        let meta = load(&mut k, &[metadata.map(u64::from)], 1);
        format!(", %r{}, {selector}", meta[0].index)
    });
    let d: Vec<Reg> = (0..d_len).map(|_| if words == 2 { k.rd() } else { k.r() }).collect();
    let list = |v: &[Reg]| {
        let names: Vec<String> = v.iter().map(|r| format!("%{}{}", r.class.prefix(), r.index)).collect();
        format!("{{{}}}", names.join(", "))
    };
    let [a, b, c] = &lists;
    let rest = metadata.unwrap_or_default();
    let text = format!(
        "{} {}, {}, {}, {}{rest};",
        warp.opcode,
        list(&d),
        list(a),
        list(b),
        list(c)
    );
    let (inst, _) = parse_inst(&text).ok_or(format!("no row: {text}"))?;
    crate::ptx::legal::check(&inst).map_err(|e| format!("{text}: {e}"))?;
    k.push(inst);
    let (tid, base) = (k.tid(), k.pointer(buffers.len() as u32));
    let at = k.element(base, tid, (4 * words * d_len) as u32);
    for (i, r) in d.iter().enumerate() {
        let ty = if words == 2 { "b64" } else { "b32" };
        let text = format!(
            "st.global.{ty} [%d{}+{}], %{}{};",
            at.index,
            4 * words * i,
            r.class.prefix(),
            r.index
        );
        k.push(parse_inst(&text).expect(&text).0);
    }
    buffers.push(vec![0; 128 * words * d_len]);
    k.try_run(&mut buffers, &options()).map_err(|e| e.to_string())?;
    let bytes = buffers.last().expect("D");
    let mut out = vec![[0; 32]; d_len];
    for (i, chunk) in bytes.chunks_exact(4 * words).enumerate() {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        out[i % d_len][i / d_len] = u64::from_le_bytes(word);
    }
    Ok(out)
}

/// A matrix of codes of `bits` bits: `at(row, column)`.
struct Matrix {
    columns: usize,
    codes: Vec<u64>,
}
impl Matrix {
    fn new(rows: usize, columns: usize, mut code: impl FnMut(usize, usize) -> u64) -> Matrix {
        let codes = (0..rows * columns).map(|i| code(i / columns, i % columns)).collect();
        Matrix { columns, codes }
    }
    fn at(&self, row: usize, column: usize) -> u64 {
        self.codes[row * self.columns + column]
    }
}

/// Fragments of a register class of `width` bits: element `i` of a lane is at `place(lane, i)`.
fn pack(
    m: &Matrix,
    registers: usize,
    bits: usize,
    width: usize,
    place: impl Fn(usize, usize) -> (usize, usize),
) -> Vec<[u64; 32]> {
    let per = (width / bits).max(1);
    let mut out = vec![[0; 32]; registers];
    for lane in 0..32 {
        for i in 0..registers * per {
            let (row, column) = place(lane, i);
            out[i / per][lane] |= m.at(row, column) << (i % per * bits);
        }
    }
    out
}

/// PTX ISA, "Matrix Fragments for mma.m8n8k4 with .f64", "m8n8k16", …, "m16n8k256": A, of registers with `per` elements. The row is the
/// lane's group's, or eight below in every other register; the column goes on behind two registers (one, with eight rows).
fn a_place(rows: usize, per: usize) -> impl Fn(usize, usize) -> (usize, usize) {
    move |lane, i| {
        let (group, of_group, register) = (lane / 4, lane % 4, i / per);
        let (below, block) = if rows == 16 {
            (register % 2, register / 2)
        } else {
            (0, register)
        };
        (group + 8 * below, of_group * per + i % per + block * 4 * per)
    }
}
/// B, by column and row.
fn b_place(per: usize) -> impl Fn(usize, usize) -> (usize, usize) {
    move |lane, i| (lane / 4, lane % 4 * per + i % per + i / per * 4 * per)
}
/// C and D: pairs of columns, then eight rows below.
fn c_place(lane: usize, i: usize) -> (usize, usize) {
    (lane / 4 + i / 2 * 8, lane % 4 * 2 + i % 2)
}

fn unpack(d: Vec<[u64; 32]>, bits: usize, width: usize) -> impl Fn(usize, usize) -> u64 {
    let per = width / bits;
    let mut codes = std::collections::HashMap::new();
    for lane in 0..32 {
        for i in 0..d.len() * per {
            let mask = u64::MAX >> (64 - bits);
            codes.insert(c_place(lane, i), d[i / per][lane] >> (i % per * bits) & mask);
        }
    }
    move |row, column| codes[&(row, column)]
}

/// Bits and code of a small integer, by the name of its type; integers that have no sign are not negative.
fn code(ty: &str, x: i64) -> (usize, u64) {
    let half = |x: i64| u64::from(half::f16::from_f32(x as f32).to_bits());
    match ty {
        "f16" => (16, half(x)),
        "bf16" => (16, u64::from((x as f32).to_bits() >> 16)),
        "tf32" | "f32" => (32, u64::from((x as f32).to_bits())),
        // The upper byte of f16 is e5m2.
        "e5m2" => (8, half(x) >> 8),
        "e4m3" => {
            let found = (0..=255u8).find(|c| u64::from(fp8_to_f16(Fp8::E4m3, *c)) == half(x));
            (8, u64::from(found.expect("a small integer")))
        }
        "s8" | "u8" => (8, x as u64 & 0xff),
        "s4" | "u4" => (4, x as u64 & 15),
        "s32" => (32, x as u64 & 0xffff_ffff),
        other => panic!("{other}"),
    }
}

/// Of a type's elements: small integers whose sums every accumulator has.
fn small(rng: &mut Rng, ty: &str) -> i64 {
    match ty {
        "u8" => rng.below(256) as i64,
        "s8" => rng.below(256) as i64 - 128,
        "u4" => rng.below(16) as i64,
        "s4" => rng.below(16) as i64 - 8,
        _ => rng.below(5) as i64 - 2,
    }
}

/// Which of each four units of B, from the low bits up, sets of metadata choose.
const CHOICES: [(u32, [usize; 2]); 6] = [
    (0b0100, [0, 1]),
    (0b1000, [0, 2]),
    (0b1100, [0, 3]),
    (0b1001, [1, 2]),
    (0b1101, [1, 3]),
    (0b1110, [2, 3]),
];

/// PTX ISA, "Sparse matrix storage": the word of the group's lane and the bit where a chunk's choice is.
fn metadata_place(element_bits: usize, depth: usize, selector: usize, row: usize, chunk: usize) -> (usize, usize) {
    let below = row / 8;
    let (of_group, bit) = match (element_bits, depth) {
        // One lane: the group's row in the low half, the one eight below in the high half.
        (16, 16) | (32, 8) => (selector, 16 * below + 4 * chunk),
        // Two lanes, each with half of the depth.
        (16, 32) | (32, 16) => (2 * selector + chunk / 4, 16 * below + 4 * (chunk % 4)),
        // Two lanes, each with one of the rows.
        (8, 32) | (4, 64) => (2 * selector + below, 4 * chunk),
        // Four: the rows of half of the depth, then those of the other.
        (8, 64) | (4, 128) => (below + 2 * (chunk / 8), 4 * (chunk % 8)),
        other => panic!("{other:?}"),
    };
    (row % 8 * 4 + of_group % 4, bit)
}

fn shapes() -> impl Iterator<Item = (MmaShape, MmaTypes)> {
    MmaShape::ALL
        .iter()
        .flat_map(|shape| MmaTypes::ALL.iter().map(move |ty| (*shape, *ty)))
}

fn split(ty: MmaTypes) -> [&'static str; 3] {
    let names: Vec<&str> = ty.text().split('.').collect();
    [names[1], names[2], names[0]]
}

/// Sums of small integers are exact in every type.
#[test]
fn dense_products() {
    let mut rng = Rng(1);
    let mut tried = 0;
    for (shape, ty) in shapes() {
        for sat in ["", ".satfinite"] {
            let ([a_ty, b_ty, c_ty], (rows, depth)) = (split(ty), (shape.rows(), shape.depth()));
            let (bits, c_bits) = (code(a_ty, 0).0, code(c_ty, 0).0);
            let opcode = format!("mma.sync.aligned.{}.row.col{sat}.{}", shape.text(), ty.text());
            let a = Matrix::new(rows, depth, |_, _| small(&mut rng, a_ty) as u64);
            let b = Matrix::new(8, depth, |_, _| small(&mut rng, b_ty) as u64);
            // Integers: near both ends, now and then.
            let c = Matrix::new(rows, 8, |row, _| match (c_ty, row % 4) {
                ("s32", 0) => (i64::from(i32::MAX) - rng.below(3000) as i64) as u64,
                ("s32", 1) => (i64::from(i32::MIN) + rng.below(3000) as i64) as u64,
                _ => small(&mut rng, c_ty) as u64,
            });
            let coded = |m: &Matrix, ty: &str| Matrix {
                columns: m.columns,
                codes: m.codes.iter().map(|x| code(ty, *x as i64).1).collect(),
            };
            let per = 32 / bits;
            let operands = [
                pack(
                    &coded(&a, a_ty),
                    rows * depth * bits / 1024,
                    bits,
                    32,
                    a_place(rows, per),
                ),
                pack(&coded(&b, b_ty), depth * bits / 128, bits, 32, b_place(per)),
                pack(&coded(&c, c_ty), rows * c_bits / 128, c_bits, 32, c_place),
            ];
            let warp = Warp {
                opcode: &opcode,
                class: Class::B32,
                metadata: None,
            };
            let lists = [&operands[0][..], &operands[1], &operands[2]];
            if lists.iter().any(|l| l.is_empty()) {
                continue;
            }
            let d = match run(&warp, lists, operands[2].len()) {
                Ok(d) => unpack(d, c_bits, 32),
                // Shapes that there are not.
                Err(_) => continue,
            };
            tried += 1;
            for (row, column) in (0..rows).flat_map(|r| (0..8).map(move |c| (r, c))) {
                let products = (0..depth).map(|k| a.at(row, k) as i64 * b.at(column, k) as i64);
                let sum = c.at(row, column) as i64 + products.sum::<i64>();
                let wanted = match sat {
                    "" => sum,
                    _ => sum.clamp(i32::MIN.into(), i32::MAX.into()),
                };
                assert_eq!(
                    d(row, column),
                    code(c_ty, wanted).1,
                    "{opcode} ({row}, {column}): {wanted}"
                );
            }
        }
    }
    // f16, bf16, tf32; fp8; integers of bytes and of half of one, clamped or not.
    assert_eq!(tried, 4 * 2 + 8 * 2 + 4 * 3 * 2 + 4 * 3 * 2);
}

#[test]
fn sparse_products() {
    let mut rng = Rng(2);
    let mut tried = 0;
    for (shape, ty) in shapes() {
        for (sat, selector) in ["", ".satfinite"]
            .into_iter()
            .flat_map(|sat| (0..4).map(move |s| (sat, s)))
        {
            let ([a_ty, b_ty, c_ty], depth) = (split(ty), shape.depth());
            let (bits, c_bits) = (code(a_ty, 0).0, code(c_ty, 0).0);
            if depth * bits < 256 || depth * bits > 512 || shape.rows() != 16 {
                continue;
            }
            let order = if selector % 2 == 0 {
                "sp::ordered_metadata"
            } else {
                "sp"
            };
            let opcode = format!("mma.{order}.sync.aligned.{}.row.col{sat}.{}", shape.text(), ty.text());
            // Elements of a unit that a place is of: two halves of a byte; half an element of tf32.
            let chunk_len = match bits {
                32 => 2,
                4 => 8,
                _ => 4,
            };
            let chunks = depth / chunk_len;
            let mut metadata = [0u32; 32];
            let mut full = Matrix::new(16, depth, |_, _| 0);
            let mut kept = Matrix::new(16, depth / 2, |_, _| 0);
            for row in 0..16 {
                for chunk in 0..chunks {
                    let all = if bits == 32 {
                        [0, 5][rng.below(2) as usize]
                    } else {
                        rng.below(6) as usize
                    };
                    let (mut set, places) = CHOICES[all];
                    let mut order_of = [0, 1];
                    if order == "sp" && bits != 32 && rng.below(2) == 1 {
                        // The places of a chunk may also fall.
                        set = set >> 2 | (set & 3) << 2;
                        order_of = [1, 0];
                    }
                    let (word, at) = metadata_place(bits, depth, selector as usize, row, chunk);
                    metadata[word] |= set << at;
                    let unit = (chunk_len / 4).max(1);
                    for i in 0..chunk_len / 2 {
                        let x = small(&mut rng, a_ty) as u64;
                        kept.codes[row * depth / 2 + chunk * chunk_len / 2 + i] = x;
                        let place = match bits {
                            32 => places[0] / 2,
                            _ => places[order_of[i / unit]] * unit + i % unit,
                        };
                        full.codes[row * depth + chunk * chunk_len + place] = x;
                    }
                }
            }
            // Lanes that the selector does not name have what it would be wrong to look at.
            for lane in 0..32 {
                let names = match (bits, depth) {
                    (16, 16) | (32, 8) => lane % 4 == selector as usize,
                    (16, 32) | (32, 16) | (8, 32) | (4, 64) => lane % 4 / 2 == selector as usize,
                    _ => true,
                };
                if !names {
                    metadata[lane] = if bits == 32 { 0x4e4e_e4e4 } else { rng.word() };
                }
            }
            let b = Matrix::new(8, depth, |_, _| small(&mut rng, b_ty) as u64);
            let c = Matrix::new(16, 8, |row, _| match (c_ty, row % 4) {
                ("s32", 0) => (i64::from(i32::MAX) - rng.below(3000) as i64) as u64,
                ("s32", 1) => (i64::from(i32::MIN) + rng.below(3000) as i64) as u64,
                _ => small(&mut rng, c_ty) as u64,
            });
            let coded = |m: &Matrix, ty: &str| Matrix {
                columns: m.columns,
                codes: m.codes.iter().map(|x| code(ty, *x as i64).1).collect(),
            };
            let per = 32 / bits;
            let operands = [
                pack(&coded(&kept, a_ty), depth * bits / 128, bits, 32, a_place(16, per)),
                pack(&coded(&b, b_ty), depth * bits / 128, bits, 32, b_place(per)),
                pack(&coded(&c, c_ty), c_bits / 8, c_bits, 32, c_place),
            ];
            let warp = Warp {
                opcode: &opcode,
                class: Class::B32,
                metadata: Some((metadata, selector)),
            };
            let d = match run(&warp, [&operands[0], &operands[1], &operands[2]], operands[2].len()) {
                Ok(d) => unpack(d, c_bits, 32),
                Err(e) if e.contains("means nothing") => panic!("{opcode} {selector}: {e}"),
                Err(_) => continue,
            };
            tried += 1;
            for (row, column) in (0..16).flat_map(|r| (0..8).map(move |c| (r, c))) {
                let products = (0..depth).map(|k| full.at(row, k) as i64 * b.at(column, k) as i64);
                let sum = c.at(row, column) as i64 + products.sum::<i64>();
                let wanted = match sat {
                    "" => sum,
                    _ => sum.clamp(i32::MIN.into(), i32::MAX.into()),
                };
                assert_eq!(
                    d(row, column),
                    code(c_ty, wanted).1,
                    "{opcode} {selector} ({row}, {column}): {wanted}"
                );
            }
        }
    }
    // f16 (both accumulators), bf16 and tf32: selectors 0 to 3 and 0 to 1. Integers: two shapes with 2 + 1, clamped or not. fp8: one.
    assert_eq!(tried, 4 * (4 + 2) + 8 * 2 * (2 + 1) + 4);
}

/// What A leaves out of B is not looked at, NaN or not; what is chosen is one step, as a dense product of half the depth is.
#[test]
fn sparse_products_are_steps_of_what_is_chosen() {
    let mut rng = Rng(3);
    let kind = MmaKind::new(Element::F16, Element::F16, Accumulator::F32).expect("a kind");
    let finite = |rng: &mut Rng| u64::from(rng.word() as u16 & 0xbbff);
    let kept = Matrix::new(16, 16, |_, _| finite(&mut rng));
    let (mut metadata, mut places) = ([0u32; 32], vec![]);
    for (row, chunk) in (0..16).flat_map(|row| (0..8).map(move |chunk| (row, chunk))) {
        // The third of each four is never chosen.
        let (set, chosen) = CHOICES[[0, 2, 4][rng.below(3) as usize]];
        let (word, at) = metadata_place(16, 32, 1, row, chunk);
        metadata[word] |= set << at;
        places.push(chosen);
    }
    let b = Matrix::new(8, 32, |_, k| if k % 4 == 2 { 0x7e00 } else { finite(&mut rng) });
    let c = Matrix::new(16, 8, |_, _| u64::from(rng.word() & 0xbfff_ffff));
    let operands = [
        pack(&kept, 4, 16, 32, a_place(16, 2)),
        pack(&b, 4, 16, 32, b_place(2)),
        pack(&c, 4, 32, 32, c_place),
    ];
    let warp = Warp {
        opcode: "mma.sp::ordered_metadata.sync.aligned.m16n8k32.row.col.f32.f16.f16.f32",
        class: Class::B32,
        metadata: Some((metadata, 1)),
    };
    let d = run(&warp, [&operands[0], &operands[1], &operands[2]], 4).expect("runs");
    let d = unpack(d, 32, 32);
    for (row, column) in (0..16).flat_map(|r| (0..8).map(move |c| (r, c))) {
        let bytes = |codes: Vec<u64>| -> Vec<u8> { codes.iter().flat_map(|x| (*x as u16).to_le_bytes()).collect() };
        let a = bytes((0..16).map(|k| kept.at(row, k)).collect());
        let of_b = (0..16).map(|k| b.at(column, k / 2 * 4 + places[row * 8 + k / 2][k % 2]));
        let wanted = step(kind, &a, &bytes(of_b.collect()), c.at(row, column) as u32, false);
        assert_eq!(d(row, column), u64::from(wanted), "({row}, {column})");
    }
}

/// Metadata that PTX gives no meaning is an error; where it is not looked at, it is none.
#[test]
fn metadata_without_a_meaning() {
    let ones = vec![[0; 32]; 2];
    let sparse = |opcode: &str, word: u32, selector: u32| {
        let mut metadata = [0x4444_4444; 32];
        metadata[5] = word;
        let warp = Warp {
            opcode,
            class: Class::B32,
            metadata: Some((metadata, selector)),
        };
        let c = vec![[0; 32]; 4];
        run(&warp, [&ones, &ones, &c], 4).map(|_| ())
    };
    let f16 = "mma.sp::ordered_metadata.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32";
    let any = "mma.sp.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32";
    let tf32 = "mma.sp::ordered_metadata.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32";
    assert_eq!(sparse(f16, 0x4444_4444, 1), Ok(()));
    assert_eq!(sparse(f16, 0x1111_1111, 0), Ok(()));
    // Lane 5 is the second of row 1's, and of row 9's in the upper half.
    for (opcode, word, got) in [
        (f16, 0x4444_4144, "0b0001 of row 1, chunk 2"),
        (f16, 0x0444_4444, "0b0000 of row 9, chunk 3"),
        (any, 0x4444_4454, "0b0101 of row 1, chunk 1"),
        (tf32, 0x4484_4444, "0b1000 of row 9, chunk 1"),
    ] {
        let error = sparse(opcode, word, 1).expect_err(opcode);
        assert!(
            error.contains("metadata that means nothing") && error.contains(got),
            "{opcode}: {error}"
        );
    }
    assert_eq!(sparse(any, 0x1111_1111, 1), Ok(()));
    assert!(
        sparse(f16, 0, 4)
            .expect_err("4")
            .contains("a sparsity selector from 0 to 3")
    );
}

/// fp8 with f16 accumulators: two steps of f16 from zero, to whose result C is added.
#[test]
fn fp8_with_f16_accumulators() {
    let mut rng = Rng(4);
    let kind = MmaKind::new(Element::F16, Element::F16, Accumulator::F16).expect("a kind");
    for depth in [16, 32] {
        let opcode = format!("mma.sync.aligned.m16n8k{depth}.row.col.f16.e4m3.e5m2.f16");
        // Within range, so that sums do not overflow: |a| < 2, |b| < 2.
        let a = Matrix::new(16, depth, |_, _| u64::from(rng.word() as u8 & 0xbf));
        let b = Matrix::new(8, depth, |_, _| u64::from(rng.word() as u8 & 0xbf));
        let c = Matrix::new(16, 8, |_, _| u64::from(rng.word() as u16 & 0xc7ff));
        let operands = [
            pack(&a, depth / 8, 8, 32, a_place(16, 4)),
            pack(&b, depth / 16, 8, 32, b_place(4)),
            pack(&c, 2, 16, 32, c_place),
        ];
        let warp = Warp {
            opcode: &opcode,
            class: Class::B32,
            metadata: None,
        };
        let d = run(&warp, [&operands[0], &operands[1], &operands[2]], 2).expect("runs");
        let d = unpack(d, 16, 32);
        for (row, column) in (0..16).flat_map(|r| (0..8).map(move |c| (r, c))) {
            let sum = [[0, 1], [2, 3]].into_iter().fold(0, |sum, of| {
                let part = |m: &Matrix, row: usize, format: Fp8| -> Vec<u8> {
                    let chosen = (0..depth).filter(|k| of.contains(&(k % 4)));
                    chosen
                        .flat_map(|k| fp8_to_f16(format, m.at(row, k) as u8).to_le_bytes())
                        .collect()
                };
                step(
                    kind,
                    &part(&a, row, Fp8::E4m3),
                    &part(&b, column, Fp8::E5m2),
                    sum,
                    false,
                )
            });
            let wanted = half::f16::from_bits(c.at(row, column) as u16) + half::f16::from_bits(sum as u16);
            assert_eq!(
                d(row, column),
                u64::from(wanted.to_bits()),
                "{opcode} ({row}, {column})"
            );
        }
    }
}

#[test]
fn single_bits() {
    let mut rng = Rng(5);
    for (rows, depth) in [(8, 128), (16, 128), (16, 256)] {
        for op in ["xor", "and"] {
            let opcode = format!("mma.sync.aligned.m{rows}n8k{depth}.row.col.s32.b1.b1.s32.{op}.popc");
            let [a, b] = [rows, 8].map(|rows| Matrix::new(rows, depth, |_, _| rng.below(2)));
            let c = Matrix::new(
                rows,
                8,
                |row, _| if row == 0 { 0x7fff_ffff } else { u64::from(rng.word()) },
            );
            let operands = [
                pack(&a, rows * depth / 1024, 1, 32, a_place(rows, 32)),
                pack(&b, depth / 128, 1, 32, b_place(32)),
                pack(&c, rows / 4, 32, 32, c_place),
            ];
            let warp = Warp {
                opcode: &opcode,
                class: Class::B32,
                metadata: None,
            };
            let d = run(&warp, [&operands[0], &operands[1], &operands[2]], rows / 4).expect("runs");
            let d = unpack(d, 32, 32);
            for (row, column) in (0..rows).flat_map(|r| (0..8).map(move |c| (r, c))) {
                let ones = (0..depth).map(|k| match (op, a.at(row, k), b.at(column, k)) {
                    ("and", x, y) => x & y,
                    (_, x, y) => x ^ y,
                });
                let wanted = (c.at(row, column) as u32).wrapping_add(ones.sum::<u64>() as u32);
                assert_eq!(d(row, column), u64::from(wanted), "{opcode} ({row}, {column})");
            }
        }
    }
}

/// One multiply-add after the other, in the order of k.
#[test]
fn doubles() {
    let mut rng = Rng(6);
    for (rows, depth) in [(8, 4), (16, 4), (16, 8), (16, 16)] {
        let opcode = format!("mma.sync.aligned.m{rows}n8k{depth}.row.col.f64.f64.f64.f64");
        // Of very different sizes: another order has other bits.
        let mut number = || {
            let (mantissa, scale) = (rng.word(), rng.below(120) as i32 - 60);
            ((f64::from(mantissa) / 3.0 - 7e8) * 2f64.powi(scale)).to_bits()
        };
        let a = Matrix::new(rows, depth, |_, _| number());
        let b = Matrix::new(8, depth, |_, _| number());
        let c = Matrix::new(rows, 8, |row, column| match (row, column) {
            (0, 0) => f64::INFINITY.to_bits(),
            (0, 1) => f64::NAN.to_bits(),
            _ => number(),
        });
        let operands = [
            pack(&a, rows * depth / 32, 64, 64, a_place(rows, 1)),
            pack(&b, depth / 4, 64, 64, b_place(1)),
            pack(&c, rows / 4, 64, 64, c_place),
        ];
        let of = |opcode: &str| {
            let warp = Warp {
                opcode,
                class: Class::B64,
                metadata: None,
            };
            let d = run(&warp, [&operands[0], &operands[1], &operands[2]], rows / 4).expect(opcode);
            unpack(d, 64, 64)
        };
        let nearest = of(&opcode);
        let [zero, down, up] = ["rz", "rm", "rp"].map(|how| of(&format!("{opcode}.{how}")));
        // Other spellings.
        let spelled = of(&format!("{opcode}.rn"));
        let in_front = of(&opcode.replace("row.col", "row.col.rp"));
        let mut inexact = 0;
        for (row, column) in (0..rows).flat_map(|r| (0..8).map(move |c| (r, c))) {
            let f = f64::from_bits;
            let start = f(c.at(row, column));
            let sum = (0..depth).fold(start, |sum, k| f(a.at(row, k)).mul_add(f(b.at(column, k)), sum));
            let got = f(nearest(row, column));
            assert!(
                got.to_bits() == sum.to_bits() || got.is_nan() && sum.is_nan(),
                "{opcode} ({row}, {column})"
            );
            assert_eq!(nearest(row, column), spelled(row, column));
            assert_eq!(up(row, column), in_front(row, column));
            if got.is_finite() {
                let (zero, down, up) = (f(zero(row, column)), f(down(row, column)), f(up(row, column)));
                assert!(down <= up, "{opcode} ({row}, {column})");
                inexact += usize::from(down < up && (zero == down || zero == up || zero != got));
            }
        }
        assert!(inexact > rows * 4, "{opcode}: {inexact}");
    }
}

/// Exact sums of one product, rounded each way.
#[test]
fn doubles_round() {
    let tiny = 2f64.powi(-80);
    for (c, product, rz, rm, rp) in [
        (1.0, tiny, 1.0, 1.0, 1.0 + f64::EPSILON),
        (-1.0, -tiny, -1.0, -1.0 - f64::EPSILON, -1.0),
        (1.0, -tiny, 1.0 - f64::EPSILON / 2.0, 1.0 - f64::EPSILON / 2.0, 1.0),
        (1.0, -1.0, 0.0, -0.0, 0.0),
    ] {
        let (mut a, mut b) = (vec![[0; 32]; 1], vec![[0; 32]; 1]);
        for lane in (0..32).step_by(4) {
            (a[0][lane], b[0][lane]) = (f64::to_bits(product), 1f64.to_bits());
        }
        let c = vec![[f64::to_bits(c); 32]; 2];
        for (how, wanted) in [("rz", rz), ("rm", rm), ("rp", rp)] {
            let opcode = format!("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64.{how}");
            let warp = Warp {
                opcode: &opcode,
                class: Class::B64,
                metadata: None,
            };
            let d = run(&warp, [&a, &b, &c], 2).expect("runs");
            assert!(
                d.iter().flatten().all(|x| *x == f64::to_bits(wanted)),
                "{how} of {product}: {d:?}"
            );
        }
    }
}

/// PTX ISA, "Matrix Fragments for mma.m8n8k4 with .f16 floating point type", by element.
#[test]
fn products_of_eight_lanes() {
    let mut rng = Rng(7);
    for (a_major, b_major) in [("row", "row"), ("row", "col"), ("col", "row"), ("col", "col")] {
        for (d_ty, c_ty) in [("f32", "f32"), ("f32", "f16"), ("f16", "f16")] {
            let opcode = format!("mma.sync.aligned.m8n8k4.{a_major}.{b_major}.{d_ty}.f16.f16.{c_ty}");
            // Four matrices below each other.
            let [a, b, c] = [4, 8, 8].map(|columns| Matrix::new(32, columns, |_, _| small(&mut rng, "f16") as u64));
            let coded = |m: &Matrix, ty: &str| Matrix {
                columns: m.columns,
                codes: m.codes.iter().map(|x| code(ty, *x as i64).1).collect(),
            };
            let quad = |lane: usize| lane % 16 / 4 * 8;
            let of_half = |lane: usize| lane / 16 * 4;
            let a_place = |lane: usize, i: usize| match a_major {
                "row" => (quad(lane) + lane % 4 + of_half(lane), i),
                _ => (quad(lane) + i + of_half(lane), lane % 4),
            };
            // B's rows are 4 of each 8 here.
            let b_place = |lane: usize, i: usize| match b_major {
                "row" => (quad(lane) + lane % 4, i + of_half(lane)),
                _ => (quad(lane) + i, lane % 4 + of_half(lane)),
            };
            let c_place = |ty: &'static str| {
                move |lane: usize, i: usize| match ty {
                    "f16" => (quad(lane) + lane % 4 + of_half(lane), i),
                    _ => (
                        quad(lane) + (lane & 1) + (i & 2) + of_half(lane),
                        (i & 4) + (lane & 2) + (i & 1),
                    ),
                }
            };
            let registers = |ty: &str| if ty == "f16" { 4 } else { 8 };
            let operands = [
                pack(&coded(&a, "f16"), 2, 16, 32, a_place),
                pack(&coded(&b, "f16"), 2, 16, 32, b_place),
                pack(&coded(&c, c_ty), registers(c_ty), code(c_ty, 0).0, 32, c_place(c_ty)),
            ];
            let warp = Warp {
                opcode: &opcode,
                class: Class::B32,
                metadata: None,
            };
            let d = run(&warp, [&operands[0], &operands[1], &operands[2]], registers(d_ty)).expect("runs");
            let wanted = Matrix::new(32, 8, |row, column| {
                let products = (0..4).map(|k| a.at(row, k) as i64 * b.at(row / 8 * 8 + k, column) as i64);
                code(d_ty, c.at(row, column) as i64 + products.sum::<i64>()).1
            });
            assert_eq!(
                d,
                pack(&wanted, registers(d_ty), code(d_ty, 0).0, 32, c_place(d_ty)),
                "{opcode}"
            );
        }
    }
}

/// What sm_90 computes of it, in which order: sums of f32 that round; C comes last, or first with f16 results.
#[test]
fn products_of_eight_lanes_round() {
    let h = |x: f32| u64::from(half::f16::from_f32(x).to_bits());
    // a·1: 2^15, 2^-9, −2^15, 2^-9 in all rows.
    let [x, y, z] = [32768.0, 2f32.powi(-9), -32768.0].map(h);
    let a = vec![[x | y << 16; 32], [z | y << 16; 32]];
    let b = vec![[h(1.0) * 0x1_0001; 32]; 2];
    let wide = |c: f32| vec![[u64::from(c.to_bits()); 32]; 8];
    let opcode = "mma.sync.aligned.m8n8k4.row.col.f32.f16.f16.f32";
    let warp = Warp {
        opcode,
        class: Class::B32,
        metadata: None,
    };
    let d = run(&warp, [&a, &b, &wide(1.0)], 8).expect("runs");
    // 2^15 + 2^-9 is half way to the next f32: it rounds to 2^15.
    assert_eq!(d, wide(1.0 + 2f32.powi(-9)));
    // C comes last, where 2^15 − 2^-9 is a f32.
    let d = run(&warp, [&a, &b, &wide(-32768.0)], 8).expect("runs");
    assert_eq!(d, wide(2f32.powi(-9) - 32768.0));
    // Results of f16: (C + (a0·b0 + a1·b1)) + (a2·b2 + a3·b3), where the first sum and the second round to 2^15.
    let opcode = "mma.sync.aligned.m8n8k4.row.col.f16.f16.f16.f16";
    let warp = Warp {
        opcode,
        class: Class::B32,
        metadata: None,
    };
    let packed = |c: f32| vec![[h(c) * 0x1_0001; 32]; 4];
    let small = packed(2f32.powi(-9));
    assert_eq!(run(&warp, [&a, &b, &small], 4).expect("runs"), small);
}
