//! Changes of register layout: what [`crate::layout::relayout`] plans, emitted.
use super::cx::LowerCx;
use super::emit::{ALL_LANES, S};
use super::memory::{self, Target};
use super::value::{ArrayRegs, Packing};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::kernel_ir::visit::for_each_value;
use crate::kernel_ir::{Group, Kernel, Op, OpKind, Value};
use crate::layout::relayout::{self, LaneMap, Program, RelayoutError, RelayoutKind, ScratchPlan};
use crate::layout::{Assignment, RegisterLayout};
use crate::ptx::inst::Inst;
use crate::ptx::modifier::*;
use crate::ptx::operand::Src;
use crate::ptx::ssa::Value as PtxValue;

/// Scratch is not made larger than this for relayouts: they go through it in several trips.
const MAX_SCRATCH: u64 = 32 * 1024;

pub fn lower_layout_cast(cx: &mut LowerCx, op: Op, a: Value) -> Result<()> {
    let result = cx.result(op);
    if cx.ty(result).is_scalar() {
        let x = cx.get(a)?.clone();
        cx.bind(result, x);
        return Ok(());
    }
    let layout = cx.layout_of(result)?;
    let x = cx.array_in(a, &layout)?;
    cx.bind_array(result, x);
    Ok(())
}

/// Bits of an element as it travels.
fn travel_bits(dtype: DType) -> u32 {
    match dtype {
        DType::Bool => 8,
        d => d.bits(),
    }
}

/// The array in another layout.
pub fn relayout(cx: &mut LowerCx, a: &ArrayRegs, layout: &RegisterLayout) -> Result<ArrayRegs> {
    if a.layout == *layout {
        return Ok(a.clone());
    }
    if let Some(map) = a.layout.rename_to(layout)
        && matches!(
            Packing::of(a.dtype),
            Packing::Predicates | Packing::Wide | Packing::Words(1)
        )
    {
        let regs = map.iter().map(|&s| a.regs[s as usize]).collect();
        return Ok(ArrayRegs {
            dtype: a.dtype,
            layout: layout.clone(),
            regs,
        });
    }
    match Packing::of(a.dtype) {
        Packing::Predicates => {
            let bytes: Vec<S> = a
                .regs
                .iter()
                .map(|p| cx.b.select(BitType::B32, *p, Src::u32(1), Src::u32(0)))
                .collect();
            let packed = cx.from_elements(DType::U8, a.layout.clone(), &bytes);
            let moved = relayout(cx, &packed, layout)?;
            let regs = cx
                .elements(&moved)
                .into_iter()
                .map(|x| cx.b.setp(Compare::Ne, CompareType::U32, x, Src::u32(0)))
                .collect();
            Ok(ArrayRegs {
                dtype: a.dtype,
                layout: layout.clone(),
                regs,
            })
        }
        Packing::Wide | Packing::Words(_) => planned(cx, a, layout),
    }
}

fn planned(cx: &mut LowerCx, a: &ArrayRegs, layout: &RegisterLayout) -> Result<ArrayRegs> {
    let scratch = match cx.group {
        Group::Warp => cx.plan.scratch.bytes / 4,
        Group::Warpgroup | Group::Block => cx.plan.scratch.bytes,
    };
    let plan = relayout::plan(&a.layout, layout, travel_bits(a.dtype), u64::from(scratch)).map_err(|e| {
        if let RelayoutError::Scratch { needed, .. } = e {
            cx.lack_scratch(needed);
        }
        Error::unsupported(format!("a change of layout of {}{:?}: {e}", a.dtype, layout.shape())).at(cx.b.loc())
    })?;
    match plan.kind {
        RelayoutKind::Registers(program) if Packing::of(a.dtype) == Packing::Wide => {
            // The plan moves words: the low one of each element first.
            let words: Vec<S> = a.regs.iter().flat_map(|r| cx.b.unpack64(*r)).collect();
            let moved = run(cx, &program, &words);
            let regs = moved.chunks(2).map(|w| cx.b.pack64(w[0], w[1])).collect();
            Ok(ArrayRegs {
                dtype: a.dtype,
                layout: layout.clone(),
                regs,
            })
        }
        RelayoutKind::Registers(program) => {
            let regs = run(cx, &program, &a.regs);
            Ok(ArrayRegs {
                dtype: a.dtype,
                layout: layout.clone(),
                regs,
            })
        }
        RelayoutKind::Scratch(plan) => through_scratch(cx, a, layout, &plan),
    }
}

fn run(cx: &mut LowerCx, program: &Program, inputs: &[S]) -> Vec<S> {
    let mut words: Vec<S> = inputs.to_vec();
    for op in &program.ops {
        let get = |w: u32| words[w as usize];
        let x = match *op {
            relayout::Op::Permute { a, b, selector } => {
                let (a, b) = (get(a), get(b));
                cx.b.prmt(a, b, u32::from(selector))
            }
            relayout::Op::Select { bit, zero, one } => {
                let (zero, one) = (get(zero), get(one));
                let set = thread_bit(cx, bit);
                cx.b.select(BitType::B32, set, one, zero)
            }
            relayout::Op::Shuffle { a, lanes } => {
                let a = get(a);
                shuffle(cx, a, &lanes)
            }
            relayout::Op::Extract { a, lo, bits } => {
                let a = get(a);
                cx.b.field(a, u32::from(lo), u32::from(bits), false)
            }
            relayout::Op::Insert { a, b, lo, bits } => {
                let (a, b) = (get(a), get(b));
                cx.b.insert_field(b, a, u32::from(lo), u32::from(bits))
            }
        };
        words.push(x);
    }
    program.outputs.iter().map(|w| words[*w as usize]).collect()
}

/// Whether a bit of the thread's number in its group is set: 0 to 4 the lane, 5 and 6 the warp.
fn thread_bit(cx: &mut LowerCx, bit: u8) -> S {
    let (source, bit) = if bit < 5 {
        (cx.b.lane(), bit)
    } else {
        (cx.b.warp_in_warpgroup(), bit - 5)
    };
    let x = cx.b.and(LogicType::B32, source, Src::u32(1 << bit));
    cx.b.setp(Compare::Ne, CompareType::U32, x, Src::u32(0))
}

fn shuffle(cx: &mut LowerCx, a: S, lanes: &LaneMap) -> S {
    let a = cx.b.r32(a);
    let (mode, b) = match lanes.butterfly() {
        Some(flip) => (ShuffleMode::Bfly, Src::u32(u32::from(flip))),
        None => {
            let lane: S = cx.b.lane().into();
            let mut source: S = Src::u32(u32::from(lanes.flip));
            for (t, from) in lanes.from.iter().enumerate() {
                let Some(from) = from else { continue };
                let x = cx.b.shr(ShiftType::U32, lane, Src::u32(u32::from(*from)));
                let x = cx.b.and(LogicType::B32, x, Src::u32(1));
                let x = cx.b.shl(BitType::B32, x, Src::u32(t as u32));
                source = cx.b.xor(LogicType::B32, source, x);
            }
            (ShuffleMode::Idx, source)
        }
    };
    let d = cx.b.inst(Inst::Shfl {
        mode,
        d: PtxValue::NEW,
        a,
        b,
        c: Src::u32(31),
        mask: ALL_LANES,
    })[0];
    d.into()
}

/// Store, barrier, load, for each trip; a barrier before the first, because earlier users may still read.
fn through_scratch(cx: &mut LowerCx, a: &ArrayRegs, layout: &RegisterLayout, plan: &ScratchPlan) -> Result<ArrayRegs> {
    // Narrow types travel as bytes.
    let travel = if plan.travel_bits == a.dtype.bits() {
        a.dtype
    } else {
        DType::U8
    };
    let elements = cx.elements(a);
    let map = a
        .layout
        .rename_to(&plan.source)
        .ok_or_else(|| Error::internal("a scratch plan of another source"))?;
    let spread: Vec<S> = map.iter().map(|&s| elements[s as usize]).collect();
    let source = cx.from_elements(travel, plan.source.clone(), &spread);
    let mut parts: Vec<Option<S>> = vec![None; layout.slots() as usize];
    let (scratch, _) = cx.scratch();
    for trip in &plan.trips {
        cx.sync_group();
        let target = Target::shared(scratch.into());
        memory::emit_store(cx, target, &trip.store, &plan.view, &source)?;
        cx.sync_group();
        let loaded = memory::emit_load(cx, target, &trip.load, &plan.view, travel)?;
        let loaded = cx.elements(&loaded);
        for access in &trip.load.accesses {
            for variant in 0..1 << trip.load.stagger.len() {
                for slot in access.slots_of(variant) {
                    parts[*slot as usize] = Some(loaded[*slot as usize]);
                }
            }
        }
    }
    let all: Vec<S> = parts.into_iter().map(|p| p.unwrap_or(Src::Imm(0))).collect();
    Ok(cx.from_elements(a.dtype, layout.clone(), &all))
}

/// Scratch that the kernel's relayouts and reductions need, in bytes for each warpgroup.
pub fn scratch_bytes(kernel: &Kernel, assignment: &Assignment) -> u32 {
    let mut need = 0u64;
    let mut consider = |from: &RegisterLayout, to: &RegisterLayout, dtype: DType| {
        if from == to || from.rename_to(to).is_some() {
            return;
        }
        for limit in [MAX_SCRATCH, 4 * MAX_SCRATCH] {
            if let Ok(plan) = relayout::plan(from, to, travel_bits(dtype), limit) {
                if let RelayoutKind::Scratch(s) = plan.kind {
                    need = need.max(s.bytes);
                }
                return;
            }
        }
    };
    kernel.for_each_op(&mut |op| {
        let data = &kernel.ops[op];
        let mut position = 0;
        for_each_value(&data.kind, &mut |v| {
            if let (Some(to), Some(from)) = (assignment.casts.get(&(op, position)), &assignment.values[v]) {
                consider(from, to, kernel.ty(v).dtype());
            }
            position += 1;
        });
    });
    kernel.for_each_op(&mut |op| match &kernel.ops[op].kind {
        OpKind::Reduce { a, axes, .. } => {
            if let Some(layout) = &assignment.values[*a] {
                let axes: Vec<usize> = axes.iter().map(|d| *d as usize).collect();
                // A reduction over warps passes one value of each lane and warp through scratch.
                let crosses = layout.reduce_plan(&axes).is_none_or(|p| p.warp_bits != 0);
                if crosses {
                    let slots = layout.reduce(&axes).map_or(1, |l| u64::from(l.slots()));
                    need = need
                        .max((slots * 128 * u64::from(kernel.ty(*a).dtype().bits().max(32) / 8)).min(MAX_SCRATCH))
                        .max(2048);
                }
            }
        }
        OpKind::For { xs, inits, .. } if !xs.is_empty() || kernel.ops[op].results.len() > inits.len() => {
            // Arrays are taken apart along their leading dimension.
            for &v in xs.iter().chain(&kernel.ops[op].results[inits.len()..]) {
                let elements: u64 = kernel.ty(v).shape().iter().product();
                need = need.max((elements * 8).clamp(2048, MAX_SCRATCH));
            }
            border_casts(kernel, assignment, op, &mut |from, to, dtype| {
                if let Ok(plan) = relayout::plan(from, to, travel_bits(dtype), MAX_SCRATCH)
                    && let RelayoutKind::Scratch(s) = plan.kind
                {
                    need = need.max(s.bytes);
                }
            });
        }
        OpKind::For { .. } | OpKind::While { .. } | OpKind::Switch { .. } | OpKind::Scope { .. } => {
            // Carries and results that change layout at a border.
            border_casts(kernel, assignment, op, &mut |from, to, dtype| {
                if from != to && from.rename_to(to).is_none() {
                    need = need.max(4096);
                    if let Ok(plan) = relayout::plan(from, to, travel_bits(dtype), MAX_SCRATCH)
                        && let RelayoutKind::Scratch(s) = plan.kind
                    {
                        need = need.max(s.bytes);
                    }
                }
            });
        }
        OpKind::ArgReduce { .. }
        | OpKind::Cumulative { .. }
        | OpKind::DynamicSlice { .. }
        | OpKind::DynamicUpdateSlice { .. }
        | OpKind::Concat { .. }
        | OpKind::Pad { .. }
        | OpKind::Reverse { .. } => need = need.max(8192),
        OpKind::Reshape { .. }
        | OpKind::Transpose { .. }
        | OpKind::Slice { .. }
        | OpKind::Broadcast { .. }
        | OpKind::Bitcast { .. } => {
            shape_need(kernel, assignment, op, &mut need);
        }
        // A scalar that one thread reads is told to the others through scratch.
        OpKind::Load { .. } | OpKind::Swap { .. }
            if kernel.ops[op]
                .results
                .first()
                .is_some_and(|&r| kernel.ty(r).is_scalar()) =>
        {
            need = need.max(512);
        }
        OpKind::SemaphoreRead { .. } | OpKind::BarrierTest { .. } => need = need.max(512),
        _ => {}
    });
    need.min(u64::from(u32::MAX / 2)) as u32
}

/// A shape op whose result is not where renaming puts it goes through scratch.
fn shape_need(kernel: &Kernel, assignment: &Assignment, op: Op, need: &mut u64) {
    let mut operand = None;
    for_each_value(&kernel.ops[op].kind, &mut |v| operand = operand.or(Some(v)));
    let Some(a) = operand else { return };
    let (Some(from), Some(to)) = (&assignment.values[a], &assignment.values[kernel.ops[op].results[0]]) else {
        return;
    };
    let from = assignment.casts.get(&(op, 0)).unwrap_or(from);
    let natural = crate::layout::infer::natural_result(kernel, op, from);
    let dtype = kernel.ty(a).dtype();
    let moved = match &natural {
        Some(n) if n == to => return,
        Some(n) => relayout::plan(n, to, travel_bits(dtype), MAX_SCRATCH).ok(),
        None => None,
    };
    match moved.map(|m| m.kind) {
        Some(RelayoutKind::Scratch(s)) => *need = (*need).max(s.bytes),
        Some(RelayoutKind::Registers(_)) => {}
        None => {
            let elements: u64 = kernel.ty(a).shape().iter().product();
            *need = (*need).max((elements * u64::from(travel_bits(dtype).max(8)) / 8).clamp(2048, MAX_SCRATCH));
        }
    }
}

/// Pairs of layouts on the two sides of a region's border.
fn border_casts(
    kernel: &Kernel,
    assignment: &Assignment,
    op: Op,
    f: &mut dyn FnMut(&RegisterLayout, &RegisterLayout, DType),
) {
    let data = &kernel.ops[op];
    let mut pair = |from: Value, to: Value| {
        if let (Some(a), Some(b)) = (&assignment.values[from], &assignment.values[to]) {
            f(a, b, kernel.ty(from).dtype());
        }
    };
    match &data.kind {
        OpKind::For { inits, body, .. } => {
            let region = &kernel.regions[*body];
            for (i, init) in inits.iter().enumerate() {
                pair(*init, region.params[1 + i]);
                pair(region.results[i], region.params[1 + i]);
            }
        }
        OpKind::While { inits, body, .. } => {
            let region = &kernel.regions[*body];
            for (i, init) in inits.iter().enumerate() {
                pair(*init, region.params[i]);
                pair(region.results[i], region.params[i]);
            }
        }
        OpKind::Switch { arms, .. } => {
            for arm in arms {
                for (y, r) in kernel.regions[*arm].results.iter().zip(&data.results) {
                    pair(*y, *r);
                }
            }
        }
        OpKind::Scope { body, .. } => {
            for (y, r) in kernel.regions[*body].results.iter().zip(&data.results) {
                pair(*y, *r);
            }
        }
        _ => {}
    }
}
