//! Whether tensor cores or the L2 cache limit a multiplication, and how warps wait for that.
use super::executor::{Executor, arm_taken};
use super::rewrite::regions_of;
use super::*;

/// Whether tensor cores limit a wgmma of one slot of shared buffers, and not the loads of its operands, if each block of a cluster
/// loaded its own.
pub fn is_compute_bound(kernel: &Kernel, op: Op) -> bool {
    let OpKind::Wgmma {
        a: MmaOperand::Smem(a),
        b,
        ..
    } = &kernel.ops[op].kind
    else {
        return true;
    };
    // What all warpgroups of the block multiply with each other.
    let (a_elements, b_elements, k) = (
        slot_elements(kernel, a),
        slot_elements(kernel, b),
        a.shape.last().copied().unwrap_or(1),
    );
    a_elements * b_elements / k.max(1) >= kernel.target.min_macs_per_element * (a_elements + b_elements)
}

/// What limits a kernel, and so how its warps wait and arrive.
///
/// Where tensor cores do, waits look all the time: a warp that sleeps wakes up late. Where loads do, producers that look all the time
/// run at other times than those of other blocks, and the L2 cache, which answers one request for several blocks if they come at about the same
/// time, has more of them to answer. So warps sleep there, and a warpgroup [arrives as one](crate::plan::arrivals).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Limit {
    /// Nothing is multiplied.
    Other,
    TensorCores,
    /// Of operands that are multiplied as they come. Warpgroups that multiply what they load themselves cannot run ahead.
    Loads,
}

pub fn limit(kernel: &Kernel) -> Limit {
    let mut rounds: Vec<Vec<Round>> = vec![];
    for warpgroup in 0..kernel.num_warpgroups {
        let mut walk = Walk {
            kernel,
            by: Executor::warpgroup(warpgroup),
            rounds: vec![Round::default()],
        };
        walk.region(kernel.body, 0);
        rounds.push(walk.rounds);
    }
    // What is done in fewer loops than the rest is done once for many rounds: the queries of attention are loaded so.
    let of_deepest = |amount: fn(&Round) -> u64| -> Vec<u64> {
        let done = rounds.iter().flatten().filter(|r| amount(r) > 0);
        let deepest = done.map(|r| r.depth).max();
        let most = |rounds: &Vec<Round>| {
            let deep = rounds.iter().filter(|r| Some(r.depth) == deepest);
            deep.map(amount).max().unwrap_or(0)
        };
        rounds.iter().map(most).collect()
    };
    let (macs, loads) = (of_deepest(|r| r.macs), of_deepest(|r| r.loads));
    let total = |of: &[u64]| of.iter().fold(0u64, |sum, n| sum.saturating_add(*n));
    let limited = total(&macs) < kernel.target.min_macs_per_element.saturating_mul(total(&loads));
    let producers = macs.iter().zip(&loads).any(|(macs, loads)| *loads > 0 && *macs == 0);
    // Operands in registers are made there, which takes more time than loading what they are made of.
    let as_loaded = rounds.iter().flatten().any(|r| r.multiplies_as_loaded);
    match (total(&macs) > 0, limited && producers && as_loaded) {
        (false, _) => Limit::Other,
        (true, true) => Limit::Loads,
        (true, false) => Limit::TensorCores,
    }
}

/// What a warpgroup does between two rounds of a loop, inner loops left out.
#[derive(Clone, Copy, Default)]
struct Round {
    depth: u32,
    /// Multiply-accumulates, times the bits of an element.
    macs: u64,
    /// Some operands are both in shared memory.
    multiplies_as_loaded: bool,
    /// Bits, of what blocks of a cluster load together this block's share.
    loads: u64,
}

struct Walk<'a> {
    kernel: &'a Kernel,
    by: Executor,
    /// The kernel's body, then its loops.
    rounds: Vec<Round>,
}

impl Walk<'_> {
    /// `round` is the loop that the region is in.
    fn region(&mut self, region: Region, round: usize) {
        let kernel = self.kernel;
        for &op in &kernel.regions[region].ops {
            let kind = &kernel.ops[op].kind;
            if let OpKind::Wgmma { a, b, .. } = kind {
                let (shape, as_loaded) = match a {
                    MmaOperand::Smem(a) => (&a.shape[..], true),
                    MmaOperand::Registers(a) => (kernel.ty(*a).shape(), false),
                };
                let macs = shape.first().copied().unwrap_or(1) * elements(&b.shape) * bits(b);
                let round = &mut self.rounds[round];
                round.macs = round.macs.saturating_add(macs);
                round.multiplies_as_loaded |= as_loaded;
            }
            if let OpKind::CopyGmemToSmem {
                dst, collective_axes, ..
            } = kind
            {
                let blocks: u64 = collective_axes.iter().map(|axis| kernel.axes[*axis].size).product();
                let loads = elements(&dst.shape) * bits(dst) / blocks.max(1);
                self.rounds[round].loads = self.rounds[round].loads.saturating_add(loads);
            }
            let inner = match kind.control() {
                Some(control) if control.is_loop() => {
                    let depth = self.rounds[round].depth + 1;
                    self.rounds.push(Round {
                        depth,
                        ..Round::default()
                    });
                    self.rounds.len() - 1
                }
                Some(_) | None => round,
            };
            match arm_taken(kernel, kind, self.by) {
                Some(arm) => self.region(arm, inner),
                None => regions_of(kernel, op).into_iter().for_each(|r| self.region(r, inner)),
            }
        }
    }
}

fn elements(shape: &[u64]) -> u64 {
    shape.iter().product()
}

fn bits(view: &RefUse) -> u64 {
    view.dtype().map_or(0, |dtype| dtype.bits().into())
}

/// Elements of the slot that a view lies in: of the dimensions that it does not index.
fn slot_elements(kernel: &Kernel, view: &RefUse) -> u64 {
    let shape = &kernel.allocs[view.alloc].shape;
    match view.steps.first() {
        Some(Step::Index(dims)) => {
            let whole = |(n, i): (&u64, &DimIndex)| if matches!(i, DimIndex::At(_)) { 1 } else { *n };
            shape.iter().zip(dims).map(whole).product()
        }
        _ => shape.iter().product(),
    }
}
