//! Computes 64-bit index arithmetic in 32 bits where facts allow it.
//!
//! Under `jax_enable_x64` loop counters and slice starts are i64. A scalar i64 op whose result and operands are known to fit i32 is
//! done in i32; what needs the wide value converts it back. Views name the narrow value.
use crate::dtype::DType;
use crate::error::Result;
use crate::kernel_ir::class::Function;
use crate::kernel_ir::rewrite::{Substitution, append_convert, regions_of};
use crate::kernel_ir::*;
use cranelift_entity::SecondaryMap;
use cranelift_entity::packed_option::PackedOption;

pub fn run(kernel: &mut Kernel) -> Result<()> {
    let wide = |v: &ValueData| v.ty == Type::Scalar(DType::I64) || v.ty == Type::Scalar(DType::U64);
    if !kernel.values.values().any(wide) {
        return Ok(());
    }
    facts::run(kernel);
    let body = kernel.body;
    Narrow {
        kernel,
        narrow: SecondaryMap::new(),
        subst: Substitution::default(),
    }
    .region(body);
    Ok(())
}

struct Narrow<'a> {
    kernel: &'a mut Kernel,
    /// The i32 of the same number.
    narrow: SecondaryMap<Value, PackedOption<Value>>,
    subst: Substitution,
}

impl Narrow<'_> {
    fn region(&mut self, region: Region) {
        for op in std::mem::take(&mut self.kernel.regions[region].ops) {
            self.subst.apply(self.kernel, op);
            for inner in regions_of(self.kernel, op) {
                self.region(inner);
            }
            self.views(region, op);
            if !self.op(region, op) {
                self.kernel.regions[region].ops.push(op);
            }
        }
        self.subst.apply_results(self.kernel, region);
    }

    fn fits(&self, v: Value) -> bool {
        self.kernel.facts(v).within(i32::MIN, i32::MAX)
    }

    fn is_wide(&self, v: Value) -> bool {
        matches!(self.kernel.ty(v), Type::Scalar(DType::I64 | DType::U64))
    }

    /// The i32 of the same number, if it is known to fit. Its op goes to the end of `region`.
    fn narrowed(&mut self, region: Region, v: Value) -> Option<Value> {
        if *self.kernel.ty(v) == Type::Scalar(DType::I32) {
            return Some(v);
        }
        if !self.is_wide(v) || !self.fits(v) {
            return None;
        }
        if let Some(n) = self.narrow[v].expand() {
            return Some(n);
        }
        // Not remembered: the conversion is in scope only here.
        let loc = self
            .kernel
            .def_op(v)
            .map_or(crate::error::Loc::CALL_SITE, |op| self.kernel.ops[op].loc);
        Some(append_convert(self.kernel, region, v, DType::I32, loc))
    }

    /// Views take narrow positions.
    fn views(&mut self, region: Region, op: Op) {
        let mut wide = vec![];
        visit::for_each_ref(&self.kernel.ops[op].kind, &mut |r| {
            r.for_each_value(&mut |v| wide.push(v))
        });
        wide.retain(|&v| self.is_wide(v));
        for v in wide {
            if let Some(n) = self.narrowed(region, v) {
                visit::map_refs(&mut self.kernel.ops[op].kind, &mut |r| {
                    r.map_values(&mut |w| {
                        if *w == v {
                            *w = n;
                        }
                    })
                });
            }
        }
    }

    /// Does a wide op narrowly. True: the op itself is not needed any more.
    fn op(&mut self, region: Region, op: Op) -> bool {
        let [result] = self.kernel.ops[op].results.as_slice() else {
            return false;
        };
        let result = *result;
        let mut operands = vec![];
        visit::for_each_value(&self.kernel.ops[op].kind, &mut |v| operands.push(v));
        let is_narrow = self.is_wide(result) && self.fits(result);
        let function = self.kernel.ops[op].kind.function();
        if function.is_none() && !matches!(self.kernel.ops[op].kind, OpKind::Constant(_)) {
            return false;
        }
        let candidate = match function {
            Some(Function::Binary { op, .. }) => {
                let exact = matches!(
                    op,
                    BinaryOp::Add
                        | BinaryOp::Sub
                        | BinaryOp::Mul
                        | BinaryOp::Div
                        | BinaryOp::Rem
                        | BinaryOp::Max
                        | BinaryOp::Min
                );
                exact && is_narrow
            }
            Some(Function::Unary { op, .. }) => matches!(op, UnaryOp::Neg | UnaryOp::Abs | UnaryOp::Sign) && is_narrow,
            Some(Function::Compare { a, .. }) => self.is_wide(a),
            Some(Function::Convert { a }) => {
                let ty = self.kernel.ty(a);
                let small = ty.is_scalar() && !ty.dtype().is_float() && self.fits(a);
                // A negative number is not small as a u64.
                small
                    && if self.is_wide(result) {
                        is_narrow
                    } else {
                        self.is_wide(a)
                    }
            }
            None | Some(Function::Select { .. } | Function::Clamp { .. } | Function::MultipleOf { .. }) => is_narrow,
            Some(Function::IntegerPow { .. } | Function::Other) => false,
        };
        let loc = self.kernel.ops[op].loc;
        let all_fit = operands.iter().all(|&v| !self.is_wide(v) || self.fits(v));
        if !candidate || !all_fit {
            return false;
        }
        // x / −1 and |x| of the least i32 do not fit; facts of the result have excluded them.
        let mut kind = self.kernel.ops[op].kind.clone();
        if let OpKind::Constant(Constant::Splat(bits)) = &mut kind {
            *bits = kernel::int_bits(DType::I32, *bits as i64);
        } else {
            visit::map_values(&mut kind, &mut |v| {
                if let Some(n) = self.narrowed(region, *v).filter(|_| self.is_wide(*v)) {
                    *v = n;
                }
            });
        }
        let (ty, facts) = (self.kernel.ty(result).clone(), self.kernel.facts(result));
        if !self.is_wide(result) {
            // The result's type stays; the op only reads narrow operands.
            if let OpKind::Convert { a } = kind
                && *self.kernel.ty(a) == ty
            {
                self.subst.replace(result, a);
                return true;
            }
            self.kernel.ops[op].kind = kind;
            return false;
        }
        let narrow = if let OpKind::Convert { a } = kind {
            append_convert(self.kernel, region, a, DType::I32, loc)
        } else {
            self.kernel.append1(region, kind, Type::Scalar(DType::I32), loc)
        };
        self.kernel.values[narrow].facts = facts;
        self.narrow[result] = narrow.into();
        // Uses of the wide number get it from the narrow one; dead code otherwise.
        self.kernel.ops[op].kind = OpKind::Convert { a: narrow };
        false
    }
}
