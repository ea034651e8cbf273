//! Stores one tile while the tensor cores compute the next.
//!
//! A warpgroup that computes one tile after the other leaves the tensor cores idle while it stores a tile. Here it keeps the
//! finished tile in registers, starts the next one, and stores a part in each of its first steps, while the step's wgmma
//! runs; the last tile is stored behind the loop:
//!
//! ```text
//! for tile {                            for tile (kept) {
//!   for k in 0..n {                       for k in 0..parts {           (unrolled)
//!     wait; wgmma; wgmma_wait; arrive       wait; wgmma; if tile > first { part k of the epilogue of kept }; wgmma_wait; arrive
//!   }                                     }
//!   x = acc_read                    =>    for k in parts..n { wait; wgmma; wgmma_wait; arrive }
//!   epilogue of x                         yield acc_read
//! }                                     }
//!                                       if any tile { epilogue of kept }
//! ```
//!
//! The epilogue may be late because nobody looks: it only writes shared memory that nothing else touches, and copies it to an
//! output that nothing else touches. Empty groups that the steps commit in between make its waits for older copies stricter,
//! never weaker. What it adds it may load, from inputs, which nobody writes, or copy into such memory and wait for on barriers
//! that nothing else touches: their phases are a *chain*, which goes from one epilogue to the next and not through tiles. A
//! part ends with such a copy, too, so that a step goes by until the copy is waited for. Steps may be
//! written out, some or all of them: wherever products are in flight there is a place for a part, and loops are unrolled for as many parts
//! as are left.
//!
//! With [`defer_drains`](super::defer_drains), without which nothing would be there to compute, it is worth 1 to 2 % of a large
//! matmul.
use super::liveness::Around;
use super::loads::{loads_input, may_be_twice};
use super::rewrite::{Substitution, append_compare, carry, copy_op, regions_of};
use super::*;
use crate::error::{Loc, Result};
use rustc_hash::FxHashMap;
use std::collections::VecDeque;
use std::ops::Range;

/// What was looked for, or why it is not so.
type Found<T> = std::result::Result<T, &'static str>;

pub fn run(kernel: &mut Kernel) -> Result<()> {
    let (body, around) = (kernel.body, Around::new(kernel));
    if !kernel.has_instructions() {
        region(kernel, body, around);
    }
    Ok(())
}

// The proof looks at the whole kernel: no op may be out of its place meanwhile.
fn region(kernel: &mut Kernel, at: Region, mut around: Around) {
    let mut i = 0;
    while i < kernel.regions[at].ops.len() {
        let op = kernel.regions[at].ops[i];
        i += 1;
        around.pass(kernel, op);
        match find(kernel, op, around.registers) {
            Ok(tail) => {
                let rest = kernel.regions[at].ops.split_off(i);
                let mut stands = defer(kernel, at, op, &tail);
                rest.iter().for_each(|op| stands.apply_nested(kernel, *op));
                stands.apply_results(kernel, at);
                i = kernel.regions[at].ops.len();
                kernel.regions[at].ops.extend(rest);
            }
            Err(why) => {
                if is_candidate(kernel, op) {
                    let loc = kernel.ops[op].loc;
                    let pass = "defer_epilogue";
                    kernel.notes.push(Note::not_deferred(loc, pass, why));
                }
                for inner in regions_of(kernel, op) {
                    region(kernel, inner, around.clone());
                }
            }
        }
    }
}

/// A loop over tiles whose end can wait.
struct Tail {
    steps: Vec<Steps>,
    /// Where the epilogue begins in the tile's region, and where its parts end.
    begin: usize,
    parts: Vec<usize>,
    /// What the epilogue takes from the tile.
    kept: Vec<Value>,
    chains: Vec<Phases>,
}

/// Where products are in flight: at an op of the tile's region.
struct Steps {
    at: usize,
    over: Over,
}

enum Over {
    /// A product: the last one before a wait.
    Product,
    /// A loop of steps: its bounds, and of the ops of a step those products.
    Loop {
        lower: i64,
        upper: i64,
        products: Vec<usize>,
    },
}

impl Steps {
    /// How many parts may stand there.
    fn room(&self) -> usize {
        match &self.over {
            Over::Product => 1,
            Over::Loop { lower, upper, products } => usize::try_from(upper - lower).unwrap_or(0) * products.len(),
        }
    }
}

/// A chain: phases of a barrier that only epilogues wait for.
struct Phases {
    /// Which of the values that the loop carries.
    carry: usize,
    /// What they are at the epilogue's beginning, and at the end of each part.
    at: Vec<Value>,
}

/// Whether a loop looks like one over tiles: its steps read an accumulator behind a loop that multiplies into it. Only of those
/// it is worth saying why they stay as they are.
fn is_candidate(kernel: &Kernel, op: Op) -> bool {
    let OpKind::For { lower, upper, body, .. } = kernel.ops[op].kind else {
        return false;
    };
    let multiplies = |op: Op| matches!(kernel.ops[op].kind, OpKind::For { .. }) && kernel.multiplies_within(op);
    let ops = &kernel.regions[body].ops;
    let reads = ops
        .iter()
        .any(|op| matches!(kernel.ops[*op].kind, OpKind::AccRead { .. }));
    let repeats = kernel.facts(upper).hi.saturating_sub(kernel.facts(lower).lo) > 1;
    repeats && reads && ops.iter().any(|op| multiplies(*op))
}

const NO_TILES: &str = "it is no plain loop over more than one tile";
const OTHER_STEPS: &str =
    "the steps of a tile are not waits, wgmmas into the tile's accumulators, waits for them, and arrivals";
const OTHER_TILE: &str = "something happens between a tile's steps and its epilogue, or before the steps";
const OTHER_PHASES: &str = "the epilogue waits for a barrier whose phases something else looks at";
const NO_PARTS: &str = "the epilogue has no copy out of shared memory at which it could be parted";

/// `registers` are those of a thread that executes the op.
fn find(kernel: &Kernel, op: Op, registers: u32) -> Found<Tail> {
    let OpKind::For {
        lower,
        upper,
        ref xs,
        reverse: false,
        body,
        ..
    } = kernel.ops[op].kind
    else {
        return Err(NO_TILES);
    };
    let trips = kernel.facts(upper).hi.saturating_sub(kernel.facts(lower).lo);
    if !xs.is_empty() || trips <= 1 {
        return Err(NO_TILES);
    }
    let tile = &kernel.regions[body];
    let (steps, read) = steps(kernel, tile)?;
    let begin = read
        + 1
        + tile.ops[read + 1..]
            .iter()
            .position(|op| !may_be_twice(kernel, *op))
            .ok_or(NO_PARTS)?;
    let epilogue = &tile.ops[begin..];
    if !epilogue.iter().all(|op| may_be_late(kernel, *op)) {
        return Err(
            "the epilogue does something else than load inputs, copy them to shared memory, store there and copy that out",
        );
    }
    if !is_private(kernel, epilogue) {
        return Err(
            "something else in the kernel uses the memory that the epilogue writes, or it is a part of a union",
        );
    }

    // Nothing of the epilogue is alive behind it but chains.
    let own: Vec<Value> = epilogue
        .iter()
        .flat_map(|op| kernel.ops[*op].results.to_vec())
        .collect();
    let mut chains: Vec<Phases> = (0..tile.results.len())
        .filter(|i| own.contains(&tile.results[*i]))
        .map(|carry| Phases {
            carry,
            at: vec![tile.params[carry + 1]],
        })
        .collect();

    // What is alive from the tile to its epilogue.
    let inside: Vec<Value> = {
        let results = tile.ops[..begin].iter().flat_map(|op| kernel.ops[*op].results.to_vec());
        tile.params.iter().copied().chain(results).collect()
    };
    let mut kept = vec![];
    for op in epilogue {
        visit::for_each_value(&kernel.ops[*op].kind, &mut |v| {
            if inside.contains(&v) && !kept.contains(&v) && chains.iter().all(|chain| chain.at[0] != v) {
                kept.push(v);
            }
        });
    }
    let bits = |v: Value| {
        let ty = kernel.ty(v);
        let bits = ty.shape().iter().product::<u64>() * u64::from(ty.dtype().bits());
        match ty.shape().len() {
            _ if ty.is_scalar() => 32,
            // Of a row that is added to an accumulator, four threads have it all.
            0 | 1 => bits / 4,
            // An array is spread over the warpgroup's 128 threads.
            _ => bits / 128,
        }
    };
    let is_read = |op: &&Op| matches!(kernel.ops[**op].kind, OpKind::AccRead { .. });
    let read: Vec<Value> = tile.ops[..=read]
        .iter()
        .filter(is_read)
        .flat_map(|op| kernel.ops[*op].results.to_vec())
        .collect();
    let accumulators = read.into_iter().filter(|v| kernel.ty(*v).is_acc());
    let needed = kept.iter().copied().chain(accumulators).map(bits).sum::<u64>() / 32;
    let loads = epilogue
        .iter()
        .filter(|op| matches!(kernel.ops[**op].kind, OpKind::Load { .. }));
    let loaded = loads.map(|op| bits(kernel.ops[*op].results[0]) / 32).max().unwrap_or(0);
    // What is loaded may take half of what is left for addresses.
    let reserve = kernel.target.deferred_reserve;
    let leaves = |words: u64, left: u32| words + u64::from(left) <= registers.into();
    let fits = leaves(needed, reserve) && leaves(needed + loaded, reserve / 2);
    if !fits || kept.iter().any(|v| kernel.ty(*v).is_acc()) {
        return Err("a finished tile and the next one's accumulator do not fit into registers together");
    }
    let has_room = leaves(needed + loaded, reserve);
    let room = steps.iter().map(Steps::room).sum();
    let parts = parts(kernel, tile, begin, room, has_room, &mut chains)?;
    Ok(Tail {
        steps,
        begin,
        parts,
        kept,
        chains,
    })
}

/// Where parts of an epilogue end: behind copies out of shared memory, and into it if there are steps enough and registers have room (more
/// parts take some for themselves), unless a value that cannot be had twice is alive there. Follows the chains from part to part.
fn parts(
    kernel: &Kernel,
    tile: &RegionData,
    begin: usize,
    steps: usize,
    has_room: bool,
    chains: &mut [Phases],
) -> Found<Vec<usize>> {
    let epilogue = &tile.ops[begin..];
    let mut now: Vec<Value> = chains.iter().map(|chain| chain.at[0]).collect();
    // What phases are before the first op, the second one, ..., and at the end.
    let mut before = vec![now.clone()];
    for op in epilogue {
        if let OpKind::BarrierWait { phases, .. } = kernel.ops[*op].kind {
            let chain = now.iter_mut().find(|v| Some(**v) == phases).ok_or(OTHER_PHASES)?;
            *chain = kernel.ops[*op].results[0];
        }
        before.push(now.clone());
    }
    let is_carried = |(chain, v): (&Phases, &Value)| tile.results[chain.carry] == *v;
    if !chains.iter().zip(&now).all(is_carried) {
        return Err("the next tile takes something from the epilogue");
    }
    // Phases are used by the waits that follow each other, and by nobody else.
    let is_phases = |v: Value| before.iter().any(|now| now.contains(&v));
    let uses = kernel.use_counts();
    if before.iter().flatten().any(|v| uses[*v] != 1) {
        return Err(OTHER_PHASES);
    }

    let is_alive = |at: usize| {
        let once = epilogue[..at].iter().filter(|op| !may_be_twice(kernel, **op));
        let made: Vec<Value> = once.flat_map(|op| kernel.ops[*op].results.to_vec()).collect();
        let mut alive = false;
        for op in &epilogue[at..] {
            visit::for_each_value(&kernel.ops[*op].kind, &mut |v| {
                alive |= made.contains(&v) && !is_phases(v);
            });
        }
        alive
    };
    let is_in = |op: &Op| matches!(kernel.ops[*op].kind, OpKind::CopyGmemToSmem { .. });
    let is_out = |op: &Op| matches!(kernel.ops[*op].kind, OpKind::CopySmemToGmem { .. });
    // Behind a copy out of shared memory a part goes on to the next copy into it.
    let goes_on = |at: usize| {
        let stops = |op: &&Op| {
            let kind = &kernel.ops[**op].kind;
            !kind.is_pure() && !matches!(kind, OpKind::WaitSmemToGmem { .. } | OpKind::CommitGroup)
        };
        epilogue[at..].iter().find(stops).is_some_and(is_in)
    };
    let ends = |with_in: bool| -> Vec<usize> {
        let is_end = |at: &usize| {
            let op = &epilogue[at - 1];
            is_out(op) && !(with_in && goes_on(*at)) || with_in && is_in(op) && !goes_on(*at)
        };
        (1..=epilogue.len()).filter(|at| is_end(at) && !is_alive(*at)).collect()
    };
    let mut ends = Some(ends(has_room))
        .filter(|ends| ends.len() <= steps)
        .unwrap_or_else(|| ends(false));
    *ends.last_mut().ok_or(NO_PARTS)? = epilogue.len();
    if ends.len() > steps {
        return Err("the epilogue has more copies than a tile has steps");
    }
    for end in &ends {
        chains
            .iter_mut()
            .zip(&before[*end])
            .for_each(|(chain, v)| chain.at.push(*v));
    }
    Ok(ends.into_iter().map(|end| begin + end).collect())
}

/// The steps of a tile, up to the last read of its accumulators.
fn steps(kernel: &Kernel, tile: &RegionData) -> Found<(Vec<Steps>, usize)> {
    let (mut steps, mut product, mut read) = (vec![], None, None);
    let a_step = |at: usize| {
        let over = Over::Product;
        Steps { at, over }
    };
    for (at, &op) in tile.ops.iter().enumerate() {
        let kind = &kernel.ops[op].kind;
        if let OpKind::AccRead { .. } = kind {
            read = Some(at);
        } else if matches!(kind, OpKind::AccInit { .. }) || may_be_twice(kernel, op) {
            continue;
        } else if read.is_some() {
            break;
        } else if matches!(kind, OpKind::For { .. }) && kernel.multiplies_within(op) {
            // It waits, too.
            steps.extend(product.take().map(a_step));
            let over = k_loop(kernel, op)?;
            steps.push(Steps { at, over });
        } else if is_of_step(kernel, op)? {
            steps.extend(waited_for(kind, at, &mut product).map(a_step));
        } else {
            break;
        }
    }
    match read {
        Some(read) if product.is_none() && !steps.is_empty() => Ok((steps, read)),
        _ => Err(OTHER_TILE),
    }
}

/// The last product, where an op waits for it; until then it is `in_flight`.
fn waited_for(kind: &OpKind, at: usize, in_flight: &mut Option<usize>) -> Option<usize> {
    if let OpKind::Wgmma { .. } = kind {
        *in_flight = Some(at);
    }
    let waits = matches!(kind, OpKind::WgmmaWait { .. });
    in_flight.take_if(|_| waits)
}

/// A loop whose steps wait for operands, multiply, and release the operands.
fn k_loop(kernel: &Kernel, op: Op) -> Found<Over> {
    let OpKind::For {
        lower,
        upper,
        ref xs,
        reverse: false,
        body,
        ..
    } = kernel.ops[op].kind
    else {
        return Err(OTHER_STEPS);
    };
    let (mut product, mut products) = (None, vec![]);
    for (i, &op) in kernel.regions[body].ops.iter().enumerate() {
        let kind = &kernel.ops[op].kind;
        if !kind.is_pure() && !is_of_step(kernel, op)? {
            return Err(OTHER_STEPS);
        }
        products.extend(waited_for(kind, i, &mut product));
    }
    if product.is_some() || products.is_empty() || !xs.is_empty() {
        return Err(OTHER_STEPS);
    }
    match (kernel.facts(lower).as_constant(), kernel.facts(upper).as_constant()) {
        (Some(lower), Some(upper)) => Ok(Over::Loop { lower, upper, products }),
        _ => Err("the number of steps of a tile is not constant"),
    }
}

/// Whether a step may consist of such ops: waits, products that tensor cores limit, waits for them, arrivals.
fn is_of_step(kernel: &Kernel, op: Op) -> Found<bool> {
    let kind = &kernel.ops[op].kind;
    if matches!(kind, OpKind::Wgmma { .. }) && !intensity::is_compute_bound(kernel, op) {
        return Err("loads limit the kernel, not the tensor cores");
    }
    Ok(matches!(
        kind,
        OpKind::BarrierWait { .. }
            | OpKind::Wgmma { .. }
            | OpKind::WgmmaWait { .. }
            | OpKind::BarrierArrive { .. }
            | OpKind::CommitGroup
    ))
}

/// Loads, copies of inputs to shared memory and waits for them, stores there, copies out of it, and their fences and waits.
fn may_be_late(kernel: &Kernel, op: Op) -> bool {
    let kind = &kernel.ops[op].kind;
    let is_here =
        |view: &RefUse| view.place == Place::Here && matches!(kernel.allocs[view.alloc].kind, AllocKind::Smem { .. });
    if let OpKind::Load { src } = kind {
        return is_here(src) || loads_input(kernel, op);
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
        let places = src.place == Place::Here && barrier.place == Place::Here;
        return places && kernel.is_input(src.alloc) && is_here(dst) && collective_axes.is_empty();
    }
    if let OpKind::BarrierWait { barrier, phases } = kind {
        return barrier.place == Place::Here && phases.is_some();
    }
    if let OpKind::Store { dst, .. } = kind {
        return is_here(dst);
    }
    if let OpKind::CopySmemToGmem { dst, commit_group, .. } = kind {
        return *commit_group && dst.place == Place::Here;
    }
    kind.is_pure()
        || matches!(
            kind,
            OpKind::CommitSmem | OpKind::CommitGroup | OpKind::WaitSmemToGmem { .. }
        )
}

/// Whether nothing else in the kernel touches the memory and barriers that these ops touch, but for inputs.
fn is_private(kernel: &Kernel, ops: &[Op]) -> bool {
    let mut touched = vec![];
    for op in ops {
        visit::for_each_ref(&kernel.ops[*op].kind, &mut |view| touched.push(view.alloc));
    }
    touched.retain(|alloc| !kernel.is_input(*alloc));
    let mut shared = false;
    kernel.for_each_op(&mut |op| {
        if !ops.contains(&op) {
            visit::for_each_ref(&kernel.ops[op].kind, &mut |view| {
                shared |= touched.contains(&view.alloc)
            });
        }
    });
    // Members of a union share bytes with others.
    !shared && touched.iter().all(|a| kernel.allocs[*a].within.is_none())
}

/// A part of the epilogue, with the ops of earlier parts that it needs.
fn part(kernel: &Kernel, epilogue: &[Op], range: Range<usize>) -> Vec<Op> {
    let mut needed = vec![];
    let mut note = |op: Op| visit::for_each_value(&kernel.ops[op].kind, &mut |v| needed.push(v));
    epilogue[range.clone()].iter().for_each(|op| note(*op));
    let mut earlier = vec![];
    for &op in epilogue[..range.start].iter().rev() {
        if may_be_twice(kernel, op) && kernel.ops[op].results.iter().any(|v| needed.contains(v)) {
            visit::for_each_value(&kernel.ops[op].kind, &mut |v| needed.push(v));
            earlier.push(op);
        }
    }
    earlier.reverse();
    earlier.extend(&epilogue[range]);
    earlier
}

/// What stands behind the loop and the last epilogue for the loop's results.
fn defer(kernel: &mut Kernel, at: Region, op: Op, tail: &Tail) -> Substitution {
    let OpKind::For { lower, upper, body, .. } = kernel.ops[op].kind else {
        unreachable!("`find` saw a loop")
    };
    let loc = kernel.ops[op].loc;
    let ops = std::mem::take(&mut kernel.regions[body].ops);
    let epilogue: Vec<Vec<Op>> = {
        let begins = std::iter::once(tail.begin).chain(tail.parts.iter().copied());
        let ranges = begins.zip(tail.parts.iter().copied());
        ranges
            .map(|(from, to)| part(kernel, &ops[tail.begin..], from - tail.begin..to - tail.begin))
            .collect()
    };

    // The loop is the last op so far.
    kernel.regions[at].ops.pop();
    let [before, mut behind] = carry(kernel, at, op, &tail.kept);

    // The tile, with as many steps written out as there are parts.
    let tile = kernel.regions[body].params[0];
    let is_again = append_compare(kernel, body, CompareOp::Gt, tile, lower, loc);
    let mut late = Late {
        parts: epilogue.iter().enumerate().collect(),
        chains: &tail.chains,
        phases: tail.chains.iter().map(|chain| chain.at[0]).collect(),
        before,
        is_again,
        loc,
    };
    for (at, &op) in ops[..tail.begin].iter().enumerate() {
        let steps = tail.steps.iter().find(|steps| steps.at == at);
        if let Some(Over::Loop { lower, upper, products }) = steps.map(|steps| &steps.over) {
            late.unroll(kernel, body, op, *lower..*upper, products);
        }
        kernel.regions[body].ops.push(op);
        if let Some(Over::Product) = steps.map(|steps| &steps.over) {
            late.place_part(kernel, body);
        }
    }
    assert!(late.parts.is_empty());
    let phases = late.phases;

    for (chain, v) in tail.chains.iter().zip(&phases) {
        kernel.regions[body].results[chain.carry] = *v;
    }

    // The last tile.
    let is_any = append_compare(kernel, at, CompareOp::Lt, lower, upper, loc);
    let ends = kernel.ops[op].results.clone();
    behind.extend(tail.chains.iter().map(|chain| (chain.at[0], ends[chain.carry])));
    let moves: Vec<[Value; 2]> = tail
        .chains
        .iter()
        .map(|chain| [chain.at[0], chain.at[epilogue.len()]])
        .collect();
    let phases = append_if(kernel, at, is_any, &ops[tail.begin..], behind, &moves, loc);
    let mut stands = Substitution::default();
    for (chain, v) in tail.chains.iter().zip(phases) {
        stands.replace(ends[chain.carry], v);
    }
    stands
}

/// An epilogue that is placed in the next tile, part by part.
struct Late<'a> {
    /// Those that are left.
    parts: VecDeque<(usize, &'a Vec<Op>)>,
    chains: &'a [Phases],
    /// Those of the chains so far.
    phases: Vec<Value>,
    /// What stands for what the epilogue uses.
    before: FxHashMap<Value, Value>,
    is_again: Value,
    loc: Loc,
}

impl Late<'_> {
    fn place_part(&mut self, kernel: &mut Kernel, at: Region) {
        let Some((i, part)) = self.parts.pop_front() else {
            return;
        };
        let mut map = self.before.clone();
        let phases = self.phases.iter().copied();
        map.extend(self.chains.iter().map(|chain| chain.at[i]).zip(phases));
        let moves: Vec<[Value; 2]> = self.chains.iter().map(|chain| [chain.at[i], chain.at[i + 1]]).collect();
        self.phases = append_if(kernel, at, self.is_again, part, map, &moves, self.loc);
    }

    /// Takes iterations from the loop as long as parts are left, and appends them with those behind their products.
    fn unroll(&mut self, kernel: &mut Kernel, at: Region, op: Op, range: Range<i64>, products: &[usize]) {
        let OpKind::For {
            lower,
            inits: mut carries,
            body,
            ..
        } = kernel.ops[op].kind.clone()
        else {
            unreachable!("`find` saw a loop")
        };
        let (counter, loc) = (kernel.ty(lower).dtype(), self.loc);
        let RegionData {
            params, ops, results, ..
        } = kernel.regions[body].clone();
        let mut k = range.start;
        while k < range.end && !self.parts.is_empty() {
            let now = kernel.append_int(at, counter, k, loc);
            let inits = std::iter::once(now).chain(carries);
            let mut map: FxHashMap<Value, Value> = params.iter().copied().zip(inits).collect();
            for (place, op) in ops.iter().enumerate() {
                let copy = copy_op(kernel, *op, &mut map);
                kernel.regions[at].ops.push(copy);
                if products.contains(&place) {
                    self.place_part(kernel, at);
                }
            }
            carries = results.iter().map(|v| map[v]).collect();
            k += 1;
        }
        if k > range.start {
            let rest = kernel.append_int(at, counter, k, loc);
            if let OpKind::For { lower, inits, .. } = &mut kernel.ops[op].kind {
                (*lower, *inits) = (rest, carries);
            }
        }
    }
}

/// Appends copies of ops that run if `condition` holds; `map` says what stands for what they use. What then stands for the second of
/// each pair of values, where the first would stand for it if they did not run.
fn append_if(
    kernel: &mut Kernel,
    at: Region,
    condition: Value,
    ops: &[Op],
    mut map: FxHashMap<Value, Value>,
    moves: &[[Value; 2]],
    loc: Loc,
) -> Vec<Value> {
    let group = kernel.regions[at].group;
    let (skip, run) = (kernel.new_region(group), kernel.new_region(group));
    for &op in ops {
        let copy = copy_op(kernel, op, &mut map);
        kernel.regions[run].ops.push(copy);
    }
    let mut stands: Vec<Value> = moves.iter().map(|[from, _]| map[from]).collect();
    let moved: Vec<usize> = (0..moves.len()).filter(|i| moves[*i][0] != moves[*i][1]).collect();
    for &i in &moved {
        kernel.regions[skip].results.push(stands[i]);
        kernel.regions[run].results.push(map[&moves[i][1]]);
    }
    let types: Vec<Type> = moved.iter().map(|i| kernel.ty(stands[*i]).clone()).collect();
    let kind = OpKind::Switch {
        selector: condition,
        arms: vec![skip, run],
    };
    let results = kernel.append(at, kind, types, loc);
    moved.iter().zip(results).for_each(|(i, v)| stands[*i] = v);
    stands
}
