//! Refuses what is too large before anything is planned for it: the work of all that follows grows with a thread's values.
//!
//! Numbers are lower bounds, of layouts alone: what passes here may still be refused, by the peak of live values or by the length of its code,
//! once those are known.
use crate::error::{Error, Result};
use crate::kernel_ir::class::{Class, Control, Pure};
use crate::kernel_ir::visit::for_each_value;
use crate::kernel_ir::{Kernel, Op, OpKind, Type, Value};
use crate::layout::Assignment;
use crate::target::Target;
use cranelift_entity::SecondaryMap;
use smallvec::SmallVec;

/// Elements of a matrix product that one instruction of a warpgroup's warps multiplies at most: `mma` of 16 × 8 × 64, by four warps.
const PRODUCTS_AN_INSTRUCTION: u64 = 4 * 16 * 8 * 64;
/// Words that one instruction loads or stores at most.
const WORDS_AN_ACCESS: u64 = 4;

pub fn run(kernel: &Kernel, assignment: &Assignment) -> Result<()> {
    let words = |v: Value| match kernel.ty(v) {
        Type::Array { dtype, .. } => assignment.values[v]
            .as_ref()
            .map_or(0, |layout| u64::from(layout.words(dtype.bits()))),
        Type::Scalar(_) | Type::Acc { .. } => 0,
    };
    let (mut instructions, mut largest) = (0u64, None::<(u64, Op)>);
    let mut needs: SecondaryMap<Value, SmallVec<[Value; 2]>> = SecondaryMap::new();
    kernel.try_for_each_op(&mut |op| {
        held(kernel, op, &words)?;
        awaited(kernel, op, &words, &mut needs)?;
        let own = length(kernel, op, &words);
        instructions = instructions.saturating_add(own);
        if largest.is_none_or(|(most, _)| own > most) {
            largest = Some((own, op));
        }
        Ok(())
    })?;
    match largest {
        Some((_, op)) if instructions > kernel.target.max_instructions => {
            Err(too_long(&kernel.target, instructions).at(kernel.ops[op].loc))
        }
        _ => Ok(()),
    }
}

/// Refuses an op all of whose values a thread holds at once, if that is more than it can.
fn held(kernel: &Kernel, op: Op, words: &impl Fn(Value) -> u64) -> Result<()> {
    let data = &kernel.ops[op];
    let values = match data.kind.class() {
        // What a loop carries is there when it begins; what it stacks need not be.
        Class::Control(Control::For { inits, .. } | Control::While { inits, .. }) => &data.results[..inits.len()],
        // Every step of a product adds to all of it.
        Class::Pure(Pure::Product { .. }) => &data.results[..],
        Class::Pure(
            Pure::Constant(_)
            | Pure::AxisIndex(_)
            | Pure::Iota
            | Pure::Elementwise(_)
            | Pure::Bitcast
            | Pure::Shape(_)
            | Pure::Reduce { .. }
            | Pure::Run
            | Pure::Exchange
            | Pure::LayoutCast
            | Pure::Relayout { .. }
            | Pure::Inline,
        )
        | Class::Pinned
        | Class::Instructions
        | Class::Memory
        | Class::Synchronisation
        | Class::Accumulator
        | Class::Control(Control::Switch { .. } | Control::Scope { .. } | Control::WarpMap { .. })
        | Class::Aside => return Ok(()),
    };
    let sum = values.iter().fold(0, |sum: u64, v| sum.saturating_add(words(*v)));
    if sum <= kernel.target.max_live_words.into() {
        return Ok(());
    }
    let largest = values.iter().max_by_key(|v| words(**v)).map(|v| kernel.ty(*v));
    Err(too_many_values(&kernel.target, sum, largest).at(data.loc))
}

/// Refuses an array that is used beside what is only known once all of it is: it has to stay meanwhile. `needs`: arrays of that size of which a
/// value needs every element.
fn awaited(
    kernel: &Kernel,
    op: Op,
    words: &impl Fn(Value) -> u64,
    needs: &mut SecondaryMap<Value, SmallVec<[Value; 2]>>,
) -> Result<()> {
    let data = &kernel.ops[op];
    let (mut used, mut needed) = (SmallVec::<[Value; 4]>::new(), SmallVec::<[Value; 2]>::new());
    for_each_value(&data.kind, &mut |v| {
        used.push(v);
        needed.extend(needs[v].iter().copied());
    });
    if let Some(v) = used.iter().find(|v| needed.contains(v)) {
        let loc = kernel.def_op(*v).map_or(data.loc, |def| kernel.ops[def].loc);
        return Err(too_many_values(&kernel.target, words(*v), Some(kernel.ty(*v))).at(loc));
    }
    if let Class::Pure(pure) = data.kind.class() {
        if let Pure::Reduce { a, axes } = pure
            && axes.len() == kernel.ty(a).shape().len()
            && words(a) > kernel.target.max_live_words.into()
        {
            needed.push(a);
        }
        needed.sort_unstable();
        needed.dedup();
        // Enough to find one.
        needed.truncate(8);
        for r in &data.results {
            needs[*r] = needed.clone();
        }
    }
    Ok(())
}

/// Instructions that an op takes at least, of each thread.
fn length(kernel: &Kernel, op: Op, words: &impl Fn(Value) -> u64) -> u64 {
    let data = &kernel.ops[op];
    let results = || data.results.iter().map(|v| words(*v)).max().unwrap_or(0);
    let operands = || {
        let mut most = 0;
        for_each_value(&data.kind, &mut |v| most = most.max(words(v)));
        most
    };
    match data.kind.class() {
        Class::Pure(Pure::Elementwise(_)) => results(),
        Class::Pure(Pure::Reduce { .. } | Pure::Run | Pure::Exchange) => operands(),
        Class::Pure(Pure::Product { a, .. }) => {
            let result = kernel.ty(data.results[0]).shape();
            let mut depth = 1;
            if let (OpKind::Dot { .. }, [.., inner]) = (&data.kind, kernel.ty(a).shape()) {
                depth = *inner;
            }
            let products = result.iter().fold(depth, |n, extent| n.saturating_mul(*extent));
            results().max(products / PRODUCTS_AN_INSTRUCTION)
        }
        // What is equal everywhere is one register, and as many stores.
        Class::Memory => {
            let mut most = results().max(operands());
            let mut count = |v: &Value| most = most.max(kernel.ty(*v).words(0));
            data.results.iter().for_each(&mut count);
            for_each_value(&data.kind, &mut |v| count(&v));
            most / WORDS_AN_ACCESS
        }
        // Other names for registers, some of them; or too few to count.
        Class::Pure(
            Pure::Constant(_)
            | Pure::AxisIndex(_)
            | Pure::Iota
            | Pure::Bitcast
            | Pure::Shape(_)
            | Pure::LayoutCast
            | Pure::Relayout { .. }
            | Pure::Inline,
        )
        | Class::Pinned
        | Class::Instructions
        | Class::Synchronisation
        | Class::Accumulator
        | Class::Control(_)
        | Class::Aside => 0,
    }
}

/// A kernel whose values cannot be where they are needed. `largest`: the array that most of them belong to.
pub fn too_many_values(target: &Target, words: u64, largest: Option<&Type>) -> Error {
    let array = largest.map_or_else(String::new, |ty| format!(", most of them of the {ty} made here"));
    Error::unsupported("more values at once than a thread can hold")
        .expected(format!(
            "at most {} 32-bit words a thread, of which {} are in registers",
            target.max_live_words, target.max_thread_registers
        ))
        .got(format!("{words} words a thread{array}"))
        .remedy("work on smaller blocks or in a loop over parts of the array, or give each block more warpgroups")
}

/// A kernel of too much code.
pub fn too_long(target: &Target, instructions: u64) -> Error {
    Error::unsupported("more code than a kernel can have")
        .expected(format!("at most {} instructions", target.max_instructions))
        .got(format!("at least {instructions}, most of them of the arrays here"))
        .remedy("work on smaller blocks: a larger grid, or a loop over parts of the arrays (jax.lax.fori_loop, not Python's for)")
}
