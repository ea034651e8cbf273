"""Kernels whose waits the compiler makes, keeps or moves: each has to be right under every schedule."""

from __future__ import annotations

from typing import Any

import jax.experimental.pallas as pl
import jax.experimental.pallas.mosaic_gpu as plgpu
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax._src.pallas.mosaic_gpu import helpers

from tests.asynchrony.kernels import mul, tiled
from tests.asynchrony.subject import broken, subject
from tests.corpus.case import Arg, f16, f32, kernel, like, load

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
