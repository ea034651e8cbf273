"""Multicast and multimem: signals, stores and reductions over all devices of a mesh, or of one of its axes."""

from __future__ import annotations

from typing import Any

import jax.experimental.pallas as pl
import jax.experimental.pallas.mosaic_gpu as plgpu
import jax.numpy as jnp
import numpy as np
from jax import lax

from tests.suites.multi_gpu.suite import (
    FLOATS, REGULAR, SMEM, Program, data, everyone, grid, i32, kernel, like, line, logical, me, over, right, subject,
)  # fmt: skip


def _everyone(sem: Any, n: int, axes: Any = "x") -> None:
    plgpu.semaphore_signal_multicast(sem, 1, collective_axes=axes)
    pl.semaphore_wait(sem, n)


@subject()
def multicast_signal(n: int) -> Program:
    """A barrier of all devices by one signal each."""

    def local(x):
        def body(x, o, sems):
            plgpu.remote_ref(o, right(n))[...] = x[...]
            _everyone(sems.at[0], n)
            plgpu.semaphore_signal_multicast(sems.at[1], me() + 1, collective_axes=("x",))
            pl.semaphore_wait(sems.at[1], n * (n + 1) // 2)

        return kernel(body, like((1, 128)), REGULAR((2,)))(x)

    x = data((n, 128))
    return Program(over(local, line(n)), [x], [np.roll(x, 1, 0)])


@subject()
def multicast_signal_of_blocks(n: int) -> Program:
    """One semaphore a block, and one of all blocks."""
    blocks = 4

    def local(x):
        def body(x, o, sem):
            total = pl.get_global(REGULAR)
            b = lax.axis_index("b")
            plgpu.remote_ref(o, right(n))[0, b] = x[0, b]
            _everyone(sem, n)
            plgpu.semaphore_signal_multicast(total, collective_axes="x")
            pl.semaphore_wait(total, n * blocks, decrement=False)

        return kernel(body, like((1, blocks, 128)), REGULAR, grid=(blocks,), grid_names=("b",))(x)

    x = data((n, blocks, 128))
    return Program(over(local, line(n)), [x], [np.roll(x, 1, 0)])


@subject(*FLOATS, jnp.int32, jnp.uint32, "int64")
def multimem_store(n: int, dtype: Any) -> Program:
    """Everybody stores its row of everybody."""

    def local(x):
        def body(x, o, sem):
            v = plgpu.layout_cast(x[0], plgpu.Layout.WG_STRIDED((512,), vec_size=2))
            plgpu.multimem_store(v, o.at[0, me()], collective_axes="x")
            _everyone(sem, n)

        return kernel(body, like((1, n, 512), dtype), REGULAR)(x)

    x = data((n, 512), dtype)
    return Program(over(local, line(n)), [x], [np.stack([x] * n)])


@subject()
def multimem_store_of_scalars(n: int) -> Program:
    def local(x):
        def body(x, o, sem):
            plgpu.multimem_store(x[0, 0] * 2, o.at[0, me()], collective_axes="x")
            _everyone(sem, n)

        return kernel(body, like((1, n), jnp.int32), REGULAR)(x)

    x = data((n, 1), jnp.int32, low=-100, high=100)
    return Program(over(local, line(n)), [x], [np.stack([x[:, 0] * 2] * n)])


REDUCTIONS = {"add": np.add, "min": np.minimum, "max": np.maximum, "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor}


@subject(
    *(f"{op} int32" for op in REDUCTIONS), "add uint32", "max uint32", "add float32", "add int64", "xor int64",
    *(f"{op} {dtype}" for op in ("add", "min", "max") for dtype in ("float16", "bfloat16")),
)  # fmt: skip
def multimem_load_reduce(n: int, what: str) -> Program:
    """Small integers: every order of a sum gives the same."""
    op, dtype = what.split()

    def local(x):
        def body(x, o, sem):
            v = plgpu.multimem_load_reduce(x.at[0], collective_axes="x", reduction_op=op)
            o[0] = plgpu.layout_cast(v, plgpu.Layout.WG_STRIDED((512,), vec_size=2))
            _everyone(sem, n)

        return kernel(body, like((1, 512), dtype), REGULAR)(x)

    x = data((n, 512), dtype, low=0 if "uint" in dtype else -8, high=16)
    out = REDUCTIONS[op].reduce(x, 0).astype(dtype)
    return Program(over(local, line(n)), [x], [np.stack([out] * n)])


@subject()
def all_reduce_by_multimem(n: int) -> Program:
    """Everybody reduces its part of all inputs and stores it to all outputs."""

    def local(x):
        def body(x, o, sem):
            v = plgpu.multimem_load_reduce(x.at[0, me()], collective_axes="x", reduction_op="add")
            v = plgpu.layout_cast(v, plgpu.Layout.WG_STRIDED((256,), vec_size=2))
            plgpu.multimem_store(v, o.at[0, me()], collective_axes="x")
            _everyone(sem, n)

        return kernel(body, like((1, n, 256)), REGULAR)(x)

    x = data((n, n, 256), low=-50, high=50)
    return Program(over(local, line(n)), [x], [np.stack([x.sum(0)] * n)])


@subject(*FLOATS)
def multicast_copy(n: int, dtype: Any) -> Program:
    """A bulk store to a multicast ref."""

    def local(x):
        def body(x, o, buf, sem):
            buf[...] = x[0]
            plgpu.commit_smem()
            plgpu.copy_smem_to_gmem(buf, plgpu.multicast_ref(o.at[0, me()], "x"))
            plgpu.wait_smem_to_gmem(0)
            _everyone(sem, n)

        return kernel(body, like((1, n, 256), dtype), SMEM((256,), dtype), REGULAR)(x)

    x = data((n, 256), dtype)
    return Program(over(local, line(n)), [x], [np.stack([x] * n)])


@subject(devices=lambda n: n > 2 and n % 2 == 0)
def multicast_along_one_axis(n: int) -> Program:
    """Stores, reductions and signals to the devices of one row of a 2 × n/2 mesh (JAX's own backend has only whole meshes)."""
    m = n // 2

    def local(x):
        def body(x, o, sems):
            b = lax.axis_index("b")
            v = plgpu.layout_cast(x[0], plgpu.Layout.WG_STRIDED((256,), vec_size=2))
            plgpu.multimem_store(v, o.at[0, b], collective_axes="b")
            total = plgpu.multimem_load_reduce(x.at[0], collective_axes=("b",), reduction_op="add")
            o[0, m] = plgpu.layout_cast(total, plgpu.Layout.WG_STRIDED((256,), vec_size=2))
            _everyone(sems.at[0], m, "b")

        return kernel(body, like((1, m + 1, 256)), REGULAR((2,)))(x)

    x = data((n, 256), low=-50, high=50)
    rows = x.reshape(2, m, 256)
    out = np.concatenate([rows, rows.sum(1, keepdims=True)], 1)
    return Program(over(local, grid((2, m), ("a", "b"))), [x], [np.repeat(out, m, 0)])


@subject(devices=lambda n: n > 2 and n % 2 == 0)
def multicast_over_two_axes(n: int) -> Program:
    """The whole of a mesh of two axes, named in either order."""
    m = n // 2

    def local(x):
        def body(x, o, sems):
            position = lax.axis_index("a") * m + lax.axis_index("b")
            v = plgpu.layout_cast(x[0], plgpu.Layout.WG_STRIDED((256,), vec_size=2))
            plgpu.multimem_store(v, o.at[0, position], collective_axes=("a", "b"))
            plgpu.semaphore_signal_multicast(sems.at[0], 1, collective_axes=("b", "a"))
            pl.semaphore_wait(sems.at[0], n)
            for peer in range(n):
                pl.semaphore_signal(sems.at[1], 1, device_id=i32(peer), **logical())
            pl.semaphore_wait(sems.at[1], n)

        return kernel(body, like((1, n, 256)), REGULAR((2,)))(x)

    x = data((n, 256))
    return Program(over(local, grid((2, m), ("a", "b"))), [x], [np.stack([x] * n)])


@subject()
def multimem_tiles(n: int) -> Program:
    """Two dimensions, slices, blocks; the layout of tensor cores."""

    def local(x):
        def body(x, o, sem):
            b = lax.axis_index("b")
            rows = pl.ds(b * 64, 64)
            v = plgpu.multimem_load_reduce(x.at[0, rows], collective_axes="x", reduction_op="add")
            plgpu.multimem_store(plgpu.layout_cast(v, plgpu.Layout.WGMMA), o.at[0, me(), rows], collective_axes="x")
            everyone(sem, n)

        return kernel(body, like((1, n, 128, 64)), REGULAR, grid=(2,), grid_names=("b",))(x)

    x = data((n, 128, 64), low=-50, high=50)
    return Program(over(local, line(n)), [x], [np.stack([np.stack([x.sum(0)] * n)] * n)])
