//! Copies: bulk and tensor copies here, others by [threads](super::copy_by_threads).
//!
//! One thread issues: the elected lane of the warpgroup's first warp (of the warp, in warp regions), always the same, so that
//! a copy and the commit of its group are the same thread's. Commits of groups and waits for stores are executed by every thread
//! and mean something in the one that issued.
use super::cx::LowerCx;
use super::emit::{S, V};
use super::{barrier, copy_by_threads, exchange, memory, view};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::kernel_ir::*;
use crate::layout::facts::DynTerm;
use crate::layout::tma::{self, Affine, BulkPlan, CopyPlan, OutOfBounds, Piece, TensorPlan};
use crate::layout::transfer::Direction;
use crate::layout::views::{out_of_bounds, value_of};
use crate::plan::{Announces, FeedingPart};
use crate::ptx::inst::Inst;
use crate::ptx::launch::{TensorMapElement, TensorMapSpec, TensorMapSwizzle};
use crate::ptx::legal::MAX_PENDING_BULK_GROUPS;
use crate::ptx::modifier::*;
use crate::ptx::operand::{Addr, Class, Src, Srcs};

/// How a tensor map counts elements of a type.
pub fn element_of(dtype: DType) -> TensorMapElement {
    match (dtype, dtype.bits()) {
        (DType::F16, _) => TensorMapElement::F16,
        (DType::BF16, _) => TensorMapElement::BF16,
        (DType::F32, _) => TensorMapElement::F32,
        (DType::F64, _) => TensorMapElement::F64,
        (DType::I32, _) => TensorMapElement::I32,
        (DType::I64, _) => TensorMapElement::I64,
        (_, 16) => TensorMapElement::U16,
        (_, 32) => TensorMapElement::U32,
        (_, 64) => TensorMapElement::U64,
        _ => TensorMapElement::U8,
    }
}

/// The tensor map of a copy, and the coordinates of its first box. `oob`: what becomes of elements outside of the array.
fn tensor(
    cx: &mut LowerCx,
    gmem: &RefUse,
    plan: &TensorPlan,
    oob: OutOfBounds,
    direction: Direction,
) -> Result<(V, Vec<S>)> {
    let spec = map_spec(cx, gmem, plan)?;
    let map = match gmem.place {
        Place::Peer { device } => exchange::tensor_map(cx, device, &spec)?,
        Place::Here | Place::Cluster { .. } | Place::Multicast { .. } => cx.tensor_map(spec),
    };
    Ok((map, coordinates(cx, plan, oob, direction)?))
}

/// The coordinates of a copy's first box.
pub fn coordinates(cx: &mut LowerCx, plan: &TensorPlan, oob: OutOfBounds, direction: Direction) -> Result<Vec<S>> {
    let mut coords = vec![];
    for (k, affine) in plan.coords.iter().enumerate() {
        if oob == OutOfBounds::Ignored {
            coords.push(affine32(cx, affine)?);
            continue;
        }
        // No array reaches `outside`, and no box from there into one. A store's is directly behind the array: a negative coordinate is an
        // illegal instruction ([`TensorPlan::check_room_behind`]).
        let outside = match direction {
            Direction::Load => i32::MIN,
            Direction::Store => plan.dims[k] as i32,
        };
        let last = plan.last_box(k);
        let copied = u64::from(last) + u64::from(plan.box_dims[k]);
        let mut at = coordinate(cx, affine, (plan.dims[k], outside), last, copied)?;
        for part in plan.parts.iter().filter(|part| part.of == k) {
            let index = coordinate(cx, &part.index, (part.extent, i32::MIN), 0, 1)?;
            let inside =
                cx.b.setp(Compare::Lt, CompareType::U32, index, Src::u32(part.extent as u32));
            at = cx.b.select(BitType::B32, inside, at, Src::imm32(outside));
        }
        coords.push(at);
    }
    Ok(coords)
}

/// What the tensor map of a copy is over.
pub fn map_spec(cx: &LowerCx, gmem: &RefUse, plan: &TensorPlan) -> Result<TensorMapSpec> {
    let dtype = gmem.dtype();
    let dtype = dtype.ok_or_else(|| Error::internal("a copy of something that is no data"))?;
    Ok(TensorMapSpec {
        buffer: cx.buffer_of(gmem.alloc)?,
        byte_offset: plan.base,
        element: element_of(dtype),
        dims: plan.dims.clone(),
        strides: plan.strides.clone(),
        box_dims: plan.box_dims.clone(),
        swizzle: swizzle_of(plan.swizzle),
    })
}

/// That of so many bytes.
pub fn swizzle_of(bytes: u32) -> TensorMapSwizzle {
    match bytes {
        128 => TensorMapSwizzle::B128,
        64 => TensorMapSwizzle::B64,
        32 => TensorMapSwizzle::B32,
        _ => TensorMapSwizzle::None,
    }
}

/// Where a copy of so many begins along a dimension of this extent, in 32 bits: outside of it if it is, there if they do not hold it. Of a store,
/// whose `outside` is not negative, the last box may begin at no negative number either: at `last` behind the first.
fn coordinate(cx: &mut LowerCx, a: &Affine, (extent, outside): (u64, i32), last: u32, copied: u64) -> Result<S> {
    let is_right = |(lo, hi): (i128, i128)| {
        // A number that is too large for a signed one becomes negative, one that is too small becomes large.
        let stays_outside = lo + (1 << 32) >= i128::from(extent) && hi + i128::from(copied) <= 1 << 32;
        stays_outside && (outside < 0 || hi + i128::from(last) < 1 << 31)
    };
    match bounds(cx, a).is_some_and(is_right) {
        true => affine32(cx, a),
        false => saturated(cx, a, outside, if outside < 0 { 0 } else { copied }),
    }
}

/// The least and the largest number that a coordinate may be; none if its quotients are not known to be those of 32 bits.
pub fn bounds(cx: &LowerCx, a: &Affine) -> Option<(i128, i128)> {
    let (mut lo, mut hi) = (i128::from(a.constant), i128::from(a.constant));
    for t in &a.terms {
        let facts = cx.kernel.facts(value_of(t.value));
        if t.div != 1 && !facts.within(i32::MIN, i32::MAX) && !facts.within(0, u32::MAX) {
            return None;
        }
        let (div, stride) = (i128::from(t.div), i128::from(t.stride));
        lo += facts.lo.div_euclid(div) * stride;
        hi += facts.hi.div_euclid(div) * stride;
    }
    Some((lo, hi))
}

/// A coordinate in 32 bits.
fn affine32(cx: &mut LowerCx, a: &Affine) -> Result<S> {
    let mut sum: Option<S> = None;
    for t in &a.terms {
        let x = if t.div == 1 || cx.kernel.facts(value_of(t.value)).lo >= 0 {
            view::dyn_term(cx, t)?
        } else {
            let x = view::dyn_value(cx, t.value)?;
            scaled_exactly(cx, IntType::S32, x, t)
        };
        sum = Some(match sum {
            None => x,
            Some(s) => cx.b.add(IntType::S32, s, x),
        });
    }
    Ok(match sum {
        None => Src::imm32(a.constant as i32),
        Some(s) => cx.b.add(IntType::S32, s, Src::imm32(a.constant as i32)),
    })
}

/// The start of a slice in steps of a tile, of which it is a multiple, negative ones too.
fn scaled_exactly(cx: &mut LowerCx, ty: IntType, x: S, t: &DynTerm) -> S {
    let imm = |x: u64| match ty {
        IntType::S64 => Src::Imm(x),
        _ => Src::u32(x as u32),
    };
    let quotient = match t.div.is_power_of_two() {
        true => cx.b.shr(ty.as_shift(), x, Src::u32(t.div.trailing_zeros())),
        false => cx.b.div(ty, x, imm(t.div)),
    };
    cx.b.mul(ty, quotient, imm(t.stride as u64))
}

/// A coordinate of whose number, or of so many behind it, 32 bits would not be enough. An index is cut to where nothing of an array is,
/// so that sums have room.
fn saturated(cx: &mut LowerCx, a: &Affine, outside: i32, copied: u64) -> Result<S> {
    let far = 1i64 << 32;
    let mut sum: S = Src::Imm(a.constant as u64);
    for t in &a.terms {
        let v = value_of(t.value);
        let facts = cx.kernel.facts(v);
        let mut x = cx.index64(v)?;
        if !facts.within(i64::MIN, far) {
            let ty = if facts.within(i64::MIN, i64::MAX) {
                IntType::S64
            } else {
                IntType::U64
            };
            x = cx.b.min(ty, x, Src::Imm(far as u64));
        }
        if !facts.within(-far, u64::MAX) {
            x = cx.b.max(IntType::S64, x, Src::Imm(-far as u64));
        }
        let x = scaled_exactly(cx, IntType::S64, x, t);
        sum = cx.b.add(IntType::S64, sum, x);
    }
    let short = cx.b.truncate(sum);
    let end = cx.b.add(IntType::S64, sum, Src::Imm(copied));
    let short_end = cx.b.truncate(end);
    let same = cx.b.widen(short_end, true);
    let fits = cx.b.setp(Compare::Eq, CompareType::S64, same, end);
    Ok(cx.b.select(BitType::B32, fits, short, Src::imm32(outside)))
}

/// The global address that a bulk copy starts at.
pub fn gmem_address(cx: &mut LowerCx, gmem: &RefUse, a: &Affine) -> Result<Addr<V>> {
    let mut at: S = exchange::buffer_start(cx, gmem)?;
    let size = memory::size(cx, gmem);
    for t in &a.terms {
        at = memory::add_far(cx, at, t, size)?;
    }
    Ok(memory::address(cx, at, a.constant))
}

/// The shared side of a copy lies in its dimensions; the other one too, where nothing fills or clips what is outside.
fn check_copied(cx: &mut LowerCx, gmem: &RefUse, smem: &RefUse, oob: OutOfBounds, predicate: Option<S>) -> Result<()> {
    if cx.feeding == Some(FeedingPart::Counts) {
        return Ok(());
    }
    let when = predicate.unwrap_or(Src::Imm(1));
    view::check_indices(cx, smem, when)?;
    match oob {
        OutOfBounds::Zeros => Ok(()),
        OutOfBounds::Ignored => view::check_indices(cx, gmem, when),
    }
}

/// Where the shared side of a copy begins, and its plan; none: there is nothing to copy.
fn start<'a>(cx: &mut LowerCx<'a>, op: Op, smem: &RefUse) -> Result<Option<(S, &'a CopyPlan)>> {
    Ok(match cx.copy(op)? {
        Some(copy) => Some((view::smem_start(cx, smem, &copy.smem)?, &copy.plan)),
        None => None,
    })
}

/// `f` in the one thread that issues copies; all threads of the group, or of the part of it that feeds, are here.
pub fn in_issuer(cx: &mut LowerCx, f: impl FnOnce(&mut LowerCx) -> Result<()>) -> Result<()> {
    match (cx.group, cx.feeding) {
        (_, Some(FeedingPart::Counts)) => Ok(()),
        (Group::Warp, _) | (_, Some(FeedingPart::Issues)) => {
            let leader = cx.b.elect();
            cx.if_then(leader.into(), f)
        }
        (Group::Warpgroup | Group::Block, None) => {
            let issues = cx.is_issuing_warp();
            cx.if_then(issues, |cx| {
                let leader = cx.b.elect();
                cx.if_then(leader.into(), f)
            })
        }
    }
}

fn piece_coords(cx: &mut LowerCx, coords: &[S], piece: &Piece) -> Srcs<V> {
    coords
        .iter()
        .zip(&piece.coords)
        .map(|(c, p)| cx.b.add(IntType::S32, *c, Src::u32(*p)))
        .collect()
}

/// The CTAs that share a copy: how many, the own part's number, the mask of all of them.
struct Sharing {
    parts: usize,
    part: S,
    mask: S,
}

fn sharing(cx: &mut LowerCx, axes: &[Axis]) -> Result<Option<Sharing>> {
    let kernel = cx.kernel;
    let parts: u64 = axes.iter().map(|a| kernel.axes[*a].size).product();
    if parts == 1 {
        return Ok(None);
    }
    let mut part: S = Src::u32(0);
    let mut own_offset: S = Src::u32(0);
    let mut mask = 1u32;
    for axis in axes {
        let size = kernel.axes[*axis].size as u32;
        let stride = cx.cluster_stride(*axis)?;
        let at = super::ids::axis_index(cx, *axis)?;
        part = cx.b.mad(IntType::U32, part, Src::u32(size), at);
        own_offset = cx.b.mad(IntType::U32, at, Src::u32(stride), own_offset);
        mask = (0..size).fold(0, |m, i| m | mask << (i * stride));
    }
    // The mask of coordinate 0 on the collective axes, moved to the own coordinates on the others.
    let rank = cx.cluster_rank();
    let others = cx.b.sub(IntType::U32, rank, own_offset);
    let mask = cx.b.shl(BitType::B32, Src::u32(mask), others);
    Ok(Some(Sharing {
        parts: parts as usize,
        part,
        mask,
    }))
}

pub fn lower_copy_gmem_to_smem(cx: &mut LowerCx, op: Op) -> Result<()> {
    let OpKind::CopyGmemToSmem {
        src,
        dst,
        barrier,
        collective_axes,
        leader_tracked: None,
        oob,
        by_threads,
        uncounted,
        predicate,
    } = &cx.kernel.ops[op].kind
    else {
        return Err(cx.unexpected(op));
    };
    let oob = out_of_bounds(*oob);
    let bar = match barrier {
        Some(bar) if !by_threads => bar,
        _ => return load_by_threads(cx, op, (src, oob), (dst, barrier.as_ref(), *uncounted), *predicate),
    };
    let sharing = sharing(cx, collective_axes)?;
    // Nothing to copy: its completion is signalled all the same.
    let planned = start(cx, op, dst)?;
    let bar_addr = barrier::address(cx, bar)?;
    let arrivals = cx.plan.arrivals.by[bar.alloc].count();
    let announced: &[Op] = match &cx.plan.arrivals.announces[op] {
        Announces::Itself => &[op],
        Announces::Run(loads) => loads,
        Announces::Nothing => &[],
    };
    let mut bytes = 0;
    for &load in announced {
        bytes += cx.copy(load)?.map_or(0, |copy| copy.bytes);
    }
    let announces = !announced.is_empty();
    let predicate = match predicate {
        Some(p) => Some(cx.scalar(*p)?),
        None => None,
    };
    check_copied(cx, src, dst, oob, predicate)?;
    let copies: Vec<Guarded> = match planned {
        Some((smem, plan)) => load_instructions(cx, (src, oob), smem, plan, bar_addr, sharing.as_ref())?,
        None => vec![],
    };
    let skips_arrival = cx.kernel.semantics.false_predicate_suppresses_arrival;
    let arrive = move |cx: &mut LowerCx, bytes: S| {
        if !announces {
            return;
        }
        if arrivals > 1 {
            cx.b.inst(Inst::mbarrier_arrive(bar_addr, Src::u32(arrivals - 1)));
        }
        cx.b.inst(Inst::MbarrierArriveExpectTx { addr: bar_addr, bytes });
    };
    let issue = |cx: &mut LowerCx| {
        for (when, inst) in copies {
            cx.b.inst_if(when, inst);
        }
        Ok(())
    };
    match predicate {
        None => in_issuer(cx, |cx| {
            arrive(cx, Src::u32(bytes));
            issue(cx)
        }),
        Some(p) if skips_arrival => cx.if_then(p, |cx| {
            in_issuer(cx, |cx| {
                arrive(cx, Src::u32(bytes));
                issue(cx)
            })
        }),
        Some(p) => in_issuer(cx, |cx| {
            let expected = cx.b.select(BitType::B32, p, Src::u32(bytes), Src::u32(0));
            arrive(cx, expected);
            cx.if_then(p, issue)
        }),
    }
}

/// The same by all threads of the group.
fn load_by_threads(
    cx: &mut LowerCx,
    op: Op,
    (gmem, oob): (&RefUse, OutOfBounds),
    (smem, barrier, uncounted): (&RefUse, Option<&RefUse>, bool),
    predicate: Option<Value>,
) -> Result<()> {
    let predicate = match predicate {
        Some(p) => Some(cx.scalar(p)?),
        None => None,
    };
    check_copied(cx, gmem, smem, oob, Some(predicate.unwrap_or(Src::Imm(1))))?;
    let issue = |cx: &mut LowerCx, when: Option<S>| match start(cx, op, smem)? {
        Some((smem, plan)) => copy_by_threads::load(cx, &copy_by_threads::Copy { gmem, oob, smem, plan }, when),
        None => Ok(()),
    };
    let Some(barrier) = barrier else {
        issue(cx, predicate)?;
        cx.b.inst(Inst::CopyCommit {});
        return Ok(());
    };
    let bar = barrier::address(cx, barrier)?;
    let by = match uncounted {
        true => None,
        false => Some(cx.plan.arrivals.by[barrier.alloc]),
    };
    if cx.kernel.semantics.false_predicate_suppresses_arrival {
        return cx.if_then(predicate.unwrap_or(Src::Imm(1)), |cx| {
            issue(cx, None)?;
            copy_by_threads::arrive(cx, bar, by)
        });
    }
    issue(cx, predicate)?;
    copy_by_threads::arrive(cx, bar, by)
}

/// An instruction, and when it is executed; none: always.
type Guarded = (Option<V>, Inst<V>);

fn load_instructions(
    cx: &mut LowerCx,
    (src, oob): (&RefUse, OutOfBounds),
    smem: S,
    plan: &CopyPlan,
    bar: Addr<V>,
    sharing: Option<&Sharing>,
) -> Result<Vec<Guarded>> {
    let mask = match sharing {
        Some(sharing) => {
            let mask = cx.b.cvt_int(CvtType::U16, CvtType::U32, sharing.mask);
            Some(cx.b.r16(mask))
        }
        None => None,
    };
    // Where CTAs take turns: whether this one's number is `i` modulo theirs.
    let turn = |cx: &mut LowerCx, i: usize| {
        sharing.map(|s| {
            let number = Src::u32((i % s.parts) as u32);
            let turn = cx.b.setp(Compare::Eq, CompareType::U32, s.part, number);
            cx.b.value(turn, Class::Pred)
        })
    };
    match plan {
        CopyPlan::Bulk(BulkPlan { gmem, bytes }) => {
            let from = gmem_address(cx, src, gmem)?;
            let dst = cx.b.addr(smem, 0);
            let bytes = Src::u32(*bytes);
            Ok(vec![match mask {
                None => (None, Inst::bulk_load(dst, from, bytes, bar)),
                Some(mask) => (turn(cx, 0), Inst::bulk_load_multicast(dst, from, bytes, bar, mask)),
            }])
        }
        CopyPlan::Tensor(plan) => {
            let (map, coords) = tensor(cx, src, plan, oob, Direction::Load)?;
            let (Some(sharing), Some(mask)) = (sharing, mask) else {
                return Ok(plan
                    .pieces
                    .iter()
                    .map(|piece| {
                        let coords = piece_coords(cx, &coords, piece);
                        let dst = cx.b.addr(smem, piece.smem as i32);
                        (None, Inst::TensorLoad { dst, map, coords, bar })
                    })
                    .collect());
            };
            let multicast = |cx: &mut LowerCx, coords: &[S], smem: S, piece: &Piece| {
                let coords = piece_coords(cx, coords, piece);
                let dst = cx.b.addr(smem, piece.smem as i32);
                Inst::tensor_load_multicast(dst, map, coords, bar, mask)
            };
            if plan.sharing == tma::Sharing::InTurns {
                return Ok((plan.pieces.iter().enumerate())
                    .map(|(i, piece)| (turn(cx, i), multicast(cx, &coords, smem, piece)))
                    .collect());
            }
            // Part p has the pieces p·n/parts …; they differ from part 0's by a constant step along one dimension.
            let per_part = plan.pieces.len() / sharing.parts;
            let (first, second) = (&plan.pieces[0], &plan.pieces[per_part]);
            let mut shifted = vec![];
            for (i, c) in coords.iter().enumerate() {
                let step = second.coords[i].wrapping_sub(first.coords[i]);
                shifted.push(cx.b.mad(IntType::S32, sharing.part, Src::u32(step), *c));
            }
            let smem =
                cx.b.mad(IntType::U32, sharing.part, Src::u32(second.smem - first.smem), smem);
            Ok(plan.pieces[..per_part]
                .iter()
                .map(|piece| (None, multicast(cx, &shifted, smem, piece)))
                .collect())
        }
    }
}

pub fn lower_copy_smem_to_gmem(cx: &mut LowerCx, op: Op) -> Result<()> {
    let OpKind::CopySmemToGmem {
        src,
        dst,
        reduction,
        commit_group,
        by_threads,
        predicate,
    } = &cx.kernel.ops[op].kind
    else {
        return Err(cx.unexpected(op));
    };
    if *by_threads {
        let predicate = match predicate {
            Some(p) => cx.scalar(*p)?,
            None => Src::Imm(1),
        };
        check_copied(cx, dst, src, OutOfBounds::Zeros, Some(predicate))?;
        return cx.if_then(predicate, |cx| match start(cx, op, src)? {
            Some((smem, plan)) => {
                let (gmem, oob) = (dst, OutOfBounds::Zeros);
                copy_by_threads::store(cx, &copy_by_threads::Copy { gmem, oob, smem, plan }, *reduction)
            }
            None => Ok(()),
        });
    }
    let planned = start(cx, op, src)?;
    let reduction = reduction.map(|r| match r {
        CopyReduction::Add => TensorRed::Add,
        CopyReduction::Min => TensorRed::Min,
        CopyReduction::Max => TensorRed::Max,
        CopyReduction::Inc => TensorRed::Inc,
        CopyReduction::Dec => TensorRed::Dec,
        CopyReduction::And => TensorRed::And,
        CopyReduction::Or => TensorRed::Or,
        CopyReduction::Xor => TensorRed::Xor,
    });
    let mut copies: Vec<Inst<V>> = vec![];
    match planned {
        None => {}
        Some((smem, CopyPlan::Bulk(BulkPlan { gmem, bytes }))) => {
            let to = gmem_address(cx, dst, gmem)?;
            let src = cx.b.addr(smem, 0);
            copies.push(Inst::bulk_store(to, src, Src::u32(*bytes)));
        }
        Some((smem, CopyPlan::Tensor(plan))) => {
            let (map, coords) = tensor(cx, dst, plan, OutOfBounds::Zeros, Direction::Store)?;
            for piece in &plan.pieces {
                let coords = piece_coords(cx, &coords, piece);
                let src = cx.b.addr(smem, piece.smem as i32);
                copies.push(match reduction {
                    None => Inst::TensorStore { map, coords, src },
                    Some(op) => Inst::TensorReduce { op, map, coords, src },
                });
            }
        }
    }
    let commit = *commit_group;
    let predicate = match predicate {
        Some(p) => Some(cx.scalar(*p)?),
        None => None,
    };
    check_copied(cx, dst, src, OutOfBounds::Zeros, predicate)?;
    let issue = |cx: &mut LowerCx| {
        for inst in copies {
            cx.b.inst(inst);
        }
        Ok(())
    };
    in_issuer(cx, |cx| {
        cx.if_then(predicate.unwrap_or(Src::Imm(1)), issue)?;
        if commit {
            cx.b.inst(Inst::BulkCommit {});
        }
        Ok(())
    })
}

/// By every thread: those that issue nothing end an empty group, which costs less than a branch around it. (In a loop with
/// tensor cores the branch cost 3 to 5 %: ptxas then moves what stands before a wait behind it.)
pub fn lower_commit_group(cx: &mut LowerCx, _op: Op) -> Result<()> {
    if cx.feeding != Some(FeedingPart::Counts) {
        cx.b.inst(Inst::BulkCommit {});
    }
    Ok(())
}

pub fn lower_wait_smem_to_gmem(cx: &mut LowerCx, _op: Op, n: u32, scope: WaitScope) -> Result<()> {
    let what = match scope {
        WaitScope::SmemRead => BulkWait::Read,
        WaitScope::Complete => BulkWait::Complete,
    };
    // Fewer pending ones are right too.
    let n = i64::from(n).min(MAX_PENDING_BULK_GROUPS);
    cx.b.inst(Inst::BulkWait { what, n });
    Ok(())
}

/// The group's copies without a barrier have come, but for those of the last `n` groups, and all see them.
pub fn lower_wait_gmem_to_smem(cx: &mut LowerCx, n: u32) -> Result<()> {
    cx.b.inst(match n {
        0 => Inst::CopyWaitAll {},
        _ => Inst::CopyWait { n: n.into() },
    });
    cx.sync_group();
    Ok(())
}

pub fn lower_prefetch(cx: &mut LowerCx, op: Op) -> Result<()> {
    let OpKind::Prefetch {
        src,
        leader_tracked: None,
        predicate,
        ..
    } = &cx.kernel.ops[op].kind
    else {
        return Err(cx.unexpected(op));
    };
    let Some(planned) = cx.copy(op)? else { return Ok(()) };
    let mut copies: Vec<Inst<V>> = vec![];
    match &planned.plan {
        CopyPlan::Bulk(BulkPlan { gmem, bytes }) => {
            let from = gmem_address(cx, src, gmem)?;
            copies.push(Inst::bulk_prefetch(from, Src::u32(*bytes)));
        }
        CopyPlan::Tensor(plan) => {
            let (map, coords) = tensor(cx, src, plan, OutOfBounds::Ignored, Direction::Load)?;
            for piece in &plan.pieces {
                let coords = piece_coords(cx, &coords, piece);
                copies.push(Inst::TensorPrefetch { map, coords });
            }
        }
    }
    let predicate = match predicate {
        Some(p) => cx.scalar(*p)?,
        None => Src::Imm(1),
    };
    in_issuer(cx, |cx| {
        cx.if_then(predicate, |cx| {
            for inst in copies {
                cx.b.inst(inst);
            }
            Ok(())
        })
    })
}

/// Every thread's writes become visible to the async proxy, and then all threads have done so.
pub fn lower_commit_smem(cx: &mut LowerCx, _op: Op) -> Result<()> {
    cx.b.inst(Inst::fence_proxy(ProxyFence::AsyncSharedCta));
    cx.sync_group();
    Ok(())
}
