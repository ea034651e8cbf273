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
use rustc_hash::{FxHashMap, FxHashSet};
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

/// The ranges of all values.
pub(super) fn compute(ssa: &Ssa, linear: &Linear<'_>, constants: &SecondaryMap<Value, Option<u64>>) -> Liveness {
    let points = points(linear);
    let mut ranges: SecondaryMap<Value, Ranges> = SecondaryMap::with_capacity(ssa.values.len());
    let live_out = live_through(ssa, linear, constants, &points, &mut ranges);
    // What happens within blocks, backwards.
    let mut live_until = vec![NONE; ssa.values.len()];
    for (b, (block, live_out)) in linear.blocks.iter().zip(live_out).enumerate().rev() {
        let mut point = points[b + 1];
        let mut live: Vec<Value> = vec![];
        let mut read = |v: Value, until: u32, live_until: &mut [u32]| {
            if live_until[v.index()] == NONE {
                live_until[v.index()] = until;
                live.push(v);
            }
        };
        live_out.iter().for_each(|v| read(*v, point, &mut live_until));
        point -= 2;
        if let LTerm::Cond { pred, .. } = block.terminator {
            read(pred, point + 1, &mut live_until);
        }
        for op in block.ops.iter().rev() {
            for step in steps(op).rev() {
                point -= 2;
                step.for_each_def(|v| {
                    let until = std::mem::replace(&mut live_until[v.index()], NONE);
                    let until = if until == NONE { point + 2 } else { until };
                    ranges[v].push((point + 1, until));
                });
                step.for_each_use(constants, |v| read(v, point + 1, &mut live_until));
            }
        }
        assert_eq!(point, points[b]);
        for v in live {
            let until = std::mem::replace(&mut live_until[v.index()], NONE);
            if until != NONE {
                ranges[v].push((point, until));
            }
        }
    }
    ssa.values.keys().for_each(|v| in_order(&mut ranges[v]));
    Liveness { ranges }
}

const NONE: u32 = u32::MAX;

/// The point at which each block begins, and where the last one ends.
pub(super) fn points(linear: &Linear<'_>) -> Vec<u32> {
    let mut points = vec![0];
    let mut point = 0;
    for block in &linear.blocks {
        // One more step for the terminator.
        point += 2 * (block.ops.iter().map(|op| steps(op).count()).sum::<usize>() as u32 + 1);
        points.push(point);
    }
    points
}

/// Sorts ranges, and joins those that touch or overlap.
fn in_order(ranges: &mut Ranges) {
    if ranges.len() > 1 {
        ranges.sort_unstable();
        ranges.dedup_by(|next, last| {
            let joined = next.0 <= last.1;
            if joined {
                last.1 = last.1.max(next.1);
            }
            joined
        });
    }
}

/// Adds the ranges of blocks that values are live through and that do not mention them; gives, for each block, what it mentions that is live
/// where it ends.
///
/// For every value, from the blocks that read it before they write it, back to those that write it. Conditionals and loops that do not mention
/// it are one step, however many follow each other: the work is as much as there are blocks that mention values, times how deeply they are nested.
fn live_through(
    ssa: &Ssa,
    linear: &Linear<'_>,
    constants: &SecondaryMap<Value, Option<u64>>,
    points: &[u32],
    ranges: &mut SecondaryMap<Value, Ranges>,
) -> Vec<Vec<Value>> {
    let n = linear.blocks.len();
    let Mentions {
        global,
        blocks,
        readers,
    } = mentions(ssa, linear, constants);
    let mut predecessors: Vec<SmallVec<[u32; 2]>> = vec![SmallVec::new(); n];
    // Blocks that only conditionals and loops are between, and the place of each in its list.
    let mut lists: Vec<Vec<u32>> = vec![];
    let mut place: Vec<(u32, u32)> = vec![];
    for (b, block) in (0u32..).zip(&linear.blocks) {
        let (next, count) = successors(&block.terminator);
        next[..count].iter().for_each(|s| predecessors[*s].push(b));
        let list = block.head.map_or(lists.len() as u32, |head| place[head].0);
        if block.head.is_none() {
            lists.push(vec![]);
        }
        let blocks = &mut lists[list as usize];
        place.push((list, blocks.len() as u32));
        blocks.push(b);
    }
    let mut live_out: Vec<Vec<Value>> = vec![vec![]; n];
    // The last value that was followed back from a block to those before it.
    let mut followed = vec![NONE; n];
    for (i, mut work) in (0u32..).zip(readers) {
        let (v, mentions) = (global[i as usize], &blocks[i as usize]);
        // It is live as `b` begins.
        while let Some(b) = work.pop() {
            let before = mentions.partition_point(|m| *m < b);
            let reads = mentions.get(before) == Some(&b);
            let last = before.checked_sub(1).map(|at| mentions[at]);
            let (list, at) = place[b as usize];
            let list = &lists[list as usize][..=at as usize];
            // As far back in the list as nothing mentions it.
            let from = last.map_or(0, |last| list.partition_point(|x| *x <= last));
            let (first, end) = (list[from], if reads { b } else { b + 1 });
            let head = from
                .checked_sub(1)
                .map(|at| list[at])
                .filter(|head| last == Some(*head));
            let start = head.map_or(first, |head| head + 1);
            if start < end {
                ranges[v].push((points[start as usize], points[end as usize]));
            }
            let mut ends_live = |m: u32| live_out[m as usize].push(v);
            if let Some(head) = head {
                ends_live(head);
            } else if std::mem::replace(&mut followed[first as usize], i) != i {
                for p in &predecessors[first as usize] {
                    match mentions.binary_search(p) {
                        Ok(_) => ends_live(*p),
                        Err(_) => work.push(*p),
                    }
                }
            }
        }
    }
    live_out
}

/// Where values are mentioned that are live as some block begins.
struct Mentions {
    global: Vec<Value>,
    /// All blocks, in order.
    blocks: Vec<Vec<u32>>,
    /// Blocks that read it before they write it.
    readers: Vec<Vec<u32>>,
}

fn mentions(ssa: &Ssa, linear: &Linear<'_>, constants: &SecondaryMap<Value, Option<u64>>) -> Mentions {
    let mut defined_in = vec![NONE; ssa.values.len()];
    let mut number: SecondaryMap<Value, u32> = SecondaryMap::with_default(NONE);
    let (mut global, mut readers): (Vec<Value>, Vec<Vec<u32>>) = (vec![], vec![]);
    for (b, block) in (0u32..).zip(&linear.blocks) {
        let mut read = |v: Value, defined_in: &[u32]| {
            if defined_in[v.index()] != b {
                if number[v] == NONE {
                    number[v] = global.len() as u32;
                    global.push(v);
                    readers.push(vec![]);
                }
                let readers = &mut readers[number[v] as usize];
                if readers.last() != Some(&b) {
                    readers.push(b);
                }
            }
        };
        for step in block.ops.iter().flat_map(steps) {
            step.for_each_use(constants, |v| read(v, &defined_in));
            step.for_each_def(|v| defined_in[v.index()] = b);
        }
        if let LTerm::Cond { pred, .. } = block.terminator {
            read(pred, &defined_in);
        }
    }
    let mut blocks = readers.clone();
    for (b, block) in (0u32..).zip(&linear.blocks) {
        for step in block.ops.iter().flat_map(steps) {
            step.for_each_def(|v| {
                if number[v] != NONE {
                    blocks[number[v] as usize].push(b);
                }
            });
        }
    }
    for blocks in &mut blocks {
        blocks.sort_unstable();
        blocks.dedup();
    }
    Mentions {
        global,
        blocks,
        readers,
    }
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

/// Groups that a wait can name; with more committed it settles everything before.
const MAX_GROUPS: usize = 8;

/// Marks each wait with the registers that the wgmmas it covers may read until then (fragments of A): they stay live
/// from the issue to the wait, on every path.
pub(super) fn mark_asynchronous_reads(linear: &mut Linear<'_>) {
    let mut reads = AsynchronousReads::of(linear);
    // Reads that are in flight as a block begins, and how many groups have been committed since.
    let mut arrived: Vec<Vec<(u32, usize)>> = vec![vec![]; linear.blocks.len()];
    let mut seen: FxHashSet<(usize, u32, usize)> = FxHashSet::default();
    let mut marks: Vec<(usize, usize, u32)> = vec![];
    let issuing = (0..linear.blocks.len()).filter(|b| reads.issued.contains_key(b));
    let mut work: Vec<(usize, bool)> = issuing.map(|b| (b, true)).collect();
    while let Some((b, own)) = work.pop() {
        let begin = if own { vec![] } else { std::mem::take(&mut arrived[b]) };
        for (read, commits) in reads.follow(linear, b, begin, own, &mut marks) {
            let (to, count) = successors(&linear.blocks[b].terminator);
            for &to in &to[..count] {
                if seen.insert((to, read, commits)) {
                    if arrived[to].is_empty() {
                        work.push((to, false));
                    }
                    arrived[to].push((read, commits));
                }
            }
        }
    }
    for (b, i, read) in marks {
        if let LOp::Inst { settled, .. } = &mut linear.blocks[b].ops[i] {
            settled.extend(&reads.values[read as usize]);
        }
    }
}

/// What wgmmas read of registers after they are issued.
struct AsynchronousReads {
    /// Of each issue.
    values: Vec<Vec<Value>>,
    /// The issues that read a value.
    readers: FxHashMap<Value, Vec<u32>>,
    /// Issues of each block, by the number of the op.
    issued: FxHashMap<usize, Vec<(usize, u32)>>,
    /// While a block is followed.
    flies: Vec<bool>,
}

impl AsynchronousReads {
    fn of(linear: &Linear<'_>) -> AsynchronousReads {
        let mut values: Vec<Vec<Value>> = vec![];
        let mut readers: FxHashMap<Value, Vec<u32>> = FxHashMap::default();
        let mut issued: FxHashMap<usize, Vec<(usize, u32)>> = FxHashMap::default();
        for (b, block) in linear.blocks.iter().enumerate() {
            for (i, op) in block.ops.iter().enumerate() {
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
                    let number = values.len() as u32;
                    read.iter().for_each(|v| readers.entry(*v).or_default().push(number));
                    issued.entry(b).or_default().push((i, number));
                    values.push(read);
                }
            }
        }
        AsynchronousReads {
            flies: vec![false; values.len()],
            values,
            readers,
            issued,
        }
    }

    /// From a block's begin to its end: of reads that are in flight there, or (`own`) of those that are issued here. Gives what is in flight at the
    /// end, with the groups committed since.
    fn follow(
        &mut self,
        linear: &Linear<'_>,
        b: usize,
        begin: Vec<(u32, usize)>,
        own: bool,
        marks: &mut Vec<(usize, usize, u32)>,
    ) -> Vec<(u32, usize)> {
        // By how many groups have been committed since; some no longer fly.
        let mut flying: [Vec<u32>; MAX_GROUPS + 1] = Default::default();
        for (read, commits) in begin {
            flying[commits].push(read);
            self.flies[read as usize] = true;
        }
        let issued = self.issued.get(&b).filter(|_| own).map_or(&[][..], Vec::as_slice);
        let mut issued = issued.iter().peekable();
        for (i, op) in linear.blocks[b].ops.iter().enumerate() {
            match op {
                LOp::Inst {
                    inst: Inst::WgmmaCommit { .. },
                    ..
                } => {
                    for commits in (0..MAX_GROUPS).rev() {
                        let mut group = std::mem::take(&mut flying[commits]);
                        flying[commits + 1].append(&mut group);
                    }
                    continue;
                }
                LOp::Inst {
                    inst: Inst::WgmmaWait { n, .. },
                    ..
                } => {
                    for group in flying.iter_mut().skip(*n as usize + 1) {
                        let settled = group.drain(..).filter(|read| self.flies[*read as usize]);
                        marks.extend(settled.map(|read| (b, i, read)));
                    }
                }
                LOp::Inst { .. } | LOp::Copies { .. } | LOp::Settle { .. } => {}
            }
            // A fragment is overwritten: what follows has other registers, or is the flat verifier's to refuse.
            for step in steps(op) {
                step.for_each_def(|v| {
                    for read in self.readers.get(&v).into_iter().flatten() {
                        self.flies[*read as usize] = false;
                    }
                });
            }
            while let Some((_, read)) = issued.next_if(|(at, _)| *at == i) {
                flying[0].push(*read);
                self.flies[*read as usize] = true;
            }
        }
        let groups = flying.into_iter().enumerate();
        let at_end = groups.flat_map(|(commits, group)| group.into_iter().map(move |read| (read, commits)));
        at_end.filter(|(read, _)| self.flies[*read as usize]).collect()
    }
}
