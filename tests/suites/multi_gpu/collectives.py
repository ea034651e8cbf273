"""Collectives and other conversations: barriers, gathers, reductions, exchanges, rings, trees, producers and consumers."""

from __future__ import annotations

from typing import Any

import jax.experimental.pallas as pl
import jax.experimental.pallas.mosaic_gpu as plgpu
import jax.numpy as jnp
import numpy as np
from jax import lax

from tests.suites.multi_gpu.suite import (
    REGULAR, SMEM, Barrier, P, Program, data, everyone, grid, handshake, i32, kernel, like, line, me, over, right, signal_all, subject,
    tiled,
)  # fmt: skip


def _power_of_2(n: int) -> bool:
    return n > 1 and n & (n - 1) == 0


# ------------------------------------------------------------------------------------------ barriers


@subject()
def barrier_in_rounds(n: int) -> Program:
    """Two semaphores in turn serve any number of rounds; everybody adds what everybody wrote in the round before."""
    rounds = 8

    def local(x):
        def body(x, o, boxes, sems):
            o[...] = x[...]

            @pl.loop(i32(0), i32(rounds))
            def _(r):
                slot = lax.rem(r, i32(2))
                for peer in range(n):
                    plgpu.remote_ref(boxes, i32(peer))[slot, me()] = o[0]
                signal_all(sems.at[slot], n)
                pl.semaphore_wait(sems.at[slot], n)
                total = boxes[slot, 0]
                for peer in range(1, n):
                    total += boxes[slot, peer]
                o[0] = total * 0.5 + me().astype(jnp.float32)

        return kernel(body, [like((1, 128)), like((2, n, 128))], REGULAR((2,)))(x)[0]

    x = data((n, 128))
    now = x
    for _ in range(rounds):
        total = now[0]
        for part in now[1:]:
            total = total + part
        now = np.stack([total * np.float32(0.5) + np.float32(d) for d in range(n)])
    return Program(over(local, line(n)), [x], [now])


@subject(devices=_power_of_2)
def dissemination_barrier(n: int) -> Program:
    """log n steps: step s signals the device 2^s to the right."""
    steps = n.bit_length() - 1

    def local(x):
        def body(x, o, sems):
            for peer in range(n):
                plgpu.remote_ref(o, i32(peer))[0, me()] = x[0]
            for s in range(steps):
                pl.semaphore_signal(sems.at[s], 1, device_id=right(n, 1 << s))
                pl.semaphore_wait(sems.at[s], 1)

        return kernel(body, like((1, n, 128)), REGULAR((steps,)))(x)

    x = data((n, 128))
    return Program(over(local, line(n)), [x], [np.stack([x] * n)])


# ------------------------------------------------------------------------------------------ gathers and exchanges


@subject(jnp.float32, jnp.bfloat16)
def all_gather_by_stores(n: int, dtype: Any) -> Program:
    def local(x):
        def body(x, o, sem):
            v = x[0]
            for by in range(n):
                plgpu.remote_ref(o, right(n, by))[0, me()] = v
            everyone(sem, n)

        return kernel(body, like((1, n, 4, 128), dtype), REGULAR)(x)

    x = data((n, 4, 128), dtype)
    return Program(over(local, line(n)), [x], [np.stack([x] * n)])


@subject()
def all_gather_by_loads(n: int) -> Program:
    def local(x):
        def body(x, o, sem):
            for by in range(n):
                of = right(n, by)
                o[0, of] = plgpu.remote_ref(x, of)[0]
            everyone(sem, n)

        return kernel(body, like((1, n, 256)), REGULAR)(x)

    x = data((n, 256))
    return Program(over(local, line(n)), [x], [np.stack([x] * n)])


@subject()
def ring_all_gather(n: int) -> Program:
    """Every step hands on what came in the step before."""

    def local(x):
        def body(x, o, sems):
            to = right(n)
            o[0, me()] = x[0]
            for step in range(n - 1):
                row = lax.rem(me() + i32(n - step), i32(n))
                plgpu.remote_ref(o, to)[0, row] = o[0, row]
                pl.semaphore_signal(sems.at[step], 1, device_id=to)
                pl.semaphore_wait(sems.at[step], 1)

        return kernel(body, like((1, n, 256)), REGULAR((n - 1,)))(x)

    x = data((n, 256))
    return Program(over(local, line(n)), [x], [np.stack([x] * n)])


@subject(jnp.float32, jnp.float16)
def ring_all_gather_by_bulk_copies(n: int, dtype: Any) -> Program:
    """In pieces through shared memory: load, bulk store to the right, signal it."""
    pieces = 3

    def local(x):
        def body(x, o, buf, bar, sems):
            to = right(n)

            def hand_on(source, row, p):
                plgpu.copy_gmem_to_smem(source, buf, bar)
                plgpu.barrier_wait(bar)
                plgpu.copy_smem_to_gmem(buf, plgpu.remote_ref(o, to).at[0, row, p])
                plgpu.wait_smem_to_gmem(0)

            for p in range(pieces):
                hand_on(x.at[0, p], me(), p)
                plgpu.copy_smem_to_gmem(buf, o.at[0, me(), p])
                plgpu.wait_smem_to_gmem(0)
                pl.semaphore_signal(sems.at[0], 1, device_id=to)

            @pl.loop(i32(1), i32(n - 1))
            def _(step):
                row = lax.rem(me() + i32(n) - step, i32(n))
                for p in range(pieces):
                    pl.semaphore_wait(sems.at[step - 1], 1)
                    hand_on(o.at[0, row, p], row, p)
                    pl.semaphore_signal(sems.at[step], 1, device_id=to)

            pl.semaphore_wait(sems.at[n - 2], pieces)

        return kernel(body, like((1, n, pieces, 16, 64), dtype), SMEM((16, 64), dtype), Barrier(), REGULAR((n - 1,)))(x)

    x = data((n, pieces, 16, 64), dtype)
    return Program(over(local, line(n)), [x], [np.stack([x] * n)])


@subject(jnp.float32, jnp.int8)
def all_to_all(n: int, dtype: Any) -> Program:
    def local(x):
        def body(x, o, sem):
            for by in range(n):
                to = right(n, by)
                plgpu.remote_ref(o, to)[0, me()] = x[0, to]
            everyone(sem, n)

        return kernel(body, like((1, n, 128), dtype), REGULAR)(x)

    x = data((n, n, 128), dtype)
    return Program(over(local, line(n)), [x], [x.swapaxes(0, 1)])


@subject()
def all_to_all_of_uneven_parts(n: int) -> Program:
    """How many rows each sends to each is data; counts are exchanged first, then rows land where they belong."""
    rows, cols = 12, 32
    rng = np.random.default_rng(3)
    cuts = np.sort(rng.integers(0, rows + 1, (n, n - 1)), 1)
    counts = np.diff(np.concatenate([np.zeros((n, 1), int), cuts, np.full((n, 1), rows)], 1), axis=1).astype(np.int32)

    def local(x, counts):
        def body(x, counts, o, received, sems):
            for peer in range(n):
                plgpu.remote_ref(received, i32(peer))[0, me()] = counts[0, peer]
            everyone(sems.at[0], n)
            begin = np.int32(0)
            for peer in range(n):
                # Rows of lower senders come first.
                at = np.int32(0)
                for sender in range(n - 1):
                    at = at + jnp.where(sender < me(), plgpu.remote_ref(received, i32(peer))[0, sender], 0)
                many = counts[0, peer]

                @pl.loop(i32(0), many)
                def _(i, at=at, begin=begin, peer=peer):
                    plgpu.remote_ref(o, i32(peer))[0, at + i] = x[0, begin + i]

                begin = begin + many
            everyone(sems.at[1], n)

        return kernel(body, [like((1, n * rows, cols)), like((1, n), jnp.int32)], REGULAR((2,)))(x, counts)

    x = data((n, rows, cols))
    parts = [np.split(x[s], np.cumsum(counts[s])[:-1]) for s in range(n)]
    rest = [np.concatenate([parts[s][d] for s in range(n)]) for d in range(n)]

    def fn(x, counts):
        o, received = over(local, line(n))(x, counts)
        total = received.sum(1)
        return jnp.where(jnp.arange(n * rows)[None, :, None] < total[:, None, None], o, 0), received  # Beyond lies what nobody wrote.

    out = np.stack([np.concatenate([r, np.zeros((n * rows - len(r), cols), np.float32)]) for r in rest])
    return Program(fn, [x, counts], [out, counts.T])


@subject()
def transpose_of_a_matrix(n: int) -> Program:
    """Rows over devices become columns over devices, tile by tile."""
    t = 32

    def local(x):
        def body(x, o, sem):
            for by in range(n):
                to = right(n, by)
                tile = x[:, pl.ds(to * t, t)]
                plgpu.remote_ref(o, to)[:, pl.ds(me() * t, t)] = tile.T
            everyone(sem, n)

        return kernel(body, like((t, n * t)), REGULAR)(x)

    x = data((n * t, n * t))
    return Program(over(local, line(n)), [x], [x.T])


@subject()
def rows_from_their_owners(n: int) -> Program:
    """A table over all devices, looked up by ids: rows are pulled from whoever has them."""
    rows, cols, looked = 8, 64, 10

    def local(table, ids):
        def body(table, ids, o, sem):
            @pl.loop(i32(0), i32(looked))
            def _(i):
                v = ids[0, i]
                o[0, i] = plgpu.remote_ref(table, lax.div(v, i32(rows)))[lax.rem(v, i32(rows))]

            everyone(sem, n)

        return kernel(body, like((1, looked, cols)), REGULAR)(table, ids)

    table = data((n * rows, cols))
    ids = data((n, looked), jnp.int32, low=0, high=n * rows)
    return Program(over(local, line(n)), [table, ids], [table[ids]])


@subject(devices=_power_of_2)
def broadcast_tree(n: int) -> Program:
    """Device 0's row reaches all in log n steps."""

    def local(x):
        def body(x, o, sem):
            @pl.when(me() == 0)
            def _():
                o[...] = x[...] * 5

            @pl.when(me() > 0)
            def _():
                pl.semaphore_wait(sem, 1)

            step = 1
            while step < n:

                @pl.when(me() < step)
                def _(step=step):
                    to = me() + i32(step)
                    plgpu.remote_ref(o, to)[...] = o[...]
                    pl.semaphore_signal(sem, 1, device_id=to)

                step *= 2

        return kernel(body, like((1, 256)), REGULAR)(x)

    x = data((n, 256))
    return Program(over(local, line(n)), [x], [np.stack([x[0] * 5] * n)])


# ------------------------------------------------------------------------------------------ reductions


def _sum(parts: Any) -> Any:
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total


@subject(jnp.float32, jnp.bfloat16, jnp.int32)
def reduce_scatter_by_loads(n: int, dtype: Any) -> Program:
    def local(x):
        def body(x, o, sem):
            o[0] = _sum([plgpu.remote_ref(x, i32(peer))[0, me()] for peer in range(n)])
            everyone(sem, n)

        return kernel(body, like((1, 256), dtype), REGULAR)(x)

    x = data((n, n, 256), dtype)
    return Program(over(local, line(n)), [x], [_sum(list(x))])


@subject()
def ring_reduce_scatter(n: int) -> Program:
    """Partial sums travel; the inbox has a slot for every step."""

    def local(x):
        def body(x, o, inbox, sems):
            to = right(n)
            for step in range(n - 1):
                part = lax.rem(me() + i32(2 * n - 1 - step), i32(n))
                v = x[0, part]
                if step:
                    pl.semaphore_wait(sems.at[step - 1], 1)
                    v = inbox[step - 1] + v
                plgpu.remote_ref(inbox, to)[step] = v
                pl.semaphore_signal(sems.at[step], 1, device_id=to)
            pl.semaphore_wait(sems.at[n - 2], 1)
            o[0] = inbox[n - 2] + x[0, me()]

        return kernel(body, [like((1, 256)), like((n - 1, 256))], REGULAR((n - 1,)))(x)[0]

    x = data((n, n, 256))
    out = np.stack([_sum([x[(d + 1 + i) % n, d] for i in range(n)]) for d in range(n)])
    return Program(over(local, line(n)), [x], [out])


@subject(jnp.float32, jnp.float16)
def all_reduce_in_one_shot(n: int, dtype: Any) -> Program:
    """Everybody sends all to everybody, and adds in the same order."""

    def local(x):
        def body(x, o, inbox, sem):
            for by in range(n):
                plgpu.remote_ref(inbox, right(n, by))[me()] = x[0]
            everyone(sem, n)
            o[0] = _sum([inbox[peer] for peer in range(n)])

        return kernel(body, [like((1, 256), dtype), like((n, 256), dtype)], REGULAR)(x)[0]

    x = data((n, 256), dtype)
    return Program(over(local, line(n)), [x], [np.stack([_sum(list(x))] * n)])


@subject()
def all_reduce_in_two_shots(n: int) -> Program:
    """A reduce-scatter, then an all-gather."""

    def local(x):
        def body(x, o, inbox, sems):
            for by in range(n):
                to = right(n, by)
                plgpu.remote_ref(inbox, to)[me()] = x[0, to]
            everyone(sems.at[0], n)
            total = _sum([inbox[peer] for peer in range(n)])
            for by in range(n):
                plgpu.remote_ref(o, right(n, by))[0, me()] = total
            everyone(sems.at[1], n)

        return kernel(body, [like((1, n, 128)), like((n, 128))], REGULAR((2,)))(x)[0]

    x = data((n, n, 128))
    return Program(over(local, line(n)), [x], [np.stack([_sum(list(x))] * n)])


@subject(devices=_power_of_2)
def all_reduce_by_doubling(n: int) -> Program:
    """Step s exchanges with the device whose number differs in bit s."""
    steps = n.bit_length() - 1

    def local(x):
        def body(x, o, inbox, sems):
            v = x[0]
            for s in range(steps):
                peer = lax.bitwise_xor(me(), i32(1 << s))
                plgpu.remote_ref(inbox, peer)[s] = v
                pl.semaphore_signal(sems.at[s], 1, device_id=peer)
                pl.semaphore_wait(sems.at[s], 1)
                v = v + inbox[s]
            o[0] = v

        return kernel(body, [like((1, 256)), like((steps, 256))], REGULAR((steps,)))(x)[0]

    x = data((n, 256))
    now = x
    for s in range(steps):
        now = now + now[np.arange(n) ^ (1 << s)]
    return Program(over(local, line(n)), [x], [now])


@subject()
def largest_of_all(n: int) -> Program:
    """Value and owner of the maximum of all devices' numbers."""

    def local(x):
        def body(x, o, inbox, sem):
            best = x[0].max()
            for peer in range(n):
                plgpu.remote_ref(inbox, i32(peer))[me()] = best
            everyone(sem, n)
            top, owner = inbox[0], np.int32(0)
            for peer in range(1, n):
                v = inbox[peer]
                owner = jnp.where(v > top, i32(peer), owner)
                top = jnp.maximum(top, v)
            o[0, 0] = top
            o[0, 1] = owner.astype(jnp.float32)

        return kernel(body, [like((1, 2)), like((n,))], REGULAR)(x)[0]

    x = data((n, 256))
    out = np.array([x.max(), x.max(1).argmax()], np.float32)
    return Program(over(local, line(n)), [x], [np.stack([out] * n)])


@subject()
def running_sum_over_devices(n: int) -> Program:
    """A chain: each adds its own and hands on; the last closes nothing."""

    def local(x):
        def body(x, o, inbox, sem):
            @pl.when(me() == 0)
            def _():
                o[...] = x[...]

            @pl.when(me() > 0)
            def _():
                pl.semaphore_wait(sem, 1)
                o[...] = inbox[...] + x[...]

            @pl.when(me() < n - 1)
            def _():
                plgpu.remote_ref(inbox, me() + 1)[...] = o[...]
                pl.semaphore_signal(sem, 1, device_id=me() + 1)

        return kernel(body, [like((1, 256)), like((1, 256))], REGULAR)(x)[0]

    x = data((n, 256))
    return Program(over(local, line(n)), [x], [np.cumsum(x, 0)])


# ------------------------------------------------------------------------------------------ neighbours


@subject()
def halo_exchange(n: int) -> Program:
    """A stencil in steps: borders go to both neighbours, into one of two sets of ghost cells."""
    cells, steps = 128, 5

    def local(x):
        def body(x, o, ghosts, sems):
            o[...] = x[...]

            @pl.loop(i32(0), i32(steps))
            def _(t):
                slot = lax.rem(t, i32(2))
                plgpu.remote_ref(ghosts, right(n))[slot, 0] = o[0, cells - 1]
                plgpu.remote_ref(ghosts, right(n, n - 1))[slot, 1] = o[0, 0]
                pl.semaphore_signal(sems.at[slot, 0], 1, device_id=right(n))
                pl.semaphore_signal(sems.at[slot, 1], 1, device_id=right(n, n - 1))
                pl.semaphore_wait(sems.at[slot, 0], 1)
                pl.semaphore_wait(sems.at[slot, 1], 1)
                v = o[0]
                left = jnp.concatenate([ghosts[slot, pl.ds(0, 1)], v[:-1]])
                above = jnp.concatenate([v[1:], ghosts[slot, pl.ds(1, 1)]])
                o[0] = (left + above) * 0.25 + v * 0.5

        return kernel(body, [like((1, cells)), like((2, 2))], REGULAR((2, 2)))(x)[0]

    x = data((n, cells))
    now = x.ravel()
    for _ in range(steps):
        now = (np.roll(now, 1) + np.roll(now, -1)) * np.float32(0.25) + now * np.float32(0.5)
    return Program(over(local, line(n)), [x], [now.reshape(n, cells)])


@subject(devices=lambda n: n % 4 == 0)
def halo_exchange_in_two_dimensions(n: int) -> Program:
    """Rows to the devices above and below, columns to those beside, on a 2 × n/2 mesh."""
    m, t = n // 2, 32

    def local(x):
        def body(x, o, rows, columns, sem):
            a, b = lax.axis_index("a"), lax.axis_index("b")
            right_, left = lax.rem(b + 1, i32(m)), lax.rem(b + i32(m - 1), i32(m))
            plgpu.remote_ref(rows, {"a": 1 - a})[0] = x[t - 1]
            plgpu.remote_ref(rows, {"a": 1 - a})[1] = x[0]
            plgpu.remote_ref(columns, {"b": right_})[0] = x[:, t - 1]
            plgpu.remote_ref(columns, {"b": left})[1] = x[:, 0]
            pl.semaphore_signal(sem, 2, device_id={"a": 1 - a})
            pl.semaphore_signal(sem, 1, device_id={"b": right_})
            pl.semaphore_signal(sem, 1, device_id={"b": left})
            pl.semaphore_wait(sem, 4)
            o[1 : t - 1, 1 : t - 1] = x[1 : t - 1, 1 : t - 1]
            o[0] = x[0] + rows[0]
            o[t - 1] = x[t - 1] + rows[1]
            for i in range(1, t - 1):
                o[i, 0] = x[i, 0] + columns[0, i]
                o[i, t - 1] = x[i, t - 1] + columns[1, i]

        return kernel(body, [like((t, t)), like((2, t)), like((2, t))], REGULAR)(x)[0]

    mesh = grid((2, m), ("a", "b"))
    x = data((2 * t, m * t))
    out = x.copy()
    for a in range(2):
        for b in range(m):
            tile = x[a * t : a * t + t, b * t : b * t + t]
            new = tile.copy()
            up, down = np.roll(x, 1, 0)[a * t], np.roll(x, -1, 0)[a * t + t - 1]
            west, east = np.roll(x, 1, 1)[:, b * t], np.roll(x, -1, 1)[:, b * t + t - 1]
            new[0] += up[b * t : b * t + t]
            new[-1] += down[b * t : b * t + t]
            new[1:-1, 0] += west[a * t + 1 : a * t + t - 1]
            new[1:-1, -1] += east[a * t + 1 : a * t + t - 1]
            out[a * t : a * t + t, b * t : b * t + t] = new
    program = over(local, mesh, (P("a", "b"),), P("a", "b"))
    return Program(program, [x], [out])


@subject()
def shift_in_a_loop(n: int) -> Program:
    """A row goes round the ring; two inboxes, and word from the right when one may be written again."""
    rounds = 2 * n + 3

    def local(x):
        def body(x, o, boxes, arrived, free):
            o[...] = x[...]
            to, back = right(n), right(n, n - 1)

            @pl.loop(i32(0), i32(rounds))
            def _(r):
                slot = lax.rem(r, i32(2))

                @pl.when(r >= 2)
                def _():
                    pl.semaphore_wait(free.at[slot], 1)

                plgpu.remote_ref(boxes, to)[slot] = o[0] + 1
                pl.semaphore_signal(arrived.at[slot], 1, device_id=to)
                pl.semaphore_wait(arrived.at[slot], 1)
                o[0] = boxes[slot]

                @pl.when(r < rounds - 2)
                def _():
                    pl.semaphore_signal(free.at[slot], 1, device_id=back)

        return kernel(body, [like((1, 128)), like((2, 128))], REGULAR((2,)), REGULAR((2,)))(x)[0]

    x = data((n, 128))
    now = x
    for _ in range(rounds):
        now = np.roll(now + 1, 1, 0)
    return Program(over(local, line(n)), [x], [now])


@subject(devices=lambda n: n > 1 and n % 2 == 0)
def ping_pong(n: int) -> Program:
    """Pairs, many rounds: the ball gains one at every hit."""
    rounds = 40

    def local(x):
        def body(x, o, sem):
            peer = lax.bitwise_xor(me(), i32(1))
            first = lax.rem(me(), i32(2)) == 0

            @pl.when(first)
            def _():
                o[...] = x[...]

            @pl.loop(i32(0), i32(rounds))
            def _(r):
                @pl.when(~(first & (r == 0)))
                def _():
                    pl.semaphore_wait(sem, 1)

                plgpu.remote_ref(o, peer)[...] = o[...] + 1
                pl.semaphore_signal(sem, 1, device_id=peer)

            @pl.when(first)
            def _():
                pl.semaphore_wait(sem, 1)

        return kernel(body, like((1, 128)), REGULAR)(x)

    x = data((n, 128), low=-5, high=5)
    # Of 2·rounds hits the first device's ball has them all, the second's all but the last.
    out = np.repeat(x[::2], 2, 0) + 2 * rounds
    out[1::2] -= 1
    return Program(over(local, line(n)), [x], [out.astype(np.float32)])


@subject()
def token_round_the_ring(n: int) -> Program:
    """Who has the token adds what it has; it goes round three times."""
    laps = 3

    def local(x):
        def body(x, o, token, sem):
            to = right(n)

            @pl.when(me() == 0)
            def _():
                token[...] = jnp.zeros((128,), jnp.float32)
                pl.semaphore_signal(sem, 1)

            @pl.loop(i32(0), i32(laps))
            def _(lap):
                pl.semaphore_wait(sem, 1)
                v = token[...] * 0.5 + x[0]

                @pl.when(lap == laps - 1)
                def _():
                    o[0] = v

                @pl.when(~((lap == laps - 1) & (me() == n - 1)))
                def _():
                    plgpu.remote_ref(token, to)[...] = v
                    pl.semaphore_signal(sem, 1, device_id=to)

        return kernel(body, [like((1, 128)), like((128,))], REGULAR)(x)[0]

    x = data((n, 128))
    token, out = np.zeros(128, np.float32), np.empty_like(x)
    for _ in range(laps):
        for d in range(n):
            token = token * np.float32(0.5) + x[d]
            out[d] = token
    return Program(over(local, line(n)), [x], [out])


@subject(devices=lambda n: n > 1 and n % 2 == 0)
def producer_and_consumer(n: int) -> Program:
    """Even devices produce for odd ones, through a ring of three slots with credits."""
    items, slots = 10, 3

    def local(x):
        def body(x, o, ring, full, credit):
            peer = lax.bitwise_xor(me(), i32(1))

            @pl.when(lax.rem(me(), i32(2)) == 0)
            def _():
                @pl.loop(i32(0), i32(items))
                def _(i):
                    @pl.when(i >= slots)
                    def _():
                        pl.semaphore_wait(credit, 1)

                    plgpu.remote_ref(ring, peer)[lax.rem(i, i32(slots))] = x[0, i] * 2
                    pl.semaphore_signal(full, 1, device_id=peer)
                    o[0, i] = x[0, i]

            @pl.when(lax.rem(me(), i32(2)) == 1)
            def _():
                @pl.loop(i32(0), i32(items))
                def _(i):
                    pl.semaphore_wait(full, 1)
                    o[0, i] = ring[lax.rem(i, i32(slots))] + x[0, i]

                    @pl.when(i < items - slots)
                    def _():
                        pl.semaphore_signal(credit, 1, device_id=peer)

        return kernel(body, [like((1, items, 128)), like((slots, 128))], REGULAR, REGULAR)(x)[0]

    x = data((n, items, 128))
    out = x.copy()
    out[1::2] = x[::2] * 2 + x[1::2]
    return Program(over(local, line(n)), [x], [out])


# ------------------------------------------------------------------------------------------ roles and tensor cores


@subject()
def one_warpgroup_communicates(n: int) -> Program:
    """The first pulls pieces from the right by bulk loads into a ring, the second computes with them."""
    pieces, slots = 6, 2

    def local(x):
        def body(x, o, ring, full, empty, sem):
            wg, of = lax.axis_index("wg"), right(n)

            @pl.when(wg == 0)
            def _():
                @pl.loop(i32(0), i32(pieces))
                def _(i):
                    slot = lax.rem(i, i32(slots))

                    @pl.when(i >= slots)
                    def _():
                        plgpu.barrier_wait(empty.at[slot])

                    plgpu.copy_gmem_to_smem(plgpu.remote_ref(x, of).at[0, i], ring.at[slot], full.at[slot])

            @pl.when(wg == 1)
            def _():
                @pl.loop(i32(0), i32(pieces))
                def _(i):
                    slot = lax.rem(i, i32(slots))
                    plgpu.barrier_wait(full.at[slot])
                    o[0, i] = ring[slot] * x[0, i] + 1
                    plgpu.barrier_arrive(empty.at[slot])

                handshake(sem, of)  # All has been loaded.

        scratch = (SMEM((slots, 256), jnp.float32), Barrier(num_barriers=slots), Barrier(num_barriers=slots), REGULAR)
        return kernel(body, like((1, pieces, 256)), *scratch, num_threads=2, thread_name="wg")(x)

    x = data((n, pieces, 256))
    return Program(over(local, line(n)), [x], [np.roll(x, -1, 0) * x + 1])


@subject()
def one_warpgroup_sends(n: int) -> Program:
    """The first computes into shared memory, the second stores it to the right as it comes."""
    pieces, slots = 5, 2

    def local(x):
        def body(x, o, ring, full, empty, sem):
            wg, to = lax.axis_index("wg"), right(n)

            @pl.when(wg == 0)
            def _():
                @pl.loop(i32(0), i32(pieces))
                def _(i):
                    slot = lax.rem(i, i32(slots))

                    @pl.when(i >= slots)
                    def _():
                        plgpu.barrier_wait(empty.at[slot])

                    ring[slot] = x[0, i] * 3 - 1
                    plgpu.commit_smem()
                    plgpu.barrier_arrive(full.at[slot])

                pl.semaphore_wait(sem, pieces)

            @pl.when(wg == 1)
            def _():
                @pl.loop(i32(0), i32(pieces))
                def _(i):
                    slot = lax.rem(i, i32(slots))
                    plgpu.barrier_wait(full.at[slot])
                    plgpu.copy_smem_to_gmem(ring.at[slot], plgpu.remote_ref(o, to).at[0, i])
                    plgpu.wait_smem_to_gmem(0)
                    plgpu.barrier_arrive(empty.at[slot])
                    pl.semaphore_signal(sem, 1, device_id=to)

        scratch = (SMEM((slots, 256), jnp.float32), Barrier(num_barriers=slots), Barrier(num_barriers=slots), REGULAR)
        return kernel(body, like((1, pieces, 256)), *scratch, num_threads=2, thread_name="wg")(x)

    x = data((n, pieces, 256))
    return Program(over(local, line(n)), [x], [np.roll(x * 3 - 1, 1, 0)])


@subject(jnp.float16, jnp.bfloat16)
def ring_all_gather_matmul(n: int, dtype: Any) -> Program:
    """Each step multiplies the rows that are here while they go on to the left."""
    m = k = 64

    def local(a, b):
        def body(a, b, o, inbox, a_smem, b_smem, out, bars, sems):
            to = right(n, n - 1)
            plgpu.copy_gmem_to_smem(b, b_smem, bars.at[1])
            plgpu.barrier_wait(bars.at[1])
            for step in range(n):
                source = a if step == 0 else inbox.at[step - 1]
                if step:
                    pl.semaphore_wait(sems.at[step - 1], 1)
                plgpu.copy_gmem_to_smem(source, a_smem, bars.at[0])
                plgpu.barrier_wait(bars.at[0])
                if step < n - 1:
                    plgpu.copy_smem_to_gmem(a_smem, plgpu.remote_ref(inbox, to).at[step])

                def multiply(acc):
                    plgpu.wgmma(acc, a_smem, b_smem)
                    return acc[...]

                out[...] = pl.run_scoped(multiply, plgpu.ACC((m, 64), jnp.float32))
                plgpu.commit_smem()
                rows = pl.ds(lax.rem(me() + i32(step), i32(n)) * m, m)
                plgpu.wait_smem_to_gmem(0)
                if step < n - 1:
                    pl.semaphore_signal(sems.at[step], 1, device_id=to)
                plgpu.copy_smem_to_gmem(out, o.at[rows])
                plgpu.wait_smem_to_gmem(0)

        scratch = (
            SMEM((m, k), dtype, transforms=tiled(dtype)), SMEM((k, 64), dtype, transforms=tiled(dtype)),
            SMEM((m, 64), jnp.float32, transforms=tiled(jnp.float32)), Barrier(num_barriers=2), REGULAR((n - 1,)),
        )  # fmt: skip
        return kernel(body, [like((n * m, 64)), like((n - 1, m, k), dtype)], *scratch)(a, b)[0]

    a, b = data((n * m, k), dtype, low=-8, high=8), data((k, n * 64), dtype, low=-8, high=8)
    program = over(local, line(n), (P("x"), P(None, "x")), P(None, "x"))
    return Program(program, [a, b], [a.astype(np.float32) @ b.astype(np.float32)])


@subject()
def matmul_of_split_k(n: int) -> Program:
    """k is split over devices: everybody sends its partial product to everybody, who adds them up."""
    m = 64

    def local(a, b):
        def body(a, b, o, inbox, a_smem, b_smem, bar, sem):
            plgpu.copy_gmem_to_smem(a, a_smem, bar)
            plgpu.barrier_wait(bar)
            plgpu.copy_gmem_to_smem(b, b_smem, bar)
            plgpu.barrier_wait(bar)

            def multiply(acc):
                plgpu.wgmma(acc, a_smem, b_smem)
                return acc[...]

            part = pl.run_scoped(multiply, plgpu.ACC((m, 64), jnp.float32))
            for by in range(n):
                plgpu.remote_ref(inbox, right(n, by))[me()] = part
            everyone(sem, n)
            o[...] = _sum([plgpu.layout_cast(inbox[p], plgpu.Layout.WGMMA) for p in range(n)])

        scratch = (SMEM((m, 64), jnp.float16, transforms=tiled(jnp.float16)), SMEM((64, 64), jnp.float16, transforms=tiled(jnp.float16)))
        return kernel(body, [like((m, 64)), like((n, m, 64))], *scratch, Barrier(), REGULAR)(a, b)[0]

    a, b = data((m, n * 64), jnp.float16, low=-8, high=8), data((n * 64, 64), jnp.float16, low=-8, high=8)
    program = over(local, line(n), (P(None, "x"), P("x")), P("x"))
    return Program(program, [a, b], [np.concatenate([a.astype(np.float32) @ b.astype(np.float32)] * n)])


# ------------------------------------------------------------------------------------------ grids


@subject(devices=lambda n: n in (2, 4))
def grid_larger_than_a_machine(n: int) -> Program:
    """More blocks than streaming multiprocessors; each waits for its own peer block only."""
    blocks = 160

    def local(x):
        def body(x, o, sem):
            to, b = right(n), lax.axis_index("b")
            plgpu.remote_ref(o, to)[0, b] = x[0, b] + 1
            handshake(sem, to)

        return kernel(body, like((1, blocks, 32)), REGULAR, grid=(blocks,), grid_names=("b",))(x)

    x = data((n, blocks, 32))
    return Program(over(local, line(n)), [x], [np.roll(x, 1, 0) + 1])


@subject()
def persistent_blocks(n: int) -> Program:
    """Few blocks, many pieces: each takes every fourth, and all are signalled once."""
    blocks, pieces = 4, 18

    def local(x):
        def body(x, o, sem):
            to = right(n)

            @plgpu.nd_loop((pieces,), collective_axes="b")
            def _(info):
                plgpu.remote_ref(o, to)[0, info.index[0]] = x[0, info.index[0]] * 2

            handshake(sem, to)

        return kernel(body, like((1, pieces, 128)), REGULAR, grid=(blocks,), grid_names=("b",))(x)

    x = data((n, pieces, 128))
    return Program(over(local, line(n)), [x], [np.roll(x * 2, 1, 0)])


@subject()
def grid_of_two_axes_and_a_cluster(n: int) -> Program:
    """Every block of every cluster talks to its peer."""

    def local(x):
        def body(x, o, sem):
            i, j, c = lax.axis_index("i"), lax.axis_index("j"), lax.axis_index("c")
            to = right(n)
            plgpu.remote_ref(o, to)[0, i, j * 2 + c] = x[0, i, j * 2 + c] - 2
            handshake(sem, to)

        return kernel(body, like((1, 2, 6, 128)), REGULAR, grid=(2, 3), grid_names=("i", "j"), cluster=(2,), cluster_names=("c",))(x)

    x = data((n, 2, 6, 128))
    return Program(over(local, line(n)), [x], [np.roll(x, 1, 0) - 2])


