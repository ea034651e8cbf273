//! Where each element of a buffer in shared memory lies, as `smalt.draw_smem` shows it.
use super::layout_map::{MAX_ELEMENTS, dtype_named};
use crate::error::Error;
use crate::layout::SmemView;
use crate::layout::smem_layout::ViewDim;
use serde::Deserialize;
use serde_json::{Value, json};

/// The buffer, as Python describes it.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Query {
    shape: Vec<u64>,
    /// JAX's name.
    dtype: String,
    /// Of the last dimensions; empty: none.
    tiling: Vec<u64>,
    /// 0 or 16: none.
    swizzle: u32,
}

/// The extent of each dimension behind which offsets grow by a constant, and by how many bytes: a tile of the last two, one of the others.
/// Where nothing is behind it, 0.
fn unit(view: &SmemView) -> Vec<(u64, u64)> {
    let of = |(k, dim): (usize, &ViewDim)| {
        let whole = (dim.size, 0);
        let Some((outer, inner)) = dim.chain.split_last() else {
            return whole;
        };
        let bytes = outer.place.0 / 8;
        // What the swizzle does to an offset is then the same behind it.
        let is_even = outer.place.0.is_multiple_of(8) && bytes.is_multiple_of(view.swizzle.period());
        match outer.size > 1 && is_even && (!inner.is_empty() || k + 2 < view.dims.len()) {
            true => (inner.iter().map(|d| d.size).product(), bytes),
            false => whole,
        }
    };
    view.dims.iter().enumerate().map(of).collect()
}

/// The map, as JSON: `offsets` has the bit offset of each element from the buffer's start, in row-major order.
pub fn answer(query: &Query) -> Result<Value, Error> {
    let dtype = dtype_named(&query.dtype)?;
    let shape = &query.shape;
    let what = "a buffer in shared memory";
    let elements = shape.iter().try_fold(1u64, |n, d| n.checked_mul(*d));
    let elements = elements.filter(|n| *n <= MAX_ELEMENTS).ok_or_else(|| {
        Error::invalid(what)
            .expected(format!("at most {MAX_ELEMENTS} elements"))
            .got(format!("{shape:?}"))
    })?;
    let view = SmemView::new(shape, dtype.bits(), &query.tiling, query.swizzle).map_err(|error| {
        Error::invalid(what)
            .expected("a tiling that divides the last dimensions, whose rows are as wide as the swizzle")
            .got(format!(
                "{dtype}{shape:?}, tiling {:?}, swizzle {}: {error}",
                query.tiling, query.swizzle
            ))
            .remedy("plgpu.TilingTransform((8, swizzle elements)) and plgpu.SwizzleTransform(128), 64 or 32")
    })?;
    let mut index = vec![0; shape.len()];
    let mut offsets = vec![];
    for at in 0..elements {
        let mut rest = at;
        for (i, n) in index.iter_mut().zip(shape).rev() {
            (*i, rest) = (rest % n, rest / n);
        }
        // No start is dynamic.
        let (byte, bit) = view.address(&index, &|_| 0);
        offsets.push(8 * byte + u64::from(bit));
    }
    let units = unit(&view);
    Ok(json!({
        "bits": dtype.bits(),
        "type": format!("{dtype}{shape:?}"),
        "offsets": offsets,
        "unit": units.iter().map(|(extent, _)| extent).collect::<Vec<_>>(),
        "steps": units.iter().map(|(_, step)| step).collect::<Vec<_>>(),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn behind_the_unit_offsets_grow_by_a_constant() {
        for (shape, tiling, swizzle) in [
            (vec![2, 32, 128], vec![8, 64], 128),
            (vec![16, 96], vec![8, 32], 64),
            (vec![8, 128], vec![4, 64], 128),
            (vec![16, 24], vec![], 0),
        ] {
            let view = SmemView::new(&shape, 16, &tiling, swizzle).expect("a right one");
            let address = |index: &[u64]| view.address(index, &|_| 0).0;
            let units = unit(&view);
            for at in 0..shape.iter().product::<u64>() {
                let (mut index, mut first, mut rest, mut more) = (shape.clone(), shape.clone(), at, 0);
                for dim in (0..shape.len()).rev() {
                    (index[dim], rest) = (rest % shape[dim], rest / shape[dim]);
                    let (extent, step) = units[dim];
                    first[dim] = index[dim] % extent;
                    more += index[dim] / extent * step;
                }
                assert_eq!(
                    address(&index),
                    address(&first) + more,
                    "{shape:?} {tiling:?} {index:?}"
                );
            }
        }
    }
}
