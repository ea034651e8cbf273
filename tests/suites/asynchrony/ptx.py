"""What the compiler puts into right kernels, taken out of their PTX again, one piece at a time."""

from __future__ import annotations

import jax.experimental.pallas as pl
import jax.experimental.pallas.mosaic_gpu as plgpu
import jax.numpy as jnp

from tests.corpus.case import f16, f32, kernel, like, load
from tests.suites.asynchrony import kernels as k
from tests.suites.asynchrony.kernels import ACC, IN_FLIGHT, SMEM, STILL_READ, UNFENCED, UNORDERED, Barrier, mul, tiled
from tests.suites.asynchrony.subject import Edit, broken, spared, subject

#: `mbarrier.try_wait` in its loop, as it is printed.
WAIT = r"\t\{\n\t\.reg \.pred P;\nW:\n\tmbarrier\.try_wait[^\n]*\n\t@P bra\.uni D;\n\tbra\.uni W;\nD:\n\t\}\n"
GUARD = r"\t(?:@!?%p\d+ )?"

# ------------------------------------------------------------------------------------------ more right kernels


@subject(f16(64, 64), f16(64, 64), reference=lambda a, b: mul(a * 2, b), tolerance=1e-3)
def wgmma_of_registers(a, b):
    """A in registers, computed just before."""

    def body(a, b, o, b_buf, bar):
        plgpu.copy_gmem_to_smem(b, b_buf, bar)
        left = plgpu.layout_cast(a[...], plgpu.Layout.WGMMA) * jnp.float16(2)
        plgpu.barrier_wait(bar)

        def compute(acc):
            plgpu.wgmma(acc, left, b_buf)
            return acc[...]

        o[...] = pl.run_scoped(compute, ACC((64, 64), jnp.float32))

    return kernel(body, like((64, 64)), SMEM((64, 64), jnp.float16, transforms=tiled(jnp.float16)), Barrier())(a, b)


@subject(f32(64, 64), reference=lambda x: x.max(0) + x.min(0))
def reduce_rows(x):
    """Warps hand partial results through the compiler's own shared memory."""

    def body(x, o):
        rows = load(x, layout=plgpu.Layout.WGMMA)
        o[...] = rows.max(0) + rows.min(0)

    return kernel(body, like((64,)))(x)


@subject(f32(64, 64), f32(64, 64), reference=lambda x, y: x + y.T)
def transpose_through_smem(x, y):
    """Stores, a barrier that the compiler places, loads by other lanes."""

    def body(x, y, o, buf):
        buf[...] = y[...]
        o[...] = x[...] + buf[...].T

    return kernel(body, like((64, 64)), SMEM((64, 64), jnp.float32))(x, y)


# ------------------------------------------------------------------------------------------ the tensor cores' registers

TOUCHED = "a wgmma uses registers that ordinary instructions touched, with no wgmma.fence in between"
NOT_WAITED = "registers of a wgmma in flight are touched before a wait covers it"

broken("matmul without wgmma.fence", k.MATMUL, Edit(r"\twgmma\.fence[^\n]*\n"), shows=(TOUCHED, "wgmma.fence before"), line="plgpu.wgmma(acc")
broken("A in registers without wgmma.fence", wgmma_of_registers, Edit(r"\twgmma\.fence[^\n]*\n"), shows=(TOUCHED,), line="plgpu.wgmma(acc, left")
broken("matmul without commit_group", k.MATMUL, Edit(r"\twgmma\.commit_group[^\n]*\n"), shows=(NOT_WAITED,))
broken(
    "matmul whose wait leaves one group",
    k.MATMUL,
    Edit(r"(\twgmma\.wait_group\.sync\.aligned) 0;", r"\1 1;"),
    shows=(NOT_WAITED, "wgmma.wait_group"),
)
broken("A in registers without wait_group", wgmma_of_registers, Edit(r"\twgmma\.wait_group[^\n]*\n"), shows=(NOT_WAITED,))

# ------------------------------------------------------------------------------------------ mbarriers

broken(
    "copy_ring without fence.mbarrier_init",
    k.COPY_RING,
    Edit(GUARD + r"fence\.mbarrier_init[^\n]*\n"),
    shows=("by the async proxy or a peer, which may not see that it was initialised", "fence.mbarrier_init"),
    line="plgpu.copy_gmem_to_smem",
)
broken(
    "copy_ring without the barrier after mbarrier.init",
    k.COPY_RING,
    Edit(r"\tbar\.sync 0, 128;\n"),
    shows=("that nothing orders after its mbarrier.init",),
    line="plgpu.barrier_wait",
)
broken(
    "specialised_ring without the barrier after mbarrier.init",
    k.SPECIALISED_RING,
    Edit(r"\tbar\.sync 0, 256;\n"),
    shows=("that nothing orders after its mbarrier.init",),
    line="plgpu.barrier_wait",
)
# Loads limit `matmul`: those of a step arrive once, and so does a warpgroup. In `wide_matmul` each load arrives, and each warp.
for _matmul, _one, _all, _loads in ((k.MATMUL, 16384, 24576, 1), (k.WIDE_MATMUL, 0, 16384, 2)):
    broken(
        f"{_matmul.name} whose loads announce only those of one",
        _matmul,
        Edit(rf"(arrive\.expect_tx[^\n]*), {_all};", rf"\1, {_one};", of=_loads),
        shows=("the async proxy reads " + IN_FLIGHT,),
        line="plgpu.wgmma(acc",
    )
    broken(
        f"{_matmul.name} whose loads announce too many bytes",
        _matmul,
        Edit(rf"(arrive\.expect_tx[^\n]*), {_all};", rf"\1, {_all + 16};", of=_loads),
        shows=("deadlock", "16 bytes to come"),
        line="plgpu.barrier_wait(loaded.at[slot])",
    )
    broken(
        f"{_matmul.name} whose last load announces nothing",
        _matmul,
        Edit(GUARD + rf"mbarrier\.arrive\.expect_tx[^\n]*, {_all};\n", which=_loads - 1, of=_loads),
        shows=("deadlock", f"1 of {_loads} arrivals to come"),
    )
broken(
    "multicast_ring with the parity of another phase",
    k.MULTICAST_RING,
    Edit(r"(mbarrier\.try_wait[^\n]*\[%r\d+\+32768\]), 1\b", r"\1, 0"),
    shows=(IN_FLIGHT,),
    line="o[c, i] = buf[slot] + 1",
)
broken(
    "wgmma_refill without the wait for B",
    k.WGMMA_REFILL,
    Edit(WAIT, which=1, of=2),
    shows=("the async proxy reads " + IN_FLIGHT,),
    line="plgpu.wgmma(acc, a_buf, b_buf)",
)
for _matmul, _arrivals in ((k.MATMUL, 2), (k.WIDE_MATMUL, 8)):
    broken(
        f"{_matmul.name} whose consumers do not arrive",
        _matmul,
        Edit(GUARD + r"mbarrier\.arrive\.shared::cta\.b64[^\n]*\n"),
        shows=("deadlock", f"{_arrivals} of {_arrivals} arrivals to come"),
        line="plgpu.barrier_wait",
    )
    # Both phases that a step ends then, of half of the arrivals each, look like the one before.
    broken(
        f"{_matmul.name} whose free slots take half of the arrivals",
        _matmul,
        Edit(rf"(mbarrier\.init[^\n]*), {_arrivals};", rf"\1, {_arrivals // 2};", which=0, of=2),
        shows=("deadlock",),
        line="plgpu.barrier_wait",
    )
    broken(
        f"{_matmul.name} whose producer does not wait",
        _matmul,
        Edit(WAIT, which=0, of=2),
        shows=("no more arrivals in this phase",),
        line="plgpu.copy_gmem_to_smem",
    )
# What one warp has waited for is the whole warpgroup's wgmma.
spared(
    "matmul whose warps do not meet before one of them arrives",
    k.MATMUL,
    Edit(r"\tbar\.sync %r\d+, 128;\n(?=\telect[^\n]*\n\tand\.pred)"),
)

# ------------------------------------------------------------------------------------------ the proxies

broken("copy_out_once without fence.proxy.async", k.COPY_OUT_ONCE, Edit(r"\tfence\.proxy\.async[^\n]*\n"), shows=(UNFENCED, "fence.proxy.async"), line="plgpu.copy_smem_to_gmem(buf, o)")
broken(
    "copy_out_once without the barrier before the copy",
    k.COPY_OUT_ONCE,
    Edit(r"\tbar\.sync 1, 128;\n"),
    shows=("a store to shared memory that another warp read", "what it issued"),
    line="buf[...] = x[...] * 2",
)
broken("matmul without the epilogue's fence", k.MATMUL, Edit(r"\tfence\.proxy\.async[^\n]*\n"), shows=(UNFENCED,), line="plgpu.copy_smem_to_gmem")
broken("wgmma_of_stores without fence.proxy.async", k.WGMMA_OF_STORES, Edit(r"\tfence\.proxy\.async[^\n]*\n"), shows=(UNFENCED,), line="plgpu.wgmma(acc, a_buf, b_buf)")
broken(
    "copy_in_over_writes without fence.proxy.async",
    k.COPY_OVER,
    Edit(r"\tfence\.proxy\.async[^\n]*\n"),
    shows=("a bulk load overwrites shared memory that the generic proxy wrote",),
    line="plgpu.copy_gmem_to_smem(x.at[1], buf, bar)",
)
broken(
    "copy_ring without the fence behind loads",
    k.COPY_RING,
    Edit(r"\tfence\.proxy\.async\.shared::cta;\n"),
    shows=("a bulk load overwrites shared memory that the generic proxy may still be reading",),
)
broken(
    "copy_ring without the barrier before a refill",
    k.COPY_RING,
    Edit(r"\tbar\.sync 1, 128;\n"),
    shows=(STILL_READ,),
    line="plgpu.copy_gmem_to_smem",
)

# ------------------------------------------------------------------------------------------ groups of bulk stores

broken(
    "copy_out without commit_group",
    k.COPY_OUT,
    Edit(GUARD + r"cp\.async\.bulk\.commit_group;\n"),
    shows=("a CTA ends while a bulk store has yet to read",),
    line="plgpu.copy_smem_to_gmem",
)
broken("copy_out without wait_group", k.COPY_OUT, Edit(r"\tcp\.async\.bulk\.wait_group[^\n]*\n"), shows=("a CTA ends while a bulk store has yet to read",), line="plgpu.copy_smem_to_gmem")
broken(
    "copies_out_unwaited without the wait at the end",
    k.COPIES_OUT_UNWAITED,
    Edit(r"\tcp\.async\.bulk\.wait_group[^\n]*\n"),
    shows=("a CTA ends while a bulk store has yet to read",),
    line="plgpu.copy_smem_to_gmem",
)
broken(
    "copy_out without the barrier after the wait",
    k.COPY_OUT,
    Edit(r"\tbar\.sync 1, 128;\n", which=0, of=2),
    shows=(UNORDERED,),
    line="plgpu.copy_smem_to_gmem",
)

# ------------------------------------------------------------------------------------------ warps and clusters

broken(
    "reduce_rows without the barrier before its partial results are read",
    reduce_rows,
    Edit(r"\tbar\.sync 1, 128;\n", which=3, of=4),
    shows=("shared memory that another warp", "and nothing orders the two"),
    line=".min(0)",
)
broken(
    "reduce_rows without the barrier before its scratch is used again",
    reduce_rows,
    Edit(r"\tbar\.sync 1, 128;\n", which=2, of=4),
    shows=("shared memory that another warp", "and nothing orders the two"),
    line=".min(0)",
)
broken("transpose_through_smem without its barrier", transpose_through_smem, Edit(r"\tbar\.sync 1, 128;\n"), shows=("shared memory that another warp",), line="buf[...]")
broken(
    "multicast_ring without the cluster's first barrier",
    k.MULTICAST_RING,
    Edit(r"\tbarrier\.cluster\.arrive\.aligned;\n\tbarrier\.cluster\.wait[^\n]*\n"),
    shows=("that nothing orders after its mbarrier.init", "a barrier of the cluster"),
    line="plgpu.copy_gmem_to_smem",
)
broken(
    "cluster_exchange with one arrival less at the peer",
    k.CLUSTER_EXCHANGE,
    Edit(GUARD + r"mbarrier\.arrive\S*shared::cluster[^\n]*\n", which=1, of=4),
    shows=("deadlock", "4 of 8 arrivals to come"),
    line="plgpu.barrier_wait(bar)",
)
