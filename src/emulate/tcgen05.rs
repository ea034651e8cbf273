//! `tcgen05`: products into tensor memory, copies to it, and commits, which act by themselves.
//!
//! Each thread that issues has a [`Queue`], whose entries act in order, and at the latest when somebody waits for an mbarrier that a commit behind
//! them arrives at ([`AgentOrder`] says when). What an entry reads (operands, what is accumulated) and writes happens when it acts; addresses,
//! descriptors and `accumulate` are read when it is issued. An entry of another thread's queue that was issued earlier and has to do with the same
//! columns acts before: products of one accumulator, and copies before products, are in order without a wait if their issues are. Where they are
//! not, or another order was to be expected, the checker says so.
//!
//! An M of 64 leaves half of the lanes alone; [`Rows`] says where a row of D, or of an A in tensor memory, lies. A pair of CTAs would have the rows
//! of both in one entry (`CtaGroup::Two`, refused by the decoder so far).
use super::arith::tensor_core::{Accumulator, Element, MmaKind};
use super::arith::tensor_core_fast::{Fragment, Instruction, Major, Operand};
use super::check::{Cells, Hooks, Issued, TensorWork, View, Who};
use super::machine::Machine;
use super::options::AgentOrder;
use super::overwrite::Mask;
use super::shared::{CtaSlot, SMEM_BASE, Shared};
use super::tensor_memory::{TensorMemory, execution, split};
use super::trace::What;
use super::uop::{Body, Flow, Step, Uop, fail};
use super::warp::Warp;
use crate::error::Error;
use crate::ptx::modifier::{Tcgen05Kind, TmemCopyShape};
use std::collections::VecDeque;

/// Bytes of K that an instruction takes of a row.
const K_BYTES: u32 = 32;
/// Words of K of a row of an A in tensor memory.
const K_WORDS: u32 = K_BYTES / 4;
/// What the upper half of a word of D becomes where D is of f16. PTX says nothing of it; nobody is known to read it.
const UPPER_HALF: u32 = 0;

/// Where A comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AOperand {
    /// The descriptor's operand.
    Shared(u16),
    /// The address: operand and offset.
    Tensor((u16, i32)),
}

/// What is issued, as a side table holds it.
#[derive(Clone, Copy, Debug)]
pub enum TensorOp {
    Product {
        kind: Tcgen05Kind,
        d: (u16, i32),
        a: AOperand,
        b: u16,
        idesc: u16,
        accumulate: u16,
    },
    Copy {
        shape: TmemCopyShape,
        dst: (u16, i32),
        src: u16,
    },
    Commit {
        bar: (u16, i32),
        mask: Option<u16>,
    },
}

impl TensorOp {
    fn name(&self) -> &'static str {
        match self {
            TensorOp::Product { .. } => "tcgen05.mma",
            TensorOp::Copy { .. } => "tcgen05.cp",
            TensorOp::Commit { .. } => "tcgen05.commit",
        }
    }
}

/// A shared-memory matrix descriptor (PTX ISA, "Shared memory descriptor" of `tcgen05`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Descriptor {
    /// Shared-window address.
    start: u32,
    leading: u32,
    stride: u32,
    /// Bytes of the swizzle's span; 16: none.
    span: u32,
    /// The swizzle moves 32 bytes at a time, not 16.
    wide: bool,
}

impl Descriptor {
    fn decode(bits: u64) -> Result<Descriptor, Box<Error>> {
        let field = |at: u32| ((bits >> at & 0x3fff) << 4) as u32;
        let bad = |expected: &str| {
            fail(
                execution("a matrix descriptor of tcgen05")
                    .expected(expected)
                    .got(format!("0x{bits:016x}")),
            )
        };
        let (span, wide) = match bits >> 61 {
            0 => (16, false),
            1 => (128, true),
            2 => (128, false),
            4 => (64, false),
            6 => (32, false),
            _ => return bad("a swizzle (bits 61 to 63) of 0, 1, 2, 4 or 6"),
        };
        // PTX wants 1 in bits 46 to 48, JAX leaves 0, and a B200 takes it.
        if bits >> 46 & 7 > 1 {
            return bad("0 or 1 in bits 46 to 48");
        }
        if bits >> 49 & 7 != 0 {
            return bad(
                "a base offset (bits 49 to 51) of 0, and operands that begin at a multiple of eight rows of the swizzle: the emulator has no others",
            );
        }
        if bits >> 52 & 0x1ff != 0 {
            return bad("0 in bits 52 to 60");
        }
        Ok(Descriptor {
            start: field(0),
            leading: field(16),
            stride: field(32),
            span,
            wide,
        })
    }

    #[inline(always)]
    fn swizzle(self, address: u32) -> u32 {
        match self.wide {
            true => address ^ address >> 2 & 0x60,
            false => address ^ address >> 3 & (self.span - 16),
        }
    }

    /// The address of 16-byte chunk `c` along K of row `r`, K-major. CUTLASS `mma_sm100_desc.hpp`, canonical layouts.
    #[inline(always)]
    fn k_major(self, r: u32, c: u32) -> u32 {
        let along = if self.span == 16 { c * self.leading } else { 16 * c };
        self.swizzle(self.start + r % 8 * self.span + r / 8 * self.stride + along)
    }

    /// The address of 16-byte chunk `j` along M or N, at `k`, MN-major.
    #[inline(always)]
    fn mn_major(self, j: u32, k: u32) -> u32 {
        let width = self.span / 16;
        let linear = match (self.span, self.wide) {
            (16, _) => j * self.stride + k % 8 * 16 + k / 8 * self.leading,
            (_, true) => j % width * 16 + j / width * self.leading + k % 4 * self.span + k / 4 * self.stride,
            _ => j % width * 16 + j / width * self.leading + k % 8 * self.span + k / 8 * self.stride,
        };
        self.swizzle(self.start + linear)
    }
}

/// An operand in shared memory.
#[derive(Clone, Copy, Debug)]
struct Source {
    descriptor: Descriptor,
    /// Rows of A, columns of B.
    rows: u32,
    /// Of an element.
    bytes: u32,
    /// 16-byte chunks of a row.
    chunks: u32,
    is_mn: bool,
}

impl Source {
    /// Its chunks: which one (row and chunk; or k and chunk along M or N), and where.
    #[inline(always)]
    fn each(&self, mut f: impl FnMut(u32, u32, u32)) {
        let d = self.descriptor;
        match self.is_mn {
            false => (0..self.rows).for_each(|r| (0..self.chunks).for_each(|c| f(r, c, d.k_major(r, c)))),
            true => {
                let along = self.rows * self.bytes / 16;
                (0..K_BYTES / self.bytes).for_each(|k| (0..along).for_each(|j| f(k, j, d.mn_major(j, k))));
            }
        }
    }

    /// Whether all of it lies in shared memory.
    fn check_inside(&self, smem: &Shared, what: &str) -> Result<(), Box<Error>> {
        let mut outside = None;
        self.each(|_, _, address| {
            if !smem.contains(address.wrapping_sub(SMEM_BASE), 16) {
                outside.get_or_insert(address);
            }
        });
        match outside {
            None => Ok(()),
            Some(address) => fail(
                execution(format!("{what} outside of shared memory"))
                    .expected(format!("addresses in 0x{SMEM_BASE:x}..0x{:x}", SMEM_BASE + smem.size()))
                    .got(format!("16 bytes at 0x{address:x}, by {:?}", self.descriptor)),
            ),
        }
    }

    /// Lines that it lies in, and which bytes of each.
    fn lines(&self, out: &mut Vec<(u32, Mask)>) {
        let first = out.len();
        self.each(|_, _, address| {
            let offset = address - SMEM_BASE;
            let mask = 0xffff << (offset & 127);
            match out[first..].last_mut().filter(|(line, _)| *line == offset >> 7) {
                Some((_, lines)) => *lines |= mask,
                None => out.push((offset >> 7, mask)),
            }
        });
        // A line's pieces together: rows of K-major operands may come back to it.
        out[first..].sort_unstable_by_key(|(line, _)| *line);
        let mut last = first;
        for i in first + 1..out.len() {
            match out[i].0 == out[last].0 {
                true => out[last].1 |= out[i].1,
                false => {
                    last += 1;
                    out[last] = out[i];
                }
            }
        }
        out.truncate(if out.len() > first { last + 1 } else { first });
    }

    /// Copies it to a packed tile: rows along K; or, of 16-bit elements, columns along M or N. Says which.
    fn gather(&self, smem: &Shared, out: &mut Vec<u8>) -> Major {
        out.clear();
        out.resize((self.rows * K_BYTES) as usize, 0);
        let chunk = |address: u32| smem.get(address - SMEM_BASE, 16);
        let es = self.bytes as usize;
        match (self.is_mn, es) {
            (false, _) => {
                self.each(|r, c, address| {
                    out[(r * K_BYTES + 16 * c) as usize..][..16].copy_from_slice(chunk(address));
                });
                Major::K
            }
            (true, 2) => {
                self.each(|k, j, address| {
                    out[(2 * k * self.rows + 16 * j) as usize..][..16].copy_from_slice(chunk(address));
                });
                Major::Mn
            }
            (true, _) => {
                self.each(|k, j, address| {
                    for (i, element) in chunk(address).chunks_exact(es).enumerate() {
                        let row = j as usize * (16 / es) + i;
                        out[row * K_BYTES as usize + k as usize * es..][..es].copy_from_slice(element);
                    }
                });
                Major::K
            }
        }
    }

    /// A byte of it that nothing wrote, by its offset.
    fn undefined(&self, smem: &Shared) -> Option<u32> {
        let mut found = None;
        self.each(|_, _, address| {
            if found.is_none() && !smem.is_defined(address - SMEM_BASE, 16) {
                found = Some(address - SMEM_BASE);
            }
        });
        found
    }
}

/// Where rows lie in tensor memory: one a lane, or, of 64, 16 in the first or second half of each quarter (PTX ISA, "Data path layout" D and F).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Rows {
    count: u32,
    /// The first one's lane: 0 or 16.
    lane: u32,
    column: u32,
}

impl Rows {
    fn of(count: u32, address: u32, what: &str) -> Result<Rows, Box<Error>> {
        let (lane, column) = split(address);
        let (fits, expected) = match count {
            128 => (lane == 0, "lane 0: 128 rows take all lanes"),
            _ => (
                lane == 0 || lane == 16,
                "lane 0 or 16: 64 rows take half of each warp's lanes",
            ),
        };
        if fits {
            return Ok(Rows { count, lane, column });
        }
        fail(
            execution(format!("{what} at a misaligned lane of tensor memory"))
                .expected(expected)
                .got(format!("lane {lane}")),
        )
    }

    #[inline(always)]
    fn lane_of(self, row: u32) -> u32 {
        match self.count {
            128 => row,
            _ => row / 16 * 32 + row % 16 + self.lane,
        }
    }

    fn cells(self, columns: u32) -> Cells {
        match self.count {
            128 => Cells::all(self.column, columns),
            _ => Cells {
                lanes: 0b0101_0101 << (self.lane / 16),
                ..Cells::all(self.column, columns)
            },
        }
    }
}

/// What an instruction descriptor says.
#[derive(Clone, Copy, Debug)]
struct Form {
    kind: MmaKind,
    m: u32,
    n: u32,
    negate: bool,
    a_mn: bool,
    b_mn: bool,
}

/// Which types a kind has, by number.
fn element(kind: Tcgen05Kind, code: u32) -> Option<Element> {
    Some(match (kind, code) {
        (Tcgen05Kind::F16, 0) => Element::F16,
        (Tcgen05Kind::F16, 1) => Element::Bf16,
        (Tcgen05Kind::TF32, 2) => Element::Tf32,
        (Tcgen05Kind::F8F6F4, 0) => Element::E4m3,
        (Tcgen05Kind::F8F6F4, 1) => Element::E5m2,
        (Tcgen05Kind::I8, 0) => Element::U8,
        (Tcgen05Kind::I8, 1) => Element::S8,
        _ => return None,
    })
}

impl Form {
    /// PTX ISA, "Instruction descriptor", and the table of shapes: one CTA's.
    fn decode(kind: Tcgen05Kind, bits: u32) -> Result<Form, Box<Error>> {
        let field = |at: u32, width: u32| bits >> at & ((1 << width) - 1);
        let bad = |expected: &str| {
            fail(
                execution(format!(
                    "an instruction descriptor of tcgen05.mma.kind::{}",
                    kind_name(kind)
                ))
                .expected(expected)
                .got(format!("0x{bits:08x}")),
            )
        };
        let is_integer = kind == Tcgen05Kind::I8;
        if field(0, 3) != 0 {
            return bad("no sparsity (bits 0 to 2): the instruction is dense (no .sp)");
        }
        if bits & (1 << 6 | 1 << 23 | 1 << 29 | 3 << 30) != 0 {
            return bad("0 in bits 6, 23, and 29 to 31");
        }
        if field(3, 1) == 1 && !is_integer {
            return bad("no saturation (bit 3): only integers saturate");
        }
        if is_integer && field(13, 2) != 0 {
            return bad("no negation (bits 13 and 14) of integers");
        }
        if kind == Tcgen05Kind::F8F6F4 && [field(7, 3), field(10, 3)].iter().any(|code| matches!(code, 3..=5)) {
            return fail(Error::unsupported(
                "tcgen05.mma of fp6 and fp4 without scales in the emulator (types 3 to 5)",
            ));
        }
        let (Some(a), Some(b)) = (element(kind, field(7, 3)), element(kind, field(10, 3))) else {
            return bad(match kind {
                Tcgen05Kind::F16 => "types of A and B (bits 7 to 12) of 0 (f16) or 1 (bf16)",
                Tcgen05Kind::TF32 => "types of A and B (bits 7 to 12) of 2 (tf32)",
                Tcgen05Kind::F8F6F4 => "types of A and B (bits 7 to 12) of 0 (e4m3) or 1 (e5m2)",
                Tcgen05Kind::I8 => "types of A and B (bits 7 to 12) of 0 (u8) or 1 (s8)",
            });
        };
        let accumulator = match (field(4, 2), is_integer, field(3, 1)) {
            (0, false, _) => Accumulator::F16,
            (1, false, _) => Accumulator::F32,
            (2, true, 0) => Accumulator::S32,
            (2, true, _) => Accumulator::S32Saturating,
            _ if is_integer => return bad("a D (bits 4 and 5) of 2 (s32)"),
            _ => return bad("a D (bits 4 and 5) of 0 (f16) or 1 (f32)"),
        };
        let Some(made) = MmaKind::blackwell(a, b, accumulator) else {
            return bad("A and B of one type, and a D of f32 (of f16 only for A and B of f16 or fp8)");
        };
        let (m, n) = (16 * field(24, 5), 8 * field(17, 6));
        if m != 64 && m != 128 {
            return bad(&format!("an M (bits 24 to 28, in 16) of 64 or 128, not {m}"));
        }
        let form = Form {
            kind: made,
            m,
            n,
            negate: field(13, 1) != field(14, 1),
            a_mn: field(15, 1) == 1,
            b_mn: field(16, 1) == 1,
        };
        let step = match () {
            _ if form.b_mn && b.bits() == 8 => 16,
            _ if is_integer && n > 32 => 16,
            _ => 8,
        };
        if !(8..=256).contains(&n) || !n.is_multiple_of(step) {
            return bad(&format!(
                "an N (bits 17 to 22, in 8) of up to 256 in steps of {step}, not {n}"
            ));
        }
        Ok(form)
    }

    fn bytes(&self) -> u32 {
        self.kind.a().bits() as u32 / 8
    }

    fn operand(&self, bits: u64, rows: u32, is_mn: bool) -> Result<Source, Box<Error>> {
        let descriptor = Descriptor::decode(bits)?;
        let is_tf32 = self.kind.a() == Element::Tf32;
        // PTX ISA, "Canonical layouts": chunks of 32 bytes are for what is transposed in 32-bit elements, which has no other.
        if descriptor.wide != (is_tf32 && is_mn) {
            return fail(
                execution("a matrix descriptor of tcgen05")
                    .expected(match is_tf32 && is_mn {
                        true => "the 128-byte swizzle of 32-byte atoms (1 in bits 61 to 63) for tf32 whose M or N is contiguous",
                        false => "another swizzle than that of 32-byte atoms (1 in bits 61 to 63): it is for tf32 whose M or N is contiguous",
                    })
                    .got(format!("0x{bits:016x}")),
            );
        }
        Ok(Source {
            descriptor,
            rows,
            bytes: self.bytes(),
            chunks: K_BYTES / 16,
            is_mn,
        })
    }
}

fn kind_name(kind: Tcgen05Kind) -> &'static str {
    match kind {
        Tcgen05Kind::F16 => "f16",
        Tcgen05Kind::TF32 => "tf32",
        Tcgen05Kind::F8F6F4 => "f8f6f4",
        Tcgen05Kind::I8 => "i8",
    }
}

/// A, once its descriptor or address has been read.
#[derive(Clone, Copy, Debug)]
enum A {
    Shared(Source),
    Tensor(Rows),
}

#[derive(Clone, Copy, Debug)]
struct Product {
    form: Form,
    d: Rows,
    a: A,
    b: Source,
    accumulates: bool,
}

#[derive(Clone, Copy, Debug)]
struct Copy {
    shape: TmemCopyShape,
    source: Source,
    column: u32,
}

impl Copy {
    fn columns(&self) -> u32 {
        4 * self.source.chunks
    }
}

/// Rows and 16-byte chunks of the source of a copy.
fn extent(shape: TmemCopyShape) -> (u32, u32) {
    match shape {
        TmemCopyShape::L128B256 => (128, 2),
        TmemCopyShape::L128B128 => (128, 1),
        TmemCopyShape::L64B128 => (64, 1),
        TmemCopyShape::L32B128 => (32, 1),
    }
}

/// Lanes that row `i` of the source goes to. CUTLASS, `copy_traits_sm100.hpp`: 01_23 puts the first 32 rows in quarters 0 and 1.
fn lanes_of(shape: TmemCopyShape, i: u32) -> impl Iterator<Item = u32> {
    let (first, step, count) = match shape {
        TmemCopyShape::L128B256 | TmemCopyShape::L128B128 => (i, 0, 1),
        TmemCopyShape::L64B128 => (i % 32 + i / 32 * 64, 32, 2),
        TmemCopyShape::L32B128 => (i, 32, 4),
    };
    (0..count).map(move |n| first + n * step)
}

#[derive(Clone, Debug)]
enum Work {
    Product(Box<Product>),
    Copy(Box<Copy>),
    /// Arrives at mbarriers: CTAs and offsets.
    Commit(Vec<(CtaSlot, u32)>),
}

impl Work {
    /// Columns that it has to do with, first and how many.
    fn columns(&self) -> [(u32, u32); 2] {
        match self {
            Work::Product(it) => {
                let a = match it.a {
                    A::Shared(_) => (0, 0),
                    A::Tensor(rows) => (rows.column, K_WORDS),
                };
                [(it.d.column, it.form.n), a]
            }
            Work::Copy(it) => [(it.column, it.columns()), (0, 0)],
            Work::Commit(_) => [(0, 0); 2],
        }
    }

    fn meets(&self, other: &Work) -> bool {
        let meet = |a: &(u32, u32), b: &(u32, u32)| a.0 < b.0 + b.1 && b.0 < a.0 + a.1;
        let theirs = other.columns();
        self.columns().iter().any(|mine| theirs.iter().any(|it| meet(mine, it)))
    }
}

/// An operation in flight.
#[derive(Clone, Debug)]
struct Entry {
    /// Of all that has been issued.
    sequence: u64,
    /// The instruction.
    pc: u32,
    work: Work,
    view: View,
    /// The checker's.
    number: u32,
}

/// What a thread has issued and what has not acted, oldest first.
struct Queue {
    warp: u32,
    lane: u32,
    /// Products and copies issued.
    issued: u64,
    entries: VecDeque<Entry>,
}

/// All threads' queues, and scratch memory.
#[derive(Default)]
pub struct Queues {
    queues: Vec<Queue>,
    sequence: u64,
    a: Vec<u8>,
    b: Vec<u8>,
    d: Vec<Fragment>,
    lines: Vec<(u32, Mask)>,
}

impl Queues {
    /// Whether nothing is in flight.
    pub fn is_empty(&self) -> bool {
        self.queues.iter().all(|queue| queue.entries.is_empty())
    }

    fn of(&mut self, warp: u32, lane: u32) -> usize {
        let at = self.queues.iter().position(|it| (it.warp, it.lane) == (warp, lane));
        at.unwrap_or_else(|| {
            self.queues.push(Queue {
                warp,
                lane,
                issued: 0,
                entries: VecDeque::new(),
            });
            self.queues.len() - 1
        })
    }

    /// The queue whose next entry is the oldest.
    fn oldest(&self) -> Option<usize> {
        let next = |(at, queue): (usize, &Queue)| Some((queue.entries.front()?.sequence, at));
        self.queues.iter().enumerate().filter_map(next).min().map(|it| it.1)
    }
}

/// The accumulator, as the tensor core has it: registers of a warp for every 16 rows.
fn load_accumulator(memory: &TensorMemory, product: &Product, out: &mut Vec<Fragment>) {
    let (n, registers, is_half) = layout(product);
    out.clear();
    out.resize(product.form.m as usize / 16 * registers, [0; 32]);
    if !product.accumulates {
        return;
    }
    for row in 0..product.form.m as usize {
        let words = memory.row(product.d.lane_of(row as u32), product.d.column, n as u32);
        let (first, at) = (row / 16 * registers, row % 8 * 4);
        for (j, eight) in words.chunks_exact(8).enumerate() {
            if is_half {
                let to = &mut out[first + 2 * j + row / 8 % 2][at..at + 4];
                for (to, pair) in to.iter_mut().zip(eight.chunks_exact(2)) {
                    *to = pair[0] & 0xffff | pair[1] << 16;
                }
            } else {
                let from = first + 4 * j + row / 8 % 2 * 2;
                for i in 0..4 {
                    out[from][at + i] = eight[2 * i];
                    out[from + 1][at + i] = eight[2 * i + 1];
                }
            }
        }
    }
}

fn store_accumulator(memory: &mut TensorMemory, product: &Product, d: &[Fragment]) {
    let (n, registers, is_half) = layout(product);
    for row in 0..product.form.m as usize {
        let lane = product.d.lane_of(row as u32);
        let words = memory.row_mut(lane, product.d.column, n as u32);
        let (first, at) = (row / 16 * registers, row % 8 * 4);
        for (j, eight) in words.chunks_exact_mut(8).enumerate() {
            if is_half {
                let from = &d[first + 2 * j + row / 8 % 2][at..at + 4];
                for (pair, from) in eight.chunks_exact_mut(2).zip(from) {
                    (pair[0], pair[1]) = (from & 0xffff | UPPER_HALF << 16, from >> 16 | UPPER_HALF << 16);
                }
            } else {
                let from = first + 4 * j + row / 8 % 2 * 2;
                for i in 0..4 {
                    eight[2 * i] = d[from][at + i];
                    eight[2 * i + 1] = d[from + 1][at + i];
                }
            }
        }
        memory.define(lane, product.d.column, n as u32, true);
    }
}

/// N, registers of a warp, and whether they hold pairs of f16.
fn layout(product: &Product) -> (usize, usize, bool) {
    let n = product.form.n as usize;
    match product.form.kind.accumulator() {
        Accumulator::F16 => (n, n / 4, true),
        Accumulator::F32 | Accumulator::S32 | Accumulator::S32Saturating => (n, n / 2, false),
    }
}

impl<H: Hooks> Machine<'_, H> {
    pub fn heeds_undefined(&self) -> bool {
        self.options.denies_undefined() || H::LISTENS && self.options.notes_undefined().is_some()
    }

    fn who(&self, warp: u32) -> Who {
        Who {
            cta: CtaSlot(warp / self.warps_per_cta),
            index: warp % self.warps_per_cta,
        }
    }

    /// For who records: a thread of the warp has issued a product, or its oldest one is done (`None`).
    fn record_tensor_product(&mut self, warp: u32, issued: Option<(&Product, u32)>) {
        let now = self.clock;
        let Some(recorder) = &mut self.recorder else { return };
        match issued {
            None => recorder.multiply_done(warp, now, false),
            Some((product, pc)) => {
                let Form { kind, m, n, .. } = product.form;
                let (a, b, to) = (kind.a(), kind.b(), kind.accumulator());
                let k = 8 * K_BYTES as usize / a.bits();
                let what = What::Multiplies {
                    shape: format!("m{m}n{n}k{k} {a:?}, {b:?} → {to:?}"),
                    group: 0,
                };
                recorder.multiply_issued(warp, now, self.program.origins[pc as usize].loc, what);
            }
        }
    }

    /// The next entry of a queue acts, behind what it depends on in others'.
    fn act_tensor(&mut self, at: usize) -> Result<(), Box<Error>> {
        let queue = &mut self.tensor.queues[at];
        let (warp, Some(entry)) = (queue.warp, queue.entries.pop_front()) else {
            return Ok(());
        };
        let cta = self.who(warp).cta;
        let per = self.warps_per_cta;
        let earlier = |queue: &Queue| {
            let depends = |it: &Entry| it.sequence < entry.sequence && it.work.meets(&entry.work);
            queue.warp / per == cta.0 && queue.entries.iter().any(depends)
        };
        while let Some(other) = self.tensor.queues.iter().position(earlier) {
            self.act_tensor(other)?;
        }
        let result = match &entry.work {
            Work::Product(product) => self.multiply_tensor(cta, entry.pc, product),
            Work::Copy(copy) => self.copy_tensor(cta, entry.pc, copy),
            Work::Commit(targets) => self.arrive_committed(warp, &entry, targets),
        };
        if matches!(entry.work, Work::Product(_)) {
            self.record_tensor_product(warp, None);
        }
        result.map_err(|error| self.at_issue(error, warp, entry.pc))
    }

    /// Whether something has written an operand in shared memory.
    fn check_source(&self, cta: CtaSlot, pc: u32, source: &Source) -> Result<(), Box<Error>> {
        if !self.heeds_undefined() {
            return Ok(());
        }
        match source.undefined(&self.cta(cta).smem) {
            None => Ok(()),
            Some(offset) => self.check_defined(pc, cta, offset, 16),
        }
    }

    fn multiply_tensor(&mut self, cta: CtaSlot, pc: u32, product: &Product) -> Result<(), Box<Error>> {
        let form = product.form;
        self.check_source(cta, pc, &product.b)?;
        if let A::Shared(a) = &product.a {
            self.check_source(cta, pc, a)?;
        }
        let whole = self.heeds_undefined();
        let mut unit = std::mem::take(&mut self.tensor);
        let memory = &self.ctas[cta.0 as usize].tmem;
        let undefined = |rows: Rows, columns: u32| {
            let lane = |row| rows.lane_of(row);
            (0..rows.count)
                .map(lane)
                .find(|lane| whole && !memory.is_defined(*lane, rows.column, columns))
        };
        let mut bad = undefined(product.d, form.n)
            .filter(|_| product.accumulates)
            .map(|lane| ("an accumulator", lane, product.d.column));
        let a_major = match &product.a {
            A::Shared(a) => a.gather(&self.ctas[cta.0 as usize].smem, &mut unit.a),
            A::Tensor(rows) => {
                bad = bad.or(undefined(*rows, K_WORDS).map(|lane| ("an operand", lane, rows.column)));
                unit.a.clear();
                for row in 0..form.m {
                    let words = memory.row(rows.lane_of(row), rows.column, K_WORDS);
                    unit.a.extend(words.iter().flat_map(|word| word.to_le_bytes()));
                }
                Major::K
            }
        };
        let b_major = product.b.gather(&self.ctas[cta.0 as usize].smem, &mut unit.b);
        load_accumulator(memory, product, &mut unit.d);
        let instruction = Instruction {
            kind: form.kind,
            m: form.m as usize,
            n: form.n as usize,
            k_bytes: K_BYTES as usize,
            scale_d: product.accumulates,
            negate: form.negate,
        };
        let a = Operand {
            bytes: &unit.a,
            major: a_major,
        };
        let b = Operand {
            bytes: &unit.b,
            major: b_major,
        };
        self.tensor_core.core.execute(instruction, a, b, &mut unit.d);
        store_accumulator(&mut self.ctas[cta.0 as usize].tmem, product, &unit.d);
        self.tensor = unit;
        match bad {
            None => Ok(()),
            Some((what, lane, column)) => self.judge_undefined(cta, pc, what, lane, column),
        }
    }

    /// A product reads words that nothing wrote.
    fn judge_undefined(&self, cta: CtaSlot, pc: u32, what: &str, lane: u32, column: u32) -> Result<(), Box<Error>> {
        if self.options.denies_undefined() {
            return fail(self.undefined_words(cta, &format!("tcgen05.mma: {what}"), lane, column));
        }
        self.note_undefined(self.program.origins[pc as usize].loc);
        Ok(())
    }

    fn copy_tensor(&mut self, cta: CtaSlot, pc: u32, copy: &Copy) -> Result<(), Box<Error>> {
        self.check_source(cta, pc, &copy.source)?;
        let it = &mut self.ctas[cta.0 as usize];
        let (smem, memory) = (&it.smem, &mut it.tmem);
        copy.source.each(|row, chunk, address| {
            let bytes = smem.get(address - SMEM_BASE, 16);
            for lane in lanes_of(copy.shape, row) {
                let column = copy.column + 4 * chunk;
                for (word, bytes) in memory.row_mut(lane, column, 4).iter_mut().zip(bytes.chunks_exact(4)) {
                    *word = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
                }
                memory.define(lane, column, 4, true);
            }
        });
        Ok(())
    }

    /// All that a commit stands behind is complete.
    fn arrive_committed(&mut self, warp: u32, entry: &Entry, targets: &[(CtaSlot, u32)]) -> Result<(), Box<Error>> {
        let who = self.who(warp);
        for (slot, offset) in targets.iter().copied() {
            // Barriers of a CTA that has ended are gone; that it ended too early is the checker's to say.
            if self.cta(slot).live_warps == 0 {
                continue;
            }
            self.hooks
                .tensor_arrives(who, &entry.view, entry.number, (slot, offset));
            let verdict = self.arrive(slot, offset, 1, 0)?;
            self.judge_of(warp, entry.pc, verdict)?;
        }
        Ok(())
    }

    /// Queues go on as far as a commit to a barrier that somebody waits on. True: one did.
    pub fn act_tensor_for_waiters(&mut self) -> Result<bool, Error> {
        let waited = |(slot, offset): &(CtaSlot, u32)| {
            let barrier = self.cta(*slot).barriers.get(offset);
            barrier.is_some_and(|barrier| !barrier.waiters.is_empty())
        };
        let commit = |it: &Entry| matches!(&it.work, Work::Commit(targets) if targets.iter().any(waited));
        let of = |queue: &Queue| Some(queue.entries.iter().position(commit)? + 1);
        let found = self.tensor.queues.iter().enumerate();
        let Some((at, count)) = found.filter_map(|(at, queue)| Some((at, of(queue)?))).next() else {
            return Ok(false);
        };
        for _ in 0..count {
            self.act_tensor(at).map_err(|error| *error)?;
        }
        Ok(true)
    }

    /// The oldest entry acts. True: there was one.
    pub fn act_tensor_oldest(&mut self) -> Result<bool, Error> {
        match self.tensor.oldest() {
            None => Ok(false),
            Some(at) => self.act_tensor(at).map(|()| true).map_err(|error| *error),
        }
    }

    /// Under a seeded schedule: the next entry of some queue acts.
    pub fn act_tensor_at_random(&mut self) -> Result<(), Error> {
        let busy: Vec<usize> = (0..self.tensor.queues.len())
            .filter(|at| !self.tensor.queues[*at].entries.is_empty())
            .collect();
        let at = busy[self.rng.below(busy.len() as u64) as usize];
        self.act_tensor(at).map_err(|error| *error)
    }

    /// The last warp of a CTA has ended: nothing of its threads is in flight but arrivals, which happen.
    pub fn finish_tensor(&mut self, slot: CtaSlot) -> Result<(), Error> {
        let per = self.warps_per_cta;
        for at in 0..self.tensor.queues.len() {
            if self.tensor.queues[at].warp / per != slot.0 {
                continue;
            }
            while let Some(entry) = self.tensor.queues[at].entries.front() {
                if matches!(entry.work, Work::Commit(_)) {
                    self.act_tensor(at).map_err(|error| *error)?;
                    continue;
                }
                let (warp, pc) = (self.tensor.queues[at].warp, entry.pc);
                let error = execution("a CTA ends while a product or a copy into its tensor memory is in flight")
                    .expected("a tcgen05.commit behind it, and a wait on that mbarrier, before the kernel ends")
                    .remedy("pass a barrier to the last `tcgen05_mma` (or to `tcgen05_commit_arrive`) and wait for it (`barrier_wait`) before the kernel ends");
                return Err(*self.at_issue(Box::new(error), warp, pc));
            }
        }
        self.tensor.queues.retain(|queue| queue.warp / per != slot.0);
        if let Some((pc, columns)) = self.cta(slot).tmem.left() {
            let origin = self.program.origins[pc as usize];
            return Err(execution(format!(
                "{} ends with {columns} columns of tensor memory allocated",
                self.cta_name(slot)
            ))
            .expected("tcgen05.dealloc of all that tcgen05.alloc gave it")
            .remedy("let the warp that allocated them give them back, behind a barrier after the last access")
            .at(origin.loc));
        }
        Ok(())
    }
}

/// Issues operation `aux` of the program's table; `imm`: where this micro-op is.
pub struct Issue;
impl<H: Hooks> Body<H> for Issue {
    #[inline(never)]
    fn run(w: &mut Warp, m: &mut Machine<'_, H>, u: &Uop<H>) -> Step {
        let op = m.program.tensor_ops[u.aux as usize];
        let name = op.name();
        if w.exec.count_ones() != 1 {
            return fail(
                execution(format!(
                    "{name} by more than one thread of a warp: each of them issues it"
                ))
                .expected("one lane")
                .got(format!("lanes 0x{:08x}", w.exec))
                .remedy("issue it, and its commit, under a guard that one lane passes (elect.sync)"),
            );
        }
        let lane = w.exec.trailing_zeros();
        let work = read(w, m, &op, lane as usize)?;
        issue(w, m, lane, u.imm as u32, work)?;
        Ok(Flow::Next)
    }
}

/// What is issued, with its operands as they are now, if it is legal.
fn read<H: Hooks>(w: &Warp, m: &mut Machine<'_, H>, op: &TensorOp, lane: usize) -> Result<Work, Box<Error>> {
    let word = |(base, offset): (u16, i32)| w.read::<u32>(base)[lane].wrapping_add(offset as u32);
    let smem = |m: &Machine<'_, H>, source: &Source, what: &str| source.check_inside(&m.cta(w.cta).smem, what);
    match *op {
        TensorOp::Product {
            kind,
            d,
            a,
            b,
            idesc,
            accumulate,
        } => {
            let form = Form::decode(kind, w.read::<u32>(idesc)[lane])?;
            let d = Rows::of(form.m, word(d), "tcgen05.mma: the accumulator")?;
            m.check_columns(w, "tcgen05.mma: an accumulator", d.column, form.n)?;
            let a = match a {
                AOperand::Shared(a) => {
                    let source = form.operand(w.read::<u64>(a)[lane], form.m, form.a_mn)?;
                    smem(m, &source, "tcgen05.mma: A")?;
                    A::Shared(source)
                }
                AOperand::Tensor(a) => {
                    let rows = Rows::of(form.m, word(a), "tcgen05.mma: A")?;
                    m.check_columns(w, "tcgen05.mma: an A", rows.column, K_WORDS)?;
                    check_tensor_a(&form, d, rows)?;
                    A::Tensor(rows)
                }
            };
            let b = form.operand(w.read::<u64>(b)[lane], form.n, form.b_mn)?;
            smem(m, &b, "tcgen05.mma: B")?;
            Ok(Work::Product(Box::new(Product {
                form,
                d,
                a,
                b,
                accumulates: w.predicate(accumulate) >> lane & 1 == 1,
            })))
        }
        TensorOp::Copy { shape, dst, src } => {
            let (rows, chunks) = extent(shape);
            let (lane_field, column) = split(word(dst));
            if lane_field != 0 {
                return fail(
                    execution("tcgen05.cp to a misaligned lane of tensor memory")
                        .expected("lane 0")
                        .got(format!("lane {lane_field}")),
                );
            }
            let descriptor = Descriptor::decode(w.read::<u64>(src)[lane])?;
            if descriptor.wide {
                return fail(
                    execution("tcgen05.cp of a swizzle of 32-byte atoms").expected("another swizzle (bits 61 to 63)"),
                );
            }
            let source = Source {
                descriptor,
                rows,
                bytes: 4,
                chunks,
                is_mn: false,
            };
            let copy = Copy { shape, source, column };
            m.check_columns(w, "tcgen05.cp", column, copy.columns())?;
            smem(m, &source, "tcgen05.cp")?;
            Ok(Work::Copy(Box::new(copy)))
        }
        TensorOp::Commit { bar, mask } => {
            let (slot, offset) = m.barrier_at(w.cta, word(bar))?;
            let Some(mask) = mask else {
                return Ok(Work::Commit(vec![(slot, offset)]));
            };
            let mask = w.read::<u16>(mask)[lane];
            let (first, size) = (w.cta.0 - m.cta(w.cta).rank, m.program.cluster_size());
            if mask == 0 || u32::from(mask) >> size != 0 {
                return fail(
                    execution("tcgen05.commit to several CTAs")
                        .expected(format!("a mask of CTAs of the cluster, which has {size}"))
                        .got(format!("0x{mask:x}")),
                );
            }
            let ranks = (0..size).filter(|rank| mask >> rank & 1 == 1);
            Ok(Work::Commit(
                ranks.map(|rank| (CtaSlot(first + rank), offset)).collect(),
            ))
        }
    }
}

fn check_tensor_a(form: &Form, d: Rows, a: Rows) -> Result<(), Box<Error>> {
    if form.a_mn {
        return fail(
            execution("tcgen05.mma of an A in tensor memory that is M-major")
                .expected("0 in bit 15 of the instruction descriptor: it is K-major there"),
        );
    }
    if a.lane != d.lane {
        return fail(
            execution("tcgen05.mma: A and the accumulator in different lanes of tensor memory")
                .expected(format!("A at lane {}, like the accumulator", d.lane))
                .got(format!("lane {}", a.lane)),
        );
    }
    if a.column < d.column + form.n && d.column < a.column + K_WORDS {
        return fail(
            execution("tcgen05.mma whose accumulator overlaps its A")
                .expected("different columns")
                .got(format!(
                    "columns {}..{} and {}..{}",
                    d.column,
                    d.column + form.n,
                    a.column,
                    a.column + K_WORDS
                )),
        );
    }
    Ok(())
}

fn issue<H: Hooks>(w: &mut Warp, m: &mut Machine<'_, H>, lane: u32, pc: u32, work: Work) -> Result<(), Box<Error>> {
    let warp = m.warp_id(w);
    let at = m.tensor.of(warp, lane);
    let view = m.hooks.view(w.who());
    let (number, verdict) = match &work {
        Work::Commit(targets) => {
            check_committer(m, at)?;
            m.hooks
                .tensor_committed(w.who(), m.program.origins[pc as usize].loc, targets)
        }
        work if H::LISTENS => tell(w, m, &view, pc, work),
        _ => (0, Ok(())),
    };
    m.judge(w, verdict)?;
    if let Work::Product(product) = &work {
        m.record_tensor_product(warp, Some((product, pc)));
    }
    let sequence = m.tensor.sequence;
    m.tensor.sequence += 1;
    let queue = &mut m.tensor.queues[at];
    queue.issued += u64::from(!matches!(work, Work::Commit(_)));
    queue.entries.push_back(Entry {
        sequence,
        pc,
        work,
        view,
        number,
    });
    match m.options.agents {
        AgentOrder::Latest => {}
        AgentOrder::Earliest => {
            while !m.tensor.queues[at].entries.is_empty() {
                m.act_tensor(at)?;
            }
        }
        AgentOrder::Seeded(_) => {
            while !m.tensor.queues[at].entries.is_empty() && m.rng.below(2) == 0 {
                m.act_tensor(at)?;
            }
        }
    }
    Ok(())
}

/// A commit of a thread that has issued nothing arrives at once, whatever others of its warp have issued.
fn check_committer<H: Hooks>(m: &Machine<'_, H>, at: usize) -> Result<(), Box<Error>> {
    let queue = &m.tensor.queues[at];
    let other = |it: &&Queue| it.warp == queue.warp && it.issued > 0;
    match m.tensor.queues.iter().find(other) {
        Some(other) if H::LISTENS && queue.issued == 0 => fail(
            execution("tcgen05.commit by a thread that has issued nothing, while another one of its warp has")
                .expected(format!(
                    "the commit by lane {}, which issued: it covers its own thread's alone",
                    other.lane
                ))
                .got(format!("lane {}", queue.lane))
                .remedy("guard the commit as the products are"),
        ),
        _ => Ok(()),
    }
}

/// Tells the checker of a product or a copy.
fn tell<H: Hooks>(w: &Warp, m: &mut Machine<'_, H>, view: &View, pc: u32, work: &Work) -> Issued {
    let mut lines = std::mem::take(&mut m.tensor.lines);
    lines.clear();
    let mut told = TensorWork {
        writes: Cells::all(0, 0),
        reads: None,
        accumulator: None,
        lines: &[],
        loc: m.program.origins[pc as usize].loc,
    };
    match work {
        Work::Product(it) => {
            it.b.lines(&mut lines);
            match &it.a {
                A::Shared(a) => a.lines(&mut lines),
                A::Tensor(rows) => told.reads = Some(rows.cells(K_WORDS)),
            }
            told.writes = it.d.cells(it.form.n);
            told.accumulator = Some((it.d.lane << 16 | it.d.column, it.form.m << 16 | it.form.n));
        }
        Work::Copy(it) => {
            it.source.lines(&mut lines);
            told.writes = Cells::all(it.column, it.columns());
        }
        Work::Commit(_) => {}
    }
    told.lines = &lines;
    let issued = m.hooks.tensor_issued(w.who(), view, told);
    m.tensor.lines = lines;
    issued
}
