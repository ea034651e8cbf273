//! What can be compiled, said once: by types and views, before any layout is chosen.
//!
//! * [`arithmetic`]: which op there is of which element type;
//! * [`tensor_core`]: wgmma and accumulators;
//! * [`memory`]: references, copies, barriers and semaphores;
//! * [`registers`]: views of references to registers;
//! * [`launch`]: threads, clusters, grids, registers.
//!
//! [`run`] reports at the user's line, when a kernel is normalised: what nobody needs is gone by then, and what is left will be
//! lowered; the passes between insert nothing but changes of layout and barriers. What depends on layouts is decided in `plan/`.
pub mod arithmetic;
pub mod launch;
pub mod memory;
pub mod registers;
pub mod tensor_core;

use super::*;
use crate::dtype::DType;
use crate::error::{Error, Loc, Result};

/// Refuses a normalised kernel that cannot be compiled.
pub fn run(kernel: &Kernel) -> Result<()> {
    let scalars = kernel
        .params
        .iter()
        .filter(|p| matches!(p.binding, ParamBinding::Scalar(_)));
    for param in scalars {
        memory::scalar(param.ty.dtype()).map_err(|e| e.at(Loc::CALL_SITE))?;
    }
    kernel.try_for_each_op(&mut |id| op(kernel, id))?;
    launch::peers(kernel)?;
    profile::check(kernel)
}

/// Whether an op of a normalised kernel can be compiled.
pub fn op(kernel: &Kernel, op: Op) -> Result<()> {
    let data = &kernel.ops[op];
    let kind = &data.kind;
    let dtype = |v: Value| kernel.ty(v).dtype();
    let of = |v: Value, defined: bool| arithmetic::is_defined(kind, dtype(v), defined);
    // What does not depend on the types.
    let lacks = |what: &str, remedy: &str| Err(Error::unsupported(format!("{}: {what}", kind.name())).remedy(remedy));
    match kind {
        OpKind::AsyncStoreSmem {
            value, barrier, atomic, ..
        } => {
            memory::arrival(kernel, barrier)?;
            if let Some(op) = atomic {
                arithmetic::async_reduction(*op, dtype(*value))?;
            }
            if kernel.ty(*value).is_scalar() {
                lacks("a scalar", "an array, one element for each thread or more")?;
            }
        }
        OpKind::InlinePtx { code, refs, .. } => refs.iter().try_for_each(|r| memory::address(kernel, code, r))?,
        OpKind::DebugPrint { format, args, then: _ } => {
            for piece in text_format::parse(format, args.len())? {
                if let text_format::Piece::Field(field) = piece {
                    field.check(dtype(args[field.arg]))?;
                }
            }
        }
        OpKind::ProfileMark { .. } | OpKind::PrintLayout { .. } => return Ok(()),
        OpKind::Constant(c) => memory::constant(kernel, c, data.results[0])?,
        OpKind::Unary { op, a } => of(*a, arithmetic::unary(*op, dtype(*a)))?,
        OpKind::Binary { op, a, .. } => of(*a, arithmetic::binary(*op, dtype(*a)))?,
        OpKind::Clamp { x, .. } => of(*x, arithmetic::binary(BinaryOp::Max, dtype(*x)))?,
        OpKind::IntegerPow { a, n } => of(*a, arithmetic::integer_pow(*n, dtype(*a)))?,
        OpKind::ReducePrecision { a, .. } => of(*a, arithmetic::reduce_precision(dtype(*a)))?,
        OpKind::Reduce { op, a, .. } => of(*a, arithmetic::reduce(*op, dtype(*a)))?,
        OpKind::Cumulative { op, a, .. } => of(*a, arithmetic::cumulative(*op, dtype(*a)))?,
        OpKind::AtomicUpdate { op, value, .. } | OpKind::AtomicUpdateAt { op, value, .. } => {
            arithmetic::atomic(*op, dtype(*value))?
        }
        OpKind::Put { op, a, .. } => of(*a, arithmetic::put(*op, dtype(*a)))?,
        OpKind::LoadMasked { .. } => memory::element(dtype(data.results[0]))?,
        OpKind::LoadAt { .. } => memory::scalar(dtype(data.results[0]))?,
        OpKind::Load { .. } | OpKind::Swap { .. } if kernel.ty(data.results[0]).is_scalar() => {
            memory::scalar(dtype(data.results[0]))?;
        }
        OpKind::Store { value, .. } if kernel.ty(*value).is_scalar() => memory::scalar(dtype(*value))?,
        OpKind::StoreMasked { value, .. } | OpKind::StoreAt { value, .. } => memory::element(dtype(*value))?,
        OpKind::Convert { a } => arithmetic::convert(dtype(*a), dtype(data.results[0]))?,
        OpKind::Iota { .. } => arithmetic::convert(DType::I32, dtype(data.results[0]))?,
        OpKind::Bitcast { a } => arithmetic::bitcast(dtype(*a), dtype(data.results[0]))?,
        OpKind::Store { value, .. } | OpKind::Swap { value, .. } if dtype(*value).bits() < 8 => {
            memory::whole_bytes(kernel.ty(*value))?;
        }
        OpKind::CopyGmemToSmem {
            leader_tracked,
            barrier,
            ..
        } => match (leader_tracked, barrier) {
            (Some(_), _) => lacks(
                "leader-tracked copies",
                "copy with collective_axes, or each block its part",
            )?,
            (None, None) => lacks(
                "copies without a barrier (sm_80 groups)",
                "pass a barrier (plgpu.Barrier), and wait for it",
            )?,
            (None, Some(_)) => {}
        },
        OpKind::WaitGmemToSmem { .. } => lacks(
            "copies without a barrier (sm_80 groups)",
            "pass a barrier (plgpu.Barrier), and wait for it",
        )?,
        OpKind::Prefetch {
            collective_axes,
            leader_tracked,
            ..
        } if leader_tracked.is_some() || !collective_axes.is_empty() => lacks(
            "prefetches shared by blocks",
            "let each block prefetch its part, without collective_axes",
        )?,
        OpKind::BarrierArrive { barrier, .. } => memory::arrival(kernel, barrier)?,
        OpKind::MbarrierArrive { barrier, .. }
        | OpKind::MbarrierExpect { barrier, .. }
        | OpKind::MbarrierWait { barrier, .. } => memory::arrival(kernel, barrier)?,
        OpKind::AccInit { .. } => tensor_core::accumulator(kernel.ty(data.results[0]))?,
        OpKind::SetMaxRegisters { n, .. } => launch::register_count(kernel, *n)?,
        OpKind::AxisIndex { .. }
        | OpKind::Compare { .. }
        | OpKind::Select { .. }
        | OpKind::Broadcast { .. }
        | OpKind::Reshape { .. }
        | OpKind::Transpose { .. }
        | OpKind::Slice { .. }
        | OpKind::DynamicSlice { .. }
        | OpKind::DynamicUpdateSlice { .. }
        | OpKind::Concat { .. }
        | OpKind::Pad { .. }
        | OpKind::Reverse { .. }
        | OpKind::ArgReduce { .. }
        | OpKind::Dot { .. }
        | OpKind::DotInPlace { .. }
        | OpKind::Take { .. }
        | OpKind::Sort { .. }
        | OpKind::OptimizationBarrier { .. }
        | OpKind::MultipleOf { .. }
        | OpKind::LayoutCast { .. }
        | OpKind::Relayout { .. }
        | OpKind::Load { .. }
        | OpKind::Store { .. }
        | OpKind::Swap { .. }
        | OpKind::CopySmemToGmem { .. }
        | OpKind::CommitGroup
        | OpKind::WaitSmemToGmem { .. }
        | OpKind::Prefetch { .. }
        | OpKind::CommitSmem
        | OpKind::BarrierWait { .. }
        | OpKind::BarrierTest { .. }
        | OpKind::Sync { .. }
        | OpKind::Fence { .. }
        | OpKind::SemaphoreSignal { .. }
        | OpKind::SemaphoreSignalParallel { .. }
        | OpKind::SemaphoreWait { .. }
        | OpKind::SemaphoreRead { .. }
        | OpKind::Wgmma { .. }
        | OpKind::WgmmaWait { .. }
        | OpKind::AccRead { .. }
        | OpKind::For { .. }
        | OpKind::While { .. }
        | OpKind::Switch { .. }
        | OpKind::Scope { .. }
        | OpKind::WarpMap { .. }
        | OpKind::Delay { .. }
        | OpKind::GridDependency { .. } => {}
    }
    let mut result = Ok(());
    visit::for_each_ref(kind, &mut |r| {
        if result.is_ok() {
            result = memory::reference(kernel, kind, r);
        }
    });
    result
}
