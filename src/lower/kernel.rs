//! The whole kernel: prologue, body, launch.
use super::cx::{Entry, LowerCx};
use super::debug_print::Prints;
use super::exchange::Mesh;
use super::ids::{GridMap, cluster_zyx};
use super::profile::Ranges;
use super::{barrier, exchange, give_up, memory, profile, tensor_memory};
use crate::error::Result;
use crate::kernel_ir::{Kernel, ParamBinding};
use crate::layout::Assignment;
use crate::plan::{Accesses, Allocation, Exchanges};
use crate::ptx::build::within_limit;
use crate::ptx::launch::LaunchSpec;
use crate::ptx::ssa::Ssa;

/// A kernel as a program, and what is needed to launch it and to read what it leaves.
pub struct Lowered {
    pub ssa: Ssa,
    pub launch: LaunchSpec,
    pub prints: Prints,
    /// Of its profile, if it has one.
    pub ranges: Option<Ranges>,
}

/// Lowers a normalised kernel whose layouts, allocations and accesses are decided.
///
/// What it prints is for the reader of its records. Errors: too much code, or more values at once than a thread holds; else only Internal.
pub fn run(
    kernel: &Kernel,
    assignment: &Assignment,
    plan: &Allocation,
    exchanges: &Exchanges,
    accesses: &Accesses,
) -> Result<Lowered> {
    let mut cx = LowerCx::new(kernel, assignment, plan, exchanges, accesses);
    cx.lengths.check(kernel)?;
    within_limit(|| whole(&mut cx)).unwrap_or_else(|| Err(cx.too_long()))?;
    let profile = profile::of(&cx);
    let printer = (!cx.entry.prints.is_empty()).then(|| cx.printer_buffer());
    let gives_up = cx.limit.map(|limit| limit.buffer);
    let (ssa, mut entry, mesh) = cx.finish()?;
    let prints = Prints::of(kernel, std::mem::take(&mut entry.prints));
    let ranges = Ranges::of(kernel, std::mem::take(&mut entry.ranges));
    let launch = LaunchSpec {
        printer,
        profile,
        gives_up,
        ..launch_spec(kernel, plan, entry, mesh)
    };
    Ok(Lowered {
        ssa,
        launch,
        prints,
        ranges,
    })
}

/// The program from its first instruction to its last.
fn whole(cx: &mut LowerCx) -> Result<()> {
    exchange::find_use(cx)?;
    profile::begin(cx)?;
    bind_parameters(cx)?;
    give_up::begin(cx);
    exchange::prologue(cx)?;
    barrier::prologue(cx)?;
    tensor_memory::prologue(cx);
    give_up::begin_body(cx);
    profile::begin_body(cx)?;
    cx.lower_ops(cx.kernel.body)?;
    tensor_memory::epilogue(cx);
    profile::end(cx);
    give_up::end(cx);
    Ok(())
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

fn launch_spec(kernel: &Kernel, plan: &Allocation, entry: Entry, mesh: Mesh) -> LaunchSpec {
    let [cz, cy, cx] = cluster_zyx(kernel);
    let [x, y, z] = GridMap::of(kernel).clusters();
    LaunchSpec {
        entry: entry_name(&kernel.name),
        grid: [(x * cx) as u32, (y * cy) as u32, (z * cz) as u32],
        cluster: [cx as u32, cy as u32, cz as u32],
        block: 128 * kernel.num_warpgroups,
        smem_bytes: plan.smem_bytes,
        params: entry.params,
        scratch: entry.scratch,
        map_templates: mesh.maps,
        uses_programmatic_launch: entry.uses_programmatic_launch,
        mesh: mesh.launch,
        printer: None,
        profile: None,
        gives_up: None,
    }
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
    fn an_empty_kernel_has_a_launch() {
        let kernel = KernelBuilder::new()
            .grid(&[100_000, 2])
            .cluster(&[2])
            .warpgroups(2)
            .finish();
        let spec = run(
            &kernel,
            &Assignment::default(),
            &Allocation::default(),
            &Exchanges::default(),
            &Accesses::default(),
        )
        .unwrap()
        .launch;
        assert_eq!(spec.grid, [400_000, 1, 1]);
        assert_eq!(spec.cluster, [2, 1, 1]);
        assert_eq!(spec.block, 256);
        assert_eq!(spec.entry, "smalt_test");
    }
}
