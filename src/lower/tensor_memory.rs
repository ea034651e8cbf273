//! Tensor memory: its allocation for the block, loads and stores, and the products that accumulate in it.
//!
//! The block allocates once, for the whole kernel: the first warp, which leaves the address in shared memory, and frees it when all warps are
//! done. Products and commits are issued by one lane, the one that issues copies. Fences stand on both sides of what synchronises threads
//! where tensor memory changes hands: waits for its loads and stores, barriers that order it.
use super::cx::LowerCx;
use super::emit::{S, V};
use super::tma::in_issuer;
use super::value::{ArrayRegs, Lowered};
use super::wgmma::{advance, matrix_descriptor};
use super::{barrier, view};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::kernel_ir::{AllocKind, Group, Op, RefUse, TmemAccess as Waited, Value, legality};
use crate::layout::smem_layout::SmemView;
use crate::layout::tensor_memory::{Accumulates, Piece, Shape, TmemView};
use crate::layout::wgmma::{Major, Operand};
use crate::plan::accesses::{Left, Tensor};
use crate::ptx::inst::Inst;
use crate::ptx::modifier::*;
use crate::ptx::operand::{Addr, Class, Src};
use crate::ptx::ssa::Value as PtxValue;

const GROUP: CtaGroup = CtaGroup::One;

/// Allocates what the kernel needs, and lets all know where.
pub fn prologue(cx: &mut LowerCx) {
    let tensor = &cx.plan.tensor;
    let (Some(columns), address) = (tensor.columns, tensor.address) else {
        return;
    };
    let base = cx.b.smem_base();
    let at = Addr::at(base, address as i32);
    in_first_warp(cx, |cx| {
        cx.b.inst(Inst::tmem_alloc(GROUP, at, Src::u32(columns)));
        cx.b.inst(Inst::TmemRelinquish { group: GROUP });
    });
    meet(cx, Group::Block);
    let words = cx.b.load(Space::Shared, MemType::B32, at, 1);
    cx.tensor_memory = Some(words[0]);
}

/// Frees it, when its loads and stores are complete: authors need not wait for those that nothing comes behind.
pub fn epilogue(cx: &mut LowerCx) {
    let (Some(columns), Some(addr)) = (cx.plan.tensor.columns, cx.tensor_memory) else {
        return;
    };
    for what in [TmemAccess::Loads, TmemAccess::Stores] {
        cx.b.inst(Inst::TmemWait { what });
    }
    meet(cx, Group::Block);
    in_first_warp(cx, |cx| {
        cx.b.inst(Inst::tmem_dealloc(GROUP, addr, Src::u32(columns)));
    });
}

/// All threads of a group meet, and what they have done to tensor memory is done for all.
fn meet(cx: &mut LowerCx, group: Group) {
    let fence = |cx: &mut LowerCx, side| {
        cx.b.inst(Inst::Tcgen05Fence { side });
    };
    fence(cx, ThreadSync::Before);
    cx.sync(group);
    fence(cx, ThreadSync::After);
}

fn in_first_warp(cx: &mut LowerCx, f: impl FnOnce(&mut LowerCx)) {
    let warp = cx.b.warp();
    let first = cx.b.setp(Compare::Eq, CompareType::U32, warp, Src::u32(0));
    // What it does cannot fail.
    let _ = cx.if_then(first, |cx| {
        f(cx);
        Ok(())
    });
}

/// The address of a view, and what of it is constant.
fn address(cx: &mut LowerCx, r: &RefUse, view: &TmemView) -> Result<Addr<V>> {
    view::check_indices(cx, r, Src::Imm(1))?;
    let base = cx
        .tensor_memory
        .ok_or_else(|| Error::internal("tensor memory that is not allocated"))?;
    let first = cx.plan.tensor.starts[r.alloc];
    let first = first.ok_or_else(|| Error::internal(format!("{} has no place in tensor memory", r.alloc)))?;
    let mut at: S = base.into();
    for counted in &view.dynamic {
        let i = cx.index32(counted.value)?;
        let i = cx.b.shr(ShiftType::U32, i, Src::u32(counted.per.ilog2()));
        at = cx.b.mad(IntType::U32, i, Src::u32(counted.columns as u32), at);
    }
    let at = cx.b.r32(at);
    Ok(Addr::at(at, (first + view.start as u32) as i32))
}

/// Further lanes and columns on.
fn further(addr: Addr<V>, lane: u32, column: u32) -> Addr<V> {
    Addr::at(addr.base, addr.offset + (lane << 16 | column) as i32)
}

fn shape(piece: &Piece) -> TmemShape {
    match piece.shape {
        Shape::L32B32 => TmemShape::L32B32,
        Shape::L16B64 => TmemShape::L16B64,
        Shape::L16B128 => TmemShape::L16B128,
        Shape::L16B256 => TmemShape::L16B256,
    }
}

pub fn lower_load(cx: &mut LowerCx, op: Op, src: &RefUse) -> Result<()> {
    let Tensor { view, layout, pieces } = cx.tensor_memory_plan(op)?;
    let addr = address(cx, src, view)?;
    let result = cx.result(op);
    let layout = layout.clone();
    let dtype = cx.ty(result).dtype();
    let mut regs: Vec<S> = vec![Src::Imm(0); layout.words(dtype.bits()) as usize];
    for piece in pieces {
        let loaded = cx.b.inst(Inst::TmemLoad {
            shape: shape(piece),
            times: piece.times.into(),
            pack: if piece.packs { TmemPack::Pack } else { TmemPack::No },
            d: vec![PtxValue::NEW; piece.words.len()].into(),
            src: further(addr, piece.lane, piece.column),
        });
        for (word, v) in piece.words.iter().zip(loaded.to_vec()) {
            regs[*word as usize] = v.into();
        }
    }
    cx.bind(result, Lowered::Array(ArrayRegs { dtype, layout, regs }));
    Ok(())
}

pub fn lower_store(cx: &mut LowerCx, op: Op, dst: &RefUse, value: Value) -> Result<()> {
    let Tensor { view, layout, pieces } = cx.tensor_memory_plan(op)?;
    let addr = address(cx, dst, view)?;
    let array = cx.array_in(value, layout)?;
    for piece in pieces {
        let words: Vec<V> = piece
            .words
            .iter()
            .map(|word| cx.b.value(array.regs[*word as usize], Class::B32))
            .collect();
        cx.b.inst(Inst::TmemStore {
            shape: shape(piece),
            times: piece.times.into(),
            unpack: if piece.packs {
                TmemUnpack::Unpack
            } else {
                TmemUnpack::No
            },
            dst: further(addr, piece.lane, piece.column),
            a: words.into_iter().map(Src::Reg).collect(),
        });
    }
    Ok(())
}

/// Waits, and lets all threads of the group know.
pub fn lower_wait(cx: &mut LowerCx, what: Waited) -> Result<()> {
    let what = match what {
        Waited::Loads => TmemAccess::Loads,
        Waited::Stores => TmemAccess::Stores,
    };
    cx.b.inst(Inst::TmemWait { what });
    meet(cx, cx.group);
    Ok(())
}

/// Fences where tensor memory changes hands at a barrier.
pub fn fence(cx: &mut LowerCx, r: &RefUse, side: ThreadSync) {
    let orders = matches!(
        cx.kernel.allocs[r.alloc].kind,
        AllocKind::Barrier {
            orders_tensor_core: true,
            ..
        }
    );
    if orders {
        cx.b.inst(Inst::Tcgen05Fence { side });
    }
}

/// Types of a product: its kind, and the fields of an instruction descriptor for A, B and D (PTX ISA, "Instruction descriptor").
fn types(a: DType, b: DType, d: DType) -> Option<(Tcgen05Kind, [u32; 3])> {
    use DType::*;
    let of = |t: DType| match t {
        F16 | F8E4M3FN | U8 => Some(0),
        BF16 | F8E5M2 | I8 => Some(1),
        _ => None,
    };
    let kind = match a {
        F16 | BF16 => Tcgen05Kind::F16,
        F8E4M3FN | F8E5M2 => Tcgen05Kind::F8F6F4,
        I8 | U8 => Tcgen05Kind::I8,
        _ => return None,
    };
    let d = match d {
        F16 => 0,
        F32 => 1,
        I32 => 2,
        _ => return None,
    };
    Some((kind, [of(a)?, of(b)?, d]))
}

/// The instruction descriptor of a dense product.
fn instruction([a, b, d]: [u32; 3], [m, n]: [u64; 2], [a_mn, b_mn]: [bool; 2]) -> u32 {
    d << 4
        | a << 7
        | b << 10
        | u32::from(a_mn) << 15
        | u32::from(b_mn) << 16
        | (n as u32 / 8) << 17
        | (m as u32 / 16) << 24
}

/// The matrix descriptor of a view's start; the fields are those of wgmma, and a version.
fn matrix(cx: &mut LowerCx, r: &RefUse, (view, operand): (&SmemView, &Operand)) -> Result<S> {
    let start = view::smem_start(cx, r, view)?;
    Ok(matrix_descriptor(cx, start, operand.descriptor() | 1 << 46))
}

pub fn lower_product(
    cx: &mut LowerCx,
    op: Op,
    [acc, a, b]: [&RefUse; 3],
    accumulate: Value,
    barrier: Option<&RefUse>,
) -> Result<()> {
    let planned = cx.product_plan(op)?;
    let (view, form) = &planned.acc;
    let dtype = |r: &RefUse| r.dtype().ok_or_else(|| Error::internal("a product of barriers"));
    let (ta, tb, td) = (dtype(a)?, dtype(b)?, dtype(acc)?);
    let illegal = || Error::internal("a tcgen05_mma of types that are not legal");
    let (kind, fields) = types(ta, tb, td).ok_or_else(illegal)?;
    let [rows, depth] = [a.shape[0], a.shape[1]];
    let step = legality::tensor_memory::K_BYTES * 8 / u64::from(ta.bits());
    for r in [acc, a, b] {
        view::check_indices(cx, r, Src::Imm(1))?;
    }
    let accumulate = cx.scalar(accumulate)?;
    let d = address(cx, acc, view)?;
    enum From<'a> {
        Smem(S, &'a Operand),
        Tmem(Addr<V>),
    }
    let left = match &planned.left {
        Left::Smem(view, operand) => From::Smem(matrix(cx, a, (view, operand))?, operand),
        Left::Tmem(view) => From::Tmem(address(cx, a, view)?),
    };
    let right = matrix(cx, b, (&planned.right.0, &planned.right.1))?;
    let arrival = barrier.map(|r| barrier::address(cx, r)).transpose()?;
    let a_mn = matches!(left, From::Smem(_, operand) if operand.major == Major::Mn);
    let idesc = instruction(fields, [rows, planned.n], [a_mn, planned.right.1.major == Major::Mn]);
    // Columns of the accumulator that one row of lanes has, and at which lanes.
    let (halves, columns) = match form {
        Accumulates::Rows => (1, b.shape[1]),
        Accumulates::HalfLanes => (2, b.shape[1] / 2),
    };
    in_issuer(cx, |cx| {
        for half in 0..halves {
            for n in (0..columns).step_by(planned.n as usize) {
                for k in (0..depth).step_by(step as usize) {
                    let accumulate = match k {
                        0 => accumulate,
                        _ => Src::Imm(1),
                    };
                    let accumulate = cx.b.value(accumulate, Class::Pred);
                    let d = further(d, 16 * half as u32, n as u32);
                    let b = advance(cx, right, planned.right.1.offset(half * columns + n, k));
                    let idesc = Src::u32(idesc);
                    let inst = match &left {
                        From::Smem(start, operand) => {
                            let a = advance(cx, *start, operand.offset(0, k));
                            Inst::tcgen05_mma_ss(GROUP, kind, d, a, b, idesc, accumulate)
                        }
                        From::Tmem(start) => {
                            let words = k * u64::from(ta.bits()) / 32;
                            let a = further(*start, 0, words as u32);
                            Inst::tcgen05_mma_ts(GROUP, kind, d, a, b, idesc, accumulate)
                        }
                    };
                    cx.b.inst(inst);
                }
            }
        }
        if let Some(bar) = arrival {
            cx.b.inst(Inst::tcgen05_commit(GROUP, bar));
        }
        Ok(())
    })
}

pub fn lower_commit(cx: &mut LowerCx, r: &RefUse, predicate: Option<Value>) -> Result<()> {
    let predicate = match predicate {
        Some(p) => cx.scalar(p)?,
        None => Src::Imm(1),
    };
    let bar = barrier::address(cx, r)?;
    cx.if_then(predicate, |cx| {
        in_issuer(cx, |cx| {
            cx.b.inst(Inst::tcgen05_commit(GROUP, bar));
            Ok(())
        })
    })
}

/// 32 bytes of each of 128 rows an instruction.
pub fn lower_copy(cx: &mut LowerCx, op: Op, src: &RefUse, dst: &RefUse) -> Result<()> {
    let (view, operand, to) = cx.copy_to_tensor_memory(op)?;
    view::check_indices(cx, src, Src::Imm(1))?;
    let from = matrix(cx, src, (view, operand))?;
    let to = address(cx, dst, to)?;
    let (elements, step) = (src.shape[1], 256 / u64::from(view.bits));
    in_issuer(cx, |cx| {
        for (i, k) in (0..elements).step_by(step as usize).enumerate() {
            let src = advance(cx, from, operand.offset(0, k));
            cx.b.inst(Inst::TmemCopy {
                group: GROUP,
                shape: TmemCopyShape::L128B256,
                dst: further(to, 0, 8 * i as u32),
                src,
            });
        }
        Ok(())
    })
}
