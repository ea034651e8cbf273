//! How many CTAs are resident at once on the modelled machine.
use super::check::Hooks;
use super::options::Options;
use super::program::Program;
use crate::error::{Error, Result};

/// Registers per thread that a warp starts with: all that its CTA will ever have.
///
/// A kernel that uses `setmaxnreg` starts with what its launch bounds leave: a multiple of 8. What that leaves of the multiprocessor's is nobody's.
pub fn initial_registers<H: Hooks>(program: &Program<H>) -> u32 {
    if !program.reallocates {
        return 0;
    }
    let warps = program.launch.block.div_ceil(32);
    let target = &program.target;
    let all = target.registers / 32 / program.min_ctas_per_sm.unwrap_or(1).max(1);
    (all / warps).min(target.max_thread_registers) / 8 * 8
}

/// Checks a launch against the machine's limits and counts the resident clusters.
pub fn run<H: Hooks>(program: &Program<H>, options: &Options) -> Result<u32> {
    let (launch, target) = (&program.launch, &program.target);
    let bad = |expected: &str, got: String| Err(Error::invalid("the launch").expected(expected).got(got));
    let size = launch.cluster.iter().product::<u32>();
    let most = 128 * target.max_warpgroups;
    if launch.block == 0 || launch.block > most {
        return bad(&format!("1 to {most} threads in a CTA"), launch.block.to_string());
    }
    if launch.smem_bytes > target.max_smem_bytes {
        return bad(
            &format!("at most {} bytes of shared memory", target.max_smem_bytes),
            launch.smem_bytes.to_string(),
        );
    }
    if size == 0 || u64::from(size) > target.max_cluster {
        return bad(
            &format!("1 to {} CTAs in a cluster", target.max_cluster),
            format!("{:?}", launch.cluster),
        );
    }
    if (0..3).any(|i| launch.grid[i] == 0 || !launch.grid[i].is_multiple_of(launch.cluster[i])) {
        return bad(
            "a grid that the cluster divides",
            format!("{:?} and {:?}", launch.grid, launch.cluster),
        );
    }
    if launch.grid[1..].iter().any(|n| u64::from(*n) > target.max_grid_yz) {
        return bad(
            &format!("at most {} CTAs along y and z", target.max_grid_yz),
            format!("{:?}", launch.grid),
        );
    }
    let occupancy = options.occupancy.unwrap_or_else(|| {
        let by_smem = target.blocks_by_smem(launch.smem_bytes.into()) as u32;
        let by_registers = match program.reallocates {
            true => program.min_ctas_per_sm.unwrap_or(1),
            false => target.sm_blocks,
        };
        by_smem.min(target.blocks_by_threads(launch.block)).min(by_registers)
    });
    Ok((options.sms * occupancy / size).max(1))
}
