//! Sorts of runs that stay in registers.
use super::cx::LowerCx;
use super::memory;
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

/// Elements behind a run's end are greater than all others.
pub fn behind_end(cx: &mut LowerCx, network: &Network, lying: &Lying, elements: &mut [Element]) {
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
