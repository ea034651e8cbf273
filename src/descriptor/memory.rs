//! Loads, stores, copies, barriers, semaphores and wgmma.
use super::decode::newer;
use super::half_bytes;
use super::indexed::indexed;
use super::masked;
use super::multicast;
use super::op_reader::{OpReader, imports};
use super::tensor_memory;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::kernel_ir::*;

/// Imports the op if it is one of these; false if it is not.
pub fn import(r: &mut OpReader<'_>) -> Result<bool> {
    imports! { r,
        "wait_gmem_to_smem"(0) => OpKind::WaitGmemToSmem { n: r.count("n")? };
        "wait_smem_to_gmem"(0) => OpKind::WaitSmemToGmem { n: r.count("n")?, scope: wait_scope(r)? };
        "commit_group"(0) => OpKind::CommitGroup;
        "commit_smem"(0) => OpKind::CommitSmem;
        "barrier_arrive"(2) => OpKind::BarrierArrive { barrier: r.barrier(0)?, predicate: r.predicate(1)? };
        "barrier_wait" | "barrier_arrive_and_wait"(1) => OpKind::BarrierWait { barrier: awaited(r)?, phases: None };
        "barrier_test"(1) => OpKind::BarrierTest { barrier: r.barrier(0)?, phases: None };
        "mbarrier_arrive"(2) => OpKind::MbarrierArrive {
            barrier: r.barrier(0)?,
            count: i32_scalar(r, 1)?,
            by: r.member("by", Arriving::from_name)?.unwrap_or(Arriving::One),
            order: barrier_order(r)?,
        };
        "mbarrier_expect"(2) => OpKind::MbarrierExpect {
            barrier: r.barrier(0)?, bytes: i32_scalar(r, 1)?, arrives: r.bool_or("arrives", true)?
        };
        "mbarrier_wait"(2) => OpKind::MbarrierWait { barrier: r.barrier(0)?, phase: i32_scalar(r, 1)?, order: barrier_order(r)? };
        "semaphore_read"(1) => OpKind::SemaphoreRead { semaphore: r.semaphore(0)? };
        "semaphore_wait"(3) => OpKind::SemaphoreWait {
            semaphore: r.semaphore(0)?, value: i32_scalar(r, 1)?, decrement: decrement(r)?, scope: scope(r)?
        };
        "semaphore_signal_multicast"(2) => OpKind::SemaphoreSignal {
            semaphore: r.semaphore(0).and_then(|u| on_all(r, u))?, value: i32_scalar(r, 1)?, scope: MemoryScope::Sys
        };
        "commit_tmem"(0) => OpKind::TmemWait { what: TmemAccess::Stores };
        "wait_load_tmem"(0) => OpKind::TmemWait { what: TmemAccess::Loads };
        "wgmma_wait"(0) => OpKind::WgmmaWait { n: r.count("n")?, accs: vec![] };
        others: {
            "load"(1) => load(r);
            "store"(2) => store(r);
            "swap"(2) => swap(r);
            "addupdate"(2) => add_update(r);
            "atomic_store"(2) => atomic_store(r);
            "masked_load"(3) => masked::load(r);
            "masked_swap"(3) => masked::swap(r);
            "copy_gmem_to_smem"(4) => copy_gmem_to_smem(r);
            "copy_smem_to_gmem"(3) => copy_smem_to_gmem(r);
            "async_prefetch"(2) => prefetch(r);
            "async_store_smem"(4) => async_store_smem(r);
            "multimem_store"(2) => multimem_store(r);
            "multimem_load_reduce"(1) => multimem_load_reduce(r);
            "semaphore_signal"(4) ignoring "device_id_type" => semaphore_signal(r);
            "semaphore_signal_parallel" => semaphore_signal_parallel(r);
            "wgmma"(3) => wgmma(r);
            "tcgen05_mma"(8) => tensor_memory::product(r);
            "tcgen05_commit_arrive"(2) => tensor_memory::commit(r);
            "async_copy_smem_to_tmem"(2) => tensor_memory::copy(r);
            "async_load_tmem"(1) => tensor_memory::load(r);
            "async_store_tmem"(2) => tensor_memory::store(r);
            "wgmma_accumulator_deref"(1) => read_accumulator(r);
            "wgmma_accumulator_store"(2) => store_accumulator(r);
        }
    }
}

fn load(r: &mut OpReader<'_>) -> Result<()> {
    // Whether the user insists on a fast path changes no result.
    r.bool_or("optimized", true)?;
    let src = r.data_ref(0)?;
    match indexed(r, &src)? {
        Some(indexed) => {
            let x = indexed.load(r, type_of(&src)?.dtype());
            r.results(&[x])
        }
        None => r.declared(OpKind::Load { src }),
    }
}

fn store(r: &mut OpReader<'_>) -> Result<()> {
    r.bool_or("optimized", true)?;
    let (dst, value) = destination(r)?;
    if let Some(indexed) = indexed(r, &dst)? {
        indexed.store(r, value);
        return r.results(&[]);
    }
    match half_bytes::store(r, &dst, value) {
        true => r.results(&[]),
        false => r.declared(OpKind::Store { dst, value }),
    }
}

fn swap(r: &mut OpReader<'_>) -> Result<()> {
    let (dst, value) = destination(r)?;
    let ty = type_of(&dst)?;
    if let Some(indexed) = indexed(r, &dst)? {
        let old = indexed.load(r, ty.dtype());
        indexed.store(r, value);
        return r.results(&[old]);
    }
    if half_bytes::find(r, &dst).is_some() {
        let old = r.emit1(OpKind::Load { src: dst.clone() }, ty);
        half_bytes::store(r, &dst, value);
        return r.results(&[old]);
    }
    r.declared(OpKind::Swap { dst, value })
}

fn add_update(r: &mut OpReader<'_>) -> Result<()> {
    let (dst, value) = destination(r)?;
    let ty = type_of(&dst)?;
    let sum = if ty.dtype() == DType::Bool {
        BinaryOp::Or
    } else {
        BinaryOp::Add
    };
    let Some(indexed) = indexed(r, &dst)? else {
        let old = r.emit1(OpKind::Load { src: dst.clone() }, ty);
        let value = r.binary(sum, old, value);
        return r.declared(OpKind::Store { dst, value });
    };
    if indexed.is_sliced {
        let old = indexed.load(r, ty.dtype());
        let value = r.binary(sum, old, value);
        indexed.store(r, value);
        return r.results(&[]);
    }
    // What an index names twice is updated twice.
    if !ty.dtype().is_int() || ty.dtype().bits() < 32 {
        return Err(
            Error::unsupported(format!("adding {} at arrays of indices of a reference", ty.dtype()))
                .expected("integers of 32 or 64 bits, which are added atomically")
                .remedy("add to the loaded array (x.at[i].add(y)) and store that, or use plgpu.atomic_add"),
        );
    }
    indexed.update(r, AtomicOp::Add, value);
    r.results(&[])
}

fn atomic_store(r: &mut OpReader<'_>) -> Result<()> {
    r.bool_or("optimized", true)?;
    let (dst, value) = destination(r)?;
    let Some(op) = r.member("atomic", AtomicOp::from_name)? else {
        return Err(r.damaged("no operation"));
    };
    match indexed(r, &dst)? {
        Some(indexed) => {
            indexed.update(r, op, value);
            r.results(&[])
        }
        None => r.declared(OpKind::AtomicUpdate { op, dst, value }),
    }
}

fn wait_scope(r: &mut OpReader<'_>) -> Result<WaitScope> {
    Ok(match r.bool_or("wait_read_only", false)? {
        true => WaitScope::SmemRead,
        false => WaitScope::Complete,
    })
}

fn prefetch(r: &mut OpReader<'_>) -> Result<()> {
    let src = r.data_ref(0)?;
    in_gmem(r, &src)?;
    let predicate = r.predicate(1)?;
    let collective_axes = r.cluster_axes("collective_axes")?;
    let leader_tracked = leader_tracked(r, src.shape.len())?;
    r.declared(OpKind::Prefetch {
        src,
        collective_axes,
        leader_tracked,
        predicate,
    })
}

fn multimem_store(r: &mut OpReader<'_>) -> Result<()> {
    let (value, dst) = (r.value(0)?, r.data_ref(1)?);
    let dst = on_all(r, dst)?;
    r.declared(OpKind::Store { dst, value })
}

fn multimem_load_reduce(r: &mut OpReader<'_>) -> Result<()> {
    let src = r.data_ref(0)?;
    let src = on_all(r, src)?;
    let op = match r.text("reduction_op")? {
        "add" => ReduceOp::Sum,
        "max" => ReduceOp::Max,
        "min" => ReduceOp::Min,
        "and" => ReduceOp::And,
        "or" => ReduceOp::Or,
        "xor" => ReduceOp::Xor,
        other => return Err(newer(format!("`multimem_load_reduce` with {other:?}"))),
    };
    let value = multicast::reduce(r, op, &src)?;
    r.results(&[value])
}

/// The barrier that is waited for; the group arrives first where the primitive says so.
fn awaited(r: &mut OpReader<'_>) -> Result<RefUse> {
    let barrier = r.barrier(0)?;
    if r.op.primitive == "barrier_arrive_and_wait" {
        let (barrier, predicate) = (barrier.clone(), None);
        r.emit(OpKind::BarrierArrive { barrier, predicate }, []);
    }
    Ok(barrier)
}

fn semaphore_signal(r: &mut OpReader<'_>) -> Result<()> {
    let (mut semaphore, value) = (r.semaphore(0)?, i32_scalar(r, 1)?);
    if let Some(device) = r.device(2)? {
        semaphore.place = r.importer.peer(device);
    }
    if !r.is_absent(3)? {
        return Err(Error::unsupported("`semaphore_signal` to a core of a device")
            .remedy("a GPU has no cores that a signal could name: leave out core_index"));
    }
    let scope = scope(r)?;
    r.declared(OpKind::SemaphoreSignal {
        semaphore,
        value,
        scope,
    })
}

/// Whether a wait subtracts what it has waited for.
fn decrement(r: &mut OpReader<'_>) -> Result<bool> {
    let decrement = r.scalar(2, "bool", |d| d == DType::Bool)?;
    let known = r.importer.kernel.facts(decrement).as_constant();
    known.map(|x| x != 0).ok_or_else(|| {
        Error::unsupported("`semaphore_wait` with a dynamic `decrement`").remedy("pass decrement=True or False")
    })
}

fn semaphore_signal_parallel(r: &mut OpReader<'_>) -> Result<()> {
    let mut signals = vec![];
    for i in 0..r.op.operands.len() {
        let [semaphore, value, device] = r.list(i)? else {
            return Err(r.damaged("a signal is [semaphore, increment, device]"));
        };
        let mut semaphore = r.semaphore_of(semaphore)?;
        let value = r.importer.value(value, r.region, r.loc)?;
        if !r.ty(value).is_scalar() || !r.ty(value).dtype().is_int() {
            return Err(r.damaged("an increment that is no integer scalar"));
        }
        let value = r.importer.as_i32(value, r.region, r.loc);
        if let Some(device) = r.device_of(device)? {
            semaphore.place = r.importer.peer(device);
        }
        signals.push((semaphore, value));
    }
    let scope = MemoryScope::Sys;
    r.declared(OpKind::SemaphoreSignalParallel { signals, scope })
}

fn read_accumulator(r: &mut OpReader<'_>) -> Result<()> {
    let acc = AccUse::Ref(accumulator(r, 0)?);
    if r.bool_or("wait", true)? {
        let (n, accs) = (r.count("wait_n")?, vec![]);
        r.emit(OpKind::WgmmaWait { n, accs }, []);
    }
    r.declared(OpKind::AccRead { acc })
}

fn store_accumulator(r: &mut OpReader<'_>) -> Result<()> {
    let (dst, value) = (accumulator(r, 0)?, r.value(1)?);
    fits(r, &dst, value)?;
    // JAX's equation may have the new contents as its result.
    let results: &[Value] = if r.op.results.is_empty() { &[] } else { &[value] };
    r.results(results)?;
    r.emit(OpKind::Store { dst, value }, []);
    Ok(())
}

/// The type of what a use of a reference to data holds.
pub fn type_of(r: &RefUse) -> Result<Type> {
    match r.elem {
        Elem::Data(dtype) => Ok(Type::of(dtype, r.shape.clone())),
        Elem::Barrier | Elem::Semaphore => Err(Error::internal("a use of data without an element type")),
    }
}

/// Checks that a value has exactly the type of a use.
fn fits(r: &OpReader<'_>, dst: &RefUse, value: Value) -> Result<()> {
    let (expected, got) = (type_of(dst)?, r.ty(value));
    if expected != *got {
        return Err(r
            .damaged("a value that does not fit")
            .expected(expected.to_string())
            .got(got.to_string()));
    }
    Ok(())
}

/// Operands 0 and 1: where to store, and what.
fn destination(r: &mut OpReader<'_>) -> Result<(RefUse, Value)> {
    let dst = r.data_ref(0)?;
    let mut value = r.value(1)?;
    // JAX stores rank-0 values into views of any shape.
    value = r.broadcast_to(value, &dst.shape)?;
    fits(r, &dst, value)?;
    Ok((dst, value))
}

/// Copies and tensor cores see slices.
fn is_sliced(u: &RefUse) -> Result<()> {
    let by_arrays =
        |step: &Step| matches!(step, Step::Index(dims) if dims.iter().any(|d| matches!(d, DimIndex::Gather(_))));
    if u.steps.iter().any(by_arrays) {
        return Err(
            Error::unsupported("arrays as indices of a copy (TMA gather needs sm_100a)")
                .remedy("copy row by row in a loop"),
        );
    }
    Ok(())
}

fn in_gmem(r: &OpReader<'_>, u: &RefUse) -> Result<()> {
    is_sliced(u)?;
    if r.importer.kernel.allocs[u.alloc].is_gmem() {
        return Ok(());
    }
    Err(Error::invalid(format!("`{}`", r.op.primitive))
        .expected("a reference to GMEM on that side")
        .got(words::of_use(&r.importer.kernel, u))
        .remedy("shared memory is on one side of a copy only: go through registers (dst[...] = src[...])"))
}

pub(super) fn in_smem(r: &OpReader<'_>, u: &RefUse, which: &str) -> Result<()> {
    is_sliced(u)?;
    let data = &r.importer.kernel.allocs[u.alloc];
    if data.is_smem() && u.dtype().is_some() {
        return Ok(());
    }
    Err(Error::invalid(format!("`{}`", r.op.primitive))
        .expected(format!("a reference to SMEM (plgpu.SMEM) as its {which}"))
        .got(words::of_use(&r.importer.kernel, u))
        .remedy("copy it to an SMEM scratch buffer first (plgpu.copy_gmem_to_smem)"))
}

pub(super) fn same_type(r: &OpReader<'_>, src: &RefUse, dst: &RefUse) -> Result<()> {
    let (from, to) = (type_of(src)?, type_of(dst)?);
    if from != to {
        return Err(
            Error::invalid(format!("`{}` between different shapes or types", r.op.primitive))
                .expected(to.to_string())
                .got(from.to_string())
                .remedy("slice both sides to one shape (ref.at[...]), and convert in registers: load, astype, store"),
        );
    }
    Ok(())
}

fn leader_tracked(r: &mut OpReader<'_>, rank: usize) -> Result<Option<LeaderTracked>> {
    match r.optional_text("leader_tracked")? {
        None => Ok(None),
        Some("replicated") => Ok(Some(LeaderTracked::Replicated)),
        Some("partitioned") => Ok(Some(LeaderTracked::Partitioned {
            dim: r.dim("partition_axis", rank)?,
        })),
        Some(other) => Err(newer(format!("`leader_tracked` = {other:?}"))),
    }
}

fn copy_gmem_to_smem(r: &mut OpReader<'_>) -> Result<()> {
    let (src, dst) = (r.data_ref(0)?, r.data_ref(1)?);
    in_gmem(r, &src)?;
    in_smem(r, &dst, "destination")?;
    let barrier = if r.is_absent(2)? { None } else { Some(r.barrier(2)?) };
    let predicate = r.predicate(3)?;
    let collective_axes = r.cluster_axes("collective_axes")?;
    let leader_tracked = leader_tracked(r, dst.shape.len())?;
    match leader_tracked {
        Some(LeaderTracked::Partitioned { dim }) => {
            // Each of the two CTAs gets its half of the source.
            let mut whole = dst.clone();
            whole.shape[dim as usize] = whole.shape[dim as usize].saturating_mul(2);
            same_type(r, &src, &whole)?;
        }
        Some(LeaderTracked::Replicated) | None => same_type(r, &src, &dst)?,
    }
    let oob = r.member("oob_mode", OobMode::from_name)?.unwrap_or(OobMode::Zeros);
    r.declared(OpKind::CopyGmemToSmem {
        src,
        dst,
        // Which are those that groups of `cp.async` count.
        by_threads: barrier.is_none(),
        uncounted: false,
        barrier,
        collective_axes,
        leader_tracked,
        oob,
        predicate,
    })
}

fn copy_smem_to_gmem(r: &mut OpReader<'_>) -> Result<()> {
    let (src, dst) = (r.data_ref(0)?, r.data_ref(1)?);
    in_smem(r, &src, "source")?;
    in_gmem(r, &dst)?;
    same_type(r, &src, &dst)?;
    let predicate = r.predicate(2)?;
    let commit_group = r.bool_or("commit_group", true)?;
    let reduction = r.member("reduction_op", CopyReduction::from_name)?;
    r.declared(OpKind::CopySmemToGmem {
        src,
        dst,
        reduction,
        commit_group,
        by_threads: false,
        predicate,
    })
}

fn async_store_smem(r: &mut OpReader<'_>) -> Result<()> {
    let value = r.value(0)?;
    let (mut dst, mut barrier) = (r.data_ref(1)?, r.barrier(2)?);
    in_smem(r, &dst, "destination")?;
    let index = r.scalar(3, "an integer scalar", DType::is_int)?;
    let axes = r.cluster_axes("cluster_axis")?;
    if axes.len() != 1 {
        return Err(r.damaged("one cluster axis is due"));
    }
    for u in [&mut dst, &mut barrier] {
        if u.place != Place::Here {
            return Err(r.damaged("a reference that is already in another block"));
        }
        u.place = Place::Cluster {
            axes: axes.clone(),
            indices: vec![index],
        };
    }
    r.bool_or("optimized", true)?;
    let atomic = r.member("atomic", AtomicOp::from_name)?;
    r.declared(OpKind::AsyncStoreSmem {
        value,
        dst,
        barrier,
        atomic,
    })
}

/// The reference on all devices of the attribute's axes.
fn on_all(r: &mut OpReader<'_>, mut u: RefUse) -> Result<RefUse> {
    is_sliced(&u)?;
    let mut axes = vec![];
    for &id in r.axis_ids("collective_axes")? {
        let axis = r.importer.axis(id)?;
        if !matches!(r.importer.kernel.axes[axis].kind, AxisKind::DeviceMesh(_)) {
            return Err(r.damaged("an axis that is not of the device mesh"));
        }
        axes.push(axis);
    }
    if u.place != Place::Here && !axes.is_empty() {
        return Err(r.damaged("a reference in two places"));
    }
    if !axes.is_empty() {
        u.place = Place::Multicast { axes };
    }
    Ok(u)
}

fn scope(r: &mut OpReader<'_>) -> Result<MemoryScope> {
    Ok(r.member("memory_scope", MemoryScope::from_name)?
        .unwrap_or(MemoryScope::Sys))
}

fn barrier_order(r: &mut OpReader<'_>) -> Result<BarrierOrder> {
    Ok(BarrierOrder {
        relaxed: r.bool_or("relaxed", false)?,
        scope: r.member("scope", BarrierScope::from_name)?,
    })
}

fn i32_scalar(r: &mut OpReader<'_>, i: usize) -> Result<Value> {
    let v = r.scalar(i, "an integer scalar", DType::is_int)?;
    Ok(r.importer.as_i32(v, r.region, r.loc))
}

/// Operand i as an accumulator or a part of one.
fn part_of_accumulator(r: &mut OpReader<'_>, i: usize) -> Result<RefUse> {
    let u = r.data_ref(i)?;
    let data = &r.importer.kernel.allocs[u.alloc];
    if !matches!(data.kind, AllocKind::Register { accumulator: true, .. }) {
        return Err(r.damaged(&format!("operand {i} is no accumulator")));
    }
    Ok(u)
}

/// Operand i as the whole of an accumulator.
fn accumulator(r: &mut OpReader<'_>, i: usize) -> Result<RefUse> {
    let u = part_of_accumulator(r, i)?;
    let data = &r.importer.kernel.allocs[u.alloc];
    // A view that takes everything is none.
    let whole = u.shape == data.shape
        && u.steps.iter().all(|s| match s {
            Step::Index(dims) => dims.iter().zip(&data.shape).all(|(d, &n)| d.is_all(n)),
            _ => false,
        });
    if !whole {
        return Err(Error::unsupported("a part of an accumulator").remedy("use the whole accumulator, or several"));
    }
    let alloc = u.alloc;
    Ok(r.importer.base_use(alloc))
}

fn wgmma(r: &mut OpReader<'_>) -> Result<()> {
    if r.group() != Group::Warpgroup {
        return Err(Error::invalid("`wgmma` inside of a warp region")
            .remedy("all four warps of a warpgroup issue a wgmma together: move it out of the warp region"));
    }
    let acc = part_of_accumulator(r, 0)?;
    let (a, ta) = if r.is_ref(1) {
        let u = r.data_ref(1)?;
        in_smem(r, &u, "left operand")?;
        let ty = type_of(&u)?;
        (MmaOperand::Smem(u), ty)
    } else {
        let v = r.value(1)?;
        (MmaOperand::Registers(v), r.ty(v).clone())
    };
    let b = r.data_ref(2)?;
    in_smem(r, &b, "right operand")?;
    let (tc, tb) = (type_of(&acc)?, type_of(&b)?);
    legality::tensor_core::wgmma(&tc, &ta, &tb)?;
    r.declared(OpKind::Wgmma {
        acc: AccUse::Ref(acc),
        a,
        b,
    })
}
