//! Passes over the kernel IR that take an imported kernel to its normal form, in order.
//!
//! * [`canonical`]: one form for what can be said in several: views, loops, references to registers, barrier phases; what is known is folded;
//! * [`loops`]: what moves over the borders of loops' iterations, and the analyses that say whether it may;
//! * [`products`]: products of the tensor cores and what stands between them.
//!
//! What a pass does, and why it may, stands at the head of its file; why it stands where it stands, in [`PASSES`]. Analyses of the IR that other
//! rooms ask, too, are in [`kernel_ir`](crate::kernel_ir).
//!
//! Architecture invariant: this room knows the kernel IR and nothing else.
pub mod canonical;
pub mod loops;
pub mod products;

use crate::error::Result;
use crate::kernel_ir::{Kernel, Stage, facts, legality, verify};
use canonical::*;
use loops::*;
use products::*;

/// A pass over a kernel.
type Pass = fn(&mut Kernel) -> Result<()>;

/// The passes, by the names that dumps and timers use.
pub const PASSES: &[(&str, Pass)] = &[
    ("check_launch", legality::launch::run),
    ("move_transforms", move_transforms::run),
    ("simplify", simplify::run),
    ("own_warp_scratch", own_warp_scratch::run),
    ("check_inputs", check_inputs::run),
    ("recognize_loops", recognize_loops::run),
    ("fuse_sums", fuse_sums::run),
    ("compose_views", compose_views::run),
    ("simplify", simplify::run),
    ("hoist_invariants", hoist_invariants::run),
    ("split_roles", split_roles::run),
    ("recognize_loops", recognize_loops::run),
    ("promote_registers", promote_registers::run),
    ("thread_phases", thread_phases::run),
    ("narrow_integers", narrow_integers::run),
    ("simplify", simplify::run),
    ("hoist_invariants", hoist_invariants::run),
    ("hoist_inputs", hoist_inputs::run),
    ("eliminate_dead_code", eliminate_dead_code::run),
    ("defer_drains", defer_drains::run),
    ("defer_epilogue", defer_epilogue::run),
    ("defer_stores", defer_stores::run),
    ("overlap_products", overlap_products::run),
    ("turn_loops", turn_loops::run),
    ("stage_operands", stage_operands::run),
    ("carry_accumulators", carry_accumulators::run),
    ("compute_facts", compute_facts),
    ("check_registers", check_registers::run),
];

fn compute_facts(kernel: &mut Kernel) -> Result<()> {
    facts::run(kernel);
    Ok(())
}

/// Takes a kernel from [`Stage::Imported`] to [`Stage::Normalized`]. `around` is called before each pass, and after it with the
/// kernel: for dumps and timers.
///
/// In the builds of tests every pass is followed by the verifier.
pub fn run(kernel: &mut Kernel, around: &mut dyn FnMut(&'static str, Option<&Kernel>)) -> Result<()> {
    assert_eq!(kernel.stage, Stage::Imported);
    for (name, pass) in PASSES {
        around(name, None);
        pass(kernel)?;
        around(name, Some(kernel));
        if cfg!(any(test, feature = "test-handlers")) {
            verify::run(kernel).map_err(|e| e.in_pass(name))?;
        }
    }
    around("normalize", None);
    kernel.stage = Stage::Normalized;
    verify::run(kernel).map_err(|e| e.in_pass("normalize"))?;
    around("normalize", Some(kernel));
    Ok(())
}
