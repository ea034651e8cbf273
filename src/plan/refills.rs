//! Slots that a bulk load refills before a barrier's phase ends.
//!
//! Behind a wait for a phase of `full[s]`, which a load into all of `x[s]` is part of, all that was done to `x[s]` before
//! that load was issued is over, for every warp. So no barrier is needed on account of it, wherever `s` points.
//!
//! *When* it was issued, a wait does not say. What this warpgroup does to `x[s]` is ordered with the load, so it comes before the load is
//! issued, or its executor has acquired the end of the load: by the wait for `full[s]`, or from a thread that has waited for it, through another
//! barrier. The latter takes time. No thread issues the next load into `x[s]` before this warpgroup has seen the last phase of
//! `full[s]`, or it could miss that phase. So between its wait for one phase and the next, what comes before a release by this
//! warpgroup that is followed by an acquire was before the next load. That is forgotten at the next wait, and nothing else.
//!
//! Every phase has such a load where each is one [run](phases::runs) of loads, with a load into the slot that its barrier names.
use crate::kernel_ir::rings::{Part, Slot, phases};
use crate::kernel_ir::*;
use cranelift_entity::SecondaryMap;

/// The slot that a view of the block's own shared memory lies in, if a value names it.
pub fn slot(kernel: &Kernel, view: &RefUse) -> Option<Part> {
    let Some(Step::Index(dims)) = view.steps.first() else {
        return None;
    };
    match dims.first() {
        Some(DimIndex::At(Index::Value(v))) => Some(Part {
            alloc: view.alloc,
            slot: Slot::Of(*v),
        })
        .filter(|_| view.place == Place::Here && kernel.allocs[view.alloc].is_smem()),
        _ => None,
    }
}

/// For each barrier, what every phase of its element `i` refills slot `i` of, and no other barrier's.
pub fn find(kernel: &Kernel) -> SecondaryMap<Alloc, Vec<Alloc>> {
    let mut found = SecondaryMap::new();
    for (barrier, data) in kernel.allocs.iter() {
        if let AllocKind::Barrier {
            num_arrivals,
            cluster: None,
            ..
        } = data.kind
        {
            found[barrier] = refilled(kernel, barrier, num_arrivals).unwrap_or_default();
        }
    }
    // Of a slot that two barriers' phases refill, a wait for one orders nothing that the other's refill came before.
    let mut fillers: SecondaryMap<Alloc, u32> = SecondaryMap::new();
    found.values().flatten().for_each(|alloc| fillers[*alloc] += 1);
    found
        .values_mut()
        .for_each(|filled: &mut Vec<Alloc>| filled.retain(|alloc| fillers[*alloc] == 1));
    found
}

/// What every run fills a slot of.
fn refilled(kernel: &Kernel, barrier: Alloc, num_arrivals: u64) -> Option<Vec<Alloc>> {
    let mut all: Option<Vec<Alloc>> = None;
    for run in phases::runs(kernel, barrier, num_arrivals)? {
        let mut filled = vec![];
        for op in &run.loads {
            if let OpKind::CopyGmemToSmem {
                dst, collective_axes, ..
            } = &kernel.ops[*op].kind
            {
                if !collective_axes.is_empty() {
                    return None;
                }
                if fills_slot(kernel, dst, run.barrier) {
                    filled.push(dst.alloc);
                }
            }
        }
        let mut known = all.take().unwrap_or_else(|| filled.clone());
        known.retain(|alloc| filled.contains(alloc));
        all = Some(known);
    }
    all
}

/// Whether a view is all of the slot of this number.
fn fills_slot(kernel: &Kernel, view: &RefUse, name: Index) -> bool {
    let at = match view.steps.first() {
        Some(Step::Index(dims)) => matches!(dims.first(), Some(DimIndex::At(i)) if *i == name),
        _ => false,
    };
    at && view.place == Place::Here && kernel.allocs[view.alloc].shape[1..] == view.shape[..]
}
