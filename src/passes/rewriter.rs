//! The driver of passes that rewrite loops or straight runs of ops: it goes through a kernel, replaces them by what a pass makes of them, and
//! notes why others stay.
use crate::error::Result;
use crate::kernel_ir::class::Control;
use crate::kernel_ir::liveness::{Around, captured};
use crate::kernel_ir::rewrite::{Substitution, regions_of};
use crate::kernel_ir::*;
use std::ops::Range;

/// What was looked for, or why it is not so, for `inspect`.
pub type Found<T> = std::result::Result<T, &'static str>;

/// What a pass wants.
pub trait Rewrite {
    /// How it rewrites a site.
    type Plan;
    /// The pass's name.
    const NAME: &'static str;
    /// The ops with regions at which [`Around::alive`] is needed: then no others are entered.
    const LIVENESS: Option<fn(&Kernel, Op) -> bool> = None;

    /// Whether ops move over the borders of iterations: not in kernels with users' own instructions, which may release or acquire anything.
    const CROSSES_ITERATIONS: bool = true;

    /// Whether there is anything to rewrite in such a kernel.
    fn applies(kernel: &Kernel) -> bool;

    /// How many of these ops, the rest of a region, are a site together: none if the first is of no interest. An op that is entered is a site of
    /// its own.
    fn site(_: &Kernel, _: &[Op], is_entered: bool) -> usize {
        usize::from(is_entered)
    }

    /// What is to be done with a site: `None` if it is none of those that the pass is about, an error if it is one that must stay.
    fn find(kernel: &Kernel, at: Region, site: Range<usize>, around: &Around) -> Found<Option<Self::Plan>>;

    /// Appends what stands in the place of a site's ops, which are in no region. What stands for their results.
    fn write(kernel: &mut Kernel, at: Region, ops: &[Op], plan: &Self::Plan) -> Substitution;

    /// Whether only the whole kernel shows that what is written is right ([`check`](Rewrite::check)).
    fn is_checked(_: &Self::Plan) -> bool {
        false
    }

    /// What is wrong with the whole: then the site stays as it was.
    fn check(_: &Kernel) -> Found<()> {
        Ok(())
    }
}

/// Looks at every site, the outer ones first, and in those that stay.
pub fn run<R: Rewrite>(kernel: &mut Kernel) -> Result<()> {
    let is_allowed = !(R::CROSSES_ITERATIONS && kernel.has_instructions());
    if is_allowed && R::applies(kernel) {
        region::<R>(kernel, kernel.body, Around::new(kernel));
    }
    Ok(())
}

fn region<R: Rewrite>(kernel: &mut Kernel, at: Region, mut here: Around) {
    let mut behind = match R::LIVENESS {
        Some(wants) => here.behind(kernel, at, |op| wants(kernel, op)),
        None => vec![],
    };
    let mut i = 0;
    while i < kernel.regions[at].ops.len() {
        let op = kernel.regions[at].ops[i];
        here.pass(kernel, op);
        let inner = regions_of(kernel, op);
        let is_wanted = R::LIVENESS.is_some_and(|wants| wants(kernel, op));
        let is_entered = !inner.is_empty() && (is_wanted || R::LIVENESS.is_none());
        let inside = is_wanted.then(|| here.with_alive(behind.pop().unwrap_or_default()));
        let around = inside.as_ref().unwrap_or(&here);
        let site = i..i + R::site(kernel, &kernel.regions[at].ops[i..], is_entered);
        let found = match site.is_empty() {
            true => Ok(None),
            false => R::find(kernel, at, site.clone(), around),
        };
        let next = site.end.max(i + 1);
        match found.and_then(|plan| plan.map_or(Ok(None), |plan| replace::<R>(kernel, at, site, &plan).map(Some))) {
            Ok(Some(next)) => {
                i = next;
                continue;
            }
            Ok(None) => {}
            Err(why) => {
                let loc = kernel.ops[op].loc;
                kernel.notes.push(Note::not_deferred(loc, R::NAME, why));
            }
        }
        i = next;
        if !is_entered {
            continue;
        }
        let mut inside = inside.unwrap_or_else(|| here.clone());
        // What an iteration needs from outside, the next one needs, too.
        if is_wanted && let Some(control) = kernel.ops[op].kind.control().filter(|c| c.is_loop()) {
            inner.iter().for_each(|r| captured(kernel, *r, &mut inside.alive));
            if let Control::For { xs, .. } = control {
                inside.alive.extend(xs);
            }
        }
        inner.iter().for_each(|r| region::<R>(kernel, *r, inside.clone()));
    }
}

/// Rewrites a site. The place of what follows what stands in its place.
fn replace<R: Rewrite>(kernel: &mut Kernel, at: Region, site: Range<usize>, plan: &R::Plan) -> Found<usize> {
    let before = R::is_checked(plan).then(|| kernel.clone());
    let rest = kernel.regions[at].ops.split_off(site.end);
    let ops = kernel.regions[at].ops.split_off(site.start);
    let mut stands = R::write(kernel, at, &ops, plan);
    let next = kernel.regions[at].ops.len();
    for op in rest {
        stands.apply_nested(kernel, op);
        kernel.regions[at].ops.push(op);
    }
    stands.apply_results(kernel, at);
    if let Some(before) = before
        && let Err(why) = R::check(kernel)
    {
        *kernel = before;
        return Err(why);
    }
    Ok(next)
}
