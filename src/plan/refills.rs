//! Slots that a bulk load refills before a barrier's phase ends.
//!
//! Whoever has waited for a phase of `full[s]`, which a load into all of `x[s]` is part of, knows that whatever was done to `x[s]` before is
//! over, for every warp: the load itself came behind it. So no barrier is needed on account of it, wherever `s` points. That says nothing of
//! other slots, and nothing of what is done behind the wait.
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

/// For each barrier, what every phase of its element `i` refills slot `i` of.
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
    found
}

fn refilled(kernel: &Kernel, barrier: Alloc, num_arrivals: u64) -> Option<Vec<Alloc>> {
    // What touches the barrier: loads and waits.
    let mut only_loads = true;
    kernel.for_each_op(&mut |op| {
        let kind = &kernel.ops[op].kind;
        let mut touches = false;
        for_each_ref(kind, &mut |view| touches |= view.alloc == barrier);
        let knows = matches!(kind, OpKind::CopyGmemToSmem { .. } | OpKind::BarrierWait { .. });
        only_loads &= !touches || knows;
    });
    let loaders = (0..kernel.num_warpgroups).filter(|w| loads(kernel, kernel.body, barrier, *w));
    if !only_loads || loaders.count() != 1 {
        return None;
    }
    let mut all: Option<Vec<Alloc>> = None;
    for region in kernel.regions.values() {
        // The run so far: whose slot, and what is refilled.
        let mut run: Vec<Alloc> = vec![];
        let (mut index, mut count) = (None, 0);
        for &op in &region.ops {
            let kind = &kernel.ops[op].kind;
            let mut nested = false;
            for_each_region(kind, &mut |_| nested = true);
            if count > 0 && nested {
                return None;
            }
            let OpKind::CopyGmemToSmem {
                dst,
                barrier: Some(at),
                collective_axes,
                leader_tracked: None,
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
            if predicate.is_some() || !collective_axes.is_empty() || count > 0 && index != Some(name) {
                return None;
            }
            index = Some(name);
            count += 1;
            if fills_slot(kernel, dst, name) {
                run.push(dst.alloc);
            }
            if count == num_arrivals {
                let run = std::mem::take(&mut run);
                let mut known = all.take().unwrap_or_else(|| run.clone());
                known.retain(|alloc| run.contains(alloc));
                (all, count) = (Some(known), 0);
            }
        }
        if count > 0 {
            return None;
        }
    }
    all
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
