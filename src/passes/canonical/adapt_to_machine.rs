//! What asks for a part that the machine has not, and can be done without.
//!
//! | without | |
//! |---|---|
//! | bulk copies | the threads of the group copy; with them there is no other proxy, no group of copies, and nothing to fetch before |
//! | `setmaxnreg` | each thread has the registers that it has: the kernel computes the same |
use crate::error::Result;
use crate::kernel_ir::{FenceKind, Group, Kernel, Note, Op, OpKind};
use crate::target::Features;

pub fn run(kernel: &mut Kernel) -> Result<()> {
    let bulk = kernel.target.has(Features::BULK_COPIES);
    let registers = kernel.target.has(Features::SET_MAX_REG);
    if bulk && registers {
        return Ok(());
    }
    for region in kernel.live_regions() {
        let group = kernel.regions[region].group;
        for op in kernel.regions[region].ops.clone() {
            if !registers {
                without_registers(kernel, op);
            }
            if !bulk {
                without_copies(kernel, op, group);
            }
        }
    }
    Ok(())
}

fn without_registers(kernel: &mut Kernel, op: Op) {
    if !matches!(kernel.ops[op].kind, OpKind::SetMaxRegisters { .. }) {
        return;
    }
    kernel.notes.push(Note {
        loc: kernel.ops[op].loc,
        pass: "adapt_to_machine",
        what: "set_max_registers is left out",
        text: "the GPU that it is compiled for has no registers that move between warpgroups",
    });
    kernel.remove(op);
}

fn without_copies(kernel: &mut Kernel, op: Op, group: Group) {
    let kind = &mut kernel.ops[op].kind;
    if let OpKind::CopyGmemToSmem { by_threads, .. } = kind {
        *by_threads = true;
    }
    if let OpKind::CopySmemToGmem {
        by_threads,
        commit_group,
        ..
    } = kind
    {
        (*by_threads, *commit_group) = (true, false);
    }
    // What the group has written it sees, and what it has copied is copied.
    if matches!(kind, OpKind::CommitSmem | OpKind::WaitSmemToGmem { .. }) {
        *kind = OpKind::Sync { group };
    }
    let is_needless = matches!(
        kind,
        OpKind::CommitGroup
            | OpKind::Prefetch { .. }
            | OpKind::Fence {
                kind: FenceKind::ProxyAsyncSharedCta | FenceKind::ProxyAsyncGlobal,
            }
    );
    if is_needless {
        kernel.remove(op);
    }
}
