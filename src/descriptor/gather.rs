//! `gather` and the scatters: windows of an array at places that an array of indices gives.
//!
//! One window is a slice of dynamic start. Else every element of the result (of the updates) has a position in the operand, an
//! array of them is made of element-wise ops, and [`OpKind::Take`] and [`OpKind::Put`] do the rest. A window that is not inside
//! as a whole, where that counts, has positions that are outside.
use super::compose::strides_of;
use super::op_reader::OpReader;
use super::order::{key_from_order, order_of};
use crate::dtype::DType;
use crate::error::Result;
use crate::kernel_ir::*;

/// A position that stays outside of every array whatever is added within a window.
const OUTSIDE: i64 = -(1 << 30);

/// What becomes of windows that are not inside.
#[derive(Clone, Copy, PartialEq)]
enum Outside {
    /// They are moved inside.
    Clipped,
    /// Their elements are filled, or left out.
    Dropped,
}

/// Where windows are, and how their elements are arranged in the result (in the updates).
struct Windows {
    indices: Value,
    /// The shape of the indices without the last dimension: of windows.
    batch: Vec<u64>,
    operand: Vec<u64>,
    /// The shape of the result (of the updates).
    whole: Vec<u64>,
    /// Extents of a window, one for each dimension of the operand.
    sizes: Vec<u64>,
    /// Dimensions of the operand that a window keeps, and which they are in the whole; then those of the batch.
    kept: Vec<usize>,
    kept_at: Vec<u32>,
    batch_at: Vec<u32>,
    /// Component k of an index is the start along this dimension of the operand.
    mapped: Vec<usize>,
    /// (dimension of the operand, of the batch) that go together.
    batching: Vec<(usize, usize)>,
}

/// The names of the attributes: of a gather, of a scatter.
struct Names {
    window: &'static str,
    dropped: &'static str,
    mapped: &'static str,
    index_batching: &'static str,
}

impl Windows {
    /// `sizes`: of a window, as a gather says it; a scatter's updates have them.
    fn read(
        r: &mut OpReader<'_>,
        operand: &[u64],
        indices: Value,
        whole: &[u64],
        sizes: Option<Vec<u64>>,
        names: Names,
    ) -> Result<Windows> {
        let index_type = r.ty(indices).clone();
        let (Some((&components, batch)), true) = (index_type.shape().split_last(), index_type.dtype().is_int()) else {
            return Err(r.damaged("the indices").got(index_type.to_string()));
        };
        let kept_at = r.dims(names.window, whole.len())?;
        let dropped = r.dims(names.dropped, operand.len())?;
        let mapped: Vec<usize> = r
            .dims(names.mapped, operand.len())?
            .into_iter()
            .map(|d| d as usize)
            .collect();
        let of_operand = r.dims("operand_batching_dims", operand.len())?;
        let of_batch = r.dims(names.index_batching, batch.len())?;
        let is_gone = |d: &usize| dropped.contains(&(*d as u32)) || of_operand.contains(&(*d as u32));
        let kept: Vec<usize> = (0..operand.len()).filter(|d| !is_gone(d)).collect();
        let batch_at: Vec<u32> = (0..whole.len() as u32).filter(|d| !kept_at.contains(d)).collect();
        let counts = [
            kept.len() == kept_at.len(),
            batch_at.len() == batch.len(),
            mapped.len() as u64 == components,
            of_operand.len() == of_batch.len(),
            kept_at.windows(2).all(|w| w[0] < w[1]),
            sizes.as_ref().is_none_or(|s| s.len() == operand.len()),
        ];
        if !counts.iter().all(|fits| *fits) {
            return Err(r.damaged("dimension numbers that do not fit"));
        }
        let sizes = sizes.unwrap_or_else(|| {
            let mut sizes = vec![1; operand.len()];
            for (&d, &at) in kept.iter().zip(&kept_at) {
                sizes[d] = whole[at as usize];
            }
            sizes
        });
        let out = Windows {
            indices,
            batch: batch.to_vec(),
            operand: operand.to_vec(),
            whole: whole.to_vec(),
            kept,
            kept_at,
            batch_at,
            mapped,
            batching: of_operand
                .iter()
                .zip(&of_batch)
                .map(|(&d, &b)| (d as usize, b as usize))
                .collect(),
            sizes,
        };
        let fits = (0..operand.len())
            .all(|d| out.sizes[d] <= operand[d] && (out.kept.contains(&d) || out.sizes[d] == 1))
            && out
                .kept
                .iter()
                .zip(&out.kept_at)
                .all(|(&d, &at)| out.sizes[d] == whole[at as usize])
            && out
                .batch
                .iter()
                .zip(&out.batch_at)
                .all(|(&n, &at)| n == whole[at as usize])
            && out.batching.iter().all(|&(d, b)| operand[d] == out.batch[b]);
        if !fits {
            let shapes = format!("windows {:?} of {operand:?} in {whole:?}", out.sizes);
            return Err(r.damaged("windows that do not fit").got(shapes));
        }
        Ok(out)
    }

    /// How many windows there are.
    fn count(&self) -> u64 {
        num_elements(&self.batch)
    }

    /// The last start along a dimension at which a window is inside.
    fn most(&self, dim: usize) -> i64 {
        (self.operand[dim] - self.sizes[dim]) as i64
    }

    /// Whether windows at different starts have no element in common.
    fn are_apart(&self) -> bool {
        self.mapped
            .iter()
            .all(|&d| self.sizes[d] == 1 || self.sizes[d] == self.operand[d])
    }

    /// Component k of all indices, in the shape of the batch.
    fn component(&self, r: &mut OpReader<'_>, k: usize) -> Result<Value> {
        let (mut v, mut k) = (self.indices, k);
        loop {
            let components = r.ty(v).shape().last().copied().unwrap_or(1);
            let def = r.importer.kernel.def_op(v).map(|op| &r.importer.kernel.ops[op].kind);
            // As JAX makes them: components side by side, each with a dimension of one more.
            if let Some(OpKind::Concat { parts, dim }) = def
                && *dim as usize == self.batch.len()
            {
                let (mut part, mut at) = (None, k as u64);
                for &p in parts {
                    let n = r.ty(p).shape()[self.batch.len()];
                    if at < n {
                        part = Some(p);
                        break;
                    }
                    at -= n;
                }
                let Some(part) = part else { break };
                (v, k) = (part, at as usize);
                continue;
            }
            if let Some(OpKind::Broadcast { a, dims }) = def
                && components == 1
                && dims.iter().zip(0..).all(|(d, i)| *d == i)
                && r.ty(*a).shape() == self.batch.as_slice()
            {
                return Ok(*a);
            }
            if let Some(OpKind::Reshape { a }) = def
                && components == 1
                && r.ty(*a).shape() == self.batch.as_slice()
            {
                return Ok(*a);
            }
            break;
        }
        let mut starts = vec![0; self.batch.len()];
        starts.push(k as u64);
        let sizes: Vec<u64> = self.batch.iter().copied().chain([1]).collect();
        let one = r.part(v, starts, &sizes)?;
        r.reshaped(one, &self.batch)
    }

    /// Component k as i32, of which nothing is lost that matters.
    fn start(&self, r: &mut OpReader<'_>, k: usize) -> Result<Value> {
        let mut v = self.component(r, k)?;
        let dtype = r.ty(v).dtype();
        if dtype.bits() == 64 || dtype == DType::U32 {
            v = r.binary_int(BinaryOp::Min, v, self.most(self.mapped[k]) + 1);
            if dtype.is_signed_int() {
                v = r.binary_int(BinaryOp::Max, v, -1);
            }
        }
        Ok(r.converted(v, DType::I32))
    }

    /// The starts, inside, and whether each window was inside as a whole (none: that does not count).
    fn starts(&self, r: &mut OpReader<'_>, outside: Outside) -> Result<(Vec<Value>, Option<Value>)> {
        let (mut starts, mut all) = (vec![], None);
        for (k, &d) in self.mapped.iter().enumerate() {
            let raw = self.start(r, k)?;
            let most = self.most(d);
            let known = r.importer.kernel.facts(raw).as_constant();
            if known.is_some_and(|x| (0..=most).contains(&x)) && r.ty(raw).is_scalar() {
                starts.push(raw);
                continue;
            }
            let above = r.compare_int(CompareOp::Ge, raw, 0);
            let below = r.compare_int(CompareOp::Le, raw, most);
            let here = r.binary(BinaryOp::And, above, below);
            all = Some(match all {
                None => here,
                Some(all) => r.binary(BinaryOp::And, all, here),
            });
            let x = r.binary_int(BinaryOp::Max, raw, 0);
            starts.push(r.binary_int(BinaryOp::Min, x, most));
        }
        Ok((starts, all.filter(|_| outside == Outside::Dropped)))
    }

    /// The row-major position in the operand of each element of the whole, i32.
    fn positions(&self, r: &mut OpReader<'_>, outside: Outside) -> Result<Value> {
        let strides = strides_of(&self.operand);
        let (starts, inside) = self.starts(r, outside)?;
        let mut terms = vec![];
        for (v, &d) in starts.into_iter().zip(&self.mapped) {
            terms.push(r.binary_int(BinaryOp::Mul, v, strides[d]));
        }
        for &(d, b) in &self.batching {
            let i = r.iota(&self.batch, b)?;
            terms.push(r.binary_int(BinaryOp::Mul, i, strides[d]));
        }
        let mut window = match terms.split_first() {
            None => {
                let ty = Type::of(DType::I32, super::types::shape(&self.batch)?);
                r.int_splat(&ty, 0)
            }
            Some((&first, rest)) => rest.iter().fold(first, |sum, &t| r.binary(BinaryOp::Add, sum, t)),
        };
        if let Some(inside) = inside {
            let ty = r.ty(window).clone();
            let nowhere = r.int_splat(&ty, OUTSIDE);
            window = r.choose(inside, window, nowhere);
        }
        let mut at = r.broadcast(window, &self.whole, self.batch_at.clone())?;
        for (&d, &dim) in self.kept.iter().zip(&self.kept_at) {
            if self.sizes[d] > 1 {
                let i = r.iota(&self.whole, dim as usize)?;
                let i = r.binary_int(BinaryOp::Mul, i, strides[d]);
                at = r.binary(BinaryOp::Add, at, i);
            }
        }
        Ok(at)
    }

    /// The one window's starts along all dimensions of the operand, and whether it was inside.
    fn only(&self, r: &mut OpReader<'_>, outside: Outside) -> Result<(Vec<Value>, Option<Value>)> {
        let (starts, inside) = self.starts(r, outside)?;
        let mut all = vec![];
        for d in 0..self.operand.len() {
            all.push(match self.mapped.iter().position(|&m| m == d) {
                Some(k) => r.reshaped(starts[k], &[])?,
                None => r.int_splat(&Type::Scalar(DType::I32), 0),
            });
        }
        let inside = inside.map(|v| r.reshaped(v, &[])).transpose()?;
        Ok((all, inside))
    }
}

fn outside(r: &mut OpReader<'_>, promised: Outside) -> Result<Outside> {
    match r.text("mode")? {
        "clip" => Ok(Outside::Clipped),
        "fill_or_drop" => Ok(Outside::Dropped),
        "promise_in_bounds" => Ok(promised),
        other => Err(super::decode::newer(format!(
            "`{}` with the mode {other:?}",
            r.op.primitive
        ))),
    }
}

pub fn gather(r: &mut OpReader<'_>) -> Result<()> {
    let (a, indices, fill) = (r.value(0)?, r.value(1)?, r.value(2)?);
    let (from, to) = (r.ty(a).clone(), r.result_type(0)?);
    if *r.ty(fill) != Type::Scalar(from.dtype()) || to.dtype() != from.dtype() {
        return Err(r.damaged("the element types"));
    }
    let sizes = r.sizes("slice_sizes")?;
    let names = Names {
        window: "offset_dims",
        dropped: "collapsed_slice_dims",
        mapped: "start_index_map",
        index_batching: "start_indices_batching_dims",
    };
    let windows = Windows::read(r, from.shape(), indices, to.shape(), Some(sizes), names)?;
    let outside = outside(r, Outside::Clipped)?;
    if num_elements(to.shape()) == 0 {
        let nothing = r.int_splat(&to, 0);
        return r.results(&[nothing]);
    }
    if from.is_scalar() {
        return r.results(&[a]);
    }
    if windows.count() != 1 {
        let at = windows.positions(r, outside)?;
        return r.declared(OpKind::Take { a, at, fill });
    }
    let (starts, inside) = windows.only(r, outside)?;
    let window = Type::of(from.dtype(), windows.sizes.as_slice());
    let x = if window == from {
        a
    } else {
        r.emit1(OpKind::DynamicSlice { a, starts }, window)
    };
    let mut x = r.reshaped(x, to.shape())?;
    if let Some(inside) = inside {
        let fill = r.broadcast(fill, to.shape(), vec![])?;
        x = r.choose(inside, x, fill);
    }
    r.results(&[x])
}

pub fn scatter(r: &mut OpReader<'_>, op: PutOp) -> Result<()> {
    let (a, indices, mut update) = (r.value(0)?, r.value(1)?, r.value(2)?);
    let (to, part) = (r.ty(a).clone(), r.ty(update).clone());
    if part.dtype() != to.dtype() {
        return Err(r.damaged("updates of another type").got(part.to_string()));
    }
    let names = Names {
        window: "update_window_dims",
        dropped: "inserted_window_dims",
        mapped: "scatter_dims_to_operand_dims",
        index_batching: "scatter_indices_batching_dims",
    };
    let windows = Windows::read(r, to.shape(), indices, part.shape(), None, names)?;
    let outside = outside(r, Outside::Dropped)?;
    let unique = r.bool_or("unique_indices", false)?;
    if num_elements(part.shape()) == 0 {
        return r.results(&[a]);
    }
    if r.op.primitive == "scatter_sub" {
        update = r.unary(UnaryOp::Neg, update);
    }
    if to.is_scalar() || windows.count() == 1 {
        return scatter_one(r, op, a, update, &windows, outside);
    }
    let at = windows.positions(r, outside)?;
    let distinct = unique && windows.are_apart();
    let put = |r: &mut OpReader<'_>, op, a, update| {
        let ty = r.ty(a).clone();
        let kind = OpKind::Put {
            op,
            a,
            at,
            update,
            distinct,
        };
        r.emit1(kind, ty)
    };
    let dtype = to.dtype();
    let out = match op {
        PutOp::Set => put(r, op, a, update),
        _ if dtype == DType::Bool => {
            let op = match op {
                PutOp::Add | PutOp::Max | PutOp::Set => PutOp::Max,
                PutOp::Mul | PutOp::Min => PutOp::Min,
            };
            put(r, op, a, update)
        }
        PutOp::Max | PutOp::Min if dtype.is_float() => {
            // As integers of the same order, for which the order of updates means nothing.
            let is_max = op == PutOp::Max;
            let wide = if dtype.bits() < 16 { DType::F32 } else { dtype };
            let (a, update) = (r.converted(a, wide), r.converted(update, wide));
            let (keys, updates) = (order_of(r, a, is_max)?, order_of(r, update, is_max)?);
            let out = put(r, op, keys, updates);
            let out = key_from_order(r, out, wide, is_max)?;
            let is_nan = r.compare(CompareOp::Ne, a, a);
            let out = r.choose(is_nan, a, out);
            r.converted(out, dtype)
        }
        PutOp::Add | PutOp::Mul | PutOp::Max | PutOp::Min => put(r, op, a, update),
    };
    r.results(&[out])
}

/// One window: what is there, combined with the update, is put back.
fn scatter_one(
    r: &mut OpReader<'_>,
    op: PutOp,
    a: Value,
    update: Value,
    windows: &Windows,
    outside: Outside,
) -> Result<()> {
    let ty = r.ty(a).clone();
    let (starts, inside) = windows.only(r, outside)?;
    let window = Type::of(ty.dtype(), windows.sizes.as_slice());
    let old = if window == ty {
        a
    } else {
        let starts = starts.clone();
        r.emit1(OpKind::DynamicSlice { a, starts }, window.clone())
    };
    let update = r.reshaped(update, window.shape())?;
    let is_bool = ty.dtype() == DType::Bool;
    let new = match op {
        PutOp::Set => update,
        PutOp::Add | PutOp::Max if is_bool => r.binary(BinaryOp::Or, old, update),
        PutOp::Mul | PutOp::Min if is_bool => r.binary(BinaryOp::And, old, update),
        PutOp::Add => r.binary(BinaryOp::Add, old, update),
        PutOp::Mul => r.binary(BinaryOp::Mul, old, update),
        PutOp::Max => r.binary(BinaryOp::Max, old, update),
        PutOp::Min => r.binary(BinaryOp::Min, old, update),
    };
    let new = match inside {
        Some(inside) => r.choose(inside, new, old),
        None => new,
    };
    if window == ty {
        return r.results(&[new]);
    }
    r.declared(OpKind::DynamicUpdateSlice { a, update: new, starts })
}
