//! What the checker reports.
use crate::error::Loc;
use crate::kernel_ir::Op;
use std::fmt;

/// Where it has to be mended.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Fault {
    /// The order follows from the program's order, which the compiler has to keep.
    Compiler,
    /// An asynchronous operation that the kernel itself has to announce (`commit_smem`) or to wait for.
    User,
}

/// What is not there.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Missing {
    /// Nothing orders one warp's access before another's.
    Barrier,
    /// Nothing orders it before the other warpgroups' use of the same bytes.
    BlockBarrier,
    /// The order is there, and no proxy fence on its path.
    Fence,
    /// An asynchronous operation may still be running.
    Wait,
    /// A barrier that some of its group never reach.
    Warps,
}

/// Two ops that are out of order, or one that hangs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Finding {
    pub fault: Fault,
    pub missing: Missing,
    /// The op that comes first in the program; none where one op is wrong by itself.
    pub earlier: Option<(Op, Loc)>,
    pub later: (Op, Loc),
    /// What, where, how it comes about, what is missing.
    pub text: String,
}

impl Finding {
    /// What two reports of one fault have in common.
    pub fn key(&self) -> (Fault, Missing, Option<Op>, Op) {
        (self.fault, self.missing, self.earlier.map(|e| e.0), self.later.0)
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// All that a check reports.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// One for each pair of ops and kind of fault.
    pub findings: Vec<Finding>,
    /// Paths that were walked, and the ops on them.
    pub paths: usize,
    pub steps: usize,
    /// What was left out: rounds of long loops, or combinations of arms.
    pub bounded: bool,
}
