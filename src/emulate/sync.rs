//! Barriers, fences and waits.
use super::barrier::{Mbarrier, Reduced};
use super::check::{Hooks, Sync, Verdict, WordWait};
use super::machine::Machine;
use super::mem::{Denied, Global, Space, denied};
use super::shared::CtaSlot;
use super::uop::{Body, Flow, Step, Uop, fail};
use super::warp::{Wait, Warp, lanes};
use crate::error::{Error, Fault};
use crate::ptx::modifier::{FenceSem, Modifier, ProxyFence, Scope};

/// All lanes of the warp that have not ended must execute it.
pub fn check_converged(w: &Warp, what: &str) -> Result<(), Box<Error>> {
    if w.exec == w.alive {
        return Ok(());
    }
    fail(
        Error::new(
            Fault::Execution,
            format!("{what} in code that not all lanes of the warp execute"),
        )
        .expected(format!("lanes 0x{:08x}", w.alive))
        .got(format!("lanes 0x{:08x}", w.exec)),
    )
}

/// Where the mbarrier at a lane's `a` + `imm` is.
pub fn barrier_of<H: Hooks>(
    w: &Warp,
    m: &mut Machine<'_, H>,
    u: &Uop<H>,
    lane: usize,
) -> Result<(CtaSlot, u32), Box<Error>> {
    m.barrier_at(w.cta, w.read::<u32>(u.a)[lane].wrapping_add(u.imm as u32))
}

/// Reports an event to the checker, and goes on.
#[inline(always)]
pub fn noted<H: Hooks>(w: &Warp, m: &mut Machine<'_, H>, event: Sync) -> Step {
    m.note(w, event)?;
    Ok(Flow::Next)
}

/// What `bar.red` makes of the predicates: bits 1 and 2 of `imm`.
pub const RED_POPC: i32 = 1 << 1;
pub const RED_AND: i32 = 2 << 1;
pub const RED_OR: i32 = 3 << 1;
/// Of negated predicates.
pub const RED_NEGATED: i32 = 8;

/// The result of a reduction into `d`.
fn give_reduced(w: &mut Warp, u: &Uop<impl Hooks>, reduced: Reduced) {
    let all = |holds: bool| if holds { u32::MAX } else { 0 };
    match u.imm & RED_OR {
        RED_POPC => w.write::<u32>(u.d, [reduced.popc; 32]),
        RED_AND => w.write_predicate(u.d, all(reduced.and)),
        RED_OR => w.write_predicate(u.d, all(reduced.or)),
        _ => {}
    }
}

/// `bar.sync` and `bar.red` (`imm` has bit 0) and `bar.arrive` on barrier `a` for `b` threads; `c` is the predicate that is reduced.
pub struct NamedBarrier;
impl<H: Hooks> Body<H> for NamedBarrier {
    #[inline(never)]
    fn run(w: &mut Warp, m: &mut Machine<'_, H>, u: &Uop<H>) -> Step {
        check_converged(w, "a CTA barrier")?;
        let execution = |what: String| Error::new(Fault::Execution, what);
        let (Some(id), Some(threads)) = (w.uniform::<u32>(u.a), w.uniform::<u32>(u.b)) else {
            return fail(execution(
                "a CTA barrier whose id or count differs between lanes".into(),
            ));
        };
        if id > 15 || threads == 0 || !threads.is_multiple_of(32) {
            return fail(
                execution("bar.sync".into())
                    .expected("an id below 16 and a multiple of 32 threads")
                    .got(format!("id {id}, {threads} threads")),
            );
        }
        let waits = u.imm & 1 != 0;
        let me = m.warp_id(w);
        let yes = match u.imm & RED_OR {
            0 => 0,
            _ if u.imm & RED_NEGATED != 0 => !w.predicate(u.c) & w.exec,
            _ => w.predicate(u.c) & w.exec,
        };
        let named = &mut m.cta_mut(w.cta).named[id as usize];
        if let Some(ticket) = w.named_ticket {
            if named.generation > ticket {
                w.named_ticket = None;
                let reduced = named.last;
                give_reduced(w, u, reduced);
                return noted(w, m, Sync::NamedWaited { id });
            }
            named.waiters.push(me);
            w.wait = Wait::Named { id, generation: ticket };
            return Ok(Flow::Block);
        }
        if named.arrived > 0 && named.expected != threads {
            let expected = named.expected;
            return fail(
                execution(format!("barrier {id}: warps disagree on the number of threads"))
                    .expected(expected.to_string())
                    .got(threads.to_string()),
            );
        }
        named.expected = threads;
        named.arrived += 32;
        if u.imm & RED_OR != 0 {
            named.reduced.popc += yes.count_ones();
            named.reduced.and &= yes == w.exec;
            named.reduced.or |= yes != 0;
        }
        let opens = named.arrived == threads;
        let generation = named.generation;
        if opens {
            named.arrived = 0;
            named.generation += 1;
            named.last = std::mem::take(&mut named.reduced);
            let woken = std::mem::take(&mut named.waiters);
            m.ready.extend(woken);
        }
        m.note(w, Sync::NamedArrive { id, opens })?;
        if !waits {
            return Ok(Flow::Next);
        }
        if opens {
            let reduced = m.cta(w.cta).named[id as usize].last;
            give_reduced(w, u, reduced);
            return noted(w, m, Sync::NamedWaited { id });
        }
        m.cta_mut(w.cta).named[id as usize].waiters.push(me);
        w.named_ticket = Some(generation);
        w.wait = Wait::Named { id, generation };
        Ok(Flow::Block)
    }
}

/// Of the cluster's barrier: lanes of a warp come each for itself, without `.aligned`.
pub const APART: i32 = 2;

/// `barrier.cluster.arrive`; `imm` 1: it releases.
pub struct ClusterArrive;
impl<H: Hooks> Body<H> for ClusterArrive {
    #[inline(never)]
    fn run(w: &mut Warp, m: &mut Machine<'_, H>, u: &Uop<H>) -> Step {
        if u.imm & APART == 0 {
            check_converged(w, "barrier.cluster.arrive.aligned")?;
        }
        if w.exec & (w.cluster_arrived | w.cluster_waits) != 0 {
            return fail(Error::new(
                Fault::Execution,
                "barrier.cluster.arrive twice with no wait between",
            ));
        }
        let releases = u.imm & 1 != 0;
        let flow = noted(w, m, Sync::ClusterArrive { releases });
        w.cluster_arrived |= w.exec;
        m.warp_at_cluster(w);
        flow
    }
}

/// `barrier.cluster.wait`.
pub struct ClusterWait;
impl<H: Hooks> Body<H> for ClusterWait {
    #[inline(never)]
    fn run(w: &mut Warp, m: &mut Machine<'_, H>, u: &Uop<H>) -> Step {
        if u.imm & APART == 0 {
            check_converged(w, "barrier.cluster.wait.aligned")?;
        }
        if w.exec & w.cluster_arrived != 0 {
            return fail(
                Error::new(
                    Fault::Execution,
                    "barrier.cluster.wait before all lanes of the warp have arrived",
                )
                .expected(format!("arrivals of lanes 0x{:08x}", w.alive))
                .got(format!("of lanes 0x{:08x}", w.cluster_arrived))
                .remedy("wait behind the branch: here, one arm of it runs after the other"),
            );
        }
        let Some(generation) = w.cluster_ticket.filter(|_| w.exec & !w.cluster_waits == 0) else {
            return fail(Error::new(
                Fault::Execution,
                "barrier.cluster.wait with no arrive before it",
            ));
        };
        let me = m.warp_id(w);
        let cluster = m.cta(w.cta).cluster as usize;
        let barrier = &mut m.clusters[cluster].barrier;
        if barrier.generation > generation {
            w.cluster_waits &= !w.exec;
            w.cluster_ticket = Some(generation).filter(|_| w.cluster_waits != 0);
            return noted(w, m, Sync::ClusterWaited);
        }
        barrier.waiters.push(me);
        w.wait = Wait::Cluster { generation };
        Ok(Flow::Block)
    }
}

/// `fence`; `imm`: semantics (high byte) and scope, by their positions.
pub struct Fence;
impl<H: Hooks> Body<H> for Fence {
    #[inline(always)]
    fn run(w: &mut Warp, m: &mut Machine<'_, H>, u: &Uop<H>) -> Step {
        let sem = FenceSem::ALL[(u.imm >> 8) as usize];
        let scope = Scope::ALL[(u.imm & 255) as usize];
        noted(w, m, Sync::Fence { sem, scope })
    }
}

/// `fence.mbarrier_init`.
pub struct FenceMbarrierInit;
impl<H: Hooks> Body<H> for FenceMbarrierInit {
    #[inline(always)]
    fn run(w: &mut Warp, m: &mut Machine<'_, H>, _: &Uop<H>) -> Step {
        noted(w, m, Sync::FenceMbarrierInit)
    }
}

/// `fence.proxy`; `imm`: its position in the enum.
pub struct FenceProxy;
impl<H: Hooks> Body<H> for FenceProxy {
    #[inline(always)]
    fn run(w: &mut Warp, m: &mut Machine<'_, H>, u: &Uop<H>) -> Step {
        noted(w, m, Sync::FenceProxy(ProxyFence::ALL[u.imm as usize]))
    }
}

/// `mbarrier.init` at `a` + `imm` for `b` arrivals.
pub struct MbarrierInit;
impl<H: Hooks> Body<H> for MbarrierInit {
    #[inline(never)]
    fn run(w: &mut Warp, m: &mut Machine<'_, H>, u: &Uop<H>) -> Step {
        for i in lanes(w.exec) {
            let count = w.read::<u32>(u.b)[i];
            let (slot, offset) = barrier_of(w, m, u, i)?;
            if count == 0 || count > Mbarrier::MAX_COUNT {
                return fail(
                    Error::new(Fault::Execution, "mbarrier.init")
                        .expected(format!("1 to {} arrivals", Mbarrier::MAX_COUNT))
                        .got(count.to_string()),
                );
            }
            let cta = m.cta_mut(slot);
            if cta.barriers.get(&offset).is_some_and(|b| !b.waiters.is_empty()) {
                return fail(Error::new(
                    Fault::Execution,
                    format!(
                        "mbarrier.init of a barrier that warps wait on: {}",
                        m.options.names.mbarrier(offset)
                    ),
                ));
            }
            cta.barriers.insert(offset, Mbarrier::new(count));
            cta.smem.undefine(offset, 8);
            if let Some(recorder) = &mut m.recorder {
                recorder.barrier_starts(slot, offset, count, m.clock);
            }
            m.note(w, Sync::BarrierInit { slot, offset })?;
        }
        Ok(Flow::Next)
    }
}

/// `mbarrier.inval`.
pub struct MbarrierInvalidate;
impl<H: Hooks> Body<H> for MbarrierInvalidate {
    #[inline(never)]
    fn run(w: &mut Warp, m: &mut Machine<'_, H>, u: &Uop<H>) -> Step {
        for i in lanes(w.exec) {
            let (slot, offset) = barrier_of(w, m, u, i)?;
            match m.cta_mut(slot).barriers.remove(&offset) {
                Some(b) if b.waiters.is_empty() => {}
                Some(_) => {
                    return fail(Error::new(
                        Fault::Execution,
                        format!(
                            "mbarrier.inval of a barrier that warps wait on: {}",
                            m.options.names.mbarrier(offset)
                        ),
                    ));
                }
                None => {
                    return fail(Error::new(
                        Fault::Execution,
                        format!("mbarrier.inval of no barrier: {}", m.options.names.mbarrier(offset)),
                    ));
                }
            }
            if let Some(recorder) = &mut m.recorder {
                recorder.barrier_ends(slot, offset);
            }
            m.note(w, Sync::BarrierInvalidate { slot, offset })?;
        }
        Ok(Flow::Next)
    }
}

/// What an arrival does with operand `b`.
pub const ARRIVE: u16 = 0;
pub const ARRIVE_EXPECT: u16 = 1;
pub const EXPECT: u16 = 2;

pub const COMPLETE: u16 = 3;
/// Threads that arrive no more.
pub const DROPS: u16 = 4;
/// An arrival that must not be the last.
pub const NO_COMPLETE: u16 = 8;
/// It releases nothing.
pub const RELAXED: u16 = 16;
/// It releases to the cluster.
pub const WIDE: u16 = 32;
/// No register for the state.
pub const NO_STATE: u16 = u16::MAX;

/// To whom an arrival that is not relaxed releases.
fn released(c: u16) -> Scope {
    if c & WIDE == 0 { Scope::Cta } else { Scope::Cluster }
}

/// The other forms of arrivals. `c`: one of the above, with flags; `d`: where the state goes.
pub struct MbarrierChange;
impl<H: Hooks> Body<H> for MbarrierChange {
    #[inline(never)]
    fn run(w: &mut Warp, m: &mut Machine<'_, H>, u: &Uop<H>) -> Step {
        for i in lanes(w.exec) {
            let value = w.read::<u32>(u.b)[i];
            let (slot, offset) = barrier_of(w, m, u, i)?;
            let what = u.c & 3;
            let (count, bytes) = match what {
                ARRIVE => (value, 0),
                ARRIVE_EXPECT => (1, value),
                _ => (0, value),
            };
            let state = m.cta(slot).barriers.get(&offset).map_or(0, Mbarrier::state);
            if u.c & NO_COMPLETE != 0 && u64::from(count) >= state >> 32 {
                return fail(
                    Error::new(Fault::Execution, "mbarrier.arrive.noComplete")
                        .expected("arrivals that leave others to come in this phase")
                        .got(format!("{count} of {}", state >> 32)),
                );
            }
            let verdict = (|| {
                if what != COMPLETE && what != ARRIVE {
                    m.note(w, Sync::ExpectTx { slot, offset })?;
                }
                if count > 0 {
                    let release = (u.c & RELAXED == 0).then(|| released(u.c));
                    m.note(w, Sync::Arrive { slot, offset, release })?;
                }
                if u.c & DROPS != 0 {
                    let verdict = m.drop_expected(slot, offset, count)?;
                    m.judge(w, verdict)?;
                }
                if what == COMPLETE {
                    m.complete_tx(slot, offset, bytes.into())
                } else {
                    m.arrive(slot, offset, count, bytes.into())
                }
            })();
            verdict.and_then(|verdict| m.judge(w, verdict))?;
            if u.d != NO_STATE {
                w.set_lane::<u64>(u.d, i, state);
            }
        }
        Ok(Flow::Next)
    }
}

/// `mbarrier.arrive` (`b` arrivals), `.arrive.expect_tx` and `.expect_tx` (`b` bytes), by `c`.
pub struct MbarrierArrive;
impl<H: Hooks> Body<H> for MbarrierArrive {
    #[inline(never)]
    fn run(w: &mut Warp, m: &mut Machine<'_, H>, u: &Uop<H>) -> Step {
        let mut told_at = None;
        for i in lanes(w.exec) {
            let value = w.read::<u32>(u.b)[i];
            let (slot, offset) = barrier_of(w, m, u, i)?;
            let (count, bytes) = match u.c & 3 {
                ARRIVE => (value, 0),
                ARRIVE_EXPECT => (1, value),
                _ => (0, value),
            };
            // The checker sees the arrival before it wakes anybody; of lanes that arrive at one barrier together, once.
            let mut verdict = Ok(());
            if told_at != Some((slot, offset)) {
                told_at = Some((slot, offset));
                if u.c != ARRIVE {
                    verdict = m.note(w, Sync::ExpectTx { slot, offset });
                }
                if count > 0 && verdict.is_ok() {
                    verdict = m.note(
                        w,
                        Sync::Arrive {
                            slot,
                            offset,
                            release: Some(released(u.c)),
                        },
                    );
                }
            }
            let arrived = verdict.and_then(|()| m.arrive(slot, offset, count, i64::from(bytes)));
            arrived.and_then(|verdict| m.judge(w, verdict))?;
        }
        Ok(Flow::Next)
    }
}

/// Whether the phase of a lane's barrier is complete; else where the barrier is.
fn phase_done<H: Hooks>(
    w: &Warp,
    m: &mut Machine<'_, H>,
    u: &Uop<H>,
    lane: usize,
) -> Result<Result<(), Wait>, Box<Error>> {
    let parity = w.read::<u32>(u.b)[lane];
    let (slot, offset) = barrier_of(w, m, u, lane)?;
    if slot != w.cta {
        return fail(Error::new(Fault::Execution, "a wait on the mbarrier of another CTA"));
    }
    if parity > 1 {
        return Err(Box::new(
            Error::new(Fault::Execution, "mbarrier wait")
                .expected("parity 0 or 1")
                .got(parity.to_string()),
        ));
    }
    let Some(barrier) = m.cta(slot).barriers.get(&offset) else {
        return Err(Box::new(Error::new(
            Fault::Execution,
            format!(
                "{} of {}: used before init",
                m.options.names.mbarrier(offset),
                m.cta_name(slot)
            ),
        )));
    };
    Ok(if barrier.is_complete(parity) {
        Ok(())
    } else {
        Err(Wait::Mbarrier { slot, offset, parity })
    })
}

/// `waits`: it would not have gone on otherwise.
fn note_waited<H: Hooks>(
    w: &Warp,
    m: &mut Machine<'_, H>,
    u: &Uop<H>,
    mask: u32,
    scope: Option<Scope>,
    waits: bool,
) -> Verdict {
    let mut told_at = None;
    for i in lanes(mask) {
        let address = w.read::<u32>(u.a)[i].wrapping_add(u.imm as u32);
        let parity = w.read::<u32>(u.b)[i];
        if told_at == Some((address, parity)) {
            continue;
        }
        told_at = Some((address, parity));
        if let Some((slot, offset)) = m.locate_shared(w.cta, address) {
            m.note(
                w,
                Sync::Waited {
                    slot,
                    offset,
                    scope,
                    waits: waits.then(|| w.tensor.groups() as u32),
                },
            )?;
        }
    }
    Ok(())
}

/// `mbarrier.test_wait` into predicate `d`.
pub struct MbarrierTest;
impl<H: Hooks> Body<H> for MbarrierTest {
    #[inline(never)]
    fn run(w: &mut Warp, m: &mut Machine<'_, H>, u: &Uop<H>) -> Step {
        let mut done = 0;
        for i in lanes(w.exec) {
            done |= u32::from(phase_done(w, m, u, i)?.is_ok()) << i;
        }
        w.write_predicate(u.d, done);
        note_waited(w, m, u, done, Some(Scope::Cta), false)?;
        Ok(if done == w.exec { Flow::Next } else { Flow::Yield })
    }
}

/// Whether the phase of a state (`c` has bit 0) or of a parity `b` is complete, into predicate `d`. `c` / 2: 0 where nothing is
/// acquired, else the scope's position and 1.
pub struct MbarrierAsk;
impl<H: Hooks> Body<H> for MbarrierAsk {
    #[inline(never)]
    fn run(w: &mut Warp, m: &mut Machine<'_, H>, u: &Uop<H>) -> Step {
        let of_state = u.c & 1 != 0;
        let scope = acquired(u.c >> 1);
        let mut done = 0;
        for i in lanes(w.exec) {
            let (slot, offset) = barrier_of(w, m, u, i)?;
            if slot != w.cta {
                return fail(Error::new(Fault::Execution, "a wait on the mbarrier of another CTA"));
            }
            let Some(barrier) = m.cta(slot).barriers.get(&offset) else {
                let name = format!("{} of {}", m.options.names.mbarrier(offset), m.cta_name(slot));
                return fail(Error::new(Fault::Execution, format!("{name}: used before init")));
            };
            let complete = if of_state {
                let phase = w.read::<u64>(u.b)[i] as u32;
                barrier.phase as u32 != phase
            } else {
                let parity = w.read::<u32>(u.b)[i];
                if parity > 1 {
                    return fail(
                        Error::new(Fault::Execution, "mbarrier wait")
                            .expected("parity 0 or 1")
                            .got(parity.to_string()),
                    );
                }
                barrier.is_complete(parity)
            };
            if !complete {
                continue;
            }
            done |= 1 << i;
            let waited = Sync::Waited {
                slot,
                offset,
                scope,
                waits: None,
            };
            m.note(w, waited)?;
        }
        w.write_predicate(u.d, done);
        Ok(if done == w.exec { Flow::Next } else { Flow::Yield })
    }
}

/// What a wait acquires: a scope's position from 1, 0: nothing.
fn acquired(c: u16) -> Option<Scope> {
    Scope::ALL.get(usize::from(c).wrapping_sub(1)).copied()
}

/// The loop around `mbarrier.try_wait`; `c`: what it [`acquired`]. `aux`: the position of its limit, from 1; 0: none. All
/// executing lanes go on together.
pub struct MbarrierWait;
impl<H: Hooks> Body<H> for MbarrierWait {
    #[inline(never)]
    fn run(w: &mut Warp, m: &mut Machine<'_, H>, u: &Uop<H>) -> Step {
        let one = w.uniform::<u32>(u.a).is_some() && w.uniform::<u32>(u.b).is_some();
        let ask = if one { w.exec & w.exec.wrapping_neg() } else { w.exec };
        for i in lanes(ask) {
            let Err(wait) = phase_done(w, m, u, i)? else { continue };
            let me = begin_wait(w, m, u, wait);
            if let Wait::Mbarrier { slot, offset, .. } = wait {
                let barrier = m.cta_mut(slot).barriers.get_mut(&offset).expect("just seen");
                barrier.waiters.push(me);
            }
            return Ok(Flow::Block);
        }
        m.wait_is_over(w, u.aux);
        note_waited(w, m, u, ask, acquired(u.c), true)?;
        Ok(Flow::Next)
    }
}

/// A warp waits; `aux`: the position of its limit, from 1; 0: none. Its number.
fn begin_wait<H: Hooks>(w: &mut Warp, m: &mut Machine<'_, H>, u: &Uop<H>, wait: Wait) -> u32 {
    let me = m.warp_id(w);
    if let Some(limit) = m.program.timeouts.get((u.aux as usize).wrapping_sub(1)) {
        m.bound_wait(me, u.aux, *limit);
    }
    w.wait = wait;
    me
}

/// The same for a word of global memory.
fn wait_for_memory<H: Hooks>(w: &mut Warp, m: &mut Machine<'_, H>, u: &Uop<H>, wait: Wait) -> Step {
    let me = begin_wait(w, m, u, wait);
    m.memory_waiters.push(me);
    Ok(Flow::Block)
}

/// Waits until the low 16 bits of the word of 64 bits at `a` + `imm` are `b`; `d` is the word, `c` the scope's position.
pub struct WaitForTag;
impl<H: Hooks> Body<H> for WaitForTag {
    #[inline(never)]
    fn run(w: &mut Warp, m: &mut Machine<'_, H>, u: &Uop<H>) -> Step {
        for i in lanes(w.exec & !w.lanes_done) {
            let address = w.read::<u64>(u.a)[i].wrapping_add(u.imm as i64 as u64);
            let tag = w.read::<u32>(u.b)[i];
            let word = Global::read::<8, H>(m, w, address).map(u64::from_le_bytes);
            let word = word.map_err(|why| denied(m, w, why, "wait", "global", i, address, 8))?;
            if word & 0xffff != u64::from(tag) {
                return wait_for_memory(w, m, u, Wait::Tag { address, tag });
            }
            w.lanes_done |= 1 << i;
            w.set_lane::<u64>(u.d, i, word);
            if H::LISTENS {
                let (scope, loc) = (Scope::ALL[usize::from(u.c)], m.here());
                m.note(w, Sync::TagWaited { address, scope, loc })?;
            }
        }
        w.lanes_done = 0;
        m.wait_is_over(w, u.aux);
        Ok(Flow::Next)
    }
}

/// Waits until the word at `a` + `imm` is at least `b`; `c`: 1, and subtracts it, and twice the scope's position. `w.lanes_done`
/// remembers whose turn is over.
pub struct WaitForWord;
impl<H: Hooks> Body<H> for WaitForWord {
    #[inline(never)]
    fn run(w: &mut Warp, m: &mut Machine<'_, H>, u: &Uop<H>) -> Step {
        for i in lanes(w.exec & !w.lanes_done) {
            let address = w.read::<u64>(u.a)[i].wrapping_add(u.imm as i64 as u64);
            let value = w.read::<u32>(u.b)[i];
            let mut held = 0;
            let mut attempt = || -> Result<bool, Denied> {
                let word = u32::from_le_bytes(Global::read::<4, H>(m, w, address)?);
                held = word;
                if word < value {
                    return Ok(false);
                }
                if u.c & 1 != 0 {
                    Global::write::<4, H>(m, w, address, (word - value).to_le_bytes())?;
                }
                Ok(true)
            };
            if !attempt().map_err(|why| denied(m, w, why, "wait", "global", i, address, 4))? {
                return wait_for_memory(w, m, u, Wait::Global { address, value });
            }
            w.lanes_done |= 1 << i;
            if H::LISTENS {
                let wait = WordWait {
                    scope: Scope::ALL[usize::from(u.c >> 1)],
                    takes: u.c & 1 != 0,
                    held,
                    value,
                };
                let loc = m.here();
                m.note(w, Sync::WordWaited { address, wait, loc })?;
            }
        }
        w.lanes_done = 0;
        m.wait_is_over(w, u.aux);
        Ok(Flow::Next)
    }
}

/// `setmaxnreg` to `imm` registers per thread.
pub struct SetRegisters;
impl<H: Hooks> Body<H> for SetRegisters {
    #[inline(never)]
    fn run(w: &mut Warp, m: &mut Machine<'_, H>, u: &Uop<H>) -> Step {
        check_converged(w, "setmaxnreg")?;
        let wanted = u.imm as u32;
        let me = m.warp_id(w);
        let cta = m.cta_mut(w.cta);
        if wanted <= w.held_registers {
            cta.free_registers += w.held_registers - wanted;
            w.held_registers = wanted;
            let woken = std::mem::take(&mut cta.register_waiters);
            m.ready.extend(woken);
            return Ok(Flow::Next);
        }
        let more = wanted - w.held_registers;
        if cta.free_registers < more {
            cta.register_waiters.push(me);
            w.wait = Wait::Registers { wanted };
            return Ok(Flow::Block);
        }
        cta.free_registers -= more;
        w.held_registers = wanted;
        Ok(Flow::Next)
    }
}
