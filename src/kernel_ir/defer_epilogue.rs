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
//! never weaker. With [`defer_drains`](super::defer_drains), without which nothing would be there to compute, it is worth 1 to
//! 2 % of a large matmul.
use super::rewrite::{append_compare, carry, copy_op, regions_of};
use super::*;
use crate::error::Result;
use rustc_hash::FxHashMap;

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
        match find(kernel, op) {
            Ok(tail) => {
                let rest = kernel.regions[at].ops.split_off(i);
                defer(kernel, at, op, &tail);
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
                    region(kernel, inner);
                }
            }
        }
    }
}

/// A loop over tiles whose end can wait.
struct Tail {
    /// The place of the loop over k in the tile's region.
    steps: usize,
    /// Its bounds.
    lower: i64,
    upper: i64,
    /// Where the epilogue begins in the tile's region, and where its parts end.
    begin: usize,
    parts: Vec<usize>,
    /// What the epilogue takes from the tile.
    kept: Vec<Value>,
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
    "the steps of a tile are not waits, one wgmma into the tile's accumulator, one wait for it, and arrivals";
const OTHER_TILE: &str = "something happens between a tile's steps and its epilogue, or before the steps";
const NO_PARTS: &str = "the epilogue has no copy out of shared memory at which it could be parted";

fn find(kernel: &Kernel, op: Op) -> Found<Tail> {
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
    let is_loop = |op: &Op| matches!(kernel.ops[*op].kind, OpKind::For { .. });
    let steps = tile.ops.iter().position(is_loop).ok_or(OTHER_TILE)?;
    let (from, to) = k_loop(kernel, tile.ops[steps])?;
    let read = tile
        .ops
        .iter()
        .position(|op| matches!(kernel.ops[*op].kind, OpKind::AccRead { .. }))
        .ok_or(OTHER_TILE)?;
    let is_plain = |op: &Op| {
        let kind = &kernel.ops[*op].kind;
        kind.is_pure() || matches!(kind, OpKind::AccInit { .. })
    };
    if read < steps || !tile.ops[..steps].iter().all(is_plain) || !tile.ops[steps + 1..read].iter().all(is_plain) {
        return Err(OTHER_TILE);
    }
    let begin = read
        + 1
        + tile.ops[read + 1..]
            .iter()
            .position(|op| !kernel.ops[*op].kind.is_pure())
            .ok_or(NO_PARTS)?;
    let epilogue = &tile.ops[begin..];
    if !epilogue.iter().all(|op| may_be_late(kernel, *op)) {
        return Err("the epilogue does something else than store to shared memory and copy that out");
    }
    if !is_private(kernel, epilogue) {
        return Err(
            "something else in the kernel uses the memory that the epilogue writes, or it is a part of a union",
        );
    }

    // Parts end with the copies.
    let ends = |(_, op): &(usize, &Op)| matches!(kernel.ops[**op].kind, OpKind::CopySmemToGmem { .. });
    let mut parts: Vec<usize> = epilogue
        .iter()
        .enumerate()
        .filter(ends)
        .map(|(i, _)| begin + i + 1)
        .collect();
    *parts.last_mut().ok_or(NO_PARTS)? = tile.ops.len();
    if parts.len() as i64 > to - from {
        return Err("the epilogue has more copies than a tile has steps");
    }

    // What is alive from the tile to its epilogue. Nothing of the epilogue is alive behind it.
    let own: Vec<Value> = epilogue
        .iter()
        .flat_map(|op| kernel.ops[*op].results.to_vec())
        .collect();
    if tile.results.iter().any(|v| own.contains(v)) {
        return Err("the next tile takes something from the epilogue");
    }
    let inside: Vec<Value> = {
        let results = tile.ops[..begin].iter().flat_map(|op| kernel.ops[*op].results.to_vec());
        tile.params.iter().copied().chain(results).collect()
    };
    let mut kept = vec![];
    for op in epilogue {
        visit::for_each_value(&kernel.ops[*op].kind, &mut |v| {
            if inside.contains(&v) && !kept.contains(&v) {
                kept.push(v);
            }
        });
    }
    let bits = |v: Value| {
        let ty = kernel.ty(v);
        let elements = ty.shape().iter().product::<u64>();
        // An array is spread over the warpgroup's 128 threads.
        if ty.is_scalar() {
            32
        } else {
            elements * u64::from(ty.dtype().bits()) / 128
        }
    };
    let accumulators = kernel.ops[tile.ops[read]]
        .results
        .iter()
        .filter(|v| kernel.ty(**v).is_acc());
    let registers = kept.iter().copied().chain(accumulators.copied()).map(bits).sum::<u64>() / 32;
    if registers > kernel.target.max_deferred_registers || kept.iter().any(|v| kernel.ty(*v).is_acc()) {
        return Err("a finished tile and the next one's accumulator do not fit into registers together");
    }
    Ok(Tail {
        steps,
        lower: from,
        upper: to,
        begin,
        parts,
        kept,
    })
}

/// The bounds of a loop whose steps wait for operands, multiply, and release the operands.
fn k_loop(kernel: &Kernel, op: Op) -> Found<(i64, i64)> {
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
    let (mut multiplied, mut settled) = (0, 0);
    for &op in &kernel.regions[body].ops {
        let kind = &kernel.ops[op].kind;
        if let OpKind::Wgmma { .. } = kind {
            if !intensity::is_compute_bound(kernel, op) {
                return Err("loads limit the kernel, not the tensor cores");
            }
            multiplied += 1;
        } else if multiplied == 1 && matches!(kind, OpKind::WgmmaWait { n: 0, .. }) {
            settled += 1;
        } else if !kind.is_pure()
            && !matches!(
                kind,
                OpKind::BarrierWait { .. } | OpKind::BarrierArrive { .. } | OpKind::CommitGroup
            )
        {
            return Err(OTHER_STEPS);
        }
    }
    if (multiplied, settled) != (1, 1) || !xs.is_empty() {
        return Err(OTHER_STEPS);
    }
    match (kernel.facts(lower).as_constant(), kernel.facts(upper).as_constant()) {
        (Some(lower), Some(upper)) => Ok((lower, upper)),
        _ => Err("the number of steps of a tile is not constant"),
    }
}

/// Stores to shared memory, copies out of it, and their fences and waits.
fn may_be_late(kernel: &Kernel, op: Op) -> bool {
    let kind = &kernel.ops[op].kind;
    if let OpKind::Store { dst, .. } = kind {
        return matches!(kernel.allocs[dst.alloc].kind, AllocKind::Smem { .. }) && dst.place == Place::Here;
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

/// Whether nothing else in the kernel touches the memory that these ops touch.
fn is_private(kernel: &Kernel, ops: &[Op]) -> bool {
    let mut touched = vec![];
    for op in ops {
        touched.extend(effects::of(&kernel.ops[*op].kind).iter().map(|e| e.alloc));
    }
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

/// A part of the epilogue, with the pure ops of earlier parts that it needs.
fn part(kernel: &Kernel, epilogue: &[Op], range: std::ops::Range<usize>) -> Vec<Op> {
    let mut needed = vec![];
    let mut note = |op: Op| visit::for_each_value(&kernel.ops[op].kind, &mut |v| needed.push(v));
    epilogue[range.clone()].iter().for_each(|op| note(*op));
    let mut earlier = vec![];
    for &op in epilogue[..range.start].iter().rev() {
        if kernel.ops[op].results.iter().any(|v| needed.contains(v)) {
            visit::for_each_value(&kernel.ops[op].kind, &mut |v| needed.push(v));
            earlier.push(op);
        }
    }
    earlier.reverse();
    earlier.extend(&epilogue[range]);
    earlier
}

fn defer(kernel: &mut Kernel, at: Region, op: Op, tail: &Tail) {
    let OpKind::For { lower, upper, body, .. } = kernel.ops[op].kind else {
        unreachable!("`find` saw a loop")
    };
    let group = kernel.regions[body].group;
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

    // The tile, with the first steps written out.
    let tile = kernel.regions[body].params[0];
    let is_again = append_compare(kernel, body, CompareOp::Gt, tile, lower, loc);
    kernel.regions[body].ops.extend(&ops[..tail.steps]);
    let k_loop = ops[tail.steps];
    let OpKind::For {
        lower: from,
        inits: mut carries,
        body: step,
        ..
    } = kernel.ops[k_loop].kind.clone()
    else {
        unreachable!("`find` saw a loop")
    };
    let counter = kernel.ty(from).dtype();
    let RegionData {
        params,
        ops: step_ops,
        results,
        ..
    } = kernel.regions[step].clone();
    for (i, part) in epilogue.iter().enumerate() {
        let k = kernel.append_int(body, counter, tail.lower + i as i64, loc);
        let mut map: FxHashMap<Value, Value> = params.iter().copied().zip(std::iter::once(k).chain(carries)).collect();
        for op in &step_ops {
            let copy = copy_op(kernel, *op, &mut map);
            kernel.regions[body].ops.push(copy);
            if kernel.ops[*op].kind.is_product() {
                let (skip, store) = (kernel.new_region(group), kernel.new_region(group));
                let mut map = before.clone();
                for op in part {
                    let copy = copy_op(kernel, *op, &mut map);
                    kernel.regions[store].ops.push(copy);
                }
                let kind = OpKind::Switch {
                    selector: is_again,
                    arms: vec![skip, store],
                };
                kernel.append(body, kind, [], loc);
            }
        }
        carries = results.iter().map(|v| map[v]).collect();
    }
    let rest = kernel.append_int(body, counter, tail.lower + epilogue.len() as i64, loc);
    debug_assert!(tail.lower + epilogue.len() as i64 <= tail.upper);
    if let OpKind::For { lower, inits, .. } = &mut kernel.ops[k_loop].kind {
        *lower = rest;
        *inits = carries;
    }
    kernel.regions[body].ops.extend(&ops[tail.steps..tail.begin]);

    // The last tile.
    let is_any = append_compare(kernel, at, CompareOp::Lt, lower, upper, loc);
    let (skip, store) = (kernel.new_region(group), kernel.new_region(group));
    for &op in &ops[tail.begin..] {
        let copy = copy_op(kernel, op, &mut behind);
        kernel.regions[store].ops.push(copy);
    }
    let kind = OpKind::Switch {
        selector: is_any,
        arms: vec![skip, store],
    };
    kernel.append(at, kind, [], loc);
}
