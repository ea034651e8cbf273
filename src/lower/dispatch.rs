//! One match over the ops.
use super::cx::LowerCx;
use super::{
    atomic, barrier, control, debug_print, dot, elementwise, ids, indexed, inline_ptx, memory, misc, profile, put,
    reduce, relayout, semaphore, shape, sort, take, tensor_memory, tma, wgmma,
};
use crate::error::Result;
use crate::kernel_ir::{DotArithmetic, Op, OpKind};

/// Emits one op and binds its results.
pub fn lower_op(cx: &mut LowerCx, op: Op) -> Result<()> {
    let kernel = cx.kernel;
    match &kernel.ops[op].kind {
        OpKind::Constant(constant) => shape::lower_constant(cx, op, constant),
        OpKind::Unary { op: unary, a } => elementwise::lower_unary(cx, op, *unary, *a),
        OpKind::Binary { op: binary, a, b } => elementwise::lower_binary(cx, op, *binary, *a, *b),
        OpKind::Compare { op: compare, a, b } => elementwise::lower_compare(cx, op, *compare, *a, *b),
        OpKind::Select { which, cases } => elementwise::lower_select(cx, op, *which, cases),
        OpKind::Clamp { lo, x, hi } => elementwise::lower_clamp(cx, op, *lo, *x, *hi),
        OpKind::IntegerPow { a, n } => elementwise::lower_integer_pow(cx, op, *a, *n),
        OpKind::Convert { a } => elementwise::lower_convert(cx, op, *a),
        OpKind::Bitcast { a } => elementwise::lower_bitcast(cx, op, *a),
        OpKind::ReducePrecision {
            a,
            exponent_bits,
            mantissa_bits,
        } => elementwise::lower_reduce_precision(cx, op, *a, *exponent_bits, *mantissa_bits),
        OpKind::Iota { dim } => shape::lower_iota(cx, op, *dim as usize),
        OpKind::Broadcast { a, dims } => shape::lower_broadcast(cx, op, *a, dims),
        OpKind::Reshape { a } => shape::lower_reshape(cx, op, *a),
        OpKind::Transpose { a, permutation } => shape::lower_transpose(cx, op, *a, permutation),
        OpKind::Slice { a, starts, strides } => shape::lower_slice(cx, op, *a, starts, strides),
        OpKind::DynamicSlice { a, starts } => shape::lower_dynamic_slice(cx, op, *a, starts),
        OpKind::DynamicUpdateSlice { a, update, starts } => {
            shape::lower_dynamic_update_slice(cx, op, *a, *update, starts)
        }
        OpKind::Concat { parts, dim } => shape::lower_concat(cx, op, parts, *dim as usize),
        OpKind::Pad {
            a,
            value,
            low,
            high: _,
            interior,
        } => shape::lower_pad(cx, op, *a, *value, low, interior),
        OpKind::Reverse { a, dims } => shape::lower_reverse(cx, op, *a, dims),
        OpKind::Reduce {
            op: reduction,
            a,
            axes,
            parallel: _,
        } => reduce::lower_reduce(cx, op, *reduction, *a, axes),
        OpKind::ArgReduce { op: extreme, a, axis } => reduce::lower_arg_reduce(cx, op, *extreme, *a, *axis),
        OpKind::Cumulative {
            op: running,
            a,
            axis,
            reverse,
        } => reduce::lower_cumulative(cx, op, *running, *a, *axis, *reverse),
        OpKind::Dot { acc, a, b, arithmetic } => {
            let operands = [dot::From::Registers(*a), dot::From::Registers(*b)];
            dot::lower_dot(cx, op, *acc, operands, *arithmetic)
        }
        OpKind::DotInPlace { acc, a, b } => {
            let operands = [dot::From::of(a), dot::From::of(b)];
            dot::lower_dot(cx, op, *acc, operands, DotArithmetic::TensorCore)
        }
        OpKind::Take { a, at, fill } => take::lower_take(cx, op, *a, *at, *fill),
        OpKind::Put {
            op: put,
            a,
            at,
            update,
            distinct,
        } => put::lower_put(cx, op, *put, *a, *at, *update, *distinct),
        OpKind::Sort { keys, axis, .. } => sort::lower_sort(cx, op, keys, *axis),
        OpKind::OptimizationBarrier { values } => misc::lower_optimization_barrier(cx, op, values),
        OpKind::MultipleOf { a, divisor } => misc::lower_multiple_of(cx, op, *a, *divisor),
        OpKind::LayoutCast { a, layout: _ } => misc::lower_layout_cast(cx, op, *a),
        OpKind::Relayout { a } => relayout::lower_relayout(cx, op, *a),
        OpKind::AxisIndex { axis } => ids::lower_axis_index(cx, op, *axis),

        OpKind::Load { src } => memory::lower_load(cx, op, src),
        OpKind::Store { dst, value } => memory::lower_store(cx, op, dst, *value),
        OpKind::Swap { dst, value } => memory::lower_swap(cx, op, dst, *value),
        OpKind::AtomicUpdate { op: update, dst, value } => atomic::lower_atomic_update(cx, op, *update, dst, *value),
        OpKind::LoadMasked { src, mask } => memory::lower_load_masked(cx, op, src, *mask),
        OpKind::StoreMasked { dst, mask, value } => memory::lower_store_masked(cx, op, dst, *mask, *value),
        OpKind::LoadAt { src, at, mask } => indexed::lower_load_at(cx, op, src, (at, *mask)),
        OpKind::StoreAt { dst, at, mask, value } => indexed::lower_store_at(cx, op, dst, (at, *mask), *value),
        OpKind::AtomicUpdateAt {
            op: update,
            dst,
            at,
            value,
        } => indexed::lower_atomic_update_at(cx, op, *update, dst, at, *value),
        OpKind::CopyGmemToSmem { .. } => tma::lower_copy_gmem_to_smem(cx, op),
        OpKind::CopySmemToGmem { .. } => tma::lower_copy_smem_to_gmem(cx, op),
        OpKind::CommitGroup => tma::lower_commit_group(cx, op),
        OpKind::WaitSmemToGmem { n, scope } => tma::lower_wait_smem_to_gmem(cx, op, *n, *scope),
        OpKind::Prefetch { .. } => tma::lower_prefetch(cx, op),
        OpKind::CommitSmem => tma::lower_commit_smem(cx, op),

        OpKind::BarrierArrive { barrier, predicate } => barrier::lower_arrive(cx, op, barrier, *predicate),
        OpKind::BarrierWait { barrier, phases } => barrier::lower_wait(cx, op, barrier, *phases),
        OpKind::BarrierTest { barrier, phases } => barrier::lower_test(cx, op, barrier, *phases),
        OpKind::Sync { group } => misc::lower_sync(cx, *group),
        OpKind::Fence { kind } => misc::lower_fence(cx, *kind),
        OpKind::SemaphoreSignal {
            semaphore,
            value,
            scope,
        } => semaphore::lower_signal(cx, op, &[(semaphore.clone(), *value)], *scope),
        OpKind::SemaphoreSignalParallel { signals, scope } => semaphore::lower_signal(cx, op, signals, *scope),
        OpKind::SemaphoreWait {
            semaphore,
            value,
            decrement,
            scope,
        } => semaphore::lower_wait(cx, op, semaphore, *value, *decrement, *scope),
        OpKind::SemaphoreRead { semaphore } => semaphore::lower_read(cx, op, semaphore),

        OpKind::AccInit { init } => wgmma::lower_acc_init(cx, op, *init),
        OpKind::Wgmma { acc, a, b } => wgmma::lower_wgmma(cx, op, acc, a, b),
        OpKind::WgmmaWait { n, accs } => wgmma::lower_wgmma_wait(cx, op, *n, accs),
        OpKind::AccRead { acc } => wgmma::lower_acc_read(cx, op, acc),

        OpKind::TmemLoad { src } => tensor_memory::lower_load(cx, op, src),
        OpKind::TmemStore { dst, value } => tensor_memory::lower_store(cx, op, dst, *value),
        OpKind::TmemWait { what } => tensor_memory::lower_wait(cx, *what),
        OpKind::TmemCopy { src, dst } => tensor_memory::lower_copy(cx, op, src, dst),
        OpKind::Tcgen05Mma {
            acc,
            a,
            b,
            accumulate,
            barrier,
            ..
        } => tensor_memory::lower_product(cx, op, [acc, a, b], *accumulate, barrier.as_ref()),
        OpKind::Tcgen05Commit { barrier, predicate } => tensor_memory::lower_commit(cx, barrier, *predicate),

        OpKind::For { .. } | OpKind::While { .. } => control::lower_loop(cx, op),
        OpKind::Switch { selector, arms } => control::lower_switch(cx, op, *selector, arms),
        OpKind::Scope {
            allocs,
            collective,
            body,
        } => control::lower_scope(cx, op, allocs, *collective, *body),
        OpKind::WarpMap { axis: _, inits, body } => control::lower_warp_map(cx, op, inits, *body),

        OpKind::SetMaxRegisters { action, n } => misc::lower_set_max_registers(cx, *action, *n),
        OpKind::Delay { nanos } => misc::lower_delay(cx, *nanos),
        OpKind::GridDependency { action } => misc::lower_grid_dependency(cx, *action),
        OpKind::InlinePtx { does, code, refs, args } => inline_ptx::lower_inline_ptx(cx, op, *does, code, refs, args),
        OpKind::PrintLayout { .. } => Ok(()),
        OpKind::ProfileMark { name, edge } => profile::lower_mark(cx, name, *edge),
        OpKind::DebugPrint { format, args, then } => debug_print::lower_debug_print(cx, op, format, args, *then),
        OpKind::MbarrierArrive {
            barrier,
            count,
            by,
            order,
        } => barrier::lower_counted_arrive(cx, barrier, *count, *by, *order),
        OpKind::MbarrierExpect {
            barrier,
            bytes,
            arrives,
        } => barrier::lower_expect(cx, barrier, *bytes, *arrives),
        OpKind::MbarrierWait { barrier, phase, order } => barrier::lower_wait_phase(cx, barrier, *phase, *order),
        OpKind::AsyncStoreSmem {
            value,
            dst,
            barrier,
            atomic,
        } => memory::lower_async_store(cx, op, dst, *value, barrier, *atomic),
        OpKind::WaitGmemToSmem { n } => tma::lower_wait_gmem_to_smem(cx, *n),
    }
}
