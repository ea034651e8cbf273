"""Barriers, warpgroups, warps, clusters, semaphores, launch control."""

from __future__ import annotations

import jax.experimental.pallas as pl
import jax.experimental.pallas.mosaic_gpu as plgpu
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax._src.pallas.mosaic_gpu import helpers

import smalt

from tests.corpus.case import case, f16, f32, i32, kernel, like

SMEM, Barrier, ClusterBarrier = plgpu.SMEM, plgpu.Barrier, plgpu.ClusterBarrier
TILED_F16 = (plgpu.TilingTransform((8, 64)), plgpu.SwizzleTransform(128))
HAS_PREDICATES = hasattr(plgpu, "wait_gmem_to_smem")
IS_012 = hasattr(plgpu, "barrier_arrive_and_wait")


@case(f32(8, 64), reference=lambda x: x * 2 + 1)
def producer_consumer(x):
    """Two warpgroups, a ring of two slots."""

    def body(x, o, queue, produced, consumed):
        wg = lax.axis_index("wg")

        @pl.when(wg == 0)
        def _():
            @pl.loop(0, 8)
            def _(i):
                slot = lax.rem(i, 2)

                @pl.when(i >= 2)
                def _():
                    plgpu.barrier_wait(consumed.at[slot])

                queue[slot] = x[i] * 2
                plgpu.barrier_arrive(produced.at[slot])

        @pl.when(wg == 1)
        def _():
            @pl.loop(0, 8)
            def _(i):
                slot = lax.rem(i, 2)
                plgpu.barrier_wait(produced.at[slot])
                o[i] = queue[slot] + 1
                plgpu.barrier_arrive(consumed.at[slot])

    scratch = (SMEM((2, 64), jnp.float32), Barrier(num_barriers=2), Barrier(num_barriers=2))
    return kernel(body, like((8, 64)), *scratch, num_threads=2, thread_name="wg")(x)


@case(f32(2, 64), reference=lambda x: x[::-1])
def exchange_between_warpgroups(x):
    def body(x, o, buf, bar):
        wg = lax.axis_index("wg")
        buf[wg] = x[wg]
        plgpu.barrier_arrive(bar)
        plgpu.barrier_wait(bar)
        o[wg] = buf[1 - wg]

    scratch = (SMEM((2, 64), jnp.float32), Barrier(num_arrivals=2))
    return kernel(body, like((2, 64)), *scratch, num_threads=2, thread_name="wg")(x)


@case(f32(2, 64), when=IS_012, reference=lambda x: x[::-1])
def arrive_and_wait(x):
    def body(x, o, buf, bar):
        wg = lax.axis_index("wg")
        buf[wg] = x[wg]
        plgpu.barrier_arrive_and_wait(bar)
        o[wg] = buf[1 - wg]

    scratch = (SMEM((2, 64), jnp.float32), Barrier(num_arrivals=2))
    return kernel(body, like((2, 64)), *scratch, num_threads=2, thread_name="wg")(x)


@case(f32(5, 64), reference=lambda x: x)
def barrier_scoped_in_loop(x):
    """An odd number of phases: the barrier of the next iteration continues where this one stopped."""

    def body(x, o):
        @pl.loop(0, 5)
        def _(i):
            def scope(buf, bar):
                plgpu.copy_gmem_to_smem(x.at[i], buf, bar)
                plgpu.barrier_wait(bar)
                o[i] = buf[...]

            pl.run_scoped(scope, SMEM((64,), jnp.float32), Barrier())

    return kernel(body, like((5, 64)))(x)


@case(f32(4, 64), i32(4, low=0, high=2), reference=lambda x, which: x)
def barrier_array_in_one_arm(x, which):
    """A barrier array waited at a dynamic slot, only in one arm of a cond."""

    def body(x, which, o, buf, bars):
        @pl.loop(0, 4)
        def _(i):
            @pl.when(which[i] == 1)
            def _():
                slot = lax.rem(i, 2)
                plgpu.copy_gmem_to_smem(x.at[i], buf.at[slot], bars.at[slot])
                plgpu.barrier_wait(bars.at[slot])
                o[i] = buf[slot]

            @pl.when(which[i] == 0)
            def _():
                o[i] = x[i]

    return kernel(body, like((4, 64)), SMEM((2, 64), jnp.float32), Barrier(num_barriers=2))(x, which)


@case(f32(2, 64), reference=lambda x: x)
def barrier_matrix(x):
    """A 2-D array of barriers."""

    def body(x, o, buf, bars):
        for i in range(2):
            plgpu.copy_gmem_to_smem(x.at[i], buf.at[i], bars.at[i, 1 - i])
        for i in range(2):
            plgpu.barrier_wait(bars.at[i, 1 - i])
            o[i] = buf[i]

    return kernel(body, like((2, 64)), SMEM((2, 64), jnp.float32), Barrier(num_barriers=(2, 2)))(x)


@case(f32(64, 64), reference=lambda x: x * 2)
def sibling_scopes(x):
    """Equal scopes one after the other get the same memory and barriers."""

    def body(x, o):
        def scope(buf, bar):
            plgpu.copy_gmem_to_smem(x, buf, bar)
            plgpu.barrier_wait(bar)
            return buf[...]

        first = pl.run_scoped(scope, SMEM((64, 64), jnp.float32), Barrier())
        second = pl.run_scoped(scope, SMEM((64, 64), jnp.float32), Barrier())
        o[...] = first + second

    return kernel(body, like((64, 64)))(x)


@case(f32(256), when=HAS_PREDICATES, reference=lambda x: x)
def barrier_test(x):
    def body(x, o, buf, bar):
        plgpu.copy_gmem_to_smem(x, buf, bar)

        def poll(done):
            return plgpu.barrier_test(bar)

        lax.while_loop(lambda done: ~done, poll, False)
        o[...] = buf[...]

    return kernel(body, like((256,)), SMEM((256,), jnp.float32), Barrier())(x)


@case(f32(128), reference=lambda x: x)
def warp_region(x):
    """One warp issues the copy; a warp region sees refs and scalars only."""

    def body(x, o, buf, bar):
        i = lax.axis_index("i")

        @helpers.warp_map
        def _(warp):
            @pl.when((warp == 1) & (i == 0))
            def _():
                plgpu.copy_gmem_to_smem(x, buf, bar)

        plgpu.barrier_wait(bar)
        o[...] = buf[...]

    return kernel(body, like((128,)), SMEM((128,), jnp.float32), Barrier(), grid=(1,), grid_names=("i",))(x)


@case(f32(64, 64), reference=lambda x: x * 2)
def registers_and_fences(x):
    def body(x, o, buf):
        wg = lax.axis_index("wg")

        @pl.when(wg == 0)
        def _():
            plgpu.set_max_registers(152, action="increase")
            o[...] = x[...] * 2

        @pl.when(wg == 1)
        def _():
            plgpu.set_max_registers(40, action="decrease")
            buf[...] = x[...]
            plgpu.commit_smem()

    return kernel(body, like((64, 64)), SMEM((64, 64), jnp.float32), num_threads=2, thread_name="wg")(x)


@case(f32(64, 64), reference=lambda x: x + 1)
def programmatic_launch(x):
    def body(x, o):
        plgpu.griddepcontrol_wait()
        o[...] = x[...] + 1
        plgpu.griddepcontrol_launch_dependents()

    return kernel(body, like((64, 64)))(x)


@case(f32(128), reference=lambda x: x)
def inline_fences(x):
    def body(x, o):
        helpers.inline_ptx("fence.proxy.async::generic.acquire.sync_restrict::shared::cluster.cluster;")
        o[...] = x[...]
        helpers.inline_ptx("fence.proxy.async::generic.release.sync_restrict::shared::cta.cluster;")

    return kernel(body, like((128,)))(x)


@case(f32(128), reference=lambda x: x + x)
def inline_mgpu_values(x):
    layout = plgpu.Layout.WG_STRIDED((128,), vec_size=1)
    out = plgpu.ShapeDtypeStruct((128,), jnp.float32, layout=layout)

    @plgpu.inline_mgpu(arg_types=(layout, plgpu.RefType()), return_type=out)
    def double(ctx, v, ref):
        return v + v

    def body(x, o, buf):
        buf[...] = x[...]
        o[...] = double(plgpu.layout_cast(x[...], layout), buf)

    return kernel(body, like((128,)), SMEM((128,), jnp.float32))(x)


@case(f32(5, 64, 64), reference=lambda x: x[0] + x[1] + x[2] + x[3] + x[4])
def counted_barriers(x):
    """A ring of two slots whose phases, arrivals and bytes the kernel counts."""

    def body(x, o, tiles, full, empty):
        wg = lax.axis_index("wg")

        @pl.when(wg == 0)
        def _():
            @pl.loop(0, 5)
            def _(i):
                smalt.mbarrier_wait(empty.at[i % 2], (i // 2 + 1) % 2)
                smalt.expect_bytes(full.at[i % 2], 64 * 64 * 4)
                plgpu.copy_gmem_to_smem(x.at[i], tiles.at[i % 2], full.at[i % 2])

        @pl.when(wg == 1)
        def _():
            def step(i, total):
                smalt.mbarrier_wait(full.at[i % 2], i // 2, order="relaxed", scope="cta")
                smalt.fence("acquire", "cta")
                total += tiles[i % 2]
                smalt.mbarrier_arrive(empty.at[i % 2], threads="warps")
                return total

            zero = plgpu.layout_cast(jnp.zeros((64, 64), jnp.float32), plgpu.Layout.WG_STRIDED((64, 64), vec_size=2))
            o[...] = lax.fori_loop(0, 5, step, zero)

    scratch = (SMEM((2, 64, 64), jnp.float32), Barrier(num_barriers=2), Barrier(num_arrivals=4, num_barriers=2))
    return kernel(body, like((64, 64)), *scratch, num_threads=2, thread_name="wg")(x)


@case(i32(4, 128, low=-9, high=9), reference=lambda x: np.stack([x[0], x[1] + 3, x[0] + x[1] + 3, np.full(128, 8, np.int32)]))
def ordered_accesses(x):
    """Words and arrays that are stored, loaded and added to with an order."""

    def body(x, o, word):
        smalt.store(o.at[pl.ds(0, 2)], x[:2], order="release")
        smalt.atomic_add(o.at[1], jnp.full((128,), 3), order="acq_rel")
        smalt.store(o.at[2], smalt.load(o.at[0], order="acquire") + smalt.load(o.at[1]))
        smalt.store(word.at[0], 5, order="relaxed", scope="cta")
        smalt.atomic_add(word.at[0], 3, scope="cta")
        smalt.fence("sc", "cta")
        o[3] = jnp.full((128,), smalt.load(word.at[0], order="acquire", scope="cta"))

    return kernel(body, like((4, 128), jnp.int32), SMEM((4,), jnp.int32))(x)


# ------------------------------------------------------------------------------------------ clusters


@case(f32(2, 64, 64), reference=lambda x: np.stack([x[0], x[0]]))
def multicast_copy(x):
    def body(x, o, buf, bar):
        i = lax.axis_index("c")
        plgpu.copy_gmem_to_smem(x.at[0], buf, bar, collective_axes="c")
        plgpu.barrier_wait(bar)
        o[i] = buf[...]

    scratch = (SMEM((64, 64), jnp.float32), Barrier())
    return kernel(body, like((2, 64, 64)), *scratch, cluster=(2,), cluster_names=("c",))(x)


@case(f16(128, 64), device="B200", target="blackwell", reference=lambda x: x)
def leader_tracked_copies(x):
    def body(x, o, part, whole, bars):
        i = lax.axis_index("c")
        axis = plgpu.CopyPartition.PARTITIONED(0)
        plgpu.copy_gmem_to_smem(x, part, bars.at[0], collective_axes="c", leader_tracked=axis)
        replicated = plgpu.CopyPartition.REPLICATED
        replicated = replicated() if callable(replicated) else replicated
        plgpu.copy_gmem_to_smem(x, whole, bars.at[1], collective_axes="c", leader_tracked=replicated)

        @pl.when(i == 0)
        def _():
            plgpu.barrier_wait(bars.at[0])
            plgpu.barrier_wait(bars.at[1])

        o[pl.ds(i * 64, 64)] = part[...]

    scratch = (
        SMEM((64, 64), jnp.float16, transforms=TILED_F16),
        SMEM((128, 64), jnp.float16, transforms=TILED_F16),
        Barrier(num_barriers=2),
    )
    return kernel(body, like((128, 64), jnp.float16), *scratch, cluster=(2,), cluster_names=("c",))(x)


@case(f32(2, 64), reference=lambda x: x[::-1])
def cluster_barrier(x):
    """Each CTA reads its peer's shared memory after a cluster barrier."""

    def body(x, o, buf, bar):
        i = lax.axis_index("c")
        buf[...] = x[i]
        plgpu.barrier_arrive(bar)
        plgpu.barrier_wait(bar)
        o[i] = plgpu.cluster_ref(buf, {"c": 1 - i})[...]
        plgpu.barrier_arrive(bar)
        plgpu.barrier_wait(bar)

    scratch = (SMEM((64,), jnp.float32), ClusterBarrier(collective_axes=("c",)))
    return kernel(body, like((2, 64)), *scratch, cluster=(2,), cluster_names=("c",))(x)


@case(f32(4, 64), reference=lambda x: x)
def cluster_barriers_over_axes(x):
    def body(x, o, one, both, many):
        for bar in (one, both, many.at[1]):
            plgpu.barrier_arrive(bar)
            plgpu.barrier_wait(bar)
        i = lax.axis_index("a") * 2 + lax.axis_index("b")
        o[i] = x[i]

    scratch = (
        ClusterBarrier(collective_axes=("a",)),
        ClusterBarrier(collective_axes=(("a", "b"),)),
        ClusterBarrier(collective_axes=("a", "b"), num_barriers=2, num_arrivals=1),
    )
    return kernel(body, like((4, 64)), *scratch, cluster=(2, 2), cluster_names=("a", "b"))(x)


@case(f32(2, 64, 64), reference=lambda x: x[::-1])
def async_store_to_peer(x):
    def body(x, o, buf, bar, ready):
        i = lax.axis_index("c")
        plgpu.barrier_arrive(ready)
        plgpu.barrier_wait(ready)
        v = plgpu.layout_cast(x[i], plgpu.Layout.WGMMA)
        plgpu.async_store_smem(v, buf, bar, cluster_idx=1 - i, cluster_dim="c")
        plgpu.barrier_wait(bar)
        o[i] = buf[...]

    tiled = (plgpu.TilingTransform((8, 32)), plgpu.SwizzleTransform(128))
    scratch = (SMEM((64, 64), jnp.float32, transforms=tiled), Barrier(), ClusterBarrier(collective_axes=("c",)))
    return kernel(body, like((2, 64, 64)), *scratch, cluster=(2,), cluster_names=("c",))(x)


# ------------------------------------------------------------------------------------------ semaphores


@case(reference=lambda: np.arange(1, 5, dtype=np.int32))
def semaphore_chain():
    """Block i waits for block i - 1."""

    def body(o, sem):
        i = lax.axis_index("i")

        @pl.when(i > 0)
        def _():
            pl.semaphore_wait(sem, i, decrement=False)

        o[i] = i + 1
        pl.semaphore_signal(sem, 1)

    scratch = plgpu.SemaphoreType.REGULAR
    return pl_global(body, scratch)


def pl_global(body, what):
    """A kernel of four blocks whose semaphore is shared by all of them."""

    def outer(o):
        body(o, pl.get_global(what))

    return kernel(outer, like((4,), jnp.int32), grid=(4,), grid_names=("i",))()


@case(reference=lambda: np.array([3, 1, 0, 0], np.int32))
def semaphores_in_scope():
    def body(o, sems):
        for i in range(4):
            o[i] = jnp.int32(0)
        plgpu.semaphore_signal(sems.at[0], 5, memory_scope="gpu")
        plgpu.semaphore_wait(sems.at[0], 2, memory_scope="gpu")
        o[0] = pl.semaphore_read(sems.at[0])
        pl.semaphore_signal(sems.at[1])
        pl.semaphore_wait(sems.at[1], decrement=False)
        o[1] = pl.semaphore_read(sems.at[1])

    return kernel(body, like((4,), jnp.int32), plgpu.SemaphoreType.REGULAR((2,)))()


@case(f32(64), when=hasattr(plgpu, "alloc_semaphore"), why="semaphore arguments come with programs over devices")
def semaphore_argument(x):
    sem = plgpu.alloc_semaphore((2,))

    def body(x, sem, o):
        plgpu.semaphore_signal(sem.at[1], 1)
        plgpu.semaphore_wait(sem.at[1], 1)
        o[...] = x[...]

    return kernel(body, like((64,)))(x, sem)
