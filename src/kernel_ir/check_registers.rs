//! Refuses `set_max_registers` that no block can have: a warpgroup would wait for ever for registers that others hold.
use super::class::Control;
use super::executor::{Executor, arm_taken};
use super::rewrite::regions_of;
use super::*;
use crate::error::{Error, Loc, Result};

pub fn run(kernel: &mut Kernel) -> Result<()> {
    // Of a block, counted per thread of a warpgroup (PTX ISA 9.7.19.5, the per-CTA pool).
    let pool = kernel.target.registers / 128;
    let least = *kernel.target.register_counts.start();
    let mut counts = vec![];
    for warpgroup in 0..kernel.num_warpgroups {
        let mut last = None;
        follow(kernel, kernel.body, warpgroup, &mut last);
        counts.push(last);
    }
    // What is no count of registers is refused later.
    let sum: u64 = counts.iter().map(|c| u64::from(c.map_or(least, |(n, _)| n))).sum();
    let largest = counts.iter().flatten().max_by_key(|(n, _)| *n);
    match largest {
        Some((_, loc)) if sum > u64::from(pool) => {
            let each: Vec<String> = counts
                .iter()
                .map(|c| c.map_or_else(|| format!("at least {least}"), |(n, _)| n.to_string()))
                .collect();
            Err(Error::invalid("set_max_registers: more registers than a block has")
                .at(*loc)
                .expected(format!(
                    "at most {pool} per thread, summed over the warpgroups ({} / 128)",
                    kernel.target.registers
                ))
                .got(format!("{} = {sum}", each.join(" + ")))
                .remedy(
                    "let the warpgroups that only issue copies decrease to 24 or 40, and increase the others by less",
                ))
        }
        _ => Ok(()),
    }
}

/// The count that a warpgroup has set last, in program order; arms that it may or may not take are left out.
fn follow(kernel: &Kernel, region: Region, warpgroup: u32, last: &mut Option<(u32, Loc)>) {
    for &op in &kernel.regions[region].ops {
        let data = &kernel.ops[op];
        if let OpKind::SetMaxRegisters { n, .. } = data.kind {
            *last = Some((n, data.loc));
        }
        if let Some(Control::Switch { .. }) = data.kind.control() {
            if let Some(arm) = arm_taken(kernel, &data.kind, Executor::warpgroup(warpgroup)) {
                follow(kernel, arm, warpgroup, last);
            }
        } else {
            for inner in regions_of(kernel, op) {
                follow(kernel, inner, warpgroup, last);
            }
        }
    }
}
