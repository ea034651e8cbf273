//! Which copies make the phases of a barrier.
use crate::kernel_ir::executor::{Executor, arm_taken};
use crate::kernel_ir::visit::{for_each_ref, for_each_region};
use crate::kernel_ir::*;

/// Bulk loads that come one behind the other in a region, as many as end a phase of their barrier.
#[derive(Clone, Debug)]
pub struct Run {
    pub region: Region,
    pub loads: Vec<Op>,
    /// The barrier's, of those in its allocation.
    pub barrier: Index,
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
            let by_each_warp = kernel.regions[region].group == Group::Warp && num_arrivals > 1;
            if predicate.is_some() || leader_tracked.is_some() || by_each_warp || at.place != Place::Here {
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
