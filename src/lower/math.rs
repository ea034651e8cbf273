//! Transcendental functions of f32.
use super::emit::S;
use super::float::Precision;
use crate::error::{Error, Result};
use crate::kernel_ir::UnaryOp;
use crate::ptx::build::Builder;

pub fn unary(_b: &mut Builder, _precision: Precision, op: UnaryOp, _a: S) -> Result<S> {
    Err(Error::unsupported(op.name()))
}
pub fn fmod(_b: &mut Builder, _x: S, _y: S) -> Result<S> {
    Err(Error::unsupported("rem of floats"))
}
pub fn pow(_b: &mut Builder, _precision: Precision, _x: S, _y: S) -> Result<S> {
    Err(Error::unsupported("pow"))
}
pub fn atan2(_b: &mut Builder, _x: S, _y: S) -> Result<S> {
    Err(Error::unsupported("atan2"))
}
