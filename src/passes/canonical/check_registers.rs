//! Refuses `set_max_registers` that no block can have: a warpgroup would hang waiting for registers that others hold.
use crate::error::{Error, Loc, Result};
use crate::kernel_ir::class::Control;
use crate::kernel_ir::executor::{Executor, arm_taken};
use crate::kernel_ir::rewrite::regions_of;
use crate::kernel_ir::*;

pub fn run(kernel: &mut Kernel) -> Result<()> {
    let pool = pool(kernel, 1);
    let least = *kernel.target.register_counts.start();
    let counts = counts(kernel);
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
                    "at most {pool} per thread, summed over the warpgroups, which a block of {} begins with",
                    kernel.num_warpgroups
                ))
                .got(format!("{} = {sum}", each.join(" + ")))
                .remedy(
                    "let the warpgroups that only issue copies decrease to 24 or 40, and increase the others by less",
                ))
        }
        _ => Ok(()),
    }
}

/// How many blocks with so much shared memory a multiprocessor has registers for, when each warpgroup has what it sets; None: none ever
/// sets any. One, where some do not, or only under a condition that data decide.
pub fn resident_blocks(kernel: &Kernel, smem_bytes: u32) -> Option<u32> {
    if !kernel.sets_registers() {
        return None;
    }
    let set: Option<Vec<u32>> = counts(kernel).iter().map(|c| c.map(|(n, _)| n)).collect();
    let by_registers = set.map_or(1, |set| {
        let sum = set.iter().sum::<u32>().max(1);
        let most = kernel.target.registers / 128 / sum;
        (1..=most)
            .rev()
            .find(|blocks| sum <= pool(kernel, *blocks))
            .unwrap_or(1)
    });
    let by_smem = kernel.target.blocks_by_smem(smem_bytes.into());
    Some(by_registers.min(by_smem.try_into().unwrap_or(u32::MAX)).max(1))
}

/// What a block begins with where so many share a multiprocessor, counted per thread of a warpgroup: there are no others for it
/// (PTX ISA 9.7.19.5, the per-CTA pool). Threads begin with a multiple of 8.
fn pool(kernel: &Kernel, blocks: u32) -> u32 {
    let warpgroups = kernel.num_warpgroups.max(1);
    (kernel.target.registers / (128 * warpgroups * blocks)).min(255) / 8 * 8 * warpgroups
}

/// What each warpgroup sets last, and where.
fn counts(kernel: &Kernel) -> Vec<Option<(u32, Loc)>> {
    let of = |warpgroup| {
        let mut last = None;
        follow(kernel, kernel.body, warpgroup, &mut last);
        last
    };
    (0..kernel.num_warpgroups).map(of).collect()
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
