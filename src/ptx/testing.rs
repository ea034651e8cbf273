//! A whole kernel for tests of this room and of the emulator: a warp-specialised matrix product, written by hand with
//! the builder as lowering would.
use super::build::{Builder, Operand};
use super::inst::Inst;
use super::launch::*;
use super::modifier::*;
use super::operand::*;
use super::out_of_ssa::Shell;
use super::ssa::*;
use crate::error::Loc;
use arrayvec::ArrayVec;
use smallvec::smallvec;
use std::convert::Infallible;

/// Sizes of the product `D[m, n] = A[m, k] · B[n, k]ᵀ`, f16 operands, f32 result.
#[derive(Clone, Copy, Debug)]
pub struct Matmul {
    pub m: u64,
    pub n: u64,
    pub k: u64,
}

const STAGES: u32 = 4;
/// A tile of 128 rows of 64 f16: 128 bytes a row, swizzled.
const TILE_BYTES: u32 = 128 * 128;
const STAGE_BYTES: u32 = 2 * TILE_BYTES;
const BARRIERS: u32 = STAGES * STAGE_BYTES;
const NEW: Value = Value::NEW;

type Made<T> = Result<T, Infallible>;

impl Matmul {
    /// Buffers: A, B, D. Tiles of 128 × 128, K in steps of 64.
    pub fn shell(&self) -> Shell {
        let operand = |buffer: u32, rows: u64| {
            EntryParam::TensorMap(TensorMapSpec {
                buffer,
                byte_offset: 0,
                element: TensorMapElement::F16,
                dims: [self.k, rows].into_iter().collect(),
                strides: [2 * self.k].into_iter().collect(),
                box_dims: [64, 128].into_iter().collect::<ArrayVec<u32, 5>>(),
                swizzle: TensorMapSwizzle::B128,
            })
        };
        Shell {
            launch: LaunchSpec {
                entry: "matmul".into(),
                grid: [(self.n / 128) as u32, (self.m / 128) as u32, 1],
                smem_bytes: BARRIERS + 16 * STAGES,
                params: vec![
                    operand(0, self.m),
                    operand(1, self.n),
                    EntryParam::Pointer { buffer: 2 },
                ],
                ..LaunchSpec::of_one_block(384)
            },
            target: "sm_90a".into(),
            min_ctas_per_sm: Some(1),
        }
    }

    pub fn ssa(&self) -> Ssa {
        let mut b = Builder::new();
        let Ok(()) = self.write(&mut b);
        b.finish()
    }

    fn write(&self, b: &mut Builder) -> Made<()> {
        let steps = (self.k / 64) as u32;
        let smem = b.smem_base();
        b.set_loc(Loc(1));
        let tid = b.tid();
        let first = b.setp(Compare::Eq, CompareType::U32, tid, 0);
        b.when(first, |b| {
            for slot in 0..STAGES {
                for (which, count) in [(full(slot), 1), (empty(slot), 256)] {
                    b.inst(Inst::MbarrierInit {
                        addr: Addr::at(smem, which as i32),
                        count: Src::u32(count),
                    });
                }
            }
            Made::Ok(())
        })?;
        b.inst(Inst::FenceMbarrierInit {});
        b.inst(Inst::BarSync {
            id: 0.into(),
            threads: 384.into(),
        });
        let wg = b.warpgroup();
        let consumer = b.setp(Compare::Lt, CompareType::U32, wg, 2);
        b.open_if(consumer);
        b.inst(Inst::SetMaxReg {
            action: RegCount::Increase,
            n: 232,
        });
        self.consume(b, smem, wg, steps)?;
        b.open_else(&[]);
        b.inst(Inst::SetMaxReg {
            action: RegCount::Decrease,
            n: 40,
        });
        b.elected_in_warpgroup(|b| self.produce(b, smem, steps))?;
        b.close_if(&[]);
        Ok(())
    }

    /// The slot of step `i`, its byte offset, and the parity of its use.
    fn slot(b: &mut Builder, smem: Value, i: Value) -> (Value, Operand, Operand) {
        let slot = b.rem(IntType::U32, i, STAGES);
        let uses = b.div(IntType::U32, i, STAGES);
        let parity = b.and(LogicType::B32, uses, 1);
        let offset = b.mul(IntType::U32, slot, STAGE_BYTES);
        let tiles = b.add(IntType::U32, smem, offset);
        let bars = b.mul(IntType::U32, slot, 8);
        let bars = b.add(IntType::U32, smem, bars);
        (b.value(tiles, Class::B32), bars, parity)
    }

    fn produce(&self, b: &mut Builder, smem: Value, steps: u32) -> Made<()> {
        b.set_loc(Loc(2));
        let maps = [b.param_addr(ParamRef(0)), b.param_addr(ParamRef(1))];
        let column = b.special(SpecialReg32::CtaidX);
        let row = b.special(SpecialReg32::CtaidY);
        let rows = [b.mul(IntType::U32, row, 128), b.mul(IntType::U32, column, 128)];
        let range = (0.into(), steps.into(), 1.into());
        b.for_(IntType::U32, range, &[], |b, i, _| {
            let (tiles, bars, parity) = Matmul::slot(b, smem, i);
            let full = b.addr(bars, full(0) as i32);
            let empty = b.addr(bars, empty(0) as i32);
            // A fresh barrier's phase of parity 1 counts as complete: the first round does not wait.
            let parity = b.xor(LogicType::B32, parity, 1);
            b.inst(Inst::MbarrierWait {
                ask: MbarrierAsk::Try,
                acquire: Acquire::Cta,
                suspend: Suspend::Short,
                addr: empty,
                parity,
            });
            b.inst(Inst::MbarrierArriveExpectTx {
                addr: full,
                bytes: STAGE_BYTES.into(),
            });
            let k = b.mul(IntType::U32, i, 64);
            for (j, map) in maps.into_iter().enumerate() {
                b.inst(Inst::TensorLoad {
                    dst: Addr::at(tiles, (j as u32 * TILE_BYTES) as i32),
                    map,
                    coords: smallvec![k, rows[j]],
                    bar: full,
                });
            }
            Made::Ok(vec![])
        })?;
        Ok(())
    }

    fn consume(&self, b: &mut Builder, smem: Value, wg: Value, steps: u32) -> Made<()> {
        b.set_loc(Loc(3));
        let zeros: Vec<Value> = (0..64).map(|_| b.constant(Class::B32, 0)).collect();
        let half = b.mul(IntType::U32, wg, 64 * 128);
        let range = (0.into(), steps.into(), 1.into());
        let acc = b.for_(IntType::U32, range, &zeros, |b, i, acc| {
            let (tiles, bars, parity) = Matmul::slot(b, smem, i);
            let addr = b.addr(bars, full(0) as i32);
            b.inst(Inst::MbarrierWait {
                ask: MbarrierAsk::Try,
                acquire: Acquire::Cta,
                suspend: Suspend::Short,
                addr,
                parity,
            });
            let a = b.add(IntType::U32, tiles, half);
            let a = descriptor(b, a);
            let right = b.add(IntType::U32, tiles, TILE_BYTES);
            let right = descriptor(b, right);
            let tied = |input: Vec<Value>| Tied {
                output: vec![NEW; input.len()],
                input,
            };
            let mut acc = b
                .inst(Inst::WgmmaFence {
                    acc: tied(acc.to_vec()),
                })
                .to_vec();
            let scale_d = b.value(Src::Imm(1), Class::Pred);
            for step in 0..4 {
                // 16 columns of K are 32 bytes, two units of the descriptor.
                let a = b.add(IntType::U64, a, 2 * step);
                let right = b.add(IntType::U64, right, 2 * step);
                let (a, right) = (b.value(a, Class::B64), b.value(right, Class::B64));
                acc = b
                    .inst(Inst::WgmmaHalfSs {
                        ty: WgmmaTypes::F16,
                        acc_ty: AccType::F32,
                        n: 128,
                        acc: tied(acc),
                        a,
                        b: right,
                        scale_d,
                        neg_a: 1,
                        neg_b: 1,
                        trans_a: 0,
                        trans_b: 0,
                    })
                    .to_vec();
            }
            b.inst(Inst::WgmmaCommit {});
            let acc = b.inst(Inst::WgmmaWait { n: 1, acc: tied(acc) });
            // The step before has been read: its slot is free.
            let before = b.sub(IntType::U32, i, 1);
            let before = b.value(before, Class::B32);
            let later = b.setp(Compare::Gt, CompareType::U32, i, 0);
            let (_, bars, _) = Matmul::slot(b, smem, before);
            b.when(later, |b| {
                let addr = b.addr(bars, empty(0) as i32);
                b.inst(Inst::MbarrierArrive { addr, count: 1.into() });
                Made::Ok(())
            })?;
            Made::Ok(acc.iter().map(|v| Src::Reg(*v)).collect())
        })?;
        b.set_loc(Loc(4));
        let acc = b.inst(Inst::WgmmaWait {
            n: 0,
            acc: Tied {
                output: vec![NEW; acc.len()],
                input: acc,
            },
        });
        self.store(b, wg, &acc);
        Ok(())
    }

    /// Register `4·j + r` of lane `l` of warp `w` is row `16·w + l / 4 + 8·(r / 2)`, column `8·j + 2·(l % 4) + r % 2`.
    fn store(&self, b: &mut Builder, wg: Value, acc: &[Value]) {
        let (lane, warp) = (b.lane(), b.warp_in_warpgroup());
        let out = b.param(ParamRef(2));
        let (column, row) = (b.special(SpecialReg32::CtaidX), b.special(SpecialReg32::CtaidY));
        let row = b.mul(IntType::U32, row, 128);
        let row = b.mad(IntType::U32, wg, 64, row);
        let row = b.mad(IntType::U32, warp, 16, row);
        let quad = b.shr(ShiftType::U32, lane, 2);
        let row = b.add(IntType::U32, row, quad);
        let column = b.mul(IntType::U32, column, 128);
        let pair = b.and(LogicType::B32, lane, 3);
        let column = b.mad(IntType::U32, pair, 2, column);
        let element = b.mad(IntType::U32, row, self.n as u32, column);
        let base = b.emit(Inst::MadWide {
            ty: WideType::U32,
            d: NEW,
            a: element,
            b: 4.into(),
            c: out.into(),
        });
        for (j, part) in acc.chunks(2).enumerate() {
            let (block, lower) = (j / 2, j % 2);
            let offset = block as u64 * 32 + lower as u64 * 8 * self.n * 4;
            let at = b.addr(base, offset as i32);
            b.store(Space::Global, MemType::B32, at, &[part[0].into(), part[1].into()]);
        }
    }
}

fn full(slot: u32) -> u32 {
    BARRIERS + 8 * slot
}
fn empty(slot: u32) -> u32 {
    BARRIERS + 8 * STAGES + 8 * slot
}

/// A matrix descriptor, K-major, 128-byte swizzle (PTX ISA, "Matrix Descriptor"): groups of 8 rows are 1024 bytes
/// apart.
fn descriptor(b: &mut Builder, address: Operand) -> Operand {
    let field = b.shr(ShiftType::U32, address, 4);
    let field = b.and(LogicType::B32, field, 0x3fff);
    let wide = b.cvt_int(CvtType::U64, CvtType::U32, field);
    let constant = 1u64 << 62 | (1024 >> 4) << 32 | 1 << 16;
    b.or(LogicType::B64, wide, Src::Imm(constant))
}

mod tests {
    use super::super::generate::tests::ptxas;
    use super::super::*;
    use super::*;
    use std::process::Command;
    use std::time::{Duration, Instant};

    const SIZE: Matmul = Matmul { m: 256, n: 256, k: 512 };

    fn compile(ssa: Ssa) -> (Flat, String, Vec<(&'static str, Duration)>) {
        let mut times = vec![];
        let mut start = Instant::now();
        let mut lap = |name| {
            times.push((name, start.elapsed()));
            start = Instant::now();
        };
        let ssa = optimize::run(ssa, optimize::Options::default(), |name, done| {
            if done.is_some() {
                lap(name);
            }
        })
        .unwrap();
        let flat = out_of_ssa::run(&ssa, SIZE.shell()).unwrap();
        lap("out_of_ssa");
        assert_eq!(verify_flat::run(&flat), vec![]);
        lap("verify_flat");
        let text = print::print_with_launch(&flat).unwrap();
        lap("print");
        (flat, text, times)
    }

    #[test]
    fn accumulators_stay_and_the_text_comes_back() {
        let (flat, text, times) = compile(SIZE.ssa());
        println!(
            "{} values of {} blocks: {times:?}",
            SIZE.ssa().values.len(),
            flat.blocks.len()
        );
        let moves = |block: &flat::Block| {
            let is_move = |i: &flat::FlatInst| matches!(i.inst, Inst::Mov { a: Src::Reg(_), .. });
            block.insts.iter().filter(|i| is_move(i)).count()
        };
        assert_eq!(flat.blocks.iter().map(moves).sum::<usize>(), 0, "{text}");
        let back = parse::parse(&text).unwrap();
        assert_eq!(print::print_with_launch(&back).unwrap(), text);
        assert_eq!(back.launch, flat.launch);
        // The text is a file test, which other machines execute.
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/filetests/ptx/matmul.ptx");
        let mut expected = std::fs::read_to_string(path).unwrap();
        if std::env::var_os("SMALT_BLESS").is_some() {
            let (header, _) = expected.split_once("\n\n").unwrap();
            expected = format!("{header}\n\n{text}");
            std::fs::write(path, &expected).unwrap();
        }
        assert!(expected.ends_with(&text), "the PTX changed: SMALT_BLESS=1 accepts it");
        // Twice the same.
        assert_eq!(compile(SIZE.ssa()).1, text);
    }

    #[test]
    fn ptxas_neither_serialises_wgmma_nor_spills() {
        let Some(ptxas) = ptxas() else {
            eprintln!("SKIPPED: no ptxas; set SMALT_PTXAS");
            return;
        };
        let (_, text, _) = compile(SIZE.ssa());
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("matmul.ptx");
        std::fs::write(&file, &text).unwrap();
        let out = Command::new(ptxas)
            .args(["-v", "-arch=sm_90a", "-o"])
            .arg(dir.path().join("matmul.cubin"))
            .arg(&file)
            .output()
            .unwrap();
        let log = String::from_utf8_lossy(&out.stderr).to_string() + &String::from_utf8_lossy(&out.stdout);
        assert!(out.status.success(), "{log}");
        assert!(!log.contains("C75"), "{log}");
        assert!(log.contains("0 bytes spill stores, 0 bytes spill loads"), "{log}");
    }
}
