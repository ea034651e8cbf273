//! Tensor memory: 128 lanes of 512 words of 32 bits for each CTA; who has which columns of it; and what warps move between it and registers.
//!
//! An address is `lane << 16 | column`. A warp reaches the 32 lanes of its quarter, `32·(warp % 4)…`; what an address says of the lane counts from
//! there, and may have the quarter in it. Columns are had in runs of a power of two of units, aligned to their length, the first that is free.
//!
//! A store acts at the latest at the `tcgen05.wait::st` behind it (what agents' order says, says when); a load has read when it is issued, whatever
//! the order: its registers may be used at once. The checker takes it for pending until `tcgen05.wait::ld` all the same.
use super::check::{Cells, Hooks, Mode, Touch, Touched};
use super::machine::Machine;
use super::mem::{SharedCta, Space, denied};
use super::options::AgentOrder;
use super::shared::CtaSlot;
use super::sync::check_converged;
use super::uop::{Body, Flow, Step, Uop, fail};
use super::warp::{Wait, Warp};
use crate::error::{Error, Fault};
use crate::ptx::modifier::{StoreSem, TmemAccess, TmemShape};
use std::collections::VecDeque;

pub const LANES: u32 = 128;
pub const COLUMNS: u32 = 512;
/// Columns that are had together.
const UNIT: u32 = 32;

/// Columns that a CTA has.
#[derive(Clone, Copy, Debug)]
struct Allocation {
    first: u32,
    columns: u32,
    /// The instruction.
    pc: u32,
}

/// The tensor memory of a CTA.
#[derive(Default)]
pub struct TensorMemory {
    /// By lane, then by column; empty before the first allocation.
    words: Vec<u32>,
    /// Bits of the words that something has written.
    defined: Vec<u64>,
    allocations: Vec<Allocation>,
    /// Columns of the last allocation; no later one may have more.
    last: Option<u32>,
    relinquished: bool,
    /// Warps that wait for columns.
    pub waiters: Vec<u32>,
}

impl TensorMemory {
    /// As before a CTA starts.
    pub fn reset(&mut self) {
        self.allocations.clear();
        self.waiters.clear();
        (self.last, self.relinquished) = (None, false);
    }

    /// The instruction of an allocation that is left, and its columns.
    pub fn left(&self) -> Option<(u32, u32)> {
        self.allocations.first().map(|it| (it.pc, it.columns))
    }

    /// Columns that somebody has, as bits of units.
    fn taken(&self) -> u32 {
        let units = |it: &Allocation| (u32::MAX >> (32 - it.columns / UNIT)) << (it.first / UNIT);
        self.allocations.iter().fold(0, |all, it| all | units(it))
    }

    /// Whether all these columns are had.
    pub fn has(&self, first: u32, columns: u32) -> bool {
        let taken = self.taken();
        let last = first.saturating_add(columns.max(1)) - 1;
        last < COLUMNS && (first / UNIT..=last / UNIT).all(|unit| taken >> unit & 1 == 1)
    }

    /// What is had, in words.
    fn describe(&self) -> String {
        let runs: Vec<String> = self
            .allocations
            .iter()
            .map(|it| format!("{}..{}", it.first, it.first + it.columns))
            .collect();
        match runs.is_empty() {
            true => "the CTA has no columns".into(),
            false => format!("the CTA has columns {}", runs.join(", ")),
        }
    }

    /// The first free run, and it is taken. What it holds is undefined.
    fn allocate(&mut self, columns: u32, pc: u32, poison: u8) -> Option<u32> {
        let (taken, units) = (self.taken(), columns / UNIT);
        let run = u32::MAX >> (32 - units);
        let unit = (0..COLUMNS / UNIT)
            .step_by(units as usize)
            .find(|unit| taken & run << unit == 0)?;
        let first = unit * UNIT;
        self.allocations.push(Allocation { first, columns, pc });
        self.last = Some(columns);
        self.words.resize((LANES * COLUMNS) as usize, 0);
        self.defined.resize((LANES * COLUMNS / 64) as usize, 0);
        for lane in 0..LANES {
            self.row_mut(lane, first, columns).fill(u32::from_ne_bytes([poison; 4]));
            self.define(lane, first, columns, false);
        }
        Some(first)
    }

    /// Words of a lane.
    #[inline(always)]
    pub fn row(&self, lane: u32, first: u32, columns: u32) -> &[u32] {
        &self.words[(lane * COLUMNS + first) as usize..][..columns as usize]
    }
    #[inline(always)]
    pub fn row_mut(&mut self, lane: u32, first: u32, columns: u32) -> &mut [u32] {
        &mut self.words[(lane * COLUMNS + first) as usize..][..columns as usize]
    }

    /// The bits of columns in the word of bits that begins at column `64·at`.
    fn bits(at: u32, first: u32, columns: u32) -> u64 {
        let (from, to) = (first.max(64 * at), (first + columns).min(64 * at + 64));
        match to.checked_sub(from) {
            None | Some(0) => 0,
            Some(n) => u64::MAX >> (64 - n) << (from - 64 * at),
        }
    }

    /// Words of a lane have been written, or forgotten.
    pub fn define(&mut self, lane: u32, first: u32, columns: u32, is: bool) {
        for at in first / 64..(first + columns).div_ceil(64) {
            let bits = TensorMemory::bits(at, first, columns);
            let word = &mut self.defined[(lane * COLUMNS / 64 + at) as usize];
            *word = if is { *word | bits } else { *word & !bits };
        }
    }

    /// Whether something has written all these words of a lane.
    pub fn is_defined(&self, lane: u32, first: u32, columns: u32) -> bool {
        (first / 64..(first + columns).div_ceil(64)).all(|at| {
            let bits = TensorMemory::bits(at, first, columns);
            self.defined[(lane * COLUMNS / 64 + at) as usize] & bits == bits
        })
    }
}

/// The lane and the column of an address.
pub fn split(address: u32) -> (u32, u32) {
    (address >> 16, address & 0xffff)
}

pub fn execution(what: impl Into<String>) -> Error {
    Error::new(Fault::Execution, what)
}

impl<H: Hooks> Machine<'_, H> {
    /// Columns that an instruction names, which the CTA of a warp must have.
    pub fn check_columns(&self, w: &Warp, what: &str, first: u32, columns: u32) -> Result<(), Box<Error>> {
        let memory = &self.cta(w.cta).tmem;
        if memory.has(first, columns) {
            return Ok(());
        }
        fail(
            execution(format!("{what} of columns of tensor memory that are not allocated"))
                .expected("columns of an allocation (tcgen05.alloc) that has not been given back")
                .got(format!("columns {first}..{}; {}", first + columns, memory.describe()))
                .remedy("check the column of the address, and how many columns the instruction takes; pass the address on from the warp that allocates behind a barrier"),
        )
    }

    /// The warp reads words that nothing wrote, if that matters.
    fn read_undefined(&self, w: &Warp, what: &str, (lane, column): (u32, u32)) -> Result<(), Box<Error>> {
        if !self.heeds_undefined() {
            return Ok(());
        }
        if self.options.denies_undefined() {
            return fail(self.undefined_words(w.cta, what, lane, column));
        }
        self.note_undefined(self.here());
        Ok(())
    }

    pub fn undefined_words(&self, cta: CtaSlot, what: &str, lane: u32, column: u32) -> Error {
        execution(format!("{what} of tensor memory that nothing wrote"))
            .expected("a store, a copy or a product (that does not accumulate) to it before")
            .got(format!("lane {lane}, column {column} of {}", self.cta_name(cta)))
            .remedy("write it first, or let the first product not accumulate (`accumulate=False`)")
    }
}

/// The warp's lanes, all of which must execute it.
fn check_whole(w: &Warp, what: &str) -> Result<(), Box<Error>> {
    check_converged(w, what)?;
    if w.exec == !0 {
        return Ok(());
    }
    fail(
        execution(format!("{what} by a warp that is not whole"))
            .expected("all 32 lanes of the warp (.sync.aligned)")
            .got(format!("lanes 0x{:08x}", w.exec)),
    )
}

fn uniform(w: &Warp, operand: u16, what: &str, which: &str) -> Result<u32, Box<Error>> {
    w.uniform::<u32>(operand).ok_or_else(|| {
        Box::new(
            execution(format!("{what} whose {which} differs between lanes"))
                .expected("the same in all lanes of the warp (.sync.aligned)")
                .remedy("let it not depend on the thread's index within the warp"),
        )
    })
}

/// Columns of an allocation.
fn columns_of(w: &Warp, operand: u16, what: &str) -> Result<u32, Box<Error>> {
    let columns = uniform(w, operand, what, "number of columns")?;
    if columns.is_power_of_two() && (UNIT..=COLUMNS).contains(&columns) {
        return Ok(columns);
    }
    fail(
        execution(what)
            .expected("a power of two of columns from 32 to 512")
            .got(columns.to_string()),
    )
}

/// Allocates `b` columns, and writes their address to `a` + `imm` of shared memory.
pub struct Allocate;
impl<H: Hooks> Body<H> for Allocate {
    #[inline(never)]
    fn run(w: &mut Warp, m: &mut Machine<'_, H>, u: &Uop<H>) -> Step {
        const WHAT: &str = "tcgen05.alloc";
        check_whole(w, WHAT)?;
        let columns = columns_of(w, u.b, WHAT)?;
        let to = uniform(w, u.a, WHAT, "destination")?.wrapping_add(u.imm as u32);
        let (me, poison) = (m.warp_id(w), m.options.poison);
        let memory = &mut m.cta_mut(w.cta).tmem;
        if memory.relinquished {
            return fail(
                execution("tcgen05.alloc after tcgen05.relinquish_alloc_permit")
                    .expected("all allocations of a CTA before it gives up the right to more")
                    .remedy("allocate all tensor memory at the start of the kernel"),
            );
        }
        if let Some(last) = memory.last.filter(|last| columns > *last) {
            return fail(
                execution("tcgen05.alloc of more columns than the allocation before")
                    .expected(format!(
                        "at most {last} columns: allocations of a CTA may not grow (PTX ISA, tcgen05.alloc)"
                    ))
                    .got(columns.to_string())
                    .remedy("allocate the largest first, or all in one"),
            );
        }
        let Some(first) = memory.allocate(columns, u.aux, poison) else {
            memory.waiters.push(me);
            w.wait = Wait::Columns { columns };
            return Ok(Flow::Block);
        };
        let loc = m.program.origins[u.aux as usize].loc;
        let cells = Cells::all(first, columns);
        let verdict = m
            .hooks
            .tensor_touched(w.who(), Touch::new(Touched::Allocate, cells, loc));
        m.judge(w, verdict)?;
        // One lane stores the address.
        let all = w.exec;
        w.set_exec(1);
        let stored = (|| {
            let mut value = [0; 16];
            value[..4].copy_from_slice(&first.to_le_bytes());
            SharedCta::check(m, w, &[to; 32], 0, 4, Mode::Store(StoreSem::Weak), &|_| value)?;
            SharedCta::write::<4, H>(m, w, to.into(), first.to_le_bytes())
                .map_err(|why| denied(m, w, why, "tcgen05.alloc", SharedCta::NAME, 0, to.into(), 4))
        })();
        w.set_exec(all);
        stored?;
        Ok(Flow::Next)
    }
}

/// Gives back the `b` columns from address `a` on.
pub struct Deallocate;
impl<H: Hooks> Body<H> for Deallocate {
    #[inline(never)]
    fn run(w: &mut Warp, m: &mut Machine<'_, H>, u: &Uop<H>) -> Step {
        const WHAT: &str = "tcgen05.dealloc";
        check_whole(w, WHAT)?;
        let columns = columns_of(w, u.b, WHAT)?;
        let address = uniform(w, u.a, WHAT, "address")?;
        let memory = &mut m.cta_mut(w.cta).tmem;
        let is_it = |it: &Allocation| (it.first, it.columns) == (address, columns);
        let Some(at) = memory.allocations.iter().position(is_it) else {
            let has = memory.describe();
            return fail(
                execution("tcgen05.dealloc of what tcgen05.alloc did not return")
                    .expected("an address that an allocation returned, and as many columns as it had; once")
                    .got(format!("address 0x{address:x}, {columns} columns; {has}")),
            );
        };
        let pc = memory.allocations.swap_remove(at).pc;
        let woken = std::mem::take(&mut memory.waiters);
        m.ready.extend(woken);
        let loc = m.program.origins[pc as usize].loc;
        let cells = Cells::all(address, columns);
        let verdict = m.hooks.tensor_touched(w.who(), Touch::new(Touched::Give, cells, loc));
        m.judge(w, verdict)?;
        Ok(Flow::Next)
    }
}

/// Gives up the right to allocate.
pub struct Relinquish;
impl<H: Hooks> Body<H> for Relinquish {
    #[inline(never)]
    fn run(w: &mut Warp, m: &mut Machine<'_, H>, _: &Uop<H>) -> Step {
        check_whole(w, "tcgen05.relinquish_alloc_permit")?;
        m.cta_mut(w.cta).tmem.relinquished = true;
        Ok(Flow::Next)
    }
}

/// A load or a store, as a side table holds it.
#[derive(Clone, Debug)]
pub struct Transfer {
    pub shape: TmemShape,
    pub times: u32,
    /// Registers hold two words' low halves.
    pub packed: bool,
    pub registers: Vec<u16>,
}

impl Transfer {
    /// Columns that it touches.
    fn columns(&self) -> u32 {
        self.times * self.shape.once().1 * if self.packed { 2 } else { 1 }
    }

    fn lanes(&self) -> u32 {
        if self.shape == TmemShape::L32B32 { 32 } else { 16 }
    }

    /// Of register `r` of thread `t` the lane and the column, from where the transfer begins. PTX ISA, "Data movement shapes"; CUTLASS,
    /// `copy_traits_sm100.hpp`.
    #[inline(always)]
    fn place(&self, t: u32, r: u32) -> (u32, u32) {
        match self.shape {
            TmemShape::L32B32 => (t, r),
            TmemShape::L16B64 => (t / 4 + 8 * (t & 1), (t >> 1 & 1) + 2 * r),
            TmemShape::L16B128 => (t / 4 + 8 * (r & 1), (t & 3) + 4 * (r >> 1)),
            TmemShape::L16B256 => (t / 4 + 8 * (r >> 1 & 1), 2 * (t & 3) + (r & 1) + 8 * (r >> 2)),
        }
    }

    /// Where it begins, for a warp: lane and column.
    fn start<H: Hooks>(&self, w: &Warp, m: &Machine<'_, H>, u: &Uop<H>, what: &str) -> Result<(u32, u32), Box<Error>> {
        check_whole(w, what)?;
        let (lane, column) = split(uniform(w, u.a, what, "address")?.wrapping_add(u.imm as u32));
        let own = w.index % 4;
        if lane >= LANES || lane / 32 != 0 && lane / 32 != own {
            return fail(
                execution(format!("{what} of lanes outside the warp's quarter of tensor memory"))
                    .expected(format!("lanes {}..{} for warp {}", 32 * own, 32 * own + 32, w.index))
                    .got(format!("lane {lane}"))
                    .remedy("let the four warps of a warpgroup access 32 lanes each"),
            );
        }
        if !(lane % 32).is_multiple_of(self.lanes()) {
            return fail(
                execution(format!("{what} at a misaligned lane"))
                    .expected(format!("a multiple of {}", self.lanes()))
                    .got(lane.to_string()),
            );
        }
        m.check_columns(w, what, column, self.columns())?;
        Ok((32 * own + lane % 32, column))
    }

    fn cells(&self, (lane, column): (u32, u32)) -> Cells {
        Cells::of_lanes(lane, self.lanes(), column, self.columns())
    }
}

/// Stores that have yet to act.
#[derive(Default)]
pub struct Pending(VecDeque<Store>);

struct Store {
    transfer: u32,
    start: (u32, u32),
    values: Vec<[u32; 32]>,
}

impl Pending {
    pub fn clear(&mut self) {
        self.0.clear();
    }
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Loads from tensor memory at `a` + `imm`, by transfer `aux` of the program's table.
pub struct TensorLoad;
impl<H: Hooks> Body<H> for TensorLoad {
    #[inline(never)]
    fn run(w: &mut Warp, m: &mut Machine<'_, H>, u: &Uop<H>) -> Step {
        let program = m.program;
        let op = &program.transfers[u.aux as usize];
        let (lane, column) = op.start(w, m, u, "tcgen05.ld")?;
        if H::LISTENS {
            let touch = Touch::new(Touched::Load, op.cells((lane, column)), m.here());
            let verdict = m.hooks.tensor_touched(w.who(), touch);
            m.judge(w, verdict)?;
        }
        let memory = &m.ctas[w.cta.0 as usize].tmem;
        let undefined = (lane..lane + op.lanes()).find(|at| !memory.is_defined(*at, column, op.columns()));
        if let Some(at) = undefined {
            m.read_undefined(w, "tcgen05.ld", (at, column))?;
        }
        for (r, to) in op.registers.iter().enumerate() {
            let to = w.register::<u32>(*to);
            for (t, to) in to.iter_mut().enumerate() {
                let (l, c) = op.place(t as u32, r as u32);
                *to = match op.packed {
                    false => memory.row(lane + l, column + c, 1)[0],
                    true => {
                        let pair = memory.row(lane + l, column + 2 * c, 2);
                        pair[0] & 0xffff | pair[1] << 16
                    }
                };
            }
        }
        Ok(Flow::Next)
    }
}

/// Stores to tensor memory at `a` + `imm`, by transfer `aux` of the program's table.
pub struct TensorStore;
impl<H: Hooks> Body<H> for TensorStore {
    #[inline(never)]
    fn run(w: &mut Warp, m: &mut Machine<'_, H>, u: &Uop<H>) -> Step {
        let program = m.program;
        let op = &program.transfers[u.aux as usize];
        let start = op.start(w, m, u, "tcgen05.st")?;
        if H::LISTENS {
            let touch = Touch::new(Touched::Store, op.cells(start), m.here());
            let verdict = m.hooks.tensor_touched(w.who(), touch);
            m.judge(w, verdict)?;
        }
        w.tensor_stores.0.push_back(Store {
            transfer: u.aux,
            start,
            values: op.registers.iter().map(|r| *w.read::<u32>(*r)).collect(),
        });
        let now = match m.options.agents {
            AgentOrder::Earliest => true,
            AgentOrder::Latest => false,
            AgentOrder::Seeded(_) => m.rng.below(2) == 0,
        };
        if now {
            store_all(w, m);
        }
        Ok(Flow::Next)
    }
}

/// The warp's stores that have yet to act do.
pub fn store_all<H: Hooks>(w: &mut Warp, m: &mut Machine<'_, H>) {
    let program = m.program;
    let memory = &mut m.cta_mut(w.cta).tmem;
    while let Some(store) = w.tensor_stores.0.pop_front() {
        let op = &program.transfers[store.transfer as usize];
        let (lane, column) = store.start;
        for (r, values) in store.values.iter().enumerate() {
            for (t, value) in values.iter().enumerate() {
                let (l, c) = op.place(t as u32, r as u32);
                match op.packed {
                    false => memory.row_mut(lane + l, column + c, 1)[0] = *value,
                    true => memory
                        .row_mut(lane + l, column + 2 * c, 2)
                        .copy_from_slice(&[value & 0xffff, value >> 16]),
                }
            }
        }
        for lane in lane..lane + op.lanes() {
            memory.define(lane, column, op.columns(), true);
        }
    }
}

/// `tcgen05.wait::ld` (`imm` 0) and `::st`.
pub struct TensorWait;
impl<H: Hooks> Body<H> for TensorWait {
    #[inline(never)]
    fn run(w: &mut Warp, m: &mut Machine<'_, H>, u: &Uop<H>) -> Step {
        check_whole(w, "tcgen05.wait")?;
        let what = match u.imm {
            0 => TmemAccess::Loads,
            _ => TmemAccess::Stores,
        };
        if what == TmemAccess::Stores {
            store_all(w, m);
        }
        m.hooks.tensor_waited(w.who(), what);
        Ok(Flow::Next)
    }
}

/// `tcgen05.fence`: it adds nothing to what barriers order here ([`super::check`]).
pub struct TensorFence;
impl<H: Hooks> Body<H> for TensorFence {
    #[inline(always)]
    fn run(_: &mut Warp, _: &mut Machine<'_, H>, _: &Uop<H>) -> Step {
        Ok(Flow::Next)
    }
}
