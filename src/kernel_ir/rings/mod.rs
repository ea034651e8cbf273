//! Rings: slots of shared memory that are filled and released round after round, and the barriers that say so.
//!
//! * [`Part`]: a slot, or a barrier of an array;
//! * [`phases`]: which copies make each phase of a barrier;
//! * [`Ring`]: of slots that a producer fills, which barriers release them;
//! * [`order`]: whether those barriers order anything but the slots;
//! * [`progress`]: whether every wait for a barrier ends.
//!
//! Passes that let producers run ahead use this, and the analysis of barriers and fences. The checker of their order
//! ([`verify_order`](crate::plan::verify_order)) takes from it which slots a phase [refills](crate::plan::refills), and nothing else.
pub mod order;
pub mod phases;
pub mod progress;

use super::effects::{self, Completion};
use super::rewrite::regions_of;
use super::*;

/// A part of an allocation: something that is filled, or a barrier.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Part {
    pub alloc: Alloc,
    pub slot: Slot,
}

/// The index of an allocation's first dimension.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Slot {
    /// None: all of it, or parts that the other dimensions name.
    Whole,
    At(i64),
    Of(Value),
}

impl Part {
    /// What a view names, of this block.
    pub fn of(kernel: &Kernel, view: &RefUse) -> Option<Part> {
        let slot = match view.steps.first() {
            Some(Step::Index(dims)) => match dims.first() {
                Some(DimIndex::At(Index::Const(s))) => Slot::At(*s),
                Some(DimIndex::At(Index::Value(v))) => kernel.facts(*v).as_constant().map_or(Slot::Of(*v), Slot::At),
                _ => Slot::Whole,
            },
            _ => Slot::Whole,
        };
        let alloc = view.alloc;
        (view.place == Place::Here).then_some(Part { alloc, slot })
    }

    pub fn with(self, slot: Slot) -> Part {
        Part { slot, ..self }
    }

    /// Whether it has nothing in common with another part of the same allocation.
    pub fn is_disjoint(self, other: Part) -> bool {
        matches!((self.slot, other.slot), (Slot::At(a), Slot::At(b)) if a != b)
    }
}

/// What a copy fills, and the barrier that says so.
pub fn load(kernel: &Kernel, op: Op) -> Option<[Part; 2]> {
    let OpKind::CopyGmemToSmem {
        dst,
        barrier: Some(barrier),
        leader_tracked: None,
        predicate: None,
        ..
    } = &kernel.ops[op].kind
    else {
        return None;
    };
    Some([Part::of(kernel, dst)?, Part::of(kernel, barrier)?])
}

/// A part of a ring: what is filled, the barrier that says so, and the one that releases it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Filled {
    pub to: Part,
    pub full: Part,
    pub free: Part,
}

impl Filled {
    /// Whether its barriers have its own number.
    pub fn is_numbered(&self) -> bool {
        matches!(self.to.slot, Slot::At(_)) && self.full.slot == self.to.slot && self.free.slot == self.to.slot
    }

    fn with(&self, slot: Slot) -> Filled {
        let Filled { to, full, free } = *self;
        Filled {
            to: to.with(slot),
            full: full.with(slot),
            free: free.with(slot),
        }
    }
}

/// Parts that one warpgroup fills, one round after the other, and others release.
#[derive(Default)]
pub struct Ring {
    /// Each part once, with the barrier that releases it first.
    pub filled: Vec<Filled>,
    /// Further barriers that release parts, and are not the first ones of any.
    also: Vec<Filled>,
}

impl Ring {
    /// What a part is, which may be one that is known when the kernel runs.
    pub fn get(&self, to: Part) -> Option<Filled> {
        if let Slot::Of(_) = to.slot {
            let mut of = self.filled.iter().filter(|f| f.to.alloc == to.alloc);
            let filled = of.next().filter(|f| f.is_numbered())?.with(to.slot);
            let same = |f: &Filled| f.is_numbered() && f.with(to.slot) == filled;
            return of.all(same).then_some(filled);
        }
        self.filled.iter().copied().find(|f| f.to == to)
    }

    /// By whatever barrier.
    pub fn all(&self) -> impl Iterator<Item = &Filled> {
        self.filled.iter().chain(&self.also)
    }

    pub fn has_buffer(&self, buffer: Alloc) -> bool {
        self.filled.iter().any(|f| f.to.alloc == buffer)
    }

    pub fn has_free(&self, barrier: Alloc) -> bool {
        self.all().any(|f| f.free.alloc == barrier)
    }

    /// Whether a view is of something that is filled, or of one of its barriers.
    pub fn has(&self, kernel: &Kernel, view: &RefUse) -> bool {
        let is = |part: Part, of: Part| part.alloc == of.alloc && !part.is_disjoint(of);
        Part::of(kernel, view).is_some_and(|part| {
            self.all()
                .any(|f| [f.to, f.full, f.free].iter().any(|of| is(part, *of)))
        })
    }

    /// What says that the parts are full that a barrier releases; none if that is not known.
    pub fn full(&self, free: Part) -> Vec<Part> {
        if let Slot::Of(_) = free.slot {
            let of: Vec<&Filled> = self.all().filter(|f| f.free.alloc == free.alloc).collect();
            let numbered = of.iter().all(|f| f.is_numbered());
            return of.iter().filter(|_| numbered).map(|f| f.full.with(free.slot)).collect();
        }
        self.all().filter(|f| f.free == free).map(|f| f.full).collect()
    }

    /// The ring of what is loaded, if it is known what of these barriers releases it: all that others than the producer do with its parts is
    /// to read them between a wait for the full part and one arrival that releases it, and with its barriers of release to arrive there.
    pub fn find(kernel: &Kernel, loads: &[[Part; 2]], barriers: &[Part], producer: &[Op]) -> Option<Ring> {
        let others = Others { kernel, producer };
        let mut ring = Ring::default();
        // Each barrier that releases something.
        let mut all: Vec<(usize, Filled)> = vec![];
        for [to, _] in loads {
            if ring.has_buffer(to.alloc) {
                continue;
            }
            let mut parts: Vec<[Part; 2]> = vec![];
            for load in loads.iter().filter(|[other, _]| other.alloc == to.alloc) {
                match parts.iter().find(|[other, _]| *other == load[0]) {
                    // Several copies fill it.
                    Some(known) if known == load => {}
                    Some(_) => return None,
                    None => parts.push(*load),
                }
            }
            // Those that release these parts, the first one first.
            let released = |parts: &[[Part; 2]], free: &dyn Fn(Part, Part) -> Part| -> Vec<(usize, Vec<Filled>)> {
                let mut found: Vec<(usize, Vec<Filled>)> = vec![];
                for barrier in barriers {
                    let filled = parts.iter().map(|&[to, full]| {
                        let free = free(*barrier, to);
                        Filled { to, full, free }
                    });
                    let (filled, also) = (filled.collect(), vec![]);
                    let ring = Ring { filled, also };
                    let is_waited_for = |f: &Filled| barriers.contains(&f.free);
                    if found.iter().any(|(_, known)| *known == ring.filled) || !ring.filled.iter().all(is_waited_for) {
                        continue;
                    }
                    if let Some(time) = others.read_and_release(kernel.body, to.alloc, &ring) {
                        found.push((time, ring.filled));
                    }
                }
                found.sort_by_key(|(time, _)| *time);
                found
            };
            let numbered = released(&parts, &|barrier, to| barrier.with(to.slot));
            let mut take = |found: Vec<(usize, Vec<Filled>)>| -> Option<()> {
                let (_, first) = found.first()?;
                ring.filled.extend(first);
                for (time, filled) in found {
                    all.extend(filled.into_iter().map(|f| (time, f)));
                }
                Some(())
            };
            if numbered.is_empty() {
                for part in &parts {
                    take(released(&[*part], &|barrier, _| barrier))?;
                }
            } else {
                take(numbered)?;
            }
        }
        all.retain(|(_, f)| ring.filled.iter().all(|first| first.free != f.free));
        // Of what they release, what was read last.
        let is_last = |(time, f): &&(usize, Filled)| all.iter().all(|(other, g)| g.free != f.free || time <= other);
        ring.also = all.iter().filter(is_last).map(|(_, f)| *f).collect();
        // Members of a union share bytes with others, which the slots say nothing of.
        let mut shared = false;
        kernel.for_each_op(&mut |op| {
            for effect in effects::of(&kernel.ops[op].kind) {
                let of =
                    |f: &Filled| f.to.alloc != effect.alloc && effects::may_share(kernel, f.to.alloc, effect.alloc);
                shared |= ring.filled.iter().any(of);
            }
        });
        if shared || !others.only_release(kernel.body, &ring) {
            return None;
        }
        Some(ring)
    }
}

/// Who is not the producer.
struct Others<'a> {
    kernel: &'a Kernel,
    producer: &'a [Op],
}

impl Others<'_> {
    fn are(&self, op: Op) -> bool {
        self.producer.binary_search(&op).is_err()
    }

    /// If all that is done with a buffer is to read it between a wait for the full slot and the arrival that releases it: how many ops there are
    /// from reads to arrivals. If the ring has some slots only, others are not looked at.
    fn read_and_release(&self, at: Region, buffer: Alloc, ring: &Ring) -> Option<usize> {
        let kernel = self.kernel;
        let ops = &kernel.regions[at].ops;
        let mut time = 0;
        for (i, &op) in ops.iter().enumerate().filter(|(_, op)| self.are(**op)) {
            for effect in effects::of(&kernel.ops[op].kind) {
                if effect.alloc != buffer {
                    continue;
                }
                let part = Part::of(kernel, effect.view)?;
                let Some(filled) = ring.get(part) else {
                    if ring.filled.iter().all(|f| f.to.is_disjoint(part)) {
                        continue;
                    }
                    return None;
                };
                let done = match effect.completion {
                    Completion::Now => true,
                    Completion::Wgmma => false,
                    _ => return None,
                };
                if effect.access.writes() || !self.is_full(&ops[..i], &filled) {
                    return None;
                }
                time += self.release(&ops[i + 1..], &filled, done)?;
            }
            for inner in regions_of(kernel, op) {
                time += self.read_and_release(inner, buffer, ring)?;
            }
        }
        Some(time)
    }

    /// Whether it has been waited for since it was released.
    fn is_full(&self, before: &[Op], filled: &Filled) -> bool {
        for op in before.iter().rev() {
            let kind = &self.kernel.ops[*op].kind;
            if let OpKind::BarrierWait { barrier, .. } = kind
                && Part::of(self.kernel, barrier) == Some(filled.full)
            {
                return true;
            }
            if let OpKind::BarrierArrive { barrier, .. } = kind
                && self.may_be(barrier, filled.free)
            {
                return false;
            }
        }
        false
    }

    /// Where it is released, after the tensor cores are done where they read it, before it is waited for again.
    fn release(&self, behind: &[Op], filled: &Filled, mut done: bool) -> Option<usize> {
        let mut products = 0;
        for (i, op) in behind.iter().enumerate() {
            let kind = &self.kernel.ops[*op].kind;
            if let OpKind::Wgmma { .. } = kind {
                products += 1;
            } else if let OpKind::WgmmaWait { n, .. } = kind {
                done |= *n <= products;
            } else if let OpKind::BarrierArrive { barrier, .. } = kind
                && self.may_be(barrier, filled.free)
            {
                return (done && Part::of(self.kernel, barrier) == Some(filled.free)).then_some(i);
            } else if let OpKind::BarrierWait { barrier, .. } = kind
                && self.may_be(barrier, filled.full)
            {
                return None;
            }
        }
        None
    }

    fn may_be(&self, view: &RefUse, part: Part) -> bool {
        view.alloc == part.alloc && Part::of(self.kernel, view).is_none_or(|p| !p.is_disjoint(part))
    }

    /// Whether all that is done with the ring's barriers of release is to arrive there, when what they release is known to be full.
    fn only_release(&self, at: Region, ring: &Ring) -> bool {
        let kernel = self.kernel;
        let ops = &kernel.regions[at].ops;
        ops.iter().enumerate().filter(|(_, op)| self.are(**op)).all(|(i, &op)| {
            let kind = &kernel.ops[op].kind;
            if !regions_of(kernel, op).iter().all(|r| self.only_release(*r, ring)) {
                return false;
            }
            if let OpKind::BarrierArrive {
                barrier,
                predicate: None,
            } = kind
                && ring.has_free(barrier.alloc)
            {
                let Some(free) = Part::of(kernel, barrier) else {
                    return false;
                };
                let full = ring.full(free);
                let is_waited_for = |full: &Part| {
                    let mut kinds = ops[..i].iter().map(|op| &kernel.ops[*op].kind);
                    let waits = |b: &RefUse| Part::of(kernel, b) == Some(*full);
                    kinds.any(|kind| matches!(kind, OpKind::BarrierWait { barrier, .. } if waits(barrier)))
                };
                return !full.is_empty() && full.iter().all(is_waited_for);
            }
            let mut touches = false;
            visit::for_each_ref(kind, &mut |view| touches |= ring.has_free(view.alloc));
            !touches
        })
    }
}
