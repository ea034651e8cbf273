//! Ops that fit no other family.
use super::cx::LowerCx;
use super::value::scalar_class;
use crate::error::Result;
use crate::kernel_ir::{FenceKind, GridDependencyAction, Group, Op, RegisterAction, Value};
use crate::ptx::inst::Inst;
use crate::ptx::modifier::*;
use crate::ptx::operand::{Class, Src};

/// Pure ops stay in program order down to the printed form, and nothing above is moved by lowering: the operands are the results.
pub fn lower_optimization_barrier(cx: &mut LowerCx, op: Op, values: &[Value]) -> Result<()> {
    for (i, &v) in values.iter().enumerate() {
        let x = cx.get(v)?.clone();
        let result = cx.kernel.ops[op].results[i];
        match x {
            super::value::Lowered::Array(_) => {
                let layout = cx.layout_of(result)?;
                let a = cx.array_in(v, &layout)?;
                cx.bind_array(result, a);
            }
            x => cx.bind(result, x),
        }
    }
    Ok(())
}

/// The operand has the layout that the user named.
pub fn lower_layout_cast(cx: &mut LowerCx, op: Op, a: Value) -> Result<()> {
    let result = cx.result(op);
    let x = match cx.get(a)?.clone() {
        super::value::Lowered::Array(_) => {
            let layout = cx.layout_of(result)?;
            super::value::Lowered::Array(cx.array_in(a, &layout)?)
        }
        x => x,
    };
    cx.bind(result, x);
    Ok(())
}

/// The operand; the emulator checks that it is what the user declares.
pub fn lower_multiple_of(cx: &mut LowerCx, op: Op, a: Value, divisor: u64) -> Result<()> {
    let x = cx.get(a)?.clone();
    cx.bind(cx.result(op), x);
    if !cx.kernel.facts(a).is_multiple_of(divisor) {
        let (ty, i) = super::view::index_of(cx, a)?;
        cx.b.inst(Inst::check_index(ty, Indexed::Hint, i, divisor as i64, 0, 0, 0));
    }
    Ok(())
}

pub fn lower_sync(cx: &mut LowerCx, group: Group) -> Result<()> {
    cx.sync(group);
    Ok(())
}

pub fn lower_fence(cx: &mut LowerCx, kind: FenceKind) -> Result<()> {
    let proxy = match kind {
        FenceKind::ProxyAsyncSharedCta => ProxyFence::AsyncSharedCta,
        FenceKind::ProxyAsyncGlobal => ProxyFence::AsyncGlobal,
        FenceKind::ProxyAsyncGenericAcquire => ProxyFence::AsyncGenericAcquireCluster,
        FenceKind::ProxyAsyncGenericRelease => ProxyFence::AsyncGenericReleaseCluster,
    };
    cx.b.inst(Inst::FenceProxy { proxy });
    Ok(())
}

pub fn lower_set_max_registers(cx: &mut LowerCx, action: RegisterAction, n: u32) -> Result<()> {
    let action = match action {
        RegisterAction::Increase => RegCount::Increase,
        RegisterAction::Decrease => RegCount::Decrease,
    };
    cx.b.inst(Inst::set_max_reg(action, i64::from(n)));
    Ok(())
}

/// nanosleep sleeps for at most a millisecond (PTX ISA 9.7.19.3: up to twice the argument, whose maximum is 1 ms): longer delays loop
/// on the clock.
pub fn lower_delay(cx: &mut LowerCx, nanos: Value) -> Result<()> {
    let dtype = cx.kernel.ty(nanos).dtype();
    let ns = match scalar_class(dtype) {
        Class::B64 => cx.scalar(nanos)?,
        _ => cx.index64(nanos)?,
    };
    if let Src::Imm(n) = ns
        && n <= 1_000_000
    {
        cx.b.inst(Inst::Nanosleep { ns: Src::Imm(n) });
        return Ok(());
    }
    let now = |cx: &mut LowerCx| {
        cx.b.emit_value(Inst::mov_special64(
            SpecialReg64::Globaltimer,
            crate::ptx::ssa::Value::NEW,
        ))
    };
    let start = now(cx);
    cx.while_loop(
        &[],
        |cx, _| {
            let t = now(cx);
            let past = cx.b.sub(IntType::U64, t, start);
            Ok(cx.b.setp(Compare::Lt, CompareType::S64, past, ns))
        },
        |cx, _| {
            cx.b.inst(Inst::Nanosleep { ns: Src::u32(1000) });
            Ok(vec![])
        },
    )?;
    // Lanes read the clock one by one: they converge again here.
    cx.sync_group();
    Ok(())
}

pub fn lower_grid_dependency(cx: &mut LowerCx, action: GridDependencyAction) -> Result<()> {
    let action = match action {
        GridDependencyAction::Wait => {
            cx.entry.uses_programmatic_launch = true;
            GridDep::Wait
        }
        GridDependencyAction::LaunchDependents => GridDep::LaunchDependents,
    };
    cx.b.inst(Inst::GridDep { action });
    Ok(())
}
