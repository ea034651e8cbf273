//! Passes over the kernel IR that take an imported kernel to its normal form, in order.
//!
//! * [`canonical`]: canonical forms of views, loops, references to registers, barrier phases; constants are folded;
//! * [`loops`]: what moves over the borders of loops' iterations, and the analyses that allow it;
//! * [`products`]: products of the tensor cores and what stands between them;
//! * [`rewriter`]: the driver of those that rewrite loops and straight runs.
//!
//! What a pass does, and why it may, stands at the head of its file; why it stands where it stands, in [`PHASES`]. Analyses of the IR that other
//! rooms use, too, are in [`kernel_ir`](crate::kernel_ir).
//!
//! Architecture invariant: this room depends on the kernel IR alone.
pub mod canonical;
pub mod loops;
pub mod products;
pub mod rewriter;

use crate::error::Result;
use crate::kernel_ir::{Kernel, Stage, facts, legality, verify};
use canonical::*;
use loops::*;
use products::*;

/// A pass over a kernel.
pub type Pass = fn(&mut Kernel) -> Result<()>;

/// Passes that may change places with each other, and why they stand behind the phases before. A test permutes them, and exchanges phases.
pub struct Phase {
    pub why: &'static str,
    /// By the names that dumps and timers use.
    pub passes: &'static [(&'static str, Pass)],
}

/// The passes, in order.
pub const PHASES: &[Phase] = &[
    Phase {
        why: "what the launch asks for is refused before anything is done for it; allocations have their logical shapes, and branches that are \
              never taken are gone before anything in them is refused",
        passes: &[
            ("check_launch", legality::launch::run),
            ("adapt_to_machine", adapt_to_machine::run),
            ("move_transforms", move_transforms::run),
            ("simplify", simplify::run),
        ],
    },
    Phase {
        why: "memory, loops, sums and views each get their form: none looks at another's subject",
        passes: &[
            ("own_warp_scratch", own_warp_scratch::run),
            ("check_inputs", check_inputs::run),
            ("recognize_loops", recognize_loops::run),
            ("fuse_sums", fuse_sums::run),
            ("compose_views", compose_views::run),
        ],
    },
    Phase {
        why: "index arithmetic that loops and views now have in the open is folded",
        passes: &[("simplify", simplify::run)],
    },
    Phase {
        why: "what does not change in a loop is in front of it, so that a branch on it can be taken out",
        passes: &[("hoist_invariants", hoist_invariants::run)],
    },
    Phase {
        why: "each role has its own loop before phases, which loops carry, are threaded through it",
        passes: &[
            ("split_roles", split_roles::run),
            ("recognize_loops", recognize_loops::run),
            ("promote_registers", promote_registers::run),
        ],
    },
    Phase {
        why: "accumulators and waits are explicit: what is carried on, phases too, is a value",
        passes: &[
            ("thread_phases", thread_phases::run),
            ("narrow_integers", narrow_integers::run),
        ],
    },
    Phase {
        why: "what threading and narrowing wrote is folded, and leaves loops",
        passes: &[
            ("simplify", simplify::run),
            ("hoist_invariants", hoist_invariants::run),
            ("hoist_inputs", hoist_inputs::run),
        ],
    },
    Phase {
        why: "nothing moves for the sake of what is dead",
        passes: &[("eliminate_dead_code", eliminate_dead_code::run)],
    },
    Phase {
        why: "a producer runs ahead before a consumer's tail relies on it: without its loads the next tile has nothing to compute",
        passes: &[("defer_drains", defer_drains::run)],
    },
    Phase {
        why: "what runs beside products is chosen where every wait is explicit: each pass takes loops that the others leave",
        passes: &[
            ("defer_epilogue", defer_epilogue::run),
            ("defer_stores", defer_stores::run),
            ("overlap_products", overlap_products::run),
            ("rotate_loops", rotate_loops::run),
            ("stage_operands", stage_operands::run),
        ],
    },
    Phase {
        why: "arrays that loops carry become accumulators where no loop is rotated any more; facts and registers are those of the last form",
        passes: &[
            ("carry_accumulators", carry_accumulators::run),
            ("compute_facts", compute_facts),
            ("check_registers", check_registers::run),
        ],
    },
];

/// The passes of all phases.
pub fn all() -> impl Iterator<Item = (&'static str, Pass)> {
    PHASES.iter().flat_map(|phase| phase.passes.iter().copied())
}

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
    for (name, pass) in all() {
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
