//! `wgmma` operands in shared memory: matrix descriptors and how they advance.
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
//! One instruction takes 32 bytes of K. Moving along K or MN moves the start address by the linear offset: the hardware applies the
//! swizzle to whole addresses, so the pattern stays anchored as long as the start lies in the first row of a group of 8.
use super::digits::{self, Chain};
use super::smem_layout::{SmemView, Stride, ViewDim};

/// Which dimension is contiguous in memory.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Major {
    K,
    /// "Transposed" in PTX; 16-bit types only.
    Mn,
}

/// An operand: everything of its descriptors but the start address.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Operand {
    pub major: Major,
    /// 32, 64 or 128.
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
    #[error("the buffer has no 32-, 64- or 128-byte swizzle")]
    NoSwizzle,
    #[error("neither dimension is contiguous in tiles of 8 rows of {swizzle} bytes")]
    NotTiled { swizzle: u32 },
    #[error("{bits}-bit operands must be contiguous along K (only 16-bit operands can be transposed)")]
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
    /// The operand that a two-dimensional view is; `mn_span` is the M or N of one instruction.
    pub fn of(view: &SmemView, mn: usize, k: usize, mn_span: u64) -> Result<Operand, OperandError> {
        let bits = u64::from(view.bits);
        let swizzle = view.swizzle.bytes();
        if view.swizzle.is_none() || swizzle < 32 {
            return Err(OperandError::NoSwizzle);
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
            (false, true) if bits == 16 => Major::Mn,
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
        let (leading, stride) = match major {
            Major::K => (0, uniform(&high, mn_span / 8, "M or N")?),
            Major::Mn => {
                let blocks = mn_span.div_ceil(elements);
                let (_, tiles) = digits::split(&wide.chain, in_row).ok_or(not_tiled)?;
                (
                    uniform(&tiles, blocks, "M or N")?,
                    uniform(&high, per_instruction / 8, "K")?,
                )
            }
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

    /// The descriptor without its start address.
    pub fn descriptor(&self) -> u64 {
        let mode: u64 = match self.swizzle {
            128 => 1,
            64 => 2,
            _ => 3,
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

#[cfg(test)]
mod tests {
    use super::super::facts::Start;
    use super::super::smem_layout::Index;
    use super::*;

    /// Where the hardware looks for element (mn, k) of an instruction, from the PTX description of the canonical layouts.
    fn hardware_address(op: &Operand, start: u64, bits: u64, mn: u64, k: u64) -> u64 {
        let row = u64::from(op.swizzle);
        let elements = row * 8 / bits;
        let linear = match op.major {
            Major::K => start + mn / 8 * u64::from(op.stride) + mn % 8 * row + k * bits / 8,
            Major::Mn => {
                start
                    + mn / elements * u64::from(op.leading)
                    + mn % elements * bits / 8
                    + k / 8 * u64::from(op.stride)
                    + k % 8 * row
            }
        };
        let mask = row / 16 - 1;
        linear ^ (linear >> 7 & mask) << 4
    }

    #[test]
    fn descriptors_reach_every_element() {
        for (bits, swizzle) in [
            (16u64, 128u32),
            (16, 64),
            (16, 32),
            (8, 128),
            (8, 32),
            (32, 128),
            (32, 64),
        ] {
            let e = u64::from(swizzle) * 8 / bits;
            for (rows, cols) in [(64, e), (128, 2 * e), (256, 4 * e)] {
                let view = SmemView::new(&[rows, cols], bits as u32, &[8, e], swizzle).unwrap();
                // K-major: rows are M or N.
                let step = 256 / bits;
                let op = Operand::of(&view, 0, 1, 64).unwrap();
                for (m0, k0) in [(0, 0), (rows - 64, cols - step), (0, step % cols)] {
                    for (m, k) in [(0, 0), (1, 1), (63, step - 1), (17, 3)] {
                        let start = u64::from(op.offset(m0, k0));
                        let want = view.address(&[m0 + m, k0 + k], &|_| 0).0;
                        assert_eq!(
                            hardware_address(&op, start, bits, m, k),
                            want,
                            "{bits} {swizzle} {rows}x{cols}"
                        );
                    }
                }
                let t = Operand::of(&view, 1, 0, 8);
                if bits != 16 {
                    assert!(matches!(t, Err(OperandError::Transposed { .. })));
                    continue;
                }
                // MN-major: rows are K.
                let span = cols.min(256);
                let op = Operand::of(&view, 1, 0, span).unwrap();
                for (n0, k0) in [(0, 0), (cols - span, rows - 16), (0, 16)] {
                    for (n, k) in [(0, 0), (1, 1), (span - 1, 15), (span / 2, 9)] {
                        let start = u64::from(op.offset(n0, k0));
                        let want = view.address(&[k0 + k, n0 + n], &|_| 0).0;
                        assert_eq!(
                            hardware_address(&op, start, bits, n, k),
                            want,
                            "{bits} {swizzle} {rows}x{cols} transposed"
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn a_view_that_starts_inside_a_group_of_rows_is_refused() {
        let view = SmemView::new(&[3, 128, 64], 16, &[8, 64], 128).unwrap();
        let slot = view.index(&[
            Index::At(Start::Static(1)),
            Index::Slice(Start::Static(64), 64),
            Index::Slice(Start::Static(0), 64),
        ]);
        assert!(Operand::of(&slot.unwrap(), 0, 1, 64).is_ok());
        let plain = SmemView::new(&[64, 64], 16, &[], 0).unwrap();
        assert_eq!(Operand::of(&plain, 0, 1, 64), Err(OperandError::NoSwizzle));
    }

    #[test]
    fn the_widest_instruction_is_taken() {
        assert_eq!(instruction_n(256), Some(256));
        assert_eq!(instruction_n(512), Some(256));
        assert_eq!(instruction_n(24), Some(24));
        assert_eq!(instruction_n(272), Some(136));
        assert_eq!(instruction_n(12), None);
    }
}
