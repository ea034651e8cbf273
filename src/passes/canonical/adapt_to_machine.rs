//! What asks for a part that the machine has not, and can be done without.
//!
//! | without | |
//! |---|---|
//! | bulk copies | the threads of the group copy; with them there is no other proxy, no group of copies, and nothing to fetch before |
//! | transactions of barriers | bytes that a barrier expects of the copy behind: the copy's threads arrive when theirs have come |
//! | `setmaxnreg` | each thread has the registers that it has: the kernel computes the same |
use crate::error::Result;
use crate::kernel_ir::{Constant, FenceKind, Group, Kernel, Note, Op, OpKind, Region, num_elements};
use crate::target::Features;

pub fn run(kernel: &mut Kernel) -> Result<()> {
    let bulk = kernel.target.has(Features::BULK_COPIES);
    let registers = kernel.target.has(Features::SET_MAX_REG);
    if bulk && registers {
        return Ok(());
    }
    for region in kernel.live_regions() {
        let group = kernel.regions[region].group;
        if !bulk {
            without_transactions(kernel, region);
        }
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

/// Bytes that are expected without an arrival, and come by the copy that follows, and no others. What else expects bytes is refused.
fn without_transactions(kernel: &mut Kernel, region: Region) {
    let ops = kernel.regions[region].ops.clone();
    for (i, &op) in ops.iter().enumerate() {
        let copy = ops[i + 1..].iter().find(|next| !kernel.ops[**next].kind.is_pure());
        if let Some(&copy) = copy
            && expects_bytes_of(kernel, op, copy)
            && let OpKind::CopyGmemToSmem { uncounted, .. } = &mut kernel.ops[copy].kind
        {
            *uncounted = true;
            kernel.remove(op);
        }
    }
}

fn expects_bytes_of(kernel: &Kernel, op: Op, copy: Op) -> bool {
    let OpKind::MbarrierExpect {
        barrier,
        bytes,
        arrives: false,
    } = &kernel.ops[op].kind
    else {
        return false;
    };
    let OpKind::CopyGmemToSmem {
        dst,
        barrier: Some(completes),
        ..
    } = &kernel.ops[copy].kind
    else {
        return false;
    };
    let Some(def) = kernel.def_op(*bytes) else {
        return false;
    };
    let OpKind::Constant(Constant::Splat(expected)) = kernel.ops[def].kind else {
        return false;
    };
    let copied = dst.dtype().and_then(|dtype| dtype.bytes(num_elements(&dst.shape)));
    completes == barrier && copied == Some(expected)
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dtype::DType;
    use crate::kernel_ir::testing::KernelBuilder;
    use crate::kernel_ir::{DimIndex, Index, OobMode};
    use crate::target::Target;

    /// What is left of an expectation of so many bytes, in front of a copy of 512, on the same barrier or another one.
    fn left(bytes: i64, arrives: bool, same: bool) -> (bool, bool) {
        let mut b = KernelBuilder::new();
        b.kernel.target = Target::from_name("sm_80").unwrap();
        let (input, tile, barriers) = (
            b.input(DType::F32, &[128]),
            b.smem(DType::F32, &[128], None),
            b.barriers(2),
        );
        let at = |b: &KernelBuilder, i: i64| b.indexed(barriers, vec![DimIndex::At(Index::Const(i))]);
        let (bytes, barrier) = (b.int(DType::I32, bytes), at(&b, 0));
        let expect = OpKind::MbarrierExpect {
            barrier,
            bytes,
            arrives,
        };
        b.op(expect, &[]);
        b.int(DType::I32, 7);
        let copy = OpKind::CopyGmemToSmem {
            src: b.whole(input),
            dst: b.whole(tile),
            barrier: Some(at(&b, i64::from(!same))),
            collective_axes: vec![],
            leader_tracked: None,
            oob: OobMode::Zeros,
            by_threads: false,
            uncounted: false,
            predicate: None,
        };
        b.op(copy, &[]);
        let (mut kernel, _) = b.finish_in_scope(&[tile, barriers]);
        run(&mut kernel).unwrap();
        let mut found = (false, false);
        kernel.for_each_op(&mut |op| {
            found.0 |= matches!(kernel.ops[op].kind, OpKind::MbarrierExpect { .. });
            found.1 |= matches!(kernel.ops[op].kind, OpKind::CopyGmemToSmem { uncounted: true, .. });
        });
        found
    }

    #[test]
    fn a_copys_threads_arrive_for_bytes_that_a_barrier_expects_of_it() {
        assert_eq!(left(512, false, true), (false, true));
        for other in [(1024, false, true), (512, true, true), (512, false, false)] {
            assert_eq!(left(other.0, other.1, other.2), (true, false), "{other:?}");
        }
    }
}
