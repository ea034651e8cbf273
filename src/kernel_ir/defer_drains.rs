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
//! Each slot's wait moves down to the copy that needs it: loads of the next tile begin while the last slots of this one are
//! still read. What a wait protects is not written down in a kernel, so the move needs proof that `b[s]` alone releases `x[s]`:
//!
//! * every other access to `x` reads slot `e` between a wait for `full[e]` and an arrival on `b[e]`, all in one region, with
//!   tensor cores done before the arrival; and nothing else arrives on `b`;
//! * the producer itself relies on it, between its first and its last round, for the same buffers;
//! * the copies' sources are inputs, which nothing writes.
//!
//! Where loads limit and not tensor cores, it is not done: blocks that run freely drift apart and share less of the L2 cache
//! (up to 8 % slower with 256x64 tiles of an 8192³ matmul on an H200; 1 to 2 % faster with 128x128 and 256x128).
use super::rewrite::{Substitution, append_compare, regions_of};
use super::*;
use crate::error::Result;

/// What was looked for, or why it is not so.
type Found<T> = std::result::Result<T, &'static str>;

pub fn run(kernel: &mut Kernel) -> Result<()> {
    let body = kernel.body;
    region(kernel, body);
    Ok(())
}

// The proof looks at the whole kernel: no op may be out of its place meanwhile.
fn region(kernel: &mut Kernel, at: Region) {
    let mut i = 0;
    while i < kernel.regions[at].ops.len() {
        let op = kernel.regions[at].ops[i];
        i += 1;
        for inner in regions_of(kernel, op) {
            region(kernel, inner);
        }
        let found = find(kernel, op).and_then(|drain| is_safe(kernel, op, &drain).map(|()| drain));
        let drain = match found {
            Ok(drain) => drain,
            Err(why) => {
                if is_candidate(kernel, op) {
                    let loc = kernel.ops[op].loc;
                    let pass = "defer_drains";
                    kernel.notes.push(Note::not_deferred(loc, pass, why));
                }
                continue;
            }
        };
        let rest = kernel.regions[at].ops.split_off(i);
        let (old, new) = defer(kernel, at, op, &drain);
        i = kernel.regions[at].ops.len();
        let mut subst = Substitution::default();
        subst.replace(old, new);
        for op in rest {
            kernel.regions[at].ops.push(op);
            subst.apply_nested(kernel, op);
        }
        subst.apply_results(kernel, at);
    }
}

/// A loop over tiles that begins with filling slots and ends with waiting for them.
struct Drain {
    /// The loop of copies, by its place in the tile's region, and the loop of waits.
    fill: usize,
    drain: usize,
    /// Where the phases of `barrier` are among the tile loop's carries.
    carry: usize,
    /// Released slots: a barrier for each.
    barrier: Alloc,
    /// Buffers that are filled, with the barriers that say so.
    filled: Vec<(Alloc, Alloc)>,
}

/// Whether a loop looks like a producer that fills a ring for one tile after the other: its steps have a loop that loads, and
/// waits that are not for loads. Only of those it is worth saying why they stay as they are.
fn is_candidate(kernel: &Kernel, op: Op) -> bool {
    let OpKind::For { lower, upper, body, .. } = kernel.ops[op].kind else {
        return false;
    };
    let (mut loaded, mut waited, mut nested) = (vec![], vec![], false);
    for &inner in &kernel.regions[body].ops {
        let mut loads = false;
        for region in regions_of(kernel, inner) {
            kernel.for_each_op_in(region, &mut |op| {
                let kind = &kernel.ops[op].kind;
                if let OpKind::CopyGmemToSmem {
                    barrier: Some(barrier), ..
                } = kind
                {
                    loads = true;
                    loaded.push(barrier.alloc);
                } else if let OpKind::BarrierWait { barrier, .. } = kind {
                    waited.push(barrier.alloc);
                }
            });
        }
        nested |= loads && matches!(kernel.ops[inner].kind, OpKind::For { .. });
    }
    let repeats = kernel.facts(upper).hi.saturating_sub(kernel.facts(lower).lo) > 1;
    repeats && nested && waited.iter().any(|barrier| !loaded.contains(barrier))
}

const NO_PLAIN_LOOP: &str = "it is no plain loop over tiles";
const NO_FILL_AND_DRAIN: &str = "a tile does not begin with a loop over the slots that fills them, and end with one over \
    the same slots that waits for them";
const OTHER_WAITS: &str = "the waits at a tile's end are not one for each slot, whose number is the loop's counter (or \
    that plus a constant, modulo the number of slots)";
const FEW_OPERATIONS: &str =
    "loads limit the kernel, not the tensor cores: blocks that run freely would share less of the L2 cache";
const OTHER_COPIES: &str = "the first copies of a tile are not into the slot that the loop's counter names, each with the \
    barrier of that slot and no predicate";

/// The bounds of a plain loop, if they are constants.
fn constant_bounds(kernel: &Kernel, kind: &OpKind) -> Option<(i64, i64)> {
    if let OpKind::For {
        lower,
        upper,
        xs,
        reverse: false,
        ..
    } = kind
        && xs.is_empty()
    {
        return Some((kernel.facts(*lower).as_constant()?, kernel.facts(*upper).as_constant()?));
    }
    None
}

/// The index of a buffer's first dimension, where that is its only dynamic choice of a slot.
fn slot(view: &RefUse) -> Option<Value> {
    match (view.steps.first(), &view.place) {
        (Some(Step::Index(dims)), Place::Here) => match dims.first() {
            Some(DimIndex::At(Index::Value(v))) => Some(*v),
            _ => None,
        },
        _ => None,
    }
}

fn barrier_slot(view: &RefUse) -> Option<Value> {
    match view.single_index() {
        Some(Index::Value(v)) => Some(v),
        _ => None,
    }
}

/// A copy into the slot that its barrier names too: the buffer, the barrier, the slot.
fn slot_copy(kind: &OpKind) -> Option<(Alloc, Alloc, Value)> {
    let OpKind::CopyGmemToSmem {
        dst,
        barrier: Some(barrier),
        leader_tracked: None,
        predicate: None,
        ..
    } = kind
    else {
        return None;
    };
    let at = slot(dst)?;
    (barrier_slot(barrier)? == at).then_some((dst.alloc, barrier.alloc, at))
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
    let effectful = |op: &Op| !kernel.ops[*op].kind.is_pure();
    let fill = tile.ops.iter().position(effectful).ok_or(NO_FILL_AND_DRAIN)?;
    let drain = tile.ops.iter().rposition(effectful).ok_or(NO_FILL_AND_DRAIN)?;
    let (first, last) = (&kernel.ops[tile.ops[fill]], &kernel.ops[tile.ops[drain]]);
    let (first_slot, slots) = constant_bounds(kernel, &last.kind).ok_or(NO_FILL_AND_DRAIN)?;
    if fill == drain || constant_bounds(kernel, &first.kind) != Some((first_slot, slots)) {
        return Err(NO_FILL_AND_DRAIN);
    }

    // The waits: nothing but one for each slot.
    let OpKind::For {
        ref inits, body: waits, ..
    } = last.kind
    else {
        return Err(OTHER_WAITS);
    };
    let waits = &kernel.regions[waits];
    let (Some((&wait, indexing)), &[i, phases]) = (waits.ops.split_last(), &waits.params[..]) else {
        return Err(OTHER_WAITS);
    };
    if indexing.iter().any(effectful) {
        return Err(OTHER_WAITS);
    }
    let OpKind::BarrierWait {
        ref barrier,
        phases: Some(of),
    } = kernel.ops[wait].kind
    else {
        return Err(OTHER_WAITS);
    };
    let threaded = of == phases && kernel.ops[wait].results[..] == waits.results[..] && inits.len() == 1;
    let rotates = barrier_slot(barrier).is_some_and(|s| is_rotation(kernel, s, i, slots));
    if !threaded || first_slot != 0 || !rotates {
        return Err(OTHER_WAITS);
    }
    let after = last.results[0];
    let carry = tile.results.iter().position(|v| *v == after).ok_or(OTHER_WAITS)?;
    let mut uses = tile.results.iter().filter(|v| **v == after).count();
    for &op in &tile.ops[drain + 1..] {
        visit::for_each_value(&kernel.ops[op].kind, &mut |v| uses += usize::from(v == after));
    }

    // The copies.
    let OpKind::For { body: fills, .. } = first.kind else {
        return Err(OTHER_COPIES);
    };
    let fills = &kernel.regions[fills];
    let mut filled = vec![];
    for &op in &fills.ops {
        let kind = &kernel.ops[op].kind;
        if !kind.is_pure() {
            let (buffer, full, at) = slot_copy(kind).ok_or(OTHER_COPIES)?;
            if at != fills.params[0] {
                return Err(OTHER_COPIES);
            }
            filled.push((buffer, full));
        }
    }
    if uses != 1 {
        return Err(OTHER_WAITS);
    }
    if filled.is_empty() {
        return Err(OTHER_COPIES);
    }
    Ok(Drain {
        fill,
        drain,
        carry,
        barrier: barrier.alloc,
        filled,
    })
}

fn is_safe(kernel: &Kernel, op: Op, found: &Drain) -> Found<()> {
    const OTHER_ROUNDS: &str =
        "between its first and its last round the producer does something else than wait for a slot and refill it";
    let OpKind::For { body, .. } = kernel.ops[op].kind else {
        return Err(NO_PLAIN_LOOP);
    };
    let tile = &kernel.regions[body];
    // The producer's other rounds.
    let mut refilled = vec![];
    for &op in &tile.ops[found.fill + 1..found.drain] {
        for inner in regions_of(kernel, op) {
            if !producer_region(kernel, inner, found, &mut refilled) {
                return Err(OTHER_ROUNDS);
            }
        }
        let kind = &kernel.ops[op].kind;
        if regions_of(kernel, op).is_empty() && !kind.is_pure() {
            return Err(OTHER_ROUNDS);
        }
    }
    if !found.filled.iter().all(|(buffer, _)| refilled.contains(buffer)) {
        return Err("a buffer is filled in a tile's first round only");
    }
    // Everybody else.
    let mut inside = vec![];
    kernel.for_each_op_in(body, &mut |op| inside.push(op));
    inside.sort_unstable();
    if !feeds_enough(kernel, found) {
        return Err(FEW_OPERATIONS);
    }
    if !sources_are_constant(kernel, body) {
        return Err("a copy reads what the kernel may write: its source is not an input");
    }
    if !others_release(kernel, kernel.body, &inside, found) {
        return Err(
            "a buffer or a barrier of the ring is used other than between the wait for a full slot and the one arrival \
             that releases it",
        );
    }
    Ok(())
}

/// Whether a region between the first round and the last does nothing but wait for slots and refill what it waited for.
fn producer_region(kernel: &Kernel, at: Region, found: &Drain, refilled: &mut Vec<Alloc>) -> bool {
    let mut released = None;
    for &op in &kernel.regions[at].ops {
        let kind = &kernel.ops[op].kind;
        if let OpKind::BarrierWait { barrier, .. } = kind
            && barrier.alloc == found.barrier
        {
            released = barrier_slot(barrier);
        } else if let Some((buffer, full, s)) = slot_copy(kind)
            && released == Some(s)
            && found.filled.contains(&(buffer, full))
        {
            refilled.push(buffer);
        } else if !kind.is_pure() {
            let inner = regions_of(kernel, op);
            if inner.is_empty() || !inner.iter().all(|r| producer_region(kernel, *r, found, refilled)) {
                return false;
            }
        }
    }
    true
}

/// Whether no multiplication of what is loaded is limited by the loads.
fn feeds_enough(kernel: &Kernel, found: &Drain) -> bool {
    let mut enough = true;
    kernel.for_each_op(&mut |op| {
        if let OpKind::Wgmma { b, .. } = &kernel.ops[op].kind
            && found.filled.iter().any(|(buffer, _)| *buffer == b.alloc)
        {
            enough &= intensity::is_compute_bound(kernel, op);
        }
    });
    enough
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

/// Whether all that is done with the buffers and with the barriers outside of the producer lies between a wait for the full
/// slot and the arrival that releases it.
fn others_release(kernel: &Kernel, at: Region, producer: &[Op], found: &Drain) -> bool {
    let ops = &kernel.regions[at].ops;
    for (i, &op) in ops.iter().enumerate() {
        let kind = &kernel.ops[op].kind;
        if producer.binary_search(&op).is_ok() {
            continue;
        }
        if !regions_of(kernel, op)
            .iter()
            .all(|r| others_release(kernel, *r, producer, found))
        {
            return false;
        }
        let waited_for = |full: Alloc, s: Value| {
            let mut kinds = ops[..i].iter().map(|op| &kernel.ops[*op].kind);
            let waits = |b: &RefUse| b.alloc == full && barrier_slot(b) == Some(s);
            kinds.any(|kind| matches!(kind, OpKind::BarrierWait { barrier, .. } if waits(barrier)))
        };
        if let OpKind::BarrierArrive { barrier, predicate } = kind
            && barrier.alloc == found.barrier
        {
            let ordered = barrier_slot(barrier)
                .is_some_and(|s| found.filled.iter().all(|(_, full)| waited_for(*full, s)) && predicate.is_none());
            if !ordered {
                return false;
            }
            continue;
        }
        let mut touches_barrier = false;
        visit::for_each_ref(kind, &mut |view| touches_barrier |= view.alloc == found.barrier);
        if touches_barrier {
            return false;
        }
        for effect in effects::of(kind) {
            // A member of a union shares bytes with others, which the slots say nothing of.
            let shares = |buffer: Alloc| effects::may_share(kernel, buffer, effect.alloc);
            let Some((_, full)) = found.filled.iter().find(|(buffer, _)| *buffer == effect.alloc) else {
                if found.filled.iter().any(|(buffer, _)| shares(*buffer)) {
                    return false;
                }
                continue;
            };
            let read = match slot(effect.view) {
                Some(s) => {
                    !effect.access.writes()
                        && waited_for(*full, s)
                        && released_behind(kernel, &ops[i + 1..], effect.is_asynchronous(), found.barrier, s)
                }
                None => false,
            };
            if !read {
                return false;
            }
        }
    }
    true
}

/// Whether `s` is released once by the ops that follow an access, after the tensor cores are done where they do it.
fn released_behind(kernel: &Kernel, ops: &[Op], asynchronous: bool, barrier: Alloc, s: Value) -> bool {
    let mut done = !asynchronous;
    for op in ops {
        let kind = &kernel.ops[*op].kind;
        done |= matches!(kind, OpKind::WgmmaWait { n: 0, .. });
        if let OpKind::BarrierArrive { barrier: b, .. } = kind
            && b.alloc == barrier
        {
            return done && barrier_slot(b) == Some(s);
        }
    }
    false
}

/// Moves the waits. The tile loop's phases, and what they are after the waits that now follow it.
fn defer(kernel: &mut Kernel, at: Region, op: Op, found: &Drain) -> (Value, Value) {
    let OpKind::For { lower, upper, body, .. } = kernel.ops[op].kind else {
        unreachable!("`find` saw a loop")
    };
    let group = kernel.regions[body].group;
    let drain = kernel.regions[body].ops.remove(found.drain);
    let fill = kernel.regions[body].ops[found.fill];
    let OpKind::For {
        inits: drained,
        body: waits,
        ..
    } = kernel.ops[drain].kind.clone()
    else {
        unreachable!("`find` saw a loop")
    };
    let wait = *kernel.regions[waits].ops.last().expect("`find` saw a wait");
    let wait_loc = kernel.ops[wait].loc;
    let OpKind::BarrierWait { mut barrier, .. } = kernel.ops[wait].kind.clone() else {
        unreachable!("`find` saw a wait")
    };

    // A tile ends with the phases that the waits began with.
    kernel.regions[body].results[found.carry] = drained[0];
    let phases = kernel.regions[body].params[1 + found.carry];
    let phases_type = kernel.ty(phases).clone();

    // The first round waits, but for the first tile's.
    let tile = kernel.regions[body].params[0];
    let from_fill = kernel.regions[body].ops.split_off(found.fill);
    let is_again = append_compare(kernel, body, CompareOp::Gt, tile, lower, wait_loc);
    kernel.regions[body].ops.extend(from_fill);
    let OpKind::For { inits, body: fills, .. } = &mut kernel.ops[fill].kind else {
        unreachable!("`find` saw a loop")
    };
    inits.push(phases);
    let fills = *fills;
    let s = kernel.regions[fills].params[0];
    let before = kernel.new_value(phases_type.clone(), group);
    kernel.regions[fills].params.push(before);
    barrier.steps = vec![Step::Index(vec![DimIndex::At(Index::Value(s))])];
    let (skips, waits_too) = (kernel.new_region(group), kernel.new_region(group));
    kernel.regions[skips].results.push(before);
    let kind = OpKind::BarrierWait {
        barrier,
        phases: Some(before),
    };
    let flipped = kernel.append1(waits_too, kind, phases_type.clone(), wait_loc);
    kernel.regions[waits_too].results.push(flipped);
    let kind = OpKind::Switch {
        selector: is_again,
        arms: vec![skips, waits_too],
    };
    let choice = kernel.new_op(kind, [phases_type.clone()], group, wait_loc);
    kernel.regions[fills].ops.insert(0, choice);
    let chosen = kernel.ops[choice].results[0];
    kernel.regions[fills].results.push(chosen);
    let behind_fill = kernel.new_value(phases_type.clone(), group);
    kernel.values[behind_fill].def = fill.into();
    kernel.ops[fill].results.push(behind_fill);
    let mut subst = Substitution::default();
    subst.replace(phases, behind_fill);
    let rest = kernel.regions[body].ops[found.fill + 2..].to_vec();
    for op in rest {
        subst.apply_nested(kernel, op);
    }
    subst.apply_results(kernel, body);

    // The last tile's waits.
    let ended = kernel.ops[op].results[found.carry];
    if let OpKind::For { inits, .. } = &mut kernel.ops[drain].kind {
        inits[0] = ended;
    }
    let (none, some) = (kernel.new_region(group), kernel.new_region(group));
    kernel.regions[none].results.push(ended);
    kernel.regions[some].ops.push(drain);
    let after = kernel.ops[drain].results[0];
    kernel.regions[some].results.push(after);
    let is_any = append_compare(kernel, at, CompareOp::Lt, lower, upper, wait_loc);
    let kind = OpKind::Switch {
        selector: is_any,
        arms: vec![none, some],
    };
    (ended, kernel.append1(at, kind, phases_type, wait_loc))
}
