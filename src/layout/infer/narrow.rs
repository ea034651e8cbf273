//! Narrow numbers that are loaded from shared memory and converted to 16-bit ones: how a thread has them, so that it loads whole words.
use super::group_of;
use super::smem::{Smem, tiled_orientation};
use crate::error::Result;
use crate::kernel_ir::*;
use crate::layout::derivation::with_runs;
use crate::layout::register_layout::RegisterLayout;
use crate::layout::signature;

/// A value, its layout, and why.
type Preference = (Value, RegisterLayout, &'static str);

/// Loads of numbers that are converted, and stored to swizzled rows of 16-bit ones: as many of a row at once as there are in 16 bytes of what is
/// stored.
pub(super) fn stored(kernel: &Kernel, smem: &Smem, value: Value, dst: &RefUse) -> Vec<Preference> {
    let is_wide = kernel.ty(value).dtype().bits() == 16;
    if !is_wide || tiled_orientation(kernel, smem, dst) != Some(false) {
        return vec![];
    }
    let loads = loads(kernel, value).into_iter().filter_map(|(v, _)| {
        let (shape, group) = (kernel.ty(v).shape(), group_of(kernel.values[v].group));
        let per_thread = num_elements(shape) / u64::from(group.threads());
        let layout = per_thread
            .is_multiple_of(8)
            .then(|| RegisterLayout::strided(shape, 8, group));
        Some((v, layout?, "16 bytes of a row when it is stored"))
    });
    loads.collect()
}

/// What is converted to the left operand of a `wgmma`, in another shape or not: neighbours in memory are neighbours in a thread as long as they are
/// computed with, and change places at the end.
pub(super) fn multiplied(kernel: &Kernel, operand: Value) -> Result<Option<Preference>> {
    if kernel.ty(operand).dtype().bits() != 16 {
        return Ok(None);
    }
    let mut layout = signature::wgmma_left(kernel, operand)?;
    let mut v = operand;
    while let Some(op) = kernel.def_op(v)
        && let OpKind::Transpose { a, .. } | OpKind::Reshape { a } = kernel.ops[op].kind
    {
        let how = signature::of(kernel, op)?.derived;
        let Some(before) = how.and_then(|how| how.backward(&layout, kernel.ty(a).shape())) else {
            return Ok(None);
        };
        (layout, v) = (before, a);
    }
    let runs = loads(kernel, v)
        .into_iter()
        .find_map(|(_, src)| with_runs(&layout, signature::contiguous(kernel, src)));
    Ok(runs.map(|layout| (v, layout, "neighbours in memory are neighbours in a thread")))
}

/// The loads from shared memory of narrower numbers that a value is computed from, element by element.
fn loads(kernel: &Kernel, value: Value) -> Vec<(Value, &RefUse)> {
    let (mut work, mut found) = (vec![value], vec![]);
    while let Some(v) = work.pop() {
        let Some(op) = kernel.def_op(v) else { continue };
        let (kind, ty) = (&kernel.ops[op].kind, kernel.ty(v));
        if let OpKind::Load { src } = kind {
            if kernel.allocs[src.alloc].is_smem() && ty.dtype().bits() < 16 && !ty.is_scalar() {
                found.push((v, src));
            }
        } else if let OpKind::Convert { .. } | OpKind::Binary { .. } = kind {
            visit::for_each_value(kind, &mut |a| {
                if kernel.ty(a).shape() == ty.shape() {
                    work.push(a);
                }
            });
        }
    }
    found
}
