//! `ptx::Flat`: virtual registers, basic blocks, predicates. What is printed for the assembler and executed by the
//! emulator. The only producer is `out_of_ssa` (and the parser, for tests).
use super::inst::Inst;
use super::launch::LaunchSpec;
use super::operand::Class;
use crate::error::Loc;
use std::fmt;

/// A virtual register; prints as `%r7`, `%d3`, `%h1`, `%p0`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Reg {
    pub class: Class,
    pub index: u32,
}

impl fmt::Display for Reg {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "%{}{}", self.class.prefix(), self.index)
    }
}
impl fmt::Debug for Reg {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A basic block; prints as `B4`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct BlockId(pub u32);

impl fmt::Display for BlockId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "B{}", self.0)
    }
}

/// Executes an instruction only in lanes where `pred` is true (`negated`: false).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Guard {
    pub pred: Reg,
    pub negated: bool,
}

#[derive(Clone, PartialEq, Debug)]
pub struct FlatInst {
    pub guard: Option<Guard>,
    pub inst: Inst<Reg>,
    pub loc: Loc,
}

/// Whether all lanes of a warp take the same way.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Uniformity {
    /// The predicate is equal in all lanes of the warp: printed `bra.uni`.
    Uniform,
    /// Lanes may diverge, and converge again at the reconvergence block.
    Divergent { reconverge: BlockId },
}

/// How a block ends.
#[derive(Clone, PartialEq, Debug)]
pub enum Terminator {
    Branch {
        to: BlockId,
    },
    /// To `then` where the guard holds, else to `otherwise`.
    CondBranch {
        guard: Guard,
        then: BlockId,
        otherwise: BlockId,
        uniformity: Uniformity,
    },
    /// `ret`
    Return,
}

#[derive(Clone, PartialEq, Debug)]
pub struct Block {
    pub insts: Vec<FlatInst>,
    pub terminator: Terminator,
    pub loc: Loc,
}

/// A kernel in flat form. Blocks are printed in order; block 0 is the entry.
#[derive(Clone, PartialEq, Debug)]
pub struct Flat {
    pub launch: LaunchSpec,
    /// "sm_90a"
    pub target: String,
    /// Number of registers of each class, by `Class as usize`.
    pub registers: [u32; 4],
    pub blocks: Vec<Block>,
    /// `.minnctapersm`, needed by `setmaxnreg`.
    pub min_ctas_per_sm: Option<u32>,
}

impl Flat {
    /// Whether threads keep where they are in a profile.
    pub fn has_profile(&self) -> bool {
        let mut all = self.blocks.iter().flat_map(|b| &b.insts);
        all.any(|i| {
            matches!(
                i.inst,
                Inst::ProfileStart { .. } | Inst::ProfileMark { .. } | Inst::ProfileEnd {}
            )
        })
    }

    /// Bytes of memory of its own that a thread has.
    pub fn local_bytes(&self) -> u32 {
        let ends = self.blocks.iter().flat_map(|b| &b.insts).filter_map(|i| match &i.inst {
            Inst::LdLocal { d, at } => Some(at + 4 * d.len() as i64),
            Inst::StLocal { a, at } => Some(at + 4 * a.len() as i64),
            _ => None,
        });
        u32::try_from(ends.max().unwrap_or(0)).map_or(u32::MAX, |n| n.next_multiple_of(16))
    }
}
