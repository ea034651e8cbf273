//! A tensor map, its boxes, and the pieces that a copy falls into.
use super::{
    Affine, CopyError, Cut, GmemDim, MAX_EXTENT, MAX_PIECES, MAX_SIDE, Mode, Part, Piece, Sharing, TensorPlan,
};
use super::{chain_of, start_of, tile_of};
use crate::layout::facts::{DynTerm, gcd};
use crate::layout::smem_layout::SmemView;
use arrayvec::ArrayVec;
use smallvec::{SmallVec, smallvec};

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

/// Digits of the box, minor ones first, of which the first `dense` lie one behind the other.
struct Digits {
    all: Vec<BoxDigit>,
    dense: usize,
}

/// `merge_single`: dimensions along which one element is taken may share one of the map's, though their indices have to be looked at then.
pub fn plan(
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
    let mut digits = Digits::of(gmem, kept, smem, bits, modes)?.joined(bits, swizzle);
    let row_bits = digits.all[0].size * u64::from(bits);
    if swizzle != 0 && row_bits != u64::from(swizzle) * 8 {
        let bytes = row_bits / 8;
        return Err(CopyError::SwizzleWidth { swizzle, bytes });
    }
    if !row_bits.is_multiple_of(128) {
        return Err(CopyError::MinorSize { bits: row_bits });
    }
    let (base, single) = single_elements(gmem, merge_single);
    if !base.is_multiple_of(128) {
        let bytes = 1 << (base / 8).trailing_zeros();
        return Err(CopyError::Alignment { bytes });
    }
    // Sub-byte types travel as bytes.
    let per_byte = u64::from(8 / bits.min(8));
    let too_small = CopyError::MinorSize { bits: row_bits };
    if bits < 8 {
        digits.count_bytes(per_byte).ok_or(too_small.clone())?;
    }
    let element_bytes = bits.div_ceil(8);
    let boxes = digits.largest_boxes(element_bytes).ok_or(too_small)?;
    let parts = match cut {
        Cut::None => 1,
        Cut::Into(parts) => parts,
    };
    let (boxes, shared) = digits.cut(boxes, parts);
    let pieces = digits.pieces(&boxes);
    if pieces > MAX_PIECES.max(parts) {
        let limit = MAX_PIECES;
        return Err(CopyError::Pieces { pieces, limit });
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
        piece_bytes: (boxes.iter().product::<u64>() * u64::from(element_bytes)) as u32,
        sharing: match shared {
            Some(_) => Sharing::Equal,
            None => Sharing::InTurns,
        },
    };
    let of_box = digits
        .all
        .iter()
        .zip(boxes.iter().copied())
        .filter(|(d, _)| d.steps.is_none());
    let map: Vec<(&BoxDigit, u64)> = of_box.chain(single.iter().map(|d| (d, 1))).collect();
    write_map(&mut plan, &map, gmem)?;
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
    plan.pieces = digits.all_pieces(&boxes, &map, shared.map(|n| (n, parts)))?;
    // Where a box may lie: at 128 bytes, swizzled or not. A swizzle's pattern is one of addresses, not of rows of the box.
    let needed = 128;
    let start = smem.base_alignment() / 8;
    let offsets = plan.pieces.iter().fold(start, |all, p| all | u64::from(p.smem));
    if !offsets.is_multiple_of(needed) {
        let bytes = 1 << offsets.trailing_zeros();
        return Err(CopyError::SmemAlignment { bytes, needed });
    }
    Ok(plan)
}

impl Digits {
    /// The digits of all dimensions that are kept.
    fn of(gmem: &[GmemDim], kept: &[usize], smem: &SmemView, bits: u32, modes: &[Mode]) -> Result<Digits, CopyError> {
        let mut all: Vec<BoxDigit> = vec![];
        for (i, &d) in kept.iter().enumerate() {
            let (dim, mode) = (&gmem[d], modes[i]);
            let (chain, tile) = (chain_of(smem, i), tile_of(smem, i));
            let mut weight = 1u64;
            for (j, digit) in chain.iter().enumerate() {
                let last = j + 1 == chain.len();
                let takes_start = if mode == Mode::Split { last } else { j == 0 };
                all.push(BoxDigit {
                    size: digit.size,
                    smem: digit.place.0,
                    gmem: dim.stride * weight,
                    extent: match mode {
                        Mode::Split if last => dim.extent / tile,
                        Mode::Pieces if j == 0 => dim.extent,
                        // Everything is in bounds: the minor digit's bound is where the last of all slices begins, so that the map ends
                        // where the dimension does.
                        Mode::InBounds if j == 0 => (dim.extent + digit.size).saturating_sub(dim.size).max(digit.size),
                        Mode::Split | Mode::InBounds | Mode::Pieces => digit.size,
                    },
                    coord: match takes_start {
                        true => start_of(dim, if mode == Mode::Split { tile } else { 1 }),
                        false => Affine::default(),
                    },
                    own: if j == 0 { smallvec![(d, 1)] } else { smallvec![] },
                    steps: (mode == Mode::Pieces && j > 0).then_some((d, weight)),
                });
                weight *= digit.size;
            }
        }
        all.sort_by_key(|d| d.smem);
        // What a box writes is dense; digits behind a gap, or behind one that is pieces, are pieces themselves.
        let mut expected = u64::from(bits);
        let is_next = |d: &&BoxDigit| {
            let next = d.smem == expected && d.steps.is_none();
            expected *= d.size;
            next
        };
        let dense = all.iter().take_while(is_next).count();
        let Some(minor) = all.first().filter(|_| dense > 0) else {
            // One element, or none next to it: a box of 16 bytes does not exist.
            return Err(if all.is_empty() {
                CopyError::MinorSize { bits: u64::from(bits) }
            } else {
                CopyError::NotDense
            });
        };
        if minor.gmem != u64::from(bits) {
            return Err(CopyError::MinorStride);
        }
        Ok(Digits { all, dense })
    }

    /// Digits that continue each other on both sides are one, unless the swizzle's row ends between them.
    fn joined(self, bits: u32, swizzle: u32) -> Digits {
        let mut out = Digits { all: vec![], dense: 0 };
        for (k, d) in self.all.into_iter().enumerate() {
            let is_dense = k < self.dense;
            if let Some(low) = out.all.last_mut() {
                let row_ends = swizzle != 0 && low.smem == u64::from(bits);
                let continues =
                    low.gmem * low.size == d.gmem && low.extent == low.size && low.coord == Affine::default();
                let pieces = low.steps.is_some() || d.steps.is_some();
                let fits = low.size * d.size <= MAX_SIDE && d.extent * low.size <= MAX_EXTENT;
                if is_dense && continues && !row_ends && !pieces && fits {
                    low.coord = scaled(&d.coord, low.size);
                    low.extent = d.extent * low.size;
                    low.own.extend(d.own.iter().map(|o| (o.0, o.1 * low.size)));
                    low.size *= d.size;
                    continue;
                }
            }
            out.dense += usize::from(is_dense);
            out.all.push(d);
        }
        out
    }

    /// Counts bytes, and not elements of which one has several; `None` where that does not work out.
    fn count_bytes(&mut self, per_byte: u64) -> Option<()> {
        let minor = &mut self.all[0];
        let own = minor.own.clone();
        let divides = minor.size.is_multiple_of(per_byte) && minor.extent.is_multiple_of(per_byte);
        if !divides || !coord_divisible(&minor.coord, per_byte) {
            return None;
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
        for d in &mut self.all {
            if let Some((dim, weight)) = &mut d.steps
                && own.iter().any(|o| o.0 == *dim)
            {
                if !weight.is_multiple_of(per_byte) {
                    return None;
                }
                *weight /= per_byte;
            }
        }
        Some(())
    }

    /// Boxes with sides of at most 256; outside of a digit that is cut, nothing is dense. `None` if rows have no whole 16 bytes.
    fn largest_boxes(&self, element_bytes: u32) -> Option<Vec<u64>> {
        let mut boxes: Vec<u64> = vec![];
        let mut whole = true;
        for (k, d) in self.all.iter().enumerate() {
            let unit = if k == 0 {
                (16 / u64::from(element_bytes)).max(1)
            } else {
                1
            };
            let side = if k < self.dense && whole {
                largest_side(d.size, unit)
            } else {
                1
            };
            if side == 0 {
                return None;
            }
            whole &= side == d.size;
            boxes.push(side);
        }
        Some(boxes)
    }

    /// How many boxes of these sides there are.
    fn pieces(&self, boxes: &[u64]) -> u64 {
        self.all.iter().zip(boxes).map(|(d, b)| d.size / b).product()
    }

    /// Boxes for CTAs that do a part each, and the digit that is cut for them: along one, so that the parts are equal up to a step; outside of
    /// it, nothing is dense.
    fn cut(&self, boxes: Vec<u64>, parts: u64) -> (Vec<u64>, Option<usize>) {
        if parts == 1 {
            return (boxes, None);
        }
        let mut best: Option<(u64, usize, Vec<u64>)> = None;
        for k in (1..boxes.len()).rev() {
            let lacking = parts / gcd(parts, self.all[k].size / boxes[k]);
            if !boxes[k].is_multiple_of(lacking) {
                continue;
            }
            let mut cut = boxes.clone();
            if lacking > 1 {
                cut[k] /= lacking;
                cut[k + 1..].fill(1);
            }
            let pieces = self.pieces(&cut);
            if best.as_ref().is_none_or(|b| pieces < b.0) {
                best = Some((pieces, k, cut));
            }
        }
        match best {
            Some((_, k, cut)) => (cut, Some(k)),
            None => (self.in_turns(boxes, parts), None),
        }
    }

    /// Boxes of at least `parts` pieces, if cutting one dimension makes so many and not many more; else as they are.
    fn in_turns(&self, boxes: Vec<u64>, parts: u64) -> Vec<u64> {
        if self.pieces(&boxes) >= parts {
            return boxes;
        }
        let mut best: Option<(u64, Vec<u64>)> = None;
        for k in 1..boxes.len() {
            for side in (1..boxes[k]).filter(|side| boxes[k].is_multiple_of(*side)) {
                let mut cut = boxes.clone();
                cut[k] = side;
                cut[k + 1..].fill(1);
                let pieces = self.pieces(&cut);
                if (parts..=4 * parts).contains(&pieces) && best.as_ref().is_none_or(|b| pieces < b.0) {
                    best = Some((pieces, cut));
                }
            }
        }
        best.map_or(boxes, |(_, cut)| cut)
    }

    /// All pieces: the outer digits' come last, and last of all the parts of a shared copy.
    fn all_pieces(
        &self,
        boxes: &[u64],
        map: &[(&BoxDigit, u64)],
        shared: Option<(usize, u64)>,
    ) -> Result<Vec<Piece>, CopyError> {
        let mut pieces = vec![Piece {
            coords: map.iter().map(|_| 0).collect(),
            smem: 0,
        }];
        let mut repeat = |n: usize, times: u64, unit: u64| -> Result<(), CopyError> {
            let (d, side) = (&self.all[n], boxes[n]);
            // Which coordinate a step moves, and by how much.
            let (k, by) = match d.steps {
                None => {
                    let k = map.iter().position(|m| std::ptr::eq(m.0, d));
                    (k.expect("map digits are in the map"), side)
                }
                Some((dim, weight)) => {
                    let at = |m: &(&BoxDigit, u64)| m.0.own.iter().find(|o| o.0 == dim).map(|o| o.1);
                    let found = map.iter().enumerate().find_map(|(k, m)| Some((k, at(m)?)));
                    let (k, scale) = found.ok_or(CopyError::NotDense)?;
                    (k, weight * scale)
                }
            };
            let old = std::mem::take(&mut pieces);
            for c in (0..times).map(|c| c * unit) {
                pieces.extend(old.iter().map(|p| {
                    let mut piece = p.clone();
                    piece.coords[k] += (c * by) as u32;
                    piece.smem += (c * (side * d.smem / 8)) as u32;
                    piece
                }));
            }
            Ok(())
        };
        let parts = |n: usize| shared.map_or(1, |(shared, parts)| if shared == n { parts } else { 1 });
        let own = |n: usize| self.all[n].size / boxes[n] / parts(n);
        for n in 0..self.all.len() {
            repeat(n, own(n), 1)?;
        }
        if let Some((shared, parts)) = shared {
            repeat(shared, parts, own(shared))?;
        }
        Ok(pieces)
    }
}

/// Whether one element is taken along a dimension.
fn is_single(dim: &GmemDim) -> bool {
    dim.dropped || dim.size == 1
}

/// Dimensions along which one element is taken: constants go to the base, scalars to map dimensions of their own; neighbours that form one
/// row-major block share one.
fn single_elements(gmem: &[GmemDim], merge: bool) -> (u64, Vec<BoxDigit>) {
    let mut base = 0u64;
    let mut out: Vec<BoxDigit> = vec![];
    for (d, dim) in gmem.iter().enumerate().rev().filter(|(_, dim)| is_single(dim)) {
        if dim.dynamic.is_empty() && dim.start < dim.extent {
            base += dim.start * dim.stride;
            continue;
        }
        let coord = start_of(dim, 1);
        if let Some(low) = out.last_mut()
            && low.gmem * low.extent == dim.stride
            && (merge || low.own.iter().all(|own| gmem[own.0].in_bounds()))
        {
            let outer = scaled(&coord, low.extent);
            low.coord.constant += outer.constant;
            low.coord.terms.extend(outer.terms);
            low.own.push((d, low.extent));
            low.extent *= dim.extent;
            continue;
        }
        out.push(BoxDigit {
            size: 1,
            smem: 0,
            gmem: dim.stride,
            extent: dim.extent,
            coord,
            own: smallvec![(d, 1)],
            steps: None,
        });
    }
    (base, out)
}

/// The map's dimensions, within its limits.
fn write_map(plan: &mut TensorPlan, map: &[(&BoxDigit, u64)], gmem: &[GmemDim]) -> Result<(), CopyError> {
    if map.len() > 5 {
        return Err(CopyError::Dimensions { needed: map.len() });
    }
    for (k, (d, side)) in map.iter().enumerate() {
        plan.dims.push(d.extent);
        plan.box_dims.push(*side as u32);
        plan.coords.push(d.coord.clone());
        // The last of several is in bounds where the coordinate is.
        let parts = d.own.split_last().map_or(&[][..], |(_, parts)| parts);
        for dim in parts
            .iter()
            .map(|own| &gmem[own.0])
            .filter(|dim| is_single(dim) && !dim.in_bounds())
        {
            plan.parts.push(Part {
                of: k,
                index: start_of(dim, 1),
                extent: dim.extent,
            });
        }
        let bytes = d.gmem / 8;
        if k > 0 {
            if d.gmem % 128 != 0 {
                return Err(CopyError::Stride { bytes });
            }
            plan.strides.push(bytes);
        }
        if d.extent > MAX_EXTENT || bytes >= 1 << 40 {
            return Err(CopyError::Limits {
                extent: d.extent,
                stride: bytes,
            });
        }
    }
    Ok(())
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
