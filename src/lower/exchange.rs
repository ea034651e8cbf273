//! Several devices: which one this is, and where the others' buffers are.
//!
//! A kernel that names memory of other devices begins with an exchange through the block of device memory that
//! [`Exchange`] describes. Every block of the grid takes a ticket; tickets count launches, so that a launch has its *epoch*
//! however it was started, by a replayed graph as well. The block with a launch's first ticket, whichever it is, stores this device's
//! addresses in every device's memory, each word with the epoch below; every block waits until the words of all
//! devices are there. So a kernel is ordered behind its peers' beginning, what XLA did before on their streams included, and has where
//! their buffers are in this execution. Two messages by parity of the epoch are enough: a device that writes those of epoch e + 2 has seen
//! all of epoch e + 1, which no device sends while it reads those of epoch e.
//!
//! Addresses are sent as the device that reads them has them: where it is in another process, which mapped the buffer elsewhere, the host
//! gives a row of differences for each buffer.
//!
//! The first block also sets the addresses in tensor maps over peers' buffers, if they have moved since the last launch, and
//! zeroes the semaphores of the next one: those of this epoch are zero since the last, whose signals are all over.
use super::cx::LowerCx;
use super::emit::{ALL_LANES, S, V};
use super::{give_up, memory, semaphore, tma};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::kernel_ir::{Alloc, AxisKind, Group, Kernel, OpKind, Place, RefUse, Value, visit};
use crate::layout::tma::CopyPlan;
use crate::ptx::inst::Inst;
use crate::ptx::launch::{Awaited, Exchange, MeshUse, TensorMapSpec};
use crate::ptx::modifier::*;
use crate::ptx::operand::{Addr, Class, Src, Srcs};
use crate::ptx::ssa::{Uniform, Value as PtxValue};

/// Semaphores of more bytes are zeroed by XLA.
const MOST_SEMAPHORES: u64 = 1 << 16;

/// What a kernel of several devices has of them.
#[derive(Default)]
pub struct Mesh {
    pub launch: Option<MeshUse>,
    /// Tensor maps over buffers of all devices; `buffer` is an exchanged one.
    pub maps: Vec<TensorMapSpec>,
    /// Semaphores in the exchange's block, and their offsets there.
    pub semaphores: Vec<(Alloc, u64)>,
    /// The executing device's position.
    position: Option<S>,
    /// Where the table of addresses is in shared memory, by device and buffer; and this device's own semaphores.
    table: Option<(V, i32)>,
    own_semaphores: Option<V>,
}

/// Whether a kernel zeroes its scratch of semaphores itself, `bytes` in all.
pub fn keeps_semaphores(kernel: &Kernel, bytes: u64) -> bool {
    bytes <= MOST_SEMAPHORES && kernel.talks()
}

/// What the kernel needs of its devices.
pub fn find_use(cx: &mut LowerCx) -> Result<()> {
    let kernel = cx.kernel;
    let devices = kernel.devices();
    let buffers = (kernel.params.len() + cx.entry.scratch.len()) as u32;
    let mut exchanged: Vec<u32> = vec![];
    let mut maps: Vec<TensorMapSpec> = vec![];
    let mut needs_position = false;
    kernel.try_for_each_op(&mut |op| {
        let kind = &kernel.ops[op].kind;
        if let OpKind::AxisIndex { axis } = kind {
            let axis = &kernel.axes[*axis];
            needs_position |= matches!(axis.kind, AxisKind::DeviceMesh(_)) && axis.size > 1;
        }
        let mut of_peers = vec![];
        visit::for_each_ref(kind, &mut |r| {
            if matches!(r.place, Place::Peer { .. }) {
                of_peers.push(r.clone());
            }
        });
        for r in &of_peers {
            let buffer = cx.buffer_of(r.alloc)?;
            if !exchanged.contains(&buffer) {
                exchanged.push(buffer);
            }
            let by_threads = matches!(
                kind,
                OpKind::CopyGmemToSmem { by_threads: true, .. } | OpKind::CopySmemToGmem { by_threads: true, .. }
            );
            if let Some(copy) = cx.accesses.copies.get(&op).and_then(Option::as_ref)
                && let CopyPlan::Tensor(plan) = &copy.plan
                && !by_threads
            {
                let map = tma::map_spec(cx, r, plan)?;
                if !maps.contains(&map) {
                    maps.push(map);
                }
            }
        }
        Ok::<(), Error>(())
    })?;
    if exchanged.is_empty() && !needs_position {
        return Ok(());
    }
    if !cx.mesh.semaphores.is_empty() && !exchanged.contains(&(buffers + 1)) {
        // Every device looks there where its own are.
        exchanged.push(buffers + 1);
    }
    exchanged.sort_unstable();
    let blocks = cx.blocks();
    let ends = cx.mesh.semaphores.iter();
    let ends = ends.map(|(alloc, at)| at + semaphore::scratch_bytes(kernel, *alloc, blocks));
    let semaphore_bytes: u64 = ends.max().unwrap_or(0);
    let exchange = kernel.talks().then(|| Exchange {
        buffer: buffers + 1,
        devices,
        exchanged,
        map_count: maps.len() as u32,
        semaphore_bytes: semaphore_bytes.next_multiple_of(16),
    });
    cx.mesh.maps = maps;
    cx.mesh.launch = Some(MeshUse {
        devices,
        position: buffers,
        exchange,
    });
    Ok(())
}

/// The executing device's position in the mesh, u32.
pub fn position(cx: &mut LowerCx) -> Result<S> {
    cx.mesh
        .position
        .ok_or_else(|| Error::internal("a device's position before it is loaded").at(cx.b.loc()))
}

/// Finds this device's position, and sends its addresses to the others.
pub fn prologue(cx: &mut LowerCx) -> Result<()> {
    let Some(mesh) = cx.mesh.launch.clone() else {
        return Ok(());
    };
    let pointer = cx.buffer_pointer(mesh.position);
    let position = memory::load_parameter(cx, pointer, DType::U32)?;
    cx.b.assume_at_most(position, u64::from(mesh.devices) - 1);
    cx.mesh.position = Some(position);
    let Some(exchange) = mesh.exchange else { return Ok(()) };
    let place = cx
        .plan
        .exchange
        .ok_or_else(|| Error::internal("an exchange without a table in shared memory"))?;
    let table = (cx.b.smem_base(), place as i32);
    cx.mesh.table = Some(table);
    let block = cx.buffer_pointer(exchange.buffer);
    let warp = cx.b.warp();
    let first = cx.b.setp(Compare::Eq, CompareType::U32, warp, Src::u32(0));
    cx.if_then(first, |cx| exchange_addresses(cx, &exchange, block, position))?;
    cx.sync(Group::Block);
    for map in 0..exchange.map_count {
        for device in 0..exchange.devices {
            let addr = cx.b.addr(block, exchange.map(map, device) as i32);
            cx.b.inst(Inst::fence_map_acquire(Scope::Gpu, addr));
        }
    }
    if exchange.semaphore_bytes > 0 {
        let own = peer_address(cx, &exchange, position, exchange.buffer)?;
        cx.mesh.own_semaphores = Some(own);
    }
    Ok(())
}

/// One warp of each block: sends, if this is the first block of the launch, waits for every device's message, and leaves it in
/// shared memory.
fn exchange_addresses(cx: &mut LowerCx, exchange: &Exchange, block: V, position: S) -> Result<()> {
    let lane = cx.b.lane();
    let groups = exchange.devices.div_ceil(32);
    // The device of each lane and its block: loaded before the ticket, which takes as long.
    let mut theirs = vec![];
    for group in 0..groups {
        let device = cx.b.add(IntType::U32, lane, Src::u32(32 * group));
        let there = cx.b.min(IntType::U32, device, Src::u32(exchange.devices - 1));
        let at = behind(cx, block.into(), there, 8, Exchange::BLOCKS);
        theirs.push((device, load64(cx, at)));
    }
    // Where other processes have mapped this device's buffers, by the same devices.
    let mut elsewhere = vec![];
    for buffer in 0..exchange.exchanged.len() as u32 {
        let row = cx.row_pointer(buffer);
        let mut deltas = vec![];
        for (device, _) in &theirs {
            let there = cx.b.min(IntType::U32, *device, Src::u32(exchange.devices - 1));
            let at = behind(cx, row.into(), there, 8, 0);
            deltas.push(load64(cx, at));
        }
        elsewhere.push(deltas);
    }
    let (epoch, is_first) = take_ticket(cx, block, lane)?;
    let tag = cx.b.and32(epoch, 0xffff);
    let parity = cx.b.and32(epoch, 1);
    // Of this epoch's messages, from a block's start.
    let (messages, each) = (exchange.messages() as u32, exchange.parity_bytes() as u32);
    let own = cx.b.mad(IntType::U32, parity, Src::u32(each), Src::u32(messages));
    let addresses = exchange
        .exchanged
        .iter()
        .map(|buffer| cx.buffer_pointer(*buffer))
        .collect::<Vec<_>>();
    cx.if_then(is_first, |cx| {
        cx.b.inst(Inst::fence(FenceSem::AcqRel, Scope::Sys));
        let message =
            cx.b.mad(IntType::U32, position, Src::u32(exchange.message_bytes() as u32), own);
        let message = cx.b.widen(message, false);
        let tag = cx.b.widen(tag, false);
        for (group, (device, start)) in theirs.iter().enumerate() {
            let there = cx.b.add(IntType::U64, *start, message);
            where_device(cx, exchange, *device, |cx| {
                for (i, (address, deltas)) in addresses.iter().zip(&elsewhere).enumerate() {
                    let address = cx.b.add(IntType::U64, *address, deltas[group]);
                    let shifted = cx.b.shl(BitType::B64, address, Src::u32(12));
                    let word = cx.b.add(IntType::U64, shifted, tag);
                    let addr = cx.b.addr(there, 8 * i as i32);
                    store64(cx, StoreSem::RelaxedSys, Space::Global, addr, word);
                }
                Ok(())
            })?;
        }
        Ok(())
    })?;
    let own = cx.b.widen(own, false);
    let here = cx.b.add(IntType::U64, block, own);
    let (base, place) = cx.mesh.table.ok_or_else(|| Error::internal("no table"))?;
    let sems = cx.b.mad(
        IntType::U32,
        parity,
        Src::u32(exchange.semaphore_bytes as u32),
        Src::u32(exchange.semaphores() as u32),
    );
    let sems = cx.b.widen(sems, false);
    let each = exchange.message_bytes() as u32;
    for (device, _) in &theirs {
        where_device(cx, exchange, *device, |cx| {
            let message = behind(cx, here, *device, each, 0);
            let slot = cx.b.mad(IntType::U32, *device, Src::u32(each), base);
            for (i, buffer) in exchange.exchanged.iter().enumerate() {
                let at = Addr::at(message.base, message.offset + 8 * i as i32);
                let word = wait_tagged(cx, Scope::Sys, at, tag, Awaited::Device, *device)?;
                let mut address = address_of(cx, word.into());
                if *buffer == exchange.buffer {
                    address = cx.b.add(IntType::U64, address, sems);
                }
                let addr = cx.b.addr(slot, place + 8 * i as i32);
                store64(cx, StoreSem::Weak, Space::Shared, addr, address);
            }
            Ok(())
        })?;
    }
    // What one lane has acquired, the warp's others have; and they see the table.
    cx.b.inst(Inst::BarWarp { mask: ALL_LANES });
    if exchange.map_count > 0 {
        set_maps(cx, exchange, block, (&theirs, here), (epoch, parity), is_first)?;
    }
    if exchange.semaphore_bytes > 0 {
        cx.if_then(is_first, |cx| {
            let next = cx.b.xor(LogicType::B32, parity, Src::u32(1));
            zero_semaphores(cx, exchange, block, lane, next)
        })?;
    }
    Ok(())
}

/// A word of this epoch. Where waits have a limit, `awaited` and `detail` name the sender if it does not come.
fn wait_tagged(cx: &mut LowerCx, scope: Scope, addr: Addr<V>, tag: S, awaited: Awaited, detail: S) -> Result<V> {
    let d = PtxValue::NEW;
    let Some(limit) = cx.limit else {
        return Ok(cx.b.inst(Inst::WaitTagged { scope, d, addr, tag })[0]);
    };
    let ok = PtxValue::NEW;
    let waited = cx.b.inst(Inst::wait_tagged_for(scope, ok, d, addr, tag, limit.ns));
    give_up::unless(cx, waited[0], awaited, detail)?;
    Ok(waited[1])
}

/// Tensor maps over the devices' buffers get their addresses from the first block; the others wait for that where an address is not
/// the last epoch's.
fn set_maps(
    cx: &mut LowerCx,
    exchange: &Exchange,
    block: V,
    (devices, here): (&[(S, S)], S),
    (epoch, parity): (S, S),
    is_first: S,
) -> Result<()> {
    let maps = cx.mesh.maps.clone();
    let each = exchange.message_bytes() as u32;
    // The other parity's messages, of where buffers were: a word that is not of the last epoch is of a later launch.
    let other = cx.b.xor(LogicType::B32, parity, Src::u32(1));
    let (messages, bytes) = (exchange.messages() as u32, exchange.parity_bytes() as u32);
    let other = cx.b.mad(IntType::U32, other, Src::u32(bytes), Src::u32(messages));
    let other = cx.b.widen(other, false);
    let before = cx.b.add(IntType::U64, block, other);
    let mut moved: S = Src::Imm(0);
    for (device, _) in devices {
        let there = cx.b.min(IntType::U32, *device, Src::u32(exchange.devices - 1));
        for map in &maps {
            let i = exchanged_index(exchange, map.buffer)?;
            let now = behind(cx, here, there, each, 8 * i as u64);
            let then = behind(cx, before, there, each, 8 * i as u64);
            let now = load_relaxed64(cx, now);
            let then = load_relaxed64(cx, then);
            // Equal addresses, and tags that follow each other.
            let difference = cx.b.sub(IntType::U64, now, then);
            let low = cx.b.and(LogicType::B64, now, Src::Imm(0xffff));
            let wraps = cx.b.setp(Compare::Eq, CompareType::U64, low, Src::Imm(0));
            let expected =
                cx.b.select(BitType::B64, wraps, Src::Imm(0xffff_ffff_ffff_0001), Src::Imm(1));
            let differs = cx.b.setp(Compare::Ne, CompareType::U64, difference, expected);
            moved = cx.b.either(moved, differs);
        }
    }
    let moved = cx.b.pred(moved);
    let moved =
        cx.b.inst(Inst::vote(VoteMode::Any, PtxValue::NEW, moved, i64::from(u32::MAX)))[0];
    let at = cx.b.addr(block, Exchange::MAPS_EPOCH as i32);
    let tag = cx.b.and32(epoch, 0xffff);
    cx.if_then(is_first, |cx| {
        cx.if_then(moved.into(), |cx| {
            for (device, _) in devices {
                where_device(cx, exchange, *device, |cx| {
                    for (k, map) in (0..).zip(&maps) {
                        let start = peer_address(cx, exchange, *device, map.buffer)?;
                        let start = cx.b.add(IntType::U64, start, Src::Imm(map.byte_offset));
                        let addr = behind(cx, block.into(), *device, 128, exchange.map(k, 0));
                        cx.b.inst(Inst::ReplaceMapAddress { addr, new: start });
                    }
                    Ok(())
                })?;
            }
            cx.b.inst(Inst::FenceMapRelease { scope: Scope::Gpu });
            Ok(())
        })?;
        cx.b.inst(Inst::BarWarp { mask: ALL_LANES });
        let lane = cx.b.lane();
        let is_leader = cx.b.setp(Compare::Eq, CompareType::U32, lane, Src::u32(0));
        cx.if_then(is_leader, |cx| {
            let tag = cx.b.widen(tag, false);
            store64(cx, StoreSem::ReleaseGpu, Space::Global, at, tag);
            Ok(())
        })
    })?;
    cx.if_then(moved.into(), |cx| {
        // The first block may have given up before.
        wait_tagged(cx, Scope::Gpu, at, tag, Awaited::Maps, Src::u32(0))?;
        Ok(())
    })
}

/// By one warp.
fn zero_semaphores(cx: &mut LowerCx, exchange: &Exchange, block: V, lane: V, parity: S) -> Result<()> {
    let bytes = exchange.semaphore_bytes as u32;
    let from = cx.b.mad(
        IntType::U32,
        parity,
        Src::u32(bytes),
        Src::u32(exchange.semaphores() as u32),
    );
    let from = cx.b.widen(from, false);
    let start = cx.b.add(IntType::U64, block, from);
    let first = cx.b.mul(IntType::U32, lane, Src::u32(16));
    let carried = [super::cx::Carried {
        init: first,
        class: Class::B32,
        uniform: Uniform::Thread,
    }];
    cx.while_loop(
        &carried,
        |cx, at| Ok(cx.b.setp(Compare::Lt, CompareType::U32, at[0], Src::u32(bytes))),
        |cx, at| {
            let offset = cx.b.widen(at[0], false);
            let to = cx.b.add(IntType::U64, start, offset);
            let addr = cx.b.addr(to, 0);
            let a: Srcs<V> = [Src::u32(0); 4].into_iter().collect();
            cx.b.inst(Inst::st(StoreSem::Weak, Space::Global, MemType::B32, addr, a));
            Ok(vec![cx.b.add(IntType::U32, at[0], Src::u32(32 * 16))])
        },
    )?;
    Ok(())
}

/// The launch's epoch (its low 32 bits, from 1 on), and whether this block is the first of it: uniform over the warp.
///
/// Tickets of a launch are rounded up to a power of two, by the thread that takes the last: no division.
fn take_ticket(cx: &mut LowerCx, block: V, lane: V) -> Result<(S, S)> {
    let blocks = cx.blocks();
    let rounded = blocks.next_power_of_two();
    let is_leader = cx.b.setp(Compare::Eq, CompareType::U32, lane, Src::u32(0));
    let addr = cx.b.addr(block, Exchange::TICKETS as i32);
    let add = |cx: &mut LowerCx, n: u64| {
        cx.b.inst(Inst::atom(
            AtomSem::Relaxed,
            Scope::Gpu,
            Space::Global,
            AtomOp::Add,
            AtomType::U64,
            PtxValue::NEW,
            addr,
            Src::Imm(n),
        ))[0]
    };
    let ticket = cx.if_else(
        is_leader,
        &[Class::B64],
        |cx| {
            let ticket = add(cx, 1);
            if rounded > blocks {
                let index = cx.b.truncate(ticket.into());
                let index = cx.b.and32(index, rounded as u32 - 1);
                let last = cx.b.setp(Compare::Eq, CompareType::U32, index, Src::Imm(blocks - 1));
                cx.if_then(last, |cx| {
                    add(cx, rounded - blocks);
                    Ok(())
                })?;
            }
            Ok(vec![ticket.into()])
        },
        |_| Ok(vec![Src::Imm(0)]),
    )?[0];
    let ticket = cx.b.broadcast_lane0(Class::B64, ticket);
    let launch = cx.b.shr(ShiftType::U64, ticket, Src::u32(rounded.trailing_zeros()));
    let launch = cx.b.truncate(launch);
    let epoch = cx.b.add(IntType::U32, launch, Src::u32(1));
    let index = cx.b.truncate(ticket);
    let index = cx.b.and32(index, rounded as u32 - 1);
    let is_first = cx.b.setp(Compare::Eq, CompareType::U32, index, Src::u32(0));
    Ok((epoch, is_first))
}

/// `f` in the lanes whose `device` there is.
fn where_device(
    cx: &mut LowerCx,
    exchange: &Exchange,
    device: S,
    f: impl FnOnce(&mut LowerCx) -> Result<()>,
) -> Result<()> {
    let is_one =
        cx.b.setp(Compare::Lt, CompareType::U32, device, Src::u32(exchange.devices));
    cx.if_then(is_one, f)
}

/// `base + offset + index · each`.
fn behind(cx: &mut LowerCx, base: S, index: S, each: u32, offset: u64) -> Addr<V> {
    let at = cx.b.emit(Inst::mad_wide(
        WideType::U32,
        PtxValue::NEW,
        index,
        Src::u32(each),
        base,
    ));
    cx.b.addr(at, offset as i32)
}

/// The address in a message's word.
fn address_of(cx: &mut LowerCx, word: S) -> S {
    let shifted = cx.b.shr(ShiftType::U64, word, Src::u32(12));
    cx.b.and(LogicType::B64, shifted, Src::Imm(!0xf))
}

fn load64(cx: &mut LowerCx, addr: Addr<V>) -> S {
    cx.b.load(Space::Global, MemType::B64, addr, 1)[0].into()
}

fn load_relaxed64(cx: &mut LowerCx, addr: Addr<V>) -> S {
    let inst = Inst::ld(
        LoadSem::RelaxedSys,
        Space::Global,
        MemType::B64,
        [PtxValue::NEW].into_iter().collect(),
        addr,
    );
    cx.b.inst(inst)[0].into()
}

fn store64(cx: &mut LowerCx, sem: StoreSem, space: Space, addr: Addr<V>, a: S) {
    cx.b.inst(Inst::st(sem, space, MemType::B64, addr, [a].into_iter().collect()));
}

fn exchanged_index(exchange: &Exchange, buffer: u32) -> Result<usize> {
    let place = exchange.exchanged.iter().position(|b| *b == buffer);
    place.ok_or_else(|| Error::internal("a peer's buffer that is not exchanged"))
}

/// A device's address of a buffer, from the table.
fn peer_address(cx: &mut LowerCx, exchange: &Exchange, device: S, buffer: u32) -> Result<V> {
    let (base, place) = cx.mesh.table.ok_or_else(|| Error::internal("no table of addresses"))?;
    let i = exchanged_index(exchange, buffer)?;
    let slot =
        cx.b.mad(IntType::U32, device, Src::u32(exchange.message_bytes() as u32), base);
    let addr = cx.b.addr(slot, place + 8 * i as i32);
    Ok(cx.b.load(Space::Shared, MemType::B64, addr, 1)[0])
}

fn the_exchange(cx: &LowerCx) -> Result<Exchange> {
    let exchange = cx.mesh.launch.as_ref().and_then(|mesh| mesh.exchange.clone());
    exchange.ok_or_else(|| Error::internal("a peer's memory without an exchange").at(cx.b.loc()))
}

/// Where a reference to device memory begins: this device's buffer, or a peer's.
pub fn buffer_start(cx: &mut LowerCx, r: &RefUse) -> Result<S> {
    let buffer = cx.buffer_of(r.alloc)?;
    let within = cx.mesh.semaphores.iter().find(|(alloc, _)| *alloc == r.alloc);
    let within = within.map(|(_, offset)| *offset);
    let start: S = match r.place {
        Place::Peer { device } => {
            let device = checked_device(cx, device)?;
            let exchange = the_exchange(cx)?;
            peer_address(cx, &exchange, device, buffer)?.into()
        }
        Place::Here | Place::Cluster { .. } | Place::Multicast { .. } => match (within, cx.mesh.own_semaphores) {
            (Some(_), Some(own)) => own.into(),
            _ => cx.buffer_pointer(buffer).into(),
        },
    };
    Ok(match within {
        None => start,
        Some(offset) => cx.b.add(IntType::U64, start, Src::Imm(offset)),
    })
}

/// A peer's tensor map, in the exchange's block.
pub fn tensor_map(cx: &mut LowerCx, device: Value, spec: &TensorMapSpec) -> Result<V> {
    let device = checked_device(cx, device)?;
    let exchange = the_exchange(cx)?;
    let map = cx.mesh.maps.iter().position(|map| map == spec);
    let map = map.ok_or_else(|| Error::internal("a tensor map that was not planned").at(cx.b.loc()))?;
    let block = cx.buffer_pointer(exchange.buffer);
    let at = behind(cx, block.into(), device, 128, 0);
    let at = cx.b.add(IntType::U64, at.base, Src::Imm(exchange.map(map as u32, 0)));
    Ok(cx.b.r64(at))
}

/// A device's logical id, u32; what is not known to be one is checked by the emulator.
fn checked_device(cx: &mut LowerCx, device: Value) -> Result<S> {
    let id = cx.index32(device)?;
    let devices = i64::from(cx.kernel.devices());
    let facts = cx.kernel.facts(device);
    if !facts.within(0, devices - 1) {
        cx.b.inst(Inst::check_index(IntType::S32, Indexed::Devices, id, 1, devices, 0, 0));
    }
    Ok(id)
}
