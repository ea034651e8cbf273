//! Moves loads of inputs, and the scalar arithmetic on them, out of loops, as far as registers go.
//!
//! A load leaves a loop where it reads one element of an input at a constant place inside of it: nothing writes inputs while a
//! kernel runs, so every execution finds the same, and where none happens an early one does no harm. (A kernel that waits for the
//! one before it to end stays as it is: until then inputs may be written.) Pure scalars that follow from such loads go with them.
//!
//! What leaves a loop and is used in it takes a register all along. The words that cross a loop's border so are counted; while they
//! are more than the loop's warpgroup has left beside its accumulators, what gains least by leaving stays, the loads last.
use crate::error::Result;
use crate::kernel_ir::class::Control;
use crate::kernel_ir::rewrite::regions_of;
use crate::kernel_ir::*;
use cranelift_entity::SecondaryMap;

/// Registers of a thread for addresses, counters and what one step computes.
const RESERVED: u64 = 64;
/// Words that one loop may keep at most.
const MOST: u64 = 96;
/// Ops that may leave; of more, only loads do.
const MANY: usize = 1024;

pub fn run(kernel: &mut Kernel) -> Result<()> {
    let mut waits = false;
    kernel.for_each_op(&mut |op| {
        let action = GridDependencyAction::Wait;
        waits |= matches!(&kernel.ops[op].kind, OpKind::GridDependency { action: a } if *a == action);
    });
    if waits {
        return Ok(());
    }
    let mut found = Found::default();
    let threads = u64::from(kernel.num_warpgroups.max(1)) * 128;
    let share = u64::from(kernel.target.registers) / threads / 8 * 8;
    let registers = share.min(kernel.target.max_thread_registers.into());
    found.region(kernel, kernel.body, None, registers);
    if found.candidates(kernel, MANY) == 0 {
        return Ok(());
    }
    let mut levels = Levels::new(&found);
    levels.update(kernel, &found);
    for l in 0..found.loops.len() {
        while levels.trim(kernel, &found, l) {
            levels.update(kernel, &found);
        }
    }
    apply(kernel, &found, &levels);
    Ok(())
}

/// A loop; those around it come first.
struct Loop {
    op: Op,
    parent: Option<usize>,
    /// How many loops are around it.
    level: u32,
    /// Of a thread that executes it.
    registers: u64,
}

/// An op, or the end of a region, which uses the region's results.
struct Item {
    op: Option<Op>,
    uses: Vec<Value>,
    inside: Option<usize>,
    /// In a warp region: its values mean nothing outside.
    of_warp: bool,
    /// May leave, given that its operands do.
    candidate: bool,
}

#[derive(Default)]
struct Found {
    loops: Vec<Loop>,
    /// In program order.
    items: Vec<Item>,
    /// In how many loops a value is defined.
    depth: SecondaryMap<Value, u32>,
}

impl Found {
    fn level(&self, inside: Option<usize>) -> u32 {
        inside.map_or(0, |l| self.loops[l].level + 1)
    }

    fn is_in(&self, item: &Item, l: usize) -> bool {
        let mut at = item.inside;
        while let Some(i) = at {
            if i == l {
                return true;
            }
            at = self.loops[i].parent;
        }
        false
    }

    /// `registers`: of a thread where the region begins.
    fn region(&mut self, kernel: &Kernel, region: Region, inside: Option<usize>, mut registers: u64) {
        let data = &kernel.regions[region];
        let level = self.level(inside);
        let of_warp = data.group == Group::Warp;
        for p in &data.params {
            self.depth[*p] = level;
        }
        for &op in &data.ops {
            let kind = &kernel.ops[op].kind;
            let mut uses = vec![];
            visit::for_each_value(kind, &mut |v| uses.push(v));
            for r in &kernel.ops[op].results {
                self.depth[*r] = level;
            }
            self.items.push(Item {
                op: Some(op),
                uses,
                inside,
                of_warp,
                candidate: false,
            });
            if let OpKind::SetMaxRegisters { n, .. } = kind {
                registers = u64::from(*n);
            }
            let inner = if kind.control().is_some_and(Control::is_loop) {
                self.loops.push(Loop {
                    op,
                    parent: inside,
                    level,
                    registers,
                });
                Some(self.loops.len() - 1)
            } else {
                inside
            };
            for r in regions_of(kernel, op) {
                self.region(kernel, r, inner, registers);
            }
        }
        self.items.push(Item {
            op: None,
            uses: data.results.clone(),
            inside,
            of_warp,
            candidate: false,
        });
    }

    /// Marks what follows from loads of inputs alone and from what is not in loops; how many there are.
    fn candidates(&mut self, kernel: &Kernel, many: usize) -> usize {
        let mut derived: SecondaryMap<Value, bool> = SecondaryMap::new();
        let (mut loads, mut others) = (0, vec![]);
        for i in 0..self.items.len() {
            let item = &self.items[i];
            let (Some(op), Some(_), false) = (item.op, item.inside, item.of_warp) else {
                continue;
            };
            let data = &kernel.ops[op];
            if is_constant_load(kernel, &data.kind) {
                loads += 1;
            } else if data.kind.is_speculatable()
                && data.results.iter().all(|v| kernel.ty(*v).is_scalar())
                && item.uses.iter().all(|v| kernel.ty(*v).is_scalar())
                && item.uses.iter().any(|v| derived[*v])
            {
                others.push(i);
            } else {
                continue;
            }
            self.items[i].candidate = true;
            for r in &data.results {
                derived[*r] = true;
            }
        }
        let count = loads + others.len();
        if count > many {
            others.into_iter().for_each(|i| self.items[i].candidate = false);
        }
        if loads == 0 { 0 } else { count }
    }
}

/// Of one element of an input, at a constant place.
fn is_constant_load(kernel: &Kernel, kind: &OpKind) -> bool {
    let OpKind::Load { src } = kind else { return false };
    let [Step::Index(dims)] = &src.steps[..] else {
        return false;
    };
    let inside = |(n, i): (&u64, &DimIndex)| match i {
        DimIndex::At(Index::Const(i)) => u64::try_from(*i).is_ok_and(|i| i < *n),
        _ => false,
    };
    let shape = &kernel.allocs[src.alloc].shape;
    kernel.is_constant(src) && dims.len() == shape.len() && shape.iter().zip(dims).all(inside)
}

struct Levels {
    /// Of each item: the loops that stay around it.
    of: Vec<u32>,
    /// At least so many do.
    least: Vec<u32>,
}

impl Levels {
    fn new(found: &Found) -> Levels {
        let n = found.items.len();
        Levels {
            of: vec![0; n],
            least: vec![0; n],
        }
    }

    fn update(&mut self, kernel: &Kernel, found: &Found) {
        let mut depth = found.depth.clone();
        for (i, item) in found.items.iter().enumerate() {
            let here = found.level(item.inside);
            let needs = item.uses.iter().map(|v| depth[*v]).max().unwrap_or(0);
            self.of[i] = if item.candidate {
                needs.max(self.least[i]).min(here)
            } else {
                here
            };
            if let (Some(op), true) = (item.op, item.candidate) {
                kernel.ops[op].results.iter().for_each(|r| depth[*r] = self.of[i]);
            }
        }
    }

    /// Makes one more op stay in loop `l`, if too much crosses its border.
    fn trim(&mut self, kernel: &Kernel, found: &Found, l: usize) -> bool {
        let level = found.loops[l].level;
        let within: Vec<usize> = (0..found.items.len())
            .filter(|i| found.is_in(&found.items[*i], l))
            .collect();
        let leaves = |i: usize| found.items[i].candidate && self.of[i] <= level;
        let results = |i: usize| found.items[i].op.map_or(&[][..], |op| &kernel.ops[op].results[..]);
        // What of the leaving ones' results is used by which leave, too, and by which do not.
        let mut left: SecondaryMap<Value, bool> = SecondaryMap::new();
        for i in within.iter().copied().filter(|i| leaves(*i)) {
            results(i).iter().for_each(|v| left[*v] = true);
        }
        let (mut crossing, mut needed): (SecondaryMap<Value, bool>, SecondaryMap<Value, bool>) = Default::default();
        for i in within.iter().copied() {
            for v in found.items[i].uses.iter().filter(|v| left[**v]) {
                if leaves(i) {
                    needed[*v] = true;
                } else {
                    crossing[*v] = true;
                }
            }
        }
        let words = |v: Value| u64::from(kernel.ty(v).dtype().bits().div_ceil(32));
        let total: u64 = within
            .iter()
            .filter(|i| leaves(**i))
            .flat_map(|i| results(*i))
            .filter(|v| crossing[**v])
            .map(|v| words(*v))
            .sum();
        if total <= budget(kernel, &found.loops[l]) {
            return false;
        }
        // The words that more cross if it stays; those that nothing needs go first, loads last, later ones before earlier ones.
        let cost = |i: usize| {
            let own: u64 = results(i).iter().filter(|v| crossing[**v]).map(|v| words(*v)).sum();
            let operands = found.items[i].uses.iter().filter(|v| left[**v] && !crossing[**v]);
            let more: u64 = operands.map(|v| words(*v)).sum();
            let load = found.items[i].uses.is_empty();
            (load, more as i64 - own as i64, std::cmp::Reverse(i))
        };
        let last = |i: &usize| leaves(*i) && results(*i).iter().all(|v| !needed[*v]);
        let Some(stays) = within.iter().copied().filter(last).min_by_key(|i| cost(*i)) else {
            return false;
        };
        self.least[stays] = level + 1;
        true
    }
}

/// Words that may stay alive all through a loop beside what it has in any case.
fn budget(kernel: &Kernel, l: &Loop) -> u64 {
    let words = |ty: &Type| ty.words(8);
    let (mut accumulators, mut largest) = (0u64, 0u64);
    for region in regions_of(kernel, l.op) {
        let mut inits = 0;
        kernel.for_each_op_in(region, &mut |op| {
            for r in &kernel.ops[op].results {
                let ty = kernel.ty(*r);
                if ty.is_acc() || !ty.is_scalar() {
                    largest = largest.max(words(ty));
                }
            }
            if let OpKind::AccInit { .. } = &kernel.ops[op].kind {
                inits += kernel.ops[op].results.iter().map(|r| words(kernel.ty(*r))).sum::<u64>();
            }
        });
        accumulators = accumulators.max(inits);
    }
    let carried: u64 = kernel.ops[l.op]
        .results
        .iter()
        .map(|r| kernel.ty(*r))
        .filter(|ty| ty.is_acc() || !ty.is_scalar())
        .map(words)
        .sum();
    let used = accumulators.max(largest).max(carried) + RESERVED;
    l.registers.saturating_sub(used).min(MOST)
}

/// Moves every op that leaves loops in front of the outermost of them.
fn apply(kernel: &mut Kernel, found: &Found, levels: &Levels) {
    let mut moved: SecondaryMap<Op, bool> = SecondaryMap::new();
    let mut before: SecondaryMap<Op, Vec<Op>> = SecondaryMap::new();
    for (i, item) in found.items.iter().enumerate() {
        let (Some(op), Some(mut l)) = (item.op, item.inside) else {
            continue;
        };
        if !item.candidate || levels.of[i] > found.loops[l].level {
            continue;
        }
        while let Some(parent) = found.loops[l].parent.filter(|p| found.loops[*p].level >= levels.of[i]) {
            l = parent;
        }
        moved[op] = true;
        before[found.loops[l].op].push(op);
    }
    for region in kernel.live_regions() {
        let ops = std::mem::take(&mut kernel.regions[region].ops);
        let mut out = Vec::with_capacity(ops.len());
        for op in ops.into_iter().filter(|op| !moved[*op]) {
            out.append(&mut before[op]);
            out.push(op);
        }
        kernel.regions[region].ops = out;
    }
}
