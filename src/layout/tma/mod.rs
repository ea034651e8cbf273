//! Copies between GMEM and SMEM by the bulk copy engine: which tensor map, which boxes, or a plain bulk copy.
//!
//! A box is written to shared memory densely, minor dimension first, and then swizzled. So the digits of the SMEM view, sorted
//! by stride, *are* the dimensions of the box, provided that they are dense; each digit runs along one dimension of GMEM with
//! that dimension's stride times the digit's weight. Digits that continue each other on both sides are one dimension.
//!
//! A digit that is not the last of its dimension (a tile's rows) has coordinate 0: the slice's start must be a multiple of the tile,
//! and so must the array's extent, or out-of-bounds elements would not be recognised. Where that is not proven there are two other
//! ways ([`Mode`]): the start goes to the minor digit, if the whole slice is known to be in bounds; or the dimension
//! is not split in the tensor map and every tile is a copy of its own, which needs no facts at all.
//!
//! Several copies (*pieces*) are also made where a side of the box would exceed 256, and for the CTAs that share a copy.
//! A piece is dense itself: when a digit is cut, the digits outside of it are taken one by one ([`tensor`]).
mod tensor;

use super::digits::{Chain, Digit};
use super::facts::{DynId, DynTerm, Fact, gcd};
use super::smem_layout::{SmemView, Stride};
use arrayvec::ArrayVec;
use smallvec::{SmallVec, smallvec};

/// One dimension of a GMEM array as a copy sees it.
#[derive(Clone, Debug, PartialEq)]
pub struct GmemDim {
    /// Of the whole array.
    pub extent: u64,
    /// Bits between neighbours.
    pub stride: u64,
    /// Where the slice starts: a constant plus scalars.
    pub start: u64,
    pub dynamic: SmallVec<[(DynId, Fact); 2]>,
    /// Elements taken. A dimension that an integer dropped takes 1 and is `dropped`.
    pub size: u64,
    pub dropped: bool,
}

impl GmemDim {
    fn divisor(&self) -> u64 {
        self.dynamic.iter().fold(self.start, |g, (_, f)| gcd(g, f.divisor))
    }
    /// The slice surely lies in the array.
    fn in_bounds(&self) -> bool {
        let (mut lo, mut hi) = (self.start as i128, self.start as i128);
        for (_, f) in &self.dynamic {
            lo += i128::from(f.min);
            hi += i128::from(f.max);
        }
        lo >= 0 && hi + i128::from(self.size) <= i128::from(self.extent)
    }
}

/// What outside of the array reads as.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OutOfBounds {
    Zeros,
    /// There is nothing outside, or it may be anything.
    Ignored,
}

/// `constant + Σ terms`.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Affine {
    pub constant: i64,
    pub terms: SmallVec<[DynTerm; 2]>,
}

/// How a copy is done. Made once per copy and matched at once, so its size does not matter.
#[allow(clippy::large_enum_variant)]
#[derive(Clone, PartialEq, Debug)]
pub enum CopyPlan {
    Tensor(TensorPlan),
    Bulk(BulkPlan),
}

/// Boxes of one tensor map.
#[derive(Clone, PartialEq, Debug)]
pub struct TensorPlan {
    /// Elements along each dimension, minor first.
    pub dims: ArrayVec<u64, 5>,
    /// Bytes between neighbours along dimensions 1….
    pub strides: ArrayVec<u64, 4>,
    pub box_dims: ArrayVec<u32, 5>,
    /// Constant byte offset of the map's base from the array's start.
    pub base: u64,
    /// 0, 32, 64 or 128.
    pub swizzle: u32,
    /// Bytes of an element as the map counts them (sub-byte types: 1).
    pub element_bytes: u32,
    pub coords: ArrayVec<Affine, 5>,
    /// Where one dimension of the map is several of the array: the parts whose bounds are checked.
    pub parts: Vec<Part>,
    pub pieces: Vec<Piece>,
    /// Bytes that one piece moves.
    pub piece_bytes: u32,
    pub sharing: Sharing,
}

impl TensorPlan {
    /// Where the last box begins along a dimension, behind the first.
    pub fn last_box(&self, dim: usize) -> u32 {
        self.pieces.iter().map(|piece| piece.coords[dim]).max().unwrap_or(0)
    }

    /// All boxes may begin behind the array, at positive coordinates.
    pub fn check_room_behind(&self) -> Result<(), CopyError> {
        let lacks_room = |k: &usize| self.dims[*k] + u64::from(self.last_box(*k)) >= MAX_EXTENT;
        (0..self.dims.len()).find(lacks_room).map_or(Ok(()), |k| {
            let (extent, last) = (self.dims[k], self.last_box(k));
            Err(CopyError::NoRoomBehind { extent, last })
        })
    }
}

/// An index of the array that is a part of a coordinate of the map: the copy is outside of the array if this is not below the extent.
#[derive(Clone, PartialEq, Debug)]
pub struct Part {
    /// Which coordinate.
    pub of: usize,
    pub index: Affine,
    pub extent: u64,
}

/// Which CTA copies which pieces of a shared copy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sharing {
    /// Those of part `p` are at positions `p·n/parts …` of the list: part 0's, moved by `p` times a constant step.
    Equal,
    /// Piece `i` is part `i mod parts`'s.
    InTurns,
}

/// What is cut so that CTAs can share a copy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Cut {
    None,
    /// Into equal parts, or at least into as many pieces.
    Into(u64),
}

/// One instruction's part.
#[derive(Clone, PartialEq, Debug)]
pub struct Piece {
    /// Added to the coordinates.
    pub coords: ArrayVec<u32, 5>,
    /// Added to the SMEM address, in bytes.
    pub smem: u32,
}

/// Contiguous on both sides.
#[derive(Clone, PartialEq, Debug)]
pub struct BulkPlan {
    /// Bytes from the array's start.
    pub gmem: Affine,
    pub bytes: u32,
}

/// Why there is no plan.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum CopyError {
    #[error("the shapes differ: GMEM {gmem:?}, SMEM {smem:?}")]
    Shapes { gmem: Vec<u64>, smem: Vec<u64> },
    #[error("the SMEM view is not dense: a box would leave holes")]
    NotDense,
    #[error(
        "the slice of GMEM dimension {dim} starts at a multiple of {proven}, but the SMEM tiling needs a multiple of {needed}"
    )]
    Start { dim: usize, proven: u64, needed: u64 },
    #[error("GMEM dimension {dim} has {extent} elements, no multiple of the tile's {tile}")]
    Extent { dim: usize, extent: u64, tile: u64 },
    #[error("the minor dimension is not contiguous in GMEM")]
    MinorStride,
    #[error("a stride of {bytes} bytes in GMEM is no multiple of 16")]
    Stride { bytes: u64 },
    #[error("the copied minor dimension has {bits} bits, no multiple of 16 bytes")]
    MinorSize { bits: u64 },
    #[error("the buffer is swizzled in rows of {swizzle} bytes, but the copied rows have {bytes}")]
    SwizzleWidth { swizzle: u32, bytes: u64 },
    #[error("the copy needs {needed} dimensions; tensor maps have 5")]
    Dimensions { needed: usize },
    #[error("the copy falls into {pieces} boxes; more than {limit} are not worth it")]
    Pieces { pieces: u64, limit: u64 },
    #[error("the SMEM view starts at an offset only known to be a multiple of {bytes} bytes; the copy needs {needed}")]
    SmemAlignment { bytes: u64, needed: u64 },
    #[error("GMEM dimension of {extent} elements, {stride} bytes apart: tensor maps end at 2^31 and 2^40")]
    Limits { extent: u64, stride: u64 },
    #[error(
        "GMEM dimension of {extent} elements: the last box of a store that begins behind it is {last} elements further, and coordinates end at 2^31"
    )]
    NoRoomBehind { extent: u64, last: u32 },
    #[error(
        "the slice begins at element {start} of the minor dimension, no multiple of {unit}: a GPU takes that for an illegal instruction"
    )]
    MinorStart { start: i64, unit: i64 },
    #[error("the GMEM address is only known to be a multiple of {bytes} bytes; copies need 16")]
    Alignment { bytes: u64 },
}

/// How a dimension of several SMEM digits appears in the tensor map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    /// One map dimension per digit; the start counts tiles.
    Split,
    /// One map dimension per digit; the start is on the minor digit. Out-of-bounds elements are not recognised.
    InBounds,
    /// One map dimension; a piece per tile.
    Pieces,
}

/// More boxes than this are refused.
const MAX_PIECES: u64 = 128;
/// Elements of a box along one dimension, at most.
const MAX_SIDE: u64 = 256;
/// Elements of an array along one dimension, at most: extents may be 2^32, but a coordinate is an i32.
const MAX_EXTENT: u64 = 1 << 31;

/// Plans a copy of `bits`-wide elements. `parts` CTAs each do one part of it for all (1: no sharing); where it has no such parts,
/// they take turns with its pieces, of which there may be fewer than CTAs.
pub fn plan(
    gmem: &[GmemDim],
    smem: &SmemView,
    bits: u32,
    out_of_bounds: OutOfBounds,
    parts: u64,
    allow_bulk: bool,
) -> Result<CopyPlan, CopyError> {
    if parts == 1 {
        return plan_parts(gmem, smem, bits, out_of_bounds, Cut::None, allow_bulk);
    }
    plan_parts(gmem, smem, bits, out_of_bounds, Cut::Into(parts), false)
        .or_else(|_| plan_parts(gmem, smem, bits, out_of_bounds, Cut::None, allow_bulk))
}

/// A copy in boxes as dimensions lie. Where those would begin within 128 bytes, or be too many, for a side of theirs has more elements
/// than a box, that dimension is two of the map: rows of it, which lie one after the other, and their number.
fn plan_parts(
    gmem: &[GmemDim],
    smem: &SmemView,
    bits: u32,
    out_of_bounds: OutOfBounds,
    parts: Cut,
    allow_bulk: bool,
) -> Result<CopyPlan, CopyError> {
    let plan = |smem| plan_in_layout(gmem, smem, bits, out_of_bounds, parts, allow_bulk);
    let first = match plan(smem) {
        Err(error @ (CopyError::SmemAlignment { .. } | CopyError::Pieces { .. })) if smem.swizzle.is_none() => error,
        done => return done,
    };
    let long = |dim: &usize| matches!(smem.dims[*dim].chain.as_slice(), [one] if one.size > MAX_SIDE);
    for dim in (0..smem.dims.len()).rev().filter(long) {
        let whole = smem.dims[dim].chain[0];
        for row in (2..=MAX_SIDE).rev().filter(|row| whole.size.is_multiple_of(*row)) {
            let mut rows = smem.clone();
            let number = Digit::new(whole.size / row, Stride(whole.place.0 * row));
            rows.dims[dim].chain = smallvec![Digit::new(row, whole.place), number];
            // Another dimension may be long, too.
            if let Ok(plan) = plan_parts(gmem, &rows, bits, out_of_bounds, parts, allow_bulk) {
                return Ok(plan);
            }
        }
    }
    Err(first)
}

fn plan_in_layout(
    gmem: &[GmemDim],
    smem: &SmemView,
    bits: u32,
    out_of_bounds: OutOfBounds,
    parts: Cut,
    allow_bulk: bool,
) -> Result<CopyPlan, CopyError> {
    let kept: SmallVec<[usize; 6]> = (0..gmem.len()).filter(|d| !gmem[*d].dropped).collect();
    let shape: Vec<u64> = kept.iter().map(|d| gmem[*d].size).collect();
    if shape != smem.shape().as_slice() {
        return Err(CopyError::Shapes {
            gmem: shape,
            smem: smem.shape().to_vec(),
        });
    }
    if !smem.is_regular() {
        return Err(CopyError::NotDense);
    }
    let in_bounds = gmem.iter().all(GmemDim::in_bounds);
    if allow_bulk
        && smem.swizzle.is_none()
        && (out_of_bounds == OutOfBounds::Ignored || in_bounds)
        && let Some(bulk) = plan_bulk(gmem, &kept, smem, bits)
    {
        return Ok(CopyPlan::Bulk(bulk));
    }
    let safe = in_bounds || out_of_bounds == OutOfBounds::Ignored;
    let mut modes: SmallVec<[Mode; 6]> = smallvec![];
    let mut unproved = None;
    for (i, &d) in kept.iter().enumerate() {
        let tile = tile_of(smem, i);
        let divisible = gmem[d].divisor().is_multiple_of(tile);
        let whole = gmem[d].extent.is_multiple_of(tile);
        modes.push(match (divisible && whole, safe) {
            (true, _) => Mode::Split,
            (false, true) => Mode::InBounds,
            (false, false) => Mode::Pieces,
        });
        if modes[i] == Mode::Pieces {
            let (proven, extent) = (gmem[d].divisor(), gmem[d].extent);
            unproved.get_or_insert(match divisible {
                false => CopyError::Start {
                    dim: d,
                    proven,
                    needed: tile,
                },
                true => CopyError::Extent { dim: d, extent, tile },
            });
        }
    }
    let first = match tensor::plan(gmem, &kept, smem, bits, &modes, safe, parts) {
        Ok(plan) => return Ok(CopyPlan::Tensor(plan)),
        Err(error) => error,
    };
    if matches!(first, CopyError::MinorStart { .. }) {
        return Err(first);
    }
    // Fewer map dimensions, at a price: integer indices have to be looked at, or there are more pieces.
    if matches!(first, CopyError::Dimensions { .. }) {
        if let Ok(plan) = tensor::plan(gmem, &kept, smem, bits, &modes, true, parts) {
            return Ok(CopyPlan::Tensor(plan));
        }
        let mut best: Option<TensorPlan> = None;
        for i in (0..kept.len()).filter(|i| chain_of(smem, *i).len() > 1) {
            let mut fewer = modes.clone();
            fewer[i] = Mode::Pieces;
            if let Ok(plan) = tensor::plan(gmem, &kept, smem, bits, &fewer, true, parts)
                && best.as_ref().is_none_or(|b| plan.pieces.len() < b.pieces.len())
            {
                best = Some(plan);
            }
        }
        if let Some(plan) = best {
            return Ok(CopyPlan::Tensor(plan));
        }
    }
    Err(unproved.unwrap_or(first))
}

/// The digits of kept dimension `i`; rows of the swizzle are digits of their own.
fn chain_of(smem: &SmemView, i: usize) -> Chain<Stride> {
    let chain = &smem.dims[i].chain;
    let row = u64::from(smem.swizzle.bytes() * 8 / smem.bits);
    match chain.first() {
        Some(d)
            if !smem.swizzle.is_none() && d.place.0 == u64::from(smem.bits) && d.size > row && d.size % row == 0 =>
        {
            let outer = Digit::new(d.size / row, Stride(d.place.0 * row));
            let mut split: Chain<Stride> = smallvec![Digit::new(row, d.place), outer];
            split.extend(chain[1..].iter().copied());
            split
        }
        _ => chain.clone(),
    }
}

/// What a start must be a multiple of to count tiles of kept dimension `i`.
fn tile_of(smem: &SmemView, i: usize) -> u64 {
    let chain = chain_of(smem, i);
    chain[..chain.len().saturating_sub(1)].iter().map(|c| c.size).product()
}

fn affine_bytes(gmem: &[GmemDim]) -> Affine {
    let mut out = Affine::default();
    for d in gmem {
        out.constant += (d.start * d.stride / 8) as i64;
        for (value, fact) in &d.dynamic {
            let stride = (d.stride / 8) as i64;
            out.terms.push(DynTerm {
                value: *value,
                div: 1,
                modulus: None,
                stride,
                multiple: fact.divisor.saturating_mul(d.stride / 8),
            });
        }
    }
    out
}

/// One contiguous run on both sides, in multiples of 16 bytes.
fn plan_bulk(gmem: &[GmemDim], kept: &[usize], smem: &SmemView, bits: u32) -> Option<BulkPlan> {
    let mut expected = u64::from(bits);
    for (i, &d) in kept.iter().enumerate().rev() {
        let dim = &gmem[d];
        if dim.size == 1 {
            continue;
        }
        let dense = match smem.dims[i].chain.as_slice() {
            [one] => one.place.0 == expected && one.size == dim.size,
            _ => false,
        };
        if !dense || dim.stride != expected {
            return None;
        }
        expected *= dim.size;
    }
    if smem.base_alignment() < 128 {
        return None;
    }
    let offset = affine_bytes(gmem);
    let byte_strides = gmem
        .iter()
        .all(|d| d.stride.is_multiple_of(8) || d.divisor().is_multiple_of(8));
    let aligned = offset.constant % 16 == 0 && offset.terms.iter().all(|t| t.multiple.is_multiple_of(16));
    let bytes = expected / 8;
    (expected % 128 == 0 && byte_strides && bits >= 8 && aligned && bytes < 1 << 20).then_some(BulkPlan {
        gmem: offset,
        bytes: bytes as u32,
    })
}

fn start_of(dim: &GmemDim, div: u64) -> Affine {
    let term = |(value, fact): &(DynId, Fact)| DynTerm {
        value: *value,
        div,
        modulus: None,
        stride: 1,
        multiple: (fact.divisor / div).max(1),
    };
    Affine {
        constant: (dim.start / div) as i64,
        terms: dim.dynamic.iter().map(term).collect(),
    }
}

/// A whole row-major array of these extents.
pub fn whole(shape: &[u64], bits: u32) -> SmallVec<[GmemDim; 4]> {
    let mut stride = u64::from(bits);
    let mut dims: SmallVec<[GmemDim; 4]> = smallvec![];
    for &extent in shape.iter().rev() {
        dims.insert(
            0,
            GmemDim {
                extent,
                stride,
                start: 0,
                dynamic: smallvec![],
                size: extent,
                dropped: false,
            },
        );
        stride *= extent;
    }
    dims
}
