//! What is alive where, and how many registers there are for it.
use super::class::{Carries, Pure, ShapeOp};
use super::rewrite::regions_of;
use super::*;
use cranelift_entity::EntitySet;
use rustc_hash::FxHashSet;
use smallvec::SmallVec;
use std::rc::Rc;

/// Makes of what is alive behind an op what is alive before it.
pub fn go_before(kernel: &Kernel, op: Op, alive: &mut FxHashSet<Value>) {
    for v in &kernel.ops[op].results {
        alive.remove(v);
    }
    visit::for_each_value(&kernel.ops[op].kind, &mut |v| {
        alive.insert(v);
    });
    for inner in regions_of(kernel, op) {
        captured(kernel, inner, alive);
    }
}

/// Adds what a region uses from outside.
pub fn captured(kernel: &Kernel, region: Region, out: &mut FxHashSet<Value>) {
    let mut used: FxHashSet<Value> = kernel.regions[region].results.iter().copied().collect();
    for &op in kernel.regions[region].ops.iter().rev() {
        go_before(kernel, op, &mut used);
    }
    for v in &kernel.regions[region].params {
        used.remove(v);
    }
    out.extend(used);
}

/// Whether an array takes no registers: it is made anew where it is used.
pub fn is_free(kernel: &Kernel, v: Value) -> bool {
    kernel.def_op(v).is_some_and(|op| {
        matches!(
            kernel.ops[op].kind,
            OpKind::Constant(_) | OpKind::Iota { .. } | OpKind::Broadcast { .. }
        )
    })
}

/// What an op and its regions use.
pub fn uses(kernel: &Kernel, op: Op) -> FxHashSet<Value> {
    let mut used = FxHashSet::default();
    go_before(kernel, op, &mut used);
    used
}

/// Whether a value takes registers for each of its elements.
pub fn is_held(kernel: &Kernel, v: Value) -> bool {
    !kernel.ty(v).is_scalar() && !is_free(kernel, v)
}

/// Vectors that have an element for each of a matrix's columns, of which each thread of a warpgroup has a quarter: rows are broadcast from them, or
/// reduced to them, maybe by way of other vectors.
fn columns(kernel: &Kernel) -> EntitySet<Value> {
    let is_vector = |v: &Value| kernel.ty(*v).shape().len() == 1;
    let mut found = EntitySet::new();
    // Vectors of which all are of the columns if one is.
    let mut alike: Vec<SmallVec<[Value; 4]>> = vec![];
    kernel.for_each_op(&mut |op| {
        let OpData { kind, results, .. } = &kernel.ops[op];
        let mut operands = SmallVec::new();
        visit::for_each_value(kind, &mut |v| operands.push(v));
        if let Some(Pure::Shape(ShapeOp::Broadcast { dims: &[dim] })) = kind.pure() {
            found.extend(operands.into_iter().filter(|_| dim > 0));
        } else if let Some(Pure::Reduce { axes: [0], .. }) = kind.pure() {
            found.extend(results.iter().copied().filter(is_vector));
        } else if let Some(Pure::Elementwise(_)) = kind.pure() {
            operands.extend(results.iter().copied());
            alike.push(operands);
        } else if let Some(control) = kind.control()
            && let Some(inits) = control.inits()
        {
            for Carries {
                region,
                params,
                results: yields,
            } in control.carries()
            {
                let data = &kernel.regions[region];
                alike.extend(inits.iter().enumerate().map(|(i, init)| {
                    let param = params.map(|first| data.params[first + i]);
                    let others = [param, data.results.get(yields + i).copied(), results.get(i).copied()];
                    others.into_iter().flatten().chain([*init]).collect()
                }));
            }
        }
    });
    alike.iter_mut().for_each(|values| values.retain(|v| is_vector(v)));
    let mut left = usize::MAX;
    while alike.len() < std::mem::replace(&mut left, alike.len()) {
        alike.reverse();
        alike.retain(|values| {
            let are_columns = values.iter().any(|v| found.contains(*v));
            found.extend(values.iter().copied().filter(|_| are_columns));
            !are_columns
        });
    }
    found
}

/// What is known at a place.
#[derive(Clone)]
pub struct Around {
    /// 32-bit registers of a thread.
    pub registers: u32,
    /// Values from outside of the region that are alive all through it.
    pub alive: FxHashSet<Value>,
    columns: Rc<EntitySet<Value>>,
}

impl Around {
    /// Where the kernel begins.
    pub fn new(kernel: &Kernel) -> Around {
        Around {
            registers: kernel.target.thread_registers(128 * kernel.num_warpgroups),
            alive: FxHashSet::default(),
            columns: Rc::new(columns(kernel)),
        }
    }

    /// 32-bit registers of a thread that hold a value, where elements have at least `bits`: what is gone by before there are layouts.
    pub fn words(&self, kernel: &Kernel, v: Value, bits: u64) -> u64 {
        let ty = kernel.ty(v);
        match self.columns.contains(v) {
            true => (ty.shape()[0] * bits.max(ty.dtype().bits().into())).div_ceil(4 * 32),
            false => ty.words(bits),
        }
    }

    /// The same with other values alive.
    pub fn with_alive(&self, alive: FxHashSet<Value>) -> Around {
        let Around {
            registers, ref columns, ..
        } = *self;
        let columns = columns.clone();
        Around {
            registers,
            alive,
            columns,
        }
    }

    /// Behind an op: it may change how many registers there are.
    pub fn pass(&mut self, kernel: &Kernel, op: Op) {
        if let OpKind::SetMaxRegisters { n, .. } = kernel.ops[op].kind {
            self.registers = n.min(kernel.target.max_thread_registers);
        }
    }

    /// What is alive behind each of these ops of a region but for what they give, the last op's first.
    pub fn behind(&self, kernel: &Kernel, at: Region, these: impl Fn(Op) -> bool) -> Vec<FxHashSet<Value>> {
        let mut out = vec![];
        let mut alive = self.alive.clone();
        alive.extend(&kernel.regions[at].results);
        for &op in kernel.regions[at].ops.iter().rev() {
            if these(op) {
                let mut behind = alive.clone();
                kernel.ops[op].results.iter().for_each(|v| {
                    behind.remove(v);
                });
                out.push(behind);
            }
            go_before(kernel, op, &mut alive);
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dtype::DType;
    use crate::kernel_ir::testing::KernelBuilder;

    /// Words of a vector of 256 bf16, converted to f32 and broadcast along this dimension: before and behind the conversion.
    fn words(dim: u32) -> [u64; 2] {
        let mut b = KernelBuilder::new();
        let x = b.input(DType::BF16, &[256]);
        let whole = b.whole(x);
        let loaded = b.load(whole);
        let wide = b.op1(OpKind::Convert { a: loaded }, DType::F32, &[256]);
        let shape = if dim == 0 { [256, 64] } else { [64, 256] };
        b.op1(
            OpKind::Broadcast {
                a: wide,
                dims: vec![dim],
            },
            DType::F32,
            &shape,
        );
        let kernel = b.finish();
        let around = Around::new(&kernel);
        [loaded, wide].map(|v| around.words(&kernel, v, 8))
    }

    #[test]
    fn a_thread_has_few_of_the_rows_and_a_quarter_of_the_columns() {
        assert_eq!(words(0), [4, 8]);
        assert_eq!(words(1), [32, 64]);
    }

    #[test]
    fn sums_over_rows_are_vectors_of_columns() {
        let mut b = KernelBuilder::new();
        let x = b.input(DType::F32, &[64, 256]);
        let whole = b.whole(x);
        let a = b.load(whole);
        let sum = |axis: u32| OpKind::Reduce {
            op: ReduceOp::Sum,
            a,
            axes: vec![axis],
            parallel: None,
        };
        let of_columns = b.op1(sum(0), DType::F32, &[256]);
        let of_rows = b.op1(sum(1), DType::F32, &[64]);
        let kernel = b.finish();
        let around = Around::new(&kernel);
        assert_eq!(
            [a, of_columns, of_rows].map(|v| around.words(&kernel, v, 8)),
            [128, 64, 2]
        );
        assert_eq!(around.words(&kernel, of_rows, 64), 4, "as 64-bit elements");
    }

    #[test]
    fn what_loops_carry_and_elements_give_is_of_the_columns_too() {
        let mut b = KernelBuilder::new();
        let x = b.input(DType::F32, &[64, 256]);
        let whole = b.whole(x);
        let a = b.load(whole);
        let vector = Type::Array {
            dtype: DType::F32,
            shape: [256].into_iter().collect(),
        };
        let (lower, upper) = (b.int(DType::I32, 0), b.int(DType::I32, 4));
        let v = b.input(DType::F32, &[256]);
        let start = b.whole(v);
        let (carried, other) = (b.load(start.clone()), b.load(start));
        let params = [Type::Scalar(DType::I32), vector.clone(), vector.clone()];
        let mut inside = vec![];
        let body = b.region(Group::Warpgroup, &params, |b, params| {
            let sum = OpKind::Reduce {
                op: ReduceOp::Sum,
                a,
                axes: vec![0],
                parallel: None,
            };
            let sum = b.op1(sum, DType::F32, &[256]);
            let op = BinaryOp::Add;
            let more = b.op1(
                OpKind::Binary {
                    op,
                    a: params[1],
                    b: sum,
                },
                DType::F32,
                &[256],
            );
            inside = vec![params[1], params[2]];
            vec![more, params[2]]
        });
        let kind = OpKind::For {
            lower,
            upper,
            inits: vec![carried, other],
            xs: vec![],
            reverse: false,
            unroll: 1,
            body,
        };
        let results = b.op(kind, &[vector.clone(), vector]);
        let half = b.op1(
            OpKind::Unary {
                op: UnaryOp::Neg,
                a: results[0],
            },
            DType::F32,
            &[256],
        );
        let kernel = b.finish();
        let around = Around::new(&kernel);
        let words = |v: Value| around.words(&kernel, v, 8);
        assert_eq!([carried, inside[0], results[0], half].map(words), [64; 4]);
        assert_eq!([other, inside[1], results[1]].map(words), [8; 3]);
    }
}
