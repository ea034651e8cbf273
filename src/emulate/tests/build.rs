//! A small assembler for tests: kernels in flat form, and running them.
use crate::emulate::{AgentOrder, Contents, HostBuffer, Options, Program, Report, Unwatched, run};
use crate::error::{Error, Loc, Result};
use crate::ptx::Flat;
use crate::ptx::flat::{Block, BlockId, FlatInst, Guard, Reg, Terminator, Uniformity};
use crate::ptx::inst::Inst;
use crate::ptx::launch::{EntryParam, LaunchSpec, TensorMapSpec};
use crate::ptx::modifier::*;
use crate::ptx::operand::{Addr, Class, ParamRef, Src, Tied};
use smallvec::smallvec;

pub type S = Src<Reg>;

/// An immediate.
pub fn imm(value: u32) -> S {
    Src::u32(value)
}

/// A kernel in the making. Instructions go to the last block.
pub struct Kernel {
    pub flat: Flat,
    guard: Option<Guard>,
    next_loc: u32,
}

impl Kernel {
    pub fn new(threads: u32) -> Kernel {
        Kernel {
            flat: Flat {
                launch: LaunchSpec::of_one_block(threads),
                target: "sm_90a".into(),
                registers: [0; 4],
                blocks: vec![Block {
                    insts: vec![],
                    terminator: Terminator::Return,
                    loc: Loc(0),
                }],
                min_ctas_per_sm: None,
            },
            guard: None,
            next_loc: 0,
        }
    }
    pub fn smem(mut self, bytes: u32) -> Kernel {
        self.flat.launch.smem_bytes = bytes;
        self
    }
    pub fn grid(mut self, grid: [u32; 3], cluster: [u32; 3]) -> Kernel {
        self.flat.launch.grid = grid;
        self.flat.launch.cluster = cluster;
        self
    }

    fn fresh(&mut self, class: Class) -> Reg {
        let index = self.flat.registers[class as usize];
        self.flat.registers[class as usize] += 1;
        Reg { class, index }
    }
    pub fn r(&mut self) -> Reg {
        self.fresh(Class::B32)
    }
    pub fn rd(&mut self) -> Reg {
        self.fresh(Class::B64)
    }
    pub fn h(&mut self) -> Reg {
        self.fresh(Class::B16)
    }
    pub fn p(&mut self) -> Reg {
        self.fresh(Class::Pred)
    }

    /// Appends; every instruction is an op of its own.
    pub fn push(&mut self, inst: Inst<Reg>) -> &mut Kernel {
        self.next_loc += 1;
        let inst = FlatInst {
            guard: self.guard,
            inst,
            loc: Loc(self.next_loc),
        };
        self.flat.blocks.last_mut().expect("a block").insts.push(inst);
        self
    }
    /// The op of the last instruction.
    pub fn loc(&self) -> Loc {
        Loc(self.next_loc)
    }

    /// What `f` pushes is guarded.
    pub fn when(&mut self, pred: Reg, negated: bool, f: impl FnOnce(&mut Kernel)) -> &mut Kernel {
        self.guard = Some(Guard { pred, negated });
        f(self);
        self.guard = None;
        self
    }

    /// Ends the block and starts the next.
    pub fn block(&mut self, terminator: Terminator) -> BlockId {
        self.flat.blocks.last_mut().expect("a block").terminator = terminator;
        self.flat.blocks.push(Block {
            insts: vec![],
            terminator: Terminator::Return,
            loc: Loc(0),
        });
        BlockId(self.flat.blocks.len() as u32 - 1)
    }
    pub fn jump(&mut self) -> BlockId {
        let next = BlockId(self.flat.blocks.len() as u32);
        self.block(Terminator::Branch { to: next })
    }
    pub fn branch(&mut self, pred: Reg, negated: bool, then: u32, otherwise: u32, join: Option<u32>) -> BlockId {
        let uniformity = match join {
            None => Uniformity::Uniform,
            Some(b) => Uniformity::Divergent { reconverge: BlockId(b) },
        };
        self.block(Terminator::CondBranch {
            guard: Guard { pred, negated },
            then: BlockId(then),
            otherwise: BlockId(otherwise),
            uniformity,
        })
    }

    pub fn pointer(&mut self, buffer: u32) -> Reg {
        self.flat.launch.params.push(EntryParam::Pointer { buffer });
        let (d, p) = (self.rd(), ParamRef(self.flat.launch.params.len() as u32 - 1));
        self.push(Inst::LdParam {
            ty: WordType::B64,
            d,
            p,
        });
        d
    }
    pub fn tensor_map(&mut self, map: TensorMapSpec) -> Reg {
        self.flat.launch.params.push(EntryParam::TensorMap(map));
        let (d, p) = (self.rd(), ParamRef(self.flat.launch.params.len() as u32 - 1));
        self.push(Inst::ParamAddr { d, p });
        d
    }
    pub fn special(&mut self, reg: SpecialReg32) -> Reg {
        let d = self.r();
        self.push(Inst::MovSpecial32 { reg, d });
        d
    }
    pub fn tid(&mut self) -> Reg {
        self.special(SpecialReg32::TidX)
    }
    pub fn mov(&mut self, a: S) -> Reg {
        let d = self.r();
        self.push(Inst::Mov { ty: BitType::B32, d, a });
        d
    }
    pub fn mov64(&mut self, a: u64) -> Reg {
        let d = self.rd();
        self.push(Inst::Mov {
            ty: BitType::B64,
            d,
            a: Src::Imm(a),
        });
        d
    }
    pub fn add(&mut self, a: S, b: S) -> Reg {
        let d = self.r();
        self.push(Inst::AddInt {
            ty: IntType::U32,
            d,
            a,
            b,
        });
        d
    }
    pub fn mul(&mut self, a: S, b: S) -> Reg {
        let d = self.r();
        self.push(Inst::MulLo {
            ty: IntType::U32,
            d,
            a,
            b,
        });
        d
    }
    pub fn compare(&mut self, cmp: Compare, a: S, b: S) -> Reg {
        let d = self.p();
        self.push(Inst::Setp {
            cmp,
            ftz: Ftz::No,
            ty: CompareType::U32,
            d,
            a,
            b,
        });
        d
    }
    /// `base + index · bytes`, 64-bit.
    pub fn element(&mut self, base: Reg, index: Reg, bytes: u32) -> Reg {
        let d = self.rd();
        self.push(Inst::MadWide {
            ty: WideType::U32,
            d,
            a: index.into(),
            b: imm(bytes),
            c: base.into(),
        });
        d
    }
    /// So many words in a row.
    pub fn load_words(&mut self, space: Space, base: Reg, n: usize) -> Vec<Reg> {
        let d: Vec<Reg> = (0..n).map(|_| self.r()).collect();
        self.push(Inst::Ld {
            sem: LoadSem::Weak,
            space,
            ty: MemType::B32,
            d: d.iter().copied().collect(),
            addr: Addr::new(base),
        });
        d
    }
    pub fn store_words(&mut self, space: Space, base: Reg, words: &[Reg]) -> &mut Kernel {
        self.push(Inst::St {
            sem: StoreSem::Weak,
            space,
            ty: MemType::B32,
            addr: Addr::new(base),
            a: words.iter().map(|r| Src::Reg(*r)).collect(),
        })
    }
    /// A block's threads have so many words of the buffer each.
    pub fn load_own_words(&mut self, buffer: u32, n: usize) -> Vec<Reg> {
        let (tid, base) = (self.tid(), self.pointer(buffer));
        let at = self.element(base, tid, 4 * n as u32);
        self.load_words(Space::Global, at, n)
    }
    pub fn store_own_words(&mut self, buffer: u32, words: &[Reg]) -> &mut Kernel {
        let (tid, base) = (self.tid(), self.pointer(buffer));
        let at = self.element(base, tid, 4 * words.len() as u32);
        self.store_words(Space::Global, at, words)
    }
    /// 1 in threads whose number is odd, else 0.
    pub fn odd(&mut self) -> Reg {
        let (tid, odd) = (self.tid(), self.r());
        self.push(Inst::Logic {
            op: Logic::And,
            ty: LogicType::B32,
            d: odd,
            a: tid.into(),
            b: imm(1),
        });
        odd
    }
    pub fn load(&mut self, base: Reg) -> Reg {
        let d = self.r();
        self.push(Inst::Ld {
            sem: LoadSem::Weak,
            space: Space::Global,
            ty: MemType::B32,
            d: smallvec![d],
            addr: Addr::new(base),
        });
        d
    }
    pub fn store(&mut self, base: Reg, value: Reg) -> &mut Kernel {
        self.push(Inst::St {
            sem: StoreSem::Weak,
            space: Space::Global,
            ty: MemType::B32,
            addr: Addr::new(base),
            a: smallvec![value.into()],
        })
    }
    /// Stores a value per thread at `buffer + 4 · global thread index`, one-dimensional grids.
    pub fn store_per_thread(&mut self, buffer: u32, value: Reg) -> &mut Kernel {
        let base = self.pointer(buffer);
        let (tid, cta, n) = (
            self.tid(),
            self.special(SpecialReg32::CtaidX),
            self.special(SpecialReg32::NtidX),
        );
        let index = self.r();
        self.push(Inst::MadLo {
            ty: IntType::U32,
            d: index,
            a: cta.into(),
            b: n.into(),
            c: tid.into(),
        });
        let at = self.element(base, index, 4);
        self.store(at, value)
    }
    pub fn smem_base(&mut self) -> Reg {
        let d = self.r();
        self.push(Inst::MovSmemBase { d });
        d
    }
    pub fn load_shared(&mut self, base: Reg, offset: i32) -> Reg {
        let d = self.r();
        self.push(Inst::Ld {
            sem: LoadSem::Weak,
            space: Space::Shared,
            ty: MemType::B32,
            d: smallvec![d],
            addr: Addr::at(base, offset),
        });
        d
    }
    pub fn store_shared(&mut self, base: Reg, offset: i32, value: S) -> &mut Kernel {
        self.push(Inst::St {
            sem: StoreSem::Weak,
            space: Space::Shared,
            ty: MemType::B32,
            addr: Addr::at(base, offset),
            a: smallvec![value],
        })
    }
    /// A CTA barrier of all threads.
    pub fn sync(&mut self) -> &mut Kernel {
        let threads = imm(self.flat.launch.block);
        self.push(Inst::BarSync { id: imm(0), threads })
    }
    pub fn init_barrier(&mut self, base: Reg, offset: i32, count: u32) -> &mut Kernel {
        self.push(Inst::MbarrierInit {
            addr: Addr::at(base, offset),
            count: imm(count),
        })
    }
    pub fn wait(&mut self, base: Reg, offset: i32, parity: S) -> &mut Kernel {
        self.push(Inst::MbarrierWait {
            ask: MbarrierAsk::Try,
            acquire: Acquire::Cta,
            suspend: Suspend::Short,
            addr: Addr::at(base, offset),
            parity,
        })
    }
    pub fn expect(&mut self, base: Reg, offset: i32, bytes: u32) -> &mut Kernel {
        self.push(Inst::MbarrierArriveExpectTx {
            addr: Addr::at(base, offset),
            bytes: imm(bytes),
        })
    }
    pub fn arrive(&mut self, base: Reg, offset: i32) -> &mut Kernel {
        self.push(Inst::MbarrierArrive {
            addr: Addr::at(base, offset),
            count: imm(1),
        })
    }
    pub fn fence_async(&mut self) -> &mut Kernel {
        self.push(Inst::FenceProxy {
            proxy: ProxyFence::AsyncSharedCta,
        })
    }
    /// True in thread 0 only.
    pub fn first_thread(&mut self) -> Reg {
        let tid = self.tid();
        self.compare(Compare::Eq, tid.into(), imm(0))
    }

    pub fn decode(&self) -> Result<Program> {
        Program::decode(&self.flat)
    }
    pub fn try_run(&self, buffers: &mut [Vec<u8>], options: &Options) -> Result<Report> {
        let program = self.decode()?;
        let buffers = lent(buffers);
        // SAFETY: the buffers are ours, exclusively, and outlive the call.
        unsafe { run(&program, &buffers, options, &Unwatched) }
    }
    pub fn run(&self, buffers: &mut [Vec<u8>]) -> Report {
        self.try_run(buffers, &options()).unwrap_or_else(|e| panic!("{e}"))
    }
    /// Runs and wants an error.
    pub fn error(&self, buffers: &mut [Vec<u8>]) -> Error {
        self.try_run(buffers, &options()).expect_err("the kernel is wrong")
    }
    /// Runs one output buffer of `words` words.
    pub fn words(&self, words: usize) -> Vec<u32> {
        let mut buffers = [vec![0; 4 * words]];
        self.run(&mut buffers);
        words_of(&buffers[0])
    }
}

pub fn options() -> Options {
    Options {
        threads: 1,
        ..Options::default()
    }
}
pub fn every_order() -> Vec<Options> {
    let mut orders = vec![AgentOrder::Earliest, AgentOrder::Latest];
    orders.extend((0..20).map(AgentOrder::Seeded));
    orders.into_iter().map(|order| options().with_agents(order)).collect()
}
pub fn words_of(bytes: &[u8]) -> Vec<u32> {
    bytes
        .chunks_exact(4)
        .map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]))
        .collect()
}
pub fn bytes_of(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|w| w.to_le_bytes()).collect()
}
pub fn tied(regs: &[Reg]) -> Tied<Reg> {
    Tied::in_place(regs.to_vec())
}
/// SplitMix64 bytes.
pub fn random_bytes(n: usize, seed: u64) -> Vec<u8> {
    let mut state = seed;
    let mut out = Vec::with_capacity(n + 8);
    while out.len() < n {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = state;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        out.extend_from_slice(&(z ^ z >> 31).to_le_bytes());
    }
    out.truncate(n);
    out
}

/// Buffers as a launch takes them.
pub fn lent(buffers: &mut [Vec<u8>]) -> Vec<HostBuffer> {
    let lend = |b: &mut Vec<u8>| HostBuffer {
        ptr: b.as_mut_ptr(),
        len: b.len(),
        contents: Contents::Defined,
    };
    buffers.iter_mut().map(lend).collect()
}
