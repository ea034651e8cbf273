//! Barriers, fences, mbarriers, and waits for words of memory.
use super::Hooks;
use super::decoder::{At, Decoder, NONE};
use crate::emulate::sync::{self, *};
use crate::emulate::tensor_maps::{FenceMapAcquire, FenceMapRelease, ReplaceMapAddress};
use crate::emulate::uop::Body;
use crate::ptx::modifier::{MbarrierAsk, *};

/// The position of a scope, from 1; 0: nothing.
fn position(scope: Option<Scope>) -> u16 {
    scope.map_or(0, |scope| scope as u16 + 1)
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
    pub fn bar_sync(&mut self, id: u16, threads: u16) {
        self.emit::<NamedBarrier>(NONE.a(id).b(threads).imm(1));
    }
    pub fn bar_arrive(&mut self, id: u16, threads: u16) {
        self.emit::<NamedBarrier>(NONE.a(id).b(threads));
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
    fn arrive_at_cluster(&mut self, sem: ClusterArriveSem, flags: i32) {
        self.emit::<ClusterArrive>(NONE.imm(i32::from(sem == ClusterArriveSem::Release) | flags));
    }
    pub fn cluster_arrive(&mut self, sem: ClusterArriveSem) {
        self.arrive_at_cluster(sem, 0);
    }
    pub fn cluster_arrive_apart(&mut self, sem: ClusterArriveSem) {
        self.arrive_at_cluster(sem, APART);
    }
    pub fn cluster_wait(&mut self) {
        self.emit::<ClusterWait>(NONE);
    }
    pub fn cluster_wait_apart(&mut self) {
        self.emit::<ClusterWait>(NONE.imm(APART));
    }
    pub fn grid_dep(&mut self, _: GridDep) {
        self.nothing();
    }
}

/// Fences, and tensor maps that are written.
impl<H: Hooks> Decoder<'_, H> {
    pub fn fence(&mut self, sem: FenceSem, scope: Scope) {
        self.emit::<Fence>(NONE.imm((sem as i32) << 8 | scope as i32));
    }
    pub fn fence_shared(&mut self, sem: SharedFence) {
        // What it leaves out of global memory is not told apart.
        let sem = match sem {
            SharedFence::Release => FenceSem::Release,
            SharedFence::Acquire => FenceSem::Acquire,
        };
        self.fence(sem, Scope::Cluster);
    }
    pub fn fence_proxy(&mut self, proxy: ProxyFence) {
        self.emit::<FenceProxy>(NONE.imm(proxy as i32));
    }
    pub fn fence_mbarrier_init(&mut self) {
        self.emit::<FenceMbarrierInit>(NONE);
    }
    pub fn fence_map_release(&mut self, scope: Scope) {
        self.emit::<FenceMapRelease>(NONE.imm(scope as i32));
    }
    pub fn fence_map_acquire(&mut self, scope: Scope, addr: At) {
        self.emit::<FenceMapAcquire>(NONE.at(addr).c(scope as u16));
    }
    pub fn replace_map_address(&mut self, addr: At, new: u16) {
        self.emit::<ReplaceMapAddress>(NONE.at(addr).b(new));
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
    pub fn mbarrier_init(&mut self, addr: At, count: u16) {
        self.mbarrier::<MbarrierInit>(addr, count, 0);
    }
    pub fn mbarrier_inval(&mut self, addr: At) {
        let zero = self.constant(0, false);
        self.mbarrier::<MbarrierInvalidate>(addr, zero, 0);
    }
    pub fn mbarrier_arrive(&mut self, addr: At, count: u16) {
        self.mbarrier::<MbarrierArrive>(addr, count, ARRIVE);
    }
    pub fn mbarrier_arrive_cluster(&mut self, release: Release, addr: At, count: u16) {
        let wide = match release {
            Release::Cta => 0,
            Release::Cluster => WIDE,
        };
        self.mbarrier::<MbarrierArrive>(addr, count, ARRIVE | wide);
    }
    pub fn mbarrier_arrive_expect_tx(&mut self, addr: At, bytes: u16) {
        self.mbarrier::<MbarrierArrive>(addr, bytes, ARRIVE_EXPECT);
    }
    pub fn mbarrier_arrive_expect_tx_cluster(&mut self, addr: At, bytes: u16) {
        self.mbarrier::<MbarrierArrive>(addr, bytes, ARRIVE_EXPECT | WIDE);
    }
    pub fn mbarrier_expect_tx(&mut self, addr: At, bytes: u16) {
        self.mbarrier::<MbarrierArrive>(addr, bytes, EXPECT);
    }
    pub fn mbarrier_test(&mut self, d: u16, addr: At, parity: u16) {
        self.emit::<MbarrierTest>(NONE.at(addr).d(d).b(parity));
    }

    fn mbarrier_change(&mut self, c: u16, state: u16, addr: At, value: u16) {
        self.emit::<MbarrierChange>(NONE.at(addr).d(state).b(value).c(c));
    }
    pub fn mbarrier_count(&mut self, op: MbarrierOp, sem: ArriveSem, _: BarrierSpace, addr: At, count: u16) {
        self.mbarrier_change(ARRIVE | arrival(op, sem), NO_STATE, addr, count);
    }
    pub fn mbarrier_one(&mut self, op: MbarrierOp, sem: ArriveSem, _: BarrierSpace, addr: At) {
        let one = self.one();
        self.mbarrier_change(ARRIVE | arrival(op, sem), NO_STATE, addr, one);
    }
    pub fn mbarrier_one_expect_tx(&mut self, op: MbarrierOp, sem: ArriveSem, _: BarrierSpace, addr: At, bytes: u16) {
        self.mbarrier_change(ARRIVE_EXPECT | arrival(op, sem), NO_STATE, addr, bytes);
    }
    pub fn mbarrier_count_state(&mut self, op: MbarrierOp, sem: ArriveSem, state: u16, addr: At, count: u16) {
        self.mbarrier_change(ARRIVE | arrival(op, sem), state, addr, count);
    }
    pub fn mbarrier_one_state(&mut self, op: MbarrierOp, sem: ArriveSem, state: u16, addr: At) {
        let one = self.one();
        self.mbarrier_change(ARRIVE | arrival(op, sem), state, addr, one);
    }
    pub fn mbarrier_expect_tx_state(&mut self, op: MbarrierOp, sem: ArriveSem, state: u16, addr: At, bytes: u16) {
        self.mbarrier_change(ARRIVE_EXPECT | arrival(op, sem), state, addr, bytes);
    }
    pub fn mbarrier_no_complete(&mut self, op: MbarrierOp, sem: ArriveSem, state: u16, addr: At, count: u16) {
        self.mbarrier_change(ARRIVE | NO_COMPLETE | arrival(op, sem), state, addr, count);
    }
    pub fn mbarrier_tx(&mut self, op: TxOp, _: TxScope, _: BarrierSpace, addr: At, bytes: u16) {
        let what = match op {
            TxOp::Expect => EXPECT,
            TxOp::Complete => COMPLETE,
        };
        self.mbarrier_change(what, NO_STATE, addr, bytes);
    }

    /// Of the phase of a parity, or of a state.
    fn ask(&mut self, sem: AskSem, d: u16, addr: At, phase: u16, of_state: bool) {
        let scope = position(match sem {
            AskSem::Default | AskSem::AcquireCta => Some(Scope::Cta),
            AskSem::AcquireCluster => Some(Scope::Cluster),
            AskSem::RelaxedCta | AskSem::RelaxedCluster => None,
        });
        let c = u16::from(of_state) | scope << 1;
        self.emit::<sync::MbarrierAsk>(NONE.at(addr).d(d).b(phase).c(c));
    }
    pub fn mbarrier_ask(&mut self, _: MbarrierAsk, sem: AskSem, d: u16, addr: At, state: u16) {
        self.ask(sem, d, addr, state, true);
    }
    pub fn mbarrier_ask_parity(&mut self, _: MbarrierAsk, sem: AskSem, d: u16, addr: At, parity: u16) {
        self.ask(sem, d, addr, parity, false);
    }
    pub fn mbarrier_try_for(&mut self, sem: AskSem, d: u16, addr: At, state: u16, _: u16) {
        self.ask(sem, d, addr, state, true);
    }
    pub fn mbarrier_try_parity_for(&mut self, sem: AskSem, d: u16, addr: At, parity: u16, _: u16) {
        self.ask(sem, d, addr, parity, false);
    }
}

/// Waits.
impl<H: Hooks> Decoder<'_, H> {
    pub fn mbarrier_wait(&mut self, acquire: Acquire, _: Suspend, addr: At, parity: u16) {
        self.mbarrier::<MbarrierWait>(addr, parity, acquired(acquire));
    }
    pub fn mbarrier_wait_for(&mut self, acquire: Acquire, ok: u16, addr: At, parity: u16, _: i64, ns: i64) {
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
