//! Places everything that lives in shared memory: data, barriers, scratch.
//!
//! Shared memory is laid out as `[data, 1024-byte aligned] [scratch per warpgroup] [barriers]`. Sibling scopes get separate
//! memory while everything fits; when it does not, a scope may take the memory of scopes before it that every warpgroup
//! has left (`Allocation::reuses`), and is then ordered after them, asynchronous work included. Allocations made in an arm that only some
//! warpgroups take are never reused: warpgroups run concurrently, in arms of one `cond` and in successive ones. Nor are those of a scope that
//! each of several warpgroups enters by itself.
//! Barriers are never reused: their phases live as long as the kernel.
use super::arrivals::{self, Arrivals};
use super::feeding_loops::{self, FeedingLoops};
use super::parked::Parked;
use super::rendezvous;
use crate::error::{Error, Loc, Result};
use crate::kernel_ir::class::{Class, Control, Pure};
use crate::kernel_ir::visit::{for_each_region, for_each_value};
use crate::kernel_ir::*;
use crate::layout::tensor_memory;
use crate::target::Features;
use cranelift_entity::SecondaryMap;
use cranelift_entity::packed_option::PackedOption;
use rustc_hash::FxHashSet;
use std::fmt::Write;

/// Alignment of data in shared memory: the period of the 128-byte swizzle.
pub const DATA_ALIGNMENT: u32 = 1024;

/// The block's shared memory, in bytes from its start (1024-byte aligned).
#[derive(Clone, Debug, Default)]
pub struct Allocation {
    /// Start of each SMEM allocation and of each barrier allocation (8 bytes a barrier).
    pub smem: SecondaryMap<Alloc, Option<u32>>,
    /// Which threads arrive on barriers.
    pub arrivals: Arrivals,
    /// Compiler scratch: warpgroup `w` has `[start + w·bytes, start + (w + 1)·bytes)`, each of its warps a quarter.
    pub scratch: ScratchArea,
    /// A table of addresses on the other devices: eight bytes for each device and each allocation that it has of its own, and as many
    /// for the semaphores.
    pub exchange: Option<u32>,
    /// Where waits have a limit: a flag, set when a wait in the block has taken longer, and the mbarrier at which the block ends.
    pub gave_up: Option<u32>,
    /// Tensor memory.
    pub tensor: TensorMemory,
    /// Accumulators that are not all in registers.
    pub parked: Parked,
    /// All of it.
    pub smem_bytes: u32,
    /// Whether scopes take over the memory of others.
    pub reuses: bool,
    /// Which threads wait for mbarriers.
    pub feeding: FeedingLoops,
    /// Ops that pass something through scratch: the executing group passes a barrier before it is written, and before it is read.
    pub rendezvous: SecondaryMap<Op, bool>,
    /// Loads of scalars that the first lane makes for itself.
    pub by_leader: SecondaryMap<Op, bool>,
    /// What an arrival is tied to: some of its elements are there before.
    pub tied: SecondaryMap<Op, PackedOption<Value>>,
}

/// The block's tensor memory: one allocation for the whole kernel.
#[derive(Clone, Debug, Default)]
pub struct TensorMemory {
    /// The first column of each allocation, from the block's first.
    pub starts: SecondaryMap<Alloc, Option<u32>>,
    /// All of them, as they are allocated; none: it has no tensor memory.
    pub columns: Option<u32>,
    /// Where in shared memory its address is left.
    pub address: u32,
}

impl TensorMemory {
    /// Every allocation has columns of its own. Of a union all members begin where it does.
    fn of(kernel: &Kernel) -> Result<TensorMemory> {
        let mut out = TensorMemory::default();
        let mut next = 0;
        for (alloc, data) in kernel.allocs.iter().filter(|(_, data)| data.is_tmem()) {
            let columns = match (&data.kind, &data.within) {
                (AllocKind::TmemUnion, _) => data.shape.last().copied().unwrap_or(0),
                (_, Some(within)) => {
                    let union = out.starts[within.union];
                    let start = union.ok_or_else(|| Error::internal("a union member before its union"))?;
                    out.starts[alloc] = Some(start + within.offset as u32);
                    continue;
                }
                (_, None) => tensor_memory::columns(kernel, alloc).map_err(|e| e.at(data.loc))?,
            };
            if kernel.num_warpgroups > 1 && !data.collective {
                return Err(Error::unsupported("tensor memory of each warpgroup")
                    .at(data.loc)
                    .expected("tensor memory that the warpgroups of a block share")
                    .remedy("allocate it among the kernel's scratch, or with collective_axes= in pl.run_scoped"));
            }
            if columns > tensor_memory::COLUMNS || next + columns > tensor_memory::COLUMNS {
                return Err(Error::invalid("tensor memory")
                    .at(data.loc)
                    .expected("at most 512 columns for a block, all of its references together")
                    .got(format!("{} columns", next + columns))
                    .remedy("use smaller tiles, packed=True for left operands, or a plgpu.RefUnion of what is never used at once"));
            }
            out.starts[alloc] = Some(next as u32);
            next = (next + columns).next_multiple_of(tensor_memory::COLUMN_ALIGNMENT);
        }
        // PTX ISA, tcgen05.alloc: powers of two from 32 on.
        out.columns = (next > 0).then(|| (next as u32).next_power_of_two().max(32));
        Ok(out)
    }
}

/// Scratch for relayouts and reductions that cross warps.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ScratchArea {
    /// A multiple of 128.
    pub start: u32,
    /// Of one warpgroup; a multiple of 512.
    pub bytes: u32,
}

/// `scratch_bytes`: what lowering needs for each warpgroup; `needs`: how much of it which ops need.
pub fn run(kernel: &Kernel, scratch_bytes: u32, needs: &[(u64, Op)]) -> Result<Allocation> {
    let available = u64::from(kernel.target.max_smem_bytes);
    let scratch_bytes = scratch_bytes.next_multiple_of(512);
    let barriers: u64 = kernel
        .allocs
        .values()
        .filter(|a| a.is_barrier())
        .map(|a| a.shape.iter().product::<u64>() * 8)
        .sum();
    let exchange = match kernel.shared_with_peers().len() as u64 {
        0 => 0,
        shared => 8 * u64::from(kernel.devices()) * (shared + 1),
    };
    let gave_up = if kernel.compiler_params.wait_timeout_ns > 0 {
        16
    } else {
        0
    };
    let mut tensor = TensorMemory::of(kernel)?;
    let address = if tensor.columns.is_some() { 16 } else { 0 };
    let fixed =
        u64::from(scratch_bytes) * u64::from(kernel.num_warpgroups) + barriers + exchange + gave_up + address + 128;
    let taint = thread_dependent(kernel);
    let mut separate = Placer::new(kernel, &taint, false);
    separate.region(kernel.body, 0, false)?;
    let placer = if separate.end + fixed <= available {
        separate
    } else {
        let mut reused = Placer::new(kernel, &taint, true);
        reused.region(kernel.body, 0, false)?;
        if reused.end + fixed > available {
            return Err(too_much(kernel, &reused, fixed, scratch_bytes, needs));
        }
        reused
    };
    // All of this was just compared with the limit, which is 32-bit.
    let start = placer.end.next_multiple_of(128) as u32;
    let mut out = Allocation {
        smem: placer.offsets,
        reuses: placer.reuse,
        scratch: ScratchArea {
            start,
            bytes: scratch_bytes,
        },
        feeding: feeding_loops::find(kernel),
        tied: rendezvous::find(kernel),
        arrivals: arrivals::find(kernel)?,
        ..Allocation::default()
    };
    let mut next = start + scratch_bytes * kernel.num_warpgroups;
    for (alloc, data) in kernel.allocs.iter() {
        if data.is_barrier() {
            out.smem[alloc] = Some(next);
            next += data.shape.iter().product::<u64>() as u32 * 8;
        }
    }
    if exchange > 0 {
        out.exchange = Some(next);
        next += exchange as u32;
    }
    if gave_up > 0 {
        out.gave_up = Some(next);
        next += gave_up as u32;
    }
    if address > 0 {
        tensor.address = next;
        next += address as u32;
    }
    out.tensor = tensor;
    out.smem_bytes = next;
    Ok(out)
}

/// Whether a scope's memory may be that of others, too. Where each warpgroup enters it by itself no barrier of the block can stand before it.
pub fn shares(kernel: &Kernel, allocs: &[Alloc], collective: bool) -> bool {
    collective || kernel.num_warpgroups == 1 || !allocs.iter().any(|alloc| kernel.allocs[*alloc].is_smem())
}

/// Scalars that may differ between the warpgroups of a block.
pub fn thread_dependent(kernel: &Kernel) -> SecondaryMap<Value, bool> {
    let mut taint: SecondaryMap<Value, bool> = SecondaryMap::new();
    // Loops feed values back, and nested ones through one another: until nothing changes. Values only ever become tainted.
    while taint_region(kernel, kernel.body, &mut taint) {}
    taint
}

/// One way through a region; whether a value became tainted.
fn taint_region(kernel: &Kernel, region: Region, taint: &mut SecondaryMap<Value, bool>) -> bool {
    let mut changed = false;
    for &op in &kernel.regions[region].ops {
        let data = &kernel.ops[op];
        let mut tainted = match data.kind.class() {
            Class::Pure(Pure::AxisIndex(axis)) => kernel.thread_axis == Some(axis),
            // A text that looks at lanes sees which ones they are.
            Class::Pure(Pure::Inline) => kernel.num_warpgroups > 1 && !computes(&data.kind),
            Class::Memory | Class::Synchronisation | Class::Accumulator | Class::Tensor | Class::Instructions => {
                kernel.num_warpgroups > 1
            }
            Class::Pure(
                Pure::Constant(_)
                | Pure::Iota
                | Pure::Elementwise(_)
                | Pure::Bitcast
                | Pure::Shape(_)
                | Pure::Reduce { .. }
                | Pure::Run
                | Pure::Exchange
                | Pure::Product { .. }
                | Pure::LayoutCast
                | Pure::Relayout { .. },
            )
            | Class::Pinned
            | Class::Control(_)
            | Class::Aside => false,
        };
        for_each_value(&data.kind, &mut |v| tainted |= taint[v]);
        let mut regions = vec![];
        for_each_region(&data.kind, &mut |r| regions.push(r));
        for &r in &regions {
            changed |= taint_all(&kernel.regions[r].params, tainted, taint);
            changed |= taint_region(kernel, r, taint);
            for v in &kernel.regions[r].results {
                tainted |= taint[*v];
            }
        }
        for &r in &regions {
            changed |= taint_all(&kernel.regions[r].params, tainted, taint);
        }
        changed |= taint_all(&data.results, tainted, taint);
    }
    changed
}

/// Whether a text's results are made of its operands alone.
fn computes(kind: &OpKind) -> bool {
    matches!(
        kind,
        OpKind::InlinePtx {
            does: Does::Computes,
            ..
        }
    )
}

fn taint_all(values: &[Value], tainted: bool, taint: &mut SecondaryMap<Value, bool>) -> bool {
    let mut changed = false;
    if tainted {
        for &v in values {
            changed |= !std::mem::replace(&mut taint[v], true);
        }
    }
    changed
}

struct Placer<'a> {
    kernel: &'a Kernel,
    taint: &'a SecondaryMap<Value, bool>,
    reuse: bool,
    offsets: SecondaryMap<Alloc, Option<u32>>,
    /// The highest byte used by anything so far.
    end: u64,
}

impl<'a> Placer<'a> {
    fn new(kernel: &'a Kernel, taint: &'a SecondaryMap<Value, bool>, reuse: bool) -> Placer<'a> {
        Placer {
            kernel,
            taint,
            reuse,
            offsets: SecondaryMap::new(),
            end: 0,
        }
    }

    /// Places what is in `region` from byte `top` on; returns the first byte that what follows may use.
    fn region(&mut self, region: Region, top: u64, divergent: bool) -> Result<u64> {
        let mut top = top;
        for &op in &self.kernel.regions[region].ops {
            let data = &self.kernel.ops[op];
            match data.kind.control() {
                Some(Control::Scope {
                    allocs,
                    collective,
                    body,
                }) => {
                    let shares = self.reuse && shares(self.kernel, allocs, collective);
                    let start = if shares { top } else { top.max(self.end) };
                    let mut at = start;
                    for &alloc in allocs {
                        at = self.place(alloc, at).map_err(|e| e.at(data.loc))?;
                    }
                    self.end = self.end.max(at);
                    let after = self.region(body, at, divergent)?;
                    if divergent || !shares {
                        top = top.max(after).max(at);
                    }
                }
                Some(Control::Switch { selector, arms }) => {
                    let divergent = divergent || self.taint[selector];
                    let before = top;
                    for &arm in arms {
                        let after = self.region(arm, if divergent { top } else { before }, divergent)?;
                        top = top.max(after);
                    }
                }
                Some(control @ (Control::For { .. } | Control::While { .. } | Control::WarpMap { .. })) => {
                    for border in control.carries() {
                        top = self.region(border.region, top, divergent)?;
                    }
                }
                None => {}
            }
        }
        Ok(top)
    }

    fn place(&mut self, alloc: Alloc, at: u64) -> Result<u64> {
        let data = &self.kernel.allocs[alloc];
        let bytes = match &data.kind {
            AllocKind::Smem { dtype, .. } => {
                if let Some(within) = data.within {
                    let base =
                        self.offsets[within.union].ok_or_else(|| Error::internal("a union member before its union"))?;
                    self.offsets[alloc] = Some(base + within.offset as u32);
                    return Ok(at);
                }
                dtype.bytes(data.shape.iter().product())
            }
            AllocKind::SmemUnion => data.shape.iter().try_fold(1u64, |a, b| a.checked_mul(*b)),
            AllocKind::Gmem { .. }
            | AllocKind::Tmem { .. }
            | AllocKind::TmemUnion
            | AllocKind::Barrier { .. }
            | AllocKind::Semaphore { .. }
            | AllocKind::Register { .. } => return Ok(at),
        };
        let offset = at.next_multiple_of(u64::from(DATA_ALIGNMENT));
        let end = bytes
            .and_then(|b| b.checked_add(offset))
            .filter(|e| *e < u64::from(u32::MAX))
            .ok_or_else(|| {
                Error::invalid("shared memory")
                    .expected("at most what a block has, some 227 KiB")
                    .got(format!("an allocation of shape {:?}", data.shape.as_slice()))
                    .remedy("use smaller tiles, or plgpu.GMEM")
            })?;
        self.offsets[alloc] = Some(offset as u32);
        Ok(end)
    }
}

/// The sum, and what it is made of, the largest first.
fn too_much(kernel: &Kernel, placer: &Placer<'_>, fixed: u64, scratch_bytes: u32, needs: &[(u64, Op)]) -> Error {
    let mut rows: Vec<(u64, String, Loc)> = vec![];
    for (_, data) in kernel.allocs.iter() {
        let count: u64 = data.shape.iter().product();
        let (bytes, what) = match (&data.kind, &data.within) {
            (AllocKind::Smem { dtype, .. }, None) => (
                dtype.bytes(count).unwrap_or(u64::MAX),
                format!("{dtype}{:?}", data.shape.as_slice()),
            ),
            (AllocKind::SmemUnion, _) => (count, "a RefUnion".into()),
            (AllocKind::Barrier { .. }, _) => (8 * count, format!("{count} barriers")),
            _ => continue,
        };
        rows.push((bytes, what, data.loc));
    }
    rows.sort_by_key(|row| std::cmp::Reverse(row.0));
    let mut table = String::new();
    for (bytes, what, loc) in rows.iter().take(LISTED) {
        // A String does not fail to grow.
        let _ = write!(table, "\n    {bytes:>8} bytes: {what} ({loc})");
    }
    if let Some(rest @ 1..) = rows.len().checked_sub(LISTED) {
        let bytes: u64 = rows[LISTED..].iter().fold(0, |sum, row| sum.saturating_add(row.0));
        let _ = write!(table, "\n    {bytes:>8} bytes: {rest} smaller ones");
    }
    let scratch = u64::from(scratch_bytes) * u64::from(kernel.num_warpgroups);
    let _ = write!(
        table,
        "\n    {:>8} bytes: all barriers, and what aligns them",
        fixed - scratch
    );
    if scratch > 0 {
        let each = if kernel.num_warpgroups == 1 {
            String::new()
        } else {
            format!(", {scratch_bytes} for each of {} warpgroups", kernel.num_warpgroups)
        };
        let _ = write!(
            table,
            "\n    {scratch:>8} bytes: the compiler's scratch{each}: what passes between threads; it is as large as its largest user's"
        );
    }
    // Of the ops that one of the author's has become the one that needs most.
    let mut needs = needs.to_vec();
    needs.sort_by_key(|(bytes, op)| (std::cmp::Reverse(*bytes), *op));
    let mut lines = FxHashSet::default();
    let sorts: FxHashSet<Loc> = needs
        .iter()
        .filter(|(_, op)| matches!(kernel.ops[*op].kind, OpKind::Sort { .. }))
        .map(|(_, op)| kernel.ops[*op].loc)
        .collect();
    needs.retain(|(_, op)| lines.insert(kernel.ops[*op].loc));
    for (bytes, op) in needs.iter().take(USERS) {
        let loc = kernel.ops[*op].loc;
        let what = match sorts.contains(&loc) {
            true => "sort".into(),
            false => user(kernel, *op),
        };
        let _ = write!(table, "\n             {bytes} bytes: {what} ({loc})");
    }
    // The line of what takes the most: an allocation, or an op.
    let allocated = rows.first().map_or((0, Loc::CALL_SITE), |row| (row.0, row.2));
    let largest = needs.first().map(|(_, op)| kernel.ops[*op].loc);
    let loc = largest.filter(|_| scratch > allocated.0).unwrap_or(allocated.1);
    let is_product = needs
        .first()
        .is_some_and(|(_, op)| matches!(kernel.ops[*op].kind, OpKind::Dot { .. } | OpKind::DotInPlace { .. }));
    Error::invalid("shared memory")
        .at(loc)
        .expected(format!("at most {} bytes for a block", kernel.target.max_smem_bytes))
        .got(format!("{} bytes:{table}", placer.end + fixed))
        .remedy(if is_product && !kernel.target.has(Features::WGMMA) {
            "multiply smaller blocks"
        } else if is_product {
            "multiply smaller blocks, or keep the operands in shared memory and use plgpu.wgmma"
        } else if scratch > allocated.0 {
            "work on smaller blocks of the array at that line: its elements pass between threads through shared memory"
        } else {
            "use smaller tiles, fewer pipeline stages (max_concurrent_steps), or a RefUnion for buffers that are not alive together"
        })
}

/// What passes through scratch at an op.
fn user(kernel: &Kernel, op: Op) -> String {
    let data = &kernel.ops[op];
    let Some(ty) = data.results.first().map(|v| kernel.ty(*v)) else {
        return data.kind.name().to_string();
    };
    if let OpKind::Dot { .. } | OpKind::DotInPlace { .. } = data.kind {
        return format!("operands of a product of arrays of shape {:?}", ty.shape());
    }
    format!("{} to {ty}", data.kind.name())
}

/// Allocations that the error of too much shared memory names.
const LISTED: usize = 8;

/// Ops that it names of those that pass something through scratch.
const USERS: usize = 3;
