//! What a machine can launch.
use crate::error::{Error, Loc, Result};
use crate::kernel_ir::Kernel;
use crate::target::Features;

/// The pass: threads, clusters and grids. Before all others, which count on numbers of that size.
pub fn run(kernel: &mut Kernel) -> Result<()> {
    check(kernel).map_err(|e| e.at(Loc::CALL_SITE))
}

fn check(kernel: &Kernel) -> Result<()> {
    let target = &kernel.target;
    if kernel.num_warpgroups > target.max_warpgroups {
        return Err(Error::invalid("too many Pallas threads (warpgroups) in a block")
            .expected(format!(
                "num_threads <= {} (CUDA has {} threads a block, 128 each)",
                target.max_warpgroups,
                128 * target.max_warpgroups
            ))
            .got(format!("num_threads = {}", kernel.num_warpgroups))
            .remedy("use fewer threads, each with larger tiles"));
    }
    let product = |sizes: &[u64]| sizes.iter().try_fold(1u64, |n, size| n.checked_mul(*size));
    let (cluster, grid) = (kernel.cluster_sizes(), kernel.grid_sizes());
    if cluster.len() > 3 {
        return Err(Error::unsupported("a cluster of more than 3 axes")
            .remedy("make one axis of several, and divide its index"));
    }
    if cluster.iter().any(|n| *n > 1) {
        target.require(Features::CLUSTERS)?;
    }
    let blocks = product(&cluster).filter(|n| (1..=target.max_cluster).contains(n));
    let Some(blocks) = blocks else {
        return Err(Error::invalid("the cluster's size")
            .expected(format!("1 to {} blocks (8 are portable)", target.max_cluster))
            .got(format!("{cluster:?}"))
            .remedy("use a smaller cluster and a larger grid"));
    };
    if grid.contains(&0) {
        return Err(Error::invalid("a grid without blocks")
            .expected("every grid axis of at least one block")
            .got(format!("{grid:?}"))
            .remedy("do not call the kernel for an empty array (or an empty batch under vmap)"));
    }
    let blocks = product(&grid).and_then(|n| n.checked_mul(blocks));
    if blocks.is_none_or(|n| n > target.max_grid) {
        let of = match kernel.cluster.is_empty() {
            true => String::new(),
            false => format!(" clusters of {cluster:?}"),
        };
        return Err(Error::invalid("the grid's size")
            .expected("fewer than 2^31 blocks")
            .got(format!("{grid:?}{of}"))
            .remedy("give each block more work: a loop over part of the grid"));
    }
    Ok(())
}

/// What `set_max_registers` can ask for.
pub fn register_count(kernel: &Kernel, n: u32) -> Result<()> {
    let counts = &kernel.target.register_counts;
    if counts.contains(&n) && n % 8 == 0 {
        return Ok(());
    }
    Err(Error::invalid("`set_max_registers`")
        .expected(format!(
            "a multiple of 8 between {} and {}",
            counts.start(),
            counts.end()
        ))
        .got(n.to_string())
        .remedy("take 24 or 40 for a warpgroup that only issues copies, 232 or 240 for two that compute"))
}

/// Devices that a kernel can talk to: every block looks for each of them, and has a table of them in shared memory.
const MOST_PEERS: u32 = 1024;

/// How many devices a kernel talks to.
pub fn peers(kernel: &Kernel) -> Result<()> {
    if kernel.devices() <= MOST_PEERS || !kernel.talks() {
        return Ok(());
    }
    Err(Error::unsupported("a kernel that talks to so many devices")
        .at(Loc::CALL_SITE)
        .expected(format!("a mesh of at most {MOST_PEERS}"))
        .got(kernel.devices().to_string())
        .remedy("make the mesh of the devices that reach each other's memory, and use XLA's collectives beyond"))
}
