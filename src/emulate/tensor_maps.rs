//! Tensor maps: entry parameters, and those in global memory, whose addresses the kernel sets itself.
use super::agents::Source;
use super::bulk::Destination;
use super::check::{Access, Hooks, Mode, Range, Sync, Verdict};
use super::global::{GlobalMemory, param_at};
use super::machine::Machine;
use super::map_bytes::{MAP_BYTES, MapName, decode, encode};
use super::overwrite;
use super::shared::CtaSlot;
use super::tma::{self, Placed};
use super::uop::{Body, Flow, Step, Uop, fail};
use super::warp::{Warp, lanes};
use crate::error::{Error, Fault};
use crate::ptx::launch::{EntryParam, TensorMapSpec};
use crate::ptx::modifier::{Modifier, Scope, StoreSem};

/// The tensor map of a copy, as it was when the copy was issued.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TensorMap {
    name: MapName,
    /// The tensor's address.
    base: u64,
    /// Where the map is, in global memory; a parameter is nowhere.
    place: Option<u64>,
}

fn execution(what: impl Into<String>) -> Error {
    Error::new(Fault::Execution, what)
}

impl<'a, H: Hooks> Machine<'a, H> {
    fn map_spec(&self, name: MapName) -> Option<&'a TensorMapSpec> {
        let launch = &self.program.launch;
        match name {
            MapName::Template(k) => launch.map_templates.get(k as usize),
            MapName::Parameter(p) => match launch.params.get(p as usize) {
                Some(EntryParam::TensorMap(spec)) => Some(spec),
                Some(EntryParam::Pointer { .. } | EntryParam::Row { .. }) | None => None,
            },
        }
    }

    /// A copy's tensor map, and where its tensor is.
    pub fn placed(&self, map: &TensorMap) -> Placed<'a> {
        let spec = self.map_spec(map.name).expect("`tensor_map` looked it up");
        Placed { spec, base: map.base }
    }

    /// The address of the tensor of a map that is a parameter, on the device of a CTA.
    fn parameter_base(&self, slot: CtaSlot, spec: &TensorMapSpec) -> u64 {
        GlobalMemory::address(self.buffer_of(slot, spec.buffer)) + spec.byte_offset
    }

    /// The tensor map at a generic address, which a copy of the warp is about to use.
    pub fn tensor_map(&mut self, w: &Warp, pc: u32, address: u64) -> Result<TensorMap, Box<Error>> {
        if let Some(p) = param_at(address)
            && let Some(spec) = self.map_spec(MapName::Parameter(p))
        {
            return Ok(TensorMap {
                name: MapName::Parameter(p),
                base: self.parameter_base(w.cta, spec),
                place: None,
            });
        }
        let (name, base) = self.map_in_memory("a bulk tensor copy", address)?;
        let Some(spec) = self.map_spec(name) else {
            let error = execution("a bulk tensor copy through a map of another launch");
            return Err(Box::new(error.got(format!("{name:?}"))));
        };
        let verdict = self.hooks.map_used(w.who(), address);
        self.judge(w, verdict)?;
        if !self.hooks.map_is_own(w.who(), address) {
            self.check_foreign(w, pc, address, MAP_BYTES as u32)?;
        }
        if !base.is_multiple_of(16) || self.memory.resolve(base, tma::extent(spec)).is_none() {
            let error = execution("a bulk tensor copy through a map whose tensor does not fit where its address says")
                .expected(format!(
                    "an address that is a multiple of 16, and {} bytes from there on in one buffer",
                    tma::extent(spec)
                ))
                .got(format!(
                    "address 0x{base:x}, {}, in the map at {}",
                    self.memory.describe(base),
                    self.memory.describe(address)
                ))
                .remedy("set the map's address (`tensormap.replace`) to that of a buffer of the size it was made for");
            return Err(Box::new(error));
        }
        Ok(TensorMap {
            name,
            base,
            place: Some(address),
        })
    }

    /// Which map 128 bytes of global memory are, and over what address.
    fn map_in_memory(&self, what: &str, address: u64) -> Result<(MapName, u64), Box<Error>> {
        if self.memory.resolve(address, MAP_BYTES as u64).is_none() {
            let error = execution(what).expected("the address of a tensor map");
            return Err(Box::new(error.got(format!("0x{address:x}"))));
        }
        if !address.is_multiple_of(MAP_BYTES as u64) {
            let error = execution(format!("{what} with a misaligned tensor map"));
            return Err(Box::new(
                error
                    .expected("an address that is a multiple of 128")
                    .got(format!("address 0x{address:x}: {}", self.memory.describe(address))),
            ));
        }
        let mut bytes = [0; MAP_BYTES];
        tma::read_global(self.memory, address, &mut bytes, false)?;
        decode(&bytes).ok_or_else(|| {
            let error = execution(format!("{what} with global memory that holds no tensor map"))
                .expected("a tensor map that the host wrote, or all 128 bytes of a copy of one")
                .got(self.memory.describe(address));
            Box::new(error)
        })
    }

    /// Sets the address in a map; `at` is the map's.
    fn replace_address(&mut self, w: &Warp, at: u64, new: u64) -> Result<(), Box<Error>> {
        let (_, old) = self.map_in_memory("tensormap.replace", at)?;
        if !new.is_multiple_of(16) {
            let error = execution("tensormap.replace with a misaligned address");
            return Err(Box::new(error.expected("a multiple of 16").got(format!("0x{new:x}"))));
        }
        if H::LISTENS && old != new && self.is_read(w, at) {
            let error = execution("a tensor map is changed that a copy in flight may still read")
                .expected("a wait that covers the copies through the map before it is changed")
                .got(self.memory.describe(at))
                .remedy("wait for the copies first (`barrier_wait`, `wait_smem_to_gmem`), or keep a map of its own for each address");
            self.judge(w, Err(Box::new(error)))?;
        }
        let author = self.author(w.cta, || self.here());
        if let Some(other) = self.memory.store(author, at, &new.to_le_bytes()) {
            self.overwritten.get_or_insert((at, other));
        }
        self.memory_changed = true;
        Ok(())
    }

    /// Whether a copy in flight uses the map at an address.
    fn is_read(&self, w: &Warp, at: u64) -> bool {
        let uses = |map: &TensorMap| map.place == Some(at);
        let loads = self
            .agents
            .loads
            .iter()
            .any(|load| matches!(&load.source, Source::Tensor { map, .. } if uses(map)));
        let mut warps = self.warps.iter().filter_map(|w| w.as_deref()).chain([w]);
        loads
            || warps.any(|w| {
                w.bulk.stores.iter().any(|store| {
                    store.data.is_none() && matches!(&store.destination, Destination::Tensor { map, .. } if uses(map))
                })
            })
    }

    /// Reports to the checker the stores of addresses `new` to the maps at `base` + `offset`.
    fn check_replaced(&mut self, w: &Warp, base: &[u64; 32], offset: i32, new: &[u64; 32]) -> Verdict {
        if !H::LISTENS {
            return Ok(());
        }
        let at = |lane: usize| base[lane].wrapping_add(offset as i64 as u64);
        for lane in lanes(w.exec) {
            self.hooks.map_named(w.who(), at(lane));
        }
        let (loc, memory, exec) = (self.here(), self.memory, w.exec);
        let changes = |_: CtaSlot, line: u64| {
            let here = lanes(exec).filter(|lane| at(*lane) >> 7 == line);
            here.map(|lane| memory.differences(at(lane), &new[lane].to_le_bytes(), line))
                .fold(0, |all, one| all | one)
        };
        let access = Access {
            range: Range::GlobalLanes {
                addresses: base,
                offset,
                mask: w.exec,
            },
            bytes: MAP_BYTES as u32,
            mode: Mode::Store(StoreSem::Weak),
            loc,
            changes: &changes,
            number: 0,
        };
        let verdict = self.hooks.memory(w.who(), access);
        self.judge(w, verdict)
    }
}

/// `tensormap.replace` of the map at `a` + `imm` by the address `b`.
pub struct ReplaceMapAddress;
impl<H: Hooks> Body<H> for ReplaceMapAddress {
    #[inline(never)]
    fn run(w: &mut Warp, m: &mut Machine<'_, H>, u: &Uop<H>) -> Step {
        let (base, new) = (*w.read::<u64>(u.a), *w.read::<u64>(u.b));
        let at = |lane: usize| base[lane].wrapping_add(u.imm as i64 as u64);
        let mut done = m.check_replaced(w, &base, u.imm, &new);
        for lane in lanes(w.exec) {
            done = done.and_then(|()| m.replace_address(w, at(lane), new[lane]));
        }
        if H::LISTENS {
            done = done.and_then(|()| super::mem::check_overwritten(m, w));
            let held = |lane: &usize| m.memory.peek(at(*lane), 8)[..8] == new[*lane].to_le_bytes();
            if done.is_ok()
                && let Some(lane) = lanes(w.exec).find(|lane| !held(lane))
            {
                let place = m.memory.describe(at(lane));
                done = m.judge(w, Err(overwrite::collision("global", lane, place)));
            }
        }
        done?;
        Ok(Flow::Next)
    }
}

/// Eight bytes from `imm` on of the tensor map that is parameter `aux`.
pub struct LoadMapParameter;
impl<H: Hooks> Body<H> for LoadMapParameter {
    #[inline(never)]
    fn run(w: &mut Warp, m: &mut Machine<'_, H>, u: &Uop<H>) -> Step {
        let name = MapName::Parameter(u.aux);
        let Some(spec) = m.map_spec(name) else {
            return fail(Error::internal(format!("parameter {} is no tensor map", u.aux)));
        };
        let bytes = encode(name, m.parameter_base(w.cta, spec));
        let mut word = [0; 8];
        word.copy_from_slice(&bytes[u.imm as usize..u.imm as usize + 8]);
        for lane in lanes(w.exec) {
            w.set_lane::<u64>(u.d, lane, u64::from_le_bytes(word));
        }
        Ok(Flow::Next)
    }
}

/// `fence.proxy.tensormap::generic.release`; `imm`: the scope, by its position.
pub struct FenceMapRelease;
impl<H: Hooks> Body<H> for FenceMapRelease {
    #[inline(always)]
    fn run(w: &mut Warp, m: &mut Machine<'_, H>, u: &Uop<H>) -> Step {
        let scope = Scope::ALL[u.imm as usize];
        super::sync::noted(w, m, Sync::MapRelease { scope })
    }
}

/// `fence.proxy.tensormap::generic.acquire` of the map at `a` + `imm`; `c`: the scope, by its position.
pub struct FenceMapAcquire;
impl<H: Hooks> Body<H> for FenceMapAcquire {
    #[inline(never)]
    fn run(w: &mut Warp, m: &mut Machine<'_, H>, u: &Uop<H>) -> Step {
        let scope = Scope::ALL[usize::from(u.c)];
        let base = *w.read::<u64>(u.a);
        for lane in lanes(w.exec) {
            let address = base[lane].wrapping_add(u.imm as i64 as u64);
            let done = m
                .map_in_memory("fence.proxy.tensormap", address)
                .and_then(|_| m.note(w, Sync::MapAcquire { address, scope }));
            done?;
        }
        Ok(Flow::Next)
    }
}
