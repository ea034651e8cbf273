//! Types of values, what is known about scalars, and layouts as users write them.
use crate::dtype::DType;
use smallvec::SmallVec;
use std::fmt;

/// The extents of an array, outermost first.
pub type Shape = SmallVec<[u64; 4]>;

/// Number of elements of a shape. Shapes in a kernel are validated at import, so this does not overflow.
pub fn num_elements(shape: &[u64]) -> u64 {
    shape.iter().product()
}

/// The type of a value.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Type {
    /// One number, bit-equal in all lanes of the group that [`ValueData::group`](super::ValueData) names.
    Scalar(DType),
    /// An array of rank ≥ 1, distributed over the lanes of the executing group by a layout chosen later.
    Array { dtype: DType, shape: Shape },
    /// A wgmma accumulator in registers. Linear: at most one use on every path.
    Acc { dtype: DType, shape: Shape },
}

impl Type {
    /// The type of an array of this shape; of rank 0: a scalar.
    pub fn of(dtype: DType, shape: impl Into<Shape>) -> Type {
        let shape = shape.into();
        if shape.is_empty() {
            Type::Scalar(dtype)
        } else {
            Type::Array { dtype, shape }
        }
    }

    pub fn dtype(&self) -> DType {
        match self {
            Type::Scalar(dtype) | Type::Array { dtype, .. } | Type::Acc { dtype, .. } => *dtype,
        }
    }

    /// The extents; empty for a scalar.
    pub fn shape(&self) -> &[u64] {
        match self {
            Type::Scalar(_) => &[],
            Type::Array { shape, .. } | Type::Acc { shape, .. } => shape,
        }
    }

    pub fn is_scalar(&self) -> bool {
        matches!(self, Type::Scalar(_))
    }

    pub fn is_acc(&self) -> bool {
        matches!(self, Type::Acc { .. })
    }

    /// The same kind and shape with another element type.
    pub fn with_dtype(&self, dtype: DType) -> Type {
        match self {
            Type::Scalar(_) => Type::Scalar(dtype),
            Type::Array { shape, .. } => Type::Array {
                dtype,
                shape: shape.clone(),
            },
            Type::Acc { shape, .. } => Type::Acc {
                dtype,
                shape: shape.clone(),
            },
        }
    }

    /// 32-bit registers of a thread of a warpgroup that hold it, where elements have at least `bits` and there is no layout yet. A vector is one of
    /// an accumulator's rows: four threads have an element.
    pub fn words(&self, bits: u64) -> u64 {
        let bits = u64::from(self.dtype().bits()).max(bits);
        match *self.shape() {
            [] => bits.div_ceil(32),
            [n] => (n * bits).div_ceil(32 * 32),
            ref shape => (shape.iter().product::<u64>() * bits).div_ceil(128 * 32),
        }
    }
}

/// Writes `f32[64,128]`; `f32` for a scalar.
pub fn write_array(f: &mut impl fmt::Write, dtype: impl fmt::Display, shape: &[u64]) -> fmt::Result {
    write!(f, "{dtype}")?;
    if !shape.is_empty() {
        f.write_str("[")?;
        for (i, n) in shape.iter().enumerate() {
            if i > 0 {
                f.write_str(",")?;
            }
            write!(f, "{n}")?;
        }
        f.write_str("]")?;
    }
    Ok(())
}

impl fmt::Display for Type {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Type::Scalar(dtype) => write!(f, "{dtype}"),
            Type::Array { dtype, shape } => write_array(f, dtype, shape),
            Type::Acc { dtype, shape } => {
                f.write_str("acc ")?;
                write_array(f, dtype, shape)
            }
        }
    }
}

/// What a reference's elements are.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Elem {
    Data(DType),
    Barrier,
    Semaphore,
}

impl Elem {
    pub fn dtype(self) -> Option<DType> {
        match self {
            Elem::Data(dtype) => Some(dtype),
            Elem::Barrier | Elem::Semaphore => None,
        }
    }
}

impl fmt::Display for Elem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Elem::Data(dtype) => write!(f, "{dtype}"),
            Elem::Barrier => f.write_str("barrier"),
            Elem::Semaphore => f.write_str("semaphore"),
        }
    }
}

/// Who executes a region together, or over whom a value is uniform.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Group {
    /// 32 lanes.
    Warp,
    /// 4 warps: a Pallas thread.
    Warpgroup,
    /// All warpgroups of a block.
    Block,
}

impl fmt::Display for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Group::Warp => "warp",
            Group::Warpgroup => "warpgroup",
            Group::Block => "block",
        })
    }
}

/// What is known about an integer (or bool) scalar: `lo ≤ x ≤ hi` and `divisor` divides x.
///
/// The numbers are the mathematical value that the bits stand for under the scalar's type, of any integer type.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Facts {
    pub lo: i128,
    pub hi: i128,
    /// At least 1; 0 for the constant 0, which everything divides.
    pub divisor: u64,
}

impl Facts {
    /// What holds for every integer of every type.
    pub const UNKNOWN: Facts = Facts {
        lo: i64::MIN as i128,
        hi: u64::MAX as i128,
        divisor: 1,
    };

    /// `x` is a number of some integer type.
    pub fn constant(x: impl Into<i128>) -> Facts {
        let x = x.into();
        Facts {
            lo: x,
            hi: x,
            divisor: x.unsigned_abs() as u64,
        }
    }

    pub fn range(lo: impl Into<i128>, hi: impl Into<i128>) -> Facts {
        Facts {
            lo: lo.into(),
            hi: hi.into(),
            divisor: 1,
        }
    }

    /// The value, if only one is possible.
    pub fn only(&self) -> Option<i128> {
        (self.lo == self.hi).then_some(self.lo)
    }

    /// The value, if only one is possible and it is an i64.
    pub fn as_constant(&self) -> Option<i64> {
        self.only().and_then(|x| x.try_into().ok())
    }

    /// The least and the greatest value; those of a u64 that are beyond i64 as its greatest.
    pub fn bounds_i64(&self) -> (i64, i64) {
        let clamp = |x: i128| x.clamp(i64::MIN.into(), i64::MAX.into()) as i64;
        (clamp(self.lo), clamp(self.hi))
    }

    /// Whether every possible value is in the range.
    pub fn within(&self, lo: impl Into<i128>, hi: impl Into<i128>) -> bool {
        lo.into() <= self.lo && self.hi <= hi.into()
    }

    /// Whether every possible value is a multiple of `n`.
    pub fn is_multiple_of(&self, n: u64) -> bool {
        n != 0 && self.divisor.is_multiple_of(n)
    }

    /// All values of `dtype`.
    pub fn of_dtype(dtype: DType) -> Facts {
        let bits = dtype.bits();
        match dtype {
            DType::Bool => Facts::range(0, 1),
            d if d.is_unsigned_int() => Facts::range(0, (1i128 << bits) - 1),
            d if d.is_signed_int() => Facts::range(-(1i128 << (bits - 1)), (1i128 << (bits - 1)) - 1),
            _ => Facts::UNKNOWN,
        }
    }
}

/// A register or TMEM layout as the user wrote it; `layout/` gives it meaning.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum LayoutSpec {
    /// Mosaic's tiled layout (dims are negative indices into the tiled shape). `name`: "WGMMA", … or empty.
    Tiled {
        name: String,
        tiling: Vec<Vec<u64>>,
        warp_dims: Vec<LayoutDim>,
        lane_dims: Vec<LayoutDim>,
        vector_dim: i64,
    },
    /// The flattened array, `vec` consecutive elements a lane.
    Strided { shape: Shape, vec: u64 },
    /// Every element equal.
    Splat { shape: Shape },
    /// A layout that needs the value's shape or dtype to be made explicit, with its static arguments.
    Named {
        name: String,
        args: Vec<(String, LayoutArg)>,
    },
}

impl LayoutSpec {
    /// Whether all elements are equal.
    pub fn is_splat(&self) -> bool {
        matches!(self, LayoutSpec::Splat { .. })
    }
}

/// A static argument of a named layout.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum LayoutArg {
    Int(i64),
    Bool(bool),
    Ints(Vec<i64>),
    Text(String),
    DType(DType),
    Layout(Box<LayoutSpec>),
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum LayoutDim {
    Dim(i64),
    Replicated(u64),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn facts_of_types_hold_their_extremes() {
        assert_eq!(Facts::of_dtype(DType::I8), Facts::range(-128, 127));
        assert_eq!(Facts::of_dtype(DType::U4), Facts::range(0, 15));
        assert_eq!(Facts::of_dtype(DType::I64), Facts::range(i64::MIN, i64::MAX));
        assert_eq!(Facts::of_dtype(DType::U64), Facts::range(0, u64::MAX));
        assert!(Facts::constant(0).is_multiple_of(64));
        assert!(!Facts::constant(96).is_multiple_of(64));
    }

    #[test]
    fn types_print_as_in_dumps() {
        assert_eq!(Type::of(DType::F32, [64, 128].as_slice()).to_string(), "f32[64,128]");
        assert_eq!(Type::of(DType::I32, [].as_slice()).to_string(), "i32");
    }
}
