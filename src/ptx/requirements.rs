//! Whether a program's machine has what its instructions need: the user's error where it has not.
use super::flat::Flat;
use crate::error::{Error, Result};
use crate::target::Target;

/// The machine, if it has what each instruction needs.
pub fn check(flat: &Flat) -> Result<Target> {
    let target = Target::from_name(&flat.target).ok_or_else(|| {
        Error::unsupported(format!("the target {}", flat.target))
            .expected(Target::names())
            .remedy("name one of these in .target")
    })?;
    for fi in flat.blocks.iter().flat_map(|block| &block.insts) {
        target.require(fi.inst.requires().features).map_err(|e| e.at(fi.loc))?;
    }
    Ok(target)
}
