//! Where values are live, as sorted lists of ranges over program points.
//!
//! Every op has a point where it reads (even) and one where it writes (odd); an op with tied registers is preceded by
//! the copy of its inputs to its outputs. Values may be defined more than once (duplicated loop conditions, copies).
use super::linearize::*;
use crate::error::Loc;
use crate::ptx::inst::{Effects, Inst};
use crate::ptx::operand::{Class, Field, Src};
use crate::ptx::ssa::{Ssa, Value};
use cranelift_entity::{EntityRef, SecondaryMap};
use smallvec::SmallVec;

/// Half-open, sorted, disjoint, not touching. Most values have one.
pub(super) type Ranges = SmallVec<[(u32, u32); 2]>;

pub(super) struct Liveness {
    pub ranges: SecondaryMap<Value, Ranges>,
}

/// One step of an op, as liveness sees it: reads at `point`, writes at `point + 1`.
pub(super) enum Step<'a> {
    Copies(&'a [(Value, Src<Value>)]),
    Tied(&'a Inst<Value>),
    /// With the guard, and the registers that asynchronous readers give back here.
    Inst(&'a Inst<Value>, Option<Value>, &'a [Value]),
}

impl Step<'_> {
    pub fn for_each_def(&self, mut f: impl FnMut(Value)) {
        match self {
            Step::Copies(pairs) => pairs.iter().for_each(|(d, _)| f(*d)),
            Step::Tied(inst) => inst.tied().into_iter().flat_map(|t| &t.output).for_each(|v| f(*v)),
            Step::Inst(inst, ..) => inst.for_each_def(|v, _| f(v)),
        }
    }
    /// `constant` operands of copies and tied inputs are written, not read.
    pub fn for_each_use(&self, constants: &SecondaryMap<Value, Option<u64>>, mut f: impl FnMut(Value)) {
        match self {
            Step::Copies(pairs) => pairs.iter().filter_map(|(_, s)| s.reg()).for_each(f),
            Step::Tied(inst) => inst
                .tied()
                .into_iter()
                .flat_map(|t| &t.input)
                .filter(|v| constants[**v].is_none())
                .for_each(|v| f(*v)),
            Step::Inst(inst, guard, settled) => {
                settled.iter().for_each(|v| f(*v));
                guard.iter().for_each(|v| f(*v));
                match inst.tied() {
                    None => inst.for_each_use(|v, _| f(v)),
                    // The inputs were copied: the outputs are read and written in place.
                    Some(tied) => {
                        tied.output.iter().for_each(|v| f(*v));
                        inst.for_each_untied_use(|v, _| f(v));
                    }
                }
            }
        }
    }
}

/// The steps of an op in order.
pub(super) fn steps<'a>(op: &'a LOp<'a>) -> impl DoubleEndedIterator<Item = Step<'a>> {
    let (first, second) = match op {
        LOp::Copies { pairs, .. } => (None, Step::Copies(pairs)),
        // What waits is read by the copies that follow, or dead.
        LOp::Settle { .. } => (None, Step::Copies(&[])),
        LOp::Inst {
            guard, inst, settled, ..
        } => (
            inst.tied().map(|_| Step::Tied(inst)),
            Step::Inst(inst, guard.map(|(p, _)| p), settled),
        ),
    };
    first.into_iter().chain(Some(second))
}

fn successors(t: &LTerm) -> ([usize; 2], usize) {
    match t {
        LTerm::Branch(to) => ([*to, 0], 1),
        LTerm::Cond { then, otherwise, .. } => ([*then, *otherwise], 2),
        LTerm::Return => ([0, 0], 0),
    }
}

/// An error where more than `most` words are live as a block begins.
pub(super) fn compute(
    ssa: &Ssa,
    linear: &Linear<'_>,
    constants: &SecondaryMap<Value, Option<u64>>,
    most: u32,
) -> Result<Liveness, Peak> {
    const NONE: u32 = u32::MAX;
    // Values that are live into some block get a number.
    let mut defined_in = vec![NONE; ssa.values.len()];
    let mut number: SecondaryMap<Value, u32> = SecondaryMap::with_default(NONE);
    let mut global: Vec<Value> = vec![];
    let mut exposed: Vec<Vec<u32>> = vec![];
    for (b, block) in linear.blocks.iter().enumerate() {
        let mut here: Vec<u32> = vec![];
        let mut used = |v: Value, defined_in: &[u32]| {
            if defined_in[v.index()] != b as u32 {
                if number[v] == NONE {
                    number[v] = global.len() as u32;
                    global.push(v);
                }
                here.push(number[v]);
            }
        };
        for op in &block.ops {
            for step in steps(op) {
                step.for_each_use(constants, |v| used(v, &defined_in));
                step.for_each_def(|v| defined_in[v.index()] = b as u32);
            }
        }
        if let LTerm::Cond { pred, .. } = block.terminator {
            used(pred, &defined_in);
        }
        exposed.push(here);
    }
    let words: Vec<u32> = global.iter().map(|v| words(ssa, *v)).collect();
    let live_in = live_in(linear, &number, &words, exposed, most).map_err(|(words, live)| {
        let live: Vec<bool> = live.iter().fold(vec![false; ssa.values.len()], |mut live, i| {
            live[global[*i as usize].index()] = true;
            live
        });
        Peak {
            words,
            loc: maker_of_most(ssa, linear, |v| live[v.index()]),
        }
    })?;
    // Points, forwards; then ranges, backwards.
    let mut start = vec![0u32; linear.blocks.len() + 1];
    for (b, block) in linear.blocks.iter().enumerate() {
        let steps: usize = block.ops.iter().map(|op| steps(op).count()).sum();
        // One more step for the terminator.
        start[b + 1] = start[b] + 2 * (steps as u32 + 1);
    }
    let mut ranges: SecondaryMap<Value, Ranges> = SecondaryMap::with_capacity(ssa.values.len());
    let mut live_until = vec![NONE; ssa.values.len()];
    // Ranges come out in descending order; a block's touches its successor's in printing order.
    let close = |ranges: &mut SecondaryMap<Value, Ranges>, v: Value, from: u32, to: u32| match ranges[v].last_mut() {
        Some(last) if last.0 == to => last.0 = from,
        _ => ranges[v].push((from, to)),
    };
    for (b, block) in linear.blocks.iter().enumerate().rev() {
        let end = start[b + 1];
        let mut live: Vec<Value> = vec![];
        let (next, count) = successors(&block.terminator);
        for &s in &next[..count] {
            live_in[s].iter().for_each(|i| {
                let v = global[*i as usize];
                if live_until[v.index()] == NONE {
                    live_until[v.index()] = end;
                    live.push(v);
                }
            });
        }
        let mut point = end - 2;
        if let LTerm::Cond { pred, .. } = block.terminator
            && live_until[pred.index()] == NONE
        {
            live_until[pred.index()] = point + 1;
            live.push(pred);
        }
        for op in block.ops.iter().rev() {
            for step in steps(op).rev() {
                point -= 2;
                step.for_each_def(|v| {
                    let until = std::mem::replace(&mut live_until[v.index()], NONE);
                    let until = if until == NONE { point + 2 } else { until };
                    close(&mut ranges, v, point + 1, until);
                });
                step.for_each_use(constants, |v| {
                    if live_until[v.index()] == NONE {
                        live_until[v.index()] = point + 1;
                        live.push(v);
                    }
                });
            }
        }
        assert_eq!(point, start[b]);
        for v in live {
            let until = std::mem::replace(&mut live_until[v.index()], NONE);
            if until != NONE {
                assert!(live_in[b].binary_search(&number[v]).is_ok());
                close(&mut ranges, v, start[b], until);
            }
        }
    }
    for v in ssa.values.keys() {
        ranges[v].reverse();
    }
    Ok(Liveness { ranges })
}

/// The values that are live into each block, in the order of their numbers. For every value, from the blocks that read it
/// before they write it, back to those that write it: as much work as there are values in the sets. An error where they are more than `most` words:
/// those of one block.
fn live_in(
    linear: &Linear<'_>,
    number: &SecondaryMap<Value, u32>,
    words: &[u32],
    exposed: Vec<Vec<u32>>,
    most: u32,
) -> Result<Vec<Vec<u32>>, (u32, Vec<u32>)> {
    const NONE: u32 = u32::MAX;
    let n = linear.blocks.len();
    let mut predecessors: Vec<Vec<u32>> = vec![vec![]; n];
    let mut writers: Vec<Vec<u32>> = vec![vec![]; words.len()];
    let mut readers: Vec<Vec<u32>> = vec![vec![]; words.len()];
    let mut live = vec![0u32; n];
    for (b, block) in linear.blocks.iter().enumerate() {
        let b = b as u32;
        let (next, count) = successors(&block.terminator);
        next[..count].iter().for_each(|s| predecessors[*s].push(b));
        for step in block.ops.iter().flat_map(steps) {
            step.for_each_def(|v| {
                if number[v] != NONE && writers[number[v] as usize].last() != Some(&b) {
                    writers[number[v] as usize].push(b);
                }
            });
        }
    }
    for (b, values) in exposed.into_iter().enumerate() {
        values.iter().for_each(|v| readers[*v as usize].push(b as u32));
    }
    let mut sets: Vec<Vec<u32>> = vec![vec![]; n];
    let mut writes = vec![NONE; n];
    for (v, mut work) in (0u32..).zip(readers) {
        writers[v as usize].iter().for_each(|b| writes[*b as usize] = v);
        while let Some(b) = work.pop() {
            let set = &mut sets[b as usize];
            if set.last() == Some(&v) {
                continue;
            }
            set.push(v);
            live[b as usize] = live[b as usize].saturating_add(words[v as usize]);
            if live[b as usize] > most {
                return Err((live[b as usize], std::mem::take(set)));
            }
            work.extend(predecessors[b as usize].iter().filter(|p| writes[**p as usize] != v));
        }
    }
    Ok(sets)
}

/// Two values of one class are never live together.
pub(super) fn disjoint(a: &Ranges, b: &Ranges) -> bool {
    let (short, long) = if a.len() <= b.len() { (a, b) } else { (b, a) };
    short.iter().all(|(from, to)| {
        // The first range of the long list that ends after `from`.
        let at = long.partition_point(|(_, end)| end <= from);
        long.get(at).is_none_or(|(start, _)| start >= to)
    })
}

/// The union of two disjoint lists.
pub(super) fn union(a: &mut Ranges, b: &Ranges) {
    // One behind the other, as with most copies.
    if let (Some(last), Some(first)) = (a.last_mut(), b.first())
        && last.1 <= first.0
    {
        let touching = last.1 == first.0;
        if touching {
            last.1 = first.1;
        }
        a.extend_from_slice(&b[usize::from(touching)..]);
        return;
    }
    let mut out: Ranges = SmallVec::with_capacity(a.len() + b.len());
    let (mut i, mut j) = (0, 0);
    while i < a.len() || j < b.len() {
        let next = if j == b.len() || (i < a.len() && a[i].0 < b[j].0) {
            i += 1;
            a[i - 1]
        } else {
            j += 1;
            b[j - 1]
        };
        match out.last_mut() {
            Some(last) if last.1 == next.0 => last.1 = next.1,
            _ => out.push(next),
        }
    }
    *a = out;
}

/// Where most values are live.
#[derive(Clone, Copy, Debug)]
pub struct Peak {
    /// 32-bit registers a thread: a lower bound of what holds them all, registers and spills.
    pub words: u32,
    /// The op that made most of them.
    pub loc: Loc,
}

/// Where most words are live.
pub(super) fn peak(ssa: &Ssa, linear: &Linear<'_>, live: &Liveness) -> Peak {
    let words = |v: Value| i64::from(words(ssa, v));
    let ends = ssa.values.keys().flat_map(|v| live.ranges[v].last().map(|(_, to)| *to));
    let mut changes = vec![0i64; ends.max().unwrap_or(0) as usize + 1];
    for v in ssa.values.keys() {
        for (from, to) in &live.ranges[v] {
            changes[*from as usize] += words(v);
            changes[*to as usize] -= words(v);
        }
    }
    let (mut now, mut most, mut at) = (0, 0, 0);
    for (point, change) in changes.into_iter().enumerate() {
        now += change;
        if now > most {
            (most, at) = (now, point as u32);
        }
    }
    let is_live = |v: Value| live.ranges[v].iter().any(|(from, to)| (*from..*to).contains(&at));
    Peak {
        words: most as u32,
        loc: maker_of_most(ssa, linear, is_live),
    }
}

/// Predicates do not count.
fn words(ssa: &Ssa, v: Value) -> u32 {
    match ssa.values[v].class {
        Class::Pred => 0,
        Class::B16 | Class::B32 => 1,
        Class::B64 => 2,
    }
}

/// Where most words are made of the values that are live somewhere.
fn maker_of_most(ssa: &Ssa, linear: &Linear<'_>, is_live: impl Fn(Value) -> bool) -> Loc {
    let mut makers: std::collections::BTreeMap<Loc, u64> = Default::default();
    for op in linear.blocks.iter().flat_map(|b| &b.ops) {
        let loc = op.loc();
        for step in steps(op) {
            step.for_each_def(|v| {
                if is_live(v) {
                    *makers.entry(loc).or_default() += u64::from(words(ssa, v));
                }
            });
        }
    }
    let most = makers.into_iter().max_by_key(|(_, words)| *words);
    most.map_or(Loc::CALL_SITE, |(loc, _)| loc)
}

/// Marks each wait with the registers that the wgmmas it covers may read until then (fragments of A): they stay live
/// from the issue to the wait.
pub(super) fn mark_asynchronous_reads(linear: &mut Linear<'_>) {
    let mut marks: Vec<(usize, usize, Vec<Value>)> = vec![];
    for b in 0..linear.blocks.len() {
        for (i, op) in linear.blocks[b].ops.iter().enumerate() {
            let LOp::Inst { inst, .. } = op else { continue };
            if !inst.effects().contains(Effects::ASYNC_REGISTERS) {
                continue;
            }
            let mut read = vec![];
            for field in inst.fields() {
                if let Field::Srcs(list, _) = field {
                    read.extend(list.iter().filter_map(|s| s.reg()));
                }
            }
            if !read.is_empty() {
                covering_waits(linear, (b, i + 1), &read, &mut marks);
            }
        }
    }
    for (b, i, values) in marks {
        if let LOp::Inst { settled, .. } = &mut linear.blocks[b].ops[i] {
            settled.extend(values);
        }
    }
}

/// Walks on from an issue to the wait that covers it, on every path.
fn covering_waits(
    linear: &Linear<'_>,
    from: (usize, usize),
    read: &[Value],
    marks: &mut Vec<(usize, usize, Vec<Value>)>,
) {
    // More groups than a wait can name: it settles nothing beyond.
    const MAX_GROUPS: u32 = 8;
    let mut seen: rustc_hash::FxHashSet<(usize, u32)> = rustc_hash::FxHashSet::default();
    // Position, and groups committed since the issue (its own included).
    let mut work = vec![(from.0, from.1, 0u32)];
    'path: while let Some((b, start, mut commits)) = work.pop() {
        let block = &linear.blocks[b];
        for (i, op) in block.ops.iter().enumerate().skip(start) {
            match op {
                LOp::Inst {
                    inst: Inst::WgmmaCommit { .. },
                    ..
                } => commits = (commits + 1).min(MAX_GROUPS),
                LOp::Inst {
                    inst: Inst::WgmmaWait { n, .. },
                    ..
                } if i64::from(commits) > *n => {
                    marks.push((b, i, read.to_vec()));
                    continue 'path;
                }
                // A fragment is overwritten: what follows has other registers, or is the flat verifier's to refuse.
                op => {
                    let mut redefined = false;
                    for step in steps(op) {
                        step.for_each_def(|d| redefined |= read.contains(&d));
                    }
                    if redefined {
                        continue 'path;
                    }
                }
            }
        }
        let (next, count) = successors(&block.terminator);
        for &s in &next[..count] {
            if seen.insert((s, commits)) {
                work.push((s, 0, commits));
            }
        }
    }
}
