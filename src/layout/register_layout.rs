//! Register layouts: which thread of a group holds which element of an array, and in which slot.
//!
//! The logical dimensions of an array are grouped into *axes*: runs of consecutive dimensions flattened row-major,
//! nearly always one dimension each. Each axis is a chain of digits ([`super::digits`]); a digit is a run of bits of the
//! lane or warp index, or a digit of the *slot* number (a slot holds one element of a thread), or [`Place::Constant`]:
//! the array does not vary along it, so one slot stands for all its values (a splat is constant everywhere).
//! * Thread bits that no digit uses are *replicated*: threads that differ only there hold the same elements.
//! * A chain may be longer than its axis (*padding*): positions whose axis index is not below the axis's size hold
//!   nothing. Only the major end of an axis is padded.
//! * Mosaic's tilings are exactly such layouts, one axis per dimension; its WGStrided is a layout of one axis over the
//!   flattened array. Axes are always split into dimensions as far as the digits allow, so `(64, 64)` strided has two
//!   axes, `(64, 48)` one: its lane digit straddles the dimensions.
//!
//! Layouts are kept in normal form (digits merged, axes split), so `==` compares maps, not spellings.
//!
//! **Slots and words.** Slots are numbered 0..[`RegisterLayout::slots`]; in Mosaic's terms slot = register · vector
//! length + position in the vector. Types narrower than 32 bits are packed densely: slot `s` of a `b`-bit type is
//! bits `s·b % 32 ..` of word `s·b / 32`, whatever the layout's vector length is.
use super::digits::{self, Chain, Digit, Pair};
use smallvec::{SmallVec, smallvec};
use std::fmt;
use std::sync::Arc;

/// The threads that hold an array together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Group {
    /// 32 threads; no warp bits.
    Warp,
    /// 128 threads, four warps.
    Warpgroup,
}

pub const LANE_BITS: u8 = 5;

impl Group {
    pub fn threads(self) -> u32 {
        1 << self.thread_bits()
    }
    pub fn thread_bits(self) -> u8 {
        match self {
            Group::Warp => LANE_BITS,
            Group::Warpgroup => LANE_BITS + 2,
        }
    }
}

/// Which index of a thread a term reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Source {
    /// `%laneid`, bits 0..5.
    Lane,
    /// The warp's number in its group, bits 0..2.
    Warp,
}

/// Where a digit of a register layout lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Place {
    /// Bits of the thread number in the group, from bit `.0`: 0..5 the lane, 5..7 the warp. A digit never spans both.
    Thread(u8),
    /// A digit of the slot number, with this stride.
    Slot(u32),
    /// The array is constant along this digit.
    Constant,
}

impl Place {
    pub fn lane(bit: u8) -> Place {
        Place::Thread(bit)
    }
    pub fn warp(bit: u8) -> Place {
        Place::Thread(LANE_BITS + bit)
    }
}

impl digits::Place for Place {
    fn above(self, size: u64) -> Self {
        match self {
            Place::Thread(bit) => Place::Thread(bit + size.trailing_zeros() as u8),
            Place::Slot(stride) => Place::Slot(stride * size as u32),
            Place::Constant => Place::Constant,
        }
    }
    fn cuttable(self, size: u64) -> bool {
        match self {
            Place::Thread(_) => size.is_power_of_two(),
            Place::Slot(_) | Place::Constant => true,
        }
    }
}

/// A run of consecutive logical dimensions and the chain that its flattened index is written in.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Axis {
    /// First logical dimension.
    pub first: usize,
    /// How many dimensions are flattened into this axis; 1 unless a digit straddles dimensions.
    pub rank: usize,
    /// Product of the dimensions' sizes. The chain's extent is at least this.
    pub size: u64,
    pub chain: Chain<Place>,
}

impl Axis {
    pub fn dims(&self) -> std::ops::Range<usize> {
        self.first..self.first + self.rank
    }
    pub fn is_padded(&self) -> bool {
        digits::extent(&self.chain) != self.size
    }
}

pub type Dims = SmallVec<[u64; 4]>;

/// `((source >> lo_bit) & (2^bits − 1)) · stride`: what one thread digit adds to an index (or, elsewhere, an address).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Term {
    pub source: Source,
    pub lo_bit: u8,
    pub bits: u8,
    pub stride: i64,
}

impl Term {
    /// A term for `size = 2^bits` values from thread bit `bit`.
    pub fn of_thread(bit: u8, size: u64, stride: i64) -> Term {
        let (source, lo_bit) = if bit < LANE_BITS {
            (Source::Lane, bit)
        } else {
            (Source::Warp, bit - LANE_BITS)
        };
        Term {
            source,
            lo_bit,
            bits: size.trailing_zeros() as u8,
            stride,
        }
    }
    /// The lowest thread bit that the term reads.
    pub fn thread_bit(&self) -> u8 {
        match self.source {
            Source::Lane => self.lo_bit,
            Source::Warp => self.lo_bit + LANE_BITS,
        }
    }
    /// The term's value for thread `thread` of the group.
    pub fn value(&self, thread: u32) -> i64 {
        i64::from((thread >> self.thread_bit()) & ((1 << self.bits) - 1)) * self.stride
    }
}

/// A register layout of an array of a given shape. See the module's docs for what it means.
///
/// Shared: a kernel has many values and few layouts, and everything that is lowered carries its own.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct RegisterLayout(Arc<Parts>);

#[derive(PartialEq, Eq, Hash)]
struct Parts {
    shape: Dims,
    group: Group,
    axes: SmallVec<[Axis; 3]>,
    slots: u32,
    /// Thread bits that no digit uses.
    replicated: u8,
}

/// How a reduction proceeds over a layout: first over slots, then over lanes, then over warps.
#[derive(Clone, Debug, PartialEq)]
pub struct ReducePlan {
    /// The layout of the result; threads that differ in the reduced bits hold equal results.
    pub result: RegisterLayout,
    /// For each slot of the result, the slots of the operand that are combined into it.
    pub slots: Vec<SmallVec<[u32; 4]>>,
    /// Lane bits to combine over (butterfly shuffles).
    pub lane_bits: u8,
    /// Warp bits to combine over (through shared memory).
    pub warp_bits: u8,
    /// The operand has padding along reduced axes: positions where [`RegisterLayout::valid`] fails must be replaced by
    /// the reduction's identity.
    pub padded: bool,
    /// The operand is constant along this many elements of the reduced axes, which a sum must multiply by.
    pub repeats: u64,
}

/// The digit of size `size` and stride `stride` of a slot's number.
fn slot_digit(slot: u32, stride: u32, size: u64) -> u64 {
    let (above, _) = digits::div_rem(u64::from(slot), u64::from(stride));
    digits::div_rem(above, size).1
}

impl RegisterLayout {
    // ------------------------------------------------------------------------------------------------ construction

    /// Builds a layout from its axes (chains minor digit first). Panics if slot digits do not number the slots exactly
    /// once or a thread bit is used twice: layouts are built by this module from checked parts.
    ///
    /// An array without elements has no slots, and one layout: digits of size 0 could not be distinguished.
    pub fn from_axes(shape: &[u64], group: Group, axes: impl IntoIterator<Item = Axis>) -> RegisterLayout {
        let mut split_axes: SmallVec<[Axis; 3]> = SmallVec::new();
        match shape.iter().position(|n| *n == 0) {
            Some(empty) => split_axes.extend(shape.iter().enumerate().map(|(i, &n)| {
                let place = if i == empty { Place::Slot(1) } else { Place::Constant };
                Axis {
                    first: i,
                    rank: 1,
                    size: n,
                    chain: smallvec![Digit::new(n, place)],
                }
            })),
            None => {
                for axis in axes {
                    split_axis(shape, axis, &mut split_axes);
                }
            }
        }
        split_axes.sort_by_key(|a| a.first);
        let mut used = 0u8;
        let mut slot_digits: SmallVec<[(u32, u64); 8]> = SmallVec::new();
        for d in split_axes.iter().flat_map(|a| &a.chain) {
            match d.place {
                Place::Thread(bit) => {
                    let mask = ((d.size - 1) << bit) as u8;
                    assert!(d.size.is_power_of_two() && used & mask == 0, "thread bits used twice");
                    used |= mask;
                }
                Place::Slot(stride) => slot_digits.push((stride, d.size)),
                Place::Constant => {}
            }
        }
        slot_digits.sort_unstable();
        let mut slots = 1u32;
        for (stride, size) in slot_digits {
            assert_eq!(stride, slots, "slot digits must number the slots without gaps");
            // What has more than can be counted is refused by its size.
            slots = slots.saturating_mul(u32::try_from(size).unwrap_or(u32::MAX));
        }
        let all = (1u8 << (group.thread_bits() - 1) << 1).wrapping_sub(1);
        assert_eq!(used & !all, 0, "a warp has no warp bits");
        RegisterLayout(Arc::new(Parts {
            shape: shape.into(),
            group,
            axes: split_axes,
            slots,
            replicated: all & !used,
        }))
    }

    /// Every thread has the one value that all elements share.
    pub fn splat(shape: &[u64], group: Group) -> RegisterLayout {
        let axes = shape.iter().enumerate().map(|(i, &n)| Axis {
            first: i,
            rank: 1,
            size: n,
            chain: smallvec![Digit::new(n, Place::Constant)],
        });
        Self::from_axes(shape, group, axes)
    }

    /// Every thread has every element, slots in row-major order.
    pub fn replicated(shape: &[u64], group: Group) -> RegisterLayout {
        let n: u64 = shape.iter().product();
        let chain = smallvec![Digit::new(n, Place::Slot(1))];
        Self::from_axes(shape, group, flat_axis(shape, chain))
    }

    /// Elements dealt to the threads, one after the other in row-major order: of an op of which each thread has its own.
    pub fn dealt(shape: &[u64], group: Group) -> RegisterLayout {
        RegisterLayout::strided(shape, 1, group)
    }

    /// Mosaic's WGStrided: the flattened array is dealt to the threads in vectors of `vec` elements, round robin:
    /// flat index = (register · threads + thread) · vec + v. Sizes that don't divide are padded at the end.
    pub fn strided(shape: &[u64], vec: u64, group: Group) -> RegisterLayout {
        let n: u64 = shape.iter().product();
        let per_round = u64::from(group.threads()) * vec;
        let mut chain: Chain<Place> = smallvec![Digit::new(vec, Place::Slot(1)), Digit::new(32, Place::lane(0))];
        if group == Group::Warpgroup {
            chain.push(Digit::new(4, Place::warp(0)));
        }
        chain.push(Digit::new(n.div_ceil(per_round), Place::Slot(vec as u32)));
        Self::from_axes(shape, group, flat_axis(shape, chain))
    }

    /// The strided layout that Mosaic takes by default (vectors of up to 64 bits), padded where
    /// Mosaic gives up.
    pub fn strided_default(shape: &[u64], bits: u32, group: Group) -> RegisterLayout {
        let n: u64 = shape.iter().product();
        let threads = u64::from(group.threads());
        let mut vec = u64::from(64 / bits.max(1)).clamp(1, 64);
        while vec > 1 && !n.is_multiple_of(vec * threads) {
            vec /= 2;
        }
        Self::strided(shape, vec, group)
    }

    // ----------------------------------------------------------------------------------------------------- queries

    pub fn shape(&self) -> &[u64] {
        &self.0.shape
    }
    pub fn rank(&self) -> usize {
        self.0.shape.len()
    }
    pub fn group(&self) -> Group {
        self.0.group
    }
    pub fn axes(&self) -> &[Axis] {
        &self.0.axes
    }
    /// Elements per thread, padding included.
    pub fn slots(&self) -> u32 {
        self.0.slots
    }
    /// 32-bit words per thread for a type of `bits` bits (densely packed).
    pub fn words(&self, bits: u32) -> u32 {
        // As many slots as there can be, of 64 bits, are below 2^32 words.
        (u64::from(self.0.slots) * u64::from(bits))
            .div_ceil(32)
            .min(u32::MAX.into()) as u32
    }
    /// How many slots share a 32-bit word; 1 for 32-bit and wider types.
    pub fn slots_per_word(bits: u32) -> u32 {
        (32 / bits).max(1)
    }
    /// Thread bits (0..5 lane, 5..7 warp) along which threads hold copies.
    pub fn replicated_bits(&self) -> u8 {
        self.0.replicated
    }
    /// Whether all elements along some dimension, or part of one, are one: those that a broadcast made.
    pub fn is_constant_somewhere(&self) -> bool {
        let mut digits = self.0.axes.iter().flat_map(|a| &a.chain);
        digits.any(|d| d.place == Place::Constant && d.size > 1)
    }

    /// How many threads hold each element.
    pub fn replication(&self) -> u32 {
        1 << self.0.replicated.count_ones()
    }
    pub fn is_splat(&self) -> bool {
        self.0
            .axes
            .iter()
            .flat_map(|a| &a.chain)
            .all(|d| d.place == Place::Constant)
    }
    /// Some positions (thread, slot) hold nothing.
    pub fn is_padded(&self) -> bool {
        self.0.axes.iter().any(Axis::is_padded)
    }
    /// The axis that dimension `dim` belongs to.
    pub fn axis_of(&self, dim: usize) -> &Axis {
        self.0
            .axes
            .iter()
            .find(|a| a.dims().contains(&dim))
            .expect("every dimension belongs to an axis")
    }
    /// Whether a digit straddles `dim` and another dimension.
    pub fn straddles(&self, dim: usize) -> bool {
        self.axis_of(dim).rank > 1
    }

    /// What a thread's number adds to the index along `dim`; `None` if the dimension shares its axis with others (then
    /// use [`RegisterLayout::axis_terms`] and divide).
    pub fn index_terms(&self, dim: usize) -> Option<Vec<Term>> {
        let axis = self.axis_of(dim);
        (axis.rank == 1).then(|| Self::axis_terms(axis))
    }
    /// What a thread's number adds to the flattened index of an axis.
    pub fn axis_terms(axis: &Axis) -> Vec<Term> {
        let mut terms = Vec::new();
        let mut stride = 1;
        for d in &axis.chain {
            if let Place::Thread(bit) = d.place {
                terms.push(Term::of_thread(bit, d.size, stride));
            }
            stride *= d.size as i64;
        }
        terms
    }
    /// What slot `slot` adds to the flattened index of an axis.
    pub fn axis_offset(axis: &Axis, slot: u32) -> u64 {
        let (mut stride, mut index) = (1, 0);
        for d in &axis.chain {
            if let Place::Slot(s) = d.place {
                index += slot_digit(slot, s, d.size) * stride;
            }
            stride *= d.size;
        }
        index
    }
    /// What slot `slot` adds to the index, per axis (an index vector when no axis straddles).
    pub fn slot_offset(&self, slot: u32) -> Dims {
        self.0.axes.iter().map(|a| Self::axis_offset(a, slot)).collect()
    }
    /// The flattened index along each axis of what thread `thread` holds in slot `slot` (constants at 0); may be padding.
    pub fn axis_indices(&self, thread: u32, slot: u32) -> Dims {
        self.0
            .axes
            .iter()
            .map(|axis| Self::axis_index(axis, thread, slot))
            .collect()
    }
    fn axis_index(axis: &Axis, thread: u32, slot: u32) -> u64 {
        let (mut stride, mut index) = (1, 0);
        for d in &axis.chain {
            let digit = match d.place {
                Place::Thread(bit) => u64::from(thread >> bit) & (d.size - 1),
                Place::Slot(s) => slot_digit(slot, s, d.size),
                Place::Constant => 0,
            };
            index += digit * stride;
            stride *= d.size;
        }
        index
    }
    /// Whether the position holds an element.
    pub fn valid(&self, thread: u32, slot: u32) -> bool {
        self.axis_indices(thread, slot)
            .iter()
            .zip(&self.0.axes)
            .all(|(&i, a)| i < a.size)
    }
    /// The logical index of what thread `thread` holds in slot `slot`; `None` for padding. Where the array is constant,
    /// the first of the indices.
    pub fn element(&self, thread: u32, slot: u32) -> Option<Dims> {
        let mut out: Dims = smallvec![0; self.0.shape.len()];
        self.write_element(thread, slot, &mut out).then_some(out)
    }
    /// [`RegisterLayout::element`] into `out`, an index; false for padding.
    pub fn write_element(&self, thread: u32, slot: u32, out: &mut [u64]) -> bool {
        for axis in &self.0.axes {
            let mut i = Self::axis_index(axis, thread, slot);
            if i >= axis.size {
                return false;
            }
            for dim in axis.dims().skip(1).rev() {
                out[dim] = i % self.0.shape[dim];
                i /= self.0.shape[dim];
            }
            if axis.rank > 0 {
                out[axis.first] = i;
            }
        }
        true
    }
    /// The slots in which the first thread holds these elements (their numbers in row-major order): each of its slots once, or `None`.
    pub fn slots_of(&self, order: &[u64]) -> Option<Vec<u32>> {
        if order.len() != self.0.slots as usize {
            return None;
        }
        let number = |index: Dims| index.iter().zip(&self.0.shape).fold(0, |at, (i, n)| at * n + i);
        let held: Vec<Option<u64>> = (0..self.0.slots)
            .map(|slot| self.element(0, slot).map(number))
            .collect();
        let slot_of: rustc_hash::FxHashMap<u64, u32> = held
            .iter()
            .zip(0..)
            .filter_map(|(at, slot)| at.map(|at| (at, slot)))
            .collect();
        let mut free = vec![true; held.len()];
        let mut take = |at: &u64| {
            let slot = *slot_of.get(at)?;
            std::mem::replace(&mut free[slot as usize], false).then_some(slot)
        };
        order.iter().map(&mut take).collect()
    }
    /// Each position that holds an element: its thread, and the element's number in row-major order.
    pub fn for_each_element(&self, mut f: impl FnMut(u32, u64)) {
        let (threads, slots) = (self.0.group.threads(), self.0.slots);
        // A position's index along an axis is what its thread and what its slot add to it.
        let terms = |axis: &Axis| {
            let of_threads: Vec<u64> = (0..threads).map(|t| Self::axis_index(axis, t, 0)).collect();
            let of_slots: Vec<u64> = (0..slots).map(|s| Self::axis_offset(axis, s)).collect();
            let stride: u64 = self.0.shape[axis.dims().end..].iter().product();
            (of_threads, of_slots, axis.size, stride)
        };
        let axes: Vec<_> = self.0.axes.iter().map(terms).collect();
        for thread in 0..threads {
            for slot in 0..slots {
                let add = |at: u64, (of_threads, of_slots, size, stride): &(Vec<u64>, Vec<u64>, u64, u64)| {
                    let index = of_threads[thread as usize] + of_slots[slot as usize];
                    (index < *size).then_some(at + index * stride)
                };
                if let Some(at) = axes.iter().try_fold(0, add) {
                    f(thread, at);
                }
            }
        }
    }
    /// The first thread that holds the element, and the slot; other owners differ in [`RegisterLayout::replicated_bits`].
    pub fn owner(&self, index: &[u64]) -> (u32, u32) {
        let (mut thread, mut slot) = (0, 0);
        for axis in &self.0.axes {
            let mut i = axis.dims().fold(0, |i, dim| i * self.0.shape[dim] + index[dim]);
            for d in &axis.chain {
                let (above, digit) = digits::div_rem(i, d.size);
                match d.place {
                    Place::Thread(bit) => thread |= (digit as u32) << bit,
                    Place::Slot(s) => slot += digit as u32 * s,
                    Place::Constant => {}
                }
                i = above;
            }
        }
        (thread, slot)
    }
    /// All positions (thread, slot) of an element.
    pub fn owners(&self, index: &[u64]) -> impl Iterator<Item = (u32, u32)> + use<> {
        let (thread, slot) = self.owner(index);
        let mask = u32::from(self.0.replicated);
        (0..self.0.group.threads())
            .filter(move |t| t & !mask == 0)
            .map(move |t| (thread | t, slot))
    }

    // -------------------------------------------------------------------------------------------------- operations

    /// The layout of a reduction's result (dimensions `axes` removed); `None` if a digit straddles reduced and kept
    /// dimensions.
    pub fn reduce(&self, dims: &[usize]) -> Option<RegisterLayout> {
        self.reduce_plan(dims).map(|p| p.result)
    }

    /// Plans the reduction over `dims`; `None` if a digit straddles reduced and kept dimensions.
    pub fn reduce_plan(&self, dims: &[usize]) -> Option<ReducePlan> {
        let gone = |a: &Axis| dims.contains(&a.first);
        if self
            .0
            .axes
            .iter()
            .any(|a| a.dims().any(|d| dims.contains(&d) != gone(a)))
        {
            return None;
        }
        let (mut lane_bits, mut warp_bits, mut repeats) = (0u8, 0u8, 1);
        for d in self.0.axes.iter().filter(|a| gone(a)).flat_map(|a| &a.chain) {
            match d.place {
                Place::Thread(bit) if bit < LANE_BITS => lane_bits |= ((d.size - 1) << bit) as u8,
                Place::Thread(bit) => warp_bits |= ((d.size - 1) << (bit - LANE_BITS)) as u8,
                Place::Slot(_) => {}
                Place::Constant => repeats *= d.size,
            }
        }
        let kept = self.0.axes.iter().filter(|a| !gone(a)).cloned();
        let (axes, map) = compact_slots(kept.collect());
        let new_dim = |d: usize| d - dims.iter().filter(|&&x| x < d).count();
        let shape: Dims = (0..self.rank())
            .filter(|d| !dims.contains(d))
            .map(|d| self.0.shape[d])
            .collect();
        let axes = axes.into_iter().map(|mut a| {
            a.first = new_dim(a.first);
            a
        });
        let result = Self::from_axes(&shape, self.0.group, axes);
        let mut slots = vec![SmallVec::new(); result.0.slots as usize];
        for slot in 0..self.0.slots {
            slots[map.apply(slot) as usize].push(slot);
        }
        let padded = self.0.axes.iter().any(|a| gone(a) && a.is_padded());
        Some(ReducePlan {
            result,
            slots,
            lane_bits,
            warp_bits,
            padded,
            repeats,
        })
    }

    /// `lax.broadcast_in_dim`: operand dimension `i` becomes dimension `dims[i]`; the array is constant along new
    /// dimensions and along expanded unit dimensions. Costs nothing: slots are shared.
    pub fn broadcast_in_dim(&self, shape: &[u64], dims: &[usize]) -> Option<RegisterLayout> {
        let mut axes: SmallVec<[Axis; 3]> = SmallVec::new();
        for axis in &self.0.axes {
            let expands = axis.dims().any(|d| self.0.shape[d] != shape[dims[d]]);
            let adjacent = axis.dims().skip(1).all(|d| dims[d] == dims[d - 1] + 1);
            if axis.rank > 1 && (expands || !adjacent) {
                return None;
            }
            let (size, chain) = if expands {
                let n = shape[dims[axis.first]];
                // A unit dimension that is padded to more (one valid position): its only element is at digit values 0,
                // which no longer hold for all threads.
                if digits::extent(&axis.chain) != 1 {
                    return None;
                }
                (n, smallvec![Digit::new(n, Place::Constant)])
            } else {
                (axis.size, axis.chain.clone())
            };
            axes.push(Axis {
                first: dims[axis.first],
                rank: axis.rank,
                size,
                chain,
            });
        }
        for (d, &n) in shape.iter().enumerate().filter(|(d, _)| !dims.contains(d)) {
            axes.push(Axis {
                first: d,
                rank: 1,
                size: n,
                chain: smallvec![Digit::new(n, Place::Constant)],
            });
        }
        Some(Self::from_axes(shape, self.0.group, axes))
    }

    /// `lax.transpose`: dimension `i` of the result is dimension `perm[i]` of the operand. Renames dimensions only;
    /// `None` if a straddling axis would be split.
    pub fn transpose(&self, perm: &[usize]) -> Option<RegisterLayout> {
        let at = |d: usize| perm.iter().position(|&p| p == d).expect("a permutation");
        let shape: Dims = perm.iter().map(|&p| self.0.shape[p]).collect();
        let mut axes: SmallVec<[Axis; 3]> = SmallVec::new();
        for axis in &self.0.axes {
            if axis.dims().skip(1).any(|d| at(d) != at(d - 1) + 1) {
                return None;
            }
            axes.push(Axis {
                first: at(axis.first),
                ..axis.clone()
            });
        }
        Some(Self::from_axes(&shape, self.0.group, axes))
    }

    /// `lax.reshape` without moving anything; `None` where padding stands in the way.
    pub fn reshape(&self, shape: &[u64]) -> Option<RegisterLayout> {
        if self.0.shape.iter().product::<u64>() != shape.iter().product::<u64>() {
            return None;
        }
        if shape.contains(&0) {
            return Some(Self::strided(shape, 1, self.0.group));
        }
        let mut axes: SmallVec<[Axis; 3]> = SmallVec::new();
        let mut new = shape.len();
        let mut old = self.0.axes.len();
        // From the minor end, the shortest runs of axes and of new dimensions that have equal sizes.
        while old > 0 || new > 0 {
            let (old_end, new_end) = (old, new);
            let (mut have, mut want) = (1, 1);
            loop {
                if have < want || (have == want && old == old_end && old > 0) {
                    old -= 1;
                    have *= self.0.axes[old].size;
                } else if have > want || new == new_end && new > 0 {
                    new -= 1;
                    want *= shape[new];
                } else {
                    break;
                }
            }
            // Leading unit dimensions join the last run.
            if old == 0 {
                new = 0;
            }
            if new == 0 {
                old = 0;
            }
            let run = &self.0.axes[old..old_end];
            if run.iter().skip(1).any(Axis::is_padded) {
                return None;
            }
            let chain = run.iter().rev().flat_map(|a| a.chain.iter().copied()).collect();
            if new < new_end {
                axes.push(Axis {
                    first: new,
                    rank: new_end - new,
                    size: have,
                    chain,
                });
            } else if digits::extent(&chain) != 1 {
                return None; // a padded unit axis with no dimension left to hold it
            }
        }
        Some(Self::from_axes(shape, self.0.group, axes))
    }

    /// A slice `start[d]..start[d] + size[d]` taken by renaming slots: the layout of the result and, for each of its
    /// slots, the operand's slot. Legal when thread digits see whole periods only; `None` otherwise.
    pub fn slice(&self, start: &[u64], size: &[u64]) -> Option<(RegisterLayout, Vec<u32>)> {
        struct Cut {
            first: u64,
            count: u64,
            low: Chain<Place>,
            high: Chain<Place>,
        }
        let mut cuts: SmallVec<[Cut; 3]> = SmallVec::new();
        for axis in &self.0.axes {
            let (mut from, mut len) = (0, 1);
            for (k, d) in axis.dims().enumerate() {
                // Of a straddling axis, only the major dimension can be cut.
                if k > 0 && (start[d], size[d]) != (0, self.0.shape[d]) {
                    return None;
                }
                from = from * self.0.shape[d] + start[d];
                len *= size[d];
            }
            if from == 0 && len == axis.size {
                cuts.push(Cut {
                    first: 0,
                    count: 1,
                    low: axis.chain.clone(),
                    high: Chain::new(),
                });
                continue;
            }
            // Everything above the last thread digit is slots (or constant).
            let top = axis
                .chain
                .iter()
                .rposition(|d| matches!(d.place, Place::Thread(_)))
                .map_or(0, |k| k + 1);
            let fixed = digits::extent(&axis.chain[..top]);
            let gcd = |a: u64, b: u64| {
                let (mut a, mut b) = (a, b);
                while b != 0 {
                    (a, b) = (b, a % b);
                }
                a
            };
            if len == 0 || fixed == 0 || from % fixed != 0 || len % fixed != 0 {
                return None;
            }
            // The largest period that both ends respect and that the chain can be cut at.
            let mut period = gcd(from, len);
            let (low, high) = loop {
                match digits::split(&axis.chain, period) {
                    Some(parts) => break parts,
                    None => {
                        period = (fixed..period).rev().find(|p| period % p == 0 && p % fixed == 0)?;
                    }
                }
            };
            cuts.push(Cut {
                first: from / period,
                count: len / period,
                low,
                high,
            });
        }
        // New slots: the low digits keep their relative order, then one digit per cut axis, major to minor.
        let lows = self
            .0
            .axes
            .iter()
            .zip(&cuts)
            .map(|(a, c)| Axis {
                chain: c.low.clone(),
                ..a.clone()
            })
            .collect();
        let (mut axes, low_map) = compact_slots(lows);
        let mut stride = low_map.new_slots;
        let mut new_digits = vec![0u32; cuts.len()];
        for (k, cut) in cuts.iter().enumerate().rev() {
            let varies = cut.high.iter().any(|d| matches!(d.place, Place::Slot(_)));
            if varies && cut.count > 1 {
                new_digits[k] = stride;
                axes[k].chain.push(Digit::new(cut.count, Place::Slot(stride)));
                stride *= cut.count as u32;
            } else {
                axes[k].chain.push(Digit::new(cut.count, Place::Constant));
            }
            axes[k].size = axes[k].dims().map(|d| size[d]).product();
        }
        let layout = Self::from_axes(size, self.0.group, axes);
        let back = low_map.inverse();
        let map = (0..layout.0.slots).map(|slot| {
            let mut old = back.apply(slot % low_map.new_slots);
            for (cut, &digit) in cuts.iter().zip(&new_digits) {
                let digit = u64::from(slot.checked_div(digit).unwrap_or(0));
                let mut k = cut.first + digit % cut.count;
                for d in &cut.high {
                    if let Place::Slot(s) = d.place {
                        old += (k % d.size) as u32 * s;
                    }
                    k /= d.size;
                }
            }
            old
        });
        let map = map.collect();
        Some((layout, map))
    }

    /// Both layouts' digits on one refinement, minor first within each axis; `None` where there is none. The third
    /// value of each entry is the digit's stride in the flattened index of its axis, with the axis number.
    pub fn align(&self, other: &RegisterLayout) -> Option<Vec<Aligned>> {
        if self.0.shape != other.0.shape || self.0.group != other.0.group {
            return None;
        }
        let mut out = Vec::new();
        for (dims, a, b) in common_axes(&self.0.axes, &other.0.axes)? {
            let mut stride = 1;
            for Pair { size, a, b } in digits::refine(&a, &b)? {
                out.push(Aligned {
                    size,
                    a,
                    b,
                    first_dim: dims,
                    stride,
                });
                stride *= size;
            }
        }
        Some(out)
    }

    /// If `dst` can be had from `self` by copying registers only: for each slot of `dst`, the slot of `self`.
    pub fn rename_to(&self, dst: &RegisterLayout) -> Option<Vec<u32>> {
        if self == dst {
            return Some((0..self.0.slots).collect());
        }
        if self.is_splat() && self.0.shape == dst.0.shape {
            return Some(vec![0; dst.0.slots as usize]);
        }
        let digits = self.align(dst)?;
        let ok = digits.iter().all(|d| match (d.a, d.b) {
            (Place::Constant, _) => true,
            (Place::Slot(_), Place::Slot(_)) => true,
            (Place::Thread(a), Place::Thread(b)) => a == b,
            _ => false,
        });
        ok.then(|| {
            (0..dst.0.slots)
                .map(|slot| {
                    let digit = |d: &Aligned| match (d.a, d.b) {
                        (Place::Slot(a), Place::Slot(b)) => (slot / b) % d.size as u32 * a,
                        _ => 0,
                    };
                    digits.iter().map(digit).sum()
                })
                .collect()
        })
    }
}

/// One digit of the common refinement of two register layouts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Aligned {
    pub size: u64,
    pub a: Place,
    pub b: Place,
    /// The first dimension of the (possibly merged) axis that the digit belongs to.
    pub first_dim: usize,
    /// The digit's stride in that axis's flattened index.
    pub stride: u64,
}

fn flat_axis(shape: &[u64], chain: Chain<Place>) -> Option<Axis> {
    // Rank 0 is an axis of no dimensions: one element.
    Some(Axis {
        first: 0,
        rank: shape.len(),
        size: shape.iter().product(),
        chain,
    })
}

/// Splits an axis over several dimensions into as many axes as its digits allow.
fn split_axis(shape: &[u64], axis: Axis, out: &mut SmallVec<[Axis; 3]>) {
    let mut chain = cut_at_warp(&axis.chain);
    let mut end = axis.first + axis.rank;
    let mut size = 1;
    for dim in (axis.first..axis.first + axis.rank).rev() {
        size *= shape[dim];
        if dim == axis.first {
            out.push(Axis {
                first: dim,
                rank: end - dim,
                size,
                chain: normal(&chain),
            });
            return;
        }
        if size > 0
            && let Some((low, high)) = digits::split(&chain, size)
        {
            out.push(Axis {
                first: dim,
                rank: end - dim,
                size,
                chain: normal(&low),
            });
            (chain, end, size) = (high, dim, 1);
        }
    }
    // Rank 0.
    if !chain.is_empty() {
        out.push(Axis {
            chain: normal(&chain),
            ..axis
        });
    }
}

/// Maximally merged, except that lane and warp digits are not merged.
fn normal(chain: &[Digit<Place>]) -> Chain<Place> {
    cut_at_warp(&digits::merge(chain))
}

fn cut_at_warp(chain: &[Digit<Place>]) -> Chain<Place> {
    let mut out = Chain::new();
    for d in chain {
        match d.place {
            Place::Thread(bit) if bit < LANE_BITS && d.size > 1 << (LANE_BITS - bit) => {
                let low = 1 << (LANE_BITS - bit);
                out.push(Digit::new(low, d.place));
                out.push(Digit::new(d.size / low, Place::warp(0)));
            }
            Place::Thread(_) | Place::Slot(_) | Place::Constant => out.push(*d),
        }
    }
    out
}

/// A map between two numberings of slots, digit by digit.
struct SlotMap {
    /// (old stride, new stride, size)
    digits: SmallVec<[(u32, u32, u32); 8]>,
    new_slots: u32,
}

impl SlotMap {
    fn apply(&self, slot: u32) -> u32 {
        self.digits
            .iter()
            .map(|&(old, new, size)| slot / old % size * new)
            .sum()
    }
    fn inverse(&self) -> SlotMap {
        let digits = self.digits.iter().map(|&(old, new, size)| (new, old, size)).collect();
        SlotMap { digits, new_slots: 0 }
    }
}

/// Renumbers the slot digits of the given axes so that they number slots without gaps, in the same order.
fn compact_slots(mut axes: SmallVec<[Axis; 3]>) -> (SmallVec<[Axis; 3]>, SlotMap) {
    let mut strides: SmallVec<[(u32, u64); 8]> = SmallVec::new();
    for d in axes.iter().flat_map(|a| &a.chain) {
        if let Place::Slot(s) = d.place {
            strides.push((s, d.size));
        }
    }
    strides.sort_unstable();
    let mut map = SlotMap {
        digits: SmallVec::new(),
        new_slots: 1,
    };
    for (old, size) in strides {
        map.digits.push((old, map.new_slots, size as u32));
        map.new_slots *= size as u32;
    }
    for d in axes.iter_mut().flat_map(|a| &mut a.chain) {
        if let Place::Slot(s) = &mut d.place {
            let entry = map
                .digits
                .iter()
                .find(|e| e.0 == *s)
                .expect("every slot digit was entered");
            *s = entry.1;
        }
    }
    (axes, map)
}

/// Axes merged until both sides have the same runs of dimensions: (first dimension, chain, chain).
type AxisPair = (usize, Chain<Place>, Chain<Place>);

fn common_axes(a: &[Axis], b: &[Axis]) -> Option<Vec<AxisPair>> {
    let mut out = Vec::new();
    let (mut i, mut j) = (0, 0);
    while i < a.len() || j < b.len() {
        let (i0, j0) = (i, j);
        let first = a.get(i).or(b.get(j)).map_or(0, |x| x.first);
        let end = |x: Option<&Axis>| x.map_or(first, |x| x.first + x.rank);
        let (mut ea, mut eb) = (end(a.get(i)), end(b.get(j)));
        i = (i + 1).min(a.len());
        j = (j + 1).min(b.len());
        while ea != eb {
            if ea < eb {
                ea = end(a.get(i));
                i += 1;
            } else {
                eb = end(b.get(j));
                j += 1;
            }
        }
        let join = |run: &[Axis]| -> Option<Chain<Place>> {
            if run.iter().skip(1).any(Axis::is_padded) {
                return None;
            }
            Some(run.iter().rev().flat_map(|x| x.chain.iter().copied()).collect())
        };
        out.push((first, join(&a[i0..i])?, join(&b[j0..j])?));
    }
    Some(out)
}

impl fmt::Display for RegisterLayout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", &self.0.shape[..])?;
        for axis in &self.0.axes {
            if axis.rank == 1 {
                write!(f, " d{}:", axis.first)?;
            } else {
                write!(f, " d{}..{}:", axis.first, axis.first + axis.rank)?;
            }
            let parts = axis.chain.iter().rev().map(|d| match d.place {
                Place::Thread(bit) if bit < LANE_BITS => format!("lane{bit}x{}", d.size),
                Place::Thread(bit) => format!("warp{}x{}", bit - LANE_BITS, d.size),
                Place::Slot(s) => format!("slot{s}x{}", d.size),
                Place::Constant => format!("constx{}", d.size),
            });
            write!(f, "({})", parts.collect::<Vec<_>>().join(","))?;
            if axis.is_padded() {
                write!(f, "<{}", axis.size)?;
            }
        }
        if self.0.replicated != 0 {
            write!(f, " rep{:#09b}", self.0.replicated)?;
        }
        Ok(())
    }
}

impl fmt::Debug for RegisterLayout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
