//! Operands of `wgmma`, and of `tcgen05`, in shared memory: matrix descriptors and how they advance. The fields of both are the same.
//!
//! A descriptor (PTX ISA, "Asynchronous Warpgroup Level Matrix Shared Memory Layout", Matrix Descriptor Format) names a start
//! address and two byte strides over *core matrices* of 8 rows × 16 bytes. In our terms, for a view whose dimensions are `mn`
//! (M of A or N of B) and `k`, with `E` elements in a row of the swizzle:
//!
//! | major | `k` digits | `mn` digits | LBO | SBO |
//! |---|---|---|---|---|
//! | K | `[E: contiguous] [tiles]` | `[8: one swizzle row each] [tiles: SBO]` | not used | stride of 8-row groups along `mn` |
//! | MN | `[8: one swizzle row each] [tiles: SBO]` | `[E: contiguous] [tiles: LBO]` | stride of `E`-element blocks along `mn` | stride of 8-row groups along `k` |
//!
//! Without a swizzle the rows have 16 bytes (core matrices of 8 × 16 bytes, 128 bytes each), one instruction takes two of them along
//! K, and the strides change places: SBO is the one along `mn`, LBO the one along `k`, for both majors (CUTLASS's canonical layouts
//! have it so; not measured here).
//!
//! One instruction takes 32 bytes of K. Moving along K or MN moves the start address by the linear offset: the hardware applies the
//! swizzle to whole addresses, so the pattern stays anchored as long as the start lies in the first row of a group of 8.
use super::digits::{self, Chain};
use super::smem_layout::{SmemView, Stride, Swizzle, ViewDim};

/// Which dimension is contiguous in memory.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Major {
    K,
    /// "Transposed" in PTX; of wgmma 16-bit types only.
    Mn,
}

/// Which unit reads it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Unit {
    Wgmma,
    Tcgen05,
}

impl Unit {
    /// Whether operands of so many bits may be contiguous along M or N.
    fn transposes(self, bits: u64) -> bool {
        match self {
            Unit::Wgmma => bits == 16,
            Unit::Tcgen05 => matches!(bits, 8 | 16),
        }
    }
}

/// An operand: everything of its descriptors but the start address.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Operand {
    pub major: Major,
    /// 32, 64 or 128; 16 = none.
    pub swizzle: u32,
    /// Leading-dimension byte offset.
    pub leading: u32,
    /// Stride-dimension byte offset.
    pub stride: u32,
    mn: Chain<Stride>,
    k: Chain<Stride>,
}

/// Why a view cannot be an operand.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum OperandError {
    #[error("the buffer's swizzle is none that wgmma knows")]
    UnknownSwizzle,
    #[error("neither dimension is contiguous in tiles of 8 rows of {swizzle} bytes")]
    NotTiled { swizzle: u32 },
    #[error("{bits}-bit operands must be contiguous along K (wgmma transposes 16-bit operands alone)")]
    Transposed { bits: u32 },
    #[error("extent {extent} of {dim} is not a multiple of {multiple}")]
    Extent {
        dim: &'static str,
        extent: u64,
        multiple: u64,
    },
    #[error("the view starts inside a group of 8 rows: its offset must be a multiple of {multiple} bytes")]
    Start { multiple: u64 },
    #[error("the {dim} dimension is cut into tiles of uneven distance")]
    Uneven { dim: &'static str },
}

impl Operand {
    /// The operand that a two-dimensional view is; `mn_span` is the M or N of one instruction. Instructions start at multiples of
    /// `mn_span` and of 32 bytes of K.
    pub fn of(unit: Unit, view: &SmemView, mn: usize, k: usize, mn_span: u64) -> Result<Operand, OperandError> {
        let bits = u64::from(view.bits);
        let swizzle = view.swizzle.bytes();
        if Swizzle::of_bytes(swizzle) != Some(view.swizzle) {
            return Err(OperandError::UnknownSwizzle);
        }
        let row = u64::from(swizzle) * 8;
        let elements = row / bits;
        let per_instruction = 256 / bits;
        let (mn_dim, k_dim) = (&view.dims[mn], &view.dims[k]);
        if k_dim.size % per_instruction != 0 {
            return Err(OperandError::Extent {
                dim: "K",
                extent: k_dim.size,
                multiple: per_instruction,
            });
        }
        if mn_dim.size % mn_span != 0 {
            return Err(OperandError::Extent {
                dim: "M or N",
                extent: mn_dim.size,
                multiple: mn_span,
            });
        }
        if !view.is_regular() {
            return Err(OperandError::Start { multiple: row });
        }
        let contiguous = |dim: &ViewDim| dim.chain.first().is_some_and(|d| d.place.0 == bits);
        let major = match (contiguous(k_dim), contiguous(mn_dim)) {
            (true, _) => Major::K,
            (false, true) if unit.transposes(bits) => Major::Mn,
            (false, true) => return Err(OperandError::Transposed { bits: view.bits }),
            (false, false) => return Err(OperandError::NotTiled { swizzle }),
        };
        let (wide, rows) = match major {
            Major::K => (k_dim, mn_dim),
            Major::Mn => (mn_dim, k_dim),
        };
        // The contiguous dimension: whole rows of the swizzle, or, along K, a part of one.
        let not_tiled = OperandError::NotTiled { swizzle };
        let in_row = elements.min(wide.size);
        let (low, _) = digits::split(&wide.chain, in_row).ok_or(not_tiled.clone())?;
        if digits::merge(&low).as_slice() != [digits::Digit::new(in_row, Stride(bits))] {
            return Err(not_tiled);
        }
        if wide.size > elements && wide.size % elements != 0 {
            return Err(not_tiled);
        }
        // The other one: groups of 8 rows, each row a swizzle row.
        let (low, high) = digits::split(&rows.chain, 8.min(rows.size)).ok_or(not_tiled.clone())?;
        if rows.size % 8 != 0 || digits::merge(&low).as_slice() != [digits::Digit::new(8, Stride(row))] {
            return Err(not_tiled);
        }
        // The pattern is anchored at multiples of 8 rows; only K-major operands may start inside a row, at 16-byte steps.
        let period = row * 8;
        let inside = view.offset % period;
        let anchored = match major {
            Major::K => inside < row && inside.is_multiple_of(128),
            Major::Mn => inside == 0,
        };
        let moves = view.dynamic.iter().all(|t| t.multiple % period == 0);
        if !anchored || !moves {
            return Err(OperandError::Start { multiple: period / 8 });
        }
        let uniform = |chain: &Chain<Stride>, count: u64, dim: &'static str| -> Result<u32, OperandError> {
            if count <= 1 {
                return Ok(0);
            }
            let (low, _) = digits::split(chain, count).ok_or(OperandError::Uneven { dim })?;
            match digits::merge(&low).as_slice() {
                [one] => Ok((one.place.0 / 8) as u32),
                _ => Err(OperandError::Uneven { dim }),
            }
        };
        let (_, tiles) = digits::split(&wide.chain, in_row).ok_or(not_tiled)?;
        let (along_mn, along_k) = match major {
            Major::K => {
                let units = per_instruction.div_ceil(elements);
                (uniform(&high, mn_span / 8, "M or N")?, uniform(&tiles, units, "K")?)
            }
            Major::Mn => {
                // An instruction that starts inside a block must end there.
                if mn_dim.size > mn_span && mn_span % elements != 0 && elements % mn_span != 0 {
                    return Err(OperandError::Uneven { dim: "M or N" });
                }
                let blocks = mn_span.div_ceil(elements);
                (
                    uniform(&tiles, blocks, "M or N")?,
                    uniform(&high, per_instruction / 8, "K")?,
                )
            }
        };
        let (leading, stride) = match (view.swizzle.is_none(), major) {
            (true, _) | (false, Major::K) => (along_k, along_mn),
            (false, Major::Mn) => (along_mn, along_k),
        };
        Ok(Operand {
            major,
            swizzle,
            leading,
            stride,
            mn: mn_dim.chain.clone(),
            k: k_dim.chain.clone(),
        })
    }

    /// The operand with the widest instruction that `n` columns of B allow: its N, and the operand.
    pub fn widest(view: &SmemView, mn: usize, k: usize, integer: bool) -> Result<(u64, Operand), OperandError> {
        Self::widest_of(Unit::Wgmma, view, mn, k, view.dims[mn].size, integer)
    }

    /// The same of instructions that together have `n` of its columns.
    pub fn widest_of(
        unit: Unit,
        view: &SmemView,
        mn: usize,
        k: usize,
        n: u64,
        integer: bool,
    ) -> Result<(u64, Operand), OperandError> {
        let row = u64::from(view.swizzle.bytes() * 8 / view.bits);
        let mut first = None;
        for block in [1, row] {
            // A part of the columns ends inside of a block, perhaps.
            let whole = n == view.dims[mn].size;
            let Some(span) = instruction_n_of(n, block, whole, integer) else {
                continue;
            };
            match Operand::of(unit, view, mn, k, span) {
                Ok(operand) => return Ok((span, operand)),
                Err(error) => first = first.or(Some(error)),
            }
        }
        Err(first.unwrap_or(OperandError::Extent {
            dim: "N",
            extent: n,
            multiple: 8,
        }))
    }

    /// The descriptor without its start address.
    pub fn descriptor(&self) -> u64 {
        let mode: u64 = match self.swizzle {
            128 => 1,
            64 => 2,
            32 => 3,
            _ => 0,
        };
        // LBO is ignored for swizzled K-major layouts; CUTLASS writes 1.
        let leading = if self.leading == 0 {
            1
        } else {
            u64::from(self.leading >> 4)
        };
        let stride = u64::from(self.stride >> 4);
        (leading & 0x3fff) << 16 | (stride & 0x3fff) << 32 | mode << 62
    }

    /// Bytes from the view's start to (`mn`, `k`).
    pub fn offset(&self, mn: u64, k: u64) -> u32 {
        ((offset(&self.mn, mn) + offset(&self.k, k)) / 8) as u32
    }
}

fn offset(chain: &Chain<Stride>, mut index: u64) -> u64 {
    let mut sum = 0;
    for d in chain {
        sum += index % d.size * d.place.0;
        index /= d.size;
    }
    sum
}

/// The N of one instruction for an operand of `n` columns: the largest legal divisor.
pub fn instruction_n(n: u64) -> Option<u64> {
    (1..=32).rev().map(|i| i * 8).find(|c| n.is_multiple_of(*c))
}

/// The same with what else restricts N: blocks of `block` columns that instructions must not straddle (N-major operands; 1: no
/// blocks), and integer types, which have no odd multiples of 8 above 24 (PTX ISA, wgmma.mma_async, `.shape`).
pub fn instruction_n_for(n: u64, block: u64, integer: bool) -> Option<u64> {
    instruction_n_of(n, block, true, integer)
}

/// The same; not `whole`: the columns are a part of the operand's.
fn instruction_n_of(n: u64, block: u64, whole: bool, integer: bool) -> Option<u64> {
    let legal = |c: u64| {
        let blocks = whole && c == n || c.is_multiple_of(block) || block.is_multiple_of(c);
        n.is_multiple_of(c) && blocks && (!integer || c <= 24 || c.is_multiple_of(16))
    };
    (1..=32).rev().map(|i| i * 8).find(|c| legal(*c))
}

#[cfg(test)]
mod tests {
    use super::super::facts::{DynId, Fact, Start};
    use super::super::smem_layout::Index;
    use super::*;

    /// What the hardware makes of a descriptor: the address of byte `byte` of element (mn, k) of an instruction, by the canonical
    /// layouts of the PTX ISA, from the descriptor's bits alone.
    fn hardware_address(descriptor: u64, major: Major, bits: u64, mn: u64, k: u64, byte: u64) -> u64 {
        let field = |lo: u32| (descriptor >> lo & 0x3fff) << 4;
        let (start, leading, stride) = (field(0), field(16), field(32));
        assert_eq!(descriptor >> 46 & 0xffff, 0, "base offset and reserved bits");
        let row = match descriptor >> 62 {
            0 => 16,
            1 => 128,
            2 => 64,
            _ => 32,
        };
        // In units of 8 rows x one row of the swizzle.
        let (wide, rows) = match major {
            Major::K => (k * bits / 8 + byte, mn),
            Major::Mn => (mn * bits / 8 + byte, k),
        };
        let (wide_stride, rows_stride) = match (row, major) {
            // CUTLASS, canonical layouts: K-major ((8,n),2):((1,SBO),LBO), MN-major ((1,n),(8,k)):((X,SBO),(1,LBO)).
            (16, Major::K) => (leading, stride),
            (16, Major::Mn) => (stride, leading),
            // One row of the swizzle holds the K of an instruction: LBO is not used.
            (_, Major::K) => {
                assert!(k * bits / 8 < 32);
                return xor(start + rows / 8 * stride + rows % 8 * row + wide, row);
            }
            (_, Major::Mn) => (leading, stride),
        };
        xor(
            start + wide / row * wide_stride + wide % row + rows / 8 * rows_stride + rows % 8 * row,
            row,
        )
    }

    fn xor(linear: u64, row: u64) -> u64 {
        linear ^ (linear >> 7 & (row / 16 - 1)) << 4
    }

    /// All instructions over a view, every byte.
    fn check(unit: Unit, view: &SmemView, mn: usize, k: usize, span: u64, value: u64) -> Result<Operand, OperandError> {
        let bits = u64::from(view.bits);
        let op = Operand::of(unit, view, mn, k, span)?;
        let step = 256 / bits;
        let at = |m: u64, kk: u64| {
            let mut index = [0, 0];
            (index[mn], index[k]) = (m, kk);
            index
        };
        let base = view.linear_bits(&[0, 0], &|_| value) / 8;
        for m0 in (0..view.dims[mn].size).step_by(span as usize) {
            for k0 in (0..view.dims[k].size).step_by(step as usize) {
                let start = base + u64::from(op.offset(m0, k0));
                assert_eq!(start % 16, 0);
                let descriptor = op.descriptor() | start >> 4;
                for (m, kk) in (0..span).flat_map(|m| (0..step).map(move |k| (m, k))) {
                    let want = view.address(&at(m0 + m, k0 + kk), &|_| value).0;
                    for byte in 0..bits / 8 {
                        let got = hardware_address(descriptor, op.major, bits, m, kk, byte);
                        assert_eq!(got, want + byte, "{op:?} block ({m0}, {k0}) element ({m}, {kk})");
                    }
                }
            }
        }
        Ok(op)
    }

    #[test]
    fn descriptors_reach_every_element() {
        let mut legal = 0;
        for bits in [8u64, 16, 32] {
            for swizzle in [16u32, 32, 64, 128] {
                let e = u64::from(swizzle) * 8 / bits;
                for (rows, columns) in [(64, e.max(256 / bits)), (128, 2 * e), (192, 4 * e), (256, 4 * e)] {
                    if columns % (256 / bits) != 0 {
                        continue;
                    }
                    let view = SmemView::new(&[rows, columns], bits as u32, &[8, e], swizzle).unwrap();
                    for span in [8, 24, 64, rows] {
                        if rows % span != 0 {
                            continue;
                        }
                        // K-major: rows are M or N. The same memory seen as (K, N).
                        let op = check(Unit::Wgmma, &view, 0, 1, span, 0).unwrap();
                        assert_eq!(op.major, Major::K);
                        assert_eq!(check(Unit::Wgmma, &view.transpose(&[1, 0]), 1, 0, span, 0).unwrap(), op);
                        legal += 1;
                    }
                    // MN-major: rows are K.
                    for span in [8, e, 2 * e, 64, columns] {
                        if columns % span != 0 || span > 256 {
                            continue;
                        }
                        match check(Unit::Wgmma, &view, 1, 0, span, 0) {
                            Ok(op) => {
                                assert_eq!((bits, op.major), (16, Major::Mn));
                                legal += 1;
                            }
                            Err(OperandError::Transposed { .. }) => assert_ne!(bits, 16),
                            Err(error) => panic!("{bits} {swizzle} {rows}x{columns} {span}: {error}"),
                        }
                    }
                }
            }
        }
        assert!(legal > 150, "{legal}");
    }

    #[test]
    fn views_of_rings_and_of_parts() {
        let ring = SmemView::new(&[4, 128, 128], 16, &[8, 64], 128).unwrap();
        let all = |n| Index::Slice(Start::Static(0), n);
        let slot = |s| Index::At(s);
        let dynamic = Start::Dynamic(DynId(0), Fact::UNKNOWN);
        for (s, value) in [(Start::Static(3), 0), (dynamic, 2)] {
            for rows in [all(128), Index::Slice(Start::Static(64), 64)] {
                for columns in [
                    all(128),
                    Index::Slice(Start::Static(64), 64),
                    Index::Slice(Start::Static(32), 32),
                ] {
                    let view = ring.index(&[slot(s), rows, columns]).unwrap();
                    check(Unit::Wgmma, &view, 0, 1, 64, value).unwrap();
                    // N-major starts at whole rows of the swizzle only.
                    match check(Unit::Wgmma, &view, 1, 0, view.dims[1].size.min(64), value) {
                        Ok(_) => assert_eq!(view.dims[1].size % 64, 0),
                        Err(error) => assert!(matches!(error, OperandError::Start { .. }), "{error}"),
                    }
                }
            }
        }
        let inside = ring
            .index(&[slot(dynamic), Index::Slice(Start::Static(4), 4), all(64)])
            .unwrap();
        assert!(Operand::of(Unit::Wgmma, &inside, 0, 1, 4).is_err());
        let moved = Index::Slice(Start::Dynamic(DynId(0), Fact::multiple_of(1)), 1);
        let moved = ring.index(&[slot(Start::Static(0)), moved, all(64)]);
        assert!(moved.is_err() || Operand::of(Unit::Wgmma, &moved.unwrap(), 0, 1, 1).is_err());
    }

    #[test]
    fn what_is_no_operand_says_why() {
        let plain = SmemView::new(&[64, 64], 16, &[], 0).unwrap();
        assert_eq!(
            Operand::of(Unit::Wgmma, &plain, 0, 1, 64),
            Err(OperandError::NotTiled { swizzle: 16 })
        );
        let tall = SmemView::new(&[64, 64], 16, &[16, 64], 128).unwrap();
        assert!(
            Operand::of(Unit::Wgmma, &tall, 0, 1, 64).is_ok(),
            "rows of a tile of 16 are rows of two tiles of 8"
        );
        let view = SmemView::new(&[64, 320], 16, &[8, 64], 128).unwrap();
        // 160 columns are two and a half blocks.
        assert_eq!(
            Operand::of(Unit::Wgmma, &view, 1, 0, 160),
            Err(OperandError::Uneven { dim: "M or N" })
        );
        assert!(check(Unit::Wgmma, &view, 1, 0, 64, 0).is_ok());
        assert_eq!(Operand::widest(&view, 1, 0, false).unwrap().0, 64);
        assert_eq!(Operand::widest(&view.transpose(&[1, 0]), 0, 1, false).unwrap().0, 64);
        assert_eq!(Operand::widest(&view, 0, 1, false).unwrap().0, 64);
        assert_eq!(
            Operand::of(Unit::Wgmma, &view, 0, 1, 48),
            Err(OperandError::Extent {
                dim: "M or N",
                extent: 64,
                multiple: 48
            })
        );
    }

    #[test]
    fn the_widest_instruction_is_taken() {
        assert_eq!(instruction_n(256), Some(256));
        assert_eq!(instruction_n(512), Some(256));
        assert_eq!(instruction_n(24), Some(24));
        assert_eq!(instruction_n(272), Some(136));
        assert_eq!(instruction_n(12), None);
        assert_eq!(instruction_n_for(320, 64, false), Some(64));
        assert_eq!(instruction_n_for(320, 1, false), Some(160));
        assert_eq!(instruction_n_for(192, 64, false), Some(192));
        assert_eq!(instruction_n_for(272, 1, true), Some(16));
        assert_eq!(instruction_n_for(24, 1, true), Some(24));
    }
}
