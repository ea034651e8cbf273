//! Values that are in memory still: loads behind which nothing was stored there, and no other thread was signalled that it may be.
use super::motion::releases_nothing;
use super::*;
use cranelift_entity::SecondaryMap;

/// The loads of shared and device memory in a region whose elements are where they were, up to the op at hand.
///
/// What else would overwrite them must first be signalled that they were read. A wait signals nothing.
#[derive(Default)]
pub struct Loads(Vec<Op>);

impl Loads {
    /// Goes past an op.
    pub fn pass(&mut self, kernel: &Kernel, op: Op) {
        let kind = &kernel.ops[op].kind;
        if let OpKind::Load { src } = kind {
            let data = &kernel.allocs[src.alloc];
            if src.place == Place::Here && (data.is_smem() || data.is_gmem()) {
                self.0.push(op);
            }
        } else if let OpKind::Store { dst, .. } = kind {
            self.0.retain(|load| is_disjoint(kernel, dst, *load));
        } else if !releases_nothing(kind) {
            self.0.clear();
        }
    }

    pub fn holds(&self, load: Op) -> bool {
        self.0.contains(&load)
    }
}

fn is_disjoint(kernel: &Kernel, dst: &RefUse, load: Op) -> bool {
    let OpKind::Load { src } = &kernel.ops[load].kind else {
        return false;
    };
    dst.place == Place::Here && !effects::may_share(kernel, dst.alloc, src.alloc)
}

/// How a value comes from a load: the ops from the load on, and the load's dimension that is the value's last one.
pub struct Chain {
    ops: Vec<Op>,
    dim: usize,
}

impl Chain {
    /// Of a value whose only use is at hand: converted and transposed, and nothing else.
    pub fn of(kernel: &Kernel, value: Value, loads: &Loads, uses: &SecondaryMap<Value, u32>) -> Option<Chain> {
        let mut dim = kernel.ty(value).shape().len() - 1;
        let (mut at, mut ops) = (value, vec![]);
        loop {
            let op = kernel.values[at].def.expand()?;
            if uses[at] != 1 {
                return None;
            }
            ops.push(op);
            if let OpKind::Transpose { a, permutation } = &kernel.ops[op].kind {
                (at, dim) = (*a, permutation[dim] as usize);
            } else if let OpKind::Convert { a } = kernel.ops[op].kind {
                at = a;
            } else if let OpKind::Load { .. } = kernel.ops[op].kind {
                ops.reverse();
                return loads.holds(op).then_some(Chain { ops, dim });
            } else {
                return None;
            }
        }
    }

    /// From the load on.
    pub fn ops(&self) -> &[Op] {
        &self.ops
    }

    /// The load's dimension that is the value's last one.
    pub fn dim(&self) -> usize {
        self.dim
    }

    /// What is loaded.
    pub fn source<'a>(&self, kernel: &'a Kernel) -> &'a RefUse {
        let OpKind::Load { src } = &kernel.ops[self.ops[0]].kind else {
            unreachable!("a chain begins with a load");
        };
        src
    }

    /// The value's part of `size` indices of its last dimension from `start` on, loaded at the end of `region`.
    pub fn part(&self, kernel: &mut Kernel, region: Region, start: u64, size: u64) -> Value {
        let loaded = self.load(kernel, region, start, size);
        self.convert(kernel, region, loaded, size)
    }

    /// What [`Chain::part`] begins with.
    pub fn load(&self, kernel: &mut Kernel, region: Region, start: u64, size: u64) -> Value {
        let src = self.source(kernel).clone().part(self.dim, start, size);
        let (ty, loc) = (
            Chain::part_type(kernel, self.ops[0], self.dim, size),
            kernel.ops[self.ops[0]].loc,
        );
        kernel.append1(region, OpKind::Load { src }, ty, loc)
    }

    /// What is left of [`Chain::part`]: from what was loaded to the value's part.
    pub fn convert(&self, kernel: &mut Kernel, region: Region, loaded: Value, size: u64) -> Value {
        let (mut made, mut dim) = (loaded, self.dim);
        for &op in &self.ops[1..] {
            let OpData { mut kind, loc, .. } = kernel.ops[op].clone();
            if let OpKind::Transpose { permutation, .. } = &kind {
                dim = permutation.iter().position(|p| *p as usize == dim).unwrap_or(dim);
            }
            visit::map_values(&mut kind, &mut |v| *v = made);
            let ty = Chain::part_type(kernel, op, dim, size);
            made = kernel.append1(region, kind, ty, loc);
        }
        made
    }

    /// The type of an op's result with `size` indices of a dimension.
    fn part_type(kernel: &Kernel, op: Op, dim: usize, size: u64) -> Type {
        let ty = kernel.ty(kernel.ops[op].results[0]);
        let mut shape = Shape::from_slice(ty.shape());
        shape[dim] = size;
        Type::of(ty.dtype(), shape)
    }
}
