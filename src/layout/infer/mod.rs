//! Layout inference: every array and accumulator gets a register layout, every SMEM allocation its transforms.
//!
//! **Form.** Ops state constraints over values and allocations ([`constraints`]): `Fixed` (a user's `layout_cast`, the fragments
//! of tensor-core instructions), `Equal` (element-wise ops, what loops carry, what arms yield), `Derived` (reductions, broadcasts
//! and the other shape ops: one side follows from the other), and preferences (what a transfer would like). `Fixed` is hard; every
//! other constraint may be broken at the price of a relayout.
//!
//! **Solving.** Fixed layouts spread along constraints, the dearest edge first (bytes × 10^loop depth), so that what has to be
//! broken is what is cheap to convert, and conversions land outside of loops. What nothing reaches takes, in program order, the
//! layout that its own transfers prefer, and spreads it. What is broadcast along a dimension follows its partners, which vary
//! there, never the other way round. A value that is equal everywhere (constants, broadcast scalars and what
//! is computed from them) is a splat: it converts to any layout for nothing and spreads nothing.
//!
//! A conflict is never an error: the operand that disagrees gets an entry in [`Assignment::casts`].
mod constraints;
mod smem;
pub mod spec;

use super::assignment::{Assignment, Choice, Reason, Subject};
use super::register_layout::{Group, RegisterLayout};
use crate::error::Result;
use crate::kernel_ir::{Kernel, Op, Value};
use constraints::{Constraint, Constraints, Derivation};
use cranelift_entity::SecondaryMap;
use smallvec::SmallVec;
use std::collections::BinaryHeap;

/// Chooses all layouts of a normalised kernel.
pub fn run(kernel: &Kernel) -> Result<Assignment> {
    let smem = smem::choose_transforms(kernel)?;
    let constraints = constraints::collect(kernel, &smem)?;
    let mut solver = Solver::new(kernel, &constraints);
    solver.solve();
    let Solver {
        layouts, mut report, ..
    } = solver;
    report.extend(smem.reasons);
    let casts = constraints::casts(kernel, &layouts);
    Ok(Assignment {
        values: layouts,
        smem: smem.transforms,
        casts,
        report,
    })
}

/// The layouts' group for an executing group. A block never holds an array together.
pub fn group_of(group: crate::kernel_ir::Group) -> Group {
    match group {
        crate::kernel_ir::Group::Warp => Group::Warp,
        crate::kernel_ir::Group::Warpgroup | crate::kernel_ir::Group::Block => Group::Warpgroup,
    }
}

struct Solver<'a> {
    kernel: &'a Kernel,
    constraints: &'a Constraints,
    layouts: SecondaryMap<Value, Option<RegisterLayout>>,
    /// Indices of the constraints that touch a value.
    edges: SecondaryMap<Value, SmallVec<[u32; 4]>>,
    /// Constraints with one side known, dearest first; ties in program order.
    queue: BinaryHeap<(u64, std::cmp::Reverse<u32>)>,
    report: Vec<Reason>,
}

impl<'a> Solver<'a> {
    fn new(kernel: &'a Kernel, constraints: &'a Constraints) -> Solver<'a> {
        let mut edges: SecondaryMap<Value, SmallVec<[u32; 4]>> = SecondaryMap::new();
        for (i, (constraint, _)) in constraints.list.iter().enumerate() {
            let (a, b) = constraint.ends();
            edges[a].push(i as u32);
            edges[b].push(i as u32);
        }
        Solver {
            kernel,
            constraints,
            layouts: SecondaryMap::new(),
            edges,
            queue: BinaryHeap::new(),
            report: vec![],
        }
    }

    fn solve(&mut self) {
        for v in &self.constraints.splats {
            let data = &self.kernel.values[*v];
            self.layouts[*v] = Some(RegisterLayout::splat(data.ty.shape(), group_of(data.group)));
        }
        for (value, layout, why) in &self.constraints.fixed {
            if self.layouts[*value].is_none() {
                self.fix(*value, layout.clone(), why);
            }
        }
        self.spread();
        for value in &self.constraints.order {
            if self.layouts[*value].is_none() {
                let (layout, why) = self.constraints.preference(self.kernel, *value);
                self.fix(*value, layout, why);
                self.spread();
            }
        }
    }

    fn fix(&mut self, value: Value, layout: RegisterLayout, why: &'static str) {
        self.report.push(Reason {
            subject: Subject::Value(value),
            choice: Choice::Registers(layout.clone()),
            why,
        });
        self.layouts[value] = Some(layout);
        for &edge in &self.edges[value] {
            self.queue
                .push((self.constraints.list[edge as usize].1, std::cmp::Reverse(edge)));
        }
    }

    fn spread(&mut self) {
        while let Some((_, std::cmp::Reverse(edge))) = self.queue.pop() {
            let constraint = &self.constraints.list[edge as usize].0;
            let (a, b) = constraint.ends();
            let (known, unknown) = match (&self.layouts[a], &self.layouts[b]) {
                (Some(_), None) => (a, b),
                (None, Some(_)) => (b, a),
                _ => continue,
            };
            // `known` has a layout by the match above.
            let Some(layout) = self.layouts[known].as_ref() else {
                continue;
            };
            // What is constant along a dimension says nothing about its partners, which may vary there: they spread theirs to it.
            if let Some(next) = follow(self.kernel, constraint, layout, known, unknown)
                && !next.is_constant_somewhere()
            {
                self.fix(unknown, next, "follows what it is computed with");
            }
        }
    }
}

/// The layout that a constraint gives its unknown end.
fn follow(
    kernel: &Kernel,
    constraint: &Constraint,
    layout: &RegisterLayout,
    known: Value,
    unknown: Value,
) -> Option<RegisterLayout> {
    match constraint {
        Constraint::Equal(..) => Some(layout.clone()),
        Constraint::Derived { from, how, .. } if *from == known => how.forward(layout, kernel.ty(unknown).shape()),
        Constraint::Derived { how, .. } => how.backward(layout, kernel.ty(unknown).shape()),
    }
}

/// The layout that a shape op's result has before it is converted to what the assignment says; `None` if the op is no such op
/// or the operand's layout has to be converted first.
pub fn natural_result(kernel: &Kernel, op: Op, operand: &RegisterLayout) -> Option<RegisterLayout> {
    let how = Derivation::of(kernel, op)?;
    how.forward(operand, kernel.ty(kernel.ops[op].results[0]).shape())
}
