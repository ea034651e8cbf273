//! Changes of register layout: what [`crate::layout::relayout`] plans, emitted.
use super::cx::LowerCx;
use super::emit::{ALL_LANES, S};
use super::memory::{self, Target};
use super::value::{ArrayRegs, Packing};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::kernel_ir::{Op, Value};
use crate::layout::RegisterLayout;
use crate::layout::relayout::{
    self, LaneMap, Program, RelayoutError, RelayoutKind, RelayoutPlan, ScratchPlan, travel_bits,
};
use crate::plan::scratch::is_renamed;
use crate::plan::size::too_many_values;
use crate::ptx::inst::Inst;
use crate::ptx::modifier::*;
use crate::ptx::operand::Src;
use crate::ptx::ssa::Value as PtxValue;

pub fn lower_relayout(cx: &mut LowerCx, op: Op, a: Value) -> Result<()> {
    let result = cx.result(op);
    let layout = cx.layout_of(result)?;
    let x = cx.array(a)?;
    let exchanges = cx.exchanges;
    let out = if layout.shape().contains(&0) {
        cx.fill(x.dtype, layout, Src::Imm(0))
    } else {
        in_layout(cx, &x, &layout, exchanges.relayouts.get(&op))?
    };
    cx.bind_array(result, out);
    Ok(())
}

/// A splat in another layout.
pub fn filled(cx: &mut LowerCx, a: &ArrayRegs, layout: &RegisterLayout) -> Result<ArrayRegs> {
    if a.layout == *layout {
        return Ok(a.clone());
    }
    if !a.layout.is_splat() {
        let what = format!(
            "{}{:?} is needed in another layout than it has",
            a.dtype,
            layout.shape()
        );
        return Err(Error::internal(what)
            .at(cx.b.loc())
            .expected(layout.to_string())
            .got(a.layout.to_string()));
    }
    let plan = relayout::plan(&a.layout, layout, travel_bits(a.dtype), 0).map_err(|e| match e {
        RelayoutError::TooLarge(words) => too_many_values(&cx.kernel.target, words, None).at(cx.b.loc()),
        e => Error::internal(e.to_string()).at(cx.b.loc()),
    })?;
    in_layout(cx, a, layout, Some(&plan))
}

/// The array in another layout, by its plan; none: registers have other names there.
fn in_layout(
    cx: &mut LowerCx,
    a: &ArrayRegs,
    layout: &RegisterLayout,
    plan: Option<&RelayoutPlan>,
) -> Result<ArrayRegs> {
    let made = |regs: Vec<S>| ArrayRegs {
        dtype: a.dtype,
        layout: layout.clone(),
        regs,
    };
    if is_renamed(&a.layout, layout, a.dtype)
        && let Some(map) = a.layout.rename_to(layout)
    {
        return Ok(made(map.iter().map(|&s| a.regs[s as usize]).collect()));
    }
    let plan = plan.ok_or_else(|| Error::internal("a change of layout without a plan").at(cx.b.loc()))?;
    if Packing::of(a.dtype) == Packing::Predicates {
        let bytes: Vec<S> = a
            .regs
            .iter()
            .map(|p| cx.b.select(BitType::B32, *p, Src::u32(1), Src::u32(0)))
            .collect();
        let packed = cx.from_elements(DType::U8, a.layout.clone(), &bytes);
        let moved = planned(cx, &packed, layout, plan)?;
        let moved = cx.elements(&moved);
        let bits = moved.into_iter();
        return Ok(made(
            bits.map(|x| cx.b.setp(Compare::Ne, CompareType::U32, x, Src::u32(0)))
                .collect(),
        ));
    }
    planned(cx, a, layout, plan)
}

fn planned(cx: &mut LowerCx, a: &ArrayRegs, layout: &RegisterLayout, plan: &RelayoutPlan) -> Result<ArrayRegs> {
    let regs = match &plan.kind {
        RelayoutKind::Registers(program) if Packing::of(a.dtype) == Packing::Wide => {
            // The plan moves words: the low one of each element first.
            let words: Vec<S> = a.regs.iter().flat_map(|r| cx.b.unpack64(*r)).collect();
            let moved = run(cx, program, &words);
            moved.chunks(2).map(|w| cx.b.pack64(w[0], w[1])).collect()
        }
        RelayoutKind::Registers(program) => run(cx, program, &a.regs),
        RelayoutKind::Scratch(plan) => return through_scratch(cx, a, layout, plan),
    };
    Ok(ArrayRegs {
        dtype: a.dtype,
        layout: layout.clone(),
        regs,
    })
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
    let d =
        cx.b.inst(Inst::shfl(mode, PtxValue::NEW, a, b, Src::u32(31), ALL_LANES))[0];
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
