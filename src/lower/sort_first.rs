//! The first few of runs in registers, in order.
//!
//! Among a warp's first `k` is nothing behind the `k`th of its lanes' first ones: it has `k` elements that are not. Mostly
//! few are left then, one a lane, which are sorted; where they are many (equal ones, say) each lane keeps its first ones in order,
//! and lanes merge theirs two by two. The warps of a run leave theirs in scratch and merge all of them.
use super::cx::LowerCx;
use super::emit::S;
use super::memory::{self, Target};
use super::network::{Element, Network};
use super::sort_registers::behind_end;
use crate::dtype::DType;
use crate::error::Result;
use crate::kernel_ir::Group;
use crate::layout::register_layout::LANE_BITS;
use crate::layout::sorting::{Kept, Lying};
use crate::ptx::modifier::*;
use crate::ptx::operand::{Class, Src};

const LANES: u64 = 1 << LANE_BITS;
/// Where so many lanes have one each that is kept, few others are kept beside them: less than a warp's lanes, mostly.
const MOST_SIFTED: u64 = 16;
/// Elements of a thread, at least, for which it is worth while.
const LEAST_SIFTED: usize = 8;

struct First<'a> {
    network: &'a Network,
    kept: &'a Kept,
    lane: S,
    target: Target,
    /// The thread's warp's part of scratch.
    own: S,
}

/// The first elements of the runs of all rounds, in slot order.
pub fn first(
    cx: &mut LowerCx,
    network: &Network,
    lying: &Lying,
    kept: &Kept,
    mut elements: Vec<Element>,
) -> Result<Vec<Element>> {
    behind_end(cx, network, lying, &mut elements);
    let each = elements.len() / lying.rounds as usize;
    let mut out = vec![];
    if network.threads < LANES {
        for run in elements.chunks(each) {
            out.extend(of_lanes(cx, network, kept, run));
        }
        return Ok(out);
    }
    let (base, _) = cx.scratch();
    let (lane, warp): (S, S) = (cx.b.lane().into(), cx.warp_in_group());
    let part = Src::u32(kept.area as u32);
    let first = First {
        network,
        kept,
        lane,
        target: Target::shared(base.into()),
        own: cx.b.mad(IntType::U32, warp, part, base),
    };
    for run in elements.chunks(each) {
        cx.sync_group();
        if kept.first <= MOST_SIFTED && each >= LEAST_SIFTED {
            first.sift(cx, run)?;
        } else {
            first.leave_lists(cx, run)?;
        }
        cx.sync(if kept.lists == 1 { Group::Warp } else { cx.group });
        out.extend(first.merged(cx)?);
    }
    Ok(out)
}

/// The first ones of all lanes of a unit, in order, in each of them.
fn of_lanes(cx: &mut LowerCx, network: &Network, kept: &Kept, run: &[Element]) -> Vec<Element> {
    let size = kept.size as usize;
    let mut best: Option<Vec<Element>> = None;
    for some in run.chunks(size) {
        let mut some = some.to_vec();
        some.resize(size, network.greatest());
        network.sort_own(cx, &mut some);
        best = Some(match best {
            None => some,
            Some(mut best) => {
                network.keep_first(cx, &mut best, &some);
                best
            }
        });
    }
    let mut best = best.unwrap_or_default();
    let mut lanes = 1;
    while lanes < network.threads.min(LANES) {
        let others: Vec<Element> = best.iter().map(|x| network.of_lane(cx, x, lanes as u32)).collect();
        network.keep_first(cx, &mut best, &others);
        lanes *= 2;
    }
    best
}

impl First<'_> {
    /// Stores an element as number `i` of those in the warp's part of scratch that `at` is of.
    fn store(&self, cx: &mut LowerCx, at: S, i: usize, x: &Element) -> Result<()> {
        for (part, &dtype) in self.network.dtypes.iter().enumerate() {
            let address = cx.b.addr(at, self.offset(part, i));
            memory::store_element(cx, self.target, address, dtype, x[part])?;
        }
        Ok(())
    }

    fn load(&self, cx: &mut LowerCx, at: S, i: usize) -> Result<Element> {
        let mut out = vec![];
        for (part, &dtype) in self.network.dtypes.iter().enumerate() {
            let address = cx.b.addr(at, self.offset(part, i));
            out.push(memory::load_element(cx, self.target, address, dtype)?);
        }
        Ok(out)
    }

    fn size(&self) -> u32 {
        8 * self.network.dtypes.len() as u32
    }

    fn offset(&self, part: usize, i: usize) -> i32 {
        (i as u32 * self.size()) as i32 + 8 * part as i32
    }

    /// A network of one element a lane.
    fn of_warp(&self, dtypes: Vec<DType>) -> Network {
        Network {
            dtypes,
            threads: LANES,
            each: 1,
            thread: self.lane,
            exchange: 0,
        }
    }

    /// Leaves the warp's first ones in its part of scratch.
    fn leave_lists(&self, cx: &mut LowerCx, run: &[Element]) -> Result<()> {
        let best = of_lanes(cx, self.network, self.kept, run);
        let is_first = cx.b.setp(Compare::Eq, CompareType::U32, self.lane, Src::u32(0));
        cx.if_then(is_first, |cx| {
            let all = best.iter().enumerate();
            all.into_iter().try_for_each(|(i, x)| self.store(cx, self.own, i, x))
        })
    }

    /// The same, mostly with less work.
    fn sift(&self, cx: &mut LowerCx, run: &[Element]) -> Result<()> {
        // The upper word decides: what is behind in it is behind.
        let upper = |cx: &mut LowerCx, x: &Element| match self.network.dtypes[0] {
            DType::U64 => cx.b.unpack64(x[0])[1],
            _ => x[0],
        };
        let words: Vec<S> = run.iter().map(|x| upper(cx, x)).collect();
        let mut least = words.clone();
        while least.len() > 1 {
            let pairs = least.chunks(2).map(|pair| match *pair {
                [a, b] => cx.b.min(IntType::U32, a, b),
                _ => pair[0],
            });
            least = pairs.collect();
        }
        let mut leasts = [vec![least[0]]];
        self.of_warp(vec![DType::U32]).sort(cx, &mut leasts)?;
        let last = cx.b.shfl_idx(leasts[0][0], Src::u32(self.kept.first as u32 - 1));
        let mut total: S = Src::u32(0);
        for &x in &words {
            let stays = cx.b.setp(Compare::Le, CompareType::U32, x, last);
            let one = cx.b.pick(Class::B32, stays, Src::u32(1), Src::u32(0));
            total = cx.b.add(IntType::U32, total, one);
        }
        // How many stay in all lanes, and in those before.
        let mut before: S = Src::u32(0);
        for bit in 0..LANE_BITS {
            let other = cx.b.shfl_xor(total, 1 << bit);
            let side = cx.b.and32(self.lane, 1 << bit);
            let is_high = cx.b.setp(Compare::Ne, CompareType::U32, side, Src::u32(0));
            let counted = cx.b.pick(Class::B32, is_high, other, Src::u32(0));
            before = cx.b.add(IntType::U32, before, counted);
            total = cx.b.add(IntType::U32, total, other);
        }
        let total = cx.b.shfl_idx(total, Src::u32(0));
        let are_few = cx.b.setp(Compare::Le, CompareType::U32, total, Src::u32(LANES as u32));
        cx.if_else(
            are_few,
            &[],
            |cx| {
                let mut at = cx.b.mad(IntType::U32, before, Src::u32(self.size()), self.own);
                // Compared again, of what is opaque to ptxas: it would keep a predicate for each element.
                let last = cx.b.shfl_idx(last, Src::u32(0));
                for (x, &word) in run.iter().zip(&words) {
                    let stays = cx.b.setp(Compare::Le, CompareType::U32, word, last);
                    cx.if_then(stays, |cx| self.store(cx, at, 0, x))?;
                    let step = cx.b.pick(Class::B32, stays, Src::u32(self.size()), Src::u32(0));
                    at = cx.b.add(IntType::U32, at, step);
                }
                cx.sync(Group::Warp);
                self.sort_few(cx, total)?;
                Ok(vec![])
            },
            |cx| {
                self.leave_lists(cx, run)?;
                Ok(vec![])
            },
        )?;
        Ok(())
    }

    /// Of at most as many elements as lanes in the warp's part of scratch, the first ones are left there, in order.
    fn sort_few(&self, cx: &mut LowerCx, total: S) -> Result<()> {
        let at = cx.b.mad(IntType::U32, self.lane, Src::u32(self.size()), self.own);
        let exists = cx.b.setp(Compare::Lt, CompareType::U32, self.lane, total);
        let network = self.of_warp(self.network.dtypes.clone());
        let classes: Vec<_> = network.dtypes.iter().map(|d| super::value::scalar_class(*d)).collect();
        let x = cx.if_else(exists, &classes, |cx| self.load(cx, at, 0), |_| Ok(network.greatest()))?;
        cx.sync(Group::Warp);
        let mut x = [x];
        network.sort(cx, &mut x)?;
        let stays = cx.b.setp(
            Compare::Lt,
            CompareType::U32,
            self.lane,
            Src::u32(self.kept.size as u32),
        );
        cx.if_then(stays, |cx| self.store(cx, at, 0, &x[0]))
    }

    /// The lists of a run's warps, merged: consecutive elements in each lane, the first ones in the first lanes.
    fn merged(&self, cx: &mut LowerCx) -> Result<Vec<Element>> {
        let Kept {
            size,
            lists,
            each,
            lanes,
            area,
            ..
        } = *self.kept;
        let lane = cx.b.and32(self.lane, lanes as u32 - 1);
        let number = cx.b.mul(IntType::U32, lane, Src::u32(each as u32));
        let list = cx.b.shr(ShiftType::U32, number, Src::u32(size.ilog2()));
        let within = cx.b.and32(number, size as u32 - 1);
        let (base, _) = cx.scratch();
        let warp = cx.warp_in_group();
        let warp = cx.b.and32(warp, !(lists as u32 - 1) & 3);
        let warp = cx.b.add(IntType::U32, warp, list);
        let at = cx.b.mad(IntType::U32, warp, Src::u32(area as u32), base);
        let at = cx.b.mad(IntType::U32, within, Src::u32(self.size()), at);
        let mut out = vec![];
        for i in 0..each {
            out.push(self.load(cx, at, i as usize)?);
        }
        let network = Network {
            dtypes: self.network.dtypes.clone(),
            threads: lanes,
            each,
            thread: lane,
            exchange: 0,
        };
        network.merge(cx, &mut out, size)?;
        Ok(out)
    }
}
