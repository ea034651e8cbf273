//! How to run, and what came of it.

/// When asynchronous operations take effect.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AgentOrder {
    /// At issue.
    Earliest,
    /// When somebody waits for them and nobody else can run: a missing wait gives a wrong number.
    Latest,
    /// At random between the two; warps take turns at random, too.
    Seeded(u64),
}

impl AgentOrder {
    pub fn is_seeded(self) -> bool {
        matches!(self, AgentOrder::Seeded(_))
    }
}

/// How to run a kernel.
#[derive(Clone, Debug)]
pub struct Options {
    pub agents: AgentOrder,
    /// Of the schedule under [`AgentOrder::Seeded`]; set from it by [`Options::with_agents`].
    pub seed: u64,
    /// SMs of the machine.
    pub sms: u32,
    /// CTAs per SM; `None`: what shared memory, threads and registers allow.
    pub occupancy: Option<u32>,
    /// Instructions of warps before a run counts as endless, per host thread.
    pub max_steps: u64,
    /// Rounds of polls that see no change before a run counts as deadlocked.
    pub max_polls: u64,
    /// Host threads.
    pub threads: usize,
    /// Reading shared memory or undefined buffers that nothing wrote is an error.
    pub check_undefined: bool,
    /// What registers hold at the start.
    pub register_poison: u32,
}

impl Default for Options {
    /// An H100: 132 SMs.
    fn default() -> Options {
        Options {
            agents: AgentOrder::Latest,
            seed: 0,
            sms: 132,
            occupancy: None,
            max_steps: 1 << 40,
            max_polls: 1 << 20,
            threads: std::thread::available_parallelism().map_or(1, |n| n.get()),
            check_undefined: true,
            register_poison: 0xdead_beef,
        }
    }
}

impl Options {
    pub fn with_agents(self, agents: AgentOrder) -> Options {
        let seed = if let AgentOrder::Seeded(seed) = agents {
            seed
        } else {
            self.seed
        };
        Options { agents, seed, ..self }
    }
}

/// What a run did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Micro-ops of warps.
    pub steps: u64,
    pub ctas: u64,
    /// CTAs that are resident at once on the modelled machine.
    pub resident_ctas: u64,
}
