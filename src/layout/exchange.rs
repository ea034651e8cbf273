//! Ops for which any thread may need what any other has: what they keep in scratch, and how they go about it.
use super::movement::travel_type;
use crate::dtype::DType;
use crate::kernel_ir::op::is_short_run;
use crate::kernel_ir::{Kernel, Op, OpKind, PutOp, Value, num_elements};

/// The bytes of an array's elements, each in whole bytes.
fn bytes_of(dtype: DType, elements: u64) -> u64 {
    elements * u64::from(travel_type(dtype).bits().max(8) / 8)
}

/// The bytes that an op passes through scratch.
pub fn bytes(kernel: &Kernel, op: Op) -> u64 {
    let elements = |v: Value| num_elements(kernel.ty(v).shape());
    let kind = &kernel.ops[op].kind;
    if let OpKind::Take { a, at, .. } = kind
        && elements(*at) > 0
    {
        return bytes_of(kernel.ty(*a).dtype(), elements(*a));
    }
    if let OpKind::Put {
        op,
        a,
        update,
        distinct,
        ..
    } = kind
        && elements(*update) > 0
    {
        return PutPlan::of(*op, kernel.ty(*a).dtype(), elements(*a), *distinct).bytes;
    }
    if let OpKind::Sort { keys, axis } = kind
        && elements(keys[0]) > 0
    {
        let dtypes: Vec<DType> = keys.iter().map(|k| kernel.ty(*k).dtype()).collect();
        // Whether somebody asks for the index is seen by lowering.
        let plan = |indexed| SortPlan::of(&dtypes, kernel.ty(keys[0]).shape(), *axis as usize, indexed, THREADS);
        return plan(true).bytes.max(plan(false).bytes);
    }
    if let OpKind::Cumulative { a, axis, .. } = kind
        && elements(*a) > 0
        && !is_short_run(kernel.ty(*a).shape(), *axis as usize)
    {
        let ty = kernel.ty(*a);
        return RunningPlan::of(ty.dtype(), ty.shape(), *axis as usize, THREADS).bytes;
    }
    0
}

/// Threads of a group, at most.
const THREADS: u64 = 128;

/// How updates that may meet at one place are put there in order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PutOrder {
    /// They do not meet.
    Distinct,
    /// Any order gives the same: atomic updates.
    Any,
    /// The last one stays: updates claim their place, the greatest number gets it.
    Last,
    /// In rounds: of those that are left, the least number at each place is next.
    Rounds,
}

/// How `put` goes about it, and what it keeps in scratch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PutPlan {
    pub order: PutOrder,
    /// What the elements are meanwhile.
    pub element: DType,
    /// Where a word for each place begins, with the number of the update that claims it.
    pub claims: u64,
    /// Where a word is that tells whether updates are left.
    pub left: u64,
    pub bytes: u64,
}

impl PutPlan {
    /// `elements`: of the array that is updated.
    pub fn of(op: PutOp, dtype: DType, elements: u64, distinct: bool) -> PutPlan {
        let element = match op {
            PutOp::Set => dtype,
            PutOp::Add | PutOp::Mul | PutOp::Max | PutOp::Min => match dtype {
                d if d.bits() >= 32 => d,
                d if d.is_float() => DType::F32,
                d if d.is_signed_int() => DType::I32,
                _ => DType::U32,
            },
        };
        let order = match op {
            _ if distinct => PutOrder::Distinct,
            PutOp::Set => PutOrder::Last,
            PutOp::Add | PutOp::Max | PutOp::Min if element.is_int() => PutOrder::Any,
            PutOp::Add | PutOp::Mul | PutOp::Max | PutOp::Min => PutOrder::Rounds,
        };
        let claims = bytes_of(element, elements).next_multiple_of(8);
        let (words, flag) = match order {
            PutOrder::Distinct | PutOrder::Any => (0, 0),
            PutOrder::Last => (elements, 0),
            PutOrder::Rounds => (elements, 1),
        };
        PutPlan {
            order,
            element,
            claims,
            left: claims + 4 * words,
            bytes: claims + 4 * (words + flag),
        }
    }
}

/// How runs along one dimension of an array that lies row-major in scratch are shared among threads: each run is a unit's of
/// `threads` threads, `each` of its elements in one thread, in chunks of `threads · each`. Several units work at once.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Runs {
    /// Elements of a run.
    pub length: u64,
    /// Elements between neighbours of a run.
    pub stride: u64,
    /// How many runs there are.
    pub count: u64,
    pub threads: u64,
    pub each: u64,
    /// Units that work at once.
    pub units: u64,
}

impl Runs {
    /// `each`: at most so many elements in a thread; about 8 are best. `group`: threads.
    pub fn of(shape: &[u64], axis: usize, each: u64, group: u64) -> Runs {
        let length = shape[axis];
        let padded = length.max(1).next_power_of_two();
        let best = each.min(8);
        let threads = (padded / best).clamp(1, group);
        Runs {
            length,
            stride: shape[axis + 1..].iter().product(),
            count: num_elements(shape) / length.max(1),
            threads,
            each: (padded / threads).min(each),
            units: group / threads,
        }
    }

    /// Elements of a chunk.
    pub fn chunk(&self) -> u64 {
        self.threads * self.each
    }
    pub fn chunks(&self) -> u64 {
        self.length.div_ceil(self.chunk())
    }
    /// How often all units take a run each.
    pub fn rounds(&self) -> u64 {
        self.count.div_ceil(self.units)
    }
}

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

/// How `sort` goes about it: a bitonic network over runs, of which some comparisons are made in threads, some between lanes, some
/// through scratch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SortPlan {
    pub runs: Runs,
    /// What is compared, the most significant first, and where its elements lie in scratch.
    pub parts: Vec<(Part, u64)>,
    /// Where warps exchange elements.
    pub exchange: u64,
    pub bytes: u64,
}

impl SortPlan {
    /// `keys`: the keys' types. `indexed`: whether elements tell from where they came, which equal keys are ordered by. `group`: threads.
    pub fn of(keys: &[DType], shape: &[u64], axis: usize, indexed: bool, group: u64) -> SortPlan {
        let wide = |bits: u32| if bits > 32 { DType::U64 } else { DType::U32 };
        let index_bits = shape[axis].next_power_of_two().trailing_zeros().max(1);
        let mut parts: Vec<Part> = vec![];
        for (key, dtype) in keys.iter().enumerate() {
            let is_last = key + 1 == keys.len();
            parts.push(if indexed && is_last && dtype.bits() + index_bits <= 64 {
                Part::KeyAndIndex {
                    key,
                    dtype: wide(dtype.bits() + index_bits),
                    index_bits,
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
        let words: u32 = parts.iter().map(|p| p.dtype().bits() / 32).sum();
        let each = match words {
            0..=2 => 16,
            3..=4 => 8,
            5..=8 => 4,
            _ => 2,
        };
        let runs = Runs::of(shape, axis, each, group);
        let mut at = 0;
        let mut placed = vec![];
        for part in parts {
            placed.push((part, at));
            at += (num_elements(shape) * u64::from(part.dtype().bits() / 8)).next_multiple_of(8);
        }
        let exchanged = if runs.threads > 32 {
            group * runs.each * 4 * u64::from(words)
        } else {
            0
        };
        SortPlan {
            runs,
            parts: placed,
            exchange: at,
            bytes: at + exchanged,
        }
    }
}

/// How a running reduction of longer runs goes about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunningPlan {
    pub runs: Runs,
    /// What the elements are meanwhile.
    pub element: DType,
    /// Where the warps of a unit leave what theirs come to.
    pub totals: u64,
    pub bytes: u64,
}

/// What elements of this type are, while they are added up.
pub fn running_element(dtype: DType) -> DType {
    match dtype {
        d if d.bits() >= 32 => d,
        d if d.is_float() => DType::F32,
        d if d.is_signed_int() => DType::I32,
        _ => DType::U32,
    }
}

impl RunningPlan {
    pub fn of(dtype: DType, shape: &[u64], axis: usize, group: u64) -> RunningPlan {
        let element = running_element(dtype);
        let totals = bytes_of(element, num_elements(shape)).next_multiple_of(8);
        RunningPlan {
            runs: Runs::of(shape, axis, 8, group),
            element,
            totals,
            bytes: totals + group / 32 * 8,
        }
    }
}
