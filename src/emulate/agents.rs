//! The asynchronous agents: bulk copies, and when they act.
use super::bulk::{BulkStore, Destination};
use super::check::View;
use super::check::{Access, Changes, Hooks, Landing, Mode, Range, Verdict, changes_all};
use super::grid::{Clash, Did};
use super::machine::Machine;
use super::options::AgentOrder;
use super::shared::{CtaSlot, SMEM_BASE};
use super::tensor_maps::TensorMap;
use super::tma::{self, Placed};
use super::trace::{CopyId, What};
use super::uop::{Body, Flow, Step, Uop};
use super::warp::{Warp, lanes};
use crate::error::{Error, Fault};
use crate::ptx::launch::TensorMapSwizzle;
use crate::ptx::modifier::{AtomOp, AtomType, TensorRed};
use std::collections::VecDeque;

/// Where a bulk load takes its bytes.
#[derive(Clone, Debug)]
pub enum Source {
    Linear {
        address: u64,
    },
    Shared {
        slot: CtaSlot,
        offset: u32,
    },
    Tensor {
        map: TensorMap,
        coords: [i32; 5],
    },
    /// `st.async`: the bytes themselves. `red.async`: what the element there is combined with.
    Value {
        data: [u8; 16],
        reduce: Option<(AtomOp, AtomType)>,
    },
}

/// One destination of a bulk load.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Target {
    pub slot: CtaSlot,
    pub offset: u32,
    /// Offset of the barrier in the same CTA.
    pub barrier: u32,
}

/// A bulk load in flight.
#[derive(Clone, Debug)]
pub struct BulkLoad {
    pub warp: u32,
    /// The instruction.
    pub pc: u32,
    pub source: Source,
    pub bytes: u32,
    pub targets: Vec<Target>,
    pub view: View,
    /// For who records; 0 where nobody does.
    pub number: u64,
}

/// Bulk loads in flight, oldest first. Stores in flight are in their warps.
#[derive(Default)]
pub struct Agents {
    pub loads: VecDeque<BulkLoad>,
    buffer: Vec<u8>,
}

fn execution(what: impl Into<String>) -> Box<Error> {
    Box::new(Error::new(Fault::Execution, what))
}

impl<H: Hooks> Machine<'_, H> {
    /// For who records: a copy of the warp is issued.
    #[cold]
    fn record_copy(&mut self, w: &Warp, id: CopyId, pc: u32, kind: &'static str, bytes: u64, from: String, to: String) {
        let (warp, now, loc) = (self.warp_id(w), self.clock, self.program.origins[pc as usize].loc);
        let what = What::Copies {
            kind,
            bytes,
            from,
            to,
            read: None,
        };
        if let Some(recorder) = &mut self.recorder {
            recorder.copy_issued(id, warp, now, loc, what);
        }
    }

    #[cold]
    fn record_load(&mut self, w: &Warp, load: &mut BulkLoad) {
        if let Some(recorder) = &mut self.recorder {
            load.number = recorder.load_number();
        }
        let names = &self.options.names;
        let (kind, from) = match &load.source {
            Source::Linear { address } => ("bulk load", self.memory.describe(*address)),
            Source::Shared { slot, offset } => {
                let whose = self.cta_name(*slot);
                (
                    "bulk copy within the cluster",
                    format!("shared memory of {whose} {}", names.place(*offset)),
                )
            }
            Source::Tensor { map, coords } => ("bulk load", self.describe_box(map, coords)),
            Source::Value { reduce: None, .. } => ("st.async", "registers".to_owned()),
            Source::Value { reduce: Some(_), .. } => ("red.async", "registers".to_owned()),
        };
        let at = load.targets.first().map_or(0, |target| target.offset);
        let mut to = format!("shared memory {}", names.place(at));
        match &load.targets[..] {
            [one] if one.slot == w.cta => {}
            [one] => to += &format!(" of {}", self.cta_name(one.slot)),
            several => to += &format!(" of {} CTAs", several.len()),
        }
        let bytes = u64::from(load.bytes) * load.targets.len() as u64;
        self.record_copy(w, CopyId::Load(load.number), load.pc, kind, bytes, from, to);
    }

    #[cold]
    fn record_store(&mut self, w: &Warp, store: &BulkStore) {
        let (kind, to) = match &store.destination {
            Destination::Linear { address, reduce } => (reduce.is_some(), self.memory.describe(*address)),
            Destination::Tensor { map, coords, reduce } => (reduce.is_some(), self.describe_box(map, coords)),
        };
        let kind = if kind { "bulk reduction" } else { "bulk store" };
        let from = format!("shared memory {}", self.options.names.place(store.source));
        let id = CopyId::Store(self.warp_id(w), store.number);
        self.record_copy(w, id, store.pc, kind, store.bytes.into(), from, to);
    }

    /// A box of a tensor, in words: its coordinates as arrays are indexed, major dimension first.
    fn describe_box(&self, map: &TensorMap, coords: &[i32; 5]) -> String {
        let placed = self.placed(map);
        let starts: Vec<i32> = coords[..placed.spec.dims.len()].iter().rev().copied().collect();
        let sizes: Vec<u32> = placed.spec.box_dims.iter().rev().copied().collect();
        format!("{sizes:?} at {starts:?} from {}", self.memory.describe(placed.base))
    }

    /// For who records: a copy has read its source (`done` false), or is over.
    #[inline(always)]
    fn record_copied(&mut self, id: CopyId, done: bool) {
        if let Some(recorder) = &mut self.recorder {
            match done {
                true => recorder.copy_done(id, self.clock, false),
                false => recorder.copy_read(id, self.clock),
            }
        }
    }

    /// Issues a load.
    fn issue_load(&mut self, w: &mut Warp, mut load: BulkLoad) -> Result<(), Box<Error>> {
        for target in &load.targets {
            let landing = self.landing(&load, *target);
            let verdict = self.hooks.load_issued(w.who(), &load.view, landing);
            self.judge_at(w, load.pc, verdict)?;
        }
        if self.recorder.is_some() {
            self.record_load(w, &mut load);
        }
        let now = match self.options.agents {
            AgentOrder::Earliest => true,
            AgentOrder::Latest => false,
            AgentOrder::Seeded(_) => self.rng.below(4) == 0,
        };
        if now {
            self.perform_load(w, load)
        } else {
            self.agents.loads.push_back(load);
            Ok(())
        }
    }

    fn landing(&self, load: &BulkLoad, target: Target) -> Landing {
        let swizzle = match &load.source {
            Source::Tensor { map, .. } => self.placed(map).spec.swizzle,
            Source::Linear { .. } | Source::Shared { .. } | Source::Value { .. } => TensorMapSwizzle::None,
        };
        let (offset, bytes) = tma::footprint(target.offset, load.bytes, swizzle);
        Landing {
            slot: target.slot,
            offset,
            bytes,
            barrier: target.barrier,
            reduces: matches!(load.source, Source::Value { reduce: Some(_), .. }),
            loc: self.program.origins[load.pc as usize].loc,
        }
    }

    /// A load takes effect: reads its source, writes its destinations, completes on their barriers.
    fn perform_load(&mut self, w: &Warp, load: BulkLoad) -> Result<(), Box<Error>> {
        let mut data = std::mem::take(&mut self.agents.buffer);
        let result = self.perform_load_with(w, &load, &mut data);
        self.agents.buffer = data;
        result.map_err(|e| self.at_issue(e, load.warp, load.pc))
    }

    fn perform_load_with(&mut self, w: &Warp, load: &BulkLoad, data: &mut Vec<u8>) -> Result<(), Box<Error>> {
        let check = self.options.denies_undefined();
        let mut swizzle = TensorMapSwizzle::None;
        match &load.source {
            Source::Linear { address } => {
                data.clear();
                data.resize(load.bytes as usize, 0);
                self.check_foreign(w, load.pc, *address, load.bytes)?;
                let bytes = load.bytes;
                self.check_global(w, load.pc, &load.view, *address, bytes, (Mode::Read, 0), &changes_all)?;
                tma::read_global(self.memory, *address, data, check)?;
            }
            Source::Shared { slot, offset } => {
                self.check_defined(load.pc, *slot, *offset, load.bytes)?;
                self.check_read(w, load.pc, &load.view, *slot, *offset, load.bytes)?;
                data.clear();
                data.extend_from_slice(self.cta(*slot).smem.get(*offset, load.bytes));
            }
            Source::Tensor { map, coords } => {
                let map = self.placed(map);
                swizzle = map.spec.swizzle;
                self.check_box(w, load.pc, &load.view, map, coords, (Mode::Read, 0), None)?;
                tma::fetch(map, coords, self.memory, check, data)?;
            }
            Source::Value { data: value, reduce } => {
                data.clear();
                data.extend_from_slice(&value[..load.bytes as usize]);
                if let (Some((op, ty)), [target]) = (reduce, &load.targets[..]) {
                    self.check_defined(load.pc, target.slot, target.offset, load.bytes).map_err(|mut error| {
                        error.what = "a reduction (red.async) of shared memory that nothing wrote".into();
                        error.remedy = Some("store what the reductions begin with, and synchronise the cluster before they are issued".into());
                        error
                    })?;
                    let smem = &self.cta(target.slot).smem;
                    tma::reduce_element(smem.get(target.offset, load.bytes), (*op, *ty), data);
                }
            }
        }
        let read = !matches!(load.source, Source::Shared { .. } | Source::Value { .. });
        for target in &load.targets {
            if self.cta(target.slot).live_warps == 0
                && self.clusters[self.cta(target.slot).cluster as usize].live_ctas == 0
            {
                continue;
            }
            let smem = &mut self.cta_mut(target.slot).smem;
            tma::scatter(smem, target.offset, swizzle, data);
            let landing = self.landing(load, *target);
            self.hooks.load_landed(landing);
            let verdict = self.complete_tx(target.slot, target.barrier, u64::from(load.bytes))?;
            self.judge_at(w, load.pc, verdict)?;
        }
        if read {
            self.hooks.load_done(w.who());
        }
        self.record_copied(CopyId::Load(load.number), true);
        Ok(())
    }

    fn check_read(&mut self, w: &Warp, pc: u32, view: &View, slot: CtaSlot, offset: u32, bytes: u32) -> Verdict {
        let verdict = self.hooks.async_memory(
            w.who(),
            view,
            Access {
                range: Range::Shared { slot, offset },
                bytes,
                mode: Mode::Read,
                loc: self.program.origins[pc as usize].loc,
                changes: &changes_all,
                number: 0,
            },
        );
        self.judge_at(w, pc, verdict)
    }

    /// `number`: of a bulk store.
    #[expect(clippy::too_many_arguments, reason = "an access has many")]
    fn check_global(
        &mut self,
        w: &Warp,
        pc: u32,
        view: &View,
        address: u64,
        bytes: u32,
        (mode, number): (Mode, u64),
        changes: &Changes<'_>,
    ) -> Verdict {
        let verdict = self.hooks.async_memory(
            w.who(),
            view,
            Access {
                range: Range::Global { address },
                bytes,
                mode,
                loc: self.program.origins[pc as usize].loc,
                changes,
                number,
            },
        );
        self.judge_at(w, pc, verdict)
    }

    /// Whether a bulk load reads what another cluster wrote, or nobody.
    pub fn check_foreign(&mut self, w: &Warp, pc: u32, address: u64, bytes: u32) -> Verdict {
        if H::LISTENS && self.options.notes_undefined().is_some() && !self.memory.is_written(address, bytes.into()) {
            self.note_undefined(self.program.origins[pc as usize].loc);
        }
        let author = self.author(w.cta, || self.program.origins[pc as usize].loc);
        let other = author.and_then(|by| self.memory.load(by, address, bytes.into()));
        match other {
            None => Ok(()),
            Some(by) => {
                let did = Did::Write;
                let error = self.foreign("a bulk load of", Clash { by, did }, self.memory.describe(address));
                self.judge_at(w, pc, Err(error))
            }
        }
    }

    /// The same for the part of a box that lies inside its tensor; of a store, `data` is the dense box.
    fn check_box(
        &mut self,
        w: &Warp,
        pc: u32,
        view: &View,
        map: Placed<'_>,
        coords: &[i32],
        (mode, number): (Mode, u64),
        data: Option<&[u8]>,
    ) -> Verdict {
        if !H::LISTENS {
            return Ok(());
        }
        let memory = self.memory;
        for (address, bytes, start) in tma::runs(map, coords) {
            if mode == Mode::Read {
                self.check_foreign(w, pc, address, bytes)?;
            }
            let new = data.map(|data| &data[start as usize..(start + bytes) as usize]);
            self.check_global(w, pc, view, address, bytes, (mode, number), &|_, line| match new {
                Some(new) => memory.differences(address, new, line),
                None => changes_all(CtaSlot(0), line),
            })?;
        }
        Ok(())
    }

    /// Whether something has written what the async proxy is about to read for the instruction at `pc`.
    pub fn check_defined(&self, pc: u32, slot: CtaSlot, offset: u32, bytes: u32) -> Result<(), Box<Error>> {
        let (denies, notes) = (
            self.options.denies_undefined(),
            H::LISTENS && self.options.notes_undefined().is_some(),
        );
        if (denies || notes) && !self.cta(slot).smem.is_defined(offset, bytes) {
            if notes {
                self.note_undefined(self.program.origins[pc as usize].loc);
                return Ok(());
            }
            let mut error = execution("the async proxy reads shared memory that nothing wrote");
            error.got = Some(format!("bytes {offset}..{} of {}", offset + bytes, self.cta_name(slot)));
            return Err(error);
        }
        Ok(())
    }

    /// Names the instruction that issued what failed.
    pub fn at_issue(&self, mut error: Box<Error>, warp: u32, pc: u32) -> Box<Error> {
        let origin = self.program.origins[pc as usize];
        error.loc.get_or_insert(origin.loc);
        let (slot, index) = (CtaSlot(warp / self.warps_per_cta), warp % self.warps_per_cta);
        error.what = format!(
            "{} (issued by {} in {}, warp {index})",
            error.what,
            origin.name(),
            self.cta_name(slot)
        );
        error
    }

    fn issue_store(&mut self, w: &mut Warp, mut store: BulkStore) -> Result<(), Box<Error>> {
        if self.recorder.is_some() {
            self.record_store(w, &store);
        }
        let (reads, writes) = match self.options.agents {
            AgentOrder::Earliest => (true, true),
            AgentOrder::Latest => (false, false),
            AgentOrder::Seeded(_) => match self.rng.below(4) {
                0 => (true, true),
                1 => (true, false),
                _ => (false, false),
            },
        };
        if reads {
            self.read_store(w, &mut store)?;
        }
        if writes {
            self.write_store(w, &store)?;
            self.note_performed(w, &store);
            return Ok(());
        }
        w.bulk.stores.push_back(store);
        Ok(())
    }

    /// Remembers a store that has been performed until it is waited for, where the checker asks.
    pub fn note_performed(&self, w: &mut Warp, store: &BulkStore) {
        if H::LISTENS {
            w.bulk.note_performed(store);
        }
    }

    /// A store reads shared memory, unless it has.
    pub fn read_store(&mut self, w: &Warp, store: &mut BulkStore) -> Result<(), Box<Error>> {
        if store.data.is_some() {
            return Ok(());
        }
        let swizzle = match &store.destination {
            Destination::Linear { .. } => TensorMapSwizzle::None,
            Destination::Tensor { map, .. } => self.placed(map).spec.swizzle,
        };
        let warp = self.warp_id(w);
        let (first, bytes) = tma::footprint(store.source, store.bytes, swizzle);
        self.check_defined(store.pc, w.cta, first, bytes)
            .and_then(|()| self.check_read(w, store.pc, &store.view, w.cta, first, bytes))
            .map_err(|e| self.at_issue(e, warp, store.pc))?;
        let mut data = vec![];
        tma::gather(&self.cta(w.cta).smem, store.source, swizzle, store.bytes, &mut data);
        store.data = Some(data);
        self.record_copied(CopyId::Store(warp, store.number), false);
        Ok(())
    }

    /// A store that has read writes global memory.
    pub fn write_store(&mut self, w: &Warp, store: &BulkStore) -> Result<(), Box<Error>> {
        let Some(data) = &store.data else { return Ok(()) };
        self.memory_changed = true;
        let loc = self.program.origins[store.pc as usize].loc;
        let mut by = tma::Signed {
            author: self.author(w.cta, || loc),
            overwritten: None,
        };
        let result = match &store.destination {
            Destination::Linear { address, reduce } => {
                let memory = self.memory;
                let changes = |_: CtaSlot, line: u64| memory.differences(*address, data, line);
                let mode = match reduce {
                    None => Mode::Write,
                    Some(_) => Mode::Reduce,
                };
                let mode = (mode, store.number);
                let verdict = self.check_global(w, store.pc, &store.view, *address, store.bytes, mode, &changes);
                verdict.and_then(|()| match reduce {
                    None => tma::write_global(self.memory, *address, data, &mut by),
                    Some(reduce) => tma::reduce_global(self.memory, *address, *reduce, data, &mut by),
                })
            }
            Destination::Tensor { map, coords, reduce } => {
                let map = self.placed(map);
                let mode = match reduce {
                    None => Mode::Write,
                    Some(_) => Mode::Reduce,
                };
                let mode = (mode, store.number);
                let verdict = self.check_box(w, store.pc, &store.view, map, coords, mode, Some(data));
                verdict.and_then(|()| tma::store(map, coords, self.memory, *reduce, data, &mut by))
            }
        };
        let result = result.and_then(|()| match by.overwritten {
            None => Ok(()),
            Some((address, other)) => {
                let error = self.foreign("a bulk store of another value to", other, self.memory.describe(address));
                self.judge_at(w, store.pc, Err(error))
            }
        });
        self.record_copied(CopyId::Store(self.warp_id(w), store.number), true);
        result.map_err(|e| self.at_issue(e, self.warp_id(w), store.pc))
    }

    /// A load acts on whose barrier somebody waits, or what a commit to it covers. True: one did.
    pub fn act_for_waiters(&mut self) -> Result<bool, Error> {
        let mut acted = false;
        while self.ready.is_empty() {
            let waited = |load: &BulkLoad| {
                load.targets.iter().any(|t| {
                    self.cta(t.slot)
                        .barriers
                        .get(&t.barrier)
                        .is_some_and(|barrier| !barrier.waiters.is_empty())
                })
            };
            let Some(i) = self.agents.loads.iter().position(waited) else {
                if !self.act_tensor_for_waiters()? {
                    break;
                }
                acted = true;
                continue;
            };
            self.act_load(i)?;
            acted = true;
        }
        Ok(acted)
    }

    fn act_load(&mut self, i: usize) -> Result<(), Error> {
        let Some(load) = self.agents.loads.remove(i) else {
            return Ok(());
        };
        let id = load.warp as usize;
        let w = self.warps[id].take().expect("no warp runs while agents act");
        let result = self.perform_load(&w, load);
        self.warps[id] = Some(w);
        result.map_err(|e| *e)
    }

    /// The oldest load acts, or the oldest store of the first warp that has one. True: one did.
    pub fn act_for_pollers(&mut self) -> Result<bool, Error> {
        if !self.agents.loads.is_empty() {
            self.act_load(0)?;
            return Ok(true);
        }
        for id in 0..self.warps.len() {
            if self.warps[id].as_ref().is_some_and(|w| !w.bulk.stores.is_empty()) {
                let mut w = self.warps[id].take().expect("just seen");
                let mut store = w.bulk.stores.pop_front().expect("just seen");
                let result = self
                    .read_store(&w, &mut store)
                    .and_then(|()| self.write_store(&w, &store));
                self.note_performed(&mut w, &store);
                self.warps[id] = Some(w);
                result.map_err(|e| *e)?;
                return Ok(true);
            }
        }
        self.act_tensor_oldest()
    }

    /// Under a seeded schedule: some agent may act.
    pub fn act_at_random(&mut self) -> Result<(), Error> {
        let products = !self.tensor.is_empty();
        if products && (self.agents.loads.is_empty() || self.rng.below(2) == 0) {
            return self.act_tensor_at_random();
        }
        if self.agents.loads.is_empty() {
            return Ok(());
        }
        let i = self.rng.below(self.agents.loads.len() as u64) as usize;
        self.act_load(i)
    }

    /// The last warp of a CTA has ended, and its shared memory goes. Stores that have read it write what they read.
    pub fn finish_cta(&mut self, slot: CtaSlot) -> Result<(), Error> {
        self.finish_tensor(slot)?;
        self.lose_loads(slot)?;
        let first = slot.0 * self.warps_per_cta;
        for id in first..first + self.warps_per_cta {
            let mut w = self.warps[id as usize].take().expect("no warp runs");
            let mut result = Ok(());
            while let Some(store) = w.bulk.stores.pop_front() {
                result = if store.data.is_some() {
                    self.write_store(&w, &store)
                } else {
                    let mut error = execution("a CTA ends while a bulk store has yet to read its shared memory");
                    error.expected =
                        Some("cp.async.bulk.commit_group and wait_group(.read) before the kernel ends".into());
                    error.remedy = Some("wait for the copies (`wait_smem_to_gmem(0)`) before the kernel ends".into());
                    Err(self.at_issue(error, id, store.pc))
                };
                if result.is_err() {
                    break;
                }
            }
            self.warps[id as usize] = Some(w);
            result.map_err(|e| *e)?;
        }
        Ok(())
    }

    /// Loads into shared memory that goes land nowhere: that they were not waited for is a finding.
    fn lose_loads(&mut self, slot: CtaSlot) -> Result<(), Error> {
        let lands_here = |load: &&BulkLoad| load.targets.iter().any(|target| target.slot == slot);
        let late = self.agents.loads.iter().filter(|_| H::LISTENS).filter(lands_here);
        let late: Vec<(u32, u32)> = late.map(|load| (load.warp, load.pc)).collect();
        for (warp, pc) in late {
            let mut error = execution(format!(
                "{} ends while a bulk load into its shared memory is in flight",
                self.cta_name(slot)
            ));
            error.expected = Some("a wait on the load's mbarrier before the kernel ends".into());
            error.remedy = Some("wait for every copy (`plgpu.barrier_wait`, or its own `.wait()`), also for those whose data nobody needs".into());
            self.judge_of(warp, pc, Err(error))
                .map_err(|error| *self.at_issue(error, warp, pc))?;
        }
        for load in &mut self.agents.loads {
            load.targets.retain(|target| target.slot != slot);
        }
        self.agents.loads.retain(|load| !load.targets.is_empty());
        Ok(())
    }

    /// A range of shared memory that a bulk copy of the warp names.
    fn bulk_shared(&self, w: &Warp, address: u32, bytes: u32, alignment: u32) -> Result<(CtaSlot, u32), Box<Error>> {
        let (slot, offset) = self
            .locate_shared(w.cta, address)
            .ok_or_else(|| execution(format!("a bulk copy at shared address 0x{address:x}: no such CTA")))?;
        if !address.is_multiple_of(alignment) {
            let mut error = execution(format!("a bulk copy at misaligned shared address 0x{address:x}"));
            error.expected = Some(format!("a multiple of {alignment}"));
            return Err(error);
        }
        if !self.cta(slot).smem.contains(offset, bytes) {
            let mut error = execution(format!("a bulk copy of {bytes} bytes outside of shared memory"));
            error.expected = Some(format!(
                "0x{SMEM_BASE:x}..0x{:x}",
                SMEM_BASE + self.cta(slot).smem.size()
            ));
            error.got = Some(format!("address 0x{address:x}"));
            return Err(error);
        }
        if self.cta(slot).live_warps == 0 {
            return Err(execution(format!(
                "a bulk copy to {}, which has ended",
                self.cta_name(slot)
            )));
        }
        Ok((slot, offset))
    }
}

/// A bulk copy's operands, as a side table holds them.
#[derive(Clone, Debug)]
pub struct BulkOp {
    pub kind: BulkKind,
    /// Shared memory: base operand and offset.
    pub shared: (u16, i32),
    /// Global memory, or the other shared range.
    pub other: (u16, i32),
    pub bytes: u16,
    pub barrier: (u16, i32),
    pub mask: Option<u16>,
    /// Of tensor copies: the operand that holds the map's address, the coordinates.
    pub map: u16,
    pub coords: Vec<u16>,
    pub reduce: Option<TensorRed>,
    /// Of linear stores and `red.async`.
    pub reduce_elements: Option<(AtomOp, AtomType)>,
    /// Of `st.async` and `red.async`: the registers and bytes of each.
    pub values: Vec<u16>,
    pub value_bytes: u32,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BulkKind {
    /// Global to shared.
    Load,
    TensorLoad,
    /// Shared to shared of the cluster.
    Copy,
    StoreAsync,
    ReduceAsync,
    Store,
    TensorStore,
    Prefetch,
    TensorPrefetch,
}

/// Issues the bulk operation `aux` of the program's table for every executing lane.
pub struct Bulk;
impl<H: Hooks> Body<H> for Bulk {
    #[inline(never)]
    fn run(w: &mut Warp, m: &mut Machine<'_, H>, u: &Uop<H>) -> Step {
        let program = m.program;
        let op = &program.bulk_ops[u.aux as usize];
        // Where this micro-op is, for errors at completion.
        let pc = u.imm as u32;
        for lane in lanes(w.exec) {
            issue(w, m, op, pc, lane)?;
        }
        Ok(Flow::Next)
    }
}

fn issue<H: Hooks>(w: &mut Warp, m: &mut Machine<'_, H>, op: &BulkOp, pc: u32, lane: usize) -> Result<(), Box<Error>> {
    let shared32 = |w: &Warp, (base, offset): (u16, i32)| w.read::<u32>(base)[lane].wrapping_add(offset as u32);
    let global64 = |w: &Warp, (base, offset): (u16, i32)| w.read::<u64>(base)[lane].wrapping_add(offset as i64 as u64);
    let mut coords = [0; 5];
    for (to, from) in coords.iter_mut().zip(&op.coords) {
        *to = w.read::<u32>(*from)[lane] as i32;
    }
    let is_tensor = matches!(
        op.kind,
        BulkKind::TensorLoad | BulkKind::TensorStore | BulkKind::TensorPrefetch
    );
    let mut tensor_map = None;
    // What the copy touches of shared memory: a swizzle moves chunks within their lines.
    let mut extent = None;
    let (bytes, alignment) = if is_tensor {
        let named = m.tensor_map(w, pc, w.read::<u64>(op.map)[lane])?;
        tensor_map = Some(named);
        let map = m.placed(&named).spec;
        if map.dims.len() != op.coords.len() {
            let mut error = execution("a bulk tensor copy");
            error.expected = Some(format!(
                "{} coordinates, as its tensor map has dimensions",
                map.dims.len()
            ));
            error.got = Some(op.coords.len().to_string());
            return Err(error);
        }
        let bytes = tma::box_bytes(map);
        extent = Some(tma::footprint(0, bytes, map.swizzle).1);
        (bytes, tma::BOX_ALIGNMENT)
    } else if matches!(op.kind, BulkKind::StoreAsync | BulkKind::ReduceAsync) {
        (
            op.value_bytes * op.values.len() as u32,
            op.value_bytes * op.values.len() as u32,
        )
    } else {
        let bytes = w.read::<u32>(op.bytes)[lane];
        if bytes == 0 || !bytes.is_multiple_of(16) {
            let mut error = execution("a bulk copy");
            error.expected = Some("a size that is a positive multiple of 16 bytes".into());
            error.got = Some(bytes.to_string());
            return Err(error);
        }
        (bytes, 16)
    };
    let linear = |m: &Machine<'_, H>, w: &Warp| {
        let address = global64(w, op.other);
        if !address.is_multiple_of(16) {
            let mut error = execution(format!("a bulk copy at misaligned global address 0x{address:x}"));
            error.expected = Some("a multiple of 16".into());
            return Err(error);
        }
        if m.memory.resolve(address, u64::from(bytes)).is_none() {
            let mut error = execution(format!("a bulk copy of {bytes} bytes outside of its buffer"));
            error.got = Some(m.memory.describe(address));
            return Err(error);
        }
        Ok(address)
    };
    // So it is on an H200, whoever compiles it, and whatever is swizzled.
    if let Some(named) = &tensor_map {
        let element = m.placed(named).spec.element.bytes();
        if !(i64::from(coords[0]) * i64::from(element))
            .unsigned_abs()
            .is_multiple_of(16)
        {
            let mut error = execution(
                "a copy whose start along the minor dimension is no multiple of 16 bytes, which a GPU takes for an illegal instruction",
            );
            error.expected = Some(format!(
                "a multiple of {} elements of {element} bytes",
                16 / element.min(16)
            ));
            error.got = Some(m.describe_box(named, &coords));
            error.remedy = Some(
                "start there and slice what was copied, or load it with ref[...] and store it with ref[...] = value instead of copies".into(),
            );
            return Err(error);
        }
    }
    match op.kind {
        BulkKind::Prefetch => linear(m, w).map(|_| ()),
        BulkKind::TensorPrefetch => Ok(()),
        BulkKind::Store | BulkKind::TensorStore => {
            let (slot, source) = m.bulk_shared(w, shared32(w, op.shared), extent.unwrap_or(bytes), alignment)?;
            if slot != w.cta {
                return Err(execution("a bulk store from the shared memory of another CTA"));
            }
            // An H200 ends such a store as an illegal instruction, however much of the box is in the array; loads are defined there.
            if let Some(map) = &tensor_map
                && coords.iter().any(|c| *c < 0)
            {
                let mut error = execution(
                    "a bulk store that begins in front of its array, which a GPU takes for an illegal instruction",
                );
                error.expected = Some("no negative start; what is behind the array is not written".into());
                error.got = Some(m.describe_box(map, &coords));
                error.remedy = Some(
                    "bound the start by jnp.maximum(start, 0), or leave the copy out by pl.when(start >= 0)".into(),
                );
                return Err(error);
            }
            let destination = match tensor_map {
                Some(map) => Destination::Tensor {
                    map,
                    coords,
                    reduce: op.reduce,
                },
                None => Destination::Linear {
                    address: linear(m, w)?,
                    reduce: op.reduce_elements,
                },
            };
            let (view, number) = (m.hooks.view(w.who()), w.bulk.issue());
            m.issue_store(
                w,
                BulkStore {
                    lane: lane as u32,
                    pc,
                    destination,
                    source,
                    bytes,
                    data: None,
                    group: None,
                    view,
                    number,
                },
            )
        }
        BulkKind::Load | BulkKind::TensorLoad | BulkKind::Copy | BulkKind::StoreAsync | BulkKind::ReduceAsync => {
            let address = shared32(w, op.shared);
            let (slot, offset) = m.bulk_shared(w, address, extent.unwrap_or(bytes), alignment)?;
            let (barrier_slot, barrier) = m.barrier_at(w.cta, shared32(w, op.barrier))?;
            if barrier_slot != slot {
                return Err(execution(
                    "a bulk copy whose barrier is not in the CTA of its destination",
                ));
            }
            let source = match (op.kind, tensor_map) {
                (_, Some(map)) => Source::Tensor { map, coords },
                (BulkKind::Copy, None) => {
                    let (slot, offset) = m.bulk_shared(w, shared32(w, op.other), bytes, 16)?;
                    Source::Shared { slot, offset }
                }
                (BulkKind::StoreAsync | BulkKind::ReduceAsync, None) => {
                    let mut data = [0; 16];
                    let size = op.value_bytes as usize;
                    for (to, r) in data.chunks_exact_mut(size).zip(&op.values) {
                        let bits = if size == 8 {
                            w.read::<u64>(*r)[lane]
                        } else {
                            u64::from(w.read::<u32>(*r)[lane])
                        };
                        to.copy_from_slice(&bits.to_le_bytes()[..size]);
                    }
                    let reduce = op.reduce_elements;
                    Source::Value { data, reduce }
                }
                (_, None) => Source::Linear { address: linear(m, w)? },
            };
            let targets = match op.mask {
                None => vec![Target { slot, offset, barrier }],
                Some(mask) => {
                    let mask = w.read::<u16>(mask)[lane];
                    let first = w.cta.0 - m.cta(w.cta).rank;
                    let size = m.program.launch.cluster.iter().product::<u32>();
                    if mask == 0 || mask >> size != 0 {
                        let mut error = execution("a multicast copy");
                        error.expected = Some(format!("a mask of CTAs of the cluster, which has {size}"));
                        error.got = Some(format!("0x{mask:x}"));
                        return Err(error);
                    }
                    let ranks = (0..size).filter(|rank| mask >> rank & 1 == 1);
                    ranks
                        .map(|rank| Target {
                            slot: CtaSlot(first + rank),
                            offset,
                            barrier,
                        })
                        .collect()
                }
            };
            let warp = m.warp_id(w);
            let view = m.hooks.view(w.who());
            m.issue_load(
                w,
                BulkLoad {
                    warp,
                    pc,
                    source,
                    bytes,
                    targets,
                    view,
                    number: 0,
                },
            )
        }
    }
}

/// `cp.async.bulk.commit_group`.
pub struct BulkCommit;
impl<H: Hooks> Body<H> for BulkCommit {
    #[inline(never)]
    fn run(w: &mut Warp, _: &mut Machine<'_, H>, _: &Uop<H>) -> Step {
        for lane in lanes(w.exec) {
            w.bulk.commit(lane);
        }
        Ok(Flow::Next)
    }
}

/// `cp.async.bulk.wait_group`; `imm`: how many groups may be pending; `c` 1: `.read`.
pub struct BulkWait;
impl<H: Hooks> Body<H> for BulkWait {
    #[inline(never)]
    fn run(w: &mut Warp, m: &mut Machine<'_, H>, u: &Uop<H>) -> Step {
        let (pending, reads_only) = (u.imm as u64, u.c != 0);
        if !w.bulk.stores.is_empty() {
            for lane in lanes(w.exec) {
                let mut i = 0;
                while i < w.bulk.stores.len() {
                    if !w.bulk.covered(&w.bulk.stores[i], lane, pending) {
                        i += 1;
                        continue;
                    }
                    let Some(mut store) = w.bulk.stores.remove(i) else {
                        break;
                    };
                    let result = match m.read_store(w, &mut store) {
                        Ok(()) if !reads_only => m.write_store(w, &store),
                        other => other,
                    };
                    result?;
                    if reads_only {
                        w.bulk.stores.insert(i, store);
                        i += 1;
                    } else {
                        m.note_performed(w, &store);
                    }
                }
            }
        }
        if H::LISTENS && !reads_only {
            for number in w.bulk.take_performed(w.exec, pending) {
                m.hooks.store_waited(w.who(), number);
            }
        }
        Ok(Flow::Next)
    }
}
