//! Loops carry an accumulator itself, and not the array that it is read into at an iteration's end, to start from at the next.
//!
//! ```text
//! for … (x = init)                           a = acc_init init
//!   a = acc_init x                           for … (a = a)
//!   b = wgmma a += …                     =>    b = wgmma a += …
//!   b = wgmma_wait 0 b                         b = wgmma_wait 0 b
//!   y = acc_read b                             yield b
//!   yield y                                  result = acc_read
//! ```
//!
//! Nothing else uses the array, before or behind the products, so that it is the accumulator all along: what handles accumulators
//! ([`crate::plan::parked`]) need not handle arrays.
use crate::error::Result;
use crate::kernel_ir::rewrite::{Substitution, regions_of};
use crate::kernel_ir::*;
use cranelift_entity::SecondaryMap;
use rustc_hash::FxHashMap;

pub fn run(kernel: &mut Kernel) -> Result<()> {
    if kernel.multiplies() {
        region(kernel, kernel.body);
    }
    Ok(())
}

fn region(kernel: &mut Kernel, at: Region) {
    let mut i = 0;
    while i < kernel.regions[at].ops.len() {
        let op = kernel.regions[at].ops[i];
        for inner in regions_of(kernel, op) {
            region(kernel, inner);
        }
        let found = find(kernel, op);
        if found.is_empty() {
            i += 1;
            continue;
        }
        let n = found.len();
        replace(kernel, at, i, found);
        i += 2 * n + 1;
    }
}

/// A carry that is an accumulator.
struct Carry {
    /// Its number.
    at: usize,
    init: Op,
    read: Op,
}

/// Which carries of a loop are accumulators all along.
fn find(kernel: &Kernel, op: Op) -> Vec<Carry> {
    let OpKind::For { xs, body, .. } = &kernel.ops[op].kind else {
        return vec![];
    };
    if !xs.is_empty() {
        return vec![];
    }
    let RegionData {
        ops, params, results, ..
    } = &kernel.regions[*body];
    let mut inits: FxHashMap<Value, Op> = FxHashMap::default();
    for &op in ops {
        if let OpKind::AccInit { init: Some(v) } = kernel.ops[op].kind {
            inits.insert(v, op);
        }
    }
    if inits.is_empty() {
        return vec![];
    }
    let uses = kernel.use_counts();
    let carry = |(at, param): (usize, &Value)| {
        let init = *inits.get(param).filter(|_| uses[*param] == 1)?;
        let read = end(kernel, ops, &uses, kernel.ops[init].results[0])?;
        let y = kernel.ops[read].results[0];
        let is_yielded = results[at] == y && uses[y] == 1;
        is_yielded.then_some(Carry { at, init, read })
    };
    params[1..].iter().enumerate().filter_map(carry).collect()
}

/// The read at which an accumulator's way through a body ends; nothing else uses it on the way.
fn end(kernel: &Kernel, ops: &[Op], uses: &SecondaryMap<Value, u32>, from: Value) -> Option<Op> {
    let mut v = from;
    for &op in ops {
        let OpData { kind, results, .. } = &kernel.ops[op];
        let next = if let OpKind::Wgmma { acc, .. } = kind
            && acc.value() == Some(v)
        {
            results.first()
        } else if let OpKind::WgmmaWait { accs, .. } = kind
            && let Some(i) = accs.iter().position(|acc| *acc == v)
        {
            results.get(i)
        } else if let OpKind::AccRead { acc } = kind
            && acc.value() == Some(v)
        {
            let is_last = results.get(1).is_none_or(|acc| uses[*acc] == 0);
            return (is_last && uses[v] == 1).then_some(op);
        } else if let OpKind::For { inits, .. } = kind
            && let Some(i) = inits.iter().position(|acc| *acc == v)
        {
            // An inner loop that carries it.
            results.get(i)
        } else {
            continue;
        };
        if uses[v] != 1 {
            return None;
        }
        v = *next?;
    }
    None
}

/// Lets the loop that is the `i`th op of a region carry accumulators.
fn replace(kernel: &mut Kernel, at: Region, i: usize, carries: Vec<Carry>) {
    let op = kernel.regions[at].ops[i];
    let OpKind::For { body, mut inits, .. } = kernel.ops[op].kind.clone() else {
        return;
    };
    let group = kernel.regions[body].group;
    let (mut before, mut behind) = (vec![], vec![]);
    let (mut inside, mut outside) = (Substitution::default(), Substitution::default());
    for Carry { at: k, init, read } in &carries {
        let acc = kernel.ops[*init].results[0];
        let ty = kernel.ty(acc).clone();
        let loc = kernel.ops[*init].loc;
        let start = kernel.new_op(OpKind::AccInit { init: Some(inits[*k]) }, [ty.clone()], group, loc);
        inits[*k] = kernel.ops[start].results[0];
        before.push(start);
        let param = kernel.new_value(ty.clone(), group);
        kernel.regions[body].params[1 + k] = param;
        inside.replace(acc, param);
        let OpKind::AccRead {
            acc: AccUse::Value(last),
        } = kernel.ops[*read].kind
        else {
            continue;
        };
        kernel.regions[body].results[*k] = last;

        let result = kernel.new_value(ty.clone(), group);
        kernel.values[result].def = op.into();
        let array = std::mem::replace(&mut kernel.ops[op].results[*k], result);
        let types = [kernel.ty(array).clone(), ty];
        let acc = AccUse::Value(result);
        let end = kernel.new_op(OpKind::AccRead { acc }, types, group, kernel.ops[*read].loc);
        outside.replace(array, kernel.ops[end].results[0]);
        behind.push(end);
    }
    if let OpKind::For { inits: old, .. } = &mut kernel.ops[op].kind {
        *old = inits;
    }
    let gone = |op: &Op| carries.iter().any(|c| c.init == *op || c.read == *op);
    kernel.regions[body].ops.retain(|op| !gone(op));
    inside.apply_region(kernel, body);
    for k in i + 1..kernel.regions[at].ops.len() {
        let later = kernel.regions[at].ops[k];
        outside.apply_nested(kernel, later);
    }
    outside.apply_results(kernel, at);
    kernel.regions[at]
        .ops
        .splice(i..=i, before.into_iter().chain([op]).chain(behind));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dtype::DType;
    use crate::kernel_ir::testing::KernelBuilder;

    #[derive(Clone, Copy, PartialEq, Debug)]
    enum What {
        Right,
        /// The array is used in the body, too.
        Kept,
        /// Two accumulators start from it.
        Shared,
        /// What is read is used before the next iteration.
        Stored,
        /// The accumulator goes on behind the read.
        Continued,
    }

    /// The type that the loop carries, and starts and reads of accumulators in its body and around it.
    fn carried(what: What) -> (bool, usize, usize) {
        let mut b = KernelBuilder::new();
        let (left, right) = (b.smem(DType::F16, &[64, 64], None), b.smem(DType::F16, &[64, 64], None));
        let out = b.output(DType::F32, &[64, 64]);
        let array = Type::of(DType::F32, Shape::from_slice(&[64, 64]));
        let acc = Type::Acc {
            dtype: DType::F32,
            shape: Shape::from_slice(&[64, 64]),
        };
        let zero = b.op1(OpKind::Constant(Constant::Splat(0)), DType::F32, &[64, 64]);
        let (lower, upper) = (b.int(DType::I32, 0), b.int(DType::I32, 4));
        let i = Type::Scalar(DType::I32);
        let body = b.region(Group::Warpgroup, &[i, array.clone()], |b, params| {
            let x = params[1];
            let mut start = || b.op(OpKind::AccInit { init: Some(x) }, std::slice::from_ref(&acc))[0];
            let first = start();
            if what == What::Shared {
                start();
            }
            let (a, r) = (MmaOperand::Smem(b.whole(left)), b.whole(right));
            let kind = OpKind::Wgmma {
                acc: AccUse::Value(first),
                a,
                b: r,
            };
            let sum = b.op(kind, std::slice::from_ref(&acc))[0];
            let done = b.op(OpKind::WgmmaWait { n: 0, accs: vec![sum] }, std::slice::from_ref(&acc))[0];
            let types = [array.clone(), acc.clone()];
            let read = b.op(
                OpKind::AccRead {
                    acc: AccUse::Value(done),
                },
                &types,
            );
            match what {
                What::Kept => b.store(b.whole(out), x),
                What::Stored => b.store(b.whole(out), read[0]),
                What::Continued => {
                    b.op(
                        OpKind::AccRead {
                            acc: AccUse::Value(read[1]),
                        },
                        &types,
                    );
                }
                What::Right | What::Shared => {}
            }
            vec![read[0]]
        });
        let kind = OpKind::For {
            lower,
            upper,
            inits: vec![zero],
            xs: vec![],
            reverse: false,
            unroll: 1,
            body,
        };
        let result = b.op(kind, std::slice::from_ref(&array))[0];
        b.store(b.whole(out), result);
        let (mut kernel, scope) = b.finish_in_scope(&[left, right]);
        verify::run(&kernel).unwrap();
        run(&mut kernel).unwrap();
        verify::run(&kernel).unwrap();
        let count = |ops: &[Op]| {
            let of_acc = |op: &&Op| matches!(kernel.ops[**op].kind, OpKind::AccInit { .. } | OpKind::AccRead { .. });
            ops.iter().filter(of_acc).count()
        };
        let is_acc = kernel.ty(kernel.regions[body].params[1]).is_acc();
        (
            is_acc,
            count(&kernel.regions[body].ops),
            count(&kernel.regions[scope].ops),
        )
    }

    #[test]
    fn an_array_that_is_the_accumulator_all_along_is_carried_as_one() {
        assert_eq!(carried(What::Right), (true, 0, 2));
        for (what, inside) in [
            (What::Kept, 2),
            (What::Shared, 3),
            (What::Stored, 2),
            (What::Continued, 3),
        ] {
            assert_eq!(carried(what), (false, inside, 0), "{what:?}");
        }
    }
}
