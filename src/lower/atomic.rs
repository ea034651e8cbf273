//! Atomic updates of memory: reductions in memory, of several adjacent 16-bit floats at once where they lie so, and a loop of compare
//! and swap where PTX has no such reduction.
use super::cx::{Carried, LowerCx};
use super::emit::{S, V};
use super::memory::{self, Target, push_guarded};
use super::pieces::Pieces;
use super::positions;
use super::relayout::filled;
use crate::dtype::DType;
use crate::error::Result;
use crate::kernel_ir::{AtomicOp, Op, RefUse, Value};
use crate::layout::transfer::AccessKind;
use crate::ptx::inst::Inst;
use crate::ptx::modifier::*;
use crate::ptx::operand::{Addr, Class, Src, Srcs};
use crate::ptx::ssa::{Uniform, Value as PtxValue};
use crate::target::Features;

/// How PTX updates a 16-bit float, and a pair of them.
#[derive(Clone, Copy)]
struct Half {
    one: AtomType,
    pair: AtomType,
    op: HalfRedOp,
    scalar: HalfType,
    packed: HalfType,
    arithmetic: FloatType,
}

impl Half {
    fn of(dtype: DType, update: AtomicOp) -> Option<Half> {
        let op = match update {
            AtomicOp::Add => HalfRedOp::Add,
            AtomicOp::Max => HalfRedOp::Max,
            AtomicOp::Min => HalfRedOp::Min,
            AtomicOp::And | AtomicOp::Or | AtomicOp::Xor => return None,
        };
        let half = match dtype {
            DType::F16 => Half {
                one: AtomType::F16,
                pair: AtomType::F16x2,
                op,
                scalar: HalfType::F16,
                packed: HalfType::F16x2,
                arithmetic: FloatType::F16,
            },
            DType::BF16 => Half {
                one: AtomType::BF16,
                pair: AtomType::BF16x2,
                op,
                scalar: HalfType::BF16,
                packed: HalfType::BF16x2,
                arithmetic: FloatType::BF16,
            },
            _ => return None,
        };
        Some(half)
    }
}

impl Half {
    /// Whether the machine adds these in memory.
    fn adds(self, cx: &LowerCx) -> bool {
        self.scalar != HalfType::BF16 || cx.b.has(Features::BF16_ATOMICS)
    }
}

/// The scope of an update.
fn scope(cx: &LowerCx, target: Target) -> Scope {
    match target.space {
        Space::Shared => Scope::Cta,
        Space::SharedCluster => Scope::Cluster,
        Space::Global | Space::Generic => memory::device_scope(cx),
    }
}

fn red(cx: &LowerCx, target: Target, op: RedOp, ty: AtomType, addr: Addr<V>, a: S) -> Inst<V> {
    Inst::red(AtomSem::Relaxed, scope(cx, target), target.space, op, ty, addr, a)
}

/// Updates one element where `p` is true; `x` is as [`super::value::Lowered::Scalar`] keeps it.
pub fn update(
    cx: &mut LowerCx,
    op: Op,
    update: AtomicOp,
    dtype: DType,
    target: Target,
    addr: Addr<V>,
    x: S,
    p: S,
) -> Result<()> {
    if let Some(half) = Half::of(dtype, update) {
        return match half.op {
            HalfRedOp::Add if !half.adds(cx) => add(cx, half, target, addr, x, p),
            HalfRedOp::Add => {
                let red = red(cx, target, RedOp::Add, half.one, addr, x);
                push_guarded(cx, target, p, red);
                Ok(())
            }
            HalfRedOp::Max => pick(cx, MinMax::Max, half, target, addr, x, p),
            HalfRedOp::Min => pick(cx, MinMax::Min, half, target, addr, x, p),
        };
    }
    let (reduction, ty) = reduction(update, dtype).ok_or_else(|| cx.unexpected(op))?;
    let red = red(cx, target, reduction, ty, addr, x);
    push_guarded(cx, target, p, red);
    Ok(())
}

/// What PTX calls an update of elements of 32 and 64 bits.
pub fn reduction(update: AtomicOp, dtype: DType) -> Option<(RedOp, AtomType)> {
    let ty = match (dtype, update) {
        (DType::F32, AtomicOp::Add) => AtomType::F32,
        (DType::F64, AtomicOp::Add) => AtomType::F64,
        (DType::I32, AtomicOp::Add) | (DType::U32, _) => AtomType::U32,
        (DType::I32, _) => AtomType::S32,
        (DType::I64, AtomicOp::Add) | (DType::U64, _) => AtomType::U64,
        (DType::I64, _) => AtomType::S64,
        _ => return None,
    };
    let ty = match (update, ty) {
        (AtomicOp::And | AtomicOp::Or | AtomicOp::Xor, AtomType::U32 | AtomType::S32) => AtomType::B32,
        (AtomicOp::And | AtomicOp::Or | AtomicOp::Xor, AtomType::U64 | AtomType::S64) => AtomType::B64,
        (_, ty) => ty,
    };
    let op = match update {
        AtomicOp::Add => RedOp::Add,
        AtomicOp::Max => RedOp::Max,
        AtomicOp::Min => RedOp::Min,
        AtomicOp::And => RedOp::And,
        AtomicOp::Or => RedOp::Or,
        AtomicOp::Xor => RedOp::Xor,
    };
    Some((op, ty))
}

/// The larger or smaller one of a 16-bit float in memory and another. PTX reduces pairs of them in global memory only: here compare
/// and swap goes on until memory holds what is right, which it may from the start.
fn pick(cx: &mut LowerCx, op: MinMax, half: Half, target: Target, addr: Addr<V>, x: S, p: S) -> Result<()> {
    let scope = scope(cx, target);
    // Others change it meanwhile.
    let mut looked_at = target;
    looked_at.sem = target.relaxed(cx);
    let carried = |init: S| Carried {
        init,
        class: Class::B16,
        uniform: Uniform::Thread,
    };
    cx.if_then(p, |cx| {
        let seen = memory::load(cx, looked_at, MemType::B16, addr, 1)[0];
        let wanted = cx.b.fmin_max(op, NanMode::Number, half.arithmetic, seen.into(), x);
        cx.while_loop(
            &[carried(seen.into()), carried(wanted)],
            |cx, values| Ok(cx.b.setp(Compare::Ne, CompareType::B16, values[0], values[1])),
            |cx, values| {
                let (seen, wanted) = (values[0], values[1]);
                let swap = Inst::atom_cas(
                    AtomSem::Relaxed,
                    scope,
                    target.space,
                    BitType::B16,
                    PtxValue::NEW,
                    addr,
                    seen,
                    wanted,
                );
                let found: S = memory::touch(cx, target, swap)[0].into();
                let swapped = cx.b.setp(Compare::Eq, CompareType::B16, found, seen);
                let seen = cx.b.select(BitType::B16, swapped, wanted, found);
                let wanted = cx.b.fmin_max(op, NanMode::Number, half.arithmetic, seen, x);
                Ok(vec![seen, wanted])
            },
        )?;
        Ok(())
    })
}

/// A 16-bit float added to one in memory: compare and swap goes on until nobody else has changed it meanwhile.
fn add(cx: &mut LowerCx, half: Half, target: Target, addr: Addr<V>, x: S, p: S) -> Result<()> {
    let scope = scope(cx, target);
    let mut looked_at = target;
    looked_at.sem = target.relaxed(cx);
    let carried = |init: S, class: Class| Carried {
        init,
        class,
        uniform: Uniform::Thread,
    };
    cx.if_then(p, |cx| {
        let seen = memory::load(cx, looked_at, MemType::B16, addr, 1)[0];
        cx.while_loop(
            &[carried(seen.into(), Class::B16), carried(Src::Imm(1), Class::Pred)],
            |_, values| Ok(values[1]),
            |cx, values| {
                let seen = values[0];
                let sum = cx.b.fadd(half.arithmetic, seen, x);
                let (sem, ty, d) = (AtomSem::Relaxed, BitType::B16, PtxValue::NEW);
                let swap = Inst::atom_cas(sem, scope, target.space, ty, d, addr, seen, sum);
                let found: S = memory::touch(cx, target, swap)[0].into();
                let again = cx.b.setp(Compare::Ne, CompareType::B16, found, seen);
                Ok(vec![found, again])
            },
        )?;
        Ok(())
    })
}

/// Updates adjacent 16-bit floats, which lie in these slots, where `p` is true; the address is aligned to all of them.
fn update_halves(
    cx: &mut LowerCx,
    op: Op,
    (by, dtype, half): (AtomicOp, DType, Half),
    target: Target,
    addr: Addr<V>,
    (pieces, slots): (&mut Pieces, &[u32]),
    p: S,
) -> Result<()> {
    let vectors = target.space == Space::Global && cx.b.has(Features::VECTOR_ATOMICS);
    let by_itself = match half.op {
        HalfRedOp::Add => !half.adds(cx),
        HalfRedOp::Max | HalfRedOp::Min => !vectors,
    };
    if slots.len() == 1 || by_itself {
        for (i, &slot) in slots.iter().enumerate() {
            let x = pieces.elements(cx)[slot as usize];
            let at = cx.b.addr(addr.base, addr.offset + 2 * i as i32);
            update(cx, op, by, dtype, target, at, x, p)?;
        }
        return Ok(());
    }
    let words: Vec<S> = slots.chunks(2).map(|pair| pieces.word(cx, pair)).collect();
    if half.op == HalfRedOp::Add && (words.len() == 1 || !vectors) {
        for (i, &word) in words.iter().enumerate() {
            let at = cx.b.addr(addr.base, addr.offset + 4 * i as i32);
            let red = red(cx, target, RedOp::Add, half.pair, at, word);
            push_guarded(cx, target, p, red);
        }
        return Ok(());
    }
    // A vector has two registers at least.
    let (ty, a): (HalfType, Srcs<V>) = match words[..] {
        [word] => (half.scalar, cx.b.unpack16(word).into_iter().collect()),
        _ => (half.packed, words.into_iter().collect()),
    };
    let red = Inst::red_vector(AtomSem::Relaxed, scope(cx, target), half.op, ty, addr, a);
    push_guarded(cx, target, p, red);
    Ok(())
}

pub fn lower_atomic_update(cx: &mut LowerCx, op: Op, by: AtomicOp, dst: &RefUse, value: Value) -> Result<()> {
    let planned = cx.transfer(op)?;
    let target = memory::locate(cx, dst, Src::Imm(1))?;
    let dtype = cx.ty(value).dtype();
    let Some(plan) = &planned.store else {
        let x = cx.scalar(value)?;
        let addr = memory::scalar_address(cx, &planned.view, target)?;
        let leader = cx.leader();
        return update(cx, op, by, dtype, target, addr, x, leader.into());
    };
    let array = cx.array(value)?;
    let mut pieces = Pieces::new(filled(cx, &array, &plan.layout)?);
    let addresses = memory::bases(cx, target, &plan.addressing)?;
    let first_copy = positions::first_copy(cx, plan.only_first_replica);
    let size = i64::from(dtype.bits() / 8);
    let half = Half::of(dtype, by);
    for access in &plan.accesses {
        let p = memory::guard(cx, &plan.layout, &access.guards, first_copy);
        let slots = &access.slots[..];
        let at = |cx: &mut LowerCx, i: usize| match access.kind {
            AccessKind::Element => Ok(memory::element_address(cx, target, plan, &planned.view, slots[i])?.0),
            AccessKind::Vector { .. } | AccessKind::Matrix { .. } => {
                let offset = access.offset + i as i64 * size;
                Ok(memory::address(cx, addresses.bases[access.base], offset))
            }
        };
        if let Some(half) = half {
            let addr = at(cx, 0)?;
            update_halves(cx, op, (by, dtype, half), target, addr, (&mut pieces, slots), p)?;
            continue;
        }
        for (i, &slot) in slots.iter().enumerate() {
            let addr = at(cx, i)?;
            let x = pieces.elements(cx)[slot as usize];
            update(cx, op, by, dtype, target, addr, x, p)?;
        }
    }
    Ok(())
}
