//! The checker across clusters, in kernels that communicate through global memory: semaphores, flags, atomics.
//!
//! * What a cluster's warps release on a word of global memory, by an atomic, a store or a fence before one, whoever acquires there
//!   learns of ([`Words`]), in scopes that include both; barriers hand it on with the rest of a clock.
//! * Accesses of different clusters to the same bytes, of which one writes, are ordered that way, or race ([`Lines`]); stores of what is there
//!   already do not, nor do atomics among themselves.
//! * A bulk store is over when its warp has waited for it in full, a bulk load's reading when somebody has waited for its barrier: at
//!   whatever time the schedule performs them, a signal before that tells nobody of them.
//!
//! * What is done to the memory of another device is known there when its kernel ends.
//!
//! One thread runs all clusters of such a kernel, so all of this is one state. Clusters that cannot tell each other are `grid.rs`'s.
use super::byte_history::Mask;
use super::clock::Clock;
use super::far_history::{Kind, Lines, NO_STORE, PENDING, Touched};
use super::global;
use super::hooks::{Access, Mode, Shape, WordWait};
use super::known::Known;
use super::options::Names;
use super::shared::CtaSlot;
use super::words::{Agent, Teller, Word, Words};
use crate::error::{Error, Fault, Loc};
use crate::ptx::modifier::{AtomSem, FenceSem, LoadSem, Scope, StoreSem};
use rustc_hash::FxHashMap;
use std::sync::Arc;

/// A cluster that has begun.
struct Member {
    device: u32,
    /// Its position along the grid of clusters.
    id: [u32; 3],
}

/// A warp, to this checker.
#[derive(Clone, Copy)]
pub struct Who {
    pub agent: Agent,
    pub device: u32,
    pub cta: CtaSlot,
    /// Its number in the machine.
    pub warp: usize,
}

/// What is known across clusters.
pub struct Communication {
    shape: Shape,
    names: Arc<Names>,
    members: Vec<Member>,
    /// The number of the cluster at each place in the machine.
    current: Vec<u32>,
    /// Per warp: what it knew at its last fence of each scope from the cluster's on.
    fences: Vec<[Known; 3]>,
    words: Words,
    lines: Lines,
    /// Lines of the bulk stores that have not been waited for, by warp and the store's number.
    stores: FxHashMap<(usize, u64), Vec<u64>>,
    /// Lines that the bulk load that is performed reads, its number, and the components and epochs that say it is over.
    reading: Vec<u64>,
    loads: u64,
    landed: Vec<(usize, u32)>,
    /// Per device: what its warps that have ended knew, and whether its kernel has ended.
    ended: Vec<(Known, bool)>,
}

fn level(scope: Scope) -> usize {
    match scope {
        Scope::Cta | Scope::Cluster => 0,
        Scope::Gpu => 1,
        Scope::Sys => 2,
    }
}

fn narrower(a: Scope, b: Scope) -> Scope {
    if (a as u8) < b as u8 { a } else { b }
}

/// Whether a clock of a cluster has seen an epoch of any.
fn has_seen(clock: &Clock, cluster: u32, agent: Agent, epoch: u32) -> bool {
    match agent.cluster == cluster {
        true => clock.seen()[agent.component] >= epoch,
        false => clock.far().known.has_seen(agent.cluster, agent.component, epoch),
    }
}

const GIVEN_BACK: &str = "at the end its memory is XLA's again";
const BEFORE_THE_END: &str =
    "signal a semaphore of the owner when you are done with its memory, and let the owner wait for it before it ends";

fn verb(mode: Mode) -> &'static str {
    match mode {
        Mode::Read => "a bulk load of",
        Mode::Write => "a bulk store to",
        Mode::Reduce => "a bulk reduction into",
        Mode::Load(_) => "a load of",
        Mode::Store(_) => "a store to",
        Mode::Atomic(..) => "an atomic on",
    }
}

fn execution(what: String) -> Error {
    Error::new(Fault::Execution, what)
}

impl Communication {
    pub fn new(shape: Shape, names: Arc<Names>) -> Communication {
        let warps = shape.clusters * shape.cluster_size * shape.warps_per_cta;
        Communication {
            shape,
            names,
            members: vec![],
            current: vec![0; shape.clusters as usize],
            fences: (0..warps).map(|_| Default::default()).collect(),
            words: Words::default(),
            lines: Lines::default(),
            stores: FxHashMap::default(),
            reading: vec![],
            loads: 0,
            landed: vec![],
            ended: vec![(Known::default(), false); shape.devices as usize],
        }
    }

    /// A cluster begins at a place in the machine.
    pub fn cluster_starts(&mut self, cluster: usize, device: u32, id: [u32; 3]) {
        self.current[cluster] = self.members.len() as u32;
        self.members.push(Member { device, id });
        let warps = (self.shape.cluster_size * self.shape.warps_per_cta) as usize;
        for fences in &mut self.fences[cluster * warps..(cluster + 1) * warps] {
            *fences = Default::default();
        }
    }

    /// The warp whose component in its cluster's clocks this is.
    pub fn who(&self, cta: CtaSlot, component: usize, warp: usize) -> Who {
        let cluster = self.current[(cta.0 / self.shape.cluster_size) as usize];
        Who {
            agent: Agent { cluster, component },
            device: self.members[cluster as usize].device,
            cta,
            warp,
        }
    }

    /// `warp 1 of CTA (2, 0, 0)`, `a bulk load into CTA (2, 0, 0)`.
    fn name(&self, agent: Agent) -> String {
        let (per, warps) = (
            self.shape.warps_per_cta as usize,
            (self.shape.cluster_size * self.shape.warps_per_cta) as usize,
        );
        let (rank, what) = match agent.component.checked_sub(warps) {
            None => (agent.component / per, format!("warp {} of", agent.component % per)),
            Some(rank) => (rank, "a bulk load into".into()),
        };
        let (member, [nx, ny, _]) = (&self.members[agent.cluster as usize], self.shape.cluster);
        let rank = rank as u32;
        let place = [rank % nx, rank / nx % ny, rank / nx / ny];
        let [x, y, z] = std::array::from_fn(|i| member.id[i] * self.shape.cluster[i] + place[i]);
        let device = match self.shape.devices {
            1 => String::new(),
            _ => format!(" of device {}", member.device),
        };
        format!("{what} CTA ({x}, {y}, {z}){device}")
    }

    /// An access to bytes of lines by a warp that has seen `view`, in an epoch of its own.
    pub fn access(
        &mut self,
        who: Who,
        view: &Clock,
        epoch: u32,
        lines: impl Iterator<Item = (u64, Mask)>,
        access: &Access<'_>,
    ) -> Result<(), Box<Error>> {
        let kind = match access.mode {
            Mode::Load(LoadSem::Weak) | Mode::Read => Kind::Read,
            Mode::Load(_) => {
                lines.for_each(|(line, mask)| self.lines.polled(line, mask, who.agent.cluster));
                return Ok(());
            }
            Mode::Write => Kind::Write,
            Mode::Store(_) => access
                .mode
                .signals()
                .map_or(Kind::Write, |(scope, _)| Kind::Flag(scope)),
            Mode::Atomic(_, scope) => Kind::Atomic(scope),
            Mode::Reduce => Kind::Atomic(Scope::Sys),
        };
        let (epoch, store) = match access.mode {
            Mode::Read => (PENDING, self.loads),
            Mode::Write | Mode::Reduce => (PENDING, access.number),
            Mode::Store(_) | Mode::Atomic(AtomSem::Relaxed | AtomSem::Acquire, _) if kind != Kind::Write => {
                // Whoever learns of it by what a fence before it has told knows of it.
                let fence = self.fences[who.warp]
                    .iter()
                    .rev()
                    .find_map(|known| known.of(who.agent.cluster));
                (fence.map_or(epoch, |epochs| epochs[who.agent.component]), NO_STORE)
            }
            Mode::Load(_) | Mode::Store(_) | Mode::Atomic(..) => (epoch, NO_STORE),
        };
        let seen = |agent, epoch| has_seen(view, who.agent.cluster, agent, epoch);
        let mut race = None;
        let mut late = None;
        for (line, mask) in lines {
            let owner = self.owner(line);
            if owner != who.device && self.ended[owner as usize].1 {
                late.get_or_insert((line, mask, owner));
            }
            match access.mode {
                Mode::Read => self.reading.push(line),
                Mode::Write | Mode::Reduce => self.stores.entry((who.warp, store)).or_default().push(line),
                Mode::Load(_) | Mode::Store(_) | Mode::Atomic(..) => {}
            }
            if kind == Kind::Write {
                self.words.overwrite(line, mask);
            }
            let mine = Touched {
                by: who.agent,
                device: who.device,
                kind,
                epoch,
                store,
                is_bulk: matches!(access.mode, Mode::Read | Mode::Write | Mode::Reduce),
                loc: access.loc,
                mask,
                also: None,
                polled_by: vec![],
            };
            let found = self.lines.access(line, mine, &seen, || (access.changes)(who.cta, line));
            if race.is_none() {
                race = found.map(|(hit, other)| (line, hit, other));
            }
        }
        match race {
            None => match late {
                None => Ok(()),
                Some((line, mask, owner)) => Err(self.too_late(access.mode, line, mask, owner)),
            },
            Some((line, hit, other)) => Err(self.race(access.mode, line, hit, &other)),
        }
    }

    /// An access, and an earlier one of another cluster.
    #[cold]
    fn race(&self, mode: Mode, line: u64, hit: Mask, other: &Touched) -> Box<Error> {
        let verb = verb(mode);
        let (who, loc) = (self.name(other.by), other.loc);
        let order = "wait for the signal, and for a count that tells of it, before the other (`pl.semaphore_signal`, `pl.semaphore_wait`)";
        let (did, expected, remedy) = match (other.kind, other.is_bulk) {
            (Kind::Read, true) => (
                format!("{who} reads"),
                format!(
                    "a wait for the barrier of that load (at {loc}), then a signal, and a wait for the signal before this"
                ),
                format!("wait for the copy (`plgpu.barrier_wait`) before its source is signalled to be free; {order}"),
            ),
            (Kind::Read, false) => (
                format!("{who} read"),
                format!("a signal after that load (at {loc}), and a wait for it before this"),
                format!("signal after the load; {order}"),
            ),
            (Kind::Write | Kind::Flag(_) | Kind::Atomic(_), true) => (
                match other.epoch {
                    PENDING => format!("a bulk store of {who} writes, which has not waited for it"),
                    _ => format!("a bulk store of {who} wrote"),
                },
                format!(
                    "a wait for the whole of that store (at {loc}), then a signal, and a wait for the signal before this"
                ),
                format!(
                    "wait for the copy, not only for its reads (`plgpu.wait_smem_to_gmem(0)`), and then signal; {order}"
                ),
            ),
            (Kind::Write | Kind::Flag(_) | Kind::Atomic(_), false) => (
                format!("{who} wrote"),
                format!("a signal after that store (at {loc}), and a wait for it before this"),
                format!("signal after the store; {order}"),
            ),
        };
        Box::new(
            execution(format!("{verb} global memory that {did}, and nothing orders the two"))
                .expected(expected)
                .got(self.place(line, hit))
                .remedy(remedy),
        )
    }

    /// `4 bytes from byte 8 of buffer 1 on`.
    fn place(&self, line: u64, mask: Mask) -> String {
        let address = 128 * line + u64::from(mask.trailing_zeros());
        let bytes = 128 - mask.leading_zeros() - mask.trailing_zeros();
        let (buffer, offset) = global::split(address);
        format!("{bytes} bytes from byte {offset} of {} on", self.names.buffer(buffer))
    }

    /// The device whose memory a line is.
    fn owner(&self, line: u64) -> u32 {
        match self.names.per_device {
            0 => 0,
            per => ((global::split(line << 7).0 / per) as u32).min(self.shape.devices - 1),
        }
    }

    /// What is known where a warp ends.
    pub fn warp_ends(&mut self, who: Who, clock: &Clock) {
        if self.shape.devices > 1 {
            let known = clock.known(who.agent.cluster);
            self.ended[who.device as usize].0.join(&known);
        }
    }

    /// The last cluster of a device has ended, and its memory is XLA's again. What others did to it must be known there.
    pub fn device_ends(&mut self, device: u32) -> Result<(), Box<Error>> {
        self.ended[device as usize].1 = true;
        let known = &self.ended[device as usize].0;
        let is_seen = |touched: &Touched| {
            let seen = |agent: Agent, epoch| known.has_seen(agent.cluster, agent.component, epoch);
            let polls = |cluster: u32| self.members[cluster as usize].device == device;
            touched.device == device || touched.is_seen(&polls, &seen)
        };
        let owned = self.lines.in_lines(|line| self.owner(line) == device);
        let Some((line, other)) = owned.into_iter().find(|(_, touched)| !is_seen(touched)) else {
            return Ok(());
        };
        let what = match other.kind {
            Kind::Read => "a load of its memory",
            Kind::Write | Kind::Flag(_) => "a store to its memory",
            Kind::Atomic(_) => "an atomic on its memory (a signal, perhaps)",
        };
        Err(Box::new(
            execution(format!(
                "the kernel ends on device {device}, and nothing orders that after {what} by {}",
                self.name(other.by)
            ))
            .expected(format!(
                "a signal to device {device} after that access (at {}), and a wait for it there: {GIVEN_BACK}",
                other.loc
            ))
            .got(self.place(line, other.mask))
            .remedy(BEFORE_THE_END)
            .at(other.loc),
        ))
    }

    /// An access to memory of a device whose kernel has ended.
    #[cold]
    fn too_late(&self, mode: Mode, line: u64, mask: Mask, owner: u32) -> Box<Error> {
        Box::new(
            execution(format!(
                "{} memory of device {owner}, whose kernel has ended",
                verb(mode)
            ))
            .expected(format!(
                "device {owner} to wait for a signal that comes after this: {GIVEN_BACK}"
            ))
            .got(self.place(line, mask))
            .remedy(BEFORE_THE_END),
        )
    }

    /// Who last signalled a word, in words.
    pub fn last_signal(&self, address: u64) -> String {
        match self.words.get(address).and_then(|word| word.signal) {
            Some((agent, loc)) => format!("last signalled by {} (at {loc})", self.name(agent)),
            None => "nobody has signalled it".into(),
        }
    }

    /// Semaphores that are not zero at the end, although every wait for them took what it waited for.
    pub fn leftovers(&self, word: &dyn Fn(u64) -> u32) -> Vec<Error> {
        let left = |(address, it): (u64, &Word)| {
            let value = word(address);
            let ((signaller, signalled), (waiter, waited)) = (it.signal?, it.wait?);
            if value == 0 || !it.taken || it.looked_at {
                return None;
            }
            let (buffer, offset) = global::split(address);
            let error = execution(format!(
                "a semaphore is {value} at the end of the kernel: its waits took less than there were signals"
            ));
            Some(
                error
                    .expected(format!(
                        "as many signals as waits; the last signal was by {} (at {signalled}), the last wait by {} (at {waited})",
                        self.name(signaller),
                        self.name(waiter)
                    ))
                    .got(format!("the word at byte {offset} of {}", self.names.buffer(buffer)))
                    .remedy("leave out the signals that nobody waits for, or wait for them before the kernel ends")
                    .at(signalled),
            )
        };
        self.words.all().into_iter().filter_map(left).collect()
    }

    /// A warp polls, signals or does both at a place, after the access has been noted. True: others may learn what it did until now.
    pub fn at_word(&mut self, who: Who, clock: &mut Clock, place: (u64, u64), mode: Mode, loc: Loc) -> bool {
        match mode {
            Mode::Load(_) => self.words.at(place.0).looked_at = true,
            Mode::Store(sem) if sem != StoreSem::Weak => self.words.overwrite_at(place.0, place.1),
            Mode::Store(_) | Mode::Atomic(..) | Mode::Read | Mode::Write | Mode::Reduce => {}
        }
        let mut told = false;
        if let Some((scope, releases)) = mode.signals() {
            let (own, polled) = (clock.known(who.agent.cluster), clock.far().polled[1].clone());
            let fences = self.fences[who.warp].clone();
            let fences = fences.iter().zip([Scope::Cluster, Scope::Gpu, Scope::Sys]);
            let fences = fences.filter(|(known, _)| !known.is_empty() && !releases);
            let mut tell: Vec<(&Known, Scope)> = fences.map(|(known, of)| (known, narrower(scope, of))).collect();
            if releases {
                tell.push((&own, scope));
            }
            // Of several the widest is the signal.
            for (i, (known, scope)) in tell.iter().enumerate() {
                let by = Teller {
                    agent: who.agent,
                    device: who.device,
                    loc,
                    polled: &polled,
                    counts: i + 1 == tell.len(),
                };
                self.words.tell(place, *scope, by, known);
            }
            told = !tell.is_empty();
        }
        if let Some((scope, acquires)) = mode.looks() {
            self.hear(who, clock, place, scope, acquires);
        }
        told
    }

    fn hear(&self, who: Who, clock: &mut Clock, place: (u64, u64), scope: Scope, acquires: bool) {
        let (cluster, device) = (who.agent.cluster, who.device);
        if acquires {
            clock.learn(&self.words.heard(place, scope, cluster, device), cluster);
            return;
        }
        for (polled, of) in clock.far_mut().polled.iter_mut().zip([Scope::Gpu, Scope::Sys]) {
            polled.join(&self.words.heard(place, narrower(scope, of), cluster, device));
        }
    }

    /// A warp has waited for a word; `takes`: and subtracted what it waited for.
    pub fn waited(&mut self, who: Who, clock: &mut Clock, address: u64, wait: WordWait, loc: Loc) {
        let WordWait {
            scope,
            takes,
            held,
            value,
        } = wait;
        let cluster = who.agent.cluster;
        let seen = |agent, epoch| has_seen(clock, cluster, agent, epoch);
        let at = (cluster, who.device);
        let heard = self.words.heard_by_wait(address, (held, value), scope, at, &seen);
        clock.learn(&heard, cluster);
        if takes {
            let epoch = clock.seen()[who.agent.component];
            self.words.take(address, (held, value), who.agent, epoch);
        }
        let word = self.words.at(address);
        word.taken |= takes;
        word.looked_at |= !takes;
        word.wait = Some((who.agent, loc));
    }

    /// An atomic adds to a word that holds `old`; `amount`: `None` of one that does something else.
    pub fn added(&mut self, address: u64, old: u32, amount: Option<u32>) {
        self.words.added(address, old, amount);
    }

    /// A fence: what polls have seen is known, and what is known now later signals tell.
    pub fn fence(&mut self, who: Who, clock: &mut Clock, sem: FenceSem, scope: Scope) {
        let cluster = who.agent.cluster;
        if sem != FenceSem::Release {
            match level(scope) {
                0 => {
                    let polled = clock.far().polled[0].clone();
                    clock.learn_own(&polled, cluster);
                }
                level => {
                    let polled = std::mem::take(&mut clock.far_mut().polled[level - 1]);
                    clock.learn(&polled, cluster);
                }
            }
        }
        if sem != FenceSem::Acquire {
            self.fences[who.warp][level(scope)] = clock.known(cluster);
        }
    }

    /// A warp has waited in full for one of its bulk stores, in an epoch of its own.
    pub fn store_waited(&mut self, who: Who, number: u64, epoch: u32) {
        for line in self.stores.remove(&(who.warp, number)).unwrap_or_default() {
            self.lines.settle(line, who.agent, number, epoch);
        }
    }

    /// The bulk load that is performed has landed in a CTA, as its component's landing `number`.
    pub fn load_landed(&mut self, component: usize, number: u32) {
        if !self.reading.is_empty() {
            self.landed.push((component, number));
        }
    }

    /// It has landed everywhere: any of its barriers tells that it has read.
    pub fn load_done(&mut self, who: Who) {
        let landed = std::mem::take(&mut self.landed);
        for line in std::mem::take(&mut self.reading) {
            self.lines.land(line, who.agent, self.loads, &landed);
        }
        self.loads += 1;
    }
}
