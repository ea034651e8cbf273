//! Elements narrower than a byte, one by one. A load takes the element's bits out of its byte. A store is of the whole byte, whose
//! other bits one thread has read just before: a store of an element beside it at the same time is a race.
use super::*;
use crate::lower::integer;

/// Where one element of a view lies.
pub fn place(cx: &mut LowerCx, view: &SmemView, target: Target) -> Result<ElementPlace> {
    if !8u32.is_multiple_of(view.bits) {
        return Err(Error::internal(format!("an element of {} bits in memory", view.bits)));
    }
    let bits = u64::from(view.bits);
    let per_byte = 8 / view.bits;
    let width = Width::of(target.size.positions.into());
    let mut at: S = width.imm(view.offset / bits);
    for d in &view.dynamic {
        let stride = d.stride / bits as i64;
        let x = width.term(cx, &DynTerm { stride, ..*d })?;
        at = cx.b.add(width.int(), at, x);
    }
    for dim in &view.dropped {
        for_each_digit(cx, width, dim, bits, |cx, x| at = cx.b.add(width.int(), at, x))?;
    }
    let shift = per_byte.trailing_zeros();
    let (byte, part) = match width {
        Width::Short => {
            let part = cx.b.and(LogicType::B32, at, Src::u32(per_byte - 1));
            (cx.b.shr(ShiftType::U32, at, Src::u32(shift)), part)
        }
        Width::Long => {
            let part = cx.b.and(LogicType::B64, at, Src::Imm(u64::from(per_byte - 1)));
            let part = cx.b.truncate(part);
            (cx.b.shr(ShiftType::U64, at, Src::u32(shift)), part)
        }
    };
    let bit = cx.b.mul(IntType::U32, part, Src::u32(view.bits));
    let at = width.add_offset(cx, target, target.origin, byte);
    let at = match target.wide() {
        true => at,
        false => swizzle(cx, view.swizzle, at),
    };
    Ok(ElementPlace {
        addr: cx.b.addr(at, 0),
        bit: Some(bit),
    })
}

pub fn load(cx: &mut LowerCx, target: Target, addr: Addr<V>, bit: S, dtype: DType, uniform: Uniform) -> S {
    let byte = super::load(cx, target, MemType::U8, addr, 1)[0];
    cx.b.claim_uniform(byte, uniform);
    let word = cx.b.shr(ShiftType::U32, byte, bit);
    match dtype.is_int() {
        true => integer::wrap(&mut cx.b, dtype, word),
        false => cx.b.field(word, 0, dtype.bits(), false),
    }
}

pub fn store(cx: &mut LowerCx, target: Target, addr: Addr<V>, bit: S, dtype: DType, x: S) {
    let old = super::load(cx, target, MemType::U8, addr, 1)[0];
    let mask = cx.b.shl(BitType::B32, Src::u32((1 << dtype.bits()) - 1), bit);
    let others = cx.b.xor(LogicType::B32, mask, Src::u32(0xff));
    let others = cx.b.and(LogicType::B32, old, others);
    let x = cx.b.field(x, 0, dtype.bits(), false);
    let x = cx.b.shl(BitType::B32, x, bit);
    let byte = cx.b.or(LogicType::B32, others, x);
    let a: Srcs<V> = [byte].into_iter().collect();
    touch(cx, target, super::store(target, MemType::U8, addr, a));
}
