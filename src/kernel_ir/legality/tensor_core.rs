//! wgmma and accumulators.
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::kernel_ir::{DimIndex, Index, Kernel, RefUse, Step, Type};

/// `acc[m,n] += a[m,k] @ b[k,n]` by wgmma (PTX ISA, "Asynchronous Warpgroup Level Matrix Instructions").
pub fn wgmma(acc: &Type, a: &Type, b: &Type) -> Result<()> {
    let wrong = || Error::invalid("`wgmma`").got(format!("{acc} += {a} @ {b}"));
    let is_fp8 = |d| matches!(d, DType::F8E4M3FN | DType::F8E5M2);
    let types = match (a.dtype(), b.dtype()) {
        (DType::F16, DType::F16) => matches!(acc.dtype(), DType::F32 | DType::F16),
        (DType::BF16, DType::BF16) | (DType::F32, DType::F32) => acc.dtype() == DType::F32,
        (DType::I8 | DType::U8, DType::I8 | DType::U8) => acc.dtype() == DType::I32,
        (x, y) if is_fp8(x) && is_fp8(y) => matches!(acc.dtype(), DType::F32 | DType::F16),
        _ => false,
    };
    let (&[m, n], &[ma, k], &[kb, nb]) = (acc.shape(), a.shape(), b.shape()) else {
        return Err(wrong()
            .expected("matrices: acc[m,n] += a[m,k] @ b[k,n]")
            .remedy("index leading dimensions away (a.at[i]), or multiply by jnp.dot"));
    };
    if !types || (m, n, k) != (ma, nb, kb) {
        return Err(wrong()
            .expected("acc[m,n] += a[m,k] @ b[k,n] in f16, bf16, f32 (tf32), fp8 or 8-bit integers")
            .remedy("convert the operands, and accumulate in float32 (int32 for 8-bit integers)"));
    }
    if m % 64 != 0 || n % 8 != 0 {
        return Err(wrong()
            .expected("m a multiple of 64, n a multiple of 8")
            .remedy("pad the tile, and give each warpgroup at least 64 rows"));
    }
    let step = wgmma_k(b.dtype());
    if k % step != 0 {
        return Err(wrong()
            .expected(format!("k a multiple of {step} for {}", b.dtype()))
            .remedy("pad k with zeros"));
    }
    Ok(())
}

/// Whether rows and columns from `at` on are whole tiles of 64 × 8, which have registers of their own.
pub fn is_of_tiles(whole: &[u64], at: &[u64; 2], part: &[u64; 2]) -> bool {
    let tile = [64, 8];
    whole.len() == 2
        && (0..2).all(|d| at[d] % tile[d] == 0 && part[d] % tile[d] == 0 && at[d].saturating_add(part[d]) <= whole[d])
}

/// Where a view of an accumulator begins that a wgmma adds to, and how large it is.
pub fn part_of_accumulator(kernel: &Kernel, view: &RefUse) -> Result<([u64; 2], [u64; 2])> {
    let wrong = || Error::invalid("`wgmma`: a part of its accumulator");
    let (mut at, mut shape) = ([0, 0], [0, 0]);
    let whole = &kernel.allocs[view.alloc].shape;
    shape.copy_from_slice(whole.get(..2).unwrap_or(&[0, 0]));
    for step in &view.steps {
        let Step::Index(slices) = step else {
            return Err(wrong()
                .expected("slices of its rows and columns")
                .got("another view of the accumulator")
                .remedy("index it with slices only: acc.at[rows, columns]"));
        };
        for (d, dim) in slices.iter().enumerate() {
            let wrong = |got: String| {
                wrong()
                    .expected("slices without a step, whose starts are known when the kernel is compiled: registers have no addresses")
                    .got(format!("{got} in dimension {d} of acc{:?}", whole.as_slice()))
                    .remedy("go over the parts in a Python loop (for j in range(n)), or let each have its own accumulator")
            };
            let (start, size) = match dim {
                DimIndex::Slice { stride, size, .. } if *stride != 1 && *size > 1 => {
                    return Err(wrong(format!("a step of {stride}")));
                }
                DimIndex::Slice { start, size, .. } => (*start, *size),
                DimIndex::At(_) | DimIndex::Window { .. } | DimIndex::Gather(_) => {
                    return Err(wrong("an index".into()));
                }
            };
            let start = match start {
                Index::Const(x) => Some(x),
                Index::Value(v) => kernel.facts(v).as_constant(),
            };
            let start = start.ok_or_else(|| wrong("a computed start".into()))?;
            at[d] = u64::saturating_add(at[d], start.max(0) as u64);
            shape[d] = size;
        }
    }
    if !is_of_tiles(whole, &at, &shape) {
        return Err(wrong()
            .expected(
                "rows from a multiple of 64 on and columns from a multiple of 8 on: whole tiles of the tensor cores",
            )
            .got(format!(
                "acc[{}:{}, {}:{}]",
                at[0],
                at[0].saturating_add(shape[0]),
                at[1],
                at[1].saturating_add(shape[1])
            ))
            .remedy("let the part begin and end at the tiles' borders"));
    }
    Ok((at, shape))
}

/// An accumulator is in the registers of whole instructions.
pub fn accumulator(acc: &Type) -> Result<()> {
    if matches!(acc.shape(), &[m, n] if m % 64 == 0 && n % 8 == 0) {
        return Ok(());
    }
    Err(Error::invalid("wgmma accumulator")
        .expected("M a multiple of 64 and N a multiple of 8")
        .got(acc.to_string())
        .remedy("change the tile's shape"))
}

/// The k of one wgmma instruction: 32 bytes.
pub fn wgmma_k(operand: DType) -> u64 {
    u64::from(256 / operand.bits())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_whole_tiles() {
        let of = |at, part| is_of_tiles(&[128, 40], &at, &part);
        assert!(of([0, 0], [128, 40]) && of([64, 8], [64, 32]) && of([64, 32], [64, 8]));
        assert!(!of([32, 0], [64, 8]) && !of([0, 4], [64, 8]) && !of([0, 0], [32, 8]) && !of([0, 0], [64, 12]));
        assert!(!of([64, 0], [128, 8]) && !of([0, 16], [64, 32]));
    }

    #[test]
    fn a_wgmma_is_legal_or_says_what_is_not() {
        let of = |dtype, shape: [u64; 2]| Type::of(dtype, shape.as_slice());
        let check = |acc: (DType, [u64; 2]), a: (DType, [u64; 2]), b: (DType, [u64; 2])| {
            wgmma(&of(acc.0, acc.1), &of(a.0, a.1), &of(b.0, b.1)).map_err(|e| e.expected.unwrap_or_default())
        };
        use DType::*;
        assert_eq!(check((F32, [64, 8]), (F16, [64, 16]), (F16, [16, 8])), Ok(()));
        assert_eq!(check((I32, [128, 256]), (U8, [128, 32]), (I8, [32, 256])), Ok(()));
        let wrong = [
            (check((F32, [64, 8]), (F16, [64, 16]), (BF16, [16, 8])), "f16, bf16"),
            (check((F32, [64, 8]), (I8, [64, 32]), (I8, [32, 8])), "f16, bf16"),
            (check((F32, [64, 8]), (F16, [64, 16]), (F16, [32, 8])), "f16, bf16"),
            (
                check((F32, [32, 8]), (F16, [32, 16]), (F16, [16, 8])),
                "m a multiple of 64",
            ),
            (
                check((F32, [64, 4]), (F16, [64, 16]), (F16, [16, 4])),
                "n a multiple of 8",
            ),
            (
                check((F32, [64, 8]), (F16, [64, 8]), (F16, [8, 8])),
                "k a multiple of 16",
            ),
        ];
        for (result, expected) in wrong {
            assert!(result.is_err_and(|e| e.contains(expected)), "{expected}");
        }
    }
}
