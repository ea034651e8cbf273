//! Stores a finished tile when the copies for the next one are under way.
//!
//! A warpgroup that loads what it multiplies itself asks for a tile's first operands, waits for them, multiplies, and stores the tile:
//! while it stores, nothing is being loaded. Here the tile stays in its registers until the next one's first copies are asked for; the
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
//! So the epilogue of a tile and the beginning of the next change places, which nobody sees:
//! * the epilogue writes memory that nothing else in the kernel touches, and reads that and what nothing else writes; it arrives nowhere and
//!   waits only for its own copies; what it allocates lives as long as the loop;
//! * the beginning is scalars, loads, and copies that end with a barrier's phase: it ends no group of copies, and waits for nothing;
//! * the epilogue's waits, which are for all groups of copies, guard nothing of the beginning's: no copy out of shared memory by anything else
//!   in the kernel touches what the beginning does;
//! * the warpgroup is alone in its block, and the block in its cluster: a copy's phase tells other warpgroups what was done before it, the
//!   epilogue before it among that.
//!
//! What the epilogue takes is carried to it. In registers it takes the room of the accumulator, which the next tile needs only
//! afterwards; all memory must fit without any part being used twice. Where the operands come from another warpgroup, they are under
//! way anyway: there [`defer_epilogue`](super::defer_epilogue) stores a tile beside the next one's products.
use super::class::Control;
use super::rewrite::{Substitution, append_compare, carry, copy_op, regions_of};
use super::*;
use crate::error::Result;
use rustc_hash::{FxHashMap, FxHashSet};

/// What was looked for, or why it is not so.
type Found<T> = std::result::Result<T, &'static str>;

/// Words of a thread that a tile's beginning needs besides what is kept.
const WORDS_TO_BEGIN: u64 = 96;

/// Shared memory for what is planned later: the warpgroup's scratch.
const SCRATCH: u64 = 33 << 10;

pub fn run(kernel: &mut Kernel) -> Result<()> {
    let is_alone = kernel.num_warpgroups == 1 && kernel.cluster_size() == 1;
    if is_alone && kernel.ops.values().any(|op| is_wgmma(&op.kind)) && !kernel.has_instructions() {
        region(kernel, kernel.body);
    }
    Ok(())
}

fn region(kernel: &mut Kernel, at: Region) {
    let mut i = 0;
    while i < kernel.regions[at].ops.len() {
        let op = kernel.regions[at].ops[i];
        i += 1;
        match find(kernel, op) {
            Ok(Some(tile)) => {
                let rest = kernel.regions[at].ops.split_off(i - 1);
                defer(kernel, at, op, tile, &rest[1..]);
                i = kernel.regions[at].ops.len() - (rest.len() - 1);
                continue;
            }
            Ok(None) => {}
            Err(text) => {
                let (loc, pass) = (kernel.ops[op].loc, "defer_stores");
                kernel.notes.push(Note::not_deferred(loc, pass, text));
            }
        }
        for inner in regions_of(kernel, op) {
            region(kernel, inner);
        }
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
fn find(kernel: &Kernel, op: Op) -> Found<Option<Tile>> {
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
    let multiplies = |op: &Op| contains(kernel, *op, &is_wgmma);
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
    if !inside.iter().all(|op| may_be_late(kernel, *op)) {
        return Err(stays);
    }
    let is_plain =
        |a: &Alloc| matches!(kernel.allocs[*a].kind, AllocKind::Smem { .. }) && kernel.allocs[*a].within.is_none();
    if !allocs.iter().all(is_plain) || !is_private(kernel, &inside) {
        return Err(
            "something else in the kernel uses the memory that the epilogue writes, or it is a part of a union",
        );
    }
    if copies_meet(kernel, &inside, &begins_with) {
        return Err(
            "the epilogue may wait for copies that something else began, of memory that the next tile's copies touch",
        );
    }
    if !fits_apart(kernel) {
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
    let words = kept.iter().map(|v| kernel.ty(*v).words(8)).sum::<u64>();
    if kept.iter().any(|v| kernel.ty(*v).is_acc()) || words + WORDS_TO_BEGIN > share.into() {
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
    let inner = match ops.get(end).filter(|op| contains(kernel, **op, &is_wgmma)) {
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

fn is_wgmma(kind: &OpKind) -> bool {
    matches!(kind, OpKind::Wgmma { .. })
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

/// Loads and stores, copies out of shared memory, and their fences and waits; conditionals and scopes of those.
fn may_be_late(kernel: &Kernel, op: Op) -> bool {
    let kind = &kernel.ops[op].kind;
    if let OpKind::Store { dst: view, .. } | OpKind::CopySmemToGmem { dst: view, .. } | OpKind::Load { src: view } =
        kind
    {
        return view.place == Place::Here;
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

/// Whether nothing else in the kernel touches the memory that these ops write, and nothing writes what they read.
fn is_private(kernel: &Kernel, ops: &FxHashSet<Op>) -> bool {
    let (mut read, mut written) = (FxHashSet::default(), FxHashSet::default());
    for op in ops {
        for effect in effects::of(&kernel.ops[*op].kind) {
            if effect.access.reads() {
                read.insert(effect.alloc);
            }
            if effect.access.writes() {
                written.insert(effect.alloc);
            }
        }
    }
    let mut shared = false;
    kernel.for_each_op(&mut |op| {
        if !ops.contains(&op) {
            let kind = &kernel.ops[op].kind;
            visit::for_each_ref(kind, &mut |view| shared |= written.contains(&view.alloc));
            let written_here = effects::of(kind).into_iter().filter(|e| e.access.writes());
            shared |= written_here.map(|e| e.alloc).any(|a| read.contains(&a));
        }
    });
    // Members of a union share bytes with others.
    !shared && read.union(&written).all(|a| kernel.allocs[*a].within.is_none())
}

/// What shares bytes with an allocation by its making has the same.
fn root(kernel: &Kernel, alloc: Alloc) -> Alloc {
    kernel.allocs[alloc].within.map_or(alloc, |within| within.union)
}

/// The memory that ops touch, those in their regions included.
fn touched(kernel: &Kernel, ops: impl Iterator<Item = Op>) -> FxHashSet<Alloc> {
    let mut out = FxHashSet::default();
    for op in ops {
        kernel.for_each_op_of(op, &mut |op| {
            visit::for_each_ref(&kernel.ops[op].kind, &mut |view| {
                out.insert(root(kernel, view.alloc));
            });
        });
    }
    out
}

/// Whether copies in groups that are none of `ops` touch the memory.
fn copies_meet(kernel: &Kernel, ops: &FxHashSet<Op>, memory: &FxHashSet<Alloc>) -> bool {
    let mut meet = false;
    kernel.for_each_op(&mut |op| {
        if !ops.contains(&op) {
            let mut effects = effects::of(&kernel.ops[op].kind).into_iter();
            meet |= effects
                .any(|e| e.completion == effects::Completion::StoreGroup && memory.contains(&root(kernel, e.alloc)));
        }
    });
    meet
}

/// Whether everything fits into shared memory with no byte used twice.
fn fits_apart(kernel: &Kernel) -> bool {
    let bytes = |data: &AllocData| match &data.kind {
        AllocKind::Smem { dtype, .. } if data.within.is_none() => dtype.bytes(data.shape.iter().product()),
        AllocKind::SmemUnion => data.shape.iter().try_fold(1u64, |a, b| a.checked_mul(*b)),
        AllocKind::Barrier { .. } => Some(8 * data.shape.iter().product::<u64>()),
        _ => Some(0),
    };
    let all = kernel.allocs.values().try_fold(SCRATCH, |sum, data| {
        sum.checked_add(bytes(data)?.next_multiple_of(1024))
    });
    all.is_some_and(|all| all <= kernel.target.max_smem_bytes.into())
}

/// `op` is a loop that is in no region now; `rest` follows it in `at`.
fn defer(kernel: &mut Kernel, at: Region, op: Op, tile: Tile, rest: &[Op]) {
    let OpKind::For { lower, upper, body, .. } = kernel.ops[op].kind else {
        unreachable!("`find` saw a loop")
    };
    let loc = kernel.ops[op].loc;
    let whole = kernel.new_region(kernel.regions[at].group);

    let own = kernel.ops[op].results.clone();
    let [before, mut behind] = carry(kernel, whole, op, &tile.kept);

    // The tile before this one, behind this one's beginning; only then this one's accumulators are started.
    kernel.regions[body].ops.truncate(tile.end);
    let index = kernel.regions[body].params[0];
    for (region, place) in tile.begun {
        let steps = kernel.regions[region].ops.split_off(place);
        let is_again = append_compare(kernel, region, CompareOp::Gt, index, lower, loc);
        store(kernel, region, is_again, &tile.epilogue, &mut before.clone(), loc);
        let mut started = Substitution::default();
        for (_, start) in &tile.starts {
            let mut map = FxHashMap::default();
            let copy = copy_op(kernel, *start, &mut map);
            kernel.regions[region].ops.push(copy);
            map.into_iter().for_each(|(old, new)| started.replace(old, new));
        }
        for &op in &steps {
            started.apply_nested(kernel, op);
        }
        started.apply_results(kernel, region);
        kernel.regions[region].ops.extend(steps);
    }
    for (region, start) in tile.starts {
        kernel.regions[region].ops.retain(|op| *op != start);
    }

    // The last tile.
    let is_any = append_compare(kernel, whole, CompareOp::Lt, lower, upper, loc);
    store(kernel, whole, is_any, &tile.epilogue, &mut behind, loc);

    // What the epilogue allocates lives as long.
    if tile.allocs.is_empty() {
        let ops = std::mem::take(&mut kernel.regions[whole].ops);
        kernel.regions[at].ops.extend(ops);
        kernel.regions[at].ops.extend(rest);
        return;
    }
    kernel.regions[whole].results = own.to_vec();
    let types: Vec<Type> = own.iter().map(|v| kernel.ty(*v).clone()).collect();
    let kind = OpKind::Scope {
        allocs: tile.allocs,
        collective: tile.collective,
        body: whole,
    };
    let results = kernel.append(at, kind, types, loc);
    let mut now = Substitution::default();
    for (old, new) in own.iter().zip(results) {
        kernel.values[new].facts = kernel.values[*old].facts;
        now.replace(*old, new);
    }
    for &op in rest {
        now.apply_nested(kernel, op);
    }
    now.apply_results(kernel, at);
    kernel.regions[at].ops.extend(rest);
}

/// Appends a copy of the epilogue, for where `is_any`.
fn store(
    kernel: &mut Kernel,
    at: Region,
    is_any: Value,
    epilogue: &[Op],
    map: &mut FxHashMap<Value, Value>,
    loc: crate::error::Loc,
) {
    let group = kernel.regions[at].group;
    let (skip, store) = (kernel.new_region(group), kernel.new_region(group));
    for op in epilogue {
        let copy = copy_op(kernel, *op, map);
        kernel.regions[store].ops.push(copy);
    }
    let kind = OpKind::Switch {
        selector: is_any,
        arms: vec![skip, store],
    };
    kernel.append(at, kind, [], loc);
}
