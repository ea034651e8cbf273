//! How many words are live at once at least, of a program that need not be complete: for those that are not worth optimising.
//!
//! There are two orders that a list of ops can end in: that in which it was emitted, and the one that [`super::interleave_elements`] writes. In
//! the second, what has been listed behind an actor is what the actors up to it need, however they are taken in batches; so a value is live
//! there if it is among that, and an op uses it that is not.
//!
//! What is appended to the program adds actors and uses, and takes none away. What nothing needs (yet) does not count. In lists inside of others
//! nor do points at which lanes only exchange values: sums over lanes may leave loops ([`super::defer_sums`]).
use super::inst::Effects;
use super::interleave_elements::{List, Names, waits_for_grid};
use super::ssa::*;
use crate::error::Loc;
use std::collections::BTreeMap;

const NEVER: u32 = u32::MAX;

/// Words that are live at once in one list of ops.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LeastLive {
    /// As it was emitted.
    pub emitted: u64,
    /// Listed anew, at the least.
    pub listed: u64,
    /// The op that makes most of the latter.
    pub loc: Loc,
}

const NOTHING: LeastLive = LeastLive {
    emitted: 0,
    listed: 0,
    loc: Loc::CALL_SITE,
};

/// Of the list that holds most in the order that is better for it.
pub fn run(ssa: &Ssa) -> LeastLive {
    let mut names = Names::default();
    let waits_for_grid = waits_for_grid(ssa);
    let lists = ssa.regions.keys().map(|r| of_list(ssa, r, waits_for_grid, &mut names));
    lists
        .max_by_key(|least| least.emitted.min(least.listed))
        .unwrap_or(NOTHING)
}

/// A value is live behind all steps of a range.
struct Span {
    from: u32,
    to: u32,
    words: u32,
    /// The op that makes it.
    maker: u32,
}

fn of_list(ssa: &Ssa, r: Region, waits_for_grid: bool, names: &mut Names) -> LeastLive {
    let ops = &ssa.regions[r].ops;
    let mut list = List::new(ssa, r, names);
    let results: Vec<u32> = ssa.regions[r].results.iter().map(|v| names.id(*v)).collect();
    names.forget();
    let fixed = list.connect(ssa, r, waits_for_grid);
    let converges = |op: u32| only_converges(&ops[op as usize]);
    // The batch in which an op is listed, if every actor is one.
    let mut batches = vec![NEVER; ops.len()];
    let mut actors = vec![NEVER; ops.len()];
    for (batch, op) in (1..).zip(&list.wanted) {
        actors[*op as usize] = batch;
    }
    let mut forced = vec![NEVER; ops.len()];
    let mut needs = vec![];
    for op in (0..ops.len() as u32).rev() {
        let (i, actor) = (op as usize, actors[op as usize]);
        if actor != NEVER && (batches[i] != NEVER || !converges(op)) {
            batches[i] = batches[i].min(actor);
        }
        if batches[i] == NEVER {
            continue;
        }
        batches[i] = if op < fixed { 0 } else { batches[i].min(forced[i]) };
        list.makers(op, &mut needs);
        for need in needs.drain(..) {
            batches[need as usize] = batches[need as usize].min(batches[i]);
        }
        for load in list.forced_by(op) {
            forced[*load as usize] = forced[*load as usize].min(batches[i]);
        }
    }
    // When values are used last, in both orders.
    let mut last = vec![(0, 0); list.words.len()];
    for (op, batch) in (0..).zip(&batches).filter(|(_, batch)| **batch != NEVER) {
        for v in &list.uses[list.uses_of(op)] {
            let last = &mut last[*v as usize];
            *last = (last.0.max(op), last.1.max(*batch));
        }
    }
    let (end, end_of_batches) = (ops.len() as u32, list.wanted.len() as u32 + 1);
    for v in results {
        last[v as usize] = (end, end_of_batches);
    }
    let made = (0..list.words.len()).filter(|v| list.maker[*v] != NEVER && batches[list.maker[*v] as usize] != NEVER);
    let (mut emitted, mut listed) = (vec![], vec![]);
    for v in made {
        let (maker, words) = (list.maker[v], list.words[v]);
        for (spans, from, to) in [
            (&mut emitted, maker, last[v].0),
            (&mut listed, batches[maker as usize], last[v].1),
        ] {
            if to > from && words > 0 {
                spans.push(Span { from, to, words, maker });
            }
        }
    }
    let stays = |batch: u32| match batch.checked_sub(1).and_then(|i| list.wanted.get(i as usize)) {
        Some(actor) => Some(r) == ssa.body || !converges(*actor),
        None => true,
    };
    let (words, at) = peak(&listed, end_of_batches, stays);
    let mut makers: BTreeMap<Loc, u64> = BTreeMap::new();
    for span in listed.iter().filter(|span| (span.from..span.to).contains(&at)) {
        *makers.entry(ops[span.maker as usize].loc).or_default() += u64::from(span.words);
    }
    let maker = makers.into_iter().max_by_key(|(_, words)| *words);
    LeastLive {
        emitted: peak(&emitted, end, |_| true).0,
        listed: words,
        loc: maker.map_or(Loc::CALL_SITE, |(loc, _)| loc),
    }
}

/// The most words, and the step behind which they are live, of those that count.
fn peak(spans: &[Span], end: u32, counts: impl Fn(u32) -> bool) -> (u64, u32) {
    let mut changes = vec![0i64; end as usize + 1];
    for span in spans {
        changes[span.from as usize] += i64::from(span.words);
        changes[span.to as usize] -= i64::from(span.words);
    }
    let (mut now, mut most, mut at) = (0, 0, 0);
    for (step, change) in (0u32..).zip(changes) {
        now += change;
        if now > most && counts(step) {
            (most, at) = (now, step);
        }
    }
    (most as u64, at)
}

/// A shuffle, or another instruction that acts only in that its lanes take part together: without a use it is dropped.
fn only_converges(op: &Op) -> bool {
    match &op.kind {
        OpKind::Inst { inst, .. } => {
            let reads = Effects::READ_GLOBAL | Effects::READ_SHARED;
            (reads | Effects::CONVERGENT).contains(inst.effects()) && inst.tied().is_none()
        }
        OpKind::If { .. } | OpKind::Loop { .. } => false,
    }
}

#[cfg(test)]
mod tests {
    use super::super::build::{Builder, Operand};
    use super::super::inst::Inst;
    use super::super::interleave_elements;
    use super::super::modifier::*;
    use super::super::operand::*;
    use super::super::out_of_ssa;
    use super::*;

    const N: i32 = 64;

    fn loads(b: &mut Builder, at: Value, space: Space) -> Vec<Operand> {
        b.set_memory(MemTag::shared(0));
        (0..N)
            .map(|i| b.load(space, MemType::B32, Addr::at(at, 4 * i), 1)[0].into())
            .collect()
    }
    fn stores(b: &mut Builder, at: Value, values: &[Operand], memory: u32) {
        b.set_memory(MemTag::shared(memory));
        for (i, v) in (0..).zip(values) {
            b.store(Space::Shared, MemType::B32, Addr::at(at, 4 * i), &[*v]);
        }
    }
    /// The thread's number counts, too.
    fn least(build: impl FnOnce(&mut Builder, Value)) -> u64 {
        let mut b = Builder::new();
        let tid = b.tid();
        build(&mut b, tid);
        let least = |ssa: &Ssa| {
            let least = run(ssa);
            least.emitted.min(least.listed)
        };
        let unfinished = least(b.program());
        let ssa = b.finish();
        let words = least(&ssa);
        assert!(unfinished <= words);
        let mut listed = ssa.clone();
        interleave_elements::run_regardless(&mut listed, 1);
        let (_, peak) = out_of_ssa::run_measured(&listed, out_of_ssa::tests::shell(), u32::MAX).unwrap();
        assert!(words <= u64::from(peak.words), "{words} is no lower bound of {peak:?}");
        words
    }

    #[test]
    fn what_is_stored_twice_is_live_between() {
        let twice = least(|b, tid| {
            let x = loads(b, tid, Space::Shared);
            stores(b, tid, &x, 4096);
            stores(b, tid, &x, 8192);
        });
        assert_eq!(twice, N as u64 + 1);
    }

    #[test]
    fn what_can_be_taken_in_tiles_counts_nothing() {
        let once = least(|b, tid| {
            let x = loads(b, tid, Space::Shared);
            let y: Vec<Operand> = x.iter().map(|x| b.fmul(FloatType::F32, *x, *x)).collect();
            stores(b, tid, &y, 4096);
        });
        assert_eq!(once, 1);
        // Element by element to both.
        let beside = least(|b, tid| {
            let x = loads(b, tid, Space::Shared);
            for (i, x) in (0..).zip(&x) {
                for memory in [4096, 8192] {
                    b.set_memory(MemTag::shared(memory));
                    b.store(Space::Shared, MemType::B32, Addr::at(tid, memory as i32 + 4 * i), &[*x]);
                }
            }
        });
        assert_eq!(beside, 2);
        // Nothing needs the second sum.
        let dead = least(|b, tid| {
            let x = loads(b, tid, Space::Shared);
            stores(b, tid, &x, 4096);
            for x in &x {
                b.fadd(FloatType::F32, *x, *x);
            }
        });
        assert_eq!(dead, 1);
    }

    #[test]
    fn what_is_computed_for_a_later_store_holds_what_it_is_computed_from() {
        let later = least(|b, tid| {
            let x = loads(b, tid, Space::Shared);
            let y: Vec<Operand> = x.iter().map(|x| b.fmul(FloatType::F32, *x, *x)).collect();
            stores(b, tid, &x, 4096);
            stores(b, tid, &y, 8192);
        });
        assert_eq!(later, N as u64 + 1);
    }

    #[test]
    fn a_sum_beside_its_terms() {
        let sum = least(|b, tid| {
            let x = loads(b, tid, Space::Shared);
            let sum = x.iter().skip(1).fold(x[0], |sum, x| b.fadd(FloatType::F32, sum, *x));
            let a = b.value(sum, Class::B32);
            let sum = b.emit(Inst::Shfl {
                mode: ShuffleMode::Bfly,
                d: Value::NEW,
                a,
                b: Src::u32(16),
                c: Src::u32(31),
                mask: i64::from(u32::MAX),
            });
            let y: Vec<Operand> = x.iter().map(|x| b.fmul(FloatType::F32, *x, sum)).collect();
            stores(b, tid, &y, 4096);
        });
        assert_eq!(sum, N as u64 + 2);
    }

    #[test]
    fn loads_before_a_barrier() {
        let barrier = least(|b, tid| {
            let x = loads(b, tid, Space::Shared);
            b.inst(Inst::BarWarp { mask: 0xffff_ffff });
            stores(b, tid, &x, 4096);
        });
        assert_eq!(barrier, N as u64 + 1);
    }
}
