//! Mosaic's tiled layouts: a tiling expression plus the roles of the tiled dimensions, for arrays of any shape.
//!
//! A tile of rank r replaces the last r dimensions `d` by `(d/t…, t…)`; later tiles subdivide the tile before them, so
//! every tiled dimension is one digit of one logical dimension and the whole is a digit permutation. Dimensions are
//! named by negative positions in the tiled shape. Sizes that a tile doesn't divide are padded.
use super::digits::{Chain, Digit};
use super::register_layout::{Axis, Group, LANE_BITS, Place, RegisterLayout};
use smallvec::SmallVec;

/// A run of thread bits: a tiled dimension, or copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Part {
    /// Negative position in the tiled shape.
    Dim(i32),
    Replicated(u64),
}
use Part::{Dim, Replicated};

/// A register layout for arrays of any shape whose minor dimensions the first tile covers.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TiledLayout {
    /// Tiles, outermost first, of non-increasing rank.
    pub tiling: Vec<Vec<u64>>,
    /// Major to minor; sizes multiply to 4 (or to 1, for a single warp).
    pub warp: Vec<Part>,
    /// Major to minor; sizes multiply to 32.
    pub lane: Vec<Part>,
    /// The dimension whose elements one logical register holds.
    pub vector: i32,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TilingError {
    #[error("a tiling needs at least one tile, of positive sizes and non-increasing ranks, got {0:?}")]
    BadTiling(Vec<Vec<u64>>),
    #[error("dimension {0} is not one of the {1} tiled dimensions, or is used twice")]
    BadDimension(i32, usize),
    #[error("the {what} digits multiply to {got}, expected {expected}")]
    BadThreads {
        what: &'static str,
        got: u64,
        expected: u64,
    },
    #[error("thread digits must be powers of two, got {0}")]
    NotPowerOfTwo(u64),
    #[error("the layout's tile {tile:?} has more dimensions than the array shape {shape:?}")]
    RankTooLow { tile: Vec<u64>, shape: Vec<u64> },
    #[error("tiles {tiling:?} make it {MAX_PADDED} elements or more")]
    TooLarge { tiling: Vec<Vec<u64>> },
    #[error("tile {inner:?} does not divide the tile {outer:?} around it")]
    NotNested { outer: Vec<u64>, inner: Vec<u64> },
}

/// Elements of an array, padding included: slots are numbered in 32 bits.
const MAX_PADDED: u64 = 1 << 32;

/// A dimension of the tiled shape.
#[derive(Clone, Copy)]
struct Tiled {
    dim: usize,
    size: u64,
}

/// The user's name of a layout, e.g. `WGMMA`.
pub fn name_of(layout: &RegisterLayout) -> Option<&'static str> {
    let named: [(&str, fn() -> TiledLayout); 7] = [
        ("WGMMA", TiledLayout::wgmma),
        ("WGMMA.reduce(1)", TiledLayout::wgmma_row),
        ("WGMMA.reduce(0)", TiledLayout::wgmma_col),
        ("WGMMA_8BIT", TiledLayout::wgmma_8bit),
        ("WGMMA_UPCAST_2X", TiledLayout::wgmma_upcast_2x),
        ("WGMMA_UPCAST_4X", TiledLayout::wgmma_upcast_4x),
        ("WGMMA_TRANSPOSED", TiledLayout::wgmma_transposed),
    ];
    let is =
        |tiled: TiledLayout| tiled.divides(layout.shape()) && tiled.instantiate(layout.shape()).as_ref() == Ok(layout);
    named.iter().find(|(_, make)| is(make())).map(|(name, _)| *name)
}

impl TiledLayout {
    pub fn new(tiling: &[&[u64]], warp: &[Part], lane: &[Part], vector: i32) -> TiledLayout {
        TiledLayout {
            tiling: tiling.iter().map(|t| t.to_vec()).collect(),
            warp: warp.to_vec(),
            lane: lane.to_vec(),
            vector,
        }
    }

    /// What the minor dimensions of an array are measured in: sizes that are no multiples of this are padded.
    pub fn base_tile(&self) -> &[u64] {
        &self.tiling[0]
    }

    /// Whether a shape needs no padding.
    pub fn divides(&self, shape: &[u64]) -> bool {
        let tile = self.base_tile();
        shape.len() >= tile.len()
            && shape[shape.len() - tile.len()..]
                .iter()
                .zip(tile)
                .all(|(d, t)| d % t == 0)
    }

    /// Whether all warps hold the same.
    pub fn is_alike_in_warps(&self) -> bool {
        self.warp.iter().all(|p| matches!(p, Replicated(_)))
    }

    /// What one of the four warps has of it, as a layout of its own: without the warps' digits. None where they are not the first of the tile's.
    pub fn of_one_warp(&self) -> Option<TiledLayout> {
        let usable: usize = self.tiling.iter().map(Vec::len).sum();
        let mut one = TiledLayout {
            warp: vec![],
            ..self.clone()
        };
        match self.warp.as_slice() {
            [Dim(first)] if i64::from(*first) == -(usable as i64) => one.tiling[0][0] = *self.tiling.get(1)?.first()?,
            _ if self.is_alike_in_warps() => {}
            _ => return None,
        }
        Some(one)
    }

    /// The layout of an array of this shape. The group is a warp if there are no warp digits, else a warpgroup.
    pub fn instantiate(&self, shape: &[u64]) -> Result<RegisterLayout, TilingError> {
        if self.tiling.is_empty()
            || self.tiling.iter().any(|t| t.is_empty() || t.contains(&0))
            || self.tiling.windows(2).any(|w| w[1].len() > w[0].len())
        {
            return Err(TilingError::BadTiling(self.tiling.clone()));
        }
        let base = self.base_tile();
        if base.len() > shape.len() {
            return Err(TilingError::RankTooLow {
                tile: base.to_vec(),
                shape: shape.to_vec(),
            });
        }
        let mut tiled: SmallVec<[Tiled; 16]> = shape
            .iter()
            .enumerate()
            .map(|(dim, &size)| Tiled { dim, size })
            .collect();
        for (level, tile) in self.tiling.iter().enumerate() {
            let at = tiled.len() - tile.len();
            let inner: SmallVec<[Tiled; 4]> = tiled[at..]
                .iter()
                .zip(tile)
                .map(|(d, &t)| Tiled { dim: d.dim, size: t })
                .collect();
            for (d, &t) in tiled[at..].iter_mut().zip(tile) {
                if level > 0 && d.size % t != 0 {
                    return Err(TilingError::NotNested {
                        outer: self.tiling[level - 1].clone(),
                        inner: tile.clone(),
                    });
                }
                d.size = d.size.div_ceil(t);
            }
            tiled.extend(inner);
        }
        let padded = tiled.iter().try_fold(1u64, |n, t| n.checked_mul(t.size.max(1)));
        if padded.is_none_or(|n| n > MAX_PADDED) {
            let tiling = self.tiling.clone();
            return Err(TilingError::TooLarge { tiling });
        }
        // Roles of the tiled dimensions.
        let usable = tiled.len() - shape.len();
        let mut places: SmallVec<[Option<Place>; 16]> = SmallVec::from_elem(None, tiled.len());
        let mut claimed: SmallVec<[bool; 16]> = SmallVec::from_elem(false, tiled.len());
        let mut at = |d: i32| -> Result<usize, TilingError> {
            let i = tiled.len() as i64 + i64::from(d);
            if d >= 0 || i < (tiled.len() - usable) as i64 || claimed[i as usize] {
                return Err(TilingError::BadDimension(d, usable));
            }
            claimed[i as usize] = true;
            Ok(i as usize)
        };
        let mut assign = |parts: &[Part], bits: u8, first: u8, what| -> Result<(), TilingError> {
            let mut bit = first;
            for part in parts.iter().rev() {
                let size = match *part {
                    Replicated(n) => n,
                    Dim(d) => {
                        let i = at(d)?;
                        places[i] = Some(Place::Thread(bit));
                        tiled[i].size
                    }
                };
                if !size.is_power_of_two() {
                    return Err(TilingError::NotPowerOfTwo(size));
                }
                bit = bit.saturating_add(size.trailing_zeros() as u8);
            }
            if bit != first + bits {
                let got = 1u64.checked_shl(u32::from(bit - first)).unwrap_or(0);
                return Err(TilingError::BadThreads {
                    what,
                    got,
                    expected: 1 << bits,
                });
            }
            Ok(())
        };
        let group = if self.warp.is_empty() {
            Group::Warp
        } else {
            Group::Warpgroup
        };
        assign(&self.lane, LANE_BITS, 0, "lane")?;
        if group == Group::Warpgroup {
            assign(&self.warp, 2, LANE_BITS, "warp")?;
        }
        let vector = at(self.vector)?;
        places[vector] = Some(Place::Slot(1));
        let mut stride = tiled[vector].size as u32;
        for (place, t) in places.iter_mut().zip(&tiled).rev() {
            if place.is_none() {
                *place = Some(Place::Slot(stride));
                stride *= t.size as u32;
            }
        }
        let axes = shape.iter().enumerate().map(|(dim, &size)| {
            let digits = tiled.iter().zip(&places).rev().filter(|(t, _)| t.dim == dim);
            let chain: Chain<Place> = digits
                .map(|(t, p)| Digit::new(t.size, p.expect("every tiled dimension has a place")))
                .collect();
            Axis {
                first: dim,
                rank: 1,
                size,
                chain,
            }
        });
        Ok(RegisterLayout::from_axes(shape, group, axes.collect::<Vec<_>>()))
    }

    /// The layout of arrays with dimension `dim` (counted in the base tile) reduced away: its thread digits become
    /// copies, a vector along it becomes a single element.
    pub fn reduce(&self, dim: usize) -> TiledLayout {
        let rank = self.base_tile().len();
        assert!(dim < rank, "dimension {dim} of a tile of rank {rank}");
        // Which tiled dimensions belong to `dim`, and the tiled sizes of one base tile.
        let mut owner: Vec<usize> = (0..rank).collect();
        let mut sizes: Vec<u64> = self.base_tile().to_vec();
        for tile in &self.tiling {
            let at = owner.len() - tile.len();
            let inner = owner[at..].to_vec();
            for (s, t) in sizes[at..].iter_mut().zip(tile) {
                *s /= t;
            }
            owner.extend(inner);
            sizes.extend(tile);
        }
        let mut tiling = Vec::new();
        for tile in &self.tiling {
            let first = rank - tile.len();
            let mut t = tile.clone();
            if dim >= first {
                t.remove(dim - first);
            }
            if t.is_empty() {
                break;
            }
            tiling.push(t);
        }
        let at = |d: i32| (owner.len() as i64 + i64::from(d)) as usize;
        let vector_gone = owner[at(self.vector)] == dim;
        if vector_gone {
            tiling.push(vec![1]);
        }
        let shift = |d: i32| {
            let gone_after = owner[at(d)..].iter().filter(|&&o| o == dim).count() as i32;
            d + gone_after - i32::from(vector_gone)
        };
        let part = |p: &Part| match *p {
            Dim(d) if owner[at(d)] == dim => Replicated(sizes[at(d)]),
            Dim(d) => Dim(shift(d)),
            Replicated(n) => Replicated(n),
        };
        TiledLayout {
            warp: self.warp.iter().map(part).collect(),
            lane: self.lane.iter().map(part).collect(),
            vector: if vector_gone { -1 } else { shift(self.vector) },
            tiling,
        }
    }

    // ---------------------------------------------------------------------------------------- Mosaic's named layouts

    /// Accumulators of `wgmma` (PTX ISA, "Register Fragments for wgmma.mma_async.m64nNk16", matrix D).
    pub fn wgmma() -> TiledLayout {
        Self::new(
            &[&[64, 8], &[16, 8], &[8, 8], &[2]],
            &[Dim(-7)],
            &[Dim(-3), Dim(-2)],
            -1,
        )
    }
    pub fn wgmma_row() -> TiledLayout {
        Self::new(&[&[64], &[16], &[8], &[1]], &[Dim(-4)], &[Dim(-2), Replicated(4)], -1)
    }
    pub fn wgmma_col() -> TiledLayout {
        Self::new(&[&[8], &[2]], &[Replicated(4)], &[Replicated(8), Dim(-2)], -1)
    }
    pub fn wgmma_acc_32bit() -> TiledLayout {
        Self::new(
            &[&[64, 8], &[16, 8], &[8, 8], &[2], &[1]],
            &[Dim(-8)],
            &[Dim(-4), Dim(-3)],
            -1,
        )
    }
    /// Of tf32 left operands (PTX ISA, "Register Fragments for wgmma.mma_async.m64nNk8").
    pub fn wgmma_left_32bit() -> TiledLayout {
        Self::new(
            &[&[64, 4], &[16, 4], &[8, 4], &[1]],
            &[Dim(-7)],
            &[Dim(-3), Dim(-2)],
            -1,
        )
    }
    pub fn wgmma_8bit() -> TiledLayout {
        Self::new(
            &[&[64, 16], &[16, 16], &[8, 16], &[4]],
            &[Dim(-7)],
            &[Dim(-3), Dim(-2)],
            -1,
        )
    }
    pub fn wgmma_upcast_2x() -> TiledLayout {
        Self::new(
            &[&[64, 16], &[16, 16], &[8, 16], &[8], &[4]],
            &[Dim(-8)],
            &[Dim(-4), Dim(-2), Dim(-3)],
            -1,
        )
    }
    pub fn wgmma_upcast_4x() -> TiledLayout {
        Self::new(
            &[&[64, 32], &[16, 32], &[8, 32], &[8]],
            &[Dim(-7)],
            &[Dim(-3), Dim(-2)],
            -1,
        )
    }
    pub fn wgmma_transposed() -> TiledLayout {
        Self::new(
            &[&[64, 8], &[16, 8], &[8, 8], &[2, 2], &[2, 1]],
            &[Dim(-10)],
            &[Dim(-6), Dim(-3), Dim(-5)],
            -2,
        )
    }
    pub fn tcgen05() -> TiledLayout {
        Self::new(
            &[&[128, 8], &[32, 8], &[8, 8], &[2]],
            &[Dim(-7)],
            &[Dim(-3), Dim(-2)],
            -1,
        )
    }
    pub fn tcgen05_transposed() -> TiledLayout {
        Self::new(
            &[&[128, 8], &[32, 8], &[8, 8], &[2, 2], &[2, 1]],
            &[Dim(-10)],
            &[Dim(-6), Dim(-3), Dim(-5)],
            -2,
        )
    }
    /// Rows of 64, halves of whose columns are in different warps.
    pub fn tcgen05_m64_collective(columns: u64) -> TiledLayout {
        Self::new(
            &[&[64, columns], &[32, columns / 2], &[8, 8], &[2]],
            &[Dim(-6), Dim(-7)],
            &[Dim(-3), Dim(-2)],
            -1,
        )
    }
    pub fn tcgen05_row() -> TiledLayout {
        Self::new(&[&[128], &[32], &[8], &[1]], &[Dim(-4)], &[Dim(-2), Replicated(4)], -1)
    }
    pub fn tcgen05_col() -> TiledLayout {
        Self::wgmma_col()
    }
    pub fn tmem_native(vector: u64) -> TiledLayout {
        Self::new(&[&[128, vector], &[32, vector]], &[Dim(-4)], &[Dim(-2)], -1)
    }
    /// Row indices of TMA gathers: warp w has indices 4w..4w+4 of every 16.
    pub fn tma_indices() -> TiledLayout {
        Self::new(&[&[16], &[4]], &[Dim(-2)], &[Replicated(32)], -1)
    }
    pub fn tma_indices_4() -> TiledLayout {
        Self::new(&[&[4]], &[Replicated(4)], &[Replicated(32)], -1)
    }
    /// Elements of one 32-bit register in `mma.sync` fragments (64-bit types: one element).
    fn mma_pack(bits: u32) -> u64 {
        u64::from(32 / bits).max(1)
    }
    /// Left operand of `mma.sync`, `m_warps` warps along M, the others holding copies.
    pub fn mma_lhs(bits: u32, m_warps: u64) -> TiledLayout {
        let e = Self::mma_pack(bits);
        Self::new(
            &[&[16 * m_warps, 8 * e], &[16, 4 * e], &[8, 4 * e], &[e]],
            &[Dim(-7), Replicated(4 / m_warps)],
            &[Dim(-3), Dim(-2)],
            -1,
        )
    }
    /// Right operand of `mma.sync` (K × N), `4 / m_warps` warps along N.
    pub fn mma_rhs(bits: u32, m_warps: u64) -> TiledLayout {
        let (e, n_warps) = (Self::mma_pack(bits), 4 / m_warps);
        Self::new(
            &[&[8 * e, 8 * n_warps], &[4 * e, 8], &[e, 1]],
            &[Replicated(4 / n_warps), Dim(-5)],
            &[Dim(-3), Dim(-4)],
            -2,
        )
    }
    pub fn mma_acc(m_warps: u64) -> TiledLayout {
        Self::new(
            &[&[16 * m_warps, 8 * (4 / m_warps)], &[16, 8], &[8, 8], &[2]],
            &[Dim(-7), Dim(-6)],
            &[Dim(-3), Dim(-2)],
            -1,
        )
    }

    /// For copying a (rows, columns) array between GMEM and SMEM tiled by (8, `swizzle` bytes): up to 16 bytes per
    /// lane; lanes walk along columns within a tile, then rows, then tiles, so that both sides are coalesced and free of
    /// bank conflicts. `None` if the tiles cannot be dealt to four warps.
    pub fn smem_gmem_copy(shape: &[u64], bits: u32, swizzle: u32) -> Option<TiledLayout> {
        let [.., rows, columns] = *shape else { return None };
        let (bits, swizzle) = (u64::from(bits), u64::from(swizzle));
        let tile_columns = 8 * swizzle / bits;
        if rows % 8 != 0 || columns % tile_columns != 0 {
            return None;
        }
        let (row_tiles, column_tiles) = (rows / 8, columns / tile_columns);
        let (warp_rows, warp_columns) = match (row_tiles, column_tiles) {
            (r, _) if r % 4 == 0 => (4, 1),
            (r, c) if r % 2 == 0 && c % 2 == 0 => (2, 2),
            (r, c) if r % 2 == 1 && c % 4 == 0 => (1, 4),
            _ => return None,
        };
        let (mut row_tiles, mut column_tiles) = (row_tiles / warp_rows, column_tiles / warp_columns);
        let mut bytes = (8 * swizzle / 32).min(16);
        let (mut lane_rows, mut lane_columns) = (1, 1);
        let mut grow = 16 / bytes;
        while grow > 1 && column_tiles % 2 == 0 {
            (grow, lane_columns, column_tiles) = (grow / 2, lane_columns * 2, column_tiles / 2);
        }
        while grow > 1 && row_tiles % 2 == 0 {
            (grow, lane_rows, row_tiles) = (grow / 2, lane_rows * 2, row_tiles / 2);
        }
        bytes *= lane_rows * lane_columns;
        let vector = bytes * 8 / bits;
        if vector == 0 || tile_columns % vector != 0 {
            return None;
        }
        let steps = (8 * tile_columns / (vector * 32)).max(1);
        Some(Self::new(
            &[
                &[warp_rows * lane_rows * 8, warp_columns * lane_columns * tile_columns],
                &[lane_rows * 8, lane_columns * tile_columns],
                &[8, tile_columns],
                &[8 / steps, tile_columns],
                &[vector],
            ],
            &[Dim(-9), Dim(-8)],
            &[Dim(-7), Dim(-6), Dim(-3), Dim(-2)],
            -1,
        ))
    }

    /// A layout by the name of its `plgpu.Layout` member, for those that need no parameters.
    pub fn by_name(name: &str) -> Option<TiledLayout> {
        Some(match name {
            "WGMMA" => Self::wgmma(),
            "WGMMA_ROW" => Self::wgmma_row(),
            "WGMMA_COL" => Self::wgmma_col(),
            "_WGMMA_ACC_32BIT" | "WGMMA_ACC_32BIT" => Self::wgmma_acc_32bit(),
            "WGMMA_8BIT" => Self::wgmma_8bit(),
            "WGMMA_UPCAST_2X" => Self::wgmma_upcast_2x(),
            "WGMMA_UPCAST_4X" => Self::wgmma_upcast_4x(),
            "WGMMA_TRANSPOSED" => Self::wgmma_transposed(),
            "TCGEN05" => Self::tcgen05(),
            "TCGEN05_TRANSPOSED" => Self::tcgen05_transposed(),
            "TCGEN05_ROW" => Self::tcgen05_row(),
            "TCGEN05_COL" => Self::tcgen05_col(),
            "TCGEN05_TMEM_NATIVE" => Self::tmem_native(2),
            "TMA_INDICES" | "TMA_GATHER_INDICES" => Self::tma_indices(),
            "TMA_INDICES_4" | "TMA_GATHER_INDICES_4" => Self::tma_indices_4(),
            _ => return None,
        })
    }

    /// The names of [`TiledLayout::by_name`].
    pub const NAMES: [&str; 12] = [
        "WGMMA",
        "WGMMA_ROW",
        "WGMMA_COL",
        "WGMMA_8BIT",
        "WGMMA_UPCAST_2X",
        "WGMMA_UPCAST_4X",
        "WGMMA_TRANSPOSED",
        "TCGEN05",
        "TCGEN05_TRANSPOSED",
        "TCGEN05_ROW",
        "TCGEN05_TMEM_NATIVE",
        "TMA_INDICES",
    ];

    /// The name of a layout, for reports: the first named layout that places an array of this shape equally.
    pub fn name_of(layout: &RegisterLayout) -> Option<&'static str> {
        if layout.is_splat() {
            return Some("WG_SPLAT");
        }
        Self::NAMES.into_iter().find(|name| {
            let tiled = Self::by_name(name).expect("a known name");
            tiled.instantiate(layout.shape()).is_ok_and(|l| l == *layout)
        })
    }
}
