//! Moves, branches, guards, exchanges within a warp.
use super::check::Hooks;
use super::global::GlobalMemory;
use super::machine::Machine;
use super::row::Lane;
use super::shared::RANK_SHIFT;
use super::uop::{Body, Flow, Op2, Step, Uop, fail};
use super::warp::{Warp, lanes};
use crate::error::{Error, Fault};
use crate::ptx::modifier::{BoolOp, Inverted, Modifier, ReduxOp, ShuffleMode, SpecialReg32, VoteMode};
use smallvec::SmallVec;
use std::marker::PhantomData;

/// A branch of all lanes. `aux` is the target.
pub struct Branch;
impl<H: Hooks> Body<H> for Branch {
    #[inline(always)]
    fn run(w: &mut Warp, _: &mut Machine<'_, H>, u: &Uop<H>) -> Step {
        w.pc = u.aux;
        Ok(Flow::Jump)
    }
}

/// A branch whose predicate `a` (`c`: negated) is equal in all lanes. `aux` indexes the program's branches.
pub struct BranchUniform;
impl<H: Hooks> Body<H> for BranchUniform {
    #[inline(always)]
    fn run(w: &mut Warp, m: &mut Machine<'_, H>, u: &Uop<H>) -> Step {
        let p = w.predicate(u.a) ^ 0u32.wrapping_sub(u32::from(u.c));
        let taken = p & w.path;
        let targets = m.program.branches[u.aux as usize];
        if taken != 0 && taken != w.path {
            return fail(
                Error::new(Fault::Execution, "lanes of a warp part at a branch marked uniform")
                    .expected("a predicate that is equal in all lanes")
                    .got(format!("true in lanes 0x{taken:08x} of 0x{:08x}", w.path)),
            );
        }
        w.pc = if taken != 0 { targets.then } else { targets.otherwise };
        Ok(Flow::Jump)
    }
}

/// A branch at which lanes may diverge.
pub struct BranchDivergent;
impl<H: Hooks> Body<H> for BranchDivergent {
    #[inline(always)]
    fn run(w: &mut Warp, m: &mut Machine<'_, H>, u: &Uop<H>) -> Step {
        let taken = (w.predicate(u.a) ^ 0u32.wrapping_sub(u32::from(u.c))) & w.path;
        let targets = m.program.branches[u.aux as usize];
        w.diverge(taken, targets.then, targets.otherwise, targets.join);
        Ok(Flow::Jump)
    }
}

/// Where lanes that diverged reconverge. `aux` is its own position.
pub struct Join;
impl<H: Hooks> Body<H> for Join {
    #[inline(always)]
    fn run(w: &mut Warp, _: &mut Machine<'_, H>, u: &Uop<H>) -> Step {
        if w.stack.is_empty() {
            return Ok(Flow::Next);
        }
        Ok(if w.join(u.aux) { Flow::Jump } else { Flow::Next })
    }
}

/// `ret`.
pub struct Return;
impl<H: Hooks> Body<H> for Return {
    #[inline(always)]
    fn run(w: &mut Warp, m: &mut Machine<'_, H>, _: &Uop<H>) -> Step {
        if !w.leave() {
            return Ok(Flow::Exit);
        }
        m.warp_at_cluster(w);
        Ok(Flow::Jump)
    }
}

/// Starts instructions that only the lanes of predicate `a` (`c`: negated) execute; `aux` is behind them.
pub struct GuardBegin;
impl<H: Hooks> Body<H> for GuardBegin {
    #[inline(always)]
    fn run(w: &mut Warp, _: &mut Machine<'_, H>, u: &Uop<H>) -> Step {
        let exec = (w.predicate(u.a) ^ 0u32.wrapping_sub(u32::from(u.c))) & w.path;
        if exec == 0 {
            w.pc = u.aux;
            return Ok(Flow::Jump);
        }
        w.set_exec(exec);
        Ok(Flow::Next)
    }
}

pub struct GuardEnd;
impl<H: Hooks> Body<H> for GuardEnd {
    #[inline(always)]
    fn run(w: &mut Warp, _: &mut Machine<'_, H>, _: &Uop<H>) -> Step {
        w.set_exec(w.path);
        Ok(Flow::Next)
    }
}

/// Does nothing: what concerns only caches and later launches.
pub struct Nothing;
impl<H: Hooks> Body<H> for Nothing {
    #[inline(always)]
    fn run(_: &mut Warp, _: &mut Machine<'_, H>, _: &Uop<H>) -> Step {
        Ok(Flow::Next)
    }
}

/// The kernel stops with an error.
pub struct Trap;
impl<H: Hooks> Body<H> for Trap {
    fn run(w: &mut Warp, _: &mut Machine<'_, H>, _: &Uop<H>) -> Step {
        let error = Error::new(Fault::Execution, "the kernel trapped").got(format!("by lanes 0x{:08x}", w.exec));
        fail(error)
    }
}

/// The others go first.
pub struct Sleep;
impl<H: Hooks> Body<H> for Sleep {
    #[inline(always)]
    fn run(_: &mut Warp, _: &mut Machine<'_, H>, _: &Uop<H>) -> Step {
        Ok(Flow::Yield)
    }
}

/// A 32-bit special register; `imm` is its position in the enum.
pub struct Special32;
impl<H: Hooks> Body<H> for Special32 {
    #[inline(always)]
    fn run(w: &mut Warp, m: &mut Machine<'_, H>, u: &Uop<H>) -> Step {
        let cta = m.cta(w.cta);
        let launch = &m.program.launch;
        let cluster = m.clusters[cta.cluster as usize].id;
        let value = match SpecialReg32::ALL[u.imm as usize] {
            SpecialReg32::TidX => {
                w.write::<u32>(u.d, std::array::from_fn(|lane| w.index * 32 + lane as u32));
                return Ok(Flow::Next);
            }
            SpecialReg32::Laneid => {
                w.write::<u32>(u.d, std::array::from_fn(|lane| lane as u32));
                return Ok(Flow::Next);
            }
            SpecialReg32::LanemaskLt => {
                w.write::<u32>(u.d, std::array::from_fn(|lane| (1u32 << lane) - 1));
                return Ok(Flow::Next);
            }
            SpecialReg32::LanemaskEq => {
                w.write::<u32>(u.d, std::array::from_fn(|lane| 1u32 << lane));
                return Ok(Flow::Next);
            }
            SpecialReg32::LanemaskLe => {
                w.write::<u32>(u.d, std::array::from_fn(|lane| u32::MAX >> (31 - lane)));
                return Ok(Flow::Next);
            }
            SpecialReg32::LanemaskGe => {
                w.write::<u32>(u.d, std::array::from_fn(|lane| u32::MAX << lane));
                return Ok(Flow::Next);
            }
            SpecialReg32::LanemaskGt => {
                w.write::<u32>(u.d, std::array::from_fn(|lane| (u32::MAX << lane) << 1));
                return Ok(Flow::Next);
            }
            // Blocks have one dimension.
            SpecialReg32::TidY | SpecialReg32::TidZ => 0,
            SpecialReg32::NtidY | SpecialReg32::NtidZ => 1,
            SpecialReg32::Warpid => w.index,
            // Of the SM, not of the block: 64, measured on an H100.
            SpecialReg32::Nwarpid => 64,
            SpecialReg32::NclusteridX => launch.grid[0] / launch.cluster[0],
            SpecialReg32::NclusteridY => launch.grid[1] / launch.cluster[1],
            SpecialReg32::NclusteridZ => launch.grid[2] / launch.cluster[2],
            SpecialReg32::ClusterNctaidX => launch.cluster[0],
            SpecialReg32::ClusterNctaidY => launch.cluster[1],
            SpecialReg32::ClusterNctaidZ => launch.cluster[2],
            SpecialReg32::ClockHi | SpecialReg32::GlobaltimerHi => (m.clock >> 32) as u32,
            SpecialReg32::DynamicSmemSize => launch.smem_bytes,
            // Shared memory is given out 128 bytes at a time.
            SpecialReg32::TotalSmemSize => launch.smem_bytes.next_multiple_of(128),
            SpecialReg32::NtidX => launch.block,
            SpecialReg32::CtaidX => cta.id[0],
            SpecialReg32::CtaidY => cta.id[1],
            SpecialReg32::CtaidZ => cta.id[2],
            SpecialReg32::NctaidX => launch.grid[0],
            SpecialReg32::NctaidY => launch.grid[1],
            SpecialReg32::NctaidZ => launch.grid[2],
            SpecialReg32::ClusterCtaidX => cta.rank_id[0],
            SpecialReg32::ClusterCtaidY => cta.rank_id[1],
            SpecialReg32::ClusterCtaidZ => cta.rank_id[2],
            SpecialReg32::ClusteridX => cluster[0],
            SpecialReg32::ClusteridY => cluster[1],
            SpecialReg32::ClusteridZ => cluster[2],
            SpecialReg32::ClusterCtarank => cta.rank,
            SpecialReg32::ClusterNctarank => launch.cluster.iter().product(),
            SpecialReg32::Smid => w.cta.0 % m.options.sms.max(1),
            SpecialReg32::Nsmid => m.options.sms,
            SpecialReg32::Clock | SpecialReg32::GlobaltimerLo => m.clock as u32,
        };
        w.write::<u32>(u.d, [value; 32]);
        Ok(Flow::Next)
    }
}

/// `%is_explicit_cluster`.
pub struct IsCluster;
impl<H: Hooks> Body<H> for IsCluster {
    #[inline(always)]
    fn run(w: &mut Warp, m: &mut Machine<'_, H>, u: &Uop<H>) -> Step {
        let is = m.program.launch.cluster != [1, 1, 1];
        w.write_predicate(u.d, if is { u32::MAX } else { 0 });
        Ok(Flow::Next)
    }
}

/// `%clock64` and `%globaltimer`: micro-ops executed. `%gridid`: some number.
pub struct Clock64;
impl<H: Hooks> Body<H> for Clock64 {
    #[inline(always)]
    fn run(w: &mut Warp, m: &mut Machine<'_, H>, u: &Uop<H>) -> Step {
        w.write::<u64>(u.d, [m.clock; 32]);
        Ok(Flow::Next)
    }
}

/// The address of byte `aux` of buffer `imm` of the CTA's device.
pub struct LoadPointer;
impl<H: Hooks> Body<H> for LoadPointer {
    #[inline(always)]
    fn run(w: &mut Warp, m: &mut Machine<'_, H>, u: &Uop<H>) -> Step {
        let address = GlobalMemory::address(m.buffer_of(w.cta, u.imm as u32)) + u64::from(u.aux);
        w.write::<u64>(u.d, [address; 32]);
        Ok(Flow::Next)
    }
}

/// A constant into a row, or (`c`) a pair of rows; the upper word is `aux`.
pub struct SetRows;
impl<H: Hooks> Body<H> for SetRows {
    #[inline(always)]
    fn run(w: &mut Warp, _: &mut Machine<'_, H>, u: &Uop<H>) -> Step {
        let low = u.imm as u32;
        match u.c {
            0 => w.write::<u32>(u.d, [low; 32]),
            _ => w.write::<u64>(u.d, [u64::from(low) | u64::from(u.aux) << 32; 32]),
        }
        Ok(Flow::Next)
    }
}

/// `d = a ? all : none`, of a constant (`imm`) or a predicate.
pub struct SetPredicate;
impl<H: Hooks> Body<H> for SetPredicate {
    #[inline(always)]
    fn run(w: &mut Warp, _: &mut Machine<'_, H>, u: &Uop<H>) -> Step {
        w.write_predicate(u.d, u.imm as u32);
        Ok(Flow::Next)
    }
}
pub struct MovePredicate;
impl<H: Hooks> Body<H> for MovePredicate {
    #[inline(always)]
    fn run(w: &mut Warp, _: &mut Machine<'_, H>, u: &Uop<H>) -> Step {
        w.write_predicate(u.d, w.predicate(u.a));
        Ok(Flow::Next)
    }
}
/// Logic of predicates; `imm`: 0 and, 1 or, 2 xor, 3 not.
pub struct LogicPredicate;
impl<H: Hooks> Body<H> for LogicPredicate {
    #[inline(always)]
    fn run(w: &mut Warp, _: &mut Machine<'_, H>, u: &Uop<H>) -> Step {
        let (a, b) = (w.predicate(u.a), w.predicate(u.b));
        let bits = match u.imm {
            0 => a & b,
            1 => a | b,
            2 => a ^ b,
            _ => !a,
        };
        w.write_predicate(u.d, bits);
        Ok(Flow::Next)
    }
}

/// What [`CombinePredicate`] does: a predicate, maybe negated, combined with another one, maybe negated.
pub fn combine_code(with: Option<(BoolOp, Inverted)>, negated: bool) -> i32 {
    let with = with.map_or(3, |(op, other)| op as i32 | i32::from(other == Inverted::Yes) << 2);
    with | i32::from(negated) << 3
}

/// Predicate `a` combined with `b`; `imm`: [`combine_code`].
pub struct CombinePredicate;
impl<H: Hooks> Body<H> for CombinePredicate {
    #[inline(always)]
    fn run(w: &mut Warp, _: &mut Machine<'_, H>, u: &Uop<H>) -> Step {
        let flipped = |bits: u32, flag: i32| if u.imm & flag != 0 { !bits } else { bits };
        let a = flipped(w.predicate(u.a), 8);
        let b = flipped(w.predicate(u.b), 4);
        let bits = match BoolOp::ALL.get((u.imm & 3) as usize) {
            Some(BoolOp::And) => a & b,
            Some(BoolOp::Or) => a | b,
            Some(BoolOp::Xor) => a ^ b,
            None => a,
        };
        w.write_predicate(u.d, bits);
        Ok(Flow::Next)
    }
}

/// `d = predicate c ? a : b`.
pub struct Select<T>(PhantomData<T>);
impl<T: Lane, H: Hooks> Body<H> for Select<T> {
    #[inline(always)]
    fn run(w: &mut Warp, _: &mut Machine<'_, H>, u: &Uop<H>) -> Step {
        use super::row::{Raw, Row};
        let mask = Row::of_mask(w.predicate(u.c)).0;
        let (a, b) = (w.read::<T>(u.a), w.read::<T>(u.b));
        let mut out = [T::Raw::default(); 32];
        for i in 0..32 {
            out[i] = T::Raw::blend(mask[i], a[i], b[i]);
        }
        w.write::<T>(u.d, out);
        Ok(Flow::Next)
    }
}

/// Two halves `a` (low) and `b` into one register.
pub struct Pack32;
impl Op2 for Pack32 {
    type A = u16;
    type B = u16;
    type D = u32;
    #[inline(always)]
    fn f(_: u32, a: u16, b: u16) -> u32 {
        u32::from(a) | u32::from(b) << 16
    }
}
pub struct Pack64;
impl Op2 for Pack64 {
    type A = u32;
    type B = u32;
    type D = u64;
    #[inline(always)]
    fn f(_: u32, a: u32, b: u32) -> u64 {
        u64::from(a) | u64::from(b) << 32
    }
}
/// `a` into `d` (low) and `b`.
pub struct Unpack32;
impl<H: Hooks> Body<H> for Unpack32 {
    #[inline(always)]
    fn run(w: &mut Warp, _: &mut Machine<'_, H>, u: &Uop<H>) -> Step {
        let a = *w.read::<u32>(u.a);
        w.write::<u16>(u.d, a.map(|x| x & 0xffff));
        w.write::<u16>(u.b, a.map(|x| x >> 16));
        Ok(Flow::Next)
    }
}
pub struct Unpack64;
impl<H: Hooks> Body<H> for Unpack64 {
    #[inline(always)]
    fn run(w: &mut Warp, _: &mut Machine<'_, H>, u: &Uop<H>) -> Step {
        let a = *w.read::<u64>(u.a);
        w.write::<u32>(u.d, a.map(|x| x as u32));
        w.write::<u32>(u.b, a.map(|x| (x >> 32) as u32));
        Ok(Flow::Next)
    }
}

/// `mapa`: the address `a` in the CTA of rank `b`.
pub struct MapAddress;
impl Op2 for MapAddress {
    type A = u32;
    type B = u32;
    type D = u32;
    #[inline(always)]
    fn f(_: u32, a: u32, rank: u32) -> u32 {
        (a & ((1 << RANK_SHIFT) - 1)) | (rank + 1) << RANK_SHIFT
    }
}

/// `getctarank`: an address without a rank is of the CTA's own memory.
pub struct CtaRank;
impl<H: Hooks> Body<H> for CtaRank {
    #[inline(always)]
    fn run(w: &mut Warp, m: &mut Machine<'_, H>, u: &Uop<H>) -> Step {
        let own = m.cta(w.cta).rank;
        let out = w.read::<u32>(u.a).map(|a| match a >> RANK_SHIFT {
            0 => own,
            rank => rank - 1,
        });
        w.write::<u32>(u.d, out);
        Ok(Flow::Next)
    }
}

/// The four halves of the list `aux`, lowest first, into `d`.
pub struct PackQuarters;
impl<H: Hooks> Body<H> for PackQuarters {
    #[inline(never)]
    fn run(w: &mut Warp, m: &mut Machine<'_, H>, u: &Uop<H>) -> Step {
        let halves = &m.program.lists[u.aux as usize..u.aux as usize + 4];
        let mut out = [0; 32];
        for (i, half) in halves.iter().enumerate() {
            for (out, half) in out.iter_mut().zip(w.read::<u16>(*half)) {
                *out |= u64::from(*half & 0xffff) << (16 * i);
            }
        }
        w.write::<u64>(u.d, out);
        Ok(Flow::Next)
    }
}
/// `a` into the four halves of the list `aux`.
pub struct UnpackQuarters;
impl<H: Hooks> Body<H> for UnpackQuarters {
    #[inline(never)]
    fn run(w: &mut Warp, m: &mut Machine<'_, H>, u: &Uop<H>) -> Step {
        let a = *w.read::<u64>(u.a);
        let halves = &m.program.lists[u.aux as usize..u.aux as usize + 4];
        for (i, half) in halves.iter().enumerate() {
            w.write::<u16>(*half, a.map(|x| (x >> (16 * i)) as u32 & 0xffff));
        }
        Ok(Flow::Next)
    }
}

/// `bfi`: `a` into `b` at `c`; `aux` is the operand of the length.
pub struct Insert<T>(PhantomData<T>);
impl<T: super::ops::Fields, H: Hooks> Body<H> for Insert<T> {
    #[inline(always)]
    fn run(w: &mut Warp, _: &mut Machine<'_, H>, u: &Uop<H>) -> Step {
        let (a, b) = (w.read::<T>(u.a), w.read::<T>(u.b));
        let (pos, len) = (w.read::<u32>(u.c), w.read::<u32>(u.aux as u16));
        let mut out = [<T::Raw as Default>::default(); 32];
        for i in 0..32 {
            out[i] = T::from_raw(a[i]).insert(T::from_raw(b[i]), pos[i], len[i]).into_raw();
        }
        w.write::<T>(u.d, out);
        Ok(Flow::Next)
    }
}

/// The lanes that a mask names must be those that execute.
#[inline(always)]
fn check_members(w: &Warp, mask: u32) -> Result<(), Box<Error>> {
    if mask & w.alive == w.exec {
        return Ok(());
    }
    fail(
        Error::new(
            Fault::Execution,
            "a warp-wide instruction in code that not all its lanes execute",
        )
        .expected(format!("lanes 0x{:08x}", mask & w.alive))
        .got(format!("lanes 0x{:08x}", w.exec)),
    )
}

/// What every lane gets from which other one.
struct Shuffled {
    values: [u32; 32],
    from: [u8; 32],
    /// The lanes whose source is within their segment.
    inside: u32,
}

impl Shuffled {
    /// The lanes that some of `lanes` read.
    fn sources(&self, mask: u32) -> u32 {
        lanes(mask).fold(0, |sources, i| sources | 1 << self.from[i])
    }
}

/// PTX ISA 9.7.9.6.
#[inline(always)]
fn shuffled<H: Hooks>(w: &Warp, u: &Uop<H>, mode: ShuffleMode) -> Shuffled {
    let (a, b, c) = (w.read::<u32>(u.a), w.read::<u32>(u.b), w.read::<u32>(u.c));
    let (mut values, mut sources) = ([0; 32], [0; 32]);
    let mut all_inside = 0;
    for i in 0..32 {
        let lane = i as i32;
        let by = (b[i] & 31) as i32;
        let clamp = (c[i] & 31) as i32;
        let segment = (c[i] >> 8 & 31) as i32;
        let last = (lane & segment) | (clamp & !segment);
        let first = lane & segment;
        let (from, inside) = match mode {
            ShuffleMode::Up => (lane - by, lane - by >= last),
            ShuffleMode::Down => (lane + by, lane + by <= last),
            ShuffleMode::Bfly => (lane ^ by, lane ^ by <= last),
            ShuffleMode::Idx => (first | (by & !segment), first | (by & !segment) <= last),
        };
        let from = if inside { from & 31 } else { lane };
        values[i] = a[from as usize];
        sources[i] = from as u8;
        all_inside |= u32::from(inside) << i;
    }
    Shuffled {
        values,
        from: sources,
        inside: all_inside,
    }
}

/// The executing lanes in groups whose masks (an operand) name each other.
fn groups(w: &Warp, masks: u16) -> Result<SmallVec<[u32; 4]>, Box<Error>> {
    let masks = *w.read::<u32>(masks);
    let mut groups = SmallVec::new();
    let mut left = w.exec;
    while left != 0 {
        let mask = masks[left.trailing_zeros() as usize];
        let members = lanes(left).fold(0, |all, i| all | u32::from(masks[i] == mask) << i);
        if mask & w.alive != members {
            return fail(
                Error::new(
                    Fault::Execution,
                    "a warp-wide instruction in code that not all its lanes execute, or execute with the same mask",
                )
                .expected(format!("lanes 0x{:08x}", mask & w.alive))
                .got(format!("lanes 0x{members:08x}")),
            );
        }
        groups.push(members);
        left &= !members;
    }
    Ok(groups)
}

/// No second result.
pub const NO_PREDICATE: u16 = u16::MAX;

/// `shfl.sync`, its masks an operand: the low half of `imm`; the high one is the predicate.
pub struct ShuffleMasked;
impl<H: Hooks> Body<H> for ShuffleMasked {
    #[inline(never)]
    fn run(w: &mut Warp, _: &mut Machine<'_, H>, u: &Uop<H>) -> Step {
        let groups = groups(w, u.imm as u16)?;
        let shuffled = shuffled(w, u, ShuffleMode::ALL[u.aux as usize]);
        for members in groups {
            let lost = shuffled.sources(members) & !members;
            if lost != 0 {
                return fail(
                    Error::new(Fault::Execution, "shuffle from lanes that do not take part")
                        .expected(format!("sources among lanes 0x{members:08x}"))
                        .got(format!("lanes 0x{lost:08x}")),
                );
            }
        }
        w.write::<u32>(u.d, shuffled.values);
        let p = (u.imm >> 16) as u16;
        if p != NO_PREDICATE {
            w.write_predicate(p, shuffled.inside);
        }
        Ok(Flow::Next)
    }
}

/// `vote.sync`, its masks operand `b`.
pub struct VoteMasked;
impl<H: Hooks> Body<H> for VoteMasked {
    #[inline(never)]
    fn run(w: &mut Warp, _: &mut Machine<'_, H>, u: &Uop<H>) -> Step {
        let groups = groups(w, u.b)?;
        let all = w.predicate(u.a);
        let (mut ballots, mut holds) = ([0; 32], 0);
        for members in groups {
            let yes = all & members;
            let held = match VoteMode::ALL.get(u.aux as usize) {
                Some(VoteMode::All) => yes == members,
                Some(VoteMode::Any) => yes != 0,
                Some(VoteMode::Uni) => yes == 0 || yes == members,
                None => false,
            };
            holds |= if held { members } else { 0 };
            lanes(members).for_each(|i| ballots[i] = yes);
        }
        if VoteMode::ALL.len() == u.aux as usize {
            w.write::<u32>(u.d, ballots);
        } else {
            w.write_predicate(u.d, holds);
        }
        Ok(Flow::Next)
    }
}

/// `redux.sync`, its masks operand `b`.
pub struct ReduxMasked;
impl<H: Hooks> Body<H> for ReduxMasked {
    #[inline(never)]
    fn run(w: &mut Warp, _: &mut Machine<'_, H>, u: &Uop<H>) -> Step {
        let groups = groups(w, u.b)?;
        let mut out = [0; 32];
        for members in groups {
            let value = reduced(w.read::<u32>(u.a), members, ReduxOp::ALL[u.aux as usize]);
            lanes(members).for_each(|i| out[i] = value);
        }
        w.write::<u32>(u.d, out);
        Ok(Flow::Next)
    }
}

/// `elect.sync`, its masks operand `b`: the lowest lane into predicate `d`, its number (unless [`NO_PREDICATE`]) into `a`.
pub struct ElectMasked;
impl<H: Hooks> Body<H> for ElectMasked {
    #[inline(never)]
    fn run(w: &mut Warp, _: &mut Machine<'_, H>, u: &Uop<H>) -> Step {
        let groups = groups(w, u.b)?;
        let (mut leaders, mut out) = (0, [0; 32]);
        for members in groups {
            leaders |= members & members.wrapping_neg();
            lanes(members).for_each(|i| out[i] = members.trailing_zeros());
        }
        w.write_predicate(u.d, leaders);
        if u.a != NO_PREDICATE {
            w.write::<u32>(u.a, out);
        }
        Ok(Flow::Next)
    }
}

/// `match.any.sync`, and (`imm` 1) `match.all.sync`, whose predicate is `c`. Masks are operand `b`.
pub struct Match<T>(PhantomData<T>);
impl<T: Lane<Raw: PartialEq>, H: Hooks> Body<H> for Match<T> {
    #[inline(never)]
    fn run(w: &mut Warp, _: &mut Machine<'_, H>, u: &Uop<H>) -> Step {
        let groups = groups(w, u.b)?;
        let (mut out, mut equal) = ([0; 32], 0);
        let a = w.read::<T>(u.a);
        for members in groups {
            let like = |i: usize| lanes(members).fold(0, |all, j| all | u32::from(a[i] == a[j]) << j);
            for i in lanes(members) {
                out[i] = like(i);
            }
            if u.imm != 0 {
                let all = lanes(members).all(|i| out[i] == members);
                equal |= if all { members } else { 0 };
                lanes(members).for_each(|i| out[i] = if all { members } else { 0 });
            }
        }
        w.write::<u32>(u.d, out);
        if u.c != NO_PREDICATE {
            w.write_predicate(u.c, equal);
        }
        Ok(Flow::Next)
    }
}

/// `activemask`.
pub struct ActiveMask;
impl<H: Hooks> Body<H> for ActiveMask {
    #[inline(always)]
    fn run(w: &mut Warp, _: &mut Machine<'_, H>, u: &Uop<H>) -> Step {
        w.write::<u32>(u.d, [w.exec; 32]);
        Ok(Flow::Next)
    }
}

/// `movmatrix`.
pub struct MoveMatrix;
impl<H: Hooks> Body<H> for MoveMatrix {
    #[inline(never)]
    fn run(w: &mut Warp, _: &mut Machine<'_, H>, u: &Uop<H>) -> Step {
        check_members(w, u32::MAX)?;
        let a = w.read::<u32>(u.a);
        let element = |row: usize, column: usize| a[4 * row + column / 2] >> (16 * (column % 2)) & 0xffff;
        let out = std::array::from_fn(|lane| {
            let (row, column) = (lane / 4, 2 * (lane % 4));
            element(column, row) | element(column + 1, row) << 16
        });
        w.write::<u32>(u.d, out);
        Ok(Flow::Next)
    }
}

/// `bar.warp.sync`, its masks operand `a`.
pub struct WarpBarrierMasked;
impl<H: Hooks> Body<H> for WarpBarrierMasked {
    #[inline(never)]
    fn run(w: &mut Warp, _: &mut Machine<'_, H>, u: &Uop<H>) -> Step {
        groups(w, u.a)?;
        Ok(Flow::Next)
    }
}

/// `shfl.sync`; `imm` is the mask, `aux` the mode's position in the enum.
pub struct Shuffle;
impl<H: Hooks> Body<H> for Shuffle {
    #[inline(always)]
    fn run(w: &mut Warp, _: &mut Machine<'_, H>, u: &Uop<H>) -> Step {
        check_members(w, u.imm as u32)?;
        let shuffled = shuffled(w, u, ShuffleMode::ALL[u.aux as usize]);
        let (out, sources) = (shuffled.values, shuffled.sources(w.exec));
        if sources & !w.exec != 0 {
            let (exec, lost) = (w.exec, sources & !w.exec);
            return fail(
                Error::new(Fault::Execution, "shuffle from lanes that do not take part")
                    .expected(format!("sources among lanes 0x{exec:08x}"))
                    .got(format!("lanes 0x{lost:08x}")),
            );
        }
        w.write::<u32>(u.d, out);
        Ok(Flow::Next)
    }
}

/// `vote.sync`; `imm` is the mask, `aux` the mode's position in the enum, 3: ballot.
pub struct Vote;
impl<H: Hooks> Body<H> for Vote {
    #[inline(always)]
    fn run(w: &mut Warp, _: &mut Machine<'_, H>, u: &Uop<H>) -> Step {
        check_members(w, u.imm as u32)?;
        let yes = w.predicate(u.a) & w.exec;
        let Some(mode) = VoteMode::ALL.get(u.aux as usize) else {
            w.write::<u32>(u.d, [yes; 32]);
            return Ok(Flow::Next);
        };
        let holds = match mode {
            VoteMode::All => yes == w.exec,
            VoteMode::Any => yes != 0,
            VoteMode::Uni => yes == 0 || yes == w.exec,
        };
        w.write_predicate(u.d, 0u32.wrapping_sub(u32::from(holds)));
        Ok(Flow::Next)
    }
}

/// The reduction over some lanes.
#[inline(always)]
fn reduced(a: &[u32; 32], members: u32, op: ReduxOp) -> u32 {
    let all = lanes(members).map(|i| a[i]);
    let signed = lanes(members).map(|i| a[i] as i32);
    match op {
        ReduxOp::AddU32 | ReduxOp::AddS32 => all.fold(0, u32::wrapping_add),
        ReduxOp::MinU32 => all.min().unwrap_or(0),
        ReduxOp::MaxU32 => all.max().unwrap_or(0),
        ReduxOp::MinS32 => signed.min().unwrap_or(0) as u32,
        ReduxOp::MaxS32 => signed.max().unwrap_or(0) as u32,
        ReduxOp::And => all.fold(!0, |x, y| x & y),
        ReduxOp::Or => all.fold(0, |x, y| x | y),
        ReduxOp::Xor => all.fold(0, |x, y| x ^ y),
    }
}

/// `redux.sync`; `imm` is the mask, `aux` the operation's position in the enum.
pub struct Redux;
impl<H: Hooks> Body<H> for Redux {
    #[inline(always)]
    fn run(w: &mut Warp, _: &mut Machine<'_, H>, u: &Uop<H>) -> Step {
        check_members(w, u.imm as u32)?;
        let value = reduced(w.read::<u32>(u.a), w.exec, ReduxOp::ALL[u.aux as usize]);
        w.write::<u32>(u.d, [value; 32]);
        Ok(Flow::Next)
    }
}

/// `elect.sync`: the lowest lane.
pub struct Elect;
impl<H: Hooks> Body<H> for Elect {
    #[inline(always)]
    fn run(w: &mut Warp, _: &mut Machine<'_, H>, u: &Uop<H>) -> Step {
        check_members(w, u.imm as u32)?;
        w.write_predicate(u.d, w.exec & w.exec.wrapping_neg());
        Ok(Flow::Next)
    }
}

/// `bar.warp.sync`.
pub struct WarpBarrier;
impl<H: Hooks> Body<H> for WarpBarrier {
    #[inline(always)]
    fn run(w: &mut Warp, _: &mut Machine<'_, H>, u: &Uop<H>) -> Step {
        check_members(w, u.imm as u32).map(|()| Flow::Next)
    }
}
