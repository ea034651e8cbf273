//! Products of arrays, as [`crate::layout::dot`] plans them: slices of the operands go to scratch, and each thread reads what it needs.
//!
//! Tensor cores: `mma.sync`, 32 bytes of K an instruction, with `ldmatrix` for both operands; a lane's words of a fragment are the words
//! that `ldmatrix` gives it, whatever the type (PTX ISA, "Matrix Fragments for mma.m16n8k16", "…k8", "…k32"). Else each thread loads
//! 16 bytes of K of its rows, and multiplies and adds.
//!
//! What pads K is stored as zeros. Rows and columns that pad M and N hold what was there before: it ends in results that are not kept.
use super::cx::{Carried, LowerCx};
use super::emit::{S, V};
use super::memory::{self, Target};
use super::relayout::filled;
use super::shape::dim_indices;
use super::value::{ArrayRegs, scalar_class};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::kernel_ir::{DotArithmetic, MmaOperand, Op, RefUse, Value};
use crate::layout::dot::{self, DotPlan, Minor, Staged};
use crate::layout::register_layout::{LANE_BITS, Term};
use crate::layout::transfer::Addressing;
use crate::layout::{RegisterLayout, Source};
use crate::ptx::inst::Inst;
use crate::ptx::modifier::*;
use crate::ptx::operand::{Class, Src};
use crate::ptx::ssa::{Uniform, Value as PtxValue};

/// Instructions a thread for one slice that are written one after the other; more are a loop. Chosen: what follows from addresses
/// known at compile time is worth little there.
const STRAIGHT: u64 = 256;
/// Instructions in a body of that loop, where steps are shorter.
const BODY: u64 = 64;

/// Where an operand is.
#[derive(Clone, Copy)]
pub enum From<'a> {
    Registers(Value),
    /// In shared memory, where it is read.
    Memory(&'a RefUse),
}

impl<'a> From<'a> {
    pub fn of(operand: &'a MmaOperand) -> From<'a> {
        match operand {
            MmaOperand::Registers(v) => From::Registers(*v),
            MmaOperand::Smem(r) => From::Memory(r),
        }
    }
}

pub fn lower_dot(
    cx: &mut LowerCx,
    op: Op,
    acc: Option<Value>,
    operands: [From<'_>; 2],
    arithmetic: DotArithmetic,
) -> Result<()> {
    let result = cx.result(op);
    let exchanges = cx.exchanges;
    let plan = exchanges.products.get(&op).ok_or_else(|| cx.unexpected(op))?;
    let dtype = cx.ty(result).dtype();
    let layout = &plan.tiling.result;
    let mut sums = match acc {
        Some(acc) => {
            let acc = cx.array_in(acc, layout)?;
            cx.elements(&acc)
        }
        None => vec![Src::Imm(0); layout.slots() as usize],
    };
    let (mut staging, mut in_place, mut fragments) = (vec![], [None, None], None);
    let mut types = vec![];
    for (i, from) in operands.into_iter().enumerate() {
        match from {
            From::Registers(v) if i == 0 && plan.fragments => {
                types.push(cx.ty(v).dtype());
                fragments = Some(cx.array(v)?.regs);
            }
            From::Registers(v) => {
                types.push(cx.ty(v).dtype());
                staging.push(operand(cx, plan, [&plan.a, &plan.b][i], v, arithmetic)?);
            }
            From::Memory(r) => {
                types.extend(r.dtype());
                let own = plan.in_place[i].as_ref().ok_or_else(|| cx.unexpected(op))?;
                let target = memory::locate(cx, r, Src::Imm(1))?;
                in_place[i] = Some(memory::bases(cx, target, &Addressing::Affine(own.address.clone()))?.bases);
            }
        }
    }
    let product = Product {
        plan,
        dtype,
        operand: *types.first().ok_or_else(|| cx.unexpected(op))?,
        arithmetic,
        in_place,
        fragments,
    };
    if staging.is_empty() {
        product.slice(cx, None, 0, 0, &mut sums)?;
    } else {
        let (scratch, _) = cx.scratch();
        for (batch, k) in plan.slices() {
            // Earlier users have left the scratch.
            cx.sync_group();
            product.pad(cx, scratch, k)?;
            for operand in &staging {
                operand.store(cx, plan, scratch, batch, k)?;
            }
            cx.sync_group();
            product.slice(cx, Some(scratch), batch, k, &mut sums)?;
        }
    }
    let out = cx.from_elements(dtype, layout.clone(), &sums);
    cx.bind_array(result, out);
    Ok(())
}

/// An operand on its way to scratch.
struct Staging<'a> {
    staged: &'a Staged,
    array: ArrayRegs,
    stores: crate::layout::transfer::TransferPlan,
    /// Indices along K, and of the batch, of each slot, where only a slice is stored.
    k: Vec<S>,
    batch: Option<Vec<S>>,
}

fn operand<'a>(
    cx: &mut LowerCx,
    plan: &DotPlan,
    staged: &'a Staged,
    v: Value,
    arithmetic: DotArithmetic,
) -> Result<Staging<'a>> {
    let mut array = cx.array(v)?;
    if (arithmetic, array.dtype) == (DotArithmetic::TensorCore, DType::F32) {
        for x in &mut array.regs {
            let a = cx.b.r32(*x);
            *x = cx.b.emit(Inst::CvtTf32 { d: PtxValue::NEW, a });
        }
    }
    let stores =
        dot::store(&array.layout, &staged.view, plan.is_whole()).map_err(|e| Error::internal(e.to_string()))?;
    let array = filled(cx, &array, &stores.layout)?;
    let rank = array.layout.rank();
    let (k, batch) = match plan.is_whole() {
        true => (vec![], None),
        false => (
            dim_indices(cx, &array.layout, rank - 1),
            (rank == 3).then(|| dim_indices(cx, &array.layout, 0)),
        ),
    };
    Ok(Staging {
        staged,
        array,
        stores,
        k,
        batch,
    })
}

impl Staging<'_> {
    /// Stores the slice that begins at this batch and index of K.
    fn store(&self, cx: &mut LowerCx, plan: &DotPlan, scratch: V, batch: u64, k: u64) -> Result<()> {
        let element = u64::from(self.array.dtype.bits() / 8);
        let before = batch * self.staged.batch + k * self.staged.along_k(element);
        let origin = cx.b.add(
            IntType::U32,
            scratch,
            Src::imm32(self.staged.start as i32 - before as i32),
        );
        let target = Target::shared(origin);
        let mut is_stored = |cx: &mut LowerCx, slot: u32| {
            let mut all: S = Src::Imm(1);
            let slice = [
                (Some(&self.k), k, plan.depth, plan.padded_k),
                (self.batch.as_ref(), batch, plan.batches, plan.tiling.padded[0]),
            ];
            for (indices, start, size, whole) in slice {
                let Some(&index) = indices.and_then(|i| i.get(slot as usize)).filter(|_| size < whole) else {
                    continue;
                };
                let from_start = cx.b.sub(IntType::U32, index, Src::u32(start as u32));
                let inside =
                    cx.b.setp(Compare::Lt, CompareType::U32, from_start, Src::u32(size as u32));
                all = cx.b.both(all, inside);
            }
            all
        };
        memory::emit_store_where(cx, target, &self.stores, &self.staged.view, &self.array, &mut is_stored)
    }
}

struct Product<'a> {
    plan: &'a DotPlan,
    /// Of the sums.
    dtype: DType,
    /// Of the operands.
    operand: DType,
    arithmetic: DotArithmetic,
    /// Of operands in place the bases of their addresses.
    in_place: [Option<Vec<S>>; 2],
    /// The words of a left operand that lies as it is taken.
    fragments: Option<Vec<S>>,
}

impl Product<'_> {
    fn element(&self) -> u64 {
        u64::from(self.operand.bits() / 8)
    }

    /// Zeros behind the end of K, in the slice that begins at `k`.
    fn pad(&self, cx: &mut LowerCx, scratch: V, k: u64) -> Result<()> {
        let plan = self.plan;
        let end = (k + plan.depth).min(plan.padded_k);
        if end <= plan.k {
            return Ok(());
        }
        let mut overlaps = false;
        for (staged, free) in [(&plan.a, plan.tiling.padded[1]), (&plan.b, plan.tiling.padded[2])] {
            // Runs of 16-byte chunks: how many, how long, their stride, and where the first is.
            let (runs, chunks, stride, first) = match staged.minor {
                Minor::K => {
                    overlaps = true;
                    let last = end - plan.step;
                    let bytes = plan.step * self.element();
                    (plan.batches * free, bytes / 16, staged.row, (last - k) * self.element())
                }
                Minor::Free => {
                    let bytes = (end - plan.k) * staged.row;
                    (plan.batches, bytes / 16, staged.batch, (plan.k - k) * staged.row)
                }
            };
            let threads = u64::from(cx.layout_group().threads());
            let own = cx.thread_in_group();
            for i in 0..(runs * chunks).div_ceil(threads) {
                let at = cx.b.add(IntType::U32, own, Src::u32((i * threads) as u32));
                let inside =
                    cx.b.setp(Compare::Lt, CompareType::U32, at, Src::u32((runs * chunks) as u32));
                let run = cx.b.div(IntType::U32, at, Src::u32(chunks as u32));
                let chunk = cx.b.rem(IntType::U32, at, Src::u32(chunks as u32));
                let offset = cx.b.mul(IntType::U32, run, Src::u32(stride as u32));
                let offset = cx.b.mad(IntType::U32, chunk, Src::u32(16), offset);
                let at = cx.b.add(IntType::U32, scratch, offset);
                let addr = cx.b.addr(at, (staged.start + first) as i32);
                let store = Inst::st(
                    StoreSem::Weak,
                    Space::Shared,
                    MemType::B32,
                    addr,
                    [Src::Imm(0); 4].into_iter().collect(),
                );
                let guard = cx.b.pred(inside);
                cx.b.inst_if(Some(guard), store);
            }
        }
        if overlaps {
            // The last elements of K go over some of the zeros.
            cx.sync_group();
        }
        Ok(())
    }

    /// Adds the products of the slice that begins at this batch and index of K.
    fn slice(&self, cx: &mut LowerCx, scratch: Option<V>, batch: u64, k: u64, sums: &mut [S]) -> Result<()> {
        let plan = self.plan;
        let steps = (plan.depth.min(plan.padded_k - k)) / plan.step;
        let [_, tm, tn] = plan.tiling.tiles;
        // Batches of one thread in this slice, and the sums of one.
        let along = plan.tiling.padded[0] / plan.tiling.tiles[0];
        let batches = plan.batches.min(plan.tiling.padded[0] - batch) / along;
        let first = batch / along;
        let per_batch = sums.len() as u64 / plan.tiling.tiles[0];
        let per_step = tm * tn * batches * if self.is_tensor_core() { 1 } else { plan.step };
        let bases = match scratch {
            Some(scratch) => self.bases(cx, scratch),
            None => [Src::Imm(0); 2],
        };
        let strides = [&plan.a, &plan.b].map(|s| plan.step * s.along_k(self.element()));
        let range = (first * per_batch) as usize..((first + batches) * per_batch) as usize;
        let step = |cx: &mut LowerCx, bases: [S; 2], i: u64, sums: &mut [S]| {
            for (b, sums) in (0..batches).zip(sums.chunks_mut(per_batch as usize)) {
                let offsets = [(&plan.a, strides[0]), (&plan.b, strides[1])]
                    .map(|(s, stride)| (s.start + b * along * s.batch + i * stride) as i32);
                match self.arithmetic {
                    DotArithmetic::TensorCore => self.tensor_core(cx, bases, offsets, k / plan.step + i, sums)?,
                    DotArithmetic::MultiplyAdd => self.multiply_add(cx, bases, offsets, sums)?,
                }
            }
            Ok::<(), Error>(())
        };
        // Where an operand lies in memory is known of each step by itself.
        let is_straight = self.in_place.iter().any(Option::is_some) || self.fragments.is_some();
        if steps * per_step <= STRAIGHT || is_straight {
            return (0..steps).try_for_each(|i| step(cx, bases, i, &mut sums[range.clone()]));
        }
        // As many steps in a body as divide all.
        let most = (BODY / per_step).clamp(1, steps);
        let unroll = (1..=most).rev().find(|n| steps % n == 0).unwrap_or(1);
        let carried = |init: S, class: Class, uniform: Uniform| Carried { init, class, uniform };
        let group = cx.group_uniform();
        let mut state = vec![
            carried(Src::u32(0), Class::B32, group),
            carried(bases[0], Class::B32, Uniform::Thread),
            carried(bases[1], Class::B32, Uniform::Thread),
        ];
        let class = scalar_class(self.dtype);
        state.extend(sums[range.clone()].iter().map(|&x| carried(x, class, Uniform::Thread)));
        let out = cx.while_loop(
            &state,
            |cx, now| {
                Ok(cx
                    .b
                    .setp(Compare::Lt, CompareType::U32, now[0], Src::u32((steps / unroll) as u32)))
            },
            |cx, now| {
                let mut sums = now[3..].to_vec();
                for i in 0..unroll {
                    step(cx, [now[1], now[2]], i, &mut sums)?;
                }
                let mut next = vec![cx.b.add(IntType::U32, now[0], Src::u32(1))];
                for (&base, stride) in now[1..3].iter().zip(strides) {
                    next.push(cx.b.add(IntType::U32, base, Src::u32((unroll * stride) as u32)));
                }
                next.extend(sums);
                Ok(next)
            },
        )?;
        sums[range].copy_from_slice(&out[3..]);
        Ok(())
    }

    fn is_tensor_core(&self) -> bool {
        self.arithmetic == DotArithmetic::TensorCore
    }

    /// Where a thread's parts of the operands begin; their starts in scratch are left to the offsets.
    fn bases(&self, cx: &mut LowerCx, scratch: V) -> [S; 2] {
        let plan = self.plan;
        let mut out = [Src::Imm(0); 2];
        for (i, staged) in [&plan.a, &plan.b].into_iter().enumerate() {
            let free = staged.along_free(self.element()) as i64;
            let batch = staged.batch as i64;
            let mut terms = match self.arithmetic {
                DotArithmetic::TensorCore => {
                    let mut terms = self.fragment(i, staged);
                    // What a warp's digits add, lanes left out: those are the fragment's.
                    terms.extend(self.terms(1 + i, free).into_iter().filter(|t| t.source == Source::Warp));
                    terms
                }
                DotArithmetic::MultiplyAdd => self.terms(1 + i, free),
            };
            terms.extend(self.terms(0, batch));
            let own = memory::thread_terms(cx, &terms);
            out[i] = cx.b.add(IntType::U32, scratch, own);
        }
        out
    }

    /// What a thread adds to an index of batch, M or N, in bytes.
    fn terms(&self, dim: usize, stride: i64) -> Vec<Term> {
        let layout = &self.plan.tiling.result;
        let skipped = 3 - layout.rank();
        if dim < skipped {
            return vec![];
        }
        let terms = RegisterLayout::axis_terms(layout.axis_of(dim - skipped)).into_iter();
        terms
            .map(|t| Term {
                stride: t.stride * stride,
                ..t
            })
            .collect()
    }

    /// The row that a lane names for `ldmatrix`. The left operand's matrices: rows 0 to 7, rows 8 to 15, then the same of the second half of
    /// K; the right one's: both halves of K of eight columns, then of the next eight.
    fn fragment(&self, i: usize, staged: &Staged) -> Vec<Term> {
        let (free, half) = (
            staged.along_free(self.element()) as i64,
            // Half of the step along K.
            (self.plan.step / 2 * staged.along_k(self.element())) as i64,
        );
        let next = match i {
            0 => 8 * free,
            // To the warp's next tile.
            _ => 8 * free * self.plan.tiling.warps[2] as i64,
        };
        // Rows of a matrix are along K where K is not contiguous.
        let row = match staged.minor {
            Minor::K => free,
            Minor::Free => staged.row as i64,
        };
        let (bit3, bit4) = if i == 0 { (next, half) } else { (half, next) };
        assert_eq!(LANE_BITS, 5);
        vec![
            Term::of_thread(0, 8, row),
            Term::of_thread(3, 2, bit3),
            Term::of_thread(4, 2, bit4),
        ]
    }

    /// `count` matrices of operand `i`, of a tile (two of N) and a step of K. `staged`: where they are in scratch.
    fn load_matrices(&self, cx: &mut LowerCx, i: usize, at: (u64, u64), staged: (S, i32), count: usize) -> Vec<V> {
        let (tile, step) = at;
        let (minor, base, offset) = match (&self.plan.in_place[i], &self.in_place[i]) {
            (Some(own), Some(bases)) => {
                let (base, offset) = own.place(tile, step);
                (own.minor, bases[base], offset as i32)
            }
            _ => ([&self.plan.a, &self.plan.b][i].minor, staged.0, staged.1),
        };
        let trans = match minor {
            Minor::K => MatrixTrans::No,
            Minor::Free => MatrixTrans::Yes,
        };
        let addr = cx.b.addr(base, offset);
        let d = std::iter::repeat_n(PtxValue::NEW, count).collect();
        cx.b.inst(Inst::Ldmatrix { trans, d, addr }).to_vec()
    }

    /// One step of K of one batch: all tiles of the warp.
    fn tensor_core(&self, cx: &mut LowerCx, bases: [S; 2], offsets: [i32; 2], step: u64, sums: &mut [S]) -> Result<()> {
        let plan = self.plan;
        let (shape, ty) = match self.operand {
            DType::F16 => (MmaShape::M16N8K16, MmaTypes::F16),
            DType::BF16 => (MmaShape::M16N8K16, MmaTypes::BF16),
            DType::F32 => (MmaShape::M16N8K8, MmaTypes::TF32),
            DType::I8 => (MmaShape::M16N8K32, MmaTypes::S8S8),
            DType::U8 => (MmaShape::M16N8K32, MmaTypes::U8U8),
            other => return Err(Error::internal(format!("tensor cores on {other}")).at(cx.b.loc())),
        };
        let [_, tm, tn] = plan.tiling.tiles;
        let [_, wm, wn] = plan.tiling.warps;
        let tile = [
            16 * wm * plan.a.along_free(self.element()),
            8 * wn * plan.b.along_free(self.element()),
        ];
        let mut left: Vec<Vec<V>> = vec![];
        for m in 0..tm {
            left.push(match &self.fragments {
                None => self.load_matrices(cx, 0, (m, step), (bases[0], offsets[0] + (m * tile[0]) as i32), 4),
                Some(words) => {
                    // Two of each tile of eight columns, the upper rows first.
                    let first = (m * plan.k / 4 + 4 * step) as usize;
                    words[first..first + 4].iter().map(|&x| cx.b.r32(x)).collect()
                }
            });
        }
        for pair in (0..tn).step_by(2) {
            let count = 2 * (tn - pair).min(2) as usize;
            let staged = (bases[1], offsets[1] + (pair * tile[1]) as i32);
            let right = self.load_matrices(cx, 1, (pair / 2, step), staged, count);
            for (n, b) in (pair..).zip(right.chunks(2)) {
                for (m, a) in (0..tm).zip(&left) {
                    let at = 4 * (m * tn + n) as usize;
                    let own = &mut sums[at..at + 4];
                    let c = own.iter().map(|&x| Src::Reg(cx.b.r32(x))).collect();
                    let d = cx.b.inst(Inst::mma_sync(
                        shape,
                        SatFinite::No,
                        ty,
                        std::iter::repeat_n(PtxValue::NEW, 4).collect(),
                        a.iter().map(|&x| Src::Reg(x)).collect(),
                        b.iter().map(|&x| Src::Reg(x)).collect(),
                        c,
                    ));
                    for (x, v) in own.iter_mut().zip(d) {
                        *x = v.into();
                    }
                }
            }
        }
        Ok(())
    }

    /// One vector of K of one batch: all elements of the thread.
    fn multiply_add(&self, cx: &mut LowerCx, bases: [S; 2], offsets: [i32; 2], sums: &mut [S]) -> Result<()> {
        let plan = self.plan;
        let [_, tm, tn] = plan.tiling.tiles;
        let stride = [1, 2].map(|d| plan.tiling.padded[d] / plan.tiling.tiles[d]);
        let vector = |cx: &mut LowerCx, i: usize, at: u64| {
            let staged = [&plan.a, &plan.b][i];
            let offset = offsets[i] + (at * stride[i] * staged.row) as i32;
            let addr = cx.b.addr(bases[i], offset);
            let ty = if self.element() == 8 {
                MemType::B64
            } else {
                MemType::B32
            };
            cx.b.load(Space::Shared, ty, addr, plan.step as usize)
        };
        let right: Vec<_> = (0..tn).map(|n| vector(cx, 1, n)).collect();
        for m in 0..tm {
            let left = vector(cx, 0, m);
            for k in 0..plan.step as usize {
                for (n, b) in (0..tn).zip(&right) {
                    let x = &mut sums[(m * tn + n) as usize];
                    let (a, b) = (left[k], b[k]);
                    *x = match self.dtype {
                        DType::F32 => cx.b.fma(FloatType::F32, a, b, *x),
                        DType::F64 => cx.b.fma(FloatType::F64, a, b, *x),
                        DType::I32 => cx.b.mad(IntType::S32, a, b, *x),
                        DType::I64 => cx.b.mad(IntType::S64, a, b, *x),
                        other => return Err(Error::internal(format!("sums of {other}")).at(cx.b.loc())),
                    };
                }
            }
        }
        Ok(())
    }
}
