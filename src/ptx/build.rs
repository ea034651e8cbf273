//! The builder that lowering writes `ptx::Ssa` with.
//!
//! Helpers take and return [`Operand`]s, so that constants stay constants: every pure instruction is simplified
//! ([`super::simplify`]) and looked up among the equal ones that dominate it before it becomes an op; so are conditionals that only compute. Control flow is
//! opened and closed explicitly (`open_if` … `close_if`), with closures on top where that reads better: [`control_flow`].
//!
//! ```
//! use smalt::ptx::build::Builder;
//! use smalt::ptx::modifier::*;
//! let mut b = Builder::new();
//! let tid = b.tid();
//! let address = b.mul(IntType::U32, tid, 16);
//! let base = b.smem_base();
//! let address = b.add(IntType::U32, base, address);
//! let at = b.addr(address, 0);
//! b.store(Space::Shared, MemType::B32, at, &[tid.into(), 0.into()]);
//! let ssa = b.finish();
//! assert!(ssa.body.is_some());
//! ```
mod control_flow;

use super::equal_conditionals::Computation;
use super::evaluate::{ConstantFunctions, NoFunctions};
use super::inst::{Effects, Inst, RegMap};
use super::modifier::*;
use super::operand::*;
use super::simplify::{self, Facts, Simplified};
use super::ssa::*;
use super::uniformity::{Derived, derive};
use crate::error::Loc;
use crate::target::Features;
use cranelift_entity::SecondaryMap;
use rustc_hash::{FxHashMap, FxHasher};
use smallvec::{SmallVec, smallvec};
use std::hash::Hasher;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

/// What helpers take and return: a value or a constant.
pub type Operand = Src<Value>;
/// Emits others that define the same, if there are any.
pub type Substitute = fn(&mut Builder, &Inst<Value>) -> Option<SmallVec<[Value; 4]>>;

/// Where a value is defined.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum Def {
    /// A region parameter or a result of control flow.
    #[default]
    Other,
    /// `ops[index]` of the region.
    Op(Region, u32),
}

#[derive(Clone, Debug)]
struct Info {
    def: Def,
    /// Upper bound as an unsigned number.
    bound: u64,
}

impl Default for Info {
    fn default() -> Info {
        Info {
            def: Def::Other,
            bound: u64::MAX,
        }
    }
}

/// A piece of control flow that is open.
enum Open {
    Body,
    Then {
        cond: Value,
        then: Region,
        otherwise: Region,
        loc: Loc,
    },
    Else {
        cond: Value,
        then: Region,
        otherwise: Region,
        loc: Loc,
    },
    Cond {
        inits: Vec<Value>,
        cond: Region,
        body: Region,
        loc: Loc,
    },
    Loop {
        inits: Vec<Value>,
        cond: Region,
        body: Region,
        loc: Loc,
    },
}

struct Scope {
    open: Open,
    region: Region,
    /// Equal-instruction table entries to restore when the region closes.
    undo: Vec<(u64, Option<Value>)>,
    /// How many conditionals were known where the region opens.
    conditionals: usize,
}

/// Writes `ptx::Ssa`.
pub struct Builder {
    ssa: Ssa,
    info: SecondaryMap<Value, Info>,
    /// Executed once, before everything else: special registers and what follows from them.
    prologue: Region,
    scopes: Vec<Scope>,
    /// Hash of a pure instruction → the first value that it defines.
    known: FxHashMap<u64, Value>,
    /// Conditionals that only compute, and their results.
    conditionals: Vec<(Computation, Vec<Value>)>,
    loc: Loc,
    memory: MemTag,
    rounding: Rounding,
    guard: Option<(Value, Negated)>,
    functions: Box<dyn ConstantFunctions>,
    /// What the machine has, and what stands for an instruction that needs more.
    features: Features,
    substitute: Substitute,
    /// Ops go to the prologue.
    in_prologue: bool,
    warp: Option<Value>,
    warpgroup: Option<Value>,
    /// Instructions until now, and how many there may be.
    emitted: u64,
    limit: u64,
}

impl Default for Builder {
    fn default() -> Builder {
        Builder::new()
    }
}

/// Unwinds from an instruction beyond [`Builder::emit_at_most`]: what emits is many functions that give operands, and one op of the kernel may
/// be millions of instructions.
struct TooLong;

/// Runs what emits a program; `None` if it is too long. The program is of no use then.
pub fn within_limit<T>(emit: impl FnOnce() -> T) -> Option<T> {
    match catch_unwind(AssertUnwindSafe(emit)) {
        Ok(made) => Some(made),
        Err(payload) if payload.is::<TooLong>() => None,
        Err(payload) => resume_unwind(payload),
    }
}

struct BuilderFacts<'a>(&'a Builder);

impl Facts for BuilderFacts<'_> {
    fn constant(&self, v: Value) -> Option<u64> {
        match self.definition(v)? {
            Inst::Mov { a: Src::Imm(bits), .. } | Inst::MovPred { a: Src::Imm(bits), .. } => Some(*bits),
            _ => None,
        }
    }
    fn definition(&self, v: Value) -> Option<&Inst<Value>> {
        self.0.definition(v)
    }
    fn bound(&self, v: Value) -> u64 {
        self.0.info[v].bound.min(self.0.ssa.values[v].class.mask())
    }
    fn functions(&self) -> &dyn ConstantFunctions {
        &*self.0.functions
    }
}

/// Cuts immediates to their slots and turns those that a slot refuses into registers; gives fresh values to `NEW`.
/// The last: the instruction is a copy of a predicate.
struct Legalize<'a>(&'a mut Builder, Uniform, bool);

impl RegMap<Value, Value> for Legalize<'_> {
    fn reg(&mut self, r: Value, _: Slot) -> Value {
        r
    }
    fn def(&mut self, r: Value, slot: Slot) -> Value {
        if r == Value::NEW {
            self.0.ssa.value(slot.class, self.1)
        } else {
            r
        }
    }
    fn imm(&mut self, bits: u64, slot: Slot) -> Operand {
        let bits = bits & slot.class.mask();
        match slot.literal {
            // The copy of a predicate is the one that takes a truth value.
            LiteralStyle::None if slot.class == Class::Pred && self.2 => Src::Imm(bits),
            LiteralStyle::None => Src::Reg(self.0.value(Src::Imm(bits), slot.class)),
            LiteralStyle::Integer | LiteralStyle::F32 | LiteralStyle::F64 => Src::Imm(bits),
        }
    }
    fn src(&mut self, r: Value, slot: Slot) -> Operand {
        match BuilderFacts(self.0).constant(r) {
            Some(bits) if slot.literal != LiteralStyle::None => Src::Imm(bits),
            _ => Src::Reg(r),
        }
    }
}

/// A pure instruction's hash, definitions excluded.
fn hash_inst(inst: &Inst<Value>) -> u64 {
    let mut h = FxHasher::default();
    inst.hash_but_for_names(&mut h);
    h.finish()
}

impl Builder {
    pub fn new() -> Builder {
        let mut ssa = Ssa::default();
        let prologue = ssa.region();
        let body = ssa.region();
        ssa.body = Some(body);
        Builder {
            ssa,
            info: SecondaryMap::new(),
            prologue,
            scopes: vec![Scope {
                open: Open::Body,
                region: body,
                undo: vec![],
                conditionals: 0,
            }],
            known: FxHashMap::default(),
            conditionals: vec![],
            loc: Loc::CALL_SITE,
            memory: MemTag::ANY,
            rounding: Rounding::default(),
            guard: None,
            functions: Box::new(NoFunctions),
            features: Features::all(),
            substitute: |_, _| None,
            in_prologue: false,
            warp: None,
            warpgroup: None,
            emitted: 0,
            limit: u64::MAX,
        }
    }

    /// Folds approximate functions on constants to the unit's values.
    pub fn with_functions(mut self, functions: Box<dyn ConstantFunctions>) -> Builder {
        self.functions = functions;
        self
    }

    /// For a machine that has these parts alone.
    pub fn for_machine(mut self, features: Features, substitute: Substitute) -> Builder {
        self.features = features;
        self.substitute = substitute;
        self
    }

    /// Whether the machine has all of these parts.
    pub fn has(&self, features: Features) -> bool {
        self.features.contains(features)
    }

    /// The kernel. Every region must be closed.
    pub fn finish(mut self) -> Ssa {
        assert_eq!(self.scopes.len(), 1, "a region is still open");
        let body = self.scopes[0].region;
        let mut ops = std::mem::take(&mut self.ssa.regions[self.prologue].ops);
        ops.append(&mut self.ssa.regions[body].ops);
        self.ssa.regions[body].ops = ops;
        self.ssa
    }

    /// What there is of the kernel; regions may be open.
    pub fn program(&self) -> &Ssa {
        &self.ssa
    }

    /// The op that what follows belongs to; gives back the previous one.
    pub fn set_loc(&mut self, loc: Loc) -> Loc {
        std::mem::replace(&mut self.loc, loc)
    }
    pub fn loc(&self) -> Loc {
        self.loc
    }
    /// Instructions until now.
    pub fn emitted(&self) -> u64 {
        self.emitted
    }
    /// Whoever emits more runs in [`within_limit`].
    pub fn emit_at_most(&mut self, instructions: u64) {
        self.limit = instructions;
    }
    /// The memory that loads and stores which follow touch; gives back the previous one.
    pub fn set_memory(&mut self, memory: MemTag) -> MemTag {
        std::mem::replace(&mut self.memory, memory)
    }

    /// How what follows rounds; gives back how it was.
    pub fn set_rounding(&mut self, rounding: Rounding) -> Rounding {
        std::mem::replace(&mut self.rounding, rounding)
    }

    /// What is known of a value.
    pub fn class(&self, v: Value) -> Class {
        self.ssa.values[v].class
    }
    pub fn uniform(&self, v: impl Into<Operand>) -> Uniform {
        match v.into() {
            Src::Reg(v) => self.ssa.values[v].uniform,
            Src::Imm(_) => Uniform::Cta,
        }
    }
    /// Lowering knows more than the instruction says: a load of memory that no other thread writes, or a region
    /// parameter. Never less: the claim is checked for plausibility by the verifier.
    pub fn claim_uniform(&mut self, v: Value, uniform: Uniform) {
        let data = &mut self.ssa.values[v];
        data.uniform = data.uniform.max(uniform);
    }
    /// The value, as an unsigned number, is at most `bound`.
    pub fn assume_at_most(&mut self, v: impl Into<Operand>, bound: u64) {
        if let Src::Reg(v) = v.into() {
            let info = &mut self.info[v];
            info.bound = info.bound.min(bound);
        }
    }
    /// The largest unsigned number that the operand can be.
    pub fn bound(&self, v: impl Into<Operand>, class: Class) -> u64 {
        simplify::bound_of(&BuilderFacts(self), v.into(), class)
    }
    /// The operand's bits when they are known.
    pub fn as_constant(&self, v: impl Into<Operand>) -> Option<u64> {
        match v.into() {
            Src::Imm(bits) => Some(bits),
            Src::Reg(v) => BuilderFacts(self).constant(v),
        }
    }
    fn definition(&self, v: Value) -> Option<&Inst<Value>> {
        match self.info[v].def {
            Def::Other => None,
            Def::Op(region, index) => match &self.ssa.regions[region].ops[index as usize].kind {
                OpKind::Inst { inst, .. } => Some(inst),
                OpKind::If { .. } | OpKind::Loop { .. } => None,
            },
        }
    }

    fn region(&self) -> Region {
        if self.in_prologue {
            self.prologue
        } else {
            // The body's scope is never closed.
            self.scopes.last().expect("a scope is open").region
        }
    }

    // ------------------------------------------------------------ instructions

    /// Appends an instruction whose definitions are [`Value::NEW`] (fresh values) and gives those values back.
    /// Pure ones with one definition are better handed to [`Builder::emit`].
    pub fn inst(&mut self, inst: Inst<Value>) -> SmallVec<[Value; 4]> {
        if !self.has(inst.requires().features)
            && let Some(made) = (self.substitute)(self, &inst)
        {
            return made;
        }
        let uniform = match derive(&inst, |v| self.ssa.values[v].uniform) {
            Derived::Known(u) | Derived::Claim(u) => u,
        };
        let speculatable = inst.is_speculatable();
        // What a guarded load defines exists only where the guard holds.
        let pure = speculatable || (inst.effects().is_pure() && self.guard.is_none());
        let inst = inst.map(&mut Legalize(self, uniform, matches!(inst, Inst::MovPred { .. })));
        let hash = if pure { Some(hash_inst(&inst)) } else { None };
        if let Some(hash) = hash
            && let Some(&first) = self.known.get(&hash)
            && (!self.in_prologue || matches!(self.info[first].def, Def::Op(r, _) if r == self.prologue))
            && let Some(old) = self.definition(first)
            && old.equal_but_for_names(&inst)
        {
            let mut defs = smallvec![];
            old.for_each_def(|v, _| defs.push(v));
            return defs;
        }
        let region = self.region();
        let index = self.ssa.regions[region].ops.len() as u32;
        let mut defs: SmallVec<[Value; 4]> = smallvec![];
        inst.for_each_def(|v, _| defs.push(v));
        for &d in &defs {
            self.info[d].def = Def::Op(region, index);
        }
        if pure && let [d] = defs[..] {
            let bound = simplify::bound(&inst, &BuilderFacts(self), self.ssa.values[d].class);
            self.info[d].bound = bound;
        }
        if let (Some(hash), Some(&first)) = (hash, defs.first()) {
            let old = self.known.insert(hash, first);
            // The body's scope is never closed.
            if !self.in_prologue && self.scopes.len() > 1 {
                self.scopes.last_mut().expect("a scope is open").undo.push((hash, old));
            }
        }
        let guard = if speculatable { None } else { self.guard };
        self.append(region, guard, inst);
        defs
    }

    /// Ends what [`within_limit`] runs if the program gets too long.
    fn append(&mut self, region: Region, guard: Option<(Value, Negated)>, inst: Inst<Value>) {
        self.emitted += 1;
        if self.emitted > self.limit {
            resume_unwind(Box::new(TooLong));
        }
        self.ssa.regions[region].ops.push(Op {
            kind: OpKind::Inst { guard, inst },
            loc: self.loc,
            memory: self.memory,
            rounding: self.rounding,
        });
    }

    /// Simplifies and appends an instruction with one definition, [`Value::NEW`].
    pub fn emit(&mut self, mut inst: Inst<Value>) -> Operand {
        if inst.effects().is_pure() {
            // Each rewriting makes the instruction cheaper; the bound only guards against a mistake there.
            for _ in 0..8 {
                match simplify::simplify(&inst, &BuilderFacts(self)) {
                    Simplified::Operand(o) => return o,
                    Simplified::Inst(better) => inst = better,
                    Simplified::Same => break,
                }
            }
        }
        Src::Reg(self.emit_value(inst))
    }

    /// Appends an instruction with one definition, [`Value::NEW`], as it is.
    pub fn emit_value(&mut self, inst: Inst<Value>) -> Value {
        self.inst(inst)[0]
    }

    /// A register of its own that holds a constant, as accumulators want it (instructions that take immediates get the
    /// constant back). Elsewhere [`Builder::value`] shares one.
    pub fn constant(&mut self, class: Class, bits: u64) -> Value {
        let d = self.ssa.value(class, Uniform::Cta);
        let a = Src::Imm(bits & class.mask());
        let inst = match BitType::of(class) {
            Some(ty) => Inst::Mov { ty, d, a },
            None => Inst::MovPred { d, a },
        };
        let region = self.region();
        self.info[d] = Info {
            def: Def::Op(region, self.ssa.regions[region].ops.len() as u32),
            bound: bits & class.mask(),
        };
        self.append(region, None, inst);
        d
    }

    /// The operand in a register of class `class`; equal constants share one.
    pub fn value(&mut self, a: impl Into<Operand>, class: Class) -> Value {
        match a.into() {
            Src::Reg(v) => v,
            Src::Imm(bits) => {
                let (d, a) = (Value::NEW, Src::Imm(bits & class.mask()));
                self.emit_value(match BitType::of(class) {
                    Some(ty) => Inst::Mov { ty, d, a },
                    None => Inst::MovPred { d, a },
                })
            }
        }
    }

    /// A value of another name, as accumulators need when two start as one.
    pub fn copy(&mut self, a: impl Into<Operand>, class: Class) -> Value {
        match a.into() {
            Src::Imm(bits) => self.constant(class, bits),
            a @ Src::Reg(v) => {
                let d = self.ssa.value(class, self.ssa.values[v].uniform);
                let inst = match BitType::of(class) {
                    Some(ty) => Inst::Mov { ty, d, a },
                    None => Inst::MovPred { d, a },
                };
                let region = self.region();
                self.append(region, None, inst);
                d
            }
        }
    }

    /// What `f` appends executes only where the guard holds. Pure instructions are not guarded, and what guarded ones
    /// define may be used only inside. Guards do not nest.
    pub fn guarded<T>(&mut self, pred: Value, negated: Negated, f: impl FnOnce(&mut Builder) -> T) -> T {
        assert!(self.guard.is_none(), "guards do not nest");
        self.guard = Some((pred, negated));
        let out = f(self);
        self.guard = None;
        out
    }

    /// What `f` appends goes before everything else, once.
    pub fn prologue<T>(&mut self, f: impl FnOnce(&mut Builder) -> T) -> T {
        let (guard, loc) = (self.guard.take(), self.set_loc(Loc::CALL_SITE));
        let before = std::mem::replace(&mut self.in_prologue, true);
        let out = f(self);
        self.in_prologue = before;
        self.guard = guard;
        self.loc = loc;
        out
    }

    // ------------------------------------------------------------ integers

    /// `a + b`, elements of an array: a term of `a` that is equal in all threads is added to `b` first, once for all elements.
    /// (Addresses are added up another way: their constants last.)
    pub fn add_element(&mut self, ty: IntType, a: impl Into<Operand>, b: impl Into<Operand>) -> Operand {
        let (a, b) = (a.into(), b.into());
        let equal = |x: Operand| self.uniform(x) == Uniform::Cta;
        if let (Src::Reg(sum), true) = (a, equal(b))
            && let Some(&Inst::AddInt {
                ty: inner,
                a: own,
                b: common,
                ..
            }) = self.definition(sum)
            && inner == ty
        {
            let (own, common) = if equal(own) { (common, own) } else { (own, common) };
            // A constant is each element's own, where they are counted.
            if !equal(own) && equal(common) && matches!(common, Src::Reg(_)) {
                let common = self.add(ty, common, b);
                return self.add(ty, own, common);
            }
        }
        self.add(ty, a, b)
    }
    /// `a·b + c`
    pub fn mad(&mut self, ty: IntType, a: impl Into<Operand>, b: impl Into<Operand>, c: impl Into<Operand>) -> Operand {
        let product = self.mul(ty, a, b);
        self.add(ty, product, c)
    }
    pub fn and(&mut self, ty: LogicType, a: impl Into<Operand>, b: impl Into<Operand>) -> Operand {
        self.logic(Logic::And, ty, a, b)
    }
    pub fn or(&mut self, ty: LogicType, a: impl Into<Operand>, b: impl Into<Operand>) -> Operand {
        self.logic(Logic::Or, ty, a, b)
    }
    pub fn xor(&mut self, ty: LogicType, a: impl Into<Operand>, b: impl Into<Operand>) -> Operand {
        self.logic(Logic::Xor, ty, a, b)
    }
    /// An exact integer conversion (extension or truncation).
    pub fn cvt_int(&mut self, to: CvtType, from: CvtType, a: impl Into<Operand>) -> Operand {
        let a = self.value(a, from.slot().class);
        let (rnd, ftz, sat) = (CvtRound::None, Ftz::No, Sat::No);
        self.emit(Inst::cvt(rnd, ftz, sat, to, from, Value::NEW, a))
    }
    /// `p ? a : b`
    pub fn select(
        &mut self,
        ty: BitType,
        p: impl Into<Operand>,
        a: impl Into<Operand>,
        b: impl Into<Operand>,
    ) -> Operand {
        let (a, b) = (a.into(), b.into());
        match p.into() {
            Src::Imm(bits) => {
                if bits & 1 == 1 {
                    a
                } else {
                    b
                }
            }
            Src::Reg(p) => self.emit(Inst::selp(ty, Value::NEW, a, b, p)),
        }
    }

    // ------------------------------------------------------------ memory

    /// `[base + offset]`; a constant part of the base moves into the offset.
    pub fn addr(&mut self, base: impl Into<Operand>, offset: i32) -> Addr<Value> {
        let base = match base.into() {
            Src::Reg(v) => v,
            Src::Imm(bits) => {
                // Absolute addresses are 32-bit shared ones.
                let v = self.constant(Class::B32, bits);
                return Addr::at(v, offset);
            }
        };
        if let Some(Inst::AddInt {
            ty,
            a: Src::Reg(inner),
            b: Src::Imm(c),
            ..
        }) = self.definition(base)
        {
            let c = if ty.bits() == 32 {
                i64::from(*c as u32 as i32)
            } else {
                *c as i64
            };
            // Hardware offsets have 24 bits; beyond, the sum in a register is as good.
            let sum = c.checked_add(i64::from(offset));
            if let Some(sum) = sum.filter(|s| (0..1 << 23).contains(s)) {
                return Addr::at(*inner, sum as i32);
            }
        }
        Addr::at(base, offset)
    }
    /// A weak load of `n` elements; the address is aligned to all of them.
    pub fn load(&mut self, space: Space, ty: MemType, addr: Addr<Value>, n: usize) -> SmallVec<[Value; 4]> {
        let d = smallvec![Value::NEW; n];
        self.inst(Inst::ld(LoadSem::Weak, space, ty, d, addr))
    }
    /// A weak store of a vector.
    pub fn store(&mut self, space: Space, ty: MemType, addr: Addr<Value>, a: &[Operand]) {
        let a = a.iter().copied().collect();
        self.inst(Inst::st(StoreSem::Weak, space, ty, addr, a));
    }
    /// The shared-window address of the kernel's shared memory.
    pub fn smem_base(&mut self) -> Value {
        self.prologue(|b| b.emit_value(Inst::MovSmemBase { d: Value::NEW }))
    }
    /// An entry parameter of 8 bytes.
    pub fn param(&mut self, p: ParamRef) -> Value {
        self.prologue(|b| b.emit_value(Inst::ld_param(WordType::B64, Value::NEW, p)))
    }
    /// The generic address of an entry parameter (a tensor map).
    pub fn param_addr(&mut self, p: ParamRef) -> Value {
        self.prologue(|b| b.emit_value(Inst::ParamAddr { d: Value::NEW, p }))
    }

    // ------------------------------------------------------------ threads

    /// A special register that does not change, read once per kernel.
    pub fn special(&mut self, reg: SpecialReg32) -> Value {
        self.prologue(|b| b.emit_value(Inst::MovSpecial32 { reg, d: Value::NEW }))
    }
    /// The thread's index in the CTA.
    pub fn tid(&mut self) -> Value {
        self.special(SpecialReg32::TidX)
    }
    fn prologue_value(&mut self, f: impl FnOnce(&mut Builder) -> Operand) -> Value {
        self.prologue(|b| {
            let v = f(b);
            b.value(v, Class::B32)
        })
    }
    /// The lane's index in its warp.
    pub fn lane(&mut self) -> Value {
        let tid = self.tid();
        self.prologue_value(|b| b.and(LogicType::B32, tid, 31))
    }
    /// The thread's index in its warpgroup.
    pub fn thread_in_warpgroup(&mut self) -> Value {
        let tid = self.tid();
        self.prologue_value(|b| b.and(LogicType::B32, tid, 127))
    }
    fn broadcast(&mut self, shift: u32, uniform: Uniform) -> Value {
        let tid = self.tid();
        let (v, bound) = self.prologue(|b| {
            let index = b.shr(ShiftType::U32, tid, shift);
            let bound = b.bound(index, Class::B32);
            let a = b.value(index, Class::B32);
            let v = b.emit_value(Inst::shfl(
                ShuffleMode::Idx,
                Value::NEW,
                a,
                Src::u32(0),
                Src::u32(31),
                0xffff_ffff,
            ));
            (v, bound)
        });
        self.claim_uniform(v, uniform);
        self.assume_at_most(v, bound);
        v
    }
    /// The warp's index in the CTA, equal in all lanes (broadcast from lane 0: branches on it are uniform).
    pub fn warp(&mut self) -> Value {
        if self.warp.is_none() {
            self.warp = Some(self.broadcast(5, Uniform::Warp));
        }
        self.warp.expect("set above")
    }
    /// The warpgroup's index in the CTA, equal in all its threads.
    pub fn warpgroup(&mut self) -> Value {
        if self.warpgroup.is_none() {
            self.warpgroup = Some(self.broadcast(7, Uniform::Warpgroup));
        }
        self.warpgroup.expect("set above")
    }
    /// The warp's index in its warpgroup.
    pub fn warp_in_warpgroup(&mut self) -> Value {
        let warp = self.warp();
        self.prologue_value(|b| b.and(LogicType::B32, warp, 3))
    }
    /// True in one fixed lane of the warp; all lanes are here.
    pub fn elect(&mut self) -> Value {
        self.emit_value(Inst::elect(Value::NEW, 0xffff_ffff))
    }
    /// True in one fixed thread of the warpgroup: the elected lane of its first warp. All lanes are here.
    pub fn elect_in_warpgroup(&mut self) -> Value {
        let warp = self.warp_in_warpgroup();
        let first = self.setp(Compare::Eq, CompareType::U32, warp, 0);
        let lane = self.elect();
        let both = self.and(LogicType::Pred, first, lane);
        self.value(both, Class::Pred)
    }
    /// `f` is executed by one fixed lane of the warp.
    pub fn elected<E>(&mut self, f: impl FnOnce(&mut Builder) -> Result<(), E>) -> Result<(), E> {
        let lane = self.elect();
        self.when(lane, f)
    }
    /// `f` is executed by one fixed thread of the warpgroup.
    pub fn elected_in_warpgroup<E>(&mut self, f: impl FnOnce(&mut Builder) -> Result<(), E>) -> Result<(), E> {
        let thread = self.elect_in_warpgroup();
        self.when(thread, f)
    }

    /// The effects that the builder's guard may not cover: those of all lanes together.
    pub fn is_convergent(inst: &Inst<Value>) -> bool {
        inst.effects().contains(Effects::CONVERGENT)
    }
}

/// Helpers that emit one instruction: its modifiers, its operands, and what else is fixed of it.
macro_rules! helpers {
    ($($(#[$doc:meta])* $name:ident($($m:ident: $M:ty),+; $($x:ident),+) $Row:ident { $($fixed:tt)* })+) => {
        impl Builder {$(
            $(#[$doc])*
            pub fn $name(&mut self, $($m: $M,)+ $($x: impl Into<Operand>),+) -> Operand {
                $( let $x = $x.into(); )+
                self.emit(Inst::$Row { d: Value::NEW, $($m,)+ $($x,)+ $($fixed)* })
            }
        )+}
    };
}
helpers! {
    add(ty: IntType; a, b) AddInt {}
    sub(ty: IntType; a, b) SubInt {}
    mul(ty: IntType; a, b) MulLo {}
    /// Truncating division; by a constant power of two a shift where the sign allows.
    div(ty: IntType; a, b) DivInt {}
    rem(ty: IntType; a, b) RemInt {}
    min(ty: IntType; a, b) MinMaxInt { op: MinMax::Min }
    max(ty: IntType; a, b) MinMaxInt { op: MinMax::Max }
    logic(op: Logic, ty: LogicType; a, b) Logic {}
    not(ty: LogicType; a) Not {}
    /// Amounts of the width or more give 0.
    shl(ty: BitType; a, b) Shl {}
    /// Amounts of the width or more give 0, or the sign.
    shr(ty: ShiftType; a, b) Shr {}
    /// A comparison; a constant when it is decided.
    setp(cmp: Compare, ty: CompareType; a, b) Setp { ftz: Ftz::No }
    // Floats, rounded to nearest even.
    fadd(ty: FloatType; a, b) AddFloat { rnd: Round::Rn, ftz: Ftz::No }
    fsub(ty: FloatType; a, b) SubFloat { rnd: Round::Rn, ftz: Ftz::No }
    fmul(ty: FloatType; a, b) MulFloat { rnd: Round::Rn, ftz: Ftz::No }
    fma(ty: FloatType; a, b, c) Fma { rnd: Round::Rn, ftz: Ftz::No }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Infallible<T> = Result<T, std::convert::Infallible>;

    fn insts(ssa: &Ssa) -> Vec<String> {
        let mut out = vec![];
        for region in ssa.regions.values() {
            for op in &region.ops {
                out.push(match &op.kind {
                    OpKind::Inst { inst, .. } => super::super::inst::ROWS[inst.row()].name.to_string(),
                    OpKind::If { .. } => "If".into(),
                    OpKind::Loop { .. } => "Loop".into(),
                });
            }
        }
        out
    }

    #[test]
    fn a_program_that_gets_too_long_ends_where_it_does() {
        let mut b = Builder::new();
        b.emit_at_most(100);
        let mut sums = 0;
        let made = within_limit(|| {
            for i in 0..1000 {
                let at = b.constant(Class::B64, i);
                b.load(Space::Global, MemType::B32, Addr::new(at), 1);
                sums += 1;
            }
        });
        assert!(
            made.is_none() && sums == 50 && b.emitted() == 101,
            "{made:?}, {sums} loads"
        );
        assert_eq!(insts(&b.finish()).len(), 100);
        assert_eq!(within_limit(|| 5), Some(5));
        let other = catch_unwind(|| within_limit(|| resume_unwind(Box::new("another"))));
        assert_eq!(*other.unwrap_err().downcast::<&str>().unwrap(), "another");
    }

    #[test]
    fn equal_pure_instructions_are_one_where_the_first_dominates() {
        let mut b = Builder::new();
        let tid = b.tid();
        let x = b.mul(IntType::U32, tid, 12);
        assert_eq!(b.mul(IntType::U32, tid, 12), x);
        let p = b.setp(Compare::Lt, CompareType::U32, tid, 7);
        b.open_if(p);
        assert_eq!(b.mul(IntType::U32, tid, 12), x);
        let inner = b.mul(IntType::U32, tid, 20);
        b.close_if(&[]);
        assert_ne!(b.mul(IntType::U32, tid, 20), inner);
    }

    /// A conditional that computes `tid * factor` in an arm, or else `other`.
    fn conditional(b: &mut Builder, p: Operand, factor: u32, other: u32) -> Vec<Operand> {
        let tid = b.tid();
        let out: Infallible<Vec<Operand>> = b.if_else(
            p,
            |b| {
                let x = b.mul(IntType::U32, tid, factor);
                Ok(vec![b.xor(LogicType::B32, x, 5)])
            },
            |_| Ok(vec![Src::u32(other)]),
        );
        out.unwrap_or_else(|e| match e {})
    }

    #[test]
    fn equal_conditionals_are_one_where_the_first_dominates() {
        let mut b = Builder::new();
        let tid = b.tid();
        let p = b.setp(Compare::Lt, CompareType::U32, tid, 7);
        let q = b.setp(Compare::Lt, CompareType::U32, tid, 8);
        let first = conditional(&mut b, p, 12, 1);
        assert_eq!(conditional(&mut b, p, 12, 1), first);
        for (p, factor, other) in [(q, 12, 1), (p, 20, 1), (p, 12, 2)] {
            assert_ne!(conditional(&mut b, p, factor, other), first);
        }
        b.open_if(q);
        assert_eq!(conditional(&mut b, p, 12, 1), first);
        let inner = conditional(&mut b, p, 36, 1);
        b.close_if(&[]);
        assert_ne!(conditional(&mut b, p, 36, 1), inner);
    }

    #[test]
    fn conditionals_that_act_are_not_merged() {
        let mut b = Builder::new();
        let tid = b.tid();
        let p = b.setp(Compare::Lt, CompareType::U32, tid, 7);
        let base = b.smem_base();
        let mut results = vec![];
        for _ in 0..2 {
            let at = b.addr(base, 0);
            let out: Infallible<Vec<Operand>> = b.if_else(
                p,
                |b| {
                    b.store(Space::Shared, MemType::B32, at, &[tid.into()]);
                    Ok(vec![tid.into()])
                },
                |_| Ok(vec![Src::u32(1)]),
            );
            results.push(out);
        }
        assert_ne!(results[0], results[1]);
    }

    #[test]
    fn what_is_equal_in_all_threads_is_added_up_first() {
        let mut b = Builder::new();
        let tid: Operand = b.tid().into();
        let common: Operand = b.special(SpecialReg32::CtaidX).into();
        let sum = b.add(IntType::U32, tid, common);
        let all = b.add_element(IntType::U32, sum, 3);
        let both = b.add(IntType::U32, common, 3);
        assert_eq!(all, b.add(IntType::U32, tid, both));
        // A count's constant belongs to its element.
        let count = b.add(IntType::U32, tid, 8);
        let next = b.add_element(IntType::U32, count, common);
        assert_eq!(next, b.add(IntType::U32, count, common));
    }

    #[test]
    fn the_prologue_uses_nothing_of_the_body() {
        let mut b = Builder::new();
        let tid = b.tid();
        let in_body = b.and(LogicType::B32, tid, 31);
        let lane = b.lane();
        assert_ne!(in_body, Src::Reg(lane));
        assert_eq!(b.lane(), lane);
    }

    #[test]
    fn immediates_fold_and_chains_join() {
        let mut b = Builder::new();
        let tid = b.tid();
        let x = b.add(IntType::S32, tid, -3);
        let x = b.add(IntType::S32, x, 10);
        let Src::Reg(v) = x else { panic!("not a constant") };
        assert!(matches!(b.definition(v), Some(Inst::AddInt { b: Src::Imm(7), .. })));
        assert_eq!(b.sub(IntType::S32, x, x), Src::Imm(0));
        assert_eq!(b.mul(IntType::U32, 6, 7), Src::Imm(42));
        assert_eq!(b.rem(IntType::S32, tid, 1024), tid.into());
        assert_eq!(b.setp(Compare::Lt, CompareType::S32, tid, 1024), Src::Imm(1));
        let at = b.addr(x, 4);
        assert_eq!((at.base, at.offset), (tid, 11));
    }

    #[test]
    fn uniformity_follows_operands() {
        let mut b = Builder::new();
        let (tid, wg) = (b.tid(), b.warpgroup());
        let cta = b.special(SpecialReg32::CtaidX);
        let sum = b.add(IntType::U32, wg, cta);
        assert_eq!(b.uniform(sum), Uniform::Warpgroup);
        let sum = b.add(IntType::U32, sum, tid);
        assert_eq!(b.uniform(sum), Uniform::Thread);
    }

    #[test]
    fn a_constant_condition_emits_its_arm_only() {
        let mut b = Builder::new();
        let arm = |v: u32| move |_: &mut Builder| -> Infallible<Vec<Operand>> { Ok(vec![v.into()]) };
        let Ok(r) = b.if_else(Operand::from(1), arm(5), arm(6));
        assert_eq!(r, vec![Src::Imm(5)]);
        assert!(insts(&b.finish()).is_empty());
    }

    #[test]
    fn a_counted_loop_knows_its_counter() {
        let mut b = Builder::new();
        let acc = b.constant(Class::B32, 0);
        let Ok(r) = b.for_(
            IntType::S32,
            (0.into(), 64.into(), 1.into()),
            &[acc],
            |b, i, carried| {
                let r = b.rem(IntType::S32, i, 64);
                assert_eq!(r, i.into());
                Infallible::Ok(vec![b.add(IntType::S32, carried[0], r)])
            },
        );
        assert_eq!(r.len(), 1);
        let ssa = b.finish();
        assert!(insts(&ssa).contains(&"Loop".to_string()));
    }

    #[test]
    fn immediates_become_registers_where_a_slot_refuses_them() {
        let mut b = Builder::new();
        let x = b.constant(Class::B16, 0x3c00);
        let y = b.fadd(FloatType::F16, x, Src::Imm(0x3c00));
        assert_eq!(y, Src::Imm(0x4000));
        let unknown = b.load(Space::Shared, MemType::B16, Addr::new(x), 1)[0];
        let y = b.fadd(FloatType::F16, unknown, Src::Imm(0x3c00));
        let Src::Reg(v) = y else { panic!("not a constant") };
        assert!(matches!(b.definition(v), Some(Inst::AddFloat { b: Src::Reg(_), .. })));
    }
}
