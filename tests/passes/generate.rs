//! Random kernels: scalars and small arrays of every type, loops whose counters come to the ends of their types, branches.
//!
//! They are as imported ones are, and do what Python's operators make of `//` and `%` besides lax's ops. What they compute is stored, and
//! that is all that they are good for.
use crate::differential::{Random, number};
use crate::interpret::numbers;
use smalt::dtype::DType;
use smalt::error::Loc;
use smalt::kernel_ir::*;

const INTS: [DType; 17] = [
    DType::I8,
    DType::I16,
    DType::I32,
    DType::I64,
    DType::U8,
    DType::U16,
    DType::U32,
    DType::U64,
    // Scalars of 4 bits are in no memory.
    DType::I4,
    DType::U4,
    DType::I8,
    DType::I16,
    DType::I32,
    DType::I64,
    DType::U8,
    DType::U32,
    DType::U64,
];
const FLOATS: [DType; 4] = [DType::F32, DType::F16, DType::BF16, DType::F64];
/// Elements of an array.
const N: u64 = 8;

struct Generator {
    k: Kernel,
    random: Random,
    at: Region,
    /// Values that may be used here.
    pool: Vec<Value>,
    depth: u32,
}

/// The kernel with this number; larger ones are larger, up to a point.
pub fn kernel(seed: u64) -> Kernel {
    let k = Kernel::empty(format!("random {seed}"), 1);
    let at = k.body;
    let mut g = Generator {
        k,
        random: Random(seed),
        at,
        pool: vec![],
        depth: 0,
    };
    for _ in 0..3 {
        let dtype = g.stored_type();
        let alloc = g.param(ParamRole::Input, dtype, &[N]);
        let src = g.k.whole(alloc);
        g.one(OpKind::Load { src }, Type::of(dtype, Shape::from_slice(&[N])));
        for i in 0..2 {
            let src = g.element(alloc, Index::Const(i));
            g.one(OpKind::Load { src }, Type::Scalar(dtype));
        }
    }
    for _ in 0..2 + seed % 12 {
        g.statement();
    }
    for v in g.pool.clone() {
        if g.k.ty(v).dtype().bits() < 8 {
            continue;
        }
        let (dtype, shape) = (g.k.ty(v).dtype(), g.k.ty(v).shape().to_vec());
        let alloc = g.param(ParamRole::Output { alias_of: None }, dtype, &shape);
        let dst = g.k.whole(alloc);
        g.op(OpKind::Store { dst, value: v }, &[]);
    }
    g.k
}

impl Generator {
    fn any_type(&mut self) -> DType {
        match self.random.below(6) {
            0 => self.random.of(&FLOATS),
            1 => DType::I32,
            _ => self.random.of(&INTS),
        }
    }

    fn stored_type(&mut self) -> DType {
        match self.any_type() {
            DType::I4 | DType::U4 => DType::I8,
            dtype => dtype,
        }
    }

    fn int_type(&mut self) -> DType {
        self.random.of(&INTS)
    }

    fn param(&mut self, role: ParamRole, dtype: DType, shape: &[u64]) -> Alloc {
        let origin = GmemOrigin::Param(self.k.params.len() as u32);
        let alloc = self.k.allocs.push(AllocData {
            kind: AllocKind::Gmem { dtype, origin },
            shape: shape.into(),
            collective: true,
            within: None,
            owner: Owner::Author,
            loc: Loc::CALL_SITE,
        });
        let ty = Type::of(dtype, shape);
        let binding = ParamBinding::Alloc(alloc);
        self.k.params.push(ParamData { role, binding, ty });
        alloc
    }

    fn element(&self, alloc: Alloc, index: Index) -> RefUse {
        let mut r = self.k.whole(alloc);
        r.steps = vec![Step::Index(vec![DimIndex::At(index)])];
        r.shape = Shape::new();
        r
    }

    fn op(&mut self, kind: OpKind, types: &[Type]) -> Vec<Value> {
        let results = self.k.append(self.at, kind, types.to_vec(), Loc(1)).to_vec();
        self.pool.extend(&results);
        results
    }

    fn one(&mut self, kind: OpKind, ty: Type) -> Value {
        self.op(kind, &[ty])[0]
    }

    /// A constant, which is not in the pool: it is written where it is used.
    fn constant(&mut self, dtype: DType, bits: u64) -> Value {
        let kind = OpKind::Constant(Constant::Splat(bits));
        let v = self.k.append1(self.at, kind, Type::Scalar(dtype), Loc(1));
        if let Some(x) = smalt::kernel_ir::kernel::bits_int(dtype, bits) {
            self.k.values[v].facts = Facts::constant(x);
        }
        v
    }

    fn any_constant(&mut self, dtype: DType) -> Value {
        let bits = number(&mut self.random, dtype);
        self.constant(dtype, bits)
    }

    fn int(&mut self, dtype: DType, x: i64) -> Value {
        self.constant(dtype, kernel::int_bits(dtype, x))
    }

    /// A value of this type that there is, mostly one of the last ones.
    fn existing(&mut self, fits: impl Fn(&Type) -> bool) -> Option<Value> {
        let fitting: Vec<Value> = self.pool.iter().copied().filter(|v| fits(self.k.ty(*v))).collect();
        match fitting.len() {
            0 => None,
            n => Some(fitting[n - 1 - self.random.below(n).min(self.random.below(n))]),
        }
    }

    fn scalar(&mut self, dtype: DType) -> Value {
        if self.random.below(4) == 0 {
            return self.any_constant(dtype);
        }
        let same = self.existing(|ty| *ty == Type::Scalar(dtype));
        if let Some(v) = same.filter(|_| self.random.below(3) > 0) {
            return v;
        }
        match self.existing(Type::is_scalar) {
            Some(a) if self.k.ty(a).dtype() != dtype => self.one(OpKind::Convert { a }, Type::Scalar(dtype)),
            Some(a) => a,
            None => self.any_constant(dtype),
        }
    }

    fn array(&mut self, dtype: DType) -> Value {
        let ty = Type::of(dtype, Shape::from_slice(&[N]));
        if let Some(v) = self.existing(|t| *t == ty) {
            return v;
        }
        match self.existing(|t| t.shape() == [N]) {
            Some(a) if self.random.below(2) == 0 => self.one(OpKind::Convert { a }, ty),
            Some(_) | None => {
                let a = self.scalar(dtype);
                self.one(OpKind::Broadcast { a, dims: vec![] }, ty)
            }
        }
    }

    /// A scalar, or sometimes an array.
    fn operand(&mut self, dtype: DType, array: bool) -> Value {
        if array { self.array(dtype) } else { self.scalar(dtype) }
    }

    fn like(&self, v: Value, dtype: DType) -> Type {
        self.k.ty(v).with_dtype(dtype)
    }

    fn binary(&mut self, op: BinaryOp, a: Value, b: Value) -> Value {
        let ty = self.k.ty(a).clone();
        self.one(OpKind::Binary { op, a, b }, ty)
    }

    fn compare(&mut self, op: CompareOp, a: Value, b: Value) -> Value {
        let ty = self.like(a, DType::Bool);
        self.one(OpKind::Compare { op, a, b }, ty)
    }

    fn any_comparison(&mut self) -> CompareOp {
        self.random.of(CompareOp::ALL)
    }

    fn bool(&mut self) -> Value {
        let dtype = self.any_type();
        let (a, b) = (self.scalar(dtype), self.scalar(dtype));
        let op = self.any_comparison();
        self.compare(op, a, b)
    }

    /// Ops go to a new region; the pool is what it was afterwards.
    fn region(&mut self, params: &[Type], f: impl FnOnce(&mut Generator, &[Value]) -> Vec<Value>) -> Region {
        let region = self.k.new_region(Group::Warpgroup);
        let values: Vec<Value> = params
            .iter()
            .map(|ty| self.k.new_value(ty.clone(), Group::Warpgroup))
            .collect();
        self.k.regions[region].params = values.clone();
        let outside = std::mem::replace(&mut self.at, region);
        let known = self.pool.len();
        self.pool.extend(&values);
        self.depth += 1;
        let results = f(self, &values);
        self.depth -= 1;
        self.pool.truncate(known);
        self.at = outside;
        self.k.regions[region].results = results;
        region
    }

    fn statements(&mut self) {
        for _ in 0..1 + self.random.below(3) {
            self.statement();
        }
    }

    fn statement(&mut self) {
        match self.random.below(20) {
            0..=5 => self.arithmetic(),
            6 => self.unary(),
            7 => self.comparison(),
            8 => self.selection(),
            9 | 10 => self.conversion(),
            11 => self.shift(),
            12 => self.floor_division(),
            13 if self.depth < 2 => self.for_loop(),
            14 if self.depth < 2 => self.while_loop(),
            15 if self.depth < 3 => self.branch(),
            16 => self.clamp(),
            17 => self.indexed_load(),
            18 => self.array_op(),
            19 => self.product(),
            _ => self.arithmetic(),
        }
    }

    fn arithmetic(&mut self) {
        let dtype = self.any_type();
        let array = self.random.below(4) == 0;
        let (a, b) = (self.operand(dtype, array), self.operand(dtype, array));
        let op = match dtype.is_float() {
            true => self.random.of(&[
                BinaryOp::Add,
                BinaryOp::Sub,
                BinaryOp::Mul,
                BinaryOp::Div,
                BinaryOp::Max,
                BinaryOp::Min,
            ]),
            false => self.random.of(&[
                BinaryOp::Add,
                BinaryOp::Sub,
                BinaryOp::Mul,
                BinaryOp::Div,
                BinaryOp::Rem,
                BinaryOp::Max,
                BinaryOp::Min,
                BinaryOp::And,
                BinaryOp::Or,
                BinaryOp::Xor,
            ]),
        };
        self.binary(op, a, b);
    }

    fn unary(&mut self) {
        let dtype = self.any_type();
        let a = self.scalar(dtype);
        let op = match dtype.is_float() {
            true => self
                .random
                .of(&[UnaryOp::Neg, UnaryOp::Abs, UnaryOp::Sign, UnaryOp::Floor, UnaryOp::Exp2]),
            false if dtype.is_signed_int() => {
                self.random
                    .of(&[UnaryOp::Neg, UnaryOp::Not, UnaryOp::Abs, UnaryOp::Sign])
            }
            false => self.random.of(&[
                UnaryOp::Neg,
                UnaryOp::Not,
                UnaryOp::Sign,
                UnaryOp::CountLeadingZeros,
                UnaryOp::PopulationCount,
            ]),
        };
        self.one(OpKind::Unary { op, a }, Type::Scalar(dtype));
    }

    fn comparison(&mut self) {
        let (a, b) = (self.bool(), self.bool());
        let op = self.random.of(&[BinaryOp::And, BinaryOp::Or, BinaryOp::Xor]);
        self.binary(op, a, b);
    }

    fn selection(&mut self) {
        let dtype = self.any_type();
        let array = self.random.below(4) == 0;
        let which = self.bool();
        let cases = vec![self.operand(dtype, array), self.operand(dtype, array)];
        let ty = self.k.ty(cases[0]).clone();
        self.one(OpKind::Select { which, cases }, ty);
    }

    fn conversion(&mut self) {
        let from = self.any_type();
        let to = self.any_type();
        let array = self.random.below(4) == 0;
        let a = self.operand(from, array);
        let ty = self.like(a, to);
        if from != to {
            self.one(OpKind::Convert { a }, ty);
        }
    }

    fn shift(&mut self) {
        let dtype = self.int_type();
        let a = self.scalar(dtype);
        let b = match self.random.below(3) {
            0 => self.scalar(dtype),
            _ => {
                let count = self.random.below(dtype.bits() as usize + 1) as i64;
                self.int(dtype, count)
            }
        };
        let op = self.random.of(&[
            BinaryOp::ShiftLeft,
            BinaryOp::ShiftRightLogical,
            BinaryOp::ShiftRightArithmetic,
        ]);
        self.binary(op, a, b);
    }

    /// `a // b` and `a % b` as JAX writes them.
    fn floor_division(&mut self) {
        let dtype = self.int_type();
        let a = self.scalar(dtype);
        let b = match self.random.below(4) {
            0 => self.scalar(dtype),
            _ => {
                let divisor = self.random.of(&[1, 2, 3, 4, 5, 7]);
                self.int(dtype, divisor)
            }
        };
        self.floor_mod(a, b);
        let ty = self.k.ty(a).clone();
        let q = self.binary(BinaryOp::Div, a, b);
        let (zero, one) = (self.int(dtype, 0), self.int(dtype, 1));
        let sign = |g: &mut Generator, a| g.one(OpKind::Unary { op: UnaryOp::Sign, a }, ty.clone());
        let (sa, sb) = (sign(self, a), sign(self, b));
        let signs = self.compare(CompareOp::Ne, sa, sb);
        let r = self.binary(BinaryOp::Rem, a, b);
        let rest = self.compare(CompareOp::Ne, r, zero);
        let which = self.binary(BinaryOp::And, signs, rest);
        let less = self.binary(BinaryOp::Sub, q, one);
        self.one(
            OpKind::Select {
                which,
                cases: vec![q, less],
            },
            ty,
        );
    }

    fn floor_mod(&mut self, a: Value, b: Value) -> Value {
        let ty = self.k.ty(a).clone();
        let zero = self.int(ty.dtype(), 0);
        let r = self.binary(BinaryOp::Rem, a, b);
        let rest = self.compare(CompareOp::Ne, r, zero);
        let (rn, bn) = (
            self.compare(CompareOp::Lt, r, zero),
            self.compare(CompareOp::Lt, b, zero),
        );
        let signs = self.compare(CompareOp::Ne, rn, bn);
        let which = self.binary(BinaryOp::And, signs, rest);
        let fixed = self.binary(BinaryOp::Add, r, b);
        self.one(
            OpKind::Select {
                which,
                cases: vec![r, fixed],
            },
            ty,
        )
    }

    fn clamp(&mut self) {
        let dtype = self.any_type();
        let (lo, x, hi) = (self.scalar(dtype), self.scalar(dtype), self.scalar(dtype));
        self.one(OpKind::Clamp { lo, x, hi }, Type::Scalar(dtype));
    }

    /// An index below 8, of any type and made in any of several ways.
    fn index(&mut self) -> Value {
        let dtype = self.int_type();
        let x = self.scalar(dtype);
        let seven = self.int(dtype, 7);
        match self.random.below(3) {
            0 => self.binary(BinaryOp::And, x, seven),
            1 => {
                let b = self.int(dtype, 7);
                self.floor_mod(x, b)
            }
            _ => {
                let lo = self.int(dtype, 0);
                self.one(OpKind::Clamp { lo, x, hi: seven }, Type::Scalar(dtype))
            }
        }
    }

    fn indexed_load(&mut self) {
        let index = self.index();
        let inputs: Vec<Alloc> = self.k.allocs.keys().collect();
        let alloc = self.random.of(&inputs);
        let dtype = self.k.allocs[alloc].elem().dtype().expect("data");
        let src = self.element(alloc, Index::Value(index));
        self.one(OpKind::Load { src }, Type::Scalar(dtype));
    }

    fn array_op(&mut self) {
        let dtype = self.any_type();
        let a = self.array(dtype);
        match self.random.below(4) {
            0 => {
                let op = self.random.of(&[ReduceOp::Sum, ReduceOp::Max, ReduceOp::Min]);
                let axes = vec![0];
                let parallel = None;
                self.one(OpKind::Reduce { op, a, axes, parallel }, Type::Scalar(dtype));
            }
            1 => {
                let start = self.int_type();
                let starts = vec![self.scalar(start)];
                let a = self.one(
                    OpKind::DynamicSlice { a, starts },
                    Type::of(dtype, Shape::from_slice(&[4])),
                );
                let ty = Type::of(dtype, Shape::from_slice(&[N]));
                let parts = vec![a, a];
                self.one(OpKind::Concat { parts, dim: 0 }, ty);
            }
            2 => {
                let ty = Type::of(dtype, Shape::from_slice(&[N]));
                let iota = self.one(OpKind::Iota { dim: 0 }, ty);
                self.binary(BinaryOp::Add, a, iota);
            }
            _ => {
                let dims = vec![0];
                let ty = self.k.ty(a).clone();
                self.one(OpKind::Reverse { a, dims }, ty);
            }
        }
    }

    /// `c + a · bᵀ`.
    fn product(&mut self) {
        let dtype = DType::F32;
        let square = Type::of(dtype, Shape::from_slice(&[N, N]));
        let mut operands = vec![];
        for dims in [vec![0], vec![1], vec![0]] {
            let a = self.array(dtype);
            operands.push(self.one(OpKind::Broadcast { a, dims }, square.clone()));
        }
        let (a, b) = (operands[0], operands[1]);
        // Only the sum is used.
        let kind = OpKind::Dot {
            acc: None,
            a,
            b,
            arithmetic: DotArithmetic::MultiplyAdd,
        };
        let dot = self.k.append1(self.at, kind, square, Loc(1));
        self.binary(BinaryOp::Add, operands[2], dot);
    }

    /// What a loop carries: its first values and types.
    fn carried(&mut self) -> (Vec<Value>, Vec<Type>) {
        let mut inits = vec![];
        for _ in 0..1 + self.random.below(2) {
            let dtype = self.any_type();
            inits.push(self.scalar(dtype));
        }
        let types = inits.iter().map(|v| self.k.ty(*v).clone()).collect();
        (inits, types)
    }

    fn scalars(&mut self, types: &[Type]) -> Vec<Value> {
        types.iter().map(|ty| self.scalar(ty.dtype())).collect()
    }

    /// What carries are next: often they grow by a constant.
    fn next_carries(&mut self, carries: &[Value]) -> Vec<Value> {
        let next = carries.iter().map(|&carry| {
            let dtype = self.k.ty(carry).dtype();
            match self.random.below(2) {
                0 => self.scalar(dtype),
                _ => {
                    let step = self.any_constant(dtype);
                    self.binary(BinaryOp::Add, carry, step)
                }
            }
        });
        next.collect()
    }

    fn for_loop(&mut self) {
        let dtype = self.int_type();
        let lower = self.any_constant(dtype);
        let first = numbers::to_int(dtype, self.bits(lower));
        // Up to the end of the type.
        let last = numbers::greatest(dtype);
        let upper = match self.random.below(3) {
            0 => self.index(),
            _ => {
                let n = self.random.below(6) as i128;
                let upper = (first + n).min(last) as i64;
                self.int(dtype, upper)
            }
        };
        let upper = match self.k.ty(upper).dtype() == dtype {
            true => upper,
            false => self.one(OpKind::Convert { a: upper }, Type::Scalar(dtype)),
        };
        let (inits, types) = self.carried();
        let mut params = vec![Type::Scalar(dtype)];
        params.extend(types.clone());
        let body = self.region(&params, |g, params| {
            g.statements();
            g.next_carries(&params[1..])
        });
        let (reverse, unroll) = (self.random.below(4) == 0, 1);
        let kind = OpKind::For {
            lower,
            upper,
            inits,
            xs: vec![],
            reverse,
            unroll,
            body,
        };
        self.op(kind, &types);
    }

    fn bits(&self, v: Value) -> u64 {
        match self.k.def_op(v).map(|op| &self.k.ops[op].kind) {
            Some(OpKind::Constant(Constant::Splat(bits))) => *bits,
            _ => 0,
        }
    }

    /// A counter, and what is carried beside it. Some never end, and are not looked at.
    fn while_loop(&mut self) {
        let dtype = self.int_type();
        let start = self.scalar(dtype);
        let step = self.random.of(&[1, 1, 1, 2, 3, -1]);
        let op = match step {
            -1 => self.random.of(&[CompareOp::Gt, CompareOp::Ge]),
            _ => self
                .random
                .of(&[CompareOp::Lt, CompareOp::Lt, CompareOp::Le, CompareOp::Ne]),
        };
        let bound = self.scalar(dtype);
        let (others, types) = self.carried();
        let mut inits = vec![start];
        inits.extend(others);
        let mut all = vec![Type::Scalar(dtype)];
        all.extend(types.clone());
        let cond = self.region(&all, |g, params| {
            let mut results = vec![g.compare(op, params[0], bound)];
            results.extend(params);
            results
        });
        let body = self.region(&all, |g, params| {
            let step = g.int(dtype, step);
            let next = g.binary(BinaryOp::Add, params[0], step);
            g.statements();
            let mut results = vec![next];
            results.extend(g.next_carries(&params[1..]));
            results
        });
        self.op(OpKind::While { inits, cond, body }, &all);
    }

    fn branch(&mut self) {
        let types: Vec<Type> = (0..1 + self.random.below(2))
            .map(|_| Type::Scalar(self.any_type()))
            .collect();
        let (selector, n) = match self.random.below(2) {
            0 => (self.bool(), 2),
            _ => {
                let x = self.scalar(DType::I32);
                let (lo, hi) = (self.int(DType::I32, 0), self.int(DType::I32, 2));
                (self.one(OpKind::Clamp { lo, x, hi }, Type::Scalar(DType::I32)), 3)
            }
        };
        let arms = (0..n).map(|_| {
            self.region(&[], |g, _| {
                g.statements();
                g.scalars(&types)
            })
        });
        let arms = arms.collect();
        self.op(OpKind::Switch { selector, arms }, &types);
    }
}
