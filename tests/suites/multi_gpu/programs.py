"""Communicating kernels in programs: loops and branches around them, XLA's collectives beside them, one program on several meshes."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.experimental.pallas as pl
import jax.experimental.pallas.mosaic_gpu as plgpu
import jax.numpy as jnp
import numpy as np
from jax import lax

from tests.corpus.case import REFS_AS_ARGUMENTS
from tests.suites.multi_gpu.suite import (
    REGULAR, P, Program, data, everyone, fetch, grid, handshake, i32, kernel, like, line, me, over, place, right, subject,
)  # fmt: skip

ON_012 = hasattr(plgpu, "barrier_arrive_and_wait")


def shift(n: int, x: Any, by: int = 1, factor: float = 2.0) -> Any:
    """A communicating kernel: what the device `by` to the left has, times `factor`."""

    def body(x, o, sem):
        to = right(n, by)
        plgpu.remote_ref(o, to)[...] = x[...] * jnp.asarray(factor, x.dtype)
        handshake(sem, to)

    return kernel(body, like(x.shape, x.dtype), REGULAR)(x)


def total(n: int, x: Any) -> Any:
    """A communicating kernel: the sum over devices, in order."""

    def body(x, o, sem):
        v = plgpu.remote_ref(x, i32(0))[...]
        for peer in range(1, n):
            v += plgpu.remote_ref(x, i32(peer))[...]
        o[...] = v
        everyone(sem, n)

    return kernel(body, like(x.shape, x.dtype), REGULAR)(x)


def summed(x: Any) -> Any:
    out = x[0]
    for part in x[1:]:
        out = out + part
    return np.stack([out] * len(x))


def shifted(x: Any, by: int = 1, factor: float = 2.0) -> Any:
    return np.roll(x * np.asarray(factor, x.dtype), by, 0)


@subject()
def in_scan(n: int) -> Program:
    """`lax.scan` inside shard_map: the kernel runs five times, with other data each time."""

    def local(x):
        def step(carry, row):
            carry = shift(n, carry, factor=0.5) + row
            return carry, carry[:, :4]

        return lax.scan(step, x[:, 0], x.swapaxes(0, 1))

    x = data((n, 5, 128))
    carry, ys = x[:, 0], []
    for t in range(5):
        carry = shifted(carry, factor=0.5) + x[:, t]
        ys.append(carry[:, :4])
    return Program(over(local, line(n), out_specs=(P("x"), P(None, "x"))), [x], [carry, np.stack(ys)])


@subject()
def scan_around_shard_map(n: int) -> Program:
    """The loop is outside."""

    def fn(x):
        f = over(functools.partial(shift, n, factor=-1.0), line(n))
        return lax.scan(lambda c, _: (f(c), None), x, None, length=4)[0]

    x = data((n, 128))
    return Program(fn, [x], [np.roll(x, 4, 0)])


@subject()
def in_fori_loop(n: int) -> Program:
    """A trip count that is data."""

    def local(x, times):
        return lax.fori_loop(0, times[0], lambda i, x: shift(n, x) + i.astype(jnp.float32), x)

    x = data((n, 128), low=-10, high=10)
    out = x
    for i in range(6):
        out = shifted(out) + np.float32(i)
    return Program(over(local, line(n), (P("x"), P())), [x, np.array([6], np.int32)], [out])


@subject(collectives=True)
def until_converged(n: int) -> Program:
    """A while loop whose condition is XLA's `psum` of what kernels made."""

    def local(x):
        def wanted(c):
            return lax.psum(jnp.sum(jnp.abs(c[0])), "x") > 1000.0

        return lax.while_loop(wanted, lambda c: (shift(n, c[0], factor=0.5), c[1] + 1), (x, jnp.zeros((1,), jnp.int32)))

    x = np.abs(data((n, 128), low=1, high=60))
    out, count = x, 0
    while np.abs(out).sum() > 1000.0:
        out, count = shifted(out, factor=0.5), count + 1
    return Program(over(local, line(n), out_specs=(P("x"), P("x"))), [x], [out, np.full((n,), count, np.int32)])


@subject()
def in_a_branch(n: int) -> Program:
    """`lax.cond` and `lax.switch` around different kernels, the same way on all devices."""

    def local(x, which):
        x = lax.cond(which[0] > 0, lambda x: shift(n, x, 1), lambda x: shift(n, x, n - 1, 3.0), x)
        return lax.switch(which[1], [lambda x: x, functools.partial(total, n), functools.partial(shift, n)], x)

    def fn(x):
        f = over(local, line(n), (P("x"), P()))
        return [f(x, np.array(w, np.int32)) for w in ([0, 0], [1, 1], [0, 2])]

    x = data((n, 128))
    a, b = shifted(x, n - 1, 3.0), shifted(x)
    return Program(fn, [x], [a, summed(b), shifted(a)])


@subject()
def several_kernels(n: int) -> Program:
    """Each takes what the one before made."""

    def local(x):
        y = shift(n, x)
        z = total(n, y)
        return shift(n, z + y, n - 1, 0.25)

    x = data((n, 128))
    y = shifted(x)
    return Program(over(local, line(n)), [x], [shifted(summed(y) + y, n - 1, 0.25)])


@subject()
def independent_kernels(n: int) -> Program:
    """Kernels that need nothing of one another: every device must run them in one order."""

    def local(x):
        return shift(n, x), total(n, x), shift(n, x, n - 1, 3.0), total(n, x * 2)

    x = data((n, 128))
    return Program(over(local, line(n)), [x], [shifted(x), summed(x), shifted(x, n - 1, 3.0), summed(x * 2)])


@subject()
def many_independent_kernels(n: int) -> Program:
    """More of them than there are threads for: XLA may begin all of them at once."""

    def local(x):
        return sum(shift(n, x * (i + 1), 1 + i % (n - 1), 1.0) for i in range(24))

    x = data((n, 512), low=-8, high=8)
    out = sum(np.roll(x * np.float32(i + 1), 1 + i % (n - 1), 0) for i in range(24))
    return Program(over(local, line(n)), [x], [np.asarray(out, np.float32)])


@subject()
def a_device_with_much_else_to_do(n: int) -> Program:
    """XLA's own work of a different length before each kernel: who comes first differs from kernel to kernel."""

    def local(x):
        def busy(x, i):
            return lax.fori_loop(0, lax.rem(lax.axis_index("x") + i, n) * 300, lambda _, y: jnp.sin(y) * 1.0, x) * 0

        for i in range(6):
            x = shift(n, x + busy(x, i), factor=1.0) + 1
        return x

    x = data((n, 128), low=-8, high=8)
    return Program(over(local, line(n)), [x], [np.roll(x, 6, 0) + np.float32(6)])


@subject()
def one_call_site_twice(n: int) -> Program:
    """The same kernel with the same shapes, twice at once and twice in a row."""

    def local(x, y):
        return shift(n, x) + shift(n, y), shift(n, shift(n, x))

    x, y = data((n, 128)), data((n, 128), seed="y")
    return Program(over(local, line(n)), [x, y], [shifted(x) + shifted(y), shifted(shifted(x))])


@subject(collectives=True)
def among_collectives(n: int) -> Program:
    """XLA's psum, all_gather, ppermute and psum_scatter between kernels."""

    def local(x):
        y = shift(n, lax.psum(x, "x") + x)
        g = lax.all_gather(y, "x", axis=0, tiled=True)
        z = shift(n, g[:1] + y, n - 1)
        w = lax.ppermute(z, "x", [(i, (i + 1) % n) for i in range(n)])
        return total(n, w), lax.psum_scatter(g, "x", scatter_dimension=0, tiled=True)

    x = data((n, 128), low=-20, high=20)
    y = shifted(x.sum(0) + x)
    w = np.roll(shifted(y[:1] + y, n - 1), 1, 0)
    return Program(over(local, line(n)), [x], [summed(w), y * n])


@subject(collectives=True)
def agrees_with_all_gather(n: int) -> Program:
    """The kernel's gather and XLA's, in one program; zero is their difference."""

    def local(x):
        def body(x, o, sem):
            for by in range(n):
                plgpu.remote_ref(o, right(n, by))[me()] = x[0]
            everyone(sem, n)

        mine = kernel(body, like((n, 128)), REGULAR)(x)
        return mine - lax.all_gather(x, "x", axis=0, tiled=True)

    x = data((n, 128))
    return Program(over(local, line(n)), [x], [np.zeros((n * n, 128), np.float32)])


@subject()
def donated_arguments(n: int) -> Program:
    """A program that may overwrite its argument, called in a chain."""

    def fn(x):
        mesh = line(n)
        f = jax.jit(over(lambda x: shift(n, x) + 1, mesh), donate_argnums=0)
        y = place(x, mesh, P("x"))
        for _ in range(5):
            y = f(y)
        return y

    x = data((n, 128))
    out = x
    for _ in range(5):
        out = shifted(out) + 1
    return Program(fn, [x], [out], jit=False)


@subject(lacks="" if REFS_AS_ARGUMENTS else "mutable refs as arguments of plgpu.kernel")
def mutable_refs(n: int) -> Program:
    """Peers write into an array that the program may change, while the kernel runs; twice."""

    def local(x):
        ref = jax.new_ref(x)

        def body(ref, sem):
            everyone(sem.at[0], n)
            v = ref[...]
            everyone(sem.at[1], n)
            plgpu.remote_ref(ref, right(n))[...] = v + 1
            everyone(sem.at[2], n)

        for _ in range(2):
            kernel(body, (), REGULAR((3,)))(ref)
        return ref[...]

    x = data((n, 128))
    return Program(over(local, line(n)), [x], [np.roll(np.roll(x, 1, 0) + 1, 1, 0) + 1])


@subject()
def exported(n: int) -> Program:
    """`jax.export`, bytes, and back."""

    def fn(x):
        mesh = line(n)
        sharding = jax.sharding.NamedSharding(mesh, P("x"))
        f = jax.jit(over(functools.partial(shift, n), mesh), in_shardings=sharding, out_shardings=sharding)
        export = jax.export.export(f)(jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding))
        again = jax.export.deserialize(export.serialize())
        return jax.jit(again.call)(place(x, mesh, P("x")))

    x = data((n, 128))
    return Program(fn, [x], [shifted(x)], jit=False)


@subject(leaves_out=True)
def on_one_two_and_all_devices(n: int) -> Program:
    """One program text on meshes of several sizes, one after the other, and again."""
    sizes = sorted({1, 2, n})

    def fn(x):
        out = []
        for _ in range(2):
            for size in sizes:
                out.append(jax.jit(over(functools.partial(shift, size), line(size)))(x[:size]))
        return [fetch(o) for o in out]

    x = data((n, 128))
    return Program(fn, [x], [shifted(x[:size]) for size in sizes] * 2, jit=False)


@subject(leaves_out=True)
def on_one_device_that_is_not_the_first(n: int) -> Program:
    """A mesh of one: every peer is the device itself."""

    def fn(x):
        mesh = line(1, [jax.devices()[n - 1]])
        y = place(x, mesh, P("x"))
        return jax.jit(over(lambda x: total(1, shift(1, x)), mesh))(y)

    x = data((n, 128))
    return Program(fn, [x], [x * 2], jit=False)


@subject()
def calls_in_a_row(n: int) -> Program:
    """Twenty executions, dispatched without waiting; two programs in turn."""

    def fn(x):
        f = jax.jit(over(functools.partial(shift, n, factor=1.0), line(n)))
        g = jax.jit(over(lambda x: total(n, x) * 0.5, line(n)))
        for i in range(20):
            x = g(x) if i % 5 == 4 else f(x + 1)
        return x

    x = data((n, 128), low=-4, high=4)
    out = x
    for i in range(20):
        out = summed(out) * np.float32(0.5) if i % 5 == 4 else np.roll(out + 1, 1, 0)
    return Program(fn, [x], [out], jit=False)


@subject(collectives=True)
def sharded_arguments(n: int) -> Program:
    """Arguments that lie on the devices already, or elsewhere, or whole on each."""

    def fn(x):
        mesh = line(n)
        f = jax.jit(over(lambda x, w: shift(n, x) * w, mesh, (P("x"), P())))
        split = place(x, mesh, P("x"))
        columns = place(x, mesh, P(None, "x"))
        w = np.arange(120 * n, dtype=np.float32)
        return f(split, w), f(columns, place(w, mesh, P()))

    x = data((n, 120 * n))
    out = shifted(x) * np.arange(120 * n, dtype=np.float32)
    return Program(fn, [x], [out, out], jit=False)


@subject()
def under_vmap(n: int) -> Program:
    """`jax.vmap` gives the grid an axis: every block of the batch talks to its peer block."""

    def local(x):
        return jax.vmap(lambda x: shift(n, x), in_axes=1, out_axes=1)(x)

    x = data((n, 3, 128))
    return Program(over(local, line(n)), [x], [shifted(x)])


@subject(devices=lambda n: True)
def axis_index_alone(n: int) -> Program:
    """A kernel that asks where it is, and talks to nobody."""

    def local(x):
        def body(x, o):
            o[...] = x[...] + (me() * 10).astype(jnp.float32)

        return kernel(body, like((1, 128)))(x)

    x = data((n, 128))
    return Program(over(local, line(n)), [x], [x + (np.arange(n, dtype=np.float32) * 10)[:, None]])


@subject(devices=lambda n: n > 1 and n % 2 == 0)
def axis_indices_of_a_mesh(n: int) -> Program:
    """Of two axes, of devices in another order."""
    m = n // 2

    def local(x):
        def body(x, o):
            o[0, 0] = lax.axis_index("a") * 100 + lax.axis_index("b")
            o[0, 1] = lax.axis_size("a") * 100 + lax.axis_size("b") + x[0, 0]

        return kernel(body, like((1, 2), jnp.int32))(x)

    x = data((n, 1), jnp.int32, low=0, high=9)
    at = np.arange(n)
    out = np.stack([at // m * 100 + at % m, 200 + m + x[:, 0]], 1).astype(np.int32)
    return Program(over(local, grid((2, m), ("a", "b"), jax.devices()[:n][::-1])), [x], [out])


@subject()
def gradient(n: int) -> Program:
    """A `custom_vjp` whose backward pass is another communicating kernel."""

    @jax.custom_vjp
    def f(x):
        return shift(n, x)

    f.defvjp(lambda x: (f(x), None), lambda _, g: (shift(n, g, n - 1),))

    def local(x, w):
        return jax.grad(lambda x: jnp.sum(f(x) * w))(x)

    x, w = data((n, 128)), data((n, 128), seed="w")
    return Program(over(local, line(n)), [x, w], [shifted(w, n - 1)])


@subject()
def beside_kernels_of_one_device(n: int) -> Program:
    """Kernels that talk to nobody before, between and behind."""

    def local(x):
        def double(x, o):
            o[...] = x[...] * 2

        alone = kernel(double, like((1, 128)))
        return alone(shift(n, alone(shift(n, alone(x)))))

    x = data((n, 128))
    return Program(over(local, line(n)), [x], [shifted(shifted(x * 2) * 2) * 2])


@subject()
def large_arrays(n: int) -> Program:
    """Sizes at which XLA gives buffers of their own: a megabyte a device, by many blocks."""
    blocks, rows = 32, 8

    def local(x):
        def body(x, o, sem):
            to, b = right(n), lax.axis_index("b")
            plgpu.remote_ref(o, to)[0, pl.ds(b * rows, rows)] = x[0, pl.ds(b * rows, rows)]
            handshake(sem, to)

        return kernel(body, like((1, blocks * rows, 1024)), REGULAR, grid=(blocks,), grid_names=("b",))(x)

    x = data((n, blocks * rows, 1024))
    return Program(over(local, line(n)), [x], [np.roll(x, 1, 0)])


@subject()
def outputs_of_many_types(n: int) -> Program:
    """Five inputs and five outputs, all of them read and written by peers."""
    types = (jnp.float32, jnp.bfloat16, jnp.int8, jnp.int32, jnp.float16)

    def local(*xs):
        def body(*refs):
            ins, outs, sem = refs[:5], refs[5:10], refs[10]
            to = right(n)
            for i, o in zip(ins, outs):
                plgpu.remote_ref(o, to)[...] = plgpu.remote_ref(i, to)[...]
            everyone(sem, n)

        return kernel(body, [like((1, 256), t) for t in types], REGULAR)(*xs)

    xs = [data((n, 256), t) for t in types]
    return Program(over(local, line(n)), xs, xs)


@subject()
def explicit_axes(n: int) -> Program:
    """A mesh of explicit axes, set for the whole program."""

    def fn(x):
        mesh = jax.sharding.Mesh(np.array(jax.devices()[:n]), ("x",), axis_types=(jax.sharding.AxisType.Explicit,))
        with jax.set_mesh(mesh):
            y = place(x, mesh, P("x"))
            f = jax.jit(jax.shard_map(functools.partial(shift, n), in_specs=P("x"), out_specs=P("x"), check_vma=False))
            return fetch(f(y))

    x = data((n, 128))
    return Program(fn, [x], [shifted(x)], jit=False)
