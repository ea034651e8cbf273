//! Refuses what is too large before anything is planned for it: the work of all that follows grows with a thread's values.
//!
//! Numbers are lower bounds, of layouts alone: what passes here may still be refused, by the peak of live values or by the length of its code,
//! once those are known.
use crate::dtype::DType;
use crate::error::{Error, Loc, Result};
use crate::kernel_ir::class::{Class, Control, Pure};
use crate::kernel_ir::visit::for_each_value;
use crate::kernel_ir::{Alloc, Kernel, Op, OpKind, Type, Value};
use crate::layout::Assignment;
use crate::layout::views::CopyUse;
use crate::plan::Accesses;
use crate::target::Target;
use cranelift_entity::{EntitySet, SecondaryMap};
use smallvec::SmallVec;

/// Elements of a matrix product that one instruction of a warpgroup's warps multiplies at most: `mma` of 16 × 8 × 64, by four warps.
const PRODUCTS_AN_INSTRUCTION: u64 = 4 * 16 * 8 * 64;
/// Words that one instruction loads or stores at most.
const WORDS_AN_ACCESS: u64 = 4;

pub fn run(kernel: &Kernel, assignment: &Assignment) -> Result<()> {
    let words = |v: Value| words(kernel, assignment, v);
    let mut needs: SecondaryMap<Value, SmallVec<[Value; 2]>> = SecondaryMap::new();
    kernel.try_for_each_op(&mut |op| {
        held(kernel, op, &words)?;
        awaited(kernel, op, &words, &mut needs)
    })?;
    Lengths::of(kernel, assignment, None).check(kernel)
}

/// Words that a thread holds of a value.
fn words(kernel: &Kernel, assignment: &Assignment, v: Value) -> u64 {
    match kernel.ty(v) {
        Type::Array { dtype, .. } => assignment.values[v]
            .as_ref()
            .map_or(0, |layout| u64::from(layout.words(dtype.bits()))),
        Type::Scalar(_) | Type::Acc { .. } => 0,
    }
}

/// Instructions of each thread that ops take at least.
pub struct Lengths {
    of: SecondaryMap<Op, u64>,
    /// Of those that have not been lowered yet.
    remaining: u64,
}

impl Lengths {
    /// `accesses`: where they are planned, their number is known.
    pub fn of(kernel: &Kernel, assignment: &Assignment, accesses: Option<&Accesses>) -> Lengths {
        let mut lengths = Lengths {
            of: SecondaryMap::new(),
            remaining: 0,
        };
        let mut loaded = EntitySet::new();
        kernel.for_each_op(&mut |op| {
            let own = length(kernel, assignment, accesses, op, &mut loaded);
            lengths.of[op] = own;
            lengths.remaining = lengths.remaining.saturating_add(own);
        });
        lengths
    }

    /// Refuses a kernel that is too long in any case.
    pub fn check(&self, kernel: &Kernel) -> Result<()> {
        if self.remaining <= kernel.target.max_instructions {
            return Ok(());
        }
        let mut largest: Option<Op> = None;
        kernel.for_each_op(&mut |op| {
            if largest.is_none_or(|most| self.of[op] > self.of[most]) {
                largest = Some(op);
            }
        });
        let error = too_long(&kernel.target, self.remaining);
        Err(largest.map_or(error.clone(), |op| error.at(kernel.ops[op].loc)))
    }

    /// How long a program will be at least, of which there are so many instructions.
    pub fn with(&self, emitted: u64) -> u64 {
        self.remaining.saturating_add(emitted)
    }

    /// This op is lowered now. Gives how many instructions there may be in the end of it.
    pub fn begin(&mut self, target: &Target, op: Op) -> u64 {
        self.remaining = self.remaining.saturating_sub(self.of[op]);
        target.max_instructions.saturating_sub(self.remaining)
    }
}

/// Refuses an op of which a thread holds all values at once, if that is more than it can.
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
        | Class::Tensor
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

/// Instructions that an op takes at least, of each thread. `loaded`: from what ops before it load; a load of the same may get the same.
fn length(
    kernel: &Kernel,
    assignment: &Assignment,
    accesses: Option<&Accesses>,
    op: Op,
    loaded: &mut EntitySet<Alloc>,
) -> u64 {
    let words = |v: Value| words(kernel, assignment, v);
    // A thread's elements of an array of truth values.
    let truths = |v: Value| match (kernel.ty(v), &assignment.values[v]) {
        (Type::Array { dtype: DType::Bool, .. }, Some(layout)) => u64::from(layout.slots()),
        _ => 0,
    };
    let data = &kernel.ops[op];
    if let OpKind::Load { src } = &data.kind
        && !loaded.insert(src.alloc)
    {
        return 0;
    }
    let results = || data.results.iter().map(|v| words(*v)).max().unwrap_or(0);
    let operands = || {
        let mut most = 0;
        for_each_value(&data.kind, &mut |v| most = most.max(words(v)));
        most
    };
    match data.kind.class() {
        Class::Pure(Pure::Elementwise(_)) => {
            let logic = matches!(data.kind, OpKind::Unary { .. } | OpKind::Binary { .. });
            // A predicate an element.
            let predicates = if logic { truths(data.results[0]) } else { 0 };
            results().max(predicates)
        }
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
            let transfer = accesses.and_then(|accesses| accesses.transfers.get(&op));
            let plans = transfer.iter().flat_map(|t| [&t.load, &t.store]).flatten();
            let planned = plans.map(|plan| plan.accesses.len() as u64).sum();
            let mut most = results().max(operands());
            let moved =
                |ty: &Type| (ty.shape().iter().product::<u64>() * u64::from(ty.dtype().bits())).div_ceil(128 * 32);
            let mut count = |v: &Value| most = most.max(moved(kernel.ty(*v)));
            data.results.iter().for_each(&mut count);
            for_each_value(&data.kind, &mut |v| count(&v));
            // Truth values are extracted or packed one by one.
            let mut each = data.results.iter().map(|v| truths(*v)).max().unwrap_or(0);
            for_each_value(&data.kind, &mut |v| each = each.max(truths(v)));
            each.max(most / WORDS_AN_ACCESS).max(planned)
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
        | Class::Tensor
        | Class::Instructions
        | Class::Synchronisation
        | Class::Accumulator
        | Class::Control(_)
        | Class::Aside => 0,
    }
}

/// Refuses a kernel of which so many words are alive at once, if they are more than may be. `loc`: of what made most of them.
pub fn check_live(kernel: &Kernel, words: u64, most: u32, loc: Loc) -> Result<()> {
    if words <= most.into() {
        return Ok(());
    }
    let mut largest: Option<(u64, &Type)> = None;
    kernel.for_each_op(&mut |op| {
        let op = &kernel.ops[op];
        for ty in op.results.iter().map(|v| kernel.ty(*v)).filter(|_| op.loc == loc) {
            let elements: u64 = ty.shape().iter().product();
            if largest.is_none_or(|(most, _)| elements > most) {
                largest = Some((elements, ty));
            }
        }
    });
    Err(too_many_values(&kernel.target, words, largest.map(|(_, ty)| ty)).at(loc))
}

/// A kernel has no more parameters than the machine takes: a pointer for each buffer, and a tensor map for each sort of copy.
pub fn check_parameters(kernel: &Kernel, bytes: u64) -> Result<()> {
    let most = kernel.target.max_parameter_bytes;
    if bytes <= most {
        return Ok(());
    }
    let mut loc = Loc::default();
    kernel.for_each_op(&mut |op| {
        if CopyUse::of(kernel, &kernel.ops[op].kind).is_some() {
            loc = kernel.ops[op].loc;
        }
    });
    Err(Error::unsupported("copies of too many sorts")
        .expected(format!(
            "at most {most} bytes of parameters: a tensor map has 128, and copies share one that have an array, a shape and a swizzle in common"
        ))
        .got(format!("{bytes} bytes"))
        .remedy("copy blocks of fewer shapes, or in several kernels")
        .at(loc))
}

/// A kernel with values that cannot be where they are needed. `largest`: the array that most of them belong to.
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
