//! Checks that every op finds its operands in the layouts that its signature needs, and leaves its results in those that it gives.
//!
//! What passes here, lowering takes as it lies: a layout that an instruction would read wrongly (a wgmma fragment in rows) cannot get
//! there. It does not depend on how layouts were chosen or where conversions were inserted.
use super::signature::{self, Layouts, Need};
use crate::error::{Error, Result};
use crate::kernel_ir::visit::for_each_value;
use crate::kernel_ir::{Kernel, Op, OpKind, Value};

/// Errors: internal, naming the first op whose signature is not satisfied, the value, what it has and what was expected.
pub fn run(kernel: &Kernel, layouts: &Layouts) -> Result<()> {
    let mut broken = None;
    kernel.for_each_op(&mut |op| {
        if broken.is_none() {
            broken = check(kernel, layouts, op).err();
        }
    });
    broken.map_or(Ok(()), Err)
}

fn check(kernel: &Kernel, layouts: &Layouts, op: Op) -> Result<()> {
    let data = &kernel.ops[op];
    let sig = signature::of(kernel, op).map_err(|e| e.at(data.loc))?;
    let show = |v: Value| layouts[v].as_ref().map_or("none".to_string(), |l| l.to_string());
    let wrong = |what: &str, v: Value, wanted: String| {
        Err(
            Error::internal(format!("the layout of {what} {v} of `{}`", data.kind.name()))
                .at(data.loc)
                .expected(wanted)
                .got(show(v)),
        )
    };
    // An empty array has no registers: any layout is right.
    let is_empty = |v: &Value| kernel.ty(*v).shape().contains(&0);
    let require = |what: &str, v: Value, need: &Need| {
        if kernel.ty(v).is_scalar() || is_empty(&v) {
            return Ok(());
        }
        if layouts[v].is_none() {
            return wrong(what, v, "one".into());
        }
        match need.unmet(kernel, layouts, v) {
            Some(wanted) => wrong(what, v, wanted.to_string()),
            None => Ok(()),
        }
    };
    let mut operands = vec![];
    for_each_value(&data.kind, &mut |v| operands.push(v));
    for (v, need) in operands.iter().zip(&sig.operands) {
        require("operand", *v, need)?;
    }
    for border in &sig.regions {
        let region = &kernel.regions[border.region];
        for (v, need) in region.results.iter().zip(&border.results) {
            require("what a region yields,", *v, need)?;
        }
        for (v, gives) in region.params.iter().zip(&border.params) {
            if let Some(natural) = gives
                .of_param(layouts)
                .filter(|_| !kernel.ty(*v).is_scalar() && !is_empty(v))
                && layouts[*v].as_ref() != Some(&natural)
            {
                return wrong("parameter", *v, natural.to_string());
            }
        }
    }
    for (k, v) in data.results.iter().enumerate() {
        if kernel.ty(*v).is_scalar() || is_empty(v) || operands.iter().any(is_empty) {
            continue;
        }
        let Some(own) = &layouts[*v] else {
            return wrong("result", *v, "one".into());
        };
        if let Some(natural) = sig.natural(kernel, op, layouts, &operands, k)
            && natural != *own
            && !sig.moves
        {
            return wrong("result", *v, natural.to_string());
        }
    }
    if let OpKind::Relayout { a } = &data.kind
        && layouts[*a].as_ref().map(|l| l.shape()) != layouts[data.results[0]].as_ref().map(|l| l.shape())
    {
        return wrong("operand", *a, show(data.results[0]));
    }
    Ok(())
}
