"""`plgpu.remote_ref` in loads, stores, atomics and copies; device ids and meshes of every kind."""

from __future__ import annotations

from typing import Any

import jax
import jax.experimental.pallas as pl
import jax.experimental.pallas.mosaic_gpu as plgpu
import jax.numpy as jnp
import numpy as np
from jax import lax

from tests.suites.multi_gpu.suite import (
    FLOATS, NARROW, REGULAR, SMEM, WIDE, Barrier, P, Program, data, everyone, grid, handshake, i32, kernel, like, line, logical, me,
    over, right, subject, tiled, transpose,
)  # fmt: skip
from tests.programs.memory.prelude import warp_map

ALL_TYPES = (*FLOATS, jnp.int32, jnp.uint32, *NARROW, *WIDE)
HAS_PREDICATES = hasattr(plgpu, "wait_gmem_to_smem")
IS_012 = hasattr(plgpu, "barrier_arrive_and_wait")


# ------------------------------------------------------------------------------------------ loads and stores


@subject(*ALL_TYPES)
def store_to_right(n: int, dtype: Any) -> Program:
    """Everybody stores into the output of the device to the right."""

    def local(x):
        def body(x, o, sem):
            to = right(n)
            plgpu.remote_ref(o, to)[...] = x[...]
            handshake(sem, to)

        return kernel(body, like((1, 256), dtype), REGULAR)(x)

    x = data((n, 256), dtype)
    return Program(over(local, line(n)), [x], [np.roll(x, 1, 0)])


@subject(*ALL_TYPES)
def load_from_right(n: int, dtype: Any) -> Program:
    """Everybody loads the input of the device to the right, which may end once it has been signalled."""

    def local(x):
        def body(x, o, sem):
            of = right(n)
            o[...] = plgpu.remote_ref(x, of)[...]
            handshake(sem, of)

        return kernel(body, like((1, 256), dtype), REGULAR)(x)

    x = data((n, 256), dtype)
    return Program(over(local, line(n)), [x], [np.roll(x, -1, 0)])


@subject()
def add_from_every_device(n: int) -> Program:
    """Loads of all peers' inputs, in order: a sum that NumPy has bit for bit."""

    def local(x):
        def body(x, o, sem):
            total = plgpu.remote_ref(x, i32(0))[...]
            for peer in range(1, n):
                total += plgpu.remote_ref(x, i32(peer))[...]
            o[...] = total
            everyone(sem, n)

        return kernel(body, like((1, 4, 128)), REGULAR)(x)

    x = data((n, 4, 128))
    total = x[0]
    for part in x[1:]:
        total = total + part
    return Program(over(local, line(n)), [x], [np.stack([total] * n)])


@subject()
def slices_before_and_behind(n: int) -> Program:
    """`remote_ref(o.at[i])`, `remote_ref(o).at[i]` and both, with static and dynamic starts."""

    def local(x):
        def body(x, o, sem):
            to = right(n)
            rows = pl.ds(lax.rem(me(), i32(2)) * 2, 2)
            plgpu.remote_ref(o.at[0, 0:2], to)[...] = x[0, 0:2]
            plgpu.remote_ref(o, to)[0, 2:4] = x[0, 2:4]
            plgpu.remote_ref(o.at[0], to).at[pl.ds(4, 4), 0:64][...] = x[0, 4:8, 0:64]
            plgpu.remote_ref(o.at[:, pl.ds(4, 4)], to).at[0, :, 64:128][...] = x[0, 4:8, 64:128]
            plgpu.remote_ref(o.at[0, 8:12], to).at[rows][...] = x[0, 8:12].reshape(2, 2, 128)[0] + x[0, 10:12]
            plgpu.remote_ref(o.at[0, 8:12], to).at[pl.ds(2 - lax.rem(me(), i32(2)) * 2, 2)][...] = x[0, 10:12]
            handshake(sem, to)

        return kernel(body, like((1, 12, 128)), REGULAR)(x)

    x = data((n, 12, 128))
    out = x.copy()
    for d in range(n):
        start = 8 + d % 2 * 2
        out[d, start : start + 2] = x[d, 8:10] + x[d, 10:12]
        start = 10 - d % 2 * 2
        out[d, start : start + 2] = x[d, 10:12]
    return Program(over(local, line(n)), [x], [np.roll(out, 1, 0)])


@subject()
def scalars(n: int) -> Program:
    """Single elements, loaded from and stored to peers."""

    def local(x):
        def body(x, o, sem):
            to = right(n)
            far = plgpu.remote_ref(o, to)
            for i in range(4):
                far[0, i] = x[0, i] * 3 + me()
            far[0, 4] = plgpu.remote_ref(x, to)[0, 4]
            handshake(sem, to)

        return kernel(body, like((1, 5), jnp.int32), REGULAR)(x)

    x = data((n, 5), jnp.int32, low=-1000, high=1000)
    stored = np.roll(x * 3 + np.arange(n, dtype=np.int32)[:, None], 1, 0)
    stored[:, 4] = x[:, 4]
    return Program(over(local, line(n)), [x], [stored])


@subject()
def into_device_0(n: int) -> Program:
    """A device id that is a number: everybody stores a row of device 0; the others have outputs of their own."""

    def local(x):
        def body(x, o, gathered, sem):
            gathered[...] = jnp.zeros((n, 128), jnp.float32) - 1
            everyone(sem.at[0], n)  # Else this device's zeros may fall upon what a peer has stored.
            plgpu.remote_ref(gathered, 0)[me()] = x[0]
            o[...] = x[...] * 2
            everyone(sem.at[1], n)

        return kernel(body, [like((1, 128)), like((n, 128))], REGULAR((2,)))(x)

    x = data((n, 128))
    gathered = np.full((n, n, 128), -1, np.float32)
    gathered[0] = x
    return Program(over(local, line(n)), [x], [x * 2, gathered.reshape(n * n, 128)])


@subject()
def peers_from_data(n: int) -> Program:
    """Device ids that were loaded from an input: a permutation."""
    to = np.roll(np.random.default_rng(5).permutation(n), 1).astype(np.int32)

    def local(x, to):
        def body(x, to, o, sem):
            peer = to[me()]
            plgpu.remote_ref(o, peer)[...] = x[...] - 1
            handshake(sem, peer)

        return kernel(body, like((1, 128)), REGULAR)(x, to)

    x = data((n, 128))
    out = np.empty_like(x)
    out[to] = x - 1
    return Program(over(local, line(n), (P("x"), P())), [x, to], [out])


@subject()
def peers_in_a_loop(n: int) -> Program:
    """The device id is a loop's counter: everybody stores a row of everybody, itself too."""

    def local(x):
        def body(x, o, sem):
            @pl.loop(i32(0), i32(n))
            def _(peer):
                plgpu.remote_ref(o, peer)[0, me()] = x[0, peer]
                pl.semaphore_signal(sem, 1, device_id=peer)

            pl.semaphore_wait(sem, n)

        return kernel(body, like((1, n, 128)), REGULAR)(x)

    x = data((n, n, 128))
    return Program(over(local, line(n)), [x], [x.swapaxes(0, 1)])


@subject(devices=lambda n: n > 1 and n % 2 == 0)
def some_devices_write(n: int) -> Program:
    """Only even devices write, only odd ones wait: branches that differ by device."""

    def local(x):
        def body(x, o, sem):
            @pl.when(lax.rem(me(), i32(2)) == 0)
            def _():
                o[...] = x[...]
                plgpu.remote_ref(o, me() + 1)[...] = x[...] * 10
                pl.semaphore_signal(sem, 1, device_id=me() + 1)

            @pl.when(lax.rem(me(), i32(2)) == 1)
            def _():
                pl.semaphore_wait(sem, 1)

        return kernel(body, like((1, 128)), REGULAR)(x)

    x = data((n, 128))
    out = x.copy()
    out[1::2] = x[::2] * 10
    return Program(over(local, line(n)), [x], [out])


@subject()
def own_device(n: int) -> Program:
    """A peer that is the device itself."""

    def local(x):
        def body(x, o, sem):
            plgpu.remote_ref(o, me())[...] = plgpu.remote_ref(x, (me(),))[...] + 1
            handshake(sem, me())

        return kernel(body, like((1, 128)), REGULAR)(x)

    x = data((n, 128))
    return Program(over(local, line(n)), [x], [x + 1])


@subject(devices=lambda n: True)
def scratch_output(n: int) -> Program:
    """Peers write into a second output, which nobody outside looks at."""

    def local(x):
        def body(x, o, scratch, sem):
            to = right(n)
            plgpu.remote_ref(scratch, to)[...] = x[...]
            handshake(sem, to)
            o[...] = scratch[...] + x[...]

        return kernel(body, [like((1, 128)), like((1, 128))], REGULAR)(x)[0]

    x = data((n, 128))
    return Program(over(local, line(n)), [x], [np.roll(x, 1, 0) + x])


@subject()
def scratch_in_gmem(n: int) -> Program:
    """Peers write into scratch memory of the kernel in device memory, each block into its peer's."""

    def local(x):
        def body(x, o, scratch, sem):
            to, b = right(n), lax.axis_index("b")
            plgpu.remote_ref(scratch, to)[...] = x[0, b]
            handshake(sem, to)
            o[0, b] = scratch[...] * 2

        return kernel(body, like((1, 3, 128)), plgpu.GMEM((128,), jnp.float32), REGULAR, grid=(3,), grid_names=("b",))(x)

    x = data((n, 3, 128))
    return Program(over(local, line(n)), [x], [np.roll(x, 1, 0) * 2])


@subject()
def blocks_talk_to_their_peers(n: int) -> Program:
    """A grid: each block writes its part of the peer, and waits for its own peer block alone."""

    def local(x):
        def body(x, o, sem):
            to, b = right(n), lax.axis_index("b")
            plgpu.remote_ref(o, to)[0, b] = x[0, b]
            handshake(sem, to)

        return kernel(body, like((1, 6, 128)), REGULAR, grid=(6,), grid_names=("b",))(x)

    x = data((n, 6, 128))
    return Program(over(local, line(n)), [x], [np.roll(x, 1, 0)])


@subject()
def layouts(n: int) -> Program:
    """Values in the layouts of tensor cores to and from peers."""

    def local(x):
        def body(x, o, sem):
            to = right(n)
            v = plgpu.layout_cast(plgpu.remote_ref(x.at[0], to)[...], plgpu.Layout.WGMMA)
            plgpu.remote_ref(o.at[0], to)[...] = plgpu.layout_cast(v * 2, plgpu.Layout.WGMMA)
            everyone(sem, n)

        return kernel(body, like((1, 64, 64)), REGULAR)(x)

    x = data((n, 64, 64))
    return Program(over(local, line(n)), [x], [np.roll(np.roll(x, -1, 0), 1, 0) * 2])


@subject(lacks="" if IS_012 else "plgpu.store")
def unoptimised_store(n: int) -> Program:
    def local(x):
        def body(x, o, sem):
            to = right(n)
            v = plgpu.layout_cast(x[0], plgpu.Layout.WGMMA)
            plgpu.store(plgpu.remote_ref(o.at[0], to), v, optimized=False)
            handshake(sem, to)

        return kernel(body, like((1, 64, 64)), REGULAR)(x)

    x = data((n, 64, 64))
    return Program(over(local, line(n)), [x], [np.roll(x, 1, 0)])


@subject()
def columns_of_a_peer(n: int) -> Program:
    """Strided parts: everybody writes its columns of everybody."""

    def local(x):
        def body(x, o, sem):
            for peer in range(n):
                plgpu.remote_ref(o, i32(peer))[0, :, pl.ds(me() * 32, 32)] = x[0]
            everyone(sem, n)

        return kernel(body, like((1, 8, 32 * n)), REGULAR)(x)

    x = data((n, 8, 32))
    whole = np.concatenate(list(x), 1)
    return Program(over(local, line(n)), [x], [np.stack([whole] * n)])


# ------------------------------------------------------------------------------------------ device ids and meshes


def _pushed(n: int, shape: tuple[int, ...], names: tuple[str, ...], device: Any, where: Any, devices: Any = None) -> Program:
    """Everybody stores to `device(kernel's indices)` and signals it so; `where` is its position by NumPy."""
    def local(x):
        def body(x, o, sem):
            index = [lax.axis_index(axis) for axis in names]
            to, kwargs = device(*index)
            plgpu.remote_ref(o, to, **kwargs)[...] = x[...] + 1
            pl.semaphore_signal(sem, 1, device_id=to, **kwargs)
            pl.semaphore_wait(sem, 1)

        return kernel(body, like((1, 128)), REGULAR)(x)

    x = data((n, 128))
    out = np.empty_like(x)
    for position in range(n):
        at = np.unravel_index(position, shape)
        out[np.ravel_multi_index(where(*map(int, at)), shape)] = x[position] + 1
    return Program(over(local, grid(shape, names, devices)), [x], [out])


def _even(n: int) -> bool:
    return n > 1 and n % 2 == 0


@subject("tuple", "logical", "dict of one", "dict of two", "dict of other", devices=_even)
def mesh_of_two_axes(n: int, kind: str) -> Program:
    """A 2 × n/2 mesh."""
    m = n // 2
    cases: dict[str, tuple[Any, Any]] = {
        "tuple": (lambda a, b: ((1 - a, lax.rem(b + 1, i32(m))), {}), lambda a, b: (1 - a, (b + 1) % m)),
        "logical": (lambda a, b: (lax.rem(a * m + b + 1, i32(n)), logical()), lambda a, b: np.unravel_index((a * m + b + 1) % n, (2, m))),
        "dict of one": (lambda a, b: ({"a": 1 - a}, {}), lambda a, b: (1 - a, b)),
        "dict of two": (lambda a, b: ({"b": lax.rem(b + 1, i32(m)), "a": 1 - a}, {}), lambda a, b: (1 - a, (b + 1) % m)),
        "dict of other": (lambda a, b: ({"b": lax.rem(b + i32(m - 1), i32(m))}, {}), lambda a, b: (a, (b + m - 1) % m)),
    }
    return _pushed(n, (2, m), ("a", "b"), *cases[kind])


@subject(devices=_even, lacks="" if IS_012 else "device ids of joint axes")
def mesh_of_joint_axes(n: int) -> Program:
    """`{("a", "b"): …}`: a position over two axes."""
    m = n // 2

    def device(a, b):
        return {("a", "b"): lax.rem(a * m + b + 1, i32(n))}, {}

    return _pushed(n, (2, m), ("a", "b"), device, lambda a, b: np.unravel_index((a * m + b + 1) % n, (2, m)))


@subject(devices=lambda n: n % 8 == 0)
def mesh_of_three_axes(n: int) -> Program:
    last = n // 4 - 1

    def device(a, b, c):
        return (1 - a, b, i32(last) - c), {}

    return _pushed(n, (2, 2, n // 4), ("a", "b", "c"), device, lambda a, b, c: (1 - a, b, last - c))


@subject()
def mesh_with_axes_of_one(n: int) -> Program:
    return _pushed(
        n, (1, n, 1), ("a", "b", "c"), lambda a, b, c: ((a, lax.rem(b + 1, i32(n)), c), {}), lambda a, b, c: (a, (b + 1) % n, c)
    )


@subject()
def mesh_in_another_order(n: int) -> Program:
    """Devices in reverse: a device id is a position in the mesh, not a device's number."""
    return _pushed(n, (n,), ("x",), lambda x: (lax.rem(x + 1, i32(n)), {}), lambda x: ((x + 1) % n,), jax.devices()[:n][::-1])


@subject(devices=lambda n: n % 4 == 0)
def mesh_shuffled_in_two_axes(n: int) -> Program:
    devices = [jax.devices()[i] for i in np.random.default_rng(1).permutation(n)]
    return _pushed(n, (n // 2, 2), ("a", "b"), lambda a, b: ({"b": 1 - b}, {}), lambda a, b: (a, 1 - b), devices)


@subject(devices=lambda n: n > 2, leaves_out=True)
def mesh_over_some_devices(n: int) -> Program:
    """The last n/2 devices; the others have no part."""
    m = n // 2
    return _pushed(m, (m,), ("x",), lambda x: (lax.rem(x + 1, i32(m)), {}), lambda x: ((x + 1) % m,), jax.devices()[n - m : n])


@subject(devices=_even)
def two_meshes_in_one_program(n: int) -> Program:
    """The same devices as a line, then as two rows, then as a line."""
    m = n // 2

    def on_line(x):
        def body(x, o, sem):
            to = right(n)
            plgpu.remote_ref(o, to)[...] = x[...] * 2
            handshake(sem, to)

        return kernel(body, like((1, 128)), REGULAR)(x)

    def on_rows(x):
        def body(x, o, sem):
            to = {"b": lax.rem(lax.axis_index("b") + 1, i32(m))}
            plgpu.remote_ref(o, to)[...] = x[...] + 1
            handshake(sem, to)

        return kernel(body, like((1, 128)), REGULAR)(x)

    def fn(x):
        y = over(on_line, line(n))(x)
        z = over(on_rows, grid((2, m), ("a", "b")))(y)
        return over(on_line, line(n))(z)

    x = data((n, 128))
    y = np.roll(x * 2, 1, 0)
    z = np.roll(y.reshape(2, m, 128) + 1, 1, 1).reshape(n, 128)
    return Program(fn, [x], [np.roll(z * 2, 1, 0)])


# ------------------------------------------------------------------------------------------ atomics

ATOMICS: dict[str, tuple[Any, Any]] = {
    "add": (lambda r, v: plgpu.atomic_add(r, v), lambda x: x.sum(0, dtype=x.dtype)),
    "max": (lambda r, v: plgpu.atomic_max(r, v), lambda x: x.max(0)),
    "min": (lambda r, v: plgpu.atomic_min(r, v), lambda x: x.min(0)),
    "and": (lambda r, v: plgpu.atomic_and(r, v), lambda x: np.bitwise_and.reduce(x, 0)),
    "or": (lambda r, v: plgpu.atomic_or(r, v), lambda x: np.bitwise_or.reduce(x, 0)),
    "xor": (lambda r, v: plgpu.atomic_xor(r, v), lambda x: np.bitwise_xor.reduce(x, 0)),
}


@subject(
    *(f"{op} {dtype}" for op in ("add", "max", "min", "and", "or", "xor") for dtype in ("int32", "uint32")),
    "add float32", *(f"{op} {dtype}" for op in ("add", "max", "min") for dtype in ("float16", "bfloat16")),
)  # fmt: skip
def atomics(n: int, what: str) -> Program:
    """Everybody adds to everybody, who has put its own there before. Small integers: the order does not show."""
    op, dtype = what.split()
    update, reference = ATOMICS[op]

    def local(x):
        def body(x, o, sem):
            o[...] = x[...]
            everyone(sem.at[0], n)
            for by in range(1, n):
                update(plgpu.remote_ref(o, right(n, by)), x[...])
            everyone(sem.at[1], n)

        return kernel(body, like((1, 256), dtype), REGULAR((2,)))(x)

    x = data((n, 256), dtype, low=0, high=16)
    return Program(over(local, line(n)), [x], [np.stack([reference(x)] * n)])


@subject("int64", "float64")
def wide_atomics(n: int, dtype: str) -> Program:
    def local(x):
        def body(x, o, sem):
            o[...] = x[...]
            everyone(sem.at[0], n)
            plgpu.atomic_add(plgpu.remote_ref(o, right(n)), x[...])
            everyone(sem.at[1], n)

        return kernel(body, like((1, 128), dtype), REGULAR((2,)))(x)

    x = data((n, 128), dtype, low=0, high=1 << 40)
    return Program(over(local, line(n)), [x], [x + np.roll(x, 1, 0)])


@subject()
def histogram(n: int) -> Program:
    """Values count themselves where their owner lives: one element, of a peer that data names."""
    bins = 8

    def local(ids):
        def body(ids, o, sem):
            o[...] = jnp.zeros((1, bins), jnp.int32)
            everyone(sem.at[0], n)

            @pl.loop(i32(0), i32(16))
            def _(i):
                v = ids[0, i]
                plgpu.atomic_add(plgpu.remote_ref(o, lax.div(v, i32(bins))).at[0, lax.rem(v, i32(bins))], np.int32(1))

            everyone(sem.at[1], n)

        return kernel(body, like((1, bins), jnp.int32), REGULAR((2,)))(ids)

    ids = data((n, 16), jnp.int32, low=0, high=n * bins)
    counts = np.bincount(ids.ravel(), minlength=n * bins).astype(np.int32).reshape(n, bins)
    return Program(over(local, line(n)), [ids], [counts])


# ------------------------------------------------------------------------------------------ copies


@subject(*ALL_TYPES)
def bulk_store_to_right(n: int, dtype: Any) -> Program:
    """A bulk store into a peer is complete when it has been waited for, and is then announced."""

    def local(x):
        def body(x, o, buf, sem):
            to = right(n)
            buf[...] = x[0]
            plgpu.commit_smem()
            plgpu.copy_smem_to_gmem(buf, plgpu.remote_ref(o.at[0], to))
            plgpu.wait_smem_to_gmem(0)
            handshake(sem, to)

        return kernel(body, like((1, 256), dtype), SMEM((256,), dtype), REGULAR)(x)

    x = data((n, 256), dtype)
    return Program(over(local, line(n)), [x], [np.roll(x, 1, 0)])


@subject(*ALL_TYPES)
def bulk_load_from_right(n: int, dtype: Any) -> Program:
    def local(x):
        def body(x, o, buf, bar, sem):
            of = right(n)
            plgpu.copy_gmem_to_smem(plgpu.remote_ref(x.at[0], of), buf, bar)
            plgpu.barrier_wait(bar)
            o[0] = buf[...]
            handshake(sem, of)

        return kernel(body, like((1, 256), dtype), SMEM((256,), dtype), Barrier(), REGULAR)(x)

    x = data((n, 256), dtype)
    return Program(over(local, line(n)), [x], [np.roll(x, -1, 0)])


@subject(*(f"{dtype.__name__} {swizzle}" for dtype in (jnp.float32, jnp.bfloat16, jnp.float16, jnp.int8) for swizzle in (32, 64, 128)))
def tma_store_to_right(n: int, what: str) -> Program:
    """Swizzled tiles into part of a peer's array: a tensor map over the peer's buffer."""
    dtype, swizzle = jnp.dtype(what.split()[0]), int(what.split()[1])
    columns = 2 * swizzle // dtype.itemsize

    def local(x):
        def body(x, o, buf, sem):
            to = right(n)
            buf[...] = x[0]
            plgpu.commit_smem()
            plgpu.copy_smem_to_gmem(buf, plgpu.remote_ref(o.at[0], to).at[pl.ds(me() * 16, 16), pl.ds(columns, columns)])
            plgpu.wait_smem_to_gmem(0)
            handshake(sem, to)
            o[0, pl.ds(lax.rem(me() + i32(n - 1), i32(n)) * 16, 16), 0:columns] = x[0]

        scratch = (SMEM((16, columns), dtype, transforms=tiled(dtype, swizzle)), REGULAR)
        out = kernel(body, like((1, 16 * n, 2 * columns), dtype), *scratch)(x).reshape(n, 16, 2, columns)
        return lax.dynamic_slice_in_dim(out, lax.rem(me() + i32(n - 1), i32(n)), 1)  # Nobody writes the rest.

    x = data((n, 16, columns), dtype)
    return Program(over(local, line(n)), [x], [np.stack([x, np.roll(x, 1, 0)], 2)])


@subject(*(f"{dtype.__name__} {swizzle}" for dtype in (jnp.float32, jnp.bfloat16, jnp.int8) for swizzle in (32, 64, 128)))
def tma_load_from_right(n: int, what: str) -> Program:
    dtype, swizzle = jnp.dtype(what.split()[0]), int(what.split()[1])
    columns = 2 * swizzle // dtype.itemsize

    def local(x):
        def body(x, o, buf, bar, sem):
            of = right(n)
            rows = pl.ds(lax.rem(me(), i32(2)) * 16, 16)
            plgpu.copy_gmem_to_smem(plgpu.remote_ref(x, of).at[0, rows], buf, bar)
            plgpu.barrier_wait(bar)
            o[0] = buf[...]
            handshake(sem, of)

        scratch = (SMEM((16, columns), dtype, transforms=tiled(dtype, swizzle)), Barrier(), REGULAR)
        return kernel(body, like((1, 16, columns), dtype), *scratch)(x)

    x = data((n, 32, columns), dtype)
    near = np.roll(x, -1, 0)
    return Program(over(local, line(n)), [x], [np.stack([near[d, d % 2 * 16 : d % 2 * 16 + 16] for d in range(n)])])


@subject(jnp.float32, jnp.bfloat16)
def transposed_copy_to_right(n: int, dtype: Any) -> Program:
    """A transposed view of shared memory goes to a peer."""

    def local(x):
        def body(x, o, buf, bar, sem):
            to = right(n)
            plgpu.copy_gmem_to_smem(x.at[0], buf, bar)
            plgpu.barrier_wait(bar)
            o[...] = jnp.zeros((1, 64, 64), dtype)
            everyone(sem.at[0], n)
            plgpu.remote_ref(o, to)[0] = transpose(buf, (1, 0))[...]
            handshake(sem.at[1], to)

        return kernel(body, like((1, 64, 64), dtype), SMEM((64, 64), dtype), Barrier(), REGULAR((2,)))(x)

    x = data((n, 64, 64), dtype)
    return Program(over(local, line(n)), [x], [np.roll(x.swapaxes(1, 2), 1, 0)])


@subject(jnp.float32, jnp.bfloat16)
def copy_of_a_transposed_peer(n: int, dtype: Any) -> Program:
    """Dimensions of a peer's array in another order: tiles are copied one by one."""

    def local(x):
        def body(x, o, buf, bar, sem):
            of = right(n)
            far = transpose(plgpu.remote_ref(x.at[0], of), (1, 0, 2))
            plgpu.copy_gmem_to_smem(far, buf, bar)
            plgpu.barrier_wait(bar)
            o[0] = buf[...]
            handshake(sem, of)

        return kernel(body, like((1, 8, 4, 64), dtype), SMEM((8, 4, 64), dtype), Barrier(), REGULAR)(x)

    x = data((n, 4, 8, 64), dtype)
    return Program(over(local, line(n)), [x], [np.roll(x, -1, 0).swapaxes(1, 2)])


@subject("add float32", "add int32", "add bfloat16", "add float16", "max int32", "min uint32", "or int32", "max bfloat16", "min float16")
def reducing_copies(n: int, what: str) -> Program:
    """Bulk stores that add (and so on) to what is there; everybody to device 0 and to the device to the right."""
    op, dtype = what.split()

    def local(x):
        def body(x, o, buf, sem):
            buf[...] = x[0]
            o[0] = x[0]
            plgpu.commit_smem()
            everyone(sem.at[0], n)
            plgpu.copy_smem_to_gmem(buf, plgpu.remote_ref(o.at[0], right(n)), reduction_op=op)
            plgpu.copy_smem_to_gmem(buf, plgpu.remote_ref(o.at[0], 0), reduction_op=op)
            plgpu.wait_smem_to_gmem(0)
            everyone(sem.at[1], n)

        return kernel(body, like((1, 32, 32), dtype), SMEM((32, 32), dtype), REGULAR((2,)))(x)

    x = data((n, 32, 32), dtype, low=0, high=8)
    f = {"add": np.add, "max": np.maximum, "min": np.minimum, "or": np.bitwise_or}[op]
    out = f(x, np.roll(x, 1, 0))
    for part in x:
        out[0] = f(out[0], part)
    return Program(over(local, line(n)), [x], [out])


@subject()
def predicated_copies(n: int) -> Program:
    """Only odd devices' copies are made."""

    def local(x):
        def body(x, o, buf, sem):
            buf[...] = x[0]
            o[0] = x[0] * 0
            plgpu.commit_smem()
            everyone(sem.at[0], n)
            plgpu.copy_smem_to_gmem(buf, plgpu.remote_ref(o.at[0], right(n)), lax.rem(me(), i32(2)) == 1)
            plgpu.wait_smem_to_gmem(0)
            everyone(sem.at[1], n)

        return kernel(body, like((1, 128)), SMEM((128,), jnp.float32), REGULAR((2,)))(x)

    x = np.abs(data((n, 128)))
    odd = x * (np.arange(n) % 2)[:, None].astype(np.float32)
    return Program(over(local, line(n)), [x], [np.roll(odd, 1, 0)])


@subject(lacks="" if HAS_PREDICATES else "predicates on copy_gmem_to_smem")
def predicated_loads(n: int) -> Program:
    """Of two loads into one place, from the left and from the right, one is made."""

    def local(x):
        def body(x, o, buf, bar, sem):
            odd = lax.rem(me(), i32(2)) == 1
            for by, wanted in ((1, odd), (n - 1, ~odd)):

                @pl.when(wanted)
                def _(by=by):
                    plgpu.copy_gmem_to_smem(plgpu.remote_ref(x.at[0], right(n, by)), buf, bar)

            plgpu.barrier_wait(bar)
            o[0] = buf[...]
            everyone(sem, n)

        return kernel(body, like((1, 128)), SMEM((128,), jnp.float32), Barrier(), REGULAR)(x)

    x = data((n, 128))
    expected = np.stack([x[(d + 1) % n] if d % 2 else x[(d - 1) % n] for d in range(n)])
    return Program(over(local, line(n)), [x], [expected])


@subject()
def copies_in_one_group(n: int) -> Program:
    """Copies to several peers, committed together."""

    def local(x):
        def body(x, o, buf, sem):
            buf[...] = x[0]
            plgpu.commit_smem()
            for peer in range(n):
                plgpu.copy_smem_to_gmem(buf, plgpu.remote_ref(o, i32(peer)).at[0, me()], commit_group=False)
            plgpu.commit_smem_to_gmem_group()
            plgpu.wait_smem_to_gmem(0)
            everyone(sem, n)

        return kernel(body, like((1, n, 128)), SMEM((128,), jnp.float32), REGULAR)(x)

    x = data((n, 128))
    return Program(over(local, line(n)), [x], [np.stack([x] * n)])


@subject()
def prefetch_from_right(n: int) -> Program:
    """A hint changes nothing."""

    def local(x):
        def body(x, o, buf, bar, sem):
            of = right(n)
            plgpu.async_prefetch(plgpu.remote_ref(x.at[0], of))
            plgpu.copy_gmem_to_smem(plgpu.remote_ref(x.at[0], of), buf, bar)
            plgpu.barrier_wait(bar)
            o[0] = buf[...]
            handshake(sem, of)

        return kernel(body, like((1, 64, 32)), SMEM((64, 32), jnp.float32), Barrier(), REGULAR)(x)

    x = data((n, 64, 32))
    return Program(over(local, line(n)), [x], [np.roll(x, -1, 0)])


@subject()
def cluster_multicast_from_right(n: int) -> Program:
    """Two blocks of a cluster share one load from a peer."""

    def local(x):
        def body(x, o, buf, bar, sem):
            of, c = right(n), lax.axis_index("c")
            plgpu.copy_gmem_to_smem(plgpu.remote_ref(x.at[0], of), buf, bar, collective_axes="c")
            plgpu.barrier_wait(bar)
            o[0, c] = buf[...] + c.astype(jnp.float32)
            handshake(sem, of)

        scratch = (SMEM((64, 32), jnp.float32), Barrier(), REGULAR)
        return kernel(body, like((1, 2, 64, 32)), *scratch, cluster=(2,), cluster_names=("c",))(x)

    x = data((n, 64, 32))
    near = np.roll(x, -1, 0)
    return Program(over(local, line(n)), [x], [np.stack([near, near + 1], 1)])


@subject()
def pipeline_over_a_peer(n: int) -> Program:
    """`emit_pipeline` over the neighbour's input."""

    def local(x):
        def body(x, o, sem):
            of = right(n)

            def step(_, x, o):
                o[...] = x[...] * 2 + 1

            block = plgpu.BlockSpec((16, 32), lambda i: (i, 0))
            plgpu.emit_pipeline(step, grid=(4,), in_specs=[block], out_specs=[block], max_concurrent_steps=2)(
                plgpu.remote_ref(x.at[0], of), o.at[0]
            )
            handshake(sem, of)

        return kernel(body, like((1, 64, 32)), REGULAR)(x)

    x = data((n, 64, 32))
    return Program(over(local, line(n)), [x], [np.roll(x, -1, 0) * 2 + 1])


@subject()
def copies_from_a_warp(n: int) -> Program:
    """One warp loads from a peer, and stores to it."""

    def local(x):
        def body(x, o, buf, bar, sem):
            to = right(n)

            def warps(warp):
                @pl.when(warp == 0)
                def _():
                    plgpu.copy_gmem_to_smem(plgpu.remote_ref(x.at[0], to), buf, bar)

            warp_map(warps)
            plgpu.barrier_wait(bar)

            def store(warp):
                @pl.when(warp == 2)
                def _():
                    plgpu.copy_smem_to_gmem(buf, plgpu.remote_ref(o.at[0], to))
                    plgpu.wait_smem_to_gmem(0)

            warp_map(store)
            everyone(sem, n)

        return kernel(body, like((1, 64)), SMEM((64,), jnp.float32), Barrier(), REGULAR)(x)

    x = data((n, 64))
    return Program(over(local, line(n)), [x], [x])
