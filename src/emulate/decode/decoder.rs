//! The decoder: what it goes through, what it collects, and how operands become rows.
use super::Hooks;
use crate::emulate::control::*;
use crate::emulate::program::{Branch as BranchTargets, Origin, Program};
use crate::emulate::registers::{self, Allocation};
use crate::emulate::row::Row;
use crate::emulate::uop::{Body, Each, Each2, Each3, Op1, Op2, Op3, OpFn, Tier, Uop, pick};
use crate::emulate::warp::CONSTANT;
use crate::error::{Error, Fault, Loc, Result};
use crate::ptx::flat::{BlockId, Guard, Reg, Terminator, Uniformity};
use crate::ptx::operand::{Class, Slot, Src};
use crate::ptx::{Flat, requirements, verify_flat};
use crate::target::Target;
use rustc_hash::{FxHashMap, FxHashSet};

/// Decodes a kernel.
pub fn run<H: Hooks>(flat: &Flat, tier: Tier) -> Result<Program<H>> {
    let target = requirements::check(flat)?;
    check_asynchronous_registers(flat)?;
    let allocation = registers::run(flat)?;
    let mut cx = Decoder::<H>::new(flat, target, tier, allocation);
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
        starts.push(cx.program.code.len() as u32);
        if joins.contains(&BlockId(i as u32)) {
            let here = cx.program.code.len() as u32;
            cx.emit::<Join>(NONE.aux(here));
        }
        for inst in &block.insts {
            cx.loc = inst.loc;
            cx.row = None;
            cx.guard(inst.guard);
            cx.row = Some(inst.inst.row() as u16);
            cx.spares = 0;
            cx.spare_predicates = 0;
            cx.instruction(&inst.inst).map_err(|e| e.at(inst.loc))?;
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
    for branch in &mut cx.program.branches {
        branch.then = start(branch.then)?;
        branch.otherwise = start(branch.otherwise)?;
        if branch.join != u32::MAX {
            branch.join = start(branch.join)?;
        }
    }
    for at in std::mem::take(&mut cx.jumps) {
        cx.program.code[at].aux = start(cx.program.code[at].aux)?;
    }
    Ok(cx.program)
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
pub struct Operands {
    pub d: u16,
    pub a: u16,
    pub b: u16,
    pub c: u16,
    pub imm: i32,
    pub aux: u32,
}

/// None of them: what there is follows, `NONE.d(d).a(a)`.
pub const NONE: Operands = Operands {
    d: 0,
    a: 0,
    b: 0,
    c: 0,
    imm: 0,
    aux: 0,
};

macro_rules! operands {
    ($($name:ident: $t:ty),*) => {
        impl Operands {
            $( pub fn $name(self, $name: $t) -> Operands { Operands { $name, ..self } } )*
        }
    };
}
operands!(d: u16, a: u16, b: u16, c: u16, imm: i32, aux: u32);

impl Operands {
    /// The address `[a + imm]`.
    pub fn at(self, (a, imm): At) -> Operands {
        self.a(a).imm(imm)
    }
}

/// Methods of rows that become one micro-op: their fields, the body, its operands, and an address where it has one.
macro_rules! micro_ops {
    ($($method:ident($($field:tt: $t:ty),*) = $Body:ty { $($name:ident $(: $value:expr)?),* } $(at $addr:ident)?;)+) => {
        impl<H: Hooks> Decoder<'_, H> {$(
            #[allow(clippy::needless_update, reason = "a row may have all operands")]
            pub fn $method(&mut self, $($field: $t),*) {
                self.emit::<$Body>(Operands { $($name $(: $value)?,)* ..NONE$(.at($addr))? });
            }
        )+}
    };
}
pub(super) use micro_ops;

/// An address: the row of its base, and what is added.
pub type At = (u16, i32);
/// Rows of a list of operands.
pub type List = Vec<u16>;

/// What a row that computes becomes: a body, and its operands but for `d`.
pub struct Computed<H: Hooks> {
    pub pick: fn(Tier) -> OpFn<H>,
    pub operands: Operands,
}

/// There is no such instruction, though the fields' types allow one.
pub fn no<T>(what: impl Into<String>) -> Result<T> {
    Err(Error::internal(format!("{}: no such instruction in PTX", what.into())))
}

pub struct Decoder<'a, H: Hooks> {
    /// What is made.
    pub program: Program<H>,
    pub flat: &'a Flat,
    pub tier: Tier,
    allocation: Allocation,
    constant_at: FxHashMap<(u64, bool), u16>,
    /// The number of every list of accumulator registers.
    pub accumulators: FxHashMap<Vec<u16>, u32>,
    /// Branches whose `aux` is a block.
    jumps: Vec<usize>,
    /// The guard that the code at the end is under, and its `GuardBegin`.
    open: Option<(Guard, usize)>,
    loc: Loc,
    row: Option<u16>,
    /// Rows behind the registers' for constants beyond what operands can name: those of the instruction at hand.
    spares: usize,
    /// Of the two predicates behind the registers', those that hold constants of the instruction at hand.
    spare_predicates: u16,
}

impl<'a, H: Hooks> Decoder<'a, H> {
    fn new(flat: &'a Flat, target: Target, tier: Tier, allocation: Allocation) -> Self {
        let program = Program {
            launch: flat.launch.clone(),
            code: vec![],
            origins: vec![],
            constants: vec![],
            register_rows: allocation.rows,
            // Two more for constants.
            predicates: allocation.predicates + 2,
            lists: vec![],
            branches: vec![],
            matmuls: vec![],
            mma_ops: vec![],
            bulk_ops: vec![],
            tensor_ops: vec![],
            transfers: vec![],
            has_tensor_memory: false,
            checks: vec![],
            unknown: vec![],
            timeouts: vec![],
            communicates: false,
            target,
            min_ctas_per_sm: flat.min_ctas_per_sm,
            reallocates: false,
        };
        Decoder {
            program,
            flat,
            tier,
            allocation,
            constant_at: FxHashMap::default(),
            accumulators: FxHashMap::default(),
            jumps: vec![],
            open: None,
            loc: Loc::CALL_SITE,
            row: None,
            spares: 0,
            spare_predicates: 0,
        }
    }

    pub fn emit<B: Body<H>>(&mut self, o: Operands) {
        self.emit_fn(pick::<B, H>(self.tier), o);
    }

    #[inline(never)]
    pub fn emit_fn(&mut self, run: OpFn<H>, o: Operands) {
        let Operands { d, a, b, c, imm, aux } = o;
        self.program.code.push(Uop {
            run,
            d,
            a,
            b,
            c,
            imm,
            aux,
        });
        self.program.origins.push(Origin {
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
            self.emit::<GuardEnd>(NONE);
            self.program.code[begin].aux = self.program.code.len() as u32;
        }
        if let Some(g) = guard {
            let a = self.allocation.row(g.pred);
            self.open = Some((g, self.program.code.len()));
            self.emit::<GuardBegin>(NONE.a(a).c(u16::from(g.negated)));
        }
    }

    fn terminator(&mut self, terminator: &Terminator, next: BlockId) {
        match terminator {
            Terminator::Branch { to } if *to == next => {}
            Terminator::Branch { to } => {
                self.jumps.push(self.program.code.len());
                self.emit::<Branch>(NONE.aux(to.0));
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
                let o = NONE
                    .a(self.allocation.row(guard.pred))
                    .c(u16::from(guard.negated))
                    .aux(self.program.branches.len() as u32);
                self.program.branches.push(BranchTargets {
                    then: then.0,
                    otherwise: otherwise.0,
                    join,
                });
                match uniformity {
                    Uniformity::Uniform => self.emit::<BranchUniform>(o),
                    Uniformity::Divergent { .. } => self.emit::<BranchDivergent>(o),
                }
            }
            Terminator::Return => self.emit::<Return>(NONE),
        }
    }

    /// The row of a register, or the number of a predicate.
    pub fn reg(&self, r: &Reg) -> u16 {
        self.allocation.row(*r)
    }

    pub fn regs(&self, list: &[Reg]) -> List {
        list.iter().map(|r| self.reg(r)).collect()
    }

    pub fn sources(&mut self, list: &[Src<Reg>], slot: Slot) -> List {
        list.iter().map(|s| self.source(s, slot)).collect()
    }

    /// The row of a constant; `wide`: of 64 bits.
    pub fn constant(&mut self, bits: u64, wide: bool) -> u16 {
        if let Some(at) = self.constant_at.get(&(bits, wide)) {
            return *at;
        }
        let at = self.program.constants.len();
        if at + 2 > usize::from(CONSTANT) {
            return self.spare(bits, wide);
        }
        if wide {
            let mut pair = [Row::ZERO; 2];
            for (i, word) in pair.iter_mut().flat_map(|row| &mut row.0).enumerate() {
                *word = (bits >> (32 * (i % 2))) as u32;
            }
            self.program.constants.extend(pair);
        } else {
            self.program.constants.push(Row::splat(bits as u32));
        }
        let operand = CONSTANT | at as u16;
        self.constant_at.insert((bits, wide), operand);
        operand
    }

    /// A constant that the program's table has no place for: set right before the instruction.
    fn spare(&mut self, bits: u64, wide: bool) -> u16 {
        let d = self.allocation.rows + self.spares;
        self.spares += if wide { 2 } else { 1 };
        self.program.register_rows = self.program.register_rows.max(self.allocation.rows + self.spares);
        let d = d as u16;
        self.emit::<SetRows>(
            NONE.d(d)
                .c(u16::from(wide))
                .imm(bits as u32 as i32)
                .aux((bits >> 32) as u32),
        );
        d
    }

    /// The row of a source.
    pub fn source(&mut self, s: &Src<Reg>, slot: Slot) -> u16 {
        match (s, slot.class) {
            (Src::Reg(r), _) => self.reg(r),
            (Src::Imm(bits), Class::Pred) => self.constant_predicate(*bits & 1 != 0),
            (Src::Imm(bits), class) => self.constant(*bits & class.mask(), class == Class::B64),
        }
    }

    /// One of two predicates behind the registers', which are for constants and for what is in between.
    fn constant_predicate(&mut self, is: bool) -> u16 {
        let d = self.spare_predicate() + self.spare_predicates;
        self.spare_predicates += 1;
        self.set_predicate(d, is);
        d
    }

    pub fn set_predicate(&mut self, d: u16, is: bool) {
        self.emit::<SetPredicate>(NONE.d(d).imm(if is { -1 } else { 0 }));
    }

    /// A predicate for what is in between.
    pub fn spare_predicate(&self) -> u16 {
        self.allocation.predicates as u16
    }

    pub fn op1<O: Op1>(&mut self, d: u16, a: u16, imm: u32) {
        self.emit::<Each<O>>(NONE.d(d).a(a).imm(imm as i32));
    }
    pub fn op2<O: Op2>(&mut self, d: u16, a: u16, b: u16, imm: u32) {
        self.emit::<Each2<O>>(NONE.d(d).a(a).b(b).imm(imm as i32));
    }
    pub fn op3<O: Op3>(&mut self, d: u16, a: u16, b: u16, c: u16, imm: u32) {
        self.emit::<Each3<O>>(NONE.d(d).a(a).b(b).c(c).imm(imm as i32));
    }

    /// Puts operands into the program's lists: where they start.
    pub fn list(&mut self, operands: impl IntoIterator<Item = u16>) -> u32 {
        let start = self.program.lists.len() as u32;
        self.program.lists.extend(operands);
        start
    }

    /// The wait just emitted may last so long: the run ends if it lasts longer, so that it is always over in time.
    pub fn bounded(&mut self, ok: u16, ns: i64) {
        self.program.timeouts.push(ns.unsigned_abs());
        self.program.code.last_mut().expect("just emitted").aux = self.program.timeouts.len() as u32;
        self.set_predicate(ok, true);
    }
}

/// Decoded programs are shared between threads.
const _: () = {
    const fn shared<T: Send + Sync>() {}
    shared::<Program>();
};
