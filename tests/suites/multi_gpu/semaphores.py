"""Semaphores between devices: signals and waits of every form, from warps, warpgroups and blocks."""

from __future__ import annotations

import jax.experimental.pallas as pl
import jax.experimental.pallas.mosaic_gpu as plgpu
import jax.numpy as jnp
import numpy as np
from jax import lax

from tests.suites.multi_gpu.suite import (
    REGULAR, SMEM, Program, data, everyone, grid, handshake, i32, kernel, like, line, logical, me, over, right, signal_all, subject,
)  # fmt: skip
from tests.programs.memory.prelude import warp_map


@subject()
def counts(n: int) -> Program:
    """Increments and values other than one, and what waits leave."""

    def local(x):
        def body(x, o, sem):
            pl.semaphore_signal(sem, 5, device_id=right(n))
            pl.semaphore_wait(sem, 2)
            o[0, 0] = x[0, 0] + 2
            pl.semaphore_wait(sem, 2, decrement=False)
            pl.semaphore_wait(sem, 3)
            pl.semaphore_wait(sem, 0)
            o[0, 1] = pl.semaphore_read(sem)

        return kernel(body, like((1, 2), jnp.int32), REGULAR)(x)

    x = data((n, 1), jnp.int32, low=0, high=100)
    return Program(over(local, line(n)), [x], [np.concatenate([x + 2, x * 0], 1)])


@subject()
def rising_values(n: int) -> Program:
    """One semaphore that only rises: round r waits for r + 1 signals of the left neighbour."""
    rounds = 6

    def local(x):
        def body(x, o, sem):
            to = right(n)
            for r in range(rounds):
                plgpu.remote_ref(o, to)[0, r] = x[0, r]
                pl.semaphore_signal(sem, 1, device_id=to)
                pl.semaphore_wait(sem, r + 1, decrement=False)
                o[0, r] = o[0, r] * 2

        return kernel(body, like((1, rounds, 128)), REGULAR)(x)

    x = data((n, rounds, 128))
    return Program(over(local, line(n)), [x], [np.roll(x, 1, 0) * 2])


@subject()
def value_of_a_semaphore(n: int) -> Program:
    """`semaphore_read` after everybody's signal."""

    def local(x):
        def body(x, o, sem):
            for peer in range(n):
                pl.semaphore_signal(sem.at[0], me() + 1, device_id=i32(peer))
            pl.semaphore_wait(sem.at[0], n * (n + 1) // 2, decrement=False)
            o[0, 0] = pl.semaphore_read(sem.at[0]) + x[0, 0]
            everyone(sem.at[1], n)

        return kernel(body, like((1, 1), jnp.int32), REGULAR((2,)))(x)

    x = data((n, 1), jnp.int32, low=0, high=100)
    return Program(over(local, line(n)), [x], [x + n * (n + 1) // 2])


@subject()
def parallel_signals(n: int) -> Program:
    """`semaphore_signal_parallel`: one fence for signals to all peers and to oneself."""

    def local(x):
        def body(x, o, sem):
            for peer in range(n):
                plgpu.remote_ref(o, i32(peer))[0, me()] = x[0]
            ring = [plgpu.SemaphoreSignal(sem.at[0], device_id=i32(peer), inc=2) for peer in range(n)]
            plgpu.semaphore_signal_parallel(*ring, plgpu.SemaphoreSignal(sem.at[1], device_id=None))
            pl.semaphore_wait(sem.at[0], 2 * n)
            pl.semaphore_wait(sem.at[1], 1)

        return kernel(body, like((1, n, 128)), REGULAR((2,)))(x)

    x = data((n, 128))
    return Program(over(local, line(n)), [x], [np.stack([x] * n)])


@subject()
def global_semaphore(n: int) -> Program:
    """One semaphore for all blocks of a device: every block of every device signals all."""
    blocks = 4

    def local(x):
        def body(x, o):
            sem = pl.get_global(REGULAR)
            b = lax.axis_index("b")
            for peer in range(n):
                plgpu.remote_ref(o, i32(peer))[0, me(), b] = x[0, b]
            signal_all(sem, n)
            pl.semaphore_wait(sem, n * blocks, decrement=False)

        return kernel(body, like((1, n, blocks, 128)), grid=(blocks,), grid_names=("b",))(x)

    x = data((n, blocks, 128))
    return Program(over(local, line(n)), [x], [np.stack([x] * n)])


@subject()
def blocks_of_one_device_in_turn(n: int) -> Program:
    """A chain through all blocks of all devices: block b of device d waits for whoever is before it, by a count."""
    blocks = 3

    def local(x):
        def body(x, o):
            sem = pl.get_global(REGULAR((2,)))
            b = lax.axis_index("b")
            turn = me() * blocks + b
            pl.semaphore_wait(sem.at[0], turn, decrement=False)
            o[0, b] = x[0, b]

            @pl.when(turn > 0)
            def _():
                before = plgpu.remote_ref(o, lax.div(turn - 1, i32(blocks)))
                o[0, b] = before[0, lax.rem(turn - 1, i32(blocks))] * 3 + x[0, b]

            signal_all(sem.at[0], n)
            signal_all(sem.at[1], n)
            pl.semaphore_wait(sem.at[1], n * blocks, decrement=False)

        return kernel(body, like((1, blocks), jnp.int32), grid=(blocks,), grid_names=("b",))(x)

    x = data((n, blocks), jnp.int32, low=0, high=10)
    out = x.ravel().copy()
    for i in range(1, out.size):
        out[i] += out[i - 1] * 3
    return Program(over(local, line(n)), [x], [out.reshape(n, blocks)])


@subject()
def arrays_of_semaphores(n: int) -> Program:
    """Two dimensions, indices static and computed: the element [sender, what]."""

    def local(x):
        def body(x, o, sems):
            for by in range(1, n):
                to = right(n, by)
                plgpu.remote_ref(o, to)[0, me()] = x[0] * by
                pl.semaphore_signal(sems.at[me(), 1], by, device_id=to)
            o[0, me()] = x[0]

            @pl.loop(i32(1), i32(n))
            def _(by):
                sender = lax.rem(me() + i32(n) - by, i32(n))
                pl.semaphore_wait(sems.at[sender, 1], by)

        return kernel(body, like((1, n, 128)), REGULAR((n, 2)))(x)

    x = data((n, 128))
    out = np.empty((n, n, 128), np.float32)
    for d in range(n):
        for s in range(n):
            out[d, s] = x[s] * ((d - s) % n) if s != d else x[s]
    return Program(over(local, line(n)), [x], [out])


@subject()
def two_semaphores_one_after_the_other(n: int) -> Program:
    """The second is waited for first, the first has been there all the while."""

    def local(x):
        def body(x, o, one, two):
            to = right(n)
            plgpu.remote_ref(o, to)[0, 0] = x[0, 0]
            pl.semaphore_signal(one, 1, device_id=to)
            plgpu.remote_ref(o, to)[0, 1] = x[0, 1]
            pl.semaphore_signal(two, 1, device_id=to)
            pl.semaphore_wait(two, 1)
            o[0, 1] = o[0, 1] + 1
            pl.semaphore_wait(one, 1)
            o[0, 0] = o[0, 0] - 1

        return kernel(body, like((1, 2, 128)), REGULAR, REGULAR)(x)

    x = data((n, 2, 128))
    out = np.roll(x, 1, 0)
    return Program(over(local, line(n)), [x], [np.stack([out[:, 0] - 1, out[:, 1] + 1], 1)])


@subject()
def wait_for_two_directions(n: int) -> Program:
    """From the left and from the right, each with a semaphore of its own."""

    def local(x):
        def body(x, o, sems):
            for side, by in enumerate((1, n - 1)):
                plgpu.remote_ref(o, right(n, by))[0, side] = x[0]
                pl.semaphore_signal(sems.at[side], 1, device_id=right(n, by))
            for side in (1, 0):
                pl.semaphore_wait(sems.at[side], 1)

        return kernel(body, like((1, 2, 128)), REGULAR((2,)))(x)

    x = data((n, 128))
    return Program(over(local, line(n)), [x], [np.stack([np.roll(x, 1, 0), np.roll(x, -1, 0)], 1)])


@subject()
def increments_from_data(n: int) -> Program:
    """Increment, value and device id are loaded."""

    def local(x, table):
        def body(x, table, o, sem):
            plgpu.remote_ref(o, table[0, 0])[...] = x[...]
            pl.semaphore_signal(sem, table[0, 1], device_id=table[0, 0])
            pl.semaphore_wait(sem, table[0, 2])

        return kernel(body, like((1, 128)), REGULAR)(x, table)

    x = data((n, 128))
    d = np.arange(n, dtype=np.int32)
    table = np.stack([(d + 1) % n, d + 3, (d - 1) % n + 3], 1).astype(np.int32)
    return Program(over(local, line(n)), [x, table], [np.roll(x, 1, 0)])


@subject()
def warps_signal(n: int) -> Program:
    """A warp signals, the warpgroup waits; then a warp waits, and the warpgroup goes on."""

    def local(x):
        def body(x, o, sems, buf, bar):
            to = right(n)
            buf[...] = x[0]
            plgpu.commit_smem()

            def warps(warp):
                @pl.when(warp == 1)
                def _():
                    plgpu.copy_smem_to_gmem(buf, plgpu.remote_ref(o.at[0], to))
                    plgpu.wait_smem_to_gmem(0)
                    pl.semaphore_signal(sems.at[0], 1, device_id=to)

            warp_map(warps)
            pl.semaphore_wait(sems.at[0], 1)
            pl.semaphore_signal(sems.at[1], 1, device_id=to)

            def wait(warp):
                @pl.when(warp == 3)
                def _():
                    pl.semaphore_wait(sems.at[1], 1)
                    plgpu.barrier_arrive(bar)

            warp_map(wait)
            plgpu.barrier_wait(bar)
            o[0] = o[0] + 1

        return kernel(body, like((1, 64)), REGULAR((2,)), SMEM((64,), jnp.float32), plgpu.Barrier())(x)

    x = data((n, 64))
    return Program(over(local, line(n)), [x], [np.roll(x, 1, 0) + 1])


@subject()
def warpgroups_signal(n: int) -> Program:
    """Three warpgroups store and signal for themselves; one waits for all."""

    def local(x):
        def body(x, o, sem, bar):
            to, wg = right(n), lax.axis_index("wg")
            plgpu.remote_ref(o, to)[0, wg] = x[0, wg] * 2
            pl.semaphore_signal(sem, 1, device_id=to)

            @pl.when(wg == 1)
            def _():
                pl.semaphore_wait(sem, 3)
                o[0, 3] = o[0, 0] + o[0, 1] + o[0, 2]

            plgpu.barrier_arrive(bar)
            plgpu.barrier_wait(bar)

        scratch = (REGULAR, plgpu.Barrier(num_arrivals=3))
        return kernel(body, like((1, 4, 128)), *scratch, num_threads=3, thread_name="wg")(x)

    x = data((n, 3, 128))
    far = np.roll(x * 2, 1, 0)
    return Program(over(local, line(n)), [x], [np.concatenate([far, (far[:, 0] + far[:, 1] + far[:, 2])[:, None]], 1)])


@subject()
def every_warpgroup_waits(n: int) -> Program:
    """Each warpgroup has a semaphore of its own, for the peer's warpgroup of the same number."""

    def local(x):
        def body(x, o, sems):
            to, wg = right(n), lax.axis_index("wg")
            plgpu.remote_ref(o, to)[0, wg] = x[0, wg]
            pl.semaphore_signal(sems.at[wg], 1, device_id=to)
            pl.semaphore_wait(sems.at[wg], 1)
            o[0, wg] = o[0, wg] * 2

        return kernel(body, like((1, 2, 128)), REGULAR((2,)), num_threads=2, thread_name="wg")(x)

    x = data((n, 2, 128))
    return Program(over(local, line(n)), [x], [np.roll(x, 1, 0) * 2])


@subject()
def scopes_of_memory(n: int) -> Program:
    """Semaphores of one device (`memory_scope="gpu"`) beside those of all."""
    blocks = 4

    def local(x):
        def body(x, o):
            sems = pl.get_global(REGULAR((2,)))
            b, to = lax.axis_index("b"), right(n)
            o[0, b] = x[0, b]
            plgpu.semaphore_signal(sems.at[0], 1, memory_scope="gpu")

            @pl.when(b == 0)
            def _():  # Hands on what all blocks wrote.
                plgpu.semaphore_wait(sems.at[0], blocks, memory_scope="gpu")
                plgpu.remote_ref(o, to)[0, blocks] = o[0, 0] + o[0, 1] + o[0, 2] + o[0, 3]
                plgpu.semaphore_signal(sems.at[1], 1, device_id=to)
                plgpu.semaphore_wait(sems.at[1], 1)

        return kernel(body, like((1, blocks + 1, 128)), grid=(blocks,), grid_names=("b",))(x)

    x = data((n, blocks, 128))
    total = x[:, 0] + x[:, 1] + x[:, 2] + x[:, 3]
    return Program(over(local, line(n)), [x], [np.concatenate([x, np.roll(total, 1, 0)[:, None]], 1)])


@subject(devices=lambda n: n > 1 and n % 2 == 0)
def two_axes_of_a_mesh(n: int) -> Program:
    """Signals along one axis, then the other, by tuple, dict and number."""
    m = n // 2

    def local(x):
        def body(x, o, sems):
            a, b = lax.axis_index("a"), lax.axis_index("b")
            plgpu.remote_ref(o, {"a": 1 - a})[0, 0] = x[0]
            pl.semaphore_signal(sems.at[0], 1, device_id={"a": 1 - a})
            plgpu.remote_ref(o, (a, lax.rem(b + 1, i32(m))))[0, 1] = x[0]
            pl.semaphore_signal(sems.at[1], 2, device_id=(a, lax.rem(b + 1, i32(m))))
            far = lax.rem(a * m + b + 1, i32(n))
            plgpu.remote_ref(o, far, **logical())[0, 2] = x[0]
            pl.semaphore_signal(sems.at[2], 3, device_id=far, **logical())
            for i in range(3):
                pl.semaphore_wait(sems.at[i], i + 1)

        return kernel(body, like((1, 3, 128)), REGULAR((3,)))(x)

    x = data((n, 128))
    square = x.reshape(2, m, 128)
    parts = [square[::-1].reshape(n, 128), np.roll(square, 1, 1).reshape(n, 128), np.roll(x, 1, 0)]
    return Program(over(local, grid((2, m), ("a", "b"))), [x], [np.stack(parts, 1)])


@subject()
def scoped_semaphore(n: int) -> Program:
    """A semaphore that is allocated within the kernel."""

    def local(x):
        def body(x, o, ready):
            to = right(n)

            def scope(sem):
                plgpu.remote_ref(o, to)[...] = x[...] + 1
                handshake(sem, to)

            pl.run_scoped(scope, REGULAR)
            everyone(ready, n)

        return kernel(body, like((1, 128)), REGULAR)(x)

    x = data((n, 128))
    return Program(over(local, line(n)), [x], [np.roll(x, 1, 0) + 1])


@subject(lacks="" if hasattr(plgpu, "alloc_semaphore") else "plgpu.alloc_semaphore")
def semaphore_as_argument(n: int) -> Program:
    """Semaphores that outlive a kernel: the second kernel waits for what the first one was sent."""

    def local(x):
        sem = plgpu.alloc_semaphore((2,))

        def tell(x, sem, o, ready):
            everyone(ready, n)  # Everybody's semaphores are zero.
            plgpu.remote_ref(o, right(n))[...] = x[...]
            pl.semaphore_signal(sem.at[1], 1, device_id=right(n))

            pl.semaphore_wait(sem.at[1], 1, decrement=False)

        def listen(x, sem, o):
            pl.semaphore_wait(sem.at[1], 1)
            o[...] = x[...] * 2

        y = kernel(tell, like((1, 128)), REGULAR)(x, sem)
        return kernel(listen, like((1, 128)))(y, sem)

    x = data((n, 128))
    return Program(over(local, line(n)), [x], [np.roll(x, 1, 0) * 2])


@subject()
def many_blocks_many_rounds(n: int) -> Program:
    """Each block has rounds of its own with its peer block."""
    blocks, rounds = 8, 4

    def local(x):
        def body(x, o, sems):
            b, to = lax.axis_index("b"), right(n)

            @pl.loop(i32(0), i32(rounds))
            def _(r):
                plgpu.remote_ref(o, to)[0, b, r] = x[0, b, r] * 3
                pl.semaphore_signal(sems.at[r], 1, device_id=to)
                pl.semaphore_wait(sems.at[r], 1)

        return kernel(body, like((1, blocks, rounds, 32)), REGULAR((rounds,)), grid=(blocks,), grid_names=("b",))(x)

    x = data((n, blocks, rounds, 32))
    return Program(over(local, line(n)), [x], [np.roll(x * 3, 1, 0)])
