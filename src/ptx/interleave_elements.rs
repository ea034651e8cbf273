//! Lists array code in tiles: load, compute, store of a few elements before the next few.
//!
//! Lowering emits one array operation after the other, each over all elements of a thread, so that every element is live
//! across every operation. ptxas moves instructions to hide latency, not to shorten lives over thousands of them: it spills.
//! Where the values that a list of ops keeps alive at once exceed a budget, the list is written anew: what acts (stores,
//! barriers, shuffles, loops) stays in order and is taken in batches, each as large as fits the budget, and before a batch
//! comes what it needs and has not been listed, in its old order. Within the budget loads therefore still come first and wait
//! together; a list that fits is left as it is, and so is one whose peak this would not lower by [`WORTH`].
//!
//! # What may pass what
//! Every batch's list holds what its ops need, so that definitions precede uses; it is in the old order, so that only ops of
//! different batches change places. What acts never does. An ordinary load sinks towards its use, and therefore
//! * not below a write that may touch the same bytes: the write needs the load listed before it. It may touch them unless
//!   the space differs, or the [`MemTag`]s differ and neither is [`MemTag::ANY`], or both addresses have one base and
//!   disjoint ranges of bytes;
//! * not below anything that orders memory (`SYNC`: barriers, waits, fences, arrivals, atomics, relaxed and volatile loads,
//!   copies, wgmma), nor below a loop or a conditional that contains one.
//!
//! It never rises above a write: what needs it comes behind the write. `ld.global.nc` reads what nothing writes while the
//! kernel runs and is free, but in kernels that wait for the grid before them. Loads are moved, never repeated.
//!
//! Up to the last op that updates registers in place, or hands them to a wgmma, a list stays as it is: a read that sinks
//! below such an op would need a copy of the register, and a wgmma's fragments must be ready before its `wgmma.fence`.
use super::inst::{Effects, Inst};
use super::modifier::{MemType, Space};
use super::operand::{Addr, Class, Src};
use super::ssa::*;
use cranelift_entity::SecondaryMap;
use rustc_hash::FxHashMap;
use smallvec::SmallVec;
use std::collections::BTreeMap;

/// A new order must save this part of the peak, one in so many: ptxas has its own, and is used to ours.
const WORTH: u32 = 8;

const NONE: u32 = u32::MAX;

/// `budget`: 32-bit words a thread.
pub fn run(ssa: &mut Ssa, budget: u32) {
    list_anew(ssa, budget, Adopt::IfWorth);
}

/// The new order of every list over the budget, better or not.
#[cfg(test)]
pub fn run_regardless(ssa: &mut Ssa, budget: u32) {
    list_anew(ssa, budget, Adopt::Always);
}

/// When a new order takes the old one's place.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Adopt {
    IfWorth,
    #[cfg(test)]
    Always,
}

fn list_anew(ssa: &mut Ssa, budget: u32, adopt: Adopt) {
    let Some(body) = ssa.body else { return };
    let waits_for_grid = waits_for_grid(ssa);
    let mut names = Names::default();
    let mut lists = vec![body];
    let mut at = 0;
    while at < lists.len() {
        lists.extend(ssa.regions[lists[at]].ops.iter().flat_map(inner));
        at += 1;
    }
    for r in lists {
        let order = better_order(ssa, r, budget, adopt, waits_for_grid, &mut names);
        names.forget();
        if let Some(order) = order {
            let mut ops: Vec<Option<Op>> = std::mem::take(&mut ssa.regions[r].ops).into_iter().map(Some).collect();
            ssa.regions[r].ops = order.iter().filter_map(|i| ops[*i as usize].take()).collect();
        }
    }
}

/// Whether the kernel waits for the grid before it, and so reads what another kernel writes.
pub(super) fn waits_for_grid(ssa: &Ssa) -> bool {
    ssa.regions.values().flat_map(|r| &r.ops).any(|op| {
        matches!(
            &op.kind,
            OpKind::Inst {
                inst: Inst::GridDep { .. },
                ..
            }
        )
    })
}

/// Numbers for the values that a list mentions.
pub(super) struct Names {
    ids: SecondaryMap<Value, u32>,
    named: Vec<Value>,
}

impl Default for Names {
    fn default() -> Names {
        Names {
            ids: SecondaryMap::with_default(NONE),
            named: vec![],
        }
    }
}

/// Defined inside an op of the list.
const INSIDE: u32 = NONE - 1;

impl Names {
    fn set(&mut self, v: Value, id: u32) {
        self.ids[v] = id;
        self.named.push(v);
    }
    /// The number of a value that the list mentions.
    pub fn id(&self, v: Value) -> u32 {
        self.ids[v]
    }
    pub fn forget(&mut self) {
        for v in self.named.drain(..) {
            self.ids[v] = NONE;
        }
    }

    /// What an op reads of values that are not its own, the ops inside it included.
    fn uses(&mut self, ssa: &Ssa, op: &Op, out: &mut Vec<Value>) {
        let mut read = |v: Value, names: &Names| {
            if names.ids[v] != INSIDE {
                out.push(v);
            }
        };
        match &op.kind {
            OpKind::Inst { guard, inst } => {
                guard.iter().for_each(|(p, _)| read(*p, self));
                inst.for_each_use(|v, _| read(v, self));
            }
            OpKind::If { cond, .. } => read(*cond, self),
            OpKind::Loop { inits, .. } => inits.iter().for_each(|v| read(*v, self)),
        }
        for r in inner(op) {
            let region = &ssa.regions[r];
            region.params.iter().for_each(|p| self.set(*p, INSIDE));
            for op in &region.ops {
                self.uses(ssa, op, out);
                for_each_def(op, |v| self.set(v, INSIDE));
            }
            out.extend(region.results.iter().filter(|v| self.ids[**v] != INSIDE));
        }
    }
}

/// Bytes that an op reads or writes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Access {
    shared: bool,
    tag: MemTag,
    /// Unknown: any address of the tag.
    base: Option<Value>,
    /// From the base.
    range: (i64, i64),
}

/// What an op does besides defining values; of a conditional or loop, what happens inside.
#[derive(Clone, Default, Debug)]
struct Doing {
    reads: SmallVec<[Access; 1]>,
    writes: SmallVec<[Access; 1]>,
    /// Orders memory.
    orders: bool,
    /// Stays in order with others that act.
    acts: bool,
    /// Has registers that asynchronous instructions own, or are updated in place.
    owns_registers: bool,
}

/// Weights: words a thread that a value takes. Predicates have registers of their own, constants and addresses of the
/// kernel's memory are remade where they are used.
fn words(ssa: &Ssa, v: Value) -> u32 {
    match ssa.values[v].class {
        Class::Pred => 0,
        Class::B16 | Class::B32 => 1,
        Class::B64 => 2,
    }
}

fn remade(op: &Op) -> bool {
    matches!(
        &op.kind,
        OpKind::Inst {
            inst: Inst::Mov { a: Src::Imm(_), .. } | Inst::MovSmemBase { .. } | Inst::LdParam { .. },
            ..
        }
    )
}

/// The regions inside an op.
fn inner(op: &Op) -> SmallVec<[Region; 2]> {
    match &op.kind {
        OpKind::Inst { .. } => SmallVec::new(),
        OpKind::If { then, otherwise, .. } => SmallVec::from_slice(&[*then, *otherwise]),
        OpKind::Loop { cond, body, .. } => SmallVec::from_slice(&[*cond, *body]),
    }
}

fn for_each_def(op: &Op, mut f: impl FnMut(Value)) {
    match &op.kind {
        OpKind::Inst { inst, .. } => inst.for_each_def(|v, _| f(v)),
        OpKind::If { results, .. } | OpKind::Loop { results, .. } => results.iter().for_each(|v| f(*v)),
    }
}

fn bytes(ty: MemType, n: usize) -> u32 {
    let each = match ty {
        MemType::U8 | MemType::S8 => 1,
        MemType::B16 => 2,
        MemType::B32 => 4,
        MemType::B64 => 8,
    };
    each * n as u32
}

/// Address and bytes of ordinary loads and stores.
fn ordinary(inst: &Inst<Value>) -> Option<(Space, Addr<Value>, u32)> {
    match inst {
        Inst::Ld { space, ty, d, addr, .. } => Some((*space, *addr, bytes(*ty, d.len()))),
        Inst::St { space, ty, addr, a, .. } => Some((*space, *addr, bytes(*ty, a.len()))),
        Inst::LdNc { ty, d, addr } => Some((Space::Global, *addr, bytes(*ty, d.len()))),
        _ => None,
    }
}

fn doing(ssa: &Ssa, op: &Op, waits_for_grid: bool, out: &mut Doing) {
    match &op.kind {
        OpKind::Inst { inst, .. } => inst_doing(inst, op.memory, waits_for_grid, out),
        OpKind::If { .. } => {}
        // It may not end.
        OpKind::Loop { .. } => out.acts = true,
    }
    for r in inner(op) {
        let ops = &ssa.regions[r].ops;
        ops.iter().for_each(|op| doing(ssa, op, waits_for_grid, out));
    }
}

fn inst_doing(inst: &Inst<Value>, tag: MemTag, waits_for_grid: bool, out: &mut Doing) {
    let mut effects = inst.effects();
    if waits_for_grid && matches!(inst, Inst::LdNc { .. }) {
        effects |= Effects::READ_GLOBAL;
    }
    let reads = Effects::READ_GLOBAL | Effects::READ_SHARED;
    out.orders |= effects.intersects(Effects::SYNC | Effects::VOLATILE | Effects::ASYNC_REGISTERS | Effects::CARRY);
    out.acts |= !reads.contains(effects) || inst.tied().is_some();
    out.owns_registers |= effects.contains(Effects::ASYNC_REGISTERS) || inst.tied().is_some();
    // Lanes of a matrix's rows address it each for itself.
    let matrix = matches!(inst, Inst::Ldmatrix { .. } | Inst::Stmatrix { .. });
    let anything = Access {
        shared: false,
        tag: if matrix { tag } else { MemTag::ANY },
        base: None,
        range: (0, 0),
    };
    let access = ordinary(inst).map_or(anything, |(space, addr, bytes)| Access {
        // Generic addresses, and those of other blocks, may be anything's.
        tag: match space {
            Space::Shared | Space::Global => tag,
            Space::SharedCluster | Space::Generic => MemTag::ANY,
        },
        base: Some(addr.base),
        range: (i64::from(addr.offset), i64::from(addr.offset) + i64::from(bytes)),
        ..anything
    });
    for (shared, read, write) in [
        (true, Effects::READ_SHARED, Effects::WRITE_SHARED),
        (false, Effects::READ_GLOBAL, Effects::WRITE_GLOBAL),
    ] {
        let access = Access { shared, ..access };
        if effects.contains(read) {
            out.reads.push(access);
        }
        if effects.contains(write) {
            out.writes.push(access);
        }
    }
}

/// A better order of a list, if it needs one.
fn better_order(
    ssa: &Ssa,
    r: Region,
    budget: u32,
    adopt: Adopt,
    waits_for_grid: bool,
    names: &mut Names,
) -> Option<Vec<u32>> {
    // A vector has four words.
    let ops = &ssa.regions[r].ops;
    if ops.len() * 4 <= budget as usize {
        return None;
    }
    let mut list = List::new(ssa, r, names);
    let everything: Vec<u32> = (0..ops.len() as u32).collect();
    let before = list.peak(&everything);
    if before <= budget {
        return None;
    }
    let fixed = list.connect(ssa, r, waits_for_grid);
    list.emit((0..fixed).collect());
    list.schedule(0..list.wanted.len(), budget);
    let rest: Vec<u32> = everything.into_iter().filter(|i| !list.listed[*i as usize]).collect();
    list.emit(rest);
    (adopt != Adopt::IfWorth || list.highest + before / WORTH < before).then_some(list.order)
}

/// A list of ops that is being written anew.
pub(super) struct List {
    /// What every op reads, by number of value, one after the other; where each op's start.
    pub uses: Vec<u32>,
    uses_at: Vec<u32>,
    /// The same of what it defines.
    defs: Vec<u32>,
    defs_at: Vec<u32>,
    /// Of every value: words, the op that makes it (`NONE`: it comes from outside), and how many ops that have not been
    /// listed read it, plus one if it is wanted outside.
    pub words: Vec<u32>,
    pub maker: Vec<u32>,
    left: Vec<u32>,
    /// Makers of the list's results.
    results: Vec<u32>,
    /// Loads that must be listed before an op that writes or orders.
    forced: FxHashMap<u32, Vec<u32>>,
    /// What acts, in order; then what makes results.
    pub wanted: Vec<u32>,
    listed: Vec<bool>,
    /// The walk that has seen an op.
    seen: Vec<u32>,
    walks: u32,
    order: Vec<u32>,
    /// Words that are live now, and the most that have been.
    live: u32,
    highest: u32,
}

impl List {
    pub fn new(ssa: &Ssa, r: Region, names: &mut Names) -> List {
        let region = &ssa.regions[r];
        let n = region.ops.len();
        let mut list = List {
            uses: vec![],
            uses_at: Vec::with_capacity(n + 1),
            defs: vec![],
            defs_at: Vec::with_capacity(n + 1),
            words: vec![],
            maker: vec![],
            left: vec![],
            results: vec![],
            forced: FxHashMap::default(),
            wanted: vec![],
            listed: vec![false; n],
            seen: vec![0; n],
            walks: 0,
            order: Vec::with_capacity(n),
            live: 0,
            highest: 0,
        };
        for p in &region.params {
            list.value(names, *p, words(ssa, *p), NONE);
        }
        let mut read = vec![];
        for (i, op) in region.ops.iter().enumerate() {
            list.uses_at.push(list.uses.len() as u32);
            list.defs_at.push(list.defs.len() as u32);
            names.uses(ssa, op, &mut read);
            for v in read.drain(..) {
                let id = list.mentioned(ssa, names, v);
                list.left[id as usize] += 1;
                list.uses.push(id);
            }
            let free = remade(op);
            for_each_def(op, |v| {
                let id = list.value(names, v, if free { 0 } else { words(ssa, v) }, i as u32);
                list.defs.push(id);
            });
        }
        list.uses_at.push(list.uses.len() as u32);
        list.defs_at.push(list.defs.len() as u32);
        for v in &region.results {
            let id = list.mentioned(ssa, names, *v) as usize;
            list.left[id] += 1;
            if list.maker[id] != NONE {
                list.results.push(list.maker[id]);
            }
        }
        let from_outside = (0..list.words.len()).filter(|v| list.maker[*v] == NONE && list.left[*v] > 0);
        list.live = from_outside.map(|v| list.words[v]).sum();
        list.highest = list.live;
        list
    }

    fn value(&mut self, names: &mut Names, v: Value, words: u32, maker: u32) -> u32 {
        let id = self.words.len() as u32;
        names.set(v, id);
        self.words.push(words);
        self.maker.push(maker);
        self.left.push(0);
        id
    }

    /// The number of a value that is read. One from outside stays alive: who has made it may read it again.
    fn mentioned(&mut self, ssa: &Ssa, names: &mut Names, v: Value) -> u32 {
        if names.ids[v] != NONE {
            return names.ids[v];
        }
        let id = self.value(names, v, words(ssa, v), NONE);
        self.left[id as usize] = 1;
        id
    }

    pub fn uses_of(&self, op: u32) -> std::ops::Range<usize> {
        self.uses_at[op as usize] as usize..self.uses_at[op as usize + 1] as usize
    }
    fn defs_of(&self, op: u32) -> std::ops::Range<usize> {
        self.defs_at[op as usize] as usize..self.defs_at[op as usize + 1] as usize
    }

    fn step(&mut self, op: u32) {
        for u in self.uses_of(op) {
            let v = self.uses[u] as usize;
            self.left[v] -= 1;
            if self.left[v] == 0 {
                self.live -= self.words[v];
            }
        }
        let mut dead = 0;
        for d in self.defs_of(op) {
            let v = self.defs[d] as usize;
            self.live += self.words[v];
            if self.left[v] == 0 {
                dead += self.words[v];
            }
        }
        self.highest = self.highest.max(self.live);
        self.live -= dead;
    }

    fn step_back(&mut self, op: u32) {
        for d in self.defs_of(op) {
            let v = self.defs[d] as usize;
            if self.left[v] > 0 {
                self.live -= self.words[v];
            }
        }
        for u in self.uses_of(op) {
            let v = self.uses[u] as usize;
            if self.left[v] == 0 {
                self.live += self.words[v];
            }
            self.left[v] += 1;
        }
    }

    /// The most words that are live while these ops are listed next.
    fn peak(&mut self, ops: &[u32]) -> u32 {
        let before = std::mem::replace(&mut self.highest, self.live);
        ops.iter().for_each(|op| self.step(*op));
        ops.iter().rev().for_each(|op| self.step_back(*op));
        std::mem::replace(&mut self.highest, before)
    }

    fn emit(&mut self, ops: Vec<u32>) {
        for op in &ops {
            self.step(*op);
            self.listed[*op as usize] = true;
        }
        self.order.extend(ops);
    }

    /// Finds what acts, and the loads that what writes or orders needs listed before it. Gives the number of ops in front that
    /// have to stay as they are.
    pub fn connect(&mut self, ssa: &Ssa, r: Region, waits_for_grid: bool) -> u32 {
        let mut fixed = 0;
        let mut pending = Pending::default();
        for (i, op) in ssa.regions[r].ops.iter().enumerate() {
            let i = i as u32;
            let mut what = Doing::default();
            doing(ssa, op, waits_for_grid, &mut what);
            if what.owns_registers {
                fixed = i + 1;
            }
            let mut before = vec![];
            if what.orders {
                pending.take_all(&mut before);
            }
            for write in &what.writes {
                pending.take(write, &mut before);
            }
            if !before.is_empty() {
                self.forced.insert(i, before);
            }
            if what.acts {
                self.wanted.push(i);
            } else {
                what.reads.iter().for_each(|read| pending.add(read, i));
            }
        }
        let acting: rustc_hash::FxHashSet<u32> = self.wanted.iter().copied().collect();
        let mut results: Vec<u32> = self.results.iter().copied().filter(|op| !acting.contains(op)).collect();
        results.sort_unstable();
        results.dedup();
        self.wanted.extend(results);
        fixed
    }

    /// The ops of the list whose values an op reads.
    pub fn makers(&self, op: u32, out: &mut Vec<u32>) {
        out.extend(self.uses[self.uses_of(op)].iter().map(|v| self.maker[*v as usize]));
        out.retain(|op| *op != NONE);
    }

    /// The loads that must be listed before an op that writes or orders.
    pub fn forced_by(&self, op: u32) -> &[u32] {
        self.forced.get(&op).map_or(&[], |loads| loads)
    }

    /// What an op needs listed before it.
    fn needs(&self, op: u32, out: &mut Vec<u32>) {
        self.makers(op, out);
        out.extend(self.forced_by(op));
        out.retain(|op| !self.listed[*op as usize]);
    }

    /// What the wanted ops of a range need, themselves included, in the old order.
    fn needed(&mut self, range: std::ops::Range<usize>) -> Vec<u32> {
        self.walks += 1;
        let mut work: Vec<u32> = self.wanted[range]
            .iter()
            .copied()
            .filter(|op| !self.listed[*op as usize])
            .collect();
        let (mut out, mut next) = (vec![], vec![]);
        while let Some(op) = work.pop() {
            if std::mem::replace(&mut self.seen[op as usize], self.walks) != self.walks {
                out.push(op);
                self.needs(op, &mut next);
                work.append(&mut next);
            }
        }
        out.sort_unstable();
        out
    }

    /// The same for one op, operand by operand: each is made just before it is used first.
    fn needed_depth_first(&mut self, wanted: u32) -> Vec<u32> {
        self.walks += 1;
        let mut out = vec![];
        // Ops that wait for what they need, and the rest of that, the next one last.
        let mut work: Vec<(u32, Vec<u32>)> = vec![];
        let enter = |list: &mut List, op: u32, work: &mut Vec<(u32, Vec<u32>)>| {
            if !list.listed[op as usize] && std::mem::replace(&mut list.seen[op as usize], list.walks) != list.walks {
                let mut needs = vec![];
                list.needs(op, &mut needs);
                needs.reverse();
                work.push((op, needs));
            }
        };
        enter(self, wanted, &mut work);
        while let Some((op, needs)) = work.last_mut() {
            match needs.pop() {
                Some(next) => enter(self, next, &mut work),
                None => {
                    out.push(*op);
                    work.pop();
                }
            }
        }
        out
    }

    /// Lists a range of what is wanted, in halves until they fit.
    fn schedule(&mut self, range: std::ops::Range<usize>, budget: u32) {
        let ops = self.needed(range.clone());
        if range.len() > 1 && self.peak(&ops) > budget {
            let middle = range.start + range.len() / 2;
            self.schedule(range.start..middle, budget);
            self.schedule(middle..range.end, budget);
            return;
        }
        if let (1, Some(wanted)) = (range.len(), self.wanted.get(range.start).copied()) {
            let flat = self.peak(&ops);
            if flat > budget {
                let deep = self.needed_depth_first(wanted);
                if self.peak(&deep) < flat {
                    self.emit(deep);
                    return;
                }
            }
        }
        self.emit(ops);
    }
}

/// Loads that have not been forced yet, by space, tag and base.
#[derive(Default)]
struct Pending {
    by_tag: [FxHashMap<MemTag, ByBase>; 2],
}
type ByBase = FxHashMap<Option<Value>, ByOffset>;

/// Loads from one base.
#[derive(Default)]
struct ByOffset {
    /// First byte and op; the byte after the last.
    loads: BTreeMap<(i64, u32), i64>,
    widest: i64,
}

impl Pending {
    fn add(&mut self, read: &Access, op: u32) {
        let tag = self.by_tag[usize::from(read.shared)].entry(read.tag).or_default();
        let base = tag.entry(read.base).or_default();
        base.widest = base.widest.max(read.range.1 - read.range.0);
        base.loads.insert((read.range.0, op), read.range.1);
    }

    fn take_all(&mut self, out: &mut Vec<u32>) {
        for tag in self.by_tag.iter_mut().flat_map(|tags| tags.drain()) {
            tag.1
                .values()
                .for_each(|base| out.extend(base.loads.keys().map(|(_, op)| op)));
        }
    }

    /// Takes out what a write may touch.
    fn take(&mut self, write: &Access, out: &mut Vec<u32>) {
        let tags = &mut self.by_tag[usize::from(write.shared)];
        for (tag, bases) in tags.iter_mut() {
            if *tag != write.tag && *tag != MemTag::ANY && write.tag != MemTag::ANY {
                continue;
            }
            bases.retain(|base, at| {
                if base.is_none() || *base != write.base {
                    out.extend(at.loads.keys().map(|(_, op)| op));
                    return false;
                }
                let (first, end) = write.range;
                let near = at.loads.range((first - at.widest, 0)..(end, 0));
                let hit: Vec<(i64, u32)> = near.filter(|(_, e)| **e > first).map(|(key, _)| *key).collect();
                for key in hit {
                    at.loads.remove(&key);
                    out.push(key.1);
                }
                true
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::build::{Builder, Operand};
    use super::super::inst::ROWS;
    use super::super::modifier::*;
    use super::super::operand::ParamRef;
    use super::*;

    const OUT: MemTag = MemTag::shared(4096);

    /// The effect of the body's ops on memory and order, by name, with how often each comes in a row.
    fn shape(ssa: &Ssa) -> String {
        let mut out: Vec<(&str, u32)> = vec![];
        for op in &ssa.regions[ssa.body.unwrap()].ops {
            let name = match &op.kind {
                OpKind::Inst { inst, .. } => ROWS[inst.row()].name,
                OpKind::If { .. } => "If",
                OpKind::Loop { .. } => "Loop",
            };
            match out.last_mut() {
                Some((last, n)) if *last == name => *n += 1,
                _ => out.push((name, 1)),
            }
        }
        let texts: Vec<String> = out.iter().map(|(name, n)| format!("{name}*{n}")).collect();
        texts.join(" ")
    }

    /// `n` loads of `from`, doubled, then `between`, then `n` stores to `to`.
    fn copy(n: i32, from: MemTag, to: MemTag, same_base: bool, between: impl Fn(&mut Builder)) -> Ssa {
        let mut b = Builder::new();
        let tid = b.tid();
        let other = b.add(IntType::U32, tid, 4096);
        let target = if same_base { tid } else { b.value(other, Class::B32) };
        b.set_memory(from);
        let loaded: Vec<Value> = (0..n)
            .map(|i| b.load(Space::Shared, MemType::B32, Addr::at(tid, 4 * i), 1)[0])
            .collect();
        let doubled: Vec<Operand> = loaded.iter().map(|v| b.fadd(FloatType::F32, *v, *v)).collect();
        between(&mut b);
        b.set_memory(to);
        for (i, v) in doubled.into_iter().enumerate() {
            b.store(Space::Shared, MemType::B32, Addr::at(target, 4 * i as i32), &[v]);
        }
        b.finish()
    }
    fn listed(mut ssa: Ssa, budget: u32) -> String {
        run(&mut ssa, budget);
        shape(&ssa)
    }
    const IN: MemTag = MemTag::shared(0);

    #[test]
    fn tiles_are_as_large_as_the_budget_allows() {
        let build = || copy(8, IN, OUT, false, |_| {});
        let flat = "MovSpecial32*1 AddInt*1 Ld*8 AddFloat*8 St*8";
        assert_eq!(listed(build(), 100), flat);
        let twice = "MovSpecial32*1 Ld*4 AddFloat*4 AddInt*1 St*4 Ld*4 AddFloat*4 St*4";
        assert_eq!(
            listed(build(), 7).replace("AddInt*1 ", ""),
            twice.replace("AddInt*1 ", "")
        );
        let each = " Ld*1 AddFloat*1 St*1".repeat(7);
        assert!(listed(build(), 2).ends_with(&each), "{}", listed(build(), 2));
    }

    #[test]
    fn loads_stay_above_stores_that_may_touch_the_same_bytes() {
        let flat = |text: String| assert!(text.contains("Ld*8"), "{text}");
        let tiled = |text: String| assert!(text.contains("Ld*1"), "{text}");
        tiled(listed(copy(8, IN, OUT, false, |_| {}), 2));
        // One memory, and addresses of which nothing is known.
        flat(listed(copy(8, IN, IN, false, |_| {}), 2));
        flat(listed(copy(8, MemTag::ANY, OUT, false, |_| {}), 2));
        flat(listed(copy(8, IN, MemTag::ANY, false, |_| {}), 2));
        // In place: every element is stored where it was loaded.
        tiled(listed(copy(8, IN, IN, true, |_| {}), 2));
    }

    #[test]
    fn loads_stay_above_what_orders_memory() {
        let barrier = |b: &mut Builder| {
            b.inst(Inst::BarWarp { mask: 0xffff_ffff });
        };
        let text = listed(copy(8, IN, OUT, false, barrier), 2);
        let before = text.split("BarWarp").next().unwrap_or_default();
        assert_eq!(before.matches("Ld*").count(), text.matches("Ld*").count(), "{text}");
        // So they do where it is inside a conditional.
        let inside = |b: &mut Builder| {
            let tid = b.tid();
            let p = b.setp(Compare::Lt, CompareType::U32, tid, 7);
            b.open_if(p);
            b.inst(Inst::Fence {
                sem: FenceSem::AcqRel,
                scope: Scope::Cta,
            });
            b.close_if(&[]);
        };
        let text = listed(copy(8, IN, OUT, false, inside), 2);
        let before = text.split("If").next().unwrap_or_default();
        assert_eq!(before.matches("Ld*").count(), text.matches("Ld*").count(), "{text}");
    }

    #[test]
    fn conditionals_that_only_compute_go_with_their_element() {
        let mut b = Builder::new();
        let (tid, pointer) = (b.tid(), b.param(ParamRef(0)));
        let values: Vec<Operand> = (0..8)
            .map(|i| {
                let x = b.inst(Inst::LdNc {
                    ty: MemType::B32,
                    d: smallvec::smallvec![Value::NEW],
                    addr: Addr::at(pointer, 4 * i),
                })[0];
                let p = b.setp(Compare::Lt, CompareType::U32, x, 7);
                b.open_if(p);
                let y = b.mul(IntType::U32, x, x);
                b.open_else(&[y]);
                b.close_if(&[x.into()])[0].into()
            })
            .collect();
        for (i, v) in values.into_iter().enumerate() {
            b.store(Space::Shared, MemType::B32, Addr::at(tid, 4 * i as i32), &[v]);
        }
        let text = listed(b.finish(), 2);
        assert!(text.ends_with(&" LdNc*1 Setp*1 If*1 St*1".repeat(7)), "{text}");
    }
}
