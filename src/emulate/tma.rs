//! Boxes of tensor maps, between global memory and the dense (unswizzled) box.
use super::global::GlobalMemory;
use super::grid::{Author, Clash};
use super::mem::{atom_bytes, combine};
use super::shared::{SMEM_BASE, Shared};
use crate::error::{Error, Fault};
use crate::ptx::launch::{TensorMapElement, TensorMapSpec, TensorMapSwizzle};
use crate::ptx::modifier::{AtomOp, AtomType, TensorRed};

/// Alignment of a box in shared memory (PTX ISA 5.5.6).
pub const BOX_ALIGNMENT: u32 = 128;

/// Bytes of a whole box, what lies outside of the tensor included.
pub fn box_bytes(map: &TensorMapSpec) -> u32 {
    map.box_dims.iter().product::<u32>() * map.element.bytes()
}

/// Bytes of a box's inner dimension.
fn inner_bytes(map: &TensorMapSpec) -> u32 {
    map.box_dims[0] * map.element.bytes()
}

/// A tensor map, and the address of its tensor.
#[derive(Clone, Copy)]
pub struct Placed<'a> {
    pub spec: &'a TensorMapSpec,
    pub base: u64,
}

/// Bytes from the tensor's address to its end.
pub fn extent(map: &TensorMapSpec) -> u64 {
    let steps = map.dims[1..].iter().zip(&map.strides);
    let last = steps.fold(0u64, |sum, (d, s)| sum.saturating_add((d - 1).saturating_mul(*s)));
    last.saturating_add(map.dims[0].saturating_mul(map.element.bytes().into()))
}

/// What `cuTensorMapEncodeTiled` demands of a map over a buffer.
pub fn check_map(map: &TensorMapSpec, buffer_bytes: u64) -> Result<(), Error> {
    let what = || format!("tensor map of buffer {}", map.buffer);
    check_shape(map, &what)?;
    if !map.byte_offset.is_multiple_of(16) {
        return Err(Error::internal(what())
            .expected("an address aligned to 16 bytes")
            .got(format!("offset {}", map.byte_offset)));
    }
    let end = map.byte_offset.saturating_add(extent(map));
    if end > buffer_bytes {
        return Err(Error::internal(what())
            .expected("a tensor inside of its buffer")
            .got(format!("it ends at byte {end} of {buffer_bytes}")));
    }
    Ok(())
}

/// What it demands wherever the tensor is.
pub fn check_shape(map: &TensorMapSpec, what: &dyn Fn() -> String) -> Result<(), Error> {
    let bad = |expected: &str, got: String| Err(Error::internal(what()).expected(expected).got(got));
    let rank = map.dims.len();
    if rank == 0 || map.box_dims.len() != rank || map.strides.len() + 1 != rank {
        return bad(
            "1 to 5 dimensions with a stride for all but the first",
            format!("{map:?}"),
        );
    }
    let inner = map.box_dims[0] * map.element.bytes();
    if map.box_dims.iter().any(|b| *b == 0 || *b > 256) {
        return bad("box dimensions of 1 to 256", format!("{:?}", map.box_dims));
    }
    if !inner.is_multiple_of(16) {
        return bad("an inner box of a multiple of 16 bytes", inner.to_string());
    }
    if map.swizzle != TensorMapSwizzle::None && inner > map.swizzle.bytes() {
        return bad(
            "an inner box no wider than the swizzle",
            format!("{inner} bytes, {:?}", map.swizzle),
        );
    }
    if map.strides.iter().any(|s| !s.is_multiple_of(16) || *s >= 1 << 40) {
        return bad("strides of multiples of 16 bytes", format!("{:?}", map.strides));
    }
    if map.dims.iter().any(|d| *d == 0 || *d > 1 << 32) {
        return bad("dimensions of 1 to 2^32", format!("{:?}", map.dims));
    }
    Ok(())
}

/// A run of a box's inner dimension.
struct Run {
    /// Of the first byte inside the tensor.
    address: u64,
    /// Bytes of the run that lie below the tensor's start, inside, and in all.
    before: u32,
    inside: u32,
}

/// Calls `f(row, run)` for every inner run of the box; rows lie behind one another in the dense box.
fn for_runs(
    Placed { spec: map, base }: Placed<'_>,
    coords: &[i32],
    mut f: impl FnMut(u32, Option<Run>) -> Result<(), Box<Error>>,
) -> Result<(), Box<Error>> {
    let rank = map.dims.len();
    let element = u64::from(map.element.bytes());
    // The inner run, clipped.
    let (start, width) = (i64::from(coords[0]), i64::from(map.box_dims[0]));
    let first = start.clamp(0, map.dims[0] as i64);
    let last = (start + width).clamp(0, map.dims[0] as i64);
    let rows: u32 = map.box_dims[1..].iter().product();
    let mut index = [0u32; 5];
    for row in 0..rows {
        let mut address = base + first as u64 * element;
        let mut inside = first < last;
        for d in 1..rank {
            let at = i64::from(coords[d]) + i64::from(index[d]);
            inside &= at >= 0 && (at as u64) < map.dims[d];
            address = address.wrapping_add((at as u64).wrapping_mul(map.strides[d - 1]));
        }
        let run = inside.then(|| Run {
            address,
            before: ((first - start) as u64 * element) as u32,
            inside: ((last - first) as u64 * element) as u32,
        });
        f(row, run)?;
        for d in 1..rank {
            index[d] += 1;
            if index[d] < map.box_dims[d] {
                break;
            }
            index[d] = 0;
        }
    }
    Ok(())
}

fn outside(memory: &GlobalMemory, address: u64) -> Box<Error> {
    Box::new(Error::new(Fault::Execution, "a bulk copy outside of its buffer").got(memory.describe(address)))
}

/// The runs of bytes of a box that lie inside the tensor: address, length, and place in the dense box.
pub fn runs(map: Placed<'_>, coords: &[i32]) -> Vec<(u64, u32, u32)> {
    let inner = inner_bytes(map.spec);
    let mut runs = vec![];
    let collected = for_runs(map, coords, |row, run| {
        runs.extend(run.map(|run| (run.address, run.inside, row * inner + run.before)));
        Ok(())
    });
    assert!(collected.is_ok());
    runs
}

/// Reads a box; what lies outside of the tensor is zero.
pub fn fetch(
    map: Placed<'_>,
    coords: &[i32],
    memory: &GlobalMemory,
    check: bool,
    out: &mut Vec<u8>,
) -> Result<(), Box<Error>> {
    let inner = inner_bytes(map.spec);
    out.clear();
    out.resize(box_bytes(map.spec) as usize, 0);
    for_runs(map, coords, |row, run| {
        let Some(run) = run else { return Ok(()) };
        let start = (row * inner + run.before) as usize;
        read_global(memory, run.address, &mut out[start..start + run.inside as usize], check)
    })
}

/// Writes or reduces a dense box into the tensor; what lies outside is dropped.
pub fn store(
    map: Placed<'_>,
    coords: &[i32],
    memory: &GlobalMemory,
    reduce: Option<TensorRed>,
    data: &[u8],
    by: &mut Signed,
) -> Result<(), Box<Error>> {
    let (inner, element) = (inner_bytes(map.spec), map.spec.element);
    for_runs(map, coords, |row, run| {
        let Some(run) = run else { return Ok(()) };
        let start = (row * inner + run.before) as usize;
        let data = &data[start..start + run.inside as usize];
        let Some(op) = reduce else {
            return write_global(memory, run.address, data, by);
        };
        let Some((op, ty)) = reduction(op, element) else {
            return Err(Box::new(Error::internal(format!(
                "bulk reduction {op:?} of {element:?}"
            ))));
        };
        reduce_global(memory, run.address, (op, ty), data, by)
    })
}

/// Combines elements with those in global memory.
pub fn reduce_global(
    memory: &GlobalMemory,
    address: u64,
    (op, ty): (AtomOp, AtomType),
    data: &[u8],
    by: &mut Signed,
) -> Result<(), Box<Error>> {
    let mut merged = vec![0; data.len()];
    read_global(memory, address, &mut merged, false)?;
    let size = atom_bytes(ty) as usize;
    for (old, new) in merged.chunks_exact_mut(size).zip(data.chunks_exact(size)) {
        let result = combine(op, ty, word(old), word(new), true);
        old.copy_from_slice(&result.to_le_bytes()[..size]);
    }
    write_global(memory, address, &merged, by)
}

/// Combines an element of shared memory with another one, in place of which the result is.
pub fn reduce_element(old: &[u8], (op, ty): (AtomOp, AtomType), new: &mut [u8]) {
    let result = combine(op, ty, word(old), word(new), false);
    new.copy_from_slice(&result.to_le_bytes()[..new.len()]);
}

/// The operation of a bulk tensor reduction (PTX ISA 9.7.9.25.5.4); `None`: there is none for the type.
pub fn reduction(op: TensorRed, element: TensorMapElement) -> Option<(AtomOp, AtomType)> {
    let ty = match element {
        TensorMapElement::U8 | TensorMapElement::U16 | TensorMapElement::F64 => return None,
        TensorMapElement::U32 => AtomType::U32,
        TensorMapElement::I32 => AtomType::S32,
        TensorMapElement::U64 => AtomType::U64,
        TensorMapElement::I64 => AtomType::S64,
        TensorMapElement::F16 => AtomType::F16,
        TensorMapElement::BF16 => AtomType::BF16,
        TensorMapElement::F32 => AtomType::F32,
    };
    let is_float = matches!(
        element,
        TensorMapElement::F16 | TensorMapElement::BF16 | TensorMapElement::F32
    );
    let op = match op {
        TensorRed::Add => AtomOp::Add,
        TensorRed::Min => AtomOp::Min,
        TensorRed::Max => AtomOp::Max,
        TensorRed::Inc if element == TensorMapElement::U32 => AtomOp::Inc,
        TensorRed::Dec if element == TensorMapElement::U32 => AtomOp::Dec,
        TensorRed::And if !is_float => AtomOp::And,
        TensorRed::Or if !is_float => AtomOp::Or,
        TensorRed::Xor if !is_float => AtomOp::Xor,
        TensorRed::Inc | TensorRed::Dec | TensorRed::And | TensorRed::Or | TensorRed::Xor => return None,
    };
    Some((op, ty))
}

fn word(bytes: &[u8]) -> u64 {
    let mut word = [0; 8];
    word[..bytes.len()].copy_from_slice(bytes);
    u64::from_le_bytes(word)
}

pub fn read_global(memory: &GlobalMemory, address: u64, out: &mut [u8], check: bool) -> Result<(), Box<Error>> {
    let bytes = out.len() as u64;
    let from = memory.resolve(address, bytes).ok_or_else(|| outside(memory, address))?;
    if check && !memory.is_written(address, bytes) {
        return Err(Box::new(
            Error::new(Fault::Execution, "a bulk copy reads global memory that nothing wrote")
                .got(memory.describe(address)),
        ));
    }
    // SAFETY: `resolve` checked the range; `out` is our own.
    unsafe { std::ptr::copy_nonoverlapping(from, out.as_mut_ptr(), out.len()) };
    Ok(())
}

pub fn write_global(memory: &GlobalMemory, address: u64, data: &[u8], by: &mut Signed) -> Result<(), Box<Error>> {
    memory
        .resolve(address, data.len() as u64)
        .ok_or_else(|| outside(memory, address))?;
    if let Some(other) = memory.store(by.author, address, data) {
        by.overwritten.get_or_insert((address, other));
    }
    Ok(())
}

/// Whose store it is, where that is watched, and what it did to another's.
pub struct Signed {
    pub author: Option<Author>,
    pub overwritten: Option<(u64, Clash)>,
}

/// Address bits that a swizzle XORs into bits 4 to 6: those from bit 7 on (PTX ISA 5.5.7; CUTLASS `Swizzle<b, 4, 3>`).
pub const fn swizzle_mask(swizzle: TensorMapSwizzle) -> u32 {
    match swizzle {
        TensorMapSwizzle::None => 0,
        TensorMapSwizzle::B32 => 1,
        TensorMapSwizzle::B64 => 3,
        TensorMapSwizzle::B128 => 7,
    }
}

/// The swizzled shared address of a 16-byte chunk.
#[inline(always)]
pub const fn swizzled(address: u32, mask: u32) -> u32 {
    address ^ (address >> 7 & mask) << 4
}

/// Writes a dense box to shared memory at `offset`.
pub fn scatter(smem: &mut Shared, offset: u32, swizzle: TensorMapSwizzle, data: &[u8]) {
    let mask = swizzle_mask(swizzle);
    if mask == 0 {
        smem.get_mut(offset, data.len() as u32).copy_from_slice(data);
        return;
    }
    for (i, chunk) in data.chunks(16).enumerate() {
        let at = swizzled(SMEM_BASE + offset + i as u32 * 16, mask) - SMEM_BASE;
        smem.get_mut(at, chunk.len() as u32).copy_from_slice(chunk);
    }
}

/// Reads a dense box of `bytes` bytes from shared memory at `offset`.
pub fn gather(smem: &Shared, offset: u32, swizzle: TensorMapSwizzle, bytes: u32, out: &mut Vec<u8>) {
    let mask = swizzle_mask(swizzle);
    out.clear();
    if mask == 0 {
        out.extend_from_slice(smem.get(offset, bytes));
        return;
    }
    for i in (0..bytes).step_by(16) {
        let at = swizzled(SMEM_BASE + offset + i, mask) - SMEM_BASE;
        out.extend_from_slice(smem.get(at, 16.min(bytes - i)));
    }
}

/// The bytes that a swizzled box of this size may touch: the swizzle's pattern repeats every `8·span` bytes.
pub fn footprint(offset: u32, bytes: u32, swizzle: TensorMapSwizzle) -> (u32, u32) {
    match swizzle {
        TensorMapSwizzle::None => (offset, bytes),
        TensorMapSwizzle::B32 | TensorMapSwizzle::B64 | TensorMapSwizzle::B128 => {
            // XOR moves chunks within their 128-byte lines.
            let start = offset & !127;
            (start, (offset + bytes).next_multiple_of(128) - start)
        }
    }
}
