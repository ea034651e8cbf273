//! Flat form → micro-ops: one method per row of the instruction table.
use super::agents::{Bulk, BulkCommit, BulkKind, BulkOp, BulkWait};
use super::arith::convert::Fp8;
use super::arith::float::Rounding;
use super::arith::mma_sync::{Arithmetic, BitJoin, LaneHas, QuadTypes, Sparsity};
use super::arith::tensor_core::{Accumulator, Element as MmaElement, MmaKind as TensorKind};
use super::cache_policy::{DISCARDED, OfLines, PolicyOfFraction, PolicyOfRange};
use super::carry::{CarryProduct, CarrySum};
use super::control::*;
use super::copies::{ALL_TAKEN, CopyArrive, CopyArriveMore, CopyAsync, CopyCommit, CopyWait, CopyWaitAll};
use super::floats::*;
use super::global::{SHARED_WINDOW, param_address};
use super::hooks::Hooks;
use super::index::{CheckIndex, IndexCheck, Unknown};
use super::mem::{
    Atomic, AtomicVector, ByteS, ByteU, Global, Ldmatrix, Load, NO_RESULT, Polling, SharedCta, Space, Stmatrix, Store,
    Word16, Word32, Word64, atom_bytes, atom_code,
};
use super::mma::{Mma, MmaOp, Product};
use super::ops::*;
use super::printer::PrintReserve;
use super::profile::{ProfileEnd, ProfileMark, ProfileStart};
use super::program::{Branch as BranchTargets, Origin, Program};
use super::registers::Allocation;
use super::rounded::{
    self, Both, Brain, Double, F32To, F32ToTf32Rounded, Finish, FlushedF16, Half as Half16, OfHalves, Single, Testp,
    Xorsign, xorsign_code,
};
use super::row::{Lane, Raw, Row};
use super::shared::SMEM_BASE;
use super::sparse::sparsity;
use super::sync::*;
use super::tensor_maps::{FenceMapAcquire, FenceMapRelease, LoadMapParameter, ReplaceMapAddress};
use super::uop::{Body, Each, Each2, Each3, EachTest, Flow, Op1, Op2, Op3, OpFn, Test, Tier, Uop, pick};
use super::warp::CONSTANT;
use super::wgmma::{AOperand, MatMul, Wgmma, WgmmaCommit, WgmmaFence, WgmmaWait};
use crate::error::{Error, Fault, Loc, Result};
use crate::ptx::flat::{BlockId, Guard, Reg, Terminator, Uniformity};
use crate::ptx::inst::Visitor;
use crate::ptx::launch::EntryParam;
use crate::ptx::modifier::{
    self, AccType, Acquire, AddSub, ArriveSem, AskSem, AtomOp, AtomSem, AtomType, BarRedOp, BarrierSpace, BitProduct,
    BitType, BoolOp, BulkRed, CarryMad, CarryOp, ClusterArriveSem, Compare, CompareType, CopyCache, Counted, CvtRound,
    CvtType, DirectedRound, DivMode, Exact, FenceSem, FloatOp, FloatTest, FloatType, Ftz, GridDep, Half, HalfRedOp,
    HalfType, Indexed, Int32Type, IntType, Inverted, L1Priority, Lanes, LoadCache, LoadSem, Logic, LogicType,
    MatrixTrans, MbarrierOp, MemType, MetadataOrder, MinMax, MmaBitShape, MmaF64Round, MmaF64Shape, MmaMajor,
    MmaQuadTypes, MmaShape, MmaTypes, Modifier, Mufu, Mufu64, NanMode, NarrowPackType, OrAnd, PackType, Pair8, Pair16,
    PairIntType, PolicyOthers, PolicyPriority, PrefetchLevel, PrefetchSize, PrmtMode, ProxyFence, ReadCache, RedOp,
    ReduxOp, RegCount, Release, Relu, ReluIntType, Round, Sat, SatFinite, SatFloatType, Scalar16Type, Scope, SetType,
    SharedFence, ShiftAmount, ShiftDirection, ShiftType, ShuffleMode, SignedMinType, SpecialPred, SpecialReg32,
    SpecialReg64, StoreCache, StoreSem, Suspend, TensorRed, TxOp, TxScope, Unary16, VoteMode, WgmmaTypes,
    WideFloatType, WideType, WordType,
};
use crate::ptx::operand::{Addr, ParamRef, Regs, Src, Srcs, Tied};
use crate::ptx::{Flat, verify_flat};
use rustc_hash::{FxHashMap, FxHashSet};
use std::sync::Arc;

/// Decodes a kernel.
pub fn run<H: Hooks>(flat: &Flat, tier: Tier) -> Result<Program<H>> {
    check_asynchronous_registers(flat)?;
    let allocation = super::registers::run(flat)?;
    let mut cx = Decoder::<H>::new(flat, tier, allocation);
    let joins: FxHashSet<BlockId> = flat
        .blocks
        .iter()
        .filter_map(|b| match b.terminator {
            Terminator::CondBranch {
                uniformity: Uniformity::Divergent { reconverge },
                ..
            } => Some(reconverge),
            Terminator::CondBranch { .. } | Terminator::Branch { .. } | Terminator::Return => None,
        })
        .collect();
    let mut starts = vec![];
    for (i, block) in flat.blocks.iter().enumerate() {
        starts.push(cx.code.len() as u32);
        if joins.contains(&BlockId(i as u32)) {
            let here = cx.code.len() as u32;
            cx.emit::<Join>(Operands {
                aux: here,
                ..Operands::NONE
            });
        }
        for inst in &block.insts {
            cx.loc = inst.loc;
            cx.row = None;
            cx.guard(inst.guard);
            cx.row = Some(inst.inst.row() as u16);
            cx.spares = 0;
            inst.inst.accept(&mut cx).map_err(|e| e.at(inst.loc))?;
            let mut redefined = false;
            inst.inst
                .for_each_def(|r, _| redefined |= inst.guard.is_some_and(|g| g.pred == r));
            if redefined {
                cx.guard(None);
            }
        }
        cx.row = None;
        cx.guard(None);
        cx.loc = block.loc;
        cx.terminator(&block.terminator, BlockId(i as u32 + 1));
    }
    let start = |block: u32| -> Result<u32> {
        starts
            .get(block as usize)
            .copied()
            .ok_or_else(|| Error::internal(format!("a branch to B{block}, which is none")))
    };
    for branch in &mut cx.branches {
        branch.then = start(branch.then)?;
        branch.otherwise = start(branch.otherwise)?;
        if branch.join != u32::MAX {
            branch.join = start(branch.join)?;
        }
    }
    for at in std::mem::take(&mut cx.jumps) {
        cx.code[at].aux = start(cx.code[at].aux)?;
    }
    cx.finish()
}

/// Registers that `wgmma` uses are touched before a fence and after a wait: what the control flow alone tells, so that no
/// instruction pays for it when it runs.
fn check_asynchronous_registers(flat: &Flat) -> Result<()> {
    let Some(v) = verify_flat::run_asynchronous_registers(flat).into_iter().next() else {
        return Ok(());
    };
    let (what, expected, remedy) = if v.rule == "wgmma_fence" {
        (
            "a wgmma uses registers that ordinary instructions touched, with no wgmma.fence in between",
            "wgmma.fence before the first wgmma, and after every access to its accumulator or A registers",
            "issue wgmma.fence after the registers are ready and before the wgmma",
        )
    } else {
        (
            "registers of a wgmma in flight are touched before a wait covers it",
            "wgmma.commit_group and wgmma.wait_group between the wgmma and the access",
            "wait for the wgmma (`wgmma_wait`) before its accumulator or its A registers are touched",
        )
    };
    Err(Error::new(Fault::Execution, what)
        .at(v.loc)
        .expected(expected)
        .got(format!("{}: {}", v.place, v.message))
        .remedy(remedy))
}

/// Operands of a micro-op.
#[derive(Clone, Copy)]
struct Operands {
    d: u16,
    a: u16,
    b: u16,
    c: u16,
    imm: i32,
    aux: u32,
}

impl Operands {
    const NONE: Operands = Operands {
        d: 0,
        a: 0,
        b: 0,
        c: 0,
        imm: 0,
        aux: 0,
    };
}

/// The type of integers that a modifier stands for.
macro_rules! by_int {
    ($ty:expr, $E:ident, $T:ident => $e:expr) => {
        match $ty {
            $E::U16 => {
                type $T = u16;
                $e
            }
            $E::S16 => {
                type $T = i16;
                $e
            }
            $E::U32 => {
                type $T = u32;
                $e
            }
            $E::S32 => {
                type $T = i32;
                $e
            }
            $E::U64 => {
                type $T = u64;
                $e
            }
            $E::S64 => {
                type $T = i64;
                $e
            }
        }
    };
}
/// Where signs do not matter.
macro_rules! by_width {
    ($ty:expr, $T:ident => $e:expr) => {
        match $ty {
            IntType::U16 | IntType::S16 => {
                type $T = u16;
                $e
            }
            IntType::U32 | IntType::S32 => {
                type $T = u32;
                $e
            }
            IntType::U64 | IntType::S64 => {
                type $T = u64;
                $e
            }
        }
    };
}
macro_rules! by_word {
    ($ty:expr, $T:ident => $e:expr) => {
        match $ty {
            WordType::B32 => {
                type $T = u32;
                $e
            }
            WordType::B64 => {
                type $T = u64;
                $e
            }
        }
    };
}

struct Decoder<'a, H: Hooks> {
    flat: &'a Flat,
    tier: Tier,
    allocation: Allocation,
    code: Vec<Uop<H>>,
    origins: Vec<Origin>,
    constants: Vec<Row>,
    constant_at: FxHashMap<(u64, bool), u16>,
    lists: Vec<u16>,
    branches: Vec<BranchTargets>,
    /// Branches whose `aux` is a block.
    jumps: Vec<usize>,
    matmuls: Vec<MatMul>,
    /// The number of every list of accumulator registers.
    accumulators: FxHashMap<Vec<u16>, u32>,
    mma_ops: Vec<MmaOp>,
    bulk_ops: Vec<BulkOp>,
    checks: Vec<IndexCheck>,
    unknown: Vec<Arc<str>>,
    timeouts: Vec<u64>,
    /// The guard that the code at the end is under, and its `GuardBegin`.
    open: Option<(Guard, usize)>,
    loc: Loc,
    row: Option<u16>,
    communicates: bool,
    reallocates: bool,
    /// Rows behind the registers' for constants beyond what operands can name: those of the instruction at hand, and most that
    /// one needs.
    spares: usize,
    most_spares: usize,
}

impl<'a, H: Hooks> Decoder<'a, H> {
    fn new(flat: &'a Flat, tier: Tier, allocation: Allocation) -> Self {
        Decoder {
            flat,
            tier,
            allocation,
            code: vec![],
            origins: vec![],
            constants: vec![],
            constant_at: FxHashMap::default(),
            lists: vec![],
            branches: vec![],
            jumps: vec![],
            matmuls: vec![],
            accumulators: FxHashMap::default(),
            mma_ops: vec![],
            bulk_ops: vec![],
            checks: vec![],
            unknown: vec![],
            timeouts: vec![],
            open: None,
            loc: Loc::CALL_SITE,
            row: None,
            communicates: false,
            reallocates: false,
            spares: 0,
            most_spares: 0,
        }
    }

    fn finish(self) -> Result<Program<H>> {
        Ok(Program {
            launch: self.flat.launch.clone(),
            code: self.code,
            origins: self.origins,
            constants: self.constants,
            register_rows: self.allocation.rows + self.most_spares,
            // Two more for constants.
            predicates: self.allocation.predicates + 2,
            lists: self.lists,
            branches: self.branches,
            matmuls: self.matmuls,
            mma_ops: self.mma_ops,
            bulk_ops: self.bulk_ops,
            checks: self.checks,
            unknown: self.unknown,
            timeouts: self.timeouts,
            communicates: self.communicates,
            min_ctas_per_sm: self.flat.min_ctas_per_sm,
            reallocates: self.reallocates,
        })
    }

    fn emit<B: Body<H>>(&mut self, o: Operands) {
        self.emit_fn(pick::<B, H>(self.tier), o);
    }

    fn emit_fn(&mut self, run: OpFn<H>, o: Operands) {
        let Operands { d, a, b, c, imm, aux } = o;
        self.code.push(Uop {
            run,
            d,
            a,
            b,
            c,
            imm,
            aux,
        });
        self.origins.push(Origin {
            loc: self.loc,
            row: self.row,
        });
    }

    /// Makes what follows run under a guard.
    fn guard(&mut self, guard: Option<Guard>) {
        if self.open.map(|(g, _)| g) == guard {
            return;
        }
        if let Some((_, begin)) = self.open.take() {
            self.emit::<GuardEnd>(Operands::NONE);
            self.code[begin].aux = self.code.len() as u32;
        }
        if let Some(g) = guard {
            let a = self.allocation.row(g.pred);
            self.open = Some((g, self.code.len()));
            self.emit::<GuardBegin>(Operands {
                a,
                c: u16::from(g.negated),
                ..Operands::NONE
            });
        }
    }

    fn terminator(&mut self, terminator: &Terminator, next: BlockId) {
        match terminator {
            Terminator::Branch { to } if *to == next => {}
            Terminator::Branch { to } => {
                self.jumps.push(self.code.len());
                self.emit::<Branch>(Operands {
                    aux: to.0,
                    ..Operands::NONE
                });
            }
            Terminator::CondBranch {
                guard,
                then,
                otherwise,
                uniformity,
            } => {
                let join = match uniformity {
                    Uniformity::Uniform => u32::MAX,
                    Uniformity::Divergent { reconverge } => reconverge.0,
                };
                let o = Operands {
                    a: self.allocation.row(guard.pred),
                    c: u16::from(guard.negated),
                    aux: self.branches.len() as u32,
                    ..Operands::NONE
                };
                self.branches.push(BranchTargets {
                    then: then.0,
                    otherwise: otherwise.0,
                    join,
                });
                match uniformity {
                    Uniformity::Uniform => self.emit::<BranchUniform>(o),
                    Uniformity::Divergent { .. } => self.emit::<BranchDivergent>(o),
                }
            }
            Terminator::Return => self.emit::<Return>(Operands::NONE),
        }
    }

    fn reg(&self, r: &Reg) -> u16 {
        self.allocation.row(*r)
    }

    fn constant(&mut self, bits: u64, wide: bool) -> u16 {
        if let Some(at) = self.constant_at.get(&(bits, wide)) {
            return *at;
        }
        let at = self.constants.len();
        if at + 2 > usize::from(CONSTANT) {
            return self.spare(bits, wide);
        }
        if wide {
            let mut pair = [Row::ZERO; 2];
            for (i, word) in pair.iter_mut().flat_map(|row| &mut row.0).enumerate() {
                *word = (bits >> (32 * (i % 2))) as u32;
            }
            self.constants.extend(pair);
        } else {
            self.constants.push(Row::splat(bits as u32));
        }
        let operand = CONSTANT | at as u16;
        self.constant_at.insert((bits, wide), operand);
        operand
    }

    /// A constant that the program's table has no place for: set right before the instruction.
    fn spare(&mut self, bits: u64, wide: bool) -> u16 {
        let d = (self.allocation.rows + self.spares) as u16;
        self.spares += if wide { 2 } else { 1 };
        self.most_spares = self.most_spares.max(self.spares);
        self.emit::<SetRows>(Operands {
            d,
            c: u16::from(wide),
            imm: bits as u32 as i32,
            aux: (bits >> 32) as u32,
            ..Operands::NONE
        });
        d
    }

    /// A source that is read as `T`.
    fn src<T: Lane>(&mut self, s: &Src<Reg>) -> u16 {
        match s {
            Src::Reg(r) => self.reg(r),
            Src::Imm(bits) if T::Raw::ROWS == 2 => self.constant(*bits, true),
            Src::Imm(bits) => self.constant(*bits & 0xffff_ffff, false),
        }
    }

    /// A source of 16 bits: upper halves of rows are zero.
    fn src16(&mut self, s: &Src<Reg>) -> u16 {
        match s {
            Src::Reg(r) => self.reg(r),
            Src::Imm(bits) => self.constant(*bits & 0xffff, false),
        }
    }

    fn op1<O: Op1>(&mut self, d: &Reg, a: &Src<Reg>, imm: u32) -> Result<()> {
        let a = self.src::<O::A>(a);
        let d = self.reg(d);
        self.emit::<Each<O>>(Operands {
            d,
            a,
            imm: imm as i32,
            ..Operands::NONE
        });
        Ok(())
    }
    fn op2<O: Op2>(&mut self, d: &Reg, a: &Src<Reg>, b: &Src<Reg>, imm: u32) -> Result<()> {
        let (a, b) = (self.src::<O::A>(a), self.src::<O::B>(b));
        let d = self.reg(d);
        self.emit::<Each2<O>>(Operands {
            d,
            a,
            b,
            imm: imm as i32,
            ..Operands::NONE
        });
        Ok(())
    }
    fn op3<O: Op3>(&mut self, d: &Reg, a: &Src<Reg>, b: &Src<Reg>, c: &Src<Reg>, imm: u32) -> Result<()> {
        let (a, b, c) = (self.src::<O::A>(a), self.src::<O::B>(b), self.src::<O::C>(c));
        let d = self.reg(d);
        self.emit::<Each3<O>>(Operands {
            d,
            a,
            b,
            c,
            imm: imm as i32,
            ..Operands::NONE
        });
        Ok(())
    }
    fn test<T: Test>(&mut self, d: &Reg, a: &Src<Reg>, b: &Src<Reg>, imm: u32) -> Result<()> {
        let d = self.reg(d);
        self.test_into::<T>(d, a, b, imm);
        Ok(())
    }
    fn test_into<T: Test>(&mut self, d: u16, a: &Src<Reg>, b: &Src<Reg>, imm: u32) {
        let (a, b) = (self.src::<T::A>(a), self.src::<T::A>(b));
        self.emit::<EachTest<T>>(Operands {
            d,
            a,
            b,
            imm: imm as i32,
            ..Operands::NONE
        });
    }
    /// A comparison into a predicate.
    fn compare(&mut self, cmp: Compare, ftz: Ftz, ty: CompareType, d: u16, a: &Src<Reg>, b: &Src<Reg>) {
        let set = compare_set(cmp);
        match ty {
            CompareType::U16 | CompareType::B16 => self.test_into::<CompareInt<u16>>(d, a, b, set),
            CompareType::S16 => self.test_into::<CompareInt<i16>>(d, a, b, set),
            CompareType::U32 | CompareType::B32 => self.test_into::<CompareInt<u32>>(d, a, b, set),
            CompareType::S32 => self.test_into::<CompareInt<i32>>(d, a, b, set),
            CompareType::U64 | CompareType::B64 => self.test_into::<CompareInt<u64>>(d, a, b, set),
            CompareType::S64 => self.test_into::<CompareInt<i64>>(d, a, b, set),
            CompareType::F16 if ftz == Ftz::Yes => self.test_into::<CompareFtzF16>(d, a, b, set),
            CompareType::F16 => self.test_into::<CompareF16>(d, a, b, set),
            CompareType::BF16 => self.test_into::<CompareBF16>(d, a, b, set),
            CompareType::F32 if ftz == Ftz::Yes => self.test_into::<CompareFtzF32>(d, a, b, set),
            CompareType::F32 => self.test_into::<CompareF32>(d, a, b, set),
            CompareType::F64 => self.test_into::<CompareF64>(d, a, b, set),
        }
    }

    fn shuffle(
        &mut self,
        mode: ShuffleMode,
        d: &Reg,
        p: Option<&Reg>,
        a: &Reg,
        b: &Src<Reg>,
        c: &Src<Reg>,
        members: &Src<Reg>,
    ) -> Result<()> {
        let (b, c) = (self.src::<u32>(b), self.src::<u32>(c));
        let masks = self.src::<u32>(members);
        let p = p.map_or(NO_PREDICATE, |p| self.reg(p));
        self.emit::<ShuffleMasked>(Operands {
            d: self.reg(d),
            a: self.reg(a),
            b,
            c,
            imm: (u32::from(masks) | u32::from(p) << 16) as i32,
            aux: mode as u32,
        });
        Ok(())
    }

    fn matches(&mut self, ty: WordType, d: &Reg, p: u16, a: &Reg, members: &Src<Reg>, all: i32) -> Result<()> {
        let b = self.src::<u32>(members);
        let o = Operands {
            d: self.reg(d),
            a: self.reg(a),
            b,
            c: p,
            imm: all,
            ..Operands::NONE
        };
        by_word!(ty, T => self.emit::<Match<T>>(o));
        Ok(())
    }

    /// A predicate for what is in between.
    fn spare_predicate(&self) -> u16 {
        self.allocation.predicates as u16
    }

    /// `d`, and `e` of the negation: the predicate `found`, combined with another one.
    fn combine(&mut self, found: u16, with: Option<(BoolOp, Inverted, &Reg)>, d: &Reg, e: Option<&Reg>) {
        let code = with.map(|(op, negated, _)| (op, negated));
        let b = with.map_or(0, |(_, _, c)| self.reg(c));
        let kept = found + 1;
        // `d` may be the other predicate.
        if let Some(e) = e {
            self.emit::<CombinePredicate>(Operands {
                d: kept,
                a: found,
                b,
                imm: combine_code(code, true),
                ..Operands::NONE
            });
            let d = self.reg(d);
            self.emit::<CombinePredicate>(Operands {
                d,
                a: found,
                b,
                imm: combine_code(code, false),
                ..Operands::NONE
            });
            let d = self.reg(e);
            self.emit::<MovePredicate>(Operands {
                d,
                a: kept,
                ..Operands::NONE
            });
            return;
        }
        let d = self.reg(d);
        self.emit::<CombinePredicate>(Operands {
            d,
            a: found,
            b,
            imm: combine_code(code, false),
            ..Operands::NONE
        });
    }

    /// A predicate as a number.
    fn truth(&mut self, to: SetType, d: &Reg, found: u16) {
        let one = match to {
            SetType::U32 | SetType::S32 => u32::MAX,
            SetType::F32 => 1f32.to_bits(),
        };
        let (a, b) = (self.src::<u32>(&Src::u32(one)), self.src::<u32>(&Src::u32(0)));
        let d = self.reg(d);
        self.emit::<Select<u32>>(Operands {
            d,
            a,
            b,
            c: found,
            ..Operands::NONE
        });
    }
    fn rows<O: Row1>(&mut self, d: &Reg, a: &Src<Reg>) -> Result<()> {
        let a = self.src::<u32>(a);
        let d = self.reg(d);
        self.emit::<Rows<O>>(Operands { d, a, ..Operands::NONE });
        Ok(())
    }
    fn rows2<O: Row2>(&mut self, d: &Reg, a: &Src<Reg>, b: &Src<Reg>) -> Result<()> {
        let (a, b) = (self.src::<u32>(a), self.src::<u32>(b));
        let d = self.reg(d);
        self.emit::<Rows2<O>>(Operands {
            d,
            a,
            b,
            ..Operands::NONE
        });
        Ok(())
    }

    /// A predicate source; constants go into one of the two spare predicates.
    fn predicate(&mut self, s: &Src<Reg>, spare: usize) -> u16 {
        match s {
            Src::Reg(r) => self.reg(r),
            Src::Imm(bits) => {
                let d = (self.allocation.predicates + spare) as u16;
                self.emit::<SetPredicate>(Operands {
                    d,
                    imm: if *bits & 1 != 0 { -1 } else { 0 },
                    ..Operands::NONE
                });
                d
            }
        }
    }

    fn list(&mut self, operands: Vec<u16>) -> u32 {
        let start = self.lists.len() as u32;
        self.lists.extend(operands);
        start
    }

    fn sources(&mut self, list: &Srcs<Reg>, ty: MemType) -> Vec<u16> {
        list.iter()
            .map(|s| match ty {
                MemType::B64 => self.src::<u64>(s),
                MemType::B16 => self.src16(s),
                MemType::U8 | MemType::S8 | MemType::B32 => self.src::<u32>(s),
            })
            .collect()
    }

    fn mbarrier<B: Body<H>>(&mut self, addr: &Addr<Reg>, value: &Src<Reg>, c: u16) -> Result<()> {
        let b = self.src::<u32>(value);
        let a = self.reg(&addr.base);
        self.emit::<B>(Operands {
            a,
            b,
            c,
            imm: addr.offset,
            ..Operands::NONE
        });
        Ok(())
    }

    /// The wait just emitted may last so long: the run ends if it lasts longer, so that it is always over in time.
    fn bounded(&mut self, ok: &Reg, ns: i64) -> Result<()> {
        self.timeouts.push(ns.unsigned_abs());
        self.code.last_mut().expect("just emitted").aux = self.timeouts.len() as u32;
        let d = self.reg(ok);
        self.emit::<SetPredicate>(Operands {
            d,
            imm: -1,
            ..Operands::NONE
        });
        Ok(())
    }

    fn bulk(&mut self, op: BulkOp) -> Result<()> {
        let o = Operands {
            imm: self.code.len() as i32,
            aux: self.bulk_ops.len() as u32,
            ..Operands::NONE
        };
        self.bulk_ops.push(op);
        self.emit::<Bulk>(o);
        Ok(())
    }

    fn at(&self, addr: &Addr<Reg>) -> (u16, i32) {
        (self.reg(&addr.base), addr.offset)
    }

    fn coords(&mut self, coords: &Srcs<Reg>) -> Result<Vec<u16>> {
        if coords.is_empty() || coords.len() > 5 {
            return Err(Error::internal("a bulk tensor copy")
                .expected("1 to 5 coordinates")
                .got(coords.len().to_string()));
        }
        Ok(coords.iter().map(|s| self.src::<u32>(s)).collect())
    }

    #[allow(clippy::too_many_arguments)]
    fn matmul(
        &mut self,
        kind: Option<TensorKind>,
        n: i64,
        acc: &Tied<Reg>,
        a: AOperand,
        b: &Reg,
        scale_d: &Reg,
        neg: [i64; 2],
        trans: [i64; 2],
        sparse: Option<(&Reg, i64)>,
    ) -> Result<()> {
        let kind = kind.ok_or_else(|| Error::internal("a wgmma of these operand and accumulator types"))?;
        let per = if kind.accumulator() == Accumulator::F16 { 4 } else { 2 };
        if !(8..=256).contains(&n) || n % 8 != 0 || acc.output.len() as i64 * per != n {
            return Err(Error::internal("a wgmma")
                .expected("n of 8 to 256 in steps of 8, and its accumulator registers")
                .got(format!("n {n}, {} registers", acc.output.len())));
        }
        let registers: Vec<u16> = acc.output.iter().map(|r| self.reg(r)).collect();
        let next = self.accumulators.len() as u32;
        let acc_id = *self.accumulators.entry(registers.clone()).or_insert(next);
        let len = registers.len() as u32;
        let op = MatMul {
            kind,
            n: n as usize,
            acc: (self.list(registers), len),
            acc_id,
            a,
            b: self.reg(b),
            scale_d: self.reg(scale_d),
            negate: (neg[0] < 0) != (neg[1] < 0),
            trans_a: trans[0] != 0,
            trans_b: trans[1] != 0,
            sparse: sparse.map(|(meta, sel)| (self.reg(meta), sparsity(kind, sel as usize))),
        };
        let o = Operands {
            imm: self.code.len() as i32,
            aux: self.matmuls.len() as u32,
            ..Operands::NONE
        };
        self.matmuls.push(op);
        self.emit::<Wgmma>(o);
        Ok(())
    }

    fn a_registers(&mut self, a: &Srcs<Reg>) -> Result<AOperand> {
        if a.len() != 4 {
            return Err(Error::internal("a wgmma with A in registers")
                .expected("4")
                .got(a.len().to_string()));
        }
        let operands = a.iter().map(|s| self.src::<u32>(s)).collect::<Vec<_>>();
        let len = operands.len() as u32;
        Ok(AOperand::Registers {
            start: self.list(operands),
            len,
        })
    }

    fn no<T>(&self, what: impl Into<String>) -> Result<T> {
        Err(Error::internal(format!("{}: no such instruction in PTX", what.into())))
    }
}

/// A function of the accesses that exist: total bytes at most 16, a power of two.
fn access<H: Hooks, S: Space>(ty: MemType, n: usize, tier: Tier, stores: bool, polls: bool) -> Option<OpFn<H>> {
    macro_rules! accesses {
        ($($E:ident, $T:ident: $($n:literal $b:literal),+;)*) => {
            match (ty, n) {
                $($( (MemType::$T, $n) if stores => pick::<Store<S, $E, $n, $b>, H>(tier),
                (MemType::$T, $n) if polls => pick::<Polling<Load<S, $E, $n, $b>>, H>(tier),
                (MemType::$T, $n) => pick::<Load<S, $E, $n, $b>, H>(tier), )+)*
                _ => return None,
            }
        };
    }
    Some(accesses! {
        ByteU, U8: 1 1, 2 2, 4 4;
        ByteS, S8: 1 1, 2 2, 4 4;
        Word16, B16: 1 2, 2 4, 4 8;
        Word32, B32: 1 4, 2 8, 4 16;
        Word64, B64: 1 8, 2 16;
    })
}

/// The position of the scope of what a wait acquires, from 1; 0: nothing.
fn acquired_scope(acquire: Acquire) -> u16 {
    match acquire {
        Acquire::Cta => Scope::Cta as u16 + 1,
        Acquire::Cluster => Scope::Cluster as u16 + 1,
        Acquire::RelaxedCta | Acquire::RelaxedCluster => 0,
    }
}

/// The row of the `i`-th word behind `at` in a thread's own memory: [`super::registers`] has found rows for all of them.
fn own_row(at: i64, i: usize) -> u16 {
    (at / 4) as u16 + i as u16
}

fn is_shared(space: Space_) -> bool {
    match space {
        Space_::Shared | Space_::SharedCluster => true,
        Space_::Global | Space_::Generic => false,
    }
}
use crate::ptx::modifier::Space as Space_;

fn tensor_types(ty: WgmmaTypes) -> (MmaElement, MmaElement) {
    use MmaElement::*;
    match ty {
        WgmmaTypes::F16 => (F16, F16),
        WgmmaTypes::BF16 => (Bf16, Bf16),
        WgmmaTypes::TF32 => (Tf32, Tf32),
        WgmmaTypes::E4M3E4M3 => (E4m3, E4m3),
        WgmmaTypes::E4M3E5M2 => (E4m3, E5m2),
        WgmmaTypes::E5M2E4M3 => (E5m2, E4m3),
        WgmmaTypes::E5M2E5M2 => (E5m2, E5m2),
        WgmmaTypes::S8S8 => (S8, S8),
        WgmmaTypes::S8U8 => (S8, U8),
        WgmmaTypes::U8S8 => (U8, S8),
        WgmmaTypes::U8U8 => (U8, U8),
    }
}

fn float_kind(ty: WgmmaTypes, acc: AccType) -> Option<TensorKind> {
    let (a, b) = tensor_types(ty);
    let acc = match acc {
        AccType::F32 => Accumulator::F32,
        AccType::F16 => Accumulator::F16,
        AccType::S32 => Accumulator::S32,
    };
    TensorKind::new(a, b, acc)
}

fn int_kind(ty: WgmmaTypes, sat: SatFinite) -> Option<TensorKind> {
    let (a, b) = tensor_types(ty);
    let acc = match sat {
        SatFinite::No => Accumulator::S32,
        SatFinite::Yes => Accumulator::S32Saturating,
    };
    TensorKind::new(a, b, acc)
}

/// Methods of floats by type: f16, f16x2, bf16, bf16x2, f32, f64.
macro_rules! by_float {
    ($self:ident, $op:ident, $ty:expr, ($($arg:expr),*), [$h:ty, $b:ty, $f:ty, $d:ty]) => {
        match $ty {
            FloatType::F16 => $self.$op::<$h>($($arg),*, 0),
            FloatType::F16x2 => $self.$op::<Pairs<$h>>($($arg),*, 0),
            FloatType::BF16 => $self.$op::<$b>($($arg),*, 0),
            FloatType::BF16x2 => $self.$op::<Pairs<$b>>($($arg),*, 0),
            FloatType::F32 => $self.$op::<$f>($($arg),*, 0),
            FloatType::F64 => $self.$op::<$d>($($arg),*, 0),
        }
    };
}

/// Methods of floats that round as they are told to.
macro_rules! by_format {
    ($self:ident, $op:ident, $ty:expr, ($($arg:expr),*), $F:ident, $how:expr) => {
        match $ty {
            FloatType::F16 => $self.$op::<rounded::$F<Half16>>($($arg),*, $how.code()),
            FloatType::F16x2 => $self.$op::<Both<rounded::$F<Half16>>>($($arg),*, $how.code()),
            FloatType::BF16 => $self.$op::<rounded::$F<Brain>>($($arg),*, $how.code()),
            FloatType::BF16x2 => $self.$op::<Both<rounded::$F<Brain>>>($($arg),*, $how.code()),
            FloatType::F32 => $self.$op::<rounded::$F<Single>>($($arg),*, $how.code()),
            FloatType::F64 => $self.$op::<rounded::$F<Double>>($($arg),*, $how.code()),
        }
    };
}

fn dot_signs(a: Int32Type, b: Int32Type) -> u32 {
    let signed = |ty: Int32Type, flag| if ty == Int32Type::S32 { flag } else { 0 };
    signed(a, DOT_SIGNED_A) | signed(b, DOT_SIGNED_B)
}

fn wide_float(ty: WideFloatType) -> FloatType {
    match ty {
        WideFloatType::F32 => FloatType::F32,
        WideFloatType::F64 => FloatType::F64,
    }
}
fn saturated_float(ty: SatFloatType) -> FloatType {
    match ty {
        SatFloatType::F16 => FloatType::F16,
        SatFloatType::F16x2 => FloatType::F16x2,
        SatFloatType::F32 => FloatType::F32,
    }
}

impl<H: Hooks> Visitor<Reg> for Decoder<'_, H> {
    type Output = Result<()>;

    // ------------------------------------------------------------------------------------------------- moves
    fn mov(&mut self, ty: &BitType, d: &Reg, a: &Src<Reg>) -> Result<()> {
        match ty {
            BitType::B16 | BitType::B32 => self.op1::<Copy<u32>>(d, a, 0),
            BitType::B64 => self.op1::<Copy<u64>>(d, a, 0),
        }
    }
    fn mov_pred(&mut self, d: &Reg, a: &Src<Reg>) -> Result<()> {
        let d = self.reg(d);
        match a {
            Src::Imm(bits) => {
                self.emit::<SetPredicate>(Operands {
                    d,
                    imm: if bits & 1 != 0 { -1 } else { 0 },
                    ..Operands::NONE
                });
            }
            Src::Reg(a) => {
                let a = self.reg(a);
                self.emit::<MovePredicate>(Operands { d, a, ..Operands::NONE });
            }
        }
        Ok(())
    }
    fn mov_special32(&mut self, reg: &SpecialReg32, d: &Reg) -> Result<()> {
        let d = self.reg(d);
        self.emit::<Special32>(Operands {
            d,
            imm: *reg as i32,
            ..Operands::NONE
        });
        Ok(())
    }
    fn mov_special64(&mut self, _reg: &SpecialReg64, d: &Reg) -> Result<()> {
        let d = self.reg(d);
        self.emit::<Clock64>(Operands { d, ..Operands::NONE });
        Ok(())
    }
    fn mov_special_pred(&mut self, reg: &SpecialPred, d: &Reg) -> Result<()> {
        match reg {
            SpecialPred::IsExplicitCluster => {
                let d = self.reg(d);
                self.emit::<IsCluster>(Operands { d, ..Operands::NONE });
            }
        }
        Ok(())
    }
    fn mov_smem_base(&mut self, d: &Reg) -> Result<()> {
        self.op1::<Copy<u32>>(d, &Src::u32(SMEM_BASE), 0)
    }
    fn pack_b32(&mut self, d: &Reg, a: &Srcs<Reg>) -> Result<()> {
        let [low, high] = a[..] else {
            return self.no("mov.b32 of other than two halves");
        };
        self.op2::<Pack32>(d, &low, &high, 0)
    }
    fn unpack_b32(&mut self, d: &Regs<Reg>, a: &Reg) -> Result<()> {
        let [low, high] = d[..] else {
            return self.no("mov.b32 to other than two halves");
        };
        let (d, b, a) = (self.reg(&low), self.reg(&high), self.reg(a));
        self.emit::<Unpack32>(Operands {
            d,
            a,
            b,
            ..Operands::NONE
        });
        Ok(())
    }
    fn pack_b64(&mut self, d: &Reg, a: &Srcs<Reg>) -> Result<()> {
        let [low, high] = a[..] else {
            return self.no("mov.b64 of other than two words");
        };
        self.op2::<Pack64>(d, &low, &high, 0)
    }
    fn unpack_b64(&mut self, d: &Regs<Reg>, a: &Reg) -> Result<()> {
        let [low, high] = d[..] else {
            return self.no("mov.b64 to other than two words");
        };
        let (d, b, a) = (self.reg(&low), self.reg(&high), self.reg(a));
        self.emit::<Unpack64>(Operands {
            d,
            a,
            b,
            ..Operands::NONE
        });
        Ok(())
    }
    fn pack_quarters(&mut self, d: &Reg, a: &Srcs<Reg>) -> Result<()> {
        if a.len() != 4 {
            return self.no("mov.b64 of other than four halves");
        }
        let sources = a.iter().map(|s| self.src16(s)).collect();
        let (aux, d) = (self.list(sources), self.reg(d));
        self.emit::<PackQuarters>(Operands {
            d,
            aux,
            ..Operands::NONE
        });
        Ok(())
    }
    fn unpack_quarters(&mut self, d: &Regs<Reg>, a: &Reg) -> Result<()> {
        if d.len() != 4 {
            return self.no("mov.b64 to other than four halves");
        }
        let registers = d.iter().map(|r| self.reg(r)).collect();
        let (aux, a) = (self.list(registers), self.reg(a));
        self.emit::<UnpackQuarters>(Operands {
            a,
            aux,
            ..Operands::NONE
        });
        Ok(())
    }
    fn ld_param(&mut self, ty: &WordType, d: &Reg, p: &ParamRef) -> Result<()> {
        let launch = &self.flat.launch;
        let (buffer, offset) = match (launch.params.get(p.0 as usize), launch.exchange()) {
            (Some(EntryParam::Pointer { buffer }), _) => (*buffer, 0),
            // The devices are one process's.
            (Some(EntryParam::Row { .. }), Some(exchange)) => (exchange.buffer, exchange.zero_row()),
            (Some(EntryParam::Row { .. } | EntryParam::TensorMap(_)) | None, _) => {
                return self.no(format!("ld.param of parameter {}, which is no pointer", p.0));
            }
        };
        if *ty == WordType::B32 {
            return self.no("ld.param of half a pointer");
        }
        let d = self.reg(d);
        self.emit::<LoadPointer>(Operands {
            d,
            imm: buffer as i32,
            aux: offset as u32,
            ..Operands::NONE
        });
        Ok(())
    }
    fn ld_param_map(&mut self, d: &Reg, p: &ParamRef, offset: &i64) -> Result<()> {
        let Some(EntryParam::TensorMap(_)) = self.flat.launch.params.get(p.0 as usize) else {
            return self.no(format!("bytes of parameter {}, which is no tensor map", p.0));
        };
        self.emit::<LoadMapParameter>(Operands {
            d: self.reg(d),
            imm: *offset as i32,
            aux: p.0,
            ..Operands::NONE
        });
        Ok(())
    }
    fn param_addr(&mut self, d: &Reg, p: &ParamRef) -> Result<()> {
        self.op1::<Copy<u64>>(d, &Src::Imm(param_address(p.0)), 0)
    }
    fn cvta_to_global(&mut self, d: &Reg, a: &Reg) -> Result<()> {
        self.op1::<Copy<u64>>(d, &Src::Reg(*a), 0)
    }
    fn cvta_global(&mut self, d: &Reg, a: &Reg) -> Result<()> {
        self.op1::<Copy<u64>>(d, &Src::Reg(*a), 0)
    }
    fn cvta_shared(&mut self, d: &Reg, a: &Reg) -> Result<()> {
        self.op2::<Add<u64>>(d, &Src::Reg(*a), &Src::Imm(SHARED_WINDOW), 0)
    }
    fn cvta_to_shared(&mut self, d: &Reg, a: &Reg) -> Result<()> {
        self.op2::<Sub<u64>>(d, &Src::Reg(*a), &Src::Imm(SHARED_WINDOW), 0)
    }
    fn mapa(&mut self, d: &Reg, a: &Reg, rank: &Src<Reg>) -> Result<()> {
        self.op2::<MapAddress>(d, &Src::Reg(*a), rank, 0)
    }

    fn getctarank(&mut self, d: &Reg, a: &Reg) -> Result<()> {
        self.emit::<CtaRank>(Operands {
            d: self.reg(d),
            a: self.reg(a),
            ..Operands::NONE
        });
        Ok(())
    }

    // ---------------------------------------------------------------------------------------------- integers
    fn add_int(&mut self, ty: &IntType, d: &Reg, a: &Src<Reg>, b: &Src<Reg>) -> Result<()> {
        by_width!(ty, T => self.op2::<Add<T>>(d, a, b, 0))
    }
    fn sub_int(&mut self, ty: &IntType, d: &Reg, a: &Src<Reg>, b: &Src<Reg>) -> Result<()> {
        by_width!(ty, T => self.op2::<Sub<T>>(d, a, b, 0))
    }
    fn mul_lo(&mut self, ty: &IntType, d: &Reg, a: &Src<Reg>, b: &Src<Reg>) -> Result<()> {
        by_width!(ty, T => self.op2::<Mul<T>>(d, a, b, 0))
    }
    fn mul_hi(&mut self, ty: &IntType, d: &Reg, a: &Src<Reg>, b: &Src<Reg>) -> Result<()> {
        by_int!(ty, IntType, T => self.op2::<MulHi<T>>(d, a, b, 0))
    }
    fn mul_wide(&mut self, ty: &WideType, d: &Reg, a: &Src<Reg>, b: &Src<Reg>) -> Result<()> {
        match ty {
            WideType::U16 => self.op2::<MulWide<u16>>(d, a, b, 0),
            WideType::S16 => self.op2::<MulWide<i16>>(d, a, b, 0),
            WideType::U32 => self.op2::<MulWide<u32>>(d, a, b, 0),
            WideType::S32 => self.op2::<MulWide<i32>>(d, a, b, 0),
        }
    }
    fn mad_lo(&mut self, ty: &IntType, d: &Reg, a: &Src<Reg>, b: &Src<Reg>, c: &Src<Reg>) -> Result<()> {
        by_width!(ty, T => self.op3::<MadLo<T>>(d, a, b, c, 0))
    }
    fn mad_wide(&mut self, ty: &WideType, d: &Reg, a: &Src<Reg>, b: &Src<Reg>, c: &Src<Reg>) -> Result<()> {
        match ty {
            WideType::U16 => self.op3::<MadWide<u16>>(d, a, b, c, 0),
            WideType::S16 => self.op3::<MadWide<i16>>(d, a, b, c, 0),
            WideType::U32 => self.op3::<MadWide<u32>>(d, a, b, c, 0),
            WideType::S32 => self.op3::<MadWide<i32>>(d, a, b, c, 0),
        }
    }
    fn carry_op(&mut self, op: &CarryOp, ty: &IntType, d: &Reg, a: &Src<Reg>, b: &Src<Reg>) -> Result<()> {
        let wide = ty.bits() == 64;
        let (a, b) = match wide {
            true => (self.src::<u64>(a), self.src::<u64>(b)),
            false => (self.src::<u32>(a), self.src::<u32>(b)),
        };
        let d = self.reg(d);
        let operands = Operands {
            d,
            a,
            b,
            imm: *op as i32,
            ..Operands::NONE
        };
        match wide {
            true => self.emit::<CarrySum<u64>>(operands),
            false => self.emit::<CarrySum<u32>>(operands),
        }
        Ok(())
    }
    fn carry_mad(
        &mut self,
        op: &CarryMad,
        ty: &IntType,
        d: &Reg,
        a: &Src<Reg>,
        b: &Src<Reg>,
        c: &Src<Reg>,
    ) -> Result<()> {
        let wide = ty.bits() == 64;
        let (a, b, c) = match wide {
            true => (self.src::<u64>(a), self.src::<u64>(b), self.src::<u64>(c)),
            false => (self.src::<u32>(a), self.src::<u32>(b), self.src::<u32>(c)),
        };
        let d = self.reg(d);
        let operands = Operands {
            d,
            a,
            b,
            c,
            imm: *op as i32,
            aux: u32::from(ty.is_signed()),
        };
        match wide {
            true => self.emit::<CarryProduct<u64>>(operands),
            false => self.emit::<CarryProduct<u32>>(operands),
        }
        Ok(())
    }
    fn div_int(&mut self, ty: &IntType, d: &Reg, a: &Src<Reg>, b: &Src<Reg>) -> Result<()> {
        by_int!(ty, IntType, T => self.op2::<Div<T>>(d, a, b, 0))
    }
    fn rem_int(&mut self, ty: &IntType, d: &Reg, a: &Src<Reg>, b: &Src<Reg>) -> Result<()> {
        by_int!(ty, IntType, T => self.op2::<Rem<T>>(d, a, b, 0))
    }
    fn neg_int(&mut self, ty: &IntType, d: &Reg, a: &Src<Reg>) -> Result<()> {
        by_width!(ty, T => self.op1::<Neg<T>>(d, a, 0))
    }
    fn abs_int(&mut self, ty: &IntType, d: &Reg, a: &Src<Reg>) -> Result<()> {
        by_int!(ty, IntType, T => self.op1::<Abs<T>>(d, a, 0))
    }
    fn min_max_int(&mut self, op: &MinMax, ty: &IntType, d: &Reg, a: &Src<Reg>, b: &Src<Reg>) -> Result<()> {
        match op {
            MinMax::Min => by_int!(ty, IntType, T => self.op2::<Min<T>>(d, a, b, 0)),
            MinMax::Max => by_int!(ty, IntType, T => self.op2::<Max<T>>(d, a, b, 0)),
        }
    }
    fn logic(&mut self, op: &Logic, ty: &LogicType, d: &Reg, a: &Src<Reg>, b: &Src<Reg>) -> Result<()> {
        if *ty == LogicType::Pred {
            let (a, b) = (self.predicate(a, 0), self.predicate(b, 1));
            let d = self.reg(d);
            self.emit::<LogicPredicate>(Operands {
                d,
                a,
                b,
                imm: *op as i32,
                ..Operands::NONE
            });
            return Ok(());
        }
        let wide = *ty == LogicType::B64;
        match op {
            Logic::And if wide => self.op2::<And<u64>>(d, a, b, 0),
            Logic::And => self.op2::<And<u32>>(d, a, b, 0),
            Logic::Or if wide => self.op2::<Or<u64>>(d, a, b, 0),
            Logic::Or => self.op2::<Or<u32>>(d, a, b, 0),
            Logic::Xor if wide => self.op2::<Xor<u64>>(d, a, b, 0),
            Logic::Xor => self.op2::<Xor<u32>>(d, a, b, 0),
        }
    }
    fn not(&mut self, ty: &LogicType, d: &Reg, a: &Src<Reg>) -> Result<()> {
        match ty {
            LogicType::Pred => {
                let a = self.predicate(a, 0);
                let d = self.reg(d);
                self.emit::<LogicPredicate>(Operands {
                    d,
                    a,
                    b: a,
                    imm: 3,
                    ..Operands::NONE
                });
                Ok(())
            }
            LogicType::B16 => self.op1::<Not<u16>>(d, a, 0),
            LogicType::B32 => self.op1::<Not<u32>>(d, a, 0),
            LogicType::B64 => self.op1::<Not<u64>>(d, a, 0),
        }
    }
    fn lop3(&mut self, d: &Reg, a: &Src<Reg>, b: &Src<Reg>, c: &Src<Reg>, lut: &i64) -> Result<()> {
        self.op3::<Lop3>(d, a, b, c, *lut as u32)
    }
    fn shl(&mut self, ty: &BitType, d: &Reg, a: &Src<Reg>, b: &Src<Reg>) -> Result<()> {
        match ty {
            BitType::B16 => self.op2::<Shl<u16>>(d, a, b, 0),
            BitType::B32 => self.op2::<Shl<u32>>(d, a, b, 0),
            BitType::B64 => self.op2::<Shl<u64>>(d, a, b, 0),
        }
    }
    fn shr(&mut self, ty: &ShiftType, d: &Reg, a: &Src<Reg>, b: &Src<Reg>) -> Result<()> {
        by_int!(ty, ShiftType, T => self.op2::<Shr<T>>(d, a, b, 0))
    }
    fn shf(
        &mut self,
        dir: &ShiftDirection,
        amount: &ShiftAmount,
        d: &Reg,
        a: &Src<Reg>,
        b: &Src<Reg>,
        c: &Src<Reg>,
    ) -> Result<()> {
        match (dir, amount) {
            (ShiftDirection::Left, ShiftAmount::Wrap) => self.op3::<Shf<false, false>>(d, a, b, c, 0),
            (ShiftDirection::Left, ShiftAmount::Clamp) => self.op3::<Shf<false, true>>(d, a, b, c, 0),
            (ShiftDirection::Right, ShiftAmount::Wrap) => self.op3::<Shf<true, false>>(d, a, b, c, 0),
            (ShiftDirection::Right, ShiftAmount::Clamp) => self.op3::<Shf<true, true>>(d, a, b, c, 0),
        }
    }
    fn prmt(&mut self, mode: &PrmtMode, d: &Reg, a: &Src<Reg>, b: &Src<Reg>, c: &Src<Reg>) -> Result<()> {
        match mode {
            PrmtMode::Bytes => self.op3::<Prmt>(d, a, b, c, 0),
            _ => self.op3::<PrmtSpecial>(d, a, b, c, *mode as u32),
        }
    }
    fn bfe(&mut self, ty: &IntType, d: &Reg, a: &Src<Reg>, pos: &Src<Reg>, len: &Src<Reg>) -> Result<()> {
        match ty {
            IntType::U16 | IntType::S16 => self.no("bfe of 16 bits"),
            IntType::U32 => self.op3::<Bfe<u32>>(d, a, pos, len, 0),
            IntType::S32 => self.op3::<Bfe<i32>>(d, a, pos, len, 0),
            IntType::U64 => self.op3::<Bfe<u64>>(d, a, pos, len, 0),
            IntType::S64 => self.op3::<Bfe<i64>>(d, a, pos, len, 0),
        }
    }
    fn bfi(
        &mut self,
        ty: &WordType,
        d: &Reg,
        a: &Src<Reg>,
        b: &Src<Reg>,
        pos: &Src<Reg>,
        len: &Src<Reg>,
    ) -> Result<()> {
        by_word!(ty, T => {
            let (a, b) = (self.src::<T>(a), self.src::<T>(b));
            let (c, len) = (self.src::<u32>(pos), self.src::<u32>(len));
            let d = self.reg(d);
            self.emit::<Insert<T>>(Operands { d, a, b, c, aux: u32::from(len), ..Operands::NONE });
        });
        Ok(())
    }
    fn clz(&mut self, ty: &WordType, d: &Reg, a: &Src<Reg>) -> Result<()> {
        by_word!(ty, T => self.op1::<Clz<T>>(d, a, 0))
    }
    fn popc(&mut self, ty: &WordType, d: &Reg, a: &Src<Reg>) -> Result<()> {
        by_word!(ty, T => self.op1::<Popc<T>>(d, a, 0))
    }
    fn brev(&mut self, ty: &WordType, d: &Reg, a: &Src<Reg>) -> Result<()> {
        by_word!(ty, T => self.op1::<Brev<T>>(d, a, 0))
    }
    fn bfind(&mut self, ty: &IntType, d: &Reg, a: &Src<Reg>) -> Result<()> {
        by_int!(ty, IntType, T => self.op1::<Bfind<T>>(d, a, 0))
    }
    fn bfind_shift(&mut self, ty: &IntType, d: &Reg, a: &Src<Reg>) -> Result<()> {
        by_int!(ty, IntType, T => self.op1::<BfindShift<T>>(d, a, 0))
    }
    fn sat_int(&mut self, op: &AddSub, d: &Reg, a: &Src<Reg>, b: &Src<Reg>) -> Result<()> {
        match op {
            AddSub::Add => self.op2::<AddSat>(d, a, b, 0),
            AddSub::Sub => self.op2::<SubSat>(d, a, b, 0),
        }
    }
    fn mad_hi(&mut self, ty: &IntType, d: &Reg, a: &Src<Reg>, b: &Src<Reg>, c: &Src<Reg>) -> Result<()> {
        by_int!(ty, IntType, T => self.op3::<MadHi<T>>(d, a, b, c, 0))
    }
    fn mad_hi_sat(&mut self, d: &Reg, a: &Src<Reg>, b: &Src<Reg>, c: &Src<Reg>) -> Result<()> {
        self.op3::<MadHiSat>(d, a, b, c, 0)
    }
    fn mul24(&mut self, half: &Half, ty: &Int32Type, d: &Reg, a: &Src<Reg>, b: &Src<Reg>) -> Result<()> {
        match (ty, half) {
            (Int32Type::U32, Half::Lo) => self.op2::<Mul24<false, false>>(d, a, b, 0),
            (Int32Type::U32, Half::Hi) => self.op2::<Mul24<false, true>>(d, a, b, 0),
            (Int32Type::S32, Half::Lo) => self.op2::<Mul24<true, false>>(d, a, b, 0),
            (Int32Type::S32, Half::Hi) => self.op2::<Mul24<true, true>>(d, a, b, 0),
        }
    }
    fn mad24(&mut self, half: &Half, ty: &Int32Type, d: &Reg, a: &Src<Reg>, b: &Src<Reg>, c: &Src<Reg>) -> Result<()> {
        match (ty, half) {
            (Int32Type::U32, Half::Lo) => self.op3::<Mad24<false, false>>(d, a, b, c, 0),
            (Int32Type::U32, Half::Hi) => self.op3::<Mad24<false, true>>(d, a, b, c, 0),
            (Int32Type::S32, Half::Lo) => self.op3::<Mad24<true, false>>(d, a, b, c, 0),
            (Int32Type::S32, Half::Hi) => self.op3::<Mad24<true, true>>(d, a, b, c, 0),
        }
    }
    fn mad24_hi_sat(&mut self, d: &Reg, a: &Src<Reg>, b: &Src<Reg>, c: &Src<Reg>) -> Result<()> {
        self.op3::<Mad24HiSat>(d, a, b, c, 0)
    }
    fn sad(&mut self, ty: &IntType, d: &Reg, a: &Src<Reg>, b: &Src<Reg>, c: &Src<Reg>) -> Result<()> {
        by_int!(ty, IntType, T => self.op3::<Sad<T>>(d, a, b, c, 0))
    }
    fn dp4a(
        &mut self,
        a_ty: &Int32Type,
        b_ty: &Int32Type,
        d: &Reg,
        a: &Src<Reg>,
        b: &Src<Reg>,
        c: &Src<Reg>,
    ) -> Result<()> {
        self.op3::<Dp4a>(d, a, b, c, dot_signs(*a_ty, *b_ty))
    }
    fn dp2a(
        &mut self,
        half: &Half,
        a_ty: &Int32Type,
        b_ty: &Int32Type,
        d: &Reg,
        a: &Src<Reg>,
        b: &Src<Reg>,
        c: &Src<Reg>,
    ) -> Result<()> {
        let high = if *half == Half::Hi { DOT_HIGH } else { 0 };
        self.op3::<Dp2a>(d, a, b, c, dot_signs(*a_ty, *b_ty) | high)
    }
    fn add_pair(&mut self, _ty: &PairIntType, d: &Reg, a: &Reg, b: &Reg) -> Result<()> {
        self.op2::<Both<Add<u16>>>(d, &Src::Reg(*a), &Src::Reg(*b), 0)
    }
    fn min_max_pair(&mut self, op: &MinMax, ty: &PairIntType, d: &Reg, a: &Reg, b: &Reg) -> Result<()> {
        let (a, b) = (&Src::Reg(*a), &Src::Reg(*b));
        match (op, ty) {
            (MinMax::Min, PairIntType::U16x2) => self.op2::<Both<Min<u16>>>(d, a, b, 0),
            (MinMax::Min, PairIntType::S16x2) => self.op2::<Both<Min<i16>>>(d, a, b, 0),
            (MinMax::Max, PairIntType::U16x2) => self.op2::<Both<Max<u16>>>(d, a, b, 0),
            (MinMax::Max, PairIntType::S16x2) => self.op2::<Both<Max<i16>>>(d, a, b, 0),
        }
    }
    fn min_max_relu(&mut self, op: &MinMax, ty: &ReluIntType, d: &Reg, a: &Src<Reg>, b: &Src<Reg>) -> Result<()> {
        match (op, ty) {
            (MinMax::Min, ReluIntType::S16x2) => self.op2::<Both<Clamped<Min<i16>>>>(d, a, b, 1),
            (MinMax::Min, ReluIntType::S32) => self.op2::<Clamped<Min<i32>>>(d, a, b, 1),
            (MinMax::Max, ReluIntType::S16x2) => self.op2::<Both<Clamped<Max<i16>>>>(d, a, b, 1),
            (MinMax::Max, ReluIntType::S32) => self.op2::<Clamped<Max<i32>>>(d, a, b, 1),
        }
    }
    fn bmsk(&mut self, amount: &ShiftAmount, d: &Reg, a: &Src<Reg>, b: &Src<Reg>) -> Result<()> {
        self.op2::<Bmsk>(d, a, b, u32::from(*amount == ShiftAmount::Clamp))
    }
    fn szext(&mut self, amount: &ShiftAmount, ty: &Int32Type, d: &Reg, a: &Src<Reg>, b: &Src<Reg>) -> Result<()> {
        let imm = u32::from(*amount == ShiftAmount::Clamp) | u32::from(*ty == Int32Type::S32) << 1;
        self.op2::<Szext>(d, a, b, imm)
    }
    fn fns(&mut self, d: &Reg, mask_of: &Src<Reg>, base: &Src<Reg>, offset_of: &Src<Reg>) -> Result<()> {
        self.op3::<Fns>(d, mask_of, base, offset_of, 0)
    }
    fn cnot(&mut self, ty: &BitType, d: &Reg, a: &Src<Reg>) -> Result<()> {
        match ty {
            BitType::B16 => self.op1::<Cnot<u16>>(d, a, 0),
            BitType::B32 => self.op1::<Cnot<u32>>(d, a, 0),
            BitType::B64 => self.op1::<Cnot<u64>>(d, a, 0),
        }
    }
    fn cvt_pack(&mut self, to: &PackType, d: &Reg, a: &Src<Reg>, b: &Src<Reg>) -> Result<()> {
        self.op2::<PackWords>(d, a, b, u32::from(*to == PackType::S16))
    }
    fn cvt_pack_into(&mut self, to: &NarrowPackType, d: &Reg, a: &Src<Reg>, b: &Src<Reg>, c: &Src<Reg>) -> Result<()> {
        let imm = match to {
            NarrowPackType::U8 => 8,
            NarrowPackType::S8 => 8 | 32,
            NarrowPackType::U4 => 4,
            NarrowPackType::S4 => 4 | 32,
            NarrowPackType::U2 => 2,
            NarrowPackType::S2 => 2 | 32,
        };
        self.op3::<PackInto>(d, a, b, c, imm)
    }
    fn lop3_pred(
        &mut self,
        op: &OrAnd,
        d: &Reg,
        p: &Reg,
        a: &Src<Reg>,
        b: &Src<Reg>,
        c: &Src<Reg>,
        lut: &i64,
        negated: &Inverted,
        q: &Reg,
    ) -> Result<()> {
        self.op3::<Lop3>(d, a, b, c, *lut as u32)?;
        let found = self.spare_predicate();
        self.test_into::<CompareInt<u32>>(found, &Src::Reg(*d), &Src::u32(0), compare_set(Compare::Ne));
        let op = match op {
            OrAnd::Or => BoolOp::Or,
            OrAnd::And => BoolOp::And,
        };
        self.combine(found, Some((op, *negated, q)), p, None);
        Ok(())
    }

    // ------------------------------------------------------------------------------------------------ floats
    fn float_sat(
        &mut self,
        op: &FloatOp,
        rnd: &Round,
        ftz: &Ftz,
        ty: &SatFloatType,
        d: &Reg,
        a: &Src<Reg>,
        b: &Src<Reg>,
    ) -> Result<()> {
        let how = Finish::of(*rnd).flushed(*ftz == Ftz::Yes).saturated();
        let ty = saturated_float(*ty);
        match op {
            FloatOp::Add => by_format!(self, op2, ty, (d, a, b), Add, how),
            FloatOp::Sub => by_format!(self, op2, ty, (d, a, b), Sub, how),
            FloatOp::Mul => by_format!(self, op2, ty, (d, a, b), Mul, how),
        }
    }
    fn fma_sat(
        &mut self,
        rnd: &Round,
        ftz: &Ftz,
        ty: &SatFloatType,
        d: &Reg,
        a: &Src<Reg>,
        b: &Src<Reg>,
        c: &Src<Reg>,
    ) -> Result<()> {
        let how = Finish::of(*rnd).flushed(*ftz == Ftz::Yes).saturated();
        by_format!(self, op3, saturated_float(*ty), (d, a, b, c), Fma, how)
    }
    fn fma_relu(&mut self, ftz: &Ftz, ty: &HalfType, d: &Reg, a: &Src<Reg>, b: &Src<Reg>, c: &Src<Reg>) -> Result<()> {
        let how = Finish::of(Round::Rn).flushed(*ftz == Ftz::Yes).clamped();
        let ty = match ty {
            HalfType::F16 => FloatType::F16,
            HalfType::F16x2 => FloatType::F16x2,
            HalfType::BF16 => FloatType::BF16,
            HalfType::BF16x2 => FloatType::BF16x2,
        };
        by_format!(self, op3, ty, (d, a, b, c), Fma, how)
    }
    fn min_max_xorsign(
        &mut self,
        op: &MinMax,
        ftz: &Ftz,
        nan: &NanMode,
        ty: &SignedMinType,
        d: &Reg,
        a: &Src<Reg>,
        b: &Src<Reg>,
    ) -> Result<()> {
        let imm = xorsign_code(*op == MinMax::Max, *nan, *ftz == Ftz::Yes);
        match ty {
            SignedMinType::F16 => self.op2::<Xorsign<Half16>>(d, a, b, imm),
            SignedMinType::F16x2 => self.op2::<Both<Xorsign<Half16>>>(d, a, b, imm),
            SignedMinType::BF16 => self.op2::<Xorsign<Brain>>(d, a, b, imm),
            SignedMinType::BF16x2 => self.op2::<Both<Xorsign<Brain>>>(d, a, b, imm),
            SignedMinType::F32 => self.op2::<Xorsign<Single>>(d, a, b, imm),
        }
    }
    fn div_directed(
        &mut self,
        rnd: &DirectedRound,
        ftz: &Ftz,
        ty: &WideFloatType,
        d: &Reg,
        a: &Src<Reg>,
        b: &Src<Reg>,
    ) -> Result<()> {
        let how = Finish::directed(*rnd).flushed(*ftz == Ftz::Yes);
        by_format!(self, op2, wide_float(*ty), (d, a, b), Div, how)
    }
    fn exact_directed(
        &mut self,
        op: &Exact,
        rnd: &DirectedRound,
        ftz: &Ftz,
        ty: &WideFloatType,
        d: &Reg,
        a: &Src<Reg>,
    ) -> Result<()> {
        let how = Finish::directed(*rnd).flushed(*ftz == Ftz::Yes);
        match op {
            Exact::Rcp => by_format!(self, op1, wide_float(*ty), (d, a), Rcp, how),
            Exact::Sqrt => by_format!(self, op1, wide_float(*ty), (d, a), Sqrt, how),
        }
    }
    fn testp(&mut self, test: &FloatTest, ty: &WideFloatType, d: &Reg, a: &Src<Reg>) -> Result<()> {
        match ty {
            WideFloatType::F32 => self.test::<Testp<u32>>(d, a, &Src::u32(0), *test as u32),
            WideFloatType::F64 => self.test::<Testp<u64>>(d, a, &Src::Imm(0), *test as u32),
        }
    }
    fn cvt_tf32_rounded(&mut self, rnd: &Round, relu: &Relu, d: &Reg, a: &Reg) -> Result<()> {
        let how = Finish::of(*rnd);
        let how = if *relu == Relu::Yes { how.clamped() } else { how };
        self.op1::<F32ToTf32Rounded>(d, &Src::Reg(*a), how.code())
    }
    fn cvt_relu(&mut self, rnd: &Round, to: &Scalar16Type, d: &Reg, a: &Reg) -> Result<()> {
        let how = Finish::of(*rnd).clamped();
        match to {
            Scalar16Type::F16 => self.op1::<F32To<Half16>>(d, &Src::Reg(*a), how.code()),
            Scalar16Type::BF16 => self.op1::<F32To<Brain>>(d, &Src::Reg(*a), how.code()),
        }
    }
    fn add_float(&mut self, rnd: &Round, ftz: &Ftz, ty: &FloatType, d: &Reg, a: &Src<Reg>, b: &Src<Reg>) -> Result<()> {
        match (rnd, ftz, ty) {
            (Round::Rn, Ftz::No, _) => by_float!(self, op2, ty, (d, a, b), [AddF16, AddBF16, AddF32, AddF64]),
            (Round::Rn, Ftz::Yes, FloatType::F32) => self.op2::<AddFtzF32>(d, a, b, 0),
            (_, Ftz::No, FloatType::F32) => self.op2::<AddRoundedF32>(d, a, b, *rnd as u32),
            _ => {
                let how = Finish::of(*rnd).flushed(*ftz == Ftz::Yes);
                by_format!(self, op2, ty, (d, a, b), Add, how)
            }
        }
    }
    fn sub_float(&mut self, rnd: &Round, ftz: &Ftz, ty: &FloatType, d: &Reg, a: &Src<Reg>, b: &Src<Reg>) -> Result<()> {
        match (rnd, ftz, ty) {
            (Round::Rn, Ftz::No, _) => by_float!(self, op2, ty, (d, a, b), [SubF16, SubBF16, SubF32, SubF64]),
            (Round::Rn, Ftz::Yes, FloatType::F32) => self.op2::<SubFtzF32>(d, a, b, 0),
            (_, Ftz::No, FloatType::F32) => self.op2::<SubRoundedF32>(d, a, b, *rnd as u32),
            _ => {
                let how = Finish::of(*rnd).flushed(*ftz == Ftz::Yes);
                by_format!(self, op2, ty, (d, a, b), Sub, how)
            }
        }
    }
    fn mul_float(&mut self, rnd: &Round, ftz: &Ftz, ty: &FloatType, d: &Reg, a: &Src<Reg>, b: &Src<Reg>) -> Result<()> {
        match (rnd, ftz, ty) {
            (Round::Rn, Ftz::No, _) => by_float!(self, op2, ty, (d, a, b), [MulF16, MulBF16, MulF32, MulF64]),
            (Round::Rn, Ftz::Yes, FloatType::F32) => self.op2::<MulFtzF32>(d, a, b, 0),
            (_, Ftz::No, FloatType::F32) => self.op2::<MulRoundedF32>(d, a, b, *rnd as u32),
            _ => {
                let how = Finish::of(*rnd).flushed(*ftz == Ftz::Yes);
                by_format!(self, op2, ty, (d, a, b), Mul, how)
            }
        }
    }
    fn fma(
        &mut self,
        rnd: &Round,
        ftz: &Ftz,
        ty: &FloatType,
        d: &Reg,
        a: &Src<Reg>,
        b: &Src<Reg>,
        c: &Src<Reg>,
    ) -> Result<()> {
        match (rnd, ftz, ty) {
            (Round::Rn, Ftz::No, FloatType::F32) if self.tier == Tier::Plain => self.op3::<FmaF32Slow>(d, a, b, c, 0),
            (Round::Rn, Ftz::No, _) => by_float!(self, op3, ty, (d, a, b, c), [FmaF16, FmaBF16, FmaF32, FmaF64]),
            (Round::Rn, Ftz::Yes, FloatType::F32) => self.op3::<FmaFtzF32>(d, a, b, c, 0),
            (_, Ftz::No, FloatType::F32) => self.op3::<FmaRoundedF32>(d, a, b, c, *rnd as u32),
            _ => {
                let how = Finish::of(*rnd).flushed(*ftz == Ftz::Yes);
                by_format!(self, op3, ty, (d, a, b, c), Fma, how)
            }
        }
    }
    fn neg_float(&mut self, ftz: &Ftz, ty: &FloatType, d: &Reg, a: &Src<Reg>) -> Result<()> {
        match (ftz, ty) {
            (Ftz::Yes, FloatType::F32) => self.op1::<NegFtzF32>(d, a, 0),
            (Ftz::No, _) => by_float!(self, op1, ty, (d, a), [NegF16, NegBF16, NegF32, NegF64]),
            (Ftz::Yes, FloatType::F16) => self.op1::<FlushedF16<NegF16>>(d, a, 0),
            (Ftz::Yes, FloatType::F16x2) => self.op1::<Pairs<FlushedF16<NegF16>>>(d, a, 0),
            (Ftz::Yes, FloatType::BF16 | FloatType::BF16x2 | FloatType::F64) => {
                self.no(format!("neg.ftz.{}", ty.text()))
            }
        }
    }
    fn abs_float(&mut self, ftz: &Ftz, ty: &FloatType, d: &Reg, a: &Src<Reg>) -> Result<()> {
        match (ftz, ty) {
            (Ftz::Yes, FloatType::F32) => self.op1::<AbsFtzF32>(d, a, 0),
            (Ftz::No, _) => by_float!(self, op1, ty, (d, a), [AbsF16, AbsBF16, AbsF32, AbsF64]),
            (Ftz::Yes, FloatType::F16) => self.op1::<FlushedF16<AbsF16>>(d, a, 0),
            (Ftz::Yes, FloatType::F16x2) => self.op1::<Pairs<FlushedF16<AbsF16>>>(d, a, 0),
            (Ftz::Yes, FloatType::BF16 | FloatType::BF16x2 | FloatType::F64) => {
                self.no(format!("abs.ftz.{}", ty.text()))
            }
        }
    }
    fn min_max_float(
        &mut self,
        op: &MinMax,
        ftz: &Ftz,
        nan: &NanMode,
        ty: &FloatType,
        d: &Reg,
        a: &Src<Reg>,
        b: &Src<Reg>,
    ) -> Result<()> {
        match (op, nan, ftz, ty) {
            (MinMax::Min, NanMode::Number, Ftz::Yes, FloatType::F32) => self.op2::<FlushedF32<MinF32>>(d, a, b, 0),
            (MinMax::Max, NanMode::Number, Ftz::Yes, FloatType::F32) => self.op2::<FlushedF32<MaxF32>>(d, a, b, 0),
            (MinMax::Min, NanMode::Propagate, Ftz::Yes, FloatType::F32) => {
                self.op2::<FlushedF32<MinNanF32>>(d, a, b, 0)
            }
            (MinMax::Max, NanMode::Propagate, Ftz::Yes, FloatType::F32) => {
                self.op2::<FlushedF32<MaxNanF32>>(d, a, b, 0)
            }
            (_, _, Ftz::Yes, FloatType::F16 | FloatType::F16x2) => {
                let pairs = *ty == FloatType::F16x2;
                macro_rules! flushed {
                    ($F:ident) => {
                        if pairs {
                            self.op2::<Pairs<FlushedF16<$F>>>(d, a, b, 0)
                        } else {
                            self.op2::<FlushedF16<$F>>(d, a, b, 0)
                        }
                    };
                }
                match (op, nan) {
                    (MinMax::Min, NanMode::Number) => flushed!(MinF16),
                    (MinMax::Max, NanMode::Number) => flushed!(MaxF16),
                    (MinMax::Min, NanMode::Propagate) => flushed!(MinNanF16),
                    (MinMax::Max, NanMode::Propagate) => flushed!(MaxNanF16),
                }
            }
            (_, _, Ftz::Yes, FloatType::BF16 | FloatType::BF16x2 | FloatType::F64) => {
                self.no(format!("{}.ftz.{}", op.text(), ty.text()))
            }
            (_, NanMode::Propagate, _, FloatType::F64) => self.no("min.NaN.f64"),
            (MinMax::Min, NanMode::Number, ..) => {
                by_float!(self, op2, ty, (d, a, b), [MinF16, MinBF16, MinF32, MinF64])
            }
            (MinMax::Max, NanMode::Number, ..) => {
                by_float!(self, op2, ty, (d, a, b), [MaxF16, MaxBF16, MaxF32, MaxF64])
            }
            (MinMax::Min, NanMode::Propagate, ..) => {
                by_float!(self, op2, ty, (d, a, b), [MinNanF16, MinNanBF16, MinNanF32, MinF64])
            }
            (MinMax::Max, NanMode::Propagate, ..) => {
                by_float!(self, op2, ty, (d, a, b), [MaxNanF16, MaxNanBF16, MaxNanF32, MaxF64])
            }
        }
    }
    fn copysign(&mut self, ty: &WideFloatType, d: &Reg, a: &Src<Reg>, b: &Src<Reg>) -> Result<()> {
        match ty {
            WideFloatType::F32 => self.op2::<CopysignF32>(d, a, b, 0),
            WideFloatType::F64 => self.op2::<CopysignF64>(d, a, b, 0),
        }
    }
    fn div_float(&mut self, ftz: &Ftz, ty: &WideFloatType, d: &Reg, a: &Src<Reg>, b: &Src<Reg>) -> Result<()> {
        match (ty, ftz) {
            (WideFloatType::F32, Ftz::No) => self.op2::<DivF32>(d, a, b, 0),
            (WideFloatType::F32, Ftz::Yes) => self.op2::<DivFtzF32>(d, a, b, 0),
            (WideFloatType::F64, _) => self.op2::<DivF64>(d, a, b, 0),
        }
    }
    fn div_approx(&mut self, mode: &DivMode, ftz: &Ftz, d: &Reg, a: &Src<Reg>, b: &Src<Reg>) -> Result<()> {
        match (mode, ftz) {
            (DivMode::Approx, Ftz::No) => self.rows2::<DivApprox>(d, a, b),
            (DivMode::Approx, Ftz::Yes) => self.rows2::<DivApproxFtz>(d, a, b),
            (DivMode::Full, Ftz::No) => self.rows2::<DivFull>(d, a, b),
            (DivMode::Full, Ftz::Yes) => self.rows2::<DivFullFtz>(d, a, b),
        }
    }
    fn exact(&mut self, op: &Exact, ftz: &Ftz, ty: &WideFloatType, d: &Reg, a: &Src<Reg>) -> Result<()> {
        match (op, ty, ftz) {
            (Exact::Rcp, WideFloatType::F32, Ftz::No) => self.op1::<RcpF32>(d, a, 0),
            (Exact::Rcp, WideFloatType::F32, Ftz::Yes) => self.op1::<RcpFtzF32>(d, a, 0),
            (Exact::Rcp, WideFloatType::F64, _) => self.op1::<RcpF64>(d, a, 0),
            (Exact::Sqrt, WideFloatType::F32, Ftz::No) => self.op1::<SqrtF32>(d, a, 0),
            (Exact::Sqrt, WideFloatType::F32, Ftz::Yes) => self.op1::<SqrtFtzF32>(d, a, 0),
            (Exact::Sqrt, WideFloatType::F64, _) => self.op1::<SqrtF64>(d, a, 0),
        }
    }
    fn mufu(&mut self, op: &Mufu, ftz: &Ftz, d: &Reg, a: &Src<Reg>) -> Result<()> {
        match (op, ftz) {
            (Mufu::Ex2, Ftz::No) => self.rows::<Ex2>(d, a),
            (Mufu::Ex2, Ftz::Yes) => self.rows::<Ex2Ftz>(d, a),
            (Mufu::Lg2, Ftz::No) => self.rows::<Lg2>(d, a),
            (Mufu::Lg2, Ftz::Yes) => self.rows::<Lg2Ftz>(d, a),
            (Mufu::Rcp, Ftz::No) => self.rows::<Rcp>(d, a),
            (Mufu::Rcp, Ftz::Yes) => self.rows::<RcpFtz>(d, a),
            (Mufu::Rsqrt, Ftz::No) => self.rows::<Rsqrt>(d, a),
            (Mufu::Rsqrt, Ftz::Yes) => self.rows::<RsqrtFtz>(d, a),
            (Mufu::Sqrt, Ftz::No) => self.rows::<Sqrt>(d, a),
            (Mufu::Sqrt, Ftz::Yes) => self.rows::<SqrtFtz>(d, a),
            (Mufu::Sin, _) => self.rows::<Sin>(d, a),
            (Mufu::Cos, _) => self.rows::<Cos>(d, a),
        }
    }
    fn tanh_approx(&mut self, d: &Reg, a: &Src<Reg>) -> Result<()> {
        self.rows::<Tanh>(d, a)
    }
    fn mufu16(&mut self, op: &Unary16, d: &Reg, a: &Reg) -> Result<()> {
        let a = &Src::Reg(*a);
        match op {
            Unary16::Ex2F16 => self.op1::<Ex2F16>(d, a, 0),
            Unary16::Ex2BF16 => self.op1::<Ex2BF16>(d, a, 0),
            Unary16::TanhF16 => self.op1::<TanhF16>(d, a, 0),
            Unary16::TanhBF16 => self.op1::<TanhBF16>(d, a, 0),
            Unary16::Ex2F16x2 => self.rows::<Ex2F16x2>(d, a),
            Unary16::Ex2BF16x2 => self.rows::<Ex2BF16x2>(d, a),
            Unary16::TanhF16x2 => self.rows::<TanhF16x2>(d, a),
            Unary16::TanhBF16x2 => self.rows::<TanhBF16x2>(d, a),
        }
    }
    fn mufu64(&mut self, op: &Mufu64, d: &Reg, a: &Reg) -> Result<()> {
        match op {
            Mufu64::Rcp => self.op1::<RcpSeedF64>(d, &Src::Reg(*a), 0),
            Mufu64::Rsqrt => self.op1::<RsqrtSeedF64>(d, &Src::Reg(*a), 0),
        }
    }

    // ------------------------------------------------------------------------------------------- conversions
    fn cvt(
        &mut self,
        rnd: &CvtRound,
        ftz: &Ftz,
        sat: &Sat,
        to: &CvtType,
        from: &CvtType,
        d: &Reg,
        a: &Reg,
    ) -> Result<()> {
        use CvtType::*;
        let conversion = Conversion {
            rnd: *rnd,
            flushes: *ftz == Ftz::Yes,
            saturates: *sat == Sat::Yes,
            to: *to,
            from: *from,
        };
        let a = &Src::Reg(*a);
        if *ftz == Ftz::No && *sat == Sat::No {
            match (to, from, rnd) {
                (F32, F16, CvtRound::None) => return self.op1::<F16ToF32>(d, a, 0),
                (F32, BF16, CvtRound::None) => return self.op1::<BF16ToF32>(d, a, 0),
                (F16, F32, CvtRound::Rn) => return self.op1::<F32ToF16>(d, a, 0),
                (BF16, F32, CvtRound::Rn) => return self.op1::<F32ToBF16>(d, a, 0),
                (F32, S32, CvtRound::Rn) => return self.op1::<S32ToF32>(d, a, 0),
                (F32, U32, CvtRound::Rn) => return self.op1::<U32ToF32>(d, a, 0),
                (S32, F32, CvtRound::Rzi) => return self.op1::<F32ToS32>(d, a, 0),
                (U64 | S64, U32, CvtRound::None) => return self.op1::<ZeroExtend32>(d, a, 0),
                (U64 | S64, S32, CvtRound::None) => return self.op1::<SignExtend32>(d, a, 0),
                (U32 | S32, U64 | S64, CvtRound::None) => return self.op1::<Low32>(d, a, 0),
                (U16 | S16, U32 | S32, CvtRound::None) => return self.op1::<Low16>(d, a, 0),
                (U32 | S32, U16, CvtRound::None) => return self.op1::<ZeroExtend16>(d, a, 0),
                (U32 | S32, S16, CvtRound::None) => return self.op1::<SignExtend16>(d, a, 0),
                (U32 | S32, U32 | S32, CvtRound::None) => return self.op1::<Copy<u32>>(d, a, 0),
                (U64 | S64, U64 | S64, CvtRound::None) => return self.op1::<Copy<u64>>(d, a, 0),
                _ => {}
            }
        }
        if conversion.apply(0).is_none() {
            return Err(Error::unsupported(format!(
                "cvt{}{}{}.{}.{} in the emulator",
                rnd.text(),
                ftz.text(),
                sat.text(),
                to.text(),
                from.text()
            ))
            .remedy("convert in two steps, through a 32-bit type"));
        }
        let code = conversion.code();
        let width = |ty: &CvtType| ty.slot().class.bits();
        match (width(from), width(to)) {
            (16, 16) => self.op1::<Convert<u16, u16>>(d, a, code),
            (16, 32) => self.op1::<Convert<u16, u32>>(d, a, code),
            (16, _) => self.op1::<Convert<u16, u64>>(d, a, code),
            (32, 16) => self.op1::<Convert<u32, u16>>(d, a, code),
            (32, 32) => self.op1::<Convert<u32, u32>>(d, a, code),
            (32, _) => self.op1::<Convert<u32, u64>>(d, a, code),
            (_, 16) => self.op1::<Convert<u64, u16>>(d, a, code),
            (_, 32) => self.op1::<Convert<u64, u32>>(d, a, code),
            _ => self.op1::<Convert<u64, u64>>(d, a, code),
        }
    }
    fn cvt_pair(&mut self, rnd: &Round, relu: &Relu, to: &Pair16, d: &Reg, a: &Src<Reg>, b: &Src<Reg>) -> Result<()> {
        match (rnd, relu, to) {
            (Round::Rn, Relu::No, Pair16::F16x2) => self.op2::<PackF16>(d, a, b, 0),
            (Round::Rn, Relu::No, Pair16::BF16x2) => self.op2::<PackBF16>(d, a, b, 0),
            _ => {
                let imm = *rnd as u32 | (*relu as u32) << 2 | (*to as u32) << 3;
                self.op2::<PackRounded>(d, a, b, imm)
            }
        }
    }
    fn cvt_pair8_f32(&mut self, relu: &Relu, to: &Pair8, d: &Reg, a: &Src<Reg>, b: &Src<Reg>) -> Result<()> {
        self.op2::<PackFp8>(d, a, b, *relu as u32 | (*to as u32) << 1)
    }
    fn cvt_pair8_f16x2(&mut self, relu: &Relu, to: &Pair8, d: &Reg, a: &Reg) -> Result<()> {
        self.op1::<PackFp8OfF16x2>(d, &Src::Reg(*a), *relu as u32 | (*to as u32) << 1)
    }
    fn cvt_f16x2_pair8(&mut self, relu: &Relu, from: &Pair8, d: &Reg, a: &Reg) -> Result<()> {
        self.op1::<UnpackFp8>(d, &Src::Reg(*a), *relu as u32 | (*from as u32) << 1)
    }
    fn cvt_tf32(&mut self, d: &Reg, a: &Reg) -> Result<()> {
        self.op1::<F32ToTf32>(d, &Src::Reg(*a), 0)
    }

    // -------------------------------------------------------------------------------------------- predicates
    fn setp(&mut self, cmp: &Compare, ftz: &Ftz, ty: &CompareType, d: &Reg, a: &Src<Reg>, b: &Src<Reg>) -> Result<()> {
        let d = self.reg(d);
        self.compare(*cmp, *ftz, *ty, d, a, b);
        Ok(())
    }
    fn setp_bool(
        &mut self,
        cmp: &Compare,
        op: &BoolOp,
        ftz: &Ftz,
        ty: &CompareType,
        d: &Reg,
        a: &Src<Reg>,
        b: &Src<Reg>,
        negated: &Inverted,
        c: &Reg,
    ) -> Result<()> {
        let found = self.spare_predicate();
        self.compare(*cmp, *ftz, *ty, found, a, b);
        self.combine(found, Some((*op, *negated, c)), d, None);
        Ok(())
    }
    fn setp_pair(
        &mut self,
        cmp: &Compare,
        ftz: &Ftz,
        ty: &CompareType,
        d: &Reg,
        e: &Reg,
        a: &Src<Reg>,
        b: &Src<Reg>,
    ) -> Result<()> {
        let found = self.spare_predicate();
        self.compare(*cmp, *ftz, *ty, found, a, b);
        self.combine(found, None, d, Some(e));
        Ok(())
    }
    fn setp_bool_pair(
        &mut self,
        cmp: &Compare,
        op: &BoolOp,
        ftz: &Ftz,
        ty: &CompareType,
        d: &Reg,
        e: &Reg,
        a: &Src<Reg>,
        b: &Src<Reg>,
        negated: &Inverted,
        c: &Reg,
    ) -> Result<()> {
        let found = self.spare_predicate();
        self.compare(*cmp, *ftz, *ty, found, a, b);
        self.combine(found, Some((*op, *negated, c)), d, Some(e));
        Ok(())
    }
    fn setp_halves(&mut self, cmp: &Compare, ftz: &Ftz, ty: &Pair16, d: &Reg, e: &Reg, a: &Reg, b: &Reg) -> Result<()> {
        let set = compare_set(*cmp);
        let (a, b) = (Src::Reg(*a), Src::Reg(*b));
        macro_rules! halves {
            ($T:ident) => {{
                self.test::<OfHalves<$T, false>>(d, &a, &b, set)?;
                self.test::<OfHalves<$T, true>>(e, &a, &b, set)
            }};
        }
        match ty {
            Pair16::F16x2 if *ftz == Ftz::Yes => halves!(CompareFtzF16),
            Pair16::F16x2 => halves!(CompareF16),
            Pair16::BF16x2 => halves!(CompareBF16),
        }
    }
    fn set(
        &mut self,
        cmp: &Compare,
        ftz: &Ftz,
        to: &SetType,
        ty: &CompareType,
        d: &Reg,
        a: &Src<Reg>,
        b: &Src<Reg>,
    ) -> Result<()> {
        let found = self.spare_predicate();
        self.compare(*cmp, *ftz, *ty, found, a, b);
        self.truth(*to, d, found);
        Ok(())
    }
    fn set_bool(
        &mut self,
        cmp: &Compare,
        op: &BoolOp,
        ftz: &Ftz,
        to: &SetType,
        ty: &CompareType,
        d: &Reg,
        a: &Src<Reg>,
        b: &Src<Reg>,
        negated: &Inverted,
        c: &Reg,
    ) -> Result<()> {
        let found = self.spare_predicate();
        self.compare(*cmp, *ftz, *ty, found, a, b);
        let c = self.reg(c);
        self.emit::<CombinePredicate>(Operands {
            d: found,
            a: found,
            b: c,
            imm: combine_code(Some((*op, *negated)), false),
            ..Operands::NONE
        });
        self.truth(*to, d, found);
        Ok(())
    }
    fn slct(&mut self, ty: &BitType, d: &Reg, a: &Src<Reg>, b: &Src<Reg>, c: &Src<Reg>) -> Result<()> {
        match ty {
            BitType::B16 => self.op3::<Slct<u16>>(d, a, b, c, 0),
            BitType::B32 => self.op3::<Slct<u32>>(d, a, b, c, 0),
            BitType::B64 => self.op3::<Slct<u64>>(d, a, b, c, 0),
        }
    }
    fn slct_float(&mut self, ftz: &Ftz, ty: &BitType, d: &Reg, a: &Src<Reg>, b: &Src<Reg>, c: &Src<Reg>) -> Result<()> {
        let imm = u32::from(*ftz == Ftz::Yes);
        match ty {
            BitType::B16 => self.op3::<SlctFloat<u16>>(d, a, b, c, imm),
            BitType::B32 => self.op3::<SlctFloat<u32>>(d, a, b, c, imm),
            BitType::B64 => self.op3::<SlctFloat<u64>>(d, a, b, c, imm),
        }
    }
    fn selp(&mut self, ty: &BitType, d: &Reg, a: &Src<Reg>, b: &Src<Reg>, p: &Reg) -> Result<()> {
        let (d, c) = (self.reg(d), self.reg(p));
        match ty {
            BitType::B16 | BitType::B32 => {
                let (a, b) = (self.src::<u32>(a), self.src::<u32>(b));
                self.emit::<Select<u32>>(Operands {
                    d,
                    a,
                    b,
                    c,
                    ..Operands::NONE
                });
            }
            BitType::B64 => {
                let (a, b) = (self.src::<u64>(a), self.src::<u64>(b));
                self.emit::<Select<u64>>(Operands {
                    d,
                    a,
                    b,
                    c,
                    ..Operands::NONE
                });
            }
        }
        Ok(())
    }

    // ------------------------------------------------------------------------------------------------ memory
    fn ld(&mut self, sem: &LoadSem, space: &Space_, ty: &MemType, d: &Regs<Reg>, addr: &Addr<Reg>) -> Result<()> {
        let ordered = !matches!(sem, LoadSem::Weak);
        let shared = is_shared(*space);
        self.communicates |= ordered && !shared;
        let run = if shared {
            access::<H, SharedCta>(*ty, d.len(), self.tier, false, ordered)
        } else {
            access::<H, Global>(*ty, d.len(), self.tier, false, ordered)
        };
        let Some(run) = run else {
            return self.no(format!("ld.v{}.{}", d.len(), ty.text()));
        };
        let registers = d.iter().map(|r| self.reg(r)).collect();
        let (aux, a) = (self.list(registers), self.reg(&addr.base));
        self.emit_fn(
            run,
            Operands {
                a,
                c: *sem as u16,
                imm: addr.offset,
                aux,
                ..Operands::NONE
            },
        );
        Ok(())
    }
    fn ld_nc(&mut self, ty: &MemType, d: &Regs<Reg>, addr: &Addr<Reg>) -> Result<()> {
        self.ld(&LoadSem::Weak, &Space_::Global, ty, d, addr)
    }
    fn ld_cached(
        &mut self,
        space: &Space_,
        _cache: &LoadCache,
        ty: &MemType,
        d: &Regs<Reg>,
        addr: &Addr<Reg>,
    ) -> Result<()> {
        self.ld(&LoadSem::Weak, space, ty, d, addr)
    }
    fn ld_nc_cached(&mut self, _cache: &ReadCache, ty: &MemType, d: &Regs<Reg>, addr: &Addr<Reg>) -> Result<()> {
        self.ld(&LoadSem::Weak, &Space_::Global, ty, d, addr)
    }
    fn st_cached(
        &mut self,
        space: &Space_,
        _cache: &StoreCache,
        ty: &MemType,
        addr: &Addr<Reg>,
        a: &Srcs<Reg>,
    ) -> Result<()> {
        self.st(&StoreSem::Weak, space, ty, addr, a)
    }
    fn ld_policy(
        &mut self,
        space: &Space_,
        _l1: &L1Priority,
        _size: &PrefetchSize,
        ty: &MemType,
        d: &Regs<Reg>,
        addr: &Addr<Reg>,
        _policy: &Src<Reg>,
    ) -> Result<()> {
        self.ld(&LoadSem::Weak, space, ty, d, addr)
    }
    fn ld_nc_policy(
        &mut self,
        _l1: &L1Priority,
        _size: &PrefetchSize,
        ty: &MemType,
        d: &Regs<Reg>,
        addr: &Addr<Reg>,
        _policy: &Src<Reg>,
    ) -> Result<()> {
        self.ld(&LoadSem::Weak, &Space_::Global, ty, d, addr)
    }
    fn st_policy(
        &mut self,
        space: &Space_,
        _l1: &L1Priority,
        ty: &MemType,
        addr: &Addr<Reg>,
        a: &Srcs<Reg>,
        _policy: &Src<Reg>,
    ) -> Result<()> {
        self.st(&StoreSem::Weak, space, ty, addr, a)
    }
    fn create_policy_fraction(
        &mut self,
        priority: &PolicyPriority,
        _others: &PolicyOthers,
        d: &Reg,
        fraction: &Src<Reg>,
    ) -> Result<()> {
        let (a, d) = (self.src::<u32>(fraction), self.reg(d));
        self.emit::<PolicyOfFraction>(Operands {
            d,
            a,
            imm: *priority as i32,
            ..Operands::NONE
        });
        Ok(())
    }
    fn create_policy(&mut self, priority: &PolicyPriority, others: &PolicyOthers, d: &Reg) -> Result<()> {
        self.create_policy_fraction(priority, others, d, &Src::f32(1.0))
    }
    fn create_policy_range(
        &mut self,
        priority: &PolicyPriority,
        _others: &PolicyOthers,
        d: &Reg,
        _addr: &Addr<Reg>,
        primary: &Src<Reg>,
        total: &Src<Reg>,
    ) -> Result<()> {
        let (b, c) = (self.src::<u32>(primary), self.src::<u32>(total));
        let d = self.reg(d);
        self.emit::<PolicyOfRange>(Operands {
            d,
            b,
            c,
            imm: *priority as i32,
            ..Operands::NONE
        });
        Ok(())
    }
    fn create_policy_cvt(&mut self, d: &Reg, a: &Src<Reg>) -> Result<()> {
        self.mov(&BitType::B64, d, a)
    }
    fn discard(&mut self, addr: &Addr<Reg>) -> Result<()> {
        let a = self.reg(&addr.base);
        self.emit::<OfLines>(Operands {
            a,
            imm: addr.offset,
            ..Operands::NONE
        });
        let words = Srcs::from_elem(Src::Imm(DISCARDED), 4);
        for at in 0..8 {
            let addr = Addr::at(addr.base, addr.offset + 16 * at);
            self.st(&StoreSem::Weak, &Space_::Global, &MemType::B32, &addr, &words)?;
        }
        Ok(())
    }
    fn prefetch(&mut self, _level: &PrefetchLevel, _addr: &Addr<Reg>) -> Result<()> {
        self.emit::<Nothing>(Operands::NONE);
        Ok(())
    }
    fn prefetch_uniform(&mut self, _addr: &Addr<Reg>) -> Result<()> {
        self.emit::<Nothing>(Operands::NONE);
        Ok(())
    }
    fn apply_priority(&mut self, _addr: &Addr<Reg>) -> Result<()> {
        self.emit::<Nothing>(Operands::NONE);
        Ok(())
    }
    fn atom_vector(
        &mut self,
        sem: &AtomSem,
        scope: &Scope,
        op: &HalfRedOp,
        ty: &HalfType,
        d: &Regs<Reg>,
        addr: &Addr<Reg>,
        a: &Srcs<Reg>,
    ) -> Result<()> {
        let (op, ty) = half_reduction(*op, *ty);
        self.atomic_vector((*sem, *scope), (op, ty), Some(d), addr, a)
    }
    fn red_vector_f32(&mut self, sem: &AtomSem, scope: &Scope, addr: &Addr<Reg>, a: &Srcs<Reg>) -> Result<()> {
        self.atomic_vector((*sem, *scope), (AtomOp::Add, AtomType::F32), None, addr, a)
    }
    fn atom_vector_f32(
        &mut self,
        sem: &AtomSem,
        scope: &Scope,
        d: &Regs<Reg>,
        addr: &Addr<Reg>,
        a: &Srcs<Reg>,
    ) -> Result<()> {
        self.atomic_vector((*sem, *scope), (AtomOp::Add, AtomType::F32), Some(d), addr, a)
    }
    fn copy_async(
        &mut self,
        _cache: &CopyCache,
        _hint: &PrefetchSize,
        dst: &Addr<Reg>,
        src: &Addr<Reg>,
        bytes: &i64,
    ) -> Result<()> {
        self.small_copy(dst, src, *bytes, ALL_TAKEN);
        Ok(())
    }
    fn copy_async_partly(
        &mut self,
        _cache: &CopyCache,
        _hint: &PrefetchSize,
        dst: &Addr<Reg>,
        src: &Addr<Reg>,
        bytes: &i64,
        taken: &Src<Reg>,
    ) -> Result<()> {
        let taken = self.src::<u32>(taken);
        self.small_copy(dst, src, *bytes, taken);
        Ok(())
    }
    fn copy_commit(&mut self) -> Result<()> {
        self.emit::<CopyCommit>(Operands::NONE);
        Ok(())
    }
    fn copy_wait(&mut self, n: &i64) -> Result<()> {
        self.emit::<CopyWait>(Operands {
            imm: i32::try_from(*n).unwrap_or(i32::MAX),
            ..Operands::NONE
        });
        Ok(())
    }
    fn copy_wait_all(&mut self) -> Result<()> {
        self.emit::<CopyWaitAll>(Operands::NONE);
        Ok(())
    }
    fn copy_arrive(&mut self, counted: &Counted, addr: &Addr<Reg>) -> Result<()> {
        match counted {
            Counted::Yes => self.mbarrier::<CopyArrive>(addr, &Src::u32(1), ARRIVE),
            // The barrier takes one arrival more, which is this one: how many others it takes stays as it is.
            Counted::No => self.mbarrier::<CopyArriveMore>(addr, &Src::u32(1), ARRIVE),
        }
    }
    fn ld_local(&mut self, d: &Regs<Reg>, at: &i64) -> Result<()> {
        for (i, d) in d.iter().enumerate() {
            let (d, a) = (self.reg(d), own_row(*at, i));
            self.emit::<Each<Copy<u32>>>(Operands { d, a, ..Operands::NONE });
        }
        Ok(())
    }
    fn st_local(&mut self, at: &i64, a: &Srcs<Reg>) -> Result<()> {
        for (i, a) in a.iter().enumerate() {
            let (d, a) = (own_row(*at, i), self.src::<u32>(a));
            self.emit::<Each<Copy<u32>>>(Operands { d, a, ..Operands::NONE });
        }
        Ok(())
    }
    fn st(&mut self, sem: &StoreSem, space: &Space_, ty: &MemType, addr: &Addr<Reg>, a: &Srcs<Reg>) -> Result<()> {
        let shared = is_shared(*space);
        self.communicates |= *sem != StoreSem::Weak && !shared;
        let run = if shared {
            access::<H, SharedCta>(*ty, a.len(), self.tier, true, false)
        } else {
            access::<H, Global>(*ty, a.len(), self.tier, true, false)
        };
        let Some(run) = run else {
            return self.no(format!("st.v{}.{}", a.len(), ty.text()));
        };
        let sources = self.sources(a, *ty);
        let (aux, a) = (self.list(sources), self.reg(&addr.base));
        self.emit_fn(
            run,
            Operands {
                a,
                c: *sem as u16,
                imm: addr.offset,
                aux,
                ..Operands::NONE
            },
        );
        Ok(())
    }
    fn atom(
        &mut self,
        sem: &AtomSem,
        scope: &Scope,
        space: &Space_,
        op: &AtomOp,
        ty: &AtomType,
        d: &Reg,
        addr: &Addr<Reg>,
        a: &Src<Reg>,
    ) -> Result<()> {
        let d = self.reg(d);
        self.atomic((*sem, *scope), *space, Some(*op), *ty, d, addr, a, None)
    }
    fn atom_cas(
        &mut self,
        sem: &AtomSem,
        scope: &Scope,
        space: &Space_,
        ty: &BitType,
        d: &Reg,
        addr: &Addr<Reg>,
        a: &Src<Reg>,
        b: &Src<Reg>,
    ) -> Result<()> {
        let d = self.reg(d);
        let ty = match ty {
            // Bits are compared; no type of an operation is 16 bits without a format.
            BitType::B16 => AtomType::F16,
            BitType::B32 => AtomType::B32,
            BitType::B64 => AtomType::B64,
        };
        self.atomic((*sem, *scope), *space, None, ty, d, addr, a, Some(b))
    }
    fn red(
        &mut self,
        sem: &AtomSem,
        scope: &Scope,
        space: &Space_,
        op: &RedOp,
        ty: &AtomType,
        addr: &Addr<Reg>,
        a: &Src<Reg>,
    ) -> Result<()> {
        self.atomic(
            (*sem, *scope),
            *space,
            Some(op.as_atom()),
            *ty,
            NO_RESULT,
            addr,
            a,
            None,
        )
    }
    fn red_vector(
        &mut self,
        sem: &AtomSem,
        scope: &Scope,
        op: &HalfRedOp,
        ty: &HalfType,
        addr: &Addr<Reg>,
        a: &Srcs<Reg>,
    ) -> Result<()> {
        let (op, ty) = half_reduction(*op, *ty);
        self.atomic_vector((*sem, *scope), (op, ty), None, addr, a)
    }
    fn ldmatrix(&mut self, trans: &MatrixTrans, d: &Regs<Reg>, addr: &Addr<Reg>) -> Result<()> {
        let registers = d.iter().map(|r| self.reg(r)).collect();
        let (aux, a) = (self.list(registers), self.reg(&addr.base));
        let c = u16::from(*trans == MatrixTrans::Yes);
        self.emit::<Ldmatrix>(Operands {
            a,
            b: d.len() as u16,
            c,
            imm: addr.offset,
            aux,
            ..Operands::NONE
        });
        Ok(())
    }
    fn stmatrix(&mut self, trans: &MatrixTrans, addr: &Addr<Reg>, a: &Srcs<Reg>) -> Result<()> {
        let n = a.len() as u16;
        let sources = self.sources(a, MemType::B32);
        let (aux, a) = (self.list(sources), self.reg(&addr.base));
        let c = u16::from(*trans == MatrixTrans::Yes);
        self.emit::<Stmatrix>(Operands {
            a,
            b: n,
            c,
            imm: addr.offset,
            aux,
            ..Operands::NONE
        });
        Ok(())
    }
    fn st_async(&mut self, ty: &MemType, addr: &Addr<Reg>, a: &Srcs<Reg>, bar: &Addr<Reg>) -> Result<()> {
        let value_bytes = match ty {
            MemType::B32 => 4,
            MemType::B64 => 8,
            MemType::U8 | MemType::S8 | MemType::B16 => return self.no("st.async of less than 32 bits"),
        };
        let values = self.sources(a, *ty);
        let (shared, barrier) = (self.at(addr), self.at(bar));
        self.bulk(BulkOp {
            shared,
            barrier,
            values,
            value_bytes,
            ..BulkOp::of(BulkKind::StoreAsync)
        })
    }
    fn red_async(&mut self, op: &RedOp, ty: &AtomType, addr: &Addr<Reg>, a: &Src<Reg>, bar: &Addr<Reg>) -> Result<()> {
        let value_bytes = atom_bytes(*ty);
        let mem = if value_bytes == 8 { MemType::B64 } else { MemType::B32 };
        let values = self.sources(&Srcs::from_elem(*a, 1), mem);
        let (shared, barrier) = (self.at(addr), self.at(bar));
        self.bulk(BulkOp {
            shared,
            barrier,
            values,
            value_bytes,
            reduce_elements: Some((op.as_atom(), *ty)),
            ..BulkOp::of(BulkKind::ReduceAsync)
        })
    }

    // ------------------------------------------------------------------------------------------------- warps
    fn shfl(&mut self, mode: &ShuffleMode, d: &Reg, a: &Reg, b: &Src<Reg>, c: &Src<Reg>, mask: &i64) -> Result<()> {
        let (b, c) = (self.src::<u32>(b), self.src::<u32>(c));
        let (d, a) = (self.reg(d), self.reg(a));
        self.emit::<Shuffle>(Operands {
            d,
            a,
            b,
            c,
            imm: *mask as i32,
            aux: *mode as u32,
        });
        Ok(())
    }
    fn vote(&mut self, mode: &VoteMode, d: &Reg, a: &Reg, mask: &i64) -> Result<()> {
        let (d, a) = (self.reg(d), self.reg(a));
        self.emit::<Vote>(Operands {
            d,
            a,
            imm: *mask as i32,
            aux: *mode as u32,
            ..Operands::NONE
        });
        Ok(())
    }
    fn ballot(&mut self, d: &Reg, a: &Reg, mask: &i64) -> Result<()> {
        let (d, a) = (self.reg(d), self.reg(a));
        let aux = VoteMode::ALL.len() as u32;
        self.emit::<Vote>(Operands {
            d,
            a,
            imm: *mask as i32,
            aux,
            ..Operands::NONE
        });
        Ok(())
    }
    fn redux(&mut self, op: &ReduxOp, d: &Reg, a: &Reg, mask: &i64) -> Result<()> {
        let (d, a) = (self.reg(d), self.reg(a));
        self.emit::<Redux>(Operands {
            d,
            a,
            imm: *mask as i32,
            aux: *op as u32,
            ..Operands::NONE
        });
        Ok(())
    }
    fn elect(&mut self, d: &Reg, mask: &i64) -> Result<()> {
        let d = self.reg(d);
        self.emit::<Elect>(Operands {
            d,
            imm: *mask as i32,
            ..Operands::NONE
        });
        Ok(())
    }
    fn bar_warp(&mut self, mask: &i64) -> Result<()> {
        self.emit::<WarpBarrier>(Operands {
            imm: *mask as i32,
            ..Operands::NONE
        });
        Ok(())
    }
    fn shfl_masked(
        &mut self,
        mode: &ShuffleMode,
        d: &Reg,
        a: &Reg,
        b: &Src<Reg>,
        c: &Src<Reg>,
        members: &Reg,
    ) -> Result<()> {
        self.shuffle(*mode, d, None, a, b, c, &Src::Reg(*members))
    }
    fn shfl_pred(
        &mut self,
        mode: &ShuffleMode,
        d: &Reg,
        p: &Reg,
        a: &Reg,
        b: &Src<Reg>,
        c: &Src<Reg>,
        members: &Src<Reg>,
    ) -> Result<()> {
        self.shuffle(*mode, d, Some(p), a, b, c, members)
    }
    fn vote_masked(&mut self, mode: &VoteMode, d: &Reg, a: &Reg, members: &Reg) -> Result<()> {
        self.emit::<VoteMasked>(Operands {
            d: self.reg(d),
            a: self.reg(a),
            b: self.reg(members),
            aux: *mode as u32,
            ..Operands::NONE
        });
        Ok(())
    }
    fn ballot_masked(&mut self, d: &Reg, a: &Reg, members: &Reg) -> Result<()> {
        self.emit::<VoteMasked>(Operands {
            d: self.reg(d),
            a: self.reg(a),
            b: self.reg(members),
            aux: VoteMode::ALL.len() as u32,
            ..Operands::NONE
        });
        Ok(())
    }
    fn redux_masked(&mut self, op: &ReduxOp, d: &Reg, a: &Reg, members: &Reg) -> Result<()> {
        self.emit::<ReduxMasked>(Operands {
            d: self.reg(d),
            a: self.reg(a),
            b: self.reg(members),
            aux: *op as u32,
            ..Operands::NONE
        });
        Ok(())
    }
    fn elect_masked(&mut self, d: &Reg, members: &Reg) -> Result<()> {
        self.emit::<ElectMasked>(Operands {
            d: self.reg(d),
            a: NO_PREDICATE,
            b: self.reg(members),
            ..Operands::NONE
        });
        Ok(())
    }
    fn elect_leader(&mut self, d: &Reg, p: &Reg, members: &Src<Reg>) -> Result<()> {
        let b = self.src::<u32>(members);
        self.emit::<ElectMasked>(Operands {
            d: self.reg(p),
            a: self.reg(d),
            b,
            ..Operands::NONE
        });
        Ok(())
    }
    fn match_any(&mut self, ty: &WordType, d: &Reg, a: &Reg, members: &Src<Reg>) -> Result<()> {
        self.matches(*ty, d, NO_PREDICATE, a, members, 0)
    }
    fn match_all(&mut self, ty: &WordType, d: &Reg, a: &Reg, members: &Src<Reg>) -> Result<()> {
        self.matches(*ty, d, NO_PREDICATE, a, members, 1)
    }
    fn match_all_pred(&mut self, ty: &WordType, d: &Reg, p: &Reg, a: &Reg, members: &Src<Reg>) -> Result<()> {
        let p = self.reg(p);
        self.matches(*ty, d, p, a, members, 1)
    }
    fn activemask(&mut self, d: &Reg) -> Result<()> {
        self.emit::<ActiveMask>(Operands {
            d: self.reg(d),
            ..Operands::NONE
        });
        Ok(())
    }
    fn movmatrix(&mut self, d: &Reg, a: &Reg) -> Result<()> {
        self.emit::<MoveMatrix>(Operands {
            d: self.reg(d),
            a: self.reg(a),
            ..Operands::NONE
        });
        Ok(())
    }
    fn bar_warp_masked(&mut self, members: &Reg) -> Result<()> {
        self.emit::<WarpBarrierMasked>(Operands {
            a: self.reg(members),
            ..Operands::NONE
        });
        Ok(())
    }
    fn set_max_reg(&mut self, _action: &RegCount, n: &i64) -> Result<()> {
        if !(24..=256).contains(n) || n % 8 != 0 {
            return Err(Error::internal("setmaxnreg")
                .expected("24 to 256 in steps of 8")
                .got(n.to_string()));
        }
        self.reallocates = true;
        self.emit::<SetRegisters>(Operands {
            imm: *n as i32,
            ..Operands::NONE
        });
        Ok(())
    }
    fn nanosleep(&mut self, _ns: &Src<Reg>) -> Result<()> {
        self.emit::<Sleep>(Operands::NONE);
        Ok(())
    }
    fn check_index(
        &mut self,
        ty: &IntType,
        of: &Indexed,
        i: &Src<Reg>,
        size: &i64,
        extent: &i64,
        dim: &i64,
        place: &i64,
    ) -> Result<()> {
        let a = match ty.bits() {
            64 => self.src::<u64>(i),
            _ => self.src::<u32>(i),
        };
        let aux = self.checks.len() as u32;
        self.checks.push(IndexCheck {
            ty: *ty,
            of: *of,
            place: *place,
            dim: *dim,
            size: *size,
            extent: *extent,
        });
        self.emit::<CheckIndex>(Operands {
            a,
            aux,
            ..Operands::NONE
        });
        Ok(())
    }
    fn unchecked(
        &mut self,
        _lanes: &Lanes,
        _version: &i64,
        unknown: &Arc<str>,
        _code: &Arc<str>,
        _d: &Regs<Reg>,
        _a: &Srcs<Reg>,
    ) -> Result<()> {
        let aux = self.unknown.len() as u32;
        self.unknown.push(unknown.clone());
        self.emit::<Unknown>(Operands { aux, ..Operands::NONE });
        Ok(())
    }
    fn print_reserve(&mut self, d: &Reg, printer: &Reg, weight: &Src<Reg>, bytes: &i64) -> Result<()> {
        let (d, a, b) = (self.reg(d), self.reg(printer), self.src::<u32>(weight));
        self.emit::<PrintReserve>(Operands {
            d,
            a,
            b,
            aux: *bytes as u32,
            ..Operands::NONE
        });
        Ok(())
    }
    fn profile_start(&mut self, at: &Reg, n: &Src<Reg>) -> Result<()> {
        let (a, b) = (self.reg(at), self.src::<u32>(n));
        self.emit::<ProfileStart>(Operands { a, b, ..Operands::NONE });
        Ok(())
    }
    fn profile_mark(&mut self, tag: &i64, marks: &i64) -> Result<()> {
        self.emit::<ProfileMark>(Operands {
            aux: *tag as u32,
            imm: *marks as i32,
            ..Operands::NONE
        });
        Ok(())
    }
    fn profile_end(&mut self) -> Result<()> {
        self.emit::<ProfileEnd>(Operands::NONE);
        Ok(())
    }

    // -------------------------------------------------------------------------------------------------- giving up
    // A wait that takes too long is the run's error (`bounded`), so that no block ever has given up.
    fn give_up_begin(&mut self, _flag: &i64) -> Result<()> {
        self.emit::<Nothing>(Operands::NONE);
        Ok(())
    }
    fn give_up(&mut self, _word: &Reg, _words: &Reg, _place: &Reg, _flag: &i64) -> Result<()> {
        self.trap()
    }
    fn leave_if_block_gave_up(&mut self, _drain: &modifier::Drain, _flag: &i64) -> Result<()> {
        self.emit::<Nothing>(Operands::NONE);
        Ok(())
    }
    fn leave_if_any_gave_up(&mut self, _drain: &modifier::Drain, _word: &Reg, _flag: &i64) -> Result<()> {
        self.emit::<Nothing>(Operands::NONE);
        Ok(())
    }
    fn give_up_end(
        &mut self,
        _threads: &i64,
        _registers: &modifier::LeftRegisters,
        _peers: &modifier::EndsWith,
        _flag: &i64,
        _ns: &i64,
    ) -> Result<()> {
        self.emit::<Nothing>(Operands::NONE);
        Ok(())
    }
    fn trap(&mut self) -> Result<()> {
        self.emit::<Trap>(Operands::NONE);
        Ok(())
    }

    // --------------------------------------------------------------------------- CTA and cluster synchronisation
    fn bar_sync(&mut self, id: &Src<Reg>, threads: &Src<Reg>) -> Result<()> {
        let (a, b) = (self.src::<u32>(id), self.src::<u32>(threads));
        self.emit::<NamedBarrier>(Operands {
            a,
            b,
            imm: 1,
            ..Operands::NONE
        });
        Ok(())
    }
    fn bar_arrive(&mut self, id: &Src<Reg>, threads: &Src<Reg>) -> Result<()> {
        let (a, b) = (self.src::<u32>(id), self.src::<u32>(threads));
        self.emit::<NamedBarrier>(Operands { a, b, ..Operands::NONE });
        Ok(())
    }
    fn bar_sync_all(&mut self, id: &Src<Reg>) -> Result<()> {
        self.bar_sync(id, &Src::u32(self.flat.launch.block))
    }
    fn barrier_sync(&mut self, id: &Src<Reg>, threads: &Src<Reg>) -> Result<()> {
        self.bar_sync(id, threads)
    }
    fn barrier_sync_all(&mut self, id: &Src<Reg>) -> Result<()> {
        self.bar_sync_all(id)
    }
    fn barrier_arrive(&mut self, id: &Src<Reg>, threads: &Src<Reg>) -> Result<()> {
        self.bar_arrive(id, threads)
    }
    fn bar_red_popc(&mut self, d: &Reg, id: &Src<Reg>, threads: &Src<Reg>, negated: &Inverted, p: &Reg) -> Result<()> {
        self.reduce_at_barrier(RED_POPC, d, id, Some(threads), *negated, p)
    }
    fn bar_red_popc_all(&mut self, d: &Reg, id: &Src<Reg>, negated: &Inverted, p: &Reg) -> Result<()> {
        self.reduce_at_barrier(RED_POPC, d, id, None, *negated, p)
    }
    fn bar_red(
        &mut self,
        op: &BarRedOp,
        d: &Reg,
        id: &Src<Reg>,
        threads: &Src<Reg>,
        negated: &Inverted,
        p: &Reg,
    ) -> Result<()> {
        self.reduce_at_barrier(red_code(*op), d, id, Some(threads), *negated, p)
    }
    fn bar_red_all(&mut self, op: &BarRedOp, d: &Reg, id: &Src<Reg>, negated: &Inverted, p: &Reg) -> Result<()> {
        self.reduce_at_barrier(red_code(*op), d, id, None, *negated, p)
    }
    fn cluster_arrive(&mut self, sem: &ClusterArriveSem) -> Result<()> {
        let imm = i32::from(*sem == ClusterArriveSem::Release);
        self.emit::<ClusterArrive>(Operands { imm, ..Operands::NONE });
        Ok(())
    }
    fn cluster_wait(&mut self) -> Result<()> {
        self.emit::<ClusterWait>(Operands::NONE);
        Ok(())
    }
    fn cluster_arrive_apart(&mut self, sem: &ClusterArriveSem) -> Result<()> {
        let imm = i32::from(*sem == ClusterArriveSem::Release) | APART;
        self.emit::<ClusterArrive>(Operands { imm, ..Operands::NONE });
        Ok(())
    }
    fn cluster_wait_apart(&mut self) -> Result<()> {
        self.emit::<ClusterWait>(Operands {
            imm: APART,
            ..Operands::NONE
        });
        Ok(())
    }
    fn fence(&mut self, sem: &FenceSem, scope: &Scope) -> Result<()> {
        self.emit::<Fence>(Operands {
            imm: (*sem as i32) << 8 | *scope as i32,
            ..Operands::NONE
        });
        Ok(())
    }
    fn fence_shared(&mut self, sem: &SharedFence) -> Result<()> {
        // What it leaves out of global memory is not told apart.
        let sem = match sem {
            SharedFence::Release => FenceSem::Release,
            SharedFence::Acquire => FenceSem::Acquire,
        };
        self.fence(&sem, &Scope::Cluster)
    }
    fn fence_proxy(&mut self, proxy: &ProxyFence) -> Result<()> {
        self.emit::<FenceProxy>(Operands {
            imm: *proxy as i32,
            ..Operands::NONE
        });
        Ok(())
    }
    fn fence_map_release(&mut self, scope: &Scope) -> Result<()> {
        self.emit::<FenceMapRelease>(Operands {
            imm: *scope as i32,
            ..Operands::NONE
        });
        Ok(())
    }
    fn fence_map_acquire(&mut self, scope: &Scope, addr: &Addr<Reg>) -> Result<()> {
        self.emit::<FenceMapAcquire>(Operands {
            a: self.reg(&addr.base),
            c: *scope as u16,
            imm: addr.offset,
            ..Operands::NONE
        });
        Ok(())
    }
    fn fence_mbarrier_init(&mut self) -> Result<()> {
        self.emit::<FenceMbarrierInit>(Operands::NONE);
        Ok(())
    }
    fn grid_dep(&mut self, _action: &GridDep) -> Result<()> {
        self.emit::<Nothing>(Operands::NONE);
        Ok(())
    }

    // --------------------------------------------------------------------------------------------- mbarriers
    fn mbarrier_init(&mut self, addr: &Addr<Reg>, count: &Src<Reg>) -> Result<()> {
        self.mbarrier::<MbarrierInit>(addr, count, 0)
    }
    fn mbarrier_inval(&mut self, addr: &Addr<Reg>) -> Result<()> {
        self.mbarrier::<MbarrierInvalidate>(addr, &Src::u32(0), 0)
    }
    fn mbarrier_arrive(&mut self, addr: &Addr<Reg>, count: &Src<Reg>) -> Result<()> {
        self.mbarrier::<MbarrierArrive>(addr, count, ARRIVE)
    }
    fn mbarrier_arrive_cluster(&mut self, release: &Release, addr: &Addr<Reg>, count: &Src<Reg>) -> Result<()> {
        let wide = match release {
            Release::Cta => 0,
            Release::Cluster => WIDE,
        };
        self.mbarrier::<MbarrierArrive>(addr, count, ARRIVE | wide)
    }
    fn mbarrier_arrive_expect_tx(&mut self, addr: &Addr<Reg>, bytes: &Src<Reg>) -> Result<()> {
        self.mbarrier::<MbarrierArrive>(addr, bytes, ARRIVE_EXPECT)
    }
    fn mbarrier_arrive_expect_tx_cluster(&mut self, addr: &Addr<Reg>, bytes: &Src<Reg>) -> Result<()> {
        self.mbarrier::<MbarrierArrive>(addr, bytes, ARRIVE_EXPECT | WIDE)
    }
    fn mbarrier_expect_tx(&mut self, addr: &Addr<Reg>, bytes: &Src<Reg>) -> Result<()> {
        self.mbarrier::<MbarrierArrive>(addr, bytes, EXPECT)
    }
    fn mbarrier_test(&mut self, d: &Reg, addr: &Addr<Reg>, parity: &Src<Reg>) -> Result<()> {
        let b = self.src::<u32>(parity);
        let (d, a) = (self.reg(d), self.reg(&addr.base));
        self.emit::<MbarrierTest>(Operands {
            d,
            a,
            b,
            imm: addr.offset,
            ..Operands::NONE
        });
        Ok(())
    }
    fn mbarrier_wait(
        &mut self,
        acquire: &Acquire,
        _suspend: &Suspend,
        addr: &Addr<Reg>,
        parity: &Src<Reg>,
    ) -> Result<()> {
        self.mbarrier::<MbarrierWait>(addr, parity, acquired_scope(*acquire))
    }
    fn mbarrier_wait_for(
        &mut self,
        acquire: &Acquire,
        ok: &Reg,
        addr: &Addr<Reg>,
        parity: &Src<Reg>,
        _flag: &i64,
        ns: &i64,
    ) -> Result<()> {
        self.mbarrier::<MbarrierWait>(addr, parity, acquired_scope(*acquire))?;
        self.bounded(ok, *ns)
    }
    fn wait_tagged(&mut self, scope: &Scope, d: &Reg, addr: &Addr<Reg>, tag: &Src<Reg>) -> Result<()> {
        self.communicates = true;
        let (d, a, b) = (self.reg(d), self.src::<u64>(&Src::Reg(addr.base)), self.src::<u32>(tag));
        self.emit::<WaitForTag>(Operands {
            d,
            a,
            b,
            c: *scope as u16,
            imm: addr.offset,
            ..Operands::NONE
        });
        Ok(())
    }
    fn wait_tagged_for(
        &mut self,
        scope: &Scope,
        ok: &Reg,
        d: &Reg,
        addr: &Addr<Reg>,
        tag: &Src<Reg>,
        ns: &i64,
    ) -> Result<()> {
        self.wait_tagged(scope, d, addr, tag)?;
        self.bounded(ok, *ns)
    }
    fn wait_at_least_for(
        &mut self,
        scope: &Scope,
        ok: &Reg,
        addr: &Addr<Reg>,
        value: &Src<Reg>,
        ns: &i64,
    ) -> Result<()> {
        self.wait_at_least(scope, addr, value)?;
        self.bounded(ok, *ns)
    }
    fn wait_and_subtract_for(
        &mut self,
        scope: &Scope,
        ok: &Reg,
        addr: &Addr<Reg>,
        value: &Src<Reg>,
        ns: &i64,
    ) -> Result<()> {
        self.wait_and_subtract(scope, addr, value)?;
        self.bounded(ok, *ns)
    }
    fn wait_at_least(&mut self, scope: &Scope, addr: &Addr<Reg>, value: &Src<Reg>) -> Result<()> {
        self.communicates = true;
        self.wait_for_word(*scope, addr, value, 0)
    }
    fn wait_and_subtract(&mut self, scope: &Scope, addr: &Addr<Reg>, value: &Src<Reg>) -> Result<()> {
        self.communicates = true;
        self.wait_for_word(*scope, addr, value, 1)
    }

    fn mbarrier_count(
        &mut self,
        op: &MbarrierOp,
        sem: &ArriveSem,
        _space: &BarrierSpace,
        addr: &Addr<Reg>,
        count: &Src<Reg>,
    ) -> Result<()> {
        self.mbarrier_change(ARRIVE | arrival(*op, *sem), None, addr, count)
    }
    fn mbarrier_one(
        &mut self,
        op: &MbarrierOp,
        sem: &ArriveSem,
        _space: &BarrierSpace,
        addr: &Addr<Reg>,
    ) -> Result<()> {
        self.mbarrier_change(ARRIVE | arrival(*op, *sem), None, addr, &Src::u32(1))
    }
    fn mbarrier_one_expect_tx(
        &mut self,
        op: &MbarrierOp,
        sem: &ArriveSem,
        _space: &BarrierSpace,
        addr: &Addr<Reg>,
        bytes: &Src<Reg>,
    ) -> Result<()> {
        self.mbarrier_change(ARRIVE_EXPECT | arrival(*op, *sem), None, addr, bytes)
    }
    fn mbarrier_count_state(
        &mut self,
        op: &MbarrierOp,
        sem: &ArriveSem,
        state: &Reg,
        addr: &Addr<Reg>,
        count: &Src<Reg>,
    ) -> Result<()> {
        self.mbarrier_change(ARRIVE | arrival(*op, *sem), Some(state), addr, count)
    }
    fn mbarrier_one_state(&mut self, op: &MbarrierOp, sem: &ArriveSem, state: &Reg, addr: &Addr<Reg>) -> Result<()> {
        self.mbarrier_change(ARRIVE | arrival(*op, *sem), Some(state), addr, &Src::u32(1))
    }
    fn mbarrier_expect_tx_state(
        &mut self,
        op: &MbarrierOp,
        sem: &ArriveSem,
        state: &Reg,
        addr: &Addr<Reg>,
        bytes: &Src<Reg>,
    ) -> Result<()> {
        self.mbarrier_change(ARRIVE_EXPECT | arrival(*op, *sem), Some(state), addr, bytes)
    }
    fn mbarrier_no_complete(
        &mut self,
        op: &MbarrierOp,
        sem: &ArriveSem,
        state: &Reg,
        addr: &Addr<Reg>,
        count: &Src<Reg>,
    ) -> Result<()> {
        self.mbarrier_change(ARRIVE | NO_COMPLETE | arrival(*op, *sem), Some(state), addr, count)
    }
    fn mbarrier_tx(
        &mut self,
        op: &TxOp,
        _scope: &TxScope,
        _space: &BarrierSpace,
        addr: &Addr<Reg>,
        bytes: &Src<Reg>,
    ) -> Result<()> {
        let what = match op {
            TxOp::Expect => EXPECT,
            TxOp::Complete => COMPLETE,
        };
        self.mbarrier_change(what, None, addr, bytes)
    }
    fn mbarrier_ask(
        &mut self,
        _ask: &modifier::MbarrierAsk,
        sem: &AskSem,
        d: &Reg,
        addr: &Addr<Reg>,
        state: &Reg,
    ) -> Result<()> {
        let b = self.reg(state);
        self.ask(*sem, d, addr, b, 1)
    }
    fn mbarrier_ask_parity(
        &mut self,
        _ask: &modifier::MbarrierAsk,
        sem: &AskSem,
        d: &Reg,
        addr: &Addr<Reg>,
        parity: &Src<Reg>,
    ) -> Result<()> {
        let b = self.src::<u32>(parity);
        self.ask(*sem, d, addr, b, 0)
    }
    fn mbarrier_try_for(
        &mut self,
        sem: &AskSem,
        d: &Reg,
        addr: &Addr<Reg>,
        state: &Reg,
        _hint: &Src<Reg>,
    ) -> Result<()> {
        let b = self.reg(state);
        self.ask(*sem, d, addr, b, 1)
    }
    fn mbarrier_try_parity_for(
        &mut self,
        sem: &AskSem,
        d: &Reg,
        addr: &Addr<Reg>,
        parity: &Src<Reg>,
        _hint: &Src<Reg>,
    ) -> Result<()> {
        let b = self.src::<u32>(parity);
        self.ask(*sem, d, addr, b, 0)
    }
    fn mbarrier_pending_count(&mut self, d: &Reg, state: &Reg) -> Result<()> {
        self.op1::<High32>(d, &Src::Reg(*state), 0)
    }

    // ------------------------------------------------------------------------------------------- bulk copies
    fn bulk_load(&mut self, dst: &Addr<Reg>, src: &Addr<Reg>, bytes: &Src<Reg>, bar: &Addr<Reg>) -> Result<()> {
        let bytes = self.src::<u32>(bytes);
        let (shared, other, barrier) = (self.at(dst), self.at(src), self.at(bar));
        self.bulk(BulkOp {
            shared,
            other,
            barrier,
            bytes,
            ..BulkOp::of(BulkKind::Load)
        })
    }
    fn bulk_load_multicast(
        &mut self,
        dst: &Addr<Reg>,
        src: &Addr<Reg>,
        bytes: &Src<Reg>,
        bar: &Addr<Reg>,
        mask: &Reg,
    ) -> Result<()> {
        let bytes = self.src::<u32>(bytes);
        let (shared, other, barrier) = (self.at(dst), self.at(src), self.at(bar));
        let mask = Some(self.reg(mask));
        self.bulk(BulkOp {
            shared,
            other,
            barrier,
            bytes,
            mask,
            ..BulkOp::of(BulkKind::Load)
        })
    }
    fn bulk_store(&mut self, dst: &Addr<Reg>, src: &Addr<Reg>, bytes: &Src<Reg>) -> Result<()> {
        let bytes = self.src::<u32>(bytes);
        let (shared, other) = (self.at(src), self.at(dst));
        self.bulk(BulkOp {
            shared,
            other,
            bytes,
            ..BulkOp::of(BulkKind::Store)
        })
    }
    fn bulk_reduce(&mut self, op: &BulkRed, dst: &Addr<Reg>, src: &Addr<Reg>, bytes: &Src<Reg>) -> Result<()> {
        self.communicates = true;
        let bytes = self.src::<u32>(bytes);
        let (shared, other) = (self.at(src), self.at(dst));
        self.bulk(BulkOp {
            shared,
            other,
            bytes,
            reduce_elements: Some(op.parts()),
            ..BulkOp::of(BulkKind::Store)
        })
    }
    fn bulk_copy_cluster(&mut self, dst: &Addr<Reg>, src: &Addr<Reg>, bytes: &Src<Reg>, bar: &Addr<Reg>) -> Result<()> {
        let bytes = self.src::<u32>(bytes);
        let (shared, other, barrier) = (self.at(dst), self.at(src), self.at(bar));
        self.bulk(BulkOp {
            shared,
            other,
            barrier,
            bytes,
            ..BulkOp::of(BulkKind::Copy)
        })
    }
    fn bulk_prefetch(&mut self, src: &Addr<Reg>, bytes: &Src<Reg>) -> Result<()> {
        let bytes = self.src::<u32>(bytes);
        let other = self.at(src);
        self.bulk(BulkOp {
            other,
            bytes,
            ..BulkOp::of(BulkKind::Prefetch)
        })
    }
    fn tensor_load(&mut self, dst: &Addr<Reg>, map: &Reg, coords: &Srcs<Reg>, bar: &Addr<Reg>) -> Result<()> {
        let coords = self.coords(coords)?;
        let (shared, barrier, map) = (self.at(dst), self.at(bar), self.reg(map));
        self.bulk(BulkOp {
            shared,
            barrier,
            map,
            coords,
            ..BulkOp::of(BulkKind::TensorLoad)
        })
    }
    fn tensor_load_multicast(
        &mut self,
        dst: &Addr<Reg>,
        map: &Reg,
        coords: &Srcs<Reg>,
        bar: &Addr<Reg>,
        mask: &Reg,
    ) -> Result<()> {
        let coords = self.coords(coords)?;
        let (shared, barrier, map) = (self.at(dst), self.at(bar), self.reg(map));
        let mask = Some(self.reg(mask));
        self.bulk(BulkOp {
            shared,
            barrier,
            map,
            coords,
            mask,
            ..BulkOp::of(BulkKind::TensorLoad)
        })
    }
    fn tensor_store(&mut self, map: &Reg, coords: &Srcs<Reg>, src: &Addr<Reg>) -> Result<()> {
        let coords = self.coords(coords)?;
        let (shared, map) = (self.at(src), self.reg(map));
        self.bulk(BulkOp {
            shared,
            map,
            coords,
            ..BulkOp::of(BulkKind::TensorStore)
        })
    }
    fn tensor_reduce(&mut self, op: &TensorRed, map: &Reg, coords: &Srcs<Reg>, src: &Addr<Reg>) -> Result<()> {
        self.communicates = true;
        let coords = self.coords(coords)?;
        let (shared, map) = (self.at(src), self.reg(map));
        self.bulk(BulkOp {
            shared,
            map,
            coords,
            reduce: Some(*op),
            ..BulkOp::of(BulkKind::TensorStore)
        })
    }
    fn tensor_prefetch(&mut self, map: &Reg, coords: &Srcs<Reg>) -> Result<()> {
        let coords = self.coords(coords)?;
        let map = self.reg(map);
        self.bulk(BulkOp {
            map,
            coords,
            ..BulkOp::of(BulkKind::TensorPrefetch)
        })
    }
    fn prefetch_tensormap(&mut self, _map: &Reg) -> Result<()> {
        self.emit::<Nothing>(Operands::NONE);
        Ok(())
    }
    fn replace_map_address(&mut self, addr: &Addr<Reg>, new: &Src<Reg>) -> Result<()> {
        let b = self.src::<u64>(new);
        self.emit::<ReplaceMapAddress>(Operands {
            a: self.reg(&addr.base),
            b,
            imm: addr.offset,
            ..Operands::NONE
        });
        Ok(())
    }
    fn bulk_commit(&mut self) -> Result<()> {
        self.emit::<BulkCommit>(Operands::NONE);
        Ok(())
    }
    fn bulk_wait(&mut self, what: &crate::ptx::modifier::BulkWait, n: &i64) -> Result<()> {
        let c = u16::from(*what == crate::ptx::modifier::BulkWait::Read);
        self.emit::<BulkWait>(Operands {
            c,
            imm: *n as i32,
            ..Operands::NONE
        });
        Ok(())
    }

    // ------------------------------------------------------------------------------------------ tensor cores
    fn wgmma_fence(&mut self, _acc: &Tied<Reg>) -> Result<()> {
        self.emit::<WgmmaFence>(Operands::NONE);
        Ok(())
    }
    fn wgmma_commit(&mut self) -> Result<()> {
        self.emit::<WgmmaCommit>(Operands::NONE);
        Ok(())
    }
    fn wgmma_wait(&mut self, n: &i64, _acc: &Tied<Reg>) -> Result<()> {
        self.emit::<WgmmaWait>(Operands {
            imm: *n as i32,
            ..Operands::NONE
        });
        Ok(())
    }
    fn wgmma_half_ss(
        &mut self,
        ty: &WgmmaTypes,
        acc_ty: &AccType,
        n: &i64,
        acc: &Tied<Reg>,
        a: &Reg,
        b: &Reg,
        scale_d: &Reg,
        neg_a: &i64,
        neg_b: &i64,
        trans_a: &i64,
        trans_b: &i64,
    ) -> Result<()> {
        let a = AOperand::Shared(self.reg(a));
        self.matmul(
            float_kind(*ty, *acc_ty),
            *n,
            acc,
            a,
            b,
            scale_d,
            [*neg_a, *neg_b],
            [*trans_a, *trans_b],
            None,
        )
    }
    fn wgmma_half_rs(
        &mut self,
        ty: &WgmmaTypes,
        acc_ty: &AccType,
        n: &i64,
        acc: &Tied<Reg>,
        a: &Srcs<Reg>,
        b: &Reg,
        scale_d: &Reg,
        neg_a: &i64,
        neg_b: &i64,
        trans_b: &i64,
    ) -> Result<()> {
        let a = self.a_registers(a)?;
        self.matmul(
            float_kind(*ty, *acc_ty),
            *n,
            acc,
            a,
            b,
            scale_d,
            [*neg_a, *neg_b],
            [0, *trans_b],
            None,
        )
    }
    fn wgmma_float_ss(
        &mut self,
        ty: &WgmmaTypes,
        acc_ty: &AccType,
        n: &i64,
        _k: &i64,
        acc: &Tied<Reg>,
        a: &Reg,
        b: &Reg,
        scale_d: &Reg,
        neg_a: &i64,
        neg_b: &i64,
    ) -> Result<()> {
        let a = AOperand::Shared(self.reg(a));
        self.matmul(
            float_kind(*ty, *acc_ty),
            *n,
            acc,
            a,
            b,
            scale_d,
            [*neg_a, *neg_b],
            [0, 0],
            None,
        )
    }
    fn wgmma_float_rs(
        &mut self,
        ty: &WgmmaTypes,
        acc_ty: &AccType,
        n: &i64,
        _k: &i64,
        acc: &Tied<Reg>,
        a: &Srcs<Reg>,
        b: &Reg,
        scale_d: &Reg,
        neg_a: &i64,
        neg_b: &i64,
    ) -> Result<()> {
        let a = self.a_registers(a)?;
        self.matmul(
            float_kind(*ty, *acc_ty),
            *n,
            acc,
            a,
            b,
            scale_d,
            [*neg_a, *neg_b],
            [0, 0],
            None,
        )
    }
    fn wgmma_int_ss(
        &mut self,
        ty: &WgmmaTypes,
        sat: &SatFinite,
        n: &i64,
        acc: &Tied<Reg>,
        a: &Reg,
        b: &Reg,
        scale_d: &Reg,
    ) -> Result<()> {
        let a = AOperand::Shared(self.reg(a));
        self.matmul(int_kind(*ty, *sat), *n, acc, a, b, scale_d, [1, 1], [0, 0], None)
    }
    fn wgmma_int_rs(
        &mut self,
        ty: &WgmmaTypes,
        sat: &SatFinite,
        n: &i64,
        acc: &Tied<Reg>,
        a: &Srcs<Reg>,
        b: &Reg,
        scale_d: &Reg,
    ) -> Result<()> {
        let a = self.a_registers(a)?;
        self.matmul(int_kind(*ty, *sat), *n, acc, a, b, scale_d, [1, 1], [0, 0], None)
    }
    fn wgmma_sparse_half_ss(
        &mut self,
        ty: &WgmmaTypes,
        acc_ty: &AccType,
        n: &i64,
        acc: &Tied<Reg>,
        a: &Reg,
        b: &Reg,
        meta: &Reg,
        sel: &i64,
        scale_d: &Reg,
        neg_a: &i64,
        neg_b: &i64,
        trans_a: &i64,
        trans_b: &i64,
    ) -> Result<()> {
        let a = AOperand::Shared(self.reg(a));
        self.matmul(
            float_kind(*ty, *acc_ty),
            *n,
            acc,
            a,
            b,
            scale_d,
            [*neg_a, *neg_b],
            [*trans_a, *trans_b],
            Some((meta, *sel)),
        )
    }
    fn wgmma_sparse_half_rs(
        &mut self,
        ty: &WgmmaTypes,
        acc_ty: &AccType,
        n: &i64,
        acc: &Tied<Reg>,
        a: &Srcs<Reg>,
        b: &Reg,
        meta: &Reg,
        sel: &i64,
        scale_d: &Reg,
        neg_a: &i64,
        neg_b: &i64,
        trans_b: &i64,
    ) -> Result<()> {
        let a = self.a_registers(a)?;
        self.matmul(
            float_kind(*ty, *acc_ty),
            *n,
            acc,
            a,
            b,
            scale_d,
            [*neg_a, *neg_b],
            [0, *trans_b],
            Some((meta, *sel)),
        )
    }
    fn wgmma_sparse_float_ss(
        &mut self,
        ty: &WgmmaTypes,
        acc_ty: &AccType,
        n: &i64,
        _k: &i64,
        acc: &Tied<Reg>,
        a: &Reg,
        b: &Reg,
        meta: &Reg,
        sel: &i64,
        scale_d: &Reg,
        neg_a: &i64,
        neg_b: &i64,
    ) -> Result<()> {
        let a = AOperand::Shared(self.reg(a));
        self.matmul(
            float_kind(*ty, *acc_ty),
            *n,
            acc,
            a,
            b,
            scale_d,
            [*neg_a, *neg_b],
            [0, 0],
            Some((meta, *sel)),
        )
    }
    fn wgmma_sparse_float_rs(
        &mut self,
        ty: &WgmmaTypes,
        acc_ty: &AccType,
        n: &i64,
        _k: &i64,
        acc: &Tied<Reg>,
        a: &Srcs<Reg>,
        b: &Reg,
        meta: &Reg,
        sel: &i64,
        scale_d: &Reg,
        neg_a: &i64,
        neg_b: &i64,
    ) -> Result<()> {
        let a = self.a_registers(a)?;
        self.matmul(
            float_kind(*ty, *acc_ty),
            *n,
            acc,
            a,
            b,
            scale_d,
            [*neg_a, *neg_b],
            [0, 0],
            Some((meta, *sel)),
        )
    }
    fn wgmma_sparse_int_ss(
        &mut self,
        ty: &WgmmaTypes,
        sat: &SatFinite,
        n: &i64,
        acc: &Tied<Reg>,
        a: &Reg,
        b: &Reg,
        meta: &Reg,
        sel: &i64,
        scale_d: &Reg,
    ) -> Result<()> {
        let a = AOperand::Shared(self.reg(a));
        let sparse = Some((meta, *sel));
        self.matmul(int_kind(*ty, *sat), *n, acc, a, b, scale_d, [1, 1], [0, 0], sparse)
    }
    fn wgmma_sparse_int_rs(
        &mut self,
        ty: &WgmmaTypes,
        sat: &SatFinite,
        n: &i64,
        acc: &Tied<Reg>,
        a: &Srcs<Reg>,
        b: &Reg,
        meta: &Reg,
        sel: &i64,
        scale_d: &Reg,
    ) -> Result<()> {
        let a = self.a_registers(a)?;
        let sparse = Some((meta, *sel));
        self.matmul(int_kind(*ty, *sat), *n, acc, a, b, scale_d, [1, 1], [0, 0], sparse)
    }
    fn mma_sync(
        &mut self,
        _shape: &MmaShape,
        sat: &SatFinite,
        ty: &MmaTypes,
        d: &Regs<Reg>,
        a: &Srcs<Reg>,
        b: &Srcs<Reg>,
        c: &Srcs<Reg>,
    ) -> Result<()> {
        let Some(arithmetic) = mma_arithmetic(*ty, *sat) else {
            return self.no("mma.sync of this type");
        };
        self.mma::<u32>(Product::Dense(arithmetic), d, [a, b, c])
    }
    fn mma_bits(
        &mut self,
        _shape: &MmaBitShape,
        op: &BitProduct,
        d: &Regs<Reg>,
        a: &Srcs<Reg>,
        b: &Srcs<Reg>,
        c: &Srcs<Reg>,
    ) -> Result<()> {
        let join = match op {
            BitProduct::And => BitJoin::And,
            BitProduct::Xor => BitJoin::Xor,
        };
        self.mma::<u32>(Product::Dense(Arithmetic::Bits(join)), d, [a, b, c])
    }
    fn mma_f64(
        &mut self,
        _shape: &MmaF64Shape,
        rnd: &MmaF64Round,
        d: &Regs<Reg>,
        a: &Srcs<Reg>,
        b: &Srcs<Reg>,
        c: &Srcs<Reg>,
    ) -> Result<()> {
        let rounding = match rnd {
            MmaF64Round::Rn => Rounding::NearestEven,
            MmaF64Round::Rz => Rounding::TowardZero,
            MmaF64Round::Rm => Rounding::Down,
            MmaF64Round::Rp => Rounding::Up,
        };
        self.mma::<u64>(Product::Doubles(rounding), d, [a, b, c])
    }
    fn mma_quads(
        &mut self,
        a_major: &MmaMajor,
        b_major: &MmaMajor,
        ty: &MmaQuadTypes,
        d: &Regs<Reg>,
        a: &Srcs<Reg>,
        b: &Srcs<Reg>,
        c: &Srcs<Reg>,
    ) -> Result<()> {
        let has = [a_major, b_major].map(|major| match major {
            MmaMajor::Row => LaneHas::Row,
            MmaMajor::Col => LaneHas::Column,
        });
        let types = match ty {
            MmaQuadTypes::F32 => QuadTypes::F32,
            MmaQuadTypes::F32OfF16 => QuadTypes::F32OfF16,
            MmaQuadTypes::F16 => QuadTypes::F16,
        };
        self.mma::<u32>(Product::Quads(has, types), d, [a, b, c])
    }
    fn mma_sparse(
        &mut self,
        order: &MetadataOrder,
        _shape: &MmaShape,
        sat: &SatFinite,
        ty: &MmaTypes,
        d: &Regs<Reg>,
        a: &Srcs<Reg>,
        b: &Srcs<Reg>,
        c: &Srcs<Reg>,
        meta: &Reg,
        selector: &i64,
    ) -> Result<()> {
        let Some(arithmetic) = mma_arithmetic(*ty, *sat) else {
            return self.no("mma.sp of this type");
        };
        let sparsity = Sparsity {
            unit: if ty.element_bits() < 16 { 1 } else { 2 },
            selector: *selector as usize,
            ordered: match order {
                MetadataOrder::Ordered => true,
                MetadataOrder::Any => false,
            },
            whole_pairs: ty.element_bits() == 32,
        };
        let meta = self.reg(meta);
        let product = Product::Sparse {
            arithmetic,
            sparsity,
            meta,
        };
        self.mma::<u32>(product, d, [a, b, c])
    }
}

/// What is computed of these types.
fn mma_arithmetic(ty: MmaTypes, sat: SatFinite) -> Option<Arithmetic> {
    use MmaElement::*;
    let saturates = sat == SatFinite::Yes;
    let integers = if saturates {
        Accumulator::S32Saturating
    } else {
        Accumulator::S32
    };
    let step = |a, b, accumulator| TensorKind::new(a, b, accumulator).map(Arithmetic::Step);
    let fp8 = |a, b, accumulator| Some(Arithmetic::Fp8 { a, b, accumulator });
    let nibbles = |a_signed, b_signed| {
        Some(Arithmetic::Nibbles {
            a_signed,
            b_signed,
            saturates,
        })
    };
    match ty {
        MmaTypes::F16 => step(F16, F16, Accumulator::F32),
        MmaTypes::F16Half => step(F16, F16, Accumulator::F16),
        MmaTypes::BF16 => step(Bf16, Bf16, Accumulator::F32),
        MmaTypes::TF32 => step(Tf32, Tf32, Accumulator::F32),
        MmaTypes::S8S8 => step(S8, S8, integers),
        MmaTypes::S8U8 => step(S8, U8, integers),
        MmaTypes::U8S8 => step(U8, S8, integers),
        MmaTypes::U8U8 => step(U8, U8, integers),
        MmaTypes::S4S4 => nibbles(true, true),
        MmaTypes::S4U4 => nibbles(true, false),
        MmaTypes::U4S4 => nibbles(false, true),
        MmaTypes::U4U4 => nibbles(false, false),
        MmaTypes::E4M3E4M3 => fp8(Fp8::E4m3, Fp8::E4m3, Accumulator::F32),
        MmaTypes::E4M3E5M2 => fp8(Fp8::E4m3, Fp8::E5m2, Accumulator::F32),
        MmaTypes::E5M2E4M3 => fp8(Fp8::E5m2, Fp8::E4m3, Accumulator::F32),
        MmaTypes::E5M2E5M2 => fp8(Fp8::E5m2, Fp8::E5m2, Accumulator::F32),
        MmaTypes::E4M3E4M3Half => fp8(Fp8::E4m3, Fp8::E4m3, Accumulator::F16),
        MmaTypes::E4M3E5M2Half => fp8(Fp8::E4m3, Fp8::E5m2, Accumulator::F16),
        MmaTypes::E5M2E4M3Half => fp8(Fp8::E5m2, Fp8::E4m3, Accumulator::F16),
        MmaTypes::E5M2E5M2Half => fp8(Fp8::E5m2, Fp8::E5m2, Accumulator::F16),
    }
}

impl<H: Hooks> Decoder<'_, H> {
    fn mma<T: Lane>(&mut self, product: Product, d: &Regs<Reg>, operands: [&Srcs<Reg>; 3]) -> Result<()> {
        let [a, b, c] = operands.map(|list| list.iter().map(|s| self.src::<T>(s)).collect());
        let d = d.iter().map(|r| self.reg(r)).collect();
        let aux = self.mma_ops.len() as u32;
        self.mma_ops.push(MmaOp { product, d, a, b, c });
        self.emit::<Mma>(Operands { aux, ..Operands::NONE });
        Ok(())
    }
}

/// The flags of an arrival.
fn arrival(op: MbarrierOp, sem: ArriveSem) -> u16 {
    let drops = match op {
        MbarrierOp::Arrive => 0,
        MbarrierOp::ArriveDrop => DROPS,
    };
    let order = match sem {
        ArriveSem::Default | ArriveSem::ReleaseCta => 0,
        ArriveSem::ReleaseCluster => WIDE,
        ArriveSem::RelaxedCta | ArriveSem::RelaxedCluster => RELAXED,
    };
    drops | order
}

fn red_code(op: BarRedOp) -> i32 {
    match op {
        BarRedOp::And => RED_AND,
        BarRedOp::Or => RED_OR,
    }
}

fn half_reduction(op: HalfRedOp, ty: HalfType) -> (AtomOp, AtomType) {
    let op = match op {
        HalfRedOp::Add => AtomOp::Add,
        HalfRedOp::Min => AtomOp::Min,
        HalfRedOp::Max => AtomOp::Max,
    };
    let ty = match ty {
        HalfType::F16 => AtomType::F16,
        HalfType::BF16 => AtomType::BF16,
        HalfType::F16x2 => AtomType::F16x2,
        HalfType::BF16x2 => AtomType::BF16x2,
    };
    (op, ty)
}

impl<H: Hooks> Decoder<'_, H> {
    /// An atomic of adjacent elements; with their old values, where `d` is for them.
    fn atomic_vector(
        &mut self,
        (sem, scope): (AtomSem, Scope),
        (op, ty): (AtomOp, AtomType),
        d: Option<&Regs<Reg>>,
        addr: &Addr<Reg>,
        a: &Srcs<Reg>,
    ) -> Result<()> {
        self.communicates = true;
        let bytes = atom_bytes(ty);
        let mut list = self.sources(a, if bytes == 2 { MemType::B16 } else { MemType::B32 });
        list.extend(d.into_iter().flatten().map(|r| self.reg(r)));
        let o = Operands {
            d: u16::from(d.is_some()),
            a: self.reg(&addr.base),
            b: (scope as u16) << 8 | sem as u16,
            c: atom_code(Some(op), ty),
            imm: addr.offset,
            aux: self.list(list),
        };
        match (bytes, a.len()) {
            (2, 2) => self.emit::<AtomicVector<Word16, 2, 4>>(o),
            (2, 4) => self.emit::<AtomicVector<Word16, 4, 8>>(o),
            (4, 2) => self.emit::<AtomicVector<Word32, 2, 8>>(o),
            (4, 4) => self.emit::<AtomicVector<Word32, 4, 16>>(o),
            (_, n) => return self.no(format!("red.v{n}.{}", ty.text())),
        }
        Ok(())
    }

    fn small_copy(&mut self, dst: &Addr<Reg>, src: &Addr<Reg>, bytes: i64, taken: u16) {
        self.emit::<CopyAsync>(Operands {
            d: bytes as u16,
            a: self.reg(&dst.base),
            b: self.reg(&src.base),
            c: taken,
            imm: dst.offset,
            aux: src.offset as u32,
        });
    }

    fn reduce_at_barrier(
        &mut self,
        what: i32,
        d: &Reg,
        id: &Src<Reg>,
        threads: Option<&Src<Reg>>,
        negated: Inverted,
        p: &Reg,
    ) -> Result<()> {
        let all = Src::u32(self.flat.launch.block);
        let (a, b) = (self.src::<u32>(id), self.src::<u32>(threads.unwrap_or(&all)));
        let negated = if negated == Inverted::Yes { RED_NEGATED } else { 0 };
        self.emit::<NamedBarrier>(Operands {
            d: self.reg(d),
            a,
            b,
            c: self.reg(p),
            imm: 1 | what | negated,
            ..Operands::NONE
        });
        Ok(())
    }

    fn mbarrier_change(&mut self, c: u16, state: Option<&Reg>, addr: &Addr<Reg>, value: &Src<Reg>) -> Result<()> {
        let b = self.src::<u32>(value);
        self.emit::<MbarrierChange>(Operands {
            d: state.map_or(NO_STATE, |r| self.reg(r)),
            a: self.reg(&addr.base),
            b,
            c,
            imm: addr.offset,
            ..Operands::NONE
        });
        Ok(())
    }

    fn ask(&mut self, sem: AskSem, d: &Reg, addr: &Addr<Reg>, b: u16, of_state: u16) -> Result<()> {
        let scope = match sem {
            AskSem::Default | AskSem::AcquireCta => Scope::Cta as u16 + 1,
            AskSem::AcquireCluster => Scope::Cluster as u16 + 1,
            AskSem::RelaxedCta | AskSem::RelaxedCluster => 0,
        };
        self.emit::<MbarrierAsk>(Operands {
            d: self.reg(d),
            a: self.reg(&addr.base),
            b,
            c: of_state | scope << 1,
            imm: addr.offset,
            ..Operands::NONE
        });
        Ok(())
    }

    fn wait_for_word(&mut self, scope: Scope, addr: &Addr<Reg>, value: &Src<Reg>, takes: u16) -> Result<()> {
        self.mbarrier::<WaitForWord>(addr, value, takes | (scope as u16) << 1)
    }

    #[allow(clippy::too_many_arguments)]
    fn atomic(
        &mut self,
        (sem, scope): (AtomSem, Scope),
        space: Space_,
        op: Option<AtomOp>,
        ty: AtomType,
        d: u16,
        addr: &Addr<Reg>,
        a: &Src<Reg>,
        b: Option<&Src<Reg>>,
    ) -> Result<()> {
        let shared = is_shared(space);
        self.communicates |= !shared;
        let bytes = atom_bytes(ty);
        let mut operand = |s: &Src<Reg>| match bytes {
            2 => self.src16(s),
            8 => self.src::<u64>(s),
            _ => self.src::<u32>(s),
        };
        let value = operand(a);
        let replacement = b.map_or(0, &mut operand);
        let o = Operands {
            d,
            a: self.reg(&addr.base),
            b: value,
            c: atom_code(op, ty),
            imm: addr.offset,
            aux: u32::from(replacement) | (scope as u32) << 16 | (sem as u32) << 24,
        };
        match (bytes, shared) {
            (2, true) => self.emit::<Atomic<SharedCta, Word16>>(o),
            (2, false) => self.emit::<Atomic<Global, Word16>>(o),
            (4, true) => self.emit::<Atomic<SharedCta, Word32>>(o),
            (4, false) => self.emit::<Atomic<Global, Word32>>(o),
            (_, true) => self.emit::<Atomic<SharedCta, Word64>>(o),
            (_, false) => self.emit::<Atomic<Global, Word64>>(o),
        }
        Ok(())
    }
}

impl BulkOp {
    fn of(kind: BulkKind) -> BulkOp {
        BulkOp {
            kind,
            shared: (0, 0),
            other: (0, 0),
            bytes: 0,
            barrier: (0, 0),
            mask: None,
            map: 0,
            coords: vec![],
            reduce: None,
            reduce_elements: None,
            values: vec![],
            value_bytes: 0,
        }
    }
}

/// Decoded programs are shared between threads.
const _: () = {
    const fn shared<T: Send + Sync>() {}
    shared::<Program>();
    let _ = Flow::Next;
};
