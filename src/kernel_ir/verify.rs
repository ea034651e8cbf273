//! What holds of every kernel.
//!
//! **Structure.** Every op, region and value is defined once and reachable once: an op is in one region, a region in one op. A
//! value's `def` is the op that has it as a result. A use is dominated by its definition: earlier in its region, or in an
//! enclosing one.
//!
//! **Groups.** A region is executed by its parent's group, a `warp_map`'s by the warp. wgmma and register changes are a warpgroup's.
//!
//! **Types.** Operands and results have the types that the op's row states ([`types_of`](super::types_of)); a `for` yields what it carries,
//! and so on.
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
use super::types_of::Typing;
use super::*;
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
        // A broken kernel breaks many rules; the first ones are enough.
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
        let results = data.results.iter().map(|&v| kernel.ty(v)).collect();
        if let Err((rule, text)) = data.kind.check_types(&Typing { kernel, results }) {
            self.report(rule, format!("`{}`: {text}", data.kind.name()));
        }
    }
}
