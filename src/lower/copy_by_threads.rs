//! Copies that all threads of a group make, 16 bytes or fewer at a time: without a barrier (the groups of `cp.async`), and on machines that have no
//! bulk copies.
//!
//! What is copied is what the [plan](crate::layout::tma) says, box by box. Rows of a box are cut into chunks, which are numbered as they lie in
//! shared memory; thread `t` of `n` has the chunks `t`, `t + n`, …. Where a chunk is in the array follows from its number. The numbers that follow
//! from `t` alone are computed once; what the others add is known.
//!
//! * **Loads** are `cp.async`, which fills with zeros what is outside of the array. On the barrier each thread arrives when its own have come
//!   (`cp.async.mbarrier.arrive`). Where the author counts arrivals and none is the copy's, the barrier waits for one more from there on (without
//!   `.noinc`).
//! * **Stores** are loads from shared memory and stores. They are over when they have been issued: waiting for them is a barrier of the group.
//! * A row that does not begin at a multiple of 4 bytes goes through registers.
use super::cx::LowerCx;
use super::emit::{S, V};
use super::tma;
use super::{barrier, exchange, memory};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::kernel_ir::{CopyReduction, Group, RefUse};
use crate::layout::facts::gcd;
use crate::layout::smem_layout::Swizzle;
use crate::layout::tma::{Affine, CopyPlan, OutOfBounds, TensorPlan};
use crate::layout::transfer::Direction;
use crate::plan::ArrivesBy;
use crate::ptx::build::Builder;
use crate::ptx::inst::Inst;
use crate::ptx::modifier::*;
use crate::ptx::operand::{Addr, Src, Srcs};
use crate::ptx::ssa::Negated;

/// A copy between an array, `gmem`, and shared memory from `smem` on.
pub struct Copy<'a> {
    pub gmem: &'a RefUse,
    pub oob: OutOfBounds,
    pub smem: S,
    pub plan: &'a CopyPlan,
}

/// A chunk of this thread's.
struct Chunk {
    /// Whether the thread has it, and all of it is in the array; none: always.
    when: Option<S>,
    /// How many of its bytes are in the array; none: all.
    taken: Option<S>,
    gmem: Addr<V>,
    smem: Addr<V>,
}

/// The chunks of a copy, and their bytes.
struct Chunks {
    bytes: u32,
    all: Vec<Chunk>,
}

/// What becomes of a chunk of which only a part is in the array.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Partial {
    /// The others are zeros.
    Filled,
    /// There is none: chunks are small enough.
    Never,
}

/// Emits the loads; where `when` does not hold there are none.
pub fn load(cx: &mut LowerCx, copy: &Copy, when: Option<S>) -> Result<()> {
    let Chunks { bytes, mut all } = chunks(cx, copy, Partial::Filled, 16)?;
    if let Some(wanted) = when {
        for chunk in &mut all {
            chunk.when = Some(chunk.when.map_or(wanted, |has| cx.b.both(wanted, has)));
        }
    }
    let cache = if bytes == 16 { CopyCache::Cg } else { CopyCache::Ca };
    for chunk in all {
        let Chunk {
            when,
            taken,
            gmem,
            smem,
        } = chunk;
        let when = when.map(|p| cx.b.pred(p));
        let size = i64::from(bytes);
        if bytes >= 4 {
            let inst = match taken {
                None => Inst::copy_async(cache, PrefetchSize::No, smem, gmem, size),
                Some(taken) => Inst::copy_async_partly(cache, PrefetchSize::No, smem, gmem, size, taken),
            };
            cx.b.inst_if(when, inst);
            continue;
        }
        // Chunks are no larger than elements: all of one is in the array, or nothing.
        let there = match taken {
            None => None,
            Some(taken) => Some(cx.b.setp(Compare::Ne, CompareType::U32, taken, Src::u32(0))),
        };
        cx.if_then(when.map_or(Src::Imm(1), Src::Reg), |cx| {
            let read = |cx: &mut LowerCx| {
                let found = cx.b.load(Space::Global, memory::mem_type(bytes), gmem, 1)[0];
                Ok(vec![found.into()])
            };
            let zero = |_: &mut LowerCx| Ok(vec![Src::Imm(0)]);
            let class = memory::mem_type(bytes).slot().class;
            let x = match there {
                None => read(cx)?,
                Some(there) => cx.if_else(there, &[class], read, zero)?,
            };
            cx.b.store(Space::Shared, memory::mem_type(bytes), smem, &x);
            Ok(())
        })?;
    }
    Ok(())
}

/// What is loaded will have come when a phase of the barrier is over, of which this is one arrival; `by`: none of those that it counts.
pub fn arrive(cx: &mut LowerCx, bar: Addr<V>, by: Option<ArrivesBy>) -> Result<()> {
    match (by, cx.group) {
        (None, _) => {
            cx.b.inst(Inst::copy_arrive(Counted::No, bar));
            Ok(())
        }
        (Some(by @ ArrivesBy::Lanes), group) => {
            // A warp arrives for all of its warpgroup.
            let times = match group {
                Group::Warp => by.count() / 32,
                Group::Warpgroup | Group::Block => 1,
            };
            for _ in 0..times {
                cx.b.inst(Inst::copy_arrive(Counted::Yes, bar));
            }
            Ok(())
        }
        // Where the author counts.
        (Some(by @ (ArrivesBy::Copies | ArrivesBy::Warpgroup | ArrivesBy::Warps)), _) => {
            cx.b.inst(Inst::CopyWaitAll {});
            barrier::arrive_as_one(cx, bar, by.count());
            Ok(())
        }
    }
}

/// Emits the stores, or combines what is there with what is stored.
pub fn store(cx: &mut LowerCx, copy: &Copy, reduction: Option<CopyReduction>) -> Result<()> {
    let dtype = copy
        .gmem
        .dtype()
        .ok_or_else(|| Error::internal("a copy of something that is no data"))?;
    let reduction = match reduction {
        Some(op) => Some(reduces(op, dtype)?),
        None => None,
    };
    let scope = memory::device_scope(cx);
    let most = reduction.map_or(16, |(_, ty)| ty.slot().class.bits() / 8);
    let Chunks { bytes, all } = chunks(cx, copy, Partial::Never, most)?;
    for Chunk { when, gmem, smem, .. } in all {
        let move_chunk = |b: &mut Builder| {
            let (ty, n) = match bytes {
                16 => (MemType::B32, 4),
                8 if reduction.is_none() => (MemType::B32, 2),
                _ => (memory::mem_type(bytes), 1),
            };
            let found = b.load(Space::Shared, ty, smem, n);
            match reduction {
                None => {
                    let words: Srcs<V> = found.into_iter().map(Src::Reg).collect();
                    b.store(Space::Global, ty, gmem, &words);
                }
                Some((op, ty)) => {
                    let a = Src::Reg(found[0]);
                    b.inst(Inst::red(AtomSem::Relaxed, scope, Space::Global, op, ty, gmem, a));
                }
            }
        };
        match when {
            None => move_chunk(&mut cx.b),
            Some(when) => {
                let when = cx.b.pred(when);
                cx.b.guarded(when, Negated::No, move_chunk);
            }
        }
    }
    Ok(())
}

/// The reduction of one element.
fn reduces(op: CopyReduction, dtype: DType) -> Result<(RedOp, AtomType)> {
    let found = match (op, dtype) {
        (CopyReduction::Add, DType::U32 | DType::I32) => (RedOp::Add, AtomType::U32),
        (CopyReduction::Add, DType::U64 | DType::I64) => (RedOp::Add, AtomType::U64),
        (CopyReduction::Add, DType::F32) => (RedOp::Add, AtomType::F32),
        (CopyReduction::Add, DType::F64) => (RedOp::Add, AtomType::F64),
        (CopyReduction::Add, DType::F16) => (RedOp::Add, AtomType::F16),
        (CopyReduction::Add, DType::BF16) => (RedOp::Add, AtomType::BF16),
        (CopyReduction::Min, DType::U32) => (RedOp::Min, AtomType::U32),
        (CopyReduction::Min, DType::I32) => (RedOp::Min, AtomType::S32),
        (CopyReduction::Min, DType::U64) => (RedOp::Min, AtomType::U64),
        (CopyReduction::Min, DType::I64) => (RedOp::Min, AtomType::S64),
        (CopyReduction::Max, DType::U32) => (RedOp::Max, AtomType::U32),
        (CopyReduction::Max, DType::I32) => (RedOp::Max, AtomType::S32),
        (CopyReduction::Max, DType::U64) => (RedOp::Max, AtomType::U64),
        (CopyReduction::Max, DType::I64) => (RedOp::Max, AtomType::S64),
        (CopyReduction::Inc, DType::U32) => (RedOp::Inc, AtomType::U32),
        (CopyReduction::Dec, DType::U32) => (RedOp::Dec, AtomType::U32),
        (CopyReduction::And, _) if dtype.bits() == 32 => (RedOp::And, AtomType::B32),
        (CopyReduction::Or, _) if dtype.bits() == 32 => (RedOp::Or, AtomType::B32),
        (CopyReduction::Xor, _) if dtype.bits() == 32 => (RedOp::Xor, AtomType::B32),
        (CopyReduction::And, _) if dtype.bits() == 64 => (RedOp::And, AtomType::B64),
        (CopyReduction::Or, _) if dtype.bits() == 64 => (RedOp::Or, AtomType::B64),
        (CopyReduction::Xor, _) if dtype.bits() == 64 => (RedOp::Xor, AtomType::B64),
        // Which is no legal op.
        _ => return Err(Error::internal(format!("a copy that reduces {dtype}"))),
    };
    Ok(found)
}

/// The executing thread's number among those of the group, and how many they are.
fn thread(cx: &mut LowerCx) -> (S, u32) {
    match cx.group {
        Group::Warp => (cx.b.lane().into(), 32),
        Group::Warpgroup | Group::Block => (cx.b.thread_in_warpgroup().into(), 128),
    }
}

/// The largest power of two, `most` at most, that divides all of these.
fn common(most: u32, numbers: impl IntoIterator<Item = u64>) -> u32 {
    let divisor = numbers.into_iter().fold(u64::from(most), gcd);
    1 << divisor.trailing_zeros()
}

/// A number that surely divides the start.
fn divisor(a: &Affine) -> u64 {
    a.terms
        .iter()
        .fold(a.constant.unsigned_abs(), |d, term| gcd(d, term.multiple))
}

fn chunks(cx: &mut LowerCx, copy: &Copy, partial: Partial, most: u32) -> Result<Chunks> {
    match copy.plan {
        CopyPlan::Bulk(plan) => {
            let bytes = common(most, [u64::from(plan.bytes), divisor(&plan.gmem)]);
            let from = tma::gmem_address(cx, copy.gmem, &plan.gmem)?;
            let (t, threads) = thread(cx);
            let near = cx.b.mul(IntType::U32, t, Src::u32(bytes));
            let wide = cx.b.widen(near, false);
            let far = cx.b.add(IntType::U64, from.base, wide);
            let smem = cx.b.add(IntType::U32, copy.smem, near);
            let n = plan.bytes / bytes;
            let mut all = vec![];
            for first in (0..n).step_by(threads as usize) {
                let offset = i64::from(first * bytes);
                all.push(Chunk {
                    when: has(cx, t, first, threads, n),
                    taken: None,
                    gmem: memory::address(cx, far, offset + i64::from(from.offset)),
                    smem: cx.b.addr(smem, offset as i32),
                });
            }
            Ok(Chunks { bytes, all })
        }
        CopyPlan::Tensor(plan) => Boxes::of(cx, copy, plan, partial, most)?.chunks(cx),
    }
}

/// Whether the thread has a chunk, those of the others of the group being beside it; none: all have.
fn has(cx: &mut LowerCx, t: S, first: u32, threads: u32, n: u32) -> Option<S> {
    (first + threads > n).then(|| cx.b.setp(Compare::Lo, CompareType::U32, t, Src::u32(n - first)))
}

/// A number: what follows from the thread's, and what is known.
#[derive(Clone, Copy)]
struct Split {
    thread: S,
    known: u64,
}

/// What is left of a chunk's number to take indices from.
#[derive(Clone, Copy)]
enum Rest {
    /// `thread + known`: `thread` is below `range`, of which `known` is a multiple.
    Split { thread: S, range: u64, known: u64 },
    /// Nothing is known of it.
    Any(S),
}

impl Rest {
    /// The index along a dimension of this extent, which is taken away.
    fn take(self, cx: &mut LowerCx, extent: u64) -> (Split, Rest) {
        let by = Src::u32(extent as u32);
        match self {
            Rest::Split { thread, range, known } if range % extent == 0 => {
                let index = cx.b.rem(IntType::U32, thread, by);
                let rest = Rest::Split {
                    thread: cx.b.div(IntType::U32, thread, by),
                    range: range / extent,
                    known: known / extent,
                };
                (
                    Split {
                        thread: index,
                        known: 0,
                    },
                    rest,
                )
            }
            Rest::Split { thread, range, known } if extent % range == 0 => {
                let rest = Rest::Split {
                    thread: Src::u32(0),
                    range: 1,
                    known: known / extent,
                };
                let known = known % extent;
                (Split { thread, known }, rest)
            }
            Rest::Split { thread, known, .. } => {
                let all = cx.b.add(IntType::U32, thread, Src::u32(known as u32));
                Rest::Any(all).take(cx, extent)
            }
            Rest::Any(all) => {
                let index = cx.b.rem(IntType::U32, all, by);
                let rest = Rest::Any(cx.b.div(IntType::U32, all, by));
                (
                    Split {
                        thread: index,
                        known: 0,
                    },
                    rest,
                )
            }
        }
    }
}

/// A copy of boxes.
struct Boxes<'a> {
    plan: &'a TensorPlan,
    smem: S,
    /// Bytes of a chunk, and of a row of a box.
    bytes: u32,
    row: u64,
    /// The first box's.
    coords: Vec<S>,
    /// Which coordinates may be outside of the array.
    checked: Vec<bool>,
    partial: Partial,
    /// The address of the element at the first box's coordinates.
    start: S,
}

impl<'a> Boxes<'a> {
    fn of(cx: &mut LowerCx, copy: &Copy, plan: &'a TensorPlan, partial: Partial, most: u32) -> Result<Boxes<'a>> {
        let coords = tma::coordinates(cx, plan, copy.oob, Direction::Load)?;
        let element = u64::from(plan.element_bytes);
        let row = u64::from(plan.box_dims[0]) * element;
        let mut checked = vec![];
        for (k, affine) in plan.coords.iter().enumerate() {
            let end = i128::from(plan.last_box(k)) + i128::from(plan.box_dims[k]);
            let inside =
                tma::bounds(cx, affine).is_some_and(|(lo, hi)| lo >= 0 && hi + end <= i128::from(plan.dims[k]));
            let has_parts = plan.parts.iter().any(|part| part.of == k);
            checked.push(copy.oob == OutOfBounds::Zeros && (has_parts || !inside));
        }
        let starts = plan.pieces.iter().map(|piece| u64::from(piece.coords[0]) * element);
        let strides = plan.strides.iter().copied();
        let first = divisor(&plan.coords[0]) * element;
        let numbers = starts.chain(strides).chain([row, plan.base, first]);
        let mut bytes = common(most, numbers);
        // Where nothing fills the rest of a chunk, none has one.
        if checked[0] && (partial == Partial::Never || bytes < 4) {
            bytes = common(bytes, [plan.dims[0] * element]);
        }
        let mut start: S = exchange::buffer_start(cx, copy.gmem)?;
        for (k, c) in coords.iter().enumerate() {
            let stride = stride(plan, k);
            let c = cx.b.widen(*c, true);
            start = cx.b.mad(IntType::S64, c, Src::Imm(stride), start);
        }
        start = cx.b.add(IntType::U64, start, Src::Imm(plan.base));
        Ok(Boxes {
            plan,
            smem: copy.smem,
            bytes,
            row,
            coords,
            checked,
            partial,
            start,
        })
    }

    fn chunks(&self, cx: &mut LowerCx) -> Result<Chunks> {
        let plan = self.plan;
        let (t, threads) = thread(cx);
        let n = plan.piece_bytes / self.bytes;
        let mut all = vec![];
        for piece in &plan.pieces {
            for first in (0..n).step_by(threads as usize) {
                let mut rest = Rest::Split {
                    thread: t,
                    range: threads.into(),
                    known: first.into(),
                };
                // Within the row a unit is a chunk, then elements are.
                let mut indices: Vec<Split> = vec![];
                for k in 0..plan.box_dims.len() {
                    let extent = match k {
                        0 => self.row / u64::from(self.bytes),
                        _ => plan.box_dims[k].into(),
                    };
                    let (index, left) = rest.take(cx, extent);
                    indices.push(index);
                    rest = left;
                }
                let (mut at, mut known) = (self.start, 0i64);
                for (k, index) in indices.iter().enumerate() {
                    let unit = match k {
                        0 => u64::from(self.bytes),
                        _ => stride(plan, k),
                    };
                    let x = cx.b.widen(index.thread, false);
                    at = cx.b.mad(IntType::U64, x, Src::Imm(unit), at);
                    known += (index.known * unit) as i64 + (u64::from(piece.coords[k]) * stride(plan, k)) as i64;
                }
                let has = has(cx, t, first, threads, n);
                let (inside, taken) = self.inside(cx, &indices, &piece.coords)?;
                let when = match (has, inside) {
                    (Some(a), Some(b)) => Some(cx.b.and(LogicType::Pred, a, b)),
                    (a, b) => a.or(b),
                };
                all.push(Chunk {
                    when,
                    taken,
                    gmem: memory::address(cx, at, known),
                    smem: self.place(cx, t, piece.smem + first * self.bytes)?,
                });
            }
        }
        Ok(Chunks { bytes: self.bytes, all })
    }

    /// Whether a chunk is in the array, or how many of its bytes are; none: it is, or all are.
    fn inside(&self, cx: &mut LowerCx, indices: &[Split], piece: &[u32]) -> Result<(Option<S>, Option<S>)> {
        let plan = self.plan;
        let per_chunk = u64::from(self.bytes / plan.element_bytes.min(self.bytes));
        let (mut inside, mut taken): (Option<S>, Option<S>) = (None, None);
        for k in (0..indices.len()).filter(|k| self.checked[*k]) {
            let unit = if k == 0 { per_chunk } else { 1 };
            let known = indices[k].known * unit + u64::from(piece[k]);
            let own = cx.b.mul(IntType::U32, indices[k].thread, Src::u32(unit as u32));
            let own = cx.b.add(IntType::U32, own, Src::u32(known as u32));
            let c = cx.b.add(IntType::U32, self.coords[k], own);
            let extent = Src::u32(plan.dims[k] as u32);
            let is_in = cx.b.setp(Compare::Lo, CompareType::U32, c, extent);
            inside = Some(match inside {
                None => is_in,
                Some(before) => cx.b.and(LogicType::Pred, before, is_in),
            });
            if k == 0 && self.partial == Partial::Filled {
                let left = cx.b.sub(IntType::U32, extent, c);
                let left = cx.b.min(IntType::U32, left, Src::u32(per_chunk as u32));
                taken = Some(cx.b.mul(IntType::U32, left, Src::u32(plan.element_bytes)));
            }
        }
        if self.partial == Partial::Never {
            return Ok((inside, None));
        }
        // What is outside is filled: nothing of it is read.
        let taken = inside.map(|inside| {
            let whole = taken.unwrap_or(Src::u32(self.bytes));
            cx.b.select(BitType::B32, inside, whole, Src::u32(0))
        });
        Ok((None, taken))
    }

    /// Where a chunk lies: `offset` bytes behind the thread's first one, swizzled.
    fn place(&self, cx: &mut LowerCx, t: S, offset: u32) -> Result<Addr<V>> {
        let swizzle =
            Swizzle::of_bytes(self.plan.swizzle).ok_or_else(|| Error::internal("a copy with an unknown swizzle"))?;
        let own = cx.b.mul(IntType::U32, t, Src::u32(self.bytes));
        let at = cx.b.add(IntType::U32, self.smem, own);
        if swizzle.is_none() {
            return Ok(cx.b.addr(at, offset as i32));
        }
        // What is a whole number of its periods away lies as it would without.
        let near = offset % swizzle.period() as u32;
        let at = cx.b.add(IntType::U32, at, Src::u32(near));
        let at = memory::swizzle(cx, swizzle, at);
        Ok(cx.b.addr(at, (offset - near) as i32))
    }
}

/// Bytes between neighbours along a dimension.
fn stride(plan: &TensorPlan, k: usize) -> u64 {
    match k {
        0 => plan.element_bytes.into(),
        _ => plan.strides[k - 1],
    }
}
