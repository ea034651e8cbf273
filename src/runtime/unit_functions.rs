//! The special-function unit's values on constants, from the emulator's arithmetic.
//!
//! ptxas would fold such constants to the correctly rounded value, the unit gives another: so smalt folds them first.
use crate::emulate::arith::special;
use crate::ptx::evaluate::ConstantFunctions;
use crate::ptx::modifier::{DivMode, Ftz, Mufu, Mufu64, Unary16};

pub struct UnitFunctions;

impl ConstantFunctions for UnitFunctions {
    fn mufu(&self, op: Mufu, ftz: Ftz, a: u32) -> Option<u32> {
        Some(match (op, ftz) {
            (Mufu::Ex2, Ftz::Yes) => special::ex2_approx_ftz_f32(a),
            (Mufu::Ex2, Ftz::No) => special::ex2_approx_f32(a),
            (Mufu::Lg2, Ftz::Yes) => special::lg2_approx_ftz_f32(a),
            (Mufu::Lg2, Ftz::No) => special::lg2_approx_f32(a),
            (Mufu::Rcp, Ftz::Yes) => special::rcp_approx_ftz_f32(a),
            (Mufu::Rcp, Ftz::No) => special::rcp_approx_f32(a),
            (Mufu::Rsqrt, Ftz::Yes) => special::rsqrt_approx_ftz_f32(a),
            (Mufu::Rsqrt, Ftz::No) => special::rsqrt_approx_f32(a),
            (Mufu::Sqrt, Ftz::Yes) => special::sqrt_approx_ftz_f32(a),
            (Mufu::Sqrt, Ftz::No) => special::sqrt_approx_f32(a),
            // One function: the unit multiplies first, and that flushes nothing that matters.
            (Mufu::Sin, _) => special::sin_approx_f32(a),
            (Mufu::Cos, _) => special::cos_approx_f32(a),
        })
    }
    fn tanh(&self, a: u32) -> Option<u32> {
        Some(special::tanh_approx_f32(a))
    }
    fn mufu16(&self, op: Unary16, a: u32) -> Option<u32> {
        let one = |f: fn(u16) -> u16| u32::from(f(a as u16));
        let two = |f: fn(u16) -> u16| u32::from(f(a as u16)) | u32::from(f((a >> 16) as u16)) << 16;
        Some(match op {
            Unary16::Ex2F16 => one(special::ex2_approx_f16),
            Unary16::Ex2F16x2 => two(special::ex2_approx_f16),
            Unary16::Ex2BF16 => one(special::ex2_approx_ftz_bf16),
            Unary16::Ex2BF16x2 => two(special::ex2_approx_ftz_bf16),
            Unary16::TanhF16 => one(special::tanh_approx_f16),
            Unary16::TanhF16x2 => two(special::tanh_approx_f16),
            Unary16::TanhBF16 => one(special::tanh_approx_bf16),
            Unary16::TanhBF16x2 => two(special::tanh_approx_bf16),
        })
    }
    fn mufu64(&self, op: Mufu64, a: u64) -> Option<u64> {
        Some(match op {
            Mufu64::Rcp => special::rcp_approx_ftz_f64(a),
            Mufu64::Rsqrt => special::rsqrt_approx_ftz_f64(a),
        })
    }
    fn div(&self, mode: DivMode, ftz: Ftz, a: u32, b: u32) -> Option<u32> {
        Some(match (mode, ftz) {
            (DivMode::Approx, Ftz::Yes) => special::div_approx_ftz_f32(a, b),
            (DivMode::Approx, Ftz::No) => special::div_approx_f32(a, b),
            (DivMode::Full, Ftz::Yes) => special::div_full_ftz_f32(a, b),
            (DivMode::Full, Ftz::No) => special::div_full_f32(a, b),
        })
    }
}
