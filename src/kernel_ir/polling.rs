//! Loops that wait for other threads.
//!
//! A `while` **polls** when what decides whether it goes on comes from a look, made in every round, at something that
//! other agents change while it runs: a load of memory that is not read-only (another warpgroup, another block, a copy
//! may write it), the count of a semaphore, the phase of a barrier. Such a loop is a wait. It has an effect even if
//! nothing uses a value of it: what comes behind it comes behind what it waits for. So it is never removed, and its
//! looks are made anew every time, by one thread for all, as relaxed loads, which see what others write (PTX ISA,
//! "Memory Consistency Model": a weak load may be kept in a register over the loop; a race between one and another
//! block's store has no defined value).
//!
//! A `for` ends by itself, and so does a `while` over values that no other thread changes, or it never does: neither polls.
use super::effects::{self, Look};
use super::rewrite::regions_of;
use super::*;
use cranelift_entity::{EntitySet, SecondaryMap};
use rustc_hash::{FxHashMap, FxHashSet};

/// Who may change what a loop looks at, and so the scope in which its looks are ordered.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Reach {
    /// Whoever arrives on a barrier: its phase is acquired by the look itself.
    Barrier,
    /// The block.
    Block,
    /// The cluster.
    Cluster,
    /// Every block.
    Device,
}

/// What polls in a kernel.
#[derive(Clone, Debug, Default)]
pub struct Polling {
    /// The `while`s.
    pub loops: EntitySet<Op>,
    /// The ops that look, by which such a loop decides whether it goes on.
    pub looks: SecondaryMap<Op, Option<Reach>>,
}

impl Polling {
    /// The widest of the looks inside of a loop that polls.
    pub fn reach(&self, kernel: &Kernel, op: Op) -> Option<Reach> {
        if !self.loops.contains(op) {
            return None;
        }
        let mut widest = None;
        for region in regions_of(kernel, op) {
            kernel.for_each_op_in(region, &mut |look| widest = widest.max(self.looks[look]));
        }
        widest
    }
}

pub fn find(kernel: &Kernel) -> Polling {
    let mut found = Polling::default();
    kernel.for_each_op(&mut |op| {
        if let OpKind::While { cond, body, .. } = kernel.ops[op].kind {
            let looks = looks_of(kernel, cond, body);
            if !looks.is_empty() {
                found.loops.insert(op);
                for (look, reach) in looks {
                    found.looks[look] = Some(reach);
                }
            }
        }
    });
    found
}

/// Whether an op looks at what others may change meanwhile.
fn looks(kernel: &Kernel, kind: &OpKind) -> Option<Reach> {
    match effects::look(kind)? {
        Look::Memory(view) => {
            let data = &kernel.allocs[view.alloc];
            match (&view.place, data.is_smem()) {
                (Place::Here, true) => Some(Reach::Block),
                (Place::Here, false) => (data.is_gmem() && !kernel.is_input(view.alloc)).then_some(Reach::Device),
                (Place::Cluster { .. }, _) => Some(Reach::Cluster),
                (Place::Peer { .. } | Place::Multicast { .. }, _) => Some(Reach::Device),
            }
        }
        Look::Semaphore => Some(Reach::Device),
        Look::Barrier => Some(Reach::Barrier),
    }
}

/// The looks inside of a loop that its condition depends on, through carries as well.
fn looks_of(kernel: &Kernel, cond: Region, body: Region) -> Vec<(Op, Reach)> {
    // Who defines what inside of the loop: an op, or a region as its parameter.
    let mut inside = Inside::default();
    for region in [cond, body] {
        inside.collect(kernel, region, None);
    }
    let mut slice = Slice {
        kernel,
        inside,
        seen: FxHashSet::default(),
        work: vec![],
        looks: vec![],
    };
    slice.need(kernel.regions[cond].results[0]);
    while let Some(v) = slice.work.pop() {
        if let Some(op) = kernel.def_op(v) {
            slice.op(op);
            continue;
        }
        match slice.inside.params[&v] {
            // A carry of the loop itself.
            (None, region, i) => {
                if region == cond {
                    slice.need(kernel.regions[body].results[i]);
                } else {
                    slice.need(kernel.regions[cond].results[1 + i]);
                }
            }
            // What an op inside hands to its region: one of its operands, or of its regions' results.
            (Some(op), ..) => slice.op(op),
        }
    }
    slice.looks
}

#[derive(Default)]
struct Inside {
    values: FxHashSet<Value>,
    /// The op whose region a parameter belongs to (`None`: the loop), the region and the parameter's index.
    params: FxHashMap<Value, (Option<Op>, Region, usize)>,
}

impl Inside {
    fn collect(&mut self, kernel: &Kernel, region: Region, of: Option<Op>) {
        for (i, &p) in kernel.regions[region].params.iter().enumerate() {
            self.values.insert(p);
            self.params.insert(p, (of, region, i));
        }
        for &op in &kernel.regions[region].ops {
            self.values.extend(&kernel.ops[op].results);
            for inner in regions_of(kernel, op) {
                self.collect(kernel, inner, Some(op));
            }
        }
    }
}

struct Slice<'a> {
    kernel: &'a Kernel,
    inside: Inside,
    seen: FxHashSet<Value>,
    work: Vec<Value>,
    looks: Vec<(Op, Reach)>,
}

impl Slice<'_> {
    fn need(&mut self, v: Value) {
        if self.inside.values.contains(&v) && self.seen.insert(v) {
            self.work.push(v);
        }
    }

    /// Everything that an op's results are made of.
    fn op(&mut self, op: Op) {
        let kernel = self.kernel;
        let kind = &kernel.ops[op].kind;
        if let Some(reach) = looks(kernel, kind) {
            self.looks.push((op, reach));
        }
        visit::for_each_value(kind, &mut |v| self.need(v));
        for region in regions_of(kernel, op) {
            for &v in &kernel.regions[region].results {
                self.need(v);
            }
        }
    }
}
