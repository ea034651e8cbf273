//! Which threads arrive on a barrier, and how many arrivals end a phase of it.
//!
//! A warpgroup arrives by one lane of each of its warps, a bulk load by the lane that issues it, with the bytes it expects. Where
//! [loads limit](crate::kernel_ir::intensity) a kernel there are fewer arrivals:
//!
//! * a warpgroup arrives by one of all its threads, behind a barrier;
//! * a run of bulk loads that come one behind the other and fill a phase of their barrier arrives once, in front of the first, with the
//!   bytes of all. The phase ends when all bytes are there, as before, and a peer's may be counted before they are expected, as before.
//!   Only what orders nothing may lie between the loads, as the arrival releases what came before it.
//!
//! There the L2 cache serves several blocks by one request if theirs come at about the same time, and blocks whose slots are freed
//! and filled by arrivals at any time drift. Matmul of 8192³ in tiles of 256×64 on an H200, one kernel of Mosaic GPU and one
//! of ours with eight arrivals (`ncu`): 89 and 110 million requests of SMs, 1,605 and 1,846 µs; with two arrivals and one of both
//! loads, 1,590 µs. Tiles as large whose loads clusters share are limited by tensor cores, and lose 1 % with one arrival for both loads.
use crate::error::{Error, Loc, Result};
use crate::kernel_ir::class::Class;
use crate::kernel_ir::intensity::{self, Limit};
use crate::kernel_ir::rings::phases::{self, Run};
use crate::kernel_ir::*;
use cranelift_entity::SecondaryMap;

/// What one arrival of a kernel is on a barrier.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum ArrivesBy {
    /// One elected lane, with the bytes that it expects: nothing but copies arrive.
    #[default]
    Copies,
    /// A lane of the warpgroup's first warp, behind a barrier of the warpgroup.
    Warpgroup,
    /// A lane of each warp, behind a barrier of the warp.
    Warps,
    /// Each lane: when what it copied has come; and for tools that follow each thread, and no elected one for its warp.
    Lanes,
}

impl ArrivesBy {
    /// Physical arrivals.
    pub fn count(self) -> u32 {
        match self {
            ArrivesBy::Copies | ArrivesBy::Warpgroup => 1,
            ArrivesBy::Warps => 4,
            ArrivesBy::Lanes => 128,
        }
    }
}

/// What is expected at a bulk load's barrier before it is issued.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum Announces {
    #[default]
    Itself,
    /// A run of loads that it is the first of.
    Run(Vec<Op>),
    /// Nothing: the first load of its run did.
    Nothing,
}

#[derive(Clone, Debug, Default)]
pub struct Arrivals {
    pub by: SecondaryMap<Alloc, ArrivesBy>,
    /// Physical arrivals that end a phase.
    pub of_phase: SecondaryMap<Alloc, u32>,
    pub announces: SecondaryMap<Op, Announces>,
    /// Where there are fewer than elsewhere.
    pub notes: Vec<Note>,
}

pub fn find(kernel: &Kernel) -> Result<Arrivals> {
    let by_threads = barriers_of_threads(kernel);
    let loads_limit = by_threads.is_empty() && intensity::limit(kernel) == Limit::Loads;
    let mut out = Arrivals::default();
    let by_hand = kernel.barriers_by_hand();
    choose_arrivals(kernel, loads_limit, &mut out);
    for alloc in by_threads {
        out.by[alloc] = ArrivesBy::Lanes;
    }
    // Where the author counts, an arrival of a warpgroup is one, and copies do not count what the author announces.
    for alloc in kernel.allocs.keys().filter(|alloc| by_hand[*alloc]) {
        if out.by[alloc] != ArrivesBy::Copies {
            out.by[alloc] = ArrivesBy::Warpgroup;
        }
    }
    announced_by_hand(kernel, &mut out);
    for (alloc, data) in kernel.allocs.iter() {
        let AllocKind::Barrier { num_arrivals, .. } = data.kind else {
            continue;
        };
        let runs = if loads_limit && !by_hand[alloc] {
            adjacent_runs(kernel, alloc, num_arrivals)
        } else {
            vec![]
        };
        let each = if runs.is_empty() { num_arrivals } else { 1 };
        if let Some(run) = runs.first() {
            out.notes.push(fewer(
                kernel.ops[run.loads[0]].loc,
                "one arrival for all loads of a step",
            ));
        }
        for Run { loads, .. } in runs {
            loads[1..].iter().for_each(|op| out.announces[*op] = Announces::Nothing);
            let first = loads[0];
            out.announces[first] = Announces::Run(loads);
        }
        let arrivals = each
            .saturating_mul(senders(kernel, alloc))
            .saturating_mul(out.by[alloc].count().into());
        out.of_phase[alloc] = u32::try_from(arrivals)
            .ok()
            .filter(|n| (1..=kernel.target.max_arrivals).contains(n))
            .ok_or_else(|| {
                Error::invalid("barrier")
                    .at(data.loc)
                    .expected(format!(
                        "1 to {} arrivals (PTX ISA, mbarrier)",
                        kernel.target.max_arrivals
                    ))
                    .got(format!("{arrivals} arrivals"))
                    .remedy("let fewer blocks or warpgroups arrive for each phase")
            })?;
    }
    Ok(out)
}

/// Those at which threads arrive for what they copy themselves.
fn barriers_of_threads(kernel: &Kernel) -> Vec<Alloc> {
    let mut found = vec![];
    kernel.for_each_op(&mut |op| {
        if let OpKind::CopyGmemToSmem {
            barrier: Some(barrier),
            by_threads: true,
            uncounted: false,
            ..
        } = &kernel.ops[op].kind
        {
            found.push(barrier.alloc);
        }
    });
    found
}

/// Copies expect no bytes at barriers at which the author does.
fn announced_by_hand(kernel: &Kernel, out: &mut Arrivals) {
    let mut by_hand: SecondaryMap<Alloc, bool> = SecondaryMap::new();
    kernel.for_each_op(&mut |op| {
        if let OpKind::MbarrierExpect { barrier, .. } = &kernel.ops[op].kind {
            by_hand[barrier.alloc] = true;
        }
    });
    kernel.for_each_op(&mut |op| {
        if let OpKind::CopyGmemToSmem {
            barrier: Some(barrier), ..
        }
        | OpKind::AsyncStoreSmem { barrier, .. } = &kernel.ops[op].kind
            && by_hand[barrier.alloc]
        {
            out.announces[op] = Announces::Nothing;
        }
    });
}

fn choose_arrivals(kernel: &Kernel, loads_limit: bool, out: &mut Arrivals) {
    let warpgroups = if kernel.compiler_params.every_lane_arrives {
        ArrivesBy::Lanes
    } else if loads_limit {
        ArrivesBy::Warpgroup
    } else {
        ArrivesBy::Warps
    };
    kernel.for_each_op(&mut |op| {
        if let OpKind::BarrierArrive { barrier, .. } = &kernel.ops[op].kind {
            let data = &kernel.allocs[barrier.alloc].kind;
            let tensor_core = matches!(
                data,
                AllocKind::Barrier {
                    orders_tensor_core: true,
                    ..
                }
            );
            if !tensor_core && out.by[barrier.alloc] != warpgroups {
                out.by[barrier.alloc] = warpgroups;
                if warpgroups == ArrivesBy::Warpgroup {
                    out.notes.push(fewer(kernel.ops[op].loc, "one arrival for a warpgroup"));
                }
            }
        }
    });
}

fn fewer(loc: Loc, what: &'static str) -> Note {
    Note {
        loc,
        pass: "arrivals",
        what,
        text: "loads limit this kernel: blocks that ask for the same data at the same time get it sooner",
    }
}

/// Blocks that arrive on a barrier: on one of a cluster, those that differ in at most one of its axes.
fn senders(kernel: &Kernel, alloc: Alloc) -> u64 {
    let AllocKind::Barrier { cluster, .. } = &kernel.allocs[alloc].kind else {
        return 1;
    };
    // A group of axes counts as one axis of their product.
    let peers = cluster.iter().flat_map(|c| &c.collective_axes);
    let peers = peers.map(|axes| axes.iter().map(|a| kernel.axes[*a].size).product::<u64>() - 1);
    1 + peers.sum::<u64>()
}

/// The runs that are all that arrives on a barrier, if each is a phase of it and nothing between its loads orders anything.
fn adjacent_runs(kernel: &Kernel, barrier: Alloc, num_arrivals: u64) -> Vec<Run> {
    if num_arrivals < 2 || matches!(kernel.allocs[barrier].kind, AllocKind::Barrier { cluster: Some(_), .. }) {
        return vec![];
    }
    let runs = phases::runs(kernel, barrier, num_arrivals).unwrap_or_default();
    let orders = |op: &Op| match kernel.ops[*op].kind.class() {
        Class::Pure(_) => false,
        Class::Pinned
        | Class::Tensor
        | Class::Instructions
        | Class::Memory
        | Class::Synchronisation
        | Class::Accumulator
        | Class::Control(_)
        | Class::Aside => true,
    };
    let adjacent = |run: &Run| {
        let ops = &kernel.regions[run.region].ops;
        let at = |op: &Op| ops.iter().position(|o| o == op);
        let (Some(first), Some(last)) = (run.loads.first().and_then(at), run.loads.last().and_then(at)) else {
            return false;
        };
        ops[first..=last].iter().all(|op| run.loads.contains(op) || !orders(op))
    };
    if runs.iter().all(adjacent) { runs } else { vec![] }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dtype::DType;
    use crate::kernel_ir::testing::KernelBuilder;

    /// How a kernel differs from one with a warpgroup that loads two operands a step for another one that multiplies.
    #[derive(Clone, Copy, PartialEq, Debug)]
    enum But {
        Nothing,
        /// Tensor cores limit it: its tiles are large.
        LargeTiles,
        /// An index is computed between the loads.
        Computes,
        /// The loader waits between them.
        WaitsBetween,
        /// It stores a word between them.
        StoresBetween,
        /// The second load need not come.
        Predicate,
        /// The second load completes on another barrier.
        OtherBarrier,
        /// The last step of the loop has one load only.
        Unpaired,
        /// The loader arrives there itself, too.
        Arrives,
        /// Both warpgroups load.
        BothLoad,
        /// The warps of a warp region load.
        Warps,
        /// Threads are watched.
        EveryLane,
    }

    struct Found {
        notes: usize,
        /// Which threads arrive where slots are freed, and on how many arrivals its phases end.
        freed: (ArrivesBy, u32),
        full: u32,
        announces: Vec<Announces>,
    }

    fn found(but: But) -> Found {
        let mut b = KernelBuilder::new().warpgroups(2);
        b.kernel.compiler_params.every_lane_arrives = but == But::EveryLane;
        let columns = if but == But::LargeTiles { 256 } else { 64 };
        let rows = if but == But::LargeTiles { 256 } else { 64 };
        let shapes = [[rows, 64], [64, columns]];
        let (inputs, slots) = (
            shapes.map(|s| b.input(DType::F16, &s)),
            shapes.map(|s| b.smem(DType::F16, &s, None)),
        );
        let (full, freed, words) = (b.barriers(2), b.barriers(2), b.smem(DType::I32, &[1], None));
        if let AllocKind::Barrier { num_arrivals, .. } = &mut b.kernel.allocs[full].kind {
            *num_arrivals = 2;
        }
        let at = |b: &KernelBuilder, barrier: Alloc, i: i64| b.indexed(barrier, vec![DimIndex::At(Index::Const(i))]);
        let warp = b.kernel.axes.push(AxisData {
            name: String::new(),
            size: 4,
            kind: AxisKind::Warp,
        });
        let yes = b.int(DType::Bool, 1);
        let (zero, steps, phases) = (b.int(DType::I32, 0), b.int(DType::I32, 8), b.int(DType::U32, 0));
        let copy = |b: &mut KernelBuilder, i: usize| {
            let other = but == But::OtherBarrier && i == 1;
            let kind = OpKind::CopyGmemToSmem {
                by_threads: false,
                uncounted: false,
                src: b.whole(inputs[i]),
                dst: b.whole(slots[i]),
                barrier: Some(at(b, full, other.into())),
                collective_axes: vec![],
                leader_tracked: None,
                oob: OobMode::Zeros,
                predicate: (but == But::Predicate && i == 1).then_some(yes),
            };
            b.op(kind, &[]);
        };
        let arrive = |b: &mut KernelBuilder, barrier: Alloc| {
            let barrier = at(b, barrier, 0);
            b.op(
                OpKind::BarrierArrive {
                    barrier,
                    predicate: None,
                },
                &[],
            );
        };
        let wait = |b: &mut KernelBuilder, barrier: Alloc| {
            let kind = OpKind::BarrierWait {
                barrier: at(b, barrier, 0),
                phases: Some(phases),
            };
            b.op(kind, &[Type::Scalar(DType::U32)]);
        };
        let for_loop = |b: &mut KernelBuilder, f: &dyn Fn(&mut KernelBuilder, Value)| {
            let group = Group::Warpgroup;
            let body = b.region(group, &[Type::Scalar(DType::I32)], |b, params| {
                f(b, params[0]);
                vec![]
            });
            let kind = OpKind::For {
                lower: zero,
                upper: steps,
                inits: vec![],
                xs: vec![],
                reverse: false,
                unroll: 1,
                body,
            };
            b.op(kind, &[]);
        };
        let loads = |b: &mut KernelBuilder, step: Value| {
            copy(b, 0);
            match but {
                But::Computes => {
                    let op = BinaryOp::Add;
                    b.op(OpKind::Binary { op, a: step, b: step }, &[Type::Scalar(DType::I32)]);
                }
                But::WaitsBetween => wait(b, freed),
                But::StoresBetween => {
                    let word = at(b, words, 0);
                    b.store(word, step);
                }
                But::Arrives => arrive(b, full),
                _ => {}
            }
            copy(b, 1);
            if but == But::Unpaired {
                copy(b, 0);
            }
        };
        let load = |b: &mut KernelBuilder| {
            for_loop(b, &|b, step| {
                wait(b, freed);
                if but == But::Warps {
                    let body = b.region(Group::Warp, &[], |b, _| {
                        loads(b, step);
                        vec![]
                    });
                    b.op(
                        OpKind::WarpMap {
                            axis: warp,
                            inits: vec![],
                            body,
                        },
                        &[],
                    );
                } else {
                    loads(b, step);
                }
            });
        };
        let ty = Type::Acc {
            dtype: DType::F32,
            shape: Shape::from_slice(&[rows, columns]),
        };
        let multiply = |b: &mut KernelBuilder| {
            if but == But::BothLoad {
                load(b);
            }
            for_loop(b, &|b, _| {
                wait(b, full);
                let acc = b.op(OpKind::AccInit { init: None }, std::slice::from_ref(&ty))[0];
                let kind = OpKind::Wgmma {
                    acc: AccUse::Value(acc),
                    a: MmaOperand::Smem(b.whole(slots[0])),
                    b: b.whole(slots[1]),
                };
                let sum = b.op(kind, std::slice::from_ref(&ty))[0];
                b.op(OpKind::WgmmaWait { n: 0, accs: vec![sum] }, std::slice::from_ref(&ty));
                arrive(b, freed);
            });
        };
        let axis = b.kernel.thread_axis.unwrap();
        let selector = b.op(OpKind::AxisIndex { axis }, &[Type::Scalar(DType::I32)])[0];
        let arms = vec![
            b.region(Group::Warpgroup, &[], |b, _| {
                multiply(b);
                vec![]
            }),
            b.region(Group::Warpgroup, &[], |b, _| {
                load(b);
                vec![]
            }),
        ];
        b.op(OpKind::Switch { selector, arms }, &[]);
        let kernel = b.finish();
        let out = find(&kernel).unwrap();
        let mut announces = vec![];
        kernel.for_each_op(&mut |op| {
            if let OpKind::CopyGmemToSmem { .. } = &kernel.ops[op].kind {
                announces.push(out.announces[op].clone());
            }
        });
        Found {
            notes: out.notes.len(),
            freed: (out.by[freed], out.of_phase[freed]),
            full: out.of_phase[full],
            announces,
        }
    }

    #[test]
    fn loads_that_limit_arrive_once() {
        for but in [But::Nothing, But::Computes] {
            let found = found(but);
            assert_eq!(found.freed, (ArrivesBy::Warpgroup, 1), "{but:?}");
            assert_eq!((found.full, found.notes), (1, 2), "{but:?}");
            assert!(
                matches!(&found.announces[..], [Announces::Run(all), Announces::Nothing] if all.len() == 2),
                "{but:?}: {:?}",
                found.announces
            );
        }
    }

    #[test]
    fn what_is_no_run_arrives_each() {
        for but in [
            But::WaitsBetween,
            But::StoresBetween,
            But::Predicate,
            But::OtherBarrier,
            But::Unpaired,
            But::BothLoad,
            But::Warps,
        ] {
            let found = found(but);
            assert_eq!(found.freed, (ArrivesBy::Warpgroup, 1), "{but:?}");
            assert_eq!((found.full, found.notes), (2, 1), "{but:?}");
            assert!(found.announces.iter().all(|a| *a == Announces::Itself), "{but:?}");
        }
        // A warpgroup's arrival among the loads: still one of all its threads.
        assert_eq!(found(But::Arrives).full, 2);
    }

    #[test]
    fn elsewhere_each_warp_arrives_or_each_lane() {
        let large = found(But::LargeTiles);
        assert_eq!((large.freed, large.full, large.notes), ((ArrivesBy::Warps, 4), 2, 0));
        assert!(large.announces.iter().all(|a| *a == Announces::Itself));
        let lanes = found(But::EveryLane);
        assert_eq!((lanes.freed, lanes.full), ((ArrivesBy::Lanes, 128), 1));
    }
}
