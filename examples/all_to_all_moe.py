"""An all-to-all for a mixture of experts: every token goes to the device of its expert, and comes back; counts are uneven.

    PYTHONPATH=jax_plugin python -m examples.all_to_all_moe       # on all GPUs there are; with none, on four emulated devices
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
#: Blocks that serve one destination together.
SHARE = 2


def exchange(x: jax.Array, begin: jax.Array, count: jax.Array, at: jax.Array, rows: int) -> jax.Array:
    """Rows `begin[d] : begin[d] + count[d]` go to rows `at[d] : …` of the result on device d.

    Every device has a block (or SHARE of them) for each destination, which stores into that device's memory.
    """
    devices, width = count.shape[0], x.shape[1]

    def body(x: Any, begin: Any, count: Any, at: Any, o: Any) -> None:
        done = pl.get_global(plgpu.SemaphoreType.REGULAR)
        me, turn, share = lax.axis_index("x"), lax.axis_index("turn"), lax.axis_index("share")
        to = lax.rem(me + turn, jnp.int32(devices))  # Not all to device 0 first.
        source, target, many = begin[to], at[to], count[to]

        @pl.loop(share, many, step=SHARE)
        def _(i: Any) -> None:
            plgpu.remote_ref(o, to)[target + i] = x[source + i]

        # One signal for all rows of this block. Then we wait for all blocks that write to us: ours is complete, and nobody is left
        # who would write to a device that has gone on.
        pl.semaphore_signal(done, device_id=to)
        pl.semaphore_wait(done, devices * SHARE, decrement=False)

    out = jax.ShapeDtypeStruct((rows, width), x.dtype)
    call = plgpu.kernel(body, out_type=out, grid=(devices, SHARE), grid_names=("turn", "share"))
    return call(x, begin, count, at)  # type: ignore[no-any-return]


def expert(x: jax.Array, which: jax.Array) -> jax.Array:
    """What expert number `which` makes of a token."""
    return jnp.tanh(x) * (1 + which.astype(x.dtype))[:, None]


def layer(x: jax.Array, experts: jax.Array, *, devices: int, local_experts: int) -> jax.Array:
    """A layer on this device's tokens, whose experts live on all devices."""
    tokens, me = x.shape[0], lax.axis_index("x")
    capacity = tokens * devices  # No token is ever dropped.
    order = jnp.argsort(experts)
    sent = jnp.bincount(experts // local_experts, length=devices).astype(jnp.int32)
    matrix = lax.all_gather(sent, "x")  # matrix[s, d]: tokens from device s to device d
    begins = jnp.cumsum(matrix, 1) - matrix  # where they are on s, in its order
    places = jnp.cumsum(matrix, 0) - matrix  # where they come to be on d

    there = exchange(x[order], begins[me], matrix[me], places[me], capacity)
    whose = exchange(experts[order, None], begins[me], matrix[me], places[me], capacity)[:, 0]
    computed = expert(there, whose)  # Beyond the last token lies what nobody wrote; it goes nowhere.
    back = exchange(computed, places[:, me], matrix[:, me], begins[:, me], tokens)
    return jnp.zeros_like(x).at[order].set(back)


def main() -> int:
    smalt.enable()
    devices = jax.devices()
    n, local_experts = len(devices), 3
    mesh = jax.sharding.Mesh(np.array(devices), ("x",))
    tokens, width = (4096, 2048) if jax.default_backend() == "gpu" else (24, 128)
    rng = np.random.default_rng(0)
    x = jnp.asarray(rng.standard_normal((n * tokens, width)), jnp.float32)
    # Experts of the first device are loved most.
    experts = jnp.asarray(rng.zipf(1.3, n * tokens) % (n * local_experts), jnp.int32)
    f = functools.partial(layer, devices=n, local_experts=local_experts)
    got = jax.jit(jax.shard_map(f, mesh=mesh, in_specs=(P("x"), P("x")), out_specs=P("x"), check_vma=False))(x, experts)
    same = bool((got == jax.jit(expert)(x, experts)).all())  # By XLA, with no exchange at all.
    counts = np.bincount(np.asarray(experts) // local_experts, minlength=n)
    print(f"all-to-all on {n} × {devices[0].device_kind}, tokens to each: {counts.tolist()}: {'the bits of XLA' if same else 'WRONG'}")
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
