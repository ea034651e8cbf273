//! Code motion: what may come earlier, later or twice, out of what ops do to memory and to its order ([`effects`]).
//!
//! Passes decide what they want to move; whether they may, they ask here. Where barriers are concerned, [`rings`](super::rings) says more.
use super::class::Class;
use super::effects::Order;
use super::*;
use rustc_hash::FxHashSet;

/// Whether an op on memory is over when it is done, and nobody goes by it.
pub fn orders_nothing(kind: &OpKind) -> bool {
    effects::order(kind) == Order::None && !effects::of(kind).iter().any(|e| e.is_asynchronous())
}

/// Whether an op neither writes to memory nor releases anything to others.
pub fn releases_nothing(kind: &OpKind) -> bool {
    kind.is_pure() || matches!(kind, OpKind::Load { .. } | OpKind::BarrierWait { .. })
}

/// Whether an op loads from what is not written while the kernel runs.
fn loads_input(kernel: &Kernel, op: Op) -> bool {
    matches!(&kernel.ops[op].kind, OpKind::Load { src } if kernel.is_constant(src))
}

/// Whether an op gives the same, and does nothing else, each time.
pub fn may_be_twice(kernel: &Kernel, op: Op) -> bool {
    kernel.ops[op].kind.is_pure() || loads_input(kernel, op)
}

/// Whether an op may access bytes of this allocation.
pub fn touches(kernel: &Kernel, op: Op, alloc: Alloc) -> bool {
    let effects = effects::of(&kernel.ops[op].kind);
    effects.iter().any(|e| effects::may_share(kernel, e.alloc, alloc))
}

/// Whether an op may come behind `reader`, a wgmma or a load, instead of before it: it writes nothing that is read there, and acquires nothing.
pub fn may_follow_read(kernel: &Kernel, op: Op, reader: Op) -> bool {
    let kind = &kernel.ops[op].kind;
    match kind.class() {
        Class::Pure(_) | Class::Accumulator => true,
        Class::Memory => {
            let effects = effects::of(kind);
            let mut written = effects.iter().filter(|e| e.access.writes());
            written.all(|e| !touches(kernel, reader, e.alloc))
        }
        Class::Synchronisation => matches!(effects::order(kind), Order::Arrive | Order::CommitStores),
        Class::Pinned | Class::Tensor | Class::Instructions | Class::Control(_) | Class::Aside => false,
    }
}

/// Whether an op may come before a release instead of behind it: nobody waits for it, and it waits for nobody.
pub fn may_precede_release(kernel: &Kernel, op: Op) -> bool {
    let kind = &kernel.ops[op].kind;
    match kind.class() {
        Class::Pure(_) | Class::Accumulator => true,
        Class::Memory => orders_nothing(kind) && !effects::of(kind).iter().any(|e| e.access.writes()),
        Class::Synchronisation
        | Class::Pinned
        | Class::Tensor
        | Class::Instructions
        | Class::Control(_)
        | Class::Aside => false,
    }
}

/// Ops of which nobody sees when they are done, if what they touch is [private](is_private): loads and stores, copies of inputs to shared memory
/// and waits for them, copies out of it, their fences and waits; conditionals and scopes of those.
pub fn may_be_late(kernel: &Kernel, op: Op) -> bool {
    let kind = &kernel.ops[op].kind;
    if let OpKind::Load { src: view } | OpKind::Store { dst: view, .. } | OpKind::CopySmemToGmem { dst: view, .. } =
        kind
    {
        return view.place == Place::Here;
    }
    if let OpKind::CopyGmemToSmem {
        src,
        dst,
        barrier: Some(barrier),
        collective_axes,
        leader_tracked: None,
        predicate: None,
        ..
    } = kind
    {
        let is_here = [src, dst, barrier].iter().all(|view| view.place == Place::Here);
        return is_here && kernel.is_input(src.alloc) && collective_axes.is_empty();
    }
    if let OpKind::BarrierWait { barrier, phases } = kind {
        return barrier.place == Place::Here && phases.is_some();
    }
    kind.is_pure()
        || matches!(
            kind,
            OpKind::CommitSmem
                | OpKind::CommitGroup
                | OpKind::WaitSmemToGmem { .. }
                | OpKind::Switch { .. }
                | OpKind::Scope { .. }
        )
}

/// Whether nothing else in the kernel touches the memory that these ops write and their barriers, and nothing writes what they read.
pub fn is_private(kernel: &Kernel, ops: &FxHashSet<Op>) -> bool {
    let (mut read, mut own) = (FxHashSet::default(), FxHashSet::default());
    for op in ops {
        let kind = &kernel.ops[*op].kind;
        for effect in effects::of(kind) {
            if effect.access.reads() {
                read.insert(effect.alloc);
            }
            if effect.access.writes() {
                own.insert(effect.alloc);
            }
        }
        visit::for_each_ref(kind, &mut |view| {
            if kernel.allocs[view.alloc].is_barrier() {
                own.insert(view.alloc);
            }
        });
    }
    let mut shared = false;
    kernel.for_each_op(&mut |op| {
        if !ops.contains(&op) {
            let kind = &kernel.ops[op].kind;
            visit::for_each_ref(kind, &mut |view| shared |= own.contains(&view.alloc));
            let written = effects::of(kind).into_iter().filter(|e| e.access.writes());
            shared |= written.map(|e| e.alloc).any(|a| read.contains(&a));
        }
    });
    // Members of a union share bytes with others.
    !shared && read.union(&own).all(|a| kernel.allocs[*a].within.is_none())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dtype::DType;
    use crate::kernel_ir::testing::KernelBuilder;

    /// Ops of a kernel that loads `x`, stores to it and to another allocation, copies into it, arrives and waits.
    struct Ops {
        kernel: Kernel,
        load: Op,
        same: Op,
        other: Op,
        copy: Op,
        arrive: Op,
        wait: Op,
    }

    fn ops() -> Ops {
        let mut b = KernelBuilder::new();
        let (x, y) = (b.smem(DType::F32, &[128], None), b.smem(DType::F32, &[128], None));
        let (g, barriers) = (b.input(DType::F32, &[128]), b.barriers(1));
        let whole = b.whole(x);
        let v = b.load(whole.clone());
        b.store(whole.clone(), v);
        let to = b.whole(y);
        b.store(to, v);
        let barrier = b.indexed(barriers, vec![DimIndex::At(Index::Const(0))]);
        let src = b.whole(g);
        let copy = OpKind::CopyGmemToSmem {
            by_threads: false,
            uncounted: false,
            src,
            dst: whole,
            barrier: Some(barrier.clone()),
            collective_axes: vec![],
            leader_tracked: None,
            oob: OobMode::Zeros,
            predicate: None,
        };
        b.op(copy, &[]);
        let predicate = None;
        let at = barrier.clone();
        b.op(OpKind::BarrierArrive { barrier: at, predicate }, &[]);
        let phases = None;
        b.op(OpKind::BarrierWait { barrier, phases }, &[]);
        let kernel = b.finish();
        let mut all = vec![];
        kernel.for_each_op(&mut |op| all.push(op));
        let [load, same, other, copy, arrive, wait] = all[..] else {
            panic!("six ops")
        };
        Ops {
            kernel,
            load,
            same,
            other,
            copy,
            arrive,
            wait,
        }
    }

    #[test]
    fn what_is_read_is_not_written_before() {
        let Ops {
            kernel,
            load,
            same,
            other,
            copy,
            arrive,
            wait,
        } = ops();
        let may = |op: Op| may_follow_read(&kernel, op, load);
        assert!(may(other) && may(arrive) && may(load));
        assert!(!may(same), "it writes what is read");
        assert!(!may(copy), "a unit writes what is read");
        assert!(!may(wait), "it acquires");
    }

    #[test]
    fn what_others_rely_on_stays_behind_a_release() {
        let Ops {
            kernel,
            load,
            same,
            copy,
            arrive,
            wait,
            ..
        } = ops();
        let may = |op: Op| may_precede_release(&kernel, op);
        assert!(may(load));
        assert!(![same, copy, arrive, wait].into_iter().any(may));
    }

    #[test]
    fn what_is_shared_with_others_is_not_private() {
        let Ops {
            kernel,
            load,
            same,
            other,
            ..
        } = ops();
        let of = |ops: &[Op]| is_private(&kernel, &ops.iter().copied().collect());
        assert!(of(&[other]));
        assert!(!of(&[same]), "others read it");
        assert!(!of(&[load]), "others write it");
        assert!(!of(&[load, same]), "a copy writes it");
    }
}
