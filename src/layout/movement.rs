//! How elements get from the operands of a shape op to its result, for any layouts of both.
//!
//! Where no element has to leave its thread, registers are named anew, which costs nothing: the algebra decides it for what follows
//! from the operand's layout ([`Derivation`]), and looking at every element does for anything else. Else the op stores its operands
//! to scratch and loads the result through a view.
use super::derivation::{Derivation, materialized};
use super::register_layout::RegisterLayout;
use crate::dtype::DType;
use crate::kernel_ir::class::{Pure, ShapeOp};
use crate::kernel_ir::{Kernel, Op, OpKind, Value};

/// For each slot of a result the operand and its slot whose register it is; `None`: the padding value.
pub type Renaming = Vec<Option<(usize, u32)>>;

/// What moves.
#[derive(Clone, Debug, PartialEq)]
pub enum Movement {
    /// Nothing: the operand's registers are the result's.
    Stay,
    Rename(Renaming),
    /// Everything, through so many bytes of shared memory.
    Scratch {
        bytes: u64,
    },
}

/// The type that an array travels through memory in: whole bytes.
pub fn travel_type(dtype: DType) -> DType {
    match dtype {
        DType::Bool => DType::Bool,
        d if d.bits() < 8 => DType::U8,
        d => d,
    }
}

/// Start of a slice along a dimension as far as facts prove it, clamped so that the slice is inside.
pub fn static_start(kernel: &Kernel, start: Value, extent: u64, size: u64) -> Option<u64> {
    let most = extent - size;
    match kernel.facts(start).as_constant() {
        _ if most == 0 => Some(0),
        Some(c) => Some(c.clamp(0, most as i64) as u64),
        None => None,
    }
}

/// The same of all dimensions, if all are known.
fn static_starts(kernel: &Kernel, starts: &[Value], extents: &[u64], sizes: &[u64]) -> Option<Vec<u64>> {
    let dims = starts.iter().zip(extents).zip(sizes);
    dims.map(|((&v, &extent), &size)| static_start(kernel, v, extent, size))
        .collect()
}

/// Where the elements of a padded array's result come from: along each dimension the first operand index that is kept, and how many.
pub fn kept_by_padding(operand: &[u64], result: &[u64], low: &[i64], interior: &[i64]) -> (Vec<u64>, Vec<u64>) {
    let mut start = vec![];
    let mut size = vec![];
    for d in 0..result.len() {
        let step = interior[d] + 1;
        let first = if low[d] < 0 { (-low[d] + step - 1) / step } else { 0 };
        let last = (result[d] as i64 - 1 - low[d])
            .div_euclid(step)
            .min(operand[d] as i64 - 1);
        start.push(first as u64);
        size.push((last - first + 1).max(0) as u64);
    }
    (start, size)
}

/// Whether an operand is an array whose elements the op may move.
pub fn takes_part(kernel: &Kernel, op: Op, operand: Value) -> bool {
    let ty = kernel.ty(operand);
    let has_elements = !matches!(kernel.ops[op].kind, OpKind::Concat { .. }) || !ty.shape().contains(&0);
    !ty.is_scalar() && has_elements
}

/// The movement of a shape op to a result that has elements. `operands`: the layouts of what [`takes_part`], in order.
pub fn of(
    kernel: &Kernel,
    op: Op,
    derived: Option<&Derivation>,
    operands: &[&RegisterLayout],
    result: &RegisterLayout,
) -> Movement {
    let Some(Pure::Shape(how)) = kernel.ops[op].kind.pure() else {
        unreachable!("{} moves nothing", kernel.ops[op].kind.name())
    };
    let to = result.shape();
    let own = operands[0].shape();
    let ty = kernel.ty(kernel.ops[op].results[0]);
    let bytes = |shape: &[u64]| shape.iter().product::<u64>() * u64::from(travel_type(ty.dtype()).bits().max(8) / 8);
    let (map, needed) = match how {
        ShapeOp::Broadcast { dims } => {
            let from = |index: &[u64], inner: &mut [u64]| {
                for ((i, &d), &n) in inner.iter_mut().zip(dims).zip(own) {
                    *i = if n == 1 { 0 } else { index[d as usize] };
                }
                Some(0)
            };
            let map = following(derived, operands[0], result)
                .or_else(|| renaming(operands, result, &from).map(Movement::Rename));
            (map, bytes(own))
        }
        ShapeOp::Reshape | ShapeOp::Transpose => (following(derived, operands[0], result), bytes(own)),
        ShapeOp::Slice { starts, strides } => {
            let from = |index: &[u64], inner: &mut [u64]| {
                for (d, i) in inner.iter_mut().enumerate() {
                    *i = starts[d] + index[d] * strides[d];
                }
                Some(0)
            };
            let map = following(derived, operands[0], result)
                .or_else(|| renaming(operands, result, &from).map(Movement::Rename));
            (map, bytes(own))
        }
        ShapeOp::DynamicSlice { starts } => {
            let map = static_starts(kernel, starts, own, to).and_then(|starts| {
                let from = |index: &[u64], inner: &mut [u64]| {
                    inner
                        .iter_mut()
                        .zip(index)
                        .zip(&starts)
                        .for_each(|((i, at), s)| *i = at + s);
                    Some(0)
                };
                renaming(operands, result, &from)
            });
            (map.map(Movement::Rename), bytes(own))
        }
        ShapeOp::DynamicUpdateSlice { starts } => {
            let sizes = operands[1].shape();
            let map = static_starts(kernel, starts, own, sizes).and_then(|starts| {
                let from = |index: &[u64], inner: &mut [u64]| {
                    inner.copy_from_slice(index);
                    let within = |((i, s), n): ((&u64, &u64), &u64)| i >= s && i - s < *n;
                    let inside = index.iter().zip(&starts).zip(sizes).all(within);
                    if inside {
                        inner.iter_mut().zip(&starts).for_each(|(i, s)| *i -= s);
                    }
                    Some(usize::from(inside))
                };
                renaming(operands, result, &from)
            });
            (map.map(Movement::Rename), bytes(own))
        }
        ShapeOp::Concat { dim } => {
            let dim = dim as usize;
            let mut starts = vec![0];
            for l in operands {
                starts.push(starts[starts.len() - 1] + l.shape()[dim]);
            }
            let from = |index: &[u64], inner: &mut [u64]| {
                let k = starts.partition_point(|&s| s <= index[dim]) - 1;
                inner.copy_from_slice(index);
                inner[dim] -= starts[k];
                Some(k)
            };
            (renaming(operands, result, &from).map(Movement::Rename), bytes(to))
        }
        ShapeOp::Pad { low, interior } => {
            let from = |index: &[u64], inner: &mut [u64]| {
                for (d, &i) in index.iter().enumerate() {
                    let (step, i) = (interior[d] + 1, i as i64 - low[d]);
                    if i < 0 || i % step != 0 || i / step >= own[d] as i64 {
                        return None;
                    }
                    inner[d] = (i / step) as u64;
                }
                Some(0)
            };
            let (start, size) = kept_by_padding(own, to, low, interior);
            let whole = size == own || size.contains(&0) || materialized(operands[0]).slice(&start, &size).is_some();
            let needed = if whole { bytes(to) } else { bytes(to).max(bytes(own)) };
            (renaming(operands, result, &from).map(Movement::Rename), needed)
        }
        ShapeOp::Reverse { dims } => {
            let from = |index: &[u64], inner: &mut [u64]| {
                for (d, i) in inner.iter_mut().enumerate() {
                    let reversed = dims.contains(&(d as u32));
                    *i = if reversed { to[d] - 1 - index[d] } else { index[d] };
                }
                Some(0)
            };
            (renaming(operands, result, &from).map(Movement::Rename), bytes(to))
        }
    };
    map.unwrap_or(Movement::Scratch { bytes: needed })
}

/// The movement to a layout that follows from the operand's by names alone.
fn following(derived: Option<&Derivation>, operand: &RegisterLayout, result: &RegisterLayout) -> Option<Movement> {
    let (natural, map) = derived?.forward_map(operand, result.shape())?;
    if natural == *result && map.is_none() {
        return Some(Movement::Stay);
    }
    let names = natural.rename_to(result)?;
    let source = |slot: u32| map.as_ref().map_or(slot, |map| map[slot as usize]);
    Some(Movement::Rename(
        names.into_iter().map(|slot| Some((0, source(slot)))).collect(),
    ))
}

/// Where the element of a result at an index comes from: the number of the source, and in the second argument its index there.
/// `None`: it is the padding value.
type From<'a> = dyn Fn(&[u64], &mut [u64]) -> Option<usize> + 'a;

/// Slots above which no elements are compared: of one byte each, all that a thread can hold.
const MAX_RENAMED_SLOTS: u32 = 1 << 14;

/// The renaming, if no element has to leave its thread and all threads agree. Compares every element: where layouts decide it by
/// themselves, try that first.
fn renaming(sources: &[&RegisterLayout], result: &RegisterLayout, from: &From) -> Option<Renaming> {
    if result.slots() > MAX_RENAMED_SLOTS {
        return None;
    }
    let mut index = vec![0; result.rank()];
    let mut inner = vec![0; sources[0].rank()];
    let mut out = Vec::with_capacity(result.slots() as usize);
    for slot in 0..result.slots() {
        let mut found: Option<Option<(usize, u32)>> = None;
        for thread in 0..result.group().threads() {
            if !result.write_element(thread, slot, &mut index) {
                continue;
            }
            let here = match from(&index, &mut inner) {
                None => None,
                Some(k) => {
                    let (owner, slot) = sources[k].owner(&inner);
                    if (owner ^ thread) & !u32::from(sources[k].replicated_bits()) != 0 {
                        return None;
                    }
                    Some((k, slot))
                }
            };
            if *found.get_or_insert(here) != here {
                return None;
            }
        }
        // A slot that is padding everywhere.
        out.push(found.unwrap_or(Some((0, 0))));
    }
    Some(out)
}
