"""Loads, stores, copies, ref transforms, mutable refs, pipelines."""

from __future__ import annotations

import warnings

import jax
import jax.experimental.pallas as pl
import jax.experimental.pallas.mosaic_gpu as plgpu
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax._src.state import primitives as state_primitives

from tests.corpus.case import Arg, case, f16, f32, i32, kernel, like, load

SMEM, Barrier = plgpu.SMEM, plgpu.Barrier
TILED_F16 = (plgpu.TilingTransform((8, 64)), plgpu.SwizzleTransform(128))
HAS_PREDICATES = hasattr(plgpu, "wait_gmem_to_smem")  # came with predicates on all copies
IS_012 = hasattr(plgpu, "barrier_arrive_and_wait")


@case(f32(256), reference=lambda x: x * 2)
def copy_through_smem(x):
    def body(x, o, buf, bar):
        plgpu.copy_gmem_to_smem(x, buf, bar)
        plgpu.barrier_wait(bar)
        buf[...] = buf[...] * 2
        plgpu.commit_smem()
        plgpu.copy_smem_to_gmem(buf, o)
        plgpu.wait_smem_to_gmem(0)

    return kernel(body, like((256,)), SMEM((256,), jnp.float32), Barrier())(x)


@case(f16(128, 128), reference=lambda x: x + np.float16(1))
def copy_tiled_swizzled(x):
    def body(x, o, buf, bar):
        plgpu.copy_gmem_to_smem(x, buf, bar)
        plgpu.barrier_wait(bar)
        v = load(buf, layout=plgpu.Layout.WGMMA)
        buf[...] = v + 1
        plgpu.commit_smem()
        plgpu.copy_smem_to_gmem(buf, o)
        plgpu.wait_smem_to_gmem(0)

    return kernel(body, like((128, 128), jnp.float16), SMEM((128, 128), jnp.float16, transforms=TILED_F16), Barrier())(x)


def _swizzles(dtype, swizzle):
    size = jnp.dtype(dtype).itemsize
    return (plgpu.TilingTransform((8, swizzle // size)), plgpu.SwizzleTransform(swizzle))


for _swizzle in (32, 64, 128):

    @case(f32(64, 64), reference=lambda x: x, name=f"copy_swizzle_{_swizzle}_f32")
    def _copy(x, swizzle=_swizzle):
        def body(x, o, buf, bar):
            plgpu.copy_gmem_to_smem(x, buf, bar)
            plgpu.barrier_wait(bar)
            o[...] = buf[...]

        scratch = SMEM((64, 64), jnp.float32, transforms=_swizzles(jnp.float32, swizzle))
        return kernel(body, like((64, 64)), scratch, Barrier())(x)


@case(f32(4, 64, 64), reference=lambda x: x[::-1])
def copy_ring(x):
    """Two slots, a barrier array, dynamic slots."""

    def body(x, o, buf, bar):
        for slot in range(2):
            plgpu.copy_gmem_to_smem(x.at[slot], buf.at[slot], bar.at[slot])

        @pl.loop(0, 4)
        def _(i):
            slot = lax.rem(i, 2)
            plgpu.barrier_wait(bar.at[slot])
            o[3 - i] = buf[slot]

            @pl.when(i + 2 < 4)
            def _():
                plgpu.copy_gmem_to_smem(x.at[i + 2], buf.at[slot], bar.at[slot])

    return kernel(body, like((4, 64, 64)), SMEM((2, 64, 64), jnp.float32), Barrier(num_barriers=2))(x)


@case(f32(64, 64), reference=lambda x: x.T)
def transposed_ref(x):
    def body(x, o, buf):
        buf[...] = x[...]
        o[...] = buf.T[...]

    return kernel(body, like((64, 64)), SMEM((64, 64), jnp.float32))(x)


@case(f32(8, 64), reference=lambda x: x.reshape(4, 2, 64)[1:3, 1])
def several_indexers(x):
    def body(x, o):
        view = x.at[pl.ds(2, 4)].at[:, pl.ds(0, 64)]
        o[0] = view.at[1][...]
        o[1] = x.at[5, pl.ds(0, 64)][...]

    return kernel(body, like((2, 64)))(x)


@case(f32(8, 64), reference=lambda x: np.concatenate([x.reshape(2, 4, 64)[1], x[:4]]))
def reshaped_ref(x):
    def body(x, o, buf):
        buf[...] = x[...]
        o[pl.ds(0, 4)] = buf.reshape(2, 4, 64)[1]
        o[pl.ds(4, 4)] = buf[pl.ds(0, 4)]

    return kernel(body, like((8, 64)), SMEM((8, 64), jnp.float32))(x)


@case(f32(8, 64), reference=lambda x: x.view(np.int32))
def bitcast_ref(x):
    def body(x, o, buf):
        buf[...] = x[...]
        o[...] = buf.bitcast(jnp.int32)[...]

    return kernel(body, like((8, 64), jnp.int32), SMEM((8, 64), jnp.float32))(x)


@case(f32(128), i32(1, low=0, high=3), reference=lambda x, i: (x[32 * i[0] : 32 * i[0] + 32], np.roll(x, 0) * 0 + x[i[0]]))
def dynamic_index(x, i):
    def body(x, i, a, b):
        at = i[0]
        a[...] = x[pl.ds(at * 32, 32)]
        b[...] = jnp.broadcast_to(x[at], (128,))

    return kernel(body, [like((32,)), like((128,))])(x, i)


@case(f32(64), reference=lambda x: (x, x + 1))
def swap_result_used(x):
    def body(x, old, new, buf):
        buf[...] = x[...]
        old[...] = state_primitives.ref_swap(buf, slice(None), x[...] + 1)
        new[...] = buf[...]

    return kernel(body, [like((64,)), like((64,))], SMEM((64,), jnp.float32))(x)


@case(f32(64), reference=lambda x: x + x)
def addupdate(x):
    def body(x, o, buf):
        buf[...] = x[...]
        state_primitives.ref_addupdate(buf, slice(None), x[...])
        o[...] = buf[...]

    return kernel(body, like((64,)), SMEM((64,), jnp.float32))(x)


@case(f16(64, 64), reference=lambda x: x)
def load_unoptimized(x):
    def body(x, o, buf):
        buf[...] = x[...]
        v = load(buf, layout=plgpu.Layout.WGMMA, optimized=False)
        if hasattr(plgpu, "store"):
            plgpu.store(o, v, optimized=False)
        else:
            o[...] = v

    return kernel(body, like((64, 64), jnp.float16), SMEM((64, 64), jnp.float16))(x)


@case(f32(2, 64), reference=lambda x: np.stack([x[0], x[1] * 0]))
def copy_out_with_predicate(x):
    def body(x, o, buf):
        i = lax.axis_index("i")
        o[i] = x[i] * 0
        buf[...] = x[i]
        plgpu.commit_smem()
        plgpu.copy_smem_to_gmem(buf, o.at[i], predicate=i == 0)
        plgpu.wait_smem_to_gmem(0)

    return kernel(body, like((2, 64)), SMEM((64,), jnp.float32), grid=(2,), grid_names=("i",))(x)


@case(f32(2, 64), when=HAS_PREDICATES, reference=lambda x: np.stack([x[0], x[1]]))
def copy_in_with_predicate(x):
    """Each slot's copy is predicated, and so is the wait: right under every version's meaning of a false predicate."""

    def body(x, o, buf, bars):
        i = lax.axis_index("i")
        plgpu.copy_gmem_to_smem(x.at[i], buf, bars.at[0], predicate=i >= 0)
        plgpu.barrier_wait(bars.at[0])
        plgpu.async_prefetch(x.at[i], predicate=i == 1)
        plgpu.barrier_arrive(bars.at[1], predicate=i >= 0)
        plgpu.barrier_wait(bars.at[1])
        o[i] = buf[...]

    return kernel(body, like((2, 64)), SMEM((64,), jnp.float32), Barrier(num_barriers=2), grid=(2,), grid_names=("i",))(x)


@case(f32(64, 64), reference=lambda x: x * 4)
def reducing_copy(x):
    def body(x, o, buf):
        buf[...] = x[...]
        o[...] = x[...]
        plgpu.commit_smem()
        for _ in range(3):
            plgpu.copy_smem_to_gmem(buf, o, reduction_op="add", commit_group=False)
        plgpu.commit_smem_to_gmem_group()
        plgpu.wait_smem_to_gmem(0, wait_read_only=False)

    return kernel(body, like((64, 64)), SMEM((64, 64), jnp.float32))(x)


@case(f32(4, 64), reference=lambda x: x)
def wait_read_only(x):
    def body(x, o, buf):
        for i in range(4):
            plgpu.wait_smem_to_gmem(1, wait_read_only=True)
            buf[i % 2] = x[i]
            plgpu.commit_smem()
            plgpu.copy_smem_to_gmem(buf.at[i % 2], o.at[i])
        plgpu.wait_smem_to_gmem(0)

    return kernel(body, like((4, 64)), SMEM((2, 64), jnp.float32))(x)


def _oob(x):
    return np.concatenate([x[96:], np.zeros((32, 64), np.float32)])


@case(f32(128, 64), reference=_oob)
def copy_out_of_bounds(x):
    """A box that sticks out of the array reads zeros."""

    def body(x, o, buf, bar):
        plgpu.copy_gmem_to_smem(x.at[pl.ds(lax.axis_index("i") + 96, 64)], buf, bar)
        plgpu.barrier_wait(bar)
        o[...] = buf[...]

    return kernel(body, like((64, 64)), SMEM((64, 64), jnp.float32), Barrier(), grid=(1,), grid_names=("i",))(x)


@case(f32(64, 64), reference=lambda x: x)
def copy_promising_in_bounds(x):
    def body(x, o, buf, bar):
        plgpu.copy_gmem_to_smem(x, buf, bar, oob_mode=plgpu.OOBFillMode.PROMISE_IN_BOUNDS)
        plgpu.barrier_wait(bar)
        o[...] = buf[...]

    return kernel(body, like((64, 64)), SMEM((64, 64), jnp.float32), Barrier())(x)


@case(f32(64, 64), f16(64, 64), reference=lambda x, y: (x + 1, y + np.float16(1)))
def ref_union(x, y):
    def body(x, y, a, b, union, bar):
        wide, narrow = union
        plgpu.copy_gmem_to_smem(x, wide, bar)
        plgpu.barrier_wait(bar)
        a[...] = wide[...] + 1
        plgpu.copy_gmem_to_smem(y, narrow, bar)
        plgpu.barrier_wait(bar)
        b[...] = narrow[...] + 1

    union = plgpu.RefUnion(SMEM((64, 64), jnp.float32), SMEM((64, 64), jnp.float16, transforms=TILED_F16))
    return kernel(body, [like((64, 64)), like((64, 64), jnp.float16)], union, Barrier())(x, y)


@case(f32(64, 64), reference=lambda x: (x, x * 2))
def ref_union_of_groups(x):
    def body(x, a, b, union):
        (first, second), third = union
        first[...] = x[...]
        second[...] = x[...] * 2
        a[...] = first[...]
        b[...] = second[...]
        third[...] = x[...]

    pair = (SMEM((64, 64), jnp.float32), SMEM((64, 64), jnp.float32))
    union = plgpu.RefUnion(pair, SMEM((64, 64), jnp.float32))
    return kernel(body, [like((64, 64)), like((64, 64))], union)(x)


_ATOMICS = ["add", "max", "min", "and", "or", "xor"]


@case(
    i32(6, 64, low=-99, high=99),
    reference=lambda x: np.stack(
        [f(f(v, v), v + 1) for f, v in zip((np.add, np.maximum, np.minimum, np.bitwise_and, np.bitwise_or, np.bitwise_xor), x)]
    ),
)
def atomics(x):
    def body(x, o):
        for i, name in enumerate(_ATOMICS):
            o[i] = x[i]
            atomic = getattr(plgpu, f"atomic_{name}")
            atomic(o.at[i], x[i])
            atomic(o.at[i], x[i] + 1)

    return kernel(body, like((6, 64), jnp.int32))(x)


@case(f32(256, 64), reference=lambda x: x + 1)
def prefetch(x):
    def body(x, o):
        at = pl.ds(lax.axis_index("i") * 64, 64)
        plgpu.async_prefetch(x.at[at])
        o[at] = x[at] + 1

    return kernel(body, like((256, 64)), grid=(4,), grid_names=("i",))(x)


@case(
    f32(64, 64),
    Arg((16,), jnp.uint32, values=(5, 1, 63, 0, 17, 33, 2, 9)),
    device="B200",
    target="blackwell",
    reference=lambda x, i: x[i],
)
def copy_gather(x, i):
    def body(x, i, o, buf, bar):
        at = load(i, layout=plgpu.Layout.TMA_INDICES)
        plgpu.copy_gmem_to_smem(x.at[at], buf, bar)
        plgpu.barrier_wait(bar)
        o[...] = buf[...]

    return kernel(body, like((16, 64)), SMEM((16, 64), jnp.float32), Barrier())(x, i)


@case(f16(2, 16, 64), when=hasattr(plgpu, "im2col_ref"), why="im2col copies are for a later day")
def copy_im2col(x):
    def body(x, o, buf, bar):
        view = plgpu.im2col_ref(x, window_shape=(3,), padding=((1, 1),))
        plgpu.copy_gmem_to_smem(view.at[pl.ds(0, 8), 1, pl.ds(0, 64)], buf, bar)
        plgpu.barrier_wait(bar)
        o[...] = buf[...]

    return kernel(body, like((8, 64), jnp.float16), SMEM((8, 64), jnp.float16), Barrier())(x)


@case(f32(64, 64), when=HAS_PREDICATES, why="the sm_80 path")
def copy_without_barrier(x):
    def body(x, o, buf):
        plgpu.copy_gmem_to_smem(x, buf, oob_mode=plgpu.OOBFillMode.PROMISE_IN_BOUNDS)
        plgpu.wait_gmem_to_smem(0)
        o[...] = buf[...]

    return kernel(body, like((64, 64)), SMEM((64, 64), jnp.float32))(x)


@case(f32(40, 256), reference=lambda x: x + 1)
def forty_arrays(x):
    def body(*refs):
        ins, (o, buf, bar) = refs[:40], refs[40:]
        for i, r in enumerate(ins):
            plgpu.copy_gmem_to_smem(r, buf, bar)
            plgpu.barrier_wait(bar)
            o[i] = buf[...] + 1

    return kernel(body, like((40, 256)), SMEM((256,), jnp.float32), Barrier())(*[x[i] for i in range(40)])


@case(f32(128), reference=lambda x: x * 2 + 1)
def mutable_ref_by_core_map(x):
    """A mutable ref that the body closes over; no output."""
    ref = jax.new_ref(x * 2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        core_map = pl.core_map

    @core_map(plgpu.Mesh(grid=(1,), grid_names=("i",)))
    def _():
        ref[...] = ref[...] + 1

    return ref[...]


@case(f32(128), when=HAS_PREDICATES, reference=lambda x: (x * 2 + 1, x))
def mutable_ref(x):
    """A mutable ref as an argument of a kernel (since 0.11)."""
    ref = jax.new_ref(x * 2)

    def body(r, x, o):
        r[...] = r[...] + 1
        o[...] = x[...]

    out = kernel(body, like((128,)))(ref, x)
    return ref[...], out


@case(
    Arg((64, 64), jnp.bool_),
    Arg((128,), jnp.int4, low=-8, high=8),
    reference=lambda a, b: (~a, b.astype(np.int32)),
)
def narrow_types_through_smem(a, b):
    def body(a, b, o, p, sa, sb, bar):
        plgpu.copy_gmem_to_smem(a, sa, bar)
        plgpu.barrier_wait(bar)
        plgpu.copy_gmem_to_smem(b, sb, bar)
        plgpu.barrier_wait(bar)
        o[...] = ~sa[...]
        p[...] = sb[...].astype(jnp.int32)

    scratch = (SMEM((64, 64), jnp.bool_), SMEM((128,), jnp.int4), Barrier())
    return kernel(body, [like((64, 64), jnp.bool_), like((128,), jnp.int32)], *scratch)(a, b)


# ------------------------------------------------------------------------------------------ pipelines


@case(f32(256, 256), f32(256, 256), reference=lambda x, y: x + y)
def pipeline(x, y):
    def body(x, y, o):
        def step(_, a, b, c):
            c[...] = a[...] + b[...]

        spec = plgpu.BlockSpec((64, 128), lambda i, j: (i, j))
        plgpu.emit_pipeline(
            step, grid=(4, 2), in_specs=[spec, spec], out_specs=[spec], max_concurrent_steps=2
        )(x, y, o)

    return kernel(body, like((256, 256)))(x, y)


@case(f16(256, 256), reference=lambda x: x * np.float16(2))
def pipeline_swizzled(x):
    def body(x, o):
        i = lax.axis_index("i")

        def step(_, a, c):
            c[...] = a[...] * 2

        spec = plgpu.BlockSpec((64, 64), lambda j: (i, j), transforms=TILED_F16)
        plgpu.emit_pipeline(step, grid=(4,), in_specs=[spec], out_specs=[spec], max_concurrent_steps=3)(x, o)

    return kernel(body, like((256, 256), jnp.float16), grid=(4,), grid_names=("i",))(x)


@case(f32(256, 128), i32(1, low=1, high=4), reference=lambda x, n: np.where(np.arange(256)[:, None] < 64 * n[0], x + 1, 0))
def pipeline_dynamic_grid(x, n):
    def body(x, n, o):
        o[...] = jnp.zeros((256, 128), jnp.float32)

        def step(_, a, c):
            c[...] = a[...] + 1

        spec = plgpu.BlockSpec((64, 128), lambda i: (i, 0))
        plgpu.emit_pipeline(step, grid=(n[0],), in_specs=[spec], out_specs=[spec], max_concurrent_steps=2)(x, o)

    return kernel(body, like((256, 128)))(x, n)


@case(f32(256, 128), reference=lambda x: x.reshape(4, 64, 128).sum(0), tolerance=1e-5)
def pipeline_with_carry(x):
    def body(x, o):
        def step(_, a, carry):
            return carry + a[...]

        spec = plgpu.BlockSpec((64, 128), lambda i: (i, 0))
        run = plgpu.emit_pipeline(
            step, grid=(4,), in_specs=[spec], max_concurrent_steps=2, init_carry=jnp.zeros((64, 128), jnp.float32)
        )
        o[...] = run(x)

    return kernel(body, like((64, 128)))(x)


@case(f32(256, 128), f32(256, 128), reference=lambda x, y: x * y)
def pipeline_warp_specialized(x, y):
    def body(x, y, o):
        def step(_, a, b, c):
            c[...] = a[...] * b[...]

        spec = plgpu.BlockSpec((64, 128), lambda i: (i, 0))
        plgpu.emit_pipeline_warp_specialized(
            step,
            grid=(4,),
            in_specs=[spec, spec],
            out_specs=[spec],
            max_concurrent_steps=2,
            num_compute_wgs=1,
            memory_registers=40,
            wg_axis="wg",
            manual_consumed_barriers=False,
        )(x, y, o)

    return kernel(body, like((256, 128)), num_threads=2, thread_name="wg")(x, y)


@case(f32(512, 64), reference=lambda x: x + 1)
def pipeline_two_compute_warpgroups(x):
    def body(x, o):
        wg = lax.axis_index("wg")

        def step(index, a):
            (i,) = index
            half = pl.ds(wg * 64, 64)
            o[pl.ds(i * 128 + wg * 64, 64)] = a[half] + 1

        plgpu.emit_pipeline_warp_specialized(
            step,
            grid=(4,),
            in_specs=[plgpu.BlockSpec((128, 64), lambda i: (i, 0))],
            max_concurrent_steps=2,
            num_compute_wgs=2,
            memory_registers=40,
            wg_axis="wg",
        )(x)

    return kernel(body, like((512, 64)), num_threads=3, thread_name="wg")(x)
