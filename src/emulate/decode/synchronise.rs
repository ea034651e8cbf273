//! Barriers, fences, mbarriers, and waits for words of memory.
use super::Hooks;
use super::decoder::{At, Decoder, NONE, Operands, micro_ops};
use crate::emulate::control::Nothing;
use crate::emulate::sync::{self, *};
use crate::emulate::tensor_maps::{FenceMapAcquire, FenceMapRelease, ReplaceMapAddress};
use crate::emulate::uop::Body;
use crate::ptx::modifier::{MbarrierAsk, *};

/// The position of a scope, from 1; 0: nothing.
fn position(scope: Option<Scope>) -> u16 {
    scope.map_or(0, |scope| scope as u16 + 1)
}

fn wide(release: Release) -> u16 {
    match release {
        Release::Cta => 0,
        Release::Cluster => WIDE,
    }
}

fn transaction(op: TxOp) -> u16 {
    match op {
        TxOp::Expect => EXPECT,
        TxOp::Complete => COMPLETE,
    }
}

/// What a wait acquires.
fn acquired(acquire: Acquire) -> u16 {
    position(match acquire {
        Acquire::Cta => Some(Scope::Cta),
        Acquire::Cluster => Some(Scope::Cluster),
        Acquire::RelaxedCta | Acquire::RelaxedCluster => None,
    })
}

/// The flags of an arrival.
fn arrival(op: MbarrierOp, sem: ArriveSem) -> u16 {
    let drops = match op {
        MbarrierOp::Arrive => 0,
        MbarrierOp::ArriveDrop => DROPS,
    };
    let order = match sem {
        ArriveSem::Default | ArriveSem::ReleaseCta => 0,
        ArriveSem::ReleaseCluster => WIDE,
        ArriveSem::RelaxedCta | ArriveSem::RelaxedCluster => RELAXED,
    };
    drops | order
}

/// What a question acquires, for the phase of a parity, or of a state.
fn asked(sem: AskSem, of_state: bool) -> u16 {
    let scope = position(match sem {
        AskSem::Default | AskSem::AcquireCta => Some(Scope::Cta),
        AskSem::AcquireCluster => Some(Scope::Cluster),
        AskSem::RelaxedCta | AskSem::RelaxedCluster => None,
    });
    u16::from(of_state) | scope << 1
}

fn red_code(op: BarRedOp) -> i32 {
    match op {
        BarRedOp::And => RED_AND,
        BarRedOp::Or => RED_OR,
    }
}

/// Barriers of the CTA and of the cluster.
impl<H: Hooks> Decoder<'_, H> {
    fn threads(&mut self) -> u16 {
        self.constant(self.flat.launch.block.into(), false)
    }
    pub fn bar_sync_all(&mut self, id: u16) {
        let all = self.threads();
        self.bar_sync(id, all);
    }
    pub fn barrier_sync(&mut self, id: u16, threads: u16) {
        self.bar_sync(id, threads);
    }
    pub fn barrier_sync_all(&mut self, id: u16) {
        self.bar_sync_all(id);
    }
    pub fn barrier_arrive(&mut self, id: u16, threads: u16) {
        self.bar_arrive(id, threads);
    }
    fn reduce_at_barrier(&mut self, what: i32, d: u16, id: u16, threads: u16, negated: Inverted, p: u16) {
        let negated = if negated == Inverted::Yes { RED_NEGATED } else { 0 };
        self.emit::<NamedBarrier>(NONE.d(d).a(id).b(threads).c(p).imm(1 | what | negated));
    }
    pub fn bar_red_popc(&mut self, d: u16, id: u16, threads: u16, negated: Inverted, p: u16) {
        self.reduce_at_barrier(RED_POPC, d, id, threads, negated, p);
    }
    pub fn bar_red_popc_all(&mut self, d: u16, id: u16, negated: Inverted, p: u16) {
        let all = self.threads();
        self.reduce_at_barrier(RED_POPC, d, id, all, negated, p);
    }
    pub fn bar_red(&mut self, op: BarRedOp, d: u16, id: u16, threads: u16, negated: Inverted, p: u16) {
        self.reduce_at_barrier(red_code(op), d, id, threads, negated, p);
    }
    pub fn bar_red_all(&mut self, op: BarRedOp, d: u16, id: u16, negated: Inverted, p: u16) {
        let all = self.threads();
        self.reduce_at_barrier(red_code(op), d, id, all, negated, p);
    }
}

/// Fences, and tensor maps that are written.
impl<H: Hooks> Decoder<'_, H> {
    pub fn fence_shared(&mut self, sem: SharedFence) {
        // What it leaves out of global memory is not told apart.
        let sem = match sem {
            SharedFence::Release => FenceSem::Release,
            SharedFence::Acquire => FenceSem::Acquire,
        };
        self.fence(sem, Scope::Cluster);
    }
}

/// mbarriers.
impl<H: Hooks> Decoder<'_, H> {
    pub fn mbarrier<B: Body<H>>(&mut self, addr: At, value: u16, c: u16) {
        self.emit::<B>(NONE.at(addr).b(value).c(c));
    }
    pub fn one(&mut self) -> u16 {
        self.constant(1, false)
    }
    pub fn mbarrier_one(&mut self, op: MbarrierOp, sem: ArriveSem, space: BarrierSpace, addr: At) {
        let one = self.one();
        self.mbarrier_count(op, sem, space, addr, one);
    }
    pub fn mbarrier_one_state(&mut self, op: MbarrierOp, sem: ArriveSem, state: u16, addr: At) {
        let one = self.one();
        self.mbarrier_count_state(op, sem, state, addr, one);
    }
}

/// Waits.
impl<H: Hooks> Decoder<'_, H> {
    pub fn mbarrier_wait_for(
        &mut self,
        _: MbarrierAsk,
        acquire: Acquire,
        ok: u16,
        addr: At,
        parity: u16,
        _: i64,
        ns: i64,
    ) {
        self.mbarrier::<MbarrierWait>(addr, parity, acquired(acquire));
        self.bounded(ok, ns);
    }
    pub fn wait_tagged(&mut self, scope: Scope, d: u16, addr: At, tag: u16) {
        self.program.communicates = true;
        self.emit::<WaitForTag>(NONE.at(addr).d(d).b(tag).c(scope as u16));
    }
    pub fn wait_tagged_for(&mut self, scope: Scope, ok: u16, d: u16, addr: At, tag: u16, ns: i64) {
        self.wait_tagged(scope, d, addr, tag);
        self.bounded(ok, ns);
    }
    fn wait_for_word(&mut self, scope: Scope, addr: At, value: u16, takes: bool) {
        self.program.communicates = true;
        self.mbarrier::<WaitForWord>(addr, value, u16::from(takes) | (scope as u16) << 1);
    }
    pub fn wait_at_least(&mut self, scope: Scope, addr: At, value: u16) {
        self.wait_for_word(scope, addr, value, false);
    }
    pub fn wait_at_least_for(&mut self, scope: Scope, ok: u16, addr: At, value: u16, ns: i64) {
        self.wait_at_least(scope, addr, value);
        self.bounded(ok, ns);
    }
    pub fn wait_and_subtract(&mut self, scope: Scope, addr: At, value: u16) {
        self.wait_for_word(scope, addr, value, true);
    }
    pub fn wait_and_subtract_for(&mut self, scope: Scope, ok: u16, addr: At, value: u16, ns: i64) {
        self.wait_and_subtract(scope, addr, value);
        self.bounded(ok, ns);
    }
}

micro_ops! {
    bar_sync(id: u16, threads: u16) = NamedBarrier { a: id, b: threads, imm: 1 };
    bar_arrive(id: u16, threads: u16) = NamedBarrier { a: id, b: threads };
    cluster_arrive(sem: ClusterArriveSem) = ClusterArrive { imm: (sem == ClusterArriveSem::Release).into() };
    cluster_arrive_apart(sem: ClusterArriveSem) = ClusterArrive { imm: i32::from(sem == ClusterArriveSem::Release) | APART };
    cluster_wait() = ClusterWait {};
    cluster_wait_apart() = ClusterWait { imm: APART };
    grid_dep(_: GridDep) = Nothing {};
    fence(sem: FenceSem, scope: Scope) = Fence { imm: (sem as i32) << 8 | scope as i32 };
    fence_proxy(proxy: ProxyFence) = FenceProxy { imm: proxy as i32 };
    fence_mbarrier_init() = FenceMbarrierInit {};
    fence_map_release(scope: Scope) = FenceMapRelease { imm: scope as i32 };
    fence_map_acquire(scope: Scope, addr: At) = FenceMapAcquire { c: scope as u16 } at addr;
    replace_map_address(addr: At, new: u16) = ReplaceMapAddress { b: new } at addr;
    mbarrier_test(d: u16, addr: At, parity: u16) = MbarrierTest { d, b: parity } at addr;
    mbarrier_init(addr: At, count: u16) = MbarrierInit { b: count } at addr;
    mbarrier_inval(addr: At) = MbarrierInvalidate {} at addr;
    mbarrier_arrive(addr: At, count: u16) = MbarrierArrive { b: count, c: ARRIVE } at addr;
    mbarrier_arrive_cluster(release: Release, addr: At, count: u16) = MbarrierArrive { b: count, c: ARRIVE | wide(release) } at addr;
    mbarrier_arrive_expect_tx(addr: At, bytes: u16) = MbarrierArrive { b: bytes, c: ARRIVE_EXPECT } at addr;
    mbarrier_arrive_expect_tx_cluster(addr: At, bytes: u16) = MbarrierArrive { b: bytes, c: ARRIVE_EXPECT | WIDE } at addr;
    mbarrier_expect_tx(addr: At, bytes: u16) = MbarrierArrive { b: bytes, c: EXPECT } at addr;
    mbarrier_count(op: MbarrierOp, sem: ArriveSem, _: BarrierSpace, addr: At, count: u16)
        = MbarrierChange { d: NO_STATE, b: count, c: ARRIVE | arrival(op, sem) } at addr;
    mbarrier_count_state(op: MbarrierOp, sem: ArriveSem, state: u16, addr: At, count: u16)
        = MbarrierChange { d: state, b: count, c: ARRIVE | arrival(op, sem) } at addr;
    mbarrier_no_complete(op: MbarrierOp, sem: ArriveSem, state: u16, addr: At, count: u16)
        = MbarrierChange { d: state, b: count, c: ARRIVE | NO_COMPLETE | arrival(op, sem) } at addr;
    mbarrier_one_expect_tx(op: MbarrierOp, sem: ArriveSem, _: BarrierSpace, addr: At, bytes: u16)
        = MbarrierChange { d: NO_STATE, b: bytes, c: ARRIVE_EXPECT | arrival(op, sem) } at addr;
    mbarrier_expect_tx_state(op: MbarrierOp, sem: ArriveSem, state: u16, addr: At, bytes: u16)
        = MbarrierChange { d: state, b: bytes, c: ARRIVE_EXPECT | arrival(op, sem) } at addr;
    mbarrier_tx(op: TxOp, _: TxScope, _: BarrierSpace, addr: At, bytes: u16)
        = MbarrierChange { d: NO_STATE, b: bytes, c: transaction(op) } at addr;
    mbarrier_ask(_: MbarrierAsk, sem: AskSem, d: u16, addr: At, state: u16) = sync::MbarrierAsk { d, b: state, c: asked(sem, true) } at addr;
    mbarrier_ask_parity(_: MbarrierAsk, sem: AskSem, d: u16, addr: At, parity: u16)
        = sync::MbarrierAsk { d, b: parity, c: asked(sem, false) } at addr;
    mbarrier_try_for(sem: AskSem, d: u16, addr: At, state: u16, _: u16) = sync::MbarrierAsk { d, b: state, c: asked(sem, true) } at addr;
    mbarrier_try_parity_for(sem: AskSem, d: u16, addr: At, parity: u16, _: u16)
        = sync::MbarrierAsk { d, b: parity, c: asked(sem, false) } at addr;
    mbarrier_wait(_: MbarrierAsk, acquire: Acquire, _: Suspend, addr: At, parity: u16) = MbarrierWait { b: parity, c: acquired(acquire) } at addr;
}
