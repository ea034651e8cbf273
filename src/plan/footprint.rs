//! Which lane touches which element: whether two accesses to an allocation overlap, and where.
//!
//! Ranges of bytes ([`super::bytes`]) say which accesses cannot overlap at all; of those that may, a [`FootprintId`] has the view and which lanes
//! hold its elements, and [`Footprints::overlap`] compares two of them element by element. Indices that are no numbers stand for all that
//! they may be, so that what is found is never too little: two positions in one dimension count as the same unless their ranges
//! are disjoint, and so do two slices that begin at multiples of their common size.
use super::allocate::Allocation;
use super::pending::Since;
use crate::dtype::DType;
use crate::kernel_ir::{Alloc, AllocData, AllocKind, DimIndex, Elem, Index, Kernel, Place, RefUse, Step, Value};
use crate::layout::Assignment;
use crate::layout::register_layout::{Group, RegisterLayout};
use cranelift_entity::SecondaryMap;
use rustc_hash::FxHashMap;
use smallvec::SmallVec;
use std::cell::OnceCell;

/// A view, and which lanes hold its elements.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct FootprintId(u32);

/// Which lanes touch the elements of a view.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Holder {
    /// The lanes that hold each of them.
    Layout(RegisterLayout),
    /// The group's first lane.
    First,
    /// The lane of the first warp that issues copies.
    Issuer,
    /// Lanes of this warp, whichever.
    Warp(u8),
    /// Any lane, every lane, a unit.
    All,
}

/// Where two accesses overlap, at most.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Overlap {
    Nowhere,
    /// What both touch, one lane touches.
    Lane,
    /// What both touch, lanes of one warp touch.
    Warp,
    Anywhere,
}

/// Larger views are compared as a whole.
const MAX_ELEMENTS: u64 = 1 << 15;

struct Data {
    view: RefUse,
    holder: Holder,
    /// The dimensions of the allocation in which it is one position, which is a value.
    at: SmallVec<[(usize, Value); 2]>,
    /// Another iteration of a loop may mean other elements, some of them the same as before.
    moves: bool,
    /// No other lane of the warp handles the words of a lane: no `stmatrix`, no `ldmatrix`.
    own_words: bool,
    /// Each element is one lane's.
    exclusive: bool,
    /// Which lanes touch each element of a layout, in the order of its indices, computed when first needed.
    holders: OnceCell<Vec<Option<Who>>>,
}

impl Data {
    /// Which lanes touch an element, by its number in the order of indices.
    fn holders(&self, elements: u64) -> impl Fn(u64) -> Option<Who> {
        let each = match &self.holder {
            Holder::First => Err(Who::Lane(0)),
            Holder::Issuer => Err(Who::Issuer),
            Holder::Warp(warp) => Err(Who::OfWarp(*warp)),
            Holder::All => Err(Who::Several),
            Holder::Layout(layout) => Ok(self.holders.get_or_init(|| {
                let mut holders: Vec<Option<Who>> = vec![None; elements as usize];
                layout.for_each_element(|thread, at| {
                    if let Some(known) = holders.get_mut(at as usize) {
                        let who = Who::Lane(thread as u8);
                        *known = Some(known.map_or(who, |k| k.and(who)));
                    }
                });
                holders
            })),
        };
        move |at| match each {
            Ok(each) => each.get(at as usize).copied().flatten(),
            Err(who) => Some(who),
        }
    }
}

pub struct Footprints {
    /// Where allocations in shared memory begin whose elements lie there in row-major order.
    plain: SecondaryMap<Alloc, Option<u32>>,
    footprints: Vec<Data>,
    numbers: FxHashMap<(RefUse, Holder), FootprintId>,
    cache: FxHashMap<(FootprintId, FootprintId), Overlap>,
}

impl Footprints {
    pub fn new(kernel: &Kernel, assignment: &Assignment, allocation: &Allocation) -> Footprints {
        let mut plain = SecondaryMap::new();
        for (alloc, data) in kernel.allocs.iter() {
            let transforms = assignment.smem[alloc].as_ref();
            let is_plain = transforms.is_none_or(|t| t.tiling.is_empty() && t.swizzle_bytes == 0);
            if matches!(data.kind, AllocKind::Smem { .. }) && is_plain {
                plain[alloc] = allocation.smem[alloc];
            }
        }
        Footprints {
            plain,
            footprints: vec![],
            numbers: FxHashMap::default(),
            cache: FxHashMap::default(),
        }
    }

    pub fn of(&mut self, kernel: &Kernel, view: &RefUse, holder: Holder) -> FootprintId {
        // Narrow elements share bytes, and may travel in another layout.
        let bits = whole_bytes(view.elem);
        let holder = match holder {
            Holder::Layout(layout)
                if bits.is_none()
                    || layout.is_constant_somewhere()
                    || layout.group() != Group::Warpgroup
                    || layout.shape() != view.shape.as_slice() =>
            {
                Holder::All
            }
            holder => holder,
        };
        let key = (view.clone(), holder);
        if let Some(footprint) = self.numbers.get(&key) {
            return *footprint;
        }
        let holder = key.1.clone();
        let footprint = FootprintId(self.footprints.len() as u32);
        let at = match view.steps.first() {
            Some(Step::Index(dims)) => {
                // Outside of the dimension it may be anywhere.
                let is_inside = |dim: usize, v: Value| {
                    let (facts, extent) = (kernel.facts(v), kernel.allocs[view.alloc].shape.get(dim));
                    extent.is_some_and(|n| facts.within(0, i128::from(*n) - 1))
                };
                let value = |(dim, index): (usize, &DimIndex)| match index {
                    DimIndex::At(Index::Value(v)) => is_inside(dim, *v).then_some((dim, *v)),
                    DimIndex::At(Index::Const(_))
                    | DimIndex::Slice { .. }
                    | DimIndex::Window { .. }
                    | DimIndex::Gather(_) => None,
                };
                let places = dims.iter().enumerate().filter_map(value);
                places
                    .filter(|(dim, _)| has_own_bytes(&kernel.allocs[view.alloc], *dim))
                    .collect()
            }
            _ => SmallVec::new(),
        };
        self.footprints.push(Data {
            at,
            moves: view.steps.iter().any(|step| moves(kernel, step)),
            own_words: !matches!(holder, Holder::Layout(_)) || !kernel.allocs[view.alloc].is_smem() || bits > Some(32),
            holders: OnceCell::new(),
            exclusive: match &holder {
                Holder::Layout(layout) => layout.replicated_bits() == 0,
                Holder::First | Holder::Issuer => true,
                Holder::Warp(_) | Holder::All => false,
            },
            view: view.clone(),
            holder,
        });
        self.numbers.insert(key, footprint);
        footprint
    }

    /// The same view, touched by lanes of one warp.
    pub fn by_warp(&mut self, kernel: &Kernel, footprint: FootprintId, warp: u8) -> FootprintId {
        let view = self.footprints[footprint.0 as usize].view.clone();
        self.of(kernel, &view, Holder::Warp(warp))
    }

    /// What becomes of the time of an access when another iteration begins of a loop that counts with `count`.
    pub fn next_iteration(&self, footprint: FootprintId, since: Since, count: Option<Value>) -> Since {
        let data = &self.footprints[footprint.0 as usize];
        let count = count.filter(|v| data.at.iter().any(|(_, at)| at == v));
        match (since, count) {
            (Since::Now | Since::Count(_), Some(count)) => Since::Count(count),
            (Since::Now, None) if !data.moves => Since::Now,
            (Since::Now | Since::Count(_) | Since::Before, _) => Since::Before,
        }
    }

    /// Where an access with the footprint `a` and a later one with the footprint `b` overlap.
    pub fn overlap(&mut self, kernel: &Kernel, (a, since): (FootprintId, Since), b: FootprintId) -> Overlap {
        let (x, y) = (&self.footprints[a.0 as usize], &self.footprints[b.0 as usize]);
        if let Since::Count(v) = since
            && x.view.alloc == y.view.alloc
            && x.at.iter().any(|(dim, at)| *at == v && y.at.contains(&(*dim, v)))
        {
            return Overlap::Nowhere;
        }
        let overlap = if a == b && x.exclusive && since == Since::Now {
            Overlap::Lane
        } else {
            let plain = &self.plain;
            *self.cache.entry((a, b)).or_insert_with(|| overlap(kernel, plain, x, y))
        };
        match overlap {
            Overlap::Lane if !(x.own_words && y.own_words) => Overlap::Warp,
            overlap => overlap,
        }
    }
}

/// Whether a view's step may be of other elements when the values in it change, and not of all others.
fn moves(kernel: &Kernel, step: &Step) -> bool {
    match step {
        Step::Index(dims) => dims.iter().any(|dim| match dim {
            DimIndex::Slice {
                start: Index::Value(v),
                size,
                ..
            } => !kernel.facts(*v).divisor.is_multiple_of(*size),
            DimIndex::Window { .. } | DimIndex::Gather(_) => true,
            DimIndex::At(_)
            | DimIndex::Slice {
                start: Index::Const(_), ..
            } => false,
        }),
        Step::Transpose(_)
        | Step::Reshape(_)
        | Step::Bitcast { .. }
        | Step::Im2Col { .. }
        | Step::ExpandLeadingBatch(_)
        | Step::ExtractAlias { .. }
        | Step::Unswizzle(_)
        | Step::Untile(_) => false,
    }
}

/// What a view takes of one dimension of its allocation.
#[derive(Clone, Copy, PartialEq)]
struct Part {
    /// The least and the greatest position at which it may begin, and what the distances are a multiple of.
    lo: u64,
    hi: u64,
    step: u64,
    size: u64,
    stride: u64,
    /// The dimension is gone behind it.
    dropped: bool,
}

impl Part {
    fn of(kernel: &Kernel, index: &DimIndex, extent: u64) -> Option<Part> {
        let (start, size, stride, dropped) = match index {
            DimIndex::At(i) => (*i, 1, 1, true),
            DimIndex::Slice { start, size, stride } => (*start, *size, *stride, false),
            DimIndex::Window { .. } | DimIndex::Gather(_) => return None,
        };
        let clamp = |x: i64| (x.max(0) as u64).min(extent.saturating_sub(1));
        let (lo, hi, step) = match start {
            Index::Const(c) => (clamp(c), clamp(c), 1),
            Index::Value(v) => {
                let facts = kernel.facts(v);
                let (lo, hi) = facts.bounds_i64();
                let (lo, hi) = (clamp(lo), clamp(hi.max(lo)));
                // From the least multiple on.
                let step = facts.divisor.max(1);
                (lo.next_multiple_of(step).min(hi), hi, step)
            }
        };
        Some(Part {
            lo,
            hi,
            step,
            size,
            stride,
            dropped,
        })
    }

    /// One behind the last position that it may take.
    fn end(&self) -> u64 {
        self.hi + self.size.saturating_sub(1) * self.stride + 1
    }
    fn is_fixed(&self) -> bool {
        self.lo == self.hi
    }
    /// Whether it begins at a multiple of its size.
    fn is_aligned(&self) -> bool {
        let size = self.size.max(1);
        self.stride == 1 && (if self.is_fixed() { self.lo } else { self.step }).is_multiple_of(size)
    }
    /// How many there are of [`Part::starts`].
    fn ways(&self) -> u64 {
        (self.hi - self.lo) / self.step + 1
    }
    fn starts(&self) -> impl Iterator<Item = u64> + use<> {
        (self.lo..=self.hi).step_by(self.step as usize)
    }
}

/// What a view takes of its allocation, dimension by dimension, and the steps that come behind that.
fn parts<'a>(kernel: &Kernel, view: &'a RefUse, shape: &[u64]) -> Option<(Vec<Part>, &'a [Step])> {
    let (dims, rest): (Vec<DimIndex>, &[Step]) = match view.steps.split_first() {
        Some((Step::Index(dims), rest)) => (dims.to_vec(), rest),
        _ => (shape.iter().map(|&n| DimIndex::all(n)).collect(), &view.steps),
    };
    let parts: Option<Vec<Part>> = dims.iter().zip(shape).map(|(d, &n)| Part::of(kernel, d, n)).collect();
    parts
        .filter(|parts| parts.len() == shape.len())
        .map(|parts| (parts, rest))
}

/// Whether what is at one position of a dimension shares no byte with what is at another.
fn has_own_bytes(data: &AllocData, dim: usize) -> bool {
    let Elem::Data(dtype) = data.elem() else { return true };
    let is_tiled = matches!(&data.kind, AllocKind::Smem { transforms: Some(t), .. } if !t.tiling.is_empty());
    let inner: u64 = data.shape[dim + 1..].iter().product();
    dtype.bits() >= 8 || !is_tiled && (inner * u64::from(dtype.bits())).is_multiple_of(8)
}

/// The bits of elements that share no byte.
fn whole_bytes(elem: Elem) -> Option<u32> {
    match elem {
        Elem::Data(DType::Bool) => Some(8),
        Elem::Data(dtype) => Some(dtype.bits()).filter(|bits| *bits >= 8),
        Elem::Barrier | Elem::Semaphore => None,
    }
}

fn overlap(kernel: &Kernel, plain: &SecondaryMap<Alloc, Option<u32>>, x: &Data, y: &Data) -> Overlap {
    let data = &kernel.allocs[x.view.alloc];
    if x.view.place != y.view.place || whole_bytes(data.elem()).is_none() {
        return Overlap::Anywhere;
    }
    if x.view.alloc != y.view.alloc {
        // Allocations that share bytes.
        let bytes = |x: &Data| touched_bytes(kernel, plain, x);
        let both = || Some(compare(&bytes(x)?, &bytes(y)?));
        return both().unwrap_or(Overlap::Anywhere);
    }
    let shape = &data.shape;
    let (Some((mut a, rest_a)), Some((mut b, rest_b))) = (parts(kernel, &x.view, shape), parts(kernel, &y.view, shape))
    else {
        return Overlap::Anywhere;
    };
    for (p, q) in a.iter_mut().zip(&mut b) {
        if p.size == 0 || q.size == 0 || p.end() <= q.lo || q.end() <= p.lo {
            return Overlap::Nowhere;
        }
        // One of the two is all that the other may be, or they are disjoint.
        if p.size == q.size && p.is_aligned() && q.is_aligned() {
            for part in [p, q] {
                (part.lo, part.hi, part.step) = (0, 0, 1);
            }
        }
    }
    if x.holder == Holder::All || y.holder == Holder::All {
        return Overlap::Anywhere;
    }
    // The same elements, in the same order, wherever they are.
    let elements: u64 = a.iter().map(|p| p.size).product();
    if a == b && a.iter().all(Part::is_fixed) && rest_a == rest_b && elements <= MAX_ELEMENTS {
        let (a, b) = (x.holders(elements), y.holders(elements));
        return worst((0..elements).filter_map(|at| Some(a(at)?.overlap(b(at)?))));
    }
    let (Some(a), Some(b)) = (touched(x, &a, rest_a, shape), touched(y, &b, rest_b, shape)) else {
        return Overlap::Anywhere;
    };
    compare(&a, &b)
}

/// The worst over all elements; stops where none can be worse.
fn worst(overlaps: impl Iterator<Item = Overlap>) -> Overlap {
    let mut worst = Overlap::Nowhere;
    for overlap in overlaps {
        worst = worst.max(overlap);
        if worst == Overlap::Anywhere {
            break;
        }
    }
    worst
}

/// What touches an element: a lane, or several.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Who {
    Lane(u8),
    Issuer,
    /// Some of a warp.
    OfWarp(u8),
    Several,
}

impl Who {
    fn warp(self) -> Option<u8> {
        match self {
            Who::Lane(lane) => Some(lane / 32),
            Who::Issuer => Some(0),
            Who::OfWarp(warp) => Some(warp),
            Who::Several => None,
        }
    }
    fn and(self, other: Who) -> Who {
        match (self.warp(), other.warp()) {
            _ if self == other => self,
            (Some(a), Some(b)) if a == b => Who::OfWarp(a),
            _ => Who::Several,
        }
    }
    fn overlap(self, other: Who) -> Overlap {
        match (self, other) {
            (Who::Lane(a), Who::Lane(b)) if a == b => Overlap::Lane,
            (Who::Issuer, Who::Issuer) => Overlap::Lane,
            _ if self.warp().is_some() && self.warp() == other.warp() => Overlap::Warp,
            _ => Overlap::Anywhere,
        }
    }
}

/// The positions that are touched, in ascending order, and by which lanes.
type Touched = Vec<(u64, Who)>;

fn touched(x: &Data, parts: &[Part], rest: &[Step], shape: &[u64]) -> Option<Touched> {
    let elements: u64 = parts.iter().map(|p| p.size).product();
    let ways = parts.iter().map(Part::ways).fold(1, u64::saturating_mul);
    if elements.saturating_mul(ways) > MAX_ELEMENTS {
        return None;
    }
    let holders = x.holders(elements);
    let mut out: Touched = vec![];
    let mut starts: Vec<Vec<u64>> = vec![vec![]];
    for part in parts {
        starts = starts
            .iter()
            .flat_map(|before| part.starts().map(move |s| [before.as_slice(), &[s]].concat()))
            .collect();
    }
    for start in starts {
        let positions = positions(parts, &start, rest, shape)?;
        let pairs = positions.into_iter().zip(0..);
        out.extend(pairs.filter_map(|(at, i)| Some((at, holders(i)?))));
    }
    out.sort_unstable_by_key(|(at, _)| *at);
    out.dedup_by(|(at, who), (kept, by)| {
        let same = at == kept;
        if same {
            *by = by.and(*who);
        }
        same
    });
    Some(out)
}

/// The bytes of shared memory that are touched.
fn touched_bytes(kernel: &Kernel, plain: &SecondaryMap<Alloc, Option<u32>>, x: &Data) -> Option<Touched> {
    let data = &kernel.allocs[x.view.alloc];
    let start = u64::from(plain[x.view.alloc].filter(|_| x.view.place == Place::Here)?);
    let bytes = u64::from(whole_bytes(data.elem())?) / 8;
    let (parts, rest) = parts(kernel, &x.view, &data.shape)?;
    let touched = touched(x, &parts, rest, &data.shape)?;
    let each = |(at, who): &(u64, Who)| {
        let (first, who) = (start + at * bytes, *who);
        (first..first + bytes).map(move |byte| (byte, who))
    };
    Some(touched.iter().flat_map(each).collect())
}

/// The positions in the allocation, row-major, of a view's elements, in the order of their indices.
fn positions(parts: &[Part], start: &[u64], rest: &[Step], shape: &[u64]) -> Option<Vec<u64>> {
    let mut at = vec![0];
    for ((part, &first), &extent) in parts.iter().zip(start).zip(shape) {
        at = at
            .iter()
            .flat_map(|p| (0..part.size).map(move |i| p * extent + first + i * part.stride))
            .collect();
    }
    let mut extents: Vec<u64> = parts.iter().filter(|p| !p.dropped).map(|p| p.size).collect();
    for step in rest {
        match step {
            Step::Transpose(perm) => {
                let strides: Vec<u64> = (0..extents.len()).map(|d| extents[d + 1..].iter().product()).collect();
                let mut from = vec![0];
                for &d in perm {
                    let (n, stride) = (*extents.get(d as usize)?, strides[d as usize]);
                    from = from.iter().flat_map(|p| (0..n).map(move |i| p + i * stride)).collect();
                }
                at = from.into_iter().map(|p| at[p as usize]).collect();
                extents = perm.iter().map(|&d| extents[d as usize]).collect();
            }
            Step::Reshape(to) => extents = to.to_vec(),
            Step::Index(_)
            | Step::Bitcast { .. }
            | Step::Im2Col { .. }
            | Step::ExpandLeadingBatch(_)
            | Step::ExtractAlias { .. }
            | Step::Unswizzle(_)
            | Step::Untile(_) => return None,
        }
    }
    Some(at)
}

fn compare(a: &Touched, b: &Touched) -> Overlap {
    let mut a = a.iter().peekable();
    worst(b.iter().filter_map(|(at, who)| {
        while a.next_if(|(before, _)| before < at).is_some() {}
        a.next_if(|(same, _)| same == at).map(|(_, other)| other.overlap(*who))
    }))
}
