//! Tensor memory, and the products that accumulate in it.
use super::memory::{in_smem, same_type};
use super::op_reader::OpReader;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::kernel_ir::*;

/// Products and copies of two CTAs together.
fn of_one_cta(r: &mut OpReader<'_>) -> Result<()> {
    match r.cluster_axes("collective_axis")?.is_empty() {
        true => Ok(()),
        false => Err(Error::unsupported(format!("`{}` of two CTAs", r.op.primitive))
            .expected("one CTA (collective_axis=None)")
            .remedy("let each CTA multiply its own rows, with a tcgen05_mma of its own")),
    }
}

pub fn product(r: &mut OpReader<'_>) -> Result<()> {
    of_one_cta(r)?;
    r.bool_or("arrive", true)?;
    for (i, what) in [(5, "block scales"), (6, "block scales"), (7, "sparse operands")] {
        if !r.is_absent(i)? {
            return Err(Error::unsupported(format!("`tcgen05_mma` with {what}"))
                .expected("dense operands without scales")
                .remedy("multiply in f16, bf16, fp8 or 8-bit integers, and scale the sums"));
        }
    }
    let (acc, a, b) = (r.data_ref(0)?, r.data_ref(1)?, r.data_ref(2)?);
    let is_tmem = |r: &OpReader<'_>, u: &RefUse| r.importer.kernel.allocs[u.alloc].is_tmem();
    if !is_tmem(r, &acc) {
        return Err(Error::invalid("`tcgen05_mma`")
            .expected("an accumulator in tensor memory")
            .got(words::of_use(&r.importer.kernel, &acc))
            .remedy("plgpu.TMEM(shape, jnp.float32) among the kernel's scratch"));
    }
    let a_in_tmem = is_tmem(r, &a);
    if !a_in_tmem {
        in_smem(r, &a, "left operand")?;
    }
    in_smem(r, &b, "right operand")?;
    let accumulate = r.scalar(3, "bool", |d| d == DType::Bool)?;
    let barrier = match r.is_absent(4)? {
        true => None,
        false => Some(r.barrier(4)?),
    };
    if let Some(barrier) = &barrier {
        orders_tensor_memory(r, barrier)?;
    }
    r.declared(OpKind::Tcgen05Mma {
        acc,
        a,
        b,
        a_in_tmem,
        accumulate,
        barrier,
    })
}

/// Arrivals of the tensor core are counted one by one.
fn orders_tensor_memory(r: &OpReader<'_>, barrier: &RefUse) -> Result<()> {
    let kernel = &r.importer.kernel;
    match kernel.allocs[barrier.alloc].kind {
        AllocKind::Barrier {
            orders_tensor_core: false,
            ..
        } => Err(Error::invalid(format!("`{}`", r.op.primitive))
            .expected("a barrier that orders the tensor core")
            .got(words::of_use(kernel, barrier))
            .remedy("plgpu.Barrier(num_arrivals=1, orders_tensor_core=True)")),
        _ => Ok(()),
    }
}

pub fn commit(r: &mut OpReader<'_>) -> Result<()> {
    of_one_cta(r)?;
    let barrier = r.barrier(0)?;
    orders_tensor_memory(r, &barrier)?;
    let predicate = r.predicate(1)?;
    r.declared(OpKind::Tcgen05Commit { barrier, predicate })
}

/// Tensor memory is loaded and stored by whole warpgroups: each warp reaches a quarter of it.
fn by_a_warpgroup(r: &OpReader<'_>) -> Result<()> {
    match r.group() {
        Group::Warpgroup | Group::Block => Ok(()),
        Group::Warp => Err(Error::invalid(format!("`{}` inside of a warp region", r.op.primitive))
            .expected("a warpgroup, each warp of which reaches 32 of the 128 lanes")
            .remedy("move it out of the warp region")),
    }
}

pub fn load(r: &mut OpReader<'_>) -> Result<()> {
    by_a_warpgroup(r)?;
    if r.optional_text("reduce")?.is_some_and(|way| !way.is_empty()) {
        return Err(
            Error::unsupported("`async_load_tmem` with reduce=").remedy("reduce the loaded array (jnp.max(x, axis=1))")
        );
    }
    let src = r.data_ref(0)?;
    r.declared(OpKind::TmemLoad { src })
}

pub fn store(r: &mut OpReader<'_>) -> Result<()> {
    by_a_warpgroup(r)?;
    let (dst, value) = (r.data_ref(0)?, r.value(1)?);
    r.declared(OpKind::TmemStore { dst, value })
}

pub fn copy(r: &mut OpReader<'_>) -> Result<()> {
    of_one_cta(r)?;
    let (src, dst) = (r.data_ref(0)?, r.data_ref(1)?);
    in_smem(r, &src, "source")?;
    same_type(r, &src, &dst)?;
    r.declared(OpKind::TmemCopy { src, dst })
}
