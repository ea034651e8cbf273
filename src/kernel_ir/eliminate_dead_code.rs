//! Removes what nobody needs: pure ops, loads, loops without effects, carries and results.
//!
//! A `while` that polls ([`polling`]) is a wait, and stays with all that its condition needs. A loop that only computes goes:
//! a `for` ends, and whether any other `while` does depends on nobody else.
use super::polling::{self, Polling};
use super::rewrite::regions_of;
use super::*;
use crate::error::Result;
use cranelift_entity::{EntitySet, SecondaryMap};

pub fn run(kernel: &mut Kernel) -> Result<()> {
    let mut pass = Liveness {
        kernel,
        live: EntitySet::new(),
        kept: EntitySet::new(),
        work: vec![],
        params: SecondaryMap::new(),
        polling: polling::find(kernel),
    };
    pass.find_params(pass.kernel.body, None);
    pass.roots(pass.kernel.body);
    pass.propagate();
    let Liveness { live, kept, .. } = pass;
    sweep(kernel, kernel.body, &live, &kept);
    Ok(())
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
            let mut keep = inner.is_empty() && !is_removable(kind) || self.polling.loops.contains(op);
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
        match &self.kernel.ops[op].kind {
            OpKind::For { lower, upper, .. } => {
                self.mark(*lower);
                self.mark(*upper);
            }
            OpKind::While { cond, .. } => self.mark(self.kernel.regions[*cond].results[0]),
            OpKind::Switch { selector, .. } => self.mark(*selector),
            OpKind::Scope { .. } | OpKind::WarpMap { .. } => {}
            kind => {
                let mut values = vec![];
                visit::for_each_value(kind, &mut |v| values.push(v));
                for v in values {
                    self.mark(v);
                }
            }
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

    /// What result `i` of an op with regions comes from.
    fn result_is_live(&mut self, op: Op, i: usize) {
        let regions = &self.kernel.regions;
        match &self.kernel.ops[op].kind {
            OpKind::For { inits, body, .. } => {
                let (yielded, init) = (regions[*body].results[i], inits.get(i).copied());
                self.mark(yielded);
                if let Some(init) = init {
                    self.mark(init);
                    self.mark(regions[*body].params[1 + i]);
                }
            }
            OpKind::While { cond, .. } => {
                self.mark(regions[*cond].results[1 + i]);
                // The slot exists as a whole or not at all.
                self.mark(regions[*cond].params[i]);
            }
            OpKind::Switch { arms, .. } => {
                for &arm in arms {
                    self.mark(regions[arm].results[i]);
                }
            }
            OpKind::Scope { body, .. } => self.mark(regions[*body].results[i]),
            OpKind::WarpMap { inits, body, .. } => {
                // The slot exists as a whole or not at all.
                self.mark(regions[*body].results[i]);
                self.mark(inits[i]);
            }
            _ => {}
        }
    }

    fn param_is_live(&mut self, op: Op, region: Region, i: usize) {
        let regions = &self.kernel.regions;
        match &self.kernel.ops[op].kind {
            OpKind::For { inits, xs, body, .. } => {
                if i == 0 {
                    return;
                }
                match inits.get(i - 1) {
                    Some(&init) => {
                        self.mark(init);
                        self.mark(regions[*body].results[i - 1]);
                    }
                    None => self.mark(xs[i - 1 - inits.len()]),
                }
            }
            OpKind::While { inits, cond, body } => {
                if region == *cond {
                    self.mark(inits[i]);
                    self.mark(regions[*body].results[i]);
                } else {
                    self.mark(regions[*cond].results[1 + i]);
                    // The slot exists as a whole or not at all.
                    self.mark(regions[*cond].params[i]);
                }
            }
            OpKind::WarpMap { inits, .. } => {
                self.mark(inits[i]);
                self.mark(regions[region].results[i]);
            }
            _ => {}
        }
    }
}

fn retain<T>(list: &mut Vec<T>, keep: &[bool]) {
    let mut i = 0;
    list.retain(|_| {
        i += 1;
        keep[i - 1]
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
    let results = kernel.ops[op].results.clone();
    let is_live = |v: &Value| live.contains(*v);
    // A slot stays if any of its values is needed.
    let keep: Vec<bool> = match &kernel.ops[op].kind {
        OpKind::For { inits, body, .. } => {
            let params = &kernel.regions[*body].params;
            (0..results.len())
                .map(|i| is_live(&results[i]) || (i < inits.len() && is_live(&params[1 + i])))
                .collect()
        }
        OpKind::While { inits, cond, body } => {
            let (cond, body) = (&kernel.regions[*cond].params, &kernel.regions[*body].params);
            (0..inits.len())
                .map(|i| is_live(&results[i]) || is_live(&cond[i]) || is_live(&body[i]))
                .collect()
        }
        OpKind::WarpMap { body, .. } => {
            let params = &kernel.regions[*body].params;
            (0..results.len())
                .map(|i| is_live(&results[i]) || is_live(&params[i]))
                .collect()
        }
        OpKind::Switch { .. } | OpKind::Scope { .. } => results.iter().map(is_live).collect(),
        OpKind::Swap { dst, value } if !is_live(&results[0]) => {
            let (dst, value) = (dst.clone(), *value);
            kernel.ops[op].kind = OpKind::Store { dst, value };
            kernel.ops[op].results.clear();
            return;
        }
        _ => return,
    };
    let mut dead_xs = vec![];
    if let OpKind::For { inits, xs, body, .. } = &kernel.ops[op].kind {
        let params = &kernel.regions[*body].params;
        dead_xs = (0..xs.len()).map(|i| is_live(&params[1 + inits.len() + i])).collect();
    }
    if keep.iter().all(|&k| k) && dead_xs.iter().all(|&k| k) {
        return;
    }
    let mut i = 0;
    kernel.ops[op].results.retain(|_| {
        i += 1;
        keep[i - 1]
    });
    let regions = &mut kernel.regions;
    match &mut kernel.ops[op].kind {
        OpKind::For { inits, xs, body, .. } => {
            let carries = &keep[..inits.len()];
            let params: Vec<bool> = [true].iter().chain(carries).chain(&dead_xs).copied().collect();
            retain(&mut regions[*body].params, &params);
            retain(&mut regions[*body].results, &keep);
            retain(inits, carries);
            retain(xs, &dead_xs);
        }
        OpKind::While { inits, cond, body } => {
            retain(inits, &keep);
            retain(&mut regions[*cond].params, &keep);
            let passed: Vec<bool> = [true].iter().chain(&keep).copied().collect();
            retain(&mut regions[*cond].results, &passed);
            retain(&mut regions[*body].params, &keep);
            retain(&mut regions[*body].results, &keep);
        }
        OpKind::WarpMap { inits, body, .. } => {
            retain(inits, &keep);
            retain(&mut regions[*body].params, &keep);
            retain(&mut regions[*body].results, &keep);
        }
        OpKind::Switch { arms, .. } => {
            for &arm in arms.iter() {
                retain(&mut regions[arm].results, &keep);
            }
        }
        OpKind::Scope { body, .. } => retain(&mut regions[*body].results, &keep),
        _ => {}
    }
}
