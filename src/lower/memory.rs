//! Loads and stores of shared and device memory: what [`transfer::plan`] plans, emitted.
use super::cx::LowerCx;
use super::emit::{S, V};
use super::pieces::{Pieces, assemble_word};
use super::positions;
use super::relayout::filled;
use super::shape::dim_index;
use super::value::{ArrayRegs, Packing, scalar_class};
use super::{barrier, exchange, view};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::kernel_ir::{AtomicOp, Elem, Group, Op, Place, RefUse, Type, Value, num_elements};
use crate::layout::facts::DynTerm;
use crate::layout::register_layout::RegisterLayout;
use crate::layout::smem_layout::{SmemView, ViewDim};
use crate::layout::transfer::{AccessKind, TransferPlan};
use crate::plan::Announces;
use crate::ptx::inst::Inst;
use crate::ptx::modifier::*;
use crate::ptx::operand::{Addr, Class, Src, Srcs};
use crate::ptx::ssa::{MemTag, Uniform, Value as PtxValue};
use smallvec::SmallVec;

mod addresses;
mod narrow;

pub use addresses::{Addresses, add_far, address, bases, element_address, guard, swizzle, thread_terms};
use addresses::{Width, add_dynamic, inside, windows};

/// Which memory a transfer touches, and from where it counts.
#[derive(Clone, Copy)]
pub struct Target {
    pub space: Space,
    /// Address of the allocation: 32 bits in shared spaces, else 64.
    origin: S,
    size: Size,
    /// Nothing writes it while the kernel runs.
    read_only: bool,
    /// How it is loaded.
    pub sem: LoadSem,
    /// Which other accesses may touch the same bytes.
    tag: MemTag,
    /// The barrier of a peer, beside the memory, that counts the bytes which are stored (`st.async`), and what is done with those
    /// that are there (`red.async`).
    completes_on: Option<(Addr<V>, Option<(RedOp, AtomType)>)>,
}

/// How large an array in device memory is: what offsets in it and indices of it may be. Where they are small they have 32 bits.
#[derive(Clone, Copy, Default)]
pub struct Size {
    bytes: u64,
    /// As elements of the narrower one of its type and a view's.
    positions: u64,
}

/// The size of the array that is seen.
pub fn size(cx: &LowerCx, r: &RefUse) -> Size {
    let data = &cx.kernel.allocs[r.alloc];
    let bits = |elem: Elem| u64::from(elem.dtype().map_or(32, DType::bits));
    let whole = bits(data.elem()) * num_elements(&data.shape);
    Size {
        bytes: whole.div_ceil(8),
        positions: whole / bits(data.elem()).min(bits(r.elem)),
    }
}

impl Target {
    /// Shared memory of the own block.
    pub fn shared(origin: S) -> Target {
        Target {
            space: Space::Shared,
            origin,
            size: Size::default(),
            read_only: false,
            sem: LoadSem::Weak,
            tag: MemTag::ANY,
            completes_on: None,
        }
    }
    /// How it is loaded where others may store meanwhile.
    pub fn relaxed(&self, cx: &LowerCx) -> LoadSem {
        match self.space {
            Space::Shared => LoadSem::RelaxedCta,
            Space::SharedCluster => LoadSem::RelaxedCluster,
            Space::Global | Space::Generic => match device_scope(cx) {
                Scope::Sys => LoadSem::RelaxedSys,
                Scope::Cta | Scope::Cluster | Scope::Gpu => LoadSem::RelaxedGpu,
            },
        }
    }
    pub fn wide(&self) -> bool {
        matches!(self.space, Space::Global | Space::Generic)
    }
}

/// The scope that has all that may access a device's memory at the same time: its blocks, or other devices' as well.
pub fn device_scope(cx: &LowerCx) -> Scope {
    let exchange = cx.mesh.launch.as_ref().and_then(|mesh| mesh.exchange.as_ref());
    if exchange.is_some() { Scope::Sys } else { Scope::Gpu }
}

/// The memory of a use by the lanes for which `when` is true; others may not have its indices.
pub fn locate(cx: &mut LowerCx, r: &RefUse, when: S) -> Result<Target> {
    let kernel = cx.kernel;
    view::check_indices(cx, r, when)?;
    if kernel.allocs[r.alloc].is_smem() {
        let (base, offset) = view::smem_base(cx, r)?;
        let space = if r.place == Place::Here {
            Space::Shared
        } else {
            Space::SharedCluster
        };
        let origin = cx.b.add(IntType::U32, base, Src::imm32(offset));
        return Ok(Target {
            space,
            origin,
            size: Size::default(),
            read_only: false,
            sem: LoadSem::Weak,
            tag: smem_tag(cx, r),
            completes_on: None,
        });
    }
    let buffer = cx.buffer_of(r.alloc)?;
    let origin = exchange::buffer_start(cx, r)?;
    Ok(Target {
        space: Space::Global,
        origin,
        size: size(cx, r),
        // A peer's input is not written either, but was perhaps not yet there when this kernel began.
        read_only: kernel.is_constant(r),
        sem: LoadSem::Weak,
        tag: MemTag::buffer(buffer),
        completes_on: None,
    })
}

/// An allocation of the block's own shared memory is a memory of its own, unless it is part of a union, or scopes share bytes.
fn smem_tag(cx: &LowerCx, r: &RefUse) -> MemTag {
    match cx.plan.smem[r.alloc] {
        Some(offset) if r.place == Place::Here && !cx.plan.reuses && cx.kernel.allocs[r.alloc].within.is_none() => {
            MemTag::shared(offset)
        }
        _ => MemTag::ANY,
    }
}

/// A load or store of the target's memory.
pub fn touch(cx: &mut LowerCx, target: Target, inst: Inst<V>) -> SmallVec<[V; 4]> {
    let before = cx.b.set_memory(target.tag);
    let defs = cx.b.inst(inst);
    cx.b.set_memory(before);
    defs
}

/// What moves so many bytes.
pub fn mem_type(bytes: u32) -> MemType {
    match bytes {
        1 => MemType::U8,
        2 => MemType::B16,
        8 => MemType::B64,
        _ => MemType::B32,
    }
}

pub fn load(cx: &mut LowerCx, target: Target, ty: MemType, addr: Addr<V>, n: usize) -> SmallVec<[V; 4]> {
    let d = std::iter::repeat_n(PtxValue::NEW, n).collect();
    let inst = if target.read_only {
        Inst::LdNc { ty, d, addr }
    } else {
        Inst::ld(target.sem, target.space, ty, d, addr)
    };
    touch(cx, target, inst)
}

/// A scalar parameter, from the rank-0 buffer that it comes in.
pub fn load_parameter(cx: &mut LowerCx, pointer: V, dtype: DType) -> Result<S> {
    let target = Target {
        space: Space::Global,
        origin: pointer.into(),
        size: Size::default(),
        read_only: true,
        sem: LoadSem::Weak,
        tag: MemTag::ANY,
        completes_on: None,
    };
    let place = ElementPlace {
        addr: Addr::new(pointer),
        bit: (dtype.bits() < 8).then_some(Src::u32(0)),
    };
    load_from(cx, target, place, dtype, Uniform::Cta)
}

fn scalar_bytes(dtype: DType) -> Result<u32> {
    match dtype.bits() / 8 {
        0 => Err(Error::internal(format!("a scalar of type {dtype} in memory"))),
        bytes => Ok(bytes),
    }
}

/// Where one element lies.
#[derive(Clone, Copy)]
pub struct ElementPlace {
    pub addr: Addr<V>,
    /// Of types narrower than a byte: the first of its bits.
    bit: Option<S>,
}

/// Where the one element of a view lies.
pub fn scalar_place(cx: &mut LowerCx, view: &SmemView, target: Target) -> Result<ElementPlace> {
    match view.bits < 8 {
        true => narrow::place(cx, view, target),
        false => Ok(ElementPlace {
            addr: scalar_address(cx, view, target)?,
            bit: None,
        }),
    }
}

pub fn load_from(cx: &mut LowerCx, target: Target, place: ElementPlace, dtype: DType, uniform: Uniform) -> Result<S> {
    match place.bit {
        Some(bit) => Ok(narrow::load(cx, target, place.addr, bit, dtype, uniform)),
        None => load_scalar(cx, target, place.addr, dtype, uniform),
    }
}

/// By one thread.
pub fn store_to(cx: &mut LowerCx, target: Target, place: ElementPlace, dtype: DType, x: S) -> Result<()> {
    if let Some(bit) = place.bit {
        narrow::store(cx, target, place.addr, bit, dtype, x);
        return Ok(());
    }
    store_scalar(cx, target, place.addr, dtype, x)
}

/// One element as [`super::value::Lowered::Scalar`] keeps it.
pub fn load_scalar(cx: &mut LowerCx, target: Target, addr: Addr<V>, dtype: DType, uniform: Uniform) -> Result<S> {
    let bytes = scalar_bytes(dtype)?;
    let ty = match (dtype, bytes) {
        (DType::I8, _) => MemType::S8,
        (_, b) => mem_type(b),
    };
    let v = load(cx, target, ty, addr, 1)[0];
    cx.b.claim_uniform(v, uniform);
    let s: S = v.into();
    let out = match (dtype, scalar_class(dtype)) {
        (DType::Bool, _) => cx.b.setp(Compare::Ne, CompareType::U32, s, Src::u32(0)),
        (DType::I16, _) => cx.b.cvt_int(CvtType::S32, CvtType::S16, s),
        (DType::U16, _) => cx.b.cvt_int(CvtType::U32, CvtType::U16, s),
        _ => s,
    };
    Ok(out)
}

pub fn store_scalar(cx: &mut LowerCx, target: Target, addr: Addr<V>, dtype: DType, x: S) -> Result<()> {
    let bytes = scalar_bytes(dtype)?;
    let x = match (dtype, bytes) {
        (DType::Bool, _) => cx.b.select(BitType::B32, x, Src::u32(1), Src::u32(0)),
        (DType::I16 | DType::U16, _) => cx.b.cvt_int(CvtType::U16, CvtType::U32, x),
        _ => x,
    };
    let a: Srcs<V> = [x].into_iter().collect();
    touch(cx, target, store(target, mem_type(bytes), addr, a));
    Ok(())
}

/// One element as [`super::value::Lowered::Scalar`] keeps it, of the executing thread.
pub fn load_element(cx: &mut LowerCx, target: Target, addr: Addr<V>, dtype: DType) -> Result<S> {
    load_scalar(cx, target, addr, dtype, Uniform::Thread)
}

/// Stores one element of the executing thread.
pub fn store_element(cx: &mut LowerCx, target: Target, addr: Addr<V>, dtype: DType, x: S) -> Result<()> {
    store_scalar(cx, target, addr, dtype, x)
}

/// The first thread's value in all threads of the executing group.
pub fn broadcast_leader(cx: &mut LowerCx, class: Class, s: S) -> Result<S> {
    match s.imm() {
        Some(_) => Ok(cx.b.broadcast_lane0(class, s)),
        None => broadcast_leader_of(cx, class, |_| s),
    }
}

/// What the first thread finds behind everything that its group has done so far, in all threads of the group.
pub fn broadcast_leader_of(cx: &mut LowerCx, class: Class, find: impl FnOnce(&mut LowerCx) -> S) -> Result<S> {
    if cx.group == Group::Warp {
        let s = find(cx);
        return Ok(cx.b.broadcast_lane0(class, s));
    }
    // Across warps through scratch.
    let (base, bytes) = cx.scratch();
    if bytes < 8 {
        return Err(Error::internal("no scratch in shared memory to broadcast a scalar").at(cx.b.loc()));
    }
    cx.sync_group();
    let s = find(cx);
    let in_warp = cx.b.broadcast_lane0(class, s);
    let (ty, stored) = match class {
        Class::B64 => (MemType::B64, in_warp),
        Class::B32 => (MemType::B32, in_warp),
        Class::B16 => (MemType::B16, in_warp),
        Class::Pred => (MemType::B32, cx.b.pick(Class::B32, in_warp, Src::u32(1), Src::u32(0))),
    };
    let leader = cx.leader();
    let addr = cx.b.addr(base, 0);
    let a: Srcs<V> = [stored].into_iter().collect();
    let st = Inst::st(StoreSem::Weak, Space::Shared, ty, addr, a);
    cx.b.inst_if(Some(leader), st);
    cx.sync_group();
    let v = cx.b.load(Space::Shared, ty, addr, 1)[0];
    let uniform = cx.group_uniform();
    cx.b.claim_uniform(v, uniform);
    Ok(match class {
        Class::Pred => cx.b.setp(Compare::Ne, CompareType::U32, v, Src::u32(0)),
        Class::B16 | Class::B32 | Class::B64 => v.into(),
    })
}

/// The array's elements as words of memory: predicates become bytes.
fn as_stored(cx: &mut LowerCx, a: &ArrayRegs) -> ArrayRegs {
    if a.dtype != DType::Bool {
        return a.clone();
    }
    let bytes: Vec<S> = a
        .regs
        .iter()
        .map(|p| cx.b.select(BitType::B32, *p, Src::u32(1), Src::u32(0)))
        .collect();
    cx.from_elements(DType::U8, a.layout.clone(), &bytes)
}

fn as_loaded(cx: &mut LowerCx, dtype: DType, a: ArrayRegs) -> ArrayRegs {
    if dtype != DType::Bool {
        return ArrayRegs { dtype, ..a };
    }
    let regs = cx
        .elements(&a)
        .into_iter()
        .map(|x| cx.b.setp(Compare::Ne, CompareType::U32, x, Src::u32(0)))
        .collect();
    ArrayRegs {
        dtype,
        layout: a.layout,
        regs,
    }
}

fn stored_type(dtype: DType) -> DType {
    match dtype {
        DType::Bool => DType::U8,
        d => d,
    }
}

/// `choices[variant]`, the variant being given by lane bits.
fn by_variant(cx: &mut LowerCx, stagger: &[u8], class: BitType, choices: &[S]) -> S {
    let Some((&bit, rest)) = stagger.split_last() else {
        return choices[0];
    };
    let half = choices.len() / 2;
    let (low, high) = (
        by_variant(cx, rest, class, &choices[..half]),
        by_variant(cx, rest, class, &choices[half..]),
    );
    if low == high {
        return low;
    }
    let lane = cx.b.lane();
    let set = cx.b.and(LogicType::B32, lane, Src::u32(1 << bit));
    let set = cx.b.setp(Compare::Ne, CompareType::U32, set, Src::u32(0));
    cx.b.select(class, set, high, low)
}

/// Emits a store of `a`, whose layout is the plan's.
pub fn emit_store(cx: &mut LowerCx, target: Target, plan: &TransferPlan, view: &SmemView, a: &ArrayRegs) -> Result<()> {
    emit_store_where(cx, target, plan, view, a, &mut |_, _| Src::Imm(1))
}

/// Which slots' elements are moved.
type Moved<'a> = dyn FnMut(&mut LowerCx, u32) -> S + 'a;

/// Whether all elements of an access are moved, and where they are not alike, each of them.
fn moved(cx: &mut LowerCx, slots: &[u32], is_moved: &mut Moved<'_>) -> (S, Option<Vec<S>>) {
    let each: Vec<S> = slots.iter().map(|slot| is_moved(cx, *slot)).collect();
    if each.iter().all(|p| *p == each[0]) {
        return (each[0], None);
    }
    let all = each.iter().skip(1).fold(each[0], |all, p| cx.b.both(all, *p));
    (all, Some(each))
}

/// The same of the elements for which `is_stored` is true. Matrices and staggered accesses are stored or not as a whole.
pub fn emit_store_where(
    cx: &mut LowerCx,
    target: Target,
    plan: &TransferPlan,
    view: &SmemView,
    a: &ArrayRegs,
    is_stored: &mut Moved<'_>,
) -> Result<()> {
    let a = as_stored(cx, a);
    let bits = view.bits;
    let addresses = bases(cx, target, &plan.addressing)?;
    let first_copy = positions::first_copy(cx, plan.only_first_replica);
    let wide = bits == 64;
    let mut pieces = Pieces::new(a);
    for access in &plan.accesses {
        let variants = 1 << plan.stagger.len();
        let (word_bytes, per_word) = if wide { (8, 1) } else { (4, (32 / bits).max(1) as usize) };
        let bytes = match access.kind {
            AccessKind::Vector { bytes } => bytes,
            AccessKind::Matrix { count, .. } => 4 * count,
            AccessKind::Element => 0,
        };
        let (stored, each) = moved(cx, &access.slots, is_stored);
        if stored == Src::Imm(0) && each.is_none() {
            continue;
        }
        let extra = cx.b.both(stored, first_copy);
        if bytes == 0 {
            // Element by element.
            let slot = access.slots[0];
            let x = pieces.word(cx, &[slot]);
            let p = guard(cx, &plan.layout, &access.guards, extra);
            let (addr, _) = element_address(cx, target, plan, view, slot)?;
            store_word(cx, target, addr, bits / 8, x, p)?;
            continue;
        }
        let words = (bytes / word_bytes).max(1) as usize;
        let mut values: Vec<S> = vec![];
        for w in 0..words {
            let choices: Vec<S> = (0..variants)
                .map(|v| {
                    let slots = access.slots_of(v);
                    let end = ((w + 1) * per_word).min(slots.len());
                    pieces.word(cx, &slots[w * per_word..end])
                })
                .collect();
            values.push(by_variant(
                cx,
                &plan.stagger,
                if wide { BitType::B64 } else { BitType::B32 },
                &choices,
            ));
        }
        let addr = address(cx, addresses.bases[access.base], access.offset);
        match access.kind {
            AccessKind::Matrix { trans, .. } => {
                let trans = if trans { MatrixTrans::Yes } else { MatrixTrans::No };
                let a = values.into_iter().collect();
                touch(cx, target, Inst::Stmatrix { trans, addr, a });
            }
            AccessKind::Vector { .. } | AccessKind::Element => {
                if let Some(each) = each {
                    // All at once, or one by one.
                    let own = guard(cx, &plan.layout, &access.guards, first_copy);
                    let whole = |cx: &mut LowerCx| {
                        let ty = if wide { MemType::B64 } else { MemType::B32 };
                        let a: Srcs<V> = values.iter().copied().collect();
                        if bytes < 4 {
                            store_word(cx, target, addr, bytes, values[0], own)?;
                        } else {
                            push_guarded(cx, target, own, store(target, ty, addr, a));
                        }
                        Ok(vec![])
                    };
                    let split = |cx: &mut LowerCx| {
                        for (k, is_stored) in each.iter().enumerate() {
                            let p = cx.b.both(*is_stored, own);
                            let x = match wide {
                                true => values[k],
                                false => {
                                    cx.b.field(values[k / per_word], (k % per_word) as u32 * bits, bits, false)
                                }
                            };
                            let addr = Addr::at(addr.base, addr.offset + (k as u32 * bits / 8) as i32);
                            store_word(cx, target, addr, bits / 8, x, p)?;
                        }
                        Ok(vec![])
                    };
                    cx.if_else(stored, &[], whole, split)?;
                    continue;
                }
                let p = guard(cx, &plan.layout, &access.guards, extra);
                if bytes < 4 {
                    store_word(cx, target, addr, bytes, values[0], p)?;
                } else {
                    let ty = if wide { MemType::B64 } else { MemType::B32 };
                    let a: Srcs<V> = values.into_iter().collect();
                    if let Some((bar, Some((op, ty)))) = target.completes_on {
                        for (w, a) in a.into_iter().enumerate() {
                            let addr = Addr::at(addr.base, addr.offset + (w as u32 * word_bytes) as i32);
                            push_guarded(cx, target, p, Inst::RedAsync { op, ty, addr, a, bar });
                        }
                        continue;
                    }
                    let inst = match target.completes_on {
                        Some((bar, _)) => Inst::StAsync { ty, addr, a, bar },
                        None => store(target, ty, addr, a),
                    };
                    push_guarded(cx, target, p, inst);
                }
            }
        }
    }
    Ok(())
}

/// A store or an atomic update of the target's memory where `p` is true.
pub fn push_guarded(cx: &mut LowerCx, target: Target, p: S, inst: Inst<V>) {
    let before = cx.b.set_memory(target.tag);
    match p {
        Src::Reg(p) => cx.b.inst_if(Some(p), inst),
        Src::Imm(0) => {}
        Src::Imm(_) => {
            cx.b.inst(inst);
        }
    }
    cx.b.set_memory(before);
}

fn store(target: Target, ty: MemType, addr: Addr<V>, a: Srcs<V>) -> Inst<V> {
    Inst::st(StoreSem::Weak, target.space, ty, addr, a)
}

/// Stores the low `bytes` (1, 2, 4, 8) of a word.
fn store_word(cx: &mut LowerCx, target: Target, addr: Addr<V>, bytes: u32, x: S, p: S) -> Result<()> {
    let x = if bytes == 2 && x.reg().is_none_or(|r| cx.b.class(r) == Class::B32) {
        cx.b.cvt_int(CvtType::U16, CvtType::U32, x)
    } else {
        x
    };
    let a: Srcs<V> = [x].into_iter().collect();
    push_guarded(cx, target, p, store(target, mem_type(bytes), addr, a));
    Ok(())
}

/// Emits a load; the result is in the plan's layout.
pub fn emit_load(
    cx: &mut LowerCx,
    target: Target,
    plan: &TransferPlan,
    view: &SmemView,
    dtype: DType,
) -> Result<ArrayRegs> {
    load_where(cx, target, plan, view, dtype, &mut |_, _| Src::Imm(1))
}

/// Emits a load of the elements for which `is_loaded` is true, zero for the others; the result is in the plan's layout. Matrices and
/// staggered accesses are loaded or not as a whole.
fn load_where(
    cx: &mut LowerCx,
    target: Target,
    plan: &TransferPlan,
    view: &SmemView,
    dtype: DType,
    is_loaded: &mut Moved<'_>,
) -> Result<ArrayRegs> {
    let stored = stored_type(dtype);
    let bits = view.bits;
    let wide = bits == 64;
    let addresses = bases(cx, target, &plan.addressing)?;
    let variants = 1usize << plan.stagger.len();
    let slots = plan.layout.slots() as usize;
    let per_word = if wide { 1 } else { (32 / bits).max(1) as usize };
    // For each variant and slot: the loaded word and the position in it.
    let mut found: Vec<Vec<Option<(S, usize)>>> = vec![vec![None; slots]; variants];
    for access in &plan.accesses {
        let (here, each) = moved(cx, &access.slots, is_loaded);
        let p = guard(cx, &plan.layout, &access.guards, here);
        let words: Vec<S> = match access.kind {
            AccessKind::Element => {
                let slot = access.slots[0];
                let (addr, bit) = element_address(cx, target, plan, view, slot)?;
                let word = load_guarded(cx, target, addr, bits.div_ceil(8), 1, p)?[0];
                let word = cx.b.shr(ShiftType::U32, word, bit);
                vec![if bits < 8 {
                    cx.b.and(LogicType::B32, word, Src::u32((1 << bits) - 1))
                } else {
                    word
                }]
            }
            AccessKind::Vector { bytes } => {
                let addr = address(cx, addresses.bases[access.base], access.offset);
                let (word, n) = match bytes {
                    1 | 2 => (bytes, 1),
                    _ if wide => (8, bytes / 8),
                    _ => (4, bytes / 4),
                };
                match each {
                    None => load_guarded(cx, target, addr, word, n as usize, p)?,
                    Some(each) => {
                        let own = guard(cx, &plan.layout, &access.guards, Src::Imm(1));
                        let whole = |cx: &mut LowerCx| load_guarded(cx, target, addr, word, n as usize, own);
                        let split = |cx: &mut LowerCx| {
                            let mut elements = vec![];
                            for (k, is_loaded) in each.iter().enumerate() {
                                let p = cx.b.both(*is_loaded, own);
                                let addr = Addr::at(addr.base, addr.offset + (k as u32 * bits / 8) as i32);
                                elements.push(load_guarded(cx, target, addr, bits / 8, 1, p)?[0]);
                            }
                            let words = elements.chunks(per_word).map(|parts| {
                                let parts: Vec<_> = parts.iter().map(|x| Some((*x, 0))).collect();
                                assemble_word(cx, stored, &parts)
                            });
                            Ok(words.collect())
                        };
                        let class = if word == 8 { Class::B64 } else { Class::B32 };
                        cx.if_else(here, &vec![class; n as usize], whole, split)?
                    }
                }
            }
            AccessKind::Matrix { count, trans } => {
                let addr = address(cx, addresses.bases[access.base], access.offset);
                let trans = if trans { MatrixTrans::Yes } else { MatrixTrans::No };
                let d = std::iter::repeat_n(PtxValue::NEW, count as usize).collect();
                touch(cx, target, Inst::Ldmatrix { trans, d, addr })
                    .into_iter()
                    .map(Src::Reg)
                    .collect()
            }
        };
        for (v, by_slot) in found.iter_mut().enumerate() {
            for (i, slot) in access.slots_of(v).iter().enumerate() {
                by_slot[*slot as usize] = Some((words[i / per_word], i % per_word));
            }
        }
    }
    let packing = Packing::of(stored);
    let class = if wide { BitType::B64 } else { BitType::B32 };
    let regs_needed = packing.regs(slots as u32) as usize;
    let mut regs = Vec::with_capacity(regs_needed);
    for w in 0..regs_needed {
        let range = w * per_word..((w + 1) * per_word).min(slots);
        let choices: Vec<S> = found
            .iter()
            .map(|by_slot| {
                let parts: Vec<Option<(S, usize)>> = by_slot[range.clone()].to_vec();
                assemble_word(cx, stored, &parts)
            })
            .collect();
        regs.push(by_variant(cx, &plan.stagger, class, &choices));
    }
    let a = ArrayRegs {
        dtype: stored,
        layout: plan.layout.clone(),
        regs,
    };
    Ok(as_loaded(cx, dtype, a))
}

/// `n` elements of `bytes` each; zero where the guard fails. 1- and 2-byte elements come zero-extended in 32 bits.
fn load_guarded(cx: &mut LowerCx, target: Target, addr: Addr<V>, bytes: u32, n: usize, p: S) -> Result<Vec<S>> {
    let class = if bytes == 8 { Class::B64 } else { Class::B32 };
    let go = |cx: &mut LowerCx| -> Result<Vec<S>> {
        let loaded = load(cx, target, mem_type(bytes), addr, n);
        Ok(loaded
            .into_iter()
            .map(|v| {
                if bytes == 2 {
                    cx.b.cvt_int(CvtType::U32, CvtType::U16, v)
                } else {
                    v.into()
                }
            })
            .collect())
    };
    match p {
        Src::Imm(1) => go(cx),
        p => {
            let classes = vec![class; n];
            cx.if_else(p, &classes, go, |cx| {
                Ok((0..n).map(|_| Src::Reg(cx.b.constant(class, 0))).collect())
            })
        }
    }
}

/// The address of a rank-0 view.
pub fn scalar_address(cx: &mut LowerCx, view: &SmemView, target: Target) -> Result<Addr<V>> {
    let mut at = target.origin;
    for d in &view.dynamic {
        at = add_dynamic(
            cx,
            target,
            at,
            &DynTerm {
                stride: d.stride / 8,
                ..*d
            },
        )?;
    }
    for dim in &view.dropped {
        let width = Width::of(target.size.bytes.into());
        for_each_digit(cx, width, dim, 8, |cx, x| at = width.add_offset(cx, target, at, x))?;
    }
    let constant = view.offset / 8;
    if view.swizzle.is_none() || target.wide() {
        return Ok(address(cx, at, constant as i64));
    }
    let at = cx.b.add(IntType::U32, at, Src::u32(constant as u32));
    let at = swizzle(cx, view.swizzle, at);
    Ok(cx.b.addr(at, 0))
}

/// What the start of a loose dimension, which is split into digits for that, adds to an offset in units of so many bits.
fn for_each_digit(
    cx: &mut LowerCx,
    width: Width,
    dim: &ViewDim,
    unit: u64,
    mut add: impl FnMut(&mut LowerCx, S),
) -> Result<()> {
    let mut start: S = width.imm(0);
    for s in &dim.loose {
        let x = width.start(cx, s)?;
        start = cx.b.add(width.int(), start, x);
    }
    let (mut weight, last) = (1u64, dim.chain.len().saturating_sub(1));
    for (k, digit) in dim.chain.iter().enumerate() {
        let mut x = cx.b.div(width.int(), start, width.imm(weight));
        if k != last {
            x = cx.b.rem(width.int(), x, width.imm(digit.size));
        }
        let x = cx.b.mul(width.int(), x, width.imm(digit.place.0 / unit));
        add(cx, x);
        weight *= digit.size;
    }
    Ok(())
}

pub fn lower_load(cx: &mut LowerCx, op: Op, src: &RefUse) -> Result<()> {
    let result = cx.result(op);
    let x = load_value(cx, op, src, result)?;
    cx.bind(result, x);
    Ok(())
}

fn load_value(cx: &mut LowerCx, op: Op, src: &RefUse, result: Value) -> Result<super::value::Lowered> {
    let planned = cx.transfer(op)?;
    let (broadcasts, by_leader) = (cx.plan.rendezvous[op], cx.plan.by_leader[op]);
    let when = if by_leader { cx.leader().into() } else { Src::Imm(1) };
    let mut target = locate(cx, src, when)?;
    let polled = cx.polling.looks[op].is_some();
    if polled {
        // What a loop waits for is looked at anew each time: others write it meanwhile.
        target.sem = target.relaxed(cx);
    }
    match cx.ty(result) {
        Type::Scalar(dtype) => {
            let place = scalar_place(cx, &planned.view, target)?;
            let uniform = cx.group_uniform();
            if !broadcasts && !by_leader {
                let x = load_from(cx, target, place, *dtype, uniform)?;
                return Ok(super::value::Lowered::Scalar(x));
            }
            // One load counts, which is broadcast where the others need it.
            let class = scalar_class(*dtype);
            let loads = if broadcasts { cx.is_leading_warp() } else { when };
            let loaded = cx.if_else(
                loads,
                &[class],
                |cx| Ok(vec![load_from(cx, target, place, *dtype, Uniform::Thread)?]),
                |_| Ok(vec![Src::Imm(0)]),
            )?;
            let value = if broadcasts {
                broadcast_leader(cx, class, loaded[0])?
            } else {
                loaded[0]
            };
            Ok(super::value::Lowered::Scalar(value))
        }
        Type::Array { dtype, .. } => {
            let layout = cx.layout_of(result)?;
            let plan = planned.load.as_ref().ok_or_else(|| cx.unexpected(op))?;
            let windows = windows(cx, src)?;
            let mut is_loaded = |cx: &mut LowerCx, slot| inside(cx, &plan.layout, &windows, slot);
            let loaded = load_where(cx, target, plan, &planned.view, *dtype, &mut is_loaded)?;
            Ok(super::value::Lowered::Array(filled(cx, &loaded, &layout)?))
        }
        Type::Acc { .. } => Err(Error::internal("a load of an accumulator")),
    }
}

/// Stores into a peer's memory, or reduces there; its barrier counts the bytes when that is done, which one lane makes it expect first, and
/// arrives.
pub fn lower_async_store(
    cx: &mut LowerCx,
    op: Op,
    dst: &RefUse,
    value: Value,
    barrier: &RefUse,
    atomic: Option<AtomicOp>,
) -> Result<()> {
    let planned = cx.transfer(op)?;
    let plan = planned.store.as_ref().ok_or_else(|| cx.unexpected(op))?;
    let ty = cx.ty(value);
    let bytes = ty.shape().iter().product::<u64>() * u64::from(ty.dtype().bits()) / 8;
    let bar = barrier::address_of(cx, barrier)?;
    if cx.plan.arrivals.announces[op] != Announces::Nothing {
        let leader = cx.leader();
        let bytes = Src::u32(bytes as u32);
        cx.b.inst_if(Some(leader), Inst::MbarrierArriveExpectTxCluster { addr: bar, bytes });
    }
    let reduction = match atomic {
        Some(update) => Some(super::atomic::reduction(update, ty.dtype()).ok_or_else(|| cx.unexpected(op))?),
        None => None,
    };
    let target = Target {
        completes_on: Some((bar, reduction)),
        ..locate(cx, dst, Src::Imm(1))?
    };
    let array = cx.array(value)?;
    let array = filled(cx, &array, &plan.layout)?;
    emit_store_where(cx, target, plan, &planned.view, &array, &mut |_, _| Src::Imm(1))
}

pub fn lower_store(cx: &mut LowerCx, op: Op, dst: &RefUse, value: Value) -> Result<()> {
    let planned = cx.transfer(op)?;
    let Some(plan) = &planned.store else {
        let leader = cx.leader();
        let target = locate(cx, dst, leader.into())?;
        let dtype = cx.ty(value).dtype();
        let x = cx.scalar(value)?;
        let place = scalar_place(cx, &planned.view, target)?;
        return cx.if_then(leader.into(), |cx| store_to(cx, target, place, dtype, x));
    };
    let target = locate(cx, dst, Src::Imm(1))?;
    let array = cx.array(value)?;
    let array = filled(cx, &array, &plan.layout)?;
    let windows = windows(cx, dst)?;
    let mut is_stored = |cx: &mut LowerCx, slot| inside(cx, &plan.layout, &windows, slot);
    emit_store_where(cx, target, plan, &planned.view, &array, &mut is_stored)
}

/// Those elements of a mask that lie as a plan has them; where they are true the emulator looks whether windows are inside.
fn mask_of(cx: &mut LowerCx, r: &RefUse, mask: Value, layout: &RegisterLayout) -> Result<Vec<S>> {
    let mask = cx.array_in(mask, layout)?;
    let mask = cx.elements(&mask);
    for w in windows(cx, r)? {
        for (slot, &p) in mask.iter().enumerate() {
            let x = dim_index(cx, layout, w.dim, slot as u32);
            let x = w.width.widened(cx, x);
            let x = cx.b.add(w.width.int(), x, w.start);
            view::check_index(cx, r, p, (w.width.class(), x), (w.of, w.extent))?;
        }
    }
    Ok(mask)
}

pub fn lower_load_masked(cx: &mut LowerCx, op: Op, src: &RefUse, mask: Value) -> Result<()> {
    let result = cx.result(op);
    let planned = cx.transfer(op)?;
    let mut target = locate(cx, src, Src::Imm(1))?;
    if cx.polling.looks[op].is_some() {
        target.sem = target.relaxed(cx);
    }
    let layout = cx.layout_of(result)?;
    let plan = planned.load.as_ref().filter(|_| planned.view.bits >= 8);
    let plan = plan.ok_or_else(|| cx.unexpected(op))?;
    let mask = mask_of(cx, src, mask, &plan.layout)?;
    let mut is_loaded = |_: &mut LowerCx, slot: u32| mask[slot as usize];
    let loaded = load_where(cx, target, plan, &planned.view, cx.ty(result).dtype(), &mut is_loaded)?;
    let loaded = filled(cx, &loaded, &layout)?;
    cx.bind_array(result, loaded);
    Ok(())
}

pub fn lower_store_masked(cx: &mut LowerCx, op: Op, dst: &RefUse, mask: Value, value: Value) -> Result<()> {
    let planned = cx.transfer(op)?;
    let plan = planned.store.as_ref().filter(|_| planned.view.bits >= 8);
    let plan = plan.ok_or_else(|| cx.unexpected(op))?;
    let target = locate(cx, dst, Src::Imm(1))?;
    let array = cx.array_in(value, &plan.layout)?;
    let mask = mask_of(cx, dst, mask, &plan.layout)?;
    let mut is_stored = |_: &mut LowerCx, slot: u32| mask[slot as usize];
    emit_store_where(cx, target, plan, &planned.view, &array, &mut is_stored)
}

pub fn lower_swap(cx: &mut LowerCx, op: Op, dst: &RefUse, value: Value) -> Result<()> {
    let result = cx.result(op);
    if !cx.used.contains(result) {
        return lower_store(cx, op, dst, value);
    }
    let old = load_value(cx, op, dst, result)?;
    // All lanes have read before any writes.
    cx.sync_group();
    lower_store(cx, op, dst, value)?;
    cx.bind(result, old);
    Ok(())
}
