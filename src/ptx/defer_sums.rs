//! What a loop adds up across lanes in every iteration is added up across most of them once, behind the loop.
//!
//! A loop carries `x` and ends an iteration with `x ← f·x + s` (or `x + s`), `s` being `y` summed over the lanes whose numbers differ in
//! the bits M: a butterfly of shuffles, each of which waits for the one before. Here the butterfly ends with its first step, `z`. Each lane carries a
//! part, `X ← f·X + z`, and `x` is the sum of `X` over the lanes that differ in the other bits, formed behind the loop. `X` starts as `x`
//! does in the lanes without any of those bits, as zero in others.
//!
//! The first step stays for the assembler's sake. It moves sums that nothing in the iteration needs below what others wait for, between
//! the products of the next matrix, but shuffles it leaves where they are. Attention on an H200, head 64, blocks of 128 keys: 154.9 µs with
//! both shuffles in the loop, 161.2 with none (head 128: 205.0, 213.9), 152.7 (203.0) with one; instructions that keep the sums in
//! their place with no shuffle (loads and stores that never happen) took 168 (205).
//!
//! Right where
//! * `f` is equal in the lanes that are summed behind the loop ([`LaneEquality`]): then the sum of `f·X + z` is `f·x + s`;
//! * nothing else in the loop reads `x`, `s` or what lies between, and the loop itself hands `x` on untouched;
//! * the sum may be formed in another order: integers always, floats where the user allows it (`approx_math`). An infinite `f` times the zero that a
//!   lane's part may be is NaN then, where `f·x` was infinite.
//!
//! The shuffles behind the loop take part in what those in the loop did: whoever leads lanes to the loop leads whole warps there.
use super::fixpoint::{self, Analysis};
use super::infer_uniformity;
use super::inst::{Inst, RegMap};
use super::modifier::*;
use super::operand::*;
use super::ssa::*;
use cranelift_entity::SecondaryMap;
use smallvec::SmallVec;

/// `floats`: floats may be added in another order. Takes what is inferred of uniformity, and leaves it so.
pub fn run(ssa: &mut Ssa, floats: bool) {
    // One region at a time: a loop's body changes when a sum leaves, and what stands behind an inner loop may be an outer one's.
    while let Some((region, sums)) = Search::new(ssa, floats).found() {
        rewrite(ssa, region, sums);
        infer_uniformity::run(ssa);
    }
}

const ALL_LANES: i64 = 0xffff_ffff;
/// Bits of a lane's number.
const LANE_BITS: u8 = 31;

/// The shuffle by a lane bit, over whole warps: what is shuffled, and the bit.
fn butterfly(inst: &Inst<Value>) -> Option<(Value, u8)> {
    match inst {
        Inst::Shfl {
            mode: ShuffleMode::Bfly,
            a,
            b: Src::Imm(bit),
            c: Src::Imm(31),
            mask: ALL_LANES,
            ..
        } if bit.is_power_of_two() && *bit <= 16 => Some((*a, *bit as u8)),
        _ => None,
    }
}

/// The two operands of an instruction that may change places.
fn commutes(inst: &Inst<Value>) -> Option<(Src<Value>, Src<Value>)> {
    match inst {
        Inst::AddFloat { a, b, .. }
        | Inst::MulFloat { a, b, .. }
        | Inst::MinMaxFloat { a, b, .. }
        | Inst::AddInt { a, b, .. }
        | Inst::MinMaxInt { a, b, .. } => Some((*a, *b)),
        Inst::Logic {
            op: Logic::And | Logic::Or | Logic::Xor,
            a,
            b,
            ..
        } => Some((*a, *b)),
        _ => None,
    }
}

/// Where values come from, and how often they are read.
struct Defs<'a> {
    ssa: &'a Ssa,
    at: SecondaryMap<Value, Option<(Region, u32)>>,
    uses: SecondaryMap<Value, u32>,
}

impl<'a> Defs<'a> {
    fn new(ssa: &'a Ssa) -> Defs<'a> {
        let mut defs = Defs {
            ssa,
            at: SecondaryMap::with_capacity(ssa.values.len()),
            uses: SecondaryMap::with_capacity(ssa.values.len()),
        };
        for (r, region) in ssa.regions.iter() {
            for (i, op) in region.ops.iter().enumerate() {
                match &op.kind {
                    OpKind::Inst { guard, inst } => {
                        inst.for_each_def(|d, _| defs.at[d] = Some((r, i as u32)));
                        inst.for_each_use(|v, _| defs.uses[v] += 1);
                        guard.iter().for_each(|(p, _)| defs.uses[*p] += 1);
                    }
                    OpKind::If { cond, .. } => defs.uses[*cond] += 1,
                    OpKind::Loop { inits, .. } => inits.iter().for_each(|v| defs.uses[*v] += 1),
                }
            }
            region.results.iter().for_each(|v| defs.uses[*v] += 1);
        }
        defs
    }

    /// The unguarded instruction that defines `v`, and its region.
    fn inst(&self, v: Value) -> Option<(Region, &'a Inst<Value>)> {
        let (r, i) = self.at[v]?;
        match &self.ssa.regions[r].ops[i as usize].kind {
            OpKind::Inst { guard: None, inst } => Some((r, inst)),
            OpKind::Inst { .. } | OpKind::If { .. } | OpKind::Loop { .. } => None,
        }
    }

    /// `a ∘ b` of a value and its shuffle by a lane bit: the value, the shuffled one, the bit.
    fn exchanged(&self, a: Src<Value>, b: Src<Value>) -> Option<(Value, Value, u8)> {
        let (a, b) = (a.reg()?, b.reg()?);
        let of = |x: Value, shuffled: Value| {
            let (from, bit) = butterfly(self.inst(shuffled)?.1)?;
            (from == x).then_some((x, shuffled, bit))
        };
        of(a, b).or_else(|| of(b, a))
    }
}

/// In which lanes values are equal: bit k says, of all pairs of lanes whose numbers differ in bit k alone, that both hold the same. A
/// greatest fixpoint, like [`super::infer_uniformity`], whose results it takes.
struct LaneEquality<'a> {
    defs: &'a Defs<'a>,
    equal: SecondaryMap<Value, u8>,
}

impl<'a> LaneEquality<'a> {
    fn new(defs: &'a Defs<'a>) -> LaneEquality<'a> {
        let mut out = LaneEquality {
            defs,
            equal: SecondaryMap::with_default(LANE_BITS),
        };
        if let Some(body) = defs.ssa.body {
            fixpoint::region(defs.ssa, body, &mut out);
        }
        out
    }

    fn of(&self, s: &Src<Value>) -> u8 {
        s.reg().map_or(LANE_BITS, |v| self.equal[v])
    }

    fn of_inst(&self, inst: &Inst<Value>) -> u8 {
        if let Some((a, _)) = butterfly(inst) {
            return self.equal[a];
        }
        if matches!(inst, Inst::MovSpecial32 { .. } | Inst::MovSpecial64 { .. }) || !inst.effects().is_pure() {
            return 0;
        }
        let mut equal = LANE_BITS;
        inst.for_each_use(|v, _| equal &= self.equal[v]);
        // Lanes that differ in the bit have combined the same two values.
        if let Some((a, b)) = commutes(inst)
            && let Some((_, _, bit)) = self.defs.exchanged(a, b)
        {
            equal |= bit;
        }
        equal
    }
}

impl Analysis for LaneEquality<'_> {
    type Fact = u8;
    fn fact(&self, v: Value) -> u8 {
        self.equal[v]
    }
    fn meet(a: u8, b: u8) -> u8 {
        a & b
    }
    fn lower(&mut self, v: Value, to: u8) -> bool {
        let to = match self.defs.ssa.values[v].uniform {
            Uniform::Thread => self.equal[v] & to,
            Uniform::Warp | Uniform::Warpgroup | Uniform::Cta => LANE_BITS,
        };
        std::mem::replace(&mut self.equal[v], to) != to
    }
    fn inst(&mut self, guard: Option<(Value, Negated)>, inst: &Inst<Value>) {
        let to = if guard.is_some() { 0 } else { self.of_inst(inst) };
        inst.for_each_def(|d, _| {
            self.lower(d, to);
        });
    }
}

/// A sum that leaves its loop.
struct Sum {
    /// The loop's position in its region.
    at: usize,
    /// Which of the loop's initial values and results it is.
    init: usize,
    result: usize,
    starts_at_zero: bool,
    /// What ends an iteration, in the loop's body, reads `part` in the place of the last step's sum.
    next: Value,
    part: Value,
    /// The last comes first.
    steps: Steps,
}

/// `sum = from + shuffled`, `shuffled` being `from` of the lane whose number differs in `bit`.
#[derive(Clone)]
struct Step {
    sum: Value,
    from: Value,
    shuffled: Value,
    bit: u8,
    add: Inst<Value>,
}

type Steps = SmallVec<[Step; 5]>;

struct Search<'a> {
    ssa: &'a Ssa,
    defs: Defs<'a>,
    floats: bool,
}

impl<'a> Search<'a> {
    fn new(ssa: &'a Ssa, floats: bool) -> Search<'a> {
        Search {
            ssa,
            defs: Defs::new(ssa),
            floats,
        }
    }

    /// All sums of the loops of one region that may leave; `None` if there is nothing in any.
    fn found(&self) -> Option<(Region, Vec<Sum>)> {
        let mut found: Vec<(Region, Vec<(Sum, Src<Value>)>)> = vec![];
        for (r, region) in self.ssa.regions.iter() {
            let sums: Vec<_> = region
                .ops
                .iter()
                .enumerate()
                .flat_map(|(at, op)| self.of_loop(at, op))
                .collect();
            if !sums.is_empty() {
                found.push((r, sums));
            }
        }
        if found.is_empty() {
            return None;
        }
        let lanes = LaneEquality::new(&self.defs);
        found.into_iter().find_map(|(region, sums)| {
            let leaves = |(sum, factor): (Sum, Src<Value>)| {
                let equal = lanes.of(&factor);
                sum.steps.iter().all(|step| equal & step.bit != 0).then_some(sum)
            };
            let sums: Vec<Sum> = sums.into_iter().filter_map(leaves).collect();
            (!sums.is_empty()).then_some((region, sums))
        })
    }

    /// Sums of a loop, and what `x` is multiplied by.
    fn of_loop(&self, at: usize, op: &'a Op) -> Vec<(Sum, Src<Value>)> {
        let OpKind::Loop { inits, cond, body, .. } = &op.kind else {
            return vec![];
        };
        let is_zero = |v: Value| matches!(self.defs.inst(v), Some((_, Inst::Mov { a: Src::Imm(0), .. })));
        let (cond, body_region) = (&self.ssa.regions[*cond], &self.ssa.regions[*body]);
        let handed = cond.results.get(1..).unwrap_or_default();
        let carried = cond.params.iter().zip(&body_region.results).enumerate();
        carried
            .filter_map(|(init, (p, next))| {
                let result = handed.iter().position(|h| h == p)?;
                let x = body_region.params[result];
                let once = [*p, x, *next].iter().all(|v| self.defs.uses[*v] == 1);
                let (r, inst) = self.defs.inst(*next)?;
                if !once || r != *body {
                    return None;
                }
                let (total, factor) = self.total(x, inst)?;
                let (part, steps) = self.across_lanes(*body, total, inst)?;
                let sum = Sum {
                    at,
                    init,
                    result,
                    starts_at_zero: is_zero(inits[init]),
                    next: *next,
                    part,
                    steps,
                };
                Some((sum, factor))
            })
            .collect()
    }

    /// `inst` is `f·x + s`: `s` and `f`.
    fn total(&self, x: Value, inst: &Inst<Value>) -> Option<(Value, Src<Value>)> {
        let one = Src::Imm(1);
        let other = |a: &Src<Value>, b: &Src<Value>| match (a.reg() == Some(x), b.reg() == Some(x)) {
            (true, false) => Some(*b),
            (false, true) => Some(*a),
            (true, true) | (false, false) => None,
        };
        match inst {
            Inst::Fma {
                rnd: Round::Rn,
                ty: FloatType::F32,
                a,
                b,
                c,
                ..
            } if self.floats => Some((c.reg()?, other(a, b)?)),
            Inst::AddFloat {
                rnd: Round::Rn,
                ty: FloatType::F32,
                a,
                b,
                ..
            } if self.floats => {
                if let Some(s) = other(a, b) {
                    return Some((s.reg()?, one));
                }
                [(a, b), (b, a)].into_iter().find_map(|(product, s)| {
                    let product = product.reg().filter(|v| self.defs.uses[*v] == 1)?;
                    match self.defs.inst(product)?.1 {
                        Inst::MulFloat {
                            rnd: Round::Rn,
                            ty: FloatType::F32,
                            a,
                            b,
                            ..
                        } => Some((s.reg()?, other(a, b)?)),
                        _ => None,
                    }
                })
            }
            Inst::AddInt {
                ty: IntType::U32 | IntType::S32,
                a,
                b,
                ..
            } => Some((other(a, b)?.reg()?, one)),
            _ => None,
        }
    }

    /// `total` is a sum over lanes that `end` alone reads: of what, and the steps.
    fn across_lanes(&self, body: Region, total: Value, end: &Inst<Value>) -> Option<(Value, Steps)> {
        let is_int = matches!(end, Inst::AddInt { .. });
        let (mut sum, mut steps) = (total, Steps::new());
        while let Some(step) = self.step(body, sum, is_int, &steps) {
            sum = step.from;
            steps.push(step);
        }
        // The first one stays.
        let part = steps.pop()?.sum;
        (!steps.is_empty()).then_some((part, steps))
    }

    /// The step that gives `sum`, `later` being those behind it.
    fn step(&self, body: Region, sum: Value, is_int: bool, later: &Steps) -> Option<Step> {
        // The end reads the last one, others are read by the next step's sum and its shuffle.
        let readers = 1 + u32::from(!later.is_empty());
        let (r, add) = self.defs.inst(sum)?;
        let (a, b) = match add {
            Inst::AddFloat {
                rnd: Round::Rn,
                ty: FloatType::F32,
                a,
                b,
                ..
            } if !is_int => (*a, *b),
            Inst::AddInt {
                ty: IntType::U32 | IntType::S32,
                a,
                b,
                ..
            } if is_int => (*a, *b),
            _ => return None,
        };
        let (from, shuffled, bit) = self.defs.exchanged(a, b)?;
        let in_body = |v: Value| self.defs.inst(v).is_some_and(|(r, _)| r == body);
        let own = r == body && in_body(shuffled) && self.defs.uses[sum] == readers && self.defs.uses[shuffled] == 1;
        let again = later.iter().any(|s| s.bit == bit);
        (own && !again).then(|| Step {
            sum,
            from,
            shuffled,
            bit,
            add: add.clone(),
        })
    }
}

fn rewrite(ssa: &mut Ssa, region: Region, sums: Vec<Sum>) {
    let mut sums = sums.into_iter().peekable();
    let ops = std::mem::take(&mut ssa.regions[region].ops);
    let mut out = Vec::with_capacity(ops.len());
    for (at, mut op) in ops.into_iter().enumerate() {
        let mut behind = vec![];
        while let Some(sum) = sums.next_if(|s| s.at == at) {
            leave(ssa, &mut op, sum, &mut out, &mut behind);
        }
        out.push(op);
        out.append(&mut behind);
    }
    ssa.regions[region].ops = out;
}

/// One sum leaves its loop `op`; `before` and `behind` get what goes there.
fn leave(ssa: &mut Ssa, op: &mut Op, sum: Sum, before: &mut Vec<Op>, behind: &mut Vec<Op>) {
    let loc = op.loc;
    let OpKind::Loop {
        inits, body, results, ..
    } = &mut op.kind
    else {
        return;
    };
    let made = |inst| Op {
        kind: OpKind::Inst { guard: None, inst },
        loc,
        memory: MemTag::ANY,
        rounding: Rounding::default(),
    };
    let word = |ssa: &mut Ssa| ssa.value(Class::B32, Uniform::Thread);
    if !sum.starts_at_zero {
        let bits = sum.steps.iter().fold(0, |m, step| m | step.bit);
        inits[sum.init] = first_of(ssa, bits, inits[sum.init], |inst| before.push(made(inst)));
    }
    ssa.regions[*body].ops.retain_mut(|op| {
        let OpKind::Inst { inst, .. } = &mut op.kind else {
            return true;
        };
        let (mut is_step, mut is_next) = (false, false);
        inst.for_each_def(|d, _| {
            is_step |= sum.steps.iter().any(|step| d == step.sum || d == step.shuffled);
            is_next |= d == sum.next;
        });
        if is_next {
            let total = sum.steps[0].sum;
            *inst = inst.map(&mut Renamed(|v| if v == total { sum.part } else { v }, None));
        }
        !is_step
    });
    let mut part = word(ssa);
    let total = std::mem::replace(&mut results[sum.result], part);
    for (left, step) in sum.steps.iter().enumerate().rev() {
        let (shuffled, next) = (word(ssa), if left == 0 { total } else { word(ssa) });
        behind.push(made(Inst::shfl(
            ShuffleMode::Bfly,
            shuffled,
            part,
            Src::u32(step.bit.into()),
            Src::u32(31),
            ALL_LANES,
        )));
        let of = |v| if v == step.from { part } else { shuffled };
        behind.push(made(step.add.map(&mut Renamed(of, Some(next)))));
        part = next;
    }
}

/// `x` in the lanes whose numbers have none of the bits, zero in others.
fn first_of(ssa: &mut Ssa, bits: u8, x: Value, mut push: impl FnMut(Inst<Value>)) -> Value {
    let mut fresh = |class| ssa.value(class, Uniform::Thread);
    let (lane, among, out) = (fresh(Class::B32), fresh(Class::B32), fresh(Class::B32));
    let is_first = fresh(Class::Pred);
    push(Inst::mov_special32(SpecialReg32::Laneid, lane));
    push(Inst::logic(
        Logic::And,
        LogicType::B32,
        among,
        Src::Reg(lane),
        Src::u32(bits.into()),
    ));
    push(Inst::setp(
        Compare::Eq,
        Ftz::No,
        CompareType::U32,
        is_first,
        Src::Reg(among),
        Src::u32(0),
    ));
    push(Inst::selp(BitType::B32, out, Src::Reg(x), Src::u32(0), is_first));
    out
}

/// Operands by a function; what is defined as it was, or as said.
struct Renamed<F>(F, Option<Value>);

impl<F: Fn(Value) -> Value> RegMap<Value, Value> for Renamed<F> {
    fn reg(&mut self, r: Value, _: Slot) -> Value {
        (self.0)(r)
    }
    fn def(&mut self, r: Value, _: Slot) -> Value {
        self.1.unwrap_or(r)
    }
}

#[cfg(test)]
mod tests {
    use super::super::build::{Builder, Operand};
    use super::super::verify_ssa;
    use super::*;

    const F32: FloatType = FloatType::F32;

    fn exchange(b: &mut Builder, x: Value, bit: u32) -> Value {
        b.emit_value(Inst::Shfl {
            mode: ShuffleMode::Bfly,
            d: Value::NEW,
            a: x,
            b: Src::u32(bit),
            c: Src::u32(31),
            mask: ALL_LANES,
        })
    }
    fn sum(b: &mut Builder, x: Value, bits: &[u32]) -> Value {
        bits.iter().fold(x, |x, bit| {
            let other = exchange(b, x, *bit);
            let both = b.fadd(F32, x, other);
            b.value(both, Class::B32)
        })
    }
    fn most(b: &mut Builder, x: Value, bits: &[u32]) -> Value {
        bits.iter().fold(x, |x, bit| {
            let other = exchange(b, x, *bit);
            b.emit_value(Inst::MinMaxFloat {
                op: MinMax::Max,
                ftz: Ftz::No,
                nan: NanMode::Number,
                ty: F32,
                d: Value::NEW,
                a: Src::Reg(x),
                b: Src::Reg(other),
            })
        })
    }

    /// Shuffles in and behind a loop that carries a sum and a maximum; `step` gives both anew from what a lane loads.
    fn shuffles(step: impl FnOnce(&mut Builder, [Value; 2], Value) -> [Operand; 2]) -> (usize, usize) {
        let mut b = Builder::new();
        let (tid, cta) = (b.tid(), b.special(SpecialReg32::CtaidX));
        let inits = [0, 0, 0].map(|bits| b.constant(Class::B32, bits));
        let params = b.open_loop(&inits);
        let goes_on = b.setp(Compare::Lt, CompareType::U32, params[0], cta);
        let carried = b.open_body(goes_on, &params);
        let x = b.load(Space::Shared, MemType::B32, Addr::new(tid), 1)[0];
        let next = b.add(IntType::U32, carried[0], 1);
        let [total, maximum] = step(&mut b, [carried[1], carried[2]], x);
        let results = b.close_loop(&[next, total, maximum]);
        let stored = [Operand::from(results[1]), Operand::from(results[2])];
        b.store(Space::Shared, MemType::B32, Addr::new(tid), &stored[..1]);
        b.store(Space::Shared, MemType::B32, Addr::at(tid, 4), &stored[1..]);
        let mut ssa = b.finish();
        infer_uniformity::run(&mut ssa);
        run(&mut ssa, true);
        let found = verify_ssa::run(&ssa);
        assert!(found.is_empty(), "{found:?}\n{ssa}");
        let count = |ops: &[Op]| {
            let is_shuffle = |op: &&Op| matches!(&op.kind, OpKind::Inst { inst, .. } if butterfly(inst).is_some());
            ops.iter().filter(is_shuffle).count()
        };
        let outside = count(&ssa.regions[ssa.body.unwrap()].ops);
        (
            ssa.regions.values().map(|r| count(&r.ops)).sum::<usize>() - outside,
            outside,
        )
    }

    #[test]
    fn a_sum_leaves_where_its_factor_is_equal_in_the_lanes() {
        // Lanes that differ in bits 1 and 2 share the maximum.
        let over = |of_maximum: &'static [u32], of_sum: &'static [u32]| {
            shuffles(move |b, [total, maximum], x| {
                let m = most(b, x, of_maximum);
                let m = b.fadd(F32, m, maximum);
                let s = sum(b, x, of_sum);
                [b.fma(F32, total, m, s), m]
            })
        };
        assert_eq!(over(&[1, 2], &[1, 2]), (3, 1));
        assert_eq!(over(&[1, 2, 4], &[2, 1]), (4, 1));
        assert_eq!(over(&[2], &[1, 2]), (2, 1));
        // The first step stays, and is all there is.
        assert_eq!(over(&[1, 2], &[1]), (3, 0));
        // Not all of them do.
        assert_eq!(over(&[1], &[1, 2]), (3, 0));
        assert_eq!(over(&[1, 2], &[1, 2, 4]), (5, 0));
        assert_eq!(over(&[4, 8], &[1, 2]), (4, 0));
        // The next bits: 16 lanes.
        assert_eq!(over(&[1, 2, 4, 8], &[8, 4, 2, 1]), (5, 3));
    }

    #[test]
    fn a_factor_of_a_lanes_own_keeps_the_sum() {
        let by = |factor: fn(&mut Builder, Value, Value) -> Operand| {
            shuffles(move |b, [total, maximum], x| {
                let s = sum(b, x, &[1, 2]);
                let f = factor(b, maximum, x);
                let product = b.fmul(F32, f, total);
                [b.fadd(F32, s, product), f]
            })
        };
        assert_eq!(by(|b, _, _| Operand::from(b.special(SpecialReg32::CtaidY))), (1, 1));
        assert_eq!(by(|_, _, x| x.into()), (2, 0));
        // What the loop carries is what it becomes.
        assert_eq!(by(|b, m, _| b.fadd(F32, m, m)), (1, 1));
        assert_eq!(by(|b, m, x| b.fadd(F32, m, x)), (2, 0));
        assert_eq!(by(|b, _, _| Operand::from(b.lane())), (2, 0));
        // A quarter of the warp's: equal in lanes that differ in bits 0 to 2, which nothing shows.
        assert_eq!(
            by(|b, _, _| {
                let lane = b.lane();
                b.shr(ShiftType::U32, lane, 3)
            }),
            (2, 0)
        );
    }

    #[test]
    fn what_the_loop_reads_stays() {
        // The carry, the sum, steps of it.
        for reader in 0..5 {
            let found = shuffles(move |b, [total, maximum], x| {
                let first = sum(b, x, &[1]);
                let second = sum(b, first, &[2]);
                let s = sum(b, second, &[4]);
                let next = b.fadd(F32, total, s);
                let next_value = b.value(next, Class::B32);
                let read = [maximum, total, s, second, first][reader];
                let m = b.fadd(F32, maximum, read);
                [next_value.into(), m]
            });
            // A step that is read, and those before it, stay; so does the next.
            assert_eq!(found, [(1, 2), (3, 0), (3, 0), (3, 0), (2, 1)][reader], "{reader}");
        }
        // A difference is no sum; a lane bit twice is no sum over lanes.
        assert_eq!(
            shuffles(|b, [total, m], x| {
                let s = sum(b, x, &[1, 2]);
                [b.fsub(F32, total, s), m.into()]
            }),
            (2, 0)
        );
        let twice = shuffles(|b, [total, m], x| {
            let s = sum(b, x, &[1, 1]);
            [b.fadd(F32, total, s), m.into()]
        });
        assert_eq!(twice, (2, 0));
    }
}
