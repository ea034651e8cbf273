//! The bytes that a use of a reference touches on one path, as a whole and warp by warp.
//!
//! On a path most indices are numbers. One that is not (a loaded value, a parameter) stands for its whole proven range, so that
//! what is computed here is never too small.
use super::scalars::{Scalars, Val};
use crate::kernel_ir::{Alloc, AllocKind, DimIndex, Index, Kernel, Op, RefUse, Step, Value};
use crate::layout::assignment::Assignment;
use crate::layout::facts::gcd;
use crate::layout::register_layout;
use crate::layout::smem_layout::{self, SmemView, ViewDim};
use crate::layout::{RegisterLayout, Start};
use crate::plan::Allocation;
use cranelift_entity::SecondaryMap;
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

/// A footprint's number.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct FootprintId(u32);

impl FootprintId {
    pub fn number(self) -> usize {
        self.0 as usize
    }
    pub fn from_number(n: usize) -> FootprintId {
        FootprintId(n as u32)
    }
}

/// A piece of memory, of shared memory or of one device array: what has no cell in common has no byte in common.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Cell {
    alloc: Option<Alloc>,
    at: u64,
}

/// Bytes of a cell of shared memory: some lines of a swizzle, which moves bytes within its line.
const CELL: u64 = 1024;
/// Cells of a device array, at most.
const DEVICE_CELLS: u64 = 64;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Space {
    Shared,
    Device,
}

/// Half-open intervals of bytes in ascending order: of the block's shared memory, or of one device array.
type Ranges = Vec<(u64, u64)>;

pub struct Footprint {
    pub alloc: Alloc,
    pub space: Space,
    ranges: Ranges,
    /// The positions in each dimension of the allocation; none if nothing is known of them, or elements share bytes.
    spans: Option<Spans>,
    /// Of a part that is only indexed, where the view's dimensions are in the allocation.
    kept: Option<SmallVec<[Kept; 4]>>,
    /// The view, for each place where it may be; none if nothing is known of it.
    views: Vec<SmemView>,
    /// Where the allocation begins: what the views' own offsets count from.
    origin: u64,
    /// Bytes of the allocation's cells.
    cell: u64,
    /// Bytes move within their 128-byte line.
    swizzled: bool,
    /// Two views with equal patterns are the same bytes in the same order, or disjoint.
    pattern: Vec<i64>,
}

/// Positions in one dimension of an allocation, at most: they lie in `from..to`, a multiple of `step` behind `from`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Span {
    from: u64,
    to: u64,
    /// 0: it is `from` alone.
    step: u64,
}

type Spans = SmallVec<[Span; 4]>;

/// A dimension of a view: which of the allocation's it is, its size, and its elements' stride; 0: not known.
#[derive(Clone, Copy, Debug)]
struct Kept {
    dim: usize,
    size: u64,
    stride: u64,
}

/// For each warp, by dimension of a value: its first and its last position.
type Extents = [SmallVec<[(u64, u64); 4]>; 4];

impl Span {
    fn is_disjoint(&self, other: &Span) -> bool {
        let step = gcd(self.step, other.step);
        self.to <= other.from || other.to <= self.from || step > 1 && self.from % step != other.from % step
    }
}

/// Runs of bytes may be too many to be compared where dimensions are not.
fn are_disjoint(a: Option<&Spans>, b: Option<&Spans>) -> bool {
    a.zip(b)
        .is_some_and(|(a, b)| a.iter().zip(b).any(|(p, q)| p.is_disjoint(q)))
}

/// Of more places at which a view may be, some are looked at.
const MAX_VIEWS: u64 = 64;
/// More runs of bytes than these are taken for everything between the first and the last.
const MAX_RUNS: u64 = 4096;

/// An interval per warp.
type PerWarp = [Ranges; 4];

/// What makes a footprint: equal ones are one.
type Place = (Alloc, Ranges, Option<Spans>, Vec<i64>, usize);

#[derive(Default)]
pub struct Bytes {
    footprints: Vec<Footprint>,
    numbers: FxHashMap<(Op, u8, SmallVec<[Val; 4]>), FootprintId>,
    places: FxHashMap<Place, FootprintId>,
    /// What each warp touches of a footprint through a layout, by the layout's number.
    warps: FxHashMap<(FootprintId, u32), Option<PerWarp>>,
    extents: FxHashMap<u32, Option<Extents>>,
    layouts: FxHashMap<RegisterLayout, u32>,
    layout_of: SecondaryMap<Value, Option<u32>>,
}

impl Bytes {
    pub fn get(&self, footprint: FootprintId) -> &Footprint {
        &self.footprints[footprint.0 as usize]
    }

    /// The footprint of the `position`th use in `op`; none of what is no data of this block or device.
    pub fn of(
        &mut self,
        kernel: &Kernel,
        assignment: &Assignment,
        allocation: &Allocation,
        scalars: &mut Scalars<'_>,
        op: Op,
        position: u8,
        r: &RefUse,
    ) -> FootprintId {
        let mut values = SmallVec::new();
        r.for_each_value(&mut |v| values.push(scalars.get(v)));
        let key = (op, position, values);
        if let Some(&footprint) = self.numbers.get(&key) {
            return footprint;
        }
        let made = footprint(kernel, assignment, allocation, scalars, r);
        let next = FootprintId(self.footprints.len() as u32);
        let (ranges, spans) = (made.ranges.clone(), made.spans.clone());
        let place = (made.alloc, ranges, spans, made.pattern.clone(), made.views.len());
        let footprint = *self.places.entry(place).or_insert(next);
        if footprint == next {
            self.footprints.push(made);
        }
        self.numbers.insert(key, footprint);
        footprint
    }

    /// The number of a value's layout.
    pub fn layout(&mut self, assignment: &Assignment, value: Value) -> Option<u32> {
        if self.layout_of[value].is_none() {
            let layout = assignment.values[value].as_ref()?;
            let next = self.layouts.len() as u32;
            let number = match self.layouts.get(layout) {
                Some(number) => *number,
                None => *self.layouts.entry(layout.clone()).or_insert(next),
            };
            self.layout_of[value] = Some(number);
        }
        self.layout_of[value]
    }

    /// The cells that a footprint is in.
    pub fn cells(&self, footprint: FootprintId) -> Vec<Cell> {
        let footprint = self.get(footprint);
        let alloc = (footprint.space == Space::Device).then_some(footprint.alloc);
        let mut out: Vec<Cell> = vec![];
        for &(start, end) in &footprint.ranges {
            for at in start / footprint.cell..end.div_ceil(footprint.cell) {
                if out.last().is_none_or(|last| last.at < at) {
                    out.push(Cell { alloc, at });
                }
            }
        }
        out
    }

    /// Whether the two have a byte in common.
    pub fn overlap(&self, a: FootprintId, b: FootprintId) -> bool {
        let (x, y) = (self.get(a), self.get(b));
        if a == b {
            return !x.ranges.is_empty();
        }
        if x.space != y.space || x.space == Space::Device && x.alloc != y.alloc {
            return false;
        }
        // Swizzles move bytes within lines; two views through one swizzle are moved alike.
        let lines = x.alloc != y.alloc && (x.swizzled || y.swizzled);
        let disjoint = || x.alloc == y.alloc && are_disjoint(x.spans.as_ref(), y.spans.as_ref());
        overlaps(&x.ranges, &y.ranges, lines) && !disjoint()
    }

    /// Whether equal layouts through these views give each lane the same bytes, or disjoint ones.
    pub fn same_pattern(&self, a: FootprintId, b: FootprintId) -> bool {
        self.get(a).alloc == self.get(b).alloc && self.get(a).pattern == self.get(b).pattern
    }

    /// Whether what warp `p` touches of `a`, holding it as `x` is laid out, overlaps what warp `q` touches of `b`. An unknown view
    /// counts as touched whole by every warp.
    pub fn warps_overlap(
        &mut self,
        assignment: &Assignment,
        (a, x, p): (FootprintId, Option<Value>, usize),
        (b, y, q): (FootprintId, Option<Value>, usize),
    ) -> bool {
        let mut layout = |footprint: FootprintId, value: Option<Value>| {
            let number = self.layout(assignment, value?)?;
            self.split(assignment, footprint, value?, number);
            Some(number)
        };
        let (x, y) = (layout(a, x), layout(b, y));
        let part = |footprint: FootprintId, layout: Option<u32>, warp: usize| match layout
            .and_then(|l| self.warps[&(footprint, l)].as_ref())
        {
            Some(parts) => &parts[warp],
            None => &self.get(footprint).ranges,
        };
        let (f, g) = (self.get(a), self.get(b));
        let lines = f.alloc != g.alloc && (f.swizzled || g.swizzled);
        let disjoint = || {
            let spans = |footprint, layout: Option<u32>, warp| self.spans_of_warp(footprint, layout, warp);
            f.alloc == g.alloc && are_disjoint(spans(f, x, p).as_ref(), spans(g, y, q).as_ref())
        };
        overlaps(part(a, x, p), part(b, y, q), lines) && !disjoint()
    }

    /// The positions in each dimension of the allocation that a warp touches of a footprint.
    fn spans_of_warp(&self, footprint: &Footprint, layout: Option<u32>, warp: usize) -> Option<Spans> {
        let mut spans = footprint.spans.clone()?;
        let extents = layout.and_then(|layout| self.extents[&layout].as_ref());
        if let (Some(kept), Some(extents)) = (&footprint.kept, extents)
            && kept.len() == extents[warp].len()
        {
            for (kept, &(first, last)) in kept.iter().zip(&extents[warp]) {
                let span = &mut spans[kept.dim];
                span.from += kept.stride * first;
                span.to -= kept.stride * kept.size.saturating_sub(1 + last);
            }
        }
        Some(spans)
    }

    /// Finds what each warp touches, if it can be known.
    fn split(&mut self, assignment: &Assignment, footprint: FootprintId, value: Value, number: u32) {
        if self.warps.contains_key(&(footprint, number)) {
            return;
        }
        let parts = assignment.values[value]
            .as_ref()
            .and_then(|layout| self.get(footprint).split(layout));
        self.warps.insert((footprint, number), parts);
        self.extents
            .entry(number)
            .or_insert_with(|| assignment.values[value].as_ref().and_then(extents));
    }
}

impl Footprint {
    /// What each warp touches through a layout, if it can be known.
    fn split(&self, layout: &RegisterLayout) -> Option<PerWarp> {
        let fits = |view: &SmemView| layout.shape() == view.shape().as_slice();
        let is_known = !self.views.is_empty() && self.views.iter().all(fits) && !layout.is_constant_somewhere();
        if !is_known || layout.group() != register_layout::Group::Warpgroup {
            return None;
        }
        let mut index = vec![0; layout.rank()];
        let mut parts: PerWarp = Default::default();
        for thread in 0..layout.group().threads() {
            let part = &mut parts[thread as usize / 32];
            for (view, slot) in self.views.iter().flat_map(|v| (0..layout.slots()).map(move |s| (v, s))) {
                if layout.write_element(thread, slot, &mut index) {
                    let size = u64::from(view.bits / 8);
                    let at = self.origin + view.linear_bits(&index, &|_| 0) / 8;
                    match part.last_mut() {
                        Some(last) if last.1 == at => last.1 = at + size,
                        _ => part.push((at, at + size)),
                    }
                }
            }
        }
        Some(parts.map(merged))
    }

    pub fn text(&self, kernel: &Kernel) -> String {
        let (start, end) = match (self.ranges.first(), self.ranges.last()) {
            (Some(first), Some(last)) => (first.0, last.1),
            _ => (0, 0),
        };
        let data = &kernel.allocs[self.alloc];
        let what = match &data.kind {
            AllocKind::Smem { dtype, .. } | AllocKind::Gmem { dtype, .. } => {
                format!("{}, {dtype}{:?}", self.alloc, data.shape.as_slice())
            }
            AllocKind::SmemUnion
            | AllocKind::Tmem { .. }
            | AllocKind::TmemUnion
            | AllocKind::Barrier { .. }
            | AllocKind::Semaphore { .. }
            | AllocKind::Register { .. } => self.alloc.to_string(),
        };
        match self.space {
            Space::Shared => format!("bytes {start} to {end} of shared memory ({what})"),
            Space::Device => format!("bytes {start} to {end} of device memory ({what})"),
        }
    }
}

/// Which positions each warp holds of an array in this layout, if it can be known.
fn extents(layout: &RegisterLayout) -> Option<Extents> {
    if layout.is_constant_somewhere() || layout.group() != register_layout::Group::Warpgroup {
        return None;
    }
    let mut index = vec![0; layout.rank()];
    let mut out: Extents = std::array::from_fn(|_| SmallVec::from_elem((u64::MAX, 0), layout.rank()));
    for thread in 0..layout.group().threads() {
        for slot in 0..layout.slots() {
            if layout.write_element(thread, slot, &mut index) {
                for ((first, last), at) in out[thread as usize / 32].iter_mut().zip(&index) {
                    (*first, *last) = ((*first).min(*at), (*last).max(*at));
                }
            }
        }
    }
    let has_all = |(first, last): &(u64, u64)| first <= last;
    out.iter().flatten().all(has_all).then_some(out)
}

/// Whether each element of an array in this layout is one lane's.
pub fn has_owners(layout: &RegisterLayout) -> bool {
    layout.replicated_bits() == 0 && !layout.is_constant_somewhere()
}

fn overlaps(a: &[(u64, u64)], b: &[(u64, u64)], lines: bool) -> bool {
    let wide = |&(start, end): &(u64, u64)| {
        if lines {
            (start & !127, end.next_multiple_of(128))
        } else {
            (start, end)
        }
    };
    let (mut i, mut j) = (0, 0);
    while i < a.len() && j < b.len() {
        let (x, y) = (wide(&a[i]), wide(&b[j]));
        if x.0 < y.1 && y.0 < x.1 {
            return true;
        }
        if x.1 <= y.1 { i += 1 } else { j += 1 }
    }
    false
}

fn merged(mut ranges: Ranges) -> Ranges {
    ranges.sort_unstable();
    let mut out: Ranges = Vec::with_capacity(ranges.len());
    for (start, end) in ranges {
        match out.last_mut() {
            Some(last) if start <= last.1 => last.1 = last.1.max(end),
            _ => out.push((start, end)),
        }
    }
    out
}

/// Runs of bytes of a view whose starts are numbers, together with dimensions that it dropped.
fn runs(view: &SmemView, hidden: &[ViewDim]) -> Ranges {
    let mut digits: Vec<(u64, u64)> = vec![];
    let mut lists: Vec<Vec<u64>> = vec![];
    for dim in view.dims.iter().chain(hidden).chain(&view.dropped) {
        if dim.loose.is_empty() {
            digits.extend(dim.chain.iter().map(|d| (d.size, d.place.0)));
            continue;
        }
        let start: u64 = dim
            .loose
            .iter()
            .map(|s| match s {
                Start::Static(v) => *v,
                Start::Dynamic(..) => 0,
            })
            .sum();
        let offset = |mut i: u64| {
            let last = dim.chain.len().saturating_sub(1);
            let mut sum = 0;
            for (k, d) in dim.chain.iter().enumerate() {
                sum += if k == last { i } else { i % d.size } * d.place.0;
                i /= d.size;
            }
            sum
        };
        lists.push((start..start + dim.size).map(offset).collect());
    }
    if view.dims.iter().chain(hidden).any(|d| d.size == 0) {
        return vec![];
    }
    digits.retain(|d| d.0 != 1);
    digits.sort_by_key(|d| d.1);
    let mut run = u64::from(view.bits);
    let mut rest = vec![];
    for (n, stride) in digits {
        if rest.is_empty() && stride == run {
            run *= n;
        } else {
            rest.push((0..n).map(|i| i * stride).collect::<Vec<u64>>());
        }
    }
    lists.extend(rest);
    let count = lists.iter().map(|l| l.len() as u64).fold(1u64, u64::saturating_mul);
    let bytes = |start: u64| (start / 8, (start + run).div_ceil(8));
    if count > MAX_RUNS {
        let last: u64 = lists.iter().map(|l| l.iter().copied().max().unwrap_or(0)).sum();
        let first: u64 = lists.iter().map(|l| l.iter().copied().min().unwrap_or(0)).sum();
        return vec![(bytes(view.offset + first).0, bytes(view.offset + last).1)];
    }
    let mut starts = vec![view.offset];
    for list in lists {
        starts = list.iter().flat_map(|x| starts.iter().map(move |s| s + x)).collect();
    }
    merged(starts.into_iter().map(bytes).collect())
}

/// Parts of a [`Footprint::pattern`].
mod token {
    pub const INDEX: i64 = -1;
    pub const AT: i64 = -2;
    pub const ALIGNED: i64 = -3;
    pub const UNALIGNED: i64 = -4;
    pub const OTHER: i64 = -5;
    pub const TRANSPOSE: i64 = -6;
    pub const RESHAPE: i64 = -7;
}

struct Walker<'a, 'b> {
    kernel: &'a Kernel,
    scalars: &'a mut Scalars<'b>,
    hidden: Vec<ViewDim>,
    exact: bool,
    pattern: Vec<i64>,
    /// Which of the possible positions to take, as one number; none: all of them.
    choice: Option<u64>,
    /// The combinations of positions so far.
    ways: u64,
}

impl<'a, 'b> Walker<'a, 'b> {
    fn new(kernel: &'a Kernel, scalars: &'a mut Scalars<'b>, choice: Option<u64>) -> Walker<'a, 'b> {
        Walker {
            kernel,
            scalars,
            hidden: vec![],
            exact: true,
            pattern: vec![],
            choice,
            ways: 1,
        }
    }

    /// The first and the last position that an index may have, of those below `count`, and what their distances are a multiple of.
    fn bounds(&mut self, index: Index, count: u64) -> (u64, u64, u64) {
        let last = count.saturating_sub(1);
        let fixed = |x: i64| {
            let at = (x.max(0) as u64).min(last);
            (at, at, 1)
        };
        match index {
            Index::Const(c) => fixed(c),
            Index::Value(v) => match self.scalars.get(v) {
                Val::Int(x) => fixed(x),
                Val::Sym { .. } => {
                    let facts = self.kernel.facts(v);
                    let (lo, hi) = facts.bounds_i64();
                    let lo = (lo.max(0) as u64).min(last);
                    let hi = (hi.max(0) as u64).clamp(lo, last);
                    let step = facts.divisor.max(1);
                    (lo.next_multiple_of(step).min(hi), hi, step)
                }
            },
        }
    }

    /// First positions that an index may have: at least one, of those below `count`.
    fn positions(&mut self, index: Index, count: u64) -> (u64, u64) {
        let (first, last, step) = self.bounds(index, count);
        let places = (last - first) / step + 1;
        self.ways = self.ways.saturating_mul(places);
        match &mut self.choice {
            None => (first, last - first + 1),
            Some(choice) => {
                let place = *choice % places;
                *choice /= places;
                (first + place * step, 1)
            }
        }
    }

    /// What a use takes of each dimension of its allocation.
    fn spans(&mut self, r: &RefUse, shape: &[u64]) -> Spans {
        let all = |&n: &u64| Span {
            from: 0,
            to: n,
            step: 1,
        };
        let Some(Step::Index(dims)) = r.steps.first() else {
            return shape.iter().map(all).collect();
        };
        let span = |(dim, extent): (&DimIndex, &u64)| {
            let (start, size, stride) = match dim {
                DimIndex::At(i) => (*i, 1, 1),
                DimIndex::Slice { start, size, stride } => (*start, *size, *stride),
                DimIndex::Window { .. } | DimIndex::Gather(_) => return all(extent),
            };
            let length = size.saturating_sub(1) * stride + u64::from(size > 0);
            let (first, last, step) = self.bounds(start, extent.saturating_sub(length) + 1);
            let steps = [(last > first, step), (size > 1, stride)];
            Span {
                from: first,
                to: last + length,
                step: steps.iter().filter(|(moves, _)| *moves).fold(0, |g, (_, n)| gcd(g, *n)),
            }
        };
        dims.iter().zip(shape).map(span).collect()
    }

    fn index(&mut self, view: SmemView, dims: &[DimIndex]) -> Option<SmemView> {
        self.pattern.push(token::INDEX);
        let extents = view.shape();
        let mut indices: SmallVec<[smem_layout::Index; 4]> = SmallVec::new();
        let mut hide = vec![];
        for (k, (dim, &extent)) in dims.iter().zip(&extents).enumerate() {
            let (start, size, drop) = match dim {
                DimIndex::At(i) => (*i, 1, true),
                DimIndex::Slice { start, size, stride: 1 } => (*start, (*size).min(extent), false),
                DimIndex::Slice { start, size, stride } => {
                    self.exact = false;
                    (*start, (size.saturating_sub(1) * stride + 1).min(extent), false)
                }
                DimIndex::Window { .. } | DimIndex::Gather(_) => {
                    self.exact = false;
                    (Index::Const(0), extent, false)
                }
            };
            let (first, n) = self.positions(start, extent - size.min(extent) + 1);
            self.tokens(dim, start, first, n);
            if n > 1 {
                self.exact = false;
            }
            let at = Start::Static(first);
            indices.push(match (drop, n) {
                (true, 1) => smem_layout::Index::At(at),
                (_, 1) => smem_layout::Index::Slice(at, size),
                (_, _) => smem_layout::Index::Slice(at, (size + n - 1).min(extent - first)),
            });
            if drop && n > 1 {
                hide.push(
                    k - hide.len()
                        - indices[..k]
                            .iter()
                            .filter(|i| matches!(i, smem_layout::Index::At(_)))
                            .count(),
                );
            }
        }
        let mut view = view.index_loosely(&indices).ok()?;
        for k in hide {
            self.hidden.push(view.dims.remove(k));
        }
        Some(view)
    }

    fn tokens(&mut self, dim: &DimIndex, start: Index, first: u64, n: u64) {
        let aligned = |this: &mut Self, size: u64| match start {
            Index::Value(v) if n > 1 => this.kernel.facts(v).divisor.is_multiple_of(size.max(1)),
            Index::Const(_) | Index::Value(_) => first.is_multiple_of(size.max(1)),
        };
        match dim {
            DimIndex::At(_) => self.pattern.push(token::AT),
            DimIndex::Slice { size, stride: 1, .. } if aligned(self, *size) => {
                self.pattern.extend([token::ALIGNED, *size as i64]);
            }
            DimIndex::Slice { size, stride, .. } => {
                let at = match start {
                    Index::Const(c) => Val::Int(c),
                    Index::Value(v) => self.scalars.get(v),
                };
                let (id, plus) = match at {
                    Val::Int(x) => (-1, x),
                    Val::Sym { id, plus } => (i64::from(id), plus),
                };
                self.pattern
                    .extend([token::UNALIGNED, *size as i64, *stride as i64, id, plus]);
            }
            DimIndex::Window { start, size } => {
                let at = match start {
                    Index::Const(c) => Val::Int(*c),
                    Index::Value(v) => self.scalars.get(*v),
                };
                let (id, plus) = match at {
                    Val::Int(x) => (-1, x),
                    Val::Sym { id, plus } => (i64::from(id), plus),
                };
                self.pattern.extend([token::OTHER, *size as i64, id, plus]);
            }
            DimIndex::Gather(v) => {
                let (id, plus) = match self.scalars.get(*v) {
                    Val::Int(x) => (-1, x),
                    Val::Sym { id, plus } => (i64::from(id), plus),
                };
                self.pattern.extend([token::OTHER, id, plus]);
            }
        }
    }

    fn step(&mut self, view: SmemView, step: &Step) -> Option<SmemView> {
        match step {
            Step::Index(dims) => self.index(view, dims),
            Step::Transpose(p) => {
                self.pattern.push(token::TRANSPOSE);
                self.pattern.extend(p.iter().map(|i| i64::from(*i)));
                let p: SmallVec<[usize; 4]> = p.iter().map(|i| *i as usize).collect();
                Some(view.transpose(&p))
            }
            Step::Reshape(shape) => {
                self.pattern.push(token::RESHAPE);
                self.pattern.extend(shape.iter().map(|n| *n as i64));
                view.reshape(shape).ok()
            }
            Step::Bitcast { dtype, shape } => {
                if dtype.bits() != view.bits || shape.as_slice() != view.shape().as_slice() {
                    self.pattern.push(token::OTHER);
                    return None;
                }
                Some(view)
            }
            Step::Im2Col { .. }
            | Step::ExpandLeadingBatch(_)
            | Step::ExtractAlias { .. }
            | Step::Unswizzle(_)
            | Step::Untile(_) => {
                self.pattern.push(token::OTHER);
                None
            }
        }
    }
}

fn kept_whole(shape: &[u64]) -> SmallVec<[Kept; 4]> {
    let whole = |(dim, &size)| Kept { dim, size, stride: 1 };
    shape.iter().enumerate().map(whole).collect()
}

/// The dimensions that an index leaves.
fn kept_of(dims: &[DimIndex], shape: &[u64]) -> Option<SmallVec<[Kept; 4]>> {
    let kept = |(dim, (index, &extent)): (usize, (&DimIndex, &u64))| match index {
        DimIndex::At(_) => None,
        DimIndex::Slice { size, stride, .. } => Some(Kept {
            dim,
            size: *size,
            stride: *stride,
        }),
        DimIndex::Window { .. } | DimIndex::Gather(_) => Some(Kept {
            dim,
            size: extent,
            stride: 0,
        }),
    };
    // Arrays of indices may move the dimensions that they leave.
    let moves = dims.iter().any(|index| matches!(index, DimIndex::Gather(_)));
    (!moves).then(|| dims.iter().zip(shape).enumerate().filter_map(kept).collect())
}

fn footprint(
    kernel: &Kernel,
    assignment: &Assignment,
    allocation: &Allocation,
    scalars: &mut Scalars<'_>,
    r: &RefUse,
) -> Footprint {
    let data = &kernel.allocs[r.alloc];
    let dtype = data.elem().dtype();
    let bits = dtype.map_or(8, |d| d.bits());
    let (space, origin, whole) = match &data.kind {
        AllocKind::Smem { .. } => {
            let t = assignment.smem[r.alloc].clone().unwrap_or_default();
            let whole = SmemView::new(&data.shape, bits, &t.tiling, t.swizzle_bytes).ok();
            (Space::Shared, u64::from(allocation.smem[r.alloc].unwrap_or(0)), whole)
        }
        AllocKind::SmemUnion => {
            let whole = SmemView::row_major(&data.shape, 8);
            (
                Space::Shared,
                u64::from(allocation.smem[r.alloc].unwrap_or(0)),
                Some(whole),
            )
        }
        AllocKind::Gmem { .. }
        | AllocKind::Tmem { .. }
        | AllocKind::TmemUnion
        | AllocKind::Barrier { .. }
        | AllocKind::Semaphore { .. }
        | AllocKind::Register { .. } => (Space::Device, 0, Some(SmemView::row_major(&data.shape, bits))),
    };
    let size = (data.shape.iter().product::<u64>() * u64::from(bits)).div_ceil(8);
    let cell = match space {
        Space::Shared => CELL,
        Space::Device => size.div_ceil(DEVICE_CELLS).max(CELL),
    };
    let everything = vec![(0, size)];
    let swizzled = whole.as_ref().is_some_and(|v| !v.swizzle.is_none());
    let mut walk = |choice: Option<u64>| {
        let mut walker = Walker::new(kernel, &mut *scalars, choice);
        let mut view = whole.clone();
        let mut known = view.clone();
        for step in &r.steps {
            view = view.and_then(|v| walker.step(v, step));
            if view.is_some() {
                known = view.clone();
            }
        }
        let exact = walker.exact && walker.hidden.is_empty();
        let view = view.filter(|v| exact && v.bits >= 8 && v.dynamic.is_empty());
        (view, known, walker.hidden, walker.pattern, walker.ways)
    };
    let (view, known, hidden, pattern, ways) = walk(None);
    let views: Vec<SmemView> = match view {
        Some(view) => vec![view],
        None if ways > 1 => {
            let count = ways.min(MAX_VIEWS);
            let choice = |i: u64| (u128::from(i) * u128::from(ways - 1) / u128::from(count - 1)) as u64;
            let views: Option<Vec<SmemView>> = (0..count).map(|i| walk(Some(choice(i))).0).collect();
            views.unwrap_or_default()
        }
        None => vec![],
    };
    let ranges = if ways > 1 && views.len() as u64 == ways {
        merged(views.iter().flat_map(|v| runs(v, &[])).collect())
    } else {
        known.map_or(everything, |v| runs(&v, &hidden))
    };
    let ranges = ranges.iter().map(|(from, to)| (from + origin, to + origin)).collect();
    let spans = (bits >= 8).then(|| Walker::new(kernel, scalars, None).spans(r, &data.shape));
    let kept = match &r.steps[..] {
        [] => Some(kept_whole(&data.shape)),
        [Step::Index(dims)] => kept_of(dims, &data.shape),
        [..] => None,
    };
    Footprint {
        alloc: r.alloc,
        space,
        ranges,
        spans,
        kept,
        views,
        origin,
        cell,
        swizzled,
        pattern,
    }
}
