//! Whether tensor cores or the L2 cache limit a multiplication.
use super::*;

/// Whether tensor cores limit a wgmma of one slot of shared buffers, and not the loads of its operands. `shared_loads`: whether what
/// blocks of a cluster load together counts for each of them as its share.
pub fn is_compute_bound(kernel: &Kernel, op: Op, shared_loads: bool) -> bool {
    let OpKind::Wgmma {
        a: MmaOperand::Smem(a),
        b,
        ..
    } = &kernel.ops[op].kind
    else {
        return true;
    };
    // What all warpgroups of the block multiply with each other.
    let (a_elements, b_elements, k) = (
        slot_elements(kernel, a),
        slot_elements(kernel, b),
        a.shape.last().copied().unwrap_or(1),
    );
    let loaded = |view: &RefUse, elements: u64| match shared_loads {
        true => elements / loaded_by(kernel, view.alloc),
        false => elements,
    };
    let loads = loaded(a, a_elements) + loaded(b, b_elements);
    a_elements * b_elements / k.max(1) >= kernel.target.min_macs_per_element * loads
}

/// Whether tensor cores limit the kernel: it multiplies, and no multiplication waits for its operands.
pub fn tensor_cores_limit(kernel: &Kernel) -> bool {
    let (mut multiplies, mut limited) = (false, false);
    kernel.for_each_op(&mut |op| {
        if matches!(kernel.ops[op].kind, OpKind::Wgmma { .. }) {
            multiplies = true;
            limited |= !is_compute_bound(kernel, op, true);
        }
    });
    multiplies && !limited
}

/// Elements of the slot that a view lies in: of the dimensions that it does not index.
fn slot_elements(kernel: &Kernel, view: &RefUse) -> u64 {
    let shape = &kernel.allocs[view.alloc].shape;
    match view.steps.first() {
        Some(Step::Index(dims)) => {
            let whole = |(n, i): (&u64, &DimIndex)| if matches!(i, DimIndex::At(_)) { 1 } else { *n };
            shape.iter().zip(dims).map(whole).product()
        }
        _ => shape.iter().product(),
    }
}

/// The blocks that load a buffer together, at least.
fn loaded_by(kernel: &Kernel, buffer: Alloc) -> u64 {
    let mut fewest = None;
    kernel.for_each_op(&mut |op| {
        if let OpKind::CopyGmemToSmem {
            dst, collective_axes, ..
        } = &kernel.ops[op].kind
            && dst.alloc == buffer
        {
            let blocks: u64 = collective_axes.iter().map(|axis| kernel.axes[*axis].size).product();
            fewest = Some(fewest.map_or(blocks, |n: u64| n.min(blocks)));
        }
    });
    fewest.unwrap_or(1).max(1)
}
