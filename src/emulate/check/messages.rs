//! What is said of findings.
use super::across::Across;
use super::maps::{Author, Vain};
use super::race::{Actor, IN_FLIGHT, Kind, Lack, Past, Side};
use super::shadow::Found;
use super::tensor::{Deed, Race, Record};
use super::words::Word;
use super::{Checker, Landing, Who};
use crate::emulate::global;
use crate::emulate::options::Names;
use crate::emulate::overwrite::Mask;
use crate::emulate::shared::CtaSlot;
use crate::error::{Error, Fault, Loc};
use crate::ptx::modifier::Modifier;

const BARRIER: &str =
    "arrive at a barrier after the one, and wait for it before the other (`barrier_arrive`, `barrier_wait`)";

const WAIT_FOR_ISSUED: &str = "wait for the mbarrier that its tcgen05.commit arrives on (`barrier_wait` of the barrier of `tcgen05_mma`, or of `tcgen05_commit_arrive`) before the next copy is issued";

const WAIT_FOR_PRODUCTS: &str = "wait for it (`wgmma_wait(0)`) before the next copy is issued, or issue that copy a step later (`delay_release=1` of the BlockSpec in `emit_pipeline`)";

/// What one may take instead of a word that warps tell each other by, which has at most so many bytes.
const FLAG: &str = ", if it is a flag, access it in order on both sides (`smalt.store(…, order=\"release\")`, `smalt.load(…, order=\"acquire\")`)";
const FLAG_BYTES: u32 = 8;

const GIVEN_BACK: &str = "at the end its memory is XLA's again";
const BEFORE_THE_END: &str =
    "signal a semaphore of the owner when you are done with its memory, and let the owner wait for it before it ends";

/// What happened, what was expected instead, where, and what to do.
fn finding(what: impl Into<String>, expected: impl Into<String>, got: impl Into<String>, remedy: &str) -> Box<Error> {
    let error = Error::new(Fault::Execution, what).expected(expected);
    Box::new(error.got(got).remedy(remedy))
}

/// The same, where that is nowhere.
fn plain(what: impl Into<String>, expected: impl Into<String>, remedy: &str) -> Box<Error> {
    Box::new(Error::new(Fault::Execution, what).expected(expected).remedy(remedy))
}

fn verb(kind: Kind) -> &'static str {
    match kind {
        Kind::Read | Kind::Poll => "a load of",
        Kind::Write | Kind::Flag(_) => "a store to",
        Kind::Atomic(_) => "an atomic on",
        Kind::Copy | Kind::Product | Kind::Issued => "the async proxy reads",
        Kind::Load => "a bulk load overwrites",
        Kind::Reduction => "a reduction (red.async) of",
        Kind::BulkRead => "a bulk load of",
        Kind::BulkWrite => "a bulk store to",
        Kind::BulkReduction => "a bulk reduction into",
        Kind::SmallRead => "a copy by threads (cp.async) of",
        Kind::SmallWrite => "a copy by threads (cp.async) overwrites",
    }
}

impl Checker {
    /// `warpgroup 1`, and whose if it is another CTA's.
    fn warpgroup(&self, component: u32, slot: CtaSlot, seen_from: CtaSlot) -> String {
        let number = component - self.columns(slot).products;
        match slot == seen_from {
            true => format!("warpgroup {number}"),
            false => format!(
                "warpgroup {number} of the cluster's CTA {}",
                slot.0 % self.shape.cluster_size
            ),
        }
    }

    /// `warp 3`, and whose if it is another CTA's.
    fn name(&self, component: u32, seen_from: CtaSlot) -> String {
        let per = self.shape.warps_per_cta;
        let (rank, index) = (component / per, component % per);
        if rank == seen_from.0 % self.shape.cluster_size {
            format!("warp {index}")
        } else {
            format!("warp {index} of the cluster's CTA {rank}")
        }
    }

    /// ` of the cluster's CTA 1`, of another than one's own.
    fn owner(&self, slot: CtaSlot, seen_from: CtaSlot) -> String {
        match slot == seen_from {
            true => String::new(),
            false => format!(" of the cluster's CTA {}", slot.0 % self.shape.cluster_size),
        }
    }

    /// Granules of 4 bytes of a line of shared memory, in words.
    fn granules(&self, line: u64, mask: Mask) -> String {
        let start = 128 * line as u32;
        let (from, to) = granules(mask);
        self.names.bytes(start + from, start + to)
    }

    fn landing(&self, landing: Landing) -> String {
        self.names.bytes(landing.offset, landing.offset + landing.bytes)
    }

    /// An access to the shared memory of a CTA, and an earlier one.
    #[cold]
    pub(super) fn shared_race(&self, who: Who, mine: &Side<'_>, slot: CtaSlot, found: &Found) -> Box<Error> {
        match found.theirs.kind {
            Kind::SmallWrite => self.small_in_flight(who, mine, slot, found),
            Kind::Load | Kind::Reduction => self.unseen(who, mine, slot, found),
            _ if mine.kind.needs_fences() => self.unfenced(who, mine, slot, found),
            Kind::Product | Kind::Issued => {
                let place = self.granules(found.line, found.hit);
                self.multiplied(who, mine.kind, slot, found, place)
            }
            _ => {
                let (from, to) = match slot == who.cta {
                    true => granules(found.hit),
                    false => (found.hit.trailing_zeros(), 128 - found.hit.leading_zeros()),
                };
                let start = 128 * found.line as u32;
                let place = self.names.bytes(start + from, start + to) + &self.owner(slot, who.cta);
                self.race(mine.kind, "shared", who, &found.theirs, (place, to - from))
            }
        }
    }

    /// A bulk load to shared memory, or a reduction of it, and an earlier access.
    #[cold]
    pub(super) fn load_race(&self, who: Who, mine: &Side<'_>, landing: Landing, found: &Found) -> Box<Error> {
        let (slot, theirs) = (landing.slot, &found.theirs);
        match (theirs.kind, mine.kind) {
            (Kind::SmallWrite, _) => self.small_in_flight(who, mine, slot, found),
            (Kind::Load | Kind::Reduction, _) => self.unseen(who, mine, slot, found),
            (Kind::Product | Kind::Issued, Kind::Reduction) => {
                self.multiplied(who, mine.kind, slot, found, self.landing(landing))
            }
            (_, Kind::Reduction) => {
                let place = self.landing(landing) + &self.owner(slot, who.cta);
                self.race(mine.kind, "shared", who, theirs, (place, u32::MAX))
            }
            (kind, _) if kind.writes() => self.unfenced(who, mine, slot, found),
            _ if found.lack == Lack::Fence => self.unfenced_read(who, found),
            _ => self.still_read(who, landing, found),
        }
    }

    /// Somebody touches what a load writes and has not seen it land.
    fn unseen(&self, by: Who, mine: &Side<'_>, slot: CtaSlot, found: &Found) -> Box<Error> {
        let loads = &self.ctas[slot.0 as usize].loads;
        if loads.small_barrier(found.theirs.epoch).is_some() {
            return self.small_in_flight(by, mine, slot, found);
        }
        let (flies, load) = loads.of(found);
        if let Some(load) = load
            && matches!(mine.kind, Kind::Copy | Kind::Product | Kind::Issued)
            && load.before >= mine.seen.loads_before()
            && !load.landing.reduces
        {
            return self.refilled(mine, load.landing);
        }
        let (verb, load) = (verb(mine.kind), load.map(|it| it.landing));
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
        let mut error = Error::new(Fault::Execution, what).remedy(remedy);
        if let Some(load) = load {
            let (barrier, name) = (
                self.names.mbarrier(load.barrier),
                if reduces { "reduction" } else { "load" },
            );
            let (place, whose) = (self.granules(found.line, found.hit), self.owner(slot, by.cta));
            let (from, to, at) = (load.offset, load.offset + load.bytes, load.loc);
            error = error
                .expected(format!(
                    "a wait on the {barrier} before, by this warp or by one that it then synchronised with"
                ))
                .got(format!("{place}{whose}, of {from}..{to} of the {name} at {at}"));
        }
        Box::new(error)
    }

    /// Somebody touches what a copy by threads writes, or writes what it reads, and has not seen that it is over.
    fn small_in_flight(&self, by: Who, mine: &Side<'_>, slot: CtaSlot, found: &Found) -> Box<Error> {
        let (theirs, verb) = (&found.theirs, verb(mine.kind));
        let (what, before, place) = match theirs.kind {
            Kind::SmallRead => (
                format!("{verb} global memory that a copy by threads (cp.async) reads"),
                "its source is written",
                global_place(&self.names, found.line, found.hit).0,
            ),
            _ => (
                format!("{verb} shared memory that a copy by threads (cp.async) writes"),
                "its destination is touched",
                self.granules(found.line, found.hit) + &self.owner(slot, by.cta),
            ),
        };
        let at = theirs.loc;
        if theirs.epoch != IN_FLIGHT {
            let barrier = self.ctas[slot.0 as usize].loads.small_barrier(theirs.epoch);
            let barrier = barrier.map_or("mbarrier".into(), |barrier| self.names.mbarrier(barrier));
            return finding(
                format!("{what}, without having waited for its barrier"),
                format!(
                    "a wait on the {barrier}, on which the copy (at {at}) arrives, by this warp or by one that it then synchronised with"
                ),
                place,
                &format!("wait for the copy's barrier (`barrier_wait`) before {before}"),
            );
        }
        let (who, other) = match theirs.by == mine.by {
            true => ("this warp".to_owned(), ""),
            false => (
                self.name(theirs.by.component, by.cta),
                "; other warps learn of that by a barrier behind the wait",
            ),
        };
        finding(
            format!("{what}, and its warp has not waited for it"),
            format!("a wait of {who} for the copy (at {at}) before this"),
            place,
            &format!(
                "wait for the copy before {before} (`plgpu.wait_gmem_to_smem(n)`, where n is at most the number of copies begun behind it: 0 waits for all){other}"
            ),
        )
    }

    /// An access and an earlier one of another warp.
    fn race(&self, kind: Kind, memory: &str, by: Who, theirs: &Past, (place, bytes): (String, u32)) -> Box<Error> {
        let (did, it) = match theirs.kind.writes() {
            true => ("wrote", "the store"),
            false => ("read (itself, or by what it issued)", "the load"),
        };
        let copied = self.small.contains(&theirs.loc);
        let it = if copied { "a wait for the copy" } else { it };
        let (verb, who) = (verb(kind), self.name(theirs.by.component, by.cta));
        let order = match bytes <= FLAG_BYTES {
            _ if copied => BARRIER.replacen("the one", "the wait", 1),
            true => format!("{BARRIER}; or{FLAG}"),
            false => BARRIER.to_owned(),
        };
        let what = format!("{verb} {memory} memory that another warp {did}, and nothing orders the two");
        let expected = format!("a barrier between {it} by {who} (at {}) and this", theirs.loc);
        finding(what, expected, place, &order)
    }

    /// A write to what a wgmma reads that is not known to be complete.
    fn multiplied(&self, by: Who, kind: Kind, slot: CtaSlot, found: &Found, place: String) -> Box<Error> {
        if found.theirs.kind == Kind::Issued {
            return self.issued_reads(by, verb(kind), &found.theirs, place);
        }
        let (verb, who) = (verb(kind), self.warpgroup(found.theirs.by.component, slot, by.cta));
        finding(
            format!("{verb} shared memory that a wgmma of {who} reads, which is not known to be complete"),
            format!("a wait of {who} for the wgmma (at {}) before this", found.theirs.loc),
            place,
            "wait for it (`wgmma_wait(0)`) first; other warpgroups learn of that by a barrier behind the wait (`barrier_arrive`, `barrier_wait`)",
        )
    }

    /// An access to global memory, and an earlier one.
    #[cold]
    pub(super) fn global_race(&self, by: Who, mine: &Side<'_>, found: &Found) -> Box<Error> {
        let (kind, theirs) = (mine.kind, &found.theirs);
        let (place, bytes) = global_place(&self.names, found.line, found.hit);
        if theirs.kind == Kind::SmallRead {
            return self.small_in_flight(by, mine, by.cta, found);
        }
        if kind.is_async() && theirs.by == mine.by || theirs.epoch == IN_FLIGHT {
            return self.in_flight(by, kind, theirs, place);
        }
        let mut error = self.race(kind, "global", by, theirs, (place, bytes));
        if matches!(kind, Kind::BulkWrite | Kind::BulkReduction) {
            error.remedy = Some(format!(
                "{BARRIER}; what comes behind the copy comes behind a wait for all of it (`wait_smem_to_gmem(0)`), too"
            ));
        }
        error
    }

    /// An access to what a bulk store in flight writes; or a bulk copy and what its warp did before it waited for it.
    fn in_flight(&self, by: Who, kind: Kind, theirs: &Past, place: String) -> Box<Error> {
        let (verb, who, at) = (verb(kind), self.name(theirs.by.component, by.cta), theirs.loc);
        let (what, expected) = match theirs.epoch {
            IN_FLIGHT => (
                format!("{verb} global memory that a bulk store of {who} writes, which has not waited for it"),
                format!("a wait for the whole of that store (at {at}) by {who} before this"),
            ),
            _ => {
                let touched = if theirs.kind.writes() { "wrote" } else { "read" };
                (
                    format!(
                        "{verb} global memory that the warp which issued it {touched} before it waited for the copy"
                    ),
                    format!("a wait for the whole of the copy before {who} touches the memory (at {at})"),
                )
            }
        };
        let remedy = match kind {
            Kind::BulkRead => "wait for the copy's barrier (`barrier_wait`) before its source is written",
            _ => {
                "wait for the whole copy, not only for its reads (`wait_smem_to_gmem(0)`), before its destination is touched; other warps learn of that by a barrier behind the wait"
            }
        };
        finding(what, expected, place, remedy)
    }

    /// A load that was issued after an asynchronous operation overwrites what that reads.
    fn refilled(&self, mine: &Side<'_>, load: Landing) -> Box<Error> {
        let (who, remedy) = match mine.kind {
            Kind::Product => ("a wgmma", WAIT_FOR_PRODUCTS),
            Kind::Issued => ("a tcgen05.mma or .cp", WAIT_FOR_ISSUED),
            _ => (
                "a copy from it",
                "wait for that copy (`wait_smem_to_gmem(0)`) before the next one into its source is issued",
            ),
        };
        let what = format!("a bulk load overwrites shared memory that is still read, by {who} in flight");
        let expected = format!("a wait for {who} (at {}) before the load is issued", mine.loc);
        Box::new(finding(what, expected, self.landing(load), remedy).at(load.loc))
    }

    /// A write of a warp that an asynchronous operation may not have seen.
    fn unfenced(&self, by: Who, mine: &Side<'_>, slot: CtaSlot, found: &Found) -> Box<Error> {
        let (theirs, verb) = (&found.theirs, verb(mine.kind));
        let who = self.name(theirs.by.component, slot);
        // `commit_smem` is a rendezvous of one warpgroup, the one that calls it.
        let index = theirs.by.component - self.columns(slot).first;
        let own = (slot, index / 4) == (by.cta, by.index / 4);
        let got = format!(
            "{}, written by {who} at {}",
            self.granules(found.line, found.hit),
            theirs.loc
        );
        match found.lack {
            Lack::Fence => finding(
                format!("{verb} shared memory that the generic proxy wrote"),
                "fence.proxy.async between the writes and the asynchronous operation",
                got,
                match own {
                    true => "commit the writes (`commit_smem`) before the operation is issued",
                    false => {
                        "commit the writes (`commit_smem`) in the warpgroup that makes them, before it arrives at the barrier that is waited for"
                    }
                },
            ),
            Lack::Order => finding(
                format!("{verb} shared memory that the generic proxy writes, and nothing orders the two"),
                "the write before the operation's issue, with a barrier and fence.proxy.async in between; or after a wait that covers the operation",
                got,
                match own {
                    true => {
                        "commit the writes (`commit_smem`, which all warps of a warpgroup wait in) before the operation is issued; or, if they come behind it, wait for it first (`wait_smem_to_gmem(0)`, `wgmma_wait(0)`)"
                    }
                    false => {
                        "commit the writes (`commit_smem`) and arrive at a barrier (`barrier_arrive`) in the warpgroup that makes them, and wait for that (`barrier_wait`) before the operation is issued; or, if they come behind it, wait for it first (`wait_smem_to_gmem(0)`, `wgmma_wait(0)`), and tell the warpgroup that writes by a barrier"
                    }
                },
            ),
        }
    }

    /// A read of a warp that a bulk load, which comes behind it, may still overtake.
    fn unfenced_read(&self, by: Who, found: &Found) -> Box<Error> {
        let who = self.name(found.theirs.by.component, by.cta);
        finding(
            "a bulk load overwrites shared memory that the generic proxy may still be reading",
            "fence.proxy.async between the read and the arrival, or the barrier, that lets the load begin",
            format!(
                "{}, read by {who} at {}",
                self.granules(found.line, found.hit),
                found.theirs.loc
            ),
            "`plgpu.barrier_arrive` has the fence; elsewhere `smalt.fence_proxy_async(\"shared::cta\")`, or `plgpu.commit_smem()`, behind the read",
        )
    }

    /// A bulk load is issued to what somebody reads, as far as its issuer knows.
    fn still_read(&self, by: Who, landing: Landing, found: &Found) -> Box<Error> {
        let (theirs, slot) = (&found.theirs, landing.slot);
        if theirs.kind == Kind::Issued {
            return self.issued_reads(by, verb(Kind::Load), theirs, self.landing(landing));
        }
        let by_product = theirs.kind == Kind::Product;
        let who = match by_product {
            true => self.warpgroup(theirs.by.component, slot, by.cta),
            false => self.name(theirs.by.component, by.cta),
        };
        let (at, barrier) = (theirs.loc, self.names.mbarrier(landing.barrier));
        let wait = format!("wait for the load first, for the {barrier} (`barrier_wait`), before it is read at {at}");
        let release = format!(
            "release the slot (`barrier_arrive`) after its last use at {at} (behind the `wgmma_wait` or `wait_smem_to_gmem` that covers that), and wait for that (`barrier_wait`) before it is refilled"
        );
        // What nothing has filled yet was read for what this load brings.
        let untouched = self.ctas[slot.0 as usize].shared.is_untouched(found.line as usize);
        let (expected, remedy) = match (untouched, by_product) {
            (true, _) => (
                format!("{who} to wait for what fills the memory before it reads it (at {at}): nothing has yet"),
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
        let got = format!("{}, read by {who} at {at}", self.landing(landing));
        match untouched {
            true => {
                let load = landing.loc;
                let what = format!(
                    "a `barrier_wait` is missing: what a bulk load (at {load}) fills is read, and nothing has waited for the load"
                );
                Box::new(finding(what, expected, got, &remedy).at(at))
            }
            false => {
                let what = "a bulk load overwrites shared memory that is still read, as far as its issuer knows";
                finding(what, expected, got, &remedy)
            }
        }
    }

    /// A use of an mbarrier that nothing orders after its initialisation.
    #[cold]
    pub(super) fn uninitialised(&self, who: Who, slot: CtaSlot, offset: u32, by: usize) -> Box<Error> {
        let between = match slot == who.cta {
            true => "a barrier of the CTA",
            false => "a barrier of the cluster",
        };
        let (barrier, by) = (self.names.mbarrier(offset), self.name(by as u32, who.cta));
        plain(
            format!("a use of the {barrier} that nothing orders after its mbarrier.init"),
            format!("{between} between the initialisation by {by} and the use"),
            "synchronise after the barriers have been initialised",
        )
    }

    /// A use of one that is not fenced for it.
    #[cold]
    pub(super) fn unpublished(&self, offset: u32) -> Box<Error> {
        let barrier = self.names.mbarrier(offset);
        plain(
            format!("a use of the {barrier} by the async proxy or a peer, which may not see that it was initialised"),
            "fence.mbarrier_init after mbarrier.init, by the thread that executed it",
            "fence.mbarrier_init.release.cluster, then a barrier",
        )
    }

    /// A phase completes while a warp may still wait for the one before.
    #[cold]
    pub(super) fn left_behind(&self, component: usize, slot: CtaSlot, offset: u32) -> Box<Error> {
        let (who, barrier) = (self.name(component as u32, slot), self.names.mbarrier(offset));
        plain(
            format!(
                "a phase of the {barrier} completes, and nothing orders that after the wait of {who} for the phase before: \
                 if that warp is late, it waits for ever"
            ),
            format!("{who} to have told of its wait whoever arrives in the next phase"),
            "arrive at another barrier after the wait, and wait for that before the next arrival (`barrier_arrive`, `barrier_wait`)",
        )
    }

    /// A CTA ends, and a peer may yet access its shared memory.
    #[cold]
    pub(super) fn ended_early(&self, component: usize, slot: CtaSlot) -> Box<Error> {
        let who = self.name(component as u32, slot);
        plain(
            format!("a CTA ends, and nothing orders that after the last access of {who} to its shared memory"),
            "a barrier of the cluster after the accesses to peers, before the kernel ends",
            "arrive at and wait for a cluster barrier at the end of the kernel",
        )
    }

    /// A copy through a tensor map that its warp has not acquired: the last acquire of no use, and the map's last author.
    #[cold]
    pub(super) fn not_acquired(&self, user: Who, vain: Option<(Author, Vain)>, last: Option<Author>) -> Box<Error> {
        let who = |author: &Author| {
            let name = match self.cluster_warps(self.id(user)).contains(&author.warp) {
                true => self.name((author.warp % self.warps) as u32, user.cta),
                false => "a warp of another cluster".into(),
            };
            format!("{name} (at {})", author.loc)
        };
        let (release, acquire) = (
            "fence.proxy.tensormap::generic.release",
            "fence.proxy.tensormap::generic.acquire",
        );
        let (expected, got) = match (vain, last) {
            (Some((author, lack)), _) => {
                let who = who(&author);
                let expected = match lack {
                    Vain::Release => format!("{release} after the change by {who}, and before the acquire"),
                    Vain::WiderRelease(scope) => format!("{release}{} after the change by {who}", scope.text()),
                    Vain::Order => format!("a barrier between the release of the change by {who} and the acquire"),
                    Vain::WiderAcquire(scope) => format!("{acquire}{} of the change by {who}", scope.text()),
                };
                (expected, "an acquire that does not cover it")
            }
            (None, Some(author)) => (
                format!("{acquire} of the map after the change by {}", who(&author)),
                "no acquire since then by this warp, nor by one of its CTA that it has synchronised with",
            ),
            (None, None) => (
                format!("{acquire} of the map in this launch"),
                "none by this warp, nor by one of its CTA that it has synchronised with",
            ),
        };
        finding(
            "a bulk tensor copy through a tensor map in global memory, which its warp has not acquired as it is now",
            expected,
            got,
            "release the map after it is changed, synchronise, acquire it, and only then copy through it",
        )
    }
}

/// `4 bytes from byte 8 of buffer 1 on`, and how many they are.
fn global_place(names: &Names, line: u64, mask: Mask) -> (String, u32) {
    let bytes = 128 - mask.leading_zeros() - mask.trailing_zeros();
    let (buffer, offset) = global::split(128 * line + u64::from(mask.trailing_zeros()));
    (
        format!("{bytes} bytes from byte {offset} of {} on", names.buffer(buffer)),
        bytes,
    )
}

/// The granules of 4 bytes that hold bytes of a line: from where to where.
fn granules(mask: Mask) -> (u32, u32) {
    (
        mask.trailing_zeros() & !3,
        (128 - mask.leading_zeros()).next_multiple_of(4),
    )
}

impl Across {
    /// `warp 1 of CTA (2, 0, 0)`, `a bulk load into CTA (2, 0, 0)`.
    fn name(&self, actor: Actor) -> String {
        let per = self.shape.warps_per_cta;
        let warps = self.shape.cluster_size * per;
        let (rank, what) = match actor.component.checked_sub(warps) {
            None => (actor.component / per, format!("warp {} of", actor.component % per)),
            Some(rank) => (rank, "a bulk load into".into()),
        };
        let (cluster, [nx, ny, _]) = (&self.clusters[actor.cluster as usize], self.shape.cluster);
        let place = [rank % nx, rank / nx % ny, rank / nx / ny];
        let [x, y, z] = std::array::from_fn(|i| cluster.id[i] * self.shape.cluster[i] + place[i]);
        let device = match self.shape.devices {
            1 => String::new(),
            _ => format!(" of device {}", cluster.device),
        };
        format!("{what} CTA ({x}, {y}, {z}){device}")
    }

    /// An access, and an earlier one of another cluster.
    #[cold]
    pub(super) fn race(&self, kind: Kind, line: u64, hit: Mask, other: &Past) -> Box<Error> {
        let verb = verb(kind);
        let (who, loc) = (self.name(other.by), other.loc);
        let order = "wait for the signal, and for a count that tells of it, before the other (`pl.semaphore_signal`, `pl.semaphore_wait`)";
        let (did, expected, remedy) = match other.kind {
            Kind::BulkRead => (
                format!("{who} reads"),
                format!(
                    "a wait for the barrier of that load (at {loc}), then a signal, and a wait for the signal before this"
                ),
                format!("wait for the copy (`plgpu.barrier_wait`) before its source is signalled to be free; {order}"),
            ),
            Kind::Read | Kind::Poll | Kind::Copy | Kind::Product | Kind::Issued | Kind::SmallRead => (
                format!("{who} read"),
                format!("a signal after that load (at {loc}), and a wait for it before this"),
                format!("signal after the load; {order}"),
            ),
            Kind::BulkWrite | Kind::BulkReduction => (
                match other.epoch {
                    IN_FLIGHT => format!("a bulk store of {who} writes, which has not waited for it"),
                    _ => format!("a bulk store of {who} wrote"),
                },
                format!(
                    "a wait for the whole of that store (at {loc}), then a signal, and a wait for the signal before this"
                ),
                format!(
                    "wait for the copy, not only for its reads (`plgpu.wait_smem_to_gmem(0)`), and then signal; {order}"
                ),
            ),
            Kind::Write | Kind::Flag(_) | Kind::Atomic(_) | Kind::Load | Kind::Reduction | Kind::SmallWrite => (
                format!("{who} wrote"),
                format!("a signal after that store (at {loc}), and a wait for it before this"),
                format!("signal after the store; {order}"),
            ),
        };
        let what = format!("{verb} global memory that {did}, and nothing orders the two");
        finding(what, expected, self.place(line, hit), &remedy)
    }

    fn place(&self, line: u64, mask: Mask) -> String {
        global_place(&self.names, line, mask).0
    }

    /// A device's kernel ends, and has not heard of what another did to a line of its memory.
    pub(super) fn ends_unseen(&self, device: u32, line: u64, other: &Past) -> Box<Error> {
        let what = match other.kind {
            Kind::Read | Kind::BulkRead | Kind::Poll | Kind::Copy | Kind::Product | Kind::Issued | Kind::SmallRead => {
                "a load of its memory"
            }
            Kind::Write | Kind::BulkWrite | Kind::Flag(_) | Kind::Load | Kind::SmallWrite => "a store to its memory",
            Kind::Atomic(_) | Kind::BulkReduction | Kind::Reduction => "an atomic on its memory (a signal, perhaps)",
        };
        let (who, at) = (self.name(other.by), other.loc);
        let what = format!("the kernel ends on device {device}, and nothing orders that after {what} by {who}");
        let expected =
            format!("a signal to device {device} after that access (at {at}), and a wait for it there: {GIVEN_BACK}");
        Box::new(finding(what, expected, self.place(line, other.mask), BEFORE_THE_END).at(at))
    }

    /// An access to memory of a device whose kernel has ended.
    #[cold]
    pub(super) fn too_late(&self, kind: Kind, line: u64, mask: Mask, owner: u32) -> Box<Error> {
        let what = format!("{} memory of device {owner}, whose kernel has ended", verb(kind));
        let expected = format!("device {owner} to wait for a signal that comes after this: {GIVEN_BACK}");
        finding(what, expected, self.place(line, mask), BEFORE_THE_END)
    }

    /// Who last signalled a word, in words.
    pub fn last_signal(&self, address: u64) -> String {
        match self.words.get(address).and_then(|word| word.signal) {
            Some((actor, loc)) => format!("last signalled by {} (at {loc})", self.name(actor)),
            None => "nobody has signalled it".into(),
        }
    }

    /// Semaphores that are not zero at the end, although every wait for them took what it waited for.
    pub fn leftovers(&self, word: &dyn Fn(u64) -> u32) -> Vec<Error> {
        let left = |(address, it): (u64, &Word)| {
            let value = word(address);
            let ((signaller, signalled), (waiter, waited)) = (it.signal?, it.wait?);
            if value == 0 || !it.taken || it.looked_at {
                return None;
            }
            let (buffer, offset) = global::split(address);
            let (signaller, waiter) = (self.name(signaller), self.name(waiter));
            let error = finding(
                format!("a semaphore is {value} at the end of the kernel: its waits took less than there were signals"),
                format!(
                    "as many signals as waits; the last signal was by {signaller} (at {signalled}), the last wait by {waiter} (at {waited})"
                ),
                format!("the word at byte {offset} of {}", self.names.buffer(buffer)),
                "leave out the signals that nobody waits for, or wait for them before the kernel ends",
            );
            Some(error.at(signalled))
        };
        self.words.all().into_iter().filter_map(left).collect()
    }
}

/// What an access to tensor memory is, and was.
fn deed(it: Deed) -> (&'static str, &'static str) {
    match it {
        Deed::Load => ("a load (tcgen05.ld) of", "loads"),
        Deed::Store => ("a store (tcgen05.st) to", "stores to"),
        Deed::Allocate => ("an allocation of", "allocates"),
        Deed::Give => ("tcgen05.dealloc of", "gives back"),
        Deed::Copy => ("a copy (tcgen05.cp) to", "copies to"),
        Deed::Product(_) => ("a product (tcgen05.mma) into", "accumulates in"),
        Deed::Operand => ("a product (tcgen05.mma) reads A from", "reads A from, for a product,"),
    }
}

impl Checker {
    /// Whose a product or a copy is, what is missing behind it, and what to do.
    fn unfinished(&self, by: Who, warp: u32, number: u32, loc: Loc) -> (String, String, &'static str) {
        let who = self.name(warp, by.cta);
        let id = self.cluster_of(by.cta) * self.warps + warp as usize;
        let (committed, at) = self.tensor.committed[id];
        match committed < number {
            true => (
                format!(
                    "a tcgen05.commit by the thread of {who} that issued it (at {loc}), and a wait on that mbarrier before this"
                ),
                format!("{who} has committed nothing since then"),
                "pass a barrier to `tcgen05_mma`, or call `tcgen05_commit_arrive`, and wait for it (`barrier_wait`) first",
            ),
            false => (
                format!(
                    "a wait on the mbarrier of a tcgen05.commit by {who} behind it (issued at {loc}; the last commit is at {at}), by this warp or by one that it then synchronised with"
                ),
                format!("a commit by {who}, for which this warp has not waited"),
                "wait for the barrier of the commit (`barrier_wait`) first; others learn of that by a barrier behind the wait",
            ),
        }
    }

    /// A write to shared memory that something issued into tensor memory reads, and which is not known to be complete.
    fn issued_reads(&self, by: Who, verb: &str, theirs: &Past, place: String) -> Box<Error> {
        let warp = self.queue_of(theirs.by.component);
        let (expected, lacks, remedy) = self.unfinished(by, warp, theirs.epoch, theirs.loc);
        let who = self.name(warp, by.cta);
        finding(
            format!("{verb} shared memory that a tcgen05.mma or .cp of {who} reads, which is not known to be complete"),
            expected,
            format!("{place}; {lacks}"),
            remedy,
        )
    }

    /// Two accesses to tensor memory.
    #[cold]
    pub(super) fn tensor_race(&self, by: Who, race: &Race) -> Box<Error> {
        let Race {
            mine,
            theirs,
            lane,
            column,
        } = race;
        let Record { warp, number, loc, .. } = *theirs;
        let (verb, did) = (deed(*mine).0, deed(theirs.deed).1);
        let who = self.name(warp, by.cta);
        let place = format!("lanes {lane}..{}, column {column}", lane + 16);
        let id = self.cluster_of(by.cta) * self.warps + warp as usize;
        let waited = self.clocks[id].seen()[theirs.by as usize] >= number;
        let (expected, lacks, remedy) = match theirs.deed {
            Deed::Copy | Deed::Product(_) | Deed::Operand => self.unfinished(by, warp, number, loc),
            Deed::Load | Deed::Store if !waited => {
                let (wait, remedy) = match theirs.deed {
                    Deed::Load => (
                        "tcgen05.wait::ld",
                        "call `wait_load_tmem()` behind the load, and synchronise with other warps behind that",
                    ),
                    _ => (
                        "tcgen05.wait::st",
                        "call `commit_tmem()` behind the store, and synchronise with other warps behind that",
                    ),
                };
                let expected = format!("{wait} by {who} behind its access (at {loc}), and a barrier to other warps");
                (expected, format!("{who} has not waited for it"), remedy)
            }
            _ => (
                format!("a barrier between the access by {who} (at {loc}; behind its tcgen05.wait) and this"),
                "nothing orders the two".to_owned(),
                BARRIER,
            ),
        };
        finding(
            format!("{verb} tensor memory that {who} {did}, which is not known to be complete"),
            expected,
            format!("{place}; {lacks}"),
            remedy,
        )
    }
}
