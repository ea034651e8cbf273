//! Ops of the kernel IR that an op of the descriptor is made of.
use super::op_reader::OpReader;
use super::types::shape;
use crate::dtype::DType;
use crate::error::Result;
use crate::kernel_ir::*;

impl OpReader<'_> {
    /// Every element of `ty` is this integer, truncated to the type.
    pub fn int_splat(&mut self, ty: &Type, x: i64) -> Value {
        let bits = kernel::int_bits(ty.dtype(), x);
        self.splat(ty, bits)
    }

    /// Every element of `ty` has these bits.
    pub fn splat(&mut self, ty: &Type, bits: u64) -> Value {
        let v = self.emit1(OpKind::Constant(Constant::Splat(bits)), ty.clone());
        if ty.is_scalar()
            && let Some(x) = kernel::bits_int(ty.dtype(), bits)
        {
            self.importer.kernel.values[v].facts = Facts::constant(x);
        }
        v
    }

    pub fn unary(&mut self, op: UnaryOp, a: Value) -> Value {
        let ty = self.ty(a).clone();
        self.emit1(OpKind::Unary { op, a }, ty)
    }

    /// Operands of one type.
    pub fn binary(&mut self, op: BinaryOp, a: Value, b: Value) -> Value {
        let ty = self.ty(a).clone();
        self.emit1(OpKind::Binary { op, a, b }, ty)
    }

    /// The same with an integer.
    pub fn binary_int(&mut self, op: BinaryOp, a: Value, x: i64) -> Value {
        let ty = self.ty(a).clone();
        let b = self.int_splat(&ty, x);
        self.binary(op, a, b)
    }

    pub fn compare(&mut self, op: CompareOp, a: Value, b: Value) -> Value {
        let ty = self.ty(a).with_dtype(DType::Bool);
        self.emit1(OpKind::Compare { op, a, b }, ty)
    }

    pub fn compare_int(&mut self, op: CompareOp, a: Value, x: i64) -> Value {
        let ty = self.ty(a).clone();
        let b = self.int_splat(&ty, x);
        self.compare(op, a, b)
    }

    /// `which ? yes : no`; `which` is a scalar or of their shape.
    pub fn choose(&mut self, which: Value, yes: Value, no: Value) -> Value {
        let ty = self.ty(yes).clone();
        let cases = vec![no, yes];
        self.emit1(OpKind::Select { which, cases }, ty)
    }

    pub fn converted(&mut self, a: Value, to: DType) -> Value {
        let ty = self.ty(a).with_dtype(to);
        if *self.ty(a) == ty {
            return a;
        }
        self.emit1(OpKind::Convert { a }, ty)
    }

    /// The bits as another type of the same width.
    pub fn bits_as(&mut self, a: Value, to: DType) -> Value {
        let ty = self.ty(a).with_dtype(to);
        if *self.ty(a) == ty {
            return a;
        }
        self.emit1(OpKind::Bitcast { a }, ty)
    }

    pub fn reshaped(&mut self, a: Value, to: &[u64]) -> Result<Value> {
        let ty = Type::of(self.ty(a).dtype(), shape(to)?);
        if *self.ty(a) == ty {
            return Ok(a);
        }
        Ok(self.emit1(OpKind::Reshape { a }, ty))
    }

    /// Dimension i of `a` becomes dimension `dims[i]`.
    pub fn broadcast(&mut self, a: Value, to: &[u64], dims: Vec<u32>) -> Result<Value> {
        let ty = Type::of(self.ty(a).dtype(), shape(to)?);
        if *self.ty(a) == ty {
            return Ok(a);
        }
        Ok(self.emit1(OpKind::Broadcast { a, dims }, ty))
    }

    /// The index along a dimension, i32.
    pub fn iota(&mut self, of: &[u64], dim: usize) -> Result<Value> {
        let ty = Type::of(DType::I32, shape(of)?);
        Ok(self.emit1(OpKind::Iota { dim: dim as u32 }, ty))
    }

    /// `sizes` elements from `starts`.
    pub fn part(&mut self, a: Value, starts: Vec<u64>, sizes: &[u64]) -> Result<Value> {
        let ty = Type::of(self.ty(a).dtype(), shape(sizes)?);
        if *self.ty(a) == ty {
            return Ok(a);
        }
        let strides = vec![1; sizes.len()];
        Ok(self.emit1(OpKind::Slice { a, starts, strides }, ty))
    }
}

/// Row-major strides in elements.
pub fn strides_of(shape: &[u64]) -> Vec<i64> {
    let mut out = vec![1i64; shape.len()];
    for d in (1..shape.len()).rev() {
        out[d - 1] = out[d].saturating_mul(shape[d] as i64);
    }
    out
}
