//! Parts of references to registers, as array operations on the whole: what a view reads, and the whole after a store to a view.
//!
//! [`legality::registers`](crate::kernel_ir::legality::registers) defines which views there are.
use crate::dtype::DType;
use crate::error::{Error, Loc, Result};
use crate::kernel_ir::*;

/// What a view of `whole` holds; ops go to the end of `region`.
pub fn load(kernel: &mut Kernel, region: Region, whole: Value, steps: &[Step], loc: Loc) -> Result<Value> {
    steps
        .iter()
        .try_fold(whole, |a, step| one(kernel, region, a, step, loc))
}

/// `whole` after `value` was stored to a view of it.
pub fn store(
    kernel: &mut Kernel,
    region: Region,
    whole: Value,
    steps: &[Step],
    value: Value,
    loc: Loc,
) -> Result<Value> {
    let Some((step, rest)) = steps.split_first() else {
        return Ok(value);
    };
    let inner = if rest.is_empty() {
        value
    } else {
        let seen = one(kernel, region, whole, step, loc)?;
        store(kernel, region, seen, rest, value, loc)?
    };
    let ty = kernel.ty(whole).clone();
    Ok(match step {
        Step::Index(dims) => {
            let sizes: Shape = dims.iter().map(DimIndex::size).collect();
            let update = reshaped(kernel, region, inner, &sizes, loc);
            if sizes.as_slice() == ty.shape() {
                return Ok(update);
            }
            let starts = dims.iter().map(|d| start(kernel, region, d, loc)).collect();
            let kind = OpKind::DynamicUpdateSlice {
                a: whole,
                update,
                starts,
            };
            kernel.append1(region, kind, ty, loc)
        }
        Step::Transpose(p) => {
            let mut permutation = vec![0; p.len()];
            for (i, &d) in p.iter().enumerate() {
                permutation[d as usize] = i as u32;
            }
            kernel.append1(region, OpKind::Transpose { a: inner, permutation }, ty, loc)
        }
        Step::Reshape(_) => reshaped(kernel, region, inner, ty.shape(), loc),
        Step::Bitcast { .. } => kernel.append1(region, OpKind::Bitcast { a: inner }, ty, loc),
        Step::Im2Col { .. }
        | Step::ExpandLeadingBatch(_)
        | Step::ExtractAlias { .. }
        | Step::Unswizzle(_)
        | Step::Untile(_) => return Err(Error::internal("a store to a view of registers that is not legal")),
    })
}

fn one(kernel: &mut Kernel, region: Region, a: Value, step: &Step, loc: Loc) -> Result<Value> {
    let ty = kernel.ty(a).clone();
    Ok(match step {
        Step::Index(dims) => indexed(kernel, region, a, dims, loc),
        Step::Transpose(p) => {
            let shape: Shape = p.iter().map(|&d| ty.shape()[d as usize]).collect();
            let permutation = p.clone();
            let to = Type::of(ty.dtype(), shape);
            kernel.append1(region, OpKind::Transpose { a, permutation }, to, loc)
        }
        Step::Reshape(shape) => reshaped(kernel, region, a, shape, loc),
        Step::Bitcast { dtype, .. } => kernel.append1(region, OpKind::Bitcast { a }, ty.with_dtype(*dtype), loc),
        Step::Im2Col { .. }
        | Step::ExpandLeadingBatch(_)
        | Step::ExtractAlias { .. }
        | Step::Unswizzle(_)
        | Step::Untile(_) => return Err(Error::internal("a view of registers that is not legal")),
    })
}

fn indexed(kernel: &mut Kernel, region: Region, mut a: Value, dims: &[DimIndex], loc: Loc) -> Value {
    let from = kernel.ty(a).clone();
    let known: Vec<Option<i64>> = (dims.iter().zip(from.shape()))
        .map(|(d, extent)| {
            // What turns out to be outside is clamped, as what is computed is.
            let last = (d.size().max(1) - 1).saturating_mul(d.stride());
            constant(kernel, d).filter(|&at| (at as u64).saturating_add(last) < (*extent).max(1))
        })
        .collect();
    // First what is known, then what is computed.
    let mut shape = Shape::from_slice(from.shape());
    let (mut starts, mut strides) = (vec![0; dims.len()], vec![1; dims.len()]);
    for (d, dim) in dims.iter().enumerate() {
        if let Some(start) = known[d] {
            (starts[d], strides[d], shape[d]) = (start as u64, dim.stride(), dim.size());
        }
    }
    if shape.as_slice() != from.shape() {
        let ty = Type::of(from.dtype(), shape.clone());
        a = kernel.append1(region, OpKind::Slice { a, starts, strides }, ty, loc);
    }
    if known.iter().any(Option::is_none) {
        let starts = (0..dims.len())
            .map(|d| match known[d] {
                Some(_) => kernel.append_int(region, DType::I32, 0, loc),
                None => start(kernel, region, &dims[d], loc),
            })
            .collect();
        let ty = Type::of(from.dtype(), dims.iter().map(DimIndex::size).collect::<Shape>());
        a = kernel.append1(region, OpKind::DynamicSlice { a, starts }, ty, loc);
    }
    let kept: Shape = dims
        .iter()
        .filter(|d| !matches!(d, DimIndex::At(_)))
        .map(DimIndex::size)
        .collect();
    reshaped(kernel, region, a, &kept, loc)
}

fn reshaped(kernel: &mut Kernel, region: Region, a: Value, shape: &[u64], loc: Loc) -> Value {
    let ty = Type::of(kernel.ty(a).dtype(), Shape::from_slice(shape));
    if *kernel.ty(a) == ty {
        return a;
    }
    kernel.append1(region, OpKind::Reshape { a }, ty, loc)
}

fn constant(kernel: &Kernel, dim: &DimIndex) -> Option<i64> {
    match dim.first().unwrap_or(Index::Const(0)) {
        Index::Const(x) => Some(x),
        Index::Value(v) => kernel.facts(v).as_constant().filter(|x| *x >= 0),
    }
}

/// Where an index begins, as a scalar.
fn start(kernel: &mut Kernel, region: Region, dim: &DimIndex, loc: Loc) -> Value {
    match dim.first().unwrap_or(Index::Const(0)) {
        Index::Const(x) => kernel.append_int(region, DType::I32, x, loc),
        Index::Value(v) => v,
    }
}
