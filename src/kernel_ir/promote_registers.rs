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
use super::class::Control;
use super::rewrite::{Substitution, regions_of};
use super::thread_state::{Threaded, Touched, find_touched, thread};
use super::*;
use crate::error::{Error, Loc, Result};
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
    /// Accumulators with a group that may be unfinished, and how many groups at least were issued after it.
    pending: Vec<(Alloc, u32)>,
}

impl Flight {
    fn join(mut self, other: &Flight) -> Flight {
        self.groups = self.groups.max(other.groups);
        for &(alloc, younger) in &other.pending {
            match self.pending.iter_mut().find(|(a, _)| *a == alloc) {
                Some((_, y)) => *y = (*y).min(younger),
                None => self.pending.push((alloc, younger)),
            }
        }
        self.pending.sort_unstable();
        self
    }

    fn issue(&mut self, acc: Alloc) {
        self.groups = (self.groups + 1).min(MANY);
        for (_, younger) in &mut self.pending {
            *younger = (*younger + 1).min(MANY);
        }
        self.pending.retain(|&(a, _)| a != acc);
        self.pending.push((acc, 0));
        self.pending.sort_unstable();
    }

    /// At most `n` groups are left running.
    fn wait(&mut self, n: u32) {
        self.groups = self.groups.min(n);
        self.pending.retain(|&(_, younger)| younger < n);
    }

    fn younger(&self, acc: Alloc) -> Option<u32> {
        self.pending.iter().find(|(a, _)| *a == acc).map(|&(_, y)| y)
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
            } else if !matches!(kind, OpKind::Wgmma { .. }) {
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
                acc: AccUse::Ref(r), ..
            } = kind
            {
                let older = state.groups > 0;
                state.issue(r.alloc);
                if older && !self.waits_soon(&ops[i + 1..]) {
                    if commit {
                        placed.push(self.new_wait(1, &state, region, loc));
                    }
                    state.wait(1);
                }
            } else if let OpKind::WgmmaWait { n, .. } = kind {
                if commit {
                    self.waits.insert(op, state.pending.iter().map(|&(a, _)| a).collect());
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
                entry.pending = self.scopes.iter().map(|&a| (a, 0)).collect();
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
        self.waits.insert(op, state.pending.iter().map(|&(a, _)| a).collect());
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

    /// A use of registers must be of the whole.
    fn whole(&self, r: &RefUse) -> Result<()> {
        if r.steps.is_empty() && r.place == Place::Here {
            return Ok(());
        }
        Err(Error::unsupported("a part of a reference to registers").remedy("load the whole and slice the array"))
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
            let acc = AccUse::Value(self.get(r.alloc));
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
            self.whole(src)?;
            let v = self.get(alloc);
            if !accumulator {
                let result = self.kernel.ops[op].results[0];
                self.subst.replace(result, v);
                return Ok(());
            }
            self.kernel.ops[op].kind = OpKind::AccRead { acc: AccUse::Value(v) };
            self.next(op, alloc);
        } else if let OpKind::Store { ref dst, value } = kind
            && let Some((alloc, accumulator)) = self.register(dst)
        {
            self.whole(dst)?;
            if !accumulator {
                self.current.insert(alloc, value);
                return Ok(());
            }
            self.kernel.ops[op].kind = OpKind::AccInit { init: Some(value) };
            self.next(op, alloc);
        } else if let OpKind::Swap { ref dst, value } = kind
            && let Some((alloc, accumulator)) = self.register(dst)
        {
            self.whole(dst)?;
            if accumulator {
                return Err(Error::unsupported("`swap` of an accumulator"));
            }
            let (old, result) = (self.get(alloc), self.kernel.ops[op].results[0]);
            self.subst.replace(result, old);
            self.current.insert(alloc, value);
            return Ok(());
        } else {
            self.regions(op)?;
            let mut stray = false;
            visit::for_each_ref(&self.kernel.ops[op].kind, &mut |r| stray |= self.register(r).is_some());
            if stray {
                let name = self.kernel.ops[op].kind.name();
                return Err(Error::unsupported(format!("`{name}` of a reference to registers")));
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
