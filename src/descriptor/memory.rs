//! Loads, stores, copies, barriers, semaphores and wgmma.
use super::decode::newer;
use super::half_bytes;
use super::indexed::indexed;
use super::masked;
use super::multicast;
use super::op_reader::OpReader;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::kernel_ir::*;

/// What `+` is of a type.
fn sum(dtype: DType, a: Value, b: Value) -> OpKind {
    let op = if dtype == DType::Bool {
        BinaryOp::Or
    } else {
        BinaryOp::Add
    };
    OpKind::Binary { op, a, b }
}

/// Imports the op if it is one of these; false if it is not.
pub fn import(r: &mut OpReader<'_>) -> Result<bool> {
    match r.op.primitive.as_str() {
        "load" => {
            r.arity(1)?;
            // Whether the user insists on a fast path changes no result.
            r.bool_or("optimized", true)?;
            let src = r.data_ref(0)?;
            let ty = type_of(&src)?;
            if let Some(indexed) = indexed(r, &src)? {
                let x = indexed.load(r, ty.dtype());
                return r.results(&[x]).map(|()| true);
            }
            r.result(OpKind::Load { src }, ty)?
        }
        "store" => {
            r.arity(2)?;
            r.bool_or("optimized", true)?;
            let (dst, value) = destination(r)?;
            if let Some(indexed) = indexed(r, &dst)? {
                indexed.store(r, value);
                return r.results(&[]).map(|()| true);
            }
            if half_bytes::store(r, &dst, value) {
                return r.results(&[]).map(|()| true);
            }
            r.effect(OpKind::Store { dst, value })?
        }
        "swap" => {
            r.arity(2)?;
            let (dst, value) = destination(r)?;
            let ty = type_of(&dst)?;
            if let Some(indexed) = indexed(r, &dst)? {
                let old = indexed.load(r, ty.dtype());
                indexed.store(r, value);
                return r.results(&[old]).map(|()| true);
            }
            if half_bytes::find(r, &dst).is_some() {
                let old = r.emit1(OpKind::Load { src: dst.clone() }, ty);
                half_bytes::store(r, &dst, value);
                return r.results(&[old]).map(|()| true);
            }
            r.result(OpKind::Swap { dst, value }, ty)?
        }
        "addupdate" => {
            r.arity(2)?;
            let (dst, value) = destination(r)?;
            let ty = type_of(&dst)?;
            if let Some(indexed) = indexed(r, &dst)? {
                if indexed.is_sliced {
                    let old = indexed.load(r, ty.dtype());
                    let value = r.emit1(sum(ty.dtype(), old, value), ty);
                    indexed.store(r, value);
                    return r.results(&[]).map(|()| true);
                }
                // What an index names twice is updated twice.
                if !ty.dtype().is_int() || ty.dtype().bits() < 32 {
                    return Err(Error::unsupported(format!(
                        "adding {} at arrays of indices of a reference",
                        ty.dtype()
                    ))
                    .expected("integers of 32 or 64 bits, which are added atomically")
                    .remedy("add to the loaded array (x.at[i].add(y)) and store that, or use plgpu.atomic_add"));
                }
                indexed.update(r, AtomicOp::Add, value);
                return r.results(&[]).map(|()| true);
            }
            let old = r.emit1(OpKind::Load { src: dst.clone() }, ty.clone());
            let value = r.emit1(sum(ty.dtype(), old, value), ty);
            r.effect(OpKind::Store { dst, value })?
        }
        "atomic_store" => {
            r.arity(2)?;
            r.bool_or("optimized", true)?;
            let (dst, value) = destination(r)?;
            let Some(op) = r.member("atomic", AtomicOp::from_name)? else {
                return Err(r.damaged("no operation"));
            };
            if let Some(indexed) = indexed(r, &dst)? {
                indexed.update(r, op, value);
                return r.results(&[]).map(|()| true);
            }
            r.effect(OpKind::AtomicUpdate { op, dst, value })?
        }
        "masked_load" => masked::load(r)?,
        "masked_swap" => masked::swap(r)?,
        "copy_gmem_to_smem" => copy_gmem_to_smem(r)?,
        "copy_smem_to_gmem" => copy_smem_to_gmem(r)?,
        "wait_gmem_to_smem" => {
            r.arity(0)?;
            let n = r.count("n")?;
            r.effect(OpKind::WaitGmemToSmem { n })?
        }
        "wait_smem_to_gmem" => {
            r.arity(0)?;
            let n = r.count("n")?;
            let scope = if r.bool_or("wait_read_only", false)? {
                WaitScope::SmemRead
            } else {
                WaitScope::Complete
            };
            r.effect(OpKind::WaitSmemToGmem { n, scope })?
        }
        "commit_group" => {
            r.arity(0)?;
            r.effect(OpKind::CommitGroup)?
        }
        "commit_smem" => {
            r.arity(0)?;
            r.effect(OpKind::CommitSmem)?
        }
        "async_prefetch" => {
            r.arity(2)?;
            let src = r.data_ref(0)?;
            in_gmem(r, &src)?;
            let predicate = r.predicate(1)?;
            let collective_axes = r.cluster_axes("collective_axes")?;
            let leader_tracked = leader_tracked(r, src.shape.len())?;
            r.effect(OpKind::Prefetch {
                src,
                collective_axes,
                leader_tracked,
                predicate,
            })?
        }
        "async_store_smem" => async_store_smem(r)?,
        "multimem_store" => {
            r.arity(2)?;
            let value = r.value(0)?;
            let mut dst = r.data_ref(1)?;
            on_all(r, &mut dst)?;
            fits(r, &dst, value)?;
            r.effect(OpKind::Store { dst, value })?
        }
        "multimem_load_reduce" => {
            r.arity(1)?;
            let mut src = r.data_ref(0)?;
            on_all(r, &mut src)?;
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
            r.results(&[value])?
        }

        "barrier_arrive" => {
            r.arity(2)?;
            let barrier = r.barrier(0)?;
            let predicate = r.predicate(1)?;
            r.effect(OpKind::BarrierArrive { barrier, predicate })?
        }
        "barrier_wait" => {
            r.arity(1)?;
            let barrier = r.barrier(0)?;
            r.effect(OpKind::BarrierWait { barrier, phases: None })?
        }
        "barrier_arrive_and_wait" => {
            r.arity(1)?;
            let barrier = r.barrier(0)?;
            r.emit(
                OpKind::BarrierArrive {
                    barrier: barrier.clone(),
                    predicate: None,
                },
                [],
            );
            r.effect(OpKind::BarrierWait { barrier, phases: None })?
        }
        "barrier_test" => {
            r.arity(1)?;
            let barrier = r.barrier(0)?;
            r.result(OpKind::BarrierTest { barrier, phases: None }, Type::Scalar(DType::Bool))?
        }
        "mbarrier_arrive" => {
            r.arity(2)?;
            let (barrier, count) = (r.barrier(0)?, i32_scalar(r, 1)?);
            let by = r.member("by", Arriving::from_name)?.unwrap_or(Arriving::One);
            let order = barrier_order(r)?;
            r.effect(OpKind::MbarrierArrive {
                barrier,
                count,
                by,
                order,
            })?
        }
        "mbarrier_expect" => {
            r.arity(2)?;
            let (barrier, bytes) = (r.barrier(0)?, i32_scalar(r, 1)?);
            let arrives = r.bool_or("arrives", true)?;
            r.effect(OpKind::MbarrierExpect {
                barrier,
                bytes,
                arrives,
            })?
        }
        "mbarrier_wait" => {
            r.arity(2)?;
            let (barrier, phase) = (r.barrier(0)?, i32_scalar(r, 1)?);
            let order = barrier_order(r)?;
            r.effect(OpKind::MbarrierWait { barrier, phase, order })?
        }
        "semaphore_signal" => {
            r.arity(4)?;
            let mut semaphore = r.semaphore(0)?;
            let value = i32_scalar(r, 1)?;
            if let Some(device) = r.device(2)? {
                semaphore.place = r.importer.peer(device);
            }
            if !r.is_absent(3)? {
                return Err(Error::unsupported("`semaphore_signal` to a core of a device")
                    .remedy("a GPU has no cores that a signal could name: leave out core_index"));
            }
            r.ignore("device_id_type");
            let scope = scope(r)?;
            r.effect(OpKind::SemaphoreSignal {
                semaphore,
                value,
                scope,
            })?
        }
        "semaphore_wait" => {
            r.arity(3)?;
            let semaphore = r.semaphore(0)?;
            let value = i32_scalar(r, 1)?;
            let decrement = r.scalar(2, "bool", |d| d == DType::Bool)?;
            let decrement = match r.importer.kernel.facts(decrement).as_constant() {
                Some(x) => x != 0,
                None => {
                    return Err(Error::unsupported("`semaphore_wait` with a dynamic `decrement`")
                        .remedy("pass decrement=True or False"));
                }
            };
            let scope = scope(r)?;
            r.effect(OpKind::SemaphoreWait {
                semaphore,
                value,
                decrement,
                scope,
            })?
        }
        "semaphore_read" => {
            r.arity(1)?;
            let semaphore = r.semaphore(0)?;
            r.result(OpKind::SemaphoreRead { semaphore }, Type::Scalar(DType::I32))?
        }
        "semaphore_signal_parallel" => {
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
            r.effect(OpKind::SemaphoreSignalParallel {
                signals,
                scope: MemoryScope::Sys,
            })?
        }
        "semaphore_signal_multicast" => {
            r.arity(2)?;
            let mut semaphore = r.semaphore(0)?;
            on_all(r, &mut semaphore)?;
            let value = i32_scalar(r, 1)?;
            r.effect(OpKind::SemaphoreSignal {
                semaphore,
                value,
                scope: MemoryScope::Sys,
            })?
        }

        "wgmma" => wgmma(r)?,
        "wgmma_wait" => {
            r.arity(0)?;
            let n = r.count("n")?;
            r.effect(OpKind::WgmmaWait { n, accs: vec![] })?
        }
        "wgmma_accumulator_deref" => {
            r.arity(1)?;
            let acc = accumulator(r, 0)?;
            if r.bool_or("wait", true)? {
                let n = r.count("wait_n")?;
                r.emit(OpKind::WgmmaWait { n, accs: vec![] }, []);
            }
            let ty = type_of(&acc)?;
            r.result(OpKind::AccRead { acc: AccUse::Ref(acc) }, ty)?
        }
        "wgmma_accumulator_store" => {
            r.arity(2)?;
            let dst = accumulator(r, 0)?;
            let value = r.value(1)?;
            fits(r, &dst, value)?;
            // JAX's equation may have the new contents as its result.
            let results: &[Value] = if r.op.results.is_empty() { &[] } else { &[value] };
            r.results(results)?;
            r.emit(OpKind::Store { dst, value }, []);
        }
        _ => return Ok(false),
    }
    Ok(true)
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

fn in_smem(r: &OpReader<'_>, u: &RefUse, which: &str) -> Result<()> {
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

fn same_type(r: &OpReader<'_>, src: &RefUse, dst: &RefUse) -> Result<()> {
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
    r.arity(4)?;
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
    r.effect(OpKind::CopyGmemToSmem {
        src,
        dst,
        barrier,
        collective_axes,
        leader_tracked,
        oob,
        predicate,
    })
}

fn copy_smem_to_gmem(r: &mut OpReader<'_>) -> Result<()> {
    r.arity(3)?;
    let (src, dst) = (r.data_ref(0)?, r.data_ref(1)?);
    in_smem(r, &src, "source")?;
    in_gmem(r, &dst)?;
    same_type(r, &src, &dst)?;
    let predicate = r.predicate(2)?;
    let commit_group = r.bool_or("commit_group", true)?;
    let reduction = r.member("reduction_op", CopyReduction::from_name)?;
    r.effect(OpKind::CopySmemToGmem {
        src,
        dst,
        reduction,
        commit_group,
        predicate,
    })
}

fn async_store_smem(r: &mut OpReader<'_>) -> Result<()> {
    r.arity(4)?;
    let value = r.value(0)?;
    let (mut dst, mut barrier) = (r.data_ref(1)?, r.barrier(2)?);
    in_smem(r, &dst, "destination")?;
    fits(r, &dst, value)?;
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
    r.effect(OpKind::AsyncStoreSmem {
        value,
        dst,
        barrier,
        atomic,
    })
}

/// The reference on all devices of the attribute's axes.
fn on_all(r: &mut OpReader<'_>, u: &mut RefUse) -> Result<()> {
    is_sliced(u)?;
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
    Ok(())
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
    r.arity(3)?;
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
    r.effect(OpKind::Wgmma {
        acc: AccUse::Ref(acc),
        a,
        b,
    })
}
