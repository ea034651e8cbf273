//! Integer scalars on one path: numbers where they can be computed, else symbols.
use crate::dtype::DType;
use crate::kernel_ir::arithmetic;
use crate::kernel_ir::class::{Function, Pure};
use crate::kernel_ir::kernel::bits_int;
use crate::kernel_ir::visit::for_each_value;
use crate::kernel_ir::{BinaryOp, CompareOp, Kernel, Op, OpKind, UnaryOp, Value};
use cranelift_entity::SecondaryMap;
use rustc_hash::FxHashMap;
use smallvec::{SmallVec, smallvec};

/// What is known of a scalar.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Val {
    Int(i64),
    /// `symbol + plus`; equal symbols are equal numbers.
    Sym {
        id: u32,
        plus: i64,
    },
}

type Vals = SmallVec<[Val; 3]>;

/// What a pure op computes, and on what: equal ones have equal results.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Term {
    what: Applied,
    /// Of the result.
    dtype: DType,
    on: Vals,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Applied {
    Unary(UnaryOp),
    Binary(BinaryOp),
    Compare(CompareOp),
    Select,
    Clamp,
    Power(i32),
    Convert(DType),
}

#[derive(Default)]
pub struct Scalars {
    values: SecondaryMap<Value, Option<Val>>,
    next: u32,
    /// Symbols that a choice on this path has made numbers.
    chosen: FxHashMap<u32, i64>,
    /// The symbol of a term, and the term of a symbol.
    symbols: FxHashMap<Term, Val>,
    terms: FxHashMap<u32, Term>,
}

/// Terms in terms that are looked through for what has become known.
const MAX_DEPTH: u32 = 6;

impl Scalars {
    fn unknown(&mut self) -> Val {
        self.next += 1;
        Val::Sym { id: self.next, plus: 0 }
    }
    pub fn set(&mut self, v: Value, x: Val) {
        self.values[v] = Some(x);
    }
    /// A new, unknown value each time the op is met.
    pub fn forget(&mut self, v: Value) {
        self.values[v] = None;
    }

    pub fn get(&mut self, kernel: &Kernel, v: Value) -> Val {
        let x = match self.values[v] {
            Some(x @ Val::Int(_)) => return x,
            Some(x) => self.resolved(x, MAX_DEPTH),
            None => match kernel.facts(v).as_constant() {
                Some(c) if kernel.ty(v).is_scalar() => Val::Int(c),
                _ => self.unknown(),
            },
        };
        self.values[v] = Some(x);
        x
    }

    /// The number that choices have made of a symbol.
    fn resolved(&mut self, x: Val, depth: u32) -> Val {
        let Val::Sym { id, plus } = x else { return x };
        if self.chosen.is_empty() {
            return x;
        }
        if let Some(n) = self.chosen.get(&id) {
            return Val::Int(n.wrapping_add(plus));
        }
        let Some(term) = self.terms.get(&id).filter(|_| depth > 0) else {
            return x;
        };
        let mut term = term.clone();
        for operand in &mut term.on {
            *operand = self.resolved(*operand, depth - 1);
        }
        match fold(&term) {
            Some(Val::Int(n)) => {
                self.chosen.insert(id, n);
                Val::Int(n.wrapping_add(plus))
            }
            Some(Val::Sym { .. }) | None => x,
        }
    }

    /// From here on the symbol is such that `x` is `n`; and so is what it was computed from, where that follows.
    pub fn choose(&mut self, x: Val, n: i64) {
        let Val::Sym { id, plus } = x else { return };
        let n = n.wrapping_sub(plus);
        self.chosen.insert(id, n);
        let Some(term) = self.terms.get(&id).cloned() else {
            return;
        };
        match (term.what, term.on.as_slice()) {
            (Applied::Unary(UnaryOp::Not), &[a]) if term.dtype == DType::Bool => self.choose(a, 1 - n),
            (Applied::Convert(DType::Bool), &[a]) if n == 0 || n == 1 => self.choose(a, n),
            (Applied::Compare(CompareOp::Eq), &[a, Val::Int(b)] | &[Val::Int(b), a]) if n == 1 => self.choose(a, b),
            (Applied::Compare(CompareOp::Ne), &[a, Val::Int(b)] | &[Val::Int(b), a]) if n == 0 => self.choose(a, b),
            _ => {}
        }
    }

    /// Computes the results of a pure op; those of others are unknown.
    pub fn op(&mut self, kernel: &Kernel, op: Op) {
        let data = &kernel.ops[op];
        if let OpKind::OptimizationBarrier { values } = &data.kind {
            for (v, r) in values.iter().zip(&data.results) {
                self.forget(*r);
                if kernel.ty(*v).is_scalar() {
                    let x = self.get(kernel, *v);
                    self.set(*r, x);
                }
            }
            return;
        }
        for &r in &data.results {
            self.forget(r);
        }
        let [result] = data.results[..] else { return };
        if !kernel.ty(result).is_scalar() {
            return;
        }
        let dtype = kernel.ty(result).dtype();
        let integer = dtype.is_int() || dtype == DType::Bool;
        let fixed = kernel.facts(result).as_constant().filter(|_| integer);
        let x = match fixed {
            Some(c) => Some(Val::Int(c)),
            None => self.compute(kernel, &data.kind, dtype),
        };
        if let Some(x) = x {
            self.set(result, x);
        }
    }

    fn compute(&mut self, kernel: &Kernel, kind: &OpKind, dtype: DType) -> Option<Val> {
        let function = match kind.pure() {
            Some(Pure::Constant(constant)) => return number(bits_int(dtype, constant.splat()?)?),
            Some(Pure::Elementwise(function)) => function,
            // Elements of arrays, bits of floats, and what reads memory: unknown.
            Some(
                Pure::AxisIndex(_)
                | Pure::Iota
                | Pure::Bitcast
                | Pure::Shape(_)
                | Pure::Reduce { .. }
                | Pure::Run
                | Pure::Exchange
                | Pure::Product { .. }
                | Pure::LayoutCast
                | Pure::Relayout { .. }
                | Pure::Inline,
            )
            | None => return None,
        };
        let what = match function {
            Function::MultipleOf { a, divisor: _ } => return Some(self.get(kernel, a)),
            Function::Unary { op, .. } => Applied::Unary(op),
            Function::Binary { op, .. } => Applied::Binary(op),
            // What a comparison of floats says of equal symbols depends on NaN.
            Function::Compare { op, a, .. } if !kernel.ty(a).dtype().is_float() => Applied::Compare(op),
            Function::Select { .. } => Applied::Select,
            Function::Clamp { .. } => Applied::Clamp,
            Function::IntegerPow { n, .. } => Applied::Power(n),
            Function::Convert { a } => Applied::Convert(kernel.ty(a).dtype()),
            Function::Compare { .. } | Function::ReducePrecision => return None,
        };
        let mut on: Vals = smallvec![];
        for_each_value(kind, &mut |v| on.push(self.get(kernel, v)));
        let term = Term { what, dtype, on };
        if let Some(x) = fold(&term) {
            return Some(x);
        }
        if let Some(x) = self.symbols.get(&term) {
            return Some(*x);
        }
        let x = self.unknown();
        if let Val::Sym { id, .. } = x {
            self.terms.insert(id, term.clone());
        }
        self.symbols.insert(term, x);
        Some(x)
    }
}

/// The number, or a symbol that the term is equal to.
fn fold(term: &Term) -> Option<Val> {
    let dtype = term.dtype;
    let integer = dtype.is_int() || dtype == DType::Bool;
    let number = match (term.what, term.on.as_slice()) {
        (Applied::Select, &[Val::Int(i), ref cases @ ..]) => {
            return usize::try_from(i).ok().and_then(|i| cases.get(i)).copied();
        }
        _ if !integer => None,
        (Applied::Unary(op), &[Val::Int(a)]) => arithmetic::unary(op, dtype, a.into()),
        (Applied::Binary(op), &[Val::Int(a), Val::Int(b)]) => arithmetic::binary(op, dtype, a.into(), b.into()),
        (
            Applied::Binary(BinaryOp::Add),
            &[Val::Sym { id, plus }, Val::Int(n)] | &[Val::Int(n), Val::Sym { id, plus }],
        ) if dtype != DType::Bool => {
            return Some(Val::Sym {
                id,
                plus: plus.wrapping_add(n),
            });
        }
        (Applied::Binary(BinaryOp::Sub), &[Val::Sym { id, plus }, Val::Int(n)]) => {
            return Some(Val::Sym {
                id,
                plus: plus.wrapping_sub(n),
            });
        }
        (Applied::Compare(op), &[Val::Int(a), Val::Int(b)]) => Some(arithmetic::compare(op, a.into(), b.into()).into()),
        (Applied::Compare(op), &[Val::Sym { id: i, plus: a }, Val::Sym { id: j, plus: b }]) if i == j => {
            Some(arithmetic::compare(op, a.into(), b.into()).into())
        }
        (Applied::Clamp, &[Val::Int(lo), Val::Int(x), Val::Int(hi)]) => Some(x.max(lo).min(hi).into()),
        (Applied::Power(n), &[Val::Int(a)]) => arithmetic::power(dtype, a.into(), n),
        (Applied::Convert(from), &[a]) if from.is_int() || from == DType::Bool => match a {
            Val::Int(x) => Some(arithmetic::wrap(dtype, x.into())),
            // Wider or narrower, equal numbers stay equal; facts keep the range.
            Val::Sym { .. } if from.is_int() && dtype.is_int() => return Some(a),
            Val::Sym { .. } => None,
        },
        _ => None,
    };
    number.and_then(self::number)
}

/// None: a u64 that is beyond what is counted with here.
fn number(x: i128) -> Option<Val> {
    i64::try_from(x).ok().map(Val::Int)
}
