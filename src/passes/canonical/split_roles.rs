//! Splits a loop whose body branches on the thread axis into one loop per role.
//!
//! A `for` whose body is pure but for `switch`es on a loop-invariant function of the warpgroup's (warp's) index becomes a `switch`
//! with a copy of the loop in each arm, in which that branch is decided. Where every role's body begins by changing its number of
//! registers, it does so once before its loop. A role branch inside of a shared loop costs the uniformity of
//! everything behind it (3 % of hopper_matmul's cycles).
use crate::error::Result;
use crate::kernel_ir::rewrite::{Substitution, copy_op, regions_of, values_defined_in};
use crate::kernel_ir::*;
use rustc_hash::FxHashMap;

/// Most ops that splitting may add, as a multiple of the kernel's.
const MAX_GROWTH: usize = 4;

pub fn run(kernel: &mut Kernel) -> Result<()> {
    let limit = kernel.ops.len() * MAX_GROWTH;
    let body = kernel.body;
    region(kernel, body, limit);
    Ok(())
}

fn region(kernel: &mut Kernel, at: Region, limit: usize) {
    let ops = std::mem::take(&mut kernel.regions[at].ops);
    for op in ops {
        let op = split(kernel, op, limit).unwrap_or(op);
        kernel.regions[at].ops.push(op);
        for inner in regions_of(kernel, op) {
            region(kernel, inner, limit);
        }
    }
}

/// The `switch` that takes the loop's place, if it is to be split. The loop's results become the switch's.
fn split(kernel: &mut Kernel, op: Op, limit: usize) -> Option<Op> {
    let OpKind::For { body, .. } = kernel.ops[op].kind else {
        return None;
    };
    let (selector, arms) = role_branch(kernel, body)?;
    if kernel.ops.len() + arms * size(kernel, body) > limit {
        return None;
    }
    let group = kernel.regions[body].group;
    let loc = kernel.ops[op].loc;
    let mut regions = vec![];
    for arm in 0..arms {
        let region = kernel.new_region(group);
        let copy = copy_op(kernel, op, &mut FxHashMap::default());
        kernel.regions[region].ops.push(copy);
        kernel.regions[region].results = kernel.ops[copy].results.to_vec();
        if let OpKind::For { body, .. } = kernel.ops[copy].kind {
            decide(kernel, body, selector, arm);
        }
        regions.push(region);
    }
    hoist_register_changes(kernel, &regions);
    let results = kernel.ops[op].results.clone();
    let switch = kernel.ops.push(OpData {
        kind: OpKind::Switch {
            selector,
            arms: regions,
        },
        results,
        loc,
    });
    for i in 0..kernel.ops[switch].results.len() {
        let v = kernel.ops[switch].results[i];
        kernel.values[v].def = switch.into();
    }
    Some(switch)
}

/// The first `switch` on a role in a loop's body that is pure otherwise: its selector and number of arms.
fn role_branch(kernel: &Kernel, body: Region) -> Option<(Value, usize)> {
    let mut found = None;
    let mut inside = None;
    for &op in &kernel.regions[body].ops {
        let kind = &kernel.ops[op].kind;
        if let OpKind::Switch { selector, arms } = kind {
            let inside = inside.get_or_insert_with(|| values_defined_in(kernel, body));
            if inside.contains(selector) || !depends_on_thread(kernel, *selector, 0) {
                return None;
            }
            found = found.or(Some((*selector, arms.len())));
        } else if !kind.is_pure() {
            return None;
        }
    }
    found
}

/// Whether a scalar is computed from the warpgroup's or warp's index and constants.
fn depends_on_thread(kernel: &Kernel, v: Value, depth: u32) -> bool {
    let Some(op) = kernel.def_op(v) else { return false };
    let kind = &kernel.ops[op].kind;
    if let OpKind::AxisIndex { axis } = kind {
        return matches!(kernel.axes[*axis].kind, AxisKind::Thread | AxisKind::Warp);
    }
    if !kind.is_pure() || depth > 8 {
        return false;
    }
    let (mut any, mut all) = (false, true);
    visit::for_each_value(kind, &mut |v| {
        let on_thread = depends_on_thread(kernel, v, depth + 1);
        any |= on_thread;
        all &= on_thread || kernel.facts(v).as_constant().is_some();
    });
    any && all
}

/// Replaces the switches on `selector` in a region by their arm.
fn decide(kernel: &mut Kernel, region: Region, selector: Value, arm: usize) {
    let mut subst = Substitution::default();
    for op in std::mem::take(&mut kernel.regions[region].ops) {
        if let OpKind::Switch { selector: s, arms } = &kernel.ops[op].kind
            && *s == selector
        {
            let taken = arms[arm];
            let ops = std::mem::take(&mut kernel.regions[taken].ops);
            kernel.regions[region].ops.extend(ops);
            let yielded = kernel.regions[taken].results.clone();
            for (result, v) in kernel.ops[op].results.clone().into_iter().zip(yielded) {
                subst.replace(result, v);
            }
        } else {
            kernel.regions[region].ops.push(op);
        }
    }
    subst.apply_region(kernel, region);
}

/// Moves `set_max_registers` before the loops, if each role's body begins with one and has no other. Registers that one role
/// gives up are waited for by another, so all of them move or none.
fn hoist_register_changes(kernel: &mut Kernel, roles: &[Region]) {
    let mut moves = vec![];
    for &role in roles {
        let Some(&op) = kernel.regions[role].ops.last() else {
            return;
        };
        let OpKind::For { body, .. } = kernel.ops[op].kind else {
            return;
        };
        let first = kernel.regions[body]
            .ops
            .iter()
            .position(|&op| !kernel.ops[op].kind.is_pure());
        let mut changes = 0;
        kernel.for_each_op_in(body, &mut |op| {
            changes += u32::from(matches!(kernel.ops[op].kind, OpKind::SetMaxRegisters { .. }));
        });
        match first {
            Some(i) if changes == 1 => {
                let change = kernel.regions[body].ops[i];
                if !matches!(kernel.ops[change].kind, OpKind::SetMaxRegisters { .. }) {
                    return;
                }
                moves.push((role, body, i));
            }
            _ => return,
        }
    }
    for (role, body, i) in moves {
        let change = kernel.regions[body].ops.remove(i);
        let at = kernel.regions[role].ops.len() - 1;
        kernel.regions[role].ops.insert(at, change);
    }
}

fn size(kernel: &Kernel, region: Region) -> usize {
    let mut n = 0;
    kernel.for_each_op_in(region, &mut |_| n += 1);
    n
}
