//! Makes references to registers values, and waits for wgmma explicit.
//!
//! **What is in flight** is a forward analysis over the reference form: how many wgmma groups at most, and which accumulators may
//! have one. It places waits that the source leaves out:
//! * wgmma's contract: when a `wgmma` returns, no older one is running. A `wgmma_wait 1` follows it, unless nothing is in flight
//!   before it, or the next op that touches anything is a wait that does as much;
//! * an accumulator is settled where it is read, overwritten, or its scope ends.
//!
//! **Then** an accumulator is a linear value: `acc_init` at its scope's start (zero) or where it is stored to, each wgmma and wait
//! takes and gives it back. A region that does not touch an accumulator does not carry it. A wait takes every accumulator that may
//! be in flight; a wait that finds none is dropped.
use super::register_parts;
use super::thread_state::{Threaded, Touched, find_touched, thread};
use crate::error::{Error, Loc, Result};
use crate::kernel_ir::class::Control;
use crate::kernel_ir::rewrite::{Substitution, regions_of};
use crate::kernel_ir::*;
use rustc_hash::FxHashMap;

/// More groups than this are "many".
const MANY: u32 = 8;

pub fn run(kernel: &mut Kernel) -> Result<()> {
    let body = kernel.body;
    if !kernel
        .allocs
        .values()
        .any(|data| matches!(data.kind, AllocKind::Register { .. }))
    {
        return Ok(());
    }
    let budget = 16 * kernel.ops.len() as u64 + 1000;
    let mut flights = Flights {
        kernel,
        scopes: vec![],
        waits: FxHashMap::default(),
        budget,
    };
    flights.region(body, Flight::default(), true);
    let waits = flights.waits;
    let mut touched = Touched::default();
    find_touched(
        kernel,
        body,
        &|kernel, op, out| {
            out.extend(waits.get(&op).into_iter().flatten());
            visit::for_each_ref(&kernel.ops[op].kind, &mut |r| {
                if matches!(kernel.allocs[r.alloc].kind, AllocKind::Register { .. }) {
                    out.push(r.alloc);
                }
            });
        },
        &mut touched,
    );
    let mut pass = Promote {
        kernel,
        subst: Substitution::default(),
        touched,
        waits,
        current: FxHashMap::default(),
    };
    pass.region(body)?;
    let mut subst = pass.subst;
    subst.apply_region(kernel, body);
    Ok(())
}

// ---------------------------------------------------------------- what is in flight

/// What may be running at a point.
#[derive(Clone, Default, PartialEq)]
struct Flight {
    /// Groups at most; [`MANY`]: any number.
    groups: u32,
    /// Accumulators with a group that may be unfinished, of what tiles, and how many groups at least were issued after it.
    pending: Vec<(Alloc, Tiles, u32)>,
}

/// The tiles of an accumulator that a wgmma adds to.
///
/// Instructions on registers of one in flight must be on the same ones in the same order (PTX ISA, `wgmma.mma_async`, "accumulator
/// registers … of the same shape"). Those on the same tiles are, where the right operand does not decide how wide an instruction is.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Tiles {
    at: [u64; 2],
    shape: [u64; 2],
    /// The right operand's view without its starts, where widths may depend on it.
    right: Option<Vec<u64>>,
}

/// The widest instruction.
const MAX_WIDTH: u64 = 256;

impl Tiles {
    fn of(kernel: &Kernel, acc: &RefUse, b: &RefUse) -> Tiles {
        // What is no part is an error where the op is promoted.
        let (at, shape) = legality::tensor_core::part_of_accumulator(kernel, acc).unwrap_or(([0, 0], [u64::MAX; 2]));
        let is_plain = b.kept_dims(kernel.allocs[b.alloc].shape.len()).is_some();
        let right = (shape[1] > MAX_WIDTH || !is_plain).then(|| Tiles::view(b));
        Tiles { at, shape, right }
    }

    /// What may be anything of an accumulator.
    fn any() -> Tiles {
        let (at, shape, right) = ([0, 0], [u64::MAX; 2], Some(vec![]));
        Tiles { at, shape, right }
    }

    fn view(b: &RefUse) -> Vec<u64> {
        let mut out = vec![u64::from(b.alloc.as_u32())];
        for step in &b.steps {
            match step {
                Step::Index(dims) => out.extend(dims.iter().map(|d| d.extent().unwrap_or(0))),
                Step::Transpose(p) => out.extend(p.iter().map(|d| u64::from(*d))),
                Step::Reshape(shape) | Step::Bitcast { shape, .. } | Step::ExpandLeadingBatch(shape) => {
                    out.extend(shape.iter());
                }
                Step::Im2Col { .. } | Step::ExtractAlias { .. } | Step::Unswizzle(_) | Step::Untile(_) => {}
            }
            out.push(u64::MAX);
        }
        out
    }

    /// Whether a group on these tiles must wait for one on those.
    fn waits_for(&self, other: &Tiles) -> bool {
        let overlap = (0..2).all(|d| {
            self.at[d] < other.at[d].saturating_add(other.shape[d])
                && other.at[d] < self.at[d].saturating_add(self.shape[d])
        });
        overlap && (self != other || *self == Tiles::any())
    }
}

impl Flight {
    fn join(mut self, other: &Flight) -> Flight {
        self.groups = self.groups.max(other.groups);
        for (alloc, tiles, younger) in &other.pending {
            match self.pending.iter_mut().find(|(a, t, _)| a == alloc && t == tiles) {
                Some((.., y)) => *y = (*y).min(*younger),
                None => self.pending.push((*alloc, tiles.clone(), *younger)),
            }
        }
        self.pending.sort_unstable();
        self
    }

    fn issue(&mut self, acc: Alloc, tiles: Tiles) {
        self.groups = (self.groups + 1).min(MANY);
        for (.., younger) in &mut self.pending {
            *younger = (*younger + 1).min(MANY);
        }
        self.pending.retain(|(a, t, _)| *a != acc || *t != tiles);
        self.pending.push((acc, tiles, 0));
        self.pending.sort_unstable();
    }

    /// At most `n` groups are left running.
    fn wait(&mut self, n: u32) {
        self.groups = self.groups.min(n);
        self.pending.retain(|(.., younger)| *younger < n);
    }

    /// How many groups may be left running so that none of this accumulator is.
    fn younger(&self, acc: Alloc) -> Option<u32> {
        let of_acc = self.pending.iter().filter(|(a, ..)| *a == acc);
        of_acc.map(|(.., younger)| *younger).min()
    }

    /// The same for those that one on these tiles must not be issued beside.
    fn before(&self, acc: Alloc, tiles: &Tiles) -> Option<u32> {
        let others = self.pending.iter().filter(|(a, t, _)| *a == acc && tiles.waits_for(t));
        others.map(|(.., younger)| *younger).min()
    }

    fn accumulators(&self) -> Vec<Alloc> {
        let mut all: Vec<Alloc> = self.pending.iter().map(|(a, ..)| *a).collect();
        all.dedup();
        all
    }
}

struct Flights<'a> {
    kernel: &'a mut Kernel,
    /// Accumulators in scope.
    scopes: Vec<Alloc>,
    /// What each wait may settle.
    waits: FxHashMap<Op, Vec<Alloc>>,
    budget: u64,
}

impl Flights<'_> {
    /// Follows a region; `commit`: places waits and notes what each settles.
    fn region(&mut self, region: Region, mut state: Flight, commit: bool) -> Flight {
        let ops = self.kernel.regions[region].ops.clone();
        let mut placed = Vec::with_capacity(if commit { ops.len() } else { 0 });
        for (i, &op) in ops.iter().enumerate() {
            self.budget = self.budget.saturating_sub(1);
            let loc = self.kernel.ops[op].loc;
            // A wait that must come before the op.
            let kind = &self.kernel.ops[op].kind;
            let mut before = None;
            if let OpKind::AccRead { acc: AccUse::Ref(r) } | OpKind::Store { dst: r, .. } = kind {
                before = state.younger(r.alloc);
            } else if let OpKind::Wgmma {
                acc: AccUse::Ref(r), b, ..
            } = kind
            {
                before = state.before(r.alloc, &Tiles::of(self.kernel, r, b));
            } else {
                visit::for_each_ref(kind, &mut |r| before = before.or(state.younger(r.alloc).map(|_| 0)));
            }
            if let Some(n) = before {
                if commit {
                    placed.push(self.new_wait(n, &state, region, loc));
                }
                state.wait(n);
            }
            if commit {
                placed.push(op);
            }
            let kind = &self.kernel.ops[op].kind;
            if let OpKind::Wgmma {
                acc: AccUse::Ref(r), b, ..
            } = kind
            {
                let older = state.groups > 0;
                state.issue(r.alloc, Tiles::of(self.kernel, r, b));
                if older && !self.waits_soon(&ops[i + 1..]) {
                    if commit {
                        placed.push(self.new_wait(1, &state, region, loc));
                    }
                    state.wait(1);
                }
            } else if let OpKind::WgmmaWait { n, .. } = kind {
                if commit {
                    self.waits.insert(op, state.accumulators());
                }
                state.wait(*n);
            }
            match self.kernel.ops[op].kind.control() {
                Some(Control::For { body, .. }) => state = self.repeat(&[body], state, commit),
                Some(Control::While { cond, body, .. }) => state = self.repeat(&[cond, body], state, commit),
                Some(Control::Switch { arms, .. }) => {
                    let arms = arms.to_vec();
                    let ends = arms.iter().map(|&arm| self.region(arm, state.clone(), commit));
                    state = ends.fold(Flight::default(), |all, end| all.join(&end));
                }
                Some(Control::Scope { allocs, body, .. }) => {
                    let allocs = allocs.to_vec();
                    state = self.scope(&allocs, body, state, commit);
                }
                Some(Control::WarpMap { body, .. }) => state = self.region(body, state, commit),
                None => {}
            }
        }
        if commit {
            self.kernel.regions[region].ops = placed;
        }
        state
    }

    /// A loop over `regions`, of which the first may be the last to run. Gives the state where it ends: after any number of
    /// rounds (`for`), or after the condition (`while`).
    fn repeat(&mut self, regions: &[Region], init: Flight, commit: bool) -> Flight {
        let mut entry = init;
        loop {
            if self.budget == 0 {
                entry.groups = MANY;
                entry.pending = self.scopes.iter().map(|&a| (a, Tiles::any(), 0)).collect();
                entry.pending.sort_unstable();
                break;
            }
            let mut end = entry.clone();
            for &r in regions {
                end = self.region(r, end, false);
            }
            let joined = entry.clone().join(&end);
            if joined == entry {
                break;
            }
            entry = joined;
        }
        match regions {
            [cond, body] => {
                let exit = self.region(*cond, entry, commit);
                if commit {
                    self.region(*body, exit.clone(), true);
                }
                exit
            }
            _ => {
                if commit {
                    for &r in regions {
                        self.region(r, entry.clone(), true);
                    }
                }
                entry
            }
        }
    }

    fn scope(&mut self, allocs: &[Alloc], body: Region, state: Flight, commit: bool) -> Flight {
        let mark = self.scopes.len();
        let is_acc =
            |kernel: &Kernel, a: Alloc| matches!(kernel.allocs[a].kind, AllocKind::Register { accumulator: true, .. });
        let own: Vec<Alloc> = allocs.iter().copied().filter(|&a| is_acc(self.kernel, a)).collect();
        self.scopes.extend_from_slice(&own);
        let mut state = self.region(body, state, commit);
        self.scopes.truncate(mark);
        let n = own.iter().filter_map(|&a| state.younger(a)).min();
        if let Some(n) = n {
            if commit {
                let loc = self.kernel.regions[body]
                    .ops
                    .last()
                    .map_or(Loc::CALL_SITE, |&op| self.kernel.ops[op].loc);
                let wait = self.new_wait(n, &state, body, loc);
                self.kernel.regions[body].ops.push(wait);
            }
            state.wait(n);
        }
        state
    }

    /// Whether the next op that touches anything leaves at most one group running.
    fn waits_soon(&self, rest: &[Op]) -> bool {
        for &op in rest {
            let kind = &self.kernel.ops[op].kind;
            if let OpKind::WgmmaWait { n, .. } = kind {
                return *n <= 1;
            }
            let in_memory = |r: &RefUse| !matches!(self.kernel.allocs[r.alloc].kind, AllocKind::Register { .. });
            // Reading what an older group reads is harmless.
            let harmless = matches!(kind, OpKind::Wgmma { .. })
                || matches!(kind, OpKind::Load { src } if in_memory(src))
                || kind.is_pure();
            if !harmless {
                return false;
            }
        }
        false
    }

    fn new_wait(&mut self, n: u32, state: &Flight, region: Region, loc: Loc) -> Op {
        let group = self.kernel.regions[region].group;
        let op = self
            .kernel
            .new_op(OpKind::WgmmaWait { n, accs: vec![] }, [], group, loc);
        self.waits.insert(op, state.accumulators());
        op
    }
}

// ---------------------------------------------------------------- references to values

struct Promote<'a> {
    kernel: &'a mut Kernel,
    subst: Substitution,
    touched: Touched,
    waits: FxHashMap<Op, Vec<Alloc>>,
    current: FxHashMap<Alloc, Value>,
}

impl Promote<'_> {
    fn ty(&self, alloc: Alloc) -> Type {
        let data = &self.kernel.allocs[alloc];
        match data.kind {
            AllocKind::Register {
                dtype,
                accumulator: true,
            } => Type::Acc {
                dtype,
                shape: data.shape.clone(),
            },
            _ => Type::of(
                data.elem().dtype().unwrap_or(crate::dtype::DType::I32),
                data.shape.clone(),
            ),
        }
    }

    fn register(&self, r: &RefUse) -> Option<(Alloc, bool)> {
        match self.kernel.allocs[r.alloc].kind {
            AllocKind::Register { accumulator, .. } => Some((r.alloc, accumulator)),
            _ => None,
        }
    }

    /// The elements of an accumulator, by an op of their own.
    fn read(&mut self, region: Region, alloc: Alloc, loc: Loc) -> Value {
        let data = &self.kernel.allocs[alloc];
        let dtype = data.elem().dtype().unwrap_or(crate::dtype::DType::F32);
        let array = Type::of(dtype, data.shape.clone());
        let acc = AccUse::Value(self.get(alloc));
        let types = [array, self.ty(alloc)];
        let results = self.kernel.append(region, OpKind::AccRead { acc }, types, loc);
        self.current.insert(alloc, results[1]);
        results[0]
    }

    /// Gives `op` one more result, the variable's next value.
    fn next(&mut self, op: Op, alloc: Alloc) {
        let ty = self.ty(alloc);
        let v = self.kernel.new_value(ty, Group::Warpgroup);
        self.kernel.values[v].def = op.into();
        self.kernel.ops[op].results.push(v);
        self.current.insert(alloc, v);
    }

    /// Handles one op; what is left of it goes to the end of `region`.
    fn op(&mut self, region: Region, op: Op) -> Result<()> {
        self.subst.apply(self.kernel, op);
        let kind = self.kernel.ops[op].kind.clone();
        if let OpKind::Wgmma {
            acc: AccUse::Ref(r),
            a,
            b,
        } = kind
        {
            let (at, shape) = legality::tensor_core::part_of_accumulator(self.kernel, &r)?;
            let acc = self.get(r.alloc);
            let acc = if self.kernel.allocs[r.alloc].shape.as_slice() == shape {
                AccUse::Value(acc)
            } else {
                AccUse::Part { acc, at, shape }
            };
            self.kernel.ops[op].kind = OpKind::Wgmma { acc, a, b };
            self.next(op, r.alloc);
        } else if let OpKind::WgmmaWait { n, .. } = kind {
            let allocs = self.waits.get(&op).cloned().unwrap_or_default();
            if allocs.is_empty() {
                return Ok(());
            }
            let accs = allocs.iter().map(|&a| self.get(a)).collect();
            self.kernel.ops[op].kind = OpKind::WgmmaWait { n, accs };
            for alloc in allocs {
                self.next(op, alloc);
            }
        } else if let OpKind::AccRead { acc: AccUse::Ref(r) } = kind {
            let acc = AccUse::Value(self.get(r.alloc));
            self.kernel.ops[op].kind = OpKind::AccRead { acc };
            self.next(op, r.alloc);
        } else if let OpKind::Load { src } = &kind
            && let Some((alloc, accumulator)) = self.register(src)
        {
            let (src, loc) = (src.clone(), self.kernel.ops[op].loc);
            let result = self.kernel.ops[op].results[0];
            let v = self.get(alloc);
            if accumulator && src.steps.is_empty() {
                self.kernel.ops[op].kind = OpKind::AccRead { acc: AccUse::Value(v) };
                self.next(op, alloc);
            } else {
                legality::registers::part(self.kernel, &src)?;
                let whole = if accumulator { self.read(region, alloc, loc) } else { v };
                let part = register_parts::load(self.kernel, region, whole, &src.steps, loc)?;
                self.subst.replace(result, part);
                return Ok(());
            }
        } else if let OpKind::Store { ref dst, value } = kind
            && let Some((alloc, accumulator)) = self.register(dst)
        {
            let (dst, loc) = (dst.clone(), self.kernel.ops[op].loc);
            let mut value = value;
            if !dst.steps.is_empty() {
                legality::registers::stored_part(self.kernel, &dst)?;
                let whole = match accumulator {
                    true => self.read(region, alloc, loc),
                    false => self.get(alloc),
                };
                value = register_parts::store(self.kernel, region, whole, &dst.steps, value, loc)?;
            }
            if !accumulator {
                self.current.insert(alloc, value);
                return Ok(());
            }
            self.kernel.ops[op].kind = OpKind::AccInit { init: Some(value) };
            self.next(op, alloc);
        } else if let OpKind::Swap { ref dst, value } = kind
            && let Some((alloc, accumulator)) = self.register(dst)
        {
            let (dst, loc) = (dst.clone(), self.kernel.ops[op].loc);
            if accumulator {
                return Err(Error::unsupported("`swap` of an accumulator").remedy("read it first, then store to it"));
            }
            legality::registers::stored_part(self.kernel, &dst)?;
            let (whole, result) = (self.get(alloc), self.kernel.ops[op].results[0]);
            let old = register_parts::load(self.kernel, region, whole, &dst.steps, loc)?;
            let new = register_parts::store(self.kernel, region, whole, &dst.steps, value, loc)?;
            self.subst.replace(result, old);
            self.current.insert(alloc, new);
            return Ok(());
        } else {
            self.regions(op)?;
            let mut stray = false;
            visit::for_each_ref(&self.kernel.ops[op].kind, &mut |r| stray |= self.register(r).is_some());
            if stray {
                let name = self.kernel.ops[op].kind.name();
                return Err(Error::unsupported(format!("`{name}` of a reference to registers"))
                    .remedy("load the whole (ref[...]), compute with the array, and store the whole"));
            }
        }
        self.kernel.regions[region].ops.push(op);
        Ok(())
    }

    /// Handles what is in an op's regions.
    fn regions(&mut self, op: Op) -> Result<()> {
        let own = self.begin_scope(op);
        let regions = regions_of(self.kernel, op);
        let touched = regions.iter().flat_map(|inner| self.touched[inner].iter().copied());
        let mut vars: Vec<Alloc> = touched
            .filter(|a| self.current.contains_key(a) && !own.contains(a))
            .collect();
        vars.sort_unstable();
        vars.dedup();
        thread(self, op, &vars)?;
        for alloc in own {
            self.current.remove(&alloc);
        }
        Ok(())
    }

    /// Gives the registers of a scope their first values.
    fn begin_scope(&mut self, op: Op) -> Vec<Alloc> {
        let loc = self.kernel.ops[op].loc;
        let OpKind::Scope { allocs, body, .. } = &mut self.kernel.ops[op].kind else {
            return vec![];
        };
        let body = *body;
        let is_register = |a: &Alloc| matches!(self.kernel.allocs[*a].kind, AllocKind::Register { .. });
        let (registers, rest): (Vec<Alloc>, Vec<Alloc>) = std::mem::take(allocs).into_iter().partition(is_register);
        *allocs = rest;
        let old = std::mem::take(&mut self.kernel.regions[body].ops);
        for &alloc in &registers {
            let ty = self.ty(alloc);
            let init = if ty.is_acc() {
                OpKind::AccInit { init: None }
            } else {
                // A state is stored to before anything else happens.
                OpKind::Constant(Constant::Splat(0))
            };
            let v = self.kernel.append1(body, init, ty, loc);
            self.current.insert(alloc, v);
        }
        self.kernel.regions[body].ops.extend(old);
        registers
    }
}

impl Threaded for Promote<'_> {
    fn kernel(&mut self) -> &mut Kernel {
        self.kernel
    }

    fn get(&mut self, var: Alloc) -> Value {
        let v = self.current[&var];
        self.subst.resolve(v)
    }

    fn set(&mut self, var: Alloc, v: Value) {
        self.current.insert(var, v);
    }

    fn region(&mut self, region: Region) -> Result<()> {
        for op in std::mem::take(&mut self.kernel.regions[region].ops) {
            let loc = self.kernel.ops[op].loc;
            self.op(region, op).map_err(|e| e.at(loc))?;
        }
        self.subst.apply_results(self.kernel, region);
        Ok(())
    }
}
