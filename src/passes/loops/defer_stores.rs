//! Stores a finished tile when the copies for the next one are under way.
//!
//! A warpgroup that loads what it multiplies itself issues loads of a tile's first operands, waits, multiplies, and stores the tile:
//! while it stores, nothing is being loaded. Here the tile stays in its registers until the next one's first copies are issued; the
//! last one is stored behind the loop:
//!
//! ```text
//! for tile {                            for tile (kept) {
//!   copies for the first steps            copies for the first steps
//!   for k { wait; wgmma; more copies }    if tile > first { epilogue of kept }
//!   x = read                        =>    for k { wait; wgmma; more copies }
//!   epilogue of x                         yield read
//! }                                     }
//!                                       if any tile { epilogue of kept }
//! ```
//!
//! So the epilogue of a tile and the beginning of the next change places, which is unobservable:
//! * the epilogue writes memory that nothing else in the kernel touches, and reads that and what nothing else writes; it arrives nowhere and
//!   waits only for its own copies; what it allocates lives as long as the loop;
//! * the beginning is scalars, loads, and copies that end with a barrier's phase: it ends no group of copies, and waits for nothing;
//! * the epilogue's waits, which are for all groups of copies, guard nothing of the beginning's: no copy out of shared memory by anything else
//!   in the kernel touches what the beginning does;
//! * the warpgroup is alone in its block, and the block in its cluster: a copy's phase orders what was done before it before other warpgroups, the
//!   epilogue before it among that.
//!
//! What the epilogue takes is carried to it. In registers it takes the room of the accumulator, which the next tile needs only
//! afterwards; all memory must fit without any part being used twice. Where the operands come from another warpgroup, they are under
//! way anyway: there [`defer_epilogue`](super::defer_epilogue) stores a tile beside the next one's products.
use super::sink::Sink;
use crate::error::Result;
use crate::kernel_ir::class::Control;
use crate::kernel_ir::liveness::Around;
use crate::kernel_ir::rewrite::{Substitution, append_copies, regions_of};
use crate::kernel_ir::*;
use crate::passes::rewriter::{self, Found, Rewrite};
use rustc_hash::FxHashSet;
use std::ops::Range;

pub fn run(kernel: &mut Kernel) -> Result<()> {
    rewriter::run::<DeferStores>(kernel)
}

/// What the pass wants: tiles that store the tile before as soon as their own copies are under way.
struct DeferStores;

impl Rewrite for DeferStores {
    type Plan = Tile;
    const NAME: &'static str = "defer_stores";

    fn applies(kernel: &Kernel) -> bool {
        let is_alone = kernel.num_warpgroups == 1 && kernel.cluster_size() == 1;
        is_alone && kernel.multiplies()
    }

    fn find(kernel: &Kernel, at: Region, site: Range<usize>, around: &Around) -> Found<Option<Tile>> {
        let op = kernel.regions[at].ops[site.start];
        find(kernel, op, around)
    }

    fn write(kernel: &mut Kernel, at: Region, ops: &[Op], tile: &Tile) -> Substitution {
        let op = ops[0];
        let OpKind::For { body, .. } = kernel.ops[op].kind else {
            unreachable!("`find` saw a loop")
        };
        let loc = kernel.ops[op].loc;
        let own = kernel.ops[op].results.clone();
        let whole = kernel.new_region(kernel.regions[at].group);
        let mut sink = Sink::new(kernel, whole, op, &tile.kept, &[]);

        // The tile before this one, behind this one's beginning; only then this one's accumulators are started.
        kernel.regions[body].ops.truncate(tile.end);
        for &(region, place) in &tile.begun {
            let steps = kernel.regions[region].ops.split_off(place);
            let is_again = sink.is_again(kernel, region);
            sink.place(kernel, region, is_again, &tile.epilogue);
            let mut started = Substitution::default();
            for (_, start) in &tile.starts {
                let mut map = Default::default();
                append_copies(kernel, region, &[*start], &mut map);
                map.into_iter().for_each(|(old, new)| started.replace(old, new));
            }
            for &op in &steps {
                started.apply_nested(kernel, op);
            }
            started.apply_results(kernel, region);
            kernel.regions[region].ops.extend(steps);
        }
        for (region, start) in &tile.starts {
            kernel.regions[*region].ops.retain(|op| op != start);
        }
        let mut stands = sink.last(kernel, whole, &tile.epilogue);

        // What the epilogue allocates lives as long.
        if tile.allocs.is_empty() {
            let ops = std::mem::take(&mut kernel.regions[whole].ops);
            kernel.regions[at].ops.extend(ops);
            return stands;
        }
        kernel.regions[whole].results = own.to_vec();
        let types: Vec<Type> = own.iter().map(|v| kernel.ty(*v).clone()).collect();
        let kind = OpKind::Scope {
            allocs: tile.allocs.clone(),
            collective: tile.collective,
            body: whole,
        };
        let results = kernel.append(at, kind, types, loc).to_vec();
        for (old, new) in own.iter().zip(results) {
            kernel.values[new].facts = kernel.values[*old].facts;
            stands.replace(*old, new);
        }
        stands
    }
}

/// A loop over tiles whose stores can wait.
struct Tile {
    /// Where the beginning ends: places in regions of the tile, one on each way through it.
    begun: Vec<(Region, usize)>,
    /// Accumulators that the beginning starts, and the regions in which it does.
    starts: Vec<(Region, Op)>,
    /// Where the epilogue begins in the tile's region.
    end: usize,
    /// The epilogue's ops, those in its scopes among them, and what these allocate.
    epilogue: Vec<Op>,
    allocs: Vec<Alloc>,
    collective: bool,
    /// What the epilogue takes from the tile.
    kept: Vec<Value>,
}

fn contains(kernel: &Kernel, op: Op, test: &dyn Fn(&OpKind) -> bool) -> bool {
    let mut found = false;
    kernel.for_each_op_of(op, &mut |op| found |= test(&kernel.ops[op].kind));
    found
}

/// The ops, and all that is in them.
fn all_of<'a>(kernel: &Kernel, ops: impl IntoIterator<Item = &'a Op>) -> FxHashSet<Op> {
    let mut out = FxHashSet::default();
    for op in ops {
        kernel.for_each_op_of(*op, &mut |op| {
            out.insert(op);
        });
    }
    out
}

/// `None`: no loop over tiles that begin with copies of their own. Only of those it is worth saying why they stay as they are.
fn find(kernel: &Kernel, op: Op, around: &Around) -> Found<Option<Tile>> {
    let OpKind::For {
        lower,
        upper,
        ref xs,
        reverse: false,
        body,
        ..
    } = kernel.ops[op].kind
    else {
        return Ok(None);
    };
    let tile = &kernel.regions[body];
    let multiplies = |op: &Op| contains(kernel, *op, &OpKind::is_product);
    let Some(steps) = tile.ops.iter().rposition(multiplies) else {
        return Ok(None);
    };
    let (mut beginning, mut begun) = (vec![], vec![]);
    ends_of_beginning(kernel, body, &mut beginning, &mut begun);
    let copies = |kind: &OpKind| matches!(kind, OpKind::CopyGmemToSmem { .. });
    let trips = kernel.facts(upper).hi.saturating_sub(kernel.facts(lower).lo);
    if trips <= 1 || !xs.is_empty() || !beginning.iter().any(|(_, op)| contains(kernel, *op, &copies)) {
        return Ok(None);
    }

    let is_read = |op: &Op| {
        let kind = &kernel.ops[*op].kind;
        kind.is_pure() || matches!(kind, OpKind::WgmmaWait { .. } | OpKind::AccRead { .. })
    };
    let end = steps + 1 + tile.ops[steps + 1..].iter().take_while(|op| is_read(op)).count();
    if end == tile.ops.len() {
        return Ok(None);
    }
    let begins_with = touched(kernel, beginning.iter().map(|(_, op)| *op));
    let mut starts = beginning;
    starts.retain(|(_, op)| matches!(kernel.ops[*op].kind, OpKind::AccInit { .. }));
    if !starts.iter().all(|(_, op)| is_used_only_behind(kernel, *op, &begun)) {
        return Err("an accumulator is used before the tile's steps");
    }

    // The epilogue, out of its scopes.
    let (mut epilogue, mut allocs, mut collective) = (vec![], vec![], false);
    flatten(kernel, &tile.ops[end..], &mut epilogue, &mut allocs, &mut collective)?;
    let inside = all_of(kernel, &tile.ops[end..]);
    let stays = "the epilogue does something else than store and copy what it has stored";
    if !inside.iter().all(|op| motion::may_be_late(kernel, *op)) {
        return Err(stays);
    }
    let is_plain =
        |a: &Alloc| matches!(kernel.allocs[*a].kind, AllocKind::Smem { .. }) && kernel.allocs[*a].within.is_none();
    if !allocs.iter().all(is_plain) || !motion::is_private(kernel, &inside) {
        return Err(
            "something else in the kernel uses the memory that the epilogue writes, or it is a part of a union",
        );
    }
    if copies_overlap(kernel, &inside, &begins_with) {
        return Err(
            "the epilogue may wait for copies that something else began, of memory that the next tile's copies touch",
        );
    }
    if !fits_without_reuse(kernel) {
        return Err("the epilogue's shared memory and the operands' do not fit side by side");
    }

    // Nothing of the epilogue is alive behind it.
    let defined: FxHashSet<Value> = inside.iter().flat_map(|op| kernel.ops[*op].results.to_vec()).collect();
    if tile.results.iter().any(|v| defined.contains(v)) {
        return Err("the next tile takes something from the epilogue");
    }
    let results = tile.ops[..end].iter().flat_map(|op| kernel.ops[*op].results.to_vec());
    let of_tile: FxHashSet<Value> = tile.params.iter().copied().chain(results).collect();
    let mut kept = vec![];
    for op in &epilogue {
        for_each_value_in(kernel, *op, &mut |v| {
            if of_tile.contains(&v) && !kept.contains(&v) {
                kept.push(v);
            }
        });
    }
    let share = kernel.target.thread_registers(128);
    let words = kept.iter().map(|v| around.words(kernel, *v, 8)).sum::<u64>();
    if kept.iter().any(|v| kernel.ty(*v).is_acc()) || words + u64::from(kernel.target.begin_reserve) > share.into() {
        return Err("a finished tile does not fit into registers while the next one begins");
    }
    Ok(Some(Tile {
        begun,
        starts,
        end,
        epilogue,
        allocs,
        collective,
        kept,
    }))
}

/// `begun` gets where the beginning of a tile ends, `before` what is in front: at the first op that may not be early, or if that is the scope
/// or the conditional around the steps, in it; where there is none, at the end.
fn ends_of_beginning(
    kernel: &Kernel,
    region: Region,
    before: &mut Vec<(Region, Op)>,
    begun: &mut Vec<(Region, usize)>,
) {
    let ops = &kernel.regions[region].ops;
    let is_early = |op: &Op| matches!(kernel.ops[*op].kind, OpKind::AccInit { .. }) || may_be_early(kernel, *op);
    let end = ops.iter().take_while(|op| is_early(op)).count();
    before.extend(ops[..end].iter().map(|op| (region, *op)));
    let inner = match ops.get(end).filter(|op| kernel.multiplies_within(**op)) {
        Some(op) => match kernel.ops[*op].kind.control() {
            Some(Control::Scope { body, .. }) => vec![body],
            Some(Control::Switch { arms, .. }) => arms.to_vec(),
            Some(Control::For { .. } | Control::While { .. } | Control::WarpMap { .. }) | None => vec![],
        },
        None => vec![],
    };
    if inner.is_empty() {
        begun.push((region, end));
    }
    for region in inner {
        ends_of_beginning(kernel, region, before, begun);
    }
}

/// Scalars, loads, and copies whose end is a barrier's phase; loops and conditionals of those.
fn may_be_early(kernel: &Kernel, op: Op) -> bool {
    let early = |kind: &OpKind| {
        kind.is_pure()
            || matches!(
                kind,
                OpKind::Load { .. }
                    | OpKind::CopyGmemToSmem { .. }
                    | OpKind::Prefetch { .. }
                    | OpKind::For { .. }
                    | OpKind::Switch { .. }
            )
    };
    !contains(kernel, op, &|kind| !early(kind))
}

/// `ops` with what is in their scopes; those of regions of other ops allocate nothing.
fn flatten(
    kernel: &Kernel,
    ops: &[Op],
    out: &mut Vec<Op>,
    allocs: &mut Vec<Alloc>,
    collective: &mut bool,
) -> Found<()> {
    for &op in ops {
        if let OpKind::Scope {
            allocs: own,
            collective: for_all,
            body,
        } = &kernel.ops[op].kind
        {
            if !kernel.ops[op].results.is_empty() {
                return Err("a scope of the epilogue has results");
            }
            allocs.extend(own);
            *collective |= for_all;
            flatten(kernel, &kernel.regions[*body].ops, out, allocs, collective)?;
        } else if contains(kernel, op, &|kind| matches!(kind, OpKind::Scope { .. })) {
            return Err("the epilogue allocates memory conditionally");
        } else {
            out.push(op);
        }
    }
    Ok(())
}

fn for_each_value_in(kernel: &Kernel, op: Op, f: &mut dyn FnMut(Value)) {
    visit::for_each_value(&kernel.ops[op].kind, f);
    for region in regions_of(kernel, op) {
        for op in &kernel.regions[region].ops {
            for_each_value_in(kernel, *op, f);
        }
        kernel.regions[region].results.iter().for_each(|v| f(*v));
    }
}

/// Whether only what comes from these places on in their regions takes the op's results.
fn is_used_only_behind(kernel: &Kernel, op: Op, places: &[(Region, usize)]) -> bool {
    let results = &kernel.ops[op].results;
    let from_places = places
        .iter()
        .flat_map(|(region, from)| &kernel.regions[*region].ops[*from..]);
    let behind = all_of(kernel, from_places);
    let mut elsewhere = false;
    kernel.for_each_op(&mut |op| {
        if !behind.contains(&op) {
            visit::for_each_value(&kernel.ops[op].kind, &mut |v| elsewhere |= results.contains(&v));
            for inner in regions_of(kernel, op) {
                let is_place = places.iter().any(|(region, _)| *region == inner);
                elsewhere |= !is_place && kernel.regions[inner].results.iter().any(|v| results.contains(v));
            }
        }
    });
    !elsewhere
}

/// The memory that ops touch, those in their regions included.
fn touched(kernel: &Kernel, ops: impl Iterator<Item = Op>) -> FxHashSet<Alloc> {
    let mut out = FxHashSet::default();
    for op in ops {
        kernel.for_each_op_of(op, &mut |op| {
            visit::for_each_ref(&kernel.ops[op].kind, &mut |view| {
                out.insert(effects::root(kernel, view.alloc));
            });
        });
    }
    out
}

/// Whether copies in groups that are none of `ops` touch the memory.
fn copies_overlap(kernel: &Kernel, ops: &FxHashSet<Op>, memory: &FxHashSet<Alloc>) -> bool {
    let mut overlap = false;
    kernel.for_each_op(&mut |op| {
        if !ops.contains(&op) {
            let mut effects = effects::of(&kernel.ops[op].kind).into_iter();
            overlap |= effects.any(|e| {
                e.completion == effects::Completion::StoreGroup && memory.contains(&effects::root(kernel, e.alloc))
            });
        }
    });
    overlap
}

/// Whether everything fits into shared memory with no byte used twice.
fn fits_without_reuse(kernel: &Kernel) -> bool {
    let bytes = |data: &AllocData| match &data.kind {
        AllocKind::Smem { dtype, .. } if data.within.is_none() => dtype.bytes(data.shape.iter().product()),
        AllocKind::SmemUnion => data.shape.iter().try_fold(1u64, |a, b| a.checked_mul(*b)),
        AllocKind::Barrier { .. } => Some(8 * data.shape.iter().product::<u64>()),
        _ => Some(0),
    };
    let all = kernel
        .allocs
        .values()
        .try_fold(kernel.target.warpgroup_scratch(), |sum, data| {
            sum.checked_add(bytes(data)?.next_multiple_of(1024))
        });
    all.is_some_and(|all| all <= kernel.target.max_smem_bytes.into())
}
