//! Running reductions of arrays that stay in registers, as [`ScanPlan`] has them.
//!
//! Every digit needs what is in front of its blocks: the sum of the blocks with smaller indices of that digit. It is kept beside the
//! elements, and added once, at the end.
use super::cx::LowerCx;
use super::emit::S;
use super::memory::{self, Target};
use super::reduce::step;
use super::value::scalar_class;
use crate::dtype::DType;
use crate::error::Result;
use crate::kernel_ir::CumulativeOp;
use crate::layout::Term;
use crate::layout::scan::{Digit, Level, ScanPlan};
use crate::ptx::modifier::*;
use crate::ptx::operand::{Class, Src};

/// What is in front of a block, and when there is something; none: always.
#[derive(Clone, Copy)]
struct Front {
    is_there: Option<S>,
    sum: S,
}

pub struct Scan<'a> {
    pub plan: &'a ScanPlan,
    pub running: CumulativeOp,
    pub reverse: bool,
    pub element: DType,
}

/// What goes from digit to digit.
struct State {
    /// The elements, each with those before it in its thread's block.
    inclusive: Vec<S>,
    fronts: Vec<Option<Front>>,
    /// The total of a slot's block, where threads were crossed; at the slot that ends it.
    totals: Option<Vec<S>>,
    /// Slots of one block, from one that ends it: what its digits so far add to the number.
    block: Vec<u32>,
}

impl Scan<'_> {
    pub fn run(&self, cx: &mut LowerCx, elements: Vec<S>) -> Result<Vec<S>> {
        let mut state = State {
            fronts: vec![None; elements.len()],
            inclusive: elements,
            totals: None,
            block: vec![0],
        };
        for digit in &self.plan.digits {
            match digit.place {
                Level::Slot(stride) => self.slots(cx, &mut state, digit.size as u32, stride)?,
                Level::Lane(bit) => self.lanes(cx, &mut state, digit, bit)?,
                Level::Warp(bit) => self.warps(cx, &mut state, digit, bit)?,
            }
        }
        let mut out = vec![];
        for (x, front) in state.inclusive.into_iter().zip(&state.fronts) {
            out.push(match front {
                None => x,
                Some(front) => self.behind(cx, front, x)?,
            });
        }
        Ok(out)
    }

    fn class(&self) -> Class {
        scalar_class(self.element)
    }

    fn both(&self, cx: &mut LowerCx, a: S, b: S) -> Result<S> {
        step(cx, self.running, self.element, a, b)
    }

    /// `x`, with what is in front of it.
    fn behind(&self, cx: &mut LowerCx, front: &Front, x: S) -> Result<S> {
        let both = self.both(cx, front.sum, x)?;
        Ok(match front.is_there {
            None => both,
            Some(p) => cx.b.pick(self.class(), p, both, x),
        })
    }

    /// What is in front of a larger block, in front of what is in front of a block in it.
    fn before(&self, cx: &mut LowerCx, outer: Front, inner: Option<Front>) -> Result<Front> {
        let Some(inner) = inner else { return Ok(outer) };
        let sum = self.behind(cx, &outer, inner.sum)?;
        Ok(match (outer.is_there, inner.is_there) {
            (_, None) => Front { is_there: None, sum },
            (None, Some(p)) => Front {
                is_there: None,
                sum: cx.b.pick(self.class(), p, sum, outer.sum),
            },
            (Some(q), Some(p)) => Front {
                is_there: Some(cx.b.either(p, q)),
                sum: cx.b.pick(self.class(), p, sum, outer.sum),
            },
        })
    }

    /// The slots that end blocks: their digits so far are at their ends.
    fn ends(&self, state: &State) -> Vec<u32> {
        let inside: Vec<u32> = state.block.clone();
        let mut is_seen = vec![false; state.inclusive.len()];
        let mut out = vec![];
        for slot in 0..state.inclusive.len() as u32 {
            if !is_seen[slot as usize] {
                // The first slot of a block has all of its digits at 0.
                inside.iter().for_each(|d| is_seen[(slot + d) as usize] = true);
                let end = if self.reverse { 0 } else { inside[inside.len() - 1] };
                out.push(slot + end);
            }
        }
        out
    }

    /// The slots of the block that a slot ends.
    fn block_of(&self, state: &State, end: u32) -> Vec<u32> {
        let first = if self.reverse {
            end
        } else {
            end - state.block[state.block.len() - 1]
        };
        state.block.iter().map(|d| first + d).collect()
    }

    fn total(&self, state: &State, end: u32) -> S {
        state.totals.as_ref().unwrap_or(&state.inclusive)[end as usize]
    }

    fn slots(&self, cx: &mut LowerCx, state: &mut State, size: u32, stride: u32) -> Result<()> {
        let ends = self.ends(state);
        let firsts = ends.iter().filter(|end| **end / stride % size == 0).copied();
        for first in firsts.collect::<Vec<_>>() {
            let mut order: Vec<u32> = (0..size).map(|i| first + i * stride).collect();
            if self.reverse {
                order.reverse();
            }
            let mut before = self.total(state, order[0]);
            for &end in &order[1..] {
                if let Some(totals) = &mut state.totals {
                    let own = totals[end as usize];
                    let sum = self.both(cx, before, own)?;
                    let front = Front {
                        is_there: None,
                        sum: before,
                    };
                    for slot in self.block_of(state, end) {
                        let inner = state.fronts[slot as usize];
                        state.fronts[slot as usize] = Some(self.before(cx, front, inner)?);
                    }
                    before = sum;
                } else {
                    for slot in self.block_of(state, end) {
                        let x = state.inclusive[slot as usize];
                        state.inclusive[slot as usize] = self.both(cx, before, x)?;
                    }
                    before = state.inclusive[end as usize];
                }
            }
            // At the slot that ends the larger block.
            if let Some(totals) = &mut state.totals {
                totals[order[order.len() - 1] as usize] = before;
            }
        }
        let inside = state.block.clone();
        state.block = (0..size)
            .flat_map(|i| inside.iter().map(move |d| d + i * stride))
            .collect();
        Ok(())
    }

    /// This thread's index of a digit, from the end that comes first.
    fn index(&self, cx: &mut LowerCx, own: S, bit: u8, size: u64) -> S {
        let shifted = cx.b.shr(ShiftType::U32, own, Src::u32(bit.into()));
        let index = cx.b.and32(shifted, size as u32 - 1);
        match self.reverse {
            true => cx.b.sub(IntType::U32, Src::u32(size as u32 - 1), index),
            false => index,
        }
    }

    fn lanes(&self, cx: &mut LowerCx, state: &mut State, digit: &Digit, bit: u8) -> Result<()> {
        let class = self.class();
        let lane: S = cx.b.lane().into();
        let index = self.index(cx, lane, bit, digit.size);
        let from = |cx: &mut LowerCx, distance: u32| {
            let distance = Src::u32(distance << bit);
            match self.reverse {
                true => cx.b.add(IntType::U32, lane, distance),
                false => cx.b.sub(IntType::U32, lane, distance),
            }
        };
        let ends = self.ends(state);
        let mut sums: Vec<S> = ends.iter().map(|end| self.total(state, *end)).collect();
        let mut distance = 1;
        while u64::from(distance) < digit.size {
            let other = from(cx, distance);
            let is_there = cx.b.setp(Compare::Ge, CompareType::U32, index, Src::u32(distance));
            for sum in &mut sums {
                let front = Front {
                    is_there: Some(is_there),
                    sum: cx.b.shfl_idx_any(class, *sum, other),
                };
                *sum = self.behind(cx, &front, *sum)?;
            }
            distance *= 2;
        }
        let previous = from(cx, 1);
        let mask = (digit.size as u32 - 1) << bit;
        let last = match self.reverse {
            true => cx.b.and32(lane, !mask),
            false => cx.b.or(LogicType::B32, lane, Src::u32(mask)),
        };
        let is_there = Some(cx.b.setp(Compare::Gt, CompareType::U32, index, Src::u32(0)));
        let mut totals = state.totals.take().unwrap_or_else(|| state.inclusive.clone());
        for (end, sum) in ends.into_iter().zip(sums) {
            let front = Front {
                is_there,
                sum: cx.b.shfl_idx_any(class, sum, previous),
            };
            for slot in self.block_of(state, end) {
                let inner = state.fronts[slot as usize];
                state.fronts[slot as usize] = Some(self.before(cx, front, inner)?);
            }
            totals[end as usize] = cx.b.shfl_idx_any(class, sum, last);
        }
        state.totals = Some(totals);
        Ok(())
    }

    fn warps(&self, cx: &mut LowerCx, state: &mut State, digit: &Digit, bit: u8) -> Result<()> {
        let bytes = u64::from(self.element.bits() / 8);
        let (per_slot, per_warp) = self.plan.place_strides();
        let warp = cx.warp_in_group();
        let lane: S = cx.b.lane().into();
        let index = self.index(cx, warp, bit, digit.size);
        let (scratch, _) = cx.scratch();
        let target = Target::shared(scratch.into());
        // Lanes along other axes have places of their own; of those along this one all have the same, and the first stores it.
        let others = self.plan.other_lanes.iter().enumerate();
        let terms: Vec<Term> = others
            .map(|(i, &lane_bit)| Term::of_thread(lane_bit, 2, ((1 << i) * bytes) as i64))
            .collect();
        let place = memory::thread_terms(cx, &terms);
        let place = cx.b.add(IntType::U32, scratch, place);
        let own = cx.b.mad(IntType::U32, warp, Src::u32((per_warp * bytes) as u32), place);
        let along: u32 = (0..5)
            .filter(|b| !self.plan.other_lanes.contains(b))
            .map(|b| 1 << b)
            .sum();
        let among = cx.b.and32(lane, along);
        let stores = cx.b.setp(Compare::Eq, CompareType::U32, among, Src::u32(0));
        let ends = self.ends(state);
        // Earlier users have left the scratch.
        cx.sync_group();
        cx.if_then(stores, |cx| {
            for (i, end) in ends.iter().enumerate() {
                let at = cx.b.addr(own, (i as u64 * per_slot * bytes) as i32);
                memory::store_element(cx, target, at, self.element, self.total(state, *end))?;
            }
            Ok(())
        })?;
        cx.sync_group();
        // The warp with this digit at 0.
        let mask = (digit.size as u32 - 1) << bit;
        let first = cx.b.and32(warp, !mask);
        let first =
            cx.b.mad(IntType::U32, first, Src::u32((per_warp * bytes) as u32), place);
        let mut order: Vec<u64> = (0..digit.size).collect();
        if self.reverse {
            order.reverse();
        }
        let mut totals = state.totals.take().unwrap_or_else(|| state.inclusive.clone());
        let is_there = Some(cx.b.setp(Compare::Gt, CompareType::U32, index, Src::u32(0)));
        for (i, &end) in ends.iter().enumerate() {
            let (mut all, mut front): (Option<S>, S) = (None, Src::Imm(0));
            for (nth, &w) in order.iter().enumerate() {
                let offset = (i as u64 * per_slot + (w << bit) * per_warp) * bytes;
                let at = cx.b.addr(first, offset as i32);
                let x = memory::load_element(cx, target, at, self.element)?;
                if let Some(all) = all {
                    let is_here = cx.b.setp(Compare::Eq, CompareType::U32, index, Src::u32(nth as u32));
                    front = cx.b.pick(self.class(), is_here, all, front);
                }
                all = Some(match all {
                    None => x,
                    Some(all) => self.both(cx, all, x)?,
                });
            }
            let front = Front { is_there, sum: front };
            for slot in self.block_of(state, end) {
                let inner = state.fronts[slot as usize];
                state.fronts[slot as usize] = Some(self.before(cx, front, inner)?);
            }
            totals[end as usize] = all.unwrap_or(Src::Imm(0));
        }
        state.totals = Some(totals);
        Ok(())
    }
}
