"""Kernels over several devices: remote and multicast refs, signals, multimem."""

from __future__ import annotations

from typing import Any

import jax
import jax.experimental.pallas as pl
import jax.experimental.pallas.mosaic_gpu as plgpu
import jax.numpy as jnp
from jax import lax

from tests.corpus.case import case, f32, kernel, like

P = jax.sharding.PartitionSpec
WHY = "several devices"


def over_devices(f: Any, *specs: Any, out: Any, n: int = 4, axes: Any = (("x", None),)) -> Any:
    """`shard_map` over fake devices; the mesh has one axis "x" of size n, or those of `axes`."""
    shape = tuple(size or n for _, size in axes)
    kinds = (jax.sharding.AxisType.Auto,) * len(axes)
    mesh = jax.make_mesh(shape, tuple(name for name, _ in axes), axis_types=kinds, devices=jax.devices()[:n])
    return jax.shard_map(f, mesh=mesh, in_specs=tuple(P(*s) for s in specs), out_specs=P(*out), check_vma=False)


@case(f32(4, 128), target="devices", why=WHY)
def pass_to_neighbour(x):
    def local(x):
        def body(x, o):
            sem = pl.get_global(plgpu.SemaphoreType.REGULAR)
            me = lax.axis_index("x")
            peer = lax.rem(me + 1, jnp.int32(4))
            plgpu.remote_ref(o, peer)[...] = x[...]
            pl.semaphore_signal(sem, 1, device_id=peer)
            pl.semaphore_wait(sem, 1)

        return kernel(body, like((1, 128)))(x)

    return over_devices(local, ("x", None), out=("x", None))(x)


@case(f32(4, 128), target="devices", why=WHY)
def copies_to_peer(x):
    def local(x):
        def body(x, o, buf, bar):
            me = lax.axis_index("x")
            plgpu.copy_gmem_to_smem(plgpu.remote_ref(x, 3 - me), buf, bar)
            plgpu.barrier_wait(bar)
            plgpu.commit_smem()
            plgpu.copy_smem_to_gmem(buf, plgpu.remote_ref(o, (3 - me,)))
            plgpu.wait_smem_to_gmem(0)

        return kernel(body, like((1, 128)), plgpu.SMEM((1, 128), jnp.float32), plgpu.Barrier())(x)

    return over_devices(local, ("x", None), out=("x", None))(x)


@case(f32(4, 128), target="devices", why=WHY)
def signals_in_two_dimensions(x):
    """Device ids as dicts, tuples and numbers on a 2 × 2 mesh."""

    def local(x):
        def body(x, o):
            sem = pl.get_global(plgpu.SemaphoreType.REGULAR((3,)))
            a, b = lax.axis_index("a"), lax.axis_index("b")
            pl.semaphore_signal(sem.at[0], 1, device_id={"b": 1 - b})
            pl.semaphore_signal(sem.at[1], 2, device_id=(1 - a, b))
            if hasattr(pl, "DeviceIdType"):
                logical = pl.DeviceIdType.LOGICAL
                pl.semaphore_signal(sem.at[2], 1, device_id=a * 2 + b, device_id_type=logical)
            pl.semaphore_wait(sem.at[0], 1)
            o[...] = x[...]

        return kernel(body, like((1, 128)))(x)

    spec = (("a", "b"), None)
    return over_devices(local, spec, out=spec, axes=(("a", 2), ("b", 2)))(x)


@case(f32(4, 128), target="devices", why=WHY)
def parallel_signals(x):
    def local(x):
        def body(x, o):
            sem = pl.get_global(plgpu.SemaphoreType.REGULAR((2,)))
            peer = lax.rem(lax.axis_index("x") + 1, jnp.int32(4))
            plgpu.semaphore_signal_parallel(
                plgpu.SemaphoreSignal(sem.at[0], device_id=peer, inc=2),
                plgpu.SemaphoreSignal(sem.at[1], device_id=None),
            )
            plgpu.semaphore_signal_multicast(sem.at[1], 1, collective_axes=("x",))
            pl.semaphore_wait(sem.at[0], 2)
            o[...] = x[...]

        return kernel(body, like((1, 128)))(x)

    return over_devices(local, ("x", None), out=("x", None))(x)


@case(f32(4, 128), target="devices", why=WHY)
def multimem(x):
    def local(x):
        def body(x, o, buf):
            layout = plgpu.Layout.WG_STRIDED((128,), vec_size=1)
            v = plgpu.layout_cast(plgpu.multimem_load_reduce(x.at[0], collective_axes="x", reduction_op="add"), layout)
            plgpu.multimem_store(v, o.at[0], collective_axes="x")
            buf[...] = v
            plgpu.commit_smem()
            plgpu.copy_smem_to_gmem(buf, plgpu.multicast_ref(o.at[0], "x"))
            plgpu.wait_smem_to_gmem(0)

        return kernel(body, like((1, 128)), plgpu.SMEM((128,), jnp.float32))(x)

    return over_devices(local, ("x", None), out=("x", None))(x)
