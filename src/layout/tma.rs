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
//! A piece is dense itself: when a digit is cut, the digits outside of it are taken one by one.
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
    /// There is nothing outside, or nobody cares.
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
    /// Where one dimension of the map is several of the array: what tells whether one of those is in bounds.
    pub parts: Vec<Part>,
    pub pieces: Vec<Piece>,
    /// Bytes that one piece moves.
    pub piece_bytes: u32,
    pub sharing: Sharing,
}

/// An index of the array that is a part of a coordinate of the map: the copy is outside of the array if this is not below the extent.
#[derive(Clone, PartialEq, Debug)]
pub struct Part {
    /// Which coordinate.
    pub of: usize,
    pub index: Affine,
    pub extent: u64,
}

/// Which pieces of a shared copy are whose.
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

/// A digit of the box.
#[derive(Clone, Debug)]
struct BoxDigit {
    size: u64,
    smem: u64,
    gmem: u64,
    /// Elements of the map along it.
    extent: u64,
    coord: Affine,
    /// The dimensions that have their minor digit here, and what one element of theirs is in this digit.
    own: SmallVec<[(usize, u64); 2]>,
    /// Not a map dimension, but pieces: a step adds so many elements to the coordinate of this dimension.
    steps: Option<(usize, u64)>,
}

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
    let plan = |smem| plan_as_it_lies(gmem, smem, bits, out_of_bounds, parts, allow_bulk);
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

fn plan_as_it_lies(
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
    let first = match plan_tensor(gmem, &kept, smem, bits, &modes, safe, parts) {
        Ok(plan) => return Ok(CopyPlan::Tensor(plan)),
        Err(error) => error,
    };
    if matches!(first, CopyError::MinorStart { .. }) {
        return Err(first);
    }
    // Fewer map dimensions, at a price: integer indices have to be looked at, or there are more pieces.
    if matches!(first, CopyError::Dimensions { .. }) {
        if let Ok(plan) = plan_tensor(gmem, &kept, smem, bits, &modes, true, parts) {
            return Ok(CopyPlan::Tensor(plan));
        }
        let mut best: Option<TensorPlan> = None;
        for i in (0..kept.len()).filter(|i| chain_of(smem, *i).len() > 1) {
            let mut fewer = modes.clone();
            fewer[i] = Mode::Pieces;
            if let Ok(plan) = plan_tensor(gmem, &kept, smem, bits, &fewer, true, parts)
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

fn plan_tensor(
    gmem: &[GmemDim],
    kept: &[usize],
    smem: &SmemView,
    bits: u32,
    modes: &[Mode],
    merge_single: bool,
    cut: Cut,
) -> Result<TensorPlan, CopyError> {
    let swizzle = if smem.swizzle.is_none() {
        0
    } else {
        smem.swizzle.bytes()
    };
    let mut digits: Vec<BoxDigit> = vec![];
    for (i, &d) in kept.iter().enumerate() {
        let dim = &gmem[d];
        let chain = chain_of(smem, i);
        let tile = tile_of(smem, i);
        let mut weight = 1u64;
        for (j, digit) in chain.iter().enumerate() {
            let last = j + 1 == chain.len();
            let takes_start = if modes[i] == Mode::Split { last } else { j == 0 };
            digits.push(BoxDigit {
                size: digit.size,
                smem: digit.place.0,
                gmem: dim.stride * weight,
                extent: match modes[i] {
                    Mode::Split if last => dim.extent / tile,
                    Mode::Pieces if j == 0 => dim.extent,
                    // Everything is in bounds: the minor digit's bound is where the last of all slices begins, so that the map ends
                    // where the dimension does.
                    Mode::InBounds if j == 0 => (dim.extent + digit.size).saturating_sub(dim.size).max(digit.size),
                    Mode::Split | Mode::InBounds | Mode::Pieces => digit.size,
                },
                coord: match takes_start {
                    true => start_of(dim, if modes[i] == Mode::Split { tile } else { 1 }),
                    false => Affine::default(),
                },
                own: if j == 0 { smallvec![(d, 1)] } else { smallvec![] },
                steps: (modes[i] == Mode::Pieces && j > 0).then_some((d, weight)),
            });
            weight *= digit.size;
        }
    }
    digits.sort_by_key(|d| d.smem);
    // What a box writes is dense; digits behind a gap, or behind one that is pieces, are pieces themselves.
    let mut expected = u64::from(bits);
    let mut dense = 0;
    for d in &digits {
        if d.smem != expected || d.steps.is_some() {
            break;
        }
        expected *= d.size;
        dense += 1;
    }
    let Some(minor) = digits.first().filter(|_| dense > 0) else {
        // One element, or none next to it: a box of 16 bytes does not exist.
        return Err(if digits.is_empty() {
            CopyError::MinorSize { bits: u64::from(bits) }
        } else {
            CopyError::NotDense
        });
    };
    if minor.gmem != u64::from(bits) {
        return Err(CopyError::MinorStride);
    }
    // Digits that continue each other on both sides are one, unless the swizzle's row ends between them.
    let mut merged: Vec<BoxDigit> = vec![];
    let mut merged_dense = 0;
    for (k, d) in digits.into_iter().enumerate() {
        if let Some(low) = merged.last_mut() {
            let row_ends = swizzle != 0 && low.smem == u64::from(bits);
            let continues = low.gmem * low.size == d.gmem && low.extent == low.size && low.coord == Affine::default();
            let pieces = low.steps.is_some() || d.steps.is_some();
            if k < dense
                && continues
                && !row_ends
                && !pieces
                && low.size * d.size <= MAX_SIDE
                && d.extent * low.size <= MAX_EXTENT
            {
                low.coord = scaled(&d.coord, low.size);
                low.extent = d.extent * low.size;
                low.own.extend(d.own.iter().map(|o| (o.0, o.1 * low.size)));
                low.size *= d.size;
                continue;
            }
        }
        merged_dense += usize::from(k < dense);
        merged.push(d);
    }
    let (mut digits, dense) = (merged, merged_dense);
    let row_bits = digits[0].size * u64::from(bits);
    if swizzle != 0 && row_bits != u64::from(swizzle) * 8 {
        return Err(CopyError::SwizzleWidth {
            swizzle,
            bytes: row_bits / 8,
        });
    }
    if !row_bits.is_multiple_of(128) {
        return Err(CopyError::MinorSize { bits: row_bits });
    }
    // Dimensions along which one element is taken: constants go to the base, scalars to map dimensions of their own;
    // neighbours that form one row-major block share one.
    let single = |d: usize| gmem[d].dropped || gmem[d].size == 1;
    let mut base = 0u64;
    let mut extra: Vec<BoxDigit> = vec![];
    for (d, dim) in gmem.iter().enumerate().rev().filter(|(d, _)| single(*d)) {
        if dim.dynamic.is_empty() && dim.start < dim.extent {
            base += dim.start * dim.stride;
            continue;
        }
        let coord = start_of(dim, 1);
        if let Some(low) = extra.last_mut()
            && low.gmem * low.extent == dim.stride
            && (merge_single || low.own.iter().all(|own| gmem[own.0].in_bounds()))
        {
            let outer = scaled(&coord, low.extent);
            low.coord.constant += outer.constant;
            low.coord.terms.extend(outer.terms);
            low.own.push((d, low.extent));
            low.extent *= dim.extent;
            continue;
        }
        let own = smallvec![(d, 1)];
        extra.push(BoxDigit {
            size: 1,
            smem: 0,
            gmem: dim.stride,
            extent: dim.extent,
            coord,
            own,
            steps: None,
        });
    }
    if !base.is_multiple_of(128) {
        return Err(CopyError::Alignment {
            bytes: 1 << (base / 8).trailing_zeros(),
        });
    }
    // Sub-byte types travel as bytes.
    let per_byte = u64::from(8 / bits.min(8));
    if bits < 8 {
        let minor = &mut digits[0];
        let own = minor.own.clone();
        if !minor.size.is_multiple_of(per_byte)
            || !minor.extent.is_multiple_of(per_byte)
            || !coord_divisible(&minor.coord, per_byte)
        {
            return Err(CopyError::MinorSize { bits: row_bits });
        }
        minor.size /= per_byte;
        minor.extent /= per_byte;
        minor.gmem = 8;
        minor.smem = 8;
        minor.coord.constant /= per_byte as i64;
        for t in &mut minor.coord.terms {
            (t.div, t.multiple) = (t.div * per_byte, (t.multiple / per_byte).max(1));
        }
        // Steps along the minor dimension are counted in its elements.
        for d in digits.iter_mut() {
            if let Some((dim, weight)) = &mut d.steps
                && own.iter().any(|o| o.0 == *dim)
            {
                if !weight.is_multiple_of(per_byte) {
                    return Err(CopyError::MinorSize { bits: row_bits });
                }
                *weight /= per_byte;
            }
        }
    }
    let element_bytes = bits.div_ceil(8);
    // The box: sides of at most 256; outside of a digit that is cut, nothing is dense.
    let mut boxes: Vec<u64> = vec![];
    let mut whole = true;
    for (k, d) in digits.iter().enumerate() {
        let unit = if k == 0 {
            (16 / u64::from(element_bytes)).max(1)
        } else {
            1
        };
        let side = if k < dense && whole {
            largest_side(d.size, unit)
        } else {
            1
        };
        if side == 0 {
            return Err(CopyError::MinorSize { bits: row_bits });
        }
        whole &= side == d.size;
        boxes.push(side);
    }
    // A shared copy is cut along one digit, so that the parts are equal up to a step; outside of it, nothing is dense.
    let count = |boxes: &[u64]| digits.iter().zip(boxes).map(|(d, b)| d.size / b).product::<u64>();
    let mut shared = None;
    let parts = match cut {
        Cut::None => 1,
        Cut::Into(parts) => parts,
    };
    if parts > 1 {
        let mut best: Option<(u64, usize, Vec<u64>)> = None;
        for k in (1..boxes.len()).rev() {
            let lacking = parts / gcd(parts, digits[k].size / boxes[k]);
            if !boxes[k].is_multiple_of(lacking) {
                continue;
            }
            let mut cut = boxes.clone();
            if lacking > 1 {
                cut[k] /= lacking;
                cut[k + 1..].fill(1);
            }
            let pieces = count(&cut);
            if best.as_ref().is_none_or(|b| pieces < b.0) {
                best = Some((pieces, k, cut));
            }
        }
        match best {
            Some((_, k, cut)) => (shared, boxes) = (Some(k), cut),
            None => boxes = in_pieces(&digits, boxes, parts),
        }
    }
    let pieces = count(&boxes);
    if pieces > MAX_PIECES.max(parts) {
        return Err(CopyError::Pieces {
            pieces,
            limit: MAX_PIECES,
        });
    }
    let mut plan = TensorPlan {
        dims: ArrayVec::new(),
        strides: ArrayVec::new(),
        box_dims: ArrayVec::new(),
        base: base / 8,
        swizzle,
        element_bytes,
        coords: ArrayVec::new(),
        parts: vec![],
        pieces: vec![],
        piece_bytes: 0,
        sharing: match shared {
            Some(_) => Sharing::Equal,
            None => Sharing::InTurns,
        },
    };
    let map: Vec<(&BoxDigit, u64)> = digits
        .iter()
        .zip(boxes.iter().copied())
        .filter(|(d, _)| d.steps.is_none())
        .chain(extra.iter().map(|d| (d, 1)))
        .collect();
    if map.len() > 5 {
        return Err(CopyError::Dimensions { needed: map.len() });
    }
    for (k, (d, side)) in map.iter().enumerate() {
        plan.dims.push(d.extent);
        plan.box_dims.push(*side as u32);
        plan.coords.push(d.coord.clone());
        // The last of several is in bounds where the coordinate is.
        let parts = d.own.split_last().map_or(&[][..], |(_, parts)| parts);
        for &(dim, _) in parts.iter().filter(|own| single(own.0) && !gmem[own.0].in_bounds()) {
            plan.parts.push(Part {
                of: k,
                index: start_of(&gmem[dim], 1),
                extent: gmem[dim].extent,
            });
        }
        if k > 0 {
            if d.gmem % 128 != 0 {
                return Err(CopyError::Stride { bytes: d.gmem / 8 });
            }
            plan.strides.push(d.gmem / 8);
        }
        if d.extent > MAX_EXTENT || d.gmem / 8 >= 1 << 40 {
            return Err(CopyError::Limits {
                extent: d.extent,
                stride: d.gmem / 8,
            });
        }
    }
    // So it is on an H200, of loads and stores, whatever is swizzled. Pieces are of whole multiples.
    let (unit, first) = (16 / i64::from(element_bytes), &plan.coords[0]);
    let is_known = first.terms.iter().all(|t| t.multiple.is_multiple_of(unit as u64));
    if is_known && first.constant % unit != 0 {
        let scale = per_byte as i64;
        return Err(CopyError::MinorStart {
            start: first.constant * scale,
            unit: unit * scale,
        });
    }
    // The outer digits' pieces come last, and last of all the parts of a shared copy.
    let none: ArrayVec<u32, 5> = map.iter().map(|_| 0).collect();
    plan.pieces.push(Piece { coords: none, smem: 0 });
    let step_of = |n: usize| -> Result<(usize, u64, u64), CopyError> {
        let (d, side) = (&digits[n], boxes[n]);
        // Which coordinate a step moves, and by how much.
        let (k, by) = match d.steps {
            None => (
                map.iter()
                    .position(|m| std::ptr::eq(m.0, d))
                    .expect("map digits are in the map"),
                side,
            ),
            Some((dim, weight)) => {
                let at = |m: &(&BoxDigit, u64)| m.0.own.iter().find(|o| o.0 == dim).map(|o| o.1);
                let found = map.iter().enumerate().find_map(|(k, m)| Some((k, at(m)?)));
                let (k, scale) = found.ok_or(CopyError::NotDense)?;
                (k, weight * scale)
            }
        };
        Ok((k, by, side * d.smem / 8))
    };
    let mut repeat = |n: usize, times: u64, unit: u64| -> Result<(), CopyError> {
        let (k, by, smem) = step_of(n)?;
        let old = std::mem::take(&mut plan.pieces);
        for c in (0..times).map(|c| c * unit) {
            plan.pieces.extend(old.iter().map(|p| {
                let mut piece = p.clone();
                piece.coords[k] += (c * by) as u32;
                piece.smem += (c * smem) as u32;
                piece
            }));
        }
        Ok(())
    };
    let own = |n: usize| digits[n].size / boxes[n] / if shared == Some(n) { parts } else { 1 };
    for n in 0..digits.len() {
        repeat(n, own(n), 1)?;
    }
    if let Some(shared) = shared {
        repeat(shared, parts, own(shared))?;
    }
    // Where a box may lie: at 128 bytes, swizzled or not. A swizzle's pattern is one of addresses, not of rows of the box.
    let needed = 128;
    let offsets = plan
        .pieces
        .iter()
        .fold(smem.base_alignment() / 8, |all, p| all | u64::from(p.smem));
    if !offsets.is_multiple_of(needed) {
        return Err(CopyError::SmemAlignment {
            bytes: 1 << offsets.trailing_zeros(),
            needed,
        });
    }
    plan.piece_bytes = (boxes.iter().product::<u64>() * u64::from(element_bytes)) as u32;
    Ok(plan)
}

/// Boxes of at least `parts` pieces, if cutting one dimension makes so many and not many more; else as they are.
fn in_pieces(digits: &[BoxDigit], boxes: Vec<u64>, parts: u64) -> Vec<u64> {
    let count = |boxes: &[u64]| digits.iter().zip(boxes).map(|(d, b)| d.size / b).product::<u64>();
    if count(&boxes) >= parts {
        return boxes;
    }
    let mut best: Option<(u64, Vec<u64>)> = None;
    for k in 1..boxes.len() {
        for side in (1..boxes[k]).filter(|side| boxes[k].is_multiple_of(*side)) {
            let mut cut = boxes.clone();
            cut[k] = side;
            cut[k + 1..].fill(1);
            let pieces = count(&cut);
            if (parts..=4 * parts).contains(&pieces) && best.as_ref().is_none_or(|b| pieces < b.0) {
                best = Some((pieces, cut));
            }
        }
    }
    best.map_or(boxes, |(_, cut)| cut)
}

/// The largest divisor of `n` up to [`MAX_SIDE`] that is a multiple of `unit`; 0 if there is none.
fn largest_side(n: u64, unit: u64) -> u64 {
    let unit = unit.max(1);
    (1..=MAX_SIDE / unit)
        .rev()
        .map(|k| k * unit)
        .find(|side| n.is_multiple_of(*side))
        .unwrap_or(0)
}

fn scaled(a: &Affine, by: u64) -> Affine {
    Affine {
        constant: a.constant * by as i64,
        terms: a
            .terms
            .iter()
            .map(|t| DynTerm {
                stride: t.stride * by as i64,
                multiple: t.multiple.saturating_mul(by),
                ..*t
            })
            .collect(),
    }
}

fn coord_divisible(a: &Affine, by: u64) -> bool {
    a.constant % by as i64 == 0 && a.terms.iter().all(|t| t.multiple % by == 0 && t.stride == 1)
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
