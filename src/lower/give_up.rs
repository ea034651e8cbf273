//! How a kernel ends whose waits have a limit (`CompilerParams.wait_timeout_ns`), when one of them takes longer: without a trap, which
//! would end the context and all that the process has on the GPU.
//!
//! * **A warp that gives up** leaves what it waited for, and where, in a word of the launch ([`Awaited`]), if that is zero, and sets its
//!   block's flag, a word of shared memory. The host looks at the launch's word when the kernel has ended.
//! * **Polls.** A warp looks at its block's flag behind every wait that has a limit, behind every barrier of its warpgroup or block, and in
//!   every turn of waiting for an mbarrier. If it is set, the warp *leaves*. Blocks that begin, and loops that poll, look at the
//!   launch's word: what they would wait for may be gone. The other waits of other blocks end by their own limits.
//! * **A warp that leaves arrives**, once, at the barrier of its warpgroup and at the block's, for their counts include every warp.
//!   Each phase gets its count: of the warps that synchronise there, each does or has left, and one that leaves arrives
//!   in the first phase that it does not synchronise in, which is the one that the others are in or come to (it has passed the one
//!   before, so that all had arrived there). The flag was set before, so that all that pass that phase see it and leave: none comes to
//!   the phase behind it, where their arrivals lie. No other barriers have counts: texts of inline PTX with barriers of their own are
//!   refused (`inline/check.rs`).
//! * **Exit.** All warps of a block pass a barrier at the end, those that leave and those that have ended, on an mbarrier of their own,
//!   and then all of a cluster. So no block is gone while another arrives on its mbarriers or copies to its memory. Before, each warp
//!   waits for the products and bulk stores that it has issued. Warps that wait for registers (`setmaxnreg.inc`) get those of a warp
//!   that leaves.
//! * **Loads in flight** to the block's shared memory complete on mbarriers for which no thread waits any more. They are not waited for: a block that
//!   has given up stays for [`LINGER`], when nothing is issued any more.
//!
//! A kernel without a limit has nothing of all this.
use super::barrier;
use super::cx::LowerCx;
use super::emit::{S, V};
use crate::error::Result;
use crate::kernel_ir::{Group, Kernel, OpKind};
use crate::ptx::inst::Inst;
use crate::ptx::launch::{Awaited, GaveUp};
use crate::ptx::modifier::{Drain, EndsWith, LeftCopies, LeftRegisters, LogicType};
use crate::ptx::operand::Src;
use crate::target::Features;

/// What a kernel has for waits with a limit.
#[derive(Clone, Copy, Debug)]
pub struct Limit {
    /// How long a wait may last.
    pub ns: i64,
    /// Where the block's flag is in shared memory, and 8 bytes behind it the mbarrier at which it ends.
    pub flag: i64,
    /// The buffer of the launch's word.
    pub buffer: u32,
    /// What warps may have in flight.
    pub drain: Drain,
}

/// How long a block that has given up stays, in nanoseconds. All 227 KiB of a block come over a PCIe link of 55 GB/s that 132 of them share in
/// 0.6 ms; from anywhere else sooner.
const LINGER: i64 = 2_000_000;

/// Bytes of the launch's word, and of the place behind it.
pub const BYTES: u64 = GaveUp::BYTES;

/// In front of everything that waits.
pub fn begin(cx: &mut LowerCx) {
    if let Some(Limit { flag, .. }) = cx.limit {
        cx.b.inst(Inst::GiveUpBegin { flag });
    }
}

/// Behind what comes before the body, which all blocks of a cluster do whatever happens: their mbarriers are there.
pub fn begin_body(cx: &mut LowerCx) {
    if cx.limit.is_some() {
        cx.may_leave = true;
        cx.sync(Group::Block);
        leave_if_any(cx);
    }
}

/// Behind everything else.
pub fn end(cx: &mut LowerCx) {
    if let Some(Limit { flag, .. }) = cx.limit {
        cx.b.inst(Inst::give_up_end(
            i64::from(128 * cx.kernel.num_warpgroups),
            left_registers(cx.kernel),
            match cx.kernel.target.has(Features::BULK_COPIES) {
                true => LeftCopies::Bulk,
                false => LeftCopies::Nothing,
            },
            barrier::ask(cx),
            if cx.kernel.cluster_size() > 1 {
                EndsWith::Cluster
            } else {
                EndsWith::Itself
            },
            flag,
            LINGER,
        ));
    }
}

/// What warps may have in flight.
pub fn drain(kernel: &Kernel) -> Drain {
    let mut found = false;
    kernel.for_each_op(&mut |op| {
        let kind = &kernel.ops[op].kind;
        // A text may issue some, too.
        found |= kind.is_product() || matches!(kind, OpKind::InlinePtx { .. });
    });
    match found && kernel.target.has(Features::WGMMA) {
        true => Drain::Products,
        false => Drain::Nothing,
    }
}

fn left_registers(kernel: &Kernel) -> LeftRegisters {
    if kernel.sets_registers() {
        LeftRegisters::Released
    } else {
        LeftRegisters::Kept
    }
}

/// The block gives up where `ok` is false, a lane's own. Its warp leaves where it [looks](leave) next.
pub fn unless(cx: &mut LowerCx, ok: V, kind: Awaited, detail: S) -> Result<()> {
    let Some(Limit { flag, buffer, .. }) = cx.limit else {
        return Ok(());
    };
    let late = cx.b.not_pred(ok.into());
    cx.if_then(late, |cx| {
        let word = cx.buffer_pointer(buffer);
        let detail = cx.b.and32(detail, Awaited::DETAIL);
        let detail = cx.b.or(LogicType::B32, detail, Src::u32(kind.code()));
        let words = cx.b.pack64(detail, Src::u32(cx.b.loc().0));
        let words = cx.b.r64(words);
        let block = cx.linear_block();
        let warp = cx.b.warp();
        let place = cx.b.pack64(block, warp.into());
        let place = cx.b.r64(place);
        cx.b.inst(Inst::give_up(word, words, place, flag));
        Ok(())
    })
}

/// The executing warps leave if their block has given up.
pub fn leave(cx: &mut LowerCx) {
    if let (Some(Limit { drain, flag, .. }), true) = (cx.limit, cx.may_leave) {
        cx.b.inst(Inst::LeaveIfBlockGaveUp { drain, flag });
    }
}

/// The executing warps leave if any block of the launch has given up.
pub fn leave_if_any(cx: &mut LowerCx) {
    if let Some(Limit {
        drain, flag, buffer, ..
    }) = cx.limit
    {
        let word = cx.buffer_pointer(buffer);
        cx.b.inst(Inst::LeaveIfAnyGaveUp { drain, word, flag });
    }
}
