//! Loads of scalars that only the first lane needs: what they bring goes into stores of scalars, which that lane makes, and into
//! nothing else. Then it alone loads: no barrier, no broadcast.
use crate::kernel_ir::class::{Class, Pure};
use crate::kernel_ir::visit::{for_each_region, for_each_value};
use crate::kernel_ir::*;
use cranelift_entity::SecondaryMap;

pub fn find(kernel: &Kernel) -> SecondaryMap<Op, bool> {
    let mut finder = Finder {
        kernel,
        needed: SecondaryMap::new(),
        by_leader: SecondaryMap::new(),
    };
    finder.region(kernel.body);
    finder.by_leader
}

struct Finder<'a> {
    kernel: &'a Kernel,
    /// Values that other lanes need.
    needed: SecondaryMap<Value, bool>,
    by_leader: SecondaryMap<Op, bool>,
}

impl Finder<'_> {
    /// Against the program's order: uses come before what they use.
    fn region(&mut self, region: Region) {
        let kernel = self.kernel;
        let data = &kernel.regions[region];
        data.results.iter().for_each(|v| self.needed[*v] = true);
        for &op in data.ops.iter().rev() {
            let kind = &kernel.ops[op].kind;
            let is_needed = kernel.ops[op].results.iter().any(|v| self.needed[*v]);
            let is_scalar = |r: &RefUse| r.shape.is_empty() && r.place == Place::Here;
            // Each warp of a warp region has a first lane of its own.
            let by_first = if data.group == Group::Warp {
                false
            } else if let OpKind::Store { dst, .. } = kind {
                is_scalar(dst)
            } else if let OpKind::Load { src } = kind {
                let alloc = &kernel.allocs[src.alloc];
                let by_leader = is_scalar(src) && !is_needed && !kernel.is_input(src.alloc);
                self.by_leader[op] = by_leader && (alloc.is_smem() || alloc.is_gmem());
                self.by_leader[op]
            } else {
                !is_needed && matches!(kind.class(), Class::Pure(Pure::Elementwise(_) | Pure::Bitcast))
            };
            if !by_first {
                for_each_value(kind, &mut |v| self.needed[v] = true);
            }
            let mut regions = vec![];
            for_each_region(kind, &mut |r| regions.push(r));
            regions.into_iter().for_each(|r| self.region(r));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dtype::DType;
    use crate::kernel_ir::testing::KernelBuilder;

    /// A load of the first element of shared memory; what is done with it. Whether one lane makes it.
    fn by_leader(then: impl FnOnce(&mut KernelBuilder, Alloc, Value)) -> bool {
        let mut b = KernelBuilder::new();
        let s = b.smem(DType::I32, &[4], None);
        let first = b.indexed(s, vec![DimIndex::At(Index::Const(0))]);
        let value = b.load(first);
        then(&mut b, s, value);
        let kernel = b.finish();
        find(&kernel).values().any(|by_leader| *by_leader)
    }

    #[test]
    fn what_a_warp_needs_its_own_first_lane_needs() {
        assert!(!by_leader(|b, s, v| {
            let axis = b.kernel.axes.push(AxisData {
                name: "warp".into(),
                size: 4,
                kind: AxisKind::Warp,
            });
            let body = b.region(Group::Warp, &[], |b, _| {
                let to = b.indexed(s, vec![DimIndex::At(Index::Const(1))]);
                b.store(to, v);
                vec![]
            });
            let inits = vec![];
            b.op(OpKind::WarpMap { axis, inits, body }, &[]);
        }));
    }

    fn add_one(b: &mut KernelBuilder, value: Value) -> Value {
        let one = b.int(DType::I32, 1);
        let kind = OpKind::Binary {
            op: BinaryOp::Add,
            a: value,
            b: one,
        };
        b.op1(kind, DType::I32, &[])
    }

    #[test]
    fn what_only_scalar_stores_need_one_lane_loads() {
        assert!(by_leader(|b, s, v| {
            let (to, more) = (b.indexed(s, vec![DimIndex::At(Index::Const(1))]), add_one(b, v));
            b.store(to, more);
        }));
        assert!(by_leader(|b, s, v| {
            let (to, one) = (b.indexed(s, vec![DimIndex::At(Index::Value(v))]), b.int(DType::I32, 1));
            b.store(to, one);
        }));
    }

    #[test]
    fn what_arrays_or_branches_need_everyone_loads() {
        assert!(!by_leader(|b, s, v| {
            let (to, whole) = (b.indexed(s, vec![DimIndex::At(Index::Const(1))]), b.whole(s));
            b.store(to, v);
            let array = b.op1(OpKind::Broadcast { a: v, dims: vec![] }, DType::I32, &[4]);
            b.store(whole, array);
        }));
        assert!(!by_leader(|b, s, v| {
            let body = b.region(Group::Warpgroup, &[], |b, _| {
                let (to, one) = (b.indexed(s, vec![DimIndex::At(Index::Const(1))]), b.int(DType::I32, 1));
                b.store(to, one);
                vec![]
            });
            b.op(
                OpKind::Switch {
                    selector: v,
                    arms: vec![body],
                },
                &[],
            );
        }));
    }
}
