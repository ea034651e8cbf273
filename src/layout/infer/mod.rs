//! Layout inference: every array and accumulator gets a register layout, every SMEM allocation its transforms. Before that [`products`]
//! of what lies in shared memory become `wgmma`.
//!
//! **Form.** [`super::signature`] defines what every op needs and gives; [`constraints`] reads it: layouts that an op gives (a user's
//! `layout_cast`, accumulators) or needs (the left operand of wgmma), `Equal` (element-wise ops, what loops carry, what arms
//! yield), `Derived` (reductions, broadcasts and the other shape ops: one side follows from the other), and preferences (what a
//! transfer would like). What an op gives is hard; everything else may be broken at the price of a relayout.
//!
//! **Solving.** Layouts that ops give spread along constraints, the most expensive edge first (bytes × 10^loop depth), so that what has to
//! be broken is what is cheap to convert, and conversions land outside of loops; then those that ops need. What nothing reaches
//! takes, in program order, the layout that its own transfers prefer, and spreads it. What is broadcast along a dimension follows
//! its partners, which vary there, never the other way round. A value that is equal everywhere (constants, broadcast scalars and
//! what is computed from them) is a splat: it fills any layout for nothing and spreads nothing. Counters and masks made of them
//! are computed anew in every layout in which they are used: they follow, and nothing follows them.
//!
//! A conflict is never an error: [`insert_relayouts`] makes every op's signature true by inserting `relayout` ops.
mod constraints;
mod dealing;
mod in_place_products;
mod insert_relayouts;
mod narrow;
mod products;
mod slice_products;
mod smem;
pub mod spec;
mod staged_products;

use super::assignment::{Assignment, Choice, Reason, Subject};
use super::register_layout::{Group, RegisterLayout};
use crate::error::{Error, Result};
use crate::kernel_ir::{Kernel, Value};
use constraints::{Constraint, Constraints};
use cranelift_entity::SecondaryMap;
use smallvec::SmallVec;
use std::collections::BinaryHeap;

/// Chooses all layouts of a normalised kernel, and makes the changes of layout explicit.
pub fn run(kernel: &mut Kernel) -> Result<Assignment> {
    kernel.dealing = dealing::of(kernel);
    let wanted = products::run(kernel)?;
    let smem = smem::choose_transforms(kernel, &wanted)?;
    let constraints = constraints::collect(kernel, &smem)?;
    let mut solver = Solver::new(kernel, &constraints);
    solver.solve();
    let Solver {
        layouts, mut report, ..
    } = solver;
    check_elements(kernel, &layouts)?;
    report.extend(smem.reasons);
    let mut assignment = Assignment {
        values: layouts,
        smem: smem.transforms,
        relayouts: vec![],
        report,
    };
    insert_relayouts::run(kernel, &mut assignment, constraints.recomputed)?;
    Ok(assignment)
}

/// Elements of an array that a thread may have: what has more is not looked at element by element. 16 bytes at a time, of four bits each, they
/// would take more instructions than a kernel has.
const MAX_ELEMENTS: u32 = 1 << 22;

/// Refuses arrays that are too large to be looked at.
fn check_elements(kernel: &Kernel, layouts: &SecondaryMap<Value, Option<RegisterLayout>>) -> Result<()> {
    for v in kernel.values.keys() {
        let Some(elements) = layouts[v].as_ref().map(RegisterLayout::slots) else {
            continue;
        };
        if elements > MAX_ELEMENTS {
            let error = Error::unsupported("more values at once than a thread can hold")
                .expected(format!(
                    "at most {} 32-bit words a thread",
                    kernel.target.max_live_words
                ))
                .got(format!("{}: more than {MAX_ELEMENTS} elements a thread", kernel.ty(v)))
                .remedy("work on smaller blocks or in a loop over parts of the array");
            return Err(match kernel.def_op(v) {
                Some(op) => error.at(kernel.ops[op].loc),
                None => error,
            });
        }
    }
    Ok(())
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
    /// Constraints with one side known, most expensive first; ties in program order.
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
        for v in self.constraints.splats.iter() {
            let data = &self.kernel.values[v];
            self.layouts[v] = Some(RegisterLayout::splat(data.ty.shape(), group_of(data.group)));
        }
        for (value, layout, why) in self.constraints.made.iter().chain(&self.constraints.pulled) {
            if self.layouts[*value].is_none() {
                self.fix(*value, layout.clone(), why);
            }
        }
        self.spread();
        for follows in [false, true] {
            for &value in &self.constraints.order {
                if self.layouts[value].is_none() && self.constraints.recomputed.contains(value) == follows {
                    let (layout, why) = self.constraints.preference(self.kernel, value);
                    self.fix(value, layout, why);
                    self.spread();
                }
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
            let follows = |v| self.constraints.recomputed.contains(v);
            if follows(known) && !follows(unknown) {
                continue;
            }
            // `known` has a layout by the match above.
            let Some(layout) = self.layouts[known].as_ref() else {
                continue;
            };
            // What is constant along a dimension does not constrain its partners, which may vary there: they spread theirs to it.
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
