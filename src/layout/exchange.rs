//! Ops for which any thread may need what any other has: what they keep in scratch, and how they go about it.
use super::movement::travel_type;
use super::register_layout::RegisterLayout;
use super::sorting::SortPlan;
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
    if let OpKind::Sort { keys, .. } = kind
        && elements(keys[0]) > 0
    {
        return SortPlan::of_op(kernel, op).map_or(0, |plan| plan.bytes);
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

/// How an array is stored to scratch from which threads take elements.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TakePlan {
    /// So many slots of all threads at a time; none: all elements, row-major.
    pub slots: Option<u32>,
    pub bytes: u64,
}

impl TakePlan {
    /// Of an array of this layout, in at most about so many bytes: those of one slot if need be.
    pub fn of(dtype: DType, layout: &RegisterLayout, budget: u64) -> TakePlan {
        let whole = bytes_of(dtype, layout.shape().iter().product());
        let slot = bytes_of(dtype, layout.group().threads().into());
        let slots = (budget / slot).clamp(1, layout.slots().into());
        match slots * slot < whole && whole > budget {
            true => TakePlan {
                slots: Some(slots as u32),
                bytes: slots * slot,
            },
            false => TakePlan {
                slots: None,
                bytes: whole,
            },
        }
    }
}

/// Threads of a group, at most.
const THREADS: u64 = 128;

/// How updates that may be of one place are stored there in order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PutOrder {
    /// Their places are distinct.
    Distinct,
    /// Any order gives the same: atomic updates.
    Any,
    /// The last one stays: updates claim their place, the greatest number gets it.
    Last,
    /// In rounds: of those that are left, the least number at each place is next.
    Rounds,
}

/// How `put` is done, and what it keeps in scratch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PutPlan {
    pub order: PutOrder,
    /// What the elements are meanwhile.
    pub element: DType,
    /// Where a word for each place begins, with the number of the update that claims it.
    pub claims: u64,
    /// Where a flag is: updates are left.
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

/// How a running reduction of longer runs goes about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunningPlan {
    pub runs: Runs,
    /// What the elements are meanwhile.
    pub element: DType,
    /// Where the warps of a unit leave their totals.
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
