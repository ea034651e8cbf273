//! Views of references to registers: `run_state`'s references and accumulators.
use crate::error::{Error, Result};
use crate::kernel_ir::{DimIndex, Kernel, Place, RefUse, Step};

/// A view that can be read: what array operations can make of the whole.
pub fn part(kernel: &Kernel, view: &RefUse) -> Result<()> {
    let lacks = |what: &str| {
        Err(Error::unsupported(format!("{what} of a reference to registers"))
            .expected("slices, indices, transposes and reshapes")
            .remedy("load the whole (ref[...]) and compute with the array"))
    };
    if view.place != Place::Here {
        return lacks("another block's copy");
    }
    let mut dtype = kernel.allocs[view.alloc].elem().dtype();
    for step in &view.steps {
        match step {
            Step::Index(dims) => {
                if dims.iter().any(|d| matches!(d, DimIndex::Gather(_))) {
                    return lacks("an array of indices");
                }
                if dims.iter().any(|d| matches!(d, DimIndex::Window { .. })) {
                    return lacks("a slice that reaches outside");
                }
            }
            Step::Transpose(_) | Step::Reshape(_) => {}
            Step::Bitcast { dtype: to, .. } if dtype.is_some_and(|from| from.bits() == to.bits()) => dtype = Some(*to),
            Step::Bitcast { .. } => return lacks("a bitcast to a type of another width"),
            Step::Im2Col { .. } | Step::ExpandLeadingBatch(_) => return lacks("such a view"),
            Step::ExtractAlias { .. } | Step::Unswizzle(_) | Step::Untile(_) => return lacks("a transform"),
        }
    }
    Ok(())
}

/// A view that can be stored to.
pub fn stored_part(kernel: &Kernel, view: &RefUse) -> Result<()> {
    part(kernel, view)?;
    for step in &view.steps {
        if let Step::Index(dims) = step
            && let Some(d) = dims
                .iter()
                .position(|d| matches!(d, DimIndex::Slice { size, stride, .. } if *stride > 1 && *size > 1))
        {
            return Err(Error::unsupported("a store with a step to a reference to registers")
                .expected("slices without a step")
                .got(format!("a step in dimension {d}"))
                .remedy("load the whole, and choose with jnp.where"));
        }
    }
    Ok(())
}
