//! Sorts of runs that lie in scratch, a unit of threads for each.
//!
//! Chunks of runs are ordered one by one, in registers, then merged: comparisons across chunks in scratch, the rest in registers
//! again. Behind a run's end are elements that are greater than all others, which stay where they are.
use super::cx::{Carried, LowerCx};
use super::emit::{S, V};
use super::memory::{self, Target};
use super::network::{Element, Network};
use super::sort::counted;
use super::value::scalar_class;
use crate::error::Result;
use crate::kernel_ir::Group;
use crate::layout::exchange::Runs;
use crate::ptx::modifier::*;
use crate::ptx::operand::{Addr, Class, Src};

/// Runs in scratch, and the threads that sort them.
pub struct Sorter {
    pub runs: Runs,
    pub network: Network,
    /// Of each part's array in scratch, in bytes.
    pub offsets: Vec<i32>,
    pub target: Target,
}

/// Where a unit is.
struct Place {
    /// The number of the run's first element in the array.
    first: S,
    /// Whether there is a run for the unit.
    works: S,
}

/// Which elements of a chunk a thread has.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Order {
    Dealt,
    Consecutive,
}

impl Sorter {
    pub fn sort(&self, cx: &mut LowerCx) -> Result<()> {
        if self.runs.length == 1 {
            return Ok(());
        }
        counted(cx, self.runs.rounds(), |cx, round| {
            let place = self.place(cx, round);
            counted(cx, self.runs.chunks(), |cx, chunk| {
                let start = cx.b.mul(IntType::U32, chunk, Src::u32(self.runs.chunk() as u32));
                let mut elements = self.load(cx, &place, start)?;
                self.network.sort(cx, &mut elements)?;
                self.store(cx, &place, start, &elements)
            })?;
            self.merge_chunks(cx, &place)
        })
    }

    fn place(&self, cx: &mut LowerCx, round: S) -> Place {
        let thread: S = cx.thread_in_group().into();
        let unit =
            cx.b.shr(ShiftType::U32, thread, Src::u32(self.runs.threads.trailing_zeros()));
        let run = cx.b.mad(IntType::U32, round, Src::u32(self.runs.units as u32), unit);
        let stride = Src::u32(self.runs.stride as u32);
        let outer = cx.b.div(IntType::U32, run, stride);
        let inner = cx.b.rem(IntType::U32, run, stride);
        let size = Src::u32((self.runs.length * self.runs.stride) as u32);
        Place {
            first: cx.b.mad(IntType::U32, outer, size, inner),
            works: cx
                .b
                .setp(Compare::Lt, CompareType::U32, run, Src::u32(self.runs.count as u32)),
        }
    }

    /// The address of a part of element `i` of the run.
    fn address(&self, cx: &mut LowerCx, place: &Place, part: usize, i: S) -> Addr<V> {
        let (base, _) = cx.scratch();
        let at =
            cx.b.mad(IntType::U32, i, Src::u32(self.runs.stride as u32), place.first);
        let at =
            cx.b.mad(IntType::U32, at, Src::u32(self.network.dtypes[part].bits() / 8), base);
        cx.b.addr(at, self.offsets[part])
    }

    /// Whether element `i` is one of the run's.
    fn exists(&self, cx: &mut LowerCx, place: &Place, i: S) -> S {
        let inside =
            cx.b.setp(Compare::Lt, CompareType::U32, i, Src::u32(self.runs.length as u32));
        cx.b.both(inside, place.works)
    }

    fn load_element(&self, cx: &mut LowerCx, place: &Place, i: S) -> Result<Element> {
        let mut out = vec![];
        for (part, &dtype) in self.network.dtypes.iter().enumerate() {
            let address = self.address(cx, place, part, i);
            out.push(memory::load_element(cx, self.target, address, dtype)?);
        }
        Ok(out)
    }

    fn store_element(&self, cx: &mut LowerCx, place: &Place, i: S, x: &Element) -> Result<()> {
        for (part, &dtype) in self.network.dtypes.iter().enumerate() {
            let address = self.address(cx, place, part, i);
            memory::store_element(cx, self.target, address, dtype, x[part])?;
        }
        Ok(())
    }

    /// A thread's elements of the chunk that begins at `start`, dealt: as memory is best read.
    fn load(&self, cx: &mut LowerCx, place: &Place, start: S) -> Result<Vec<Element>> {
        let classes: Vec<Class> = self.network.dtypes.iter().map(|d| scalar_class(*d)).collect();
        let mut out = vec![];
        for e in 0..self.runs.each {
            let i = self.number(cx, e, Order::Dealt);
            let i = cx.b.add(IntType::U32, start, i);
            let exists = self.exists(cx, place, i);
            out.push(cx.if_else(
                exists,
                &classes,
                |cx| self.load_element(cx, place, i),
                |_| Ok(self.network.greatest()),
            )?);
        }
        Ok(out)
    }

    /// Consecutive elements of each thread.
    fn store(&self, cx: &mut LowerCx, place: &Place, start: S, elements: &[Element]) -> Result<()> {
        // Every lane of the unit has read, and passes a barrier there.
        let elements = self.redistributed(cx, elements, Order::Consecutive, Order::Dealt)?;
        for (e, x) in elements.iter().enumerate() {
            let i = self.number(cx, e as u64, Order::Dealt);
            let i = cx.b.add(IntType::U32, start, i);
            let exists = self.exists(cx, place, i);
            cx.if_then(exists, |cx| self.store_element(cx, place, i, x))?;
        }
        self.barrier(cx);
        Ok(())
    }

    /// A barrier of the unit.
    fn barrier(&self, cx: &mut LowerCx) {
        cx.sync(if self.runs.threads <= 32 { Group::Warp } else { cx.group });
    }

    /// The elements in the other order. They pass through a swizzled place where neither has bank conflicts.
    fn redistributed(&self, cx: &mut LowerCx, elements: &[Element], from: Order, to: Order) -> Result<Vec<Element>> {
        let (base, _) = cx.scratch();
        let thread: S = cx.thread_in_group().into();
        let unit = cx.b.and32(thread, !(self.runs.threads as u32 - 1));
        let unit = cx.b.mul(IntType::U32, unit, Src::u32(self.runs.each as u32));
        let mut at = self.network.exchange;
        let mut offsets = vec![];
        for d in &self.network.dtypes {
            offsets.push(at);
            at += (u64::from(d.bits() / 8 * cx.layout_group().threads()) * self.runs.each) as i32;
        }
        let address = |cx: &mut LowerCx, part: usize, e: usize, order: Order| {
            let bytes = self.network.dtypes[part].bits() / 8;
            let number = self.number(cx, e as u64, order);
            let number = cx.b.add(IntType::U32, unit, number);
            // Rows of 128 bytes, each in an order of its own.
            let row = cx.b.shr(ShiftType::U32, number, Src::u32((128 / bytes).ilog2()));
            let row = cx.b.and32(row, 128 / bytes - 1);
            let number = cx.b.xor(LogicType::B32, number, row);
            let at = cx.b.mad(IntType::U32, number, Src::u32(bytes), base);
            cx.b.addr(at, offsets[part])
        };
        self.barrier(cx);
        for (e, x) in elements.iter().enumerate() {
            for (part, &dtype) in self.network.dtypes.iter().enumerate() {
                let address = address(cx, part, e, from);
                memory::store_element(cx, self.target, address, dtype, x[part])?;
            }
        }
        self.barrier(cx);
        let mut out = vec![vec![]; elements.len()];
        for (e, x) in out.iter_mut().enumerate() {
            for (part, &dtype) in self.network.dtypes.iter().enumerate() {
                let address = address(cx, part, e, to);
                x.push(memory::load_element(cx, self.target, address, dtype)?);
            }
        }
        Ok(out)
    }

    /// The number of a thread's element in its chunk.
    fn number(&self, cx: &mut LowerCx, e: u64, order: Order) -> S {
        let (thread, e, each) = (self.network.thread, e as u32, self.runs.each as u32);
        match order {
            Order::Dealt => cx.b.add(IntType::U32, thread, Src::u32(e * self.runs.threads as u32)),
            Order::Consecutive => cx.b.mad(IntType::U32, thread, Src::u32(each), Src::u32(e)),
        }
    }

    // ------------------------------------------------------------ runs of several chunks

    fn merge_chunks(&self, cx: &mut LowerCx, place: &Place) -> Result<()> {
        let chunk = self.runs.chunk();
        let padded = self.runs.length.next_power_of_two();
        if padded == chunk {
            return Ok(());
        }
        let merges = u64::from((padded / chunk).trailing_zeros());
        cx.sync_group();
        counted(cx, merges, |cx, merge| {
            let half = cx.b.shl(BitType::B32, Src::u32(chunk as u32), merge);
            self.compare_chunks(cx, place, half, true)?;
            // Distances from a quarter of the merge down to a chunk.
            let distance = cx.b.shr(ShiftType::U32, half, Src::u32(1));
            let carried = [Carried {
                init: distance,
                class: Class::B32,
                uniform: crate::ptx::ssa::Uniform::Cta,
            }];
            cx.while_loop(
                &carried,
                |cx, values| {
                    Ok(cx
                        .b
                        .setp(Compare::Ge, CompareType::U32, values[0], Src::u32(chunk as u32)))
                },
                |cx, values| {
                    self.compare_chunks(cx, place, values[0], false)?;
                    Ok(vec![cx.b.shr(ShiftType::U32, values[0], Src::u32(1))])
                },
            )?;
            counted(cx, self.runs.chunks(), |cx, number| {
                let start = cx.b.mul(IntType::U32, number, Src::u32(chunk as u32));
                let elements = self.load(cx, place, start)?;
                let mut elements = self.redistributed(cx, &elements, Order::Dealt, Order::Consecutive)?;
                self.network.halve(cx, &mut elements, chunk / 2)?;
                self.store(cx, place, start, &elements)
            })?;
            cx.sync_group();
            Ok(())
        })
    }

    /// Compares elements of a run in scratch at a distance (a power of two, not less than a chunk), or with their mirror images in
    /// blocks of twice the distance.
    fn compare_chunks(&self, cx: &mut LowerCx, place: &Place, distance: S, mirrored: bool) -> Result<()> {
        let pairs = self.runs.length.next_power_of_two() / 2;
        counted(cx, pairs.div_ceil(self.runs.threads), |cx, step| {
            let pair = cx.b.mad(
                IntType::U32,
                step,
                Src::u32(self.runs.threads as u32),
                self.network.thread,
            );
            let below = cx.b.sub(IntType::U32, distance, Src::u32(1));
            let inner = cx.b.and(LogicType::B32, pair, below);
            // The pair's number with a 0 inserted at the distance's bit.
            let outer = cx.b.sub(IntType::U32, pair, inner);
            let i = cx.b.add(IntType::U32, outer, pair);
            let j = if mirrored {
                let twice = cx.b.add(IntType::U32, distance, below);
                cx.b.xor(LogicType::B32, i, twice)
            } else {
                cx.b.add(IntType::U32, i, distance)
            };
            let exists = self.exists(cx, place, j);
            cx.if_then(exists, |cx| {
                let (a, b) = (self.load_element(cx, place, i)?, self.load_element(cx, place, j)?);
                let wrong = self.network.before(cx, &b, &a);
                cx.if_then(wrong, |cx| {
                    self.store_element(cx, place, i, &b)?;
                    self.store_element(cx, place, j, &a)
                })
            })
        })?;
        cx.sync_group();
        Ok(())
    }
}
