//! Sorts: a bitonic network whose comparators all put the lesser element first, so that directions are known.
//!
//! A merge of two ordered halves compares each element with its mirror image, then halves, quarters, … A thread has consecutive
//! elements of a chunk: what is near is compared in registers, between lanes by `shfl`, between warps through scratch. Chunks of
//! longer runs are ordered one by one, then merged: comparisons across chunks in scratch, the rest in registers again. Behind a run's
//! end are elements that are greater than all others, which stay where they are.
use super::cx::{Carried, LowerCx};
use super::emit::{S, V};
use super::memory::{self, Target};
use super::shape::{Trip, bind_if_empty, dim_indices};
use super::value::{ArrayRegs, scalar_class};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::kernel_ir::{Op, Value};
use crate::layout::SmemView;
use crate::layout::exchange::{Part, Runs, SortPlan};
use crate::ptx::modifier::*;
use crate::ptx::operand::{Addr, Class, Src};

pub fn lower_sort(cx: &mut LowerCx, op: Op, keys: &[Value], axis: u32) -> Result<()> {
    let results = cx.kernel.ops[op].results.clone();
    let (axis, shape) = (axis as usize, cx.ty(keys[0]).shape().to_vec());
    if shape.contains(&0) {
        for &v in &results {
            bind_if_empty(cx, v)?;
        }
        return Ok(());
    }
    let dtypes: Vec<DType> = keys.iter().map(|k| cx.ty(*k).dtype()).collect();
    let from = results[keys.len()];
    // Keys that are all there is to an element need no index.
    let indexed = cx.used.contains(from) || keys.len() > 1;
    let group = u64::from(cx.layout_group().threads());
    let plan = SortPlan::of(&dtypes, &shape, axis, indexed, group);
    let trip = Trip::start(cx, DType::U32);
    let sorter = Sorter {
        runs: plan.runs,
        dtypes: plan.parts.iter().map(|(p, _)| p.dtype()).collect(),
        offsets: plan.parts.iter().map(|(_, at)| *at as i32).collect(),
        exchange: plan.exchange as i32,
        target: trip.target,
    };
    for &(part, at) in &plan.parts {
        let words = packed(cx, part, keys, axis)?;
        let (part, view) = placed(part.dtype(), &shape, at, trip.target);
        part.store(cx, &words, &view)?;
    }
    cx.sync_group();
    sorter.sort(cx)?;
    cx.sync_group();
    for (k, &v) in results.iter().enumerate() {
        if !cx.used.contains(v) {
            continue;
        }
        let holds = |p: &Part| match *p {
            Part::Key { key, .. } => key == k,
            Part::KeyAndIndex { key, .. } => key == k || k == keys.len(),
            Part::Index => k == keys.len(),
        };
        let found = plan.parts.iter().find(|(p, _)| holds(p));
        let &(part, at) = found.ok_or_else(|| Error::internal("a sort that does not keep a result"))?;
        let layout = cx.layout_of(v)?;
        let (loaded, view) = placed(part.dtype(), &shape, at, trip.target);
        let words = loaded.load_now(cx, &layout, &view)?;
        let out = unpacked(cx, part, &words, k == keys.len(), cx.ty(v).dtype());
        cx.bind_array(v, out);
    }
    Ok(())
}

/// Where an array of words lies in scratch.
fn placed(dtype: DType, shape: &[u64], at: u64, target: Target) -> (Trip, SmemView) {
    let mut view = SmemView::row_major(shape, dtype.bits());
    view.offset = at * 8;
    (Trip::on(dtype, target), view)
}

/// The words that are sorted, of the elements in registers.
fn packed(cx: &mut LowerCx, part: Part, keys: &[Value], axis: usize) -> Result<ArrayRegs> {
    let key = match part {
        Part::Key { key, .. } | Part::KeyAndIndex { key, .. } => key,
        Part::Index => 0,
    };
    let x = cx.array(keys[key])?;
    // Indices are not equal along the axis, whatever keys are.
    let layout = crate::layout::derivation::materialized(&x.layout);
    let x = super::relayout::filled(cx, &x, &layout)?;
    let own = cx.ty(keys[key]).dtype();
    let indices = match part {
        Part::Key { .. } => vec![],
        Part::KeyAndIndex { .. } | Part::Index => dim_indices(cx, &layout, axis),
    };
    let mut out = vec![];
    for (slot, s) in cx.elements(&x).into_iter().enumerate() {
        let wide = part.dtype() == DType::U64;
        let word = if wide && own.bits() <= 32 {
            cx.b.widen(s, false)
        } else {
            s
        };
        out.push(match part {
            Part::Key { .. } => word,
            Part::Index => indices[slot],
            Part::KeyAndIndex { index_bits, .. } => {
                let (shift, logic) = match wide {
                    true => (BitType::B64, LogicType::B64),
                    false => (BitType::B32, LogicType::B32),
                };
                let high = cx.b.shl(shift, word, Src::u32(index_bits));
                let index = if wide {
                    cx.b.widen(indices[slot], false)
                } else {
                    indices[slot]
                };
                cx.b.or(logic, high, index)
            }
        });
    }
    Ok(cx.from_elements(part.dtype(), layout, &out))
}

/// A key, or where elements came from, out of the words that were sorted.
fn unpacked(cx: &mut LowerCx, part: Part, words: &ArrayRegs, is_index: bool, dtype: DType) -> ArrayRegs {
    let wide = part.dtype() == DType::U64;
    let mut out = vec![];
    for s in cx.elements(words) {
        let x = match part {
            Part::Key { .. } | Part::Index => s,
            Part::KeyAndIndex { index_bits, .. } if is_index => {
                let low = if wide { cx.b.truncate(s) } else { s };
                cx.b.field(low, 0, index_bits, false)
            }
            Part::KeyAndIndex { index_bits, .. } => {
                let shift = if wide { ShiftType::U64 } else { ShiftType::U32 };
                cx.b.shr(shift, s, Src::u32(index_bits))
            }
        };
        let is_wide = wide && !(is_index && matches!(part, Part::KeyAndIndex { .. }));
        out.push(if is_wide && dtype.bits() <= 32 {
            cx.b.truncate(x)
        } else {
            x
        });
    }
    cx.from_elements(dtype, words.layout.clone(), &out)
}

/// An element: a word for each part.
type Element = Vec<S>;

struct Sorter {
    runs: Runs,
    dtypes: Vec<DType>,
    /// Of each part's array in scratch, in bytes.
    offsets: Vec<i32>,
    exchange: i32,
    target: Target,
}

/// Where a unit is.
struct Place {
    /// The thread in its unit.
    thread: S,
    /// The number of the run's first element in the array.
    first: S,
    /// Whether there is a run for the unit.
    works: S,
}

impl Sorter {
    fn sort(&self, cx: &mut LowerCx) -> Result<()> {
        if self.runs.length == 1 {
            return Ok(());
        }
        counted(cx, self.runs.rounds(), |cx, round| {
            let place = self.place(cx, round);
            counted(cx, self.runs.chunks(), |cx, chunk| {
                let start = cx.b.mul(IntType::U32, chunk, Src::u32(self.runs.chunk() as u32));
                let mut elements = self.load(cx, &place, start, true)?;
                let mut size = 2;
                while size <= self.runs.chunk() {
                    self.compare(cx, &place, &mut elements, size - 1)?;
                    self.halve(cx, &place, &mut elements, size / 4)?;
                    size *= 2;
                }
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
            thread: cx.b.and32(thread, self.runs.threads as u32 - 1),
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
        let at = cx.b.mad(IntType::U32, at, Src::u32(self.dtypes[part].bits() / 8), base);
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
        for (part, &dtype) in self.dtypes.iter().enumerate() {
            let address = self.address(cx, place, part, i);
            out.push(memory::load_element(cx, self.target, address, dtype)?);
        }
        Ok(out)
    }

    fn store_element(&self, cx: &mut LowerCx, place: &Place, i: S, x: &Element) -> Result<()> {
        for (part, &dtype) in self.dtypes.iter().enumerate() {
            let address = self.address(cx, place, part, i);
            memory::store_element(cx, self.target, address, dtype, x[part])?;
        }
        Ok(())
    }

    /// A thread's elements of the chunk that begins at `start`; `dealt`: any will do, as memory is best read.
    fn load(&self, cx: &mut LowerCx, place: &Place, start: S, dealt: bool) -> Result<Vec<Element>> {
        let classes: Vec<Class> = self.dtypes.iter().map(|d| scalar_class(*d)).collect();
        let mut out = vec![];
        for e in 0..self.runs.each {
            let i = match dealt {
                true => {
                    cx.b.add(IntType::U32, place.thread, Src::u32((e * self.runs.threads) as u32))
                }
                false => self.own(cx, place, e),
            };
            let i = cx.b.add(IntType::U32, start, i);
            let exists = self.exists(cx, place, i);
            out.push(cx.if_else(
                exists,
                &classes,
                |cx| self.load_element(cx, place, i),
                |_| {
                    Ok(self
                        .dtypes
                        .iter()
                        .map(|d| Src::Imm(u64::MAX >> (64 - d.bits())))
                        .collect())
                },
            )?);
        }
        Ok(out)
    }

    fn store(&self, cx: &mut LowerCx, place: &Place, start: S, elements: &[Element]) -> Result<()> {
        // Every lane of the unit has read.
        cx.sync_group();
        for (e, x) in elements.iter().enumerate() {
            let i = self.own(cx, place, e as u64);
            let i = cx.b.add(IntType::U32, start, i);
            let exists = self.exists(cx, place, i);
            cx.if_then(exists, |cx| self.store_element(cx, place, i, x))?;
        }
        Ok(())
    }

    /// The number of a thread's element in its chunk.
    fn own(&self, cx: &mut LowerCx, place: &Place, e: u64) -> S {
        cx.b.mad(
            IntType::U32,
            place.thread,
            Src::u32(self.runs.each as u32),
            Src::u32(e as u32),
        )
    }

    /// Whether `a` comes before `b`.
    fn before(&self, cx: &mut LowerCx, a: &Element, b: &Element) -> S {
        let mut out = Src::Imm(0);
        for (part, &dtype) in self.dtypes.iter().enumerate().rev() {
            let ty = if dtype == DType::U64 {
                CompareType::U64
            } else {
                CompareType::U32
            };
            let less = cx.b.setp(Compare::Lt, ty, a[part], b[part]);
            let equal = match out {
                Src::Imm(0) => Src::Imm(0),
                _ => cx.b.setp(Compare::Eq, ty, a[part], b[part]),
            };
            let later = cx.b.both(equal, out);
            out = cx.b.either(less, later);
        }
        out
    }

    fn pick(&self, cx: &mut LowerCx, which: S, a: &Element, b: &Element) -> Element {
        let parts = self.dtypes.iter().zip(a.iter().zip(b));
        parts
            .map(|(d, (&a, &b))| cx.b.pick(scalar_class(*d), which, a, b))
            .collect()
    }

    /// Compares at distances of `distance`, half of it, …, 1.
    fn halve(&self, cx: &mut LowerCx, place: &Place, elements: &mut [Element], mut distance: u64) -> Result<()> {
        while distance > 0 {
            self.compare(cx, place, elements, distance)?;
            distance /= 2;
        }
        Ok(())
    }

    /// Compares each element of a chunk with the one whose number differs in the bits of `mask`.
    fn compare(&self, cx: &mut LowerCx, place: &Place, elements: &mut [Element], mask: u64) -> Result<()> {
        let each = self.runs.each;
        let (within, across) = ((mask & (each - 1)) as usize, (mask / each) as u32);
        if across == 0 {
            for e in 0..elements.len() {
                let other = e ^ within;
                if e < other {
                    let ordered = self.before(cx, &elements[e], &elements[other]);
                    let low = self.pick(cx, ordered, &elements[e], &elements[other]);
                    let high = self.pick(cx, ordered, &elements[other], &elements[e]);
                    (elements[e], elements[other]) = (low, high);
                }
            }
            return Ok(());
        }
        let others = match across < 32 {
            true => self.of_lanes(cx, elements, within, across),
            false => self.of_warps(cx, elements, within, across)?,
        };
        let top = 1 << across.ilog2();
        let side = cx.b.and32(place.thread, top);
        let is_low = cx.b.setp(Compare::Eq, CompareType::U32, side, Src::u32(0));
        for (x, other) in elements.iter_mut().zip(&others) {
            let ordered = self.before(cx, x, other);
            let differs = cx.b.logic_pred(Logic::Xor, ordered, is_low);
            *x = self.pick(cx, differs, other, x);
        }
        Ok(())
    }

    /// What the lane that differs in these bits has to compare with.
    fn of_lanes(&self, cx: &mut LowerCx, elements: &[Element], within: usize, across: u32) -> Vec<Element> {
        (0..elements.len())
            .map(|e| {
                let parts = self.dtypes.iter().zip(&elements[e ^ within]);
                parts
                    .map(|(d, &x)| cx.b.shfl_xor_any(scalar_class(*d), x, across))
                    .collect()
            })
            .collect()
    }

    /// The same of threads of other warps.
    fn of_warps(&self, cx: &mut LowerCx, elements: &[Element], within: usize, across: u32) -> Result<Vec<Element>> {
        let (base, _) = cx.scratch();
        let group = cx.layout_group().threads();
        let thread: S = cx.thread_in_group().into();
        let partner = cx.b.xor(LogicType::B32, thread, Src::u32(across));
        let mut offsets = vec![];
        let mut at = self.exchange;
        for d in &self.dtypes {
            offsets.push(at);
            at += (u64::from(d.bits() / 8 * group) * self.runs.each) as i32;
        }
        cx.sync_group();
        for (part, &dtype) in self.dtypes.iter().enumerate() {
            let bytes = dtype.bits() / 8;
            let own = cx.b.mad(IntType::U32, thread, Src::u32(bytes), base);
            for (e, x) in elements.iter().enumerate() {
                let address = cx.b.addr(own, offsets[part] + (e as u32 * group * bytes) as i32);
                memory::store_element(cx, self.target, address, dtype, x[part])?;
            }
        }
        cx.sync_group();
        let mut out = vec![vec![]; elements.len()];
        for (part, &dtype) in self.dtypes.iter().enumerate() {
            let bytes = dtype.bits() / 8;
            let theirs = cx.b.mad(IntType::U32, partner, Src::u32(bytes), base);
            for (e, x) in out.iter_mut().enumerate() {
                let from = (e ^ within) as u32;
                let address = cx.b.addr(theirs, offsets[part] + (from * group * bytes) as i32);
                x.push(memory::load_element(cx, self.target, address, dtype)?);
            }
        }
        Ok(out)
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
                let mut elements = self.load(cx, place, start, false)?;
                self.halve(cx, place, &mut elements, chunk / 2)?;
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
            let pair =
                cx.b.mad(IntType::U32, step, Src::u32(self.runs.threads as u32), place.thread);
            let below = cx.b.sub(IntType::U32, distance, Src::u32(1));
            let inner = cx.b.and(LogicType::B32, pair, below);
            // The pair's number with a 0 put in at the distance's bit.
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
                let wrong = self.before(cx, &b, &a);
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

/// `for i in 0..n { body }`, in a loop of the program where there is more than one.
pub fn counted(cx: &mut LowerCx, n: u64, body: impl FnOnce(&mut LowerCx, S) -> Result<()>) -> Result<()> {
    if n == 1 {
        return body(cx, Src::u32(0));
    }
    let carried = [Carried {
        init: Src::u32(0),
        class: Class::B32,
        uniform: crate::ptx::ssa::Uniform::Cta,
    }];
    cx.while_loop(
        &carried,
        |cx, values| Ok(cx.b.setp(Compare::Lt, CompareType::U32, values[0], Src::u32(n as u32))),
        |cx, values| {
            body(cx, values[0])?;
            Ok(vec![cx.b.add(IntType::U32, values[0], Src::u32(1))])
        },
    )?;
    Ok(())
}
