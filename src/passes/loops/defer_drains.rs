//! Lets a producer run into its next tile.
//!
//! A producer that fills a ring of slots for one tile after the other waits, at a tile's end, for every slot to be released, and
//! then fills them all for the next tile:
//!
//! ```text
//! for tile {                                  for tile {
//!   for s in 0..n { copy -> x[s] }              for s in 0..n { if tile > first { wait b[s] }; copy -> x[s] }
//!   ..wait b[e]; copy -> x[e]..        =>       ..wait b[e]; copy -> x[e]..
//!   for s in 0..n { wait b[s] }               }
//! }                                           if any tile { for s in 0..n { wait b[s] } }
//! ```
//!
//! The loops over slots may be written out, the slots be numbers, buffers and barriers of their own, and several barriers release
//! what a slot consists of. Each wait moves down to the first copy that needs it: loads of the next tile begin while the last slots
//! of this one are still read. What a wait protects is not written down in a kernel, so the move needs proof that `b[s]` alone
//! releases `x[s]`:
//!
//! * every other access to `x` reads a slot `e` between a wait for `full[e]` and an arrival on `b[e]`, all in one region, with
//!   tensor cores done before the arrival; and nothing else arrives on `b`;
//! * between its first and its last round the producer fills `x[e]` where it has waited for `b[e]`;
//! * what a copy brings into other blocks of a cluster is released by a barrier at which those arrive;
//! * the copies' sources are inputs, which nothing writes;
//! * the barriers order nothing but the slots ([`order`]).
//!
//! Where loads limit and not tensor cores, it is not done: blocks that run freely drift and share less of the L2 cache
//! (up to 8 % slower with 256x64 tiles of an 8192³ matmul on an H200; 1 to 2 % faster with 128x128 and 256x128).
use super::sink;
use crate::error::{Loc, Result};
use crate::kernel_ir::liveness::Around;
use crate::kernel_ir::motion::may_be_twice;
use crate::kernel_ir::rewrite::{Substitution, append_if, regions_of, values_defined_in};
use crate::kernel_ir::rings::{Filled, Part, Ring, Slot, load, order};
use crate::kernel_ir::*;
use crate::passes::rewriter::{self, Found, Rewrite};
use std::ops::Range;

pub fn run(kernel: &mut Kernel) -> Result<()> {
    rewriter::run::<DeferDrains>(kernel)
}

/// What the pass wants: tiles whose last waits are done by the next tile's first copies.
struct DeferDrains;

impl Rewrite for DeferDrains {
    type Plan = Drain;
    const NAME: &'static str = "defer_drains";

    fn applies(kernel: &Kernel) -> bool {
        let is_load = |op: &OpData| matches!(op.kind, OpKind::CopyGmemToSmem { .. });
        kernel.ops.values().any(is_load)
    }

    fn find(kernel: &Kernel, at: Region, site: Range<usize>, _: &Around) -> Found<Option<Drain>> {
        let op = kernel.regions[at].ops[site.start];
        match find(kernel, op) {
            Err(_) if !is_candidate(kernel, op) => Ok(None),
            found => found.map(Some),
        }
    }

    fn write(kernel: &mut Kernel, at: Region, ops: &[Op], drain: &Drain) -> Substitution {
        let op = ops[0];
        kernel.regions[at].ops.push(op);
        defer(kernel, at, op, drain)
    }
}

/// A loop over tiles that begins with filling slots and ends with waiting for them.
struct Drain {
    fills: Vec<Fill>,
    waits: Vec<Waits>,
    words: Vec<Word>,
}

/// A copy of a tile's first round, or a loop of them over slots: an op of the tile's region.
struct Fill {
    op: Op,
    /// The slots that a loop counts.
    slots: Option<Range<i64>>,
    /// What is filled, and the barriers on which that completes.
    loads: Vec<[Part; 2]>,
    /// Barriers to be waited for first: in a loop, those of its slots.
    frees: Vec<Part>,
}

/// A wait of a tile's last round, or a loop of them over slots: an op of the tile's region.
struct Waits {
    op: Op,
    barriers: Vec<Part>,
    /// The phases before it and behind it, of each array of barriers.
    phases: Vec<(Alloc, [Value; 2])>,
}

/// The phases of an array of barriers.
struct Word {
    barrier: Alloc,
    /// Which of the values that the loop over tiles carries.
    carry: usize,
    /// What they are before the waits of a tile's end, and behind them.
    phases: [Value; 2],
}

/// Whether a loop looks like a producer that fills a ring for one tile after the other: it loads in loops and waits for something else
/// than loads, or it loads several things and ends with several such waits. Only of those it is worth saying why they stay as they are.
fn is_candidate(kernel: &Kernel, op: Op) -> bool {
    let OpKind::For { lower, upper, body, .. } = kernel.ops[op].kind else {
        return false;
    };
    let (mut loaded, mut waited, mut nested) = (vec![], vec![], false);
    for &inner in &kernel.regions[body].ops {
        let before = loaded.len();
        kernel.for_each_op_of(inner, &mut |op| {
            let kind = &kernel.ops[op].kind;
            if let OpKind::CopyGmemToSmem {
                barrier: Some(barrier), ..
            } = kind
            {
                loaded.push(barrier.alloc);
            } else if let OpKind::BarrierWait { barrier, .. } = kind {
                waited.push(barrier.alloc);
            }
        });
        nested |= loaded.len() > before && matches!(kernel.ops[inner].kind, OpKind::For { .. });
    }
    let repeats = kernel.facts(upper).hi.saturating_sub(kernel.facts(lower).lo) > 1;
    let is_other = |barrier: &Alloc| !loaded.contains(barrier);
    let drains = || {
        let waits = waits_of(kernel, &kernel.regions[body]);
        let mut barriers = waits.iter().flat_map(|waits| &waits.barriers);
        loaded.len() > 1 && barriers.clone().count() > 1 && barriers.all(|part| is_other(&part.alloc))
    };
    repeats && (nested && waited.iter().any(is_other) || drains())
}

const NO_PLAIN_LOOP: &str = "it is no plain loop over tiles";
const NO_FILL_AND_DRAIN: &str = "a tile does not begin with copies into slots, each with a barrier and no predicate, and end with \
    waits for the slots";
const OTHER_WAITS: &str = "the waits at a tile's end are not one for each slot, whose number is constant, or a loop's counter (or \
    that plus a constant, modulo the number of slots)";
const OTHER_FILLS: &str = "a tile's first copies and its last waits are not for the same slots";
const OTHER_ROUNDS: &str =
    "between its first and its last round the producer does something else than wait for a slot and refill it";
const OTHER_USES: &str = "a buffer or a barrier of the ring is used other than between the wait for a full slot and the one arrival \
    that releases it";
const OTHER_ORDER: &str = "between the releases of a tile's slots a warpgroup touches memory or a barrier that others touch too: the waits \
    at the tile's end may order them";
const FEW_OPERATIONS: &str =
    "loads limit the kernel, not the tensor cores: blocks that run freely would share less of the L2 cache";

/// The bounds of a plain loop over slots, if they are constants, and no more slots than a block can have.
fn constant_bounds(kernel: &Kernel, kind: &OpKind) -> Option<Range<i64>> {
    if let OpKind::For {
        lower,
        upper,
        xs,
        reverse: false,
        ..
    } = kind
        && xs.is_empty()
    {
        let slots = kernel.facts(*lower).as_constant()?..kernel.facts(*upper).as_constant()?;
        // An mbarrier has 8 bytes of shared memory.
        let most = i64::from(kernel.target.max_smem_bytes / 8);
        return Some(slots).filter(|slots| slots.end.saturating_sub(slots.start) <= most);
    }
    None
}

/// Whether `slot` takes each number below `n` once while `i` does: i itself, or (i + c) mod n.
fn is_rotation(kernel: &Kernel, slot: Value, i: Value, n: i64) -> bool {
    let binary = |v: Value, wanted: BinaryOp| {
        let OpKind::Binary { op, a, b } = kernel.ops[kernel.def_op(v)?].kind else {
            return None;
        };
        (op == wanted).then_some((a, b))
    };
    if slot == i {
        return true;
    }
    let Some((sum, modulus)) = binary(slot, BinaryOp::Rem) else {
        return false;
    };
    let is_shifted = sum == i
        || binary(sum, BinaryOp::Add).is_some_and(|(a, b)| {
            let shift = if a == i { b } else { a };
            (a == i || b == i)
                && kernel
                    .facts(shift)
                    .as_constant()
                    .is_some_and(|c| (0..1 << 16).contains(&c))
        });
    kernel.facts(modulus).as_constant() == Some(n) && is_shifted
}

/// The copies that a tile begins with.
fn fills_of(kernel: &Kernel, tile: &RegionData) -> Vec<Fill> {
    let mut fills = vec![];
    for &op in &tile.ops {
        if may_be_twice(kernel, op) {
            continue;
        }
        let Some(fill) = fill(kernel, op) else { break };
        fills.push(fill);
    }
    fills
}

fn fill(kernel: &Kernel, op: Op) -> Option<Fill> {
    let kind = &kernel.ops[op].kind;
    let OpKind::For { body, .. } = *kind else {
        let load = load(kernel, op)?;
        return load.iter().all(|part| !matches!(part.slot, Slot::Of(_))).then(|| Fill {
            op,
            slots: None,
            loads: vec![load],
            frees: vec![],
        });
    };
    let slots = constant_bounds(kernel, kind)?;
    let copies = &kernel.regions[body];
    let counter = Slot::Of(copies.params[0]);
    let mut loads = vec![];
    for &op in copies.ops.iter().filter(|op| !may_be_twice(kernel, **op)) {
        let load = load(kernel, op)?;
        if load.iter().any(|part| part.slot != counter) {
            return None;
        }
        loads.extend(slots.clone().map(|s| load.map(|part| part.with(Slot::At(s)))));
    }
    (!loads.is_empty()).then_some(Fill {
        op,
        slots: Some(slots),
        loads,
        frees: vec![],
    })
}

/// The waits that a tile ends with, in order; none of them twice.
fn waits_of(kernel: &Kernel, tile: &RegionData) -> Vec<Waits> {
    let mut found: Vec<Waits> = vec![];
    for &op in tile.ops.iter().rev() {
        if kernel.ops[op].kind.is_pure() {
            continue;
        }
        let Some(waits) = waits(kernel, op) else { break };
        let is_known = |part: &Part| found.iter().any(|w| w.barriers.contains(part));
        if waits.barriers.iter().any(is_known) {
            break;
        }
        found.push(waits);
    }
    found.reverse();
    found
}

fn waits(kernel: &Kernel, op: Op) -> Option<Waits> {
    let kind = &kernel.ops[op].kind;
    if let OpKind::BarrierWait {
        barrier,
        phases: Some(before),
    } = kind
    {
        let part = Part::of(kernel, barrier)?;
        return matches!(part.slot, Slot::At(_)).then(|| Waits {
            op,
            barriers: vec![part],
            phases: vec![(part.alloc, [*before, kernel.ops[op].results[0]])],
        });
    }
    // Nothing but waits for each slot.
    let OpKind::For { ref inits, body, .. } = *kind else {
        return None;
    };
    let slots = constant_bounds(kernel, kind).filter(|slots| slots.start == 0)?;
    let region = &kernel.regions[body];
    let (&i, carried) = region.params.split_first()?;
    let (mut barriers, mut phases) = (vec![], vec![]);
    for inner in region.ops.iter().map(|op| &kernel.ops[*op]) {
        let OpKind::BarrierWait {
            ref barrier,
            phases: Some(of),
        } = inner.kind
        else {
            if inner.kind.is_pure() {
                continue;
            }
            return None;
        };
        let part = Part::of(kernel, barrier)?;
        let Slot::Of(slot) = part.slot else { return None };
        let word = carried.iter().position(|v| *v == of)?;
        if inner.results[0] != region.results[word] || !is_rotation(kernel, slot, i, slots.end) {
            return None;
        }
        barriers.extend(slots.clone().map(|s| part.with(Slot::At(s))));
        phases.push((part.alloc, [inits[word], kernel.ops[op].results[word]]));
    }
    (phases.len() == carried.len()).then_some(Waits { op, barriers, phases })
}

/// The phases that waits of a tile's end flip, and nothing else looks at behind them.
fn words_of(kernel: &Kernel, tile: &RegionData, waits: &[Waits]) -> Found<Vec<Word>> {
    let uses = kernel.use_counts();
    let mut words: Vec<Word> = vec![];
    for &(barrier, [before, after]) in waits.iter().flat_map(|w| &w.phases) {
        if uses[after] != 1 {
            return Err(OTHER_WAITS);
        }
        match words.iter_mut().find(|word| word.barrier == barrier) {
            Some(word) if word.phases[1] == before => word.phases[1] = after,
            Some(_) => return Err(OTHER_WAITS),
            None => words.push(Word {
                barrier,
                carry: 0,
                phases: [before, after],
            }),
        }
    }
    for word in &mut words {
        let carried = tile.results.iter().position(|v| *v == word.phases[1]);
        word.carry = carried.ok_or(OTHER_WAITS)?;
    }
    // Loops are to stand behind the tiles'.
    let mut inside = vec![];
    for wait in waits {
        for region in regions_of(kernel, wait.op) {
            kernel.for_each_op_in(region, &mut |op| {
                visit::for_each_value(&kernel.ops[op].kind, &mut |v| inside.push((region, v)));
            });
        }
    }
    let of_tile = |v: Value| {
        let is_result = |op: &Op| kernel.ops[*op].results.contains(&v);
        tile.params.contains(&v) || tile.ops.iter().any(is_result)
    };
    let is_foreign = |(region, v): &(Region, Value)| of_tile(*v) && !values_defined_in(kernel, *region).contains(v);
    if inside.iter().any(is_foreign) {
        return Err(OTHER_WAITS);
    }
    Ok(words)
}

fn find(kernel: &Kernel, op: Op) -> Found<Drain> {
    let OpKind::For {
        ref xs,
        reverse: false,
        body,
        ..
    } = kernel.ops[op].kind
    else {
        return Err(NO_PLAIN_LOOP);
    };
    if !xs.is_empty() {
        return Err(NO_PLAIN_LOOP);
    }
    let tile = &kernel.regions[body];
    let (mut fills, waits) = (fills_of(kernel, tile), waits_of(kernel, tile));
    let (Some(last_fill), Some(first_wait)) = (fills.last(), waits.first()) else {
        return Err(NO_FILL_AND_DRAIN);
    };
    let place = |op: Op| tile.ops.iter().position(|o| *o == op).expect("an op of the tile");
    let middle = place(last_fill.op) + 1..place(first_wait.op);
    let words = words_of(kernel, tile, &waits)?;
    let barriers: Vec<Part> = waits.iter().flat_map(|w| w.barriers.clone()).collect();
    if barriers.len() < 2 {
        return Err("a tile waits for one slot only: its first copy needs it");
    }

    let mut inside = vec![];
    kernel.for_each_op_in(body, &mut |op| inside.push(op));
    inside.sort_unstable();
    let loads: Vec<[Part; 2]> = fills.iter().flat_map(|fill| fill.loads.clone()).collect();
    if !feeds_tensor_cores(kernel, &loads) {
        return Err(FEW_OPERATIONS);
    }
    if !sources_are_constant(kernel, body) {
        return Err("a copy reads what the kernel may write: its source is not an input");
    }
    let ring = Ring::find(kernel, &loads, &barriers, &inside).ok_or(OTHER_USES)?;
    if !producer_region(kernel, &tile.ops[middle], &ring) {
        return Err(OTHER_ROUNDS);
    }
    if !peers_release(kernel, body, &ring) {
        return Err(
            "a copy fills slots of other blocks of a cluster, which the barrier that releases them here does not release there",
        );
    }
    place_waits(&mut fills, &barriers, &ring)?;
    if !order::is_all(kernel, &ring, op) {
        return Err(OTHER_ORDER);
    }
    Ok(Drain { fills, waits, words })
}

/// Whether the ops between a tile's first round and its last do nothing but wait for slots and refill what they waited for.
fn producer_region(kernel: &Kernel, ops: &[Op], ring: &Ring) -> bool {
    let mut released: Vec<Part> = vec![];
    for &op in ops {
        let kind = &kernel.ops[op].kind;
        if let OpKind::BarrierWait { barrier, .. } = kind {
            match Part::of(kernel, barrier) {
                Some(free) if !ring.full(free).is_empty() => released.push(free),
                _ => return false,
            }
        } else if let Some([to, full]) = load(kernel, op) {
            let is_free = |f: Filled| f.full == full && released.contains(&f.free);
            if !ring.get(to).is_some_and(is_free) {
                return false;
            }
        } else if !may_be_twice(kernel, op) {
            let inner = regions_of(kernel, op);
            let is_producer = |r: &Region| producer_region(kernel, &kernel.regions[*r].ops, ring);
            if inner.is_empty() || !inner.iter().all(is_producer) {
                return false;
            }
            released.clear();
        }
    }
    true
}

/// Gives each wait to the first copy that needs it.
fn place_waits(fills: &mut [Fill], barriers: &[Part], ring: &Ring) -> Found<()> {
    let mut waited: Vec<Part> = vec![];
    for fill in fills {
        let is_loaded = |f: &&Filled| fill.loads.iter().any(|[to, _]| *to == f.to);
        let filled: Vec<&Filled> = ring.all().filter(is_loaded).collect();
        let mut frees: Vec<Part> = vec![];
        for f in &filled {
            if !frees.contains(&f.free) {
                frees.push(f.free);
            }
        }
        let is_known = |free: &Part| waited.contains(free);
        if fill.slots.is_some() {
            // A loop waits for all of its slots or for none.
            let of = |barrier: Alloc| frees.iter().filter(move |f| f.alloc == barrier);
            let some = |barrier: Alloc| of(barrier).any(is_known) && !of(barrier).all(is_known);
            if !filled.iter().all(|f| f.is_numbered()) || frees.iter().any(|f| some(f.alloc)) {
                return Err(OTHER_FILLS);
            }
        }
        frees.retain(|free| !is_known(free));
        waited.extend(&frees);
        fill.frees = frees;
    }
    let all = barriers.iter().all(|b| waited.contains(b));
    all.then_some(()).ok_or(OTHER_FILLS)
}

/// Whether no multiplication of what is loaded is limited by the loads.
fn feeds_tensor_cores(kernel: &Kernel, loads: &[[Part; 2]]) -> bool {
    let mut enough = true;
    kernel.for_each_op(&mut |op| {
        if let OpKind::Wgmma { b, .. } = &kernel.ops[op].kind
            && loads.iter().any(|[to, _]| to.alloc == b.alloc)
        {
            enough &= intensity::is_compute_bound(kernel, op);
        }
    });
    enough
}

/// Whether those blocks release what a copy fills in all of them.
fn peers_release(kernel: &Kernel, tile: Region, ring: &Ring) -> bool {
    let covers = |free: Part, axes: &[Axis]| {
        let AllocKind::Barrier {
            cluster: Some(cluster), ..
        } = &kernel.allocs[free.alloc].kind
        else {
            return false;
        };
        let mut groups = cluster.collective_axes.iter();
        !cluster.leader_tracked && groups.any(|group| axes.iter().all(|axis| group.contains(axis)))
    };
    let mut all = true;
    kernel.for_each_op_in(tile, &mut |op| {
        if let OpKind::CopyGmemToSmem {
            dst, collective_axes, ..
        } = &kernel.ops[op].kind
            && !collective_axes.is_empty()
        {
            all &= ring.filled.iter().filter(|f| f.to.alloc == dst.alloc).all(|filled| {
                let mut releases = ring.all().filter(|f| f.to == filled.to);
                releases.any(|f| covers(f.free, collective_axes))
            });
        }
    });
    all
}

/// Whether the copies read inputs, which nothing writes.
fn sources_are_constant(kernel: &Kernel, tile: Region) -> bool {
    let mut constant = true;
    kernel.for_each_op_in(tile, &mut |op| {
        if let OpKind::CopyGmemToSmem { src, .. } = &kernel.ops[op].kind {
            constant &= kernel.is_input(src.alloc);
        }
    });
    constant
}

/// Moves the waits. What stands behind the loop and the waits that now follow it for the loop's results.
fn defer(kernel: &mut Kernel, at: Region, op: Op, found: &Drain) -> Substitution {
    let OpKind::For { body, .. } = kernel.ops[op].kind else {
        unreachable!("`find` saw a loop")
    };
    let barriers: Vec<(RefUse, Loc)> = found
        .words
        .iter()
        .map(|word| a_wait(kernel, found, word.barrier))
        .collect();
    let loc = barriers[0].1;

    // A tile ends with the phases that the waits began with.
    for word in &found.words {
        kernel.regions[body].results[word.carry] = word.phases[0];
    }
    let mut ops = std::mem::take(&mut kernel.regions[body].ops);
    ops.retain(|op| found.waits.iter().all(|waits| waits.op != *op));

    // The first round waits, but for the first tile's.
    let place = |ops: &[Op], op: Op| ops.iter().position(|o| *o == op).expect("an op of the tile");
    let mut rounds = ops.split_off(place(&ops, found.fills[0].op));
    let last_fill = found.fills.last().expect("`find` saw copies").op;
    let rest = rounds.split_off(place(&rounds, last_fill) + 1);
    kernel.regions[body].ops = ops;
    let is_again = sink::is_again(kernel, body, op, loc);
    let begin: Vec<Value> = found
        .words
        .iter()
        .map(|word| kernel.regions[body].params[1 + word.carry])
        .collect();
    let mut now = begin.clone();
    for op in rounds {
        let fill = found.fills.iter().find(|fill| fill.op == op);
        for free in fill.iter().flat_map(|fill| &fill.frees) {
            let word = found.words.iter().position(|word| word.barrier == free.alloc);
            let word = word.expect("a barrier that is waited for");
            let (view, loc) = &barriers[word];
            match (fill.and_then(|fill| fill.slots.clone()), free.slot) {
                (Some(slots), slot) if slot == Slot::At(slots.start) => {
                    now[word] = wait_in_loop(kernel, op, is_again, view, now[word], *loc);
                }
                // Its loop's wait is made.
                (Some(_), _) => {}
                (None, Slot::At(s)) => {
                    now[word] = wait_if(kernel, body, is_again, view, Index::Const(s), now[word], *loc);
                }
                (None, _) => unreachable!("`find` saw numbers"),
            }
        }
        kernel.regions[body].ops.push(op);
    }
    let mut subst = Substitution::default();
    begin.iter().zip(&now).for_each(|(old, new)| subst.replace(*old, *new));
    for op in rest {
        kernel.regions[body].ops.push(op);
        subst.apply_nested(kernel, op);
    }
    subst.apply_results(kernel, body);

    // The last tile's waits.
    let ends: Vec<Value> = found
        .words
        .iter()
        .map(|word| kernel.ops[op].results[word.carry])
        .collect();
    let is_any = sink::is_any(kernel, at, op, loc);
    let results = append_if(kernel, at, is_any, &ends, loc, |kernel, then| {
        last_waits(kernel, then, found, &ends, loc)
    });
    let mut stands = Substitution::default();
    ends.iter()
        .zip(results)
        .for_each(|(old, new)| stands.replace(*old, new));
    stands
}

/// Moves the waits into a region behind the loop, where phases are `ends`. What phases are behind them.
fn last_waits(kernel: &mut Kernel, at: Region, found: &Drain, ends: &[Value], loc: Loc) -> Vec<Value> {
    let mut stands = Substitution::default();
    for (word, end) in found.words.iter().zip(ends) {
        stands.replace(word.phases[0], *end);
    }
    for waits in &found.waits {
        if let OpKind::For { lower, upper, .. } = kernel.ops[waits.op].kind {
            let [from, to] = [lower, upper].map(|v| {
                let bound = kernel.facts(v).as_constant().expect("`find` saw a constant");
                kernel.append_int(at, kernel.ty(v).dtype(), bound, loc)
            });
            if let OpKind::For { lower, upper, .. } = &mut kernel.ops[waits.op].kind {
                (*lower, *upper) = (from, to);
            }
        }
        if let OpKind::BarrierWait { barrier, .. } = &mut kernel.ops[waits.op].kind
            && let Slot::At(s) = waits.barriers[0].slot
        {
            barrier.steps = vec![Step::Index(vec![DimIndex::At(Index::Const(s))])];
        }
        stands.apply_nested(kernel, waits.op);
        kernel.regions[at].ops.push(waits.op);
    }
    found.words.iter().map(|word| word.phases[1]).collect()
}

/// The barrier of a wait of the tile's end, and which warps wait.
fn a_wait(kernel: &Kernel, found: &Drain, of: Alloc) -> (RefUse, Loc) {
    let mut wait = None;
    for waits in &found.waits {
        kernel.for_each_op_of(waits.op, &mut |op| {
            if let OpKind::BarrierWait { barrier, .. } = &kernel.ops[op].kind
                && barrier.alloc == of
            {
                wait = Some((barrier.clone(), kernel.ops[op].loc));
            }
        });
    }
    wait.expect("`find` saw a wait")
}

/// Appends a wait for a slot if a condition holds: the phases behind it.
fn wait_if(
    kernel: &mut Kernel,
    at: Region,
    condition: Value,
    barrier: &RefUse,
    slot: Index,
    before: Value,
    loc: Loc,
) -> Value {
    let behind = append_if(kernel, at, condition, &[before], loc, |kernel, then| {
        let mut barrier = barrier.clone();
        barrier.steps = vec![Step::Index(vec![DimIndex::At(slot)])];
        let kind = OpKind::BarrierWait {
            barrier,
            phases: Some(before),
        };
        let ty = kernel.ty(before).clone();
        vec![kernel.append1(then, kind, ty, loc)]
    });
    behind[0]
}

/// Lets a loop over slots wait for each if a condition holds: the phases behind it.
fn wait_in_loop(kernel: &mut Kernel, op: Op, condition: Value, barrier: &RefUse, before: Value, loc: Loc) -> Value {
    let OpKind::For { inits, body, .. } = &mut kernel.ops[op].kind else {
        unreachable!("`find` saw a loop")
    };
    let body = *body;
    inits.push(before);
    let group = kernel.regions[body].group;
    let ty = kernel.ty(before).clone();
    let slot = Index::Value(kernel.regions[body].params[0]);
    let [begins, behind] = [(); 2].map(|()| kernel.new_value(ty.clone(), group));
    kernel.regions[body].params.push(begins);
    let waited = wait_if(kernel, body, condition, barrier, slot, begins, loc);
    kernel.regions[body].ops.rotate_right(1);
    kernel.regions[body].results.push(waited);
    kernel.values[behind].def = op.into();
    kernel.ops[op].results.push(behind);
    behind
}
