//! References, what is loaded and stored through them, and what is signalled.
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::kernel_ir::*;
use crate::target::Features;

/// A use of a reference: whose memory it is, and how it is seen.
pub fn reference(kernel: &Kernel, kind: &OpKind, r: &RefUse) -> Result<()> {
    let data = &kernel.allocs[r.alloc];
    let near = matches!(r.place, Place::Here | Place::Cluster { .. });
    let elsewhere = |what: &str| {
        Err(Error::unsupported(format!(
            "{what} of another device: {}",
            words::of_alloc(kernel, r.alloc)
        ))
        .remedy("exchange data between devices outside of the kernel (jax.lax collectives)"))
    };
    if let Place::Multicast { .. } = r.place {
        return Err(Error::unsupported(format!("{} of a multicast reference", kind.name()))
            .expected("a store, an atomic update, a copy from shared memory, a signal, or plgpu.multimem_load_reduce")
            .remedy("go over the devices in a loop, with plgpu.remote_ref"));
    }
    if let Place::Peer { device } = r.place {
        peer(kernel, device)?;
    }
    match data.kind {
        AllocKind::Smem { .. } | AllocKind::SmemUnion if !near => elsewhere("shared memory")?,
        AllocKind::Barrier { .. } if !near => elsewhere("barriers")?,
        AllocKind::Tmem { .. } | AllocKind::TmemUnion => return super::tensor_memory::reference(kernel, kind, r),
        AllocKind::Gmem { .. }
        | AllocKind::Semaphore { .. }
        | AllocKind::Smem { .. }
        | AllocKind::SmemUnion
        | AllocKind::Barrier { .. }
        | AllocKind::Register { .. } => {}
    }
    let is_copy = matches!(
        kind,
        OpKind::CopyGmemToSmem { .. } | OpKind::CopySmemToGmem { .. } | OpKind::Prefetch { .. }
    );
    let bits = data.elem().dtype().map(DType::bits);
    for step in &r.steps {
        match step {
            Step::Index(dims) => {
                let named = || words::of_alloc(kernel, r.alloc);
                dims.iter().try_for_each(|d| index(is_copy, d, &named))?;
                window(kind, data, r)?;
            }
            Step::Bitcast { dtype, .. } if bits != Some(dtype.bits()) => {
                return Err(Error::unsupported("a bitcast of a reference between widths")
                    .got(format!("{} as {dtype}", words::of_alloc(kernel, r.alloc)))
                    .remedy("load it, and bitcast the array (jax.lax.bitcast_convert_type)"));
            }
            Step::Im2Col { .. } => {
                return Err(Error::unsupported("im2col copies")
                    .remedy("go over the window in a loop, a copy for each of its places"));
            }
            Step::Bitcast { .. }
            | Step::Transpose(_)
            | Step::Reshape(_)
            | Step::ExpandLeadingBatch(_)
            | Step::ExtractAlias { .. }
            | Step::Unswizzle(_)
            | Step::Untile(_) => {}
        }
    }
    Ok(())
}

/// A device that a reference names.
fn peer(kernel: &Kernel, device: Value) -> Result<()> {
    let devices = i64::from(kernel.devices());
    match kernel.facts(device).as_constant() {
        Some(id) if !(0..devices).contains(&id) => Err(Error::invalid("a device that is not there")
            .expected(format!("a logical id from 0 to {}", devices - 1))
            .got(id.to_string())
            .remedy("count around the mesh (`(i + 1) % lax.axis_size(axis)`)")),
        _ => Ok(()),
    }
}

fn index(is_copy: bool, index: &DimIndex, named: &dyn Fn() -> String) -> Result<()> {
    match index {
        DimIndex::At(_) | DimIndex::Slice { stride: 1, .. } | DimIndex::Window { .. } => Ok(()),
        DimIndex::Slice { .. } => Err(Error::unsupported(format!("strided slices of {}", named()))
            .remedy("take all of them and slice the array, or go in a loop")),
        DimIndex::Gather(_) if is_copy => Err(Error::unsupported(
            "arrays as indices of a copy (TMA gather needs sm_100a)",
        )
        .remedy("copy row by row in a loop")),
        DimIndex::Gather(_) => Err(
            Error::unsupported("arrays as indices of a reference that is not loaded or stored")
                .remedy("load or store row by row in a loop"),
        ),
    }
}

/// Windows are of whole arrays in GMEM, loaded or stored, or of what a mask chooses from.
fn window(kind: &OpKind, data: &AllocData, r: &RefUse) -> Result<()> {
    let whole = matches!(kind, OpKind::Load { .. } | OpKind::Store { .. }) && data.is_gmem() && r.steps.len() == 1;
    let masked = matches!(kind, OpKind::LoadMasked { .. } | OpKind::StoreMasked { .. });
    if r.has_windows() && !whole && !masked {
        return Err(Error::internal(
            "a window of something else than an array in GMEM, or of a part of it",
        ));
    }
    Ok(())
}

/// A reference whose address a text gets.
pub fn address(kernel: &Kernel, code: &InlinePtx, r: &RefUse) -> Result<()> {
    let (data, name) = (&kernel.allocs[r.alloc], code.name());
    if data.is_barrier() {
        return barrier(kernel, r);
    }
    if !(data.is_smem() || data.is_gmem()) || r.elem.dtype().is_none() {
        return Err(
            Error::unsupported(format!("{name}: the address of {}", words::of_alloc(kernel, r.alloc)))
                .expected("a reference to data in SMEM or GMEM, or to a barrier")
                .remedy("load what is in registers; of semaphores use plgpu's operations"),
        );
    }
    match r.place {
        Place::Here | Place::Peer { .. } => {}
        Place::Cluster { .. } if data.is_smem() => {}
        Place::Cluster { .. } | Place::Multicast { .. } => {
            return Err(Error::unsupported(format!("{name}: a reference to several memories"))
                .remedy("pass a reference to one block's or device's"));
        }
    }
    let bits = r.elem.dtype().map_or(8, DType::bits);
    if bits < 8 {
        return Err(
            Error::unsupported(format!("{name}: the address of elements narrower than a byte"))
                .remedy("bitcast the reference to int8 outside of the kernel"),
        );
    }
    Ok(())
}

/// What has an address as a barrier: one of the block's own, or of another block of its cluster.
fn barrier(kernel: &Kernel, r: &RefUse) -> Result<()> {
    arrival(kernel, r)?;
    if r.shape.iter().product::<u64>() != 1 {
        return Err(Error::invalid("inline PTX: the address of several barriers")
            .expected("one barrier")
            .got(format!("{} of them", r.shape.iter().product::<u64>()))
            .remedy("pass one of them: barriers.at[i]"));
    }
    Ok(())
}

/// One element by itself in memory.
pub fn scalar(dtype: DType) -> Result<()> {
    if !8u32.is_multiple_of(dtype.bits()) && dtype.bits() < 8 {
        return Err(Error::unsupported(format!("a scalar of type {dtype} in memory"))
            .expected("elements of which a byte has a whole number")
            .remedy("load or store an array of them, or keep it as int8"));
    }
    Ok(())
}

/// Elements that threads store, or may not touch, one by one.
pub fn element(dtype: DType) -> Result<()> {
    if dtype.bits() < 8 {
        return Err(Error::unsupported(format!(
            "elements of type {dtype} that are chosen by a mask or stored at indices of an array"
        ))
        .expected("elements of whole bytes: threads would store parts of one byte at once")
        .remedy("load or store a slice of them, or one at a time, or keep them as int8"));
    }
    Ok(())
}

/// A store of elements narrower than a byte, which share bytes with their neighbours.
pub fn whole_bytes(ty: &Type) -> Result<()> {
    let n = num_elements(ty.shape());
    if (n * u64::from(ty.dtype().bits())).is_multiple_of(8) {
        return Ok(());
    }
    Err(Error::unsupported(format!("a store of {n} elements of {}", ty.dtype()))
        .expected(format!(
            "a multiple of {}, which fill whole bytes",
            8 / ty.dtype().bits()
        ))
        .got(ty.to_string())
        .remedy("pad the array, or store it as int8"))
}

/// An array constant.
pub fn constant(kernel: &Kernel, c: &Constant, result: Value) -> Result<()> {
    let (n, limit) = (num_elements(kernel.ty(result).shape()), kernel.target.max_constant);
    if c.splat().is_none() && n > limit as u64 {
        return Err(Error::unsupported(format!("an array constant of {n} elements"))
            .expected(format!("at most {limit}, which every thread holds"))
            .remedy("pass the array as an argument of the kernel, or compute it (jnp.arange)"));
    }
    Ok(())
}

/// An arrival at a barrier.
pub fn arrival(kernel: &Kernel, barrier: &RefUse) -> Result<()> {
    let AllocKind::Barrier {
        orders_tensor_core,
        cluster,
        ..
    } = &kernel.allocs[barrier.alloc].kind
    else {
        return Ok(());
    };
    let lacks = |what: &str, remedy: &str| Err(Error::unsupported(what).remedy(remedy));
    if *orders_tensor_core && !kernel.target.has(Features::TENSOR_MEMORY) {
        return lacks(
            "barrier_arrive: barriers that order tensor memory",
            "leave out orders_tensor_core: wgmma_wait orders the tensor cores of sm_90a",
        );
    }
    match cluster {
        Some(c) if c.leader_tracked && c.collective_axes.len() != 1 => lacks(
            "leader-tracked cluster barriers over several axes",
            "name one axis, or several that act as one: collective_axes=((\"x\", \"y\"),)",
        ),
        Some(_) | None => Ok(()),
    }
}
