//! What ops move between memories and registers, for reports: read from the plans, which it changes nothing of.
use super::accesses::Accesses;
use crate::dtype::DType;
use crate::error::Loc;
use crate::kernel_ir::{Kernel, Op, RefUse, Shape, visit};
use crate::layout::tma::CopyPlan;
use crate::layout::transfer::{Addressing, TransferPlan};

/// Between what something moves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Place {
    Registers,
    Shared,
    Global,
    /// The L2 cache.
    Cache,
    TensorCore,
}

impl Place {
    pub const fn name(self) -> &'static str {
        match self {
            Place::Registers => "registers",
            Place::Shared => "SMEM",
            Place::Global => "GMEM",
            Place::Cache => "L2",
            Place::TensorCore => "tensor core",
        }
    }
}

/// What one op moves each time that it runs.
#[derive(Clone, Debug)]
pub struct Moves {
    pub op: &'static str,
    pub loc: Loc,
    pub from: Place,
    pub to: Place,
    /// The part of the buffer.
    pub dtype: DType,
    pub shape: Shape,
    pub bytes: u64,
    /// Of each thread; of a copy, its bulk instructions; of the tensor core none of its own.
    pub instructions: u32,
    /// Shared memory: wavefronts of the worst access over the fewest possible. `None`: not known (elements one by one).
    pub conflicts: Option<u32>,
    /// Global memory: sectors of the worst access over the fewest possible, in percent. `None` as above.
    pub sector_percent: Option<u32>,
}

/// What all ops move that move arrays, in the kernel's order. Single elements, and those of arrays of indices, are not among it.
pub fn run(kernel: &Kernel, accesses: &Accesses) -> Vec<Moves> {
    let mut out = vec![];
    kernel.for_each_op(&mut |op| of_op(kernel, accesses, op, &mut out));
    out
}

fn of_op(kernel: &Kernel, accesses: &Accesses, op: Op, out: &mut Vec<Moves>) {
    let data = &kernel.ops[op];
    let (transfer, copy) = (accesses.transfers.get(&op), accesses.copies.get(&op));
    let multiplies = accesses.operands.contains_key(&op);
    if transfer.is_none() && copy.is_none() && !multiplies {
        return;
    }
    let mut refs: Vec<RefUse> = vec![];
    visit::for_each_ref(&data.kind, &mut |r| refs.extend(r.dtype().is_some().then(|| r.clone())));
    let one = |r: &RefUse, from, to| {
        let dtype = r.dtype()?;
        let elements = r.shape.iter().product();
        Some(Moves {
            op: data.kind.name(),
            loc: data.loc,
            from,
            to,
            dtype,
            shape: r.shape.clone(),
            bytes: dtype.bytes(elements)?,
            instructions: 0,
            conflicts: None,
            sector_percent: None,
        })
    };
    if let (Some(transfer), Some(r)) = (transfer, refs.first()) {
        let shared = kernel.allocs[r.alloc].is_smem();
        let memory = if shared { Place::Shared } else { Place::Global };
        let planned = |plan: &TransferPlan, from, to| {
            let known = matches!(plan.addressing, Addressing::Affine(_));
            let row = one(r, from, to)?;
            Some(Moves {
                instructions: plan.accesses.len() as u32,
                conflicts: (known && shared).then_some(plan.conflicts),
                sector_percent: (known && !shared).then_some(plan.sector_percent),
                ..row
            })
        };
        out.extend(
            transfer
                .load
                .iter()
                .filter_map(|p| planned(p, memory, Place::Registers)),
        );
        out.extend(
            transfer
                .store
                .iter()
                .filter_map(|p| planned(p, Place::Registers, memory)),
        );
    }
    if let (Some(Some(copy)), Some(first)) = (copy, refs.first()) {
        let is_shared = |r: &RefUse| kernel.allocs[r.alloc].is_smem();
        let (from, to) = match (is_shared(first), refs.iter().any(is_shared)) {
            (true, _) => (Place::Shared, Place::Global),
            (false, true) => (Place::Global, Place::Shared),
            (false, false) => (Place::Global, Place::Cache),
        };
        let instructions = match &copy.plan {
            CopyPlan::Tensor(plan) => plan.pieces.len() as u32,
            CopyPlan::Bulk(_) => 1,
        };
        out.extend(one(first, from, to).map(|row| Moves {
            bytes: copy.bytes.into(),
            instructions,
            ..row
        }));
    }
    if multiplies {
        let shared = refs.iter().filter(|r| kernel.allocs[r.alloc].is_smem());
        out.extend(shared.filter_map(|r| one(r, Place::Shared, Place::TensorCore)));
    }
}
