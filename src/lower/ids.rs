//! Indices on the grid, the cluster, the block's warpgroups, a warp region.
use super::cx::LowerCx;
use super::emit::S;
use crate::error::Result;
use crate::kernel_ir::{Axis, AxisKind, Kernel, Op};
use crate::ptx::modifier::IntType;
use crate::ptx::modifier::SpecialReg32::*;
use crate::ptx::operand::Src;

/// How the grid's axes become CUDA's.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum GridMap {
    /// The last axis is x, the one before y, all others together z, row-major. Clusters are counted, not blocks.
    Axes { z: u64, y: u64, x: u64 },
    /// All axes together are x, row-major.
    Linear { x: u64 },
}

impl GridMap {
    pub fn of(kernel: &Kernel) -> GridMap {
        let sizes = kernel.grid_sizes();
        let [cz, cy, _] = cluster_zyx(kernel);
        let x = sizes.last().copied().unwrap_or(1);
        let y = if sizes.len() >= 2 { sizes[sizes.len() - 2] } else { 1 };
        let z = sizes[..sizes.len().saturating_sub(2)].iter().product();
        let most = kernel.target.max_grid_yz;
        if y * cy <= most && z * cz <= most {
            GridMap::Axes { z, y, x }
        } else {
            GridMap::Linear {
                x: sizes.iter().product(),
            }
        }
    }

    /// Clusters along x, y, z.
    pub fn clusters(&self) -> [u64; 3] {
        match *self {
            GridMap::Axes { z, y, x } => [x, y, z],
            GridMap::Linear { x } => [x, 1, 1],
        }
    }
}

/// The cluster's extents, major first, padded with leading ones.
pub fn cluster_zyx(kernel: &Kernel) -> [u64; 3] {
    let sizes = kernel.cluster_sizes();
    let mut zyx = [1; 3];
    for (to, &from) in zyx.iter_mut().rev().zip(sizes.iter().rev()) {
        *to = from;
    }
    zyx
}

pub fn lower_axis_index(cx: &mut LowerCx, op: Op, axis: Axis) -> Result<()> {
    let index = axis_index(cx, axis).map_err(|e| e.at(cx.kernel.ops[op].loc))?;
    cx.bind_scalar(cx.result(op), index);
    Ok(())
}

/// The executing group's index on an axis, in 32 bits.
pub fn axis_index(cx: &mut LowerCx, axis: Axis) -> Result<S> {
    let kernel = cx.kernel;
    let data = &kernel.axes[axis];
    if data.size == 1 {
        return Ok(Src::u32(0));
    }
    Ok(match data.kind {
        AxisKind::Grid(position) => grid_index(cx, position as usize),
        AxisKind::Cluster(position) => {
            let d = kernel.cluster.len() - 1 - position as usize;
            cx.b.special([ClusterCtaidX, ClusterCtaidY, ClusterCtaidZ][d]).into()
        }
        AxisKind::Thread => cx.warpgroup(),
        AxisKind::Warp => cx.b.warp_in_warpgroup().into(),
        AxisKind::DeviceMesh(position) => {
            let below = kernel.device_mesh[position as usize + 1..]
                .iter()
                .map(|a| kernel.axes[*a].size);
            let at = super::exchange::position(cx)?;
            let at = cx.b.div(IntType::U32, at, Src::Imm(below.product()));
            match position {
                0 => at,
                _ => cx.b.rem(IntType::U32, at, Src::Imm(data.size)),
            }
        }
    })
}

fn grid_index(cx: &mut LowerCx, position: usize) -> S {
    let sizes = cx.kernel.grid_sizes();
    let map = GridMap::of(cx.kernel);
    // The CUDA dimension, and which of the axes share it.
    let (d, shared) = match map {
        GridMap::Axes { .. } => match sizes.len() - 1 - position {
            d @ (0 | 1) => (d, position..position + 1),
            _ => (2, 0..sizes.len() - 2),
        },
        GridMap::Linear { .. } => (0, 0..sizes.len()),
    };
    let all = if cx.kernel.cluster_size() == 1 {
        cx.b.special([CtaidX, CtaidY, CtaidZ][d])
    } else {
        cx.b.special([ClusteridX, ClusteridY, ClusteridZ][d])
    };
    let below: u64 = sizes[position + 1..shared.end].iter().product();
    let quotient = cx.b.div(IntType::U32, all, Src::Imm(below));
    if position == shared.start {
        quotient
    } else {
        cx.b.rem(IntType::U32, quotient, Src::Imm(sizes[position]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel_ir::testing::KernelBuilder;

    #[test]
    fn grids_beyond_the_limits_of_y_and_z_are_linear() {
        let map = |grid: &[u64]| GridMap::of(&KernelBuilder::new().grid(grid).finish());
        assert_eq!(map(&[]), GridMap::Axes { z: 1, y: 1, x: 1 });
        assert_eq!(map(&[3, 5]), GridMap::Axes { z: 1, y: 3, x: 5 });
        assert_eq!(map(&[2, 3, 4, 5]), GridMap::Axes { z: 6, y: 4, x: 5 });
        assert_eq!(map(&[100_000, 2]), GridMap::Linear { x: 200_000 });
        assert_eq!(map(&[300, 300, 2, 2]), GridMap::Linear { x: 360_000 });
        assert_eq!(map(&[0, 7]), GridMap::Axes { z: 1, y: 0, x: 7 });
    }
}
