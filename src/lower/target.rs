//! What code generation knows of the machine.

/// The machine that a kernel is compiled for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Target {
    /// As the assembler names it, e.g. `sm_90a`.
    pub name: String,
    /// Compute capability: 90, 100.
    pub sm: u16,
    /// Dynamic shared memory that a block may have, in bytes.
    pub max_smem_bytes: u32,
    /// Blocks in a cluster. Above 8 the kernel opts in to a non-portable size.
    pub max_cluster: u32,
}

impl Target {
    /// Hopper: 227 KiB of shared memory a block (CUDA C Programming Guide, technical specifications of compute capability 9.0).
    pub fn sm_90a() -> Target {
        Target {
            name: "sm_90a".to_string(),
            sm: 90,
            max_smem_bytes: 227 * 1024,
            max_cluster: 16,
        }
    }

    /// The target of this name; `None` for one that smalt does not compile for.
    pub fn from_name(name: &str) -> Option<Target> {
        match name {
            "sm_90a" => Some(Target::sm_90a()),
            _ => None,
        }
    }

    /// 32-bit words a thread that array code may keep alive at once before it is listed in tiles
    /// ([`crate::ptx::interleave_elements`]).
    ///
    /// An SM has 65,536 registers and a thread at most 255 (CUDA C Programming Guide, compute capability 9.0). A quarter of a
    /// thread's share is left to addresses and temporaries; and no tile takes more than half of the 255, so that memory-bound
    /// blocks of 128 threads run four to an SM: 128 words a thread in flight are 256 KiB there, ten times what its share of
    /// 4.8 TB/s needs over a microsecond's latency.
    pub fn register_budget(&self, threads: u32) -> u32 {
        let share = (65_536 / threads.max(1)).min(255);
        (share * 3 / 4).min(128)
    }
}
