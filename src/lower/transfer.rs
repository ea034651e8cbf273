//! Emits transfer plans: registers to memory and back.
//!
//! Everything here is about raw bits: an array's registers as words of `bits`-bit elements ([`to_raw`], [`from_raw`]).
use super::cx::LowerCx;
use super::emit::{S, V};
use super::value::{ArrayRegs, Packing};
use super::view::dyn_value;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::layout::address::{AddressPlan, Fold};
use crate::layout::facts::{DynTerm, Start};
use crate::layout::transfer::{Access, AccessKind, Addressing, ElementTerm, Guard, TransferPlan};
use crate::layout::{RegisterLayout, Source, SmemView, Swizzle, Term};
use crate::ptx::inst::Inst;
use crate::ptx::modifier::*;
use crate::ptx::operand::{Addr, Class, Regs, Src, Srcs};
use crate::ptx::ssa::Value;
use smallvec::smallvec;

/// Memory that a plan's offsets count from.
#[derive(Clone, Copy, Debug)]
pub struct Home {
    pub space: Space,
    /// 64-bit for GMEM, 32-bit for SMEM.
    pub base: V,
    /// Added to every address.
    pub offset: i32,
    /// Nothing writes there while the kernel runs.
    pub read_only: bool,
}

impl Home {
    pub fn shared(base: V, offset: i32) -> Home {
        Home { space: Space::Shared, base, offset, read_only: false }
    }
    fn is_global(&self) -> bool {
        matches!(self.space, Space::Global | Space::Generic)
    }
    /// The arithmetic of addresses.
    fn int(&self) -> IntType {
        if self.is_global() { IntType::U64 } else { IntType::U32 }
    }
    fn class(&self) -> Class {
        self.int().slot().class
    }
}

/// Bits of an element as it travels: bools are bytes.
pub fn raw_bits(dtype: DType) -> u32 {
    dtype.bits()
}

/// The registers of an array as words of its bits; bools become bytes of 0 and 1.
pub fn to_raw(cx: &mut LowerCx, a: &ArrayRegs) -> Vec<S> {
    if a.dtype != DType::Bool {
        return a.regs.clone();
    }
    let bytes: Vec<S> =
        a.regs.iter().map(|&p| cx.b.pick(Class::B32, p, Src::u32(1), Src::u32(0))).collect();
    pack_raw(cx, 8, &bytes)
}

/// The array that raw registers stand for.
pub fn from_raw(cx: &mut LowerCx, dtype: DType, layout: RegisterLayout, regs: Vec<S>) -> ArrayRegs {
    if dtype != DType::Bool {
        return ArrayRegs { dtype, layout, regs };
    }
    let bytes = unpack_raw(cx, 8, &regs, layout.slots());
    let regs = bytes
        .into_iter()
        .map(|byte| cx.b.setp(Compare::Ne, CompareType::U32, byte, Src::u32(0)))
        .collect();
    ArrayRegs { dtype, layout, regs }
}

/// The unsigned type whose elements are raw bits.
fn raw_type(bits: u32) -> DType {
    match bits {
        2 => DType::U2,
        4 => DType::U4,
        8 => DType::U8,
        16 => DType::U16,
        32 => DType::U32,
        _ => DType::U64,
    }
}

/// Zero-extended elements as words.
pub fn pack_raw(cx: &mut LowerCx, bits: u32, elements: &[S]) -> Vec<S> {
    let per_word = RegisterLayout::slots_per_word(bits) as usize;
    elements.chunks(per_word).map(|c| cx.pack_word(raw_type(bits), bits, c)).collect()
}

/// The zero-extended elements of words.
pub fn unpack_raw(cx: &mut LowerCx, bits: u32, words: &[S], slots: u32) -> Vec<S> {
    let per_word = RegisterLayout::slots_per_word(bits);
    if per_word == 1 {
        return words.to_vec();
    }
    (0..slots).map(|s| cx.b.field(words[(s / per_word) as usize], s % per_word * bits, bits, false)).collect()
}

// ---------------------------------------------------------------------------------------------- addresses

/// What a thread digit adds, in 32 or 64 bits.
pub fn term(cx: &mut LowerCx, t: &Term, ty: IntType) -> S {
    let index = match t.source {
        Source::Lane => cx.b.lane(),
        Source::Warp => cx.b.warp_in_warpgroup(),
    };
    let whole = match t.source {
        Source::Lane => 5,
        Source::Warp => 2,
    };
    let digit = if t.lo_bit == 0 && t.bits == whole {
        index.into()
    } else if t.lo_bit + t.bits == whole {
        cx.b.shr(ShiftType::U32, index, Src::u32(u32::from(t.lo_bit)))
    } else {
        cx.b.field(index.into(), u32::from(t.lo_bit), u32::from(t.bits), false)
    };
    let digit = if ty == IntType::U64 { cx.b.widen(digit, false) } else { digit };
    cx.b.mul(ty, digit, Src::Imm(t.stride as u64 & ty_mask(ty)))
}

fn ty_mask(ty: IntType) -> u64 {
    if ty.bits() == 64 { u64::MAX } else { 0xffff_ffff }
}

/// The sum of thread terms.
pub fn thread_sum(cx: &mut LowerCx, terms: &[Term], ty: IntType) -> S {
    let mut sum = Src::Imm(0);
    for t in terms {
        let x = term(cx, t, ty);
        sum = cx.b.add(ty, sum, x);
    }
    sum
}

/// The value of a dynamic term in the home's address arithmetic.
fn dyn_sum(cx: &mut LowerCx, home: &Home, term: &DynTerm) -> Result<S> {
    let mut x = dyn_value(cx, term.value)?;
    if term.div != 1 {
        x = cx.b.div(IntType::U32, x, Src::Imm(term.div));
    }
    if let Some(m) = term.modulus {
        x = cx.b.rem(IntType::U32, x, Src::Imm(m));
    }
    if home.is_global() {
        x = cx.b.widen(x, true);
        return Ok(cx.b.mul(IntType::U64, x, Src::Imm(term.stride as u64)));
    }
    Ok(cx.b.mul(IntType::U32, x, Src::Imm(term.stride as u64 & 0xffff_ffff)))
}

fn swizzled(cx: &mut LowerCx, swizzle: Swizzle, a: S) -> S {
    if swizzle.is_none() {
        return a;
    }
    let shifted = cx.b.shr(ShiftType::U32, a, Src::u32(u32::from(swizzle.shift)));
    let bits = cx.b.and32(shifted, swizzle.target_mask() as u32);
    cx.b.xor(LogicType::B32, a, bits)
}

/// The registers that a plan's immediates are added to.
fn bases(cx: &mut LowerCx, home: &Home, plan: &AddressPlan) -> Result<Vec<V>> {
    let int = home.int();
    let mut origin: S = home.base.into();
    for t in &plan.dynamic {
        let x = dyn_sum(cx, home, t)?;
        origin = cx.b.add(int, origin, x);
    }
    let largest: u64 = plan.terms.iter().map(|t| ((1u64 << t.bits) - 1) * t.stride.unsigned_abs()).sum();
    let narrow = largest < 1 << 31;
    let threads = thread_sum(cx, &plan.terms, if narrow { IntType::U32 } else { IntType::U64 });
    let mut out = Vec::with_capacity(plan.bases.len());
    for &base in &plan.bases {
        let address = match plan.fold {
            Fold::Linear => {
                let moved = match home.is_global() {
                    true => threads,
                    false => {
                        let s = swizzled(cx, plan.swizzle, threads);
                        cx.b.xor(LogicType::B32, s, Src::Imm(base))
                    }
                };
                let moved = if home.is_global() && narrow { cx.b.widen(moved, false) } else { moved };
                cx.b.add(int, origin, moved)
            }
            Fold::Absolute => {
                let moved = if home.is_global() && narrow { cx.b.widen(threads, false) } else { threads };
                let sum = cx.b.add(int, origin, moved);
                let sum = cx.b.add(int, sum, Src::Imm(base));
                if home.is_global() { sum } else { swizzled(cx, plan.swizzle, sum) }
            }
        };
        out.push(cx.b.value(address, home.class()));
    }
    Ok(out)
}

/// An address with an immediate that may not fit into one.
fn at(cx: &mut LowerCx, home: &Home, base: V, offset: i64) -> Addr<V> {
    let offset = offset + i64::from(home.offset);
    if let Ok(small) = i32::try_from(offset)
        && small.unsigned_abs() < 1 << 23
    {
        return cx.b.addr(base, small);
    }
    let sum = cx.b.add(home.int(), base, Src::Imm(offset as u64 & ty_mask(home.int())));
    cx.b.addr(sum, 0)
}

/// True where an access stays in the array.
fn guard(cx: &mut LowerCx, layout: &RegisterLayout, guards: &[Guard]) -> S {
    let mut all = Src::Imm(1);
    for g in guards {
        if g.constant >= g.limit {
            return Src::Imm(0);
        }
        let index = thread_sum(cx, &RegisterLayout::axis_terms(&layout.axes()[g.axis]), IntType::U32);
        let inside = cx.b.setp(Compare::Lt, CompareType::U32, index, Src::Imm(g.limit - g.constant));
        all = cx.b.both(all, inside);
    }
    all
}

/// The address of one element, and the first bit in its byte (sub-byte types).
fn element_address(
    cx: &mut LowerCx,
    home: &Home,
    swizzle: Swizzle,
    plan: &TransferPlan,
    slot: u32,
    bits: u32,
) -> Result<(Addr<V>, S)> {
    let Addressing::Elements { constant_bits, dynamic_bits, terms } = &plan.addressing else {
        return Err(Error::internal("an element access in an affine plan"));
    };
    let layout = &plan.layout;
    let int = home.int();
    // In bytes where everything is whole bytes.
    let whole = bits.is_multiple_of(8);
    let unit = if whole { 8 } else { 1 };
    let mut sum = Src::Imm(constant_bits / unit);
    for t in dynamic_bits {
        let scaled = DynTerm { stride: t.stride / unit as i64, ..*t };
        let x = dyn_sum(cx, home, &scaled)?;
        sum = cx.b.add(int, sum, x);
    }
    for t in terms {
        let x = element_term(cx, layout, slot, t)?;
        let stride = t.stride_bits / unit;
        let x = if home.is_global() { cx.b.widen(x, false) } else { x };
        let x = cx.b.mul(int, x, Src::Imm(stride));
        sum = cx.b.add(int, sum, x);
    }
    let (bytes, bit) = if whole {
        (sum, Src::Imm(0))
    } else {
        let low = if home.is_global() { cx.b.truncate(sum) } else { sum };
        (cx.b.shr(int.as_shift(), sum, Src::u32(3)), cx.b.and32(low, 7))
    };
    let address = cx.b.add(int, bytes, home.base);
    let address = if home.is_global() { address } else { swizzled(cx, swizzle, address) };
    let address = cx.b.value(address, home.class());
    Ok((at(cx, home, address, 0), bit))
}

fn element_term(cx: &mut LowerCx, layout: &RegisterLayout, slot: u32, t: &ElementTerm) -> Result<S> {
    let mut x = match t.axis {
        None => Src::Imm(0),
        Some(k) => axis_index(cx, layout, k, slot),
    };
    x = divide_and_wrap(cx, x, t.div, t.modulus);
    for start in &t.starts {
        let s = match *start {
            Start::Static(v) => Src::Imm(v),
            Start::Dynamic(id, _) => dyn_value(cx, id)?,
        };
        x = cx.b.add(IntType::U32, x, s);
    }
    Ok(divide_and_wrap(cx, x, t.then_div, t.then_modulus))
}

fn divide_and_wrap(cx: &mut LowerCx, mut x: S, div: u64, modulus: Option<u64>) -> S {
    if div != 1 {
        x = cx.b.div(IntType::U32, x, Src::Imm(div));
    }
    if let Some(m) = modulus {
        x = cx.b.rem(IntType::U32, x, Src::Imm(m));
    }
    x
}

/// The flattened index along an axis of what a thread holds in a slot.
pub fn axis_index(cx: &mut LowerCx, layout: &RegisterLayout, axis: usize, slot: u32) -> S {
    let axis = &layout.axes()[axis];
    let thread = thread_sum(cx, &RegisterLayout::axis_terms(axis), IntType::U32);
    cx.b.add(IntType::U32, thread, Src::Imm(RegisterLayout::axis_offset(axis, slot)))
}

// ---------------------------------------------------------------------------------------------- registers

/// Raw registers that loads fill bit by bit.
pub struct Landing {
    bits: u32,
    slots: u32,
    words: Vec<Option<S>>,
    elements: Vec<Option<S>>,
}

impl Landing {
    pub fn new(bits: u32, slots: u32) -> Landing {
        let words = slots.div_ceil(RegisterLayout::slots_per_word(bits)) as usize;
        Landing { bits, slots, words: vec![None; words], elements: vec![None; slots as usize] }
    }

    /// A 32-bit (64-bit elements: 64-bit) register with the elements of these slots, low ones first.
    fn put(&mut self, cx: &mut LowerCx, register: S, slots: &[u32]) {
        let per_word = RegisterLayout::slots_per_word(self.bits);
        let aligned = slots[0].is_multiple_of(per_word)
            && slots.windows(2).all(|w| w[1] == w[0] + 1)
            && slots.len() as u32 == per_word.min(self.slots - slots[0]);
        if aligned {
            self.words[(slots[0] / per_word) as usize] = Some(register);
            return;
        }
        for (i, &slot) in slots.iter().enumerate() {
            self.elements[slot as usize] = Some(cx.b.field(register, i as u32 * self.bits, self.bits, false));
        }
    }

    fn put_element(&mut self, x: S, slot: u32) {
        if self.bits >= 32 {
            self.words[slot as usize] = Some(x);
        } else {
            self.elements[slot as usize] = Some(x);
        }
    }

    /// The registers; what was never filled (padding) is 0.
    pub fn finish(self, cx: &mut LowerCx) -> Vec<S> {
        let per_word = RegisterLayout::slots_per_word(self.bits) as usize;
        let bits = self.bits;
        self.words
            .iter()
            .zip(self.elements.chunks(per_word))
            .map(|(word, elements)| match word {
                Some(word) => *word,
                None => {
                    let elements: Vec<S> = elements.iter().map(|e| e.unwrap_or(Src::Imm(0))).collect();
                    cx.pack_word(raw_type(bits), bits, &elements)
                }
            })
            .collect()
    }
}

/// One register with the elements of these slots, low ones first.
fn collect(cx: &mut LowerCx, bits: u32, words: &[S], slots: &[u32]) -> S {
    let per_word = RegisterLayout::slots_per_word(bits);
    if per_word == 1 {
        return words[slots[0] as usize];
    }
    let aligned = slots[0].is_multiple_of(per_word) && slots.windows(2).all(|w| w[1] == w[0] + 1);
    if aligned {
        return words[(slots[0] / per_word) as usize];
    }
    let elements: Vec<S> = slots
        .iter()
        .map(|&s| cx.b.field(words[(s / per_word) as usize], s % per_word * bits, bits, false))
        .collect();
    cx.pack_word(raw_type(bits), bits, &elements)
}

/// How an access of so many bytes moves through registers: their type, how many, elements in each.
fn shape_of(bytes: u32, bits: u32) -> (MemType, usize, usize) {
    match (bytes, bits) {
        (1, _) => (MemType::U8, 1, (8 / bits).max(1) as usize),
        (2, _) => (MemType::B16, 1, (16 / bits).max(1) as usize),
        (_, 64) => (MemType::B64, (bytes / 8) as usize, 1),
        _ => (MemType::B32, (bytes / 4) as usize, (32 / bits) as usize),
    }
}

fn load(cx: &mut LowerCx, home: &Home, ty: MemType, addr: Addr<V>, n: usize) -> Regs<V> {
    let d: Regs<V> = smallvec![Value::NEW; n];
    if home.read_only {
        cx.b.inst(Inst::LdNc { ty, d, addr })
    } else {
        cx.b.inst(Inst::Ld { sem: LoadSem::Weak, space: home.space, ty, d, addr })
    }
}

/// A loaded register as 32 (64) bits.
fn widened(cx: &mut LowerCx, ty: MemType, v: V) -> S {
    match ty {
        MemType::B16 => cx.b.cvt_int(CvtType::U32, CvtType::U16, v),
        MemType::U8 | MemType::S8 | MemType::B32 | MemType::B64 => v.into(),
    }
}

/// The same value in the class that a store of the type takes.
fn narrowed(cx: &mut LowerCx, ty: MemType, s: S) -> S {
    match ty {
        MemType::B16 => cx.b.cvt_int(CvtType::U16, CvtType::U32, s),
        MemType::U8 | MemType::S8 | MemType::B32 | MemType::B64 => s,
    }
}

/// The type of a single element's access.
fn element_type(bits: u32) -> MemType {
    match bits {
        0..=8 => MemType::U8,
        16 => MemType::B16,
        32 => MemType::B32,
        _ => MemType::B64,
    }
}

/// Predicates of the lane bits that choose a variant, and the value that the executing lane's variant has.
fn choose(cx: &mut LowerCx, stagger: &[u8], variants: &[S], class: Class) -> S {
    let mut now = variants.to_vec();
    for &bit in stagger {
        let lane = cx.b.lane();
        let digit = cx.b.and32(lane.into(), 1 << bit);
        let set = cx.b.setp(Compare::Ne, CompareType::U32, digit, Src::u32(0));
        now = now.chunks(2).map(|pair| cx.b.pick(class, set, pair[1], pair[0])).collect();
    }
    now[0]
}

// ---------------------------------------------------------------------------------------------- plans

/// Emits the loads of a plan; `view` is what it was made for.
pub fn emit_load(
    cx: &mut LowerCx,
    home: &Home,
    view: &SmemView,
    plan: &TransferPlan,
    landing: &mut Landing,
) -> Result<()> {
    let bases = match &plan.addressing {
        Addressing::Affine(a) => bases(cx, home, a)?,
        Addressing::Elements { .. } => vec![],
    };
    if !plan.stagger.is_empty() {
        return emit_staggered_load(cx, home, plan, &bases, landing);
    }
    let bits = landing.bits;
    for access in &plan.accesses {
        let inside = guard(cx, &plan.layout, &access.guards);
        let registers = load_access(cx, home, view, plan, &bases, access, inside, bits)?;
        let per = match access.kind {
            AccessKind::Vector { bytes } => shape_of(bytes, bits).2,
            AccessKind::Matrix { .. } => (32 / bits) as usize,
            AccessKind::Element => {
                landing.put_element(registers[0], access.slots[0]);
                continue;
            }
        };
        for (register, slots) in registers.into_iter().zip(access.slots.chunks(per)) {
            landing.put(cx, register, slots);
        }
    }
    Ok(())
}

/// The registers that one access loads; zeros where the guard is false.
#[allow(clippy::too_many_arguments)]
fn load_access(
    cx: &mut LowerCx,
    home: &Home,
    view: &SmemView,
    plan: &TransferPlan,
    bases: &[V],
    access: &Access,
    inside: S,
    bits: u32,
) -> Result<Vec<S>> {
    let (ty, n) = match access.kind {
        AccessKind::Vector { bytes } => {
            let (ty, n, _) = shape_of(bytes, bits);
            (ty, n)
        }
        AccessKind::Matrix { count, .. } => (MemType::B32, count as usize),
        AccessKind::Element => (element_type(bits), 1),
    };
    let class = ty.slot().class;
    let wide = if class == Class::B64 { Class::B64 } else { Class::B32 };
    let classes = vec![wide; n];
    cx.if_else(
        inside,
        &classes,
        |cx| {
            Ok(match access.kind {
                AccessKind::Vector { .. } => {
                    let addr = at(cx, home, bases[access.base], access.offset);
                    load(cx, home, ty, addr, n).into_iter().map(|v| widened(cx, ty, v)).collect()
                }
                AccessKind::Matrix { trans, .. } => {
                    let addr = at(cx, home, bases[access.base], access.offset);
                    let trans = if trans { MatrixTrans::Yes } else { MatrixTrans::No };
                    let d = smallvec![Value::NEW; n];
                    cx.b.inst(Inst::Ldmatrix { trans, d, addr }).into_iter().map(Src::Reg).collect()
                }
                AccessKind::Element => {
                    let (addr, bit) = element_address(cx, home, view.swizzle, plan, access.slots[0], bits)?;
                    let v = load(cx, home, ty, addr, 1)[0];
                    let mut x = widened(cx, ty, v);
                    if bits < 8 {
                        let shifted = cx.b.shr(ShiftType::U32, x, bit);
                        x = cx.b.field(shifted, 0, bits, false);
                    }
                    vec![x]
                }
            })
        },
        |_| Ok(vec![Src::Imm(0); n]),
    )
}

/// Staggered orders: every lane loads the same addresses in another order, so that a register's slots depend on the lane.
fn emit_staggered_load(
    cx: &mut LowerCx,
    home: &Home,
    plan: &TransferPlan,
    bases: &[V],
    landing: &mut Landing,
) -> Result<()> {
    let bits = landing.bits;
    let variants = 1usize << plan.stagger.len();
    // One landing a variant, then one choice a word.
    let mut landings: Vec<Landing> = (0..variants).map(|_| Landing::new(bits, landing.slots)).collect();
    for access in &plan.accesses {
        let AccessKind::Vector { bytes } = access.kind else {
            return Err(Error::internal("only vectors are staggered"));
        };
        let (ty, n, per) = shape_of(bytes, bits);
        let addr = at(cx, home, bases[access.base], access.offset);
        let registers = load(cx, home, ty, addr, n);
        for (variant, landing) in landings.iter_mut().enumerate() {
            let slots = access.slots_of(variant);
            for (&register, slots) in registers.iter().zip(slots.chunks(per)) {
                let register = widened(cx, ty, register);
                landing.put(cx, register, slots);
            }
        }
    }
    let filled: Vec<Vec<S>> = landings.into_iter().map(|l| l.finish(cx)).collect();
    let class = if bits == 64 { Class::B64 } else { Class::B32 };
    for w in 0..landing.words.len() {
        let candidates: Vec<S> = filled.iter().map(|f| f[w]).collect();
        landing.words[w] = Some(choose(cx, &plan.stagger, &candidates, class));
    }
    Ok(())
}

/// Emits the stores of a plan from raw registers.
pub fn emit_store(
    cx: &mut LowerCx,
    home: &Home,
    view: &SmemView,
    plan: &TransferPlan,
    bits: u32,
    words: &[S],
) -> Result<()> {
    let acting = acting(cx, plan);
    cx.if_then(acting, |cx| {
        let bases = match &plan.addressing {
            Addressing::Affine(a) => bases(cx, home, a)?,
            Addressing::Elements { .. } => vec![],
        };
        for access in &plan.accesses {
            let inside = guard(cx, &plan.layout, &access.guards);
            cx.if_then(inside, |cx| store_access(cx, home, view, plan, &bases, access, bits, words))?;
        }
        Ok(())
    })
}

/// True in the threads that take part in a store.
pub fn acting(cx: &mut LowerCx, plan: &TransferPlan) -> S {
    if plan.only_first_replica == 0 {
        return Src::Imm(1);
    }
    let thread = cx.thread_in_group();
    let copies = cx.b.and32(thread.into(), u32::from(plan.only_first_replica));
    cx.b.setp(Compare::Eq, CompareType::U32, copies, Src::u32(0))
}

#[allow(clippy::too_many_arguments)]
fn store_access(
    cx: &mut LowerCx,
    home: &Home,
    view: &SmemView,
    plan: &TransferPlan,
    bases: &[V],
    access: &Access,
    bits: u32,
    words: &[S],
) -> Result<()> {
    match access.kind {
        AccessKind::Vector { bytes } => {
            let (ty, n, per) = shape_of(bytes, bits);
            let variants = 1usize << plan.stagger.len();
            let class = if bits == 64 { Class::B64 } else { Class::B32 };
            let mut a: Srcs<V> = smallvec![];
            for k in 0..n {
                let candidates: Vec<S> = (0..variants)
                    .map(|v| collect(cx, bits, words, &access.slots_of(v)[k * per..(k + 1) * per]))
                    .collect();
                let chosen = choose(cx, &plan.stagger, &candidates, class);
                a.push(narrowed(cx, ty, chosen));
            }
            let addr = at(cx, home, bases[access.base], access.offset);
            cx.b.inst(Inst::St { sem: StoreSem::Weak, space: home.space, ty, addr, a });
        }
        AccessKind::Matrix { count, trans } => {
            let per = (32 / bits) as usize;
            let a: Srcs<V> = (0..count as usize)
                .map(|k| collect(cx, bits, words, &access.slots[k * per..(k + 1) * per]))
                .collect();
            let addr = at(cx, home, bases[access.base], access.offset);
            let trans = if trans { MatrixTrans::Yes } else { MatrixTrans::No };
            cx.b.inst(Inst::Stmatrix { trans, addr, a });
        }
        AccessKind::Element => {
            let slot = access.slots[0];
            let x = element_of(cx, bits, words, slot);
            let ty = element_type(bits);
            let (addr, _) = element_address(cx, home, view.swizzle, plan, slot, bits)?;
            let x = narrowed(cx, ty, x);
            cx.b.inst(Inst::St { sem: StoreSem::Weak, space: home.space, ty, addr, a: smallvec![x] });
        }
    }
    Ok(())
}

/// One element of raw registers, zero-extended.
pub fn element_of(cx: &mut LowerCx, bits: u32, words: &[S], slot: u32) -> S {
    let per_word = RegisterLayout::slots_per_word(bits);
    if per_word == 1 {
        words[slot as usize]
    } else {
        cx.b.field(words[(slot / per_word) as usize], slot % per_word * bits, bits, false)
    }
}

/// Calls `f` with the address of every element that the plan stores and the slot that holds it, in the threads and where the
/// guards let it.
pub fn for_each_stored_element(
    cx: &mut LowerCx,
    home: &Home,
    view: &SmemView,
    plan: &TransferPlan,
    bits: u32,
    mut f: impl FnMut(&mut LowerCx, Addr<V>, u32) -> Result<()>,
) -> Result<()> {
    let acting = acting(cx, plan);
    cx.if_then(acting, |cx| {
        let bases = match &plan.addressing {
            Addressing::Affine(a) => bases(cx, home, a)?,
            Addressing::Elements { .. } => vec![],
        };
        for access in &plan.accesses {
            let inside = guard(cx, &plan.layout, &access.guards);
            let f = &mut f;
            cx.if_then(inside, |cx| {
                for (i, &slot) in access.slots.iter().enumerate() {
                    let addr = match access.kind {
                        AccessKind::Vector { .. } => {
                            let offset = access.offset + i64::from(bits / 8) * i as i64;
                            at(cx, home, bases[access.base], offset)
                        }
                        AccessKind::Element => element_address(cx, home, view.swizzle, plan, slot, bits)?.0,
                        AccessKind::Matrix { .. } => {
                            return Err(Error::internal("a matrix access where elements are needed"));
                        }
                    };
                    f(cx, addr, slot)?;
                }
                Ok(())
            })?;
        }
        Ok(())
    })
}

/// Registers of an array of this type.
pub fn register_count(dtype: DType, layout: &RegisterLayout) -> usize {
    Packing::of(dtype).regs(layout.slots()) as usize
}
