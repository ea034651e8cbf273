"""A matmul whose blocks share the sums of a tile: each of a cluster's blocks takes a part of K, and they add up through their shared memory.

    PYTHONPATH=jax_plugin:. python examples/cluster_split_k.py [--size 256 256 2048]

Each block multiplies its part of K, then sends every other block the columns that are that block's to add up (a push), and adds up its own. How what
was sent is ordered before it is read is `how`:

* "st.async": stores that complete on the receiver's barrier, which expects their bytes. Nothing waits for memory that is not shared.
* "mbarrier": ordinary stores into the peer's memory, then arrivals on its barrier that release to the cluster.
* "cluster barrier": ordinary stores, then a barrier of all blocks.
"""

from __future__ import annotations

import argparse
import functools
from typing import Any

import jax
import jax.experimental.pallas as pl
import jax.experimental.pallas.mosaic_gpu as plgpu
import jax.numpy as jnp
import numpy as np

import smalt

TILE, K = 128, 64
SWIZZLED = (plgpu.TilingTransform((8, 64)), plgpu.SwizzleTransform(128))
WAYS = ("mbarrier", "cluster barrier") + (("st.async",) if hasattr(plgpu, "async_store_smem") else ())


def split_k(a: jax.Array, b: jax.Array, blocks: int = 4, how: str = "mbarrier", slots: int = 4) -> jax.Array:
    (m, k), n = a.shape, b.shape[1]
    steps, columns = k // K // blocks, TILE // blocks

    def body(a: Any, b: Any, out: Any, a_smem: Any, b_smem: Any, parts: Any, full: Any, empty: Any, arrived: Any, together: Any) -> None:
        wg, rank = jax.lax.axis_index("wg"), jax.lax.axis_index("k")
        row, column = jax.lax.axis_index("i") * TILE, jax.lax.axis_index("j") * TILE

        @pl.when(wg == 1)
        def load() -> None:
            @pl.loop(0, steps)
            def step(i: Any) -> None:
                slot, at = i % slots, pl.ds((rank * steps + i) * K, K)
                smalt.mbarrier_wait(empty.at[slot], (i // slots + 1) % 2)
                smalt.expect_bytes(full.at[slot], 2 * TILE * K * 2)
                plgpu.copy_gmem_to_smem(a.at[pl.ds(row, TILE), at], a_smem.at[slot], full.at[slot])
                plgpu.copy_gmem_to_smem(b.at[at, pl.ds(column, TILE)], b_smem.at[slot], full.at[slot])

        @pl.when(wg == 0)
        def multiply_and_add_up() -> None:
            def multiply(acc: Any) -> Any:
                @pl.loop(0, steps)
                def step(i: Any) -> None:
                    slot = i % slots
                    smalt.mbarrier_wait(full.at[slot], i // slots % 2)
                    plgpu.wgmma(acc, a_smem.at[slot], b_smem.at[slot])
                    plgpu.wgmma_wait(0)
                    smalt.mbarrier_arrive(empty.at[slot], threads="warps")

                return acc[...]

            product = pl.run_scoped(multiply, plgpu.ACC((TILE, TILE), jnp.float32))
            if how == "st.async":
                smalt.expect_bytes(arrived, blocks * TILE * columns * 4)
            for peer in range(blocks):
                part = product[:, peer * columns : (peer + 1) * columns]
                there = {"k": jnp.int32(peer)}
                if how == "st.async":
                    plgpu.async_store_smem(part, parts.at[rank], arrived, cluster_idx=jnp.int32(peer), cluster_dim="k")
                else:
                    plgpu.cluster_ref(parts.at[rank], there)[...] = part
                if how == "mbarrier":
                    smalt.mbarrier_arrive(plgpu.cluster_ref(arrived, there), threads="warps", scope="cluster")
            if how == "cluster barrier":
                plgpu.barrier_arrive(together)
                plgpu.barrier_wait(together)
            else:
                smalt.mbarrier_wait(arrived, 0, scope="cluster")
            total = parts[0]
            for other in range(1, blocks):
                total += parts[other]
            out[pl.ds(row, TILE), pl.ds(column + rank * columns, columns)] = total.astype(out.dtype)

    scratch = [
        plgpu.SMEM((slots, TILE, K), a.dtype, transforms=SWIZZLED),
        plgpu.SMEM((slots, K, TILE), b.dtype, transforms=SWIZZLED),
        plgpu.SMEM((blocks, TILE, columns), jnp.float32, transforms=(plgpu.TilingTransform((8, 32)), plgpu.SwizzleTransform(128))),
        plgpu.Barrier(num_arrivals=1, num_barriers=slots),
        plgpu.Barrier(num_arrivals=4, num_barriers=slots),
        plgpu.Barrier(num_arrivals=1 if how == "st.async" else 4 * blocks),
        plgpu.ClusterBarrier(collective_axes=("k",)),
    ]
    kernel = plgpu.kernel(
        body,
        out_type=jax.ShapeDtypeStruct((m, n), a.dtype),
        scratch_types=scratch,
        grid=(m // TILE, n // TILE),
        grid_names=("i", "j"),
        cluster=(blocks,),
        cluster_names=("k",),
        num_threads=2,
        thread_name="wg",
    )
    return kernel(a, b)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, nargs=3, default=(256, 256, 2048), metavar=("M", "N", "K"))
    m, n, k = parser.parse_args().size
    smalt.enable()
    rng = np.random.default_rng(0)
    a, b = jnp.asarray(rng.standard_normal((m, k)), jnp.float16), jnp.asarray(rng.standard_normal((k, n)), jnp.float16)
    expected = np.asarray(a, np.float32) @ np.asarray(b, np.float32)
    for how in WAYS:
        got = np.asarray(jax.jit(functools.partial(split_k, how=how))(a, b), np.float32)
        error = np.abs(got - expected).max()
        print(f"{how}: largest error {error:.3g} of values up to {np.abs(expected).max():.3g}")
        assert error <= 1e-3 * np.abs(expected).max()


if __name__ == "__main__":
    main()
