//! mbarriers, named barriers and cluster barriers.

/// An mbarrier object (PTX ISA 9.7.13.15).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mbarrier {
    /// Arrivals that each phase takes.
    pub expected: u32,
    /// Arrivals that the current phase still takes.
    pub pending: u32,
    /// Bytes announced less bytes arrived, in the current phase. May fall below zero within a phase.
    pub tx: i64,
    /// Phases completed.
    pub phase: u64,
    /// Warps that wait for the current phase.
    pub waiters: Vec<u32>,
}

/// What is wrong with an arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Misuse {
    /// More arrivals than the phase takes.
    OverArrival { pending: u32, count: u32 },
    /// The transaction count leaves ±(2^20 − 1) (PTX ISA 9.7.13.15.3).
    TxRange { tx: i64 },
}

const MAX_TX: i64 = (1 << 20) - 1;

impl Mbarrier {
    /// The largest count of arrivals (PTX ISA 9.7.13.15.2).
    pub const MAX_COUNT: u32 = (1 << 20) - 1;

    pub fn new(expected: u32) -> Mbarrier {
        Mbarrier {
            expected,
            pending: expected,
            tx: 0,
            phase: 0,
            waiters: vec![],
        }
    }

    /// Whether the phase of this parity has completed.
    pub fn is_complete(&self, parity: u32) -> bool {
        self.phase & 1 != u64::from(parity & 1)
    }

    /// `expect_tx`, then `count` arrivals. True: the phase is complete, and its waiters are to be woken.
    pub fn arrive(&mut self, count: u32, expect: i64) -> Result<bool, Misuse> {
        self.tx += expect;
        if self.tx.abs() > MAX_TX {
            return Err(Misuse::TxRange { tx: self.tx });
        }
        if count > self.pending {
            return Err(Misuse::OverArrival {
                pending: self.pending,
                count,
            });
        }
        self.pending -= count;
        Ok(self.advance())
    }

    /// `count` threads arrive no more: this phase and those behind it take so many arrivals less.
    pub fn drop_expected(&mut self, count: u32) -> Result<(), Misuse> {
        if count > self.expected {
            return Err(Misuse::OverArrival {
                pending: self.expected,
                count,
            });
        }
        self.expected -= count;
        Ok(())
    }

    /// What an arrival says of its phase: its number, and how many arrivals it still takes.
    pub fn state(&self) -> u64 {
        u64::from(self.phase as u32) | u64::from(self.pending) << 32
    }

    /// Bytes have arrived.
    pub fn complete_tx(&mut self, bytes: u64) -> Result<bool, Misuse> {
        self.tx -= bytes as i64;
        if self.tx.abs() > MAX_TX {
            return Err(Misuse::TxRange { tx: self.tx });
        }
        Ok(self.advance())
    }

    fn advance(&mut self) -> bool {
        if self.pending != 0 || self.tx != 0 {
            return false;
        }
        self.phase += 1;
        self.pending = self.expected;
        true
    }
}

/// What a round of a named barrier has made of its threads' predicates.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reduced {
    pub popc: u32,
    pub and: bool,
    pub or: bool,
}

impl Default for Reduced {
    fn default() -> Reduced {
        Reduced {
            popc: 0,
            and: true,
            or: false,
        }
    }
}

/// A named barrier (`bar.sync`).
#[derive(Clone, Debug, Default)]
pub struct Named {
    /// Of the current round.
    pub reduced: Reduced,
    /// Of the round before, which its threads may yet ask for.
    pub last: Reduced,
    /// Threads of the current round, once the first warp has come.
    pub expected: u32,
    pub arrived: u32,
    pub generation: u64,
    pub waiters: Vec<u32>,
}

/// The barrier of a cluster: counts warps.
#[derive(Clone, Debug, Default)]
pub struct ClusterBarrier {
    pub arrived: u32,
    /// Warps of the cluster that have not ended.
    pub live: u32,
    pub generation: u64,
    pub waiters: Vec<u32>,
}

impl ClusterBarrier {
    /// Opens when all live warps have arrived. True: waiters are to be woken.
    pub fn advance(&mut self) -> bool {
        if self.live == 0 || self.arrived < self.live {
            return false;
        }
        self.arrived = 0;
        self.generation += 1;
        true
    }
}
