"""A matmul whose left operand is spread over devices: tiles go round the ring from shared memory while they are multiplied.

    PYTHONPATH=jax_plugin python -m examples.ring_all_gather_matmul     # on all GPUs there are; with none, on four emulated devices
"""

from __future__ import annotations

import functools
import os
import sys
from typing import Any

# Emulated devices, where there is no GPU; JAX before 0.12 needs two threads for each.
os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=4")
os.environ.setdefault("PJRT_NPROC", "8")

import jax
import jax.experimental.pallas as pl
import jax.experimental.pallas.mosaic_gpu as plgpu
import jax.numpy as jnp
import numpy as np
from jax import lax

import smalt

P = jax.sharding.PartitionSpec
#: Shared memory as TMA writes it and wgmma reads it: rows of 128 bytes, swizzled.
SWIZZLED = (plgpu.TilingTransform((8, 64)), plgpu.SwizzleTransform(128))
TILE_M, TILE_N = 64, 128


def matmul(a: jax.Array, b: jax.Array, *, devices: int) -> jax.Array:
    """`all_gather(a) @ b` of 16-bit floats: (m, k) a device by (k, n) a device gives (devices · m, n).

    A block has 128 columns of b in shared memory for good, and sees all rows of a go by: its own device's first, then in each step
    those that the device to the right had in the step before. Tile t is sent on by block t modulo their number, from the shared
    memory from which it is multiplied.
    """
    (m, k), n = a.shape, b.shape[1]
    tiles, blocks = m // TILE_M, n // TILE_N
    if m % TILE_M or n % TILE_N or k % 64 or k > 384:
        raise ValueError(f"matmul: expected m % {TILE_M} == n % {TILE_N} == k % 64 == 0 and k <= 384, got m {m}, n {n}, k {k}")

    def body(a: Any, b: Any, o: Any, inbox: Any, a_smem: Any, b_smem: Any, o_smem: Any, loaded: Any, b_loaded: Any) -> None:
        arrived = pl.get_global(plgpu.SemaphoreType.REGULAR((devices,)))
        block, me = lax.axis_index("block"), lax.axis_index("x")
        left = lax.rem(me + devices - 1, jnp.int32(devices))
        columns = pl.ds(block * TILE_N, TILE_N)
        plgpu.copy_gmem_to_smem(b.at[:, columns], b_smem, b_loaded)
        plgpu.barrier_wait(b_loaded)

        for step in range(devices):
            source = a if step == 0 else inbox.at[step - 1]
            if step > 0:  # All blocks of the device to the right have sent their tiles. The other blocks here wait for them too.
                pl.semaphore_wait(arrived.at[step], blocks, decrement=False)

            def load(t: Any, source: Any = source) -> None:
                plgpu.copy_gmem_to_smem(source.at[pl.ds(t * TILE_M, TILE_M)], a_smem.at[lax.rem(t, 2)], loaded.at[lax.rem(t, 2)])

            load(jnp.int32(0))

            @pl.loop(jnp.int32(0), jnp.int32(tiles))
            def _(t: Any, step: int = step, load: Any = load) -> None:
                slot = lax.rem(t, 2)
                plgpu.wait_smem_to_gmem(0, wait_read_only=True)  # What was sent from the other slot has been read; so has o_smem.

                @pl.when(t + 1 < tiles)
                def _() -> None:
                    load(t + 1)

                plgpu.barrier_wait(loaded.at[slot])
                if step < devices - 1:

                    @pl.when(lax.rem(t, blocks) == block)
                    def _() -> None:
                        to = plgpu.remote_ref(inbox, left).at[step, pl.ds(t * TILE_M, TILE_M)]
                        plgpu.copy_smem_to_gmem(a_smem.at[slot], to)

                def multiply(acc: Any) -> jax.Array:
                    plgpu.wgmma(acc, a_smem.at[slot], b_smem)
                    return acc[...]  # type: ignore[no-any-return]

                o_smem[...] = pl.run_scoped(multiply, plgpu.ACC((TILE_M, TILE_N), jnp.float32)).astype(o.dtype)
                plgpu.commit_smem()
                row = lax.rem(me + step, jnp.int32(devices)) * m + t * TILE_M
                plgpu.copy_smem_to_gmem(o_smem, o.at[pl.ds(row, TILE_M), columns])

            if step < devices - 1:  # Complete, not only read; then the neighbour may be told.
                plgpu.wait_smem_to_gmem(0)
                pl.semaphore_signal(arrived.at[step + 1], device_id=left)
        # Nobody writes to us any more: we have waited for every step's tiles.
        plgpu.wait_smem_to_gmem(0)

    out = [jax.ShapeDtypeStruct((devices * m, n), a.dtype), jax.ShapeDtypeStruct((max(devices - 1, 1), m, k), a.dtype)]
    scratch = [
        plgpu.SMEM((2, TILE_M, k), a.dtype, transforms=SWIZZLED),
        plgpu.SMEM((k, TILE_N), a.dtype, transforms=SWIZZLED),
        plgpu.SMEM((TILE_M, TILE_N), a.dtype, transforms=SWIZZLED),
        plgpu.Barrier(num_barriers=2),
        plgpu.Barrier(),
    ]
    call = plgpu.kernel(body, out_type=out, scratch_types=scratch, grid=(blocks,), grid_names=("block",))
    return call(a, b)[0]  # type: ignore[no-any-return]


def main() -> int:
    smalt.enable()
    devices = jax.devices()
    mesh = jax.sharding.Mesh(np.array(devices), ("x",))
    m, k, n = (2048, 384, 4096) if jax.default_backend() == "gpu" else (128, 128, 256)
    keys = jax.random.split(jax.random.key(0))
    a = jax.random.normal(keys[0], (m * len(devices), k), jnp.bfloat16)
    b = jax.random.normal(keys[1], (k, n * len(devices)), jnp.bfloat16)

    def by_xla(a: jax.Array, b: jax.Array) -> jax.Array:
        return lax.all_gather(a, "x", tiled=True) @ b

    def run(f: Any) -> np.ndarray[Any, Any]:
        program = jax.shard_map(f, mesh=mesh, in_specs=(P("x", None), P(None, "x")), out_specs=P(None, "x"), check_vma=False)
        return np.asarray(jax.jit(program)(a, b)).astype(np.float32)

    got, expected = run(functools.partial(matmul, devices=len(devices))), run(by_xla)
    error = float(np.abs(got - expected).max() / np.abs(expected).max())
    print(f"ring all-gather matmul on {len(devices)} × {devices[0].device_kind}, {a.shape} @ {b.shape}: error {error:.1e} against XLA")
    return 0 if error < 1e-2 else 1


if __name__ == "__main__":
    sys.exit(main())
