//! What passes have taken out of a kernel is still in its tables: later passes must not look at it.
//!
//! The body's ops move into another region, as passes move them. The region that was the body is dead then, and either lists those ops still, as
//! passes leave it, or is empty: every pass has to make the same of both.
use crate::round_trip::golden;
use smalt::descriptor;
use smalt::kernel_ir::Kernel;
use smalt::passes;

/// The kernel with its body in another region, and what was the body as it was, or empty.
fn moved(kernel: &Kernel, leaves_ops: bool) -> Kernel {
    let mut kernel = kernel.clone();
    let old = kernel.body;
    let new = kernel.new_region(kernel.regions[old].group);
    kernel.regions[new] = kernel.regions[old].clone();
    kernel.body = new;
    if !leaves_ops {
        kernel.regions[old].ops.clear();
        kernel.regions[old].results.clear();
    }
    kernel
}

#[test]
fn passes_do_not_look_at_dead_regions() {
    let (mut runs, mut different) = (0, vec![]);
    for path in golden().iter().filter(|p| p.to_string_lossy().contains("0.11.2")) {
        let bytes = std::fs::read(path).expect("readable");
        let Ok(mut kernel) = descriptor::import(&bytes) else {
            continue;
        };
        for (pass, run) in passes::all() {
            let outcome = |leaves_ops| {
                let mut kernel = moved(&kernel, leaves_ops);
                run(&mut kernel).map(|()| kernel.to_string()).map_err(|e| e.to_string())
            };
            runs += 1;
            if outcome(true) != outcome(false) {
                different.push(format!("{pass}: {}", path.display()));
            }
            if run(&mut kernel).is_err() {
                break;
            }
        }
    }
    assert!(runs > 1000, "{runs} runs of passes");
    assert!(
        different.is_empty(),
        "{} of {runs} differ:\n{}",
        different.len(),
        different.join("\n")
    );
}
