//! Layouts as users write them, made explicit.
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::kernel_ir::{Kernel, LayoutDim, LayoutSpec, Value};
use crate::layout::infer::group_of;
use crate::layout::register_layout::{Group, RegisterLayout};
use crate::layout::tiled::{Part, TiledLayout};

/// The layout of a value that a user names one for.
pub fn of_value(spec: &LayoutSpec, kernel: &Kernel, v: Value) -> Result<RegisterLayout> {
    let data = &kernel.values[v];
    instantiate(spec, data.ty.shape(), data.ty.dtype(), group_of(data.group))
}

/// Elements of a vector of a strided layout.
const MAX_VECTOR: u64 = 1 << 16;

/// The layout of an array of this type that a group holds.
pub fn instantiate(spec: &LayoutSpec, shape: &[u64], dtype: DType, group: Group) -> Result<RegisterLayout> {
    let tiled = |name: &str, layout: TiledLayout| {
        let layout = match group {
            Group::Warpgroup => layout,
            Group::Warp if layout.is_alike_in_warps() => layout.of_one_warp().expect("warps alike"),
            Group::Warp => {
                return Err(Error::invalid(format!("layout {name} in a warp region"))
                    .expected(
                        "a layout of one warp: WG_STRIDED, WG_SPLAT, or TILED with warp_dims=(plgpu.Replicated(4),)",
                    )
                    .got("one in which the four warps hold different elements")
                    .remedy("leave the layout to the compiler, or cast outside of the warp region"));
            }
        };
        layout.instantiate(shape).map_err(|e| {
            Error::invalid(format!("layout {name}"))
                .expected(format!("a shape that its tile {:?} covers", layout.base_tile()))
                .got(format!("{shape:?} ({e})"))
                .remedy("cast to another layout, or change the array's shape")
        })
    };
    match spec {
        LayoutSpec::Tiled {
            name,
            tiling,
            warp_dims,
            lane_dims,
            vector_dim,
        } => {
            let part = |d: &LayoutDim| match d {
                LayoutDim::Dim(d) => Part::Dim(dimension(*d)),
                LayoutDim::Replicated(n) => Part::Replicated(*n),
            };
            let tiles: Vec<&[u64]> = tiling.iter().map(Vec::as_slice).collect();
            let warp: Vec<Part> = warp_dims.iter().map(part).collect();
            let lane: Vec<Part> = lane_dims.iter().map(part).collect();
            let layout = TiledLayout::new(&tiles, &warp, &lane, dimension(*vector_dim));
            tiled(if name.is_empty() { "TILED" } else { name }, layout)
        }
        LayoutSpec::Strided { vec, .. } if *vec > MAX_VECTOR => Err(Error::invalid("layout WG_STRIDED")
            .expected(format!("vectors of at most {MAX_VECTOR} elements"))
            .got(vec.to_string())
            .remedy("leave vec_size out, or take one of 16 bytes")),
        LayoutSpec::Strided { vec, .. } => Ok(RegisterLayout::strided(shape, *vec, group)),
        LayoutSpec::Splat { .. } => Ok(RegisterLayout::splat(shape, group)),
        LayoutSpec::Named { name, .. } => match TiledLayout::by_name(name) {
            Some(layout) => tiled(name, layout),
            None if name == "WG_STRIDED" => Ok(RegisterLayout::strided_default(shape, dtype.bits(), group)),
            None => Err(Error::unsupported(format!("layout {name}")).remedy("use WGMMA, WG_STRIDED or TILED")),
        },
    }
}

/// A dimension by its negative position; one that is none stays none.
fn dimension(d: i64) -> i32 {
    i32::try_from(d).unwrap_or(0)
}
