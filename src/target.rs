//! The machine that a kernel is compiled for: what it has, and what was found out about it. Every room reads it.
//!
//! A number that would be another one on another machine is here, with its unit and where it is from: a manual, or what was
//! run on an H200. What says *chosen* was judged and not measured on its own.
mod features;
mod machines;

pub use features::Features;
#[cfg(test)]
pub use machines::fictitious;
pub use machines::{MACHINES, Machine};

use crate::error::Error;
use std::ops::RangeInclusive;

/// The machine that a kernel is compiled for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Target {
    /// As the assembler names it, e.g. `sm_90a`.
    pub name: &'static str,
    /// Its devices' compute capability.
    pub capability: (u32, u32),
    /// The version of the PTX ISA that it needs at least (80 = 8.0).
    pub isa: u16,
    /// Its parts.
    pub features: Features,

    // ------------------------------------------------------------ what it has
    /// Warpgroups in a block.
    pub max_warpgroups: u32,
    /// Blocks in a cluster. Above 8 the kernel opts in to a non-portable size.
    pub max_cluster: u64,
    /// Blocks along x, and in a grid.
    pub max_grid: u64,
    /// Blocks along y, and along z.
    pub max_grid_yz: u64,
    /// Dynamic shared memory that a block may have, in bytes.
    pub max_smem_bytes: u32,
    /// Parameters of a kernel, in bytes.
    pub max_parameter_bytes: u64,
    /// Bytes of an SM's shared memory that the system takes for each block, beside them.
    pub system_smem_bytes: u32,
    /// 32-bit registers of an SM; one block may have all.
    pub registers: u32,
    /// 32-bit registers of a thread.
    pub max_thread_registers: u32,
    /// What a warp takes of the SM's registers is a multiple of so many.
    pub register_unit: u32,
    /// Threads of an SM, and blocks.
    pub sm_threads: u32,
    pub sm_blocks: u32,
    /// What `setmaxnreg` takes, in multiples of 8. A warpgroup that says nothing keeps the least.
    pub register_counts: RangeInclusive<u32>,
    /// Arrivals that end a phase of an mbarrier.
    pub max_arrivals: u32,
    /// Bytes that every buffer in device memory is known to be aligned to.
    pub gmem_alignment: u64,

    // ------------------------------------------------------------ what was found out
    /// Multiply-accumulates of a block for each element that it loads, below which the L2 cache is the limit and not the tensor
    /// cores.
    pub min_macs_per_element: u64,
    /// 32-bit registers of a thread that an accumulator and the tile before it leave together: for addresses, and half of them, if need be,
    /// for what is added to the tile.
    pub deferred_reserve: u32,
    /// 32-bit registers of a thread that the beginning of a tile takes, beside the tile before it.
    pub begin_reserve: u32,
    /// 32-bit registers of a thread that products which run together leave to addresses and temporaries.
    pub overlap_reserve: u32,
    /// Those that the accumulators which a loop carries, and what else is alive in it, leave at least: with less some are parked.
    pub parks_below: u32,
    /// Those that are left where some are.
    pub park_reserve: u32,
    /// Words of a thread that are parked at most: with more all stay.
    pub max_parked_words: u32,
    /// 32-bit words of a thread that may be alive at one point.
    pub max_live_words: u32,
    /// Instructions of a kernel.
    pub max_instructions: u64,
    /// Bytes for each warpgroup that changes of layout and reductions may ask for, the best first: with less they take more passes.
    pub scratch_budgets: [u64; 3],
    /// The same for products of arrays, before those: what they take at once need not stay in registers.
    pub product_budget: u64,
    /// Ops that computing a value again may take, before a trip through shared memory is cheaper.
    pub max_recomputed: u32,
    /// What computing a value again counts, among the costs of changes of layout (wavefronts of shared memory and shuffles).
    pub recomputing_costs: u64,
    /// Elements of an array constant, of which every thread holds all.
    pub max_constant: usize,
    /// Iterations of a loop over arrays up to which it is unrolled.
    pub max_unrolled_slices: u64,
    /// Elements a thread of an array that a loop takes apart or puts together, which are searched for each slice of a longer loop.
    pub max_stacked_slots: u32,
    /// Elements a thread of an array whose extremes or running sums are found along a dimension, which is unrolled.
    pub max_run_slots: u32,
    /// Copies of a loop's body that the user's `unroll` may make.
    pub max_body_copies: u64,
}

impl Target {
    /// Hopper with its own parts.
    pub fn sm_90a() -> Target {
        Target::from_name("sm_90a").expect("a row of the table")
    }

    /// *CUDA*: the CUDA C Programming Guide, technical specifications of the compute capability.
    fn of(machine: &Machine) -> Target {
        Target {
            name: machine.name,
            capability: machine.capability,
            isa: machine.isa,
            features: machine.features,
            // CUDA: 1,024 threads a block.
            max_warpgroups: 8,
            // CUDA: 16 where the kernel sets cudaFuncAttributeNonPortableClusterSizeAllowed.
            max_cluster: match machine.features.contains(Features::CLUSTERS) {
                true => 16,
                false => 1,
            },
            // CUDA.
            max_grid: (1 << 31) - 1,
            max_grid_yz: 65_535,
            // CUDA.
            max_smem_bytes: machine.smem_kib * 1024,
            // ptxas: 0x7ffc.
            max_parameter_bytes: 32_764,
            system_smem_bytes: 1024,
            // CUDA.
            registers: 65_536,
            max_thread_registers: 255,
            register_unit: 256,
            sm_threads: machine.sm_threads,
            sm_blocks: machine.sm_blocks,
            // PTX ISA 9.7.19.5.
            register_counts: 24..=256,
            // PTX ISA, "Contents of the mbarrier object": 2^20 − 1.
            max_arrivals: (1 << 20) - 1,
            // XLA and the driver align buffers to more; users' slices of them start where types are aligned.
            gmem_alignment: 16,
            // H200, large bf16 matmuls: at 51 (tiles of 256 × 64) the L2 cache is the limit, at 64 (128 × 128) it is not. The
            // ratio is the same for types of half the size, whose rates are twice as high. Attention, forward and backward, is at
            // 96 to 128 and gains 0.6 to 4.6 % where its waits poll.
            min_macs_per_element: 58,
            // Of 232, 64 × 256 elements of a tile in f32 (128 registers) and in bf16 (64) fit; ptxas spills nothing where 16 more are loaded
            // to be added, and 12 to 16 bytes where 32 are.
            deferred_reserve: 32,
            // Chosen: half of what 64 × 128 elements of a tile in f32 leave of 255.
            begin_reserve: 96,
            // ptxas 13.0, attention's backward kernels with tiles of 64 to 192 and one to three computing warpgroups: of those for
            // which 24 registers are left, none spills and none is serialised; of those with 8, most are.
            overlap_reserve: 24,
            // ptxas 13.0, random kernels and attention's backward passes: of those that leave 8 to 19 registers five of seven spill or are
            // serialised, of those that leave 23 to 31 none.
            parks_below: 20,
            // ptxas 13.0, random kernels that park: with 20 left, 38 of 135 are serialised (C7512); with 32, 2 of 89, and 11 spill up to
            // 112 bytes. Attention's backward pass of head 256 needs 23.
            park_reserve: 32,
            // ptxas 13.0, n accumulators of 128 × 256: with 832 words parked it takes 8 s (4 s where they are spilled), with 1,856 61 s (12 s),
            // with 2,880 minutes (25 s).
            max_parked_words: 1024,
            // Chosen: 255 are in registers, the others spill. ptxas takes minutes over a few thousand, and the kernel then waits
            // for its spills.
            max_live_words: 4096,
            // Chosen: compiling takes 6 µs for each. Of arithmetic on 64 elements a thread, written out operation by operation, ptxas 13.0 takes 41 s
            // for 64,000 and 390 s for 256,000; the largest kernel of the corpus has 6,900.
            max_instructions: 100_000,
            // Chosen: a seventh of the shared memory.
            scratch_budgets: [32 * 1024, 16 * 1024, 8 * 1024],
            // Chosen: the operands of 128 × 128 × 64 in f32 are 68 KiB.
            product_budget: 72 * 1024,
            // Chosen, both.
            max_recomputed: 8,
            recomputing_costs: 8,
            // Chosen, all: more is not worth its registers, or not worth its code.
            max_constant: 1024,
            max_unrolled_slices: 16,
            max_stacked_slots: 512,
            max_run_slots: 1024,
            max_body_copies: 256,
        }
    }

    /// The target of this name; `None` for one that smalt does not compile for.
    pub fn from_name(name: &str) -> Option<Target> {
        #[cfg(test)]
        if let Some(machine) = machines::fictitious().iter().find(|machine| machine.name == name) {
            return Some(Target::of(machine));
        }
        MACHINES.iter().find(|machine| machine.name == name).map(Target::of)
    }

    /// The names of all, as a list for messages.
    pub fn names() -> String {
        let names: Vec<&str> = MACHINES.iter().map(|machine| machine.name).collect();
        names.join(", ")
    }

    /// What kernels are compiled for that run on a device of this capability: of the machines that it is, the one with the most parts. `None`:
    /// smalt compiles for none of them.
    pub fn of_capability(capability: (u32, u32)) -> Option<&'static Machine> {
        let runs = MACHINES.iter().filter(|machine| machine.runs_on(capability));
        runs.max_by_key(|machine| (machine.capability, machine.features.bits().count_ones()))
    }

    /// Whether devices of this capability run what is assembled for it.
    pub fn runs_on(&self, capability: (u32, u32)) -> bool {
        MACHINES
            .iter()
            .any(|machine| machine.name == self.name && machine.runs_on(capability))
    }

    /// Whether PTX that was compiled for another one runs on it: for itself, or for one without a letter that is no later.
    pub fn takes_ptx_of(&self, other: &Target) -> bool {
        let is_plain = other.name.ends_with(|c: char| c.is_ascii_digit());
        self.name == other.name || is_plain && other.capability <= self.capability
    }

    /// Whether it has all of these parts.
    pub fn has(&self, features: Features) -> bool {
        self.features.contains(features)
    }

    /// An error that says which of these parts it lacks, and which GPUs have them.
    pub fn require(&self, features: Features) -> Result<(), Error> {
        let missing = features.difference(self.features);
        if missing.is_empty() {
            return Ok(());
        }
        let have = MACHINES.iter().filter(|machine| machine.features.contains(features));
        let names: Vec<String> = have
            .filter(|machine| !machine.gpus.is_empty())
            .map(|machine| format!("{} ({})", machine.name, machine.gpus))
            .collect();
        Err(Error::unsupported(format!("{missing} on {}", self.name))
            .expected(format!("a GPU that has this: {}", names.join(", ")))
            .remedy(missing.without()))
    }

    /// 32-bit registers of a thread of a block with so many.
    pub fn thread_registers(&self, threads: u32) -> u32 {
        (self.registers / threads.max(1)).min(self.max_thread_registers)
    }

    /// Shared memory of an SM: one block may have all but the system's share.
    fn sm_smem_bytes(&self) -> u32 {
        self.max_smem_bytes + self.system_smem_bytes
    }

    /// Blocks with so much shared memory that an SM has it for.
    pub fn blocks_by_smem(&self, bytes: u64) -> u64 {
        u64::from(self.sm_smem_bytes()) / (bytes + u64::from(self.system_smem_bytes))
    }

    /// Shared memory that each of so many blocks of an SM may have.
    pub fn smem_share(&self, blocks: u32) -> u32 {
        (self.sm_smem_bytes() / blocks.max(1)).saturating_sub(self.system_smem_bytes)
    }

    /// Blocks of so many threads, each with so many registers, that an SM has them for.
    pub fn blocks_by_registers(&self, threads: u32, registers: u32) -> u32 {
        let warp = (32 * registers.max(1)).next_multiple_of(self.register_unit);
        self.registers / warp / threads.div_ceil(32).max(1)
    }

    /// Shared memory that a warpgroup's scratch takes at most, planned where layouts are known: the largest budget, and what aligns it.
    pub fn warpgroup_scratch(&self) -> u64 {
        self.scratch_budgets[0] + 1024
    }

    /// Blocks of so many threads that an SM takes, whatever else they need.
    pub fn blocks_by_threads(&self, threads: u32) -> u32 {
        (self.sm_threads / threads.next_multiple_of(32).max(32)).min(self.sm_blocks)
    }

    /// 32-bit words a thread that array code may keep alive at once before it is listed in tiles
    /// ([`crate::ptx::interleave_elements`]).
    ///
    /// A quarter of a thread's share of the registers is left to addresses and temporaries; and no tile takes more than half of
    /// what a thread can have, so that memory-bound blocks of 128 threads run four to an SM: 128 words a thread in flight are
    /// 256 KiB there, ten times what its share of 4.8 TB/s needs over a microsecond's latency.
    pub fn register_budget(&self, threads: u32) -> u32 {
        (self.thread_registers(threads) * 3 / 4).min(128)
    }
}
