//! Element-wise ops: the same function on every slot, packed where the machine has a packed form.
use super::cx::LowerCx;
use super::emit::S;
use super::float::{self, Precision};
use super::value::{ArrayRegs, Packing, scalar_class};
use super::{convert, integer, math};
use crate::dtype::DType;
use crate::error::Result;
use crate::kernel_ir::{BinaryOp, CompareOp, Op, UnaryOp, Value};
use crate::ptx::build::Builder;
use crate::ptx::modifier::*;
use crate::ptx::operand::{Class, Src};

/// Binds the result of an op that computes each element from the operands' elements.
fn map(cx: &mut LowerCx, op: Op, operands: &[Value], f: impl Fn(&mut Builder, &[S]) -> Result<S>) -> Result<()> {
    let result = cx.result(op);
    let dtype = cx.ty(result).dtype();
    if cx.ty(result).is_scalar() {
        let scalars = operands.iter().map(|&v| cx.scalar(v)).collect::<Result<Vec<S>>>()?;
        let out = f(&mut cx.b, &scalars)?;
        cx.bind_scalar(result, out);
        return Ok(());
    }
    let layout = cx.layout_of(result)?;
    let arrays = operands
        .iter()
        .map(|&v| cx.array_in(v, &layout))
        .collect::<Result<Vec<ArrayRegs>>>()?;
    let columns: Vec<Vec<S>> = arrays.iter().map(|a| cx.elements(a)).collect();
    let mut out = Vec::with_capacity(layout.slots() as usize);
    for slot in 0..layout.slots() as usize {
        let row: Vec<S> = columns.iter().map(|c| c[slot]).collect();
        out.push(f(&mut cx.b, &row)?);
    }
    let out = cx.from_elements(dtype, layout, &out);
    cx.bind_array(result, out);
    Ok(())
}

/// The same on whole registers, of which a result register needs only the same operand registers.
fn map_registers(cx: &mut LowerCx, op: Op, operands: &[Value], f: impl Fn(&mut Builder, &[S]) -> S) -> Result<()> {
    let result = cx.result(op);
    let dtype = cx.ty(result).dtype();
    let layout = cx.layout_of(result)?;
    let arrays = operands
        .iter()
        .map(|&v| cx.array_in(v, &layout))
        .collect::<Result<Vec<ArrayRegs>>>()?;
    let count = Packing::of(dtype).regs(layout.slots()) as usize;
    let regs = (0..count)
        .map(|i| {
            let row: Vec<S> = arrays.iter().map(|a| a.regs[i]).collect();
            f(&mut cx.b, &row)
        })
        .collect();
    cx.bind_array(result, ArrayRegs { dtype, layout, regs });
    Ok(())
}

/// The packed arithmetic of 16-bit floats.
fn packed(dtype: DType) -> Option<FloatType> {
    match dtype {
        DType::F16 => Some(FloatType::F16x2),
        DType::BF16 => Some(FloatType::BF16x2),
        _ => None,
    }
}

fn is_array(cx: &LowerCx, op: Op) -> bool {
    !cx.ty(cx.result(op)).is_scalar()
}

/// The sign bits of the elements in one register.
fn sign_mask(dtype: DType) -> (LogicType, u64) {
    match (Packing::of(dtype), dtype.bits()) {
        (Packing::Wide, _) => (LogicType::B64, 1 << 63),
        (_, 32) => (LogicType::B32, 1 << 31),
        (_, 16) => (LogicType::B32, 0x8000_8000),
        (_, 8) => (LogicType::B32, 0x8080_8080),
        (_, 4) => (LogicType::B32, 0x8888_8888),
        (_, bits) => (
            LogicType::B32,
            (0..32 / bits).map(|i| 1u64 << (bits * i + bits - 1)).sum(),
        ),
    }
}

pub fn lower_unary(cx: &mut LowerCx, op: Op, unary: UnaryOp, a: Value) -> Result<()> {
    let dtype = cx.ty(a).dtype();
    let precision = Precision::of(cx);
    if dtype.is_float() {
        if is_array(cx, op) && matches!(unary, UnaryOp::Neg | UnaryOp::Abs) {
            let (ty, mask) = sign_mask(dtype);
            return map_registers(cx, op, &[a], |b, x| match unary {
                UnaryOp::Neg => b.xor(ty, x[0], Src::Imm(mask)),
                _ => {
                    let keep = if ty == LogicType::B64 {
                        !mask
                    } else {
                        !mask & 0xffff_ffff
                    };
                    b.and(ty, x[0], Src::Imm(keep))
                }
            });
        }
        if is_array(cx, op) && dtype != DType::F64 && math::is_of_angles(precision, unary) {
            return lower_angles(cx, op, unary, a);
        }
        return map(cx, op, &[a], |b, x| float::unary(b, precision, unary, dtype, x[0]));
    }
    if is_array(cx, op) && unary == UnaryOp::Not && dtype != DType::Bool {
        let ty = if dtype.bits() == 64 {
            LogicType::B64
        } else {
            LogicType::B32
        };
        return map_registers(cx, op, &[a], |b, x| b.not(ty, x[0]));
    }
    map(cx, op, &[a], |b, x| integer::unary(b, unary, dtype, x[0]))
}

/// Functions of angles, of several elements at a time.
fn lower_angles(cx: &mut LowerCx, op: Op, unary: UnaryOp, a: Value) -> Result<()> {
    let result = cx.result(op);
    let dtype = cx.ty(result).dtype();
    let layout = cx.layout_of(result)?;
    let x = cx.array_in(a, &layout)?;
    let mut out = vec![];
    for some in cx.elements(&x).chunks(math::ANGLES) {
        let wide = some.iter().map(|&x| match dtype {
            DType::F32 => Ok(x),
            _ => convert::to_f32(&mut cx.b, dtype, x),
        });
        let wide = wide.collect::<Result<Vec<S>>>()?;
        for angle in math::angles(&mut cx.b, &wide)? {
            let y = math::of_angle(&mut cx.b, unary, angle)?;
            out.push(match dtype {
                DType::F32 => y,
                _ => convert::from_f32(&mut cx.b, dtype, y)?,
            });
        }
    }
    let out = cx.from_elements(dtype, layout, &out);
    cx.bind_array(result, out);
    Ok(())
}

pub fn lower_binary(cx: &mut LowerCx, op: Op, binary: BinaryOp, x: Value, y: Value) -> Result<()> {
    let dtype = cx.ty(x).dtype();
    let precision = Precision::of(cx);
    if dtype.is_float() {
        let packed_op = matches!(
            binary,
            BinaryOp::Add | BinaryOp::Sub | BinaryOp::Mul | BinaryOp::Max | BinaryOp::Min
        );
        if let Some(ty) = packed(dtype)
            && packed_op
            && is_array(cx, op)
        {
            return map_registers(cx, op, &[x, y], |b, r| packed_binary(b, binary, ty, r[0], r[1]));
        }
        return map(cx, op, &[x, y], |b, r| {
            float::binary(b, precision, binary, dtype, r[0], r[1])
        });
    }
    let bitwise = match binary {
        BinaryOp::And => Some(Logic::And),
        BinaryOp::Or => Some(Logic::Or),
        BinaryOp::Xor => Some(Logic::Xor),
        _ => None,
    };
    if let Some(logic) = bitwise
        && dtype != DType::Bool
        && is_array(cx, op)
    {
        let ty = if dtype.bits() == 64 {
            LogicType::B64
        } else {
            LogicType::B32
        };
        return map_registers(cx, op, &[x, y], |b, r| b.logic(logic, ty, r[0], r[1]));
    }
    let adds = binary == BinaryOp::Add && matches!(dtype.bits(), 32 | 64) && is_array(cx, op);
    map(cx, op, &[x, y], |b, r| match adds {
        true => Ok(b.add_element(integer::int_type(dtype), r[0], r[1])),
        false => integer::binary(b, binary, dtype, r[0], r[1]),
    })
}

fn packed_binary(b: &mut Builder, op: BinaryOp, ty: FloatType, x: S, y: S) -> S {
    match op {
        BinaryOp::Add => b.fadd(ty, x, y),
        BinaryOp::Sub => b.fsub(ty, x, y),
        BinaryOp::Mul => b.fmul(ty, x, y),
        BinaryOp::Max => b.fmin_max(MinMax::Max, NanMode::Propagate, ty, x, y),
        _ => b.fmin_max(MinMax::Min, NanMode::Propagate, ty, x, y),
    }
}

/// One comparison of two scalars of a type.
pub fn compare(b: &mut Builder, op: CompareOp, dtype: DType, x: S, y: S) -> Result<S> {
    if dtype.is_float() {
        float::compare(b, op, dtype, x, y)
    } else {
        Ok(integer::compare(b, op, dtype, x, y))
    }
}

pub fn lower_compare(cx: &mut LowerCx, op: Op, cmp: CompareOp, x: Value, y: Value) -> Result<()> {
    let dtype = cx.ty(x).dtype();
    map(cx, op, &[x, y], |b, r| compare(b, cmp, dtype, r[0], r[1]))
}

pub fn lower_select(cx: &mut LowerCx, op: Op, which: Value, cases: &[Value]) -> Result<()> {
    let class = scalar_class(cx.ty(cx.result(op)).dtype());
    let selector = cx.ty(which).dtype();
    let mut operands = vec![which];
    operands.extend(cases);
    map(cx, op, &operands, |b, r| {
        let (which, cases) = (r[0], &r[1..]);
        if selector == DType::Bool {
            return Ok(b.pick(class, which, cases[1], cases[0]));
        }
        let mut out = cases[0];
        for (i, &case) in cases.iter().enumerate().skip(1) {
            let here = b.setp(Compare::Eq, CompareType::U32, which, Src::u32(i as u32));
            out = b.pick(class, here, case, out);
        }
        Ok(out)
    })
}

pub fn lower_clamp(cx: &mut LowerCx, op: Op, lo: Value, x: Value, hi: Value) -> Result<()> {
    let dtype = cx.ty(x).dtype();
    let precision = Precision::of(cx);
    map(cx, op, &[lo, x, hi], |b, r| {
        if dtype.is_float() {
            let low = float::binary(b, precision, BinaryOp::Max, dtype, r[1], r[0])?;
            float::binary(b, precision, BinaryOp::Min, dtype, low, r[2])
        } else {
            let low = integer::binary(b, BinaryOp::Max, dtype, r[1], r[0])?;
            integer::binary(b, BinaryOp::Min, dtype, low, r[2])
        }
    })
}

pub fn lower_integer_pow(cx: &mut LowerCx, op: Op, a: Value, n: i32) -> Result<()> {
    let dtype = cx.ty(a).dtype();
    let precision = Precision::of(cx);
    if !dtype.is_float() {
        let n = u32::try_from(n).ok().filter(|_| dtype.is_int());
        let n = n.ok_or_else(|| cx.unexpected(op))?;
        return map(cx, op, &[a], |b, r| Ok(integer::power(b, dtype, r[0], n)));
    }
    if n == 2
        && is_array(cx, op)
        && let Some(ty) = packed(dtype)
    {
        return map_registers(cx, op, &[a], |b, r| b.fmul(ty, r[0], r[0]));
    }
    map(cx, op, &[a], |b, r| float::integer_pow(b, precision, dtype, r[0], n))
}

pub fn lower_convert(cx: &mut LowerCx, op: Op, a: Value) -> Result<()> {
    let (from, to) = (cx.ty(a).dtype(), cx.ty(cx.result(op)).dtype());
    if is_array(cx, op) {
        let layout = cx.layout_of(cx.result(op))?;
        let x = cx.array_in(a, &layout)?;
        let out = convert::as_type(cx, &x, to)?;
        cx.bind_array(cx.result(op), out);
        return Ok(());
    }
    map(cx, op, &[a], |b, r| convert::convert(b, from, to, r[0]))
}

pub fn lower_bitcast(cx: &mut LowerCx, op: Op, a: Value) -> Result<()> {
    let (from, to) = (cx.ty(a).dtype(), cx.ty(cx.result(op)).dtype());
    if from.bits() != to.bits() || from == DType::Bool || to == DType::Bool {
        return lower_wide_bitcast(cx, op, a, from, to);
    }
    if is_array(cx, op) {
        // Registers hold the same bits for every type of one width.
        return map_registers(cx, op, &[a], |_, r| r[0]);
    }
    map(cx, op, &[a], |b, r| Ok(bitcast_scalar(b, from, to, r[0])))
}

/// The bits of a scalar as another type of the same width.
fn bitcast_scalar(b: &mut Builder, from: DType, to: DType, a: S) -> S {
    match (scalar_class(from), scalar_class(to)) {
        (Class::B16, Class::B32) => {
            let word = b.pack16(a, Src::Imm(0));
            integer::wrap(b, to, word)
        }
        (Class::B32, Class::B16) => b.unpack16(a)[0],
        (Class::B32, Class::B32) if to.is_int() => integer::wrap(b, to, a),
        (Class::B32, Class::B32) if to.bits() < 32 => b.field(a, 0, to.bits(), false),
        _ => a,
    }
}

/// Widths differ: the minor dimension (low bits first) appears or disappears. Free where it lies in neighbouring slots.
fn lower_wide_bitcast(cx: &mut LowerCx, op: Op, a: Value, from: DType, to: DType) -> Result<()> {
    if from == DType::Bool || to == DType::Bool {
        return Err(cx.unexpected(op));
    }
    let result = cx.result(op);
    let (wide, narrow, n) = if from.bits() > to.bits() {
        (from, to, from.bits() / to.bits())
    } else {
        (to, from, to.bits() / from.bits())
    };
    // The narrow side's layout: the wide side's with a minor dimension of n neighbouring slots.
    let source = cx.array(a)?;
    let elements = cx.elements(&source);
    let mut out = Vec::with_capacity(elements.len());
    if from == wide {
        for x in elements {
            out.extend(split_bits(&mut cx.b, wide, narrow, x));
        }
    } else {
        for parts in elements.chunks(n as usize) {
            out.push(join_bits(&mut cx.b, wide, narrow, parts));
        }
    }
    if cx.ty(result).is_scalar() {
        let s = super::shape::to_scalar(cx, to, out[0]);
        cx.bind_scalar(result, s);
        return Ok(());
    }
    let layout = cx.layout_of(result)?;
    let out = cx.from_elements(to, layout, &out);
    cx.bind_array(result, out);
    Ok(())
}

/// The unsigned integer type of a width.
pub fn raw(bits: u32) -> DType {
    match bits {
        2 => DType::U2,
        4 => DType::U4,
        8 => DType::U8,
        16 => DType::U16,
        32 => DType::U32,
        _ => DType::U64,
    }
}

/// A number's bits as narrower ones, the low ones first.
pub fn split_bits(b: &mut Builder, wide: DType, narrow: DType, x: S) -> Vec<S> {
    let words = match scalar_class(wide) {
        Class::B64 => b.unpack64(x).to_vec(),
        _ => vec![bitcast_scalar(b, wide, raw(wide.bits()), x)],
    };
    let per_word = wide.bits().min(32) / narrow.bits();
    let mut out = vec![];
    for word in words {
        for i in 0..per_word {
            let bits = b.field(word, i * narrow.bits(), narrow.bits(), false);
            out.push(bitcast_scalar(b, raw(narrow.bits()), narrow, bits));
        }
    }
    out
}

/// The other way.
pub fn join_bits(b: &mut Builder, wide: DType, narrow: DType, parts: &[S]) -> S {
    let per_word = (wide.bits().min(32) / narrow.bits()) as usize;
    let words: Vec<S> = parts
        .chunks(per_word)
        .map(|chunk| {
            let mut word = Src::Imm(0);
            for (i, &part) in chunk.iter().enumerate() {
                let bits = bitcast_scalar(b, narrow, raw(narrow.bits()), part);
                word = if narrow.bits() == 32 {
                    bits
                } else {
                    b.insert_field(bits, word, i as u32 * narrow.bits(), narrow.bits())
                };
            }
            word
        })
        .collect();
    match words[..] {
        [low, high] => b.pack64(low, high),
        _ => bitcast_scalar(b, raw(wide.bits()), wide, words[0]),
    }
}

pub fn lower_reduce_precision(cx: &mut LowerCx, op: Op, a: Value, exponent: u32, mantissa: u32) -> Result<()> {
    let dtype = cx.ty(a).dtype();
    map(cx, op, &[a], |b, r| {
        float::reduce_precision(b, dtype, r[0], exponent, mantissa)
    })
}
