//! Registers that a wgmma reads or writes after it has been issued: which are in flight at which point.
//!
//! An accumulator, and a fragment of A, belongs to the tensor core from the issue to the wait that covers it. Per register
//! the analysis keeps how many groups have been committed since the youngest wgmma on it, on the worst path to here;
//! only registers in flight, or touched since the last `wgmma.fence`, cost anything, so that it grows with the program and
//! not with the product of its waits and its registers.
use super::flat::*;
use super::flow::{Flow, number_registers, successors};
use super::inst::{Effects, Inst};
use super::operand::Field;
use std::collections::BinaryHeap;

const IDLE: u8 = u8::MAX;
/// More groups than a wait can leave pending.
const MANY: u8 = 8;

/// The last access of an ordinary instruction to a register that no `wgmma.fence` has followed; the worst where paths join.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Access {
    Fenced,
    Read,
    Written,
}

/// What is known of one register.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct State {
    /// Groups committed since the youngest wgmma that writes it (`IDLE`: none in flight).
    written: u8,
    /// The same of wgmmas that read it.
    read: u8,
    dirty: Access,
}

const REST: State = State {
    written: IDLE,
    read: IDLE,
    dirty: Access::Fenced,
};

impl State {
    fn flies(self) -> bool {
        self.written != IDLE || self.read != IDLE
    }
    fn join(self, other: State) -> State {
        State {
            written: self.written.min(other.written),
            read: self.read.min(other.read),
            dirty: self.dirty.max(other.dirty),
        }
    }
}

/// The state between blocks: registers that are not at rest, by number.
#[derive(Clone, PartialEq, Debug)]
struct Summary {
    /// On some way here there was no `wgmma.fence`: every register counts as written.
    never_fenced: bool,
    states: Vec<(u32, State)>,
}

impl Summary {
    /// Takes in another way; whether that changes anything.
    fn join(&mut self, other: &Summary) -> bool {
        let mut out = Vec::with_capacity(self.states.len().max(other.states.len()));
        let (mut a, mut b) = (self.states.iter().peekable(), other.states.iter().peekable());
        loop {
            out.push(match (a.peek(), b.peek()) {
                (Some(x), Some(y)) if x.0 == y.0 => {
                    let joined = (x.0, x.1.join(y.1));
                    a.next();
                    b.next();
                    joined
                }
                (Some(x), Some(y)) if x.0 < y.0 => {
                    let x = **x;
                    a.next();
                    x
                }
                (_, Some(y)) => {
                    let y = **y;
                    b.next();
                    y
                }
                (Some(x), None) => {
                    let x = **x;
                    a.next();
                    x
                }
                (None, None) => break,
            });
        }
        let joined = Summary {
            never_fenced: self.never_fenced || other.never_fenced,
            states: out,
        };
        let changed = joined != *self;
        *self = joined;
        changed
    }
}

/// What breaks a rule: its name, and what happened.
pub type Broken = (&'static str, String);

/// The registers of a kernel's wgmmas, and their states at the start of every block that the entry reaches.
pub struct Asynchronous<'a> {
    flat: &'a Flat,
    /// Number among them, by number of register.
    numbers: Vec<Option<u32>>,
    registers: Vec<Reg>,
    entries: Vec<Option<Summary>>,
}

impl<'a> Asynchronous<'a> {
    /// `None`: the kernel has no wgmma. Labels and register numbers must be sound.
    pub fn of(flat: &'a Flat, flow: &Flow) -> Option<Asynchronous<'a>> {
        let (index, total) = number_registers(flat);
        let mut numbers: Vec<Option<u32>> = vec![None; total];
        let mut registers = vec![];
        for fi in flat.blocks.iter().flat_map(|b| &b.insts) {
            if fi.inst.effects().contains(Effects::ASYNC_REGISTERS) {
                let mut add = |r: Reg| {
                    numbers[index(r)].get_or_insert_with(|| {
                        registers.push(r);
                        registers.len() as u32 - 1
                    });
                };
                fi.inst.for_each_def(|r, _| add(r));
                fragments(&fi.inst).for_each(add);
            }
        }
        if registers.is_empty() {
            return None;
        }
        let mut analysis = Asynchronous {
            flat,
            numbers,
            registers,
            entries: vec![None; flat.blocks.len()],
        };
        analysis.solve(flow);
        Some(analysis)
    }

    fn solve(&mut self, flow: &Flow) {
        let (index, _) = number_registers(self.flat);
        let mut walk = Walk::new(self.registers.len());
        self.entries[0] = Some(Summary {
            never_fenced: true,
            states: vec![],
        });
        // Blocks by their place in the order, so that what precedes a block has been seen before it.
        let mut work = BinaryHeap::from([std::cmp::Reverse(0u32)]);
        let mut queued = vec![false; self.entries.len()];
        while let Some(std::cmp::Reverse(at)) = work.pop() {
            let b = flow.order[at as usize] as usize;
            queued[b] = false;
            let Some(entry) = &self.entries[b] else { continue };
            walk.load(entry);
            for fi in &self.flat.blocks[b].insts {
                walk.step(&fi.inst, |r| self.numbers[index(r)], |_| {}, |_| {});
            }
            let exit = walk.save();
            for to in successors(&self.flat.blocks[b].terminator) {
                let changed = match &mut self.entries[to] {
                    Some(old) => old.join(&exit),
                    slot => {
                        *slot = Some(exit.clone());
                        true
                    }
                };
                if changed && !std::mem::replace(&mut queued[to], true) {
                    work.push(std::cmp::Reverse(flow.position[to]));
                }
            }
        }
    }

    /// Reports every instruction that breaks the rules `in_flight` and `wgmma_fence`: block, instruction, what.
    pub fn check(&self, mut report: impl FnMut(usize, usize, Broken)) {
        let (index, _) = number_registers(self.flat);
        let mut walk = Walk::new(self.registers.len());
        for (b, entry) in self.entries.iter().enumerate() {
            let Some(entry) = entry else { continue };
            walk.load(entry);
            for (i, fi) in self.flat.blocks[b].insts.iter().enumerate() {
                // One of many registers says enough.
                let mut found: Vec<Broken> = vec![];
                let broken = |broken: Broken| {
                    if found.iter().all(|(rule, _)| *rule != broken.0) {
                        found.push(broken);
                    }
                };
                walk.step(&fi.inst, |r| self.numbers[index(r)], |_| {}, broken);
                found.into_iter().for_each(|broken| report(b, i, broken));
            }
            walk.save();
        }
    }

    /// Reports where registers are in flight besides where they are read and written: at a block's start (`None`) and end
    /// (its number of instructions), and at the instruction whose wait gives them back.
    pub fn in_flight(&self, mut at: impl FnMut(usize, Option<usize>, Reg)) {
        let (index, _) = number_registers(self.flat);
        let mut walk = Walk::new(self.registers.len());
        for (b, entry) in self.entries.iter().enumerate() {
            let Some(entry) = entry else { continue };
            walk.load(entry);
            let insts = &self.flat.blocks[b].insts;
            walk.flying
                .iter()
                .for_each(|n| at(b, None, self.registers[*n as usize]));
            for (i, fi) in insts.iter().enumerate() {
                let settled = |n: u32| at(b, Some(i), self.registers[n as usize]);
                walk.step(&fi.inst, |r| self.numbers[index(r)], settled, |_| {});
            }
            let end = Some(insts.len());
            walk.flying.iter().for_each(|n| at(b, end, self.registers[*n as usize]));
            walk.save();
        }
    }
}

/// The registers of A.
fn fragments(inst: &Inst<Reg>) -> impl Iterator<Item = Reg> {
    let mut regs = vec![];
    for field in inst.fields() {
        if let Field::Srcs(list, _) = field {
            regs.extend(list.iter().filter_map(|s| s.reg()));
        }
    }
    regs.into_iter()
}

/// The state inside a block.
struct Walk {
    never_fenced: bool,
    states: Vec<State>,
    /// Registers in flight.
    flying: Vec<u32>,
    /// Registers that were touched since the last fence; some more than once.
    dirtied: Vec<u32>,
}

impl Walk {
    fn new(registers: usize) -> Walk {
        Walk {
            never_fenced: true,
            states: vec![REST; registers],
            flying: vec![],
            dirtied: vec![],
        }
    }

    /// All registers are at rest.
    fn load(&mut self, summary: &Summary) {
        self.never_fenced = summary.never_fenced;
        for (n, state) in &summary.states {
            self.states[*n as usize] = *state;
            if state.flies() {
                self.flying.push(*n);
            }
            if state.dirty != Access::Fenced {
                self.dirtied.push(*n);
            }
        }
    }

    /// Leaves all registers at rest.
    fn save(&mut self) -> Summary {
        let mut states = vec![];
        for n in self.flying.drain(..).chain(self.dirtied.drain(..)) {
            let state = std::mem::replace(&mut self.states[n as usize], REST);
            if state != REST {
                states.push((n, state));
            }
        }
        states.sort_unstable_by_key(|(n, _)| *n);
        Summary {
            never_fenced: self.never_fenced,
            states,
        }
    }

    fn access(&mut self, n: u32, access: Access) {
        let dirty = &mut self.states[n as usize].dirty;
        if *dirty == Access::Fenced {
            self.dirtied.push(n);
        }
        *dirty = (*dirty).max(access);
    }

    fn dirty(&self, n: u32) -> Access {
        match self.never_fenced {
            true => Access::Written,
            false => self.states[n as usize].dirty,
        }
    }

    fn take_off(&mut self, n: u32, age: impl Fn(&mut State) -> &mut u8) {
        let state = &mut self.states[n as usize];
        if !state.flies() {
            self.flying.push(n);
        }
        *age(state) = 0;
    }

    fn step(
        &mut self,
        inst: &Inst<Reg>,
        number: impl Fn(Reg) -> Option<u32>,
        mut settled: impl FnMut(u32),
        mut report: impl FnMut(Broken),
    ) {
        if inst.effects().contains(Effects::ASYNC_REGISTERS) {
            let unfenced = |r: Reg, how: Access| {
                let how = if how == Access::Read { "read" } else { "written" };
                ("wgmma_fence", format!("{r} was {how}, and no wgmma.fence followed"))
            };
            for r in fragments(inst) {
                let Some(n) = number(r) else { continue };
                if self.states[n as usize].written != IDLE {
                    report(("in_flight", format!("a wgmma that writes {r} is in flight")));
                }
                if self.dirty(n) != Access::Fenced {
                    report(unfenced(r, self.dirty(n)));
                }
                self.take_off(n, |state| &mut state.read);
            }
            inst.for_each_def(|r, _| {
                let Some(n) = number(r) else { return };
                if self.states[n as usize].read != IDLE {
                    report(("in_flight", format!("a wgmma that reads {r} is in flight")));
                }
                if self.dirty(n) != Access::Fenced {
                    report(unfenced(r, self.dirty(n)));
                }
                self.take_off(n, |state| &mut state.written);
            });
            return;
        }
        match inst {
            Inst::WgmmaFence { .. } => {
                self.never_fenced = false;
                for n in self.dirtied.drain(..) {
                    self.states[n as usize].dirty = Access::Fenced;
                }
            }
            Inst::WgmmaCommit {} => {
                for n in &self.flying {
                    let State { written, read, .. } = &mut self.states[*n as usize];
                    for age in [written, read].into_iter().filter(|age| **age != IDLE) {
                        *age = (*age + 1).min(MANY);
                    }
                }
            }
            Inst::WgmmaWait { n: groups, .. } => {
                let states = &mut self.states;
                self.flying.retain(|n| {
                    let state = &mut states[*n as usize];
                    for age in [&mut state.written, &mut state.read] {
                        if *age != IDLE && i64::from(*age) > *groups {
                            *age = IDLE;
                        }
                    }
                    if !state.flies() {
                        settled(*n);
                    }
                    state.flies()
                });
            }
            _ => {
                inst.for_each_use(|r, _| {
                    let Some(n) = number(r) else { return };
                    if self.states[n as usize].written != IDLE {
                        let what = format!("{r} is read, and a wgmma that writes it is in flight");
                        report(("in_flight", what));
                    }
                    self.access(n, Access::Read);
                });
                inst.for_each_def(|r, _| {
                    let Some(n) = number(r) else { return };
                    if self.states[n as usize].flies() {
                        let what = format!("{r} is written, and a wgmma that uses it is in flight");
                        report(("in_flight", what));
                    }
                    self.access(n, Access::Written);
                });
            }
        }
    }
}
