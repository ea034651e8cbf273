//! What a deadlocked machine looks like.
use super::check::Hooks;
use super::machine::Machine;
use super::warp::{Wait, Warp};
use crate::error::{Error, Fault};
use bitflags::bitflags;
use std::fmt::Write;

/// CTAs that are described; the others are counted.
const CTAS: usize = 8;

/// No warp can run and nothing is in flight that would wake one.
pub fn deadlock<H: Hooks>(m: &Machine<'_, H>) -> Error {
    let mut text = String::new();
    let mut described = 0;
    let mut first = None;
    let mut causes = Causes::empty();
    for (slot, cta) in m.ctas.iter().enumerate() {
        let warps: Vec<&Warp> = m
            .warps
            .iter()
            .flatten()
            .filter(|w| w.cta.0 as usize == slot && w.alive != 0 && cta.live_warps > 0 && w.wait != Wait::No)
            .map(|w| &**w)
            .collect();
        if warps.is_empty() {
            continue;
        }
        causes.extend(warps.iter().map(|w| causes_of(m, w.wait)));
        described += 1;
        if described > CTAS {
            continue;
        }
        let _ = writeln!(text, "{}:", m.cta_name(warps[0].cta));
        // Warps that wait for the same at the same place are one line.
        let mut groups: Vec<(Wait, u32, Vec<u32>)> = vec![];
        for w in warps {
            first.get_or_insert(m.program.origins[w.pc as usize].loc);
            match groups.iter_mut().find(|(wait, pc, _)| *wait == w.wait && *pc == w.pc) {
                Some((_, _, list)) => list.push(w.index),
                None => groups.push((w.wait, w.pc, vec![w.index])),
            }
        }
        for (wait, pc, list) in groups {
            let origin = m.program.origins[pc as usize];
            let list: Vec<String> = list.iter().map(u32::to_string).collect();
            let _ = writeln!(
                text,
                "  warps {} at {} ({}): {}",
                list.join(", "),
                origin.loc,
                origin.name(),
                wait_name(m, wait)
            );
        }
        let mut barriers: Vec<_> = cta.barriers.iter().collect();
        barriers.sort_by_key(|(offset, _)| **offset);
        for (offset, b) in barriers {
            let _ = writeln!(
                text,
                "  {}: phase {} (parity {}), {} to come, {} bytes to come",
                m.options.names.mbarrier(*offset),
                b.phase,
                b.phase & 1,
                m.options.names.arrivals(*offset, b.pending, b.expected),
                b.tx
            );
        }
        for (id, named) in cta.named.iter().enumerate().filter(|(_, n)| n.arrived > 0) {
            let _ = writeln!(
                text,
                "  barrier {id}: {} of {} threads have arrived",
                named.arrived, named.expected
            );
        }
        let cluster = &m.clusters[cta.cluster as usize];
        if cluster.barrier.arrived > 0 {
            let barrier = &cluster.barrier;
            let _ = writeln!(
                text,
                "  cluster barrier: {} of {} warps have arrived",
                barrier.arrived, barrier.live
            );
        }
        if m.program.reallocates {
            let _ = writeln!(text, "  registers: {} of a warp's threads are free", cta.free_registers);
        }
    }
    if described > CTAS {
        let _ = writeln!(text, "and {} more CTAs", described - CTAS);
    }
    if m.clusters_to_come > 0 {
        let launch = &m.program.launch;
        let (size, devices) = (
            u64::from(m.program.cluster_size()),
            u64::from(m.ctas.last().map_or(0, |cta| cta.device) + 1),
        );
        let all = launch.grid.iter().map(|n| u64::from(*n)).product::<u64>() * devices;
        let _ = write!(
            text,
            "{} of {all} blocks have not begun: {} fit at once",
            m.clusters_to_come * size,
            m.ctas.len()
        );
        causes |= Causes::ROOM;
    }
    let said = SAYINGS.iter().filter(|saying| causes.contains(saying.0));
    let (expected, remedy): (Vec<&str>, Vec<&str>) = said.map(|(_, expected, remedy)| (*expected, *remedy)).unzip();
    let mut error = Error::new(
        Fault::Timeout,
        "deadlock: every warp waits, and nothing is in flight that could wake one",
    )
    .expected(expected.join("; "))
    .got(text.trim_end())
    .remedy(remedy.join("; "));
    error.loc = first;
    error
}

bitflags! {
    /// What warps wait for in a deadlock.
    #[derive(Clone, Copy)]
    struct Causes: u16 {
        const PHASE = 1;
        /// One of whose copies more or fewer bytes come than are expected.
        const BYTES = 1 << 1;
        const NAMED = 1 << 2;
        const CLUSTER = 1 << 3;
        const SIGNAL = 1 << 4;
        const POLL = 1 << 5;
        const REGISTERS = 1 << 6;
        /// Blocks have not begun.
        const ROOM = 1 << 7;
        const PRODUCTS = 1 << 8;
        const COLUMNS = 1 << 9;
    }
}

/// What would have ended a wait, and what to look for.
const SAYINGS: [(Causes, &str, &str); 10] = [
    (
        Causes::ROOM,
        "blocks to wait only for blocks that have begun: others begin when one ends",
        "launch no more blocks than fit at once (a grid of `jax.devices()[0].core_count` blocks, each of which takes several tiles in a loop)",
    ),
    (
        Causes::PHASE,
        "every phase that is waited for to get its arrivals (num_arrivals) and the bytes of its copies",
        "count the barrier_arrive calls and copies of each phase against num_arrivals, and look for a wait that comes first",
    ),
    (
        Causes::BYTES,
        "as many bytes as are expected",
        "expect the bytes of all copies to a barrier for which `expect_bytes` is called: they expect none themselves then",
    ),
    (
        Causes::CLUSTER,
        "every warp of every block at the cluster's barrier",
        "look for a block that does not reach it",
    ),
    (
        Causes::SIGNAL,
        "a signal for each wait of a semaphore",
        "count the signals (`pl.semaphore_signal`) against what is waited for, and look for a wait that comes first",
    ),
    (
        Causes::POLL,
        "somebody to store what a loop looks for",
        "look for the store or atomic that would end the loop, and for a wait of those who should execute it",
    ),
    (
        Causes::REGISTERS,
        "registers to be free for those who ask for more (`set_max_registers`)",
        "let other warpgroups give theirs back first: all of them together have those that the kernel was launched with",
    ),
    (
        Causes::PRODUCTS,
        "all four warps of a warpgroup to issue each wgmma",
        "issue it outside of branches that some of its warps do not take",
    ),
    (
        Causes::COLUMNS,
        "columns of tensor memory to be free in one aligned run, of the 512 that there are",
        "allocate less, or let another warp give columns back (tcgen05.dealloc) first",
    ),
    (
        Causes::NAMED,
        "as many threads at a named barrier as its count says",
        "look for warps that do not reach it: `num_threads` counts all that arrive or wait, 128 a warpgroup",
    ),
];

fn causes_of<H: Hooks>(m: &Machine<'_, H>, wait: Wait) -> Causes {
    match wait {
        Wait::No => Causes::empty(),
        Wait::Mbarrier { slot, offset, .. } => match m.cta(slot).barriers.get(&offset) {
            Some(barrier) if barrier.tx != 0 => Causes::PHASE | Causes::BYTES,
            _ => Causes::PHASE,
        },
        Wait::Named { .. } => Causes::NAMED,
        Wait::Cluster { .. } => Causes::CLUSTER,
        Wait::Products { .. } => Causes::PRODUCTS,
        Wait::Global { .. } | Wait::Tag { .. } => Causes::SIGNAL,
        Wait::Registers { .. } => Causes::REGISTERS,
        Wait::Columns { .. } => Causes::COLUMNS,
        Wait::Poll => Causes::POLL,
    }
}

/// A wait has outlasted `wait_timeout_ns`, while other warps run.
pub fn overdue<H: Hooks>(m: &Machine<'_, H>, warp: u32) -> Error {
    let w = m.warps[warp as usize]
        .as_ref()
        .expect("a warp that waits is in its place");
    let error = Error::new(
        Fault::Timeout,
        format!(
            "a wait lasted longer than wait_timeout_ns ({}, warp {})",
            m.cta_name(w.cta),
            w.index
        ),
    );
    let barrier = match w.wait {
        Wait::Mbarrier { slot, offset, .. } => m.cta(slot).barriers.get(&offset).map(|it| (offset, it)),
        Wait::No
        | Wait::Named { .. }
        | Wait::Cluster { .. }
        | Wait::Products { .. }
        | Wait::Global { .. }
        | Wait::Tag { .. }
        | Wait::Registers { .. }
        | Wait::Columns { .. }
        | Wait::Poll => None,
    };
    let error = match barrier {
        Some((offset, barrier)) => error.got(format!(
            "{}; {} and {} bytes are still to come",
            wait_name(m, w.wait),
            m.options.names.arrivals(offset, barrier.pending, barrier.expected),
            barrier.tx
        )),
        None => error.got(wait_name(m, w.wait)),
    };
    error
        .expected("what it waits for to happen in time (an instruction of each warp counts as a nanosecond)")
        .remedy("look for the arrival, the copy or the signal that is missing, or for a loop that keeps another warp from it")
        .at(m.program.origins[w.pc as usize].loc)
}

fn wait_name<H: Hooks>(m: &Machine<'_, H>, wait: Wait) -> String {
    let names = &m.options.names;
    match wait {
        Wait::No => "runs".into(),
        Wait::Mbarrier { offset, parity, .. } => {
            format!(
                "wait for the phase of parity {parity} of the {}",
                names.mbarrier(offset)
            )
        }
        Wait::Named { id, .. } => format!("wait at barrier {id}"),
        Wait::Cluster { .. } => "wait at the cluster barrier".into(),
        Wait::Products { .. } => "wait for a wgmma that other warps of their warpgroup have not issued".into(),
        Wait::Global { address, value } => {
            let word = m.memory.describe_word(address);
            let signalled = m
                .hooks
                .last_signal(address)
                .map_or(String::new(), |by| format!("; {by}"));
            format!("wait for {word} to be at least {value}{signalled}")
        }
        Wait::Tag { address, tag } => {
            format!("wait for {} to have the tag {tag}", m.memory.describe_word(address))
        }
        Wait::Registers { wanted } => format!("wait for {wanted} registers per thread"),
        Wait::Columns { columns } => format!("wait for {columns} columns of tensor memory"),
        Wait::Poll => "poll".into(),
    }
}
