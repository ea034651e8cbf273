//! Inline PTX: the text once for every element that a lane has, or once for all of them.
use super::cx::LowerCx;
use super::elementwise::{join_bits, raw, split_bits};
use super::emit::S;
use super::value::{ArrayRegs, scalar_class};
use super::{barrier, exchange, integer, memory, tma};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::inline;
use crate::kernel_ir::{Does, Elem, InlineMap, InlineOperand, InlinePtx, LaneArray, Op, Place, RefUse, Value, Whole};
use crate::layout::RegisterLayout;
use crate::layout::infer::spec;
use crate::ptx::launch::TensorMapSpec;
use crate::ptx::modifier::IntType;
use crate::ptx::operand::{Class, Src};

pub fn lower_inline_ptx(
    cx: &mut LowerCx,
    op: Op,
    does: Does,
    code: &InlinePtx,
    refs: &[RefUse],
    args: &[Value],
) -> Result<()> {
    let results = cx.kernel.ops[op].results.clone();
    let interface = inline::check::interface(cx.kernel, op)?;
    let num_results = inline::check::num_results(cx.kernel, op, code);
    // What runs once for a warpgroup (`inline_mgpu`) has the warpgroup's own barrier.
    let barriers = match &code.whole {
        Some(whole) if !whole.in_words => (0, 15),
        Some(_) | None => (cx.kernel.num_warpgroups + 1, 15),
    };
    let text = inline::Text::new(code, &interface, num_results, barriers)?;
    let mut addresses = vec![];
    for (i, r) in refs.iter().enumerate() {
        addresses.push(address(cx, op, i, r)?);
    }
    // Maps stand behind all else.
    for map in &code.maps {
        let map = tensor_map(cx, op, map, refs)?;
        addresses.push(map);
    }
    if code.once {
        return by_one_lane(cx, code, &text, &addresses, args, &results);
    }
    if let Some(whole) = &code.whole {
        return lower_whole(cx, op, code, whole, &text, &addresses, args);
    }
    let is_array = |cx: &LowerCx, v: &Value| !cx.ty(*v).is_scalar();
    let first = results.iter().find(|v| is_array(cx, v));
    let first = first.or_else(|| args.iter().find(|v| is_array(cx, v) && !is_splat(cx, **v)));
    let first = first.or_else(|| args.iter().find(|v| is_array(cx, v)));
    let layout: Option<RegisterLayout> = match first {
        Some(v) => {
            let layout = cx.layout_of(*v)?;
            // Every element is run, be they equal.
            Some(match layout.is_splat() && does != Does::Computes {
                true => RegisterLayout::dealt(cx.ty(*v).shape(), cx.layout_group()),
                false => layout,
            })
        }
        None => None,
    };
    let pack = code.pack as usize;
    let slots = layout.as_ref().map_or(1, |l| l.slots() as usize);
    let rounds = slots.div_ceil(pack);
    // Of each value, what the text gets in each round.
    let mut given: Vec<Vec<S>> = vec![];
    for v in args {
        let dtype = cx.ty(*v).dtype();
        given.push(match &layout {
            Some(layout) if is_array(cx, v) => {
                let array = cx.array_in(*v, layout)?;
                let elements = cx.elements(&array);
                let words = elements.chunks(pack).map(|some| into_register(cx, dtype, pack, some));
                words.collect()
            }
            Some(_) | None => {
                let x = cx.scalar(*v)?;
                vec![into_register(cx, dtype, 1, &[x]); rounds]
            }
        });
    }
    let mut made: Vec<Vec<S>> = vec![vec![]; results.len()];
    for round in 0..rounds {
        let operands: Vec<S> = code
            .operands
            .iter()
            .map(|operand| match operand {
                InlineOperand::Value(i) => given[*i as usize][round],
                InlineOperand::Ref(i) => addresses[*i as usize],
                InlineOperand::Map(i) => addresses[refs.len() + *i as usize],
            })
            .collect();
        let out = text.emit(&mut cx.b, &operands);
        for (k, x) in out.into_iter().enumerate() {
            let ty = cx.ty(results[k]);
            let (dtype, n) = (ty.dtype(), if ty.is_scalar() { 1 } else { pack });
            let elements = out_of_register(cx, dtype, n, x);
            made[k].extend(elements);
        }
    }
    for (v, mut elements) in results.into_iter().zip(made) {
        if !is_array(cx, &v) {
            cx.bind_scalar(v, elements[0]);
            continue;
        }
        let layout = layout.clone().ok_or_else(|| cx.unexpected(op))?;
        elements.truncate(slots);
        let dtype = cx.ty(v).dtype();
        let array: ArrayRegs = cx.from_elements(dtype, layout, &elements);
        cx.bind_array(v, array);
    }
    Ok(())
}

/// One lane of the group runs it, behind a barrier, and broadcasts its results.
fn by_one_lane(
    cx: &mut LowerCx,
    code: &InlinePtx,
    text: &inline::Text,
    addresses: &[S],
    args: &[Value],
    results: &[Value],
) -> Result<()> {
    let mut operands = vec![];
    let maps = addresses.len() - code.maps.len();
    for operand in &code.operands {
        operands.push(match operand {
            InlineOperand::Value(i) => {
                let v = args[*i as usize];
                let (dtype, x) = (cx.ty(v).dtype(), cx.scalar(v)?);
                into_register(cx, dtype, 1, &[x])
            }
            InlineOperand::Ref(i) => addresses[*i as usize],
            InlineOperand::Map(i) => addresses[maps + *i as usize],
        });
    }
    let dtypes: Vec<DType> = results.iter().map(|v| cx.ty(*v).dtype()).collect();
    let classes: Vec<Class> = dtypes.iter().map(|dtype| scalar_class(*dtype)).collect();
    cx.sync_group();
    let leader = cx.leader();
    let made = cx.if_else(
        leader.into(),
        &classes,
        |cx| {
            let out = text.emit(&mut cx.b, &operands);
            let of = out.into_iter().zip(&dtypes);
            Ok(of.map(|(x, dtype)| out_of_register(cx, *dtype, 1, x)[0]).collect())
        },
        |_| Ok(vec![Src::Imm(0); classes.len()]),
    )?;
    for ((v, class), x) in results.iter().zip(classes).zip(made) {
        let broadcast = memory::broadcast_leader(cx, class, x)?;
        cx.bind_scalar(*v, broadcast);
    }
    Ok(())
}

/// The text once, with registers for all elements.
fn lower_whole(
    cx: &mut LowerCx,
    op: Op,
    code: &InlinePtx,
    whole: &Whole,
    text: &inline::Text,
    addresses: &[S],
    args: &[Value],
) -> Result<()> {
    let mut operands: Vec<S> = vec![];
    let maps = addresses.len() - code.maps.len();
    for operand in &code.operands {
        match operand {
            InlineOperand::Ref(i) => operands.push(addresses[*i as usize]),
            InlineOperand::Map(i) => operands.push(addresses[maps + *i as usize]),
            InlineOperand::Value(i) => {
                let v = args[*i as usize];
                let dtype = cx.ty(v).dtype();
                let elements = match &whole.args[*i as usize] {
                    Some(array) => {
                        let (layout, slots) = lie(cx, v, array)?;
                        let array = cx.array_in(v, &layout)?;
                        let elements = cx.elements(&array);
                        slots.into_iter().map(|slot| elements[slot as usize]).collect()
                    }
                    None => vec![cx.scalar(v)?],
                };
                let pack = code.pack_of(cx.ty(v)) as usize;
                operands.extend(elements.chunks(pack).map(|some| into_register(cx, dtype, pack, some)));
            }
        }
    }
    let mut made = text.emit(&mut cx.b, &operands).into_iter();
    for (k, v) in cx.kernel.ops[op].results.clone().into_iter().enumerate() {
        let (dtype, pack) = (cx.ty(v).dtype(), code.pack_of(cx.ty(v)) as usize);
        let registers: Vec<S> = made.by_ref().take(code.registers_of_result(k, cx.ty(v))).collect();
        let mut elements: Vec<S> = registers
            .into_iter()
            .flat_map(|x| out_of_register(cx, dtype, pack, x))
            .collect();
        let Some(array) = &whole.results[k] else {
            cx.bind_scalar(v, elements[0]);
            continue;
        };
        let (layout, slots) = lie(cx, v, array)?;
        elements.truncate(slots.len());
        let mut lying = elements.clone();
        for (slot, x) in slots.into_iter().zip(elements) {
            lying[slot as usize] = x;
        }
        let array: ArrayRegs = cx.from_elements(dtype, layout, &lying);
        cx.bind_array(v, array);
    }
    Ok(())
}

/// An array's layout in a text that runs once, and the slots of the elements in the text's order.
fn lie(cx: &LowerCx, v: Value, array: &LaneArray) -> Result<(RegisterLayout, Vec<u32>)> {
    let layout = spec::of_value(&array.layout, cx.kernel, v)?;
    let slots = layout.slots_of(&array.order);
    let slots = slots.ok_or_else(|| Error::internal(format!("an order of elements that is none of {layout}")))?;
    Ok((layout, slots))
}

fn is_splat(cx: &LowerCx, v: Value) -> bool {
    cx.layout_of(v).is_ok_and(|l| l.is_splat())
}

/// Where a reference's first element is.
fn address(cx: &mut LowerCx, op: Op, i: usize, r: &RefUse) -> Result<S> {
    if r.elem == Elem::Barrier {
        let at = barrier::address_of(cx, r)?;
        return Ok(cx.b.add(IntType::U32, at.base, Src::imm32(at.offset)));
    }
    let views = cx.accesses.inline.get(&op).and_then(|views| views.get(i));
    let view = views
        .cloned()
        .flatten()
        .ok_or_else(|| Error::internal("a reference without its plan").at(cx.b.loc()))?;
    let target = memory::locate(cx, r, Src::Imm(1))?;
    let at = memory::scalar_address(cx, &view, target)?;
    let offset = Src::Imm(i64::from(at.offset) as u64);
    Ok(match target.wide() {
        true => cx.b.add(IntType::U64, at.base, offset),
        false => cx.b.add(IntType::U32, at.base, offset),
    })
}

/// A tensor map over one of the op's references.
fn tensor_map(cx: &mut LowerCx, op: Op, map: &InlineMap, refs: &[RefUse]) -> Result<S> {
    let of = map.of as usize;
    let view = cx.accesses.inline.get(&op).and_then(|views| views.get(of)?.as_ref());
    let view = view.ok_or_else(|| Error::internal("a tensor map without its plan").at(cx.b.loc()))?;
    let spec = TensorMapSpec {
        buffer: cx.buffer_of(refs[of].alloc)?,
        byte_offset: view.offset / 8,
        element: tma::element_of(map.element),
        dims: map.dims.iter().copied().collect(),
        strides: map.strides.iter().copied().collect(),
        box_dims: map.box_dims.iter().copied().collect(),
        swizzle: tma::swizzle_of(map.swizzle),
    };
    Ok(match refs[of].place {
        Place::Peer { device } => exchange::tensor_map(cx, device, &spec)?,
        Place::Here | Place::Cluster { .. } | Place::Multicast { .. } => cx.tensor_map(spec),
    }
    .into())
}

/// Neighbouring elements of an array, or a scalar, as the register that the text sees.
fn into_register(cx: &mut LowerCx, dtype: DType, pack: usize, elements: &[S]) -> S {
    if pack == 1 {
        return match (scalar_class(dtype), dtype.bits()) {
            (Class::B32, 16) => cx.b.unpack16(elements[0])[0],
            _ => elements[0],
        };
    }
    let mut elements = elements.to_vec();
    elements.resize(pack, Src::Imm(0));
    match dtype.bits() * pack as u32 {
        16 => {
            let word = join_bits(&mut cx.b, DType::U16, dtype, &elements);
            cx.b.unpack16(word)[0]
        }
        bits => join_bits(&mut cx.b, raw(bits), dtype, &elements),
    }
}

/// The other way.
fn out_of_register(cx: &mut LowerCx, dtype: DType, pack: usize, x: S) -> Vec<S> {
    let bits = dtype.bits() * pack as u32;
    if pack == 1 {
        let word = match (scalar_class(dtype), bits) {
            (Class::B32, 16) => cx.b.pack16(x, Src::Imm(0)),
            _ => x,
        };
        return vec![match scalar_class(dtype) {
            Class::B32 if bits < 32 && dtype.is_int() => integer::wrap(&mut cx.b, dtype, word),
            Class::B32 if bits < 32 => cx.b.field(word, 0, bits, false),
            Class::Pred | Class::B16 | Class::B32 | Class::B64 => word,
        }];
    }
    let wide = if bits == 16 { DType::U16 } else { raw(bits) };
    let word = if bits == 16 { cx.b.pack16(x, Src::Imm(0)) } else { x };
    split_bits(&mut cx.b, wide, dtype, word)
}
