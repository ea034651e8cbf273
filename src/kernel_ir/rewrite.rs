//! What passes share: substitution of values, copies of regions, where values come from.
use super::*;
use cranelift_entity::SecondaryMap;
use cranelift_entity::packed_option::PackedOption;
use rustc_hash::{FxHashMap, FxHashSet};

/// Values that stand for others.
#[derive(Default)]
pub struct Substitution(SecondaryMap<Value, PackedOption<Value>>);

impl Substitution {
    /// From now on `old` means `new`.
    pub fn replace(&mut self, old: Value, new: Value) {
        let new = self.resolve(new);
        assert_ne!(old, new, "a value cannot stand for itself");
        self.0[old] = new.into();
    }

    /// What `v` means.
    pub fn resolve(&mut self, v: Value) -> Value {
        let mut end = v;
        while let Some(next) = self.0[end].expand() {
            end = next;
        }
        if end != v {
            // Shorten the way for the next time.
            let mut at = v;
            while let Some(next) = self.0[at].expand() {
                self.0[at] = end.into();
                at = next;
            }
            self.0[v] = end.into();
        }
        end
    }

    /// Resolves what an op itself uses.
    pub fn apply(&mut self, kernel: &mut Kernel, op: Op) {
        visit::map_values(&mut kernel.ops[op].kind, &mut |v| *v = self.resolve(*v));
    }

    /// Resolves what an op uses, and everything in its regions.
    pub fn apply_nested(&mut self, kernel: &mut Kernel, op: Op) {
        self.apply(kernel, op);
        for inner in regions_of(kernel, op) {
            self.apply_region(kernel, inner);
        }
    }

    /// Resolves everything in a region.
    pub fn apply_region(&mut self, kernel: &mut Kernel, region: Region) {
        for i in 0..kernel.regions[region].ops.len() {
            let op = kernel.regions[region].ops[i];
            self.apply_nested(kernel, op);
        }
        self.apply_results(kernel, region);
    }

    /// Resolves what a region yields.
    pub fn apply_results(&mut self, kernel: &mut Kernel, region: Region) {
        for v in &mut kernel.regions[region].results {
            *v = self.resolve(*v);
        }
    }
}

/// The regions of an op.
pub fn regions_of(kernel: &Kernel, op: Op) -> smallvec::SmallVec<[Region; 2]> {
    let mut regions = smallvec::SmallVec::new();
    visit::for_each_region(&kernel.ops[op].kind, &mut |r| regions.push(r));
    regions
}

/// All values defined in a region, those in its ops' regions included.
pub fn values_defined_in(kernel: &Kernel, region: Region) -> FxHashSet<Value> {
    fn collect(kernel: &Kernel, region: Region, out: &mut FxHashSet<Value>) {
        out.extend(&kernel.regions[region].params);
        for &op in &kernel.regions[region].ops {
            out.extend(&kernel.ops[op].results);
            for inner in regions_of(kernel, op) {
                collect(kernel, inner, out);
            }
        }
    }
    let mut out = FxHashSet::default();
    collect(kernel, region, &mut out);
    out
}

/// A copy of a region with new values and ops; allocations are the same. `map` takes values of the original to those of the
/// copy; what it lacks is defined outside.
pub fn copy_region(kernel: &mut Kernel, region: Region, map: &mut FxHashMap<Value, Value>) -> Region {
    let RegionData {
        params,
        ops,
        results,
        group,
    } = kernel.regions[region].clone();
    let copy = kernel.new_region(group);
    for p in params {
        let q = copy_value(kernel, p, map);
        kernel.regions[copy].params.push(q);
    }
    for op in ops {
        let op = copy_op(kernel, op, map);
        kernel.regions[copy].ops.push(op);
    }
    kernel.regions[copy].results = results.iter().map(|v| *map.get(v).unwrap_or(v)).collect();
    copy
}

/// A copy of an op, in no region yet.
pub fn copy_op(kernel: &mut Kernel, op: Op, map: &mut FxHashMap<Value, Value>) -> Op {
    let OpData { mut kind, results, loc } = kernel.ops[op].clone();
    visit::map_values(&mut kind, &mut |v| {
        if let Some(w) = map.get(v) {
            *v = *w;
        }
    });
    let mut copies = vec![];
    for inner in regions_of(kernel, op) {
        copies.push(copy_region(kernel, inner, map));
    }
    let mut copies = copies.into_iter();
    visit::for_each_part_mut(&mut kind, &mut |part| {
        if let visit::PartMut::Region(r) = part {
            *r = copies.next().expect("as many copies as regions");
        }
    });
    let new = kernel.ops.push(OpData {
        kind,
        results: smallvec::SmallVec::new(),
        loc,
    });
    for v in results {
        let w = copy_value(kernel, v, map);
        kernel.values[w].def = new.into();
        kernel.ops[new].results.push(w);
    }
    new
}

/// Appends a `for` loop that is in no region, and lets it carry these values of its body to the next iteration; the first gets zeros. What
/// stands for them in an iteration, those of the one before, and behind the loop.
pub fn carry(kernel: &mut Kernel, at: Region, op: Op, kept: &[Value]) -> [FxHashMap<Value, Value>; 2] {
    let OpKind::For { body, .. } = kernel.ops[op].kind else {
        unreachable!("a loop")
    };
    let (group, loc) = (kernel.regions[body].group, kernel.ops[op].loc);
    let (mut before, mut behind) = (FxHashMap::default(), FxHashMap::default());
    for v in kept {
        let ty = kernel.ty(*v).clone();
        let zero = kernel.append1(at, OpKind::Constant(Constant::Splat(0)), ty.clone(), loc);
        if let OpKind::For { inits, .. } = &mut kernel.ops[op].kind {
            inits.push(zero);
        }
        let (param, result) = (kernel.new_value(ty.clone(), group), kernel.new_value(ty, group));
        kernel.regions[body].params.push(param);
        kernel.regions[body].results.push(*v);
        kernel.values[result].def = op.into();
        kernel.ops[op].results.push(result);
        before.insert(*v, param);
        behind.insert(*v, result);
    }
    kernel.regions[at].ops.push(op);
    [before, behind]
}

/// Appends copies of ops; `map` is as in [`copy_region`].
pub fn append_copies(kernel: &mut Kernel, at: Region, ops: &[Op], map: &mut FxHashMap<Value, Value>) {
    for op in ops {
        let copy = copy_op(kernel, *op, map);
        kernel.regions[at].ops.push(copy);
    }
}

/// Appends a region that runs if a condition holds: `then` fills it and gives its results. `otherwise` stands for them if it does not run.
pub fn append_if(
    kernel: &mut Kernel,
    at: Region,
    condition: Value,
    otherwise: &[Value],
    loc: crate::error::Loc,
    then: impl FnOnce(&mut Kernel, Region) -> Vec<Value>,
) -> Vec<Value> {
    let group = kernel.regions[at].group;
    let (skips, runs) = (kernel.new_region(group), kernel.new_region(group));
    kernel.regions[skips].results = otherwise.to_vec();
    kernel.regions[runs].results = then(kernel, runs);
    let types: Vec<Type> = otherwise.iter().map(|v| kernel.ty(*v).clone()).collect();
    let kind = OpKind::Switch {
        selector: condition,
        arms: vec![skips, runs],
    };
    kernel.append(at, kind, types, loc).to_vec()
}

fn copy_value(kernel: &mut Kernel, v: Value, map: &mut FxHashMap<Value, Value>) -> Value {
    let data = ValueData {
        def: None.into(),
        ..kernel.values[v].clone()
    };
    let w = kernel.values.push(data);
    map.insert(v, w);
    w
}

/// Appends an integer binary op of `a`'s type, with its facts.
pub fn append_binary(
    kernel: &mut Kernel,
    region: Region,
    op: BinaryOp,
    a: Value,
    b: Value,
    loc: crate::error::Loc,
) -> Value {
    let ty = kernel.ty(a).clone();
    let v = kernel.append1(region, OpKind::Binary { op, a, b }, ty, loc);
    facts::update(kernel, v);
    v
}

/// Appends a comparison of two scalars.
pub fn append_compare(
    kernel: &mut Kernel,
    region: Region,
    op: CompareOp,
    a: Value,
    b: Value,
    loc: crate::error::Loc,
) -> Value {
    let ty = Type::Scalar(crate::dtype::DType::Bool);
    kernel.append1(region, OpKind::Compare { op, a, b }, ty, loc)
}

/// Appends a conversion to `dtype`, unless `a` has it.
pub fn append_convert(
    kernel: &mut Kernel,
    region: Region,
    a: Value,
    dtype: crate::dtype::DType,
    loc: crate::error::Loc,
) -> Value {
    if kernel.ty(a).dtype() == dtype {
        return a;
    }
    let ty = kernel.ty(a).with_dtype(dtype);
    let v = kernel.append1(region, OpKind::Convert { a }, ty, loc);
    facts::update(kernel, v);
    v
}
