//! Ops on values alone.
use super::memory::for_each_index;
use super::{Bits, Machine, Outcome, invalid, numbers, unsupported};
use smalt::dtype::DType;
use smalt::kernel_ir::*;
use std::rc::Rc;

/// Row-major.
pub fn flat(shape: &[u64], index: &[u64]) -> usize {
    shape.iter().zip(index).fold(0, |at, (n, i)| at * n + i) as usize
}

/// The array whose element `index` is the one of `a` at `of(index)`.
fn picked(a: &[u64], from: &[u64], to: &[u64], mut of: impl FnMut(&[u64], &mut [u64])) -> Vec<u64> {
    let mut result = Vec::with_capacity(to.iter().product::<u64>() as usize);
    let mut at = vec![0; from.len()];
    for_each_index(to, |index| {
        of(index, &mut at);
        result.push(a[flat(from, &at)]);
    });
    result
}

/// What a reduction begins with.
fn neutral(op: ReduceOp, dtype: DType) -> u64 {
    let float = |x: f64| numbers::from_f64(dtype, x);
    match op {
        ReduceOp::Sum | ReduceOp::Or | ReduceOp::Xor => 0,
        ReduceOp::Prod if dtype.is_float() => float(1.0),
        ReduceOp::Prod => 1,
        ReduceOp::And => numbers::mask(dtype),
        ReduceOp::Max if dtype.is_float() => float(f64::NEG_INFINITY),
        ReduceOp::Min if dtype.is_float() => float(f64::INFINITY),
        ReduceOp::Max if dtype.is_signed_int() => 1 << (dtype.bits() - 1),
        ReduceOp::Min if dtype.is_signed_int() => numbers::mask(dtype) >> 1,
        ReduceOp::Max => 0,
        ReduceOp::Min => numbers::mask(dtype),
    }
}

fn as_binary(op: ReduceOp) -> BinaryOp {
    match op {
        ReduceOp::Sum => BinaryOp::Add,
        ReduceOp::Prod => BinaryOp::Mul,
        ReduceOp::Max => BinaryOp::Max,
        ReduceOp::Min => BinaryOp::Min,
        ReduceOp::And => BinaryOp::And,
        ReduceOp::Or => BinaryOp::Or,
        ReduceOp::Xor => BinaryOp::Xor,
    }
}

fn known<T>(op: &str, dtype: DType, result: Option<T>) -> Outcome<T> {
    match result {
        Some(result) => Ok(result),
        None => unsupported(format!("{op} of {dtype}")),
    }
}

/// Sums and products are bool's "or" and "and" as numbers: 0 or not.
fn binary(op: BinaryOp, dtype: DType, a: u64, b: u64) -> Outcome<u64> {
    known(op.name(), dtype, numbers::binary(op, dtype, a, b))
}

/// One multiply-add, rounded to the type of the sum.
fn multiply_add(sum: DType, acc: u64, operand: DType, a: u64, b: u64) -> u64 {
    match sum.is_float() {
        true => {
            let product = numbers::to_f64(operand, a) * numbers::to_f64(operand, b);
            numbers::from_f64(sum, numbers::to_f64(sum, acc) + product)
        }
        false => {
            let product = numbers::to_int(operand, a) * numbers::to_int(operand, b);
            numbers::from_int(sum, numbers::to_int(sum, acc) + product)
        }
    }
}

/// As a tensor core takes it.
fn tensor_core_operand(dtype: DType, a: u64) -> u64 {
    match dtype {
        DType::F32 => u64::from(numbers::to_tf32(f32::from_bits(a as u32)).to_bits()),
        _ => a,
    }
}

/// `acc[i, j] += Σ a[i, k] · b(k, j)`, for k in order.
pub fn product(
    acc: &mut [u64],
    sum: DType,
    operand: DType,
    [m, n, k]: [usize; 3],
    a: &[u64],
    b: impl Fn(usize, usize) -> u64,
    tensor_core: bool,
) {
    let taken = |x| {
        if tensor_core {
            tensor_core_operand(operand, x)
        } else {
            x
        }
    };
    for i in 0..m {
        for j in 0..n {
            let at = &mut acc[i * n + j];
            for k_at in 0..k {
                *at = multiply_add(sum, *at, operand, taken(a[i * k + k_at]), taken(b(k_at, j)));
            }
        }
    }
}

impl Machine<'_> {
    fn starts(&self, a: usize, starts: &[Value], whole: &[u64], part: &[u64]) -> Outcome<Vec<u64>> {
        let clamped = starts.iter().zip(whole.iter().zip(part)).map(|(start, (n, size))| {
            let start = self.int(a, *start)?;
            Ok(start.clamp(0, i128::from(n - size)) as u64)
        });
        clamped.collect()
    }

    /// An op that has results made of its operands, and does nothing else; `None`: it is no such op.
    pub fn pure(&mut self, agent: usize, kind: &OpKind, results: &[Value]) -> Outcome<Option<Vec<Bits>>> {
        let kernel = self.kernel;
        let ty = |v: &Value| kernel.ty(*v);
        let get = |v: &Value| self.get(agent, *v);
        let to = results.first().map_or(&[][..], |r| kernel.ty(*r).shape());
        let dtype = results.first().map_or(DType::Bool, |r| kernel.ty(*r).dtype());
        let n = num_elements(to) as usize;
        let result = match kind {
            OpKind::Constant(Constant::Splat(bits)) => vec![*bits & numbers::mask(dtype); n],
            OpKind::Constant(Constant::Dense(bytes)) => {
                let width = dtype.bits().div_ceil(8) as usize;
                let element =
                    |b: &[u8]| b.iter().rev().fold(0, |x, byte| x << 8 | u64::from(*byte)) & numbers::mask(dtype);
                bytes.chunks(width).map(element).collect()
            }
            OpKind::Unary { op, a } => {
                let of = |x: &u64| known(op.name(), ty(a).dtype(), numbers::unary(*op, ty(a).dtype(), *x));
                get(a)?.iter().map(of).collect::<Outcome<_>>()?
            }
            OpKind::Binary { op, a, b } => {
                let (x, y) = (get(a)?, get(b)?);
                let pairs = x.iter().zip(y.iter());
                pairs.map(|(x, y)| binary(*op, dtype, *x, *y)).collect::<Outcome<_>>()?
            }
            OpKind::Compare { op, a, b } => {
                let (x, y) = (get(a)?, get(b)?);
                let pairs = x.iter().zip(y.iter());
                pairs
                    .map(|(x, y)| u64::from(numbers::compare(*op, ty(a).dtype(), *x, *y)))
                    .collect()
            }
            OpKind::Select { which, cases } => {
                let chosen = get(which)?;
                let cases = cases.iter().map(get).collect::<Outcome<Vec<_>>>()?;
                let mut result = vec![];
                for i in 0..n {
                    let which = numbers::to_int(ty(which).dtype(), chosen[if chosen.len() == 1 { 0 } else { i }]);
                    match usize::try_from(which).ok().and_then(|w| cases.get(w)) {
                        Some(case) => result.push(case[i]),
                        None => return invalid(format!("case {which} of {}", cases.len())),
                    }
                }
                result
            }
            OpKind::Clamp { lo, x, hi } => {
                let (lo, x, hi) = (get(lo)?, get(x)?, get(hi)?);
                let at = |list: &Bits, i: usize| list[if list.len() == 1 { 0 } else { i }];
                let of = |i| {
                    let above = binary(BinaryOp::Max, dtype, at(&x, i), at(&lo, i))?;
                    binary(BinaryOp::Min, dtype, above, at(&hi, i))
                };
                (0..n).map(of).collect::<Outcome<_>>()?
            }
            OpKind::IntegerPow { a, n } => {
                let of = |x: &u64| known("integer_pow", dtype, numbers::integer_pow(dtype, *x, *n));
                get(a)?.iter().map(of).collect::<Outcome<_>>()?
            }
            OpKind::Convert { a } => get(a)?
                .iter()
                .map(|x| numbers::convert(ty(a).dtype(), dtype, *x))
                .collect(),
            OpKind::Bitcast { a } => {
                let (from, to) = (ty(a).dtype().bits(), dtype.bits());
                let a = get(a)?;
                match from >= to {
                    true => {
                        let parts = |x: &u64| {
                            let x = *x;
                            (0..from / to).map(move |i| x >> (i * to) & (u64::MAX >> (64 - to)))
                        };
                        a.iter().flat_map(parts).collect()
                    }
                    false => {
                        let whole = |parts: &[u64]| parts.iter().rev().fold(0, |x, part| x << from | part);
                        a.chunks((to / from) as usize).map(whole).collect()
                    }
                }
            }
            OpKind::ReducePrecision {
                a,
                exponent_bits,
                mantissa_bits,
            } => {
                let of = |x: &u64| numbers::reduce_precision(dtype, *x, *exponent_bits, *mantissa_bits);
                get(a)?.iter().map(of).collect()
            }
            OpKind::Iota { dim } => {
                let mut result = vec![];
                for_each_index(to, |index| {
                    let i = index[*dim as usize];
                    result.push(match dtype.is_float() {
                        true => numbers::from_f64(dtype, i as f64),
                        false => numbers::from_int(dtype, i128::from(i)),
                    });
                });
                result
            }
            OpKind::Broadcast { a, dims } => {
                let from = ty(a).shape();
                picked(&get(a)?, from, to, |index, at| {
                    for (i, d) in dims.iter().enumerate() {
                        at[i] = if from[i] == 1 { 0 } else { index[*d as usize] };
                    }
                })
            }
            OpKind::Reshape { a }
            | OpKind::MultipleOf { a, .. }
            | OpKind::LayoutCast { a, .. }
            | OpKind::Relayout { a } => {
                if let OpKind::MultipleOf { divisor, .. } = kind
                    && self.int(agent, *a)? % i128::from(*divisor) != 0
                {
                    return invalid("a promise of a multiple that is none");
                }
                get(a)?.to_vec()
            }
            OpKind::Transpose { a, permutation } => picked(&get(a)?, ty(a).shape(), to, |index, at| {
                for (i, p) in permutation.iter().enumerate() {
                    at[*p as usize] = index[i];
                }
            }),
            OpKind::Slice { a, starts, strides } => picked(&get(a)?, ty(a).shape(), to, |index, at| {
                for d in 0..at.len() {
                    at[d] = starts[d] + index[d] * strides[d];
                }
            }),
            OpKind::DynamicSlice { a, starts } => {
                let starts = self.starts(agent, starts, ty(a).shape(), to)?;
                picked(&get(a)?, ty(a).shape(), to, |index, at| {
                    for d in 0..at.len() {
                        at[d] = starts[d] + index[d];
                    }
                })
            }
            OpKind::DynamicUpdateSlice { a, update, starts } => {
                let part = ty(update).shape();
                let starts = self.starts(agent, starts, to, part)?;
                let (mut result, update) = (get(a)?.to_vec(), get(update)?);
                for_each_index(part, |index| {
                    let at: Vec<u64> = index.iter().zip(&starts).map(|(i, s)| i + s).collect();
                    result[flat(to, &at)] = update[flat(part, index)];
                });
                result
            }
            OpKind::Concat { parts, dim } => {
                let dim = *dim as usize;
                let mut result = vec![0; n];
                let mut start = 0;
                for part in parts {
                    let (shape, elements) = (ty(part).shape(), get(part)?);
                    for_each_index(shape, |index| {
                        let mut at = index.to_vec();
                        at[dim] += start;
                        result[flat(to, &at)] = elements[flat(shape, index)];
                    });
                    start += shape[dim];
                }
                result
            }
            OpKind::Pad {
                a,
                value,
                low,
                high: _,
                interior,
            } => {
                let mut result = vec![get(value)?[0]; n];
                let (shape, elements) = (ty(a).shape(), get(a)?);
                for_each_index(shape, |index| {
                    let at: Option<Vec<u64>> = (0..to.len())
                        .map(|d| {
                            u64::try_from(low[d] + index[d] as i64 * (interior[d] + 1))
                                .ok()
                                .filter(|i| *i < to[d])
                        })
                        .collect();
                    if let Some(at) = at {
                        result[flat(to, &at)] = elements[flat(shape, index)];
                    }
                });
                result
            }
            OpKind::Reverse { a, dims } => picked(&get(a)?, ty(a).shape(), to, |index, at| {
                at.copy_from_slice(index);
                for d in dims {
                    at[*d as usize] = to[*d as usize] - 1 - index[*d as usize];
                }
            }),
            OpKind::Reduce { op, a, axes, .. } => {
                let (shape, elements) = (ty(a).shape(), get(a)?);
                let mut result = vec![neutral(*op, dtype); n];
                let mut wrong = Ok(());
                for_each_index(shape, |index| {
                    let kept = index.iter().enumerate().filter(|(d, _)| !axes.contains(&(*d as u32)));
                    let at: Vec<u64> = kept.map(|(_, i)| *i).collect();
                    let at = &mut result[flat(to, &at)];
                    match binary(as_binary(*op), dtype, *at, elements[flat(shape, index)]) {
                        Ok(x) => *at = x,
                        Err(e) => wrong = Err(e),
                    }
                });
                wrong?;
                result
            }
            OpKind::ArgReduce { op, a, axis } => {
                let (shape, elements, of) = (ty(a).shape(), get(a)?, ty(a).dtype());
                let axis = *axis as usize;
                let is_nan = |x: u64| of.is_float() && numbers::to_f64(of, x).is_nan();
                let better = match op {
                    ArgReduceOp::ArgMax => CompareOp::Gt,
                    ArgReduceOp::ArgMin => CompareOp::Lt,
                };
                let mut result = vec![];
                for_each_index(to, |index| {
                    let mut at = index.to_vec();
                    at.insert(axis, 0);
                    let mut best = (0, elements[flat(shape, &at)]);
                    for i in 1..shape[axis] {
                        at[axis] = i;
                        let x = elements[flat(shape, &at)];
                        if !is_nan(best.1) && (is_nan(x) || numbers::compare(better, of, x, best.1)) {
                            best = (i, x);
                        }
                    }
                    result.push(numbers::from_int(dtype, i128::from(best.0)));
                });
                result
            }
            OpKind::Cumulative { op, a, axis, reverse } => {
                let mut result = get(a)?.to_vec();
                let axis = *axis as usize;
                let combine = |x: u64, y: u64| match op {
                    CumulativeOp::Sum => binary(BinaryOp::Add, dtype, x, y),
                    CumulativeOp::Prod => binary(BinaryOp::Mul, dtype, x, y),
                    CumulativeOp::Max => binary(BinaryOp::Max, dtype, x, y),
                    CumulativeOp::Min => binary(BinaryOp::Min, dtype, x, y),
                    CumulativeOp::LogSumExp => {
                        let (x, y) = (numbers::to_f64(dtype, x), numbers::to_f64(dtype, y));
                        let top = x.max(y);
                        let sum = match top.is_infinite() {
                            true => top,
                            false => top + ((x - top).exp() + (y - top).exp()).ln(),
                        };
                        Ok(numbers::from_f64(dtype, sum))
                    }
                };
                let mut lines = to.to_vec();
                lines[axis] = u64::from(to[axis] > 0);
                let mut wrong = Ok(());
                for_each_index(&lines, |index| {
                    let mut at = index.to_vec();
                    for i in 1..to[axis] {
                        let (here, before) = match reverse {
                            false => (i, i - 1),
                            true => (to[axis] - 1 - i, to[axis] - i),
                        };
                        at[axis] = before;
                        let before = result[flat(to, &at)];
                        at[axis] = here;
                        let here = flat(to, &at);
                        match combine(before, result[here]) {
                            Ok(x) => result[here] = x,
                            Err(e) => wrong = Err(e),
                        }
                    }
                });
                wrong?;
                result
            }
            OpKind::Take { a, at, fill } => {
                let (elements, fill, of) = (get(a)?, get(fill)?, ty(at).dtype());
                let element = |p: &u64| {
                    let position = usize::try_from(numbers::to_int(of, *p)).ok();
                    position.and_then(|p| elements.get(p)).copied().unwrap_or(fill[0])
                };
                get(at)?.iter().map(element).collect()
            }
            OpKind::Put { op, a, at, update, .. } => {
                let mut result = get(a)?.to_vec();
                let (positions, update, of) = (get(at)?, get(update)?, ty(at).dtype());
                let narrow = dtype.is_float() && dtype.bits() < 32 && matches!(op, PutOp::Add | PutOp::Mul);
                let sums = if narrow { DType::F32 } else { dtype };
                let widen = |x: u64| numbers::convert(dtype, sums, x);
                let mut wide: Vec<u64> = result.iter().map(|x| widen(*x)).collect();
                let mut touched = vec![false; result.len()];
                for (p, new) in positions.iter().zip(update.iter()) {
                    let position = usize::try_from(numbers::to_int(of, *p))
                        .ok()
                        .filter(|p| *p < result.len());
                    let Some(p) = position else { continue };
                    touched[p] = true;
                    let new = widen(*new);
                    let op = match op {
                        PutOp::Set => {
                            wide[p] = new;
                            continue;
                        }
                        PutOp::Add if dtype == DType::Bool => BinaryOp::Or,
                        PutOp::Mul if dtype == DType::Bool => BinaryOp::And,
                        PutOp::Add => BinaryOp::Add,
                        PutOp::Mul => BinaryOp::Mul,
                        PutOp::Max => BinaryOp::Max,
                        PutOp::Min => BinaryOp::Min,
                    };
                    wide[p] = binary(op, sums, wide[p], new)?;
                }
                for (p, x) in result.iter_mut().enumerate().filter(|(p, _)| touched[*p]) {
                    *x = numbers::convert(sums, dtype, wide[p]);
                }
                result
            }
            OpKind::Sort {
                keys,
                axis,
                indexed,
                first,
            } => return self.sort(agent, keys, *axis as usize, *indexed, *first).map(Some),
            OpKind::OptimizationBarrier { values } => return values.iter().map(get).collect::<Outcome<_>>().map(Some),
            OpKind::Dot { acc, a, b, arithmetic } => {
                let shape = ty(a).shape();
                let k = *shape.last().expect("a matrix") as usize;
                let (rows, columns) = (to[to.len() - 2] as usize, to[to.len() - 1] as usize);
                let mut result = match acc {
                    Some(acc) => get(acc)?.to_vec(),
                    None => vec![0; n],
                };
                let (x, y, operand) = (get(a)?, get(b)?, ty(a).dtype());
                self.spend((n * k) as u64)?;
                for (i, part) in result.chunks_mut((rows * columns).max(1)).enumerate() {
                    let x = &x[i * rows * k..];
                    let y = &y[i * columns * k..];
                    let tensor_core = *arithmetic == DotArithmetic::TensorCore;
                    product(
                        part,
                        dtype,
                        operand,
                        [rows, columns, k],
                        x,
                        |k_at, j| y[j * k + k_at],
                        tensor_core,
                    );
                }
                result
            }
            _ => return Ok(None),
        };
        Ok(Some(vec![Rc::new(result)]))
    }

    fn sort(&self, agent: usize, keys: &[Value], axis: usize, indexed: bool, first: u64) -> Outcome<Vec<Bits>> {
        let shape = self.kernel.ty(keys[0]).shape();
        let arrays = keys.iter().map(|k| self.get(agent, *k)).collect::<Outcome<Vec<_>>>()?;
        let mut lines = shape.to_vec();
        lines[axis] = u64::from(shape[axis] > 0);
        let mut cut = shape.to_vec();
        cut[axis] = first;
        let n = num_elements(&cut) as usize;
        let mut sorted = vec![vec![0; n]; keys.len() + usize::from(indexed)];
        for_each_index(&lines, |index| {
            let at = |i: u64| {
                let mut at = index.to_vec();
                at[axis] = i;
                at
            };
            let mut order: Vec<u64> = (0..shape[axis]).collect();
            order.sort_by_key(|i| arrays.iter().map(|a| a[flat(shape, &at(*i))]).collect::<Vec<_>>());
            for (to, from) in order.iter().take(first as usize).enumerate() {
                let place = flat(&cut, &at(to as u64));
                for (array, sorted) in arrays.iter().zip(&mut sorted) {
                    sorted[place] = array[flat(shape, &at(*from))];
                }
                if indexed {
                    sorted[keys.len()][place] = *from;
                }
            }
        });
        Ok(sorted.into_iter().map(Rc::new).collect())
    }
}
