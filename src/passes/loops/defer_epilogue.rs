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
//! The epilogue may be late because nothing observes it: it only writes shared memory that nothing else touches, and copies it to an
//! output that nothing else touches. Empty groups that the steps commit in between make its waits for older copies stricter,
//! never weaker. What it adds it may load, from inputs, which are never written, or copy into such memory and wait for on barriers
//! that nothing else touches: their phases are a *chain*, which goes from one epilogue to the next and not through tiles. A
//! part ends with such a copy, too, so that a step passes until the copy is waited for. Steps may be
//! written out, some or all of them: wherever products are in flight there is a place for a part, and loops are unrolled for as many parts
//! as are left.
//!
//! With [`defer_drains`](super::defer_drains), without which nothing would be there to compute, it is worth 1 to 2 % of a large
//! matmul.
use super::sink::{Chain, Sink};
use crate::error::Result;
use crate::kernel_ir::liveness::Around;
use crate::kernel_ir::motion::may_be_twice;
use crate::kernel_ir::rewrite::{Substitution, append_copies};
use crate::kernel_ir::*;
use crate::passes::rewriter::{self, Found, Rewrite};
use rustc_hash::FxHashMap;
use std::collections::VecDeque;
use std::ops::Range;

pub fn run(kernel: &mut Kernel) -> Result<()> {
    rewriter::run::<DeferEpilogue>(kernel)
}

/// What the pass wants: tiles whose steps have the tail of the tile before beside their products.
struct DeferEpilogue;

impl Rewrite for DeferEpilogue {
    type Plan = Tail;
    const NAME: &'static str = "defer_epilogue";

    fn applies(kernel: &Kernel) -> bool {
        kernel.multiplies()
    }

    fn find(kernel: &Kernel, at: Region, site: Range<usize>, around: &Around) -> Found<Option<Tail>> {
        let op = kernel.regions[at].ops[site.start];
        match find(kernel, op, around) {
            Err(_) if !is_candidate(kernel, op) => Ok(None),
            found => found.map(Some),
        }
    }

    fn write(kernel: &mut Kernel, at: Region, ops: &[Op], tail: &Tail) -> Substitution {
        let op = ops[0];
        let OpKind::For { body, .. } = kernel.ops[op].kind else {
            unreachable!("`find` saw a loop")
        };
        let ops = std::mem::take(&mut kernel.regions[body].ops);
        let parts: VecDeque<Vec<Op>> = {
            let begins = std::iter::once(tail.begin).chain(tail.parts.iter().copied());
            let ranges = begins.zip(tail.parts.iter().copied());
            ranges
                .map(|(from, to)| part(kernel, &ops[tail.begin..], from - tail.begin..to - tail.begin))
                .collect()
        };
        let sink = Sink::new(kernel, at, op, &tail.kept, &tail.chains);

        // The tile, with as many steps written out as there are parts.
        let is_again = sink.is_again(kernel, body);
        let mut late = Late { parts, sink, is_again };
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
        late.sink.last(kernel, at, &ops[tail.begin..])
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
    /// Phases of barriers that only epilogues wait for.
    chains: Vec<Chain>,
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

fn find(kernel: &Kernel, op: Op, around: &Around) -> Found<Tail> {
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
    if !epilogue.iter().all(|op| is_of_epilogue(kernel, *op)) {
        return Err(
            "the epilogue does something else than load inputs, copy them to shared memory, store there and copy that out",
        );
    }
    if !motion::is_private(kernel, &epilogue.iter().copied().collect()) {
        return Err(
            "something else in the kernel uses the memory that the epilogue writes, or it is a part of a union",
        );
    }

    // Nothing of the epilogue is alive behind it but chains.
    let own: Vec<Value> = epilogue
        .iter()
        .flat_map(|op| kernel.ops[*op].results.to_vec())
        .collect();
    let mut chains: Vec<Chain> = (0..tile.results.len())
        .filter(|i| own.contains(&tile.results[*i]))
        .map(|carry| Chain {
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
    let words = |v: Value| around.words(kernel, v, 8);
    let is_read = |op: &&Op| matches!(kernel.ops[**op].kind, OpKind::AccRead { .. });
    let read: Vec<Value> = tile.ops[..=read]
        .iter()
        .filter(is_read)
        .flat_map(|op| kernel.ops[*op].results.to_vec())
        .collect();
    let accumulators = read.into_iter().filter(|v| kernel.ty(*v).is_acc());
    let needed = kept.iter().copied().chain(accumulators).map(words).sum::<u64>();
    let loads = epilogue
        .iter()
        .filter(|op| matches!(kernel.ops[**op].kind, OpKind::Load { .. }));
    let loaded = loads.map(|op| words(kernel.ops[*op].results[0])).max().unwrap_or(0);
    // What is loaded may take half of what is left for addresses.
    let reserve = kernel.target.deferred_reserve;
    let leaves = |words: u64, left: u32| words + u64::from(left) <= around.registers.into();
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
    chains: &mut [Chain],
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
    let is_carried = |(chain, v): (&Chain, &Value)| tile.results[chain.carry] == *v;
    if !chains.iter().zip(&now).all(is_carried) {
        return Err("the next tile takes something from the epilogue");
    }
    // Phases are used by the waits that follow each other, and by nothing else.
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

/// What an epilogue consists of, one op after the other: its groups end where its copies do, so that it can be parted there.
fn is_of_epilogue(kernel: &Kernel, op: Op) -> bool {
    let kind = &kernel.ops[op].kind;
    let is_smem = |view: &RefUse| kernel.allocs[view.alloc].is_smem();
    let fits = match kind.class() {
        class::Class::Control(_) | class::Class::Tensor => false,
        class::Class::Memory => {
            if let OpKind::Load { src: view } = kind {
                is_smem(view) || kernel.is_constant(view)
            } else if let OpKind::Store { dst: view, .. } | OpKind::CopyGmemToSmem { dst: view, .. } = kind {
                is_smem(view)
            } else {
                matches!(kind, OpKind::CopySmemToGmem { commit_group: true, .. })
            }
        }
        class::Class::Pure(_)
        | class::Class::Pinned
        | class::Class::Instructions
        | class::Class::Synchronisation
        | class::Class::Accumulator
        | class::Class::Aside => true,
    };
    fits && motion::may_be_late(kernel, op)
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

/// An epilogue that is placed in the next tile, part by part.
struct Late<'a> {
    /// Those that are left.
    parts: VecDeque<Vec<Op>>,
    sink: Sink<'a>,
    is_again: Value,
}

impl Late<'_> {
    fn place_part(&mut self, kernel: &mut Kernel, at: Region) {
        if let Some(part) = self.parts.pop_front() {
            self.sink.place(kernel, at, self.is_again, &part);
        }
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
        let (counter, loc) = (kernel.ty(lower).dtype(), self.sink.loc);
        let RegionData {
            params, ops, results, ..
        } = kernel.regions[body].clone();
        let mut k = range.start;
        while k < range.end && !self.parts.is_empty() {
            let now = kernel.append_int(at, counter, k, loc);
            let inits = std::iter::once(now).chain(carries);
            let mut map: FxHashMap<Value, Value> = params.iter().copied().zip(inits).collect();
            for (place, op) in ops.iter().enumerate() {
                append_copies(kernel, at, &[*op], &mut map);
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
