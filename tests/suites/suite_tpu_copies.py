"""The tests of a TPU's copies, and of what its kernels do with them, for the machine that there is: the emulator, or a GPU."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from typing import Any

import jax
import jax.experimental.pallas as pl
import jax.experimental.pallas.tpu as pltpu
import jax.numpy as jnp
import numpy as np
import pytest

import smalt
from tests.corpus.case import like
from tests.machine import enabled

ANY = pl.BlockSpec(memory_space=pl.ANY)
X = np.random.default_rng(0).standard_normal((32, 128)).astype(np.float32)


def run(body: Callable[..., None], out: Any, *arrays: Any, **how: Any) -> Any:
    with enabled():
        return jax.tree.map(np.asarray, jax.jit(pl.pallas_call(body, out_shape=out, **how))(*arrays))


@pytest.mark.parametrize("shape", [(), (5,), (4096,), (4097,), (70, 3, 111), (2, 8191)])
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.int8])
def test_copies_in_device_memory(shape: tuple[int, ...], dtype: Any) -> None:
    x = np.random.default_rng(0).integers(-100, 100, shape).astype(jnp.dtype(dtype))

    def body(x: Any, o: Any, sem: Any) -> None:
        copy = pltpu.make_async_copy(x, o, sem)
        copy.start()
        copy.wait()

    how = {"in_specs": [ANY], "out_specs": ANY, "scratch_shapes": [pltpu.SemaphoreType.DMA]}
    np.testing.assert_array_equal(run(body, like(shape, dtype), x, **how), x)


def test_copies_of_parts_by_a_table() -> None:
    """Pages, as paged attention reads them."""
    pages = np.random.default_rng(0).standard_normal((6, 16, 128)).astype(np.float32)
    table = np.array([4, 0, 5, 2], np.int32)

    def body(table: Any, pages: Any, o: Any, buffer: Any, sems: Any) -> None:
        i = pl.program_id(0)
        copies = [pltpu.make_async_copy(pages.at[table[2 * i + k]], buffer.at[k], sems.at[k]) for k in range(2)]
        for copy in copies:
            copy.start()
        for copy in copies:
            copy.wait()
        o[...] = buffer[...] * 2

    grid = pltpu.PrefetchScalarGridSpec(
        num_scalar_prefetch=1,
        grid=(2,),
        in_specs=[ANY],
        out_specs=pl.BlockSpec((2, 16, 128), lambda i, _: (i, 0, 0)),
        scratch_shapes=[pltpu.VMEM((2, 16, 128), jnp.float32), pltpu.SemaphoreType.DMA((2,))],
    )
    np.testing.assert_array_equal(run(body, like((4, 16, 128)), table, pages, grid_spec=grid), 2 * pages[table])


def test_a_step_waits_for_what_the_one_before_it_began() -> None:
    def body(x: Any, o: Any, buffer: Any, sems: Any) -> None:
        i, n = pl.program_id(0), pl.num_programs(0)

        def copy(k: Any) -> Any:
            return pltpu.make_async_copy(x.at[pl.ds(k * 8, 8)], buffer.at[k % 2], sems.at[k % 2])

        @pl.when(i == 0)
        def _() -> None:
            copy(0).start()

        @pl.when(i + 1 < n)
        def _() -> None:
            copy(i + 1).start()

        copy(i).wait()
        o[...] = buffer[i % 2] + 1

    scratch = [pltpu.VMEM((2, 8, 128), jnp.float32), pltpu.SemaphoreType.DMA((2,))]
    how = {"grid": (4,), "in_specs": [ANY], "out_specs": pl.BlockSpec((8, 128), lambda i: (i, 0)), "scratch_shapes": scratch}
    np.testing.assert_array_equal(run(body, like((32, 128)), X, **how), X + 1)


def test_outputs_in_device_memory() -> None:
    """Steps copy parts of them out, and read what earlier ones left."""

    def body(x: Any, o: Any, buffer: Any) -> None:
        i = pl.program_id(0)
        buffer[...] = x[...]

        @pl.when(i > 0)
        def _() -> None:
            pltpu.sync_copy(o.at[pl.ds((i - 1) * 8, 8)], buffer)
            buffer[...] += x[...]

        pltpu.sync_copy(buffer, o.at[pl.ds(i * 8, 8)])

    rows = pl.BlockSpec((8, 128), lambda i: (i, 0))
    how = {"grid": (4,), "in_specs": [rows], "out_specs": ANY, "scratch_shapes": [pltpu.VMEM((8, 128), jnp.float32)]}
    want = np.cumsum(X.reshape(4, 8, 128), 0).reshape(32, 128)
    np.testing.assert_allclose(run(body, like((32, 128)), X, **how), want, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("out", [1, 2])
def test_pipelines_of_a_tpu(out: int) -> None:
    """`pltpu.emit_pipeline` within steps of a grid, with a sum over an axis of its own."""

    def body(x_hbm: Any, y_hbm: Any, o_hbm: Any) -> None:
        def inner(x: Any, y: Any, o: Any) -> None:
            @pl.when(pl.program_id(1) == 0)
            def _() -> None:
                o[...] = jnp.zeros_like(o)

            o[...] += x[...] * y[...]

        at = pl.program_id(0)
        pltpu.emit_pipeline(
            inner,
            grid=(32 // (8 * out), 4),
            in_specs=[pl.BlockSpec((8, 128), lambda i, k: (i + at * 4 // out, k)), pl.BlockSpec((8, 128), lambda i, k: (0, k))],
            out_specs=[pl.BlockSpec((8, 128), lambda i, k: (i + at * 4 // out, 0))],
        )(x_hbm, y_hbm, o_hbm)

    rng = np.random.default_rng(0)
    x, y = rng.integers(-9, 9, (32, 512)).astype(np.float32), rng.integers(-9, 9, (8, 512)).astype(np.float32)
    want = (x.reshape(4, 8, 4, 128) * y.reshape(8, 4, 128)).sum(2).reshape(32, 128)
    got = run(body, like((32, 128)), x, y, grid=(out,), in_specs=[ANY, ANY], out_specs=ANY)
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("shape", [(30, 128), (32, 200), (27, 131)])
def test_pipelines_whose_blocks_do_not_divide(shape: tuple[int, ...]) -> None:
    def body(x_hbm: Any, o_hbm: Any) -> None:
        def inner(x: Any, o: Any) -> None:
            o[...] = x[...] * 3

        spec = pl.BlockSpec((8, 128), lambda i, j: (i, j))
        pltpu.emit_pipeline(inner, grid=(4, -(-shape[1] // 128)), in_specs=[spec], out_specs=[spec])(x_hbm, o_hbm)

    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    np.testing.assert_array_equal(run(body, like(shape), x, in_specs=[ANY], out_specs=ANY), x * 3)


def test_copies_of_as_much_as_the_run_says() -> None:
    n = np.array([3, 0, 8, 5], np.int32)

    def body(n: Any, x: Any, o: Any) -> None:
        i = pl.program_id(0)
        o[...] = jnp.zeros((8, 128))
        pltpu.sync_copy(x.at[i, pl.ds(8 - n[i], n[i]), :], o.at[pl.ds(0, n[i])])

    grid = pltpu.PrefetchScalarGridSpec(num_scalar_prefetch=1, grid=(4,), in_specs=[ANY], out_specs=pl.BlockSpec((8, 128), lambda i, _: (i, 0)))
    want = np.zeros((4, 8, 128), np.float32)
    for i, k in enumerate(n):
        want[i, :k] = X.reshape(4, 8, 128)[i, 8 - k :]
    np.testing.assert_array_equal(run(body, like((32, 128)), n, X.reshape(4, 8, 128), grid_spec=grid), want.reshape(32, 128))


def test_prefetched_scalars_that_steps_store_to() -> None:
    """A step finds what earlier ones left; the caller's array stays as it was."""
    state = np.array([5, 0], np.int32)

    def body(state: Any, x: Any, o: Any) -> None:
        o[...] = x[...] * state[0].astype(jnp.float32) + state[1].astype(jnp.float32)
        state[0] = state[0] + 1
        state[1] = pl.program_id(0) + 1

    rows = pl.BlockSpec((8, 128), lambda i, _: (i, 0))
    grid = pltpu.PrefetchScalarGridSpec(num_scalar_prefetch=1, grid=(4,), in_specs=[rows], out_specs=rows)
    steps = np.repeat(np.arange(4), 8)[:, None]
    np.testing.assert_allclose(run(body, like((32, 128)), state, X, grid_spec=grid), X * (5 + steps) + steps, rtol=1e-6, atol=1e-6)
    np.testing.assert_array_equal(state, [5, 0])


def test_copies_that_add() -> None:
    def body(x: Any, o: Any, sem: Any) -> None:
        o[...] = jnp.ones((33, 128))
        copy = pltpu.make_async_copy(x, o, sem)
        copy.start(add=True)
        copy.wait()

    x = np.random.default_rng(0).standard_normal((33, 128)).astype(np.float32)
    how = {"in_specs": [ANY], "scratch_shapes": [pltpu.SemaphoreType.DMA]}
    np.testing.assert_array_equal(run(body, like((33, 128)), x, **how), x + 1)


# ------------------------------------------------------------------------------------------ copies that run beside what follows


def bulk_copies(f: Any, *arrays: Any) -> int:
    """How many copies of a kernel are bulk copies."""
    with enabled():
        [report] = smalt.inspect(f, *arrays)
    return len(re.findall(r"cp\.async\.bulk(?:\.tensor\.\dd)?\.shared", report.ptx))


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.int8])
@pytest.mark.parametrize(
    ("shape", "part", "slots", "is_bulk"),
    [
        ((32, 128), (slice(8, 16), slice(None)), (8, 128), True),  # rows
        ((32, 256), (slice(8, 16), slice(128, 256)), (8, 128), True),  # a tile
        ((4, 6, 5, 128), (2, slice(0, 6), 3), (6, 128), True),  # rows that are not neighbours
        ((512,), (slice(128, 256),), (128,), True),
        ((32, 132), (slice(8, 16), slice(2, 130)), (8, 128), False),  # rows that begin anywhere
        ((32, 130), (slice(8, 16), slice(0, 128)), (8, 128), False),
        ((32, 128), (slice(8, 16), slice(0, 9)), (8, 9), False),
        ((32, 128), (slice(0, 32), 5), (32,), False),  # a column
    ],
)
def test_which_copies_are_bulk_copies(shape: tuple[int, ...], part: Any, slots: tuple[int, ...], is_bulk: bool, dtype: Any) -> None:
    x = np.random.default_rng(0).integers(-100, 100, shape).astype(jnp.dtype(dtype))

    def body(x: Any, o: Any, buffer: Any, sem: Any) -> None:
        copy = pltpu.make_async_copy(x.at[part], buffer, sem)
        copy.start()
        copy.wait()
        o[...] = buffer[...]

    scratch = [pltpu.VMEM(slots, dtype), pltpu.SemaphoreType.DMA]
    how = {"in_specs": [ANY], "scratch_shapes": scratch}
    np.testing.assert_array_equal(run(body, like(slots, dtype), x, **how), x[part])
    assert bulk_copies(pl.pallas_call(body, out_shape=like(slots, dtype), **how), x) == is_bulk


@pytest.mark.parametrize("seed", range(int(os.environ.get("SMALT_TPU_COPIES_N", 6))))
def test_random_orders_of_copies(seed: int) -> None:
    """Buffers, some of which share a semaphore; a wait is for the copies on it, several of which may be in flight."""
    rng = np.random.default_rng(seed)
    buffers, semaphores = int(rng.integers(2, 6)), int(rng.integers(1, 4))
    x = rng.integers(-99, 99, (40, 8, 128)).astype(np.float32)
    on: dict[int, int] = {}  # of a buffer in flight: its semaphore
    filled: dict[int, int] = {}  # of one that may be read: how many times
    program: list[tuple[str, int, int]] = []
    for _ in range(24):
        free = [b for b in range(buffers) if b not in on]
        if free and rng.random() < 0.6:
            b, s = int(rng.choice(free)), int(rng.integers(semaphores))
            on[b] = s
            filled.pop(b, None)
            program.append(("start", b, s))
        elif on:
            s = int(rng.choice(list(on.values())))
            for b in [b for b in on if on[b] == s]:
                program.append(("wait", b, s))
                del on[b]
                filled[b] = 1
        if filled and rng.random() < 0.7:
            program.append(("read", int(rng.choice(list(filled))), 0))
    program += [("wait", b, s) for b, s in on.items()]

    def body(x: Any, o: Any, buffer: Any, sems: Any) -> None:
        o[...] = jnp.zeros((8, 128), jnp.float32)

        def turn(i: Any, carry: None) -> None:
            for k, (what, b, s) in enumerate(program):
                if what == "read":
                    o[...] = o[...] * 0.5 + buffer[b]
                    continue
                copy = pltpu.make_async_copy(x.at[(i * 7 + k) % 40], buffer.at[b], sems.at[s])
                if what == "start":
                    copy.start()
                else:
                    copy.wait()

        jax.lax.fori_loop(0, 3, turn, None)

    o, held = np.zeros((8, 128), np.float32), np.zeros((buffers, 8, 128), np.float32)
    for i in range(3):
        for k, (what, b, _) in enumerate(program):
            if what == "read":
                o = o * np.float32(0.5) + held[b]
            elif what == "start":
                held[b] = x[(i * 7 + k) % 40]
    scratch = [pltpu.VMEM((buffers, 8, 128), jnp.float32), pltpu.SemaphoreType.DMA((semaphores,))]
    np.testing.assert_array_equal(run(body, like((8, 128)), x, in_specs=[ANY], scratch_shapes=scratch), o)


def test_starts_that_the_kernel_computes() -> None:
    """What is a multiple of a row of 16 bytes by the kernel's own arithmetic, and what only looks so."""
    x = np.arange(8 * 512, dtype=np.float32).reshape(8, 512)
    starts = np.array([3, 0, 1, 2], np.int32)

    def by(start: Callable[[Any], Any]) -> Callable[..., None]:
        def body(starts: Any, x: Any, o: Any, buffer: Any, sem: Any) -> None:
            pltpu.sync_copy(x.at[:, pl.ds(start(starts[pl.program_id(0)]), 128)], buffer)
            o[0] = buffer[...]

        return body

    cases: list[tuple[Callable[[Any], Any], bool]] = [
        (lambda i: i * 128, True),
        (lambda i: pl.multiple_of(i * 3 * 4, 4), True),
        (lambda i: 8 * (i + 1) - 4, True),
        (lambda i: i, False),
        (lambda i: i * 6, False),
        (lambda i: (i.astype(jnp.float32) * 128.0 / 3).astype(jnp.int32), False),
    ]
    scratch = [pltpu.VMEM((8, 128), jnp.float32), pltpu.SemaphoreType.DMA]
    for k, (start, is_bulk) in enumerate(cases):
        grid = pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=1, grid=(4,), in_specs=[ANY], out_specs=pl.BlockSpec((1, 8, 128), lambda i, _: (i, 0, 0)), scratch_shapes=scratch
        )
        got = run(by(start), like((4, 8, 128)), starts, x, grid_spec=grid)
        want = np.stack([x[:, s : s + 128] for s in (int(start(jnp.int32(i))) for i in starts)])
        np.testing.assert_array_equal(got, want, err_msg=str(k))
        copies = bulk_copies(pl.pallas_call(by(start), out_shape=like((4, 8, 128)), grid_spec=grid), starts, x)
        assert (copies > 0) == is_bulk, (k, copies)


def test_semaphores_of_two_dimensions_in_branches() -> None:
    """A copy that is begun in one arm of two is waited for behind them; a step knows of what others began."""
    x = np.arange(16 * 8 * 128, dtype=np.float32).reshape(16, 8, 128)

    def body(x: Any, o: Any, buffer: Any, sems: Any) -> None:
        i = pl.program_id(0)

        def copy(k: Any, side: Any) -> Any:
            return pltpu.make_async_copy(x.at[(k * 3 + side) % 16], buffer.at[k % 2, side], sems.at[k % 2, side])

        @pl.when(i == 0)
        def _() -> None:
            copy(i, 0).start()
            copy(i, 1).start()

        @pl.when(i % 2 == 0)
        def _() -> None:
            copy(i + 1, 0).start()
            copy(i + 1, 1).start()

        @pl.when((i % 2 == 1) & (i < 5))
        def _() -> None:
            copy(i + 1, 1).start()
            copy(i + 1, 0).start()

        copy(i, 0).wait()
        copy(i, 1).wait()
        o[0] = buffer[i % 2, 0] - 2 * buffer[i % 2, 1]

    scratch = [pltpu.VMEM((2, 2, 8, 128), jnp.float32), pltpu.SemaphoreType.DMA((2, 2))]
    how = {"grid": (6,), "in_specs": [ANY], "out_specs": pl.BlockSpec((1, 8, 128), lambda i: (i, 0, 0)), "scratch_shapes": scratch}
    i = np.arange(6)
    want = x[i * 3 % 16] - 2 * x[(i * 3 + 1) % 16]
    np.testing.assert_array_equal(run(body, like((6, 8, 128)), x, **how), want)


def test_a_copy_of_what_the_kernel_stored() -> None:
    """A step copies in what the one before it stored to device memory, by a copy and by the block's threads."""

    def body(x: Any, o: Any, buffer: Any, sem: Any) -> None:
        i = pl.program_id(0)

        @pl.when(i == 0)
        def _() -> None:
            pltpu.sync_copy(x.at[0], o.at[0])

        @pl.when(i > 0)
        def _() -> None:
            copy = pltpu.make_async_copy(o.at[i - 1], buffer, sem)
            copy.start()
            copy.wait()
            buffer[...] += 1
            pltpu.sync_copy(buffer, o.at[i])

    x = X.reshape(4, 8, 128)
    how = {"grid": (4,), "in_specs": [ANY], "out_specs": ANY, "scratch_shapes": [pltpu.VMEM((8, 128), jnp.float32), pltpu.SemaphoreType.DMA]}
    want = x[0] + np.arange(4, dtype=np.float32)[:, None, None]
    np.testing.assert_allclose(run(body, like((4, 8, 128)), x, **how), want, rtol=1e-6)
