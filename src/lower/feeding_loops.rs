//! Loops in which a warpgroup does nothing but feed: it waits for mbarriers and issues bulk loads.
//!
//! The lane that issues copies is one of the warpgroup's first warp, and what the waits order are its copies. So the other
//! warps do not wait there: they count phases, run through the loop, and meet the first warp behind it. If each warp waited
//! by itself, one that fell two phases behind would wait for a phase that is long past, for ever; and a warpgroup barrier
//! in each iteration, which would keep them together, is what the feeding warpgroup can least afford.
use crate::kernel_ir::visit::for_each_region;
use crate::kernel_ir::*;
use cranelift_entity::SecondaryMap;

#[derive(Clone, Debug, Default)]
pub struct FeedingLoops {
    /// The outermost loops that only feed: a warpgroup barrier follows each.
    pub loops: SecondaryMap<Op, bool>,
    /// The waits in them.
    pub waits: SecondaryMap<Op, bool>,
}

pub fn find(kernel: &Kernel) -> FeedingLoops {
    let mut written = SecondaryMap::new();
    kernel.for_each_op(&mut |op| {
        for effect in effects::of(&kernel.ops[op].kind) {
            if effect.access.writes() {
                written[effect.alloc] = true;
            }
        }
    });
    let mut finder = Finder {
        kernel,
        written,
        found: FeedingLoops::default(),
    };
    finder.region(kernel.body);
    finder.found
}

struct Finder<'a> {
    kernel: &'a Kernel,
    written: SecondaryMap<Alloc, bool>,
    found: FeedingLoops,
}

impl Finder<'_> {
    fn region(&mut self, region: Region) {
        let kernel = self.kernel;
        for &op in &kernel.regions[region].ops {
            let kind = &kernel.ops[op].kind;
            if matches!(kind, OpKind::WarpMap { .. }) {
                continue; // its warps run apart as it is
            }
            let is_loop = matches!(kind, OpKind::For { .. } | OpKind::While { .. });
            if is_loop && self.only_feeds(op) {
                let mut waits = vec![];
                self.waits(op, &mut waits);
                if !waits.is_empty() {
                    self.found.loops[op] = true;
                    for wait in waits {
                        self.found.waits[wait] = true;
                    }
                }
                continue;
            }
            let mut regions = vec![];
            for_each_region(kind, &mut |r| regions.push(r));
            for r in regions {
                self.region(r);
            }
        }
    }

    fn only_feeds(&self, op: Op) -> bool {
        let kernel = self.kernel;
        let data = &kernel.ops[op];
        if !data.results.iter().all(|v| kernel.ty(*v).is_scalar()) {
            return false;
        }
        let inside = |kind: &OpKind| {
            let mut all = true;
            for_each_region(kind, &mut |r| {
                all &= kernel.regions[r].ops.iter().all(|op| self.only_feeds(*op));
            });
            all
        };
        match &data.kind {
            OpKind::BarrierWait { barrier, .. } => !matches!(
                kernel.allocs[barrier.alloc].kind,
                AllocKind::Barrier {
                    orders_tensor_core: true,
                    ..
                }
            ),
            OpKind::CopyGmemToSmem { .. } | OpKind::Prefetch { .. } => true,
            // What nobody writes is the same whoever has waited for what.
            OpKind::Load { src } => kernel.allocs[src.alloc].is_gmem() && !self.written[src.alloc],
            OpKind::For { .. } | OpKind::While { .. } | OpKind::Switch { .. } => inside(&data.kind),
            kind => kind.is_pure(),
        }
    }

    fn waits(&self, op: Op, out: &mut Vec<Op>) {
        let kind = &self.kernel.ops[op].kind;
        if matches!(kind, OpKind::BarrierWait { .. }) {
            out.push(op);
        }
        for_each_region(kind, &mut |r| {
            for &inner in &self.kernel.regions[r].ops {
                self.waits(inner, out);
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dtype::DType;
    use crate::lower::testing::KernelBuilder;

    #[test]
    fn a_kernel_without_loops_feeds_nothing() {
        let mut b = KernelBuilder::new();
        let x = b.input(DType::F32, &[128]);
        let whole = b.whole(x);
        b.load(whole);
        let found = find(&b.finish());
        assert!(found.loops.values().all(|l| !l) && found.waits.values().all(|w| !w));
    }
}
