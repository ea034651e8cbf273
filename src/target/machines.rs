//! The machines that smalt compiles for: one row each.
//!
//! To add one: its row (the CUDA C++ Programming Guide, technical specifications, has the numbers; the PTX ISA, "Target ISA Notes", the
//! parts), then `cargo test machines_have`, which holds the parts against the assembler, both ways.
use super::features::Features;

/// What is known of a machine before anything was run on it.
pub struct Machine {
    /// As the assembler names it.
    pub name: &'static str,
    /// What GPUs it is; none: those that another row is, too, with more parts.
    pub gpus: &'static str,
    /// Devices of this compute capability run it. A name without a letter is also run by the later ones of its generation.
    pub capability: (u32, u32),
    /// The first version of the PTX ISA (80 = 8.0) with which all of its parts can be assembled.
    pub isa: u16,
    pub features: Features,
    /// Dynamic shared memory that a block may have, in KiB. An SM has one more, which the system takes of each block.
    pub smem_kib: u32,
    /// Threads of an SM, and blocks.
    pub sm_threads: u32,
    pub sm_blocks: u32,
    /// Whether warps that only copy give their registers to others: there is `setmaxnreg`, and ptxas heeds it beside copies by tensor maps
    /// (13.0 does not for sm_120a: C7506).
    pub producers: bool,
    pub proof: Proof,
}

/// How far what is compiled for a machine was tried.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Proof {
    /// What smalt chooses between was measured there; what was found out stands for the others.
    Measured,
    /// A later machine ran it.
    RunByAnother,
    Emulated,
}

impl Proof {
    pub fn text(self) -> &'static str {
        match self {
            Proof::Measured => "measured",
            Proof::RunByAnother => "its code was run on a Hopper",
            Proof::Emulated => "assembled and emulated, not run on hardware",
        }
    }
}

const AMPERE: Features = Features::empty();
const ADA: Features = Features::XORSIGN.union(Features::FP8);
const BLACKWELL: Features = Features::HOPPER
    .union(Features::SET_MAX_REG)
    .union(Features::REPLACE_MAPS);
/// Those with tensor memory.
const DATA_CENTER: Features = BLACKWELL.union(Features::TENSOR_MEMORY);

/// A machine that its code was not run on.
const fn machine(
    name: &'static str,
    capability: (u32, u32),
    isa: u16,
    features: Features,
    limits: [u32; 3],
    gpus: &'static str,
) -> Machine {
    let [smem_kib, sm_threads, sm_blocks] = limits;
    Machine {
        name,
        gpus,
        capability,
        isa,
        features,
        smem_kib,
        sm_threads,
        sm_blocks,
        producers: features.contains(Features::SET_MAX_REG),
        proof: Proof::Emulated,
    }
}

/// A machine whose code a Hopper was given.
const fn run_by_another(machine: Machine) -> Machine {
    Machine {
        proof: Proof::RunByAnother,
        ..machine
    }
}

pub const MACHINES: &[Machine] = &[
    run_by_another(machine("sm_80", (8, 0), 80, AMPERE, [163, 2048, 32], "A100")),
    run_by_another(machine(
        "sm_86",
        (8, 6),
        80,
        Features::XORSIGN,
        [99, 1536, 16],
        "A10, A40, RTX 30",
    )),
    machine("sm_87", (8, 7), 80, Features::XORSIGN, [163, 1536, 16], "Orin"),
    // Conversions of fp8 came there with PTX 8.1.
    run_by_another(machine("sm_89", (8, 9), 81, ADA, [99, 1536, 24], "L4, L40S, RTX 40")),
    machine("sm_90", (9, 0), 80, Features::HOPPER, [227, 2048, 32], ""),
    Machine {
        proof: Proof::Measured,
        ..machine(
            "sm_90a",
            (9, 0),
            80,
            BLACKWELL.union(Features::WGMMA),
            [227, 2048, 32],
            "H100, H200",
        )
    },
    machine("sm_100", (10, 0), 86, Features::HOPPER, [227, 2048, 32], ""),
    machine(
        "sm_100a",
        (10, 0),
        86,
        DATA_CENTER.union(Features::TENSOR_INTEGERS),
        [227, 2048, 32],
        "B200, GB200",
    ),
    machine("sm_103a", (10, 3), 88, DATA_CENTER, [227, 2048, 32], "B300, GB300"),
    machine(
        "sm_110a",
        (11, 0),
        90,
        DATA_CENTER.union(Features::TENSOR_INTEGERS),
        [227, 1536, 24],
        "Thor",
    ),
    machine("sm_120", (12, 0), 87, Features::HOPPER, [99, 1536, 24], ""),
    Machine {
        producers: false,
        ..machine(
            "sm_120a",
            (12, 0),
            87,
            BLACKWELL,
            [99, 1536, 24],
            "RTX 50, RTX PRO 6000",
        )
    },
];

impl Machine {
    /// Whether devices of this capability run what is compiled for it. What has a letter is for one capability; the rest is for the later ones
    /// of its generation, too.
    pub fn runs_on(&self, (major, minor): (u32, u32)) -> bool {
        match self.name.ends_with(|c: char| c.is_ascii_digit()) {
            true => self.capability.0 == major && self.capability.1 <= minor,
            false => self.capability == (major, minor),
        }
    }
}

/// Machines that there are not, with a Hopper's limits: an A100 with one part more, and a Hopper with one part less; `sm_80 with STMATRIX`,
/// `sm_90 without STMATRIX`.
#[cfg(test)]
pub fn fictitious() -> &'static [Machine] {
    static ROWS: std::sync::LazyLock<Vec<Machine>> = std::sync::LazyLock::new(|| {
        let row = |name: String, features| machine(name.leak(), (8, 0), 80, features, [227, 2048, 32], "");
        // Bulk copies report to barriers what they have brought, and write to the shared memory of a cluster.
        let needed = Features::TRANSACTIONS | Features::CLUSTERS;
        let with = |part| match part == Features::BULK_COPIES {
            true => part | needed,
            false => part,
        };
        let without = |part: Features| match needed.contains(part) {
            true => part | Features::BULK_COPIES,
            false => part,
        };
        let more = Features::HOPPER
            .iter_names()
            .map(|(name, part)| row(format!("sm_80 with {name}"), AMPERE | with(part)));
        let less = Features::HOPPER
            .iter_names()
            .map(|(name, part)| row(format!("sm_90 without {name}"), Features::HOPPER - without(part)));
        more.chain(less).collect()
    });
    &ROWS
}
