//! Gives each warp its own of what a warp region allocates.
//!
//! Warps of a region diverge: one may be in the next scope while another is still in the one before, so that nothing could take the place of
//! what a scope leaves. Memory and barriers that are allocated in warp regions live as long as the kernel, one for each warp that may execute them:
//! leading dimensions for those warpgroups and warps, at which every use starts with its executor's indices.
use crate::dtype::DType;
use crate::error::{Error, Loc, Result};
use crate::kernel_ir::class::Control;
use crate::kernel_ir::executor::{Executor, arm_taken};
use crate::kernel_ir::rewrite::regions_of;
use crate::kernel_ir::*;
use cranelift_entity::SecondaryMap;
use std::ops::Range;

pub fn run(kernel: &mut Kernel) -> Result<()> {
    let mut regions = kernel.live_regions().into_iter();
    if regions.all(|region| kernel.regions[region].group != Group::Warp) {
        return Ok(());
    }
    let everyone: Vec<Executor> = (0..kernel.num_warpgroups).map(Executor::warpgroup).collect();
    let mut pass = Owner {
        kernel,
        own: SecondaryMap::new(),
        moved: vec![],
    };
    let body = pass.kernel.body;
    pass.region(body, &everyone, None)?;
    let Owner { moved, .. } = pass;
    if !moved.is_empty() {
        surround(kernel, moved);
    }
    Ok(())
}

/// Warps of a warpgroup.
const WARPS: u32 = 4;

/// From the least to the greatest.
fn span(ids: impl Iterator<Item = u32> + Clone) -> Range<u32> {
    match (ids.clone().min(), ids.max()) {
        (Some(least), Some(greatest)) => least..greatest + 1,
        // No warp executes it.
        _ => 0..1,
    }
}

/// The kernel's ops in a scope of these allocations.
fn surround(kernel: &mut Kernel, allocs: Vec<Alloc>) {
    let outer = kernel.body;
    let inner = kernel.new_region(kernel.regions[outer].group);
    kernel.regions[inner].ops = std::mem::take(&mut kernel.regions[outer].ops);
    let scope = OpKind::Scope {
        allocs,
        collective: false,
        body: inner,
    };
    kernel.append(outer, scope, [], Loc::CALL_SITE);
}

struct Owner<'a> {
    kernel: &'a mut Kernel,
    /// The steps that lead to the executor's own of an allocation.
    own: SecondaryMap<Alloc, Option<Vec<DimIndex>>>,
    moved: Vec<Alloc>,
}

impl Owner<'_> {
    /// `by`: what may execute them. `warp`: the axis of the warp region around.
    fn region(&mut self, region: Region, by: &[Executor], warp: Option<Axis>) -> Result<()> {
        let ops = std::mem::take(&mut self.kernel.regions[region].ops);
        for op in ops {
            if let (OpKind::Scope { .. }, Some(axis)) = (&self.kernel.ops[op].kind, warp) {
                self.scope(region, op, by, axis)?;
            }
            self.uses(op);
            self.kernel.regions[region].ops.push(op);
            let warp = if let OpKind::WarpMap { axis, .. } = self.kernel.ops[op].kind {
                Some(axis)
            } else {
                warp
            };
            for inner in regions_of(self.kernel, op) {
                let by = self.executors_of(op, inner, by);
                self.region(inner, &by, warp)?;
            }
        }
        Ok(())
    }

    /// Which of these, or of their warps, may execute a region of an op.
    fn executors_of(&self, op: Op, inner: Region, by: &[Executor]) -> Vec<Executor> {
        let kind = &self.kernel.ops[op].kind;
        let takes = |e: &Executor| arm_taken(self.kernel, kind, *e).is_none_or(|arm| arm == inner);
        let warps = |e: &Executor| (0..WARPS).map(|w| Executor { warp: Some(w), ..*e }).collect::<Vec<_>>();
        match kind.control() {
            Some(Control::Switch { .. }) => by.iter().copied().filter(takes).collect(),
            Some(Control::WarpMap { .. }) => by.iter().flat_map(warps).collect(),
            Some(Control::For { .. } | Control::While { .. } | Control::Scope { .. }) | None => by.to_vec(),
        }
    }

    /// A scope in a warp region keeps its registers; the rest is the kernel's from now on. The indices of a warp's own part are computed before it.
    fn scope(&mut self, before: Region, op: Op, by: &[Executor], axis: Axis) -> Result<()> {
        let Kernel { ops, allocs: data, .. } = &mut *self.kernel;
        let OpKind::Scope { allocs, .. } = &mut ops[op].kind else {
            unreachable!("a scope")
        };
        let is_register = |a: &Alloc| matches!(data[*a].kind, AllocKind::Register { .. });
        let (kept, moved): (Vec<Alloc>, Vec<Alloc>) = std::mem::take(allocs).into_iter().partition(is_register);
        *allocs = kept;
        if moved.is_empty() {
            return Ok(());
        }
        let loc = self.kernel.ops[op].loc;
        for &alloc in &moved {
            self.legal(alloc)?;
        }
        let mut lead = vec![];
        let warpgroups = by.iter().map(|e| e.warpgroup);
        let warps = by.iter().filter_map(|e| e.warp);
        for (axis, ids) in [(self.kernel.thread_axis, span(warpgroups)), (Some(axis), span(warps))] {
            let (Some(axis), true) = (axis, ids.len() > 1) else {
                continue;
            };
            let index = self.index(before, axis, ids.start, loc);
            lead.push((DimIndex::At(Index::Value(index)), ids.len() as u64));
        }
        for alloc in moved {
            let data = &mut self.kernel.allocs[alloc];
            let own: Vec<u64> = data.shape.to_vec();
            data.shape = lead.iter().map(|(_, n)| *n).chain(own.iter().copied()).collect();
            data.collective = true;
            let whole = own.iter().map(|n| DimIndex::all(*n));
            self.own[alloc] = Some(lead.iter().map(|(at, _)| at.clone()).chain(whole).collect());
            self.moved.push(alloc);
        }
        Ok(())
    }

    fn legal(&self, alloc: Alloc) -> Result<()> {
        let data = &self.kernel.allocs[alloc];
        let refused = match &data.kind {
            AllocKind::SmemUnion => "a union of references",
            AllocKind::Barrier { cluster: Some(_), .. } => "a barrier of the cluster",
            _ if data.within.is_some() => "a union of references",
            _ => return Ok(()),
        };
        Err(
            Error::unsupported(format!("{refused} allocated inside of a warp region"))
                .at(data.loc)
                .remedy("allocate it before the warp region, and give each warp its part by lax.axis_index"),
        )
    }

    /// The executor's index on an axis, less the first that comes by.
    fn index(&mut self, region: Region, axis: Axis, first: u32, loc: Loc) -> Value {
        let ty = Type::Scalar(DType::I32);
        let a = self.kernel.append1(region, OpKind::AxisIndex { axis }, ty.clone(), loc);
        if first == 0 {
            return a;
        }
        let b = self.kernel.append_int(region, DType::I32, i64::from(first), loc);
        let op = BinaryOp::Sub;
        self.kernel.append1(region, OpKind::Binary { op, a, b }, ty, loc)
    }

    fn uses(&mut self, op: Op) {
        let own = &self.own;
        visit::map_refs(&mut self.kernel.ops[op].kind, &mut |r| {
            if let Some(dims) = &own[r.alloc] {
                r.steps.insert(0, Step::Index(dims.clone()));
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel_ir::testing::KernelBuilder;

    /// A scope of a warp region of this many warpgroups, where `comes` are the numbers of the warpgroup and the warp that get there (all, if
    /// none is given): its allocation behind the pass, and the kernel.
    fn scope(warpgroups: u32, comes: [Option<i64>; 2]) -> (Kernel, Alloc) {
        let mut b = KernelBuilder::new().warpgroups(warpgroups);
        let thread = b.kernel.thread_axis.expect("an axis");
        let name = String::new();
        let (size, kind) = (4, AxisKind::Warp);
        let axis = b.kernel.axes.push(AxisData { name, size, kind });
        let alloc = b.smem(DType::F32, &[64], None);
        let when = |b: &mut KernelBuilder, group, axis, number: Option<i64>, f: &dyn Fn(&mut KernelBuilder)| {
            let Some(number) = number else { return f(b) };
            let (op, a) = (CompareOp::Eq, b.op1(OpKind::AxisIndex { axis }, DType::I32, &[]));
            let other = b.int(DType::I32, number);
            let selector = b.op1(OpKind::Compare { op, a, b: other }, DType::Bool, &[]);
            let arm = |b: &mut KernelBuilder, taken: bool| {
                b.region(group, &[], |b, _| {
                    if taken {
                        f(b);
                    }
                    vec![]
                })
            };
            let arms = vec![arm(b, false), arm(b, true)];
            b.op(OpKind::Switch { selector, arms }, &[]);
        };
        when(&mut b, Group::Warpgroup, thread, comes[0], &|b| {
            let body = b.region(Group::Warp, &[], |b, _| {
                when(b, Group::Warp, axis, comes[1], &|b| {
                    let body = b.region(Group::Warp, &[], |b, _| {
                        let zero = b.op1(OpKind::Constant(Constant::Splat(0)), DType::F32, &[64]);
                        let dst = b.whole(alloc);
                        b.store(dst, zero);
                        vec![]
                    });
                    let (allocs, collective) = (vec![alloc], false);
                    b.op(
                        OpKind::Scope {
                            allocs,
                            collective,
                            body,
                        },
                        &[],
                    );
                });
                vec![]
            });
            let inits = vec![];
            b.op(OpKind::WarpMap { axis, inits, body }, &[]);
        });
        let mut kernel = b.finish();
        run(&mut kernel).unwrap();
        verify::run(&kernel).unwrap();
        (kernel, alloc)
    }

    #[test]
    fn each_warp_that_comes_by_has_its_own() {
        for (warpgroups, comes, shape) in [
            (1, [None, None], &[4, 64][..]),
            (3, [None, None], &[3, 4, 64]),
            (3, [Some(2), None], &[4, 64]),
            (3, [None, Some(1)], &[3, 64]),
            (2, [Some(1), Some(3)], &[64]),
            (2, [Some(5), None], &[64]),
        ] {
            let (kernel, alloc) = scope(warpgroups, comes);
            assert_eq!(kernel.allocs[alloc].shape.as_slice(), shape, "{comes:?}");
            let [op] = kernel.regions[kernel.body].ops[..] else {
                panic!("one scope around everything")
            };
            let OpKind::Scope { allocs, .. } = &kernel.ops[op].kind else {
                panic!("a scope")
            };
            assert_eq!(allocs, &[alloc]);
        }
    }

    #[test]
    fn what_warpgroups_allocate_stays() {
        let mut b = KernelBuilder::new();
        let alloc = b.smem(DType::F32, &[64], None);
        let (mut kernel, _) = b.finish_in_scope(&[alloc]);
        run(&mut kernel).unwrap();
        assert_eq!(kernel.allocs[alloc].shape.as_slice(), [64]);
        assert_eq!(kernel.regions[kernel.body].ops.len(), 1);
    }
}
