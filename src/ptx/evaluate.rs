//! Pure instructions on constants: what the machine would compute, or `None` where this file does not know.
//!
//! Integers are folded by what their rows compute, as the emulator executes them. Floating point covers what the host's IEEE arithmetic gives bit for bit (round to
//! nearest even, no NaN results, whose payload the machine canonicalises). The approximate functions come from
//! [`ConstantFunctions`]: ptxas folds them to the correctly rounded value, not to the unit's, so that constants must
//! not reach it.
use super::inst::Inst;
use super::integer::{self, Int, by};
use super::modifier::*;
use super::operand::*;
use half::{bf16, f16};

/// The special-function unit's values on constants. `None`: not known, the instruction stays.
pub trait ConstantFunctions {
    fn mufu(&self, _op: Mufu, _ftz: Ftz, _a: u32) -> Option<u32> {
        None
    }
    fn tanh(&self, _a: u32) -> Option<u32> {
        None
    }
    fn mufu16(&self, _op: Unary16, _a: u32) -> Option<u32> {
        None
    }
    fn mufu64(&self, _op: Mufu64, _a: u64) -> Option<u64> {
        None
    }
    fn div(&self, _mode: DivMode, _ftz: Ftz, _a: u32, _b: u32) -> Option<u32> {
        None
    }
}

/// Knows no approximate function.
pub struct NoFunctions;

impl ConstantFunctions for NoFunctions {}

fn sign_extend(v: u64, bits: u32) -> i64 {
    ((v << (64 - bits)) as i64) >> (64 - bits)
}
fn widen(ty: IntType, v: u64) -> i128 {
    let v = v & ty.slot().class.mask();
    if ty.is_signed() {
        i128::from(sign_extend(v, ty.bits()))
    } else {
        i128::from(v)
    }
}
fn flush32(ftz: Ftz, v: f32) -> f32 {
    match ftz {
        Ftz::Yes if v.is_subnormal() => 0f32.copysign(v),
        Ftz::Yes | Ftz::No => v,
    }
}

/// One operation on floats of type `ty`, rounded to nearest even; f16 and bf16 through f32, whose 24 bits make the
/// second rounding innocuous for `+ − ×` (24 ≥ 2·11 + 2).
fn float_op(
    ty: FloatType,
    ftz: Ftz,
    a: u64,
    b: u64,
    op32: impl Fn(f32, f32) -> f32,
    op64: impl Fn(f64, f64) -> f64,
) -> Option<u64> {
    match ty {
        FloatType::F32 => {
            let (a, b) = (f32::from_bits(a as u32), f32::from_bits(b as u32));
            let v = op32(flush32(ftz, a), flush32(ftz, b));
            // Flushed after rounding with an unbounded exponent: only the smallest normal number could differ.
            let doubtful = ftz == Ftz::Yes && v.abs() <= f32::MIN_POSITIVE && v != 0.0;
            (!v.is_nan() && !doubtful).then(|| u64::from(v.to_bits()))
        }
        FloatType::F64 => {
            let v = op64(f64::from_bits(a), f64::from_bits(b));
            (!v.is_nan()).then(|| v.to_bits())
        }
        FloatType::F16 if ftz == Ftz::No => {
            let v = op32(f16::from_bits(a as u16).to_f32(), f16::from_bits(b as u16).to_f32());
            (!v.is_nan()).then(|| u64::from(f16::from_f32(v).to_bits()))
        }
        FloatType::BF16 if ftz == Ftz::No => {
            let v = op32(bf16::from_bits(a as u16).to_f32(), bf16::from_bits(b as u16).to_f32());
            (!v.is_nan()).then(|| u64::from(bf16::from_f32(v).to_bits()))
        }
        FloatType::F16 | FloatType::BF16 | FloatType::F16x2 | FloatType::BF16x2 => None,
    }
}

fn compare<T: PartialOrd>(cmp: Compare, a: T, b: T) -> bool {
    let unordered = a.partial_cmp(&b).is_none();
    match cmp {
        Compare::Eq => a == b,
        Compare::Ne => a != b && !unordered,
        Compare::Lt | Compare::Lo => a < b,
        Compare::Le | Compare::Ls => a <= b,
        Compare::Gt | Compare::Hi => a > b,
        Compare::Ge | Compare::Hs => a >= b,
        Compare::Equ => a == b || unordered,
        Compare::Neu => a != b || unordered,
        Compare::Ltu => a < b || unordered,
        Compare::Leu => a <= b || unordered,
        Compare::Gtu => a > b || unordered,
        Compare::Geu => a >= b || unordered,
        Compare::Num => !unordered,
        Compare::Nan => unordered,
    }
}

fn compare_bits(cmp: Compare, ftz: Ftz, ty: CompareType, a: u64, b: u64) -> bool {
    let int = |ty: IntType| compare(cmp, widen(ty, a), widen(ty, b));
    match ty {
        CompareType::U16 | CompareType::B16 => int(IntType::U16),
        CompareType::S16 => int(IntType::S16),
        CompareType::U32 | CompareType::B32 => int(IntType::U32),
        CompareType::S32 => int(IntType::S32),
        CompareType::U64 | CompareType::B64 => int(IntType::U64),
        CompareType::S64 => int(IntType::S64),
        CompareType::F16 => compare(
            cmp,
            f16::from_bits(a as u16).to_f32(),
            f16::from_bits(b as u16).to_f32(),
        ),
        CompareType::BF16 => compare(
            cmp,
            bf16::from_bits(a as u16).to_f32(),
            bf16::from_bits(b as u16).to_f32(),
        ),
        CompareType::F32 => compare(
            cmp,
            flush32(ftz, f32::from_bits(a as u32)),
            flush32(ftz, f32::from_bits(b as u32)),
        ),
        CompareType::F64 => compare(cmp, f64::from_bits(a), f64::from_bits(b)),
    }
}

fn convert(rnd: CvtRound, ftz: Ftz, sat: Sat, to: CvtType, from: CvtType, a: u64) -> Option<u64> {
    match (to.integer(), from.integer()) {
        (Some((to_bits, to_signed)), Some((from_bits, from_signed))) => {
            let v = a & (u64::MAX >> (64 - from_bits));
            let v = if from_signed {
                i128::from(sign_extend(v, from_bits))
            } else {
                i128::from(v)
            };
            let v = match sat {
                Sat::Yes if to_signed => v.clamp(-(1i128 << (to_bits - 1)), (1i128 << (to_bits - 1)) - 1),
                Sat::Yes => v.clamp(0, (1i128 << to_bits) - 1),
                Sat::No => v,
            };
            // A result narrower than its register is extended by its own sign.
            let cut = (v as u64) & (u64::MAX >> (64 - to_bits));
            let extended = if to_signed {
                sign_extend(cut, to_bits) as u64
            } else {
                cut
            };
            Some(extended & to.slot().class.mask())
        }
        (None, Some((from_bits, from_signed))) if rnd == CvtRound::Rn && sat == Sat::No => {
            let v = a & (u64::MAX >> (64 - from_bits));
            let (i, u) = (sign_extend(v, from_bits), v);
            match to {
                CvtType::F32 => {
                    let f = if from_signed { i as f32 } else { u as f32 };
                    Some(u64::from(f.to_bits()))
                }
                CvtType::F64 => Some(if from_signed { i as f64 } else { u as f64 }.to_bits()),
                _ => None,
            }
        }
        (None, None) if sat == Sat::No && ftz == Ftz::No => {
            let wide = match from {
                CvtType::F16 => f64::from(f16::from_bits(a as u16)),
                CvtType::BF16 => f64::from(bf16::from_bits(a as u16)),
                CvtType::F32 => f64::from(f32::from_bits(a as u32)),
                CvtType::F64 => f64::from_bits(a),
                _ => return None,
            };
            if wide.is_nan() || !matches!(rnd, CvtRound::None | CvtRound::Rn) {
                return None;
            }
            match to {
                CvtType::F16 => Some(u64::from(f16::from_f64(wide).to_bits())),
                CvtType::BF16 => Some(u64::from(bf16::from_f64(wide).to_bits())),
                CvtType::F32 => Some(u64::from((wide as f32).to_bits())),
                CvtType::F64 => Some(wide.to_bits()),
                _ => None,
            }
        }
        _ => None,
    }
}

/// A row's function of constants, as [`Int`]s of its types.
macro_rules! lanes {
    (@type) => { T };
    (@type $X:ty) => { $X };
    (@ |$($x:ident $(: $X:ty)?),+| $(-> $D:ty)? $body:block $(, $how:ident = $e:expr)?) => {{
        $( let $how = $e as u32; )?
        $( let $x = <lanes!(@type $($X)?)>::of($x); )+
        let d: lanes!(@type $($D)?) = $body;
        Some(d.bits())
    }};
    ($types:ident $ty:ident, $($f:tt)+) => { by!($types $ty, T => lanes!($($f)+)) };
    (scalar $($f:tt)+) => { lanes!(@ $($f)+) };
    ($($f:tt)+) => { lanes!(@ $($f)+) };
}

/// Operands of an instruction as constants; the other fields are themselves.
macro_rules! known {
    (src $e:ident, $src:ident, $get:ident) => {
        let $e = $src($e)?;
    };
    (reg $e:ident, $src:ident, $get:ident) => {
        let $e = $get(*$e)?;
    };
    (modifier $e:ident, $src:ident, $get:ident) => {
        let $e = *$e;
    };
    (number $e:ident, $src:ident, $get:ident) => {
        let $e = *$e;
    };
    ($kind:ident $e:ident, $src:ident, $get:ident) => {};
}

/// Makes `fold!`, which knows these rows and no others: those that the optimiser may count on.
macro_rules! folded {
    ($dollar:tt $($row:ident)*) => {
        macro_rules! fold {
            $(($row $dollar src:ident $dollar get:ident [$dollar($dollar kind:ident $dollar field:ident)*] [$dollar computed:expr]) => {{
                $dollar( known!($dollar kind $dollar field, $dollar src, $dollar get); )*
                $dollar computed
            }};)*
            ($dollar($dollar any:tt)*) => { None };
        }
    };
}
folded! { $
    Mov AddInt SubInt MulLo MulHi MulWide MadLo MadWide DivInt RemInt NegInt AbsInt MinMaxInt Lop3 Shl Shr Shf Bfe Clz Popc Brev Bfind
}

/// What a row says that PTX lacks.
fn no(_: &str) -> Option<u64> {
    None
}

macro_rules! evaluate_rows {
    ($(
        $(#[doc = $doc:literal])*
        $method:ident $variant:ident { $( $kind:ident $field:ident : $arg:tt );* $(;)? }
            $syntax:literal, requires $requires:tt, effects $effects:tt $(, legal $legal:tt)? $(, computes $computes:tt)?;
    )*) => {
        /// An instruction whose row says what it computes of integers.
        #[allow(unused_variables)]
        fn by_row<R: Copy>(inst: &Inst<R>, src: &dyn Fn(&Src<R>) -> Option<u64>, get: &dyn Fn(R) -> Option<u64>) -> Option<u64> {
            match inst {
                $( Inst::$variant { $( $field ),* } => fold!($variant src get [$($kind $field)*] $($computes)?) ),*
            }
        }
    };
}
crate::instruction_table!(evaluate_rows);

/// The value of `inst`'s only definition, when its operands are constants. `get` knows which registers are.
pub fn evaluate<R: Copy>(
    inst: &Inst<R>,
    get: impl Fn(R) -> Option<u64>,
    functions: &dyn ConstantFunctions,
) -> Option<u64> {
    let src = |s: &Src<R>| match s {
        Src::Imm(bits) => Some(*bits),
        Src::Reg(r) => get(*r),
    };
    let v = match inst {
        Inst::MovPred { a, .. } => src(a)?,
        // Whatever is shifted out.
        Inst::Shl { ty, b, .. } if src(b)? & Class::B32.mask() >= ty.slot().class.bits().into() => 0,
        // PTX leaves it open.
        Inst::DivInt { ty, b, .. } | Inst::RemInt { ty, b, .. } if src(b)? & ty.slot().class.mask() == 0 => {
            return None;
        }
        Inst::Logic { op, a, b, .. } => match op {
            Logic::And => src(a)? & src(b)?,
            Logic::Or => src(a)? | src(b)?,
            Logic::Xor => src(a)? ^ src(b)?,
        },
        Inst::Not { a, .. } => !src(a)?,
        Inst::Prmt {
            mode: PrmtMode::Bytes,
            a,
            b,
            c,
            ..
        } => integer::prmt(
            src(a)? as u32,
            src(b)? as u32,
            src(c)? as u32,
            integer::Permute::Generic,
        )
        .into(),
        Inst::Bfi { ty, a, b, pos, len, .. } => {
            let (a, b, pos, len) = (src(a)?, src(b)?, src(pos)? as u32, src(len)? as u32);
            match ty {
                WordType::B32 => integer::bfi_b32(a as u32, b as u32, pos, len).into(),
                WordType::B64 => integer::bfi_b64(a, b, pos, len),
            }
        }
        Inst::AddFloat {
            rnd: Round::Rn,
            ftz,
            ty,
            a,
            b,
            ..
        } => float_op(*ty, *ftz, src(a)?, src(b)?, |a, b| a + b, |a, b| a + b)?,
        Inst::SubFloat {
            rnd: Round::Rn,
            ftz,
            ty,
            a,
            b,
            ..
        } => float_op(*ty, *ftz, src(a)?, src(b)?, |a, b| a - b, |a, b| a - b)?,
        Inst::MulFloat {
            rnd: Round::Rn,
            ftz,
            ty,
            a,
            b,
            ..
        } => float_op(*ty, *ftz, src(a)?, src(b)?, |a, b| a * b, |a, b| a * b)?,
        Inst::Fma {
            rnd: Round::Rn,
            ftz: Ftz::No,
            ty,
            a,
            b,
            c,
            ..
        } => {
            let (a, b, c) = (src(a)?, src(b)?, src(c)?);
            match ty {
                FloatType::F32 => {
                    let f = |v: u64| f32::from_bits(v as u32);
                    let v = f(a).mul_add(f(b), f(c));
                    (!v.is_nan()).then(|| u64::from(v.to_bits()))?
                }
                FloatType::F64 => {
                    let v = f64::from_bits(a).mul_add(f64::from_bits(b), f64::from_bits(c));
                    (!v.is_nan()).then(|| v.to_bits())?
                }
                FloatType::F16 | FloatType::F16x2 | FloatType::BF16 | FloatType::BF16x2 => return None,
            }
        }
        Inst::DivFloat {
            ftz: Ftz::No, ty, a, b, ..
        } => {
            let ty = match ty {
                WideFloatType::F32 => FloatType::F32,
                WideFloatType::F64 => FloatType::F64,
            };
            float_op(ty, Ftz::No, src(a)?, src(b)?, |a, b| a / b, |a, b| a / b)?
        }
        Inst::Exact {
            op,
            ftz: Ftz::No,
            ty,
            a,
            ..
        } => {
            let ty = match ty {
                WideFloatType::F32 => FloatType::F32,
                WideFloatType::F64 => FloatType::F64,
            };
            let a = src(a)?;
            match op {
                Exact::Rcp => float_op(ty, Ftz::No, a, a, |a, _| 1.0 / a, |a, _| 1.0 / a)?,
                Exact::Sqrt => float_op(ty, Ftz::No, a, a, |a, _| a.sqrt(), |a, _| a.sqrt())?,
            }
        }
        Inst::Mufu { op, ftz, a, .. } => u64::from(functions.mufu(*op, *ftz, src(a)? as u32)?),
        Inst::TanhApprox { a, .. } => u64::from(functions.tanh(src(a)? as u32)?),
        Inst::Mufu16 { op, a, .. } => u64::from(functions.mufu16(*op, get(*a)? as u32)?),
        Inst::Mufu64 { op, a, .. } => functions.mufu64(*op, get(*a)?)?,
        Inst::DivApprox { mode, ftz, a, b, .. } => {
            u64::from(functions.div(*mode, *ftz, src(a)? as u32, src(b)? as u32)?)
        }
        Inst::Cvt {
            rnd,
            ftz,
            sat,
            to,
            from,
            a,
            ..
        } => convert(*rnd, *ftz, *sat, *to, *from, get(*a)?)?,
        Inst::Setp { cmp, ftz, ty, a, b, .. } => u64::from(compare_bits(*cmp, *ftz, *ty, src(a)?, src(b)?)),
        Inst::Selp { a, b, p, .. } => {
            if get(*p)? & 1 == 1 {
                src(a)?
            } else {
                src(b)?
            }
        }
        Inst::PackB32 { a, .. } if a.len() == 2 => (src(&a[0])? & 0xffff) | src(&a[1])? << 16,
        Inst::PackB64 { a, .. } if a.len() == 2 => (src(&a[0])? & 0xffff_ffff) | src(&a[1])? << 32,
        // What else is no function of integers is not pure, or is left to run time.
        _ => by_row(inst, &src, &get)?,
    };
    let mut class = None;
    inst.for_each_def(|_, slot| class = Some(slot.class));
    Some(v & class?.mask())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn eval(inst: Inst<u32>) -> Option<u64> {
        evaluate(&inst, |_| None, &NoFunctions)
    }
    /// Registers stand for themselves.
    fn eval_regs(inst: Inst<u32>) -> Option<u64> {
        evaluate(&inst, |r| Some(u64::from(r)), &NoFunctions)
    }

    #[test]
    fn integers_wrap_and_cut() {
        let ty = IntType::S32;
        assert_eq!(
            eval(Inst::AddInt {
                ty,
                d: 0,
                a: Src::u32(u32::MAX),
                b: Src::u32(2)
            }),
            Some(1)
        );
        assert_eq!(
            eval(Inst::MulHi {
                ty,
                d: 0,
                a: Src::imm32(-1),
                b: Src::imm32(5)
            }),
            Some(0xffff_ffff)
        );
        assert_eq!(
            eval(Inst::DivInt {
                ty,
                d: 0,
                a: Src::imm32(-7),
                b: Src::imm32(2)
            }),
            Some((-3i32) as u32 as u64)
        );
        assert_eq!(
            eval(Inst::DivInt {
                ty,
                d: 0,
                a: Src::imm32(-7),
                b: Src::imm32(0)
            }),
            None
        );
        assert_eq!(
            eval(Inst::MulWide {
                ty: WideType::S32,
                d: 0,
                a: Src::imm32(-3),
                b: Src::imm32(7)
            }),
            Some((-21i64) as u64)
        );
    }

    #[test]
    fn shifts_beyond_the_width_saturate() {
        assert_eq!(
            eval(Inst::Shl {
                ty: BitType::B32,
                d: 0,
                a: Src::u32(1),
                b: Src::u32(32)
            }),
            Some(0)
        );
        assert_eq!(
            eval(Inst::Shr {
                ty: ShiftType::S32,
                d: 0,
                a: Src::imm32(-8),
                b: Src::imm32(-1)
            }),
            Some(0xffff_ffff)
        );
        assert_eq!(
            eval(Inst::Shr {
                ty: ShiftType::U32,
                d: 0,
                a: Src::imm32(-8),
                b: Src::u32(31)
            }),
            Some(1)
        );
    }

    #[test]
    fn conversions_extend_and_saturate() {
        let cvt = |sat, to, from, a| {
            eval_regs(Inst::Cvt {
                rnd: CvtRound::None,
                ftz: Ftz::No,
                sat,
                to,
                from,
                d: 0,
                a,
            })
        };
        assert_eq!(cvt(Sat::No, CvtType::S8, CvtType::U32, 0x80), Some(0xffff_ff80));
        assert_eq!(cvt(Sat::Yes, CvtType::S8, CvtType::S32, 300), Some(127));
        assert_eq!(cvt(Sat::Yes, CvtType::U16, CvtType::S32, 0xffff_ffff), Some(0));
        assert_eq!(cvt(Sat::No, CvtType::S64, CvtType::S32, 0xffff_ffff), Some(u64::MAX));
    }

    #[test]
    fn a_nan_is_left_to_the_machine() {
        let inf = Src::f32(f32::INFINITY);
        let add = |b| Inst::AddFloat {
            rnd: Round::Rn,
            ftz: Ftz::No,
            ty: FloatType::F32,
            d: 0,
            a: inf,
            b,
        };
        assert_eq!(eval(add(Src::f32(f32::NEG_INFINITY))), None);
        assert_eq!(eval(add(Src::f32(1.0))), Some(u64::from(f32::INFINITY.to_bits())));
    }

    #[test]
    fn comparisons_know_nan() {
        let setp = |cmp| Inst::Setp {
            cmp,
            ftz: Ftz::No,
            ty: CompareType::F32,
            d: 0,
            a: Src::f32(f32::NAN),
            b: Src::f32(1.0),
        };
        assert_eq!(eval(setp(Compare::Ne)), Some(0));
        assert_eq!(eval(setp(Compare::Neu)), Some(1));
        assert_eq!(eval(setp(Compare::Geu)), Some(1));
        assert_eq!(eval(setp(Compare::Nan)), Some(1));
    }

    #[test]
    fn bit_fields() {
        let bfind = |ty, a| {
            eval(Inst::Bfind {
                ty,
                d: 0,
                a: Src::Imm(a),
            })
        };
        assert_eq!(bfind(IntType::U32, 0x8000_0000), Some(31));
        assert_eq!(bfind(IntType::S32, 0xffff_fffe), Some(0));
        assert_eq!(bfind(IntType::S64, u64::MAX), Some(0xffff_ffff));
        assert_eq!(
            eval(Inst::Bfe {
                ty: IntType::S32,
                d: 0,
                a: Src::u32(0xf0),
                pos: Src::u32(4),
                len: Src::u32(4)
            }),
            Some(0xffff_ffff)
        );
        assert_eq!(
            eval(Inst::Bfi {
                ty: WordType::B32,
                d: 0,
                a: Src::u32(0x5),
                b: Src::u32(0xffff),
                pos: Src::u32(4),
                len: Src::u32(4)
            }),
            Some(0xff5f)
        );
        assert_eq!(
            eval(Inst::Prmt {
                mode: PrmtMode::Bytes,
                d: 0,
                a: Src::u32(0x8833_2211),
                b: Src::u32(0x7766_5544),
                c: Src::u32(0xb054)
            }),
            Some(0xff11_5544)
        );
    }
}
