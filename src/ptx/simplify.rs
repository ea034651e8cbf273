//! Local simplification of pure instructions: constants, identities, cheaper forms, chains of immediates.
//!
//! Floating-point identities are left alone (`x·1` canonicalises a NaN, `x + 0` loses a sign): only constants fold.
use super::evaluate::{ConstantFunctions, evaluate};
use super::inst::Inst;
use super::modifier::*;
use super::operand::*;
use super::permute;
use super::ssa::Value;

/// What the instructions around one know about its operands.
pub trait Facts {
    /// The value's bits, when it is a constant.
    fn constant(&self, v: Value) -> Option<u64>;
    /// The instruction that defines the value.
    fn definition(&self, v: Value) -> Option<&Inst<Value>>;
    /// No larger, as an unsigned number of its class.
    fn bound(&self, v: Value) -> u64;
    fn functions(&self) -> &dyn ConstantFunctions;
}

/// What became of an instruction.
pub enum Simplified {
    /// The result is a constant or another value.
    Operand(Src<Value>),
    /// Another instruction (to be simplified again).
    Inst(Inst<Value>),
    /// Nothing better is known.
    Same,
}
use Simplified::*;

/// The bits of a source cut to its slot, when it is a constant.
fn constant(facts: &impl Facts, s: Src<Value>, class: Class) -> Option<u64> {
    match s {
        Src::Imm(bits) => Some(bits & class.mask()),
        Src::Reg(v) => facts.constant(v),
    }
}

/// The upper bound of a source.
pub fn bound_of(facts: &impl Facts, s: Src<Value>, class: Class) -> u64 {
    match s {
        Src::Imm(bits) => bits & class.mask(),
        Src::Reg(v) => facts.bound(v),
    }
}

/// One step; `inst` has one definition, which is ignored.
pub fn simplify(inst: &Inst<Value>, facts: &impl Facts) -> Simplified {
    if let Some(bits) = evaluate(inst, |v| facts.constant(v), facts.functions()) {
        return Operand(Src::Imm(bits));
    }
    let d = Value::NEW;
    match inst {
        Inst::Mov { a: Src::Reg(v), .. } | Inst::MovPred { a: Src::Reg(v), .. } => Operand(Src::Reg(*v)),
        Inst::AddInt { ty, a, b, .. } => sum(facts, ty, a, b),
        Inst::SubInt { ty, a, b, .. } => {
            let class = ty.slot().class;
            if a == b {
                return Operand(Src::Imm(0));
            }
            match constant(facts, *b, class) {
                Some(c) => Inst(Inst::add_int(*ty, d, *a, Src::Imm(c.wrapping_neg() & class.mask()))),
                None => Same,
            }
        }
        Inst::MulLo { ty, a, b, .. } => product(facts, ty, a, b),
        Inst::MadLo { ty, a, b, c, .. } => product_and_sum(facts, ty, a, b, c),
        Inst::MulWide { a, b, ty, .. } => {
            let class = ty.slot().class;
            match (constant(facts, *a, class), constant(facts, *b, class)) {
                (Some(0), _) | (_, Some(0)) => Operand(Src::Imm(0)),
                _ => Same,
            }
        }
        Inst::MadWide { ty, a, b, c, .. } => {
            let class = ty.slot().class;
            match (constant(facts, *a, class), constant(facts, *b, class)) {
                (Some(0), _) | (_, Some(0)) => Operand(*c),
                _ if constant(facts, *c, Class::B64) == Some(0) => Inst(Inst::mul_wide(*ty, d, *a, *b)),
                _ => Same,
            }
        }
        Inst::DivInt { ty, a, b, .. } => quotient(facts, ty, a, b),
        Inst::RemInt { ty, a, b, .. } => remainder(facts, ty, a, b),
        Inst::NegInt { ty, a, .. } if !ty.is_signed() => Inst(Inst::neg_int(ty.as_signed(), d, *a)),
        Inst::AbsInt { ty, a, .. } if !ty.is_signed() => Operand(*a),
        Inst::PackB32 { a, .. } | Inst::PackB64 { a, .. } => packed(facts, a),
        Inst::MinMaxInt { a, b, .. } if a == b => Operand(*a),
        Inst::MinMaxInt { op, ty, a, b, .. } if !ty.is_signed() => {
            let class = ty.slot().class;
            match (constant(facts, *b, class), op) {
                (Some(c), MinMax::Min) if c >= bound_of(facts, *a, class) => Operand(*a),
                (Some(c), MinMax::Max) if c >= bound_of(facts, *a, class) => Operand(Src::Imm(c)),
                (Some(0), MinMax::Max) => Operand(*a),
                _ => Same,
            }
        }
        Inst::Logic { op, ty, a, b, .. } => logic(facts, *op, *ty, *a, *b),
        Inst::Not { a: Src::Reg(v), .. } => match facts.definition(*v) {
            Some(Inst::Not { a, .. }) => Operand(*a),
            _ => Same,
        },
        Inst::Prmt {
            mode: PrmtMode::Bytes,
            a,
            b,
            c: Src::Imm(selector),
            ..
        } => permute::simplify([*a, *b], *selector as u32, facts),
        Inst::Shl { ty, a, b, .. } => shifted_left(facts, ty, a, b),
        Inst::Shr { ty, a, b, .. } => shifted_right(facts, ty, a, b),
        // What ptxas makes of them, and the machine with it.
        Inst::Mufu {
            op: Mufu::Rcp,
            ftz,
            a: Src::Reg(v),
            ..
        } => match facts.definition(*v) {
            Some(Inst::Mufu {
                op: Mufu::Rcp,
                ftz: inner,
                a,
                ..
            }) if inner == ftz => Operand(*a),
            _ => Same,
        },
        // A quotient is the product with the unit's reciprocal, where neither is scaled first. ptxas would take the
        // correctly rounded reciprocal of a constant.
        Inst::DivApprox {
            ftz, a, b: Src::Imm(b), ..
        } => {
            let exponent = (b >> 23) & 0xff;
            let plain = (1..=252).contains(&exponent);
            match facts.functions().mufu(Mufu::Rcp, Ftz::Yes, *b as u32) {
                Some(reciprocal) if plain => Inst(Inst::mul_float(
                    Round::Rn,
                    *ftz,
                    FloatType::F32,
                    d,
                    *a,
                    Src::u32(reciprocal),
                )),
                Some(_) | None => Same,
            }
        }
        Inst::Setp { cmp, ty, a, b, .. } => setp(facts, *cmp, *ty, *a, *b),
        Inst::Selp { a, b, p, .. } => match facts.constant(*p) {
            Some(1) => Operand(*a),
            Some(_) => Operand(*b),
            None if a == b => Operand(*a),
            None => Same,
        },
        Inst::Cvt {
            sat: Sat::No,
            to,
            from,
            a,
            ..
        } => cvt(facts, *to, *from, *a),
        _ => Same,
    }
}

/// `a + b`.
fn sum(facts: &impl Facts, ty: &IntType, a: &Src<Value>, b: &Src<Value>) -> Simplified {
    let d = Value::NEW;
    let class = ty.slot().class;
    let (x, c) = match (constant(facts, *a, class), constant(facts, *b, class)) {
        (_, Some(c)) => (*a, c),
        (Some(c), _) => (*b, c),
        (None, None) => return Same,
    };
    if c == 0 {
        return Operand(x);
    }
    // (y + k) + c = y + (k + c), modulo 2^bits whatever the signs.
    if let Src::Reg(v) = x
        && let Some(Inst::AddInt {
            ty: inner,
            a: y,
            b: Src::Imm(k),
            ..
        }) = facts.definition(v)
        && inner.bits() == ty.bits()
    {
        let b = Src::Imm(k.wrapping_add(c) & class.mask());
        return Inst(Inst::AddInt { ty: *ty, d, a: *y, b });
    }
    rewritten(*a == x && *b == Src::Imm(c), || Inst::add_int(*ty, d, x, Src::Imm(c)))
}

/// `a · b`, the low half.
fn product(facts: &impl Facts, ty: &IntType, a: &Src<Value>, b: &Src<Value>) -> Simplified {
    let d = Value::NEW;
    let class = ty.slot().class;
    let (x, c) = match (constant(facts, *a, class), constant(facts, *b, class)) {
        (_, Some(c)) => (*a, c),
        (Some(c), _) => (*b, c),
        (None, None) => return Same,
    };
    match c {
        0 => Operand(Src::Imm(0)),
        1 => Operand(x),
        c if c.is_power_of_two() => Inst(Inst::shl(ty.as_bits(), d, x, Src::u32(c.trailing_zeros()))),
        _ => rewritten(*a == x && *b == Src::Imm(c), || Inst::mul_lo(*ty, d, x, Src::Imm(c))),
    }
}

/// `a · b + c`, the low half.
fn product_and_sum(facts: &impl Facts, ty: &IntType, a: &Src<Value>, b: &Src<Value>, c: &Src<Value>) -> Simplified {
    let d = Value::NEW;
    let class = ty.slot().class;
    let product = match (constant(facts, *a, class), constant(facts, *b, class)) {
        (Some(a), Some(b)) => Some(Src::Imm(a.wrapping_mul(b) & class.mask())),
        (Some(0), _) | (_, Some(0)) => Some(Src::Imm(0)),
        (Some(1), _) => Some(*b),
        (_, Some(1)) => Some(*a),
        _ => None,
    };
    match (product, constant(facts, *c, class)) {
        (Some(product), _) => Inst(Inst::add_int(*ty, d, product, *c)),
        (None, Some(0)) => Inst(Inst::mul_lo(*ty, d, *a, *b)),
        _ => Same,
    }
}

/// `a / b`.
fn quotient(facts: &impl Facts, ty: &IntType, a: &Src<Value>, b: &Src<Value>) -> Simplified {
    let d = Value::NEW;
    let class = ty.slot().class;
    match constant(facts, *b, class) {
        Some(1) => Operand(*a),
        Some(c) if !ty.is_signed() && c > bound_of(facts, *a, class) => Operand(Src::Imm(0)),
        // The quotient of a signed number that is known not to be negative is the unsigned one.
        Some(c) if c.is_power_of_two() && unsigned(facts, *ty, *a, c) => Inst(Inst::shr(
            ty.as_unsigned().as_shift(),
            d,
            *a,
            Src::u32(c.trailing_zeros()),
        )),
        Some(c) if ty.is_signed() && unsigned(facts, *ty, *a, c) => {
            Inst(Inst::div_int(ty.as_unsigned(), d, *a, Src::Imm(c)))
        }
        _ => Same,
    }
}

/// `a % b`.
fn remainder(facts: &impl Facts, ty: &IntType, a: &Src<Value>, b: &Src<Value>) -> Simplified {
    let d = Value::NEW;
    let class = ty.slot().class;
    match constant(facts, *b, class) {
        Some(1) => Operand(Src::Imm(0)),
        Some(c) if !ty.is_signed() && c > bound_of(facts, *a, class) => Operand(*a),
        Some(c) if c.is_power_of_two() && unsigned(facts, *ty, *a, c) => {
            Inst(Inst::logic(Logic::And, ty.as_logic(), d, *a, Src::Imm(c - 1)))
        }
        Some(c) if ty.is_signed() && unsigned(facts, *ty, *a, c) => {
            Inst(Inst::rem_int(ty.as_unsigned(), d, *a, Src::Imm(c)))
        }
        _ => Same,
    }
}

/// `a << b`.
fn shifted_left(facts: &impl Facts, ty: &BitType, a: &Src<Value>, b: &Src<Value>) -> Simplified {
    let d = Value::NEW;
    let bits = u64::from(ty.slot().class.bits());
    let Some(by) = constant(facts, *b, Class::B32) else {
        return Same;
    };
    if by == 0 {
        return Operand(*a);
    }
    if let Src::Reg(v) = a {
        match facts.definition(*v) {
            Some(Inst::Shl {
                ty: inner,
                a,
                b: Src::Imm(k),
                ..
            }) if inner == ty => {
                return match k + by {
                    sum if sum >= bits => Operand(Src::Imm(0)),
                    sum => Inst(Inst::shl(*ty, d, *a, Src::Imm(sum))),
                };
            }
            // (y >> k) << k keeps the high bits.
            Some(Inst::Shr {
                ty: inner,
                a,
                b: Src::Imm(k),
                ..
            }) if *k == by && by < bits && inner.slot().class == ty.slot().class => {
                let class = ty.slot().class;
                return Inst(Inst::logic(
                    Logic::And,
                    logic_type(class),
                    d,
                    *a,
                    Src::Imm(class.mask() << by & class.mask()),
                ));
            }
            _ => {}
        }
    }
    rewritten(*b == Src::Imm(by), || Inst::shl(*ty, d, *a, Src::Imm(by)))
}

/// `a >> b`.
fn shifted_right(facts: &impl Facts, ty: &ShiftType, a: &Src<Value>, b: &Src<Value>) -> Simplified {
    let d = Value::NEW;
    let class = ty.slot().class;
    let Some(by) = constant(facts, *b, Class::B32) else {
        return Same;
    };
    if by == 0 {
        return Operand(*a);
    }
    let bound = bound_of(facts, *a, class);
    if bound <= class.mask() >> 1 && (by >= 64 || bound >> by == 0) {
        return Operand(Src::Imm(0));
    }
    if let Src::Reg(v) = a
        && let Some(Inst::Shr {
            ty: inner,
            a,
            b: Src::Imm(k),
            ..
        }) = facts.definition(*v)
        && inner == ty
        && k + by < u64::from(class.bits())
    {
        return Inst(Inst::shr(*ty, d, *a, Src::Imm(k + by)));
    }
    rewritten(*b == Src::Imm(by), || Inst::shr(*ty, d, *a, Src::Imm(by)))
}

fn rewritten(same: bool, make: impl FnOnce() -> Inst<Value>) -> Simplified {
    if same { Same } else { Inst(make()) }
}

/// Neither operand of a division by `c` is negative as `ty` reads them.
fn unsigned(facts: &impl Facts, ty: IntType, a: Src<Value>, c: u64) -> bool {
    let class = ty.slot().class;
    let max = class.mask() >> 1;
    !ty.is_signed() || (c <= max && bound_of(facts, a, class) <= max)
}

/// Two halves of one register, together again.
fn packed(facts: &impl Facts, a: &[Src<Value>]) -> Simplified {
    let [Src::Reg(low), Src::Reg(high)] = a else {
        return Same;
    };
    match facts.definition(*low) {
        Some(Inst::UnpackB32 { d, a } | Inst::UnpackB64 { d, a }) if d[..] == [*low, *high] => Operand(Src::Reg(*a)),
        _ => Same,
    }
}

fn logic_type(class: Class) -> LogicType {
    match class {
        Class::Pred => LogicType::Pred,
        Class::B16 => LogicType::B16,
        Class::B32 => LogicType::B32,
        Class::B64 => LogicType::B64,
    }
}

fn logic(facts: &impl Facts, op: Logic, ty: LogicType, a: Src<Value>, b: Src<Value>) -> Simplified {
    let class = ty.slot().class;
    let all = class.mask();
    if a == b {
        return match op {
            Logic::And | Logic::Or => Operand(a),
            Logic::Xor => Operand(Src::Imm(0)),
        };
    }
    let (x, c) = match (constant(facts, a, class), constant(facts, b, class)) {
        (_, Some(c)) => (a, c),
        (Some(c), _) => (b, c),
        (None, None) => return Same,
    };
    let d = Value::NEW;
    match op {
        Logic::And if c == 0 => return Operand(Src::Imm(0)),
        Logic::And if c == all => return Operand(x),
        Logic::Or | Logic::Xor if c == 0 => return Operand(x),
        Logic::Or if c == all => return Operand(Src::Imm(all)),
        Logic::Xor if c == all => return Inst(Inst::Not { ty, d, a: x }),
        Logic::And | Logic::Or | Logic::Xor => {}
    }
    // A mask of low ones that the value cannot exceed.
    if op == Logic::And && (c + 1).is_power_of_two() && bound_of(facts, x, class) <= c {
        return Operand(x);
    }
    if let Src::Reg(v) = x
        && let Some(Inst::Logic {
            op: inner,
            ty: inner_ty,
            a: y,
            b: Src::Imm(k),
            ..
        }) = facts.definition(v)
        && *inner == op
        && *inner_ty == ty
    {
        let k = match op {
            Logic::And => k & c,
            Logic::Or => k | c,
            Logic::Xor => k ^ c,
        };
        return Inst(Inst::logic(op, ty, d, *y, Src::Imm(k)));
    }
    // Predicates take no immediates: every constant case was handled above.
    rewritten(class == Class::Pred || (a == x && b == Src::Imm(c)), || {
        Inst::logic(op, ty, d, x, Src::Imm(c))
    })
}

fn setp(facts: &impl Facts, cmp: Compare, ty: CompareType, a: Src<Value>, b: Src<Value>) -> Simplified {
    let class = ty.slot().class;
    let (signed, float) = match ty {
        CompareType::S16 | CompareType::S32 | CompareType::S64 => (true, false),
        CompareType::U16
        | CompareType::U32
        | CompareType::U64
        | CompareType::B16
        | CompareType::B32
        | CompareType::B64 => (false, false),
        CompareType::F16 | CompareType::BF16 | CompareType::F32 | CompareType::F64 => (false, true),
    };
    if float {
        return Same;
    }
    let truth = |v: bool| Operand(Src::Imm(u64::from(v)));
    if a == b {
        return match cmp {
            Compare::Eq | Compare::Le | Compare::Ge | Compare::Ls | Compare::Hs => truth(true),
            Compare::Ne | Compare::Lt | Compare::Gt | Compare::Lo | Compare::Hi => truth(false),
            _ => Same,
        };
    }
    let Some(c) = constant(facts, b, class) else {
        // Constants stand on the right.
        let Some(c) = constant(facts, a, class) else {
            return Same;
        };
        return match mirrored(cmp) {
            Some(cmp) => Inst(Inst::setp(cmp, Ftz::No, ty, Value::NEW, b, Src::Imm(c))),
            None => Same,
        };
    };
    let bound = bound_of(facts, a, class);
    if signed && (bound > class.mask() >> 1 || c > class.mask() >> 1) {
        return Same;
    }
    match cmp {
        Compare::Lt | Compare::Lo if bound < c => truth(true),
        Compare::Lt | Compare::Lo if c == 0 => truth(false),
        Compare::Le | Compare::Ls if bound <= c => truth(true),
        Compare::Gt | Compare::Hi if bound <= c => truth(false),
        Compare::Ge | Compare::Hs if bound < c => truth(false),
        Compare::Ge | Compare::Hs if c == 0 => truth(true),
        Compare::Eq if bound < c => truth(false),
        Compare::Ne if bound < c => truth(true),
        _ => Same,
    }
}

/// The comparison of integers with its operands exchanged.
fn mirrored(cmp: Compare) -> Option<Compare> {
    Some(match cmp {
        Compare::Eq => Compare::Eq,
        Compare::Ne => Compare::Ne,
        Compare::Lt => Compare::Gt,
        Compare::Le => Compare::Ge,
        Compare::Gt => Compare::Lt,
        Compare::Ge => Compare::Le,
        Compare::Lo => Compare::Hi,
        Compare::Ls => Compare::Hs,
        Compare::Hi => Compare::Lo,
        Compare::Hs => Compare::Ls,
        Compare::Equ
        | Compare::Neu
        | Compare::Ltu
        | Compare::Leu
        | Compare::Gtu
        | Compare::Geu
        | Compare::Num
        | Compare::Nan => return None,
    })
}

/// Integer conversions that change nothing, or that compose.
fn cvt(facts: &impl Facts, to: CvtType, from: CvtType, a: Value) -> Simplified {
    let int_bits = |ty: CvtType| match ty {
        CvtType::U8 | CvtType::S8 => Some(8),
        CvtType::U16 | CvtType::S16 => Some(16),
        CvtType::U32 | CvtType::S32 => Some(32),
        CvtType::U64 | CvtType::S64 => Some(64),
        CvtType::F16 | CvtType::BF16 | CvtType::F32 | CvtType::F64 => None,
    };
    match (int_bits(to), int_bits(from)) {
        (Some(t), Some(f)) if t == f && to.slot().class == from.slot().class && t != 8 => Operand(Src::Reg(a)),
        // Widening back what was widened, seen as the low half: x → 64 → 32.
        (Some(32), Some(64)) => match facts.definition(a) {
            Some(Inst::Cvt {
                from: CvtType::U32 | CvtType::S32,
                to: CvtType::U64 | CvtType::S64,
                a,
                ..
            }) => Operand(Src::Reg(*a)),
            _ => Same,
        },
        _ => Same,
    }
}

/// An upper bound of the result of a pure instruction, as an unsigned number of its class.
pub fn bound(inst: &Inst<Value>, facts: &impl Facts, class: Class) -> u64 {
    let all = class.mask();
    let of = |s: &Src<Value>| bound_of(facts, *s, class);
    let fits = |v: Option<u64>| v.filter(|v| *v <= all).unwrap_or(all);
    match inst {
        Inst::Mov { a, .. } => of(a),
        Inst::MovSpecial32 { reg, .. } => reg.most().into(),
        // Shared windows end far below 16 MB.
        Inst::MovSmemBase { .. } => 0xff_ffff,
        Inst::AddInt { a, b, .. } => fits(of(a).checked_add(of(b))),
        Inst::MulLo { a, b, .. } => fits(of(a).checked_mul(of(b))),
        Inst::MadLo { a, b, c, .. } => fits(of(a).checked_mul(of(b)).and_then(|p| p.checked_add(of(c)))),
        Inst::Shl { a, b: Src::Imm(by), .. } if *by < 64 => {
            let a = of(a);
            if a <= all >> by { a << by } else { all }
        }
        Inst::Shr {
            ty, a, b: Src::Imm(by), ..
        } if !ty.is_signed() || of(a) <= all >> 1 => {
            if *by < 64 {
                of(a) >> by
            } else {
                0
            }
        }
        Inst::DivInt {
            ty, a, b: Src::Imm(c), ..
        } if !ty.is_signed() && *c > 0 => of(a) / c,
        Inst::RemInt { ty, b: Src::Imm(c), .. } if !ty.is_signed() && *c > 0 => c - 1,
        Inst::Logic {
            op: Logic::And, a, b, ..
        } => of(a).min(of(b)),
        Inst::Logic {
            op: Logic::Or | Logic::Xor,
            a,
            b,
            ..
        } => {
            let bits = 64 - (of(a) | of(b)).leading_zeros();
            if bits == 0 { 0 } else { u64::MAX >> (64 - bits) }
        }
        Inst::MinMaxInt { op, ty, a, b, .. } if !ty.is_signed() => match op {
            MinMax::Min => of(a).min(of(b)),
            MinMax::Max => of(a).max(of(b)),
        },
        Inst::Selp { a, b, .. } => of(a).max(of(b)),
        Inst::Cvt { to, from, a, .. } => match (to, from) {
            (CvtType::U8, _) => 255,
            (CvtType::U16, CvtType::F16 | CvtType::BF16 | CvtType::F32 | CvtType::F64) => 65535,
            (
                CvtType::U32 | CvtType::U64 | CvtType::S32 | CvtType::S64 | CvtType::U16 | CvtType::S16,
                CvtType::U16 | CvtType::U32 | CvtType::U64,
            ) => {
                let a = facts.bound(*a);
                if a <= all >> 1 { a } else { all }
            }
            (CvtType::U64 | CvtType::S64 | CvtType::U32 | CvtType::S32, CvtType::U8) => 255,
            _ => all,
        },
        Inst::Popc { .. } | Inst::Clz { .. } => 64,
        Inst::Bfe {
            ty, len: Src::Imm(len), ..
        } if !ty.is_signed() && *len < u64::from(class.bits()) => (1 << len) - 1,
        _ => all,
    }
}
