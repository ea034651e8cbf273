//! Makes mutable state into values: what a region may change is carried through it.
use super::rewrite::regions_of;
use super::*;
use crate::error::Result;
use rustc_hash::FxHashMap;

/// A pass that turns state variables, each named by an allocation, into values.
pub trait Threaded {
    fn kernel(&mut self) -> &mut Kernel;
    /// The variable's value here.
    fn get(&mut self, var: Alloc) -> Value;
    fn set(&mut self, var: Alloc, v: Value);
    /// Rewrites a region's ops.
    fn region(&mut self, region: Region) -> Result<()>;
}

/// The variables that each region touches, those of its inner regions included, in order.
pub type Touched = FxHashMap<Region, Vec<Alloc>>;

/// Finds what each region touches; `touches` gives an op's own.
pub fn find_touched(
    kernel: &Kernel,
    region: Region,
    touches: &dyn Fn(&Kernel, Op, &mut Vec<Alloc>),
    out: &mut Touched,
) {
    let mut all = vec![];
    for &op in &kernel.regions[region].ops {
        touches(kernel, op, &mut all);
        for inner in regions_of(kernel, op) {
            find_touched(kernel, inner, touches, out);
            all.extend_from_slice(&out[&inner]);
        }
    }
    all.sort_unstable();
    all.dedup();
    out.insert(region, all);
}

/// Rewrites the regions of an op, carrying `vars` in and out.
pub fn thread<T: Threaded>(this: &mut T, op: Op, vars: &[Alloc]) -> Result<()> {
    if regions_of(this.kernel(), op).is_empty() {
        return Ok(());
    }
    let old: Vec<Value> = vars.iter().map(|&v| this.get(v)).collect();
    let kind = this.kernel().ops[op].kind.clone();
    match kind {
        OpKind::For { inits, body, .. } => {
            let at = inits.len();
            let params = insert_params(this.kernel(), body, 1 + at, &old);
            enter(this, vars, &params);
            this.region(body)?;
            let finals = leave(this, vars);
            this.kernel().regions[body].results.splice(at..at, finals);
            if let OpKind::For { inits, .. } = &mut this.kernel().ops[op].kind {
                inits.extend_from_slice(&old);
            }
            let results = insert_results(this.kernel(), op, at, &old);
            enter(this, vars, &results);
        }
        OpKind::While { inits, cond, body } => {
            let at = inits.len();
            let params = insert_params(this.kernel(), cond, at, &old);
            enter(this, vars, &params);
            this.region(cond)?;
            let finals = leave(this, vars);
            this.kernel().regions[cond].results.extend(finals);
            let params = insert_params(this.kernel(), body, at, &old);
            enter(this, vars, &params);
            this.region(body)?;
            let finals = leave(this, vars);
            this.kernel().regions[body].results.extend(finals);
            if let OpKind::While { inits, .. } = &mut this.kernel().ops[op].kind {
                inits.extend_from_slice(&old);
            }
            let results = insert_results(this.kernel(), op, at, &old);
            enter(this, vars, &results);
        }
        OpKind::WarpMap { inits, body, .. } => {
            let at = inits.len();
            let params = insert_params(this.kernel(), body, at, &old);
            enter(this, vars, &params);
            this.region(body)?;
            let finals = leave(this, vars);
            this.kernel().regions[body].results.extend(finals);
            if let OpKind::WarpMap { inits, .. } = &mut this.kernel().ops[op].kind {
                inits.extend_from_slice(&old);
            }
            let results = insert_results(this.kernel(), op, at, &old);
            enter(this, vars, &results);
        }
        OpKind::Switch { arms, .. } => {
            for arm in arms {
                enter(this, vars, &old);
                this.region(arm)?;
                let finals = leave(this, vars);
                this.kernel().regions[arm].results.extend(finals);
            }
            let at = this.kernel().ops[op].results.len();
            let results = insert_results(this.kernel(), op, at, &old);
            enter(this, vars, &results);
        }
        OpKind::Scope { body, .. } => {
            this.region(body)?;
            let finals = leave(this, vars);
            this.kernel().regions[body].results.extend(finals);
            let at = this.kernel().ops[op].results.len();
            let results = insert_results(this.kernel(), op, at, &old);
            enter(this, vars, &results);
        }
        _ => {}
    }
    Ok(())
}

fn enter<T: Threaded>(this: &mut T, vars: &[Alloc], values: &[Value]) {
    for (&var, &v) in vars.iter().zip(values) {
        this.set(var, v);
    }
}

fn leave<T: Threaded>(this: &mut T, vars: &[Alloc]) -> Vec<Value> {
    vars.iter().map(|&v| this.get(v)).collect()
}

/// New values like `old`.
fn like(kernel: &mut Kernel, old: &[Value]) -> Vec<Value> {
    old.iter()
        .map(|&v| {
            let ValueData { ty, group, .. } = kernel.values[v].clone();
            kernel.new_value(ty, group)
        })
        .collect()
}

fn insert_params(kernel: &mut Kernel, region: Region, at: usize, old: &[Value]) -> Vec<Value> {
    let new = like(kernel, old);
    kernel.regions[region].params.splice(at..at, new.iter().copied());
    new
}

fn insert_results(kernel: &mut Kernel, op: Op, at: usize, old: &[Value]) -> Vec<Value> {
    let new = like(kernel, old);
    for (i, &v) in new.iter().enumerate() {
        kernel.values[v].def = op.into();
        kernel.ops[op].results.insert(at + i, v);
    }
    new
}
