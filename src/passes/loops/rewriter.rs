//! The driver of passes that rewrite loops: it goes through a kernel, puts in a loop's place what a pass makes of it, and notes why others stay.
use crate::error::Result;
use crate::kernel_ir::liveness::{Around, captured};
use crate::kernel_ir::rewrite::{Substitution, regions_of};
use crate::kernel_ir::*;

/// What was looked for, or why it is not so, for `inspect`.
pub type Found<T> = std::result::Result<T, &'static str>;

/// What a pass wants of loops.
pub trait Rewrite {
    /// What it knows of a loop that it rewrites.
    type Plan;
    /// The pass's name.
    const NAME: &'static str;
    /// Whether [`Around::alive`] is asked for at loops that multiply.
    const ASKS_LIVENESS: bool = false;

    /// Whether there is anything to rewrite in such a kernel.
    fn applies(kernel: &Kernel) -> bool;

    /// What is to be done with a loop: `None` if it is none of those that the pass is about, an error if it is one that must stay.
    fn find(kernel: &Kernel, op: Op, around: &Around) -> Found<Option<Self::Plan>>;

    /// Appends what stands in the loop's place, which is in no region. What stands for its results.
    fn write(kernel: &mut Kernel, at: Region, op: Op, plan: &Self::Plan) -> Substitution;

    /// Whether only the whole kernel shows that what is written is right ([`check`](Rewrite::check)).
    fn is_checked(_: &Self::Plan) -> bool {
        false
    }

    /// What is wrong with the whole: then the loop stays as it was.
    fn check(_: &Kernel) -> Found<()> {
        Ok(())
    }
}

/// Looks at every loop, the outer ones first, and in those that stay. Users' own instructions may tell anybody anything: kernels with some stay as
/// they are.
pub fn run<R: Rewrite>(kernel: &mut Kernel) -> Result<()> {
    if !kernel.has_instructions() && R::applies(kernel) {
        region::<R>(kernel, kernel.body, Around::new(kernel));
    }
    Ok(())
}

fn region<R: Rewrite>(kernel: &mut Kernel, at: Region, mut here: Around) {
    let is_asked = |kernel: &Kernel, op: Op| R::ASKS_LIVENESS && kernel.multiplies_within(op);
    let mut behind = match R::ASKS_LIVENESS {
        true => here.behind(kernel, at, |op| kernel.multiplies_within(op)),
        false => vec![],
    };
    let mut i = 0;
    while i < kernel.regions[at].ops.len() {
        let op = kernel.regions[at].ops[i];
        i += 1;
        here.pass(kernel, op);
        let inner = regions_of(kernel, op);
        if inner.is_empty() {
            continue;
        }
        if is_asked(kernel, op) {
            here.alive = behind.pop().unwrap_or_default();
        }
        let found = R::find(kernel, op, &here);
        match found.and_then(|plan| plan.map_or(Ok(None), |plan| replace::<R>(kernel, at, i, &plan).map(Some))) {
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
        let mut inside = here.clone();
        if is_asked(kernel, op) && kernel.ops[op].kind.control().is_some_and(|c| c.is_loop()) {
            inner.iter().for_each(|r| captured(kernel, *r, &mut inside.alive));
        }
        inner.iter().for_each(|r| region::<R>(kernel, *r, inside.clone()));
    }
}

/// Rewrites the op before the `i`-th. The place of what follows what stands in its place.
fn replace<R: Rewrite>(kernel: &mut Kernel, at: Region, i: usize, plan: &R::Plan) -> Found<usize> {
    let before = R::is_checked(plan).then(|| kernel.clone());
    let rest = kernel.regions[at].ops.split_off(i);
    let op = kernel.regions[at].ops.pop().expect("the op before the i-th");
    let mut stands = R::write(kernel, at, op, plan);
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
