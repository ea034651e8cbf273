//! Loops over arrays: a slice of each of `xs` goes in, a slice of each stacked result comes out.
//!
//! The arrays stay in registers, laid out so that each thread has whole runs along the leading dimension. Short loops are unrolled, and
//! taking a slice is renaming; in long ones every slot of a run is compared with the counter.
use super::control::{self, counter};
use super::cx::{Carried, LowerCx};
use super::emit::S;
use super::shape::to_scalar;
use super::value::{Lowered, scalar_class};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::kernel_ir::{Op, OpKind, Value};
use crate::layout::{RegisterLayout, signature};
use crate::ptx::modifier::*;
use crate::ptx::operand::Src;
use crate::ptx::ssa::Uniform;

/// An array split along its leading dimension.
struct Runs {
    dtype: DType,
    /// Of the whole array; slot `r·n + i` holds what slot `r` of slice `i` has.
    layout: RegisterLayout,
    /// Of one slice.
    slice: RegisterLayout,
    n: usize,
}

impl Runs {
    fn of(cx: &LowerCx, v: Value) -> Result<Runs> {
        let ty = cx.ty(v);
        let (layout, slice) = signature::stacked(cx.kernel, v)?;
        Ok(Runs {
            dtype: ty.dtype(),
            layout,
            slice,
            n: ty.shape()[0] as usize,
        })
    }

    /// Binds `v` to the slice of these elements.
    fn bind_slice(&self, cx: &mut LowerCx, v: Value, elements: &[S]) {
        if cx.ty(v).is_scalar() {
            let s = to_scalar(cx, self.dtype, elements[0]);
            cx.bind_scalar(v, s);
        } else {
            let a = cx.from_elements(self.dtype, self.slice.clone(), elements);
            cx.bind_array(v, a);
        }
    }

    /// The elements of a slice that the body yields.
    fn yielded(&self, cx: &mut LowerCx, v: Value) -> Result<Vec<S>> {
        match cx.get(v)?.clone() {
            Lowered::Scalar(s) => Ok(vec![s; self.slice.slots() as usize]),
            Lowered::Array(_) => {
                let a = cx.array_in(v, &self.slice)?;
                Ok(cx.elements(&a))
            }
            Lowered::Acc(_) => Err(Error::internal("an accumulator is stacked")),
        }
    }
}

pub fn lower_scan(cx: &mut LowerCx, op: Op) -> Result<()> {
    let kernel = cx.kernel;
    let OpKind::For {
        lower,
        upper,
        inits,
        xs,
        reverse,
        body,
        ..
    } = &kernel.ops[op].kind
    else {
        return Err(Error::internal("not a loop"));
    };
    let results = &kernel.ops[op].results;
    let (carried_results, stacked) = results.split_at(inits.len());
    let data = &kernel.regions[*body];
    let index = data.params[0];
    let (carries, slices) = data.params[1..].split_at(inits.len());
    let (yields, pieces) = data.results.split_at(inits.len());
    let inputs = xs.iter().map(|&v| Runs::of(cx, v)).collect::<Result<Vec<Runs>>>()?;
    let outputs = stacked
        .iter()
        .map(|&v| Runs::of(cx, v))
        .collect::<Result<Vec<Runs>>>()?;
    let n = inputs.iter().chain(&outputs).map(|r| r.n).max().unwrap_or(0);
    let mut given: Vec<Vec<S>> = vec![];
    for (&v, runs) in xs.iter().zip(&inputs) {
        let a = cx.array_in(v, &runs.layout)?;
        given.push(cx.elements(&a));
    }
    let mut made: Vec<Vec<S>> = outputs
        .iter()
        .map(|r| vec![Src::Imm(0); r.layout.slots() as usize])
        .collect();
    let (ty, compare, class) = counter(cx, index);
    let (lower, upper) = (cx.scalar(*lower)?, cx.scalar(*upper)?);

    let carried_parts = if n as u64 <= kernel.target.max_unrolled_slices {
        let mut now: Vec<S> = control::flatten_all(cx, inits, carries)?
            .into_iter()
            .map(|p| p.0)
            .collect();
        for step in 0..n {
            let i = if *reverse { n - 1 - step } else { step };
            let at = cx.b.add(ty, lower, Src::Imm(i as u64));
            cx.bind_scalar(index, at);
            control::bind_all(cx, carries, carries, &now)?;
            for ((&p, runs), all) in slices.iter().zip(&inputs).zip(&given) {
                let elements: Vec<S> = all.iter().skip(i).step_by(runs.n).copied().collect();
                runs.bind_slice(cx, p, &elements);
            }
            cx.lower_ops(*body)?;
            for ((&y, runs), all) in pieces.iter().zip(&outputs).zip(&mut made) {
                for (r, x) in runs.yielded(cx, y)?.into_iter().enumerate() {
                    all[r * runs.n + i] = x;
                }
            }
            now = control::flatten_all(cx, yields, carries)?
                .into_iter()
                .map(|p| p.0)
                .collect();
        }
        now
    } else {
        let parts = control::flatten_all(cx, inits, carries)?;
        let mut state = vec![Carried {
            init: lower,
            class,
            uniform: control::uniformity(cx, index),
        }];
        state.extend(control::carried(cx, carries, &parts)?);
        let kept = state.len();
        for (runs, all) in outputs.iter().zip(&made) {
            let class = scalar_class(runs.dtype);
            state.extend(all.iter().map(|&init| Carried {
                init,
                class,
                uniform: Uniform::Thread,
            }));
        }
        let out = cx.while_loop(
            &state,
            |cx, now| Ok(cx.b.setp(Compare::Lt, compare, now[0], upper)),
            |cx, now| {
                let from_start = cx.b.sub(ty, now[0], lower);
                let position = if *reverse {
                    cx.b.sub(ty, Src::Imm(n as u64 - 1), from_start)
                } else {
                    from_start
                };
                let at = cx.b.add(ty, lower, position);
                cx.bind_scalar(index, at);
                let here: Vec<S> = (0..n)
                    .map(|i| cx.b.setp(Compare::Eq, ty.as_compare(), position, Src::Imm(i as u64)))
                    .collect();
                control::bind_all(cx, carries, carries, &now[1..kept])?;
                for ((&p, runs), all) in slices.iter().zip(&inputs).zip(&given) {
                    let class = scalar_class(runs.dtype);
                    let elements: Vec<S> = all
                        .chunks(runs.n)
                        .map(|run| {
                            let mut x = run[0];
                            for (&candidate, &is_here) in run.iter().zip(&here).skip(1) {
                                x = cx.b.pick(class, is_here, candidate, x);
                            }
                            x
                        })
                        .collect();
                    runs.bind_slice(cx, p, &elements);
                }
                cx.lower_ops(*body)?;
                let mut next = vec![cx.b.add(ty, now[0], Src::Imm(1))];
                next.extend(control::flatten_all(cx, yields, carries)?.into_iter().map(|p| p.0));
                let mut old = &now[kept..];
                for (&y, runs) in pieces.iter().zip(&outputs) {
                    let class = scalar_class(runs.dtype);
                    let made = runs.yielded(cx, y)?;
                    let (own, rest) = old.split_at(runs.layout.slots() as usize);
                    for (slot, &before) in own.iter().enumerate() {
                        next.push(cx.b.pick(class, here[slot % runs.n], made[slot / runs.n], before));
                    }
                    old = rest;
                }
                Ok(next)
            },
        )?;
        let mut rest = &out[kept..];
        for (runs, all) in outputs.iter().zip(&mut made) {
            let (own, tail) = rest.split_at(runs.layout.slots() as usize);
            all.copy_from_slice(own);
            rest = tail;
        }
        out[1..kept].to_vec()
    };
    control::bind_all(cx, carried_results, carries, &carried_parts)?;
    for ((&v, runs), all) in stacked.iter().zip(&outputs).zip(&made) {
        let a = cx.from_elements(runs.dtype, runs.layout.clone(), all);
        cx.bind_array(v, a);
    }
    Ok(())
}
