//! Updates of an array at positions that others hold: the array is stored to scratch, updated there in the order of
//! [`PutPlan`], and loaded.
use super::convert::as_type;
use super::cx::{Carried, LowerCx};
use super::emit::S;
use super::memory::{self, Target};
use super::positions;
use super::reduce::combine;
use super::shape::{Trip, bind_if_empty};
use super::value::ArrayRegs;
use crate::dtype::DType;
use crate::error::Result;
use crate::kernel_ir::{BinaryOp, Op, PutOp, Value, num_elements};
use crate::layout::exchange::{PutOrder, PutPlan};
use crate::layout::movement::travel_type;
use crate::layout::{RegisterLayout, SmemView};
use crate::ptx::inst::Inst;
use crate::ptx::modifier::*;
use crate::ptx::operand::{Addr, Class, Src};
use crate::ptx::ssa::Uniform;

pub fn lower_put(
    cx: &mut LowerCx,
    op: Op,
    put: PutOp,
    a: Value,
    at: Value,
    update: Value,
    distinct: bool,
) -> Result<()> {
    let result = cx.result(op);
    if bind_if_empty(cx, result)? {
        return Ok(());
    }
    let layout = cx.layout_of(result)?;
    if cx.ty(update).shape().contains(&0) {
        let x = cx.array(a)?;
        return bind_as(cx, result, x);
    }
    let shape = cx.ty(a).shape().to_vec();
    let (dtype, n) = (cx.ty(a).dtype(), num_elements(&shape));
    let plan = PutPlan::of(put, dtype, n, distinct);
    let x = cx.array(a)?;
    let x = as_type(cx, &x, plan.element)?;
    let dealt = RegisterLayout::dealt(cx.ty(update).shape(), cx.layout_group());
    let (at, update) = (cx.array_in(at, &dealt)?, cx.array_in(update, &dealt)?);
    let update = as_type(cx, &update, plan.element)?;

    let trip = Trip::start(cx, plan.element);
    let whole = SmemView::row_major(&shape, trip.bits());
    trip.store(cx, &x, &whole)?;
    let (base, _) = cx.scratch();
    let mut updates = vec![];
    let owned = positions::owned(cx, &dealt);
    let numbers = positions::numbers(cx, &dealt);
    let (places, values) = (cx.elements(&at), cx.elements(&update));
    for (i, place) in places.into_iter().enumerate() {
        let inside = cx.b.setp(Compare::Lt, CompareType::U32, place, Src::u32(n as u32));
        let address = cx.b.mad(IntType::U32, place, Src::u32(trip.bits() / 8), base);
        let claim = cx.b.mad(IntType::U32, place, Src::u32(4), base);
        updates.push(Update {
            counts: cx.b.both(owned[i], inside),
            number: numbers[i],
            value: values[i],
            place: cx.b.addr(address, 0),
            claim: cx.b.addr(claim, plan.claims as i32),
        });
    }
    let putter = Putter {
        put,
        plan,
        target: trip.target,
        updates,
    };
    match plan.order {
        PutOrder::Distinct => {
            cx.sync_group();
            for u in &putter.updates {
                cx.if_then(u.counts, |cx| putter.apply(cx, u))?;
            }
        }
        PutOrder::Any => {
            cx.sync_group();
            putter.atomically(cx);
        }
        PutOrder::Last => putter.last(cx, n)?,
        PutOrder::Rounds => putter.rounds(cx, n)?,
    }
    let out = trip.load(cx, &layout, &whole)?;
    let out = as_type(cx, &out, dtype)?;
    cx.bind_array(result, out);
    Ok(())
}

/// An array that the result is, in the result's layout.
fn bind_as(cx: &mut LowerCx, result: Value, x: ArrayRegs) -> Result<()> {
    let layout = cx.layout_of(result)?;
    let trip = Trip::start(cx, x.dtype);
    let whole = SmemView::row_major(layout.shape(), trip.bits());
    trip.store(cx, &x, &whole)?;
    let out = trip.load(cx, &layout, &whole)?;
    cx.bind_array(result, out);
    Ok(())
}

struct Update {
    /// Whether it is the thread's own, and its place inside of the array.
    counts: S,
    /// Its number in row-major order.
    number: S,
    value: S,
    place: Addr<super::emit::V>,
    /// The word with the update that is next at the place.
    claim: Addr<super::emit::V>,
}

struct Putter {
    put: PutOp,
    plan: PutPlan,
    target: Target,
    updates: Vec<Update>,
}

impl Putter {
    /// Makes an update at its place, which no other thread touches meanwhile.
    fn apply(&self, cx: &mut LowerCx, u: &Update) -> Result<()> {
        let element = self.plan.element;
        let binary = match self.put {
            PutOp::Set => None,
            PutOp::Add => Some(BinaryOp::Add),
            PutOp::Mul => Some(BinaryOp::Mul),
            PutOp::Max => Some(BinaryOp::Max),
            PutOp::Min => Some(BinaryOp::Min),
        };
        let value = match binary {
            None => u.value,
            Some(binary) => {
                let old = memory::load_element(cx, self.target, u.place, element)?;
                combine(cx, binary, element, old, u.value)?
            }
        };
        memory::store_element(cx, self.target, u.place, travel_type(element), value)
    }

    fn atomically(&self, cx: &mut LowerCx) {
        let op = match self.put {
            PutOp::Max => RedOp::Max,
            PutOp::Min => RedOp::Min,
            PutOp::Set | PutOp::Add | PutOp::Mul => RedOp::Add,
        };
        let wide = self.plan.element.bits() == 64;
        let ty = match (self.plan.element.is_signed_int() && op != RedOp::Add, wide) {
            (true, false) => AtomType::S32,
            (false, false) => AtomType::U32,
            (true, true) => AtomType::S64,
            (false, true) => AtomType::U64,
        };
        for u in &self.updates {
            self.red(cx, u.counts, op, ty, u.place, u.value);
        }
    }

    fn red(&self, cx: &mut LowerCx, when: S, op: RedOp, ty: AtomType, addr: Addr<super::emit::V>, a: S) {
        let red = Inst::red(AtomSem::Relaxed, Scope::Cta, self.target.space, op, ty, addr, a);
        memory::push_guarded(cx, self.target, when, red);
    }

    /// Fills the claims of all places.
    fn clear_claims(&self, cx: &mut LowerCx, places: u64, x: u32) -> Result<()> {
        let layout = RegisterLayout::splat(&[places], cx.layout_group());
        let words = cx.fill(DType::U32, layout, Src::u32(x));
        let mut view = SmemView::row_major(&[places], 32);
        view.offset = self.plan.claims * 8;
        let trip = Trip::on(DType::U32, self.target);
        trip.store(cx, &words, &view)
    }

    fn last(&self, cx: &mut LowerCx, places: u64) -> Result<()> {
        self.clear_claims(cx, places, 0)?;
        cx.sync_group();
        let claimed: Vec<S> = self
            .updates
            .iter()
            .map(|u| cx.b.add(IntType::U32, u.number, Src::u32(1)))
            .collect();
        for (u, &claimed) in self.updates.iter().zip(&claimed) {
            self.red(cx, u.counts, RedOp::Max, AtomType::U32, u.claim, claimed);
        }
        cx.sync_group();
        for (u, &claimed) in self.updates.iter().zip(&claimed) {
            cx.if_then(u.counts, |cx| {
                let claim = memory::load_element(cx, self.target, u.claim, DType::U32)?;
                let wins = cx.b.setp(Compare::Eq, CompareType::U32, claim, claimed);
                cx.if_then(wins, |cx| self.apply(cx, u))
            })?;
        }
        Ok(())
    }

    fn rounds(&self, cx: &mut LowerCx, places: u64) -> Result<()> {
        self.clear_claims(cx, places, u32::MAX)?;
        cx.sync_group();
        let (base, _) = cx.scratch();
        let left = cx.b.addr(base, self.plan.left as i32);
        let leader = cx.leader();
        // Updates that are left: a bit each.
        let mut carried = vec![Carried {
            init: Src::u32(1),
            class: Class::B32,
            uniform: cx.group_uniform(),
        }];
        for updates in self.updates.chunks(32) {
            let mut word: S = Src::u32(0);
            for (bit, u) in updates.iter().enumerate() {
                let set = cx.b.pick(Class::B32, u.counts, Src::u32(1 << bit), Src::u32(0));
                word = cx.b.or(LogicType::B32, word, set);
            }
            carried.push(Carried {
                init: word,
                class: Class::B32,
                uniform: Uniform::Thread,
            });
        }
        let is_left = |cx: &mut LowerCx, words: &[S], i: usize| {
            let bit = cx.b.and32(words[i / 32], 1 << (i % 32));
            cx.b.setp(Compare::Ne, CompareType::U32, bit, Src::u32(0))
        };
        cx.while_loop(
            &carried,
            |cx, values| Ok(cx.b.setp(Compare::Ne, CompareType::U32, values[0], Src::u32(0))),
            |cx, values| {
                let words = &values[1..];
                cx.if_then(leader.into(), |cx| {
                    memory::store_element(cx, self.target, left, DType::U32, Src::u32(0))
                })?;
                for (i, u) in self.updates.iter().enumerate() {
                    let when = is_left(cx, words, i);
                    self.red(cx, when, RedOp::Min, AtomType::U32, u.claim, u.number);
                }
                cx.sync_group();
                let mut won = vec![Src::u32(0); words.len()];
                for (i, u) in self.updates.iter().enumerate() {
                    let when = is_left(cx, words, i);
                    let is_next = cx.if_else(
                        when,
                        &[Class::B32],
                        |cx| {
                            let claim = memory::load_element(cx, self.target, u.claim, DType::U32)?;
                            let next = cx.b.setp(Compare::Eq, CompareType::U32, claim, u.number);
                            cx.if_then(next, |cx| self.apply(cx, u))?;
                            Ok(vec![cx.b.pick(Class::B32, next, Src::u32(1 << (i % 32)), Src::u32(0))])
                        },
                        |_| Ok(vec![Src::u32(0)]),
                    )?;
                    won[i / 32] = cx.b.or(LogicType::B32, won[i / 32], is_next[0]);
                }
                let mut rest = vec![];
                let mut any: S = Src::u32(0);
                for (&word, &won) in words.iter().zip(&won) {
                    let here = cx.b.xor(LogicType::B32, word, won);
                    any = cx.b.or(LogicType::B32, any, here);
                    rest.push(here);
                }
                let any = cx.b.setp(Compare::Ne, CompareType::U32, any, Src::u32(0));
                self.red(cx, any, RedOp::Or, AtomType::B32, left, Src::u32(1));
                cx.sync_group();
                for (i, u) in self.updates.iter().enumerate() {
                    let when = is_left(cx, &won, i);
                    cx.if_then(when, |cx| {
                        memory::store_element(cx, self.target, u.claim, DType::U32, Src::u32(u32::MAX))
                    })?;
                }
                let uniform = cx.group_uniform();
                let go_on = memory::load_scalar(cx, self.target, left, DType::U32, uniform)?;
                cx.sync_group();
                Ok(std::iter::once(go_on).chain(rest).collect())
            },
        )?;
        Ok(())
    }
}
