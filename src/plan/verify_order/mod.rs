//! Checks that a kernel's memory is touched in its program's order.
//!
//! In a Pallas thread an op is done by all 128 lanes, and each op sees what the ones before it did. The compiler has to place whatever
//! makes that so on a machine whose warps diverge and whose copies and tensor cores run beside them.
//! [`insert_barriers`](super::insert_barriers) decides by an analysis where barriers go; this checks the *result*, by another method and
//! from the definitions alone: whether any two accesses are out of order. It shares nothing with the analysis but what follows from the
//! program's rings ([`refills`](super::refills): which loads make a phase, what they fill): an error in one is not repeated in the other.
//!
//! **Method.** Paths are walked op by op ([`walk`]), through the part of the kernel that order depends on ([`slice`]): one warpgroup of
//! the first or the last block, loops unrolled, arms taken, indices computed where they are numbers ([`scalars`]), rounds that repeat
//! others left out ([`evolution`]). On a path the actors are the warpgroup's four warps and every asynchronous access; what is ordered
//! behind what is kept exactly ([`history`]), and two accesses collide where their bytes do ([`bytes`]): absolute places in shared
//! memory, so that unions and scopes that take over others' memory need no rule of their own. Two accesses by lanes are further compared
//! warp by warp, by their layouts.
//!
//! **What is demanded**, `a` being before `b` on the path, one of them writing a common byte:
//!
//! | `a`, `b` | each warp of `b` is to be |
//! |---|---|
//! | by lanes | behind every other warp's part of `a` that it collides with |
//! | by lanes, then an asynchronous access | the same, and behind a proxy fence if `a` writes: what tensor cores and bulk stores read of shared memory the kernel commits. The lane that issues is one of warp 0, in a warp region of its warp; every warp issues wgmma |
//! | a bulk load, then anything | behind a wait for its mbarrier, if any warp has waited at all: else the protocol is the kernel's, and may be with another warpgroup |
//! | a bulk store, then anything | behind the issuing warp's wait that covers its group; `complete` for what it writes |
//! | a bulk store, then the kernel's end | behind the issuing warp's wait for what it reads |
//! | wgmma, then anything | behind each warp's own wait that covers its group. When a wgmma is issued, only the one before it may still run |
//! | anything in a ring's slot, then a wait for its next refill | behind it: the refill was issued by a thread that is ordered behind it. It is the next one if no other order to this warpgroup is possible: it has released nothing since its last wait for the slot, or acquired nothing since |
//! | anything, then other memory at the same bytes | the same, without fences or waits that the kernel would have to have; other warpgroups too, if they share either memory |
//!
//! Besides bytes: a bulk load (or an arrival by one warp for all) comes behind every warp's earlier waits for mbarriers, or a warp could
//! miss a phase; what one warp has waited for in a warp region or a feeding loop is behind the others before they touch memory; what one
//! warp releases for its warpgroup is behind the others' work; a barrier is reached by all of its threads; a collective scope after the
//! kernel's first begins with a block barrier.
//!
//! Left to the kernel: order between warpgroups, between the warps of one warp region, and what it has to wait for or to
//! commit by itself ([`Fault::User`]). Under `unsafe_no_auto_barriers` only memory that changes owner is looked at (at the kernel's end, too),
//! memory that the compiler has allocated, and writes to the source of a bulk store that was waited for.
//!
//! **Bounds**: [`Report::bounded`]: rounds or combinations of arms were left out. Long loops that do not repeat skip whole turns of their
//! rings; of many combinations of unknown choices some are enumerated and some are drawn, the same ones each time. Of a view whose
//! indices no path has, some of the possible places are taken.
mod bytes;
mod clock;
mod evolution;
mod finding;
mod history;
mod live;
mod scalars;
mod slice;
mod walk;

pub use finding::{Fault, Finding, Missing, Report};
pub use walk::{check, run};
