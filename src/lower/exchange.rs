//! Several devices: which one this is, and where the others' buffers are.
//!
//! A kernel that names memory of other devices begins with an exchange through the block of device memory that
//! [`Exchange`] describes. Every block of the grid takes a ticket; tickets count launches, so that a launch knows its *epoch*
//! whoever started it, a replayed graph as well. The block with a launch's first ticket, whichever it is, stores this device's
//! addresses and the epoch in every device's memory and releases them; every block waits until the messages of all
//! devices are there. So a kernel knows that its peers have begun, what XLA did before on their streams included, and where
//! their buffers are in this execution. Two messages by parity of the epoch are enough: who writes those of epoch e + 2 has seen
//! all of epoch e + 1, which nobody sends who still reads those of epoch e.
use super::cx::LowerCx;
use super::emit::{S, V};
use super::memory;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::kernel_ir::{AxisKind, OpKind, Place, RefUse, Value, visit};
use crate::ptx::inst::Inst;
use crate::ptx::launch::{Exchange, MeshUse};
use crate::ptx::modifier::*;
use crate::ptx::operand::{Addr, Class, Src};
use crate::ptx::ssa::{MemTag, Uniform, Value as PtxValue};

/// What a kernel of several devices knows of them.
#[derive(Default)]
pub struct Mesh {
    pub launch: Option<MeshUse>,
    /// The executing device's position.
    position: Option<S>,
    /// This epoch's messages.
    messages: Option<V>,
}

/// What the kernel needs to know of its devices; `buffers`: the number of those that the call has.
pub fn mesh_use(cx: &LowerCx, buffers: u32) -> Result<Option<MeshUse>> {
    let kernel = cx.kernel;
    let devices = kernel.devices();
    let mut told: Vec<u32> = vec![];
    let mut failed = None;
    let mut asks = false;
    kernel.for_each_op(&mut |op| {
        let kind = &kernel.ops[op].kind;
        if let OpKind::AxisIndex { axis } = kind {
            let axis = &kernel.axes[*axis];
            asks |= matches!(axis.kind, AxisKind::DeviceMesh(_)) && axis.size > 1;
        }
        visit::for_each_ref(kind, &mut |r| {
            if matches!(r.place, Place::Peer { .. }) {
                match cx.buffer_of(r.alloc) {
                    Ok(buffer) if !told.contains(&buffer) => told.push(buffer),
                    Ok(_) => {}
                    Err(e) => failed = Some(e),
                }
            }
        });
    });
    if let Some(error) = failed {
        return Err(error);
    }
    if told.is_empty() && !asks {
        return Ok(None);
    }
    told.sort_unstable();
    let exchange = (!told.is_empty()).then_some(Exchange {
        buffer: buffers + 1,
        devices,
        told,
        map_count: 0,
    });
    Ok(Some(MeshUse {
        devices,
        position: buffers,
        exchange,
    }))
}

/// The executing device's position in the mesh, u32.
pub fn position(cx: &mut LowerCx) -> Result<S> {
    cx.mesh
        .position
        .ok_or_else(|| Error::internal("a device's position before it is loaded").at(cx.b.loc()))
}

/// Finds out which device this is, and tells the others of it.
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
        .ok_or_else(|| Error::internal("an exchange without its word of shared memory"))?;
    let base = cx.b.smem_base();
    let word = Addr::at(base, place as i32);
    let warp = cx.b.warp();
    let first = cx.b.setp(Compare::Eq, CompareType::U32, warp, Src::u32(0));
    cx.if_then(first, |cx| {
        let messages = tell(cx, &exchange, position)?;
        let lane = cx.b.lane();
        let leads = cx.b.setp(Compare::Eq, CompareType::U32, lane, Src::u32(0));
        let leads = cx.b.pred(leads);
        cx.b.inst_if(
            Some(leads),
            Inst::St {
                sem: StoreSem::Weak,
                space: Space::Shared,
                ty: MemType::B64,
                addr: word,
                a: [messages].into_iter().collect(),
            },
        );
        Ok(())
    })?;
    cx.sync(crate::kernel_ir::Group::Block);
    let messages = cx.b.load(Space::Shared, MemType::B64, word, 1)[0];
    cx.b.claim_uniform(messages, Uniform::Cta);
    cx.mesh.messages = Some(messages);
    Ok(())
}

/// One warp of each block: tells, if this is the first block of the launch, and waits for everybody's message. Where this
/// epoch's messages are.
fn tell(cx: &mut LowerCx, exchange: &Exchange, position: S) -> Result<S> {
    let block = cx.buffer_pointer(exchange.buffer);
    let lane = cx.b.lane();
    let (epoch, is_first) = take_ticket(cx, block, lane)?;
    // Behind the block's address: this epoch's messages.
    let parity = cx.b.and32(epoch, 1);
    let own = cx.b.mad(IntType::U32, parity, Src::u32(exchange.parity_bytes() as u32), Src::u32(exchange.messages() as u32));
    let own = cx.b.widen(own, false);
    let addresses = exchange
        .told
        .iter()
        .map(|buffer| cx.buffer_pointer(*buffer))
        .collect::<Vec<_>>();
    cx.if_then(is_first, |cx| {
        for_each_device(cx, exchange.devices, lane, |cx, device| {
            let at = cx.b.mad(IntType::U32, device, Src::u32(8), Src::u32(Exchange::BLOCKS as u32));
            let at = cx.b.widen(at, false);
            let at = cx.b.add(IntType::U64, block, at);
            let at = cx.b.addr(at, 0);
            let theirs = load64(cx, at);
            let theirs = cx.b.add(IntType::U64, theirs, own);
            let message = cx.b.mul(IntType::U32, position, Src::u32(exchange.message_bytes() as u32));
            let message = cx.b.widen(message, false);
            let message = cx.b.add(IntType::U64, theirs, message);
            for (i, address) in addresses.iter().enumerate() {
                let addr = cx.b.addr(message, 8 * i as i32);
                cx.b.inst(Inst::St {
                    sem: StoreSem::Weak,
                    space: Space::Global,
                    ty: MemType::B64,
                    addr,
                    a: [Src::Reg(*address)].into_iter().collect(),
                });
            }
            let addr = cx.b.addr(message, exchange.epoch() as i32);
            cx.b.inst(Inst::St {
                sem: StoreSem::ReleaseSys,
                space: Space::Global,
                ty: MemType::B32,
                addr,
                a: [epoch].into_iter().collect(),
            });
            Ok(())
        })
    })?;
    let messages = cx.b.add(IntType::U64, block, own);
    for_each_device(cx, exchange.devices, lane, |cx, device| {
        let at = cx.b.mul(IntType::U32, device, Src::u32(exchange.message_bytes() as u32));
        let at = cx.b.widen(at, false);
        let at = cx.b.add(IntType::U64, messages, at);
        let addr = cx.b.addr(at, exchange.epoch() as i32);
        cx.b.inst(Inst::WaitEqual {
            scope: Scope::Sys,
            addr,
            value: epoch,
        });
        Ok(())
    })?;
    // What one lane has acquired, the warp's others have.
    cx.b.inst(Inst::BarWarp {
        mask: super::emit::ALL_LANES,
    });
    Ok(messages)
}

/// The launch's epoch (its low 32 bits, from 1 on), and whether this block is the first of it: uniform over the warp.
///
/// Tickets of a launch are rounded up to a power of two, by whoever takes the last: no division.
fn take_ticket(cx: &mut LowerCx, block: V, lane: V) -> Result<(S, S)> {
    let kernel = cx.kernel;
    let blocks = kernel.grid_sizes().iter().product::<u64>() * kernel.cluster_size();
    let rounded = blocks.next_power_of_two();
    let leads = cx.b.setp(Compare::Eq, CompareType::U32, lane, Src::u32(0));
    let addr = cx.b.addr(block, Exchange::TICKETS as i32);
    let add = |cx: &mut LowerCx, n: u64| {
        cx.b.inst(Inst::Atom {
            sem: AtomSem::Relaxed,
            scope: Scope::Gpu,
            space: Space::Global,
            op: AtomOp::Add,
            ty: AtomType::U64,
            d: PtxValue::NEW,
            addr,
            a: Src::Imm(n),
        })[0]
    };
    let ticket = cx.if_else(
        leads,
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

/// `f` for each device, in lanes.
fn for_each_device(
    cx: &mut LowerCx,
    devices: u32,
    lane: V,
    mut f: impl FnMut(&mut LowerCx, S) -> Result<()>,
) -> Result<()> {
    for from in (0..devices).step_by(32) {
        let device = cx.b.add(IntType::U32, lane, Src::u32(from));
        let is_one = cx.b.setp(Compare::Lt, CompareType::U32, device, Src::u32(devices));
        cx.if_then(is_one, |cx| f(cx, device))?;
    }
    Ok(())
}

fn load64(cx: &mut LowerCx, addr: Addr<V>) -> S {
    cx.b.load(Space::Global, MemType::B64, addr, 1)[0].into()
}

/// Where a reference to device memory begins: this device's buffer, or a peer's.
pub fn buffer_start(cx: &mut LowerCx, r: &RefUse) -> Result<S> {
    let buffer = cx.buffer_of(r.alloc)?;
    let Place::Peer { device } = r.place else {
        return Ok(cx.buffer_pointer(buffer).into());
    };
    let device = checked_device(cx, device)?;
    let exchange = cx.mesh.launch.as_ref().and_then(|mesh| mesh.exchange.as_ref());
    let (Some(exchange), Some(messages)) = (exchange, cx.mesh.messages) else {
        return Err(Error::internal("a peer's buffer without an exchange").at(cx.b.loc()));
    };
    let place = exchange.told.iter().position(|b| *b == buffer);
    let place = place.ok_or_else(|| Error::internal("a peer's buffer that nobody tells of").at(cx.b.loc()))?;
    let bytes = exchange.message_bytes() as u32;
    let at = cx.b.emit(Inst::MadWide {
        ty: WideType::U32,
        d: PtxValue::NEW,
        a: device,
        b: Src::u32(bytes),
        c: messages.into(),
    });
    let addr = cx.b.addr(at, 8 * place as i32);
    let before = cx.b.set_memory(MemTag::ANY);
    let start = load64(cx, addr);
    cx.b.set_memory(before);
    Ok(start)
}

/// A device's logical id, u32; what is not known to be one is checked by the emulator.
fn checked_device(cx: &mut LowerCx, device: Value) -> Result<S> {
    let id = cx.index32(device)?;
    let devices = i64::from(cx.kernel.devices());
    let facts = cx.kernel.facts(device);
    if facts.lo < 0 || facts.hi >= devices {
        cx.b.inst(Inst::CheckIndex {
            ty: IntType::S32,
            of: Indexed::Devices,
            i: id,
            size: 1,
            extent: devices,
            dim: 0,
            place: 0,
        });
    }
    Ok(id)
}
