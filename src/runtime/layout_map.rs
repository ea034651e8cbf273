//! Which thread holds which element of an array, as `smalt.draw_layout` shows it.
use crate::descriptor;
use crate::dtype::DType;
use crate::error::Error;
use crate::kernel_ir::LayoutSpec;
use crate::layout::digits::Digit;
use crate::layout::infer::spec;
use crate::layout::{Axis, Group, Place, RegisterLayout, TiledLayout, tiled};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// Most elements of an array whose map is given out.
pub(super) const MAX_ELEMENTS: u64 = 1 << 22;

/// The array and its layout, as Python describes them.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Query {
    layout: Which,
    /// `None`: the layout's own, or its tile.
    shape: Option<Vec<u64>>,
    /// JAX's name. `None`: of 32 bits.
    dtype: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum Which {
    /// An encoded `Layout` of the descriptor.
    Message(Vec<u8>),
    /// As reports have it.
    Digits(Digits),
}

/// A register layout in its normal form, as JSON.
#[derive(Serialize, Deserialize)]
pub struct Digits {
    shape: Vec<u64>,
    warps: u32,
    axes: Vec<AxisDigits>,
}

#[derive(Serialize, Deserialize)]
struct AxisDigits {
    first: usize,
    rank: usize,
    size: u64,
    /// Minor digit first.
    chain: Vec<(u64, PlaceOf)>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum PlaceOf {
    Thread(u8),
    Slot(u32),
    Constant,
}

impl Digits {
    pub fn of(layout: &RegisterLayout) -> Digits {
        let digit = |d: &Digit<Place>| {
            let place = match d.place {
                Place::Thread(bit) => PlaceOf::Thread(bit),
                Place::Slot(stride) => PlaceOf::Slot(stride),
                Place::Constant => PlaceOf::Constant,
            };
            (d.size, place)
        };
        let axis = |a: &Axis| AxisDigits {
            first: a.first,
            rank: a.rank,
            size: a.size,
            chain: a.chain.iter().map(digit).collect(),
        };
        Digits {
            shape: layout.shape().to_vec(),
            warps: layout.group().threads() / 32,
            axes: layout.axes().iter().map(axis).collect(),
        }
    }

    fn layout(&self) -> RegisterLayout {
        let digit = |(size, place): &(u64, PlaceOf)| {
            let place = match place {
                PlaceOf::Thread(bit) => Place::Thread(*bit),
                PlaceOf::Slot(stride) => Place::Slot(*stride),
                PlaceOf::Constant => Place::Constant,
            };
            Digit::new(*size, place)
        };
        let axis = |a: &AxisDigits| Axis {
            first: a.first,
            rank: a.rank,
            size: a.size,
            chain: a.chain.iter().map(digit).collect(),
        };
        let group = if self.warps == 1 { Group::Warp } else { Group::Warpgroup };
        RegisterLayout::from_axes(&self.shape, group, self.axes.iter().map(axis))
    }
}

/// The requested layout, and its name if it has one of the user's.
fn instantiate(query: &Query, dtype: DType) -> Result<RegisterLayout, Error> {
    let bytes = match &query.layout {
        Which::Digits(digits) => return Ok(digits.layout()),
        Which::Message(bytes) => bytes,
    };
    let spec = descriptor::decode_layout(bytes)?;
    let own: Option<Vec<u64>> = match &spec {
        LayoutSpec::Tiled { tiling, .. } => tiling.first().cloned(),
        LayoutSpec::Strided { shape, .. } | LayoutSpec::Splat { shape } => Some(shape.to_vec()),
        LayoutSpec::Named { name, .. } => match TiledLayout::by_name(name) {
            Some(layout) => Some(layout.base_tile().to_vec()),
            None if name == "WG_STRIDED" || name == "WG_SPLAT" => None,
            None => {
                return Err(Error::invalid(format!("layout {name}"))
                    .expected(format!(
                        "a layout with its arguments, or one of {}",
                        TiledLayout::NAMES.join(", ")
                    ))
                    .got(name)
                    .remedy("call it as in a kernel, e.g. `plgpu.Layout.WG_STRIDED((64, 64), vec_size=2)`"));
            }
        },
    };
    let Some(shape) = query.shape.as_ref().or(own.as_ref()) else {
        return Err(Error::invalid(format!("layout {spec}"))
            .expected("a shape: this layout has none of its own")
            .got("no shape")
            .remedy("`smalt.draw_layout(layout, shape)`"));
    };
    if shape
        .iter()
        .try_fold(1u64, |n, d| n.checked_mul(*d))
        .is_none_or(|n| n > MAX_ELEMENTS)
    {
        return Err(Error::invalid(format!("layout {spec}"))
            .expected(format!("an array of at most {MAX_ELEMENTS} elements"))
            .got(format!("{shape:?}"))
            .remedy("draw a smaller array: layouts repeat"));
    }
    match &spec {
        LayoutSpec::Strided { shape: own, .. } | LayoutSpec::Splat { shape: own } if own[..] != shape[..] => {
            Err(Error::invalid(format!("layout {spec}"))
                .expected(format!("an array of the layout's shape, {:?}", own.as_slice()))
                .got(format!("{shape:?}"))
                .remedy("make the layout for this shape, or leave out the shape"))
        }
        LayoutSpec::Named { name, .. } if name == "WG_SPLAT" => Ok(RegisterLayout::splat(shape, Group::Warpgroup)),
        LayoutSpec::Tiled { .. } | LayoutSpec::Strided { .. } | LayoutSpec::Splat { .. } | LayoutSpec::Named { .. } => {
            spec::instantiate(&spec, shape, dtype, Group::Warpgroup)
        }
    }
}

/// The element type of this name of JAX's.
pub(super) fn dtype_named(name: &str) -> Result<DType, Error> {
    DType::ALL.into_iter().find(|d| d.name() == name).ok_or_else(|| {
        Error::invalid("a type of no array in a kernel")
            .expected("an element type of a kernel's arrays, e.g. float16")
            .got(name)
    })
}

/// Elements that share a register: those of narrow types are packed. A bool is a predicate.
fn per_register(dtype: DType) -> u32 {
    match dtype {
        DType::Bool => 1,
        other => RegisterLayout::slots_per_word(other.bits()),
    }
}

/// Along each dimension: the extent behind which only registers change, and how they do: counts and steps in slots, minor first.
fn unit(layout: &RegisterLayout, per_register: u32) -> Vec<(u64, Vec<(u64, u32)>)> {
    let mut units: Vec<_> = layout.shape().iter().map(|n| (*n, vec![])).collect();
    for axis in layout.axes().iter().filter(|axis| axis.rank == 1) {
        let mut kept = axis.chain.len();
        let mut repeats = vec![];
        while let Some(digit) = axis.chain[..kept].last() {
            let step = match digit.place {
                Place::Slot(stride) if stride % per_register == 0 => stride,
                Place::Constant => 0,
                Place::Slot(_) | Place::Thread(_) => break,
            };
            repeats.insert(0, (digit.size, step));
            kept -= 1;
        }
        let extent = axis.chain[..kept].iter().map(|d| d.size).product::<u64>();
        units[axis.first] = (extent.min(axis.size), repeats);
    }
    units
}

/// The map, as JSON: `owners` has for each element, in row-major order, `thread * slots + slot` of the first thread that holds it; the
/// others' numbers differ from it by the bits of `copies`.
pub fn answer(query: &Query) -> Result<Value, Error> {
    let dtype = match &query.dtype {
        None => DType::F32,
        Some(name) => dtype_named(name)?,
    };
    let layout = instantiate(query, dtype)?;
    let slots = layout.slots();
    let mut owners = vec![];
    let shape = layout.shape();
    let mut index = vec![0; shape.len()];
    for at in 0..shape.iter().product::<u64>() {
        let mut rest = at;
        for (i, n) in index.iter_mut().zip(shape).rev() {
            (*i, rest) = (rest % n, rest / n);
        }
        let (thread, slot) = layout.owner(&index);
        owners.push(u64::from(thread) * u64::from(slots) + u64::from(slot));
    }
    let copies = layout.replicated_bits();
    let copies: Vec<u32> = (0..layout.group().threads())
        .filter(|t| t & !u32::from(copies) == 0)
        .collect();
    let per_register = per_register(dtype);
    let units = unit(&layout, per_register);
    Ok(json!({
        "name": tiled::name_of(&layout),
        "text": layout.to_string(),
        "shape": shape,
        "warps": layout.group().threads() / 32,
        "slots": slots,
        "per_register": per_register,
        "padded": layout.is_padded(),
        "copies": copies,
        "owners": owners,
        "unit": units.iter().map(|(extent, _)| extent).collect::<Vec<_>>(),
        "repeats": units.iter().map(|(_, repeats)| repeats).collect::<Vec<_>>(),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_survive_json() {
        for name in TiledLayout::NAMES {
            let tiled = TiledLayout::by_name(name).expect("a known name");
            let shape: Vec<u64> = tiled.base_tile().iter().map(|n| 3 * n).collect();
            let layout = tiled.instantiate(&shape).expect("a multiple of its tile");
            let text = json!(Digits::of(&layout)).to_string();
            let back: Digits = serde_json::from_str(&text).expect("what was written");
            assert_eq!(back.layout(), layout, "{name}");
        }
    }

    #[test]
    fn behind_the_unit_only_registers_change() {
        for name in TiledLayout::NAMES {
            let tiled = TiledLayout::by_name(name).expect("a known name");
            let shape: Vec<u64> = tiled.base_tile().iter().map(|n| 2 * n).collect();
            let layout = tiled.instantiate(&shape).expect("a multiple of its tile");
            let units = unit(&layout, 1);
            for at in 0..shape.iter().product::<u64>() {
                let (mut index, mut first, mut rest, mut step) = (shape.clone(), shape.clone(), at, 0);
                for dim in (0..shape.len()).rev() {
                    (index[dim], rest) = (rest % shape[dim], rest / shape[dim]);
                    let (extent, repeats) = &units[dim];
                    first[dim] = index[dim] % extent;
                    let mut beyond = index[dim] / extent;
                    for (count, stride) in repeats {
                        step += (beyond % count) as u32 * stride;
                        beyond /= count;
                    }
                }
                let (thread, slot) = layout.owner(&first);
                assert_eq!(layout.owner(&index), (thread, slot + step), "{name} {index:?}");
            }
        }
    }
}
