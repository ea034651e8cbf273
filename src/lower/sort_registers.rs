//! Sorts of runs that stay in registers: the network, or the first few of each thread put together.
use super::cx::LowerCx;
use super::emit::S;
use super::memory::{self, Target};
use super::network::{Element, Network};
use crate::error::Result;
use crate::layout::RegisterLayout;
use crate::layout::sorting::Lying;
use crate::ptx::modifier::*;
use crate::ptx::operand::Src;

/// Orders the runs of all rounds; in slot order, as [`Lying::from`] and [`Lying::to`] have them.
pub fn whole(cx: &mut LowerCx, network: &Network, lying: &Lying, mut elements: Vec<Element>) -> Result<Vec<Element>> {
    behind_end(cx, network, lying, &mut elements);
    for run in elements.chunks_mut(network.each as usize) {
        network.sort(cx, run)?;
    }
    Ok(elements)
}

/// The first `kept` elements of each run.
pub fn first(
    cx: &mut LowerCx,
    network: &Network,
    lying: &Lying,
    kept: u64,
    mut elements: Vec<Element>,
) -> Result<Vec<Element>> {
    behind_end(cx, network, lying, &mut elements);
    let each = elements.len() / lying.rounds as usize;
    let mut out = vec![];
    for run in elements.chunks(each) {
        let mut best: Option<Vec<Element>> = None;
        for some in run.chunks(kept as usize) {
            let mut some = some.to_vec();
            some.resize(kept as usize, network.greatest());
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
        while lanes < network.threads.min(32) {
            let others: Vec<Element> = best.iter().map(|x| network.of_lane(cx, x, lanes as u32)).collect();
            network.keep_first(cx, &mut best, &others);
            lanes *= 2;
        }
        if network.threads > 32 {
            of_warps(cx, network, &mut best)?;
        }
        out.extend(best);
    }
    Ok(out)
}

/// Every warp tells what its lanes have; all go by the same order.
fn of_warps(cx: &mut LowerCx, network: &Network, best: &mut [Element]) -> Result<()> {
    let (base, _) = cx.scratch();
    let target = Target::shared(base.into());
    let kept = best.len();
    let size = (8 * kept * network.dtypes.len()) as u32;
    // Part after part, eight bytes an element.
    let at = |part: usize, i: usize| network.exchange + 8 * (part * kept + i) as i32;
    let warp: S = cx.b.warp_in_warpgroup().into();
    let lane: S = cx.b.lane().into();
    let is_first = cx.b.setp(Compare::Eq, CompareType::U32, lane, Src::u32(0));
    cx.sync_group();
    let own = cx.b.mad(IntType::U32, warp, Src::u32(size), base);
    cx.if_then(is_first, |cx| {
        for (i, x) in best.iter().enumerate() {
            for (part, &dtype) in network.dtypes.iter().enumerate() {
                let address = cx.b.addr(own, at(part, i));
                memory::store_element(cx, target, address, dtype, x[part])?;
            }
        }
        Ok(())
    })?;
    cx.sync_group();
    for other in 1..network.threads / 32 {
        let warp = cx.b.xor(LogicType::B32, warp, Src::u32(other as u32));
        let theirs = cx.b.mad(IntType::U32, warp, Src::u32(size), base);
        let mut others = vec![];
        for i in 0..best.len() {
            let mut x = vec![];
            for (part, &dtype) in network.dtypes.iter().enumerate() {
                let address = cx.b.addr(theirs, at(part, i));
                x.push(memory::load_element(cx, target, address, dtype)?);
            }
            others.push(x);
        }
        network.keep_first(cx, best, &others);
    }
    Ok(())
}

/// Elements behind a run's end are greater than all others.
fn behind_end(cx: &mut LowerCx, network: &Network, lying: &Lying, elements: &mut [Element]) {
    let axis = lying.from.axis_of(lying.axis);
    if !axis.is_padded() {
        return;
    }
    let thread = memory::thread_terms(cx, &RegisterLayout::axis_terms(axis));
    let greatest = network.greatest();
    for (slot, x) in elements.iter_mut().enumerate() {
        let offset = RegisterLayout::axis_offset(axis, slot as u32);
        let inside = match offset >= axis.size {
            true => Src::Imm(0),
            false => {
                cx.b.setp(Compare::Lt, CompareType::U32, thread, Src::Imm(axis.size - offset))
            }
        };
        *x = network.pick(cx, inside, x, &greatest);
    }
}
