//! The whole kernel: prologue, body, launch.
use super::cx::{Entry, LowerCx};
use super::ids::{GridMap, cluster_zyx};
use super::target::Target;
use super::{barrier, memory};
use crate::error::{Error, Result};
use crate::kernel_ir::{AllocKind, Kernel, ParamBinding};
use crate::layout::Assignment;
use crate::plan::{Allocation, Exchanges};
use crate::ptx::launch::LaunchSpec;
use crate::ptx::ssa::Ssa;
use std::fmt::Write;

/// CUDA's limit along x.
const MAX_GRID_X: u64 = (1 << 31) - 1;
/// Warpgroups in a block of at most 1024 threads.
const MAX_WARPGROUPS: u32 = 8;

/// Lowers a normalised kernel whose layouts and allocations are decided.
///
/// Errors: Unsupported, with the op, for what is not there yet; InvalidKernel for what no machine of the target can launch.
pub fn run(
    kernel: &Kernel,
    assignment: &Assignment,
    plan: &Allocation,
    exchanges: &Exchanges,
    target: &Target,
) -> Result<(Ssa, LaunchSpec)> {
    check_resources(kernel, plan, target)?;
    let mut cx = LowerCx::new(kernel, assignment, plan, exchanges, target);
    bind_parameters(&mut cx)?;
    barrier::prologue(&mut cx)?;
    cx.lower_ops(kernel.body)?;
    let (ssa, entry) = cx.finish();
    let spec = launch_spec(kernel, plan, entry)?;
    Ok((ssa, spec))
}

/// All pointers become entry parameters in the order of their buffers; scalar parameters are loaded.
fn bind_parameters(cx: &mut LowerCx) -> Result<()> {
    let kernel = cx.kernel;
    for (i, p) in kernel.params.iter().enumerate() {
        match p.binding {
            ParamBinding::Scalar(v) => {
                let pointer = cx.buffer_pointer(cx.buffer_of_param(i));
                let s = memory::load_parameter(cx, pointer, p.ty.dtype())?;
                cx.bind_scalar(v, s);
            }
            ParamBinding::Alloc(_) => {}
        }
    }
    Ok(())
}

fn check_resources(kernel: &Kernel, plan: &Allocation, target: &Target) -> Result<()> {
    if kernel.num_warpgroups > MAX_WARPGROUPS {
        return Err(Error::invalid("threads of a kernel")
            .expected(format!(
                "at most {MAX_WARPGROUPS} Pallas threads (CUDA blocks end at 1024 CUDA threads)"
            ))
            .got(kernel.num_warpgroups.to_string()));
    }
    let cluster = kernel.cluster_sizes();
    if cluster.len() > 3 || kernel.cluster_size() > u64::from(target.max_cluster) {
        return Err(Error::invalid("cluster")
            .expected(format!(
                "at most 3 axes and {} blocks on {}",
                target.max_cluster, target.name
            ))
            .got(format!("{cluster:?}")));
    }
    if plan.smem_bytes > target.max_smem_bytes {
        return Err(Error::invalid("shared memory of a block")
            .expected(format!("at most {} bytes on {}", target.max_smem_bytes, target.name))
            .got(format!("{} bytes:\n{}", plan.smem_bytes, smem_table(kernel, plan)))
            .remedy("use smaller blocks or fewer pipeline stages"));
    }
    Ok(())
}

/// One line for each allocation, in the order of their places.
fn smem_table(kernel: &Kernel, plan: &Allocation) -> String {
    let mut rows: Vec<(u32, String)> = kernel
        .allocs
        .iter()
        .filter_map(|(id, a)| {
            let what = match &a.kind {
                AllocKind::Smem { dtype, .. } => format!("{dtype}{:?}", a.shape.as_slice()),
                AllocKind::SmemUnion => format!("union of {} bytes", a.shape.iter().product::<u64>()),
                AllocKind::Barrier { .. } => format!("{} barriers", a.shape.iter().product::<u64>()),
                AllocKind::Gmem { .. }
                | AllocKind::Tmem { .. }
                | AllocKind::TmemUnion
                | AllocKind::Semaphore { .. }
                | AllocKind::Register { .. } => return None,
            };
            Some((plan.smem[id]?, format!("{id} {what} ({})", a.loc)))
        })
        .collect();
    rows.sort();
    let mut out = String::new();
    for (start, what) in rows {
        let _ = writeln!(out, "    at {start:>7}: {what}");
    }
    let scratch = plan.scratch;
    let _ = write!(
        out,
        "    at {:>7}: compiler scratch, {} bytes a warpgroup",
        scratch.start, scratch.bytes
    );
    out
}

fn launch_spec(kernel: &Kernel, plan: &Allocation, entry: Entry) -> Result<LaunchSpec> {
    let [cz, cy, cx] = cluster_zyx(kernel);
    let [x, y, z] = GridMap::of(kernel).clusters();
    let too_large = || {
        Error::invalid("grid")
            .expected(format!("at most {MAX_GRID_X} blocks"))
            .got(format!(
                "{:?} clusters of {} blocks",
                kernel.grid_sizes(),
                kernel.cluster_size()
            ))
    };
    let along_x = x.checked_mul(cx).filter(|&n| n <= MAX_GRID_X).ok_or_else(too_large)?;
    Ok(LaunchSpec {
        entry: entry_name(&kernel.name),
        grid: [along_x as u32, (y * cy) as u32, (z * cz) as u32],
        cluster: [cx as u32, cy as u32, cz as u32],
        block: 128 * kernel.num_warpgroups,
        smem_bytes: plan.smem_bytes,
        params: entry.params,
        scratch: entry.scratch,
        uses_programmatic_launch: entry.uses_programmatic_launch,
    })
}

/// A PTX identifier from a user's name.
fn entry_name(name: &str) -> String {
    let clean = |c: char| if c.is_ascii_alphanumeric() || c == '_' { c } else { '_' };
    format!("smalt_{}", name.chars().map(clean).collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel_ir::testing::KernelBuilder;

    #[test]
    fn what_cannot_be_launched_is_refused() {
        let kernel = KernelBuilder::new().warpgroups(9).finish();
        let (assignment, target) = (Assignment::default(), Target::sm_90a());
        let (plan, exchanges) = (Allocation::default(), Exchanges::default());
        let error = run(&kernel, &assignment, &plan, &exchanges, &target).unwrap_err();
        assert!(error.to_string().contains("at most 8 Pallas threads"), "{error}");

        let kernel = KernelBuilder::new().finish();
        let plan = Allocation {
            smem_bytes: 300_000,
            ..Allocation::default()
        };
        let error = run(&kernel, &assignment, &plan, &exchanges, &target).unwrap_err();
        assert!(error.to_string().contains("at most 232448 bytes"), "{error}");
        assert!(error.to_string().contains("compiler scratch"), "{error}");
    }

    #[test]
    fn an_empty_kernel_has_a_launch() {
        let kernel = KernelBuilder::new()
            .grid(&[100_000, 2])
            .cluster(&[2])
            .warpgroups(2)
            .finish();
        let (_, spec) = run(
            &kernel,
            &Assignment::default(),
            &Allocation::default(),
            &Exchanges::default(),
            &Target::sm_90a(),
        )
        .unwrap();
        assert_eq!(spec.grid, [400_000, 1, 1]);
        assert_eq!(spec.cluster, [2, 1, 1]);
        assert_eq!(spec.block, 256);
        assert_eq!(spec.entry, "smalt_test");
    }
}
