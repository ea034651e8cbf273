//! Removes what is not used: pure ops, loads, loops without effects, carries and results.
//!
//! A `while` that polls ([`polling`]) is a wait, and stays with all that its condition needs. A loop that only computes goes:
//! a `for` ends, and whether any other `while` does depends on this thread alone.
//!
//! Commits of groups that are empty go where no wait counts groups, and waits for stores of a kernel that starts none.
use crate::error::Result;
use crate::kernel_ir::class::Control;
use crate::kernel_ir::polling::{self, Polling};
use crate::kernel_ir::rewrite::regions_of;
use crate::kernel_ir::*;
use cranelift_entity::{EntitySet, SecondaryMap};

pub fn run(kernel: &mut Kernel) -> Result<()> {
    let mut pass = Liveness {
        kernel,
        live: EntitySet::new(),
        kept: EntitySet::new(),
        work: vec![],
        params: SecondaryMap::new(),
        polling: polling::find(kernel),
        stores: Stores::of(kernel),
    };
    pass.find_params(pass.kernel.body, None);
    pass.roots(pass.kernel.body);
    pass.propagate();
    let Liveness { live, kept, .. } = pass;
    sweep(kernel, kernel.body, &live, &kept);
    Ok(())
}

/// What a kernel does with asynchronous stores.
#[derive(Default)]
struct Stores {
    starts: bool,
    /// Some store's group is ended by a commit of its own.
    starts_uncommitted: bool,
    /// Some wait leaves groups pending: even empty ones count.
    counts_groups: bool,
}

impl Stores {
    fn of(kernel: &Kernel) -> Stores {
        let mut found = Stores::default();
        kernel.for_each_op(&mut |op| {
            if let OpKind::CopySmemToGmem { commit_group, .. } = &kernel.ops[op].kind {
                found.starts = true;
                found.starts_uncommitted |= !commit_group;
            }
            if let OpKind::WaitSmemToGmem { n, .. } = &kernel.ops[op].kind {
                found.counts_groups |= *n > 0;
            }
        });
        found
    }

    /// Whether an op ends an empty group that no wait counts, or waits for nothing.
    fn is_idle(&self, kind: &OpKind) -> bool {
        let (commits, waits) = (
            matches!(kind, OpKind::CommitGroup),
            matches!(kind, OpKind::WaitSmemToGmem { .. }),
        );
        commits && !self.starts_uncommitted && !self.counts_groups || (commits || waits) && !self.starts
    }
}

/// Where a region's parameter gets its value from.
#[derive(Clone, Copy, Default)]
struct ParamOf {
    /// The op that the region is in, and the parameter's index; none: the kernel's body.
    of: Option<(Op, Region, u32)>,
}

struct Liveness<'a> {
    kernel: &'a Kernel,
    live: EntitySet<Value>,
    /// Ops with regions that have effects, and ops that have effects themselves.
    kept: EntitySet<Op>,
    work: Vec<Value>,
    params: SecondaryMap<Value, ParamOf>,
    polling: Polling,
    stores: Stores,
}

/// Whether an op without regions can go when its results are unused.
fn is_removable(kind: &OpKind) -> bool {
    kind.is_pure()
        || matches!(
            kind,
            OpKind::Load { .. }
                | OpKind::OptimizationBarrier { .. }
                | OpKind::AccInit { .. }
                | OpKind::AccRead { acc: AccUse::Value(_) }
                | OpKind::SemaphoreRead { .. }
        )
}

impl Liveness<'_> {
    fn find_params(&mut self, region: Region, op: Option<Op>) {
        for (i, &p) in self.kernel.regions[region].params.iter().enumerate() {
            self.params[p] = ParamOf {
                of: op.map(|op| (op, region, i as u32)),
            };
        }
        for &op in &self.kernel.regions[region].ops {
            for inner in regions_of(self.kernel, op) {
                self.find_params(inner, Some(op));
            }
        }
    }

    fn mark(&mut self, v: Value) {
        if self.live.insert(v) {
            self.work.push(v);
        }
    }

    /// Marks what effects need. True: the region has effects.
    fn roots(&mut self, region: Region) -> bool {
        let mut effects = false;
        for &op in &self.kernel.regions[region].ops {
            let kind = &self.kernel.ops[op].kind;
            let inner = regions_of(self.kernel, op);
            let idle = is_removable(kind) || self.stores.is_idle(kind);
            let mut keep = inner.is_empty() && !idle || self.polling.loops.contains(op);
            for region in inner {
                keep |= self.roots(region);
            }
            if keep {
                effects = true;
                self.keep(op);
            }
        }
        effects
    }

    /// The op stays: so do its own operands, or, with regions, what decides whether they run.
    fn keep(&mut self, op: Op) {
        if !self.kept.insert(op) {
            return;
        }
        let kernel = self.kernel;
        let kind = &kernel.ops[op].kind;
        match kind.control() {
            Some(Control::For { lower, upper, .. }) => {
                self.mark(lower);
                self.mark(upper);
            }
            Some(Control::While { cond, .. }) => self.mark(kernel.regions[cond].results[0]),
            Some(Control::Switch { selector, .. }) => self.mark(selector),
            Some(Control::Scope { .. } | Control::WarpMap { .. }) => {}
            None => visit::for_each_value(kind, &mut |v| self.mark(v)),
        }
    }

    fn propagate(&mut self) {
        while let Some(v) = self.work.pop() {
            if let Some(op) = self.kernel.def_op(v) {
                let i = self.kernel.ops[op].results.iter().position(|&r| r == v);
                self.keep(op);
                if let Some(i) = i {
                    self.result_is_live(op, i);
                }
            } else if let Some((op, region, i)) = self.params[v].of {
                self.keep(op);
                self.param_is_live(op, region, i as usize);
            }
        }
    }

    /// A value that is carried through an op with regions, or result `i` of one: it exists as a whole or not at all.
    fn result_is_live(&mut self, op: Op, i: usize) {
        let kernel = self.kernel;
        let Some(control) = kernel.ops[op].kind.control() else {
            return;
        };
        let init = control.inits().and_then(|inits| inits.get(i));
        for border in control.carries() {
            let region = &kernel.regions[border.region];
            self.mark(region.results[border.results + i]);
            if let (Some(first), Some(_)) = (border.params, init) {
                self.mark(region.params[first + i]);
            }
        }
        if let Some(&init) = init {
            self.mark(init);
        }
    }

    fn param_is_live(&mut self, op: Op, region: Region, i: usize) {
        let Some(control) = self.kernel.ops[op].kind.control() else {
            return;
        };
        let first = control
            .carries()
            .iter()
            .find(|border| border.region == region)
            .and_then(|b| b.params);
        // Before the carries is a loop's counter.
        let Some(i) = first.and_then(|first| i.checked_sub(first)) else {
            return;
        };
        if let Control::For { inits, xs, .. } = control
            && i >= inits.len()
        {
            self.mark(xs[i - inits.len()]);
        } else {
            self.result_is_live(op, i);
        }
    }
}

/// Of what follows the first `from`, what is to be kept.
fn retain<T>(list: &mut Vec<T>, from: usize, keep: &[bool]) {
    let mut i = 0;
    list.retain(|_| {
        i += 1;
        i <= from || keep[i - 1 - from]
    });
}

fn sweep(kernel: &mut Kernel, region: Region, live: &EntitySet<Value>, kept: &EntitySet<Op>) {
    let mut ops = std::mem::take(&mut kernel.regions[region].ops);
    ops.retain(|&op| kept.contains(op));
    for &op in &ops {
        for inner in regions_of(kernel, op) {
            sweep(kernel, inner, live, kept);
        }
        prune(kernel, op, live);
    }
    kernel.regions[region].ops = ops;
}

/// Drops the carries and results of an op with regions that nothing needs.
fn prune(kernel: &mut Kernel, op: Op, live: &EntitySet<Value>) {
    let OpData { kind, results, .. } = &mut kernel.ops[op];
    let is_live = |v: &Value| live.contains(*v);
    if let OpKind::Swap { dst, value } = kind
        && !is_live(&results[0])
    {
        let (dst, value) = (dst.clone(), *value);
        *kind = OpKind::Store { dst, value };
        results.clear();
        return;
    }
    let Some(control) = kind.control() else { return };
    let regions = &mut kernel.regions;
    let (borders, carried) = (control.carries(), control.inits().map_or(0, <[Value]>::len));
    // A carry stays if any of its values is needed.
    let is_param_live = |i: usize| {
        let mut params = borders
            .iter()
            .filter_map(|border| Some(&regions[border.region].params[border.params? + i]));
        i < carried && params.any(is_live)
    };
    let keep: Vec<bool> = results
        .iter()
        .enumerate()
        .map(|(i, r)| is_live(r) || is_param_live(i))
        .collect();
    let mut keep_params = keep[..carried].to_vec();
    if let Control::For { body, .. } = control {
        keep_params.extend(regions[body].params[1 + carried..].iter().map(is_live));
    }
    if keep.iter().chain(&keep_params).all(|&k| k) {
        return;
    }
    let mut i = 0;
    results.retain(|_| {
        i += 1;
        keep[i - 1]
    });
    for border in borders {
        let data = &mut regions[border.region];
        if let Some(first) = border.params {
            retain(&mut data.params, first, &keep_params);
        }
        retain(&mut data.results, border.results, &keep);
    }
    if let Some(inits) = kind.inits_mut() {
        retain(inits, 0, &keep);
    }
    if let OpKind::For { xs, .. } = kind {
        retain(xs, 0, &keep_params[carried..]);
    }
}
