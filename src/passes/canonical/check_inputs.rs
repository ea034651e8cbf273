//! Refuses kernels that write to their inputs.
use crate::error::{Error, Result};
use crate::kernel_ir::*;

pub fn run(kernel: &mut Kernel) -> Result<()> {
    let mut wrong = None;
    kernel.for_each_op(&mut |op| {
        let data = &kernel.ops[op];
        let effects = effects::of(&data.kind);
        let mut written = effects.iter().filter(|effect| effect.access.writes());
        if let (None, Some(effect)) = (wrong, written.find(|effect| kernel.is_input(effect.alloc))) {
            let mut name = data.kind.name();
            if let OpKind::InlinePtx { code, .. } = &data.kind
                && let Some(called) = &code.called
            {
                name = called;
            }
            wrong = Some((effect.alloc, data.loc, name));
        }
    });
    match wrong {
        None => Ok(()),
        Some((alloc, loc, name)) => Err(Error::invalid(format!(
            "`{name}` to {}, which is an input",
            words::of_alloc(kernel, alloc)
        ))
        .at(loc)
        .expected("a write to an output or to a mutable reference (jax.new_ref)")
        .remedy("make the argument a mutable reference, or write to an output")),
    }
}
