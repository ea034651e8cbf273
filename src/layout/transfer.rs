//! Plans for moving an array between registers and memory.
//!
//! The register layout and the memory view are compared on the common refinement of their digits: then every digit has a
//! place in the thread (lane, warp, slot) and a stride in memory. From there the plan reads off
//! * how many elements are contiguous on both sides: the widest vector access, up to 16 bytes;
//! * whether `ldmatrix`/`stmatrix` (`.trans`) applies: PTX ISA, "Matrix load instruction": four lanes hold the 32-bit
//!   words of a 16-byte row, eight rows make a matrix, and lane 8i + r gives the address of row r of matrix i;
//! * bank conflicts, by evaluating one access for the 32 lanes; where there are some, orders *staggered* by lane bits
//!   are tried: lanes with the bit set access the slots of an access pair in the opposite order. The words of a matrix
//!   are staggered by the bits of the lanes that hold a row, the row's address by those of the lane that gives it.
//!
//! Where there is no common refinement (odd sizes that straddle, loose views), every element is addressed by itself:
//! that plan always exists. Accesses to padding are guarded, or left out.
use super::address::{AddressPlan, Fold, possible_bits};
use super::digits::{self, Chain, Digit};
use super::facts::{DynTerm, Start};
use super::register_layout::{Axis, Group, LANE_BITS, Place, RegisterLayout, Term};
use super::smem_layout::{SmemView, Stride};
use smallvec::{SmallVec, smallvec};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    Load,
    Store,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Memory {
    /// 32 banks of 4 bytes.
    Shared,
    /// Sectors of 32 bytes; the buffer's address is a multiple of `align` bytes.
    Global { align: u64 },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccessKind {
    /// One access of 1, 2, 4, 8 or 16 bytes per lane, of consecutive elements.
    Vector { bytes: u32 },
    /// `ldmatrix`/`stmatrix.sync.aligned.m8n8.xN(.trans).shared.b16`: `count` words per lane.
    Matrix { count: u32, trans: bool },
    /// One element, addressed by [`Addressing::Elements`].
    Element,
}

/// The access happens only where `Σ terms + constant < limit`, the terms being those of the axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Guard {
    /// Number of the axis in the register layout.
    pub axis: usize,
    pub constant: u64,
    pub limit: u64,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Access {
    pub kind: AccessKind,
    /// Number of the base address, and the immediate in bytes ([`AddressPlan`]). Unused for elements.
    pub base: usize,
    pub offset: i64,
    /// The slots moved, in memory order: consecutive elements for a vector; for a matrix access word by word, each word's
    /// low element first.
    pub slots: SmallVec<[u32; 8]>,
    /// Staggered plans: the slots for lanes of group 1, 2, … (bit k of the group = the lane's bit `stagger[k]`).
    pub staggered: Vec<SmallVec<[u32; 8]>>,
    /// All must hold.
    pub guards: SmallVec<[Guard; 1]>,
}

/// One summand of an element's offset in bits: `((i / div % modulus) + Σ starts) / then_div % then_modulus · stride`, `i`
/// being the flattened index along `axis` (0 if there is none).
#[derive(Clone, Debug, PartialEq)]
pub struct ElementTerm {
    pub axis: Option<usize>,
    pub div: u64,
    pub modulus: Option<u64>,
    pub starts: SmallVec<[Start; 1]>,
    pub then_div: u64,
    pub then_modulus: Option<u64>,
    pub stride_bits: u64,
}

impl ElementTerm {
    /// The term's value in bits for an axis index and the sum of the starts.
    pub fn eval(&self, i: u64, starts: u64) -> u64 {
        let take = |x: u64, div: u64, modulus: Option<u64>| modulus.map_or(x / div, |m| x / div % m);
        take(
            take(i, self.div, self.modulus) + starts,
            self.then_div,
            self.then_modulus,
        ) * self.stride_bits
    }
}

#[derive(Clone, Debug, PartialEq)]
pub enum Addressing {
    Affine(AddressPlan),
    /// Per element: the index along each axis is the axis' terms plus the slot's offset
    /// ([`RegisterLayout::slot_offset`]); the address is `swizzle(buffer + (constant + dynamic + Σ terms) / 8)`, strides
    /// and constant in bits; the bit in the byte is what remains.
    Elements {
        constant_bits: u64,
        dynamic_bits: SmallVec<[DynTerm; 2]>,
        terms: Vec<ElementTerm>,
    },
}

#[derive(Clone, Debug, PartialEq)]
pub struct TransferPlan {
    pub direction: Direction,
    /// What moves is the array in this layout: if it isn't the caller's, a relayout comes first (stores) or last (loads).
    pub layout: RegisterLayout,
    pub addressing: Addressing,
    pub accesses: Vec<Access>,
    /// Lane bits that choose the order (see [`Access::staggered`]).
    pub stagger: SmallVec<[u8; 3]>,
    /// Stores: only threads whose bits in this mask are 0 act; the others hold copies.
    pub only_first_replica: u8,
    /// Shared memory: wavefronts of the worst access over the fewest possible; 1 = free of bank conflicts.
    pub conflicts: u32,
    /// Global memory: sectors touched by the warp's first access over the fewest that could hold its bytes, in percent
    /// (100 = perfectly coalesced).
    pub sector_percent: u32,
    /// Relative: memory wavefronts and instructions per warp.
    pub cost: u32,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TransferError {
    #[error("the value has shape {value:?}, the memory {memory:?}")]
    Shape { value: Vec<u64>, memory: Vec<u64> },
    #[error("{bits}-bit elements at addresses that are not whole bytes cannot be stored one by one")]
    SubByteStore { bits: u32 },
}

/// What a plan may use.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// `ldmatrix`, `stmatrix`.
    pub matrix: bool,
    /// Staggered orders.
    pub stagger: bool,
    /// Each element by itself: whether it is there is known of elements only.
    pub singly: bool,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            matrix: true,
            stagger: true,
            singly: false,
        }
    }
}

/// Addresses so many bytes apart are in the same bank of shared memory.
const BANKS: u64 = 128;

/// A digit of the common refinement.
#[derive(Clone, Copy, Debug)]
struct Piece {
    size: u64,
    place: Place,
    /// In memory, in bits.
    stride: u64,
    axis: usize,
    /// In the axis' index.
    index: u64,
}

/// Plans a transfer; fails only if the shapes differ or sub-byte elements would have to be stored singly.
pub fn plan(
    layout: &RegisterLayout,
    view: &SmemView,
    memory: Memory,
    direction: Direction,
    options: Options,
) -> Result<TransferPlan, TransferError> {
    if layout.shape() != &view.shape()[..] {
        return Err(TransferError::Shape {
            value: layout.shape().to_vec(),
            memory: view.shape().to_vec(),
        });
    }
    if layout.slots() == 0 {
        return elements(layout, view, direction);
    }
    let constant = layout
        .axes()
        .iter()
        .flat_map(|a| &a.chain)
        .any(|d| d.place == Place::Constant);
    if constant {
        // Splats and broadcasts: any layout will do, and a store of one is free to choose.
        let vec = u64::from((128 / view.bits).max(1));
        let mut vec = vec.min(layout.shape().last().copied().unwrap_or(1).max(1));
        let n: u64 = layout.shape().iter().product();
        while vec > 1 && (!n.is_multiple_of(vec * 32) || !vec.is_power_of_two()) {
            vec = if vec.is_power_of_two() {
                vec / 2
            } else {
                vec.next_power_of_two() / 2
            };
        }
        let spread = RegisterLayout::strided(layout.shape(), vec, layout.group());
        return plan(&spread, view, memory, direction, options);
    }
    if options.singly {
        return elements(layout, view, direction);
    }
    let mut best: Option<TransferPlan> = None;
    if let Some(pieces) = pieces(layout, view) {
        let cx = Cx {
            layout,
            view,
            memory,
            direction,
            pieces: &pieces,
        };
        let offer = |best: &mut Option<TransferPlan>, p: Option<TransferPlan>| {
            if let Some(p) = p
                && best.as_ref().is_none_or(|b| p.cost < b.cost)
            {
                *best = Some(p);
            }
        };
        let plain = cx.vectors(&[]);
        let width = plain.as_ref().map(TransferPlan::vector_bytes);
        offer(&mut best, plain);
        // All lanes of a warp take part in a matrix, and warps that hold copies would store what another stores.
        let is_copied = direction == Direction::Store && layout.replicated_bits() != 0;
        let mut fragments: SmallVec<[Fragment; 2]> = smallvec![];
        if memory == Memory::Shared && options.matrix && !is_copied {
            fragments = [false, true].into_iter().filter_map(|t| cx.fragment(t)).collect();
        }
        for fragment in &fragments {
            offer(&mut best, cx.matrices(fragment, &[]));
        }
        if memory == Memory::Shared && options.stagger && best.as_ref().is_some_and(|b| b.conflicts > 1) {
            for fragment in &fragments {
                let all = cx.matrix_stagger(fragment);
                for n in (1..=all.len()).rev() {
                    let p = cx.matrices(fragment, &all[..n]);
                    let done = p.as_ref().is_some_and(|p| p.conflicts == 1);
                    offer(&mut best, p);
                    if done {
                        break;
                    }
                }
            }
            let together = width.map(|bytes| cx.vector_stagger(bytes));
            let together = together.into_iter().filter(|s| !s.is_empty());
            for stagger in together.chain(cx.stagger_candidates()) {
                let p = cx.vectors(&stagger);
                let done = p.as_ref().is_some_and(|p| p.conflicts == 1);
                offer(&mut best, p);
                if done {
                    break;
                }
            }
        }
        if let Some(best) = best {
            return Ok(best);
        }
    }
    elements(layout, view, direction)
}

/// A store; a value whose elements are all equal lies as the plan has it.
pub fn plan_store(
    layout: &RegisterLayout,
    view: &SmemView,
    memory: Memory,
    options: Options,
) -> Result<TransferPlan, TransferError> {
    let own = plan(layout, view, memory, Direction::Store, options);
    if !layout.is_splat() || !matches!(own, Err(TransferError::SubByteStore { .. })) {
        return own;
    }
    // Elements narrower than a byte go with their neighbours.
    let n: u64 = layout.shape().iter().product();
    [8, 4, 2]
        .into_iter()
        .filter(|vec| n.is_multiple_of(*vec))
        .map(|vec| RegisterLayout::strided(layout.shape(), vec, layout.group()))
        .find_map(|together| plan(&together, view, memory, Direction::Store, options).ok())
        .map_or(own, Ok)
}

/// The common refinement of layout and view; `None` where there is none.
fn pieces(layout: &RegisterLayout, view: &SmemView) -> Option<Vec<Piece>> {
    if !view.is_regular() {
        return None;
    }
    let mut out = Vec::new();
    for (k, axis) in layout.axes().iter().enumerate() {
        let joined: Chain<Stride> = view.dims[axis.dims()]
            .iter()
            .rev()
            .flat_map(|d| d.chain.iter().copied())
            .collect();
        let mut chain = digits::merge(&joined);
        // The memory digits must cover the padding too; it is never accessed.
        let extent = digits::extent(&axis.chain);
        if extent != digits::extent(&chain) {
            let below = match chain.pop() {
                Some(top) => {
                    let below = digits::extent(&chain);
                    chain.push(top);
                    below
                }
                None => {
                    chain.push(Digit::new(1, Stride(0)));
                    1
                }
            };
            if extent % below != 0 {
                return None;
            }
            chain.last_mut()?.size = extent / below;
        }
        let mut index = 1;
        for p in digits::refine(&axis.chain, &chain)? {
            out.push(Piece {
                size: p.size,
                place: p.a,
                stride: p.b.0,
                axis: k,
                index,
            });
            index *= p.size;
        }
    }
    Some(out)
}

struct Cx<'a> {
    layout: &'a RegisterLayout,
    view: &'a SmemView,
    memory: Memory,
    direction: Direction,
    pieces: &'a [Piece],
}

/// A lane bit and the slot digit of size 2 (slot stride, memory stride in bits) that it reverses.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Reversal {
    lane_bit: u8,
    slot: u32,
    stride: u64,
}

/// A slot digit that accesses run over.
#[derive(Clone, Copy, Debug)]
struct Run {
    slot: u32,
    size: u64,
    stride: u64,
    axis: usize,
    index: u64,
}

impl Run {
    /// What is left above the first `n` of its positions.
    fn above(&self, n: u64) -> Run {
        Run {
            slot: self.slot * n as u32,
            size: self.size / n,
            stride: self.stride * n,
            index: self.index * n,
            ..*self
        }
    }

    /// Its digits of size 2, the minor one first.
    fn pairs(self) -> impl Iterator<Item = Run> {
        (0..self.size.trailing_zeros()).map(move |k| Run {
            size: 2,
            ..self.above(1 << k)
        })
    }
}

/// Takes a digit of size 2 out of the runs.
fn take_pair(runs: &mut SmallVec<[Run; 8]>, slot: u32, stride: u64) -> Option<Run> {
    let (k, pair) = (0..runs.len()).find_map(|k| {
        let pair = runs[k].pairs().find(|p| (p.slot, p.stride) == (slot, stride))?;
        Some((k, pair))
    })?;
    let whole = runs.remove(k);
    let below = u64::from(pair.slot / whole.slot);
    let rest = [Run { size: below, ..whole }, whole.above(2 * below)];
    runs.extend(rest.into_iter().filter(|r| r.size > 1));
    Some(pair)
}

/// The digits of an array that is made of 8x8 matrices.
struct Fragment {
    trans: bool,
    /// Memory strides of the matrix' row number, bit by bit.
    rows: [u64; 3],
    /// Memory strides of the warp's bits, where they have one.
    warps: [Option<u64>; 2],
    /// The slots that distinguish matrices.
    runs: SmallVec<[Run; 8]>,
}

impl Fragment {
    /// Lane bit 2 + k holds row bit k; transposed, row bit 0 is in the word, and lane bit k holds row bit k + 1.
    fn row_bit(&self, lane_bit: u8) -> Option<u8> {
        match self.trans {
            false => lane_bit.checked_sub(2),
            true => (lane_bit < 2).then_some(lane_bit + 1),
        }
    }

    /// The address' terms, in bytes, but for the lanes that select among an instruction's matrices.
    fn terms(&self) -> Vec<Term> {
        let rows = self.rows.iter().enumerate().map(|(k, s)| (k as u8, Some(*s)));
        let warps = self.warps.iter().enumerate().map(|(k, s)| (LANE_BITS + k as u8, *s));
        rows.chain(warps)
            .filter_map(|(bit, stride)| Some(Term::of_thread(bit, 2, (stride? / 8) as i64)))
            .collect()
    }
}

impl Cx<'_> {
    fn axis(&self, k: usize) -> &Axis {
        &self.layout.axes()[k]
    }

    fn runs(&self) -> SmallVec<[Run; 8]> {
        let run = |p: &Piece| match p.place {
            Place::Slot(slot) => Some(Run {
                slot,
                size: p.size,
                stride: p.stride,
                axis: p.axis,
                index: p.index,
            }),
            Place::Thread(_) | Place::Constant => None,
        };
        self.pieces.iter().filter_map(run).collect()
    }

    fn thread_pieces(&self) -> impl Iterator<Item = (u8, &Piece)> {
        self.pieces.iter().filter_map(|p| match p.place {
            Place::Thread(bit) => Some((bit, p)),
            Place::Slot(_) | Place::Constant => None,
        })
    }

    /// The buffer's proven alignment in bits, the view's start included.
    fn alignment(&self) -> u64 {
        match self.memory {
            Memory::Shared => self.view.base_alignment(),
            Memory::Global { align } => self.view.base_alignment().min(align * 8),
        }
    }

    /// Vector accesses, as wide as possible.
    fn vectors(&self, stagger: &[Reversal]) -> Option<TransferPlan> {
        let bits = u64::from(self.view.bits);
        let mut runs = self.runs();
        let mut terms: Vec<(Term, u64)> = self
            .thread_pieces()
            .map(|(bit, p)| (Term::of_thread(bit, p.size, 0), p.stride))
            .collect();
        // Digits that are reversed are not part of a vector, and no other digit has their address bits.
        let mut reversed: SmallVec<[Run; 3]> = smallvec![];
        for r in stagger {
            let pair = take_pair(&mut runs, r.slot, r.stride)?;
            if self.axis(pair.axis).is_padded() {
                // Lanes would access positions that another's guard is for.
                return None;
            }
            reversed.push(pair);
            terms.push((Term::of_thread(r.lane_bit, 2, 0), r.stride));
        }
        // The run of elements that follow each other in memory.
        let widest = match self.view.swizzle.is_none() {
            true => 128,
            false => 128.min(self.view.swizzle.atom() * 8),
        };
        let mut vector: SmallVec<[Run; 4]> = smallvec![];
        let mut width = 1u64;
        while let Some(k) = runs.iter().position(|r| r.stride == width * bits && r.size > 1) {
            let r = runs[k];
            let mut take = r.size;
            let axis = self.axis(r.axis);
            let fits = |take: u64| {
                width * take * bits <= widest
                    && r.size.is_multiple_of(take)
                    && (width * take * bits).is_power_of_two()
                    && (!axis.is_padded() || axis.size.is_multiple_of(r.index * take))
            };
            while take > 1 && !fits(take) {
                take = (1..take).rev().find(|t| r.size.is_multiple_of(*t)).unwrap_or(1);
            }
            if take == 1 {
                break;
            }
            vector.push(Run { size: take, ..r });
            width *= take;
            if take == r.size {
                runs.remove(k);
            } else {
                let rest = Run {
                    slot: r.slot * take as u32,
                    size: r.size / take,
                    stride: r.stride * take,
                    index: r.index * take,
                    ..r
                };
                runs[k] = rest;
                break;
            }
        }
        // Everything else must keep the alignment: shrink until it does.
        let others = |runs: &[Run]| {
            let all = terms
                .iter()
                .map(|t| t.1)
                .chain(runs.iter().map(|r| r.stride))
                .chain(reversed.iter().map(|r| r.stride));
            all.fold(self.alignment(), |a, s| a | s)
        };
        loop {
            let strides = others(&runs);
            if width * bits <= 1 << strides.trailing_zeros().min(63) {
                break;
            }
            let top = vector.last_mut()?;
            let smaller = (1..top.size).rev().find(|t| top.size % t == 0)?;
            let cut = top.size / smaller;
            let (slot, stride, index) = (top.slot * smaller as u32, top.stride * smaller, top.index * smaller);
            runs.push(Run {
                slot,
                size: cut,
                stride,
                axis: top.axis,
                index,
            });
            width /= cut;
            top.size = smaller;
            if smaller == 1 {
                vector.pop();
            }
        }
        let bytes = (width * bits / 8) as u32;
        if !(width * bits).is_multiple_of(8) || !bytes.is_power_of_two() {
            return None;
        }
        // A 64-bit element type is never split; wider vectors than 16 bytes don't exist.
        if bytes > 16 {
            return None;
        }
        runs.sort_by_key(|r| r.slot);
        let vector_slots = enumerate(&vector)
            .into_iter()
            .map(|x| x.0)
            .collect::<SmallVec<[u32; 8]>>();
        let mut terms: Vec<Term> = terms
            .iter()
            .map(|&(t, stride)| Term {
                stride: (stride / 8) as i64,
                ..t
            })
            .filter(|t| t.stride != 0)
            .collect();
        terms.sort_by_key(Term::thread_bit);
        let is_reversal = |t: &Term| {
            stagger
                .iter()
                .any(|r| (r.lane_bit, r.stride / 8) == (t.thread_bit(), t.stride as u64))
        };
        let others: Vec<Term> = terms.iter().filter(|t| !is_reversal(t)).copied().collect();
        let exchanged = self.exchanged(stagger, &others, &runs)?;

        let mut accesses = Vec::new();
        let mut constants = Vec::new();
        let all_runs: SmallVec<[Run; 8]> = reversed.iter().chain(&runs).copied().collect();
        for (slot, offset, indices) in enumerate_with_index(&all_runs, self.layout.axes().len()) {
            let Some(guards) = self.guards(&indices) else { continue };
            let variant = |group: usize| -> SmallVec<[u32; 8]> {
                let first = reverse(slot, stagger, group);
                vector_slots.iter().map(|v| first + v).collect()
            };
            accesses.push(Access {
                kind: AccessKind::Vector { bytes },
                base: 0,
                offset: 0,
                slots: variant(0),
                staggered: (1..1 << stagger.len()).map(variant).collect(),
                guards,
            });
            constants.push((self.view.offset + offset) / 8);
        }
        self.finish(accesses, constants, terms, exchanged, stagger, bytes, None)
    }

    /// Other staggered orders: one or two pairs of any lane bit and a slot digit of size 2 that moves across banks.
    fn stagger_candidates(&self) -> Vec<SmallVec<[Reversal; 3]>> {
        let runs = self.runs();
        let slots = runs
            .iter()
            .filter(|r| r.size == 2 && r.stride % 32 == 0 && r.stride / 8 % BANKS != 0);
        let mut slots: SmallVec<[&Run; 8]> = slots.collect();
        // Swizzled rows move across banks too.
        if !self.view.swizzle.is_none() {
            let sources = self.view.swizzle.source_mask();
            slots.extend(
                runs.iter()
                    .filter(|r| r.size == 2 && (r.stride / 8) & sources != 0 && r.stride / 8 % BANKS == 0),
            );
        }
        let mut singles = Vec::new();
        for lane_bit in (0..LANE_BITS).rev() {
            for r in &slots {
                singles.push(Reversal {
                    lane_bit,
                    slot: r.slot,
                    stride: r.stride,
                });
            }
        }
        let mut out: Vec<SmallVec<[Reversal; 3]>> = singles.iter().map(|&s| smallvec![s]).collect();
        for (k, &a) in singles.iter().enumerate() {
            for &b in &singles[..k] {
                if a.lane_bit != b.lane_bit && a.slot != b.slot {
                    out.push(smallvec![b, a]);
                }
            }
        }
        out
    }

    /// The array as rows of matrices, if it is that.
    fn fragment(&self, trans: bool) -> Option<Fragment> {
        let bits = u64::from(self.view.bits);
        if bits > 32 || 32 % bits != 0 || (trans && bits != 16) || self.layout.is_padded() || self.alignment() < 128 {
            return None;
        }
        // Memory stride of every thread bit; replicated lanes have none.
        let mut of_bit = [None; 7];
        for (bit, p) in self.thread_pieces() {
            for k in 0..p.size.trailing_zeros() {
                of_bit[usize::from(bit) + k as usize] = Some(p.stride << k);
            }
        }
        let mut runs = self.runs();
        let mut take = |slot: u32, stride: Option<u64>| -> Option<u64> {
            let k = runs
                .iter()
                .position(|r| r.slot == slot && r.size % 2 == 0 && stride.is_none_or(|s| s == r.stride))?;
            let taken = runs[k].stride;
            runs[k] = runs[k].above(2);
            Some(taken)
        };
        // The strides of the matrix' row number, bit by bit, after checking what must be contiguous.
        let rows: [u64; 3] = if trans {
            let in_word = take(1, None)?;
            if (of_bit[2], of_bit[3], of_bit[4]) != (Some(16), Some(32), Some(64)) {
                return None;
            }
            [in_word, of_bit[0]?, of_bit[1]?]
        } else {
            for k in 0..(32 / bits).trailing_zeros() {
                take(1 << k, Some(bits << k))?;
            }
            if (of_bit[0], of_bit[1]) != (Some(32), Some(64)) {
                return None;
            }
            [of_bit[2]?, of_bit[3]?, of_bit[4]?]
        };
        runs.retain(|r| r.size > 1);
        let warps = [of_bit[5], of_bit[6]];
        let mut strides = rows.iter().chain(warps.iter().flatten()).copied();
        if !strides.all(|s| s % 128 == 0) || runs.iter().any(|r| r.stride % 128 != 0) {
            return None;
        }
        Some(Fragment {
            trans,
            rows,
            warps,
            runs,
        })
    }

    /// The rows that are in the same banks, staggered.
    fn matrix_stagger(&self, fragment: &Fragment) -> SmallVec<[Reversal; 3]> {
        let rows = (0..LANE_BITS).filter_map(|lane_bit| {
            let row_bit = fragment.row_bit(lane_bit)?;
            Some((lane_bit, *fragment.rows.get(usize::from(row_bit))?))
        });
        self.reversals(rows, &fragment.terms(), &fragment.runs, 0)
    }

    /// The lanes that are served together and in the same banks, staggered, where vectors have this many bytes.
    fn vector_stagger(&self, bytes: u32) -> SmallVec<[Reversal; 3]> {
        let together = (128 / bytes.max(4)).ilog2().min(LANE_BITS.into()) as u8;
        let bits = |(bit, p): (u8, &Piece)| {
            let (stride, n) = (p.stride, p.size.trailing_zeros() as u8);
            (0..n).map(move |k| (bit + k, stride << k))
        };
        let terms = self
            .thread_pieces()
            .map(|(bit, p)| Term::of_thread(bit, p.size, (p.stride / 8) as i64));
        let terms: Vec<Term> = terms.collect();
        let lanes = self.thread_pieces().flat_map(bits).filter(|l| l.0 < together);
        self.reversals(lanes, &terms, &self.runs(), u64::from(bytes.max(4)))
    }

    /// Each of the lane bits (with their strides in memory) that leave the bank as it is, with a digit that moves across
    /// banks by at least so many bytes and that no address' terms do.
    fn reversals(
        &self,
        lanes: impl Iterator<Item = (u8, u64)>,
        terms: &[Term],
        runs: &[Run],
        least: u64,
    ) -> SmallVec<[Reversal; 3]> {
        let swizzle = self.view.swizzle;
        let moved = possible_bits(terms);
        let taken = moved | moved >> swizzle.shift & swizzle.target_mask() | self.view.offset / 8;
        let mut pairs: SmallVec<[Run; 8]> = runs
            .iter()
            .flat_map(|r| r.pairs())
            .filter(|p| {
                p.stride.is_power_of_two() && (least..BANKS).contains(&(p.stride / 8)) && taken & (p.stride / 8) == 0
            })
            .collect();
        pairs.sort_by_key(|p| p.stride);
        let staying = lanes.filter(|l| l.1 != 0 && swizzle.apply(l.1 / 8).is_multiple_of(BANKS));
        let reversals = staying.zip(&pairs).map(|((lane_bit, _), p)| Reversal {
            lane_bit,
            slot: p.slot,
            stride: p.stride,
        });
        reversals.take(3).collect()
    }

    /// `ldmatrix`/`stmatrix` for the whole array.
    fn matrices(&self, fragment: &Fragment, stagger: &[Reversal]) -> Option<TransferPlan> {
        let bits = u64::from(self.view.bits);
        let mut runs = fragment.runs.clone();
        let mut terms = fragment.terms();
        let mut reversed: SmallVec<[Run; 3]> = smallvec![];
        let mut turned = Vec::new();
        for r in stagger {
            reversed.push(take_pair(&mut runs, r.slot, r.stride)?);
            turned.push(Term::of_thread(fragment.row_bit(r.lane_bit)?, 2, (r.stride / 8) as i64));
        }
        // Which matrices one instruction takes: the digits with the smallest strides, where XORs are of lane bits anyway.
        // A reversed digit is none of them: its address bit belongs to the rows.
        let mut select: SmallVec<[Run; 2]> = smallvec![];
        for bit in [3, 4] {
            let even = (0..runs.len()).filter(|&k| runs[k].size.is_multiple_of(2));
            let Some(k) = even.min_by_key(|&k| runs[k].stride) else {
                break;
            };
            terms.push(Term::of_thread(bit, 2, (runs[k].stride / 8) as i64));
            select.push(Run { size: 2, ..runs[k] });
            runs[k] = runs[k].above(2);
        }
        let count = 1 << select.len();
        runs.retain(|r| r.size > 1);
        runs.sort_by_key(|r| r.slot);
        let exchanged = self.exchanged(stagger, &terms, &runs)?;
        terms.sort_by_key(Term::thread_bit);
        let terms = [join_terms(terms), join_terms(turned)].concat();
        let word: SmallVec<[u32; 8]> = (0..(32 / bits) as u32).collect();
        let words: SmallVec<[u32; 4]> = enumerate(&select).into_iter().map(|x| x.0).collect();
        let (mut accesses, mut constants) = (Vec::new(), Vec::new());
        let all_runs: SmallVec<[Run; 8]> = reversed.iter().chain(&runs).copied().collect();
        for (slot, offset) in enumerate(&all_runs) {
            let variant = |group: usize| -> SmallVec<[u32; 8]> {
                let first = reverse(slot, stagger, group);
                words
                    .iter()
                    .flat_map(|w| word.iter().map(move |v| first + w + v))
                    .collect()
            };
            accesses.push(Access {
                kind: AccessKind::Matrix {
                    count,
                    trans: fragment.trans,
                },
                base: 0,
                offset: 0,
                slots: variant(0),
                staggered: (1..1 << stagger.len()).map(variant).collect(),
                guards: smallvec![],
            });
            constants.push((self.view.offset + offset) / 8);
        }
        self.finish(accesses, constants, terms, exchanged, stagger, 16, Some(count))
    }

    /// The address bits that reversals exchange; `None` if other terms or constants of the address have them too.
    fn exchanged(&self, stagger: &[Reversal], others: &[Term], runs: &[Run]) -> Option<u64> {
        let mut exchanged = 0;
        for r in stagger {
            if r.stride % 8 != 0 || !r.stride.is_power_of_two() || exchanged & (r.stride / 8) != 0 {
                return None;
            }
            exchanged |= r.stride / 8;
        }
        if exchanged != 0 {
            let constants = enumerate(runs).into_iter().map(|x| (self.view.offset + x.1) / 8);
            let plain = constants.fold(possible_bits(others), |m, c| m | c);
            if plain & exchanged != 0 {
                return None;
            }
        }
        Some(exchanged)
    }

    /// Guards of an access whose slots start at these axis indices; `None` if it only touches padding.
    fn guards(&self, indices: &[u64]) -> Option<SmallVec<[Guard; 1]>> {
        guards(self.layout, indices)
    }

    #[allow(clippy::too_many_arguments)]
    fn finish(
        &self,
        mut accesses: Vec<Access>,
        constants: Vec<u64>,
        terms: Vec<Term>,
        exchanged: u64,
        stagger: &[Reversal],
        bytes: u32,
        matrices: Option<u32>,
    ) -> Option<TransferPlan> {
        let dynamic: SmallVec<[DynTerm; 2]> = self.view.dynamic.iter().map(|t| t.in_bytes()).collect();
        if self.view.dynamic.iter().any(|t| t.stride % 8 != 0) {
            return None;
        }
        let (address, places) = AddressPlan::new(dynamic, terms, self.view.swizzle, exchanged, &constants)?;
        for (a, (base, offset)) in accesses.iter_mut().zip(places) {
            (a.base, a.offset) = (base, offset);
        }
        // Price one access of each base; where addresses are linear, one is like all.
        let (mut worst, mut total, mut sector_percent) = (1, 0, 100);
        let mut priced: SmallVec<[(usize, u32); 4]> = smallvec![];
        for a in &accesses {
            let price = match priced.iter().find(|p| p.0 == a.base) {
                Some(p) => p.1,
                None if address.fold == Fold::Linear && !priced.is_empty() => priced[0].1,
                None => {
                    let lane_address = |lane: u32| address.address(0, lane, a.base, a.offset);
                    let price = match self.memory {
                        Memory::Shared => {
                            let lanes = if matrices.is_some() {
                                8 * matrices.unwrap_or(1)
                            } else {
                                32
                            };
                            let (got, ideal) = wavefronts(&lane_address, bytes, lanes);
                            worst = worst.max(got.div_ceil(ideal));
                            got
                        }
                        Memory::Global { .. } => {
                            let (got, ideal) = sectors(&lane_address, bytes);
                            sector_percent = sector_percent.max(100 * got / ideal);
                            got.div_ceil(4)
                        }
                    };
                    priced.push((a.base, price));
                    price
                }
            };
            total += 2 * price + 1;
        }
        // Words that have to be assembled by permutes first, and selects of staggered orders.
        let bits = self.view.bits;
        if bits < 32 {
            let per_word = (32 / bits) as usize;
            let loose_words = |a: &Access| {
                a.slots
                    .chunks(per_word)
                    .filter(|w| {
                        w.len() < per_word
                            || !(w[0] as usize).is_multiple_of(per_word)
                            || w.windows(2).any(|p| p[1] != p[0] + 1)
                    })
                    .count() as u32
            };
            total += accesses.iter().map(loose_words).sum::<u32>();
        }
        let words = matrices.unwrap_or(bytes.div_ceil(4));
        total += accesses.len() as u32 * words * stagger.len() as u32;
        let only_first_replica = match self.direction {
            Direction::Load => 0,
            Direction::Store => self.layout.replicated_bits(),
        };
        Some(TransferPlan {
            direction: self.direction,
            layout: self.layout.clone(),
            addressing: Addressing::Affine(address),
            accesses,
            stagger: stagger.iter().map(|r| r.lane_bit).collect(),
            only_first_replica,
            conflicts: worst,
            sector_percent,
            cost: total + 2,
        })
    }
}

fn guards(layout: &RegisterLayout, indices: &[u64]) -> Option<SmallVec<[Guard; 1]>> {
    let mut out = smallvec![];
    for (k, (axis, &constant)) in layout.axes().iter().zip(indices).enumerate() {
        if !axis.is_padded() {
            continue;
        }
        if constant >= axis.size {
            return None;
        }
        let most: i64 = RegisterLayout::axis_terms(axis)
            .iter()
            .map(|t| ((1 << t.bits) - 1) * t.stride)
            .sum();
        if constant + most as u64 >= axis.size {
            out.push(Guard {
                axis: k,
                constant,
                limit: axis.size,
            });
        }
    }
    Some(out)
}

/// Element by element: always possible for loads, and for stores of whole bytes.
fn elements(layout: &RegisterLayout, view: &SmemView, direction: Direction) -> Result<TransferPlan, TransferError> {
    if direction == Direction::Store && !view.bits.is_multiple_of(8) && layout.slots() > 0 {
        return Err(TransferError::SubByteStore { bits: view.bits });
    }
    let mut terms = Vec::new();
    // An empty array has no elements to address.
    let axes = if layout.slots() == 0 { &[] } else { layout.axes() };
    for (k, axis) in axes.iter().enumerate() {
        let mut div = 1;
        for d in axis.dims().rev() {
            let dim = &view.dims[d];
            let modulus = (d != axis.first).then_some(dim.size);
            let mut then_div = 1;
            let last = dim.chain.len().saturating_sub(1);
            for (j, c) in dim.chain.iter().enumerate() {
                let then_modulus = (j != last).then_some(c.size);
                terms.push(ElementTerm {
                    axis: Some(k),
                    div,
                    modulus,
                    starts: dim.loose.clone(),
                    then_div,
                    then_modulus,
                    stride_bits: c.place.0,
                });
                then_div *= c.size;
            }
            div *= dim.size;
        }
    }
    for dim in &view.dropped {
        let mut then_div = 1;
        let last = dim.chain.len().saturating_sub(1);
        for (j, c) in dim.chain.iter().enumerate() {
            terms.push(ElementTerm {
                axis: None,
                div: 1,
                modulus: None,
                starts: dim.loose.clone(),
                then_div,
                then_modulus: (j != last).then_some(c.size),
                stride_bits: c.place.0,
            });
            then_div *= c.size;
        }
    }
    let access = |slot: u32| {
        Some(Access {
            kind: AccessKind::Element,
            base: 0,
            offset: 0,
            slots: smallvec![slot],
            staggered: Vec::new(),
            guards: guards(layout, &layout.slot_offset(slot))?,
        })
    };
    let accesses: Vec<Access> = (0..layout.slots()).filter_map(access).collect();
    let cost = accesses.len() as u32 * (8 + 4 * terms.len() as u32);
    Ok(TransferPlan {
        direction,
        layout: layout.clone(),
        addressing: Addressing::Elements {
            constant_bits: view.offset,
            dynamic_bits: view.dynamic.clone(),
            terms,
        },
        accesses,
        stagger: smallvec![],
        only_first_replica: if direction == Direction::Store {
            layout.replicated_bits()
        } else {
            0
        },
        conflicts: 1,
        sector_percent: 100,
        cost,
    })
}

/// The slot that lanes of a group access where those of group 0 access `slot`.
fn reverse(slot: u32, stagger: &[Reversal], group: usize) -> u32 {
    let reversed = stagger.iter().enumerate().filter(|(k, _)| group >> k & 1 != 0);
    reversed.fold(slot, |slot, (_, r)| match slot / r.slot % 2 {
        0 => slot + r.slot,
        _ => slot - r.slot,
    })
}

/// All values of the digits, the first slowest in memory order of the list's end: (slot, offset in bits).
fn enumerate(runs: &[Run]) -> Vec<(u32, u64)> {
    let mut out = vec![(0, 0)];
    for r in runs {
        let now = std::mem::take(&mut out);
        for k in 0..r.size {
            out.extend(now.iter().map(|&(s, o)| (s + k as u32 * r.slot, o + k * r.stride)));
        }
    }
    out
}

fn enumerate_with_index(runs: &[Run], axes: usize) -> Vec<(u32, u64, SmallVec<[u64; 4]>)> {
    let mut out = vec![(0, 0, SmallVec::from_elem(0, axes))];
    for r in runs {
        let now = std::mem::take(&mut out);
        for k in 0..r.size {
            out.extend(now.iter().map(|(s, o, i)| {
                let mut i = i.clone();
                i[r.axis] += k * r.index;
                (s + k as u32 * r.slot, o + k * r.stride, i)
            }));
        }
    }
    out
}

/// Joins terms of neighbouring bits whose strides continue each other.
fn join_terms(terms: Vec<Term>) -> Vec<Term> {
    let mut out: Vec<Term> = Vec::new();
    for t in terms {
        match out.last_mut() {
            Some(l) if l.source == t.source && l.lo_bit + l.bits == t.lo_bit && l.stride << l.bits == t.stride => {
                l.bits += t.bits;
            }
            _ => out.push(t),
        }
    }
    out
}

/// Shared-memory wavefronts of one access of `bytes` per lane, and the fewest there could be. Lanes are served in
/// groups that move up to 128 bytes; in a group, each bank delivers one 4-byte word per wavefront to all lanes that want
/// it.
pub fn wavefronts(address: &dyn Fn(u32) -> u64, bytes: u32, lanes: u32) -> (u32, u32) {
    let group = (128 / bytes.max(4)).min(lanes);
    let mut total = 0;
    let mut first = 0;
    while first < lanes {
        let mut words: SmallVec<[u64; 32]> = smallvec![];
        for lane in first..(first + group).min(lanes) {
            let a = address(lane) / 4;
            words.extend((0..u64::from(bytes.div_ceil(4))).map(|k| a + k));
        }
        words.sort_unstable();
        words.dedup();
        let mut banks = [0u8; 32];
        words.iter().for_each(|w| banks[(w % 32) as usize] += 1);
        total += u32::from(*banks.iter().max().expect("32 banks"));
        first += group;
    }
    (total, lanes.div_ceil(group))
}

/// Sectors of 32 bytes that a warp's access touches, and the fewest that could hold its distinct bytes.
pub fn sectors(address: &dyn Fn(u32) -> u64, bytes: u32) -> (u32, u32) {
    let mut units: SmallVec<[u64; 32]> = (0..32).map(address).collect();
    units.sort_unstable();
    units.dedup();
    let ideal = (units.len() as u32 * bytes).div_ceil(32);
    let mut touched: SmallVec<[u64; 32]> = units
        .iter()
        .flat_map(|a| [a / 32, (a + u64::from(bytes) - 1) / 32])
        .collect();
    touched.dedup();
    (touched.len() as u32, ideal.max(1))
}

impl TransferPlan {
    /// Threads of the group that take part.
    pub fn acts(&self, thread: u32) -> bool {
        thread & u32::from(self.only_first_replica) == 0
    }
    /// Which variant of a staggered access a thread executes (0: `slots`, k: `staggered[k - 1]`).
    pub fn variant(&self, thread: u32) -> usize {
        self.stagger
            .iter()
            .enumerate()
            .map(|(k, &bit)| ((thread >> bit & 1) as usize) << k)
            .sum()
    }
    pub fn group(&self) -> Group {
        self.layout.group()
    }
    /// The bytes of a vector access, 0 if there is none.
    fn vector_bytes(&self) -> u32 {
        match self.accesses.first().map(|a| a.kind) {
            Some(AccessKind::Vector { bytes }) => bytes,
            Some(AccessKind::Matrix { .. } | AccessKind::Element) | None => 0,
        }
    }
}

impl Access {
    pub fn slots_of(&self, variant: usize) -> &[u32] {
        if variant == 0 {
            &self.slots
        } else {
            &self.staggered[variant - 1]
        }
    }
}
