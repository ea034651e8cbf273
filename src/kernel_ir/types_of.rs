//! Types of operands and results: what rows of the [table](super::table) say of them is made of.
//!
//! A check reads from left to right (`t.barrier(barrier)?.predicate(*predicate)?.none()`): operands first, then what the results are.
use super::class::Transfer;
use super::verify::Rule;
use super::*;
use crate::dtype::DType;

/// What an op's results are, and the kernel that knows its operands.
pub(super) struct Typing<'a> {
    pub kernel: &'a Kernel,
    pub results: Vec<&'a Type>,
}

/// What is wrong, and by which rule.
pub(super) type Broken = (Rule, String);
pub(super) type Checked<'t, 'a> = Result<&'t Typing<'a>, Broken>;

/// What is wrong with an op of a kernel whose results are to have these types.
pub fn check_types(kernel: &Kernel, kind: &OpKind, results: &[Type]) -> Result<(), String> {
    let results = results.iter().collect();
    let checked = kind.check_types(&Typing { kernel, results }).map(|_| ());
    checked.map_err(|(_, text)| text)
}

fn arity<T>(text: impl Into<String>) -> Result<T, Broken> {
    Err((Rule::Arity, text.into()))
}

/// Whether `part` fits into `whole`.
fn fits(part: &Type, whole: &Type) -> bool {
    part.dtype() == whole.dtype()
        && part.shape().len() == whole.shape().len()
        && part.shape().iter().zip(whole.shape()).all(|(p, w)| p <= w)
}

// ------------------------------------------------------------ of any op
impl<'a> Typing<'a> {
    pub fn ty(&self, v: Value) -> &'a Type {
        self.kernel.ty(v)
    }

    fn types(&self, values: &[Value]) -> Vec<&'a Type> {
        values.iter().map(|&v| self.ty(v)).collect()
    }

    pub fn want(&self, ok: bool, text: impl FnOnce() -> String) -> Checked<'_, 'a> {
        if ok { Ok(self) } else { Err((Rule::Type, text())) }
    }

    /// Exactly these result types.
    fn results(&self, expected: &[&Type]) -> Checked<'_, 'a> {
        if self.results.len() != expected.len() {
            return arity(format!("{} results, expected {}", self.results.len(), expected.len()));
        }
        for (got, expected) in self.results.iter().zip(expected) {
            self.want(got == expected, || {
                format!("a result of type {got}, expected {expected}")
            })?;
        }
        Ok(self)
    }

    fn one(&self) -> Result<&'a Type, Broken> {
        match *self.results {
            [only] => Ok(only),
            _ => arity(format!("{} results, expected 1", self.results.len())),
        }
    }

    pub fn none(&self) -> Checked<'_, 'a> {
        self.results(&[])
    }
    /// One result of this operand's type.
    pub fn gives(&self, v: Value) -> Checked<'_, 'a> {
        self.results(&[self.ty(v)])
    }
    pub fn gives_flags(&self, v: Value) -> Checked<'_, 'a> {
        self.results(&[&self.ty(v).with_dtype(DType::Bool)])
    }
    pub fn gives_all(&self, values: &[Value]) -> Checked<'_, 'a> {
        self.results(&self.types(values))
    }
    pub fn gives_i32(&self) -> Checked<'_, 'a> {
        self.results(&[&Type::Scalar(DType::I32)])
    }

    fn scalar(&self, v: Value, ok: impl Fn(DType) -> bool) -> Checked<'_, 'a> {
        let ty = self.ty(v);
        self.want(ty.is_scalar() && ok(ty.dtype()), || format!("{v} is of type {ty}"))
    }
    pub fn int(&self, v: Value) -> Checked<'_, 'a> {
        self.scalar(v, DType::is_int)
    }
    pub fn i32(&self, v: Value) -> Checked<'_, 'a> {
        self.scalar(v, |d| d == DType::I32)
    }
    pub fn predicate(&self, v: Option<Value>) -> Checked<'_, 'a> {
        v.map_or(Ok(self), |v| self.scalar(v, |d| d == DType::Bool))
    }

    pub fn same(&self, a: Value, b: Value) -> Checked<'_, 'a> {
        let (a, b) = (self.ty(a), self.ty(b));
        self.want(a == b, || format!("operands of types {a} and {b}"))
    }

    /// No operand of an op on values is an accumulator.
    pub fn no_accumulators(&self, kind: &OpKind) -> Checked<'_, 'a> {
        let mut has_any = false;
        visit::for_each_value(kind, &mut |v| has_any |= self.ty(v).is_acc());
        self.want(!has_any, || "an accumulator as an operand".to_string())
    }
}

// ------------------------------------------------------------ values
impl<'a> Typing<'a> {
    pub fn constant(&self, constant: &Constant) -> Checked<'_, 'a> {
        let result = self.one()?;
        if let Constant::Dense(bytes) = constant {
            let width = u64::from(result.dtype().bits()).div_ceil(8);
            let n = num_elements(result.shape()).checked_mul(width);
            self.want(n == Some(bytes.len() as u64), || {
                format!("{} bytes for {result}", bytes.len())
            })?;
        }
        self.want(!result.is_acc(), || "an accumulator".to_string())
    }

    pub fn unary(&self, op: UnaryOp, a: Value) -> Checked<'_, 'a> {
        match op == UnaryOp::IsFinite {
            true => self.gives_flags(a),
            false => self.gives(a),
        }
    }

    pub fn select(&self, which: Value, cases: &[Value]) -> Checked<'_, 'a> {
        let Some(&first) = cases.first() else {
            return arity("no cases");
        };
        for &case in cases {
            self.want(self.ty(case) == self.ty(first), || {
                format!("cases of types {} and {}", self.ty(first), self.ty(case))
            })?;
        }
        let w = self.ty(which);
        self.want(w.is_scalar() || w.shape() == self.ty(first).shape(), || {
            format!("a selector of type {w}")
        })?;
        self.want(
            (w.dtype() == DType::Bool && cases.len() == 2) || w.dtype() == DType::I32,
            || format!("a selector of type {w} for {} cases", cases.len()),
        )?;
        self.gives(first)
    }

    pub fn clamp(&self, lo: Value, x: Value, hi: Value) -> Checked<'_, 'a> {
        let is_same = self.ty(lo) == self.ty(x) && self.ty(hi) == self.ty(x);
        self.want(is_same, || "bounds of another type".to_string())?.gives(x)
    }

    pub fn convert(&self, a: Value) -> Checked<'_, 'a> {
        let (from, to) = (self.ty(a), self.one()?);
        self.want(*to == from.with_dtype(to.dtype()), || format!("{from} to {to}"))
    }

    pub fn bitcast(&self, a: Value) -> Checked<'_, 'a> {
        let (from, to) = (self.ty(a), self.one()?);
        let (wide, narrow) = (u64::from(from.dtype().bits()), u64::from(to.dtype().bits()));
        let mut shape = Shape::from_slice(from.shape());
        let fits = if wide > narrow {
            shape.push(wide / narrow);
            wide.is_multiple_of(narrow)
        } else {
            wide == narrow || narrow.is_multiple_of(wide) && shape.pop() == Some(narrow / wide)
        };
        self.want(fits && to.shape() == &shape[..], || format!("{from} to {to}"))
    }

    pub fn iota(&self, dim: u32) -> Checked<'_, 'a> {
        let result = self.one()?;
        let fits = (dim as usize) < result.shape().len() && result.dtype() != DType::Bool;
        self.want(fits, || format!("dimension {dim} of {result}"))
    }

    pub fn broadcast(&self, a: Value, dims: &[u32]) -> Checked<'_, 'a> {
        let (from, to) = (self.ty(a), self.one()?);
        let ok = dims.len() == from.shape().len()
            && from.dtype() == to.dtype()
            && dims.windows(2).all(|w| w[0] < w[1])
            && dims
                .iter()
                .zip(from.shape())
                .all(|(&d, &n)| to.shape().get(d as usize).is_some_and(|&m| n == 1 || n == m));
        self.want(ok, || format!("{from} to {to} along {dims:?}"))
    }

    pub fn reshape(&self, a: Value) -> Checked<'_, 'a> {
        let (from, to) = (self.ty(a), self.one()?);
        let ok = from.dtype() == to.dtype() && num_elements(from.shape()) == num_elements(to.shape());
        self.want(ok, || format!("{from} to {to}"))
    }

    pub fn transpose(&self, a: Value, permutation: &[u32]) -> Checked<'_, 'a> {
        let from = self.ty(a);
        let to = view::permuted(from.shape(), permutation).ok_or((Rule::Type, format!("{permutation:?} of {from}")))?;
        self.results(&[&Type::of(from.dtype(), to)])
    }

    pub fn slice(&self, a: Value, starts: &[u64], strides: &[u64]) -> Checked<'_, 'a> {
        let (from, to) = (self.ty(a), self.one()?);
        let ok = from.dtype() == to.dtype()
            && [to.shape().len(), starts.len(), strides.len()] == [from.shape().len(); 3]
            && (0..starts.len()).all(|d| {
                let (n, extent) = (to.shape()[d], from.shape()[d]);
                let last = (n.saturating_sub(1))
                    .checked_mul(strides[d])
                    .and_then(|n| n.checked_add(starts[d]));
                strides[d] > 0 && last.is_some_and(|last| if n == 0 { last <= extent } else { last < extent })
            });
        self.want(ok, || format!("{to} at {starts:?} of {from}"))
    }

    pub fn dynamic_slice(&self, a: Value, starts: &[Value]) -> Checked<'_, 'a> {
        let (from, to) = (self.ty(a), self.one()?);
        starts.iter().try_for_each(|&s| self.int(s).map(|_| ()))?;
        self.want(starts.len() == from.shape().len() && fits(to, from), || {
            format!("{to} of {from}")
        })
    }

    pub fn dynamic_update_slice(&self, a: Value, update: Value, starts: &[Value]) -> Checked<'_, 'a> {
        starts.iter().try_for_each(|&s| self.int(s).map(|_| ()))?;
        let (whole, part) = (self.ty(a), self.ty(update));
        self.want(starts.len() == whole.shape().len() && fits(part, whole), || {
            format!("{part} in {whole}")
        })?;
        self.gives(a)
    }

    pub fn concat(&self, parts: &[Value], dim: u32) -> Checked<'_, 'a> {
        let (to, d) = (self.one()?, dim as usize);
        self.want(!parts.is_empty(), || "no parts".to_string())?;
        let mut sum = 0;
        for &p in parts {
            let t = self.ty(p);
            let same = t.dtype() == to.dtype()
                && t.shape().len() == to.shape().len()
                && d < to.shape().len()
                && (0..to.shape().len()).all(|i| i == d || t.shape()[i] == to.shape()[i]);
            self.want(same, || format!("{t} in {to} along {dim}"))?;
            sum += t.shape()[d];
        }
        self.want(to.shape().get(d) == Some(&sum), || format!("{sum} positions in {to}"))
    }

    pub fn pad(&self, a: Value, value: Value, [low, high, interior]: [&[i64]; 3]) -> Checked<'_, 'a> {
        let (from, to) = (self.ty(a), self.one()?);
        self.want(*self.ty(value) == Type::Scalar(from.dtype()), || {
            "the value's type".to_string()
        })?;
        let rank = from.shape().len();
        let ok = to.dtype() == from.dtype()
            && [to.shape().len(), low.len(), high.len(), interior.len()] == [rank; 4]
            && (0..rank).all(|d| {
                let n = i128::from(from.shape()[d]);
                let [low, high, gap] = [low[d], high[d], interior[d]].map(i128::from);
                gap >= 0 && n + (n - 1).max(0) * gap + low + high == i128::from(to.shape()[d])
            });
        self.want(ok, || format!("{from} to {to}"))
    }

    pub fn reduce_precision(&self, a: Value, exponent: u32, mantissa: u32) -> Checked<'_, 'a> {
        self.want((1..=11).contains(&exponent) && mantissa <= 52, || {
            format!("{exponent} bits of exponent, {mantissa} of mantissa")
        })?;
        self.gives(a)
    }

    pub fn reduce(&self, a: Value, axes: &[u32]) -> Checked<'_, 'a> {
        let from = self.ty(a);
        self.want(
            axes.windows(2).all(|w| w[0] < w[1]) && axes.iter().all(|&d| (d as usize) < from.shape().len()),
            || format!("axes {axes:?} of {from}"),
        )?;
        let kept: Shape = (0..from.shape().len())
            .filter(|&d| !axes.contains(&(d as u32)))
            .map(|d| from.shape()[d])
            .collect();
        self.results(&[&Type::of(from.dtype(), kept)])
    }

    pub fn arg_reduce(&self, a: Value, axis: u32) -> Checked<'_, 'a> {
        let (from, to) = (self.ty(a), self.one()?);
        let mut kept = Shape::from_slice(from.shape());
        self.want((axis as usize) < kept.len() && to.dtype().is_int(), || {
            format!("axis {axis} of {from}")
        })?;
        kept.remove(axis as usize);
        self.results(&[&Type::of(to.dtype(), kept)])
    }

    fn positions(&self, at: Value, shape: &[u64]) -> Checked<'_, 'a> {
        let ty = self.ty(at);
        let fits = ty.dtype() == DType::I32 && ty.shape() == shape && !ty.is_scalar();
        self.want(fits, || format!("positions of type {ty} for {shape:?}"))
    }

    pub fn take(&self, a: Value, at: Value, fill: Value) -> Checked<'_, 'a> {
        let dtype = self.ty(a).dtype();
        self.positions(at, self.one()?.shape())?;
        self.want(*self.ty(fill) == Type::Scalar(dtype), || "the value's type".to_string())?;
        self.results(&[&self.ty(at).with_dtype(dtype)])
    }

    pub fn put(&self, a: Value, at: Value, update: Value) -> Checked<'_, 'a> {
        let (into, update) = (self.ty(a), self.ty(update));
        self.positions(at, update.shape())?;
        self.want(
            update.dtype() == into.dtype() && !into.is_scalar() && !update.is_scalar(),
            || format!("{update} into {into}"),
        )?;
        self.gives(a)
    }

    pub fn sort(&self, keys: &[Value], axis: u32, first: u64, indexed: bool) -> Checked<'_, 'a> {
        let shape = keys.first().map_or(&[][..], |k| self.ty(*k).shape());
        let fits = |k: &Value| {
            let dtype = self.ty(*k).dtype();
            self.ty(*k).shape() == shape && dtype.is_int() && !dtype.is_signed_int()
        };
        self.want((axis as usize) < shape.len() && keys.iter().all(fits), || {
            format!("keys along {axis} of {shape:?}")
        })?;
        let axis = axis as usize;
        self.want((1..=shape[axis].max(1)).contains(&first), || {
            format!("the first {first} along {axis} of {shape:?}")
        })?;
        let mut to = Shape::from_slice(shape);
        to[axis] = to[axis].min(first);
        let dtypes = keys.iter().map(|k| self.ty(*k).dtype());
        let expected: Vec<Type> = dtypes
            .chain(indexed.then_some(DType::I32))
            .map(|dtype| Type::of(dtype, to.clone()))
            .collect();
        self.results(&expected.iter().collect::<Vec<_>>())
    }

    pub fn inline_ptx(&self, code: &InlinePtx, refs: &[RefUse], args: &[Value]) -> Checked<'_, 'a> {
        let known = |operand: &InlineOperand| match operand {
            InlineOperand::Value(i) => (*i as usize) < args.len(),
            InlineOperand::Ref(i) => (*i as usize) < refs.len(),
            InlineOperand::Map(i) => (*i as usize) < code.maps.len(),
        };
        self.want(code.operands.iter().all(known), || {
            "an operand that is not there".to_string()
        })?;
        let maps = |map: &InlineMap| (map.of as usize) < refs.len() && map.span().is_some();
        self.want(code.maps.iter().all(maps), || {
            "a tensor map that there cannot be".to_string()
        })?;
        let of_data = |r: &&RefUse| r.elem != Elem::Barrier;
        refs.iter().filter(of_data).try_for_each(|r| self.data(r).map(|_| ()))?;
        if let Some(whole) = &code.whole {
            let fits = |arrays: &[Option<LaneArray>], types: &[&Type]| {
                let each = arrays.iter().zip(types).all(|(a, ty)| a.is_some() != ty.is_scalar());
                arrays.len() == types.len() && each
            };
            return self.want(
                fits(&whole.args, &self.types(args))
                    && fits(&whole.results, &self.results)
                    && whole.refs.len() == refs.len(),
                || "a layout for each array, and none for scalars".to_string(),
            );
        }
        let arrays = self.types(args).into_iter().chain(self.results.iter().copied());
        let mut shapes = arrays.filter(|ty| !ty.is_scalar()).map(Type::shape);
        let first = shapes.next();
        self.want(shapes.all(|s| Some(s) == first), || {
            "arrays of several shapes".to_string()
        })
    }
}

// ------------------------------------------------------------ memory
impl<'a> Typing<'a> {
    fn data(&self, r: &RefUse) -> Result<Type, Broken> {
        match r.elem {
            Elem::Data(dtype) => Ok(Type::of(dtype, r.shape.clone())),
            Elem::Barrier | Elem::Semaphore => Err((Rule::Type, format!("{} is no data", r.alloc))),
        }
    }

    fn elem(&self, r: &RefUse, elem: Elem) -> Checked<'_, 'a> {
        self.want(r.elem == elem, || {
            format!("{} is of {}, expected {elem}", r.alloc, r.elem)
        })
    }
    pub fn barrier(&self, r: &RefUse) -> Checked<'_, 'a> {
        self.elem(r, Elem::Barrier)
    }
    pub fn barriers(&self, r: Option<&RefUse>) -> Checked<'_, 'a> {
        r.map_or(Ok(self), |r| self.barrier(r))
    }
    pub fn semaphore(&self, r: &RefUse) -> Checked<'_, 'a> {
        self.elem(r, Elem::Semaphore)
    }
    pub fn signals(&self, signals: &[(RefUse, Value)]) -> Checked<'_, 'a> {
        let one = |(semaphore, value): &(RefUse, Value)| self.semaphore(semaphore)?.i32(*value).map(|_| ());
        signals.iter().try_for_each(one).map(|()| self)
    }
    pub fn gmem(&self, r: &RefUse) -> Checked<'_, 'a> {
        self.want(self.kernel.allocs[r.alloc].is_gmem(), || {
            format!("{} is not in GMEM", r.alloc)
        })
    }
    pub fn smem(&self, r: &RefUse) -> Checked<'_, 'a> {
        self.want(self.kernel.allocs[r.alloc].is_smem(), || {
            format!("{} is not in SMEM", r.alloc)
        })
    }

    pub fn tmem(&self, r: &RefUse) -> Checked<'_, 'a> {
        self.want(self.kernel.allocs[r.alloc].is_tmem(), || {
            format!("{} is not in TMEM", r.alloc)
        })
    }
    /// One result, of the type of what a view shows.
    pub fn loaded(&self, src: &RefUse) -> Checked<'_, 'a> {
        let ty = self.data(src)?;
        self.results(&[&ty])
    }
    /// A product that accumulates in tensor memory.
    pub fn tcgen05(&self, acc: &RefUse, [a, b]: [&RefUse; 2], a_in_tmem: bool) -> Checked<'_, 'a> {
        let of_matrices = [acc, a, b].iter().all(|r| r.shape.len() == 2);
        self.want(of_matrices, || "operands that are no matrices".to_string())?;
        let fits = acc.shape[0] == a.shape[0] && a.shape[1] == b.shape[0] && acc.shape[1] == b.shape[1];
        self.want(fits, || format!("{:?} += {:?} @ {:?}", acc.shape, a.shape, b.shape))?;
        self.tmem(acc)?.smem(b)?;
        match a_in_tmem {
            true => self.tmem(a),
            false => self.smem(a),
        }
    }

    /// A value that goes into a view of its type.
    pub fn stored(&self, dst: &RefUse, value: Value) -> Checked<'_, 'a> {
        let ty = self.ty(value);
        self.want(self.data(dst)? == *ty, || format!("{ty} into {}", dst.alloc))
    }

    fn masked(&self, mask: Option<Value>, shape: &[u64]) -> Checked<'_, 'a> {
        mask.map_or(Ok(self), |v| {
            let ty = self.ty(v);
            let fits = ty.dtype() == DType::Bool && ty.shape() == shape;
            self.want(fits, || format!("a mask of type {ty} for {shape:?}"))
        })
    }

    fn indices(&self, r: &RefUse, at: &[Value], shape: &[u64]) -> Checked<'_, 'a> {
        self.want(at.len() == r.shape.len() && !at.is_empty(), || {
            format!("{} arrays of indices of rank {}", at.len(), r.shape.len())
        })?;
        for &v in at {
            let ty = self.ty(v);
            let fits = matches!(ty.dtype(), DType::I32 | DType::I64) && ty.shape() == shape;
            self.want(fits, || format!("indices of type {ty} for {shape:?}"))?;
        }
        Ok(self)
    }

    pub fn transfer(&self, transfer: &Transfer<'_>) -> Checked<'_, 'a> {
        let view = transfer.view;
        let ty = match (transfer.at, transfer.value) {
            (None, _) => self.data(view)?,
            (Some(_), Some(value)) => self.ty(value).clone(),
            (Some(_), None) => self.one()?.clone(),
        };
        if let Some(at) = transfer.at {
            self.indices(view, at, ty.shape())?;
            let way = if transfer.loads { "from" } else { "into" };
            self.want(view.dtype() == Some(ty.dtype()), || {
                format!("{ty} {way} {}", view.alloc)
            })?;
        } else if let Some(value) = transfer.value {
            self.stored(view, value)?;
        }
        self.masked(transfer.mask, ty.shape())?;
        let expected = transfer.loads.then_some(&ty);
        self.results(expected.as_slice())
    }

    /// A copy between views of one type, but that each of two CTAs may have half.
    pub fn copy(&self, src: &RefUse, dst: &RefUse, leader_tracked: Option<LeaderTracked>) -> Checked<'_, 'a> {
        let mut whole = self.data(dst)?;
        if let (Some(LeaderTracked::Partitioned { dim }), Type::Array { shape, .. }) = (leader_tracked, &mut whole)
            && let Some(extent) = shape.get_mut(dim as usize)
        {
            *extent *= 2;
        }
        self.want(self.data(src)? == whole, || {
            "source and destination of different types".to_string()
        })
    }

    /// The bits of a barrier's phases, which come back behind other scalars.
    pub fn phases(&self, others: &[DType], phases: Option<Value>) -> Checked<'_, 'a> {
        phases.map_or(Ok(self), |v| self.scalar(v, |d| d == DType::U32))?;
        let bits = phases.map(|_| DType::U32);
        let expected: Vec<Type> = others.iter().copied().chain(bits).map(Type::Scalar).collect();
        self.results(&expected.iter().collect::<Vec<_>>())
    }
}

// ------------------------------------------------------------ tensor cores
impl<'a> Typing<'a> {
    fn accumulator(&self, acc: &AccUse) -> Result<Type, Broken> {
        match acc {
            AccUse::Ref(r) => match self.kernel.allocs[r.alloc].kind {
                AllocKind::Register {
                    dtype,
                    accumulator: true,
                } => Ok(Type::Acc {
                    dtype,
                    shape: r.shape.clone(),
                }),
                _ => Err((Rule::Type, format!("{} is no accumulator", r.alloc))),
            },
            AccUse::Value(v) if self.ty(*v).is_acc() => Ok(self.ty(*v).clone()),
            AccUse::Value(v) => Err((Rule::Type, format!("{v} is of type {}", self.ty(*v)))),
            AccUse::Part { acc, at, shape } => match self.ty(*acc) {
                Type::Acc { dtype, shape: whole } if legality::tensor_core::is_of_tiles(whole, at, shape) => {
                    Ok(Type::Acc {
                        dtype: *dtype,
                        shape: shape.as_slice().into(),
                    })
                }
                ty => Err((Rule::Type, format!("{shape:?} at {at:?} of {acc} of type {ty}"))),
            },
        }
    }

    fn operand(&self, operand: &MmaOperand) -> Result<Type, Broken> {
        match operand {
            MmaOperand::Smem(r) => self.smem(r)?.data(r),
            MmaOperand::Registers(v) => Ok(self.ty(*v).clone()),
        }
    }

    pub fn acc_init(&self, init: Option<Value>) -> Checked<'_, 'a> {
        let result = self.one()?;
        self.want(result.is_acc(), || format!("a result of type {result}"))?;
        init.map_or(Ok(self), |v| {
            let ty = self.ty(v);
            self.want(ty.dtype() == result.dtype() && ty.shape() == result.shape(), || {
                format!("{ty} for {result}")
            })
        })
    }

    pub fn wgmma(&self, acc: &AccUse, a: &MmaOperand, b: &RefUse) -> Checked<'_, 'a> {
        self.smem(b)?;
        let (ta, tc, tb) = (self.operand(a)?, self.accumulator(acc)?, self.data(b)?);
        let legal = legality::tensor_core::wgmma(&tc, &ta, &tb);
        self.want(legal.is_ok(), || format!("{tc} += {ta} @ {tb}"))?;
        acc.value().map_or_else(|| self.none(), |v| self.gives(v))
    }

    pub fn accumulators(&self, accs: &[Value]) -> Checked<'_, 'a> {
        for &v in accs {
            self.want(self.ty(v).is_acc(), || format!("{v} is of type {}", self.ty(v)))?;
        }
        Ok(self)
    }

    pub fn acc_read(&self, acc: &AccUse) -> Checked<'_, 'a> {
        let tc = self.accumulator(acc)?;
        let array = Type::of(tc.dtype(), Shape::from_slice(tc.shape()));
        match acc {
            AccUse::Ref(_) => self.results(&[&array]),
            AccUse::Value(_) => self.results(&[&array, &tc]),
            AccUse::Part { .. } => Err((Rule::Type, "a part is not read".to_string())),
        }
    }

    /// The product of matrices, or of as many in each operand; the types that operands may have are the arithmetic's.
    fn product(&self, acc: Option<Value>, [a, b]: [&Type; 2], arithmetic: DotArithmetic) -> Checked<'_, 'a> {
        let shape = match (a.shape(), b.shape()) {
            ([m, k], [n, kb]) if k == kb => Some(vec![*m, *n]),
            ([batch, m, k], [bb, n, kb]) if k == kb && batch == bb => Some(vec![*batch, *m, *n]),
            _ => None,
        };
        let dtype = arithmetic.result(a.dtype()).filter(|_| a.dtype() == b.dtype());
        let (Some(shape), Some(dtype), false) = (shape, dtype, a.shape().contains(&0)) else {
            return self.want(false, || format!("{a} @ transposed {b}"));
        };
        let result = Type::of(dtype, Shape::from_slice(&shape));
        self.want(
            acc.is_none_or(|acc| *self.ty(acc) == result) && !shape.contains(&0),
            || format!("{a} @ transposed {b} added to another type than {result}"),
        )?;
        self.results(&[&result])
    }

    pub fn dot(&self, acc: Option<Value>, a: Value, b: Value, arithmetic: DotArithmetic) -> Checked<'_, 'a> {
        self.product(acc, [self.ty(a), self.ty(b)], arithmetic)
    }

    pub fn dot_in_place(&self, acc: Option<Value>, a: &MmaOperand, b: &MmaOperand) -> Checked<'_, 'a> {
        let types = [self.operand(a)?, self.operand(b)?];
        let in_place = a.reference().or(b.reference());
        self.want(in_place.is_some(), || "no operand in shared memory".to_string())?;
        let are_matrices = types.iter().all(|ty| ty.shape().len() == 2);
        self.want(are_matrices, || format!("{} @ transposed {}", types[0], types[1]))?;
        self.product(acc, [&types[0], &types[1]], DotArithmetic::TensorCore)
    }
}

// ------------------------------------------------------------ control
impl<'a> Typing<'a> {
    pub fn for_loop(&self, lower: Value, upper: Value, [inits, xs]: [&[Value]; 2], body: Region) -> Checked<'_, 'a> {
        let (region, results) = (&self.kernel.regions[body], &self.results);
        self.int(lower)?.want(self.ty(lower) == self.ty(upper), || {
            "bounds of different types".to_string()
        })?;
        if region.params.len() != 1 + inits.len() + xs.len()
            || region.results.len() != results.len()
            || results.len() < inits.len()
        {
            return arity("carries, slices and results differ in number");
        }
        self.want(self.ty(region.params[0]) == self.ty(lower), || {
            "a counter of another type".to_string()
        })?;
        for (i, &init) in inits.iter().enumerate() {
            for other in [self.ty(region.params[1 + i]), self.ty(region.results[i]), results[i]] {
                self.want(other == self.ty(init), || {
                    format!("carry {i} of types {} and {other}", self.ty(init))
                })?;
            }
        }
        let slice_of = |slice: &Type, whole: &Type| {
            let rest = whole.shape().split_first().map(|(_, rest)| rest);
            let fits = slice.dtype() == whole.dtype() && rest == Some(slice.shape());
            self.want(fits, || format!("a slice of type {slice} of {whole}"))
        };
        for (&x, &p) in xs.iter().zip(&region.params[1 + inits.len()..]) {
            slice_of(self.ty(p), self.ty(x))?;
        }
        for (&y, &whole) in region.results[inits.len()..].iter().zip(&results[inits.len()..]) {
            slice_of(self.ty(y), whole)?;
        }
        Ok(self)
    }

    pub fn while_loop(&self, inits: &[Value], cond: Region, body: Region) -> Checked<'_, 'a> {
        let (c, b) = (&self.kernel.regions[cond], &self.kernel.regions[body]);
        let Some((&first, passed)) = c.results.split_first() else {
            return arity("a condition that yields nothing");
        };
        self.predicate(Some(first))?;
        self.carried(inits, &[&c.params, passed, &b.params, &b.results])
    }

    fn carried(&self, inits: &[Value], borders: &[&[Value]]) -> Checked<'_, 'a> {
        let carried = self.types(inits);
        for border in borders {
            self.want(self.types(border) == carried, || {
                "carries of different types".to_string()
            })?;
        }
        self.gives_all(inits)
    }

    pub fn switch(&self, selector: Value, arms: &[Region]) -> Checked<'_, 'a> {
        let s = self.ty(selector);
        let ok = s.is_scalar() && (s.dtype() == DType::I32 || (s.dtype() == DType::Bool && arms.len() == 2));
        self.want(ok, || format!("a selector of type {s} for {} arms", arms.len()))?;
        for &arm in arms {
            self.yields(arm, "an arm")?;
        }
        self.want(!arms.is_empty(), || "no arms".to_string())
    }

    /// A region that nothing goes into: what it yields is what the op gives.
    pub fn yields(&self, region: Region, what: &str) -> Checked<'_, 'a> {
        let region = &self.kernel.regions[region];
        match region.params.is_empty() {
            true => self.gives_all(&region.results),
            false => arity(format!("{what} with parameters")),
        }
    }

    pub fn warp_map(&self, axis: Axis, inits: &[Value], body: Region) -> Checked<'_, 'a> {
        let region = &self.kernel.regions[body];
        self.want(self.kernel.axes[axis].kind == AxisKind::Warp, || {
            format!("{axis} is no axis of warps")
        })?;
        self.carried(inits, &[&region.params, &region.results])
    }
}
