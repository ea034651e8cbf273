//! Loads, stores and atomics of warps.
use super::check::{Access, Hooks, Mode, Range, Sync, Verdict};
use super::grid::{Clash, Did};
use super::machine::Machine;
use super::options::Undefined;
use super::overwrite::{self, Values, no_values};
use super::row::Lane;
use super::shared::{self, CtaSlot, RANK_SHIFT, SMEM_BASE};
use super::uop::{Body, Flow, Step, Uop};
use super::warp::{Warp, lanes};
use crate::error::{Error, Fault, Loc};
use crate::ptx::modifier::{AtomOp, AtomSem, AtomType, LoadSem, Modifier, Scope, StoreSem};
use std::marker::PhantomData;

/// A state space: how an address finds its bytes.
pub trait Space: 'static {
    type Address: Lane<Raw = Self::Address> + Into<u64> + Copy + Eq;
    const NAME: &'static str;
    fn offset(base: Self::Address, offset: i32) -> u64;
    /// The address so many bytes on.
    fn after(base: Self::Address, bytes: usize) -> Self::Address;
    /// The bytes at an address, or why not.
    fn read<const B: usize, H: Hooks>(m: &Machine<'_, H>, w: &Warp, address: u64) -> Result<[u8; B], Denied>;
    fn write<const B: usize, H: Hooks>(
        m: &mut Machine<'_, H>,
        w: &Warp,
        address: u64,
        data: [u8; B],
    ) -> Result<(), Denied>;
    /// Reports to the checker an access of the executing lanes.
    fn check<H: Hooks>(
        m: &mut Machine<'_, H>,
        w: &Warp,
        addresses: &[<Self::Address as Lane>::Raw; 32],
        offset: i32,
        bytes: u32,
        mode: Mode,
        values: &Values<'_>,
    ) -> Verdict;
    /// Whether all of this is memory of the space, of the warp's own CTA.
    fn is_inside<H: Hooks>(m: &Machine<'_, H>, w: &Warp, start: u64, bytes: usize) -> bool;
    /// Whether all of this, which is, may be read.
    fn is_defined<H: Hooks>(m: &Machine<'_, H>, w: &Warp, start: u64, bytes: usize) -> bool;
    /// Where the bytes of all lanes begin, if lane i's `B` bytes follow lane i − 1's and all are memory.
    #[inline(always)]
    fn run<const B: usize, H: Hooks>(
        m: &Machine<'_, H>,
        w: &Warp,
        addresses: &[Self::Address; 32],
        offset: i32,
    ) -> Option<u64> {
        let first = addresses[0];
        if w.exec != !0 || addresses[31] != Self::after(first, 31 * B) {
            return None;
        }
        let mut differs = false;
        for (i, address) in addresses.iter().enumerate() {
            differs |= *address != Self::after(first, i * B);
        }
        let start = Self::offset(first, offset);
        let good = !differs && start.is_multiple_of(B as u64) && Self::is_inside(m, w, start, 32 * B);
        good.then_some(start)
    }
    /// Writes all lanes' bytes where `run` said.
    fn write_run<H: Hooks>(m: &mut Machine<'_, H>, w: &Warp, start: u64, data: &[u8]);
    /// Whether these bytes are at an address.
    fn holds<H: Hooks>(m: &Machine<'_, H>, w: &Warp, address: u64, data: &[u8]) -> bool;
    /// Where that is, in words.
    fn describe<H: Hooks>(m: &Machine<'_, H>, address: u64) -> String;
    /// As `run`, if all may be read.
    #[inline(always)]
    fn dense<const B: usize, H: Hooks>(
        m: &Machine<'_, H>,
        w: &Warp,
        addresses: &[Self::Address; 32],
        offset: i32,
    ) -> Option<u64> {
        let start = Self::run::<B, H>(m, w, addresses, offset)?;
        (!heeds_undefined(m) || Self::is_defined(m, w, start, 32 * B)).then_some(start)
    }
}

/// Whether it matters that a load is of memory that nothing wrote.
#[inline(always)]
fn heeds_undefined<H: Hooks>(m: &Machine<'_, H>) -> bool {
    match m.options.undefined {
        Undefined::Denied => true,
        Undefined::Ignored => false,
        Undefined::Noted(_) => H::LISTENS,
    }
}

/// A load is of memory of which not all was written.
#[cold]
fn undefined<H: Hooks>(m: &Machine<'_, H>) -> Result<(), Denied> {
    if m.options.denies_undefined() {
        return Err(Denied::Undefined);
    }
    m.note_undefined(m.here());
    Ok(())
}

/// Why an access did not happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Denied {
    Misaligned,
    OutOfBounds,
    Undefined,
    /// The peer CTA has ended.
    Gone,
}

pub struct Global;
pub struct SharedCta;

impl Space for Global {
    type Address = u64;
    const NAME: &'static str = "global";

    #[inline(always)]
    fn offset(base: u64, offset: i32) -> u64 {
        base.wrapping_add(offset as i64 as u64)
    }

    #[inline(always)]
    fn after(base: u64, bytes: usize) -> u64 {
        base.wrapping_add(bytes as u64)
    }

    #[inline(always)]
    fn is_inside<H: Hooks>(m: &Machine<'_, H>, _: &Warp, start: u64, bytes: usize) -> bool {
        m.memory.resolve(start, bytes as u64).is_some()
    }

    #[inline(always)]
    fn is_defined<H: Hooks>(m: &Machine<'_, H>, _: &Warp, start: u64, bytes: usize) -> bool {
        m.memory.is_written(start, bytes as u64)
    }

    #[inline(always)]
    fn read<const B: usize, H: Hooks>(m: &Machine<'_, H>, _: &Warp, address: u64) -> Result<[u8; B], Denied> {
        if !address.is_multiple_of(B as u64) {
            return Err(Denied::Misaligned);
        }
        let at = m.memory.resolve(address, B as u64).ok_or(Denied::OutOfBounds)?;
        if heeds_undefined(m) && !m.memory.is_written(address, B as u64) {
            undefined(m)?;
        }
        // SAFETY: `resolve` checked that the range is inside a buffer lent for the launch.
        Ok(unsafe { at.cast::<[u8; B]>().read_unaligned() })
    }

    #[inline(always)]
    fn write<const B: usize, H: Hooks>(
        m: &mut Machine<'_, H>,
        w: &Warp,
        address: u64,
        data: [u8; B],
    ) -> Result<(), Denied> {
        if !address.is_multiple_of(B as u64) {
            return Err(Denied::Misaligned);
        }
        m.memory.resolve(address, B as u64).ok_or(Denied::OutOfBounds)?;
        let author = m.author(w.cta, || m.here());
        if let Some(other) = m.memory.store(author, address, &data) {
            m.overwritten.get_or_insert((address, other));
        }
        m.memory_changed = true;
        Ok(())
    }

    #[inline(always)]
    fn check<H: Hooks>(
        m: &mut Machine<'_, H>,
        w: &Warp,
        addresses: &[u64; 32],
        offset: i32,
        bytes: u32,
        mode: Mode,
        values: &Values<'_>,
    ) -> Verdict {
        let range = Range::GlobalLanes {
            addresses,
            offset,
            mask: w.exec,
        };
        let (loc, memory) = (if H::LISTENS { m.here() } else { Loc::CALL_SITE }, m.memory);
        let changes = |_: CtaSlot, line: u64| {
            let mut changed = 0;
            for i in lanes(w.exec) {
                let at = Self::offset(addresses[i], offset);
                if at >> 7 == line {
                    let old = memory.peek(at, u64::from(bytes));
                    changed |= overwrite::differences(at, &old[..bytes as usize], &values(i));
                }
            }
            changed
        };
        let verdict = m.hooks.memory(
            w.who(),
            Access {
                range,
                bytes,
                mode,
                loc,
                changes: &changes,
                number: 0,
            },
        );
        m.judge(w, verdict)?;
        if H::LISTENS && matches!(mode, Mode::Load(_) | Mode::SmallRead) {
            return check_foreign(m, w, addresses, offset, bytes);
        }
        Ok(())
    }

    fn holds<H: Hooks>(m: &Machine<'_, H>, _: &Warp, address: u64, data: &[u8]) -> bool {
        m.memory.peek(address, data.len() as u64)[..data.len()] == *data
    }

    fn describe<H: Hooks>(m: &Machine<'_, H>, address: u64) -> String {
        m.memory.describe(address)
    }

    #[inline(always)]
    fn write_run<H: Hooks>(m: &mut Machine<'_, H>, w: &Warp, start: u64, data: &[u8]) {
        let author = m.author(w.cta, || m.here());
        if let Some(other) = m.memory.store(author, start, data) {
            m.overwritten.get_or_insert((start, other));
        }
        m.memory_changed = true;
    }
}

impl SharedCta {
    /// Where `B` bytes lie, in this CTA or in another of the cluster that is still there.
    #[inline(always)]
    fn place<const B: usize, H: Hooks>(m: &Machine<'_, H>, w: &Warp, address: u64) -> Result<(CtaSlot, u32), Denied> {
        if !address.is_multiple_of(B as u64) {
            return Err(Denied::Misaligned);
        }
        let (slot, offset) = m.locate_shared(w.cta, address as u32).ok_or(Denied::OutOfBounds)?;
        let cta = &m.ctas[slot.0 as usize];
        if !cta.smem.contains(offset, B as u32) {
            return Err(Denied::OutOfBounds);
        }
        if cta.live_warps == 0 {
            return Err(Denied::Gone);
        }
        Ok((slot, offset))
    }
}

impl Space for SharedCta {
    type Address = u32;
    const NAME: &'static str = "shared";

    #[inline(always)]
    fn offset(base: u32, offset: i32) -> u64 {
        u64::from(base.wrapping_add(offset as u32))
    }

    #[inline(always)]
    fn after(base: u32, bytes: usize) -> u32 {
        base.wrapping_add(bytes as u32)
    }

    #[inline(always)]
    fn is_inside<H: Hooks>(m: &Machine<'_, H>, w: &Warp, start: u64, bytes: usize) -> bool {
        let smem = &m.ctas[w.cta.0 as usize].smem;
        smem.contains((start as u32).wrapping_sub(SMEM_BASE), bytes as u32)
    }

    #[inline(always)]
    fn is_defined<H: Hooks>(m: &Machine<'_, H>, w: &Warp, start: u64, bytes: usize) -> bool {
        let smem = &m.ctas[w.cta.0 as usize].smem;
        smem.is_defined(start as u32 - SMEM_BASE, bytes as u32)
    }

    #[inline(always)]
    fn read<const B: usize, H: Hooks>(m: &Machine<'_, H>, w: &Warp, address: u64) -> Result<[u8; B], Denied> {
        let (slot, offset) = Self::place::<B, H>(m, w, address)?;
        let cta = &m.ctas[slot.0 as usize];
        if heeds_undefined(m) && !cta.smem.is_defined(offset, B as u32) {
            undefined(m)?;
        }
        let mut data = [0; B];
        data.copy_from_slice(cta.smem.get(offset, B as u32));
        Ok(data)
    }

    #[inline(always)]
    fn write<const B: usize, H: Hooks>(
        m: &mut Machine<'_, H>,
        w: &Warp,
        address: u64,
        data: [u8; B],
    ) -> Result<(), Denied> {
        let (slot, offset) = Self::place::<B, H>(m, w, address)?;
        let smem = &mut m.ctas[slot.0 as usize].smem;
        smem.get_mut(offset, B as u32).copy_from_slice(&data);
        Ok(())
    }

    #[inline(always)]
    fn check<H: Hooks>(
        m: &mut Machine<'_, H>,
        w: &Warp,
        addresses: &[u32; 32],
        offset: i32,
        bytes: u32,
        mode: Mode,
        values: &Values<'_>,
    ) -> Verdict {
        check_shared(m, w, addresses, offset, w.exec, bytes, mode, values)
    }

    fn holds<H: Hooks>(m: &Machine<'_, H>, w: &Warp, address: u64, data: &[u8]) -> bool {
        let (slot, offset) = m.locate_shared(w.cta, address as u32).expect("just stored there");
        m.ctas[slot.0 as usize].smem.get(offset, data.len() as u32) == data
    }

    fn describe<H: Hooks>(m: &Machine<'_, H>, address: u64) -> String {
        let offset = (address as u32 & ((1 << RANK_SHIFT) - 1)).wrapping_sub(SMEM_BASE);
        m.options.names.place(offset)
    }

    #[inline(always)]
    fn write_run<H: Hooks>(m: &mut Machine<'_, H>, w: &Warp, start: u64, data: &[u8]) {
        let smem = &mut m.ctas[w.cta.0 as usize].smem;
        smem.get_mut(start as u32 - SMEM_BASE, data.len() as u32)
            .copy_from_slice(data);
    }
}

/// A load outside of global memory, where its value may never be used: zeros, unless findings are errors.
#[cold]
fn gives_zeros<S: Space, H: Hooks>(
    m: &mut Machine<'_, H>,
    w: &Warp,
    why: Denied,
    lane: usize,
    address: u64,
    bytes: usize,
) -> Verdict {
    let error = denied(m, w, why, "load", S::NAME, lane, address, bytes);
    match why == Denied::OutOfBounds && S::NAME == Global::NAME {
        true => m.judge(w, Err(error)),
        false => Err(error),
    }
}

/// The error of a denied access.
#[cold]
pub fn denied<H: Hooks>(
    m: &Machine<'_, H>,
    w: &Warp,
    why: Denied,
    verb: &str,
    space: &str,
    lane: usize,
    address: u64,
    bytes: usize,
) -> Box<Error> {
    let cause = match why {
        Denied::Misaligned => "misaligned address",
        Denied::OutOfBounds => "out of bounds",
        Denied::Undefined => "memory that nothing wrote",
        Denied::Gone => "shared memory of a CTA that has ended",
    };
    let where_ = if space == Global::NAME {
        m.memory.describe(address)
    } else {
        let (slot, offset) = m
            .locate_shared(w.cta, address as u32)
            .unwrap_or((w.cta, address as u32));
        format!(
            "byte {} of the {} bytes of {}",
            offset as i32,
            m.program.launch.smem_bytes,
            m.cta_name(slot)
        )
    };
    let error = Error::new(
        Fault::Execution,
        format!("{verb} of {bytes} {space} bytes by lane {lane}: {cause}"),
    )
    .got(format!("address 0x{address:x}: {where_}"));
    Box::new(match why {
        Denied::Misaligned => error.expected(format!("a multiple of {bytes}")),
        Denied::OutOfBounds => error
            .expected("an access inside of the array: indices at run time are not clamped")
            .remedy("check this line's indices: for pl.ds, start + size must not exceed the dimension"),
        Denied::Undefined => error.remedy("write it first, or wait for the copy that does"),
        Denied::Gone => error
            .expected("a barrier of the cluster after the last access to a peer's shared memory, before the peer ends")
            .remedy("keep the block alive until its peers are done: a cluster barrier at the end"),
    })
}

/// How an element of a load or store sits in memory and in registers.
pub trait Element: 'static {
    type Lane: Lane;
    const BYTES: usize;
    fn get(bytes: &[u8]) -> <Self::Lane as Lane>::Raw;
    fn put(raw: <Self::Lane as Lane>::Raw, bytes: &mut [u8]);
}
macro_rules! elements {
    ($($name:ident: $lane:ty, $raw:ty, $memory:ty, |$v:ident| $e:expr;)*) => {$(
        pub struct $name;
        impl Element for $name {
            type Lane = $lane;
            const BYTES: usize = size_of::<$memory>();
            #[inline(always)]
            fn get(bytes: &[u8]) -> $raw {
                let mut b = [0; size_of::<$memory>()];
                b.copy_from_slice(&bytes[..size_of::<$memory>()]);
                let $v = <$memory>::from_le_bytes(b);
                $e
            }
            #[inline(always)]
            fn put(raw: $raw, bytes: &mut [u8]) {
                bytes[..size_of::<$memory>()].copy_from_slice(&(raw as $memory).to_le_bytes());
            }
        }
    )*};
}
elements! {
    ByteU: u32, u32, u8, |v| u32::from(v);
    ByteS: u32, u32, i8, |v| v as i32 as u32;
    Word16: u16, u32, u16, |v| u32::from(v);
    Word32: u32, u32, u32, |v| v;
    Word64: u64, u64, u64, |v| v;
}

/// Loads `N` elements of `B` bytes in all. `a` is the base, `imm` the offset, `aux` the list of destinations.
pub struct Load<S, E, const N: usize, const B: usize>(PhantomData<(S, E)>);

impl<S: Space, E: Element, const N: usize, const B: usize, H: Hooks> Body<H> for Load<S, E, N, B> {
    #[inline(always)]
    fn run(w: &mut Warp, m: &mut Machine<'_, H>, u: &Uop<H>) -> Step {
        let base = *w.read::<S::Address>(u.a);
        let offset = u.imm;
        S::check(m, w, &base, offset, B as u32, Mode::Load(w.ordered), &no_values)?;
        let lists = &m.program.lists[u.aux as usize..u.aux as usize + N];
        if let Some(start) = S::dense::<B, H>(m, w, &base, offset) {
            let bytes = dense_bytes::<S, B, H>(m, w, start);
            for (j, d) in lists.iter().enumerate() {
                let row = w.register::<E::Lane>(*d);
                for (i, lane) in row.iter_mut().enumerate() {
                    *lane = E::get(&bytes[i * B + j * E::BYTES..]);
                }
            }
        } else {
            for i in lanes(w.exec) {
                let address = S::offset(S::Address::from_raw(base[i]), offset);
                match S::read::<B, H>(m, w, address) {
                    Ok(bytes) => {
                        for (j, d) in lists.iter().enumerate() {
                            w.set_lane::<E::Lane>(*d, i, E::get(&bytes[j * E::BYTES..]));
                        }
                    }
                    Err(why) => {
                        gives_zeros::<S, H>(m, w, why, i, address, B)?;
                        for d in lists {
                            w.set_lane::<E::Lane>(*d, i, E::get(&[0; 16]));
                        }
                    }
                }
            }
        }
        Ok(Flow::Next)
    }
}

/// The bytes of a dense access that `Space::dense` allowed.
#[inline(always)]
pub fn dense_bytes<'m, S: Space, const B: usize, H: Hooks>(m: &'m Machine<'_, H>, w: &Warp, start: u64) -> &'m [u8] {
    if S::NAME == Global::NAME {
        let at = m.memory.resolve(start, (32 * B) as u64).expect("checked");
        // SAFETY: `resolve` checked the range. Other threads may write it meanwhile only if the kernel races.
        unsafe { std::slice::from_raw_parts(at, 32 * B) }
    } else {
        m.ctas[w.cta.0 as usize]
            .smem
            .get(start as u32 - SMEM_BASE, (32 * B) as u32)
    }
}

/// Stores, like [`Load`]; `aux` lists the sources, `c` is the semantics' position.
pub struct Store<S, E, const N: usize, const B: usize>(PhantomData<(S, E)>);

impl<S: Space, E: Element, const N: usize, const B: usize, H: Hooks> Body<H> for Store<S, E, N, B> {
    #[inline(always)]
    fn run(w: &mut Warp, m: &mut Machine<'_, H>, u: &Uop<H>) -> Step {
        let base = *w.read::<S::Address>(u.a);
        let lists = &m.program.lists[u.aux as usize..u.aux as usize + N];
        let value = |w: &Warp, i: usize| {
            let mut bytes = [0; B];
            for (j, a) in lists.iter().enumerate() {
                E::put(w.read::<E::Lane>(*a)[i], &mut bytes[j * E::BYTES..]);
            }
            bytes
        };
        let wide = |i: usize| {
            let mut bytes = [0; 16];
            bytes[..B].copy_from_slice(&value(w, i));
            bytes
        };
        let sem = StoreSem::ALL.get(usize::from(u.c)).copied().unwrap_or(StoreSem::Weak);
        S::check(m, w, &base, u.imm, B as u32, Mode::Store(sem), &wide)?;
        if let Some(start) = S::run::<B, H>(m, w, &base, u.imm) {
            let data: [[u8; B]; 32] = std::array::from_fn(|i| value(w, i));
            S::write_run(m, w, start, data.as_flattened());
        } else {
            for i in lanes(w.exec) {
                let address = S::offset(S::Address::from_raw(base[i]), u.imm);
                S::write::<B, H>(m, w, address, value(w, i))
                    .map_err(|why| denied(m, w, why, "store", S::NAME, i, address, B))?;
            }
        }
        if H::LISTENS {
            check_overwritten(m, w)?;
        }
        if H::LISTENS && m.hooks.lanes_may_overlap() {
            let address = |i: usize| S::offset(S::Address::from_raw(base[i]), u.imm);
            collisions::<S, B, H>(m, w, w.exec, &address, &|i| value(w, i))?;
        }
        Ok(Flow::Next)
    }
}

/// Whether a load reads what another cluster wrote.
#[inline(always)]
fn check_foreign<H: Hooks>(
    m: &mut Machine<'_, H>,
    w: &Warp,
    addresses: &[u64; 32],
    offset: i32,
    bytes: u32,
) -> Verdict {
    // Lanes load from one buffer, and most loads are of what nobody stores to.
    let first = addresses[w.exec.trailing_zeros() as usize & 31];
    if !m.memory.heeds_loads(first) {
        return Ok(());
    }
    let Some(author) = m.author(w.cta, || m.here()) else {
        return Ok(());
    };
    let load = |address: u64, bytes: u32| Some((address, m.memory.load(author, address, bytes.into())?));
    let first = Global::offset(addresses[0], offset);
    let is_run = |i: usize| addresses[i] == addresses[0].wrapping_add(i as u64 * u64::from(bytes));
    let found = match w.exec == !0 && is_run(31) && (1..31).all(is_run) {
        true => load(first, 32 * bytes),
        false => lanes(w.exec).find_map(|i| load(Global::offset(addresses[i], offset), bytes)),
    };
    match found {
        None => Ok(()),
        Some((address, by)) => {
            let did = Did::Write;
            let error = m.foreign("a load of", Clash { by, did }, m.memory.describe(address));
            m.judge(w, Err(error))
        }
    }
}

/// Whether a store has overwritten what another cluster wrote, or read.
#[inline(always)]
pub fn check_overwritten<H: Hooks>(m: &mut Machine<'_, H>, w: &Warp) -> Verdict {
    match m.overwritten.take() {
        None => Ok(()),
        Some((address, other)) => {
            let error = m.foreign("a store of another value to", other, m.memory.describe(address));
            m.judge(w, Err(error))
        }
    }
}

/// What a store just wrote is there, unless another lane's was something else.
#[inline(never)]
pub fn collisions<S: Space, const B: usize, H: Hooks>(
    m: &mut Machine<'_, H>,
    w: &Warp,
    mask: u32,
    address: &dyn Fn(usize) -> u64,
    value: &dyn Fn(usize) -> [u8; B],
) -> Verdict {
    match lanes(mask).find(|i| !S::holds(m, w, address(*i), &value(*i))) {
        None => Ok(()),
        Some(i) => {
            let place = S::describe(m, address(i));
            m.judge(w, Err(overwrite::collision(S::NAME, i, place)))
        }
    }
}

/// A load that others' writes may change at any time: the others go first after it. `c` is the semantics' position.
pub struct Polling<L>(PhantomData<L>);
impl<S: Space, E: Element, const N: usize, const B: usize, H: Hooks> Body<H> for Polling<Load<S, E, N, B>> {
    #[inline(always)]
    fn run(w: &mut Warp, m: &mut Machine<'_, H>, u: &Uop<H>) -> Step {
        w.ordered = LoadSem::ALL[usize::from(u.c)];
        let flow = Load::<S, E, N, B>::run(w, m, u);
        w.ordered = LoadSem::Weak;
        flow.map(|_| Flow::Yield)
    }
}

/// What an atomic does. Bits of the operand type, zero-extended.
pub fn combine(op: AtomOp, ty: AtomType, old: u64, a: u64, flushes: bool) -> u64 {
    use super::arith::float::*;
    let (old32, a32) = (old as u32, a as u32);
    let (old16, a16) = (old as u16, a as u16);
    let is_max = op == AtomOp::Max;
    let pick = |a_less: bool| if a_less == is_max { old } else { a };
    match op {
        AtomOp::Exch => a,
        AtomOp::And => old & a,
        AtomOp::Or => old | a,
        AtomOp::Xor => old ^ a,
        AtomOp::Inc => u64::from(if old32 >= a32 { 0 } else { old32 + 1 }),
        AtomOp::Dec => u64::from(if old32 == 0 || old32 > a32 { a32 } else { old32 - 1 }),
        AtomOp::Add => match ty {
            AtomType::B32 | AtomType::U32 | AtomType::S32 => u64::from(old32.wrapping_add(a32)),
            AtomType::B64 | AtomType::U64 | AtomType::S64 => old.wrapping_add(a),
            // PTX ISA 9.7.13.6: on global memory subnormals are flushed, on shared memory they are not.
            AtomType::F32 if flushes => u64::from(add_ftz_f32(old32, a32)),
            AtomType::F32 => u64::from(add_f32(old32, a32)),
            AtomType::F64 => add_f64(old, a),
            AtomType::F16 => u64::from(add_f16(old16, a16)),
            AtomType::BF16 => u64::from(add_bf16(old16, a16)),
            AtomType::F16x2 => u64::from(halves_2(old32, a32, add_f16)),
            AtomType::BF16x2 => u64::from(halves_2(old32, a32, add_bf16)),
        },
        AtomOp::Min | AtomOp::Max => match ty {
            AtomType::U32 | AtomType::B32 => pick(a32 < old32),
            AtomType::S32 => pick((a32 as i32) < old32 as i32),
            AtomType::U64 | AtomType::B64 => pick(a < old),
            AtomType::S64 => pick((a as i64) < old as i64),
            AtomType::F32 => u64::from(if is_max {
                max_f32(old32, a32)
            } else {
                min_f32(old32, a32)
            }),
            AtomType::F64 => {
                if is_max {
                    max_f64(old, a)
                } else {
                    min_f64(old, a)
                }
            }
            AtomType::F16 => u64::from(if is_max {
                max_f16(old16, a16)
            } else {
                min_f16(old16, a16)
            }),
            AtomType::BF16 => u64::from(if is_max {
                max_bf16(old16, a16)
            } else {
                min_bf16(old16, a16)
            }),
            AtomType::F16x2 => u64::from(halves_2(old32, a32, if is_max { max_f16 } else { min_f16 })),
            AtomType::BF16x2 => u64::from(halves_2(old32, a32, if is_max { max_bf16 } else { min_bf16 })),
        },
    }
}

/// How an atomic's operand type sits in memory.
pub const fn atom_bytes(ty: AtomType) -> u32 {
    match ty {
        AtomType::F16 | AtomType::BF16 => 2,
        AtomType::B32 | AtomType::U32 | AtomType::S32 | AtomType::F32 | AtomType::F16x2 | AtomType::BF16x2 => 4,
        AtomType::B64 | AtomType::U64 | AtomType::S64 | AtomType::F64 => 8,
    }
}

/// An atomic, as a micro-op's `c` says: the operation and type by their positions.
pub const ATOM_CAS: u16 = 0xff;

/// Atomics: lanes act one after the other, lowest first. `d` is the old value (`NO_RESULT`: none), `a` the base, `b` the
/// operand, `c` the operation (high byte) and type, `aux` the replacement of `cas` (low half), the scope and the semantics.
pub struct Atomic<S, E>(PhantomData<(S, E)>);
pub const NO_RESULT: u16 = 0xffff;

pub const fn atom_code(op: Option<AtomOp>, ty: AtomType) -> u16 {
    let op = match op {
        None => ATOM_CAS,
        Some(op) => op as u16,
    };
    op << 8 | ty as u16
}

impl<S: Space, E: Element, H: Hooks> Body<H> for Atomic<S, E>
where
    <E::Lane as Lane>::Raw: Into<u64> + TryFrom<u64>,
{
    #[inline(never)]
    fn run(w: &mut Warp, m: &mut Machine<'_, H>, u: &Uop<H>) -> Step {
        let base = *w.read::<S::Address>(u.a);
        let operand = *w.read::<E::Lane>(u.b);
        let ty = AtomType::ALL[usize::from(u.c & 0xff)];
        let op = AtomOp::ALL.get(usize::from(u.c >> 8)).copied();
        let mode = Mode::Atomic(
            AtomSem::ALL[(u.aux >> 24) as usize],
            Scope::ALL[(u.aux >> 16 & 0xff) as usize],
        );
        S::check(m, w, &base, u.imm, E::BYTES as u32, mode, &no_values)?;
        let counts = H::LISTENS && S::NAME == Global::NAME && m.hooks.counts_words();
        let mut last = None;
        for i in lanes(w.exec) {
            let address = S::offset(S::Address::from_raw(base[i]), u.imm);
            let mut rmw = || -> Result<u64, Denied> {
                let old: u64 = match E::BYTES {
                    2 => E::get(&S::read::<2, H>(m, w, address)?).into(),
                    4 => E::get(&S::read::<4, H>(m, w, address)?).into(),
                    _ => E::get(&S::read::<8, H>(m, w, address)?).into(),
                };
                let a: u64 = operand[i].into();
                let new = match op {
                    Some(op) => combine(op, ty, old, a, S::NAME == Global::NAME),
                    None => {
                        let replacement: u64 = w.read::<E::Lane>(u.aux as u16)[i].into();
                        if old == a { replacement } else { old }
                    }
                };
                match E::BYTES {
                    2 => S::write::<2, H>(m, w, address, (new as u16).to_le_bytes())?,
                    4 => S::write::<4, H>(m, w, address, (new as u32).to_le_bytes())?,
                    _ => S::write::<8, H>(m, w, address, new.to_le_bytes())?,
                }
                Ok(old)
            };
            let result = rmw();
            // Lanes that change one word after each other are one event, which adds only if it is one lane.
            if counts
                && last.replace(address) != Some(address)
                && let Ok(old) = result
            {
                let is_alone = lanes(w.exec & !1 << i).next().is_none_or(|next| base[next] != base[i]);
                let adds = op == Some(AtomOp::Add) && matches!(ty, AtomType::U32 | AtomType::S32 | AtomType::B32);
                let amount = (adds && is_alone).then(|| operand[i].into() as u32);
                note_words(m, w, address, E::BYTES, (old as u32, amount))?;
            }
            match result {
                Ok(old) if u.d != NO_RESULT => {
                    if let Ok(raw) = <E::Lane as Lane>::Raw::try_from(old) {
                        w.set_lane::<E::Lane>(u.d, i, raw);
                    }
                }
                Ok(_) => {}
                Err(why) => return Err(denied(m, w, why, "atomic", S::NAME, i, address, E::BYTES)),
            }
        }
        // What others wait for may have happened: they go first after an atomic with a result.
        Ok(Flow::Next)
    }
}

/// Reports to the checker what an atomic of a lane has done to words of global memory, if only to a part of one: the first held `old`, to which
/// it has added `amount`; `None`: it has done something else.
fn note_words<H: Hooks>(
    m: &mut Machine<'_, H>,
    w: &Warp,
    address: u64,
    bytes: usize,
    (old, amount): (u32, Option<u32>),
) -> Verdict {
    for at in (address & !3..address + bytes as u64).step_by(4) {
        let event = Sync::WordAdded {
            address: at,
            old,
            amount,
        };
        m.note(w, event)?;
    }
    Ok(())
}

/// Reductions of `N` operands of `B` bytes in all, adjacent in global memory: as [`Atomic`]; `b` is the scope (high byte) and the
/// semantics, `aux` the list of operands, behind which (`d` 1) that of the old values is.
pub struct AtomicVector<E, const N: usize, const B: usize>(PhantomData<E>);

impl<E: Element, const N: usize, const B: usize, H: Hooks> Body<H> for AtomicVector<E, N, B>
where
    E::Lane: Lane<Raw = u32>,
{
    #[inline(never)]
    fn run(w: &mut Warp, m: &mut Machine<'_, H>, u: &Uop<H>) -> Step {
        let base = *w.read::<u64>(u.a);
        let lists = &m.program.lists[u.aux as usize..u.aux as usize + N];
        let ty = AtomType::ALL[usize::from(u.c & 0xff)];
        let op = AtomOp::ALL[usize::from(u.c >> 8)];
        let mode = Mode::Atomic(AtomSem::ALL[usize::from(u.b & 0xff)], Scope::ALL[usize::from(u.b >> 8)]);
        Global::check(m, w, &base, u.imm, B as u32, mode, &no_values)?;
        let old_values = match u.d {
            0 => &[],
            _ => &m.program.lists[u.aux as usize + N..u.aux as usize + 2 * N],
        };
        for i in lanes(w.exec) {
            let address = Global::offset(base[i], u.imm);
            let mut rmw = || -> Result<(), Denied> {
                let mut bytes = Global::read::<B, H>(m, w, address)?;
                let old = bytes;
                for (a, bytes) in lists.iter().zip(bytes.chunks_exact_mut(E::BYTES)) {
                    let (old, a) = (E::get(bytes), w.read::<E::Lane>(*a)[i]);
                    E::put(combine(op, ty, old.into(), a.into(), true) as u32, bytes);
                }
                Global::write::<B, H>(m, w, address, bytes)?;
                for (d, bytes) in old_values.iter().zip(old.chunks_exact(E::BYTES)) {
                    w.set_lane::<E::Lane>(*d, i, E::get(bytes));
                }
                Ok(())
            };
            rmw().map_err(|why| denied(m, w, why, "atomic", Global::NAME, i, address, B))?;
            if H::LISTENS && m.hooks.counts_words() {
                note_words(m, w, address, B, (0, None))?;
            }
        }
        Ok(Flow::Next)
    }
}

/// Reports to the checker an access to shared memory by the lanes of a mask; of `stmatrix` and `ldmatrix`, 16 bytes at the address of each.
#[inline(always)]
#[expect(clippy::too_many_arguments, reason = "an access has many")]
fn check_shared<H: Hooks>(
    m: &mut Machine<'_, H>,
    w: &Warp,
    addresses: &[u32; 32],
    offset: i32,
    mask: u32,
    bytes: u32,
    mode: Mode,
    values: &Values<'_>,
) -> Verdict {
    let range = Range::SharedLanes {
        addresses,
        offset,
        mask,
    };
    let (loc, size) = (
        if H::LISTENS { m.here() } else { Loc::CALL_SITE },
        m.program.cluster_size(),
    );
    let Machine { hooks, ctas, .. } = &mut *m;
    let changes = |slot: CtaSlot, line: u64| {
        let mut changed = 0;
        for i in lanes(mask) {
            let Some((owner, at)) = shared::locate(w.cta, size, addresses[i].wrapping_add(offset as u32)) else {
                continue;
            };
            let smem = &ctas[owner.0 as usize].smem;
            if owner == slot && u64::from(at >> 7) == line && smem.contains(at, bytes) {
                changed |= overwrite::differences(at.into(), smem.get(at, bytes), &values(i));
            }
        }
        changed
    };
    let access = Access {
        range,
        bytes,
        mode,
        loc,
        changes: &changes,
        number: 0,
    };
    let verdict = hooks.memory(w.who(), access);
    m.judge(w, verdict)
}

/// `ldmatrix`: lane l's address is a row of matrix l / 8. `imm`: the number of matrices; `c`: transposed.
pub struct Ldmatrix;
impl<H: Hooks> Body<H> for Ldmatrix {
    #[inline(never)]
    fn run(w: &mut Warp, m: &mut Machine<'_, H>, u: &Uop<H>) -> Step {
        let base = *w.read::<u32>(u.a);
        let count = usize::from(u.b);
        let lists = &m.program.lists[u.aux as usize..u.aux as usize + count];
        let rows = u32::MAX >> (32 - 8 * count as u32);
        check_shared(m, w, &base, u.imm, rows, 16, Mode::Load(LoadSem::Weak), &no_values)?;
        for (j, d) in lists.iter().enumerate() {
            let mut matrix = [[0u16; 8]; 8];
            for (r, row) in matrix.iter_mut().enumerate() {
                let lane = j * 8 + r;
                let address = SharedCta::offset(base[lane], u.imm);
                match SharedCta::read::<16, H>(m, w, address) {
                    Ok(bytes) => {
                        for (c, x) in row.iter_mut().enumerate() {
                            *x = u16::from_le_bytes([bytes[2 * c], bytes[2 * c + 1]]);
                        }
                    }
                    Err(why) => return Err(denied(m, w, why, "ldmatrix", SharedCta::NAME, lane, address, 16)),
                }
            }
            let out = w.register::<u32>(*d);
            for (lane, x) in out.iter_mut().enumerate() {
                let (r, c) = (lane / 4, lane % 4 * 2);
                let (low, high) = if u.c != 0 {
                    (matrix[c][r], matrix[c + 1][r])
                } else {
                    (matrix[r][c], matrix[r][c + 1])
                };
                *x = u32::from(low) | u32::from(high) << 16;
            }
        }
        Ok(Flow::Next)
    }
}

/// `stmatrix`, like [`Ldmatrix`].
pub struct Stmatrix;
impl<H: Hooks> Body<H> for Stmatrix {
    #[inline(never)]
    fn run(w: &mut Warp, m: &mut Machine<'_, H>, u: &Uop<H>) -> Step {
        let base = *w.read::<u32>(u.a);
        let count = usize::from(u.b);
        let lists = &m.program.lists[u.aux as usize..u.aux as usize + count];
        let rows = u32::MAX >> (32 - 8 * count as u32);
        let transposed = u.c != 0;
        // The row that the lane's address is for.
        let row = |w: &Warp, lane: usize| {
            let (values, r) = (w.read::<u32>(lists[lane / 8]), lane % 8);
            let mut bytes = [0; 16];
            for c in 0..8 {
                // Element (r, c) comes from lane 4·row + column / 2 of the fragment.
                let (fr, fc) = if transposed { (c, r) } else { (r, c) };
                let word = values[fr * 4 + fc / 2] >> (16 * (fc % 2));
                bytes[2 * c..2 * c + 2].copy_from_slice(&(word as u16).to_le_bytes());
            }
            bytes
        };
        let mode = Mode::Store(StoreSem::Weak);
        check_shared(m, w, &base, u.imm, rows, 16, mode, &|lane| row(w, lane))?;
        let address = |lane: usize| SharedCta::offset(base[lane], u.imm);
        for lane in lanes(rows) {
            SharedCta::write::<16, H>(m, w, address(lane), row(w, lane))
                .map_err(|why| denied(m, w, why, "stmatrix", SharedCta::NAME, lane, address(lane), 16))?;
        }
        if H::LISTENS && m.hooks.lanes_may_overlap() {
            let verdict = collisions::<SharedCta, 16, H>(m, w, rows, &address, &|lane| row(w, lane));
            verdict?;
        }
        Ok(Flow::Next)
    }
}
