//! Stores of elements narrower than a byte that are no whole bytes: what is whole in between as an array, the elements at the ends one by one.
use super::op_reader::OpReader;
use crate::kernel_ir::*;

/// The row that a store is a part of, where it begins in it, and how many elements a byte has; none where the store is of whole bytes, or its
/// positions are not known.
pub fn find(r: &OpReader<'_>, dst: &RefUse) -> Option<(RefUse, u64, u64)> {
    let bits = u64::from(dst.dtype()?.bits());
    let n = num_elements(&dst.shape);
    if bits >= 8 || 8 % bits != 0 || dst.shape.is_empty() || n == 0 {
        return None;
    }
    let (row, first) = row(r, dst)?;
    let per_byte = 8 / bits;
    let whole = first.is_multiple_of(per_byte) && n.is_multiple_of(per_byte);
    (!whole).then_some((row, first, per_byte))
}

/// Emits such a store, in parts. False: it is none.
pub fn store(r: &mut OpReader<'_>, dst: &RefUse, value: Value) -> bool {
    let Some((row, first, per_byte)) = find(r, dst) else {
        return false;
    };
    let ty = r.ty(value).clone();
    let n = num_elements(&dst.shape);
    let flat = match ty.shape() {
        [_] => value,
        _ => r.emit1(OpKind::Reshape { a: value }, Type::of(ty.dtype(), vec![n])),
    };
    let part = |r: &mut OpReader<'_>, from: u64, size: u64| {
        let kind = OpKind::Slice {
            a: flat,
            starts: vec![from],
            strides: vec![1],
        };
        r.emit1(kind, Type::of(ty.dtype(), vec![size]))
    };
    let head = (first.next_multiple_of(per_byte) - first).min(n);
    let whole = (n - head) / per_byte * per_byte;
    if whole > 0 {
        let middle = part(r, head, whole);
        let at = DimIndex::Slice {
            start: Index::Const((first + head) as i64),
            size: whole,
            stride: 1,
        };
        let dst = indexed(&row, at, &[whole]);
        r.emit(OpKind::Store { dst, value: middle }, []);
    }
    for i in (0..head).chain(head + whole..n) {
        let one = part(r, i, 1);
        let one = r.emit1(OpKind::Reshape { a: one }, Type::Scalar(ty.dtype()));
        let at = DimIndex::At(Index::Const((first + i) as i64));
        let dst = indexed(&row, at, &[]);
        r.emit(OpKind::Store { dst, value: one }, []);
    }
    true
}

/// The row that a store is a part of, and where it begins in it.
fn row(r: &OpReader<'_>, dst: &RefUse) -> Option<(RefUse, u64)> {
    let data = &r.importer.kernel.allocs[dst.alloc];
    if !(data.is_smem() || data.is_gmem()) {
        return None;
    }
    match (&dst.steps[..], &data.shape[..]) {
        ([], _) => {
            let n = num_elements(&dst.shape);
            let mut row = dst.clone();
            if dst.shape.len() != 1 {
                let flat: Shape = [n].into_iter().collect();
                (row.shape, row.steps) = (flat.clone(), vec![Step::Reshape(flat)]);
            }
            Some((row, 0))
        }
        ([Step::Index(dims)], [n]) => match dims[..] {
            [
                DimIndex::Slice {
                    start: Index::Const(first),
                    stride: 1,
                    ..
                },
            ] => {
                let mut row = dst.clone();
                (row.shape, row.steps) = ([*n].into_iter().collect(), vec![]);
                Some((row, u64::try_from(first).ok()?))
            }
            _ => None,
        },
        _ => None,
    }
}

fn indexed(row: &RefUse, at: DimIndex, shape: &[u64]) -> RefUse {
    let mut use_ = row.clone();
    use_.steps.push(Step::Index(vec![at]));
    use_.shape = shape.iter().copied().collect();
    use_
}
