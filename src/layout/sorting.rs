//! How sorts go about it: what is compared, which threads take a run, and where its elements are meanwhile.
//!
//! A run that fits stays in registers. Its threads have any of its elements each when they begin ([`Lying::from`]: as memory is best
//! read) and consecutive ones when they are done ([`Lying::to`]). Where all threads of a unit are in one warp nothing passes
//! through shared memory. What is longer, or too much for registers, is sorted in scratch.
//!
//! Where only a few of the first are wanted every thread keeps as many of its own, in order; then threads merge theirs.
use super::digits::{Chain, Digit};
use super::exchange::Runs;
use super::infer::group_of;
use super::register_layout::{Axis, Group, Place, RegisterLayout};
use crate::dtype::DType;
use crate::kernel_ir::{Kernel, Op, OpKind, num_elements};
use smallvec::smallvec;

/// Words of elements that a thread sorts in registers, at most.
const MOST_WORDS: u64 = 64;
/// Elements of a run in a thread, at most: a network of more is long code.
const MOST_ELEMENTS: u64 = 32;
/// The same at a time, where runs lie in scratch: beside them is a place for what threads have.
const MOST_TURNED: u64 = 32;
/// Elements of a run in a thread, at least, where it has so many.
const LEAST_ELEMENTS: u64 = 8;
/// Words that a thread keeps, at most, where a few of the first are wanted.
const MOST_KEPT: u64 = 64;

/// A word of what is sorted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Part {
    /// A key by itself, u32 or u64.
    Key { key: usize, dtype: DType },
    /// A key of so few bits that the index fits below it.
    KeyAndIndex { key: usize, dtype: DType, index_bits: u32 },
    /// From where the element came, u32.
    Index,
}

impl Part {
    pub fn dtype(&self) -> DType {
        match *self {
            Part::Key { dtype, .. } | Part::KeyAndIndex { dtype, .. } => dtype,
            Part::Index => DType::U32,
        }
    }
}

/// The parts of an element, the most significant first.
fn parts(keys: &[DType], length: u64, indexed: bool) -> Vec<Part> {
    let wide = |bits: u32| if bits > 32 { DType::U64 } else { DType::U32 };
    let index_bits = length.next_power_of_two().trailing_zeros().max(1);
    let mut parts = vec![];
    for (key, dtype) in keys.iter().enumerate() {
        let is_last = key + 1 == keys.len();
        let both = dtype.bits() + index_bits;
        parts.push(if indexed && is_last && both <= 64 {
            Part::KeyAndIndex {
                key,
                dtype: wide(both),
                // Words of their own, where there are two: nothing is shifted.
                index_bits: if both > 32 && dtype.bits() <= 32 {
                    32
                } else {
                    index_bits
                },
            }
        } else {
            Part::Key {
                key,
                dtype: wide(dtype.bits()),
            }
        });
    }
    if indexed && !parts.iter().any(|p| matches!(p, Part::KeyAndIndex { .. })) {
        parts.push(Part::Index);
    }
    parts
}

fn words(parts: &[Part]) -> u64 {
    parts.iter().map(|p| u64::from(p.dtype().bits() / 32)).sum()
}

/// Where elements are that are sorted in registers. In both layouts slots of one run follow each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lying {
    pub from: RegisterLayout,
    pub to: RegisterLayout,
    pub axis: usize,
    /// Runs of a thread, one after the other.
    pub rounds: u64,
    /// Whether memory is better read in the layout `from`.
    pub pulls: bool,
}

/// How a few of the first are kept. Where the threads of a run are a part of a warp each of them ends with all; else each warp of
/// a run ends with the lists of all, merged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kept {
    /// How many are wanted.
    pub first: u64,
    /// How many are kept: a power of two.
    pub size: u64,
    /// The warps of a run.
    pub lists: u64,
    /// In the end: elements of a lane, and lanes with other elements.
    pub each: u64,
    pub lanes: u64,
    /// Bytes of a warp in scratch.
    pub area: u64,
}

impl Kept {
    fn of(first: u64, threads: u64, parts: u64) -> Kept {
        let size = first.next_power_of_two();
        let (lists, each, lanes, area) = match threads < 32 {
            true => (1, size, 1, 0),
            false => {
                let lists = threads / 32;
                let each = (size * lists / 32).max(1);
                (lists, each, size * lists / each, size.max(32) * 8 * parts)
            }
        };
        Kept {
            first,
            size,
            lists,
            each,
            lanes,
            area,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Way {
    /// A bitonic network in registers.
    Registers(Lying),
    /// The first few of each warp, then of all warps.
    Kept { lying: Lying, kept: Kept },
    /// A bitonic network over runs in scratch, chunk by chunk.
    Scratch,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SortPlan {
    pub way: Way,
    pub runs: Runs,
    /// What is compared, and where its elements lie in scratch.
    pub parts: Vec<(Part, u64)>,
    /// Where threads exchange elements.
    pub exchange: u64,
    pub bytes: u64,
}

/// What is sorted.
#[derive(Clone, Copy, Debug)]
pub struct Sorted<'a> {
    pub keys: &'a [DType],
    pub shape: &'a [u64],
    pub axis: usize,
    /// Whether elements carry their index, by which equal keys are ordered.
    pub indexed: bool,
    /// How many are wanted.
    pub first: u64,
    pub group: Group,
}

impl SortPlan {
    /// Of a [`OpKind::Sort`] with elements.
    pub fn of_op(kernel: &Kernel, op: Op) -> Option<SortPlan> {
        let OpKind::Sort {
            keys,
            axis,
            indexed,
            first,
        } = &kernel.ops[op].kind
        else {
            return None;
        };
        let dtypes: Vec<DType> = keys.iter().map(|k| kernel.ty(*k).dtype()).collect();
        let data = &kernel.values[keys[0]];
        let shape = data.ty.shape();
        let sorted = Sorted {
            keys: &dtypes,
            shape,
            axis: *axis as usize,
            indexed: *indexed,
            first: *first,
            group: group_of(data.group),
        };
        (!shape.contains(&0)).then(|| SortPlan::of(&sorted))
    }

    pub fn of(sorted: &Sorted<'_>) -> SortPlan {
        let Sorted { shape, axis, first, .. } = *sorted;
        let length = shape[axis];
        let group = u64::from(sorted.group.threads());
        let parts = parts(sorted.keys, length, sorted.indexed);
        let words = words(&parts);
        let kept = first.next_power_of_two();
        let few = 2 * kept <= length && kept * words <= MOST_KEPT;
        let most = match few {
            true => u64::MAX,
            false => 1 << (MOST_WORDS / words).clamp(2, MOST_ELEMENTS).ilog2(),
        };
        let mut runs = runs(shape, axis, if few { kept } else { LEAST_ELEMENTS }, most, group);
        let way = if few {
            let each = length.div_ceil(runs.threads);
            let kept = Kept::of(first, runs.threads, parts.len() as u64);
            let lying = Lying::of(sorted, &runs, each, Some(&kept));
            Way::Kept { lying, kept }
        } else {
            let lying = (runs.chunk() >= length).then(|| Lying::of(sorted, &runs, runs.each, None));
            match lying.filter(|lying| lying.rounds * runs.each * words <= MOST_WORDS) {
                Some(lying) => Way::Registers(lying),
                None => {
                    let most = 1 << (MOST_TURNED / words).clamp(2, MOST_ELEMENTS).ilog2();
                    runs = self::runs(shape, axis, LEAST_ELEMENTS, most, group);
                    Way::Scratch
                }
            }
        };
        let mut at = 0;
        let mut placed = vec![];
        for part in parts {
            placed.push((part, at));
            if way == Way::Scratch {
                at += (num_elements(shape) * u64::from(part.dtype().bits() / 8)).next_multiple_of(8);
            }
        }
        let exchanged = match &way {
            Way::Kept { kept, .. } => group / 32 * kept.area,
            Way::Registers(_) if runs.threads <= 32 => 0,
            Way::Registers(_) | Way::Scratch => group * runs.each * 4 * words,
        };
        SortPlan {
            way,
            runs,
            parts: placed,
            exchange: at,
            bytes: at + exchanged,
        }
    }
}

/// Units as small as keeps all of them busy, threads with `least` elements or more and `most` or fewer.
fn runs(shape: &[u64], axis: usize, least: u64, most: u64, group: u64) -> Runs {
    let length = shape[axis];
    let count = num_elements(shape) / length;
    let padded = length.next_power_of_two();
    let busy = (group >> count.ilog2().min(group.ilog2())).max(1);
    let threads = busy
        .min((padded / least.min(most)).max(1))
        .max((padded / most.min(padded)).min(group));
    Runs {
        length,
        stride: shape[axis + 1..].iter().product(),
        count,
        threads,
        each: (padded / threads).min(most),
        units: group / threads,
    }
}

impl Lying {
    /// `each`: elements of a run in a thread. `kept`: what is left of the whole run in the end.
    fn of(sorted: &Sorted<'_>, runs: &Runs, each: u64, kept: Option<&Kept>) -> Lying {
        let Sorted { shape, axis, .. } = *sorted;
        let bytes = u64::from(sorted.keys[0].bits().max(8) / 8);
        let length = shape[axis];
        // Vectors of 16 bytes where runs are made of them.
        let most = (16 / bytes).min(1 << length.trailing_zeros());
        let vec = 1 << most.ilog2().min(each.ilog2());
        let each = each.next_multiple_of(vec);
        let threads = Digit::new(runs.threads, Place::Thread(0));
        let own: Chain<Place> = smallvec![
            Digit::new(vec, Place::Slot(1)),
            threads,
            Digit::new(each / vec, Place::Slot(vec as u32))
        ];
        let from = Lying::around(sorted, shape, runs, own, each);
        let mut to_shape = shape.to_vec();
        to_shape[axis] = sorted.first.min(length);
        let (left, lanes) = kept.map_or((each, runs.threads), |kept| (kept.each, kept.lanes));
        let own: Chain<Place> = smallvec![Digit::new(left, Place::Slot(1)), Digit::new(lanes, Place::Thread(0))];
        let to = Lying::around(sorted, &to_shape, runs, own, left);
        Lying {
            axis,
            rounds: u64::from(from.slots()) / each,
            from,
            to,
            pulls: axis + 1 == shape.len() && runs.threads * vec * bytes >= 128,
        }
    }

    /// The layout in which a run has this chain, `each` slots, and runs are dealt to units: near ones to near units.
    fn around(sorted: &Sorted<'_>, shape: &[u64], runs: &Runs, own: Chain<Place>, each: u64) -> RegisterLayout {
        let axis = sorted.axis;
        let mut axes = vec![Axis {
            first: axis,
            rank: 1,
            size: shape[axis],
            chain: own,
        }];
        let mut bit = runs.threads.trailing_zeros() as u8;
        let mut stride = each;
        for dims in [axis + 1..shape.len(), 0..axis] {
            if dims.is_empty() {
                continue;
            }
            let size: u64 = shape[dims.clone()].iter().product();
            let bits = sorted.group.thread_bits() - bit;
            let units = bits.min(size.next_power_of_two().trailing_zeros() as u8);
            let rounds = size.div_ceil(1 << units);
            let chain = smallvec![
                Digit::new(1 << units, Place::Thread(bit)),
                Digit::new(rounds, Place::Slot(stride as u32))
            ];
            bit += units;
            stride *= rounds;
            axes.push(Axis {
                first: dims.start,
                rank: dims.len(),
                size,
                chain,
            });
        }
        RegisterLayout::from_axes(shape, sorted.group, axes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(keys: &[DType], shape: &[u64], axis: usize, indexed: bool, first: u64) -> SortPlan {
        SortPlan::of(&Sorted {
            keys,
            shape,
            axis,
            indexed,
            first,
            group: Group::Warpgroup,
        })
    }

    fn whole(keys: &[DType], shape: &[u64], axis: usize, indexed: bool) -> SortPlan {
        plan(keys, shape, axis, indexed, shape[axis])
    }

    #[test]
    fn as_many_rows_as_warps_stay_in_their_registers() {
        let plan = whole(&[DType::U32], &[4, 1024], 1, false);
        let Way::Registers(lying) = &plan.way else {
            panic!("{plan:?}")
        };
        assert_eq!((plan.runs.threads, plan.runs.each, plan.bytes), (32, 32, 0));
        assert!(lying.pulls);
        assert_eq!(lying.from.element(33, 5).unwrap().as_slice(), [1, 133]);
        assert_eq!(lying.to.element(33, 5).unwrap().as_slice(), [1, 37]);
    }

    #[test]
    fn one_row_is_of_all_warps() {
        let plan = whole(&[DType::U32], &[1024], 0, true);
        assert!(matches!(plan.way, Way::Registers(_)));
        // Keys and indices of eight elements a thread pass between warps.
        assert_eq!((plan.runs.threads, plan.runs.each, plan.bytes), (128, 8, 128 * 8 * 8));
        assert_eq!(plan.parts[0].0.dtype(), DType::U64);
    }

    #[test]
    fn what_is_too_much_for_registers_lies_in_scratch() {
        for shape in [[1, 16384], [64, 1024]] {
            let plan = whole(&[DType::U32], &shape, 1, false);
            assert_eq!(plan.way, Way::Scratch);
            assert!(plan.bytes >= 4 * shape[0] * shape[1]);
        }
    }

    #[test]
    fn a_few_of_a_long_row() {
        let plan = plan(&[DType::U32], &[1, 4096], 1, true, 8);
        let Way::Kept { lying, kept } = &plan.way else {
            panic!("{plan:?}")
        };
        // Four warps leave eight each; a lane has one of all of them in the end.
        assert_eq!((kept.size, kept.lists, kept.each, kept.lanes), (8, 4, 1, 32));
        assert_eq!(plan.bytes, 4 * 32 * 8);
        assert_eq!(lying.from.slots(), 32);
        assert_eq!(lying.to.element(7, 0).unwrap().as_slice(), [0, 7]);
        assert_eq!(lying.to.element(8, 0), None);
    }

    /// Whatever the shape is: layouts have every element of each run in its threads, and no slot of one run in another's.
    #[test]
    fn layouts_hold_whole_runs() {
        let sizes = [1u64, 2, 3, 7, 8, 33, 100];
        for shape in sizes.into_iter().flat_map(|a| sizes.map(|b| [a, b, 5])) {
            for axis in (0..3).filter(|axis| shape[*axis] > 1) {
                for first in [shape[axis], 1.max(shape[axis] / 4)] {
                    let plan = plan(&[DType::U16], &shape, axis, false, first);
                    let (Way::Registers(lying) | Way::Kept { lying, .. }) = &plan.way else {
                        continue;
                    };
                    check(&plan, lying, axis);
                }
            }
        }
    }

    fn check(plan: &SortPlan, lying: &Lying, axis: usize) {
        for layout in [&lying.from, &lying.to] {
            let each = u64::from(layout.slots()) / lying.rounds;
            let mut unit_of = std::collections::BTreeMap::new();
            let mut elements = std::collections::BTreeSet::new();
            for thread in 0..128 {
                for slot in 0..layout.slots() {
                    let Some(index) = layout.element(thread, slot) else {
                        continue;
                    };
                    elements.insert(index.to_vec());
                    let mut run = index.to_vec();
                    run.remove(axis);
                    let copies = u32::from(layout.replicated_bits()) & !(plan.runs.threads as u32 - 1);
                    let unit = (thread & !copies) / plan.runs.threads as u32;
                    let place = (unit, u64::from(slot) / each);
                    assert_eq!(*unit_of.entry(run).or_insert(place), place, "{layout}");
                }
            }
            assert_eq!(elements.len() as u64, num_elements(layout.shape()), "{layout}");
        }
    }
}
