//! Tensor memory, and the products that accumulate in it.
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::kernel_ir::*;
use crate::target::Features;

/// What K of one `tcgen05.mma` is: 32 bytes.
pub const K_BYTES: u64 = 32;

/// `acc[m,n] (+)= a[m,k] @ b[k,n]` by `tcgen05.mma` (PTX ISA, "Valid combinations of type and shape").
pub fn product(kernel: &Kernel, acc: &RefUse, a: &RefUse, b: &RefUse) -> Result<()> {
    let (Elem::Data(tc), Elem::Data(ta), Elem::Data(tb)) = (acc.elem, a.elem, b.elem) else {
        return Err(Error::internal("a product of barriers"));
    };
    let integers = tc == DType::I32;
    let parts = match integers {
        true => Features::TENSOR_MEMORY | Features::TENSOR_INTEGERS,
        false => Features::TENSOR_MEMORY,
    };
    kernel.target.require(parts)?;
    let (&[m, n], &[_, k], &[_, _]) = (acc.shape.as_slice(), a.shape.as_slice(), b.shape.as_slice()) else {
        return Err(Error::internal("a product of what is no matrices"));
    };
    let wrong = || {
        let of = |t: DType, shape: &[u64]| format!("{t}{shape:?}");
        Error::invalid("`tcgen05_mma`").got(format!(
            "{} += {} @ {}",
            of(tc, &acc.shape),
            of(ta, &a.shape),
            of(tb, &b.shape)
        ))
    };
    let is_fp8 = |d| matches!(d, DType::F8E4M3FN | DType::F8E5M2);
    let is_byte = |d| matches!(d, DType::I8 | DType::U8);
    let types = match (ta, tb) {
        (DType::F16, DType::F16) => matches!(tc, DType::F32 | DType::F16),
        (DType::BF16, DType::BF16) => tc == DType::F32,
        (x, y) if is_fp8(x) && is_fp8(y) => matches!(tc, DType::F32 | DType::F16),
        (x, y) if is_byte(x) && is_byte(y) => integers,
        _ => false,
    };
    if !types {
        return Err(wrong()
            .expected("operands in f16, bf16, fp8 or 8-bit integers, sums in float32 (float16 of f16 and fp8; int32 of integers)")
            .remedy("convert the operands, and accumulate in float32"));
    }
    if !matches!(m, 64 | 128) {
        return Err(wrong()
            .expected("64 or 128 rows: tensor memory has 128 lanes")
            .remedy("give each accumulator 128 rows, and take several"));
    }
    // Of 64 rows an instruction has half of the columns, a multiple of 8.
    if n % 16 != 0 || n == 0 {
        return Err(wrong().expected("a multiple of 16 columns").remedy("pad the columns"));
    }
    let depth = K_BYTES * 8 / u64::from(ta.bits());
    if k % depth != 0 || k == 0 {
        return Err(wrong()
            .expected(format!("k a multiple of {depth} for {ta}"))
            .remedy("pad k with zeros"));
    }
    Ok(())
}

/// A use of tensor memory: by the ops for it alone, of the own block.
pub fn reference(kernel: &Kernel, kind: &OpKind, r: &RefUse) -> Result<()> {
    kernel.target.require(Features::TENSOR_MEMORY)?;
    if !matches!(kind.class(), class::Class::Tensor) {
        return Err(
            Error::invalid(format!("{} of {}", kind.name(), words::of_use(kernel, r)))
                .expected("plgpu.async_load_tmem, async_store_tmem, tcgen05_mma: tensor memory has no loads and stores of single elements")
                .remedy("x = plgpu.async_load_tmem(ref), or plgpu.async_store_tmem(ref, x) and plgpu.commit_tmem()"),
        );
    }
    match r.place {
        Place::Here => Ok(()),
        Place::Cluster { .. } | Place::Peer { .. } | Place::Multicast { .. } => {
            Err(Error::unsupported("tensor memory of another block")
                .remedy("load it there, and send it through shared memory"))
        }
    }
}
