//! mbarriers, and the kernel's prologue that initialises them.
//!
//! Which threads arrive is the [plan's](crate::plan::arrivals): the lane that issues copies, with the bytes it expects; of a warpgroup, the
//! elected lane of each warp, which releases what its warp did, or one lane, which releases what all did. A wgmma wait counts for the
//! warp that waited, so that nothing more is needed before an arrival that frees its operands.
use super::cx::LowerCx;
use super::emit::{ALL_LANES, S, V};
use super::value::Packing;
use super::{give_up, tensor_memory, view};
use crate::error::{Error, Result};
use crate::kernel_ir::{
    Alloc, AllocKind, Arriving, BarrierOrder, BarrierScope, Group, Index, Op, Place, RefUse, Value,
};
use crate::plan::{ArrivesBy, FeedingPart};
use crate::ptx::inst::Inst;
use crate::ptx::launch::Awaited;
use crate::ptx::modifier::*;
use crate::ptx::operand::{Addr, Class, Src};
use crate::ptx::ssa::Value as PtxValue;
use crate::target::Features;

/// Initialises the kernel's barriers and orders that before everything else, in the block and in its cluster.
pub fn prologue(cx: &mut LowerCx) -> Result<()> {
    let kernel = cx.kernel;
    let barriers: Vec<(Alloc, u32, u32)> = kernel
        .allocs
        .iter()
        .filter(|(_, a)| a.is_barrier())
        .map(|(alloc, a)| {
            let count = a.shape.iter().product::<u64>() as u32;
            (alloc, count, cx.plan.arrivals.of_phase[alloc])
        })
        .collect();
    if barriers.is_empty() {
        return Ok(());
    }
    let warp = cx.b.warp();
    let first = cx.b.setp(Compare::Eq, CompareType::U32, warp, Src::u32(0));
    cx.if_then(first, |cx| {
        let leader = cx.b.elect();
        cx.if_then(leader.into(), |cx| {
            for (alloc, n, count) in barriers {
                let (base, offset) = cx.smem_address(alloc)?;
                for i in 0..n {
                    let addr = Addr::at(base, offset + 8 * i as i32);
                    cx.b.inst(Inst::mbarrier_init(addr, Src::u32(count)));
                }
            }
            if cx.kernel.target.has(Features::CLUSTERS) {
                cx.b.inst(Inst::FenceMbarrierInit {});
            }
            Ok(())
        })
    })?;
    if kernel.cluster_size() > 1 {
        cx.b.inst(Inst::cluster_arrive(ClusterArriveSem::Release));
        cx.b.inst(Inst::ClusterWait {});
    } else {
        cx.sync(Group::Block);
    }
    Ok(())
}

/// The address of the one barrier that a use names.
pub fn address(cx: &mut LowerCx, r: &RefUse) -> Result<Addr<V>> {
    view::check_indices(cx, r, Src::Imm(1))?;
    let (base, offset) = cx.smem_address(r.alloc)?;
    match r.single_index() {
        Some(Index::Const(i)) => Ok(Addr::at(base, offset + 8 * i as i32)),
        Some(Index::Value(v)) => {
            let i = cx.index32(v)?;
            let at = cx.b.mad(IntType::U32, i, Src::u32(8), base);
            Ok(cx.b.addr(at, offset))
        }
        None if r.steps.is_empty() && cx.kernel.allocs[r.alloc].shape.iter().product::<u64>() == 1 => {
            Ok(Addr::at(base, offset))
        }
        None => Err(Error::internal("a use of several barriers").at(cx.b.loc())),
    }
}

/// The barrier's position in its allocation.
fn position(cx: &mut LowerCx, r: &RefUse) -> Result<S> {
    match r.single_index() {
        Some(Index::Const(i)) => Ok(Src::u32(i as u32)),
        Some(Index::Value(v)) => cx.index32(v),
        None => Ok(Src::u32(0)),
    }
}

/// The blocks that an arrival on a cluster barrier goes to (of one that a leader tracks: the leader), as ranks; `None`: a barrier of the own block only.
fn peers(cx: &mut LowerCx, alloc: Alloc) -> Result<Option<Vec<S>>> {
    let kernel = cx.kernel;
    let AllocKind::Barrier { cluster: Some(c), .. } = &kernel.allocs[alloc].kind else {
        return Ok(None);
    };
    let own = cx.cluster_rank();
    if kernel.cluster_size() == 1 {
        return Ok(None);
    }
    if c.leader_tracked {
        // The first block along the axes.
        let mut leader = own;
        for axis in c.collective_axes.iter().flatten() {
            let stride = cx.cluster_stride(*axis)?;
            let at = super::ids::axis_index(cx, *axis)?;
            let before = cx.b.mul(IntType::U32, at, Src::u32(stride));
            leader = cx.b.sub(IntType::U32, leader, before);
        }
        return Ok(Some(vec![leader]));
    }
    let mut ranks = vec![own];
    for group in &c.collective_axes {
        // The blocks of the group: the own one, and for each axis those that follow one of them along it.
        let mut of_group = vec![own];
        for axis in group {
            let size = kernel.axes[*axis].size as u32;
            let stride = cx.cluster_stride(*axis)?;
            let at = super::ids::axis_index(cx, *axis)?;
            let mut further = vec![];
            for d in 1..size {
                // (at + d) mod size along the axis.
                let next = cx.b.add(IntType::U32, at, Src::u32(d));
                let wraps = cx.b.setp(Compare::Ge, CompareType::U32, next, Src::u32(size));
                let step = cx.b.select(
                    BitType::B32,
                    wraps,
                    Src::imm32((d as i32 - size as i32) * stride as i32),
                    Src::imm32((d * stride) as i32),
                );
                for rank in &of_group {
                    further.push(cx.b.add(IntType::U32, *rank, step));
                }
            }
            of_group.extend(further);
        }
        ranks.extend(&of_group[1..]);
    }
    Ok(Some(ranks))
}

pub fn lower_arrive(cx: &mut LowerCx, op: Op, barrier: &RefUse, predicate: Option<Value>) -> Result<()> {
    let by = cx.plan.arrivals.by[barrier.alloc];
    let predicate = match predicate {
        Some(p) => cx.scalar(p)?,
        None => Src::Imm(1),
    };
    tensor_memory::fence(cx, barrier, ThreadSync::Before);
    cx.if_then(predicate, |cx| {
        let mut addr = address(cx, barrier)?;
        if let Some(v) = cx.plan.tied[op].expand() {
            addr = tied(cx, addr, v)?;
        }
        let targets = targets(cx, barrier, addr)?;
        // A warp region arrives for all of its warpgroup.
        let count = match (cx.group, by) {
            (Group::Warp, ArrivesBy::Lanes) => by.count() / 32,
            (Group::Warp, _) => by.count(),
            (Group::Warpgroup | Group::Block, _) => 1,
        };
        let leader = match by {
            ArrivesBy::Lanes => None,
            ArrivesBy::Warpgroup | ArrivesBy::Copies => Some(sync_and_elect(cx)),
            ArrivesBy::Warps => Some(elect_in_warp(cx)),
        };
        for target in targets {
            arrive(cx, leader, target, Src::u32(count), BarrierOrder::RELEASE);
        }
        Ok(())
    })
}

/// The address, made to depend on some elements of an array: four registers that are spread over them. Shared memory ends
/// below 2³¹ (`address`), so a number with that bit set is never the smaller one.
fn tied(cx: &mut LowerCx, addr: Addr<V>, v: Value) -> Result<Addr<V>> {
    const TIES: usize = 4;
    let array = cx.array(v)?;
    if Packing::of(array.dtype).class() != Class::B32 || array.regs.is_empty() {
        return Ok(addr);
    }
    let n = array.regs.len();
    let mut bits = Src::u32(1 << 31);
    let mut last = None;
    for i in 1..=TIES {
        let at = (i * n).div_ceil(TIES) - 1;
        if last.replace(at) != Some(at) {
            bits = cx.b.or(LogicType::B32, array.regs[at], bits);
        }
    }
    let base = cx.b.min(IntType::U32, addr.base, bits);
    Ok(cx.b.addr(base, addr.offset))
}

/// The same address in another block of the cluster.
fn remote(cx: &mut LowerCx, addr: Addr<V>, rank: S) -> Addr<V> {
    let local = cx.b.add(IntType::U32, addr.base, Src::imm32(addr.offset));
    let local = cx.b.r32(local);
    let remote = cx.b.emit(Inst::mapa(PtxValue::NEW, local, rank));
    let base = cx.b.r32(remote);
    Addr::new(base)
}

/// The address of the barrier that a use names, be it another block's.
pub fn address_of(cx: &mut LowerCx, barrier: &RefUse) -> Result<Addr<V>> {
    let addr = address(cx, barrier)?;
    Ok(match barrier.place {
        Place::Here => addr,
        Place::Cluster { .. } | Place::Peer { .. } | Place::Multicast { .. } => {
            let rank = view::peer_rank(cx, barrier)?;
            remote(cx, addr, rank)
        }
    })
}

/// Where the barriers are that an op of one block changes: its own, another block's, or those of all blocks that share it.
/// `addr` is the address in the own block.
fn targets(cx: &mut LowerCx, barrier: &RefUse, addr: Addr<V>) -> Result<Vec<(BarrierSpace, Addr<V>)>> {
    Ok(match (peers(cx, barrier.alloc)?, &barrier.place) {
        (None, Place::Here) => vec![(BarrierSpace::Cta, addr)],
        (None, _) => {
            let rank = view::peer_rank(cx, barrier)?;
            vec![(BarrierSpace::Cluster, remote(cx, addr, rank))]
        }
        (Some(ranks), _) => ranks
            .into_iter()
            .map(|rank| (BarrierSpace::Cluster, remote(cx, addr, rank)))
            .collect(),
    })
}

/// One lane of the executing group, behind a barrier of it.
fn sync_and_elect(cx: &mut LowerCx) -> V {
    match cx.group {
        Group::Warpgroup | Group::Block => {
            cx.sync(Group::Warpgroup);
            let first = cx.is_issuing_warp();
            let first = cx.b.value(first, Class::Pred);
            let lane = cx.b.elect();
            let is_leader = cx.b.and(LogicType::Pred, lane, first);
            cx.b.value(is_leader, Class::Pred)
        }
        Group::Warp => elect_in_warp(cx),
    }
}

/// One lane of each executing warp, behind a barrier of the warp.
fn elect_in_warp(cx: &mut LowerCx) -> V {
    cx.b.inst(Inst::BarWarp { mask: ALL_LANES });
    cx.b.elect()
}

/// The group's arrivals, by one lane.
pub fn arrive_as_one(cx: &mut LowerCx, addr: Addr<V>, count: u32) {
    let leader = sync_and_elect(cx);
    let target = (BarrierSpace::Cta, addr);
    arrive(cx, Some(leader), target, Src::u32(count), BarrierOrder::RELEASE);
}

/// `count` arrivals of the leader, or of each executing lane.
fn arrive(cx: &mut LowerCx, leader: Option<V>, target: (BarrierSpace, Addr<V>), count: S, order: BarrierOrder) {
    let inst = arrival(cx, target, count, order);
    if !matches!(inst, Inst::MbarrierArrive { .. }) || cx.kernel.target.has(Features::TRANSACTIONS) {
        cx.b.inst_if(leader, inst);
        return;
    }
    // One arrival ends the phase, if it is the last; all before it do not.
    let (_, addr) = target;
    if count != Src::Imm(1) {
        let before = cx.b.sub(IntType::U32, count, Src::Imm(1));
        let several = match before {
            Src::Imm(_) => leader,
            Src::Reg(_) => {
                let several = cx.b.setp(Compare::Ne, CompareType::U32, before, Src::Imm(0));
                let several = match leader {
                    Some(leader) => cx.b.and(LogicType::Pred, several, leader),
                    None => several.into(),
                };
                Some(cx.b.value(several, Class::Pred))
            }
        };
        let state = PtxValue::NEW;
        cx.b.inst_if(
            several,
            Inst::mbarrier_no_complete(MbarrierOp::Arrive, ArriveSem::Default, state, addr, before),
        );
    }
    cx.b.inst_if(
        leader,
        Inst::mbarrier_one(MbarrierOp::Arrive, ArriveSem::Default, BarrierSpace::Cta, addr),
    );
}

/// `count` arrivals of each executing lane. Without a scope an arrival at a peer releases to the cluster where its blocks see each other's
/// stores, as waits acquire.
fn arrival(
    cx: &LowerCx,
    (space, addr): (BarrierSpace, Addr<V>),
    count: S,
    BarrierOrder { relaxed, scope }: BarrierOrder,
) -> Inst<V> {
    let narrow = match scope {
        Some(scope) => scope == BarrierScope::Block,
        None => space == BarrierSpace::Cta || !(relaxed || cx.shares_stores),
    };
    match (relaxed, space, narrow) {
        (false, BarrierSpace::Cta, true) => Inst::MbarrierArrive { addr, count },
        (false, BarrierSpace::Cluster, narrow) => {
            Inst::mbarrier_arrive_cluster(if narrow { Release::Cta } else { Release::Cluster }, addr, count)
        }
        (relaxed, space, narrow) => Inst::mbarrier_count(
            MbarrierOp::Arrive,
            match (relaxed, narrow) {
                (false, true) => ArriveSem::ReleaseCta,
                (false, false) => ArriveSem::ReleaseCluster,
                (true, true) => ArriveSem::RelaxedCta,
                (true, false) => ArriveSem::RelaxedCluster,
            },
            space,
            addr,
            count,
        ),
    }
}

pub fn lower_counted_arrive(
    cx: &mut LowerCx,
    barrier: &RefUse,
    count: Value,
    by: Arriving,
    order: BarrierOrder,
) -> Result<()> {
    let count = cx.scalar(count)?;
    let addr = address(cx, barrier)?;
    let targets = targets(cx, barrier, addr)?;
    let leader = match by {
        Arriving::One => Some(sync_and_elect(cx)),
        Arriving::Warps => Some(elect_in_warp(cx)),
        Arriving::All => None,
    };
    for target in targets {
        arrive(cx, leader, target, count, order);
    }
    Ok(())
}

pub fn lower_expect(cx: &mut LowerCx, barrier: &RefUse, bytes: Value, arrives: bool) -> Result<()> {
    let bytes = cx.scalar(bytes)?;
    let addr = address(cx, barrier)?;
    let targets = targets(cx, barrier, addr)?;
    let leader = sync_and_elect(cx);
    for (space, addr) in targets {
        let inst = match (space, arrives) {
            (BarrierSpace::Cta, true) => Inst::MbarrierArriveExpectTx { addr, bytes },
            (BarrierSpace::Cluster, true) => Inst::MbarrierArriveExpectTxCluster { addr, bytes },
            (BarrierSpace::Cta, false) => Inst::MbarrierExpectTx { addr, bytes },
            (BarrierSpace::Cluster, false) => Inst::mbarrier_tx(TxOp::Expect, TxScope::Cluster, space, addr, bytes),
        };
        cx.b.inst_if(Some(leader), inst);
    }
    Ok(())
}

pub fn lower_wait_phase(cx: &mut LowerCx, barrier: &RefUse, phase: Value, order: BarrierOrder) -> Result<()> {
    let phase = cx.scalar(phase)?;
    let parity = cx.b.and(LogicType::B32, phase, Src::u32(1));
    let addr = address(cx, barrier)?;
    let wide = match order.scope {
        Some(scope) => scope == BarrierScope::Cluster,
        None => acquires_from_peers(cx, barrier),
    };
    let acquire = match (order.relaxed, wide) {
        (false, false) => Acquire::Cta,
        (false, true) => Acquire::Cluster,
        (true, false) => Acquire::RelaxedCta,
        (true, true) => Acquire::RelaxedCluster,
    };
    wait(cx, barrier, addr, parity, acquire)
}

/// Whether a wait sees what other blocks of the cluster stored: that takes an acquire of their scope, which empties the L1 cache. Only
/// kernels that look need it.
fn acquires_from_peers(cx: &LowerCx, barrier: &RefUse) -> bool {
    cx.kernel.cluster_size() > 1 && cx.signalled_by_peers[barrier.alloc] && cx.shares_stores
}

/// The instruction that asks whether a phase is over: one that may sleep, where the machine has it.
pub fn ask(cx: &LowerCx) -> MbarrierAsk {
    match cx.kernel.target.has(Features::TRANSACTIONS) {
        true => MbarrierAsk::Try,
        false => MbarrierAsk::Test,
    }
}

fn wait(cx: &mut LowerCx, barrier: &RefUse, addr: Addr<V>, parity: S, acquire: Acquire) -> Result<()> {
    ask_until(cx, barrier, addr, parity, acquire)?;
    tensor_memory::fence(cx, barrier, ThreadSync::After);
    Ok(())
}

fn ask_until(cx: &mut LowerCx, barrier: &RefUse, addr: Addr<V>, parity: S, acquire: Acquire) -> Result<()> {
    let ask = ask(cx);
    let sleeps = ask == MbarrierAsk::Try && !cx.waits_poll;
    let Some(limit) = cx.limit else {
        cx.b.inst(Inst::mbarrier_wait(
            ask,
            acquire,
            if sleeps { Suspend::Long } else { Suspend::Short },
            addr,
            parity,
        ));
        return Ok(());
    };
    let ok = cx.b.inst(Inst::mbarrier_wait_for(
        ask,
        acquire,
        PtxValue::NEW,
        addr,
        parity,
        limit.flag,
        limit.ns,
    ))[0];
    let position = position(cx, barrier)?;
    give_up::unless(cx, ok, Awaited::Barrier, position)?;
    give_up::leave(cx);
    Ok(())
}

/// The parity that the group waits for, 0 or 1, and its mask in the group's phase bits.
fn parity(cx: &mut LowerCx, op: Op, barrier: &RefUse, phases: Option<Value>) -> Result<(S, S, S)> {
    let Some(phases) = phases else {
        return Err(Error::internal("a wait without phase bits").at(cx.kernel.ops[op].loc));
    };
    let phases = cx.scalar(phases)?;
    let position = position(cx, barrier)?;
    let shifted = cx.b.shr(ShiftType::U32, phases, position);
    let parity = cx.b.and(LogicType::B32, shifted, Src::u32(1));
    let mask = cx.b.shl(BitType::B32, Src::u32(1), position);
    let flipped = cx.b.xor(LogicType::B32, phases, mask);
    Ok((parity, phases, flipped))
}

pub fn lower_wait(cx: &mut LowerCx, op: Op, barrier: &RefUse, phases: Option<Value>) -> Result<()> {
    let (parity, _, flipped) = parity(cx, op, barrier, phases)?;
    let addr = address(cx, barrier)?;
    let acquire = match acquires_from_peers(cx, barrier) {
        true => Acquire::Cluster,
        false => Acquire::Cta,
    };
    if cx.feeding != Some(FeedingPart::Counts) {
        wait(cx, barrier, addr, parity, acquire)?;
    }
    cx.bind_scalar(cx.result(op), flipped);
    Ok(())
}

pub fn lower_test(cx: &mut LowerCx, op: Op, barrier: &RefUse, phases: Option<Value>) -> Result<()> {
    let (parity, old, flipped) = parity(cx, op, barrier, phases)?;
    let addr = address(cx, barrier)?;
    // Threads may look at different moments: the leader's answer counts. Each warp arrives by itself: a look sees the arrivals of all.
    let word = super::memory::broadcast_leader_of(cx, Class::B32, |cx| {
        let d = PtxValue::NEW;
        let done = cx.b.inst(Inst::MbarrierTest { d, addr, parity })[0];
        cx.b.select(BitType::B32, done, Src::u32(1), Src::u32(0))
    })?;
    let done = cx.b.setp(Compare::Ne, CompareType::U32, word, Src::u32(0));
    let done = cx.b.pred(done);
    let next = cx.b.select(BitType::B32, done, flipped, old);
    let results = cx.kernel.ops[op].results.clone();
    cx.bind_scalar(results[0], done.into());
    if let Some(r) = results.get(1) {
        cx.bind_scalar(*r, next);
    }
    Ok(())
}
