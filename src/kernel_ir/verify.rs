//! What holds of every kernel.
//!
//! **Structure.** Every op, region and value is defined once and reachable once: an op is in one region, a region in one op. A
//! value's `def` is the op that has it as a result. A use is dominated by its definition: earlier in its region, or in an
//! enclosing one.
//!
//! **Groups.** A region is executed by its parent's group, a `warp_map`'s by the warp. wgmma and register changes are a warpgroup's.
//!
//! **Types.** Operands and results have the types that [`OpKind`] states; a `for` yields what it carries, and so on.
//!
//! **References.** A view's steps fit its allocation's shape one after another, and its element and shape are what they give. Static
//! indices are inside, GMEM's too. Barrier ops name barriers, data ops data, copies GMEM and SMEM.
//!
//! **Scopes.** A reference is used inside of the scope that allocates it. GMEM parameters and global semaphores have none.
//!
//! **Linearity.** An accumulator is used at most once on every path, and not inside of a loop that is not its own.
//!
//! At [`Stage::Normalized`] also:
//! * no view has allocation transforms, no allocation is of registers, no reference is to a union itself;
//! * barriers and semaphores are of rank 1, and a use of one names its index;
//! * every barrier wait and test has phases, a u32 of its own allocation's, and gives them back;
//! * accumulators are values; a wait takes at least one.
use super::class::Control;
use super::rewrite::regions_of;
use super::*;
use crate::dtype::DType;
use crate::error::{Error, Loc};
use cranelift_entity::{EntitySet, SecondaryMap};
use std::fmt;

/// A rule that a kernel breaks. The names are stable: tests go by them.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Rule {
    DefinedOnce,
    Dominance,
    Group,
    Arity,
    Type,
    View,
    Scope,
    Linear,
    Normalized,
}

/// One broken rule.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Violation {
    pub rule: Rule,
    pub op: Option<Op>,
    pub loc: Loc,
    pub text: String,
}

/// Everything that is wrong with a kernel. Never empty.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Violations(pub Vec<Violation>);

impl fmt::Display for Violations {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, Violation { rule, op, loc, text }) in self.0.iter().enumerate() {
            if i > 0 {
                f.write_str("\n")?;
            }
            write!(f, "{rule:?}: {text}")?;
            if let Some(op) = op {
                write!(f, " ({op}, {loc})")?;
            }
        }
        Ok(())
    }
}

impl Violations {
    /// An internal error: `pass` left the kernel like this.
    pub fn in_pass(&self, pass: &str) -> Error {
        let first = self.0.first().map_or(Loc::CALL_SITE, |v| v.loc);
        Error::internal(format!("the kernel is not valid after `{pass}`:\n{self}")).at(first)
    }
}

/// Checks a kernel; collects what is wrong.
pub fn run(kernel: &Kernel) -> Result<(), Violations> {
    let mut v = Verifier {
        kernel,
        found: vec![],
        defined: EntitySet::new(),
        in_scope: EntitySet::new(),
        placed_ops: EntitySet::new(),
        placed_regions: EntitySet::new(),
        allocated: SecondaryMap::new(),
        spent: EntitySet::new(),
        at: None,
    };
    for (alloc, data) in &kernel.allocs {
        let global = matches!(
            data.kind,
            AllocKind::Gmem { .. }
                | AllocKind::Semaphore {
                    origin: GmemOrigin::Param(_) | GmemOrigin::Scratch { global: true }
                }
        );
        v.allocated[alloc] = global;
        if kernel.stage == Stage::Normalized {
            if matches!(data.kind, AllocKind::Register { .. }) {
                continue;
            }
            if matches!(data.elem(), Elem::Barrier | Elem::Semaphore) && data.shape.len() != 1 {
                v.report(
                    Rule::Normalized,
                    format!("{alloc} of barriers or semaphores has rank {}", data.shape.len()),
                );
            }
        }
    }
    v.region(kernel.body, Group::Warpgroup);
    if !kernel.regions[kernel.body].results.is_empty() {
        v.report(Rule::Arity, "the kernel's body yields values".to_string());
    }
    if v.found.is_empty() {
        Ok(())
    } else {
        Err(Violations(v.found))
    }
}

struct Verifier<'a> {
    kernel: &'a Kernel,
    found: Vec<Violation>,
    /// Values that were defined anywhere.
    defined: EntitySet<Value>,
    /// Values that may be used here.
    in_scope: EntitySet<Value>,
    placed_ops: EntitySet<Op>,
    placed_regions: EntitySet<Region>,
    /// Allocations that may be used here.
    allocated: SecondaryMap<Alloc, bool>,
    /// Accumulators that were used on this path.
    spent: EntitySet<Value>,
    at: Option<Op>,
}

impl Verifier<'_> {
    fn report(&mut self, rule: Rule, text: String) {
        // A broken kernel breaks many rules; the first ones tell.
        if self.found.len() < 20 {
            let loc = self.at.map_or(Loc::CALL_SITE, |op| self.kernel.ops[op].loc);
            self.found.push(Violation {
                rule,
                op: self.at,
                loc,
                text,
            });
        }
    }

    fn check(&mut self, rule: Rule, ok: bool, text: impl FnOnce() -> String) {
        if !ok {
            self.report(rule, text());
        }
    }

    fn define(&mut self, v: Value, def: Option<Op>) {
        let fresh = self.defined.insert(v);
        self.check(Rule::DefinedOnce, fresh, || format!("{v} is defined twice"));
        self.in_scope.insert(v);
        let known = self.kernel.def_op(v);
        self.check(Rule::DefinedOnce, known == def, || {
            format!("{v} is defined by {def:?}, but says {known:?}")
        });
    }

    fn used(&mut self, v: Value) {
        let ok = self.in_scope.contains(v);
        self.check(Rule::Dominance, ok, || format!("{v} is used where it is not defined"));
        if self.kernel.ty(v).is_acc() {
            let first = self.spent.insert(v);
            self.check(Rule::Linear, first, || format!("the accumulator {v} is used twice"));
        }
    }

    fn region(&mut self, region: Region, group: Group) {
        let fresh = self.placed_regions.insert(region);
        self.check(Rule::DefinedOnce, fresh, || format!("{region} is in two places"));
        if !fresh {
            return;
        }
        let data = &self.kernel.regions[region];
        self.check(Rule::Group, data.group == group, || {
            format!("{region} is executed by the {}, not the {group}", data.group)
        });
        for &p in &data.params {
            self.define(p, None);
        }
        for &op in &data.ops {
            self.at = Some(op);
            self.op(op, group);
        }
        for &v in &data.results {
            self.used(v);
        }
        // What the region defined is not seen after it.
        for &p in &data.params {
            self.in_scope.remove(p);
        }
        for &op in &data.ops {
            for &v in &self.kernel.ops[op].results {
                self.in_scope.remove(v);
            }
        }
    }

    fn op(&mut self, op: Op, group: Group) {
        let fresh = self.placed_ops.insert(op);
        self.check(Rule::DefinedOnce, fresh, || format!("{op} is in two places"));
        let data = &self.kernel.ops[op];
        visit::for_each_value(&data.kind, &mut |v| self.used(v));
        visit::for_each_ref(&data.kind, &mut |r| self.reference(r));
        self.types(op);
        if self.kernel.stage == Stage::Normalized {
            self.normalized(op);
        }
        if let OpKind::Wgmma { .. } | OpKind::WgmmaWait { .. } | OpKind::SetMaxRegisters { .. } = data.kind {
            self.check(Rule::Group, group == Group::Warpgroup, || {
                format!("`{}` in a region of the {group}", data.kind.name())
            });
        }
        self.inner(op, group);
        self.at = Some(op);
        for &v in &data.results {
            self.define(v, Some(op));
        }
    }

    /// The op's regions. An accumulator from outside is used at most once in each way through them.
    fn inner(&mut self, op: Op, group: Group) {
        let kernel = self.kernel;
        match kernel.ops[op].kind.control() {
            Some(Control::Switch { arms, .. }) => {
                let before = self.spent.clone();
                let mut after = before.clone();
                for &arm in arms {
                    self.spent = before.clone();
                    self.region(arm, group);
                    for v in self.spent.iter() {
                        after.insert(v);
                    }
                }
                self.spent = after;
            }
            Some(Control::For { .. } | Control::While { .. }) => {
                // A loop's body runs many times: it must not use an accumulator from outside.
                let outside: Vec<Value> = self.spent.iter().collect();
                let visible = self.in_scope.clone();
                for region in regions_of(kernel, op) {
                    self.region(region, group);
                }
                self.at = Some(op);
                let mut captured = vec![];
                for v in self.spent.iter() {
                    if visible.contains(v) && !outside.contains(&v) {
                        captured.push(v);
                    }
                }
                for v in captured {
                    self.report(
                        Rule::Linear,
                        format!("the accumulator {v} is used in a loop that does not carry it"),
                    );
                }
            }
            Some(Control::Scope { allocs, body, .. }) => {
                for &a in allocs {
                    let was = std::mem::replace(&mut self.allocated[a], true);
                    self.check(Rule::Scope, !was, || format!("{a} is allocated twice"));
                }
                self.region(body, group);
                for &a in allocs {
                    self.allocated[a] = false;
                }
            }
            Some(Control::WarpMap { body, .. }) => self.region(body, Group::Warp),
            None => {}
        }
    }

    fn reference(&mut self, r: &RefUse) {
        let data = &self.kernel.allocs[r.alloc];
        let ok = self.allocated[r.alloc];
        self.check(Rule::Scope, ok, || format!("{} is used outside of its scope", r.alloc));
        match view::apply(data.elem(), &data.shape, &r.steps, self.kernel) {
            Ok((elem, shape)) => self.check(Rule::View, elem == r.elem && shape == r.shape, || {
                format!(
                    "a view of {} gives {elem}{:?}, but says {}{:?}",
                    r.alloc, shape, r.elem, r.shape
                )
            }),
            Err(text) => self.report(Rule::View, format!("a view of {}: {text}", r.alloc)),
        }
    }

    fn normalized(&mut self, op: Op) {
        let kernel = self.kernel;
        let kind = &kernel.ops[op].kind;
        visit::for_each_ref(kind, &mut |r| {
            let data = &kernel.allocs[r.alloc];
            let raw = |s: &Step| matches!(s, Step::ExtractAlias { .. } | Step::Unswizzle(_) | Step::Untile(_));
            self.check(Rule::Normalized, !r.steps.iter().any(raw), || {
                format!("a view of {} has allocation transforms", r.alloc)
            });
            let direct = !matches!(
                data.kind,
                AllocKind::Register { .. } | AllocKind::SmemUnion | AllocKind::TmemUnion
            );
            self.check(Rule::Normalized, direct, || {
                format!("{} is registers or a union", r.alloc)
            });
            if matches!(r.elem, Elem::Barrier | Elem::Semaphore) && !matches!(kind, OpKind::PrintLayout { .. }) {
                self.check(Rule::Normalized, r.single_index().is_some(), || {
                    format!("a use of {} names no index", r.alloc)
                });
            }
        });
        let imported = matches!(
            kind,
            OpKind::BarrierWait { phases: None, .. }
                | OpKind::BarrierTest { phases: None, .. }
                | OpKind::Wgmma {
                    acc: AccUse::Ref(_),
                    ..
                }
                | OpKind::AccRead { acc: AccUse::Ref(_) }
        ) || matches!(kind, OpKind::WgmmaWait { accs, .. } if accs.is_empty());
        self.check(Rule::Normalized, !imported, || {
            format!("`{}` in a form that importing makes", kind.name())
        });
    }

    fn types(&mut self, op: Op) {
        let kernel = self.kernel;
        let data = &kernel.ops[op];
        let results: Vec<&Type> = data.results.iter().map(|&v| kernel.ty(v)).collect();
        if let Err((rule, text)) = types_of(kernel, &data.kind, &results) {
            self.report(rule, format!("`{}`: {text}", data.kind.name()));
        }
    }
}

type Check = Result<(), (Rule, String)>;

fn want(ok: bool, text: impl FnOnce() -> String) -> Check {
    if ok { Ok(()) } else { Err((Rule::Type, text())) }
}

/// Exactly these result types.
fn results_are(results: &[&Type], expected: &[&Type]) -> Check {
    if results.len() != expected.len() {
        return Err((
            Rule::Arity,
            format!("{} results, expected {}", results.len(), expected.len()),
        ));
    }
    for (got, expected) in results.iter().zip(expected) {
        want(got == expected, || {
            format!("a result of type {got}, expected {expected}")
        })?;
    }
    Ok(())
}

fn one<'a>(results: &[&'a Type]) -> Result<&'a Type, (Rule, String)> {
    match results {
        [only] => Ok(only),
        _ => Err((Rule::Arity, format!("{} results, expected 1", results.len()))),
    }
}

/// Checks operand and result types of one op.
fn types_of(kernel: &Kernel, kind: &OpKind, results: &[&Type]) -> Check {
    let ty = |v: Value| kernel.ty(v);
    let scalar = |v: Value, ok: fn(DType) -> bool| {
        want(ty(v).is_scalar() && ok(ty(v).dtype()), || {
            format!("{v} is of type {}", ty(v))
        })
    };
    let is_bool = |d: DType| d == DType::Bool;
    let data = |r: &RefUse| match r.elem {
        Elem::Data(dtype) => Ok(Type::of(dtype, r.shape.clone())),
        Elem::Barrier | Elem::Semaphore => Err((Rule::Type, format!("{} is no data", r.alloc))),
    };
    let of_elem = |r: &RefUse, elem: Elem| {
        want(r.elem == elem, || {
            format!("{} is of {}, expected {elem}", r.alloc, r.elem)
        })
    };
    let in_gmem = |r: &RefUse| {
        want(kernel.allocs[r.alloc].is_gmem(), || {
            format!("{} is not in GMEM", r.alloc)
        })
    };
    let in_smem = |r: &RefUse| {
        want(kernel.allocs[r.alloc].is_smem(), || {
            format!("{} is not in SMEM", r.alloc)
        })
    };
    let positions = |at: Value, shape: &[u64]| {
        let fits = ty(at).dtype() == DType::I32 && ty(at).shape() == shape && !ty(at).is_scalar();
        want(fits, || format!("positions of type {} for {shape:?}", ty(at)))
    };
    let indices = |r: &RefUse, at: &[Value], shape: &[u64]| {
        want(at.len() == r.shape.len() && !at.is_empty(), || {
            format!("{} arrays of indices of rank {}", at.len(), r.shape.len())
        })?;
        at.iter().try_for_each(|&v| {
            let fits = matches!(ty(v).dtype(), DType::I32 | DType::I64) && ty(v).shape() == shape;
            want(fits, || format!("indices of type {} for {shape:?}", ty(v)))
        })
    };
    let masks = |mask: Option<Value>, shape: &[u64]| {
        mask.map_or(Ok(()), |v| {
            let fits = ty(v).dtype() == DType::Bool && ty(v).shape() == shape;
            want(fits, || format!("a mask of type {} for {shape:?}", ty(v)))
        })
    };
    let types = |vs: &[Value]| vs.iter().map(|&v| ty(v)).collect::<Vec<_>>();
    // No operand of an op on values is an accumulator.
    if kind.is_pure() {
        let mut acc = None;
        visit::for_each_value(kind, &mut |v| {
            if ty(v).is_acc() {
                acc = Some(v);
            }
        });
        want(acc.is_none(), || "an accumulator as an operand".to_string())?;
    }
    match kind {
        OpKind::Constant(c) => {
            let result = one(results)?;
            if let Constant::Dense(bytes) = c {
                let width = u64::from(result.dtype().bits()).div_ceil(8);
                let n = num_elements(result.shape()).checked_mul(width);
                want(n == Some(bytes.len() as u64), || {
                    format!("{} bytes for {result}", bytes.len())
                })?;
            }
            want(!result.is_acc(), || "an accumulator".to_string())
        }
        OpKind::Unary {
            op: UnaryOp::IsFinite,
            a,
        } => results_are(results, &[&ty(*a).with_dtype(DType::Bool)]),
        OpKind::Unary { a, .. }
        | OpKind::IntegerPow { a, .. }
        | OpKind::ReducePrecision { a, .. }
        | OpKind::Reverse { a, .. }
        | OpKind::Cumulative { a, .. }
        | OpKind::MultipleOf { a, .. }
        | OpKind::LayoutCast { a, .. }
        | OpKind::Relayout { a } => results_are(results, &[ty(*a)]),
        OpKind::Binary { a, b, .. } => {
            want(ty(*a) == ty(*b), || {
                format!("operands of types {} and {}", ty(*a), ty(*b))
            })?;
            results_are(results, &[ty(*a)])
        }
        OpKind::Compare { a, b, .. } => {
            want(ty(*a) == ty(*b), || {
                format!("operands of types {} and {}", ty(*a), ty(*b))
            })?;
            results_are(results, &[&ty(*a).with_dtype(DType::Bool)])
        }
        OpKind::Select { which, cases } => {
            let Some(&first) = cases.first() else {
                return Err((Rule::Arity, "no cases".to_string()));
            };
            for &case in cases {
                want(ty(case) == ty(first), || {
                    format!("cases of types {} and {}", ty(first), ty(case))
                })?;
            }
            let w = ty(*which);
            want(w.is_scalar() || w.shape() == ty(first).shape(), || {
                format!("a selector of type {w}")
            })?;
            want(
                (is_bool(w.dtype()) && cases.len() == 2) || w.dtype() == DType::I32,
                || format!("a selector of type {w} for {} cases", cases.len()),
            )?;
            results_are(results, &[ty(first)])
        }
        OpKind::Clamp { lo, x, hi } => {
            want(ty(*lo) == ty(*x) && ty(*hi) == ty(*x), || {
                "bounds of another type".to_string()
            })?;
            results_are(results, &[ty(*x)])
        }
        OpKind::Convert { a } => {
            let result = one(results)?;
            want(*result == ty(*a).with_dtype(result.dtype()), || {
                format!("{} to {result}", ty(*a))
            })
        }
        OpKind::Bitcast { a } => {
            let result = one(results)?;
            let bits = |t: &Type| num_elements(t.shape()).checked_mul(u64::from(t.dtype().bits()));
            want(bits(result) == bits(ty(*a)), || format!("{} to {result}", ty(*a)))
        }
        OpKind::Iota { dim } => {
            let result = one(results)?;
            want((*dim as usize) < result.shape().len(), || {
                format!("dimension {dim} of {result}")
            })
        }
        OpKind::Broadcast { a, dims } => {
            let (from, to) = (ty(*a), one(results)?);
            let ok = dims.len() == from.shape().len()
                && from.dtype() == to.dtype()
                && dims.windows(2).all(|w| w[0] < w[1])
                && dims
                    .iter()
                    .zip(from.shape())
                    .all(|(&d, &n)| to.shape().get(d as usize).is_some_and(|&m| n == 1 || n == m));
            want(ok, || format!("{from} to {to} along {dims:?}"))
        }
        OpKind::Reshape { a } => {
            let (from, to) = (ty(*a), one(results)?);
            let ok = from.dtype() == to.dtype() && num_elements(from.shape()) == num_elements(to.shape());
            want(ok, || format!("{from} to {to}"))
        }
        OpKind::Transpose { a, permutation } => {
            let from = ty(*a);
            let to =
                view::permuted(from.shape(), permutation).ok_or((Rule::Type, format!("{permutation:?} of {from}")))?;
            results_are(results, &[&Type::of(from.dtype(), to)])
        }
        OpKind::Slice { a, starts, strides } => {
            let (from, to) = (ty(*a), one(results)?);
            let ok = from.dtype() == to.dtype()
                && [from.shape().len(), to.shape().len(), starts.len(), strides.len()]
                    .iter()
                    .all(|&n| n == from.shape().len())
                && (0..starts.len()).all(|d| {
                    let n = to.shape()[d];
                    strides[d] > 0 && (n == 0 || starts[d] + (n - 1) * strides[d] < from.shape()[d])
                });
            want(ok, || format!("{to} at {starts:?} of {from}"))
        }
        OpKind::DynamicSlice { a, starts } => {
            let (from, to) = (ty(*a), one(results)?);
            for &s in starts {
                scalar(s, DType::is_int)?;
            }
            want(starts.len() == from.shape().len() && fits(to, from), || {
                format!("{to} of {from}")
            })
        }
        OpKind::DynamicUpdateSlice { a, update, starts } => {
            for &s in starts {
                scalar(s, DType::is_int)?;
            }
            let (whole, part) = (ty(*a), ty(*update));
            want(starts.len() == whole.shape().len() && fits(part, whole), || {
                format!("{part} in {whole}")
            })?;
            results_are(results, &[whole])
        }
        OpKind::Concat { parts, dim } => {
            let to = one(results)?;
            let d = *dim as usize;
            let mut sum = 0;
            for &p in parts {
                let t = ty(p);
                let same = t.dtype() == to.dtype()
                    && t.shape().len() == to.shape().len()
                    && d < to.shape().len()
                    && (0..to.shape().len()).all(|i| i == d || t.shape()[i] == to.shape()[i]);
                want(same, || format!("{t} in {to} along {dim}"))?;
                sum += t.shape()[d];
            }
            want(to.shape().get(d) == Some(&sum), || format!("{sum} positions in {to}"))
        }
        OpKind::Pad {
            a,
            value,
            low,
            high,
            interior,
        } => {
            let (from, to) = (ty(*a), one(results)?);
            want(*ty(*value) == Type::Scalar(from.dtype()), || {
                "the value's type".to_string()
            })?;
            let rank = from.shape().len();
            let ok = to.dtype() == from.dtype()
                && [to.shape().len(), low.len(), high.len(), interior.len()]
                    .iter()
                    .all(|&n| n == rank)
                && (0..rank).all(|d| {
                    let n = from.shape()[d] as i64;
                    n + (n - 1).max(0) * interior[d] + low[d] + high[d] == to.shape()[d] as i64
                });
            want(ok, || format!("{from} to {to}"))
        }
        OpKind::Reduce { a, axes, .. } => {
            let from = ty(*a);
            want(
                axes.windows(2).all(|w| w[0] < w[1]) && axes.iter().all(|&d| (d as usize) < from.shape().len()),
                || format!("axes {axes:?} of {from}"),
            )?;
            let kept: Shape = (0..from.shape().len())
                .filter(|&d| !axes.contains(&(d as u32)))
                .map(|d| from.shape()[d])
                .collect();
            results_are(results, &[&Type::of(from.dtype(), kept)])
        }
        OpKind::ArgReduce { a, axis, .. } => {
            let (from, to) = (ty(*a), one(results)?);
            let mut kept = Shape::from_slice(from.shape());
            want((*axis as usize) < kept.len() && to.dtype().is_int(), || {
                format!("axis {axis} of {from}")
            })?;
            kept.remove(*axis as usize);
            results_are(results, &[&Type::of(to.dtype(), kept)])
        }
        OpKind::Take { a, at, fill } => {
            positions(*at, one(results)?.shape())?;
            want(*ty(*fill) == Type::Scalar(ty(*a).dtype()), || {
                "the value's type".to_string()
            })?;
            results_are(results, &[&ty(*at).with_dtype(ty(*a).dtype())])
        }
        OpKind::Put { a, at, update, .. } => {
            positions(*at, ty(*update).shape())?;
            want(
                ty(*update).dtype() == ty(*a).dtype() && !ty(*a).is_scalar() && !ty(*update).is_scalar(),
                || format!("{} into {}", ty(*update), ty(*a)),
            )?;
            results_are(results, &[ty(*a)])
        }
        OpKind::Sort {
            keys,
            axis,
            indexed,
            first,
        } => {
            let shape = keys.first().map_or(&[][..], |k| ty(*k).shape());
            let fits = |k: &Value| {
                let dtype = ty(*k).dtype();
                ty(*k).shape() == shape && dtype.is_int() && !dtype.is_signed_int()
            };
            want((*axis as usize) < shape.len() && keys.iter().all(fits), || {
                format!("keys along {axis} of {shape:?}")
            })?;
            let axis = *axis as usize;
            want((1..=shape[axis].max(1)).contains(first), || {
                format!("the first {first} along {axis} of {shape:?}")
            })?;
            let mut to = Shape::from_slice(shape);
            to[axis] = to[axis].min(*first);
            let dtypes = keys.iter().map(|k| ty(*k).dtype());
            let expected: Vec<Type> = dtypes
                .chain(indexed.then_some(DType::I32))
                .map(|dtype| Type::of(dtype, to.clone()))
                .collect();
            results_are(results, &expected.iter().collect::<Vec<_>>())
        }
        OpKind::OptimizationBarrier { values } => results_are(results, &types(values)),
        OpKind::InlinePtx { code, refs, args, .. } => {
            let known = |operand: &InlineOperand| match operand {
                InlineOperand::Value(i) => (*i as usize) < args.len(),
                InlineOperand::Ref(i) => (*i as usize) < refs.len(),
                InlineOperand::Map(i) => (*i as usize) < code.maps.len(),
            };
            want(code.operands.iter().all(known), || {
                "an operand that is not there".to_string()
            })?;
            let maps = |map: &InlineMap| (map.of as usize) < refs.len() && map.span().is_some();
            want(code.maps.iter().all(maps), || {
                "a tensor map that there cannot be".to_string()
            })?;
            let of_data = |r: &&RefUse| r.elem != Elem::Barrier;
            refs.iter().filter(of_data).try_for_each(|r| data(r).map(|_| ()))?;
            if let Some(whole) = &code.whole {
                let fits = |arrays: &[Option<LaneArray>], types: &[&Type]| {
                    let each = arrays.iter().zip(types).all(|(a, ty)| a.is_some() != ty.is_scalar());
                    arrays.len() == types.len() && each
                };
                let taken: Vec<&Type> = args.iter().map(|v| ty(*v)).collect();
                return want(
                    fits(&whole.args, &taken) && fits(&whole.results, results) && whole.refs.len() == refs.len(),
                    || "a layout for each array, and none for scalars".to_string(),
                );
            }
            let arrays = args.iter().map(|v| ty(*v)).chain(results.iter().copied());
            let mut shapes = arrays.filter(|ty| !ty.is_scalar()).map(Type::shape);
            let first = shapes.next();
            want(shapes.all(|s| Some(s) == first), || {
                "arrays of several shapes".to_string()
            })
        }
        OpKind::AxisIndex { .. } => results_are(results, &[&Type::Scalar(DType::I32)]),
        OpKind::Load { src } => results_are(results, &[&data(src)?]),
        OpKind::Store { dst, value } | OpKind::AtomicUpdate { dst, value, .. } => {
            want(data(dst)? == *ty(*value), || {
                format!("{} into {}", ty(*value), dst.alloc)
            })?;
            results_are(results, &[])
        }
        OpKind::LoadMasked { src, mask } => {
            results_are(results, &[&data(src)?])?;
            masks(Some(*mask), one(results)?.shape())
        }
        OpKind::StoreMasked { dst, mask, value } => {
            want(data(dst)? == *ty(*value), || {
                format!("{} into {}", ty(*value), dst.alloc)
            })?;
            masks(Some(*mask), ty(*value).shape())?;
            results_are(results, &[])
        }
        OpKind::LoadAt { src, at, mask } => {
            let to = one(results)?;
            indices(src, at, to.shape())?;
            masks(*mask, to.shape())?;
            want(src.dtype() == Some(to.dtype()), || format!("{to} from {}", src.alloc))
        }
        OpKind::StoreAt { dst, at, value, .. } | OpKind::AtomicUpdateAt { dst, at, value, .. } => {
            indices(dst, at, ty(*value).shape())?;
            if let OpKind::StoreAt { mask, .. } = kind {
                masks(*mask, ty(*value).shape())?;
            }
            want(dst.dtype() == Some(ty(*value).dtype()), || {
                format!("{} into {}", ty(*value), dst.alloc)
            })?;
            results_are(results, &[])
        }
        OpKind::Swap { dst, value } => {
            want(data(dst)? == *ty(*value), || {
                format!("{} into {}", ty(*value), dst.alloc)
            })?;
            results_are(results, &[&data(dst)?])
        }
        OpKind::CopyGmemToSmem {
            src,
            dst,
            barrier,
            leader_tracked,
            predicate,
            ..
        } => {
            in_gmem(src)?;
            in_smem(dst)?;
            let mut whole = data(dst)?;
            if let (Some(LeaderTracked::Partitioned { dim }), Type::Array { shape, .. }) = (leader_tracked, &mut whole)
                && let Some(extent) = shape.get_mut(*dim as usize)
            {
                *extent *= 2;
            }
            want(data(src)? == whole, || {
                "source and destination of different types".to_string()
            })?;
            if let Some(b) = barrier {
                of_elem(b, Elem::Barrier)?;
            }
            if let Some(p) = predicate {
                scalar(*p, is_bool)?;
            }
            results_are(results, &[])
        }
        OpKind::CopySmemToGmem {
            src, dst, predicate, ..
        } => {
            in_smem(src)?;
            in_gmem(dst)?;
            want(data(src)? == data(dst)?, || {
                "source and destination of different types".to_string()
            })?;
            if let Some(p) = predicate {
                scalar(*p, is_bool)?;
            }
            results_are(results, &[])
        }
        OpKind::Prefetch { src, predicate, .. } => {
            in_gmem(src)?;
            if let Some(p) = predicate {
                scalar(*p, is_bool)?;
            }
            results_are(results, &[])
        }
        OpKind::AsyncStoreSmem {
            value, dst, barrier, ..
        } => {
            in_smem(dst)?;
            of_elem(barrier, Elem::Barrier)?;
            want(data(dst)? == *ty(*value), || {
                format!("{} into {}", ty(*value), dst.alloc)
            })?;
            results_are(results, &[])
        }
        OpKind::CommitGroup
        | OpKind::WaitSmemToGmem { .. }
        | OpKind::WaitGmemToSmem { .. }
        | OpKind::CommitSmem
        | OpKind::Sync { .. }
        | OpKind::Fence { .. }
        | OpKind::SetMaxRegisters { .. }
        | OpKind::GridDependency { .. }
        | OpKind::DebugPrint { .. }
        | OpKind::ProfileMark { .. }
        | OpKind::PrintLayout { .. } => results_are(results, &[]),
        OpKind::Delay { nanos } => {
            scalar(*nanos, DType::is_int)?;
            results_are(results, &[])
        }
        OpKind::BarrierArrive { barrier, predicate } => {
            of_elem(barrier, Elem::Barrier)?;
            if let Some(p) = predicate {
                scalar(*p, is_bool)?;
            }
            results_are(results, &[])
        }
        OpKind::BarrierWait { barrier, phases } => {
            of_elem(barrier, Elem::Barrier)?;
            match phases {
                None => results_are(results, &[]),
                Some(p) => {
                    scalar(*p, |d| d == DType::U32)?;
                    results_are(results, &[&Type::Scalar(DType::U32)])
                }
            }
        }
        OpKind::BarrierTest { barrier, phases } => {
            of_elem(barrier, Elem::Barrier)?;
            match phases {
                None => results_are(results, &[&Type::Scalar(DType::Bool)]),
                Some(p) => {
                    scalar(*p, |d| d == DType::U32)?;
                    results_are(results, &[&Type::Scalar(DType::Bool), &Type::Scalar(DType::U32)])
                }
            }
        }
        OpKind::MbarrierArrive {
            barrier, count: value, ..
        }
        | OpKind::MbarrierExpect {
            barrier, bytes: value, ..
        }
        | OpKind::MbarrierWait {
            barrier, phase: value, ..
        } => {
            of_elem(barrier, Elem::Barrier)?;
            scalar(*value, |d| d == DType::I32)?;
            results_are(results, &[])
        }
        OpKind::SemaphoreSignal { semaphore, value, .. } | OpKind::SemaphoreWait { semaphore, value, .. } => {
            of_elem(semaphore, Elem::Semaphore)?;
            scalar(*value, |d| d == DType::I32)?;
            results_are(results, &[])
        }
        OpKind::SemaphoreSignalParallel { signals, .. } => {
            for (semaphore, value) in signals {
                of_elem(semaphore, Elem::Semaphore)?;
                scalar(*value, |d| d == DType::I32)?;
            }
            results_are(results, &[])
        }
        OpKind::SemaphoreRead { semaphore } => {
            of_elem(semaphore, Elem::Semaphore)?;
            results_are(results, &[&Type::Scalar(DType::I32)])
        }
        OpKind::AccInit { init } => {
            let result = one(results)?;
            want(result.is_acc(), || format!("a result of type {result}"))?;
            match init {
                None => Ok(()),
                Some(v) => want(
                    ty(*v).dtype() == result.dtype() && ty(*v).shape() == result.shape(),
                    || format!("{} for {result}", ty(*v)),
                ),
            }
        }
        OpKind::Wgmma { acc, a, b } => {
            in_smem(b)?;
            let ta = match a {
                MmaOperand::Smem(r) => {
                    in_smem(r)?;
                    data(r)?
                }
                MmaOperand::Registers(v) => ty(*v).clone(),
            };
            let (tc, tb) = (acc_type(kernel, acc)?, data(b)?);
            let legal = legality::tensor_core::wgmma(&tc, &ta, &tb);
            want(legal.is_ok(), || format!("{tc} += {ta} @ {tb}"))?;
            match acc.value() {
                None => results_are(results, &[]),
                Some(v) => results_are(results, &[ty(v)]),
            }
        }
        OpKind::WgmmaWait { accs, .. } => {
            for &v in accs {
                want(ty(v).is_acc(), || format!("{v} is of type {}", ty(v)))?;
            }
            results_are(results, &types(accs))
        }
        OpKind::AccRead { acc } => {
            let tc = acc_type(kernel, acc)?;
            let array = Type::of(tc.dtype(), Shape::from_slice(tc.shape()));
            match acc {
                AccUse::Ref(_) => results_are(results, &[&array]),
                AccUse::Value(_) => results_are(results, &[&array, &tc]),
                AccUse::Part { .. } => Err((Rule::Type, "a part is not read".to_string())),
            }
        }
        OpKind::DotInPlace { acc, a, b } => {
            let operand = |operand: &MmaOperand| match operand {
                MmaOperand::Smem(r) => {
                    in_smem(r)?;
                    data(r)
                }
                MmaOperand::Registers(v) => Ok(ty(*v).clone()),
            };
            let (ta, tb) = (operand(a)?, operand(b)?);
            let is_in_place = [a, b].iter().any(|operand| matches!(operand, MmaOperand::Smem(_)));
            want(is_in_place, || "no operand in shared memory".to_string())?;
            let dtype = DotArithmetic::TensorCore
                .result(ta.dtype())
                .filter(|_| ta.dtype() == tb.dtype());
            let (Some(dtype), (&[m, k], &[n, kb])) = (dtype, (ta.shape(), tb.shape())) else {
                return want(false, || format!("{ta} @ transposed {tb}"));
            };
            let result = Type::of(dtype, [m, n].as_slice());
            want(
                k == kb && m * n * k > 0 && acc.is_none_or(|acc| *ty(acc) == result),
                || format!("{ta} @ transposed {tb} added to another type than {result}"),
            )?;
            results_are(results, &[&result])
        }
        OpKind::Dot { acc, a, b, arithmetic } => {
            let result = match (ty(*a).shape(), ty(*b).shape()) {
                ([m, k], [n, kb]) if k == kb => Some(vec![*m, *n]),
                ([batch, m, k], [bb, n, kb]) if k == kb && batch == bb => Some(vec![*batch, *m, *n]),
                _ => None,
            };
            let dtype = arithmetic
                .result(ty(*a).dtype())
                .filter(|_| ty(*a).dtype() == ty(*b).dtype());
            let (Some(shape), Some(dtype), false) = (result, dtype, ty(*a).shape().contains(&0)) else {
                return want(false, || format!("{} @ transposed {}", ty(*a), ty(*b)));
            };
            let result = Type::of(dtype, Shape::from_slice(&shape));
            want(acc.is_none_or(|acc| *ty(acc) == result) && !shape.contains(&0), || {
                format!("{} @ transposed {} added to another type than {result}", ty(*a), ty(*b))
            })?;
            results_are(results, &[&result])
        }
        OpKind::For {
            lower,
            upper,
            inits,
            xs,
            body,
            ..
        } => {
            scalar(*lower, DType::is_int)?;
            want(ty(*lower) == ty(*upper), || "bounds of different types".to_string())?;
            let region = &kernel.regions[*body];
            if region.params.len() != 1 + inits.len() + xs.len()
                || region.results.len() != results.len()
                || results.len() < inits.len()
            {
                return Err((Rule::Arity, "carries, slices and results differ in number".to_string()));
            }
            want(ty(region.params[0]) == ty(*lower), || {
                "a counter of another type".to_string()
            })?;
            for (i, &init) in inits.iter().enumerate() {
                for other in [ty(region.params[1 + i]), ty(region.results[i]), results[i]] {
                    want(other == ty(init), || {
                        format!("carry {i} of types {} and {other}", ty(init))
                    })?;
                }
            }
            let slice_of = |slice: &Type, whole: &Type| {
                slice.dtype() == whole.dtype()
                    && whole
                        .shape()
                        .split_first()
                        .is_some_and(|(_, rest)| rest == slice.shape())
            };
            for (&x, &p) in xs.iter().zip(&region.params[1 + inits.len()..]) {
                want(slice_of(ty(p), ty(x)), || {
                    format!("a slice of type {} of {}", ty(p), ty(x))
                })?;
            }
            for (&y, &whole) in region.results[inits.len()..].iter().zip(&results[inits.len()..]) {
                want(slice_of(ty(y), whole), || {
                    format!("a slice of type {} of {whole}", ty(y))
                })?;
            }
            Ok(())
        }
        OpKind::While { inits, cond, body } => {
            let (c, b) = (&kernel.regions[*cond], &kernel.regions[*body]);
            let carried = types(inits);
            let Some((&first, passed)) = c.results.split_first() else {
                return Err((Rule::Arity, "a condition that yields nothing".to_string()));
            };
            scalar(first, is_bool)?;
            for list in [&c.params[..], passed, &b.params[..], &b.results[..]] {
                want(types(list) == carried, || "carries of different types".to_string())?;
            }
            results_are(results, &carried)
        }
        OpKind::Switch { selector, arms } => {
            let s = ty(*selector);
            let ok = s.is_scalar() && (s.dtype() == DType::I32 || (is_bool(s.dtype()) && arms.len() == 2));
            want(ok, || format!("a selector of type {s} for {} arms", arms.len()))?;
            for &arm in arms {
                let region = &kernel.regions[arm];
                if !region.params.is_empty() {
                    return Err((Rule::Arity, "an arm with parameters".to_string()));
                }
                results_are(results, &types(&region.results))?;
            }
            want(!arms.is_empty(), || "no arms".to_string())
        }
        OpKind::Scope { body, .. } => {
            let region = &kernel.regions[*body];
            if !region.params.is_empty() {
                return Err((Rule::Arity, "a scope with parameters".to_string()));
            }
            results_are(results, &types(&region.results))
        }
        OpKind::WarpMap { axis, inits, body } => {
            let region = &kernel.regions[*body];
            want(kernel.axes[*axis].kind == AxisKind::Warp, || {
                format!("{axis} is no axis of warps")
            })?;
            let carried = types(inits);
            want(
                types(&region.params) == carried && types(&region.results) == carried,
                || "carries of different types".to_string(),
            )?;
            results_are(results, &carried)
        }
    }
}

fn acc_type(kernel: &Kernel, acc: &AccUse) -> Result<Type, (Rule, String)> {
    match acc {
        AccUse::Ref(r) => match kernel.allocs[r.alloc].kind {
            AllocKind::Register {
                dtype,
                accumulator: true,
            } => Ok(Type::Acc {
                dtype,
                shape: r.shape.clone(),
            }),
            _ => Err((Rule::Type, format!("{} is no accumulator", r.alloc))),
        },
        AccUse::Value(v) if kernel.ty(*v).is_acc() => Ok(kernel.ty(*v).clone()),
        AccUse::Value(v) => Err((Rule::Type, format!("{v} is of type {}", kernel.ty(*v)))),
        AccUse::Part { acc, at, shape } => match kernel.ty(*acc) {
            Type::Acc { dtype, shape: whole } if legality::tensor_core::is_of_tiles(whole, at, shape) => {
                Ok(Type::Acc {
                    dtype: *dtype,
                    shape: shape.as_slice().into(),
                })
            }
            ty => Err((Rule::Type, format!("{shape:?} at {at:?} of {acc} of type {ty}"))),
        },
    }
}

/// Whether `part` fits into `whole`.
fn fits(part: &Type, whole: &Type) -> bool {
    part.dtype() == whole.dtype()
        && part.shape().len() == whole.shape().len()
        && part.shape().iter().zip(whole.shape()).all(|(p, w)| p <= w)
}
