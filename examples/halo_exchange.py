"""A stencil over several devices: rows at the borders go straight into the neighbours' memory, while the inside is computed.

    PYTHONPATH=jax_plugin python -m examples.halo_exchange        # on all GPUs there are; with none, on four emulated devices
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


def step(x: jax.Array, *, devices: int, rows: int = 8) -> jax.Array:
    """One step of heat flow on this device's rows of a torus, a block for every `rows` rows."""
    height, width = x.shape
    blocks = height // rows

    def body(x: Any, o: Any, ghosts: Any) -> None:
        # One pair of semaphores for all blocks of a device: who waits is another block than who was told.
        arrived = pl.get_global(plgpu.SemaphoreType.REGULAR((2,)))
        b, me = lax.axis_index("b"), lax.axis_index("x")
        above, below = lax.rem(me + devices - 1, jnp.int32(devices)), lax.rem(me + 1, jnp.int32(devices))
        first, last = b == 0, b == blocks - 1
        start = b * rows

        # The neighbours' kernels have begun when ours has: their ghost rows may be written. A signal comes after the stores before it.
        @pl.when(first)
        def _() -> None:
            plgpu.remote_ref(ghosts, above)[1] = x[0]
            pl.semaphore_signal(arrived.at[1], device_id=above)

        @pl.when(last)
        def _() -> None:
            plgpu.remote_ref(ghosts, below)[0] = x[height - 1]
            pl.semaphore_signal(arrived.at[0], device_id=below)

        v = x[pl.ds(start, rows)]
        sides = jnp.roll(v, 1, 1) + jnp.roll(v, -1, 1)

        # Only now is what the neighbours sent needed. Both waits also see to it that no device ends while it is written to.
        def ghost(i: int) -> jax.Array:
            pl.semaphore_wait(arrived.at[i])
            return ghosts[i]

        top = lax.cond(first, lambda: ghost(0), lambda: x[jnp.maximum(start - 1, 0)])
        bottom = lax.cond(last, lambda: ghost(1), lambda: x[jnp.minimum(start + rows, height - 1)])
        up = jnp.concatenate([top[None], v[:-1]])
        down = jnp.concatenate([v[1:], bottom[None]])
        o[pl.ds(start, rows)] = (sides + (up + down)) * 0.125 + v * 0.5

    out = [jax.ShapeDtypeStruct(x.shape, x.dtype), jax.ShapeDtypeStruct((2, width), x.dtype)]
    return plgpu.kernel(body, out_type=out, grid=(blocks,), grid_names=("b",))(x)[0]  # type: ignore[no-any-return]


def reference(x: jax.Array, *, devices: int) -> jax.Array:
    """The same by XLA: `ppermute` of the border rows."""
    top = lax.ppermute(x[-1:], "x", [(i, (i + 1) % devices) for i in range(devices)])
    bottom = lax.ppermute(x[:1], "x", [(i, (i - 1) % devices) for i in range(devices)])
    up, down = jnp.concatenate([top, x[:-1]]), jnp.concatenate([x[1:], bottom])
    return (jnp.roll(x, 1, 1) + jnp.roll(x, -1, 1) + (up + down)) * 0.125 + x * 0.5


def main() -> int:
    smalt.enable()
    devices = jax.devices()
    mesh = jax.sharding.Mesh(np.array(devices), ("x",))

    def run(one: Any, x: jax.Array, steps: int = 10) -> jax.Array:
        def local(x: jax.Array) -> jax.Array:
            return lax.fori_loop(0, steps, lambda _, x: one(x, devices=len(devices)), x)

        return jax.jit(jax.shard_map(local, mesh=mesh, in_specs=P("x"), out_specs=P("x"), check_vma=False))(x)

    rows, width = (4096, 4096) if jax.default_backend() == "gpu" else (32, 128)
    x = jax.random.normal(jax.random.key(0), (rows * len(devices), width))
    got, expected = (np.asarray(run(f, x)) for f in (functools.partial(step, rows=8), reference))
    error = float(np.abs(got - expected).max())
    print(f"halo exchange on {len(devices)} × {devices[0].device_kind}, {x.shape[0]} × {width}: largest difference from XLA {error:.1e}")
    return 0 if error < 1e-5 else 1


if __name__ == "__main__":
    sys.exit(main())
