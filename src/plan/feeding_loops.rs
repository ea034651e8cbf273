//! Loops in which a warpgroup does nothing but feed: it waits for mbarriers and issues bulk loads.
//!
//! The lane that issues copies is one of the warpgroup's first warp, and what the waits order are its copies. So the other
//! warps do not wait there: they count phases where these are used, and pass a barrier with the first warp behind the loop. If each
//! warp waited by itself, one that fell two phases behind would wait for a phase that is long past, and hang; and a
//! warpgroup barrier in each iteration, which would keep them together, is what the feeding warpgroup can least afford.
//!
//! The loop is lowered once for each part ([`FeedingPart`]), under one branch: within it nothing branches again on the warp,
//! and the assembler keeps the copies' addresses in uniform registers.
use crate::kernel_ir::class::{Class, Control};
use crate::kernel_ir::visit::{for_each_region, for_each_value};
use crate::kernel_ir::*;
use cranelift_entity::SecondaryMap;

#[derive(Clone, Debug, Default)]
pub struct FeedingLoops {
    /// The outermost loops that only feed: a warpgroup barrier follows each.
    pub loops: SecondaryMap<Op, bool>,
    /// The waits in them.
    pub waits: SecondaryMap<Op, bool>,
}

/// The warps for which a feeding loop is lowered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FeedingPart {
    /// The first warp: it waits and issues.
    Issues,
    /// The other warps: only what the loop computes is left.
    Counts,
}

pub fn find(kernel: &Kernel) -> FeedingLoops {
    let mut finder = Finder {
        kernel,
        found: FeedingLoops::default(),
    };
    finder.region(kernel.body);
    finder.found
}

struct Finder<'a> {
    kernel: &'a Kernel,
    found: FeedingLoops,
}

impl Finder<'_> {
    fn region(&mut self, region: Region) {
        let kernel = self.kernel;
        for &op in &kernel.regions[region].ops {
            let kind = &kernel.ops[op].kind;
            if matches!(kind, OpKind::WarpMap { .. }) {
                continue; // its warps diverge anyway
            }
            if kind.control().is_some_and(Control::is_loop) && self.only_feeds(op) {
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
        // What warps do with arrays, and with scalars of memory that may be written, needs barriers, which cannot be in here.
        let mut scalars = data.results.iter().all(|v| kernel.ty(*v).is_scalar());
        for_each_value(&data.kind, &mut |v| scalars &= kernel.ty(v).is_scalar());
        if !scalars {
            return false;
        }
        match data.kind.class() {
            Class::Pure(_) => true,
            Class::Memory => {
                // What no thread writes is the same in every warp.
                matches!(&data.kind, OpKind::Load { src } if kernel.is_input(src.alloc))
                    || matches!(
                        data.kind,
                        OpKind::CopyGmemToSmem { by_threads: false, .. } | OpKind::Prefetch { .. }
                    )
            }
            Class::Synchronisation => {
                let orders = |barrier: &RefUse| {
                    matches!(
                        kernel.allocs[barrier.alloc].kind,
                        AllocKind::Barrier {
                            orders_tensor_core: true,
                            ..
                        }
                    )
                };
                matches!(&data.kind, OpKind::BarrierWait { barrier, .. } if !orders(barrier))
            }
            Class::Control(Control::For { .. } | Control::While { .. } | Control::Switch { .. }) => {
                let mut all = true;
                for_each_region(&data.kind, &mut |r| {
                    all &= kernel.regions[r].ops.iter().all(|op| self.only_feeds(*op));
                });
                all
            }
            Class::Control(Control::Scope { .. } | Control::WarpMap { .. })
            | Class::Pinned
            | Class::Tensor
            | Class::Instructions
            | Class::Accumulator => false,
            // The warp that issues takes the time.
            Class::Aside => matches!(data.kind, OpKind::ProfileMark { .. }),
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
    use crate::kernel_ir::testing::KernelBuilder;

    /// A loop that waits and loads, inside of another one; what else it does. How many loops and waits only feed.
    fn found(else_: impl FnOnce(&mut KernelBuilder, &Outside)) -> (usize, usize) {
        let mut b = KernelBuilder::new();
        let (x, out) = (b.input(DType::F32, &[128]), b.output(DType::F32, &[128]));
        let whole = b.whole(x);
        let array = b.load(whole);
        let outside = Outside { x, out, array };
        let tile = b.smem(DType::F32, &[128], None);
        let barriers = b.barriers(1);
        let word = Type::Scalar(DType::U32);
        let (lower, upper, phases) = (b.int(DType::I32, 0), b.int(DType::I32, 4), b.int(DType::U32, 0));
        let params = [Type::Scalar(DType::I32), word.clone()];
        let for_loop = |b: &mut KernelBuilder, init: Value, body: Region| {
            let kind = OpKind::For {
                lower,
                upper,
                inits: vec![init],
                xs: vec![],
                reverse: false,
                unroll: 1,
                body,
            };
            b.op(kind, std::slice::from_ref(&word))
        };
        let outer = b.region(Group::Warpgroup, &params, |b, outer| {
            let body = b.region(Group::Warpgroup, &params, |b, inner| {
                let barrier = b.indexed(barriers, vec![DimIndex::At(Index::Const(0))]);
                let wait = OpKind::BarrierWait {
                    barrier: barrier.clone(),
                    phases: Some(inner[1]),
                };
                let next = b.op(wait, std::slice::from_ref(&word));
                let (src, dst) = (b.whole(x), b.whole(tile));
                let copy = OpKind::CopyGmemToSmem {
                    by_threads: false,
                    uncounted: false,
                    src,
                    dst,
                    barrier: Some(barrier),
                    collective_axes: vec![],
                    leader_tracked: None,
                    oob: OobMode::Zeros,
                    predicate: None,
                };
                b.op(copy, &[]);
                else_(b, &outside);
                next
            });
            for_loop(b, outer[1], body)
        });
        for_loop(&mut b, phases, outer);
        let found = find(&b.finish());
        let count = |map: &SecondaryMap<Op, bool>| map.values().filter(|v| **v).count();
        (count(&found.loops), count(&found.waits))
    }

    /// An input, an output, an array in registers.
    struct Outside {
        x: Alloc,
        out: Alloc,
        array: Value,
    }

    fn load_first(b: &mut KernelBuilder, of: Alloc) {
        let first = b.indexed(of, vec![DimIndex::At(Index::Const(0))]);
        b.load(first);
    }

    #[test]
    fn a_loop_that_waits_and_loads_feeds() {
        assert_eq!(found(|_, _| ()), (1, 1), "the outermost loop, the one wait");
        assert_eq!(
            found(|b, o| load_first(b, o.x)),
            (1, 1),
            "scalars of inputs are the same for all warps"
        );
        let mark = |b: &mut KernelBuilder, _: &Outside| {
            let (name, edge) = ("copy".into(), ProfileEdge::Begins);
            b.op(OpKind::ProfileMark { name, edge }, &[]);
        };
        assert_eq!(found(mark), (1, 1), "the warp that issues takes the time");
    }

    #[test]
    fn a_loop_that_looks_at_anything_does_not() {
        let stores = |b: &mut KernelBuilder, o: &Outside| {
            let whole = b.whole(o.out);
            let value = b.load(whole.clone());
            b.store(whole, value);
        };
        assert_eq!(found(stores), (0, 0));
        assert_eq!(found(|b, o| load_first(b, o.out)), (0, 0), "one thread broadcasts");
        let sums = |b: &mut KernelBuilder, o: &Outside| {
            let kind = OpKind::Reduce {
                op: ReduceOp::Sum,
                a: o.array,
                axes: vec![0],
                parallel: None,
            };
            b.op(kind, &[Type::Scalar(DType::F32)]);
        };
        assert_eq!(found(sums), (0, 0), "warps exchange their sums");
    }
}
