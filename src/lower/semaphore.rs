//! Semaphores: i32 counters in device memory.
//!
//! A signal is a barrier of the executing group and then one `red.release` of one lane; a wait is one lane's polling and then a barrier
//! of the group: what the others do is ordered by the barriers (PTX ISA, causality order is transitive over them).
//!
//! In a warp region every warp that executes a signal or a wait counts for itself. Behind the region, a warpgroup's read comes
//! after what all of its warps did to the semaphore: the reading lane's own warp may be ahead of them.
use super::cx::LowerCx;
use super::emit::S;
use super::{exchange, give_up, memory};
use crate::error::{Error, Result};
use crate::kernel_ir::{Alloc, AllocKind, GmemOrigin, Group, Index, Kernel, MemoryScope, Op, RefUse, Value};
use crate::ptx::inst::Inst;
use crate::ptx::launch::Awaited;
use crate::ptx::modifier::*;
use crate::ptx::operand::{Addr, Class, Src};
use crate::ptx::ssa;
use smallvec::smallvec;

fn scope_of(scope: MemoryScope) -> Scope {
    match scope {
        MemoryScope::Gpu => Scope::Gpu,
        MemoryScope::Sys => Scope::Sys,
    }
}

/// Bytes of an allocation that is scratch of semaphores, over all blocks; of others 0.
pub fn scratch_bytes(kernel: &Kernel, alloc: Alloc, blocks: u64) -> u64 {
    let data = &kernel.allocs[alloc];
    let AllocKind::Semaphore {
        origin: GmemOrigin::Scratch { global },
    } = data.kind
    else {
        return 0;
    };
    let copies = if global { 1 } else { blocks };
    let shared = data.collective || global;
    let per_block = if shared { 1 } else { u64::from(kernel.num_warpgroups) };
    4 * data.shape.iter().product::<u64>() * copies * per_block
}

/// The counter's address.
fn address(cx: &mut LowerCx, r: &RefUse) -> Result<Addr<ssa::Value>> {
    let kernel = cx.kernel;
    let data = &kernel.allocs[r.alloc];
    let AllocKind::Semaphore { origin } = data.kind else {
        return Err(Error::internal(format!("{} is no semaphore", r.alloc)).at(cx.b.loc()));
    };
    super::view::check_indices(cx, r, Src::Imm(1))?;
    let mut base: S = exchange::buffer_start(cx, r)?;
    let count: u64 = data.shape.iter().product();
    if let GmemOrigin::Scratch { global: false } = origin {
        // Each block, and each warpgroup where they don't share, has its own.
        let mut owner = cx.linear_block();
        if !data.collective {
            let warpgroup = cx.warpgroup();
            owner =
                cx.b.mad(IntType::U32, owner, Src::u32(kernel.num_warpgroups), warpgroup);
        }
        let owner = cx.b.widen(owner, false);
        let offset = cx.b.mul(IntType::U64, owner, Src::Imm(4 * count));
        base = cx.b.add(IntType::U64, base, offset);
    }
    let index = match r.single_index() {
        Some(Index::Const(c)) => Src::Imm(c as u64),
        Some(Index::Value(v)) => cx.index64(v)?,
        None if count == 1 => Src::Imm(0),
        None => return Err(Error::internal("a use of several semaphores").at(cx.b.loc())),
    };
    let offset = cx.b.mul(IntType::U64, index, Src::Imm(4));
    let at = cx.b.add(IntType::U64, base, offset);
    Ok(cx.b.addr(at, 0))
}

pub fn lower_signal(cx: &mut LowerCx, _op: Op, signals: &[(RefUse, Value)], scope: MemoryScope) -> Result<()> {
    let scope = scope_of(scope);
    cx.sync_group();
    let leader = cx.leader();
    cx.if_then(leader.into(), |cx| {
        // Several: one release for all of them.
        let sem = match signals.len() {
            1 => AtomSem::Release,
            _ => {
                cx.b.inst(Inst::fence(FenceSem::AcqRel, scope));
                AtomSem::Relaxed
            }
        };
        for (semaphore, value) in signals {
            let addr = address(cx, semaphore)?;
            let a = cx.index32(*value)?;
            cx.b.inst(Inst::red(sem, scope, Space::Global, RedOp::Add, AtomType::U32, addr, a));
        }
        Ok(())
    })
}

pub fn lower_wait(
    cx: &mut LowerCx,
    _op: Op,
    semaphore: &RefUse,
    value: Value,
    decrement: bool,
    scope: MemoryScope,
) -> Result<()> {
    let scope = scope_of(scope);
    let leader = cx.leader();
    cx.if_then(leader.into(), |cx| {
        let addr = address(cx, semaphore)?;
        let value = cx.index32(value)?;
        let Some(ns) = cx.limit.map(|limit| limit.ns) else {
            cx.b.inst(match decrement {
                true => Inst::WaitAndSubtract { scope, addr, value },
                false => Inst::WaitAtLeast { scope, addr, value },
            });
            return Ok(());
        };
        let ok = ssa::Value::NEW;
        let ok = cx.b.inst(match decrement {
            true => Inst::wait_and_subtract_for(scope, ok, addr, value, ns),
            false => Inst::wait_at_least_for(scope, ok, addr, value, ns),
        })[0];
        give_up::unless(cx, ok, Awaited::Semaphore, value)
    })?;
    cx.sync_group();
    if cx.group == Group::Warp {
        give_up::leave(cx);
    }
    Ok(())
}

/// Read by one lane, broadcast to the others.
pub fn lower_read(cx: &mut LowerCx, op: Op, semaphore: &RefUse) -> Result<()> {
    if cx.group != Group::Warp && cx.counted_by_warps(semaphore.alloc) {
        cx.sync_group();
    }
    let reads = cx.is_leading_warp();
    let read = cx.if_else(
        reads,
        &[Class::B32],
        |cx| {
            let addr = address(cx, semaphore)?;
            let d = smallvec![ssa::Value::NEW];
            let sem = LoadSem::RelaxedSys;
            let v = cx.b.inst(Inst::ld(sem, Space::Global, MemType::B32, d, addr))[0];
            Ok(vec![v.into()])
        },
        |_| Ok(vec![Src::Imm(0)]),
    )?[0];
    let s = memory::broadcast_leader(cx, Class::B32, read)?;
    cx.bind_scalar(cx.result(op), s);
    Ok(())
}
