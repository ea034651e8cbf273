//! Sorts: in registers where runs fit ([`sort_registers`](super::sort_registers), [`sort_first`](super::sort_first)), else in
//! scratch ([`sort_scratch`](super::sort_scratch)).
use super::cx::{Carried, LowerCx};
use super::emit::S;
use super::memory::Target;
use super::network::Network;
use super::shape::{Trip, bind_if_empty, dim_indices, part_of};
use super::sort_scratch::Sorter;
use super::value::ArrayRegs;
use super::{sort_first, sort_registers};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::kernel_ir::{Op, Value};
use crate::layout::derivation::materialized;
use crate::layout::sorting::{Lying, Part, SortPlan, Way};
use crate::layout::{Index, RegisterLayout, SmemView, Start};
use crate::ptx::modifier::*;
use crate::ptx::operand::{Class, Src};

pub fn lower_sort(cx: &mut LowerCx, op: Op, keys: &[Value], axis: u32) -> Result<()> {
    let results = cx.kernel.ops[op].results.clone();
    let (axis, shape) = (axis as usize, cx.ty(keys[0]).shape().to_vec());
    if shape.contains(&0) {
        for &v in &results {
            bind_if_empty(cx, v)?;
        }
        return Ok(());
    }
    let plan = SortPlan::of_op(cx.kernel, op).ok_or_else(|| Error::internal("a sort without a plan"))?;
    let thread: S = cx.thread_in_group().into();
    let network = Network {
        dtypes: plan.parts.iter().map(|(p, _)| p.dtype()).collect(),
        threads: plan.runs.threads,
        each: plan.runs.each,
        thread: cx.b.and32(thread, plan.runs.threads as u32 - 1),
        exchange: plan.exchange as i32,
    };
    match &plan.way {
        Way::Registers(lying) | Way::Kept { lying, .. } => {
            let words = in_registers(cx, &plan, &network, lying, keys)?;
            for (k, v, part) in wanted(cx, &plan, keys.len(), &results)? {
                let out = unpacked(cx, plan.parts[part].0, &words[part], k == keys.len(), cx.ty(v).dtype());
                cx.bind_array(v, out);
            }
            Ok(())
        }
        Way::Scratch => {
            let trip = Trip::start(cx, DType::U32);
            for &(part, at) in &plan.parts {
                let words = packed(cx, part, keys, axis, None)?;
                let (part, view) = placed(part.dtype(), &shape, at, trip.target);
                part.store(cx, &words, &view)?;
            }
            cx.sync_group();
            let sorter = Sorter {
                runs: plan.runs,
                network,
                offsets: plan.parts.iter().map(|(_, at)| *at as i32).collect(),
                target: trip.target,
            };
            sorter.sort(cx)?;
            cx.sync_group();
            for (k, v, part) in wanted(cx, &plan, keys.len(), &results)? {
                let (part, at) = plan.parts[part];
                let layout = cx.layout_of(v)?;
                let (loaded, view) = placed(part.dtype(), &shape, at, trip.target);
                let firsts = cx.ty(v).shape().iter().map(|&n| Index::Slice(Start::Static(0), n));
                let view = part_of(&view, &firsts.collect::<Vec<_>>())?;
                let words = loaded.load_now(cx, &layout, &view)?;
                let out = unpacked(cx, part, &words, k == keys.len(), cx.ty(v).dtype());
                cx.bind_array(v, out);
            }
            Ok(())
        }
    }
}

/// The words that are sorted, in the layout that the results have.
fn in_registers(
    cx: &mut LowerCx,
    plan: &SortPlan,
    network: &Network,
    lying: &Lying,
    keys: &[Value],
) -> Result<Vec<ArrayRegs>> {
    let mut elements = vec![vec![]; lying.from.slots() as usize];
    for &(part, _) in &plan.parts {
        let words = packed(cx, part, keys, lying.axis, Some(&lying.from))?;
        for (x, word) in elements.iter_mut().zip(cx.elements(&words)) {
            x.push(word);
        }
    }
    let elements = match &plan.way {
        Way::Kept { kept, .. } => sort_first::first(cx, network, lying, kept, elements)?,
        Way::Registers(_) | Way::Scratch => sort_registers::whole(cx, network, lying, elements)?,
    };
    let of = |(part, dtype): (usize, &DType)| {
        let words: Vec<S> = elements.iter().map(|x| x[part]).collect();
        cx.from_elements(*dtype, lying.to.clone(), &words)
    };
    Ok(network.dtypes.iter().enumerate().map(of).collect())
}

/// The results that are used: their numbers, and the parts that they are in. The one behind the keys is the index.
fn wanted(cx: &LowerCx, plan: &SortPlan, keys: usize, results: &[Value]) -> Result<Vec<(usize, Value, usize)>> {
    let used = results.iter().enumerate().filter(|(_, v)| cx.used.contains(**v));
    used.map(|(k, &v)| {
        let holds = |(p, _): &(Part, u64)| match *p {
            Part::Key { key, .. } => key == k,
            Part::KeyAndIndex { key, .. } => key == k || k == keys,
            Part::Index => k == keys,
        };
        let part = plan.parts.iter().position(holds);
        let part = part.ok_or_else(|| Error::internal("a sort that does not keep a result"))?;
        Ok((k, v, part))
    })
    .collect()
}

/// Where an array of words lies in scratch.
fn placed(dtype: DType, shape: &[u64], at: u64, target: Target) -> (Trip, SmemView) {
    let mut view = SmemView::row_major(shape, dtype.bits());
    view.offset = at * 8;
    (Trip::on(dtype, target), view)
}

/// The words that are sorted, of the elements in registers. `to`: the layout that they are in, if not in any.
fn packed(cx: &mut LowerCx, part: Part, keys: &[Value], axis: usize, to: Option<&RegisterLayout>) -> Result<ArrayRegs> {
    let key = match part {
        Part::Key { key, .. } | Part::KeyAndIndex { key, .. } => key,
        Part::Index => 0,
    };
    let x = cx.array(keys[key])?;
    // Indices are not equal along the axis, whatever keys are.
    let layout = to.cloned().unwrap_or_else(|| materialized(&x.layout));
    let x = super::relayout::filled(cx, &x, &layout)?;
    let own = cx.ty(keys[key]).dtype();
    let indices = match part {
        Part::Key { .. } => vec![],
        Part::KeyAndIndex { .. } | Part::Index => dim_indices(cx, &layout, axis),
    };
    let mut out = vec![];
    for (slot, s) in cx.elements(&x).into_iter().enumerate() {
        let wide = part.dtype() == DType::U64;
        out.push(match part {
            Part::Key { .. } if wide && own.bits() <= 32 => cx.b.widen(s, false),
            Part::Key { .. } => s,
            Part::Index => indices[slot],
            Part::KeyAndIndex { index_bits: 32, .. } => cx.b.pack64(indices[slot], s),
            Part::KeyAndIndex { index_bits, .. } if wide => {
                let word = if own.bits() <= 32 { cx.b.widen(s, false) } else { s };
                let high = cx.b.shl(BitType::B64, word, Src::u32(index_bits));
                let index = cx.b.widen(indices[slot], false);
                cx.b.or(LogicType::B64, high, index)
            }
            Part::KeyAndIndex { index_bits, .. } => {
                let high = cx.b.shl(BitType::B32, s, Src::u32(index_bits));
                cx.b.or(LogicType::B32, high, indices[slot])
            }
        });
    }
    Ok(cx.from_elements(part.dtype(), layout, &out))
}

/// A key, or where elements came from, out of the words that were sorted.
fn unpacked(cx: &mut LowerCx, part: Part, words: &ArrayRegs, is_index: bool, dtype: DType) -> ArrayRegs {
    let wide = part.dtype() == DType::U64;
    let narrow = |cx: &mut LowerCx, s: S| match wide && dtype.bits() <= 32 {
        true => cx.b.truncate(s),
        false => s,
    };
    let mut out = vec![];
    for s in cx.elements(words) {
        out.push(match part {
            Part::Key { .. } | Part::Index => narrow(cx, s),
            Part::KeyAndIndex { index_bits: 32, .. } => cx.b.unpack64(s)[usize::from(!is_index)],
            Part::KeyAndIndex { index_bits, .. } if is_index => {
                let low = narrow(cx, s);
                cx.b.field(low, 0, index_bits, false)
            }
            Part::KeyAndIndex { index_bits, .. } => {
                let shift = if wide { ShiftType::U64 } else { ShiftType::U32 };
                let key = cx.b.shr(shift, s, Src::u32(index_bits));
                narrow(cx, key)
            }
        });
    }
    cx.from_elements(dtype, words.layout.clone(), &out)
}

/// `for i in 0..n { body }`, in a loop of the program where there is more than one.
pub fn counted(cx: &mut LowerCx, n: u64, body: impl FnOnce(&mut LowerCx, S) -> Result<()>) -> Result<()> {
    if n == 1 {
        return body(cx, Src::u32(0));
    }
    let carried = [Carried {
        init: Src::u32(0),
        class: Class::B32,
        uniform: crate::ptx::ssa::Uniform::Cta,
    }];
    cx.while_loop(
        &carried,
        |cx, values| Ok(cx.b.setp(Compare::Lt, CompareType::U32, values[0], Src::u32(n as u32))),
        |cx, values| {
            body(cx, values[0])?;
            Ok(vec![cx.b.add(IntType::U32, values[0], Src::u32(1))])
        },
    )?;
    Ok(())
}
