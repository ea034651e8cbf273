"""Blocks that signal each other through device memory, and what their authors may forget.

Each kernel is a function of `flaw`: None for the right one, else the name of the mistake.
"""

from __future__ import annotations

import jax.experimental.pallas as pl
import jax.experimental.pallas.mosaic_gpu as plgpu
import jax.numpy as jnp
import numpy as np
from jax import lax

from tests.corpus.case import f32, kernel, like
from tests.suites.asynchrony.kernels import flawed
from tests.suites.asynchrony.subject import subject

SMEM, Barrier, REGULAR = plgpu.SMEM, plgpu.Barrier, plgpu.SemaphoreType.REGULAR
UNORDERED = "and nothing orders the two"
BLOCKS = 4


def grid(body, out, *scratch, blocks=BLOCKS):
    return kernel(body, out, *scratch, grid=(blocks,), grid_names=("i",))


# ------------------------------------------------------------------------------------------ one message


def one_to_all(x, flaw=None):
    """Block 0 makes what the others use."""

    def body(x, made, o):
        sem = pl.get_global(REGULAR)
        block = lax.axis_index("i")

        @pl.when(block == 0)
        def _():
            if flaw == "signals before it stores":
                pl.semaphore_signal(sem, 1)
            made[...] = x[...] * 2
            if flaw != "signals before it stores":
                pl.semaphore_signal(sem, 1)
            o[0] = x[...]

        @pl.when(block > 0)
        def _():
            if flaw != "does not wait":
                pl.semaphore_wait(sem, 1, decrement=False)
            o[block] = made[...] + 1

    return grid(body, (like((128,)), like((BLOCKS, 128))))(x)


ONE_TO_ALL = subject(f32(128), reference=lambda x: (x * 2, np.stack([x] + [x * 2 + 1] * (BLOCKS - 1))))(one_to_all)
flawed(one_to_all, ONE_TO_ALL, "does not wait", shows=("global memory that warp", UNORDERED))
flawed(one_to_all, ONE_TO_ALL, "signals before it stores", shows=("global memory that warp", "of CTA (", UNORDERED))


# ------------------------------------------------------------------------------------------ counts


def all_to_one(x, flaw=None):
    """Block 0 adds what the others have made."""

    def body(x, parts, o):
        sem = pl.get_global(REGULAR)
        block = lax.axis_index("i")

        @pl.when(block > 0)
        def _():
            parts[block] = x[block] * 2
            if flaw == "one block does not signal":

                @pl.when(block != 2)
                def _():
                    pl.semaphore_signal(sem, 1)
            else:
                pl.semaphore_signal(sem, 1)
            if flaw == "one block signals twice":

                @pl.when(block == 1)
                def _():
                    pl.semaphore_signal(sem, 1)

        @pl.when(block == 0)
        def _():
            parts[0] = x[0]
            pl.semaphore_wait(sem, BLOCKS - 2 if flaw == "waits for one too few" else BLOCKS - 1)
            o[...] = parts[0] + parts[1] + parts[2] + parts[3]

    return grid(body, (like((BLOCKS, 128)), like((128,))))(x)


def added(x):
    parts = x * np.float32([[1], [2], [2], [2]])
    return parts, parts[0] + parts[1] + parts[2] + parts[3]


ALL_TO_ONE = subject(f32(BLOCKS, 128), reference=added)(all_to_one)
flawed(all_to_one, ALL_TO_ONE, "waits for one too few", shows=("global memory that warp", UNORDERED))
flawed(all_to_one, ALL_TO_ONE, "one block signals twice", shows=("global memory that warp", UNORDERED))
flawed(
    all_to_one,
    ALL_TO_ONE,
    "one block does not signal",
    shows=("deadlock", "which is 2, to be at least 3; last signalled by warp 0 of CTA ("),
    line="pl.semaphore_wait",
)


# ------------------------------------------------------------------------------------------ a ring in device memory

ITEMS, SLOTS = 6, 2


def credits(x, flaw=None):
    """Block 1 fills slots that block 0 empties, and gives back."""

    def body(x, ring, o):
        sems = pl.get_global(REGULAR((2,)))
        full, free = sems.at[0], sems.at[1]
        block = lax.axis_index("i")

        @pl.when(block == 1)
        def _():
            @pl.loop(0, ITEMS)
            def _(i):
                if flaw != "does not wait for a free slot":

                    @pl.when(i >= SLOTS)
                    def _():
                        pl.semaphore_wait(free, 1)

                ring[lax.rem(i, SLOTS)] = x[i] + 1
                pl.semaphore_signal(full, 1)

        @pl.when(block == 0)
        def _():
            @pl.loop(0, ITEMS)
            def _(i):
                if flaw != "does not wait for a full slot":
                    pl.semaphore_wait(full, 1)
                if flaw == "gives a slot back before it is read":
                    pl.semaphore_signal(free, 1)
                o[i] = ring[lax.rem(i, SLOTS)]
                if flaw != "gives a slot back before it is read":
                    pl.semaphore_signal(free, 1)

    return grid(body, (like((SLOTS, 128)), like((ITEMS, 128))), blocks=2)(x)


CREDITS = subject(f32(ITEMS, 128), reference=lambda x: (x[-SLOTS:] + 1, x + 1))(credits)
for flaw in ("does not wait for a free slot", "does not wait for a full slot", "gives a slot back before it is read"):
    flawed(credits, CREDITS, flaw, shows=("global memory that warp", UNORDERED))


# ------------------------------------------------------------------------------------------ bulk copies


def bulk_message(x, flaw=None):
    """Block 1 copies out, block 0 in what has come; then block 1 overwrites it."""

    def body(x, box, o, buf, bar):
        sems = pl.get_global(REGULAR((2,)))
        block = lax.axis_index("i")

        @pl.when(block == 1)
        def _():
            buf[...] = x[...] * 3
            plgpu.commit_smem()
            plgpu.copy_smem_to_gmem(buf, box)
            if flaw == "waits for the reads only":
                plgpu.wait_smem_to_gmem(0, wait_read_only=True)
            elif flaw != "signals before it waits":
                plgpu.wait_smem_to_gmem(0)
            pl.semaphore_signal(sems.at[0], 1)
            plgpu.wait_smem_to_gmem(0)
            pl.semaphore_wait(sems.at[1], 1)
            box[...] = x[...]

        @pl.when(block == 0)
        def _():
            pl.semaphore_wait(sems.at[0], 1)
            plgpu.copy_gmem_to_smem(box, buf, bar)
            if flaw == "gives back what is still copied":
                pl.semaphore_signal(sems.at[1], 1)
            plgpu.barrier_wait(bar)
            if flaw != "gives back what is still copied":
                pl.semaphore_signal(sems.at[1], 1)
            o[...] = buf[...]

    return grid(body, (like((64, 64)), like((64, 64))), SMEM((64, 64), jnp.float32), Barrier(), blocks=2)(x)


BULK_MESSAGE = subject(f32(64, 64), reference=lambda x: (x, x * 3))(bulk_message)
flawed(bulk_message, BULK_MESSAGE, "signals before it waits", shows=("global memory that a bulk", UNORDERED))
flawed(bulk_message, BULK_MESSAGE, "waits for the reads only", shows=("global memory that a bulk", UNORDERED))
flawed(bulk_message, BULK_MESSAGE, "gives back what is still copied", shows=("global memory that", UNORDERED))


# ------------------------------------------------------------------------------------------ the whole grid


def rounds(x, flaw=None):
    """Every block adds its neighbours', twice: a barrier of the grid after the stores, and one after the loads."""

    def body(x, boxes, o):
        sem = pl.get_global(REGULAR)
        block = lax.axis_index("i")

        def barrier(number):
            pl.semaphore_signal(sem, 1)
            pl.semaphore_wait(sem, BLOCKS * number - (flaw == "waits for one too few"), decrement=False)

        boxes[block] = x[block]
        barrier(1)
        total = boxes[lax.rem(block + 1, BLOCKS)] + boxes[lax.rem(block + 3, BLOCKS)]
        if flaw != "no barrier after the loads":
            barrier(2)
        boxes[block] = total
        barrier(2 if flaw == "no barrier after the loads" else 3)
        o[block] = boxes[lax.rem(block + 1, BLOCKS)]

    return grid(body, (like((BLOCKS, 128)), like((BLOCKS, 128))))(x)


def summed(x):
    total = np.roll(x, -1, 0) + np.roll(x, -3, 0)
    return total, np.roll(total, -1, 0)


ROUNDS = subject(f32(BLOCKS, 128), reference=summed)(rounds)
flawed(rounds, ROUNDS, "no barrier after the loads", shows=("global memory that warp", UNORDERED))
flawed(rounds, ROUNDS, "waits for one too few", shows=("global memory that warp", UNORDERED))
