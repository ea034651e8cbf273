"""Kernels whose waits the compiler makes, keeps or moves: each has to be right under every schedule."""

from __future__ import annotations

from typing import Any

import jax.experimental.pallas as pl
import jax.experimental.pallas.mosaic_gpu as plgpu
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax._src.pallas.mosaic_gpu import helpers

from tests.corpus.case import Arg, f16, f32, kernel, like, load
from tests.suites.asynchrony.kernels import mul, tiled
from tests.suites.asynchrony.subject import broken, subject

SMEM, Barrier, ACC = plgpu.SMEM, plgpu.Barrier, plgpu.ACC
WGMMA = plgpu.Layout.WGMMA

# ------------------------------------------------------------------------------------------ phases that warps count


@subject(f32(6, 64, 64), reference=lambda x: x)
def warps_hand_over(x):
    """A producer warp that waits only where a slot was used before, a consumer warp."""
    steps, slots = 6, 2

    def body(x, o, buf, loaded, free):
        @helpers.warp_map
        def _(warp):
            @pl.when(warp == 0)
            def _():
                @pl.loop(0, steps)
                def _(i):
                    slot = lax.rem(i, slots)

                    @pl.when(i >= slots)
                    def _():
                        plgpu.barrier_wait(free.at[slot])

                    plgpu.copy_gmem_to_smem(x.at[i], buf.at[slot], loaded.at[slot])

            @pl.when(warp == 1)
            def _():
                @pl.loop(0, steps)
                def _(i):
                    slot = lax.rem(i, slots)
                    plgpu.barrier_wait(loaded.at[slot])
                    plgpu.copy_smem_to_gmem(buf.at[slot], o.at[i])
                    plgpu.wait_smem_to_gmem(0)
                    plgpu.barrier_arrive(free.at[slot])

    bars = Barrier(num_barriers=slots)
    return kernel(body, like((steps, 64, 64)), SMEM((slots, 64, 64), jnp.float32), bars, bars)(x)


@subject(f32(6, 64, 64), reference=lambda x: x)
def warpgroups_hand_over_in_arms(x):
    """Two warpgroups, each in its arm of one `cond`; the first waits from its second turn on."""

    def body(x, o, buf, full, empty):
        @pl.loop(0, 6)
        def _(i):
            def writes():
                @pl.when(i > 0)
                def _():
                    plgpu.barrier_wait(empty)

                buf[...] = x[i]
                plgpu.barrier_arrive(full)

            def reads():
                plgpu.barrier_wait(full)
                o[i] = buf[...]
                plgpu.barrier_arrive(empty)

            lax.cond(lax.axis_index("wg") == 0, writes, reads)

    buf = SMEM((64, 64), jnp.float32)
    return kernel(body, like((6, 64, 64)), buf, Barrier(), Barrier(), num_threads=2, thread_name="wg")(x)


@subject(f32(64, 64), reference=lambda x: x)
def one_warp_polls(x):
    """A warp asks a barrier in a loop, then copies out what came."""

    def body(x, o, buf, bar):
        plgpu.copy_gmem_to_smem(x, buf, bar)

        @helpers.warp_map
        def _(warp):
            @pl.when(warp == 2)
            def _():
                lax.while_loop(lambda _: ~plgpu.barrier_test(bar), lambda c: c, 0)
                plgpu.copy_smem_to_gmem(buf, o)
                plgpu.wait_smem_to_gmem(0)

    return kernel(body, like((64, 64)), SMEM((64, 64), jnp.float32), Barrier())(x)


@subject(f32(3, 64, 64), reference=lambda x: x)
def warps_and_warpgroup_wait_for_one_barrier(x):
    """In turn the warpgroup, all of its warps, and the warpgroup again."""

    def body(x, o, buf, bar):
        plgpu.copy_gmem_to_smem(x.at[0], buf, bar)
        plgpu.barrier_wait(bar)
        o[0] = buf[...]

        @helpers.warp_map
        def _(warp):
            @pl.when(warp == 0)
            def _():
                plgpu.copy_gmem_to_smem(x.at[1], buf, bar)

            plgpu.barrier_wait(bar)

        o[1] = buf[...]
        plgpu.copy_gmem_to_smem(x.at[2], buf, bar)
        plgpu.barrier_wait(bar)
        o[2] = buf[...]

    return kernel(body, like((3, 64, 64)), SMEM((64, 64), jnp.float32), Barrier())(x)


# ------------------------------------------------------------------------------------------ operands in registers, no wgmma_wait


def _matmul(left: Any, a: Any, b: Any, a_buf: Any) -> Any:
    """`left(acc, a_buf, b_buf)` issues what it likes, and waits for nothing."""

    def body(a, b, o, a_buf, b_buf, bars):
        plgpu.copy_gmem_to_smem(a, a_buf, bars.at[0])
        plgpu.copy_gmem_to_smem(b, b_buf, bars.at[1])
        plgpu.barrier_wait(bars.at[0])
        plgpu.barrier_wait(bars.at[1])

        def compute(acc):
            left(acc, a_buf, b_buf)
            return acc[...]

        o[...] = pl.run_scoped(compute, ACC((64, 64), jnp.float32))

    b_buf = SMEM((64, 64), jnp.float16, transforms=tiled(jnp.float16))
    return kernel(body, like((64, 64)), a_buf, b_buf, Barrier(num_barriers=2))(a, b)


@subject(f16(64, 64), f16(64, 64), reference=lambda a, b: mul(a, b) * 1.75, tolerance=2e-3)
def operand_halved_in_a_loop(a, b):
    """The loop's carry is what the wgmma in flight reads."""

    def left(acc, a_buf, b_buf):
        def step(_, v):
            plgpu.wgmma(acc, v, b_buf)
            return v * jnp.float16(0.5)

        lax.fori_loop(0, 3, step, load(a_buf, layout=WGMMA))

    return _matmul(left, a, b, SMEM((64, 64), jnp.float16, transforms=tiled(jnp.float16)))


@subject(f16(4, 64, 64), f16(64, 64), reference=lambda a, b: mul(a.astype(np.float32).sum(0), b), tolerance=4e-3)
def operand_loaded_in_a_loop(a, b):
    def left(acc, a_buf, b_buf):
        @pl.loop(0, 4)
        def _(i):
            plgpu.wgmma(acc, load(a_buf.at[i], layout=WGMMA), b_buf)

    return _matmul(left, a, b, SMEM((4, 64, 64), jnp.float16, transforms=tiled(jnp.float16)))


@subject(Arg((4, 64, 64), jnp.int8, low=-8, high=8), f16(64, 64), reference=lambda a, b: mul(a.astype(np.float32).sum(0) * 0.125, b), tolerance=4e-3)  # fmt: skip
def operand_dequantised_in_a_loop(a, b):
    def left(acc, a_buf, b_buf):
        @pl.loop(0, 4)
        def _(i):
            plgpu.wgmma(acc, load(a_buf.at[i], layout=WGMMA).astype(jnp.float16) * jnp.float16(0.125), b_buf)

    return _matmul(left, a, b, SMEM((4, 64, 64), jnp.int8))


@subject(f16(4, 64, 64), f16(64, 64), reference=lambda a, b: mul(a[[0, 1, 3, 1]].astype(np.float32).sum(0), b), tolerance=4e-3)
def operand_changed_in_one_arm_of_nested_loops(a, b):
    def left(acc, a_buf, b_buf):
        def step(i, v):
            @pl.when(i % 2 == 0)
            def _():
                plgpu.wgmma(acc, v, b_buf)

            return lax.cond(i % 2 == 1, lambda: load(a_buf.at[i], layout=WGMMA), lambda: v)

        lax.fori_loop(0, 2, lambda _, v: lax.fori_loop(0, 4, step, v), load(a_buf.at[0], layout=WGMMA))

    return _matmul(left, a, b, SMEM((4, 64, 64), jnp.float16, transforms=tiled(jnp.float16)))


@subject(f16(4, 64, 64), f16(64, 64), reference=lambda a, b: mul(a.astype(np.float32).sum(0), b), tolerance=4e-3)
def operand_from_a_pipeline(a, b):
    """`delay_release=1`: a step's slot is refilled one step later, and nobody waits in between."""

    def body(a, b, o):
        def scope(b_buf, bar, acc):
            plgpu.copy_gmem_to_smem(b, b_buf, bar)
            plgpu.barrier_wait(bar)

            def step(_, slot):
                plgpu.wgmma(acc, load(slot.at[0], layout=WGMMA), b_buf)

            spec = plgpu.BlockSpec((1, 64, 64), lambda i: (i, 0, 0), transforms=tiled(jnp.float16), delay_release=1)
            plgpu.emit_pipeline(step, grid=(4,), in_specs=[spec], max_concurrent_steps=2)(a)
            o[...] = acc[...]

        b_buf = SMEM((64, 64), jnp.float16, transforms=tiled(jnp.float16))
        pl.run_scoped(scope, b_buf, Barrier(), ACC((64, 64), jnp.float32))

    return kernel(body, like((64, 64)))(a, b)


# ------------------------------------------------------------------------------------------ polling


def polled_semaphore(x, flaw=None):
    """Block 1 makes what block 0 asks for until it is there; nothing uses the count that ends the loop."""

    def body(x, o, made):
        sem = pl.get_global(plgpu.SemaphoreType.REGULAR)
        block = lax.axis_index("i")

        @pl.when(block == 1)
        def _():
            made[...] = x[...] * 2
            pl.semaphore_signal(sem, 1)

        @pl.when(block == 0)
        def _():
            if flaw != "does not ask":
                lax.while_loop(lambda count: count < 1, lambda _: pl.semaphore_read(sem), 0)
            o[...] = made[...] + 1

    return kernel(body, (like((128,)), like((128,))), grid=(2,), grid_names=("i",))(x)


POLLED_SEMAPHORE = subject(f32(128), reference=lambda x: (x * 2 + 1, x * 2))(polled_semaphore)
broken(
    "polled_semaphore: does not ask",
    POLLED_SEMAPHORE,
    lambda x: polled_semaphore(x, "does not ask"),
    shows=("global memory that warp 0 of CTA (0, 0, 0) read, and nothing orders the two",),
    line="made[...] = x[...] * 2",
)


@subject(f32(128), reference=lambda x: (x + 7, np.int32([7] * 8)))
def polled_flag(x):
    """A flag in device memory, zeroed by block 0 and raised by block 1; the loop's own value is used by nobody."""

    def body(x, o, flag):
        sem = pl.get_global(plgpu.SemaphoreType.REGULAR)
        block = lax.axis_index("i")

        @pl.when(block == 0)
        def _():
            flag[...] = jnp.zeros((8,), jnp.int32)
            pl.semaphore_signal(sem, 1)
            lax.while_loop(lambda _: flag[3] != 7, lambda c: c, 0)
            o[...] = x[...] + flag[3].astype(jnp.float32)

        @pl.when(block == 1)
        def _():
            pl.semaphore_wait(sem, 1)
            flag[...] = jnp.full((8,), 7, jnp.int32)

    return kernel(body, (like((128,)), like((8,), jnp.int32)), grid=(2,), grid_names=("i",))(x)


# ------------------------------------------------------------------------------------------ semaphores of warps


@subject(reference=lambda: np.full((128,), 1, np.int32))
def warps_count_semaphores(*_):
    """Two warps signal 2 each, two wait for 1 and one for 1 more: 1 is left, which all of the warpgroup sees."""

    def body(o):
        sem = pl.get_global(plgpu.SemaphoreType.REGULAR)

        @helpers.warp_map
        def _(warp):
            @pl.when(warp < 2)
            def _():
                pl.semaphore_signal(sem, 2)

            @pl.when(warp >= 1)
            def _():
                pl.semaphore_wait(sem, 1)

        o[...] = jnp.broadcast_to(pl.semaphore_read(sem), (128,))

    return kernel(body, like((128,), jnp.int32))()
