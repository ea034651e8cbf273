//! Loads and stores under a mask. Nothing is touched where it is false, so that slices may reach outside there: they become windows.
use super::indexed::indexed_where;
use super::op_reader::OpReader;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::kernel_ir::*;

/// `masked_load`: a reference, a mask or nothing, what stands where it is false or nothing.
pub fn load(r: &mut OpReader<'_>) -> Result<()> {
    let src = r.data_ref(0)?;
    let mask = mask(r, 1, &src.shape)?;
    let ty = super::memory::type_of(&src)?;
    let mut x = elements(r, &src, mask, &ty)?;
    if let (Some(mask), false) = (mask, r.is_absent(2)?) {
        let other = r.value(2)?;
        let other = r.converted(other, ty.dtype());
        let other = broadcast(r, other, ty.shape(), "other")?;
        x = r.choose(mask, x, other);
    }
    r.results(&[x])
}

/// `masked_swap`: a reference, a value, a mask or nothing. What was there is loaded where it is used.
pub fn swap(r: &mut OpReader<'_>) -> Result<()> {
    let dst = r.data_ref(0)?;
    let ty = super::memory::type_of(&dst)?;
    let value = r.value(1)?;
    let value = broadcast(r, value, ty.shape(), "the value")?;
    let mask = mask(r, 2, &dst.shape)?;
    let old = match r.op.results.is_empty() {
        true => None,
        false => Some(elements(r, &dst, mask, &ty)?),
    };
    if num_elements(ty.shape()) != 0 {
        store(r, &dst, mask, value, &ty)?;
    }
    r.results(old.as_slice())
}

fn mask(r: &mut OpReader<'_>, operand: usize, shape: &[u64]) -> Result<Option<Value>> {
    if r.is_absent(operand)? {
        return Ok(None);
    }
    let mask = r.value(operand)?;
    let ty = r.ty(mask).clone();
    if ty.dtype() != DType::Bool {
        return Err(Error::invalid("a mask that is no array of booleans")
            .expected(format!("bool{shape:?}, or what is broadcast to it"))
            .got(ty.to_string())
            .remedy("compare: mask=x != 0"));
    }
    broadcast(r, mask, shape, "the mask").map(Some)
}

/// As NumPy broadcasts.
fn broadcast(r: &mut OpReader<'_>, v: Value, shape: &[u64], what: &str) -> Result<Value> {
    let ty = r.ty(v).clone();
    let (from, rank) = (ty.shape(), shape.len());
    let new = rank.checked_sub(from.len());
    let fits = new.is_some_and(|new| from.iter().zip(&shape[new..]).all(|(m, n)| m == n || *m == 1));
    let Some(new) = new.filter(|_| fits) else {
        return Err(Error::invalid(format!("{what} does not fit what is loaded or stored"))
            .expected(format!("a shape that is broadcast to {shape:?}"))
            .got(format!("{from:?}"))
            .remedy("give it the shape of the slice, with 1 for dimensions along which it is the same"));
    };
    if from == shape {
        return Ok(v);
    }
    let dims = (new as u32..rank as u32).collect();
    let result = Type::of(ty.dtype(), super::types::shape(shape)?);
    Ok(r.emit1(OpKind::Broadcast { a: v, dims }, result))
}

/// Whether everything is loaded or stored.
fn is_all(r: &OpReader<'_>, mask: Value) -> bool {
    let kernel = &r.importer.kernel;
    let constant = |v: Value| kernel.def_op(v).map(|op| &kernel.ops[op].kind);
    let mut kind = constant(mask);
    if let Some(OpKind::Broadcast { a, .. }) = kind {
        kind = constant(*a);
    }
    matches!(kind, Some(OpKind::Constant(c)) if c.splat() == Some(1))
}

fn elements(r: &mut OpReader<'_>, src: &RefUse, mask: Option<Value>, ty: &Type) -> Result<Value> {
    if num_elements(ty.shape()) == 0 {
        return Ok(r.int_splat(ty, 0));
    }
    let mask = mask.filter(|mask| !is_all(r, *mask));
    if let Some(indexed) = indexed_where(r, src, mask.is_some())? {
        return Ok(indexed.load_where(r, mask, ty.dtype()));
    }
    let Some(mask) = mask else {
        return Ok(r.emit1(OpKind::Load { src: src.clone() }, ty.clone()));
    };
    if ty.is_scalar() {
        let (src, mask, row) = as_row(r, src, mask)?;
        let x = r.emit1(OpKind::LoadMasked { src, mask }, row);
        return Ok(r.emit1(OpKind::Reshape { a: x }, ty.clone()));
    }
    let kind = OpKind::LoadMasked {
        src: windowed(src),
        mask,
    };
    Ok(r.emit1(kind, ty.clone()))
}

fn store(r: &mut OpReader<'_>, dst: &RefUse, mask: Option<Value>, value: Value, ty: &Type) -> Result<()> {
    let mask = mask.filter(|mask| !is_all(r, *mask));
    if let Some(indexed) = indexed_where(r, dst, mask.is_some())? {
        indexed.store_where(r, mask, value);
        return Ok(());
    }
    let Some(mask) = mask else {
        r.emit(
            OpKind::Store {
                dst: dst.clone(),
                value,
            },
            [],
        );
        return Ok(());
    };
    let (dst, mask, value, ty) = if ty.is_scalar() {
        let (dst, mask, row) = as_row(r, dst, mask)?;
        let value = r.emit1(OpKind::Broadcast { a: value, dims: vec![] }, row.clone());
        (dst, mask, value, row)
    } else {
        (windowed(dst), mask, value, ty.clone())
    };
    // Of one layout with the mask, though its elements may be equal.
    let nothing = r.int_splat(&ty, 0);
    let value = r.choose(mask, value, nothing);
    r.emit(OpKind::StoreMasked { dst, mask, value }, []);
    Ok(())
}

/// One element as an array of one; its mask, too; and the array's type.
fn as_row(r: &mut OpReader<'_>, u: &RefUse, mask: Value) -> Result<(RefUse, Value, Type)> {
    let mut u = u.clone();
    let last = match u.steps.last_mut() {
        Some(Step::Index(dims)) => dims.last_mut(),
        _ => None,
    };
    let Some(last @ &mut DimIndex::At(start)) = last else {
        return Err(Error::unsupported("a mask for a reference of rank 0")
            .remedy("pl.when(mask), or index an array of one element"));
    };
    *last = DimIndex::Window { start, size: 1 };
    u.shape = [1].into_iter().collect();
    let row = |dtype| Type::of(dtype, [1].into_iter().collect::<Shape>());
    let dtype = u.dtype().ok_or_else(|| r.damaged("a reference"))?;
    let mask = r.emit1(OpKind::Broadcast { a: mask, dims: vec![] }, row(DType::Bool));
    Ok((u, mask, row(dtype)))
}

/// With the slices of its last step, where they are not known to be inside, as windows.
fn windowed(u: &RefUse) -> RefUse {
    let mut u = u.clone();
    if let Some(Step::Index(dims)) = u.steps.last_mut() {
        for dim in dims {
            if let DimIndex::Slice {
                start: start @ Index::Value(_),
                size,
                stride: 1,
            } = dim
            {
                *dim = DimIndex::Window {
                    start: *start,
                    size: *size,
                };
            }
        }
    }
    u
}
