//! The checker: who may touch shared memory that asynchronous operations touch, and when.
//!
//! A vector clock per warp says what it has seen of the others ([`Clock`]); barriers hand clocks on. Against them hold:
//! * what a bulk load writes: from its issue on nobody touches it who has not waited for its barrier, or synchronised with
//!   somebody who has;
//! * a bulk load's issue: its destination was read, and written, only before it, with a proxy fence after the writes;
//! * what `wgmma` and bulk stores read: written before their issue, with a proxy fence in between, and not again until a
//!   wait covers them;
//! * an mbarrier's phase: does not complete before everybody who waits for the one before is known to have done so (a warp that is late
//!   would wait for the phase after it);
//! * an mbarrier: initialised before it is used, with `fence.mbarrier_init` before peers and the async proxy use it;
//! * a tensor map in global memory: released by who changed it, and acquired by who uses it (`map_order.rs`);
//! * a CTA's shared memory: outlives its peers' accesses;
//! * ordinary loads and stores, to shared memory (a peer's, too) and to global memory: something orders a warp's load after another warp's
//!   store, a store after a load, and a store after one of another value. (Stores of the same bytes to one place are left alone: what memory
//!   holds just before decides.) Atomics count as both, but do not race with each other.
//!
//! Lanes of one store are held against each other where stores are (`mem.rs`), clusters that nothing orders in `grid.rs`.
//!
//! A finding changes nothing: what happens is noted all the same, so that a run may go on after it ([`Check::Warn`](super::options::Check::Warn)).
//!
//! Accesses are remembered per warp with their epoch, for each 4-byte granule of shared memory (byte, where somebody accesses less) and each
//! byte of global memory the last; what bulk loads write per 16 bytes. So whatever is reported is wrong, and not everything wrong is reported:
//! a warp is one; a release on an mbarrier counts at every scope, but for stores in peers' memory; and in global memory the scope of a
//! CTA counts as its cluster's. What goes through words of shared memory has its scope (`shared_words.rs`).
use super::byte_history::{self, ByteHistory, Mask, Pending, Side, Touch, races};
use super::clock::{Clock, View};
use super::communication::{Communication, Who};
use super::global;
use super::history::{
    Barrier, Handover, History, IN_FLIGHT, Issued, Past, Product, REMEMBERED, Visit, Waited, bytes_of, granules,
    granules_of, is_dense, lines_of,
};
use super::hooks::{Access, Hooks, Landing, Mode, Range, Shape, Sync, Verdict};
use super::map_order::{Author, MapOrder};
use super::options::Names;
use super::shared::{self, CtaSlot, RANK_SHIFT, SMEM_BASE};
use super::shared_words::{SharedWords, is_wide};
use super::warp::{Warp, lanes};
use crate::error::{Error, Fault, Loc};
use crate::ptx::modifier::{AtomSem, FenceSem, LoadSem, ProxyFence, Scope, StoreSem};
use arrayvec::ArrayVec;
use std::rc::Rc;
use std::sync::Arc;

/// The checker.
pub struct Causality {
    pub(super) shape: Shape,
    names: Arc<Names>,
    /// Warps of a cluster.
    pub(super) warps: usize,
    pub(super) clocks: Vec<Rc<Clock>>,
    /// Per warp: it has executed a fence that a relaxed arrival at the cluster's barrier may publish with.
    fenced: Vec<bool>,
    /// Per warp: the epoch of its first store to a peer's shared memory that it has not released to the cluster.
    far_since: Vec<Option<u32>>,
    /// Per warp, what relaxed arrivals and waits on mbarriers hand on with fences.
    relaxed: Vec<Relaxed>,
    histories: Vec<History>,
    pub(super) globals: Vec<ByteHistory>,
    pub(super) maps: MapOrder,
    /// Lanes of the last access may have bytes in common.
    meet: bool,
    /// The number of the last access to shared memory.
    store: u32,
    /// Bulk loads issued.
    loads: u32,
    /// Per cluster: its barrier.
    clusters: Vec<Handover>,
    /// What goes through words of shared memory that are polled.
    words: SharedWords,
    /// Across clusters, where they communicate.
    across: Option<Box<Communication>>,
}

/// What a warp's relaxed arrivals and accesses release, as of its last fences, and what its next ones acquire: within the CTA, and beyond.
#[derive(Default)]
struct Relaxed {
    releases: [Option<Clock>; 2],
    acquires: [Option<Clock>; 2],
}

const BARRIER: &str =
    "arrive at a barrier after the one, and wait for it before the other (`barrier_arrive`, `barrier_wait`)";

const WAIT_FOR_PRODUCTS: &str = "wait for it (`wgmma_wait(0)`) before the next copy is issued, or issue that copy a step later (`delay_release=1` of the BlockSpec in `emit_pipeline`)";

/// What one may take instead of a word that warps tell each other by, which has at most so many bytes.
const FLAG: &str = ", if it is a flag, access it in order on both sides (`smalt.store(…, order=\"release\")`, `smalt.load(…, order=\"acquire\")`)";
const FLAG_BYTES: u32 = 8;

fn execution(what: impl Into<String>) -> Error {
    Error::new(Fault::Execution, what)
}

impl Causality {
    pub(super) fn id(&self, w: &Warp) -> usize {
        (w.cta.0 * self.shape.warps_per_cta + w.index) as usize
    }

    /// The component of a warp.
    pub(super) fn component(&self, w: &Warp) -> usize {
        self.first_component(w.cta) + w.index as usize
    }

    /// The component of a CTA's first warp.
    fn first_component(&self, slot: CtaSlot) -> usize {
        (slot.0 % self.shape.cluster_size * self.shape.warps_per_cta) as usize
    }

    /// The component of a CTA's loads.
    fn loads_of(&self, slot: CtaSlot) -> usize {
        self.warps + (slot.0 % self.shape.cluster_size) as usize
    }

    fn cluster_of(&self, slot: CtaSlot) -> usize {
        (slot.0 / self.shape.cluster_size) as usize
    }

    fn width(&self) -> usize {
        width_of(self.shape)
    }

    /// The components of the warpgroups of a CTA: their groups of wgmma.
    fn products_of(&self, slot: CtaSlot) -> std::ops::Range<usize> {
        let (warpgroups, rank) = (warpgroups(self.shape), (slot.0 % self.shape.cluster_size) as usize);
        let first = self.warps + self.shape.cluster_size as usize + rank * warpgroups;
        first..first + warpgroups
    }

    fn clock(&mut self, w: &Warp) -> &mut Clock {
        let id = self.id(w);
        Rc::make_mut(&mut self.clocks[id])
    }

    /// What the warp did from now on has a new epoch.
    fn tick(&mut self, w: &Warp) {
        let own = self.component(w);
        self.clock(w).tick(own);
    }

    /// `warpgroup 1`, and whose if it is another CTA's.
    fn warpgroup(&self, number: usize, slot: CtaSlot, seen_from: CtaSlot) -> String {
        match slot == seen_from {
            true => format!("warpgroup {number}"),
            false => format!(
                "warpgroup {number} of the cluster's CTA {}",
                slot.0 % self.shape.cluster_size
            ),
        }
    }

    /// `warp 3`, and whose if it is another CTA's.
    pub(super) fn name(&self, component: usize, seen_from: CtaSlot) -> String {
        let per = self.shape.warps_per_cta as usize;
        let (rank, index) = (component / per, component % per);
        if rank == (seen_from.0 % self.shape.cluster_size) as usize {
            format!("warp {index}")
        } else {
            format!("warp {index} of the cluster's CTA {rank}")
        }
    }

    /// Somebody touches what a load writes and has not seen it land.
    #[cold]
    fn unseen(&self, verb: &str, by: &Warp, slot: CtaSlot, line: usize, mask: u32, seen: u32) -> Box<Error> {
        let (flies, load) = self.histories[slot.0 as usize].load_of(line, mask, seen);
        let load = load.map(|it| it.landing);
        let reduces = load.is_some_and(|load| load.reduces);
        let (who, remedy) = match reduces {
            true => (
                "a reduction (red.async)",
                "wait for the phase of the mbarrier that expects the reductions' bytes (`mbarrier_wait`), before the memory is touched again",
            ),
            false if slot == by.cta => (
                "a bulk load",
                "wait for the copy's barrier (`barrier_wait`) before its destination is touched again",
            ),
            false => (
                "a bulk load",
                "a block's own wait says nothing of its peers' copies: let each peer arrive at a barrier of the cluster (`plgpu.ClusterBarrier`) after it has waited for the copy and used it, and wait for that before its memory is touched again",
            ),
        };
        let what = if flies {
            format!("{verb} shared memory that {who} in flight writes")
        } else {
            format!("{verb} shared memory that {who} wrote, without having waited for it")
        };
        let mut error = execution(what);
        if let Some(load) = load {
            error = error
                .expected(format!(
                    "a wait on the {} before, by this warp or by one that it then synchronised with",
                    self.names.mbarrier(load.barrier)
                ))
                .got(format!(
                    "{}{}, of {}..{} of the {} at {}",
                    self.granules(line, mask),
                    match slot == by.cta {
                        true => String::new(),
                        false => format!(" of the cluster's CTA {}", slot.0 % self.shape.cluster_size),
                    },
                    load.offset,
                    load.offset + load.bytes,
                    if reduces { "reduction" } else { "load" },
                    load.loc
                ));
        }
        Box::new(error.remedy(remedy))
    }

    /// Granules of a line of shared memory, in words.
    fn granules(&self, line: usize, mask: u32) -> String {
        let start = 128 * line as u32;
        self.names.bytes(
            start + 4 * mask.trailing_zeros(),
            start + 128 - 4 * mask.leading_zeros(),
        )
    }

    /// An ordinary access and an earlier one of another warp.
    #[cold]
    fn race(&self, verb: &str, memory: &str, slot: CtaSlot, other: Other, (place, bytes): (String, u32)) -> Box<Error> {
        let (did, it) = match other.did {
            Did::Wrote | Did::Writes => ("wrote", "store"),
            Did::Read => ("read (itself, or by what it issued)", "load"),
        };
        let who = self.name(other.component, slot);
        Box::new(
            execution(format!(
                "{verb} {memory} memory that another warp {did}, and nothing orders the two"
            ))
            .expected(format!(
                "a barrier between the {it} by {who} (at {}) and this",
                other.loc
            ))
            .got(place)
            .remedy(if bytes <= FLAG_BYTES {
                format!("{BARRIER}; or{FLAG}")
            } else {
                BARRIER.to_owned()
            }),
        )
    }

    /// A write to what a wgmma reads that is not known to be complete.
    #[cold]
    fn multiplied(&self, verb: &str, w: &Warp, slot: CtaSlot, place: String, product: Product) -> Box<Error> {
        let who = self.warpgroup(product.warpgroup, slot, w.cta);
        Box::new(
            execution(format!("{verb} shared memory that a wgmma of {who} reads, which is not known to be complete"))
                .expected(format!("a wait of {who} for the wgmma (at {}) before this", product.past.loc))
                .got(place)
                .remedy(
                    "wait for it (`wgmma_wait(0)`) first; other warpgroups learn of that by a barrier behind the wait (`barrier_arrive`, `barrier_wait`)",
                ),
        )
    }

    /// An access by the lanes of a warp to shared memory.
    #[inline(always)]
    fn shared_lanes(&mut self, w: &Warp, addresses: &[u32; 32], offset: i32, mask: u32, access: Access<'_>) -> Verdict {
        let Access {
            bytes,
            mode,
            loc,
            changes,
            ..
        } = access;
        let (reads, writes) = match mode {
            // A poll races with nothing.
            Mode::Load(sem) if sem != LoadSem::Weak => (false, false),
            Mode::Load(_) | Mode::Read => (true, false),
            Mode::Store(_) | Mode::Write => (false, true),
            Mode::Atomic(..) | Mode::Reduce => (true, true),
        };
        // Of the others' accesses those that are atomic race with ordinary ones only.
        let atomic = is_atomic(mode);
        let strong = atomic || !(reads || writes);
        let mine = Side { writes, atomic };
        let own_rank = w.cta.0 % self.shape.cluster_size + 1;
        let id = self.id(w);
        if writes && Rc::strong_count(&self.clocks[id]) > 1 {
            // What the warp has issued has not seen what it writes now.
            self.tick(w);
        }
        let clock = Rc::clone(&self.clocks[id]);
        let epoch = clock.seen()[self.component(w)];
        let loads = self.loads_of(w.cta);
        let seen = clock.seen()[loads];
        let column = w.index as usize;
        let size = self.shape.smem_bytes;
        let first = self.first_component(w.cta);
        let settled = &clock.seen()[self.products_of(w.cta)];
        let history = &mut self.histories[w.cta.0 as usize];
        let (mut conflict, mut multiplied) = (None, None);
        self.store = self.store.wrapping_add(1);
        let (number, mut again) = (self.store, false);
        // `exact`: the bytes, of less than a granule each.
        let mut note = |line: usize, mask: u32, exact: Mask| {
            if writes {
                let (last, granules) = history.stores[line];
                let before = if last == number { granules } else { 0 };
                again |= before & mask != 0;
                history.stores[line] = (number, before | mask);
            }
            if (bytes < 4 || atomic) && !history.narrow[line] {
                history.make_narrow(line);
            }
            let narrow = history.narrow[line];
            let exact = if bytes < 4 { exact } else { bytes_of(mask) };
            if writes && multiplied.is_none() {
                multiplied = history
                    .product_unseen(line, mask, settled)
                    .map(|it| (line, mask & it.past.granules, it));
            }
            if !history.is_seen(line, mask, seen, strong) {
                conflict = Some((line, mask, None));
            } else if reads || writes {
                // A load looks at stores; a store at loads, and at stores of something else.
                for (wrote, theirs) in [(true, history.writers[line]), (false, history.readers[line])] {
                    if !(wrote || writes) {
                        continue;
                    }
                    for other in lanes(theirs & !(1 << column)) {
                        let since = clock.seen()[first + other];
                        let mut hold = |hit: Mask, atomic: bool, loc: Loc| {
                            let theirs = Side { writes: wrote, atomic };
                            if races(hit, theirs, mine, || changes(w.cta, line as u64)) {
                                conflict = Some((line, granules_of(hit), Some((first + other, wrote, loc))));
                            }
                        };
                        if narrow {
                            let touches = history.unseen(line, other, wrote, exact, since);
                            touches.iter().for_each(|it| hold(it.mask, it.atomic, it.loc));
                        } else {
                            let pasts = history.unseen_granules(line, other, wrote, mask, since);
                            pasts.for_each(|past| hold(bytes_of(past.granules), false, past.loc));
                        }
                    }
                }
            }
            let touch = Touch {
                epoch,
                loc,
                atomic,
                mask: exact,
            };
            if !history.visited.is_empty() && (reads || writes) {
                let changes = || changes(w.cta, line as u64);
                if let Some((hit, visit)) =
                    history.visit_unseen(line, first + column, writes, touch, clock.seen(), &changes)
                {
                    conflict = Some((line, granules_of(hit), Some((visit.by, visit.wrote, visit.touch.loc))));
                }
            }
            for (wrote, does) in [(false, reads), (true, writes)] {
                match (does, narrow) {
                    (false, _) => {}
                    (true, false) => history.note(line, column, wrote, epoch, mask, loc),
                    (true, true) => history.note_exact(line, column, wrote, touch),
                }
            }
        };
        let (mut line, mut touched, mut exact) = (usize::MAX, 0, 0);
        let mut peers = 0u32;
        let mut meet = false;
        let start = addresses[0].wrapping_add(offset as u32).wrapping_sub(SMEM_BASE);
        let dense =
            mask == u32::MAX && start.wrapping_add(32 * bytes) <= size && start < size && is_dense(addresses, bytes);
        if dense {
            let exact = byte_history::lines_of(start.into(), u64::from(32 * bytes));
            let lines = lines_of(start, 32 * bytes).zip(exact);
            lines.for_each(|((line, mask), (_, exact))| note(line, mask, exact));
        }
        for i in lanes(if dense { 0 } else { mask }) {
            let address = addresses[i].wrapping_add(offset as u32);
            let rank = address >> RANK_SHIFT;
            let at = (address & ((1 << RANK_SHIFT) - 1)).wrapping_sub(SMEM_BASE);
            if at >= size || (rank != 0 && rank != own_rank) {
                // A peer's; or nobody's, which the access itself reports.
                peers |= u32::from(at < size) << i;
                continue;
            }
            let here = (at >> 7) as usize;
            if here != line {
                if touched != 0 {
                    note(line, touched, exact);
                }
                (line, touched, exact) = (here, 0, 0);
            }
            let more = granules(at, bytes);
            if bytes < 4 {
                let more = ((1 << bytes) - 1) << (at & 127);
                meet |= exact & more != 0;
                exact |= more;
            } else {
                meet |= touched & more != 0;
            }
            touched |= more;
        }
        if touched != 0 {
            note(line, touched, exact);
        }
        self.meet = meet || again || peers & peers.wrapping_sub(1) != 0;
        let peer = match peers {
            0 => Ok(()),
            _ => self.peer_lanes(w, addresses, offset, peers, access),
        };
        if let (None, Some((line, mask, product))) = (conflict, multiplied) {
            return Err(self.multiplied(verb(mode), w, w.cta, self.granules(line, mask), product));
        }
        match conflict {
            None => peer,
            Some((line, mask, None)) => Err(self.unseen(verb(mode), w, w.cta, line, mask, seen)),
            Some((line, mask, Some((component, wrote, loc)))) => {
                let place = self.granules(line, mask);
                let bytes = 128 - 4 * (mask.trailing_zeros() + mask.leading_zeros());
                Err(self.race(
                    verb(mode),
                    "shared",
                    w.cta,
                    Other {
                        component,
                        did: Did::of(wrote),
                        loc,
                    },
                    (place, bytes),
                ))
            }
        }
    }

    /// An access to lines of global memory by a warp that has seen `view`: its lanes', or its bulk copies'.
    fn global_lines(
        &mut self,
        w: &Warp,
        view: &Clock,
        lines_: impl Iterator<Item = (u64, Mask)> + Clone,
        access: Access<'_>,
    ) -> Verdict {
        let mode = access.mode;
        let epoch = self.clocks[self.id(w)].seen()[self.component(w)];
        let mut verdict = Ok(());
        if self.across.is_some() {
            let who = self.who(w);
            if let Some(across) = &mut self.across {
                verdict = across.access(who, view, epoch, lines_.clone(), &access);
            }
        }
        let writes = match mode {
            Mode::Load(LoadSem::Weak) | Mode::Read => false,
            // A poll races with nothing.
            Mode::Load(_) => return verdict,
            Mode::Store(_) | Mode::Write | Mode::Atomic(..) | Mode::Reduce => true,
        };
        // What an atomic or a flag did, others may not touch without being told; nor it what they did.
        let atomic = is_atomic(mode);
        // It acts for its warp at any time until that has waited for it.
        let is_bulk = matches!(mode, Mode::Read | Mode::Write | Mode::Reduce);
        let mine = Side { writes, atomic };
        let (own, column) = (w.cta.0 as usize, w.index as usize);
        let size = self.shape.cluster_size as usize;
        let ctas = own / size * size..own / size * size + size;
        let mut conflict = None;
        for (address, mask) in lines_ {
            for cta in ctas.clone() {
                let history = &mut self.globals[cta];
                let (line, own_column) = if cta == own {
                    (history.line(address), if is_bulk { 0 } else { 1 << column })
                } else {
                    let Some(line) = history.peek(address) else { continue };
                    (line, 0)
                };
                let first = (cta % size) * self.shape.warps_per_cta as usize;
                let changes = || (access.changes)(w.cta, address);
                let mut look = |theirs: u32, wrote: bool| {
                    for other in lanes(theirs & !own_column) {
                        for entry in history.entries(line, other, wrote) {
                            let hit = entry.unseen(mask, view.seen()[first + other]);
                            let theirs = Side {
                                writes: wrote,
                                atomic: entry.is_atomic(),
                            };
                            if races(hit, theirs, mine, changes) {
                                let did = Did::of(wrote);
                                let (component, loc) = (first + other, entry.loc());
                                conflict = Some((address, hit, Other { component, did, loc }));
                            }
                        }
                    }
                };
                look(history.writers(line), true);
                if writes {
                    look(history.readers(line), false);
                }
                for store in history.pending(line) {
                    if is_bulk && (cta, store.warp, store.number) == (own, column, access.number) {
                        continue;
                    }
                    let theirs = Side {
                        writes: true,
                        atomic: store.touch.atomic,
                    };
                    let hit = store.touch.mask & mask;
                    if races(hit, theirs, mine, changes) {
                        let (component, loc) = (first + store.warp, store.touch.loc);
                        let did = Did::Writes;
                        conflict = Some((address, hit, Other { component, did, loc }));
                    }
                }
                if cta != own {
                    continue;
                }
                let touch = Touch {
                    epoch,
                    loc: access.loc,
                    atomic,
                    mask,
                };
                // What a bulk load has read is over for whoever waits for it, not for its issuer.
                match (mode, writes) {
                    (Mode::Read, _) => {}
                    (Mode::Write | Mode::Reduce, _) => {
                        let number = access.number;
                        let warp = column;
                        history.note_pending(line, Pending { warp, number, touch });
                    }
                    (_, false) => history.note_read(line, column, touch),
                    (_, true) => history.note_write(line, column, touch),
                }
            }
            if writes && !self.maps.is_empty() {
                let author = Author {
                    warp: own * self.shape.warps_per_cta as usize + column,
                    epoch,
                    loc: access.loc,
                };
                let any = matches!(mode, Mode::Atomic(..) | Mode::Reduce);
                let changes = || any || (access.changes)(w.cta, address) & mask != 0;
                self.maps.written(address, author, changes);
            }
        }
        let Some((line, mask, other)) = conflict else {
            return verdict;
        };
        let address = 128 * line + u64::from(mask.trailing_zeros());
        let bytes = 128 - mask.leading_zeros() - mask.trailing_zeros();
        let (buffer, offset) = global::split(address);
        let place = format!("{bytes} bytes from byte {offset} of {} on", self.names.buffer(buffer));
        if is_bulk && other.component == self.component(w) || other.did == Did::Writes {
            return Err(self.in_flight(w, mode, other, place));
        }
        let mut error = self.race(bulk_verb(mode), "global", w.cta, other, (place, bytes));
        if matches!(mode, Mode::Write | Mode::Reduce) {
            error.remedy = Some(format!(
                "{BARRIER}; what comes behind the copy comes behind a wait for all of it (`wait_smem_to_gmem(0)`), too"
            ));
        }
        Err(error)
    }

    /// An access to what a bulk store in flight writes; or a bulk copy and what its warp did before it waited for it.
    #[cold]
    fn in_flight(&self, w: &Warp, mode: Mode, other: Other, place: String) -> Box<Error> {
        let who = self.name(other.component, w.cta);
        let verb = bulk_verb(mode);
        let (what, expected) = match other.did {
            Did::Writes => (
                format!("{verb} global memory that a bulk store of {who} writes, which has not waited for it"),
                format!(
                    "a wait for the whole of that store (at {}) by {who} before this",
                    other.loc
                ),
            ),
            Did::Wrote | Did::Read => {
                let touched = if other.did == Did::Read { "read" } else { "wrote" };
                (
                    format!(
                        "{verb} global memory that the warp which issued it {touched} before it waited for the copy"
                    ),
                    format!(
                        "a wait for the whole of the copy before {} touches the memory (at {})",
                        who, other.loc
                    ),
                )
            }
        };
        let remedy = match mode {
            Mode::Read => "wait for the copy's barrier (`barrier_wait`) before its source is written",
            _ => {
                "wait for the whole copy, not only for its reads (`wait_smem_to_gmem(0)`), before its destination is touched; other warps learn of that by a barrier behind the wait"
            }
        };
        Box::new(execution(what).expected(expected).got(place).remedy(remedy))
    }

    /// An access by the lanes of a warp to global memory.
    fn global_lanes(&mut self, w: &Warp, addresses: &[u64; 32], offset: i32, mask: u32, access: Access<'_>) -> Verdict {
        let bytes = access.bytes;
        let id = self.id(w);
        if Rc::strong_count(&self.clocks[id]) > 1 {
            // What the warp has issued has not seen what it does now.
            self.tick(w);
        }
        let clock = Rc::clone(&self.clocks[id]);
        let at = |i: usize| addresses[i].wrapping_add_signed(offset.into());
        let dense =
            mask == u32::MAX && (1..32).all(|i| addresses[i] == addresses[0].wrapping_add(i as u64 * u64::from(bytes)));
        self.meet = false;
        if dense {
            return self.global_lines(w, &clock, byte_history::lines_of(at(0), 32 * u64::from(bytes)), access);
        }
        // Neighbours in a line together.
        let mut touched: [(u64, Mask); 32] = [(0, 0); 32];
        let (mut count, mut next) = (0, 0);
        for i in lanes(mask) {
            for (line, mask) in byte_history::lines_of(at(i), bytes.into()) {
                match touched[..count].last_mut() {
                    Some(last) if last.0 == line => {
                        self.meet |= last.1 & mask != 0;
                        last.1 |= mask;
                    }
                    _ if count < 32 => {
                        touched[count] = (line, mask);
                        count += 1;
                        self.meet |= line < next;
                        next = line + 1;
                    }
                    _ => {}
                }
            }
        }
        self.global_lines(w, &clock, touched[..count].iter().copied(), access)
    }

    /// The same for lanes whose addresses are in peers.
    #[cold]
    fn peer_lanes(&mut self, w: &Warp, addresses: &[u32; 32], offset: i32, mask: u32, access: Access<'_>) -> Verdict {
        let Access { bytes, mode, .. } = access;
        let (reads, writes) = match mode {
            // A poll races with nothing.
            Mode::Load(sem) => (sem == LoadSem::Weak, false),
            Mode::Read => (true, false),
            Mode::Store(_) | Mode::Write => (false, true),
            Mode::Atomic(..) | Mode::Reduce => (true, true),
        };
        let strong = is_atomic(mode) || !(reads || writes);
        let (id, own) = (self.id(w), self.component(w));
        let clock = Rc::clone(&self.clocks[id]);
        let mut verdict = Ok(());
        for i in lanes(mask) {
            let address = addresses[i].wrapping_add(offset as u32);
            let Some((slot, at)) = shared::locate(w.cta, self.shape.cluster_size, address) else {
                continue;
            };
            let seen = self.clocks[id].seen()[self.loads_of(slot)];
            let (line, mask) = ((at >> 7) as usize, granules(at, bytes));
            if verdict.is_ok() && !self.histories[slot.0 as usize].is_seen(line, mask, seen, strong) {
                verdict = Err(self.unseen(verb(mode), w, slot, line, mask, seen));
            }
            self.visit(w, slot);
            if writes {
                let id = self.id(w);
                let epoch = self.clocks[id].seen()[self.component(w)];
                self.far_since[id].get_or_insert(epoch);
            }
            if !reads && !writes {
                continue;
            }
            let settled = &clock.seen()[self.products_of(slot)];
            if writes
                && verdict.is_ok()
                && let Some(product) = self.histories[slot.0 as usize].product_unseen(line, mask, settled)
            {
                let place = self.names.bytes(at, at + bytes);
                verdict = Err(self.multiplied(verb(mode), w, slot, place, product));
            }
            let touch = Touch {
                epoch: clock.seen()[own],
                loc: access.loc,
                atomic: is_atomic(mode),
                mask: (Mask::MAX >> (128 - bytes)) << (at & 127),
            };
            let changes = || (access.changes)(slot, line as u64);
            let history = &self.histories[slot.0 as usize];
            let other = history
                .visit_unseen(line, own, writes, touch, clock.seen(), &changes)
                .or_else(|| {
                    history.own_unseen(line, self.first_component(slot), writes, touch, clock.seen(), &changes)
                });
            if let Some((hit, visit)) = other
                && verdict.is_ok()
            {
                let from = 128 * line + hit.trailing_zeros() as usize;
                let to = 128 * line + 128 - hit.leading_zeros() as usize;
                let place = format!(
                    "{} of the cluster's CTA {}",
                    self.names.bytes(from as u32, to as u32),
                    slot.0 % self.shape.cluster_size
                );
                let Visit {
                    by: component,
                    wrote,
                    touch,
                } = visit;
                let (did, loc) = (Did::of(wrote), touch.loc);
                verdict = Err(self.race(
                    verb(mode),
                    "shared",
                    w.cta,
                    Other { component, did, loc },
                    (place, (to - from) as u32),
                ));
            }
            let history = &mut self.histories[slot.0 as usize];
            for wrote in [false, true] {
                if if wrote { writes } else { reads } {
                    history.note_visit(line, Visit { by: own, wrote, touch });
                }
            }
        }
        verdict
    }

    /// A warp uses the memory of a peer.
    fn visit(&mut self, w: &Warp, slot: CtaSlot) {
        if slot != w.cta {
            let own = self.component(w);
            let epoch = self.clocks[self.id(w)].seen()[own];
            self.histories[slot.0 as usize].visits[own] = epoch;
        }
    }

    /// The async proxy reads granules of lines for an operation of a warp that has inherited `view`.
    fn async_read(
        &mut self,
        w: &Warp,
        view: &Clock,
        slot: CtaSlot,
        lines: impl Iterator<Item = (usize, u32)>,
        reader: Reader,
        loc: Loc,
    ) -> Verdict {
        let epoch = self.clocks[self.id(w)].seen()[self.component(w)];
        let seen = view.seen()[self.loads_of(slot)];
        let first = self.first_component(slot);
        let (own, index) = (slot == w.cta, w.index as usize);
        let history = &mut self.histories[slot.0 as usize];
        let (mut unseen, mut unfenced) = (None, None);
        for (line, mask) in lines {
            if !history.is_seen(line, mask, seen, false) {
                unseen.get_or_insert((line, mask));
            }
            for column in lanes(history.writers[line]) {
                let since = view.fenced()[first + column];
                if let Some(write) = history.any_unseen(line, column, true, mask, since) {
                    unfenced.get_or_insert((line, write, column));
                }
            }
            match reader {
                Reader::Copy if own => {
                    history.note(line, index, false, epoch, mask, loc);
                    history.copiers[line] |= 1 << index;
                }
                Reader::Copy => {}
                Reader::Product { group } => {
                    let past = Past {
                        epoch: group,
                        granules: mask,
                        loc,
                    };
                    history.note_product(line, index / 4, past);
                }
            }
        }
        match (unseen, unfenced) {
            (None, None) => Ok(()),
            (Some((line, mask)), _) => match self.histories[slot.0 as usize].load_of(line, mask, seen).1 {
                Some(load) if load.loads_before >= view.loads_before() && !load.landing.reduces => {
                    Err(self.refilled(reader, loc, load.landing))
                }
                Some(_) | None => Err(self.unseen("the async proxy reads", w, slot, line, mask, seen)),
            },
            (None, Some((line, write, column))) => {
                Err(self.unfenced("the async proxy reads", w, view, (slot, column), line, write))
            }
        }
    }

    /// A load that was issued after an asynchronous operation overwrites what that reads.
    #[cold]
    fn refilled(&self, reader: Reader, at: Loc, load: Landing) -> Box<Error> {
        let (who, remedy) = match reader {
            Reader::Product { .. } => ("a wgmma", WAIT_FOR_PRODUCTS),
            Reader::Copy => (
                "a copy from it",
                "wait for that copy (`wait_smem_to_gmem(0)`) before the next one into its source is issued",
            ),
        };
        let error = execution(format!(
            "a bulk load overwrites shared memory that is still read, by {who} in flight"
        ));
        Box::new(
            error
                .expected(format!("a wait for {who} (at {at}) before the load is issued"))
                .got(self.names.bytes(load.offset, load.offset + load.bytes))
                .remedy(remedy)
                .at(load.loc),
        )
    }

    /// A write of a warp that an asynchronous operation may not have seen.
    #[cold]
    fn unfenced(
        &self,
        verb: &str,
        w: &Warp,
        view: &Clock,
        (slot, column): (CtaSlot, usize),
        line: usize,
        write: Past,
    ) -> Box<Error> {
        let component = self.first_component(slot) + column;
        let who = self.name(component, slot);
        // `commit_smem` is a rendezvous of one warpgroup, the one that calls it.
        let own = (slot, column as u32 / 4) == (w.cta, w.index / 4);
        let got = format!(
            "{}, written by {who} at {}",
            self.granules(line, write.granules),
            write.loc
        );
        Box::new(if write.epoch <= view.seen()[component] {
            execution(format!("{verb} shared memory that the generic proxy wrote"))
                .expected("fence.proxy.async between the writes and the asynchronous operation")
                .got(got)
                .remedy(match own {
                    true => "commit the writes (`commit_smem`) before the operation is issued",
                    false => "commit the writes (`commit_smem`) in the warpgroup that makes them, before it arrives at the barrier that is waited for",
                })
        } else {
            execution(format!("{verb} shared memory that the generic proxy writes, and nothing orders the two"))
                .expected(
                    "the write before the operation's issue, with a barrier and fence.proxy.async in between; or after a wait that covers the operation",
                )
                .got(got)
                .remedy(match own {
                    true => "commit the writes (`commit_smem`, which all warps of a warpgroup wait in) before the operation is issued; or, if they come behind it, wait for it first (`wait_smem_to_gmem(0)`, `wgmma_wait(0)`)",
                    false => "commit the writes (`commit_smem`) and arrive at a barrier (`barrier_arrive`) in the warpgroup that makes them, and wait for that (`barrier_wait`) before the operation is issued; or, if they come behind it, wait for it first (`wait_smem_to_gmem(0)`, `wgmma_wait(0)`), and tell the warpgroup that writes by a barrier",
                })
        })
    }

    /// A read of a warp that a bulk load, which comes behind it, may still overtake.
    #[cold]
    fn unfenced_read(&self, w: &Warp, (slot, column): (CtaSlot, usize), line: usize, read: Past) -> Box<Error> {
        let who = self.name(self.first_component(slot) + column, w.cta);
        let error = execution("a bulk load overwrites shared memory that the generic proxy may still be reading");
        Box::new(
            error
                .expected("fence.proxy.async between the read and the arrival, or the barrier, that lets the load begin")
                .got(format!("{}, read by {who} at {}", self.granules(line, read.granules), read.loc))
                .remedy(
                    "`plgpu.barrier_arrive` has the fence; elsewhere `smalt.fence_proxy_async(\"shared::cta\")`, or `plgpu.commit_smem()`, behind the read",
                ),
        )
    }

    /// Whether the warp may use a barrier; `far`: from a peer, or by the async proxy.
    fn check_barrier(&self, w: &Warp, slot: CtaSlot, offset: u32, far: bool) -> Verdict {
        let own = self.component(w);
        let clock = &self.clocks[self.id(w)];
        let Some(barrier) = self.histories[slot.0 as usize].barriers.get(&offset) else {
            return Ok(());
        };
        if barrier.by != own && clock.seen()[barrier.by] < barrier.at {
            let who = self.name(barrier.by, w.cta);
            return Err(Box::new(
                execution(format!(
                    "a use of the {} that nothing orders after its mbarrier.init",
                    self.names.mbarrier(offset)
                ))
                .expected(format!(
                    "{} between the initialisation by {who} and the use",
                    if slot == w.cta {
                        "a barrier of the CTA"
                    } else {
                        "a barrier of the cluster"
                    }
                ))
                .remedy("synchronise after the barriers have been initialised"),
            ));
        }
        if far && !barrier.published && clock.fenced()[barrier.by] < barrier.at {
            return Err(Box::new(
                execution(format!(
                    "a use of the {} by the async proxy or a peer, which may not see that it was initialised",
                    self.names.mbarrier(offset)
                ))
                .expected("fence.mbarrier_init after mbarrier.init, by the thread that executed it")
                .remedy("fence.mbarrier_init.release.cluster, then a barrier"),
            ));
        }
        Ok(())
    }

    /// Whether a bulk load may write its destination.
    fn check_load(&self, w: &Warp, view: &Clock, landing: Landing) -> Verdict {
        let slot = landing.slot;
        self.check_barrier(w, slot, landing.barrier, true)?;
        if landing.reduces {
            return self.check_reduction(w, view, landing);
        }
        let seen = view.seen()[self.loads_of(slot)];
        let first = self.first_component(slot);
        let history = &self.histories[slot.0 as usize];
        for (line, mask) in lines_of(landing.offset, landing.bytes) {
            if !history.is_seen(line, mask, seen, false) {
                return Err(self.unseen("a bulk load overwrites", w, slot, line, mask, seen));
            }
            for column in lanes(history.writers[line]) {
                let since = view.fenced()[first + column];
                if let Some(write) = history.any_unseen(line, column, true, mask, since) {
                    return Err(self.unfenced("a bulk load overwrites", w, view, (slot, column), line, write));
                }
            }
            let settled = &view.seen()[self.products_of(slot)];
            let product = history.product_unseen(line, mask, settled);
            let read = lanes(history.readers[line]).find_map(|column| {
                let since = view.seen()[first + column];
                let read = history.any_unseen(line, column, false, mask, since)?;
                Some((self.name(first + column, w.cta), read))
            });
            if read.is_none() && product.is_none() {
                // What a copy read is over with its wait.
                for column in lanes(history.readers[line] & !history.copiers[line]) {
                    let since = view.fenced()[first + column];
                    if let Some(read) = history.any_unseen(line, column, false, mask, since) {
                        return Err(self.unfenced_read(w, (slot, column), line, read));
                    }
                }
            }
            let read = read.or_else(|| product.map(|it| (self.warpgroup(it.warpgroup, slot, w.cta), it.past)));
            if let Some((who, read)) = read {
                let (at, barrier) = (read.loc, self.names.mbarrier(landing.barrier));
                let wait =
                    format!("wait for the load first, for the {barrier} (`barrier_wait`), before it is read at {at}");
                let release = format!(
                    "release the slot (`barrier_arrive`) after its last use at {at} (behind the `wgmma_wait` or `wait_smem_to_gmem` that covers that), and wait for that (`barrier_wait`) before it is refilled"
                );
                // What nothing has filled yet was read for what this load brings.
                let by_product = product.is_some_and(|it| it.past.loc == at);
                let (expected, remedy) = match (history.is_untouched(line), by_product) {
                    (true, _) => (
                        format!(
                            "{who} to wait for what fills the memory before it reads it (at {at}): nothing has yet"
                        ),
                        wait,
                    ),
                    (false, true) => (
                        format!("a wait of {who} for the wgmma (at {at}), and the issuer of the load to know of that"),
                        format!("{WAIT_FOR_PRODUCTS}; between warpgroups: {release}"),
                    ),
                    (false, false) => (
                        format!(
                            "{who} to have arrived at a barrier after it read (at {at}; or after the wait that covers its wgmma or bulk store), and the issuer to have waited for that"
                        ),
                        format!("{release}; if the read was meant for what this load brings, {wait}"),
                    ),
                };
                let error = match history.is_untouched(line) {
                        true => execution(format!(
                            "a `barrier_wait` is missing: what a bulk load (at {}) fills is read, and nothing has waited for the load",
                            landing.loc
                        ))
                        .at(at),
                        false => execution(
                            "a bulk load overwrites shared memory that is still read, as far as its issuer knows",
                        ),
                    };
                let bytes = self.names.bytes(landing.offset, landing.offset + landing.bytes);
                let error = error.expected(expected).got(format!("{bytes}, read by {who} at {at}"));
                return Err(Box::new(error.remedy(remedy)));
            }
        }
        Ok(())
    }

    /// Whether `red.async` may touch its element: a relaxed operation of the cluster, by the generic proxy (PTX ISA 9.7.13.7).
    fn check_reduction(&self, w: &Warp, view: &Clock, landing: Landing) -> Verdict {
        let slot = landing.slot;
        let (own, seen) = (self.component(w), view.seen()[self.loads_of(slot)]);
        let history = &self.histories[slot.0 as usize];
        for (line, mask) in lines_of(landing.offset, landing.bytes) {
            if !history.is_seen(line, mask, seen, true) {
                return Err(self.unseen("a reduction (red.async) of", w, slot, line, mask, seen));
            }
            let settled = &view.seen()[self.products_of(slot)];
            if let Some(product) = history.product_unseen(line, mask, settled) {
                let place = self.names.bytes(landing.offset, landing.offset + landing.bytes);
                return Err(self.multiplied("a reduction (red.async) of", w, slot, place, product));
            }
            let touch = Touch {
                epoch: view.seen()[own],
                loc: landing.loc,
                atomic: true,
                mask: bytes_of(mask),
            };
            let changes = || Mask::MAX;
            let other = history
                .visit_unseen(line, own, true, touch, view.seen(), &changes)
                .or_else(|| history.own_unseen(line, self.first_component(slot), true, touch, view.seen(), &changes));
            if let Some((_, visit)) = other {
                let (component, did, loc) = (visit.by, Did::of(visit.wrote), visit.touch.loc);
                let mut place = self.names.bytes(landing.offset, landing.offset + landing.bytes);
                if slot != w.cta {
                    place += &format!(" of the cluster's CTA {}", slot.0 % self.shape.cluster_size);
                }
                let other = Other { component, did, loc };
                return Err(self.race("a reduction (red.async) of", "shared", w.cta, other, (place, u32::MAX)));
            }
        }
        Ok(())
    }

    /// Where lanes access shared memory: whose, and from which of its bytes on.
    fn shared_places(
        &self,
        cta: CtaSlot,
        addresses: &[u32; 32],
        offset: i32,
        mask: u32,
    ) -> ArrayVec<(CtaSlot, u32), 32> {
        let mut places = ArrayVec::new();
        for i in lanes(mask) {
            let address = addresses[i].wrapping_add(offset as u32);
            // Addresses of nobody the access itself reports.
            let place =
                shared::locate(cta, self.shape.cluster_size, address).filter(|(_, at)| *at < self.shape.smem_bytes);
            if let Some(place) = place
                && places.last() != Some(&place)
            {
                places.push(place);
            }
        }
        places
    }

    /// A warp is about to look at words of shared memory by which warps tell each other.
    #[cold]
    fn hear_words(&mut self, w: &Warp, addresses: &[u32; 32], offset: i32, mask: u32, access: Access<'_>) {
        let Some((scope, acquires)) = access.mode.looks() else {
            return;
        };
        let (id, width) = (self.id(w), self.width());
        for (slot, at) in self.shared_places(w.cta, addresses, offset, mask) {
            for (told, beyond) in self.words.heard((slot, at, access.bytes), w.cta) {
                if beyond && !is_wide(scope) {
                    continue;
                }
                match acquires {
                    true => Rc::make_mut(&mut self.clocks[id]).join(told),
                    false => self.relaxed[id].acquires[usize::from(beyond)]
                        .get_or_insert_with(|| Clock::new(width))
                        .join(told),
                }
            }
        }
    }

    /// A warp writes words of shared memory, which has been noted: whoever looks at them may learn what it did until now.
    #[cold]
    fn tell_words(&mut self, w: &Warp, addresses: &[u32; 32], offset: i32, mask: u32, access: Access<'_>) {
        let (replaces, told) = (matches!(access.mode, Mode::Store(_)), access.mode.signals());
        if !replaces && told.is_none() {
            return;
        }
        let (id, bytes) = (self.id(w), access.bytes);
        let mut tell: ArrayVec<(&Clock, bool), 2> = ArrayVec::new();
        match told {
            Some((scope, true)) => tell.push((&*self.clocks[id], is_wide(scope))),
            // A fence has released, as far as it and the access reach.
            Some((scope, false)) => {
                let releases = self.relaxed[id].releases.iter().zip([false, is_wide(scope)]);
                tell.extend(releases.filter_map(|(clock, wide)| Some((clock.as_ref()?, wide))));
            }
            None => {}
        }
        for (slot, at) in self.shared_places(w.cta, addresses, offset, mask) {
            if replaces {
                self.words.replace(slot, at, bytes);
            }
            for (clock, wide) in &tell {
                self.words.tell((slot, at, bytes), w.cta, *wide, clock);
            }
        }
        let tells = !tell.is_empty();
        drop(tell);
        if let Some((scope, true)) = told
            && is_wide(scope)
        {
            self.far_since[id] = None;
        }
        if tells {
            self.tick(w);
        }
    }

    /// What a CTA's warps have stored in peers' memory and have released to the own CTA at most: components, and from which epoch on.
    fn far_stores(&self, cta: CtaSlot) -> Vec<(usize, u32)> {
        let (first, warps) = (self.first_component(cta), self.shape.warps_per_cta);
        let of = |i: u32| Some((first + i as usize, self.far_since[(cta.0 * warps + i) as usize]?));
        (0..warps).filter_map(of).collect()
    }

    /// The warp across clusters, where they communicate.
    fn who(&self, w: &Warp) -> Who {
        let across = self.across.as_ref().expect("asked where clusters communicate");
        across.who(w.cta, self.component(w), self.id(w))
    }

    /// An access by the lanes of a warp, which has been noted, to words by which clusters tell each other.
    fn at_words(&mut self, w: &Warp, addresses: &[u64; 32], offset: i32, mask: u32, access: Access<'_>) {
        match access.mode {
            Mode::Load(LoadSem::Weak) | Mode::Store(StoreSem::Weak) | Mode::Read | Mode::Write | Mode::Reduce => return,
            Mode::Load(_) | Mode::Store(_) | Mode::Atomic(..) => {}
        }
        let (who, id) = (self.who(w), self.id(w));
        let Some(across) = &mut self.across else { return };
        let clock = Rc::make_mut(&mut self.clocks[id]);
        let (mut told, mut last) = (false, None);
        for i in lanes(mask) {
            let address = addresses[i].wrapping_add_signed(offset.into());
            if last != Some(address) {
                last = Some(address);
                told |= across.at_word(who, clock, (address, access.bytes.into()), access.mode, access.loc);
            }
        }
        if told {
            self.tick(w);
        }
    }
}

/// The other side of a race: who, and where.
#[derive(Clone, Copy)]
struct Other {
    component: usize,
    did: Did,
    loc: Loc,
}

/// What reads shared memory asynchronously.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Reader {
    /// A wgmma, of its warpgroup's group of that number from 1 on.
    Product {
        group: u32,
    },
    Copy,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Did {
    Read,
    Wrote,
    /// By a bulk store in flight.
    Writes,
}

impl Did {
    fn of(wrote: bool) -> Did {
        if wrote { Did::Wrote } else { Did::Read }
    }
}

fn warpgroups(shape: Shape) -> usize {
    shape.warps_per_cta.div_ceil(4) as usize
}

/// Components of a clock: warps, then CTAs for the loads that land there, then warpgroups for their products.
fn width_of(shape: Shape) -> usize {
    (shape.cluster_size * (shape.warps_per_cta + 1)) as usize + shape.cluster_size as usize * warpgroups(shape)
}

/// Whether an access races with ordinary ones only.
fn is_atomic(mode: Mode) -> bool {
    match mode {
        Mode::Atomic(..) => true,
        Mode::Store(sem) => sem != StoreSem::Weak,
        Mode::Reduce => true,
        Mode::Load(_) | Mode::Read | Mode::Write => false,
    }
}

fn verb(mode: Mode) -> &'static str {
    match mode {
        Mode::Load(_) | Mode::Read => "a load of",
        Mode::Store(_) | Mode::Write => "a store to",
        Mode::Atomic(..) | Mode::Reduce => "an atomic on",
    }
}

/// The same of global memory, which the async proxy writes, too.
fn bulk_verb(mode: Mode) -> &'static str {
    match mode {
        Mode::Read => "a bulk load of",
        Mode::Write => "a bulk store to",
        Mode::Reduce => "a bulk reduction into",
        Mode::Load(_) | Mode::Store(_) | Mode::Atomic(..) => verb(mode),
    }
}

impl Hooks for Causality {
    const LISTENS: bool = true;

    fn new(shape: Shape, names: Arc<Names>) -> Causality {
        let warps = (shape.cluster_size * shape.warps_per_cta) as usize;
        let width = width_of(shape);
        let all = shape.clusters as usize * warps;
        let ctas = shape.clusters * shape.cluster_size;
        let across = || Box::new(Communication::new(shape, names.clone()));
        Causality {
            across: shape.communicates.then(across),
            shape,
            names,
            warps,
            clocks: (0..all).map(|_| Rc::new(Clock::new(width))).collect(),
            fenced: vec![false; all],
            far_since: vec![None; all],
            relaxed: (0..all).map(|_| Relaxed::default()).collect(),
            histories: (0..ctas).map(|_| History::new(shape, width)).collect(),
            globals: (0..ctas)
                .map(|_| ByteHistory::new(shape.warps_per_cta as usize))
                .collect(),
            maps: MapOrder::default(),
            meet: false,
            store: 0,
            loads: 0,
            clusters: (0..shape.clusters).map(|_| Handover::new(width)).collect(),
            words: SharedWords::default(),
        }
    }

    fn cluster_starts(&mut self, cluster: u32, device: u32, id: [u32; 3]) {
        if let Some(across) = &mut self.across {
            across.cluster_starts(cluster as usize, device, id);
        }
        let (size, width) = (self.shape.cluster_size as usize, self.width());
        let first = cluster as usize * self.warps;
        let mut epochs: Vec<u32> = (0..self.warps).map(|i| self.clocks[first + i].seen()[i]).collect();
        let slots = cluster as usize * size..(cluster as usize + 1) * size;
        self.maps.forget(&(first..first + self.warps));
        epochs.extend(self.histories[slots.clone()].iter().map(|h| h.landings));
        epochs.resize(self.width(), 0);
        for i in 0..self.warps {
            let clock = Rc::make_mut(&mut self.clocks[first + i]);
            clock.restart(&epochs);
            clock.tick(i);
            self.fenced[first + i] = false;
            self.far_since[first + i] = None;
            self.relaxed[first + i] = Relaxed::default();
        }
        self.globals[slots.clone()].iter_mut().for_each(ByteHistory::clear);
        self.words.clear(&slots);
        for history in &mut self.histories[slots] {
            history.barriers.clear();
            history.named = Default::default();
            history.narrow.fill(false);
            history.visited.clear();
            history.bytes.clear();
            history.forget_products();
            history.landed_before = history.landings;
            history.flying.clear();
            history.forget_reductions();
            history.recent.clear();
            history.visits.fill(0);
            history.ended.clear();
        }
        self.clusters[cluster as usize] = Handover::new(width);
    }

    fn warp_ends(&mut self, w: &Warp) {
        let clock = Rc::clone(&self.clocks[self.id(w)]);
        self.histories[w.cta.0 as usize].ended.join(&clock);
        if self.across.is_some() {
            let who = self.who(w);
            if let Some(across) = &mut self.across {
                across.warp_ends(who, &clock);
            }
        }
    }

    fn device_ends(&mut self, device: u32) -> Verdict {
        self.across.as_mut().map_or(Ok(()), |across| across.device_ends(device))
    }

    fn last_signal(&self, address: u64) -> Option<String> {
        self.across.as_ref().map(|across| across.last_signal(address))
    }

    fn leftovers(&self, word: &dyn Fn(u64) -> u32) -> Vec<Error> {
        self.across.as_ref().map_or(vec![], |across| across.leftovers(word))
    }

    fn cta_ends(&mut self, slot: CtaSlot) -> Verdict {
        let history = &self.histories[slot.0 as usize];
        let seen = history.ended.seen();
        let late = history.visits.iter().zip(seen).position(|(visit, seen)| visit > seen);
        let Some(component) = late else { return Ok(()) };
        let who = self.name(component, slot);
        Err(Box::new(
            execution(format!(
                "a CTA ends, and nothing orders that after the last access of {who} to its shared memory"
            ))
            .expected("a barrier of the cluster after the accesses to peers, before the kernel ends")
            .remedy("arrive at and wait for a cluster barrier at the end of the kernel"),
        ))
    }

    fn view(&mut self, w: &Warp) -> View {
        let id = self.id(w);
        if self.clocks[id].loads_before() != self.loads {
            Rc::make_mut(&mut self.clocks[id]).set_loads_before(self.loads);
        }
        Some(Rc::clone(&self.clocks[id]))
    }

    #[inline(always)]
    fn memory(&mut self, w: &Warp, access: Access<'_>) -> Verdict {
        match access.range {
            Range::SharedLanes {
                addresses,
                offset,
                mask,
            } => {
                let is_ordered = !matches!(access.mode, Mode::Load(LoadSem::Weak) | Mode::Store(StoreSem::Weak));
                if is_ordered {
                    self.hear_words(w, addresses, offset, mask, access);
                }
                let verdict = self.shared_lanes(w, addresses, offset, mask, access);
                if is_ordered || !self.words.is_empty() {
                    self.tell_words(w, addresses, offset, mask, access);
                }
                verdict
            }
            Range::GlobalLanes {
                addresses,
                offset,
                mask,
            } => {
                let verdict = self.global_lanes(w, addresses, offset, mask, access);
                if self.across.is_some() {
                    self.at_words(w, addresses, offset, mask, access);
                }
                verdict
            }
            Range::Shared { .. } | Range::Lines { .. } | Range::Global { .. } => Ok(()),
        }
    }

    #[inline(always)]
    fn lanes_may_meet(&self) -> bool {
        self.meet
    }

    fn async_memory(&mut self, w: &Warp, view: &View, access: Access<'_>) -> Verdict {
        let Some(view) = view else { return Ok(()) };
        match access.range {
            Range::Global { address } => {
                let lines = byte_history::lines_of(address, access.bytes.into());
                self.global_lines(w, view, lines, access)
            }
            _ if access.mode != Mode::Read => Ok(()),
            Range::Shared { slot, offset } => {
                let lines = lines_of(offset, access.bytes);
                self.async_read(w, view, slot, lines, Reader::Copy, access.loc)
            }
            Range::Lines { slot, lines } => {
                let lines = lines.iter().map(|(line, mask)| (*line as usize, *mask));
                let group = access.number as u32;
                self.async_read(w, view, slot, lines, Reader::Product { group }, access.loc)
            }
            Range::SharedLanes { .. } | Range::GlobalLanes { .. } => Ok(()),
        }
    }

    fn map_named(&mut self, w: &Warp, address: u64) {
        self.name_map(w, address >> 7);
    }

    fn map_used(&mut self, w: &Warp, address: u64) -> Verdict {
        self.use_map(w, address >> 7)
    }

    fn map_is_own(&self, w: &Warp, address: u64) -> bool {
        self.has_written_map(w, address >> 7)
    }

    fn load_issued(&mut self, w: &Warp, view: &View, landing: Landing) -> Verdict {
        let Some(view) = view else { return Ok(()) };
        let verdict = self.check_load(w, view, landing);
        let history = &mut self.histories[landing.slot.0 as usize];
        for (line, mask) in lines_of(landing.offset, landing.bytes) {
            if landing.reduces {
                history.reduce(line, mask, None);
                continue;
            }
            // Whoever touches the line later comes after this load, and so after those.
            if mask == u32::MAX {
                history.forget(line);
            }
            history.land(line, mask, IN_FLIGHT);
        }
        let loads_before = self.loads;
        history.flying.push(Issued { landing, loads_before });
        self.loads = self.loads.wrapping_add(1);
        verdict
    }

    fn load_landed(&mut self, landing: Landing) {
        let component = self.loads_of(landing.slot);
        let history = &mut self.histories[landing.slot.0 as usize];
        history.landings += 1;
        let number = history.landings;
        for (line, mask) in lines_of(landing.offset, landing.bytes) {
            match landing.reduces {
                true => history.reduce(line, mask, Some(number)),
                false => history.land(line, mask, number),
            }
        }
        let at = history.flying.iter().position(|it| it.landing == landing);
        let loads_before = at.map_or(0, |at| history.flying.swap_remove(at).loads_before);
        if history.recent.len() == REMEMBERED {
            history.recent.pop_front();
        }
        history.recent.push_back((number, Issued { landing, loads_before }));
        if let Some(across) = &mut self.across {
            across.load_landed(component, number);
        }
        if let Some(barrier) = history.barriers.get_mut(&landing.barrier) {
            barrier.phases.arriving.see(component, number);
        }
    }

    fn load_done(&mut self, w: &Warp) {
        if self.across.is_some() {
            let who = self.who(w);
            if let Some(across) = &mut self.across {
                across.load_done(who);
            }
        }
    }

    fn store_waited(&mut self, w: &Warp, number: u64) {
        let id = self.id(w);
        if Rc::strong_count(&self.clocks[id]) > 1 {
            // What the warp has issued has not seen that it is over.
            self.tick(w);
        }
        let epoch = self.clocks[id].seen()[self.component(w)];
        self.globals[w.cta.0 as usize].settle(w.index as usize, number, epoch);
        if self.across.is_some() {
            let who = self.who(w);
            if let Some(across) = &mut self.across {
                across.store_waited(who, number, epoch);
            }
        }
    }

    fn sync(&mut self, w: &Warp, event: Sync) -> Verdict {
        let width = self.width();
        let id = self.id(w);
        let mut verdict = Ok(());
        match event {
            Sync::BarrierInit { slot, offset } => {
                let by = self.component(w);
                let at = self.clocks[id].seen()[by];
                let barrier = Barrier {
                    phases: Handover::new(width),
                    by,
                    at,
                    published: false,
                    waits: vec![],
                };
                self.histories[slot.0 as usize].barriers.insert(offset, barrier);
            }
            Sync::BarrierInvalidate { slot, offset } => {
                self.histories[slot.0 as usize].barriers.remove(&offset);
            }
            Sync::Arrive {
                slot, offset, release, ..
            } => {
                verdict = self.check_barrier(w, slot, offset, slot != w.cta);
                self.visit(w, slot);
                if release == Some(Scope::Cluster) {
                    self.far_since[id] = None;
                }
                let far = match slot == w.cta {
                    true => vec![],
                    false => self.far_stores(w.cta),
                };
                if let Some(barrier) = self.histories[slot.0 as usize].barriers.get_mut(&offset) {
                    let arriving = &mut barrier.phases.arriving;
                    let mut tell = |clock: &Clock, wide: bool| match wide || far.is_empty() {
                        true => arriving.join(clock),
                        false => {
                            let mut clock = clock.clone();
                            far.iter()
                                .for_each(|(component, epoch)| clock.forget(*component, *epoch));
                            arriving.join(&clock);
                        }
                    };
                    match release {
                        Some(scope) => tell(&self.clocks[id], is_wide(scope)),
                        None => {
                            let releases = self.relaxed[id].releases.iter().zip([false, true]);
                            releases.for_each(|(clock, wide)| clock.iter().for_each(|clock| tell(clock, wide)));
                        }
                    }
                    self.tick(w);
                }
            }
            Sync::ExpectTx { slot, offset, .. } => verdict = self.check_barrier(w, slot, offset, slot != w.cta),
            Sync::Waited {
                slot,
                offset,
                waits,
                scope,
                ..
            } => {
                verdict = self.check_barrier(w, slot, offset, slot != w.cta);
                let who = self.component(w);
                let products = self.products_of(w.cta).start + w.index as usize / 4;
                if let Some(barrier) = self.histories[slot.0 as usize].barriers.get_mut(&offset) {
                    let clock = Rc::make_mut(&mut self.clocks[id]);
                    match scope {
                        Some(_) => clock.join(&barrier.phases.passed),
                        None => self.relaxed[id].acquires[0]
                            .get_or_insert_with(|| Clock::new(width))
                            .join(&barrier.phases.passed),
                    }
                    if waits {
                        barrier.waits.retain(|it| it.who != who);
                        barrier.waits.push(Waited {
                            who,
                            epoch: clock.seen()[who],
                            products,
                            groups: w.tensor.groups() as u32,
                        });
                    }
                }
            }
            Sync::NamedArrive { id: number, opens, .. } => {
                let named = self.histories[w.cta.0 as usize].named[number as usize]
                    .get_or_insert_with(|| Box::new(Handover::new(width)));
                named.arriving.join(&self.clocks[id]);
                if opens {
                    named.open();
                }
                self.tick(w);
            }
            Sync::NamedWaited { id: number } => {
                if let Some(named) = &self.histories[w.cta.0 as usize].named[number as usize] {
                    Rc::make_mut(&mut self.clocks[id]).join(&named.passed);
                }
            }
            Sync::ClusterArrive { releases } => {
                let cluster = self.cluster_of(w.cta);
                if std::mem::take(&mut self.fenced[id]) || releases {
                    self.far_since[id] = None;
                    self.clusters[cluster].arriving.join(&self.clocks[id]);
                    self.tick(w);
                }
            }
            Sync::ClusterWaited => {
                let cluster = self.cluster_of(w.cta);
                Rc::make_mut(&mut self.clocks[id]).join(&self.clusters[cluster].passed);
            }
            Sync::Fence { sem, scope } => {
                self.fenced[id] = true;
                let wide = is_wide(scope);
                if sem != FenceSem::Release {
                    for (acquires, needs_wide) in self.relaxed[id].acquires.iter_mut().zip([false, true]) {
                        if let Some(acquired) = acquires.take_if(|_| wide || !needs_wide) {
                            Rc::make_mut(&mut self.clocks[id]).join(&acquired);
                        }
                    }
                }
                if self.across.is_some() {
                    let who = self.who(w);
                    let clock = Rc::make_mut(&mut self.clocks[id]);
                    if let Some(across) = &mut self.across {
                        across.fence(who, clock, sem, scope);
                    }
                }
                if sem != FenceSem::Acquire {
                    self.relaxed[id].releases[usize::from(wide)] = Some(Clock::clone(&self.clocks[id]));
                    if wide {
                        self.far_since[id] = None;
                    }
                }
                self.tick(w);
            }
            Sync::WordAdded { address, old, amount } => {
                if let Some(across) = &mut self.across {
                    across.added(address, old, amount);
                }
            }
            Sync::TagWaited { address, scope, loc } => {
                let (who, lines) = (self.who(w), byte_history::lines_of(address, 8));
                let sem = match scope {
                    Scope::Cta => LoadSem::AcquireCta,
                    Scope::Cluster => LoadSem::AcquireCluster,
                    Scope::Gpu => LoadSem::AcquireGpu,
                    Scope::Sys => LoadSem::AcquireSys,
                };
                let (mode, view) = (Mode::Load(sem), Rc::clone(&self.clocks[id]));
                verdict = self.global_lines(w, &view, lines, Access::of_word(address, mode, loc));
                drop(view);
                let clock = Rc::make_mut(&mut self.clocks[id]);
                if let Some(across) = &mut self.across {
                    across.at_word(who, clock, (address, 8), mode, loc);
                }
            }
            Sync::WordWaited { address, wait, loc } => {
                let who = self.who(w);
                if wait.takes {
                    let mode = Mode::Atomic(AtomSem::Relaxed, wait.scope);
                    let (view, lines) = (Rc::clone(&self.clocks[id]), byte_history::lines_of(address, 4));
                    verdict = self.global_lines(w, &view, lines, Access::of_word(address, mode, loc));
                }
                let clock = Rc::make_mut(&mut self.clocks[id]);
                if let Some(across) = &mut self.across {
                    across.waited(who, clock, address, wait, loc);
                }
            }
            Sync::FenceMbarrierInit => {
                self.fenced[id] = true;
                let by = self.component(w);
                for barrier in self.histories[w.cta.0 as usize].barriers.values_mut() {
                    barrier.published |= barrier.by == by;
                }
            }
            Sync::FenceProxy(proxy) => match proxy {
                ProxyFence::Async
                | ProxyFence::AsyncSharedCta
                | ProxyFence::AsyncSharedCluster
                | ProxyFence::AsyncGenericAcquireCluster
                | ProxyFence::AsyncGenericReleaseCluster => {
                    self.clock(w).fence();
                    self.tick(w);
                }
                ProxyFence::AsyncGlobal | ProxyFence::Alias => {}
            },
            Sync::MapRelease { scope } => {
                self.clock(w).release_maps(scope);
                self.tick(w);
            }
            Sync::MapAcquire { address, scope } => self.acquire_map(w, address >> 7, scope),
            Sync::WgmmaWaited { settled } => {
                let own = self.products_of(w.cta).start + w.index as usize / 4;
                self.clock(w).see(own, settled as u32);
            }
            Sync::CompleteTx { .. }
            | Sync::WarpBarrier { .. }
            | Sync::WgmmaFence
            | Sync::WgmmaCommit
            | Sync::BulkCommit
            | Sync::BulkWaited { .. } => {}
        }
        verdict
    }

    fn phase_completes(&mut self, slot: CtaSlot, offset: u32) -> Verdict {
        let Some(barrier) = self.histories[slot.0 as usize].barriers.get_mut(&offset) else {
            return Ok(());
        };
        let left = barrier.left_behind();
        barrier.waits.clear();
        barrier.phases.open();
        let Some(who) = left else { return Ok(()) };
        let (who, barrier) = (self.name(who, slot), self.names.mbarrier(offset));
        Err(Box::new(
            execution(format!(
                "a phase of the {barrier} completes, and nothing orders that after the wait of {who} for the phase before: \
                 if that warp is late, it waits for ever"
            ))
            .expected(format!("{who} to have told of its wait whoever arrives in the next phase"))
            .remedy("arrive at another barrier after the wait, and wait for that before the next arrival (`barrier_arrive`, `barrier_wait`)"),
        ))
    }

    fn cluster_opens(&mut self, cluster: u32) {
        self.clusters[cluster as usize].open();
    }
}
