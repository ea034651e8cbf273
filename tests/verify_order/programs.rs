//! Random memory programs: what the pass places is enough for the checker, whichever order things come in.
//!
//! Few buffers, many kinds of access: lanes' loads and stores of the same and of shifted parts, scalars, bulk loads and stores, wgmma,
//! arms, loops, warp regions, scopes that share bytes. None of it computes anything.
use crate::harness::{Test, built};
use smalt::dtype::DType;
use smalt::kernel_ir::*;
use smalt::plan::insert_barriers;
use smalt::plan::verify_order::{self, Fault, Finding};

/// xorshift64.
struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 20) % n
    }
    fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
}

struct Buffers {
    x: Alloc,
    out: Alloc,
    /// Of more rows than runs of bytes are told apart.
    tall: Alloc,
    ring: Alloc,
    flat: Alloc,
    bars: Alloc,
    tiles: [Alloc; 2],
    tile_in: Alloc,
    /// Where the memory of all scopes lies.
    place: Alloc,
    /// A number that nobody knows.
    n: Value,
    row: Value,
    number: Value,
    rounds: &'static [i64],
}

/// `rounds`: how many a loop has whose number is known, and below which number are those that are not like the others, if any.
fn program(seed: u64, rounds: &'static [i64]) -> impl FnOnce(&mut Test) {
    move |t| {
        let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        let x = t.input(DType::F32, &[128]);
        let row = t.load(t.whole(x));
        let zero = t.int(0);
        let number = t.b.op1(OpKind::Convert { a: zero }, DType::F32, &[]);
        let buffers = Buffers {
            x,
            out: t.output(DType::F32, &[256]),
            tall: t.output(DType::F32, &[5000, 256]),
            ring: t.smem(DType::F32, &[2, 128]),
            flat: t.smem(DType::F32, &[256]),
            bars: t.barriers(2),
            tiles: [t.tile(), t.tile()],
            tile_in: t.input(DType::F16, &[64, 64]),
            place: t.smem(DType::F32, &[128]),
            n: t.b.scalar(DType::I32),
            row,
            number,
            rounds,
        };
        let mut left = 14;
        block(t, &mut random, &buffers, 0, &mut left);
    }
}

fn block(t: &mut Test, random: &mut Random, b: &Buffers, depth: u32, left: &mut i32) {
    let ops = 2 + random.below(5);
    for _ in 0..ops {
        if *left <= 0 {
            return;
        }
        *left -= 1;
        step(t, random, b, depth, left);
    }
}

/// Elements of the tall array from a column on; one where `size` is.
fn tall_part(t: &Test, random: &mut Random, b: &Buffers, size: Option<u64>) -> RefUse {
    let row = match random.below(3) {
        0 => Index::Const(2050),
        1 => Index::Const(4099),
        _ => Index::Value(b.n),
    };
    let column = match size {
        None => DimIndex::At(Index::Const([13, 140][random.below(2) as usize])),
        Some(size) => DimIndex::Slice {
            start: Index::Const([0, 64, 128][random.below(3) as usize]),
            size,
            stride: 1,
        },
    };
    t.b.indexed(b.tall, vec![DimIndex::At(row), column])
}

/// A row of shared memory.
fn row_of(t: &mut Test, random: &mut Random, b: &Buffers) -> RefUse {
    match random.below(4) {
        0 => t.part(b.flat, 0, 128),
        1 => t.part(b.flat, [16, 32, 64, 128][random.below(4) as usize], 128),
        i => t.slot(b.ring, Index::Const(i as i64 - 2)),
    }
}

fn step(t: &mut Test, random: &mut Random, b: &Buffers, depth: u32, left: &mut i32) {
    match random.below(if depth < 3 { 19 } else { 13 }) {
        0 | 1 => {
            let dst = row_of(t, random, b);
            t.store(dst, b.row);
        }
        2 => {
            let src = row_of(t, random, b);
            t.load(src);
        }
        3 => {
            let at = t.at(b.flat, random.below(256) as i64);
            if random.one_in(2) {
                t.store(at, b.number);
            } else {
                t.load(at);
            }
        }
        4 => {
            let part = t.part(b.out, [0, 32, 64, 128][random.below(4) as usize], 128);
            if random.one_in(2) {
                t.store(part, b.row);
            } else {
                t.load(part);
            }
        }
        5 | 6 => {
            let (dst, bar) = (row_of(t, random, b), random.below(2) as i64);
            let src = if random.one_in(3) {
                t.part(b.out, 0, 128)
            } else {
                t.whole(b.x)
            };
            t.copy_in(src, dst, b.bars, bar);
            if !random.one_in(4) {
                t.wait(b.bars, bar);
            }
        }
        7 => {
            let src = row_of(t, random, b);
            t.commit();
            let dst = t.part(b.out, [0, 128][random.below(2) as usize], 128);
            t.copy_out(src, dst);
        }
        8 => {
            let scope = [WaitScope::SmemRead, WaitScope::Complete][random.below(2) as usize];
            t.wait_out(random.below(2) as u32, scope);
        }
        9 => t.commit(),
        10 => {
            let acc = t.acc();
            let mut acc = t.wgmma(acc, b.tiles[0], b.tiles[1]);
            if random.one_in(2) {
                acc = t.wgmma(acc, b.tiles[1], b.tiles[0]);
                acc = t.wait_mma(1, acc);
                if random.one_in(2) {
                    t.commit();
                }
            }
            t.wait_mma(0, acc);
            let tile = b.tiles[random.below(2) as usize];
            match random.below(3) {
                0 => t.copy_in(t.whole(b.tile_in), t.whole(tile), b.bars, 0),
                1 => {
                    let value = t.load(t.whole(b.tile_in));
                    t.store(t.whole(tile), value);
                    t.commit();
                }
                _ => {}
            }
        }
        11 => {
            let element = tall_part(t, random, b, None);
            t.store(element, b.number);
        }
        12 => {
            let part = tall_part(t, random, b, Some(128));
            if random.one_in(2) {
                t.store(part, b.row);
            } else {
                t.load(part);
            }
        }
        13 => {
            let zero = t.int(0);
            let compare = OpKind::Compare {
                op: CompareOp::Eq,
                a: b.n,
                b: zero,
            };
            let which = t.b.op1(compare, DType::Bool, &[]);
            t.when(which, |t| block(t, random, b, depth + 1, left));
        }
        14 | 15 => {
            let n = if random.one_in(2) { b.n } else { t.int(b.rounds[0]) };
            t.repeat(n, |t, i| {
                let two = t.int(2);
                let rem = OpKind::Binary {
                    op: BinaryOp::Rem,
                    a: i,
                    b: two,
                };
                let slot = t.b.op1(rem, DType::I32, &[]);
                if let Some(&last) = b.rounds.get(1) {
                    // Some rounds are not like the others.
                    let to = t.int(random.below(last as u64) as i64);
                    let op = [CompareOp::Eq, CompareOp::Lt, CompareOp::Ge][random.below(3) as usize];
                    let which = t.b.op1(OpKind::Compare { op, a: i, b: to }, DType::Bool, &[]);
                    t.when(which, |t| block(t, random, b, 3, left));
                }
                if random.one_in(2) {
                    t.store(t.slot(b.ring, Index::Value(slot)), b.row);
                }
                block(t, random, b, depth + 1, left);
                if random.one_in(2) {
                    t.load(t.slot(b.ring, Index::Value(slot)));
                }
            });
        }
        16 => {
            let warp = random.below(4) as i64;
            t.in_warp(warp, |t| one_warp(t, random, b));
        }
        _ => {
            let own = t.inner_smem(DType::F32, &[128]);
            t.share(b.place, own);
            t.scope(&[own], false, |t| {
                match random.below(4) {
                    0 => t.store(t.whole(own), b.row),
                    1 => t.copy_out(t.whole(own), t.part(b.out, 0, 128)),
                    2 => {
                        t.copy_in(t.whole(b.x), t.whole(own), b.bars, 1);
                        t.wait(b.bars, 1);
                    }
                    _ => t.store(t.at(own, 7), b.number),
                }
                if random.one_in(2) {
                    t.load(t.whole(own));
                }
            });
        }
    }
}

/// What a warp does in a region of its own.
fn one_warp(t: &mut Test, random: &mut Random, b: &Buffers) {
    for _ in 0..1 + random.below(3) {
        match random.below(6) {
            0 => t.store(t.at(b.flat, random.below(256) as i64), b.number),
            1 => {
                t.load(t.at(b.flat, random.below(256) as i64));
            }
            2 => {
                let dst = row_of(t, random, b);
                t.copy_in(t.whole(b.x), dst, b.bars, 0);
                t.wait(b.bars, 0);
            }
            3 => {
                let src = row_of(t, random, b);
                t.commit();
                t.copy_out(src, t.part(b.out, 0, 128));
                t.wait_out(0, WaitScope::Complete);
            }
            4 => t.commit(),
            _ => t.arrive(b.bars, 1),
        }
    }
}

fn compilers(findings: Vec<Finding>) -> Vec<Finding> {
    findings.into_iter().filter(|f| f.fault == Fault::Compiler).collect()
}

#[test]
fn what_is_placed_is_enough() {
    let count = std::env::var("SMALT_TEST_PROGRAMS")
        .ok()
        .and_then(|n| n.parse().ok())
        .unwrap_or(300);
    let (mut barriers, mut missed) = (0, 0);
    for seed in 0..count {
        let rounds: &[i64] = if seed % 4 == 3 { &[41, 41] } else { &[2] };
        let (mut kernel, assignment, allocation) = built(1, true, program(seed, rounds));
        let placed = insert_barriers::run(&mut kernel, &assignment, &allocation);
        let wrong = compilers(verify_order::run(&kernel, &assignment, &allocation));
        let texts: Vec<String> = wrong.iter().map(Finding::to_string).collect();
        assert!(texts.is_empty(), "program {seed}:\n{kernel}\n{}", texts.join("\n"));
        for &op in &placed {
            let mut broken = kernel.clone();
            broken.remove(op);
            barriers += 1;
            missed += usize::from(!compilers(verify_order::run(&broken, &assignment, &allocation)).is_empty());
        }
    }
    println!("{missed} of {barriers} barriers are missed when they go");
    assert!(
        3 * missed > barriers,
        "only {missed} of {barriers} barriers are missed when they go"
    );
}
