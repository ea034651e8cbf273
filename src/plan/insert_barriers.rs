//! Places the warpgroup barriers that JAX's program-order semantics need.
//!
//! In a Pallas thread an op is done by all 128 lanes, and each op sees what the ones before it did. Lanes of a warpgroup do not
//! run in lockstep, so an access needs a warpgroup barrier before it when another lane of the same warpgroup may still be
//! about to do, or may just have done, a conflicting access that nothing else orders:
//!
//! | access | conflicts with, since the last barrier |
//! |---|---|
//! | read by the lanes | a write by the lanes |
//! | write by the lanes | a read or a write by the lanes; a bulk store's read, which only the lane that issued it has waited for |
//! | a bulk load's write, issued by one lane | a read or a write by the lanes; a wgmma's read, which each warp waits for by itself; a bulk store's read by another lane |
//!
//! A bulk load needs one, too, after a wait for an mbarrier: warps that issue nothing would let the issuer go ahead, and a warp
//! that falls two phases behind waits for a phase that is long past, for ever. Where a loop does nothing but wait and load, only the
//! issuer's warp waits ([`super::feeding_loops`]): one barrier before the loop and one behind it.
//!
//! Reads that tensor cores and bulk stores do are ordered by `commit_smem`, which holds a barrier of its own. An mbarrier wait is executed by
//! every lane, so what it covers needs nothing more; an arrival releases the accesses of each warp that arrives. Two accesses by
//! the lanes with the same layout through the same view touch the same bytes from the same lane: no barrier, unless several lanes hold
//! an element (one of them stores it), or the view is a slice that may begin elsewhere in the next iteration of a loop. A scope that takes over the
//! memory of another waits for everything first. Under `unsafe_no_auto_barriers` only that is placed, and what comes between
//! the wait for a bulk store and a write to its source.
use super::allocate::Allocation;
use crate::dtype::DType;
use crate::error::{Loc, Result};
use crate::kernel_ir::visit::for_each_region;
use crate::kernel_ir::*;
use crate::layout::assignment::Assignment;
use crate::layout::register_layout::RegisterLayout;
use cranelift_entity::SecondaryMap;

/// Inserts `Sync` ops; returns how many warpgroup barriers were placed for hazards.
pub fn run(kernel: &mut Kernel, assignment: &Assignment, allocation: &Allocation) -> Result<u32> {
    let automatic = !kernel.compiler_params.unsafe_no_auto_barriers;
    let roots = roots(kernel);
    let mut pass = Pass {
        written: effects::written(kernel, |proxy| proxy == effects::Proxy::Generic),
        assignment,
        allocation,
        roots,
        automatic,
        placed: 0,
        first_scope: true,
        in_warps: false,
    };
    let mut state = State::default();
    pass.region(kernel, kernel.body, &mut state, Mode::Insert)?;
    Ok(pass.placed)
}

/// What lanes did to an allocation since the last barrier.
#[derive(Clone, PartialEq, Debug)]
struct Access {
    /// The allocation that owns the bytes (a union for its members).
    root: Alloc,
    what: What,
    /// The view and layout, when one lane owns the same bytes on both sides if they are equal.
    lanes: Option<(RefUse, RegisterLayout)>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum What {
    Read,
    Write,
    /// A tensor core's read that nobody has waited for yet.
    MmaRead,
    /// A tensor core's read that each warp has waited for by itself.
    MmaWaited,
    /// A bulk store's read that is still running or that only its issuer has waited for.
    StoreRead,
}

#[derive(Clone, Default, PartialEq, Debug)]
struct State {
    pending: Vec<Access>,
    /// Warps have waited for an mbarrier, each by itself.
    waited: bool,
}

impl State {
    fn add(&mut self, access: Access) {
        if !self.pending.contains(&access) {
            self.pending.push(access);
        }
    }
    fn join(&mut self, other: &State) {
        for access in &other.pending {
            self.add(access.clone());
        }
        self.waited |= other.waited;
    }
    /// After a warpgroup barrier: lanes' accesses are ordered. A bulk store's read is over for everybody only if it was
    /// waited for before the barrier.
    fn sync(&mut self) {
        self.pending
            .retain(|a| matches!(a.what, What::StoreRead | What::MmaRead));
        self.waited = false;
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Mode {
    /// Compute the state behind the region only.
    Dry,
    Insert,
}

struct Pass<'a> {
    assignment: &'a Assignment,
    allocation: &'a Allocation,
    roots: SecondaryMap<Alloc, Option<Alloc>>,
    /// What the lanes write anywhere in the kernel.
    written: SecondaryMap<Alloc, bool>,
    automatic: bool,
    placed: u32,
    first_scope: bool,
    /// In a warp region.
    in_warps: bool,
}

fn roots(kernel: &Kernel) -> SecondaryMap<Alloc, Option<Alloc>> {
    let mut roots = SecondaryMap::new();
    for (alloc, data) in kernel.allocs.iter() {
        roots[alloc] = Some(data.within.map_or(alloc, |w| w.union));
    }
    roots
}

impl Pass<'_> {
    fn root(&self, alloc: Alloc) -> Alloc {
        self.roots[alloc].unwrap_or(alloc)
    }

    fn in_smem(kernel: &Kernel, r: &RefUse) -> bool {
        kernel.allocs[r.alloc].is_smem() && r.place == Place::Here
    }

    /// The accesses that lanes make with `r`, as (view, layout) when each element of the value is one lane's.
    fn lanes(&self, kernel: &Kernel, r: &RefUse, value: Option<Value>) -> Option<(RefUse, RegisterLayout)> {
        let value = value?;
        let layout = self.assignment.values[value].as_ref()?;
        let dtype = kernel.ty(value).dtype();
        // Narrow elements share bytes, and may travel in another layout.
        let own_bytes = dtype == DType::Bool || dtype.bits() >= 8;
        let one_lane = layout.replicated_bits() == 0 && !layout.is_constant_somewhere();
        (own_bytes && one_lane).then(|| (r.clone(), layout.clone()))
    }

    /// What is pending at the end of an iteration, seen from the next one: a slice from a dynamic start may overlap with
    /// another one of its kind, unless it starts at multiples of its size.
    fn next_iteration(kernel: &Kernel, state: &mut State) {
        let moves = |step: &Step| match step {
            Step::Index(dims) => dims.iter().any(|dim| match dim {
                DimIndex::Slice {
                    start: Index::Value(v),
                    size,
                    ..
                } => !kernel.facts(*v).divisor.is_multiple_of(*size),
                DimIndex::Gather(_) => true,
                DimIndex::At(_) | DimIndex::Slice { .. } => false,
            }),
            _ => false,
        };
        for access in &mut state.pending {
            if access.lanes.as_ref().is_some_and(|(r, _)| r.steps.iter().any(moves)) {
                access.lanes = None;
            }
        }
    }

    fn region(&mut self, kernel: &mut Kernel, region: Region, state: &mut State, mode: Mode) -> Result<()> {
        let ops = kernel.regions[region].ops.clone();
        let mut out = Vec::with_capacity(ops.len());
        for op in ops {
            self.op(kernel, op, state, mode, &mut out)?;
            out.push(op);
            if self.allocation.feeding.loops[op] {
                // The other warps meet the one that waited.
                self.sync(kernel, state, mode, &mut out, kernel.ops[op].loc);
            }
        }
        if mode == Mode::Insert {
            kernel.regions[region].ops = out;
        }
        Ok(())
    }

    /// A barrier before the op that is about to be pushed.
    fn sync(&mut self, kernel: &mut Kernel, state: &mut State, mode: Mode, out: &mut Vec<Op>, loc: Loc) {
        if mode == Mode::Insert {
            out.push(kernel.new_op(
                OpKind::Sync {
                    group: Group::Warpgroup,
                },
                [],
                Group::Warpgroup,
                loc,
            ));
            self.placed += 1;
        }
        state.sync();
    }

    /// Barrier if `access` conflicts with anything pending of the given kinds.
    #[allow(clippy::too_many_arguments)]
    fn hazard(
        &mut self,
        kernel: &mut Kernel,
        state: &mut State,
        mode: Mode,
        out: &mut Vec<Op>,
        access: &Access,
        against: &[What],
        loc: Loc,
    ) {
        // The wait for bulk stores is one by the warpgroup in any case: who writes next has synchronised with the waiter.
        let against: &[What] = match self.automatic {
            true => against,
            false if against.contains(&What::StoreRead) => &[What::StoreRead],
            false => return,
        };
        let conflict = state.pending.iter().any(|p| {
            p.root == access.root && against.contains(&p.what) && !(p.lanes.is_some() && p.lanes == access.lanes)
        });
        if conflict {
            self.sync(kernel, state, mode, out, loc);
            // What conflicted and had been waited for is settled by the barrier.
            state
                .pending
                .retain(|p| p.what == What::MmaRead || !(p.root == access.root && against.contains(&p.what)));
        }
    }

    fn op(&mut self, kernel: &mut Kernel, op: Op, state: &mut State, mode: Mode, out: &mut Vec<Op>) -> Result<()> {
        let data = kernel.ops[op].clone();
        let loc = data.loc;
        let result = data.results.first().copied();
        match &data.kind {
            OpKind::Load { src } if Self::in_smem(kernel, src) => {
                let access = Access {
                    root: self.root(src.alloc),
                    what: What::Read,
                    lanes: self.lanes(kernel, src, result),
                };
                self.hazard(kernel, state, mode, out, &access, &[What::Write], loc);
                state.add(access);
            }
            OpKind::Store { dst, value } | OpKind::Swap { dst, value } | OpKind::AtomicUpdate { dst, value, .. }
                if Self::in_smem(kernel, dst) =>
            {
                let access = Access {
                    root: self.root(dst.alloc),
                    what: What::Write,
                    lanes: self.lanes(kernel, dst, Some(*value)),
                };
                self.hazard(
                    kernel,
                    state,
                    mode,
                    out,
                    &access,
                    &[What::Read, What::Write, What::MmaRead, What::MmaWaited, What::StoreRead],
                    loc,
                );
                if matches!(data.kind, OpKind::Swap { .. }) {
                    state.add(Access {
                        what: What::Read,
                        ..access.clone()
                    });
                }
                state.add(access);
            }
            // GMEM written by the lanes and read back by others of them.
            OpKind::Load { src } if kernel.allocs[src.alloc].is_gmem() => {
                let access = Access {
                    root: src.alloc,
                    what: What::Read,
                    lanes: self.lanes(kernel, src, result),
                };
                self.hazard(kernel, state, mode, out, &access, &[What::Write], loc);
                if self.written[src.alloc] {
                    state.add(access);
                }
            }
            OpKind::Store { dst, value } | OpKind::Swap { dst, value } | OpKind::AtomicUpdate { dst, value, .. }
                if kernel.allocs[dst.alloc].is_gmem() =>
            {
                let access = Access {
                    root: dst.alloc,
                    what: What::Write,
                    lanes: self.lanes(kernel, dst, Some(*value)),
                };
                self.hazard(kernel, state, mode, out, &access, &[What::Read, What::Write], loc);
                state.add(access);
            }
            OpKind::CopyGmemToSmem { dst, .. } => {
                let access = Access {
                    root: self.root(dst.alloc),
                    what: What::Write,
                    lanes: None,
                };
                self.hazard(
                    kernel,
                    state,
                    mode,
                    out,
                    &access,
                    &[What::Read, What::Write, What::MmaRead, What::MmaWaited],
                    loc,
                );
                if self.automatic && state.waited {
                    self.sync(kernel, state, mode, out, loc);
                }
            }
            OpKind::BarrierWait { .. } => state.waited |= !self.in_warps && !self.allocation.feeding.waits[op],
            OpKind::CopySmemToGmem { src, .. } => {
                state.add(Access {
                    root: self.root(src.alloc),
                    what: What::StoreRead,
                    lanes: None,
                });
            }
            OpKind::Wgmma { a, b, .. } => {
                if let MmaOperand::Smem(a) = a {
                    state.add(Access {
                        root: self.root(a.alloc),
                        what: What::MmaRead,
                        lanes: None,
                    });
                }
                state.add(Access {
                    root: self.root(b.alloc),
                    what: What::MmaRead,
                    lanes: None,
                });
            }
            OpKind::WgmmaWait { .. } => {
                for access in &mut state.pending {
                    if access.what == What::MmaRead {
                        access.what = What::MmaWaited;
                    }
                }
            }
            OpKind::CommitSmem => state.sync(),
            OpKind::Sync { .. } => state.sync(),
            OpKind::SemaphoreSignal { .. } | OpKind::SemaphoreSignalParallel { .. } | OpKind::SemaphoreWait { .. } => {
                // Lowered with a warpgroup barrier.
                state.sync();
            }
            OpKind::For { .. } | OpKind::While { .. } if self.allocation.feeding.loops[op] && state.waited => {
                self.sync(kernel, state, mode, out, loc);
                self.loop_(kernel, &data.kind, state, mode)?;
            }
            OpKind::For { .. } | OpKind::While { .. } => self.loop_(kernel, &data.kind, state, mode)?,
            OpKind::Switch { arms, .. } => {
                let before = state.clone();
                let mut after = State::default();
                for &arm in arms {
                    let mut inner = before.clone();
                    self.region(kernel, arm, &mut inner, mode)?;
                    after.join(&inner);
                }
                *state = after;
            }
            OpKind::Scope { collective, body, .. } => {
                if self.allocation.overlaid.contains(&op) {
                    if mode == Mode::Insert {
                        // Everything that the memory's former owner started has to be over, in every warpgroup.
                        for kind in [
                            OpKind::WgmmaWait { n: 0, accs: vec![] },
                            OpKind::WaitSmemToGmem {
                                n: 0,
                                scope: WaitScope::SmemRead,
                            },
                            OpKind::Sync { group: Group::Block },
                        ] {
                            out.push(kernel.new_op(kind, [], Group::Warpgroup, loc));
                        }
                    }
                    state.pending.clear();
                } else if *collective && !self.first_scope && kernel.num_warpgroups > 1 {
                    if mode == Mode::Insert {
                        out.push(kernel.new_op(OpKind::Sync { group: Group::Block }, [], Group::Block, loc));
                    }
                    state.sync();
                }
                self.first_scope = false;
                self.region(kernel, *body, state, mode)?;
            }
            OpKind::WarpMap { body, .. } => {
                // Its warps run apart: everything before is ordered before it, and it before everything after.
                if self.automatic && (state.waited || !state.pending.is_empty()) {
                    self.sync(kernel, state, mode, out, loc);
                }
                let outer = std::mem::replace(&mut self.in_warps, true);
                self.region(kernel, *body, state, mode)?;
                self.in_warps = outer;
            }
            _ => {}
        }
        Ok(())
    }

    fn loop_(&mut self, kernel: &mut Kernel, kind: &OpKind, state: &mut State, mode: Mode) -> Result<()> {
        let mut regions = vec![];
        for_each_region(kind, &mut |r| regions.push(r));
        self.repeated(kernel, &regions, state, mode)
    }

    /// A body that may run again: what it leaves pending is pending when it starts.
    fn repeated(&mut self, kernel: &mut Kernel, regions: &[Region], state: &mut State, mode: Mode) -> Result<()> {
        let first_scope = self.first_scope;
        let mut head = state.clone();
        loop {
            let mut inner = head.clone();
            for &r in regions {
                self.region(kernel, r, &mut inner, Mode::Dry)?;
            }
            Self::next_iteration(kernel, &mut inner);
            let mut next = head.clone();
            next.join(&inner);
            if next == head {
                break;
            }
            head = next;
        }
        self.first_scope = first_scope;
        let mut inner = head.clone();
        for &r in regions {
            self.region(kernel, r, &mut inner, mode)?;
        }
        inner.join(state);
        *state = inner;
        Ok(())
    }
}
