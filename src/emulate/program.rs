//! A kernel decoded for execution; made once, run many times, from any thread.
use super::agents::BulkOp;
use super::check::Checker;
use super::check::Hooks;
use super::index::IndexCheck;
use super::mma::MmaOp;
use super::row::Row;
use super::tcgen05::TensorOp;
use super::tensor_memory::Transfer;
use super::uop::{Tier, Uop};
use super::wgmma::MatMul;
use crate::error::{Loc, Result};
use crate::ptx::Flat;
use crate::ptx::inst::ROWS;
use crate::ptx::launch::LaunchSpec;
use crate::target::Target;

/// Where a micro-op comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin {
    pub loc: Loc,
    /// Row of the instruction table; `None` for branches and what the decoder adds.
    pub row: Option<u16>,
}

impl Origin {
    /// The row's name.
    pub fn name(self) -> &'static str {
        self.row.map_or("branch", |row| ROWS[usize::from(row)].name)
    }
}

/// Targets of a branch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Branch {
    pub then: u32,
    pub otherwise: u32,
    /// Of divergent branches: the `Join`.
    pub join: u32,
}

/// A decoded kernel.
pub struct Program<H: Hooks = Checker> {
    pub(super) launch: LaunchSpec,
    /// The machine that runs it.
    pub(super) target: Target,
    pub(super) code: Vec<Uop<H>>,
    pub(super) origins: Vec<Origin>,
    pub(super) constants: Vec<Row>,
    /// Rows of registers that a warp needs.
    pub(super) register_rows: usize,
    pub(super) predicates: usize,
    /// Lists of operands, by start; lengths are the instructions'.
    pub(super) lists: Vec<u16>,
    pub(super) branches: Vec<Branch>,
    pub(super) matmuls: Vec<MatMul>,
    pub(super) mma_ops: Vec<MmaOp>,
    pub(super) bulk_ops: Vec<BulkOp>,
    /// Of tensor memory: what threads issue, and loads and stores.
    pub(super) tensor_ops: Vec<TensorOp>,
    pub(super) transfers: Vec<Transfer>,
    /// There are instructions for tensor memory.
    pub(super) has_tensor_memory: bool,
    pub(super) checks: Vec<IndexCheck>,
    /// Of unchecked texts, what the table does not have.
    pub(super) unknown: Vec<std::sync::Arc<str>>,
    /// Nanoseconds that waits may last.
    pub(super) timeouts: Vec<u64>,
    /// CTAs may see each other's global writes during the launch: atomics, flags, ordered accesses.
    pub(super) communicates: bool,
    pub(super) min_ctas_per_sm: Option<u32>,
    /// The kernel changes its registers per thread.
    pub(super) reallocates: bool,
}

impl<H: Hooks> Program<H> {
    /// Decodes a verified kernel for this host.
    pub fn decode(flat: &Flat) -> Result<Program<H>> {
        Program::decode_for(flat, Tier::of_host())
    }

    /// Decodes for a tier that this host has.
    pub fn decode_for(flat: &Flat, tier: Tier) -> Result<Program<H>> {
        super::decode::run(flat, tier)
    }

    /// CTAs of a cluster.
    #[inline(always)]
    pub(super) fn cluster_size(&self) -> u32 {
        let [x, y, z] = self.launch.cluster;
        x * y * z
    }

    /// What the launch needs besides the code.
    pub fn launch(&self) -> &LaunchSpec {
        &self.launch
    }
}
