//! Plans for changing the register layout of an array, for any pair of layouts.
//!
//! On the common refinement of source and destination every index digit has a place in both. With thread digits cut into
//! bits there are five kinds:
//!
//! | source → destination | name | what moves |
//! |---|---|---|
//! | slot → slot | D | nothing: slots are renamed |
//! | lane → lane, warp → the same warp bit | C | a permutation of lanes, part of a shuffle |
//! | slot → lane | A | the sender chooses which slot to send |
//! | lane → slot | B | the receiver gets one slot per round |
//! | constant → anything | | nothing |
//!
//! If no digit goes from one warp to another, the program exchanges A against B in 2^|B| rounds. Each A bit is paired
//! with a B bit (or with a lane or warp bit along which the source holds copies). In round x the receiver whose A bits are a
//! gets the element whose B bits are b = a ^ x, from the lane with those B bits; that lane sends slot a = b ^ x: so every
//! lane sends one word and gets one word. What "slot b ^ x" and "slot a ^ x" mean depends on the lane: conditional swaps
//! before and after, two selects per pair of words. Rounds in which each lane sends to itself need no shuffle.
//!
//! Words of packed types travel whole: the bits inside a word (J) must be slot digits on both sides; byte permutes before and
//! after bring them there. Where that is impossible elements travel unpacked, one per word.
//!
//! Everything else goes through shared memory, in a scratch layout made for the pair: the slots that both sides have as
//! vectors innermost, then the lane digits of the store, then those of the load, XORed into the banks of the former. Both
//! sides are free of bank conflicts where the digits are powers of two.
use super::address::Fold;
use super::derivation::materialized;
use super::digits::{self, Chain, Digit};
use super::register_layout::{Aligned, Axis, LANE_BITS, Place, RegisterLayout};
use super::smem_layout::{SmemView, Stride, Swizzle, ViewDim};
use super::transfer::{self, AccessKind, Addressing, Direction, Memory, Options, TransferPlan};
use crate::dtype::DType;
use smallvec::{SmallVec, smallvec};
use std::collections::HashMap;
use std::fmt;

/// A 32-bit word of a thread: inputs first (the packed words of the source), then one per operation.
pub type Word = u32;

/// Where the lanes of a shuffle read from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LaneMap {
    /// Bit t of the source lane is bit `from[t]` of the reading lane (`None`: 0), …
    pub from: [Option<u8>; 5],
    /// … XORed with bit t of this.
    pub flip: u8,
}

impl LaneMap {
    const IDENTITY: LaneMap = LaneMap {
        from: [Some(0), Some(1), Some(2), Some(3), Some(4)],
        flip: 0,
    };

    /// `shfl.bfly` with this mask does it.
    pub fn butterfly(&self) -> Option<u8> {
        (self.from == Self::IDENTITY.from).then_some(self.flip)
    }
    pub fn source(&self, lane: u32) -> u32 {
        let bit = |t: usize| self.from[t].map_or(0, |b| lane >> b & 1) << t;
        (0..5).map(bit).sum::<u32>() ^ u32::from(self.flip)
    }
}

/// Operations on words; each defines the next word. Thread bits: 0..5 the lane, 5..7 the warp.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Op {
    /// `prmt.b32` with a constant selector: nibble k picks byte k of the result from a (0-3) or b (4-7).
    Permute { a: Word, b: Word, selector: u16 },
    /// The word of `one` where the thread bit is set, else of `zero`.
    Select { bit: u8, zero: Word, one: Word },
    /// `shfl.sync`.
    Shuffle { a: Word, lanes: LaneMap },
    /// Bits `lo..lo + bits` of `a`, zero-extended.
    Extract { a: Word, lo: u8, bits: u8 },
    /// `a` with bits `lo..lo + bits` replaced by the low bits of `b`.
    Insert { a: Word, b: Word, lo: u8, bits: u8 },
}

/// A relayout inside the warps.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct Program {
    pub inputs: u32,
    pub ops: Vec<Op>,
    /// The packed words of the destination.
    pub outputs: Vec<Word>,
}

impl Program {
    pub fn shuffles(&self) -> usize {
        self.ops.iter().filter(|o| matches!(o, Op::Shuffle { .. })).count()
    }
    fn cost(&self) -> u32 {
        // A shuffle occupies the memory pipeline like a shared-memory access.
        (self.ops.len() + 3 * self.shuffles()) as u32
    }
}

/// One pass through the scratch buffer: store, group barrier, load; another barrier before the next pass.
#[derive(Clone, Debug, PartialEq)]
pub struct Trip {
    pub store: TransferPlan,
    pub load: TransferPlan,
}

#[derive(Clone, Debug, PartialEq)]
pub struct ScratchPlan {
    /// The scratch buffer as the array lies in it (for element-addressed transfers).
    pub view: SmemView,
    /// Bytes of scratch that a trip uses; 16-byte alignment suffices.
    pub bytes: u64,
    /// Elements travel in this many bits (8 for narrower types whose vectors don't make whole bytes).
    pub travel_bits: u32,
    /// What is stored: the source, its constant digits spread over slots ([`RegisterLayout::rename_to`]).
    pub source: RegisterLayout,
    pub trips: Vec<Trip>,
}

#[derive(Clone, Debug, PartialEq)]
pub enum RelayoutKind {
    Registers(Program),
    Scratch(Box<ScratchPlan>),
}

#[derive(Clone, Debug, PartialEq)]
pub struct RelayoutPlan {
    pub kind: RelayoutKind,
    /// Relative, comparable with [`TransferPlan::cost`].
    pub cost: u32,
}

impl fmt::Display for RelayoutPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.kind {
            RelayoutKind::Registers(p) if p.ops.is_empty() => f.write_str("registers are renamed")?,
            RelayoutKind::Registers(p) => write!(f, "{} instructions, {} of them shuffles", p.ops.len(), p.shuffles())?,
            RelayoutKind::Scratch(s) => {
                write!(f, "{} trips through {} bytes of shared memory", s.trips.len(), s.bytes)?
            }
        }
        write!(f, ", cost {}", self.cost)
    }
}

/// Bits of an element as it travels.
pub fn travel_bits(dtype: DType) -> u32 {
    match dtype {
        DType::Bool => 8,
        d => d.bits(),
    }
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RelayoutError {
    #[error("layouts of different arrays or groups: {0} and {1}")]
    Different(String, String),
    #[error("an array cannot be made constant by changing its layout: {0}")]
    ToConstant(String),
    #[error("the relayout needs {needed} bytes of shared memory as scratch, there are {available}")]
    Scratch { needed: u64, available: u64 },
    #[error("{0} words of each thread, more than it can hold")]
    TooLarge(u64),
}

/// Words of a thread in either layout above which nothing is planned: twice what a thread can hold ([`crate::target::Target::max_live_words`]).
const MAX_WORDS: u32 = 1 << 13;

/// The cheapest plan from `src` to `dst` with at most `scratch` bytes of shared memory.
pub fn plan(
    src: &RegisterLayout,
    dst: &RegisterLayout,
    bits: u32,
    scratch: u64,
) -> Result<RelayoutPlan, RelayoutError> {
    if src.shape() != dst.shape() || src.group() != dst.group() {
        return Err(RelayoutError::Different(src.to_string(), dst.to_string()));
    }
    let words = src.words(bits).max(dst.words(bits));
    if words > MAX_WORDS {
        return Err(RelayoutError::TooLarge(words.into()));
    }
    let aligned = src.align(dst);
    let made_constant = |d: &Aligned| d.b == Place::Constant && d.a != Place::Constant;
    let dst_constant = dst
        .axes()
        .iter()
        .flat_map(|a| &a.chain)
        .any(|d| d.place == Place::Constant);
    if dst_constant && aligned.as_ref().is_none_or(|d| d.iter().any(made_constant)) {
        return Err(RelayoutError::ToConstant(dst.to_string()));
    }
    let program = if src.is_splat() {
        Some(rename_splat(dst, bits))
    } else {
        aligned.as_deref().and_then(|d| in_warp(src, dst, d, bits))
    };
    if let Some(p) = program {
        let cost = p.cost();
        // Shared memory costs two barriers and the latency of a trip: look only when the program is long.
        let cheaper = if cost > 96 {
            through_scratch(src, dst, aligned.as_deref(), bits, scratch)
                .ok()
                .filter(|s| s.cost < cost)
        } else {
            None
        };
        return Ok(cheaper.unwrap_or(RelayoutPlan {
            kind: RelayoutKind::Registers(p),
            cost,
        }));
    }
    through_scratch(src, dst, aligned.as_deref(), bits, scratch)
}

// ------------------------------------------------------------------------------------------------------------ in a warp

struct Builder {
    inputs: u32,
    ops: Vec<Op>,
    known: HashMap<Op, Word>,
}

impl Builder {
    fn new(inputs: u32) -> Builder {
        Builder {
            inputs,
            ops: Vec::new(),
            known: HashMap::new(),
        }
    }
    fn emit(&mut self, op: Op) -> Word {
        let next = self.inputs + self.ops.len() as u32;
        let (ops, known) = (&mut self.ops, &mut self.known);
        *known.entry(op).or_insert_with(|| {
            ops.push(op);
            next
        })
    }
    fn select(&mut self, bit: u8, zero: Word, one: Word) -> Word {
        if zero == one {
            zero
        } else {
            self.emit(Op::Select { bit, zero, one })
        }
    }
    fn shuffle(&mut self, a: Word, lanes: LaneMap) -> Word {
        if lanes == LaneMap::IDENTITY {
            a
        } else {
            self.emit(Op::Shuffle { a, lanes })
        }
    }
    fn permute(&mut self, a: Word, b: Word, selector: u16) -> Word {
        match selector {
            0x3210 => a,
            0x7654 => b,
            _ => self.emit(Op::Permute { a, b, selector }),
        }
    }
    /// The word whose elements, low ones first, are found at the given (word, bit); `None` = don't care.
    fn gather(&mut self, elements: &[Option<(Word, u32)>], bits: u32) -> Word {
        if bits >= 32 {
            return elements[0].map_or(0, |e| e.0);
        }
        if bits < 8 {
            return self.gather_bits(elements, bits);
        }
        let per = (bits / 8) as usize;
        let bytes: SmallVec<[Option<(Word, u32)>; 4]> = elements
            .iter()
            .flat_map(|e| (0..per as u32).map(move |k| e.map(|(w, at)| (w, at / 8 + k))))
            .collect();
        let mut words: SmallVec<[Word; 4]> = bytes.iter().flatten().map(|b| b.0).collect();
        words.sort_unstable();
        words.dedup();
        match words[..] {
            [] => 0,
            [a] => self.permute(a, a, selector(&bytes, a, a)),
            [a, b] => self.permute(a, b, selector(&bytes, a, b)),
            _ => {
                // Two words at a time.
                let (a, b) = (words[0], words[1]);
                let (c, d) = (words[2], *words.last().expect("three or four words"));
                let in_ab = |x: &Option<(Word, u32)>| x.filter(|x| x.0 == a || x.0 == b);
                let low: SmallVec<[_; 4]> = bytes.iter().map(in_ab).collect();
                let high: SmallVec<[_; 4]> = bytes.iter().map(|x| x.filter(|x| x.0 == c || x.0 == d)).collect();
                let first = self.permute(a, b, selector(&low, a, b));
                let second = self.permute(c, d, selector(&high, c, d));
                let pick = |(k, x): (usize, &Option<(Word, u32)>)| {
                    let k = k as u32;
                    x.map(|x| if x.0 == a || x.0 == b { (first, k) } else { (second, k) })
                };
                let both: SmallVec<[_; 4]> = bytes.iter().enumerate().map(pick).collect();
                self.permute(first, second, selector(&both, first, second))
            }
        }
    }
    fn gather_bits(&mut self, elements: &[Option<(Word, u32)>], bits: u32) -> Word {
        let whole = |w: Word| {
            elements
                .iter()
                .enumerate()
                .all(|(k, e)| e.is_none_or(|e| e == (w, k as u32 * bits)))
        };
        let Some(first) = elements.iter().flatten().next() else {
            return 0;
        };
        if whole(first.0) {
            return first.0;
        }
        let mut word = None;
        for (k, e) in elements.iter().enumerate() {
            let Some((w, at)) = *e else { continue };
            let one = if at == 0 {
                w
            } else {
                self.emit(Op::Extract {
                    a: w,
                    lo: at as u8,
                    bits: bits as u8,
                })
            };
            word = Some(match word {
                None if k == 0 => one,
                None => self.emit(Op::Insert {
                    a: one,
                    b: one,
                    lo: (k as u32 * bits) as u8,
                    bits: bits as u8,
                }),
                Some(a) => self.emit(Op::Insert {
                    a,
                    b: one,
                    lo: (k as u32 * bits) as u8,
                    bits: bits as u8,
                }),
            });
        }
        word.unwrap_or(0)
    }
    fn finish(self, outputs: Vec<Word>) -> Program {
        // Drop what is never read.
        let total = self.inputs as usize + self.ops.len();
        let mut live = vec![false; total];
        outputs.iter().for_each(|&w| live[w as usize] = true);
        for (k, op) in self.ops.iter().enumerate().rev() {
            if live[self.inputs as usize + k] {
                op.operands().into_iter().for_each(|w| live[w as usize] = true);
            }
        }
        let mut number: Vec<Word> = (0..total as u32).collect();
        let mut ops = Vec::new();
        for (k, op) in self.ops.iter().enumerate() {
            let at = self.inputs as usize + k;
            if live[at] {
                number[at] = self.inputs + ops.len() as u32;
                ops.push(op.renamed(&number));
            }
        }
        Program {
            inputs: self.inputs,
            ops,
            outputs: outputs.iter().map(|&w| number[w as usize]).collect(),
        }
    }
}

impl Op {
    pub fn operands(&self) -> SmallVec<[Word; 2]> {
        match *self {
            Op::Permute { a, b, .. } | Op::Insert { a, b, .. } => smallvec![a, b],
            Op::Select { zero, one, .. } => smallvec![zero, one],
            Op::Shuffle { a, .. } | Op::Extract { a, .. } => smallvec![a],
        }
    }
    fn renamed(&self, number: &[Word]) -> Op {
        let n = |w: Word| number[w as usize];
        match *self {
            Op::Permute { a, b, selector } => Op::Permute {
                a: n(a),
                b: n(b),
                selector,
            },
            Op::Insert { a, b, lo, bits } => Op::Insert {
                a: n(a),
                b: n(b),
                lo,
                bits,
            },
            Op::Select { bit, zero, one } => Op::Select {
                bit,
                zero: n(zero),
                one: n(one),
            },
            Op::Shuffle { a, lanes } => Op::Shuffle { a: n(a), lanes },
            Op::Extract { a, lo, bits } => Op::Extract { a: n(a), lo, bits },
        }
    }
}

/// Don't-care bytes keep their position where that makes the permute an identity.
fn selector(bytes: &[Option<(Word, u32)>], a: Word, b: Word) -> u16 {
    let from_a = bytes.iter().flatten().any(|x| x.0 == a);
    bytes.iter().enumerate().fold(0, |s, (k, x)| {
        let byte = match *x {
            Some((w, at)) if w == a => at,
            Some((w, at)) => {
                assert_eq!(w, b);
                at + 4
            }
            None => k as u32 + if from_a { 0 } else { 4 },
        };
        s | (byte as u16) << (4 * k)
    })
}

fn rename_splat(dst: &RegisterLayout, bits: u32) -> Program {
    if bits > 32 {
        return Program {
            inputs: 2,
            ops: Vec::new(),
            outputs: (0..dst.slots()).flat_map(|_| [0, 1]).collect(),
        };
    }
    let mut b = Builder::new(1);
    let word = b.gather(&vec![Some((0, 0)); RegisterLayout::slots_per_word(bits) as usize], bits);
    let outputs = vec![word; dst.words(bits) as usize];
    b.finish(outputs)
}

/// A slot digit on both sides; strides of slots (source 0: constant).
#[derive(Clone, Copy)]
struct Kept {
    size: u64,
    src: u32,
    dst: u32,
}

/// A bit that the source has in a slot digit and the destination in a thread bit.
#[derive(Clone, Copy)]
struct ToThread {
    src: u32,
    dst_bit: u8,
    /// The thread bit of the source that stands for this bit's value at the sender, and its number in B if it is one.
    sender: u8,
    round: Option<usize>,
}

#[derive(Clone, Copy)]
struct ToSlot {
    src_bit: u8,
    dst: u32,
    /// The destination thread bit that it is exchanged with.
    paired: Option<u8>,
}

struct Exchange {
    kept: Vec<Kept>,
    a: Vec<ToThread>,
    b: Vec<ToSlot>,
    lanes: [Option<u8>; 5],
}

/// Sorts the digits into the five kinds; `None` if something must change warps.
fn classify(src: &RegisterLayout, digits: &[Aligned]) -> Option<Exchange> {
    let mut x = Exchange {
        kept: Vec::new(),
        a: Vec::new(),
        b: Vec::new(),
        lanes: LaneMap::IDENTITY.from,
    };
    let mut moved = [None; 5];
    for d in digits {
        let bits = d.size.trailing_zeros() as u8;
        match (d.a, d.b) {
            (Place::Constant, Place::Slot(dst)) => x.kept.push(Kept {
                size: d.size,
                src: 0,
                dst,
            }),
            (Place::Constant, Place::Thread(_) | Place::Constant) => {}
            (_, Place::Constant) => return None,
            (Place::Slot(src), Place::Slot(dst)) => x.kept.push(Kept { size: d.size, src, dst }),
            (Place::Slot(s), Place::Thread(t)) => {
                x.a.extend((0..bits).map(|k| ToThread {
                    src: s << k,
                    dst_bit: t + k,
                    sender: u8::MAX,
                    round: None,
                }));
            }
            (Place::Thread(t), Place::Slot(s)) => {
                if t + bits > LANE_BITS {
                    return None;
                }
                x.b.extend((0..bits).map(|k| ToSlot {
                    src_bit: t + k,
                    dst: s << k,
                    paired: None,
                }));
            }
            (Place::Thread(t), Place::Thread(u)) => {
                if (t >= LANE_BITS || u >= LANE_BITS) && t != u {
                    return None;
                }
                for k in (0..bits).filter(|_| t < LANE_BITS) {
                    moved[usize::from(t + k)] = Some(u + k);
                }
            }
        }
    }
    // Pair every A bit: with a B bit or a copied bit at its own position, then with what is left.
    let mut free = src.replicated_bits();
    for a in x.a.iter_mut() {
        if let Some(k) = x.b.iter().position(|b| b.src_bit == a.dst_bit && b.paired.is_none()) {
            x.b[k].paired = Some(a.dst_bit);
            (a.sender, a.round) = (a.dst_bit, Some(k));
        } else if free >> a.dst_bit & 1 != 0 {
            free &= !(1 << a.dst_bit);
            a.sender = a.dst_bit;
        } else if a.dst_bit >= LANE_BITS {
            return None;
        }
    }
    for a in x.a.iter_mut().filter(|a| a.sender == u8::MAX) {
        if let Some(k) = x.b.iter().position(|b| b.paired.is_none()) {
            x.b[k].paired = Some(a.dst_bit);
            (a.sender, a.round) = (x.b[k].src_bit, Some(k));
        } else {
            let lane = (0..LANE_BITS).find(|b| free >> b & 1 != 0)?;
            free &= !(1 << lane);
            a.sender = lane;
        }
    }
    // Which lane to read from, round 0.
    for t in 0..LANE_BITS {
        let from = if let Some(u) = moved[usize::from(t)] {
            Some(u)
        } else if let Some(b) = x.b.iter().find(|b| b.src_bit == t) {
            b.paired
        } else if let Some(a) = x.a.iter().find(|a| a.sender == t) {
            Some(a.dst_bit)
        } else {
            Some(t)
        };
        x.lanes[usize::from(t)] = from;
    }
    Some(x)
}

fn in_warp(src: &RegisterLayout, dst: &RegisterLayout, digits: &[Aligned], bits: u32) -> Option<Program> {
    let mut x = classify(src, digits)?;
    // Large exchanges are better done through memory, and the rounds are exponential.
    if x.a.len() > 5 || x.b.len() > 5 {
        return None;
    }
    let planes = bits.div_ceil(32);
    let per_word = RegisterLayout::slots_per_word(bits);
    let inside = take_inside(&mut x.kept, per_word);
    let mut builder = Builder::new(src.words(bits));
    let mut outputs = Vec::new();
    let mut at: Vec<Vec<Option<(Word, u32)>>> = vec![vec![None; dst.slots() as usize]; planes as usize];
    let combos = combinations(&x.kept);
    for (plane, at) in at.iter_mut().enumerate() {
        for &(s0, d0) in &combos {
            let word_at = |builder: &mut Builder, slot: u32| -> Word {
                match &inside {
                    _ if bits >= 32 => slot * planes + plane as u32,
                    Some(j) => {
                        let elements: SmallVec<[_; 4]> = (0..per_word)
                            .map(|e| {
                                let s = slot + j.iter().enumerate().map(|(k, x)| (e >> k & 1) * x.src).sum::<u32>();
                                Some((s / per_word, s % per_word * bits))
                            })
                            .collect();
                        builder.gather(&elements, bits)
                    }
                    None => {
                        let (w, lo) = (slot / per_word, slot % per_word * bits);
                        builder.emit(Op::Extract {
                            a: w,
                            lo: lo as u8,
                            bits: bits as u8,
                        })
                    }
                }
            };
            let mut words: Vec<Word> = (0..1u32 << x.a.len())
                .map(|v| {
                    let slot = s0 + x.a.iter().enumerate().map(|(k, a)| (v >> k & 1) * a.src).sum::<u32>();
                    word_at(&mut builder, slot)
                })
                .collect();
            // The sender's order: word v becomes what it sends in the round for "its bits ^ v".
            for (k, a) in x.a.iter().enumerate() {
                for v in (0..words.len()).filter(|v| v >> k & 1 == 0) {
                    let (zero, one) = (words[v], words[v | 1 << k]);
                    words[v] = builder.select(a.sender, zero, one);
                    words[v | 1 << k] = builder.select(a.sender, one, zero);
                }
            }
            let mut received: Vec<Word> = (0..1usize << x.b.len())
                .map(|round| {
                    let mut v = 0;
                    for (k, a) in x.a.iter().enumerate() {
                        v |= a.round.map_or(0, |b| round >> b & 1) << k;
                    }
                    let mut lanes = LaneMap { from: x.lanes, flip: 0 };
                    for (k, b) in x.b.iter().enumerate() {
                        lanes.flip |= ((round >> k & 1) as u8) << b.src_bit;
                    }
                    builder.shuffle(words[v], lanes)
                })
                .collect();
            // The receiver's order.
            for (k, b) in x.b.iter().enumerate() {
                let Some(bit) = b.paired else { continue };
                for v in (0..received.len()).filter(|v| v >> k & 1 == 0) {
                    let (zero, one) = (received[v], received[v | 1 << k]);
                    received[v] = builder.select(bit, zero, one);
                    received[v | 1 << k] = builder.select(bit, one, zero);
                }
            }
            for (v, &word) in received.iter().enumerate() {
                let slot = d0
                    + x.b
                        .iter()
                        .enumerate()
                        .map(|(k, b)| (v as u32 >> k & 1) * b.dst)
                        .sum::<u32>();
                match &inside {
                    Some(j) => {
                        for e in 0..per_word {
                            let s = slot + j.iter().enumerate().map(|(k, x)| (e >> k & 1) * x.dst).sum::<u32>();
                            at[s as usize] = Some((word, e * bits));
                        }
                    }
                    None => at[slot as usize] = Some((word, 0)),
                }
            }
        }
    }
    if bits >= 32 {
        for slot in 0..dst.slots() as usize {
            outputs.extend(at.iter().map(|plane| plane[slot].expect("every slot is received").0));
        }
    } else {
        for word in at[0].chunks(per_word as usize) {
            let mut elements: SmallVec<[_; 4]> = word.iter().copied().collect();
            elements.resize(per_word as usize, None);
            outputs.push(builder.gather(&elements, bits));
        }
    }
    Some(builder.finish(outputs))
}

/// Takes log2(per_word) bits out of the digits that are slots on both sides, to travel inside words; `None` if there are too
/// few, or elements are smaller than bytes.
fn take_inside(kept: &mut Vec<Kept>, per_word: u32) -> Option<SmallVec<[Kept; 2]>> {
    if per_word == 1 {
        return Some(smallvec![]);
    }
    if per_word > 4 {
        return None;
    }
    let want = per_word.trailing_zeros() as usize;
    let mut bits: Vec<Kept> = Vec::new();
    for d in kept.iter().filter(|d| d.src != 0) {
        let twos = d.size.trailing_zeros();
        bits.extend((0..twos).map(|k| Kept {
            size: 2,
            src: d.src << k,
            dst: d.dst << k,
        }));
    }
    // Bits that are inside words on both sides at the same place first, then on one side, then any.
    let rank = |d: &Kept| match (d.src < per_word, d.dst < per_word) {
        (true, true) => (u32::from(d.src != d.dst), d.src),
        (true, false) | (false, true) => (2, d.src.min(d.dst)),
        (false, false) => (3, d.src),
    };
    bits.sort_by_key(rank);
    bits.truncate(want);
    if bits.len() < want {
        return None;
    }
    bits.sort_by_key(|d| (d.src.min(d.dst), d.src));
    // Remove them from the digits.
    let mut rest = Vec::new();
    for d in kept.iter() {
        let twos = if d.src == 0 { 0 } else { d.size.trailing_zeros() };
        for k in 0..twos {
            let bit = Kept {
                size: 2,
                src: d.src << k,
                dst: d.dst << k,
            };
            if !bits.iter().any(|b| (b.src, b.dst) == (bit.src, bit.dst)) {
                rest.push(bit);
            }
        }
        let odd = d.size >> twos;
        if odd > 1 {
            rest.push(Kept {
                size: odd,
                src: d.src << twos,
                dst: d.dst << twos,
            });
        }
    }
    *kept = rest;
    Some(bits.into_iter().collect())
}

/// All values of the digits as (source slot, destination slot).
fn combinations(kept: &[Kept]) -> Vec<(u32, u32)> {
    let mut out = vec![(0, 0)];
    for d in kept {
        let now = std::mem::take(&mut out);
        for k in 0..d.size as u32 {
            out.extend(now.iter().map(|(s, t)| (s + k * d.src, t + k * d.dst)));
        }
    }
    out
}

// ------------------------------------------------------------------------------------------------- through shared memory

fn through_scratch(
    src: &RegisterLayout,
    dst: &RegisterLayout,
    aligned: Option<&[Aligned]>,
    bits: u32,
    scratch: u64,
) -> Result<RelayoutPlan, RelayoutError> {
    let constant = src
        .axes()
        .iter()
        .flat_map(|a| &a.chain)
        .any(|d| d.place == Place::Constant);
    let source = if constant { materialized(src) } else { src.clone() };
    let spread;
    let aligned = if constant {
        spread = source.align(dst);
        spread.as_deref()
    } else {
        aligned
    };
    let mut smallest = u64::MAX;
    let mut widths: SmallVec<[u32; 2]> = smallvec![bits];
    if bits < 8 {
        widths.push(8);
    }
    for plain in [false, true] {
        for &travel in &widths {
            let candidate = if plain {
                let view = SmemView::row_major(source.shape(), travel);
                let bytes = view.span_bytes().next_multiple_of(16);
                Some((view, bytes))
            } else {
                // Narrower vectors leave more digits to split into passes.
                aligned.and_then(|d| {
                    let made = |w| scratch_view(&source, dst, d, travel, scratch, w);
                    let mut made = [128, 64, 32].into_iter().map_while(made);
                    let first = made.next()?;
                    if first.1 <= scratch {
                        Some(first)
                    } else {
                        made.find(|m| m.1 <= scratch).or(Some(first))
                    }
                })
            };
            let Some((view, chunk)) = candidate else { continue };
            if chunk > scratch {
                smallest = smallest.min(chunk);
                continue;
            }
            // Addresses relative to the buffer: any alignment of 16 bytes will do.
            let options = Options {
                matrix: false,
                stagger: false,
                singly: false,
            };
            let side = |l: &RegisterLayout, direction| transfer::plan(l, &view, Memory::Shared, direction, options);
            let (Ok(store), Ok(load)) = (side(&source, Direction::Store), side(dst, Direction::Load)) else {
                continue;
            };
            if let (Addressing::Affine(s), Addressing::Affine(l)) = (&store.addressing, &load.addressing) {
                if !view.swizzle.is_none() && (s.fold, l.fold) != (Fold::Linear, Fold::Linear) {
                    continue;
                }
                return Ok(trips(view, chunk, travel, source, store, load));
            }
            let cost = store.cost + load.cost + 60;
            let trips = vec![Trip { store, load }];
            let plan = ScratchPlan {
                view,
                bytes: chunk,
                travel_bits: travel,
                source,
                trips,
            };
            return Ok(RelayoutPlan {
                kind: RelayoutKind::Scratch(Box::new(plan)),
                cost,
            });
        }
    }
    Err(RelayoutError::Scratch {
        needed: smallest,
        available: scratch,
    })
}

/// Cuts the accesses of both sides into passes of `chunk` bytes.
fn trips(
    view: SmemView,
    chunk: u64,
    travel_bits: u32,
    source: RegisterLayout,
    store: TransferPlan,
    load: TransferPlan,
) -> RelayoutPlan {
    let last = |p: &TransferPlan| p.accesses.iter().map(|a| a.offset as u64 / chunk).max().unwrap_or(0);
    let passes = last(&store).max(last(&load)) + 1;
    let parts = |mut p: TransferPlan| {
        let accesses = std::mem::take(&mut p.accesses);
        let mut parts = vec![p; passes as usize];
        for mut a in accesses {
            assert!(matches!(a.kind, AccessKind::Vector { .. }));
            let pass = a.offset as u64 / chunk;
            a.offset -= (pass * chunk) as i64;
            parts[pass as usize].accesses.push(a);
        }
        parts
    };
    let cost = store.cost + load.cost + 60 * passes as u32;
    let trips = match passes {
        1 => vec![Trip { store, load }],
        _ => (parts(store).into_iter().zip(parts(load)))
            .map(|(store, load)| Trip { store, load })
            .collect(),
    };
    let plan = ScratchPlan {
        view,
        bytes: chunk,
        travel_bits,
        source,
        trips,
    };
    RelayoutPlan {
        kind: RelayoutKind::Scratch(Box::new(plan)),
        cost,
    }
}

/// A digit of the pair on its way to a place in the scratch buffer.
#[derive(Clone, Copy)]
struct Cell {
    size: u64,
    a: Place,
    b: Place,
    axis: usize,
    index: u64,
    stride: u64,
}

/// The scratch layout for a pair, and the bytes of one pass: `(view, chunk)`. `None` if an axis straddles dimensions.
fn scratch_view(
    src: &RegisterLayout,
    dst: &RegisterLayout,
    digits: &[Aligned],
    bits: u32,
    scratch: u64,
    widest: u64,
) -> Option<(SmemView, u64)> {
    if src.axes().iter().chain(dst.axes()).any(|a| a.rank != 1) {
        return None;
    }
    let mut cells: Vec<Cell> = Vec::new();
    for d in digits {
        let axis = src.axes().iter().position(|a| a.first == d.first_dim)?;
        // Everything that touches a lane is cut into bits, and so are slots that may become vectors.
        let bit_by_bit = d.size.is_power_of_two();
        let n = if bit_by_bit { d.size.trailing_zeros() } else { 1 };
        for k in 0..n {
            use digits::Place as _;
            let below = 1 << k;
            let size = if bit_by_bit { 2 } else { d.size };
            cells.push(Cell {
                size,
                a: d.a.above(below),
                b: d.b.above(below),
                axis,
                index: d.stride * below,
                stride: 0,
            });
        }
    }
    let slots = |c: &Cell| match (c.a, c.b) {
        (Place::Slot(s), Place::Slot(t)) => Some((s, t)),
        _ => None,
    };
    let mut order: Vec<usize> = Vec::new();
    let mut rest: Vec<usize> = (0..cells.len()).collect();
    let take = |order: &mut Vec<usize>, rest: &mut Vec<usize>, k: usize| {
        rest.retain(|&x| x != k);
        order.push(k);
    };
    // Vectors: slots on both sides, neighbours first.
    let mut vectors: Vec<usize> = rest
        .iter()
        .copied()
        .filter(|&k| cells[k].size == 2 && slots(&cells[k]).is_some())
        .collect();
    // A vector must not hold elements and padding: only digits that divide the valid size.
    vectors.retain(|&k| {
        let axis = (&src.axes()[cells[k].axis], &dst.axes()[cells[k].axis]);
        let whole = |a: &Axis| !a.is_padded() || a.size.is_multiple_of(cells[k].index * 2);
        whole(axis.0) && whole(axis.1)
    });
    vectors.sort_by_key(|&k| slots(&cells[k]).map(|(s, t)| (s.max(t), s)));
    let mut width = u64::from(bits);
    for k in vectors {
        if width >= widest {
            break;
        }
        width *= 2;
        take(&mut order, &mut rest, k);
    }
    // Lanes that one wavefront serves together.
    let bytes = (width / 8).max(1);
    let phase = (7 - bytes.trailing_zeros() as u8).min(LANE_BITS);
    let in_phase = |p: Place| matches!(p, Place::Thread(t) if t < phase);
    let pick = |rest: &[usize], a: bool, b: bool| -> Vec<usize> {
        rest.iter()
            .copied()
            .filter(|&k| in_phase(cells[k].a) == a && in_phase(cells[k].b) == b)
            .collect()
    };
    let (common, stores, loads) = (
        pick(&rest, true, true),
        pick(&rest, true, false),
        pick(&rest, false, true),
    );
    let bank_bits = 7usize.saturating_sub(bytes.trailing_zeros() as usize);
    let direct = bank_bits.saturating_sub(common.len() + stores.len()).min(loads.len());
    let xored = (loads.len() - direct).min(stores.len());
    // Bits below 2 select bytes of a word: the targets of the XOR start above them.
    let first_load = bytes.trailing_zeros() as usize + common.len() + stores.len() + direct;
    let base = (bytes.trailing_zeros() as usize + common.len()).max(2);
    let swizzle = Swizzle {
        bits: xored as u8,
        base: base as u8,
        shift: first_load.saturating_sub(base) as u8,
    };
    let swizzle = if xored == 0 { Swizzle::NONE } else { swizzle };
    for k in common.into_iter().chain(stores).chain(loads) {
        take(&mut order, &mut rest, k);
    }
    // Then all that must be in one pass, then slots of both sides, which may be split into passes.
    let (passes, together): (Vec<usize>, Vec<usize>) = rest.iter().partition(|&&k| slots(&cells[k]).is_some());
    order.extend(together);
    let mut stride = u64::from(bits);
    for &k in &order {
        cells[k].stride = stride;
        stride *= cells[k].size;
    }
    let mut chunk = stride;
    for k in passes {
        cells[k].stride = stride;
        stride *= cells[k].size;
        if stride <= scratch * 8 {
            chunk = stride;
        }
    }
    let mut dims: SmallVec<[ViewDim; 4]> = smallvec![];
    for (axis, a) in src.axes().iter().enumerate() {
        let mut own: Vec<&Cell> = cells.iter().filter(|c| c.axis == axis).collect();
        own.sort_by_key(|c| c.index);
        let chain: Chain<Stride> = own.iter().map(|c| Digit::new(c.size, Stride(c.stride))).collect();
        dims.push(ViewDim {
            size: a.size,
            chain: digits::merge(&chain),
            loose: smallvec![],
        });
    }
    let view = SmemView {
        bits,
        swizzle,
        dims,
        offset: 0,
        dynamic: smallvec![],
        dropped: smallvec![],
    };
    Some((view, chunk.div_ceil(8).next_multiple_of(16)))
}
