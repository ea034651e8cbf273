//! The machine: resident CTAs, warps and their queue, what they wait for.
//!
//! A warp runs until it blocks, polls or ends. Blocked warps are queued where they wait; when none can run, the
//! asynchronous agents act (`agents.rs`), then those who poll try again; when nothing is left to act, it is a deadlock.
use super::agents::Agents;
use super::barrier::{ClusterBarrier, Mbarrier, Misuse, Named};
use super::check::{Hooks, Shape, Sync, Verdict};
use super::global::GlobalMemory;
use super::grid::{Author, Clash, Did};
use super::options::{Check, Options, Position, Watch};
use super::program::Program;
use super::rng::Rng;
use super::shared::{self, CtaSlot, SMEM_BASE, Shared};
use super::tcgen05::Queues;
use super::tensor_memory::{self, TensorMemory};
use super::trace::{Recorder, Trace, Turn, TurnEnd};
use super::uop::{Flow, Step};
use super::warp::{Wait, Warp};
use super::wgmma::TensorUnit;
use crate::error::{Error, Fault, Loc};
use rustc_hash::{FxHashMap, FxHashSet};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::sync::Arc;

/// Micro-ops that a warp runs before the others go first.
const QUANTUM: u64 = 1 << 20;
/// Rounds of nothing but polls after which blocks that have not begun are what is waited for.
const QUIET_POLLS: u64 = 1 << 12;
/// Turns of others after which a warp that has yielded goes on, if not before.
const PATIENCE: u32 = 256;
/// Turns of warps between two looks at the clock: a turn may be as short as one micro-op.
const TURNS: u32 = 64;

/// A resident CTA.
pub struct Cta {
    pub id: [u32; 3],
    /// Its cluster's position in the machine.
    pub cluster: u32,
    /// The device that it is on.
    pub device: u32,
    /// Its cluster's number in the grid.
    pub number: u32,
    pub rank: u32,
    /// Its position in its cluster.
    pub rank_id: [u32; 3],
    pub smem: Shared,
    pub tmem: TensorMemory,
    pub barriers: FxHashMap<u32, Mbarrier>,
    pub named: [Named; 16],
    pub live_warps: u32,
    /// Registers of the SM's pool, in registers of a warp per thread, that no warp of it holds.
    pub free_registers: u32,
    pub register_waiters: Vec<u32>,
    /// Of each warp, how many groups of wgmma its quarters are done of; none: it has ended.
    pub multiplied: Vec<Option<u64>>,
    /// Warps that wait for the others of their warpgroup to be as far.
    pub product_waiters: Vec<u32>,
}

/// A resident cluster.
#[derive(Default)]
pub struct Cluster {
    pub id: [u32; 3],
    pub live_ctas: u32,
    pub barrier: ClusterBarrier,
}

/// Everything that one host thread runs.
pub struct Machine<'a, H: Hooks> {
    pub program: &'a Program<H>,
    pub memory: &'a GlobalMemory,
    pub options: &'a Options,
    watch: &'a dyn Watch,
    pub ctas: Vec<Cta>,
    pub clusters: Vec<Cluster>,
    pub warps: Vec<Option<Box<Warp>>>,
    pub warps_per_cta: u32,
    pub ready: VecDeque<u32>,
    /// Warps that yielded at a poll.
    pollers: Vec<u32>,
    /// Turns of others since one of them has waited.
    passed_over: u32,
    /// Warps that wait for words of global memory.
    pub memory_waiters: Vec<u32>,
    /// Global memory was written since they last looked.
    pub memory_changed: bool,
    pub fault: Option<Box<Error>>,
    pub hooks: H,
    pub agents: Agents,
    pub tensor: Queues,
    pub tensor_core: TensorUnit,
    pub rng: Rng,
    /// Micro-ops executed: the clock.
    pub clock: u64,
    /// Rounds of polls since something last changed.
    idle_polls: u64,
    /// The micro-op that runs, where a checker listens.
    at: u32,
    /// Positions whose finding has been reported.
    reported: FxHashSet<u32>,
    /// The clock when `watch` was last asked, and turns since then.
    asked: u64,
    turns: u32,
    /// Clusters are held against each other in global memory.
    isolates: bool,
    /// What the store that runs overwrote that another cluster wrote or read.
    pub overwritten: Option<(u64, Clash)>,
    /// Warps whose waits are bounded, which of them it is, and the clock at which that runs out.
    bounded: Vec<(u32, u32, u64)>,
    /// Where somebody wants to see what happens when.
    pub recorder: Option<Box<Recorder>>,
    /// Instructions that have read undefined memory, where that is noted.
    undefined: RefCell<FxHashSet<Loc>>,
    /// Of a launch whose clusters may wait for each other: those that have not begun.
    pub clusters_to_come: u64,
    /// Rounds of polls in which nobody stored anything or did anything else but poll.
    quiet_polls: u64,
    /// In the last round somebody did.
    stirred: bool,
}

/// Why a warp stopped.
enum Stop {
    Blocked,
    Polled,
    Ended,
    Fault,
}

impl<'a, H: Hooks> Machine<'a, H> {
    /// A machine of `devices` devices with room for `per_device` clusters each.
    pub fn new(
        program: &'a Program<H>,
        memory: &'a GlobalMemory,
        options: &'a Options,
        watch: &'a dyn Watch,
        per_device: u32,
        devices: u32,
    ) -> Self {
        let clusters = per_device * devices;
        let launch = &program.launch;
        let size = launch.cluster.iter().product::<u32>();
        let warps_per_cta = launch.block.div_ceil(32);
        let record = |trace: &Arc<Trace>| {
            let slots = (clusters * size) as usize;
            Box::new(Recorder::new(
                trace.clone(),
                options.names.clone(),
                warps_per_cta,
                slots,
            ))
        };
        let mut ctas = vec![];
        let mut warps = vec![];
        for slot in 0..clusters * size {
            ctas.push(Cta {
                id: [0; 3],
                cluster: slot / size,
                device: slot / size / per_device,
                number: 0,
                rank: slot % size,
                rank_id: [0; 3],
                smem: Shared::new(launch.smem_bytes, options.poison),
                tmem: TensorMemory::default(),
                barriers: FxHashMap::default(),
                named: Default::default(),
                live_warps: 0,
                free_registers: 0,
                register_waiters: vec![],
                multiplied: vec![],
                product_waiters: vec![],
            });
            for index in 0..warps_per_cta {
                warps.push(Some(Box::new(Warp::new(program, CtaSlot(slot), index))));
            }
        }
        Machine {
            program,
            memory,
            options,
            watch,
            ctas,
            clusters: (0..clusters).map(|_| Cluster::default()).collect(),
            warps,
            warps_per_cta,
            ready: VecDeque::new(),
            pollers: vec![],
            passed_over: 0,
            memory_waiters: vec![],
            memory_changed: false,
            fault: None,
            hooks: H::new(
                Shape {
                    devices,
                    clusters,
                    cluster_size: size,
                    cluster: launch.cluster,
                    warps_per_cta,
                    smem_bytes: launch.smem_bytes,
                    communicates: program.communicates,
                    tensor: program.has_tensor_memory,
                },
                options.names.clone(),
            ),
            agents: Agents::default(),
            tensor: Queues::default(),
            tensor_core: TensorUnit::default(),
            rng: Rng::new(options.seed),
            clock: 0,
            idle_polls: 0,
            at: 0,
            reported: FxHashSet::default(),
            asked: 0,
            turns: 0,
            isolates: memory.is_watched() || memory.is_watching(),
            overwritten: None,
            bounded: vec![],
            recorder: options.trace.as_ref().map(record),
            undefined: RefCell::default(),
            clusters_to_come: 0,
            quiet_polls: 0,
            stirred: false,
        }
    }

    /// Runs clusters from `source` (of a device; positions along the grid of clusters, x first) until there are none.
    pub fn run(&mut self, source: &mut dyn FnMut(u32) -> Option<[u32; 3]>) -> Result<(), Error> {
        let result = self.run_clusters(source);
        if let Some(recorder) = self.recorder.take() {
            recorder.finish(self.clock);
        }
        result
    }

    fn run_clusters(&mut self, source: &mut dyn FnMut(u32) -> Option<[u32; 3]>) -> Result<(), Error> {
        let mut live = 0;
        for slot in 0..self.clusters.len() {
            if let Some(id) = source(self.device_of(slot)) {
                self.start_cluster(slot, id);
                live += 1;
            }
        }
        while live > 0 {
            self.let_pollers_in();
            let Some(id) = self.next_ready()? else {
                if !self.wake_someone()? {
                    return Err(super::diagnose::deadlock(self));
                }
                continue;
            };
            let mut w = self.warps[id as usize].take().expect("a ready warp is in its place");
            let (start, start_pc) = (self.clock, w.pc);
            if let Some(recorder) = &mut self.recorder {
                recorder.runs(id);
            }
            let stop = self.run_warp(&mut w);
            let (slot, index, loc) = (w.cta, w.index, self.program.origins[w.pc as usize].loc);
            if self.recorder.is_some() {
                self.record_turn(id, &w, (start, start_pc), &stop);
            }
            self.warps[id as usize] = Some(w);
            self.turns += 1;
            if self.turns >= TURNS || self.clock - self.asked >= QUANTUM {
                self.look_up(slot, index, loc)?;
            }
            match stop {
                Stop::Blocked => {}
                Stop::Polled => self.pollers.push(id),
                Stop::Fault => {
                    let mut error = *self.fault.take().expect("a fault has an error");
                    let origin = self.program.origins[self.warps[id as usize].as_ref().expect("put back").pc as usize];
                    error.what = format!(
                        "{} ({} in {}, warp {index})",
                        error.what,
                        origin.name(),
                        self.cta_name(slot)
                    );
                    return Err(error.at(loc));
                }
                Stop::Ended => {
                    if self.end_warp(id)? {
                        let cluster = self.ctas[slot.0 as usize].cluster as usize;
                        match source(self.device_of(cluster)) {
                            Some(id) => self.start_cluster(cluster, id),
                            None => {
                                live -= 1;
                                self.end_device(cluster)?;
                            }
                        }
                    }
                }
            }
        }
        if H::LISTENS && self.options.check == Check::Warn {
            let memory = self.memory;
            for error in self.hooks.leftovers(&|address| memory.word(address)) {
                self.watch.finding(error);
            }
        }
        Ok(())
    }

    /// A warp's turn, which began at a clock and a micro-op, is over.
    #[cold]
    fn record_turn(&mut self, id: u32, w: &Warp, (start, start_pc): (u64, u32), stop: &Stop) {
        let loc = |pc: u32| self.program.origins[pc as usize].loc;
        let how = match stop {
            Stop::Blocked => TurnEnd::Blocked(w.wait),
            Stop::Polled => TurnEnd::Yielded,
            Stop::Ended | Stop::Fault => TurnEnd::Over,
        };
        let turn = Turn {
            warp: id,
            start,
            start_loc: loc(start_pc),
            end: self.clock,
            pc: w.pc,
            loc: loc(w.pc),
            how,
        };
        if let Some(recorder) = &mut self.recorder {
            recorder.turn(turn);
        }
    }

    /// No cluster takes the place of one that has ended, perhaps its device's last.
    fn end_device(&mut self, cluster: usize) -> Result<(), Error> {
        let device = self.device_of(cluster);
        let runs = |(at, it): (usize, &Cluster)| it.live_ctas > 0 && self.device_of(at) == device;
        if self.clusters.iter().enumerate().any(runs) {
            return Ok(());
        }
        let verdict = self.hooks.device_ends(device);
        self.finding(verdict, |_, error| error).map_err(|error| *error)
    }

    /// The device of a resident cluster.
    fn device_of(&self, cluster: usize) -> u32 {
        self.ctas[cluster * self.program.cluster_size() as usize].device
    }

    /// A buffer of the device that a CTA is on, by its number in the launch.
    #[inline(always)]
    pub fn buffer_of(&self, slot: CtaSlot, buffer: u32) -> u32 {
        self.cta(slot).device * self.options.names.per_device as u32 + buffer
    }

    /// Who has yielded goes on when nobody else can; or, where others are always ready (they turn a lock's loop), after so many turns of theirs.
    fn let_pollers_in(&mut self) {
        self.passed_over = if self.pollers.is_empty() {
            0
        } else {
            self.passed_over + 1
        };
        if self.passed_over > PATIENCE {
            self.passed_over = 0;
            self.ready.extend(self.pollers.drain(..));
        }
    }

    fn next_ready(&mut self) -> Result<Option<u32>, Error> {
        if self.options.agents.is_seeded() && !self.ready.is_empty() {
            // Agents act at any time.
            if self.rng.below(4) == 0 {
                self.act_at_random()?;
            }
            let i = self.rng.below(self.ready.len() as u64) as usize;
            return Ok(self.ready.swap_remove_back(i));
        }
        Ok(self.ready.pop_front())
    }

    fn run_warp(&mut self, w: &mut Warp) -> Stop {
        let code = &self.program.code[..];
        let mut pc = w.pc as usize;
        w.wait = Wait::No;
        let start = self.clock;
        let limit = start + QUANTUM;
        loop {
            let u = &code[pc];
            self.clock += 1;
            if H::LISTENS {
                self.at = pc as u32;
            }
            // SAFETY: `pick` chose a compilation for features that this host has.
            let flow = unsafe { (u.run)(w, self, u) };
            match flow {
                Flow::Next => pc += 1,
                Flow::Jump => {
                    pc = w.pc as usize;
                    // Only loops run long.
                    if self.clock >= limit {
                        w.steps += self.clock - start;
                        if self.clock > self.options.max_steps {
                            self.fault = Some(Box::new(
                                Error::new(Fault::Timeout, "the kernel did not end")
                                    .expected(format!("at most {} instructions of warps", self.options.max_steps)),
                            ));
                            return Stop::Fault;
                        }
                        self.stirred = true;
                        w.wait = Wait::Poll;
                        return Stop::Polled;
                    }
                }
                Flow::Block | Flow::Yield | Flow::Exit | Flow::Fault => {
                    w.pc = if flow == Flow::Yield { pc as u32 + 1 } else { pc as u32 };
                    w.steps += self.clock - start;
                    return match flow {
                        Flow::Block => Stop::Blocked,
                        Flow::Yield => {
                            w.wait = Wait::Poll;
                            Stop::Polled
                        }
                        Flow::Exit => Stop::Ended,
                        Flow::Fault | Flow::Next | Flow::Jump => Stop::Fault,
                    };
                }
            }
        }
    }

    /// No warp can run. Lets agents act, waiters look again, pollers poll. False: nothing is left that could change.
    fn wake_someone(&mut self) -> Result<bool, Error> {
        let changed = std::mem::take(&mut self.memory_changed);
        self.quiet_polls = if std::mem::take(&mut self.stirred) || changed {
            0
        } else {
            self.quiet_polls + 1
        };
        if changed && !self.memory_waiters.is_empty() {
            self.ready.extend(self.memory_waiters.drain(..));
            self.idle_polls = 0;
            return Ok(true);
        }
        if self.act_for_waiters()? {
            self.idle_polls = 0;
            return Ok(true);
        }
        if !self.pollers.is_empty() {
            self.idle_polls += 1;
            // After a bounded number of failed polls agents act although nobody is blocked on them.
            if self.idle_polls.is_multiple_of(8) && self.act_for_pollers()? {
                self.idle_polls = 0;
            }
            // Those who have not begun will not, unless somebody ends.
            let starved = self.clusters_to_come > 0 && self.quiet_polls > QUIET_POLLS;
            if starved || self.idle_polls > self.options.max_polls {
                return Ok(false);
            }
            self.ready.extend(self.pollers.drain(..));
            return Ok(true);
        }
        // Others wait for something that agents do without anybody waiting for them (a store that a flag waits for).
        self.act_for_pollers()
    }

    fn start_cluster(&mut self, cluster: usize, id: [u32; 3]) {
        let launch = &self.program.launch;
        let shape = launch.cluster;
        let size = shape.iter().product::<u32>();
        let lanes_of = |index: u32| match launch.block - index * 32 {
            32.. => !0u32,
            n => (1 << n) - 1,
        };
        self.clusters[cluster] = Cluster {
            id,
            live_ctas: size,
            barrier: ClusterBarrier {
                live: size * self.warps_per_cta,
                ..Default::default()
            },
        };
        let device = self.device_of(cluster);
        self.hooks.cluster_starts(cluster as u32, device, id);
        self.clusters_to_come = self.clusters_to_come.saturating_sub(1);
        let held = super::residency::initial_registers(self.program);
        for rank in 0..size {
            let slot = cluster as u32 * size + rank;
            let cta = &mut self.ctas[slot as usize];
            let [nx, ny] = [0, 1].map(|i| launch.grid[i] / shape[i]);
            cta.number = id[0] + nx * (id[1] + ny * id[2]);
            cta.rank_id = [rank % shape[0], rank / shape[0] % shape[1], rank / shape[0] / shape[1]];
            cta.id = [0, 1, 2].map(|i| id[i] * shape[i] + cta.rank_id[i]);
            cta.smem.reset();
            cta.tmem.reset();
            cta.barriers.clear();
            cta.named = Default::default();
            cta.live_warps = self.warps_per_cta;
            cta.free_registers = 0;
            cta.register_waiters.clear();
            cta.multiplied.clear();
            cta.multiplied.resize(self.warps_per_cta as usize, Some(0));
            cta.product_waiters.clear();
            if let Some(recorder) = &mut self.recorder {
                recorder.cta_starts(CtaSlot(slot), device, cta.id);
            }
            for index in 0..self.warps_per_cta {
                let warp = slot * self.warps_per_cta + index;
                let w = self.warps[warp as usize].as_mut().expect("not running");
                w.reset(lanes_of(index), self.options.register_poison);
                w.held_registers = held;
                self.ready.push_back(warp);
            }
        }
    }

    /// A warp has ended. True: its cluster has, too.
    fn end_warp(&mut self, id: u32) -> Result<bool, Error> {
        if self.warps[id as usize]
            .as_ref()
            .is_some_and(|w| !w.tensor_stores.is_empty())
        {
            let mut w = self.warps[id as usize].take().expect("put back");
            tensor_memory::store_all(&mut w, self);
            self.warps[id as usize] = Some(w);
        }
        let w = self.warps[id as usize].as_ref().expect("put back");
        self.hooks.warp_ends(w.who());
        if let Some(pc) = w.tensor.oldest() {
            let error = Error::new(Fault::Execution, "a warp ends while its wgmma is in flight")
                .expected("wgmma.wait_group after the last wgmma")
                .remedy("wait for it (`wgmma_wait(0)`) before the kernel ends");
            return Err(*self.at_issue(Box::new(error), id, pc));
        }
        let (slot, held, ticket, index) = (w.cta, w.held_registers, w.cluster_ticket, w.index);
        let cta = &mut self.ctas[slot.0 as usize];
        cta.multiplied[index as usize] = None;
        self.ready.extend(cta.product_waiters.drain(..));
        cta.live_warps -= 1;
        cta.free_registers += held;
        self.ready.extend(cta.register_waiters.drain(..));
        let ended = cta.live_warps == 0;
        let at = cta.cluster;
        let cluster = &mut self.clusters[at as usize];
        // Its arrival is no longer counted with the living.
        if ticket == Some(cluster.barrier.generation) {
            cluster.barrier.arrived -= 1;
        }
        cluster.barrier.live -= 1;
        if cluster.barrier.advance() {
            self.ready.extend(cluster.barrier.waiters.drain(..));
            self.hooks.cluster_opens(at);
        }
        if ended {
            cluster.live_ctas -= 1;
        }
        let all = ended && cluster.live_ctas == 0;
        if ended {
            self.finish_cta(slot)?;
            if let Some(recorder) = &mut self.recorder {
                recorder.cta_ends(slot, self.clock);
            }
            let verdict = self.hooks.cta_ends(slot).map_err(|mut error| {
                error.what = format!("{} ({})", error.what, self.cta_name(slot));
                error
            });
            self.finding(verdict, |_, error| error).map_err(|error| *error)?;
        }
        Ok(all)
    }

    /// Counts a warp at its cluster's barrier when all of its lanes that are left have arrived there.
    pub fn warp_at_cluster(&mut self, w: &mut Warp) {
        if w.cluster_arrived == 0 || w.alive & !w.cluster_arrived != 0 {
            return;
        }
        let at = self.ctas[w.cta.0 as usize].cluster;
        let barrier = &mut self.clusters[at as usize].barrier;
        w.cluster_ticket = Some(barrier.generation);
        w.cluster_waits = std::mem::take(&mut w.cluster_arrived);
        barrier.arrived += 1;
        if barrier.advance() {
            self.ready.extend(barrier.waiters.drain(..));
            self.hooks.cluster_opens(at);
        }
    }

    pub fn warp_id(&self, w: &Warp) -> u32 {
        w.cta.0 * self.warps_per_cta + w.index
    }

    pub fn cta(&self, slot: CtaSlot) -> &Cta {
        &self.ctas[slot.0 as usize]
    }

    pub fn cta_mut(&mut self, slot: CtaSlot) -> &mut Cta {
        &mut self.ctas[slot.0 as usize]
    }

    pub fn cta_name(&self, slot: CtaSlot) -> String {
        let [x, y, z] = self.cta(slot).id;
        match self.options.names.per_device {
            0 => format!("CTA ({x}, {y}, {z})"),
            _ => format!("CTA ({x}, {y}, {z}) of device {}", self.cta(slot).device),
        }
    }

    /// What becomes of a warp, after a micro-op that may have failed.
    #[inline(always)]
    pub fn flow(&mut self, step: Step) -> Flow {
        step.unwrap_or_else(|error| {
            self.fault = Some(error);
            Flow::Fault
        })
    }

    /// The CTA and offset that a shared-window address of a CTA stands for.
    #[inline(always)]
    pub fn locate_shared(&self, from: CtaSlot, address: u32) -> Option<(CtaSlot, u32)> {
        shared::locate(from, self.program.cluster_size(), address)
    }

    /// Whose access it is, where clusters are held against each other.
    #[inline(always)]
    pub fn author(&self, slot: CtaSlot, loc: impl FnOnce() -> Loc) -> Option<Author> {
        (H::LISTENS && self.isolates).then(|| Author {
            cluster: self.cta(slot).number,
            loc: loc(),
        })
    }

    /// An access to what another cluster wrote, or read.
    #[cold]
    pub fn foreign(&self, verb: &str, other: Clash, place: String) -> Box<Error> {
        let launch = &self.program.launch;
        let [nx, ny] = [0, 1].map(|i| launch.grid[i] / launch.cluster[i]);
        let Author { cluster, loc } = other.by;
        let id = [cluster % nx, cluster / nx % ny, cluster / nx / ny];
        let [x, y, z] = [0, 1, 2].map(|i| id[i] * launch.cluster[i]);
        let who = match self.program.cluster_size() {
            1 => format!("CTA ({x}, {y}, {z})"),
            _ => format!("the cluster from CTA ({x}, {y}, {z}) on"),
        };
        let (did, remedy) = match other.did {
            Did::Write => (
                "wrote",
                "let the axes of the grid choose different places, make an axis sequential, or combine with atomics (`plgpu.atomic_add`)",
            ),
            Did::Read => (
                "reads",
                "store to another array than the one that is read (an output without an alias), or let each CTA read only what it stores itself",
            ),
        };
        let error = Error::new(
            Fault::Execution,
            format!("{verb} global memory that {who} {did} (at {loc}), and nothing orders the two"),
        );
        Box::new(
            error
                .expected("CTAs of one launch to access different places, or to store the same value")
                .got(place)
                .remedy(remedy),
        )
    }

    /// An instruction has read memory of which not all was written.
    #[cold]
    pub fn note_undefined(&self, at: Loc) {
        if let Some(noted) = self.options.notes_undefined()
            && self.undefined.borrow_mut().insert(at)
        {
            noted.read(at);
        }
    }

    /// The op that the warp is at, where a checker listens.
    #[inline(always)]
    pub fn here(&self) -> Loc {
        self.program.origins[self.at as usize].loc
    }

    /// The barrier at a shared-window address, or what is wrong.
    pub fn barrier_at(&mut self, from: CtaSlot, address: u32) -> Result<(CtaSlot, u32), Box<Error>> {
        let execution = |what: String| Box::new(Error::new(Fault::Execution, what));
        let Some((slot, offset)) = self.locate_shared(from, address) else {
            return Err(execution(format!(
                "mbarrier at 0x{address:x}: no such CTA in the cluster"
            )));
        };
        let cta = self.cta(slot);
        if !address.is_multiple_of(8) {
            return Err(execution(format!(
                "mbarrier at misaligned shared address 0x{address:x}"
            )));
        }
        if !cta.smem.contains(offset, 8) {
            return Err(
                execution(format!("mbarrier at 0x{address:x}, outside of shared memory"))
                    .expected_in_smem(cta.smem.size()),
            );
        }
        if cta.live_warps == 0 {
            return Err(execution(format!(
                "mbarrier at 0x{address:x} of {}, which has ended",
                self.cta_name(slot)
            )));
        }
        Ok((slot, offset))
    }

    /// Arrivals and announced bytes on a barrier; wakes its waiters when the phase completes, of which the checker has a verdict.
    pub fn arrive(&mut self, slot: CtaSlot, offset: u32, count: u32, expect: i64) -> Result<Verdict, Box<Error>> {
        let (warps, bytes) = (u64::from(count), expect);
        self.update_barrier(slot, offset, (warps, bytes, false), |b| b.arrive(count, expect))
    }

    pub fn drop_expected(&mut self, slot: CtaSlot, offset: u32, count: u32) -> Result<Verdict, Box<Error>> {
        self.update_barrier(slot, offset, (0, 0, false), |b| b.drop_expected(count).map(|()| false))
    }

    pub fn complete_tx(&mut self, slot: CtaSlot, offset: u32, bytes: u64) -> Result<Verdict, Box<Error>> {
        self.update_barrier(slot, offset, (0, bytes as i64, true), |b| b.complete_tx(bytes))
    }

    /// `change`, for who records: arrivals, bytes, and whether they land rather than being announced.
    fn update_barrier(
        &mut self,
        slot: CtaSlot,
        offset: u32,
        change: (u64, i64, bool),
        f: impl FnOnce(&mut Mbarrier) -> Result<bool, Misuse>,
    ) -> Result<Verdict, Box<Error>> {
        let name = |m: &Self| format!("{} of {}", m.options.names.mbarrier(offset), m.cta_name(slot));
        let Some(barrier) = self.ctas[slot.0 as usize].barriers.get_mut(&offset) else {
            return Err(Box::new(Error::new(
                Fault::Execution,
                format!("{}: used before init", name(self)),
            )));
        };
        let outcome = f(barrier);
        if let (Some(recorder), Ok(opens)) = (&mut self.recorder, &outcome) {
            let loc = (H::LISTENS && !change.2).then(|| self.program.origins[self.at as usize].loc);
            let opens = opens.then_some(barrier.expected);
            recorder.barrier_changes(slot, offset, change, opens, self.clock, loc);
        }
        match outcome {
            Ok(true) => {
                self.ready.extend(barrier.waiters.drain(..));
                self.idle_polls = 0;
                Ok(self.hooks.phase_completes(slot, offset))
            }
            Ok(false) => Ok(Ok(())),
            Err(misuse) => {
                let error = Error::new(Fault::Execution, name(self));
                let unit = self.options.names.per_arrival(offset);
                Err(Box::new(match misuse {
                    Misuse::OverArrival { pending, count } => error
                        .expected(match (pending, pending / unit) {
                            (0, _) => "no more arrivals in this phase, which has all of its own".to_owned(),
                            (_, 0) => "at most the arrivals of the warps that are still missing in this phase".to_owned(),
                            (_, left) => format!("at most {left} more arrivals in this phase"),
                        })
                        .got(count.div_ceil(unit).to_string())
                        .remedy("let `num_arrivals` be the number of arrivals of a phase (`barrier_arrive` of each warpgroup that calls it, copies), or wait for the phase (`barrier_wait`) before the next one's arrivals"),
                    Misuse::TxRange { tx } => error
                        .expected("a transaction count within ±(2^20 - 1)")
                        .got(tx.to_string()),
                }))
            }
        }
    }

    /// Reports to the checker.
    #[inline(always)]
    pub fn note(&mut self, w: &Warp, event: Sync) -> Verdict {
        let verdict = self.hooks.sync(w.who(), event);
        self.judge(w, verdict)
    }

    /// What becomes of a verdict on what the warp does now: an error, or something to tell.
    #[inline(always)]
    pub fn judge(&mut self, w: &Warp, verdict: Verdict) -> Verdict {
        match verdict {
            Ok(()) => Ok(()),
            Err(_) => self.finding(verdict, |m, mut error| {
                let origin = m.program.origins[m.at as usize];
                error.what = format!(
                    "{} ({} in {}, warp {})",
                    error.what,
                    origin.name(),
                    m.cta_name(w.cta),
                    w.index
                );
                Box::new(error.at(origin.loc))
            }),
        }
    }

    /// The same for an asynchronous operation that the warp issued at `pc`.
    pub fn judge_at(&mut self, w: &Warp, pc: u32, verdict: Verdict) -> Verdict {
        self.judge_of(self.warp_id(w), pc, verdict)
    }

    /// The same, where the warp may have ended.
    pub fn judge_of(&mut self, warp: u32, pc: u32, verdict: Verdict) -> Verdict {
        if verdict.is_err() {
            self.at = pc;
        }
        self.finding(verdict, |m, error| m.at_issue(error, warp, pc))
    }

    /// Under [`Check::Error`] the verdict as it is, for whoever names the instruction; under [`Check::Warn`] tells it, once
    /// per instruction.
    fn finding(&mut self, verdict: Verdict, named: impl FnOnce(&Self, Box<Error>) -> Box<Error>) -> Verdict {
        match (verdict, self.options.check) {
            (Err(error), Check::Warn) => {
                if self.reported.insert(self.at) {
                    self.watch.finding(*named(self, error));
                }
                Ok(())
            }
            (Err(_), Check::Off) => Ok(()),
            (verdict, _) => verdict,
        }
    }

    /// Asks whether to go on, and whether a wait has lasted too long.
    #[cold]
    fn look_up(&mut self, cta: CtaSlot, warp: u32, loc: Loc) -> Result<(), Error> {
        let position = Position {
            loc,
            cta: self.cta(cta).id,
            warp,
            steps: self.clock - self.asked,
        };
        (self.asked, self.turns) = (self.clock, 0);
        self.watch.poll(position).map_err(|error| error.at(loc))?;
        if self.bounded.is_empty() {
            return Ok(());
        }
        let waits = |warps: &[Option<Box<Warp>>], id: u32| {
            warps[id as usize]
                .as_ref()
                .is_some_and(|w| matches!(w.wait, Wait::Mbarrier { .. } | Wait::Global { .. } | Wait::Tag { .. }))
        };
        self.bounded.retain(|(id, _, _)| waits(&self.warps, *id));
        match self.bounded.iter().find(|(_, _, limit)| self.clock > *limit) {
            Some((id, _, _)) => Err(super::diagnose::overdue(self, *id)),
            None => Ok(()),
        }
    }

    /// The warp's wait number `wait` may last `nanos`, from its first look on. An instruction of every warp counts as one: they run side by side.
    pub fn bound_wait(&mut self, warp: u32, wait: u32, nanos: u64) {
        if self.bounded.iter().any(|(id, at, _)| (*id, *at) == (warp, wait)) {
            return;
        }
        let limit = self.clock.saturating_add(nanos.saturating_mul(self.warps.len() as u64));
        self.bounded.push((warp, wait, limit));
    }

    /// The warp's wait at the micro-op, which may be bounded, is over.
    pub fn wait_is_over(&mut self, w: &Warp, limit: u32) {
        if limit != 0 {
            let warp = self.warp_id(w);
            self.bounded.retain(|(id, _, _)| *id != warp);
        }
    }
}

trait ExpectedInSmem {
    fn expected_in_smem(self, bytes: u32) -> Self;
}
impl ExpectedInSmem for Box<Error> {
    fn expected_in_smem(mut self, bytes: u32) -> Box<Error> {
        self.expected = Some(format!("an address in 0x{SMEM_BASE:x}..0x{:x}", SMEM_BASE + bytes));
        self.remedy = Some("check the index of the barrier: indices at run time are not clamped".into());
        self
    }
}
