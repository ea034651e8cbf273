//! Layouts as users write them, made explicit.
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::kernel_ir::{LayoutDim, LayoutSpec};
use crate::layout::register_layout::{Group, RegisterLayout};
use crate::layout::tiled::{Part, TiledLayout};

/// The layout of an array of this type.
pub fn instantiate(spec: &LayoutSpec, shape: &[u64], dtype: DType) -> Result<RegisterLayout> {
    let group = Group::Warpgroup;
    match spec {
        LayoutSpec::Tiled {
            name,
            tiling,
            warp_dims,
            lane_dims,
            vector_dim,
        } => {
            let part = |d: &LayoutDim| match d {
                LayoutDim::Dim(d) => Part::Dim(*d as i32),
                LayoutDim::Replicated(n) => Part::Replicated(*n),
            };
            let tiles: Vec<&[u64]> = tiling.iter().map(Vec::as_slice).collect();
            let warp: Vec<Part> = warp_dims.iter().map(part).collect();
            let lane: Vec<Part> = lane_dims.iter().map(part).collect();
            let layout = TiledLayout::new(&tiles, &warp, &lane, *vector_dim as i32);
            layout.instantiate(shape).map_err(|e| {
                Error::invalid(format!("layout {}", if name.is_empty() { "TILED" } else { name }))
                    .expected(format!("a shape that its tile {:?} covers", layout.base_tile()))
                    .got(format!("{shape:?} ({e})"))
                    .remedy("cast to another layout, or change the array's shape")
            })
        }
        LayoutSpec::Strided { vec, .. } => Ok(RegisterLayout::strided(shape, *vec, group)),
        LayoutSpec::Splat { .. } => Ok(RegisterLayout::splat(shape, group)),
        LayoutSpec::Named { name, .. } => match TiledLayout::by_name(name) {
            Some(layout) => layout.instantiate(shape).map_err(|e| {
                Error::invalid(format!("layout {name}"))
                    .expected(format!("a shape that its tile {:?} covers", layout.base_tile()))
                    .got(format!("{shape:?} ({e})"))
                    .remedy("cast to another layout, or change the array's shape")
            }),
            None if name == "WG_STRIDED" => Ok(RegisterLayout::strided_default(shape, dtype.bits(), group)),
            None => Err(Error::unsupported(format!("layout {name}")).remedy("use WGMMA, WG_STRIDED or TILED")),
        },
    }
}
