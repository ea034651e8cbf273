//! Floats: what is computed by format, rounding and flushing.
use super::Hooks;
use super::decoder::{Decoder, NONE, no};
use crate::emulate::floats::*;
use crate::emulate::rounded::{
    self, Both, Brain, Double, Finish, Flushed, Half as Half16, Single, Xorsign, xorsign_code,
};
use crate::emulate::uop::Tier;
use crate::error::Result;
use crate::ptx::modifier::*;

/// A function for each format, of both halves of pairs: `[f16, bf16, f32, f64]`.
macro_rules! by_format {
    ($self:ident.$op:ident($ty:expr, $($arg:expr),+), [$h:ty, $b:ty, $f:ty, $d:ty]) => {
        match $ty {
            FloatType::F16 => $self.$op::<$h>($($arg),+),
            FloatType::F16x2 => $self.$op::<Both<$h>>($($arg),+),
            FloatType::BF16 => $self.$op::<$b>($($arg),+),
            FloatType::BF16x2 => $self.$op::<Both<$b>>($($arg),+),
            FloatType::F32 => $self.$op::<$f>($($arg),+),
            FloatType::F64 => $self.$op::<$d>($($arg),+),
        }
    };
}
/// The one that is written down once for all formats, and rounds as it is told to.
macro_rules! rounded {
    ($self:ident.$op:ident($ty:expr, $($x:expr),+; $how:expr), $F:ident) => {
        by_format!($self.$op($ty, $($x,)+ $how.code()),
            [rounded::$F<Half16>, rounded::$F<Brain>, rounded::$F<Single>, rounded::$F<Double>])
    };
}
/// One for each format, whose operands may be flushed where `.ftz` exists.
macro_rules! flushable {
    ($self:ident.$op:ident($name:expr, $ftz:expr, $ty:expr, $($x:expr),+), [$h:ident, $b:ident, $f:ident, $d:ident]) => {
        match ($ftz, $ty) {
            (Ftz::No, _) => by_format!($self.$op($ty, $($x,)+ 0), [$h, $b, $f, $d]),
            (Ftz::Yes, FloatType::F32) => $self.$op::<Flushed<$f>>($($x,)+ 0),
            (Ftz::Yes, FloatType::F16) => $self.$op::<Flushed<$h>>($($x,)+ 0),
            (Ftz::Yes, FloatType::F16x2) => $self.$op::<Both<Flushed<$h>>>($($x,)+ 0),
            (Ftz::Yes, FloatType::BF16 | FloatType::BF16x2 | FloatType::F64) => {
                return no(format!("{}.ftz.{}", $name, $ty.text()));
            }
        }
    };
}

fn wide_float(ty: WideFloatType) -> FloatType {
    match ty {
        WideFloatType::F32 => FloatType::F32,
        WideFloatType::F64 => FloatType::F64,
    }
}
fn saturated_float(ty: SatFloatType) -> FloatType {
    match ty {
        SatFloatType::F16 => FloatType::F16,
        SatFloatType::F16x2 => FloatType::F16x2,
        SatFloatType::F32 => FloatType::F32,
    }
}
fn half_float(ty: HalfType) -> FloatType {
    match ty {
        HalfType::F16 => FloatType::F16,
        HalfType::F16x2 => FloatType::F16x2,
        HalfType::BF16 => FloatType::BF16,
        HalfType::BF16x2 => FloatType::BF16x2,
    }
}

/// Sums and products: to nearest for each format, f32 also flushed, and rounded otherwise; what is left is slow.
macro_rules! arithmetic {
    ($($method:ident $op:ident ($($x:ident),+) $exact:tt, $flushed:ident, $directed:ident, $any:ident;)+) => {
        impl<H: Hooks> Decoder<'_, H> {$(
            pub fn $method(&mut self, rnd: Round, ftz: Ftz, ty: FloatType, d: u16, $($x: u16),+) {
                match (rnd, ftz, ty) {
                    (Round::Rn, Ftz::No, _) => by_format!(self.$op(ty, d, $($x,)+ 0), $exact),
                    (Round::Rn, Ftz::Yes, FloatType::F32) => self.$op::<$flushed>(d, $($x,)+ 0),
                    (_, Ftz::No, FloatType::F32) => self.$op::<$directed>(d, $($x,)+ rnd as u32),
                    _ => rounded!(self.$op(ty, d, $($x),+; Finish::of(rnd).flushed(ftz)), $any),
                }
            }
        )+}
    };
}
arithmetic! {
    add_float op2 (a, b) [AddF16, AddBF16, AddF32, AddF64], AddFtzF32, AddRoundedF32, Add;
    sub_float op2 (a, b) [SubF16, SubBF16, SubF32, SubF64], SubFtzF32, SubRoundedF32, Sub;
    mul_float op2 (a, b) [MulF16, MulBF16, MulF32, MulF64], MulFtzF32, MulRoundedF32, Mul;
    fma_of_host op3 (a, b, c) [FmaF16, FmaBF16, FmaF32, FmaF64], FmaFtzF32, FmaRoundedF32, Fma;
}

impl<H: Hooks> Decoder<'_, H> {
    pub fn neg_float(&mut self, ftz: Ftz, ty: FloatType, d: u16, a: u16) -> Result<()> {
        flushable!(self.op1("neg", ftz, ty, d, a), [NegF16, NegBF16, NegF32, NegF64]);
        Ok(())
    }
    pub fn abs_float(&mut self, ftz: Ftz, ty: FloatType, d: u16, a: u16) -> Result<()> {
        flushable!(self.op1("abs", ftz, ty, d, a), [AbsF16, AbsBF16, AbsF32, AbsF64]);
        Ok(())
    }
    pub fn fma(&mut self, rnd: Round, ftz: Ftz, ty: FloatType, d: u16, a: u16, b: u16, c: u16) {
        match (rnd, ftz, ty) {
            (Round::Rn, Ftz::No, FloatType::F32) if self.tier == Tier::Plain => self.op3::<FmaF32Slow>(d, a, b, c, 0),
            _ => self.fma_of_host(rnd, ftz, ty, d, a, b, c),
        }
    }
    pub fn float_sat(&mut self, op: FloatOp, rnd: Round, ftz: Ftz, ty: SatFloatType, d: u16, a: u16, b: u16) {
        let (ty, how) = (saturated_float(ty), Finish::of(rnd).flushed(ftz).saturated());
        match op {
            FloatOp::Add => rounded!(self.op2(ty, d, a, b; how), Add),
            FloatOp::Sub => rounded!(self.op2(ty, d, a, b; how), Sub),
            FloatOp::Mul => rounded!(self.op2(ty, d, a, b; how), Mul),
        }
    }
    pub fn fma_sat(&mut self, rnd: Round, ftz: Ftz, ty: SatFloatType, d: u16, a: u16, b: u16, c: u16) {
        let how = Finish::of(rnd).flushed(ftz).saturated();
        rounded!(self.op3(saturated_float(ty), d, a, b, c; how), Fma);
    }
    pub fn fma_relu(&mut self, ftz: Ftz, ty: HalfType, d: u16, a: u16, b: u16, c: u16) {
        let how = Finish::of(Round::Rn).flushed(ftz).clamped();
        rounded!(self.op3(half_float(ty), d, a, b, c; how), Fma);
    }
    pub fn div_directed(&mut self, rnd: DirectedRound, ftz: Ftz, ty: WideFloatType, d: u16, a: u16, b: u16) {
        rounded!(self.op2(wide_float(ty), d, a, b; Finish::directed(rnd).flushed(ftz)), Div);
    }
    pub fn exact_directed(&mut self, op: Exact, rnd: DirectedRound, ftz: Ftz, ty: WideFloatType, d: u16, a: u16) {
        let (ty, how) = (wide_float(ty), Finish::directed(rnd).flushed(ftz));
        match op {
            Exact::Rcp => rounded!(self.op1(ty, d, a; how), Rcp),
            Exact::Sqrt => rounded!(self.op1(ty, d, a; how), Sqrt),
        }
    }
    pub fn min_max_xorsign(&mut self, op: MinMax, ftz: Ftz, nan: NanMode, ty: SignedMinType, d: u16, a: u16, b: u16) {
        let imm = xorsign_code(op == MinMax::Max, nan, ftz == Ftz::Yes);
        match ty {
            SignedMinType::F16 => self.op2::<Xorsign<Half16>>(d, a, b, imm),
            SignedMinType::F16x2 => self.op2::<Both<Xorsign<Half16>>>(d, a, b, imm),
            SignedMinType::BF16 => self.op2::<Xorsign<Brain>>(d, a, b, imm),
            SignedMinType::BF16x2 => self.op2::<Both<Xorsign<Brain>>>(d, a, b, imm),
            SignedMinType::F32 => self.op2::<Xorsign<Single>>(d, a, b, imm),
        }
    }
    pub fn min_max_float(
        &mut self,
        op: MinMax,
        ftz: Ftz,
        nan: NanMode,
        ty: FloatType,
        d: u16,
        a: u16,
        b: u16,
    ) -> Result<()> {
        if (nan, ftz, ty) == (NanMode::Propagate, Ftz::No, FloatType::F64) {
            return no("min.NaN.f64");
        }
        macro_rules! one_of {
            ($functions:tt) => {
                flushable!(self.op2(op.text(), ftz, ty, d, a, b), $functions)
            };
        }
        match (op, nan) {
            (MinMax::Min, NanMode::Number) => one_of!([MinF16, MinBF16, MinF32, MinF64]),
            (MinMax::Max, NanMode::Number) => one_of!([MaxF16, MaxBF16, MaxF32, MaxF64]),
            (MinMax::Min, NanMode::Propagate) => one_of!([MinNanF16, MinNanBF16, MinNanF32, MinF64]),
            (MinMax::Max, NanMode::Propagate) => one_of!([MaxNanF16, MaxNanBF16, MaxNanF32, MaxF64]),
        }
        Ok(())
    }

    fn rows<O: Row1>(&mut self, d: u16, a: u16) {
        self.emit::<Rows<O>>(NONE.d(d).a(a));
    }
    fn rows2<O: Row2>(&mut self, d: u16, a: u16, b: u16) {
        self.emit::<Rows2<O>>(NONE.d(d).a(a).b(b));
    }
    pub fn div_approx(&mut self, mode: DivMode, ftz: Ftz, d: u16, a: u16, b: u16) {
        match (mode, ftz) {
            (DivMode::Approx, Ftz::No) => self.rows2::<DivApprox>(d, a, b),
            (DivMode::Approx, Ftz::Yes) => self.rows2::<DivApproxFtz>(d, a, b),
            (DivMode::Full, Ftz::No) => self.rows2::<DivFull>(d, a, b),
            (DivMode::Full, Ftz::Yes) => self.rows2::<DivFullFtz>(d, a, b),
        }
    }
    pub fn mufu(&mut self, op: Mufu, ftz: Ftz, d: u16, a: u16) {
        match (op, ftz) {
            (Mufu::Ex2, Ftz::No) => self.rows::<Ex2>(d, a),
            (Mufu::Ex2, Ftz::Yes) => self.rows::<Ex2Ftz>(d, a),
            (Mufu::Lg2, Ftz::No) => self.rows::<Lg2>(d, a),
            (Mufu::Lg2, Ftz::Yes) => self.rows::<Lg2Ftz>(d, a),
            (Mufu::Rcp, Ftz::No) => self.rows::<Rcp>(d, a),
            (Mufu::Rcp, Ftz::Yes) => self.rows::<RcpFtz>(d, a),
            (Mufu::Rsqrt, Ftz::No) => self.rows::<Rsqrt>(d, a),
            (Mufu::Rsqrt, Ftz::Yes) => self.rows::<RsqrtFtz>(d, a),
            (Mufu::Sqrt, Ftz::No) => self.rows::<Sqrt>(d, a),
            (Mufu::Sqrt, Ftz::Yes) => self.rows::<SqrtFtz>(d, a),
            (Mufu::Sin, _) => self.rows::<Sin>(d, a),
            (Mufu::Cos, _) => self.rows::<Cos>(d, a),
        }
    }
    pub fn tanh_approx(&mut self, d: u16, a: u16) {
        self.rows::<Tanh>(d, a);
    }
    pub fn mufu16(&mut self, op: Unary16, d: u16, a: u16) {
        match op {
            Unary16::Ex2F16 => self.op1::<Ex2F16>(d, a, 0),
            Unary16::Ex2BF16 => self.op1::<Ex2BF16>(d, a, 0),
            Unary16::TanhF16 => self.op1::<TanhF16>(d, a, 0),
            Unary16::TanhBF16 => self.op1::<TanhBF16>(d, a, 0),
            Unary16::Ex2F16x2 => self.rows::<Ex2F16x2>(d, a),
            Unary16::Ex2BF16x2 => self.rows::<Ex2BF16x2>(d, a),
            Unary16::TanhF16x2 => self.rows::<TanhF16x2>(d, a),
            Unary16::TanhBF16x2 => self.rows::<TanhBF16x2>(d, a),
        }
    }
}
