//! Tensor memory: where the elements of a reference are, and how arrays in registers come from there and get there.
//!
//! Tensor memory has 128 lanes of 512 columns of 32 bits; warp `w` of a warpgroup reaches lanes `32w` to `32w + 31` (PTX ISA, "Tensor Memory
//! Access"). A layout of tensor memory is one of registers, read otherwise: the lane is the thread, the column the register. A column has one
//! element, in its low bits, or as many as fit.
//!
//! **Plans.** `tcgen05.ld` and `.st` move, for each thread, words at places that are fixed but for a start: of each shape, a sum of what each bit of
//! the thread adds, and of what the register does ([`Shape`]). So are the places of an array's elements, by the digits that its layout and that of
//! tensor memory have in common. A shape moves the array if the bits of the thread add the same; words are then listed by place, in runs of columns.
use super::infer::spec;
use super::register_layout::{Aligned, Group, Place, RegisterLayout};
use super::tiled::{TiledLayout, TilingError};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::kernel_ir::{Alloc, AllocKind, DimIndex, Index, Kernel, LayoutSpec, RefUse, Step, Value, words};
use rustc_hash::FxHashMap;
use smallvec::{SmallVec, smallvec};

pub const LANES: u64 = 128;
pub const COLUMNS: u64 = 512;
/// What an allocation is a multiple of, and begins at.
pub const COLUMN_ALIGNMENT: u64 = 4;
/// Registers that one instruction moves at most: more would be alive at once before the first is used.
const MAX_WORDS: usize = 32;

/// The part of tensor memory that a view shows.
#[derive(Clone, Debug)]
pub struct TmemView {
    /// The lane and the column of each element, from the start on.
    layout: RegisterLayout,
    /// Elements of a column.
    pub packed: u64,
    pub dtype: DType,
    /// Columns from the allocation's first to the view's.
    pub start: u64,
    /// And those that a value counts.
    pub dynamic: Vec<Counted>,
}

/// `columns` for each of a value's `per`, of which the value is a multiple.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Counted {
    pub value: Value,
    pub columns: u64,
    pub per: u64,
}

/// Where an allocation's elements are, as the author or JAX has it; else a row in each lane.
fn layout_spec(kernel: &Kernel, alloc: Alloc) -> Result<(Option<&LayoutSpec>, DType)> {
    match &kernel.allocs[alloc].kind {
        AllocKind::Tmem { layout, dtype, .. } => Ok((layout.as_ref(), *dtype)),
        _ => Err(Error::internal(format!("{alloc} is not in tensor memory"))),
    }
}

fn instantiate(spec: Option<&LayoutSpec>, shape: &[u64], dtype: DType) -> Result<(RegisterLayout, u64)> {
    Ok(match spec {
        Some(spec) => {
            let packed = match spec {
                LayoutSpec::Tiled { tiling, vector_dim, .. } => vector_length(tiling, *vector_dim),
                LayoutSpec::Strided { .. } | LayoutSpec::Splat { .. } | LayoutSpec::Named { .. } => 1,
            };
            (spec::instantiate(spec, shape, dtype, Group::Warpgroup)?, packed)
        }
        None => {
            let layout = TiledLayout::tmem_native(1).instantiate(shape);
            let refused = |e: TilingError| {
                Error::invalid("tensor memory without a layout")
                    .expected("128 rows")
                    .got(e.to_string())
                    .remedy("plgpu.TMEM((128, columns), dtype)")
            };
            (layout.map_err(refused)?, 1)
        }
    })
}

/// The extent of a dimension of the tiled shape, counted from the last one.
fn vector_length(tiling: &[Vec<u64>], dim: i64) -> u64 {
    let back = dim.unsigned_abs() as usize;
    let last = tiling.last().map_or(&[][..], Vec::as_slice);
    last.len().checked_sub(back).map_or(1, |i| last[i])
}

/// Columns that an allocation takes.
pub fn columns(kernel: &Kernel, alloc: Alloc) -> Result<u64> {
    let data = &kernel.allocs[alloc];
    let (spec, dtype) = layout_spec(kernel, alloc)?;
    let (layout, packed) = instantiate(spec, &data.shape, dtype)?;
    if packed * u64::from(dtype.bits()) > 32 {
        return Err(Error::unsupported(format!("tensor memory of {dtype}"))
            .expected("elements of at most 32 bits")
            .remedy("keep them in SMEM"));
    }
    Ok(u64::from(layout.slots()).div_ceil(packed))
}

/// What a dimension of a view is of tensor memory.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Dim {
    Rows(u64),
    /// So many, each so many elements behind the one before.
    Elements {
        size: u64,
        stride: u64,
    },
}

/// The view that a use takes.
pub fn view(kernel: &Kernel, r: &RefUse) -> Result<TmemView> {
    let data = &kernel.allocs[r.alloc];
    let (spec, dtype) = layout_spec(kernel, r.alloc)?;
    let refused = |what: &str| {
        Error::unsupported(format!("{what} of tensor memory: {}", words::of_use(kernel, r)))
            .expected("slices of its columns, and all of its rows")
            .remedy("take all rows, and columns from a multiple of what a column of 32 bits holds on")
    };
    let &[rows, elements] = data.shape.as_slice() else {
        return Err(refused("an array that is no matrix"));
    };
    let mut dims: SmallVec<[Dim; 4]> = smallvec![
        Dim::Rows(rows),
        Dim::Elements {
            size: elements,
            stride: 1
        }
    ];
    let (mut offset, mut dynamic): (u64, Vec<(Value, u64)>) = (0, vec![]);
    for step in &r.steps {
        match step {
            Step::ExpandLeadingBatch(batch) => {
                let Some((Dim::Elements { size, stride }, Dim::Rows(_))) =
                    dims.last().copied().zip(dims.first().copied())
                else {
                    return Err(refused("a batch of a part"));
                };
                let mut inner = size / batch.iter().product::<u64>().max(1);
                let matrix = Dim::Elements { size: inner, stride };
                let mut all: SmallVec<[Dim; 4]> = smallvec![matrix, dims[0]];
                for &n in batch.iter().rev() {
                    all.push(Dim::Elements {
                        size: n,
                        stride: inner * stride,
                    });
                    inner *= n;
                }
                all.reverse();
                dims = all;
            }
            Step::Index(indices) => {
                let mut kept = SmallVec::new();
                for (dim, index) in dims.iter().zip(indices) {
                    let (start, size) = match index {
                        DimIndex::At(start) => (*start, None),
                        DimIndex::Slice { start, size, stride } if *stride == 1 || *size <= 1 => (*start, Some(*size)),
                        DimIndex::Slice { .. } | DimIndex::Window { .. } | DimIndex::Gather(_) => {
                            return Err(refused("an index"));
                        }
                    };
                    match *dim {
                        Dim::Rows(n) if index.is_all(n) => kept.push(Dim::Rows(n)),
                        Dim::Rows(_) => return Err(refused("some rows")),
                        Dim::Elements { stride, .. } => {
                            match start {
                                Index::Const(c) => offset += c.unsigned_abs() * stride,
                                Index::Value(v) => match kernel.facts(v).as_constant() {
                                    Some(c) => offset += c.unsigned_abs() * stride,
                                    None => dynamic.push((v, stride)),
                                },
                            }
                            kept.extend(size.map(|size| Dim::Elements { size, stride }));
                        }
                    }
                }
                dims = kept;
            }
            Step::Transpose(_)
            | Step::Reshape(_)
            | Step::Bitcast { .. }
            | Step::Im2Col { .. }
            | Step::ExtractAlias { .. }
            | Step::Unswizzle(_)
            | Step::Untile(_) => return Err(refused("another view")),
        }
    }
    let [Dim::Rows(rows), Dim::Elements { size, stride: 1 }] = dims[..] else {
        return Err(refused("what is no matrix"));
    };
    let is_whole = offset == 0 && dynamic.is_empty() && size == elements;
    let (layout, packed) = instantiate(spec, &[rows, size], dtype)?;
    if !is_whole {
        // What is sliced lies as the whole does only where each lane has the columns of a row.
        let (whole, _) = instantiate(spec, &data.shape, dtype)?;
        if !is_row_a_lane(&whole, packed) {
            return Err(refused("some columns of a layout that parts rows"));
        }
    }
    let in_columns = |elements: u64| match elements % packed {
        0 => Ok(elements / packed),
        _ => Err(refused("a part of a column")),
    };
    let start = in_columns(offset)?;
    let dynamic = dynamic
        .into_iter()
        .map(|(value, stride)| {
            let divisor = kernel.facts(value).divisor;
            let (columns, per) = match (stride % packed, stride, divisor % packed) {
                (0, ..) => (stride / packed, 1),
                (_, 1, 0) => (1, packed),
                _ => {
                    return Err(refused("a start that may be within a column").remedy(
                        "compute it as a multiple of what a column of 32 bits holds, or say so with pl.multiple_of",
                    ));
                }
            };
            Ok(Counted { value, columns, per })
        })
        .collect::<Result<Vec<_>>>()?;
    Ok(TmemView {
        layout,
        packed,
        dtype,
        start,
        dynamic,
    })
}

/// Whether lane `i` has row `i`, its elements in order.
fn is_row_a_lane(layout: &RegisterLayout, packed: u64) -> bool {
    let &[rows, columns] = layout.shape() else { return false };
    rows == LANES
        && [(0, 0), (1, 0), (rows - 1, 0), (0, columns - 1), (1, columns - 1)]
            .iter()
            .all(|&(i, j)| layout.owner(&[i, j]) == (i as u32, j as u32))
        && TiledLayout::tmem_native(packed)
            .instantiate(layout.shape())
            .is_ok_and(|native| native == *layout)
}

/// Lanes that a warp moves, and bits of each.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Shape {
    L32B32,
    L16B64,
    L16B128,
    L16B256,
}

impl Shape {
    /// The lane and the column that it gives a thread's first register, from those of the first thread's.
    fn of_thread(self, t: u32) -> (u32, u32) {
        match self {
            Shape::L32B32 => (t, 0),
            Shape::L16B64 => (t / 4 + 8 * (t & 1), (t >> 1) & 1),
            Shape::L16B128 => (t / 4, t & 3),
            Shape::L16B256 => (t / 4, 2 * (t & 3)),
        }
    }
    /// Those of the other registers of the shape, from its first.
    fn of_register(self) -> &'static [(u32, u32)] {
        match self {
            Shape::L32B32 | Shape::L16B64 => &[(0, 0)],
            Shape::L16B128 => &[(0, 0), (8, 0)],
            Shape::L16B256 => &[(0, 0), (0, 1), (8, 0), (8, 1)],
        }
    }
    /// Columns.
    fn width(self) -> u32 {
        match self {
            Shape::L32B32 => 1,
            Shape::L16B64 => 2,
            Shape::L16B128 => 4,
            Shape::L16B256 => 8,
        }
    }
    /// Lanes at which it may begin.
    fn lanes(self) -> &'static [u32] {
        match self {
            Shape::L32B32 => &[0],
            Shape::L16B64 | Shape::L16B128 | Shape::L16B256 => &[0, 16],
        }
    }
}

/// One instruction.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Piece {
    pub shape: Shape,
    pub times: u32,
    /// Where it begins in each warp's lanes, and in the view's columns.
    pub lane: u32,
    pub column: u32,
    /// A register has the elements of two columns.
    pub packs: bool,
    /// The array's words, in the order of the instruction's registers.
    pub words: Vec<u32>,
}

/// How an array in this layout is moved from and to a view, if it can be.
pub fn plan(view: &TmemView, array: &RegisterLayout) -> Option<Vec<Piece>> {
    if array.shape() != view.layout.shape() || array.group() != Group::Warpgroup || array.replication() > 1 {
        return None;
    }
    if array.is_padded() || array.is_constant_somewhere() {
        return None;
    }
    // Elements of a register, and whether they are in one column.
    let each = u64::from(32 / view.dtype.bits().min(32));
    let packs = match (each, view.packed) {
        (each, packed) if each == packed => false,
        (2, 1) => true,
        _ => return None,
    };
    // Digits of the two layouts are independent: what those of the thread, and those of the slot, move an element adds up.
    let digits = array.align(&view.layout)?;
    let place = |value: &dyn Fn(&Aligned) -> u32| {
        let (mut lane, mut slot) = (0, 0);
        for digit in &digits {
            match digit.b {
                Place::Thread(bit) => lane += value(digit) << bit,
                Place::Slot(stride) => slot += value(digit) * stride,
                Place::Constant => return None,
            }
        }
        Some((lane, slot))
    };
    let of_thread = |thread: u32| {
        place(&|digit| match digit.a {
            Place::Thread(bit) => thread >> bit & (digit.size as u32 - 1),
            Place::Slot(_) | Place::Constant => 0,
        })
    };
    let of_slot = |slot: u32| {
        place(&|digit| match digit.a {
            Place::Slot(stride) => slot / stride % digit.size as u32,
            Place::Thread(_) | Place::Constant => 0,
        })
    };
    // Of the words of warp 0's first thread, each in one column, or in two where it packs.
    let each = each as u32;
    let mut words = FxHashMap::default();
    for word in 0..array.slots() / each {
        let (lane, slot) = of_slot(word * each)?;
        let together = (1..each).all(|k| of_slot(word * each + k) == Some((lane, slot + k)));
        if !together || !slot.is_multiple_of(each) || lane >= 32 {
            return None;
        }
        words.insert((lane, slot / each), word);
    }
    let bits: Vec<(u32, u32)> = (0..7).map(|bit| of_thread(1 << bit)).collect::<Option<_>>()?;
    [Shape::L16B256, Shape::L16B128, Shape::L32B32, Shape::L16B64]
        .into_iter()
        .find_map(|shape| {
            let follows = bits.iter().enumerate().all(|(bit, &(lane, slot))| {
                let (l, c) = shape.of_thread(1 << bit & 31);
                (lane, slot) == (l + (1 << bit & !31), c * each)
            });
            follows.then(|| pieces(shape, words.clone(), packs)).flatten()
        })
}

/// All words, in runs of columns.
fn pieces(shape: Shape, mut at: FxHashMap<(u32, u32), u32>, packs: bool) -> Option<Vec<Piece>> {
    let (registers, width) = (shape.of_register().len(), shape.width());
    let mut out = vec![];
    for &lane in shape.lanes() {
        let mut firsts: Vec<u32> = at.keys().filter(|(l, _)| *l == lane).map(|(_, c)| *c).collect();
        firsts.sort_unstable();
        for first in firsts {
            if !at.contains_key(&(lane, first)) {
                continue;
            }
            // As many as follow one another.
            let mut words = vec![];
            let mut column = first;
            while at.contains_key(&(lane, column)) {
                for (l, c) in shape.of_register() {
                    words.push(at.remove(&(lane + l, column + c))?);
                }
                column += width;
            }
            let mut done = 0;
            while done < words.len() {
                let left = (words.len() - done).min(MAX_WORDS) / registers;
                let times = 1 << left.ilog2();
                let n = times * registers;
                let units = first + (done / registers) as u32 * width;
                out.push(Piece {
                    shape,
                    times: times as u32,
                    lane,
                    column: if packs { 2 * units } else { units },
                    packs,
                    words: words[done..done + n].to_vec(),
                });
                done += n;
            }
        }
    }
    at.is_empty().then_some(out)
}

/// The best layout of registers that instructions can move.
pub fn best(view: &TmemView) -> Option<RegisterLayout> {
    let shape = view.layout.shape();
    let bits = u64::from(view.dtype.bits());
    let halves = shape.get(1).map(|n| TiledLayout::tcgen05_m64_collective(*n));
    let native = std::iter::once(view.layout.clone()).filter(|_| view.packed * bits == 32);
    [
        TiledLayout::tcgen05(),
        TiledLayout::wgmma(),
        TiledLayout::tmem_native((32 / bits.min(32)).max(1)),
        TiledLayout::wgmma_8bit(),
    ]
    .iter()
    .chain(&halves)
    .filter_map(|tiled| tiled.instantiate(shape).ok())
    .chain(native)
    .find(|layout| plan(view, layout).is_some())
}

/// What a product accumulates in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Accumulates {
    /// 128 rows, each in its lane.
    Rows,
    /// 64 rows: of 16 lanes of each warp, the first half of the columns; in the others the second half.
    HalfLanes,
}

/// How products find their sums there, and a left operand.
pub fn accumulator(kernel: &Kernel, r: &RefUse) -> Result<(TmemView, Accumulates)> {
    let view = view(kernel, r)?;
    let wrong = |expected: &str| {
        Error::invalid(format!("`tcgen05_mma`: {}", words::of_use(kernel, r)))
            .expected(expected)
            .remedy("plgpu.TMEM((rows, columns), dtype) without a layout, packed=False of float16")
    };
    let &[rows, columns] = view.layout.shape() else {
        return Err(Error::internal("an accumulator that is no matrix"));
    };
    match rows {
        LANES if view.packed == 1 && is_row_a_lane(&view.layout, 1) => Ok((view, Accumulates::Rows)),
        64 if view.packed == 1 && is_half_lanes(&view.layout, columns) => Ok((view, Accumulates::HalfLanes)),
        _ => Err(wrong(
            "an accumulator of 128 rows, a lane each, or of 64 in halves of lanes",
        )),
    }
}

pub fn left_operand(kernel: &Kernel, r: &RefUse) -> Result<TmemView> {
    let view = view(kernel, r)?;
    let packed = u64::from(32 / view.dtype.bits());
    match view.packed == packed && is_row_a_lane(&view.layout, packed) {
        true => Ok(view),
        false => Err(Error::invalid(format!("tensor memory: {}", words::of_use(kernel, r)))
            .expected("128 rows of elements that fill columns of 32 bits")
            .remedy("plgpu.TMEM((128, k), dtype, packed=True); of 64 rows, the operand in SMEM")),
    }
}

fn is_half_lanes(layout: &RegisterLayout, columns: u64) -> bool {
    let half = columns / 2;
    (0..64).all(|i| {
        [0, half - 1, half, columns - 1].iter().all(|&j| {
            let lane = i / 16 * 32 + j / half * 16 + i % 16;
            layout.owner(&[i, j]) == (lane as u32, (j % half) as u32)
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The lane and the column, of 32 bits or of two halves, of a thread's register (PTX ISA, the figures of `tcgen05.ld`).
    fn place(shape: Shape, t: u32, r: u32) -> (u32, u32) {
        match shape {
            Shape::L32B32 => (t, r),
            Shape::L16B64 => (t / 4 + 8 * (t & 1), (t >> 1 & 1) + 2 * r),
            Shape::L16B128 => (t / 4 + 8 * (r & 1), (t & 3) + 4 * (r >> 1)),
            Shape::L16B256 => (t / 4 + 8 * (r >> 1 & 1), 2 * (t & 3) + (r & 1) + 8 * (r >> 2)),
        }
    }

    /// Executes a plan element by element.
    fn check(view: &TmemView, array: &RegisterLayout, pieces: &[Piece]) {
        let each = 32 / view.dtype.bits();
        let mut moved = 0;
        for thread in 0..128 {
            for piece in pieces {
                for (r, word) in piece.words.iter().enumerate() {
                    let (lane, unit) = place(piece.shape, thread % 32, r as u32);
                    let lane = thread / 32 * 32 + piece.lane + lane;
                    for k in 0..each {
                        let index = array.element(thread, word * each + k).expect("an element");
                        let slot = match piece.packs {
                            true => piece.column + 2 * unit + k,
                            false => (piece.column + unit) * view.packed as u32 + k,
                        };
                        assert_eq!(
                            view.layout.owner(&index),
                            (lane, slot),
                            "{piece:?}, thread {thread}, register {r}"
                        );
                        moved += 1;
                    }
                }
            }
        }
        assert_eq!(moved, u64::from(array.slots()) * 128);
    }

    #[test]
    fn plans_move_every_element_to_its_place() {
        let of_rows = |packed| TiledLayout::tmem_native(packed);
        let halves = |columns, packed: u64| {
            TiledLayout::new(
                &[&[64, columns], &[16, columns / 2], &[packed]],
                &[super::super::tiled::Part::Dim(-5)],
                &[super::super::tiled::Part::Dim(-4), super::super::tiled::Part::Dim(-3)],
                -1,
            )
        };
        let mut planned = 0;
        for dtype in [DType::F32, DType::F16, DType::U8] {
            let full = u64::from(32 / dtype.bits());
            for (rows, columns) in [(128, 8), (128, 24), (128, 64), (128, 200), (64, 32), (64, 160)] {
                for packed in [1, full] {
                    let tiled = if rows == 128 {
                        of_rows(packed)
                    } else {
                        halves(columns, packed)
                    };
                    let Ok(layout) = tiled.instantiate(&[rows, columns]) else {
                        continue;
                    };
                    let view = TmemView {
                        layout,
                        packed,
                        dtype,
                        start: 0,
                        dynamic: vec![],
                    };
                    let arrays = [
                        TiledLayout::tcgen05(),
                        TiledLayout::wgmma(),
                        TiledLayout::tmem_native(1),
                        TiledLayout::tmem_native(full),
                        TiledLayout::wgmma_8bit(),
                        TiledLayout::tcgen05_transposed(),
                        TiledLayout::mma_acc(4),
                    ];
                    for array in arrays.iter().filter_map(|a| a.instantiate(&[rows, columns]).ok()) {
                        if let Some(pieces) = plan(&view, &array) {
                            check(&view, &array, &pieces);
                            planned += 1;
                        }
                    }
                }
            }
        }
        assert!(planned > 25, "{planned}");
    }
}
