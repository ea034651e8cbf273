//! Integer scalars on one path: numbers where they can be computed, else symbols.
use super::evolution::{Change, Evolution};
use super::slice::Slice;
use crate::dtype::DType;
use crate::kernel_ir::arithmetic;
use crate::kernel_ir::class::Function;
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
pub enum Applied {
    /// The operand itself.
    Same,
    Unary(UnaryOp),
    Binary(BinaryOp),
    Compare(CompareOp),
    Select,
    Clamp,
    Power(i32),
    Convert(DType),
}

/// A number that is the same wherever it comes up on a path.
struct Symbol {
    /// Once a choice on the path has made it so.
    known: Option<i64>,
    /// What it was computed as.
    term: Option<Term>,
    /// The list of the symbols in whose terms it is, in [`Scalars::uses`].
    uses: Option<u32>,
}

pub struct Scalars<'a> {
    kernel: &'a Kernel,
    slice: &'a Slice,
    values: SecondaryMap<Value, Option<Val>>,
    symbols: Vec<Symbol>,
    /// The symbol of each term.
    of_terms: FxHashMap<Term, u32>,
    /// A symbol, and what follows in the list.
    uses: Vec<(u32, Option<u32>)>,
    /// Of the loop whose turn is watched.
    evolution: Option<Evolution>,
}

impl<'a> Scalars<'a> {
    pub fn new(kernel: &'a Kernel, slice: &'a Slice) -> Scalars<'a> {
        Scalars {
            kernel,
            slice,
            values: SecondaryMap::with_capacity(kernel.values.len()),
            symbols: vec![],
            of_terms: FxHashMap::default(),
            uses: vec![],
            evolution: None,
        }
    }

    /// Another path begins.
    pub fn restart(&mut self) {
        self.values.clear();
        self.symbols.clear();
        self.of_terms.clear();
        self.uses.clear();
        self.evolution = None;
    }

    /// A turn of a loop begins by which others are to be predicted.
    pub fn watch(&mut self) {
        self.evolution = Some(Evolution::new(self.symbols.len() as u32));
    }

    /// The prediction; none: it was not watched to its end.
    pub fn watched(&mut self) -> Option<Evolution> {
        self.evolution.take()
    }

    fn unknown(&mut self, term: Option<Term>) -> Val {
        let id = self.symbols.len() as u32;
        self.symbols.push(Symbol {
            known: None,
            term,
            uses: None,
        });
        Val::Sym { id, plus: 0 }
    }
    /// `change`: from one turn to the next of the loop that is watched.
    pub fn set(&mut self, v: Value, x: Val, change: Change) {
        self.values[v] = Some(x);
        if let Some(evolution) = &mut self.evolution {
            evolution.set(v, change);
        }
    }
    /// A new, unknown value each time the op is walked.
    pub fn forget(&mut self, v: Value) {
        self.values[v] = None;
        if let Some(evolution) = &mut self.evolution {
            evolution.set(v, Change::Unknown);
        }
    }

    /// What is known of a value of the slice, to decide by it.
    pub fn get(&mut self, v: Value) -> Val {
        let (x, change) = self.changing(v);
        if let Some(evolution) = &mut self.evolution
            && change != Change::NONE
        {
            evolution.turns = 0;
        }
        x
    }

    /// What is known of a value, to hand it on.
    pub fn changing(&mut self, v: Value) -> (Val, Change) {
        let x = self.known(v);
        let change = self.evolution.as_ref().map_or(Change::NONE, |e| e.of(v, x));
        (x, change)
    }

    fn known(&mut self, v: Value) -> Val {
        let x = match self.values[v] {
            Some(x) => {
                let now = self.now(x);
                if now == x {
                    return x;
                }
                now
            }
            None => match self.kernel.facts(v).as_constant() {
                Some(c) if self.kernel.ty(v).is_scalar() => Val::Int(c),
                _ => {
                    assert!(self.slice.has(v), "{v} decides about order, and the slice lacks it");
                    self.unknown(None)
                }
            },
        };
        self.values[v] = Some(x);
        x
    }

    /// The number that choices have made of a symbol.
    fn now(&self, x: Val) -> Val {
        let Val::Sym { id, plus } = x else { return x };
        match self.symbols[id as usize].known {
            Some(n) => Val::Int(n.wrapping_add(plus)),
            None => x,
        }
    }

    /// From here on the symbol is such that `x` is `n`; and so is what it was computed from, and what is computed from it, where that
    /// follows.
    pub fn choose(&mut self, x: Val, n: i64) {
        if let Some(evolution) = &mut self.evolution {
            evolution.turns = 0;
        }
        let mut work: SmallVec<[(Val, i64); 8]> = smallvec![(x, n)];
        while let Some((x, n)) = work.pop() {
            let Val::Sym { id, plus } = x else { continue };
            let n = n.wrapping_sub(plus);
            let symbol = &mut self.symbols[id as usize];
            if symbol.known.is_some() {
                continue;
            }
            symbol.known = Some(n);
            if let Some(term) = &symbol.term {
                match (term.what, term.on.as_slice()) {
                    (Applied::Unary(UnaryOp::Not), &[a]) if term.dtype == DType::Bool => work.push((a, 1 - n)),
                    (Applied::Convert(DType::Bool), &[a]) if n == 0 || n == 1 => work.push((a, n)),
                    (Applied::Compare(CompareOp::Eq), &[a, Val::Int(b)] | &[Val::Int(b), a]) if n == 1 => {
                        work.push((a, b));
                    }
                    (Applied::Compare(CompareOp::Ne), &[a, Val::Int(b)] | &[Val::Int(b), a]) if n == 0 => {
                        work.push((a, b));
                    }
                    _ => {}
                }
            }
            let mut next = symbol.uses;
            while let Some(use_) = next {
                let (user, then) = self.uses[use_ as usize];
                next = then;
                let Symbol {
                    known: None,
                    term: Some(term),
                    ..
                } = &self.symbols[user as usize]
                else {
                    continue;
                };
                let on = term.on.iter().map(|x| self.now(*x)).collect();
                let term = Term { on, ..*term };
                if let Some(Val::Int(n)) = fold(&term) {
                    work.push((Val::Sym { id: user, plus: 0 }, n));
                }
            }
        }
    }

    /// Computes the results of a pure op; those of others are unknown.
    pub fn op(&mut self, op: Op) {
        let kernel = self.kernel;
        let data = &kernel.ops[op];
        if let OpKind::OptimizationBarrier { values } = &data.kind {
            for (v, r) in values.iter().zip(&data.results) {
                self.forget(*r);
                if kernel.ty(*v).is_scalar() && self.slice.has(*r) {
                    let (x, change) = self.changing(*v);
                    self.set(*r, x, change);
                }
            }
            return;
        }
        for &r in &data.results {
            self.forget(r);
        }
        let [result] = data.results[..] else { return };
        if !kernel.ty(result).is_scalar() || !self.slice.has(result) {
            return;
        }
        let dtype = kernel.ty(result).dtype();
        if let OpKind::Constant(constant) = &data.kind {
            if let Some(x) = constant.splat().and_then(|bits| number(bits_int(dtype, bits)?)) {
                self.set(result, x, Change::NONE);
            }
        } else if let Some(what) = applied(kernel, &data.kind) {
            let mut on: Vals = smallvec![];
            for_each_value(&data.kind, &mut |v| on.push(self.known(v)));
            let change = match &mut self.evolution {
                None => Change::NONE,
                Some(evolution) => {
                    let (mut changes, mut i) = (SmallVec::<[Change; 3]>::new(), 0);
                    for_each_value(&data.kind, &mut |v| {
                        changes.push(evolution.of(v, on[i]));
                        i += 1;
                    });
                    evolution.computed(what, dtype, &on, &changes)
                }
            };
            let x = self.compute(Term { what, dtype, on });
            self.set(result, x, change);
        }
    }

    fn compute(&mut self, term: Term) -> Val {
        if let Some(x) = fold(&term) {
            return x;
        }
        if let Some(id) = self.of_terms.get(&term) {
            return self.now(Val::Sym { id: *id, plus: 0 });
        }
        let x = self.unknown(Some(term.clone()));
        if let Val::Sym { id, .. } = x {
            for operand in &term.on {
                if let Val::Sym { id: of, .. } = operand {
                    let list = &mut self.symbols[*of as usize].uses;
                    let before = list.replace(self.uses.len() as u32);
                    self.uses.push((id, before));
                }
            }
            self.of_terms.insert(term, id);
        }
        x
    }
}

/// Whether anything is known of an op's scalar by what is known of its operands.
pub fn is_computed(kernel: &Kernel, kind: &OpKind) -> bool {
    applied(kernel, kind).is_some()
}

fn applied(kernel: &Kernel, kind: &OpKind) -> Option<Applied> {
    // Not numbers in themselves, elements of arrays, bits of floats, and what reads memory.
    match kind.function()? {
        Function::MultipleOf { .. } => Some(Applied::Same),
        Function::Unary { op, .. } => Some(Applied::Unary(op)),
        Function::Binary { op, .. } => Some(Applied::Binary(op)),
        // Whether floats compare equal that are equal symbols depends on NaN.
        Function::Compare { op, a, .. } if !kernel.ty(a).dtype().is_float() => Some(Applied::Compare(op)),
        Function::Select { .. } => Some(Applied::Select),
        Function::Clamp { .. } => Some(Applied::Clamp),
        Function::IntegerPow { n, .. } => Some(Applied::Power(n)),
        Function::Convert { a } => Some(Applied::Convert(kernel.ty(a).dtype())),
        Function::Compare { .. } | Function::Other => None,
    }
}

/// The number, or a symbol that the term is equal to.
fn fold(term: &Term) -> Option<Val> {
    let dtype = term.dtype;
    let integer = dtype.is_int() || dtype == DType::Bool;
    let number = match (term.what, term.on.as_slice()) {
        (Applied::Same, &[a]) => return Some(a),
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
