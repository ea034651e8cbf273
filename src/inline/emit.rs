//! A [`Program`] as part of a kernel's program.
//!
//! A text has labels and branches, the kernel's form conditionals and loops. In the text's order, *active* is the predicate of the lanes
//! that are there: a forward branch takes lanes out of it and remembers them with its label, where they come back. From a label that is
//! branched back to, up to the last such branch, is a loop: its lanes go on while they have taken one.
use super::program::{Label, Program, Statement};
use crate::error::Loc;
use crate::ptx::build::{Builder, Operand};
use crate::ptx::flat::{Guard, Reg};
use crate::ptx::inst::{Inst, ROWS, RegMap};
use crate::ptx::modifier::{BitType, CarryMad, CarryOp, Indexed, IntType, LogicType, WideType};
use crate::ptx::operand::{Class, Field, Slot, Src};
use crate::ptx::ssa::{Rounding, Value};
use std::ops::Range;

/// Emits a program whose operands are these, and gives its results. With `located`, each statement's number is what it emits belongs to.
pub fn emit(b: &mut Builder, program: &Program, operands: &[Operand], located: bool) -> Vec<Operand> {
    let num_results = program.interface.len() - operands.len();
    let mut emitter = Emitter {
        b,
        program,
        registers: vec![Src::Imm(0); program.count()],
        away: vec![Src::Imm(0); program.labels.len()],
        located,
    };
    for (reg, operand) in program.interface[num_results..].iter().zip(operands) {
        emitter.registers[program.index(*reg)] = *operand;
    }
    let before = emitter.b.set_rounding(Rounding::AsWritten);
    emitter.run(0..program.statements.len(), Src::Imm(1));
    emitter.b.set_rounding(before);
    let results = program.interface[..num_results].iter();
    results.map(|r| emitter.registers[program.index(*r)]).collect()
}

/// The end of the loop that a label begins, if branches come back to it: loops that begin inside are inside.
pub(super) fn loop_end(program: &Program, head: usize, end: usize) -> Option<usize> {
    let last_back = |to: usize| {
        let back = |at: &usize| matches!(&program.statements[*at], Statement::Branch { to: label, .. } if program.labels[*label] == to);
        (to + 1..end).rev().find(back).map(|at| at + 1)
    };
    let mut stop = last_back(head)?;
    let mut at = head + 1;
    while at < stop {
        if let (Statement::Label(_), Some(inner)) = (&program.statements[at], last_back(at)) {
            stop = stop.max(inner);
        }
        at += 1;
    }
    Some(stop)
}

struct Emitter<'a> {
    b: &'a mut Builder,
    program: &'a Program,
    /// What each register of the text holds.
    registers: Vec<Operand>,
    /// Of each label, the lanes that have branched there and are not there yet.
    away: Vec<Operand>,
    located: bool,
}

const NEVER: Operand = Src::Imm(0);
const ALWAYS: Operand = Src::Imm(1);

impl Emitter<'_> {
    /// Emits statements, in which these lanes are active; gives those that are so at their end.
    fn run(&mut self, range: Range<usize>, mut active: Operand) -> Operand {
        let program = self.program;
        // Who was away, and who was there, before each branch. Lanes are one or the other: where those who are away are the same again,
        // so are the others.
        let mut before: Vec<(Vec<Operand>, Operand)> = vec![];
        let mut at = range.start;
        while at < range.end {
            if self.located {
                self.b.set_loc(Loc(at as u32));
            }
            match &program.statements[at] {
                Statement::Label(label) => {
                    let back = std::mem::replace(&mut self.away[*label], NEVER);
                    active = self.b.or(LogicType::Pred, active, back);
                    if let Some(n) = before.iter().position(|(away, _)| *away == self.away) {
                        active = before[n].1;
                        before.truncate(n);
                    }
                    if let Some(end) = loop_end(program, at, range.end) {
                        before.push((self.away.clone(), active));
                        active = self.repeat(*label, at..end, active);
                        at = end;
                        continue;
                    }
                    at += 1;
                }
                Statement::Branch { guard, to } => {
                    before.push((self.away.clone(), active));
                    let taken = match guard {
                        Some(guard) => {
                            let p = self.guard(*guard);
                            self.b.and(LogicType::Pred, active, p)
                        }
                        None => active,
                    };
                    self.away[*to] = self.b.or(LogicType::Pred, self.away[*to], taken);
                    let stay = self.b.not(LogicType::Pred, taken);
                    active = self.b.and(LogicType::Pred, active, stay);
                    at += 1;
                }
                Statement::Inst { .. } => {
                    let is_inst = |s: &Statement| matches!(s, Statement::Inst { .. });
                    let end = (at..range.end)
                        .find(|i| !is_inst(&program.statements[*i]))
                        .unwrap_or(range.end);
                    self.guarded(at..end, active, |cx, i| cx.statement(i));
                    at = end;
                }
            }
        }
        active
    }

    /// The statements of `range` one by one, in the lanes where `active` holds: what they write is kept there only.
    fn guarded(&mut self, range: Range<usize>, active: Operand, mut each: impl FnMut(&mut Self, usize)) {
        match active {
            Src::Imm(bits) if bits & 1 == 0 => {}
            Src::Imm(_) => range.for_each(|i| each(self, i)),
            Src::Reg(_) => {
                let written = self.written(range.clone());
                self.conditional(active, &written, |cx| {
                    range.for_each(|i| each(cx, i));
                    vec![]
                });
            }
        }
    }

    /// The registers that statements write.
    fn written(&self, range: Range<usize>) -> Vec<Reg> {
        let mut out: Vec<Reg> = vec![];
        for statement in &self.program.statements[range] {
            if let Statement::Inst { inst, .. } = statement {
                inst.for_each_def(|r, _| out.push(r));
            }
        }
        out.sort();
        out.dedup();
        out
    }

    /// What `f` emits, where `p` holds; of registers, it changes `written` only. Gives the predicates that `f` gives, which elsewhere do
    /// not hold.
    fn conditional(&mut self, p: Operand, written: &[Reg], f: impl FnOnce(&mut Self) -> Vec<Operand>) -> Vec<Operand> {
        let index = |r: &Reg| self.program.index(*r);
        let slots: Vec<usize> = written.iter().map(index).collect();
        let before: Vec<Operand> = slots.iter().map(|i| self.registers[*i]).collect();
        self.b.open_if(p);
        let made = f(self);
        let mut after = self.in_registers(written);
        for x in &made {
            after.push(Src::Reg(self.b.value(*x, Class::Pred)));
        }
        self.b.open_else(&after);
        slots.iter().zip(&before).for_each(|(i, x)| self.registers[*i] = *x);
        let mut kept = self.in_registers(written);
        for _ in &made {
            kept.push(Src::Reg(self.b.value(NEVER, Class::Pred)));
        }
        let mut results = self.b.close_if(&kept).into_iter().map(Src::Reg);
        slots
            .iter()
            .zip(results.by_ref())
            .for_each(|(i, x)| self.registers[*i] = x);
        results.collect()
    }

    fn in_registers(&mut self, registers: &[Reg]) -> Vec<Operand> {
        let values = registers.iter().map(|r| Src::Reg(self.value(*r)));
        values.collect()
    }

    /// The value of a register of the text.
    fn value(&mut self, r: Reg) -> Value {
        let x = self.registers[self.program.index(r)];
        self.b.value(x, r.class)
    }

    /// Where a guard holds.
    fn guard(&mut self, guard: Guard) -> Operand {
        let p = self.registers[self.program.index(guard.pred)];
        match guard.negated {
            true => self.b.not(LogicType::Pred, p),
            false => p,
        }
    }

    fn statement(&mut self, at: usize) {
        let program = self.program;
        let Statement::Inst { guard, inst } = &program.statements[at] else {
            return;
        };
        if self.located {
            self.b.set_loc(Loc(at as u32));
        }
        let Some(guard) = guard else { return self.inst(inst) };
        match self.guard(*guard) {
            Src::Imm(bits) if bits & 1 == 0 => {}
            Src::Imm(_) => self.inst(inst),
            p if inst.is_speculatable() => {
                let mut written: Vec<Reg> = vec![];
                inst.for_each_def(|r, _| written.push(r));
                let before: Vec<Operand> = written.iter().map(|r| self.registers[program.index(*r)]).collect();
                self.inst(inst);
                for (r, old) in written.iter().zip(before) {
                    let new = self.registers[program.index(*r)];
                    self.registers[program.index(*r)] = self.pick(r.class, p, new, old);
                }
            }
            p => {
                let written = self.written(at..at + 1);
                self.conditional(p, &written, |cx| {
                    cx.inst(inst);
                    vec![]
                });
            }
        }
    }

    /// `p ? a : b`
    fn pick(&mut self, class: Class, p: Operand, a: Operand, b: Operand) -> Operand {
        match BitType::of(class) {
            Some(ty) => self.b.select(ty, p, a, b),
            None => {
                let on = self.b.and(LogicType::Pred, p, a);
                let not = self.b.not(LogicType::Pred, p);
                let off = self.b.and(LogicType::Pred, not, b);
                self.b.or(LogicType::Pred, on, off)
            }
        }
    }

    fn inst(&mut self, inst: &Inst<Reg>) {
        // Registers that hold constants, where an instruction takes none.
        let mut operands = vec![];
        inst.for_each_use(|r, _| operands.push(r));
        let values: Vec<(Reg, Value)> = operands.into_iter().map(|r| (r, self.value(r))).collect();
        let mut defs = vec![];
        inst.for_each_def(|r, _| defs.push(r));
        if let Some(Field::Src(Src::Reg(id), _)) = named_barrier(inst) {
            self.check_barrier(*id);
        }
        let inst = self.with_wide_products(inst.map(&mut Rename(&values)));
        if let ([d], true) = (&defs[..], inst.effects().is_pure()) {
            self.registers[self.program.index(*d)] = self.b.emit(inst);
            return;
        }
        let made = self.b.inst(inst);
        for (d, value) in defs.iter().zip(made) {
            self.registers[self.program.index(*d)] = Src::Reg(value);
        }
    }

    /// High halves of 32-bit products as parts of whole ones. ptxas before 13.4 makes one instruction of the high half and a sum, and loses every
    /// second turn of a loop that adds the same product again (`tests/kernels/suite_inline_ptx.py` has such loops).
    fn with_wide_products(&mut self, inst: Inst<Value>) -> Inst<Value> {
        let (ty, a, b) = match inst {
            Inst::MulHi { ty, a, b, .. } | Inst::MadHi { ty, a, b, .. } => (ty, a, b),
            Inst::CarryMad { op, ty, a, b, .. } if op.is_high() => (ty, a, b),
            other => return other,
        };
        let Some(wide) = wide(ty) else { return inst };
        let a = self.high(wide, a, b);
        match inst {
            Inst::MadHi { d, c, .. } => Inst::AddInt { ty, d, a, b: c },
            Inst::CarryMad { op, d, c, .. } => {
                let op = sum_of_half(op);
                Inst::CarryOp { op, ty, d, a, b: c }
            }
            Inst::MulHi { d, .. } => Inst::Mov { ty: BitType::B32, d, a },
            other => other,
        }
    }

    fn high(&mut self, ty: WideType, a: Operand, b: Operand) -> Operand {
        match self.b.emit(Inst::mul_wide(ty, Value::NEW, a, b)) {
            Src::Imm(x) => Src::Imm(x >> 32),
            Src::Reg(a) => {
                let d = std::iter::repeat_n(Value::NEW, 2).collect();
                self.b.inst(Inst::UnpackB64 { d, a })[1].into()
            }
        }
    }

    /// Says what numbers of a named barrier may be in a register, unless it is known to be one of them.
    fn check_barrier(&mut self, id: Reg) {
        let (first, last) = self.program.barriers;
        let i = self.registers[self.program.index(id)];
        if i.imm()
            .is_some_and(|i| (u64::from(first)..=u64::from(last)).contains(&i))
        {
            return;
        }
        self.b.inst(Inst::check_index(
            IntType::S32,
            Indexed::Named,
            i,
            1,
            i64::from(last) + 1,
            0,
            i64::from(first),
        ));
    }

    /// A loop, for these lanes; gives those that leave it at its end.
    fn repeat(&mut self, head: Label, range: Range<usize>, active: Operand) -> Operand {
        if active == NEVER {
            return NEVER;
        }
        let program = self.program;
        // What goes round: registers that are written, and the lanes that have left for labels behind (or for an outer loop's next
        // round).
        let written = self.written(range.clone());
        let mut exits: Vec<Label> = vec![];
        for statement in &program.statements[range.clone()] {
            if let Statement::Branch { to, .. } = statement
                && !range.contains(&program.labels[*to])
                && !exits.contains(to)
            {
                exits.push(*to);
            }
        }
        let outside: Vec<Operand> = exits.iter().map(|l| self.away[*l]).collect();
        exits.iter().for_each(|l| self.away[*l] = NEVER);
        let Src::Reg(_) = active else {
            // All lanes go in: none had left before.
            return self.rounds(head, range, &written, &exits);
        };
        let left = self.conditional(active, &written, |cx| {
            let end = cx.rounds(head, range, &written, &exits);
            exits.iter().map(|l| cx.away[*l]).chain([end]).collect()
        });
        for ((l, x), before) in exits.iter().zip(&left).zip(outside) {
            self.away[*l] = self.b.or(LogicType::Pred, *x, before);
        }
        left[exits.len()]
    }

    /// The loop itself: a round, then another one in the lanes that have branched back.
    fn rounds(&mut self, head: Label, range: Range<usize>, written: &[Reg], exits: &[Label]) -> Operand {
        let program = self.program;
        let inits: Vec<Value> = written.iter().map(|r| self.value(*r)).collect();
        let params = self.b.open_loop(&inits);
        for (r, p) in written.iter().zip(&params) {
            self.registers[program.index(*r)] = Src::Reg(*p);
        }
        let end = self.run(range.start + 1..range.end, ALWAYS);
        let again = std::mem::replace(&mut self.away[head], NEVER);
        let mut handed: Vec<Value> = written.iter().map(|r| self.value(*r)).collect();
        let lanes: Vec<Operand> = exits.iter().map(|l| self.away[*l]).chain([end]).collect();
        for x in &lanes {
            handed.push(self.b.value(*x, Class::Pred));
        }
        let body = self.b.open_body(again, &handed);
        let next: Vec<Operand> = body[..written.len()].iter().map(|v| Src::Reg(*v)).collect();
        let results = self.b.close_loop(&next);
        for (r, x) in written.iter().zip(&results) {
            self.registers[program.index(*r)] = Src::Reg(*x);
        }
        let left = &results[written.len()..];
        for ((l, x), seen) in exits.iter().zip(left).zip(&lanes) {
            self.away[*l] = match seen {
                Src::Imm(_) => *seen,
                Src::Reg(_) => Src::Reg(*x),
            };
        }
        match (lanes[exits.len()], exits) {
            // Whoever does not go on has come to the end.
            (_, []) => ALWAYS,
            (end @ Src::Imm(_), _) => end,
            (Src::Reg(_), _) => Src::Reg(left[exits.len()]),
        }
    }
}

/// The type by which a whole product is twice as wide as words of 32 bits.
fn wide(ty: IntType) -> Option<WideType> {
    match ty {
        IntType::U32 => Some(WideType::U32),
        IntType::S32 => Some(WideType::S32),
        IntType::U16 | IntType::S16 | IntType::U64 | IntType::S64 => None,
    }
}

/// The sum of a product's half and a third operand.
fn sum_of_half(op: CarryMad) -> CarryOp {
    match op {
        CarryMad::MadLoCc | CarryMad::MadHiCc => CarryOp::AddCc,
        CarryMad::MadcLo | CarryMad::MadcHi => CarryOp::Addc,
        CarryMad::MadcLoCc | CarryMad::MadcHiCc => CarryOp::AddcCc,
    }
}

/// The operand that is the number of a named barrier.
pub(super) fn named_barrier<R: Copy>(inst: &Inst<R>) -> Option<Field<'_, R>> {
    let at = ROWS[inst.row()]
        .fields
        .iter()
        .position(|field| *field == ("src", "id"))?;
    inst.fields().get(at).copied()
}

/// Registers of the text → values.
struct Rename<'a>(&'a [(Reg, Value)]);

impl RegMap<Reg, Value> for Rename<'_> {
    fn reg(&mut self, r: Reg, _: Slot) -> Value {
        let found = self.0.iter().find(|(name, _)| *name == r);
        found.expect("every register that is read has a value").1
    }
    fn def(&mut self, _: Reg, _: Slot) -> Value {
        Value::NEW
    }
}
