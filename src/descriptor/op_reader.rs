//! Access to one op of a descriptor: operands, attributes and results, checked.
use super::decode::{damaged, newer};
use super::import::{Binding, Importer, value_type};
use super::proto;
use super::proto::attr::Value as AttrValue;
use super::types::{array_type, dtype};
use crate::dtype::DType;
use crate::error::{Error, Loc, Result};
use crate::kernel_ir::*;
use smallvec::SmallVec;

/// One op being imported to the end of `region`.
pub struct OpReader<'a> {
    pub importer: &'a mut Importer,
    pub op: &'a proto::Op,
    pub region: Region,
    pub loc: Loc,
    /// Bit i: attribute i has been read.
    attrs_read: u64,
}

impl<'a> OpReader<'a> {
    pub fn new(importer: &'a mut Importer, op: &'a proto::Op, region: Region) -> Result<OpReader<'a>> {
        if op.attrs.len() > 64 {
            return Err(damaged("an op with more than 64 attributes"));
        }
        if !op.attrs.windows(2).all(|w| w[0].name < w[1].name) {
            return Err(damaged(format!("the attributes of `{}` are not sorted", op.primitive)));
        }
        Ok(OpReader {
            importer,
            op,
            region,
            loc: Loc(op.id),
            attrs_read: 0,
        })
    }

    /// An error about this op's descriptor.
    pub fn damaged(&self, what: &str) -> Error {
        damaged(format!("`{}`: {what}", self.op.primitive))
    }

    pub fn group(&self) -> Group {
        self.importer.kernel.regions[self.region].group
    }

    // ------------------------------------------------------------ attributes
    fn attr(&mut self, name: &str) -> Option<&'a AttrValue> {
        let i = self.op.attrs.iter().position(|a| a.name == name)?;
        self.attrs_read |= 1 << i;
        self.op.attrs[i].value.as_ref()
    }

    fn wrong(&self, name: &str) -> Error {
        self.damaged(&format!("the attribute `{name}` is missing or of another kind"))
    }

    pub fn int(&mut self, name: &str) -> Result<i64> {
        match self.attr(name) {
            Some(AttrValue::Int(x)) => Ok(*x),
            _ => Err(self.wrong(name)),
        }
    }

    pub fn int_or(&mut self, name: &str, default: i64) -> Result<i64> {
        match self.attr(name) {
            Some(AttrValue::Int(x)) => Ok(*x),
            None => Ok(default),
            _ => Err(self.wrong(name)),
        }
    }

    /// A small non-negative number.
    pub fn count(&mut self, name: &str) -> Result<u32> {
        let x = self.int(name)?;
        u32::try_from(x).map_err(|_| self.damaged(&format!("`{name}` = {x}")))
    }

    pub fn bool_or(&mut self, name: &str, default: bool) -> Result<bool> {
        match self.attr(name) {
            Some(AttrValue::Bool(x)) => Ok(*x),
            None => Ok(default),
            _ => Err(self.wrong(name)),
        }
    }

    pub fn optional_text(&mut self, name: &str) -> Result<Option<&'a str>> {
        match self.attr(name) {
            Some(AttrValue::Text(x)) => Ok(Some(x)),
            None => Ok(None),
            _ => Err(self.wrong(name)),
        }
    }

    pub fn text(&mut self, name: &str) -> Result<&'a str> {
        self.optional_text(name)?.ok_or_else(|| self.wrong(name))
    }

    pub fn optional_ints(&mut self, name: &str) -> Result<Option<&'a [i64]>> {
        match self.attr(name) {
            Some(AttrValue::Ints(x)) => Ok(Some(&x.values)),
            None => Ok(None),
            _ => Err(self.wrong(name)),
        }
    }

    pub fn ints(&mut self, name: &str) -> Result<&'a [i64]> {
        self.optional_ints(name)?.ok_or_else(|| self.wrong(name))
    }

    /// Distinct dimensions of an array of rank `rank`.
    pub fn dims(&mut self, name: &str, rank: usize) -> Result<Vec<u32>> {
        let ints = self.ints(name)?;
        let mut seen = 0u64;
        ints.iter()
            .map(|&d| match usize::try_from(d) {
                Ok(d) if d < rank && seen & (1 << d) == 0 => {
                    seen |= 1 << d;
                    Ok(d as u32)
                }
                _ => Err(self.damaged(&format!("`{name}` = {ints:?} for rank {rank}"))),
            })
            .collect()
    }

    /// One dimension of an array of rank `rank`.
    pub fn dim(&mut self, name: &str, rank: usize) -> Result<u32> {
        let d = self.int(name)?;
        match usize::try_from(d) {
            Ok(i) if i < rank => Ok(i as u32),
            _ => Err(self.damaged(&format!("`{name}` = {d} for rank {rank}"))),
        }
    }

    pub fn dtype(&mut self, name: &str) -> Result<DType> {
        match self.attr(name) {
            Some(AttrValue::Dtype(x)) => dtype(*x),
            _ => Err(self.wrong(name)),
        }
    }

    pub fn optional_layout(&mut self, name: &str) -> Result<Option<&'a proto::Layout>> {
        match self.attr(name) {
            Some(AttrValue::Layout(x)) => Ok(Some(x)),
            None => Ok(None),
            _ => Err(self.wrong(name)),
        }
    }

    pub fn optional_type(&mut self, name: &str) -> Result<Option<&'a proto::Type>> {
        match self.attr(name) {
            Some(AttrValue::Type(x)) => Ok(Some(x)),
            None => Ok(None),
            _ => Err(self.wrong(name)),
        }
    }

    pub fn transforms(&mut self, name: &str) -> Result<&'a [proto::TransformList]> {
        match self.attr(name) {
            Some(AttrValue::Transforms(x)) => Ok(&x.lists),
            None => Ok(&[]),
            _ => Err(self.wrong(name)),
        }
    }

    pub fn optional_attrs(&mut self, name: &str) -> Result<&'a [proto::Attr]> {
        match self.attr(name) {
            Some(AttrValue::Attrs(x)) => Ok(&x.attrs),
            None => Ok(&[]),
            _ => Err(self.wrong(name)),
        }
    }

    /// Axis ids; none when absent.
    pub fn axis_ids(&mut self, name: &str) -> Result<&'a [u32]> {
        match self.attr(name) {
            Some(AttrValue::Axes(x)) => Ok(&x.ids),
            None => Ok(&[]),
            _ => Err(self.wrong(name)),
        }
    }

    /// Axes of the cluster; none when absent.
    pub fn cluster_axes(&mut self, name: &str) -> Result<Vec<Axis>> {
        self.axis_ids(name)?
            .iter()
            .map(|&id| self.importer.cluster_axis(id))
            .collect()
    }

    /// A member of one of our enums by its name.
    pub fn member<T>(&mut self, name: &str, from_name: fn(&str) -> Option<T>) -> Result<Option<T>> {
        match self.optional_text(name)? {
            None => Ok(None),
            Some(text) => match from_name(text) {
                Some(x) => Ok(Some(x)),
                None => Err(newer(format!("`{}` with `{name}` = {text:?}", self.op.primitive))),
            },
        }
    }

    /// Distinct dimensions of the op's first result.
    pub fn dims_of_result(&mut self, name: &str) -> Result<Vec<u32>> {
        let rank = self.result_type(0)?.shape().len();
        self.dims(name, rank)
    }

    /// A dimension of the op's first result.
    pub fn dim_of_result(&mut self, name: &str) -> Result<u32> {
        let rank = self.result_type(0)?.shape().len();
        self.dim(name, rank)
    }

    /// Numbers that are not negative.
    pub fn sizes(&mut self, name: &str) -> Result<Vec<u64>> {
        let sizes = self.ints(name)?.iter().map(|&n| u64::try_from(n));
        let sizes: std::result::Result<_, _> = sizes.collect();
        sizes.map_err(|_| self.damaged(&format!("`{name}` has negative numbers")))
    }

    /// Reads an attribute whose value means nothing to us.
    pub fn ignore(&mut self, name: &str) {
        self.attr(name);
    }

    // ------------------------------------------------------------ operands
    /// Checks the number of operands.
    pub fn arity(&self, n: usize) -> Result<()> {
        if self.op.operands.len() != n {
            return Err(self
                .damaged("the number of operands")
                .expected(n.to_string())
                .got(self.op.operands.len().to_string()));
        }
        Ok(())
    }

    fn operand(&self, i: usize) -> Result<&'a proto::Operand> {
        self.op
            .operands
            .get(i)
            .ok_or_else(|| self.damaged(&format!("there is no operand {i}")))
    }

    /// Operand i as a value.
    pub fn value(&mut self, i: usize) -> Result<Value> {
        let operand = self.operand(i)?;
        self.importer.value(operand, self.region, self.loc)
    }

    /// Operands from i on as values.
    pub fn values_from(&mut self, i: usize) -> Result<Vec<Value>> {
        let operands = self.op.operands.get(i..).unwrap_or(&[]);
        self.importer.operands_as_values(operands, self.region, self.loc)
    }

    /// Operand i as a scalar of one of these types.
    pub fn scalar(&mut self, i: usize, what: &str, ok: fn(DType) -> bool) -> Result<Value> {
        let v = self.value(i)?;
        let ty = self.importer.kernel.ty(v);
        if !ty.is_scalar() || !ok(ty.dtype()) {
            return Err(self.damaged(&format!("operand {i}")).expected(what).got(ty.to_string()));
        }
        Ok(v)
    }

    pub fn is_absent(&self, i: usize) -> Result<bool> {
        Ok(matches!(self.operand(i)?.kind, Some(proto::operand::Kind::Absent(_))))
    }

    /// Operand i as a bool scalar, or none.
    pub fn predicate(&mut self, i: usize) -> Result<Option<Value>> {
        if self.is_absent(i)? {
            Ok(None)
        } else {
            self.scalar(i, "bool", |d| d == DType::Bool).map(Some)
        }
    }

    pub fn is_ref(&self, i: usize) -> bool {
        matches!(
            self.op.operands.get(i).and_then(|o| o.kind.as_ref()),
            Some(proto::operand::Kind::Ref(_))
        )
    }

    /// Operand i as a use of a reference.
    pub fn reference(&mut self, i: usize) -> Result<RefUse> {
        let operand = self.operand(i)?;
        self.reference_of(operand)
    }

    fn reference_of(&mut self, operand: &proto::Operand) -> Result<RefUse> {
        match &operand.kind {
            Some(proto::operand::Kind::Ref(r)) => self.importer.ref_use(r, self.region, self.loc),
            _ => Err(self.damaged("an operand that is no reference")),
        }
    }

    /// Operand i as a use of a reference to data of any memory space.
    pub fn data_ref(&mut self, i: usize) -> Result<RefUse> {
        let r = self.reference(i)?;
        match r.elem {
            Elem::Data(_) => Ok(r),
            Elem::Barrier | Elem::Semaphore => Err(self.other_reference(&r, "a reference to data")),
        }
    }

    /// Operand i as a use of exactly one barrier.
    pub fn barrier(&mut self, i: usize) -> Result<RefUse> {
        self.single(i, Elem::Barrier)
    }

    /// Operand i as a use of exactly one semaphore.
    pub fn semaphore(&mut self, i: usize) -> Result<RefUse> {
        self.single(i, Elem::Semaphore)
    }

    /// An operand as a use of exactly one semaphore.
    pub fn semaphore_of(&mut self, operand: &proto::Operand) -> Result<RefUse> {
        let r = self.reference_of(operand)?;
        self.only(r, Elem::Semaphore)
    }

    fn single(&mut self, i: usize, elem: Elem) -> Result<RefUse> {
        let r = self.reference(i)?;
        self.only(r, elem)
    }

    fn only(&self, r: RefUse, elem: Elem) -> Result<RefUse> {
        if r.elem != elem {
            return Err(self.other_reference(&r, &format!("a {elem}")));
        }
        if num_elements(&r.shape) != 1 {
            return Err(Error::invalid(format!("`{}` on several {elem}s", self.op.primitive))
                .expected(format!("one {elem}"))
                .got(format!("shape {:?}", r.shape.as_slice()))
                .remedy("index the array: ref.at[i]"));
        }
        Ok(r)
    }

    /// A reference to something else than the op takes: JAX does not look at all of them.
    fn other_reference(&self, r: &RefUse, expected: &str) -> Error {
        Error::invalid(format!("`{}` of something else than {expected}", self.op.primitive))
            .expected(expected)
            .got(words::of_use(&self.importer.kernel, r))
            .remedy("look at the order of the kernel's references: arguments, outputs, scratch_types")
    }

    /// Operand i as a list of operands.
    pub fn list(&self, i: usize) -> Result<&'a [proto::Operand]> {
        match &self.operand(i)?.kind {
            Some(proto::operand::Kind::List(list)) => Ok(&list.operands),
            _ => Err(self.damaged(&format!("operand {i} is no list"))),
        }
    }

    /// Operand i as a device id.
    pub fn device(&mut self, i: usize) -> Result<Option<Value>> {
        let operand = self.operand(i)?;
        self.device_of(operand)
    }

    /// An operand as a device id.
    pub fn device_of(&mut self, operand: &proto::Operand) -> Result<Option<Value>> {
        match &operand.kind {
            Some(proto::operand::Kind::Absent(_)) => Ok(None),
            Some(proto::operand::Kind::Device(d)) => self.importer.device_id(d, self.region, self.loc).map(Some),
            _ => Err(self.damaged("an operand that is no device id")),
        }
    }

    // ------------------------------------------------------------ results
    pub fn ty(&self, v: Value) -> &Type {
        self.importer.kernel.ty(v)
    }

    /// The declared type of result i.
    pub fn result_type(&self, i: usize) -> Result<Type> {
        match self.op.results.get(i) {
            Some(v) => value_type(v),
            None => Err(self.damaged(&format!("there is no result {i}"))),
        }
    }

    /// Appends an op.
    pub fn emit(&mut self, kind: OpKind, results: impl IntoIterator<Item = Type>) -> SmallVec<[Value; 2]> {
        self.importer.kernel.append(self.region, kind, results, self.loc)
    }

    /// Appends an op with one result.
    pub fn emit1(&mut self, kind: OpKind, ty: Type) -> Value {
        self.emit(kind, [ty])[0]
    }

    /// The op's results are these values, whose types must be the declared ones.
    pub fn results(&mut self, values: &[Value]) -> Result<()> {
        if self.op.results.len() != values.len() {
            return Err(self
                .damaged("the number of results")
                .expected(values.len().to_string())
                .got(self.op.results.len().to_string()));
        }
        for (result, &v) in self.op.results.iter().zip(values) {
            let declared = value_type(result)?;
            if declared != *self.ty(v) {
                let computed = self.ty(v).to_string();
                return Err(self
                    .damaged("a result's type")
                    .expected(computed)
                    .got(declared.to_string()));
            }
            self.importer.define(result.id, Binding::Value(v))?;
        }
        Ok(())
    }

    /// Appends an op with one result, if its row allows operands and results of these types.
    pub fn checked(&mut self, kind: OpKind, ty: Type) -> Result<Value> {
        self.check(&kind, std::slice::from_ref(&ty))?;
        Ok(self.emit1(kind, ty))
    }

    fn check(&self, kind: &OpKind, results: &[Type]) -> Result<()> {
        check_types(&self.importer.kernel, kind, results).map_err(|what| self.damaged(&what))
    }

    /// The op is this one of ours, with results of the declared types, which must be those that its row allows. What changes nothing is its
    /// operand.
    pub fn declared(&mut self, kind: OpKind) -> Result<()> {
        let results = self.op.results.iter().map(value_type);
        let types = results.collect::<Result<Vec<Type>>>()?;
        self.check(&kind, &types)?;
        if let (Some(a), [to]) = (rearranged(&kind), &types[..])
            && self.ty(a) == to
        {
            return self.results(&[a]);
        }
        let mut values = SmallVec::new();
        for kind in super::multicast::expand(self, kind)? {
            values = self.emit(kind, types.iter().cloned());
        }
        self.results(&values)
    }

    /// Checks that everything in the op was read.
    pub fn finish(self) -> Result<()> {
        let unread = (0..self.op.attrs.len()).find(|&i| self.attrs_read & (1 << i) == 0);
        match unread {
            None => Ok(()),
            Some(i) => Err(Error::unsupported(format!(
                "the parameter `{}` of `{}`",
                self.op.attrs[i].name, self.op.primitive
            ))
            .remedy("leave it at its default, or use a version of smalt that fits this JAX")),
        }
    }

    /// The op's regions, of which there must be so many.
    pub fn regions<const N: usize>(&self) -> Result<&'a [proto::Region; N]> {
        let regions = self.op.regions.as_slice();
        regions.try_into().map_err(|_| {
            self.damaged("the number of regions")
                .expected(N.to_string())
                .got(regions.len().to_string())
        })
    }

    /// `v` as an array of this shape: a scalar and dimensions of extent 1 stretch.
    pub fn broadcast_to(&mut self, v: Value, shape: &[u64]) -> Result<Value> {
        let ty = self.ty(v).clone();
        if ty.shape() == shape {
            return Ok(v);
        }
        let stretches =
            ty.shape().len() == shape.len() && ty.shape().iter().zip(shape).all(|(&m, &n)| m == n || m == 1);
        if !ty.is_scalar() && !stretches {
            return Err(self
                .damaged("operands of different shapes")
                .expected(format!("{shape:?}"))
                .got(format!("{:?}", ty.shape())));
        }
        let dims = (0..ty.shape().len() as u32).collect();
        let result = Type::of(ty.dtype(), super::types::shape(shape)?);
        Ok(self.emit1(OpKind::Broadcast { a: v, dims }, result))
    }
}

/// The operand of an op that changes nothing if its result has the operand's type.
fn rearranged(kind: &OpKind) -> Option<Value> {
    if let OpKind::Convert { a }
    | OpKind::Bitcast { a }
    | OpKind::Reshape { a }
    | OpKind::Broadcast { a, .. }
    | OpKind::Slice { a, .. } = kind
    {
        return Some(*a);
    }
    let (of, values) = if let OpKind::Reduce { a, axes: dims, .. }
    | OpKind::Reverse { a, dims }
    | OpKind::Transpose { a, permutation: dims } = kind
    {
        (dims.len() + 1, std::slice::from_ref(a))
    } else if let OpKind::Pad { a, low, .. } = kind {
        (low.len() + 1, std::slice::from_ref(a))
    } else if let OpKind::Concat { parts: values, .. } = kind {
        (values.len(), values.as_slice())
    } else {
        return None;
    };
    values.first().copied().filter(|_| of == 1)
}

/// A table of primitives: how many operands each has, which of its attributes say nothing, and, from the rest of it, the op of ours that it
/// is, or, behind `others`, what imports it.
macro_rules! imports {
    ($r:ident,
     $($($primitive:literal)|+ $(($arity:literal))? $(ignoring $($ignored:literal),+)? => $kind:expr;)*
     others: { $($($other:literal)|+ $(($other_arity:literal))? $(ignoring $($other_ignored:literal),+)? => $import:expr;)* }) => {{
        match $r.op.primitive.as_str() {
            $($($primitive)|+ => {
                $($r.arity($arity)?;)?
                $($($r.ignore($ignored);)+)?
                let kind = $kind;
                $r.declared(kind)?
            })*
            $($($other)|+ => {
                $($r.arity($other_arity)?;)?
                $($($r.ignore($other_ignored);)+)?
                $import?
            })*
            _ => return Ok(false),
        }
        Ok(true)
    }};
}
pub(super) use imports;

impl Importer {
    /// An operand as a value; a literal becomes a constant at the end of `region`.
    pub fn value(&mut self, operand: &proto::Operand, region: Region, loc: Loc) -> Result<Value> {
        match &operand.kind {
            Some(proto::operand::Kind::Value(id)) => match self.binding(*id)? {
                Binding::Value(v) => Ok(*v),
                Binding::Ref(_) => Err(damaged(format!("value id {id} is a reference, used as a value"))),
                Binding::Free | Binding::OutOfScope => unreachable!("binding() refuses them"),
            },
            Some(proto::operand::Kind::Literal(literal)) => self.literal(literal, region, loc),
            Some(proto::operand::Kind::Absent(_)) => Err(damaged("an operand is absent that is needed")),
            _ => Err(damaged("an operand that is no value")),
        }
    }

    fn literal(&mut self, literal: &proto::Literal, region: Region, loc: Loc) -> Result<Value> {
        let Some(ty) = &literal.r#type else {
            return Err(damaged("a literal without a type"));
        };
        let ty = array_type(ty)?;
        let width = (ty.dtype().bits() as usize).div_ceil(8);
        let elements = num_elements(ty.shape());
        if elements.checked_mul(width as u64) != Some(literal.data.len() as u64) {
            return Err(damaged(format!(
                "a literal of type {ty} in {} bytes",
                literal.data.len()
            )));
        }
        let mask = if ty.dtype().bits() >= 64 {
            u64::MAX
        } else {
            (1 << ty.dtype().bits()) - 1
        };
        let bits = |chunk: &[u8]| {
            let raw = chunk.iter().rev().fold(0u64, |x, &b| x << 8 | u64::from(b)) & mask;
            if ty.dtype() == DType::Bool {
                u64::from(raw != 0)
            } else {
                raw
            }
        };
        let mut chunks = literal.data.chunks_exact(width);
        let first = chunks.next().map(bits);
        let constant = match first {
            Some(first) if chunks.all(|c| bits(c) == first) => Constant::Splat(first),
            Some(_) => Constant::Dense(literal.data.clone()),
            None => {
                return Err(Error::unsupported("a constant array without elements")
                    .remedy("leave arrays of size 0 out of the kernel"));
            }
        };
        let facts = match constant.splat().and_then(|b| kernel::bits_int(ty.dtype(), b)) {
            Some(x) if ty.is_scalar() => Some(Facts::constant(x)),
            _ => None,
        };
        let v = self.kernel.append1(region, OpKind::Constant(constant), ty, loc);
        if let Some(facts) = facts {
            self.kernel.values[v].facts = facts;
        }
        Ok(v)
    }
}
