//! Shared-memory layouts and views: where in an allocation each element of a (sub)array lies.
//!
//! Every logical dimension is a chain of digits, each with an integer stride in **bits** (sub-byte types need nothing
//! special). The sum of the digits' offsets, the view's constant offset and its dynamic terms is the *linear* offset; the
//! [`Swizzle`] then permutes the bytes of the absolute address. Allocations are 1024-byte aligned, so that a swizzle of
//! the offset in the allocation and one of the absolute address are the same.
//!
//! * tiling by `(t…)`: dimension d is the digits (t, stride of the inner position) and (d/t, stride of the outer one);
//! * transposition exchanges dimensions; a reshape joins chains or cuts them; nothing moves;
//! * a slice or an integer index adds to the offset and shortens a chain. It is *regular* when the offset of `start + i`
//!   is that of `start` plus that of `i` for every i. Where this can't be proven the dimension becomes *loose*: it keeps
//!   the whole chain and a start to be added to the index before the digits are taken. Loose views can only be
//!   addressed element by element; TMA, wgmma and vectors need regular ones.
use super::digits::{self, Chain, Digit};
use super::facts::{DynTerm, Fact, Start, gcd};
use super::register_layout::Dims;
use smallvec::{SmallVec, smallvec};

/// Bits [`base`, `base + bits`) of a byte address are XORed with bits [`base + shift`, …).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Swizzle {
    pub bits: u8,
    pub base: u8,
    pub shift: u8,
}

impl Swizzle {
    pub const NONE: Swizzle = Swizzle {
        bits: 0,
        base: 4,
        shift: 3,
    };

    /// The hardware's modes (TMA and wgmma): rows of 32, 64 or 128 bytes, atoms of 16 bytes. 16 (or 0) is no swizzle.
    /// PTX ISA, "Tensor swizzling modes".
    pub fn of_bytes(bytes: u32) -> Option<Swizzle> {
        match bytes {
            0 | 16 => Some(Swizzle::NONE),
            32 | 64 | 128 => Some(Swizzle {
                bits: (bytes / 16).trailing_zeros() as u8,
                base: 4,
                shift: 3,
            }),
            _ => None,
        }
    }
    /// The row width in bytes of a hardware mode, 16 for none.
    pub fn bytes(&self) -> u32 {
        16 << self.bits
    }
    pub fn is_none(&self) -> bool {
        self.bits == 0
    }
    /// The address bits that are XORed with others.
    pub fn target_mask(&self) -> u64 {
        ((1 << self.bits) - 1) << self.base
    }
    /// The address bits that others are XORed with.
    pub fn source_mask(&self) -> u64 {
        self.target_mask() << self.shift
    }
    pub fn apply(&self, address: u64) -> u64 {
        address ^ ((address >> self.shift) & self.target_mask())
    }
    /// The pattern repeats every so many bytes, and an offset of a multiple of it commutes with the swizzle.
    pub fn period(&self) -> u64 {
        if self.bits == 0 {
            1
        } else {
            1 << (self.base + self.shift + self.bits)
        }
    }
    /// Runs of this many aligned bytes stay together.
    pub fn atom(&self) -> u64 {
        if self.bits == 0 { u64::MAX } else { 1 << self.base }
    }
}

/// The stride of a digit, in bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Stride(pub u64);

impl digits::Place for Stride {
    fn above(self, size: u64) -> Self {
        Stride(self.0 * size)
    }
    fn cuttable(self, _: u64) -> bool {
        true
    }
}

/// One dimension of a view.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ViewDim {
    pub size: u64,
    /// Minor digit first. Covers exactly `size` unless the dimension is loose.
    pub chain: Chain<Stride>,
    /// Added to the index before its digits are taken; not empty = loose.
    pub loose: SmallVec<[Start; 1]>,
}

impl ViewDim {
    fn regular(size: u64, chain: Chain<Stride>) -> ViewDim {
        ViewDim {
            size,
            chain: digits::merge(&chain),
            loose: smallvec![],
        }
    }
    /// The offset in bits of index `i`.
    pub fn offset(&self, mut i: u64) -> u64 {
        let mut sum = 0;
        let last = self.chain.len().saturating_sub(1);
        for (k, d) in self.chain.iter().enumerate() {
            sum += if k == last { i } else { i % d.size } * d.place.0;
            i /= d.size;
        }
        sum
    }
}

fn in_bytes(bits: &u64) -> String {
    match bits % 8 {
        0 => format!("{} bytes", bits / 8),
        _ => format!("{bits} bits"),
    }
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ViewError {
    #[error("shape {shape:?} is not a multiple of the tiling {tiling:?}")]
    TilingDoesNotDivide { shape: Vec<u64>, tiling: Vec<u64> },
    #[error("the last dimension (of a tile, if there are tiles) of a buffer with a {swizzle}-byte swizzle must be {swizzle} bytes, got {}", in_bytes(.got_bits))]
    SwizzleWidth { swizzle: u32, got_bits: u64 },
    #[error("unknown swizzle of {0} bytes (expected 16, 32, 64 or 128)")]
    UnknownSwizzle(u32),
    #[error("slice of dimension {dim}: [{start}, +{size}) is out of bounds for size {bound}")]
    OutOfBounds {
        dim: usize,
        start: u64,
        size: u64,
        bound: u64,
    },
    #[error(
        "slice of dimension {dim} cuts tiles of {tile}: start {} (multiple of {}), size {size}; \
         start and size must be multiples of {tile} (see pl.multiple_of)", 
        if .start.is_some() { "known" } else { "dynamic" }, .divisor
    )]
    CutsTile {
        dim: usize,
        tile: u64,
        start: Option<u64>,
        divisor: u64,
        size: u64,
    },
    #[error("shape {from:?} cannot be viewed as {to:?} in this layout")]
    BadReshape { from: Vec<u64>, to: Vec<u64> },
    #[error("elements of {from} bits cannot be seen as elements of {to} bits in this layout")]
    BadBitcast { from: u32, to: u32 },
    #[error("expected {expected} indices or dimensions, got {got}")]
    Rank { expected: usize, got: usize },
}

/// One index of a view operation, per dimension.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Index {
    /// The dimension is dropped.
    At(Start),
    Slice(Start, u64),
}

/// A view of an allocation in shared memory; the allocation itself is the view of everything.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SmemView {
    pub bits: u32,
    pub swizzle: Swizzle,
    pub dims: SmallVec<[ViewDim; 4]>,
    /// Constant part of the linear offset, in bits.
    pub offset: u64,
    /// Dynamic parts of the linear offset, strides in bits.
    pub dynamic: SmallVec<[DynTerm; 2]>,
    /// Loose dimensions that an integer index dropped; each contributes the offset of its start.
    pub dropped: SmallVec<[ViewDim; 1]>,
}

impl SmemView {
    /// An allocation of `shape`: tiled by `tiling` in its last dimensions (empty: not tiled), the tiled shape row-major,
    /// swizzled in rows of `swizzle` bytes.
    pub fn new(shape: &[u64], bits: u32, tiling: &[u64], swizzle: u32) -> Result<SmemView, ViewError> {
        let mode = Swizzle::of_bytes(swizzle).ok_or(ViewError::UnknownSwizzle(swizzle))?;
        let untiled = shape.len().checked_sub(tiling.len());
        let bad_tiling = || ViewError::TilingDoesNotDivide {
            shape: shape.to_vec(),
            tiling: tiling.to_vec(),
        };
        let untiled = untiled.ok_or_else(bad_tiling)?;
        if tiling.contains(&0) || shape[untiled..].iter().zip(tiling).any(|(d, t)| d % t != 0) {
            return Err(bad_tiling());
        }
        let minor = tiling.last().or(shape.last()).copied().unwrap_or(1) * u64::from(bits);
        if !mode.is_none() && minor != u64::from(swizzle) * 8 {
            return Err(ViewError::SwizzleWidth {
                swizzle,
                got_bits: minor,
            });
        }
        let mut chains: SmallVec<[Chain<Stride>; 4]> = smallvec![Chain::new(); shape.len()];
        let mut stride = u64::from(bits);
        for (d, &t) in tiling.iter().enumerate().rev() {
            chains[untiled + d].push(Digit::new(t, Stride(stride)));
            stride *= t;
        }
        for (d, &n) in shape.iter().enumerate().rev() {
            let outer = if d >= untiled { n / tiling[d - untiled] } else { n };
            chains[d].push(Digit::new(outer, Stride(stride)));
            stride *= outer;
        }
        let dims = shape.iter().zip(chains).map(|(&n, c)| ViewDim::regular(n, c)).collect();
        Ok(SmemView {
            bits,
            swizzle: mode,
            dims,
            offset: 0,
            dynamic: smallvec![],
            dropped: smallvec![],
        })
    }

    /// A view with given strides (in bits) and no swizzle: GMEM refs are described so too.
    pub fn strided(shape: &[u64], strides: &[u64], bits: u32) -> SmemView {
        let dims = shape
            .iter()
            .zip(strides)
            .map(|(&n, &s)| ViewDim::regular(n, smallvec![Digit::new(n, Stride(s))]))
            .collect();
        SmemView {
            bits,
            swizzle: Swizzle::NONE,
            dims,
            offset: 0,
            dynamic: smallvec![],
            dropped: smallvec![],
        }
    }

    /// A dense row-major array.
    pub fn row_major(shape: &[u64], bits: u32) -> SmemView {
        let mut strides: Dims = smallvec![0; shape.len()];
        let mut stride = u64::from(bits);
        for (s, &n) in strides.iter_mut().zip(shape).rev() {
            *s = stride;
            stride *= n;
        }
        Self::strided(shape, &strides, bits)
    }

    pub fn shape(&self) -> Dims {
        self.dims.iter().map(|d| d.size).collect()
    }
    pub fn rank(&self) -> usize {
        self.dims.len()
    }
    /// No dimension is loose.
    pub fn is_regular(&self) -> bool {
        self.dropped.is_empty() && self.dims.iter().all(|d| d.loose.is_empty())
    }
    /// Whether the first element's linear offset, from which others' are counted, is where it lies.
    pub fn has_plain_start(&self) -> bool {
        self.swizzle.is_none() && self.dims.iter().all(|d| d.loose.is_empty())
    }
    /// Bytes from the view's first to behind its last linear offset.
    pub fn span_bytes(&self) -> u64 {
        if self.dims.iter().any(|d| d.size == 0) {
            return 0;
        }
        let last: u64 = self
            .dims
            .iter()
            .flat_map(|d| &d.chain)
            .map(|d| (d.size - 1) * d.place.0)
            .sum();
        (last + u64::from(self.bits)).div_ceil(8)
    }

    /// The largest power of two (in bits) that surely divides the linear offset of the view's first element.
    pub fn base_alignment(&self) -> u64 {
        let mut all = self.offset;
        for t in &self.dynamic {
            all |= t.multiple;
        }
        for d in self.dims.iter().filter(|d| !d.loose.is_empty()).chain(&self.dropped) {
            for c in &d.chain {
                all |= c.place.0;
            }
        }
        if all == 0 { 1 << 63 } else { 1 << all.trailing_zeros() }
    }

    /// The linear offset in bits, before the swizzle, given the dynamic values.
    pub fn linear_bits(&self, index: &[u64], value: &dyn Fn(super::facts::DynId) -> u64) -> u64 {
        let start = |d: &ViewDim| -> u64 {
            let one = |s: &Start| match *s {
                Start::Static(v) => v,
                Start::Dynamic(id, _) => value(id),
            };
            d.loose.iter().map(one).sum()
        };
        let mut sum = self.offset as i64;
        for t in &self.dynamic {
            sum += t.eval(value(t.value));
        }
        for (d, &i) in self.dims.iter().zip(index) {
            sum += d.offset(i + start(d)) as i64;
        }
        for d in &self.dropped {
            sum += d.offset(start(d)) as i64;
        }
        sum as u64
    }

    /// Byte address (in an allocation that starts at a multiple of 1024) and bit in the byte.
    pub fn address(&self, index: &[u64], value: &dyn Fn(super::facts::DynId) -> u64) -> (u64, u32) {
        let bits = self.linear_bits(index, value);
        (self.swizzle.apply(bits / 8), (bits % 8) as u32)
    }

    // -------------------------------------------------------------------------------------------------------- views

    /// Slices and integer indices; an error where a dimension would become loose.
    pub fn index(&self, indices: &[Index]) -> Result<SmemView, ViewError> {
        self.index_impl(indices, false)
    }

    /// Slices and integer indices that never fail for cutting tiles: dimensions may become loose.
    pub fn index_loosely(&self, indices: &[Index]) -> Result<SmemView, ViewError> {
        self.index_impl(indices, true)
    }

    fn index_impl(&self, indices: &[Index], loosely: bool) -> Result<SmemView, ViewError> {
        if indices.len() != self.dims.len() {
            return Err(ViewError::Rank {
                expected: self.dims.len(),
                got: indices.len(),
            });
        }
        let mut out = SmemView {
            dims: smallvec![],
            ..self.clone()
        };
        for (k, (dim, index)) in self.dims.iter().zip(indices).enumerate() {
            let (start, size, keep) = match *index {
                Index::At(start) => (start, 1, false),
                Index::Slice(start, size) => (start, size, true),
            };
            if let Start::Static(v) = start
                && v + size > dim.size
            {
                return Err(ViewError::OutOfBounds {
                    dim: k,
                    start: v,
                    size,
                    bound: dim.size,
                });
            }
            if start == Start::Static(0) && size == dim.size && keep {
                out.dims.push(dim.clone());
                continue;
            }
            let cut = if dim.loose.is_empty() {
                cut(dim, start, size)
            } else {
                Err(0)
            };
            let new = match cut {
                Ok(cut) => {
                    out.offset += cut.offset;
                    out.dynamic.extend(cut.dynamic);
                    ViewDim::regular(size, cut.chain)
                }
                Err(tile) if !loosely && dim.loose.is_empty() => {
                    let known = match start {
                        Start::Static(v) => Some(v),
                        Start::Dynamic(..) => None,
                    };
                    return Err(ViewError::CutsTile {
                        dim: k,
                        tile,
                        start: known,
                        divisor: start.divisor(),
                        size,
                    });
                }
                Err(_) => {
                    let mut loose = dim.loose.clone();
                    loose.push(start);
                    ViewDim {
                        size,
                        chain: dim.chain.clone(),
                        loose,
                    }
                }
            };
            match (keep, new.loose.is_empty()) {
                (true, _) => out.dims.push(new),
                (false, true) => {}
                (false, false) => out.dropped.push(new),
            }
        }
        Ok(out)
    }

    /// Every `step`-th of the positions of dimension `dim` from `start`, `size` of them. An error where the offsets are not regular
    /// (reverse directions and strides that cut tiles unevenly).
    pub fn every(&self, dim: usize, start: u64, size: u64, step: u64) -> Result<SmemView, ViewError> {
        let d = &self.dims[dim];
        let step = step.max(1);
        let last = start + size.saturating_sub(1) * step;
        if size > 0 && last >= d.size {
            return Err(ViewError::OutOfBounds {
                dim,
                start,
                size: last + 1 - start,
                bound: d.size,
            });
        }
        let uneven = |tile| ViewError::CutsTile {
            dim,
            tile,
            start: Some(start),
            divisor: start,
            size,
        };
        if !d.loose.is_empty() {
            return Err(uneven(1));
        }
        let mut out = self.clone();
        if d.chain.len() == 1 {
            // One stride: any step will do.
            let Stride(stride) = d.chain[0].place;
            out.offset += start * stride;
            out.dims[dim] = ViewDim::regular(size, smallvec![Digit::new(size, Stride(stride * step))]);
            return Ok(out);
        }
        // Else the step counts whole units of the higher digits.
        let (low, high) = digits::split(&d.chain, step).ok_or_else(|| uneven(step))?;
        let low = ViewDim::regular(step, low);
        let high = ViewDim::regular(digits::extent(&high), high);
        let cut = cut(&high, Start::Static(start / step), size).map_err(|tile| uneven(tile * step))?;
        out.offset += low.offset(start % step) + cut.offset;
        out.dims[dim] = ViewDim::regular(size, cut.chain);
        Ok(out)
    }

    /// The same bits as elements of another width; the last dimension grows or shrinks.
    pub fn bitcast(&self, bits: u32) -> Result<SmemView, ViewError> {
        let bad = || ViewError::BadBitcast {
            from: self.bits,
            to: bits,
        };
        let mut out = SmemView { bits, ..self.clone() };
        if bits == self.bits {
            return Ok(out);
        }
        let minor = out.dims.last_mut().filter(|d| d.loose.is_empty()).ok_or_else(bad)?;
        if bits < self.bits {
            let parts = u64::from(self.bits / bits);
            if !self.bits.is_multiple_of(bits) {
                return Err(bad());
            }
            let mut chain: Chain<Stride> = smallvec![Digit::new(parts, Stride(u64::from(bits)))];
            chain.extend(minor.chain.iter().copied());
            *minor = ViewDim::regular(minor.size * parts, chain);
            return Ok(out);
        }
        let parts = u64::from(bits / self.bits);
        let (low, high) = digits::split(&minor.chain, parts).ok_or_else(bad)?;
        let whole = digits::merge(&low).as_slice() == [Digit::new(parts, Stride(u64::from(self.bits)))];
        if !bits.is_multiple_of(self.bits) || !minor.size.is_multiple_of(parts) || !whole {
            return Err(bad());
        }
        *minor = ViewDim::regular(minor.size / parts, high);
        // Elements must not lie across what is their own size in memory.
        let strides = out
            .dims
            .iter()
            .chain(&out.dropped)
            .flat_map(|d| &d.chain)
            .fold(0, |all, c| all | c.place.0);
        let aligned = (strides | self.base_alignment()).is_multiple_of(u64::from(bits));
        if !aligned || u64::from(bits) > out.swizzle.atom().saturating_mul(8) {
            return Err(bad());
        }
        Ok(out)
    }

    /// Dimension `i` of the result is dimension `perm[i]` of this view.
    pub fn transpose(&self, perm: &[usize]) -> SmemView {
        SmemView {
            dims: perm.iter().map(|&p| self.dims[p].clone()).collect(),
            ..self.clone()
        }
    }

    /// Any reshape whose new dimensions can be cut out of the digits.
    pub fn reshape(&self, shape: &[u64]) -> Result<SmemView, ViewError> {
        let from = self.shape();
        if from[..] == *shape {
            return Ok(self.clone());
        }
        let bad = || ViewError::BadReshape {
            from: from.to_vec(),
            to: shape.to_vec(),
        };
        let same = from.iter().product::<u64>() == shape.iter().product::<u64>();
        if !same || self.dims.iter().any(|d| !d.loose.is_empty()) || shape.contains(&0) {
            return Err(bad());
        }
        let mut rest: Chain<Stride> = self.dims.iter().rev().flat_map(|d| d.chain.iter().copied()).collect();
        let mut dims: SmallVec<[ViewDim; 4]> = smallvec![];
        for &n in shape.iter().rev() {
            let (low, high) = digits::split(&digits::merge(&rest), n).ok_or_else(bad)?;
            dims.push(ViewDim::regular(n, low));
            rest = high;
        }
        dims.reverse();
        Ok(SmemView { dims, ..self.clone() })
    }
}

struct Cut {
    offset: u64,
    dynamic: SmallVec<[DynTerm; 2]>,
    chain: Chain<Stride>,
}

/// Cuts `start..start + size` out of a regular dimension; the tile that is in the way if that is irregular.
fn cut(dim: &ViewDim, start: Start, size: u64) -> Result<Cut, u64> {
    let mut out = Cut {
        offset: 0,
        dynamic: smallvec![],
        chain: Chain::new(),
    };
    let mut block = dim.size; // product of the digits up to `k`
    let mut topmost = true;
    // Of a dimension of no elements every index is outside, which is found when it is used.
    if size == 0 || dim.size == 0 {
        return Ok(out);
    }
    for k in (0..dim.chain.len()).rev() {
        let Digit {
            size: m,
            place: Stride(stride),
        } = dim.chain[k];
        let unit = block / m;
        // This digit of the start.
        let add_start = |out: &mut Cut| match start {
            Start::Static(v) => out.offset += v / unit % m * stride,
            Start::Dynamic(value, Fact { divisor, .. }) => {
                let modulus = (!topmost).then_some(m);
                // The quotient is a multiple of divisor / unit when unit divides divisor, and so is its remainder
                // up to what it shares with the modulus.
                let quotient = if divisor % unit == 0 { divisor / unit } else { 1 };
                if modulus.is_some_and(|m| quotient.is_multiple_of(m)) {
                    // This digit of the start is always 0.
                    return;
                }
                let quotient = modulus.map_or(quotient, |m| gcd(quotient, m));
                // Narrow elements are counted in bytes where they are known to fill them.
                let fills = stride < 8 && quotient.saturating_mul(stride).is_multiple_of(8);
                let elements = if fills && 8u64.is_multiple_of(stride) {
                    8 / stride
                } else {
                    1
                };
                out.dynamic.push(DynTerm {
                    value,
                    div: unit * elements,
                    modulus: modulus.map(|m| m / elements),
                    stride: (stride * elements) as i64,
                    multiple: quotient.saturating_mul(stride),
                });
            }
        };
        let stays_inside = match start {
            Start::Static(v) => v / unit == (v + size - 1) / unit,
            Start::Dynamic(_, fact) => size <= gcd(fact.divisor, unit),
        };
        if stays_inside {
            add_start(&mut out);
        } else if start.divisor().is_multiple_of(unit) && size.is_multiple_of(unit) {
            add_start(&mut out);
            out.chain = dim.chain[..k].into();
            out.chain.push(Digit::new(size / unit, Stride(stride)));
            return Ok(out);
        } else {
            return Err(unit);
        }
        block = unit;
        topmost = false;
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::facts::DynId;

    fn none(_: DynId) -> u64 {
        unreachable!("no dynamic values here")
    }

    #[test]
    fn swizzle_periods() {
        for (bytes, period) in [(16, 1), (32, 256), (64, 512), (128, 1024)] {
            let s = Swizzle::of_bytes(bytes).unwrap();
            assert_eq!(s.period(), period);
            for a in 0..4096u64 {
                assert_eq!(s.apply(a + period), s.apply(a) + period);
                assert_eq!(s.apply(s.apply(a)), a);
            }
        }
        assert_eq!(Swizzle::of_bytes(48), None);
    }

    #[test]
    fn tiled_offsets_are_row_major_in_the_tiled_shape() {
        let v = SmemView::new(&[3, 16, 128], 16, &[8, 64], 128).unwrap();
        for (b, i, j) in (0..3).flat_map(|b| (0..16).flat_map(move |i| (0..128).map(move |j| (b, i, j)))) {
            let flat = (((b * 2 + i / 8) * 2 + j / 64) * 8 + i % 8) * 64 + j % 64;
            assert_eq!(v.linear_bits(&[b, i, j], &none), flat * 16);
        }
        assert_eq!(v.span_bytes(), 3 * 16 * 128 * 2);
        assert!(matches!(
            SmemView::new(&[16, 96], 16, &[8, 64], 128),
            Err(ViewError::TilingDoesNotDivide { .. })
        ));
        assert!(matches!(
            SmemView::new(&[16, 64], 16, &[8, 32], 128),
            Err(ViewError::SwizzleWidth { .. })
        ));
    }

    /// Every view operation against direct indexing, static and dynamic starts, regular or not.
    #[test]
    fn views_against_direct_indexing() {
        let shape = [4, 32, 64];
        for (bits, tiling, swizzle) in [
            (16, vec![8, 32], 64),
            (32, vec![8, 32], 128),
            (8, vec![], 16),
            (4, vec![2, 16, 64], 32),
            (64, vec![4, 4], 32),
        ] {
            let full = SmemView::new(&shape, bits, &tiling, swizzle).unwrap();
            for (start, size) in [
                (0u64, 8u64),
                (8, 8),
                (16, 16),
                (4, 4),
                (5, 1),
                (3, 7),
                (0, 24),
                (8, 24),
                (31, 1),
            ] {
                for divisor in [0u64, 1, 2, 4, 8, 16] {
                    let s = match divisor {
                        0 => Start::Static(start),
                        d if start % d != 0 => continue,
                        d => Start::Dynamic(DynId(7), Fact::multiple_of(d)),
                    };
                    let value = |id: DynId| {
                        assert_eq!(id, DynId(7));
                        start
                    };
                    let index = [
                        Index::At(Start::Static(2)),
                        Index::Slice(s, size),
                        Index::Slice(Start::Static(0), 64),
                    ];
                    let regular = full.index(&index);
                    let loose = full.index_loosely(&index).unwrap();
                    if let Ok(v) = &regular {
                        assert!(v.is_regular());
                        assert_eq!(v, &loose);
                    }
                    for (i, j) in (0..size).flat_map(|i| [0, 1, 31, 32, 63].map(|j| (i, j))) {
                        let want = full.address(&[2, start + i, j], &none);
                        assert_eq!(loose.address(&[i, j], &value), want);
                        assert_eq!(loose.transpose(&[1, 0]).address(&[j, i], &value), want);
                        let base = loose.linear_bits(&[0, 0], &value);
                        assert_eq!(base % loose.base_alignment().min(1 << 20), 0);
                    }
                    if let Ok(v) = &regular {
                        if let Ok(r) = v.reshape(&[size, 8, 8]) {
                            assert_eq!(r.address(&[size - 1, 3, 5], &value), v.address(&[size - 1, 29], &value));
                            let back = r.reshape(&[size, 64]).unwrap();
                            assert_eq!(&back, v);
                        }
                        // A second slice of the slice.
                        let half = size.div_ceil(2);
                        let again = v
                            .index_loosely(&[
                                Index::Slice(Start::Static(size - half), half),
                                Index::At(Start::Static(9)),
                            ])
                            .unwrap();
                        for i in 0..half {
                            let want = full.address(&[2, start + size - half + i, 9], &none);
                            assert_eq!(again.address(&[i], &value), want);
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn strided_slices_and_bitcasts() {
        for (tiling, swizzle) in [(vec![], 16), (vec![8, 64], 128), (vec![8, 16], 32)] {
            let v = SmemView::new(&[32, 128], 16, &tiling, swizzle).unwrap();
            let mut taken = 0;
            for (dim, start, size, step) in [
                (0, 0, 16, 2),
                (0, 1, 8, 4),
                (0, 3, 4, 8),
                (0, 5, 3, 3),
                (1, 0, 64, 2),
                (1, 7, 2, 64),
                (1, 2, 8, 16),
            ] {
                let Ok(s) = v.every(dim, start, size, step) else {
                    continue;
                };
                taken += 1;
                for (i, j) in (0..s.dims[0].size).flat_map(|i| (0..s.dims[1].size).map(move |j| (i, j))) {
                    let mut index = [i, j];
                    index[dim] = start + index[dim] * step;
                    assert_eq!(s.address(&[i, j], &none), v.address(&index, &none));
                }
            }
            assert!(taken >= 5, "{taken}");
            assert!(v.every(0, 3, 16, 2).is_err());
            for bits in [4, 8, 32, 64] {
                let b = v.bitcast(bits).unwrap();
                for (i, bit) in (0..32).flat_map(|i| (0..128 * 16).step_by(16).map(move |b| (i, b))) {
                    let (whole, part) = v.address(&[i, bit / 16], &none);
                    let (byte, low) = b.address(&[i, bit / u64::from(bits)], &none);
                    let inside = bit % u64::from(bits);
                    assert_eq!(whole * 8 + u64::from(part), byte * 8 + u64::from(low) + inside);
                }
                assert_eq!(b.bitcast(16).unwrap(), v);
            }
            assert!(v.transpose(&[1, 0]).bitcast(32).is_err());
        }
    }

    #[test]
    fn aligned_slices_are_regular_and_others_are_refused() {
        let v = SmemView::new(&[64, 128], 16, &[8, 64], 128).unwrap();
        let rows = |start, size| [Index::Slice(start, size), Index::Slice(Start::Static(0), 128)];
        let dynamic = |d| Start::Dynamic(DynId(0), Fact::multiple_of(d));
        assert!(v.index(&rows(dynamic(8), 16)).is_ok());
        // Within one tile: a single row needs no fact.
        assert!(v.index(&rows(dynamic(1), 1)).is_ok());
        assert!(v.index(&rows(dynamic(2), 2)).is_ok());
        let refused = v.index(&rows(dynamic(4), 16)).unwrap_err();
        assert_eq!(
            refused,
            ViewError::CutsTile {
                dim: 0,
                tile: 8,
                start: None,
                divisor: 4,
                size: 16
            }
        );
        let text = refused.to_string();
        assert!(text.contains("pl.multiple_of") && text.contains("tiles of 8"), "{text}");
        assert!(v.index(&rows(Start::Static(60), 16)).is_err());
    }
}
