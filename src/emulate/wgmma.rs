//! `wgmma`: operands through matrix descriptors, groups in flight, and when they take effect.
//!
//! Each warp executes its own quarter of an instruction: rows `16·(warp % 4)…` of A and D, all of B. A wait is for all four.
//!
//! Until the wait that covers it (unless agents act at the earliest) an instruction has read nothing, and its accumulator
//! registers hold poison: their values are kept in the warp's [`Pipeline`].
use super::arith::mma_sync::Sparsity;
use super::arith::tensor_core::MmaKind;
use super::arith::tensor_core_fast::{Fragment, Instruction, Major, Operand, TensorCore, gather_a_fragments};
use super::check::View;
use super::check::{Access, Hooks, Mode, Range, Sync, changes_all};
use super::machine::Machine;
use super::mma::meaningless;
use super::options::AgentOrder;
use super::overwrite::Mask;
use super::row::Row;
use super::shared::SMEM_BASE;
use super::sparse;
use super::sync::noted;
use super::tma::swizzled;
use super::trace::What;
use super::uop::{Body, Flow, Step, Uop};
use super::warp::{Wait, Warp};
use crate::error::{Error, Fault};
use std::collections::VecDeque;

/// Accumulators in flight hold this: a NaN of f32 and of both halves of f16 pairs.
const POISON: u32 = 0x7fba_7fba;

/// Where A comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AOperand {
    /// Through the descriptor in this operand.
    Shared(u16),
    /// From this part of the program's lists.
    Registers { start: u32, len: u32 },
}

/// A `wgmma` instruction.
#[derive(Clone, Debug)]
pub struct MatMul {
    pub kind: MmaKind,
    pub n: usize,
    /// Accumulator registers: a part of the program's lists.
    pub acc: (u32, u32),
    /// Equal for equal accumulators.
    pub acc_id: u32,
    pub a: AOperand,
    /// Holds B's descriptor.
    pub b: u16,
    pub scale_d: u16,
    pub negate: bool,
    pub trans_a: bool,
    pub trans_b: bool,
    /// Holds the metadata of a sparse A; which lanes have it, and what of B it chooses.
    pub sparse: Option<(u16, Sparsity)>,
}

impl MatMul {
    /// Bytes of B along K.
    fn b_bytes(&self) -> u32 {
        if self.sparse.is_some() { 64 } else { 32 }
    }
}

/// An instruction in flight.
#[derive(Clone, Debug)]
struct Issued {
    matmul: u32,
    pc: u32,
    a: u64,
    b: u64,
    scale_d: bool,
    /// The metadata of a sparse A.
    meta: Option<Box<Fragment>>,
    group: u64,
    view: View,
}

/// The accumulator of instructions in flight.
struct InFlight {
    acc_id: u32,
    /// Its registers: a part of the program's lists.
    acc: (u32, u32),
    values: Vec<Fragment>,
    users: u32,
}

/// The wgmma groups of a warp.
#[derive(Default)]
pub struct Pipeline {
    issued: VecDeque<Issued>,
    /// Groups committed.
    committed: u64,
    accumulators: Vec<InFlight>,
    spare: Vec<Vec<Fragment>>,
}

impl Pipeline {
    pub fn clear(&mut self) {
        self.issued.clear();
        self.committed = 0;
        while let Some(acc) = self.accumulators.pop() {
            self.spare.push(acc.values);
        }
    }

    /// Groups that it has begun.
    pub fn groups(&self) -> u64 {
        let is_open = self.issued.back().is_some_and(|issued| issued.group == self.committed);
        self.committed + u64::from(is_open)
    }

    /// Instructions in flight.
    pub fn pending(&self) -> usize {
        self.issued.len()
    }

    /// The oldest instruction in flight.
    pub fn oldest(&self) -> Option<u32> {
        self.issued.front().map(|issued| issued.pc)
    }
}

/// Scratch memory of the tensor cores.
#[derive(Default)]
pub struct TensorUnit {
    pub(super) core: TensorCore,
    a: Vec<u8>,
    b: Vec<u8>,
    d: Vec<Fragment>,
    /// Lines that an operand lies in, and which granules of each.
    lines: Vec<(u32, Mask)>,
}

/// A shared-memory matrix descriptor (PTX ISA 9.7.15.5.1.2.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Descriptor {
    /// Shared-window address.
    start: u32,
    leading: u32,
    stride: u32,
    base_offset: u32,
    /// Bytes of the swizzle's span; 16: none.
    span: u32,
}

impl Descriptor {
    fn decode(bits: u64) -> Descriptor {
        let field = |at: u32| ((bits >> at & 0x3fff) << 4) as u32;
        Descriptor {
            start: field(0),
            leading: field(16),
            stride: field(32),
            base_offset: (bits >> 49 & 7) as u32,
            span: [16, 128, 64, 32][(bits >> 62) as usize],
        }
    }

    /// The bits that the swizzle XORs.
    fn mask(self) -> u32 {
        self.span / 16 - 1
    }

    /// The address of 16-byte chunk `c` along K of row `r`, K-major. CUTLASS `mma_sm90_desc.hpp`, canonical layouts.
    #[inline(always)]
    fn k_major(self, r: u32, c: u32) -> u32 {
        let along = if self.span == 16 {
            c * self.leading
        } else {
            // A sparse product's 64 bytes may be two spans of 32.
            16 * c % self.span + 16 * c / self.span * self.leading
        };
        let linear = self.start + r % 8 * self.span + r / 8 * self.stride + along;
        swizzled(linear, self.mask())
    }

    /// The address of chunk `j` of 8 16-bit elements along M or N, at `k`, MN-major.
    #[inline(always)]
    fn mn_major(self, j: u32, k: u32) -> u32 {
        let linear = if self.span == 16 {
            self.start + k % 8 * 16 + k / 8 * self.leading + j * self.stride
        } else {
            let width = self.span / 16;
            self.start + j % width * 16 + j / width * self.leading + k % 8 * self.span + k / 8 * self.stride
        };
        swizzled(linear, self.mask())
    }
}

impl<H: Hooks> Machine<'_, H> {
    /// Copies rows `first..first + rows` (K-major) or elements (MN-major) of an operand into a packed tile.
    fn gather_operand(
        &mut self,
        w: &Warp,
        issued: &Issued,
        bits: u64,
        first: u32,
        rows: u32,
        k_bytes: u32,
        transposed: bool,
        out: &mut Vec<u8>,
        lines: &mut Vec<(u32, Mask)>,
    ) -> Result<(), Box<Error>> {
        let pc = issued.pc;
        let d = Descriptor::decode(bits);
        let problem = |what: &str| {
            let mut error = Error::new(Fault::Execution, what.to_string());
            error.got = Some(format!("descriptor 0x{bits:016x}: {d:?}"));
            Box::new(error)
        };
        if d.base_offset != 0 {
            return Err(problem(
                "a wgmma operand with a base offset, which the emulator does not have",
            ));
        }
        let (outer, inner) = if transposed {
            (k_bytes / 2, rows / 8)
        } else {
            (rows, k_bytes / 16)
        };
        let address = |i: u32, j: u32| {
            if transposed {
                d.mn_major(first / 8 + j, i)
            } else {
                d.k_major(first + i, j)
            }
        };
        out.clear();
        out.resize((outer * inner * 16) as usize, 0);
        let smem = &self.cta(w.cta).smem;
        lines.clear();
        let (mut line, mut mask): (u32, Mask) = (u32::MAX, 0);
        let (notes, mut defined) = (self.options.notes_undefined().is_some(), true);
        let mut chunks = out.chunks_exact_mut(16);
        for i in 0..outer {
            for j in 0..inner {
                let offset = address(i, j).wrapping_sub(SMEM_BASE);
                if !smem.contains(offset, 16) {
                    return Err(problem("a wgmma operand outside of shared memory"));
                }
                if H::LISTENS {
                    if offset >> 7 != line {
                        if mask != 0 {
                            lines.push((line, mask));
                        }
                        (line, mask) = (offset >> 7, 0);
                    }
                    mask |= 0xffff << (offset & 127);
                    defined &= !notes || smem.is_defined(offset, 16);
                }
                if let Some(chunk) = chunks.next() {
                    chunk.copy_from_slice(smem.get(offset, 16));
                }
            }
        }
        if mask != 0 {
            lines.push((line, mask));
        }
        if self.options.denies_undefined() {
            for i in 0..outer {
                for j in 0..inner {
                    self.check_defined(pc, w.cta, address(i, j) - SMEM_BASE, 16)?;
                }
            }
        }
        if !defined {
            self.note_undefined(self.program.origins[pc as usize].loc);
        }
        let range = Range::Lines { slot: w.cta, lines };
        let verdict = self.hooks.async_memory(
            w.who(),
            &issued.view,
            Access {
                range,
                bytes: 128,
                mode: Mode::Read,
                loc: self.program.origins[pc as usize].loc,
                changes: &changes_all,
                number: issued.group + 1,
            },
        );
        self.judge_at(w, pc, verdict)
    }

    /// Executes the warp's quarter of an instruction on an accumulator.
    fn multiply(&mut self, w: &Warp, op: &MatMul, issued: &Issued, acc: &mut [Fragment]) -> Result<(), Box<Error>> {
        let mut unit = std::mem::take(&mut self.tensor_core);
        let result = self.multiply_with(w, op, issued, acc, &mut unit);
        self.tensor_core = unit;
        result.map_err(|e| self.at_issue(e, self.warp_id(w), issued.pc))
    }

    fn multiply_with(
        &mut self,
        w: &Warp,
        op: &MatMul,
        issued: &Issued,
        acc: &mut [Fragment],
        unit: &mut TensorUnit,
    ) -> Result<(), Box<Error>> {
        match op.a {
            AOperand::Shared(_) => {
                let (out, lines) = (&mut unit.a, &mut unit.lines);
                self.gather_operand(w, issued, issued.a, w.index % 4 * 16, 16, 32, op.trans_a, out, lines)?;
            }
            AOperand::Registers { start, len } => {
                let operands = &self.program.lists[start as usize..(start + len) as usize];
                let registers: Vec<Fragment> = operands.iter().map(|r| *w.read::<u32>(*r)).collect();
                unit.a.clear();
                unit.a.resize(16 * 32, 0);
                gather_a_fragments(&registers, &mut unit.a);
            }
        }
        let (out, lines) = (&mut unit.b, &mut unit.lines);
        self.gather_operand(
            w,
            issued,
            issued.b,
            0,
            op.n as u32,
            op.b_bytes(),
            op.trans_b,
            out,
            lines,
        )?;
        let major = |transposed| if transposed { Major::Mn } else { Major::K };
        let a = Operand {
            bytes: &unit.a,
            major: major(op.trans_a),
        };
        let b = Operand {
            bytes: &unit.b,
            major: major(op.trans_b),
        };
        if let (Some((_, sparsity)), Some(meta)) = (op.sparse, &issued.meta) {
            let how = (issued.scale_d, op.negate);
            let result = sparse::multiply(op.kind, op.n, (meta, sparsity), how, a, b, acc);
            return result.map_err(|found| Box::new(meaningless("wgmma.sp", sparsity, found)));
        }
        let instruction = Instruction {
            kind: op.kind,
            m: 16,
            n: op.n,
            k_bytes: 32,
            scale_d: issued.scale_d,
            negate: op.negate,
        };
        unit.core.execute(instruction, a, b, acc);
        Ok(())
    }

    /// For who records: the warp has issued an instruction, or its oldest one is done (`None`).
    #[inline(always)]
    fn record_product(&mut self, w: &Warp, issued: Option<(&MatMul, &Issued)>) {
        if self.recorder.is_some() {
            self.record_product_now(w, issued);
        }
    }

    #[cold]
    fn record_product_now(&mut self, w: &Warp, issued: Option<(&MatMul, &Issued)>) {
        let (warp, now) = (self.warp_id(w), self.clock);
        let Some(recorder) = &mut self.recorder else { return };
        match issued {
            None => recorder.multiply_done(warp, now, false),
            Some((op, issued)) => {
                let (a, b, to) = (op.kind.a(), op.kind.b(), op.kind.accumulator());
                let k = 8 * op.b_bytes() as usize / a.bits();
                let what = What::Multiplies {
                    shape: format!("m64n{}k{k} {a:?}, {b:?} → {to:?}", op.n),
                    group: issued.group,
                };
                recorder.multiply_issued(warp, now, self.program.origins[issued.pc as usize].loc, what);
            }
        }
    }

    /// Executes the oldest instruction in flight of the warp.
    fn execute_oldest(&mut self, w: &mut Warp) -> Result<(), Box<Error>> {
        let Some(issued) = w.tensor.issued.pop_front() else {
            return Ok(());
        };
        let program = self.program;
        let op = &program.matmuls[issued.matmul as usize];
        let Some(at) = w.tensor.accumulators.iter().position(|acc| acc.acc_id == op.acc_id) else {
            return Err(Box::new(Error::internal("a wgmma in flight without its accumulator")));
        };
        let mut values = std::mem::take(&mut w.tensor.accumulators[at].values);
        let result = self.multiply(w, op, &issued, &mut values);
        self.record_product(w, None);
        let registers = &program.lists[op.acc.0 as usize..(op.acc.0 + op.acc.1) as usize];
        let acc = &mut w.tensor.accumulators[at];
        acc.users -= 1;
        if acc.users == 0 {
            w.tensor.accumulators.swap_remove(at);
            for (r, value) in registers.iter().zip(&values) {
                *w.register::<u32>(*r) = *value;
            }
            w.tensor.spare.push(values);
        } else {
            acc.values = values;
        }
        result
    }
}

/// Issues instruction `aux` of the program's table.
pub struct Wgmma;
impl<H: Hooks> Body<H> for Wgmma {
    #[inline(never)]
    fn run(w: &mut Warp, m: &mut Machine<'_, H>, u: &Uop<H>) -> Step {
        issue(w, m, u.aux, u.imm as u32)?;
        Ok(Flow::Next)
    }
}

fn issue<H: Hooks>(w: &mut Warp, m: &mut Machine<'_, H>, matmul: u32, pc: u32) -> Result<(), Box<Error>> {
    let execution = |what: &str| Box::new(Error::new(Fault::Execution, what));
    let program = m.program;
    let op = &program.matmuls[matmul as usize];
    if w.exec != !0 {
        return Err(execution("wgmma in code that not all lanes of the warp execute"));
    }
    let a = match op.a {
        AOperand::Shared(a) => w.uniform::<u64>(a),
        AOperand::Registers { .. } => Some(0),
    };
    let (Some(a), Some(b)) = (a, w.uniform::<u64>(op.b)) else {
        return Err(execution("a wgmma descriptor that differs between lanes"));
    };
    let scale_d = w.predicate(op.scale_d);
    if scale_d != 0 && scale_d != !0 {
        return Err(execution("a wgmma scale-d that differs between lanes"));
    }
    let registers = &program.lists[op.acc.0 as usize..(op.acc.0 + op.acc.1) as usize];
    let issued = Issued {
        matmul,
        pc,
        a,
        b,
        scale_d: scale_d != 0,
        meta: op.sparse.map(|(meta, _)| Box::new(*w.read::<u32>(meta))),
        group: w.tensor.committed,
        view: m.hooks.view(w.who()),
    };
    m.record_product(w, Some((op, &issued)));
    if m.options.agents == AgentOrder::Earliest {
        let mut values = std::mem::take(&mut m.tensor_core.d);
        values.clear();
        values.extend(registers.iter().map(|r| *w.read::<u32>(*r)));
        let result = m.multiply(w, op, &issued, &mut values);
        m.record_product(w, None);
        for (r, value) in registers.iter().zip(&values) {
            *w.register::<u32>(*r) = *value;
        }
        m.tensor_core.d = values;
        return result;
    }
    match w.tensor.accumulators.iter_mut().find(|acc| acc.acc_id == op.acc_id) {
        Some(acc) => acc.users += 1,
        None => {
            let shares = |other: &InFlight| {
                let theirs = &program.lists[other.acc.0 as usize..(other.acc.0 + other.acc.1) as usize];
                theirs.iter().any(|r| registers.contains(r))
            };
            if w.tensor.accumulators.iter().any(shares) {
                return Err(execution(
                    "a wgmma on registers that another one in flight has in another order",
                ));
            }
            let mut values = w.tensor.spare.pop().unwrap_or_default();
            values.clear();
            values.extend(registers.iter().map(|r| *w.read::<u32>(*r)));
            for r in registers {
                *w.register::<u32>(*r) = Row::splat(POISON).0;
            }
            w.tensor.accumulators.push(InFlight {
                acc_id: op.acc_id,
                acc: op.acc,
                values,
                users: 1,
            });
        }
    }
    w.tensor.issued.push_back(issued);
    if m.options.agents.is_seeded() {
        // The tensor core executes in order: any number of the oldest.
        while w.tensor.pending() > 0 && m.rng.below(2) == 0 {
            m.execute_oldest(w)?;
        }
    }
    Ok(())
}

/// `wgmma.fence`.
pub struct WgmmaFence;
impl<H: Hooks> Body<H> for WgmmaFence {
    #[inline(always)]
    fn run(_: &mut Warp, _: &mut Machine<'_, H>, _: &Uop<H>) -> Step {
        Ok(Flow::Next)
    }
}

/// `wgmma.commit_group`.
pub struct WgmmaCommit;
impl<H: Hooks> Body<H> for WgmmaCommit {
    #[inline(always)]
    fn run(w: &mut Warp, _: &mut Machine<'_, H>, _: &Uop<H>) -> Step {
        w.tensor.committed += 1;
        Ok(Flow::Next)
    }
}

/// `wgmma.wait_group`: all but the last `imm` groups take effect. A group is its warpgroup's, and is complete when all four warps' quarters
/// are: on an H200 the instruction itself is not begun before the last warp has issued it, and all four go on in one cycle.
pub struct WgmmaWait;
impl<H: Hooks> Body<H> for WgmmaWait {
    #[inline(always)]
    fn run(w: &mut Warp, m: &mut Machine<'_, H>, u: &Uop<H>) -> Step {
        let settled = w.tensor.committed.saturating_sub(u.imm as u64);
        while w.tensor.issued.front().is_some_and(|issued| issued.group < settled) {
            m.execute_oldest(w)?;
        }
        let (me, own) = (m.warp_id(w), w.index as usize);
        let cta = m.cta_mut(w.cta);
        let done = &mut cta.multiplied[own];
        *done = done.map(|done| done.max(settled));
        let first = own & !3;
        let others = cta.multiplied.iter().skip(first).take(4);
        let complete = others.flatten().all(|done| *done >= settled);
        if !complete {
            cta.product_waiters.push(me);
            w.wait = Wait::Products { group: settled };
            return Ok(Flow::Block);
        }
        let woken = std::mem::take(&mut cta.product_waiters);
        m.ready.extend(woken);
        noted(w, m, Sync::WgmmaWaited { settled })
    }
}

/// For tests: the bits of a descriptor.
#[cfg(test)]
pub fn descriptor(start: u32, leading: u32, stride: u32, span: u32) -> u64 {
    let layout = match span {
        128 => 1u64,
        64 => 2,
        32 => 3,
        _ => 0,
    };
    u64::from(start >> 4) | u64::from(leading >> 4) << 16 | u64::from(stride >> 4) << 32 | layout << 62
}
