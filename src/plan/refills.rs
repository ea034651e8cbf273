//! Slots that a bulk load refills before a barrier's phase ends.
//!
//! Whoever has waited for a phase of `full[s]`, which a load into all of `x[s]` is part of, knows that whatever was done to `x[s]` before
//! that load was issued is over, for every warp. So no barrier is needed on account of it, wherever `s` points.
//!
//! *When* it was issued, a wait does not say. What this warpgroup does to `x[s]` is ordered with the load, so it comes before the load is
//! issued, or its executor has been told that the load is over: by the wait for `full[s]`, or by whoever has waited for it, through another
//! barrier. The latter takes time. Nobody issues the next load into `x[s]` before this warpgroup is known to have seen the last phase of
//! `full[s]`, or it could miss that phase. So between its wait for one phase and the next, what comes before a release by this
//! warpgroup that is followed by an acquire was before the next load. That is forgotten at the next wait, and nothing else.
//!
//! Every phase has such a load where nothing but loads arrive, and these come in straight runs of as many as the barrier counts, all by one
//! warpgroup, each run with a load into the slot that its barrier names: one phase is one run.
use crate::kernel_ir::executor::{Executor, arm_taken};
use crate::kernel_ir::visit::{for_each_ref, for_each_region};
use crate::kernel_ir::*;
use cranelift_entity::SecondaryMap;

/// A position of an allocation's first dimension.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Slot {
    pub alloc: Alloc,
    pub index: Value,
}

/// The slot that a view of the block's own shared memory lies in, if a value names it.
pub fn slot(kernel: &Kernel, view: &RefUse) -> Option<Slot> {
    if view.place != Place::Here || !kernel.allocs[view.alloc].is_smem() {
        return None;
    }
    match view.steps.first() {
        Some(Step::Index(dims)) => match dims.first() {
            Some(DimIndex::At(Index::Value(index))) => Some(Slot {
                alloc: view.alloc,
                index: *index,
            }),
            _ => None,
        },
        _ => None,
    }
}

/// Bulk loads that come one behind the other in a region, as many as end a phase of their barrier.
#[derive(Clone, Debug)]
pub struct Run {
    pub region: Region,
    pub loads: Vec<Op>,
    /// The barrier's, of those in its allocation.
    pub barrier: Index,
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
    // Of a slot that two barriers' phases refill, a wait for one says nothing of what the other's refill came before.
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
    for run in runs(kernel, barrier, num_arrivals)? {
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

/// All arrivals on a barrier, if each of its phases is one run of loads: nothing but loads arrive, these come in straight runs of as
/// many as the barrier counts, each for one of its elements, and one warpgroup issues them.
pub fn runs(kernel: &Kernel, barrier: Alloc, num_arrivals: u64) -> Option<Vec<Run>> {
    // What touches the barrier: loads and waits.
    let mut only_loads = true;
    let mut regions = vec![kernel.body];
    kernel.for_each_op(&mut |op| {
        let kind = &kernel.ops[op].kind;
        for_each_region(kind, &mut |r| regions.push(r));
        let mut touches = false;
        for_each_ref(kind, &mut |view| touches |= view.alloc == barrier);
        let knows = matches!(kind, OpKind::CopyGmemToSmem { .. } | OpKind::BarrierWait { .. });
        only_loads &= !touches || knows;
    });
    let loaders = (0..kernel.num_warpgroups).filter(|w| loads(kernel, kernel.body, barrier, *w));
    if !only_loads || loaders.count() != 1 {
        return None;
    }
    let mut all = vec![];
    for region in regions {
        let mut run: Option<Run> = None;
        for &op in &kernel.regions[region].ops {
            let kind = &kernel.ops[op].kind;
            let mut nested = false;
            for_each_region(kind, &mut |_| nested = true);
            if run.is_some() && nested {
                return None;
            }
            let OpKind::CopyGmemToSmem {
                barrier: Some(at),
                leader_tracked,
                predicate,
                ..
            } = kind
            else {
                continue;
            };
            if at.alloc != barrier {
                continue;
            }
            let name = at.single_index()?;
            // The warps of a warp region issue theirs side by side.
            let apart = kernel.regions[region].group == Group::Warp && num_arrivals > 1;
            if predicate.is_some() || leader_tracked.is_some() || apart || at.place != Place::Here {
                return None;
            }
            let mut now = run.take().unwrap_or(Run {
                region,
                loads: vec![],
                barrier: name,
            });
            if now.barrier != name {
                return None;
            }
            now.loads.push(op);
            if now.loads.len() as u64 == num_arrivals {
                all.push(now);
            } else {
                run = Some(now);
            }
        }
        if run.is_some() {
            return None;
        }
    }
    Some(all)
}

/// Whether a warpgroup executes a load that arrives on this barrier.
fn loads(kernel: &Kernel, region: Region, barrier: Alloc, warpgroup: u32) -> bool {
    kernel.regions[region].ops.iter().any(|&op| {
        let kind = &kernel.ops[op].kind;
        let arrives = matches!(kind, OpKind::CopyGmemToSmem { barrier: Some(at), .. } if at.alloc == barrier);
        let mut inside = false;
        for_each_region(kind, &mut |r| {
            let comes = arm_taken(kernel, kind, Executor::warpgroup(warpgroup)).is_none_or(|arm| arm == r);
            inside |= comes && loads(kernel, r, barrier, warpgroup);
        });
        arrives || inside
    })
}

/// Whether a view is all of the slot of this number.
fn fills_slot(kernel: &Kernel, view: &RefUse, name: Index) -> bool {
    let at = match view.steps.first() {
        Some(Step::Index(dims)) => matches!(dims.first(), Some(DimIndex::At(i)) if *i == name),
        _ => false,
    };
    at && view.place == Place::Here && kernel.allocs[view.alloc].shape[1..] == view.shape[..]
}
