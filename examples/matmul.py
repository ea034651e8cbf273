"""A matmul kernel with everything written down: what a Hopper GEMM consists of, in Pallas."""

from __future__ import annotations

from typing import Any

import jax
import jax.experimental.pallas as pl
import jax.experimental.pallas.mosaic_gpu as plgpu
import jax.numpy as jnp

#: Shared memory as TMA writes it and wgmma reads it: rows of 128 bytes, swizzled.
SWIZZLED = (plgpu.TilingTransform((8, 64)), plgpu.SwizzleTransform(128))
#: Columns that are stored at a time.
PART = 64


def matmul(
    a: jax.Array, b: jax.Array, *, tile_m: int = 128, tile_n: int = 128, depth: int = 4, cluster: int = 1
) -> jax.Array:
    """`a @ b` of 16-bit floats, (m, k) by (k, n), accumulated in f32.

    One warpgroup copies, two compute `tile_m` rows by `tile_n` columns each; a ring of `depth` slots lies between them, with
    barriers both ways. With `cluster` 2, two blocks below one another share their columns of `b`: each copies one half to both.
    m is a multiple of 2·tile_m·cluster, n of tile_n, k of 64.
    """
    (m, k), n, tile_k = a.shape, b.shape[1], 64
    for name, size, unit in (("m", m, 2 * tile_m * cluster), ("n", n, tile_n), ("k", k, tile_k)):
        if size == 0 or size % unit:
            raise ValueError(f"matmul: expected {name} to be a positive multiple of {unit}, got {size}; pad the operands")
    steps = k // tile_k
    shared = {"collective_axes": "c"} if cluster > 1 else {}

    def body(a_gmem: Any, b_gmem: Any, o_gmem: Any, a_smem: Any, b_smem: Any, o_smem: Any, full: Any, empty: Any) -> None:
        wg = jax.lax.axis_index("wg")
        block = jax.lax.axis_index("m") * cluster + (jax.lax.axis_index("c") if cluster > 1 else 0)
        columns = pl.ds(jax.lax.axis_index("n") * tile_n, tile_n)

        @pl.when(wg == 2)
        def _produce() -> None:
            plgpu.set_max_registers(40, action="decrease")
            rows = pl.ds(block * 2 * tile_m, 2 * tile_m)

            def step(i: Any, _: None) -> None:
                slot = jax.lax.rem(i, depth)

                @pl.when(i >= depth)
                def _wait() -> None:
                    plgpu.barrier_wait(empty.at[slot])

                ks = pl.ds(i * tile_k, tile_k)
                plgpu.copy_gmem_to_smem(a_gmem.at[rows, ks], a_smem.at[slot], full.at[slot])
                plgpu.copy_gmem_to_smem(b_gmem.at[ks, columns], b_smem.at[slot], full.at[slot], **shared)

            jax.lax.fori_loop(0, steps, step, None)

            if cluster > 1:  # The other block's last halves have arrived and been read before this one leaves.

                def drain(i: Any, _: None) -> None:
                    plgpu.barrier_wait(empty.at[jax.lax.rem(i, depth)])

                jax.lax.fori_loop(max(steps - depth, 0), steps, drain, None)

        @pl.when(wg < 2)
        def _compute() -> None:
            plgpu.set_max_registers(232, action="increase")

            def accumulate(acc: Any) -> Any:
                def step(i: Any, _: None) -> None:
                    slot = jax.lax.rem(i, depth)
                    plgpu.barrier_wait(full.at[slot])
                    plgpu.wgmma(acc, a_smem.at[slot, pl.ds(wg * tile_m, tile_m)], b_smem.at[slot])
                    plgpu.wgmma_wait(0)
                    plgpu.barrier_arrive(empty.at[slot])

                jax.lax.fori_loop(0, steps, step, None)
                return acc[...].astype(o_gmem.dtype)

            acc = pl.run_scoped(accumulate, plgpu.ACC((tile_m, tile_n), jnp.float32))
            rows = pl.ds((block * 2 + wg) * tile_m, tile_m)
            for j in range(tile_n // PART):
                plgpu.wait_smem_to_gmem(0, wait_read_only=True)
                o_smem[wg] = acc[:, j * PART : (j + 1) * PART]
                plgpu.commit_smem()
                part = pl.ds(jax.lax.axis_index("n") * tile_n + j * PART, PART)
                plgpu.copy_smem_to_gmem(o_smem.at[wg], o_gmem.at[rows, part])
            plgpu.wait_smem_to_gmem(0)

    emptied: Any = plgpu.Barrier(num_arrivals=2, num_barriers=depth)
    if cluster > 1:
        emptied = plgpu.ClusterBarrier(collective_axes=("c",), num_arrivals=2, num_barriers=depth)
    return plgpu.kernel(
        body,
        out_type=jax.ShapeDtypeStruct((m, n), a.dtype),
        scratch_types=[
            plgpu.SMEM((depth, 2 * tile_m, tile_k), a.dtype, transforms=SWIZZLED),
            plgpu.SMEM((depth, tile_k, tile_n), a.dtype, transforms=SWIZZLED),
            plgpu.SMEM((2, tile_m, PART), a.dtype, transforms=SWIZZLED),
            plgpu.Barrier(num_arrivals=2, num_barriers=depth),
            emptied,
        ],
        grid=(m // (2 * tile_m * cluster), n // tile_n),
        grid_names=("m", "n"),
        **({"cluster": (2,), "cluster_names": ("c",)} if cluster > 1 else {}),
        num_threads=3,
        thread_name="wg",
        compiler_params=plgpu.CompilerParams(lowering_semantics=plgpu.LoweringSemantics.Warpgroup),
    )(a, b)
