//! Protobuf types → IR types, with the limits that make everything later free of overflow.
use super::decode::{damaged, decode, newer};
use super::proto;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::kernel_ir::{LayoutArg, LayoutDim, LayoutSpec, Shape, Type};

/// Largest rank of an array or ref.
const MAX_RANK: usize = 16;
/// Most elements of a reference. Offsets in bits of any element type then fit in an i64.
const MAX_ELEMENTS: u64 = 1 << 56;
/// Most elements of an array that a kernel computes with: of 128 threads each has 2^19, more code than a kernel can have.
const MAX_COMPUTED: u64 = 1 << 26;

/// An element type that kernels can compute with.
pub fn dtype(raw: i32) -> Result<DType> {
    use proto::DType as P;
    let Ok(p) = P::try_from(raw) else {
        return Err(newer(format!("element type {raw}")));
    };
    Ok(match p {
        P::DtypeUnspecified => return Err(damaged("a type without an element type")),
        P::Bool => DType::Bool,
        P::I2 => DType::I2,
        P::I4 => DType::I4,
        P::I8 => DType::I8,
        P::I16 => DType::I16,
        P::I32 => DType::I32,
        P::I64 => DType::I64,
        P::U2 => DType::U2,
        P::U4 => DType::U4,
        P::U8 => DType::U8,
        P::U16 => DType::U16,
        P::U32 => DType::U32,
        P::U64 => DType::U64,
        P::F16 => DType::F16,
        P::Bf16 => DType::BF16,
        P::F32 => DType::F32,
        P::F64 => DType::F64,
        P::F8e4m3fn => DType::F8E4M3FN,
        P::F8e5m2 => DType::F8E5M2,
        P::F8e8m0fnu => DType::F8E8M0FNU,
        P::F4e2m1fn => DType::F4E2M1FN,
        P::F8e4m3b11fnuz => DType::F8E4M3B11FNUZ,
        P::F8e4m3fnuz => DType::F8E4M3FNUZ,
        P::F8e5m2fnuz => DType::F8E5M2FNUZ,
        P::F8e3m4 => DType::F8E3M4,
        P::F8e4m3 => DType::F8E4M3,
        P::F6e2m3fn => DType::F6E2M3FN,
        P::F6e3m2fn => DType::F6E3M2FN,
        P::Key => {
            return Err(Error::unsupported("PRNG keys (jax.random) inside a kernel")
                .remedy("draw the numbers outside of the kernel and pass them as an argument"));
        }
        P::C64 | P::C128 => {
            return Err(Error::unsupported("complex numbers").remedy("pass real and imaginary parts as two arrays"));
        }
        P::Float0 => {
            return Err(Error::unsupported("float0 values")
                .remedy("take gradients with respect to floats only (jax.grad's argnums), or outside of the kernel"));
        }
    })
}

/// A shape whose element count and rank are within limits.
pub fn shape(dims: &[u64]) -> Result<Shape> {
    if dims.len() > MAX_RANK {
        return Err(Error::unsupported(format!("arrays of rank {}", dims.len()))
            .expected(format!("at most {MAX_RANK}"))
            .remedy("reshape the array to fewer dimensions outside of the kernel"));
    }
    // Zero extents must not hide an overflow of the others.
    let elements = dims.iter().try_fold(1u64, |n, &d| n.checked_mul(d.max(1)));
    if elements.is_none_or(|n| n > MAX_ELEMENTS) {
        return Err(Error::unsupported(format!("an array of shape {dims:?}"))
            .expected(format!("at most {MAX_ELEMENTS} elements"))
            .remedy("split the array among several calls"));
    }
    Ok(dims.iter().copied().collect())
}

/// Most elements of what lies in a block's own memory: far more than fit, few enough for sums of sizes.
const MAX_ON_CHIP: u64 = 1 << 24;

/// The shape of what lies in a block's own memory.
pub fn on_chip(dims: &[u64]) -> Result<Shape> {
    let shape = shape(dims)?;
    let elements = shape.iter().map(|n| (*n).max(1)).product::<u64>();
    if elements > MAX_ON_CHIP {
        return Err(Error::invalid("shared memory")
            .expected("at most 232448 bytes for a block")
            .got(format!("{dims:?}, which are {elements} elements"))
            .remedy("use smaller tiles, and fewer pipeline stages (max_concurrent_steps)"));
    }
    Ok(shape)
}

/// The type of a value.
pub fn array_type(t: &proto::ArrayType) -> Result<Type> {
    Ok(Type::of(dtype(t.dtype)?, computed(&t.shape)?))
}

/// The shape of what registers hold.
pub fn computed(dims: &[u64]) -> Result<Shape> {
    let shape = shape(dims)?;
    let elements = shape.iter().map(|n| (*n).max(1)).product::<u64>();
    if elements > MAX_COMPUTED {
        return Err(
            Error::invalid(format!("an array of {elements} elements, {dims:?}, at once"))
                .expected(format!("at most {MAX_COMPUTED} elements in the threads of a block"))
                .got(elements.to_string())
                .remedy("load parts of the reference (ref[pl.ds(…)]), in a larger grid or in a loop"),
        );
    }
    Ok(shape)
}

/// A layout as the user wrote it, of an encoded `Layout`.
pub fn decode_layout(bytes: &[u8]) -> Result<LayoutSpec> {
    layout(&decode(bytes, "the layout")?)
}

/// A layout as the user wrote it.
pub fn layout(layout: &proto::Layout) -> Result<LayoutSpec> {
    use proto::layout::Kind;
    let args = |attrs: &[proto::Attr]| attrs.iter().map(layout_arg).collect::<Result<Vec<_>>>();
    Ok(match &layout.kind {
        None => return Err(damaged("a layout of no kind")),
        Some(Kind::Tiled(t)) => {
            let dims = |dims: &[proto::LayoutDim]| {
                dims.iter()
                    .map(|d| match d.kind {
                        None => Err(damaged("a layout dimension of no kind")),
                        Some(proto::layout_dim::Kind::Dim(d)) => Ok(LayoutDim::Dim(d)),
                        Some(proto::layout_dim::Kind::Replicated(n)) => Ok(LayoutDim::Replicated(n)),
                    })
                    .collect::<Result<Vec<_>>>()
            };
            let tiling = t.tiling.iter().map(|tile| {
                tile.values
                    .iter()
                    .map(|&n| {
                        u64::try_from(n)
                            .ok()
                            .filter(|&n| n > 0)
                            .ok_or_else(|| damaged("a tile of no size"))
                    })
                    .collect::<Result<Vec<_>>>()
            });
            LayoutSpec::Tiled {
                name: layout.name.clone(),
                tiling: tiling.collect::<Result<_>>()?,
                warp_dims: dims(&t.warp_dims)?,
                lane_dims: dims(&t.lane_dims)?,
                vector_dim: t.vector_dim,
            }
        }
        Some(Kind::Strided(s)) => {
            if s.vec == 0 {
                return Err(damaged("a strided layout with vectors of length 0"));
            }
            LayoutSpec::Strided {
                shape: shape(&s.shape)?,
                vec: s.vec,
            }
        }
        Some(Kind::Splat(s)) => LayoutSpec::Splat {
            shape: shape(&s.shape)?,
        },
        Some(Kind::Named(name)) => LayoutSpec::Named {
            name: name.clone(),
            args: args(&layout.args)?,
        },
    })
}

fn layout_arg(attr: &proto::Attr) -> Result<(String, LayoutArg)> {
    use proto::attr::Value;
    let arg = match &attr.value {
        Some(Value::Int(x)) => LayoutArg::Int(*x),
        Some(Value::Bool(x)) => LayoutArg::Bool(*x),
        Some(Value::Ints(x)) => LayoutArg::Ints(x.values.clone()),
        Some(Value::Text(x)) => LayoutArg::Text(x.clone()),
        Some(Value::Dtype(x)) => LayoutArg::DType(dtype(*x)?),
        Some(Value::Layout(x)) => LayoutArg::Layout(Box::new(layout(x)?)),
        _ => {
            return Err(damaged(format!(
                "the layout argument `{}` of an unknown kind",
                attr.name
            )));
        }
    };
    Ok((attr.name.clone(), arg))
}
