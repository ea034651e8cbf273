//! Running reductions along runs that are too long for one thread. Where the array can it stays in registers
//! ([`running_registers`](super::running_registers)); else it is stored to scratch, a unit of threads takes each
//! run. A thread goes through its own elements, then adds the totals of the lanes, the warps and the chunks before it.
use super::convert::as_type;
use super::cx::{Carried, LowerCx};
use super::emit::S;
use super::memory::{self, Target};
use super::reduce::step;
use super::running_registers::Scan;
use super::shape::Trip;
use super::value::scalar_class;
use crate::error::Result;
use crate::kernel_ir::{CumulativeOp, Op, Value};
use crate::layout::SmemView;
use crate::layout::exchange::{RunningPlan, Runs};
use crate::layout::scan::ScanPlan;
use crate::ptx::modifier::*;
use crate::ptx::operand::Src;
use crate::ptx::ssa::Uniform;

pub fn lower_running(
    cx: &mut LowerCx,
    op: Op,
    running: CumulativeOp,
    a: Value,
    axis: u32,
    reverse: bool,
) -> Result<()> {
    let result = cx.result(op);
    let (shape, dtype) = (cx.ty(a).shape().to_vec(), cx.ty(a).dtype());
    let group = u64::from(cx.layout_group().threads());
    let plan = RunningPlan::of(dtype, &shape, axis as usize, group);
    let x = cx.array(a)?;
    let x = as_type(cx, &x, plan.element)?;
    if let Some(scan) = ScanPlan::of(&x.layout, axis as usize, plan.element) {
        let elements = cx.elements(&x);
        let scan = Scan {
            plan: &scan,
            running,
            reverse,
            element: plan.element,
        };
        let sums = scan.run(cx, elements)?;
        let out = cx.from_elements(plan.element, x.layout, &sums);
        let out = as_type(cx, &out, dtype)?;
        cx.bind_array(result, out);
        return Ok(());
    }
    let trip = Trip::start(cx, plan.element);
    let view = SmemView::row_major(&shape, plan.element.bits());
    trip.store(cx, &x, &view)?;
    cx.sync_group();
    let runner = Runner {
        running,
        reverse,
        plan,
        target: trip.target,
    };
    super::sort::counted(cx, plan.runs.rounds(), |cx, round| runner.run(cx, round))?;
    let layout = cx.layout_of(result)?;
    let out = trip.load(cx, &layout, &view)?;
    let out = as_type(cx, &out, dtype)?;
    cx.bind_array(result, out);
    Ok(())
}

struct Runner {
    running: CumulativeOp,
    reverse: bool,
    plan: RunningPlan,
    target: Target,
}

impl Runner {
    /// `x`, with `before` in front of it where that counts.
    fn with(&self, cx: &mut LowerCx, counts: S, before: S, x: S) -> Result<S> {
        let element = self.plan.element;
        let both = step(cx, self.running, element, before, x)?;
        Ok(cx.b.pick(scalar_class(element), counts, both, x))
    }

    fn run(&self, cx: &mut LowerCx, round: S) -> Result<()> {
        let Runs {
            length,
            stride,
            count,
            threads,
            units,
            ..
        } = self.plan.runs;
        let thread: S = cx.thread_in_group().into();
        let unit = cx.b.shr(ShiftType::U32, thread, Src::u32(threads.trailing_zeros()));
        let run = cx.b.mad(IntType::U32, round, Src::u32(units as u32), unit);
        let works = cx.b.setp(Compare::Lt, CompareType::U32, run, Src::u32(count as u32));
        let outer = cx.b.div(IntType::U32, run, Src::u32(stride as u32));
        let inner = cx.b.rem(IntType::U32, run, Src::u32(stride as u32));
        let first = cx.b.mad(IntType::U32, outer, Src::u32((length * stride) as u32), inner);
        let own = cx.b.and32(thread, threads as u32 - 1);
        let element = self.plan.element;
        let class = scalar_class(element);
        let carried = [
            Carried {
                init: Src::u32(0),
                class: crate::ptx::operand::Class::B32,
                uniform: Uniform::Cta,
            },
            Carried {
                init: Src::Imm(0),
                class,
                uniform: Uniform::Thread,
            },
        ];
        let chunks = self.plan.runs.chunks();
        if chunks == 1 {
            self.chunk(cx, (first, own, works), Src::u32(0), Src::Imm(0))?;
            return Ok(());
        }
        cx.while_loop(
            &carried,
            |cx, values| {
                Ok(cx
                    .b
                    .setp(Compare::Lt, CompareType::U32, values[0], Src::u32(chunks as u32)))
            },
            |cx, values| {
                let total = self.chunk(cx, (first, own, works), values[0], values[1])?;
                Ok(vec![cx.b.add(IntType::U32, values[0], Src::u32(1)), total])
            },
        )?;
        Ok(())
    }

    /// One chunk of a run (its first element, the thread in the unit, whether there is one), behind the total `before`;
    /// returns the total behind it.
    fn chunk(&self, cx: &mut LowerCx, (first, own, works): (S, S, S), chunk: S, before: S) -> Result<S> {
        let Runs {
            length,
            stride,
            threads,
            each,
            ..
        } = self.plan.runs;
        let element = self.plan.element;
        let class = scalar_class(element);
        let (base, _) = cx.scratch();
        let start = cx.b.mad(IntType::U32, chunk, Src::u32(threads as u32), own);
        let start = cx.b.mul(IntType::U32, start, Src::u32(each as u32));
        let (mut addresses, mut exists, mut elements) = (vec![], vec![], vec![]);
        for e in 0..each {
            let i = cx.b.add(IntType::U32, start, Src::u32(e as u32));
            let inside = cx.b.setp(Compare::Lt, CompareType::U32, i, Src::u32(length as u32));
            exists.push(cx.b.both(inside, works));
            let i = match self.reverse {
                true => cx.b.sub(IntType::U32, Src::u32(length as u32 - 1), i),
                false => i,
            };
            let at = cx.b.mad(IntType::U32, i, Src::u32(stride as u32), first);
            let at = cx.b.mad(IntType::U32, at, Src::u32(element.bits() / 8), base);
            addresses.push(cx.b.addr(at, 0));
            // Behind the end is whatever: nothing comes behind it.
            let loaded = cx.if_else(
                exists[e as usize],
                &[class],
                |cx| {
                    Ok(vec![memory::load_element(
                        cx,
                        self.target,
                        addresses[e as usize],
                        element,
                    )?])
                },
                |_| Ok(vec![Src::Imm(0)]),
            )?;
            elements.push(loaded[0]);
        }
        for e in 1..elements.len() {
            elements[e] = step(cx, self.running, element, elements[e - 1], elements[e])?;
        }
        // The totals of the threads of the unit, up to each of them, and before it.
        let mut total = elements[elements.len() - 1];
        let lane: S = cx.b.lane().into();
        let in_warp = threads.min(32) as u32;
        let at = cx.b.and32(own, in_warp - 1);
        let mut distance = 1;
        while distance < in_warp {
            let from = cx.b.sub(IntType::U32, lane, Src::u32(distance));
            let other = cx.b.shfl_idx_any(class, total, from);
            let counts = cx.b.setp(Compare::Ge, CompareType::U32, at, Src::u32(distance));
            total = self.with(cx, counts, other, total)?;
            distance *= 2;
        }
        let from = cx.b.sub(IntType::U32, lane, Src::u32(1));
        let mut front = cx.b.shfl_idx_any(class, total, from);
        let mut has_front = cx.b.setp(Compare::Gt, CompareType::U32, at, Src::u32(0));
        let last = cx.b.or(LogicType::B32, lane, Src::u32(in_warp - 1));
        let mut all = cx.b.shfl_idx_any(class, total, last);
        if threads > 32 {
            (front, has_front, all) = self.across_warps(cx, own, (front, has_front), all)?;
        }
        let is_later = cx.b.setp(Compare::Gt, CompareType::U32, chunk, Src::u32(0));
        let longer = self.with(cx, is_later, before, front)?;
        front = cx.b.pick(class, has_front, longer, before);
        has_front = cx.b.either(has_front, is_later);
        for (e, &x) in elements.iter().enumerate() {
            let x = self.with(cx, has_front, front, x)?;
            cx.if_then(exists[e], |cx| {
                memory::store_element(cx, self.target, addresses[e], element, x)
            })?;
        }
        self.with(cx, is_later, before, all)
    }

    /// What is in front of a thread and what its unit comes to, over its warps, from the same of its warp.
    fn across_warps(&self, cx: &mut LowerCx, own: S, (front, has_front): (S, S), all: S) -> Result<(S, S, S)> {
        let element = self.plan.element;
        let class = scalar_class(element);
        let (base, _) = cx.scratch();
        let warps = self.plan.runs.threads / 32;
        let warp = cx.warp_in_group();
        let place = cx.b.mad(IntType::U32, warp, Src::u32(8), base);
        let place = cx.b.addr(place, self.plan.totals as i32);
        let in_unit = cx.b.shr(ShiftType::U32, own, Src::u32(5));
        let unit = cx.b.sub(IntType::U32, warp, in_unit);
        let unit = cx.b.mad(IntType::U32, unit, Src::u32(8), base);
        cx.sync_group();
        let lane: S = cx.b.lane().into();
        let first = cx.b.setp(Compare::Eq, CompareType::U32, lane, Src::u32(0));
        cx.if_then(first, |cx| memory::store_element(cx, self.target, place, element, all))?;
        cx.sync_group();
        let (mut sum, mut before): (Option<S>, S) = (None, Src::Imm(0));
        for w in 0..warps {
            let here = cx.b.setp(Compare::Eq, CompareType::U32, in_unit, Src::u32(w as u32));
            if let Some(sum) = sum {
                before = cx.b.pick(class, here, sum, before);
            }
            let address = cx.b.addr(unit, (self.plan.totals + w * 8) as i32);
            let x = memory::load_element(cx, self.target, address, element)?;
            sum = Some(match sum {
                None => x,
                Some(sum) => step(cx, self.running, element, sum, x)?,
            });
        }
        let is_later = cx.b.setp(Compare::Gt, CompareType::U32, in_unit, Src::u32(0));
        let longer = self.with(cx, is_later, before, front)?;
        let front = cx.b.pick(class, has_front, longer, before);
        let has_front = cx.b.either(has_front, is_later);
        Ok((front, has_front, sum.unwrap_or(all)))
    }
}
