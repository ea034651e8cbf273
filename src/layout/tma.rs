//! Copies between GMEM and SMEM by the bulk copy engine: which tensor map, which boxes, or a plain bulk copy.
//!
//! A box is written to shared memory densely, minor dimension first, and then swizzled. So the digits of the SMEM view, sorted
//! by stride, *are* the dimensions of the box, provided that they are dense; each digit runs along one dimension of GMEM with
//! that dimension's stride times the digit's weight. Digits that continue each other on both sides are one dimension.
//!
//! A digit that is not the last of its dimension (a tile's rows) has coordinate 0: the slice's start must be a multiple of the tile.
//! Where that is not proven, the start can go to the minor digit instead, if the whole slice is known to be in bounds.
use super::facts::{DynId, DynTerm, Fact};
use super::smem_layout::SmemView;
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
        self.dynamic
            .iter()
            .fold(self.start, |g, (_, f)| super::facts::gcd(g, f.divisor))
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
    pub pieces: Vec<Piece>,
    /// Bytes that one piece moves.
    pub piece_bytes: u32,
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
    #[error("no outer dimension of the box is divisible by the {parts} CTAs that share the copy")]
    Parts { parts: u64 },
    #[error("the GMEM address is only known to be a multiple of {bytes} bytes; copies need 16")]
    Alignment { bytes: u64 },
}

/// A digit of the box.
#[derive(Clone, Debug)]
struct BoxDigit {
    size: u64,
    smem: u64,
    gmem: u64,
    /// Elements of the map along it.
    extent: u64,
    coord: Affine,
}

/// Plans a copy of `bits`-wide elements. `parts` CTAs each do one part of it for all (1: no sharing). The pieces of
/// part `p` are those at positions `p·n/parts …` of the list.
pub fn plan(
    gmem: &[GmemDim],
    smem: &SmemView,
    bits: u32,
    out_of_bounds: OutOfBounds,
    parts: u64,
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
        && parts == 1
        && smem.swizzle.is_none()
        && (out_of_bounds == OutOfBounds::Ignored || in_bounds)
        && let Some(bulk) = plan_bulk(gmem, &kept, smem, bits)
    {
        return Ok(CopyPlan::Bulk(bulk));
    }
    plan_tensor(
        gmem,
        &kept,
        smem,
        bits,
        in_bounds || out_of_bounds == OutOfBounds::Ignored,
        parts,
    )
    .map(CopyPlan::Tensor)
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

fn plan_tensor(
    gmem: &[GmemDim],
    kept: &[usize],
    smem: &SmemView,
    bits: u32,
    in_bounds: bool,
    parts: u64,
) -> Result<TensorPlan, CopyError> {
    let mut base = 0u64;
    let mut digits: Vec<BoxDigit> = vec![];
    for (i, &d) in kept.iter().enumerate() {
        let dim = &gmem[d];
        let chain = &smem.dims[i].chain;
        if chain.is_empty() {
            continue;
        }
        let mut weight = 1u64;
        let last_weight: u64 = chain[..chain.len() - 1].iter().map(|c| c.size).product();
        let divisible = dim.divisor().is_multiple_of(last_weight);
        let whole = dim.extent.is_multiple_of(last_weight);
        if (!divisible || !whole) && !in_bounds {
            return Err(if !divisible {
                CopyError::Start {
                    dim: d,
                    proven: dim.divisor(),
                    needed: last_weight,
                }
            } else {
                CopyError::Extent {
                    dim: d,
                    extent: dim.extent,
                    tile: last_weight,
                }
            });
        }
        let split = divisible && whole;
        for (j, digit) in chain.iter().enumerate() {
            let last = j + 1 == chain.len();
            let takes_start = if split { last } else { j == 0 };
            let div = if split { last_weight } else { 1 };
            let coord = if takes_start {
                Affine {
                    constant: (dim.start / div) as i64,
                    terms: dim
                        .dynamic
                        .iter()
                        .map(|(value, fact)| DynTerm {
                            value: *value,
                            div,
                            modulus: None,
                            stride: 1,
                            multiple: (fact.divisor / div).max(1),
                        })
                        .collect(),
                }
            } else {
                Affine::default()
            };
            let extent = match (split, last) {
                (true, true) => dim.extent / last_weight,
                (true, false) => digit.size,
                // Everything is in bounds: the minor digit's bound only has to be large enough.
                (false, _) if j == 0 => dim.extent,
                (false, _) => digit.size,
            };
            digits.push(BoxDigit {
                size: digit.size,
                smem: digit.place.0,
                gmem: dim.stride * weight,
                extent,
                coord,
            });
            weight *= digit.size;
        }
    }
    digits.sort_by_key(|d| d.smem);
    let mut expected = u64::from(bits);
    for d in &digits {
        if d.smem != expected {
            return Err(CopyError::NotDense);
        }
        expected *= d.size;
    }
    // The minor digit.
    let swizzle = if smem.swizzle.is_none() || smem.swizzle.bytes() < 32 {
        0
    } else {
        smem.swizzle.bytes()
    };
    let Some(minor) = digits.first() else {
        // One element: a box of 16 bytes does not exist.
        return Err(CopyError::MinorSize { bits: u64::from(bits) });
    };
    if minor.gmem != u64::from(bits) {
        return Err(CopyError::MinorStride);
    }
    // Digits that continue each other on both sides are one, unless the swizzle's row ends between them.
    let mut merged: Vec<BoxDigit> = vec![];
    for d in digits {
        if let Some(low) = merged.last_mut() {
            let row_ends = swizzle != 0 && low.smem == u64::from(bits);
            let continues = low.gmem * low.size == d.gmem && low.extent == low.size && low.coord == Affine::default();
            if continues && !row_ends && low.size * d.size <= 256 {
                low.coord = scaled(&d.coord, low.size);
                low.extent = d.extent * low.size;
                low.size *= d.size;
                continue;
            }
        }
        merged.push(d);
    }
    let mut digits = merged;
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
    // Dimensions that integers dropped: constants go to the base, scalars to dimensions of their own; neighbours that form one
    // row-major block share one.
    let mut extra: Vec<BoxDigit> = vec![];
    for dim in gmem.iter().rev().filter(|d| d.dropped) {
        if dim.dynamic.is_empty() {
            base += dim.start * dim.stride;
            continue;
        }
        let coord = Affine {
            constant: dim.start as i64,
            terms: dim
                .dynamic
                .iter()
                .map(|(value, fact)| DynTerm {
                    value: *value,
                    div: 1,
                    modulus: None,
                    stride: 1,
                    multiple: fact.divisor,
                })
                .collect(),
        };
        if let Some(low) = extra.last_mut()
            && low.gmem * low.extent == dim.stride
        {
            let outer = scaled(&coord, low.extent);
            low.coord.constant += outer.constant;
            low.coord.terms.extend(outer.terms);
            low.extent *= dim.extent;
            continue;
        }
        extra.push(BoxDigit {
            size: 1,
            smem: 0,
            gmem: dim.stride,
            extent: dim.extent,
            coord,
        });
    }
    // Unit digits of kept dimensions whose start is constant go to the base too.
    digits.extend(extra);
    // Sub-byte types travel as bytes.
    if bits < 8 {
        let per_byte = u64::from(8 / bits);
        let minor = &mut digits[0];
        if !minor.size.is_multiple_of(per_byte)
            || !minor.extent.is_multiple_of(per_byte)
            || !coord_divisible(&minor.coord, per_byte)
        {
            return Err(CopyError::MinorSize { bits: row_bits });
        }
        minor.size /= per_byte;
        minor.extent /= per_byte;
        minor.gmem = 8;
        minor.coord.constant /= per_byte as i64;
        for t in &mut minor.coord.terms {
            t.div *= per_byte;
        }
    }
    let element_bytes = bits.div_ceil(8);
    let mut plan = TensorPlan {
        dims: ArrayVec::new(),
        strides: ArrayVec::new(),
        box_dims: ArrayVec::new(),
        base: base / 8,
        swizzle,
        element_bytes,
        coords: ArrayVec::new(),
        pieces: vec![Piece {
            coords: ArrayVec::new(),
            smem: 0,
        }],
        piece_bytes: 0,
    };
    if !base.is_multiple_of(128) {
        return Err(CopyError::Alignment {
            bytes: 1 << (base / 8).trailing_zeros(),
        });
    }
    if digits.len() > 5 {
        return Err(CopyError::Dimensions { needed: digits.len() });
    }
    let mut boxes: Vec<u64> = digits.iter().map(|d| d.size).collect();
    // No side of a box is above 256, and a shared copy is cut into one part for each CTA, along the outermost digits.
    let mut cuts: Vec<u64> = boxes.iter().map(|b| cut_for_limit(*b, 256)).collect();
    if parts > 1 {
        let mut left = parts;
        for i in (1..boxes.len()).rev() {
            let room = boxes[i] / cuts[i];
            let here = super::facts::gcd(room, left);
            cuts[i] *= here;
            left /= here;
        }
        if left != 1 {
            return Err(CopyError::Parts { parts });
        }
    }
    for (b, c) in boxes.iter_mut().zip(&cuts) {
        *b /= c;
    }
    for (i, d) in digits.iter().enumerate() {
        plan.dims.push(d.extent);
        plan.box_dims.push(boxes[i] as u32);
        plan.coords.push(d.coord.clone());
        if i > 0 {
            if d.gmem % 128 != 0 {
                return Err(CopyError::Stride { bytes: d.gmem / 8 });
            }
            plan.strides.push(d.gmem / 8);
        }
        for p in &mut plan.pieces {
            p.coords.push(0);
        }
        // The outer digits' cuts come last, so that consecutive pieces are consecutive in the list.
        if cuts[i] > 1 {
            let old = std::mem::take(&mut plan.pieces);
            for c in 0..cuts[i] {
                for p in &old {
                    let mut coords = p.coords.clone();
                    coords[i] += (c * boxes[i]) as u32;
                    let step = c * boxes[i] * d.smem * if bits < 8 && i == 0 { u64::from(8 / bits) } else { 1 };
                    plan.pieces.push(Piece {
                        coords,
                        smem: p.smem + (step / 8) as u32,
                    });
                }
            }
        }
    }
    plan.piece_bytes = (boxes.iter().product::<u64>() * u64::from(element_bytes)) as u32;
    Ok(plan)
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

/// The fewest equal parts of `n` that are at most `limit` each.
fn cut_for_limit(n: u64, limit: u64) -> u64 {
    (n.div_ceil(limit)..=n).find(|c| n.is_multiple_of(*c)).unwrap_or(1)
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Does what the copy engine does, element by element, and compares with direct indexing.
    fn check(gmem: &[GmemDim], smem: &SmemView, bits: u32, values: &[u64], parts: u64) {
        let plan = match plan(gmem, smem, bits, OutOfBounds::Zeros, parts, false).unwrap() {
            CopyPlan::Tensor(plan) => plan,
            CopyPlan::Bulk(_) => unreachable!("bulk copies are not allowed here"),
        };
        let value = |id: DynId| values[id.0 as usize];
        let eval = |a: &Affine| a.constant + a.terms.iter().map(|t| t.eval(value(t.value))).sum::<i64>();
        let mut seen = std::collections::BTreeMap::new();
        for piece in &plan.pieces {
            let n: u64 = plan.box_dims.iter().map(|b| u64::from(*b)).product();
            for linear in 0..n {
                let (mut rest, mut gaddr, mut inside) = (linear, plan.base as i64, true);
                for i in 0..plan.dims.len() {
                    let at = rest % u64::from(plan.box_dims[i]);
                    rest /= u64::from(plan.box_dims[i]);
                    let c = eval(&plan.coords[i]) + i64::from(piece.coords[i]) + at as i64;
                    inside &= c >= 0 && (c as u64) < plan.dims[i];
                    let stride = if i == 0 {
                        u64::from(plan.element_bytes)
                    } else {
                        plan.strides[i - 1]
                    };
                    gaddr += c * stride as i64;
                }
                let saddr = smem
                    .swizzle
                    .apply(u64::from(piece.smem) + linear * u64::from(plan.element_bytes));
                assert!(seen.insert(saddr, inside.then_some(gaddr)).is_none(), "written twice");
            }
        }
        let kept: Vec<&GmemDim> = gmem.iter().filter(|d| !d.dropped).collect();
        let shape = smem.shape();
        let total: u64 = shape.iter().product();
        assert_eq!(seen.len() as u64, total);
        for flat in 0..total {
            let mut index = vec![0; shape.len()];
            let mut rest = flat;
            for (i, s) in shape.iter().enumerate().rev() {
                index[i] = rest % s;
                rest /= s;
            }
            let mut g = 0i64;
            let mut inside = true;
            for d in gmem.iter().filter(|d| d.dropped) {
                let at = d.start + d.dynamic.iter().map(|(v, _)| value(*v)).sum::<u64>();
                g += (at * d.stride / 8) as i64;
            }
            for (d, i) in kept.iter().zip(&index) {
                let at = d.start + d.dynamic.iter().map(|(v, _)| value(*v)).sum::<u64>() + i;
                inside &= at < d.extent;
                g += (at * d.stride / 8) as i64;
            }
            let s = smem.address(&index, &|_| 0).0;
            assert_eq!(seen[&s], inside.then_some(g), "element {index:?}");
        }
    }

    fn slice(dim: &mut GmemDim, start: u64, dynamic: Option<(u32, u64)>, size: u64) {
        dim.start = start;
        dim.size = size;
        if let Some((id, divisor)) = dynamic {
            dim.dynamic
                .push((DynId(id), Fact::multiple_of(divisor).in_range(0, 1 << 20)));
        }
    }

    #[test]
    fn tiled_and_swizzled_boxes() {
        for (bits, swizzle) in [(16u32, 128u32), (16, 64), (8, 128), (32, 32), (16, 0)] {
            let e = if swizzle == 0 {
                64
            } else {
                u64::from(swizzle * 8 / bits)
            };
            let smem = SmemView::new(&[64, 2 * e], bits, &[8, e], swizzle).unwrap();
            let mut g = whole(&[256, 8 * e], bits);
            slice(&mut g[0], 64, Some((0, 8)), 64);
            slice(&mut g[1], 0, Some((1, e)), 2 * e);
            check(&g, &smem, bits, &[16, 3 * e], 1);
            // Over the end: zeros.
            check(&g, &smem, bits, &[160, 7 * e], 1);
            // Shared by two CTAs.
            check(&g, &smem, bits, &[0, 0], 2);
        }
    }

    #[test]
    fn batches_become_one_dimension() {
        let smem = SmemView::new(&[64, 64], 16, &[8, 64], 128).unwrap();
        let mut g = whole(&[3, 5, 128, 128], 16);
        for (i, id) in [(0, 0), (1, 1)] {
            slice(&mut g[i], 0, Some((id, 1)), 1);
            g[i].dropped = true;
        }
        slice(&mut g[2], 64, None, 64);
        slice(&mut g[3], 64, None, 64);
        check(&g, &smem, 16, &[2, 4], 1);
    }

    #[test]
    fn long_dimensions_are_cut() {
        let smem = SmemView::new(&[512, 64], 16, &[], 0).unwrap();
        let mut g = whole(&[1024, 64], 16);
        slice(&mut g[0], 512, None, 512);
        check(&g, &smem, 16, &[], 1);
    }

    #[test]
    fn an_unproved_start_is_named() {
        let smem = SmemView::new(&[64, 128], 16, &[8, 64], 128).unwrap();
        let mut g = whole(&[256, 256], 16);
        slice(&mut g[0], 0, Some((0, 4)), 64);
        slice(&mut g[1], 0, None, 128);
        let error = plan(&g, &smem, 16, OutOfBounds::Zeros, 1, true).unwrap_err();
        assert_eq!(
            error,
            CopyError::Start {
                dim: 0,
                proven: 4,
                needed: 8
            }
        );
        // In bounds, the start goes to the minor digit.
        g[0].dynamic[0].1 = Fact::multiple_of(4).in_range(0, 192);
        check(&g, &smem, 16, &[100], 1);
    }

    #[test]
    fn contiguous_copies_need_no_tensor_map() {
        let smem = SmemView::row_major(&[4, 64], 32);
        let mut g = whole(&[16, 64], 32);
        slice(&mut g[0], 0, Some((0, 1)), 4);
        g[0].dynamic[0].1 = Fact {
            divisor: 1,
            min: 0,
            max: 12,
        };
        match plan(&g, &smem, 32, OutOfBounds::Zeros, 1, true).unwrap() {
            CopyPlan::Bulk(bulk) => assert_eq!((bulk.bytes, bulk.gmem.terms[0].stride), (1024, 256)),
            CopyPlan::Tensor(_) => panic!("expected a bulk copy"),
        }
    }
}
