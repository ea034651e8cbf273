//! Control flow: loops, arms, scopes, warp regions.
//!
//! What a kernel value is in registers ([`Lowered`]) is flattened to single registers where it crosses a region's border, and
//! rebuilt inside, in the layout that inference gave the parameter or result.
use super::cx::{Carried, LowerCx};
use super::emit::{S, V};
use super::give_up;
use super::value::{AccRegs, ArrayRegs, Lowered, Packing, scalar_class};
use crate::error::{Error, Result};
use crate::kernel_ir::polling::Reach;
use crate::kernel_ir::{Alloc, Group, Op, OpKind, Region, Type, Value};
use crate::plan::FeedingPart;
use crate::ptx::inst::Inst;
use crate::ptx::modifier::*;
use crate::ptx::operand::{Class, Src};
use crate::ptx::ssa::Uniform;

/// The registers of `v` as `like` (a parameter or a result of `v`'s type) has them: classes and contents.
fn flatten(cx: &mut LowerCx, v: Value, like: Value) -> Result<Vec<(S, Class)>> {
    match cx.ty(like) {
        Type::Scalar(dtype) => {
            let class = scalar_class(*dtype);
            Ok(vec![(cx.scalar(v)?, class)])
        }
        Type::Array { dtype, .. } => {
            let layout = cx.layout_of(like)?;
            let array = cx.array_in(v, &layout)?;
            let class = Packing::of(*dtype).class();
            Ok(array.regs.into_iter().map(|r| (r, class)).collect())
        }
        Type::Acc { .. } => Ok(cx.acc(v)?.regs.into_iter().map(|r| (Src::Reg(r), Class::B32)).collect()),
    }
}

/// The opposite: takes what `like` needs from the front of `regs`.
fn rebuild(cx: &LowerCx, like: Value, regs: &mut &[S]) -> Result<Lowered> {
    let missing = || Error::internal("a region handed on too few registers");
    let mut take = |n: usize| -> Result<Vec<S>> {
        let (head, tail) = regs.split_at_checked(n).ok_or_else(missing)?;
        *regs = tail;
        Ok(head.to_vec())
    };
    Ok(match cx.ty(like) {
        Type::Scalar(_) => Lowered::Scalar(take(1)?[0]),
        Type::Array { dtype, .. } => {
            let layout = cx.layout_of(like)?;
            let n = Packing::of(*dtype).regs(layout.slots()) as usize;
            Lowered::Array(ArrayRegs {
                dtype: *dtype,
                regs: take(n)?,
                layout,
            })
        }
        Type::Acc { dtype, .. } => {
            let layout = cx.layout_of(like)?;
            let n = cx.acc_words(like)?;
            let regs: Option<Vec<V>> = take(n)?.into_iter().map(|s| s.reg()).collect();
            Lowered::Acc(AccRegs {
                dtype: *dtype,
                layout,
                regs: regs.ok_or_else(missing)?,
                home: cx.home(like),
            })
        }
    })
}

pub fn flatten_all(cx: &mut LowerCx, values: &[Value], like: &[Value]) -> Result<Vec<(S, Class)>> {
    let mut out = vec![];
    for (v, l) in values.iter().zip(like) {
        out.extend(flatten(cx, *v, *l)?);
    }
    Ok(out)
}

pub fn bind_all(cx: &mut LowerCx, targets: &[Value], like: &[Value], regs: &[S]) -> Result<()> {
    let mut rest = regs;
    for (t, l) in targets.iter().zip(like) {
        let x = rebuild(cx, *l, &mut rest)?;
        cx.bind(*t, x);
    }
    Ok(())
}

/// How far the registers of a value are equal: scalars over their group.
pub fn uniformity(cx: &LowerCx, v: Value) -> Uniform {
    match cx.ty(v) {
        Type::Scalar(_) => match cx.kernel.values[v].group {
            Group::Warp => Uniform::Warp,
            Group::Warpgroup => Uniform::Warpgroup,
            Group::Block => Uniform::Cta,
        },
        Type::Array { .. } | Type::Acc { .. } => Uniform::Thread,
    }
}

pub fn carried(cx: &LowerCx, like: &[Value], regs: &[(S, Class)]) -> Result<Vec<Carried>> {
    let mut out = Vec::with_capacity(regs.len());
    let mut at = 0;
    for l in like {
        let n = match cx.ty(*l) {
            Type::Scalar(_) => 1,
            Type::Array { dtype, .. } => Packing::of(*dtype).regs(cx.layout_of(*l)?.slots()) as usize,
            Type::Acc { .. } => cx.acc_words(*l)?,
        };
        let uniform = uniformity(cx, *l);
        out.extend(
            regs[at..at + n]
                .iter()
                .map(|&(init, class)| Carried { init, class, uniform }),
        );
        at += n;
    }
    Ok(out)
}

/// The integer type of a loop counter.
pub fn counter(cx: &LowerCx, v: Value) -> (IntType, CompareType, Class) {
    let dtype = cx.ty(v).dtype();
    match (scalar_class(dtype), dtype.is_signed_int()) {
        (Class::B64, true) => (IntType::S64, CompareType::S64, Class::B64),
        (Class::B64, false) => (IntType::U64, CompareType::U64, Class::B64),
        (_, true) => (IntType::S32, CompareType::S32, Class::B32),
        (_, false) => (IntType::U32, CompareType::U32, Class::B32),
    }
}

pub fn lower_loop(cx: &mut LowerCx, op: Op) -> Result<()> {
    if cx.plan.feeding.loops[op] {
        return lower_feeding_loop(cx, op);
    }
    lower_any_loop(cx, op)
}

fn lower_any_loop(cx: &mut LowerCx, op: Op) -> Result<()> {
    if let OpKind::While { inits, cond, body } = &cx.kernel.ops[op].kind {
        return lower_while(cx, op, inits, *cond, *body);
    }
    lower_for(cx, op)
}

/// `if this is the first warp { the loop } else { what it computes, if that is used }`. All results are scalars.
fn lower_feeding_loop(cx: &mut LowerCx, op: Op) -> Result<()> {
    let results = &cx.kernel.ops[op].results;
    let counted: Vec<Value> = results.iter().copied().filter(|v| cx.used.contains(*v)).collect();
    let part = |cx: &mut LowerCx, part: FeedingPart| -> Result<Vec<S>> {
        cx.feeding = Some(part);
        let done = lower_any_loop(cx, op);
        cx.feeding = None;
        done?;
        counted.iter().map(|v| cx.scalar(*v)).collect()
    };
    let classes: Vec<Class> = counted.iter().map(|v| scalar_class(cx.ty(*v).dtype())).collect();
    let issues = cx.is_issuing_warp();
    let out = cx.if_else(
        issues,
        &classes,
        |cx| part(cx, FeedingPart::Issues),
        |cx| {
            if counted.is_empty() {
                Ok(vec![])
            } else {
                part(cx, FeedingPart::Counts)
            }
        },
    )?;
    for (v, s) in counted.iter().zip(out) {
        if let Src::Reg(reg) = s {
            cx.b.claim_uniform(reg, uniformity(cx, *v));
        }
        cx.bind_scalar(*v, s);
    }
    Ok(())
}

fn lower_for(cx: &mut LowerCx, op: Op) -> Result<()> {
    let kernel = cx.kernel;
    let OpKind::For {
        lower,
        upper,
        inits,
        xs,
        reverse,
        unroll,
        body,
    } = &kernel.ops[op].kind
    else {
        return Err(Error::internal("not a loop"));
    };
    let results = &kernel.ops[op].results;
    if !xs.is_empty() || results.len() > inits.len() {
        return super::scan::lower_scan(cx, op);
    }
    let data = &kernel.regions[*body];
    let (index, carries, yields) = (data.params[0], &data.params[1..], &data.results);
    let (ty, compare, class) = counter(cx, index);
    let (lower, upper) = (cx.scalar(*lower)?, cx.scalar(*upper)?);
    let count = match (cx.b.as_constant(lower), cx.b.as_constant(upper)) {
        (Some(lower), Some(upper)) => Some(upper.wrapping_sub(lower) & class.mask()),
        _ => None,
    };
    // Copies of the body in an iteration, and iterations that are left over for the end; both need a known count.
    let (copies, rest) = match count {
        Some(n) if *unroll > 1 && n > 0 && n < 1 << 31 => {
            let copies = u64::from(*unroll).min(kernel.target.max_body_copies);
            if n <= copies { (1, n) } else { (copies, n % copies) }
        }
        _ => (1, 0),
    };
    // One iteration, the `i`th from `first` on, on carries in registers.
    let iteration = |cx: &mut LowerCx, first: S, i: u64, carried: &[S]| -> Result<Vec<S>> {
        let at = cx.b.add(ty, first, Src::Imm(i));
        let at = if *reverse {
            // lower + upper − 1 − at
            let sum = cx.b.add(ty, lower, upper);
            let last = cx.b.sub(ty, sum, Src::Imm(1));
            cx.b.sub(ty, last, at)
        } else {
            at
        };
        cx.bind_scalar(index, at);
        bind_all(cx, carries, carries, carried)?;
        cx.lower_ops(*body)?;
        Ok(flatten_all(cx, yields, carries)?.into_iter().map(|r| r.0).collect())
    };
    let parts = flatten_all(cx, inits, carries)?;
    let mut now: Vec<S> = parts.iter().map(|p| p.0).collect();
    let looped_end = if rest == 0 {
        upper
    } else {
        cx.b.sub(ty, upper, Src::Imm(rest))
    };
    if count.is_none_or(|n| n > rest) {
        let mut state = vec![Carried {
            init: lower,
            class,
            uniform: uniformity(cx, index),
        }];
        state.extend(carried(cx, carries, &parts)?);
        let out = cx.while_loop(
            &state,
            |cx, now| Ok(cx.b.setp(Compare::Lt, compare, now[0], looped_end)),
            |cx, now| {
                let mut carried = now[1..].to_vec();
                for i in 0..copies {
                    carried = iteration(cx, now[0], i, &carried)?;
                }
                let mut next = vec![cx.b.add(ty, now[0], Src::Imm(copies))];
                next.extend(carried);
                Ok(next)
            },
        )?;
        now = out[1..].to_vec();
    }
    for i in 0..rest {
        now = iteration(cx, looped_end, i, &now)?;
    }
    bind_all(cx, results, carries, &now)
}

fn lower_while(cx: &mut LowerCx, op: Op, inits: &[Value], cond: Region, body: Region) -> Result<()> {
    let kernel = cx.kernel;
    let (cond_params, body_params) = (&kernel.regions[cond].params, &kernel.regions[body].params);
    let parts = flatten_all(cx, inits, body_params)?;
    let state = carried(cx, body_params, &parts)?;
    let out = cx.while_loop(
        &state,
        |cx, now| {
            bind_all(cx, cond_params, body_params, now)?;
            // It may never end if others of its block, or those that it polls, are gone.
            if cx.polling.loops.contains(op) {
                give_up::leave_if_any(cx);
            } else {
                give_up::leave(cx);
            }
            cx.lower_ops(cond)?;
            cx.scalar(kernel.regions[cond].results[0])
        },
        |cx, now| {
            bind_all(cx, body_params, body_params, now)?;
            cx.lower_ops(body)?;
            let next = flatten_all(cx, &kernel.regions[body].results, body_params)?;
            Ok(next.into_iter().map(|r| r.0).collect())
        },
    )?;
    acquire_after_poll(cx, op);
    bind_all(cx, &kernel.ops[op].results, body_params, &out)
}

/// What happened before the store that ends a polling loop happens before what follows the loop: relaxed looks, then one fence of their scope.
/// A barrier's phase is acquired by the look itself.
fn acquire_after_poll(cx: &mut LowerCx, op: Op) {
    let scope = match cx.polling.reach(cx.kernel, op) {
        None | Some(Reach::Barrier) => return,
        Some(Reach::Block) => Scope::Cta,
        Some(Reach::Cluster) => Scope::Cluster,
        Some(Reach::Device) => super::memory::device_scope(cx),
    };
    cx.b.inst(Inst::fence(FenceSem::AcqRel, scope));
}

/// Arms are tried in turn, the last without a test: a selector is in range.
pub fn lower_switch(cx: &mut LowerCx, op: Op, selector: Value, arms: &[Region]) -> Result<()> {
    let kernel = cx.kernel;
    let results = &kernel.ops[op].results;
    let is_bool = scalar_class(cx.ty(selector).dtype()) == Class::Pred;
    let selector = if is_bool {
        cx.scalar(selector)?
    } else {
        cx.index32(selector)?
    };
    let mut classes = vec![];
    for r in results {
        match cx.ty(*r) {
            Type::Scalar(dtype) => classes.push(scalar_class(*dtype)),
            Type::Array { dtype, .. } => {
                let packing = Packing::of(*dtype);
                let n = packing.regs(cx.layout_of(*r)?.slots());
                classes.extend((0..n).map(|_| packing.class()));
            }
            Type::Acc { dtype, .. } => {
                let n = cx.layout_of(*r)?.words(dtype.bits());
                classes.extend((0..n).map(|_| Class::B32));
            }
        }
    }
    let out = lower_arms(cx, selector, is_bool, arms, 0, results, &classes)?;
    for (r, v) in out.iter().zip(classes_uniform(cx, results)?) {
        if let Src::Reg(reg) = r {
            cx.b.claim_uniform(*reg, v);
        }
    }
    bind_all(cx, results, results, &out)
}

fn classes_uniform(cx: &LowerCx, results: &[Value]) -> Result<Vec<Uniform>> {
    let mut out = vec![];
    for r in results {
        let n = match cx.ty(*r) {
            Type::Scalar(_) => 1,
            Type::Array { dtype, .. } => Packing::of(*dtype).regs(cx.layout_of(*r)?.slots()) as usize,
            Type::Acc { dtype, .. } => cx.layout_of(*r)?.words(dtype.bits()) as usize,
        };
        out.extend(std::iter::repeat_n(uniformity(cx, *r), n));
    }
    Ok(out)
}

fn lower_arm(cx: &mut LowerCx, arm: Region, results: &[Value]) -> Result<Vec<S>> {
    cx.lower_ops(arm)?;
    let yields = &cx.kernel.regions[arm].results;
    Ok(flatten_all(cx, yields, results)?.into_iter().map(|r| r.0).collect())
}

fn lower_arms(
    cx: &mut LowerCx,
    selector: S,
    is_bool: bool,
    arms: &[Region],
    first: usize,
    results: &[Value],
    classes: &[Class],
) -> Result<Vec<S>> {
    let Some((&arm, rest)) = arms.split_first() else {
        return Err(Error::internal("a switch without arms"));
    };
    if rest.is_empty() {
        return lower_arm(cx, arm, results);
    }
    let here = if is_bool {
        cx.b.not(LogicType::Pred, selector)
    } else {
        cx.b.setp(Compare::Eq, CompareType::S32, selector, Src::u32(first as u32))
    };
    cx.if_else(
        here,
        classes,
        |cx| lower_arm(cx, arm, results),
        |cx| lower_arms(cx, selector, is_bool, rest, first + 1, results, classes),
    )
}

/// Allocations were placed before; a scope's barriers are `Sync` ops by now.
pub fn lower_scope(cx: &mut LowerCx, op: Op, _allocs: &[Alloc], _collective: bool, body: Region) -> Result<()> {
    let kernel = cx.kernel;
    cx.lower_ops(body)?;
    for (r, y) in kernel.ops[op].results.iter().zip(&kernel.regions[body].results) {
        let x = match (cx.get(*y)?.clone(), cx.ty(*r)) {
            (Lowered::Array(_), Type::Array { .. }) => {
                let layout = cx.layout_of(*r)?;
                Lowered::Array(cx.array_in(*y, &layout)?)
            }
            (x, _) => x,
        };
        cx.bind(*r, x);
    }
    Ok(())
}

/// The same code in each of the four warps, which diverge.
pub fn lower_warp_map(cx: &mut LowerCx, op: Op, inits: &[Value], body: Region) -> Result<()> {
    let kernel = cx.kernel;
    for (p, v) in kernel.regions[body].params.iter().zip(inits) {
        let x = cx.get(*v)?.clone();
        cx.bind(*p, x);
    }
    let outer = std::mem::replace(&mut cx.group, Group::Warp);
    let done = cx.lower_ops(body);
    cx.group = outer;
    done?;
    for (r, y) in kernel.ops[op].results.iter().zip(&kernel.regions[body].results) {
        let x = cx.get(*y)?.clone();
        cx.bind(*r, x);
    }
    Ok(())
}
