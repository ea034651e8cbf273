//! Makes mutable state into values: what a region may change is carried through it.
use crate::error::Result;
use crate::kernel_ir::rewrite::regions_of;
use crate::kernel_ir::*;
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
    let data = &this.kernel().ops[op];
    let Some(control) = data.kind.control() else {
        return Ok(());
    };
    // Behind what is carried already.
    let at = control.inits().map_or(data.results.len(), <[Value]>::len);
    let carries = control.carries();
    let old: Vec<Value> = vars.iter().map(|&v| this.get(v)).collect();
    for border in carries {
        let inside = match border.params {
            Some(first) => &insert_params(this.kernel(), border.region, first + at, &old),
            None => &old,
        };
        enter(this, vars, inside);
        this.region(border.region)?;
        let (finals, at) = (leave(this, vars), border.results + at);
        this.kernel().regions[border.region].results.splice(at..at, finals);
    }
    if let Some(inits) = this.kernel().ops[op].kind.inits_mut() {
        inits.extend_from_slice(&old);
    }
    let results = insert_results(this.kernel(), op, at, &old);
    enter(this, vars, &results);
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
